/* SPDX-License-Identifier: Apache-2.0 */
/* The model itself: every hazard it promises to catch is caught, and right kernels pass. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/cudasim/cudasim.h"
#include "tests/cudasim/hazards.h"

static _Alignas(64) uint32_t in[64];
static _Alignas(64) uint32_t out[64];
static uint64_t seed;

static const struct kvp_cuda_shape shape64 = {
	.grid = { 1, 1, 1 },
	.threads = 64,
	.smem_bytes = 4096,
};

static void run(void (*fn)(const void *), const struct kvp_cuda_shape *shape, uint32_t fix,
	struct cudasim_report *ret)
{
	struct hazard_params p = {
		.in = (uintptr_t)in,
		.out = (uintptr_t)out,
		.fix = fix,
	};

	cudasim_unmap_all();
	cudasim_map(in, sizeof(in), 0);
	cudasim_map(out, sizeof(out), 1);
	for (uint32_t i = 0; i < 64; i++)
		in[i] = 1000 + i;
	memset(out, 0xee, sizeof(out));
	assert_int_equal(cudasim_launch(fn, &p, shape, seed++, ret), 0);
	cudasim_unmap_all();
}

/* Whatever order the seed draws, the wrong twin is caught and the right one is not. */
static void expect(
	const char *name, void (*fn)(const void *), const struct kvp_cuda_shape *shape, int kind)
{
	struct cudasim_report r;

	for (int i = 0; i < 50; i++) {
		run(fn, shape, 0, &r);
		if (r.count[kind] == 0)
			fail_msg("%s was not caught (seed %llu): %s", name,
				(unsigned long long)(seed - 1), r.first);
		assert_string_not_equal(r.first, "");
		run(fn, shape, 1, &r);
		if (r.total != 0)
			fail_msg("%s, right twin (seed %llu): %s", name,
				(unsigned long long)(seed - 1), r.first);
	}
}
#define EXPECT(fn, kind) expect(#fn, fn, &shape64, kind)

static void test_shared_races(void **state)
{
	(void)state;
	EXPECT(hz_reverse, CUDASIM_RACE);
	EXPECT(hz_reverse_warp, CUDASIM_RACE);
	EXPECT(hz_overwrite, CUDASIM_RACE);
	EXPECT(hz_same_word, CUDASIM_RACE);
	EXPECT(hz_uninit, CUDASIM_UNINIT);
}

static void test_async_copies(void **state)
{
	(void)state;
	EXPECT(hz_async_early, CUDASIM_PENDING);
	EXPECT(hz_async_others, CUDASIM_RACE);
	EXPECT(hz_async_groups, CUDASIM_PENDING);
	EXPECT(hz_async_left, CUDASIM_PENDING);
}

static void test_alignment_and_bounds(void **state)
{
	(void)state;
	EXPECT(hz_align_shared, CUDASIM_ALIGN);
	EXPECT(hz_align_global, CUDASIM_ALIGN);
	EXPECT(hz_align_async, CUDASIM_ALIGN);
	EXPECT(hz_bounds_shared, CUDASIM_BOUNDS);
	EXPECT(hz_bounds_global, CUDASIM_BOUNDS);
	EXPECT(hz_read_only, CUDASIM_BOUNDS);
}

static void test_global_race_between_blocks(void **state)
{
	struct kvp_cuda_shape two = shape64;

	(void)state;
	two.grid[0] = 2;
	expect("hz_global_race", hz_global_race, &two, CUDASIM_RACE);
}

static void test_launch_bounds(void **state)
{
	struct kvp_cuda_shape half = shape64;
	struct cudasim_report r;

	(void)state;
	half.threads = 32;
	run(hz_small, &shape64, 1, &r);
	assert_int_equal(r.count[CUDASIM_LAUNCH], 64);
	run(hz_small, &half, 1, &r);
	assert_int_equal(r.total, 0);
}

static void test_divergence(void **state)
{
	(void)state;
	EXPECT(hz_barrier_some, CUDASIM_DIVERGE);
	EXPECT(hz_shuffle_some, CUDASIM_DIVERGE);
}

