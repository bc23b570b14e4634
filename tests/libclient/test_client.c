/* SPDX-License-Identifier: Apache-2.0 */
/* The library's calls against a small daemon in a thread of this process. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "libclient/match.h"
#include "tests/libclient/fake.h"

#define T      16u
#define TOKENS (8 * T + 5)

static const struct kvp_layer two_layers[2] = {
	{ .index = 0, .kv_heads = 2, .k_dim = 8, .v_dim = 8 },
	{ .index = 1, .kv_heads = 2, .k_dim = 8, .v_dim = 4 },
};

static const struct kvp_space_desc model = {
	.size = sizeof(model),
	.model = "unit",
	.dtype = KVP_DTYPE_F32,
	.layout = KVP_LAYOUT_LCND,
	.block_tokens = T,
	.n_layers = 2,
	.layers = two_layers,
	.rope_pairing = KVP_ROPE_HALF_SPLIT,
	.rope_dim = 8,
	.rope_theta = 10000,
};

#define TOKEN_BYTES (4u * 2 * (8 + 8 + 8 + 4))

struct fixture {
	struct fake *fake;
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t tokens[TOKENS];
	uint8_t kv[TOKENS * TOKEN_BYTES];
	struct kvp_view_plane planes[2];
	struct kvp_view view;
};

static struct kvp_client *open_client(struct fake *fake, uint32_t timeout_ms)
{
	struct kvp_open_opts o = {
		.size = sizeof(o),
		.socket = fake->path,
		.default_timeout_ms = timeout_ms,
	};
	struct kvp_client *c;

	assert_int_equal(kvp_open(&o, &c), 0);
	return c;
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	uint64_t bytes;

	f->fake = fake_start(NULL);
	f->client = open_client(f->fake, 20000);
	assert_int_equal(kvp_space_open(f->client, &model, KVP_DEFAULT_TIMEOUT, &f->space), 0);
	for (uint32_t i = 0; i < TOKENS; i++)
		f->tokens[i] = 100 + i * 3;
	for (size_t i = 0; i < sizeof(f->kv); i++)
		f->kv[i] = (uint8_t)(i * 31 % 253);
	assert_int_equal(
		kvp_view_dense(f->space, KVP_VIEW_NCLD, f->kv, TOKENS, f->planes, &bytes), 0);
	assert_int_equal(bytes, sizeof(f->kv));
	f->view = (struct kvp_view){ .size = sizeof(f->view), .planes = f->planes };
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

static int64_t put(struct fixture *f, size_t n, uint32_t flags)
{
	struct kvp_put_opts o = { .size = sizeof(o), .flags = flags, .timeout_ms = 20000 };

	return kvp_put(f->space, f->tokens, n, 0, &f->view, &o, NULL);
}

static void put_and_flush(struct fixture *f, size_t n, uint32_t flags)
{
	assert_int_equal(put(f, n, flags), flags & KVP_PUT_PARTIAL ? n : n / T * T);
	assert_int_equal(kvp_flush(f->client, KVP_DEFAULT_TIMEOUT), 0);
}

static struct kvp_prefix *match(struct kvp_space *space, const uint32_t *tokens, size_t n,
	uint32_t flags, struct kvp_prefix_info *ret_info)
{
	struct kvp_match_opts o = {
		.size = sizeof(o), .flags = flags, .timeout_ms = KVP_DEFAULT_TIMEOUT
	};
	struct kvp_prefix *m;

	ret_info->size = sizeof(*ret_info);
	assert_int_equal(kvp_match(space, tokens, n, &o, &m), 0);
	assert_int_equal(kvp_match_info(m, ret_info), 0);
	return m;
}

/* All the tokens that a match says it has come back as they were put. */
static void check_content(struct fixture *f, struct kvp_prefix *m, uint32_t n)
{
	uint8_t *back = malloc(n * TOKEN_BYTES + 1);
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	uint64_t bytes;

	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, back, n, planes, &bytes), 0);
	assert_int_equal(kvp_get(m, 0, n, &v, KVP_GET_VERIFY), n);
	assert_memory_equal(back, f->kv, n * TOKEN_BYTES);
	free(back);
}

/* C-027, C-029, C-030, C-033, E-013: put, flush, match the longest prefix, get without a hole. */
static void test_put_match_get(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	/* E-021: who only asks leaves nothing behind. */
	m = match(f->space, f->tokens, TOKENS, 0, &i);
	assert_int_equal(i.n_tokens + i.tail_tokens + i.flags, 0);
	assert_int_equal(kvp_release(m), 0);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	assert_int_equal(fake_blocks(f->fake), 0);

	/* C-030: whole blocks only, the rest is ignored. */
	put_and_flush(f, TOKENS, 0);
	m = match(f->space, f->tokens, TOKENS, 0, &i);
	assert_int_equal(i.n_blocks, 8);
	assert_int_equal(i.n_tokens, 8 * T);
	assert_int_equal(i.flags, KVP_MATCHED_LEASED);
	check_content(f, m, 8 * T);
	assert_int_equal(kvp_get(m, 8 * T, 100, &f->view, 0), 0);
	memset(f->kv, 0, sizeof(f->kv));
	assert_int_equal(kvp_get(m, 0, TOKENS, &f->view, 0), 8 * T);
	for (size_t b = 0; b < 8 * T * TOKEN_BYTES; b++)
		assert_int_equal(f->kv[b], (uint8_t)(b * 31 % 253));
	assert_int_equal(kvp_release(m), 0);

	m = match(f->space, f->tokens, 3 * T + 7, 0, &i);
	assert_int_equal(i.n_tokens, 3 * T);
	assert_int_equal(i.tail_tokens, 0); /* 7 tokens are too few to name a family */
	assert_int_equal(kvp_release(m), 0);

	m = match(f->space, f->tokens, 3 * T + 9, 0, &i);
	assert_int_equal(i.n_tokens, 3 * T);
	assert_int_equal(i.tail_tokens, 9);
	check_content(f, m, 3 * T + 9);
	assert_int_equal(kvp_release(m), 0);

	m = match(f->space, f->tokens, 3 * T + 9, KVP_MATCH_NO_TAIL, &i);
	assert_int_equal(i.tail_tokens, 0);
	assert_int_equal(kvp_release(m), 0);
}

/* A partial last block: found when it equals all that is left, and as a tail otherwise. */
static void test_partial(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	struct kvp_ref ref;

	f->tokens[2 * T + 9] = 77;
	put_and_flush(f, 2 * T + 9, KVP_PUT_PARTIAL);
	m = match(f->space, f->tokens, 2 * T + 9, 0, &i);
	assert_int_equal(i.n_blocks, 3);
	assert_int_equal(i.n_tokens, 2 * T + 9);
	check_content(f, m, 2 * T + 9);
	assert_int_equal(kvp_match_ref(m, 3, &ref), -EINVAL); /* nothing follows a partial block */
	assert_int_equal(kvp_match_ref(m, 2, &ref), 0);
	assert_int_equal(kvp_match_ref(m, 4, &ref), -EINVAL);
	assert_int_equal(kvp_release(m), 0);
	m = match(f->space, f->tokens, 3 * T, 0, &i);
	assert_int_equal(i.n_blocks, 2);
	assert_int_equal(i.tail_tokens, 9);
	check_content(f, m, 2 * T + 9);
	assert_int_equal(kvp_release(m), 0);
	/* Put again, longer: what is there is not stored twice. */
	put_and_flush(f, 4 * T, 0);
	assert_int_equal(fake_blocks(f->fake), 5);
}

