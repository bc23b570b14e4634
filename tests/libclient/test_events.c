/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A descriptor that announces what is waited for, against a real kvpoold (KVPOOL_SOCKET, KVPOOLD_PID):
 * nothing here waits in a call of the library's. All of it twice, the second time without
 * futex_waitv(2). What fails prints where and ends the program with status 1.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/libclient/live.h"

#define FUTEX_WAITV 449
#define BYTES       (T * TOKEN_BYTES)

static uint32_t seed = 1;

static struct engine *engine(void)
{
	return engine_new("events", 0, seed);
}

/* Other tokens than any test before. */
static void begin(void)
{
	seed++;
}

static int readable(int fd, int timeout_ms)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, timeout_ms);
}

static void drain(int fd)
{
	uint64_t times = 0;

	EQUAL(read(fd, &times, sizeof(times)), 8);
	CHECK(times > 0);
}

/* Until look() is no longer `not_yet`, asking only when the descriptor says so. */
#define AWAIT(fd, not_yet, look)                              \
	do {                                                  \
		while ((look) == (not_yet)) {                 \
			EQUAL(readable(fd, (int)WAIT_MS), 1); \
			drain(fd);                            \
		}                                             \
	} while (0)

static struct kvp_grant *reserve(struct engine *e)
{
	struct kvp_grant *g;

	EQUAL(kvp_reserve(e->space, WAIT_MS, NULL, &g), 0);
	memset(kvp_grant_addr(g), 1, BYTES);
	return g;
}

/* Waits for room, and for nothing else. */
static void put(struct engine *e, uint32_t n)
{
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };

	EQUAL(kvp_put(e->space, e->tokens, n, 0, &e->view, &o, NULL), n);
}

static struct kvp_prefix *claim(struct engine *e, uint32_t ttl_ms, uint32_t want)
{
	struct kvp_match_opts o = {
		.size = sizeof(o),
		.flags = KVP_MATCH_CLAIM,
		.timeout_ms = KVP_DEFAULT_TIMEOUT,
		.claim_ttl_ms = ttl_ms,
	};
	struct kvp_prefix_info i = { .size = sizeof(i) };
	struct kvp_prefix *m;

	EQUAL(kvp_match(e->space, e->tokens, 2 * T, &o, &m), 0);
	EQUAL(kvp_match_info(m, &i), 0);
	EQUAL(i.flags, want);
	return m;
}

static void test_arguments(void)
{
	struct engine *e = engine();
	uint64_t mark;
	int fd, status;
	pid_t pid;

	EQUAL(kvp_event_fd(NULL, KVP_EVENT_COMMITS), -EINVAL);
	EQUAL(kvp_event_fd(e->client, 0), -EINVAL);
	EQUAL(kvp_event_fd(e->client, 0x80000000u), -EINVAL);
	EQUAL(kvp_flush_mark(NULL, &mark), -EINVAL);
	EQUAL(kvp_flush_mark(e->client, NULL), -EINVAL);
	EQUAL(kvp_flush_done(NULL, 0), -EINVAL);
	fd = kvp_event_fd(e->client, KVP_EVENT_COMMITS);
	CHECK(fd >= 0);
	EQUAL(kvp_event_fd(e->client, KVP_EVENT_COMMITS | KVP_EVENT_CLAIMS), fd);
	/* Nothing was committed. */
	EQUAL(kvp_flush_mark(e->client, &mark), 0);
	EQUAL(kvp_flush_done(e->client, mark), 1);
	EQUAL(kvp_flush_done(e->client, mark + (UINT64_C(1) << 32)), -ESHUTDOWN);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		EQUAL(kvp_event_fd(e->client, KVP_EVENT_COMMITS), -ECHILD);
		EQUAL(kvp_flush_mark(e->client, &mark), -ECHILD);
		EQUAL(kvp_flush_done(e->client, mark), -ECHILD);
		kvp_close(e->client);
		EQUAL(readable(fd, 0), 1); /* POLLNVAL: the child's copy is closed */
		_exit(0);
	}
	EQUAL(waitpid(pid, &status, 0), pid);
	EQUAL(status, 0);
	engine_free(e);
	/* Opened and closed, with and without something under way. */
	for (int i = 0; i < 20; i++) {
		e = engine();
		CHECK(kvp_event_fd(e->client, KVP_EVENT_COMMITS | KVP_EVENT_CLAIMS) >= 0);
		if (i % 2)
			EQUAL(kvp_commit(reserve(e), kvp_ref_root(), e->tokens, T, NULL,
				      KVP_COMMIT_RELEASE),
				0);
		engine_free(e);
	}
}

