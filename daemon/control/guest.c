/* SPDX-License-Identifier: Apache-2.0 */
/* Guests: their packets, what the ledger says to them, and their end. */
#include "daemon/control/guest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/control/conn.h"
#include "daemon/control/state.h"
#include "daemon/control/tenants.h"
#include "daemon/log.h"
#include "shm/kvp_msg.h"
#include "shm/kvp_seg.h"

#define SWEEP_NS (1000 * KVPD_MS)

struct kvpd_guest *kvpd_guest_find(struct kvpd_control *c, uint32_t id)
{
	struct kvpd_guest *g;

	TAILQ_FOREACH(g, &c->guests, link)
		if (g->id == id)
			return g;
	return NULL;
}

/* ---- coming and going ---------------------------------------------------------------------- */

void kvpd_guest_end(struct kvpd_guest *g, const char *why)
{
	struct kvpd_control *c = g->control;
	int r;

	if (g->source.dead)
		return;
	g->source.dead = true;
	r = kvpd_session_detach(c->ledger, g->id);
	kvpd_log_who(KVPD_LOG_DEBUG,
		&(struct kvpd_who){ g->id, g->tenant->id, g->who.pid, g->who.uid },
		"session %u (process %d, uid %u) ends: %s", g->id, (int)g->who.pid,
		(unsigned)g->who.uid, why);
	if (r < 0)
		kvpd_err("session %u could not be detached: %s", g->id, strerror(-r));
	close(g->pidfd);
	g->tenant->guests--;
	g->tenant->idle_since_ns = kvpd_now_ns();
	c->n_guests--;
	c->status_changed = true;
	if (g->conn) {
		struct kvpd_conn *conn = g->conn;

		conn->guest = NULL;
		g->conn = NULL;
		kvpd_conn_close(conn);
	}
	TAILQ_REMOVE(&c->guests, g, link);
	TAILQ_INSERT_TAIL(&c->dead_guests, g, link);
}

static void guest_ready(struct kvpd_source *source, uint32_t events)
{
	(void)events;
	kvpd_guest_end((struct kvpd_guest *)source, "the process is dead");
}

struct kvpd_guest *kvpd_guest_new(
	struct kvpd_conn *conn, struct kvpd_tenant_entry *entry, uint32_t id)
{
	struct kvpd_control *c = conn->control;
	struct kvpd_guest *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	*g = (struct kvpd_guest){
		.source.ready = guest_ready,
		.control = c,
		.conn = conn,
		.tenant = entry,
		.id = id,
		.pidfd = conn->pidfd,
		.who = conn->who,
	};
	snprintf(g->listener, sizeof(g->listener), "%s", conn->tenant);
	if (kvpd_watch(c, g->pidfd, EPOLLIN, &g->source) < 0) {
		free(g);
		return NULL;
	}
	conn->pidfd = -1;
	conn->guest = g;
	entry->guests++;
	c->n_guests++;
	c->status_changed = true;
	TAILQ_INSERT_TAIL(&c->guests, g, link);
	return g;
}

/* ---- sessions that nobody can use any more -------------------------------------------------- */

uint32_t kvpd_guest_sweep(struct kvpd_control *c, pid_t pid)
{
	struct kvpd_guest *found[KVPD_LOOKS], *g, *next, *last = TAILQ_LAST(&c->guests, guest_list);
	uint32_t session[KVPD_LOOKS], n = 0, ended = 0;
	bool unused[KVPD_LOOKS];

	for (g = TAILQ_FIRST(&c->guests); g && n < KVPD_LOOKS; g = g == last ? NULL : next) {
		next = TAILQ_NEXT(g, link);
		if (g->conn || (pid && g->who.pid != pid))
			continue;
		found[n] = g;
		session[n++] = g->id;
		/* The next time others come first. */
		TAILQ_REMOVE(&c->guests, g, link);
		TAILQ_INSERT_TAIL(&c->guests, g, link);
	}
	if (!n || kvpd_sessions_unused(c->ledger, session, n, unused) < 0)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!unused[i])
			continue;
		kvpd_guest_end(found[i], "its process has replaced the program that used it");
		ended++;
	}
	return ended;
}

uint64_t kvpd_guest_turn(struct kvpd_control *c, uint64_t now)
{
	/* Connections of guests; what is left are guests without. */
	uint32_t connected = c->n_conns - c->n_pending - c->n_admins;

	if (c->n_guests <= connected)
		return UINT64_MAX;
	if (now >= c->next_sweep_ns) {
		c->next_sweep_ns = now + SWEEP_NS;
		(void)kvpd_guest_sweep(c, 0);
	}
	return c->next_sweep_ns;
}

