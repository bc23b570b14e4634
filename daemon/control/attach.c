/* SPDX-License-Identifier: Apache-2.0 */
/* Who may attach, to which tenant; the life of a session; the packets of attached clients. */
#include "daemon/control/control_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/kvp_seg.h"

static void session_ready(struct kvpd_source *source, uint32_t events);

/* ---- tenants ------------------------------------------------------------------------------- */

const struct kvpd_tenant_config *kvpd_admit(const struct kvpd_control *c,
	const struct kvpd_config *config, const char *listener, uid_t uid, bool *ret_unlisted,
	const char **ret_why)
{
	const struct kvpd_tenant_config *t;

	*ret_unlisted = false;
	if (uid == c->account.uid && !config->trust_daemon_uid) {
		*ret_why =
			"clients of kvpoold's own uid could write all of its memory; run them as "
			"another user, or set trust_daemon_uid";
		return NULL;
	}
	if (uid == c->overflow_uid && !config->trust_overflow_uid) {
		*ret_why = "this uid stands for all that a user namespace does not map; map it, or "
			   "set trust_overflow_uid";
		return NULL;
	}
	if (*listener) {
		t = kvpd_config_by_name(config, listener);
		if (t && t->socket && (!t->n_uids || kvpd_tenant_lists(t, uid)))
			return t;
		*ret_why = "this uid is not among those that may use the tenant's socket; the "
			   "administrator lists them in `uids`";
		return NULL;
	}
	t = kvpd_config_by_uid(config, uid);
	if (t)
		return t;
	if (config->unlisted_uids)
		*ret_unlisted = true;
	else
		*ret_why = "this uid is in no tenant; the administrator lists it in a tenant's "
			   "`uids`, or sets unlisted_uids";
	return NULL;
}

/* A uid that nobody listed and that is not here now makes room for one that is. */
static bool reclaim_idle(struct kvpd_control *c)
{
	struct kvpd_domain *d, *oldest = NULL;

	TAILQ_FOREACH(d, &c->domains, link)
		if (!d->listed && !d->sessions &&
			(!oldest || d->idle_since_ns < oldest->idle_since_ns))
			oldest = d;
	if (!oldest)
		return false;
	kvpd_domain_abandon(c, oldest, "nobody uses it and room is needed for another uid");
	return true;
}

int kvpd_domain_open(struct kvpd_control *c, const char *name, const struct kvpd_limits *limits,
	bool listed, struct kvpd_domain **ret_domain)
{
	struct kvpd_domain *d = kvpd_domain_by_name(c, name);
	int r;

	if (d) {
		*ret_domain = d;
		return 0;
	}
	d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	snprintf(d->name, sizeof(d->name), "%s", name);
	d->listed = listed;
	d->idle_since_ns = kvpd_now_ns();
	do {
		r = kvpd_tenant_open(c->ledger, name, limits, &d->tenant);
	} while ((r == -ENOSPC || r == -EUSERS || r == -ENOMEM) && reclaim_idle(c));
	if (r < 0) {
		free(d);
		return r;
	}
	/* An extent still on its way to an abandoned tenant that had this id is not for the new
	 * one. */
	kvpd_forget_events(c, d->tenant);
	TAILQ_INSERT_TAIL(&c->domains, d, link);
	*ret_domain = d;
	return 0;
}

void kvpd_domain_abandon(struct kvpd_control *c, struct kvpd_domain *domain, const char *why)
{
	struct kvpd_session *s, *next;
	int r;

	kvpd_notice("tenant '%s' ends: %s", domain->name, why);
	r = kvpd_tenant_abandon(c->ledger, domain->tenant);
	if (r < 0)
		kvpd_err("tenant '%s' could not be ended: %s", domain->name, strerror(-r));
	for (s = TAILQ_FIRST(&c->sessions); s; s = next) {
		next = TAILQ_NEXT(s, link);
		if (s->domain == domain)
			kvpd_session_end(s, "its tenant ended");
	}
	TAILQ_REMOVE(&c->domains, domain, link);
	free(domain);
}

/* ---- attaching ----------------------------------------------------------------------------- */

struct extent_sender {
	struct kvpd_conn *conn;
	int error;
};

/*
 * An extent that a client does not know is a miss for it until it asks with EXTENT_GET: what does
 * not fit into the queue may be left out.
 */
static void send_extent(void *ctx, const struct kvp_msg_extent *extent, int fd)
{
	struct extent_sender *s = ctx;
	int r = 0;

	if (!s->error)
		r = kvpd_conn_send(s->conn, KVP_MSG_EXTENT, 0, extent, sizeof(*extent), &fd, 1);
	if (r < 0 && r != -ENOBUFS && r != -EMFILE)
		s->error = r;
	close(fd);
}

