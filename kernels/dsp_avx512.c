/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of n registers of 16 floats: dims that are multiples of 16; the others fall back on C. What
 * AVX2 does likewise is in dsp_rows.h.
 */
#include "kernels/x86_avx512.h"

#define LANES 16u
#define V(op) _mm512_##op

typedef __m512 floats;
typedef __m512i words;
typedef __m256i halves;
typedef __m128i octets;

#define load_lanes  load16
#define store_lanes store16

#include "kernels/dsp_rows.h"

/* ---- what dsp_rows.h asks for ---- */

INLINE __m512i load_words(const uint8_t *p)
{
	return _mm512_loadu_si512(p);
}

INLINE __m512 load_some(const float *p, uint32_t n)
{
	return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

INLINE __m512i load_part(const uint8_t *p, uint32_t n)
{
	return _mm512_maskz_loadu_epi8(first64(n), p);
}

INLINE void store_some(uint8_t *p, __m256i h, uint32_t n)
{
	_mm256_mask_storeu_epi16(p, (__mmask16)((1u << n) - 1), h);
}

INLINE uint32_t largest_word(__m512i x)
{
	return _mm512_reduce_max_epu32(x);
}

INLINE float reduce_min(__m512 x)
{
	return _mm512_reduce_min_ps(x);
}

INLINE float reduce_max(__m512 x)
{
	return _mm512_reduce_max_ps(x);
}

INLINE __m512 magnitude(__m512 x)
{
	return _mm512_abs_ps(x);
}

INLINE __m512 div_positive(__m512 a, __m512 b)
{
	return _mm512_maskz_div_ps(_mm512_cmp_ps_mask(b, _mm512_setzero_ps(), _CMP_GT_OQ), a, b);
}

INLINE void store_bytes(uint8_t *p, __m128i q)
{
	_mm_storeu_si128((__m128i *)(void *)p, q);
}

INLINE int is_ordinary(__m512i max, uint32_t dtype)
{
	const uint16_t limit = dtype == KVP_DTYPE_F16 ? 0x6400 : 0x4480;

	return !_mm512_cmpgt_epu16_mask(max, _mm512_set1_epi16((short)(2 * limit)));
}

static __attribute__((noinline)) int load_any(
	const uint8_t *row, uint32_t dtype, float factor, __m512 *v, uint32_t n)
{
	const __m512 scale = _mm512_set1_ps(factor), max = _mm512_set1_ps(KVP_INPUT_MAX);
	__m512 zero = _mm512_setzero_ps();

	for (uint32_t i = 0; i < n; i++) {
		__m512 x = load16(row, dtype, i);
		__mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);

		zero = _mm512_add_ps(zero, _mm512_sub_ps(x, x)); /* or NaN */
		v[i] = clamp16(_mm512_maskz_mul_ps(number, x, scale), max);
	}
	return !_mm512_cmp_ps_mask(zero, zero, _CMP_UNORD_Q);
}

/* The sum tree over 32 lanes, which are two registers, but for its last four steps. */
INLINE __m512 dot(const __m512 *a, const __m512 *b, uint32_t n)
{
	__m512 lane[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };

	for (uint32_t i = 0; i < n; i++)
		lane[i & 1] = _mm512_add_ps(lane[i & 1], _mm512_mul_ps(a[i], b[i]));
	return _mm512_add_ps(lane[0], lane[1]);
}

/* Adds lanes of a to lanes of a, and of b to b: those that op picks with lo and with hi. */
#define FOLD(op, a, b, lo, hi) _mm512_add_ps(op(a, b, lo), op(a, b, hi))

