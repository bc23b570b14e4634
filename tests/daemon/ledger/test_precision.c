/* SPDX-License-Identifier: Apache-2.0 */
/* Precision goes before blocks: what is coded, to what, when, and what is left alone. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/daemon/ledger/coded.h"

/* ---- tests ----------------------------------------------------------------------------------- */

static const struct kvpd_space_figures *space_in(
	const struct kvpd_figures *f, const char *tenant, const char *floor)
{
	for (uint32_t i = 0; i < f->n_spaces; i++)
		if (!strcmp(f->tenant[f->space[i].tenant].name, tenant) &&
			!strcmp(f->space[i].floor, floor))
			return &f->space[i];
	fail_msg("no space of tenant %s with floor '%s'", tenant, floor);
	return NULL;
}

/* So many were put, and some may have been evicted; coded: or coded with 4 bits. */
static void adds_up(const struct kvpd_space_figures *s, uint64_t put, bool coded)
{
	uint64_t native = s->width[0].blocks, bytes = 0;

	assert_int_equal(native + s->width[2].blocks + s->evictions, put);
	assert_true(coded || !s->width[2].blocks);
	assert_int_equal(s->width[0].bytes, native * BLOCK);
	for (uint32_t w = 1; w < KVPD_FIGURES_WIDTHS; w++)
		if (w != 2)
			assert_int_equal(s->width[w].blocks + s->width[w].bytes, 0);
	for (uint32_t w = 0; w < KVPD_FIGURES_WIDTHS; w++)
		bytes += s->width[w].bytes;
	assert_int_equal(s->payload_bytes, bytes);
	assert_int_equal(s->blocks, native + s->width[2].blocks);
}

/* Another tenant that may have as much. */
static struct dp_client *another(struct dp_world *w, const char *name)
{
	struct kvpd_limits limits;
	struct dp_world defaults;
	uint32_t tenant;

	dp_defaults(&defaults, &limits);
	limits.share = SHARE;
	limits.max_blocks = 4096;
	limits.recipe_tokens = 4096 * T;
	assert_int_equal(kvpd_tenant_open(w->ledger, name, &limits, &tenant), 0);
	return dp_attach(w, tenant);
}

/* Two spaces of one model and two tenants of equal spaces: each has what was put there, by codec. */
static void each_space_says_what_it_holds(void **state)
{
	struct kvp_space_canon coded = coded_model("m", "tq4"), exact = coded_model("m", NULL);
	const struct kvpd_space_figures *s;
	struct kvpd_figures f;
	struct dp_client *a, *b;
	struct dp_world w;
	uint64_t seen;

	(void)state;
	a = coded_world(&w, 0);
	b = another(&w, "two");
	coded_put_many(a, coded_open(a, &exact), 0, 10);
	coded_put_many(a, coded_open(a, &coded), 0, 1000);
	coded_put_many(b, coded_open(b, &coded), 0, 20);
	coded_put_many(b, coded_open(b, &exact), 0, 30);
	assert_int_equal(dp_figures(&w, NULL, KVPD_FIGURES_SPACES, &f), 0);
	assert_int_equal(f.n_spaces, 4);
	s = space_in(&f, "one", "tq4/tq4");
	seen = s->width[2].blocks;
	assert_true(seen > 100);
	assert_true(s->width[2].bytes > seen * BLOCK / 5 && s->width[2].bytes < seen * BLOCK / 3);
	adds_up(s, 1000, true);
	adds_up(space_in(&f, "one", ""), 10, false);
	adds_up(space_in(&f, "two", "tq4/tq4"), 20, false);
	adds_up(space_in(&f, "two", ""), 30, false);
	assert_int_equal(
		space_in(&f, "two", "")->evictions + space_in(&f, "two", "tq4/tq4")->evictions, 0);
	kvpd_figures_fini(&f);
	dp_check(&w);
	dp_stop(&w);
}