/* E-013: EXACT is all or nothing. */
static void test_exact(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	put_and_flush(f, 4 * T, 0);
	kvp_release(match(f->space, f->tokens, 4 * T, KVP_MATCH_EXACT, &i));
	assert_int_equal(i.n_tokens, 4 * T);
	kvp_release(match(f->space, f->tokens, 5 * T, KVP_MATCH_EXACT, &i));
	assert_int_equal(i.n_tokens, 0);
	assert_int_equal(i.flags, 0);
	assert_int_equal(fake_leases(f->fake), 0);
	/* Nothing is taken, yet the claim is on what is missing. */
	m = match(f->space, f->tokens, 5 * T, KVP_MATCH_EXACT | KVP_MATCH_CLAIM, &i);
	assert_int_equal(i.n_tokens, 0);
	assert_int_equal(i.flags, KVP_MATCHED_CLAIMED);
	assert_int_equal(m->front, 4);
	assert_int_equal(fake_leases(f->fake), 0);
	kvp_release(m);
}

/* C-024: handles share storage with the pool; a second release is noticed. */
static void test_zero_copy(void **state)
{
	struct fixture *f = *state;
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix_info i;
	struct kvp_prefix *m, *m2;
	const void *first;

	put_and_flush(f, 2 * T, 0);
	m = match(f->space, f->tokens, 2 * T, 0, &i);
	assert_int_equal(kvp_payload(m, 0, &p), 0);
	first = p.addr;
	assert_int_equal(p.bytes, T * TOKEN_BYTES);
	assert_int_equal(p.codec, 0);
	assert_int_equal(p.tokens, T);
	m2 = match(f->space, f->tokens, T, 0, &i);
	assert_int_equal(kvp_payload(m2, 0, &p), 0);
	assert_ptr_equal(p.addr, first);
	assert_int_equal(kvp_payload(m2, 1, &p), -ENOENT);
	assert_int_equal(kvp_release(m2), 0);
	assert_int_equal(kvp_release(m2), -EALREADY);
	assert_int_equal(kvp_release(m), 0);
	assert_int_equal(kvp_release(m), -EALREADY);
	assert_int_equal(kvp_payload(m, 0, &p), -EINVAL);
	assert_int_equal(kvp_release(NULL), 0);
	assert_int_equal(fake_leases(f->fake), 0);
}

/* C-027: what is matched stays, also all above it, until it is released. */
static void test_lease_protects(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	put_and_flush(f, 3 * T, 0);
	m = match(f->space, f->tokens, 3 * T, 0, &i);
	assert_false(fake_evict(f->fake, 2));
	kvp_release(m);
	assert_true(fake_evict(f->fake, 2));
	kvp_release(match(f->space, f->tokens, 3 * T, 0, &i));
	assert_int_equal(i.n_blocks, 2);
}

/* All lease slots taken: matches without a lease, which kvp_get() may read and nothing else. */
static void test_out_of_leases(void **state)
{
	enum { ALL = KVP_LEASES };
	struct fixture *f = *state;
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix *held[ALL], *m;
	struct kvp_prefix_info i;
	uint8_t back[T * TOKEN_BYTES];
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	struct kvp_counters s = { .size = sizeof(s) };
	uint64_t bytes;

	put_and_flush(f, T, 0);
	for (uint32_t n = 0; n < ALL; n++) {
		held[n] = match(f->space, f->tokens, T, 0, &i);
		assert_int_equal(i.flags, KVP_MATCHED_LEASED);
	}
	assert_int_equal(fake_leases(f->fake), ALL);
	m = match(f->space, f->tokens, T, 0, &i);
	assert_int_equal(i.n_blocks, 1);
	assert_int_equal(i.flags, 0);
	assert_int_equal(kvp_payload(m, 0, &p), -ENOLCK);
	check_content(f, m, T);
	for (uint32_t n = 0; n < ALL; n++)
		assert_int_equal(kvp_release(held[n]), 0);
	/* It may go now, and then a copy says so. */
	assert_true(fake_evict(f->fake, 0));
	kvp_view_dense(f->space, KVP_VIEW_NCLD, back, T, planes, &bytes);
	assert_int_equal(kvp_get(m, 0, T, &v, 0), -ESTALE);
	assert_int_equal(kvp_release(m), 0);
	assert_int_equal(kvp_stats(f->client, &s), 0);
	assert_int_equal(s.unleased, 1);
}

/* C-026: slots in shared memory, written in place; without room a hint when to ask again. */
static void test_reserve_commit(void **state)
{
	struct fixture *f = *state;
	struct kvp_grant *g[FAKE_SLOTS + 1];
	struct kvp_ref ref = kvp_ref_root();
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	uint32_t retry = 0;

	for (uint32_t b = 0; b < 3; b++) {
		assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g[b]), 0);
		assert_int_equal(kvp_grant_ref(g[b], &ref), -EINVAL);
		memset(kvp_grant_addr(g[b]), 0x10 + (int)b, T * TOKEN_BYTES);
		if (b)
			assert_int_equal(kvp_grant_ref(g[b - 1], &ref), 0);
		assert_int_equal(kvp_commit(g[b], ref, f->tokens + b * T, T, NULL, 0), 0);
		assert_int_equal(kvp_commit(g[b], ref, f->tokens + b * T, T, NULL, 0), -EALREADY);
	}
	assert_int_equal(kvp_grant_wait(g[2], 20000), 0);
	m = match(f->space, f->tokens, 3 * T, 0, &i);
	assert_int_equal(i.n_blocks, 3);
	for (uint32_t b = 0; b < 3; b++) {
		struct kvp_payload_info p = { .size = sizeof(p) };

		assert_int_equal(kvp_payload(m, b, &p), 0);
		assert_ptr_equal(p.addr, kvp_grant_addr(g[b]));
		assert_int_equal(((const uint8_t *)p.addr)[5], 0x10 + b);
	}
	/* The same again is a duplicate; the slot stays readable all the same. */
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g[3]), 0);
	assert_int_equal(kvp_commit(g[3], kvp_ref_root(), f->tokens, T, NULL, 0), 0);
	assert_int_equal(kvp_grant_wait(g[3], 20000), KVP_COMMITTED_DUPLICATE);
	assert_int_equal(kvp_grant_release(g[3]), 0);
	assert_int_equal(kvp_grant_release(g[3]), -EALREADY);
	kvp_release(m);
	for (uint32_t b = 0; b < 3; b++)
		assert_int_equal(kvp_grant_release(g[b]), 0);

	for (uint32_t b = 0; b < FAKE_SLOTS - 3; b++)
		assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g[b]), 0);
	assert_int_equal(kvp_reserve(f->space, 20, &retry, &g[FAKE_SLOTS]), -EAGAIN);
	assert_int_equal(retry, 3);
	assert_int_equal(kvp_reserve(f->space, 0, &retry, &g[FAKE_SLOTS]), -EAGAIN);
	for (uint32_t b = 0; b < FAKE_SLOTS - 3; b++)
		assert_int_equal(kvp_grant_release(g[b]), 0);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	assert_int_equal(fake_granted(f->fake), 0);
}

/* A parent that is gone or was refused: the commit is refused, the chain above stays. */
static void test_orphan_commit(void **state)
{
	struct fixture *f = *state;
	struct kvp_grant *g, *g2;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	struct kvp_ref ref;

	put_and_flush(f, 2 * T, 0);
	m = match(f->space, f->tokens, 2 * T, 0, &i);
	assert_int_equal(kvp_match_ref(m, 2, &ref), 0);
	kvp_release(m);
	assert_true(fake_evict(f->fake, 1));
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g2), 0);
	assert_int_equal(kvp_commit(g, ref, f->tokens + 2 * T, T, NULL, 0), 0);
	assert_int_equal(kvp_grant_ref(g, &ref), 0);
	assert_int_equal(kvp_commit(g2, ref, f->tokens + 3 * T, T, NULL, 0), 0);
	assert_int_equal(kvp_grant_wait(g, 20000), -ECANCELED);
	assert_int_equal(kvp_grant_wait(g2, 20000), -ECANCELED);
	kvp_grant_release(g);
	kvp_grant_release(g2);
}

