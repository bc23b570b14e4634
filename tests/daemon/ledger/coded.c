/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks that may be coded: contents that follow from a seed, and whether codecs made of them what is there. */
#include "tests/daemon/ledger/coded.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct kvp_kernels *kernels;

/* Two layers of two heads, 64 channels: 16 KiB of fp16 a block. */
struct kvp_space_canon coded_model(const char *name, const char *floor)
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

uint32_t coded_open(struct dp_client *c, const struct kvp_space_canon *canon)
{
	struct kvp_msg_space space;
	char why[KVP_MSG_TEXT] = "";

	if (dp_open(c, canon, why, sizeof(why), &space) < 0)
		fail_msg("%s", why);
	return space.space;
}

struct dp_client *coded_world(struct dp_world *w, uint32_t least_bits)
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

void coded_tokens(uint32_t seed, kvp_token *out)
{
	for (uint32_t i = 0; i < T; i++)
		out[i] = seed * 1000 + i;
}

/* Halves between 1/2 and 2, of both signs, that follow from the seed. */
void coded_native(uint32_t seed, uint8_t *out)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (uint32_t i = 0; i < BLOCK; i += 2) {
		uint16_t half;

		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		half = (uint16_t)(0x3800 + (x >> 40 & 0x7ff) + (x >> 60 & 1) * 0x8000);
		memcpy(out + i, &half, 2);
	}
}

int coded_put(struct dp_client *c, uint32_t space, struct dp_ref parent, uint32_t seed, uint32_t n,
	struct dp_block *ret)
{
	kvp_token tokens[T];
	struct dp_grant g;
	int r = dp_reserve(c, space, 1, DP_WAIT_MS, &g);

	if (r < 0)
		return r;
	coded_tokens(seed, tokens);
	coded_native(seed, g.addr);
	r = dp_commit(c, space, &g, parent, tokens, n, KVP_SQE_RELEASE, ret);
	return r;
}

/* Blocks that are first of their chains. */
void coded_put_many(struct dp_client *c, uint32_t space, uint32_t first, uint32_t n)
{
	struct dp_block b;

	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(coded_put(c, space, dp_root(), first + i, T, &b), 0);
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

void coded_right(struct dp_client *c, const struct kvp_space_canon *canon, const struct kvp_hit *h,
	uint32_t seed)
{
	const uint8_t *payload = c->extent[kvp_where_extent(h->where)].addr + h->offset;
	uint32_t width = kvp_where_codec(h->where), bytes = kvp_where_bytes(h->where);
	static uint8_t native[BLOCK];

	coded_native(seed, native);
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

/* Looks all of these up, each the first of a chain, and compares every byte. */
struct seen coded_look(struct dp_client *c, uint32_t space, const struct kvp_space_canon *canon,
	uint32_t first, uint32_t n)
{
	struct seen seen = { 0 };

	dp_flush(c);
	dp_pump(c->world);
	for (uint32_t i = 0; i < n; i++) {
		kvp_token tokens[T];
		struct kvp_lease lease;
		struct kvp_hit h;

		coded_tokens(first + i, tokens);
		if (!dp_find(c, space, tokens, T, &h, 1) ||
			kvp_lease_take(c->page, 0, &c->view.blocks[h.id], h.id, h.word, &lease))
			continue;
		dp_pump(c->world);
		coded_right(c, canon, &h, first + i);
		kvp_lease_drop(&lease);
		seen.found++;
		seen.width[kvp_where_codec(h.where)]++;
	}
	return seen;
}

uint32_t coded_width(struct dp_client *c, const struct dp_block *b)
{
	return kvp_where_codec(
		kvp_load_relaxed(&c->view.blocks[b->id].payload[KVP_TIER_DRAM].where));
}

bool coded_there(struct dp_client *c, const struct dp_block *b)
{
	uint64_t word = kvp_load_acquire(&c->view.blocks[b->id].word);

	return kvp_word_birth(word) == b->birth && kvp_word_state(word) == KVP_BLOCK_LIVE;
}

/* ---- rules ------------------------------------------------------------------------------------ */

int coded_set(struct dp_world *w, const char *name, const char *members, json_t **ret)
{
	char request[256];

	snprintf(request, sizeof(request), "{\"verb\":\"space-set\",\"space\":\"%s\",%s}", name,
		members);
	return dp_admin(w, request, ret);
}

void coded_rule(struct dp_world *w, const char *name, const char *members)
{
	json_t *answer;
	int r = coded_set(w, name, members, &answer);

	if (r < 0)
		fail_msg("%s", json_string_value(json_object_get(answer, "error")));
	json_decref(answer);
}

struct kvpd_space_figures coded_figures(struct dp_world *w, uint32_t space)
{
	struct kvpd_space_figures found = { 0 };
	struct kvpd_figures f;
	bool there = false;

	assert_int_equal(dp_figures(w, NULL, KVPD_FIGURES_SPACES, &f), 0);
	for (uint32_t i = 0; i < f.n_spaces; i++)
		if (f.space[i].space == space) {
			found = f.space[i];
			there = true;
		}
	kvpd_figures_fini(&f);
	assert_true(there);
	return found;
}

bool coded_within(struct dp_world *w, uint32_t space, double budget)
{
	struct kvpd_space_figures f = coded_figures(w, space);

	return (double)f.dram_bytes <= budget * (double)f.native_bytes;
}

void coded_await_within(struct dp_world *w, uint32_t space, double budget)
{
	for (uint32_t ms = 0; !coded_within(w, space, budget); ms++) {
		assert_true(ms < DP_WAIT_MS);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		dp_pump(w);
	}
}

void coded_await_rest(struct dp_world *w)
{
	uint64_t before, now = dp_figure(w, "coded_total");

	do {
		before = now;
		for (uint32_t i = 0; i < 60; i++) {
			nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
			dp_pump(w);
		}
		now = dp_figure(w, "coded_total");
	} while (now != before);
}

int coded_run(const char *name, const struct CMUnitTest *tests, size_t n)
{
	int failed;

	if (kvp_kernels_new(KVP_CPU_ALL, &kernels) < 0)
		return 1;
	failed = _cmocka_run_group_tests(name, tests, n, NULL, NULL);
	kvp_kernels_free(kernels);
	return failed;
}
