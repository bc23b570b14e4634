/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client killed with SIGKILL, at named fault points and at random, costs others nothing: check is
 * clean, no slot or lease is lost, contents verify, whoever waits for the dead one's block
 * proceeds. Rows C-028, E-018, E-019, E-025. KVP_TEST_KILLS sets the number of random kills.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/e2e/e2e.h"

#define PROMPTS    40u
#define MAX_TOKENS (E2E_BT * 8)
#define CONCURRENT 4u

static struct kvt_daemon daemon_;

static const char *const points[] = { "connect", "hello", "welcome", "mapped", "attached",
	"space-open", "match", "found", "leased", "release", "claimed", "wait", "reserve",
	"reserved", "commit", "committed", "grant-release", "forked", "put-reserve", "put-write",
	"put-commit", "arena-ack", "run-reserved", "run-commit", "run-committed", "release-after",
	"grant-later", "advanced", "parked" };

/* Shares nothing with any other, so that nobody commits its first block by the way. */
static void claimed_prompt(uint32_t *tokens)
{
	e2e_prompt(2, tokens, MAX_TOKENS);
	tokens[0] = 0x777777;
}

/* One of everything a client does, on a prompt of its own. Exit status 0, or the step that failed.
 */
static int every_step(uint32_t number)
{
	struct kvp_match_opts claim = {
		.size = sizeof(claim), .flags = KVP_MATCH_CLAIM, .timeout_ms = E2E_WAIT_MS
	};
	struct kvp_put_opts put = { .size = sizeof(put), .timeout_ms = E2E_WAIT_MS };
	uint32_t tokens[MAX_TOKENS], cut;
	uint8_t buffer[E2E_BLOCK_BYTES * 4];
	struct kvp_view_plane planes[2];
	struct kvp_view view = { .size = sizeof(view), .planes = planes };
	struct kvp_prefix *m;
	struct kvp_grant *g, *run[3];
	struct kvp_timeline *t;
	uint64_t bytes;
	struct e2e e;

	e2e_prompt(1000 + number, tokens, MAX_TOKENS);
	if (e2e_attach(&e, daemon_.socket) < 0)
		return 1;
	if (e2e_store(&e, tokens, E2E_BT * 3 + 5, E2E_WAIT_MS, true) < 0)
		return 2;
	if (kvp_flush(e.client, E2E_WAIT_MS) < 0 || e2e_fetch(&e, tokens, E2E_BT * 3 + 5) < 0)
		return 3;
	/* Diverges inside block 2: a tail to fork. */
	cut = E2E_BT * 2 + 12;
	tokens[cut] ^= 0x5555;
	if (kvp_match(e.space, tokens, MAX_TOKENS, &claim, &m) < 0)
		return 4;
	if (kvp_reserve(e.space, E2E_WAIT_MS, NULL, &g) < 0)
		return 5;
	if (kvp_fork(m, g) != 12)
		return 6;
	kvp_grant_release(g);
	kvp_release(m);
	/* Somebody else (the parent) holds the claim on this one: wait for it a little. */
	claimed_prompt(tokens);
	if (kvp_match(e.space, tokens, MAX_TOKENS, &claim, &m) < 0)
		return 7;
	kvp_wait(m, 50);
	kvp_release(m);
	/* A sequence that nobody else reads: its bytes are not derived from its tokens. */
	e2e_prompt(3000 + number, tokens, MAX_TOKENS);
	tokens[0] = 0x888000 + number;
	kvp_view_dense(e.space, KVP_VIEW_LCND, buffer, E2E_BT * 4, planes, &bytes);
	if (bytes > sizeof(buffer))
		return 8;
	memset(buffer, 0, sizeof(buffer));
	if (kvp_put(e.space, tokens, E2E_BT * 4, 0, &view, &put, NULL) != E2E_BT * 4)
		return 9;
	/* The same prompt under another root, in a run. */
	tokens[0] ^= 0x400000;
	if (kvp_reserve_run(e.space, 3, E2E_WAIT_MS, NULL, run) != 3)
		return 10;
	for (uint32_t i = 0; i < 3; i++)
		memset(kvp_grant_addr(run[i]), 0, E2E_BLOCK_BYTES);
	if (kvp_commit_run(run, 3, kvp_ref_root(), tokens, E2E_BT * 3, NULL, 0, NULL) != 3)
		return 11;
	/* What a stream still reads, and what it has read. */
	if (kvp_timeline_new(e.client, &t) < 0 || kvp_match(e.space, tokens, E2E_BT, NULL, &m) < 0)
		return 12;
	if (kvp_release_after(m, t, 7) < 0 || kvp_grant_release_after(run[0], t, 1) < 0 ||
		kvp_grant_release_after(run[1], t, 7) < 0 || kvp_timeline_advance(t, 1) < 0)
		return 13;
	if (kvp_reserve(e.space, E2E_WAIT_MS, NULL, &g) < 0 ||
		kvp_commit_after(g, kvp_ref_root(), tokens, E2E_BT, NULL, 0, t, 9) < 0)
		return 14;
	/* Long enough for the daemon to say that it waits. */
	if (kvp_grant_wait(g, 1000) != -ETIMEDOUT)
		return 15;
	e2e_detach(&e);
	return 0;
}

