/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over tq in 4 bits by bytes, with matrix tiles and with vectors: against a double-precision
 * reference, and against each other.
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

static struct kvp_kernels *plain; /* that encode */
static struct kvp_kernels *ways[2];
static size_t n_ways;
/* With `--few`, for sanitizers, every fifth case of the longest list; the seed says which. */
static uint32_t stride = 1;

static const char *name_of(size_t way)
{
	return ways[way]->tiles.begin ? "tiles" : "bytes";
}

/* A centroid and a query's number are a byte: so much is a result off, where four bits cost a tenth of its length. */
static const struct tolerance most = { 5e-2, 4e-2, 3e-2 };

/*
 * Each way against the reference, and both against each other: sums of integers are what they are, and
 * everything else is the same code.
 */
static void compare_ways(struct rig *g, const char *what)
{
	float *first = rig_alloc(g->n * sizeof *first);

	for (size_t way = 0; way < n_ways; way++) {
		rig_compare(g, ways[way], &most, name_of(way), what);
		if (way == 0)
			memcpy(first, g->out, g->n * sizeof *first);
		if (g->n > (size_t)g->a.kv_heads * g->a.v_dim) /* one query alone: floats */
			assert_memory_equal(g->out, first, g->n * sizeof *first);
	}
	free(first);
}

/* From few queries to more than one pass; dims that fill pieces of 128 channels and do not; tails. */
static void of_any_size(void **state)
{
	static const uint32_t dims[] = { 64, 128, 192, 256, 320, 512 };
	static const uint32_t groups[] = { 1, 3, 4, 5, 8, 9, 12 };
	static const char *const names[] = { "tq4", "tq4-nc", "tq4-h3-sphere", "tq4-plain-wide" };

	(void)state;
	if (!n_ways)
		skip();
	for (uint32_t i = (uint32_t)(inputs_seed % stride); i < 6 * 7 * 4; i += stride) {
		struct rig *g = rig_new(plain, 1 + i % 4, 2 * groups[i % 7], 2, dims[i % 6]);
		const char *name = names[i / 7 % 4];
		char what[80];

		for (uint32_t t = 0; t < 4; t++)
			rig_add(g, name, name,
				t < 2 ? 64 + 67 * t : 1 + (uint32_t)(inputs_random() % 40));
		g->a.position = g->total - g->a.queries;
		g->a.causal = 1;
		g->a.window = i % 3 ? 0 : 100;
		g->a.n_splits = 1 + i % 3;
		snprintf(what, sizeof what, "%s dim %u queries %u of %u heads", name, g->a.k_dim,
			g->a.queries, g->a.q_heads);
		compare_ways(g, what);
		rig_free(g);
	}
}

/*
 * A sphere's book fits bytes at its own scale: at the next one beside it results were off by half as much
 * again, before a query's numbers were bytes, too. Over many rows, because one alone says little.
 */
static void of_spheres(void **state)
{
	static const uint32_t dims[] = { 64, 128, 192, 256, 320, 512 };

	(void)state;
	for (size_t i = 0; i < n_ways * 6; i++) {
		struct rig *g = rig_new(plain, 8, 48, 2, dims[i % 6]);
		struct kvp_attend_result res = { 0 };
		double sum = 0.0;

		rig_add(g, "tq4-h3-sphere", "tq4-h3-sphere", 150);
		rig_reference(g);
		rig_run(g, ways[i / 6], &res);
		for (size_t row = 0; row < 8 * 48; row++) {
			double apart = 0.0, length = 0.0;

			for (uint32_t c = 0; c < g->a.v_dim; c++) {
				const double x = (double)g->ref[row * g->a.v_dim + c];
				const double y = (double)g->out[row * g->a.v_dim + c];

				apart += (x - y) * (x - y);
				length += x * x;
			}
			sum += apart / length;
		}
		if (!(sqrt(sum / (8 * 48)) < 9.5e-3))
			fail_msg("dim %u by %s: %g of the length", g->a.v_dim, name_of(i / 6),
				sqrt(sum / (8 * 48)));
		rig_free(g);
	}
}

