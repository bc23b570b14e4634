/* SPDX-License-Identifier: Apache-2.0 */
/* Timelines, and what is released after a moment on one, against a small daemon in this process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "libclient/match.h"
#include "tests/libclient/fake.h"

#define T       16u
#define TOKENS  (4 * T)
#define BYTES   (T * 4u * 2 * 4) /* of a block: one layer, one head of 4 channels, fp32 */
#define THREADS 4u

static const struct kvp_layer layer = { .kv_heads = 1, .k_dim = 4, .v_dim = 4 };

static const struct kvp_space_desc model = {
	.size = sizeof(model),
	.model = "timelines",
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

/* The sequence is cached, block i full of 0x10 + i. */
static void store(struct fixture *f)
{
	struct kvp_grant *g[TOKENS / T];

	assert_int_equal(kvp_reserve_run(f->space, TOKENS / T, 20000, NULL, g), TOKENS / T);
	for (uint32_t i = 0; i < TOKENS / T; i++)
		memset(kvp_grant_addr(g[i]), 0x10 + (int)i, BYTES);
	assert_int_equal(kvp_commit_run(g, TOKENS / T, kvp_ref_root(), f->tokens, TOKENS, NULL,
				 KVP_COMMIT_RELEASE, NULL),
		TOKENS / T);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
}

/* All of it, leased; *ret_addr: where its last block is. */
static struct kvp_prefix *match(struct fixture *f, const uint8_t **ret_addr)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *m;

	for (int i = 0; i < 12000; i++) {
		const void *addr = NULL;

		assert_int_equal(kvp_match(f->space, f->tokens, TOKENS, NULL, &m), 0);
		assert_int_equal(kvp_match_info(m, &info), 0);
		if (info.n_blocks == TOKENS / T) {
			assert_int_equal(info.flags, KVP_MATCHED_LEASED);
			assert_int_equal(kvp_payloads(m, TOKENS / T - 1, 1, &addr), 1);
			*ret_addr = addr;
			return m;
		}
		kvp_release(m);
		usleep(5000); /* a new extent is mapped in a moment */
	}
	fail_msg("the sequence is not cached");
	return NULL;
}

static struct kvp_timeline *timeline(struct fixture *f)
{
	struct kvp_timeline *t;

	assert_int_equal(kvp_timeline_new(f->client, &t), 0);
	return t;
}

static void test_numbers(void **state)
{
	struct fixture *f = *state;
	struct kvp_timeline *t = timeline(f);

	assert_int_equal(kvp_timeline_reached(t, 0), 1);
	assert_int_equal(kvp_timeline_reached(t, 1), 0);
	assert_int_equal(kvp_timeline_advance(t, 5), 0);
	assert_int_equal(kvp_timeline_reached(t, 5), 1);
	assert_int_equal(kvp_timeline_reached(t, 6), 0);
	assert_int_equal(kvp_timeline_advance(t, 5), 0);
	assert_int_equal(kvp_timeline_advance(t, 4), -EINVAL);
	assert_int_equal(kvp_timeline_advance(t, KVP_TIMELINE_MAX + 1), -EINVAL);
	assert_int_equal(kvp_timeline_reached(t, KVP_TIMELINE_MAX + 1), 0);
	assert_int_equal(kvp_timeline_advance(NULL, 5), -EINVAL);
	assert_int_equal(kvp_timeline_reached(NULL, 5), -EINVAL);
	assert_int_equal(kvp_timeline_new(NULL, &t), -EINVAL);
	assert_int_equal(kvp_timeline_new(f->client, NULL), -EINVAL);
	assert_null(kvp_timeline_free(NULL));
}

/* So many and no more; a place that is free is had again, hundreds of times. */
static void test_how_many(void **state)
{
	struct fixture *f = *state;
	struct kvp_timeline *t[KVP_CLIENT_TIMELINES], *more;

	for (uint32_t i = 0; i < KVP_CLIENT_TIMELINES; i++)
		t[i] = timeline(f);
	assert_int_equal(kvp_timeline_new(f->client, &more), -ENOSPC);
	for (uint32_t i = 0; i < 200; i++) {
		assert_int_equal(kvp_timeline_advance(t[7], KVP_TIMELINE_MAX), 0);
		assert_null(kvp_timeline_free(t[7]));
		t[7] = timeline(f);
		assert_int_equal(kvp_timeline_reached(t[7], 1), 0);
	}
}

