/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: receiving, sending without ever waiting for a client, closing. */
#include "daemon/control/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/control/admin.h"
#include "daemon/control/attach.h"
#include "daemon/control/flight.h"
#include "daemon/control/guest.h"
#include "daemon/control/payer.h"
#include "daemon/control/state.h"
#include "daemon/control/tenants.h"
#include "daemon/log.h"
#include "shm/kvp_msg.h"
#include "shm/kvp_seg.h"

/* Room in a client's socket for some sixteen packets: so many descriptors it has in flight. */
#define CLIENT_SNDBUF 8192
#define HELD_MIN_MS   5u
#define HELD_MAX_MS   500u
/* In one step: others have their turn before the next. Each may be a question to the ledger. */
#define STEP_PACKETS 4u
/* Ended in one turn because their time is over. */
#define EXPIRE_A_TURN 16u

static struct kvpd_ratelimit refused_limit = KVPD_RATELIMIT(10, 5);
static struct kvpd_ratelimit broken_limit = KVPD_RATELIMIT(10, 5);

static void conn_ready(struct kvpd_source *source, uint32_t events);

static struct kvpd_who who_of(const struct kvpd_conn *conn)
{
	return (struct kvpd_who){
		.session = conn->guest ? conn->guest->id : 0,
		.tenant = conn->guest ? conn->guest->tenant->id : 0,
		.pid = conn->who.pid,
		.uid = conn->who.uid,
	};
}

/* ---- the beginning ------------------------------------------------------------------------- */

int kvpd_conn_new(
	struct kvpd_control *c, int fd, const struct kvpd_identity *who, struct kvpd_payer *payer)
{
	struct kvpd_conn *conn = calloc(1, sizeof(*conn));
	int r;

	if (!conn)
		return -ENOMEM;
	*conn = (struct kvpd_conn){
		.source = { .ready = conn_ready, .payer = payer },
		.control = c,
		.fd = fd,
		.who = *who,
		.since_ns = kvpd_now_ns(),
		.interest = EPOLLIN,
		.pidfd = -1,
	};
	TAILQ_INIT(&conn->out);
	r = kvpd_watch(c, fd, conn->interest, &conn->source);
	if (r < 0) {
		free(conn);
		return r;
	}
	TAILQ_INSERT_TAIL(&c->conns, conn, link);
	TAILQ_INSERT_TAIL(&c->pending, conn, in_due);
	TAILQ_INSERT_TAIL(&payer->pending, conn, in_payer);
	payer->n_conns++;
	payer->n_pending++;
	c->n_conns++;
	c->n_pending++;
	c->accepted++;
	return 0;
}

/* ---- sending ------------------------------------------------------------------------------- */

static void out_free(struct kvpd_conn *conn, struct kvpd_out *out)
{
	for (unsigned i = 0; i < out->n_fds; i++)
		close(out->fds[i]);
	conn->n_out--;
	TAILQ_REMOVE(&conn->out, out, link);
	free(out);
}

/* What was asked last is not yet answered: the next packet waits in the socket. */
static bool is_busy(const struct kvpd_conn *conn)
{
	return conn->answer.first || conn->asked || conn->showing || conn->opening;
}

void kvpd_conn_watch(struct kvpd_conn *conn)
{
	struct epoll_event e = { .data.ptr = &conn->source };
	bool waits = (conn->n_out || conn->answer.first) && !conn->held_until_ns;

	e.events = (is_busy(conn) ? 0 : EPOLLIN) | (waits ? EPOLLOUT : 0);
	if (e.events == conn->interest)
		return;
	if (epoll_ctl(conn->control->epfd, EPOLL_CTL_MOD, conn->fd, &e) == 0)
		conn->interest = e.events;
}

void kvpd_conn_stuck(struct kvpd_conn *conn, uint64_t since_ns)
{
	struct kvpd_control *c = conn->control;

	/* One that is pending has a deadline anyway. */
	if (conn->stuck_since_ns && !kvpd_conn_is_pending(conn))
		TAILQ_REMOVE(&c->stuck, conn, in_due);
	conn->stuck_since_ns = since_ns;
	if (since_ns && !kvpd_conn_is_pending(conn))
		TAILQ_INSERT_TAIL(&c->stuck, conn, in_due);
}

