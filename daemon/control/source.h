/* SPDX-License-Identifier: Apache-2.0 */
/* Anything that the control thread's loop watches. Control thread only. */
#ifndef KVPD_SOURCE_H
#define KVPD_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

struct kvpd_control;

/* `dead`: freed at the end of this turn; events still at hand are void. */
struct kvpd_source {
	void (*ready)(struct kvpd_source *source, uint32_t events);
	bool dead;
};

/* Calls source->ready() for these epoll events of fd, until fd is closed. Negative errno. */
int kvpd_watch(struct kvpd_control *c, int fd, uint32_t events, struct kvpd_source *source);

#endif
