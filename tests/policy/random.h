/* SPDX-License-Identifier: Apache-2.0 */
/* Seeded random numbers for the tests of policy/ (splitmix64). Include after cmocka.h. */
#ifndef TESTS_POLICY_RANDOM_H
#define TESTS_POLICY_RANDOM_H

#include <stdint.h>
#include <stdlib.h>

static uint64_t random_state;

static inline void random_seed(uint64_t seed)
{
	random_state = seed;
}

static inline uint64_t rnd(void)
{
	uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static inline uint32_t below(uint32_t n)
{
	return (uint32_t)(rnd() % n);
}

/* KVP_TEST_SEED, or a fixed one; prints it. */
static inline uint64_t random_print_seed(void)
{
	const char *env = getenv("KVP_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : UINT64_C(0x6b767031);

	print_message("KVP_TEST_SEED=0x%llx\n", (unsigned long long)seed);
	return seed;
}

#endif
