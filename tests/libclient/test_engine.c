/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What connectors of engines call, beside a real kvpoold and against a naive model of what must be
 * cached: runs of blocks.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/libclient/live.h"
#include "tests/shm/toy_ledger.h"

#define BT      16u  /* tokens of a block here: small, so that there are many */
#define LETTERS 3u   /* what a block may consist of */
#define DEPTH   5u   /* whole blocks of a sequence */
#define NODES   364u /* of the tree of all sequences: (3^6 - 1) / 2 */
#define ROUNDS  300u

static uint64_t rnd;

static uint32_t roll(uint32_t n)
{
	return (uint32_t)(toy_random(&rnd) % n);
}

/* A space of small blocks, and which of all possible ones are cached. */
struct model_space {
	struct kvp_client *client;
	struct kvp_space *space;
	uint64_t block_bytes;
	uint8_t whole[NODES];            /* node 0 is the root, and always there */
	uint8_t partial[NODES][LETTERS]; /* tokens of the partial block after the node; 0: none */
};

/* One sequence: letters of its whole blocks, then `rest` tokens of one more letter. */
struct walk {
	uint32_t letter[DEPTH + 1];
	uint32_t blocks, rest;
	uint32_t node[DEPTH + 1]; /* node[b]: after b blocks */
	uint32_t tokens[(DEPTH + 1) * BT];
	uint32_t n;
};

static struct kvp_space_desc small(const char *name)
{
	static const struct kvp_layer one[2] = {
		{ .index = 0, .kv_heads = 2, .k_dim = 8, .v_dim = 8 },
		{ .index = 1, .kv_heads = 2, .k_dim = 8, .v_dim = 8 },
	};
	struct kvp_space_desc d = model(name, KVP_LAYOUT_LCND);

	d.layers = one;
	d.block_tokens = BT;
	d.rope_dim = 8;
	return d;
}

static struct model_space *space_new(const char *name)
{
	struct model_space *s = calloc(1, sizeof(*s));
	struct kvp_space_desc d = small(name);
	struct kvp_space_props p = { .size = sizeof(p) };

	CHECK(s);
	EQUAL(kvp_open(NULL, &s->client), 0);
	EQUAL(kvp_space_open(s->client, &d, WAIT_MS, &s->space), 0);
	EQUAL(kvp_space_info(s->space, &p), 0);
	s->block_bytes = p.block_bytes;
	s->whole[0] = 1;
	return s;
}

static void space_free(struct model_space *s)
{
	kvp_space_close(s->space);
	kvp_close(s->client);
	free(s);
}

static void walk_new(struct walk *w)
{
	*w = (struct walk){ .blocks = roll(DEPTH + 1), .rest = roll(3) ? 0 : roll(BT) };
	for (uint32_t b = 0; b <= w->blocks; b++) {
		uint32_t len = b < w->blocks ? BT : w->rest;

		w->letter[b] = roll(LETTERS);
		if (b < w->blocks)
			w->node[b + 1] = w->node[b] * LETTERS + w->letter[b] + 1;
		for (uint32_t t = 0; t < len; t++)
			w->tokens[w->n++] = w->letter[b] * 1000 + b * BT + t;
	}
}

/* How many of the walk's tokens the model has; *ret_blocks: in how many blocks. */
static uint32_t expected(const struct model_space *s, const struct walk *w, uint32_t *ret_blocks)
{
	uint32_t b = 0;

	while (b < w->blocks && s->whole[w->node[b + 1]])
		b++;
	*ret_blocks = b;
	if (b < w->blocks || !w->rest || s->partial[w->node[b]][w->letter[b]] != w->rest)
		return b * BT;
	*ret_blocks = b + 1;
	return b * BT + w->rest;
}

/* Every byte of a block follows from where it stands in the tree. */
static uint8_t byte_of(const struct walk *w, uint32_t block, uint64_t i)
{
	return (uint8_t)((w->node[block] * 7 + w->letter[block]) * 31 + i * 3);
}

static void write_block(struct model_space *s, const struct walk *w, uint32_t block, uint8_t *to)
{
	for (uint64_t i = 0; i < s->block_bytes; i++)
		to[i] = byte_of(w, block, i);
}

