/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of codecs: work in which instruction sets differ by types only. Rows are n registers of
 * LANES floats. The work is written once with n and dtype as parameters and inlined for the usual
 * ones, so that a whole row stays in registers. Fused multiply-add appears only where the product is
 * exact.
 *
 * Included by one file per instruction set, which has said before what its registers are:
 *
 *	LANES                  floats of a register
 *	floats, words          a register of floats, of integers
 *	halves, octets         as many fp16s, codes of a byte, in what they take
 *	V(op)                  the intrinsic of that register
 *	load_lanes, store_lanes, store_row_codes, byte_values ...: of x86_avx2.h, x86_avx512.h or aarch64_neon.h
 *
 * and defines afterwards what is declared first here.
 */
#ifndef KVP_KERNELS_DSP_ROWS_H
#define KVP_KERNELS_DSP_ROWS_H

#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <math.h>

#define N_MAX (KVP_PLANE_DIM_MAX / LANES)

/* Rows of a batch, whose scalars are computed at once, one per lane; registers that hold them all. */
#define BATCH      LANES
#define BATCH_REGS 256u

/* Rows from one that is worked on to the one that should be on its way. */
#define AHEAD 16u

/*
 * Calls f(..., n, dtype) with constant n for the usual dims. Where there is much to do with a row,
 * its type and the width of its codes are branches that do not show.
 */
#define BY_DIM(dim, dtype, f, ...)                              \
	do {                                                    \
		if ((dim) == 128)                               \
			f(__VA_ARGS__, 128 / LANES, (dtype));   \
		else if ((dim) == 64)                           \
			f(__VA_ARGS__, 64 / LANES, (dtype));    \
		else                                            \
			f(__VA_ARGS__, (dim) / LANES, (dtype)); \
	} while (0)

/* The same with the usual dtype constant, too: for what has little to do with a row. */
#define BY_TYPE(dim, dtype, f, ...)                                 \
	do {                                                        \
		if ((dtype) == KVP_DTYPE_F16 && (dim) == 128)       \
			f(__VA_ARGS__, 128 / LANES, KVP_DTYPE_F16); \
		else if ((dtype) == KVP_DTYPE_F16 && (dim) == 64)   \
			f(__VA_ARGS__, 64 / LANES, KVP_DTYPE_F16);  \
		else                                                \
			BY_DIM(dim, dtype, f, __VA_ARGS__);         \
	} while (0)

/* Calls f(bits, ...) with constant bits. */
#define BY_BITS(bits, f, ...)              \
	do {                               \
		if ((bits) == 4)           \
			f(4, __VA_ARGS__); \
		else if ((bits) == 3)      \
			f(3, __VA_ARGS__); \
		else                       \
			f(2, __VA_ARGS__); \
	} while (0)

/* ---- what each instruction set does its own way ---- */

/* All of a register from memory; the first n floats, or some of n bytes, and zeros. */
INLINE words load_words(const uint8_t *p);
INLINE floats load_some(const float *p, uint32_t n);
INLINE words load_part(const uint8_t *p, uint32_t n);
/* The first n of them. */
INLINE void store_some(uint8_t *p, halves h, uint32_t n);
INLINE uint32_t largest_word(words x);
INLINE float reduce_min(floats x);
INLINE float reduce_max(floats x);
INLINE floats magnitude(floats x);
/* a / b where b > 0, else 0 */
INLINE floats div_positive(floats a, floats b);
/* Nothing to sanitise: elements of that magnitude are numbers of at most KVP_INPUT_MAX. */
INLINE int is_ordinary(words max, uint32_t dtype);
/* Any row; see load_row(). */
static int load_any(const uint8_t *row, uint32_t dtype, float factor, floats *v, uint32_t n);
INLINE void hadamard(const struct rotation *rot, int transpose, floats *v, uint32_t n);
/* int8 or fp8 codes of a register, and where they go. */
INLINE octets byte_codes(uint32_t format, floats x);
INLINE void store_bytes(uint8_t *p, octets q);

/* ---- rows ---- */

static const uint8_t *row_in(const struct rows_in *in, uint32_t t)
{
	return in->data + (ptrdiff_t)t * in->stride;
}

static uint8_t *row_out(const struct rows_out *out, uint32_t t)
{
	return out->data + (ptrdiff_t)t * out->stride;
}

