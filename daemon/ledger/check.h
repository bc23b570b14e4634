/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl check: what is wrong with a tenant's lists, counts, indexes and contents, a portion at a
 * time, between which the ledger serves everybody else.
 *
 * What one block, bucket, slot or session must fulfil is looked at when the walk comes by, and holds
 * whatever happened before. Sums and lists can be compared only with what was counted while nothing
 * changed; a tenant that is busy is counted anew, a few times, and said to be unsettled after that.
 */
#ifndef KVPD_CHECK_H
#define KVPD_CHECK_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/ledger/class.h"
#include "daemon/ledger/space.h"
#include "payload/kvp_payload.h"
#include "shm/kvp_abi.h"

struct kvp_summing;
struct kvpd_request;
struct kvpd_tenant;

#define KVPD_CHECK_PROBLEMS 100u /* in words */

/* The sums of one tenant, counted from its parts. */
struct kvpd_check_sums {
	uint32_t blocks, recipes, childless, lost_cells;
	uint32_t only; /* blocks on devices alone */
	uint64_t payload_bytes;
	/* of each space: blocks with a payload, bytes of these, and those in DRAM by width */
	uint32_t payloads[KVP_MAX_SPACES];
	uint64_t bytes[KVP_MAX_SPACES];
	struct kvpd_payloads width[KVP_MAX_SPACES][KVP_PAYLOAD_WIDTHS];
	uint32_t entries[2]; /* of the index and of the tail index */
	uint64_t charged, arena;
	/* bytes, slots and blocks of each device */
	uint64_t part[KVP_MAX_DEVICES], places[KVP_MAX_DEVICES], on[KVP_MAX_DEVICES];
	uint64_t slots[KVPD_CLASSES], free[KVPD_CLASSES]; /* of the vault, by class */
	uint32_t used, lost;                              /* slots of this extent, */
	uint64_t all_used;                                /* and of all */
	uint32_t sessions, claims, claims_of_sessions;
	uint32_t opens[KVP_MAX_SPACES];
};

struct kvpd_check {
	struct kvpd_request *q;
	struct kvpd_tenant *t; /* in a step */
	uint64_t number;       /* its own */
	json_t *problems;
	uint64_t wrong;
	/* of this tenant */
	uint32_t stage, pass;
	bool begun, changed;
	bool sums;         /* the stage is about them */
	uint64_t changes;  /* of the tenant when it was begun */
	uint32_t at, part; /* where the stage is, */
	bool inside;       /* and whether it has begun with `at` */
	struct kvpd_check_sums sum;
	uint32_t *children; /* of each block, counted from its children */
	uint32_t *live;     /* of these, with a payload */
	uint8_t *cell;      /* times each recipe cell is used */
	uint32_t want_blocks, want_cells, room_blocks, room_cells;
	/* of all */
	uint64_t blocks, bytes;
	uint32_t unsettled;
	/* contents: which block is read, how far, and what it was then */
	struct kvp_summing *summing;
	uint64_t word, read;
	bool reading;
	bool asked; /* its payload on a device is being verified, or was */
	bool busy;  /* no more can be, just now */
};

__attribute__((format(printf, 2, 3))) void kvpd_check_wrong(
	struct kvpd_check *c, const char *format, ...);
/* What kvpd_block_state() says, but a block that is being switched over is as good as LIVE. */
uint32_t kvpd_check_state(const struct kvpd_check *c, uint32_t block);
/* Is the block where the hash leads? */
bool kvpd_check_in_table(
	const struct kvp_bucket *table, uint32_t buckets, uint64_t hash, uint32_t block);
/* One block by itself; counts it. */
void kvpd_check_block(struct kvpd_check *c, uint32_t block);
/* A step over contents; -EINPROGRESS: there is more of what was asked for. */
int kvpd_check_contents(struct kvpd_check *c);

#endif
