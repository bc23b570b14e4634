/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the planners share: cmocka with its prerequisites, and a printed seed. */
#ifndef KVP_TESTS_POLICY_PLAN_TEST_H
#define KVP_TESTS_POLICY_PLAN_TEST_H

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/policy/random.h"

/* Uniform in (0, 1). */
static inline double uniform(void)
{
	return ((double)(rnd() >> 11) + .5) / 9007199254740992.0;
}

/* KVP_TEST_SEED, or `fixed`; printed, so that a failure can be run again. */
static inline void seed_from_env(uint64_t fixed)
{
	const char *env = getenv("KVP_TEST_SEED");

	random_state = env ? strtoull(env, NULL, 0) : fixed;
	print_message("seed %llu (KVP_TEST_SEED)\n", (unsigned long long)random_state);
}

#endif
