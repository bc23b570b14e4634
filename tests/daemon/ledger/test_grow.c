/* SPDX-License-Identifier: Apache-2.0 */
/* How a session's memory grows while it writes. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/clock.h"
#include "tests/daemon/ledger/dp_world.h"

#define MIB (UINT64_C(1) << 20)
#define T   16u

struct grown {
	struct dp_world w;
	struct dp_client *c;
	uint64_t before; /* charged */
};

/* A session in a share whose extents measure so many MiB puts n blocks of half a MiB without a pause. */
static void begin_and_put(struct grown *g, uint64_t extent_mib, uint32_t n)
{
	struct kvpd_limits limits;
	kvp_token tokens[T];
	struct dp_block block;
	uint32_t space;

	dp_defaults(&g->w, &limits);
	g->w.config.memory = 1024 * MIB;
	g->w.config.extent = extent_mib * MIB;
	limits.share = 1024 * MIB;
	dp_start(&g->w, &limits);
	g->c = dp_attach(&g->w, g->w.tenant);
	space = dp_large_space(g->c, "m", MIB / 2);
	g->before = dp_figure(&g->w, "charged_bytes");
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < T; k++)
			tokens[k] = 1000 * i + k;
		assert_int_equal(dp_put(g->c, space, dp_root(), tokens, T, &block), 0);
	}
	assert_int_equal(dp_figure(&g->w, "blocks"), n);
}

static void end(struct grown *g)
{
	dp_check(&g->w);
	dp_stop(&g->w);
}

/*
 * 24 blocks take 12 MiB: the session is given 8 and 8, and as much again and a half ahead of need, and does not wait for memory that it may
 * never use. Nothing is moved into a vault that would have to be made for that as well.
 */
static void a_first_burst_waits_for_no_more_than_it_needs(void **state)
{
	struct grown g;

	(void)state;
	begin_and_put(&g, 64, 24);
	assert_in_range(dp_figure(&g.w, "arena_bytes"), 16 * MIB, 40 * MIB);
	assert_in_range(dp_figure(&g.w, "charged_bytes") - g.before, 16 * MIB, 40 * MIB);
	assert_int_equal(dp_figure(&g.w, "moves_total"), 0);
	end(&g);
}

/* 50 MiB: arenas of 8 MiB, then each of a quarter of what there are, up to two such bursts ahead of need. */
static void arenas_grow_with_what_is_written(void **state)
{
	struct grown g;

	(void)state;
	begin_and_put(&g, 64, 100);
	assert_in_range(g.c->n_arenas, 5, 16);
	assert_in_range(dp_figure(&g.w, "arena_bytes"), 50 * MIB, 160 * MIB);
	assert_int_equal(dp_figure(&g.w, "moves_total"), 0);
	end(&g);
}

/*
 * What a client leaves goes on into the vault as fast as that grows: an extent of it is made while others are filled,
 * and none waits for the look once a second, of which these 20 would take as many.
 */
static void what_is_left_does_not_wait_for_a_tick(void **state)
{
	const uint64_t second = UINT64_C(1000) * KVPD_MS;
	struct dp_client *other;
	struct grown g;
	uint64_t began;

	(void)state;
	begin_and_put(&g, 8, 320);
	other = dp_attach(&g.w, g.w.tenant);
	g.c = dp_detach(g.c);
	began = kvpd_now_ns();
	while (dp_figure(&g.w, "arena_bytes")) {
		assert_true(kvpd_now_ns() - began < 10 * second);
		dp_pump(&g.w);
		usleep(1000);
	}
	assert_int_equal(dp_figure(&g.w, "blocks"), 320);
	assert_int_equal(dp_figure(&g.w, "moves_total"), 320);
	dp_detach(other);
	end(&g);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_first_burst_waits_for_no_more_than_it_needs),
		cmocka_unit_test(arenas_grow_with_what_is_written),
		cmocka_unit_test(what_is_left_does_not_wait_for_a_tick),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
