/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hazard-slot leases. One lease names the deepest block of a match and protects all its ancestors,
 * because no parent is evicted before its child and a mover treats the ancestors of a leased tip as
 * leased.
 *
 * Why this is safe. The client
 *   1. puts the tip's id into a slot by a sequentially consistent exchange,
 *   2. loads the words of the tip and of every ancestor that it matched, sequentially consistent
 *      too (kvp_lease_take(), kvp_revalidate()), and reads nothing unless all are as it found them.
 * The ledger, to evict a block or take a payload of it,
 *   3. stores EVICTING in its word (kvp_block_mark(), sequentially consistent),
 *   4. passes kvp_lease_fence(),
 *   5. loads the slots, sequentially consistent, and puts the word back if the block is the tip that
 *      a slot names, or, where it moves, an ancestor of that tip.
 * All of these stand in one total order. If 1 comes before 5, the ledger sees the slot. Else 3, 4, 5
 * come before 1, and so before 2: the client sees EVICTING, or what became of it, and clears its
 * slot. It is the same for the tip and for each ancestor, whichever of them is marked.
 *
 * A block that moves is not marked: for 3 the ledger stores a word with the next move count, under which
 * readers find the new place (kvp_block_move()), and does not put it back in 5. What 5 finds may read the
 * old place, and keeps that from being used again; what it does not find has not the old word in 2, and that
 * never comes back.
 *
 * The loads of the ancestors' words have to be sequentially consistent as well: an acquire load is
 * not in the total order, and the language lets it return the word from before 3 although the tip's
 * word has been loaded in between. (On x86 both are the same instruction.) What a scan saw counts
 * for blocks that were marked before its fence, and for no others: one that is marked later needs a
 * fence and a scan of its own. tests/shm/lease_model.py goes through every execution.
 *
 * A client has many more slots than it mostly uses, so the ledger skips cache lines of slots that
 * were never filled. Before 1 the client sets the bit of the slot's line in page->lease_lines, or
 * finds it set, and in 5 the ledger loads that bit before the slots of the line, all of it
 * sequentially consistent. A ledger that finds the bit clear does so before it was set, and so
 * before 1: it is as if it had found the slot empty. A bit that is set stays.
 *
 * A lease may outlive the call that ends it: until a moment on a timeline (kvp_until()), when the
 * device that reads the payload has come so far. kvp_lease_drop_at() stores that moment beside the
 * slot and leaves the slot filled. To the ledger a filled slot is empty once its moment has come: in
 * 5 it loads the slot, then `until`, then the timeline, which is an acquire load, so that the
 * device's reads are over. Nobody empties such a slot. A thread that needs one
 *   a. exchanges `until` for 0, from the very value whose moment it saw come,
 *   b. exchanges the slot for its own value: this is 1,
 * both sequentially consistent. Of two threads one succeeds in a. If a comes before 4, the ledger
 * finds 0 or a later moment, and never takes the new lease for the old one that is over; else 3 comes
 * before 2, and the client finds the block EVICTING. Threads must not compete for the slot instead:
 * leased for the same block as before it holds the same value, so that one which saw the old lease
 * over would take a live one away. tests/shm/until_model.py goes through every execution, of that
 * order too.
 *
 * Lines of `until` that were never used are skipped by a bit each as well, but no order is needed
 * there: without the bit a lease counts as held.
 *
 * A client that dies anywhere in between leaves at most one filled slot in a page that the daemon
 * drops with the session.
 */
#ifndef KVP_LEASE_H
#define KVP_LEASE_H

#include <stdbool.h>

#include "shm/kvp_abi.h"
#include "shm/kvp_atomic.h"

struct kvp_lease {
	KVP_ATOMIC(uint64_t) *slot; /* NULL: none held */
};

/* Either side. Has the moment come? 0, and one on a timeline that there is not, never does. */
bool kvp_until_come(const struct kvp_session_page *page, uint64_t until);

/*
 * Client. Takes a lease on a block whose word was `word` when it was read. `shard` is the caller's
 * own; other shards are tried when its slots are taken. -ESTALE: the word has changed, nothing is
 * held; -ENOBUFS: every slot of the page is taken.
 */
int kvp_lease_take(struct kvp_session_page *page, uint32_t shard, const struct kvp_block *block,
	kvp_block_id id, uint64_t word, struct kvp_lease *ret_lease);

/* Client. Harmless if nothing is held. */
void kvp_lease_drop(struct kvp_lease *lease);

/*
 * Client. As kvp_lease_drop(), in effect when the moment has come; at once if it has. Of the page of
 * the lease.
 */
void kvp_lease_drop_at(struct kvp_session_page *page, struct kvp_lease *lease, uint64_t until);
/* Client. Is any lease of the page held, if only until a moment that has not come? */
bool kvp_lease_any(const struct kvp_session_page *page);

/* Client. Logs a use for the eviction policy; drops it silently if the log is full. */
void kvp_touch_push(
	struct kvp_session_page *page, uint32_t shard, kvp_block_id tip, uint32_t asked);

/* Ledger: between marking a batch and scanning for leases. */
void kvp_lease_fence(void);

/*
 * Ledger. A slot is empty too when the moment has come at which its lease is over.
 *
 * The value of the first slot from *slot on that is not empty, and *slot is its index; or 0
 * and KVP_LEASES. kvp_slot_block() of a value is not yet bounded. *lines grows by the cache lines
 * that this call looked at.
 */
uint64_t kvp_lease_next(const struct kvp_session_page *page, uint32_t *slot, uint32_t *lines);

/*
 * Ledger. Copies the block ids named in a page's slots, at most max (KVP_LEASES are enough); ids
 * are not yet bounded. If slots is not NULL it gets, for each, the index of its slot.
 */
uint32_t kvp_lease_scan(
	const struct kvp_session_page *page, kvp_block_id *out, uint16_t *slots, uint32_t max);

/* Ledger. Current value of slot i (kvp_slot_block() of it), 0 = empty. */
uint64_t kvp_lease_slot(const struct kvp_session_page *page, uint32_t i);

/* Either side. Lookups counted in a shard; 0: it has counted no tokens either. */
static inline uint64_t kvp_shard_lookups(const struct kvp_shard *s)
{
	return kvp_load_relaxed(&s->hits) + kvp_load_relaxed(&s->partial) +
	       kvp_load_relaxed(&s->misses);
}

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
