/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of spaces: what is coded while there is room, how far, in which order, and when nothing is. */
#include "tests/daemon/ledger/coded.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Until there are so many blocks of the space in a width. */
static void await_blocks(struct dp_world *w, uint32_t space, uint32_t width, uint64_t n)
{
	for (uint32_t ms = 0; coded_figures(w, space).width[width].blocks != n; ms++) {
		assert_true(ms < DP_WAIT_MS);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		dp_pump(w);
	}
}

/* ---- budget ---------------------------------------------------------------------------------- */

/* B-042: the stated saving, with nobody in want of room, and not one block lost; then nothing moves. */
static void a_budget_is_kept(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon);
	struct seen seen;
	uint64_t coded;

	(void)state;
	coded_put_many(c, space, 0, 300);
	seen = coded_look(c, space, &canon, 0, 300);
	assert_int_equal(seen.width[0], 300);
	coded_rule(&w, "m", "\"precision\":\"budget\",\"budget\":0.4");
	coded_await_within(&w, space, .4);
	coded_await_rest(&w);
	/* A sixteenth below, and no further: what is in less than 8 bits is not more than has to be. */
	assert_true(!coded_within(&w, space, .4 * 14 / 16));
	seen = coded_look(c, space, &canon, 0, 300);
	assert_int_equal(seen.found, 300);
	assert_int_equal(dp_figure(&w, "evictions_total"), 0);
	/* Constant load: 10,000 rounds in which readers come by change nothing. */
	coded = dp_figure(&w, "coded_total");
	for (uint32_t round = 0; round < 10000; round++) {
		kvp_token tokens[T];
		struct kvp_lease lease;
		struct kvp_hit h;

		coded_tokens(round % 300, tokens);
		assert_int_equal(dp_find(c, space, tokens, T, &h, 1), 1);
		assert_int_equal(
			kvp_lease_take(c->page, 0, &c->view.blocks[h.id], h.id, h.word, &lease), 0);
		kvp_lease_drop(&lease);
		kvp_touch_push(c->page, 0, h.id, 1);
	}
	dp_flush(c);
	coded_await_rest(&w);
	assert_int_equal(dp_figure(&w, "coded_total"), coded);
	/* What comes is coded as well. */
	coded_put_many(c, space, 300, 200);
	coded_await_within(&w, space, .4);
	seen = coded_look(c, space, &canon, 0, 500);
	assert_int_equal(seen.found, 500);
	assert_int_equal(dp_figure(&w, "evictions_total"), 0);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * A pool without room whose blocks are in use for so long that rounds have become seldom. The extents that blocks are
 * coded into have to be made out of others then, and are there for the next round, however long that is.
 */
#define N 640u
static void a_full_pool_keeps_a_budget(void **state)
{
	static kvp_token tokens[N * T];
	static struct kvp_hit hit[N];
	struct dp_ref parent = dp_root();
	struct kvp_lease lease;
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon);

	(void)state;
	for (uint32_t i = 0; i < N; i++) {
		struct dp_block b;

		coded_tokens(i, tokens + (size_t)i * T);
		assert_int_equal(coded_put(c, space, parent, i, T, &b), 0);
		parent = dp_ref(&b);
	}
	dp_flush(c);
	assert_int_equal(dp_find(c, space, tokens, N * T, hit, N), N);
	assert_int_equal(kvp_lease_take(c->page, 0, &c->view.blocks[hit[N - 1].id], hit[N - 1].id,
				 hit[N - 1].word, &lease),
		0);
	assert_true(!coded_within(&w, space, .5));
	coded_rule(&w, "m", "\"precision\":\"budget\",\"budget\":0.5");
	for (uint32_t i = 0; i < 60; i++) {
		nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
		dp_pump(&w);
	}
	assert_true(!coded_within(&w, space, .5));
	kvp_lease_drop(&lease);
	coded_await_within(&w, space, .5);
	dp_check(&w);
	dp_stop(&w);
}

