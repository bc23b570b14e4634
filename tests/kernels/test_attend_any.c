/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by bytes over whatever codes there are but tq in 4 bits (test_attend_bytes.c): against a
 * double-precision reference, and that bytes are what was taken.
 */
#include "kernels/dsp.h"
#include "kernels/kvp_attend.h"
#include "tests/kernels/attend_rig.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct kvp_kernels *plain, *bytes; /* bytes: NULL where there are none */
static kvp_step_fn *step;
static uint32_t asked, taken;
/* With `--few`, for sanitizers, every fifth case of the longest list; the seed says which. */
static uint32_t stride = 1;

static int counted_step(const struct kvp_step *job)
{
	const int r = step(job);

	asked++;
	taken += r != 0;
	return r;
}

/*
 * Queries of one byte a channel, for rotated codes, are off by half a 127th of the largest at most: 7e-3 of a
 * score's spread, and five times as much for some row of thousands. Centroids of few bits are off likewise.
 */
static const struct tolerance narrow = { 5e-2, 4e-2, 3e-2 };
/*
 * Of two bytes, and of codes that are bytes as they are, only weights of one byte are off: where rounding them is
 * 6e-4 of a value's length, which is a hundredth of the result's where hundreds of values cancel each other.
 */
static const struct tolerance wide = { 1e-2, 1e-2, 1e-3 };

static void compare(struct rig *g, const struct tolerance *most, const char *what)
{
	rig_compare(g, bytes, most, "bytes", what);
}

/* Keys, values, whether bytes take both of them at any dim that is asked for here, and how exact. */
static const struct pair {
	const char *k, *v;
	const struct tolerance *most;
} pairs[] = {
	{ "tq3", "tq3", &narrow },
	{ "tq2", "tq2", &narrow },
	{ "tq3-h3-sphere", "tq2-plain-wide", &narrow },
	{ "tq4", "tq3-nc", &narrow },
	{ "tq2", "int8", &narrow },
	{ "int8", "int8", &wide },
	{ "int8", "tq4", &narrow },
	{ "int8", "asym4", &wide },
	{ "asym4", "asym3", &wide },
	{ "asym2", "int8", &wide },
	{ "hadamard4", "hadamard2", &narrow },
	{ "hadamard4", "asym2", &narrow },
};
#define PAIRS (sizeof pairs / sizeof *pairs)

/* From few queries to more than one pass; dims that fill pieces of 128 channels and do not; tails. */
static void of_any_size(void **state)
{
	static const uint32_t dims[] = { 64, 128, 192, 256, 320, 512 };
	static const uint32_t groups[] = { 2, 3, 4, 5, 8, 9, 12 };

	(void)state;
	if (!bytes)
		skip();
	for (uint32_t i = (uint32_t)(inputs_seed % stride); i < 6 * 7 * PAIRS; i += stride) {
		const struct pair *pair = &pairs[i % PAIRS];
		struct rig *g =
			rig_new(plain, 1 + i % 4, 2 * groups[i / PAIRS % 7], 2, dims[i % 6]);
		char what[80];

		for (uint32_t t = 0; t < 4; t++)
			rig_add(g, pair->k, pair->v,
				t < 2 ? 64 + 67 * t : 1 + (uint32_t)(inputs_random() % 40));
		g->a.position = g->total - g->a.queries;
		g->a.causal = 1;
		g->a.window = i % 3 ? 0 : 100;
		g->a.n_splits = 1 + i % 3;
		snprintf(what, sizeof what, "%s and %s, dim %u, queries %u of %u heads", pair->k,
			pair->v, g->a.k_dim, g->a.queries, g->a.q_heads);
		compare(g, pair->most, what);
		rig_free(g);
	}
}

/*
 * Where no weight is a thirty-second of all of them, weights are one byte. Keys and values need not have as many
 * channels as each other; queries are of one pass, of four or eight, and of two.
 */
static void of_little_weights(void **state)
{
	static const uint32_t dims[][2] = { { 128, 128 }, { 64, 192 }, { 192, 64 }, { 1024, 128 },
		{ 256, 1024 } };
	static const uint32_t groups[] = { 4, 3, 8, 5, 9 };

	(void)state;
	if (!bytes)
		skip();
	for (uint32_t i = (uint32_t)(inputs_seed % stride); i < 5 * 5 * PAIRS; i += stride) {
		const struct pair *pair = &pairs[i % PAIRS];
		const uint32_t *dim = dims[i / PAIRS % 5];
		const uint32_t group = groups[(i / PAIRS + i / PAIRS / 5) % 5];
		struct rig *g = rig_new(plain, 1, 2 * group, 2, dim[0] > dim[1] ? dim[0] : dim[1]);
		char what[80];

		g->a.k_dim = dim[0];
		g->a.v_dim = dim[1];
		g->n = (size_t)2 * group * dim[1];
		g->a.scale = 0.25f / sqrtf((float)dim[0]);
		for (uint32_t t = 0; t < 3; t++)
			rig_add(g, pair->k, pair->v, t < 2 ? 128 : 80);
		snprintf(what, sizeof what, "%s and %s, dims %u and %u, %u queries", pair->k,
			pair->v, dim[0], dim[1], group);
		compare(g, pair->most, what);
		rig_free(g);
	}
}