static void test_release_after(void **state)
{
	struct fixture *f = *state;
	struct kvp_timeline *t = timeline(f), *other = timeline(f);
	const uint8_t *addr;
	struct kvp_prefix *m;

	store(f);
	m = match(f, &addr);
	assert_int_equal(kvp_release_after(m, NULL, 1), -EINVAL);
	assert_int_equal(kvp_release_after(m, t, KVP_TIMELINE_MAX + 1), -EINVAL);
	assert_int_equal(kvp_release_after(NULL, t, 1), 0);
	assert_int_equal(kvp_release_after(m, t, 3), 0);
	assert_int_equal(kvp_release_after(m, t, 3), -EALREADY);
	assert_int_equal(kvp_release(m), -EALREADY);
	assert_int_equal(fake_leases(f->fake), 1);
	assert_false(fake_evict(f->fake, TOKENS / T - 1));
	assert_int_equal(kvp_timeline_advance(t, 2), 0);
	assert_int_equal(kvp_timeline_advance(other, 9), 0);
	assert_false(fake_evict(f->fake, TOKENS / T - 1));
	assert_int_equal(addr[5], 0x10 + TOKENS / T - 1);
	/* A number that has been reached is now. */
	m = match(f, &addr);
	assert_int_equal(kvp_release_after(m, t, 2), 0);
	assert_int_equal(fake_leases(f->fake), 1);
	assert_int_equal(kvp_timeline_advance(t, 3), 0);
	assert_int_equal(fake_leases(f->fake), 0);
	/* The slot is had again, and held. */
	m = match(f, &addr);
	assert_int_equal(fake_leases(f->fake), 1);
	assert_false(fake_evict(f->fake, TOKENS / T - 1));
	kvp_release(m);
	assert_true(fake_evict(f->fake, TOKENS / T - 1));
}

/* All the leases that a client may have wait for two numbers; then all are had again. */
static void test_all_leases(void **state)
{
	struct fixture *f = *state;
	struct kvp_timeline *t = timeline(f);
	struct kvp_prefix_info info = { .size = sizeof(info) };
	const uint8_t *addr;
	struct kvp_prefix *m;

	store(f);
	for (uint32_t i = 0; i < KVP_CLIENT_LEASES; i++)
		assert_int_equal(kvp_release_after(match(f, &addr), t, 1 + i % 2), 0);
	assert_int_equal(kvp_match(f->space, f->tokens, TOKENS, NULL, &m), 0);
	assert_int_equal(kvp_match_info(m, &info), 0);
	assert_int_equal(info.flags, 0);
	assert_int_equal(kvp_release_after(m, t, 2), 0);
	assert_int_equal(kvp_timeline_advance(t, 1), 0);
	assert_int_equal(fake_leases(f->fake), KVP_CLIENT_LEASES / 2);
	for (uint32_t i = 0; i < KVP_CLIENT_LEASES / 2; i++)
		assert_int_equal(kvp_release_after(match(f, &addr), t, 3), 0);
	assert_int_equal(kvp_timeline_advance(t, 3), 0);
	assert_int_equal(fake_leases(f->fake), 0);
}

/* Freeing ends what waits; who has the place next has numbers of its own. */
static void test_free_ends_all(void **state)
{
	struct fixture *f = *state;
	struct kvp_timeline *t[KVP_CLIENT_TIMELINES], *next;
	const uint8_t *addr;

	store(f);
	for (uint32_t i = 0; i < KVP_CLIENT_TIMELINES; i++)
		t[i] = timeline(f);
	assert_int_equal(kvp_timeline_advance(t[3], 4), 0);
	assert_int_equal(kvp_release_after(match(f, &addr), t[3], 1000), 0);
	assert_int_equal(fake_leases(f->fake), 1);
	kvp_timeline_free(t[3]);
	assert_int_equal(fake_leases(f->fake), 0);
	next = timeline(f);
	assert_int_equal(kvp_timeline_reached(next, 1), 0);
	assert_int_equal(kvp_release_after(match(f, &addr), next, 1), 0);
	assert_int_equal(fake_leases(f->fake), 1);
	assert_int_equal(kvp_timeline_advance(next, 1), 0);
	assert_int_equal(fake_leases(f->fake), 0);
}

