/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A catalog seen from both sides: its layout, the reader (any thread of any process that maps it)
 * and the writer (the ledger thread alone). No system calls; usable without a daemon.
 *
 * How a reader and the writer get along
 * -------------------------------------
 * The fields of a descriptor and its recipe are constant between two changes of its word's birth,
 * and those of a payload that is set between two changes of its word. The writer makes a block
 * disappear by storing a word that is not LIVE *before* it changes any field, and appear by storing
 * a LIVE word *after* all fields: every field store is a release store, so a reader that gets a new
 * field from an acquire load also sees the word that was stored before it. A reader loads the word
 * (acquire), then the fields (acquire loads: later loads are not moved before them), then the word
 * again: unchanged means that what it read belongs together.
 *
 * How a payload appears while the word stays
 * ------------------------------------------
 * The writer stores offset, checksum, `where`, in this order; a reader loads `where`, then the
 * offset, then the word again. Let the word that the reader saw first and last be W.
 * - It loaded `where` as 0: the block has no payload in that tier, as far as it is concerned.
 * - It loaded a `where` that was stored under W: the release store and the acquire load order the
 *   offset's store before its load, so it gets that offset or a later one. A later one was stored
 *   after a mark that ended W; the acquire load of it makes that mark visible to the last load of
 *   the word, which then does not return W.
 * - It loaded a `where` from before W: there is none to be had. What went before W was stored as 0
 *   before the release store of W, which the reader's first load acquired.
 * So `where` and offset belong together, and the bytes there are in place: whoever copied them did so
 * before `where` was stored. Leases need nothing new, because a payload that appears takes nothing
 * away: the lease on the block names the block, and to remove any of its payloads the ledger has
 * to mark its word and find no lease. tests/shm/appear_model.py goes through every execution.
 *
 * How a payload changes its place while the block stays a hit
 * -----------------------------------------------------------
 * kvp_block_move(): the bytes at the new place are complete. Under the LIVE word W the writer
 *   1. stores where they are in payload[KVP_TIER_MOVED], which nobody looks at under W;
 *   2. stores MOVED with the next move count: whoever loads that word reads DRAM's place there;
 *   3. stores the same in payload[KVP_TIER_DRAM], which nobody looks at under that word;
 *   4. stores LIVE with that count.
 * At no moment is the word one that a match passes over, and under each of the three words the fields that a
 * reader takes the place from were all stored before the word, and are next stored after it went: by the
 * argument above what it read belongs together. So W means the old place, both later words the new one.
 * That words differ is enough for leases (kvp_lease.h): who still goes by W takes its lease before the
 * writer's fence, or finds that W has gone. tests/shm/switch_model.py goes through every execution.
 *
 * A hit is proven: space, parent and token ids of the descriptor must equal what is looked for. The
 * key only finds the candidate.
 */
#ifndef KVP_CATALOG_H
#define KVP_CATALOG_H

#include "shm/kvp_abi.h"
#include "shm/kvp_atomic.h"

/* ---- keys ---------------------------------------------------------------------------------- */

/*
 * Key of a block: XXH3-128 (seed 0) of parent key (lo, hi, 16 bytes) followed by the token ids, 4
 * bytes each. n <= KVP_BLOCK_TOKENS_MAX. A digest of all zeros is returned as {1, 0}.
 */
struct kvp_key kvp_chain_key(struct kvp_key parent, const kvp_token *tokens, uint32_t n);

/* What stands in the place of a space's root for chains under a salt. */
static inline struct kvp_key kvp_salted_root(
	struct kvp_key root, const kvp_token salt[KVP_SALT_TOKENS])
{
	return kvp_chain_key(root, salt, KVP_SALT_TOKENS);
}

/* Hash that places a block in the tail index: of its parent's key and its first 8 tokens. */
uint64_t kvp_tail_hash(struct kvp_key parent, const kvp_token tokens[KVP_TAIL_PREFIX]);

/* XXH3-64 of a payload as descriptors carry it: never 0. */
uint64_t kvp_payload_checksum(const void *bytes, size_t n);
/* The same of bytes that come in pieces: begin, add, ..., end; as often as wanted. new: NULL: no memory. */
struct kvp_summing;
struct kvp_summing *kvp_summing_new(void);
struct kvp_summing *kvp_summing_free(struct kvp_summing *s); /* returns NULL; takes it, too */
void kvp_summing_begin(struct kvp_summing *s);
void kvp_summing_add(struct kvp_summing *s, const void *bytes, size_t n);
uint64_t kvp_summing_end(const struct kvp_summing *s);

