/* SPDX-License-Identifier: Apache-2.0 */
/* Anything that the control thread's loop watches. Control thread only. */
#ifndef KVPD_SOURCE_H
#define KVPD_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/queue.h>

struct kvpd_control;
struct kvpd_payer;

/* Not of epoll, which never reports it: a source that raises itself has more to do. */
#define KVPD_AGAIN ((uint32_t)EPOLLONESHOT)

/* `dead`: freed at the end of this turn; events still at hand are void. */
struct kvpd_source {
	/* Does one step for these epoll events; what is left of them is reported again. */
	void (*ready)(struct kvpd_source *source, uint32_t events);
	struct kvpd_payer *payer; /* whose turn it takes; NULL: it is served at once */
	bool dead;
	/* Waiting for its payer's turn; see kvpd_source_raise(). */
	bool queued;
	uint32_t events;
	TAILQ_ENTRY(kvpd_source) in_payer;
};

/* Calls source->ready() for these epoll events of fd, until kvpd_unwatch(). Negative errno. */
int kvpd_watch(struct kvpd_control *c, int fd, uint32_t events, struct kvpd_source *source);
/*
 * Before fd is closed. Closing alone ends nothing while another process has it too, and one that the
 * daemon starts (a device's worker) has them all until it is the other program.
 */
void kvpd_unwatch(struct kvpd_control *c, int fd);

#endif
