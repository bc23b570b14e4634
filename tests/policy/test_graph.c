/* SPDX-License-Identifier: Apache-2.0 */
/* The block graph and the advisor's rankings. */
#include "tests/policy/plan_test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "policy/kvp_graph.h"

#define HALF 1000 /* half-life in units of time */

static struct kvp_graph *make(uint32_t blocks, uint32_t edges, uint32_t dims)
{
	struct kvp_graph_opts o;
	struct kvp_graph *g = NULL;

	kvp_graph_opts_init(&o, blocks, edges, HALF);
	o.sketch_dims = dims;
	assert_int_equal(kvp_graph_new(&o, &g), 0);
	return g;
}

static void add(struct kvp_graph *g, kvp_block_id id, kvp_block_id parent, uint32_t label,
	uint32_t session, uint64_t now)
{
	struct kvp_graph_block b = { id, parent, label, id * 64, 64, session, .1f };

	assert_int_equal(kvp_graph_insert(g, &b, now), 0);
}

/* D-076: importance, label (five of them), token range, accesses are kept for each block. */
static void test_nodes(void **state)
{
	struct kvp_graph *g = make(16, 64, 0);
	struct kvp_graph_block b = { 3, KVP_BLOCK_NONE, 0, 640, 64, 9, .75f };
	struct kvp_graph_node n;
	kvp_block_id chain[] = { 3 };
	uint32_t label;

	(void)state;
	for (label = 0; label < KVP_LABELS; label++) {
		b.block = label;
		b.label = label;
		assert_int_equal(kvp_graph_insert(g, &b, 100), 0);
		assert_int_equal(kvp_graph_get(g, label, 100, &n), 0);
		assert_int_equal(n.block.label, label);
		assert_int_equal(n.block.first_token, 640);
		assert_int_equal(n.block.tokens, 64);
		assert_true(n.block.importance == .75f);
	}
	kvp_graph_request(g, chain, 1, 9, 100);
	kvp_graph_request(g, chain, 1, 9, 100 + HALF);
	assert_int_equal(kvp_graph_get(g, 3, 100 + HALF, &n), 0);
	assert_int_equal(n.total_accesses, 2);
	assert_true(fabs(n.accesses - 1.5) < 1e-6); /* the first one counts half by now */
	assert_int_equal(n.last_access, 100 + HALF);
	assert_int_equal(kvp_graph_insert(g, &b, 100), -EEXIST);
	b.block = 16;
	assert_int_equal(kvp_graph_insert(g, &b, 100), -EINVAL);
	b.block = 10;
	b.parent = 11;
	assert_int_equal(kvp_graph_insert(g, &b, 100), -EINVAL);
	b.parent = KVP_BLOCK_NONE;
	b.label = KVP_LABELS;
	assert_int_equal(kvp_graph_insert(g, &b, 100), -EINVAL);
	b.label = 1;
	b.importance = 1.5f;
	assert_int_equal(kvp_graph_insert(g, &b, 100), -EINVAL);
	assert_int_equal(kvp_graph_set_importance(g, 3, NAN), -EINVAL);
	assert_int_equal(kvp_graph_set_importance(g, 12, .5f), -ENOENT);
	assert_int_equal(kvp_graph_set_importance(g, 3, 1), 0);
	assert_int_equal(kvp_graph_get(g, 12, 0, &n), -ENOENT);
	assert_int_equal(kvp_graph_remove(g, 12), -ENOENT);
	assert_int_equal(kvp_graph_remove(g, 3), 0);
	assert_int_equal(kvp_graph_get(g, 3, 0, &n), -ENOENT);
	kvp_graph_free(g);
	assert_null(kvp_graph_free(NULL));
}

