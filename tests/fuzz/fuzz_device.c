/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packets between kvpoold and a worker. An input is one packet as it lies on the socket, behind a byte:
 * bit 0: which side gets it; bits 1-2: how many descriptors come with it. What is let through is within all
 * bounds that its reader relies on, and no descriptor stays behind.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/device/protocol.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

static void send_one(int sock, const uint8_t *data, size_t size, unsigned fds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * 3)];
	} c = { 0 };
	struct iovec iov = { (void *)data, size };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (fds) {
		m.msg_control = c.buf;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * fds);
		c.align.cmsg_level = SOL_SOCKET;
		c.align.cmsg_type = SCM_RIGHTS;
		c.align.cmsg_len = CMSG_LEN(sizeof(int) * fds);
		for (unsigned i = 0; i < fds; i++)
			memcpy(CMSG_DATA(&c.align) + i * sizeof(int), &sock, sizeof(int));
	}
	(void)sendmsg(sock, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void check(const struct kvpd_p *p, uint32_t side)
{
	const struct kvpd_p_copy *c = &p->u.copy;

	if (p->h.type != KVPD_P_COPY)
		return;
	must(side == KVPD_TO_WORKER && c->way < KVPD_WAYS && c->n && c->n <= KVPD_DRIVER_BATCH,
		"a batch out of bounds");
	for (uint32_t i = 0; i < c->n; i++)
		must(c->copy[i].seg < KVPD_DEVICE_SEGS && c->copy[i].host < KVPD_DEVICE_SEGS &&
				c->copy[i].seg_off + c->copy[i].bytes > c->copy[i].seg_off,
			"a piece out of bounds");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct kvpd_p packet;
	int pair[2], probe, after;
	uint32_t side;

	if (size < 2)
		return 0;
	side = data[0] & 1;
	probe = dup(0);
	close(probe);
	must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
	send_one(pair[0], data + 1, size - 1, data[0] >> 1 & 3);
	if (kvpd_p_recv(pair[1], side, &packet) == 0) {
		check(&packet, side);
		kvpd_p_done_with(&packet);
	}
	close(pair[0]);
	must(kvpd_p_recv(pair[1], side, &packet) == -EPIPE, "the end is not seen");
	close(pair[1]);
	after = dup(0);
	close(after);
	must(after == probe, "a descriptor stayed behind");
	return 0;
}
