/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that do jobs, tenant by tenant. */
#include "daemon/ledger/worker.h"

#include <pthread.h>
#include <time.h>

#include "daemon/clock.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/slice.h"

/* ---- queues, in a ring of those tenants that have jobs; under the lock ---------------------- */

static void enqueue(struct kvpd_worker *w, struct kvpd_job *job)
{
	uint32_t tenant = job->tenant;
	struct kvpd_queue *q = &w->queue[tenant];

	job->next = NULL;
	if (q->head) {
		*q->tail = job;
	} else {
		q->head = job;
		/* Behind the last one: it goes when all others had a turn. */
		q->next = w->last ? w->queue[w->last].next : tenant;
		if (w->last)
			w->queue[w->last].next = tenant;
		w->last = tenant;
	}
	q->tail = &job->next;
}

static struct kvpd_job *dequeue(struct kvpd_worker *w)
{
	uint32_t tenant;
	struct kvpd_queue *q;
	struct kvpd_job *job;

	if (!w->last)
		return NULL;
	tenant = w->queue[w->last].next;
	q = &w->queue[tenant];
	job = q->head;
	q->head = job->next;
	if (q->head)
		w->last = tenant;
	else if (w->last == tenant)
		w->last = 0;
	else
		w->queue[w->last].next = q->next;
	return job;
}

/* ---- the threads ---------------------------------------------------------------------------- */

static void *worker_main(void *arg)
{
	struct kvpd_worker *w = arg;

	/* Everybody waits for the ledger, which works for microseconds; a copy takes milliseconds. */
	kvpd_step_back();
	pthread_mutex_lock(&w->lock);
	while (!w->stop) {
		struct kvpd_job *job = dequeue(w);

		if (!job) {
			pthread_cond_wait(&w->cond, &w->lock);
			continue;
		}
		w->busy++;
		pthread_mutex_unlock(&w->lock);
		job->run(job);
		kvpd_job_finished(w->ledger, job);
		pthread_mutex_lock(&w->lock);
		w->busy--;
		pthread_cond_signal(&w->idle);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

int kvpd_worker_start(struct kvpd_worker *w, const char *name)
{
	pthread_t *thread = &w->thread[w->n_threads];
	int r = pthread_create(thread, NULL, worker_main, w);

	if (r)
		return -r;
	w->n_threads++;
	pthread_setname_np(*thread, name);
	return 0;
}

void kvpd_worker_stop(struct kvpd_worker *w)
{
	struct kvpd_job *job;

	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->lock);
	while (w->n_threads)
		pthread_join(w->thread[--w->n_threads], NULL);
	while ((job = dequeue(w)))
		kvpd_job_finished(w->ledger, job);
}

/* Under the lock: until all jobs have run, or until then. */
static bool wait_idle(struct kvpd_worker *w, uint64_t until_ns)
{
	const struct timespec until = { .tv_sec = (time_t)(until_ns / 1000000000),
		.tv_nsec = (long)(until_ns % 1000000000) };

	while (w->busy || w->last)
		if (pthread_cond_timedwait(&w->idle, &w->lock, &until))
			return !w->busy && !w->last;
	return true;
}

bool kvpd_worker_stop_within(struct kvpd_worker *w, uint64_t ns)
{
	struct kvpd_job *job;
	bool idle;

	pthread_mutex_lock(&w->lock);
	idle = wait_idle(w, kvpd_now_ns() + ns);
	w->stop = true;
	while (!idle && (job = dequeue(w)))
		kvpd_job_finished(w->ledger, job);
	while (!idle && w->n_threads)
		pthread_detach(w->thread[--w->n_threads]);
	pthread_mutex_unlock(&w->lock);
	if (idle)
		kvpd_worker_stop(w);
	return idle;
}

void kvpd_worker_submit(struct kvpd_worker *w, struct kvpd_job *job)
{
	/* Before the threads are started and after they were joined: in place. */
	if (!w->n_threads) {
		job->run(job);
		kvpd_job_finished(w->ledger, job);
		return;
	}
	pthread_mutex_lock(&w->lock);
	enqueue(w, job);
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
}

bool kvpd_worker_waited_for(struct kvpd_worker *w)
{
	bool waits;

	pthread_mutex_lock(&w->lock);
	waits = w->last;
	pthread_mutex_unlock(&w->lock);
	return waits;
}

void kvpd_worker_init(struct kvpd_worker *w, struct kvpd_ledger *l)
{
	pthread_condattr_t by_clock;

	w->ledger = l;
	kvpd_lock_init(&w->lock);
	pthread_cond_init(&w->cond, NULL);
	pthread_condattr_init(&by_clock);
	pthread_condattr_setclock(&by_clock, CLOCK_MONOTONIC);
	pthread_cond_init(&w->idle, &by_clock);
	pthread_condattr_destroy(&by_clock);
}

void kvpd_worker_fini(struct kvpd_worker *w)
{
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->cond);
	pthread_cond_destroy(&w->idle);
}
