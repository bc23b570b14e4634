/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A private kvpoold for one run of a tool: its own runtime directory, its own configuration,
 * stopped and cleaned up afterwards. For tools that measure or replay against a real daemon
 * without touching the machine's own.
 */
#ifndef KVT_DAEMON_H
#define KVT_DAEMON_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct kvt_daemon {
	pid_t pid; /* 0: not running */
	char dir[80];
	char socket[108];
	uint32_t files; /* as in its options */
};

struct kvt_daemon_opts {
	uint64_t share;      /* bytes of a tenant */
	uint64_t memory;     /* bytes of all tenants; 0: the share and a little more */
	uint32_t max_blocks; /* 0: the daemon's default */
	uint64_t recipe_tokens;
	uint64_t arena;     /* bytes that one client may hold; 0: the daemon's default */
	const char *policy; /* NULL: the daemon's default */
	uint32_t max_sessions;
	/*
	 * Descriptors that it may have open, and without the capabilities that exempt root from
	 * limits: as the installed daemon, which is not root. 0: as this process.
	 */
	uint32_t files;
	/* Device 0, of host memory: its bytes and those of its segments; 0: there is none. */
	uint64_t device_bytes, device_segment;
	const char *more; /* further lines of YAML for the top level, or NULL */
};

/*
 * Path of kvpool-device: $KVPOOL_DEVICE, or the one beside this program in the build folder; "" if there is
 * none: then kvpoold starts the installed one.
 */
void kvt_find_worker(char *out, size_t len);

/* Called in a child: it gets this signal when `parent`, or the thread of it that forked, ends. */
void kvt_end_with(pid_t parent, int sig);

/*
 * Starts $KVPOOLD, or the kvpoold beside this program in the build folder, or the one in $PATH, and
 * waits until it accepts clients. On failure `error` says why, with the end of the daemon's own
 * log. *ret_daemon stays where it is until kvt_daemon_stop(): a SIGINT, SIGTERM or SIGHUP that ends
 * this process stops the daemon first (the one that was started last, unless the signal is ignored
 * or handled); when this process is killed it gets SIGTERM.
 */
int kvt_daemon_start(const struct kvt_daemon_opts *opts, struct kvt_daemon *ret_daemon, char *error,
	size_t error_len);

/* Once more in the same directory, after its process ended (d->pid is 0). */
int kvt_daemon_restart(struct kvt_daemon *daemon, char *error, size_t error_len);

/* SIGTERM by pid, SIGKILL after 20 s, then the runtime directory goes. Harmless if not running. */
void kvt_daemon_stop(struct kvt_daemon *daemon);

#endif
