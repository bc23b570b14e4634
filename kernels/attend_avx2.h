/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of attention in AVX2 share. Private to them. */
#ifndef KVP_KERNELS_ATTEND_AVX2_H
#define KVP_KERNELS_ATTEND_AVX2_H

#include "kernels/attend_fetch.h"
#include "kernels/attend_unroll.h"
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx2.h"

/* Whether a function is compiled for this dim alone: the usual one, whose loops are unrolled. */
#define fixed(dim) (__builtin_constant_p(dim) && (dim) == 128)

/* attend_direct_avx2.c: native and fp8 rows, as floats. Return 0 where the geometry is none of
 * theirs. */
int kvp_score_direct_avx2(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride);
int kvp_accumulate_direct_avx2(const struct kvp_rows *r, const struct kvp_weights *w, float *acc);

/* attend_keys_avx2.c: keys that are codes, as floats. Returns 0 where the geometry is not its. */
int kvp_score_codes_avx2(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride);

/* attend_words_avx2.c: values that are codes, as words. Returns 0 where the geometry is not its. */
int kvp_accumulate_words_avx2(const struct kvp_rows *r, const struct kvp_weights *w, float *acc);

INLINE float largest(__m256 x)
{
	__m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	m = _mm_max_ps(m, _mm_movehl_ps(m, m));
	return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

INLINE float sum8(__m256 x)
{
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

/* Loaded once: gcc would load it with every instruction that it is an operand of. */
#define once(x) __asm__("" : "+x"(x))

INLINE uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

/* The first n lanes, all of them if n is more: all ones. */
INLINE __m256i first8(uint32_t n)
{
	return _mm256_cmpgt_epi32(
		_mm256_set1_epi32((int)least(n, 8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/*
 * Of what is fetched while a block of values is worked on, strip of channels by strip: parts that
 * have their turn every FETCH_ROWS rows of a strip, and turns of n rows.
 */
#define FETCH_ROWS 16u
INLINE uint32_t fetch_share(uint32_t strips)
{
	const uint32_t all = FETCH_ROWS / TILE * FETCH_PARTS;

	return strips < all ? all / strips : 1;
}

INLINE uint32_t fetch_turns(uint32_t n)
{
	return (n + FETCH_ROWS - 1) / FETCH_ROWS;
}

/* Floats are written in whole registers only as far as n. */
INLINE void load_halves(const uint8_t *p, uint32_t n, float factor, float *f)
{
	uint32_t i = 0;

	for (; i + 8 <= n; i += 8)
		_mm256_storeu_ps(f + i, clamp8(_mm256_mul_ps(load_half8(load128(p + 2 * (size_t)i)),
						       _mm256_set1_ps(factor)),
						KVP_F32_MAX));
	for (; i < n; i++)
		f[i] = load_half(p + 2 * (size_t)i, factor);
}

/*
 * Scores of a tile: two rows of four queries as [query][row], or four rows of two queries or of
 * one, which is in both halves. nq of the m queries are wanted.
 */
INLINE void store_tile(__m256 x, uint32_t m, uint32_t nq, float *s, size_t s_stride)
{
	__m128 a = _mm256_castps256_ps128(x), b = _mm256_extractf128_ps(x, 1);

	if (m < 4) {
		_mm_storeu_ps(s, a);
		if (m == 2)
			_mm_storeu_ps(s + s_stride, b);
		return;
	}
	_mm_storel_pi((__m64 *)(void *)s, a);
	_mm_storeh_pi((__m64 *)(void *)(s + s_stride), a);
	_mm_storel_pi((__m64 *)(void *)(s + 2 * s_stride), b);
	if (nq == 4)
		_mm_storeh_pi((__m64 *)(void *)(s + 3 * s_stride), b);
}

/* What belongs to rows, where store_tile() has it. */
INLINE __m256 spread_rows(const float *of_row, uint32_t m)
{
	double two;

	if (m < 4)
		return _mm256_broadcast_ps((const __m128 *)(const void *)of_row);
	memcpy(&two, of_row, sizeof two);
	return _mm256_castpd_ps(_mm256_set1_pd(two));
}

/* In each half the sums of the four lanes of x[0] .. x[3]. */
INLINE __m256 sum_halves(const __m256 *x)
{
	__m256 a = _mm256_add_ps(_mm256_unpacklo_ps(x[0], x[1]), _mm256_unpackhi_ps(x[0], x[1]));
	__m256 b = _mm256_add_ps(_mm256_unpacklo_ps(x[2], x[3]), _mm256_unpackhi_ps(x[2], x[3]));
	__m256d c = _mm256_castps_pd(a), d = _mm256_castps_pd(b);

	return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(c, d)),
		_mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
}

#endif
