/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recomputation beside a real daemon whose catalog is small: what was evicted is wanted, and computed by other
 * processes, which do so or are killed at each step of it (D-045).
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/libclient/live.h"

#define OTHERS  64u  /* prompts that are stored after it, at most, until it is evicted */
#define ENDLESS 1e-2 /* seconds of a token, far more than it takes */

enum step { NEVER, OFFERED, DEMANDED, MATCHED, HALF, STORED, STALLS, STEPS };

static struct kvp_serve_opts terms(double token_seconds)
{
	return (struct kvp_serve_opts){
		.size = sizeof(struct kvp_serve_opts),
		.token_seconds = token_seconds,
		.max_tokens = N + T,
	};
}

/*
 * Stores tokens [from, n), if need be in several goes: the catalog is small, and a process that was killed holds
 * its blocks until the daemon has noticed.
 */
static void put(struct engine *e, uint32_t from, uint32_t n)
{
	struct kvp_put_opts o = {
		.size = sizeof(o), .flags = KVP_PUT_PARTIAL, .timeout_ms = WAIT_MS
	};

	while (from < n) {
		struct kvp_view_plane planes[2];
		struct kvp_view v = { .size = sizeof(v), .planes = planes };
		uint64_t bytes;
		int64_t r;

		EQUAL(kvp_view_dense(e->space, KVP_VIEW_NCLD, e->kv + (size_t)from * TOKEN_BYTES,
			      n - from, planes, &bytes),
			0);
		r = kvp_put(e->space, e->tokens, n, from, &v, &o, NULL);
		CHECK(r > 0 || r == -EAGAIN);
		from += r > 0 ? (uint32_t)r : 0;
		EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	}
}

static void die_at(enum step at, enum step now)
{
	if (at == now)
		raise(SIGKILL);
}

/* Serves for ever, and dies at that step. Its tokens are those that it is told, its bytes follow from them. */
static void provider(enum step dies)
{
	struct engine *e = engine_new("remat", KVP_LAYOUT_LCND, 99);
	struct kvp_serve_opts o = terms(dies == STALLS ? 1e-6 : ENDLESS);
	struct kvp_demand d = { .size = sizeof(d) };
	int r = kvp_serve_remat(e->space, &o, 0, e->tokens, NULL, &d);

	while (r == -ETIMEDOUT || r == 0) {
		struct kvp_prefix_info i;
		struct kvp_prefix *m;

		if (r == -ETIMEDOUT) {
			die_at(dies, OFFERED);
			r = kvp_serve_remat(e->space, &o, WAIT_MS, e->tokens, NULL, &d);
			continue;
		}
		die_at(dies, DEMANDED);
		if (dies == STALLS)
			pause();
		for (uint32_t t = 0; t < d.n_tokens; t++)
			for (uint32_t b = 0; b < TOKEN_BYTES; b++)
				e->kv[(size_t)t * TOKEN_BYTES + b] =
					(uint8_t)(e->tokens[t] * 2654435761u >> 24 ^ b * 37);
		EQUAL(d.first % T, 0);
		m = find(e, d.n_tokens, KVP_MATCH_NO_TAIL, &i);
		die_at(dies, MATCHED);
		put(e, d.first, d.first + (d.n_tokens - d.first) / 2 / T * T);
		kvp_flush(e->client, WAIT_MS);
		die_at(dies, HALF);
		put(e, d.first, d.n_tokens);
		die_at(dies, STORED);
		kvp_flush(e->client, WAIT_MS);
		kvp_release(m);
		r = kvp_serve_remat(e->space, &o, WAIT_MS, e->tokens, NULL, &d);
	}
	EQUAL(r, 0);
}

static pid_t start(enum step dies)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		provider(dies);
		_exit(0);
	}
	return pid;
}

static void stop(pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	EQUAL(waitpid(pid, &status, 0), pid);
	CHECK(WIFSIGNALED(status));
}

/* Others take its place; the policy says when. */
static void evict(struct engine *e, struct engine *others)
{
	static uint32_t seed = 100;
	struct kvp_prefix_info i = { .n_tokens = N };

	for (uint32_t k = 0; i.n_tokens == N && k < OTHERS; k++) {
		fill(others, seed++);
		put(others, 0, N);
		kvp_release(find(e, N, KVP_MATCH_NO_TAIL | KVP_MATCH_NO_TOUCH, &i));
	}
	CHECK(i.n_tokens < N);
}

/* The end of a ticket of e's sequence, whoever offers; *ret_why as kvp_ticket_wait(). */
static int want(struct engine *e, int *ret_why)
{
	struct kvp_want_opts o = { .size = sizeof(o), .within_ms = 600000, .timeout_ms = WAIT_MS };
	const struct kvp_ids ids = { e->tokens, N, KVP_IDS_U32 };
	struct kvp_ticket t;
	int r = kvp_want(e->space, &ids, &o, &t);

	EQUAL(r, BLOCKS);
	r = kvp_ticket_wait(e->client, t, WAIT_MS, ret_why);
	CHECK(r >= 0);
	return r;
}

