/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of n registers of 16 floats: dims that are multiples of 16; the others fall back on C. The
 * work is written once with n and dtype as parameters and inlined for the usual ones, so that a
 * whole row stays in registers. Fused multiply-add appears only where the product is exact.
 */
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx512.h"

#include <math.h>

#define N_MAX (KVP_PLANE_DIM_MAX / 16)

/* Calls f(..., n, dtype) with both constant where that pays. */
#define SPECIALIZE(dim, dtype, f, ...)                              \
	do {                                                        \
		if ((dim) == 128 && (dtype) == KVP_DTYPE_F16)       \
			f(__VA_ARGS__, 8, KVP_DTYPE_F16);           \
		else if ((dim) == 128 && (dtype) == KVP_DTYPE_BF16) \
			f(__VA_ARGS__, 8, KVP_DTYPE_BF16);          \
		else if ((dim) == 64 && (dtype) == KVP_DTYPE_F16)   \
			f(__VA_ARGS__, 4, KVP_DTYPE_F16);           \
		else                                                \
			f(__VA_ARGS__, (dim) / 16, (dtype));        \
	} while (0)

static const uint8_t *row_in(const struct rows_in *in, uint32_t t)
{
	return in->data + (ptrdiff_t)t * in->stride;
}

static uint8_t *row_out(const struct rows_out *out, uint32_t t)
{
	return out->data + (ptrdiff_t)t * out->stride;
}

INLINE void load_row(const struct rows_in *in, uint32_t t, __m512 *v, uint32_t n, uint32_t dtype)
{
	const uint8_t *row = row_in(in, t);
	__m512 scale = _mm512_set1_ps(in->scale), max = _mm512_set1_ps(KVP_INPUT_MAX);

	for (uint32_t i = 0; i < n; i++) {
		__m512 x = load16(row, dtype, i);
		__mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);

		v[i] = clamp16(_mm512_maskz_mul_ps(number, x, scale), max);
	}
}

INLINE void store_row(
	const struct rows_out *out, uint32_t t, const __m512 *v, uint32_t n, uint32_t dtype)
{
	uint8_t *row = row_out(out, t);

	for (uint32_t i = 0; i < n; i++)
		store16(row, dtype, i, v[i]);
}

/* The sum tree over 32 lanes, its first step being the sum of two registers. */
INLINE float fold(__m512 a, __m512 b)
{
	__m512 s = _mm512_add_ps(a, b);
	__m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));

	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

INLINE float dot(const __m512 *a, const __m512 *b, uint32_t n)
{
	__m512 lane[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };

	for (uint32_t i = 0; i < n; i++)
		lane[i & 1] = _mm512_add_ps(lane[i & 1], _mm512_mul_ps(a[i], b[i]));
	return fold(lane[0], lane[1]);
}

static uint32_t amax_avx512(const struct rows_in *in)
{
	__m512i max = _mm512_setzero_si512();
	const __m512i inf = _mm512_set1_epi32(0x7f800000);

	if (in->dim % 16)
		return kvp_amax_c(in);
	for (uint32_t t = 0; t < in->n; t++) {
		for (uint32_t i = 0; i < in->dim / 16; i++) {
			__m512i a = _mm512_and_si512(
				_mm512_castps_si512(load16(row_in(in, t), in->dtype, i)),
				_mm512_set1_epi32(0x7fffffff));

			max = _mm512_mask_max_epu32(max, _mm512_cmplt_epu32_mask(a, inf), max, a);
		}
	}
	return _mm512_reduce_max_epu32(max);
}

/* ---- rotations ---- */

/* Pairs at distance 1, 2, 4, 8 inside a register: partner + (+-1) * self. */
#define BUTTERFLY(v, n, partner, minus)                                                           \
	do {                                                                                      \
		const __m512 one =                                                                \
			_mm512_mask_blend_ps(minus, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f)); \
		for (uint32_t i_ = 0; i_ < (n); i_++) {                                           \
			__m512 x = (v)[i_];                                                       \
			(v)[i_] = _mm512_fmadd_ps(x, one, partner);                               \
		}                                                                                 \
	} while (0)

