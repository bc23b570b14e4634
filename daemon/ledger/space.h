/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces of a tenant: what a client says of its model, judged, digested, entered in the catalog. */
#ifndef KVPD_SPACE_H
#define KVPD_SPACE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"
#include "payload/kvp_payload.h"

struct kvpd_class;
struct kvpd_codes;
struct kvpd_quality;
struct kvpd_session;
struct kvpd_tenant;

struct kvpd_payloads {
	uint64_t blocks, bytes;
};

/* What engines have computed, of late, and what that took them: see claim.h. */
struct kvpd_computing {
	uint64_t ns, tokens;
};

/* What the ledger keeps of a space besides the catalog. */
struct kvpd_space {
	struct kvpd_class *cls;
	struct kvpd_codes *codes; /* how its blocks are coded; NULL: it is exact. See precision.h */
	struct kvpd_quality *quality; /* of what is coded; NULL: likewise. See quality.h */
	struct kvpd_rule rule;        /* see budget.h, */
	bool ruled;                   /* and an administrator gave it: reloading changes nothing */
	uint64_t pending;             /* bytes that coding is about to free */
	uint32_t blocks;              /* in any state but FREE */
	uint32_t opens;               /* by all sessions */
	uint64_t opened;
	uint32_t payloads;                              /* blocks of it that have one */
	uint64_t payload_bytes;                         /* in all media */
	struct kvpd_payloads width[KVP_PAYLOAD_WIDTHS]; /* in DRAM */
	uint64_t tokens_put;                            /* of blocks published since it was made */
	uint64_t tokens_asked, tokens_matched;          /* as clients count them, since then too */
	uint64_t evictions;                             /* likewise since it was made */
	struct kvpd_computing computing;
};

/* A space that nobody has open is emptied to make room for another. */
struct kvpd_emptying {
	bool under_way;
	uint32_t tries; /* spaces, for the one that is to be opened */
	uint32_t space;
	uint32_t at;    /* descriptor that is looked at next */
	uint32_t chain; /* block of a chain that goes, or KVP_BLOCK_NONE */
};

/*
 * Works out how many blocks the policy may count on: what fits, if all were of the smallest size.
 */
void kvpd_space_capacity(struct kvpd_tenant *t);
/* The session closes the space so many times. */
void kvpd_space_leave(struct kvpd_session *s, uint32_t space, uint32_t times);

#endif
