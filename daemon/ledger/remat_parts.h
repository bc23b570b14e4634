/* SPDX-License-Identifier: Apache-2.0 */
/* What remat.c (wants), remat_offer.c (offers) and remat_plan.c (plans) share. */
#ifndef KVPD_REMAT_PARTS_H
#define KVPD_REMAT_PARTS_H

#include "daemon/ledger/remat.h"
#include "policy/kvp_remat.h"

enum kvpd_want_phase {
	KVPD_WANT_COUNT, /* how many blocks are missing */
	KVPD_WANT_CLIMB, /* which */
	KVPD_WANT_LOOK,  /* where each missing block is */
	KVPD_WANT_PLAN,
	KVPD_WANT_QUEUED,
	KVPD_WANT_ASKED,
	KVPD_WANT_LOADED, /* nothing is to be computed: it is on its way */
	KVPD_WANT_ANSWER,
};

struct kvpd_plan;

struct kvpd_want {
	struct kvpd_list link; /* in one of the tenant's lists, or in none while it is planned */
	struct kvpd_list in_session;  /* or an empty list of its own */
	struct kvpd_session *session; /* NULL: it is gone */
	struct kvpd_tenant *tenant;
	struct kvp_sqe sqe;
	enum kvpd_want_phase phase;
	uint32_t space;
	uint32_t ahead;    /* 1: nobody waits for it */
	uint64_t need_ns;  /* it is of no use afterwards */
	uint64_t until_ns; /* nor is it waited for: what was said for it is over */
	uint64_t asked_ns; /* when it was handed to its offer, or began to wait for one, */
	uint64_t tokens;   /* and how much */
	uint32_t cap, n;   /* room in `block`; blocks there, the tip last */
	uint64_t bytes;    /* that are charged for it */
	uint32_t counts;   /* how often it was counted */
	bool top; /* COUNT has come by a block that is there; and where that or CLIMB has come */
	kvp_block_id up;
	uint32_t at;    /* how far LOOK has come */
	uint32_t depth; /* of block[0] */
	uint32_t
		front; /* blocks from the top that are in DRAM; or, while a range is computed, up to there */
	uint32_t there;      /* that were when it was planned */
	uint32_t begin, end; /* the range that is computed now */
	uint32_t tries;
	struct kvpd_offer *offer;
	struct kvpd_plan *plan;
	int status;
	uint32_t *block;
};

/* ---- remat_offer.c --------------------------------------------------------------------------- */

/* Seconds that the offer says it takes for tokens [begin, end). */
double kvpd_offer_seconds(const struct kvpd_offer *o, uint64_t begin, uint64_t end);
/*
 * The offer that is likely to be through with tokens [begin, end) of the space first, or NULL: there is none.
 * *ret_seconds: from now on, with what is nearer in the queue; *ret_most: by what it says, not as measured.
 */
struct kvpd_offer *kvpd_offer_best(const struct kvpd_want *w, uint64_t begin, uint64_t end,
	uint64_t now, double *ret_seconds, double *ret_most);
/* Is somebody computing it already? *ret_again_ns: when to look again; UINT64_MAX: something will happen. */
bool kvpd_want_is_computed(const struct kvpd_want *w, uint64_t now, uint64_t *ret_again_ns);
/* Can the offer be told of the want now? If not, likewise. */
bool kvpd_offer_takes(
	struct kvpd_offer *o, const struct kvpd_want *w, uint64_t now, uint64_t *ret_again_ns);
void kvpd_offer_hand(struct kvpd_offer *o, struct kvpd_want *w, uint64_t now);
/* Its demand was met; was not within its time; was given back. It has none any more. */
void kvpd_offer_met(struct kvpd_offer *o, const struct kvpd_want *w, uint64_t now);
void kvpd_offer_lose(struct kvpd_offer *o, uint64_t now);
void kvpd_offer_returned(struct kvpd_offer *o, uint64_t now);
/* Who computed a want gave no result, and goes on for nobody if it does. */
void kvpd_offer_drop(struct kvpd_offer *o);
/* Could an offer take the want some time, its next SERVE being on its way? */
bool kvpd_offer_hoped(const struct kvpd_want *w, uint64_t now);
/*
 * A want waited in vain: offers of its space that are said to stand and did not ask are lost, if that is so for
 * the second time. Once is what happens to a provider that the machine was too busy for.
 */
void kvpd_offer_missed(const struct kvpd_want *w, uint64_t now);
/* Those that were lost while their SERVE waited hear of it as soon as there is room. */
void kvpd_offers_tell(struct kvpd_tenant *t, uint64_t now);
/* All of the session's; what they compute goes on elsewhere. */
void kvpd_offers_end(struct kvpd_session *s);

/* ---- remat.c --------------------------------------------------------------------------------- */

/* Positions of the tokens of blocks [from, to) of the want. */
void kvpd_want_tokens(const struct kvpd_want *w, uint32_t from, uint32_t to, uint64_t *ret_begin,
	uint64_t *ret_end);
/* Whoever computed it does so no more: it is planned anew, or answered. */
void kvpd_want_return(struct kvpd_want *w);
/* The plan is there: blocks [begin, end) of those that it was given are to be computed, begin == end: none. */
void kvpd_want_planned(
	struct kvpd_want *w, int status, uint32_t begin, uint32_t end, double seconds);

/* ---- remat_plan.c ---------------------------------------------------------------------------- */

/* What a plan for n blocks takes, also while it is made. */
uint64_t kvpd_plan_bytes(uint32_t n);
/* A plan for blocks [first, n) of the want. -ENOMEM. */
int kvpd_plan_new(struct kvpd_want *w, uint32_t first);
/* The next block: present, on a device alone, or a RECIPE. */
void kvpd_plan_add(struct kvpd_plan *p, uint32_t tokens, uint32_t tier, uint64_t bytes);
/* Makes it on the thread, by this offer's word and the speed of loading; kvpd_want_planned() follows. */
void kvpd_plan_make(struct kvpd_plan *p, const struct kvpd_offer *o);
/* One that was not begun. NULL is harmless. */
void kvpd_plan_free(struct kvpd_plan *p);

#endif
