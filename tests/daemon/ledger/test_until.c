/* SPDX-License-Identifier: Apache-2.0 */
/* What is over, or is to happen, at a moment on a timeline of a client: leases. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

#include "tests/daemon/ledger/dp_world.h"

#define T 16u

static void make_tokens(kvp_token *out, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = seed * 1000 + i;
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

static void advance(struct dp_client *c, uint32_t timeline, uint64_t value)
{
	kvp_store_release(&c->page->done[timeline].value, value);
}

/* Leases the last of n hits until that moment. */
static void lease_until(struct dp_client *c, const struct kvp_hit *hit, uint32_t n,
	uint32_t timeline, uint64_t value)
{
	const struct kvp_hit *tip = &hit[n - 1];
	struct kvp_lease lease;

	assert_int_equal(
		kvp_lease_take(c->page, 0, &c->view.blocks[tip->id], tip->id, tip->word, &lease),
		0);
	kvp_lease_drop_at(c->page, &lease, kvp_until(timeline, value));
}

/* More other blocks than there is room for. */
static void churn(struct dp_client *c, uint32_t space, uint32_t seed)
{
	kvp_token tokens[T];

	for (uint32_t i = 0; i < 20; i++) {
		make_tokens(tokens, T, seed + i);
		put_chain(c, space, tokens, 1);
	}
}

static void leased_until_a_moment(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token chain[4 * T];
	struct kvp_hit hit[4];
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 6;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	make_tokens(chain, 4 * T, 1);
	put_chain(c, space, chain, 4);
	assert_int_equal(dp_find(c, space, chain, 4 * T, hit, 4), 4);
	lease_until(c, hit, 4, 2, 7);
	churn(c, space, 100);
	assert_int_equal(kvp_revalidate(&c->view, hit, 4), 4);
	advance(c, 2, 6);
	advance(c, 3, 7);
	churn(c, space, 200);
	assert_int_equal(kvp_revalidate(&c->view, hit, 4), 4);
	advance(c, 2, 7);
	churn(c, space, 300);
	assert_int_equal(dp_find(c, space, chain, 4 * T, hit, 4), 0);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * A block that has to move is read at its old place until the moment: its slot stays in limbo, so
 * that its extent is not empty and nobody is told to unmap it.
 */
static void limbo_until_a_moment(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token chain[3 * T];
	struct kvp_hit hit[3];
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
	lease_until(b, hit, 3, 31, 1);
	dp_detach(a);
	for (int i = 0; i < 400 && dp_figure(&w, "moves_total") < 3; i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "moves_total"), 3);
	/* Longer than limbo is looked at, once a second. */
	for (int i = 0; i < 150; i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_true(dp_figure(&w, "arena_bytes") > 0);
	for (uint32_t i = 0; i < 3; i++) {
		assert_non_null(b->extent[kvp_where_extent(hit[i].where)].addr);
		assert_true(dp_payload_right(b, &hit[i], chain + i * T, T));
	}
	dp_check(&w);
	advance(b, 31, 1);
	for (int i = 0; i < 400 && dp_figure(&w, "arena_bytes"); i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "arena_bytes"), 0);
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leased_until_a_moment),
		cmocka_unit_test(limbo_until_a_moment),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
