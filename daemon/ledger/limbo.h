/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Limbo: where the old bytes of blocks stay that were moved under a lease, until each lease of then
 * has ended: its slot has changed, or the moment has come at which it is over.
 */
#ifndef KVPD_LIMBO_H
#define KVPD_LIMBO_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/extent.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/mover.h"

struct kvpd_tenant;

/* Of one tenant; beyond it what is leased stays where it is. Each has a holder for each lease. */
#define KVPD_LIMBOS 32u

/* A lease that has to end first. */
struct kvpd_limbo_holder {
	uint32_t session;
	uint32_t place; /* of the session */
	uint32_t slot;
	uint64_t value;
};

/* The places that one switch left behind, and their holders. */
struct kvpd_limbo {
	struct kvpd_list link; /* in the tenant */
	uint32_t n_places;
	struct kvpd_place place[KVPD_MOVE_BLOCKS * KVPD_MOVE_JOBS];
	struct kvpd_limbo_holder *holder; /* those not yet seen to end */
	uint32_t n_holders;
	uint32_t looked, kept; /* in the look that is under way */
};

/* Empty. NULL: no memory. */
struct kvpd_limbo *kvpd_limbo_new(void);
/* Its place's slot is kept until the holders are gone. */
void kvpd_limbo_add(struct kvpd_limbo *limbo, struct kvpd_place place);
/* All places have been added; the holders (malloc) are the limbo's from now on. */
void kvpd_limbo_enter(struct kvpd_tenant *t, struct kvpd_limbo *limbo,
	struct kvpd_limbo_holder *holder, uint32_t n_holders);
/* A chore: frees places whose holders have been seen to end. */
bool kvpd_limbo_step(struct kvpd_tenant *t, uint64_t now);
/* At the tenant's end. */
void kvpd_limbo_free_all(struct kvpd_tenant *t);

#endif
