/* SPDX-License-Identifier: Apache-2.0 */
/* Matches handed from one client to another, beside a real daemon that evicts all the while. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/libclient/live.h"

/* Waits for memory that the library has to map first. */
static int take_over(struct engine *e, const struct kvp_handover *h, struct kvp_prefix **ret)
{
	int r = -EAGAIN;

	for (int i = 0; i < 60000 && r == -EAGAIN; i++) {
		r = kvp_match_import(e->space, h, ret);
		if (r == -EAGAIN)
			usleep(1000);
	}
	return r;
}

static void no_more_than(struct kvp_prefix *m, uint32_t blocks)
{
	struct kvp_payload_info p = { .size = sizeof(p) };

	EQUAL(kvp_payload(m, blocks - 1, &p), 0);
	EQUAL(kvp_payload(m, blocks, &p), -ENOENT);
}

/* Whole, partial, and with a tail: the other one has the same prefix. */
static void the_same_prefix(void)
{
	struct engine *a = engine_new("handed", KVP_LAYOUT_LCND, 1);
	struct engine *b = engine_new("handed", KVP_LAYOUT_LCND, 1);
	static const uint32_t lengths[] = { 5 * T, 5 * T + 20, 2 * T + 9, T, 30 };

	store(a, 5 * T + 20, KVP_PUT_PARTIAL);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct kvp_prefix_info ia, ib = { .size = sizeof(ib) };
		struct kvp_prefix *ma = find_soon(a, lengths[i], lengths[i], &ia), *mb;
		struct kvp_handover h;

		EQUAL(kvp_match_export(ma, &h), 0);
		EQUAL(take_over(b, &h, &mb), 0);
		EQUAL(kvp_release(ma), 0);
		EQUAL(kvp_match_info(mb, &ib), 0);
		EQUAL(ib.flags, KVP_MATCHED_LEASED);
		EQUAL(ib.n_blocks, ia.n_blocks);
		EQUAL(ib.n_tokens, ia.n_tokens);
		EQUAL(ib.tail_tokens, ia.tail_tokens);
		same_bytes(b, mb, lengths[i]);
		no_more_than(mb, ib.n_blocks + (ib.tail_tokens > 0));
		EQUAL(kvp_release(mb), 0);
	}
	engine_free(a);
	engine_free(b);
}

/* ---- what is refused ------------------------------------------------------------------------ */

static void what_cannot_be_handed_over(void)
{
	struct engine *a = engine_new("refused", KVP_LAYOUT_LCND, 2);
	struct engine *other = engine_new("another", KVP_LAYOUT_LCND, 2);
	struct kvp_prefix_info info;
	struct kvp_prefix *m = find(a, T, 0, &info), *got = NULL;
	struct kvp_handover h, bad;

	EQUAL(kvp_match_export(m, &h), -ENOENT);
	EQUAL(kvp_match_export(NULL, &h), -EINVAL);
	EQUAL(kvp_match_export(m, NULL), -EINVAL);
	kvp_release(m);
	store(a, 3 * T, 0);
	m = find_soon(a, 3 * T, 3 * T, &info);
	EQUAL(kvp_match_export(m, &h), 0);
	EQUAL(kvp_match_import(NULL, &h, &got), -EINVAL);
	EQUAL(kvp_match_import(a->space, NULL, &got), -EINVAL);
	EQUAL(kvp_match_import(a->space, &h, NULL), -EINVAL);
	EQUAL(kvp_match_import(other->space, &h, &got), -ESTALE);
	/* Every bit counts, but those that make it another tail of the same block. */
	for (uint32_t bit = 0; bit < 5 * 64; bit++) {
		if (bit / 64 == 1 && bit % 64 >= 32 && bit % 64 < 32 + 7)
			continue;
		bad = h;
		bad.opaque[bit / 64] ^= UINT64_C(1) << bit % 64;
		EQUAL(kvp_match_import(a->space, &bad, &got), -ESTALE);
	}
	srandom(7);
	for (uint32_t i = 0; i < 100000; i++) {
		for (uint32_t k = 0; k < 5; k++)
			bad.opaque[k] = i >> k & 1 ? h.opaque[k]
						   : (uint64_t)random() << 40 ^ (uint64_t)random();
		if (memcmp(&bad, &h, sizeof(h)) != 0)
			EQUAL(kvp_match_import(a->space, &bad, &got), -ESTALE);
	}
	CHECK(!got);
	/* Nothing is left of all that: its blocks go at once. */
	EQUAL(kvp_release(m), 0);
	EQUAL(kvp_match_export(m, &h), -EINVAL);
	EQUAL(kvp_delete(a->space, a->tokens, 3 * T, WAIT_MS), 3);
	m = find(a, 3 * T, 0, &info);
	EQUAL(info.n_tokens, 0);
	kvp_release(m);
	EQUAL(kvp_match_import(a->space, &h, &got), -ESTALE);
	engine_free(a);
	engine_free(other);
}

