/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library against a real kvpoold (KVPOOL_SOCKET, KVPOOLD_PID), several processes where that is
 * the point. What fails prints where and ends the program with status 1.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/libclient/live.h"

static pid_t child(void (*run)(void *arg), void *arg)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		run(arg);
		_exit(0);
	}
	return pid;
}

static void reap(pid_t pid)
{
	int status;

	EQUAL(waitpid(pid, &status, 0), pid);
	CHECK(WIFEXITED(status));
	EQUAL(WEXITSTATUS(status), 0);
}

/* C-026, C-027, C-029, C-030, C-033: what one process stores another one reads in place. */
static void reader(void *arg)
{
	uint32_t layout = *(uint32_t *)arg;
	struct engine *e = engine_new("live", layout, 1);
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix_info i;
	struct kvp_prefix *m = find_soon(e, N + 20, N + 20, &i);

	EQUAL(i.flags, KVP_MATCHED_LEASED);
	EQUAL(i.n_blocks, BLOCKS + 1); /* the partial one is all that was left */
	same_bytes(e, m, N + 20);
	for (uint32_t b = 0; b <= BLOCKS; b++)
		EQUAL(kvp_payload(m, b, &p), 0);
	EQUAL(p.tokens, 20);
	EQUAL(kvp_release(m), 0);
	EQUAL(kvp_release(m), -EALREADY);
	m = find_soon(e, N + T, N + 20, &i);
	EQUAL(i.n_blocks, BLOCKS);
	EQUAL(i.tail_tokens, 20);
	kvp_release(m);
	engine_free(e);
}

static void test_two_processes(void)
{
	for (uint32_t layout = 0; layout <= 1; layout++) {
		struct engine *e;
		uint32_t arg = layout;

		e = engine_new("live", layout, 1);
		store(e, N + 20, KVP_PUT_PARTIAL);
		reap(child(reader, &arg));
		engine_free(e);
		/* Its session is gone, its blocks are not. */
		reap(child(reader, &arg));
	}
}

/* C-032: deleted is gone for everybody, but not under a reader's hands. */
static void test_delete(void)
{
	struct engine *e = engine_new("delete", 0, 2), *other = engine_new("delete", 0, 2);
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	store(e, 4 * T, 0);
	m = find_soon(other, 4 * T, 4 * T, &i);
	EQUAL(kvp_delete(e->space, e->tokens, 4 * T, WAIT_MS), 4);
	same_bytes(other, m, 4 * T);
	kvp_release(m);
	for (uint32_t n = 0;; n++) {
		CHECK(n < 12000);
		EQUAL(kvp_delete(e->space, e->tokens, 4 * T, WAIT_MS) >= 0, 1);
		kvp_release(find(other, 4 * T, 0, &i));
		if (!i.n_blocks)
			break;
		usleep(5000);
	}
	engine_free(other);
	engine_free(e);
}

/* E-017: copy-on-write. Reserve, fork, commit; the source stays as it was. */
static void test_fork(void)
{
	struct engine *e = engine_new("fork", 1, 3);
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	struct kvp_grant *g;
	struct kvp_ref ref;
	uint32_t mine[2 * T];

	store(e, 2 * T, 0);
	memcpy(mine, e->tokens, sizeof(mine));
	for (uint32_t t = T + 33; t < 2 * T; t++)
		mine[t] = 5;
	EQUAL(kvp_match(e->space, mine, 2 * T, NULL, &m), 0);
	i.size = sizeof(i);
	EQUAL(kvp_match_info(m, &i), 0);
	EQUAL(i.tail_tokens, 33);
	EQUAL(kvp_reserve(e->space, WAIT_MS, NULL, &g), 0);
	EQUAL(kvp_fork(m, g), 33);
	EQUAL(kvp_match_ref(m, 1, &ref), 0);
	EQUAL(kvp_commit(g, ref, mine + T, T, NULL, 0), 0);
	EQUAL(kvp_grant_wait(g, WAIT_MS), 0);
	EQUAL(kvp_grant_release(g), 0);
	kvp_release(m);
	m = find_soon(e, 2 * T, 2 * T, &i);
	EQUAL(i.n_blocks, 2);
	same_bytes(e, m, 2 * T);
	kvp_release(m);
	EQUAL(kvp_match(e->space, mine, 2 * T, NULL, &m), 0);
	EQUAL(kvp_match_info(m, &i), 0);
	EQUAL(i.n_blocks, 2);
	same_bytes(e, m, T + 33);
	kvp_release(m);
	engine_free(e);
}

/* Single flight among processes: the prompt's blocks are computed once. */
#define FLIERS 4u