/* Lane r of the result is the sum over the 16 lanes of x[r]. */
INLINE __m512 sum_trees(const __m512 *x)
{
	__m512 q[4];

	for (int i = 0; i < 4; i++) {
		__m512 a = FOLD(_mm512_shuffle_f32x4, x[i], x[i + 4], 0x44, 0xee);
		__m512 b = FOLD(_mm512_shuffle_f32x4, x[i + 8], x[i + 12], 0x44, 0xee);

		q[i] = FOLD(_mm512_shuffle_f32x4, a, b, 0x88, 0xdd);
	}
	q[0] = FOLD(_mm512_shuffle_ps, q[0], q[1], 0x44, 0xee);
	q[2] = FOLD(_mm512_shuffle_ps, q[2], q[3], 0x44, 0xee);
	return FOLD(_mm512_shuffle_ps, q[0], q[2], 0x88, 0xdd);
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

static void paley(const struct rotation *rot, int transpose, __m512 *v)
{
	uint32_t p = rot->dim / rot->order / 16;
	__m512 in[36], out[36];

	if (!p) {
		kvp_rotate_paley_avx2(rot, transpose, (float *)(void *)v);
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

INLINE void hadamard_across(__m512 *v, uint32_t n, uint32_t p)
{
	for (uint32_t h = 1; h < p; h *= 2)
		stage(v, n, h);
}

INLINE void hadamard(const struct rotation *rot, int transpose, __m512 *v, uint32_t n)
{
	if (__builtin_constant_p(n)) { /* BY_DIM()'s have no factor but 2 */
		hadamard_inside(v, n, 16);
		hadamard_across(v, n, n);
		return;
	}
	hadamard_inside(v, n, rot->dim / rot->order);
	hadamard_across(v, n, rot->dim / rot->order / 16);
	if (rot->order > 1)
		paley(rot, transpose, v);
}

INLINE void rotate_inv(const struct rotation *rot, __m512 *v, uint32_t n)
{
	if (rot->kind == KVP_ROT_HAAR)
		rotate_dense(rot, kvp_rotate_inv, v, n);
	for (uint32_t r = rot->rounds; r-- > 0;) {
		hadamard(rot, 1, v, n);
		flip(rot, r, v, n);
		if (r == 1)
			scale_row(v, rot->rescale, n);
	}
}

/* ---- tq ---- */

/* Number of boundaries <= z in the low four bits; see struct tq. */
INLINE __m512i quantize16(__m512 z, __m512i low, __m512i high)
{
	__m512 at = _mm512_fmadd_ps(
		clamp16(z, _mm512_set1_ps(3.75f)), _mm512_set1_ps(4.0f), _mm512_set1_ps(0x1.8p23f));
	__m512i step = _mm512_permutex2var_epi32(low, _mm512_castps_si512(at), high);
	__m512 bound = _mm512_castsi512_ps(_mm512_and_si512(step, _mm512_set1_epi32(~15)));

	return _mm512_mask_add_epi32(
		step, _mm512_cmp_ps_mask(bound, z, _CMP_LE_OQ), step, _mm512_set1_epi32(1));
}

INLINE void tq_encode_rows(uint32_t bits, const struct tq *tq, const struct rows_in *in,
	uint8_t *codes, uint8_t *scal, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const uint32_t batch = n * BATCH <= BATCH_REGS ? BATCH : BATCH_REGS / n;
	const __m512i low = _mm512_loadu_si512(tq->step), high = _mm512_loadu_si512(tq->step + 16);
	const __m512 cent = _mm512_loadu_ps(tq->cent);
	__m512 rotated[BATCH_REGS], sum[BATCH] = { 0 }, v[N_MAX], c[N_MAX];
	__m512i k[N_MAX];

	for (uint32_t t = 0; t < in->n; t += batch) {
		const uint32_t rows = in->n - t < batch ? in->n - t : batch;
		const __mmask16 m = (__mmask16)((1u << rows) - 1);
		__m512 norm, s;
		float inv[BATCH];

		for (uint32_t r = 0; r < rows; r++) {
			load_row(in, t + r, v, n, dtype);
			sum[r] = dot(v, v, n);
			rotate_fwd(&tq->rot, v, n);
			for (uint32_t i = 0; i < n; i++)
				rotated[r * n + i] = v[i];
		}
		norm = _mm512_sqrt_ps(sum_trees(sum));
		_mm512_storeu_ps(inv, div_positive(_mm512_set1_ps(1.0f), norm));
		for (uint32_t r = 0; r < rows; r++) {
			prefetch_row(in, t + batch + r, n, dtype);
			for (uint32_t i = 0; i < n; i++) {
				v[i] = _mm512_mul_ps(rotated[r * n + i], _mm512_set1_ps(inv[r]));
				k[i] = quantize16(v[i], low, high);
				c[i] = lookup16(k[i], cent);
			}
			sum[r] = tq->scalar == KVP_TQ_NC ? dot(c, c, n) : dot(v, c, n);
			BY_BITS(bits, store_row_codes, n, k, codes + (size_t)(t + r) * row);
		}
		s = tq_scalars(tq, norm, sum_trees(sum));
		if (tq->wide)
			_mm512_mask_storeu_ps(scal + 4 * (size_t)t, m, s);
		else
			_mm256_mask_storeu_epi16(scal + 2 * (size_t)t, m, _mm512_cvtps_ph(s, RNE));
	}
}

static void tq_encode_avx512(
	const struct tq *tq, const struct rows_in *in, uint8_t *codes, uint8_t *scal)
{
	if (in->dim % 16)
		kvp_tq_encode_c(tq, in, codes, scal);
	else
		BY_DIM(in->dim, in->dtype, tq_encode_rows, tq->bits, tq, in, codes, scal);
}

INLINE void tq_decode_rows(uint32_t bits, const struct tq *tq, const uint8_t *codes,
	const uint8_t *scal, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const __m512 cent = _mm512_loadu_ps(tq->cent);
	__m512i k[N_MAX];
	__m512 v[N_MAX];
	float s[BATCH];

	for (uint32_t t = 0; t < out->n; t++) {
		uint32_t left = out->n - t < BATCH ? out->n - t : BATCH;

		if (t % BATCH == 0 && tq->wide)
			load_wides(scal + 4 * (size_t)t, left, out->scale, s);
		else if (t % BATCH == 0)
			load_halves(scal + 2 * (size_t)t, left, out->scale, s);
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t i = 0; i < n; i++)
			v[i] = lookup16(k[i], cent);
		rotate_inv(&tq->rot, v, n);
		scale_row(v, s[t % BATCH], n);
		store_row(out, t, v, n, dtype);
	}
}

static void tq_decode_avx512(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_tq_decode_c(tq, codes, scal, out);
	else
		BY_DIM(out->dim, out->dtype, tq_decode_rows, tq->bits, tq, codes, scal, out);
}

/* ---- min/max codecs ---- */

static void asym_encode_avx512(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (in->dim % 16 || group % 16)
		kvp_asym_encode_c(bits, group, in, codes, scale, min);
	else
		BY_DIM(in->dim, in->dtype, asym_encode_rows, bits, group, in, codes, scale, min);
}

/* The values of all codes of a group, repeated to fill a register. */
INLINE __m512 affine_values(uint32_t bits, float scale, float min)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	__m512i code = _mm512_and_si512(lane, _mm512_set1_epi32((1 << bits) - 1));

	return _mm512_fmadd_ps(
		_mm512_cvtepi32_ps(code), _mm512_set1_ps(scale), _mm512_set1_ps(min));
}

INLINE void asym_decode_rows(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n), per = group / 16;
	const uint32_t groups = (n + per - 1) / per;
	float s[64], m[64];
	__m512i k[N_MAX];
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		load_halves(scale + 2 * (size_t)groups * t, groups, 1.0f, s);
		load_halves(min + 2 * (size_t)groups * t, groups, 1.0f, m);
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t g = 0; g < groups; g++) {
			__m512 value = _mm512_mul_ps(
				affine_values(bits, s[g], m[g]), _mm512_set1_ps(out->scale));

			for (uint32_t i = g * per; i < (g + 1) * per && i < n; i++)
				v[i] = lookup16(k[i], value);
		}
		store_row(out, t, v, n, dtype);
	}
}

