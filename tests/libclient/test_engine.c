/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What connectors of engines call, beside a real kvpoold and against a naive model of what must be
 * cached: runs of blocks; memory of pages, as vLLM, SGLang and llama.cpp lay it out; sequences that
 * grow, in token ids of any width.
 */
#include <errno.h>
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
	struct kvp_counters c = { .size = sizeof(c) };

	/* The pool has room for all of a test's blocks: the model knows no eviction. */
	EQUAL(kvp_stats(s->client, &c), 0);
	EQUAL(c.evictions, 0);
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
		CHECK(i->n_tokens < want && n < 12000);
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
	for (uint32_t b = 0; b < i.n_blocks; b++) {
		uint32_t tokens = b < w->blocks ? BT : w->rest;

		/* In each of four planes the tokens' rows; what a partial block lacks is undefined. */
		for (uint64_t k = 0; k < s->block_bytes; k++)
			if (k % (s->block_bytes / 4) < (uint64_t)tokens * 32)
				EQUAL(((const uint8_t *)addrs[b])[k], byte_of(w, b, k));
	}
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

/* ---- pages ----------------------------------------------------------------------------------- */

#define HEADS 4u
#define ROW   64u /* 32 channels of bf16 */
#define WIDE  (HEADS * ROW)
#define ALL   (N + 20) /* tokens of a request: its last block is partial */

/* An engine's memory for two layers, its table for one request, and a view of both. */
struct pages {
	uint32_t page_tokens, pool_pages;
	uint8_t *memory;
	size_t bytes;
	int32_t table[ALL + 8];
	int64_t indices[ALL + 8];
	struct kvp_view_plane planes[2];
	struct kvp_view view;
};

/* A random place for every page of the request, none of them twice. */
static void deal(struct pages *p, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = roll(i + 1);

		p->table[i] = p->table[k];
		p->table[k] = (int32_t)(i + roll(2) * n);
	}
	for (uint32_t i = 0; i < n; i++)
		p->indices[i] = p->table[i];
}

static struct pages *pages_new(uint32_t page_tokens, size_t layer_bytes)
{
	struct pages *p = calloc(1, sizeof(*p));
	uint32_t n = (ALL + page_tokens - 1) / page_tokens;

	CHECK(p && n < ALL + 8);
	p->page_tokens = page_tokens;
	p->pool_pages = 2 * n;
	deal(p, n);
	p->bytes = 2 * 2 * (size_t)p->pool_pages * layer_bytes;
	p->memory = calloc(1, p->bytes);
	CHECK(p->memory);
	p->view = (struct kvp_view){ .size = sizeof(p->view),
		.planes = p->planes,
		.page_tokens = page_tokens,
		.pool_pages = p->pool_pages,
		.pages = { p->table, n, KVP_IDS_I32 } };
	return p;
}

static void pages_free(struct pages *p)
{
	free(p->memory);
	free(p);
}

/* vLLM: a tensor [2][blocks][block_size][heads][dim] for each layer. */
static struct pages *like_vllm(uint32_t block_size)
{
	size_t page = block_size * WIDE;
	struct pages *p = pages_new(block_size, page);

	for (uint32_t l = 0; l < 2; l++) {
		uint8_t *tensor = p->memory + l * 2 * p->pool_pages * page;

		p->planes[l] = (struct kvp_view_plane){ .k = tensor,
			.v = tensor + p->pool_pages * page,
			.k_page_stride = page,
			.v_page_stride = page,
			.k_token_stride = WIDE,
			.v_token_stride = WIDE,
			.k_head_stride = ROW,
			.v_head_stride = ROW };
	}
	return p;
}

/* Its other order, [blocks][2][heads][block_size][dim]. */
static struct pages *like_vllm_hnd(uint32_t block_size)
{
	size_t half = block_size * WIDE;
	struct pages *p = pages_new(block_size, half);

	for (uint32_t l = 0; l < 2; l++) {
		uint8_t *tensor = p->memory + l * 2 * p->pool_pages * half;

		p->planes[l] = (struct kvp_view_plane){ .k = tensor,
			.v = tensor + half,
			.k_page_stride = 2 * half,
			.v_page_stride = 2 * half,
			.k_token_stride = ROW,
			.v_token_stride = ROW,
			.k_head_stride = block_size * ROW,
			.v_head_stride = block_size * ROW };
	}
	return p;
}

