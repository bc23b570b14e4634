/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shm/kvp_msg.h"

struct fixture {
	int sock[2];
	struct kvp_packet *packet;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	f->packet = malloc(sizeof(*f->packet));
	*state = f;
	return socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, f->sock);
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	close(f->sock[0]);
	close(f->sock[1]);
	free(f->packet);
	free(f);
	return 0;
}

static unsigned open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* A packet that no library function would send. */
static void send_raw(int sock, const struct kvp_msg *h, size_t head, const void *body, size_t len,
	unsigned n_fds)
{
	union {
		struct cmsghdr align;
		char buf[CMSG_SPACE(sizeof(int) * 16)];
	} control;
	struct iovec iov[2] = { { (void *)h, head }, { (void *)body, len } };
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = 2 };

	assert_true(n_fds <= 16);
	if (n_fds) {
		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		memset(&control, 0, sizeof(control));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		for (unsigned i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(&control.align) + i * sizeof(int), &sock, sizeof(int));
	}
	assert_true(sendmsg(sock, &m, 0) == (ssize_t)(head + len));
}

static void test_round_trip_with_descriptors(void **state)
{
	struct fixture *f = *state;
	struct kvp_msg_welcome w = { .abi = KVP_ABI_VERSION, .session = 7, .epoch = 9 };
	unsigned before = open_fds();
	int fds[3] = { f->sock[0], f->sock[1], f->sock[0] }, fd;

	assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_CLIENT, f->packet), -EAGAIN);
	assert_int_equal(kvp_msg_send(f->sock[0], KVP_MSG_WELCOME, 42, &w, sizeof(w), fds, 3), 0);
	assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_CLIENT, f->packet), 0);
	assert_int_equal(f->packet->h.type, KVP_MSG_WELCOME);
	assert_int_equal(f->packet->h.tag, 42);
	assert_int_equal(f->packet->h.n_fds, 3);
	assert_memory_equal(f->packet->body, &w, sizeof(w));
	assert_int_equal(open_fds(), before + 3);
	fd = kvp_msg_take_fd(f->packet, 1);
	assert_true(fd >= 0);
	kvp_msg_done(f->packet);
	assert_int_equal(open_fds(), before + 1);
	close(fd);
	kvp_msg_done(f->packet);
	assert_int_equal(open_fds(), before);
}

static void test_spoofed_descriptor_counts(void **state)
{
	struct fixture *f = *state;
	struct kvp_msg_hello hello = {
		.abi_min = KVP_ABI_VERSION, .abi_max = KVP_ABI_VERSION, .name = "x"
	};
	const struct {
		unsigned claimed, sent;
	} cases[] = { { 5, 0 }, { 0, 1 }, { 1, 1 }, { 0, 3 }, { 3, 4 }, { 0, 16 }, { 16, 16 } };
	unsigned before = open_fds();

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kvp_msg h = {
			.magic = KVP_MSG_MAGIC,
			.type = KVP_MSG_HELLO,
			.n_fds = (uint16_t)cases[i].claimed,
			.len = sizeof(hello),
		};

		send_raw(f->sock[0], &h, sizeof(h), &hello, sizeof(hello), cases[i].sent);
		assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), -EPROTO);
		assert_int_equal(open_fds(), before);
	}
}

static void test_malformed_packets(void **state)
{
	struct fixture *f = *state;
	struct kvp_msg_hello hello = { .abi_min = KVP_ABI_VERSION, .abi_max = KVP_ABI_VERSION };
	const struct kvp_msg good = {
		.magic = KVP_MSG_MAGIC,
		.type = KVP_MSG_HELLO,
		.len = sizeof(hello),
	};
	struct kvp_msg h;

	send_raw(f->sock[0], &good, sizeof(good), &hello, sizeof(hello), 0);
	assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), 0);

	/* Every header cut short. */
	for (size_t n = 1; n < sizeof(good); n++) {
		send_raw(f->sock[0], &good, n, NULL, 0, 0);
		assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), -EPROTO);
	}
	/* Length and truth differ, both ways. */
	for (size_t n = 0; n < sizeof(hello); n += 7) {
		send_raw(f->sock[0], &good, sizeof(good), &hello, n, 0);
		assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), -EPROTO);
		h = good;
		h.len = (uint32_t)n;
		send_raw(f->sock[0], &h, sizeof(h), &hello, n, 0);
		assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), -EPROTO);
	}
	/* A type out of range, none, or of the other direction; a wrong magic. */
	for (unsigned t = 0; t < 65536; t += t < 64 ? 1 : 4099) {
		h = good;
		h.type = (uint16_t)t;
		send_raw(f->sock[0], &h, sizeof(h), &hello, sizeof(hello), 0);
		assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet),
			t == KVP_MSG_HELLO || t == KVP_MSG_ADMIN ? 0 : -EPROTO);
		h.len = 0;
		send_raw(f->sock[0], &h, sizeof(h), NULL, 0, 0);
		assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_CLIENT, f->packet),
			t == KVP_MSG_ATTACHED ? 0 : -EPROTO);
	}
	h = good;
	h.magic ^= 1;
	send_raw(f->sock[0], &h, sizeof(h), &hello, sizeof(hello), 0);
	assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), -EPROTO);
	/* A name without an end. */
	memset(hello.name, 'a', sizeof(hello.name));
	send_raw(f->sock[0], &good, sizeof(good), &hello, sizeof(hello), 0);
	assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), -EPROTO);
}

