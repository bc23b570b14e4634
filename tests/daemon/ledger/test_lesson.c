/* SPDX-License-Identifier: Apache-2.0 */
/* What policies learn on the advisor's thread: asked and answered, stalled, and left behind. */
#include "daemon/ledger/lesson.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/ledger/advisor.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"
#include "tests/daemon/ledger/dp_world.h"

#define ROOM 64u
#define IDS  512u
#define T    16u

struct subject {
	struct kvpd_advisor v;
	struct kvp_evict *e;
	struct kvpd_lesson *l;
	uint64_t now;
	uint32_t next;
};

static struct kvp_evict *instance(const char *policy)
{
	struct kvp_evict_params p = { .size = sizeof(p), .items = ROOM, .max_ids = IDS, .seed = 1 };
	struct kvp_evict *e = NULL;

	assert_int_equal(kvp_evict_new(policy, &p, &e), 0);
	return e;
}

static void begin(struct subject *s)
{
	const struct kvpd_advisor_config config = { .on = false };
	uint64_t bytes = 7;

	*s = (struct subject){ .now = 1 };
	assert_int_equal(kvpd_advisor_init(&s->v, &config), 0);
	s->e = instance("hazard");
	assert_int_equal(kvpd_lesson_new(&s->v, s->e, &bytes, &s->l), 0);
	assert_non_null(s->l);
	assert_true(bytes > 7);
}

static void end(struct subject *s)
{
	kvp_evict_free(s->e);
	kvpd_lesson_leave(s->l);
	kvpd_advisor_stop(&s->v);
	kvpd_advisor_fini(&s->v);
}

/* Blocks come, are used, and go, as the ledger has it. */
static void work(struct subject *s, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_evict_item item = { .parent = KVP_BLOCK_NONE, .key.lo = s->next };
		kvp_block_id id = s->next++ % IDS, out;

		s->now += 1000;
		if (kvp_evict_access(s->e, id / 2, s->now) < 0)
			(void)kvp_evict_insert(s->e, id, &item, s->now);
		if (kvp_evict_len(s->e) <= ROOM)
			continue;
		kvpd_lesson_on(s->l, s->e);
		assert_int_equal(kvp_evict_victims(s->e, 1, 0, NULL, NULL, s->now, &out, 1), 1);
		assert_int_equal(kvp_evict_remove(s->e, out, 1, s->now), 0);
	}
}

/* A thread that does not answer keeps nobody waiting, and nothing new is learnt. */
static void test_stalled(void **state)
{
	struct subject s;

	(void)state;
	begin(&s);
	work(&s, 20000);
	assert_int_equal(kvpd_lessons_taken(s.l), 0);
	/* what was asked once is answered once, however much has happened since */
	kvpd_advisor_turn(&s.v);
	kvpd_advisor_turn(&s.v);
	work(&s, 5000);
	assert_int_equal(kvpd_lessons_taken(s.l), 1);
	kvpd_advisor_turn(&s.v);
	work(&s, 5000);
	assert_int_equal(kvpd_lessons_taken(s.l), 2);
	assert_int_equal(kvp_evict_assert_consistency(s.e), 0);
	end(&s);
}

/* The thread learns while the instance is used, and is left with what it has. */
static void test_two_threads(void **state)
{
	struct subject s;

	(void)state;
	begin(&s);
	assert_int_equal(kvpd_advisor_start(&s.v), 0);
	while (kvpd_lessons_taken(s.l) < 20)
		work(&s, 1000);
	assert_int_equal(kvp_evict_assert_consistency(s.e), 0);
	end(&s);
	for (uint32_t i = 0; i < 50; i++) {
		begin(&s);
		assert_int_equal(kvpd_advisor_start(&s.v), 0);
		work(&s, 300);
		end(&s);
	}
}

/* Other policies have none, and nothing to wait for. */
static void test_none(void **state)
{
	const struct kvpd_advisor_config config = { .on = false };
	struct kvp_evict *e = instance("lru");
	struct kvpd_lesson *l = NULL;
	struct kvpd_advisor v = { 0 };
	uint64_t bytes = 7;

	(void)state;
	assert_int_equal(kvpd_advisor_init(&v, &config), 0);
	assert_int_equal(kvpd_lesson_new(&v, e, &bytes, &l), 0);
	assert_null(l);
	assert_int_equal(bytes, 7);
	kvpd_lesson_on(l, e);
	assert_int_equal(kvpd_lessons_taken(l), 0);
	kvpd_lesson_leave(l);
	kvp_evict_free(e);
	kvpd_advisor_fini(&v);
}

static int taken_on_ledger(struct kvpd_ledger *l, void *arg)
{
	const struct dp_world *w = arg;

	return kvpd_lessons_taken(l->tenant[w->tenant]->lesson) > 2;
}

/* In a daemon that ranks nothing. */
static void test_in_a_ledger(void **state)
{
	const struct timespec pause = { 0, 1000000 };
	struct kvpd_limits limits;
	kvp_token tokens[T] = { 0 };
	struct dp_block block;
	struct dp_client *c;
	struct dp_world w;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.policy = (char *)(uintptr_t) "hazard";
	limits.max_blocks = 100;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t i = 0; kvpd_ledger_ask(w.ledger, taken_on_ledger, &w) == 0; i++) {
		assert_true(i < 100000);
		tokens[0] = i;
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
		if (i % 100 == 0)
			nanosleep(&pause, NULL);
	}
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stalled),
		cmocka_unit_test(test_two_threads),
		cmocka_unit_test(test_none),
		cmocka_unit_test(test_in_a_ledger),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
