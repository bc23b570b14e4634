/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the header promises to a caller, kept by a real kvpoold: test_client.c has the same against a
 * daemon made for tests, which can be brought into states that this one cannot.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "libclient/kvpool_admin.h"
#include "tests/libclient/live.h"

/* A figure of this process's client, as the daemon counts it. */
static long long held(const char *key)
{
	struct kvp_admin *admin;
	json_t *answer, *list, *client;
	long long n = -1;
	char *text;
	size_t i;

	EQUAL(kvp_admin_open(NULL, &admin), 0);
	EQUAL(kvp_admin_request(admin, "{\"verb\":\"clients\"}", WAIT_MS, 0, &text), 0);
	kvp_admin_close(admin);
	answer = json_loads(text, 0, NULL);
	free(text);
	CHECK(answer);
	list = json_is_array(answer) ? answer : json_object_get(answer, "clients");
	json_array_foreach(list, i, client)
		if (json_integer_value(json_object_get(client, "pid")) == getpid())
			n = json_integer_value(json_object_get(client, key));
	json_decref(answer);
	return n;
}

/* Until the daemon has seen the client give back what it held. */
static void held_soon(const char *key, long long want)
{
	for (uint32_t n = 0; n < 6000 && held(key) != want; n++)
		usleep(10000);
	EQUAL(held(key), want);
}

/* C-022, C-023: what a space says of itself is so. */
static void test_features(void)
{
	struct engine *e = engine_new("features", KVP_LAYOUT_NCLD, 1);
	struct kvp_space_props p = { .size = sizeof(p) };
	struct kvp_payload_info first = { .size = sizeof(first) };
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	struct kvp_grant *g;

	EQUAL(kvp_space_info(e->space, &p), 0);
	EQUAL(p.features, KVP_FEATURE_ZERO_COPY | KVP_FEATURE_NON_BLOCKING_PUT);
	EQUAL(p.attached, 1);
	EQUAL(p.block_tokens, T);
	EQUAL(p.block_bytes, T * TOKEN_BYTES);
	CHECK(p.chunk_tokens >= T);
	EQUAL(p.chunk_tokens % T, 0);
	/* Zero copy: what is written into a slot is read where it was written. */
	EQUAL(kvp_reserve(e->space, WAIT_MS, NULL, &g), 0);
	memcpy(kvp_grant_addr(g), e->kv, T * TOKEN_BYTES);
	EQUAL(kvp_commit(g, kvp_ref_root(), e->tokens, T, NULL, 0), 0);
	EQUAL(kvp_grant_wait(g, WAIT_MS), 0);
	m = find(e, T, 0, &i);
	EQUAL(kvp_payload(m, 0, &first), 0);
	CHECK(first.addr == kvp_grant_addr(g));
	EQUAL(first.tier, KVP_TIER_DRAM);
	EQUAL(first.bytes, T * TOKEN_BYTES);
	EQUAL(kvp_grant_release(g), 0);
	/* C-024: a second release of either is noticed. */
	EQUAL(kvp_grant_release(g), -EALREADY);
	EQUAL(kvp_release(m), 0);
	EQUAL(kvp_release(m), -EALREADY);
	engine_free(e);
}

/* C-058: the buffer is the caller's again when kvp_put() returns. */
static void test_put_copies(void)
{
	struct engine *e = engine_new("copies", KVP_LAYOUT_LCND, 2);
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	EQUAL(kvp_put(e->space, e->tokens, N, 0, &e->view, &o, NULL), N);
	memset(e->kv, 0xee, (size_t)N * TOKEN_BYTES);
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	fill(e, 2);
	m = find_soon(e, N, N, &i);
	same_bytes(e, m, N);
	kvp_release(m);
	engine_free(e);
}

