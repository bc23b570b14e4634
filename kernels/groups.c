/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs made of others, row by row: tq-prod (tq plus one bit for the residual), hybrid (two groups
 * of channels with different bits), smart (tokens of different bits). They use the slots of the
 * table, so every instruction set gives the same bytes here too.
 */
#include "kernels/groups.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <errno.h>
#include <math.h>

/* One row of floats as input or output of a slot. */
static struct rows_in float_in(const float *x, uint32_t dim)
{
	return (struct rows_in){ (const uint8_t *)x, 0, 1, dim, KVP_DTYPE_F32, 1.0f };
}

static struct rows_out float_out(float *x, uint32_t dim, float scale)
{
	return (struct rows_out){ (uint8_t *)x, 0, 1, dim, KVP_DTYPE_F32, scale };
}

static const struct kvp_plane_hdr *header(const uint8_t *in)
{
	return (const struct kvp_plane_hdr *)(const void *)in;
}

void kvp_row_load(const struct rows_in *in, uint32_t t, float *x)
{
	const uint8_t *row = in->data + (ptrdiff_t)t * in->stride;

	for (uint32_t i = 0; i < in->dim; i++)
		x[i] = sanitize(load_element(row, in->dtype, i), in->scale);
}

void kvp_row_store(const struct rows_out *out, uint32_t t, const float *x)
{
	uint8_t *row = out->data + (ptrdiff_t)t * out->stride;

	for (uint32_t i = 0; i < out->dim; i++)
		store_element(row, out->dtype, i, x[i]);
}

/* ---- tq-prod ---- */

/* Codes of bits - 1, one sign per channel, two scalars. */
struct prod {
	struct tq tq; /* plain */
	struct rotation sketch;
	float unit; /* what makes the decoded residual right on average */
};

struct prod_row {
	uint8_t *codes, *signs, *scale, *residual;
};

static int prod_init(struct prod *p, uint32_t bits, uint32_t dim, uint64_t seed)
{
	float inv = 1.0f / (float)dim;
	int r;

	p->tq.bits = bits - 1;
	p->tq.scalar = KVP_TQ_PLAIN;
	p->tq.wide = 0;
	r = kvp_codebook(bits - 1, 0, p->tq.cent, p->tq.bound);
	if (!r)
		r = kvp_rotation_init(&p->tq.rot, KVP_ROT_H1, dim, seed, NULL);
	/*
	 * The sketch must be independent of the rotation, and its entries spread like those of a
	 * random rotation: the +-1 of one round overstate large components of the residual, which
	 * are not independent of the vector.
	 */
	if (!r)
		r = kvp_rotation_init(&p->sketch, KVP_ROT_H3, dim, seed + 1, NULL);
	/* 1 / (d^1.5 E|u|) for a coordinate u of a random unit vector; a Gaussian has sqrt(pi/2)/d.
	 */
	p->unit = 0x1.40d932p0f * inv * (1.0f - 0.25f * inv * (1.0f - 0.125f * inv));
	return r;
}

static void prod_encode(const struct prod *p, float *x, const struct prod_row *to)
{
	uint32_t d = p->tq.rot.dim;
	float norm = sqrtf(kvp_dot_c(x, x, d));
	float inv = norm > 0.0f ? 1.0f / norm : 0.0f;
	uint8_t code[KVP_PLANE_DIM_MAX];
	float t = norm / (float)d;

	kvp_rotate_fwd(&p->tq.rot, x);
	for (uint32_t i = 0; i < d; i++) {
		x[i] *= inv;
		code[i] = 0;
		for (uint32_t j = 0; j + 1 < 1u << p->tq.bits; j++)
			code[i] += p->tq.bound[j] <= x[i];
		x[i] -= p->tq.cent[code[i]];
	}
	kvp_row_pack(p->tq.bits, d, code, to->codes);
	store_scalar(to->scale, t);
	store_scalar(to->residual, t * sqrtf(kvp_dot_c(x, x, d)));
	kvp_rotate_fwd(&p->sketch, x);
	for (uint32_t i = 0; i < d; i++)
		code[i] = x[i] < 0.0f;
	kvp_row_pack(1, d, code, to->signs);
}

