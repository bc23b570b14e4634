/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs of blocks against a small daemon in a thread of this process, which can be made to fall
 * silent, run out of room and die in the middle of one.
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

#define T      16u
#define TOKENS (9 * T)
#define BYTES  (T * 4u * 2 * 4) /* of a block: one layer, one head of 4 channels, fp32 */

static const struct kvp_layer layer = { .kv_heads = 1, .k_dim = 4, .v_dim = 4 };

static const struct kvp_space_desc model = {
	.size = sizeof(model),
	.model = "runs",
	.dtype = KVP_DTYPE_F32,
	.layout = KVP_LAYOUT_LCND,
	.block_tokens = T,
	.n_layers = 1,
	.layers = &layer,
};

struct fixture {
	struct fake *fake;
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t tokens[TOKENS];
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct kvp_open_opts o = { .size = sizeof(o), .default_timeout_ms = 20000 };

	f->fake = fake_start(NULL);
	o.socket = f->fake->path;
	assert_int_equal(kvp_open(&o, &f->client), 0);
	assert_int_equal(kvp_space_open(f->client, &model, KVP_DEFAULT_TIMEOUT, &f->space), 0);
	for (uint32_t i = 0; i < TOKENS; i++)
		f->tokens[i] = 100 + i * 3;
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

static void set_mute(struct fixture *f, bool mute)
{
	pthread_mutex_lock(&f->fake->lock);
	f->fake->mute = mute;
	pthread_mutex_unlock(&f->fake->lock);
}

static void set_room(struct fixture *f, uint32_t room)
{
	pthread_mutex_lock(&f->fake->lock);
	f->fake->room = room;
	pthread_mutex_unlock(&f->fake->lock);
}

/* n grants, the i-th filled with `first + i`. */
static void take(struct fixture *f, uint32_t n, struct kvp_grant **grants, uint32_t first)
{
	assert_int_equal(kvp_reserve_run(f->space, n, 20000, NULL, grants), n);
	for (uint32_t i = 0; i < n; i++)
		memset(kvp_grant_addr(grants[i]), (int)(first + i), BYTES);
}

static void drop(uint32_t n, struct kvp_grant **grants)
{
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(kvp_grant_release(grants[i]), 0);
}

/* tokens[0..n) are there, and the i-th block is full of `first + i`. */
static void check(struct fixture *f, uint32_t n, uint32_t first)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t blocks = (n + T - 1) / T;
	const void *addrs[TOKENS / T + 1];
	struct kvp_prefix *m;

	assert_int_equal(kvp_match(f->space, f->tokens, n, NULL, &m), 0);
	assert_int_equal(kvp_match_info(m, &info), 0);
	assert_int_equal(info.n_tokens, n);
	assert_int_equal(info.n_blocks, blocks);
	assert_int_equal(kvp_payloads(m, 0, TOKENS / T + 1, addrs), blocks);
	for (uint32_t i = 0; i < blocks; i++)
		for (uint32_t b = 0; b < BYTES; b++)
			assert_int_equal(((const uint8_t *)addrs[i])[b], first + i);
	assert_int_equal(kvp_release(m), 0);
}

