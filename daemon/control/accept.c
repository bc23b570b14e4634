/* SPDX-License-Identifier: Apache-2.0 */
/* Accepting: bounds for each payer, silent connections that make way, refusals at the door. */
#include "daemon/control/accept.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/control/admin.h"
#include "daemon/control/conn.h"
#include "daemon/control/listener.h"
#include "daemon/control/payer.h"
#include "daemon/control/state.h"
#include "daemon/log.h"
#include "shm/kvp_msg.h"

/* In one step: other doors have their turn before the next. */
#define STEP_ACCEPTS 16u
/* How many of the oldest are looked at: whether they are silent, and whose they are. */
#define LOOKS 16u

static struct kvpd_ratelimit refused_limit = KVPD_RATELIMIT(10, 5);

/* Connected a while ago and has not said a word: an honest client's hello follows at once. */
static bool is_silent(const struct kvpd_conn *conn, uint64_t now)
{
	struct pollfd p = { .fd = conn->fd, .events = POLLIN };

	return now - conn->since_ns > KVPD_SILENT_MS * KVPD_MS && poll(&p, 1, 0) == 0;
}

/*
 * Ends the oldest silent connection, of one payer or (NULL) of anybody, so that silent clients keep
 * nobody out. False if there is none: the others are only waiting for their turn.
 */
static bool end_a_silent_one(struct kvpd_control *c, struct kvpd_payer *payer)
{
	struct kvpd_conn *o = payer ? TAILQ_FIRST(&payer->pending) : TAILQ_FIRST(&c->pending);
	const uint64_t now = kvpd_now_ns();

	for (uint32_t n = 0; o && n < LOOKS; n++) {
		if (is_silent(o, now)) {
			kvpd_conn_refuse(o, -EBUSY,
				"there are too many connections, and this one has not attached");
			return true;
		}
		o = payer ? TAILQ_NEXT(o, in_payer) : TAILQ_NEXT(o, in_due);
	}
	return false;
}

/*
 * All places are taken, by connections that have said something. Nobody waits for a crowd at the
 * door: the youngest of a payer that has more of them makes way. Most of the oldest are of payers
 * that have many. False: this one has as many as any.
 */
static bool end_one_of_a_crowd(struct kvpd_control *c, const struct kvpd_payer *payer)
{
	const struct kvpd_payer *most = payer;
	struct kvpd_conn *o = TAILQ_FIRST(&c->pending);

	for (uint32_t n = 0; o && n < LOOKS; n++, o = TAILQ_NEXT(o, in_due))
		if (o->source.payer->n_pending > most->n_pending)
			most = o->source.payer;
	if (most == payer)
		return false;
	kvpd_conn_refuse(TAILQ_LAST(&most->pending, kvpd_pending), -EBUSY,
		"there are too many connections, and this uid has the most that have not attached");
	return true;
}

/* Why one more connection of this payer cannot be taken, or NULL. -EBUSY: it may come again soon. */
static const char *no_room(struct kvpd_control *c, struct kvpd_payer *payer, int *ret_error)
{
	*ret_error = -EBUSY;
	if (payer->n_pending >= KVPD_PENDING_PER_UID && !end_a_silent_one(c, payer))
		return "this uid has too many connections that have not attached";
	if (c->n_pending >= KVPD_PENDING_MAX && !end_a_silent_one(c, NULL) &&
		!end_one_of_a_crowd(c, payer))
		return "there are too many connections that have not attached";
	*ret_error = -EUSERS;
	if (payer->n_conns >= c->config->max_sessions + KVPD_PENDING_PER_UID + KVPD_ADMIN_MAX)
		return "this uid has too many connections";
	return NULL;
}

/* A refusal without a connection of its own: best effort, and the descriptor goes. */
static void turn_away(
	struct kvpd_control *c, int fd, const struct kvpd_identity *who, int error, const char *why)
{
	struct kvp_msg_error e = { .error = error };
	const struct kvpd_who w = { .pid = who->pid, .uid = who->uid };

	c->refused++;
	snprintf(e.text, sizeof(e.text), "%s", why);
	(void)kvp_msg_send(fd, KVP_MSG_ERROR, 0, &e, sizeof(e), NULL, 0);
	close(fd);
	kvpd_log_limited(&refused_limit, KVPD_LOG_WARNING, &w,
		"refused a connection of uid %u (process %d): %s", (unsigned)who->uid,
		(int)who->pid, why);
}

/*
 * It goes in, or away. What that took is owed by the uid: who connects again and again, and has a
 * payer that is new each time, does not come before those that wait.
 */
static void take(struct kvpd_listener *l, int fd, uint64_t *now)
{
	struct kvpd_identity who = { .uid = (uid_t)-1 };
	struct kvpd_control *c = l->control;
	struct kvpd_payer *payer;
	uint64_t began = *now;
	const char *why;
	int r = kvpd_peer_identity(fd, &who);

	if (r < 0) {
		turn_away(c, fd, &who, r, "its credentials are unknown");
		return;
	}
	payer = kvpd_payer_get(&c->payers, who.uid, l->tenant ? l->tenant : "");
	if (!payer) {
		turn_away(c, fd, &who, -ENOMEM, "the daemon is out of memory");
		return;
	}
	why = no_room(c, payer, &r);
	if (!why && (r = kvpd_conn_new(c, fd, &who, payer)) < 0)
		why = "the daemon is out of memory";
	if (why)
		turn_away(c, fd, &who, r, why);
	*now = kvpd_now_ns();
	kvpd_turns_charge(payer->row, &payer->turn, *now - began);
	if (why)
		kvpd_payer_put(&c->payers, payer);
}

/* Descriptors have run out: without this, the connection would wait and epoll never sleep. */
static void shed_one(struct kvpd_listener *l)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(60, 1);
	struct kvpd_control *c = l->control;
	int fd;

	kvpd_log_limited(&limit, KVPD_LOG_ERR, NULL,
		"out of file descriptors: connections are refused; raise LimitNOFILE");
	if (c->spare_fd >= 0)
		close(c->spare_fd);
	fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		close(fd);
	c->refused++;
	c->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void kvpd_accept(struct kvpd_listener *l)
{
	uint64_t now = kvpd_now_ns();

	for (unsigned i = 0; i < STEP_ACCEPTS; i++) {
		int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
			shed_one(l);
			return;
		}
		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
			continue;
		if (fd < 0)
			return;
		take(l, fd, &now);
	}
}