/* ---- layout and views ---------------------------------------------------------------------- */

/*
 * Sizes of a catalog for so many blocks. recipe_tokens: tokens that all recipes may hold together.
 */
struct kvp_catalog_layout {
	uint32_t max_blocks;
	uint32_t recipe_cells;
	uint32_t index_buckets;
	uint32_t tail_buckets;
	uint64_t off_spaces, off_extents, off_claims, off_blocks, off_index, off_tail, off_recipes;
	uint64_t off_devices;
	uint64_t bytes; /* of the whole segment, a multiple of 2 MiB */
};

/* -EINVAL: max_blocks is 0 or above KVP_MAX_BLOCKS, or too few or too many recipe tokens. */
int kvp_catalog_plan(uint64_t max_blocks, uint64_t recipe_tokens, int with_tail,
	struct kvp_catalog_layout *ret_layout);

/* One process's private view of a mapped catalog; immutable numbers are copied out once. */
struct kvp_catalog_view {
	struct kvp_catalog *cat;
	struct kvp_shm_space *spaces;
	struct kvp_shm_extent *extents;
	struct kvp_shm_device *devices;
	struct kvp_shm_claim *claims;
	struct kvp_block *blocks;
	struct kvp_bucket *index;
	struct kvp_bucket *tail;
	KVP_ATOMIC(uint64_t) *recipes; /* two tokens in a word, the earlier one low */
	uint32_t max_blocks;
	uint32_t recipe_cells;
	uint32_t index_buckets;
	uint32_t tail_buckets;
	uint64_t epoch;
};

/* Writes the header into zeroed memory of layout->bytes and makes the writer's view. */
void kvp_catalog_init(void *base, const struct kvp_catalog_layout *layout, uint64_t epoch,
	uint32_t tenant, struct kvp_catalog_view *ret_view);

/*
 * Checks a received segment (magic, version, incompat bits, every offset and count against size)
 * and makes a view. -EPROTONOSUPPORT: made by a daemon that this code is too old for; -EPROTO:
 * nonsense.
 */
int kvp_catalog_attach(void *base, uint64_t bytes, struct kvp_catalog_view *ret_view);

/* ---- index tables (both) ------------------------------------------------------------------- */

/* Writer. -ENOSPC: no free entry within KVP_MAX_PROBES (cannot happen at the planned load). */
int kvp_index_insert(struct kvp_bucket *table, uint32_t buckets, uint64_t hash, kvp_block_id id);
/* Writer. -ENOENT if (hash, id) is not there. */
int kvp_index_remove(struct kvp_bucket *table, uint32_t buckets, uint64_t hash, kvp_block_id id);
/*
 * Any side. Block ids whose entry carries the hash's tag, at most max of them, in no order.
 * Returns how many. What they name has to be proven.
 */
uint32_t kvp_index_candidates(const struct kvp_bucket *table, uint32_t buckets, uint64_t hash,
	kvp_block_id *out, uint32_t max);

/* Any side: asks for the cache line where a lookup of this hash begins. */
void kvp_index_prefetch(const struct kvp_bucket *table, uint32_t buckets, uint64_t hash);

/* ---- reader -------------------------------------------------------------------------------- */

/*
 * Which payloads a reader can use: tiers in order of preference, KVP_TIERS(fast, slower, ...) with
 * KVP_TIER_* numbers and KVP_TIER_RECIPE for none. DRAM alone is what a CPU reads; its payload lies
 * in the descriptor's first line, and others are only looked at where they are asked for.
 */
#define KVP_TIERS(a, b, c) ((a) | (b) << 2 | (c) << 4 | KVP_TIER_RECIPE << 6)
#define KVP_TIERS_DRAM     KVP_TIERS(KVP_TIER_DRAM, KVP_TIER_RECIPE, KVP_TIER_RECIPE)
#define KVP_TIERS_NONE     KVP_TIER_RECIPE

/* What describes a block's payload in a tier while its word is `word`. */
static inline const struct kvp_payload_desc *kvp_payload_at(
	const struct kvp_block *b, uint64_t word, uint32_t tier)
{
	if (tier == KVP_TIER_DRAM && kvp_word_state(word) == KVP_BLOCK_MOVED)
		tier = KVP_TIER_MOVED;
	return &b->payload[tier];
}

/*
 * What a block has in a tier while its word is `word`; *ret_where 0: nothing. `where` first: pairs with
 * kvp_block_set_payload().
 */
