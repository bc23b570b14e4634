/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joining a daemon and losing it: what lies between its WELCOME and the moment from which calls find
 * the attachment, and the end of that.
 */
#include "libclient/thread.h"
#include "libclient/cuda.h"
#include "libclient/events.h"
#include "libclient/ring.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/kvp_seg.h"

/* Extents until ATTACHED. */
static int first_extents(struct attachment *att, uint64_t deadline, struct kvp_packet *p)
{
	for (;;) {
		int r = packet_next(att->client, att->sock, deadline, p), attached;

		if (r < 0)
			return r;
		attached = p->h.type == KVP_MSG_ATTACHED;
		if (p->h.type == KVP_MSG_EXTENT)
			r = extent_take(att, p);
		else if (p->h.type == KVP_MSG_ERROR)
			r = attempt_refused(att->client, p);
		else if (!attached)
			r = -EPROTO;
		kvp_msg_done(p);
		if (r < 0 || attached)
			return r;
	}
}

static int ask_space(struct attachment *att, const struct kvp_msg_space_open *open,
	uint64_t deadline, struct kvp_packet *p, struct kvp_msg_space *ret_space, int *ret_fd)
{
	int r = packet_send(att, KVP_MSG_SPACE_OPEN, 1, open, sizeof(*open));

	while (r == 0) {
		r = packet_next(att->client, att->sock, deadline, p);
		if (r < 0)
			break;
		if (p->h.type == KVP_MSG_SPACE) {
			memcpy(ret_space, p->body, sizeof(*ret_space));
			*ret_fd = p->h.n_fds ? kvp_msg_take_fd(p, 0) : -1;
			kvp_msg_done(p);
			return 1;
		}
		if (p->h.type == KVP_MSG_ERROR && p->h.tag == 1) {
			const struct kvp_msg_error *e = (const void *)p->body;

			/* No: this space stays closed, misses. Not now: as if it had not let us in. */
			r = e->error == -EBUSY ? attempt_refused(att->client, p) : 0;
			kvp_msg_done(p);
			return r;
		}
		r = packet_dispatch(att, p);
		kvp_msg_done(p);
	}
	return r;
}

static struct kvp_space *next_unbound(struct attachment *att)
{
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		struct kvp_space *s = att->client->spaces[i];

		if (s && att->binds[i].tried != s->stamp)
			return s;
	}
	return NULL;
}

/* Opens the client's spaces again and, when none is left, makes the attachment current. */
static int publish(struct attachment *att, uint64_t deadline, struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	struct kvp_space *space;

	pthread_mutex_lock(&c->lock);
	while ((space = next_unbound(att))) {
		struct kvp_msg_space_open open = { .canon = space->canon };
		struct kvp_msg_space answer;
		uint64_t stamp = space->stamp;
		uint32_t number = space->number;
		kvp_autoclose int fd = -1;
		int r;

		att->binds[number].tried = stamp;
		pthread_mutex_unlock(&c->lock);
		r = ask_space(att, &open, deadline, p, &answer, &fd);
		if (r < 0)
			return r;
		pthread_mutex_lock(&c->lock);
		if (!r)
			continue;
		if (c->spaces[number] != space || space->stamp != stamp ||
			space_bind(att, space, &answer, fd) < 0)
			close_at_daemon(att, answer.space, answer.generation);
	}
	pthread_mutex_lock(&c->ring_lock);
	timelines_carry_on(att);
	att->published = 1;
	kvp_store_seq(&c->att, att);
	event_attachment(c);
	pthread_mutex_unlock(&c->ring_lock);
	c->joined++;
	c->error_text[0] = 0;
	pthread_mutex_unlock(&c->lock);
	cuda_notice(c);
	return 0;
}

static int attach_with(struct attachment *att, uint64_t deadline)
{
	struct kvp_packet *p = att->client->packet;
	int r = daemon_reach(att, deadline, p);

	if (r == 0) {
		r = attachment_map(att, p);
		kvp_msg_done(p);
	}
	KVP_FAULT("mapped");
	if (r == 0)
		r = first_extents(att, deadline, p);
	KVP_FAULT("attached");
	return r == 0 ? publish(att, deadline, p) : r;
}

/* Says why in the library's words, since the daemon has not. */
static void attempt_unanswered(struct kvp_client *c, int error)
{
	if (error != -ETIMEDOUT) {
		attempt_failed(c, error, c->socket);
		return;
	}
	pthread_mutex_lock(&c->lock);
	snprintf(c->error_text, sizeof(c->error_text), "%s: no answer within %u ms", c->socket,
		c->timeout_ms);
	pthread_mutex_unlock(&c->lock);
}

int client_attach(struct kvp_client *c)
{
	uint64_t deadline = deadline_of(c, KVP_DEFAULT_TIMEOUT);
	struct attachment *att;
	int r;

	pthread_mutex_lock(&c->ring_lock);
	att = attachment_take(c);
	pthread_mutex_unlock(&c->ring_lock);
	if (!att)
		return attempt_failed(c, -ENOBUFS, "handles of too many former daemons are held");
	c->told = 0;
	r = attach_with(att, deadline);
	if (r == 0)
		return 0;
	if (!c->told)
		attempt_unanswered(c, r);
	if (att->page)
		(void)packet_try(att, KVP_MSG_BYE, 0, NULL, 0);
	pthread_mutex_lock(&c->ring_lock);
	attachment_empty(att);
	pthread_mutex_unlock(&c->ring_lock);
	return r;
}

/* ring_lock. A caller that asks what has become of a put hears that it went with this daemon. */
static void remember_commits(struct attachment *att)
{
	struct former *f = &att->client->former;

	if (!att->commit_serial)
		return;
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		f->roots[i] = att->binds[i].root;
	memcpy(f->commits, att->commits, sizeof(f->commits));
}

void client_detach(struct attachment *att)
{
	struct kvp_client *c = att->client;

	pthread_mutex_lock(&c->lock);
	pthread_mutex_lock(&c->ring_lock);
	kvp_store_seq(&c->att, NULL);
	kvp_store_seq(&att->dead, 1);
	remember_commits(att);
	event_attachment(c);
	warms_end(att);
	close(kvp_take_fd(&att->sock));
	pthread_mutex_unlock(&c->ring_lock);
	for (struct call *call = c->calls; call; call = call->next) {
		call->done = 1;
		call->status = -ESHUTDOWN;
	}
	c->calls = NULL;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	word_wake(&att->page->cq_tail);
	cuda_notice(c);
}
