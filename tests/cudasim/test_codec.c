/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders, decoders and copies on the model of a device, against reference C, byte by byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/cudasim/sim_device.h"

#define ROUNDS 120

static struct device device;
static uint64_t seed;
static unsigned int rounds;

static void repeat(int (*check)(struct device *d, struct rng *r), unsigned int n)
{
	for (unsigned int i = 0; i < n; i++) {
		struct rng r = { seed + i * UINT64_C(0x1000003), i };

		if (check(&device, &r) < 0)
			fail_msg("KVP_TEST_SEED=%llu round %u: %s", (unsigned long long)seed, i,
				device.error);
	}
}

/* A-069, D-014, D-015: what the kernels encode, 3 bits too, is what reference C encodes. */
static void test_pages(void **state)
{
	(void)state;
	repeat(check_pages, rounds);
}

/* D-064: encode and store, token by token, in one kernel. */
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
	repeat(check_runs, rounds);
}

/* All but those of attention, of which the next program knows. */
static void test_every_kernel_ran(void **state)
{
	(void)state;
	if (rounds < ROUNDS)
		skip();
	for (uint32_t i = 0; i < kvp_cuda_kernel_count; i++) {
		const struct kvp_cuda_kernel *k = &kvp_cuda_kernels[i];

		if (k->param_bytes != sizeof(struct kvp_cuda_rows) &&
			k->param_bytes != sizeof(struct kvp_cuda_copy) &&
			k->param_bytes != sizeof(struct kvp_cuda_runs))
			continue;
		if (!sim_device_launches(k))
			fail_msg("%s was never launched", k->name);
	}
}

static int is_begin(const char *kernel)
{
	return strstr(kernel, "begin") != NULL;
}
static int is_encode(const char *kernel)
{
	return strstr(kernel, "encode") != NULL;
}
static int is_decode(const char *kernel)
{
	return strstr(kernel, "decode") != NULL;
}

/* The check notices the barrier that is missing, and launches that are. */
static void test_broken_kernels(void **state)
{
	static const struct {
		int (*broken)(const char *kernel);
		uint32_t barrier;
	} cases[] = {
		{ is_begin, 0 },
		{ is_begin, SIM_SKIP_LAUNCH },
		{ is_encode, SIM_SKIP_LAUNCH },
		{ is_decode, SIM_SKIP_LAUNCH },
	};

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		unsigned int i = 0;
		struct rng r;

		sim_device_break(cases[c].broken, cases[c].barrier);
		do {
			r = (struct rng){ seed + i * UINT64_C(0x1000003), i };
			device.error[0] = '\0';
		} while (check_pages(&device, &r) == 0 && ++i < 20);
		device.reset(&device);
		if (i == 20)
			fail_msg("case %zu was not noticed", c);
	}
	sim_device_break(NULL, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_slots),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_copy),
		cmocka_unit_test(test_every_kernel_ran),
		cmocka_unit_test(test_broken_kernels),
	};
	const char *env = getenv("KVP_TEST_SEED"), *n = getenv("KVP_TEST_ROUNDS");

	seed = env ? strtoull(env, NULL, 0) : 1;
	rounds = n ? (unsigned int)strtoul(n, NULL, 0) : ROUNDS;
	printf("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	if (sim_device_init(&device, seed) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
