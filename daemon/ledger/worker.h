/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Work for other threads. The ledger hands a job to a worker and goes on; what the job has done is
 * dealt with on the ledger thread again. A worker's threads begin the jobs of one tenant in order,
 * and take the tenants in turn: whose jobs are many waits for his own.
 */
#ifndef KVPD_WORKER_H
#define KVPD_WORKER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/config.h"

struct kvpd_ledger;

#define KVPD_WORKER_THREADS 4u
#define KVPD_NOBODY         (KVPD_MAX_TENANTS + 1) /* whose jobs have their turn like a tenant's */

/* run() on the worker's thread, then done() on the ledger's. done() frees the job. */
struct kvpd_job {
	struct kvpd_job *next;
	uint32_t tenant; /* id, or KVPD_NOBODY */
	void (*run)(struct kvpd_job *job);
	void (*done)(struct kvpd_ledger *ledger, struct kvpd_job *job);
};

struct kvpd_worker {
	struct kvpd_ledger *ledger;
	pthread_t thread[KVPD_WORKER_THREADS];
	uint32_t n_threads;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	struct kvpd_queue {
		struct kvpd_job *head, **tail;
		uint32_t next;    /* tenant with jobs, in a ring */
	} queue[KVPD_NOBODY + 1]; /* by tenant */
	uint32_t last;            /* tenant whose turn was last; 0: there are no jobs */
	uint32_t busy;            /* threads that run a job */
	pthread_cond_t idle;      /* one has run its job */
	bool stop;
};

void kvpd_worker_init(struct kvpd_worker *w, struct kvpd_ledger *ledger);
/* After kvpd_worker_stop(). */
void kvpd_worker_fini(struct kvpd_worker *w);
/* One more thread, at most KVPD_WORKER_THREADS. Negative errno of pthread_create(). */
int kvpd_worker_start(struct kvpd_worker *w, const char *name);
/* Joins the threads. Jobs that none of them had begun are finished without having run. */
void kvpd_worker_stop(struct kvpd_worker *w);
/*
 * The same when all jobs have run. False: that takes longer than this; what none had begun is finished without having
 * run, and threads that are still at a job are left alone: worker and ledger must stay as they are for ever.
 */
bool kvpd_worker_stop_within(struct kvpd_worker *w, uint64_t ns);
/* Any thread: is there a job that none of the threads has begun? */
bool kvpd_worker_waited_for(struct kvpd_worker *w);
/* Without a thread (before the start, after the stop) the job runs in place. */
void kvpd_worker_submit(struct kvpd_worker *w, struct kvpd_job *job);

#endif