static void prod_decode(const struct prod *p, const struct prod_row *from, float scale, float *x)
{
	uint32_t d = p->tq.rot.dim;
	float t = load_scalar(from->scale, 1.0f), g = load_scalar(from->residual, 1.0f) * p->unit;
	uint8_t code[KVP_PLANE_DIM_MAX], sign[KVP_PLANE_DIM_MAX];

	kvp_row_unpack(p->tq.bits, d, from->codes, code);
	kvp_row_unpack(1, d, from->signs, sign);
	for (uint32_t i = 0; i < d; i++)
		x[i] = sign[i] ? -1.0f : 1.0f;
	kvp_rotate_inv(&p->sketch, x);
	for (uint32_t i = 0; i < d; i++)
		x[i] = t * p->tq.cent[code[i]] + g * x[i];
	kvp_rotate_inv(&p->tq.rot, x);
	for (uint32_t i = 0; i < d; i++)
		x[i] *= scale;
}

/* Of a codec id; 0 where it is none. */
static uint32_t prod_bits(uint32_t id)
{
	return KVP_CODEC_VARIANT(id) > 8 ? KVP_CODEC_VARIANT(id) - 8 : 0;
}

static struct prod_row prod_row(
	uint8_t *payload, const struct kvp_layout *lay, size_t row, uint32_t dim)
{
	return (struct prod_row){ payload + lay->codes + row * lay->row_bytes,
		payload + lay->extra + row * (dim / 8), payload + lay->scale + row * 2,
		payload + lay->minimum + row * 2 };
}

int kvp_layout_prod(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t bits = prod_bits(id), rows = p->heads * p->tokens;
	struct kvp_layout lay = kvp_layout_new(p, bits - 1);

	if (bits < 2 || bits > 4 || kvp_hadamard_order(p->dim) < 0)
		return -EINVAL;
	lay.codes = kvp_layout_section(&lay, rows * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, rows * 2);
	lay.minimum = kvp_layout_section(&lay, rows * 2);
	lay.extra = kvp_layout_section(&lay, rows * (p->dim / 8));
	*ret = lay;
	return 0;
}

int kvp_encode_prod(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = header(out);
	float x[KVP_PLANE_DIM_MAX];
	struct prod prod;
	int r = prod_init(&prod, prod_bits(hdr->codec), p->dim, hdr->seed);

	(void)k;
	(void)o;
	for (uint32_t h = 0; h < p->heads && !r; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);

		for (uint32_t t = 0; t < p->tokens; t++) {
			struct prod_row to = prod_row(out, lay, (size_t)h * p->tokens + t, p->dim);

			kvp_row_load(&in, t, x);
			prod_encode(&prod, x, &to);
		}
	}
	return r;
}

static int rows_prod(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const uint8_t *in, uint32_t head, uint32_t first,
	const struct rows_out *out)
{
	float x[KVP_PLANE_DIM_MAX];
	struct prod prod;
	int r = prod_init(&prod, prod_bits(codec), p->dim, header(in)->seed);

	(void)k;
	for (uint32_t t = 0; t < out->n && !r; t++) {
		struct prod_row from = prod_row((uint8_t *)(uintptr_t)in, lay,
			(size_t)head * p->tokens + first + t, p->dim);

		prod_decode(&prod, &from, out->scale, x);
		kvp_row_store(out, t, x);
	}
	return r;
}

/* ---- hybrid ---- */

/* Which channels of a head are in the first group, and how both are coded. */
struct hybrid {
	uint32_t dim[2];
	uint32_t bits[2]; /* tq's, or prod's with its sign bit */
	int prod;
	struct tq tq[2];
	struct prod pr[2];
	uint32_t row_bytes[2]; /* codes, signs and scalars of one vector's group */
};

