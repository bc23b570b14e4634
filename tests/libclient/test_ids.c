/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token ids of any width, and sequences that go on from an earlier prefix, against a small daemon in
 * a thread of this process, which evicts when it is told to and dies when it is told to.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libclient/match.h"
#include "tests/libclient/fake.h"

#define T      64u
#define BLOCKS 40u /* 2,560 tokens: more than one window of wide ids */
#define N      (BLOCKS * T)

static const struct kvp_layer layer = { .kv_heads = 1, .k_dim = 2, .v_dim = 2 };

static const struct kvp_space_desc model = {
	.size = sizeof(model),
	.model = "ids",
	.dtype = KVP_DTYPE_F16,
	.layout = KVP_LAYOUT_NCLD,
	.block_tokens = T,
	.n_layers = 1,
	.layers = &layer,
};

#define TOKEN_BYTES 8u

struct fixture {
	struct fake *fake;
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t u32[N];
	int32_t i32[N];
	int64_t i64[N];
	uint8_t kv[N * TOKEN_BYTES];
	struct kvp_view_plane plane;
	struct kvp_view view;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct kvp_open_opts o = { .size = sizeof(o), .default_timeout_ms = 20000 };
	uint64_t bytes;

	f->fake = fake_start(NULL);
	o.socket = f->fake->path;
	assert_int_equal(kvp_open(&o, &f->client), 0);
	assert_int_equal(kvp_space_open(f->client, &model, KVP_DEFAULT_TIMEOUT, &f->space), 0);
	for (uint32_t i = 0; i < N; i++)
		f->i64[i] = f->i32[i] = (int32_t)(f->u32[i] = i * 5 + 1);
	for (uint32_t i = 0; i < sizeof(f->kv); i++)
		f->kv[i] = (uint8_t)(i * 13 % 251);
	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, f->kv, N, &f->plane, &bytes), 0);
	f->view = (struct kvp_view){ .size = sizeof(f->view), .planes = &f->plane };
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	kvp_space_close(f->space);
	kvp_close(f->client);
	fake_stop(f->fake);
	free(f);
	return 0;
}

static struct kvp_ids ids(struct fixture *f, uint32_t type, uint32_t from, uint32_t n)
{
	const void *at = type == KVP_IDS_U32   ? (const void *)(f->u32 + from)
			 : type == KVP_IDS_I32 ? (const void *)(f->i32 + from)
					       : (const void *)(f->i64 + from);

	return (struct kvp_ids){ at, n, type };
}

static struct kvp_prefix *match(struct fixture *f, struct kvp_ids tokens, uint32_t flags,
	const struct kvp_prefix *after, struct kvp_prefix_info *i)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = flags, .after = after };
	struct kvp_prefix *m;

	i->size = sizeof(*i);
	assert_int_equal(kvp_match_ids(f->space, &tokens, &o, &m), 0);
	assert_int_equal(kvp_match_info(m, i), 0);
	return m;
}

static void put(struct fixture *f, struct kvp_ids tokens)
{
	assert_int_equal(kvp_put_ids(f->space, &tokens, 0, &f->view, NULL, NULL), tokens.n);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
}

/* The prefix's first n tokens have the bytes that were put. */
static void check_bytes(struct fixture *f, struct kvp_prefix *m, uint32_t n)
{
	uint8_t *back = malloc(n * TOKEN_BYTES + 1);
	struct kvp_view_plane plane;
	struct kvp_view v = { .size = sizeof(v), .planes = &plane };
	uint64_t bytes;

	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, back, n, &plane, &bytes), 0);
	assert_int_equal(kvp_get(m, 0, n, &v, 0), n);
	assert_memory_equal(back, f->kv, n * TOKEN_BYTES);
	free(back);
}

/* What one kind of ids has stored every other finds, also beyond a window, and to the token. */
static void test_widths(void **state)
{
	static const uint32_t lengths[] = { 0, 1, T, T + 9, 2048, 2048 + 1, 2048 + T, N - 20, N };
	struct fixture *f = *state;

	for (uint32_t stored = 0; stored < 3; stored++) {
		for (uint32_t i = 0; i < N; i++)
			f->i64[i] = f->i32[i] = (int32_t)(f->u32[i] += 1u << 20);
		put(f, ids(f, stored, 0, N));
		for (uint32_t asked = 0; asked < 3; asked++) {
			for (uint32_t k = 0; k < sizeof(lengths) / sizeof(lengths[0]); k++) {
				uint32_t n = lengths[k];
				struct kvp_prefix_info i;
				struct kvp_prefix *m = match(f, ids(f, asked, 0, n), 0, NULL, &i);

				assert_int_equal(i.n_tokens, n / T * T);
				assert_int_equal(
					i.tail_tokens, n % T >= KVP_TAIL_PREFIX ? n % T : 0);
				assert_int_equal(i.n_blocks, n / T);
				check_bytes(f, m, i.n_tokens + i.tail_tokens);
				kvp_release(m);
			}
		}
		assert_int_equal(kvp_delete(f->space, f->u32, N, 20000), BLOCKS);
	}
}

