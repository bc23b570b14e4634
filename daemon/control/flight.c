/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors in flight: counted for each connection, bounded for each uid and socket. */
#include "daemon/control/flight.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/control/conn.h"
#include "daemon/control/payer.h"
#include "daemon/control/state.h"

#define LINGER_NS     (1000 * KVPD_MS)
#define LOOK_AGAIN_NS KVPD_MS
#define LOOKS         64u /* at a time */

/* An eighth of what the kernel allows: several uids that receive nothing leave room for others. */
void kvpd_flight_limit(struct kvpd_control *c, uint64_t files)
{
	uint64_t uid = files / 8;

	c->flight_uid_max = uid < 16 ? 16 : uid > 8192 ? 8192 : (uint32_t)uid;
}

uint32_t kvpd_flight_look(struct kvpd_conn *conn)
{
	struct kvpd_payer *payer = conn->source.payer;
	int unread = 0;

	/* Bytes in packets that the other side has neither received nor thrown away. */
	if (conn->in_flight && ioctl(conn->fd, SIOCOUTQ, &unread) == 0 && !unread) {
		payer->in_flight -= conn->in_flight;
		conn->in_flight = 0;
		TAILQ_REMOVE(&payer->flying, conn, in_flying);
	}
	return conn->in_flight;
}

/* At some of a payer's, others the next time. */
static void look_at_some(struct kvpd_payer *payer)
{
	struct kvpd_conn *o, *again = NULL;

	for (uint32_t n = 0; n < LOOKS && (o = TAILQ_FIRST(&payer->flying)) && o != again; n++) {
		if (!kvpd_flight_look(o))
			continue;
		again = again ? again : o;
		TAILQ_REMOVE(&payer->flying, o, in_flying);
		TAILQ_INSERT_TAIL(&payer->flying, o, in_flying);
	}
}

/* Asking the kernel takes a while for each connection: not more often than now and then. */
static bool room(const struct kvpd_conn *conn, uint32_t n, uint32_t most)
{
	struct kvpd_payer *payer = conn->source.payer;
	uint64_t now;

	if (payer->in_flight + n <= most)
		return true;
	now = kvpd_now_ns();
	if (now - payer->looked_ns < LOOK_AGAIN_NS)
		return false;
	payer->looked_ns = now;
	look_at_some(payer);
	return payer->in_flight + n <= most;
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
	struct kvpd_payer *payer = conn->source.payer;

	if (!kvpd_flight_look(conn))
		TAILQ_INSERT_TAIL(&payer->flying, conn, in_flying);
	conn->in_flight += n_fds;
	payer->in_flight += n_fds;
}

/* ---- connections that are over -------------------------------------------------------------- */

void kvpd_flight_linger(struct kvpd_conn *conn)
{
	struct kvpd_control *c = conn->control;

	kvpd_unwatch(c, conn->fd);
	(void)shutdown(conn->fd, SHUT_RDWR);
	conn->since_ns = kvpd_now_ns();
	TAILQ_INSERT_TAIL(&c->lingering, conn, link);
}

static void end(struct kvpd_conn *conn)
{
	struct kvpd_payer *payer = conn->source.payer;

	TAILQ_REMOVE(&conn->control->lingering, conn, link);
	if (conn->in_flight)
		TAILQ_REMOVE(&payer->flying, conn, in_flying);
	payer->in_flight -= conn->in_flight;
	kvpd_conn_end(conn);
}

uint64_t kvpd_flight_expire(struct kvpd_control *c, uint64_t now)
{
	struct kvpd_conn *o;

	for (uint32_t n = 0;
		n < LOOKS && (o = TAILQ_FIRST(&c->lingering)) && o->since_ns + LINGER_NS <= now;
		n++) {
		if (!kvpd_flight_look(o)) {
			end(o);
			continue;
		}
		o->since_ns = now;
		TAILQ_REMOVE(&c->lingering, o, link);
		TAILQ_INSERT_TAIL(&c->lingering, o, link);
	}
	o = TAILQ_FIRST(&c->lingering);
	return o ? o->since_ns + LINGER_NS : UINT64_MAX;
}

void kvpd_flight_drop(struct kvpd_control *c)
{
	struct kvpd_conn *o;

	while ((o = TAILQ_FIRST(&c->lingering)))
		end(o);
}