INLINE void hadamard_inside(__m512 *v, uint32_t n, uint32_t p)
{
	if (p > 1)
		BUTTERFLY(v, n, _mm512_permute_ps(x, 0xb1), 0xaaaa);
	if (p > 2)
		BUTTERFLY(v, n, _mm512_permute_ps(x, 0x4e), 0xcccc);
	if (p > 4)
		BUTTERFLY(v, n, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
	if (p > 8)
		BUTTERFLY(v, n, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
}

INLINE void hadamard_across(__m512 *v, uint32_t n, uint32_t p)
{
	for (uint32_t h = 1; h < p; h *= 2) {
		for (uint32_t i = 0; i < n; i++) {
			__m512 a, b;

			if (i & h)
				continue;
			a = v[i];
			b = v[i + h];
			v[i] = _mm512_add_ps(a, b);
			v[i + h] = _mm512_sub_ps(a, b);
		}
	}
}

static void paley(const struct rotation *rot, int transpose, __m512 *v)
{
	uint32_t p = rot->dim / rot->order / 16;
	__m512 in[36], out[36];

	if (!p) {
		kvp_rotate_paley(rot, transpose, (float *)(void *)v);
		return;
	}
	for (uint32_t b = 0; b < p; b++) {
		for (uint32_t i = 0; i < rot->order; i++)
			in[i] = v[i * p + b];
		for (uint32_t i = 0; i < rot->order; i++) {
			for (uint32_t j = 0; j < rot->order; j++) {
				uint64_t minus =
					transpose ? rot->paley[j] >> i : rot->paley[i] >> j;
				__m512 sign = _mm512_castsi512_ps(
					_mm512_set1_epi32((int)((uint32_t)minus << 31)));
				__m512 x = _mm512_xor_ps(in[j], sign);

				out[i] = j ? _mm512_add_ps(out[i], x) : x;
			}
		}
		for (uint32_t i = 0; i < rot->order; i++)
			v[i * p + b] = out[i];
	}
}

INLINE void hadamard(const struct rotation *rot, int transpose, __m512 *v, uint32_t n)
{
	if (n == 8 || n == 4) { /* no factor but 2: constants for the compiler */
		hadamard_inside(v, n, 16);
		hadamard_across(v, n, n);
		return;
	}
	hadamard_inside(v, n, rot->dim / rot->order);
	hadamard_across(v, n, rot->dim / rot->order / 16);
	if (rot->order > 1)
		paley(rot, transpose, v);
}

INLINE void flip(const struct rotation *rot, uint32_t round, __m512 *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = _mm512_xor_ps(v[i], _mm512_loadu_ps(&rot->sign[round][16 * i]));
}

INLINE void scale_row(__m512 *v, float f, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(f));
}

INLINE void rotate_fwd(const struct rotation *rot, __m512 *v, uint32_t n)
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

INLINE void rotate_inv(const struct rotation *rot, __m512 *v, uint32_t n)
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

/* Number of boundaries <= z, by bisection: the boundary to ask next is looked up by the answer. */
INLINE __m512i quantize16(__m512 z, __m512 bound, uint32_t bits)
{
	__m512i code = _mm512_setzero_si512();

	for (uint32_t b = bits; b-- > 0;) {
		__m512i probe = _mm512_add_epi32(code, _mm512_set1_epi32((1 << b) - 1));
		__mmask16 up =
			_mm512_cmp_ps_mask(_mm512_permutexvar_ps(probe, bound), z, _CMP_LE_OQ);

		code = _mm512_mask_add_epi32(code, up, code, _mm512_set1_epi32(1 << b));
	}
	return code;
}

INLINE void tq_encode_rows(const struct tq *tq, const struct rows_in *in, uint8_t *codes,
	uint8_t *scal, uint32_t bits, uint32_t n, uint32_t dtype)
{
	uint32_t dim = 16 * n, row = kvp_row_bytes(bits, dim);
	const __m512 bound = _mm512_loadu_ps(tq->bound), cent = _mm512_loadu_ps(tq->cent);
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m512 v[N_MAX], c[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		float norm, inv, m, s;

		load_row(in, t, v, n, dtype);
		norm = sqrtf(dot(v, v, n));
		inv = norm > 0.0f ? 1.0f / norm : 0.0f;
		rotate_fwd(&tq->rot, v, n);
		for (uint32_t i = 0; i < n; i++) {
			__m512i k;

			v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(inv));
			k = quantize16(v[i], bound, bits);
			c[i] = _mm512_permutexvar_ps(k, cent);
			_mm_storeu_si128(
				(__m128i *)(void *)(code + 16 * i), _mm512_cvtepi32_epi8(k));
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

static void tq_encode_avx512(
	const struct tq *tq, const struct rows_in *in, uint8_t *codes, uint8_t *scal)
{
	if (in->dim % 16)
		kvp_tq_encode_c(tq, in, codes, scal);
	else if (tq->bits == 4)
		SPECIALIZE(in->dim, in->dtype, tq_encode_rows, tq, in, codes, scal, 4);
	else if (tq->bits == 3)
		SPECIALIZE(in->dim, in->dtype, tq_encode_rows, tq, in, codes, scal, 3);
	else
		SPECIALIZE(in->dim, in->dtype, tq_encode_rows, tq, in, codes, scal, 2);
}

INLINE void tq_decode_rows(const struct tq *tq, const uint8_t *codes, const uint8_t *scal,
	const struct rows_out *out, uint32_t bits, uint32_t n, uint32_t dtype)
{
	uint32_t dim = 16 * n, row = kvp_row_bytes(bits, dim);
	const __m512 cent = _mm512_loadu_ps(tq->cent);
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		float s = tq->wide ? load_scalar_wide(scal + 4 * (size_t)t, out->scale)
				   : load_half(scal + 2 * (size_t)t, out->scale);

		unpack_row(bits, dim, codes + (size_t)t * row, code);
		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm512_permutexvar_ps(load_codes(code, i), cent);
		rotate_inv(&tq->rot, v, n);
		scale_row(v, s, n);
		store_row(out, t, v, n, dtype);
	}
}

static void tq_decode_avx512(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_tq_decode_c(tq, codes, scal, out);
	else if (tq->bits == 4)
		SPECIALIZE(out->dim, out->dtype, tq_decode_rows, tq, codes, scal, out, 4);
	else if (tq->bits == 3)
		SPECIALIZE(out->dim, out->dtype, tq_decode_rows, tq, codes, scal, out, 3);
	else
		SPECIALIZE(out->dim, out->dtype, tq_decode_rows, tq, codes, scal, out, 2);
}

/* ---- min/max codecs ---- */

struct affine {
	__m512 min;
	__m512 inv;
};

/* Sixteen groups at once: extremes in, fp16 scale and minimum and what codes derive from out. */
INLINE struct affine affine16(
	uint32_t bits, __m512 lo, __m512 hi, __m256i *ret_scale, __m256i *ret_min)
{
	const __m512 zero = _mm512_setzero_ps();
	struct affine a;
	__m512 s;

	lo = _mm512_add_ps(lo, zero);
	hi = _mm512_add_ps(hi, zero);
	s = _mm512_div_ps(_mm512_sub_ps(hi, lo), _mm512_set1_ps((float)((1u << bits) - 1)));
	*ret_scale = _mm512_cvtps_ph(s, RNE);
	*ret_min = _mm512_cvtps_ph(lo, RNE);
	s = _mm512_cvtph_ps(*ret_scale);
	a.min = _mm512_cvtph_ps(*ret_min);
	a.inv = _mm512_maskz_div_ps(
		_mm512_cmp_ps_mask(s, zero, _CMP_GT_OQ), _mm512_set1_ps(1.0f), s);
	return a;
}

INLINE __m128i affine_codes(uint32_t bits, __m512 x, __m512 min, __m512 inv)
{
	__m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(x, min), inv));

	q = _mm512_max_epi32(q, _mm512_setzero_si512());
	return _mm512_cvtepi32_epi8(_mm512_min_epi32(q, _mm512_set1_epi32((1 << bits) - 1)));
}

