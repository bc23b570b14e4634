/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on the model of a device, against softmax in double precision on decoded data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/cudasim/sim_device.h"

#define ROUNDS 72 /* all tuned kernels, twice 18 pairs, have had a turn */

static struct device device;
static uint64_t seed;
static unsigned int rounds;

static void test_attend(void **state)
{
	(void)state;
	for (unsigned int i = 0; i < rounds; i++) {
		struct rng r = { seed + i * UINT64_C(0x1000003), i };

		if (check_attend(&device, &r) < 0)
			fail_msg("KVP_TEST_SEED=%llu round %u: %s", (unsigned long long)seed, i,
				device.error);
	}
}

static int is_attention(const char *kernel)
{
	return strstr(kernel, "attend") || strstr(kernel, "rotate") || strstr(kernel, "mass") ||
	       strstr(kernel, "merge");
}

static void test_every_kernel_ran(void **state)
{
	(void)state;
	if (rounds < ROUNDS)
		skip();
	for (uint32_t i = 0; i < kvp_cuda_kernel_count; i++)
		if (is_attention(kvp_cuda_kernels[i].name) &&
			!sim_device_launches(&kvp_cuda_kernels[i]))
			fail_msg("%s was never launched", kvp_cuda_kernels[i].name);
}

static int is_tuned(const char *kernel)
{
	return strstr(kernel, "attend_") && !strstr(kernel, "attend_any");
}
static int is_any(const char *kernel)
{
	return strcmp(kernel, "kvp_cu_attend_any") == 0;
}
static int is_rotate(const char *kernel)
{
	return strcmp(kernel, "kvp_cu_rotate") == 0;
}
static int is_mass(const char *kernel)
{
	return strcmp(kernel, "kvp_cu_mass") == 0;
}
static int is_merge(const char *kernel)
{
	return strcmp(kernel, "kvp_cu_merge") == 0;
}

/* The model notices each barrier that is missing, and the check each launch that is. */
static void test_broken_kernels(void **state)
{
	static const struct {
		const char *name;
		int (*broken)(const char *kernel);
		uint32_t barriers; /* of a block with more than one tile */
	} cases[] = {
		{ "tuned", is_tuned, 3 },
		{ "general", is_any, 4 },
		{ "mass", is_mass, 2 },
		{ "rotate", is_rotate, 0 },
		{ "merge", is_merge, 0 },
	};

	(void)state;
	for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		for (uint32_t b = 0; b <= cases[c].barriers; b++) {
			uint32_t barrier = b < cases[c].barriers ? b : SIM_SKIP_LAUNCH;
			unsigned int i = 0;
			struct rng r;

			sim_device_break(cases[c].broken, barrier);
			do {
				r = (struct rng){ seed + i * UINT64_C(0x1000003), i };
				device.error[0] = '\0';
			} while (check_attend(&device, &r) == 0 && ++i < 40);
			if (i == 40 ||
				(barrier != SIM_SKIP_LAUNCH && !strstr(device.error, " hazards, ")))
				fail_msg("%s without barrier %u: %s", cases[c].name, b,
					i == 40 ? "not noticed" : device.error);
		}
	}
	sim_device_break(NULL, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_attend),
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
