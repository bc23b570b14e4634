/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Releases and commits that take effect at a moment on a timeline, against a real kvpoold
 * (KVPOOL_SOCKET). What fails prints where and ends the program with status 1.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/libclient/live.h"

#define BYTES (T * TOKEN_BYTES)

static struct kvp_timeline *timeline(struct engine *e)
{
	struct kvp_timeline *t;

	EQUAL(kvp_timeline_new(e->client, &t), 0);
	return t;
}

static struct kvp_grant *reserve(struct engine *e)
{
	struct kvp_grant *g;

	EQUAL(kvp_reserve(e->space, WAIT_MS, NULL, &g), 0);
	return g;
}

/* Whole blocks of the engine's prompt that can be read. */
static uint32_t blocks(struct engine *e, uint32_t n)
{
	struct kvp_prefix_info i;

	kvp_release(find(e, n * T, KVP_MATCH_NO_TAIL, &i));
	return i.n_blocks;
}

/* The next block after `parent`, which it becomes; `t` NULL: at once. */
static struct kvp_grant *extend(struct engine *e, uint32_t i, struct kvp_ref *parent,
	struct kvp_timeline *t, uint64_t value)
{
	struct kvp_grant *g = reserve(e);
	const uint32_t *tokens = e->tokens + i * T;

	memset(kvp_grant_addr(g), (int)i, BYTES);
	EQUAL(t ? kvp_commit_after(g, *parent, tokens, T, NULL, 0, t, value)
		: kvp_commit(g, *parent, tokens, T, NULL, 0),
		0);
	EQUAL(kvp_grant_ref(g, parent), 0);
	return g;
}

/* A commit that waits is no silence of the daemon's, and holds nothing else up. */
static void test_waits(void)
{
	struct engine *e = engine_new("after", 0, 1), *other = engine_new("after", 0, 2);
	struct kvp_timeline *t = timeline(e), *theirs = timeline(other);
	struct kvp_counters s = { .size = sizeof(s) };
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *g;

	g = reserve(e);
	EQUAL(kvp_commit_after(g, parent, e->tokens, T, NULL, 0, NULL, 3), -EINVAL);
	EQUAL(kvp_commit_after(g, parent, e->tokens, T, NULL, 0, theirs, 3), -EINVAL);
	EQUAL(kvp_commit_after(g, parent, e->tokens, T, NULL, 0, t, KVP_TIMELINE_MAX + 1), -EINVAL);
	EQUAL(kvp_grant_release(g), 0);
	g = extend(e, 0, &parent, t, 3);
	EQUAL(kvp_grant_wait(g, 0), -ETIMEDOUT);
	EQUAL(kvp_grant_wait(g, 150), -ETIMEDOUT);
	EQUAL(kvp_flush(e->client, 150), -ETIMEDOUT);
	EQUAL(kvp_stats(e->client, &s), 0);
	EQUAL(s.stuck, 0);
	EQUAL(s.timeouts, 0);
	EQUAL(blocks(e, 1), 0);
	EQUAL(kvp_timeline_advance(t, 2), 0);
	/* More commits than the library has records of, meanwhile. */
	for (uint32_t i = 0; i < 1000; i++) {
		struct kvp_grant *more = reserve(e);
		uint32_t tokens[T] = { 77, i };

		memset(kvp_grant_addr(more), 0, BYTES);
		EQUAL(kvp_commit(more, kvp_ref_root(), tokens, T, NULL, 0), 0);
		EQUAL(kvp_grant_wait(more, WAIT_MS), 0);
		EQUAL(kvp_grant_release(more), 0);
	}
	EQUAL(blocks(e, 1), 0);
	EQUAL(kvp_timeline_advance(t, 3), 0);
	EQUAL(kvp_grant_wait(g, WAIT_MS), 0);
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	EQUAL(found_soon(e, 1 * T, KVP_MATCH_NO_TAIL, 1 * T), 1 * T);
	EQUAL(kvp_grant_release(g), 0);
	/* A number that was reached is now. */
	g = extend(e, 1, &parent, t, 1);
	EQUAL(kvp_grant_wait(g, WAIT_MS), 0);
	EQUAL(found_soon(e, 2 * T, KVP_MATCH_NO_TAIL, 2 * T), 2 * T);
	EQUAL(kvp_grant_release(g), 0);
	engine_free(other);
	engine_free(e);
}

