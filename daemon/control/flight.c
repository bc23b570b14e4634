/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors in flight: counted for each connection, bounded for each uid and socket. */
#include "daemon/control/flight.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/control/conn.h"
#include "daemon/control/state.h"

#define LINGER_NS     (1000 * KVPD_MS)
#define LOOK_AGAIN_NS (5 * KVPD_MS)

/* An eighth of what the kernel allows: several uids that receive nothing leave room for others. */
void kvpd_flight_limit(struct kvpd_control *c, uint64_t files)
{
	uint64_t uid = files / 8;

	c->flight_uid_max = uid < 16 ? 16 : uid > 8192 ? 8192 : (uint32_t)uid;
}

uint32_t kvpd_flight_look(struct kvpd_conn *conn)
{
	int unread = 0;

	/* Bytes in packets that the other side has neither received nor thrown away. */
	if (conn->in_flight && ioctl(conn->fd, SIOCOUTQ, &unread) == 0 && !unread) {
		conn->control->in_flight -= conn->in_flight;
		conn->in_flight = 0;
	}
	return conn->in_flight;
}

/* What those have in flight that share a bound with this connection. */
static uint32_t sum_of(const struct kvpd_conn *conn)
{
	struct kvpd_control *c = conn->control;
	const struct kvpd_conn *o;
	uint32_t sum = 0;

	TAILQ_FOREACH(o, &c->conns, link)
		if (o->in_flight && kvpd_conn_is_of(o, conn->who.uid, conn->tenant))
			sum += o->in_flight;
	TAILQ_FOREACH(o, &c->lingering, link)
		if (kvpd_conn_is_of(o, conn->who.uid, conn->tenant))
			sum += o->in_flight;
	return sum;
}

static void look_at_all(struct kvpd_control *c)
{
	struct kvpd_conn *o;

	TAILQ_FOREACH(o, &c->conns, link)
		(void)kvpd_flight_look(o);
	TAILQ_FOREACH(o, &c->lingering, link)
		(void)kvpd_flight_look(o);
}

/*
 * Asking the kernel about all connections is dear: not more often than now and then. But then about
 * those of everybody, or a uid that is at its bound and never gives up would use up every look, and
 * others would be judged by what they have long received.
 */
static bool room(const struct kvpd_conn *conn, uint32_t n, uint32_t most)
{
	struct kvpd_control *c = conn->control;
	uint64_t now;

	if (c->in_flight + n <= most || sum_of(conn) + n <= most)
		return true;
	now = kvpd_now_ns();
	if (now - c->flight_looked_ns < LOOK_AGAIN_NS)
		return false;
	c->flight_looked_ns = now;
	look_at_all(c);
	return sum_of(conn) + n <= most;
}

bool kvpd_flight_may_attach(const struct kvpd_conn *conn)
{
	return room(conn, KVP_MSG_MAX_FDS, conn->control->flight_uid_max);
}

bool kvpd_flight_may_show(struct kvpd_conn *conn)
{
	uint32_t most = conn->control->flight_uid_max;

	return room(conn, 1, most / 2) || (!kvpd_flight_look(conn) && room(conn, 1, most));
}

void kvpd_flight_sent(struct kvpd_conn *conn, unsigned n_fds)
{
	if (conn->in_flight)
		(void)kvpd_flight_look(conn);
	conn->in_flight += n_fds;
	conn->control->in_flight += n_fds;
}

/* ---- connections that are over -------------------------------------------------------------- */

void kvpd_flight_linger(struct kvpd_conn *conn)
{
	struct kvpd_control *c = conn->control;

	(void)epoll_ctl(c->epfd, EPOLL_CTL_DEL, conn->fd, NULL);
	(void)shutdown(conn->fd, SHUT_RDWR);
	TAILQ_INSERT_TAIL(&c->lingering, conn, link);
}

static void end(struct kvpd_conn *conn)
{
	struct kvpd_control *c = conn->control;

	close(conn->fd);
	c->in_flight -= conn->in_flight;
	TAILQ_REMOVE(&c->lingering, conn, link);
	TAILQ_INSERT_TAIL(&c->dead_conns, conn, link);
}

uint64_t kvpd_flight_expire(struct kvpd_control *c, uint64_t now)
{
	struct kvpd_conn *o, *next;

	if (TAILQ_EMPTY(&c->lingering))
		return UINT64_MAX;
	if (now >= c->linger_due_ns) {
		c->linger_due_ns = now + LINGER_NS;
		for (o = TAILQ_FIRST(&c->lingering); o; o = next) {
			next = TAILQ_NEXT(o, link);
			if (!kvpd_flight_look(o))
				end(o);
		}
	}
	return TAILQ_EMPTY(&c->lingering) ? UINT64_MAX : c->linger_due_ns;
}

void kvpd_flight_drop(struct kvpd_control *c)
{
	struct kvpd_conn *o;

	while ((o = TAILQ_FIRST(&c->lingering)))
		end(o);
}