void kvpd_conn_hold(struct kvpd_conn *conn)
{
	struct kvpd_control *c = conn->control;
	uint64_t now = kvpd_now_ns();

	conn->held_ms = conn->held_ms ? conn->held_ms * 2 : HELD_MIN_MS;
	if (conn->held_ms > HELD_MAX_MS)
		conn->held_ms = HELD_MAX_MS;
	if (!conn->held_until_ns)
		TAILQ_INSERT_TAIL(&c->held, conn, in_held);
	conn->held_until_ns = now + conn->held_ms * KVPD_MS;
	if (conn->held_until_ns < c->held_due_ns)
		c->held_due_ns = conn->held_until_ns;
	if (!conn->stuck_since_ns)
		kvpd_conn_stuck(conn, now);
}

static void let_go(struct kvpd_conn *conn)
{
	if (conn->held_until_ns)
		TAILQ_REMOVE(&conn->control->held, conn, in_held);
	conn->held_until_ns = 0;
}

static struct kvpd_out *out_new(
	uint16_t type, uint32_t tag, const void *body, size_t len, const int *fds, unsigned n_fds)
{
	struct kvpd_out *out = malloc(sizeof(*out) + len);

	if (!out)
		return NULL;
	*out = (struct kvpd_out){ .type = type, .tag = tag, .len = (uint32_t)len };
	if (len)
		memcpy(out->body, body, len);
	for (unsigned i = 0; i < n_fds; i++) {
		int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);

		if (fd < 0) {
			while (out->n_fds)
				close(out->fds[--out->n_fds]);
			free(out);
			return NULL;
		}
		out->fds[out->n_fds++] = fd;
	}
	return out;
}

static int enqueue(struct kvpd_conn *conn, struct kvpd_out *out)
{
	if (!out)
		return -ENOMEM;
	conn->n_out++;
	TAILQ_INSERT_TAIL(&conn->out, out, link);
	if (!conn->stuck_since_ns)
		kvpd_conn_stuck(conn, kvpd_now_ns());
	kvpd_conn_watch(conn);
	return 0;
}

/*
 * 0; -EAGAIN: later, when epoll says so or, if the connection is held, when its time has come; or
 * why the connection is of no use any more. A full socket (EAGAIN) becomes writable. That the
 * daemon's user has too many descriptors in flight (ETOOMANYREFS), or that the kernel has no memory
 * (ENOBUFS, ENOMEM), is nothing that this socket could tell of.
 */
static int try_to_send(struct kvpd_conn *conn, uint16_t type, uint32_t tag, const void *body,
	size_t len, const int *fds, unsigned n_fds)
{
	int r = kvp_msg_send(conn->fd, type, tag, body, len, fds, n_fds);

	if (r == -ETOOMANYREFS || r == -ENOBUFS || r == -ENOMEM) {
		kvpd_conn_hold(conn);
		return -EAGAIN;
	}
	if (r == 0) {
		conn->held_ms = 0;
		if (n_fds)
			kvpd_flight_sent(conn, n_fds);
	}
	return r;
}

int kvpd_conn_send(struct kvpd_conn *conn, uint16_t type, uint32_t tag, const void *body,
	size_t len, const int *fds, unsigned n_fds)
{
	int r = -EAGAIN;

	if (!conn->n_out)
		r = try_to_send(conn, type, tag, body, len, fds, n_fds);
	if (r != -EAGAIN)
		return r;
	if (conn->n_out >= KVPD_OUT_MAX)
		return -ENOBUFS;
	return enqueue(conn, out_new(type, tag, body, len, fds, n_fds));
}

/* Without the extent its blocks are misses. A client that asked for it may ask again. */
static int go_without(struct kvpd_conn *conn, uint32_t tag, int error)
{
	struct kvp_msg_error e = { .error = error };

	if (!tag)
		return 0;
	snprintf(e.text, sizeof(e.text), "%s",
		error == -EAGAIN ? "clients of this uid do not receive what they were sent"
				 : "there is no such extent in this tenant");
	return try_to_send(conn, KVP_MSG_ERROR, tag, &e, sizeof(e), NULL, 0);
}

/* Can the client use what the descriptor is? */
bool kvpd_conn_imports(const struct kvpd_conn *conn, const struct kvp_msg_extent *extent)
{
	return extent->tier == KVP_TIER_DRAM || conn->imports & extent->import;
}