/* What a lease protects stays, bit for bit, and follows when the lease ends. */
static void a_budget_is_cut_while_it_is_read(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon);
	struct kvp_lease lease[100];
	struct kvp_hit hit[100];
	struct seen seen;
	kvp_token tokens[T];

	(void)state;
	coded_put_many(c, space, 0, 300);
	coded_rule(&w, "m", "\"precision\":\"budget\",\"budget\":\"90%\"");
	coded_await_within(&w, space, .9);
	coded_await_rest(&w);
	for (uint32_t i = 0; i < 100; i++) {
		coded_tokens(i, tokens);
		assert_int_equal(dp_find(c, space, tokens, T, &hit[i], 1), 1);
		assert_int_equal(kvp_lease_take(c->page, i % KVP_SHARDS, &c->view.blocks[hit[i].id],
					 hit[i].id, hit[i].word, &lease[i]),
			0);
	}
	coded_rule(&w, "m", "\"budget\":0.25");
	coded_await_rest(&w);
	/* All others are as low as they may be, and a third of all is what it was. */
	assert_true(!coded_within(&w, space, .25));
	for (uint32_t i = 0; i < 100; i++) {
		assert_true(kvp_load_relaxed(&c->view.blocks[hit[i].id].word) == hit[i].word);
		coded_right(c, &canon, &hit[i], i);
		kvp_lease_drop(&lease[i]);
	}
	coded_await_within(&w, space, .25);
	seen = coded_look(c, space, &canon, 0, 300);
	assert_int_equal(seen.found, 300);
	assert_int_equal(dp_figure(&w, "evictions_total"), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* Exact readers beside lossy ones: a budget is a space's own. */
static void exact_spaces_stay_exact(void **state)
{
	struct kvp_space_canon exact = coded_model("exact", NULL),
			       lossy = coded_model("lossy", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t a = coded_open(c, &exact), b = coded_open(c, &lossy);
	struct seen seen;

	(void)state;
	coded_put_many(c, a, 0, 150);
	coded_put_many(c, b, 0, 150);
	coded_rule(&w, "lossy", "\"precision\":\"budget\",\"budget\":0.3");
	coded_await_within(&w, b, .3);
	coded_await_rest(&w);
	seen = coded_look(c, a, &exact, 0, 150);
	assert_int_equal(seen.width[0], 150);
	assert_int_equal(coded_figures(&w, a).dram_bytes, coded_figures(&w, a).native_bytes);
	seen = coded_look(c, b, &lossy, 0, 150);
	assert_int_equal(seen.found, 150);
	dp_check(&w);
	dp_stop(&w);
}

/* B-009: what is not possible is refused, in words, and nothing changes. */
static void what_cannot_be_is_refused(void **state)
{
	static const struct {
		const char *name, *members;
		int error;
		const char *word;
	} wrong[] = {
		{ "lossy", "\"precision\":\"budget\",\"budget\":0.1", -ENOSPC, "allow" },
		{ "lossy", "\"precision\":\"some\"", -EINVAL, "pressure, budget, zones" },
		{ "lossy", "\"budget\":1.5", -EINVAL, "out of range" },
		{ "lossy", "\"budget\":true", -EINVAL, "budget" },
		{ "lossy", "\"budget\":\"much\"", -EINVAL, "0.4" },
		{ "lossy", "\"hot_tokens\":600", -EINVAL, "stale_tokens" },
		{ "exact", "\"precision\":\"zones\"", -EOPNOTSUPP, "floor" },
		{ "none", "\"precision\":\"zones\"", -ENOENT, "none" },
		{ "", "\"precision\":\"zones\"", -EINVAL, "which" },
		{ "twice", "\"precision\":\"zones\"", -EINVAL, "fingerprint" },
		{ "lossy", "\"floor\":\"none\"", -EINVAL, "no codec" },
		{ "lossy", "\"floor\":4", -EINVAL, "no codec" },
		{ "lossy", "\"floor\":\"pca\"", -EINVAL, "cannot be coded" },
		{ "exact", "\"floor\":\"tq4\"", -EOPNOTSUPP, "accepts, which is native" },
		{ "lossy", "\"floor\":\"exact\",\"precision\":\"zones\"", -EOPNOTSUPP,
			"floor is exact" },
		{ "lossy", "\"floor\":\"int8\",\"precision\":\"budget\",\"budget\":0.4", -ENOSPC,
			"takes 0.5" },
	};
	struct kvp_space_canon exact = coded_model("exact", NULL),
			       lossy = coded_model("lossy", "2bit"),
			       one = coded_model("twice", "2bit"),
			       two = coded_model("twice", "4bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space;

	(void)state;
	(void)coded_open(c, &exact);
	(void)coded_open(c, &one);
	(void)coded_open(c, &two);
	space = coded_open(c, &lossy);
	coded_put_many(c, space, 0, 50);
	coded_rule(&w, "lossy", "\"hot_tokens\":32,\"stale_tokens\":64");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		json_t *answer = NULL;
		const char *why;

		assert_int_equal(
			coded_set(&w, wrong[i].name, wrong[i].members, &answer), wrong[i].error);
		why = json_string_value(json_object_get(answer, "error"));
		assert_non_null(why);
		if (!strstr(why, wrong[i].word))
			fail_msg("%zu: %s", i, why);
		json_decref(answer);
		assert_string_equal(coded_figures(&w, space).precision, "pressure");
		assert_int_equal(coded_figures(&w, space).hot_tokens, 32);
	}
	coded_await_rest(&w);
	assert_int_equal(dp_figure(&w, "coded_total"), 0);
	dp_stop(&w);
}

/* The operator says less than the owner: no block goes below that, whoever wants it, until the operator says otherwise. */
static void an_operators_floor_bounds_all(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon);
	json_t *answer = NULL, *said;
	struct seen seen;

	(void)state;
	assert_int_equal(coded_figures(&w, space).quality.floor_bits, 2);
	assert_int_equal(coded_set(&w, "m", "\"floor\":\"4bit\"", &answer), 0);
	said = json_object_get(answer, "space");
	assert_string_equal(json_string_value(json_object_get(said, "floor")), "tq4-nc/tq4-nc");
	json_decref(answer);
	assert_int_equal(coded_figures(&w, space).quality.floor_bits, 4);
	coded_rule(&w, "m", "\"precision\":\"zones\",\"hot_tokens\":1,\"stale_tokens\":1");
	/* More than there is room for in four bits, so under pressure as well. */
	coded_put_many(c, space, 0, 4000);
	coded_await_rest(&w);
	seen = coded_look(c, space, &canon, 0, 4000);
	assert_true(seen.width[2] > 0);
	assert_int_equal(seen.width[3] + seen.width[4], 0);
	assert_int_equal(dp_figure(&w, "coded_2_bits_total"), 0);
	/* As far as the owner allows, again. */
	coded_rule(&w, "m", "\"floor\":\"2bit\",\"precision\":\"pressure\"");
	assert_int_equal(coded_figures(&w, space).quality.floor_bits, 2);
	coded_put_many(c, space, 4000, 2000);
	assert_true(dp_figure(&w, "coded_2_bits_total") > 0);
	/* Native, and what has fewer bits stays as it is. */
	coded_rule(&w, "m", "\"floor\":\"exact\"");
	assert_int_equal(coded_figures(&w, space).quality.floor_bits, 16);
	seen = coded_look(c, space, &canon, 0, 6000);
	assert_true(seen.width[4] > 0);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- zones ----------------------------------------------------------------------------------- */

#define HOT   64u
#define STALE 128u

/* At least so many tokens follow a whole block that has so many blocks after it. */
static uint32_t zone_of(uint32_t after)
{
	uint32_t age = after ? (after - 1) * T + 1 : 0;

	return age >= STALE ? KVP_PAYLOAD_WIDTHS - 1 : age >= HOT ? 2 : 0;
}

static void await_zones(
	struct dp_world *w, struct dp_client *c, const struct dp_block *b, uint32_t n)
{
	uint32_t wrong = 1;

	for (uint32_t ms = 0; wrong; ms++) {
		wrong = 0;
		for (uint32_t i = 0; i < n; i++)
			wrong += coded_width(c, &b[i]) != zone_of(n - 1 - i);
		if (wrong)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		dp_pump(w);
		assert_true(ms < DP_WAIT_MS);
	}
}

/*
 * one sequence in three precisions, block for block by its age, while it grows
 * and a second one beside it; read as one stream.
 */
static void zones_follow_age(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon), n = 20;
	struct dp_ref parent[2] = { dp_root(), dp_root() };
	struct dp_block b[2][20];
	struct kvpd_space_figures f;
	kvp_token tokens[20 * T];
	struct kvp_hit hit[20];
	uint32_t native = 0;

	(void)state;
	coded_rule(&w, "m", "\"precision\":\"zones\",\"hot_tokens\":64,\"stale_tokens\":128");
	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < 2; k++) {
			/* The second one ends sooner. */
			if (k && i >= 10)
				continue;
			assert_int_equal(
				coded_put(c, space, parent[k], 1000 * k + i, T, &b[k][i]), 0);
			parent[k] = dp_ref(&b[k][i]);
		}
		if (i % 5 == 4)
			await_zones(&w, c, b[0], i + 1);
	}
	await_zones(&w, c, b[0], n);
	await_zones(&w, c, b[1], 10);
	coded_await_rest(&w);
	await_zones(&w, c, b[0], n);
	f = coded_figures(&w, space);
	for (uint32_t i = 0; i < n; i++)
		native += (zone_of(n - 1 - i) == 0) + (i < 10 && zone_of(9 - i) == 0);
	assert_int_equal(f.width[0].blocks, native);
	assert_int_equal(f.width[0].blocks + f.width[2].blocks + f.width[4].blocks, 30);
	assert_true(f.width[2].blocks && f.width[4].blocks);
	/* the 64 newest tokens, and at most a group more. */
	assert_true(native / 2 * T >= HOT && native / 2 * T <= HOT + T);
	for (uint32_t i = 0; i < n; i++)
		coded_tokens(i, tokens + (size_t)i * T);
	assert_int_equal(dp_find(c, space, tokens, n * T, hit, n), n);
	for (uint32_t i = 0; i < n; i++)
		coded_right(c, &canon, &hit[i], i);
	dp_check(&w);
	dp_stop(&w);
}