/* C-031: a view that does not fit is refused, and nothing of it is kept. */
static void test_put_refused(void)
{
	struct engine *e = engine_new("refused", KVP_LAYOUT_NCLD, 3);
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct kvp_view_plane holes[2], narrow[2];
	struct kvp_view v;
	uint32_t reversed[2] = { 1, 0 };

	memcpy(holes, e->planes, sizeof(holes));
	memcpy(narrow, e->planes, sizeof(narrow));
	holes[1].v = NULL;
	narrow[0].k_head_stride = 2;
#define REFUSED(...)                                                                 \
	do {                                                                         \
		v = e->view;                                                         \
		__VA_ARGS__;                                                         \
		EQUAL(kvp_put(e->space, e->tokens, N, 0, &v, &o, NULL), -EINVAL);    \
		EQUAL(kvp_put_outcome(e->space, e->tokens, N, 0, WAIT_MS, NULL), 0); \
	} while (0)
	REFUSED(v.n_layers = 1);
	REFUSED(v.n_layers = 3);
	REFUSED(v.first_head = 1);
	REFUSED(v.n_heads = 3);
	REFUSED(v.planes = holes);
	REFUSED(v.planes = narrow);
	REFUSED((v.n_layers = 2, v.layers = reversed));
	REFUSED(v.size = 4);
#undef REFUSED
	EQUAL(held("grants"), 0);
	store(e, N, 0);
	engine_free(e);
}

/* C-034, C-035: a key for each block, and it depends on all that comes before. */
static void test_keys(void)
{
	struct engine *e = engine_new("keys", KVP_LAYOUT_NCLD, 4);
	struct engine *other = engine_new("keys", KVP_LAYOUT_LCND, 4);
	struct kvp_digest a[BLOCKS + 1], b[BLOCKS + 1];

	EQUAL(kvp_chunk_keys(e->space, e->tokens, N + 5, a, BLOCKS + 1), BLOCKS + 1);
	EQUAL(kvp_chunk_keys(e->space, e->tokens, N, b, BLOCKS + 1), BLOCKS);
	CHECK(memcmp(a, b, BLOCKS * sizeof(a[0])) == 0);
	for (uint32_t x = 0; x <= BLOCKS; x++)
		for (uint32_t y = 0; y < x; y++)
			CHECK(memcmp(&a[x], &a[y], sizeof(a[x])) != 0);
	/* The second block's tokens are the same after another first one. */
	e->tokens[T - 1]++;
	EQUAL(kvp_chunk_keys(e->space, e->tokens, N, b, BLOCKS + 1), BLOCKS);
	for (uint32_t x = 0; x < BLOCKS; x++)
		CHECK(memcmp(&a[x], &b[x], sizeof(a[x])) != 0);
	/* And so they are in another space. */
	EQUAL(kvp_chunk_keys(other->space, other->tokens, N, b, BLOCKS + 1), BLOCKS);
	for (uint32_t x = 0; x < BLOCKS; x++)
		CHECK(memcmp(&a[x], &b[x], sizeof(a[x])) != 0);
	engine_free(other);
	engine_free(e);
}

/* C-037, C-060: nothing asked for or nothing found is nothing held. */
static void test_nothing(void)
{
	struct engine *e = engine_new("nothing", KVP_LAYOUT_NCLD, 5);
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	EQUAL(kvp_match(e->space, NULL, 0, NULL, &m), 0);
	EQUAL(kvp_get(m, 0, 10, &e->view, 0), 0);
	EQUAL(held("leases"), 0);
	EQUAL(kvp_release(m), 0);
	EQUAL(kvp_put(e->space, NULL, 0, 0, &e->view, NULL, NULL), 0);
	EQUAL(kvp_put_outcome(e->space, NULL, 0, 0, WAIT_MS, NULL), 0);
	EQUAL(kvp_chunk_keys(e->space, NULL, 0, NULL, 0), 0);
	EQUAL(kvp_delete(e->space, NULL, 0, WAIT_MS), 0);
	m = find(e, N, 0, &i);
	EQUAL(i.n_tokens + i.tail_tokens + i.flags, 0);
	EQUAL(kvp_get(m, 0, N, &e->view, 0), 0);
	EQUAL(held("leases"), 0);
	kvp_release(m);
	/* What is held is seen, so that the noughts above mean something. */
	store(e, N, 0);
	m = find_soon(e, N, N, &i);
	EQUAL(i.n_tokens, N);
	EQUAL(held("leases"), 1);
	kvp_release(m);
	EQUAL(held("leases"), 0);
	engine_free(e);
}

