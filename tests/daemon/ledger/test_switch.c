/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that are switched over to another place, and who looks for them or reads them meanwhile. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/ledger/limbo.h"
#include "tests/daemon/ledger/dp_world.h"

#define T      16u
#define CHAINS 24u
#define DEPTH  8u
#define CROWD  28u /* other sessions, all of whose lease slots are filled */

/* ---- memory that cannot be had -------------------------------------------------------------- */

static KVP_ATOMIC(uint32_t) to_fail;

void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);

/* Room for the first holders of a limbo is refused some times. */
void *__wrap_realloc(void *p, size_t bytes)
{
	if (!p && bytes == 64 * sizeof(struct kvpd_limbo_holder) && kvp_load_relaxed(&to_fail)) {
		kvp_add_relaxed(&to_fail, -1u);
		return NULL;
	}
	return __real_realloc(p, bytes);
}

/* ---- what is the same for all --------------------------------------------------------------- */

static void make_tokens(kvp_token *out, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = seed * 100000 + i;
}

static void put_chain(struct dp_client *c, uint32_t space, const kvp_token *tokens, uint32_t n)
{
	struct dp_ref parent = dp_root();
	struct dp_block block;

	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(dp_put(c, space, parent, tokens + i * T, T, &block), 0);
		parent = dp_ref(&block);
	}
}

static void await_moves(struct dp_world *w, uint64_t n)
{
	for (int i = 0; i < 60000 && dp_figure(w, "moves_total") < n; i++) {
		dp_pump(w);
		usleep(1000);
	}
	assert_int_equal(dp_figure(w, "moves_total"), n);
}