INLINE void asym_encode_row(uint32_t bits, uint32_t group, const __m512 *v, uint32_t n,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	uint32_t per = group / 16, groups = (n + per - 1) / per;
	float lo[64], hi[64], base[64], inv[64];
	uint8_t code[KVP_PLANE_DIM_MAX];

	for (uint32_t g = 0; g < groups; g++) {
		uint32_t end = (g + 1) * per < n ? (g + 1) * per : n;
		__m512 l = v[g * per], h = l;

		for (uint32_t i = g * per + 1; i < end; i++) {
			l = _mm512_min_ps(l, v[i]);
			h = _mm512_max_ps(h, v[i]);
		}
		lo[g] = _mm512_reduce_min_ps(l);
		hi[g] = _mm512_reduce_max_ps(h);
	}
	for (uint32_t g = 0; g < groups; g += 16) {
		__mmask16 m = groups - g >= 16 ? 0xffff : (__mmask16)((1u << (groups - g)) - 1);
		__m256i s16, m16;
		struct affine a = affine16(bits, _mm512_maskz_loadu_ps(m, lo + g),
			_mm512_maskz_loadu_ps(m, hi + g), &s16, &m16);

		_mm256_mask_storeu_epi16(scale + 2 * (size_t)g, m, s16);
		_mm256_mask_storeu_epi16(min + 2 * (size_t)g, m, m16);
		_mm512_mask_storeu_ps(base + g, m, a.min);
		_mm512_mask_storeu_ps(inv + g, m, a.inv);
	}
	for (uint32_t i = 0; i < n; i++)
		_mm_storeu_si128((__m128i *)(void *)(code + 16 * i),
			affine_codes(bits, v[i], _mm512_set1_ps(base[i / per]),
				_mm512_set1_ps(inv[i / per])));
	pack_row(bits, 16 * n, code, codes);
}

