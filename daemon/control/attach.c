/* SPDX-License-Identifier: Apache-2.0 */
/* Attaching: HELLO, the proof of the peer's identity, the session's descriptors. */
#include "daemon/control/attach.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/control/admin.h"
#include "daemon/control/conn.h"
#include "daemon/control/flight.h"
#include "daemon/control/guest.h"
#include "daemon/control/payer.h"
#include "daemon/control/state.h"
#include "daemon/control/tenants.h"
#include "daemon/log.h"
#include "shm/kvp_msg.h"

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

	if (!s->error && kvpd_conn_imports(s->conn, extent))
		r = kvpd_conn_send_extent(s->conn, 0, extent, fd);
	if (r < 0 && r != -ENOBUFS && r != -ENOMEM)
		s->error = r;
	if (fd >= 0)
		close(fd);
}

/* Shows it some of the extents; after the last one it has attached. */
static int show_some(struct kvpd_conn *conn)
{
	struct extent_sender sender = { .conn = conn };
	int r = kvpd_session_extents(
		conn->control->ledger, conn->guest->id, &conn->show_from, send_extent, &sender);

	if (r < 0 || sender.error)
		return r < 0 ? r : sender.error;
	conn->showing = conn->show_from;
	if (!conn->showing)
		return kvpd_conn_send(conn, KVP_MSG_ATTACHED, 0, NULL, 0, NULL, 0);
	kvpd_source_raise(&conn->source, KVPD_AGAIN);
	return 0;
}

void kvpd_attach_on(struct kvpd_conn *conn)
{
	if (show_some(conn) < 0)
		kvpd_conn_close(conn);
}

static int welcome(struct kvpd_conn *conn, const struct kvpd_attach *a)
{
	struct kvpd_control *c = conn->control;
	const struct kvp_msg_welcome w = {
		.abi = KVP_ABI_VERSION,
		.session = a->session,
		.tenant = conn->guest->tenant->id,
		.epoch = c->epoch,
		.catalog_bytes = a->catalog_bytes,
		.page_bytes = a->page_bytes,
	};
	const int fds[] = { a->catalog_fd, a->page_fd, a->wake_fd };
	int r;

	r = kvpd_conn_send(conn, KVP_MSG_WELCOME, conn->hello_tag, &w, sizeof(w), fds, 3);
	return r < 0 ? r : show_some(conn);
}

/* The session is in the ledger: now it gets a home here, and the client its descriptors. */
static int take_in(
	struct kvpd_conn *conn, struct kvpd_tenant_entry *entry, const struct kvpd_attach *a)
{
	struct kvpd_control *c = conn->control;
	struct kvpd_guest *g = kvpd_guest_new(conn, entry, a->session);

	if (!g) {
		(void)kvpd_session_detach(c->ledger, a->session);
		return -ENOMEM;
	}
	kvpd_conn_settle(conn, KVPD_CONN_CLIENT);
	kvpd_log_who(KVPD_LOG_DEBUG, &(struct kvpd_who){ g->id, entry->id, g->who.pid, g->who.uid },
		"session %u: '%s' (process %d, uid %u) attaches to tenant '%s'", g->id, conn->name,
		(int)g->who.pid, (unsigned)g->who.uid, entry->name);
	/* It never had its page, so nothing of it can be in use. */
	if (welcome(conn, a) < 0)
		kvpd_guest_end(g, "it could not be welcomed");
	return 0;
}

static int attach(struct kvpd_conn *conn, struct kvpd_tenant_entry *entry)
{
	struct kvpd_peer peer = {
		.pid = conn->who.pid,
		.uid = conn->who.uid,
		.gid = conn->who.gid,
	};
	struct kvpd_attach a;
	int r;

	memcpy(peer.name, conn->name, sizeof(peer.name));
	/* What the process had before it replaced its program goes first. */
	(void)kvpd_guest_sweep_process(conn->source.payer, conn->who.pid);
	r = kvpd_session_attach(conn->control->ledger, entry->id, &peer, &a);
	if ((r == -EUSERS || r == -EMFILE) && kvpd_guest_sweep(conn->control))
		r = kvpd_session_attach(conn->control->ledger, entry->id, &peer, &a);
	if (r < 0)
		return r;
	r = take_in(conn, entry, &a);
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
	struct kvpd_tenant_entry *entry;
	const char *why = NULL;
	char own[64];
	bool unlisted;
	int r;

	t = kvpd_admit(c, c->config, conn->source.payer->door, conn->who.uid, &unlisted, &why);
	if (!t && !unlisted) {
		kvpd_conn_refuse(conn, -EACCES, "%s", why);
		return;
	}
	if (!kvpd_flight_may_attach(conn)) {
		kvpd_conn_refuse(conn, -EBUSY,
			"clients of this uid do not receive the descriptors that they were sent");
		return;
	}
	snprintf(own, sizeof(own), "uid-%u", (unsigned)conn->who.uid);
	r = kvpd_entry_open(
		c, t ? t->name : own, t ? &t->limits : &c->config->defaults, t != NULL, &entry);
	if (r == 0)
		r = attach(conn, entry);
	if (r < 0)
		kvpd_conn_refuse(conn, r, "%s", attach_problem(r));
}

/* Asks for credentials that are sent now, by the process that has that number now. */
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

	if (*conn->source.payer->door) {
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

void kvpd_attach_hello(struct kvpd_conn *conn, const struct kvp_packet *packet)
{
	const struct kvp_msg_hello *h = (const void *)packet->body;

	conn->hello_tag = packet->h.tag;
	conn->imports = h->imports;
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

void kvpd_attach_proof(struct kvpd_conn *conn, const struct kvp_packet *packet)
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
