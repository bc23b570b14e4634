/* SPDX-License-Identifier: Apache-2.0 */
/* Packets of the control socket: framed, checked before anybody reads them, with descriptors. */
#include "shm/kvp_msg.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "shm/kvp_seg.h"

#define TO_DAEMON (1u << KVP_MSG_TO_DAEMON)
#define TO_CLIENT (1u << KVP_MSG_TO_CLIENT)

/* What each type may look like. A type that is not named here has no direction: refused. */
static const struct {
	uint8_t directions;
	uint8_t min_fds, max_fds;
	uint32_t min_len, max_len;
} rules[] = {
	[KVP_MSG_HELLO] = { TO_DAEMON, 0, 0, sizeof(struct kvp_msg_hello),
		sizeof(struct kvp_msg_hello) },
	/* Without descriptors in answer to an administrator. */
	[KVP_MSG_WELCOME] = { TO_CLIENT, 0, 3, sizeof(struct kvp_msg_welcome),
		sizeof(struct kvp_msg_welcome) },
	[KVP_MSG_ERROR] = { TO_CLIENT, 0, 0, sizeof(struct kvp_msg_error),
		sizeof(struct kvp_msg_error) },
	[KVP_MSG_ATTACHED] = { TO_CLIENT, 0, 0, 0, 0 },
	[KVP_MSG_SPACE_OPEN] = { TO_DAEMON, 0, 0, sizeof(struct kvp_msg_space_open),
		sizeof(struct kvp_msg_space_open) },
	[KVP_MSG_SPACE] = { TO_CLIENT, 0, 1, sizeof(struct kvp_msg_space),
		sizeof(struct kvp_msg_space) },
	[KVP_MSG_SPACE_CLOSE] = { TO_DAEMON, 0, 0, sizeof(struct kvp_msg_id),
		sizeof(struct kvp_msg_id) },
	[KVP_MSG_EXTENT] = { TO_CLIENT, 1, 1, sizeof(struct kvp_msg_extent),
		sizeof(struct kvp_msg_extent) },
	[KVP_MSG_EXTENT_GET] = { TO_DAEMON, 0, 0, sizeof(struct kvp_msg_id),
		sizeof(struct kvp_msg_id) },
	[KVP_MSG_ARENA_ACK] = { TO_DAEMON, 0, 0, sizeof(struct kvp_msg_id),
		sizeof(struct kvp_msg_id) },
	[KVP_MSG_RETIRE] = { TO_CLIENT, 0, 0, sizeof(struct kvp_msg_id),
		sizeof(struct kvp_msg_id) },
	[KVP_MSG_RETIRE_ACK] = { TO_DAEMON, 0, 0, sizeof(struct kvp_msg_id),
		sizeof(struct kvp_msg_id) },
	[KVP_MSG_ADMIN] = { TO_DAEMON, 0, 0, 1, KVP_ADMIN_REQUEST },
	[KVP_MSG_ADMIN_PART] = { TO_CLIENT, 0, 0, sizeof(struct kvp_msg_admin_part),
		KVP_MSG_BODY_MAX },
	[KVP_MSG_PROVE] = { TO_CLIENT, 0, 0, sizeof(struct kvp_msg_nonce),
		sizeof(struct kvp_msg_nonce) },
	[KVP_MSG_PROOF] = { TO_DAEMON, 0, 0, sizeof(struct kvp_msg_nonce),
		sizeof(struct kvp_msg_nonce) },
	[KVP_MSG_BYE] = { TO_DAEMON, 0, 0, 0, 0 },
};
_Static_assert(sizeof(rules) / sizeof(rules[0]) == KVP_MSG_MAX_, "a rule for every type");

union control {
	struct cmsghdr align;
	char buf[CMSG_SPACE(sizeof(int) * KVP_MSG_MAX_FDS) + CMSG_SPACE(sizeof(struct ucred))];
};

static bool packet_ok(const struct kvp_packet *p, size_t bytes, unsigned fds, uint32_t direction)
{
	const struct kvp_msg *h = &p->h;

	if (bytes < sizeof(*h) || h->magic != KVP_MSG_MAGIC || h->len != bytes - sizeof(*h) ||
		h->n_fds != fds || h->type >= KVP_MSG_MAX_)
		return false;
	if (!(rules[h->type].directions & 1u << direction) || fds < rules[h->type].min_fds ||
		fds > rules[h->type].max_fds || h->len < rules[h->type].min_len ||
		h->len > rules[h->type].max_len)
		return false;
	switch (h->type) {
	case KVP_MSG_HELLO:
		return memchr(((const struct kvp_msg_hello *)(const void *)p->body)->name, 0,
			KVP_CLIENT_NAME);
	case KVP_MSG_WELCOME:
		return fds == 0 || fds == rules[KVP_MSG_WELCOME].max_fds;
	case KVP_MSG_ERROR:
		return memchr(((const struct kvp_msg_error *)(const void *)p->body)->text, 0,
			KVP_MSG_TEXT);
	default:
		return true;
	}
}