/* ---- no window ------------------------------------------------------------------------------ */

static atomic_bool enough;

/* Others' prompts, each of which makes room for itself. */
static void *others(void *arg)
{
	struct engine *e = engine_new("others", KVP_LAYOUT_LCND, 1000);
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };

	(void)arg;
	for (uint32_t seed = 1000; !atomic_load(&enough); seed++) {
		fill(e, seed);
		CHECK(kvp_put(e->space, e->tokens, N, 0, &e->view, &o, NULL) >= 0);
	}
	engine_free(e);
	return NULL;
}

/*
 * A scheduler matches, a worker takes it over, the scheduler lets go: what the worker then reads is
 * what was matched, however much is evicted. A worker that comes too late is told so, or gets it all.
 */
static void no_moment_between(void)
{
	struct engine *a = engine_new("window", KVP_LAYOUT_LCND, 3);
	struct engine *b = engine_new("window", KVP_LAYOUT_LCND, 3);
	uint32_t late = 0, in_time = 0;
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, others, NULL) == 0);
	for (uint32_t i = 0; i < 300; i++) {
		struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
		struct kvp_prefix_info info;
		struct kvp_prefix *m, *got = NULL;
		struct kvp_handover h;
		int r;

		CHECK(kvp_put(a->space, a->tokens, 8 * T, 0, &a->view, &o, NULL) >= 0);
		EQUAL(kvp_flush(a->client, WAIT_MS), 0);
		m = find(a, 8 * T, 0, &info);
		if (!info.n_tokens) {
			kvp_release(m);
			continue;
		}
		EQUAL(kvp_match_export(m, &h), 0);
		if (i % 3) {
			EQUAL(take_over(b, &h, &got), 0);
			EQUAL(kvp_release(m), 0);
			in_time++;
		} else {
			EQUAL(kvp_release(m), 0);
			if (i % 2)
				CHECK(kvp_delete(a->space, a->tokens, 8 * T, WAIT_MS) >= 0);
			usleep(i % 5 * 3000);
			r = take_over(b, &h, &got);
			CHECK(r == 0 || r == -ESTALE);
			late += r == -ESTALE;
		}
		if (!got)
			continue;
		usleep(2000);
		same_bytes(b, got, info.n_tokens);
		EQUAL(kvp_release(got), 0);
	}
	atomic_store(&enough, true);
	CHECK(pthread_join(thread, NULL) == 0);
	printf("taken over in time %u times; too late %u times\n", in_time, late);
	CHECK(in_time > 100 && late);
	engine_free(a);
	engine_free(b);
}

int main(void)
{
	static const struct live_test tests[] = {
		{ "the same prefix", the_same_prefix },
		{ "what cannot be handed over", what_cannot_be_handed_over },
		{ "no moment between", no_moment_between },
	};

	return live_main(tests, sizeof(tests) / sizeof(tests[0]));
}
