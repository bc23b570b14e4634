/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether coding blocks with fewer bits does harm, and what follows from it: for each space with a floor
 * a window of scores, and the width that its next blocks are coded to, between native and the lowest
 * that owner and tenant allow. policy/kvp_thresholds is the controller; this says where its scores come
 * from and what they mean.
 *
 * A score is a share, 0 to 1, in which 1 is nothing lost. Two kinds go into one window:
 * - of every KVPD_CHECK_EVERY blocks that are coded from native ones a mover decodes one again. Its
 *   score is the share of heads, of keys and of values in all layers, that lost at most KVPD_CHECK_LIMIT
 *   times what the floor's codec loses of normal numbers (its golden value): the owner accepted that
 *   codec, not what it makes of data that it does not suit. The limit is the same whatever the width, so
 *   more bits do help; a factor of two is half a bit.
 * - engines report what they measure of their output (kvp_report_quality()).
 *
 * Below the tenant's `quality_target` blocks are coded with a width more, from 1.1 times that on with one
 * less; what is coded already stays. A space that has come to native codes nothing, and has no checks
 * that could bring it back: when room was wanted so often that a window would be full, it tries. learnt.h says what
 * of that is kept when the daemon ends.
 */
#ifndef KVPD_QUALITY_H
#define KVPD_QUALITY_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/figures.h"
#include "daemon/ledger/learnt.h"
#include "payload/kvp_payload.h"
#include "policy/kvp_thresholds.h"

struct kvpd_class;
struct kvpd_codes;
struct kvpd_move;
struct kvpd_tenant;

#define KVPD_CHECK_EVERY 16u
#define KVPD_CHECK_LIMIT 2.0
/* Scores between two decisions: from one end of the widths to the other in fewer than 100. */
#define KVPD_QUALITY_PERIOD 20u

/* One block that is looked at again, on its way to a mover and back. */
struct kvpd_check {
	uint32_t move;   /* of its job's moves */
	uint32_t tokens; /* of the sequence, up to the end of the block */
	double limit[2]; /* of keys and values; 0: not known yet */
	bool done;       /* what follows was found out */
	uint32_t heads, within;
	double worst;                /* error, as a multiple of the limit */
	float layer[KVP_MAX_LAYERS]; /* share of heads within; below 0: nothing is coded there */
};

struct kvpd_quality {
	struct kvp_adapt adapt; /* its archive_width is what next blocks are coded to */
	double limit[2];        /* see kvpd_check */
	uint32_t unchecked;     /* blocks coded since the last check */
	uint32_t idle;          /* times that room was wanted while the width was native */
	uint32_t tokens;        /* the longest sequence of which a block was checked */
	uint64_t checked, reported;
	struct kvpd_learnt_start start;
	double worst;                /* of the last check */
	float layer[KVP_MAX_LAYERS]; /* running mean of checks; below 0: none */
};

/* For a space whose blocks are coded so. -ENOMEM. */
int kvpd_quality_new(const struct kvpd_codes *codes, struct kvpd_quality **ret_quality);

/* Its window goes on from a width that was learnt before, unless it has decided something by now. */
void kvpd_quality_start(struct kvpd_tenant *t, uint32_t space, uint32_t width, uint32_t origin);
/* Where the width came from that it began with, a word that lives for ever; "" for an exact space. */
const char *kvpd_quality_origin(const struct kvpd_tenant *t, uint32_t space);

/* The width that next blocks of the space are coded to, if `floor` is the lowest that is allowed. */
uint32_t kvpd_quality_width(const struct kvpd_tenant *t, uint32_t space, uint32_t floor);

/* So many native blocks are about to be coded: what to look at of them, to be freed; NULL: nothing. */
struct kvpd_check *kvpd_check_new(struct kvpd_tenant *t, uint32_t space, uint32_t blocks);
/* On a mover's thread, when the block was coded. */
void kvpd_check_run(
	const struct kvpd_codes *codes, const struct kvpd_move *m, struct kvpd_check *check);
/* On the ledger's. */
void kvpd_quality_checked(struct kvpd_tenant *t, uint32_t space, const struct kvpd_check *check);
/* A client's score. -EINVAL: it is none; -EOPNOTSUPP: nobody asks, or the space is exact. */
int kvpd_quality_reported(struct kvpd_tenant *t, uint32_t space, float score);
/* Somebody wants a slot of this class. */
void kvpd_quality_wanted(struct kvpd_tenant *t, const struct kvpd_class *c);

/* Of one space, which may be exact; of all of the tenant's. */
void kvpd_quality_read(
	const struct kvpd_tenant *t, uint32_t space, struct kvpd_quality_figures *ret_figures);
void kvpd_quality_sum(const struct kvpd_tenant *t, struct kvpd_quality_figures *ret_figures);

#endif