/* Takes what came beside the bytes. The kernel has installed these descriptors: each must go on. */
static unsigned take_control(struct msghdr *m, struct kvp_packet *p)
{
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_RIGHTS) {
			size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

			for (size_t i = 0; i < count; i++) {
				int fd;

				memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
				if (n < KVP_MSG_MAX_FDS)
					p->fds[n] = fd;
				else
					close(fd);
				n++;
			}
		} else if (c->cmsg_type == SCM_CREDENTIALS) {
			memcpy(&p->cred, CMSG_DATA(c), sizeof(p->cred));
			p->has_cred = true;
		}
	}
	return n;
}

int kvp_msg_recv(int sock, uint32_t direction, struct kvp_packet *ret_packet)
{
	struct kvp_packet *p = ret_packet;
	union control control;
	struct iovec iov[2] = {
		{ &p->h, sizeof(p->h) },
		{ p->body, sizeof(p->body) },
	};
	struct msghdr m = {
		.msg_iov = iov,
		.msg_iovlen = 2,
		.msg_control = control.buf,
		.msg_controllen = sizeof(control.buf),
	};
	unsigned fds;
	ssize_t n;

	do {
		n = recvmsg(sock, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? -EPIPE : -errno;

	p->has_cred = false;
	for (unsigned i = 0; i < KVP_MSG_MAX_FDS; i++)
		p->fds[i] = -1;
	fds = take_control(&m, p);
	if (n == 0 && !fds && !(m.msg_flags & MSG_CTRUNC))
		return -EPIPE;
	if ((m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || !packet_ok(p, (size_t)n, fds, direction)) {
		kvp_msg_done(p);
		return -EPROTO;
	}
	return 0;
}

void kvp_msg_done(struct kvp_packet *packet)
{
	for (unsigned i = 0; i < KVP_MSG_MAX_FDS; i++) {
		kvp_close_fdp(&packet->fds[i]);
		packet->fds[i] = -1;
	}
}

int kvp_msg_take_fd(struct kvp_packet *packet, unsigned i)
{
	return kvp_take_fd(&packet->fds[i]);
}

static int send_packet(int sock, const struct kvp_msg *h, const void *body, struct cmsghdr *control,
	size_t control_len)
{
	struct iovec iov[2] = {
		{ (void *)h, sizeof(*h) },
		{ (void *)body, h->len },
	};
	struct msghdr m = {
		.msg_iov = iov,
		.msg_iovlen = h->len ? 2 : 1,
		.msg_control = control_len ? control : NULL,
		.msg_controllen = control_len,
	};
	ssize_t n;

	do {
		n = sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int kvp_msg_send(int sock, uint16_t type, uint32_t tag, const void *body, size_t len,
	const int *fds, unsigned n_fds)
{
	struct kvp_msg h = { .magic = KVP_MSG_MAGIC, .type = type, .tag = tag };
	union control control;

	if (len > KVP_MSG_BODY_MAX || n_fds > KVP_MSG_MAX_FDS)
		return -EMSGSIZE;
	h.len = (uint32_t)len;
	h.n_fds = (uint16_t)n_fds;
	if (n_fds) {
		memset(&control, 0, sizeof(control));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(&control.align), fds, sizeof(int) * n_fds);
	}
	return send_packet(
		sock, &h, body, &control.align, n_fds ? CMSG_SPACE(sizeof(int) * n_fds) : 0);
}

int kvp_msg_send_proof(int sock, uint32_t tag, const struct kvp_msg_nonce *nonce)
{
	struct kvp_msg h = {
		.magic = KVP_MSG_MAGIC,
		.type = KVP_MSG_PROOF,
		.len = sizeof(*nonce),
		.tag = tag,
	};
	const struct ucred cred = { .pid = getpid(), .uid = getuid(), .gid = getgid() };
	union control control;

	memset(&control, 0, sizeof(control));
	control.align.cmsg_level = SOL_SOCKET;
	control.align.cmsg_type = SCM_CREDENTIALS;
	control.align.cmsg_len = CMSG_LEN(sizeof(cred));
	memcpy(CMSG_DATA(&control.align), &cred, sizeof(cred));
	return send_packet(sock, &h, nonce, &control.align, CMSG_SPACE(sizeof(cred)));
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int kvp_msg_poll(int sock, short events, uint64_t deadline_ns)
{
	struct pollfd p = { .fd = sock, .events = events };

	for (;;) {
		uint64_t now = now_ns(), left = deadline_ns > now ? deadline_ns - now : 0;
		struct timespec t = {
			.tv_sec = (time_t)(left / 1000000000u),
			.tv_nsec = (long)(left % 1000000000u),
		};
		int n = ppoll(&p, 1, deadline_ns == UINT64_MAX ? NULL : &t, NULL);

		if (n > 0)
			return 0;
		if (n == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}