/* All queries ask for the key that is the first one, so that it counts 300 times as much as one across. */
static void ask_alike(struct rig *g)
{
	double square = 0.0;

	for (uint32_t i = 128; i < 4 * 128; i++)
		g->q[i] = g->q[i % 128];
	for (uint32_t c = 0; c < 128; c++)
		square += (double)g->q[c] * (double)g->q[c];
	g->a.scale = (float)(log(300.0) / square);
}

/*
 * In every 64 tokens one that counts 300 times as much as each of the others, whose values are all the same: none
 * of these is half of a weight's last bit, and together they are a sixth of the result.
 */
static void of_many_small_weights(void **state)
{
	static const struct tolerance near = { 3e-2, 2e-2, 3e-2 };

	(void)state;
	for (size_t way = 0; way < n_ways; way++) {
		struct rig *g = rig_new(plain, 1, 4, 1, 128);
		struct kvp_attend_result res = { 0 };
		float k[64 * 128], v[64 * 128];

		for (uint32_t part = 0; part < 70; part++) {
			inputs_fill(k, 64 * 128, KVP_DTYPE_F32, INPUT_NORMAL);
			inputs_fill(v, 64 * 128, KVP_DTYPE_F32, INPUT_NORMAL);
			for (uint32_t i = 0; i < 64 * 128; i++) {
				const uint32_t t = i / 128, c = i % 128;

				k[i] = t == part % 64 ? g->q[c] : 1e-3f * k[i];
				v[i] = t == part % 64 ? (c < 64 ? 1.0f : 0.0f)
						      : (c < 64 ? 0.0f : 1.0f) + 1e-2f * v[i];
			}
			g->own_k = k;
			g->own_v = v;
			rig_add(g, "tq4", "tq4", 64);
		}
		ask_alike(g);
		rig_reference(g);
		rig_run(g, ways[way], &res);
		for (size_t row = 0; row < 4; row++)
			rig_compare_row(g, row, &near, name_of(way), "many small weights");
		rig_free(g);
	}
}

/*
 * The same, but values come again after 64 tokens, as those of a picture's rows may, and what counts most cancels:
 * rounded alike every time, small weights would be all there or not at all, by their place, and off by half.
 */
static void of_values_that_come_again(void **state)
{
	static const struct tolerance near = { 1.0, 0.25, 3e-2 };

	(void)state;
	for (size_t way = 0; way < n_ways; way++) {
		struct rig *g = rig_new(plain, 1, 4, 1, 128);
		float k[64 * 128], v[64 * 128], again[64 * 128];

		inputs_fill(again, 64 * 128, KVP_DTYPE_F32, INPUT_NORMAL);
		for (uint32_t part = 0; part < PARTS_MAX; part++) {
			const uint32_t top = (uint32_t)(inputs_random() % 64);

			inputs_fill(k, 64 * 128, KVP_DTYPE_F32, INPUT_NORMAL);
			for (uint32_t i = 0; i < 64 * 128; i++) {
				k[i] = i / 128 == top ? g->q[i % 128] : 1e-3f * k[i];
				v[i] = again[i / 128 == top ? i % 128 : i] *
				       (i / 128 == top && part % 2 ? -1.0f : 1.0f);
			}
			g->own_k = k;
			g->own_v = v;
			rig_add(g, "tq4", "tq4", 64);
		}
		ask_alike(g);
		rig_compare(g, ways[way], &near, name_of(way), "values that come again");
		rig_free(g);
	}
}

/* More queries of all heads than one call of the kernel has room for. */
static void of_many_heads(void **state)
{
	(void)state;
	if (!n_ways)
		skip();
	for (uint32_t kv_heads = 2; kv_heads <= 4; kv_heads++) {
		struct rig *g = rig_new(plain, 8, 128 * kv_heads, kv_heads, 64);

		assert_true(8 * g->a.q_heads > KVP_ATTEND_Q_HEADS_MAX);
		rig_add(g, "tq4", "tq4", 24);
		rig_add(g, "tq4", "tq4", 7);
		compare_ways(g, "many heads");
		rig_free(g);
	}
}