/* C-036: closing is harmless when it is repeated, and the daemon sees it. */
static void test_close(void)
{
	struct engine *e = engine_new("close", KVP_LAYOUT_NCLD, 6);
	struct kvp_space *space = e->space;
	struct kvp_client *client = e->client;

	EQUAL(held("leases"), 0);
	space = kvp_space_close(space);
	space = kvp_space_close(space);
	CHECK(!space);
	client = kvp_close(client);
	client = kvp_close(client);
	CHECK(!client);
	held_soon("leases", -1); /* there is no such client */
	free(e->kv);
	free(e);
}

/* E-013: never longer than what was asked; EXACT is all of it or nothing. */
static void test_lengths(void)
{
	struct engine *e = engine_new("lengths", KVP_LAYOUT_NCLD, 7);
	struct kvp_prefix_info i;

	store(e, 6 * T + 20, KVP_PUT_PARTIAL);
	for (uint32_t n = 0; n <= 8 * T; n += 7) {
		uint32_t most = n < 6 * T + 20 ? n : 6 * T + 20;

		kvp_release(find_soon(e, n, most / T * T, &i));
		CHECK(i.n_tokens + i.tail_tokens <= most);
		CHECK(i.n_tokens >= most / T * T);
		kvp_release(find(e, n, KVP_MATCH_NO_TAIL, &i));
		EQUAL(i.tail_tokens, 0);
		kvp_release(find(e, n, KVP_MATCH_EXACT, &i));
		CHECK(i.n_tokens + i.tail_tokens == n || i.n_tokens + i.tail_tokens == 0);
	}
	EQUAL(found_soon(e, 6 * T, KVP_MATCH_EXACT, 6 * T), 6 * T);
	EQUAL(found_soon(e, 6 * T + 20, KVP_MATCH_EXACT, 6 * T + 20), 6 * T + 20);
	kvp_release(find(e, 6 * T + 21, KVP_MATCH_EXACT, &i));
	EQUAL(i.n_tokens + i.tail_tokens + i.flags, 0);
	engine_free(e);
}

/*
 * C-056, E-020: the match says what is there; exactly the rest is computed, and stored by saying the
 * sequence, where the new part begins, and nothing but the new part's KV.
 */
static void test_suffix(void)
{
	struct engine *e = engine_new("suffix", KVP_LAYOUT_LCND, 8);
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct kvp_view_plane planes[2];
	struct kvp_view rest = { .size = sizeof(rest), .planes = planes };
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	uint64_t bytes;
	uint8_t *computed;

	store(e, 10 * T, 0);
	m = find_soon(e, N, 10 * T, &i);
	EQUAL(i.n_tokens, 10 * T);
	EQUAL(i.tail_tokens, 0);
	computed = malloc((size_t)(N - i.n_tokens) * TOKEN_BYTES);
	CHECK(computed);
	memcpy(computed, e->kv + (size_t)i.n_tokens * TOKEN_BYTES,
		(size_t)(N - i.n_tokens) * TOKEN_BYTES);
	EQUAL(kvp_view_dense(e->space, KVP_VIEW_NCLD, computed, N - i.n_tokens, planes, &bytes), 0);
	EQUAL(bytes, (N - i.n_tokens) * TOKEN_BYTES);
	EQUAL(kvp_put(e->space, e->tokens, N, i.n_tokens, &rest, &o, NULL), N - i.n_tokens);
	EQUAL(kvp_put_outcome(e->space, e->tokens, N, i.n_tokens, WAIT_MS, NULL), N - i.n_tokens);
	kvp_release(m);
	free(computed);
	m = find_soon(e, N, N, &i);
	same_bytes(e, m, N);
	kvp_release(m);
	/* A part whose beginning is not there has nothing to follow. */
	e->tokens[0]++;
	EQUAL(kvp_put(e->space, e->tokens, N, T, &e->view, &o, NULL), -ENOENT);
	EQUAL(kvp_put(e->space, e->tokens, N, T + 1, &e->view, &o, NULL), -EINVAL);
	engine_free(e);
}

