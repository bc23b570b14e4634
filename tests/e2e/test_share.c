/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many prompts, many clients, one very long prompt: a common beginning is stored once (E-007) and
 * computed once by clients that come together (E-025), a hundred clients at a time read nothing
 * wrong (E-040), and a sequence of a million tokens goes in and comes out whole.
 *
 * The KV of a token here is four bytes that depend on it and on all tokens before it, so that a
 * block that was taken from another prompt cannot pass.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/e2e/e2e.h"

#define T           64u /* tokens per block */
#define TOKEN_BYTES 4u
#define BLOCK_BYTES (T * TOKEN_BYTES)

static struct kvt_daemon daemon_;

/* ---- sequences and their KV ----------------------------------------------------------------- */

static int attach(struct e2e *e)
{
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = daemon_.socket, .default_timeout_ms = E2E_WAIT_MS
	};
	const struct kvp_layer layer = { .kv_heads = 1, .k_dim = 1, .v_dim = 1 };
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = "share",
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer };
	int r = kvp_open(&opts, &e->client);

	if (r < 0)
		return r;
	r = kvp_space_open(e->client, &desc, E2E_WAIT_MS, &e->space);
	if (r < 0)
		e->client = kvp_close(e->client);
	return r;
}

/* The KV of all tokens, token by token. */
static void derive(const uint32_t *tokens, size_t n, uint32_t *kv)
{
	uint32_t h = 0x811c9dc5;

	for (size_t i = 0; i < n; i++) {
		h = (h ^ tokens[i]) * 0x01000193 + (h >> 15);
		kv[i] = h;
	}
}

static uint32_t *make_tokens(size_t n, uint64_t seed)
{
	uint32_t *tokens = malloc(n * sizeof(*tokens));

	assert_non_null(tokens);
	for (size_t i = 0; i < n; i++)
		tokens[i] = (uint32_t)e2e_random(&seed) % 128000;
	return tokens;
}

static int64_t put(struct e2e *e, const uint32_t *tokens, size_t n, size_t from, uint32_t *kv)
{
	struct kvp_put_opts opts = {
		.size = sizeof(opts), .flags = KVP_PUT_PARTIAL, .timeout_ms = E2E_WAIT_MS
	};
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;
	int r = kvp_view_dense(e->space, KVP_VIEW_NCLD, kv + from, n - from, &plane, &bytes);

	if (r < 0 || bytes != (n - from) * TOKEN_BYTES)
		return r < 0 ? r : -1;
	return kvp_put(e->space, tokens, n, from, &view, &opts, NULL);
}

/* How many tokens are there; -1 if one of their bytes is wrong, in place or copied. */
static int64_t get(struct e2e *e, const uint32_t *tokens, size_t n, const uint32_t *kv)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t *copy = malloc(n * sizeof(*copy)), at = 0;
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	struct kvp_prefix *m;
	uint64_t bytes;
	int64_t there = -1;

	if (!copy || kvp_match(e->space, tokens, n, NULL, &m) < 0)
		e2e_die("no match", 0);
	kvp_match_info(m, &info);
	for (uint32_t i = 0; i < info.n_blocks; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };

		if (kvp_payload(m, i, &p) < 0 || memcmp(p.addr, kv + at, p.tokens * TOKEN_BYTES))
			goto end;
		at += p.tokens;
	}
	if (at != info.n_tokens || kvp_view_dense(e->space, KVP_VIEW_NCLD, copy, n, &plane, &bytes))
		goto end;
	if (kvp_get(m, 0, at, &view, 0) == at && !memcmp(copy, kv, (size_t)at * TOKEN_BYTES))
		there = at;
end:
	kvp_release(m);
	free(copy);
	return there;
}

static int64_t figure(const char *name)
{
	json_t *answer = e2e_ask(daemon_.socket, "{\"verb\":\"tenants\"}", NULL);
	int64_t v = json_integer_value(
		json_object_get(json_array_get(json_object_get(answer, "tenants"), 0), name));

	json_decref(answer);
	return v;
}

static void *shared(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	return p;
}

/* A minute at most: a process that failed must not keep the others here. */
static bool wait_for_count(_Atomic uint32_t *count, uint32_t n)
{
	for (uint32_t i = 0; i < 30000 && atomic_load(count) != n; i++)
		e2e_sleep_us(2000);
	return atomic_load(count) == n;
}