static int hybrid_shape(uint32_t id, uint32_t dim, struct hybrid *h)
{
	uint32_t v = KVP_CODEC_VARIANT(id);
	int small = v & KVP_HYBRID_25;

	if (v & ~(KVP_HYBRID_25 | KVP_HYBRID_PROD | KVP_HYBRID_CALIBRATED) || dim % 32)
		return -EINVAL;
	h->prod = !!(v & KVP_HYBRID_PROD);
	h->dim[0] = small ? dim / 4 : dim / 2;
	h->dim[1] = dim - h->dim[0];
	/* As published 3 + 1 and 2 + 1 bits, or 2 + 1 and 1 + 1; the same totals without signs. */
	h->bits[0] = small ? 3 : 4;
	h->bits[1] = small ? 2 : 3;
	for (int g = 0; g < 2; g++) {
		if (h->dim[g] % 8 || kvp_hadamard_order(h->dim[g]) < 0)
			return -EINVAL;
		h->row_bytes[g] = h->dim[g] * h->bits[g] / 8 + (h->prod ? 4 : 2);
	}
	return 0;
}

static int hybrid_init(struct hybrid *h, uint32_t id, uint32_t dim, uint64_t seed)
{
	int r = hybrid_shape(id, dim, h);

	for (int g = 0; g < 2 && !r; g++) {
		if (h->prod)
			r = prod_init(&h->pr[g], h->bits[g], h->dim[g], seed);
		else
			r = kvp_tq_init(&h->tq[g], h->bits[g] - 1, h->dim[g], seed, NULL);
	}
	return r;
}

int kvp_layout_hybrid(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	struct kvp_layout lay = kvp_layout_new(p, 0);
	uint32_t rows = p->heads * p->tokens;
	struct hybrid h;

	if (hybrid_shape(id, p->dim, &h) < 0)
		return -EINVAL;
	/* Codes of both groups, then signs if any, then the scalars of both: separate sections. */
	lay.row_bytes = (h.dim[0] * (h.bits[0] - (h.prod ? 1u : 0u)) +
				h.dim[1] * (h.bits[1] - (h.prod ? 1u : 0u))) /
			8;
	lay.groups = 2;
	lay.codes = kvp_layout_section(&lay, rows * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, rows * 4);
	lay.minimum = kvp_layout_section(&lay, h.prod ? rows * 4 : 0);
	lay.native = 0;
	/* Signs per row, then the heads' channel maps: both are found from here. */
	lay.extra = kvp_layout_section(&lay,
		(h.prod ? rows * (p->dim / 8) : 0) + (KVP_CODEC_VARIANT(id) & KVP_HYBRID_CALIBRATED
								     ? p->heads * (p->dim / 8)
								     : 0));
	*ret = lay;
	return 0;
}

static uint8_t *channel_map(const struct hybrid *h, const struct kvp_plane *p,
	const struct kvp_layout *lay, uint32_t head, uint8_t *payload)
{
	size_t signs = h->prod ? (size_t)p->heads * p->tokens * (p->dim / 8) : 0;

	return payload + lay->extra + signs + (size_t)head * (p->dim / 8);
}

/* The channels with the largest sum of squares that are finite, earlier ones first among equals. */
static void calibrate(const struct hybrid *h, const struct rows_in *in, uint8_t *map)
{
	float energy[KVP_PLANE_DIM_MAX] = { 0 };

	for (uint32_t t = 0; t < in->n; t++) {
		const uint8_t *row = in->data + (ptrdiff_t)t * in->stride;

		for (uint32_t i = 0; i < in->dim; i++) {
			float f = load_element(row, in->dtype, i);
			float x = is_finite(f) ? sanitize(f, in->scale) : 0.0f;

			energy[i] += x * x;
		}
	}
	memset(map, 0, in->dim / 8);
	for (uint32_t n = 0; n < h->dim[0]; n++) {
		uint32_t best = 0;
		float top = -1.0f;

		for (uint32_t i = 0; i < in->dim; i++) {
			if (!(map[i / 8] >> i % 8 & 1u) && energy[i] > top) {
				top = energy[i];
				best = i;
			}
		}
		map[best / 8] |= (uint8_t)(1u << best % 8);
	}
}

/* order[j]: the channel that is j-th in [group 0, group 1]. -EBADMSG: the map is not one. */
static int channel_order(const struct hybrid *h, const uint8_t *map, uint16_t *order)
{
	uint32_t d = h->dim[0] + h->dim[1], n[2] = { 0, h->dim[0] };

	for (uint32_t i = 0; i < d; i++) {
		int g = map ? !(map[i / 8] >> i % 8 & 1u) : i >= h->dim[0];

		if (n[g] >= (g ? d : h->dim[0]))
			return -EBADMSG;
		order[n[g]++] = (uint16_t)i;
	}
	return 0;
}