/* Where all queries see all rows of blocks of 64 tokens, no pair is left to words and floats. */
static void bytes_are_taken(void **state)
{
	(void)state;
	if (!bytes)
		skip();
	for (size_t i = 0; i < PAIRS; i++) {
		struct rig *g = rig_new(plain, 1, 8, 2, 128);
		struct kvp_attend_result res = { 0 };

		for (uint32_t t = 0; t < 3; t++)
			rig_add(g, pairs[i].k, pairs[i].v, 64);
		step = bytes->tiles.step;
		asked = taken = 0;
		bytes->tiles.step = counted_step;
		rig_run(g, bytes, &res);
		bytes->tiles.step = step;
		if (!asked || taken != asked)
			fail_msg("%s and %s: %u of %u steps", pairs[i].k, pairs[i].v, taken, asked);
		rig_free(g);
	}
}

/* Beside what bytes do not know, with masks, and without anything to see. */
static void among_others(void **state)
{
	(void)state;
	if (!bytes)
		skip();
	for (uint32_t i = 0; i < 12; i++) {
		struct rig *g = rig_new(plain, 2, 8, 2, 128);

		rig_add(g, "int8", "kivi2", 64);
		rig_add(g, "kivi4", "tq2", 100);
		rig_add(g, "asym4-g32", "int8", 90);
		rig_add(g, "tq3", "native", 64);
		rig_add(g, "native", "native", 33);
		if (i % 2)
			rig_mask(g);
		compare(g, &narrow, "among others");
		rig_free(g);
	}
}

/* A query that is no number, or endless, stays so, and no other becomes it. */
static void with_nan(void **state)
{
	(void)state;
	if (!bytes)
		skip();
	for (size_t i = 0; i < 2 * PAIRS; i++) {
		struct rig *g = rig_new(plain, 1, 8, 2, 128);
		struct kvp_attend_result res = { 0 };

		rig_add(g, pairs[i / 2].k, pairs[i / 2].v, 64);
		g->q[5 * 128 + 3] = i % 2 ? NAN : INFINITY;
		rig_run(g, bytes, &res);
		for (uint32_t h = 0; h < 8; h++)
			for (uint32_t c = 0; c < 128; c++)
				assert_true(isfinite(g->out[h * 128 + c]) == (h != 5));
		rig_free(g);
	}
}

/* Values so small that no float is their inverse: what becomes of them is no larger than they are. */
static void of_tiny_values(void **state)
{
	(void)state;
	if (!bytes)
		skip();
	for (size_t i = 0; i < PAIRS; i++) {
		struct rig *g = rig_new(plain, 2, 8, 2, 128);
		struct kvp_attend_result res = { 0 };

		g->loud = 1e-36f;
		rig_add(g, pairs[i].k, pairs[i].v, 100);
		rig_run(g, bytes, &res);
		for (size_t j = 0; j < g->n; j++)
			assert_true(fabsf(g->out[j]) < 1e-35f);
		rig_free(g);
	}
}

/* What is no number, where the next function has its arrays. */
__attribute__((noinline)) static void dirty_stack(void)
{
	volatile uint8_t x[1 << 18];

	for (size_t i = 0; i < sizeof x; i++)
		x[i] = 0xff;
}

/*
 * Scales and minima are read for more rows than there are: what lies there is to be nothing. The log-sum-exp of one
 * row is its score, whose error no other row's makes less: once in fifty runs one was off by more than narrow.lse.
 */
static void of_few_rows(void **state)
{
	(void)state;
	if (!bytes)
		skip();
	for (size_t i = 0; i < 6 * PAIRS; i++) {
		struct rig *g = rig_new(plain, 1, 8, 2, 128);
		struct kvp_attend_result res = { 0 };
		struct tolerance most = *pairs[i / 6].most;

		most.lse *= 3.0;
		rig_add(g, pairs[i / 6].k, pairs[i / 6].v, 1 + i % 6 * 6);
		rig_reference(g);
		dirty_stack();
		rig_run(g, bytes, &res);
		for (size_t row = 0; row < g->n / g->a.v_dim; row++)
			rig_compare_row(g, row, &most, "bytes", "few rows");
		rig_free(g);
	}
}

static int setup(void **state)
{
	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	if (kvp_kernels_new(KVP_CPU_ALL, &plain) < 0 ||
		kvp_kernels_new(KVP_CPU_ALL | KVP_CPU_BYTES, &bytes) < 0)
		return -1;
	if (!bytes->tiles.any) {
		printf("bytes: not on this machine, skipped\n");
		kvp_kernels_free(bytes);
		bytes = NULL;
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (bytes)
		kvp_kernels_free(bytes);
	kvp_kernels_free(plain);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_are_taken),
		cmocka_unit_test(of_any_size),
		cmocka_unit_test(of_little_weights),
		cmocka_unit_test(among_others),
		cmocka_unit_test(with_nan),
		cmocka_unit_test(of_tiny_values),
		cmocka_unit_test(of_few_rows),
	};

	if (argc > 1 && !strcmp(argv[1], "--few"))
		stride = 5;
	return cmocka_run_group_tests(tests, setup, teardown);
}