/* The same once somebody offers: a process that has just been started, or a lost one's successor. */
static int want_soon(struct engine *e, int *ret_why)
{
	int r;

	do {
		usleep(1000);
		r = want(e, ret_why);
	} while (*ret_why == -ENODEV);
	return r;
}

static void whole(struct engine *e)
{
	struct kvp_prefix_info i;
	struct kvp_prefix *m = find_soon(e, N, N, &i);

	same_bytes(e, m, N);
	kvp_release(m);
}

static void test_what_was_evicted_comes_back(void)
{
	struct engine *e = engine_new("remat", KVP_LAYOUT_LCND, 1);
	struct engine *others = engine_new("remat", KVP_LAYOUT_LCND, 2);
	int why;
	pid_t p;

	put(e, 0, N);
	EQUAL(want(e, &why), BLOCKS); /* nothing is missing */
	EQUAL(why, 0);
	evict(e, others);
	CHECK(want(e, &why) < (int)BLOCKS);
	EQUAL(why, -ENODEV);
	p = start(NEVER);
	EQUAL(want_soon(e, &why), BLOCKS);
	EQUAL(why, 0);
	whole(e);
	stop(p);
	engine_free(others);
	engine_free(e);
}

/* Whatever is left of it, nobody waits for it, and the next one goes on from there. */
static void test_providers_die_at_each_step(void)
{
	struct engine *e = engine_new("remat", KVP_LAYOUT_LCND, 1);
	struct engine *others = engine_new("remat", KVP_LAYOUT_LCND, 2);
	int why, there;
	pid_t p;

	for (enum step at = DEMANDED; at < STEPS; at++) {
		put(e, 0, N);
		evict(e, others);
		p = start(at);
		there = want_soon(e, &why);
		if (at == STORED)
			EQUAL(why == 0 || why == -EAGAIN, 1);
		else
			EQUAL(why, at == STALLS ? -ETIME : -EAGAIN);
		EQUAL(there == (int)BLOCKS, why == 0);
		stop(p);
		p = start(NEVER);
		EQUAL(want_soon(e, &why), BLOCKS);
		EQUAL(why, 0);
		whole(e);
		stop(p);
	}
	engine_free(others);
	engine_free(e);
}

/* An engine with a loop of its own hears of demands by its descriptor, and offers in that loop alone. */
static void test_a_loop_hears_of_demands(void)
{
	struct engine *e = engine_new("remat", KVP_LAYOUT_LCND, 1);
	struct engine *others = engine_new("remat", KVP_LAYOUT_LCND, 2);
	struct kvp_serve_opts o = terms(ENDLESS);
	const struct kvp_ids ids = { e->tokens, N, KVP_IDS_U32 };
	struct kvp_demand d = { .size = sizeof(d) };
	uint32_t tokens[N + T];
	struct pollfd p = { .events = POLLIN };
	struct kvp_ticket t;
	uint64_t n;
	int why;

	put(e, 0, N);
	evict(e, others);
	p.fd = kvp_event_fd(e->client, KVP_EVENT_DEMANDS);
	CHECK(p.fd >= 0);
	o.flags = KVP_SERVE_IDLE;
	EQUAL(kvp_serve_remat(e->space, &o, 0, tokens, NULL, &d), -ETIMEDOUT);
	(void)want(others, &why);
	EQUAL(kvp_want(e->space, &ids, NULL, &t), BLOCKS);
	CHECK(kvp_ticket_wait(e->client, t, WAIT_MS, &why) >= 0);
	EQUAL(why, -ENODEV); /* it stood during the call alone */
	o.flags = 0;
	EQUAL(kvp_serve_remat(e->space, &o, 0, tokens, NULL, &d), -ETIMEDOUT);
	EQUAL(kvp_want(e->space, &ids, NULL, &t), BLOCKS);
	do {
		EQUAL(poll(&p, 1, (int)WAIT_MS), 1);
		CHECK(read(p.fd, &n, 8) == 8);
	} while ((why = kvp_serve_remat(e->space, &o, 0, tokens, NULL, &d)) == -ETIMEDOUT);
	EQUAL(why, 0);
	EQUAL(d.n_tokens, N);
	CHECK(memcmp(tokens, e->tokens, sizeof(e->tokens[0]) * N) == 0);
	/* It gives it back, and there is nobody else. */
	EQUAL(kvp_serve_end(e->space), 0);
	CHECK(kvp_ticket_wait(e->client, t, WAIT_MS, &why) < (int)BLOCKS);
	EQUAL(why, -EAGAIN);
	engine_free(others);
	engine_free(e);
}

/* Waits until a demand has come, without asking for it. */
static void await_demand(struct pollfd *p)
{
	uint64_t n;

	EQUAL(poll(p, 1, (int)WAIT_MS), 1);
	CHECK(read(p->fd, &n, 8) == 8);
}

