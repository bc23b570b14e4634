/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's half of a descriptor's life; kvp_catalog.h explains the ordering. */
#include "shm/kvp_catalog.h"

#include <errno.h>

/*
 * More candidates with one tag than this cannot be told apart from a family; the rest are ignored.
 */
#define FAMILY_SCAN 64u

static void store_words(KVP_ATOMIC(uint64_t) *out, const kvp_token *tokens, uint32_t n)
{
	for (uint32_t i = 0; i < n; i += 2) {
		uint64_t pair = tokens[i];

		if (i + 1 < n)
			pair |= (uint64_t)tokens[i + 1] << 32;
		kvp_store_release(&out[i / 2], pair);
	}
}

void kvp_block_fill(
	const struct kvp_catalog_view *v, kvp_block_id id, const struct kvp_block_init *init)
{
	KVP_ATOMIC(uint64_t) *recipe = &v->recipes[(uint64_t)init->recipe * (KVP_RECIPE_CELL / 2)];
	struct kvp_block *b = &v->blocks[id];

	kvp_store_release(&b->key_lo, init->key.lo);
	kvp_store_release(&b->key_hi, init->key.hi);
	kvp_store_release(&b->parent, init->parent);
	kvp_store_release(&b->shape,
		kvp_shape(init->space, init->n_tokens) | (init->salt ? KVP_SHAPE_SALTED : 0));
	kvp_store_release(&b->recipe, init->recipe);
	kvp_store_release(&b->depth, init->depth);
	for (uint32_t t = 0; t < KVP_TIER_PAYLOADS; t++)
		kvp_block_set_payload(v, id, t, 0, 0, 0);
	kvp_store_relaxed(&b->hits, 0);
	kvp_store_relaxed(&b->touched_s, 0);
	kvp_store_relaxed(&b->serial, init->serial);
	kvp_store_relaxed(&b->flags, 0);
	store_words(recipe, init->tokens, init->n_tokens);
	if (init->salt)
		store_words(recipe + (init->n_tokens + 1) / 2, init->salt, KVP_SALT_TOKENS);
}

void kvp_block_set_payload(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t tier,
	uint64_t where, uint64_t offset, uint64_t checksum)
{
	struct kvp_payload_desc *p = &v->blocks[id].payload[tier];

	/* Last what says that it is there: pairs with read_payload(), see kvp_catalog.h. */
	kvp_store_release(&p->offset, offset);
	kvp_store_release(&p->checksum, checksum);
	kvp_store_release(&p->where, where);
}

/* First tokens of a block as the tail index hashes them. The writer reads its own stores. */
static void first_tokens(
	const struct kvp_catalog_view *v, kvp_block_id id, kvp_token out[KVP_TAIL_PREFIX])
{
	uint64_t at = (uint64_t)kvp_load_relaxed(&v->blocks[id].recipe) * (KVP_RECIPE_CELL / 2);

	for (uint32_t i = 0; i < KVP_TAIL_PREFIX; i += 2) {
		uint64_t pair = kvp_load_relaxed(&v->recipes[at + i / 2]);

		out[i] = (kvp_token)pair;
		out[i + 1] = (kvp_token)(pair >> 32);
	}
}

static int has_tail_entry(const struct kvp_catalog_view *v, kvp_block_id id)
{
	return v->tail_buckets &&
	       kvp_shape_tokens(kvp_load_relaxed(&v->blocks[id].shape)) >= KVP_TAIL_PREFIX;
}

/* Siblings that begin with the same tokens: returns how many, and the one committed first. */
static uint32_t family(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t hash,
	const kvp_token first[KVP_TAIL_PREFIX], kvp_block_id *ret_oldest)
{
	kvp_block_id cand[FAMILY_SCAN];
	uint32_t n = kvp_index_candidates(v->tail, v->tail_buckets, hash, cand, FAMILY_SCAN);
	uint32_t members = 0, oldest_age = 0, now = kvp_load_relaxed(&v->blocks[id].serial);

	for (uint32_t i = 0; i < n; i++) {
		const struct kvp_block *b = &v->blocks[cand[i]];
		kvp_token theirs[KVP_TAIL_PREFIX];
		uint32_t age, same = 1;

		if (kvp_load_relaxed(&b->parent) != kvp_load_relaxed(&v->blocks[id].parent) ||
			kvp_shape_space(kvp_load_relaxed(&b->shape)) !=
				kvp_shape_space(kvp_load_relaxed(&v->blocks[id].shape)))
			continue;
		first_tokens(v, cand[i], theirs);
		for (uint32_t k = 0; k < KVP_TAIL_PREFIX; k++)
			same &= theirs[k] == first[k];
		if (!same)
			continue;
		members++;
		age = now - kvp_load_relaxed(&b->serial);
		if (members == 1 || age > oldest_age) {
			oldest_age = age;
			*ret_oldest = cand[i];
		}
	}
	return members;
}

