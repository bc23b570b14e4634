/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Precision goes before blocks: where a tenant's vault has no slot left, blocks of spaces that accept it
 * (kvp_space_canon.floor_k) are coded with fewer bits into smaller slots, before any block is evicted.
 *
 * Nothing is coded here but on demand (budget.h is for spaces whose operator says more): who needs a slot and finds none asks (kvpd_precision_first()), and
 * waits a little instead of evicting. A portion of the chore then looks at some hundred descriptors, in
 * spaces whose clients report attention (importance.h) at those up to a bar that is an octave above the least
 * important block of the last round over all of them;
 * policy/kvp_ladder says which of those that may be coded cost least for the bytes that are wanted, and a
 * mover codes them into the vault, while they stay readable where they are. They are switched over like
 * blocks that move (switch.h): marked, and put back if a lease protects them. So a load that stays the
 * same changes nothing, and what is in use stays as it is.
 *
 * Coded slots are a size class of their own, which grows out of the tenant's room; where there is none, an
 * extent of larger slots is emptied for it, whose blocks are coded first. A block goes to the lowest width
 * that space, tenant and quality allow, in one step. Steps in between were tried, before extents were emptied ahead of
 * need: each needs extents of its own size, which have to be emptied for those of the next, and in bad runs a
 * small share evicted two thirds of what was put. Where quality suffers the width is another (quality.h), but
 * seldom, and for next blocks only.
 */
#ifndef KVPD_PRECISION_H
#define KVPD_PRECISION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/ledger/patience.h"
#include "payload/kvp_payload.h"

struct kvpd_calib;
struct kvpd_class;
struct kvpd_extent;
struct kvpd_move;
struct kvpd_move_job;
struct kvpd_rule;
struct kvpd_tenant;

#define KVPD_PRECISION_JOBS 2u  /* of one tenant under way; of KVPD_MOVE_JOBS */
#define KVPD_BELOW_MOST     31u /* blocks that follow one are counted up to that */

/* How blocks of a space with a floor are coded; constant as long as the space is there. */
struct kvpd_codes {
	struct kvp_kernels *kernels;
	size_t scratch;
	uint32_t lowest;    /* width */
	uint64_t positions; /* of tokens in blocks that can be coded; see kvp_payload_positions() */
	struct kvp_block_layout width[KVP_PAYLOAD_WIDTHS];
	const struct kvpd_calib *calib; /* that planes are coded with; NULL: none is needed */
};

/* A space of this number comes, which may be exact (-ENOMEM), with the calibration that its floor needs or NULL, and goes. */
int kvpd_precision_enter(struct kvpd_tenant *t, uint32_t space, const struct kvp_space_canon *canon,
	const struct kvpd_calib *calib);
void kvpd_precision_leave(struct kvpd_tenant *t, uint32_t space);

struct kvpd_precision {
	uint32_t floors; /* spaces that have one */
	uint32_t n_jobs;
	struct kvpd_class *want;   /* whose slots are wanted; NULL: none are */
	struct kvpd_class *hungry; /* an extent was emptied for it */
	uint32_t hand;             /* descriptor that is looked at next */
	uint64_t looked;           /* since something was found */
	/* Where clients report attention, in buckets of kvp_allot_bucket(): */
	uint32_t bar;   /* what is above is left alone */
	uint32_t least; /* of what might have been coded, in the last `swept` descriptors */
	uint32_t swept;
	bool spared; /* something was above the bar, since something was found */
	struct kvpd_patience patience;
	bool full;             /* there was no slot for what could be coded */
	uint32_t grace;        /* evictions before anything is looked for again, */
	uint32_t vain_serial;  /* unless much has come since this block */
	double encode_seconds; /* a token, as measured; 0: not yet */
	/* Steps to a width so far, and bytes that they freed. */
	uint64_t steps[KVP_PAYLOAD_WIDTHS], freed[KVP_PAYLOAD_WIDTHS];
	uint64_t refused; /* coded for nothing: a lease came, or the codec failed */
	uint64_t cpu_ns;  /* of processors, for coding and for looking at what was lost */
};

/* Bytes of a block's payload in a width that its space has. */
uint64_t kvpd_width_bytes(const struct kvpd_tenant *t, uint32_t space, uint32_t width);
/* The lowest width that space and tenant allow, and the space's rule; and if that were this one. */
uint32_t kvpd_width_floor(const struct kvpd_tenant *t, uint32_t space);
uint32_t kvpd_width_floor_by(
	const struct kvpd_tenant *t, uint32_t space, const struct kvpd_rule *rule);
/* The lowest that blocks are coded to now: that, unless their quality suffers (quality.h). */
uint32_t kvpd_width_lowest(const struct kvpd_tenant *t, uint32_t space);

/*
 * There is no slot of this class: may coding make one soon? Asks for that. True: the caller does not evict
 * now, but tries again.
 */
bool kvpd_precision_first(struct kvpd_tenant *t, struct kvpd_class *c, uint64_t now);
/* What is lost with what lies in this extent, in blocks of ordinary worth: from a sample of them. */
double kvpd_precision_worth(const struct kvpd_tenant *t, const struct kvpd_extent *x);
/* Room that the class leaves to those of coded blocks, `extent` being the size of one. */
uint64_t kvpd_precision_keep(
	const struct kvpd_tenant *t, const struct kvpd_class *c, uint64_t extent);
/* A chore. */
bool kvpd_precision_step(struct kvpd_tenant *t, uint64_t now);

/* On a mover's thread: codes what the job names. */
void kvpd_precision_run(struct kvpd_move_job *j);
/* On the ledger's: the mover is done with it. */
void kvpd_precision_done(struct kvpd_move_job *j);
/* What a move frees that codes a block, and `pending` of its space counts until it is switched over or not. */
uint64_t kvpd_precision_frees(const struct kvpd_move *move, const struct kvpd_codes *codes);
/* A block was switched over from one payload to another. */
void kvpd_precision_switched(struct kvpd_tenant *t, uint32_t block, uint64_t from, uint64_t to);
/* Of a space with a floor: a block was published, or matched. */
void kvpd_precision_came(struct kvpd_tenant *t, uint32_t block);
void kvpd_precision_used(struct kvpd_tenant *t, uint32_t block);

/* ---- for budget.c */

/* May its space's floor have it coded further down: is it whole, and in the middle of its sequence? */
bool kvpd_precision_may(const struct kvpd_tenant *t, uint32_t block, uint32_t space);
/* Is it nobody's at the moment, as far as the last look at the leases knows? */
bool kvpd_precision_idle(const struct kvpd_tenant *t, uint32_t block);
/* Blocks that follow it, in the longest sequence that goes on from it; KVPD_BELOW_MOST: or more. */
uint32_t kvpd_precision_below(const struct kvpd_tenant *t, uint32_t block);
/* Since it was last used: 1 is as much as there is room for came since. */
double kvpd_precision_age(const struct kvpd_tenant *t, uint32_t block);
/* 1 for what was just used; half, if as much came since as there is room for. */
double kvpd_precision_recency(const struct kvpd_tenant *t, uint32_t block);
/* Are as many jobs under way as may be? */
bool kvpd_precision_busy(const struct kvpd_tenant *t);
struct kvpd_coding {
	uint32_t block, width;
};
/* Has these blocks coded, as many as there are slots for, of each width, and as are one job; returns how many. */
uint32_t kvpd_precision_code(struct kvpd_tenant *t, uint32_t space,
	const struct kvpd_coding *coding, uint32_t n, uint64_t now);

#endif