/* A slot that is being written, or read, is given back when its moment comes. */
static void test_grants(void **state)
{
	struct fixture *f = *state;
	struct kvp_timeline *t = timeline(f);
	struct kvp_grant *g[3], *all[FAKE_SLOTS];

	assert_int_equal(kvp_reserve_run(f->space, 3, 20000, NULL, g), 3);
	assert_int_equal(kvp_commit(g[1], kvp_ref_root(), f->tokens, T, NULL, 0), 0);
	assert_int_equal(kvp_grant_release_after(g[0], t, 1), 0);
	assert_int_equal(kvp_grant_release_after(g[0], t, 1), -EALREADY);
	assert_int_equal(kvp_grant_release(g[0]), -EALREADY);
	assert_int_equal(kvp_grant_release_after(g[1], t, 2), 0);
	assert_int_equal(kvp_grant_release_after(g[2], NULL, 2), -EINVAL);
	assert_int_equal(kvp_grant_release_after(g[2], t, 0), 0);
	assert_int_equal(kvp_grant_release_after(NULL, t, 2), 0);
	/* Two of them are not to be had; what was committed is neither. */
	assert_int_equal(kvp_reserve_run(f->space, FAKE_SLOTS, 50, NULL, all), FAKE_SLOTS - 2);
	memset(kvp_grant_addr(g[0]), 7, BYTES);
	assert_int_equal(kvp_timeline_advance(t, 1), 0);
	assert_int_equal(kvp_reserve_run(f->space, 2, 50, NULL, g), 1);
	assert_int_equal(kvp_timeline_advance(t, 2), 0);
	assert_int_equal(kvp_grant_release(g[0]), 0);
	for (uint32_t i = 0; i < FAKE_SLOTS - 2; i++)
		assert_int_equal(kvp_grant_release(all[i]), 0);
	assert_int_equal(kvp_flush(f->client, 20000), 0);
	assert_int_equal(fake_granted(f->fake), 0);
	assert_int_equal(fake_blocks(f->fake), 1);
}

/* So many commits of one block, which is there from the first one on. */
static void commit_again(struct fixture *f, uint32_t n)
{
	const uint32_t tokens[T] = { 7 };

	for (uint32_t i = 0; i < n; i++) {
		struct kvp_grant *g;

		assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
		assert_int_equal(kvp_commit(g, kvp_ref_root(), tokens, T, NULL, 0), 0);
		assert_int_equal(kvp_grant_wait(g, 20000), i ? KVP_COMMITTED_DUPLICATE : 0);
		assert_int_equal(kvp_grant_release(g), 0);
	}
}

/* A put sees that its blocks are refused, also past the record of a commit that waits. */
static void test_put_past_a_commit_that_waits(void **state)
{
	struct fixture *f = *state;
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = 20000 };
	const uint32_t tokens[T] = { 8 };
	uint8_t kv[TOKENS / T * BYTES] = { 0 };
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	struct kvp_timeline *t = timeline(f);
	struct kvp_grant *g;
	uint64_t bytes;

	assert_int_equal(kvp_view_dense(f->space, KVP_VIEW_LCND, kv, TOKENS, &plane, &bytes), 0);
	assert_int_equal(bytes, sizeof(kv));
	/* One besides what is taken: before it is had again, the daemon has answered for what was in it. */
	pthread_mutex_lock(&f->fake->lock);
	f->fake->room = 3;
	pthread_mutex_unlock(&f->fake->lock);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	assert_int_equal(kvp_commit_after(g, kvp_ref_root(), tokens, T, NULL, 0, t, 1), 0);
	commit_again(f, N_COMMITS - 1);
	pthread_mutex_lock(&f->fake->lock);
	f->fake->full = true;
	pthread_mutex_unlock(&f->fake->lock);
	assert_int_equal(kvp_put(f->space, f->tokens, TOKENS, 0, &view, &o, NULL), -EAGAIN);
	assert_int_equal(kvp_grant_wait(g, 0), -ETIMEDOUT);
	assert_int_equal(kvp_grant_release(g), 0);
}

/* How often the library woke the daemon since this was last asked. */
static uint64_t wakes(const struct fake_session *s)
{
	uint64_t n;

	return read(s->wake, &n, sizeof(n)) == sizeof(n) ? n : 0;
}

/* Who brings a timeline where the daemon waits for it wakes the daemon, and nobody else does. */
static void test_wakes(void **state)
{
	struct fixture *f = *state;
	struct fake_session *s = &f->fake->s[0];
	struct kvp_timeline *t = timeline(f), *other = timeline(f);

	(void)wakes(s);
	assert_int_equal(kvp_timeline_advance(t, 1), 0);
	assert_int_equal(wakes(s), 0);
	kvp_store_seq(&s->page->awaits[0], 5);
	assert_int_equal(kvp_timeline_advance(t, 4), 0);
	assert_int_equal(kvp_timeline_advance(other, 9), 0);
	assert_int_equal(wakes(s), 0);
	assert_int_equal(kvp_timeline_advance(t, 6), 0);
	assert_int_equal(wakes(s), 1);
	kvp_store_seq(&s->page->awaits[0], 0);
	assert_int_equal(kvp_timeline_advance(t, 7), 0);
	assert_int_equal(wakes(s), 0);
}

static bool is_mapped(const void *addr)
{
	unsigned char in_memory;
	uintptr_t page = (uintptr_t)addr / 4096 * 4096;

	return mincore((void *)page, 1, &in_memory) == 0;
}