/* C-058: the caller's buffer is its own again when kvp_put() returns. */
static void test_put_copies(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	uint8_t *kept = malloc(sizeof(f->kv));

	memcpy(kept, f->kv, sizeof(f->kv));
	assert_int_equal(put(f, 8 * T, 0), 8 * T);
	memset(f->kv, 0, sizeof(f->kv));
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	memcpy(f->kv, kept, sizeof(f->kv));
	m = match(f->space, f->tokens, 8 * T, 0, &i);
	assert_int_equal(i.n_blocks, 8);
	check_content(f, m, 8 * T);
	kvp_release(m);
	free(kept);
}

/*
 * C-056, E-020: a put says the whole sequence, where it begins and how much; only the tokens after
 * the match need be given. C-055's other half: what was matched is not stored again.
 */
static void test_put_from(void **state)
{
	struct fixture *f = *state;
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = 20000 };
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	uint64_t bytes;

	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_NCLD, f->kv + 3 * T * TOKEN_BYTES,
				 TOKENS - 3 * T, planes, &bytes),
		0);
	assert_int_equal(kvp_put(f->space, f->tokens, 8 * T, 3 * T, &v, &o, NULL), -ENOENT);
	assert_int_equal(put(f, 3 * T, 0), 3 * T);
	/* At once, with no flush between: the parent is on its way. */
	assert_int_equal(kvp_put(f->space, f->tokens, 8 * T, 3 * T, &v, &o, NULL), 5 * T);
	assert_int_equal(kvp_put(f->space, f->tokens, 8 * T, 3 * T + 1, &v, &o, NULL), -EINVAL);
	assert_int_equal(kvp_put(f->space, f->tokens, 2 * T, 3 * T, &v, &o, NULL), -EINVAL);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	m = match(f->space, f->tokens, 8 * T, 0, &i);
	assert_int_equal(i.n_blocks, 8);
	check_content(f, m, 8 * T);
	kvp_release(m);
	assert_int_equal(fake_blocks(f->fake), 8);
	assert_int_equal(put(f, 8 * T, 0), 8 * T);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	assert_int_equal(fake_blocks(f->fake), 8);
	assert_int_equal(kvp_put(f->space, f->tokens, 8 * T, 8 * T, &v, &o, NULL), 0);
}

/* What the daemon looks at just now is there or not in a moment; a put that begins after it is to ask again. */
static void test_put_after_marked(void **state)
{
	struct fixture *f = *state;
	struct kvp_client *other = open_client(f->fake, 20000);
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = 20000 };
	struct kvp_space *space;
	struct kvp_prefix_info i;
	uint32_t retry_ms = 0;
	struct kvp_prefix *m;
	kvp_block_id id;
	uint64_t word;

	put_and_flush(f, 3 * T, 0);
	assert_int_equal(kvp_space_open(other, &model, KVP_DEFAULT_TIMEOUT, &space), 0);
	m = match(space, f->tokens, 3 * T, 0, &i);
	id = m->hits[2].id;
	kvp_release(m);
	pthread_mutex_lock(&f->fake->lock);
	word = kvp_block_mark(&f->fake->v, id);
	pthread_mutex_unlock(&f->fake->lock);
	assert_true(word);
	assert_int_equal(kvp_put(space, f->tokens, 8 * T, 3 * T, &f->view, &o, &retry_ms), -EAGAIN);
	assert_true(retry_ms > 0);
	pthread_mutex_lock(&f->fake->lock);
	kvp_block_unmark(&f->fake->v, id, word);
	pthread_mutex_unlock(&f->fake->lock);
	assert_int_equal(kvp_put(space, f->tokens, 8 * T, 3 * T, &f->view, &o, NULL), 5 * T);
	assert_int_equal(kvp_flush(other, 20000), 0);
	assert_true(f->tokens[0]++);
	assert_int_equal(kvp_put(space, f->tokens, 8 * T, 3 * T, &f->view, &o, NULL), -ENOENT);
	kvp_space_close(space);
	kvp_close(other);
}

/* No room: as much as fits, then -EAGAIN with a hint; what was stored is whole. */
static void test_put_full(void **state)
{
	struct fixture *f = *state;
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = 30 };
	struct kvp_prefix_info i;
	uint32_t retry = 0;

	SET(f->fake, room, 3);
	assert_int_equal(kvp_put(f->space, f->tokens, 8 * T, 0, &f->view, &o, &retry), 3 * T);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	kvp_release(match(f->space, f->tokens, 8 * T, KVP_MATCH_NO_TAIL, &i));
	assert_int_equal(i.n_blocks, 3);
	f->tokens[0]++;
	assert_int_equal(kvp_put(f->space, f->tokens, 8 * T, 0, &f->view, &o, &retry), -EAGAIN);
	assert_int_equal(retry, 3);
}

/* C-031: a view that does not fit is refused and nothing is stored. */
static void test_put_refused(void **state)
{
	struct fixture *f = *state;
	struct kvp_view v = f->view;

	v.n_layers = 1;
	assert_int_equal(kvp_put(f->space, f->tokens, T, 0, &v, NULL, NULL), -EINVAL);
	assert_int_equal(kvp_put(f->space, f->tokens, T, 0, NULL, NULL, NULL), -EINVAL);
	assert_int_equal(kvp_put(f->space, NULL, T, 0, &f->view, NULL, NULL), -EINVAL);
	assert_int_equal(fake_granted(f->fake), 0);
	assert_int_equal(fake_blocks(f->fake), 0);
}

/* E-022: sequences shorter than min_cache_tokens are not kept; at it they are. */
static void test_min_cache_tokens(void **state)
{
	struct fixture *f = *state;
	struct kvp_space_desc d = model;
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = 20000 };
	struct kvp_space *space;

	d.min_cache_tokens = 50;
	assert_int_equal(kvp_space_open(f->client, &d, 20000, &space), 0);
	assert_int_equal(kvp_put(space, f->tokens, 49, 0, &f->view, &o, NULL), 0);
	assert_int_equal(kvp_put(space, f->tokens, 50, 0, &f->view, &o, NULL), 3 * T);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	kvp_space_close(space);
}

/* C-032: deleted sequences miss; what another holds goes when it is released. */
static void test_delete(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	put_and_flush(f, 3 * T, 0);
	m = match(f->space, f->tokens, 3 * T, 0, &i);
	assert_int_equal(kvp_delete(f->space, f->tokens, 3 * T, 20000), 3);
	check_content(f, m, 3 * T);
	kvp_release(m);
	assert_int_equal(kvp_delete(f->space, f->tokens, 3 * T, 20000), 3);
	kvp_release(match(f->space, f->tokens, 3 * T, 0, &i));
	assert_int_equal(i.n_blocks, 0);
	assert_int_equal(kvp_delete(f->space, f->tokens, 3 * T, 20000), 0);
}

/* C-034, C-035: chained keys, one per block, and one for the rest. */
static void test_chunk_keys(void **state)
{
	struct fixture *f = *state;
	struct kvp_digest a[9], b[9];

	assert_int_equal(kvp_chunk_keys(f->space, f->tokens, TOKENS, a, 9), 9);
	assert_int_equal(kvp_chunk_keys(f->space, f->tokens, 4 * T, b, 9), 4);
	assert_memory_equal(a, b, 4 * sizeof(a[0]));
	assert_int_equal(kvp_chunk_keys(f->space, f->tokens, TOKENS, NULL, 0), 9);
	/* One token at the beginning is another: so are the keys of all that comes after it. */
	f->tokens[0]++;
	assert_int_equal(kvp_chunk_keys(f->space, f->tokens, TOKENS, b, 9), 9);
	for (uint32_t i = 0; i < 9; i++)
		assert_memory_not_equal(&a[i], &b[i], sizeof(a[i]));
	assert_int_equal(kvp_chunk_keys(f->space, NULL, 1, b, 9), -EINVAL);
}

