/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of attention in AVX-512 share: floats and integers. Private to them. */
#ifndef KVP_KERNELS_ATTEND_AVX512_H
#define KVP_KERNELS_ATTEND_AVX512_H

#include "kernels/attend_fetch.h"
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx512.h"

#define DIM_MAX KVP_PLANE_DIM_MAX

/* attend_vnni.c: codes as integers. Return 0 where the geometry is none of theirs. */
int kvp_score_words(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride);
int kvp_accumulate_words(const struct kvp_rows *r, const struct kvp_weights *w, float *acc);
kvp_query_fn kvp_query_words_avx512;

/* attend_avx512.c: any rows, in fp32. */
kvp_score_fn kvp_score_float_avx512;
kvp_accumulate_fn kvp_accumulate_float_avx512;

INLINE __mmask16 first16(uint32_t n)
{
	return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/*
 * sum + the products of two words of each lane of x with the same two of all lanes. Of the
 * intrinsic gcc 12 makes copies of all sums of a loop.
 */
INLINE __m512i dot_pair(__m512i sum, __m512i x, const int16_t *pair)
{
	__asm__("vpdpwssd %2%{1to16%}, %1, %0"
		: "+v"(sum)
		: "v"(x), "m"(*(const int16_t(*)[2])pair));
	return sum;
}

/* Rows t .. t + 3; beyond the last one the last is repeated, and its result not stored. */
INLINE void tile_rows(const struct kvp_rows *r, uint32_t t, const uint8_t **row)
{
	for (uint32_t j = 0; j < TILE; j++)
		row[j] = r->codes + (ptrdiff_t)(t + j < r->n ? t + j : r->n - 1) * r->stride;
}

/* Per 128-bit lane: the four sums of v[0], v[1], v[2], v[3] in that lane. */
INLINE __m512 sum_lanes(const __m512 *v)
{
	__m512 a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
	__m512 b = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));

	return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

/* Lane k: the sum of the four lanes of c[k]. With sum_lanes(): [token][query]. */
INLINE __m512 sum_tokens(const __m512 *c)
{
	__m512 e = _mm512_add_ps(
		_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
	__m512 f = _mm512_add_ps(
		_mm512_shuffle_f32x4(c[2], c[3], 0x88), _mm512_shuffle_f32x4(c[2], c[3], 0xdd));

	return _mm512_add_ps(_mm512_shuffle_f32x4(e, f, 0x88), _mm512_shuffle_f32x4(e, f, 0xdd));
}

/* Lane i of f to the four lanes of token i. */
INLINE __m512 spread_tokens(__m512 f)
{
	return _mm512_permutexvar_ps(
		_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), f);
}

/* [token][query] to rows of s; nt and nq of them are wanted. */
INLINE void store_tile(__m512 x, float *s, size_t s_stride, uint32_t nt, uint32_t nq)
{
	const __m512i turn =
		_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	__m128 row[TILE];
	__mmask8 m = (__mmask8)((1u << nt) - 1);

	x = _mm512_permutexvar_ps(turn, x);
	row[0] = _mm512_castps512_ps128(x);
	row[1] = _mm512_extractf32x4_ps(x, 1);
	row[2] = _mm512_extractf32x4_ps(x, 2);
	row[3] = _mm512_extractf32x4_ps(x, 3);
	for (uint32_t i = 0; i < nq; i++)
		_mm_mask_storeu_ps(s + i * s_stride, m, row[i]);
}

INLINE uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

#endif