/* ---- packets of an attached client --------------------------------------------------------- */

static int space_open(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	const struct kvp_msg_space_open *m = (const void *)packet->body;
	char reason[KVP_MSG_TEXT] = "";
	struct kvp_msg_space space;
	int r;

	r = kvpd_space_open(
		conn->control->ledger, conn->guest->id, &m->canon, reason, sizeof(reason), &space);
	if (r < 0) {
		kvpd_conn_error(conn, packet->h.tag, r, *reason ? reason : strerror(-r));
		return 0;
	}
	return kvpd_conn_send(conn, KVP_MSG_SPACE, packet->h.tag, &space, sizeof(space), NULL, 0);
}

static int extent_get(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	const struct kvp_msg_id *id = (const void *)packet->body;
	struct kvp_msg_extent extent;
	kvp_autoclose int fd = -1;
	int r;

	r = kvpd_extent_get(conn->control->ledger, conn->guest->id, id->id, &extent, &fd);
	if (r < 0) {
		kvpd_conn_error(conn, packet->h.tag, r, "there is no such extent in this tenant");
		return 0;
	}
	return kvpd_conn_send_extent(conn, packet->h.tag, &extent, fd);
}

void kvpd_guest_packet(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	struct kvpd_guest *g = conn->guest;
	struct kvpd_ledger *ledger = conn->control->ledger;
	const struct kvp_msg_id *id = (const void *)packet->body;
	int r = 0;

	switch (packet->h.type) {
	case KVP_MSG_SPACE_OPEN:
		r = space_open(conn, packet);
		break;
	case KVP_MSG_EXTENT_GET:
		r = extent_get(conn, packet);
		break;
	/* These have no answer; an id that does not exist is a client that is late. */
	case KVP_MSG_SPACE_CLOSE:
		(void)kvpd_space_close(ledger, g->id, id);
		break;
	case KVP_MSG_ARENA_ACK:
		(void)kvpd_arena_ack(ledger, g->id, id);
		break;
	case KVP_MSG_RETIRE_ACK:
		(void)kvpd_retire_ack(ledger, g->id, id);
		break;
	case KVP_MSG_BYE:
		kvpd_guest_end(g, "the client said so");
		return;
	}
	if (r < 0)
		kvpd_conn_close(conn);
}

/* ---- what the ledger says ------------------------------------------------------------------ */

static void tell_tenant(struct kvpd_control *c, const struct kvpd_event *e)
{
	const struct kvp_msg_id id = { e->extent.extent, e->extent.generation };
	struct kvpd_guest *g, *next;

	for (g = TAILQ_FIRST(&c->guests); g; g = next) {
		int r;

		next = TAILQ_NEXT(g, link);
		if (g->tenant->id != e->tenant || !g->conn)
			continue;
		if (e->type == KVPD_EV_RETIRE) {
			r = kvpd_conn_send(g->conn, KVP_MSG_RETIRE, 0, &id, sizeof(id), NULL, 0);
		} else {
			if (g->id == e->session)
				continue;
			r = kvpd_conn_send_extent(g->conn, 0, &e->extent, e->fd);
			if (r == -ENOBUFS || r == -ENOMEM)
				r = 0; /* it will ask when it needs it */
		}
		if (r < 0)
			kvpd_conn_close(g->conn);
	}
}

void kvpd_guest_event(struct kvpd_control *c, struct kvpd_event *e)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(10, 5);
	struct kvpd_guest *g;

	switch (e->type) {
	case KVPD_EV_EXTENT:
	case KVPD_EV_RETIRE:
		tell_tenant(c, e);
		break;
	case KVPD_EV_ARENA:
		g = kvpd_guest_find(c, e->session);
		if (g && g->conn &&
			kvpd_conn_send(g->conn, KVP_MSG_EXTENT, 0, &e->extent, sizeof(e->extent),
				&e->fd, 1) < 0)
			kvpd_conn_close(g->conn);
		break;
	case KVPD_EV_EXPEL:
		g = kvpd_guest_find(c, e->session);
		if (!g)
			break;
		kvpd_log_limited(&limit, KVPD_LOG_WARNING,
			&(struct kvpd_who){ g->id, g->tenant->id, g->who.pid, g->who.uid },
			"session %u (process %d, uid %u) is expelled: %s", g->id, (int)g->who.pid,
			(unsigned)g->who.uid, e->reason);
		if (g->conn)
			kvpd_conn_error(g->conn, 0, e->error, e->reason);
		kvpd_guest_end(g, "the ledger expelled it");
		break;
	}
	if (e->fd >= 0)
		close(e->fd);
}
