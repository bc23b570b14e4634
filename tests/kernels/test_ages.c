/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A growing sequence whose older tokens are coded: policy/zones says which, kernels/ codes them.
 * Names begin with rows of the acceptance list.
 */
#include "kernels/kvp_codec.h"
#include "policy/kvp_zones.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TOKENS 512u
#define HEADS  4u
#define DIM    128u
#define ROW    ((ptrdiff_t)(DIM * sizeof(float)))
#define N      (TOKENS * HEADS * DIM)

static struct kvp_kernels *k;
static float original[N], held[2][N];
static uint8_t payload[2 * sizeof original] __attribute__((aligned(64)));

static uint32_t codec_of(const char *name)
{
	uint32_t codec;

	if (kvp_codec_parse(name, &codec) < 0)
		fail_msg("no codec %s", name);
	return codec;
}

/* Tokens [begin, end) of `from` as they come back from a codec, into `to`: both [head][token]. */
static void recode(
	const char *name, uint32_t kind, const float *from, float *to, uint32_t begin, uint32_t end)
{
	const struct kvp_plane p = { end - begin, HEADS, DIM, KVP_DTYPE_F32, kind };
	const size_t first = (size_t)begin * DIM;
	size_t bytes;

	assert_int_equal(kvp_plane_bytes(codec_of(name), &p, &bytes), 0);
	assert_int_equal(kvp_plane_encode(k, codec_of(name), &p, NULL,
				 (struct kvp_raw_const){ from + first, ROW * TOKENS, ROW }, payload,
				 sizeof payload),
		0);
	assert_int_equal(kvp_plane_decode(k, codec_of(name), &p, NULL, payload, bytes,
				 (struct kvp_raw){ to + first, ROW * TOKENS, ROW }),
		0);
}

/* Relative squared error of what is held of tokens [begin, end). */
static double error_of(const float *is, const float *want, uint32_t begin, uint32_t end)
{
	double e = 0.0, s = 0.0;

	for (uint32_t h = 0; h < HEADS; h++) {
		for (size_t i = (size_t)begin * DIM; i < (size_t)end * DIM; i++) {
			size_t at = (size_t)h * TOKENS * DIM + i;

			e += ((double)is[at] - (double)want[at]) *
			     ((double)is[at] - (double)want[at]);
			s += (double)want[at] * (double)want[at];
		}
	}
	return s > 0.0 ? e / s : 0.0;
}

/* ---- KIVI's residual window ---- */

/*
 * Keys are flushed R tokens at a time, all that there are; of values the newest R stay, and one goes
 * for each that comes. Without window keys wait for a group, which is what the codec takes.
 */
static struct kvp_zone_rule window_rule(uint32_t kind, uint32_t r)
{
	struct kvp_zone_config c;

	kvp_zone_config_init(&c, 1);
	c.rule.hot_tokens = kind == KVP_PLANE_V ? r : 0;
	c.rule.group_tokens = kind == KVP_PLANE_V ? 1 : r ? r : 32;
	c.rule.stale_tokens = KVP_ZONE_TOKENS_MAX;
	return c.rule;
}

/* The sequence grows to n tokens: what arrives is native, what graduates comes from the original. */
static void grow(struct kvp_zones *z, uint32_t kind, uint32_t r, uint32_t n)
{
	const struct kvp_zone_rule rule = window_rule(kind, r);
	struct kvp_graduation g[KVP_GRADUATIONS_MAX];
	uint32_t before = z->tokens, steps;

	for (uint32_t h = 0; h < HEADS; h++)
		memcpy(held[kind] + ((size_t)h * TOKENS + before) * DIM,
			original + ((size_t)h * TOKENS + before) * DIM,
			(size_t)(n - before) * DIM * sizeof(float));
	assert_int_equal(kvp_zones_advance(&rule, z, n, g, &steps), 0);
	for (uint32_t i = 0; i < steps; i++) {
		assert_int_equal(g[i].from, KVP_ZONE_HOT);
		assert_int_equal(g[i].to, KVP_ZONE_WARM);
		/* Tokens that are still exact: nothing is coded twice. */
		assert_true(error_of(held[kind], original, g[i].begin, g[i].end) == 0.0);
		if (kind == KVP_PLANE_K)
			assert_true(g[i].begin % rule.group_tokens == 0 &&
				    g[i].end % rule.group_tokens == 0);
		for (uint32_t t = g[i].begin; t < g[i].end; t += rule.group_tokens)
			recode("kivi2", kind, original, held[kind], t, t + rule.group_tokens);
	}
}

