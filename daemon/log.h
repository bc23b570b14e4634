/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of kvpoold. Under systemd (when stderr is the journal's stream) they go to the journal
 * with structured fields; otherwise to stderr, one line each, with time and level.
 *
 * Any thread. Nothing here allocates, fails or changes errno. A message is one line without a
 * newline, at most KVPD_LOG_LINE bytes (the rest is cut); control characters in it, which may come
 * from clients, are replaced. Each failure is logged once, where it is handled.
 *
 * Messages that a client can provoke at will go through a struct kvpd_ratelimit.
 */
#ifndef KVPD_LOG_H
#define KVPD_LOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define KVPD_LOG_LINE 1024u

/* The values are syslog's. */
enum kvpd_level {
	KVPD_LOG_ERR = 3,
	KVPD_LOG_WARNING = 4,
	KVPD_LOG_NOTICE = 5,
	KVPD_LOG_INFO = 6,
	KVPD_LOG_DEBUG = 7,
};

/*
 * The client that a message is about: the journal's fields KVPOOL_SESSION, KVPOOL_TENANT,
 * KVPOOL_PID and KVPOOL_UID. Zero members are left out, uid (uid_t) -1 too.
 */
struct kvpd_who {
	uint32_t session;
	uint32_t tenant;
	pid_t pid;
	uid_t uid;
};

/*
 * Finds out where stderr leads. Messages above `max` are dropped. Before it: stderr, NOTICE.
 */
void kvpd_log_init(enum kvpd_level max);
void kvpd_log_level(enum kvpd_level max);

/* stderr leads nowhere any more: from now on messages go to the journal, if there is one. */
void kvpd_log_detach(void);

/* who may be NULL: the message is about no client. */
void kvpd_log_who(enum kvpd_level level, const struct kvpd_who *who, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#define kvpd_err(...)     kvpd_log_who(KVPD_LOG_ERR, NULL, __VA_ARGS__)
#define kvpd_warning(...) kvpd_log_who(KVPD_LOG_WARNING, NULL, __VA_ARGS__)
#define kvpd_notice(...)  kvpd_log_who(KVPD_LOG_NOTICE, NULL, __VA_ARGS__)
#define kvpd_info(...)    kvpd_log_who(KVPD_LOG_INFO, NULL, __VA_ARGS__)
#define kvpd_debug(...)   kvpd_log_who(KVPD_LOG_DEBUG, NULL, __VA_ARGS__)

/*
 * Lets `burst` messages pass in `interval_s` seconds. Usually static:
 *	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(10, 5);
 */
struct kvpd_ratelimit {
	uint32_t interval_s;
	uint32_t burst;
	_Atomic(int64_t) window_s; /* monotonic second in which the window began */
	_Atomic(uint32_t) passed;
	_Atomic(uint32_t) suppressed;
};
#define KVPD_RATELIMIT(seconds, n)                                           \
	{                                                                    \
		.interval_s = (seconds), .burst = (n), .window_s = INT64_MIN \
	}

/*
 * May a message pass now? If so, *ret_suppressed says how many did not since the last one that did.
 * Approximate when threads race at the edge of a window.
 */
bool kvpd_ratelimit(struct kvpd_ratelimit *limit, uint32_t *ret_suppressed);

/* As kvpd_log_who(), if the limit lets it; says how many were held back before. */
void kvpd_log_limited(struct kvpd_ratelimit *limit, enum kvpd_level level,
	const struct kvpd_who *who, const char *format, ...) __attribute__((format(printf, 4, 5)));

#endif