/* E-022: one token below the least is not stored, the least is. */
static void test_least(void)
{
	static const uint32_t least[] = { 50, 100, 20 }; /* chat, retrieval, batch */
	struct engine *e = engine_new("least", KVP_LAYOUT_NCLD, 9);
	struct kvp_put_opts o = {
		.size = sizeof(o), .flags = KVP_PUT_PARTIAL, .timeout_ms = WAIT_MS
	};

	for (uint32_t k = 0; k < 3; k++) {
		struct kvp_space_desc d = model("least", KVP_LAYOUT_NCLD);
		struct kvp_space *space;
		uint32_t n = least[k];

		d.min_cache_tokens = n;
		EQUAL(kvp_space_open(e->client, &d, WAIT_MS, &space), 0);
		fill(e, 90 + k);
		EQUAL(kvp_put(space, e->tokens, n - 1, 0, &e->view, &o, NULL), 0);
		EQUAL(kvp_put_outcome(space, e->tokens, n - 1, 0, WAIT_MS, NULL), 0);
		EQUAL(kvp_put(space, e->tokens, n, 0, &e->view, &o, NULL), n);
		EQUAL(kvp_put_outcome(space, e->tokens, n, 0, WAIT_MS, NULL), n);
		kvp_space_close(space);
	}
	engine_free(e);
}

/*
 * E-048: when all that the tenant has is leased, a put says so at once and when to come again; with
 * the leases the room comes back.
 */
static void test_backpressure(void)
{
	struct engine *e = engine_new("pressure", KVP_LAYOUT_NCLD, 10);
	struct kvp_put_opts o = { .size = sizeof(o) };
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_prefix *leased[200];
	uint32_t n = 0, retry_ms = 0, blocks;
	struct kvp_prefix_info i;
	int64_t r = 0;

	for (uint32_t tries = 0; n < 200 && tries < 1000; tries++) {
		fill(e, 1000 + n);
		retry_ms = 0;
		r = kvp_put(e->space, e->tokens, N, 0, &e->view, &o, &retry_ms);
		EQUAL(kvp_stats(e->client, &s), 0);
		if (r == -EAGAIN && !s.stuck)
			break;
		CHECK(r >= 0 || r == -ETIMEDOUT || r == -EAGAIN);
		while (kvp_flush(e->client, WAIT_MS) <
			0) /* a machine with no time for the daemon */
			usleep(5000);
		leased[n] = find(e, N, 0, &i);
		n += i.n_blocks > 0;
		if (!i.n_blocks)
			kvp_release(leased[n]);
	}
	EQUAL(r, -EAGAIN);
	CHECK(retry_ms > 0);
	EQUAL(held("leases"), n);
	for (uint32_t k = 0; k < n; k++) {
		EQUAL(kvp_match_info(leased[k], &i), 0);
		blocks = i.n_blocks;
		fill(e, 1000 + k);
		kvp_release(find_soon(e, N, blocks * T, &i)); /* nothing leased has gone */
	}
	while (n)
		kvp_release(leased[--n]);
	fill(e, 5000);
	o.timeout_ms = WAIT_MS;
	EQUAL(kvp_put(e->space, e->tokens, T, 0, &e->view, &o, NULL), T);
	EQUAL(kvp_put_outcome(e->space, e->tokens, T, 0, WAIT_MS, NULL), T);
	engine_free(e);
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "features", test_features },
		{ "put copies", test_put_copies },
		{ "put refused", test_put_refused },
		{ "keys", test_keys },
		{ "nothing", test_nothing },
		{ "close", test_close },
		{ "lengths", test_lengths },
		{ "suffix", test_suffix },
		{ "least", test_least },
		{ "backpressure", test_backpressure },
	};

	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