struct hybrid_row {
	uint8_t *codes[2];
	uint8_t *scale[2];
	struct prod_row pr[2];
};

static struct hybrid_row hybrid_row(const struct hybrid *h, const struct kvp_plane *p,
	const struct kvp_layout *lay, size_t row, uint8_t *payload)
{
	uint32_t bits0 = h->bits[0] - (h->prod ? 1u : 0u);
	struct hybrid_row r;

	r.codes[0] = payload + lay->codes + row * lay->row_bytes;
	r.codes[1] = r.codes[0] + h->dim[0] * bits0 / 8;
	for (int g = 0; g < 2; g++) {
		r.scale[g] = payload + lay->scale + row * 4 + 2 * (size_t)g;
		r.pr[g] = (struct prod_row){ r.codes[g],
			payload + lay->extra + row * (p->dim / 8) + (g ? h->dim[0] / 8 : 0),
			r.scale[g], payload + lay->minimum + row * 4 + 2 * (size_t)g };
	}
	return r;
}

int kvp_encode_hybrid(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = header(out);
	int calibrated = KVP_CODEC_VARIANT(hdr->codec) & KVP_HYBRID_CALIBRATED;
	float x[KVP_PLANE_DIM_MAX], y[KVP_PLANE_DIM_MAX];
	uint16_t order[KVP_PLANE_DIM_MAX];
	struct hybrid hy;
	int r = hybrid_init(&hy, hdr->codec, p->dim, hdr->seed);

	(void)o;
	for (uint32_t h = 0; h < p->heads && !r; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);
		uint8_t *map = calibrated ? channel_map(&hy, p, lay, h, out) : NULL;

		if (map)
			calibrate(&hy, &in, map);
		r = channel_order(&hy, map, order);
		for (uint32_t t = 0; t < p->tokens && !r; t++) {
			struct hybrid_row to =
				hybrid_row(&hy, p, lay, (size_t)h * p->tokens + t, out);

			kvp_row_load(&in, t, x);
			for (uint32_t i = 0; i < p->dim; i++)
				y[i] = x[order[i]];
			for (int g = 0; g < 2; g++) {
				float *part = y + (g ? hy.dim[0] : 0);
				struct rows_in one = float_in(part, hy.dim[g]);

				if (hy.prod)
					prod_encode(&hy.pr[g], part, &to.pr[g]);
				else
					k->dsp.tq_encode(&hy.tq[g], &one, to.codes[g], to.scale[g]);
			}
		}
	}
	return r;
}

int kvp_check_hybrid(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in)
{
	uint16_t order[KVP_PLANE_DIM_MAX];
	struct hybrid hy;
	int r = hybrid_shape(hdr->codec, p->dim, &hy);

	if (r < 0 || !(KVP_CODEC_VARIANT(hdr->codec) & KVP_HYBRID_CALIBRATED))
		return r;
	for (uint32_t h = 0; h < p->heads && !r; h++)
		r = channel_order(
			&hy, channel_map(&hy, p, lay, h, (uint8_t *)(uintptr_t)in), order);
	return r;
}

static int rows_hybrid(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const uint8_t *in, uint32_t head, uint32_t first,
	const struct rows_out *out)
{
	int calibrated = KVP_CODEC_VARIANT(codec) & KVP_HYBRID_CALIBRATED;
	uint8_t *payload = (uint8_t *)(uintptr_t)in;
	float x[KVP_PLANE_DIM_MAX], y[KVP_PLANE_DIM_MAX];
	uint16_t order[KVP_PLANE_DIM_MAX];
	struct hybrid hy;
	int r = hybrid_init(&hy, codec, p->dim, header(in)->seed);

	if (!r)
		r = channel_order(
			&hy, calibrated ? channel_map(&hy, p, lay, head, payload) : NULL, order);
	for (uint32_t t = 0; t < out->n && !r; t++) {
		struct hybrid_row from =
			hybrid_row(&hy, p, lay, (size_t)head * p->tokens + first + t, payload);

		for (int g = 0; g < 2; g++) {
			float *part = y + (g ? hy.dim[0] : 0);
			struct rows_out one = float_out(part, hy.dim[g], out->scale);

			if (hy.prod)
				prod_decode(&hy.pr[g], &from.pr[g], out->scale, part);
			else
				k->dsp.tq_decode(&hy.tq[g], from.codes[g], from.scale[g], &one);
		}
		for (uint32_t i = 0; i < p->dim; i++)
			x[order[i]] = y[i];
		kvp_row_store(out, t, x);
	}
	return r;
}

