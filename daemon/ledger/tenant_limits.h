/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limits of a tenant worked out: what is left out, what its catalog and private state take, and the
 * least share that works. Pure functions; any thread.
 */
#ifndef KVPD_TENANT_LIMITS_H
#define KVPD_TENANT_LIMITS_H

#include "daemon/dataplane.h"
#include "daemon/ledger/advice.h"
#include "shm/kvp_catalog.h"

/* Besides its catalog a tenant needs at least so much, for blocks. */
#define KVPD_LEAST_DATA (UINT64_C(1) << 20)

/* Limits with what is left out worked out. */
struct kvpd_limits kvpd_limits_settle(const struct kvpd_limits *given);
/* The catalog for limits that are settled. -EINVAL: one is out of range. */
int kvpd_limits_plan(const struct kvpd_limits *limits, struct kvp_catalog_layout *ret_layout);
/* What the advisor is asked to hold for limits that are settled. */
struct kvpd_advice_size kvpd_limits_advice(const struct kvpd_limits *limits,
	const struct kvp_catalog_layout *layout, const struct kvpd_advisor_config *advisor);
/* Blocks for which there is room on a device, whatever their size: see tenant_limits.c. */
uint32_t kvpd_limits_part_blocks(const struct kvpd_limits *limits, uint64_t device_share);
/* Bytes of a catalog and of the ledger's own state; other_bytes: the policy's, and what the advisor keeps. */
uint64_t kvpd_meta_bytes(const struct kvp_catalog_layout *layout, uint64_t other_bytes);

#endif