/* C-037, C-060: nothing asked for, nothing found, nothing kept. */
static void test_empty(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	m = match(f->space, NULL, 0, 0, &i);
	assert_int_equal(i.n_tokens, 0);
	assert_int_equal(kvp_get(m, 0, 10, &f->view, 0), 0);
	assert_int_equal(kvp_release(m), 0);
	assert_int_equal(kvp_put(f->space, NULL, 0, 0, &f->view, NULL, NULL), 0);
	assert_int_equal(kvp_chunk_keys(f->space, NULL, 0, NULL, 0), 0);
	assert_int_equal(kvp_delete(f->space, NULL, 0, 20000), 0);
	assert_int_equal(fake_leases(f->fake), 0);
}

/* E-017: copy-on-write of a diverging block; the cached one is as it was. */
static void test_fork_copies(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m, *again;
	struct kvp_grant *g;
	struct kvp_ref ref;
	uint32_t other[2 * T];

	put_and_flush(f, 2 * T, 0);
	memcpy(other, f->tokens, sizeof(other));
	for (uint32_t t = T + 10; t < 2 * T; t++)
		other[t] += 1000;
	m = match(f->space, other, 2 * T, 0, &i);
	assert_int_equal(i.n_blocks, 1);
	assert_int_equal(i.tail_tokens, 10);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	memset(kvp_grant_addr(g), 0xdd, T * TOKEN_BYTES);
	assert_int_equal(kvp_fork(m, g), 10);
	assert_int_equal(kvp_match_ref(m, 1, &ref), 0);
	assert_int_equal(kvp_commit(g, ref, other + T, T, NULL, 0), 0);
	assert_int_equal(kvp_fork(m, g), -EINVAL);
	assert_int_equal(kvp_grant_wait(g, 20000), 0);
	kvp_grant_release(g);
	kvp_release(m);
	again = match(f->space, other, 2 * T, 0, &i);
	assert_int_equal(i.n_blocks, 2);
	check_content(f, again, T + 10);
	kvp_release(again);
	again = match(f->space, f->tokens, 2 * T, 0, &i);
	check_content(f, again, 2 * T);
	kvp_release(again);
	/* Without a tail there is nothing to copy. */
	m = match(f->space, f->tokens, T, 0, &i);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	assert_int_equal(kvp_fork(m, g), 0);
	kvp_grant_release(g);
	kvp_release(m);
}

static void *wait_for(void *arg)
{
	return (void *)(intptr_t)kvp_wait(arg, 20000);
}

/* Single flight: one claims, the other sees it, and is woken by the commit. */
static void test_single_flight(void **state)
{
	struct fixture *f = *state;
	struct kvp_client *other = open_client(f->fake, 20000);
	struct kvp_prefix_info i;
	struct kvp_prefix *mine, *theirs;
	struct kvp_space *space;
	pthread_t thread;
	void *result;

	assert_int_equal(kvp_space_open(other, &model, 20000, &space), 0);
	mine = match(f->space, f->tokens, 3 * T, KVP_MATCH_CLAIM, &i);
	assert_int_equal(i.flags, KVP_MATCHED_CLAIMED);
	theirs = match(space, f->tokens, 3 * T, KVP_MATCH_CLAIM, &i);
	assert_int_equal(i.flags, KVP_MATCHED_PENDING);
	assert_int_equal(kvp_wait(mine, 0), -EINVAL);
	assert_int_equal(kvp_wait(theirs, 0), -ETIMEDOUT);
	assert_int_equal(kvp_wait(theirs, 30), -ETIMEDOUT);
	assert_int_equal(pthread_create(&thread, NULL, wait_for, theirs), 0);
	assert_int_equal(put(f, T, 0), T); /* moves the claim on to the second block */
	pthread_join(thread, &result);
	assert_int_equal((intptr_t)result, 0);
	kvp_release(theirs);
	theirs = match(space, f->tokens, 3 * T, KVP_MATCH_CLAIM, &i);
	assert_int_equal(i.n_blocks, 1);
	assert_int_equal(i.flags, KVP_MATCHED_LEASED | KVP_MATCHED_PENDING);
	/* The claimant gives up: whoever waits may claim. */
	assert_int_equal(pthread_create(&thread, NULL, wait_for, theirs), 0);
	assert_int_equal(kvp_release(mine), 0);
	pthread_join(thread, &result);
	assert_int_equal((intptr_t)result, -EAGAIN);
	kvp_release(theirs);
	theirs = match(space, f->tokens, 3 * T, KVP_MATCH_CLAIM, &i);
	assert_int_equal(i.flags, KVP_MATCHED_LEASED | KVP_MATCHED_CLAIMED);
	kvp_release(theirs);
	/* Nothing of whole blocks is missing: nothing to claim. */
	theirs = match(space, f->tokens, T + 5, KVP_MATCH_CLAIM, &i);
	assert_int_equal(i.flags, KVP_MATCHED_LEASED);
	kvp_release(theirs);
	kvp_space_close(space);
	kvp_close(other);
}

/* A claimed chain that is committed grant by grant ends with its last block. */
static void test_claim_by_commit(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	struct kvp_ref ref = kvp_ref_root();
	struct kvp_grant *g[3];
	struct kvp_key key;

	m = match(f->space, f->tokens, 3 * T, KVP_MATCH_CLAIM, &i);
	for (uint32_t b = 0; b < 3; b++) {
		assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g[b]), 0);
		assert_int_equal(kvp_commit(g[b], ref, f->tokens + b * T, T, m, 0), 0);
		assert_int_equal(kvp_grant_wait(g[b], 20000), 0);
		assert_int_equal(kvp_grant_ref(g[b], &ref), 0);
		if (b == 2)
			continue;
		assert_int_equal(kvp_chunk_keys(f->space, f->tokens, 3 * T,
					 (struct kvp_digest[3]){ { 0 } }, 3),
			3);
		key = m->chain[b + 1];
		assert_int_not_equal(kvp_claim_find(&f->fake->v, key, now_ns()), 0);
	}
	for (uint32_t b = 0; b < 3; b++) {
		assert_int_equal(kvp_claim_find(&f->fake->v, m->chain[b], now_ns()), 0);
		kvp_grant_release(g[b]);
	}
	kvp_release(m);
}

/* C-022, C-023, C-018: what a space says of itself. C-014: another subset is another space. */
static void test_space_info(void **state)
{
	struct fixture *f = *state;
	struct kvp_space_props i = { .size = sizeof(i) };
	struct kvp_space_desc d = model;
	struct kvp_space *same, *other;
	uint8_t fingerprint[32];
	struct kvp_prefix_info mi;
	uint64_t bytes;

	assert_int_equal(kvp_space_info(f->space, &i), 0);
	assert_int_equal(i.block_tokens, T);
	assert_int_equal(i.chunk_tokens % T, 0);
	assert_true(i.chunk_tokens >= T);
	assert_int_equal(i.token_bytes, TOKEN_BYTES);
	assert_int_equal(i.block_bytes, T * TOKEN_BYTES);
	assert_int_equal(i.features, KVP_FEATURE_ZERO_COPY | KVP_FEATURE_NON_BLOCKING_PUT);
	assert_int_equal(i.homogeneous, 0);
	assert_int_equal(i.n_layers, 2);
	assert_int_equal(i.attached, 1);
	memcpy(fingerprint, i.fingerprint, 32);
	assert_int_equal(kvp_space_block_bytes(f->space, 0, &bytes), 0);
	assert_int_equal(bytes, T * TOKEN_BYTES);
	assert_int_equal(kvp_space_block_bytes(f->space, 9, &bytes), -EOPNOTSUPP);

	put_and_flush(f, 2 * T, 0);
	assert_int_equal(kvp_space_open(f->client, &model, 20000, &same), 0);
	assert_int_equal(kvp_space_info(same, &i), 0);
	assert_memory_equal(i.fingerprint, fingerprint, 32);
	kvp_release(match(same, f->tokens, 2 * T, 0, &mi));
	assert_int_equal(mi.n_blocks, 2);
	kvp_space_close(same);
	assert_null(kvp_space_close(NULL));

	/* The second pipeline stage holds one layer of its own. */
	d.layers = two_layers + 1;
	d.n_layers = 1;
	assert_int_equal(kvp_space_open(f->client, &d, 20000, &other), 0);
	assert_int_equal(kvp_space_info(other, &i), 0);
	assert_memory_not_equal(i.fingerprint, fingerprint, 32);
	kvp_release(match(other, f->tokens, 2 * T, 0, &mi));
	assert_int_equal(mi.n_blocks, 0);
	kvp_space_close(other);

	/* A caller built against a smaller struct gets what it knows of. */
	i.size = offsetof(struct kvp_space_props, block_bytes);
	i.block_bytes = 42;
	assert_int_equal(kvp_space_info(f->space, &i), 0);
	assert_int_equal(i.block_bytes, 42);
	i.size = 3;
	assert_int_equal(kvp_space_info(f->space, &i), -EINVAL);
}

