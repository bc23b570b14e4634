/* SPDX-License-Identifier: Apache-2.0 */
/* Memory given back, for a machine that is short of it or for a share that was lowered, while nobody puts. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kvp_codec.h"
#include "shm/kvp_abi.h"
#include "tests/daemon/ledger/dp_world.h"

#define MIB   (UINT64_C(1) << 20)
#define T     16u
#define BLOCK (UINT64_C(64) << 10)

static void tokens_of(uint32_t seed, kvp_token *out)
{
	for (uint32_t i = 0; i < T; i++)
		out[i] = seed * 1000 + i;
}

/* Blocks that are first of their chains. */
static void put_many(
	struct dp_client *c, uint32_t space, uint32_t first, uint32_t n, struct dp_block *b)
{
	kvp_token tokens[T];

	for (uint32_t i = 0; i < n; i++) {
		tokens_of(first + i, tokens);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &b[i]), 0);
	}
}

/* How many of these are cached, and lie in memory of this kind. */
static uint32_t lying_in(struct dp_client *c, const struct dp_block *b, uint32_t n, uint32_t kind)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct kvp_block *d = &c->view.blocks[b[i].id];
		uint64_t word = kvp_load_acquire(&d->word);
		uint64_t where = kvp_load_relaxed(&d->payload[KVP_TIER_DRAM].where);

		found += kvp_word_birth(word) == b[i].birth && where &&
			 kvp_word_state(word) == KVP_BLOCK_LIVE &&
			 kvp_load_relaxed(&c->view.extents[kvp_where_extent(where)].kind) == kind;
	}
	return found;
}

static void lower_share(struct dp_world *w, const struct kvpd_limits *limits, uint64_t share)
{
	struct kvpd_tenant_config tenant = { .name = (char *)(uintptr_t) "one", .limits = *limits };

	tenant.limits.share = share;
	w->config.tenants = &tenant;
	w->config.n_tenants = 1;
	assert_int_equal(kvpd_reconfigure(w->ledger, &w->config), 0);
	w->config.tenants = NULL;
	w->config.n_tenants = 0;
}

/*
 * Blocks in a client's arena are the least useful, and the arena stays its client's: to evict them would free
 * nothing. What is given back is emptied by evicting others, and no more than it takes.
 */
static void what_lies_in_arenas_stays(void **state)
{
	struct dp_block *few = calloc(64, sizeof(*few)), *many = calloc(700, sizeof(*many));
	struct kvpd_limits limits;
	struct dp_client *a, *b;
	struct dp_world w;
	uint64_t charged, coming, gone;
	uint32_t space, stay;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.memory = limits.share; /* nothing is in stock, which would go first */
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_large_space(a, "m", BLOCK);
	assert_int_equal(dp_large_space(b, "m", BLOCK), space);
	put_many(a, space, 0, 64, few);
	put_many(b, space, 1000, 700, many);
	assert_int_equal(dp_figure(&w, "evictions_total"), 0);
	stay = lying_in(a, few, 64, KVP_EXTENT_ARENA);
	assert_in_range(stay, 32, 64);
	charged = dp_figure(&w, "charged_bytes");
	assert_int_equal(kvpd_relieve(w.ledger, 16 * MIB, &coming), 0);
	assert_int_equal(coming, 16 * MIB);
	dp_await_most(&w, "charged_bytes", charged - 16 * MIB);
	assert_int_equal(lying_in(a, few, 64, KVP_EXTENT_ARENA), stay);
	gone = dp_figure(&w, "evictions_total");
	print_message("%llu blocks went for 16 MiB\n", (unsigned long long)gone);
	assert_in_range(gone, 1, 18 * MIB / BLOCK);
	dp_check(&w);
	dp_stop(&w);
	free(few);
	free(many);
}

#define TIPS 300u /* more than one search meets */

