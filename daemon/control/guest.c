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
#include "daemon/control/flight.h"
#include "daemon/control/payer.h"
#include "daemon/control/posted.h"
#include "daemon/control/state.h"
#include "daemon/control/tenants.h"
#include "daemon/log.h"
#include "shm/kvp_msg.h"
#include "shm/kvp_seg.h"

#define SWEEP_NS  (1000 * KVPD_MS)
#define STEP_TOLD 16u /* guests of a tenant, before others have their turn */

/* By the number of the session, of a tenant that pays for the search. */
static struct kvpd_guest *find(const struct kvpd_tenant_entry *entry, uint32_t session)
{
	struct kvpd_guest *g;

	TAILQ_FOREACH(g, &entry->guests, in_tenant)
		if (g->id == session)
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
	r = kvpd_session_detach(c->ledger, g->id);
	kvpd_log_who(KVPD_LOG_DEBUG,
		&(struct kvpd_who){ g->id, g->tenant->id, g->who.pid, g->who.uid },
		"session %u (process %d, uid %u) ends: %s", g->id, (int)g->who.pid,
		(unsigned)g->who.uid, why);
	if (r < 0)
		kvpd_err("session %u could not be detached: %s", g->id, strerror(-r));
	kvpd_guest_end_here(g);
}

void kvpd_guest_end_here(struct kvpd_guest *g)
{
	struct kvpd_control *c = g->control;
	struct kvpd_conn *conn = g->conn;

	kvpd_source_end(&g->source);
	kvpd_unwatch(c, g->pidfd);
	close(g->pidfd);
	g->tenant->n_guests--;
	g->tenant->idle_since_ns = kvpd_now_ns();
	TAILQ_REMOVE(&g->tenant->guests, g, in_tenant);
	c->n_guests--;
	c->status_changed = true;
	if (conn)
		kvpd_conn_close(conn); /* which leaves it lost */
	TAILQ_REMOVE(&c->lost, g, in_lost);
	TAILQ_REMOVE(&g->source.payer->lost, g, in_payer);
	TAILQ_REMOVE(&c->guests, g, link);
	TAILQ_INSERT_TAIL(&c->dead_guests, g, link);
}

void kvpd_guest_lost(struct kvpd_guest *g)
{
	g->conn = NULL;
	TAILQ_INSERT_TAIL(&g->control->lost, g, in_lost);
	TAILQ_INSERT_TAIL(&g->source.payer->lost, g, in_payer);
}

void kvpd_guest_free(struct kvpd_guest *g)
{
	kvpd_payer_put(&g->control->payers, g->source.payer);
	free(g);
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
		.source = { .ready = guest_ready, .payer = conn->source.payer },
		.control = c,
		.conn = conn,
		.tenant = entry,
		.id = id,
		.pidfd = conn->pidfd,
		.who = conn->who,
		/* What was said before, the ledger has counted in. */
		.told = c->n_events,
	};
	if (kvpd_watch(c, g->pidfd, EPOLLIN, &g->source) < 0) {
		free(g);
		return NULL;
	}
	conn->pidfd = -1;
	conn->guest = g;
	kvpd_payer_ref(g->source.payer);
	entry->n_guests++;
	TAILQ_INSERT_TAIL(&entry->guests, g, in_tenant);
	c->n_guests++;
	c->status_changed = true;
	TAILQ_INSERT_TAIL(&c->guests, g, link);
	return g;
}

/* ---- sessions that nobody can use any more -------------------------------------------------- */

static uint32_t end_unused(struct kvpd_control *c, struct kvpd_guest *guest[], uint32_t n)
{
	uint32_t session[KVPD_LOOKS], ended = 0;
	bool unused[KVPD_LOOKS];

	for (uint32_t i = 0; i < n; i++)
		session[i] = guest[i]->id;
	if (!n || kvpd_sessions_unused(c->ledger, session, n, unused) < 0)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		if (!unused[i])
			continue;
		kvpd_guest_end(guest[i], "its process has replaced the program that used it");
		ended++;
	}
	return ended;
}

