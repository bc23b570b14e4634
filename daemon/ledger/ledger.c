/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger thread: rounds over the active sessions, calls of the control thread, sleeping. */
#include "daemon/ledger/ledger.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>

/* How long an active session may be silent before its client has to wake the ledger again. */
#define SPIN_NS (20 * UINT64_C(1000))
#define TICK_MS 1000u
/* While a RESERVE waits or lease holders are watched. */
#define HURRY_MS 5
#define EVENTS   64

/* ---- workers -------------------------------------------------------------------------------- */

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

static void job_finished(struct kvpd_ledger *l, struct kvpd_job *job)
{
	pthread_mutex_lock(&l->lock);
	job->next = l->finished;
	l->finished = job;
	pthread_mutex_unlock(&l->lock);
	kick(l);
}

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
		job_finished(w->ledger, job);
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int worker_start(struct kvpd_worker *w, const char *name)
{
	pthread_t *thread = &w->thread[w->n_threads];
	int r = pthread_create(thread, NULL, worker_main, w);

	if (r)
		return -r;
	w->n_threads++;
	pthread_setname_np(*thread, name);
	return 0;
}

static void worker_stop(struct kvpd_worker *w)
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
		job_finished(w->ledger, job);
	}
	w->tail = &w->head;
}

void kvpd_worker_submit(struct kvpd_worker *w, struct kvpd_job *job)
{
	/* Before the threads are started and after they were joined: in place. */
	if (!w->n_threads) {
		job->run(job);
		job_finished(w->ledger, job);
		return;
	}
	pthread_mutex_lock(&w->lock);
	job->next = NULL;
	*w->tail = job;
	w->tail = &job->next;
	pthread_cond_signal(&w->cond);
	pthread_mutex_unlock(&w->lock);
}

static void worker_init(struct kvpd_worker *w, struct kvpd_ledger *l)
{
	w->ledger = l;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->cond, NULL);
	w->tail = &w->head;
}

static void worker_fini(struct kvpd_worker *w)
{
	pthread_mutex_destroy(&w->lock);
	pthread_cond_destroy(&w->cond);
}

static uint32_t finish_jobs(struct kvpd_ledger *l)
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

/* ---- sessions ------------------------------------------------------------------------------- */

struct kvpd_session *kvpd_session_find(struct kvpd_ledger *l, uint32_t id)
{
	for (uint32_t i = 0; i < KVPD_MAX_SESSIONS; i++)
		if (l->session[i] && l->session[i]->id == id)
			return l->session[i];
	return NULL;
}

void kvpd_session_activate(struct kvpd_session *s)
{
	if (s->expelled || !kvpd_list_empty(&s->in_active))
		return;
	kvp_sq_set_need_wake(s->page, 0);
	s->last_ns = kvpd_now_ns();
	kvpd_list_append(&s->tenant->ledger->active, &s->in_active);
}

void kvpd_session_expel(struct kvpd_session *s, int error, const char *reason)
{
	struct kvpd_ledger *l = s->tenant->ledger;
	struct kvpd_event ev = {
		.type = KVPD_EV_EXPEL,
		.tenant = s->tenant->id,
		.session = s->id,
		.fd = -1,
		.error = error,
	};

	if (s->expelled)
		return;
	s->expelled = true;
	kvpd_list_remove(&s->in_active);
	snprintf(ev.reason, sizeof(ev.reason), "%s", reason);
	l->post(l->ctx, &ev);
}

/* The session goes to sleep unless an entry came meanwhile; see kvp_sq_must_wake(). */
static void deactivate(struct kvpd_session *s)
{
	kvp_sq_set_need_wake(s->page, 1);
	if (!s->stalled && kvp_load_seq(&s->page->sq_tail) != s->sq_head) {
		kvp_sq_set_need_wake(s->page, 0);
		return;
	}
	kvpd_list_remove(&s->in_active);
}

static uint32_t serve_active(struct kvpd_ledger *l, uint64_t now)
{
	struct kvpd_list *it, *tmp;
	uint32_t work = 0;

	kvpd_each(it, tmp, &l->active) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_active);
		uint32_t n = kvpd_session_serve(s, now);

		work += n;
		if (s->expelled)
			continue;
		if (n)
			s->last_ns = now;
		else if (s->stalled || now - s->last_ns > SPIN_NS)
			deactivate(s);
	}
	return work;
}