static void precision_goes_before_blocks(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "tq4");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon), n = 2000;
	struct seen seen;

	(void)state;
	coded_put_many(c, space, 0, n);
	seen = coded_look(c, space, &canon, 0, n);
	/* More than there would be room for natively, were all of the share blocks. */
	assert_true(seen.found > SHARE / BLOCK);
	assert_int_equal(seen.found + dp_figure(&w, "evictions_total"), n);
	assert_true(seen.width[2] > seen.found / 2);
	assert_int_equal(seen.width[0] + seen.width[2], seen.found);
	assert_int_equal(dp_figure(&w, "coded_blocks"), seen.width[2]);
	assert_true(dp_figure(&w, "coded_freed_bytes_total") > 0);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * An arena's slots are native ones, so a client of a space with a floor gets fewer: what it put lies in the
 * vault, where it can be coded, and nothing of it is coded or lost as long as there is room.
 */
static void arenas_are_small_where_blocks_may_be_coded(void **state)
{
	const char *const floor[] = { NULL, "tq4" };
	uint64_t arena[2];

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		struct kvp_space_canon canon = coded_model("m", floor[i]);
		struct kvpd_limits limits;
		struct dp_client *c;
		struct dp_world w;
		struct seen seen;
		uint32_t space;

		dp_defaults(&w, &limits);
		limits.share = 80 * MIB;
		limits.max_blocks = 4096;
		limits.recipe_tokens = 4096 * T;
		dp_start(&w, &limits);
		c = dp_attach(&w, w.tenant);
		space = coded_open(c, &canon);
		coded_put_many(c, space, 0, 2000);
		seen = coded_look(c, space, &canon, 0, 2000);
		assert_int_equal(seen.width[0], 2000);
		arena[i] = dp_figure(&w, "arena_bytes");
		assert_int_equal(dp_figure(&w, "coded_total"), 0);
		dp_check(&w);
		dp_stop(&w);
	}
	assert_true(arena[0] > 16 * MIB);
	assert_true(arena[1] <= 8 * MIB);
}

/*
 * An engine that reads its sequence where it wrote it holds all of its grants: arenas that it may have to write
 * into do not count what it holds, or nothing more of it would be cached. When it has let go they are given back
 * for what others put.
 */
static void what_is_held_is_no_room_to_write(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "tq4");
	struct dp_grant held[80]; /* 20 MiB */
	struct dp_ref parent = dp_root();
	struct kvpd_limits limits;
	struct dp_client *a, *b;
	kvp_token tokens[T];
	struct dp_world w;
	uint32_t large, coded;
	json_t *answer;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.memory = 128 * MIB;
	limits.share = 96 * MIB;
	limits.max_blocks = 16384;
	limits.recipe_tokens = 16384 * T;
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	coded = coded_open(b, &canon);
	large = dp_large_space(a, "large", MIB / 4);
	for (uint32_t i = 0; i < 80; i++) {
		struct dp_block block;

		coded_tokens(i, tokens);
		assert_int_equal(dp_reserve(a, large, 1, DP_WAIT_MS, &held[i]), 1);
		dp_fill(&held[i], tokens, T);
		assert_int_equal(dp_commit(a, large, &held[i], parent, tokens, T, 0, &block), 0);
		parent = dp_ref(&block);
	}
	assert_true(dp_figure(&w, "arena_bytes") >= 80 * MIB / 4);
	assert_int_equal(dp_figure(&w, "evictions_total"), 0);
	for (uint32_t i = 0; i < 80; i++)
		dp_release(a, &held[i]);
	dp_flush(a);
	assert_int_equal(dp_admin(&w, "{\"verb\":\"evict\",\"all\":true}", &answer), 0);
	json_decref(answer);
	dp_await_most(&w, "blocks", 0);
	for (uint32_t i = 0; dp_figure(&w, "arena_bytes") > 18 * MIB; i++) {
		assert_true(i < 40);
		coded_put_many(b, coded, 500 * i, 500);
	}
	assert_int_equal(dp_figure(&w, "evictions_total"), 80);
	dp_check(&w);
	dp_stop(&w);
}

/* As long as there is room nothing is lost, and what nobody adds to stays as it is. */
static void constant_load_changes_nothing(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon);
	uint64_t coded;
	struct seen seen;

	(void)state;
	coded_put_many(c, space, 0, 100);
	seen = coded_look(c, space, &canon, 0, 100);
	assert_int_equal(seen.width[0], 100);
	coded_put_many(c, space, 100, 900);
	(void)coded_look(c, space, &canon, 0, 1000);
	coded = dp_figure(&w, "coded_total");
	assert_true(coded > 0);
	for (uint32_t round = 0; round < 10; round++)
		(void)coded_look(c, space, &canon, 0, 1000);
	assert_int_equal(dp_figure(&w, "coded_total"), coded);
	dp_check(&w);
	dp_stop(&w);
}