static void fault_points(void **state)
{
	struct kvp_match_opts claim = { .size = sizeof(claim),
		.flags = KVP_MATCH_CLAIM,
		.timeout_ms = E2E_WAIT_MS,
		.claim_ttl_ms = 600000 };
	uint32_t tokens[MAX_TOKENS];
	struct kvp_prefix *m;
	struct e2e e;
	(void)state;

	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	claimed_prompt(tokens);
	assert_int_equal(kvp_match(e.space, tokens, MAX_TOKENS, &claim, &m), 0);
	for (uint32_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		int status;
		pid_t pid = e2e_fork();

		if (!pid) {
			char number[16];

			/* A program of its own: the library reads its plan once. */
			snprintf(number, sizeof(number), "%u", i);
			setenv("KVP_FAULT", points[i], 1);
			execl("/proc/self/exe", "every-step", daemon_.socket, number, (char *)NULL);
			_exit(98);
		}
		status = e2e_reap(pid);
		if (status != 128 + SIGKILL)
			printf("fault point %s was not reached: status %d\n", points[i], status);
		assert_int_equal(status, 128 + SIGKILL);
		if (e2e_clean(daemon_.socket, 1) < 0)
			fail_msg("not clean after a kill at %s", points[i]);
	}
	kvp_release(m);
	e2e_detach(&e);
}

/* The claimant dies in the middle of its chain: the waiter sees what is there and takes over. */
static void waiter_proceeds(void **state)
{
	struct kvp_match_opts opts = {
		.size = sizeof(opts), .flags = KVP_MATCH_CLAIM, .timeout_ms = E2E_WAIT_MS
	};
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t tokens[MAX_TOKENS];
	int pipefd[2], waits = 0;
	struct kvp_prefix *m;
	struct e2e e;
	pid_t pid;
	char byte;
	(void)state;

	e2e_prompt(5001, tokens, MAX_TOKENS);
	assert_int_equal(pipe(pipefd), 0);
	pid = e2e_fork();
	if (!pid) {
		struct kvp_grant *g;
		struct e2e c;

		if (e2e_attach(&c, daemon_.socket) < 0 ||
			kvp_match(c.space, tokens, MAX_TOKENS, &opts, &m) < 0 ||
			kvp_reserve(c.space, E2E_WAIT_MS, NULL, &g) < 0)
			_exit(1);
		if (write(pipefd[1], "x", 1) != 1)
			_exit(2);
		e2e_sleep_us(200000);
		e2e_derive(tokens, E2E_BT, kvp_grant_addr(g));
		kvp_match_info(m, &info);
		if (info.n_blocks == 0)
			kvp_commit(g, kvp_ref_root(), tokens, E2E_BT, m, 0);
		kvp_flush(c.client, E2E_WAIT_MS);
		e2e_sleep_us(200000);
		raise(SIGKILL);
	}
	assert_int_equal(read(pipefd[0], &byte, 1), 1);
	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	for (;;) {
		int r;

		assert_int_equal(kvp_match(e.space, tokens, MAX_TOKENS, &opts, &m), 0);
		kvp_match_info(m, &info);
		if (info.flags & KVP_MATCHED_CLAIMED)
			break;
		assert_true(info.flags & KVP_MATCHED_PENDING);
		r = kvp_wait(m, E2E_WAIT_MS);
		assert_true(r == 0 || r == -EAGAIN);
		kvp_release(m);
		assert_true(++waits < 100);
	}
	assert_true(waits >= 1);
	kvp_release(m);
	assert_int_equal(e2e_reap(pid), 128 + SIGKILL);
	assert_true(e2e_store(&e, tokens, MAX_TOKENS, E2E_WAIT_MS, true) >= 0);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch_all(&e, tokens, MAX_TOKENS), MAX_TOKENS);
	e2e_detach(&e);
	close(pipefd[0]);
	close(pipefd[1]);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/*
 * As an engine with a stream: commits a block before it is written and releases one before it is
 * read, and then says that both are over. -EBADMSG: what it read was not what it had matched.
 */
