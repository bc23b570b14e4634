/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the model of a device, against softmax in double precision on decoded data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/cudasim/sim_device.h"

static struct device device;
static uint64_t seed;
static unsigned int rounds;

static void test_attend(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < rounds; i++) {
		struct rng r = { seed + i * UINT64_C(0x1000003) };

		if (check_attend(&device, &r) < 0)
			fail_msg("KVP_TEST_SEED=%llu round %u: %s", (unsigned long long)seed, i,
				device.error);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attend),
	};
	const char *env = getenv("KVP_TEST_SEED"), *n = getenv("KVP_TEST_ROUNDS");

	seed = env ? strtoull(env, NULL, 0) : 1;
	rounds = n ? (unsigned int)strtoul(n, NULL, 0) : 60;
	printf("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	if (sim_device_init(&device, seed) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