/* A miss in any block, of a window's first and last too. */
static void test_miss(void **state)
{
	struct fixture *f = *state;

	put(f, ids(f, KVP_IDS_I64, 0, N));
	for (uint32_t b = 0; b < BLOCKS; b++) {
		struct kvp_prefix_info i;

		f->i64[b * T + 20]++;
		kvp_release(match(f, ids(f, KVP_IDS_I64, 0, N), 0, NULL, &i));
		assert_int_equal(i.n_blocks, b);
		assert_int_equal(i.tail_tokens, 20);
		f->i64[b * T + 20]--;
	}
}

/* Ids that no token has: wherever one is, nothing is matched, claimed or stored. */
static void test_refused(void **state)
{
	static const int64_t bad[] = { -1, INT64_MIN, INT64_C(1) << 32, INT64_MAX };
	struct kvp_match_opts o = {
		.size = sizeof(o), .flags = KVP_MATCH_CLAIM, .timeout_ms = 20000
	};
	struct fixture *f = *state;
	struct kvp_prefix *m = NULL;
	struct kvp_ids t;

	for (uint32_t at = 0; at < N; at += at < N - 700 ? 611 : N - 1 - at ? N - 1 - at : 1) {
		int64_t was = f->i64[at];

		for (uint32_t b = 0; b < 4; b++) {
			f->i64[at] = bad[b];
			t = ids(f, KVP_IDS_I64, 0, N);
			assert_int_equal(kvp_match_ids(f->space, &t, &o, &m), -EINVAL);
			assert_int_equal(
				kvp_put_ids(f->space, &t, 0, &f->view, NULL, NULL), -EINVAL);
		}
		f->i64[at] = was;
		f->i32[at] = -5;
		t = ids(f, KVP_IDS_I32, 0, N);
		assert_int_equal(kvp_match_ids(f->space, &t, &o, &m), -EINVAL);
		assert_int_equal(kvp_put_ids(f->space, &t, 0, &f->view, NULL, NULL), -EINVAL);
		f->i32[at] = (int32_t)was;
	}
	t = ids(f, 3, 0, N);
	assert_int_equal(kvp_match_ids(f->space, &t, NULL, &m), -EINVAL);
	t = (struct kvp_ids){ NULL, 1, KVP_IDS_U32 };
	assert_int_equal(kvp_match_ids(f->space, &t, NULL, &m), -EINVAL);
	t = (struct kvp_ids){ f->u32, (size_t)MAX_TOKENS + 1, KVP_IDS_U32 };
	assert_int_equal(kvp_match_ids(f->space, &t, NULL, &m), -EINVAL);
	assert_int_equal(kvp_match_ids(f->space, NULL, NULL, &m), -EINVAL);
	assert_null(m);
	assert_int_equal(fake_blocks(f->fake), 0);
	for (uint32_t n = 0; n < KVP_MAX_CLAIMS; n++)
		assert_int_equal(kvp_load_relaxed(&f->fake->v.claims[n].session), 0);
	/* all 32 bits are an id's where there is no sign */
	f->u32[3] = UINT32_MAX;
	f->i64[3] = UINT32_MAX;
	put(f, ids(f, KVP_IDS_U32, 0, T));
	t = ids(f, KVP_IDS_I64, 0, T);
	o.flags = KVP_MATCH_EXACT;
	assert_int_equal(kvp_match_ids(f->space, &t, &o, &m), 0);
	assert_int_equal(m->n_tokens, T);
	kvp_release(m);
}

/* They are looked at several at a time: one is found in every place of so few. */
static void test_refused_anywhere(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix *m;

	for (uint32_t n = 1; n <= 20; n++) {
		for (uint32_t i = 0; i < n; i++) {
			uint32_t from = i % 3, at = from + i;
			struct kvp_ids wide = ids(f, KVP_IDS_I64, from, n);
			struct kvp_ids plain = ids(f, KVP_IDS_I32, from, n);

			f->i64[at] = INT64_C(1) << (32 + i);
			f->i32[at] = INT32_MIN;
			assert_int_equal(kvp_match_ids(f->space, &wide, NULL, &m), -EINVAL);
			assert_int_equal(kvp_match_ids(f->space, &plain, NULL, &m), -EINVAL);
			f->i64[at] = f->i32[at] = (int32_t)f->u32[at];
		}
	}
}