static int late_step(struct e2e *e, struct kvp_timeline *t, uint64_t value, const uint32_t *tokens)
{
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix *m;
	struct kvp_grant *g;
	uint8_t *slot;
	int r;

	if (kvp_reserve(e->space, 0, NULL, &g) == 0) {
		slot = kvp_grant_addr(g);
		r = kvp_commit_after(
			g, kvp_ref_root(), tokens, E2E_BT, NULL, KVP_COMMIT_RELEASE, t, value);
		if (r < 0)
			return r;
		memset(slot, 0x55, E2E_BLOCK_BYTES);
		e2e_derive(tokens, E2E_BT, slot);
	}
	if (kvp_match(e->space, tokens, E2E_BT, NULL, &m) < 0)
		return -EINVAL;
	r = kvp_payload(m, 0, &p);
	kvp_release_after(m, t, value);
	if (r == 0 && !e2e_derived(tokens, E2E_BT, p.addr))
		return -EBADMSG;
	return kvp_timeline_advance(t, value);
}

/* Anything, for ever. Ends with a status only if something is wrong. */
static int random_life(uint64_t rng)
{
	uint32_t tokens[MAX_TOKENS];
	struct kvp_timeline *t;
	struct e2e e;

	if (e2e_attach(&e, daemon_.socket) < 0 || kvp_timeline_new(e.client, &t) < 0)
		return 1;
	for (uint64_t step = 1;; step++) {
		uint32_t n = 1 + (uint32_t)(e2e_random(&rng) % MAX_TOKENS);
		int r;

		e2e_prompt((uint32_t)(e2e_random(&rng) % PROMPTS), tokens, n < E2E_BT ? E2E_BT : n);
		switch (e2e_random(&rng) % 5) {
		case 0:
			r = e2e_store(&e, tokens, n, 1000, e2e_random(&rng) % 2);
			/* Room may be short while others die with their grants. */
			if (r < 0 && r != -EAGAIN && r != -ETIMEDOUT && r != -ENOENT &&
				r != -EINVAL)
				return 2;
			break;
		case 1:
			if (kvp_delete(e.space, tokens, n, 1000) == -EBADMSG)
				return 3;
			break;
		case 2:
			if (late_step(&e, t, step, tokens) == -EBADMSG)
				return 5;
			break;
		default:
			r = e2e_fetch(&e, tokens, n);
			if (r == -EBADMSG)
				return 4;
		}
	}
}