/* D-077: each of the five kinds is really created, spill_link too. */
static void test_edge_kinds(void **state)
{
	struct kvp_graph *g = make(16, 256, 4);
	kvp_block_id chain[] = { 0, 1, 2 }, pair[] = { 0, 5 };
	float a[] = { 1, 0, 0, 0 }, b[] = { .9f, .1f, 0, 0 }, c[] = { 0, 1, 0, 0 };
	float bad[] = { 0, 0, 0, 0 };
	uint32_t nodes, edges[KVP_EDGES];

	(void)state;
	add(g, 0, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
	add(g, 1, 0, KVP_LABEL_USER, 1, 0);
	add(g, 2, 1, KVP_LABEL_USER, 1, 0);
	add(g, 5, KVP_BLOCK_NONE, KVP_LABEL_TOOL, 1, 0);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_TEMPORAL, 0) > 0);
	assert_true(kvp_graph_weight(g, 1, 0, KVP_EDGE_TEMPORAL, 0) > 0);
	assert_true(kvp_graph_weight(g, 0, 2, KVP_EDGE_TEMPORAL, 0) == 0);

	assert_int_equal(kvp_graph_request(g, chain, 3, 1, 0), 0); /* the same session */
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_PREFIX_SHARE, 0) == 0);
	assert_int_equal(kvp_graph_request(g, chain, 3, 2, 0), 3);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_PREFIX_SHARE, 0) > 0);
	assert_true(kvp_graph_weight(g, 1, 2, KVP_EDGE_PREFIX_SHARE, 0) > 0);

	kvp_graph_co_attend(g, pair, 2, 0);
	kvp_graph_co_attend(g, pair, 2, 0);
	assert_true(kvp_graph_weight(g, 0, 5, KVP_EDGE_CO_ATTEND, 0) == 0); /* from the third on */
	kvp_graph_co_attend(g, pair, 2, 0);
	assert_true(kvp_graph_weight(g, 0, 5, KVP_EDGE_CO_ATTEND, 0) > .2);

	assert_int_equal(kvp_graph_sketch(g, 0, a, 0), 0);
	assert_int_equal(kvp_graph_sketch(g, 5, b, 0), 0);
	assert_int_equal(kvp_graph_sketch(g, 2, c, 0), 0);
	assert_int_equal(kvp_graph_sketch(g, 2, bad, 0), -EINVAL);
	assert_int_equal(kvp_graph_sketch(g, 9, a, 0), -ENOENT);
	assert_true(fabs(kvp_graph_weight(g, 0, 5, KVP_EDGE_SEMANTIC, 0) - .9 / sqrt(.82)) < 1e-5);
	assert_true(kvp_graph_weight(g, 0, 2, KVP_EDGE_SEMANTIC, 0) == 0);

	assert_int_equal(kvp_graph_spill(g, 2, 1, 0), 0);
	assert_true(kvp_graph_weight(g, 1, 2, KVP_EDGE_SPILL_LINK, 0) > 0);
	kvp_graph_count(g, 0, &nodes, edges);
	assert_int_equal(nodes, 4);
	assert_int_equal(edges[KVP_EDGE_PREFIX_SHARE], 2);
	assert_int_equal(edges[KVP_EDGE_CO_ATTEND], 1);
	assert_int_equal(edges[KVP_EDGE_SEMANTIC], 1);
	assert_int_equal(edges[KVP_EDGE_TEMPORAL], 2);
	assert_int_equal(edges[KVP_EDGE_SPILL_LINK], 1);
	assert_int_equal(kvp_graph_spill(g, 2, 0, 0), 0); /* back: the link goes */
	assert_true(kvp_graph_weight(g, 1, 2, KVP_EDGE_SPILL_LINK, 0) == 0);
	assert_int_equal(kvp_graph_spill(g, 9, 1, 0), -ENOENT);
	kvp_graph_free(g);
}

/* Weights stay in (0, 1], halve in a half-life, and die with their blocks, also when ids return. */
static void test_weights(void **state)
{
	struct kvp_graph *g = make(8, 64, 0);
	kvp_block_id pair[] = { 0, 1 };
	uint32_t i;
	double w;

	(void)state;
	add(g, 0, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 5000);
	add(g, 1, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 5000);
	for (i = 0; i < 1000; i++)
		kvp_graph_co_attend(g, pair, 2, 5000);
	w = kvp_graph_weight(g, 0, 1, KVP_EDGE_CO_ATTEND, 5000);
	assert_true(w > .99 && w <= 1);
	assert_true(fabs(kvp_graph_weight(g, 0, 1, KVP_EDGE_CO_ATTEND, 5000 + HALF) - w / 2) < .01);
	assert_true(fabs(kvp_graph_weight(g, 0, 1, KVP_EDGE_CO_ATTEND, 5000 + 5 * HALF) - w / 32) <
		    .001);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_CO_ATTEND, 5000 + 100 * HALF) == 0);
	assert_int_equal(kvp_graph_remove(g, 1), 0);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_CO_ATTEND, 5000) == 0);
	add(g, 1, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 5000);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_CO_ATTEND, 5000) == 0);
	kvp_graph_free(g);
}

/* D-080: a second session is recognised by the blocks it shares, without hashing any data. */
static void test_cross_session_reuse(void **state)
{
	struct kvp_graph *g = make(64, 512, 0);
	kvp_block_id one[] = { 0, 1, 2, 3 }, two[] = { 0, 1, 10, 11 };
	uint32_t i;

	(void)state;
	for (i = 0; i < 4; i++)
		add(g, i, i ? i - 1 : KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
	kvp_graph_request(g, one, 4, 1, 0);
	add(g, 10, 1, KVP_LABEL_USER, 2, 1);
	add(g, 11, 10, KVP_LABEL_USER, 2, 1);
	assert_int_equal(kvp_graph_request(g, two, 4, 2, 1), 2);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_PREFIX_SHARE, 1) > 0);
	assert_true(kvp_graph_weight(g, 1, 10, KVP_EDGE_PREFIX_SHARE, 1) == 0);
	assert_int_equal(kvp_graph_request(g, one, 4, 3, 2), 4);
	assert_true(kvp_graph_weight(g, 2, 3, KVP_EDGE_PREFIX_SHARE, 2) > 0);
	kvp_graph_free(g);
}