uint32_t kvpd_guest_sweep(struct kvpd_control *c)
{
	struct kvpd_guest *found[KVPD_LOOKS], *g, *last = TAILQ_LAST(&c->lost, lost_list);
	uint32_t n = 0;

	while ((g = TAILQ_FIRST(&c->lost)) && n < KVPD_LOOKS) {
		found[n++] = g;
		/* The next time others come first. */
		TAILQ_REMOVE(&c->lost, g, in_lost);
		TAILQ_INSERT_TAIL(&c->lost, g, in_lost);
		if (g == last)
			break;
	}
	return end_unused(c, found, n);
}

uint32_t kvpd_guest_sweep_process(struct kvpd_payer *payer, pid_t pid)
{
	struct kvpd_guest *found[KVPD_LOOKS], *g;
	struct kvpd_control *c = NULL;
	uint32_t n = 0;

	TAILQ_FOREACH(g, &payer->lost, in_payer) {
		if (g->who.pid != pid || n == KVPD_LOOKS)
			continue;
		c = g->control;
		found[n++] = g;
	}
	return c ? end_unused(c, found, n) : 0;
}

uint64_t kvpd_guest_turn(struct kvpd_control *c, uint64_t now)
{
	if (TAILQ_EMPTY(&c->lost))
		return UINT64_MAX;
	if (now >= c->next_sweep_ns) {
		c->next_sweep_ns = now + SWEEP_NS;
		(void)kvpd_guest_sweep(c);
	}
	return c->next_sweep_ns;
}

/* ---- packets of an attached client --------------------------------------------------------- */

/* A SPACE_OPEN that takes several steps. */
struct kvpd_opening {
	uint32_t tag;
	struct kvp_space_canon canon;
};

/*
 * -EINPROGRESS: it was not answered yet. What comes with a descriptor waits for all else that was sent: in the queue each would be
 * one of the daemon's own, of a client that reads nothing.
 */
static int open_step(struct kvpd_conn *conn, uint32_t tag, const struct kvp_space_canon *canon)
{
	const bool calibrated = kvpd_space_calibrated(canon);
	char reason[KVP_MSG_TEXT] = "";
	struct kvp_msg_space space;
	int r, calibration = -1;

	if (calibrated && conn->n_out)
		return -EINPROGRESS;
	if (calibrated && !kvpd_flight_may_attach(conn)) {
		kvpd_conn_error(conn, tag, -EBUSY,
			"clients of this user have received too little of what they were sent");
		return 0;
	}
	r = kvpd_space_open(
		conn->control->ledger, conn->guest->id, canon, reason, sizeof(reason), &space);
	if (r == -EINPROGRESS)
		return r;
	if (r < 0) {
		kvpd_conn_error(conn, tag, r, *reason ? reason : strerror(-r));
		return 0;
	}
	if (calibrated)
		calibration = kvpd_space_calibration(conn->control->ledger, canon);
	return kvpd_conn_send(conn, KVP_MSG_SPACE, tag, &space, sizeof(space), &calibration,
		calibration < 0 ? 0 : 1);
}

/* Soon, or when the queue is empty: send_what_waits() says so. */
static void open_later(struct kvpd_conn *conn)
{
	if (!conn->n_out || !kvpd_space_calibrated(&conn->opening->canon))
		kvpd_source_raise(&conn->source, KVPD_AGAIN);
}

static int space_open(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	const struct kvp_msg_space_open *m = (const void *)packet->body;
	struct kvpd_opening *o;
	int r = open_step(conn, packet->h.tag, &m->canon);

	if (r != -EINPROGRESS)
		return r;
	o = malloc(sizeof(*o));
	if (!o) {
		kvpd_conn_error(conn, packet->h.tag, -ENOMEM, strerror(ENOMEM));
		return 0;
	}
	*o = (struct kvpd_opening){ .tag = packet->h.tag, .canon = m->canon };
	conn->opening = o;
	open_later(conn);
	return 0;
}