/* A chain in two runs, the second without the grants of the first; its end is partial. */
static void test_two_runs(void **state)
{
	struct fixture *f = *state;
	struct kvp_ref last = { { 7, 7 } }, before;
	struct kvp_grant *g[4];

	take(f, 3, g, 1);
	assert_int_equal(kvp_commit_run(g, 3, kvp_ref_root(), f->tokens, 3 * T, NULL,
				 KVP_COMMIT_RELEASE, &last),
		3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(kvp_grant_release(g[i]), -EALREADY);
	take(f, 4, g, 4);
	assert_int_equal(
		kvp_commit_run(g, 4, last, f->tokens + 3 * T, 3 * T + 5, NULL, 0, &last), 4);
	/* nothing follows a partial block: the last whole one is named */
	assert_int_equal(kvp_grant_ref(g[2], &before), 0);
	assert_memory_equal(&before, &last, sizeof(last));
	assert_int_equal(kvp_grant_wait(g[3], 20000), 0);
	check(f, 6 * T + 5, 1);
	drop(4, g);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	assert_int_equal(fake_blocks(f->fake), 7);

	/* One block that is partial names nothing. */
	take(f, 1, g, 1);
	last = (struct kvp_ref){ { 7, 7 } };
	assert_int_equal(kvp_commit_run(g, 1, kvp_ref_root(), f->tokens + 1, 5, NULL,
				 KVP_COMMIT_RELEASE, &last),
		1);
	assert_int_equal(last.opaque[0], 7);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
}

/* As many as there is room for, then none, and a hint when to ask again. */
static void test_reserve(void **state)
{
	struct fixture *f = *state;
	struct kvp_grant *g[KVP_CLIENT_GRANTS] = { NULL }, *none = NULL;
	uint32_t retry = 0;

	assert_int_equal(kvp_reserve_run(f->space, 0, 0, NULL, g), -EINVAL);
	assert_int_equal(kvp_reserve_run(f->space, KVP_CLIENT_GRANTS + 1, 0, NULL, g), -EINVAL);
	assert_int_equal(kvp_reserve_run(NULL, 1, 0, NULL, g), -EINVAL);
	assert_int_equal(kvp_reserve_run(f->space, 1, 0, NULL, NULL), -EINVAL);
	set_room(f, 5);
	assert_int_equal(kvp_reserve_run(f->space, 8, 30, &retry, g), 5);
	assert_int_equal(retry, 3);
	assert_null(g[5]);
	retry = 0;
	assert_int_equal(kvp_reserve_run(f->space, 8, 0, &retry, &none), -EAGAIN);
	assert_int_equal(retry, 3);
	assert_null(none);
	drop(5, g);
	set_room(f, FAKE_SLOTS);
	assert_int_equal(kvp_reserve_run(f->space, KVP_CLIENT_GRANTS, 0, NULL, g), FAKE_SLOTS);
	for (uint32_t i = 0; i < FAKE_SLOTS; i++)
		for (uint32_t k = 0; k < i; k++)
			assert_ptr_not_equal(kvp_grant_addr(g[i]), kvp_grant_addr(g[k]));
	drop(FAKE_SLOTS, g);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	assert_int_equal(fake_granted(f->fake), 0);
}

/* One wrong argument, and nothing at all is committed. */
static void test_refused(void **state)
{
	struct fixture *f = *state;
	struct kvp_space_desc d = model;
	struct kvp_grant *g[3], *bad[3], *elsewhere, *done;
	struct kvp_ref root = kvp_ref_root(), last = { { 7, 7 } };
	struct kvp_space *other;

	d.model = "other";
	assert_int_equal(kvp_space_open(f->client, &d, 20000, &other), 0);
	take(f, 3, g, 1);
	assert_int_equal(kvp_reserve(other, 20000, NULL, &elsewhere), 0);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &done), 0);
	assert_int_equal(kvp_commit(done, root, f->tokens + 1, T, NULL, 0), 0);

#define REFUSED(error, ...) assert_int_equal(kvp_commit_run(__VA_ARGS__, NULL, 0, &last), (error))
	REFUSED(-EINVAL, NULL, 3, root, f->tokens, 3 * T);
	REFUSED(-EINVAL, g, 0, root, f->tokens, 3 * T);
	REFUSED(-EINVAL, g, KVP_CLIENT_GRANTS + 1, root, f->tokens, TOKENS);
	REFUSED(-EINVAL, g, 3, root, NULL, 3 * T);
	REFUSED(-EINVAL, g, 3, root, f->tokens, 0);
	REFUSED(-EINVAL, g, 3, root, f->tokens, 2 * T); /* two blocks */
	REFUSED(-EINVAL, g, 3, root, f->tokens, 3 * T + 1);
	REFUSED(-EINVAL, g, 2, root, f->tokens, SIZE_MAX);
	memcpy(bad, g, sizeof(g));
	bad[2] = g[0];
	REFUSED(-EINVAL, bad, 3, root, f->tokens, 3 * T);
	bad[2] = NULL;
	REFUSED(-EINVAL, bad, 3, root, f->tokens, 3 * T);
	bad[2] = elsewhere;
	REFUSED(-EINVAL, bad, 3, root, f->tokens, 3 * T);
	bad[2] = done;
	REFUSED(-EALREADY, bad, 3, root, f->tokens, 3 * T);
	assert_int_equal(kvp_grant_release(done), 0);
	REFUSED(-EINVAL, bad, 3, root, f->tokens, 3 * T);
	assert_int_equal(kvp_commit_run(g, 3, root, f->tokens, 3 * T, NULL, 0x80, &last), -EINVAL);
	/* a parent of a former daemon, or of none */
	REFUSED(-ESHUTDOWN, g, 3, ((struct kvp_ref){ { UINT64_C(1) << 32, 5 } }), f->tokens, 3 * T);
	REFUSED(-EINVAL, g, 3, ((struct kvp_ref){ { UINT64_C(9) << 32, f->fake->epoch << 32 } }),
		f->tokens, 3 * T);
