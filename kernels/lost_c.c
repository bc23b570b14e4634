/* SPDX-License-Identifier: Apache-2.0 */
/* What rows lost, in reference C, written so that compilers make vector code of it. */
#include "kernels/lost.h"

#define HALF   8u /* elements at a time: of twice as many compilers make no vector code */
#define INLINE static inline __attribute__((always_inline))

/*
 * Numbers from HALF elements, without a branch: finite ones, and 0 instead of others. keep: all ones where
 * the element counts.
 */
INLINE void load_halves(const uint8_t *at, uint32_t *keep, float *out)
{
	uint16_t half[HALF];
	uint32_t bits[HALF];

	memcpy(half, at, sizeof(half));
	for (uint32_t i = 0; i < HALF; i++)
		bits[i] = half[i];
	for (uint32_t i = 0; i < HALF; i++)
		keep[i] &= (uint32_t)((int32_t)((bits[i] & 0x7c00u) - 0x7c00u) >> 31);
	for (uint32_t i = 0; i < HALF; i++)
		bits[i] = ((bits[i] & 0x8000u) << 16 | (bits[i] & 0x7fffu) << 13) & keep[i];
	memcpy(out, bits, sizeof(bits));
	/* The exponent's bias is 112 less; subnormal ones come out right as well. */
	for (uint32_t i = 0; i < HALF; i++)
		out[i] *= 0x1p112f;
}

INLINE void load(uint32_t dtype, const uint8_t *at, uint32_t *keep, float *out)
{
	uint16_t half[HALF];
	uint32_t bits[HALF];

	if (dtype == KVP_DTYPE_F16) {
		load_halves(at, keep, out);
		return;
	}
	if (dtype == KVP_DTYPE_F32) {
		memcpy(bits, at, sizeof(bits));
	} else {
		memcpy(half, at, sizeof(half));
		for (uint32_t i = 0; i < HALF; i++)
			bits[i] = (uint32_t)half[i] << 16;
	}
	for (uint32_t i = 0; i < HALF; i++)
		keep[i] &= (uint32_t)((int32_t)((bits[i] & 0x7f800000u) - 0x7f800000u) >> 31);
	for (uint32_t i = 0; i < HALF; i++)
		bits[i] &= keep[i];
	memcpy(out, bits, sizeof(bits));
}

INLINE void add_half(uint32_t dtype, const uint8_t *x, const uint8_t *y, float *restrict lost,
	float *restrict all)
{
	uint32_t keep[HALF];
	float a[HALF], b[HALF];

	memset(keep, 0xff, sizeof(keep));
	load(dtype, x, keep, a);
	load(dtype, y, keep, b);
	for (uint32_t i = 0; i < HALF; i++)
		all[i] += a[i] * a[i];
	for (uint32_t i = 0; i < HALF; i++)
		b[i] -= a[i];
	for (uint32_t i = 0; i < HALF; i++)
		lost[i] += b[i] * b[i];
}

INLINE void add_lanes(uint32_t dtype, const uint8_t *x, const uint8_t *y, struct lost_sums *s)
{
	const size_t half = HALF * (size_t)dtype_bytes(dtype);

	add_half(dtype, x, y, s->lost, s->all);
	add_half(dtype, x + half, y + half, s->lost + HALF, s->all + HALF);
}

void kvp_lost_c(const struct rows_in *x, const uint8_t *y, ptrdiff_t stride, double *ret_lost,
	double *ret_all)
{
	lost_rows(x, y, stride, ret_lost, ret_all);
}
