/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The prefix structure against a naive map: acceptance rows E-001, E-003, E-004, E-051, and the
 * differential test of 1,000,000 random operations, tails included.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/shm/toy_ledger.h"

#define BT         16u
#define MAX_BLOCKS 2048u
#define SEQ_MAX    (BT * 6)

/* The model: every block by itself, found by looking at all siblings. */
struct naive {
	kvp_token tokens[BT];
	uint32_t n;
	int parent;      /* index here, -1 = none */
	int child, next; /* first child; next sibling */
	kvp_block_id id;
	uint32_t serial;
	bool live, in_tail;
	uint32_t n_children;
};

struct model {
	struct naive b[MAX_BLOCKS];
	int roots;
	uint32_t serial;
	uint32_t live;
};

static int *first_child(struct model *m, int parent)
{
	return parent < 0 ? &m->roots : &m->b[parent].child;
}

static int naive_child(struct model *m, int parent, const kvp_token *tokens, uint32_t n)
{
	for (int i = *first_child(m, parent); i >= 0; i = m->b[i].next)
		if (m->b[i].n == n && !memcmp(m->b[i].tokens, tokens, n * sizeof(*tokens)))
			return i;
	return -1;
}

static uint32_t naive_tail(struct model *m, int parent, const kvp_token *tokens, uint32_t left)
{
	uint32_t best = 0;

	for (int i = *first_child(m, parent); i >= 0; i = m->b[i].next) {
		uint32_t same = 0;

		while (same < m->b[i].n && same < left && m->b[i].tokens[same] == tokens[same])
			same++;
		if (m->b[i].in_tail && same >= KVP_TAIL_PREFIX && same > best)
			best = same;
	}
	return best;
}

static void naive_insert(
	struct model *m, int slot, int parent, const kvp_token *tokens, uint32_t n, kvp_block_id id)
{
	struct naive *b = &m->b[slot];
	uint32_t members = 0;
	int oldest = -1;

	*b = (struct naive){ .n = n, .parent = parent, .child = -1, .id = id, .live = true };
	memcpy(b->tokens, tokens, n * sizeof(*tokens));
	b->serial = ++m->serial;
	if (n >= KVP_TAIL_PREFIX) {
		for (int i = *first_child(m, parent); i >= 0; i = m->b[i].next) {
			if (!m->b[i].in_tail || memcmp(m->b[i].tokens, tokens, 4 * KVP_TAIL_PREFIX))
				continue;
			members++;
			if (oldest < 0 || m->b[i].serial < m->b[oldest].serial)
				oldest = i;
		}
		if (members >= KVP_TAIL_CANDIDATES)
			m->b[oldest].in_tail = false;
		b->in_tail = true;
	}
	b->next = *first_child(m, parent);
	*first_child(m, parent) = slot;
	if (parent >= 0)
		m->b[parent].n_children++;
	m->live++;
}

static void naive_remove(struct model *m, int slot)
{
	struct naive *b = &m->b[slot];
	int *link = first_child(m, b->parent);

	while (*link != slot)
		link = &m->b[*link].next;
	*link = b->next;
	if (b->parent >= 0)
		m->b[b->parent].n_children--;
	b->live = false;
	b->in_tail = false;
	m->live--;
}

/* Few distinct beginnings and a small alphabet: shared prefixes, families above 8, near misses. */
static uint32_t random_sequence(uint64_t *rng, kvp_token *out)
{
	uint32_t n = 1 + (uint32_t)(toy_random(rng) % SEQ_MAX);

	for (uint32_t at = 0; at < n; at += BT) {
		uint64_t pattern = toy_random(rng) % 3;
		uint64_t bits = toy_random(rng);

		for (uint32_t i = at; i < n && i < at + BT; i++) {
			if (i - at < KVP_TAIL_PREFIX)
				out[i] = (kvp_token)(pattern * 100 + (i - at));
			else
				out[i] = (kvp_token)(bits >> (i - at) & 1);
		}
		if (toy_random(rng) % 8 == 0)
			out[at] = 999;
	}
	return n;
}