/* ---- smart ---- */

#define WIDTHS 4
static const uint32_t width_bits[WIDTHS] = { 2, 3, 4, 8 };

static int width_index(uint8_t width)
{
	for (int i = 0; i < WIDTHS; i++)
		if (width_bits[i] == width)
			return i;
	return -1;
}

/* How one bucket is coded, and where it lies. */
struct bucket {
	uint32_t bits;
	uint32_t n;       /* tokens */
	uint32_t row;     /* bytes of codes */
	uint32_t scalars; /* bytes of scales, and of minima behind them */
	uint32_t codes, scale;
};

struct smart {
	uint32_t method; /* KVP_SMART_* without flags */
	uint32_t group;  /* channels per scale */
	uint32_t groups; /* scales of a vector */
	uint32_t wide;   /* scales are fp32 */
	uint32_t dim;
	struct bucket bucket[WIDTHS];
	struct tq tq[3];
	uint16_t slot[KVP_PLANE_TOKENS_MAX]; /* of a token inside its bucket */
	uint8_t index[KVP_PLANE_TOKENS_MAX]; /* of a token's bucket */
	uint32_t bytes;
};

/* What follows from the id alone. tq has one scalar per vector and nothing to choose. */
static int smart_method(uint32_t id, uint32_t dim, struct smart *s)
{
	static const uint32_t groups[] = { 0, 8, 16 };
	uint32_t v = KVP_CODEC_VARIANT(id), g = v >> 3 & 3u;

	s->method = v & 3u;
	s->wide = v & KVP_SMART_WIDE;
	s->dim = dim;
	if (s->method > KVP_SMART_TQ || g > 2 || v >> 6 ||
		(s->method == KVP_SMART_TQ && (g || s->wide)))
		return -EINVAL;
	s->group = g ? groups[g] : dim;
	s->groups = (dim + s->group - 1) / s->group;
	return 0;
}

/* Bytes of a token's scales, of one head, in a bucket; min/max codes have minima behind them. */
static uint32_t smart_scalars(const struct smart *s, uint32_t bits)
{
	uint32_t bytes = s->groups * (uint32_t)scalar_bytes(s->wide);

	return s->method == KVP_SMART_ASYM && bits < 8 ? 2 * bytes : bytes;
}

/* Everything that follows from the widths. The widths themselves are the section `extra`. */
static int smart_shape(
	uint32_t id, const struct kvp_plane *p, const uint8_t *widths, struct smart *s)
{
	uint32_t v = KVP_CODEC_VARIANT(id);
	struct kvp_layout lay = kvp_layout_new(p, 8);

	if (smart_method(id, p->dim, s) < 0)
		return -EINVAL;
	for (int i = 0; i < WIDTHS; i++)
		s->bucket[i] = (struct bucket){ .bits = width_bits[i] };
	for (uint32_t t = 0; t < p->tokens; t++) {
		int i = width_index(widths[t]);

		if (i < 0 || (!i && (v & KVP_SMART_KEYS3) && p->kind == KVP_PLANE_K))
			return -EINVAL;
		s->index[t] = (uint8_t)i;
		s->slot[t] = (uint16_t)s->bucket[i].n++;
	}
	kvp_layout_section(&lay, p->tokens);
	for (int i = 0; i < WIDTHS; i++) {
		struct bucket *b = &s->bucket[i];

		b->row = kvp_row_bytes(b->bits, p->dim);
		b->scalars = smart_scalars(s, b->bits);
		b->codes = kvp_layout_section(&lay, p->heads * b->n * b->row);
		b->scale = kvp_layout_section(&lay, p->heads * b->n * b->scalars);
	}
	s->bytes = lay.bytes;
	return 0;
}

