/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded inputs, biased to what breaks codecs. */
#ifndef KVP_TESTS_KERNELS_INPUTS_H
#define KVP_TESTS_KERNELS_INPUTS_H

#include <stddef.h>
#include <stdint.h>

enum input_kind {
	INPUT_NORMAL,   /* N(0,1) */
	INPUT_ZERO,     /* zeros of both signs */
	INPUT_CONSTANT, /* one value in a row */
	INPUT_OUTLIERS, /* N(0,1) with channels 100 times as large */
	INPUT_DENORMAL, /* subnormal in fp16 and partly in fp32 */
	INPUT_HUGE,     /* norms beyond fp16 where the type allows it */
	INPUT_SPECIAL,  /* N(0,1) with NaN and infinities strewn in */
	INPUT_BITS,     /* any bit pattern */
	INPUT_MIXED,    /* rows of magnitudes 2^-30 to 2^30 */
	INPUT_MAX_
};

extern uint64_t inputs_seed; /* as printed */

/* KVP_TEST_SEED, else the clock. */
void inputs_init(void);
void inputs_reseed(uint64_t seed);
uint64_t inputs_random(void);
double inputs_uniform(void); /* [0, 1) */
double inputs_normal(void);
const char *inputs_name(enum input_kind kind);
/* n elements of a KVP_DTYPE_*. */
void inputs_fill(void *data, size_t n, uint32_t dtype, enum input_kind kind);
/* Random bytes. */
void inputs_noise(void *data, size_t n);

#endif