/* From any whole block on: what is left of what was found from the root. */
static void check_after(struct toy *t, const kvp_token *tokens, uint32_t n,
	const struct kvp_hit *all, const struct kvp_found *whole, uint32_t from)
{
	struct kvp_hit hits[SEQ_MAX / BT + 2];
	struct kvp_found f;

	kvp_find_after(&t->v, 0, from ? &all[from - 1] : NULL, tokens + from * BT, n - from * BT, 0,
		KVP_TIERS_DRAM, hits, SEQ_MAX / BT + 2, &f);
	assert_int_equal(f.n_hits, whole->n_hits - from);
	assert_int_equal(f.n_tokens, whole->n_tokens - from * BT);
	assert_int_equal(f.tail_tokens, whole->tail_tokens);
	assert_int_equal(f.missing, whole->missing);
	assert_memory_equal(&f.key, &whole->key, sizeof(f.key));
	for (uint32_t i = 0; i < f.n_hits; i++)
		assert_int_equal(hits[i].id, all[from + i].id);
	if (from) {
		struct kvp_hit gone = all[from - 1];

		gone.word += kvp_word(0, 1, 0); /* it has been moved, and is what it was */
		kvp_find_after(&t->v, 0, &gone, tokens + from * BT, n - from * BT, 0,
			KVP_TIERS_DRAM, hits, SEQ_MAX / BT + 2, &f);
		assert_int_equal(f.n_hits, whole->n_hits - from);
		assert_int_equal(f.tail_tokens, whole->tail_tokens);
		gone.word += kvp_word(1, 0, 0); /* it is another block */
		kvp_find_after(&t->v, 0, &gone, tokens + from * BT, n - from * BT, 0,
			KVP_TIERS_DRAM, hits, SEQ_MAX / BT + 2, &f);
		assert_int_equal(f.n_hits + f.n_tokens + f.tail_tokens, 0);
	}
}

static void check_find(struct toy *t, struct model *m, const kvp_token *tokens, uint32_t n)
{
	struct kvp_hit hits[SEQ_MAX / BT + 2];
	struct kvp_found f;
	uint32_t at = 0, blocks = 0, tail;
	int node = -1;

	kvp_find(&t->v, 0, tokens, n, 0, KVP_TIERS_DRAM, hits, SEQ_MAX / BT + 2, &f);
	while (at < n) {
		uint32_t len = n - at < BT ? n - at : BT;
		int next = naive_child(m, node, tokens + at, len);

		if (next < 0)
			break;
		assert_true(blocks < f.n_hits);
		assert_int_equal(hits[blocks].id, m->b[next].id);
		assert_int_equal(hits[blocks].tokens, len);
		node = next;
		at += len;
		blocks++;
	}
	assert_int_equal(f.n_hits, blocks);
	assert_int_equal(f.n_tokens, at);
	assert_int_equal(f.missing, at < n);
	tail = at < n ? naive_tail(m, node, tokens + at, n - at) : 0;
	assert_int_equal(f.tail_tokens, tail);
	if (tail)
		assert_int_equal(kvp_load_relaxed(&t->v.blocks[f.tail.id].parent),
			node < 0 ? KVP_BLOCK_NONE : m->b[node].id);
	assert_int_equal(kvp_revalidate(&t->v, hits, f.n_hits), f.n_hits);
	check_after(t, tokens, n, hits, &f, n % (at / BT + 1));
}

/* Inserts what is missing of a sequence, up to where the pool is full. */
static void insert_sequence(struct toy *t, struct model *m, const kvp_token *tokens, uint32_t n)
{
	int node = -1;

	for (uint32_t at = 0; at < n; at += BT) {
		uint32_t len = n - at < BT ? n - at : BT;
		int next = naive_child(m, node, tokens + at, len), slot = 0;
		struct kvp_key chain = { 0, 0 };
		kvp_block_id id;

		if (next < 0) {
			if (!t->n_free)
				return;
			while (m->b[slot].live)
				slot++;
			assert_int_equal(toy_insert(t, node < 0 ? KVP_BLOCK_NONE : m->b[node].id,
						 tokens + at, len, chain, 0, &id),
				0);
			naive_insert(m, slot, node, tokens + at, len, id);
			next = slot;
		}
		node = next;
	}
}

