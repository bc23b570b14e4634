/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE with 8 floats to a register: the bytes of rope.c. */
#include "kernels/rope.h"
#include "kernels/x86_avx2.h"

#define LANES 8u

INLINE __m256 number(__m256 x)
{
	return clamp8(_mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q)), ROPE_INPUT_MAX);
}

INLINE __m256 get(const float *x)
{
	return _mm256_loadu_ps(x);
}

INLINE void put(float *x, __m256 v)
{
	_mm256_storeu_ps(x, v);
}

#define lanes       __m256
#define load_lanes  load8
#define store_lanes store8
#include "kernels/rope_rows.h"

void kvp_rope_slots_avx2(struct dsp *dsp)
{
	dsp->rope_turn = turn;
	dsp->rope_row = turn_row;
}
