/* SPDX-License-Identifier: Apache-2.0 */
/* How far a coded payload is from what it was coded from. */
#include "payload/kvp_payload.h"

#include <errno.h>
#include <string.h>

/* ---- elements -------------------------------------------------------------------------------- */

/* With a dtype that is known there is no branch in what is done for each number. */
#define INLINE static inline __attribute__((always_inline))
#define LANES  8u /* elements at a time: loops of a length that is known become vector code */

/*
 * Numbers from LANES elements, without a branch: finite ones, and 0 instead of others. keep: all ones where
 * the element counts.
 */
INLINE void load_halves(const uint8_t *at, uint32_t *keep, float *out)
{
	uint16_t half[LANES];
	uint32_t bits[LANES];

	memcpy(half, at, sizeof(half));
	for (uint32_t i = 0; i < LANES; i++)
		bits[i] = half[i];
	for (uint32_t i = 0; i < LANES; i++)
		keep[i] &= (uint32_t)((int32_t)((bits[i] & 0x7c00u) - 0x7c00u) >> 31);
	for (uint32_t i = 0; i < LANES; i++)
		bits[i] = ((bits[i] & 0x8000u) << 16 | (bits[i] & 0x7fffu) << 13) & keep[i];
	memcpy(out, bits, sizeof(bits));
	/* The exponent's bias is 112 less; subnormal ones come out right as well. */
	for (uint32_t i = 0; i < LANES; i++)
		out[i] *= 0x1p112f;
}

INLINE void load(uint32_t dtype, const uint8_t *at, uint32_t *keep, float *out)
{
	uint16_t half[LANES];
	uint32_t bits[LANES];

	if (dtype == KVP_DTYPE_F16) {
		load_halves(at, keep, out);
		return;
	}
	if (dtype == KVP_DTYPE_F32) {
		memcpy(bits, at, sizeof(bits));
	} else {
		memcpy(half, at, sizeof(half));
		for (uint32_t i = 0; i < LANES; i++)
			bits[i] = (uint32_t)half[i] << 16;
	}
	for (uint32_t i = 0; i < LANES; i++)
		keep[i] &= (uint32_t)((int32_t)((bits[i] & 0x7f800000u) - 0x7f800000u) >> 31);
	for (uint32_t i = 0; i < LANES; i++)
		bits[i] &= keep[i];
	memcpy(out, bits, sizeof(bits));
}

