/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger's life: its configuration, its threads, its end. */
#include "daemon/ledger/ledger.h"

#include <errno.h>
#include <numa.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/dataplane.h"
#include "daemon/ledger/calibs.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/pool.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/stock.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"
#include "daemon/log.h"
#include "daemon/slice.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_seg.h"

static int open_fds(struct kvpd_ledger *l)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.u32 = KVPD_MAX_SESSIONS };

	l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (l->epoll_fd < 0)
		return -errno;
	l->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->kick_fd < 0)
		return -errno;
	l->watches_fd = kvp_seg_watches(); /* without one a lease has to do, see pool.c */
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
	l->epoll_fd = l->kick_fd = l->watches_fd = l->waits_fd = -1;
	l->started_ns = l->now_ns = l->portions.since_ns = kvpd_now_ns();
	l->finished_tail = &l->finished;
	kvpd_list_init(&l->spinning);
	kvpd_list_init(&l->marks);
	kvpd_stock_init(l);
	l->realtime = params->config->realtime;
	l->urgency.percent = params->config->realtime_percent;
	kvpd_lock_init(&l->lock);
	pthread_cond_init(&l->cond, NULL);
	kvpd_worker_init(&l->pool, l);
	kvpd_worker_init(&l->dropper, l);
	kvpd_worker_init(&l->mover, l);
	kvpd_worker_init(&l->planner, l);
	kvpd_worker_init(&l->store, l);
	l->store_ns = KVPD_LEARNT_END_NS;

	r = kvpd_advisor_init(&l->advisor, &params->config->advisor);
	if (r == 0)
		r = copy_config(l, params->config);
	if (r == 0)
		r = kvpd_calibs_new(params->config->calibrations, &l->calibs);
	if (r == 0)
		r = kvpd_media_new(l, params->config);
	if (r == 0)
		r = kvpd_turns_reserve(&l->row, KVPD_MAX_TENANTS);
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
	kvpd_learnt_begin(l, params->config);
	*ret_ledger = l;
	return 0;
}

int kvpd_ledger_start(struct kvpd_ledger *l)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	int r = kvpd_worker_start(&l->pool, "kvpool-pool");

	if (r == 0)
		r = kvpd_worker_start(&l->dropper, "kvpool-dropper");
	if (r == 0)
		r = kvpd_worker_start(&l->planner, "kvpool-remat");
	if (r == 0)
		r = kvpd_worker_start(&l->store, "kvpool-store");

	/* A copy uses the memory's bandwidth more than the core: one mover for four cores. */
	for (long i = 0; r == 0 && i < (cores < 8 ? 1 : cores / 4) && i < (long)KVPD_WORKER_THREADS;
		i++)
		r = kvpd_worker_start(&l->mover, "kvpool-mover");
	if (r == 0)
		r = kvpd_advisor_start(&l->advisor);
	if (r == 0)
		r = kvpd_media_start(l);
	if (r == 0) {
		r = -pthread_create(&l->thread, NULL, kvpd_ledger_main, l);
		if (r == 0) {
			l->running = true;
			pthread_setname_np(l->thread, "kvpool-ledger");
		}
	}
	if (r < 0)
		kvpd_err("cannot start a thread: %s; raise the limit of tasks", strerror(-r));
	return r;
}

/* What the store's thread uses. */
static void free_rest(struct kvpd_ledger *l)
{
	kvpd_worker_fini(&l->store);
	pthread_mutex_destroy(&l->lock);
	pthread_cond_destroy(&l->cond);
	if (l->kick_fd >= 0)
		close(l->kick_fd);
	free(l->state_dir);
	kvpd_calibs_free(l->calibs);
	free(l);
}

struct kvpd_ledger *kvpd_ledger_free(struct kvpd_ledger *l)
{
	bool stored;

	if (!l)
		return NULL;
	if (l->running) {
		kvpd_ledger_halt(l);
		pthread_join(l->thread, NULL);
		l->running = false;
	}
	kvpd_worker_stop(&l->pool);
	kvpd_worker_stop(&l->dropper);
	kvpd_worker_stop(&l->mover);
	kvpd_worker_stop(&l->planner);
	kvpd_advisor_stop(&l->advisor);
	kvpd_media_stop(l);
	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++)
		if (l->tenant[i])
			kvpd_tenant_end_sessions(l->tenant[i]);
	while (kvpd_ledger_finish_jobs(l))
		;
	stored = kvpd_learnt_end(l);
	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++)
		if (l->tenant[i])
			kvpd_tenant_free(l->tenant[i]);
	while (kvpd_ledger_finish_jobs(l))
		;
	kvpd_stock_free_all(l);
	kvpd_worker_fini(&l->pool);
	kvpd_worker_fini(&l->dropper);
	kvpd_worker_fini(&l->mover);
	kvpd_worker_fini(&l->planner);
	kvpd_learnt_question_fini(&l->question);
	kvpd_advisor_fini(&l->advisor);
	kvpd_turns_fini(&l->row);
	if (l->waits_fd >= 0)
		close(l->waits_fd);
	if (l->watches_fd >= 0)
		close(l->watches_fd);
	if (l->epoll_fd >= 0)
		close(l->epoll_fd);
	kvpd_media_free(l);
	free(l->policy);
	/* Else its thread may come back from the disk, and finds all that it uses. */
	if (stored)
		free_rest(l);
	return NULL;
}
