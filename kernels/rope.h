/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RoPE of one token, written once and compiled with each instruction set, for which compilers turn these
 * loops into vectors. Only exactly rounded operations, in this order: so all of them give the same bits.
 */
#ifndef KVP_KERNELS_ROPE_H
#define KVP_KERNELS_ROPE_H

#include "kernels/dsp.h"
#include "kernels/kvp_rope.h"
#include "kernels/numeric.h"

/* What channel j of a row becomes: self[j] times itself and other[j] times the other of its pair. */
struct rope_turn {
	uint32_t pairing;
	uint32_t dim; /* channels that turn */
	float self[KVP_PLANE_DIM_MAX];
	float other[KVP_PLANE_DIM_MAX];
};

#define ROPE_INPUT_MAX 0x1p126f

/* pi/2 in three parts, of which the first two have 26 bits: times an integer below 2^27 they are exact. */
#define ROPE_QUARTER_1 0x1.921fb5p+0
#define ROPE_QUARTER_2 0x1.110b46p-26
#define ROPE_QUARTER_3 0x1.1a62633145c07p-54
#define ROPE_QUARTERS  0x1.45f306dc9c883p-1 /* 2/pi */
/* Added and subtracted, rounds to an integer, whose low bits are the sum's. */
#define ROPE_ROUND 0x1.8p52

/* Taylor's series, which are as exact as doubles up to pi/4. */
static inline double rope_sin(double r)
{
	const double z = r * r;
	double p = 1.0 / 355687428096000.0;

	p = p * z - 1.0 / 1307674368000.0;
	p = p * z + 1.0 / 6227020800.0;
	p = p * z - 1.0 / 39916800.0;
	p = p * z + 1.0 / 362880.0;
	p = p * z - 1.0 / 5040.0;
	p = p * z + 1.0 / 120.0;
	p = p * z - 1.0 / 6.0;
	return r + r * z * p;
}

static inline double rope_cos(double r)
{
	const double z = r * r;
	double p = 1.0 / 20922789888000.0;

	p = p * z - 1.0 / 87178291200.0;
	p = p * z + 1.0 / 479001600.0;
	p = p * z - 1.0 / 3628800.0;
	p = p * z + 1.0 / 40320.0;
	p = p * z - 1.0 / 720.0;
	p = p * z + 1.0 / 24.0;
	return 1.0 - z * (0.5 - z * p);
}

/* cos and sin of position * freq, times gain. */
static inline void rope_angles(const double *freq, uint32_t n, double position, double gain,
	float *restrict c, float *restrict s)
{
	for (uint32_t i = 0; i < n; i++) {
		const double angle = position * freq[i], sum = angle * ROPE_QUARTERS + ROPE_ROUND;
		const double k = sum - ROPE_ROUND;
		const double r =
			((angle - k * ROPE_QUARTER_1) - k * ROPE_QUARTER_2) - k * ROPE_QUARTER_3;
		const double sine = rope_sin(r), cosine = rope_cos(r);
		double x, y;
		uint64_t q;

		memcpy(&q, &sum, sizeof q);
		x = q & 1u ? sine : cosine;
		y = q & 1u ? cosine : sine;
		x = (q + 1) & 2u ? -x : x;
		y = q & 2u ? -y : y;
		c[i] = (float)(x * gain);
		s[i] = (float)(y * gain);
	}
}

static inline void rope_turn_make(
	const struct kvp_rope *rope, uint32_t position, uint32_t undo, struct rope_turn *ret)
{
	float c[KVP_PLANE_DIM_MAX / 2], s[KVP_PLANE_DIM_MAX / 2];
	const uint32_t half = rope->dim / 2;

	ret->pairing = rope->pairing;
	ret->dim = rope->dim;
	rope_angles(rope->freq, half, position, undo ? 1.0 / rope->gain : rope->gain, c, s);
	for (uint32_t i = 0; i < half; i++)
		s[i] = undo ? -s[i] : s[i];
	if (rope->pairing == KVP_ROPE_HALF_SPLIT) {
		for (uint32_t i = 0; i < half; i++) {
			ret->self[i] = ret->self[half + i] = c[i];
			ret->other[i] = -s[i];
			ret->other[half + i] = s[i];
		}
		return;
	}
	for (uint32_t i = 0; i < half; i++) {
		ret->self[2 * i] = ret->self[2 * i + 1] = c[i];
		ret->other[2 * i] = -s[i];
		ret->other[2 * i + 1] = s[i];
	}
}

static inline void rope_turn_row(
	const struct rope_turn *t, const float *restrict x, float *restrict y)
{
	const uint32_t half = t->dim / 2;

	if (t->pairing == KVP_ROPE_HALF_SPLIT) {
		for (uint32_t i = 0; i < half; i++)
			y[i] = x[i] * t->self[i] + x[half + i] * t->other[i];
		for (uint32_t i = half; i < 2 * half; i++)
			y[i] = x[i] * t->self[i] + x[i - half] * t->other[i];
		return;
	}
	for (uint32_t i = 0; i < 2 * half; i += 2) {
		y[i] = x[i] * t->self[i] + x[i + 1] * t->other[i];
		y[i + 1] = x[i + 1] * t->self[i + 1] + x[i] * t->other[i + 1];
	}
}

/* Elements [i, n) of a row to floats that can be turned, and floats to elements. */
static inline void rope_load_from(
	const uint8_t *row, uint32_t dtype, uint32_t i, uint32_t n, float *x)
{
	for (; i < n; i++) {
		float f = load_element(row, dtype, i);

		x[i] = f != f ? 0.0f : clampf(f, ROPE_INPUT_MAX);
	}
}

static inline void rope_store_from(
	uint8_t *row, uint32_t dtype, uint32_t i, uint32_t n, const float *x)
{
	for (; i < n; i++)
		store_element(row, dtype, i, x[i]);
}

#endif
