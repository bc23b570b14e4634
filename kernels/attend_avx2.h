/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of attention in AVX2 share: floats and integers. Private to them. */
#ifndef KVP_KERNELS_ATTEND_AVX2_H
#define KVP_KERNELS_ATTEND_AVX2_H

#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx2.h"

#define TILE 4u /* tokens handled together */

/* attend_words_avx2.c: codes as integers. Return 0 where the geometry is none of theirs. */
int kvp_score_words_avx2(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride);
int kvp_accumulate_words_avx2(const struct kvp_rows *r, const struct kvp_weights *w, float *acc);
kvp_query_fn kvp_query_words_avx2;

/* Fetches a share of the rows that are read next; see attend_avx512.h. */
INLINE void fetch_next(const struct kvp_rows *r, uint32_t t)
{
	uint32_t quarter = r->next_n / 4, at = t / TILE;
	const uint8_t *row = r->next + (ptrdiff_t)at * r->next_stride;

	if (at >= quarter)
		return;
	for (uint32_t b = 0; b < r->next_bytes; b += 64) {
		const char *p = (const char *)row + b;

		for (uint32_t j = 0; j < 4; j++, p += (ptrdiff_t)quarter * r->next_stride)
			_mm_prefetch(p, _MM_HINT_T0);
	}
}

INLINE float sum8(__m256 x)
{
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

#endif