static void flier(void *arg)
{
	struct engine *e = engine_new("flight", 0, 4);
	int *computed = arg;
	uint32_t have = 0, mine = 0;

	while (have < 4) {
		struct kvp_prefix_info i;
		struct kvp_prefix *m = find(e, 4 * T, KVP_MATCH_CLAIM, &i);

		have = i.n_blocks;
		if (i.flags & KVP_MATCHED_PENDING) {
			int r = kvp_wait(m, WAIT_MS);

			CHECK(r == 0 || r == -EAGAIN);
		} else if (i.flags & KVP_MATCHED_CLAIMED) {
			struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };

			while (have < 4) {
				usleep(3000); /* prefill */
				have++;
				mine++;
				EQUAL(kvp_put(e->space, e->tokens, have * T, 0, &e->view, &o, NULL),
					have * T);
				EQUAL(kvp_flush(e->client, WAIT_MS), 0);
			}
		}
		kvp_release(m);
	}
	CHECK(write(computed[1], &mine, sizeof(mine)) == sizeof(mine));
	engine_free(e);
}

static void test_single_flight(void)
{
	int computed[2];
	pid_t pid[FLIERS];
	uint32_t sum = 0, one;

	EQUAL(pipe(computed), 0);
	for (uint32_t i = 0; i < FLIERS; i++)
		pid[i] = child(flier, computed);
	for (uint32_t i = 0; i < FLIERS; i++) {
		reap(pid[i]);
		CHECK(read(computed[0], &one, sizeof(one)) == sizeof(one));
		sum += one;
	}
	/* A claimant's extent may be unknown to another for a moment, which then computes again. */
	CHECK(sum >= 4 && sum <= 8);
	close(computed[0]);
	close(computed[1]);
}

/* C-028: a claimant that dies frees its claim; a reader that dies frees its lease. */
static void dies(void *arg)
{
	struct engine *e = engine_new("dies", 0, 5);
	struct kvp_prefix_info i;
	struct kvp_grant *g;
	int *pipefd = arg;

	(void)find(e, 2 * T, KVP_MATCH_CLAIM, &i);
	EQUAL(i.flags, KVP_MATCHED_CLAIMED);
	EQUAL(kvp_reserve(e->space, WAIT_MS, NULL, &g), 0);
	CHECK(write(pipefd[1], "x", 1) == 1);
	pause();
}

static void test_death(void)
{
	struct engine *e = engine_new("dies", 0, 5);
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	int pipefd[2], status;
	char x;
	pid_t pid;

	EQUAL(pipe(pipefd), 0);
	pid = child(dies, pipefd);
	CHECK(read(pipefd[0], &x, 1) == 1);
	m = find(e, 2 * T, KVP_MATCH_CLAIM, &i);
	EQUAL(i.flags, KVP_MATCHED_PENDING);
	EQUAL(kvp_wait(m, 50), -ETIMEDOUT);
	kill(pid, SIGKILL);
	EQUAL(kvp_wait(m, WAIT_MS), -EAGAIN);
	EQUAL(waitpid(pid, &status, 0), pid);
	kvp_release(m);
	m = find(e, 2 * T, KVP_MATCH_CLAIM, &i);
	EQUAL(i.flags, KVP_MATCHED_CLAIMED);
	kvp_release(m);
	close(pipefd[0]);
	close(pipefd[1]);
	engine_free(e);
}

/* Threads of one client store and read different prompts. */
#define THREADS 8u

struct thread_arg {
	struct kvp_client *client;
	uint32_t seed;
};

/* In a pool that is small for all, others' blocks may have taken the place of this one's first ones by then: once more. */
static void store_beside_others(struct engine *e, uint32_t n)
{
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	int r;

	do
		r = kvp_put(e->space, e->tokens, n, 0, &e->view, &o, NULL);
	while (r == -EAGAIN);
	EQUAL(r, n);
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
}

static void *in_thread(void *arg)
{
	struct thread_arg *a = arg;
	struct kvp_space_desc d = model("threads", 1);
	struct engine *e = calloc(1, sizeof(*e));
	uint64_t bytes;

	CHECK(e && (e->kv = malloc((size_t)(N + T) * TOKEN_BYTES)));
	e->client = a->client;
	EQUAL(kvp_space_open(e->client, &d, WAIT_MS, &e->space), 0);
	EQUAL(kvp_view_dense(e->space, KVP_VIEW_NCLD, e->kv, N + T, e->planes, &bytes), 0);
	e->view = (struct kvp_view){ .size = sizeof(e->view), .planes = e->planes };
	for (uint32_t r = 0; r < 10; r++) {
		struct kvp_prefix_info i;
		struct kvp_prefix *m;

		fill(e, 100 + a->seed * 10 + r);
		store_beside_others(e, 4 * T);
		m = find(e, 4 * T, 0, &i);
		/* Evicted already, if the pool is small; what is there is right. */
		if (i.n_tokens)
			same_bytes(e, m, i.n_tokens);
		kvp_release(m);
	}
	kvp_space_close(e->space);
	free(e->kv);
	free(e);
	return NULL;
}

