/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write-behind: a block that a client committed on a device is copied to DRAM, into the vault, behind all
 * that somebody waits for. Its payload in DRAM appears while its word stays: readers of it notice nothing,
 * those who read in DRAM only find it from then on, and what lies on the device may go for others.
 *
 * Nothing is kept of the blocks that wait: they are found in the slots of the arenas on devices, and
 * kvpd_tenant.n_only says whether there are any. A block that is copied is KVPD_BLOCK_BEHIND: neither
 * evicted nor deleted, and its payload on the device stays, since KVPD_KEPT_MOVING. Room in DRAM is made as
 * for a mover. Where there is none, and where copies fail, blocks wait; and if room is wanted on the device
 * meanwhile they become RECIPEs (room.h).
 */
#ifndef KVPD_BEHIND_H
#define KVPD_BEHIND_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/extent.h"
#include "shm/kvp_types.h"

struct kvpd_tenant;

#define KVPD_BEHIND_COPIES 32u                  /* of one tenant under way */
#define KVPD_BEHIND_BYTES  (UINT64_C(64) << 20) /* about, likewise */

struct kvpd_behind {
	uint32_t copies; /* under way */
	uint64_t bytes;
	uint32_t extent, slot; /* where the search goes on */
	uint32_t vain;         /* extents without anything, one after the other */
	uint64_t rest_ns;      /* a copy failed: nothing is begun before */
	/* A block for which there is a slot, in an extent that the device is being told of. */
	bool held;
	uint32_t block;
	struct kvpd_place to;
};

/* A block lies on a device alone, or something changed that may let one of these go on. */
void kvpd_behind_again(struct kvpd_tenant *t);
/*
 * Room is wanted where these lie: they are copied before others of their kind. True: some are under way, or memory
 * for them is, and kvpd_warm_again() and kvpd_supply_again() follow. False: nothing can be copied now.
 */
bool kvpd_behind_hurry(struct kvpd_tenant *t, const kvp_block_id *block, uint32_t n, uint64_t now);
/* A chore. */
bool kvpd_behind_step(struct kvpd_tenant *t, uint64_t now);

#endif
