/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvp_put() does what it says: what it counts as stored is there afterwards, also when the sequence
 * does not fit, when the cache is emptied in between, and when other sequences make room for it.
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
#include <unistd.h>

#include "tests/e2e/e2e.h"

#define T   64u
#define MIB (UINT64_C(1) << 20)

/* An engine with a model of its own and memory for one prompt of `blocks` blocks. */
struct engine {
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t blocks;
	uint32_t *tokens;
	uint8_t *kv;
	struct kvp_view_plane plane;
	struct kvp_view view;
};

static void engine_new(struct engine *e, const char *socket, const char *model,
	uint64_t block_bytes, uint32_t blocks)
{
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = socket, .default_timeout_ms = E2E_WAIT_MS
	};
	struct kvp_layer layer = { .kv_heads = 1,
		.k_dim = (uint32_t)(block_bytes / T / 2),
		.v_dim = (uint32_t)(block_bytes / T / 2) };
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = model,
		.dtype = KVP_DTYPE_F8,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer };
	uint64_t bytes;

	memset(e, 0, sizeof(*e));
	e->blocks = blocks;
	e->tokens = calloc((size_t)blocks * T, sizeof(*e->tokens));
	e->kv = malloc(blocks * block_bytes);
	assert_true(e->tokens && e->kv);
	assert_int_equal(kvp_open(&opts, &e->client), 0);
	assert_int_equal(kvp_space_open(e->client, &desc, KVP_DEFAULT_TIMEOUT, &e->space), 0);
	assert_int_equal(
		kvp_view_dense(e->space, KVP_VIEW_NCLD, e->kv, blocks * T, &e->plane, &bytes), 0);
	assert_int_equal(bytes, blocks * block_bytes);
	memset(e->kv, 1, bytes);
	e->view = (struct kvp_view){ .size = sizeof(e->view), .planes = &e->plane };
}

static void engine_free(struct engine *e)
{
	kvp_space_close(e->space);
	kvp_close(e->client);
	free(e->tokens);
	free(e->kv);
}

static void prompt(struct engine *e, uint32_t number)
{
	for (uint32_t i = 0; i < e->blocks * T; i++)
		e->tokens[i] = number * 1000003 + i;
}

/* Blocks that kvp_put() says it stored of the first n. */
static uint32_t put(struct engine *e, uint32_t n)
{
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = E2E_WAIT_MS };
	int64_t r = kvp_put(e->space, e->tokens, n * T, 0, &e->view, &o, NULL);

	if (r < 0)
		fprintf(stderr, "kvp_put: %s\n", strerror((int)-r));
	assert_true(r >= 0);
	assert_int_equal(r % T, 0);
	return (uint32_t)(r / T);
}

/* Blocks that are there once all is settled. */
/* As a match finds it now. A block in an extent that is not mapped here yet is a miss for that moment. */
static uint32_t found(struct engine *e, uint32_t n)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_NO_TOUCH };
	struct kvp_prefix_info i = { .size = sizeof(i) };
	struct kvp_prefix *m;

	assert_int_equal(kvp_match(e->space, e->tokens, n * T, &o, &m), 0);
	kvp_match_info(m, &i);
	kvp_release(m);
	return i.n_blocks;
}

/* The most that is found in a while in which nobody puts. */
static uint32_t there(struct engine *e, uint32_t n)
{
	uint32_t most = 0;

	assert_int_equal(kvp_flush(e->client, E2E_WAIT_MS), 0);
	for (uint32_t i = 0; most < n && i < 40; i++) {
		uint32_t now = found(e, n);

		if (now > most)
			most = now;
		if (most < n)
			usleep(5000);
	}
	return most;
}

static void start(struct kvt_daemon *d, uint64_t share, const char *policy)
{
	struct kvt_daemon_opts opts = { .share = share, .policy = policy };

	e2e_start(d, &opts);
}

