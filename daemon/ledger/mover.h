/* SPDX-License-Identifier: Apache-2.0 */
/* The mover threads: copy blocks into the vault, while they stay readable where they are. */
#ifndef KVPD_MOVER_H
#define KVPD_MOVER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/extent.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/tokens.h"
#include "daemon/ledger/worker.h"

#define KVPD_MOVE_BLOCKS 16u                 /* in one job */
#define KVPD_MOVE_BYTES  (UINT64_C(4) << 20) /* about, likewise */
#define KVPD_MOVE_JOBS   4u                  /* of one tenant under way, the switch included */

struct kvpd_check;
struct kvpd_codes;

struct kvpd_move {
	uint32_t block;
	struct kvpd_place from;
	struct kvpd_place to;
	const void *src;
	void *dst;
	uint64_t bytes;             /* of the payload there */
	uint32_t from_width, width; /* here, and there: kvp_where_codec() */
	uint64_t checksum;          /* 0: not copied */
	uint64_t word;              /* before it was marked */
	uint32_t position;          /* of its first token in the sequence, where it is coded */
	bool levelled;              /* what its tokens were attended to is known */
	struct kvpd_token_levels levels;
};

struct kvpd_move_job {
	struct kvpd_job job;
	struct kvpd_list link; /* when it has been copied */
	struct kvpd_tenant *tenant;
	bool force;    /* it matters that they go: leased blocks are copied too */
	bool first;    /* they were switched over before leases were looked for, see switch.h */
	bool drop;     /* nothing was copied: payloads on a device are to go, see room.h, */
	bool for_room; /* and that for others' sake */
	const struct kvpd_codes *codes; /* coded anew, see precision.h; NULL: copied as they are */
	uint32_t space;                 /* whose all of them are, then, */
	struct kvpd_check *check;       /* and what is looked at afterwards; NULL: nothing */
	uint64_t ran_ns;                /* the mover took so long for coding, */
	uint64_t cpu_ns;                /* and so much of a processor, `check` included */
	uint64_t coded_tokens[KVPD_TOKEN_BITS]; /* that have so many bits of their own now */
	uint32_t n;
	struct kvpd_move move[KVPD_MOVE_BLOCKS];
};

/*
 * Begins to copy at most n blocks of x into the vault; returns how many. `urgent`: evicts for room
 * there. Leased blocks are taken only if there are no others and x has to become empty or it is
 * urgent. Looks at KVPD_MOVE_LOOK slots at most; the next call goes on behind them.
 */
uint32_t kvpd_move_out(struct kvpd_extent *x, uint32_t n, bool urgent, uint64_t now);

#define KVPD_MOVE_LOOK 2048u

/* An empty job of the tenant, to be freed or begun; NULL: no memory. */
struct kvpd_move_job *kvpd_move_job_new(struct kvpd_tenant *t);
/* Its blocks are MOVING, their targets taken. */
void kvpd_move_job_begin(struct kvpd_move_job *j);

#endif