static void random_kills(void **state)
{
	const char *env = getenv("KVP_TEST_KILLS");
	uint32_t kills = env ? (uint32_t)strtoul(env, NULL, 10) : 10000, done = 0;
	uint64_t rng = e2e_seed();
	pid_t pid[CONCURRENT] = { 0 };
	uint32_t tokens[MAX_TOKENS];
	struct e2e e;
	(void)state;

	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	while (done < kills) {
		uint32_t i = (uint32_t)(e2e_random(&rng) % CONCURRENT);

		if (pid[i]) {
			kill(pid[i], SIGKILL);
			assert_int_equal(e2e_reap(pid[i]), 128 + SIGKILL);
			done++;
		}
		pid[i] = e2e_fork();
		if (!pid[i])
			_exit(random_life(rng ^ (done + 1) * UINT64_C(0x9e3779b97f4a7c15)));
		e2e_sleep_us((long)(e2e_random(&rng) % 6000));
		/* The survivor's view: right bytes or a miss, never anything else. */
		e2e_prompt((uint32_t)(e2e_random(&rng) % PROMPTS), tokens, MAX_TOKENS);
		assert_true(e2e_fetch(&e, tokens, MAX_TOKENS) >= 0);
		if (done % 500 == 499 && pid[i])
			printf("%u kills\n", done + 1);
	}
	for (uint32_t i = 0; i < CONCURRENT; i++)
		if (pid[i]) {
			kill(pid[i], SIGKILL);
			assert_int_equal(e2e_reap(pid[i]), 128 + SIGKILL);
		}
	assert_int_equal(e2e_clean(daemon_.socket, 1), 0);
	/* Nothing was lost: the pool still takes as many blocks as it did. */
	for (uint32_t p = 0; p < 200; p++) {
		e2e_prompt(9000 + p, tokens, MAX_TOKENS);
		assert_true(e2e_store(&e, tokens, MAX_TOKENS, E2E_WAIT_MS, false) > 0);
	}
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch_all(&e, tokens, MAX_TOKENS), MAX_TOKENS);
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* The client dies but a child that it forked lives on, with whatever it inherited. */
static void forked_child_stays(void **state)
{
	uint32_t tokens[MAX_TOKENS];
	int pipefd[2];
	pid_t pid, grandchild;
	struct e2e e;
	(void)state;

	assert_int_equal(pipe(pipefd), 0);
	pid = e2e_fork();
	if (!pid) {
		struct kvp_prefix *m;
		struct e2e c;

		e2e_prompt(7001, tokens, MAX_TOKENS);
		if (e2e_attach(&c, daemon_.socket) < 0 ||
			e2e_store(&c, tokens, MAX_TOKENS, E2E_WAIT_MS, false) < 0 ||
			kvp_match(c.space, tokens, MAX_TOKENS, NULL, &m) < 0)
			_exit(1);
		grandchild = fork();
		if (!grandchild) {
			int status = kvp_match(c.space, tokens, MAX_TOKENS, NULL, &m);

			if (status != -ECHILD || kvp_flush(c.client, 10) != -ECHILD)
				grandchild = -1;
			else
				grandchild = getpid();
			if (write(pipefd[1], &grandchild, sizeof(grandchild)) < 0)
				_exit(1);
			/* Ends by itself should the test not get to it. */
			alarm(60);
			for (;;)
				pause();
		}
		e2e_sleep_us(100000);
		raise(SIGKILL);
	}
	assert_int_equal(read(pipefd[0], &grandchild, sizeof(grandchild)), sizeof(grandchild));
	assert_true(grandchild > 0);
	assert_int_equal(e2e_reap(pid), 128 + SIGKILL);
	/* The session went with its process, although a child of it still runs. */
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	e2e_prompt(7001, tokens, MAX_TOKENS);
	assert_true(e2e_fetch(&e, tokens, MAX_TOKENS) >= 0);
	for (uint32_t p = 0; p < 100; p++) {
		e2e_prompt(11000 + p, tokens, MAX_TOKENS);
		assert_true(e2e_store(&e, tokens, MAX_TOKENS, E2E_WAIT_MS, false) > 0);
	}
	e2e_detach(&e);
	kill(grandchild, SIGKILL);
	close(pipefd[0]);
	close(pipefd[1]);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

static int setup(void **state)
{
	/* Small enough that eviction runs all the time. */
	struct kvt_daemon_opts opts = { .share = UINT64_C(48) << 20,
		.max_blocks = 600,
		.max_sessions = 64,
		.arena = UINT64_C(1) << 20,
		.more = "extent: 1MiB\n" };
	(void)state;

	e2e_start(&daemon_, &opts);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kvt_daemon_stop(&daemon_);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fault_points),
		cmocka_unit_test(waiter_proceeds),
		cmocka_unit_test(forked_child_stays),
		cmocka_unit_test(random_kills),
	};

	if (argc == 3) {
		snprintf(daemon_.socket, sizeof(daemon_.socket), "%s", argv[1]);
		return every_step((uint32_t)atoi(argv[2]));
	}
	return cmocka_run_group_tests(tests, setup, teardown);
}
