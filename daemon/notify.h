/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the service manager is told: that the daemon is ready, how it does, that it is alive. The
 * protocol is that of sd_notify(3), whose own function waits while the manager reads nothing; here
 * nobody waits. What could not be sent is kept, the last word for each variable, and goes with the
 * next message or when kvpd_notify_again() is called.
 */
#ifndef KVPD_NOTIFY_H
#define KVPD_NOTIFY_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#define KVPD_NOTIFY_TEXT 512u /* of all variables that are in use, and more */

/* Of one thread. */
struct kvpd_notify {
	int fd; /* -1: nobody wants to know */
	struct sockaddr_un to;
	socklen_t to_bytes;
	char unsent[KVPD_NOTIFY_TEXT]; /* lines, each with its end */
	uint64_t again_ns;             /* when to try again if there are any */
};

/*
 * For the socket of this name, as in NOTIFY_SOCKET: a path, or '@' and an abstract name; NULL: no
 * one is told. -EAFNOSUPPORT: another kind of name; or why there is no socket. Nobody is told then,
 * too.
 */
int kvpd_notify_open(struct kvpd_notify *n, const char *name);
/* Lines "VARIABLE=value", parted by '\n'. `now` is of kvpd_now_ns(). */
void kvpd_notify(struct kvpd_notify *n, uint64_t now, const char *lines);
/* Sends what is left if it is time. When it wants to be called next; UINT64_MAX: nothing is left. */
uint64_t kvpd_notify_again(struct kvpd_notify *n, uint64_t now);
void kvpd_notify_close(struct kvpd_notify *n);

#endif