/* C-013, C-019: descriptions that make no sense. */
static void test_space_refused(void **state)
{
	struct fixture *f = *state;
	struct kvp_space_desc d;
	struct kvp_layer layers[2];
	struct kvp_space *s = NULL;
	char name[200];

	memset(name, 'x', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
#define REFUSED(change, error)                                                       \
	do {                                                                         \
		d = model;                                                           \
		memcpy(layers, two_layers, sizeof(layers));                          \
		d.layers = layers;                                                   \
		change;                                                              \
		assert_int_equal(kvp_space_open(f->client, &d, 20000, &s), (error)); \
		assert_null(s);                                                      \
	} while (0)
	REFUSED(d.size = 2, -EINVAL);
	REFUSED(d.dtype = 0, -EINVAL);
	REFUSED(d.dtype = 99, -EINVAL);
	REFUSED(d.layout = 2, -EINVAL);
	REFUSED(d.block_tokens = 15, -EINVAL);
	REFUSED(d.block_tokens = 513, -EINVAL);
	REFUSED(d.n_layers = 0, -EINVAL);
	REFUSED(d.n_layers = 257, -EINVAL);
	REFUSED(d.layers = NULL, -EINVAL);
	REFUSED(d.model = name, -EINVAL);
	REFUSED(d.rope_scaling = 17, -EINVAL);
	REFUSED(layers[1].index = 0, -EINVAL);
	REFUSED(layers[1].kv_heads = 0, -EINVAL);
	REFUSED(layers[1].k_dim = 0, -EINVAL);
	REFUSED(layers[1].k_dim = 65536, -EINVAL);
	REFUSED((layers[1].k_dim = 65535, layers[1].kv_heads = 65535), -E2BIG);
#undef REFUSED
}

/* C-036, and stats whose lookups are the sum of their parts. */
static void test_stats_and_close(void **state)
{
	struct fixture *f = *state;
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_prefix_info i;
	struct kvp_client *c = open_client(f->fake, 20000);

	assert_null(kvp_close(c));
	assert_null(kvp_close(NULL));
	put_and_flush(f, 2 * T, 0);
	kvp_release(match(f->space, f->tokens, 2 * T, 0, &i));
	kvp_release(match(f->space, f->tokens, 3 * T, 0, &i));
	kvp_release(match(f->space, f->tokens + 1, 3 * T, 0, &i));
	kvp_release(match(f->space, f->tokens, 2 * T, KVP_MATCH_NO_TOUCH, &i));
	assert_int_equal(kvp_stats(f->client, &s), 0);
	assert_int_equal(s.hits, 1);
	assert_int_equal(s.partial_hits, 1);
	assert_int_equal(s.misses, 1);
	assert_int_equal(s.lookups, 3);
	assert_int_equal(s.tokens_asked, 8 * T);
	assert_int_equal(s.tokens_matched, 4 * T);
	assert_int_equal(s.attached, 1);
	assert_int_equal(s.reattached, 0);
	assert_int_equal(s.epoch, f->fake->epoch);
}

/* The daemon dies: what is held stays readable, calls miss; the next daemon is joined. */
static void test_daemon_dies(void **state)
{
	struct fixture *f = *state;
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_prefix_info i;
	struct kvp_prefix *m, *blind;
	struct kvp_grant *g, *g2 = NULL;
	struct kvp_digest key;
	char path[64];

	put_and_flush(f, 3 * T, 0);
	m = match(f->space, f->tokens, 3 * T, 0, &i);
	assert_int_equal(i.n_blocks, 3);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	memset(kvp_grant_addr(g), 1, T * TOKEN_BYTES);
	strcpy(path, f->fake->path);
	f->fake = fake_stop(f->fake);
	assert_true(fake_await_attached(f->client, 0));

	check_content(f, m, 3 * T);
	blind = match(f->space, f->tokens, 3 * T, KVP_MATCH_CLAIM, &i);
	assert_int_equal(i.n_blocks + i.flags, 0);
	assert_int_equal(kvp_release(blind), 0);
	assert_int_equal(put(f, 3 * T, 0), -ESHUTDOWN);
	assert_int_equal(kvp_reserve(f->space, 100, NULL, &g2), -ESHUTDOWN);
	assert_null(g2);
	assert_int_equal(kvp_commit(g, kvp_ref_root(), f->tokens, T, NULL, 0), -ESHUTDOWN);
	assert_int_equal(kvp_flush(f->client, 100), -ESHUTDOWN);
	assert_int_equal(kvp_delete(f->space, f->tokens, T, 100), -ESHUTDOWN);
	assert_int_equal(kvp_chunk_keys(f->space, f->tokens, T, &key, 1), -ESHUTDOWN);

	f->fake = fake_start(path);
	assert_true(fake_await_attached(f->client, 1));
	assert_int_equal(kvp_stats(f->client, &s), 0);
	assert_int_equal(s.reattached, 1);
	assert_int_equal(s.lookups, 2);
	assert_int_equal(s.misses, 1);
	/* Old handles: readable, not committable; the new daemon is empty and usable. */
	assert_int_equal(kvp_payload(m, 2, &p), 0);
	check_content(f, m, 3 * T);
	assert_int_equal(kvp_commit(g, kvp_ref_root(), f->tokens, T, NULL, 0), -ESHUTDOWN);
	put_and_flush(f, 4 * T, 0);
	blind = match(f->space, f->tokens, 4 * T, 0, &i);
	assert_int_equal(i.n_blocks, 4);
	check_content(f, blind, 4 * T);
	assert_int_equal(kvp_release(blind), 0);
	assert_int_equal(kvp_grant_release(g), 0);
	assert_int_equal(kvp_release(m), 0);
	/* With the last handle the old mappings go. */
	for (uint32_t n = 0, in_use = 2; in_use != 1; n++) {
		assert_true(n < 12000);
		usleep(10000);
		client_kick(f->client);
		pthread_mutex_lock(&f->client->ring_lock);
		in_use = 0;
		for (uint32_t a = 0; a < N_ATTACHMENTS; a++)
			in_use += f->client->attachments[a] && f->client->attachments[a]->in_use;
		pthread_mutex_unlock(&f->client->ring_lock);
	}
	assert_int_equal(kvp_stats(f->client, &s), 0);
	assert_int_equal(s.lookups, 3);
}

/* It has answered again when a question gets through. */
static void wait_well(struct kvp_client *client)
{
	for (uint32_t n = 0; n < 120000 && kvp_flush(client, 20000) < 0; n++)
		usleep(5000);
	assert_int_equal(kvp_flush(client, 20000), 0);
}

/* A daemon that does not answer: every call comes back, all but the first at once. */
static void test_silent_daemon(void **state)
{
	struct fixture *f = *state;
	struct kvp_match_opts o = {
		.size = sizeof(o),
		.flags = KVP_MATCH_CLAIM,
		.timeout_ms = 30,
	};
	struct kvp_prefix_info i = { .size = sizeof(i) };
	struct kvp_grant *g, *g2;
	struct kvp_prefix *m;

	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	SET(f->fake, mute, true);
	assert_int_equal(kvp_commit(g, kvp_ref_root(), f->tokens, T, NULL, 0), 0);
	assert_int_equal(kvp_grant_wait(g, 0), -ETIMEDOUT);
	assert_int_equal(kvp_grant_wait(g, 20), -ETIMEDOUT);
	for (uint32_t n = 0; n < 1000; n++) {
		assert_int_equal(kvp_match(f->space, f->tokens, 2 * T, &o, &m), 0);
		assert_int_equal(kvp_match_info(m, &i), 0);
		assert_int_equal(i.flags, 0);
		kvp_release(m);
		o.timeout_ms = 3600 * 1000; /* once the first has waited for nothing */
	}
	assert_int_equal(kvp_flush(f->client, 3600 * 1000), -ETIMEDOUT);
	while (kvp_reserve(f->space, 0, NULL, &g2) == 0)
		kvp_grant_release(g2);
	assert_int_equal(kvp_reserve(f->space, 3600 * 1000, NULL, &g2), -EAGAIN);
	assert_int_equal(kvp_grant_wait(g, 3600 * 1000), -ETIMEDOUT);
	/* It wakes up: what was asked for has been done, the late claim included. */
	SET(f->fake, mute, false);
	wait_well(f->client);
	assert_int_equal(kvp_grant_wait(g, 20000), 0);
	kvp_grant_release(g);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	pthread_mutex_lock(&f->fake->lock);
	for (uint32_t n = 0; n < KVP_MAX_CLAIMS; n++)
		assert_int_equal(kvp_load_relaxed(&f->fake->v.claims[n].session), 0);
	pthread_mutex_unlock(&f->fake->lock);
}

/* A commit that nobody has answered when the daemon dies: a caller that only looks hears of it too. */
static void test_grant_of_the_dead(void **state)
{
	struct fixture *f = *state;
	struct kvp_grant *g;
	char path[64];

	strcpy(path, f->fake->path);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	SET(f->fake, mute, true);
	assert_int_equal(kvp_commit(g, kvp_ref_root(), f->tokens, T, NULL, 0), 0);
	assert_int_equal(kvp_grant_wait(g, 0), -ETIMEDOUT);
	f->fake = fake_stop(f->fake);
	assert_true(fake_await_attached(f->client, 0));
	assert_int_equal(kvp_grant_wait(g, 0), -ESHUTDOWN);
	assert_int_equal(kvp_grant_wait(g, 20000), -ESHUTDOWN);
	kvp_grant_release(g);
	f->fake = fake_start(path);
}

static uint32_t commits_of(struct kvp_client *c)
{
	struct attachment *att;
	uint32_t n;

	pthread_mutex_lock(&c->ring_lock);
	att = kvp_load_seq(&c->att);
	n = att ? att->commit_serial : 0;
	pthread_mutex_unlock(&c->ring_lock);
	return n;
}

static void *stop_after_a_commit(void *fixture)
{
	struct fixture *f = fixture;

	while (!commits_of(f->client))
		usleep(1000);
	f->fake = fake_stop(f->fake);
	return NULL;
}

/* A put whose daemon dies before it is through has stored nothing, whatever it has handed over. */
static void test_put_of_the_dead(void **state)
{
	struct fixture *f = *state;
	struct kvp_grant *g[2];
	pthread_t thread;
	char path[64];

	strcpy(path, f->fake->path);
	/* the second time more is asked for than one: slots are left for the put, not for all of it */
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g[0]), 0);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g[1]), 0);
	SET(f->fake, mute, true);
	assert_int_equal(pthread_create(&thread, NULL, stop_after_a_commit, f), 0);
	assert_int_equal(put(f, 8 * T, 0), -ESHUTDOWN);
	pthread_join(thread, NULL);
	kvp_grant_release(g[0]);
	kvp_grant_release(g[1]);
	f->fake = fake_start(path);
}

