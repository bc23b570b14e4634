/* SPDX-License-Identifier: Apache-2.0 */
/* One match over the spaces of several ranks, beside a real daemon that evicts: C-001, C-057. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/libclient/live.h"

#define RANKS 4u

/* Ranks of a model: spaces of one client, with the bytes of one prompt for all of them. */
struct ranks {
	struct engine *e;
	struct kvp_space *own; /* the engine's, which is in none of the groups */
	struct kvp_space *space[RANKS];
};

static void ranks_open(struct ranks *g, const char *name, uint32_t seed)
{
	g->e = engine_new(name, KVP_LAYOUT_LCND, seed);
	g->own = g->e->space;
	for (uint32_t i = 0; i < RANKS; i++) {
		struct kvp_layer shard[2] = { layers[0], layers[1] };
		struct kvp_space_desc d = model(name, KVP_LAYOUT_LCND);

		shard[0].first_head = shard[1].first_head = i * shard[0].kv_heads;
		d.layers = shard;
		EQUAL(kvp_space_open(g->e->client, &d, KVP_DEFAULT_TIMEOUT, &g->space[i]), 0);
	}
}

static void ranks_close(struct ranks *g)
{
	g->e->space = g->own;
	for (uint32_t i = 0; i < RANKS; i++)
		if (g->space[i] != g->own)
			kvp_space_close(g->space[i]);
	engine_free(g->e);
}

static void store_at(struct ranks *g, uint32_t rank, uint32_t n)
{
	struct kvp_prefix_info info;

	g->e->space = g->space[rank];
	store(g->e, n, KVP_PUT_PARTIAL);
	/* what lies in memory that is still to be mapped is a miss */
	kvp_release(find_soon(g->e, n, n, &info));
}

static uint32_t ask(
	struct ranks *g, uint32_t n_spaces, uint32_t n, uint32_t flags, struct kvp_prefix **m)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = flags };
	struct kvp_ids ids = { g->e->tokens, n, KVP_IDS_U32 };
	struct kvp_prefix_info first = { .size = sizeof(first) };

	EQUAL(kvp_match_group(g->space, n_spaces, &ids, &o, m), 0);
	EQUAL(kvp_match_info(m[0], &first), 0);
	for (uint32_t i = 1; i < n_spaces; i++) {
		struct kvp_prefix_info info = { .size = sizeof(info) };

		EQUAL(kvp_match_info(m[i], &info), 0);
		EQUAL(info.n_blocks, first.n_blocks);
		EQUAL(info.n_tokens, first.n_tokens);
		EQUAL(info.tail_tokens, first.tail_tokens);
		EQUAL(info.flags, first.flags);
	}
	EQUAL(first.flags, first.n_tokens + first.tail_tokens ? KVP_MATCHED_LEASED : 0);
	return first.n_tokens + first.tail_tokens;
}

static void let_go(struct kvp_prefix **m, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		EQUAL(kvp_release(m[i]), 0);
}

/* What is there is found; what the daemon has just moved, when the library has mapped where it lies now. */
static void finds(struct ranks *g, uint32_t n_spaces, uint32_t n, uint32_t flags, uint32_t want,
	struct kvp_prefix **m)
{
	for (uint32_t i = 0;; i++) {
		uint32_t got = ask(g, n_spaces, n, flags, m);

		if (got == want)
			return;
		CHECK(got < want && i < 12000);
		let_go(m, n_spaces);
		usleep(5000);
	}
}

static void no_more_than(struct kvp_prefix *m, uint32_t tokens)
{
	struct kvp_payload_info p = { .size = sizeof(p) };

	EQUAL(kvp_payload(m, (tokens + T - 1) / T - 1, &p), 0);
	EQUAL(kvp_payload(m, (tokens + T - 1) / T, &p), -ENOENT);
}