static void evict_some(struct toy *t, struct model *m, uint64_t *rng)
{
	for (uint32_t tries = 0; tries < 64; tries++) {
		int slot = (int)(toy_random(rng) % MAX_BLOCKS);

		if (!m->b[slot].live || m->b[slot].n_children)
			continue;
		assert_int_equal(toy_evict(t, &m->b[slot].id, 1, NULL, NULL), 1);
		naive_remove(m, slot);
	}
}

static void differential(void **state)
{
	uint64_t rng = toy_seed();
	struct model *m = calloc(1, sizeof(*m));
	kvp_token tokens[SEQ_MAX];
	struct toy t;
	(void)state;

	m->roots = -1;
	toy_init(&t, MAX_BLOCKS, BT, true);
	for (uint32_t op = 0; op < 1000000; op++) {
		uint32_t n = random_sequence(&rng, tokens);
		uint64_t what = toy_random(&rng) % 16;

		if (what == 0)
			insert_sequence(&t, m, tokens, n);
		else
			check_find(&t, m, tokens, n);
		if (!t.n_free)
			evict_some(&t, m, &rng);
	}
	assert_int_equal(m->live + t.n_free, MAX_BLOCKS);
	/* Everything out again: the tables must be empty, overflow counters included. */
	while (m->live)
		evict_some(&t, m, &rng);
	for (uint32_t b = 0; b < t.v.index_buckets; b++) {
		assert_int_equal(kvp_load_relaxed(&t.v.index[b].overflow), 0);
		assert_int_equal(kvp_load_relaxed(&t.v.tail[b].overflow), 0);
		for (uint32_t i = 0; i < KVP_BUCKET_ENTRIES; i++) {
			assert_int_equal(kvp_load_relaxed(&t.v.index[b].entry[i]), 0);
			assert_int_equal(kvp_load_relaxed(&t.v.tail[b].entry[i]), 0);
		}
	}
	toy_fini(&t);
	free(m);
}

/* E-051: two sequences forced onto one key; the finder tells them apart by their tokens. */
static void forced_collision(void **state)
{
	const struct kvp_key none = { 0, 0 };
	kvp_token a[BT], b[BT], next[2 * BT];
	struct kvp_hit hits[4];
	struct kvp_found f;
	struct kvp_key same;
	kvp_block_id ida, idb, idc;
	struct toy t;
	(void)state;

	toy_init(&t, 64, BT, true);
	for (uint32_t i = 0; i < BT; i++) {
		a[i] = i;
		b[i] = i + 1000;
	}
	same = kvp_chain_key((struct kvp_key){ 11, 12 }, b, BT);
	assert_int_equal(toy_insert(&t, KVP_BLOCK_NONE, a, BT, same, 0, &ida), 0);
	kvp_find(&t.v, 0, b, BT, 0, KVP_TIERS_DRAM, hits, 4, &f);
	assert_int_equal(f.n_hits, 0);
	assert_int_equal(toy_insert(&t, KVP_BLOCK_NONE, b, BT, none, 0, &idb), 0);
	kvp_find(&t.v, 0, b, BT, 0, KVP_TIERS_DRAM, hits, 4, &f);
	assert_int_equal(f.n_hits, 1);
	assert_int_equal(hits[0].id, idb);
	/* A child of the impostor has the same key as a child of the real one would; the parent
	 * tells. */
	memcpy(next, b, sizeof(b));
	memcpy(next + BT, a, sizeof(a));
	assert_int_equal(toy_insert(&t, ida, a, BT, none, 0, &idc), 0);
	kvp_find(&t.v, 0, next, 2 * BT, 0, KVP_TIERS_DRAM, hits, 4, &f);
	assert_int_equal(f.n_hits, 1);
	toy_fini(&t);
}

