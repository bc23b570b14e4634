/* SPDX-License-Identifier: Apache-2.0 */
/* A slice of one's own, asked of the kernel's scheduler. */
#include "daemon/slice.h"

#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/log.h"

/* struct sched_attr, version 0 (sched_setattr(2)): <linux/sched/types.h> and <sched.h> exclude each other. */
struct attributes {
	uint32_t size;
	uint32_t policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime;
	uint64_t deadline;
	uint64_t period;
};

#define NICE_MIN   (-20)
#define CROWDED_NS (100 * KVPD_MS)
#define LEVELS     5 /* of those that step back */

static bool set(struct attributes a, int sooner)
{
	a.nice -= sooner;
	if (a.nice < NICE_MIN)
		a.nice = NICE_MIN;
	return syscall(SYS_sched_setattr, 0, &a, 0) == 0;
}

void kvpd_slice_ask(uint64_t ns, int sooner)
{
	struct attributes a = { 0 };

	/* What it is, so that nothing else changes. */
	if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) == 0) {
		a.size = sizeof(a);
		a.flags = 0;
		a.runtime = ns;
		if (set(a, sooner))
			return;
		if (sooner && set(a, 0)) {
			kvpd_info("this thread keeps its niceness: raise LimitNICE (`ulimit -e`)");
			return;
		}
	}
	kvpd_info("this thread keeps the kernel's slice: %s", strerror(errno));
}

int kvpd_realtime_ask(void)
{
	static const struct sched_param lowest = { .sched_priority = KVPD_REALTIME };

	return sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &lowest) < 0 ? -errno : 0;
}

int kvpd_realtime_leave(void)
{
	static const struct sched_param none;

	/* Only the privileged may take that flag back; the kernel has kept niceness and slice. */
	return sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &none) < 0 ? -errno : 0;
}

void kvpd_lock_init(pthread_mutex_t *lock)
{
	pthread_mutexattr_t a;

	pthread_mutexattr_init(&a);
	/* A kernel without such locks refuses this; then it is an ordinary one. */
	(void)pthread_mutexattr_setprotocol(&a, PTHREAD_PRIO_INHERIT);
	if (pthread_mutex_init(lock, &a) != 0)
		pthread_mutex_init(lock, NULL);
	pthread_mutexattr_destroy(&a);
}

void kvpd_step_back(void)
{
	static const struct sched_param none;

	errno = 0;
	if (nice(LEVELS) == -1 && errno)
		kvpd_info("this thread stays at the daemon's priority: %s", strerror(errno));
	if (sched_setscheduler(0, SCHED_BATCH, &none) < 0)
		kvpd_info("this thread takes processors as others do: %s", strerror(errno));
}

void kvpd_step_aside(void)
{
	static const struct sched_param none;

	if (sched_setscheduler(0, SCHED_IDLE, &none) < 0)
		kvpd_step_back();
}

bool kvpd_crowded(struct kvpd_crowd *c, uint64_t now_ns)
{
	struct rusage u;

	if (getrusage(RUSAGE_THREAD, &u) == 0 && u.ru_nivcsw != c->n_taken_off) {
		c->n_taken_off = u.ru_nivcsw;
		c->seen_ns = now_ns;
	}
	return now_ns - c->seen_ns < CROWDED_NS;
}

uint64_t kvpd_waited_ns(int fd)
{
	uint64_t had, waited;
	char text[80];
	ssize_t n = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);

	if (n <= 0)
		return 0;
	text[n] = 0;
	return sscanf(text, "%" SCNu64 " %" SCNu64, &had, &waited) == 2 ? waited : 0;
}
