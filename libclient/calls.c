/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes over the socket once a daemon is joined: requests that somebody waits for, and whatever
 * the daemon sends.
 */
#include "libclient/thread.h"

#include <string.h>
#include <time.h>

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

static void answer_call(struct attachment *att, const struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	struct call *call;

	pthread_mutex_lock(&c->lock);
	call = call_of(c, p->h.tag);
	if (call) {
		call->done = 1;
		if (p->h.type == KVP_MSG_SPACE)
			memcpy(&call->space, p->body, sizeof(call->space));
		else
			call->status = ((const struct kvp_msg_error *)(const void *)p->body)->error;
		pthread_cond_broadcast(&c->changed);
	} else if (p->h.type == KVP_MSG_SPACE) {
		/* The caller that asked has given up. */
		struct kvp_msg_space space;

		memcpy(&space, p->body, sizeof(space));
		tell_daemon(att, KVP_MSG_SPACE_CLOSE,
			&(struct kvp_msg_id){ space.space, space.generation },
			sizeof(struct kvp_msg_id));
	}
	pthread_mutex_unlock(&c->lock);
}

void tell_daemon(struct attachment *att, uint32_t type, const void *body, uint32_t len)
{
	if (att->sock >= 0)
		(void)packet_send(att, type, 0, body, len);
}

int call_daemon(struct kvp_client *c, uint32_t type, const void *body, uint32_t len,
	uint64_t deadline, struct kvp_msg_space *ret_space)
{
	struct timespec ts = {
		.tv_sec = (time_t)(deadline / UINT64_C(1000000000)),
		.tv_nsec = (long)(deadline % UINT64_C(1000000000)),
	};
	struct attachment *att = kvp_load_seq(&c->att);
	struct call call = { 0 };
	int r;

	if (!att)
		return -ESHUTDOWN;
	c->tag = c->tag % (TAG_EXTENT - 1) + 1;
	call.tag = c->tag;
	call.next = c->calls;
	c->calls = &call;
	r = packet_send(att, type, call.tag, body, len);
	while (r == 0 && !call.done)
		r = -pthread_cond_timedwait(&c->changed, &c->lock, &ts);
	if (!call.done) {
		call_of(c, call.tag);
		return r == -EPIPE || r == -ECONNRESET ? -ESHUTDOWN : r;
	}
	if (call.status < 0)
		return call.status;
	*ret_space = call.space;
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

int packets_receive(struct attachment *att)
{
	struct kvp_packet *p = att->client->packet;

	for (;;) {
		int r = kvp_msg_recv(att->sock, KVP_MSG_TO_CLIENT, p);

		if (r < 0)
			return r == -EAGAIN ? 0 : r;
		r = packet_dispatch(att, p);
		kvp_msg_done(p);
		if (r < 0)
			return r;
	}
}
