/* SPDX-License-Identifier: Apache-2.0 */
/* What rows lost, with 8 floats to a register: the values of lost_c.c. */
#include "kernels/lost.h"
#include "kernels/x86_avx2.h"

INLINE __m256 finite8(__m256 v)
{
	const __m256 huge = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));

	return _mm256_cmp_ps(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), v), huge, _CMP_LT_OQ);
}

INLINE void add_lanes(uint32_t dtype, const uint8_t *x, const uint8_t *y, struct lost_sums *s)
{
	for (uint32_t i = 0; i < LOST_LANES / 8; i++) {
		__m256 a = load8(x, dtype, i), b = load8(y, dtype, i), keep = finite8(a), d;

		a = _mm256_and_ps(a, keep);
		b = _mm256_and_ps(b, _mm256_and_ps(finite8(b), keep));
		d = _mm256_sub_ps(b, a);
		_mm256_store_ps(s->all + 8 * i,
			_mm256_add_ps(_mm256_load_ps(s->all + 8 * i), _mm256_mul_ps(a, a)));
		_mm256_store_ps(s->lost + 8 * i,
			_mm256_add_ps(_mm256_load_ps(s->lost + 8 * i), _mm256_mul_ps(d, d)));
	}
}

void kvp_lost_slots_avx2(struct dsp *dsp)
{
	dsp->lost = lost_rows;
}
