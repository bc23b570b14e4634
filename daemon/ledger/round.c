/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger thread: rounds over the active sessions, calls of the control thread, sleeping. */
#include "daemon/ledger/round.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"

/* How long an active session may be silent before its client has to wake the ledger again. */
#define SPIN_NS (20 * UINT64_C(1000))
#define TICK_MS 1000u
/* While a RESERVE waits or lease holders are watched. */
#define HURRY_MS 5
#define EVENTS   64

struct kvpd_call {
	int (*fn)(struct kvpd_ledger *ledger, void *arg);
	void *arg;
	int result;
	bool done;
};

/* Something was put where the ledger thread looks when it sees `attention`. */
static void kick(struct kvpd_ledger *l)
{
	uint64_t one = 1;
	ssize_t r;

	atomic_store(&l->attention, true);
	do
		r = write(l->kick_fd, &one, sizeof(one));
	while (r < 0 && errno == EINTR);
}

/* ---- finished jobs -------------------------------------------------------------------------- */

void kvpd_job_finished(struct kvpd_ledger *l, struct kvpd_job *job)
{
	pthread_mutex_lock(&l->lock);
	job->next = l->finished;
	l->finished = job;
	pthread_mutex_unlock(&l->lock);
	kick(l);
}

uint32_t kvpd_ledger_finish_jobs(struct kvpd_ledger *l)
{
	struct kvpd_job *newest, *oldest = NULL;
	uint32_t n = 0;

	pthread_mutex_lock(&l->lock);
	newest = l->finished;
	l->finished = NULL;
	pthread_mutex_unlock(&l->lock);
	while (newest) {
		struct kvpd_job *next = newest->next;

		newest->next = oldest;
		oldest = newest;
		newest = next;
	}
	while (oldest) {
		struct kvpd_job *next = oldest->next;

		oldest->done(l, oldest);
		oldest = next;
		n++;
	}
	return n;
}

/* ---- rounds --------------------------------------------------------------------------------- */

static uint32_t serve_active(struct kvpd_ledger *l, uint64_t now)
{
	struct kvpd_list *it, *tmp;
	uint32_t work = 0;

	kvpd_each(it, tmp, &l->active) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_active);
		uint32_t n = kvpd_ring_serve(s, now);

		work += n;
		if (s->expelled)
			continue;
		if (n)
			s->last_ns = now;
		else if (s->stalled || now - s->last_ns > SPIN_NS)
			kvpd_session_deactivate(s);
	}
	return work;
}

static bool take_call(struct kvpd_ledger *l)
{
	struct kvpd_call *call;

	pthread_mutex_lock(&l->lock);
	call = l->call;
	pthread_mutex_unlock(&l->lock);
	if (!call)
		return false;
	call->result = call->fn(l, call->arg);
	pthread_mutex_lock(&l->lock);
	l->call = NULL;
	call->done = true;
	pthread_cond_signal(&l->cond);
	pthread_mutex_unlock(&l->lock);
	return true;
}

static void poll_events(struct kvpd_ledger *l, int timeout_ms)
{
	struct epoll_event ev[EVENTS];
	uint64_t n_kicks;
	int n = epoll_wait(l->epoll_fd, ev, EVENTS, timeout_ms);

	for (int i = 0; i < n; i++) {
		uint32_t place = ev[i].data.u32;
		struct kvpd_session *s;

		if (!place) {
			(void)!read(l->kick_fd, &n_kicks, sizeof(n_kicks));
			continue;
		}
		s = l->session[place - 1];
		if (s)
			kvpd_session_activate(s);
	}
}

/* Steps every tenant that has something to do; says how soon the ledger has to look again. */
static int step_tenants(struct kvpd_ledger *l, uint64_t now)
{
	bool tick = now - l->tick_ns >= TICK_MS * KVPD_MS;
	int timeout = -1;

	for (uint32_t i = 1; i <= l->last_tenant; i++) {
		struct kvpd_tenant *t = l->tenant[i];

		if (!t)
			continue;
		if (kvpd_tenant_due(t, now))
			kvpd_tenant_step(t, now);
		if (tick && kvpd_tenant_busy(t))
			kvpd_tenant_tick(t, now);
		if (t->dirty)
			timeout = 0;
		else if (!kvpd_list_empty(&t->wanting) && timeout)
			timeout = HURRY_MS;
		else if (timeout < 0 && kvpd_tenant_busy(t))
			timeout = TICK_MS;
		if (t->abandoned && !t->n_sessions && !t->n_jobs)
			kvpd_tenant_free(t);
	}
	if (tick) {
		kvpd_sessions_tick(l);
		l->tick_ns = now;
	}
	if (timeout < 0 && kvpd_sessions_busy(l))
		timeout = TICK_MS;
	return timeout;
}

/* Calls and finished jobs; false when it is time to stop. */
static bool attend(struct kvpd_ledger *l, uint32_t *work)
{
	bool stop;

	if (!atomic_load_explicit(&l->attention, memory_order_relaxed))
		return true;
	atomic_store(&l->attention, false);
	*work += take_call(l);
	*work += kvpd_ledger_finish_jobs(l);
	pthread_mutex_lock(&l->lock);
	stop = l->stop;
	pthread_mutex_unlock(&l->lock);
	return !stop;
}

bool kvpd_ledger_round(struct kvpd_ledger *l, uint32_t *ret_work, int *ret_timeout_ms)
{
	uint64_t now = kvpd_now_ns();
	uint32_t work = serve_active(l, now);

	if (!attend(l, &work))
		return false;
	*ret_timeout_ms = step_tenants(l, now);
	*ret_work = work;
	l->rounds++;
	return true;
}

void *kvpd_ledger_main(void *arg)
{
	struct kvpd_ledger *l = arg;
	uint32_t quiet = 0, work;
	int timeout;

	while (kvpd_ledger_round(l, &work, &timeout)) {
		if (work) {
			quiet = 0;
			poll_events(l, 0);
		} else if (!kvpd_list_empty(&l->active)) {
			/* Wake-ups of other sessions come by epoll; look there now and then. */
			if (++quiet % 16 == 0)
				poll_events(l, 0);
			kvp_cpu_relax();
		} else {
			quiet = 0;
			poll_events(l, timeout);
		}
	}
	return NULL;
}

/* ---- from other threads --------------------------------------------------------------------- */

int kvpd_ledger_ask(struct kvpd_ledger *l, int (*fn)(struct kvpd_ledger *, void *), void *arg)
{
	struct kvpd_call call = { .fn = fn, .arg = arg };

	if (!l->running)
		return fn(l, arg);
	pthread_mutex_lock(&l->lock);
	l->call = &call;
	pthread_mutex_unlock(&l->lock);
	kick(l);
	pthread_mutex_lock(&l->lock);
	while (!call.done)
		pthread_cond_wait(&l->cond, &l->lock);
	pthread_mutex_unlock(&l->lock);
	return call.result;
}

void kvpd_ledger_halt(struct kvpd_ledger *l)
{
	pthread_mutex_lock(&l->lock);
	l->stop = true;
	pthread_mutex_unlock(&l->lock);
	kick(l);
}