/* What does not change with the place is read by the word of before. */
static void check_moved(
	struct toy *t, kvp_block_id id, const kvp_token *tokens, const kvp_token *salt)
{
	const struct kvp_block *b = &t->v.blocks[id];
	uint64_t word = kvp_load_relaxed(&b->word);
	kvp_token got[BT], got_salt[KVP_SALT_TOKENS];
	uint32_t n = kvp_shape_tokens(kvp_load_relaxed(&b->shape));

	kvp_block_move(&t->v, id, kvp_load_relaxed(&b->payload[KVP_TIER_DRAM].where), 4096, 0);
	assert_int_equal(kvp_recipe_read(&t->v, id, word, got, BT), n);
	assert_memory_equal(got, tokens, n * sizeof(got[0]));
	assert_int_equal(kvp_recipe_salt(&t->v, id, word, got_salt), salt != NULL);
	if (salt)
		assert_memory_equal(got_salt, salt, sizeof(got_salt));
	word += kvp_word(1, 0, 0);
	assert_int_equal(kvp_recipe_read(&t->v, id, word, got, BT), -ESTALE);
	assert_int_equal(kvp_recipe_salt(&t->v, id, word, got_salt), -ESTALE);
}

/*
 * Under a salt, under another, and under none there are three chains of the same tokens, and none is
 * found for another: also where the first blocks have one key, which only the proof can tell apart.
 */
static void salts(void **state)
{
	static const kvp_token one[KVP_SALT_TOKENS] = { 1 }, two[KVP_SALT_TOKENS] = { [7] = 2 };
	static const kvp_token *const salt[3] = { NULL, one, two };
	const uint32_t lengths[] = { BT, BT - 1, BT - 3 };
	kvp_token tokens[3 * BT], got[KVP_SALT_TOKENS];

	(void)state;
	for (uint32_t i = 0; i < 3 * BT; i++)
		tokens[i] = i + 5;
	for (uint32_t c = 0; c < 2 * 3 * 3 * 3; c++) {
		uint32_t has = c % 3, asks = c / 3 % 3, n = lengths[c / 9 % 3], forged = c / 27;
		struct kvp_key root = { 11, 12 }, key = { 0, 0 };
		kvp_block_id id, child;
		struct kvp_hit hits[4];
		struct kvp_found f;
		struct toy t;

		toy_init(&t, 64, BT, true);
		if (salt[asks])
			root = kvp_salted_root(root, salt[asks]);
		if (forged)
			key = kvp_chain_key(root, tokens, n);
		t.salt = salt[has];
		assert_int_equal(toy_insert(&t, KVP_BLOCK_NONE, tokens, n, key, 0, &id), 0);
		if (n == BT)
			assert_int_equal(toy_insert(&t, id, tokens + BT, BT,
						 (struct kvp_key){ 0, 0 }, 0, &child),
				0);
		for (uint32_t len = BT - 5; len <= 3 * BT; len++) {
			uint32_t all = n == BT ? 2 * BT : n, most = len < all ? len : all;
			/* of the next block at least so many tokens, or none */
			uint32_t want = most % BT < KVP_TAIL_PREFIX ? most / BT * BT : most;

			if (salt[asks])
				kvp_find_salted(&t.v, 0, salt[asks], tokens, len, 0, KVP_TIERS_DRAM,
					hits, 4, &f);
			else
				kvp_find(&t.v, 0, tokens, len, 0, KVP_TIERS_DRAM, hits, 4, &f);
			assert_int_equal(f.n_tokens + f.tail_tokens, has == asks ? want : 0);
			assert_int_equal(f.missing, f.n_tokens < len);
			if (!f.n_hits)
				assert_true(kvp_key_equal(f.key, root));
		}
		assert_int_equal(
			kvp_recipe_salt(&t.v, id, kvp_load_relaxed(&t.v.blocks[id].word), got),
			has > 0);
		if (has)
			assert_memory_equal(got, salt[has], sizeof(got));
		check_moved(&t, id, tokens, salt[has]);
		toy_fini(&t);
	}
}