static void test_commits(void)
{
	struct engine *e = engine();
	int fd = kvp_event_fd(e->client, KVP_EVENT_COMMITS);
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_prefix_info info;
	uint64_t mark;

	/* One by one, each answer the only thing that could wake the loop. */
	for (uint32_t i = 0; i < 8; i++) {
		struct kvp_grant *g = reserve(e);
		int r;

		EQUAL(kvp_commit(g, parent, e->tokens + i * T, T, NULL, 0), 0);
		EQUAL(kvp_grant_ref(g, &parent), 0);
		AWAIT(fd, -ETIMEDOUT, r = kvp_grant_wait(g, 0));
		EQUAL(r, 0);
		EQUAL(kvp_grant_release(g), 0);
	}
	/* All that a put has handed over. */
	put(e, N);
	EQUAL(kvp_flush_mark(e->client, &mark), 0);
	AWAIT(fd, 0, kvp_flush_done(e->client, mark));
	EQUAL(kvp_flush_done(e->client, mark), 1);
	kvp_release(find_soon(e, N, N, &info));
	engine_free(e);
}

struct advance {
	struct kvp_timeline *timeline;
	uint64_t value;
};

static void *advance(void *arg)
{
	struct advance *a = arg;

	usleep(20000);
	EQUAL(kvp_timeline_advance(a->timeline, a->value), 0);
	return NULL;
}

/* A commit that waits for its moment is answered when nobody asks. */
static void test_late(void)
{
	struct engine *e = engine();
	int fd = kvp_event_fd(e->client, KVP_EVENT_COMMITS), r;
	struct kvp_grant *g = reserve(e);
	struct advance a = { .value = 5 };
	pthread_t thread;
	uint64_t mark, before;

	EQUAL(kvp_timeline_new(e->client, &a.timeline), 0);
	EQUAL(kvp_flush_mark(e->client, &before), 0);
	EQUAL(kvp_commit_after(g, kvp_ref_root(), e->tokens, T, NULL, 0, a.timeline, a.value), 0);
	EQUAL(kvp_flush_mark(e->client, &mark), 0);
	EQUAL(kvp_flush_done(e->client, before), 1);
	EQUAL(kvp_flush_done(e->client, mark), 0);
	EQUAL(kvp_grant_wait(g, 0), -ETIMEDOUT);
	EQUAL(pthread_create(&thread, NULL, advance, &a), 0);
	AWAIT(fd, -ETIMEDOUT, r = kvp_grant_wait(g, 0));
	EQUAL(r, 0);
	EQUAL(kvp_flush_done(e->client, mark), 1);
	EQUAL(pthread_join(thread, NULL), 0);
	EQUAL(kvp_grant_release(g), 0);
	engine_free(e);
}