#undef REFUSED
	assert_int_equal(last.opaque[0], 7);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	assert_int_equal(fake_blocks(f->fake), 1);
	/* They are as they were. */
	assert_int_equal(kvp_commit_run(g, 3, root, f->tokens, 3 * T, NULL, 0, NULL), 3);
	assert_int_equal(kvp_grant_wait(g[2], 20000), 0);
	check(f, 3 * T, 1);
	drop(3, g);
	kvp_grant_release(elsewhere);
	kvp_space_close(other);
}

/* Leaves room for `room` entries in the ring of a daemon that has fallen silent. */
static void fill_ring(struct fixture *f, uint32_t room)
{
	static const uint32_t step[] = { 6, 1 };
	uint32_t other[6 * T], left = KVP_SQ_ENTRIES - room;
	struct kvp_grant *g[6];

	for (uint32_t t = 0; t < 6 * T; t++)
		other[t] = 50000 + t;
	take(f, 6, g, 1);
	assert_int_equal(
		kvp_commit_run(g, 6, kvp_ref_root(), other, 6 * T, NULL, KVP_COMMIT_RELEASE, NULL),
		6);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	set_mute(f, true);
	assert_int_equal(kvp_flush(f->client, 0), -ETIMEDOUT);
	left--;
	for (uint32_t s = 0; s < 2; s++)
		for (; left >= step[s]; left -= step[s])
			assert_int_equal(kvp_delete(f->space, other, step[s] * T, 0), -ETIMEDOUT);
}

/* The ring has room for a part: that part is committed, the rest is the caller's still. */
static void test_full_ring(void **state)
{
	struct fixture *f = *state;
	struct kvp_ref last = kvp_ref_root();
	struct kvp_grant *g[5];

	take(f, 5, g, 1);
	fill_ring(f, 3);
	assert_int_equal(
		kvp_commit_run(g, 5, last, f->tokens, 5 * T, NULL, KVP_COMMIT_RELEASE, &last), 3);
	assert_int_equal(kvp_commit_run(g + 3, 2, last, f->tokens + 3 * T, 2 * T, NULL,
				 KVP_COMMIT_RELEASE, NULL),
		-EAGAIN);
	set_mute(f, false);
	for (uint32_t n = 0; n < 12000 && kvp_flush(f->client, 20000) < 0; n++)
		usleep(5000);
	assert_int_equal(
		kvp_commit_run(g + 3, 2, last, f->tokens + 3 * T, 2 * T, NULL, 0, NULL), 2);
	assert_int_equal(kvp_grant_wait(g[4], 20000), 0);
	check(f, 5 * T, 1);
	drop(2, g + 3);
}

/* The daemon dies with half a run in its ring: the handles are told apart, and all say so. */
static void test_daemon_dies(void **state)
{
	struct fixture *f = *state;
	struct kvp_ref last = kvp_ref_root();
	struct kvp_grant *g[5], *none;
	struct kvp_counters s = { .size = sizeof(s) };
	char path[64];

	strcpy(path, f->fake->path);
	take(f, 5, g, 1);
	fill_ring(f, 3);
	assert_int_equal(kvp_commit_run(g, 5, last, f->tokens, 5 * T, NULL, 0, &last), 3);
	f->fake = fake_stop(f->fake);
	for (uint32_t n = 0; n < 12000 && (kvp_stats(f->client, &s) < 0 || s.attached); n++)
		usleep(5000);
	assert_int_equal(s.attached, 0);
	assert_int_equal(kvp_commit_run(g + 3, 2, last, f->tokens + 3 * T, 2 * T, NULL, 0, &last),
		-ESHUTDOWN);
	assert_int_equal(kvp_commit_run(g, 5, last, f->tokens, 5 * T, NULL, 0, NULL), -EALREADY);
	assert_int_equal(kvp_reserve_run(f->space, 2, 20000, NULL, &none), -ESHUTDOWN);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(kvp_grant_wait(g[i], 20000), -ESHUTDOWN);
	drop(5, g);
	f->fake = fake_start(path);
	for (uint32_t n = 0; n < 12000 && (kvp_stats(f->client, &s) < 0 || !s.attached); n++)
		usleep(5000);
	/* what was named at the former daemon names nothing at this one */
	take(f, 1, g, 1);
	assert_int_equal(kvp_commit_run(g, 1, last, f->tokens, T, NULL, 0, NULL), -ESHUTDOWN);
	drop(1, g);
}

