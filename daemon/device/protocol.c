/* SPDX-License-Identifier: Apache-2.0 */
/* Packets between kvpoold and a worker: what each may look like, and their way over the socket. */
#include "daemon/device/protocol.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FDS 4u /* that are taken off a packet; more than one is a violation */

static const struct {
	uint8_t side; /* + 1; 0: no such type */
	uint8_t min_fds, max_fds;
	uint32_t len; /* of COPY the least */
} rules[] = {
	[KVPD_P_HELLO] = { KVPD_TO_DAEMON + 1, 0, 0, sizeof(struct kvpd_p_hello) },
	[KVPD_P_SEG_MAKE] = { KVPD_TO_WORKER + 1, 0, 0, sizeof(struct kvpd_p_memory) },
	[KVPD_P_SEG_TAKE] = { KVPD_TO_WORKER + 1, 1, 1, sizeof(struct kvpd_p_memory) },
	[KVPD_P_SEG_DROP] = { KVPD_TO_WORKER + 1, 0, 0, sizeof(struct kvpd_p_memory) },
	[KVPD_P_HOST_ADD] = { KVPD_TO_WORKER + 1, 1, 1, sizeof(struct kvpd_p_memory) },
	[KVPD_P_HOST_DROP] = { KVPD_TO_WORKER + 1, 0, 0, sizeof(struct kvpd_p_memory) },
	[KVPD_P_USAGE] = { KVPD_TO_WORKER + 1, 0, 0, 0 },
	[KVPD_P_COPY] = { KVPD_TO_WORKER + 1, 0, 0, offsetof(struct kvpd_p_copy, copy) },
	[KVPD_P_SUM] = { KVPD_TO_WORKER + 1, 0, 0, sizeof(struct kvpd_p_sum) },
	[KVPD_P_ANSWER] = { KVPD_TO_DAEMON + 1, 0, 1, sizeof(struct kvpd_p_answer) },
	[KVPD_P_DONE] = { KVPD_TO_DAEMON + 1, 0, 0, sizeof(struct kvpd_p_done) },
	[KVPD_P_WHY] = { KVPD_TO_DAEMON + 1, 0, 0, sizeof(struct kvpd_p_why) },
	[KVPD_P_SUMMED] = { KVPD_TO_DAEMON + 1, 0, 0, sizeof(struct kvpd_p_summed) },
};
_Static_assert(sizeof(rules) / sizeof(rules[0]) == KVPD_P_MAX_, "a rule for every type");

static bool range_ok(uint64_t off, uint64_t bytes)
{
	return bytes && off % 64 == 0 && bytes <= INT64_MAX && off <= INT64_MAX;
}

static bool copy_ok(const struct kvpd_p_copy *c, uint32_t len)
{
	if (c->way >= KVPD_WAYS || !c->n || c->n > KVPD_DRIVER_BATCH ||
		len != kvpd_p_copy_len(c->n))
		return false;
	for (uint32_t i = 0; i < c->n; i++) {
		const struct kvpd_copy *k = &c->copy[i];

		if (k->seg >= KVPD_DEVICE_SEGS || k->host >= KVPD_DEVICE_SEGS ||
			!range_ok(k->seg_off, k->bytes) || !range_ok(k->host_off, k->bytes) ||
			k->sum > (c->n == 1) || k->reserved)
			return false;
	}
	return true;
}

static bool memory_ok(const struct kvpd_p_memory *m, uint32_t type)
{
	bool drop = type == KVPD_P_SEG_DROP || type == KVPD_P_HOST_DROP;

	return m->id < KVPD_DEVICE_SEGS &&
	       !(m->flags & ~(type == KVPD_P_HOST_ADD ? KVPD_MEMORY_FLAGS : 0u)) &&
	       (drop ? !m->bytes : m->bytes && m->bytes <= INT64_MAX);
}

static bool status_ok(int32_t status)
{
	return status <= 0 && status > -4096;
}