/* ---- the thread ----------------------------------------------------------------------------- */

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
	if (tick)
		l->tick_ns = now;
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
	*work += finish_jobs(l);
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

static void *ledger_main(void *arg)
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

/* ---- life ----------------------------------------------------------------------------------- */

static int open_fds(struct kvpd_ledger *l)
{
	struct epoll_event ev = { .events = EPOLLIN };

	l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll_fd < 0)
		return -errno;
	l->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->kick_fd < 0)
		return -errno;
	return epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, l->kick_fd, &ev) < 0 ? -errno : 0;
}

static int copy_config(struct kvpd_ledger *l, const struct kvpd_config *c)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);

	l->memory = c->memory;
	l->extent_bytes = c->extent;
	l->populate_threads = c->populate_threads;
	if (!l->populate_threads)
		l->populate_threads = cores < 1 ? 1 : cores > 8 ? 8 : (uint32_t)cores;
	l->hugepages = c->hugepages;
	l->mlock = c->mlock;
	l->numa_node = c->numa_node;
	l->claim_ttl_ms = c->claim_ttl_ms;
	l->max_sessions = c->max_sessions && c->max_sessions < KVPD_MAX_SESSIONS
				  ? c->max_sessions
				  : KVPD_MAX_SESSIONS;
	l->policy = strdup(c->policy ? c->policy : KVP_EVICT_DEFAULT);
	return l->policy ? 0 : -ENOMEM;
}

int kvpd_ledger_new(const struct kvpd_ledger_params *params, struct kvpd_ledger **ret_ledger)
{
	struct kvpd_ledger *l = calloc(1, sizeof(*l));
	int r;

	if (!l) {
		kvpd_err("no memory for the ledger");
		return -ENOMEM;
	}
	l->epoch = params->epoch;
	l->owner = params->owner;
	l->post = params->post;
	l->ctx = params->ctx;
	l->epoll_fd = l->kick_fd = -1;
	l->started_ns = l->tick_ns = kvpd_now_ns();
	kvpd_list_init(&l->active);
	pthread_mutex_init(&l->lock, NULL);
	pthread_cond_init(&l->cond, NULL);
	worker_init(&l->pool, l);
	worker_init(&l->mover, l);

	r = copy_config(l, params->config);
	if (r == 0)
		r = open_fds(l);
	if (r < 0)
		kvpd_err("ledger: %s", strerror(-r));
	else
		r = kvpd_pool_check(l);
	if (r < 0) {
		kvpd_ledger_free(l);
		return r;
	}
	*ret_ledger = l;
	return 0;
}

int kvpd_ledger_start(struct kvpd_ledger *l)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int r = worker_start(&l->pool, "kvpool-pool");

	/* A copy uses the memory's bandwidth more than the core: one mover for four cores. */
	for (long i = 0; r == 0 && i < (cores < 8 ? 1 : cores / 4) && i < (long)KVPD_WORKER_THREADS;
		i++)
		r = worker_start(&l->mover, "kvpool-mover");
	if (r == 0) {
		r = -pthread_create(&l->thread, NULL, ledger_main, l);
		if (r == 0) {
			l->running = true;
			pthread_setname_np(l->thread, "kvpool-ledger");
		}
	}
	if (r < 0)
		kvpd_err("cannot start a thread: %s; raise the limit of tasks", strerror(-r));
	return r;
}

struct kvpd_ledger *kvpd_ledger_free(struct kvpd_ledger *l)
{
	if (!l)
		return NULL;
	if (l->running) {
		pthread_mutex_lock(&l->lock);
		l->stop = true;
		pthread_mutex_unlock(&l->lock);
		kick(l);
		pthread_join(l->thread, NULL);
		l->running = false;
	}
	worker_stop(&l->pool);
	worker_stop(&l->mover);
	while (finish_jobs(l))
		;
	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++)
		if (l->tenant[i])
			kvpd_tenant_free(l->tenant[i]);
	worker_fini(&l->pool);
	worker_fini(&l->mover);
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->cond);
	if (l->kick_fd >= 0)
		close(l->kick_fd);
	if (l->epoll_fd >= 0)
		close(l->epoll_fd);
	free(l->policy);
	free(l);
	return NULL;
}