/* A claimed chain moves on through a run. */
static void test_claim(void **state)
{
	struct kvp_match_opts o = {
		.size = sizeof(o), .flags = KVP_MATCH_CLAIM, .timeout_ms = 20000
	};
	struct fixture *f = *state;
	struct kvp_prefix *m;
	struct kvp_grant *g[4];

	assert_int_equal(kvp_match(f->space, f->tokens, 4 * T, &o, &m), 0);
	take(f, 4, g, 1);
	assert_int_equal(kvp_commit_run(g, 4, kvp_ref_root(), f->tokens, 4 * T, m, 0, NULL), 4);
	assert_int_equal(kvp_grant_wait(g[3], 20000), 0);
	for (uint32_t b = 0; b < 4; b++)
		assert_int_equal(kvp_claim_find(&f->fake->v, m->chain[b], now_ns()), 0);
	kvp_release(m);
	drop(4, g);
	check(f, 4 * T, 1);
}

/* Addresses of a range: as kvp_payload() says one by one, the tail included. */
static void test_payloads(void **state)
{
	struct fixture *f = *state;
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix *held[KVP_CLIENT_LEASES], *m;
	const void *addrs[6] = { NULL };
	struct kvp_grant *g[4];
	uint32_t n;

	take(f, 4, g, 1);
	assert_int_equal(kvp_commit_run(g, 4, kvp_ref_root(), f->tokens, 4 * T, NULL, 0, NULL), 4);
	assert_int_equal(kvp_grant_wait(g[3], 20000), 0);
	drop(4, g);
	assert_int_equal(kvp_match(f->space, f->tokens, 3 * T + 9, NULL, &m), 0);
	assert_int_equal(kvp_payloads(m, 0, 6, addrs), 4);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(kvp_payload(m, i, &p), 0);
		assert_ptr_equal(addrs[i], p.addr);
	}
	assert_null(addrs[4]);
	memset(addrs, 0, sizeof(addrs));
	assert_int_equal(kvp_payloads(m, 2, 1, addrs), 1);
	assert_int_equal(kvp_payload(m, 2, &p), 0);
	assert_ptr_equal(addrs[0], p.addr);
	assert_null(addrs[1]);
	assert_int_equal(kvp_payloads(m, 4, 6, addrs), 0);
	assert_int_equal(kvp_payloads(m, UINT32_MAX, UINT32_MAX, addrs), 0);
	assert_int_equal(kvp_payloads(m, 1, UINT32_MAX, addrs), 3);
	assert_int_equal(kvp_payloads(m, 0, 0, NULL), 0);
	assert_int_equal(kvp_payloads(m, 0, 1, NULL), -EINVAL);
	assert_int_equal(kvp_release(m), 0);
	assert_int_equal(kvp_payloads(m, 0, 1, addrs), -EINVAL);
	for (n = 0; n < KVP_CLIENT_LEASES; n++)
		assert_int_equal(kvp_match(f->space, f->tokens, T, NULL, &held[n]), 0);
	assert_int_equal(kvp_match(f->space, f->tokens, T, NULL, &m), 0);
	assert_int_equal(kvp_payloads(m, 0, 1, addrs), -ENOLCK);
	kvp_release(m);
	while (n)
		kvp_release(held[--n]);
}

#define WITH_DAEMON(t) cmocka_unit_test_setup_teardown(t, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(test_two_runs),
		WITH_DAEMON(test_reserve),
		WITH_DAEMON(test_refused),
		WITH_DAEMON(test_full_ring),
		WITH_DAEMON(test_daemon_dies),
		WITH_DAEMON(test_claim),
		WITH_DAEMON(test_payloads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