/* What is read "until" stays mapped when the daemon goes, and no longer; the next one's leases too. */
static void test_daemon_goes(void **state)
{
	struct fixture *f = *state;
	struct kvp_timeline *t = timeline(f);
	struct kvp_counters s = { .size = sizeof(s) };
	const uint8_t *addr, *next;
	char path[64];

	store(f);
	assert_int_equal(kvp_timeline_advance(t, 1), 0);
	assert_int_equal(kvp_release_after(match(f, &addr), t, 2), 0);
	strcpy(path, f->fake->path);
	fake_stop(f->fake);
	f->fake = fake_start(path);
	for (int i = 0; i < 12000 && (kvp_stats(f->client, &s) < 0 || !s.reattached); i++)
		usleep(5000);
	assert_int_equal(s.reattached, 1);
	/* The library's thread looks for what nobody needs, again and again. */
	for (int i = 0; i < 30; i++) {
		client_kick(f->client);
		usleep(5000);
	}
	assert_true(is_mapped(addr));
	for (uint32_t i = 0; i < BYTES; i++)
		assert_int_equal(addr[i], 0x10 + TOKENS / T - 1);
	store(f);
	assert_int_equal(kvp_release_after(match(f, &next), t, 1), 0);
	assert_int_equal(fake_leases(f->fake), 0);
	assert_int_equal(kvp_release_after(match(f, &next), t, 3), 0);
	assert_int_equal(kvp_timeline_advance(t, 2), 0);
	for (int i = 0; i < 12000 && is_mapped(addr); i++)
		usleep(5000);
	assert_false(is_mapped(addr));
	assert_int_equal(fake_leases(f->fake), 1);
	assert_int_equal(kvp_timeline_advance(t, 3), 0);
	assert_int_equal(fake_leases(f->fake), 0);
}

static void test_forked_child(void **state)
{
	struct fixture *f = *state;
	struct kvp_timeline *t = timeline(f), *more;
	const uint8_t *addr;
	struct kvp_prefix *m;
	struct kvp_grant *g;
	int status;
	pid_t pid;

	store(f);
	m = match(f, &addr);
	assert_int_equal(kvp_reserve(f->space, 20000, NULL, &g), 0);
	pid = fork();
	if (!pid)
		_exit(kvp_timeline_new(f->client, &more) != -ECHILD ||
			kvp_timeline_advance(t, 1) != -ECHILD ||
			kvp_timeline_reached(t, 0) != -ECHILD || kvp_timeline_free(t) ||
			kvp_release_after(m, t, 1) != -ECHILD ||
			kvp_grant_release_after(g, t, 1) != -ECHILD);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(kvp_timeline_reached(t, 1), 0);
	assert_int_equal(kvp_release_after(m, t, 1), 0);
	assert_int_equal(kvp_grant_release(g), 0);
}

/* ---- threads --------------------------------------------------------------------------------- */

struct stream {
	struct fixture *f;
	uint32_t rounds;
	KVP_ATOMIC(uint32_t) wrong;
};

/* Matches and releases "after", a few numbers ahead of what has been reached; reads until then. */
static void *stream_main(void *arg)
{
	struct stream *s = arg;
	struct kvp_timeline *t = timeline(s->f);
	const uint8_t *addr[4] = { 0 };

	for (uint32_t i = 1; i <= s->rounds; i++) {
		if (i > 4) {
			for (uint32_t b = 0; b < BYTES; b++)
				s->wrong += addr[i % 4][b] != 0x10 + TOKENS / T - 1;
			assert_int_equal(kvp_timeline_advance(t, i - 4), 0);
		}
		assert_int_equal(kvp_release_after(match(s->f, &addr[i % 4]), t, i), 0);
	}
	kvp_timeline_free(t);
	return NULL;
}

static void test_threads(void **state)
{
	struct fixture *f = *state;
	struct stream s = { .f = f, .rounds = 2000 };
	pthread_t thread[THREADS];

	store(f);
	for (uint32_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, stream_main, &s), 0);
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	assert_int_equal(s.wrong, 0);
	assert_int_equal(fake_leases(f->fake), 0);
}

#define WITH_FIXTURE(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FIXTURE(test_numbers),
		WITH_FIXTURE(test_how_many),
		WITH_FIXTURE(test_release_after),
		WITH_FIXTURE(test_all_leases),
		WITH_FIXTURE(test_free_ends_all),
		WITH_FIXTURE(test_grants),
		WITH_FIXTURE(test_put_past_a_commit_that_waits),
		WITH_FIXTURE(test_wakes),
		WITH_FIXTURE(test_daemon_goes),
		WITH_FIXTURE(test_forked_child),
		WITH_FIXTURE(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