/* D-078, D-082: never protected, busy or cold; n distinct; children first; batch as configured. */
static void test_evictions(void **state)
{
	enum { N = 3000 };
	uint32_t round;

	(void)state;
	seed_from_env(50);
	for (round = 0; round < 40; round++) {
		struct kvp_graph *g = make(N, 65536, 0);
		struct kvp_ranking *r = kvp_ranking_new(N, 1 + below(N));
		static kvp_block_id parent[N], got[N];
		static uint8_t busy[N], cold[N], label[N], at[N];
		uint64_t now = 0;
		uint32_t i, k, batch;
		int n;

		for (i = 0; i < N; i++) {
			parent[i] = i && below(10) ? (i < 20 ? i - 1 : i - 1 - below(20))
						   : KVP_BLOCK_NONE;
			label[i] = (uint8_t)(below(30) ? 1 + below(4) : 0);
			busy[i] = !below(50);
			cold[i] = !below(4);
			add(g, i, parent[i], label[i], below(5), now += below(5));
			if (cold[i])
				kvp_graph_spill(g, i, 1, now);
		}
		for (i = 0; i < 4 * N; i++) {
			kvp_block_id chain[64], x = below(N);
			uint32_t len = 0;

			for (; x != KVP_BLOCK_NONE && len < 64; x = parent[x])
				chain[63 - len++] = x;
			kvp_graph_request(g, chain + 64 - len, len, below(5), now += below(3));
		}
		assert_int_equal(kvp_graph_rank(g, busy, now, r), 0);
		n = kvp_ranking_evict(r, now, 0, N, got);
		assert_true(n >= 0);
		memset(at, 0, sizeof(at));
		for (k = 0; k < (uint32_t)n; k++) {
			assert_true(got[k] < N && !at[got[k]]); /* distinct */
			at[got[k]] = 1;
			assert_true(label[got[k]] != KVP_LABEL_SYSTEM);
			assert_false(busy[got[k]]);
			assert_false(cold[got[k]]);
			if (k)
				assert_true(kvp_ranking_score(r, got[k]) >=
					    kvp_ranking_score(r, got[k - 1]));
			/* no fast child stays behind */
			if (parent[got[k]] != KVP_BLOCK_NONE)
				assert_false(at[parent[got[k]]]);
		}
		for (i = 0; i < N; i++) /* a parent is never worth less than its child */
			if (parent[i] != KVP_BLOCK_NONE)
				assert_true(
					kvp_ranking_score(r, parent[i]) >= kvp_ranking_score(r, i));
		batch = (uint32_t)n;
		assert_int_equal(kvp_ranking_evict(r, now, 0, batch / 2, got), batch / 2);
		kvp_ranking_free(r);
		kvp_graph_free(g);
	}
	assert_null(kvp_ranking_new(10, 11));
	assert_null(kvp_ranking_new(0, 0));
}

/* D-078: what many sessions share is protected, whatever else is known of it. */
static void test_shared_is_protected(void **state)
{
	struct kvp_graph *g = make(64, 1024, 0);
	struct kvp_ranking *r = kvp_ranking_new(64, 64);
	kvp_block_id got[64];
	uint32_t i, s;
	int n;

	(void)state;
	add(g, 0, KVP_BLOCK_NONE, KVP_LABEL_USER, 0, 0);
	for (i = 1; i < 40; i++) /* one prefix, many branches that others have used as well */
		add(g, i, 0, KVP_LABEL_USER, 0, 0);
	for (s = 1; s < 20; s++)
		for (i = 1; i < 20; i++) {
			kvp_block_id chain[] = { 0, i };

			kvp_graph_request(g, chain, 2, s, 0);
		}
	kvp_graph_rank(g, NULL, 0, r);
	n = kvp_ranking_evict(r, 0, 0, 64, got);
	for (i = 0; i < (uint32_t)n; i++)
		assert_true(got[i] != 0);
	assert_true(n >= 20);
	assert_true(got[0] >= 20); /* what nobody shares goes first */
	kvp_ranking_free(r);
	kvp_graph_free(g);
}

