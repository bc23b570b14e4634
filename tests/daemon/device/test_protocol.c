/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker and the daemon may say to each other, and what becomes of the rest. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/device/child.h"
#include "daemon/device/protocol.h"
#include "daemon/log.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_seg.h"

#define MIB (UINT64_C(1) << 20)

static void malformed_packets_are_refused(void **state)
{
	struct kvpd_p p = { .h = { .magic = KVPD_PACKET_MAGIC, .type = KVPD_P_COPY } };
	const size_t head = sizeof(p.h);

	(void)state;
	p.u.copy.n = 2;
	p.u.copy.copy[0].bytes = p.u.copy.copy[1].bytes = 64;
	p.h.len = (uint32_t)kvpd_p_copy_len(2);
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 0, KVPD_TO_WORKER), 0);
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 0, KVPD_TO_DAEMON), -EPROTO);
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 1, KVPD_TO_WORKER), -EPROTO);
	assert_int_equal(kvpd_p_check(&p, head + p.h.len - 1, 0, KVPD_TO_WORKER), -EPROTO);
	p.u.copy.n = 3;
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 0, KVPD_TO_WORKER), -EPROTO);
	p.u.copy.n = 2;
	p.u.copy.copy[1].seg = KVPD_DEVICE_SEGS;
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 0, KVPD_TO_WORKER), -EPROTO);
	p.u.copy.copy[1].seg = 0;
	p.u.copy.copy[1].host_off = UINT64_MAX - 63;
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 0, KVPD_TO_WORKER), -EPROTO);
	p.u.copy.copy[1].host_off = 0;
	p.u.copy.way = KVPD_WAYS;
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 0, KVPD_TO_WORKER), -EPROTO);

	memset(&p.u, 0, sizeof(p.u));
	p.h.type = KVPD_P_ANSWER;
	p.h.len = sizeof(p.u.answer);
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 0, KVPD_TO_DAEMON), 0);
	p.u.answer.status = 1;
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 0, KVPD_TO_DAEMON), -EPROTO);
	p.u.answer.status = -5;
	p.h.n_fds = 1; /* a failure with a descriptor */
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 1, KVPD_TO_DAEMON), -EPROTO);
	p.h.type = KVPD_P_MAX_;
	assert_int_equal(kvpd_p_check(&p, head + p.h.len, 1, KVPD_TO_DAEMON), -EPROTO);
}

/* ---- a worker that hears nonsense ------------------------------------------------------------ */

static struct kvpd_p packet;

static void receive(int sock)
{
	struct pollfd f = { .fd = sock, .events = POLLIN };
	int r;

	while ((r = kvpd_p_recv(sock, KVPD_TO_DAEMON, &packet)) == -EAGAIN)
		assert_int_equal(poll(&f, 1, 60000), 1);
	assert_int_equal(r, 0);
}

static void start(struct kvpd_child *child)
{
	char *argv[] = { (char *)"kvpool-device", (char *)"host", (char *)"4194304", (char *)"1",
		(char *)"0", (char *)"0", (char *)"1", (char *)"", (char *)"", NULL };
	const char *nothing[] = { NULL };

	assert_int_equal(kvpd_child_start(getenv("KVPOOL_DEVICE"), argv, nothing, child), 0);
	receive(child->sock);
	assert_int_equal(packet.h.type, KVPD_P_HELLO);
}

/* A segment and a read-only extent, both number 0, both 1 MiB. */
static void give_memory(struct kvpd_child *child)
{
	const struct kvpd_p_memory m = { .bytes = MIB };
	int dram;

	assert_int_equal(kvpd_p_send(child->sock, KVPD_P_SEG_MAKE, 7, &m, sizeof(m), -1), 0);
	receive(child->sock);
	assert_int_equal(packet.h.tag, 7);
	assert_int_equal(packet.u.answer.status, 0);
	assert_int_equal(kvp_seg_check(packet.fd, MIB, KVP_SEALS_FIXED), 0);
	kvpd_p_done_with(&packet);
	assert_int_equal(kvp_seg_create("test", MIB, 0, &dram), 0);
	assert_int_equal(kvp_seg_seal(dram, KVP_SEALS_FIXED), 0);
	assert_int_equal(kvpd_p_send(child->sock, KVPD_P_HOST_ADD, 8, &m, sizeof(m), dram), 0);
	receive(child->sock);
	assert_int_equal(packet.u.answer.status, 0);
	close(dram);
}

