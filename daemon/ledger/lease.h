/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases as the ledger sees them: slots in the sessions' pages. kvp_lease.h says why mark, fence and
 * scan are enough. Two things are asked of the slots, and they are kept apart:
 *
 * A **look** says what was leased a moment ago. It is used to choose: what is leased is spared, so
 * that hot blocks do not flicker and nothing is copied in vain. It may be old, and it may be done
 * in portions while leases come and go, because nothing follows from it: a block that it calls free
 * is proven to be so before it is taken, one that it calls leased is taken another time. So it is
 * renewed only as often as costs an eighth of the time. There are two: one of the tips that leases
 * name, for eviction, which goes leaf-first; and one of their chains, for movers.
 *
 * A **proof** says whether any of a few blocks is leased now. It is the fence and the scan of
 * kvp_lease.h: the blocks were marked before, every slot of every session is read after, none of it
 * is remembered from an earlier scan. What it finds leased is entered in the look. It reads each
 * session's slots once, whatever lies in them, and looks a slot up in a filter of the marked
 * blocks, so its time follows from the number of sessions alone.
 */
#ifndef KVPD_LEASE_H
#define KVPD_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_lease.h"

struct kvpd_list;
struct kvpd_session;
struct kvpd_tenant;

#define KVPD_PROOF 64u /* blocks in one proof */

#define KVPD_LOOK_TIPS   0u
#define KVPD_LOOK_CHAINS 1u
#define KVPD_LOOK_KINDS  2u

struct kvpd_look {
	uint32_t number; /* of the one that is under way, or was the last; kvpd_block.look */
	bool under_way;
	struct kvpd_list *next; /* the session that is looked at, */
	uint32_t slot;          /* and its slot, */
	uint32_t walk;          /* and the block of its chain */
	uint32_t told;          /* of that session's, to the advisor */
	uint64_t spent_ns;      /* on this one so far */
	uint64_t due_ns;        /* no new one before */
};

/*
 * Renews a look, or a part of it, if it is time to; or in any case (`now`). Returns whether it is
 * fresh: it came to its end just now.
 */
bool kvpd_lease_look(struct kvpd_tenant *t, uint32_t which, bool now);
/*
 * A look that begins from now on: its number, and whether it has come to its end. The latter renews
 * it, a portion at a call.
 */
uint32_t kvpd_lease_look_from_now(const struct kvpd_tenant *t, uint32_t which);
bool kvpd_lease_look_reached(struct kvpd_tenant *t, uint32_t which, uint32_t number);
/* As of the last look of this kind. */
bool kvpd_leased(const struct kvpd_tenant *t, uint32_t which, uint32_t block);
/* Of n (<= KVPD_PROOF) blocks that the caller has marked EVICTING: bit i if block[i] is leased. */
uint64_t kvpd_lease_prove(struct kvpd_tenant *t, const kvp_block_id *block, uint32_t n);
/* The session is about to leave the tenant's list. */
void kvpd_lease_forget(struct kvpd_session *s);

#endif
