/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is on a thread that serves many: who has had the least of its time goes next.
 *
 * Each party carries the time that was spent on it so far. Who comes into the row after a pause is
 * set level with the one that has had the least of those already there: it goes next, but a pause
 * saves nothing up, and what it had beyond that before it paused still counts. So a party that asks
 * for little is served at once however much the others ask for, nobody waits while anybody gets
 * more than a part, and the thread never idles while somebody is in the row (start-time fair
 * queueing, Goyal, Vin and Cheng, SIGCOMM 1996, with equal weights).
 *
 * What a party's turn takes is charged after it, so a turn that takes too long is paid by the
 * next ones. The debt is bounded, and none is left when the row has run empty: nobody was hurt.
 *
 * Pure: times are the caller's, in nanoseconds. One thread at a time.
 */
#ifndef KVPD_TURNS_H
#define KVPD_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#define KVPD_DEBT_MAX_NS UINT64_C(20000000) /* beyond the one that has had the least */

/* A party's place; zeroed before its first use. */
struct kvpd_turn {
	uint64_t used_ns;
	uint64_t joined; /* of equals the one that joined last goes next */
	uint32_t at;     /* place in the row, from 1; 0: not in it */
};

struct kvpd_turns {
	struct kvpd_turn **row; /* a heap; row[1] goes next */
	uint32_t n, room;
	uint64_t floor_ns; /* what the one that goes next has had */
	uint64_t joins;
};

/* Room for n parties in all: -ENOMEM. May be called again for more; zeroed before the first time. */
int kvpd_turns_reserve(struct kvpd_turns *turns, uint32_t n);
void kvpd_turns_fini(struct kvpd_turns *turns);

/* It wants a turn; harmless if it is in the row already. There must be room. */
void kvpd_turns_join(struct kvpd_turns *turns, struct kvpd_turn *turn);
/* It wants none; likewise. */
void kvpd_turns_leave(struct kvpd_turns *turns, struct kvpd_turn *turn);
/* Whose turn it is, who stays in the row; NULL: nobody's. */
struct kvpd_turn *kvpd_turns_next(const struct kvpd_turns *turns);
/* So much time went for it, in the row or not. */
void kvpd_turns_charge(struct kvpd_turns *turns, struct kvpd_turn *turn, uint64_t ns);

#endif
