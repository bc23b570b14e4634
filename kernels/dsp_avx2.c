/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of n registers of 8 floats; every dim is a multiple of 8. Fused multiply-add appears only
 * where the product is exact. Dense rotations and Paley stages are reference C.
 */
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx2.h"

#include <math.h>

#define N_MAX (KVP_PLANE_DIM_MAX / 8)

/* Calls f(..., n, dtype) with both constant where that pays. */
#define SPECIALIZE(dim, dtype, f, ...)                              \
	do {                                                        \
		if ((dim) == 128 && (dtype) == KVP_DTYPE_F16)       \
			f(__VA_ARGS__, 16, KVP_DTYPE_F16);          \
		else if ((dim) == 128 && (dtype) == KVP_DTYPE_BF16) \
			f(__VA_ARGS__, 16, KVP_DTYPE_BF16);         \
		else if ((dim) == 64 && (dtype) == KVP_DTYPE_F16)   \
			f(__VA_ARGS__, 8, KVP_DTYPE_F16);           \
		else                                                \
			f(__VA_ARGS__, (dim) / 8, (dtype));         \
	} while (0)

static const uint8_t *row_in(const struct rows_in *in, uint32_t t)
{
	return in->data + (ptrdiff_t)t * in->stride;
}

static uint8_t *row_out(const struct rows_out *out, uint32_t t)
{
	return out->data + (ptrdiff_t)t * out->stride;
}

INLINE void load_row(const struct rows_in *in, uint32_t t, __m256 *v, uint32_t n, uint32_t dtype)
{
	const uint8_t *row = row_in(in, t);
	__m256 scale = _mm256_set1_ps(in->scale);

	for (uint32_t i = 0; i < n; i++) {
		__m256 x = load8(row, dtype, i);

		x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
		v[i] = clamp8(_mm256_mul_ps(x, scale), KVP_INPUT_MAX);
	}
}

INLINE void store_row(
	const struct rows_out *out, uint32_t t, const __m256 *v, uint32_t n, uint32_t dtype)
{
	uint8_t *row = row_out(out, t);

	for (uint32_t i = 0; i < n; i++)
		store8(row, dtype, i, v[i]);
}

/* The sum tree over 32 lanes, which are four registers. */
INLINE float dot(const __m256 *a, const __m256 *b, uint32_t n)
{
	__m256 lane[4] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
		_mm256_setzero_ps() };
	__m128 q;

	for (uint32_t i = 0; i < n; i++)
		lane[i & 3] = _mm256_add_ps(lane[i & 3], _mm256_mul_ps(a[i], b[i]));
	lane[0] = _mm256_add_ps(lane[0], lane[2]);
	lane[1] = _mm256_add_ps(lane[1], lane[3]);
	lane[0] = _mm256_add_ps(lane[0], lane[1]);
	q = _mm_add_ps(_mm256_castps256_ps128(lane[0]), _mm256_extractf128_ps(lane[0], 1));
	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

INLINE float reduce_min(__m256 x)
{
	__m128 q = _mm_min_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	q = _mm_min_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_min_ss(q, _mm_movehdup_ps(q)));
}

INLINE float reduce_max(__m256 x)
{
	__m128 q = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	q = _mm_max_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

static uint32_t amax_avx2(const struct rows_in *in)
{
	__m256 max = _mm256_setzero_ps();

	for (uint32_t t = 0; t < in->n; t++) {
		for (uint32_t i = 0; i < in->dim / 8; i++) {
			__m256 a = _mm256_andnot_ps(
				_mm256_set1_ps(-0.0f), load8(row_in(in, t), in->dtype, i));
			__m256 finite = _mm256_cmp_ps(a, _mm256_set1_ps(INFINITY), _CMP_LT_OQ);

			max = _mm256_max_ps(max, _mm256_and_ps(a, finite));
		}
	}
	return f32_bits(reduce_max(max));
}

/* ---- rotations ---- */

/* Pairs at distance 1, 2, 4 inside a register: partner + (+-1) * self. */
#define BUTTERFLY(v, n, partner, sign)                              \
	do {                                                        \
		const __m256 one = sign;                            \
		for (uint32_t i_ = 0; i_ < (n); i_++) {             \
			__m256 x = (v)[i_];                         \
			(v)[i_] = _mm256_fmadd_ps(x, one, partner); \
		}                                                   \
	} while (0)

INLINE void hadamard_inside(__m256 *v, uint32_t n, uint32_t p)
{
	if (p > 1)
		BUTTERFLY(v, n, _mm256_permute_ps(x, 0xb1),
			_mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1));
	if (p > 2)
		BUTTERFLY(v, n, _mm256_permute_ps(x, 0x4e),
			_mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1));
	if (p > 4)
		BUTTERFLY(v, n, _mm256_permute2f128_ps(x, x, 1),
			_mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1));
}

