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

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

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

static json_t *tenant_figures(void)
{
	json_t *answer = e2e_ask(daemon_.socket, "{\"verb\":\"tenants\"}", NULL);
	json_t *tenants = json_object_get(answer, "tenants"), *t;

	assert_int_equal(json_array_size(tenants), 1);
	t = json_incref(json_array_get(tenants, 0));
	json_decref(answer);
	return t;
}

static uint64_t figure(const json_t *tenant, const char *name)
{
	const json_t *v = json_object_get(tenant, name);

	assert_true(json_is_integer(v));
	return (uint64_t)json_integer_value(v);
}

/* Bytes of the memfds of a kind that the daemon has open, each counted once; 0 where none are. */
static uint64_t held_bytes(const char *kind)
{
	char folder[64], path[400], link[256];
	uint64_t bytes = 0, seen[512];
	uint32_t n_seen = 0;
	struct dirent *e;
	DIR *d;

	snprintf(folder, sizeof(folder), "/proc/%d/fd", (int)daemon_.pid);
	d = opendir(folder);
	assert_non_null(d);
	while ((e = readdir(d))) {
		struct stat st;
		uint32_t i = 0;
		ssize_t n;

		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		n = readlink(path, link, sizeof(link) - 1);
		if (n < 0 || stat(path, &st) < 0)
			continue;
		link[n] = 0;
		if (!strstr(link, kind))
			continue;
		while (i < n_seen && seen[i] != (uint64_t)st.st_ino)
			i++;
		if (i < n_seen)
			continue;
		assert_true(n_seen < 512);
		seen[n_seen++] = (uint64_t)st.st_ino;
		bytes += (uint64_t)st.st_size;
	}
	closedir(d);
	return bytes;
}

/* Of these so much is nobody's yet. */
static uint64_t stock_bytes(void)
{
	json_t *answer = e2e_ask(daemon_.socket, "{\"verb\":\"status\"}", NULL);
	uint64_t bytes = figure(answer, "stock_bytes");

	json_decref(answer);
	return bytes;
}

/* What the daemon lists, block by block. */
static uint64_t listed_bytes(uint64_t *ret_blocks)
{
	json_t *answer = e2e_ask(
		daemon_.socket, "{\"verb\":\"blocks\",\"state\":\"live\",\"limit\":100000}", NULL);
	json_t *blocks = json_object_get(answer, "blocks"), *block;
	uint64_t bytes = 0;
	size_t i;

	json_array_foreach(blocks, i, block) {
		bytes += figure(block, "bytes");
	}
	*ret_blocks = json_array_size(blocks);
	assert_int_equal(figure(answer, "total"), *ret_blocks);
	json_decref(answer);
	return bytes;
}

/*
 * E-016: what is counted is what there is. The bytes of payload are the sum over the blocks that
 * are listed, in the daemon's figures and in the client's; and the bytes that the tenant is charged
 * are its metadata and exactly the memory that the daemon has open for extents, less its stock. Movers and the
 * retirement of extents go on by themselves: between two equal answers nothing has changed. An
 * extent that is being made is charged before its memory is there, and the daemon may make one for
 * as long as several answers take: the charge is compared when none is.
 */
static void usage_is_what_there_is(const struct e2e *e)
{
	struct kvp_counters stats = { .size = sizeof(stats) };
	uint64_t blocks, listed, held;
	json_t *before, *after = tenant_figures();
	uint32_t tries = 0;

	do {
		before = after;
		listed = listed_bytes(&blocks);
		held = held_bytes("kvpool-vault") + held_bytes("kvpool-arena") - stock_bytes();
		assert_int_equal(kvp_stats(e->client, &stats), 0);
		after = tenant_figures();
		if (json_equal(before, after) &&
			figure(after, "charged_bytes") == figure(after, "metadata_bytes") + held)
			break;
		json_decref(before);
		e2e_sleep_us(50000);
	} while (++tries < 1200);
	assert_true(tries < 1200);
	json_decref(before);
	assert_true(blocks > 0);
	assert_int_equal(listed, blocks * E2E_BLOCK_BYTES);
	assert_int_equal(figure(after, "payload_bytes"), listed);
	assert_int_equal(figure(after, "blocks"), blocks);
	assert_int_equal(stats.payload_bytes, listed);
	assert_int_equal(stats.blocks, blocks);
	assert_true(held >= listed);
	assert_int_equal(figure(after, "charged_bytes"), figure(after, "metadata_bytes") + held);
	json_decref(after);
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
	usage_is_what_there_is(&e);
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
		assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
		limits_are_kept(&e);
	}
	/* With the leases room comes back. */
	while (n)
		assert_int_equal(kvp_release(held[--n]), 0);
	e2e_prompt(5555, tokens, TOKENS);
	assert_int_equal(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false), 4);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
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
	usage_is_what_there_is(&e);
	while (n)
		assert_int_equal(kvp_grant_release(grants[--n]), 0);
	e2e_prompt(6000, tokens, TOKENS);
	tokens[0] =
		0x18000; /* what the test before asked for may have come after all: share nothing */
	assert_int_equal(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false), 4);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
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
		assert_int_equal(e2e_fetch_all(&e, hot, TOKENS), TOKENS);
	}
	limits_are_kept(&e);
	usage_is_what_there_is(&e);
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