/* A reader sees the tiers that it asks for, in its own order, and stops where none has the block. */
static void tiers(void **state)
{
	static const struct {
		uint32_t tiers;
		uint32_t n_hits;
		uint32_t tier[4];
	} cases[] = {
		{ KVP_TIERS_DRAM, 1, { KVP_TIER_DRAM } },
		{ KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_DRAM, KVP_TIER_RECIPE), 3,
			{ KVP_TIER_DRAM, KVP_TIER_VRAM, KVP_TIER_VRAM } },
		{ KVP_TIERS(KVP_TIER_DRAM, KVP_TIER_VRAM, KVP_TIER_RECIPE), 3,
			{ KVP_TIER_DRAM, KVP_TIER_VRAM, KVP_TIER_DRAM } },
		{ KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_DRAM, KVP_TIER_STORE), 4,
			{ KVP_TIER_DRAM, KVP_TIER_VRAM, KVP_TIER_VRAM, KVP_TIER_STORE } },
		{ KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_RECIPE, KVP_TIER_RECIPE), 0, { 0 } },
		{ KVP_TIERS_NONE, 0, { 0 } },
	};
	/* The first block in DRAM, the second in VRAM, the third in both, the fourth in STORE. */
	static const uint32_t in[4] = { 1u << KVP_TIER_DRAM, 1u << KVP_TIER_VRAM,
		1u << KVP_TIER_DRAM | 1u << KVP_TIER_VRAM, 1u << KVP_TIER_STORE };
	kvp_block_id id[5] = { KVP_BLOCK_NONE };
	kvp_token tokens[4 * BT + BT / 2];
	struct kvp_hit hits[5];
	struct kvp_found f;
	struct toy t;
	(void)state;

	toy_init(&t, 64, BT, true);
	for (uint32_t i = 0; i < 4 * BT + BT / 2; i++)
		tokens[i] = 3 * i;
	for (uint32_t b = 0; b < 4; b++) {
		assert_int_equal(toy_insert(&t, id[b], tokens + b * BT, BT,
					 (struct kvp_key){ 0, 0 }, 0, &id[b + 1]),
			0);
		for (uint32_t tier = 0; tier < KVP_TIER_PAYLOADS; tier++)
			kvp_block_set_payload(&t.v, id[b + 1], tier,
				in[b] >> tier & 1 ? kvp_where(tier, KVP_CODEC_NATIVE, 64) : 0,
				100 * tier + b, 0);
	}
	for (uint32_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		kvp_find(&t.v, 0, tokens, 4 * BT, 0, cases[c].tiers, hits, 5, &f);
		assert_int_equal(f.n_hits, cases[c].tiers == KVP_TIERS_NONE ? 4 : cases[c].n_hits);
		for (uint32_t b = 0; b < cases[c].n_hits; b++) {
			assert_int_equal(hits[b].tier, cases[c].tier[b]);
			assert_int_equal(hits[b].offset, 100 * cases[c].tier[b] + b);
			assert_int_equal(kvp_where_extent(hits[b].where), cases[c].tier[b]);
		}
		/* So does a tail. */
		kvp_find(&t.v, 0, tokens, 3 * BT + BT / 2, 0, cases[c].tiers, hits, 5, &f);
		assert_int_equal(f.tail_tokens, cases[c].n_hits == 4 ? BT / 2 : 0);
		if (cases[c].n_hits == 4)
			assert_int_equal(f.tail.tier, KVP_TIER_STORE);
	}
	toy_fini(&t);
}