/* D-095: recent blocks by one codec and cold ones by another: keys of these by their strongest frequencies alone. */
static void cold_keys_are_spectral(void **state)
{
	struct kvp_space_canon canon = coded_model("m", "spectral-any/tq4-nc");
	struct dp_world w;
	struct dp_client *c = coded_world(&w, 0);
	uint32_t space = coded_open(c, &canon), n = 20, codec[2];
	struct dp_ref parent = dp_root();
	struct kvpd_space_figures f;
	kvp_token tokens[20 * T];
	struct dp_block b[20];
	struct kvp_hit hit[20];

	(void)state;
	coded_rule(&w, "m", "\"precision\":\"zones\",\"hot_tokens\":64,\"stale_tokens\":128");
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(coded_put(c, space, parent, i, T, &b[i]), 0);
		parent = dp_ref(&b[i]);
	}
	await_zones(&w, c, b, n);
	coded_await_rest(&w);
	f = coded_figures(&w, space);
	assert_true(f.width[0].blocks && f.width[2].blocks && f.width[4].blocks);
	assert_int_equal(f.width[0].blocks + f.width[2].blocks + f.width[4].blocks, n);
	assert_int_equal(kvp_payload_codecs(&canon, 2, &codec[0], &codec[1]), 0);
	assert_int_equal(KVP_CODEC_FAMILY(codec[0]), KVP_FAMILY_TQ);
	assert_int_equal(kvp_payload_codecs(&canon, 4, &codec[0], &codec[1]), 0);
	assert_int_equal(KVP_CODEC_FAMILY(codec[0]), KVP_FAMILY_SPECTRAL);
	assert_int_equal(KVP_CODEC_FAMILY(codec[1]), KVP_FAMILY_TQ);
	for (uint32_t i = 0; i < n; i++)
		coded_tokens(i, tokens + (size_t)i * T);
	assert_int_equal(dp_find(c, space, tokens, n * T, hit, n), n);
	for (uint32_t i = 0; i < n; i++)
		coded_right(c, &canon, &hit[i], i);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- a long one ------------------------------------------------------------------------------ */