static bool body_ok(const struct kvpd_p *p, unsigned fds)
{
	switch (p->h.type) {
	case KVPD_P_HELLO:
		return p->u.hello.granularity && p->u.hello.bytes && p->u.hello.numa_node >= -1 &&
		       p->u.hello.numa_node < KVPD_NODES &&
		       !(p->u.hello.flags & ~KVPD_DRIVER_FLAGS) &&
		       p->u.hello.batch >= KVPD_DRIVER_LEAST &&
		       p->u.hello.batch <= KVPD_DRIVER_MOST &&
		       (p->u.hello.flags & (KVPD_DRIVER_READABLE | KVPD_DRIVER_HANDLES)) !=
			       (KVPD_DRIVER_READABLE | KVPD_DRIVER_HANDLES);
	case KVPD_P_SEG_MAKE:
	case KVPD_P_SEG_TAKE:
	case KVPD_P_SEG_DROP:
	case KVPD_P_HOST_ADD:
	case KVPD_P_HOST_DROP:
		return memory_ok(&p->u.memory, p->h.type);
	case KVPD_P_COPY:
		return copy_ok(&p->u.copy, p->h.len);
	case KVPD_P_SUM:
		return p->u.sum.host <= 1 && p->u.sum.id < KVPD_DEVICE_SEGS &&
		       range_ok(p->u.sum.off, p->u.sum.bytes);
	case KVPD_P_ANSWER:
		return status_ok(p->u.answer.status) && (!fds || !p->u.answer.status);
	case KVPD_P_WHY:
		return p->u.why.damage <= KVPD_DAMAGE_ALL &&
		       memchr(p->u.why.text, 0, sizeof(p->u.why.text));
	case KVPD_P_SUMMED:
		return status_ok(p->u.summed.status);
	case KVPD_P_DONE:
		return status_ok(p->u.done.status);
	default:
		return true;
	}
}

int kvpd_p_check(const struct kvpd_p *p, size_t bytes, unsigned fds, uint32_t side)
{
	const struct kvpd_p_head *h = &p->h;

	if (bytes < sizeof(*h) || h->magic != KVPD_PACKET_MAGIC || h->len != bytes - sizeof(*h) ||
		h->n_fds != fds || h->type >= KVPD_P_MAX_ || rules[h->type].side != side + 1 ||
		fds < rules[h->type].min_fds || fds > rules[h->type].max_fds)
		return -EPROTO;
	if (h->type == KVPD_P_COPY ? h->len < rules[h->type].len : h->len != rules[h->type].len)
		return -EPROTO;
	return body_ok(p, fds) ? 0 : -EPROTO;
}

union control {
	struct cmsghdr align;
	char buf[CMSG_SPACE(sizeof(int) * MAX_FDS)];
};

/* The kernel has installed them: each must go on. */
static unsigned take_fds(struct msghdr *m, struct kvpd_p *p)
{
	unsigned n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < count; i++, n++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (n == 0)
				p->fd = fd;
			else
				close(fd);
		}
	}
	return n;
}

int kvpd_p_recv(int sock, uint32_t side, struct kvpd_p *ret_packet)
{
	struct kvpd_p *p = ret_packet;
	union control control;
	struct iovec iov[2] = { { &p->h, sizeof(p->h) }, { &p->u, sizeof(p->u) } };
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
	p->fd = -1;
	fds = take_fds(&m, p);
	if (n == 0 && !fds && !(m.msg_flags & MSG_CTRUNC))
		return -EPIPE;
	if ((m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || kvpd_p_check(p, (size_t)n, fds, side) < 0) {
		kvpd_p_done_with(p);
		return -EPROTO;
	}
	return 0;
}

void kvpd_p_done_with(struct kvpd_p *p)
{
	if (p->fd >= 0)
		close(p->fd);
	p->fd = -1;
}

int kvpd_p_pair(int ret_pair[2])
{
	/* The kernel counts what it allocates, which is up to twice what is sent, and doubles what it is asked for. */
	const int bytes = (int)(KVPD_WAYS * KVPD_DRIVER_FLIGHT * sizeof(struct kvpd_p_copy));

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ret_pair) < 0)
		return -errno;
	for (uint32_t i = 0; i < 2; i++)
		(void)setsockopt(ret_pair[i], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	return 0;
}

int kvpd_p_send(int sock, uint32_t type, uint32_t tag, const void *body, size_t len, int fd)
{
	struct kvpd_p_head h = {
		.magic = KVPD_PACKET_MAGIC,
		.type = (uint16_t)type,
		.n_fds = fd >= 0,
		.len = (uint32_t)len,
		.tag = tag,
	};
	union control control;
	struct iovec iov[2] = { { &h, sizeof(h) }, { (void *)body, len } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = len ? 2 : 1 };
	ssize_t n;

	if (fd >= 0) {
		memset(&control, 0, sizeof(control));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(&control.align), &fd, sizeof(int));
		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(sizeof(int));
	}
	do {
		n = sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

int kvpd_p_send_wait(int sock, uint32_t type, uint32_t tag, const void *body, size_t len, int fd)
{
	struct pollfd p = { .fd = sock, .events = POLLOUT };
	int r;

	while ((r = kvpd_p_send(sock, type, tag, body, len, fd)) == -EAGAIN)
		if (poll(&p, 1, -1) < 0 && errno != EINTR)
			return -errno;
	return r;
}