INLINE void asym_encode_rows(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 16 * n);
	size_t groups = (16 * n + group - 1) / group;
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, v, n, dtype);
		asym_encode_row(bits, group, v, n, codes + (size_t)t * row, scale + 2 * groups * t,
			min + 2 * groups * t);
	}
}

static void asym_encode_avx512(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (in->dim % 16)
		kvp_asym_encode_c(bits, group, in, codes, scale, min);
	else
		SPECIALIZE(
			in->dim, in->dtype, asym_encode_rows, bits, group, in, codes, scale, min);
}

INLINE void affine_decode(
	const uint8_t *code, const float *s, const float *m, uint32_t per, __m512 *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(load_codes(code, i)),
			_mm512_set1_ps(s[i / per]), _mm512_set1_ps(m[i / per]));
}

INLINE void asym_decode_rows(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 16 * n), per = group / 16;
	uint32_t groups = (16 * n + group - 1) / group;
	uint8_t code[KVP_PLANE_DIM_MAX];
	float s[64], m[64];
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		load_halves(scale + 2 * (size_t)groups * t, groups, 1.0f, s);
		load_halves(min + 2 * (size_t)groups * t, groups, 1.0f, m);
		unpack_row(bits, 16 * n, codes + (size_t)t * row, code);
		affine_decode(code, s, m, per, v, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void asym_decode_avx512(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_asym_decode_c(bits, group, codes, scale, min, out);
	else
		SPECIALIZE(out->dim, out->dtype, asym_decode_rows, bits, group, codes, scale, min,
			out);
}

INLINE void chan_encode_rows(uint32_t bits, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 16 * n);
	__m512 v[N_MAX], lo[N_MAX], hi[N_MAX];
	uint8_t code[KVP_PLANE_DIM_MAX];

	load_row(in, 0, lo, n, dtype);
	for (uint32_t i = 0; i < n; i++)
		hi[i] = lo[i];
	for (uint32_t t = 1; t < in->n; t++) {
		load_row(in, t, v, n, dtype);
		for (uint32_t i = 0; i < n; i++) {
			lo[i] = _mm512_min_ps(lo[i], v[i]);
			hi[i] = _mm512_max_ps(hi[i], v[i]);
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		__m256i s16, m16;
		struct affine a = affine16(bits, lo[i], hi[i], &s16, &m16);

		_mm256_storeu_si256((__m256i *)(void *)(scale + 32 * (size_t)i), s16);
		_mm256_storeu_si256((__m256i *)(void *)(min + 32 * (size_t)i), m16);
		lo[i] = a.min;
		hi[i] = a.inv;
	}
	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, v, n, dtype);
		for (uint32_t i = 0; i < n; i++)
			_mm_storeu_si128((__m128i *)(void *)(code + 16 * i),
				affine_codes(bits, v[i], lo[i], hi[i]));
		pack_row(bits, 16 * n, code, codes + (size_t)t * row);
	}
}

static void chan_encode_avx512(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (in->dim % 16)
		kvp_chan_encode_c(bits, in, codes, scale, min);
	else
		SPECIALIZE(in->dim, in->dtype, chan_encode_rows, bits, in, codes, scale, min);
}

INLINE void chan_decode_rows(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 16 * n);
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m512 v[N_MAX], s[N_MAX], m[N_MAX];

	load_halves(scale, 16 * n, 1.0f, (float *)(void *)s);
	load_halves(min, 16 * n, 1.0f, (float *)(void *)m);
	for (uint32_t t = 0; t < out->n; t++) {
		unpack_row(bits, 16 * n, codes + (size_t)t * row, code);
		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(load_codes(code, i)), s[i], m[i]);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void chan_decode_avx512(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_chan_decode_c(bits, codes, scale, min, out);
	else
		SPECIALIZE(out->dim, out->dtype, chan_decode_rows, bits, codes, scale, min, out);
}

/* ---- bytes ---- */