static int enter_tail(const struct kvp_catalog_view *v, kvp_block_id id, struct kvp_key parent_key)
{
	kvp_token first[KVP_TAIL_PREFIX];
	kvp_block_id oldest;
	uint64_t hash;

	first_tokens(v, id, first);
	hash = kvp_tail_hash(parent_key, first);
	if (family(v, id, hash, first, &oldest) >= KVP_TAIL_CANDIDATES)
		kvp_index_remove(v->tail, v->tail_buckets, hash, oldest);
	return kvp_index_insert(v->tail, v->tail_buckets, hash, id);
}

int kvp_block_publish(const struct kvp_catalog_view *v, kvp_block_id id, struct kvp_key parent_key)
{
	struct kvp_block *b = &v->blocks[id];
	uint64_t word = kvp_load_relaxed(&b->word), key_lo = kvp_load_relaxed(&b->key_lo);
	uint32_t birth = kvp_word_birth(word);
	int r;

	/* Release: pairs with the acquire load of the word in every reader. */
	kvp_store_release(&b->word, kvp_word(birth, kvp_word_move(word), KVP_BLOCK_LIVE));
	r = kvp_index_insert(v->index, v->index_buckets, key_lo, id);
	if (r < 0)
		goto withdraw;
	if (has_tail_entry(v, id)) {
		r = enter_tail(v, id, parent_key);
		if (r < 0) {
			kvp_index_remove(v->index, v->index_buckets, key_lo, id);
			goto withdraw;
		}
	}
	return 0;

withdraw:
	/* The birth changes: somebody may have seen it live, as the guess after its parent. */
	kvp_store_release(&b->word, kvp_word(birth + 1, 0, KVP_BLOCK_FREE));
	return r;
}

void kvp_block_retire(const struct kvp_catalog_view *v, kvp_block_id id, struct kvp_key parent_key)
{
	struct kvp_block *b = &v->blocks[id];
	uint64_t word = kvp_load_relaxed(&b->word);

	kvp_index_remove(v->index, v->index_buckets, kvp_load_relaxed(&b->key_lo), id);
	if (has_tail_entry(v, id)) {
		kvp_token first[KVP_TAIL_PREFIX];

		first_tokens(v, id, first);
		/* Not there if a younger sibling displaced it. */
		kvp_index_remove(v->tail, v->tail_buckets, kvp_tail_hash(parent_key, first), id);
	}
	kvp_store_release(&b->word, kvp_word(kvp_word_birth(word) + 1, 0, KVP_BLOCK_FREE));
}

uint64_t kvp_block_mark(const struct kvp_catalog_view *v, kvp_block_id id)
{
	struct kvp_block *b = &v->blocks[id];
	uint64_t word = kvp_load_relaxed(&b->word);

	if (kvp_word_state(word) != KVP_BLOCK_LIVE)
		return 0;
	/* Followed by kvp_lease_fence() before the scan; see kvp_lease.h. */
	kvp_store_seq(
		&b->word, kvp_word(kvp_word_birth(word), kvp_word_move(word), KVP_BLOCK_EVICTING));
	return word;
}

void kvp_block_unmark(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t word)
{
	kvp_store_release(&v->blocks[id].word, word);
}

void kvp_block_move(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t where,
	uint64_t offset, uint64_t checksum)
{
	struct kvp_block *b = &v->blocks[id];
	uint64_t word = kvp_load_relaxed(&b->word);
	uint32_t birth = kvp_word_birth(word), move = kvp_word_move(word) + 1;

	kvp_block_set_payload(v, id, KVP_TIER_MOVED, where, offset, checksum);
	/* Sequentially consistent, as in kvp_block_mark(): the old word is gone before leases are looked for. */
	kvp_store_seq(&b->word, kvp_word(birth, move, KVP_BLOCK_MOVED));
	kvp_block_set_payload(v, id, KVP_TIER_DRAM, where, offset, checksum);
	kvp_store_seq(&b->word, kvp_word(birth, move, KVP_BLOCK_LIVE));
	kvp_block_set_payload(v, id, KVP_TIER_MOVED, 0, 0, 0);
}

void kvp_block_moved(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t state)
{
	struct kvp_block *b = &v->blocks[id];
	uint64_t word = kvp_load_relaxed(&b->word);

	kvp_store_release(&b->word, kvp_word(kvp_word_birth(word), kvp_word_move(word) + 1, state));
}
