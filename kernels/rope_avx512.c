/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE with 16 floats to a register: the bytes of rope.c. */
#include "kernels/rope.h"
#include "kernels/x86_avx512.h"

#define LANES 16u

INLINE __m512 number(__m512 x)
{
	x = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
	return clamp16(x, _mm512_set1_ps(ROPE_INPUT_MAX));
}

INLINE __m512 get(const float *x)
{
	return _mm512_loadu_ps(x);
}

INLINE void put(float *x, __m512 v)
{
	_mm512_storeu_ps(x, v);
}

#define lanes       __m512
#define load_lanes  load16
#define store_lanes store16
#include "kernels/rope_rows.h"

void kvp_rope_slots_avx512(struct dsp *dsp)
{
	dsp->rope_turn = turn;
	dsp->rope_row = turn_row;
}
