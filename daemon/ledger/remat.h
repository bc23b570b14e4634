/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recomputation: what is missing of a chain that somebody wants (KVP_OP_WANT) is loaded, or computed by a
 * session that has offered to (KVP_OP_SERVE).
 *
 * A want climbs its chain from the tip to the first block that lies in DRAM, a portion at a time, twice: first it
 * counts what is missing, which is what it takes room for. Then it is planned on a thread of its own by policy/kvp_remat.h: what lies on a device alone is loaded, which it is
 * anyway (behind.h), or computed if that is quicker; a RECIPE can only be computed. Then it waits for an offer,
 * those that are needed first before the others, and the offer's session hears of one range at a time: its last
 * block and how many there are. The token ids are in the catalog, which it reads. Results are ordinary commits:
 * nothing here believes a provider but for how long it takes.
 *
 * What is believed of that is bounded by what it said: a demand that is not met in the time that the provider
 * itself has said costs it its offer for a while, and whoever waited is answered at once. What it took is
 * measured, as a part of what it said, and decides who is asked and whether it is worth it.
 *
 * Why the chain stays: no descriptor is used again while a block names it as its parent, so as long as the tip
 * is the same block, all that was found above it is there, with or without payload. A want's tip counts as
 * the youngest RECIPE when it comes, so that it is not forgotten meanwhile.
 *
 * What wants take, and their plans, is charged to the tenant that asked, for the blocks that are missing: in whole
 * pages, as much as they ever took at a time, and at most a 64th of its share (KVPD_REMAT_PART). A want that is larger than that by itself is refused
 * (-EDQUOT), one for which there is no room beside others, or not yet, is to be asked again.
 *
 * Bounds: wants and offers of a session (kvp_abi.h), of a tenant (below), blocks of a want, one demand under
 * way for an offer. A tenant's wants are served by its own sessions alone.
 */
#ifndef KVPD_REMAT_H
#define KVPD_REMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ledger/list.h"
#include "shm/kvp_abi.h"

struct kvpd_session;
struct kvpd_tenant;
struct kvpd_want;

#define KVPD_REMAT_WANTS  64u /* of one tenant */
#define KVPD_REMAT_OFFERS 32u
#define KVPD_REMAT_PART   64u                 /* of its share, and */
#define KVPD_REMAT_LEAST  (UINT64_C(1) << 16) /* at least so much is for wants */

/* What an offer says of itself. */
struct kvpd_terms {
	uint32_t longest;               /* chain, in tokens */
	uint32_t rate;                  /* tokens a second; 0: any */
	bool idle;                      /* it is none while no SERVE waits */
	double launch, token, position; /* seconds */
};

/* A session's word that it computes blocks of a space. Lives as long as the session, or until withdrawn. */
struct kvpd_offer {
	struct kvpd_list in_tenant, in_session;
	struct kvpd_session *session;
	uint32_t space;
	struct kvpd_terms terms;
	struct kvpd_terms
		next; /* what the last SERVE said: the terms as soon as its demand is over */
	bool parked;  /* a SERVE waits, with this serial */
	uint32_t serial;
	double part;            /* of what it said it takes, as measured: 1 at first */
	struct kvpd_want *want; /* that it computes; NULL: none */
	uint64_t said_ns;       /* what that takes by its own word, */
	uint64_t due_ns;        /* so that it is through with it by then */
	uint64_t ready_ns;      /* not before, by its rate */
	uint64_t lost_ns;       /* it is none until then */
	uint64_t penalty_ns;    /* how long it would be lost next time */
	uint64_t
		missed_ns; /* when something waited for its SERVE in vain; 0: not since the last one */
	uint32_t given_back; /* demands in a row */
};

/* Of a tenant. */
struct kvpd_remat {
	struct kvpd_list offers;
	struct kvpd_list going;  /* wants that have something to do */
	struct kvpd_list unsaid; /* whose client has no room for the answer */
	struct kvpd_list queued; /* that wait for an offer, the nearest first */
	struct kvpd_list asked;  /* that are computed, or loaded */
	uint32_t wants, n_offers;
	uint64_t bytes, charged; /* that wants take at most; and what is charged for them */
	uint64_t look_ns;        /* when time alone makes something due */
	/* counts: wants; of these refused or late; demands, of these met, given back, late; tokens met */
	uint64_t wanted, unmet, demands, met, returned, late, tokens;
	uint64_t met_ns; /* that the demands that were met took, altogether */
};

void kvpd_remat_init(struct kvpd_tenant *t);
/* Serve entries WANT and SERVE. */
void kvpd_want_serve(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now);
void kvpd_offer_serve(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now);
/* A block has been committed, or a client's completions have room again. */
void kvpd_remat_again(struct kvpd_tenant *t);
/* The session is gone: nobody is answered, and what it computed is offered to others. */
void kvpd_remat_end(struct kvpd_session *s);
/* A chore. */
bool kvpd_remat_step(struct kvpd_tenant *t, uint64_t now);
/* Makes it due if it is time; returns in how many milliseconds to look again, -1: not by time alone. */
int kvpd_remat_look(struct kvpd_tenant *t, uint64_t now);
/* Offers that stand. */
uint32_t kvpd_remat_offers(const struct kvpd_tenant *t, uint64_t now);
/* The session has closed the space: it does not offer to compute there any more. */
void kvpd_offers_closed(struct kvpd_session *s, uint32_t space);
/* At the tenant's end. */
void kvpd_remat_free_all(struct kvpd_tenant *t);

#endif
