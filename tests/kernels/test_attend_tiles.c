/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by matrix tiles with their instructions in C (tiles.c), on machines that have AVX-512 VBMI: native rows
 * by tiles of bf16, and tq in 4 bits by tiles of bytes. Against a double-precision reference, and reference C.
 */
#include "kernels/dsp.h"
#include "kernels/kvp_attend.h"
#include "tests/kernels/attend_rig.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/tiles.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct kvp_kernels *plain, *tiles;
/* With `--few`, for sanitizers, every fifth case of the longest list; the seed says which. */
static uint32_t stride = 1;

/*
 * A query's number and a weight are off by up to 2^-17 of themselves, keys and values by nothing. So a score is,
 * at most, by 2^-17 of the sum of |q k| / sqrt(dim), which for these inputs, N(0,1), is below sqrt(dim) and
 * so 1.8e-4 for 512 channels; but since the parts of a sum are off either way, by a few 2^-18 at most. A
 * weight is off by that and by 2^-17 more.
 */
static const struct tolerance most = { 1.22e-4, 1e-4, 4e-5 };

static void compare(struct rig *g, const struct tolerance *within, const char *what)
{
	rig_compare(g, tiles, within, "tiles", what);
}

/* From one query, which is not theirs, to more than a pass; dims that are, and 80, which is not; tails. */
static void native_of_any_size(void **state)
{
	static const uint32_t dims[] = { 32, 64, 80, 96, 128, 160, 256, 512 };
	static const uint32_t groups[] = { 1, 2, 3, 4, 5, 8, 9, 12 };

	(void)state;
	if (!tiles)
		skip();
	for (uint32_t i = (uint32_t)(inputs_seed % stride); i < 8 * 8 * 2; i += stride) {
		struct rig *g = rig_new(plain, 1 + i % 3, 2 * groups[i / 8 % 8], 2, dims[i % 8]);
		const uint32_t dtype = i / 64 ? KVP_DTYPE_F16 : KVP_DTYPE_BF16;
		char what[80];

		for (uint32_t t = 0; t < 4; t++)
			rig_add_of(g, "native", "native",
				t < 2 ? 64 + 67 * t : 1 + (uint32_t)(inputs_random() % 40), dtype);
		g->a.position = g->total - g->a.queries;
		g->a.causal = 1;
		g->a.window = i % 3 ? 0 : 100;
		g->a.n_splits = 1 + i % 3;
		snprintf(what, sizeof what, "dtype %u dim %u queries %u of %u heads", dtype,
			g->a.k_dim, g->a.queries, g->a.q_heads);
		compare(g, &most, what);
		rig_free(g);
	}
}

/* Both dtypes and codecs in one call, with masks; bytes off by what these are. */
static void among_others(void **state)
{
	static const struct tolerance bytes = { 5e-2, 4e-2, 3e-2 };

	(void)state;
	if (!tiles)
		skip();
	for (uint32_t i = 0; i < 6; i++) {
		struct rig *g = rig_new(plain, 2, 8, 2, 128);

		rig_add_of(g, "native", "native", 70, KVP_DTYPE_BF16);
		rig_add_of(g, "native", "native", 33, KVP_DTYPE_F16);
		rig_add(g, "tq4", "tq4", 90);
		rig_add_of(g, "native", "tq4", 50, KVP_DTYPE_F32);
		rig_add_of(g, "native", "native", 31, KVP_DTYPE_BF16);
		g->a.mask_stride = g->total;
		g->mask = rig_alloc(2 * (size_t)g->total * sizeof *g->mask);
		for (uint32_t t = 0; t < 2 * g->total; t++)
			g->mask[t] = i % 2 && !(inputs_random() % 3) ? -INFINITY
								     : 0.25f * (float)(t % 5);
		g->a.mask = g->mask;
		compare(g, &bytes, "among others");
		rig_free(g);
	}
}

/* Codes alone, whose tiles are configured for the same shapes. */
static void bytes_alone(void **state)
{
	static const struct tolerance bytes = { 5e-2, 4e-2, 3e-2 };

	(void)state;
	if (!tiles)
		skip();
	for (uint32_t group = 1; group <= 9; group++) {
		struct rig *g = rig_new(plain, 1, 2 * group, 2, 128);

		rig_add(g, "tq4", "tq4", 100);
		rig_add(g, "tq4", "tq4", 13);
		compare(g, &bytes, "tq4");
		rig_free(g);
	}
}

#define ALL 65536u

/* A row each: the number in the channel that its query picks, whose other channels are 0. */
static void score_all(uint32_t dtype, float query, float *s)
{
	const uint32_t dim = 32, rows = ALL / dim;
	const size_t pairs_bytes = kvp_pairs_bytes(dim);
	float *q = rig_alloc(8 * dim * sizeof *q), sums[8] = { 0.0f };
	uint16_t *x = rig_alloc(ALL * sizeof *x);
	void *pairs = rig_alloc(pairs_bytes);
	float some[8 * 128] __attribute__((aligned(64)));

	for (uint32_t i = 0; i < ALL; i++)
		x[i] = (uint16_t)i;
	for (uint32_t c = 0; c < dim; c += 8) {
		struct kvp_queries in = { 8, q, sums, NULL, 0, { NULL, NULL } };

		memset(q, 0, 8 * dim * sizeof *q);
		for (uint32_t i = 0; i < 8; i++)
			q[i * dim + c + i] = query;
		assert_int_equal(tiles->tiles.pairs(q, 8, dim, dtype, pairs), 1);
		in.pairs[dtype - KVP_DTYPE_F16] = pairs;
		tiles->tiles.begin(8);
		for (uint32_t t = 0; t < rows; t += 64) {
			struct kvp_rows r = { .form = KVP_FORM_NATIVE,
				.format = dtype,
				.dim = dim,
				.n = 64,
				.stride = 64,
				.codes = (const uint8_t *)(x + (size_t)t * dim) };

			tiles->attend[KVP_FORM_NATIVE].score(&r, &in, some, 128);
			for (uint32_t j = 0; j < 64; j++)
				for (uint32_t i = 0; i < 8; i++)
					s[(t + j) * dim + c + i] = some[i * 128 + j];
		}
		tiles->tiles.end();
	}
	free(q);
	free(x);
	free(pairs);
}