/* Exact readers beside others: neither sees the other's blocks, and theirs stay native. */
static void exact_spaces_stay_exact(void **state)
{
	struct kvp_space_canon exact = coded_model("m", NULL), lossy = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t a = coded_open(c, &exact), b = coded_open(c, &lossy);
	struct seen seen;

	(void)state;
	assert_int_not_equal(a, b);
	for (uint32_t i = 0; i < 600; i++) {
		coded_put_many(c, i % 3 ? b : a, i, 1);
		if (i % 50 == 49)
			(void)coded_look(c, a, &exact, i - 20, 20);
	}
	seen = coded_look(c, a, &exact, 0, 600);
	assert_int_equal(seen.width[0], seen.found);
	assert_true(seen.found <= 200);
	seen = coded_look(c, b, &lossy, 0, 600);
	assert_true(seen.found > 200);
	assert_true(seen.width[0] < seen.found);
	dp_check(&w);
	dp_stop(&w);
}

/* What is leased stays where it is, bit for bit, whatever becomes of the rest. */
static void leased_blocks_stay(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon);
	struct kvp_lease lease[20];
	struct kvp_hit hit[20];
	kvp_token tokens[T];

	(void)state;
	coded_put_many(c, space, 0, 300);
	dp_flush(c);
	for (uint32_t i = 0; i < 20; i++) {
		coded_tokens(i, tokens);
		assert_int_equal(dp_find(c, space, tokens, T, &hit[i], 1), 1);
		assert_int_equal(kvp_lease_take(c->page, 0, &c->view.blocks[hit[i].id], hit[i].id,
					 hit[i].word, &lease[i]),
			0);
	}
	coded_put_many(c, space, 1000, 900);
	assert_true(dp_figure(&w, "coded_total") > 100);
	dp_pump(&w);
	for (uint32_t i = 0; i < 20; i++) {
		/* It may have moved out of an arena that was emptied; then its old bytes stay. */
		coded_right(c, &canon, &hit[i], i);
		assert_int_equal(kvp_where_codec(hit[i].where), 0);
		assert_int_equal(kvp_where_codec(kvp_load_relaxed(
					 &c->view.blocks[hit[i].id].payload[KVP_TIER_DRAM].where)),
			0);
		kvp_lease_drop(&lease[i]);
	}
	dp_check(&w);
	dp_stop(&w);
}

/* The ends of sequences, excepted layers, partial blocks. */
static void what_stays_native(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	struct dp_block b[40][5];
	uint32_t space, coded = 0;

	(void)state;
	canon.native_first = T + 1; /* two blocks */
	canon.native_last = 1;      /* and the last one */
	canon.layers[1].exact = 1;
	space = coded_open(c, &canon);
	for (uint32_t k = 0; k < 40; k++) {
		struct dp_ref parent = dp_root();

		for (uint32_t i = 0; i < 5; i++) {
			assert_int_equal(coded_put(c, space, parent, k * 100 + i, i < 4 ? T : T / 2,
						 &b[k][i]),
				0);
			parent = dp_ref(&b[k][i]);
		}
	}
	for (uint32_t i = 0; i < 500; i++) {
		struct dp_block more;

		/* Leaves: none of them may be coded. */
		assert_int_equal(coded_put(c, space, dp_root(), 100000 + i, T, &more), 0);
	}
	dp_flush(c);
	for (uint32_t k = 0; k < 40; k++)
		for (uint32_t i = 0; i < 5; i++) {
			if (!coded_there(c, &b[k][i]))
				continue;
			if (i == 2 || i == 3)
				coded += coded_width(c, &b[k][i]) != 0;
			else
				assert_int_equal(coded_width(c, &b[k][i]), 0);
		}
	assert_int_equal(dp_figure(&w, "coded_blocks"), coded);
	assert_true(dp_figure(&w, "coded_total") > 0);
	dp_check(&w);
	dp_stop(&w);
}

