/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who pays with his turn for what the control thread does.
 *
 * A source that is ready waits with its payer until that has had the least time of all that want
 * some (daemon/turns.h); then one of the payer's sources does one step. So however many connections
 * somebody has, and whatever they ask for, who comes with one request waits for one step of a
 * stranger's. Connections of a uid, by the same socket, have one payer together: containers with a
 * socket each are often all of uid 0, and what they can use up is counted here too. What the ledger
 * says to a tenant's sessions is paid by the tenant.
 *
 * Control thread only.
 */
#ifndef KVPD_PAYER_H
#define KVPD_PAYER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "daemon/control/source.h"
#include "daemon/turns.h"

#define KVPD_PAYER_HEADS 256u

struct kvpd_conn;
struct kvpd_guest;

struct kvpd_payer {
	struct kvpd_turn turn; /* first */
	struct kvpd_turns *row;
	TAILQ_HEAD(, kvpd_source) ready;
	/* One of connections: found by this. */
	uid_t uid;
	char door[64];  /* the tenant whose socket they came by; "" = the main one */
	uint32_t users; /* it goes with the last one */
	LIST_ENTRY(kvpd_payer) link;
	/* What they have; bounds are on these. */
	uint32_t n_conns; /* also those that linger, see flight.h */
	TAILQ_HEAD(kvpd_pending, kvpd_conn) pending;
	uint32_t n_pending;
	TAILQ_HEAD(, kvpd_conn) flying; /* those that may have descriptors in flight */
	uint32_t in_flight;
	uint64_t looked_ns;            /* when the kernel was asked about them */
	TAILQ_HEAD(, kvpd_guest) lost; /* without a connection */
};

struct kvpd_payers {
	struct kvpd_turns row;
	LIST_HEAD(, kvpd_payer) by[KVPD_PAYER_HEADS];
	uint32_t n, n_others;
};

/*
 * `others`: how many there may be in the row that are not found by uid (kvpd_payer_init()).
 * -ENOMEM.
 */
int kvpd_payers_init(struct kvpd_payers *payers, uint32_t others);
void kvpd_payers_fini(struct kvpd_payers *payers);
/*
 * One step of whoever's turn it is; false if nobody wants one. It is charged what it took: *now is
 * when it begins and becomes what the clock says when it has ended.
 */
bool kvpd_payers_step(struct kvpd_turns *row, uint64_t (*clock_ns)(void), uint64_t *now);

/* The payer of connections of this uid by this door; NULL: no memory. */
struct kvpd_payer *kvpd_payer_get(struct kvpd_payers *payers, uid_t uid, const char *door);
/* It is used once more, or no longer. No source may be left that names it. */
struct kvpd_payer *kvpd_payer_ref(struct kvpd_payer *payer);
void kvpd_payer_put(struct kvpd_payers *payers, struct kvpd_payer *payer);
/* One that is part of something else, with its turn in this row. */
void kvpd_payer_init(struct kvpd_payer *payer, struct kvpd_turns *row);

/* It wants a step for these events, besides those that it waits with already. */
void kvpd_source_raise(struct kvpd_source *source, uint32_t events);
/* It is dead: nothing is done for it any more. */
void kvpd_source_end(struct kvpd_source *source);

#endif
