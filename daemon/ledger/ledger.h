/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger: all that the data plane knows, owned by one thread, and how that begins and ends.
 *
 * No lock: every function of this folder is called on the ledger thread (or, before it runs and
 * after it was joined, by the owner of the ledger), unless its comment says otherwise.
 */
#ifndef KVPD_LEDGER_H
#define KVPD_LEDGER_H

#include "daemon/dataplane.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/worker.h"

struct kvpd_call;
struct kvpd_session;
struct kvpd_tenant;

struct kvpd_ledger {
	/* of the configuration, copied */
	uint64_t memory;
	uint64_t extent_bytes;
	uint32_t populate_threads;
	enum kvpd_tristate hugepages;
	bool hugetlb; /* segments are made of 2 MiB pages */
	enum kvpd_tristate mlock;
	int numa_node;
	char *policy;
	uint32_t claim_ttl_ms;
	uint32_t max_sessions;

	uint64_t epoch;
	uid_t owner;
	int (*post)(void *ctx, const struct kvpd_event *event);
	void *ctx;

	struct kvpd_tenant *tenant[KVPD_MAX_TENANTS + 1]; /* by id; [0] stays empty */
	uint32_t last_tenant;                             /* highest id in use so far */
	uint64_t shares;                                  /* of all tenants */
	struct kvpd_session *session[KVPD_MAX_SESSIONS];
	uint32_t n_sessions;
	uint32_t last_session;
	uint32_t n_untold;       /* sessions, see kvpd_sessions_tick() */
	struct kvpd_list active; /* sessions whose rings are looked at in every round */
	uint64_t started_ns;
	uint64_t rounds;
	uint64_t tick_ns; /* of the last tick */
	/* The machine is short of memory: nothing grows until then. Read by the pool thread. */
	_Atomic(uint64_t) pressed_until_ns;

	int epoll_fd;
	int kick_fd; /* calls and finished jobs */
	pthread_t thread;
	bool running;
	_Atomic(bool) attention; /* one of the three below has changed */
	pthread_mutex_t lock;    /* of these three */
	pthread_cond_t cond;     /* a call is done */
	struct kvpd_call *call;
	struct kvpd_job *finished; /* newest first */
	bool stop;

	struct kvpd_worker pool;
	struct kvpd_worker mover;
};

#endif
