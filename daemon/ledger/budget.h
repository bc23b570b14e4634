/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Precision by a space's own rule, while there is room: what precision.h does for those who want a slot,
 * this does for an operator who said how much a space may take, or how old its tokens may become in which
 * width. A space's floor, the tenant's least_bits and leases bound it all the same. An operator may also give a space a
 * higher floor than its owner did (kvpd_rule.lowest), under which nothing is coded in any of these ways; what has less by then
 * stays.
 *
 *	pressure  nothing is coded before there is no room
 *	budget    the payloads in DRAM take at most so much of what they would take natively: those that
 *		  matter least are coded (policy/kvp_allot.h)
 *	zones     the newest tokens of a sequence stay native, older ones have 4 bits, those beyond the second
 *		  boundary what the floor allows (policy/kvp_zones.h)
 *
 * How much a block matters is its recency. In a space whose clients report attention (importance.h) it is that
 * importance, with the recency of policy/kvp_importance.h: times exp(-age), 1 being the age of what was not used
 * while as much came as there is room for. Where a budget would have a width for which there is no slot, and none
 * can be made, blocks get the next lower one for which there is.
 *
 * A rule is carried out in rounds, a portion at a time: a budget takes one over all descriptors that
 * counts, and one that codes; zones take one. A round begins when blocks came or the rule changed, and again
 * as long as something was passed over because it was in use; a budget only when it is exceeded, and
 * then it goes a sixteenth below. So a load that stays the same changes nothing. Rounds take at
 * most a sixteenth of the ledger's time.
 */
#ifndef KVPD_BUDGET_H
#define KVPD_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"
#include "policy/kvp_allot.h"

struct kvpd_tenant;

/* In a tenant: the round that is under way, or was the last. */
struct kvpd_budget {
	uint64_t stirred; /* spaces that something may have to be done for, a bit each */
	bool under_way;
	bool counting;    /* the first pass of two */
	bool attention;   /* this round goes by it */
	bool passed_over; /* what would be coded is in use, or there was no slot for it */
	uint32_t space;
	uint32_t at;                /* descriptor that is looked at next */
	uint32_t coded;             /* blocks, in this round */
	uint64_t left;              /* bytes that the second pass may still free */
	uint64_t spent_ns, next_ns; /* on this round, and when the next one may begin */
	uint64_t vain_ns; /* how long rounds are left alone because nothing comes of them */
	uint64_t rounds;  /* so far */
	struct kvp_allot_counts counts;
	struct kvp_allot_cut cut;
};

/* What the payloads in DRAM of a space take, and what they would take natively. */
void kvpd_budget_bytes(
	const struct kvpd_tenant *t, uint32_t space, uint64_t *ret_bytes, uint64_t *ret_native);
/* The least budget, in millionths, that is possible with this lowest width; 1,000,000: that is native. */
uint32_t kvpd_budget_least(const struct kvpd_tenant *t, uint32_t space, uint32_t lowest);
/* The space has a rule now, or another one. */
void kvpd_budget_rule(struct kvpd_tenant *t, uint32_t space, const struct kvpd_rule *rule);
/* Blocks of the space came. */
void kvpd_budget_stir(struct kvpd_tenant *t, uint32_t space);
/* There are new slots: the next round need not wait for as long as nothing has come of the last ones. */
void kvpd_budget_room(struct kvpd_tenant *t);
/* The movers may have room for what a round found. */
void kvpd_budget_again(struct kvpd_tenant *t);
/* Is it time for a round? *ret_ms: in how many milliseconds to look again, if before. */
bool kvpd_budget_look(struct kvpd_tenant *t, uint64_t now, int *ret_ms);
/* A chore. */
bool kvpd_budget_step(struct kvpd_tenant *t, uint64_t now);

#endif