INLINE void hadamard_across(__m256 *v, uint32_t n, uint32_t p)
{
	for (uint32_t h = 1; h < p; h *= 2) {
		for (uint32_t i = 0; i < n; i++) {
			__m256 a, b;

			if (i & h)
				continue;
			a = v[i];
			b = v[i + h];
			v[i] = _mm256_add_ps(a, b);
			v[i + h] = _mm256_sub_ps(a, b);
		}
	}
}

INLINE void hadamard(const struct rotation *rot, int transpose, __m256 *v, uint32_t n)
{
	if (n == 16 || n == 8) { /* no factor but 2: constants for the compiler */
		hadamard_inside(v, n, 8);
		hadamard_across(v, n, n);
		return;
	}
	hadamard_inside(v, n, rot->dim / rot->order);
	hadamard_across(v, n, rot->dim / rot->order / 8);
	if (rot->order > 1)
		kvp_rotate_paley(rot, transpose, (float *)(void *)v);
}

INLINE void flip(const struct rotation *rot, uint32_t round, __m256 *v, uint32_t n)
{
	const float *sign = (const float *)(const void *)rot->sign[round];

	for (uint32_t i = 0; i < n; i++)
		v[i] = _mm256_xor_ps(v[i], _mm256_loadu_ps(sign + 8 * (size_t)i));
}

INLINE void scale_row(__m256 *v, float f, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = _mm256_mul_ps(v[i], _mm256_set1_ps(f));
}

INLINE void rotate_fwd(const struct rotation *rot, __m256 *v, uint32_t n)
{
	if (rot->kind == KVP_ROT_HAAR) {
		kvp_rotate_fwd(rot, (float *)(void *)v);
		return;
	}
	flip(rot, 0, v, n);
	hadamard(rot, 0, v, n);
	for (uint32_t r = 1; r < rot->rounds; r++) {
		flip(rot, r, v, n);
		hadamard(rot, 0, v, n);
		if (r == 1)
			scale_row(v, rot->rescale, n);
	}
}

INLINE void rotate_inv(const struct rotation *rot, __m256 *v, uint32_t n)
{
	if (rot->kind == KVP_ROT_HAAR) {
		kvp_rotate_inv(rot, (float *)(void *)v);
		return;
	}
	for (uint32_t r = rot->rounds; r-- > 1;) {
		hadamard(rot, 1, v, n);
		flip(rot, r, v, n);
		if (r == 1)
			scale_row(v, rot->rescale, n);
	}
	hadamard(rot, 1, v, n);
	flip(rot, 0, v, n);
}

/* ---- tq ---- */

/* One of 16 floats by the low four bits of k. */
INLINE __m256 lookup16(__m256 low, __m256 high, __m256i k)
{
	return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, k), _mm256_permutevar8x32_ps(high, k),
		_mm256_castsi256_ps(_mm256_slli_epi32(k, 28)));
}

INLINE __m256 lookup(__m256 low, __m256 high, __m256i k, uint32_t bits)
{
	return bits == 4 ? lookup16(low, high, k) : _mm256_permutevar8x32_ps(low, k);
}

/* Number of boundaries <= z, by bisection: the boundary to ask next is looked up by the answer. */
INLINE __m256i quantize8(__m256 z, __m256 low, __m256 high, uint32_t bits)
{
	__m256i code = _mm256_setzero_si256();

	for (uint32_t b = bits; b-- > 0;) {
		__m256i probe = _mm256_add_epi32(code, _mm256_set1_epi32((1 << b) - 1));
		__m256 up = _mm256_cmp_ps(lookup(low, high, probe, bits), z, _CMP_LE_OQ);

		code = _mm256_add_epi32(
			code, _mm256_and_si256(_mm256_castps_si256(up), _mm256_set1_epi32(1 << b)));
	}
	return code;
}