int kvpd_conn_send_extent(
	struct kvpd_conn *conn, uint32_t tag, const struct kvp_msg_extent *extent, int fd)
{
	struct kvpd_out *out;
	int r = -EAGAIN;

	if (!conn->n_out && !kvpd_flight_may_show(conn))
		r = go_without(conn, tag, -EAGAIN);
	else if (!conn->n_out && fd >= 0)
		r = try_to_send(conn, KVP_MSG_EXTENT, tag, extent, sizeof(*extent), &fd, 1);
	if (r != -EAGAIN)
		return r;
	if (conn->n_out >= KVPD_OUT_MAX)
		return -ENOBUFS;
	out = out_new(KVP_MSG_EXTENT, tag, extent, sizeof(*extent), NULL, 0);
	if (out)
		out->fetch = true;
	return enqueue(conn, out);
}

/* As try_to_send(). */
static int send_fetched(struct kvpd_conn *conn, const struct kvpd_out *out)
{
	struct kvp_msg_extent extent;
	kvp_autoclose int fd = -1;
	uint32_t id;
	int r = -EAGAIN;

	memcpy(&extent, out->body, sizeof(extent));
	id = extent.extent;
	if (kvpd_flight_may_show(conn))
		r = kvpd_extent_get(conn->control->ledger, conn->guest->id, id, &extent, &fd);
	if (r == 0)
		return try_to_send(conn, out->type, out->tag, &extent, sizeof(extent), &fd, 1);
	return go_without(conn, out->tag, r == -ENOENT ? -ENOENT : -EAGAIN);
}

/* 0, -EAGAIN if there is more, or why the connection is of no use any more. */
static int flush(struct kvpd_conn *conn)
{
	struct kvpd_out *out;

	for (uint32_t n = 0; (out = TAILQ_FIRST(&conn->out)); n++) {
		int r = n == STEP_PACKETS ? -EAGAIN
			: out->fetch      ? send_fetched(conn, out)
				     : try_to_send(conn, out->type, out->tag, out->body, out->len,
					       out->fds, out->n_fds);

		if (r < 0)
			return r;
		out_free(conn, out);
		kvpd_conn_stuck(conn, conn->n_out ? kvpd_now_ns() : 0);
	}
	return 0;
}

void kvpd_conn_error(struct kvpd_conn *conn, uint32_t tag, int error, const char *text)
{
	struct kvp_msg_error e = { .error = error };

	snprintf(e.text, sizeof(e.text), "%s", text);
	if (kvpd_conn_send(conn, KVP_MSG_ERROR, tag, &e, sizeof(e), NULL, 0) < 0)
		kvpd_conn_close(conn);
}

void kvpd_conn_refuse(struct kvpd_conn *conn, int error, const char *format, ...)
{
	struct kvp_msg_error e = { .error = error };
	const struct kvpd_who w = who_of(conn);
	va_list ap;

	va_start(ap, format);
	vsnprintf(e.text, sizeof(e.text), format, ap);
	va_end(ap);
	kvpd_log_limited(&refused_limit, KVPD_LOG_WARNING, &w, "refused uid %u (process %d): %s",
		(unsigned)conn->who.uid, (int)conn->who.pid, e.text);
	conn->control->refused++;
	if (!conn->n_out)
		(void)kvp_msg_send(
			conn->fd, KVP_MSG_ERROR, conn->hello_tag, &e, sizeof(e), NULL, 0);
	kvpd_conn_close(conn);
}

/* ---- receiving ----------------------------------------------------------------------------- */

/* A client that breaks the protocol loses the connection, and the session with it. */
static void broke_protocol(struct kvpd_conn *conn, const char *what)
{
	struct kvp_msg_error e = { .error = -EPROTO };
	const struct kvpd_who w = who_of(conn);

	kvpd_log_limited(&broken_limit, KVPD_LOG_WARNING, &w,
		"uid %u (process %d) broke the control protocol: %s", (unsigned)conn->who.uid,
		(int)conn->who.pid, what);
	conn->control->broken++;
	snprintf(e.text, sizeof(e.text), "%s", what);
	if (!conn->n_out)
		(void)kvp_msg_send(conn->fd, KVP_MSG_ERROR, 0, &e, sizeof(e), NULL, 0);
	if (conn->guest)
		kvpd_guest_end(conn->guest, "it broke the control protocol");
	else
		kvpd_conn_close(conn);
}

