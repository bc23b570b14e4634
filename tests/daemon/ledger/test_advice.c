/* SPDX-License-Identifier: Apache-2.0 */
/* Between the ledger and the advisor: the queue, the ranking that changes hands, and the thread. */
#include "daemon/ledger/advice.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "daemon/clock.h"
#include "daemon/figures.h"
#include "daemon/ledger/advisor.h"
#include "tests/daemon/ledger/dp_world.h"

#define ROOM 1024u /* events in the smallest queue */
#define SEC  UINT64_C(1000000000)

static kvp_block_id chain[KVPD_ADVICE_CHAIN];

static struct kvpd_advice *make(uint32_t ids, uint32_t blocks)
{
	const struct kvpd_advice_size size = { ids, blocks, 256, 4 };
	struct kvpd_advice *a = NULL;

	assert_int_equal(kvpd_advice_new(&size, &a), 0);
	return a;
}

static struct kvpd_advisor_figures figures(const struct kvpd_advice *a, uint64_t now)
{
	struct kvpd_advisor_figures f = { 0 };

	kvpd_advice_read(a, now, &f);
	return f;
}

/* Everything in order, as often as it goes round; what does not fit is dropped, counted, and no more. */
static void test_queue(void **state)
{
	struct kvpd_advice *a = make(8 * ROOM, 1);
	uint64_t now = 5 * SEC;

	(void)state;
	assert_int_equal(kvpd_advice_listen(a, chain, now), 0);
	for (uint32_t lap = 0; lap < 7; lap++) {
		for (uint32_t i = 0; i < ROOM - 300; i++)
			kvpd_advice_put(
				a, lap * ROOM + i, KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
		assert_int_equal(kvpd_advice_listen(a, chain, now), ROOM - 300);
	}
	assert_int_equal(figures(a, now).dropped, 0);
	for (uint32_t i = 0; i < ROOM + 5; i++)
		kvpd_advice_put(a, 7 * ROOM + i % ROOM, KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
	assert_int_equal(figures(a, now).dropped, 5);
	assert_int_equal(kvpd_advice_listen(a, chain, now), ROOM);
	assert_int_equal(kvpd_advice_rank(a, now, 0), 1);
	assert_int_equal(figures(a, now).nodes, 7 * (ROOM - 300) + ROOM);
	for (uint32_t i = 0; i < ROOM; i++)
		kvpd_advice_gone(a, 7 * ROOM + i);
	assert_int_equal(kvpd_advice_listen(a, chain, now), ROOM);
	assert_int_equal(kvpd_advice_rank(a, now, 0), 1);
	assert_int_equal(figures(a, now).nodes, 7 * (ROOM - 300));
	kvpd_advice_free(a);
	assert_null(kvpd_advice_free(NULL));
	kvpd_advice_put(NULL, 1, 2, 3, 4, 5, KVP_LABEL_USER); /* nobody is advised */
	assert_null(kvpd_advice_consult(NULL, now));
}

/* Once in a period, when there is news, and not used when it is old. */
static void test_ages(void **state)
{
	struct kvpd_advice *a = make(64, 64);
	uint64_t now = 100 * SEC;

	(void)state;
	assert_null(kvpd_advice_consult(a, now));
	assert_int_equal(kvpd_advice_rank(a, now, SEC / 2), 0); /* it has heard nothing */
	kvpd_advice_put(a, 3, KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
	kvpd_advice_listen(a, chain, now);
	assert_int_equal(kvpd_advice_rank(a, now, SEC / 2), 1);
	assert_false(kvp_ranking_score(kvpd_advice_consult(a, now), 3) < 0);
	assert_true(kvp_ranking_score(kvpd_advice_consult(a, now), 4) < 0);
	kvpd_advice_put(a, 4, 3, 64, 64, 1, KVP_LABEL_USER);
	kvpd_advice_listen(a, chain, now);
	assert_int_equal(kvpd_advice_rank(a, now + SEC / 2 - 1, SEC / 2), 0);
	assert_non_null(kvpd_advice_consult(a, now + KVPD_ADVICE_MAX_AGE_NS));
	assert_null(kvpd_advice_consult(a, now + KVPD_ADVICE_MAX_AGE_NS + 1)); /* D-084 */
	assert_int_equal(figures(a, now).stale, 2);
	assert_int_equal(kvpd_advice_rank(a, now + 3 * SEC, SEC / 2), 1);
	assert_false(kvp_ranking_score(kvpd_advice_consult(a, now + 3 * SEC), 4) < 0);
	assert_int_equal(figures(a, now + 4 * SEC).age_ns, SEC);
	kvpd_advice_free(a);
}

/* One that the ledger never took is made anew, and so on for ever; the ledger gets the newest. */
static void test_not_taken(void **state)
{
	struct kvpd_advice *a = make(64, 64);
	uint64_t now = 100 * SEC;
	uint32_t nodes, edges;

	(void)state;
	for (uint32_t i = 0; i < 50; i++) {
		kvpd_advice_put(a, i, i ? i - 1 : KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
		kvpd_advice_listen(a, chain, now);
		assert_int_equal(kvpd_advice_rank(a, ++now, 0), 1);
	}
	kvp_ranking_size(kvpd_advice_consult(a, now), &nodes, &edges);
	assert_int_equal(nodes, 50);
	assert_int_equal(edges, 49);
	kvpd_advice_free(a);
}

/*
 * D-077. A chain that is used by two sessions is shared, blocks leased together are joined, and so is what goes from a
 * device with its neighbour that stays there, until it is back.
 */
static void test_edges(void **state)
{
	struct kvpd_advice *a = make(64, 64);
	uint64_t now = 100 * SEC;
	uint32_t nodes, edges;

	(void)state;
	for (uint32_t i = 0; i < 10; i++)
		kvpd_advice_put(a, i, i ? i - 1 : KVP_BLOCK_NONE, 64 * i, 64, 1, KVP_LABEL_USER);
	kvpd_advice_put(a, 20, KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
	kvpd_advice_put(a, 21, KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
	kvpd_advice_used(a, 9, 2);
	kvpd_advice_listen(a, chain, now);
	kvpd_advice_rank(a, now, 0);
	kvp_ranking_size(kvpd_advice_consult(a, now), &nodes, &edges);
	assert_int_equal(nodes, 12);
	assert_int_equal(edges, 9 + 9); /* in time, and by two sessions */
	for (uint32_t look = 1; look <= 3; look++) {
		kvpd_advice_leased(a, 20, 7, look);
		kvpd_advice_leased(a, 21, 7, look);
		kvpd_advice_leased(a, 5, 8, look); /* of another session */
	}
	kvpd_advice_listen(a, chain, now);
	kvpd_advice_rank(a, now, 0);
	kvp_ranking_size(kvpd_advice_consult(a, now), &nodes, &edges);
	assert_int_equal(edges, 9 + 9 + 1);
	for (uint32_t cold = 0; cold < 4; cold++) {
		kvpd_advice_place(a, 9, cold % 2 == 0);
		kvpd_advice_listen(a, chain, now);
		kvpd_advice_rank(a, now, 0);
		kvp_ranking_size(kvpd_advice_consult(a, now), &nodes, &edges);
		assert_int_equal(edges, 9 + 9 + 1 + (cold % 2 == 0));
	}
	kvpd_advice_free(a);
}

/* What is used often and by several is spared, but no more of it than the batch says, a ranking. */
static void test_spares(void **state)
{
	const struct kvpd_advice_size size = { 64, 64, 2, 0 };
	struct kvpd_advice *a = NULL;
	uint64_t now = 100 * SEC;

	(void)state;
	assert_false(kvpd_advice_spares(NULL, 1));
	assert_int_equal(kvpd_advice_new(&size, &a), 0);
	for (uint32_t i = 0; i < 5; i++)
		kvpd_advice_put(
			a, i, i && i < 4 ? i - 1 : KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
	for (uint32_t i = 0; i < 20; i++)
		kvpd_advice_used(a, 3, i % 2);
	kvpd_advice_listen(a, chain, now);
	for (uint32_t round = 0; round < 3; round++, now += SEC) {
		kvpd_advice_used(a, 3, 1);
		kvpd_advice_listen(a, chain, now);
		assert_int_equal(kvpd_advice_rank(a, now, 0), 1);
		assert_non_null(kvpd_advice_consult(a, now));
		assert_false(kvpd_advice_spares(a, 4));  /* used by nobody */
		assert_false(kvpd_advice_spares(a, 63)); /* not known */
		assert_false(kvpd_advice_spares(a, 64));
		assert_true(kvpd_advice_spares(a, 3));
		assert_true(kvpd_advice_spares(a, 2));
		assert_false(kvpd_advice_spares(a, 1));
		assert_non_null(kvpd_advice_consult(a, now));
		assert_false(kvpd_advice_spares(a, 1)); /* the same ranking */
		assert_int_equal(figures(a, now).spared, 2 * (round + 1));
	}
	kvpd_advice_free(a);
}

/* D-079: cold neighbours alone are named, by a ranking that is young, and their scores say who may make way. */
static void test_suggests(void **state)
{
	const struct kvpd_advice_size none = { 64, 64, 256, 0 };
	struct kvpd_advice *a = make(64, 64), *b = NULL;
	const kvp_block_id active[2] = { 1, 0 };
	uint64_t now = 100 * SEC;
	kvp_block_id got[KVPD_ADVICE_AHEAD];

	(void)state;
	assert_false(kvpd_advice_fetches(NULL));
	assert_true(kvpd_advice_fetches(a));
	for (uint32_t i = 0; i < 6; i++)
		kvpd_advice_put(a, i, i ? i - 1 : KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
	kvpd_advice_used(a, 1, 2);
	kvpd_advice_listen(a, chain, now);
	kvpd_advice_rank(a, now, 0);
	assert_int_equal(kvpd_advice_suggest(a, active, 2, now, got), 0); /* all are there */
	for (uint32_t i = 2; i < 6; i++)
		kvpd_advice_place(a, i, true);
	kvpd_advice_used(a, 1, 2);
	kvpd_advice_listen(a, chain, now);
	kvpd_advice_rank(a, now, 0);
	assert_int_equal(kvpd_advice_suggest(a, active, 2, now, got), 1);
	assert_int_equal(got[0], 2);
	assert_true(kvpd_advice_below(a, 2, 1));
	assert_false(kvpd_advice_below(a, 1, 2));
	assert_false(kvpd_advice_below(a, 63, 1)); /* not known: it came since */
	assert_int_equal(
		kvpd_advice_lowest(a, now, 64, got), 2); /* what lies there, children first */
	assert_true(got[0] == 1 && got[1] == 0);
	assert_int_equal(kvpd_advice_suggest(a, active, 2, now + KVPD_ADVICE_MAX_AGE_NS, got), 1);
	assert_int_equal(
		kvpd_advice_suggest(a, active, 2, now + KVPD_ADVICE_MAX_AGE_NS + 1, got), 0);
	assert_int_equal(kvpd_advice_lowest(a, now + KVPD_ADVICE_MAX_AGE_NS + 1, 64, got), 0);
	kvpd_advice_came(a, 2, true);
	kvpd_advice_came(a, 3, true);
	kvpd_advice_came(a, 3, false); /* it went, and a client brought it */
	kvpd_advice_came(a, 64, true); /* not known, and not counted */
	kvpd_advice_paid(a, 2);
	kvpd_advice_paid(a, 3);
	assert_int_equal(figures(a, now).suggested, 2);
	assert_int_equal(figures(a, now).fetched, 2);
	assert_int_equal(figures(a, now).fetched_used, 1);
	assert_int_equal(kvpd_advice_new(&none, &b), 0);
	assert_int_equal(figures(a, now).bytes - figures(b, now).bytes, 8); /* a bit for each */
	kvpd_advice_free(b);
	kvpd_advice_free(a);
}

/*
 * Events of any kind about any block, most of them dropped: parents that are gone, that came again,
 * that are their own ancestors by now. It stays a graph of what was heard, and everything ends.
 */
static void test_dropped(void **state)
{
	struct kvpd_advice *a = make(200, 1);
	uint64_t now = SEC;
	uint32_t seed = 11;

	(void)state;
	for (uint32_t round = 0; round < 300; round++) {
		for (uint32_t i = 0; i < 3 * ROOM; i++) {
			uint32_t r = (uint32_t)rand_r(&seed), block = r % 210,
				 other = r / 256 % 210;

			if (r % 16 < 6)
				kvpd_advice_put(a, block, other < 205 ? other : KVP_BLOCK_NONE, 0,
					64, r % 3, KVP_LABEL_USER);
			else if (r % 16 < 12)
				kvpd_advice_gone(a, block);
			else if (r % 16 < 14)
				kvpd_advice_used(a, block, r % 3);
			else
				kvpd_advice_leased(a, block, r % 3, r % 5);
		}
		now += SEC;
		while (kvpd_advice_listen(a, chain, now))
			;
		kvpd_advice_rank(a, now, 0);
		assert_true(figures(a, now).nodes <= 200);
	}
	assert_int_equal(figures(a, now).dropped, 300 * 2 * ROOM);
	kvpd_advice_free(a);
}

/* Long chains are work; it is done in portions, and what is left stays in the queue. */
static void test_portions(void **state)
{
	struct kvpd_advice *a = make(8192, 8192);
	uint32_t heard = 0, n, portions = 0;

	(void)state;
	for (uint32_t i = 0; i < 6000; i++)
		kvpd_advice_put(a, i, i ? i - 1 : KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
	assert_int_equal(kvpd_advice_listen(a, chain, SEC), 6000);
	for (uint32_t i = 0; i < 500; i++)
		kvpd_advice_used(a, 5999, 2);
	for (; (n = kvpd_advice_listen(a, chain, SEC)); portions++) {
		assert_true(n <= KVPD_ADVICE_WORK / KVPD_ADVICE_CHAIN + 1);
		heard += n;
	}
	assert_int_equal(heard, 500);
	assert_true(portions > 5);
	kvpd_advice_free(a);
}

/* ---- two threads ----------------------------------------------------------------------------- */

#define IDS 2000u

/* How many scores a ranking has is what it says itself, for as long as the ledger holds it. */
static void check_whole(const struct kvp_ranking *r)
{
	uint32_t nodes, edges, n = 0;

	kvp_ranking_size(r, &nodes, &edges);
	for (uint32_t i = 0; i < IDS; i++)
		n += kvp_ranking_score(r, i) >= 0;
	assert_int_equal(n, nodes);
}

static void test_two_threads(void **state)
{
	struct kvpd_advisor_config config = { .on = true, .period_ms = 0, .batch = 256 };
	struct kvpd_advice *a = make(IDS, IDS);
	struct kvpd_advisor v = { 0 };
	uint64_t until = kvpd_now_ns() + SEC;
	uint32_t seed = 3, taken = 0;
	bool there[IDS] = { false };

	(void)state;
	assert_int_equal(kvpd_advisor_init(&v, &config), 0);
	assert_int_equal(kvpd_advisor_start(&v), 0);
	kvpd_advice_join(&v, a);
	/* The thread takes no processor that others want: it gets there when it gets there. */
	while (kvpd_now_ns() < until || taken < 3 || figures(a, kvpd_now_ns()).rankings < 3) {
		const struct kvp_ranking *r;

		for (uint32_t i = 0; i < 20; i++) {
			uint32_t b = (uint32_t)rand_r(&seed) % IDS;

			if (there[b])
				kvpd_advice_gone(a, b);
			else
				kvpd_advice_put(a, b, KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
			there[b] = !there[b];
			kvpd_advice_used(
				a, (uint32_t)rand_r(&seed) % IDS, (uint32_t)rand_r(&seed) % 4);
		}
		r = kvpd_advice_consult(a, kvpd_now_ns());
		if (r) {
			check_whole(r);
			taken++;
		}
	}
	kvpd_advice_leave(a);
	kvpd_advisor_stop(&v);
	kvpd_advisor_fini(&v);
}

/* Tenants come and go while the thread works; what is left behind is freed. */
static void test_leaving(void **state)
{
	struct kvpd_advisor_config config = { .on = true, .period_ms = 1, .batch = 16 };
	struct kvpd_advisor v = { 0 };

	(void)state;
	assert_int_equal(kvpd_advisor_init(&v, &config), 0);
	assert_int_equal(kvpd_advisor_start(&v), 0);
	for (uint32_t i = 0; i < 200; i++) {
		struct kvpd_advice *a = make(64, 64);

		kvpd_advice_join(&v, a);
		kvpd_advice_put(a, 1, KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
		kvpd_advice_leave(i % 4 ? a : NULL);
	}
	kvpd_advisor_stop(&v);
	kvpd_advisor_fini(&v);
}

/* ---- in a ledger ------------------------------------------------------------------------------ */

#define T 16u

static struct kvpd_advisor_figures of_world(struct dp_world *w)
{
	struct kvpd_advisor_figures a;
	struct kvpd_figures f;

	assert_int_equal(dp_figures(w, NULL, 0, &f), 0);
	a = f.tenant[0].advisor;
	kvpd_figures_fini(&f);
	return a;
}

/* Until a ranking knows so many blocks. */
static struct kvpd_advisor_figures await_nodes(struct dp_world *w, uint64_t nodes)
{
	const struct timespec pause = { 0, 5000000 };
	struct kvpd_advisor_figures f;

	for (uint32_t i = 0; (f = of_world(w)).nodes != nodes; i++) {
		assert_true(i < 12000);
		nanosleep(&pause, NULL);
	}
	return f;
}

static void put_chain(struct dp_client *c, uint32_t space, uint32_t number, uint32_t blocks)
{
	struct dp_ref parent = dp_root();
	struct dp_block block;

	for (uint32_t b = 0; b < blocks; b++) {
		kvp_token tokens[T];

		for (uint32_t i = 0; i < T; i++)
			tokens[i] = number * 1000 + b * T + i;
		assert_int_equal(dp_put(c, space, parent, tokens, T, &block), 0);
		parent = dp_ref(&block);
	}
}

/* One block of a chain of its own, of which the client says that (KVP_LABEL_* and one, or 0). The status. */
static int put_said(struct dp_client *c, uint32_t space, uint32_t number, uint32_t said)
{
	struct dp_grant g;
	struct dp_block block;
	kvp_token tokens[T];
	int r;

	for (uint32_t i = 0; i < T; i++)
		tokens[i] = number * 1000 + i;
	assert_int_equal(dp_reserve(c, space, 1, DP_WAIT_MS, &g), 1);
	dp_fill(&g, tokens, T);
	r = dp_commit(c, space, &g, dp_root(), tokens, T, said << KVP_SQE_LABEL_SHIFT, &block);
	dp_release(c, &g);
	return r;
}

/* D-076: the nodes of the graph are what clients said that their blocks are, as long as they are there. */
static void test_labels(void **state)
{
	static const uint32_t first[KVP_LABELS] = { 1, 2, 1, 1, 1 },
			      all[KVP_LABELS] = { 3, 4, 3, 3, 3 };
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 40;
	w.config.advisor = (struct kvpd_advisor_config){ true, 50, 8, 0 };
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t said = 0; said <= KVP_LABELS; said++)
		assert_int_equal(put_said(c, space, said, said), 0);
	for (uint32_t i = 0; i < KVP_LABELS; i++)
		assert_int_equal(await_nodes(&w, KVP_LABELS + 1).labelled[i], first[i]);
	/* What is none is refused, and what is there already stays what it is. */
	for (uint32_t said = KVP_LABELS + 1; said < 8; said++)
		assert_int_equal(put_said(c, space, 10 + said, said), -EINVAL);
	assert_int_equal(put_said(c, space, 1, 1 + KVP_LABEL_TOOL), 0);
	for (uint32_t i = 0; i < 2 * KVP_LABELS; i++)
		assert_int_equal(put_said(c, space, 100 + i, 1 + i % KVP_LABELS), 0);
	for (uint32_t i = 0; i < KVP_LABELS; i++)
		assert_int_equal(await_nodes(&w, 3 * KVP_LABELS + 1).labelled[i], all[i]);
	/* Others take their places. */
	for (uint32_t i = 0; i < 400; i++)
		assert_int_equal(put_said(c, space, 1000 + i, 1 + KVP_LABEL_GENERATION), 0);
	assert_in_range(await_nodes(&w, 40).labelled[KVP_LABEL_GENERATION], 30, 40);
	dp_check(&w);
	dp_stop(&w);
}

/* The graph has what the tenant has, also after evictions, and its memory is paid by the share. */
static void test_in_a_ledger(void **state)
{
	struct dp_world w;
	struct kvpd_limits limits;
	struct dp_client *c;
	struct kvpd_advisor_figures f;
	uint64_t without;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 40;
	dp_start(&w, &limits);
	without = dp_figure(&w, "metadata_bytes");
	assert_false(of_world(&w).on);
	dp_stop(&w);

	dp_defaults(&w, &limits);
	limits.max_blocks = 40;
	w.config.advisor = (struct kvpd_advisor_config){ true, 50, 8, 0 };
	dp_start(&w, &limits);
	f = of_world(&w);
	assert_true(f.on && !f.made);
	assert_int_equal(dp_figure(&w, "metadata_bytes"), without + f.bytes);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	put_chain(c, space, 1, 10);
	put_chain(c, space, 2, 20);
	f = await_nodes(&w, 30);
	assert_true(f.made && f.rankings > 0 && f.longest_ns >= f.cycle_ns && f.cycle_ns > 0);
	assert_int_equal(f.edges, 9 + 19);
	for (uint32_t i = 3; i < 20; i++)
		put_chain(c, space, i, 10);
	f = await_nodes(&w, 40);
	assert_int_equal(f.dropped, 0);
	assert_true(f.consulted > 0 && f.stale <= f.consulted);
	dp_check(&w);
	dp_stop(&w);
}

/* A chain of up to eight blocks is matched. */
static void use(struct dp_client *c, uint32_t space, uint32_t number, uint32_t blocks)
{
	kvp_token tokens[8 * T];
	struct kvp_hit hit[8];

	for (uint32_t i = 0; i < blocks * T; i++)
		tokens[i] = number * 1000 + i;
	assert_int_equal(dp_find(c, space, tokens, blocks * T, hit, blocks), blocks);
	kvp_touch_push(c->page, 0, hit[blocks - 1].id, blocks);
	dp_flush(c);
}

/* A tenant of eight blocks and an advisor. */
static struct dp_client *small(struct dp_world *w, uint32_t *ret_space)
{
	struct kvpd_limits limits;
	struct dp_client *c;

	dp_defaults(w, &limits);
	limits.max_blocks = 8;
	w->config.advisor = (struct kvpd_advisor_config){ true, 50, 256, 0 };
	dp_start(w, &limits);
	c = dp_attach(w, w->tenant);
	*ret_space = dp_space(c, "m", 4);
	return c;
}

/* All of these chains are used until a ranking that began after that would keep them. */
static void make_hot(struct dp_client *c, uint32_t space, uint32_t chains, uint32_t blocks)
{
	for (uint32_t k = 0; k < 100 * chains; k++)
		use(c, space, k % chains, blocks);
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t seen = of_world(c->world).rankings;

		while (of_world(c->world).rankings == seen)
			use(c, space, 0, blocks);
	}
}

/* Where a ranking would keep everything, what comes finds room all the same. */
static void test_room_at_last(void **state)
{
	struct dp_client *c, *other;
	struct dp_world w;
	uint32_t space;

	(void)state;
	c = small(&w, &space);
	for (uint32_t i = 0; i < 4; i++)
		put_chain(c, space, i, 2);
	/* Nobody writes any of these any more. */
	other = dp_attach(&w, w.tenant);
	space = dp_space(other, "m", 4);
	dp_detach(c);
	dp_await_most(&w, "arena_bytes", 0);
	make_hot(other, space, 4, 2);
	for (uint32_t i = 100; i < 140; i++)
		put_chain(other, space, i, 1);
	assert_int_equal(dp_figure(&w, "evictions_total"), 40);
	assert_true(of_world(&w).spared > 0);
	assert_int_equal(dp_figure(&w, "blocks"), 8);
	dp_check(&w);
	dp_stop(&w);
}

/* Nor is there none where the only block that could go is one that its client wrote last. */
static void test_room_in_one_chain(void **state)
{
	struct dp_client *c;
	struct dp_world w;
	uint32_t space;

	(void)state;
	c = small(&w, &space);
	put_chain(c, space, 0, 8);
	make_hot(c, space, 1, 8);
	put_chain(c, space, 1, 4);
	assert_int_equal(dp_figure(&w, "evictions_total"), 4);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- how long a cycle takes -------------------------------------------------------------------- */

#define MANY       100000u
#define MANY_EDGES 1000000u

/* Gives the advisor time to listen now and then. */
static void told(uint64_t *events)
{
	const struct timespec pause = { 0, 2000000 };

	if (++*events % 32768 == 0)
		nanosleep(&pause, NULL);
}

/*
 * D-085, printed: 100,000 blocks and a million edges, which come by the queue while the thread ranks
 * them again and again. What is dropped is told again.
 */
static void test_cycle(void **state)
{
	struct kvpd_advisor_config config = { .on = true, .period_ms = 50, .batch = 256 };
	struct kvpd_advice *a =
		make(2 * MANY, 2 * MANY); /* twice the room: no edge replaces another */
	const struct timespec pause = { 0, 100000000 };
	struct kvpd_advisor_figures f = { 0 };
	struct kvpd_advisor v = { 0 };
	uint64_t events = 0;
	uint32_t seed = 5;

	(void)state;
	assert_int_equal(kvpd_advisor_init(&v, &config), 0);
	assert_int_equal(kvpd_advisor_start(&v), 0);
	kvpd_advice_join(&v, a);
	while ((f = figures(a, kvpd_now_ns())).nodes < MANY) {
		for (uint32_t i = 0; i < MANY; i++, told(&events))
			kvpd_advice_put(
				a, i, i % 100 ? i - 1 : KVP_BLOCK_NONE, 0, 64, 1, KVP_LABEL_USER);
		nanosleep(&pause, NULL);
	}
	for (uint32_t look = 1; (f = figures(a, kvpd_now_ns())).edges < MANY_EDGES; look += 3) {
		nanosleep(&pause, NULL);
		for (uint32_t group = 0; group < 600; group++) {
			kvp_block_id b[16];

			for (uint32_t i = 0; i < 16; i++)
				b[i] = (uint32_t)rand_r(&seed) % MANY;
			for (uint32_t k = 0; k < 3; k++)
				for (uint32_t i = 0; i < 16; i++, told(&events))
					kvpd_advice_leased(a, b[i], group, look + k);
		}
		kvpd_advice_used(a, (uint32_t)rand_r(&seed) % MANY, look);
	}
	for (uint64_t seen = f.rankings; f.rankings < seen + 5; f = figures(a, kvpd_now_ns())) {
		kvpd_advice_used(a, (uint32_t)rand_r(&seed) % MANY, 1);
		nanosleep(&pause, NULL);
	}
	assert_true(f.nodes == MANY && f.edges >= MANY_EDGES);
	print_message(
		"advisor: %llu blocks, %llu edges: a cycle takes %.1f ms, %.1f of a processor; "
		"%.1f MiB; %llu of the events dropped\n",
		(unsigned long long)f.nodes, (unsigned long long)f.edges, (double)f.cycle_ns / 1e6,
		(double)f.cpu_ns / 1e6, (double)f.bytes / (1 << 20), (unsigned long long)f.dropped);
	kvpd_advice_leave(a);
	kvpd_advisor_stop(&v);
	kvpd_advisor_fini(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_queue),
		cmocka_unit_test(test_ages),
		cmocka_unit_test(test_not_taken),
		cmocka_unit_test(test_edges),
		cmocka_unit_test(test_spares),
		cmocka_unit_test(test_suggests),
		cmocka_unit_test(test_dropped),
		cmocka_unit_test(test_portions),
		cmocka_unit_test(test_two_threads),
		cmocka_unit_test(test_leaving),
		cmocka_unit_test(test_labels),
		cmocka_unit_test(test_in_a_ledger),
		cmocka_unit_test(test_room_at_last),
		cmocka_unit_test(test_room_in_one_chain),
		cmocka_unit_test(test_cycle),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