static float value_of(uint32_t dtype, uint32_t h)
{
	const int e = (int)(h >> 10 & 31);
	const uint32_t u = h << 16;
	float x;

	if (dtype == KVP_DTYPE_BF16) {
		memcpy(&x, &u, sizeof x);
		return fpclassify(x) == FP_SUBNORMAL ? 0.0f : x;
	}
	x = ldexpf((float)(h & 1023) + (e ? 1024.0f : 0.0f), (e ? e : 1) - 25);
	return h & 0x8000 ? -x : x;
}

/* Whether 32 numbers beside one another, which are one row, are all such. */
static int row_is_finite(uint32_t dtype, uint32_t h)
{
	const uint32_t exponent = dtype == KVP_DTYPE_F16 ? 0x7c00 : 0x7f80;

	for (uint32_t i = h / 32 * 32; i < h / 32 * 32 + 32; i++)
		if ((i & exponent) == exponent)
			return 0;
	return 1;
}

/* Every number in fp16, its denormal ones too, and in bf16, where these are 0, comes through as it is. */
static void every_number_is_exact(void **state)
{
	float *s = rig_alloc(ALL * sizeof *s);

	(void)state;
	if (!tiles) {
		free(s);
		skip();
	}
	for (uint32_t dtype = KVP_DTYPE_F16; dtype <= KVP_DTYPE_BF16; dtype++) {
		score_all(dtype, 1.0f, s);
		for (uint32_t h = 0; h < ALL; h++) {
			if (!row_is_finite(dtype, h))
				assert_false(isfinite(s[h]));
			else if (s[h] != value_of(dtype, h))
				fail_msg("dtype %u %#x: %g instead of %g", dtype, h, (double)s[h],
					(double)value_of(dtype, h));
		}
	}
	free(s);
}

/* Queries keep 2^-17 of themselves, whatever their size, and infinite ones stay no numbers. */
static void queries_are_rounded_so_far(void **state)
{
	float *s = rig_alloc(ALL * sizeof *s);

	(void)state;
	if (!tiles) {
		free(s);
		skip();
	}
	for (uint32_t i = 0; i < 24 / stride; i++) {
		const float q = ldexpf(1.0f + (float)(inputs_random() % (1 << 23)) * 0x1p-23f,
			(int)(inputs_random() % 60) - 30);
		const uint32_t one = 0x3c00; /* in fp16, whose rows around it are finite */

		score_all(KVP_DTYPE_F16, q, s);
		if (!(fabsf(s[one] - q) <= 0x1p-17f * q))
			fail_msg("%a instead of %a", (double)s[one], (double)q);
	}
	score_all(KVP_DTYPE_F16, INFINITY, s);
	assert_false(isfinite(s[0x3c00]));
	score_all(KVP_DTYPE_F16, NAN, s);
	assert_false(isfinite(s[0x3c00]));
	free(s);
}

/* What is no number in a key, or a query, reaches the queries that see it, and no other. */
static void with_nan(void **state)
{
	(void)state;
	if (!tiles)
		skip();
	for (int i = 0; i < 4; i++) {
		struct rig *g = rig_new(plain, 2, 10, 2, 128);
		struct kvp_attend_result res = { 0 };
		uint16_t *key;

		rig_add_of(g, "native", "native", 64, i / 2 ? KVP_DTYPE_F16 : KVP_DTYPE_BF16);
		g->a.causal = 1;
		g->a.position = 62; /* query 1 alone sees the last token */
		key = g->data[0];
		if (i % 2)
			key[63 * 128 + 7] = 0x7fff; /* of KV head 0 */
		else
			g->q[(10 + 3) * 128 + 7] = NAN;
		rig_run(g, tiles, &res);
		for (uint32_t row = 0; row < 20; row++) {
			const int reached = i % 2 ? row >= 10 && row < 15 : row == 13;

			for (uint32_t c = 0; c < 128; c++)
				assert_true(isfinite(g->out[row * 128 + c]) == !reached);
		}
		rig_free(g);
	}
}

static int setup(void **state)
{
	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	if (kvp_kernels_new(KVP_CPU_ALL, &plain) < 0)
		return -1;
	if (!(kvp_cpu_detect() & KVP_CPU_VBMI)) {
		printf("AVX-512 VBMI: not on this machine, skipped\n");
		return 0;
	}
	if (kvp_kernels_new(KVP_CPU_ALL, &tiles) < 0)
		return -1;
	kvp_attend_init_tiles(tiles);
	kvp_attend_init_pairs(tiles);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kvp_kernels_free(tiles);
	kvp_kernels_free(plain);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(native_of_any_size),
		cmocka_unit_test(among_others),
		cmocka_unit_test(bytes_alone),
		cmocka_unit_test(every_number_is_exact),
		cmocka_unit_test(queries_are_rounded_so_far),
		cmocka_unit_test(with_nan),
	};

	if (argc > 1 && !strcmp(argv[1], "--few"))
		stride = 5;
	return cmocka_run_group_tests(tests, setup, teardown);
}