static void test_too_large(void **state)
{
	struct fixture *f = *state;
	char *big = calloc(1, KVP_MSG_MAX + 1);
	struct kvp_msg h = {
		.magic = KVP_MSG_MAGIC,
		.type = KVP_MSG_ADMIN,
		.len = KVP_MSG_MAX + 1,
	};

	assert_non_null(big);
	send_raw(f->sock[0], &h, sizeof(h), big, KVP_MSG_MAX + 1, 0);
	assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), -EPROTO);
	assert_int_equal(
		kvp_msg_send(f->sock[0], KVP_MSG_ADMIN_PART, 0, big, KVP_MSG_BODY_MAX + 1, NULL, 0),
		-EMSGSIZE);
	assert_int_equal(
		kvp_msg_send(f->sock[0], KVP_MSG_ADMIN_PART, 0, big, KVP_MSG_BODY_MAX, NULL, 0), 0);
	assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_CLIENT, f->packet), 0);
	assert_int_equal(f->packet->h.len, KVP_MSG_BODY_MAX);
	free(big);
}

static void test_proof_carries_credentials(void **state)
{
	struct fixture *f = *state;
	struct kvp_msg_nonce nonce = { 0x123456789abcdef0 };
	int on = 1;

	assert_int_equal(setsockopt(f->sock[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)), 0);
	assert_int_equal(kvp_msg_send_proof(f->sock[0], 3, &nonce), 0);
	assert_int_equal(kvp_msg_recv(f->sock[1], KVP_MSG_TO_DAEMON, f->packet), 0);
	assert_true(f->packet->has_cred);
	assert_int_equal(f->packet->cred.pid, getpid());
	assert_int_equal(f->packet->cred.uid, getuid());
	assert_memory_equal(f->packet->body, &nonce, sizeof(nonce));
}

static void test_hang_up_and_full(void **state)
{
	struct fixture *f = *state;
	struct kvp_msg_id id = { 1, 2 };
	int r;

	assert_int_equal(kvp_msg_poll(f->sock[1], POLLIN, 0), -ETIMEDOUT);
	do {
		r = kvp_msg_send(f->sock[0], KVP_MSG_RETIRE, 0, &id, sizeof(id), NULL, 0);
	} while (r == 0);
	assert_int_equal(r, -EAGAIN);
	assert_int_equal(kvp_msg_poll(f->sock[1], POLLIN, 0), 0);
	close(f->sock[0]);
	do {
		r = kvp_msg_recv(f->sock[1], KVP_MSG_TO_CLIENT, f->packet);
	} while (r == 0);
	assert_int_equal(r, -EPIPE);
	r = kvp_msg_send(f->sock[1], KVP_MSG_RETIRE, 0, &id, sizeof(id), NULL, 0);
	assert_int_equal(r, -EPIPE);
	f->sock[0] = dup(f->sock[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_round_trip_with_descriptors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_spoofed_descriptor_counts, setup, teardown),
		cmocka_unit_test_setup_teardown(test_malformed_packets, setup, teardown),
		cmocka_unit_test_setup_teardown(test_too_large, setup, teardown),
		cmocka_unit_test_setup_teardown(test_proof_carries_credentials, setup, teardown),
		cmocka_unit_test_setup_teardown(test_hang_up_and_full, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