/* Widens max, per 16-bit lane, by the magnitudes of a row; n is even. */
INLINE words row_magnitude(const uint8_t *row, uint32_t n, words max)
{
	for (uint32_t i = 0; i < n / 2; i++) {
		words x = load_words(row + 4 * LANES * (size_t)i);

		max = V(max_epu16)(max, V(add_epi16)(x, x)); /* no sign in twice the bits */
	}
	return max;
}

/* Rows of which is_ordinary() tells. */
INLINE int may_be_ordinary(const struct rows_in *in, uint32_t n, uint32_t dtype)
{
	return in->scale == 1.0f && dtype != KVP_DTYPE_F32 && n % 2 == 0;
}

INLINE void load_ordinary(const uint8_t *row, floats *v, uint32_t n, uint32_t dtype)
{
	if (dtype == KVP_DTYPE_F16)
		for (uint32_t i = 0; i < n; i++)
			v[i] = load_lanes(row, KVP_DTYPE_F16, i);
	else
		for (uint32_t i = 0; i < n; i++)
			v[i] = load_lanes(row, KVP_DTYPE_BF16, i);
}

/* 0: there is something that is not finite, which is reference C's where a range is to be found. */
INLINE int load_row(const struct rows_in *in, uint32_t t, floats *v, uint32_t n, uint32_t dtype)
{
	const uint8_t *row = row_in(in, t);
	floats any[N_MAX];
	int finite;

	if (may_be_ordinary(in, n, dtype) &&
		is_ordinary(row_magnitude(row, n, V(set1_epi32)(0)), dtype)) {
		load_ordinary(row, v, n, dtype);
		return 1;
	}
	if (!__builtin_constant_p(n))
		return load_any(row, dtype, in->scale, v, n);
	/* Not into v, which may then live in registers. */
	finite = load_any(row, dtype, in->scale, any, n);
	for (uint32_t i = 0; i < n; i++)
		v[i] = any[i];
	return finite;
}

/* Row t will be read soon; it does no harm if there is none. */
INLINE void prefetch_row(const struct rows_in *in, uint32_t t, uint32_t n, uint32_t dtype)
{
	const uintptr_t row = (uintptr_t)in->data + (uintptr_t)((intptr_t)t * in->stride);

	for (uint32_t at = 0; at < 2 * LANES * n; at += 64)
		__builtin_prefetch((const char *)(row + at));
	for (uint32_t at = 2 * LANES * n; dtype == KVP_DTYPE_F32 && at < 4 * LANES * n; at += 64)
		__builtin_prefetch((const char *)(row + at));
}

INLINE void store_row(
	const struct rows_out *out, uint32_t t, const floats *v, uint32_t n, uint32_t dtype)
{
	uint8_t *row = row_out(out, t);

	if (dtype == KVP_DTYPE_F16)
		for (uint32_t i = 0; i < n; i++)
			store_lanes(row, KVP_DTYPE_F16, i, v[i]);
	else if (dtype == KVP_DTYPE_BF16)
		for (uint32_t i = 0; i < n; i++)
			store_lanes(row, KVP_DTYPE_BF16, i, v[i]);
	else
		for (uint32_t i = 0; i < n; i++)
			store_lanes(row, KVP_DTYPE_F32, i, v[i]);
}

/*
 * Twice the bits of a number are its magnitude's; one more unit of the exponent field makes
 * infinities and NaN wrap around to less than a zero has.
 */
static uint32_t amax(const struct rows_in *in)
{
	const int wide = in->dtype == KVP_DTYPE_F32;
	const uint32_t bytes = in->dim * (wide ? 4 : 2);
	const uint32_t unit = wide ? 1u << 24 : in->dtype == KVP_DTYPE_F16 ? 1u << 11 : 1u << 8;
	const words zero = wide ? V(set1_epi32)((int)unit) : V(set1_epi16)((short)unit);
	words max = zero;
	uint32_t m;

	for (uint32_t t = 0; t < in->n; t++) {
		for (uint32_t at = 0; at < bytes; at += 4 * LANES) {
			words x = load_part(row_in(in, t) + at, bytes - at);

			max = wide ? V(max_epu32)(max, V(add_epi32)(V(add_epi32)(x, x), zero))
				   : V(max_epu16)(max, V(add_epi16)(V(add_epi16)(x, x), zero));
		}
	}
	if (!wide)
		max = V(max_epu32)(
			V(srli_epi32)(max, 16), V(srli_epi32)(V(slli_epi32)(max, 16), 16));
	m = (largest_word(max) - unit) / 2;
	if (in->dtype == KVP_DTYPE_F16)
		return f32_bits(f16_to_f32((uint16_t)m));
	return wide ? m : m << 16;
}

