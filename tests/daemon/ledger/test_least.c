/* SPDX-License-Identifier: Apache-2.0 */
/* The first tokens of running sequences stay while anything else could go, and yield after that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/clock.h"
#include "tests/daemon/ledger/dp_world.h"

#define T      16u
#define ROOM   48u /* blocks with a payload */
#define LONG   ROOM
#define LEAST  4u /* blocks that each of them keeps */
#define SECOND (UINT64_C(1000000000))

struct sequence {
	struct dp_client *c;
	uint32_t space, n;
	kvp_token tokens[LONG * T];
	struct dp_block block[LONG];
};

/* Sequence `seed` of a session of its own. */
static void begin(struct dp_world *w, struct sequence *s, uint32_t seed)
{
	s->c = dp_attach(w, w->tenant);
	s->space = dp_space(s->c, "m", 4);
	s->n = 0;
	for (uint32_t i = 0; i < LONG * T; i++)
		s->tokens[i] = seed * 10000 + i;
}

/* Its session writes it on by n blocks. */
static void write_on(struct sequence *s, uint32_t n)
{
	for (; n; n--, s->n++)
		assert_int_equal(
			dp_put(s->c, s->space, s->n ? dp_ref(&s->block[s->n - 1]) : dp_root(),
				s->tokens + (size_t)s->n * T, T, &s->block[s->n]),
			0);
}

static uint32_t found(struct sequence *s)
{
	struct kvp_hit hits[LONG];

	return dp_find(s->c, s->space, s->tokens, s->n * T, hits, LONG);
}

static struct kvpd_limits start(struct dp_world *w, uint32_t least_tokens, uint32_t recipes)
{
	struct kvpd_limits limits;

	dp_defaults(w, &limits);
	limits.max_blocks = ROOM;
	limits.recipe_blocks = recipes;
	limits.min_materialized = least_tokens;
	dp_start(w, &limits);
	return limits;
}

/*
 * After ten seconds of silence a sequence runs no more. Where a machine takes as long for what is looked at, that
 * proves nothing.
 */
static bool still_running(uint64_t began)
{
	return kvpd_now_ns() - began < 9 * SECOND;
}

/* Four sequences that run, and one that goes on at their cost. */
static void first_tokens_stay(struct dp_world *w)
{
	uint64_t began = kvpd_now_ns(), yielded[2];
	uint32_t of_idle, of_on, of[4];
	struct sequence s[4], idle, on;

	begin(w, &idle, 9);
	write_on(&idle, 8);
	idle.c = dp_detach(idle.c);
	for (uint32_t i = 0; i < 4; i++) {
		begin(w, &s[i], i);
		write_on(&s[i], 10);
	}
	begin(w, &on, 4);
	idle.c = on.c;
	write_on(&on, 8);
	of_idle = found(&idle);
	write_on(&on, ROOM - 4 * LEAST - 8);
	for (uint32_t i = 0; i < 4; i++)
		of[i] = found(&s[i]);
	yielded[0] = dp_figure(w, "yielded_total");
	write_on(&on, 2 * LEAST);
	of_on = found(&on);
	yielded[1] = dp_figure(w, "yielded_total");
	dp_check(w);
	if (!still_running(began))
		return;
	/* What nobody writes any more has no least. */
	assert_int_equal(of_idle, 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(of[i], LEAST);
	assert_int_equal(yielded[0], 0);
	/* At last all that is left is what they keep, and who writes: nobody is refused, and each block is counted. */
	assert_int_equal(of_on, on.n);
	assert_int_equal(yielded[1], 2 * LEAST);
}

static void a_least_stays_and_yields(void **state)
{
	struct dp_world w;

	(void)state;
	(void)start(&w, LEAST * T, 1024);
	assert_int_equal(dp_figure(&w, "min_materialized_tokens"), LEAST * T);
	first_tokens_stay(&w);
	dp_stop(&w);
}

/* Descriptors without a payload are free at once. */
static void a_least_stays_without_recipes(void **state)
{
	struct dp_world w;

	(void)state;
	(void)start(&w, LEAST * T - T + 1, 0); /* a block that begins within it belongs to it */
	first_tokens_stay(&w);
	dp_stop(&w);
}

static void lower_blocks(struct dp_world *w, struct kvpd_limits *limits, uint32_t blocks)
{
	struct kvpd_tenant_config tenant = { .name = (char *)(uintptr_t) "one" };

	limits->max_blocks = blocks;
	tenant.limits = *limits;
	w->config.tenants = &tenant;
	w->config.n_tenants = 1;
	assert_int_equal(kvpd_reconfigure(w->ledger, &w->config), 0);
	w->config.tenants = NULL;
	w->config.n_tenants = 0;
	dp_await_most(w, "blocks", blocks);
}

/* What goes in one batch is as much of each sequence as it may lose. */
static void a_least_stays_in_a_batch(void **state)
{
	uint64_t began = kvpd_now_ns(), yielded[2];
	struct kvpd_limits limits;
	struct sequence s[4];
	struct dp_world w;
	uint32_t of[4];

	(void)state;
	limits = start(&w, LEAST * T, 1024);
	for (uint32_t i = 0; i < 4; i++) {
		begin(&w, &s[i], i);
		write_on(&s[i], 12);
	}
	lower_blocks(&w, &limits, 4 * LEAST);
	for (uint32_t i = 0; i < 4; i++)
		of[i] = found(&s[i]);
	yielded[0] = dp_figure(&w, "yielded_total");
	lower_blocks(&w, &limits, 2);
	yielded[1] = dp_figure(&w, "yielded_total");
	for (uint32_t i = 0; i < 4 && still_running(began); i++)
		assert_int_equal(of[i], LEAST);
	if (still_running(began)) {
		assert_int_equal(yielded[0], 0);
		assert_int_equal(yielded[1], 4 * LEAST - 2);
	}
	dp_check(&w);
	dp_stop(&w);
}

/* Larger than all that there is: as if there were none, and no tenant has more than its share. */
static void more_than_there_is_yields(void **state)
{
	uint64_t began = kvpd_now_ns(), yielded, gone;
	struct sequence s[3];
	struct dp_world w;

	(void)state;
	(void)start(&w, 1u << 20, 64);
	for (uint32_t i = 0; i < 3; i++) {
		begin(&w, &s[i], i);
		write_on(&s[i], LONG - 8);
		assert_int_equal(found(&s[i]), s[i].n);
		assert_in_range(dp_figure(&w, "blocks"), 1, ROOM);
	}
	yielded = dp_figure(&w, "yielded_total");
	gone = 3 * (LONG - 8) - dp_figure(&w, "blocks");
	if (still_running(began))
		assert_int_equal(yielded, gone);
	dp_check(&w);
	dp_stop(&w);
}

/* Nothing is kept where the tenant wants nothing kept. */
static void none_is_none(void **state)
{
	struct sequence s[2];
	struct dp_world w;

	(void)state;
	(void)start(&w, 0, 64);
	for (uint32_t i = 0; i < 2; i++) {
		begin(&w, &s[i], i);
		write_on(&s[i], LONG);
	}
	assert_int_equal(found(&s[0]), 0);
	assert_int_equal(dp_figure(&w, "yielded_total"), 0);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_least_stays_and_yields),
		cmocka_unit_test(a_least_stays_without_recipes),
		cmocka_unit_test(a_least_stays_in_a_batch),
		cmocka_unit_test(more_than_there_is_yields),
		cmocka_unit_test(none_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
