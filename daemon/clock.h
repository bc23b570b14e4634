/* SPDX-License-Identifier: Apache-2.0 */
/* The one clock that deadlines and ages are measured by. */
#ifndef KVPD_CLOCK_H
#define KVPD_CLOCK_H

#include <stdint.h>
#include <time.h>

#define KVPD_MS UINT64_C(1000000) /* nanoseconds */

/* CLOCK_MONOTONIC in nanoseconds. Any thread. */
static inline uint64_t kvpd_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

/* What the calling thread has had of a processor. */
static inline uint64_t kvpd_thread_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

#endif