static void ends_with(struct kvpd_child *child, int status)
{
	int s;

	assert_int_equal(waitpid(child->pid, &s, 0), child->pid);
	assert_true(WIFEXITED(s));
	assert_int_equal(WEXITSTATUS(s), status);
	close(child->sock);
}

static void a_worker_ends_at_nonsense(void **state)
{
	const struct kvpd_copy good = { .bytes = MIB };
	const struct {
		uint32_t type;
		struct kvpd_p_memory m;
		uint32_t way;
		struct kvpd_copy c;
	} bad[] = {
		{ .type = KVPD_P_SEG_MAKE, .m = { .bytes = MIB } },        /* there is one */
		{ .type = KVPD_P_SEG_DROP, .m = { .id = 1 } },             /* there is none */
		{ .type = KVPD_P_HOST_DROP, .m = { .id = 3 } },            /* likewise */
		{ .type = KVPD_P_HOST_ADD, .m = { .id = 1, .bytes = 1 } }, /* without descriptor */
		{ .type = KVPD_P_DONE },                                   /* not its side */
		{ .type = KVPD_P_COPY, .c = { .bytes = MIB + 1 } },
		{ .type = KVPD_P_COPY, .c = { .bytes = MIB, .seg_off = 64 } },
		{ .type = KVPD_P_COPY, .c = { .bytes = 64, .host_off = MIB } },
		{ .type = KVPD_P_COPY, .c = { .bytes = 64, .seg = 1 } },
		{ .type = KVPD_P_COPY, .c = { .bytes = 64, .sum = 2 } },
		{ .type = KVPD_P_COPY, .c = { .bytes = 64, .reserved = 1 } },
		{ .type = KVPD_P_COPY, .way = KVPD_TO_HOST, .c = good }, /* which is read-only */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kvpd_p_copy c = {
			.batch = 1, .way = bad[i].way, .n = 1, .copy = { bad[i].c }
		};
		struct kvpd_child child = { 0 };

		start(&child);
		give_memory(&child);
		if (bad[i].type == KVPD_P_COPY)
			assert_int_equal(
				kvpd_p_send(child.sock, KVPD_P_COPY, 0, &c, kvpd_p_copy_len(1), -1),
				0);
		else
			assert_int_equal(kvpd_p_send(child.sock, bad[i].type, 9, &bad[i].m,
						 sizeof(bad[i].m), -1),
				0);
		ends_with(&child, 4);
	}
}

/* Of the one copy of a batch, if it is asked for. */
static void a_worker_says_the_sum_with_the_end(void **state)
{
	uint8_t *nothing = calloc(1, MIB);
	struct kvpd_child child = { 0 };

	(void)state;
	start(&child);
	give_memory(&child);
	for (uint32_t sum = 0; sum < 2; sum++) {
		const struct kvpd_p_copy c = {
			.batch = 1, .n = 1, .copy = { { .bytes = MIB - 64, .sum = sum } }
		};

		assert_int_equal(
			kvpd_p_send(child.sock, KVPD_P_COPY, 0, &c, kvpd_p_copy_len(1), -1), 0);
		receive(child.sock);
		assert_int_equal(packet.h.type, KVPD_P_DONE);
		assert_int_equal(packet.u.done.status, 0);
		assert_true(
			packet.u.done.sum == (sum ? kvp_payload_checksum(nothing, MIB - 64) : 0));
	}
	shutdown(child.sock, SHUT_RDWR);
	ends_with(&child, 0);
	free(nothing);
}

static void a_worker_ends_with_its_socket(void **state)
{
	struct kvpd_child child = { 0 };
	int s;

	(void)state;
	start(&child);
	assert_int_equal(kill(child.pid, SIGTERM), 0);
	give_memory(&child); /* it takes no notice */
	shutdown(child.sock, SHUT_RDWR);
	assert_int_equal(waitpid(child.pid, &s, 0), child.pid);
	assert_true(WIFEXITED(s) && WEXITSTATUS(s) == 0);
	close(child.sock);
}

/* ---- a worker that says nonsense ------------------------------------------------------------- */

static struct kvpd_device *device;

static void wake(void *ctx)
{
	(void)eventfd_write(*(int *)ctx, 1);
}

static bool over;

static void on_done(struct kvpd_device_work *work)
{
	(void)work;
	over = true;
}

