/* SPDX-License-Identifier: Apache-2.0 */
/* What rows lost, with 16 floats to a register: the values of lost_c.c. */
#include "kernels/lost.h"
#include "kernels/x86_avx512.h"

#define NOT_FINITE 0x99 /* of vfpclass: quiet and signalling NaN, infinities */

INLINE void add_lanes(uint32_t dtype, const uint8_t *x, const uint8_t *y, struct lost_sums *s)
{
	__m512 a = load16(x, dtype, 0), b = load16(y, dtype, 0), d;
	__mmask16 keep = (__mmask16)~_mm512_fpclass_ps_mask(a, NOT_FINITE);

	a = _mm512_maskz_mov_ps(keep, a);
	b = _mm512_maskz_mov_ps(keep & (__mmask16)~_mm512_fpclass_ps_mask(b, NOT_FINITE), b);
	d = _mm512_sub_ps(b, a);
	_mm512_store_ps(s->all, _mm512_add_ps(_mm512_load_ps(s->all), _mm512_mul_ps(a, a)));
	_mm512_store_ps(s->lost, _mm512_add_ps(_mm512_load_ps(s->lost), _mm512_mul_ps(d, d)));
}

void kvp_lost_slots_avx512(struct dsp *dsp)
{
	dsp->lost = lost_rows;
}
