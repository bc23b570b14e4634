/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the advisor names is fetched to devices ahead of need, where the configuration says so (advisor_prefetch).
 * Blocks that a session uses and that lie on a device ask for their neighbours that lie on none (advice.h). These are
 * copied there as for a WARM that nobody waits for, each with the chain above it, and behind all that a client asked
 * for (warm.h); into free room, or for a block there that the same ranking scores lower (kvpd_room_below()).
 *
 * The use that came last is the one that counts: where uses come faster than they are looked at, the others are
 * forgotten. What one of them costs the ledger is bounded: KVP_GRAPH_ACTIVE_MAX steps up its chain, and
 * KVPD_ADVICE_AHEAD blocks that are named.
 */
#ifndef KVPD_AHEAD_H
#define KVPD_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_types.h"

struct kvpd_tenant;

struct kvpd_ahead {
	bool asked; /* by this one, of this birth */
	kvp_block_id tip;
	uint32_t birth;
};

/* A session has used the chain that ends with this block. */
void kvpd_ahead_used(struct kvpd_tenant *t, kvp_block_id tip);
/* A chore. */
bool kvpd_ahead_step(struct kvpd_tenant *t, uint64_t now);

#endif
