/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that do jobs, begun in order. */
#include "daemon/ledger/worker.h"

#include <pthread.h>

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"

static void *worker_main(void *arg)
{
	struct kvpd_worker *w = arg;

	pthread_mutex_lock(&w->lock);
	while (!w->stop) {
		struct kvpd_job *job = w->head;

		if (!job) {
			pthread_cond_wait(&w->cond, &w->lock);
			continue;
		}
		w->head = job->next;
		if (!w->head)
			w->tail = &w->head;
		pthread_mutex_unlock(&w->lock);
		job->run(job);
		kvpd_job_finished(w->ledger, job);
		pthread_mutex_lock(&w->lock);
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
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->cond);
	pthread_mutex_unlock(&w->lock);
	while (w->n_threads)
		pthread_join(w->thread[--w->n_threads], NULL);
	while (w->head) {
		struct kvpd_job *job = w->head;

		w->head = job->next;
		kvpd_job_finished(w->ledger, job);
	}
	w->tail = &w->head;
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
	job->next = NULL;
	*w->tail = job;
	w->tail = &job->next;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
}

void kvpd_worker_init(struct kvpd_worker *w, struct kvpd_ledger *l)
{
	w->ledger = l;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->cond, NULL);
	w->tail = &w->head;
}

void kvpd_worker_fini(struct kvpd_worker *w)
{
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->cond);
}
