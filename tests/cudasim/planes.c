/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kvp_haar.h"
#include "kernels/numeric.h"
#include "tests/cudasim/planes.h"

uint64_t rng_u64(struct rng *r)
{
	uint64_t z = (r->state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint32_t rng_below(struct rng *r, uint32_t n)
{
	return (uint32_t)(rng_u64(r) >> 33) % n;
}

float rng_normal(struct rng *r)
{
	double u = ((double)(rng_u64(r) >> 11) + 1.0) * 0x1p-53;
	double v = (double)(rng_u64(r) >> 11) * 0x1p-53;

	return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

uint32_t codec_draw(struct rng *r)
{
	switch (rng_below(r, 12)) {
	case 0:
		return KVP_CODEC_NATIVE;
	case 1:
		return rng_below(r, 2) ? KVP_CODEC_FP8_E4M3 : KVP_CODEC_FP8_E5M2;
	case 2:
		return KVP_CODEC_INT8;
	case 3:
	case 4:
		return KVP_CODEC_KIVI(2 + rng_below(r, 3), 4 + rng_below(r, 4));
	case 5:
		return KVP_CODEC_ASYM(
			2 + rng_below(r, 3), rng_below(r, 3) ? 4 + rng_below(r, 4) : 0);
	case 6:
	case 7:
	case 8:
		return KVP_CODEC_TQ(2 + rng_below(r, 3), 0u, 0u, 0u, 0u);
	default:
		return KVP_CODEC_TQ(2 + rng_below(r, 3), rng_below(r, 3), rng_below(r, 3),
			rng_below(r, 2), rng_below(r, 2));
	}
}

int is_dense(uint32_t codec)
{
	return KVP_CODEC_FAMILY(codec) == KVP_FAMILY_TQ &&
	       (KVP_CODEC_VARIANT(codec) >> 4 & 3u) == KVP_ROT_HAAR;
}

const struct kvp_calib *subject_calib(uint32_t codec, uint32_t dim)
{
	static struct kvp_calib made[KVP_PLANE_DIM_MAX / 8 + 1];
	struct kvp_calib *c = &made[dim / 8];
	double *work;
	float *matrix;

	if (!is_dense(codec) || c->haar)
		return is_dense(codec) ? c : NULL;
	work = malloc((size_t)dim * dim * sizeof(*work));
	matrix = malloc((size_t)dim * dim * sizeof(*matrix));
	if (!work || !matrix || kvp_haar_init(dim, 42, work, matrix, c) < 0)
		abort();
	free(work);
	return c;
}

static uint32_t draw_dim(struct rng *r, uint32_t codec)
{
	static const uint32_t common[] = { 64, 128, 256 };
	static const uint32_t odd[] = { 8, 16, 24, 32, 40, 48, 80, 96, 112, 144, 192, 224, 320, 512,
		576, 1024 };

	static const uint32_t dense[] = { 8, 24, 40, 64, 88, 128 };

	if (codec == KVP_CODEC_NATIVE)
		return 8 + rng_below(r, 200);
	if (is_dense(codec))
		return dense[rng_below(r, sizeof(dense) / sizeof(dense[0]))];
	if (rng_below(r, 2))
		return common[rng_below(r, 3)];
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_TQ)
		return odd[rng_below(r, sizeof(odd) / sizeof(odd[0]))];
	return 8 * (1 + rng_below(r, 40));
}

void subject_draw(struct rng *r, struct subject *ret)
{
	static const uint32_t dtypes[] = { KVP_DTYPE_F16, KVP_DTYPE_BF16, KVP_DTYPE_F32 };
	struct kvp_layout lay;
	struct subject s = { 0 };
	uint32_t budget;

	do {
		s.codec = codec_draw(r);
		s.plane.dim = draw_dim(r, s.codec);
		s.plane.kind = rng_below(r, 2);
		s.plane.heads = 1 + rng_below(r, 4);
		/* a dense rotation takes the model dim steps per element */
		budget = (is_dense(s.codec) ? 1024u : 16384u) / s.plane.dim / s.plane.heads;
		s.plane.tokens = 1 + (budget ? rng_below(r, budget < 150 ? budget : 150) : 0);
		s.plane.dtype = dtypes[rng_below(r, 3)];
		if (s.codec == KVP_CODEC_NATIVE && rng_below(r, 4) == 0)
			s.plane.dtype = KVP_DTYPE_F8;
		s.seed = rng_below(r, 2) ? rng_u64(r) : 0;
	} while (kvp_plane_layout(s.codec, &s.plane, &lay) < 0);
	s.force = rng_below(r, 3) == 0;
	s.exponent = (int32_t)rng_below(r, 11) - 5;
	s.pattern = rng_below(r, 10);
	*ret = s;
}

void placing_draw(struct rng *r, const struct kvp_plane *p, struct placing *ret)
{
	ptrdiff_t size = (ptrdiff_t)dtype_bytes(p->dtype), row = (ptrdiff_t)p->dim * size;
	ptrdiff_t heads = (ptrdiff_t)p->heads, tokens = (ptrdiff_t)p->tokens;
	struct placing pl = { 0 };

	if (rng_below(r, 2)) {
		pl.token_stride = row + size * rng_below(r, 9);
		pl.head_stride = pl.token_stride * tokens + size * rng_below(r, 9);
		pl.bytes = (size_t)(pl.head_stride * heads);
	} else {
		pl.head_stride = row + size * rng_below(r, 9);
		pl.token_stride = pl.head_stride * heads + size * rng_below(r, 9);
		pl.bytes = (size_t)(pl.token_stride * tokens);
	}
	if (rng_below(r, 4) == 0) {
		pl.first = (size_t)(pl.token_stride * (tokens - 1));
		pl.token_stride = -pl.token_stride;
	}
	pl.bytes = (pl.bytes + 15) / 16 * 16;
	*ret = pl;
}

void put_element(uint8_t *row, uint32_t dtype, uint32_t i, float f)
{
	uint16_t h;

	switch (dtype) {
	case KVP_DTYPE_F32:
		memcpy(row + 4 * (size_t)i, &f, sizeof(f));
		return;
	case KVP_DTYPE_F8:
		row[i] = (uint8_t)f32_bits(f);
		return;
	case KVP_DTYPE_F16:
		h = f32_to_f16(f);
		break;
	default:
		h = (uint16_t)(f32_bits(f) >> 16);
		break;
	}
	memcpy(row + 2 * (size_t)i, &h, sizeof(h));
}

static float draw_value(struct rng *r, uint32_t pattern, uint32_t channel, float row_scale)
{
	float f = rng_normal(r);

	switch (pattern) {
	case 1: /* nothing but zeros, of both signs */
		return rng_below(r, 2) ? 0.0f : -0.0f;
	case 2: /* constant rows */
		return row_scale;
	case 3: /* a few channels carry nearly everything */
		return channel % 37 == 5 ? 60.0f * f : f;
	case 4: /* subnormals of every type */
		return f * (rng_below(r, 2) ? 1e-40f : 1e-7f);
	case 5: /* now and then what is not a number, or not finite */
		switch (rng_below(r, 40)) {
		case 0:
			return NAN;
		case 1:
			return INFINITY;
		case 2:
			return -INFINITY;
		default:
			return f;
		}
	case 6: /* beyond fp16 in every norm */
		return f * 3e4f * (rng_below(r, 8) ? 1.0f : 1e30f);
	case 7: /* rows of very different size */
	case 9:
		return f * row_scale;
	case 8: /* few levels: ties everywhere */
		return 0.5f * (float)rng_below(r, 5) - 1.0f;
	default:
		return f;
	}
}

void plane_fill(struct rng *r, const struct subject *s, uint8_t *buffer, const struct placing *pl)
{
	for (uint32_t h = 0; h < s->plane.heads; h++) {
		for (uint32_t t = 0; t < s->plane.tokens; t++) {
			uint8_t *row = buffer + pl->first + (ptrdiff_t)h * pl->head_stride +
				       (ptrdiff_t)t * pl->token_stride;
			float scale = ldexpf(rng_normal(r), (int)rng_below(r, 30) - 20);

			if (s->pattern == 9) /* now and then a row that is no row of keys */
				scale = rng_below(r, 40) ? 1.0f : ldexpf(1.0f, 60);
			for (uint32_t i = 0; i < s->plane.dim; i++)
				put_element(row, s->plane.dtype, i,
					draw_value(r, s->pattern, i, scale));
		}
	}
}