INLINE void tq_encode_rows(const struct tq *tq, const struct rows_in *in, uint8_t *codes,
	uint8_t *scal, uint32_t bits, uint32_t n, uint32_t dtype)
{
	uint32_t dim = 8 * n, row = kvp_row_bytes(bits, dim);
	const __m256 b0 = _mm256_loadu_ps(tq->bound), b1 = _mm256_loadu_ps(tq->bound + 8);
	const __m256 c0 = _mm256_loadu_ps(tq->cent), c1 = _mm256_loadu_ps(tq->cent + 8);
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m256 v[N_MAX], c[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		float norm, inv, m, s;

		load_row(in, t, v, n, dtype);
		norm = sqrtf(dot(v, v, n));
		inv = norm > 0.0f ? 1.0f / norm : 0.0f;
		rotate_fwd(&tq->rot, v, n);
		for (uint32_t i = 0; i < n; i++) {
			__m256i k;

			v[i] = _mm256_mul_ps(v[i], _mm256_set1_ps(inv));
			k = quantize8(v[i], b0, b1, bits);
			c[i] = lookup(c0, c1, k, bits);
			store_codes(code, i, k);
		}
		pack_row(bits, dim, code, codes + (size_t)t * row);
		if (tq->scalar == KVP_TQ_PLAIN) {
			s = norm / (float)dim;
		} else if (tq->scalar == KVP_TQ_NC) {
			s = norm / sqrtf((float)dim * dot(c, c, n));
		} else {
			m = dot(v, c, n);
			s = m > 0.0f ? norm / m : 0.0f;
		}
		if (tq->wide)
			memcpy(scal + 4 * (size_t)t, &s, 4);
		else
			store_half(scal + 2 * (size_t)t, s);
	}
}

static void tq_encode_avx2(
	const struct tq *tq, const struct rows_in *in, uint8_t *codes, uint8_t *scal)
{
	if (tq->bits == 4)
		SPECIALIZE(in->dim, in->dtype, tq_encode_rows, tq, in, codes, scal, 4);
	else if (tq->bits == 3)
		SPECIALIZE(in->dim, in->dtype, tq_encode_rows, tq, in, codes, scal, 3);
	else
		SPECIALIZE(in->dim, in->dtype, tq_encode_rows, tq, in, codes, scal, 2);
}

INLINE void tq_decode_rows(const struct tq *tq, const uint8_t *codes, const uint8_t *scal,
	const struct rows_out *out, uint32_t bits, uint32_t n, uint32_t dtype)
{
	uint32_t dim = 8 * n, row = kvp_row_bytes(bits, dim);
	const __m256 c0 = _mm256_loadu_ps(tq->cent), c1 = _mm256_loadu_ps(tq->cent + 8);
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		float s = tq->wide ? load_scalar_wide(scal + 4 * (size_t)t, out->scale)
				   : load_half(scal + 2 * (size_t)t, out->scale);

		unpack_row(bits, dim, codes + (size_t)t * row, code);
		for (uint32_t i = 0; i < n; i++)
			v[i] = lookup(c0, c1, load_codes(code, i), bits);
		rotate_inv(&tq->rot, v, n);
		scale_row(v, s, n);
		store_row(out, t, v, n, dtype);
	}
}

static void tq_decode_avx2(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out)
{
	if (tq->bits == 4)
		SPECIALIZE(out->dim, out->dtype, tq_decode_rows, tq, codes, scal, out, 4);
	else if (tq->bits == 3)
		SPECIALIZE(out->dim, out->dtype, tq_decode_rows, tq, codes, scal, out, 3);
	else
		SPECIALIZE(out->dim, out->dtype, tq_decode_rows, tq, codes, scal, out, 2);
}

/* ---- min/max codecs ---- */

struct affine {
	__m256 min;
	__m256 inv;
};

/* Eight groups at once: extremes in, fp16 scale and minimum and what codes derive from out. */
INLINE struct affine affine8(
	uint32_t bits, __m256 lo, __m256 hi, __m128i *ret_scale, __m128i *ret_min)
{
	const __m256 zero = _mm256_setzero_ps();
	struct affine a;
	__m256 s;

	lo = _mm256_add_ps(lo, zero);
	hi = _mm256_add_ps(hi, zero);
	s = _mm256_div_ps(_mm256_sub_ps(hi, lo), _mm256_set1_ps((float)((1u << bits) - 1)));
	*ret_scale = _mm256_cvtps_ph(s, RNE);
	*ret_min = _mm256_cvtps_ph(lo, RNE);
	s = _mm256_cvtph_ps(*ret_scale);
	a.min = _mm256_cvtph_ps(*ret_min);
	a.inv = _mm256_and_ps(
		_mm256_div_ps(_mm256_set1_ps(1.0f), s), _mm256_cmp_ps(s, zero, _CMP_GT_OQ));
	return a;
}

INLINE __m256i affine_codes(uint32_t bits, __m256 x, __m256 min, __m256 inv)
{
	__m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(x, min), inv));

	q = _mm256_max_epi32(q, _mm256_setzero_si256());
	return _mm256_min_epi32(q, _mm256_set1_epi32((1 << bits) - 1));
}

