/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of n registers of 8 floats; every dim is a multiple of 8. Dense rotations are reference C.
 * What AVX-512 does likewise is in dsp_rows.h.
 */
#include "kernels/x86_avx2.h"

#define LANES 8u
#define V(op) _mm256_##op

typedef __m256 floats;
typedef __m256i words, octets; /* these a dword each */
typedef __m128i halves;

#define load_lanes  load8
#define store_lanes store8

#include "kernels/dsp_rows.h"

/* ---- what dsp_rows.h asks for ---- */

INLINE __m256i load_words(const uint8_t *p)
{
	return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

INLINE __m256 load_some(const float *p, uint32_t n)
{
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

	return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane));
}

/* Rows end with a register, or with half of one. */
INLINE __m256i load_part(const uint8_t *p, uint32_t n)
{
	return n >= 32 ? load_words(p) : _mm256_zextsi128_si256(load128(p));
}

INLINE void store_some(uint8_t *p, __m128i h, uint32_t n)
{
	memcpy(p, &h, 2 * (size_t)n);
}

INLINE uint32_t largest_word(__m256i x)
{
	uint32_t lane[8], m = 0;

	_mm256_storeu_si256((__m256i *)(void *)lane, x);
	for (int i = 0; i < 8; i++)
		m = lane[i] > m ? lane[i] : m;
	return m;
}

INLINE __m256 magnitude(__m256 x)
{
	return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

INLINE __m256 div_positive(__m256 a, __m256 b)
{
	return _mm256_and_ps(
		_mm256_div_ps(a, b), _mm256_cmp_ps(b, _mm256_setzero_ps(), _CMP_GT_OQ));
}

INLINE void store_bytes(uint8_t *p, __m256i q)
{
	store_codes(p, 0, q);
}

INLINE int is_ordinary(__m256i max, uint32_t dtype)
{
	const uint16_t limit = dtype == KVP_DTYPE_F16 ? 0x6400 : 0x4480;

	max = _mm256_subs_epu16(max, _mm256_set1_epi16((short)(2 * limit)));
	return _mm256_testz_si256(max, max);
}

static __attribute__((noinline)) int load_any(
	const uint8_t *row, uint32_t dtype, float factor, __m256 *v, uint32_t n)
{
	const __m256 scale = _mm256_set1_ps(factor);
	__m256 zero = _mm256_setzero_ps();

	for (uint32_t i = 0; i < n; i++) {
		__m256 x = load8(row, dtype, i);

		zero = _mm256_add_ps(zero, _mm256_sub_ps(x, x)); /* or NaN */
		x = _mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q));
		v[i] = clamp8(_mm256_mul_ps(x, scale), KVP_INPUT_MAX);
	}
	return !_mm256_movemask_ps(_mm256_cmp_ps(zero, zero, _CMP_UNORD_Q));
}

/* The sum tree over 32 lanes, which are four registers, but for its last three steps. */
INLINE __m256 dot(const __m256 *a, const __m256 *b, uint32_t n)
{
	__m256 lane[4] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
		_mm256_setzero_ps() };

	for (uint32_t i = 0; i < n; i++)
		lane[i & 3] = _mm256_add_ps(lane[i & 3], _mm256_mul_ps(a[i], b[i]));
	return _mm256_add_ps(_mm256_add_ps(lane[0], lane[2]), _mm256_add_ps(lane[1], lane[3]));
}

/* Adds lanes of a to lanes of a, and of b to b: those that op picks with lo and with hi. */
#define FOLD(op, a, b, lo, hi) _mm256_add_ps(op(a, b, lo), op(a, b, hi))