/* What was put, emptied and put again within the client's last commits is there again. */
static void put_again_after_drain(void **state)
{
	struct kvt_daemon d;
	struct engine e;
	int status;

	(void)state;
	start(&d, 64 * MIB, "lru");
	engine_new(&e, d.socket, "again", 4096, 192);
	prompt(&e, 1);
	for (uint32_t round = 0; round < 3; round++) {
		assert_int_equal(put(&e, 192), 192);
		assert_int_equal(there(&e, 192), 192);
		json_decref(e2e_ask(d.socket, "{\"verb\":\"drain\"}", &status));
		assert_int_equal(status, 0);
		assert_int_equal(there(&e, 192), 0);
	}
	/* Only the end of it is gone. */
	assert_int_equal(put(&e, 192), 192);
	json_decref(e2e_ask(d.socket, "{\"verb\":\"evict\",\"count\":50}", &status));
	assert_int_equal(status, 0);
	assert_in_range(there(&e, 192), 1, 191);
	assert_int_equal(put(&e, 192), 192);
	assert_int_equal(there(&e, 192), 192);
	engine_free(&e);
	assert_int_equal(e2e_clean(d.socket, 0), 0);
	kvt_daemon_stop(&d);
}

/*
 * The last blocks of a put may be on their way when it returns: as many as the library holds slots
 * ahead of need. Beyond them what it says must be there, and the outcome must be so to the block.
 */
#define ON_THE_WAY 16u

static void store_and_ask(struct engine *e, uint32_t number, uint32_t blocks)
{
	uint32_t said, have;
	int64_t outcome;
	int why = 1;

	prompt(e, number);
	said = put(e, blocks);
	outcome = kvp_put_outcome(e->space, e->tokens, blocks * T, 0, E2E_WAIT_MS, &why);
	have = there(e, blocks);
	printf("%u blocks put, %u said to be stored, %u there (%s)\n", blocks, said, have,
		why < 0 ? strerror(-why) : "all, or long ago");
	assert_int_equal(outcome, have * T);
	assert_true(said <= have + ON_THE_WAY);
	assert_true(said <= blocks);
	if (have == blocks)
		assert_int_equal(why, 0);
}

/* Prompts of a size of which the tenant's share holds one and a half, and others. */
static void says_what_is_there(void **state)
{
	static const struct {
		uint64_t share;
		uint32_t blocks[2]; /* in turn */
	} cases[] = {
		{ 100 * MIB, { 600, 600 } }, { 64 * MIB, { 300, 200 } },
		{ 64 * MIB, { 700, 40 } }, /* does not fit */
	};

	(void)state;
	for (uint32_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		struct kvt_daemon d;
		struct engine e;

		start(&d, cases[c].share, NULL);
		engine_new(&e, d.socket, "honest", 128 << 10, 700);
		for (uint32_t i = 0; i < 6; i++)
			store_and_ask(&e, i + 1, cases[c].blocks[i % 2]);
		engine_free(&e);
		assert_int_equal(e2e_clean(d.socket, 0), 0);
		kvt_daemon_stop(&d);
	}
}

/* Why: refused, evicted since, unknown. From the middle, with a partial end, and of nothing. */
static void outcomes(void **state)
{
	struct kvp_put_opts o = { .size = sizeof(o), .flags = KVP_PUT_PARTIAL };
	struct kvt_daemon d;
	struct engine e, other;
	int status, why = 1;

	(void)state;
	start(&d, 64 * MIB, "lru");
	engine_new(&e, d.socket, "outcome", 4096, 32);
	engine_new(&other, d.socket, "outcome", 4096, 32);
	prompt(&e, 1);
	prompt(&other, 1);
	o.timeout_ms = E2E_WAIT_MS;
	assert_int_equal(kvp_put_outcome(e.space, e.tokens, 32 * T, 0, E2E_WAIT_MS, &why), 0);
	assert_int_equal(why, 0);
	assert_int_equal(kvp_put(e.space, e.tokens, 31 * T + 9, 0, &e.view, &o, NULL), 31 * T + 9);
	assert_int_equal(
		kvp_put_outcome(e.space, e.tokens, 31 * T + 9, 0, E2E_WAIT_MS, &why), 31 * T + 9);
	assert_int_equal(why, 0);
	/* The next sequence goes on where a partial block of this one ended. */
	assert_int_equal(
		kvp_put_outcome(e.space, e.tokens, 32 * T, 8 * T, E2E_WAIT_MS, NULL), 23 * T);
	/* Another client asks about what it has not stored itself. */
	assert_int_equal(kvp_put_outcome(other.space, e.tokens, 31 * T + 9, 0, E2E_WAIT_MS, &why),
		31 * T + 9);
	json_decref(e2e_ask(d.socket, "{\"verb\":\"drain\"}", &status));
	assert_int_equal(status, 0);
	assert_int_equal(kvp_put_outcome(e.space, e.tokens, 31 * T + 9, 0, E2E_WAIT_MS, &why), 0);
	assert_int_equal(why, -ESTALE);
	assert_int_equal(kvp_put_outcome(other.space, e.tokens, 32 * T, 0, E2E_WAIT_MS, &why), 0);
	assert_int_equal(why, 0);
	assert_int_equal(kvp_put_outcome(e.space, e.tokens, 0, 0, E2E_WAIT_MS, &why), 0);
	assert_int_equal(kvp_put_outcome(e.space, e.tokens, T, 1, E2E_WAIT_MS, &why), -EINVAL);
	assert_int_equal(kvp_put_outcome(e.space, e.tokens, T, 2 * T, E2E_WAIT_MS, &why), -EINVAL);
	assert_int_equal(kvp_put_outcome(NULL, e.tokens, T, 0, E2E_WAIT_MS, &why), -EINVAL);
	engine_free(&other);
	kvt_daemon_stop(&d);
	assert_int_equal(kvp_put_outcome(e.space, e.tokens, T, 0, 0, &why), -ESHUTDOWN);
	engine_free(&e);
}

