/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: receiving, sending without ever waiting for a client, closing. */
#ifndef KVPD_CONN_H
#define KVPD_CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "daemon/control/peer.h"
#include "daemon/control/source.h"
#include "daemon/control/text.h"
#include "shm/kvp_proto.h"

struct kvpd_asked;
struct kvpd_guest;
struct kvpd_opening;
struct kvpd_payer;

#define KVPD_OUT_MAX  (KVP_MAX_EXTENTS + 512u) /* packets waiting for one client to read */
#define KVPD_STALL_MS 30000u /* a client that reads nothing of what waits for it */

enum kvpd_conn_state {
	KVPD_CONN_HELLO, /* nothing heard yet */
	KVPD_CONN_PROVE, /* asked for credentials */
	KVPD_CONN_CLIENT,
	KVPD_CONN_ADMIN,
};

/*
 * A packet that waits for room in the socket; its descriptors are its own. One that shows the
 * client an extent to read has none until it is sent: a client that does not read makes the daemon
 * hold nothing.
 */
struct kvpd_out {
	TAILQ_ENTRY(kvpd_out) link;
	uint16_t type;
	uint16_t n_fds;
	bool fetch; /* an EXTENT, its descriptor to be asked for */
	uint32_t tag;
	uint32_t len;
	int fds[KVP_MSG_MAX_FDS];
	uint8_t body[];
};

struct kvpd_conn {
	struct kvpd_source source;
	struct kvpd_control *control;
	int fd;
	enum kvpd_conn_state state;
	struct kvpd_identity who;
	uint64_t since_ns; /* connected; of one that lingers: looked at */
	uint32_t interest; /* what epoll watches */
	/* While attaching. */
	int pidfd;
	uint64_t nonce;
	uint32_t hello_tag;
	uint32_t imports; /* KVP_IMPORT_*, as it said */
	char name[KVP_CLIENT_NAME];
	struct kvpd_guest *guest;
	bool showing; /* its tenant's extents, from this one on */
	uint32_t show_from;
	/* To be sent. */
	TAILQ_HEAD(, kvpd_out) out;
	uint32_t n_out;
	uint64_t stuck_since_ns; /* the socket took nothing since; 0: nothing waits */
	/*
	 * Not 0: sending has to wait although the socket has room, so epoll cannot say until when;
	 * tried again then, and after twice the time if that was too early.
	 */
	uint64_t held_until_ns;
	uint32_t held_ms;
	uint32_t in_flight; /* descriptors sent and perhaps not received */
	TAILQ_ENTRY(kvpd_conn) in_flying;
	struct kvpd_opening *opening; /* the SPACE_OPEN that is being served; see guest.c */
	/* An administrator's request, while it is being served, and the answer, while it is sent. */
	struct kvpd_asked *asked;
	struct kvpd_text answer;
	uint32_t answer_tag;
	int32_t answer_status;
	TAILQ_ENTRY(kvpd_conn) link;
	TAILQ_ENTRY(kvpd_conn) in_payer; /* pending */
	TAILQ_ENTRY(kvpd_conn) in_due;   /* of those that end at some time: pending, or stuck */
	TAILQ_ENTRY(kvpd_conn) in_held;
};

/* It has not attached. */
static inline bool kvpd_conn_is_pending(const struct kvpd_conn *conn)
{
	return conn->state == KVPD_CONN_HELLO || conn->state == KVPD_CONN_PROVE;
}

/*
 * One that was accepted, whose payer has it and whose user count it takes over. -ENOMEM etc.: fd and
 * payer stay the caller's.
 */
int kvpd_conn_new(
	struct kvpd_control *c, int fd, const struct kvpd_identity *who, struct kvpd_payer *payer);
/* Closes it; freed by kvpd_control_bury(). Its guest, if any, stays. */
void kvpd_conn_close(struct kvpd_conn *conn);
/* Says why, and closes. */
void kvpd_conn_refuse(struct kvpd_conn *conn, int error, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/*
 * Sends, or queues if the client is slow or has too many descriptors in flight. The descriptors
 * stay the caller's. -ENOBUFS: too much is waiting for it already.
 */
int kvpd_conn_send(struct kvpd_conn *conn, uint16_t type, uint32_t tag, const void *body,
	size_t len, const int *fds, unsigned n_fds);
/* Has it said that it can map memory of this kind? */
bool kvpd_conn_imports(const struct kvpd_conn *conn, const struct kvp_msg_extent *extent);
/*
 * Shows a client an extent to read; fd: -1 if it is to be asked for when the packet is sent. Left
 * out if the client's uid has too many descriptors in flight: it can ask when it needs it.
 */
int kvpd_conn_send_extent(
	struct kvpd_conn *conn, uint32_t tag, const struct kvp_msg_extent *extent, int fd);
/* Since when it reads nothing of what waits for it; 0: nothing waits. */
void kvpd_conn_stuck(struct kvpd_conn *conn, uint64_t since_ns);
/* Sending has to wait for something else than room in the socket. */
void kvpd_conn_hold(struct kvpd_conn *conn);
/* Sends an error; the connection stays. */
void kvpd_conn_error(struct kvpd_conn *conn, uint32_t tag, int error, const char *text);
/* Has epoll watch for what the connection waits for. */
void kvpd_conn_watch(struct kvpd_conn *conn);
/* From pending to attached, or to an administrator's. */
void kvpd_conn_settle(struct kvpd_conn *conn, enum kvpd_conn_state state);
/* Deadlines: returns when to call again, UINT64_MAX = never. */
uint64_t kvpd_conn_expire(struct kvpd_control *c, uint64_t now);
/* Its socket goes as well, which kvpd_conn_close() may have left open. */
void kvpd_conn_end(struct kvpd_conn *conn);
void kvpd_conn_free(struct kvpd_conn *conn);

#endif
