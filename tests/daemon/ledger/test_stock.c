/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of arenas that is made before anybody asks for it. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/stock.h"
#include "daemon/ledger/tenant.h"
#include "tests/daemon/ledger/dp_world.h"

#define MIB (UINT64_C(1) << 20)
#define T   16u

static uint64_t stock(struct dp_world *w)
{
	struct kvpd_figures f;
	uint64_t bytes;

	assert_int_equal(dp_figures(w, NULL, 0, &f), 0);
	bytes = f.stock_bytes;
	kvpd_figures_fini(&f);
	return bytes;
}

static void await_stock(struct dp_world *w, uint64_t bytes)
{
	for (uint32_t i = 0; i < DP_WAIT_MS && stock(w) != bytes; i++)
		usleep(1000);
	assert_int_equal(stock(w), bytes);
}

static struct kvpd_limits begin(struct dp_world *w, uint64_t memory, uint64_t share)
{
	struct kvpd_limits limits;

	dp_defaults(w, &limits);
	w->config.memory = memory;
	w->config.extent = 64 * MIB;
	limits.share = share;
	limits.arena = share / 4;
	dp_start(w, &limits);
	return limits;
}

static void put(struct dp_client *c, uint32_t space, kvp_token token)
{
	kvp_token tokens[T];
	struct dp_block block;

	for (uint32_t k = 0; k < T; k++)
		tokens[k] = token + k;
	assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
}

/* It is there before the first session, whose arena comes out of it, and is filled up again; nobody is charged for it. */
static void an_arena_comes_out_of_it(void **state)
{
	struct dp_world w;
	struct dp_client *c;
	uint64_t before;

	(void)state;
	begin(&w, 512 * MIB, 128 * MIB);
	await_stock(&w, 64 * MIB);
	c = dp_attach(&w, w.tenant);
	before = dp_figure(&w, "charged_bytes");
	put(c, dp_large_space(c, "m", MIB / 2), 1);
	assert_int_equal(dp_figure(&w, "arena_bytes"), KVPD_STOCK_SEGMENT);
	assert_int_equal(dp_figure(&w, "charged_bytes") - before, KVPD_STOCK_SEGMENT);
	await_stock(&w, 64 * MIB);
	dp_check(&w);
	dp_stop(&w);
}

/* Blocks of which few fit into a segment get arenas made for them. */
static void large_blocks_get_arenas_of_their_own(void **state)
{
	struct dp_world w;
	struct dp_client *c;

	(void)state;
	begin(&w, 1024 * MIB, 512 * MIB);
	await_stock(&w, 128 * MIB);
	c = dp_attach(&w, w.tenant);
	put(c, dp_large_space(c, "m", MIB), 1);
	assert_int_equal(dp_figure(&w, "arena_bytes"), 16 * MIB);
	assert_int_equal(stock(&w), 128 * MIB);
	dp_check(&w);
	dp_stop(&w);
}

/* No more than what no tenant was promised: a tenant that gets the rest has it whole. */
static void what_is_promised_is_not_stocked(void **state)
{
	struct dp_world w;
	struct kvpd_limits limits;
	uint32_t other;

	(void)state;
	limits = begin(&w, 512 * MIB, 128 * MIB);
	await_stock(&w, 64 * MIB);
	limits.share = 364 * MIB;
	assert_int_equal(kvpd_tenant_open(w.ledger, "other", &limits, &other), 0);
	await_stock(&w, 16 * MIB);
	limits.share = 20 * MIB;
	assert_int_equal(kvpd_tenant_open(w.ledger, "third", &limits, &other), 0);
	await_stock(&w, 0);
	dp_check(&w);
	dp_stop(&w);
}

/* *arg: MiB of the first tenant's share that are taken from it while it has them all; given back where negative. */
static int lower(struct kvpd_ledger *l, void *arg)
{
	const int64_t bytes = *(int64_t *)arg * (int64_t)MIB;
	struct kvpd_tenant *t = l->tenant[1];

	t->charged += bytes > 0 ? t->limits.share - t->charged : 0;
	t->limits.share -= (uint64_t)bytes;
	l->shares -= (uint64_t)bytes;
	kvpd_stock_look(l);
	return 0;
}

/* What a tenant has beyond a share that was lowered is not there a second time. */
static void what_is_not_given_back_is_not_stocked(void **state)
{
	struct dp_world w;
	uint64_t charged;
	int64_t mib = 100;

	(void)state;
	begin(&w, 512 * MIB, 504 * MIB);
	await_stock(&w, 8 * MIB);
	charged = w.ledger->tenant[1]->charged;
	assert_int_equal(kvpd_ledger_ask(w.ledger, lower, &mib), 0);
	usleep(50000);
	assert_int_equal(stock(&w), 8 * MIB);
	mib = -100;
	assert_int_equal(kvpd_ledger_ask(w.ledger, lower, &mib), 0);
	w.ledger->tenant[1]->charged = charged;
	dp_check(&w);
	dp_stop(&w);
}

static void a_small_memory_has_none(void **state)
{
	struct dp_world w;
	struct dp_client *c;

	(void)state;
	begin(&w, 63 * MIB, 32 * MIB);
	c = dp_attach(&w, w.tenant);
	put(c, dp_space(c, "m", 4), 1);
	assert_int_equal(stock(&w), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* The machine is short of memory: it goes before anything that somebody needs. */
static void it_goes_first_when_memory_is_short(void **state)
{
	struct dp_world w;
	struct dp_client *c;
	uint64_t coming = 0;

	(void)state;
	begin(&w, 512 * MIB, 128 * MIB);
	await_stock(&w, 64 * MIB);
	c = dp_attach(&w, w.tenant);
	put(c, dp_large_space(c, "m", MIB / 2), 1);
	await_stock(&w, 64 * MIB);
	assert_int_equal(kvpd_relieve(w.ledger, 48 * MIB, &coming), 0);
	assert_int_equal(coming, 64 * MIB);
	await_stock(&w, 0);
	assert_int_equal(dp_figure(&w, "blocks"), 1);
	dp_check(&w);
	dp_stop(&w);
}

static int memory_is_there_again(struct kvpd_ledger *l, void *arg)
{
	(void)arg;
	l->pressed_until_ns = l->stock.refused_ns = 0;
	return 0;
}

/*
 * Once the machine has memory again the next arena that is made says so: no tenant had to give anything, and the
 * stock was empty.
 */
static void it_comes_back(void **state)
{
	struct dp_world w;
	struct dp_client *c;
	uint64_t coming = 0;

	(void)state;
	begin(&w, 512 * MIB, 128 * MIB);
	await_stock(&w, 64 * MIB);
	assert_int_equal(kvpd_relieve(w.ledger, 48 * MIB, &coming), 0);
	await_stock(&w, 0);
	assert_int_equal(kvpd_ledger_ask(w.ledger, memory_is_there_again, NULL), 0);
	assert_int_equal(stock(&w), 0);
	c = dp_attach(&w, w.tenant);
	put(c, dp_large_space(c, "m", MIB / 2), 1);
	await_stock(&w, 64 * MIB);
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_arena_comes_out_of_it),
		cmocka_unit_test(large_blocks_get_arenas_of_their_own),
		cmocka_unit_test(what_is_promised_is_not_stocked),
		cmocka_unit_test(what_is_not_given_back_is_not_stocked),
		cmocka_unit_test(a_small_memory_has_none),
		cmocka_unit_test(it_goes_first_when_memory_is_short),
		cmocka_unit_test(it_comes_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