static void limits_and_nonsense(void **state)
{
	struct kvp_catalog_layout l;
	struct kvp_catalog_view v;
	struct kvp_hit hits[2];
	struct kvp_found f;
	kvp_token tokens[BT * 3] = { 0 };
	const struct kvp_key none = { 0, 0 };
	kvp_block_id id;
	struct toy t;
	(void)state;

	assert_int_equal(kvp_catalog_plan(0, 0, 1, &l), -EINVAL);
	assert_int_equal(kvp_catalog_plan((uint64_t)KVP_MAX_BLOCKS + 1, 0, 1, &l), -EINVAL);
	assert_int_equal(kvp_catalog_plan(16, UINT64_MAX / 2, 1, &l), -EINVAL);
	toy_init(&t, 16, BT, true);
	/* An empty request, an unknown space, more blocks than there is room for. */
	kvp_find(&t.v, 0, tokens, 0, 0, KVP_TIERS_DRAM, hits, 2, &f);
	assert_int_equal(f.n_hits + f.n_tokens + f.missing, 0);
	kvp_find(&t.v, KVP_MAX_SPACES, tokens, BT, 0, KVP_TIERS_DRAM, hits, 2, &f);
	assert_int_equal(f.n_hits, 0);
	kvp_find(&t.v, 5, tokens, BT, 0, KVP_TIERS_DRAM, hits, 2, &f);
	assert_int_equal(f.n_hits, 0);
	assert_int_equal(toy_insert(&t, KVP_BLOCK_NONE, tokens, BT, none, 0, &id), 0);
	assert_int_equal(toy_insert(&t, id, tokens, BT, none, 0, &id), 0);
	assert_int_equal(toy_insert(&t, id, tokens, BT, none, 0, &id), 0);
	kvp_find(&t.v, 0, tokens, 3 * BT, 0, KVP_TIERS_DRAM, hits, 2, &f);
	assert_int_equal(f.n_hits, 2);
	assert_int_equal(f.missing, 1);
	/* A catalog whose header lies is refused. */
	assert_int_equal(kvp_catalog_attach(t.v.cat, t.bytes, &v), 0);
	assert_int_equal(kvp_catalog_attach(t.v.cat, t.bytes - 4096, &v), -EPROTO);
	t.v.cat->max_blocks *= 4096;
	assert_int_equal(kvp_catalog_attach(t.v.cat, t.bytes, &v), -EPROTO);
	t.v.cat->max_blocks /= 4096;
	t.v.cat->off_recipes += 64;
	assert_int_equal(kvp_catalog_attach(t.v.cat, t.bytes, &v), -EPROTO);
	t.v.cat->off_recipes -= 64;
	t.v.cat->h.incompat = 1;
	assert_int_equal(kvp_catalog_attach(t.v.cat, t.bytes, &v), -EPROTONOSUPPORT);
	toy_fini(&t);
}

/* A descriptor that a hostile or broken writer filled with rubbish leads nowhere. */
static void rubbish_descriptors(void **state)
{
	uint64_t rng = toy_seed();
	kvp_token tokens[BT * 2] = { 0 };
	const struct kvp_key none = { 0, 0 };
	struct kvp_hit hits[4];
	struct kvp_found f;
	kvp_block_id id;
	struct toy t;
	(void)state;

	toy_init(&t, 32, BT, true);
	assert_int_equal(toy_insert(&t, KVP_BLOCK_NONE, tokens, BT, none, 0, &id), 0);
	for (uint32_t i = 0; i < 200000; i++) {
		uint32_t at = (uint32_t)(toy_random(&rng) % (sizeof(struct kvp_block) / 8));
		uint64_t *raw = (uint64_t *)&t.v.blocks[toy_random(&rng) % 32];
		KVP_ATOMIC(uint64_t) *entry = &t.v.index[toy_random(&rng) % t.v.index_buckets]
						       .entry[toy_random(&rng) % 7];

		raw[at] = toy_random(&rng);
		if (toy_random(&rng) % 4 == 0)
			kvp_store_relaxed(entry, toy_random(&rng));
		kvp_find(&t.v, 0, tokens, 2 * BT, 0, KVP_TIERS_DRAM, hits, 4, &f);
		assert_true(f.n_hits <= 2);
	}
	toy_fini(&t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(differential),
		cmocka_unit_test(forced_collision),
		cmocka_unit_test(salts),
		cmocka_unit_test(tiers),
		cmocka_unit_test(limits_and_nonsense),
		cmocka_unit_test(rubbish_descriptors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