static int smart_init(struct smart *s, uint32_t dim, uint64_t seed)
{
	int r = 0;

	for (uint32_t i = 0; i < 3 && !r && s->method == KVP_SMART_TQ; i++)
		r = kvp_tq_init(&s->tq[i], width_bits[i] - 1, dim, seed, NULL);
	return r;
}

/* The largest a plane can become: every token in 8 bits. */
int kvp_layout_smart(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint8_t widths[KVP_PLANE_TOKENS_MAX];
	struct kvp_layout lay = kvp_layout_new(p, 8);
	struct smart s;

	memset(widths, 8, sizeof widths);
	if (smart_shape(id, p, widths, &s) < 0)
		return -EINVAL;
	if (s.method == KVP_SMART_TQ && kvp_hadamard_order(p->dim) < 0)
		return -EINVAL;
	lay.extra = kvp_layout_section(&lay, p->tokens);
	/* Three more buckets may begin at a boundary each, for codes and for scalars. */
	lay.bytes = s.bytes + 6 * KVP_SECTION_ALIGN +
		    (s.method == KVP_SMART_ASYM ? p->heads * p->tokens * smart_scalars(&s, 8) : 0);
	*ret = lay;
	return 0;
}

int kvp_smart_bytes(
	uint32_t codec, const struct kvp_plane *p, const uint8_t *widths, size_t *ret_bytes)
{
	struct kvp_layout lay;
	struct smart s;
	int r = kvp_plane_layout(codec, p, &lay);

	if (!r)
		r = KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART ? smart_shape(codec, p, widths, &s)
								: -EINVAL;
	if (!r)
		*ret_bytes = s.bytes;
	return r;
}

/* Where a token's codes and scales lie. */
static size_t smart_codes(const struct smart *s, uint32_t head, uint32_t token)
{
	const struct bucket *b = &s->bucket[s->index[token]];

	return b->codes + ((size_t)head * b->n + s->slot[token]) * b->row;
}

static size_t smart_scale(const struct smart *s, uint32_t head, uint32_t token)
{
	const struct bucket *b = &s->bucket[s->index[token]];

	return b->scale + ((size_t)head * b->n + s->slot[token]) * b->scalars;
}

/* 8 bits are int8: with one fp16 scale its slot, else what symmetric codes are. */
static int smart_is_int8(const struct smart *s, uint32_t bits)
{
	return bits == 8 && s->groups == 1 && !s->wide;
}

/* in: the one row of this token. */
static void smart_encode_token(const struct kvp_kernels *k, const struct smart *s,
	const struct rows_in *in, uint32_t head, uint32_t token, uint8_t *out)
{
	const struct bucket *b = &s->bucket[s->index[token]];
	uint8_t *codes = out + smart_codes(s, head, token);
	uint8_t *scale = out + smart_scale(s, head, token), *min = scale + b->scalars / 2;
	float x[KVP_PLANE_DIM_MAX];

	if (smart_is_int8(s, b->bits)) {
		k->dsp.byte_encode(KVP_CODEC_INT8, in, codes, scale);
	} else if (s->method == KVP_SMART_TQ) {
		k->dsp.tq_encode(&s->tq[s->index[token]], in, codes, scale);
	} else if (s->method == KVP_SMART_ASYM && b->bits < 8) {
		(s->wide ? kvp_asym_encode_wide : k->dsp.asym_encode)(
			b->bits, s->group, in, codes, scale, min);
	} else {
		const struct kvp_sym sym = kvp_sym_init(b->bits, s->group, s->wide, s->dim);

		kvp_row_load(in, 0, x);
		kvp_sym_encode(&sym, x, codes, scale);
	}
}

