/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The advisor: a thread of low priority for what the ledger wants to know and need not wait for. It
 * works out what the policies learn (lesson.h), whenever one asks; and if the configuration says so, it
 * keeps a graph of each tenant's blocks and ranks it now and then (advice.h, policy/kvp_graph.h). Each of
 * these says by itself what passes between it and the ledger, without a lock; what they have in common
 * is here.
 */
#ifndef KVPD_ADVISOR_H
#define KVPD_ADVISOR_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"

struct kvpd_advisor;

/* Embedded in whatever the thread serves, which sets the functions; both are the thread's to call. */
struct kvpd_advised {
	void (*turn)(struct kvpd_advised *a, struct kvpd_advisor *v);
	void (*free)(struct kvpd_advised *a);
	struct kvpd_advised *next; /* the advisor's own */
	_Atomic(bool) left;
};

struct kvpd_advisor {
	struct kvpd_advisor_config config;
	/* those that the thread does not know yet, the newest first; any thread pushes */
	_Atomic(struct kvpd_advised *) joined;
	struct kvpd_advised *all; /* the thread's own */
	uint32_t *chain;          /* room to follow one, the thread's own */
	pthread_t thread;
	bool running;
	sem_t woken;
	_Atomic(bool) stop;
};

/* -ENOMEM. */
int kvpd_advisor_init(struct kvpd_advisor *v, const struct kvpd_advisor_config *config);
/* Starts the thread. Negative errno of pthread_create(). */
int kvpd_advisor_start(struct kvpd_advisor *v);
/* Joins the thread; harmless if there is none. */
void kvpd_advisor_stop(struct kvpd_advisor *v);
/* After the stop, when the ledger uses nothing of it any more; frees all. */
void kvpd_advisor_fini(struct kvpd_advisor *v);

/* From now on the thread serves this one, until kvpd_advisor_leave(); then it frees it. Any thread. */
void kvpd_advisor_join(struct kvpd_advisor *v, struct kvpd_advised *advised);
void kvpd_advisor_leave(struct kvpd_advisor *v, struct kvpd_advised *advised);
/* There is something to do. Any thread; waits for nothing. */
void kvpd_advisor_wake(struct kvpd_advisor *v);
/* What the thread does whenever it is woken, or its nap is over; tests that start none call it. */
void kvpd_advisor_turn(struct kvpd_advisor *v);

#endif