/* ---- rotations ---- */

INLINE void butterfly(floats *a, floats *b)
{
	floats x = *a;

	*a = V(add_ps)(x, *b);
	*b = V(sub_ps)(x, *b);
}

INLINE void stage(floats *v, uint32_t n, uint32_t h)
{
	for (uint32_t i = 0; i < n; i++)
		if (!(i & h))
			butterfly(&v[i], &v[i + h]);
}

INLINE void flip(const struct rotation *rot, uint32_t round, floats *v, uint32_t n)
{
	const float *sign = (const float *)(const void *)rot->sign[round];

	for (uint32_t i = 0; i < n; i++)
		v[i] = V(xor_ps)(v[i], V(loadu_ps)(sign + LANES * (size_t)i));
}

INLINE void scale_row(floats *v, float f, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = V(mul_ps)(v[i], V(set1_ps)(f));
}

/* By reference C, in a copy, so that otherwise v may live in registers. */
INLINE void rotate_dense(const struct rotation *rot,
	void (*rotate)(const struct rotation *, float *), floats *v, uint32_t n)
{
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t i = 0; i < n; i++)
		V(storeu_ps)(x + LANES * (size_t)i, v[i]);
	rotate(rot, x);
	for (uint32_t i = 0; i < n; i++)
		v[i] = V(loadu_ps)(x + LANES * (size_t)i);
}

INLINE void rotate_fwd(const struct rotation *rot, floats *v, uint32_t n)
{
	if (rot->kind == KVP_ROT_HAAR)
		rotate_dense(rot, kvp_rotate_fwd, v, n);
	for (uint32_t r = 0; r < rot->rounds; r++) {
		flip(rot, r, v, n);
		hadamard(rot, 0, v, n);
		if (r == 1)
			scale_row(v, rot->rescale, n);
	}
}

INLINE void rotate_inv(const struct rotation *rot, floats *v, uint32_t n);

INLINE void rotate_row(const struct rotation *rot, int inverse, float *x, uint32_t n)
{
	floats v[N_MAX];

	for (uint32_t i = 0; i < n; i++)
		v[i] = V(loadu_ps)(x + LANES * (size_t)i);
	if (inverse)
		rotate_inv(rot, v, n);
	else
		rotate_fwd(rot, v, n);
	for (uint32_t i = 0; i < n; i++)
		V(storeu_ps)(x + LANES * (size_t)i, v[i]);
}

/* dim: a multiple of LANES */
INLINE void rotate_any(const struct rotation *rot, int inverse, float *x)
{
	if (rot->dim == 128)
		rotate_row(rot, inverse, x, 128 / LANES);
	else if (rot->dim == 64)
		rotate_row(rot, inverse, x, 64 / LANES);
	else
		rotate_row(rot, inverse, x, rot->dim / LANES);
}

/* ---- codecs ---- */

/* Scalars of rows from their norms and the products that the scalar asks for. */
INLINE floats tq_scalars(const struct tq *tq, floats norm, floats product)
{
	const floats dim = V(set1_ps)((float)tq->rot.dim);

	if (tq->scalar == KVP_TQ_PLAIN)
		return V(div_ps)(norm, dim);
	if (tq->scalar == KVP_TQ_NC)
		return V(div_ps)(norm, V(sqrt_ps)(V(mul_ps)(dim, product)));
	return div_positive(norm, product);
}

struct affine {
	floats min;
	floats inv;
};