/* SGLang: K and V pools [tokens][heads][dim] of each layer, int64 indices of tokens. */
static struct pages *like_sglang(void)
{
	struct pages *p = pages_new(1, WIDE);

	p->view.pages.ids = p->indices;
	p->view.pages.type = KVP_IDS_I64;
	for (uint32_t l = 0; l < 2; l++) {
		uint8_t *pool = p->memory + l * 2 * p->pool_pages * WIDE;

		p->planes[l] = (struct kvp_view_plane){ .k = pool,
			.v = pool + p->pool_pages * WIDE,
			.k_page_stride = WIDE,
			.v_page_stride = WIDE,
			.k_head_stride = ROW,
			.v_head_stride = ROW };
	}
	return p;
}

/* llama.cpp without flash attention: cells of keys, and values with a row for each channel. */
static struct pages *like_llama(void)
{
	struct pages *p = pages_new(1, WIDE);
	size_t cells = p->pool_pages;

	for (uint32_t l = 0; l < 2; l++) {
		uint8_t *layer = p->memory + l * 2 * cells * WIDE;

		p->planes[l] = (struct kvp_view_plane){ .k = layer,
			.v = layer + cells * WIDE,
			.k_page_stride = WIDE,
			.v_page_stride = 2,
			.k_head_stride = ROW,
			.v_head_stride = 32 * cells * 2,
			.v_channel_stride = cells * 2 };
	}
	return p;
}

/* Where the view has an element of the request, by the formula of kvpool.h. */
static const uint8_t *element(
	const struct pages *p, uint32_t layer, int v, uint32_t t, uint32_t h, uint32_t c)
{
	const struct kvp_view_plane *at = &p->planes[layer];
	size_t page = (size_t)p->table[t / p->page_tokens], in = t % p->page_tokens;
	size_t channel = v ? at->v_channel_stride : at->k_channel_stride;

	channel = channel ? channel : 2;
	return v ? (const uint8_t *)at->v + page * at->v_page_stride + in * at->v_token_stride +
			       h * at->v_head_stride + c * channel
		 : (const uint8_t *)at->k + page * at->k_page_stride + in * at->k_token_stride +
			       h * at->k_head_stride + c * channel;
}

/* Tokens [from, to) of the engine's own copy, [token][K,V][layer][head][channel], are in the pages. */
static void same_pages(const struct engine *e, const struct pages *p, uint32_t from, uint32_t to)
{
	for (uint32_t t = from; t < to; t++)
		for (uint32_t x = 0; x < TOKEN_BYTES; x += 2) {
			uint32_t v = x / (TOKEN_BYTES / 2), l = x / WIDE % 2, in = x % WIDE;
			const uint8_t *have = element(p, l, (int)v, t, in / ROW, in % ROW / 2);

			CHECK(memcmp(have, e->kv + (size_t)t * TOKEN_BYTES + x, 2) == 0);
		}
}

static int nothing_in(const struct pages *p)
{
	for (size_t i = 0; i < p->bytes; i++)
		if (p->memory[i])
			return 0;
	return 1;
}

/*
 * A whole request in one call, from and into the memory of any engine: what one has stored out of
 * its pages another restores into its own.
 */
