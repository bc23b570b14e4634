/* SPDX-License-Identifier: Apache-2.0 */
/* Widths under a budget: what a cut frees, what it loses beside the least there is, who goes first. */
#include "tests/policy/plan_test.h"

#include <math.h>

#include "policy/kvp_allot.h"

#define BLOCKS 4096u

static const uint64_t sizes[KVP_WIDTHS] = { 16384, 8448, 4352, 3328, 2304 };

struct block {
	float importance;
	uint32_t width, after;
};

struct step {
	double slope, cost;
	uint64_t bytes;
};

static struct block block[BLOCKS];
static struct step step[BLOCKS * KVP_WIDTHS];

static void count(uint32_t n, struct kvp_allot_counts *ret)
{
	memset(ret, 0, sizeof(*ret));
	for (uint32_t i = 0; i < n; i++)
		ret->blocks[block[i].width][kvp_allot_bucket(block[i].importance)]++;
}

/* What the second pass makes of the blocks: bytes freed and error taken. */
static uint64_t carry_out(uint32_t n, struct kvp_allot_cut cut, double *ret_loss)
{
	uint64_t freed = 0;

	*ret_loss = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct block *b = &block[i];

		b->after = kvp_allot_width(&cut, b->width, b->importance);
		assert_true(b->after >= b->width);
		freed += sizes[b->width] - sizes[b->after];
		*ret_loss += b->importance *
			     (kvp_width_distortion[b->after] - kvp_width_distortion[b->width]);
	}
	return freed;
}

static int by_slope(const void *a, const void *b)
{
	double x = ((const struct step *)a)->slope, y = ((const struct step *)b)->slope;

	return (x > y) - (x < y);
}

/* The least error for so many bytes, were blocks divisible: the steps of every block, cheapest first. */
static double least_loss(uint32_t n, uint32_t lowest, uint64_t save)
{
	uint32_t steps = 0;
	double loss = 0;

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t w = block[i].width; w < lowest;) {
			uint32_t best = w + 1;
			double least = INFINITY;

			for (uint32_t to = w + 1; to <= lowest; to++) {
				double s = (kvp_width_distortion[to] - kvp_width_distortion[w]) /
					   (double)(sizes[w] - sizes[to]);

				if (s <= least) {
					least = s;
					best = to;
				}
			}
			step[steps++] = (struct step){
				.slope = block[i].importance * least,
				.cost = block[i].importance *
					(kvp_width_distortion[best] - kvp_width_distortion[w]),
				.bytes = sizes[w] - sizes[best],
			};
			w = best;
		}
	}
	qsort(step, steps, sizeof(*step), by_slope);
	for (uint32_t i = 0; i < steps && save; i++) {
		uint64_t part = step[i].bytes < save ? step[i].bytes : save;

		loss += step[i].cost * (double)part / (double)step[i].bytes;
		save -= part;
	}
	return loss;
}

static void test_random(void **state)
{
	(void)state;
	for (uint32_t round = 0; round < 200; round++) {
		uint32_t n = 1 + (uint32_t)(rnd() % BLOCKS),
			 lowest = 1 + (uint32_t)(rnd() % (KVP_WIDTHS - 1));
		struct kvp_allot_counts counts;
		struct kvp_allot_cut cut;
		uint64_t most = 0, save, freed;
		double loss, least, worst = 0;

		for (uint32_t i = 0; i < n; i++) {
			block[i].importance = exp2f((float)(rnd() % 14000) / 1000 - 7);
			block[i].width = (uint32_t)(rnd() % (lowest + 1));
			most += sizes[block[i].width] - sizes[lowest];
			worst = fmax(worst, block[i].importance * kvp_width_distortion[lowest]);
		}
		save = most ? 1 + rnd() % most : 0;
		count(n, &counts);
		kvp_allot_cut(&counts, sizes, lowest, save, &cut, &freed);
		assert_true(freed >= save);
		assert_true(freed - save < sizes[0]); /* less than one step more than is enough */
		assert_int_equal(carry_out(n, cut, &loss), freed);
		least = least_loss(n, lowest, save);
		assert_true(loss <= least * exp2(1. / 8) + worst + 1e-9);
		for (uint32_t i = 0; i < n; i++)
			assert_true(block[i].after <= lowest);
	}
}

/* Of two blocks of one width the one that matters less never stays more precise, a bucket apart. */
static void test_order(void **state)
{
	struct kvp_allot_counts counts;
	struct kvp_allot_cut cut;
	uint64_t freed;
	double loss;

	(void)state;
	for (uint32_t i = 0; i < 1000; i++)
		block[i] = (struct block){ .importance = exp2f((float)i / 100 - 5) };
	count(1000, &counts);
	kvp_allot_cut(&counts, sizes, KVP_WIDTH_2, 1000 * (sizes[0] - sizes[2]), &cut, &freed);
	(void)carry_out(1000, cut, &loss);
	for (uint32_t i = 0; i + 13 < 1000; i++)
		assert_true(block[i].after >= block[i + 13].after);
	assert_true(block[0].after > block[999].after);
}

static void test_ends(void **state)
{
	struct kvp_allot_counts counts = { 0 };
	struct kvp_allot_cut cut;
	uint64_t freed;
	double loss;

	(void)state;
	/* Nothing there, nothing wanted, and more than there is. */
	kvp_allot_cut(&counts, sizes, KVP_WIDTH_2, 1, &cut, &freed);
	assert_int_equal(freed, 0);
	for (uint32_t i = 0; i < 100; i++)
		block[i] = (struct block){ .importance = 1 };
	count(100, &counts);
	kvp_allot_cut(&counts, sizes, KVP_WIDTH_2, 0, &cut, &freed);
	assert_int_equal(carry_out(100, cut, &loss), 0);
	kvp_allot_cut(&counts, sizes, KVP_WIDTH_4, UINT64_MAX, &cut, &freed);
	assert_int_equal(freed, 100 * (sizes[0] - sizes[2]));
	assert_int_equal(carry_out(100, cut, &loss), freed);
	/* All equal: exactly as many as are needed. */
	kvp_allot_cut(&counts, sizes, KVP_WIDTH_8, 10 * (sizes[0] - sizes[1]), &cut, &freed);
	assert_int_equal(freed, 10 * (sizes[0] - sizes[1]));
	assert_int_equal(carry_out(100, cut, &loss), freed);
	/* A space that is exact. */
	kvp_allot_cut(&counts, sizes, 0, 1, &cut, &freed);
	assert_int_equal(freed, 0);
}

static void test_importance(void **state)
{
	float i = 1;

	(void)state;
	assert_int_equal(kvp_allot_bucket(0), 0);
	assert_int_equal(kvp_allot_bucket(-1), 0);
	assert_int_equal(kvp_allot_bucket(NAN), 0);
	assert_int_equal(kvp_allot_bucket(1), 64);
	assert_int_equal(kvp_allot_bucket(INFINITY), KVP_ALLOT_BUCKETS - 1);
	for (uint32_t k = 0; k < 20; k++)
		i = kvp_allot_learn(i, 3);
	assert_true(fabsf(i - (3 - 2 * powf(.9f, 20))) < 1e-5f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_order),
		cmocka_unit_test(test_ends),
		cmocka_unit_test(test_importance),
	};

	seed_from_env(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