static inline void kvp_payload_read(const struct kvp_block *b, uint64_t word, uint32_t tier,
	uint64_t *ret_where, uint64_t *ret_offset)
{
	const struct kvp_payload_desc *d = kvp_payload_at(b, word, tier);

	*ret_where = kvp_load_acquire(&d->where);
	*ret_offset = kvp_load_acquire(&d->offset);
}

/* One block of a match, with one of its payloads as it was under `word`. */
struct kvp_hit {
	uint64_t word;
	uint64_t where;
	uint64_t offset;
	kvp_block_id id;
	uint16_t tokens;
	uint16_t tier; /* of where and offset: the first of those asked for that has a payload */
};

struct kvp_found {
	uint32_t n_hits;      /* whole blocks, and an exactly matching partial block at the end */
	uint32_t n_tokens;    /* in those */
	struct kvp_key key;   /* of the last hit, or the root */
	struct kvp_hit tail;  /* valid if tail_tokens: the block in which the match ends */
	uint32_t tail_tokens; /* leading tokens of the tail block that agree; 0 = none */
	uint32_t missing;     /* 1: tokens are left and no block holds all of the next ones */
};

#define KVP_FIND_NO_TAIL 1u /* do not look for a match that ends inside a block */

/*
 * Longest cached prefix of tokens[0..n) in a space: whole blocks first, then a partial block that
 * equals all that is left, then (tail index) the block that agrees with most of what is left, if at
 * least KVP_TAIL_PREFIX tokens do. Stops before a block that has a payload in none of the tiers.
 * hits has room for max_hits; the search stops there. The result is consistent at no single
 * instant: lease the deepest block, then kvp_revalidate().
 */
void kvp_find(const struct kvp_catalog_view *v, uint32_t space, const kvp_token *tokens, uint32_t n,
	uint32_t flags, uint32_t tiers, struct kvp_hit *hits, uint32_t max_hits,
	struct kvp_found *ret_found);

/*
 * The same from a block on that was found before: tokens[0..n) follow it, and hits, n_hits and
 * n_tokens count from there. Nothing is found if the block is not what it was; NULL: from the root.
 */
void kvp_find_after(const struct kvp_catalog_view *v, uint32_t space, const struct kvp_hit *after,
	const kvp_token *tokens, uint32_t n, uint32_t flags, uint32_t tiers, struct kvp_hit *hits,
	uint32_t max_hits, struct kvp_found *ret_found);

/*
 * kvp_find() among the chains under a salt, which is not all zeros. kvp_find_after() goes on from there
 * as from any block; kvp_find() and a salt's chains never meet.
 */
void kvp_find_salted(const struct kvp_catalog_view *v, uint32_t space,
	const kvp_token salt[KVP_SALT_TOKENS], const kvp_token *tokens, uint32_t n, uint32_t flags,
	uint32_t tiers, struct kvp_hit *hits, uint32_t max_hits, struct kvp_found *ret_found);

/*
 * The chain of n blocks that ends at `tip`, n - 1 being its depth, from its first block on, each as in
 * kvp_hit. For a caller that holds a lease on the tip, and calls kvp_revalidate() afterwards. -ESTALE:
 * it is no such chain of that space, or a block of it has a payload in none of the tiers.
 */
int kvp_find_chain(const struct kvp_catalog_view *v, uint32_t space, kvp_block_id tip,
	uint32_t tiers, struct kvp_hit *hits, uint32_t n);

/*
 * How many of the first n hits still have the word they were read under. After a lease was taken on
 * the last of them this is the proof that all of them stay: see kvp_lease.h.
 */
uint32_t kvp_revalidate(const struct kvp_catalog_view *v, const struct kvp_hit *hits, uint32_t n);

/*
 * What a hit is by now whose block may have moved since: the same block, under the word and at the place that it
 * has. For a caller whose lease, or whose caller's, keeps the block; kvp_revalidate() as ever. -ESTALE: it is
 * another block, or in none of the tiers; the hit is as it was.
 */
int kvp_hit_renew(const struct kvp_catalog_view *v, uint32_t tiers, struct kvp_hit *hit);

/*
 * Copies the token ids, at most max, of the block that had this word, wherever it has moved since. Returns the
 * count; -ESTALE: it is another block.
 */
int kvp_recipe_read(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t word,
	kvp_token *out, uint32_t max);

