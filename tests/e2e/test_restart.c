/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon is killed with SIGKILL while clients work: what they hold stays readable, calls turn
 * into misses or -ESHUTDOWN within their timeouts, and a new daemon is joined without restarting
 * them. Row E-050. Also: no daemon at all, and attaching lazily before there is one.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/e2e/e2e.h"

#define TOKENS (E2E_BT * 8)

static const struct kvt_daemon_opts pool = { .share = UINT64_C(48) << 20, .max_blocks = 500 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void kill_daemon(struct kvt_daemon *d)
{
	assert_int_equal(kill(d->pid, SIGKILL), 0);
	waitpid(d->pid, NULL, 0);
	d->pid = 0;
}

static void clients_outlive_the_daemon(void **state)
{
	struct kvp_counters stats = { .size = sizeof(stats) };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t tokens[TOKENS], other[TOKENS];
	struct kvp_prefix *held, *m;
	struct kvp_grant *g = NULL;
	struct kvt_daemon d;
	uint64_t epoch;
	double began;
	struct e2e e;
	int r;
	(void)state;

	e2e_start(&d, &pool);
	assert_int_equal(e2e_attach(&e, d.socket), 0);
	e2e_prompt(1, tokens, TOKENS);
	e2e_prompt(4, other, TOKENS);
	assert_int_equal(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false), 8);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(kvp_match(e.space, tokens, TOKENS, NULL, &held), 0);
	assert_int_equal(kvp_reserve(e.space, E2E_WAIT_MS, NULL, &g), 0);
	assert_int_equal(kvp_stats(e.client, &stats), 0);
	epoch = stats.epoch;
	assert_true(epoch != 0);

	kill_daemon(&d);
	/* What is leased stays readable, byte for byte; a granted slot stays writable. */
	for (uint32_t i = 0; i < 8; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };

		assert_int_equal(kvp_payload(held, i, &p), 0);
		assert_true(e2e_derived(tokens, (i + 1) * E2E_BT, p.addr));
	}
	memset(kvp_grant_addr(g), 7, E2E_BLOCK_BYTES);
	/* Control calls end by themselves. */
	began = now();
	r = kvp_flush(e.client, 2000);
	assert_true(r == -ESHUTDOWN || r == -ETIMEDOUT);
	r = e2e_store(&e, other, TOKENS, 500, false);
	assert_true(r == -ESHUTDOWN || r == -ETIMEDOUT || r == -EAGAIN);
	assert_int_equal(kvp_match(e.space, other, TOKENS, NULL, &m), 0);
	kvp_match_info(m, &info);
	assert_int_equal(info.n_blocks, 0);
	kvp_release(m);
	assert_true(now() - began < 10);

	/* A new daemon at the same place is joined in the background. */
	{
		struct kvt_daemon again = d;
		char error[1000];

		assert_int_equal(kvt_daemon_restart(&again, error, sizeof(error)), 0);
		d = again;
	}
	for (int i = 0; i < 6000; i++) {
		assert_int_equal(kvp_stats(e.client, &stats), 0);
		if (stats.attached && stats.epoch && stats.epoch != epoch)
			break;
		e2e_sleep_us(10000);
	}
	assert_true(stats.attached);
	assert_true(stats.epoch != epoch);
	assert_true(stats.reattached >= 1);
	/* Old handles: still readable, no longer committable, and released into their own page. */
	{
		struct kvp_payload_info p = { .size = sizeof(p) };

		assert_int_equal(kvp_payload(held, 3, &p), 0);
		assert_true(e2e_derived(tokens, 4 * E2E_BT, p.addr));
	}
	assert_int_equal(kvp_commit(g, kvp_ref_root(), tokens, E2E_BT, NULL, 0), -ESHUTDOWN);
	assert_int_equal(kvp_grant_release(g), 0);
	assert_int_equal(kvp_release(held), 0);
	/* The cache is empty and works. */
	assert_int_equal(e2e_fetch(&e, tokens, TOKENS), 0);
	assert_int_equal(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false), 8);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
	assert_int_equal(e2e_clean(d.socket, 1), 0);
	e2e_detach(&e);
	kvt_daemon_stop(&d);
}

/* Waits until the descriptor is readable, and reads it. */
static void event(int fd)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	uint64_t times;

	assert_int_equal(poll(&p, 1, E2E_WAIT_MS), 1);
	assert_int_equal(read(fd, &times, sizeof(times)), sizeof(times));
}

