/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that is stopped (SIGSTOP) or hangs costs an engine one timeout and no more: what it asks
 * afterwards is answered by the library, and when the daemon goes on the engine does too. Nothing
 * is measured here: a library that waited for each call would be at it for hours.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/e2e/e2e.h"

#define TOKENS  (E2E_BT * 4)
#define TIMEOUT 300u   /* of the call that pays */
#define LONG    60000u /* of those after it: a thousand of them are most of a day */
#define ROUNDS  1000u
#define THREADS 8u

static struct kvt_daemon daemon_;

static void stop(void)
{
	int status;

	assert_int_equal(kill(daemon_.pid, SIGSTOP), 0);
	assert_int_equal(waitpid(daemon_.pid, &status, WUNTRACED), daemon_.pid);
	assert_true(WIFSTOPPED(status));
}

static void go_on(void)
{
	assert_int_equal(kill(daemon_.pid, SIGCONT), 0);
}

static struct kvp_counters counters(const struct e2e *e)
{
	struct kvp_counters s = { .size = sizeof(s) };

	assert_int_equal(kvp_stats(e->client, &s), 0);
	return s;
}

/* Takes slots until there are none. The last answer, which is no slot's. */
static int take_all(struct e2e *e, uint32_t timeout_ms, uint32_t *ret_retry_ms)
{
	struct kvp_grant *g[256];
	uint32_t n = 0;
	int r = 0;

	while (r == 0 && n < 256) {
		r = kvp_reserve(e->space, timeout_ms, ret_retry_ms, &g[n]);
		n += r == 0;
	}
	assert_true(n < 256);
	while (n)
		kvp_grant_release(g[--n]);
	return r;
}

/* An engine's calls for one new prompt, none of which has to wait. */
static void one_prompt(struct e2e *e, uint32_t number)
{
	struct kvp_match_opts o = {
		.size = sizeof(o), .flags = KVP_MATCH_CLAIM, .timeout_ms = LONG
	};
	struct kvp_prefix_info i = { .size = sizeof(i) };
	struct kvp_prefix *m;
	struct kvp_space *space;
	struct kvp_layer layer = { .kv_heads = 1, .k_dim = 8, .v_dim = 8 };
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = "another",
		.dtype = KVP_DTYPE_F16,
		.n_layers = 1,
		.layers = &layer };
	uint32_t tokens[TOKENS], retry_ms = 0;

	e2e_prompt(number, tokens, TOKENS);
	tokens[0] = number;
	assert_int_equal(kvp_match(e->space, tokens, TOKENS, &o, &m), 0);
	kvp_match_info(m, &i);
	assert_int_equal(i.n_blocks, 0);
	assert_int_equal(i.flags & (KVP_MATCHED_CLAIMED | KVP_MATCHED_PENDING), 0);
	kvp_release(m);
	assert_int_equal(take_all(e, LONG, &retry_ms), -EAGAIN);
	assert_true(retry_ms > 0);
	assert_int_equal(kvp_flush(e->client, LONG), -ETIMEDOUT);
	assert_int_equal(kvp_put_outcome(e->space, tokens, TOKENS, 0, LONG, NULL), -ETIMEDOUT);
	assert_int_equal(kvp_delete(e->space, tokens, TOKENS, LONG), -ETIMEDOUT);
	assert_int_equal(kvp_space_open(e->client, &desc, LONG, &space), -ETIMEDOUT);
}

static void wait_well(struct e2e *e)
{
	for (uint32_t n = 0; n < 6000 && counters(e).stuck; n++)
		e2e_sleep_us(10000);
	assert_int_equal(counters(e).stuck, 0);
	assert_int_equal(kvp_flush(e->client, E2E_WAIT_MS), 0);
}

