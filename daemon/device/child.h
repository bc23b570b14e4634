/* SPDX-License-Identifier: Apache-2.0 */
/* The worker as a process: started, and ended without leaving anything of it behind. */
#ifndef KVPD_CHILD_H
#define KVPD_CHILD_H

#include <stdint.h>
#include <sys/types.h>

struct kvpd_child {
	pid_t pid;  /* 0: none */
	int sock;   /* the daemon's end */
	pid_t left; /* one that has not ended though it was killed; 0: none */
};

/*
 * Starts `path` with these arguments (NULL at their end) and one socket, in this process's environment
 * but for `set` (NULL at its end): NAME=VALUE. It ends with the thread that
 * called, by a signal to itself, or when `sock` is closed. -EBUSY: the one before is there still; -EMFILE, -ENOMEM,
 * errors of posix_spawn(3). `child` is zero, or what kvpd_child_end() left.
 */
int kvpd_child_start(
	const char *path, char *const argv[], const char *const set[], struct kvpd_child *child);
/*
 * Closes the socket, gives the process so long to go by itself, then SIGKILL; returns when it is reaped:
 * what it had mapped is no longer mapped by it. But a process that hangs in a driver does not end before the driver
 * lets it: after some seconds it is left, and what it was writing it may be writing still. Harmless without one.
 */
void kvpd_child_end(struct kvpd_child *child, uint32_t grace_ms);

#endif