/* What was stored at a daemon that has gone is not there, and the reason is told for that alone. */
static void test_outcome_after_another_daemon(void **state)
{
	struct fixture *f = *state;
	char path[64];
	int why = 1;

	put_and_flush(f, 3 * T, 0);
	strcpy(path, f->fake->path);
	f->fake = fake_stop(f->fake);
	assert_true(fake_await_attached(f->client, 0));
	f->fake = fake_start(path);
	assert_true(fake_await_attached(f->client, 1));
	assert_int_equal(kvp_put_outcome(f->space, f->tokens, 3 * T, 0, 20000, &why), 0);
	assert_int_equal(why, -ESHUTDOWN);
	assert_int_equal(kvp_put_outcome(f->space, f->tokens + 1, 3 * T, 0, 20000, &why), 0);
	assert_int_equal(why, 0);
	/* A part of it is stored again: the first block that is not is still one of those. */
	put_and_flush(f, 2 * T, 0);
	assert_int_equal(kvp_put_outcome(f->space, f->tokens, 3 * T, 0, 20000, &why), 2 * T);
	assert_int_equal(why, -ESHUTDOWN);
	put_and_flush(f, 3 * T, 0);
	assert_int_equal(kvp_put_outcome(f->space, f->tokens, 3 * T, 0, 20000, &why), 3 * T);
	assert_int_equal(why, 0);
}

/* A daemon that has no room for the answer to an open space right now is asked again: the space is not closed for ever. */
static void test_daemon_that_is_busy(void **state)
{
	struct fixture *f = *state;
	char path[64];

	strcpy(path, f->fake->path);
	f->fake = fake_stop(f->fake);
	assert_true(fake_await_attached(f->client, 0));
	f->fake = fake_start_busy(path, 1);
	assert_true(fake_await_attached(f->client, 1));
	put_and_flush(f, 3 * T, 0);
}

static uint32_t opens_of(struct fake *fake)
{
	uint32_t n = 0;

	pthread_mutex_lock(&fake->lock);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		n += fake->opens[i];
	pthread_mutex_unlock(&fake->lock);
	return n;
}

static atomic_uint asleep, awake;

static void sleep_on(int signal)
{
	(void)signal;
	atomic_store(&asleep, 1);
	while (!atomic_load(&awake))
		;
}

static void *open_another(void *fixture)
{
	struct fixture *f = fixture;
	struct kvp_space_desc d = model;
	struct kvp_space *space;

	d.model = "another";
	assert_int_equal(kvp_space_open(f->client, &d, 60000, &space), -ESHUTDOWN);
	return NULL;
}

/* Who was opening a space when the daemon died, and sleeps on while the next one is there already: it is open nowhere. */
static void test_opening_over_two_daemons(void **state)
{
	const struct sigaction on = { .sa_handler = sleep_on };
	struct fixture *f = *state;
	struct sigaction was;
	pthread_t thread;
	char path[64];

	assert_int_equal(sigaction(SIGUSR1, &on, &was), 0);
	SET(f->fake, silent_opens, 1);
	assert_int_equal(pthread_create(&thread, NULL, open_another, f), 0);
	for (uint32_t left = 1; left; usleep(1000)) {
		pthread_mutex_lock(&f->fake->lock);
		left = f->fake->silent_opens;
		pthread_mutex_unlock(&f->fake->lock);
	}
	assert_int_equal(pthread_kill(thread, SIGUSR1), 0);
	while (!atomic_load(&asleep))
		usleep(1000);
	strcpy(path, f->fake->path);
	f->fake = fake_stop(f->fake);
	assert_true(fake_await_attached(f->client, 0));
	f->fake = fake_start(path);
	assert_true(fake_await_attached(f->client, 1));
	assert_int_equal(opens_of(f->fake), 2);
	atomic_store(&awake, 1);
	assert_int_equal(pthread_join(thread, NULL), 0);
	for (uint32_t n = 0; opens_of(f->fake) != 1; n++) {
		assert_true(n < 20000);
		usleep(1000);
	}
	assert_int_equal(sigaction(SIGUSR1, &was, NULL), 0);
}