/* Loops that wait by descriptor hear that what they wait for will never come, and of the next daemon. */
static void event_loops_outlive_the_daemon(void **state)
{
	struct kvp_match_opts claim = { .size = sizeof(claim), .flags = KVP_MATCH_CLAIM };
	struct kvp_counters stats = { .size = sizeof(stats) };
	struct kvp_prefix *mine, *theirs;
	uint32_t tokens[TOKENS];
	struct kvp_grant *g;
	struct e2e e, other;
	struct kvt_daemon d;
	char error[1000];
	uint64_t mark;
	int fd, r;
	(void)state;

	e2e_start(&d, &pool);
	assert_int_equal(e2e_attach(&e, d.socket), 0);
	assert_int_equal(e2e_attach(&other, d.socket), 0);
	e2e_prompt(1, tokens, TOKENS);
	fd = kvp_event_fd(e.client, KVP_EVENT_COMMITS | KVP_EVENT_CLAIMS);
	assert_true(fd >= 0);
	assert_int_equal(kvp_match(other.space, tokens, TOKENS, &claim, &theirs), 0);
	assert_int_equal(kvp_match(e.space, tokens, TOKENS, &claim, &mine), 0);
	assert_int_equal(kvp_wait(mine, 0), -ETIMEDOUT);
	assert_int_equal(kvp_reserve(e.space, E2E_WAIT_MS, NULL, &g), 0);
	assert_int_equal(kill(d.pid, SIGSTOP), 0);
	assert_int_equal(kvp_commit(g, kvp_ref_root(), tokens + E2E_BT, E2E_BT, NULL, 0), 0);
	assert_int_equal(kvp_flush_mark(e.client, &mark), 0);
	kill_daemon(&d);
	while ((r = kvp_wait(mine, 0)) == -ETIMEDOUT)
		event(fd);
	assert_int_equal(r, -ESHUTDOWN);
	/* The ledger may have answered before it stopped. */
	r = kvp_grant_wait(g, 0);
	assert_true(r == -ESHUTDOWN || r == 0);
	assert_int_equal(kvp_flush_done(e.client, mark), -ESHUTDOWN);
	assert_int_equal(kvp_flush_mark(e.client, &mark), -ESHUTDOWN);

	assert_int_equal(kvt_daemon_restart(&d, error, sizeof(error)), 0);
	while (kvp_stats(e.client, &stats) == 0 && !stats.attached)
		event(fd);
	assert_int_equal(kvp_flush_done(e.client, mark), -ESHUTDOWN);
	assert_int_equal(kvp_grant_release(g), 0);
	/* What is committed at the new one is announced like any other. */
	assert_int_equal(kvp_reserve(e.space, E2E_WAIT_MS, NULL, &g), 0);
	assert_int_equal(kvp_commit(g, kvp_ref_root(), tokens, E2E_BT, NULL, 0), 0);
	while ((r = kvp_grant_wait(g, 0)) == -ETIMEDOUT)
		event(fd);
	assert_int_equal(r, 0);
	assert_int_equal(kvp_grant_release(g), 0);
	assert_int_equal(kvp_release(mine), 0);
	assert_int_equal(kvp_release(theirs), 0);
	e2e_detach(&other);
	assert_int_equal(e2e_clean(d.socket, 1), 0);
	e2e_detach(&e);
	kvt_daemon_stop(&d);
}

/* This process's connection to the daemon. */
static int connection(void)
{
	for (int fd = 3; fd < 1024; fd++) {
		int type = 0;
		socklen_t n = sizeof(type);

		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) == 0 && type == SOCK_SEQPACKET)
			return fd;
	}
	return -1;
}

/*
 * Only the connection breaks: client and daemon live. What is leased stays until the client lets go
 * of it, and then the former session is not left behind for the others to wait for.
 */
static void a_broken_connection_leaves_no_session(void **state)
{
	struct kvp_counters stats = { .size = sizeof(stats) };
	struct kvp_payload_info p = { .size = sizeof(p) };
	uint32_t tokens[TOKENS];
	struct kvp_prefix *held;
	struct kvt_daemon d;
	struct e2e e;
	json_t *answer;
	int r;
	(void)state;

	e2e_start(&d, &pool);
	assert_int_equal(e2e_attach(&e, d.socket), 0);
	e2e_prompt(1, tokens, TOKENS);
	assert_int_equal(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false), 8);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(kvp_match(e.space, tokens, TOKENS, NULL, &held), 0);
	assert_int_equal(shutdown(connection(), SHUT_RDWR), 0);
	for (int i = 0; i < 60000 && !stats.reattached; i++) {
		e2e_sleep_us(1000);
		assert_int_equal(kvp_stats(e.client, &stats), 0);
	}
	assert_int_equal(stats.reattached, 1);
	answer = e2e_ask(d.socket, "{\"verb\": \"evict\", \"all\": true}", &r);
	json_decref(answer);
	for (uint32_t i = 0; i < 8; i++) {
		assert_int_equal(kvp_payload(held, i, &p), 0);
		assert_true(e2e_derived(tokens, (i + 1) * E2E_BT, p.addr));
	}
	assert_int_equal(kvp_release(held), 0);
	assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
	assert_int_equal(e2e_clean(d.socket, 1), 0);
	e2e_detach(&e);
	kvt_daemon_stop(&d);
}

static void no_daemon(void **state)
{
	struct kvp_open_opts opts = { .size = sizeof(opts), .default_timeout_ms = 300 };
	struct kvp_counters stats = { .size = sizeof(stats) };
	struct kvt_daemon d;
	struct kvp_client *c;
	char path[256];
	double began;
	(void)state;

	e2e_start(&d, &pool);
	snprintf(path, sizeof(path), "%s.none", d.socket);
	opts.socket = path;
	began = now();
	assert_int_equal(kvp_open(&opts, &c), -ENOENT);
	opts.flags = KVP_OPEN_LAZY;
	assert_int_equal(kvp_open(&opts, &c), 0);
	assert_true(now() - began < 5);
	assert_int_equal(kvp_stats(c, &stats), 0);
	assert_int_equal(stats.attached, 0);
	/* The daemon appears there later. */
	assert_int_equal(link(d.socket, path), 0);
	for (int i = 0; i < 6000 && !stats.attached; i++) {
		e2e_sleep_us(10000);
		kvp_stats(c, &stats);
	}
	assert_true(stats.attached);
	unlink(path);
	c = kvp_close(c);
	c = kvp_close(c);
	kvt_daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clients_outlive_the_daemon),
		cmocka_unit_test(event_loops_outlive_the_daemon),
		cmocka_unit_test(a_broken_connection_leaves_no_session),
		cmocka_unit_test(no_daemon),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