/* Of a number whose magnitude is below 16: bits that do not fit are dropped, halves below 2^-14 are 0. */
static void store(uint32_t dtype, float value, uint8_t *at)
{
	uint32_t word, e;
	uint16_t half;

	memcpy(&word, &value, sizeof(word));
	if (dtype == KVP_DTYPE_F32) {
		memcpy(at, &word, sizeof(word));
		return;
	}
	e = word >> 23 & 255u;
	if (dtype == KVP_DTYPE_BF16)
		half = (uint16_t)(word >> 16);
	else
		half = (uint16_t)((word >> 16 & 0x8000u) |
				  (e > 112u ? (e - 112u) << 10 | (word >> 13 & 1023u) : 0u));
	memcpy(at, &half, sizeof(half));
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Of a row, in LANES parts: 128 numbers each at most. */
struct sums {
	float lost[LANES], all[LANES];
};

/* Of LANES elements and what they were decoded to. What is not finite has no error; codecs make numbers of it. */
INLINE void add(uint32_t dtype, const uint8_t *x, const uint8_t *y, struct sums *s)
{
	uint32_t keep[LANES];
	float a[LANES], b[LANES];

	memset(keep, 0xff, sizeof(keep));
	load(dtype, x, keep, a);
	load(dtype, y, keep, b);
	for (uint32_t i = 0; i < LANES; i++)
		s->all[i] += a[i] * a[i];
	for (uint32_t i = 0; i < LANES; i++)
		b[i] -= a[i];
	for (uint32_t i = 0; i < LANES; i++)
		s->lost[i] += b[i] * b[i];
}

/* The same in double, where squares are too large or too small for a float. */
INLINE void add_exactly(
	uint32_t dtype, const uint8_t *x, const uint8_t *y, double *lost, double *all)
{
	uint32_t keep[LANES];
	float a[LANES], b[LANES];

	memset(keep, 0xff, sizeof(keep));
	load(dtype, x, keep, a);
	load(dtype, y, keep, b);
	for (uint32_t i = 0; i < LANES; i++) {
		*lost += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
		*all += (double)a[i] * (double)a[i];
	}
}

/* Adds what a row of n elements, a multiple of LANES, lost and what it was. */
INLINE void add_row(uint32_t dtype, size_t element, const uint8_t *x, const uint8_t *y, uint32_t n,
	double *lost, double *all)
{
	struct sums s = { 0 };
	double row[2] = { 0 };

	for (size_t i = 0; i < n; i += LANES)
		add(dtype, x + i * element, y + i * element, &s);
	for (uint32_t i = 0; i < LANES; i++) {
		row[0] += (double)s.lost[i];
		row[1] += (double)s.all[i];
	}
	/* Keys of other tokens may be so much louder that this one's are lost by more than a float can square. */
	if (!(row[1] > 1e-25 && row[1] < 1e30 && row[0] < 1e30)) {
		row[0] = row[1] = 0;
		for (size_t i = 0; i < n; i += LANES)
			add_exactly(dtype, x + i * element, y + i * element, &row[0], &row[1]);
	}
	*lost += row[0];
	*all += row[1];
}

/* Sum of (x - y)^2 / sum of x^2 over one head; 0 where there is nothing to lose. Coded heads have 8 * n channels. */
static double head_error(const struct kvp_block_layout *l, const struct kvp_block_plane *p,
	struct kvp_raw_const src, const uint8_t *decoded, uint32_t head)
{
	size_t e = kvp_dtype_bytes(l->dtype);
	double lost = 0, all = 0;

	for (uint32_t t = 0; t < l->tokens; t++) {
		const uint8_t *x = (const uint8_t *)src.data + (ptrdiff_t)head * src.head_stride +
				   (ptrdiff_t)t * src.token_stride;
		const uint8_t *y = decoded + ((size_t)head * l->tokens + t) * p->dim * e;

		if (l->dtype == KVP_DTYPE_F16)
			add_row(KVP_DTYPE_F16, 2, x, y, p->dim, &lost, &all);
		else if (l->dtype == KVP_DTYPE_BF16)
			add_row(KVP_DTYPE_BF16, 2, x, y, p->dim, &lost, &all);
		else
			add_row(KVP_DTYPE_F32, 4, x, y, p->dim, &lost, &all);
	}
	return all > 0 ? lost / all : 0;
}

static void compare_plane(const struct kvp_block_layout *l, const struct kvp_block_plane *p,
	struct kvp_raw_const src, const uint8_t *decoded, double limit, struct kvp_payload_error *e)
{
	for (uint32_t h = 0; h < p->heads; h++) {
		double error = head_error(l, p, src, decoded, h);

		e->heads++;
		e->within += error <= limit;
		if (error / limit > e->worst)
			e->worst = error / limit;
	}
}

int kvp_payload_compare(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const void *src, const struct kvp_block_layout *to, const void *coded, uint32_t layer,
	void *scratch, const double limit[2], struct kvp_payload_error *ret_error)
{
	struct kvp_payload_error e = { 0 };
	struct kvp_payload_layer decoded;
	int r;

	if (!from->native || from->n_layers != to->n_layers || from->tokens != to->tokens ||
		from->dtype != to->dtype)
		return -EINVAL;
	r = kvp_payload_decode(k, to, layer, coded, to->bytes, scratch, &decoded);
	if (r < 0)
		return r;
	for (uint32_t kind = 0; kind < 2; kind++) {
		const struct kvp_block_plane *f = &from->plane[layer][kind];
		const struct kvp_block_plane *t = &to->plane[layer][kind];
		struct kvp_raw_const raw = { (const uint8_t *)src + f->offset,
			(ptrdiff_t)f->head_stride, (ptrdiff_t)f->token_stride };

		if (t->heads && t->codec != KVP_CODEC_NATIVE)
			compare_plane(to, t, raw, kind == KVP_PLANE_K ? decoded.k : decoded.v,
				limit[kind], &e);
	}
	*ret_error = e;
	return 0;
}

/* ---- golden values --------------------------------------------------------------------------- */

/* Nearly normal: the sum of twelve numbers between 0 and 1, less 6. The same ones every time. */
static float nearly_normal(uint64_t *state)
{
	float sum = -6;

	for (uint32_t i = 0; i < 12; i++) {
		*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		sum += (float)(*state >> 40) / 16777216.f;
	}
	return sum;
}

size_t kvp_payload_golden_scratch(const struct kvp_block_layout *l)
{
	return 3 * kvp_payload_scratch(l);
}

int kvp_payload_golden(const struct kvp_kernels *k, const struct kvp_block_layout *l, uint32_t kind,
	void *scratch, double *ret_error)
{
	size_t size = kvp_payload_scratch(l), e = kvp_dtype_bytes(l->dtype), n;
	uint8_t *raw = scratch, *coded = raw + size, *decoded = coded + size;
	const struct kvp_block_plane *p = NULL;
	struct kvp_plane plane;
	struct kvp_raw_const src;
	uint64_t state = 1;
	double sum = 0;
	int r;

	for (uint32_t i = 0; i < l->n_layers && !p; i++)
		if (l->plane[i][kind].heads && l->plane[i][kind].codec != KVP_CODEC_NATIVE)
			p = &l->plane[i][kind];
	if (!p)
		return -ENOENT;
	plane = (struct kvp_plane){ l->tokens, p->heads, p->dim, l->dtype, kind };
	n = (size_t)p->heads * l->tokens * p->dim;
	for (size_t i = 0; i < n; i++)
		store(l->dtype, nearly_normal(&state), raw + i * e);
	src = (struct kvp_raw_const){ raw, (ptrdiff_t)(l->tokens * p->dim * e),
		(ptrdiff_t)(p->dim * e) };
	r = kvp_plane_encode(k, p->codec, &plane, NULL, src, coded, size);
	if (r == 0)
		r = kvp_plane_decode(k, p->codec, &plane, NULL, coded, p->bytes,
			(struct kvp_raw){ decoded, src.head_stride, src.token_stride });
	if (r < 0)
		return r;
	for (uint32_t h = 0; h < p->heads; h++)
		sum += head_error(l, p, src, decoded, h);
	*ret_error = sum / p->heads;
	return 0;
}
