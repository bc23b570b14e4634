/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: the policy orders, leases and the ledger's own reasons decide; see kvp_lease.h. */
#ifndef KVPD_EVICT_H
#define KVPD_EVICT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/lease.h"

struct kvpd_tenant;

/*
 * A running sequence, one that a session has gone on writing within the last ten seconds, keeps its first
 * limits.min_materialized tokens, in any precision, as long as anything else could go: what was written and its end,
 * too. After that they yield, since nobody waits for them, and are counted. What is leased stays in any case.
 */

#define KVPD_EVICT_MAX     KVPD_PROOF /* victims in one batch */
#define KVPD_EVICT_STEPS   512u       /* blocks that one search looks at, at most, */
#define KVPD_EVICT_REFUSED 128u       /* and protected ones, for each of which it asks around */

/* How many victims one proof should serve. */
uint32_t kvpd_evict_batch(const struct kvpd_tenant *t);
/*
 * Evicts at most n (<= KVPD_EVICT_MAX) blocks in the policy's order; returns how many went. 0: there
 * is nothing that could go; -EAGAIN: what was looked at is protected, but there is more.
 */
int kvpd_evict_some(struct kvpd_tenant *t, uint32_t n, uint64_t now);
/* The same, of those with a payload in DRAM alone: what lies on a device only stays, and so does what is above. */
int kvpd_evict_in_dram(struct kvpd_tenant *t, uint32_t n, uint64_t now);
/*
 * The same, to empty an extent that is given back: what lies in an arena whose client goes on writing there stays as
 * long as there is other, since its place would be nobody else's. -EAGAIN also while such blocks are passed over.
 */
int kvpd_evict_for_vault(struct kvpd_tenant *t, uint32_t n, uint64_t now);
/* Evicts one that is EVICTING and unleased. -EBUSY: those below it are cached; nothing has changed. */
int kvpd_evict_marked(struct kvpd_tenant *t, uint32_t block, uint64_t now);
/* A RECIPE gets its payload back; counts it if that is soon after it was evicted. */
void kvpd_evict_returned(struct kvpd_tenant *t, uint32_t block);
/* A chore: after a limit was lowered, blocks and recipes beyond it go. */
bool kvpd_room_step(struct kvpd_tenant *t, uint64_t now);

#endif
