/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least that can write a catalog: chains, leaf-first removal and the lease protocol, without a
 * daemon. Tests put a naive model, or readers in other threads and processes, beside it.
 */
#ifndef TOY_LEDGER_H
#define TOY_LEDGER_H

#include <stdbool.h>

#include "shm/kvp_catalog.h"
#include "shm/kvp_lease.h"

struct toy {
	struct kvp_catalog_view v;
	uint64_t bytes; /* of the catalog */
	uint32_t *children;
	struct kvp_key *parent_key;
	kvp_block_id *free_ids; /* a stack */
	uint32_t n_free;
	uint32_t cells_per_block; /* with a salt */
	const kvp_token *salt;    /* of what is inserted without a parent; NULL: none */
	uint32_t serial;
	struct kvp_session_page **pages; /* scanned for leases */
	uint32_t n_pages;
};

/* A catalog in shared anonymous memory with one space (index 0) of block_tokens. Aborts on error.
 */
void toy_init(struct toy *t, uint32_t max_blocks, uint32_t block_tokens, bool tail);
void toy_fini(struct toy *t);

/* Publishes tokens[0..n) after parent (KVP_BLOCK_NONE: first). Payload: offset as given. */
int toy_insert(struct toy *t, kvp_block_id parent, const kvp_token *tokens, uint32_t n,
	struct kvp_key forced_key, uint64_t offset, kvp_block_id *ret_id);

/*
 * Evicts, of ids[0..n), those that are leaves and carry no lease: mark, fence, scan, retire. Calls
 * gone(ctx, id, offset) for each before its descriptor is free. Returns how many went.
 */
uint32_t toy_evict(struct toy *t, const kvp_block_id *ids, uint32_t n,
	void (*gone)(void *ctx, kvp_block_id id, uint64_t offset), void *ctx);

/* A payload appears in a tier where a LIVE block has none. False: it is not LIVE, or has one. */
bool toy_appear(struct toy *t, kvp_block_id id, uint32_t tier, uint64_t where, uint64_t offset);

/*
 * Takes the payload in `tier` of a block that keeps another, unless a lease protects it or a block
 * below it: mark, fence, scan, remove. False: it stays.
 */
bool toy_fade(struct toy *t, kvp_block_id id, uint32_t tier);

/* Where a lease stands that keeps something. */
struct toy_holder {
	uint32_t page, slot;
	uint64_t value;
};

/*
 * Moves a LIVE block to another offset in DRAM, where its bytes are: switched first, then fence and scan. The
 * leases that protect the old place, at most max, and how many; UINT32_MAX: it is not LIVE.
 */
uint32_t toy_move(
	struct toy *t, kvp_block_id id, uint64_t offset, struct toy_holder *holder, uint32_t max);
bool toy_holds(const struct toy *t, const struct toy_holder *h);

/* xorshift: every test prints its seed, KVP_TEST_SEED repeats one. */
uint64_t toy_seed(void);
uint64_t toy_random(uint64_t *state);

#endif