static void smart_decode_token(const struct kvp_kernels *k, const struct smart *s, uint32_t head,
	uint32_t token, float factor, const uint8_t *in, float *x)
{
	const struct bucket *b = &s->bucket[s->index[token]];
	const uint8_t *codes = in + smart_codes(s, head, token);
	const uint8_t *scale = in + smart_scale(s, head, token), *min = scale + b->scalars / 2;
	struct rows_out out = float_out(x, s->dim, factor);

	if (smart_is_int8(s, b->bits)) {
		k->dsp.byte_decode(KVP_CODEC_INT8, codes, scale, &out);
	} else if (s->method == KVP_SMART_TQ) {
		k->dsp.tq_decode(&s->tq[s->index[token]], codes, scale, &out);
	} else if (s->method == KVP_SMART_ASYM && b->bits < 8) {
		(s->wide ? kvp_asym_decode_wide : k->dsp.asym_decode)(
			b->bits, s->group, codes, scale, min, &out);
	} else {
		const struct kvp_sym sym = kvp_sym_init(b->bits, s->group, s->wide, s->dim);

		kvp_sym_decode(&sym, codes, scale, factor, x);
	}
}

static void smart_begin(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct smart *s, const uint8_t *widths, uint8_t *out)
{
	memset(out + KVP_PLANE_HDR_BYTES, 0, s->bytes - KVP_PLANE_HDR_BYTES);
	memcpy(out + lay->extra, widths, p->tokens);
	memcpy(out + offsetof(struct kvp_plane_hdr, bytes), &s->bytes, sizeof s->bytes);
}

int kvp_encode_smart(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	struct kvp_plane_hdr hdr;
	struct smart s;
	int r;

	memcpy(&hdr, out, sizeof hdr);
	r = smart_shape(hdr.codec, p, o->widths, &s);
	if (!r)
		r = smart_init(&s, p->dim, hdr.seed);
	if (r < 0)
		return r;
	smart_begin(p, lay, &s, o->widths, out);
	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t t = 0; t < p->tokens; t++) {
			struct rows_in in = kvp_rows_in(p, src, h, t, 1, hdr.exponent);

			smart_encode_token(k, &s, &in, h, t, out);
		}
	}
	return 0;
}

int kvp_check_smart(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size)
{
	struct smart s;

	if (in_size < (size_t)lay->extra + p->tokens ||
		smart_shape(hdr->codec, p, in + lay->extra, &s) < 0)
		return -EBADMSG;
	return hdr->bytes == s.bytes && in_size >= s.bytes ? 0 : -EBADMSG;
}

static int rows_smart(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const uint8_t *in, uint32_t head, uint32_t first,
	const struct rows_out *out)
{
	uint8_t widths[KVP_PLANE_TOKENS_MAX];
	float x[KVP_PLANE_DIM_MAX];
	struct smart s;

	/* The widths may have changed since they were checked: from here on only the copy counts.
	 */
	memcpy(widths, in + lay->extra, p->tokens);
	if (smart_shape(codec, p, widths, &s) < 0 || s.bytes > lay->bytes ||
		smart_init(&s, p->dim, header(in)->seed) < 0)
		return -EBADMSG;
	for (uint32_t t = 0; t < out->n; t++) {
		smart_decode_token(k, &s, head, first + t, out->scale, in, x);
		kvp_row_store(out, t, x);
	}
	return 0;
}

/* A token's codes and scales as they are, from one payload to another. */
static void smart_copy_token(const struct smart *from, const struct smart *to, uint32_t head,
	uint32_t token, const uint8_t *in, uint8_t *out)
{
	const struct bucket *b = &to->bucket[to->index[token]];

	memcpy(out + smart_codes(to, head, token), in + smart_codes(from, head, token), b->row);
	memcpy(out + smart_scale(to, head, token), in + smart_scale(from, head, token), b->scalars);
}

/* The shapes that an accepted change of widths goes between, from copies of what may change. */
static int requantize_shapes(uint32_t codec, const struct kvp_plane *p,
	const struct kvp_plane_hdr *hdr, const uint8_t *old, size_t in_size, const uint8_t *widths,
	struct smart *ret_from, struct smart *ret_to)
{
	int r;

	if (hdr->codec != codec || smart_shape(codec, p, old, ret_from) < 0 ||
		ret_from->bytes > in_size)
		return -EBADMSG;
	r = smart_shape(codec, p, widths, ret_to);
	for (uint32_t t = 0; t < p->tokens && !r; t++)
		if (ret_to->index[t] > ret_from->index[t])
			r = -EINVAL;
	if (!r)
		r = smart_init(ret_from, p->dim, hdr->seed);
	return r ? r : smart_init(ret_to, p->dim, hdr->seed);
}

