/* SPDX-License-Identifier: Apache-2.0 */
/* Payers: however many sources one has that are ready, another's waits for a step, not for them. */
#include "daemon/control/payer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CROWD 1000u

struct party {
	struct kvpd_source source;
	struct party *ends; /* its step ends that one */
	uint32_t steps;
	uint32_t seen; /* the events of the last one */
	bool again;    /* it is ready again at once */
	uint64_t takes_ns;
};

static uint32_t steps; /* of all */
static uint64_t time_ns;

static uint64_t clock_ns(void)
{
	return time_ns;
}

static void step(struct kvpd_source *source, uint32_t events)
{
	struct party *p = (struct party *)source;

	assert_false(p->source.dead);
	p->steps++;
	p->seen = events;
	steps++;
	time_ns += p->takes_ns;
	if (p->ends)
		kvpd_source_end(&p->ends->source);
	if (p->again)
		kvpd_source_raise(source, events);
}

static void party_init(struct party *p, struct kvpd_payer *payer)
{
	*p = (struct party){ .source = { .ready = step, .payer = payer }, .takes_ns = 20000 };
}

static bool one_step(struct kvpd_payers *payers)
{
	uint64_t now = time_ns;

	return kvpd_payers_step(&payers->row, clock_ns, &now);
}

static struct party *crowd_of(struct kvpd_payer *payer)
{
	struct party *crowd = calloc(CROWD, sizeof(*crowd));

	assert_non_null(crowd);
	for (uint32_t i = 0; i < CROWD; i++) {
		party_init(&crowd[i], payer);
		crowd[i].again = true;
		kvpd_source_raise(&crowd[i].source, 1);
	}
	return crowd;
}

/* A crowd that is always ready, of one uid, and one source of another that comes now and then. */
static void a_crowd_delays_nobody(void **state)
{
	struct kvpd_payers payers;
	struct kvpd_payer *many, *one;
	struct party *crowd, single;

	(void)state;
	assert_int_equal(kvpd_payers_init(&payers, 0), 0);
	many = kvpd_payer_get(&payers, 1001, "");
	one = kvpd_payer_get(&payers, 1002, "");
	crowd = crowd_of(many);
	party_init(&single, one);
	for (uint32_t n = 1; n <= 5000; n++) {
		uint32_t before;

		/* Its steps take ten times as long as theirs, and still less than its part. */
		single.takes_ns = 200000;
		for (uint32_t i = 0; i < 20; i++)
			assert_true(one_step(&payers));
		before = steps;
		kvpd_source_raise(&single.source, 1);
		while (single.steps < n && steps - before < 100)
			assert_true(one_step(&payers));
		assert_int_equal(steps - before, 1);
	}
	/* And within the crowd one after the other. */
	for (uint32_t i = 1; i < CROWD; i++)
		assert_in_range(crowd[0].steps - crowd[i].steps, 0, 1);
	for (uint32_t i = 0; i < CROWD; i++)
		kvpd_source_end(&crowd[i].source);
	assert_false(one_step(&payers));
	kvpd_payer_put(&payers, one);
	kvpd_payer_put(&payers, many);
	assert_int_equal(payers.n, 0);
	kvpd_payers_fini(&payers);
	free(crowd);
}

/*
 * Uids that come and go, each a payer that has had nothing: what their coming took is theirs, so
 * that one who waits is served before the next of them.
 */
static void newcomers_do_not_come_first(void **state)
{
	struct kvpd_payers payers;
	struct kvpd_payer *waiting;
	struct party single;
	uint32_t others = 0;

	(void)state;
	assert_int_equal(kvpd_payers_init(&payers, 0), 0);
	waiting = kvpd_payer_get(&payers, 1, "");
	kvpd_turns_charge(&payers.row, &waiting->turn, 15000);
	party_init(&single, waiting);
	kvpd_source_raise(&single.source, 1);
	while (!single.steps && others < 1000) {
		struct kvpd_payer *fresh = kvpd_payer_get(&payers, 1000 + others, "");
		struct party p;

		kvpd_turns_charge(&payers.row, &fresh->turn, 10000);
		party_init(&p, fresh);
		kvpd_source_raise(&p.source, 1);
		assert_true(one_step(&payers));
		others += p.steps;
		kvpd_source_end(&p.source);
		kvpd_payer_put(&payers, fresh);
	}
	assert_in_range(others, 0, 2);
	kvpd_payer_put(&payers, waiting);
	kvpd_payers_fini(&payers);
}

/* Events add up while a source waits; one that another ends gets no step. */
static void sources_wait_and_end(void **state)
{
	struct kvpd_payers payers;
	struct kvpd_payer *payer;
	struct party a, b, c;

	(void)state;
	assert_int_equal(kvpd_payers_init(&payers, 1), 0);
	payer = kvpd_payer_get(&payers, 7, "door");
	assert_ptr_equal(kvpd_payer_get(&payers, 7, "door"), payer);
	kvpd_payer_put(&payers, payer);
	party_init(&a, payer);
	party_init(&b, payer);
	party_init(&c, payer);
	a.ends = &b;
	kvpd_source_raise(&a.source, 1);
	kvpd_source_raise(&b.source, 1);
	kvpd_source_raise(&c.source, 1);
	kvpd_source_raise(&c.source, 4);
	assert_true(one_step(&payers));
	assert_true(one_step(&payers));
	assert_false(one_step(&payers));
	assert_int_equal(a.steps, 1);
	assert_int_equal(b.steps, 0);
	assert_int_equal(c.steps, 1);
	assert_int_equal(c.seen, 5);
	/* Dead for good. */
	kvpd_source_raise(&b.source, 1);
	assert_false(one_step(&payers));
	/* The last one that waits goes: nobody's turn is left over. */
	kvpd_source_raise(&c.source, 1);
	kvpd_source_end(&c.source);
	assert_null(kvpd_turns_next(&payers.row));
	kvpd_payer_put(&payers, payer);
	assert_int_equal(payers.n, 0);
	kvpd_payers_fini(&payers);
}

/* By uid and by door. */
static void who_shares_a_payer(void **state)
{
	struct kvpd_payers payers;
	struct kvpd_payer *all[600], *other;

	(void)state;
	assert_int_equal(kvpd_payers_init(&payers, 3), 0);
	for (uint32_t i = 0; i < 600; i++) {
		all[i] = kvpd_payer_get(&payers, i, "");
		assert_non_null(all[i]);
		for (uint32_t k = 0; k < i; k++)
			assert_ptr_not_equal(all[i], all[k]);
	}
	assert_int_equal(payers.n, 600);
	other = kvpd_payer_get(&payers, 0, "box");
	assert_ptr_not_equal(other, all[0]);
	assert_ptr_equal(kvpd_payer_get(&payers, 0, ""), all[0]);
	kvpd_payer_put(&payers, all[0]);
	kvpd_payer_put(&payers, other);
	for (uint32_t i = 0; i < 600; i++)
		kvpd_payer_put(&payers, all[i]);
	assert_int_equal(payers.n, 0);
	kvpd_payers_fini(&payers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_crowd_delays_nobody),
		cmocka_unit_test(newcomers_do_not_come_first),
		cmocka_unit_test(sources_wait_and_end),
		cmocka_unit_test(who_shares_a_payer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