/* A daemon that does not read its socket costs one timeout, not one a call, as with the rings. */
static void test_stopped_control(void **state)
{
	struct fixture *f = *state;
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_space_desc d = model;
	struct kvp_space *space;

	d.model = "another";
	pthread_mutex_lock(&f->fake->lock); /* it stops here */
	assert_int_equal(kvp_space_open(f->client, &d, 0, &space), -ETIMEDOUT);
	for (uint32_t i = 0; i < 1000; i++)
		assert_int_equal(kvp_space_open(f->client, &d, 3600 * 1000, &space), -ETIMEDOUT);
	assert_int_equal(kvp_stats(f->client, &s), 0);
	assert_int_equal(s.timeouts, 1);
	assert_int_equal(s.stuck, 1);
	pthread_mutex_unlock(&f->fake->lock);
	/* The late answer says that it is well again; what it opened has no user and is closed. */
	for (uint32_t n = 0; s.stuck || opens_of(f->fake) != 1; n++) {
		assert_true(n < 120000);
		usleep(1000);
		assert_int_equal(kvp_stats(f->client, &s), 0);
	}
	assert_int_equal(kvp_space_open(f->client, &d, 20000, &space), 0);
	kvp_space_close(space);
}

/* A socket without room makes no call wait, and nothing that had no room there is lost. */
static void test_full_socket(void **state)
{
	struct fixture *f = *state;
	struct kvp_client *other;
	struct kvp_space *space[KVP_MAX_SPACES - 1], *theirs;
	struct kvp_space_desc d = model;
	struct kvp_prefix_info i;
	int least = 1;
	char name[16];

	SET(f->fake, hold_extents, true);
	other = open_client(f->fake, 20000);
	assert_int_equal(kvp_space_open(other, &model, 20000, &theirs), 0);
	put_and_flush(f, 2 * T, 0);
	d.model = name;
	for (uint32_t k = 0; k < ARRAY_SIZE(space); k++) {
		snprintf(name, sizeof(name), "model-%u", k);
		assert_int_equal(kvp_space_open(other, &d, 20000, &space[k]), 0);
	}
	assert_int_equal(setsockopt(kvp_load_seq(&other->att)->sock, SOL_SOCKET, SO_SNDBUF, &least,
				 sizeof(least)),
		0);
	pthread_mutex_lock(&f->fake->lock); /* it stops here */
	for (uint32_t k = 0; k < ARRAY_SIZE(space); k++)
		kvp_space_close(space[k]);
	kvp_release(
		match(theirs, f->tokens, 2 * T, 0, &i)); /* wants an extent that is not mapped */
	assert_int_equal(i.n_blocks, 0);
	usleep(20000);
	pthread_mutex_unlock(&f->fake->lock);
	for (uint32_t n = 0; opens_of(f->fake) != 2 || !i.n_blocks; n++) {
		assert_true(n < 120000);
		usleep(1000);
		kvp_release(match(theirs, f->tokens, 2 * T, 0, &i));
	}
	kvp_space_close(theirs);
	kvp_close(other);
}

/* A put waits no longer than it was told for room in the ring either. */
static void test_full_ring(void **state)
{
	struct fixture *f = *state;
	struct kvp_client *other = open_client(f->fake, 3600 * 1000);
	struct kvp_view_plane planes[8];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	uint8_t data[8 * T * TOKEN_BYTES] = { 0 };
	struct kvp_space *space;
	struct kvp_grant *g[2];
	uint64_t bytes;

	assert_int_equal(kvp_space_open(other, &model, 20000, &space), 0);
	kvp_view_dense(space, KVP_VIEW_NCLD, data, 8 * T, planes, &bytes);
	assert_int_equal(kvp_put(space, f->tokens + T, 8 * T, 0, &v, NULL, NULL), 8 * T);
	assert_int_equal(kvp_flush(other, 20000), 0);
	/* the second time more is asked for than one: a slot is left for the put */
	assert_int_equal(kvp_reserve(space, 20000, NULL, &g[0]), 0);
	assert_int_equal(kvp_reserve(space, 20000, NULL, &g[1]), 0);
	SET(f->fake, mute, true);
	assert_int_equal(kvp_flush(other, 0), -ETIMEDOUT);
	for (uint32_t n = 0; n < KVP_SQ_ENTRIES / 8 + 2; n++)
		assert_int_equal(kvp_delete(space, f->tokens + T, 8 * T, 0), -ETIMEDOUT);
	assert_int_equal(kvp_put(space, f->tokens, T, 0, &v, NULL, NULL), -EAGAIN);
	SET(f->fake, mute, false);
	wait_well(other);
	assert_int_equal(kvp_put(space, f->tokens, T, 0, &v, NULL, NULL), T);
	assert_int_equal(kvp_flush(other, 20000), 0);
	kvp_grant_release(g[0]);
	kvp_grant_release(g[1]);
	kvp_close(other);
}

/* An extent that the client does not know is a miss, asked for in the background. */
static void test_unknown_extent(void **state)
{
	struct fixture *f = *state;
	struct kvp_client *other;
	struct kvp_space *space;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;

	SET(f->fake, hold_extents, true);
	other = open_client(f->fake, 20000);
	assert_int_equal(kvp_space_open(other, &model, 20000, &space), 0);
	put_and_flush(f, 2 * T, 0);
	kvp_release(match(space, f->tokens, 2 * T, 0, &i));
	assert_int_equal(i.n_blocks, 0);
	assert_int_equal(i.flags, 0);
	for (uint32_t n = 0; n < 12000 && !i.n_blocks; n++) {
		usleep(5000);
		m = match(space, f->tokens, 2 * T, 0, &i);
		if (i.n_blocks)
			check_content(f, m, 2 * T);
		kvp_release(m);
	}
	assert_int_equal(i.n_blocks, 2);
	assert_int_equal(f->fake->extent_gets, 1);
	kvp_space_close(space);
	kvp_close(other);
}

/*
 * A retired extent is let go when nobody can still be looking into it and no grant is left there; a
 * leased match elsewhere does not keep it.
 */
static void test_retire(void **state)
{
	struct fixture *f = *state;
	struct kvp_client *other = open_client(f->fake, 20000);
	struct fake_session *mine = &f->fake->s[0], *theirs = &f->fake->s[1];
	struct kvp_space *space;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	struct kvp_grant *g;

	assert_int_equal(kvp_space_open(other, &model, 20000, &space), 0);
	put_and_flush(f, 2 * T, 0);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	for (uint32_t n = 0; n < 12000; n++) {
		m = match(space, f->tokens, 2 * T, 0, &i);
		if (i.n_blocks == 2)
			break;
		kvp_release(m);
		usleep(5000);
	}
	assert_int_equal(i.n_blocks, 2);
	prefix_pin(m); /* as a thread does while it searches, or copies without a lease */
	fake_retire(f->fake, mine);
	usleep(100000);
	pthread_mutex_lock(&f->fake->lock);
	assert_int_equal(theirs->retire_acks, 0);
	assert_int_equal(mine->retire_acks, 0);
	pthread_mutex_unlock(&f->fake->lock);
	memset(kvp_grant_addr(g), 3, T * TOKEN_BYTES);
	prefix_unpin(m);
	kvp_grant_release(g);
	for (uint32_t n = 0; n < 12000; n++) {
		uint32_t acks;

		pthread_mutex_lock(&f->fake->lock);
		acks = theirs->retire_acks + mine->retire_acks;
		pthread_mutex_unlock(&f->fake->lock);
		if (acks == 2)
			break;
		assert_true(n < 11999);
		usleep(5000);
	}
	kvp_release(m);
	kvp_release(match(space, f->tokens, 2 * T, 0, &i));
	assert_int_equal(i.n_blocks, 0);
	kvp_space_close(space);
	kvp_close(other);
}

/* Slots ahead of need go back when nobody needs them, and when their space closes. */
static void reserve_and_wait(struct fixture *f, uint32_t times)
{
	struct kvp_grant *g;
	uint32_t granted = 1; /* the first loop leaves some ahead */

	for (uint32_t n = 0; n < times; n++) {
		assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
		assert_int_equal(kvp_grant_release(g), 0);
	}
	for (uint32_t n = 0; n < 6000 && granted; n++) {
		usleep(10000);
		granted = fake_granted(f->fake);
	}
	assert_int_equal(granted, 0);
}