/* C-001: four ranks with unequal holdings all receive the minimum. */
static void the_least_of_all(void)
{
	static const uint32_t holds[][RANKS + 1] = {
		/* of each rank, and the least */
		{ 5 * T, 3 * T, 4 * T, 6 * T, 3 * T },
		{ 3 * T, 5 * T, 5 * T, 5 * T, 3 * T },
		{ 5 * T, 5 * T, 5 * T, 2 * T, 2 * T },
		{ 4 * T, 4 * T, 4 * T, 4 * T, 4 * T },
		{ 5 * T, 2 * T + 20, 4 * T, 3 * T, 2 * T + 20 }, /* a partial block, a tail */
		{ 2 * T + 20, 2 * T + 20, 2 * T + 20, 2 * T + 20, 2 * T + 20 },
		{ 2 * T + 30, 2 * T + 20, 2 * T + 40, 2 * T + 20, 2 * T + 20 },
		{ 5 * T, 30, 4 * T, 3 * T, 30 },
		{ 5 * T, 3 * T, 0, 4 * T, 0 },
	};
	char name[16];

	for (size_t c = 0; c < sizeof(holds) / sizeof(holds[0]); c++) {
		struct kvp_prefix *m[RANKS];
		struct ranks g;
		uint32_t least = holds[c][RANKS];

		snprintf(name, sizeof(name), "group-%zu", c);
		ranks_open(&g, name, 10 + (uint32_t)c);
		for (uint32_t i = 0; i < RANKS; i++)
			if (holds[c][i])
				store_at(&g, i, holds[c][i]);
		finds(&g, RANKS, 7 * T, 0, least, m);
		for (uint32_t i = 0; i < RANKS && least; i++) {
			g.e->space = g.space[i];
			same_bytes(g.e, m[i], least);
			no_more_than(m[i], least);
		}
		let_go(m, RANKS);
		finds(&g, RANKS, 7 * T, KVP_MATCH_EXACT, 0, m);
		let_go(m, RANKS);
		finds(&g, RANKS, least, KVP_MATCH_EXACT, least, m);
		let_go(m, RANKS);
		/* One rank: as ever. */
		finds(&g, 1, 7 * T, 0, holds[c][0], m);
		let_go(m, 1);
		ranks_close(&g);
	}
}

/* A block is the group's when the last rank has committed it. */
static void visible_when_all_have_it(void)
{
	struct kvp_prefix *m[RANKS];
	struct ranks g;

	ranks_open(&g, "visible", 30);
	for (uint32_t n = 1; n <= 4; n++) {
		for (uint32_t i = 0; i < RANKS; i++) {
			finds(&g, RANKS, 6 * T, 0, (n - 1) * T, m);
			let_go(m, RANKS);
			store_at(&g, (i + n) % RANKS, n * T);
		}
		finds(&g, RANKS, 6 * T, 0, n * T, m);
		let_go(m, RANKS);
	}
	ranks_close(&g);
}

/* What a rank has beyond the others is not kept in place. */
static void the_rest_is_let_go(void)
{
	struct kvp_prefix *m[RANKS];
	struct kvp_prefix_info info;
	struct ranks g;

	ranks_open(&g, "rest", 31);
	for (uint32_t i = 0; i < RANKS; i++)
		store_at(&g, i, i == 2 ? 2 * T : 5 * T);
	finds(&g, RANKS, 5 * T, 0, 2 * T, m);
	for (uint32_t i = 0; i < RANKS; i++) {
		EQUAL(kvp_delete(g.space[i], g.e->tokens, 5 * T, WAIT_MS), i == 2 ? 2 : 5);
		g.e->space = g.space[i];
		do {
			kvp_release(find(g.e, 5 * T, 0, &info));
		} while (info.n_tokens > 2 * T && usleep(1000) == 0);
		EQUAL(info.n_tokens, 2 * T);
		same_bytes(g.e, m[i], 2 * T);
	}
	let_go(m, RANKS);
	/* and what was, goes now */
	while (ask(&g, RANKS, 5 * T, 0, m)) {
		let_go(m, RANKS);
		usleep(1000);
	}
	let_go(m, RANKS);
	ranks_close(&g);
}