/* The extremes of a row's groups, coded eight groups at a time. */
INLINE void asym_encode_row(uint32_t bits, uint32_t group, const __m256 *v, uint32_t n,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	uint32_t per = group / 8, groups = (n + per - 1) / per;
	float lo[64] = { 0 }, hi[64] = { 0 }, base[64], inv[64];
	uint8_t code[KVP_PLANE_DIM_MAX];

	for (uint32_t g = 0; g < groups; g++) {
		uint32_t end = (g + 1) * per < n ? (g + 1) * per : n;
		__m256 l = v[g * per], h = l;

		for (uint32_t i = g * per + 1; i < end; i++) {
			l = _mm256_min_ps(l, v[i]);
			h = _mm256_max_ps(h, v[i]);
		}
		lo[g] = reduce_min(l);
		hi[g] = reduce_max(h);
	}
	for (uint32_t g = 0; g < groups; g += 8) {
		uint32_t bytes = 2 * (groups - g < 8 ? groups - g : 8);
		__m128i s16, m16;
		struct affine a =
			affine8(bits, _mm256_loadu_ps(lo + g), _mm256_loadu_ps(hi + g), &s16, &m16);

		memcpy(scale + 2 * (size_t)g, &s16, bytes);
		memcpy(min + 2 * (size_t)g, &m16, bytes);
		_mm256_storeu_ps(base + g, a.min);
		_mm256_storeu_ps(inv + g, a.inv);
	}
	for (uint32_t i = 0; i < n; i++)
		store_codes(code, i,
			affine_codes(bits, v[i], _mm256_set1_ps(base[i / per]),
				_mm256_set1_ps(inv[i / per])));
	pack_row(bits, 8 * n, code, codes);
}

INLINE void asym_encode_rows(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 8 * n);
	size_t groups = (8 * n + group - 1) / group;
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, v, n, dtype);
		asym_encode_row(bits, group, v, n, codes + (size_t)t * row, scale + 2 * groups * t,
			min + 2 * groups * t);
	}
}

static void asym_encode_avx2(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	SPECIALIZE(in->dim, in->dtype, asym_encode_rows, bits, group, in, codes, scale, min);
}

INLINE void affine_decode(const uint8_t *code, const uint8_t *scale, const uint8_t *min,
	uint32_t per, __m256 *v, uint32_t n)
{
	__m256 s = _mm256_setzero_ps(), m = s;

	for (uint32_t i = 0; i < n; i++) {
		if (i % per == 0) {
			s = _mm256_set1_ps(load_half(scale + 2 * (size_t)(i / per), 1.0f));
			m = _mm256_set1_ps(load_half(min + 2 * (size_t)(i / per), 1.0f));
		}
		v[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(load_codes(code, i)), s, m);
	}
}

INLINE void asym_decode_rows(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 8 * n);
	size_t groups = (8 * n + group - 1) / group;
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		unpack_row(bits, 8 * n, codes + (size_t)t * row, code);
		affine_decode(code, scale + 2 * groups * t, min + 2 * groups * t, group / 8, v, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void asym_decode_avx2(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	SPECIALIZE(out->dim, out->dtype, asym_decode_rows, bits, group, codes, scale, min, out);
}

INLINE void chan_encode_rows(uint32_t bits, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 8 * n);
	__m256 v[N_MAX], lo[N_MAX], hi[N_MAX];
	uint8_t code[KVP_PLANE_DIM_MAX];

	load_row(in, 0, lo, n, dtype);
	for (uint32_t i = 0; i < n; i++)
		hi[i] = lo[i];
	for (uint32_t t = 1; t < in->n; t++) {
		load_row(in, t, v, n, dtype);
		for (uint32_t i = 0; i < n; i++) {
			lo[i] = _mm256_min_ps(lo[i], v[i]);
			hi[i] = _mm256_max_ps(hi[i], v[i]);
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		__m128i s16, m16;
		struct affine a = affine8(bits, lo[i], hi[i], &s16, &m16);

		store128(scale + 16 * (size_t)i, s16);
		store128(min + 16 * (size_t)i, m16);
		lo[i] = a.min;
		hi[i] = a.inv;
	}
	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, v, n, dtype);
		for (uint32_t i = 0; i < n; i++)
			store_codes(code, i, affine_codes(bits, v[i], lo[i], hi[i]));
		pack_row(bits, 8 * n, code, codes + (size_t)t * row);
	}
}

static void chan_encode_avx2(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	SPECIALIZE(in->dim, in->dtype, chan_encode_rows, bits, in, codes, scale, min);
}