/* Blocks that were moved are a miss until their extent is mapped: at most a moment. */
static struct kvp_prefix *find_all(
	struct model_space *s, const struct walk *w, struct kvp_prefix_info *i)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_NO_TAIL };
	uint32_t blocks, want = expected(s, w, &blocks);

	i->size = sizeof(*i);
	for (uint32_t n = 0;; n++) {
		struct kvp_prefix *m;

		EQUAL(kvp_match(s->space, w->tokens, w->n, &o, &m), 0);
		EQUAL(kvp_match_info(m, i), 0);
		if (i->n_tokens == want && i->n_blocks == blocks)
			return m;
		CHECK(i->n_tokens < want && n < 1000);
		kvp_release(m);
		usleep(5000);
	}
}

static void check_blocks(struct model_space *s, const struct walk *w, struct kvp_prefix *m)
{
	const void *addrs[DEPTH + 1];
	int n = kvp_payloads(m, 0, DEPTH + 1, addrs);
	struct kvp_prefix_info i = { .size = sizeof(i) };

	EQUAL(kvp_match_info(m, &i), 0);
	EQUAL(n, i.n_blocks);
	for (uint32_t b = 0; b < i.n_blocks; b++)
		for (uint64_t k = 0; k < s->block_bytes; k++)
			EQUAL(((const uint8_t *)addrs[b])[k], byte_of(w, b, k));
}

static void note_stored(struct model_space *s, const struct walk *w)
{
	for (uint32_t b = 0; b < w->blocks; b++)
		s->whole[w->node[b + 1]] = 1;
	if (w->rest)
		s->partial[w->node[w->blocks]][w->letter[w->blocks]] = (uint8_t)w->rest;
}

/* Stores blocks [from, all) of the walk in runs of any length, some of them blocks there already. */
static void store_runs(
	struct model_space *s, const struct walk *w, uint32_t from, struct kvp_ref parent)
{
	uint32_t all = w->blocks + (w->rest ? 1 : 0);

	while (from < all) {
		uint32_t n = 1 + roll(all - from),
			 end = (from + n) * BT < w->n ? (from + n) * BT : w->n;
		uint32_t flags = roll(2) ? KVP_COMMIT_RELEASE : 0;
		struct kvp_grant *g[DEPTH + 1];

		EQUAL(kvp_reserve_run(s->space, n, WAIT_MS, NULL, g), n);
		for (uint32_t i = 0; i < n; i++)
			write_block(s, w, from + i, kvp_grant_addr(g[i]));
		EQUAL(kvp_commit_run(g, n, parent, w->tokens + from * BT, end - from * BT, NULL,
			      flags, &parent),
			n);
		for (uint32_t i = 0; !flags && i < n; i++)
			EQUAL(kvp_grant_release(g[i]), 0);
		from += n;
	}
}

/*
 * C-026, E-013: any mix of runs, whole and partial blocks, with or without their grants, gives what
 * a tree of what was stored says, byte for byte.
 */
static void test_runs(void)
{
	struct model_space *s = space_new("runs");

	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct kvp_prefix_info i;
		struct kvp_prefix *m;
		struct kvp_ref parent;
		struct walk w;
		uint32_t whole, blocks;

		walk_new(&w);
		m = find_all(s, &w, &i);
		check_blocks(s, &w, m);
		/* A family of partial blocks is told apart by tokens, not by length: one each. */
		if (w.rest && s->partial[w.node[w.blocks]][w.letter[w.blocks]])
			w.n -= w.rest, w.rest = 0;
		whole = i.n_tokens / BT;
		if (whole && !roll(4))
			whole--; /* and the block that is there is stored a second time */
		EQUAL(kvp_match_ref(m, whole, &parent), 0);
		store_runs(s, &w, whole, parent);
		EQUAL(kvp_flush(s->client, WAIT_MS), 0);
		kvp_release(m);
		note_stored(s, &w);
		m = find_all(s, &w, &i);
		EQUAL(expected(s, &w, &blocks), w.n);
		check_blocks(s, &w, m);
		kvp_release(m);
	}
	space_free(s);
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "runs", test_runs },
	};

	rnd = toy_seed();
	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