/* A demand that came while nobody looked, and that others met or nobody waits for any more, is not returned. */
static void test_what_is_over_is_passed_over(void)
{
	struct engine *e = engine_new("remat", KVP_LAYOUT_LCND, 1);
	struct engine *others = engine_new("remat", KVP_LAYOUT_LCND, 2);
	const struct kvp_ids ids = { e->tokens, N, KVP_IDS_U32 };
	struct kvp_want_opts soon = { .size = sizeof(soon), .within_ms = 60000 };
	struct kvp_serve_opts o = terms(ENDLESS), quick = terms(1e-6);
	struct kvp_demand d = { .size = sizeof(d) };
	uint32_t tokens[N + T];
	struct pollfd p = { .events = POLLIN };
	struct kvp_ticket t;
	int why;

	put(e, 0, N);
	evict(e, others);
	p.fd = kvp_event_fd(e->client, KVP_EVENT_DEMANDS);
	CHECK(p.fd >= 0);
	EQUAL(kvp_serve_remat(e->space, &o, 0, tokens, NULL, &d), -ETIMEDOUT);
	EQUAL(kvp_want(e->space, &ids, NULL, &t), BLOCKS);
	await_demand(&p);
	put(e, 0, N);
	EQUAL(kvp_ticket_wait(e->client, t, WAIT_MS, &why), BLOCKS);
	EQUAL(why, 0);
	EQUAL(kvp_serve_remat(e->space, &o, 0, tokens, NULL, &d), -ETIMEDOUT);
	EQUAL(kvp_serve_end(e->space), 0);
	evict(e, others);
	EQUAL(kvp_serve_remat(e->space, &quick, 0, tokens, NULL, &d), -ETIMEDOUT);
	EQUAL(kvp_want(e->space, &ids, &soon, &t), BLOCKS);
	await_demand(&p);
	CHECK(kvp_ticket_wait(e->client, t, WAIT_MS, &why) < (int)BLOCKS);
	EQUAL(why, -ETIME);
	/* By its own word it should have been there: the offer is lost, and that is what it hears first. */
	EQUAL(kvp_serve_remat(e->space, &quick, WAIT_MS, tokens, NULL, &d), -ETIME);
	engine_free(others);
	engine_free(e);
}

static void test_wrong_arguments(void)
{
	struct engine *e = engine_new("remat", KVP_LAYOUT_LCND, 1);
	const struct kvp_ids ids = { e->tokens, N, KVP_IDS_U32 };
	struct kvp_want_opts w = { .size = sizeof(w), .flags = 2 };
	struct kvp_serve_opts good = terms(1e-3), o;
	struct kvp_demand d = { .size = sizeof(d) };
	const uint8_t salt[32] = { 1 };
	struct kvp_space *salted;
	struct kvp_ticket t;

	EQUAL(kvp_want(NULL, &ids, NULL, &t), -EINVAL);
	EQUAL(kvp_want(e->space, &ids, NULL, NULL), -EINVAL);
	EQUAL(kvp_want(e->space, &ids, &w, &t), -EINVAL);
	w = (struct kvp_want_opts){ .size = sizeof(w), .within_ms = 3600001 };
	EQUAL(kvp_want(e->space, &ids, &w, &t), -EINVAL);
	EQUAL(kvp_space_salted(e->space, salt, &salted), 0);
	EQUAL(kvp_want(salted, &ids, NULL, &t), -EOPNOTSUPP);
	EQUAL(kvp_serve_remat(salted, &good, 0, e->tokens, NULL, &d), -EOPNOTSUPP);
	EQUAL(kvp_serve_remat(e->space, NULL, 0, e->tokens, NULL, &d), -EINVAL);
	EQUAL(kvp_serve_remat(e->space, &good, 0, NULL, NULL, &d), -EINVAL);
#define WRONG(field, value) \
	o = good;           \
	o.field = value;    \
	EQUAL(kvp_serve_remat(e->space, &o, 0, e->tokens, NULL, &d), -EINVAL)
	WRONG(flags, 2);
	WRONG(max_tokens, 0);
	WRONG(token_seconds, 0);
	WRONG(token_seconds, 11);
	WRONG(launch_seconds, -1);
	WRONG(launch_seconds, 61);
	WRONG(position_seconds, 2);
	EQUAL(kvp_serve_end(e->space), 0);
	EQUAL(kvp_serve_end(NULL), -EINVAL);
	engine_free(e);
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "what was evicted comes back", test_what_was_evicted_comes_back },
		{ "providers die at each step", test_providers_die_at_each_step },
		{ "a loop hears of demands", test_a_loop_hears_of_demands },
		{ "what is over is passed over", test_what_is_over_is_passed_over },
		{ "wrong arguments", test_wrong_arguments },
	};

	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
