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
#include "daemon/ledger/advisor.h"
#include "daemon/ledger/learnt.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/portion.h"
#include "daemon/ledger/stock.h"
#include "daemon/ledger/worker.h"
#include "daemon/slice.h"
#include "daemon/turns.h"
#include "daemon/urgency.h"

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
	struct kvpd_calibs *calibs; /* constant; see calibs.h */
	char *state_dir;            /* NULL: nothing is kept, see learnt.h */
	uint32_t claim_ttl_ms;
	uint32_t max_sessions;

	struct kvpd_medium medium[KVP_MAX_DEVICES]; /* by the number of the device */
	uint32_t n_media;

	uint64_t epoch;
	uid_t owner;
	int (*post)(void *ctx, const struct kvpd_event *event);
	void *ctx;

	struct kvpd_tenant *tenant[KVPD_NOBODY + 1]; /* by id; the first and the last stay empty */
	uint32_t last_tenant;                        /* highest id in use so far */
	uint64_t tenants;                            /* made so far */
	uint64_t shares;                             /* of all tenants */
	struct kvpd_stock stock;                     /* of what is promised to none */
	struct kvpd_session *session[KVPD_MAX_SESSIONS]; /* by id % KVPD_MAX_SESSIONS */
	uint32_t n_sessions;
	uint32_t last_session; /* id */
	uint32_t n_untold;     /* sessions, see kvpd_sessions_tell() */
	uint64_t told_ns;      /* when that was last tried */
	uint64_t started_ns;
	/* whose turn it is */
	struct kvpd_turns row;     /* tenants that have something to do */
	struct kvpd_list spinning; /* sessions that were served a moment ago, the oldest first */
	struct kvpd_list marks;    /* sessions whose commits wait for a device: see marks.h */
	uint64_t marks_ns;         /* when one last began to */
	uint64_t marks_looked_ns;
	struct kvpd_tenant *payer; /* whose time the call or job under way takes */
	uint64_t now_ns;           /* as of the last turn */
	_Atomic(uint64_t) rounds;  /* of the thread, since the start: few while nothing is asked */
	struct kvpd_portions portions;
	uint64_t looked_ns; /* when tenants were last asked what time makes due */
	uint64_t polled_ns; /* when wake-ups were last asked for */
	/* see rest() */
	uint64_t rested_ns; /* when the thread last slept or looked whether it should */
	uint64_t rest_ns;   /* of a rest, still to be slept; 0: it does not rest */
	uint32_t rest_cuts; /* times that it was woken from it */
	struct kvpd_crowd crowd;
	enum kvpd_tristate realtime; /* wanted; NEVER also where it was refused */
	struct kvpd_urgency urgency; /* of the thread, while it is wanted */
	int waits_fd;                /* of the thread, see kvpd_waited_ns() */
	/* The machine is short of memory: nothing grows until then. Read by the pool thread. */
	_Atomic(uint64_t) pressed_until_ns;

	int epoll_fd;
	int kick_fd;    /* calls and finished jobs */
	int watches_fd; /* of memory that was let go, see kvp_seg_watches(); the dropper's */
	pthread_t thread;
	bool running;
	_Atomic(bool) attention; /* one of the three below has changed */
	pthread_mutex_t lock;    /* of these three */
	pthread_cond_t cond;     /* a call is done */
	struct kvpd_call *call;
	struct kvpd_job *finished; /* oldest first */
	struct kvpd_job **finished_tail;
	bool stop;

	struct kvpd_worker pool;
	struct kvpd_worker dropper;
	struct kvpd_worker mover;
	struct kvpd_worker planner; /* of recomputation, see remat.h */
	struct kvpd_worker store;   /* of what was learnt, see learnt.h */
	uint64_t store_ns;          /* it may take so long to its end */
	struct kvpd_learnt_question question;
	struct kvpd_advisor advisor;
	uint64_t curves; /* number of the last question for tenants' curves */
};

#endif