static void dispatch(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	uint16_t type = packet->h.type;

	switch (conn->state) {
	case KVPD_CONN_HELLO:
		if (type == KVP_MSG_HELLO)
			kvpd_attach_hello(conn, packet);
		else
			broke_protocol(conn, "its first packet was no HELLO");
		return;
	case KVPD_CONN_PROVE:
		if (type == KVP_MSG_PROOF)
			kvpd_attach_proof(conn, packet);
		else
			broke_protocol(conn, "it did not answer PROVE with PROOF");
		return;
	case KVPD_CONN_CLIENT:
		if (type != KVP_MSG_HELLO && type != KVP_MSG_PROOF && type != KVP_MSG_ADMIN)
			kvpd_guest_packet(conn, packet);
		else
			broke_protocol(conn, "that packet is not possible after attaching");
		return;
	case KVPD_CONN_ADMIN:
		if (type == KVP_MSG_ADMIN)
			kvpd_admin_packet(conn, packet);
		else
			broke_protocol(conn, "an administrator sends nothing but ADMIN");
		return;
	}
}

static void receive(struct kvpd_conn *conn)
{
	struct kvp_packet *packet = conn->control->packet;

	for (unsigned i = 0; i < STEP_PACKETS; i++) {
		int r = kvp_msg_recv(conn->fd, KVP_MSG_TO_DAEMON, packet);

		if (r == -EAGAIN)
			return;
		if (r == -EPROTO) {
			broke_protocol(conn, "a malformed packet");
			return;
		}
		if (r < 0) {
			kvpd_conn_close(conn);
			return;
		}
		dispatch(conn, packet);
		kvp_msg_done(packet);
		if (conn->source.dead || is_busy(conn))
			return;
	}
}

/* It may close the connection. */
static void send_what_waits(struct kvpd_conn *conn)
{
	int r;

	let_go(conn);
	r = flush(conn);
	if (r < 0 && r != -EAGAIN)
		kvpd_conn_close(conn);
	else if (r == 0 && conn->answer.first)
		kvpd_admin_continue(conn);
	else if (r == 0 && conn->opening)
		kvpd_source_raise(&conn->source, KVPD_AGAIN);
}

static void conn_ready(struct kvpd_source *source, uint32_t events)
{
	struct kvpd_conn *conn = (struct kvpd_conn *)source;

	if (events & EPOLLOUT) {
		send_what_waits(conn);
		if (conn->source.dead)
			return;
	}
	if (events & (EPOLLHUP | EPOLLERR) && !(events & EPOLLIN)) {
		kvpd_conn_close(conn);
		return;
	}
	if (events & KVPD_AGAIN && conn->asked)
		kvpd_admin_step_on(conn);
	else if (events & KVPD_AGAIN && conn->showing)
		kvpd_attach_on(conn);
	else if (events & KVPD_AGAIN && conn->opening)
		kvpd_guest_open_on(conn);
	else if (events & EPOLLIN && !is_busy(conn))
		receive(conn);
	if (!conn->source.dead)
		kvpd_conn_watch(conn);
}

/* ---- the end ------------------------------------------------------------------------------- */

static void no_longer_pending(struct kvpd_conn *conn)
{
	struct kvpd_payer *payer = conn->source.payer;
	struct kvpd_control *c = conn->control;

	if (!kvpd_conn_is_pending(conn))
		return;
	TAILQ_REMOVE(&c->pending, conn, in_due);
	TAILQ_REMOVE(&payer->pending, conn, in_payer);
	payer->n_pending--;
	c->n_pending--;
}

void kvpd_conn_settle(struct kvpd_conn *conn, enum kvpd_conn_state state)
{
	static const int sndbuf = CLIENT_SNDBUF;
	uint64_t stuck = conn->stuck_since_ns;

	kvpd_conn_stuck(conn, 0);
	no_longer_pending(conn);
	conn->state = state;
	kvpd_conn_stuck(conn, stuck);
	if (state == KVPD_CONN_ADMIN)
		conn->control->n_admins++;
	else
		(void)setsockopt(conn->fd, SOL_SOCKET, SO_SNDBUF, &sndbuf, sizeof(sndbuf));
}

