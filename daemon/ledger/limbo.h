/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limbo: where the old bytes of blocks stay that were moved under a lease, until the lease slots of
 * that moment have changed.
 */
#ifndef KVPD_LIMBO_H
#define KVPD_LIMBO_H

#include <stdint.h>

#include "daemon/ledger/extent.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/mover.h"

struct kvpd_tenant;

/* A lease slot that has to change first. */
struct kvpd_limbo_holder {
	uint32_t session;
	uint32_t place; /* of the session */
	uint32_t slot;
	uint64_t value;
};

/* The places that one job left behind, and their holders. */
struct kvpd_limbo {
	struct kvpd_list link; /* in the tenant */
	uint32_t n_places;
	uint32_t n_holders;
	struct kvpd_place place[KVPD_MOVE_BLOCKS];
	struct kvpd_limbo_holder holder[]; /* those not yet done */
};

/* Empty, with room for all leases there can be. NULL: no memory. */
struct kvpd_limbo *kvpd_limbo_new(const struct kvpd_tenant *t);
/* Its place's slot is kept until the holders are gone. */
void kvpd_limbo_add(struct kvpd_limbo *limbo, struct kvpd_place place);
/* All has been added, and the moved blocks are flagged KVPD_BLOCK_LIMBO: finds the holders. */
void kvpd_limbo_enter(struct kvpd_tenant *t, struct kvpd_limbo *limbo);
/* Frees places whose holders have been seen to change. */
void kvpd_limbo_step(struct kvpd_tenant *t);
/* At the tenant's end. */
void kvpd_limbo_free_all(struct kvpd_tenant *t);

#endif
