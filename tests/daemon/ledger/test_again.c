/* SPDX-License-Identifier: Apache-2.0 */
/* What goes and comes back is no better placed than a scan, or it is: the policy learns of it by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "policy/kvp_evict.h"
#include "tests/daemon/ledger/dp_world.h"

#define T      16u
#define ROOM   32u
#define SCAN   40u /* blocks that nobody comes back to: more than there is room for */
#define ROUNDS 12u

struct seen {
	bool row[ROUNDS]; /* was the block found? */
	uint32_t found;   /* in so many */
	uint64_t reloads;
	uint64_t evictions;
};

/* A request for one block: matched, or computed and put. */
static bool request(struct dp_client *c, uint32_t space, uint32_t number)
{
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	bool hits;

	for (uint32_t i = 0; i < T; i++)
		tokens[i] = number * 1000 + i;
	hits = dp_find(c, space, tokens, T, &hit, 1) == 1;
	kvp_touch_push(c->page, 0, hits ? hit.id : KVP_BLOCK_NONE, 1);
	dp_flush(c);
	if (!hits)
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
	return hits;
}

/* The same block again and again, and between any two of these more others than the cache holds. */
static struct seen rounds(const char *policy)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct seen seen = { 0 };
	uint32_t space, next = 100;

	dp_defaults(&w, &limits);
	limits.max_blocks = ROOM;
	limits.recipe_blocks = 512;
	w.config.policy = (char *)(uintptr_t)policy;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		seen.found += seen.row[i] = request(c, space, 1);
		for (uint32_t n = 0; n < SCAN; n++)
			assert_false(request(c, space, next++));
	}
	seen.reloads = dp_figure(&w, "reloads_total");
	seen.evictions = dp_figure(&w, "evictions_total");
	dp_check(&w);
	dp_stop(&w);
	return seen;
}

/*
 * E-047. By order of use alone the block goes in and out for ever, and each time is counted: it came back before as many
 * others had gone as the cache holds. Policies that remember by name what has gone keep it when it has come back once or
 * twice, and the scan goes instead; the default one is among them.
 */
static void no_going_in_and_out(void **state)
{
	static const char *const keep[] = { KVP_EVICT_DEFAULT, "s3-fifo" };
	struct seen s = rounds("lru");

	(void)state;
	assert_int_equal(s.found, 0);
	assert_int_equal(s.reloads, ROUNDS - 1);
	assert_int_equal(s.evictions, ROUNDS * (SCAN + 1) - ROOM);
	for (uint32_t i = 0; i < 2; i++) {
		s = rounds(keep[i]);
		for (uint32_t round = ROUNDS / 2; round < ROUNDS; round++)
			assert_true(s.row[round]);
		assert_true(s.reloads >= 1 && s.reloads < ROUNDS / 2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(no_going_in_and_out) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
