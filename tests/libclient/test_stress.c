/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads of one client at once: matching, reading, storing, single flight, while blocks are
 * evicted under them and daemons die. Every payload carries its block's key; what a match gives
 * must agree. Meant for ThreadSanitizer and AddressSanitizer as well.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libclient/match.h"
#include "tests/libclient/fake.h"
#include "tests/shm/toy_ledger.h"

#define T        16u
#define THREADS  6u
#define BLOCKS   6u /* of a prompt */
#define FAMILIES 4u
#define ROUNDS   100000u /* more than there is time for */

static const struct kvp_layer layer = { .kv_heads = 1, .k_dim = 2, .v_dim = 2 };
static const struct kvp_space_desc model = {
	.size = sizeof(model),
	.model = "stress",
	.dtype = KVP_DTYPE_F32,
	.block_tokens = T,
	.n_layers = 1,
	.layers = &layer,
};

#define TOKEN_BYTES 16u

/*
 * The fake daemon and the library map the same memory at two addresses, so ThreadSanitizer does not
 * see that a slot's reader and its next writer are ordered by words in it. Contents are checked.
 */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
	return "race:view_to_payload\nrace:view_from_payload\nrace:store_run\n";
}

struct shared {
	struct kvp_client *client;
	struct kvp_space *space;
	uint64_t seed;
	KVP_ATOMIC(uint32_t) stop;
	KVP_ATOMIC(uint32_t) hits;
	KVP_ATOMIC(uint32_t) bad;
};

/* Prompts of a family share their first blocks; the payload of token t begins with the token. */
static void make_prompt(uint64_t *rnd, uint32_t tokens[BLOCKS * T], uint8_t *kv)
{
	uint32_t family = (uint32_t)(toy_random(rnd) % FAMILIES);
	uint32_t shared = (uint32_t)(toy_random(rnd) % (BLOCKS + 1)) * T;

	for (uint32_t t = 0; t < BLOCKS * T; t++) {
		tokens[t] = family * 100000 + t;
		if (t >= shared)
			tokens[t] += 1000 * (1 + (uint32_t)(toy_random(rnd) % 3));
		memset(kv + t * TOKEN_BYTES, 0, TOKEN_BYTES);
		memcpy(kv + t * TOKEN_BYTES, &tokens[t], 4);
	}
}

static void check(struct shared *s, const struct kvp_prefix *m, const uint32_t *tokens)
{
	struct kvp_prefix_info i = { .size = sizeof(i) };
	uint8_t back[BLOCKS * T * TOKEN_BYTES];
	struct kvp_view_plane plane;
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };
	uint64_t bytes;
	int64_t n;

	kvp_match_info(m, &i);
	kvp_view_dense(s->space, KVP_VIEW_NCLD, back, BLOCKS * T, &plane, &bytes);
	n = kvp_get(m, 0, BLOCKS * T, &v, 0);
	if (n == -ESTALE)
		return;
	if (n != i.n_tokens + i.tail_tokens)
		kvp_add_relaxed(&s->bad, 1);
	for (int64_t t = 0; t < n; t++)
		if (memcmp(back + t * TOKEN_BYTES, &tokens[t], 4) != 0)
			kvp_add_relaxed(&s->bad, 1);
	if (n > 0)
		kvp_add_relaxed(&s->hits, 1);
}

/* The same prompt in two matches, the first of which ends before the second is read. */
static void grow(struct shared *s, uint64_t *rnd, const uint32_t *tokens)
{
	struct kvp_match_opts mo = { .size = sizeof(mo) };
	struct kvp_prefix_info i = { .size = sizeof(i) };
	int64_t wide[BLOCKS * T];
	struct kvp_prefix *m;
	uint32_t from;

	for (uint32_t t = 0; t < BLOCKS * T; t++)
		wide[t] = tokens[t];
	if (kvp_match(s->space, tokens, toy_random(rnd) % (BLOCKS * T), &mo, &m) < 0 ||
		kvp_match_info(m, &i) < 0) {
		kvp_add_relaxed(&s->bad, 1);
		return;
	}
	from = i.n_tokens / T * T;
	mo.after = m;
	if (kvp_match_ids(s->space,
		    &(struct kvp_ids){ wide + from, BLOCKS * T - from, KVP_IDS_I64 }, &mo,
		    &m) < 0) {
		kvp_add_relaxed(&s->bad, 1);
		m = NULL;
	}
	kvp_release((struct kvp_prefix *)mo.after);
	if (m)
		check(s, m, tokens);
	kvp_release(m);
}