int kvp_smart_requantize_checked(const struct kvp_kernels *k, uint32_t codec,
	const struct kvp_plane *p, const struct kvp_layout *lay, const void *in, size_t in_size,
	const uint8_t *widths, void *out, size_t out_size)
{
	uint8_t old[KVP_PLANE_TOKENS_MAX];
	float x[KVP_PLANE_DIM_MAX];
	struct kvp_plane_hdr hdr;
	struct smart from, to;
	int r;

	/* As in rows_smart(): what was checked may have changed, the copies do not. */
	memcpy(&hdr, in, sizeof hdr);
	memcpy(old, (const uint8_t *)in + lay->extra, p->tokens);
	r = requantize_shapes(codec, p, &hdr, old, in_size, widths, &from, &to);
	if (!r && out_size < to.bytes)
		r = -ENOSPC;
	if (!r && ((uintptr_t)out % 16 || ((uintptr_t)out < (uintptr_t)in + in_size &&
						  (uintptr_t)in < (uintptr_t)out + to.bytes)))
		r = -EINVAL;
	if (r < 0)
		return r;
	memcpy(out, &hdr, sizeof hdr);
	smart_begin(p, lay, &to, widths, out);
	for (uint32_t h = 0; h < p->heads; h++) {
		const struct rows_in row = float_in(x, p->dim);

		for (uint32_t t = 0; t < p->tokens; t++) {
			if (to.index[t] == from.index[t]) {
				smart_copy_token(&from, &to, h, t, in, out);
				continue;
			}
			smart_decode_token(k, &from, h, t, 1.0f, in, x);
			smart_encode_token(k, &to, &row, h, t, out);
		}
	}
	return 0;
}

int kvp_smart_requantize(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const void *in, size_t in_size, const uint8_t *widths, void *out, size_t out_size)
{
	struct kvp_layout lay;
	int r = kvp_plane_check(codec, p, NULL, in, in_size);

	if (!r)
		r = kvp_plane_layout(codec, p, &lay);
	if (!r && (KVP_CODEC_FAMILY(codec) != KVP_FAMILY_SMART || !widths || !out))
		r = -EINVAL;
	return r < 0 ? r
		     : kvp_smart_requantize_checked(
			       k, codec, p, &lay, in, in_size, widths, out, out_size);
}

/* asym as attention cannot have it in place: groups of 8 channels, or fp32 scales. */
static void rows_asym(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const uint8_t *in, uint32_t head, uint32_t first,
	const struct rows_out *out)
{
	uint32_t wide = KVP_CODEC_VARIANT(codec) & KVP_CODEC_WIDE;
	size_t row = (size_t)head * p->tokens + first;
	size_t scalars = row * lay->groups * scalar_bytes(wide);

	(wide ? kvp_asym_decode_wide : k->dsp.asym_decode)(KVP_CODEC_VARIANT(codec) & 15u,
		lay->group, in + lay->codes + row * lay->row_bytes, in + lay->scale + scalars,
		in + lay->minimum + scalars, out);
}

int kvp_rows_decode(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	switch (KVP_CODEC_FAMILY(codec)) {
	case KVP_FAMILY_ASYM:
		rows_asym(k, codec, p, lay, in, head, first, out);
		return 0;
	case KVP_FAMILY_SYM:
		kvp_rows_sym(codec, p, lay, in, head, first, out);
		return 0;
	case KVP_FAMILY_TQPROD:
		return rows_prod(k, codec, p, lay, in, head, first, out);
	case KVP_FAMILY_HYBRID:
		return rows_hybrid(k, codec, p, lay, in, head, first, out);
	case KVP_FAMILY_SMART:
		return rows_smart(k, codec, p, lay, in, head, first, out);
	default:
		return kvp_rows_published(codec, p, lay, calib, in, head, first, out);
	}
}

int kvp_decode_rows(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	int r = 0;

	for (uint32_t h = 0; h < p->heads && !r; h++) {
		struct rows_out out = kvp_rows_out(p, dst, h, 0, p->tokens, hdr->exponent);

		r = kvp_rows_decode(k, hdr->codec, p, lay, calib, in, h, 0, &out);
	}
	return r;
}
