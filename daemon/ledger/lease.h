/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Leases as the ledger sees them: slots in the sessions' pages, scanned when something is to go.
 * kvp_lease.h says why mark, fence and scan are enough.
 */
#ifndef KVPD_LEASE_H
#define KVPD_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_lease.h"

struct kvpd_tenant;

#define KVPD_LEASES (KVP_SHARDS * KVP_SHARD_LEASES) /* of one session, at most */

/* Marks what is leased (chains: with all its ancestors); kvpd_leased() asks for the last marks. */
void kvpd_lease_marks(struct kvpd_tenant *t, bool chains);
bool kvpd_leased(const struct kvpd_tenant *t, uint32_t block);
/* A number that no block is marked with; what was marked before no longer counts. */
uint32_t kvpd_scan_begin(struct kvpd_tenant *t);

#endif