/* A claim on wide ids is the claim on their tokens, and what it waits for is found. */
static void test_claim(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	put(f, ids(f, KVP_IDS_U32, 0, 35 * T));
	m = match(f, ids(f, KVP_IDS_I64, 0, N), KVP_MATCH_CLAIM, NULL, &i);
	assert_int_equal(i.n_blocks, 35);
	assert_true(i.flags & KVP_MATCHED_CLAIMED);
	assert_int_equal(m->front, 35);
	assert_memory_equal(m->tokens, f->u32, 36 * T * sizeof(f->u32[0]));
	put(f, ids(f, KVP_IDS_U32, 0, N));
	for (uint32_t b = 35; b < BLOCKS; b++)
		assert_int_equal(kvp_claim_find(&f->fake->v, m->chain[b], now_ns()), 0);
	kvp_release(m);
}

/* The new prefix is a whole one, with a lease of its own. */
static void test_after(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *first, *second, *third;
	struct kvp_counters s = { .size = sizeof(s) };
	const void *a[6], *b[6];

	put(f, ids(f, KVP_IDS_U32, 0, 6 * T));
	first = match(f, ids(f, KVP_IDS_U32, 0, 2 * T + 30), 0, NULL, &i);
	assert_int_equal(i.tail_tokens, 30);
	/* after its whole blocks: the tokens of its tail are given again */
	second = match(f, ids(f, KVP_IDS_I64, 2 * T, 2 * T + 12), 0, first, &i);
	assert_int_equal(i.n_blocks, 4);
	assert_int_equal(i.n_tokens, 4 * T);
	assert_int_equal(i.tail_tokens, 12);
	assert_true(i.flags & KVP_MATCHED_LEASED);
	assert_int_equal(kvp_payloads(first, 0, 2, a), 2);
	assert_int_equal(kvp_payloads(second, 0, 5, b), 5);
	assert_memory_equal(a, b, 2 * sizeof(a[0]));
	assert_int_equal(kvp_release(first), 0);
	check_bytes(f, second, 4 * T + 12);
	assert_int_equal(fake_leases(f->fake), 1);
	assert_false(fake_evict(f->fake, 4)); /* the tail's block */
	/* exactly all, or nothing */
	third = match(f, ids(f, KVP_IDS_U32, 4 * T, 2 * T), KVP_MATCH_EXACT, second, &i);
	assert_int_equal(i.n_tokens, 6 * T);
	assert_int_equal(kvp_release(third), 0);
	third = match(f, ids(f, KVP_IDS_U32, 4 * T, 3 * T), KVP_MATCH_EXACT, second, &i);
	assert_int_equal(i.n_tokens + i.flags, 0);
	assert_int_equal(kvp_release(third), 0);
	/* nothing new: the same again */
	third = match(f, ids(f, KVP_IDS_U32, 0, 0), 0, second, &i);
	assert_int_equal(i.n_tokens, 4 * T);
	assert_int_equal(kvp_release(second), 0);
	assert_int_equal(kvp_release(third), 0);
	/* only what was asked anew was asked */
	assert_int_equal(kvp_stats(f->client, &s), 0);
	assert_int_equal(s.tokens_asked, 2 * T + 30 + 2 * T + 12 + 2 * T + 3 * T);
	assert_int_equal(s.tokens_matched, 2 * T + 30 + 2 * T + 12 + 2 * T);
	assert_int_equal(s.lookups, s.hits + s.partial_hits + s.misses);
	assert_int_equal(fake_leases(f->fake), 0);
}

static void test_after_refused(void **state)
{
	struct fixture *f = *state;
	struct kvp_match_opts o = { .size = sizeof(o) };
	struct kvp_put_opts po = { .size = sizeof(po), .timeout_ms = 20000 };
	struct kvp_space_desc d = model;
	struct kvp_prefix *first, *m = NULL;
	struct kvp_prefix_info i;
	struct kvp_space *other;

	d.model = "other";
	assert_int_equal(kvp_space_open(f->client, &d, 20000, &other), 0);
	put(f, ids(f, KVP_IDS_U32, 0, 3 * T));
	first = match(f, ids(f, KVP_IDS_U32, 0, 2 * T), 0, NULL, &i);
	o.after = po.after = first;
	assert_int_equal(kvp_match(other, f->u32 + 2 * T, T, &o, &m), -EINVAL);
	assert_int_equal(kvp_put(other, f->u32, T, 0, &f->view, &po, NULL), -EINVAL);
	o.flags = KVP_MATCH_CLAIM;
	assert_int_equal(kvp_match(f->space, f->u32 + 2 * T, T, &o, &m), -EINVAL);
	o.flags = 0;
	assert_int_equal(kvp_release(first), 0);
	assert_int_equal(kvp_match(f->space, f->u32 + 2 * T, T, &o, &m), -EINVAL);
	assert_int_equal(kvp_put(f->space, f->u32 + 2 * T, T, 0, &f->view, &po, NULL), -EINVAL);
	assert_null(m);
	kvp_space_close(other);
}