void kvpd_guest_open_on(struct kvpd_conn *conn)
{
	int r = open_step(conn, conn->opening->tag, &conn->opening->canon);

	if (r == -EINPROGRESS) {
		open_later(conn);
		return;
	}
	free(conn->opening);
	conn->opening = NULL;
	if (r < 0)
		kvpd_conn_close(conn);
}

static int extent_get(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	const struct kvp_msg_id *id = (const void *)packet->body;
	struct kvp_msg_extent extent = { .extent = id->id };
	kvp_autoclose int fd = -1;
	int r;

	/* What cannot be sent now is not asked for. */
	if (conn->n_out || !kvpd_flight_may_show(conn))
		return kvpd_conn_send_extent(conn, packet->h.tag, &extent, -1);
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

static void tell(struct kvpd_guest *g, const struct kvpd_event *e)
{
	const struct kvp_msg_id id = { e->extent.extent, e->extent.generation };
	int r = 0;

	if (!g->conn)
		return;
	if (e->type == KVPD_EV_RETIRE) {
		r = kvpd_conn_send(g->conn, KVP_MSG_RETIRE, 0, &id, sizeof(id), NULL, 0);
	} else if (g->id != e->session && kvpd_conn_imports(g->conn, &e->extent)) {
		r = kvpd_conn_send_extent(g->conn, 0, &e->extent, e->fd);
		if (r == -ENOBUFS || r == -ENOMEM)
			r = 0; /* it will ask when it needs it */
	}
	if (r < 0)
		kvpd_conn_close(g->conn);
}

/*
 * Who is looked at goes to the end of the list, and newcomers, who need not be told, join it there:
 * those who have not been told are always before the others.
 */
static bool tell_some(struct kvpd_tenant_entry *entry, struct kvpd_posted *p)
{
	struct kvpd_guest *g;

	if (!p->begun)
		p->left = entry->n_guests;
	p->begun = true;
	for (uint32_t n = 0; n < STEP_TOLD && p->left && (g = TAILQ_FIRST(&entry->guests)); n++) {
		p->left--;
		TAILQ_REMOVE(&entry->guests, g, in_tenant);
		TAILQ_INSERT_TAIL(&entry->guests, g, in_tenant);
		if (g->told < p->number) {
			g->told = p->number;
			tell(g, &p->event);
		}
	}
	return !p->left || TAILQ_EMPTY(&entry->guests);
}

static void offer_arena(struct kvpd_guest *g, const struct kvpd_event *e)
{
	if (g && g->conn &&
		kvpd_conn_send(
			g->conn, KVP_MSG_EXTENT, 0, &e->extent, sizeof(e->extent), &e->fd, 1) < 0)
		kvpd_conn_close(g->conn);
}

static void expel(struct kvpd_guest *g, const struct kvpd_event *e)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(10, 5);

	if (!g)
		return;
	kvpd_log_limited(&limit, KVPD_LOG_WARNING,
		&(struct kvpd_who){ g->id, g->tenant->id, g->who.pid, g->who.uid },
		"session %u (process %d, uid %u) is expelled: %s", g->id, (int)g->who.pid,
		(unsigned)g->who.uid, e->reason);
	if (g->conn)
		kvpd_conn_error(g->conn, 0, e->error, e->reason);
	kvpd_guest_end(g, "the ledger expelled it");
}

bool kvpd_guest_event(struct kvpd_tenant_entry *entry, struct kvpd_posted *p)
{
	const struct kvpd_event *e = &p->event;

	switch (e->type) {
	case KVPD_EV_EXTENT:
	case KVPD_EV_RETIRE:
		return tell_some(entry, p);
	case KVPD_EV_ARENA:
		offer_arena(find(entry, e->session), e);
		break;
	case KVPD_EV_EXPEL:
		expel(find(entry, e->session), e);
		break;
	}
	return true;
}