/* B-023: of sequences that are shorter than what stays native at both ends nothing is coded, and evicted instead. */
static void short_sequences_stay_native(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space;

	(void)state;
	canon.native_first = 3 * T;
	canon.native_last = 2 * T;
	space = coded_open(c, &canon);
	for (uint32_t k = 0; k < 300; k++) {
		struct dp_ref parent = dp_root();

		for (uint32_t i = 0; i < 1 + k % 5; i++) {
			struct dp_block b;

			assert_int_equal(coded_put(c, space, parent, k * 100 + i, T, &b), 0);
			parent = dp_ref(&b);
		}
	}
	assert_true(dp_figure(&w, "evictions_total") > 0);
	assert_int_equal(dp_figure(&w, "coded_total"), 0);
	dp_check(&w);
	dp_stop(&w);
}

static void the_operator_bounds_it(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 16);
	uint32_t space = coded_open(c, &canon);
	struct seen seen;

	(void)state;
	coded_put_many(c, space, 0, 1000);
	seen = coded_look(c, space, &canon, 0, 1000);
	assert_int_equal(seen.width[0], seen.found);
	assert_int_equal(dp_figure(&w, "coded_total"), 0);
	dp_check(&w);
	dp_stop(&w);

	c = coded_world(&w, 4);
	space = coded_open(c, &canon);
	coded_put_many(c, space, 0, 1500);
	seen = coded_look(c, space, &canon, 0, 1500);
	assert_true(seen.width[2] > 0 && !seen.width[3] && !seen.width[4]);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * A tenant of so many MiB, in which chains of 64 blocks are put until one is evicted. Is all coded by then that may be?
 * Not where this thread has the processors that the movers wait for.
 */
static bool fill_small(uint32_t mib, uint32_t native_last)
{
	struct kvp_space_canon canon = coded_model("m", "tq4");
	struct dp_ref parent = dp_root();
	struct kvpd_limits limits;
	struct dp_client *c;
	struct dp_world w;
	struct dp_block b;
	uint32_t space;
	bool all;

	dp_defaults(&w, &limits);
	limits.share = mib * MIB;
	limits.max_blocks = 1024;
	limits.recipe_tokens = 1024 * T;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	canon.native_last = native_last;
	space = coded_open(c, &canon);
	for (uint32_t i = 0; !dp_figure(&w, "evictions_total"); i++) {
		assert_true(i < 1024);
		assert_int_equal(coded_put(c, space, parent, i, T, &b), 0);
		parent = i % 64 == 63 ? dp_root() : dp_ref(&b);
	}
	print_message("%u MiB: %u of %u blocks are coded\n", mib,
		(unsigned)dp_figure(&w, "coded_blocks"), (unsigned)dp_figure(&w, "blocks"));
	/* What is not is in the arena, at an end of its chain, or in the last native extent. */
	all = dp_figure(&w, "coded_blocks") * 4 > dp_figure(&w, "blocks") * 3;
	dp_check(&w);
	dp_stop(&w);
	return all;
}

/* Also where an extent has 16 slots and the vault three: nothing is evicted while it could be coded instead. */
static void in_a_small_pool_too(void **state)
{
	(void)state;
	for (uint32_t mib = 4; mib <= 6; mib++)
		for (uint32_t last = 0; last <= 2 * T; last += 2 * T) {
			uint32_t tries = 1;

			while (!fill_small(mib, last))
				assert_true(tries++ < 8);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(precision_goes_before_blocks),
		cmocka_unit_test(in_a_small_pool_too),
		cmocka_unit_test(arenas_are_small_where_blocks_may_be_coded),
		cmocka_unit_test(what_is_held_is_no_room_to_write),
		cmocka_unit_test(each_space_says_what_it_holds),
		cmocka_unit_test(constant_load_changes_nothing),
		cmocka_unit_test(exact_spaces_stay_exact),
		cmocka_unit_test(leased_blocks_stay),
		cmocka_unit_test(what_stays_native),
		cmocka_unit_test(short_sequences_stay_native),
		cmocka_unit_test(the_operator_bounds_it),
	};

	return coded_run("precision", tests, sizeof(tests) / sizeof(tests[0]));
}