/* Lane r of the result is the sum over the eight lanes of x[r]. */
INLINE __m256 sum_trees(const __m256 *x)
{
	__m256 q[4];

	for (int i = 0; i < 4; i++)
		q[i] = FOLD(_mm256_permute2f128_ps, x[i], x[i + 4], 0x20, 0x31);
	q[0] = FOLD(_mm256_shuffle_ps, q[0], q[1], 0x44, 0xee);
	q[2] = FOLD(_mm256_shuffle_ps, q[2], q[3], 0x44, 0xee);
	return FOLD(_mm256_shuffle_ps, q[0], q[2], 0x88, 0xdd);
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

/* Stages h and 2 h while four registers are at hand: the file does not hold a row. */
INLINE void two_stages(__m256 *v, uint32_t n, uint32_t h)
{
	for (uint32_t i = 0; i < n; i += 4 * h) {
		for (uint32_t j = i; j < i + h; j++) {
			butterfly(&v[j], &v[j + h]);
			butterfly(&v[j + 2 * h], &v[j + 3 * h]);
			butterfly(&v[j], &v[j + 2 * h]);
			butterfly(&v[j + h], &v[j + 3 * h]);
		}
	}
}

INLINE void hadamard(const struct rotation *rot, int transpose, __m256 *v, uint32_t n)
{
	if (__builtin_constant_p(n)) { /* BY_DIM()'s have no factor but 2 */
		hadamard_inside(v, n, 8);
		two_stages(v, n, 1);
		if (n == 16)
			two_stages(v, n, 4);
		else
			stage(v, n, 4);
		return;
	}
	hadamard_inside(v, n, rot->dim / rot->order);
	for (uint32_t h = 1; h < rot->dim / rot->order / 8; h *= 2)
		stage(v, n, h);
	if (rot->order > 1)
		kvp_rotate_paley_avx2(rot, transpose, (float *)(void *)v);
}

INLINE void rotate_inv(const struct rotation *rot, __m256 *v, uint32_t n)
{
	if (rot->kind == KVP_ROT_HAAR) {
		rotate_dense(rot, kvp_rotate_inv, v, n);
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

/*
 * The positive boundaries <= |z| in the low three bits, one less if |z| is one and z negative: its
 * code is the mirror image. See struct tq.
 */
INLINE __m256i quantize8(__m256 abs, __m256i negative, __m256i step)
{
	__m256i at = _mm256_cvttps_epi32(
		_mm256_min_ps(_mm256_mul_ps(abs, _mm256_set1_ps(3.5f)), _mm256_set1_ps(7.0f)));
	__m256i found = _mm256_permutevar8x32_epi32(step, at);
	__m256i below = _mm256_or_si256(found, _mm256_set1_epi32(15));
	__m256i bits = _mm256_add_epi32(_mm256_castps_si256(abs), negative);

	return _mm256_sub_epi32(found, _mm256_cmpgt_epi32(bits, below));
}

INLINE void tq_encode_rows(uint32_t bits, const struct tq *tq, const struct rows_in *in,
	uint8_t *codes, uint8_t *scal, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 8 * n), half = 1u << (bits - 1);
	const uint32_t batch = n * BATCH <= BATCH_REGS ? BATCH : BATCH_REGS / n;
	const __m256i step = _mm256_loadu_si256((const __m256i *)(const void *)tq->step_abs);
	const __m256 cent = _mm256_loadu_ps(tq->cent + half);
	const __m256 zero = _mm256_setzero_ps();
	__m256 rotated[BATCH_REGS], sum[BATCH] = { 0 }, v[N_MAX], c[N_MAX];
	__m256i k[N_MAX];

	for (uint32_t t = 0; t < in->n; t += batch) {
		const uint32_t rows = in->n - t < batch ? in->n - t : batch;
		__m256 norm, s;
		float inv[BATCH];
		__m128i s16;

		for (uint32_t r = 0; r < rows; r++) {
			__m256 *x = rotated + (size_t)r * n;

			load_row(in, t + r, x, n, dtype);
			sum[r] = dot(x, x, n);
			rotate_fwd(&tq->rot, x, n);
		}
		norm = _mm256_sqrt_ps(sum_trees(sum));
		_mm256_storeu_ps(inv, div_positive(_mm256_set1_ps(1.0f), norm));
		for (uint32_t r = 0; r < rows; r++) {
			prefetch_row(in, t + batch + r, n, dtype);
			/* z c is |z| |c|: both have the same sign. */
			for (uint32_t i = 0; i < n; i++) {
				__m256 z =
					_mm256_mul_ps(rotated[r * n + i], _mm256_set1_ps(inv[r]));
				__m256i negative =
					_mm256_castps_si256(_mm256_cmp_ps(z, zero, _CMP_LT_OQ));
				__m256i at;

				v[i] = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), z);
				at = quantize8(v[i], negative, step);
				c[i] = _mm256_permutevar8x32_ps(cent, at);
				at = _mm256_or_si256(at, _mm256_set1_epi32((int)half));
				k[i] = _mm256_and_si256(_mm256_xor_si256(at, negative),
					_mm256_set1_epi32((int)(2 * half - 1)));
			}
			sum[r] = tq->scalar == KVP_TQ_NC ? dot(c, c, n) : dot(v, c, n);
			BY_BITS(bits, store_row_codes, n, k, codes + (size_t)(t + r) * row);
		}
		s = tq_scalars(tq, norm, sum_trees(sum));
		s16 = _mm256_cvtps_ph(s, RNE);
		if (tq->wide)
			memcpy(scal + 4 * (size_t)t, &s, 4 * (size_t)rows);
		else
			memcpy(scal + 2 * (size_t)t, &s16, 2 * (size_t)rows);
	}
}

static void tq_encode_avx2(
	const struct tq *tq, const struct rows_in *in, uint8_t *codes, uint8_t *scal)
{
	BY_DIM(in->dim, in->dtype, tq_encode_rows, tq->bits, tq, in, codes, scal);
}

INLINE void load_centroids(
	uint32_t bits, uint32_t n, const uint8_t *codes, const float *cent, __m256 *v)
{
	const __m256 low = _mm256_loadu_ps(cent), high = _mm256_loadu_ps(cent + 8);
	__m256i k[N_MAX];

	load_row_codes(bits, n, codes, k);
	for (uint32_t i = 0; i < n; i++)
		v[i] = bits == 4 ? lookup16(low, high, k[i]) : _mm256_permutevar8x32_ps(low, k[i]);
}