void kvpd_conn_close(struct kvpd_conn *conn)
{
	struct kvpd_control *c = conn->control;
	struct kvpd_out *out;

	if (conn->source.dead)
		return;
	kvpd_source_end(&conn->source);
	while ((out = TAILQ_FIRST(&conn->out)))
		out_free(conn, out);
	if (conn->pidfd >= 0)
		close(conn->pidfd);
	if (conn->guest)
		kvpd_guest_lost(conn->guest);
	conn->guest = NULL;
	kvpd_admin_drop(conn);
	free(conn->opening);
	conn->opening = NULL;
	kvpd_text_fini(&conn->answer);
	kvpd_conn_stuck(conn, 0);
	let_go(conn);
	no_longer_pending(conn);
	c->n_conns--;
	if (conn->state == KVPD_CONN_ADMIN)
		c->n_admins--;
	TAILQ_REMOVE(&c->conns, conn, link);
	if (kvpd_flight_look(conn))
		kvpd_flight_linger(conn);
	else
		kvpd_conn_end(conn);
	c->status_changed = true;
}

void kvpd_conn_end(struct kvpd_conn *conn)
{
	kvpd_unwatch(conn->control, conn->fd);
	close(conn->fd);
	conn->source.payer->n_conns--;
	TAILQ_INSERT_TAIL(&conn->control->dead_conns, conn, link);
}

void kvpd_conn_free(struct kvpd_conn *conn)
{
	kvpd_payer_put(&conn->control->payers, conn->source.payer);
	free(conn);
}

/* Past its deadline. */
static void give_up(struct kvpd_conn *conn)
{
	const struct kvpd_who w = who_of(conn);

	if (kvpd_conn_is_pending(conn)) {
		kvpd_conn_refuse(conn, -ETIMEDOUT, "it did not attach within %u ms",
			conn->control->config->handshake_ms);
		return;
	}
	kvpd_log_limited(&broken_limit, KVPD_LOG_WARNING, &w,
		"uid %u (process %d) reads nothing: disconnected", (unsigned)conn->who.uid,
		(int)conn->who.pid);
	kvpd_conn_close(conn);
}

/* What was held is tried again, each in its payer's turn. */
static void try_held(struct kvpd_control *c, uint64_t now)
{
	struct kvpd_conn *conn, *next;
	uint64_t due = UINT64_MAX;

	for (conn = TAILQ_FIRST(&c->held); conn; conn = next) {
		next = TAILQ_NEXT(conn, in_held);
		if (conn->held_until_ns <= now) {
			let_go(conn);
			kvpd_source_raise(&conn->source, EPOLLOUT);
		} else if (conn->held_until_ns < due) {
			due = conn->held_until_ns;
		}
	}
	/* However many there are, they are not looked through all the time. */
	c->held_due_ns = due < now + KVPD_MS ? now + KVPD_MS : due;
}

static uint64_t sooner(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t kvpd_conn_expire(struct kvpd_control *c, uint64_t now)
{
	const uint64_t handshake = (uint64_t)c->config->handshake_ms * KVPD_MS;
	const uint64_t stall = (uint64_t)KVPD_STALL_MS * KVPD_MS;
	uint64_t soonest = kvpd_flight_expire(c, now);
	struct kvpd_conn *conn;

	/* Both lists by age: the first is due first. */
	for (uint32_t n = 0; n < EXPIRE_A_TURN && (conn = TAILQ_FIRST(&c->pending)) &&
			     conn->since_ns + handshake <= now;
		n++)
		give_up(conn);
	for (uint32_t n = 0; n < EXPIRE_A_TURN && (conn = TAILQ_FIRST(&c->stuck)) &&
			     conn->stuck_since_ns + stall <= now;
		n++)
		give_up(conn);
	if (now >= c->held_due_ns)
		try_held(c, now);
	if ((conn = TAILQ_FIRST(&c->pending)))
		soonest = sooner(soonest, conn->since_ns + handshake);
	if ((conn = TAILQ_FIRST(&c->stuck)))
		soonest = sooner(soonest, conn->stuck_since_ns + stall);
	if (!TAILQ_EMPTY(&c->held))
		soonest = sooner(soonest, c->held_due_ns);
	return soonest;
}