INLINE void chan_decode_rows(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 8 * n);
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m256 v[N_MAX], s[N_MAX], m[N_MAX];

	for (uint32_t i = 0; i < n; i++) {
		s[i] = load_half8(load128(scale + 16 * (size_t)i));
		m[i] = load_half8(load128(min + 16 * (size_t)i));
	}
	for (uint32_t t = 0; t < out->n; t++) {
		unpack_row(bits, 8 * n, codes + (size_t)t * row, code);
		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(load_codes(code, i)), s[i], m[i]);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void chan_decode_avx2(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	SPECIALIZE(out->dim, out->dtype, chan_decode_rows, bits, codes, scale, min, out);
}

/* ---- bytes ---- */

INLINE __m256i byte_codes(uint32_t format, __m256 x)
{
	__m256i q;

	if (format != KVP_CODEC_INT8)
		return fp8_codes(format, x);
	q = _mm256_cvtps_epi32(x);
	q = _mm256_max_epi32(q, _mm256_set1_epi32(-127));
	q = _mm256_min_epi32(q, _mm256_set1_epi32(127));
	return _mm256_and_si256(q, _mm256_set1_epi32(255));
}

INLINE void byte_encode_rows(uint32_t format, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint32_t n, uint32_t dtype)
{
	float top = format == KVP_CODEC_INT8 ? 127.0f : 448.0f;
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		__m256 max = _mm256_setzero_ps();
		float s, inv;

		load_row(in, t, v, n, dtype);
		for (uint32_t i = 0; i < n; i++)
			max = _mm256_max_ps(max, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v[i]));
		store_half(scale + 2 * (size_t)t, reduce_max(max) / top);
		s = load_half(scale + 2 * (size_t)t, 1.0f);
		inv = s > 0.0f ? 1.0f / s : 0.0f;
		for (uint32_t i = 0; i < n; i++)
			store_codes(codes + (size_t)t * 8 * n, i,
				byte_codes(format, _mm256_mul_ps(v[i], _mm256_set1_ps(inv))));
	}
}

static void byte_encode_avx2(
	uint32_t format, const struct rows_in *in, uint8_t *codes, uint8_t *scale)
{
	SPECIALIZE(in->dim, in->dtype, byte_encode_rows, format, in, codes, scale);
}

INLINE void byte_decode_rows(uint32_t format, const uint8_t *codes, const uint8_t *scale,
	const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		__m256 s = _mm256_set1_ps(load_half(scale + 2 * (size_t)t, out->scale));

		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm256_mul_ps(byte_values(format, codes + (size_t)t * 8 * n, i), s);
		store_row(out, t, v, n, dtype);
	}
}

static void byte_decode_avx2(
	uint32_t format, const uint8_t *codes, const uint8_t *scale, const struct rows_out *out)
{
	SPECIALIZE(out->dim, out->dtype, byte_decode_rows, format, codes, scale, out);
}

/* ---- hadamard ---- */

static void had_encode_avx2(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	uint32_t row = kvp_row_bytes(bits, in->dim), n = in->dim / 8;
	float unit = 1.0f / sqrtf((float)in->dim);
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, v, n, in->dtype);
		rotate_fwd(rot, v, n);
		scale_row(v, unit, n);
		asym_encode_row(bits, in->dim, v, n, codes + (size_t)t * row, scale + 2 * (size_t)t,
			min + 2 * (size_t)t);
	}
}

static void had_decode_avx2(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	uint32_t row = kvp_row_bytes(bits, out->dim), n = out->dim / 8;
	float unit = 1.0f / sqrtf((float)out->dim);
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		unpack_row(bits, out->dim, codes + (size_t)t * row, code);
		affine_decode(code, scale + 2 * (size_t)t, min + 2 * (size_t)t, n, v, n);
		rotate_inv(rot, v, n);
		scale_row(v, unit, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, out->dtype);
	}
}

void kvp_dsp_init_avx2(struct dsp *dsp)
{
	dsp->amax = amax_avx2;
	dsp->tq_encode = tq_encode_avx2;
	dsp->tq_decode = tq_decode_avx2;
	dsp->asym_encode = asym_encode_avx2;
	dsp->asym_decode = asym_decode_avx2;
	dsp->chan_encode = chan_encode_avx2;
	dsp->chan_decode = chan_decode_avx2;
	dsp->byte_encode = byte_encode_avx2;
	dsp->byte_decode = byte_decode_avx2;
	dsp->had_encode = had_encode_avx2;
	dsp->had_decode = had_decode_avx2;
}