static void await_no_arena(struct dp_world *w)
{
	for (int i = 0; i < 6000 && dp_figure(w, "arena_bytes"); i++) {
		dp_pump(w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(w, "arena_bytes"), 0);
}

/* ---- looking -------------------------------------------------------------------------------- */

struct looker {
	struct dp_client *c;
	uint32_t space;
	kvp_token tokens[CHAINS][DEPTH * T];
	KVP_ATOMIC(uint32_t) stop;
	uint64_t looks, misses;
};

static void *look(void *arg)
{
	struct looker *l = arg;
	struct kvp_hit hit[DEPTH];

	while (!kvp_load_acquire(&l->stop)) {
		for (uint32_t i = 0; i < CHAINS; i++, l->looks++)
			l->misses += dp_find(l->c, l->space, l->tokens[i], DEPTH * T, hit, DEPTH) <
				     DEPTH;
	}
	return NULL;
}

/* So many leases that it takes a while to look through them. */
static void fill_page(struct dp_client *c, const struct kvp_hit *hit)
{
	for (uint32_t i = 0; i < KVP_LEASES; i++) {
		struct kvp_lease lease;

		assert_int_equal(kvp_lease_take(c->page, i, &c->view.blocks[hit->id], hit->id,
					 hit->word, &lease),
			0);
	}
}

/* Blocks of a client that ends are copied to where the daemon owns them. All are found at every moment. */
static void what_moves_is_found(void **state)
{
	struct looker *l = calloc(1, sizeof(*l));
	struct dp_client *a, *b, *crowd[CROWD];
	struct kvpd_limits limits;
	struct dp_world w;
	struct kvp_hit hit;
	kvp_token own[T];
	pthread_t thread;
	(void)state;

	assert_non_null(l);
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	l->c = b;
	l->space = dp_space(a, "m", 64);
	assert_int_equal(dp_space(b, "m", 64), l->space);
	make_tokens(own, T, CHAINS);
	put_chain(b, l->space, own, 1);
	assert_int_equal(dp_find(b, l->space, own, T, &hit, 1), 1);
	for (uint32_t i = 0; i < CROWD; i++) {
		crowd[i] = dp_attach(&w, w.tenant);
		fill_page(crowd[i], &hit);
	}
	for (uint32_t i = 0; i < CHAINS; i++) {
		make_tokens(l->tokens[i], DEPTH * T, i);
		put_chain(a, l->space, l->tokens[i], DEPTH);
	}
	assert_int_equal(dp_figure(&w, "moves_total"), 0);
	assert_int_equal(pthread_create(&thread, NULL, look, l), 0);
	dp_detach(a);
	await_moves(&w, CHAINS * DEPTH);
	kvp_store_release(&l->stop, 1);
	pthread_join(thread, NULL);
	assert_true(l->looks > 0);
	assert_int_equal(l->misses, 0);
	for (uint32_t i = 0; i < CHAINS; i++) {
		struct kvp_hit hits[DEPTH];

		assert_int_equal(
			dp_read(b, l->space, l->tokens[i], DEPTH * T, KVP_TIERS_DRAM, hits, DEPTH),
			DEPTH);
	}
	dp_check(&w);
	dp_stop(&w);
	free(l);
}

/* ---- reading -------------------------------------------------------------------------------- */

/*
 * What is read under a lease stays in limbo, also while there is no memory to remember that lease: then slots are
 * read again, once a second, until there is.
 */
static void no_memory_for_limbo(void **state)
{
	struct dp_client *a, *b;
	struct kvpd_limits limits;
	struct kvp_hit hit[3], now[3];
	struct kvp_lease lease;
	struct dp_world w;
	kvp_token chain[3 * T];
	uint32_t space;
	(void)state;

	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 64);
	assert_int_equal(dp_space(b, "m", 64), space);
	make_tokens(chain, 3 * T, 1);
	put_chain(a, space, chain, 3);
	dp_pump(&w);
	assert_int_equal(dp_find(b, space, chain, 3 * T, hit, 3), 3);
	assert_true(dp_lease(b, hit, 3, &lease));
	kvp_store_relaxed(&to_fail, 2);
	dp_detach(a);
	await_moves(&w, 3);
	while (kvp_load_relaxed(&to_fail)) {
		dp_check(&w);
		for (uint32_t i = 0; i < 3; i++)
			assert_true(dp_payload_right(b, &hit[i], chain + i * T, T));
		dp_pump(&w);
		usleep(10000);
	}
	for (int i = 0; i < 120; i++) { /* longer than limbo is looked at */
		dp_pump(&w);
		usleep(10000);
	}
	assert_true(dp_figure(&w, "arena_bytes") > 0);
	assert_int_equal(dp_find(b, space, chain, 3 * T, now, 3), 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_true(dp_payload_right(b, &hit[i], chain + i * T, T));
		assert_int_not_equal(
			kvp_where_extent(now[i].where), kvp_where_extent(hit[i].where));
	}
	dp_check(&w);
	kvp_lease_drop(&lease);
	await_no_arena(&w);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * A block that moves between being found and being leased is followed to where it is: what was read of it then
 * belongs to its new word.
 */
static void what_moved_is_followed(void **state)
{
	struct dp_client *a, *b;
	struct kvpd_limits limits;
	struct kvp_hit hit[3], old[3];
	struct kvp_lease lease;
	struct dp_world w;
	kvp_token chain[3 * T];
	uint32_t space;
	(void)state;

	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 64);
	assert_int_equal(dp_space(b, "m", 64), space);
	make_tokens(chain, 3 * T, 1);
	put_chain(a, space, chain, 3);
	dp_pump(&w);
	assert_int_equal(dp_find(b, space, chain, 3 * T, hit, 3), 3);
	dp_detach(a);
	await_moves(&w, 3);
	await_no_arena(&w);
	assert_false(dp_lease(b, hit, 3, &lease));
	for (uint32_t i = 0; i < 3; i++) {
		old[i] = hit[i];
		assert_int_equal(kvp_hit_renew(&b->view, KVP_TIERS_DRAM, &hit[i]), 0);
		assert_int_not_equal(hit[i].word, old[i].word);
		assert_int_equal(kvp_word_birth(hit[i].word), kvp_word_birth(old[i].word));
	}
	assert_true(dp_lease(b, hit, 3, &lease));
	for (uint32_t i = 0; i < 3; i++)
		assert_true(dp_payload_right(b, &hit[i], chain + i * T, T));
	kvp_lease_drop(&lease);
	hit[0].word += kvp_word(1, 0, 0);
	assert_int_equal(kvp_hit_renew(&b->view, KVP_TIERS_DRAM, &hit[0]), -ESTALE);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_moves_is_found),
		cmocka_unit_test(no_memory_for_limbo),
		cmocka_unit_test(what_moved_is_followed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