/*
 * Copies the salt of the block that had this word, wherever it has moved since. 1: it has one; 0: it has none, and
 * *out is as it was; -ESTALE.
 */
int kvp_recipe_salt(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t word,
	kvp_token out[KVP_SALT_TOKENS]);

/*
 * Proves one candidate: LIVE with a payload in one of the tiers (KVP_TIERS_NONE: published in any
 * state, with payloads or without), of this space and parent, with exactly these token ids. Returns
 * 1 and fills *ret_hit, or 0.
 */
int kvp_block_is(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t space,
	kvp_block_id parent, const kvp_token *tokens, uint32_t n, uint32_t tiers,
	struct kvp_hit *ret_hit);
/* The same of the first block of a chain under a salt. kvp_block_is() is true of none of those. */
int kvp_block_salted_is(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t space,
	const kvp_token salt[KVP_SALT_TOKENS], const kvp_token *tokens, uint32_t n, uint32_t tiers,
	struct kvp_hit *ret_hit);

/*
 * Is there an unexpired claim on this key? Returns the claiming session or 0. now: CLOCK_MONOTONIC
 */
uint32_t kvp_claim_find(const struct kvp_catalog_view *v, struct kvp_key key, uint64_t now_ns);

/* ---- writer -------------------------------------------------------------------------------- */

struct kvp_block_init {
	struct kvp_key key;
	struct kvp_key
		parent_key; /* the space's root, or the salted one, for the first of a chain */
	kvp_block_id parent;
	uint32_t space;
	uint32_t depth;
	uint32_t recipe; /* first cell, allocated by the caller: kvp_shape_words() take so many */
	uint32_t serial;
	uint32_t n_tokens;
	const kvp_token *tokens; /* private memory of the writer, already checked */
	const kvp_token *salt;   /* likewise, of the first of a chain; NULL: none */
};

static inline uint32_t kvp_recipe_cells(uint32_t words)
{
	return (words + KVP_RECIPE_CELL - 1) / KVP_RECIPE_CELL;
}

/* Of a published block. */
static inline uint32_t kvp_shape_cells(uint32_t shape)
{
	return kvp_recipe_cells(kvp_shape_words(shape));
}

/*
 * Fills a FREE descriptor and its recipe. Nothing is visible yet. The payload of a tier is set with
 * kvp_block_set_payload() before kvp_block_publish().
 */
void kvp_block_fill(
	const struct kvp_catalog_view *v, kvp_block_id id, const struct kvp_block_init *init);
/*
 * Sets or (where 0) removes the payload of a tier. Of a LIVE block only one that was absent may be
 * set, its bytes being in place: it appears. Else the block is not LIVE.
 */
void kvp_block_set_payload(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t tier,
	uint64_t where, uint64_t offset, uint64_t checksum);

/*
 * Makes a filled descriptor LIVE, then enters it into the index and, if it has at least
 * KVP_TAIL_PREFIX tokens, into the tail index, where it displaces the oldest of its family if that
 * holds KVP_TAIL_CANDIDATES already. -ENOSPC: an index is full; the descriptor is FREE again.
 */
int kvp_block_publish(const struct kvp_catalog_view *v, kvp_block_id id, struct kvp_key parent_key);

/*
 * Takes a block that is not LIVE (EVICTING or RECIPE) out of both indexes and makes its descriptor
 * FREE with the next birth.
 */
void kvp_block_retire(const struct kvp_catalog_view *v, kvp_block_id id, struct kvp_key parent_key);

/*
 * LIVE -> EVICTING; returns the word that was there (to put it back unchanged), or 0 if not LIVE.
 */
uint64_t kvp_block_mark(const struct kvp_catalog_view *v, kvp_block_id id);
/* EVICTING -> the very word that kvp_block_mark() returned. */
void kvp_block_unmark(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t word);
/*
 * LIVE at another place in DRAM, where the bytes are: LIVE with the next move count, without a moment in between in
 * which it is not. Of a block with nothing in KVP_TIER_MOVED. The old place is read under leases from before the
 * kvp_lease_fence() that has to follow.
 */
void kvp_block_move(const struct kvp_catalog_view *v, kvp_block_id id, uint64_t where,
	uint64_t offset, uint64_t checksum);
/*
 * After a mark found no lease, and after the payload fields were changed: -> `state` with the next
 * move count (LIVE at its new place, or RECIPE when the last payload went).
 */
void kvp_block_moved(const struct kvp_catalog_view *v, kvp_block_id id, uint32_t state);

#endif