/* A chain over two streams, with a commit of the ordinary kind in it, comes in order. */
static void test_chain(void)
{
	struct engine *e = engine_new("after", 0, 3);
	struct kvp_timeline *a = timeline(e), *b = timeline(e);
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *g[5];

	g[0] = extend(e, 0, &parent, a, 1);
	g[1] = extend(e, 1, &parent, b, 1);
	g[2] = extend(e, 2, &parent, NULL, 0);
	g[3] = extend(e, 3, &parent, b, 2);
	g[4] = extend(e, 4, &parent, a, 2);
	EQUAL(kvp_timeline_advance(b, 1), 0);
	EQUAL(kvp_grant_wait(g[2], 100), -ETIMEDOUT);
	EQUAL(blocks(e, 5), 0);
	EQUAL(kvp_grant_release(g[1]), 0);
	EQUAL(kvp_grant_release_after(g[0], a, 1), 0);
	EQUAL(kvp_timeline_advance(a, 2), 0);
	EQUAL(kvp_grant_wait(g[2], WAIT_MS), 0);
	EQUAL(found_soon(e, 5 * T, KVP_MATCH_NO_TAIL, 3 * T), 3 * T);
	/* Freed, a timeline holds nothing back. */
	kvp_timeline_free(b);
	EQUAL(kvp_grant_wait(g[4], WAIT_MS), 0);
	EQUAL(kvp_grant_wait(g[3], WAIT_MS), 0);
	EQUAL(found_soon(e, 5 * T, KVP_MATCH_NO_TAIL, 5 * T), 5 * T);
	for (uint32_t i = 2; i < 5; i++)
		EQUAL(kvp_grant_release(g[i]), 0);
	engine_free(e);
}

/* To forget blocks is no matter of any moment. */
static void test_delete(void)
{
	struct engine *e = engine_new("after", 0, 7);
	struct kvp_timeline *t = timeline(e);
	struct kvp_ref parent = kvp_ref_root();
	uint32_t tokens[T] = { 79 };
	struct kvp_grant *g = reserve(e), *other;

	EQUAL(kvp_commit_after(g, kvp_ref_root(), tokens, T, NULL, 0, t, 1), 0);
	other = extend(e, 0, &parent, NULL, 0);
	EQUAL(kvp_grant_wait(other, WAIT_MS), 0);
	EQUAL(kvp_grant_release(other), 0);
	EQUAL(found_soon(e, 1 * T, KVP_MATCH_NO_TAIL, 1 * T), 1 * T);
	EQUAL(kvp_delete(e->space, e->tokens, T, WAIT_MS), 1);
	EQUAL(blocks(e, 1), 0);
	EQUAL(kvp_grant_wait(g, 0), -ETIMEDOUT);
	EQUAL(kvp_timeline_advance(t, 1), 0);
	EQUAL(kvp_grant_wait(g, WAIT_MS), 0);
	EQUAL(kvp_grant_release(g), 0);
	engine_free(e);
}

static const uint8_t *last_block(struct engine *e, struct kvp_prefix **ret_prefix)
{
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_prefix_info i;

	*ret_prefix = find_soon(e, 4 * T, 4 * T, &i);
	EQUAL(i.flags, KVP_MATCHED_LEASED);
	EQUAL(kvp_payload(*ret_prefix, 3, &p), 0);
	return p.addr;
}

static int is_mapped(const uint8_t *addr)
{
	unsigned char in_memory;

	return mincore((void *)((uintptr_t)addr / 4096 * 4096), 1, &in_memory) == 0;
}

/*
 * The daemon moves the blocks of a client that has gone and gives its memory back. What is released
 * "after" is read where it was until then, and no longer.
 */
