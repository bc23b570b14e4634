/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes over the socket once a daemon is joined: requests that somebody waits for, and whatever
 * the daemon sends.
 *
 * A daemon that is stopped costs one timeout here too (see ring.c for the rings). A request that was
 * left without an answer marks the attachment as deaf, and while it is none waits. The request left
 * open is the probe: whatever comes from the daemon takes the mark away.
 */
#include "libclient/thread.h"
#include "libclient/ring.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FULL_NS (NS_PER_MS) /* nap while the socket is full */

/* A SPACE_CLOSE that the socket has no room for yet; the library's thread sends it. */
struct unsaid {
	struct unsaid *next;
	struct kvp_msg_id id;
};

/* ---- requests -------------------------------------------------------------------------------- */

static struct call *call_of(struct kvp_client *c, uint32_t tag)
{
	struct call **p = &c->calls, *call;

	while (*p && (*p)->tag != tag)
		p = &(*p)->next;
	call = *p;
	if (call)
		*p = call->next;
	return call;
}

static void answer_call(struct attachment *att, struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	struct call *call;

	pthread_mutex_lock(&c->lock);
	if (att->open_calls && !(p->h.tag & TAG_EXTENT))
		att->open_calls--;
	call = call_of(c, p->h.tag);
	if (call) {
		call->done = 1;
		if (p->h.type == KVP_MSG_SPACE) {
			memcpy(&call->space, p->body, sizeof(call->space));
			call->fd = p->h.n_fds ? kvp_msg_take_fd(p, 0) : -1;
		} else {
			call->status = ((const struct kvp_msg_error *)(const void *)p->body)->error;
		}
		pthread_cond_broadcast(&c->changed);
	} else if (p->h.type == KVP_MSG_SPACE) {
		/* The caller that asked has given up. */
		struct kvp_msg_space space;

		memcpy(&space, p->body, sizeof(space));
		close_at_daemon(att, space.space, space.generation);
	}
	pthread_mutex_unlock(&c->lock);
}

void close_at_daemon(struct attachment *att, uint32_t space, uint32_t generation)
{
	struct kvp_msg_id id = { .id = space, .generation = generation };
	struct unsaid *u;

	if (att->sock < 0 || packet_try(att, KVP_MSG_SPACE_CLOSE, 0, &id, sizeof(id)) != -EAGAIN)
		return;
	u = malloc(sizeof(*u));
	if (!u)
		return; /* the space stays open until the session ends */
	*u = (struct unsaid){ .next = att->unsaid, .id = id };
	att->unsaid = u;
	client_kick(att->client);
}

static void unsaid_drop(struct attachment *att)
{
	struct unsaid *u = att->unsaid;

	att->unsaid = u->next;
	free(u);
}

int closes_say(struct attachment *att)
{
	int left;

	pthread_mutex_lock(&att->client->lock);
	while (att->unsaid && packet_try(att, KVP_MSG_SPACE_CLOSE, 0, &att->unsaid->id,
				      sizeof(att->unsaid->id)) != -EAGAIN)
		unsaid_drop(att);
	left = att->unsaid != NULL;
	pthread_mutex_unlock(&att->client->lock);
	return left;
}

void closes_forget(struct attachment *att)
{
	while (att->unsaid)
		unsaid_drop(att);
}

/* lock held, and dropped meanwhile. Waits for the call's answer or the deadline. */
static int wait_changed(struct kvp_client *c, uint64_t deadline)
{
	struct timespec ts = {
		.tv_sec = (time_t)(deadline / UINT64_C(1000000000)),
		.tv_nsec = (long)(deadline % UINT64_C(1000000000)),
	};

	return -pthread_cond_timedwait(&c->changed, &c->lock, &ts);
}

/* As call_daemon(), until the request is in the socket. */
static int send_call(struct attachment *att, const struct call *call, uint32_t type,
	const void *body, uint32_t len, uint64_t deadline)
{
	while (!call->done) {
		int r = packet_try(att, type, call->tag, body, len);
		uint64_t now = now_ns();

		att->open_calls += r == 0;
		if (r != -EAGAIN)
			return r;
		if (att->deaf || now >= deadline)
			return -ETIMEDOUT;
		(void)wait_changed(
			att->client, deadline - now < FULL_NS ? deadline : now + FULL_NS);
	}
	return 0;
}

/* lock held. A call gives up; did the daemon say anything meanwhile? */
static void note_silence(struct attachment *att, uint32_t heard)
{
	struct kvp_client *c = att->client;

	if (att->deaf || att->heard != heard)
		return;
	att->deaf = 1;
	pthread_mutex_lock(&c->ring_lock);
	att->timeouts++;
	pthread_mutex_unlock(&c->ring_lock);
}

int call_daemon(struct kvp_client *c, uint32_t type, const void *body, uint32_t len,
	uint64_t deadline, struct kvp_msg_space *ret_space, int *ret_fd)
{
	struct attachment *att = kvp_load_seq(&c->att);
	struct call call = { .fd = -1 };
	uint32_t heard;
	int r;

	if (!att)
		return -ESHUTDOWN;
	if (att->deaf && att->open_calls)
		return -ETIMEDOUT; /* one more request would be one more to answer */
	heard = att->heard;
	c->tag = c->tag % (TAG_EXTENT - 1) + 1;
	call.tag = c->tag;
	call.next = c->calls;
	c->calls = &call;
	r = send_call(att, &call, type, body, len, deadline);
	while (r == 0 && !call.done)
		r = wait_changed(c, deadline);
	(void)call_of(c, call.tag);
	if (!call.done) {
		if (r == -ETIMEDOUT)
			note_silence(att, heard);
		return r == -EPIPE || r == -ECONNRESET ? -ESHUTDOWN : r;
	}
	if (call.status < 0)
		return call.status;
	*ret_space = call.space;
	*ret_fd = call.fd;
	return 0;
}

/* ---- what comes ------------------------------------------------------------------------------ */

int packet_dispatch(struct attachment *att, struct kvp_packet *p)
{
	switch (p->h.type) {
	case KVP_MSG_EXTENT:
		extent_answered(att, p->h.tag);
		return extent_take(att, p);
	case KVP_MSG_RETIRE:
		return extent_retire(att, (const void *)p->body);
	case KVP_MSG_SPACE:
		answer_call(att, p);
		return 0;
	case KVP_MSG_ERROR:
		extent_answered(att, p->h.tag);
		if (p->h.tag)
			answer_call(att, p);
		else
			(void)attempt_refused(att->client, p);
		return 0;
	default:
		return -EPROTO;
	}
}

/* It reads and answers: requests may wait for it again. */
static void note_heard(struct attachment *att)
{
	pthread_mutex_lock(&att->client->lock);
	att->heard++;
	att->deaf = 0;
	pthread_mutex_unlock(&att->client->lock);
}

int packets_receive(struct attachment *att)
{
	struct kvp_packet *p = att->client->packet;

	for (;;) {
		int r = kvp_msg_recv(att->sock, KVP_MSG_TO_CLIENT, p);

		if (r < 0)
			return r == -EAGAIN ? 0 : r;
		note_heard(att);
		r = packet_dispatch(att, p);
		kvp_msg_done(p);
		if (r < 0)
			return r;
	}
}