static int welcome(struct kvpd_conn *conn, const struct kvpd_attach *a)
{
	struct kvpd_control *c = conn->control;
	struct extent_sender sender = { .conn = conn };
	const struct kvp_msg_welcome w = {
		.abi = KVP_ABI_VERSION,
		.session = a->session,
		.tenant = conn->session->domain->tenant,
		.epoch = c->epoch,
		.catalog_bytes = a->catalog_bytes,
		.page_bytes = a->page_bytes,
	};
	const int fds[] = { a->catalog_fd, a->page_fd, a->wake_fd };
	int r;

	r = kvpd_conn_send(conn, KVP_MSG_WELCOME, conn->hello_tag, &w, sizeof(w), fds, 3);
	if (r < 0)
		return r;
	r = kvpd_session_extents(c->ledger, a->session, send_extent, &sender);
	if (r < 0 || sender.error)
		return r < 0 ? r : sender.error;
	return kvpd_conn_send(conn, KVP_MSG_ATTACHED, 0, NULL, 0, NULL, 0);
}

static struct kvpd_session *session_new(
	struct kvpd_conn *conn, struct kvpd_domain *domain, uint32_t id)
{
	struct kvpd_control *c = conn->control;
	struct kvpd_session *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	*s = (struct kvpd_session){
		.source.ready = session_ready,
		.control = c,
		.conn = conn,
		.domain = domain,
		.id = id,
		.pidfd = conn->pidfd,
		.who = conn->who,
	};
	snprintf(s->listener, sizeof(s->listener), "%s", conn->tenant);
	if (kvpd_watch(c, s->pidfd, EPOLLIN, &s->source) < 0) {
		free(s);
		return NULL;
	}
	conn->pidfd = -1;
	conn->session = s;
	domain->sessions++;
	c->n_sessions++;
	c->status_changed = true;
	TAILQ_INSERT_TAIL(&c->sessions, s, link);
	return s;
}

/* The session is in the ledger: now it gets a home here, and the client its descriptors. */
static int take_in(struct kvpd_conn *conn, struct kvpd_domain *domain, const struct kvpd_attach *a)
{
	struct kvpd_control *c = conn->control;
	struct kvpd_session *s = session_new(conn, domain, a->session);

	if (!s) {
		(void)kvpd_session_detach(c->ledger, a->session);
		return -ENOMEM;
	}
	kvpd_conn_settle(conn, KVPD_CONN_CLIENT);
	kvpd_log_who(KVPD_LOG_DEBUG,
		&(struct kvpd_who){ s->id, domain->tenant, s->who.pid, s->who.uid },
		"session %u: '%s' (process %d, uid %u) attaches to tenant '%s'", s->id, conn->name,
		(int)s->who.pid, (unsigned)s->who.uid, domain->name);
	/* It never had its page, so nothing of it can be in use. */
	if (welcome(conn, a) < 0)
		kvpd_session_end(s, "it could not be welcomed");
	return 0;
}

static int attach(struct kvpd_conn *conn, struct kvpd_domain *domain)
{
	struct kvpd_peer peer = {
		.pid = conn->who.pid,
		.uid = conn->who.uid,
		.gid = conn->who.gid,
	};
	struct kvpd_attach a;
	int r;

	memcpy(peer.name, conn->name, sizeof(peer.name));
	r = kvpd_session_attach(conn->control->ledger, domain->tenant, &peer, &a);
	if (r < 0)
		return r;
	r = take_in(conn, domain, &a);
	/* The client has copies of its own. */
	close(a.catalog_fd);
	close(a.page_fd);
	close(a.wake_fd);
	return r;
}

static const char *attach_problem(int r)
{
	switch (r) {
	case -EUSERS:
		return "too many sessions (max_sessions), or too many tenants";
	case -ENOSPC:
		return "the shares of the tenants that exist leave too little of `memory` for one "
		       "more";
	case -EMFILE:
		return "the daemon is out of file descriptors; raise LimitNOFILE";
	default:
		return strerror(-r);
	}
}

/* The process is known for certain: in it goes, or not. */
static void admit(struct kvpd_conn *conn)
{
	struct kvpd_control *c = conn->control;
	const struct kvpd_tenant_config *t;
	struct kvpd_domain *domain;
	const char *why = NULL;
	char own[64];
	bool unlisted;
	int r;

	t = kvpd_admit(c, c->config, conn->tenant, conn->who.uid, &unlisted, &why);
	if (!t && !unlisted) {
		kvpd_conn_refuse(conn, -EACCES, "%s", why);
		return;
	}
	snprintf(own, sizeof(own), "uid-%u", (unsigned)conn->who.uid);
	r = kvpd_domain_open(
		c, t ? t->name : own, t ? &t->limits : &c->config->defaults, t != NULL, &domain);
	if (r == 0)
		r = attach(conn, domain);
	if (r < 0)
		kvpd_conn_refuse(conn, r, "%s", attach_problem(r));
}

