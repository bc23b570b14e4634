/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tenant's blocks would have hit in an LRU cache of any other size (policy/kvp_mrc.h), for
 * "what-if". The ledger tells the advisor's thread of every block that a request uses or brings, through
 * a queue as in advice.h: one producer, one consumer, no lock, and what finds no room is lost and
 * counted. Nobody waits, and nothing is allocated after kvpd_curve_new().
 *
 * The thread is woken whenever a quarter of the queue has come, and when somebody wants the curve: not
 * for each event. It puts a session's events together into requests again, since of a prompt all blocks
 * are looked up before any is used: what follows a beginning, up to the next one, is one request.
 *
 * The curve comes back as a table of points. There are two of them, and one word between the threads,
 * which change hands as rankings do: advice.h has the argument and the orders.
 */
#ifndef KVPD_CURVE_H
#define KVPD_CURVE_H

#include <stdbool.h>
#include <stdint.h>

#include "shm/kvp_types.h"

struct kvpd_advisor;
struct kvpd_curve;

/* Eight sizes an octave, up to 2^31 blocks. */
#define KVPD_CURVE_OCTAVE 8u
#define KVPD_CURVE_POINTS (31u * KVPD_CURVE_OCTAVE + 1)

struct kvpd_curve_points {
	uint64_t number;     /* of the question that this answers; 0: of none */
	uint64_t requests;   /* that looked a prompt up, since the tenant began */
	uint64_t references; /* blocks that were found or brought */
	uint64_t reach;      /* blocks; a larger cache hits as much as one of that size, or more */
	double followed;     /* share of the blocks from which the curve is worked out */
	float ratio[KVPD_CURVE_POINTS];
};

/* Memory for a tenant of so many blocks; exact. */
uint64_t kvpd_curve_bytes(uint32_t max_blocks);
/* The advisor's thread has it from now on, until kvpd_curve_leave(). Any thread. -ENOMEM. */
int kvpd_curve_new(
	struct kvpd_advisor *v, uint32_t max_blocks, uint64_t seed, struct kvpd_curve **ret_curve);
/* Any thread: the ledger uses it no more. NULL is harmless. */
void kvpd_curve_leave(struct kvpd_curve *c);

/* ---- the ledger's side; some nanoseconds each ------------------------------------------------- */

/* A request of this session begins. */
void kvpd_curve_begin(struct kvpd_curve *c, uint32_t session);
/* It found this block; those of its chain tip first. */
void kvpd_curve_used(struct kvpd_curve *c, struct kvp_key key, uint32_t session);
/* It brought this block, or one that was there by then; root first. */
void kvpd_curve_put(struct kvpd_curve *c, struct kvp_key key, uint32_t session);

/* Asks for points with this number or a later one; numbers grow. */
void kvpd_curve_want(struct kvpd_curve *c, uint64_t number);
/* The newest points, until the next call. */
const struct kvpd_curve_points *kvpd_curve_read(struct kvpd_curve *c);
uint64_t kvpd_curve_lost(const struct kvpd_curve *c);
/* Hit ratio of an LRU cache of so many blocks, as the points have it. Pure. */
double kvpd_curve_ratio(const struct kvpd_curve_points *p, uint64_t blocks);

#endif
