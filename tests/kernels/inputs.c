/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kernels/inputs.h"
#include "kernels/dsp.h"
#include "kernels/numeric.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#define ROW 64 /* elements that share a magnitude or a constant */

uint64_t inputs_seed;
static uint64_t state;
static double spare; /* the other one of a pair of normal numbers; 0: used up */

void inputs_reseed(uint64_t seed)
{
	inputs_seed = seed;
	state = seed;
	spare = 0.0;
}

void inputs_init(void)
{
	const char *seed = getenv("KVP_TEST_SEED");

	inputs_reseed(seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL));
}

uint64_t inputs_random(void)
{
	uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

double inputs_uniform(void)
{
	return (double)(inputs_random() >> 11) * 0x1p-53;
}

/* Marsaglia's polar method, which makes pairs. */
double inputs_normal(void)
{
	double u, v = spare, s;

	spare = 0.0;
	if (v != 0.0)
		return v;
	do {
		u = 2.0 * inputs_uniform() - 1.0;
		v = 2.0 * inputs_uniform() - 1.0;
		s = u * u + v * v;
	} while (s >= 1.0 || s == 0.0);
	s = sqrt(-2.0 * kvp_log_portable(s) / s);
	spare = v * s;
	return u * s;
}

const char *inputs_name(enum input_kind kind)
{
	static const char *const names[] = { "normal", "zero", "constant", "outliers", "denormal",
		"huge", "special", "bits", "mixed" };

	return names[kind];
}

static float element(enum input_kind kind, size_t i, uint32_t dtype, float row)
{
	double x = inputs_normal();

	switch (kind) {
	case INPUT_ZERO:
		return inputs_random() & 1 ? 0.0f : -0.0f;
	case INPUT_CONSTANT:
		return row;
	case INPUT_OUTLIERS:
		return (float)(i % 37 == 5 ? 100.0 * x : x);
	case INPUT_DENORMAL:
		return (float)(x * (dtype == KVP_DTYPE_F16 ? 0x1p-20 : 0x1p-126));
	case INPUT_HUGE:
		return (float)(x * (dtype == KVP_DTYPE_F16 ? 2e4 : 1e38));
	case INPUT_SPECIAL:
		switch (inputs_random() % 50) {
		case 0:
			return NAN;
		case 1:
			return INFINITY;
		case 2:
			return -INFINITY;
		default:
			return (float)x;
		}
	case INPUT_MIXED:
		return (float)ldexp(x, (int)(row * 15.0f));
	default:
		return (float)x;
	}
}

void inputs_fill(void *data, size_t n, uint32_t dtype, enum input_kind kind)
{
	uint8_t *p = data;
	float row = 0.0f;

	if (kind == INPUT_BITS) {
		inputs_noise(data, n * (dtype == KVP_DTYPE_F32 ? 4 : 2));
		return;
	}
	for (size_t i = 0; i < n; i++) {
		float f;
		uint16_t h;

		if (i % ROW == 0)
			row = (float)fmax(-2.0, fmin(2.0, inputs_normal()));
		f = element(kind, i, dtype, row);
		if (dtype == KVP_DTYPE_F32) {
			memcpy(p + 4 * i, &f, 4);
			continue;
		}
		h = dtype == KVP_DTYPE_F16 ? f32_to_f16(f) : (uint16_t)(f32_bits(f) >> 16);
		memcpy(p + 2 * i, &h, 2);
	}
}

void inputs_noise(void *data, size_t n)
{
	uint8_t *p = data;

	for (size_t i = 0; i < n; i++)
		p[i] = (uint8_t)(inputs_random() >> 56);
}
