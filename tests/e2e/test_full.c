/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool full of leased blocks: puts answer with a retry hint and do not stall, what is leased
 * never turns into a miss, and room comes back with the leases. Limits are never exceeded. Rows
 * E-008, E-009, E-012, E-014, E-016, E-018, E-048.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/e2e/e2e.h"

#define MAX_BLOCKS 96u
#define TOKENS     (E2E_BT * 4)

static struct kvt_daemon daemon_;

static void limits_are_kept(const struct e2e *e)
{
	struct kvp_counters stats = { .size = sizeof(stats) };

	assert_int_equal(kvp_stats(e->client, &stats), 0);
	assert_true(stats.blocks <= MAX_BLOCKS);
	assert_true(stats.payload_bytes <= (uint64_t)MAX_BLOCKS * E2E_BLOCK_BYTES);
	assert_int_equal(stats.lookups, stats.hits + stats.partial_hits + stats.misses);
}

static void full_of_leases(void **state)
{
	struct kvp_prefix *held[MAX_BLOCKS];
	uint32_t tokens[TOKENS], n = 0;
	struct timespec began, ended;
	struct e2e e;
	(void)state;

	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	/* Prompts that share nothing, each leased as soon as it is there, until no more fit. */
	for (uint32_t p = 0; n < MAX_BLOCKS; p++) {
		struct kvp_prefix_info info = { .size = sizeof(info) };

		e2e_prompt(p, tokens, TOKENS);
		tokens[0] = 0x10000 + p;
		(void)e2e_store(&e, tokens, TOKENS, 300, false);
		kvp_flush(e.client, E2E_WAIT_MS);
		limits_are_kept(&e);
		assert_int_equal(kvp_match(e.space, tokens, TOKENS, NULL, &held[n]), 0);
		kvp_match_info(held[n], &info);
		if (info.n_tokens < TOKENS) {
			kvp_release(held[n]);
			break;
		}
		assert_true(info.flags & KVP_MATCHED_LEASED);
		n++;
	}
	assert_true(n >= MAX_BLOCKS / 4 / 2);
	assert_true(n <= MAX_BLOCKS / 4);
	printf("%u prompts of 4 blocks leased in a pool of %u blocks\n", n, MAX_BLOCKS);

	/* No room: an answer, with a hint, at once; more than once; and the leased ones are all
	 * there. */
	for (uint32_t i = 0; i < 20; i++) {
		uint32_t p = i % n;

		e2e_prompt(5000 + i, tokens, TOKENS);
		clock_gettime(CLOCK_MONOTONIC, &began);
		(void)e2e_store(&e, tokens, TOKENS, 100, false);
		clock_gettime(CLOCK_MONOTONIC, &ended);
		assert_true(ended.tv_sec - began.tv_sec < 10);
		e2e_prompt(p, tokens, TOKENS);
		tokens[0] = 0x10000 + p;
		assert_int_equal(e2e_fetch(&e, tokens, TOKENS), TOKENS);
		limits_are_kept(&e);
	}
	/* With the leases room comes back. */
	while (n)
		assert_int_equal(kvp_release(held[--n]), 0);
	e2e_prompt(5555, tokens, TOKENS);
	assert_int_equal(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false), 4);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch(&e, tokens, TOKENS), TOKENS);
	assert_int_equal(e2e_clean(daemon_.socket, 1), 0);
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* Slots that are granted and not committed are out of reach for everybody: the hint says so. */
static void hoarded_grants(void **state)
{
	struct kvp_grant *grants[4096];
	uint32_t n = 0, retry_ms = 0, tokens[TOKENS];
	struct e2e e;
	int r;
	(void)state;

	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	while (n < 4096) {
		r = kvp_reserve(e.space, 0, &retry_ms, &grants[n]);
		if (r == -EAGAIN || r == -ETIMEDOUT) {
			e2e_sleep_us(20000);
			r = kvp_reserve(e.space, 200, &retry_ms, &grants[n]);
		}
		if (r < 0)
			break;
		memset(kvp_grant_addr(grants[n]), 1, E2E_BLOCK_BYTES);
		n++;
	}
	assert_true(n > 0);
	assert_true(n < 4096);
	assert_true(r == -EAGAIN || r == -ETIMEDOUT);
	assert_true(retry_ms > 0);
	printf("%u grants at once, then: try again in %u ms\n", n, retry_ms);
	while (n)
		assert_int_equal(kvp_grant_release(grants[--n]), 0);
	e2e_prompt(6000, tokens, TOKENS);
	tokens[0] =
		0x18000; /* what the test before asked for may have come after all: share nothing */
	assert_int_equal(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false), 4);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch(&e, tokens, TOKENS), TOKENS);
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* Hot blocks under lease while others force eviction all the time: never a miss. */
static void hot_stays_hot(void **state)
{
	uint32_t hot[TOKENS], tokens[TOKENS];
	struct kvp_prefix *held;
	struct e2e e;
	(void)state;

	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	e2e_prompt(8000, hot, TOKENS);
	assert_true(e2e_store(&e, hot, TOKENS, E2E_WAIT_MS, false) > 0);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(kvp_match(e.space, hot, TOKENS, NULL, &held), 0);
	for (uint32_t p = 0; p < 2000; p++) {
		e2e_prompt(8100 + p, tokens, TOKENS);
		tokens[0] = 0x20000 + p;
		assert_true(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false) > 0);
		assert_int_equal(e2e_fetch(&e, hot, TOKENS), TOKENS);
	}
	limits_are_kept(&e);
	kvp_release(held);
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

static int setup(void **state)
{
	struct kvt_daemon_opts opts = { .share = UINT64_C(24) << 20,
		.max_blocks = MAX_BLOCKS,
		.max_sessions = 16,
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(full_of_leases),
		cmocka_unit_test(hoarded_grants),
		cmocka_unit_test(hot_stays_hot),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
