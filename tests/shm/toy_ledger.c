/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/shm/toy_ledger.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

uint64_t toy_seed(void)
{
	const char *env = getenv("KVP_TEST_SEED");
	uint64_t seed = env ? strtoull(env, NULL, 0) : (uint64_t)time(NULL) * 2654435761u;

	if (!seed)
		seed = 1;
	printf("seed: KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	fflush(stdout);
	return seed;
}

uint64_t toy_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void *must(void *p)
{
	if (!p || p == MAP_FAILED)
		abort();
	return p;
}

void toy_init(struct toy *t, uint32_t max_blocks, uint32_t block_tokens, bool tail)
{
	struct kvp_catalog_layout l;
	void *base;

	memset(t, 0, sizeof(*t));
	t->cells_per_block = kvp_shape_cells(kvp_shape(0, block_tokens) | KVP_SHAPE_SALTED);
	if (kvp_catalog_plan(max_blocks,
		    (uint64_t)max_blocks * t->cells_per_block * KVP_RECIPE_CELL, tail, &l) < 0)
		abort();
	base = must(mmap(NULL, l.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
	kvp_catalog_init(base, &l, 7, 1, &t->v);
	t->bytes = l.bytes;
	t->v.spaces[0].root_lo = 11;
	t->v.spaces[0].root_hi = 12;
	t->v.spaces[0].canon.block_tokens = block_tokens;
	kvp_store_release(&t->v.spaces[0].state, KVP_SPACE_LIVE);
	t->children = must(calloc(max_blocks, sizeof(*t->children)));
	t->parent_key = must(calloc(max_blocks, sizeof(*t->parent_key)));
	t->free_ids = must(calloc(max_blocks, sizeof(*t->free_ids)));
	for (uint32_t i = 0; i < max_blocks; i++)
		t->free_ids[t->n_free++] = max_blocks - 1 - i;
}

void toy_fini(struct toy *t)
{
	munmap(t->v.cat, t->bytes);
	free(t->children);
	free(t->parent_key);
	free(t->free_ids);
}

int toy_insert(struct toy *t, kvp_block_id parent, const kvp_token *tokens, uint32_t n,
	struct kvp_key forced_key, uint64_t offset, kvp_block_id *ret_id)
{
	struct kvp_block_init init = { .parent = parent, .n_tokens = n, .tokens = tokens };
	struct kvp_key root = { t->v.spaces[0].root_lo, t->v.spaces[0].root_hi };
	struct kvp_block *pb = parent == KVP_BLOCK_NONE ? NULL : &t->v.blocks[parent];
	kvp_block_id id;
	int r;

	if (!t->n_free)
		return -ENOSPC;
	id = t->free_ids[--t->n_free];
	init.salt = pb ? NULL : t->salt;
	init.parent_key = init.salt ? kvp_salted_root(root, init.salt) : root;
	if (pb)
		init.parent_key = (struct kvp_key){ kvp_load_relaxed(&pb->key_lo),
			kvp_load_relaxed(&pb->key_hi) };
	init.key = forced_key.lo || forced_key.hi ? forced_key
						  : kvp_chain_key(init.parent_key, tokens, n);
	init.depth = pb ? kvp_load_relaxed(&pb->depth) + 1 : 0;
	init.recipe = id * t->cells_per_block;
	init.serial = ++t->serial;
	kvp_block_fill(&t->v, id, &init);
	kvp_block_set_payload(
		&t->v, id, KVP_TIER_DRAM, kvp_where(0, KVP_CODEC_NATIVE, 64), offset, 0);
	r = kvp_block_publish(&t->v, id, init.parent_key);
	if (r < 0) {
		t->free_ids[t->n_free++] = id;
		return r;
	}
	t->parent_key[id] = init.parent_key;
	if (pb)
		t->children[parent]++;
	*ret_id = id;
	return 0;
}

static bool leased(const struct toy *t, kvp_block_id id)
{
	kvp_block_id named[KVP_LEASES];

	for (uint32_t p = 0; p < t->n_pages; p++) {
		uint32_t n = kvp_lease_scan(t->pages[p], named, NULL, KVP_LEASES);

		for (uint32_t i = 0; i < n; i++)
			if (named[i] == id)
				return true;
	}
	return false;
}

static bool is_above(const struct toy *t, kvp_block_id tip, kvp_block_id id)
{
	while (tip < t->v.max_blocks && tip != id)
		tip = kvp_load_relaxed(&t->v.blocks[tip].parent);
	return tip == id;
}

/* Leases whose tip it is or that it is above: at most max, and how many. */
static uint32_t leases_below(
	const struct toy *t, kvp_block_id id, struct toy_holder *holder, uint32_t max)
{
	uint32_t n = 0;

	for (uint32_t p = 0; p < t->n_pages; p++) {
		uint32_t lines = 0;

		for (uint32_t slot = 0; n < max; slot++) {
			uint64_t value = kvp_lease_next(t->pages[p], &slot, &lines);

			if (!value)
				break;
			if (is_above(t, kvp_slot_block(value), id))
				holder[n++] = (struct toy_holder){ p, slot, value };
		}
	}
	return n;
}

static bool leased_below(const struct toy *t, kvp_block_id id)
{
	struct toy_holder one;

	return leases_below(t, id, &one, 1) > 0;
}

uint32_t toy_move(
	struct toy *t, kvp_block_id id, uint64_t offset, struct toy_holder *holder, uint32_t max)
{
	struct kvp_block *b = &t->v.blocks[id];

	if (kvp_word_state(kvp_load_relaxed(&b->word)) != KVP_BLOCK_LIVE)
		return UINT32_MAX;
	kvp_block_move(&t->v, id, kvp_load_relaxed(&b->payload[KVP_TIER_DRAM].where), offset, 0);
	kvp_lease_fence();
	return leases_below(t, id, holder, max);
}

bool toy_holds(const struct toy *t, const struct toy_holder *h)
{
	return kvp_lease_slot(t->pages[h->page], h->slot) == h->value;
}

bool toy_appear(struct toy *t, kvp_block_id id, uint32_t tier, uint64_t where, uint64_t offset)
{
	struct kvp_block *b = &t->v.blocks[id];

	if (kvp_word_state(kvp_load_relaxed(&b->word)) != KVP_BLOCK_LIVE ||
		kvp_load_relaxed(&b->payload[tier].where))
		return false;
	kvp_block_set_payload(&t->v, id, tier, where, offset, 0);
	return true;
}

bool toy_fade(struct toy *t, kvp_block_id id, uint32_t tier)
{
	uint64_t word = kvp_block_mark(&t->v, id);

	if (!word)
		return false;
	kvp_lease_fence();
	if (leased_below(t, id)) {
		kvp_block_unmark(&t->v, id, word);
		return false;
	}
	kvp_block_set_payload(&t->v, id, tier, 0, 0, 0);
	kvp_block_moved(&t->v, id, KVP_BLOCK_LIVE);
	return true;
}

uint32_t toy_evict(struct toy *t, const kvp_block_id *ids, uint32_t n,
	void (*gone)(void *ctx, kvp_block_id id, uint64_t offset), void *ctx)
{
	uint64_t *word = must(calloc(n + 1, sizeof(*word)));
	uint32_t evicted = 0;

	for (uint32_t i = 0; i < n; i++)
		word[i] = t->children[ids[i]] ? 0 : kvp_block_mark(&t->v, ids[i]);
	kvp_lease_fence();
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_block *b = &t->v.blocks[ids[i]];
		kvp_block_id parent = kvp_load_relaxed(&b->parent);

		if (!word[i])
			continue;
		if (leased(t, ids[i])) {
			kvp_block_unmark(&t->v, ids[i], word[i]);
			continue;
		}
		if (gone)
			gone(ctx, ids[i], kvp_load_relaxed(&b->payload[KVP_TIER_DRAM].offset));
		kvp_block_retire(&t->v, ids[i], t->parent_key[ids[i]]);
		if (parent != KVP_BLOCK_NONE)
			t->children[parent]--;
		t->free_ids[t->n_free++] = ids[i];
		evicted++;
	}
	free(word);
	return evicted;
}