static void one_timeout(void **state)
{
	uint32_t tokens[TOKENS], fresh[TOKENS], retry_ms = 0;
	struct e2e e;

	(void)state;
	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	e2e_prompt(1, tokens, TOKENS);
	assert_int_equal(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false), 4);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	for (uint32_t times = 1; times <= 3; times++) {
		stop();
		assert_int_equal(counters(&e).stuck, 0);
		assert_int_equal(take_all(&e, TIMEOUT, &retry_ms), -ETIMEDOUT);
		assert_int_equal(counters(&e).timeouts, times);
		assert_int_equal(counters(&e).stuck, 1);
		for (uint32_t i = 0; i < ROUNDS; i++)
			one_prompt(&e, 1000 * times + i);
		/* What is cached is served all the while. */
		assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
		assert_int_equal(counters(&e).timeouts, times);
		go_on();
		wait_well(&e);
		e2e_prompt(100 + times, fresh, TOKENS);
		fresh[0] = 100 + times;
		assert_int_equal(e2e_store(&e, fresh, TOKENS, E2E_WAIT_MS, true), 4);
		assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
		assert_int_equal(e2e_fetch_all(&e, fresh, TOKENS), TOKENS);
		assert_int_equal(counters(&e).timeouts, times);
	}
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* What was committed into the silence is published when it ends; its grant can be waited for. */
static void committed_while_stopped(void **state)
{
	uint32_t tokens[TOKENS];
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *g[4];
	struct e2e e;

	(void)state;
	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	e2e_prompt(7, tokens, TOKENS);
	tokens[0] = 7777;
	for (uint32_t b = 0; b < 4; b++)
		assert_int_equal(kvp_reserve(e.space, E2E_WAIT_MS, NULL, &g[b]), 0);
	stop();
	for (uint32_t b = 0; b < 4; b++) {
		e2e_derive(tokens, (b + 1) * E2E_BT, kvp_grant_addr(g[b]));
		assert_int_equal(kvp_commit(g[b], parent, tokens + b * E2E_BT, E2E_BT, NULL, 0), 0);
		assert_int_equal(kvp_grant_ref(g[b], &parent), 0);
		assert_int_equal(kvp_grant_wait(g[b], 0), -ETIMEDOUT);
	}
	assert_int_equal(counters(&e).timeouts, 0); /* nobody has waited yet */
	assert_int_equal(kvp_grant_wait(g[0], TIMEOUT), -ETIMEDOUT);
	assert_int_equal(counters(&e).timeouts, 1);
	for (uint32_t i = 0; i < ROUNDS; i++)
		assert_int_equal(kvp_grant_wait(g[i % 4], LONG), -ETIMEDOUT);
	assert_int_equal(counters(&e).timeouts, 1);
	go_on();
	wait_well(&e);
	for (uint32_t b = 0; b < 4; b++) {
		assert_int_equal(kvp_grant_wait(g[b], E2E_WAIT_MS), 0);
		assert_int_equal(kvp_grant_release(g[b]), 0);
	}
	assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* Threads that wait at the same time pay once each; none of them pays again. */
static void *in_thread(void *arg)
{
	struct e2e *e = arg;
	int r = kvp_flush(e->client, TIMEOUT);

	for (uint32_t i = 0; i < ROUNDS && r == -ETIMEDOUT; i++)
		r = kvp_flush(e->client, LONG);
	return (void *)(intptr_t)r;
}

static void many_threads(void **state)
{
	pthread_t thread[THREADS];
	struct e2e e;
	void *r;

	(void)state;
	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	stop();
	for (uint32_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, in_thread, &e), 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		pthread_join(thread[i], &r);
		assert_int_equal((intptr_t)r, -ETIMEDOUT);
	}
	assert_in_range(counters(&e).timeouts, 1, THREADS);
	go_on();
	wait_well(&e);
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* One whose claimant is stopped with the daemon does not wait for it once it knows. */
static void waiting_for_a_claimant(void **state)
{
	struct kvp_match_opts o = {
		.size = sizeof(o), .flags = KVP_MATCH_CLAIM, .timeout_ms = E2E_WAIT_MS
	};
	struct kvp_prefix_info i = { .size = sizeof(i) };
	struct kvp_prefix *mine, *theirs;
	uint32_t tokens[TOKENS];
	struct e2e e, other;

	(void)state;
	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	assert_int_equal(e2e_attach(&other, daemon_.socket), 0);
	e2e_prompt(9, tokens, TOKENS);
	tokens[0] = 9999;
	assert_int_equal(kvp_match(other.space, tokens, TOKENS, &o, &theirs), 0);
	assert_int_equal(kvp_match(e.space, tokens, TOKENS, &o, &mine), 0);
	kvp_match_info(mine, &i);
	assert_int_equal(i.flags, KVP_MATCHED_PENDING);
	stop();
	assert_int_equal(kvp_flush(e.client, TIMEOUT), -ETIMEDOUT);
	for (uint32_t n = 0; n < ROUNDS; n++)
		assert_int_equal(kvp_wait(mine, LONG), -EAGAIN);
	go_on();
	wait_well(&e);
	assert_int_equal(kvp_wait(mine, 1), -ETIMEDOUT);
	kvp_release(mine);
	kvp_release(theirs);
	e2e_detach(&other);
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* A stopped daemon must not stay so when a test has failed. */
static int continue_it(void **state)
{
	(void)state;
	go_on();
	return 0;
}

static int setup(void **state)
{
	struct kvt_daemon_opts opts = { .share = 32 << 20, .policy = "lru" };

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(one_timeout, continue_it),
		cmocka_unit_test_teardown(committed_while_stopped, continue_it),
		cmocka_unit_test_teardown(many_threads, continue_it),
		cmocka_unit_test_teardown(waiting_for_a_claimant, continue_it),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