/* So many blocks of that name the advisor has, in the end. */
static void labelled(const char *socket, const char *name, json_int_t n)
{
	json_int_t there = -1;

	for (uint32_t i = 0; there != n && i < E2E_LONG_MS / 10; i++) {
		int status;
		json_t *a = e2e_ask(socket, "{\"verb\":\"status\"}", &status);

		there = json_integer_value(json_object_get(json_object_get(a, "advisor"), name));
		json_decref(a);
		e2e_sleep_us(10000);
	}
	assert_int_equal(there, n);
}

/* What a client says that its tokens are, the daemon's advisor hears, whichever way they are stored. */
static void what_tokens_are(void **state)
{
	const struct kvt_daemon_opts opts = { .share = 64 * MIB,
		.more = "advisor: true\nadvisor_period_ms: 50\n" };
	struct kvp_put_opts o = { .size = sizeof(o), .flags = KVP_IS_SYSTEM | KVP_PUT_PARTIAL };
	struct kvp_grant *g[2];
	struct kvt_daemon d;
	struct engine e;
	(void)state;

	e2e_start(&d, &opts);
	engine_new(&e, d.socket, "labels", 64 << 10, 8);
	prompt(&e, 1);
	assert_int_equal(kvp_put(e.space, e.tokens, 2 * T + 9, 0, &e.view, &o, NULL), 2 * T + 9);
	o.flags = 6u << 8;
	assert_int_equal(kvp_put(e.space, e.tokens, 4 * T, 0, &e.view, &o, NULL), -EINVAL);
	o.flags = KVP_IS_ASSISTANT;
	assert_int_equal(kvp_put(e.space, e.tokens, 4 * T, 0, &e.view, &o, NULL), 4 * T);
	assert_int_equal(kvp_put(e.space, e.tokens, 5 * T, 0, &e.view, NULL, NULL), 5 * T);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(kvp_reserve(e.space, E2E_WAIT_MS, NULL, &g[i]), 0);
		memset(kvp_grant_addr(g[i]), 1, 64 << 10);
	}
	prompt(&e, 2);
	assert_int_equal(kvp_commit(g[0], kvp_ref_root(), e.tokens, T, NULL, KVP_IS_MASK), -EINVAL);
	assert_int_equal(kvp_commit(g[0], kvp_ref_root(), e.tokens, T, NULL,
				 KVP_IS_TOOL | KVP_COMMIT_RELEASE),
		0);
	prompt(&e, 3);
	assert_int_equal(kvp_commit_run(&g[1], 1, kvp_ref_root(), e.tokens, T, NULL,
				 KVP_IS_GENERATED | KVP_COMMIT_RELEASE, NULL),
		1);
	labelled(d.socket, "system_nodes", 3);
	labelled(d.socket, "assistant_nodes", 2);
	labelled(d.socket, "user_nodes", 1);
	labelled(d.socket, "tool_nodes", 1);
	labelled(d.socket, "generated_nodes", 1);
	engine_free(&e);
	kvt_daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(put_again_after_drain),
		cmocka_unit_test(says_what_is_there),
		cmocka_unit_test(outcomes),
		cmocka_unit_test(what_tokens_are),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