/* D-079: neighbours of the active blocks, only those in a slower tier, the nearest first. */
static void test_prefetch(void **state)
{
	struct kvp_graph *g = make(64, 1024, 0);
	struct kvp_ranking *r = kvp_ranking_new(64, 16);
	kvp_block_id active[] = { 0, 1 }, got[16], twice[] = { 0, 7 };
	uint32_t i;

	(void)state;
	for (i = 0; i < 10; i++)
		add(g, i, i ? i - 1 : KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
	for (i = 0; i < 9; i++) {
		kvp_block_id chain[] = { 1, 2, 3 };

		kvp_graph_co_attend(g, twice, 2, 0);
		kvp_graph_request(g, chain, 3, 1 + i, 0);
	}
	assert_int_equal(kvp_graph_rank(g, NULL, 0, r), 0);
	assert_int_equal(
		kvp_ranking_prefetch(r, 0, 0, active, 2, 16, got), 0); /* nothing is cold */
	kvp_graph_spill(g, 2, 1, 0);
	kvp_graph_spill(g, 7, 1, 0);
	kvp_graph_spill(g, 9, 1, 0);
	assert_int_equal(kvp_graph_rank(g, NULL, 0, r), 0);
	assert_int_equal(
		kvp_ranking_prefetch(r, 0, 0, active, 2, 16, got), 2); /* 9 is no neighbour */
	assert_int_equal(
		got[0], 2); /* shared, temporal and spill link: more than co_attend alone */
	assert_int_equal(got[1], 7);
	assert_int_equal(kvp_ranking_prefetch(r, 0, 0, active, 2, 1, got), 1);
	assert_int_equal(got[0], 2);
	active[1] = 2; /* active itself */
	assert_int_equal(kvp_ranking_prefetch(r, 0, 0, active, 2, 16, got), 1);
	assert_int_equal(got[0], 7);
	active[0] = 999; /* no such block: harmless */
	assert_true(kvp_ranking_prefetch(r, 0, 0, active, 1, 16, got) == 0);
	kvp_ranking_free(r);
	kvp_graph_free(g);
}

/* The keep score by its formula, all five terms of it. */
static void test_score(void **state)
{
	struct kvp_graph *g = make(8, 256, 0);
	struct kvp_ranking *r = kvp_ranking_new(8, 8);
	kvp_block_id chain[] = { 0, 1 }, got[8];
	double share, temporal, company;
	uint32_t s;

	(void)state;
	add(g, 0, KVP_BLOCK_NONE, KVP_LABEL_USER, 0, 0);
	add(g, 1, 0, KVP_LABEL_USER, 0, 0);
	add(g, 2, 1, KVP_LABEL_USER, 0, 0);
	for (s = 1; s < 4; s++)
		kvp_graph_request(g, chain, 2, s, 0);
	assert_int_equal(kvp_graph_set_importance(g, 1, 1), 0);
	assert_int_equal(kvp_graph_request(g, chain, 1, 3, HALF), 0); /* 0 alone is used again */
	assert_int_equal(kvp_graph_rank(g, NULL, HALF, r), 0);
	share = kvp_graph_weight(g, 0, 1, KVP_EDGE_PREFIX_SHARE, HALF);
	temporal = kvp_graph_weight(g, 0, 1, KVP_EDGE_TEMPORAL, HALF);
	assert_true(fabs(share - (1 - pow(.75, 3)) / 2) < 1e-3 && fabs(temporal - .25) < 1e-3);
	/* neighbours of 1: 0, used just now, by two edges, and 2, a half-life ago, by one */
	company = (share + temporal + .5 * temporal) / (share + 2 * temporal);
	assert_true(fabs(kvp_ranking_score(r, 1) -
			    (.30 * .5 + .25 * 1.5 / 2.5 + .15 * share / (1 + share) +
				    .15 * company + .15)) < 1e-4);
	assert_true(fabs(kvp_ranking_score(r, 2) - (.30 * .5 + .15 * .5 + .15 * .1)) < 1e-4);
	assert_true(kvp_ranking_score(r, 3) < 0);
	assert_true(kvp_ranking_score(r, 8) < 0 && kvp_ranking_score(r, UINT32_MAX) < 0);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGES, HALF) == 0);
	assert_int_equal(kvp_ranking_evict(r, HALF, 0, 8, got), 3);
	assert_int_equal(got[0], 2);
	kvp_ranking_free(r);
	kvp_graph_free(g);
	assert_null(kvp_ranking_new(10, 0));
	assert_null(kvp_ranking_new(0, 10));
}

