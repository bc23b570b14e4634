/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The administrator's side of the control socket: JSON there, JSON back. It attaches to no tenant
 * and maps nothing, and shares with the rest of the library only how options are read.
 */
#include "libclient/kvpool_admin.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libclient/client.h"
#include "shm/kvp_seg.h"

#define CONNECT_POLL_NS 2000000

struct kvp_admin {
	int sock;
	uint32_t timeout_ms;
	uint32_t tag;
	struct kvp_packet packet;
};

static uint64_t deadline_in(uint32_t ms)
{
	return now_ns() + ms * NS_PER_MS;
}

/* ---- packets ------------------------------------------------------------------------------- */

static int send_packet(
	struct kvp_admin *a, uint16_t type, const void *body, size_t len, uint64_t deadline)
{
	int r;

	a->tag++;
	while ((r = kvp_msg_send(a->sock, type, a->tag, body, len, NULL, 0)) == -EAGAIN) {
		r = kvp_msg_poll(a->sock, POLLOUT, deadline);
		if (r < 0)
			return r;
	}
	return r;
}

/* The next packet that answers the last one sent; others are of requests that timed out. */
static int next_packet(struct kvp_admin *a, uint64_t deadline)
{
	struct kvp_packet *p = &a->packet;

	for (;;) {
		int r = kvp_msg_recv(a->sock, KVP_MSG_TO_CLIENT, p);

		if (r == -EAGAIN) {
			r = kvp_msg_poll(a->sock, POLLIN, deadline);
			if (r == 0)
				continue;
		}
		if (r < 0)
			return r;
		kvp_msg_done(p); /* an administrator is sent no descriptors */
		/* Tag 0: the daemon says why it ends the connection. */
		if (p->h.tag == a->tag || (p->h.type == KVP_MSG_ERROR && !p->h.tag))
			return 0;
	}
}

static int told(const struct kvp_packet *p)
{
	const struct kvp_msg_error *e = (const void *)p->body;

	return e->error < 0 && e->error > -4096 ? e->error : -EPROTO;
}

/* ---- open, close --------------------------------------------------------------------------- */

static int connect_to(const char *path, uint64_t deadline, int *ret_sock)
{
	const struct timespec nap = { .tv_nsec = CONNECT_POLL_NS };
	int r;

	while ((r = socket_connect(path, ret_sock)) == -EAGAIN) {
		if (now_ns() >= deadline)
			return -ETIMEDOUT;
		nanosleep(&nap, NULL);
	}
	return r;
}

static int shake_hands(struct kvp_admin *a, const struct kvp_open_opts *o, uint64_t deadline)
{
	const struct kvp_msg_hello hello = {
		.abi_min = KVP_ABI_VERSION,
		.abi_max = KVP_ABI_VERSION,
		.role = KVP_HELLO_ADMIN,
		.name = "admin",
	};
	int r;

	r = send_packet(a, KVP_MSG_HELLO, &hello, sizeof(hello), deadline);
	/* A daemon that refuses at once has said why before it closed. */
	if (r < 0 && r != -EPIPE && r != -ECONNRESET)
		return r;
	r = next_packet(a, deadline);
	if (r < 0)
		return r == -EPIPE ? -ESHUTDOWN : r;
	if (a->packet.h.type == KVP_MSG_ERROR) {
		r = told(&a->packet);
		tell_why(o, ((const struct kvp_msg_error *)(const void *)a->packet.body)->text, r);
		return r;
	}
	return a->packet.h.type == KVP_MSG_WELCOME ? 0 : -EPROTO;
}

static int open_with(const struct kvp_open_opts *o, const char *path, struct kvp_admin **ret_admin)
{
	struct kvp_admin *a = calloc(1, sizeof(*a));
	uint64_t deadline;
	int r;

	if (!a)
		return -ENOMEM;
	a->sock = -1;
	a->timeout_ms = o->default_timeout_ms ? o->default_timeout_ms : KVP_DEFAULT_TIMEOUT_MS;
	deadline = deadline_in(a->timeout_ms);
	r = connect_to(path, deadline, &a->sock);
	if (r == 0)
		r = shake_hands(a, o, deadline);
	if (r < 0) {
		kvp_admin_close(a);
		return r;
	}
	*ret_admin = a;
	return 0;
}