/* Asks for credentials that are sent now, by whoever has that number now. */
static int ask_proof(struct kvpd_conn *conn)
{
	struct kvp_msg_nonce nonce;
	int r, on = 1;

	r = kvpd_peer_pidfd_by_number(conn->who.pid, &conn->pidfd);
	if (r < 0)
		return r;
	if (setsockopt(conn->fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0 ||
		getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce))
		return -errno;
	conn->nonce = nonce.nonce;
	conn->state = KVPD_CONN_PROVE;
	return kvpd_conn_send(conn, KVP_MSG_PROVE, conn->hello_tag, &nonce, sizeof(nonce), NULL, 0);
}

static void hello_client(struct kvpd_conn *conn)
{
	struct kvpd_control *c = conn->control;
	int r = -EOPNOTSUPP;

	if (c->config->peer_pidfd != KVPD_NEVER)
		r = kvpd_peer_pidfd(conn->fd, &conn->pidfd);
	if (r == 0) {
		admit(conn);
		return;
	}
	if (r == -EOPNOTSUPP && c->config->peer_pidfd != KVPD_REQUIRE)
		r = ask_proof(conn);
	if (r < 0)
		kvpd_conn_refuse(conn, r, "its process cannot be watched: %s%s", strerror(-r),
			conn->who.pid ? "" : " (it is in a pid namespace that kvpoold cannot see)");
}

static void hello_admin(struct kvpd_conn *conn)
{
	const struct kvp_msg_welcome w = {
		.abi = KVP_ABI_VERSION,
		.epoch = conn->control->epoch,
	};

	if (*conn->tenant) {
		kvpd_conn_refuse(conn, -EPERM, "administration is on the main socket only");
		return;
	}
	if (!kvpd_admin_allowed(conn)) {
		kvpd_conn_refuse(conn, -EPERM,
			"only root and members of admin_group (%s) may administer kvpoold",
			*conn->control->config->admin_group ? conn->control->config->admin_group
							    : "not set");
		return;
	}
	if (conn->control->n_admins >= KVPD_ADMIN_MAX) {
		kvpd_conn_refuse(conn, -EUSERS, "too many administrators are connected");
		return;
	}
	kvpd_conn_settle(conn, KVPD_CONN_ADMIN);
	if (kvpd_conn_send(conn, KVP_MSG_WELCOME, conn->hello_tag, &w, sizeof(w), NULL, 0) < 0)
		kvpd_conn_close(conn);
}

void kvpd_session_hello(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	const struct kvp_msg_hello *h = (const void *)packet->body;

	conn->hello_tag = packet->h.tag;
	memcpy(conn->name, h->name, sizeof(conn->name));
	/* It is shown to operators and in JSON. */
	for (char *p = conn->name; *p; p++)
		if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
			*p = '?';
	if (h->abi_min > KVP_ABI_VERSION || h->abi_max < KVP_ABI_VERSION)
		kvpd_conn_refuse(conn, -EPROTONOSUPPORT,
			"the library speaks ABI versions %u to %u, this kvpoold %u; install the "
			"same "
			"release of both",
			h->abi_min, h->abi_max, KVP_ABI_VERSION);
	else if (h->role == KVP_HELLO_CLIENT)
		hello_client(conn);
	else if (h->role == KVP_HELLO_ADMIN)
		hello_admin(conn);
	else
		kvpd_conn_refuse(conn, -EPROTO, "HELLO names no role that exists");
}

void kvpd_session_proof(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	const struct kvp_msg_nonce *n = (const void *)packet->body;

	if (n->nonce != conn->nonce || !packet->has_cred || packet->cred.pid != conn->who.pid ||
		packet->cred.uid != conn->who.uid) {
		kvpd_conn_refuse(conn, -EACCES, "the proof is of another process");
		return;
	}
	/* Alive after its credentials came: the number was its own all the time. */
	if (!kvpd_pidfd_alive(conn->pidfd)) {
		kvpd_conn_refuse(conn, -ESRCH, "the process is gone");
		return;
	}
	admit(conn);
}

/* ---- the end of a session ------------------------------------------------------------------ */