/* A group in each lane: extremes in, fp16 scale and minimum and what codes derive from out. */
INLINE struct affine affine_scalars(
	uint32_t bits, floats lo, floats hi, halves *ret_scale, halves *ret_min)
{
	const floats zero = V(setzero_ps)();
	struct affine a;
	floats s;

	lo = V(add_ps)(lo, zero);
	hi = V(add_ps)(hi, zero);
	s = V(div_ps)(V(sub_ps)(hi, lo), V(set1_ps)((float)((1u << bits) - 1)));
	*ret_scale = V(cvtps_ph)(s, RNE);
	*ret_min = V(cvtps_ph)(lo, RNE);
	s = V(cvtph_ps)(*ret_scale);
	a.min = V(cvtph_ps)(*ret_min);
	a.inv = div_positive(V(set1_ps)(1.0f), s);
	return a;
}

INLINE words affine_codes(uint32_t bits, floats x, floats min, floats inv)
{
	words q = V(cvtps_epi32)(V(mul_ps)(V(sub_ps)(x, min), inv));

	q = V(max_epi32)(q, V(set1_epi32)(0));
	return V(min_epi32)(q, V(set1_epi32)((1 << bits) - 1));
}

INLINE void asym_encode_row(uint32_t bits, uint32_t group, const floats *v, uint32_t n,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	const uint32_t per = group / LANES, groups = (n + per - 1) / per;
	float lo[N_MAX], hi[N_MAX], base[N_MAX], inv[N_MAX];
	words k[N_MAX];

	for (uint32_t g = 0; g < groups; g++) {
		uint32_t end = (g + 1) * per < n ? (g + 1) * per : n;
		floats l = v[g * per], h = l;

		for (uint32_t i = g * per + 1; i < end; i++) {
			l = V(min_ps)(l, v[i]);
			h = V(max_ps)(h, v[i]);
		}
		lo[g] = reduce_min(l);
		hi[g] = reduce_max(h);
	}
	for (uint32_t g = 0; g < groups; g += LANES) {
		const uint32_t some = groups - g < LANES ? groups - g : LANES;
		halves s16, m16;
		struct affine a = affine_scalars(
			bits, load_some(lo + g, some), load_some(hi + g, some), &s16, &m16);

		store_some(scale + 2 * (size_t)g, s16, some);
		store_some(min + 2 * (size_t)g, m16, some);
		V(storeu_ps)(base + g, a.min);
		V(storeu_ps)(inv + g, a.inv);
	}
	for (uint32_t i = 0; i < n; i++)
		k[i] = affine_codes(
			bits, v[i], V(set1_ps)(base[i / per]), V(set1_ps)(inv[i / per]));
	BY_BITS(bits, store_row_codes, n, k, codes);
}

/* Row t alone by reference C. */
static void asym_encode_one(uint32_t bits, uint32_t group, const struct rows_in *in, uint32_t t,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	const size_t groups = (in->dim + group - 1) / group;
	struct rows_in one = *in;

	one.data = row_in(in, t);
	one.n = 1;
	kvp_asym_encode_c(bits, group, &one, codes + (size_t)t * kvp_row_bytes(bits, in->dim),
		scale + 2 * groups * t, min + 2 * groups * t);
}

INLINE void asym_encode_rows(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, LANES * n);
	size_t groups = (LANES * n + group - 1) / group;
	floats v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		prefetch_row(in, t + AHEAD, n, dtype);
		if (load_row(in, t, v, n, dtype))
			asym_encode_row(bits, group, v, n, codes + (size_t)t * row,
				scale + 2 * groups * t, min + 2 * groups * t);
		else
			asym_encode_one(bits, group, in, t, codes, scale, min);
	}
}

/* Scalars of a group's channels; their minima and reciprocals instead of their extremes. */
INLINE void chan_scalars(
	uint32_t bits, floats *lo, floats *hi, uint8_t *scale, uint8_t *min, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		halves s16, m16;
		struct affine a = affine_scalars(bits, lo[i], hi[i], &s16, &m16);

		memcpy(scale + 2 * LANES * (size_t)i, &s16, sizeof s16);
		memcpy(min + 2 * LANES * (size_t)i, &m16, sizeof m16);
		lo[i] = a.min;
		hi[i] = a.inv;
	}
}

INLINE void widen(floats *lo, floats *hi, const floats *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		lo[i] = V(min_ps)(lo[i], v[i]);
		hi[i] = V(max_ps)(hi[i], v[i]);
	}
}

