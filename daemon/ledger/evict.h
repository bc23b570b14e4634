/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: the policy orders, leases and the ledger's own reasons decide; see kvp_lease.h. */
#ifndef KVPD_EVICT_H
#define KVPD_EVICT_H

#include <stdint.h>

struct kvpd_tenant;

#define KVPD_EVICT_MAX 64u /* victims in one batch */

/* How many victims one scan of the leases should serve. */
uint32_t kvpd_evict_batch(const struct kvpd_tenant *t);
/* Evicts at most n (<= KVPD_EVICT_MAX) blocks in the policy's order; returns how many went. */
uint32_t kvpd_evict_some(struct kvpd_tenant *t, uint32_t n, uint64_t now);
/* Evicts at most `want` blocks that nothing protects; returns how many. */
uint64_t kvpd_evict_up_to(struct kvpd_tenant *t, uint64_t want);

#endif