INLINE __m128i byte_codes(uint32_t format, __m512 x)
{
	__m512i q;

	if (format != KVP_CODEC_INT8)
		return fp8_codes(format, x);
	q = _mm512_cvtps_epi32(x);
	q = _mm512_max_epi32(q, _mm512_set1_epi32(-127));
	return _mm512_cvtepi32_epi8(_mm512_min_epi32(q, _mm512_set1_epi32(127)));
}

INLINE void byte_encode_rows(uint32_t format, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint32_t n, uint32_t dtype)
{
	float top = format == KVP_CODEC_INT8 ? 127.0f : 448.0f;
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		__m512 max = _mm512_setzero_ps();
		float s, inv;

		load_row(in, t, v, n, dtype);
		for (uint32_t i = 0; i < n; i++)
			max = _mm512_max_ps(max, _mm512_abs_ps(v[i]));
		store_half(scale + 2 * (size_t)t, _mm512_reduce_max_ps(max) / top);
		s = load_half(scale + 2 * (size_t)t, 1.0f);
		inv = s > 0.0f ? 1.0f / s : 0.0f;
		for (uint32_t i = 0; i < n; i++)
			_mm_storeu_si128(
				(__m128i *)(void *)(codes + (size_t)t * 16 * n + 16 * (size_t)i),
				byte_codes(format, _mm512_mul_ps(v[i], _mm512_set1_ps(inv))));
	}
}

static void byte_encode_avx512(
	uint32_t format, const struct rows_in *in, uint8_t *codes, uint8_t *scale)
{
	if (in->dim % 16)
		kvp_byte_encode_c(format, in, codes, scale);
	else
		SPECIALIZE(in->dim, in->dtype, byte_encode_rows, format, in, codes, scale);
}

INLINE void byte_decode_rows(uint32_t format, const uint8_t *codes, const uint8_t *scale,
	const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		__m512 s = _mm512_set1_ps(load_half(scale + 2 * (size_t)t, out->scale));

		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm512_mul_ps(byte_values(format, codes + (size_t)t * 16 * n, i), s);
		store_row(out, t, v, n, dtype);
	}
}

static void byte_decode_avx512(
	uint32_t format, const uint8_t *codes, const uint8_t *scale, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_byte_decode_c(format, codes, scale, out);
	else
		SPECIALIZE(out->dim, out->dtype, byte_decode_rows, format, codes, scale, out);
}

/* ---- hadamard ---- */

static void had_encode_avx512(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	uint32_t row = kvp_row_bytes(bits, in->dim), n = in->dim / 16;
	float unit = 1.0f / sqrtf((float)in->dim);
	__m512 v[N_MAX];

	if (in->dim % 16) {
		kvp_had_encode_c(bits, rot, in, codes, scale, min);
		return;
	}
	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, v, n, in->dtype);
		rotate_fwd(rot, v, n);
		scale_row(v, unit, n);
		asym_encode_row(bits, in->dim, v, n, codes + (size_t)t * row, scale + 2 * (size_t)t,
			min + 2 * (size_t)t);
	}
}

static void had_decode_avx512(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	uint32_t row = kvp_row_bytes(bits, out->dim), n = out->dim / 16;
	float unit = 1.0f / sqrtf((float)out->dim);
	uint8_t code[KVP_PLANE_DIM_MAX];
	__m512 v[N_MAX];

	if (out->dim % 16) {
		kvp_had_decode_c(bits, rot, codes, scale, min, out);
		return;
	}
	for (uint32_t t = 0; t < out->n; t++) {
		float s = load_half(scale + 2 * (size_t)t, 1.0f);
		float m = load_half(min + 2 * (size_t)t, 1.0f);

		unpack_row(bits, out->dim, codes + (size_t)t * row, code);
		affine_decode(code, &s, &m, n, v, n);
		rotate_inv(rot, v, n);
		scale_row(v, unit, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, out->dtype);
	}
}

void kvp_dsp_init_avx512(struct dsp *dsp)
{
	dsp->amax = amax_avx512;
	dsp->tq_encode = tq_encode_avx512;
	dsp->tq_decode = tq_decode_avx512;
	dsp->asym_encode = asym_encode_avx512;
	dsp->asym_decode = asym_decode_avx512;
	dsp->chan_encode = chan_encode_avx512;
	dsp->chan_decode = chan_decode_avx512;
	dsp->byte_encode = byte_encode_avx512;
	dsp->byte_decode = byte_decode_avx512;
	dsp->had_encode = had_encode_avx512;
	dsp->had_decode = had_decode_avx512;
}