INLINE void chan_codes(uint32_t bits, const floats *v, const floats *lo, const floats *hi,
	uint8_t *codes, uint32_t n)
{
	words k[N_MAX];

	for (uint32_t i = 0; i < n; i++)
		k[i] = affine_codes(bits, v[i], lo[i], hi[i]);
	BY_BITS(bits, store_row_codes, n, k, codes);
}

static void chan_encode_any(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	const uint32_t n = in->dim / LANES, row = kvp_row_bytes(bits, in->dim);
	floats v[N_MAX], lo[N_MAX], hi[N_MAX];
	int finite = load_row(in, 0, lo, n, in->dtype);

	memcpy(hi, lo, n * sizeof *lo);
	for (uint32_t t = 1; t < in->n; t++) {
		finite &= load_row(in, t, v, n, in->dtype);
		widen(lo, hi, v, n);
	}
	if (!finite) {
		kvp_chan_encode_c(bits, in, codes, scale, min);
		return;
	}
	chan_scalars(bits, lo, hi, scale, min, n);
	for (uint32_t t = 0; t < in->n; t++) {
		prefetch_row(in, t + in->n, n, in->dtype); /* the next group */
		load_row(in, t, v, n, in->dtype);
		chan_codes(bits, v, lo, hi, codes + (size_t)t * row, n);
	}
}

/* Rows are taken as ordinary until all have been seen: extremes stay in registers. */
INLINE void chan_encode_rows(uint32_t bits, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, LANES * n);
	words max = V(set1_epi32)(0);
	floats v[N_MAX], lo[N_MAX], hi[N_MAX];

	max = row_magnitude(row_in(in, 0), n, max);
	load_ordinary(row_in(in, 0), lo, n, dtype);
	for (uint32_t i = 0; i < n; i++)
		hi[i] = lo[i];
	for (uint32_t t = 1; t < in->n; t++) {
		max = row_magnitude(row_in(in, t), n, max);
		load_ordinary(row_in(in, t), v, n, dtype);
		widen(lo, hi, v, n);
	}
	if (!is_ordinary(max, dtype)) {
		chan_encode_any(bits, in, codes, scale, min);
		return;
	}
	chan_scalars(bits, lo, hi, scale, min, n);
	for (uint32_t t = 0; t < in->n; t++) {
		prefetch_row(in, t + in->n, n, dtype); /* the next group */
		load_ordinary(row_in(in, t), v, n, dtype);
		chan_codes(bits, v, lo, hi, codes + (size_t)t * row, n);
	}
}

INLINE void byte_encode_rows(uint32_t format, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint32_t n, uint32_t dtype)
{
	float top = format == KVP_CODEC_INT8 ? 127.0f : 448.0f;
	floats v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		floats max = V(setzero_ps)();
		float s, inv;

		prefetch_row(in, t + AHEAD, n, dtype);
		load_row(in, t, v, n, dtype);
		for (uint32_t i = 0; i < n; i++)
			max = V(max_ps)(max, magnitude(v[i]));
		store_half(scale + 2 * (size_t)t, reduce_max(max) / top);
		s = load_half(scale + 2 * (size_t)t, 1.0f);
		inv = s > 0.0f ? 1.0f / s : 0.0f;
		for (uint32_t i = 0; i < n; i++)
			store_bytes(codes + LANES * ((size_t)t * n + i),
				byte_codes(format, V(mul_ps)(v[i], V(set1_ps)(inv))));
	}
}

INLINE void byte_decode_rows(uint32_t format, const uint8_t *codes, const uint8_t *scale,
	const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	floats v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		floats s = V(set1_ps)(load_half(scale + 2 * (size_t)t, out->scale));

		for (uint32_t i = 0; i < n; i++)
			v[i] = V(mul_ps)(byte_values(format, codes + (size_t)t * LANES * n, i), s);
		store_row(out, t, v, n, dtype);
	}
}

INLINE void had_encode_rows(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, LANES * n);
	const float unit = 1.0f / sqrtf((float)in->dim);
	floats v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		prefetch_row(in, t + AHEAD, n, dtype);
		load_row(in, t, v, n, dtype);
		rotate_fwd(rot, v, n);
		scale_row(v, unit, n);
		asym_encode_row(bits, LANES * n, v, n, codes + (size_t)t * row,
			scale + 2 * (size_t)t, min + 2 * (size_t)t);
	}
}

#endif
