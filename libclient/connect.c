/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reaching a daemon: from the socket's path to its WELCOME, with the reason if that fails. Packets
 * of the control socket, both ways.
 */
#include "libclient/thread.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shm/kvp_seg.h"

#define CONNECT_POLL_MS  2u /* the listen queue is full */
#define CROWD_NAP_MS     8u
#define CROWD_NAP_MAX_MS 256u
#define CROWD_LATEST_MS  50u /* before the caller's time is up, to tell why */

/* ---- reasons --------------------------------------------------------------------------------- */

int attempt_failed(struct kvp_client *c, int error, const char *what)
{
	pthread_mutex_lock(&c->lock);
	snprintf(c->error_text, sizeof(c->error_text), "%s: %s", what, strerror(-error));
	pthread_mutex_unlock(&c->lock);
	return error;
}

int attempt_refused(struct kvp_client *c, const struct kvp_packet *p)
{
	const struct kvp_msg_error *e = (const void *)p->body;

	pthread_mutex_lock(&c->lock);
	memcpy(c->error_text, e->text, sizeof(c->error_text));
	c->told = 1;
	pthread_mutex_unlock(&c->lock);
	return e->error < 0 && e->error > -4096 ? e->error : -EPROTO;
}

/* ---- waiting --------------------------------------------------------------------------------- */

int await(struct kvp_client *c, int sock, short events, int timeout_ms)
{
	struct pollfd p[2] = {
		{ .fd = c->kick, .events = POLLIN },
		{ .fd = sock, .events = events },
	};
	uint64_t count;

	if (poll(p, 2, timeout_ms) < 0 && errno != EINTR)
		return -errno;
	if (p[0].revents)
		(void)!read(c->kick, &count, sizeof(count));
	if (kvp_load_seq(&c->closing))
		return -ESHUTDOWN;
	return p[1].revents ? 0 : -EAGAIN;
}

static int await_until(struct kvp_client *c, int sock, short events, uint64_t deadline)
{
	for (;;) {
		uint64_t now = now_ns();
		int r;

		if (now >= deadline)
			return -ETIMEDOUT;
		r = await(c, sock, events, (int)((deadline - now) / NS_PER_MS) + 1);
		if (r != -EAGAIN)
			return r;
	}
}

/* ---- packets --------------------------------------------------------------------------------- */

int packet_next(struct kvp_client *c, int sock, uint64_t deadline, struct kvp_packet *p)
{
	for (;;) {
		int r = kvp_msg_recv(sock, KVP_MSG_TO_CLIENT, p);

		if (r != -EAGAIN)
			return r;
		r = await_until(c, sock, POLLIN, deadline);
		if (r < 0)
			return r;
	}
}

int packet_try(struct attachment *att, uint32_t type, uint32_t tag, const void *body, uint32_t len)
{
	return kvp_msg_send(att->sock, (uint16_t)type, tag, body, len, NULL, 0);
}

int packet_send(struct attachment *att, uint32_t type, uint32_t tag, const void *body, uint32_t len)
{
	for (;;) {
		int r = packet_try(att, type, tag, body, len);

		if (r != -EAGAIN)
			return r;
		r = kvp_msg_poll(att->sock, POLLOUT, now_ns() + 1000 * NS_PER_MS);
		if (r < 0)
			return r;
	}
}

/* ---- joining --------------------------------------------------------------------------------- */

static int connect_to(struct kvp_client *c, uint64_t deadline, int *ret_sock)
{
	int r;

	while ((r = socket_connect(c->socket, ret_sock)) == -EAGAIN) {
		if (now_ns() >= deadline)
			return -ETIMEDOUT;
		r = await(c, -1, 0, (int)CONNECT_POLL_MS);
		if (r < 0 && r != -EAGAIN)
			return r;
	}
	return r;
}

static int hello(struct attachment *att, uint64_t deadline, struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	struct kvp_msg_hello h = {
		.abi_min = KVP_ABI_VERSION,
		.abi_max = KVP_ABI_VERSION,
		.role = KVP_HELLO_CLIENT,
		.imports = KVP_IMPORT_MEMFD | KVP_IMPORT_CUDA_FD | KVP_IMPORT_CUDA_IPC,
	};
	int r;

	memcpy(h.name, c->name, sizeof(h.name));
	KVP_FAULT("hello");
	r = packet_send(att, KVP_MSG_HELLO, 0, &h, sizeof(h));
	if (r == -EPIPE || r == -ECONNRESET)
		r = 0; /* a daemon that hung up may have said why before */
	while (r == 0) {
		r = packet_next(c, att->sock, deadline, p);
		if (r < 0 || p->h.type == KVP_MSG_WELCOME)
			break;
		if (p->h.type == KVP_MSG_PROVE)
			r = kvp_msg_send_proof(att->sock, p->h.tag, (const void *)p->body);
		else
			r = p->h.type == KVP_MSG_ERROR ? attempt_refused(c, p) : -EPROTO;
		kvp_msg_done(p);
	}
	return r;
}

/*
 * A daemon that a crowd connects to at once turns some clients away before they have been heard;
 * they come back in a moment, not all in the same one.
 */
int daemon_reach(struct attachment *att, uint64_t deadline, struct kvp_packet *p)
{
	struct kvp_client *c = att->client;
	uint32_t nap_ms = CROWD_NAP_MS;
	int r;

	for (;;) {
		uint64_t now;
		int waited;

		KVP_FAULT("connect");
		r = connect_to(c, deadline, &att->sock);
		if (r < 0)
			return r;
		r = hello(att, deadline, p);
		now = now_ns();
		if (r != -EPIPE && r != -EBUSY)
			return r;
		if (now + (nap_ms + CROWD_LATEST_MS) * NS_PER_MS >= deadline)
			return r == -EPIPE ? -ECONNREFUSED : r;
		close(kvp_take_fd(&att->sock));
		waited = await_until(c, -1, 0, now + (1 + now / 64 % nap_ms) * NS_PER_MS);
		if (waited != -ETIMEDOUT)
			return waited;
		nap_ms = nap_ms * 2 > CROWD_NAP_MAX_MS ? CROWD_NAP_MAX_MS : nap_ms * 2;
	}
}
