/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device as its thread and its owner share it. What stands under `lock` is both's; `own` is the
 * owner's, the rest the thread's.
 */
#ifndef KVPD_DEVICE_STATE_H
#define KVPD_DEVICE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/device/child.h"
#include "daemon/device/device.h"
#include "daemon/device/protocol.h"
#include "daemon/device/queue.h"

#define KVPD_FLIGHTS (KVPD_WAYS * KVPD_DRIVER_FLIGHT)

TAILQ_HEAD(kvpd_works, kvpd_device_work);

#define KVPD_BELIEVED    1u
#define KVPD_DISBELIEVED 2u

/* Numbers, and what the owner has to know of the memory that they name. */
struct kvpd_owned {
	struct {
		uint64_t bytes; /* 0: there is none, or it is being made or dropped */
		uint32_t uses;
		bool writable;
	} at[KVPD_DEVICE_SEGS];
	uint16_t free[KVPD_DEVICE_SEGS]; /* a stack */
	uint32_t n_free;
};

/* Memory as the thread knows it: what a new worker is told. */
struct kvpd_held {
	int fd; /* -1: none, or none is needed */
	bool there;
	bool lost;    /* of a segment: no new worker is told of it */
	bool known;   /* of a segment: the worker has it */
	bool doubted; /* of a segment: its contents wait for a verdict */
	bool writable, pin;
	uint64_t bytes;
};

/* A batch at the worker. */
struct kvpd_flight {
	bool used;
	uint64_t batch;
	uint32_t way;
	uint32_t n;
	bool sums; /* its end may say the sum of its one copy */
	uint64_t bytes;
	uint64_t until_ns; /* then it hangs */
	struct kvpd_queue_piece piece[KVPD_DRIVER_BATCH];
};

struct kvpd_device {
	struct kvpd_device_config config;
	pthread_t thread;
	int event; /* wakes the thread */
	_Atomic(uint32_t) state;
	_Atomic(uint32_t) losses;
	_Atomic(uint32_t) doubts;             /* times that the owner was asked to judge segments */
	_Atomic(bool) lost[KVPD_DEVICE_SEGS]; /* segments */
	_Atomic(bool) doubted[KVPD_DEVICE_SEGS];
	_Atomic(uint32_t) shown_flags; /* KVPD_DRIVER_*, once a worker has greeted */

	pthread_mutex_t lock;
	struct kvpd_copies in_copies;
	struct kvpd_works in_ops;
	struct kvpd_works posted;
	struct kvpd_device_figures shown;
	uint64_t shown_oldest[KVPD_COPY_KINDS];
	uint32_t n_verdicts;               /* that the thread has not seen, */
	uint32_t verdict_of;               /* of these doubts */
	uint8_t verdict[KVPD_DEVICE_SEGS]; /* 0: none; KVPD_BELIEVED, KVPD_DISBELIEVED */
	bool stop;
	bool away; /* detached, or about to be; written by the owner */

	struct {
		struct kvpd_owned seg, host;
	} own;

	struct kvpd_copy_queue queue;
	struct kvpd_works over; /* to be posted */
	struct kvpd_works ops;  /* questions that wait */
	struct kvpd_held seg[KVPD_DEVICE_SEGS], host[KVPD_DEVICE_SEGS];
	struct kvpd_child child;
	bool greeted;       /* HELLO has come */
	bool lose;          /* segments were lost, and nobody was told */
	uint32_t n_doubted; /* segments */
	bool judging;       /* the owner was asked, and the worker has all segments */
	uint32_t ended;     /* workers, while segments were doubted, since the device was up */
	uint64_t judge_until_ns;
	uint32_t driver_flags;
	struct kvpd_p_why why; /* what the last worker said that said anything */
	uint32_t taking;       /* next of segments, then hosts, to tell a new worker */
	uint32_t life;         /* workers started */
	uint32_t fails;        /* since one of them did something */
	uint64_t start_ns, greet_until_ns;
	struct {
		bool open;
		bool usage; /* how much is free there */
		uint32_t tag;
		uint64_t until_ns;
		struct kvpd_device_op *op; /* NULL: a new worker takes over, or `usage` */
	} ask;
	uint64_t usage_ns; /* when to ask how much is free there again */
	uint64_t batch;
	struct kvpd_flight flight[KVPD_FLIGHTS];
	struct kvpd_copies to_sum;
	struct {
		struct kvpd_device_copy *copy; /* NULL: free */
		uint64_t seq, until_ns;
	} sum[KVPD_SUMS];
	struct kvpd_device_figures figures;
	uint64_t window_ns, window[KVPD_WAYS];
	struct kvpd_p packet;
	struct kvpd_p_copy out;
};

/* The thread. */
void *kvpd_device_run(void *device);

#endif