static void window_holds(const struct kvp_zones *z, uint32_t kind, uint32_t r)
{
	uint32_t n = z->tokens, tail = r < n ? r : n, group = r ? r : 32;

	if (kind == KVP_PLANE_K)
		tail = n % group;
	assert_int_equal(z->warm_end, n - tail);
	assert_true(error_of(held[kind], original, n - tail, n) == 0.0);
	if (n - tail >= 32)
		assert_true(fabs(error_of(held[kind], original, 0, n - tail) / .1539 - 1.0) < .15);
}

static void a016_residual_window(void **state)
{
	static const uint32_t windows[] = { 0, 32, 128 };
	static float one_by_one[N];

	(void)state;
	inputs_fill(original, N, KVP_DTYPE_F32, INPUT_NORMAL);
	for (uint32_t i = 0; i < 6; i++) {
		uint32_t kind = i & 1, r = windows[i / 2];
		struct kvp_zones z = { 0 };

		for (uint32_t n = 1; n <= 300; n++) {
			uint32_t before = z.warm_end;

			grow(&z, kind, r, n);
			window_holds(&z, kind, r);
			if (kind == KVP_PLANE_V)
				assert_int_equal(z.warm_end - before, n > r);
			else
				assert_int_equal(z.warm_end - before, n % (r ? r : 32) ? 0
								      : r              ? r
										       : 32);
		}
		memcpy(one_by_one, held[kind], sizeof one_by_one);
		/* In pieces of any size: the same tokens are coded, and to the same values. */
		memset(&z, 0, sizeof z);
		while (z.tokens < 300) {
			uint32_t n = z.tokens + 1 + (uint32_t)(inputs_random() % 90);

			grow(&z, kind, r, n < 300 ? n : 300);
			window_holds(&z, kind, r);
		}
		assert_true(error_of(held[kind], one_by_one, 0, 300) == 0.0);
	}
}

/* ---- coding again what was coded ---- */

/*
 * An archive that is made of the warm zone: what it is off the original, and off what it was made
 * of, beside one that is made of the original. Measured on N(0,1), within 3 %.
 */
static void a034_archive_of_what_was_coded(void **state)
{
	static const struct {
		const char *warm, *archive;
		double of_warm, of_original, by_itself;
	} cases[] = {
		/* Its ranges keep their ends, and its levels are nested: nothing is lost. */
		{ "kivi4", "kivi2", .1470, .1544, .1544 },
		{ "tq4-nc", "tq2-nc", .1140, .1228, .1194 },
		{ "tq4-nc", "kivi2", .1544, .1637, .1544 },
		{ "kivi4", "tq2-nc", .1194, .1257, .1194 },
		{ "int8", "kivi2", .1544, .1544, .1544 },
	};
	static float warm[N], archive[N], direct[N];

	(void)state;
	inputs_fill(original, N, KVP_DTYPE_F32, INPUT_NORMAL);
	for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
		uint32_t kind = i & 1;
		double got[3];

		recode(cases[i / 2].warm, kind, original, warm, 0, TOKENS);
		recode(cases[i / 2].archive, kind, warm, archive, 0, TOKENS);
		recode(cases[i / 2].archive, kind, original, direct, 0, TOKENS);
		got[0] = error_of(archive, warm, 0, TOKENS);
		got[1] = error_of(archive, original, 0, TOKENS);
		got[2] = error_of(direct, original, 0, TOKENS);
		printf("%s, then %s: off the warm one %.4f, off the original %.4f; without "
		       "the warm one %.4f\n",
			cases[i / 2].warm, cases[i / 2].archive, got[0], got[1], got[2]);
		assert_true(fabs(got[0] / cases[i / 2].of_warm - 1.0) < .03);
		assert_true(fabs(got[1] / cases[i / 2].of_original - 1.0) < .03);
		assert_true(fabs(got[2] / cases[i / 2].by_itself - 1.0) < .03);
	}
}

static int setup(void **state)
{
	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	return kvp_kernels_new(KVP_CPU_ALL, &k);
}

static int teardown(void **state)
{
	(void)state;
	k = kvp_kernels_free(k);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a016_residual_window),
		cmocka_unit_test(a034_archive_of_what_was_coded),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
