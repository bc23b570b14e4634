/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Switching blocks over to where a mover has copied them: as in an eviction, mark, fence, scan. A
 * block that a lease protects stays where it is and its copy is dropped; where it must go all the
 * same, its old bytes stay in limbo (limbo.h).
 *
 * A payload on a device that is to go while the block keeps the one in DRAM is switched in the same way,
 * over to nothing (room.h).
 *
 * A lease protects all above its tip, so the scan walks up the chains of all leased tips, and how
 * long that takes is for clients to choose. So it is done in portions, with other turns in between.
 *
 * Why that is safe
 * ----------------
 * What has to be found is every lease that was published before the fence and is still held: later
 * ones see EVICTING in the block's word when they compare the words of all that they matched, and
 * give it up (kvp_lease.h). Each slot is read once after the fence, at whatever time; a lease that
 * was there at the fence and is gone when its slot is read has ended, and its reads with it. A
 * session that comes later has no lease from before.
 *
 * Between two portions blocks may be published, evicted and deleted; not those that are switched
 * (KVPD_BLOCK_MOVING keeps them), nor what is leased, nor what is above that. So while a lease from
 * before the fence is held, its chain is unchanged. A walk that was interrupted goes on where it
 * was if the descriptor there is still that of the same block; if it is not, the blocks below it
 * are gone as well, since no block goes before its children, and with them the lease.
 *
 * A block that was walked over is not walked over again: it carries the answer of its own chain. A
 * descriptor that was freed and taken again meanwhile may carry an old answer; leases on it are
 * from after the fence.
 */
#ifndef KVPD_SWITCH_H
#define KVPD_SWITCH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/list.h"
#include "shm/kvp_types.h"

struct kvpd_limbo_holder;
struct kvpd_move_job;
struct kvpd_session;
struct kvpd_tenant;

/* Up the chain of one lease, and up again to leave the answer behind. */
struct kvpd_walk {
	bool under_way;
	bool back;      /* the second time */
	uint64_t value; /* of the slot */
	uint32_t at;    /* the block that is next, and its birth */
	uint32_t birth;
	uint32_t steps; /* so far; going back: of those from the tip that are left */
	uint32_t below; /* steps up to and with the highest block that is switched; 0: met none */
	bool above;     /* and beyond the end of the walk there is one */
};

/* One in a tenant at a time. */
struct kvpd_switch {
	bool under_way;
	bool forced;            /* some are moved although they are leased */
	struct kvpd_list jobs;  /* whose blocks are marked */
	uint32_t yes, no;       /* kvpd_block.walked: is there one of them in the chain above? */
	struct kvpd_list *next; /* the session that is looked at, */
	uint32_t slot;          /* and its slot */
	struct kvpd_walk walk;
	struct kvpd_limbo_holder *holder; /* slots that protect one of them */
	uint32_t n_holders, room;
};

void kvpd_switch_init(struct kvpd_tenant *t);
/* The mover is done with the job: its blocks are switched over as a chore, and the job freed. */
void kvpd_switch_add(struct kvpd_tenant *t, struct kvpd_move_job *job);
/* A chore. */
bool kvpd_switch_step(struct kvpd_tenant *t, uint64_t now);
/* The session is about to leave the tenant's list. */
void kvpd_switch_forget(struct kvpd_session *s);
/* At the tenant's end. */
void kvpd_switch_free_all(struct kvpd_tenant *t);

#endif
