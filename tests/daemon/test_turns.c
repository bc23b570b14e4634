/* SPDX-License-Identifier: Apache-2.0 */
/* Fair turns: a naive model that searches for the least, and what is promised of it. */
#include "daemon/turns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define US UINT64_C(1000)

static uint64_t seed;

static uint64_t rnd(void)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return seed >> 33;
}

static void read_seed(void)
{
	const char *text = getenv("KVP_TEST_SEED");

	seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
	print_message("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
}

/* The same rules on a plain array. */
#define PARTIES 40u

struct model {
	uint64_t used[PARTIES];
	uint64_t joined[PARTIES];
	bool in[PARTIES];
	uint64_t floor;
	uint64_t joins;
};

static uint32_t model_next(const struct model *m)
{
	uint32_t best = PARTIES;

	for (uint32_t i = 0; i < PARTIES; i++)
		if (m->in[i] &&
			(best == PARTIES || m->used[i] < m->used[best] ||
				(m->used[i] == m->used[best] && m->joined[i] > m->joined[best])))
			best = i;
	return best;
}

static void model_settle(struct model *m)
{
	uint32_t i = model_next(m);

	if (i < PARTIES && m->used[i] > m->floor)
		m->floor = m->used[i];
}

static void model_charge(struct model *m, uint32_t i, uint64_t ns)
{
	if (m->used[i] < m->floor)
		m->used[i] = m->floor;
	m->used[i] += ns;
	if (m->used[i] > m->floor + KVPD_DEBT_MAX_NS)
		m->used[i] = m->floor + KVPD_DEBT_MAX_NS;
	model_settle(m);
}

static void agrees_with_the_model(void **state)
{
	struct kvpd_turns turns = { 0 };
	struct kvpd_turn turn[PARTIES] = { 0 };
	struct model m = { 0 };

	(void)state;
	read_seed();
	assert_int_equal(kvpd_turns_reserve(&turns, PARTIES), 0);
	for (uint32_t n = 0; n < 200000; n++) {
		uint32_t i = (uint32_t)(rnd() % PARTIES), next;
		uint64_t ns = rnd() % (rnd() % 100 ? 100 * US : 50000 * US);

		switch (rnd() % 4) {
		case 0:
			kvpd_turns_join(&turns, &turn[i]);
			if (!m.in[i]) {
				m.used[i] = m.used[i] > m.floor ? m.used[i] : m.floor;
				m.joined[i] = m.joins++;
				m.in[i] = true;
			}
			break;
		case 1:
			kvpd_turns_leave(&turns, &turn[i]);
			m.in[i] = false;
			break;
		default:
			next = model_next(&m);
			if (next < PARTIES && rnd() % 8)
				i = next;
			kvpd_turns_charge(&turns, &turn[i], ns);
			model_charge(&m, i, ns);
			break;
		}
		model_settle(&m);
		next = model_next(&m);
		assert_ptr_equal(kvpd_turns_next(&turns), next < PARTIES ? &turn[next] : NULL);
		assert_int_equal(turns.floor_ns, m.floor);
		for (i = 0; i < PARTIES; i++)
			assert_int_equal(turn[i].at != 0, m.in[i]);
	}
	kvpd_turns_fini(&turns);
}

/* Those that always want something get equal parts, whatever one turn of theirs takes. */
static void equal_parts(void **state)
{
	struct kvpd_turns turns = { 0 };
	struct kvpd_turn turn[10] = { 0 };
	uint64_t got[10] = { 0 }, all = 0;

	(void)state;
	read_seed();
	assert_int_equal(kvpd_turns_reserve(&turns, 10), 0);
	for (uint32_t i = 0; i < 10; i++)
		kvpd_turns_join(&turns, &turn[i]);
	for (uint32_t n = 0; n < 100000; n++) {
		struct kvpd_turn *t = kvpd_turns_next(&turns);
		uint64_t ns = US + rnd() % (10 * US * (uint64_t)(t - turn + 1));

		kvpd_turns_charge(&turns, t, ns);
		got[t - turn] += ns;
		all += ns;
	}
	for (uint32_t i = 0; i < 10; i++)
		assert_in_range(got[i], all / 10 - 200 * US, all / 10 + 200 * US);
	kvpd_turns_fini(&turns);
}

/* One that wants little, now and then, never waits for more than the turn that is under way. */
static void who_wants_little_goes_next(void **state)
{
	struct kvpd_turns turns = { 0 };
	struct kvpd_turn busy[200] = { 0 }, quiet = { 0 };

	(void)state;
	read_seed();
	assert_int_equal(kvpd_turns_reserve(&turns, 201), 0);
	for (uint32_t i = 0; i < 200; i++)
		kvpd_turns_join(&turns, &busy[i]);
	for (uint32_t n = 0; n < 20000; n++) {
		/* 20 us of 201 x 50 us: less than its part */
		for (uint64_t spent = 0; spent < 250 * 50 * US; spent += 50 * US)
			kvpd_turns_charge(&turns, kvpd_turns_next(&turns), 50 * US);
		kvpd_turns_join(&turns, &quiet);
		assert_ptr_equal(kvpd_turns_next(&turns), &quiet);
		kvpd_turns_charge(&turns, &quiet, 20 * US);
		kvpd_turns_leave(&turns, &quiet);
	}
	kvpd_turns_fini(&turns);
}

/* Pausing saves nothing up, and coming back again and again gains nothing. */
static void a_pause_saves_nothing_up(void **state)
{
	struct kvpd_turns turns = { 0 };
	struct kvpd_turn a = { 0 }, b = { 0 };
	uint64_t got = 0, other = 0;

	(void)state;
	assert_int_equal(kvpd_turns_reserve(&turns, 2), 0);
	kvpd_turns_join(&turns, &a);
	for (uint32_t n = 0; n < 100000; n++)
		kvpd_turns_charge(&turns, &a, 50 * US);
	kvpd_turns_join(&turns, &b);
	for (uint32_t n = 0; n < 1000; n++) {
		struct kvpd_turn *t = kvpd_turns_next(&turns);

		kvpd_turns_charge(&turns, t, 50 * US);
		*(t == &a ? &other : &got) += 50 * US;
		/* b goes and comes at every chance */
		kvpd_turns_leave(&turns, &b);
		kvpd_turns_join(&turns, &b);
	}
	assert_in_range(got, other - 100 * US, other + 100 * US);
	kvpd_turns_fini(&turns);
}

/* A turn that took long is paid later, up to a bound, and not if nobody else was there. */
static void debts_are_paid_and_bounded(void **state)
{
	struct kvpd_turns turns = { 0 };
	struct kvpd_turn a = { 0 }, b = { 0 };
	uint64_t others = 0;

	(void)state;
	assert_int_equal(kvpd_turns_reserve(&turns, 2), 0);
	kvpd_turns_join(&turns, &b);
	kvpd_turns_charge(&turns, &a, 5000 * US); /* in its absence: a call about it */
	kvpd_turns_join(&turns, &a);
	while (kvpd_turns_next(&turns) == &b) {
		kvpd_turns_charge(&turns, &b, 50 * US);
		others += 50 * US;
	}
	assert_in_range(others, 5000 * US - 50 * US, 5000 * US + 50 * US);
	/* ten seconds are as bad as the bound */
	kvpd_turns_charge(&turns, &a, 10000000 * US);
	for (others = 0; kvpd_turns_next(&turns) == &b; others += 50 * US)
		kvpd_turns_charge(&turns, &b, 50 * US);
	assert_in_range(others, 1, KVPD_DEBT_MAX_NS + 100 * US);
	/* the row ran empty: nothing is owed to anybody */
	kvpd_turns_leave(&turns, &b);
	kvpd_turns_charge(&turns, &a, 10000000 * US);
	kvpd_turns_leave(&turns, &a);
	kvpd_turns_join(&turns, &a);
	kvpd_turns_join(&turns, &b);
	kvpd_turns_charge(&turns, kvpd_turns_next(&turns), 50 * US);
	kvpd_turns_charge(&turns, kvpd_turns_next(&turns), 50 * US);
	assert_int_equal(a.used_ns, b.used_ns);
	kvpd_turns_fini(&turns);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(agrees_with_the_model),
		cmocka_unit_test(equal_parts),
		cmocka_unit_test(who_wants_little_goes_next),
		cmocka_unit_test(a_pause_saves_nothing_up),
		cmocka_unit_test(debts_are_paid_and_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