/* This program as the worker: says what its faults are called, after a proper greeting or without. */
static int lie(const char *what)
{
	const int sock = KVPD_WORKER_SOCKET;
	const struct kvpd_p_hello hello = {
		.bytes = MIB, .granularity = 4096, .flags = 1, .batch = MIB
	};
	const struct kvpd_p_answer answer = { 0 };
	const struct kvpd_p_done done = { .batch = 99 };
	const struct kvpd_p_summed summed = { .seq = 99 };
	struct pollfd f = { .fd = sock, .events = POLLIN };

	if (!strcmp(what, "rude"))
		return kvpd_p_send_wait(sock, KVPD_P_DONE, 0, &done, sizeof(done), -1);
	if (!strcmp(what, "garbage"))
		return (int)send(sock, "garbage that is no packet", 25, 0);
	kvpd_p_send_wait(sock, KVPD_P_HELLO, 0, &hello, sizeof(hello), -1);
	if (!strcmp(what, "twice"))
		kvpd_p_send_wait(sock, KVPD_P_HELLO, 0, &hello, sizeof(hello), -1);
	if (!strcmp(what, "done"))
		kvpd_p_send_wait(sock, KVPD_P_DONE, 0, &done, sizeof(done), -1);
	if (!strcmp(what, "summed"))
		kvpd_p_send_wait(sock, KVPD_P_SUMMED, 0, &summed, sizeof(summed), -1);
	if (!strcmp(what, "unasked"))
		kvpd_p_send_wait(sock, KVPD_P_ANSWER, 77, &answer, sizeof(answer), -1);
	poll(&f, 1, -1);
	if (kvpd_p_recv(sock, KVPD_TO_WORKER, &packet) == 0 && packet.h.type == KVPD_P_SEG_MAKE) {
		/* A segment that is none: no descriptor, or one of something else. */
		int fd = !strcmp(what, "nofd") ? -1 : sock;

		kvpd_p_send_wait(sock, KVPD_P_ANSWER, packet.h.tag, &answer, sizeof(answer), fd);
	}
	for (;;)
		pause();
}

static void the_daemon_believes_no_worker(void **state)
{
	static const char *const lies[] = { "rude", "garbage", "twice", "done", "summed", "unasked",
		"nofd", "wrongfd" };

	(void)state;
	for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
		int event = eventfd(0, EFD_CLOEXEC);
		const struct kvpd_device_config c = {
			.name = "liar",
			.driver = "host",
			.faults = lies[i],
			.worker = "/proc/self/exe",
			.bytes = 4 * MIB,
			.restart_ms = 1,
			.wake = wake,
			.ctx = &event,
		};
		struct kvpd_device_op op = {
			.work = { .done = on_done }, .kind = KVPD_SEG_MAKE, .bytes = MIB
		};
		struct kvpd_device_figures f = { 0 };
		int r;

		assert_int_equal(kvpd_device_new(&c, &device), 0);
		r = kvpd_device_ask(device, &op);
		assert_true(r == 0 || r == -ENODEV);
		for (over = r < 0; !over;)
			if (!kvpd_device_drain(device, 1))
				poll(NULL, 0, 1);
		if (r == 0)
			assert_true(op.work.status == -EIO || op.work.status == -ENODEV);
		/* Each is ended, and tried again. */
		while (f.restarts < 2) {
			kvpd_device_figures(device, &f);
			poll(NULL, 0, 1);
		}
		device = kvpd_device_free(device);
		close(event);
	}
}

/* All batches that may be under way fit into the socket while nobody reads. */
static void a_socket_has_room_for_all_batches(void **state)
{
	static struct kvpd_p_copy copy = { .n = KVPD_DRIVER_BATCH };
	int pair[2];

	(void)state;
	assert_int_equal(kvpd_p_pair(pair), 0);
	for (uint32_t i = 0; i < KVPD_WAYS * KVPD_DRIVER_FLIGHT; i++) {
		copy.batch = i + 1;
		copy.way = i % KVPD_WAYS;
		assert_int_equal(
			kvpd_p_send(pair[0], KVPD_P_COPY, 0, &copy, kvpd_p_copy_len(copy.n), -1),
			0);
	}
	/* And for a question beside them. */
	assert_int_equal(kvpd_p_send(pair[0], KVPD_P_USAGE, 1, NULL, 0, -1), 0);
	close(pair[0]);
	close(pair[1]);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_socket_has_room_for_all_batches),
		cmocka_unit_test(malformed_packets_are_refused),
		cmocka_unit_test(a_worker_ends_at_nonsense),
		cmocka_unit_test(a_worker_says_the_sum_with_the_end),
		cmocka_unit_test(a_worker_ends_with_its_socket),
		cmocka_unit_test(the_daemon_believes_no_worker),
	};

	if (argc == 9)
		return lie(argv[8]) < 0;
	kvpd_log_init(KVPD_LOG_ERR - 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
