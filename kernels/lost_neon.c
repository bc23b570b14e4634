/* SPDX-License-Identifier: Apache-2.0 */
/* What rows lost, with 4 floats to a register: the values of lost_c.c. */
#include "kernels/aarch64_neon.h"
#include "kernels/lost.h"

INLINE void add_lanes(uint32_t dtype, const uint8_t *x, const uint8_t *y, struct lost_sums *s)
{
	for (uint32_t i = 0; i < LOST_LANES / 4; i++) {
		float32x4_t a = load4(x, dtype, i), b = load4(y, dtype, i), d;
		const uint32x4_t keep = finite4(a);

		a = bits_and(a, keep);
		b = bits_and(b, vandq_u32(finite4(b), keep));
		d = vsubq_f32(b, a);
		vst1q_f32(s->all + 4 * i, vaddq_f32(vld1q_f32(s->all + 4 * i), vmulq_f32(a, a)));
		vst1q_f32(s->lost + 4 * i, vaddq_f32(vld1q_f32(s->lost + 4 * i), vmulq_f32(d, d)));
	}
}

void kvp_lost_slots_neon(struct dsp *dsp)
{
	dsp->lost = lost_rows;
}