static void what_is_no_group(void)
{
	struct kvp_match_opts o = { .size = sizeof(o) };
	struct kvp_space_desc d = model("short", KVP_LAYOUT_LCND);
	struct kvp_prefix *m[RANKS] = { NULL }, *after;
	struct kvp_prefix_info info;
	struct ranks g, h;
	struct kvp_ids ids;
	struct kvp_space *mixed[2];

	ranks_open(&g, "refused", 32);
	ranks_open(&h, "refused", 32);
	ids = (struct kvp_ids){ g.e->tokens, 2 * T, KVP_IDS_U32 };
	EQUAL(kvp_match_group(NULL, 1, &ids, NULL, m), -EINVAL);
	EQUAL(kvp_match_group(g.space, 0, &ids, NULL, m), -EINVAL);
	EQUAL(kvp_match_group(g.space, KVP_GROUP_MAX + 1, &ids, NULL, m), -EINVAL);
	EQUAL(kvp_match_group(g.space, RANKS, NULL, NULL, m), -EINVAL);
	EQUAL(kvp_match_group(g.space, RANKS, &ids, NULL, NULL), -EINVAL);
	o.flags = KVP_MATCH_CLAIM;
	EQUAL(kvp_match_group(g.space, RANKS, &ids, &o, m), -EINVAL);
	o.flags = 0;
	after = find(g.e, T, 0, &info);
	o.after = after;
	EQUAL(kvp_match_group(g.space, RANKS, &ids, &o, m), -EINVAL);
	kvp_release(after);
	mixed[0] = g.space[0];
	mixed[1] = NULL;
	EQUAL(kvp_match_group(mixed, 2, &ids, NULL, m), -EINVAL);
	mixed[1] = g.space[0];
	EQUAL(kvp_match_group(mixed, 2, &ids, NULL, m), -EINVAL);
	mixed[1] = h.space[1];
	EQUAL(kvp_match_group(mixed, 2, &ids, NULL, m), -EINVAL);
	d.block_tokens = 32;
	EQUAL(kvp_space_open(g.e->client, &d, WAIT_MS, &mixed[1]), 0);
	EQUAL(kvp_match_group(mixed, 2, &ids, NULL, m), -EINVAL);
	kvp_space_close(mixed[1]);
	CHECK(!m[0]);
	ranks_close(&g);
	ranks_close(&h);
}

/* ---- while blocks come and go ---------------------------------------------------------------- */

static atomic_bool enough;

static void *others(void *arg)
{
	struct engine *e = engine_new("others", KVP_LAYOUT_LCND, 1000);
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };

	(void)arg;
	for (uint32_t seed = 1000; !atomic_load(&enough); seed++) {
		fill(e, seed);
		CHECK(kvp_put(e->space, e->tokens, N, 0, &e->view, &o, NULL) >= 0);
		usleep(2000);
	}
	engine_free(e);
	return NULL;
}

/*
 * Ranks store at unlike paces and lose blocks to others; each answer is one number, and its bytes are
 * there and stay, here and in another process's hands.
 */
static void while_blocks_come_and_go(void)
{
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	uint32_t found = 0, taken = 0;
	struct ranks g, w;
	pthread_t thread;

	ranks_open(&g, "pace", 33);
	ranks_open(&w, "pace", 33);
	CHECK(pthread_create(&thread, NULL, others, NULL) == 0);
	for (uint32_t i = 0; i < 300; i++) {
		struct kvp_prefix *m[RANKS], *got[RANKS] = { NULL };
		uint32_t rank = i * 7 % RANKS, tokens;

		CHECK(kvp_put(g.space[rank], g.e->tokens, (1 + i * 5 % 10) * T, 0, &g.e->view, &o,
			      NULL) >= 0);
		EQUAL(kvp_flush(g.e->client, WAIT_MS), 0);
		tokens = ask(&g, RANKS, N, 0, m);
		found += tokens > 0;
		for (uint32_t k = 0; k < RANKS && tokens; k++) {
			struct kvp_handover h;

			EQUAL(kvp_match_export(m[k], &h), 0);
			if (kvp_match_import(w.space[k], &h, &got[k]) < 0)
				got[k] = NULL; /* its memory is still to be mapped there */
		}
		for (uint32_t k = 0; k < RANKS && tokens; k++) {
			g.e->space = g.space[k];
			same_bytes(g.e, m[k], tokens);
		}
		let_go(m, RANKS);
		for (uint32_t k = 0; k < RANKS; k++) {
			if (!got[k])
				continue;
			taken++;
			w.e->space = w.space[k];
			same_bytes(w.e, got[k], tokens);
			EQUAL(kvp_release(got[k]), 0);
		}
	}
	atomic_store(&enough, true);
	CHECK(pthread_join(thread, NULL) == 0);
	printf("found %u times, taken over %u times\n", found, taken);
	CHECK(found && taken);
	ranks_close(&g);
	ranks_close(&w);
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "the least of all", the_least_of_all },
		{ "visible when all have it", visible_when_all_have_it },
		{ "the rest is let go", the_rest_is_let_go },
		{ "what is no group", what_is_no_group },
		{ "while blocks come and go", while_blocks_come_and_go },
	};

	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
