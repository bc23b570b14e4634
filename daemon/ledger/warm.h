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

/* Tickets of a tenant; the first of each pair are those that somebody waits for. */
struct kvpd_warming {
	struct kvpd_list ready[2];   /* may go on */
	struct kvpd_list waiting[2]; /* may not */
	uint32_t tickets;
	uint32_t copies; /* under way */
	uint64_t bytes;  /* likewise */
};

void kvpd_warm_init(struct kvpd_tenant *t);
/* Serves an entry WARM. */
void kvpd_warm_serve(struct kvpd_session *s, const struct kvp_sqe *sqe);
/* All tickets that wait are looked at again: something changed that may let them go on. */
void kvpd_warm_again(struct kvpd_tenant *t);
/* The session is gone: nobody is answered. */
void kvpd_warm_end(struct kvpd_session *s);
/* A chore. */
bool kvpd_warm_step(struct kvpd_tenant *t, uint64_t now);
/* At the tenant's end. */
void kvpd_warm_free_all(struct kvpd_tenant *t);

#endif