/* The right twins compute what they should, in any order of threads. */
static void test_results(void **state)
{
	struct cudasim_report r;

	(void)state;
	for (int i = 0; i < 20; i++) {
		run(hz_reverse, &shape64, 1, &r);
		for (uint32_t t = 0; t < 64; t++)
			assert_int_equal(out[t], 1000 + 63 - t);
		run(hz_async_others, &shape64, 1, &r);
		assert_memory_equal(out, in, sizeof(in));
		run(hz_async_groups, &shape64, 1, &r);
		assert_memory_equal(out, in, sizeof(in));
		run(hz_order, &shape64, 1, &r);
		assert_int_equal(r.total, 0);
		for (uint32_t t = 0; t < 64; t++)
			assert_int_equal(out[t], 63 * 64 / 2);
	}
}

/* A pending destination is poison, not the old bytes and not yet the new ones. */
static void test_pending_is_poisoned(void **state)
{
	struct cudasim_report r;

	(void)state;
	run(hz_async_early, &shape64, 0, &r);
	for (uint32_t t = 0; t < 64; t++)
		assert_true(out[t] != in[t]);
}

/* Half-precision values that are small integers: exact whatever the order of the sum. */
static uint16_t small_half(int v)
{
	uint16_t sign = v < 0 ? 0x8000 : 0;
	int a = abs(v), e = 0;

	if (a == 0)
		return 0;
	while (a >> (e + 1))
		e++;
	return (uint16_t)(sign | (e + 15) << 10 | (((unsigned int)a << (10 - e)) & 0x3ffu));
}

static void test_mma(void **state)
{
	struct kvp_cuda_shape one = { .grid = { 1, 1, 1 }, .threads = 32, .smem_bytes = 0 };
	static _Alignas(16) uint16_t ab[16 * 16 + 16 * 8];
	static _Alignas(16) float c[16 * 8];
	struct hazard_params p = { .in = (uintptr_t)ab, .out = (uintptr_t)c };
	int a[16][16], b[16][8];
	struct cudasim_report r;
	unsigned int x = (unsigned int)seed | 1;

	(void)state;
	for (int i = 0; i < 256; i++) {
		x = x * 1103515245u + 12345u;
		a[i / 16][i % 16] = (int)(x >> 16 & 63) - 32;
		ab[i] = small_half(a[i / 16][i % 16]);
	}
	for (int i = 0; i < 128; i++) {
		x = x * 1103515245u + 12345u;
		b[i / 8][i % 8] = (int)(x >> 16 & 63) - 32;
		ab[256 + i] = small_half(b[i / 8][i % 8]);
	}
	cudasim_map(ab, sizeof(ab), 0);
	cudasim_map(c, sizeof(c), 1);
	assert_int_equal(cudasim_launch(hz_mma, &p, &one, seed, &r), 0);
	cudasim_unmap_all();
	assert_string_equal(r.first, "");
	for (int i = 0; i < 16; i++) {
		for (int j = 0; j < 8; j++) {
			int sum = 0;

			for (int k = 0; k < 16; k++)
				sum += a[i][k] * b[k][j];
			assert_true(c[8 * i + j] == (float)sum);
		}
	}
}

static void test_bad_shapes(void **state)
{
	struct hazard_params p = { .in = (uintptr_t)in, .out = (uintptr_t)out };
	struct cudasim_report r;
	struct kvp_cuda_shape s = shape64;

	(void)state;
	s.threads = 48;
	assert_int_equal(cudasim_launch(hz_order, &p, &s, 1, &r), -EINVAL);
	s.threads = 2048;
	assert_int_equal(cudasim_launch(hz_order, &p, &s, 1, &r), -EINVAL);
	s = shape64;
	s.grid[1] = 0;
	assert_int_equal(cudasim_launch(hz_order, &p, &s, 1, &r), -EINVAL);
	s = shape64;
	s.grid[2] = 65536;
	assert_int_equal(cudasim_launch(hz_order, &p, &s, 1, &r), -EINVAL);
	s = shape64;
	s.smem_bytes = 1u << 20;
	assert_int_equal(cudasim_launch(hz_order, &p, &s, 1, &r), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shared_races),
		cmocka_unit_test(test_async_copies),
		cmocka_unit_test(test_alignment_and_bounds),
		cmocka_unit_test(test_global_race_between_blocks),
		cmocka_unit_test(test_launch_bounds),
		cmocka_unit_test(test_divergence),
		cmocka_unit_test(test_results),
		cmocka_unit_test(test_pending_is_poisoned),
		cmocka_unit_test(test_mma),
		cmocka_unit_test(test_bad_shapes),
	};
	const char *env = getenv("KVP_TEST_SEED");

	seed = env ? strtoull(env, NULL, 0) : 1;
	printf("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
