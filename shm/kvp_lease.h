/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hazard-slot leases. One lease names the deepest block of a match and protects all its ancestors,
 * because no parent is evicted before its child and a mover treats the ancestors of a leased tip as
 * leased.
 *
 * Why this is safe: the client publishes {block} in a slot with a sequentially consistent exchange
 * and then loads the block's word; the ledger stores EVICTING and then, after one sequentially
 * consistent fence (kvp_lease_fence), loads the slots. In every total order of the two, either the
 * client sees the EVICTING word and clears its slot, or the ledger sees the slot and puts the word
 * back. A client that dies anywhere in between leaves at most one filled slot in a page that the
 * daemon drops with the session.
 */
#ifndef KVP_LEASE_H
#define KVP_LEASE_H

#include "shm/kvp_abi.h"
#include "shm/kvp_atomic.h"

struct kvp_lease {
	KVP_ATOMIC(uint64_t) *slot; /* NULL: none held */
};

/*
 * Client. Takes a lease on a block whose word was `word` when it was read. `shard` is the caller's
 * own; other shards are tried when its slots are taken. -ESTALE: the word has changed, nothing is
 * held; -ENOBUFS: every slot of the page is taken.
 */
int kvp_lease_take(struct kvp_session_page *page, uint32_t shard, const struct kvp_block *block,
	kvp_block_id id, uint64_t word, struct kvp_lease *ret_lease);

/* Client. Harmless if nothing is held. */
void kvp_lease_drop(struct kvp_lease *lease);

/* Client. Logs a use for the eviction policy; drops it silently if the log is full. */
void kvp_touch_push(
	struct kvp_session_page *page, uint32_t shard, kvp_block_id tip, uint32_t asked);

/* Ledger: between marking a batch and scanning for leases. */
void kvp_lease_fence(void);

/*
 * Ledger. Copies the block ids named in a page's slots, at most max (KVP_SHARDS *
 * KVP_SHARD_LEASES are enough); ids are not yet bounded. If slots is not NULL it gets, for each,
 * the index of its slot.
 */
uint32_t kvp_lease_scan(
	const struct kvp_session_page *page, kvp_block_id *out, uint16_t *slots, uint32_t max);

/* Ledger. Current value of slot i (kvp_slot_block() of it), 0 = empty. */
uint64_t kvp_lease_slot(const struct kvp_session_page *page, uint32_t i);

/*
 * Ledger. A bit for each shard whose touch log may hold something.
 */
static inline uint32_t kvp_touch_shards(const struct kvp_session_page *page)
{
	return kvp_load_relaxed(&page->touched);
}

/*
 * Ledger. Drains the touch log of one shard: at most max entries, oldest first. `head` is the
 * ledger's own count. A client that writes nonsense loses its own recency and nothing else.
 */
uint32_t kvp_touch_drain(
	struct kvp_session_page *page, uint32_t shard, uint32_t *head, uint64_t *out, uint32_t max);

#endif