/* Without a lease nothing stays: what has gone is noticed, and nothing hangs in the air. */
static void test_after_unleased(void **state)
{
	struct fixture *f = *state;
	struct kvp_put_opts po = { .size = sizeof(po), .timeout_ms = 20000 };
	struct kvp_prefix *held[KVP_CLIENT_LEASES], *loose, *m;
	struct kvp_prefix_info i;
	uint32_t n;

	put(f, ids(f, KVP_IDS_U32, 0, 4 * T));
	for (n = 0; n < KVP_CLIENT_LEASES; n++)
		held[n] = match(f, ids(f, KVP_IDS_U32, 0, T), 0, NULL, &i);
	loose = match(f, ids(f, KVP_IDS_U32, 0, 3 * T), 0, NULL, &i);
	assert_int_equal(i.n_blocks, 3);
	assert_int_equal(i.flags, 0);
	po.after = loose;
	/* as long as it is there it can be gone on from */
	kvp_release(held[--n]);
	m = match(f, ids(f, KVP_IDS_U32, 3 * T, T), 0, loose, &i);
	assert_int_equal(i.n_blocks, 4);
	assert_true(i.flags & KVP_MATCHED_LEASED);
	kvp_release(m);
	assert_true(fake_evict(f->fake, 3));
	assert_int_equal(kvp_put(f->space, f->u32 + 3 * T, T, 0, &f->view, &po, NULL), T);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	kvp_release(match(f, ids(f, KVP_IDS_U32, 0, 4 * T), 0, NULL, &i));
	assert_int_equal(i.n_blocks, 4);
	assert_int_equal(kvp_delete(f->space, f->u32, 4 * T, 20000), 4);
	kvp_release(match(f, ids(f, KVP_IDS_U32, 0, 4 * T), 0, NULL, &i));
	assert_int_equal(i.n_blocks, 1); /* the others hold it */
	m = match(f, ids(f, KVP_IDS_U32, 3 * T, T), 0, loose, &i);
	assert_int_equal(i.n_blocks, 1);
	assert_int_equal(i.n_tokens, T);
	kvp_release(m);
	assert_int_equal(kvp_put(f->space, f->u32 + 3 * T, T, 0, &f->view, &po, NULL), -ENOENT);
	assert_int_equal(kvp_release(loose), 0);
	while (n)
		kvp_release(held[--n]);
}

/* A prefix of a former daemon's: an empty match, and a put that says so. */
static void test_after_the_dead(void **state)
{
	struct fixture *f = *state;
	struct kvp_put_opts po = { .size = sizeof(po), .timeout_ms = 20000 };
	struct kvp_prefix *first, *empty, *m;
	struct kvp_prefix_info i;
	char path[64];

	put(f, ids(f, KVP_IDS_U32, 0, 3 * T));
	first = match(f, ids(f, KVP_IDS_U32, 0, 2 * T), 0, NULL, &i);
	empty = match(f, ids(f, KVP_IDS_U32, 7, T), 0, NULL, &i);
	assert_int_equal(i.n_tokens, 0);
	strcpy(path, f->fake->path);
	f->fake = fake_stop(f->fake);
	assert_true(fake_await_attached(f->client, 0));
	po.after = first;
	for (uint32_t joined = 0; joined < 2; joined++) {
		kvp_release(match(f, ids(f, KVP_IDS_I64, 2 * T, T), 0, first, &i));
		assert_int_equal(i.n_tokens + i.flags, 0);
		/* nor are its tokens taken for a sequence's first */
		assert_int_equal(
			kvp_put(f->space, f->u32 + 2 * T, T, 0, &f->view, &po, NULL), -ESHUTDOWN);
		check_bytes(f, first, 2 * T);
		if (joined)
			break;
		f->fake = fake_start(path);
		assert_true(fake_await_attached(f->client, 1));
		put(f, ids(f, KVP_IDS_U32, 2 * T, 2 * T));
	}
	/* one that has no blocks has nothing of the former daemon's */
	m = match(f, ids(f, KVP_IDS_U32, 2 * T, 2 * T), 0, empty, &i);
	assert_int_equal(i.n_tokens, 2 * T);
	kvp_release(m);
	kvp_release(empty);
	assert_int_equal(kvp_release(first), 0);
}

#define WITH_DAEMON(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(test_widths),
		WITH_DAEMON(test_miss),
		WITH_DAEMON(test_refused),
		WITH_DAEMON(test_refused_anywhere),
		WITH_DAEMON(test_claim),
		WITH_DAEMON(test_after),
		WITH_DAEMON(test_after_refused),
		WITH_DAEMON(test_after_unleased),
		WITH_DAEMON(test_after_the_dead),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