/* A prompt that another client computes: block by block, and when it gives up. */
static void test_claims(void)
{
	struct engine *a = engine(), *b = engine(), *c = engine();
	int fd = kvp_event_fd(b->client, KVP_EVENT_CLAIMS), r;
	struct kvp_prefix *mine, *again, *theirs = claim(a, 0, KVP_MATCHED_CLAIMED);
	struct kvp_prefix *third = claim(c, 0, KVP_MATCHED_PENDING);

	mine = claim(b, 0, KVP_MATCHED_PENDING);
	EQUAL(kvp_wait(mine, 0), -ETIMEDOUT);
	EQUAL(kvp_wait(mine, 0), -ETIMEDOUT);
	again = claim(b, 0, KVP_MATCHED_PENDING);
	EQUAL(kvp_wait(again, 0), -ETIMEDOUT);
	EQUAL(kvp_release(again), 0);
	EQUAL(kvp_release(theirs), 0);
	EQUAL(kvp_release(third), 0);
	/* Given up; and claimed by a third one before anybody has looked. */
	EQUAL(readable(fd, (int)WAIT_MS), 1);
	drain(fd);
	third = claim(c, 0, KVP_MATCHED_CLAIMED);
	EQUAL(kvp_wait(mine, 0), -ETIMEDOUT);
	put(c, T);
	AWAIT(fd, -ETIMEDOUT, r = kvp_wait(mine, 0));
	EQUAL(r, 0);
	EQUAL(kvp_release(mine), 0);
	/* The claim has moved on to the next block. */
	do {
		struct kvp_prefix_info i = { .size = sizeof(i) };
		struct kvp_match_opts o = {
			.size = sizeof(o), .flags = KVP_MATCH_CLAIM, .timeout_ms = WAIT_MS
		};

		EQUAL(kvp_match(b->space, b->tokens, 2 * T, &o, &mine), 0);
		EQUAL(kvp_match_info(mine, &i), 0);
		if (i.n_blocks == 1 && i.flags & KVP_MATCHED_PENDING)
			break;
		EQUAL(kvp_release(mine), 0);
	} while (1);
	EQUAL(kvp_wait(mine, 0), -ETIMEDOUT);
	EQUAL(kvp_release(third), 0);
	AWAIT(fd, -ETIMEDOUT, r = kvp_wait(mine, 0));
	EQUAL(r, -EAGAIN);
	EQUAL(kvp_release(mine), 0);
	engine_free(c);
	engine_free(b);
	engine_free(a);
}

/* A claim that nobody ends, since the daemon does not run, is announced when its time is over. */
static void test_late_claim(void)
{
	const char *text = getenv("KVPOOLD_PID");
	struct engine *a = engine(), *b = engine();
	int fd = kvp_event_fd(b->client, KVP_EVENT_CLAIMS), r;
	struct kvp_prefix *theirs = claim(a, 700, KVP_MATCHED_CLAIMED);
	struct kvp_prefix *mine = claim(b, 0, KVP_MATCHED_PENDING);

	stopped = text ? (pid_t)atoi(text) : 0;
	if (stopped)
		EQUAL(kill(stopped, SIGSTOP), 0);
	AWAIT(fd, -ETIMEDOUT, r = kvp_wait(mine, 0));
	EQUAL(r, -EAGAIN);
	if (stopped)
		kill(stopped, SIGCONT);
	stopped = 0;
	EQUAL(kvp_release(mine), 0);
	EQUAL(kvp_release(theirs), 0);
	engine_free(b);
	engine_free(a);
}

struct many {
	struct engine *e;
	uint32_t number;
	uint64_t mark;
};

#define THREADS 4u

static void *commits(void *arg)
{
	struct many *m = arg;
	uint32_t tokens[T] = { seed, m->number };

	for (uint32_t i = 0; i < 300; i++) {
		tokens[2] = i;
		EQUAL(kvp_commit(
			      reserve(m->e), kvp_ref_root(), tokens, T, NULL, KVP_COMMIT_RELEASE),
			0);
	}
	EQUAL(kvp_flush_mark(m->e->client, &m->mark), 0);
	return NULL;
}

/* Threads that commit, and one that waits for all of them with the descriptor alone. */
static void test_threads(void)
{
	struct engine *e = engine();
	int fd = kvp_event_fd(e->client, KVP_EVENT_COMMITS);
	struct many many[THREADS];
	pthread_t threads[THREADS];

	for (uint32_t i = 0; i < THREADS; i++) {
		many[i] = (struct many){ .e = e, .number = i };
		EQUAL(pthread_create(&threads[i], NULL, commits, &many[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++) {
		EQUAL(pthread_join(threads[i], NULL), 0);
		AWAIT(fd, 0, kvp_flush_done(e->client, many[i].mark));
		EQUAL(kvp_flush_done(e->client, many[i].mark), 1);
	}
	engine_free(e);
}

static void forbid_waitv(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, FUTEX_WAITV, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { .len = 4, .filter = code };

	EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "arguments", test_arguments },
		{ "commits", test_commits },
		{ "late", test_late },
		{ "claims", test_claims },
		{ "late claim", test_late_claim },
		{ "threads", test_threads },
	};
	int r = 0;

	for (int old = 0; old <= 1; old++) {
		if (old)
			forbid_waitv();
		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && r == 0; i++) {
			const struct live_test test = { all[i].name, all[i].run };

			begin();
			r = live_main(&test, 1);
		}
	}
	return r;
}
