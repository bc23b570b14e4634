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

#include "payload/kvp_payload.h"
#include "tests/daemon/ledger/dp_world.h"

#define MIB   (UINT64_C(1) << 20)
#define T     16u
#define SHARE (12 * MIB)
#define BLOCK 16384u /* bytes of a native one */

static struct kvp_kernels *kernels;

/* Two layers of two heads, 64 channels: 16 KiB of fp16 a block. */
static struct kvp_space_canon model(const char *name, const char *floor)
{
	struct kvp_space_canon c;

	dp_canon(&c, name, 2);
	for (uint32_t i = 0; i < 2; i++) {
		c.layers[i].kv_heads = 2;
		c.layers[i].k_dim = c.layers[i].v_dim = 64;
	}
	if (floor)
		assert_int_equal(kvp_codec_parse_pair(floor, &c.floor_k, &c.floor_v), 0);
	return c;
}

static uint32_t opened(struct dp_client *c, const struct kvp_space_canon *canon)
{
	struct kvp_msg_space space;
	char why[KVP_MSG_TEXT] = "";

	if (dp_open(c, canon, why, sizeof(why), &space) < 0)
		fail_msg("%s", why);
	return space.space;
}

static struct dp_client *world(struct dp_world *w, uint32_t least_bits)
{
	struct kvpd_limits limits;

	dp_defaults(w, &limits);
	limits.share = SHARE;
	limits.max_blocks = 4096;
	limits.recipe_tokens = 4096 * T;
	limits.least_bits = least_bits;
	dp_start(w, &limits);
	return dp_attach(w, w->tenant);
}

/* ---- contents -------------------------------------------------------------------------------- */

static void tokens_of(uint32_t seed, kvp_token *out)
{
	for (uint32_t i = 0; i < T; i++)
		out[i] = seed * 1000 + i;
}

/* Halves between 1/2 and 2, of both signs, that follow from the seed. */
static void native_of(uint32_t seed, uint8_t *out)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (uint32_t i = 0; i < BLOCK; i += 2) {
		uint16_t half;

		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		half = (uint16_t)(0x3800 + (x >> 40 & 0x7ff) + (x >> 60 & 1) * 0x8000);
		memcpy(out + i, &half, 2);
	}
}

static int put(struct dp_client *c, uint32_t space, struct dp_ref parent, uint32_t seed, uint32_t n,
	struct dp_block *ret)
{
	kvp_token tokens[T];
	struct dp_grant g;
	int r = dp_reserve(c, space, 1, DP_WAIT_MS, &g);

	if (r < 0)
		return r;
	tokens_of(seed, tokens);
	native_of(seed, g.addr);
	r = dp_commit(c, space, &g, parent, tokens, n, KVP_SQE_RELEASE, ret);
	return r;
}

/* Blocks that are first of their chains. */
static void put_many(struct dp_client *c, uint32_t space, uint32_t first, uint32_t n)
{
	struct dp_block b;

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(put(c, space, dp_root(), first + i, T, &b), 0);
}

static void *room(size_t bytes)
{
	void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);

	assert_non_null(p);
	return p;
}

/* Is it what some way down makes of the native bytes? bits of `through`: widths on the way. */
static bool is_way(const struct kvp_space_canon *canon, uint32_t through, uint32_t width,
	const uint8_t *native, const uint8_t *payload, uint32_t bytes)
{
	static struct kvp_block_layout from, to;
	uint8_t *now = room(BLOCK), *next = room(BLOCK), *scratch, *old;
	bool same;

	assert_int_equal(kvp_payload_layout(canon, 0, &from), 0);
	scratch = room(kvp_payload_scratch(&from));
	memcpy(now, native, BLOCK);
	for (uint32_t w = 1; w <= width; w++) {
		if (w != width && !(through >> w & 1))
			continue;
		assert_int_equal(kvp_payload_layout(canon, w, &to), 0);
		assert_int_equal(kvp_payload_recode(kernels, &from, now, &to, next, scratch), 0);
		from = to;
		old = now;
		now = next;
		next = old;
	}
	same = from.bytes == bytes && !memcmp(now, payload, bytes);
	free(now);
	free(next);
	free(scratch);
	return same;
}