INLINE void tq_decode_rows(uint32_t bits, const struct tq *tq, const uint8_t *codes,
	const uint8_t *scal, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 8 * n);
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		float s = tq->wide ? load_scalar_wide(scal + 4 * (size_t)t, out->scale)
				   : load_half(scal + 2 * (size_t)t, out->scale);

		BY_BITS(bits, load_centroids, n, codes + (size_t)t * row, tq->cent, v);
		rotate_inv(&tq->rot, v, n);
		scale_row(v, s, n);
		store_row(out, t, v, n, dtype);
	}
}

static void tq_decode_avx2(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out)
{
	BY_DIM(out->dim, out->dtype, tq_decode_rows, tq->bits, tq, codes, scal, out);
}

/* ---- min/max codecs ---- */

static void asym_encode_avx2(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	BY_DIM(in->dim, in->dtype, asym_encode_rows, bits, group, in, codes, scale, min);
}

INLINE __m256 code_values(uint32_t bits, __m256i k)
{
	return _mm256_cvtepi32_ps(_mm256_and_si256(k, _mm256_set1_epi32((1 << bits) - 1)));
}

INLINE void affine_decode(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, uint32_t per, __m256 *v, uint32_t n)
{
	__m256 s = _mm256_setzero_ps(), m = s;
	__m256i k[N_MAX];

	BY_BITS(bits, load_row_codes, n, codes, k);

	for (uint32_t i = 0; i < n; i++) {
		if (i % per == 0) {
			s = _mm256_set1_ps(load_half(scale + 2 * (size_t)(i / per), 1.0f));
			m = _mm256_set1_ps(load_half(min + 2 * (size_t)(i / per), 1.0f));
		}
		v[i] = _mm256_fmadd_ps(code_values(bits, k[i]), s, m);
	}
}

INLINE void asym_decode_rows(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 8 * n);
	size_t groups = (8 * n + group - 1) / group;
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		affine_decode(bits, codes + (size_t)t * row, scale + 2 * groups * t,
			min + 2 * groups * t, group / 8, v, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void asym_decode_avx2(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	BY_TYPE(out->dim, out->dtype, asym_decode_rows, bits, group, codes, scale, min, out);
}

static void chan_encode_avx2(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (may_be_ordinary(in, 2, in->dtype) && in->dim == 128)
		chan_encode_rows(bits, in, codes, scale, min, 16, in->dtype);
	else if (may_be_ordinary(in, 2, in->dtype) && in->dim == 64)
		chan_encode_rows(bits, in, codes, scale, min, 8, in->dtype);
	else
		chan_encode_any(bits, in, codes, scale, min);
}

INLINE void chan_decode_rows(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 8 * n);
	__m256 v[N_MAX], s[N_MAX], m[N_MAX];
	__m256i k[N_MAX];

	for (uint32_t i = 0; i < n; i++) {
		s[i] = load_half8(load128(scale + 16 * (size_t)i));
		m[i] = load_half8(load128(min + 16 * (size_t)i));
	}
	for (uint32_t t = 0; t < out->n; t++) {
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm256_fmadd_ps(code_values(bits, k[i]), s[i], m[i]);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void chan_decode_avx2(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	if (out->dim == 128 && out->dtype == KVP_DTYPE_F16)
		BY_BITS(bits, chan_decode_rows, codes, scale, min, out, 16, KVP_DTYPE_F16);
	else if (out->dim == 64 && out->dtype == KVP_DTYPE_F16)
		BY_BITS(bits, chan_decode_rows, codes, scale, min, out, 8, KVP_DTYPE_F16);
	else
		BY_DIM(out->dim, out->dtype, chan_decode_rows, bits, codes, scale, min, out);
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

static void byte_encode_avx2(
	uint32_t format, const struct rows_in *in, uint8_t *codes, uint8_t *scale)
{
	BY_DIM(in->dim, in->dtype, byte_encode_rows, format, in, codes, scale);
}

static void byte_decode_avx2(
	uint32_t format, const uint8_t *codes, const uint8_t *scale, const struct rows_out *out)
{
	BY_DIM(out->dim, out->dtype, byte_decode_rows, format, codes, scale, out);
}

static void had_encode_avx2(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	BY_DIM(in->dim, in->dtype, had_encode_rows, bits, rot, in, codes, scale, min);
}

INLINE void had_decode_rows(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 8 * n);
	const float unit = 1.0f / sqrtf((float)out->dim);
	__m256 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		affine_decode(bits, codes + (size_t)t * row, scale + 2 * (size_t)t,
			min + 2 * (size_t)t, n, v, n);
		rotate_inv(rot, v, n);
		scale_row(v, unit, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void had_decode_avx2(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	BY_DIM(out->dim, out->dtype, had_decode_rows, bits, rot, codes, scale, min, out);
}

static void rotate_avx2(const struct rotation *rot, int inverse, float *x)
{
	if (rot->kind == KVP_ROT_HAAR || rot->dim % 8)
		kvp_rotate_c(rot, inverse, x);
	else
		rotate_any(rot, inverse, x);
}

void kvp_dsp_init_avx2(struct dsp *dsp)
{
	dsp->amax = amax;
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
	dsp->rotate = rotate_avx2;
}
