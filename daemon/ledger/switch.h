/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Switching blocks over to where a mover has copied them.
 *
 * A payload that is only moved, the same bytes elsewhere, is **switched first**: the block lies at its new
 * place before leases are looked for (kvp_block_move()), and is a hit all the while. What a lease protects
 * there is the old place: it is in limbo (limbo.h) from the switch on, and stays there for those that the scan
 * finds leased until each lease has ended that it found on their chains.
 *
 * Where the old and the new payload differ, or there will be none, it is **marked first**, as in an eviction:
 * mark, fence, scan. A block that is coded anew and that a lease protects stays what it is, and its copy is
 * dropped; so does a payload on a device that is to go while the block keeps the one in DRAM (room.h). Moves take
 * that way too where no more places may be in limbo, or there is no memory to remember them.
 *
 * A lease protects all above its tip, so the scan walks up the chains of all leased tips, and how
 * long that takes is for clients to choose. So it is done in portions, with other turns in between.
 *
 * Why that is safe
 * ----------------
 * What has to be found is every lease that was published before the fence and is still held: later
 * ones see EVICTING in the block's word when they compare the words of all that they matched, or
 * another move count, and give it up (kvp_lease.h). Each slot is read once after the fence, at whatever
 * time; a lease that was there at the fence and is gone when its slot is read has ended, and its reads with
 * it. A session that comes later has no lease from before.
 *
 * Of a block that was switched first a lease that is found may be from after the fence, on the new place. It
 * cannot be told from one on the old, and keeps that in limbo as well: for longer than needed, and no more. One
 * that ends at a moment (kvp_until()) is held until that has come, here and in limbo. That no memory can be had to
 * remember a lease is known at the end of the scan; then all old places stay where they are, and the scan is done
 * anew: it finds every lease again that is still held.
 *
 * Between two portions blocks may be published, evicted and deleted; not those that are switched
 * (KVPD_BLOCK_MOVING keeps them, to the end of the scan), nor what is leased, nor what is above that. So while a
 * lease from before the fence is held, its chain is unchanged. A walk that was interrupted goes on where it
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

struct kvpd_limbo;
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
	bool blind;             /* leases were found that there was no memory for */
	struct kvpd_list jobs;  /* whose blocks are switched */
	uint32_t here;          /* kvpd_block.walked: it is one of them, */
	uint32_t yes, no;       /* or: is there one of them in the chain above? */
	struct kvpd_list *next; /* the session that is looked at, */
	uint32_t slot;          /* and its slot */
	struct kvpd_walk walk;
	struct kvpd_limbo *limbo;         /* old places of those switched first; NULL: none was */
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