void kvpd_session_end(struct kvpd_session *s, const char *why)
{
	struct kvpd_control *c = s->control;
	int r;

	if (s->source.dead)
		return;
	s->source.dead = true;
	r = kvpd_session_detach(c->ledger, s->id);
	kvpd_log_who(KVPD_LOG_DEBUG,
		&(struct kvpd_who){ s->id, s->domain->tenant, s->who.pid, s->who.uid },
		"session %u (process %d, uid %u) ends: %s", s->id, (int)s->who.pid,
		(unsigned)s->who.uid, why);
	if (r < 0)
		kvpd_err("session %u could not be detached: %s", s->id, strerror(-r));
	close(s->pidfd);
	s->domain->sessions--;
	s->domain->idle_since_ns = kvpd_now_ns();
	c->n_sessions--;
	c->status_changed = true;
	if (s->conn) {
		struct kvpd_conn *conn = s->conn;

		conn->session = NULL;
		s->conn = NULL;
		kvpd_conn_close(conn);
	}
	TAILQ_REMOVE(&c->sessions, s, link);
	TAILQ_INSERT_TAIL(&c->dead_sessions, s, link);
}

static void session_ready(struct kvpd_source *source, uint32_t events)
{
	(void)events;
	kvpd_session_end((struct kvpd_session *)source, "the process is dead");
}

/* ---- packets of an attached client --------------------------------------------------------- */

static int space_open(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	const struct kvp_msg_space_open *m = (const void *)packet->body;
	char reason[KVP_MSG_TEXT] = "";
	struct kvp_msg_space space;
	int r;

	r = kvpd_space_open(conn->control->ledger, conn->session->id, &m->canon, reason,
		sizeof(reason), &space);
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

	r = kvpd_extent_get(conn->control->ledger, conn->session->id, id->id, &extent, &fd);
	if (r < 0) {
		kvpd_conn_error(conn, packet->h.tag, r, "there is no such extent in this tenant");
		return 0;
	}
	return kvpd_conn_send(conn, KVP_MSG_EXTENT, packet->h.tag, &extent, sizeof(extent), &fd, 1);
}

void kvpd_session_packet(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	struct kvpd_session *s = conn->session;
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
		(void)kvpd_space_close(ledger, s->id, id);
		break;
	case KVP_MSG_ARENA_ACK:
		(void)kvpd_arena_ack(ledger, s->id, id);
		break;
	case KVP_MSG_RETIRE_ACK:
		(void)kvpd_retire_ack(ledger, s->id, id);
		break;
	case KVP_MSG_BYE:
		kvpd_session_end(s, "the client said so");
		return;
	}
	if (r < 0)
		kvpd_conn_close(conn);
}

/* ---- what the ledger says ------------------------------------------------------------------ */

static void tell_tenant(struct kvpd_control *c, const struct kvpd_event *e)
{
	const struct kvp_msg_id id = { e->extent.extent, e->extent.generation };
	struct kvpd_session *s, *next;

	for (s = TAILQ_FIRST(&c->sessions); s; s = next) {
		int r;

		next = TAILQ_NEXT(s, link);
		if (s->domain->tenant != e->tenant || !s->conn)
			continue;
		if (e->type == KVPD_EV_RETIRE) {
			r = kvpd_conn_send(s->conn, KVP_MSG_RETIRE, 0, &id, sizeof(id), NULL, 0);
		} else {
			if (s->id == e->session)
				continue;
			r = kvpd_conn_send(s->conn, KVP_MSG_EXTENT, 0, &e->extent,
				sizeof(e->extent), &e->fd, 1);
			if (r == -ENOBUFS || r == -EMFILE)
				r = 0; /* it will ask when it needs it */
		}
		if (r < 0)
			kvpd_conn_close(s->conn);
	}
}

void kvpd_session_event(struct kvpd_control *c, struct kvpd_event *e)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(10, 5);
	struct kvpd_session *s;

	switch (e->type) {
	case KVPD_EV_EXTENT:
	case KVPD_EV_RETIRE:
		tell_tenant(c, e);
		break;
	case KVPD_EV_ARENA:
		s = kvpd_session_by_id(c, e->session);
		if (s && s->conn &&
			kvpd_conn_send(s->conn, KVP_MSG_EXTENT, 0, &e->extent, sizeof(e->extent),
				&e->fd, 1) < 0)
			kvpd_conn_close(s->conn);
		break;
	case KVPD_EV_EXPEL:
		s = kvpd_session_by_id(c, e->session);
		if (!s)
			break;
		kvpd_log_limited(&limit, KVPD_LOG_WARNING,
			&(struct kvpd_who){ s->id, s->domain->tenant, s->who.pid, s->who.uid },
			"session %u (process %d, uid %u) is expelled: %s", s->id, (int)s->who.pid,
			(unsigned)s->who.uid, e->reason);
		if (s->conn)
			kvpd_conn_error(s->conn, 0, e->error, e->reason);
		kvpd_session_end(s, "the ledger expelled it");
		break;
	}
	if (e->fd >= 0)
		close(e->fd);
}