/* ---- a common beginning --------------------------------------------------------------------- */

#define PROMPTS 100u
#define COMMON  1024u
#define PROMPT  (COMMON + T)
#define PUTTERS 4u

static void prompt(uint32_t number, uint32_t *tokens)
{
	for (uint32_t i = 0; i < PROMPT; i++)
		tokens[i] = i < COMMON ? i * 7 : number * 1000 + i;
}

/* Puts all prompts, beginning with one of its own. */
static int put_prompts(uint32_t first)
{
	uint32_t tokens[PROMPT], kv[PROMPT];
	struct e2e e;

	if (attach(&e) < 0)
		return 1;
	for (uint32_t i = 0; i < PROMPTS; i++) {
		prompt((first + i) % PROMPTS, tokens);
		derive(tokens, PROMPT, kv);
		if (put(&e, tokens, PROMPT, 0, kv) != PROMPT)
			return 2;
	}
	if (kvp_flush(e.client, E2E_WAIT_MS) < 0)
		return 3;
	e2e_detach(&e);
	return 0;
}

/* E-007: 16 blocks that all have, and 100 that one has, whoever put them and in whatever order. */
static void a_common_beginning_is_stored_once(void **state)
{
	const int64_t blocks = COMMON / T + PROMPTS;
	uint32_t tokens[PROMPT], kv[PROMPT];
	pid_t pid[PUTTERS];
	struct e2e e;
	(void)state;

	for (uint32_t i = 0; i < PUTTERS; i++) {
		pid[i] = e2e_fork();
		if (!pid[i])
			_exit(put_prompts(i * PROMPTS / PUTTERS));
	}
	for (uint32_t i = 0; i < PUTTERS; i++)
		assert_int_equal(e2e_reap(pid[i]), 0);
	assert_int_equal(figure("blocks"), blocks);
	assert_int_equal(figure("payload_bytes"), blocks * BLOCK_BYTES);
	assert_int_equal(figure("commits_total"), blocks);
	assert_int_equal(figure("evictions_total"), 0);
	assert_int_equal(attach(&e), 0);
	for (uint32_t i = 0; i < PROMPTS; i++) {
		prompt(i, tokens);
		derive(tokens, PROMPT, kv);
		assert_int_equal(get(&e, tokens, PROMPT, kv), PROMPT);
	}
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* ---- single flight -------------------------------------------------------------------------- */

#define FLYERS 16u

/* Shared by the processes. */
struct flight {
	_Atomic uint32_t here;
	_Atomic uint32_t computed; /* blocks */
	_Atomic uint32_t waited;   /* times that one followed another */
};

/* Computes what is missing if it is the one to do so, and follows whoever is until all is there. */
static int fly(struct flight *f, const uint32_t *tokens, uint32_t *kv)
{
	struct kvp_match_opts opts = { .size = sizeof(opts),
		.flags = KVP_MATCH_CLAIM,
		.timeout_ms = E2E_WAIT_MS,
		.claim_ttl_ms = 600000 };
	struct e2e e;

	if (attach(&e) < 0)
		return 1;
	atomic_fetch_add(&f->here, 1);
	if (!wait_for_count(&f->here, FLYERS))
		return 7;
	for (;;) {
		struct kvp_prefix_info info = { .size = sizeof(info) };
		struct kvp_ref parent = kvp_ref_root();
		struct kvp_prefix *m;

		if (kvp_match(e.space, tokens, PROMPT, &opts, &m) < 0)
			return 2;
		kvp_match_info(m, &info);
		if (info.flags & KVP_MATCHED_PENDING) {
			atomic_fetch_add(&f->waited, 1);
			kvp_wait(m, 1000);
		} else if (info.flags & KVP_MATCHED_CLAIMED &&
			   kvp_match_ref(m, info.n_blocks, &parent) < 0) {
			return 3;
		}
		for (uint32_t at = info.n_tokens; info.flags & KVP_MATCHED_CLAIMED && at < PROMPT;
			at += T) {
			struct kvp_grant *g;

			if (kvp_reserve(e.space, E2E_WAIT_MS, NULL, &g) < 0)
				return 4;
			memcpy(kvp_grant_addr(g), kv + at, BLOCK_BYTES);
			e2e_sleep_us(2000); /* it takes time: the others come meanwhile */
			if (kvp_commit(g, parent, tokens + at, T, m, 0) < 0 ||
				kvp_grant_ref(g, &parent) < 0 || kvp_grant_release(g) < 0)
				return 5;
			atomic_fetch_add(&f->computed, 1);
		}
		kvp_release(m);
		if (get(&e, tokens, PROMPT, kv) == PROMPT)
			break;
		if (info.n_tokens == PROMPT)
			return 6;
	}
	e2e_detach(&e);
	return 0;
}

/* E-025: 16 clients ask at once for what nobody has: each block is computed once, by whichever. */
static void who_comes_together_computes_once(void **state)
{
	struct flight *f = shared(sizeof(*f));
	uint32_t tokens[PROMPT], kv[PROMPT];
	pid_t pid[FLYERS];
	(void)state;

	prompt(7777, tokens);
	tokens[0] = 99; /* shares nothing with those before */
	derive(tokens, PROMPT, kv);
	for (uint32_t i = 0; i < FLYERS; i++) {
		pid[i] = e2e_fork();
		if (!pid[i])
			_exit(fly(f, tokens, kv));
	}
	for (uint32_t i = 0; i < FLYERS; i++)
		assert_int_equal(e2e_reap(pid[i]), 0);
	assert_int_equal(f->computed, PROMPT / T);
	assert_true(f->waited >= FLYERS - 1);
	assert_int_equal(figure("open_claims"), 0);
	printf("%u clients, %u blocks computed, %u waits\n", FLYERS, f->computed, f->waited);
	munmap(f, sizeof(*f));
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* ---- a million tokens ----------------------------------------------------------------------- */

#define MILLION 1000000u

/* in and out in one call each; again; longer; partly; deleted. */
static void a_million_tokens(void **state)
{
	const size_t n = MILLION + 3 * T + 5;
	uint32_t *tokens = make_tokens(n, 42), *kv = malloc(n * TOKEN_BYTES);
	struct e2e writer, reader;
	int64_t before;
	(void)state;

	assert_non_null(kv);
	derive(tokens, n, kv);
	assert_int_equal(attach(&writer), 0);
	assert_int_equal(attach(&reader), 0);
	before = figure("blocks");
	assert_int_equal(put(&writer, tokens, MILLION, 0, kv), MILLION);
	assert_int_equal(kvp_flush(writer.client, E2E_WAIT_MS), 0);
	assert_int_equal(figure("blocks") - before, MILLION / T);
	assert_int_equal(get(&reader, tokens, MILLION, kv), MILLION);
	/* again, by another: nothing is stored twice */
	assert_int_equal(put(&reader, tokens, MILLION, 0, kv), MILLION);
	assert_int_equal(figure("blocks") - before, MILLION / T);
	/* longer, with a partial block at the end */
	assert_int_equal(put(&writer, tokens, n, MILLION, kv), n - MILLION);
	assert_int_equal(kvp_flush(writer.client, E2E_WAIT_MS), 0);
	assert_int_equal(figure("blocks") - before, MILLION / T + 4);
	assert_int_equal(get(&reader, tokens, n, kv), n);
	/* one that leaves it in the middle of block 12,345 shares what is before */
	tokens[12345 * T + 1] ^= 1;
	assert_int_equal(get(&reader, tokens, n, kv), 12345 * T);
	tokens[12345 * T + 1] ^= 1;
	assert_int_equal(kvp_delete(reader.space, tokens, n, E2E_WAIT_MS), MILLION / T + 4);
	assert_int_equal(kvp_flush(reader.client, E2E_WAIT_MS), 0);
	assert_int_equal(figure("blocks"), before);
	e2e_detach(&reader);
	e2e_detach(&writer);
	free(kv);
	free(tokens);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

static int setup_large(void **state)
{
	struct kvt_daemon_opts opts = { .share = UINT64_C(192) << 20,
		.max_blocks = 20000,
		.recipe_tokens = MILLION * 5 / 4,
		.max_sessions = 32,
		.more = "claim_ttl_ms: 60000\n" };
	(void)state;

	e2e_start(&daemon_, &opts);
	return 0;
}

/* ---- a hundred clients ---------------------------------------------------------------------- */

#define CLIENTS     100u
#define ROUNDS      60u
#define CROWD_SET   80u /* prompts that they draw from */
#define CROWD_TOKEN (E2E_BT * 8)

struct crowd {
	_Atomic uint32_t here;
	_Atomic uint32_t go;
	_Atomic uint32_t done;
	_Atomic uint64_t verified; /* tokens */
	_Atomic uint64_t stored;   /* blocks */
};

static int crowd_life(struct crowd *c, uint64_t rng)
{
	uint32_t tokens[CROWD_TOKEN];
	struct e2e e;

	if (e2e_attach(&e, daemon_.socket) < 0)
		return 1;
	atomic_fetch_add(&c->here, 1);
	if (!wait_for_count(&c->go, 1))
		return 5;
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t n = 1 + (uint32_t)(e2e_random(&rng) % CROWD_TOKEN);
		int r;

		e2e_prompt((uint32_t)(e2e_random(&rng) % CROWD_SET), tokens, n);
		r = e2e_store(&e, tokens, n, E2E_WAIT_MS, i % 4 == 0);
		/* What it found may go before it has built on it, and room may be short. */
		if (r < 0 && r != -EAGAIN && r != -ENOENT && r != -EINVAL && r != -ECANCELED)
			return 2;
		if (r > 0)
			atomic_fetch_add(&c->stored, (uint64_t)r);
		for (uint32_t k = 0; k < 4; k++) {
			e2e_prompt((uint32_t)(e2e_random(&rng) % CROWD_SET), tokens, CROWD_TOKEN);
			r = e2e_fetch(&e, tokens, CROWD_TOKEN);
			if (r < 0)
				return r == -EBADMSG ? 3 : 4;
			atomic_fetch_add(&c->verified, (uint64_t)r);
		}
	}
	/* All stay until the last is done: a hundred at a time from first to last. */
	atomic_fetch_add(&c->done, 1);
	if (!wait_for_count(&c->done, CLIENTS))
		return 6;
	e2e_detach(&e);
	return 0;
}

/* E-040: beside evictions without end, since the pool holds half of what they want. */
static void a_hundred_clients(void **state)
{
	struct crowd *c = shared(sizeof(*c));
	uint64_t seed = e2e_seed();
	pid_t pid[CLIENTS];
	json_t *clients;
	(void)state;

	for (uint32_t i = 0; i < CLIENTS; i++) {
		pid[i] = e2e_fork();
		if (!pid[i])
			_exit(crowd_life(c, (seed + i + 1) * UINT64_C(0x9e3779b97f4a7c15)));
	}
	assert_true(wait_for_count(&c->here, CLIENTS));
	clients = e2e_ask(daemon_.socket, "{\"verb\":\"clients\"}", NULL);
	assert_int_equal(json_array_size(json_object_get(clients, "clients")), CLIENTS);
	json_decref(clients);
	atomic_store(&c->go, 1);
	for (uint32_t i = 0; i < CLIENTS; i++)
		assert_int_equal(e2e_reap(pid[i]), 0);
	printf("%u clients: %llu blocks stored, %llu tokens verified, %lld evictions\n", CLIENTS,
		(unsigned long long)c->stored, (unsigned long long)c->verified,
		(long long)figure("evictions_total"));
	assert_true(c->stored > 0);
	assert_true(c->verified > 0);
	assert_true(figure("evictions_total") > 0);
	munmap(c, sizeof(*c));
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

static int setup_small(void **state)
{
	struct kvt_daemon_opts opts = { .share = UINT64_C(48) << 20,
		.max_blocks = 300,
		.max_sessions = CLIENTS + 8,
		.arena = UINT64_C(1) << 20,
		.more = "extent: 1MiB\n" };
	(void)state;

	e2e_start(&daemon_, &opts);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	kvt_daemon_stop(&daemon_);
	return 0;
}

int main(void)
{
	const struct CMUnitTest large[] = {
		cmocka_unit_test(a_common_beginning_is_stored_once),
		cmocka_unit_test(who_comes_together_computes_once),
		cmocka_unit_test(a_million_tokens),
	};
	const struct CMUnitTest small[] = {
		cmocka_unit_test(a_hundred_clients),
	};
	int failed = cmocka_run_group_tests(large, setup_large, stop);

	return failed + cmocka_run_group_tests(small, setup_small, stop);
}
