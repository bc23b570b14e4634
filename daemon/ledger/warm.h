/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warming: runs of blocks are copied to a device while they stay readable in DRAM (KVP_OP_WARM).
 *
 * Each WARM is a ticket. It climbs its chain from the tip, begins copies from the top, waits for them,
 * counts what lies on the device, and answers; a portion at a time, with other tickets in between. A
 * ticket that waits is not looked at until what it waits for may have come: a copy of its own or any
 * other's that makes room in what may be under way, a slot, an extent that a device was to be told of.
 *
 * Why the chain stays: no block goes before its children, and no descriptor is used again while a
 * block names it as its parent. So as long as the tip is the same block and has a payload, all that
 * was found above it is there, has one, and has it in DRAM. A block that is being copied is
 * KVPD_BLOCK_MOVING: neither evicted nor deleted nor moved.
 *
 * A client may ask to be told where its blocks come to lie before they do (KVP_SQE_EARLY). Then slots are taken for all of
 * the run as far as there are any, while copies begin in the same portions as of any other ticket; a slot so held is its
 * block's until the copy is over, as if that had begun, and whoever else wants the block there waits for it. Ahead of
 * need (KVP_SQE_PREFETCH) slots are taken only as copies may begin, so that nobody who needs a block waits for that.
 *
 * Room on a device is made by taking payloads there, and nothing but these, of blocks that no lease
 * protects. A lease on a tip protects a payload on a device as any other of its chain, and the tip need
 * not lie there itself; so what is to go is handed to the switch (switch.h), which finds the leases on
 * all that is below.
 */
#ifndef KVPD_WARM_H
#define KVPD_WARM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/list.h"
#include "shm/kvp_abi.h"

struct kvpd_session;
struct kvpd_tenant;

#define KVPD_WARM_COPIES 256u                  /* of one tenant under way */
#define KVPD_WARM_BYTES  (UINT64_C(128) << 20) /* about, likewise */

/* What a ticket is for, and in this order they are served. */
#define KVPD_WARM_NEED    0u /* somebody waits for it */
#define KVPD_WARM_AHEAD   1u /* a client asked for it ahead of need (KVP_SQE_PREFETCH) */
#define KVPD_WARM_ADVISED 2u /* nobody did: the advisor named it (ahead.h) */
#define KVPD_WARM_KINDS   3u

#define KVPD_WARM_MOST_ADVISED 8u /* of the latter, of a tenant */
#define KVPD_WARM_RUN_ADVISED \
	64u /* blocks of one of these at most: the one that was named, and what is above it */

/* Tickets of a tenant. */
struct kvpd_warming {
	struct kvpd_list ready[KVPD_WARM_KINDS];   /* may go on */
	struct kvpd_list waiting[KVPD_WARM_KINDS]; /* may not */
	uint32_t tickets, advised;
	uint32_t copies; /* under way */
	uint32_t held;   /* slots, for copies that are not yet */
	uint64_t bytes;  /* of copies under way */
};

void kvpd_warm_init(struct kvpd_tenant *t);
/* Serves an entry WARM. */
void kvpd_warm_serve(struct kvpd_session *s, const struct kvp_sqe *sqe);
/*
 * The block is to come there by advice, with what is above it. False: no more are taken now. One that cannot come is
 * passed over.
 */
bool kvpd_warm_advised(struct kvpd_tenant *t, uint32_t medium, uint32_t block);
/* Does somebody wait for copies? */
bool kvpd_warm_is_wanted(const struct kvpd_tenant *t);
/* All tickets that wait are looked at again: something changed that may let them go on. */
void kvpd_warm_again(struct kvpd_tenant *t);
/* The session is gone: nobody is answered. */
void kvpd_warm_end(struct kvpd_session *s);
/* A chore. */
bool kvpd_warm_step(struct kvpd_tenant *t, uint64_t now);
/* At the tenant's end. */
void kvpd_warm_free_all(struct kvpd_tenant *t);

#endif
