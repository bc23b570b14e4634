/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One small optimiser under the pressure ladder and the rematerialization planner: for every item
 * choose one of its options, least total cost, within a budget in each of up to four dimensions
 * (bytes of a tier, seconds of compute), children never standing on a parent that is gone.
 *
 * Method: prices. A price per dimension turns the problem into independent choices, and along the
 * trees into one pass up and one down; coordinate-wise bisection finds the prices, every evaluation
 * gives a lower bound on the optimum and a candidate. What the prices leave unspent is filled
 * greedily; few items are then exchanged in pairs and searched exactly. Work: O(options) per
 * evaluation, some hundred evaluations at most; memory fixed at creation.
 */
#ifndef KVP_POLICY_CHOOSE_H
#define KVP_POLICY_CHOOSE_H

#include <stddef.h>
#include <stdint.h>

#define CHOOSE_DIMS   4u
#define CHOOSE_LEVELS 3u
#define CHOOSE_NONE   UINT32_MAX

struct choose_option {
	double cost;
	double use[CHOOSE_DIMS]; /* >= 0 */
	uint32_t level;          /* what it demands: at most the support of the parent's option */
	uint32_t support;        /* what it offers its children; both < CHOOSE_LEVELS */
};

struct choose_problem {
	uint32_t items;
	const uint32_t *first; /* [items + 1]: item i has options first[i] .. first[i + 1] - 1 */
	const struct choose_option *options;
	const uint32_t *parent;     /* [items], parent[i] < i or CHOOSE_NONE; NULL: no trees */
	double budget[CHOOSE_DIMS]; /* INFINITY where there is none */
	uint32_t hard;              /* bit d: a choice may miss other budgets, but not d's */
};

struct choose_result {
	double cost;
	double bound;               /* no choice within the budgets costs less */
	double excess[CHOOSE_DIMS]; /* what could not be met: 0, or the least that was found */
	int exact;                  /* cost is the optimum */
};

struct choose;

struct choose *choose_new(uint32_t max_items);
struct choose *choose_free(struct choose *c);

/* ret[items]: indices into options. items <= max_items; every item has an option of level 0..2 that
 * its parent's options can bear. */
void choose_solve(struct choose *c, const struct choose_problem *problem, uint32_t *ret,
	struct choose_result *result);

#endif
