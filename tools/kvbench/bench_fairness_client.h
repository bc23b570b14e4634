/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The well-behaved client of kvbench fairness: requests that are due at fixed times, so that a
 * stall counts for all that it delays.
 */
#ifndef KVBENCH_BENCH_FAIRNESS_CLIENT_H
#define KVBENCH_BENCH_FAIRNESS_CLIENT_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#define FAIR_MAX_SECONDS 30u
#define FAIR_SAMPLES     (FAIR_MAX_SECONDS * 1000u)
#define FAIR_TIMEOUT_MS  5000u /* of one request; one that fails counts as having taken that */
#define FAIR_PUT_NS      UINT64_C(2000000)
#define FAIR_ATTACH_NS   UINT64_C(10000000)
#define FAIR_ANSWER_NS   UINT64_C(5000000)

/* Times of one kind of request. */
struct fair_track {
	uint32_t n;
	uint32_t failed; /* of the n */
	uint32_t
		undone; /* of the n: when they were due, one before them was under way to the end */
	int error;      /* of the last that failed */
	double us[FAIR_SAMPLES];
};

/*
 * Does `request` every period_ns until until_ns (CLOCK_MONOTONIC) and adds the times to `track`: a
 * request that begins late because the one before it took so long counts from when it was due. What
 * `after` (or NULL) takes is not counted, nor what the calling thread itself was ready to run and had
 * no processor: nobody but the kernel can shorten that. The next request is due as much later.
 */
void fair_pace(struct fair_track *track, uint64_t until_ns, uint64_t period_ns,
	int (*request)(void *ctx), void (*after)(void *ctx), void *ctx);

/* Nanoseconds that a thread has waited for a processor, by its schedstat file; 0 if not known. */
uint64_t fair_cpu_wait_ns(const char *schedstat);
/* Milliseconds that the threads of a process have. */
double fair_process_wait_ms(pid_t pid);

#define FAIR_IDLE   0u
#define FAIR_LOADED 1u

/* Shared between the process that measures and the one that is the client. */
struct fair_client {
	_Atomic uint32_t attached;
	_Atomic int error;
	_Atomic uint64_t until_ns[2]; /* set: do that phase */
	_Atomic uint32_t done[2];     /* it is over */
	uint64_t cpu_wait_ns[2];      /* that the thread that puts waited for a processor */
	struct fair_track put[2];
	struct fair_track attach[2];
};

/*
 * Attaches, fills its cache, and serves both phases, one after another: puts of a few blocks, from
 * the call until they are visible, and in a second thread attaching and closing. 0 or negative
 * errno.
 */
int fair_client_run(struct fair_client *c, const char *socket);

#endif
