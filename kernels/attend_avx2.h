/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of attention in AVX2 share: floats and integers. Private to them. */
#ifndef KVP_KERNELS_ATTEND_AVX2_H
#define KVP_KERNELS_ATTEND_AVX2_H

#include "kernels/attend_fetch.h"
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx2.h"

/* attend_words_avx2.c: codes as integers. Return 0 where the geometry is none of theirs. */
int kvp_score_words_avx2(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride);
int kvp_accumulate_words_avx2(const struct kvp_rows *r, const struct kvp_weights *w, float *acc);
kvp_query_fn kvp_query_words_avx2;

INLINE float sum8(__m256 x)
{
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

#endif
