/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders, decoders and copies on the model of a device, against reference C, byte by byte. */
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

static void repeat(int (*check)(struct device *d, struct rng *r), unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		struct rng r = { seed + i * UINT64_C(0x1000003) };

		if (check(&device, &r) < 0)
			fail_msg("KVP_TEST_SEED=%llu round %u: %s", (unsigned long long)seed, i,
				device.error);
	}
}

static void test_pages(void **state)
{
	(void)state;
	repeat(check_pages, rounds);
}

static void test_slots(void **state)
{
	(void)state;
	repeat(check_slots, rounds / 2);
}

static void test_hostile(void **state)
{
	(void)state;
	repeat(check_hostile, rounds / 4);
}

static void test_copy(void **state)
{
	(void)state;
	repeat(check_copy, rounds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_slots),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_copy),
	};
	const char *env = getenv("KVP_TEST_SEED"), *n = getenv("KVP_TEST_ROUNDS");

	seed = env ? strtoull(env, NULL, 0) : 1;
	rounds = n ? (unsigned int)strtoul(n, NULL, 0) : 120;
	printf("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	if (sim_device_init(&device, seed) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
