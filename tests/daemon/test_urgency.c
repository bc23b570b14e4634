/* SPDX-License-Identifier: Apache-2.0 */
/* What a thread may go ahead of others with is bounded whatever it does, and comes back when it does less. */
#include "daemon/urgency.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define MS       UINT64_C(1000000)
#define PART(ns) ((ns)*percent / 100)

static uint32_t percent = 66;
static struct kvpd_urgency u;
static struct kvpd_urgency_facts facts;
static uint64_t urgent_ns; /* used while it was urgent */
static uint64_t changes;

static void begin(bool always)
{
	facts = (struct kvpd_urgency_facts){ 7777 * MS, 55 * MS, 33 * MS };
	urgent_ns = changes = 0;
	kvpd_urgency_begin(&u, always, percent, &facts);
}

/* So much time passes, of which it uses so much, and waits for so much. */
static bool pass(uint64_t passed, uint64_t used, uint64_t waited)
{
	bool was = u.urgent;

	urgent_ns += was ? used : 0;
	facts.now_ns += passed;
	facts.used_ns += used;
	facts.waited_ns += waited;
	(void)kvpd_urgency_look(&u, &facts);
	changes += was != u.urgent;
	return u.urgent;
}

/* It waits often enough. */
static bool crowd(void)
{
	for (uint32_t i = 1; i < KVPD_LATES; i++)
		(void)pass(MS, 0, KVPD_LATE_NS);
	return pass(MS, 0, KVPD_LATE_NS);
}

static void who_need_not_wait_is_ordinary(void **state)
{
	(void)state;
	begin(false);
	assert_false(u.urgent);
	for (uint32_t i = 0; i < 10000; i++)
		assert_false(pass(MS, i % 3 * MS / 4, KVPD_LATE_NS - 1));
	/* A wait now and then is nothing. */
	for (uint32_t i = 0; i < 100; i++)
		assert_false(pass(KVPD_APART_NS, MS, 4 * MS));
	assert_int_equal(changes, 0);
}

static void who_waits_is_urgent_for_a_while(void **state)
{
	(void)state;
	begin(false);
	assert_true(crowd());
	for (uint64_t ns = MS; ns < KVPD_HOLD_NS; ns += MS)
		assert_true(pass(MS, PART(MS), 0));
	assert_false(pass(MS, PART(MS), 0));
	/* Then it takes as many waits again. */
	for (uint32_t i = 1; i < KVPD_LATES; i++)
		assert_false(pass(MS, 0, KVPD_LATE_NS));
	assert_true(pass(MS, 0, KVPD_LATE_NS));
	/* Who waits although it is urgent is so for longer. */
	(void)pass(KVPD_HOLD_NS / 2, 0, 0);
	assert_true(crowd());
	assert_true(pass(KVPD_HOLD_NS - MS, 0, 0));
	assert_false(pass(MS, 0, 0));
}

static void waits_far_apart_do_not_add_up(void **state)
{
	(void)state;
	begin(false);
	/* The last comes too late after the first, and is the first of the next ones. */
	for (uint32_t i = 1; i < KVPD_LATES; i++)
		assert_false(pass(MS, 0, KVPD_LATE_NS));
	assert_false(pass(KVPD_APART_NS - (KVPD_LATES - 2) * MS, 0, KVPD_LATE_NS));
	for (uint32_t i = 2; i < KVPD_LATES; i++)
		assert_false(pass(MS, 0, KVPD_LATE_NS));
	assert_true(pass(KVPD_APART_NS - (KVPD_LATES - 2) * MS - 1, 0, KVPD_LATE_NS));
	/* However many there are, if they are rare. */
	begin(false);
	for (uint32_t i = 0; i < 1000; i++)
		assert_false(pass(KVPD_APART_NS / (KVPD_LATES - 1) + 1, 0, KVPD_LATE_NS));
}

static void who_always_should_be_is(void **state)
{
	(void)state;
	begin(true);
	assert_true(u.urgent);
	for (uint32_t i = 0; i < 10000; i++)
		assert_true(pass(MS, PART(MS), 0));
	for (uint32_t i = 0; i < 1000; i++)
		assert_true(pass(100 * MS, PART(20 * MS), 0));
}

static void who_floods_is_not_for_long(void **state)
{
	uint32_t i = 0;
	(void)state;

	begin(false);
	assert_true(crowd());
	while (pass(MS, MS, 0))
		assert_true(++i < 1000);
	assert_true(urgent_ns <= KVPD_URGENT_NS * 100 / (100 - percent) + MS);
	/* And waits do not help while it does. */
	for (i = 0; i < 100000; i++)
		assert_false(pass(MS, PART(MS) + i % 2, MS - PART(MS)));
	assert_true(changes == 2);
}

static void it_comes_back_when_half_is_saved(void **state)
{
	uint64_t pause = KVPD_AGAIN_NS * 100 / percent;
	(void)state;

	begin(true);
	while (pass(MS, MS, 0))
		;
	assert_false(pass(pause - MS, 0, 0));
	/* It had to do something just then. */
	assert_false(pass(MS, MS, 0));
	assert_true(pass(3 * MS, 0, 0));
	assert_true(pass(MS, MS, 0));
}

static void no_more_is_saved_than_that(void **state)
{
	(void)state;
	begin(true);
	assert_true(pass(UINT64_MAX / 2, 0, 0));
	assert_int_equal(u.saved_ns, KVPD_URGENT_NS);
	assert_false(pass(MS, KVPD_URGENT_NS + MS, 0));
	assert_int_equal(u.saved_ns, 0);
	/* What was used beyond that is no debt. */
	assert_false(pass(MS, UINT64_MAX / 4, 0));
	assert_true(pass(KVPD_URGENT_NS * 100, 0, 0));
}

/* Whatever it does: of each stretch of time no more than its part and what was saved, and it does not flap. */
static void nothing_that_it_does_gets_it_more(void **state)
{
	const char *text = getenv("KVP_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL), began;
	(void)state;

	print_message("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (uint32_t round = 0; round < 100; round++) {
		uint64_t load = 1 + seed % 100;

		percent = 1 + seed / 100 % 75;
		begin(round % 2);
		began = facts.now_ns;
		for (uint32_t i = 0; i < 20000; i++) {
			uint64_t passed, used;

			seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
			passed = MS + (seed >> 33) % MS;
			used = (seed >> 20) % 100 < load ? passed : 0;
			(void)pass(passed, used, u.urgent ? 0 : passed - used);
			/* It is noticed a look late, once for each time that it was urgent. */
			assert_true(urgent_ns <= PART(facts.now_ns - began) + KVPD_URGENT_NS +
							 2 * MS * (changes / 2 + 1));
		}
		/* Each time it is urgent again it had saved so much, or was for as long as waits are believed. */
		assert_true(changes / 2 <= PART(facts.now_ns - began) / KVPD_AGAIN_NS +
						   (facts.now_ns - began) / KVPD_HOLD_NS + 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_need_not_wait_is_ordinary),
		cmocka_unit_test(who_waits_is_urgent_for_a_while),
		cmocka_unit_test(waits_far_apart_do_not_add_up),
		cmocka_unit_test(who_always_should_be_is),
		cmocka_unit_test(who_floods_is_not_for_long),
		cmocka_unit_test(it_comes_back_when_half_is_saved),
		cmocka_unit_test(no_more_is_saved_than_that),
		cmocka_unit_test(nothing_that_it_does_gets_it_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