/* Of many cold neighbours the strongest are kept; of many active blocks the last given count. */
static void test_prefetch_strongest(void **state)
{
	enum { N = 200, COLD = 20 };
	struct kvp_ranking *r = kvp_ranking_new(N, 16);
	kvp_block_id active[100], got[N];
	uint32_t round, i, k, stronger;
	int n;

	(void)state;
	seed_from_env(54);
	for (round = 0; round < 40; round++) {
		struct kvp_graph *g = make(N, 4096, 0);

		for (i = 0; i < N; i++) {
			add(g, i, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
			active[i % 100] = 100 + i % 100;
		}
		for (i = 1; i <= COLD; i++) {
			kvp_block_id star[2] = { 0, i };

			for (k = 3 + below(30); k > 0; k--)
				kvp_graph_co_attend(g, star, 2, 0);
			kvp_graph_spill(g, i, 1, 0);
			kvp_graph_set_importance(g, i, 0);
		}
		assert_int_equal(kvp_graph_rank(g, NULL, 0, r), 0);
		n = kvp_ranking_prefetch(r, 0, 0, (kvp_block_id[]){ 0 }, 1, N, got);
		assert_int_equal(n, KVP_GRAPH_NEIGHBOURS);
		for (k = 0; k < (uint32_t)n; k++) {
			double w = kvp_graph_weight(g, 0, got[k], KVP_EDGE_CO_ATTEND, 0);

			for (i = 1, stronger = 0; i <= COLD; i++)
				stronger += kvp_graph_weight(g, 0, i, KVP_EDGE_CO_ATTEND, 0) > w;
			assert_true(stronger <= k);
		}
		/* 0 is the first of 65, then of 64 */
		active[0] = 0;
		assert_int_equal(
			kvp_ranking_prefetch(r, 0, 0, active, KVP_GRAPH_ACTIVE_MAX + 1, N, got), 0);
		assert_int_equal(
			kvp_ranking_prefetch(r, 0, 0, active, KVP_GRAPH_ACTIVE_MAX, N, got),
			KVP_GRAPH_NEIGHBOURS);
		kvp_graph_free(g);
	}
	kvp_ranking_free(r);
}

/* Every edge of the table is seen, wherever it lies. */
static void test_every_edge_counts(void **state)
{
	enum { N = 600 };
	struct kvp_graph *g = make(N, 4096, 0);
	struct kvp_ranking *r = kvp_ranking_new(N, 16);
	uint32_t i, nodes, edges[KVP_EDGES];
	kvp_block_id got[N];

	(void)state;
	for (i = 0; i < N; i += 2) {
		kvp_block_id pair[] = { i, i + 1 };

		add(g, i, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
		add(g, i + 1, i, KVP_LABEL_USER, 1, 0);
		kvp_graph_spill(g, i + 1, 1, 0);
		kvp_graph_co_attend(g, pair, 2, 0); /* once and twice is no edge yet */
		kvp_graph_co_attend(g, pair, i % 4 ? 0 : 2, 0);
	}
	kvp_graph_count(g, 0, &nodes, edges);
	assert_int_equal(edges[KVP_EDGE_CO_ATTEND], 0);
	assert_int_equal(edges[KVP_EDGE_TEMPORAL], N / 2);
	assert_int_equal(kvp_graph_rank(g, NULL, 0, r), 0);
	for (i = 0; i < N; i += 2) {
		assert_int_equal(kvp_ranking_prefetch(r, 0, 0, &i, 1, N, got), 1);
		assert_int_equal(got[0], i + 1);
	}
	kvp_ranking_free(r);
	kvp_graph_free(g);
}

/* Sketches: which block had which, the oldest makes way, and a former block's is no longer its. */
static void test_sketches(void **state)
{
	struct kvp_graph_opts o;
	struct kvp_graph *g = NULL;
	float x[2][4] = { { 1, 0, 0, 0 }, { 0, 1, 0, 0 } };
	uint32_t i;

	(void)state;
	kvp_graph_opts_init(&o, 16, 1024, HALF);
	o.sketch_dims = 4;
	o.compare = 3;
	assert_int_equal(kvp_graph_new(&o, &g), 0);
	for (i = 0; i < 16; i++)
		add(g, i, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
	for (i = 1; i < 7; i++) /* odd ones alike, and even ones */
		assert_int_equal(kvp_graph_sketch(g, i, x[i % 2], 0), 0);
	for (i = 1; i < 7; i++) {
		assert_true(kvp_graph_weight(g, 0, i, KVP_EDGE_SEMANTIC, 0) == 0);
		if (i > 2) /* among the three before it */
			assert_true(kvp_graph_weight(g, i - 2, i, KVP_EDGE_SEMANTIC, 0) > .999);
		assert_true(kvp_graph_weight(g, i - 1, i, KVP_EDGE_SEMANTIC, 0) == 0);
		if (i > 4) /* forgotten by then */
			assert_true(kvp_graph_weight(g, i - 4, i, KVP_EDGE_SEMANTIC, 0) == 0);
	}
	assert_int_equal(kvp_graph_remove(g, 6), 0);
	add(g, 6, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0); /* another block of that number */
	assert_int_equal(kvp_graph_sketch(g, 8, x[0], 0), 0);
	assert_true(kvp_graph_weight(g, 6, 8, KVP_EDGE_SEMANTIC, 0) == 0);
	assert_true(kvp_graph_weight(g, 4, 8, KVP_EDGE_SEMANTIC, 0) > .999);
	kvp_graph_free(g);
}

/* A parent that was removed is none, also when its number is another block's by then. */
static void test_number_of_parent_returns(void **state)
{
	struct kvp_graph *g = make(8, 256, 0);
	struct kvp_ranking *r = kvp_ranking_new(8, 8);
	struct kvp_graph_node n;
	uint8_t busy[8] = { [1] = 1 };
	kvp_block_id got[8];

	(void)state;
	add(g, 0, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
	add(g, 1, 0, KVP_LABEL_USER, 1, 0);
	assert_int_equal(kvp_graph_get(g, 1, 0, &n), 0);
	assert_int_equal(n.block.parent, 0);
	assert_int_equal(kvp_graph_remove(g, 0), 0);
	assert_int_equal(kvp_graph_get(g, 1, 0, &n), 0);
	assert_int_equal(n.block.parent, KVP_BLOCK_NONE);
	add(g, 0, KVP_BLOCK_NONE, KVP_LABEL_USER, 2, 0);
	assert_int_equal(kvp_graph_get(g, 1, 0, &n), 0);
	assert_int_equal(n.block.parent, KVP_BLOCK_NONE);
	assert_int_equal(kvp_graph_spill(g, 1, 1, 0), 0);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_SPILL_LINK, 0) == 0);
	/* and what is said of its former child holds it no longer */
	assert_int_equal(kvp_graph_rank(g, busy, 0, r), 0);
	assert_true(kvp_ranking_score(r, 0) < 1);
	assert_int_equal(kvp_ranking_evict(r, 0, 0, 8, got), 1);
	assert_int_equal(got[0], 0);
	kvp_ranking_free(r);
	kvp_graph_free(g);
}

/* D-084: older than max_age, the ranking is not used. */
static void test_stale(void **state)
{
	struct kvp_graph *g = make(8, 64, 0);
	struct kvp_ranking *r = kvp_ranking_new(8, 8);
	kvp_block_id got[8], active[] = { 0 };

	(void)state;
	add(g, 0, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
	assert_int_equal(kvp_ranking_evict(r, 0, 2000, 8, got), -ESTALE); /* never made */
	kvp_graph_rank(g, NULL, 500, r);
	assert_int_equal(kvp_ranking_evict(r, 2500, 2000, 8, got), 1);
	assert_int_equal(kvp_ranking_evict(r, 2501, 2000, 8, got), -ESTALE);
	assert_int_equal(kvp_ranking_prefetch(r, 2501, 2000, active, 1, 8, got), -ESTALE);
	assert_int_equal(kvp_ranking_evict(r, 400, 2000, 8, got), 1); /* a reader's clock behind */
	kvp_ranking_free(r);
	kvp_graph_free(g);
}

/* The table is bounded: a full bucket gives up its weakest edge, strong ones stay. */
static void test_table_is_bounded(void **state)
{
	struct kvp_graph *g = make(5000, 1024, 0);
	kvp_block_id strong[] = { 0, 1 };
	uint32_t i, nodes, edges[KVP_EDGES];

	(void)state;
	seed_from_env(51);
	for (i = 0; i < 5000; i++)
		add(g, i, KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
	for (i = 0; i < 100; i++)
		kvp_graph_co_attend(g, strong, 2, 0);
	for (i = 0; i < 50000; i++) {
		kvp_block_id pair[] = { below(5000), below(5000) };

		kvp_graph_co_attend(g, pair, 2, 0);
	}
	kvp_graph_count(g, 0, &nodes, edges);
	assert_true(edges[0] + edges[1] + edges[2] + edges[3] + edges[4] <= 1024);
	assert_true(kvp_graph_weight(g, 0, 1, KVP_EDGE_CO_ATTEND, 0) > .99);
	kvp_graph_free(g);
}

/* ---- a naive model: dense matrices, the same rules ---- */

enum { M = 48 };
static struct {
	int used, cold;
	uint32_t parent, session;
	double heat;
	uint64_t last;
} node[M];
static struct {
	double w;
	uint32_t count;
	uint64_t t;
} edge[M][M][KVP_EDGES];

static void model_observe(uint32_t a, uint32_t b, uint32_t kind, uint64_t now)
{
	static const double rate[KVP_EDGES] = { .25, .1, 0, .5, .5 };
	uint32_t x = a < b ? a : b, y = a < b ? b : a;

	if (a == b)
		return;
	edge[x][y][kind].w *= exp2(-(double)(now - edge[x][y][kind].t) / 64);
	edge[x][y][kind].w += rate[kind] * (1 - edge[x][y][kind].w);
	edge[x][y][kind].t = now;
	edge[x][y][kind].count++;
}

static void model_remove(uint32_t id)
{
	uint32_t k;

	memset(&node[id], 0, sizeof(node[id]));
	for (k = 0; k < M; k++) {
		if (node[k].parent == id)
			node[k].parent = KVP_BLOCK_NONE; /* for good: ids return */
		memset(edge[id][k], 0, sizeof(edge[id][k]));
		memset(edge[k][id], 0, sizeof(edge[k][id]));
	}
}

/* A ranking drops what has decayed to nothing. */
static void model_forget(uint64_t now)
{
	uint32_t a, b, k;

	for (a = 0; a < M; a++)
		for (b = a; b < M; b++)
			for (k = 0; k < KVP_EDGES; k++)
				if (edge[a][b][k].w * exp2(-(double)(now - edge[a][b][k].t) / 64) <
					1e-3)
					memset(&edge[a][b][k], 0, sizeof(edge[a][b][k]));
}

/* 1,000,000 random operations against the model; ticks are whole, so that both round alike. */
static void test_against_model(void **state)
{
	struct kvp_graph_opts o;
	struct kvp_graph *g;
	struct kvp_ranking *r = kvp_ranking_new(M, M);
	uint64_t now = 1;
	uint32_t op;

	(void)state;
	seed_from_env(52);
	kvp_graph_opts_init(&o, M, 1 << 18, 64); /* one tick is one unit of time */
	o.protect_share = 1e9;
	assert_int_equal(kvp_graph_new(&o, &g), 0);
	add(g, 0, KVP_BLOCK_NONE, 1, 0, now);
	node[0].used = 1;
	node[0].parent = KVP_BLOCK_NONE;
	node[0].last = now;
	for (op = 0; op < 1000000; op++) {
		uint32_t a = below(M), b = below(M), kind = below(KVP_EDGES), s = below(4), len, i;
		kvp_block_id chain[8], got[M];
		double want;
		int n;

		now += below(4) ? 0 : below(8);
		switch (below(16)) {
		case 0:
		case 1:
			if (node[a].used || (b != a && !node[b].used))
				break;
			add(g, a, a == b ? KVP_BLOCK_NONE : b, 1, s, now);
			node[a].used = 1;
			node[a].parent = a == b ? KVP_BLOCK_NONE : b;
			node[a].session = s;
			node[a].last = now;
			if (a != b)
				model_observe(a, b, KVP_EDGE_TEMPORAL, now);
			break;
		case 2:
			assert_int_equal(kvp_graph_remove(g, a), node[a].used ? 0 : -ENOENT);
			if (node[a].used)
				model_remove(a);
			break;
		case 3:
		case 4:
		case 5:
			len = 1 + below(8);
			for (i = 0; i < len; i++)
				chain[i] = below(M);
			kvp_graph_request(g, chain, len, s, now);
			b = KVP_BLOCK_NONE;
			for (i = 0; i < len; i++) {
				uint32_t x = chain[i];

				if (!node[x].used)
					continue;
				node[x].heat =
					node[x].heat * exp2(-(double)(now - node[x].last) / 64) + 1;
				node[x].last = now;
				if (node[x].session != s && b != KVP_BLOCK_NONE)
					model_observe(b, x, KVP_EDGE_PREFIX_SHARE, now);
				node[x].session = s;
				b = x;
			}
			break;
		case 6:
		case 7:
			chain[0] = a;
			chain[1] = b;
			kvp_graph_co_attend(g, chain, 2, now);
			if (node[a].used && node[b].used)
				model_observe(a, b, KVP_EDGE_CO_ATTEND, now);
			break;
		case 8:
			if (!node[a].used)
				break;
			assert_int_equal(kvp_graph_spill(g, a, (int)(s & 1), now), 0);
			i = node[a].parent;
			if (node[a].cold != (int)(s & 1) && i != KVP_BLOCK_NONE && node[i].used) {
				uint32_t x = a < i ? a : i, y = a < i ? i : a;

				if (s & 1 && !node[i].cold)
					model_observe(a, i, KVP_EDGE_SPILL_LINK, now);
				else if (!(s & 1))
					memset(&edge[x][y][KVP_EDGE_SPILL_LINK], 0,
						sizeof(edge[0][0][0]));
			}
			node[a].cold = (int)(s & 1);
			break;
		case 9:
			if (below(20))
				break;
			assert_int_equal(kvp_graph_rank(g, NULL, now, r), 0);
			model_forget(now);
			n = kvp_ranking_evict(r, now, 0, M, got);
			for (i = 0; i < (uint32_t)n; i++)
				assert_true(node[got[i]].used && !node[got[i]].cold);
			n = kvp_ranking_prefetch(r, now, 0, &a, 1, M, got);
			for (i = 0; i < (uint32_t)n; i++)
				assert_true(node[got[i]].used && node[got[i]].cold && got[i] != a);
			break;
		default:
			if (a == b)
				break;
			i = a < b ? b : a;
			a = a < b ? a : b;
			want = edge[a][i][kind].w * exp2(-(double)(now - edge[a][i][kind].t) / 64);
			if (kind == KVP_EDGE_CO_ATTEND && edge[a][i][kind].count < 3)
				want = 0;
			if (now - edge[a][i][kind].t < 400) /* else it may have been forgotten */
				assert_true(
					fabs(kvp_graph_weight(g, a, i, kind, now) - want) < 1e-3);
		}
	}
	kvp_ranking_free(r);
	kvp_graph_free(g);
}

/* D-083: readers use a published ranking while the next ones are made; no lock anywhere. */
enum { RANKINGS = 50 };
static struct kvp_ranking *rankings[RANKINGS];
static _Atomic(struct kvp_ranking *) current;
static atomic_int done;

static void *reader(void *arg)
{
	uint64_t *reads = arg;

	while (!atomic_load(&done)) {
		const struct kvp_ranking *r = atomic_load_explicit(&current, memory_order_acquire);
		kvp_block_id got[16], active[2] = { 1, 2 };
		int n = kvp_ranking_evict(r, 100, 1000, 16, got);

		assert_true(n > 0 && n <= 16);
		kvp_ranking_prefetch(r, 100, 1000, active, 2, 16, got);
		(*reads)++;
	}
	return NULL;
}

static void test_readers_need_no_lock(void **state)
{
	struct kvp_graph *g = make(500, 8192, 0);
	uint64_t reads[2] = { 0 };
	pthread_t t[2];
	uint32_t i, k;

	(void)state;
	for (i = 0; i < 500; i++)
		add(g, i, i ? i - 1 : KVP_BLOCK_NONE, KVP_LABEL_USER, 1, 0);
	for (k = 0; k < RANKINGS; k++)
		rankings[k] = kvp_ranking_new(500, 256);
	kvp_graph_rank(g, NULL, 100, rankings[0]);
	atomic_store(&current, rankings[0]);
	for (i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&t[i], NULL, reader, &reads[i]), 0);
	for (k = 1; k < RANKINGS; k++) {
		kvp_graph_spill(g, k * 3, 1, 100);
		kvp_graph_rank(g, NULL, 100, rankings[k]);
		atomic_store_explicit(&current, rankings[k], memory_order_release);
	}
	atomic_store(&done, 1);
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	for (k = 0; k < RANKINGS; k++)
		kvp_ranking_free(rankings[k]);
	kvp_graph_free(g);
}

/* Only ratios of time count: the same events with all times and the half-life times 1000. */
static void test_unit_of_time(void **state)
{
	struct kvp_ranking *r[2] = { kvp_ranking_new(200, 200), kvp_ranking_new(200, 200) };
	uint64_t unit[2] = { 1, 1000 };
	kvp_block_id got[2][200];
	int n[2];
	uint32_t k, i;

	(void)state;
	for (k = 0; k < 2; k++) {
		struct kvp_graph_opts o;
		struct kvp_graph *g;
		uint64_t now = 7;

		random_seed(53);
		kvp_graph_opts_init(&o, 200, 4096, 640. * (double)unit[k]);
		assert_int_equal(kvp_graph_new(&o, &g), 0);
		for (i = 0; i < 200; i++)
			add(g, i, i && below(5) ? below(i) : KVP_BLOCK_NONE, 1, 1,
				(now += 10 * below(5)) * unit[k]);
		for (i = 0; i < 1000; i++) {
			kvp_block_id x = below(200);

			kvp_graph_request(g, &x, 1, below(3), (now += 10 * below(5)) * unit[k]);
		}
		kvp_graph_rank(g, NULL, now * unit[k], r[k]);
		n[k] = kvp_ranking_evict(r[k], now * unit[k], 0, 200, got[k]);
		kvp_graph_free(g);
	}
	assert_int_equal(n[0], n[1]);
	assert_memory_equal(got[0], got[1], (size_t)n[0] * sizeof(got[0][0]));
	kvp_ranking_free(r[0]);
	kvp_ranking_free(r[1]);
}

static void test_refusals(void **state)
{
	struct kvp_graph_opts o, bad;
	struct kvp_graph *g = NULL;
	struct kvp_ranking *r = kvp_ranking_new(4, 4);

	(void)state;
	kvp_graph_opts_init(&o, 8, 64, HALF);
	bad = o, bad.max_blocks = 0;
	assert_int_equal(kvp_graph_new(&bad, &g), -EINVAL);
	bad = o, bad.max_edges = 7;
	assert_int_equal(kvp_graph_new(&bad, &g), -EINVAL);
	bad = o, bad.half_life = 0;
	assert_int_equal(kvp_graph_new(&bad, &g), -EINVAL);
	bad = o, bad.semantic_min = 1.1;
	assert_int_equal(kvp_graph_new(&bad, &g), -EINVAL);
	bad = o, bad.compare = 0;
	assert_int_equal(kvp_graph_new(&bad, &g), -EINVAL);
	bad = o, bad.size = 4;
	assert_int_equal(kvp_graph_new(&bad, &g), -EINVAL);
	bad = o, bad.protect_share = 0; /* would protect all */
	assert_int_equal(kvp_graph_new(&bad, &g), -EINVAL);
	bad = o, bad.compare = 1001;
	assert_int_equal(kvp_graph_new(&bad, &g), -EINVAL);
	for (bad = o, bad.compare = 1; bad.compare <= 1000; bad.compare += 999) {
		assert_int_equal(kvp_graph_new(&bad, &g), 0);
		g = kvp_graph_free(g);
	}
	assert_null(g);
	assert_int_equal(kvp_graph_new(&o, &g), 0);
	assert_int_equal(kvp_graph_rank(g, NULL, 0, r), -EINVAL); /* too small a ranking */
	kvp_graph_free(g);
	assert_null(kvp_ranking_free(r));
	assert_null(kvp_ranking_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nodes),
		cmocka_unit_test(test_edge_kinds),
		cmocka_unit_test(test_weights),
		cmocka_unit_test(test_cross_session_reuse),
		cmocka_unit_test(test_evictions),
		cmocka_unit_test(test_shared_is_protected),
		cmocka_unit_test(test_prefetch),
		cmocka_unit_test(test_score),
		cmocka_unit_test(test_prefetch_strongest),
		cmocka_unit_test(test_every_edge_counts),
		cmocka_unit_test(test_sketches),
		cmocka_unit_test(test_number_of_parent_returns),
		cmocka_unit_test(test_stale),
		cmocka_unit_test(test_table_is_bounded),
		cmocka_unit_test(test_against_model),
		cmocka_unit_test(test_readers_need_no_lock),
		cmocka_unit_test(test_unit_of_time),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
