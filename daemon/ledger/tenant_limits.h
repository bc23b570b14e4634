/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of a tenant worked out: what is left out, what its catalog and private state take, and the
 * least share that works. Pure functions; any thread.
 */
#ifndef KVPD_TENANT_LIMITS_H
#define KVPD_TENANT_LIMITS_H

#include "daemon/dataplane.h"
#include "shm/kvp_catalog.h"

/* Besides its catalog a tenant needs at least so much, for blocks. */
#define KVPD_LEAST_DATA (UINT64_C(1) << 20)

/* Limits with what is left out worked out. */
struct kvpd_limits kvpd_limits_settle(const struct kvpd_limits *given);
/* The catalog for limits that are settled. -EINVAL: one is out of range. */
int kvpd_limits_plan(const struct kvpd_limits *limits, struct kvp_catalog_layout *ret_layout);
/* Bytes of a catalog and of the ledger's and the policy's own state. */
uint64_t kvpd_meta_bytes(const struct kvp_catalog_layout *layout, uint64_t policy_bytes);

#endif
