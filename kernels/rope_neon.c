/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE with 4 floats to a register: the bytes of rope.c. */
#include "kernels/aarch64_neon.h"
#include "kernels/rope.h"

#define LANES 4u

INLINE float32x4_t number(float32x4_t x)
{
	return clamp4(number4(x), ROPE_INPUT_MAX);
}

#define get         vld1q_f32
#define put         vst1q_f32
#define lanes       float32x4_t
#define load_lanes  load4
#define store_lanes store4
#include "kernels/rope_rows.h"

void kvp_rope_slots_neon(struct dsp *dsp)
{
	dsp->rope_turn = turn;
	dsp->rope_row = turn_row;
}