/* Beside what they do not know, with masks, and without anything to see. */
static void among_others(void **state)
{
	(void)state;
	if (!n_ways)
		skip();
	for (uint32_t i = 0; i < 12; i++) {
		struct rig *g = rig_new(plain, 2, 8, 2, 128);

		rig_add(g, "tq4", "kivi2", 64);
		rig_add(g, "kivi4", "tq4", 100);
		rig_add(g, "tq4", "tq4", 90);
		rig_add(g, "tq3", "tq4-nc", 64);
		rig_add(g, "native", "native", 33);
		if (i % 2)
			rig_mask(g);
		compare_ways(g, "among others");
		rig_free(g);
	}
}

/* A query that is no number, or endless, stays so, and no other becomes it. */
static void with_nan(void **state)
{
	(void)state;
	if (!n_ways)
		skip();
	for (int i = 0; i < 2; i++) {
		struct rig *g = rig_new(plain, 1, 8, 2, 128);
		struct kvp_attend_result res = { 0 };

		rig_add(g, "tq4", "tq4", 64);
		g->q[5 * 128 + 3] = i ? NAN : INFINITY;
		for (size_t way = 0; way < n_ways; way++) {
			rig_run(g, ways[way], &res);
			for (uint32_t h = 0; h < 8; h++)
				for (uint32_t c = 0; c < 128; c++)
					assert_true(isfinite(g->out[h * 128 + c]) == (h != 5));
		}
		rig_free(g);
	}
}

/*
 * Values so small that no float is their inverse, all seen and with a mask: what becomes of them is no
 * larger than they are.
 */
static void of_tiny_values(void **state)
{
	(void)state;
	if (!n_ways)
		skip();
	for (int masked = 0; masked < 2; masked++) {
		struct rig *g = rig_new(plain, 2, 8, 2, 128);
		struct kvp_attend_result res = { 0 };
		float first[2 * 8 * 128];

		g->loud = 1e-36f;
		rig_add(g, "tq4", "tq4", 100);
		g->mask = calloc(2 * (size_t)g->total, sizeof *g->mask);
		g->a.mask_stride = g->total;
		g->a.mask = masked ? g->mask : NULL;
		assert_non_null(g->mask);
		for (size_t way = 0; way < n_ways; way++) {
			rig_run(g, ways[way], &res);
			for (size_t i = 0; i < g->n; i++)
				assert_true(fabsf(g->out[i]) < 1e-35f);
			if (way == 0)
				memcpy(first, g->out, sizeof first);
			assert_memory_equal(g->out, first, sizeof first);
		}
		rig_free(g);
	}
}

/* Those that this machine has and that are granted to this process. */
static int setup(void **state)
{
	static const unsigned int mask[] = { KVP_CPU_TILES, KVP_CPU_BYTES };

	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	if (kvp_kernels_new(KVP_CPU_ALL, &plain) < 0)
		return -1;
	for (size_t i = 0; i < sizeof mask / sizeof *mask; i++) {
		struct kvp_kernels *k;

		if (kvp_kernels_new(KVP_CPU_ALL | mask[i], &k) < 0)
			return -1;
		if (k->tiles.step) {
			ways[n_ways++] = k;
			continue;
		}
		printf("%s: not on this machine, skipped\n",
			mask[i] == KVP_CPU_TILES ? "tiles" : "bytes");
		kvp_kernels_free(k);
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (size_t i = 0; i < n_ways; i++)
		kvp_kernels_free(ways[i]);
	kvp_kernels_free(plain);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(of_any_size),
		cmocka_unit_test(of_spheres),
		cmocka_unit_test(of_many_small_weights),
		cmocka_unit_test(of_values_that_come_again),
		cmocka_unit_test(of_many_heads),
		cmocka_unit_test(among_others),
		cmocka_unit_test(with_nan),
		cmocka_unit_test(of_tiny_values),
	};

	if (argc > 1 && !strcmp(argv[1], "--few"))
		stride = 5;
	return cmocka_run_group_tests(tests, setup, teardown);
}