KVP_EXPORT int kvp_admin_open(const struct kvp_open_opts *opts, struct kvp_admin **ret_admin)
{
	struct kvp_open_opts o;
	char why[KVP_ERROR_TEXT];
	const char *path;
	int r;

	if (!ret_admin || opts_take(&o, sizeof(o), opts) < 0 || o.flags)
		return -EINVAL;
	path = socket_path(&o);
	tell_why(&o, "", 0);
	r = open_with(&o, path, ret_admin);
	if (r < 0 && o.error && o.error_bytes && !o.error[0]) {
		snprintf(why, sizeof(why), "%s: %s", path, strerror(-r));
		tell_why(&o, why, r);
	}
	return r;
}

KVP_EXPORT struct kvp_admin *kvp_admin_close(struct kvp_admin *admin)
{
	if (admin) {
		kvp_close_fdp(&admin->sock);
		free(admin);
	}
	return NULL;
}

/* ---- requests ------------------------------------------------------------------------------ */

struct text {
	char *data;
	size_t used, room;
};

/* -EMSGSIZE: more than max (0: no limit). */
static int append(struct text *t, const void *data, size_t bytes, size_t max)
{
	size_t need = t->used + bytes + 1;

	if (max && t->used + bytes > max)
		return -EMSGSIZE;
	if (need > t->room) {
		size_t room = need > 2 * t->room ? need : 2 * t->room;
		char *grown = realloc(t->data, room);

		if (!grown)
			return -ENOMEM;
		t->data = grown;
		t->room = room;
	}
	memcpy(t->data + t->used, data, bytes);
	t->used += bytes;
	t->data[t->used] = 0;
	return 0;
}

/* Takes parts up to the last one. An answer that is too large is read to its end all the same. */
static int collect(
	struct kvp_admin *a, uint64_t deadline, size_t max, struct text *t, int *ret_status)
{
	const struct kvp_packet *p = &a->packet;
	const struct kvp_msg_admin_part *part = (const void *)p->body;
	int overflow = 0;

	for (;;) {
		int r = next_packet(a, deadline);

		if (r < 0)
			return r == -EPIPE ? -ESHUTDOWN : r;
		if (p->h.type == KVP_MSG_ERROR)
			return told(p);
		if (p->h.type != KVP_MSG_ADMIN_PART)
			return -EPROTO;
		if (!overflow)
			overflow =
				append(t, p->body + sizeof(*part), p->h.len - sizeof(*part), max);
		if (!part->last)
			continue;
		if (overflow)
			return overflow;
		if (part->status > 0 || part->status < -4095)
			return -EPROTO;
		*ret_status = part->status;
		return 0;
	}
}

KVP_EXPORT int kvp_admin_request(struct kvp_admin *admin, const char *request, uint32_t timeout_ms,
	size_t max_bytes, char **ret_answer)
{
	struct text t = { 0 };
	int status = 0, r;
	uint64_t deadline;
	size_t bytes;

	if (!admin || !request || !ret_answer)
		return -EINVAL;
	bytes = strlen(request);
	if (!bytes || bytes > KVP_ADMIN_REQUEST)
		return -EINVAL;
	deadline = answer_by(
		deadline_in(timeout_ms == KVP_DEFAULT_TIMEOUT ? admin->timeout_ms : timeout_ms));
	*ret_answer = NULL;
	r = send_packet(admin, KVP_MSG_ADMIN, request, bytes, deadline);
	if (r == -EPIPE || r == -ECONNRESET)
		r = -ESHUTDOWN;
	if (r == 0)
		r = collect(admin, deadline, max_bytes, &t, &status);
	if (r < 0) {
		free(t.data);
		return r;
	}
	*ret_answer = t.data;
	return status;
}