/* Where all that could go but for arenas is above what lies there, that goes: memory has to be given back. */
static void tips_in_arenas_hold_up_nothing(void **state)
{
	struct dp_block parent[TIPS], tip[TIPS];
	struct kvpd_limits limits;
	struct dp_client *a, *b;
	struct dp_world w;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 32 * MIB;
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	space = dp_large_space(a, "m", BLOCK / 4);
	put_many(a, space, 0, TIPS, parent);
	dp_detach(a); /* they are moved into the vault */
	dp_await_most(&w, "arena_bytes", 0);
	b = dp_attach(&w, w.tenant);
	assert_int_equal(dp_large_space(b, "m", BLOCK / 4), space);
	for (uint32_t i = 0; i < TIPS; i++) {
		kvp_token tokens[T];

		tokens_of(TIPS + i, tokens);
		assert_int_equal(dp_put(b, space, dp_ref(&parent[i]), tokens, T, &tip[i]), 0);
	}
	assert_int_equal(lying_in(b, parent, TIPS, KVP_EXTENT_VAULT), TIPS);
	assert_in_range(lying_in(b, tip, TIPS, KVP_EXTENT_ARENA), TIPS / 2, TIPS);
	lower_share(&w, &limits, dp_figure(&w, "metadata_bytes") + 2 * MIB);
	dp_await_most(&w, "charged_bytes", dp_figure(&w, "metadata_bytes") + 2 * MIB);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- a share that was lowered ---------------------------------------------------------------- */

/* The arenas of sessions that do nothing. */
static void idle_arenas_are_emptied(void **state)
{
	struct kvpd_limits limits;
	struct dp_client *c[12];
	struct dp_block b[40];
	struct dp_world w;
	uint64_t least;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	for (uint32_t i = 0; i < 12; i++) {
		c[i] = dp_attach(&w, w.tenant);
		space = dp_large_space(c[i], "m", BLOCK);
		put_many(c[i], space, 100 * i, 40, b);
	}
	least = dp_figure(&w, "metadata_bytes") + 6 * MIB;
	assert_true(dp_figure(&w, "arena_bytes") > 12 * MIB);
	lower_share(&w, &limits, least);
	dp_await_most(&w, "charged_bytes", least);
	dp_check(&w);
	dp_stop(&w);
}

#define MANY 16000u

/* Blocks that may be coded are coded first; where that does not come to it they are evicted. */
static void coded_blocks_hold_up_nothing(void **state)
{
	struct dp_block *b = calloc(MANY, sizeof(*b));
	struct kvp_space_canon canon;
	struct kvp_msg_space space;
	struct kvpd_limits limits;
	char why[KVP_MSG_TEXT];
	struct dp_client *c;
	struct dp_world w;
	uint64_t least;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 128 * MIB;
	limits.max_blocks = 20000;
	limits.recipe_tokens = 20000 * T;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	dp_canon(&canon, "m", 2);
	for (uint32_t i = 0; i < 2; i++) {
		canon.layers[i].kv_heads = 2;
		canon.layers[i].k_dim = canon.layers[i].v_dim = 64;
	}
	assert_int_equal(kvp_codec_parse_pair("tq4", &canon.floor_k, &canon.floor_v), 0);
	assert_int_equal(dp_open(c, &canon, why, sizeof(why), &space), 0);
	put_many(c, space.space, 0, MANY, b);
	assert_true(dp_figure(&w, "coded_blocks") > 100);
	least = dp_figure(&w, "metadata_bytes") + 4 * MIB;
	lower_share(&w, &limits, least);
	dp_await_most(&w, "charged_bytes", least);
	dp_check(&w);
	dp_stop(&w);
	free(b);
}

#define HELD 3u

/*
 * Leases that last hold up the extents that they are on and no others: one that cannot be emptied is given up
 * for a while, and another is.
 */
static void leases_hold_up_their_extents_alone(void **state)
{
	struct dp_block *b = calloc(700, sizeof(*b));
	bool *holds = calloc(KVP_MAX_EXTENTS, sizeof(*holds));
	struct kvp_lease lease[HELD];
	struct kvpd_limits limits;
	struct dp_client *a, *c;
	kvp_token tokens[T];
	struct kvp_hit hit;
	struct dp_world w;
	uint32_t space, held = 0, x;
	uint64_t least, bytes = 0;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	space = dp_large_space(a, "m", BLOCK);
	put_many(a, space, 0, 700, b);
	dp_detach(a); /* they are moved into the vault */
	dp_await_most(&w, "arena_bytes", 0);
	c = dp_attach(&w, w.tenant);
	assert_int_equal(dp_large_space(c, "m", BLOCK), space);
	/* One block in each of some extents, whichever of them is chosen first. */
	for (uint32_t i = 0; i < 700 && held < HELD; i++) {
		tokens_of(i, tokens);
		if (dp_find(c, space, tokens, T, &hit, 1) != 1)
			continue;
		x = kvp_where_extent(hit.where);
		if (holds[x])
			continue;
		assert_true(dp_lease(c, &hit, 1, &lease[held++]));
		holds[x] = true;
		bytes += kvp_load_relaxed(&c->view.extents[x].bytes);
	}
	assert_int_equal(held, HELD);
	print_message("%llu KiB are held in %u extents\n", (unsigned long long)(bytes >> 10), held);
	least = dp_figure(&w, "metadata_bytes") + bytes + 8 * MIB;
	assert_true(dp_figure(&w, "charged_bytes") > least + 8 * MIB);
	lower_share(&w, &limits, least);
	dp_await_most(&w, "charged_bytes", least);
	for (uint32_t i = 0; i < HELD; i++)
		kvp_lease_drop(&lease[i]);
	least -= bytes;
	lower_share(&w, &limits, least);
	dp_await_most(&w, "charged_bytes", least);
	dp_check(&w);
	dp_stop(&w);
	free(holds);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_lies_in_arenas_stays),
		cmocka_unit_test(tips_in_arenas_hold_up_nothing),
		cmocka_unit_test(idle_arenas_are_emptied),
		cmocka_unit_test(coded_blocks_hold_up_nothing),
		cmocka_unit_test(leases_hold_up_their_extents_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