static void test_stock(void **state)
{
	reserve_and_wait(*state, 20);
}

/* The last call asks for four slots, and returns when the first of them is there. */
static void test_stock_comes_late(void **state)
{
	struct fixture *f = *state;

	SET(f->fake, pause_us, 50000);
	reserve_and_wait(f, 4);
}

/* A forked child gets -ECHILD, may close, and disturbs nothing. */
static void test_forked_child(void **state)
{
	struct fixture *f = *state;
	struct kvp_prefix_info i;
	struct kvp_prefix *m;
	int status;
	pid_t pid;

	put_and_flush(f, 2 * T, 0);
	m = match(f->space, f->tokens, 2 * T, 0, &i);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct kvp_counters s = { .size = sizeof(s) };
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_space_props si = { .size = sizeof(si) };
		struct kvp_prefix *m2;
		struct kvp_grant *g;
		char buf[8];
		int bad = 0;

		bad |= kvp_match(f->space, f->tokens, T, NULL, &m2) != -ECHILD;
		bad |= kvp_match_info(m, &i) != -ECHILD;
		bad |= kvp_payload(m, 0, &p) != -ECHILD;
		bad |= kvp_release(m) != -ECHILD;
		bad |= kvp_touch(m) != -ECHILD;
		bad |= kvp_get(m, 0, T, &f->view, 0) != -ECHILD;
		bad |= put(f, T, 0) != -ECHILD;
		bad |= kvp_reserve(f->space, 0, NULL, &g) != -ECHILD;
		bad |= kvp_flush(f->client, 0) != -ECHILD;
		bad |= kvp_delete(f->space, f->tokens, T, 0) != -ECHILD;
		bad |= kvp_stats(f->client, &s) != -ECHILD;
		bad |= kvp_space_info(f->space, &si) != -ECHILD;
		bad |= kvp_last_error(f->client, buf, sizeof(buf)) != -ECHILD;
		kvp_space_close(f->space);
		bad |= kvp_close(f->client) != NULL;
		_exit(bad);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	check_content(f, m, 2 * T);
	kvp_release(m);
}

/*
 * timeout_ms of 0 is the same everywhere: what the daemon answers at once is had, what others have
 * to do first is not waited for. On a machine that has no time for either, at the hundredth try.
 */
#define SOON(call, want)                                      \
	do {                                                  \
		long long got_ = 0;                           \
                                                              \
		for (uint32_t try_ = 0; try_ < 100; try_++) { \
			got_ = (long long)(call);             \
			if (got_ == (want))                   \
				break;                        \
		}                                             \
		assert_int_equal(got_, (want));               \
	} while (0)

static void test_timeout_0(void **state)
{
	struct fixture *f = *state;
	struct kvp_put_opts put = { .size = sizeof(put) };
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_CLAIM };
	struct kvp_prefix_info i = { .size = sizeof(i) };
	struct kvp_client *other = open_client(f->fake, 20000);
	struct kvp_space *s, *theirs;
	struct kvp_prefix *m, *m2;
	struct kvp_grant *g;

	SOON(kvp_space_open(f->client, &model, 0, &s), 0);
	SOON(kvp_space_open(other, &model, 0, &theirs), 0);
	SOON(kvp_reserve(s, 0, NULL, &g), 0);
	assert_int_equal(kvp_grant_wait(g, 0), -EINVAL); /* not committed */
	kvp_grant_release(g);
	SOON(kvp_put(f->space, f->tokens, 2 * T, 0, &f->view, &put, NULL), 2 * T);
	SOON(kvp_flush(f->client, 0), 0);
	SOON(kvp_delete(f->space, f->tokens, 2 * T, 0), 2);
	for (uint32_t n = 0; n < 100; n++) {
		assert_int_equal(kvp_match(s, f->tokens, 3 * T, &o, &m), 0);
		kvp_match_info(m, &i);
		if (i.flags & KVP_MATCHED_CLAIMED)
			break;
		kvp_release(m);
	}
	assert_int_equal(i.flags, KVP_MATCHED_CLAIMED);
	assert_int_equal(kvp_wait(m, 0), -EINVAL); /* nobody else computes it */
	o.timeout_ms = KVP_DEFAULT_TIMEOUT;
	assert_int_equal(kvp_match(theirs, f->tokens, 3 * T, &o, &m2), 0);
	assert_int_equal(kvp_wait(m2, 0), -ETIMEDOUT); /* somebody else has to do that first */
	kvp_release(m2);
	assert_int_equal(kvp_release(m), 0);
	assert_int_equal(kvp_wait(m, 0), -EINVAL); /* released */
	SET(f->fake, mute, true);
	assert_int_equal(kvp_flush(f->client, 0), -ETIMEDOUT);
	SET(f->fake, mute, false);
	kvp_space_close(s);
	kvp_space_close(theirs);
	kvp_close(other);
}

/* LAZY: spaces open without a daemon, and come alive with one. */
static void test_lazy(void **state)
{
	struct fake *fake = fake_start(NULL);
	char path[64];
	struct kvp_open_opts o = { .size = sizeof(o), .flags = KVP_OPEN_LAZY, .socket = path };
	struct kvp_space_props i = { .size = sizeof(i) };
	struct kvp_client *c;
	struct kvp_space *s;

	(void)state;
	strcpy(path, fake->path);
	fake_stop(fake);
	assert_int_equal(kvp_open(&o, &c), 0);
	assert_int_equal(kvp_space_open(c, &model, 20000, &s), 0);
	assert_int_equal(kvp_space_info(s, &i), 0);
	assert_int_equal(i.attached, 0);
	fake = fake_start(path);
	assert_true(fake_await_attached(c, 1));
	assert_int_equal(kvp_space_info(s, &i), 0);
	assert_int_equal(i.attached, 1);
	kvp_space_close(s);
	kvp_close(c);
	fake_stop(fake);
}

#define WITH_DAEMON(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(test_put_match_get),
		WITH_DAEMON(test_partial),
		WITH_DAEMON(test_exact),
		WITH_DAEMON(test_zero_copy),
		WITH_DAEMON(test_lease_protects),
		WITH_DAEMON(test_out_of_leases),
		WITH_DAEMON(test_reserve_commit),
		WITH_DAEMON(test_orphan_commit),
		WITH_DAEMON(test_put_copies),
		WITH_DAEMON(test_put_from),
		WITH_DAEMON(test_put_after_marked),
		WITH_DAEMON(test_put_full),
		WITH_DAEMON(test_put_refused),
		WITH_DAEMON(test_min_cache_tokens),
		WITH_DAEMON(test_delete),
		WITH_DAEMON(test_chunk_keys),
		WITH_DAEMON(test_empty),
		WITH_DAEMON(test_fork_copies),
		WITH_DAEMON(test_single_flight),
		WITH_DAEMON(test_claim_by_commit),
		WITH_DAEMON(test_space_info),
		WITH_DAEMON(test_space_refused),
		WITH_DAEMON(test_stats_and_close),
		WITH_DAEMON(test_daemon_dies),
		WITH_DAEMON(test_silent_daemon),
		WITH_DAEMON(test_grant_of_the_dead),
		WITH_DAEMON(test_put_of_the_dead),
		WITH_DAEMON(test_outcome_after_another_daemon),
		WITH_DAEMON(test_daemon_that_is_busy),
		WITH_DAEMON(test_opening_over_two_daemons),
		WITH_DAEMON(test_stopped_control),
		WITH_DAEMON(test_full_socket),
		WITH_DAEMON(test_full_ring),
		WITH_DAEMON(test_unknown_extent),
		WITH_DAEMON(test_retire),
		WITH_DAEMON(test_stock),
		WITH_DAEMON(test_stock_comes_late),
		WITH_DAEMON(test_forked_child),
		cmocka_unit_test_setup_teardown(test_timeout_0, setup, teardown),
		cmocka_unit_test(test_lazy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
