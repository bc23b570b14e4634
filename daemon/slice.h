/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How soon a thread gets a processor when it wakes.
 *
 * Linux 6.12 and later let a thread ask for a slice of its own (EEVDF; sched_attr.sched_runtime of
 * SCHED_OTHER). A shorter one gives no larger part of the processor, but an earlier deadline: a thread that
 * works for microseconds takes over from one that computes without end instead of waiting for that
 * one's next tick, which is 4 ms later on many machines. Earlier kernels take the call and do nothing.
 */
#ifndef KVPD_SLICE_H
#define KVPD_SLICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * For the calling thread and those that it makes. The kernel bounds the slice: 100 us to 100 ms.
 * `sooner`: levels of niceness that it goes ahead of what it had, for a thread that sleeps most of the
 * time; without the right to that (kvpd_raise_limits()) it gets the slice alone. Some levels are more
 * than an earlier deadline where the thread has just worked: the kernel then owes it nothing.
 */
void kvpd_slice_ask(uint64_t ns, int sooner);

/*
 * For the calling thread alone: the lowest priority of the real-time class, which takes a processor from
 * whoever is in an ordinary one at once, whatever the kernel owes each of them. 0, or a negative errno: it
 * stays what it is. Such a thread is never taken off for them: it has to rest of its own accord, as if it
 * were always in a crowd, and give the class back when it needs much time (urgency.h).
 */
#define KVPD_REALTIME 1
int kvpd_realtime_ask(void);
/* Back to the ordinary class, with the niceness and the slice that it had there; likewise. */
int kvpd_realtime_leave(void);

/* A lock that such a thread takes: whoever holds it is as urgent meanwhile as who waits for it. */
void kvpd_lock_init(pthread_mutex_t *lock);

/*
 * The other way round, for threads that work for those: the calling thread, the threads that it makes and
 * the programs that it starts, take a processor from nobody when they wake (SCHED_BATCH), and are a few
 * levels nicer, so that a thread of the former kind takes theirs. They may hold locks for a moment.
 */
void kvpd_step_back(void);
/*
 * For a thread that works for long: has the kernel taken its processor away for others within the last
 * tenth of a second, as far as this was asked? Then it should sleep for a moment now and then of its own
 * accord, so that these others need not wait for a tick. One for each thread, zeroed at first.
 */
struct kvpd_crowd {
	int64_t n_taken_off; /* times that it was */
	uint64_t seen_ns;    /* when that had grown */
};
bool kvpd_crowded(struct kvpd_crowd *c, uint64_t now_ns);
/*
 * How long a thread was ready to run and had no processor, since it began; fd: its /proc/thread-self/schedstat.
 * 0 where the kernel does not say.
 */
uint64_t kvpd_waited_ns(int fd);
/*
 * A processor is given up at once to whoever wants it (SCHED_IDLE). On a machine that computes without
 * end such a thread gets next to nothing: nobody may wait for it, and it holds no locks.
 */
void kvpd_step_aside(void);

#endif