/* The whole prompt in a run, into slots that are read by others while this client still has them. */
static void store_run(struct shared *s, const uint32_t *tokens, const uint8_t *kv)
{
	struct kvp_grant *g[BLOCKS];
	int n = kvp_reserve_run(s->space, BLOCKS, 2, NULL, g), r;

	for (int i = 0; i < n; i++)
		memcpy(kvp_grant_addr(g[i]), kv + (size_t)i * T * TOKEN_BYTES, T * TOKEN_BYTES);
	if (n <= 0)
		return;
	r = kvp_commit_run(g, (uint32_t)n, kvp_ref_root(), tokens, (size_t)n * T, NULL, 0, NULL);
	if (r == -EINVAL || r == -EALREADY)
		kvp_add_relaxed(&s->bad, 1);
	for (int i = 0; i < n; i++)
		kvp_grant_release(g[i]);
}

static void one_round(struct shared *s, uint64_t *rnd)
{
	struct kvp_match_opts mo = { .size = sizeof(mo), .timeout_ms = 50 };
	struct kvp_put_opts po = { .size = sizeof(po), .timeout_ms = 5 };
	uint32_t tokens[BLOCKS * T];
	uint8_t kv[BLOCKS * T * TOKEN_BYTES];
	struct kvp_view_plane plane;
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };
	struct kvp_prefix_info i = { .size = sizeof(i) };
	struct kvp_prefix *m;
	uint64_t bytes;

	make_prompt(rnd, tokens, kv);
	kvp_view_dense(s->space, KVP_VIEW_NCLD, kv, BLOCKS * T, &plane, &bytes);
	if (toy_random(rnd) % 4 == 0)
		mo.flags = KVP_MATCH_CLAIM;
	if (kvp_match(s->space, tokens, BLOCKS * T, &mo, &m) < 0) {
		kvp_add_relaxed(&s->bad, 1);
		return;
	}
	check(s, m, tokens);
	kvp_match_info(m, &i);
	if (i.flags & KVP_MATCHED_PENDING)
		(void)kvp_wait(m, 2);
	if (toy_random(rnd) % 4)
		(void)kvp_put(s->space, tokens, BLOCKS * T, 0, &v, &po, NULL);
	else
		store_run(s, tokens, kv);
	kvp_release(m);
	grow(s, rnd, tokens);
	if (toy_random(rnd) % 16 == 0)
		(void)kvp_flush(s->client, 20);
	if (toy_random(rnd) % 16 == 0)
		(void)kvp_delete(s->space, tokens, BLOCKS * T, 20);
}

struct worker {
	struct shared *s;
	uint64_t rnd;
};

static void *work(void *arg)
{
	struct worker *w = arg;

	for (uint32_t r = 0; r < ROUNDS && !kvp_load_relaxed(&w->s->stop); r++)
		one_round(w->s, &w->rnd);
	return NULL;
}

static void evict_some(struct fake *f, uint64_t *rnd)
{
	uint32_t n = fake_blocks(f);

	for (uint32_t i = 0; n && i < 8; i++)
		fake_evict(f, (kvp_block_id)(toy_random(rnd) % n));
}

/* The fake never uses a descriptor twice; a fresh one has all of them. */
static bool used_up(struct fake *f)
{
	return fake_blocks(f) > FAKE_BLOCKS - 500;
}