static void asym_decode_avx512(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	if (out->dim % 16 || group % 16)
		kvp_asym_decode_c(bits, group, codes, scale, min, out);
	else
		BY_TYPE(out->dim, out->dtype, asym_decode_rows, bits, group, codes, scale, min,
			out);
}

static void chan_encode_avx512(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (in->dim % 16)
		kvp_chan_encode_c(bits, in, codes, scale, min);
	else if (may_be_ordinary(in, 2, in->dtype) && in->dim == 128)
		chan_encode_rows(bits, in, codes, scale, min, 8, in->dtype);
	else if (may_be_ordinary(in, 2, in->dtype) && in->dim == 64)
		chan_encode_rows(bits, in, codes, scale, min, 4, in->dtype);
	else
		chan_encode_any(bits, in, codes, scale, min);
}

INLINE void chan_decode_rows(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const __m512 value = affine_values(bits, 1.0f, 0.0f);
	__m512 v[N_MAX], s[N_MAX], m[N_MAX];
	__m512i k[N_MAX];

	load_halves(scale, 16 * n, 1.0f, (float *)(void *)s);
	load_halves(min, 16 * n, 1.0f, (float *)(void *)m);
	for (uint32_t t = 0; t < out->n; t++) {
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm512_fmadd_ps(lookup16(k[i], value), s[i], m[i]);
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
		BY_TYPE(out->dim, out->dtype, chan_decode_rows, bits, codes, scale, min, out);
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

static void byte_encode_avx512(
	uint32_t format, const struct rows_in *in, uint8_t *codes, uint8_t *scale)
{
	if (in->dim % 16)
		kvp_byte_encode_c(format, in, codes, scale);
	else
		BY_TYPE(in->dim, in->dtype, byte_encode_rows, format, in, codes, scale);
}

static void byte_decode_avx512(
	uint32_t format, const uint8_t *codes, const uint8_t *scale, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_byte_decode_c(format, codes, scale, out);
	else
		BY_TYPE(out->dim, out->dtype, byte_decode_rows, format, codes, scale, out);
}

static void had_encode_avx512(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (in->dim % 16)
		kvp_had_encode_c(bits, rot, in, codes, scale, min);
	else
		BY_DIM(in->dim, in->dtype, had_encode_rows, bits, rot, in, codes, scale, min);
}

INLINE void had_decode_rows(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const float unit = 1.0f / sqrtf((float)out->dim);
	float s[BATCH], m[BATCH];
	__m512i k[N_MAX];
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		const uint32_t left = out->n - t < BATCH ? out->n - t : BATCH;
		__m512 value;

		if (t % BATCH == 0) {
			load_halves(scale + 2 * (size_t)t, left, 1.0f, s);
			load_halves(min + 2 * (size_t)t, left, 1.0f, m);
		}
		value = affine_values(bits, s[t % BATCH], m[t % BATCH]);
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t i = 0; i < n; i++)
			v[i] = lookup16(k[i], value);
		rotate_inv(rot, v, n);
		scale_row(v, unit, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void had_decode_avx512(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_had_decode_c(bits, rot, codes, scale, min, out);
	else
		BY_DIM(out->dim, out->dtype, had_decode_rows, bits, rot, codes, scale, min, out);
}

static void rotate_avx512(const struct rotation *rot, int inverse, float *x)
{
	if (rot->kind == KVP_ROT_HAAR || rot->dim % 16)
		kvp_rotate_c(rot, inverse, x);
	else
		rotate_any(rot, inverse, x);
}

void kvp_dsp_init_avx512(struct dsp *dsp)
{
	dsp->amax = amax;
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
	dsp->rotate = rotate_avx512;
}
