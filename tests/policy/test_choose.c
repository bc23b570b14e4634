/* SPDX-License-Identifier: Apache-2.0 */
/* The optimiser under ladder and rematerialization, on problems of no meaning. */
#include "tests/policy/plan_test.h"

#include "policy/choose.h"

enum { ITEMS = 400, PER_ITEM = 6 };

static struct choose_option option[ITEMS * PER_ITEM];
static uint32_t first[ITEMS + 1], parent[ITEMS], picked[ITEMS];

/* Every item can be gone (level 0, nothing used), so that every tree has a solution. */
static struct choose_problem random_problem(uint32_t items, uint32_t dims, int trees)
{
	struct choose_problem p = {
		.items = items, .first = first, .options = option, .parent = parent
	};
	double sum[CHOOSE_DIMS] = { 0 };
	uint32_t i, k, d, n = 0;

	for (i = 0; i < items; i++) {
		uint32_t count = 1 + below(PER_ITEM);

		parent[i] = trees && i && below(3) ? below(i) : CHOOSE_NONE;
		first[i] = n;
		option[n++] = (struct choose_option){ .cost = 10 * uniform() };
		for (k = 1; k < count; k++) {
			struct choose_option o = { .cost = 10 * uniform() * uniform() };

			o.level = below(CHOOSE_LEVELS);
			o.support = below(CHOOSE_LEVELS);
			for (d = 0; d < dims; d++)
				o.use[d] = below(3) ? floor(1000 * uniform()) : 0;
			for (d = 0; d < dims; d++)
				sum[d] += o.use[d] / count;
			option[n++] = o;
		}
	}
	first[items] = n;
	for (d = 0; d < CHOOSE_DIMS; d++)
		p.budget[d] = d < dims ? floor(sum[d] * uniform()) : INFINITY;
	return p;
}

/* Cost of a choice; INFINITY when it breaks a budget or a tree. */
static double judge(const struct choose_problem *p, const uint32_t *pick)
{
	double cost = 0, used[CHOOSE_DIMS] = { 0 };
	uint32_t i, d;

	for (i = 0; i < p->items; i++) {
		const struct choose_option *o = &p->options[pick[i]];

		assert_true(pick[i] >= p->first[i] && pick[i] < p->first[i + 1]);
		if (p->parent[i] != CHOOSE_NONE &&
			o->level > p->options[pick[p->parent[i]]].support)
			return INFINITY;
		cost += o->cost;
		for (d = 0; d < CHOOSE_DIMS; d++)
			used[d] += o->use[d];
	}
	for (d = 0; d < CHOOSE_DIMS; d++)
		if (used[d] > p->budget[d])
			return INFINITY;
	return cost;
}

static double enumerate(const struct choose_problem *p, uint32_t *pick, uint32_t i)
{
	double best = INFINITY;
	uint32_t k;

	if (i == p->items)
		return judge(p, pick);
	for (k = p->first[i]; k < p->first[i + 1]; k++) {
		pick[i] = k;
		best = fmin(best, enumerate(p, pick, i + 1));
	}
	return best;
}

/* Few items: the optimum, and a bound that is one. */
static void test_small_is_exact(void **state)
{
	struct choose *c = choose_new(8);
	uint32_t round;

	(void)state;
	seed_from_env(60);
	for (round = 0; round < 3000; round++) {
		uint32_t items = 1 + below(6), pick[8];
		struct choose_problem p = random_problem(items, 1 + below(CHOOSE_DIMS), round % 2);
		struct choose_result r;
		double best = enumerate(&p, pick, 0);

		choose_solve(c, &p, picked, &r);
		assert_true(best < INFINITY && r.exact);
		assert_true(fabs(judge(&p, picked) - r.cost) < 1e-9);
		assert_true(fabs(r.cost - best) <= 1e-8 * best);
		assert_true(r.bound <= best * (1 + 1e-9));
	}
	choose_free(c);
}

/* Many items: legal, and close to the bound. */
static void test_large_is_close(void **state)
{
	struct choose *c = choose_new(ITEMS);
	double worst = 0;
	uint32_t round;

	(void)state;
	seed_from_env(61);
	for (round = 0; round < 60; round++) {
		struct choose_problem p = random_problem(ITEMS, 1 + below(2), round % 2);
		struct choose_result r;

		choose_solve(c, &p, picked, &r);
		assert_true(fabs(judge(&p, picked) - r.cost) < 1e-6);
		assert_true(r.bound <= r.cost * (1 + 1e-9));
		worst = fmax(worst, r.cost / r.bound - 1);
		assert_true(r.cost <= 1.05 * r.bound);
	}
	print_message("at most %.3f %% above the bound\n", 100 * worst);
	choose_free(c);
}

/* A budget that cannot be met: the least excess, and never at the expense of a hard one. */
static void test_impossible(void **state)
{
	struct choose *c = choose_new(2);
	struct choose_option o[] = {
		{ .cost = 0, .use = { 100, 0 }, .support = 2 },
		{ .cost = 1, .use = { 40, 70 }, .support = 2 },
		{ .cost = 5, .use = { 60, 10 }, .support = 2 },
	};
	uint32_t begin[] = { 0, 3 }, pick;
	struct choose_problem p = { .items = 1,
		.first = begin,
		.options = o,
		.budget = { 30, 20, INFINITY, INFINITY },
		.hard = 2 };
	struct choose_result r;

	(void)state;
	choose_solve(c, &p, &pick, &r);
	assert_int_equal(pick, 2);
	assert_true(r.excess[0] == 30 && r.excess[1] == 0);
	p.budget[1] = 70;
	choose_solve(c, &p, &pick, &r);
	assert_int_equal(pick, 1);
	assert_true(r.excess[0] == 10 && r.excess[1] == 0);
	choose_free(c);
	assert_null(choose_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_small_is_exact),
		cmocka_unit_test(test_large_is_close),
		cmocka_unit_test(test_impossible),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