static void test_pages(void)
{
	static struct pages *(*const engines[])(void) = { like_sglang, like_llama };

	for (uint32_t i = 0; i < 6; i++) {
		struct kvp_put_opts o = {
			.size = sizeof(o), .flags = KVP_PUT_PARTIAL, .timeout_ms = WAIT_MS
		};
		struct pages *mine = i < 2   ? like_vllm(16 + 16 * i)
				     : i < 4 ? like_vllm_hnd(i % 2 ? 48 : 64)
					     : engines[i % 2]();
		struct pages *theirs = i % 3 == 0 ? like_llama() : like_sglang();
		struct engine *e = engine_new("pages", i % 2, 500 + i);
		struct kvp_prefix_info info;
		struct kvp_prefix *m;
		uint32_t half = N / 2;

		/* Into the first engine's pages, from a dense buffer by way of the cache. */
		store(e, ALL, KVP_PUT_PARTIAL);
		m = find_soon(e, ALL, ALL, &info);
		EQUAL(kvp_get(m, 0, ALL, &mine->view, KVP_GET_VERIFY), ALL);
		same_pages(e, mine, 0, ALL);
		EQUAL(kvp_release(m), 0);
		/* Out of them under other tokens, in two calls, the second from the middle. */
		for (uint32_t t = 0; t < ALL; t++)
			e->tokens[t] += 1u << 30;
		EQUAL(kvp_put(e->space, e->tokens, half, 0, &mine->view, &o, NULL), half);
		mine->view.first_slot = half;
		EQUAL(kvp_put(e->space, e->tokens, ALL, half, &mine->view, &o, NULL), ALL - half);
		EQUAL(kvp_flush(e->client, WAIT_MS), 0);
		m = find_soon(e, ALL, ALL, &info);
		same_bytes(e, m, ALL);
		/* And into the other's: what it has not computed itself, at its place in the table. */
		theirs->view.first_slot = 100;
		EQUAL(kvp_get(m, 100, UINT32_MAX, &theirs->view, 0), ALL - 100);
		same_pages(e, theirs, 100, ALL);
		EQUAL(kvp_release(m), 0);
		pages_free(mine);
		pages_free(theirs);
		engine_free(e);
	}
}

/* One number of a table wrong, or one too few: nothing is copied, nothing stored. */
static void test_wrong_pages(void)
{
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct engine *e = engine_new("wrong pages", 0, 600);
	struct pages *p = like_vllm(16);
	struct kvp_prefix_info info;
	struct kvp_prefix *m;
	int32_t kept = p->table[N / 16 - 1];

	store(e, N, 0);
	m = find_soon(e, N, N, &info);
	p->table[N / 16 - 1] = (int32_t)p->pool_pages;
	EQUAL(kvp_get(m, 0, N, &p->view, 0), -EINVAL);
	p->table[N / 16 - 1] = -1;
	EQUAL(kvp_get(m, 0, N, &p->view, 0), -EINVAL);
	EQUAL(kvp_put(e->space, e->tokens + 1, N, 0, &p->view, &o, NULL), -EINVAL);
	p->table[N / 16 - 1] = kept;
	p->view.pages.n = N / 16 - 1;
	EQUAL(kvp_get(m, 0, N, &p->view, 0), -EINVAL);
	EQUAL(kvp_put(e->space, e->tokens + 1, N, 0, &p->view, &o, NULL), -EINVAL);
	CHECK(nothing_in(p));
	EQUAL(kvp_release(m), 0);
	/* Only what there is has to have a place. */
	m = find_soon(e, N - 16, N - 16, &info);
	EQUAL(kvp_get(m, 0, UINT32_MAX, &p->view, 0), N - 16);
	same_pages(e, p, 0, N - 16);
	EQUAL(kvp_release(m), 0);
	EQUAL(kvp_match(e->space, e->tokens + 1, N, NULL, &m), 0);
	EQUAL(kvp_match_info(m, &info), 0);
	EQUAL(info.n_tokens, 0);
	EQUAL(kvp_release(m), 0);
	pages_free(p);
	engine_free(e);
}

/* ---- sequences that grow --------------------------------------------------------------------- */

/* The walk's tokens from `from` on, as one kind of engine or another has them. */
struct some_ids {
	int64_t wide[(DEPTH + 1) * BT];
	struct kvp_ids ids;
};

static const struct kvp_ids *ids_of(
	struct some_ids *s, const struct walk *w, uint32_t from, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		s->wide[i] = w->tokens[from + i];
	/* no id here is above 2^31, so that both kinds of 32 bits read alike */
	s->ids = (struct kvp_ids){ w->tokens + from, n, roll(2) ? KVP_IDS_U32 : KVP_IDS_I32 };
	if (!roll(2))
		s->ids = (struct kvp_ids){ s->wide, n, KVP_IDS_I64 };
	return &s->ids;
}

