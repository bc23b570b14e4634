/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The advisor: a thread of low priority that keeps a graph of each tenant's blocks and ranks it now
 * and then (policy/kvp_graph.h). What the ledger tells it and reads of it is in advice.h; the ledger
 * waits for nothing here. Off unless the configuration asks for it: then there is neither a thread
 * nor memory for it.
 */
#ifndef KVPD_ADVISOR_H
#define KVPD_ADVISOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"

struct kvpd_advice;

struct kvpd_advisor {
	struct kvpd_advisor_config config;
	/* those that the thread does not know yet, the newest first; any thread pushes */
	_Atomic(struct kvpd_advice *) joined;
	struct kvpd_advice *all; /* the thread's own */
	uint32_t *chain;         /* room to follow one, the thread's own */
	pthread_t thread;
	bool running;
	pthread_mutex_t lock; /* of `stop` */
	pthread_cond_t cond;
	bool stop;
};

/* -ENOMEM. */
int kvpd_advisor_init(struct kvpd_advisor *v, const struct kvpd_advisor_config *config);
/* Starts the thread, if the configuration asks for one. Negative errno of pthread_create(). */
int kvpd_advisor_start(struct kvpd_advisor *v);
/* Joins the thread; harmless if there is none. */
void kvpd_advisor_stop(struct kvpd_advisor *v);
/* After the stop, when the ledger uses no advice any more; frees it all. */
void kvpd_advisor_fini(struct kvpd_advisor *v);

/*
 * From now on the thread serves this tenant, until kvpd_advice_leave(); then it frees it. Any
 * thread.
 */
void kvpd_advisor_join(struct kvpd_advisor *v, struct kvpd_advice *advice);
/* What the thread does between two naps; tests that start none call it themselves. */
void kvpd_advisor_turn(struct kvpd_advisor *v);

#endif