static void test_threads(void)
{
	struct thread_arg a[THREADS];
	struct kvp_client *c;
	pthread_t thread[THREADS];

	EQUAL(kvp_open(NULL, &c), 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		a[i] = (struct thread_arg){ c, i };
		EQUAL(pthread_create(&thread[i], NULL, in_thread, &a[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	kvp_close(c);
}

/* Counters of the tenant are seen; lookups add up. */
static void test_stats(void)
{
	struct engine *e = engine_new("stats", 0, 6);
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_prefix_info i;

	store(e, 4 * T, 0);
	kvp_release(find(e, 4 * T, 0, &i));
	EQUAL(kvp_stats(e->client, &s), 0);
	EQUAL(s.lookups, 1);
	EQUAL(s.hits, 1);
	CHECK(s.blocks >= 4 && s.payload_bytes >= 4 * T * TOKEN_BYTES && s.attached);
	engine_free(e);
}

/* E-014: what does not fit makes others go; what can never fit is refused. Leaves the pool full. */
static void test_more_than_fits(void)
{
	struct engine *e = engine_new("full", 0, 8);
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	int64_t said, there;
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_layer large[2];
	struct kvp_space_desc d = model("large", 0);
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	struct kvp_space *space;

	for (uint32_t seed = 0; seed < 100; seed++) {
		fill(e, 1000 + seed);
		said = kvp_put(e->space, e->tokens, N, 0, &e->view, &o, NULL);
		CHECK(said > 0 || said == -EAGAIN);
		/* A block in an extent that is not mapped here yet is a miss for a moment: they agree in the end. */
		for (uint32_t tries = 0;; tries++) {
			there = kvp_put_outcome(e->space, e->tokens, N, 0, WAIT_MS, NULL);
			m = find(e, N, 0, &i);
			if (i.n_tokens == there || tries == 1000)
				break;
			kvp_release(m);
			usleep(5000);
		}
		EQUAL(i.n_tokens, there);
		if (there)
			same_bytes(e, m, i.n_tokens);
		kvp_release(m);
	}
	EQUAL(kvp_stats(e->client, &s), 0);
	CHECK(s.evictions > 0);
	CHECK(s.payload_bytes <= UINT64_C(64) << 20);
	memcpy(large, layers, sizeof(large));
	large[0].kv_heads = large[1].kv_heads = 4096;
	large[0].k_dim = large[1].k_dim = 256;
	d.layers = large;
	EQUAL(kvp_space_open(e->client, &d, WAIT_MS, &space), -E2BIG);
	engine_free(e);
}

/* A stopped daemon is noticed by time, not by hanging; a running one goes on where it was. */
static void test_stopped_daemon(void)
{
	const char *text = getenv("KVPOOLD_PID");
	pid_t daemon = text ? (pid_t)atoi(text) : 0;
	struct engine *e = engine_new("stopped", 0, 7);
	struct kvp_prefix_info i;
	struct kvp_client *c;
	struct kvp_open_opts o = { .size = sizeof(o), .default_timeout_ms = 200 };

	store(e, 2 * T, 0);
	if (!daemon || kill(daemon, SIGSTOP) < 0) {
		printf("no daemon of ours to stop: left out\n");
		engine_free(e);
		return;
	}
	stopped = daemon;
	/* The signal waits for a processor, as others do: the ledger may answer meanwhile. */
	for (uint32_t n = 0; kvp_flush(e->client, 50) == 0; n++) {
		CHECK(n < 5000);
		usleep(1000);
	}
	EQUAL(kvp_flush(e->client, 50), -ETIMEDOUT);
	EQUAL(kvp_open(&o, &c), -ETIMEDOUT);
	kvp_release(find(e, 2 * T, 0, &i));
	EQUAL(i.n_blocks, 2);
	kill(daemon, SIGCONT);
	stopped = 0;
	/* At once -ETIMEDOUT as long as it has not answered what it was asked before. */
	for (uint32_t n = 0; kvp_flush(e->client, WAIT_MS) < 0; n++) {
		CHECK(n < 12000);
		usleep(5000);
	}
	engine_free(e);
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "two processes", test_two_processes },
		{ "delete", test_delete },
		{ "fork", test_fork },
		{ "single flight", test_single_flight },
		{ "death", test_death },
		{ "threads", test_threads },
		{ "stats", test_stats },
		{ "stopped daemon", test_stopped_daemon },
		{ "more than fits", test_more_than_fits },
	};

	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
