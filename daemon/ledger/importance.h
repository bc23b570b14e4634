/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much the blocks of a space with a floor matter, by the attention that its clients report
 * (KVP_OP_ATTENTION, kvp_report_attention()): what precision.h and budget.h weigh them by, beside how long ago they
 * were used.
 *
 * Kept are two bytes for each of a tenant's descriptors, from the first report on and as long as any of its
 * spaces has a floor; they are charged to the tenant like its catalog, and a report that comes before there is
 * room for them is lost. A block begins at 1, what it is worth if nothing is known, and each report moves it by
 * a tenth of the way to what the report says (kvp_allot_learn()), so that a single one that is out of line
 * changes little. It stays at that until the next report: that it counts for less when the block has not been
 * used for long is the recency's part (kvp_importance_recency()).
 *
 * Nothing here is proven. A report names blocks of a space that its session has opened, and is believed about
 * these, within bounds; it changes which blocks of that space keep their bits, and that within what the space's
 * floor allows. Which heads and layers were looked at, and how they were weighed, is the reporter's affair.
 * Attention that changes asks for no round: a budget that holds has nothing to gain from one, since no block
 * gets bits back.
 */
#ifndef KVPD_IMPORTANCE_H
#define KVPD_IMPORTANCE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_abi.h"

struct kvpd_session;
struct kvpd_tenant;

/* In a tenant. */
struct kvpd_importance {
	uint16_t *
		of; /* [layout.max_blocks], logarithms; 0: nothing is known; NULL: nobody has reported */
	uint64_t charged; /* bytes; before `of` is there if there is no room yet */
	uint64_t reported
		[KVP_MAX_SPACES]; /* blocks that reports were about, since the space was made */
};

/* An average in 16 bits, and back; 0: nothing is known, which counts as 1. What a byte of a report says. */
uint16_t kvpd_importance_pack(float importance);
float kvpd_importance_unpack(uint16_t packed);
float kvpd_importance_said(uint8_t code);
/* Does an entry of the ring name a block of a space with a floor that the session has opened? */
bool kvpd_importance_names(const struct kvpd_session *s, const struct kvp_sqe *sqe);

/* An entry of the ring. */
void kvpd_importance_report(struct kvpd_session *s, struct kvp_sqe *sqe);
/* Has anything been reported of the space's blocks? */
bool kvpd_importance_known(const struct kvpd_tenant *t, uint32_t space);
/* Of a block: about 1 on the mean of those that are reported, and if nothing is known. */
float kvpd_importance_of(const struct kvpd_tenant *t, uint32_t block);
/* What it is worth: that, and less the longer it has not been used, e times for as long as precision.h's age of 1. */
float kvpd_importance_worth(const struct kvpd_tenant *t, uint32_t block);
/* The descriptor is another block's now. */
void kvpd_importance_forget(struct kvpd_tenant *t, uint32_t block);
/* A space goes: nothing is kept if none is left that has a floor. */
void kvpd_importance_leave(struct kvpd_tenant *t, uint32_t space);
void kvpd_importance_free(struct kvpd_tenant *t);

#endif
