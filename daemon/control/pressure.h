/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When the machine, or a control group that kvpoold runs in, is short of memory, tenants give some
 * back. Figures decide (daemon/memory.h); the kernel's word that tasks wait for memory, which any
 * process in a small control group can bring about, only makes the daemon look sooner and judge a
 * little more strictly.
 */
#ifndef KVPD_PRESSURE_H
#define KVPD_PRESSURE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/control/source.h"

/* A trigger of the kernel's: tasks have waited for memory. */
struct kvpd_stalls {
	struct kvpd_source source;
	struct kvpd_control *control;
	int fd; /* -1: it gives none */
};

struct kvpd_pressure {
	struct kvpd_stalls machine, group;
	bool stalled; /* since the last look */
	uint64_t looked_ns, next_ns;
};

/*
 * Still privileged: asks the kernel to say when tasks wait for memory, on the machine and in the
 * daemon's own group. Kernels that do not: the figures are looked at all the same.
 */
void kvpd_pressure_open(struct kvpd_control *c);
void kvpd_pressure_close(struct kvpd_control *c);
/* Looks if it is time to, at most once a second; returns when to call again. */
uint64_t kvpd_pressure_turn(struct kvpd_control *c, uint64_t now);

#endif