static void test_threads(void **state)
{
	struct shared s = { .seed = toy_seed() };
	struct fake *f = fake_start(NULL);
	struct kvp_open_opts o = {
		.size = sizeof(o), .socket = f->path, .default_timeout_ms = 20000
	};
	struct kvp_counters st = { .size = sizeof(st) };
	struct worker w[THREADS];
	pthread_t thread[THREADS];
	uint64_t rnd = s.seed;
	char path[64];

	(void)state;
	strcpy(path, f->path);
	assert_int_equal(kvp_open(&o, &s.client), 0);
	assert_int_equal(kvp_space_open(s.client, &model, 20000, &s.space), 0);
	for (uint32_t i = 0; i < THREADS; i++) {
		w[i] = (struct worker){ .s = &s, .rnd = s.seed + i * 977 };
		assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
	}
	for (uint32_t n = 0; n < 150; n++) {
		usleep(5000);
		evict_some(f, &rnd);
		if (n % 40 == 39 || used_up(f)) {
			fake_stop(f);
			usleep(3000);
			f = fake_start(path);
		}
	}
	kvp_store_relaxed(&s.stop, 1);
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(kvp_load_relaxed(&s.bad), 0);
	assert_int_equal(kvp_stats(s.client, &st), 0);
	assert_int_equal(st.lookups, st.hits + st.partial_hits + st.misses);
	printf("%u hits read, %u daemons joined\n", kvp_load_relaxed(&s.hits), st.reattached + 1);
	assert_int_equal(fake_leases(f), 0);
	kvp_space_close(s.space);
	kvp_close(s.client);
	fake_stop(f);
}

struct hot {
	struct shared *s;
	const uint32_t *tokens;
};

/* Match and release alone, many threads: no lease is lost, handles are never shared. */
static void *match_release(void *arg)
{
	struct hot *h = arg;

	for (uint32_t r = 0; r < 3000; r++) {
		struct kvp_prefix_info i = { .size = sizeof(i) };
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_prefix *m, *m2;
		uint32_t token;

		if (kvp_match(h->s->space, h->tokens, BLOCKS * T, NULL, &m) < 0 ||
			kvp_match(h->s->space, h->tokens, 2 * T, NULL, &m2) < 0 || m == m2) {
			kvp_add_relaxed(&h->s->bad, 1);
			return NULL;
		}
		kvp_match_info(m, &i);
		if (i.n_blocks != BLOCKS || kvp_payload(m, 1, &p) < 0) {
			kvp_add_relaxed(&h->s->bad, 1);
			return NULL;
		}
		memcpy(&token, p.addr, 4);
		if (token != h->tokens[T] || kvp_release(m2) < 0 || kvp_release(m) < 0)
			kvp_add_relaxed(&h->s->bad, 1);
	}
	return NULL;
}

static void test_hot_path(void **state)
{
	struct shared s = { .seed = 1 };
	struct fake *f = fake_start(NULL);
	struct kvp_open_opts o = { .size = sizeof(o), .socket = f->path };
	struct kvp_put_opts po = { .size = sizeof(po), .timeout_ms = 20000 };
	struct kvp_counters st = { .size = sizeof(st) };
	uint32_t tokens[BLOCKS * T];
	uint8_t kv[BLOCKS * T * TOKEN_BYTES];
	struct hot hot = { &s, tokens };
	struct kvp_view_plane plane;
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };
	pthread_t thread[40];
	uint64_t bytes, rnd = 1;

	(void)state;
	assert_int_equal(kvp_open(&o, &s.client), 0);
	assert_int_equal(kvp_space_open(s.client, &model, 20000, &s.space), 0);
	make_prompt(&rnd, tokens, kv);
	kvp_view_dense(s.space, KVP_VIEW_NCLD, kv, BLOCKS * T, &plane, &bytes);
	assert_int_equal(kvp_put(s.space, tokens, BLOCKS * T, 0, &v, &po, NULL), BLOCKS * T);
	assert_int_equal(kvp_flush(s.client, 20000), 0);
	for (uint32_t i = 0; i < 40; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, match_release, &hot), 0);
	for (uint32_t i = 0; i < 40; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(kvp_load_relaxed(&s.bad), 0);
	assert_int_equal(kvp_stats(s.client, &st), 0);
	assert_int_equal(st.hits, 2 * 3000 * 40);
	assert_int_equal(fake_leases(f), 0);
	kvp_space_close(s.space);
	kvp_close(s.client);
	fake_stop(f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hot_path),
		cmocka_unit_test(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