#define LONG_TOKENS 512u
#define LONG_BLOCKS 1954u /* a million tokens */

/* a sequence of 1,000,000 tokens, in zones and then within a budget. */
static void a_million_tokens(void **state)
{
	static kvp_token tokens[LONG_TOKENS * LONG_BLOCKS];
	static struct kvp_hit hit[LONG_BLOCKS];
	struct dp_ref parent = dp_root();
	struct kvp_space_canon canon;
	struct kvpd_limits limits;
	struct kvp_msg_space open;
	struct dp_world w;
	struct dp_client *c;
	char why[KVP_MSG_TEXT];
	struct kvpd_space_figures f;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 160 * MIB;
	limits.max_blocks = 4096;
	limits.recipe_tokens = LONG_TOKENS * 4096;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	dp_canon(&canon, "long", 1);
	canon.block_tokens = LONG_TOKENS;
	canon.layers[0].kv_heads = 1;
	canon.layers[0].k_dim = canon.layers[0].v_dim = 16;
	assert_int_equal(kvp_codec_parse_pair("2bit", &canon.floor_k, &canon.floor_v), 0);
	assert_int_equal(dp_open(c, &canon, why, sizeof(why), &open), 0);
	coded_rule(
		&w, "long", "\"precision\":\"zones\",\"hot_tokens\":4096,\"stale_tokens\":12288");
	for (uint32_t i = 0; i < LONG_TOKENS * LONG_BLOCKS; i++)
		tokens[i] = i * 7 + 1;
	for (uint32_t i = 0; i < LONG_BLOCKS; i++) {
		struct dp_grant g;
		struct dp_block b;

		assert_int_equal(dp_reserve(c, open.space, 1, DP_WAIT_MS, &g), 1);
		memset(g.addr, 0, g.bytes);
		assert_int_equal(
			dp_commit(c, open.space, &g, parent, tokens + (size_t)i * LONG_TOKENS,
				LONG_TOKENS, KVP_SQE_RELEASE, &b),
			0);
		parent = dp_ref(&b);
	}
	dp_flush(c);
	/* Blocks after which (n - 1) * 512 + 1 tokens or more come: 8 are hot, 16 more are not stale. */
	await_blocks(&w, open.space, 0, 4096 / LONG_TOKENS + 1);
	await_blocks(&w, open.space, 4, LONG_BLOCKS - 12288 / LONG_TOKENS - 1);
	coded_await_rest(&w);
	f = coded_figures(&w, open.space);
	assert_int_equal(f.width[0].blocks, 4096 / LONG_TOKENS + 1);
	assert_int_equal(f.width[2].blocks, (12288 - 4096) / LONG_TOKENS);
	assert_int_equal(f.width[4].blocks, LONG_BLOCKS - 12288 / LONG_TOKENS - 1);
	coded_rule(&w, "long", "\"precision\":\"budget\",\"budget\":0.4");
	coded_await_within(&w, open.space, .4);
	assert_int_equal(
		dp_find(c, open.space, tokens, LONG_TOKENS * LONG_BLOCKS, hit, LONG_BLOCKS),
		LONG_BLOCKS);
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_budget_is_kept),
		cmocka_unit_test(a_full_pool_keeps_a_budget),
		cmocka_unit_test(a_budget_is_cut_while_it_is_read),
		cmocka_unit_test(exact_spaces_stay_exact),
		cmocka_unit_test(what_cannot_be_is_refused),
		cmocka_unit_test(an_operators_floor_bounds_all),
		cmocka_unit_test(zones_follow_age),
		cmocka_unit_test(cold_keys_are_spectral),
		cmocka_unit_test(a_million_tokens),
	};

	return coded_run("budget", tests, sizeof(tests) / sizeof(tests[0]));
}