static void test_moved(void)
{
	struct engine *writer = engine_new("moved", 0, 6), *e = engine_new("moved", 0, 6);
	struct kvp_timeline *t = timeline(e);
	const uint8_t *addr, *now;
	uint8_t kept[T];
	struct kvp_prefix *m;

	store(writer, 4 * T, 0);
	addr = last_block(e, &m);
	memcpy(kept, addr, sizeof(kept));
	EQUAL(kvp_release_after(m, t, 1), 0);
	engine_free(writer);
	for (uint32_t n = 0; n < 6000; n++) {
		now = last_block(e, &m);
		EQUAL(kvp_release(m), 0);
		if (now != addr)
			break;
		usleep(10000);
	}
	CHECK(now != addr);
	/* Longer than the daemon takes to look for memory that can go. */
	usleep(1500000);
	CHECK(is_mapped(addr));
	EQUAL(memcmp(addr, kept, sizeof(kept)), 0);
	EQUAL(kvp_timeline_advance(t, 1), 0);
	for (uint32_t n = 0; n < 6000 && is_mapped(addr); n++)
		usleep(10000);
	CHECK(!is_mapped(addr));
	engine_free(e);
}

/* ---- streams --------------------------------------------------------------------------------- */

#define STREAMS 4u
#define STEPS   300u

struct stream {
	struct engine *e;
	uint32_t number;
	_Atomic(uint32_t) *stop;
	_Atomic(uint32_t) *seen;
};

static void step_tokens(uint32_t stream, uint32_t step, uint32_t tokens[T])
{
	for (uint32_t i = 0; i < T; i++)
		tokens[i] = 5000000 + stream * 100000 + step * 100 + i;
}

/* Commits each block before it is written, as an engine does that enqueues its kernels. */
static void *writer_main(void *arg)
{
	struct stream *s = arg;
	struct kvp_timeline *t = timeline(s->e);

	for (uint32_t i = 1; i <= STEPS; i++) {
		struct kvp_grant *g = reserve(s->e);
		uint8_t *slot = kvp_grant_addr(g);
		uint32_t tokens[T];

		step_tokens(s->number, i, tokens);
		memset(slot, 0, BYTES);
		EQUAL(kvp_commit_after(
			      g, kvp_ref_root(), tokens, T, NULL, KVP_COMMIT_RELEASE, t, i),
			0);
		for (uint32_t b = 0; b < BYTES; b++)
			slot[b] = (uint8_t)(i | 1);
		EQUAL(kvp_timeline_advance(t, i), 0);
	}
	kvp_timeline_free(t);
	return NULL;
}

/* Whatever it finds is written. */
static void *reader_main(void *arg)
{
	struct stream *s = arg;
	uint32_t at = 0;

	while (!atomic_load(s->stop)) {
		uint32_t stream = at % STREAMS, step = 1 + at / STREAMS % STEPS, tokens[T];
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_prefix *m;

		at++;
		step_tokens(stream, step, tokens);
		EQUAL(kvp_match(s->e->space, tokens, T, NULL, &m), 0);
		if (kvp_payload(m, 0, &p) == 0) {
			const uint8_t *bytes = p.addr;

			for (uint32_t b = 0; b < BYTES; b++)
				EQUAL(bytes[b], (uint8_t)(step | 1));
			atomic_fetch_add(s->seen, 1);
		}
		EQUAL(kvp_release(m), 0);
	}
	return NULL;
}

static void test_streams(void)
{
	struct engine *writer = engine_new("after", 0, 4), *reader = engine_new("after", 0, 5);
	_Atomic(uint32_t) stop = 0, seen = 0;
	struct stream s[STREAMS], r = { .e = reader, .stop = &stop, .seen = &seen };
	pthread_t thread[STREAMS], reads;

	EQUAL(pthread_create(&reads, NULL, reader_main, &r), 0);
	for (uint32_t i = 0; i < STREAMS; i++) {
		s[i] = (struct stream){ .e = writer, .number = i };
		EQUAL(pthread_create(&thread[i], NULL, writer_main, &s[i]), 0);
	}
	for (uint32_t i = 0; i < STREAMS; i++)
		pthread_join(thread[i], NULL);
	EQUAL(kvp_flush(writer->client, WAIT_MS), 0);
	for (uint32_t n = 0; !atomic_load(&seen) && n < 12000; n++)
		usleep(5000);
	atomic_store(&stop, 1);
	pthread_join(reads, NULL);
	CHECK(atomic_load(&seen) > 0);
	engine_free(writer);
	engine_free(reader);
}

int main(void)
{
	static const struct live_test tests[] = {
		/* First, while there is room to move to that nobody has to be evicted for. */
		{ "moved", test_moved },
		{ "waits", test_waits },
		{ "chain", test_chain },
		{ "delete", test_delete },
		{ "streams", test_streams },
	};

	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