/* The whole walk in one match, or in several, each going on from the one before. */
static struct kvp_prefix *grow(
	struct model_space *s, const struct walk *w, struct kvp_prefix_info *i)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_NO_TAIL };
	struct kvp_prefix *m = NULL;
	uint32_t end = 0;

	i->size = sizeof(*i);
	do {
		uint32_t from = m ? i->n_tokens / BT * BT : 0;
		struct kvp_prefix *next;
		struct some_ids ids;

		/* Up to a token anywhere: what was not whole is given once more. */
		end = end + roll(2 * BT) >= w->n || !roll(4) ? w->n : end + roll(2 * BT);
		end = end < from ? from : end;
		end = end > w->n ? w->n : end;
		o.after = m;
		EQUAL(kvp_match_ids(s->space, ids_of(&ids, w, from, end - from), &o, &next), 0);
		EQUAL(kvp_release(m), 0);
		m = next;
		EQUAL(kvp_match_info(m, i), 0);
		CHECK(i->n_tokens >= from && (i->flags & KVP_MATCHED_LEASED || !i->n_blocks));
	} while (end < w->n);
	return m;
}

/* A view of the walk's blocks from `from` on: pages that are images of payloads. */
static void block_view(
	struct model_space *s, uint8_t *memory, struct kvp_view_plane planes[2], struct kvp_view *v)
{
	static const uint32_t in_order[] = { 0, 1, 2, 3, 4, 5 };

	for (uint32_t l = 0; l < 2; l++)
		planes[l] = (struct kvp_view_plane){ .k = memory + l * s->block_bytes / 2,
			.v = memory + l * s->block_bytes / 2 + s->block_bytes / 4,
			.k_token_stride = 32,
			.v_token_stride = 32,
			.k_head_stride = 16,
			.v_head_stride = 16,
			.k_page_stride = s->block_bytes,
			.v_page_stride = s->block_bytes };
	*v = (struct kvp_view){ .size = sizeof(*v),
		.planes = planes,
		.page_tokens = BT,
		.pool_pages = DEPTH + 1,
		.pages = { in_order, DEPTH + 1, KVP_IDS_U32 } };
}

/* Puts all of the walk that follows the prefix, which has so many of its blocks. */
static void put_after(struct model_space *s, const struct walk *w, const struct kvp_prefix *after,
	uint32_t blocks)
{
	uint8_t memory[(DEPTH + 1) * 2048];
	struct kvp_put_opts o = {
		.size = sizeof(o), .flags = KVP_PUT_PARTIAL, .timeout_ms = WAIT_MS, .after = after
	};
	uint32_t begin = blocks * BT;
	struct kvp_view_plane planes[2];
	struct some_ids ids;
	struct kvp_view v;

	CHECK((DEPTH + 1) * s->block_bytes == sizeof(memory));
	block_view(s, memory, planes, &v);
	for (uint32_t b = 0; b * BT < w->n; b++)
		write_block(s, w, b, memory + b * s->block_bytes);
	v.first_slot = begin;
	EQUAL(kvp_put_ids(s->space, ids_of(&ids, w, begin, w->n - begin), 0, &v, &o, NULL),
		w->n - begin);
}

/*
 * Any way to grow a match, and to put after it, gives what a tree of what was stored says; ids of
 * 32 and 64 bits are the same tokens.
 */
static void test_growing(void)
{
	struct model_space *s = space_new("growing");

	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct kvp_prefix_info i, whole;
		struct kvp_prefix *m, *one;
		uint32_t blocks, after;
		struct walk w;

		walk_new(&w);
		if (w.rest && s->partial[w.node[w.blocks]][w.letter[w.blocks]])
			w.n -= w.rest, w.rest = 0;
		one = find_all(s, &w, &whole);
		m = grow(s, &w, &i);
		EQUAL(i.n_tokens, whole.n_tokens);
		EQUAL(i.n_blocks, whole.n_blocks);
		check_blocks(s, &w, m);
		EQUAL(kvp_release(one), 0);
		/* After all that is there, or after a shorter match of it. */
		after = i.n_tokens / BT;
		if (after && roll(2)) {
			after = roll(after);
			EQUAL(kvp_release(m), 0);
			EQUAL(kvp_match(s->space, w.tokens, after * BT, NULL, &m), 0);
		}
		put_after(s, &w, m, after);
		EQUAL(kvp_release(m), 0);
		EQUAL(kvp_flush(s->client, WAIT_MS), 0);
		note_stored(s, &w);
		m = find_all(s, &w, &i);
		EQUAL(expected(s, &w, &blocks), w.n);
		check_blocks(s, &w, m);
		EQUAL(kvp_release(m), 0);
	}
	space_free(s);
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "runs", test_runs },
		{ "pages", test_pages },
		{ "wrong pages", test_wrong_pages },
		{ "growing", test_growing },
	};

	rnd = toy_seed();
	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