static void assert_right(struct dp_client *c, const struct kvp_space_canon *canon,
	const struct kvp_hit *h, uint32_t seed)
{
	const uint8_t *payload = c->extent[kvp_where_extent(h->where)].addr + h->offset;
	uint32_t width = kvp_where_codec(h->where), bytes = kvp_where_bytes(h->where);
	static uint8_t native[BLOCK];

	native_of(seed, native);
	if (!width) {
		assert_int_equal(bytes, BLOCK);
		assert_memory_equal(payload, native, BLOCK);
		return;
	}
	for (uint32_t through = 0; through < 1u << KVP_PAYLOAD_WIDTHS; through++)
		if (is_way(canon, through, width, native, payload, bytes))
			return;
	fail_msg("block %u is not what its codecs make of it", seed);
}

struct seen {
	uint32_t found, width[KVP_PAYLOAD_WIDTHS];
};

/* Looks all of these up, each the first of a chain, and compares every byte. */
static struct seen look(struct dp_client *c, uint32_t space, const struct kvp_space_canon *canon,
	uint32_t first, uint32_t n)
{
	struct seen seen = { 0 };

	dp_flush(c);
	dp_pump(c->world);
	for (uint32_t i = 0; i < n; i++) {
		kvp_token tokens[T];
		struct kvp_lease lease;
		struct kvp_hit h;

		tokens_of(first + i, tokens);
		if (!dp_find(c, space, tokens, T, &h, 1) ||
			kvp_lease_take(c->page, 0, &c->view.blocks[h.id], h.id, h.word, &lease))
			continue;
		dp_pump(c->world);
		assert_right(c, canon, &h, first + i);
		kvp_lease_drop(&lease);
		seen.found++;
		seen.width[kvp_where_codec(h.where)]++;
	}
	return seen;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void precision_goes_before_blocks(void **state)
{
	struct kvp_space_canon canon = model("m", "tq4");
	struct dp_world w;
	struct dp_client *c = world(&w, 0);
	uint32_t space = opened(c, &canon), n = 2000;
	struct seen seen;

	(void)state;
	put_many(c, space, 0, n);
	seen = look(c, space, &canon, 0, n);
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

/* As long as there is room nothing is lost, and what nobody adds to stays as it is. */
static void constant_load_changes_nothing(void **state)
{
	struct kvp_space_canon canon = model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = world(&w, 0);
	uint32_t space = opened(c, &canon);
	uint64_t coded;
	struct seen seen;

	(void)state;
	put_many(c, space, 0, 100);
	seen = look(c, space, &canon, 0, 100);
	assert_int_equal(seen.width[0], 100);
	put_many(c, space, 100, 900);
	(void)look(c, space, &canon, 0, 1000);
	coded = dp_figure(&w, "coded_total");
	assert_true(coded > 0);
	for (uint32_t round = 0; round < 10; round++)
		(void)look(c, space, &canon, 0, 1000);
	assert_int_equal(dp_figure(&w, "coded_total"), coded);
	dp_check(&w);
	dp_stop(&w);
}

/* Exact readers beside others: neither sees the other's blocks, and theirs stay native. */
static void exact_spaces_stay_exact(void **state)
{
	struct kvp_space_canon exact = model("m", NULL), lossy = model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = world(&w, 0);
	uint32_t a = opened(c, &exact), b = opened(c, &lossy);
	struct seen seen;

	(void)state;
	assert_int_not_equal(a, b);
	for (uint32_t i = 0; i < 600; i++) {
		put_many(c, i % 3 ? b : a, i, 1);
		if (i % 50 == 49)
			(void)look(c, a, &exact, i - 20, 20);
	}
	seen = look(c, a, &exact, 0, 600);
	assert_int_equal(seen.width[0], seen.found);
	assert_true(seen.found <= 200);
	seen = look(c, b, &lossy, 0, 600);
	assert_true(seen.found > 200);
	assert_true(seen.width[0] < seen.found);
	dp_check(&w);
	dp_stop(&w);
}

/* What is leased stays where it is, bit for bit, whatever becomes of the rest. */
static void leased_blocks_stay(void **state)
{
	struct kvp_space_canon canon = model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = world(&w, 0);
	uint32_t space = opened(c, &canon);
	struct kvp_lease lease[20];
	struct kvp_hit hit[20];
	kvp_token tokens[T];

	(void)state;
	put_many(c, space, 0, 300);
	dp_flush(c);
	for (uint32_t i = 0; i < 20; i++) {
		tokens_of(i, tokens);
		assert_int_equal(dp_find(c, space, tokens, T, &hit[i], 1), 1);
		assert_int_equal(kvp_lease_take(c->page, 0, &c->view.blocks[hit[i].id], hit[i].id,
					 hit[i].word, &lease[i]),
			0);
	}
	put_many(c, space, 1000, 900);
	assert_true(dp_figure(&w, "coded_total") > 100);
	dp_pump(&w);
	for (uint32_t i = 0; i < 20; i++) {
		/* It may have moved out of an arena that was emptied; then its old bytes stay. */
		assert_right(c, &canon, &hit[i], i);
		assert_int_equal(kvp_where_codec(hit[i].where), 0);
		assert_int_equal(kvp_where_codec(kvp_load_relaxed(
					 &c->view.blocks[hit[i].id].payload[KVP_TIER_DRAM].where)),
			0);
		kvp_lease_drop(&lease[i]);
	}
	dp_check(&w);
	dp_stop(&w);
}

static uint32_t width_of(struct dp_client *c, const struct dp_block *b)
{
	return kvp_where_codec(
		kvp_load_relaxed(&c->view.blocks[b->id].payload[KVP_TIER_DRAM].where));
}

static bool is_there(struct dp_client *c, const struct dp_block *b)
{
	uint64_t word = kvp_load_acquire(&c->view.blocks[b->id].word);

	return kvp_word_birth(word) == b->birth && kvp_word_state(word) == KVP_BLOCK_LIVE;
}

/* The ends of sequences, excepted layers, partial blocks. */
static void what_stays_native(void **state)
{
	struct kvp_space_canon canon = model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = world(&w, 0);
	struct dp_block b[40][5];
	uint32_t space, coded = 0;

	(void)state;
	canon.native_first = T + 1; /* two blocks */
	canon.native_last = 1;      /* and the last one */
	canon.layers[1].exact = 1;
	space = opened(c, &canon);
	for (uint32_t k = 0; k < 40; k++) {
		struct dp_ref parent = dp_root();

		for (uint32_t i = 0; i < 5; i++) {
			assert_int_equal(
				put(c, space, parent, k * 100 + i, i < 4 ? T : T / 2, &b[k][i]), 0);
			parent = dp_ref(&b[k][i]);
		}
	}
	for (uint32_t i = 0; i < 500; i++) {
		struct dp_block more;

		/* Leaves: none of them may be coded. */
		assert_int_equal(put(c, space, dp_root(), 100000 + i, T, &more), 0);
	}
	dp_flush(c);
	for (uint32_t k = 0; k < 40; k++)
		for (uint32_t i = 0; i < 5; i++) {
			if (!is_there(c, &b[k][i]))
				continue;
			if (i == 2 || i == 3)
				coded += width_of(c, &b[k][i]) != 0;
			else
				assert_int_equal(width_of(c, &b[k][i]), 0);
		}
	assert_int_equal(dp_figure(&w, "coded_blocks"), coded);
	assert_true(dp_figure(&w, "coded_total") > 0);
	dp_check(&w);
	dp_stop(&w);
}

static void the_operator_bounds_it(void **state)
{
	struct kvp_space_canon canon = model("m", "2bit");
	struct dp_world w;
	struct dp_client *c = world(&w, 16);
	uint32_t space = opened(c, &canon);
	struct seen seen;

	(void)state;
	put_many(c, space, 0, 1000);
	seen = look(c, space, &canon, 0, 1000);
	assert_int_equal(seen.width[0], seen.found);
	assert_int_equal(dp_figure(&w, "coded_total"), 0);
	dp_check(&w);
	dp_stop(&w);

	c = world(&w, 4);
	space = opened(c, &canon);
	put_many(c, space, 0, 1500);
	seen = look(c, space, &canon, 0, 1500);
	assert_true(seen.width[2] > 0 && !seen.width[3] && !seen.width[4]);
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(precision_goes_before_blocks),
		cmocka_unit_test(constant_load_changes_nothing),
		cmocka_unit_test(exact_spaces_stay_exact),
		cmocka_unit_test(leased_blocks_stay),
		cmocka_unit_test(what_stays_native),
		cmocka_unit_test(the_operator_bounds_it),
	};
	int failed;

	if (kvp_kernels_new(KVP_CPU_ALL, &kernels) < 0)
		return 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	kvp_kernels_free(kernels);
	return failed;
}
