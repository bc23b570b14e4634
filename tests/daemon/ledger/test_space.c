/* SPDX-License-Identifier: Apache-2.0 */
/* Opening spaces: what is refused and why, the table of 64, and what is emptied for one more. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/clock.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "kernels/kvp_codec.h"
#include "shm/kvp_lease.h"
#include "tests/daemon/ledger/dp_world.h"

#define T     16u
#define CHAIN 24u

struct stage {
	struct dp_world w;
	struct dp_client *c;
};

static int start(void **state)
{
	struct stage *g = test_calloc(1, sizeof(*g));
	struct kvpd_limits limits;

	dp_defaults(&g->w, &limits);
	dp_start(&g->w, &limits);
	g->c = dp_attach(&g->w, g->w.tenant);
	*state = g;
	return 0;
}

static int stop(void **state)
{
	struct stage *g = *state;

	dp_check(&g->w);
	dp_stop(&g->w);
	test_free(g);
	return 0;
}

/* A model of its own for each number. */
static void numbered(struct kvp_space_canon *canon, uint32_t i)
{
	char name[32];

	snprintf(name, sizeof(name), "model %u", i);
	dp_canon(canon, name, 2);
}

static int open_numbered(struct dp_client *c, uint32_t i, struct kvp_msg_space *ret)
{
	struct kvp_space_canon canon;
	char reason[KVP_MSG_TEXT] = "";
	int r;

	numbered(&canon, i);
	r = dp_open(c, &canon, reason, sizeof(reason), ret);
	assert_int_equal(*reason != 0, r < 0);
	return r;
}

static int close_space(struct dp_client *c, const struct kvp_msg_space *s)
{
	const struct kvp_msg_id id = { s->space, s->generation };

	return kvpd_space_close(c->world->ledger, c->at.session, &id);
}

static uint32_t live(const struct dp_client *c)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		n += kvp_load_acquire(&c->view.spaces[i].state) == KVP_SPACE_LIVE;
	return n;
}

/* Chains of one block each, so that many have no children. */
static void put_many(struct dp_client *c, uint32_t space, uint32_t n, struct dp_block *out)
{
	for (uint32_t i = 0; i < n; i++) {
		kvp_token tokens[T];

		for (uint32_t k = 0; k < T; k++)
			tokens[k] = 1000 * i + k;
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &out[i]), 0);
	}
	dp_flush(c);
}

static uint32_t found(struct dp_client *c, uint32_t space, uint32_t i)
{
	struct kvp_hit hit;
	kvp_token tokens[T];

	for (uint32_t k = 0; k < T; k++)
		tokens[k] = 1000 * i + k;
	return dp_find(c, space, tokens, T, &hit, 1);
}

/* ---- refusals ------------------------------------------------------------------------------- */

#define AT(member) offsetof(struct kvp_space_canon, member)

static void what_is_wrong_is_said(void **state)
{
	/* So many bytes at an offset become this, in a description of two layers. */
	static const struct {
		size_t at, bytes;
		uint64_t value;
		int error;
		const char *why;
	} cases[] = {
		{ AT(version), 4, 0, -EINVAL, "unknown version" },
		{ AT(version), 4, 2, -EINVAL, "unknown version" },
		{ AT(dtype), 4, 0, -EINVAL, "unknown dtype" },
		{ AT(dtype), 4, UINT32_MAX, -EINVAL, "unknown dtype" },
		{ AT(layout), 4, KVP_LAYOUT_OPAQUE + 1, -EINVAL, "unknown layout" },
		{ AT(layout), 4, KVP_LAYOUT_OPAQUE, -EINVAL, "needs the bytes of a block" },
		{ AT(opaque_bytes), 8, 4096, -EINVAL, "only an opaque layout" },
		{ AT(opaque_layout), 1, 'x', -EINVAL, "only an opaque layout" },
		{ AT(key_bytes), 4, 64, -EINVAL, "that keys name have an opaque layout" },
		{ AT(reserved), 4, 1, -EINVAL, "unknown version" },
		{ AT(block_tokens), 4, 0, -EINVAL, "block_tokens must be" },
		{ AT(block_tokens), 4, KVP_BLOCK_TOKENS_MIN - 1, -EINVAL, "block_tokens must be" },
		{ AT(block_tokens), 4, KVP_BLOCK_TOKENS_MAX + 1, -EINVAL, "block_tokens must be" },
		{ AT(n_layers), 4, 0, -EINVAL, "n_layers must be" },
		{ AT(n_layers), 4, 1, -EINVAL, "beyond n_layers is not zero" },
		{ AT(n_layers), 4, 3, -EINVAL, "needs kv_heads and k_dim" },
		{ AT(n_layers), 4, KVP_MAX_LAYERS + 1, -EINVAL, "n_layers must be" },
		{ AT(n_layers), 4, UINT32_MAX, -EINVAL, "n_layers must be" },
		{ AT(model[KVP_SPACE_NAME - 1]), 1, 'x', -EINVAL, "not padded with zeros" },
		{ AT(adapter[1]), 1, 'x', -EINVAL, "not padded with zeros" },
		{ AT(tokenizer[7]), 1, 'x', -EINVAL, "not padded with zeros" },
		{ AT(layers[0].kv_heads), 2, 0, -EINVAL, "needs kv_heads and k_dim" },
		{ AT(layers[1].k_dim), 2, 0, -EINVAL, "needs kv_heads and k_dim" },
		{ AT(layers[1].exact), 2, 2, -EINVAL, "needs kv_heads and k_dim" },
		{ AT(layers[1].exact), 2, 1, -EINVAL, "in a space with a floor only" },
		{ AT(native_first), 4, 1, -EINVAL, "in a space with a floor only" },
		{ AT(native_last), 4, 1, -EINVAL, "in a space with a floor only" },
		{ AT(floor_k), 4, UINT32_MAX, -EINVAL, "the floor is no codec" },
		{ AT(floor_v), 4, 14u << 8, -EINVAL, "the floor is no codec" },
		{ AT(layers[1].index), 2, 0, -EINVAL, "ascending order" },
		{ AT(layers[2].index), 2, 2, -EINVAL, "beyond n_layers is not zero" },
		{ AT(layers[KVP_MAX_LAYERS - 1].exact), 2, 1, -EINVAL, "beyond n_layers" },
		{ AT(layers[1].kv_heads), 8, UINT64_MAX, -E2BIG,
			"does not fit the tenant's share" },
	};
	struct stage *g = *state;
	struct kvp_msg_space space = { 77, 78 };
	char reason[KVP_MSG_TEXT], little[8];
	struct kvp_space_canon canon;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		dp_canon(&canon, "m", 2);
		memcpy((uint8_t *)&canon + cases[i].at, &cases[i].value, cases[i].bytes);
		*reason = 0;
		assert_int_equal(
			dp_open(g->c, &canon, reason, sizeof(reason), &space), cases[i].error);
		if (!strstr(reason, cases[i].why))
			fail_msg("'%s' instead of '%s'", reason, cases[i].why);
	}
	/* The largest there can be: no sum of it overflows. */
	memset(&canon.layers, 0xff, sizeof(canon.layers));
	canon.block_tokens = KVP_BLOCK_TOKENS_MAX;
	canon.n_layers = KVP_MAX_LAYERS;
	for (uint32_t i = 0; i < KVP_MAX_LAYERS; i++) {
		canon.layers[i].index = (uint16_t)i;
		canon.layers[i].exact = 0;
	}
	assert_int_equal(dp_open(g->c, &canon, reason, sizeof(reason), &space), -E2BIG);

	/* A reason is cut to the room for it, and needs none. */
	canon.version = 0;
	memset(little, 'x', sizeof(little));
	assert_int_equal(dp_open(g->c, &canon, little, sizeof(little) - 1, &space), -EINVAL);
	assert_memory_equal(little, "unknow\0x", sizeof(little));
	assert_int_equal(dp_open(g->c, &canon, NULL, 0, &space), -EINVAL);

	dp_canon(&canon, "m", 2);
	assert_int_equal(kvpd_space_open(g->w.ledger, g->c->at.session + 1, &canon, reason,
				 sizeof(reason), &space),
		-ENOENT);
	assert_string_equal(reason, "no such session");
	assert_int_equal(space.space, 77);
	assert_int_equal(space.generation, 78);
	assert_int_equal(live(g->c), 0);
}

/* Of a layout that only the engine knows, and of keys. */
static void what_is_wrong_of_opaque_ones_is_said(void **state)
{
	static const struct {
		size_t at, bytes;
		uint64_t value;
		const char *why;
	} cases[] = {
		{ AT(opaque_bytes), 8, 0, "needs the bytes of a block" },
		{ AT(opaque_bytes), 8, UINT64_C(1) << 32, "needs the bytes of a block" },
		{ AT(opaque_layout), 1, 0, "needs a name" },
		{ AT(opaque_layout[2]), 1, 'x', "not padded with zeros" },
		{ AT(opaque_layout[KVP_SPACE_NAME - 1]), 1, 'x', "not padded with zeros" },
		{ AT(dtype), 4, 1, "neither dtype nor layers nor RoPE" },
		{ AT(n_layers), 4, 1, "neither dtype nor layers nor RoPE" },
		{ AT(n_layers), 4, UINT32_MAX, "neither dtype nor layers nor RoPE" },
		{ AT(layers[3].k_dim), 2, 1, "neither dtype nor layers nor RoPE" },
		{ AT(rope_dim), 4, 64, "neither dtype nor layers nor RoPE" },
		{ AT(rope_param_bits[3]), 8, 1, "neither dtype nor layers nor RoPE" },
		{ AT(key_bytes), 4, 12, "key_bytes must be" },
		{ AT(key_bytes), 4, 33, "key_bytes must be" },
		{ AT(key_bytes), 4, 36, "key_bytes must be" },
		{ AT(key_bytes), 4, 68, "key_bytes must be" },
		{ AT(key_bytes), 4, UINT32_MAX, "key_bytes must be" },
		{ AT(key_bytes), 4, 0, "block_tokens must be" },
		{ AT(block_tokens), 4, 16, "key_bytes must be" },
		{ AT(layout), 4, KVP_LAYOUT_NCLD, "that keys name have an opaque layout" },
	};
	struct stage *g = *state;
	struct kvp_msg_space space;
	char reason[KVP_MSG_TEXT];
	struct kvp_space_canon canon, right = {
		.version = 1,
		.layout = KVP_LAYOUT_OPAQUE,
		.block_tokens = 8,
		.opaque_bytes = 4096,
		.key_bytes = 32,
		.opaque_layout = "x",
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		canon = right;
		memcpy((uint8_t *)&canon + cases[i].at, &cases[i].value, cases[i].bytes);
		*reason = 0;
		assert_int_equal(dp_open(g->c, &canon, reason, sizeof(reason), &space), -EINVAL);
		if (!strstr(reason, cases[i].why))
			fail_msg("%zu: '%s' instead of '%s'", i, reason, cases[i].why);
	}
	assert_int_equal(live(g->c), 0);
	right.opaque_bytes = UINT32_MAX;
	assert_int_equal(dp_open(g->c, &right, reason, sizeof(reason), &space), -E2BIG);
	right.opaque_bytes = 4096;
	assert_int_equal(dp_open(g->c, &right, reason, sizeof(reason), &space), 0);
	assert_int_equal(live(g->c), 1);
}

/* Every byte of a description counts: with another one it is another space, or none. */
static void no_byte_is_overlooked(void **state)
{
	struct stage *g = *state;
	struct kvp_space_canon canon, other;
	struct kvp_msg_space first, space;
	char reason[KVP_MSG_TEXT];
	uint32_t opened = 0;

	dp_canon(&canon, "m", 2);
	assert_int_equal(dp_open(g->c, &canon, reason, sizeof(reason), &first), 0);
	for (size_t at = 0; at < sizeof(canon); at++) {
		other = canon;
		((uint8_t *)&other)[at] ^= 1;
		*reason = 0;
		if (dp_open(g->c, &other, reason, sizeof(reason), &space) < 0) {
			assert_true(*reason);
			continue;
		}
		opened++;
		assert_int_not_equal(space.space, first.space);
		assert_int_not_equal(g->c->view.spaces[space.space].root_lo,
			g->c->view.spaces[first.space].root_lo);
		assert_int_equal(close_space(g->c, &space), 0);
	}
	/* Layers' channels, rope, digest, the next letter of each name: and many more were refused. */
	assert_in_range(opened, 80, 160);
	assert_int_equal(live(g->c), KVP_MAX_SPACES);
}

/* Bytes that nobody described a model by: each is a space or refused with a reason. */
static void noise_is_refused(void **state)
{
	struct stage *g = *state;
	uint64_t seed = 88172645463325252u;

	for (uint32_t round = 0; round < 2000; round++) {
		struct kvp_space_canon canon;
		struct kvp_msg_space space;
		char reason[KVP_MSG_TEXT] = "";

		dp_canon(&canon, "m", 1 + round % 3);
		for (uint32_t k = round % 7; k < 7; k++) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			/* The head, the names and the first layers, where something depends on it. */
			((uint8_t *)&canon)[seed % (AT(layers) + 64)] = (uint8_t)(seed >> 32);
		}
		if (dp_open(g->c, &canon, reason, sizeof(reason), &space) == 0)
			assert_int_equal(close_space(g->c, &space), 0);
		else
			assert_true(*reason);
	}
}

/* ---- the table ------------------------------------------------------------------------------ */

static void same_bytes_are_one_space(void **state)
{
	struct stage *g = *state;
	struct dp_client *other = dp_attach(&g->w, g->w.tenant);
	struct kvp_msg_space a, b, stale;

	assert_int_equal(open_numbered(g->c, 1, &a), 0);
	assert_int_equal(open_numbered(other, 1, &b), 0);
	assert_int_equal(a.space, b.space);
	assert_int_equal(a.generation, b.generation);
	assert_int_equal(live(g->c), 1);
	/* Each closes what it has opened, once, and by the generation it was told. */
	stale = a;
	stale.generation++;
	assert_int_equal(close_space(g->c, &stale), -ENOENT);
	assert_int_equal(close_space(g->c, &a), 0);
	assert_int_equal(close_space(g->c, &a), -ENOENT);
	assert_int_equal(close_space(other, &b), 0);
	stale.space = KVP_MAX_SPACES;
	assert_int_equal(close_space(g->c, &stale), -ENOENT);
	stale.space = UINT32_MAX;
	assert_int_equal(close_space(g->c, &stale), -ENOENT);
}

static void nobody_opens_one_too_often(void **state)
{
	struct stage *g = *state;
	struct dp_client *other = dp_attach(&g->w, g->w.tenant);
	struct kvp_msg_space space;

	for (uint32_t i = 0; i < UINT16_MAX; i++)
		assert_int_equal(open_numbered(g->c, 1, &space), 0);
	assert_int_equal(open_numbered(g->c, 1, &space), -EMFILE);
	assert_int_equal(open_numbered(other, 1, &space), 0);
	assert_int_equal(close_space(g->c, &space), 0);
	assert_int_equal(open_numbered(g->c, 1, &space), 0);
	assert_int_equal(open_numbered(g->c, 1, &space), -EMFILE);
}

static void there_are_64(void **state)
{
	struct stage *g = *state;
	struct kvp_msg_space space[KVP_MAX_SPACES], more;
	struct dp_block block[2];

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		assert_int_equal(open_numbered(g->c, i, &space[i]), 0);
		for (uint32_t k = 0; k < i; k++)
			assert_int_not_equal(space[i].space, space[k].space);
	}
	put_many(g->c, space[5].space, 2, block);
	put_many(g->c, space[6].space, 2, block);
	assert_int_equal(open_numbered(g->c, 64, &more), -ENOSPC);
	assert_int_equal(open_numbered(g->c, 5, &more), 0);
	assert_int_equal(close_space(g->c, &more), 0);
	/* One that is closed is there until its place is wanted. */
	assert_int_equal(close_space(g->c, &space[5]), 0);
	assert_int_equal(found(g->c, space[5].space, 1), 1);
	assert_int_equal(open_numbered(g->c, 64, &more), 0);
	assert_int_equal(more.space, space[5].space);
	assert_int_equal(more.generation, space[5].generation + 1);
	assert_int_equal(found(g->c, more.space, 1), 0);
	assert_int_equal(found(g->c, space[6].space, 1), 1);
	assert_int_equal(close_space(g->c, &space[5]), -ENOENT);
	assert_int_equal(open_numbered(g->c, 5, &space[5]), -ENOSPC);
}

/* The 65th, step by step; the spaces before it are closed, the first one has blocks. */
static void fill(struct stage *g, struct kvp_msg_space *space, uint32_t with_blocks)
{
	static struct dp_block block[CHAIN];

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		assert_int_equal(open_numbered(g->c, i, &space[i]), 0);
		if (i < with_blocks)
			put_many(g->c, space[i].space, CHAIN, block);
		assert_int_equal(close_space(g->c, &space[i]), 0);
	}
}

static int step(struct dp_client *c, uint32_t i, struct kvp_msg_space *ret)
{
	struct kvp_space_canon canon;
	char reason[KVP_MSG_TEXT];

	numbered(&canon, i);
	return kvpd_space_open(
		c->world->ledger, c->at.session, &canon, reason, sizeof(reason), ret);
}

static void a_space_is_emptied_in_steps(void **state)
{
	struct stage *g = *state;
	struct kvp_msg_space space[KVP_MAX_SPACES], more;
	uint32_t steps = 0;
	int r;

	fill(g, space, 1);
	while ((r = step(g->c, 64, &more)) == -EINPROGRESS) {
		steps++;
		/* Until it is empty it is what it was. */
		assert_int_equal(live(g->c), KVP_MAX_SPACES);
	}
	assert_int_equal(r, 0);
	assert_int_equal(more.space, space[0].space);
	assert_true(steps >= CHAIN / 4);
	assert_int_equal(dp_figure(&g->w, "blocks"), 0);
}

/* What cannot be opened in any case costs nobody his blocks. */
static void nothing_is_emptied_in_vain(void **state)
{
	struct stage *g = *state;
	struct kvp_msg_space space[KVP_MAX_SPACES], more;
	struct kvp_space_canon canon;
	char reason[KVP_MSG_TEXT] = "";

	fill(g, space, 1);
	numbered(&canon, 64);
	for (uint32_t i = 0; i < canon.n_layers; i++)
		canon.layers[i].k_dim = canon.layers[i].v_dim = 64;
	canon.floor_k = canon.floor_v = KVP_CODEC_KVQUANT(3u);
	assert_int_equal(dp_open(g->c, &canon, reason, sizeof(reason), &more), -ENOENT);
	assert_non_null(strstr(reason, "needs a calibration of this model: there is none"));
	assert_int_equal(live(g->c), KVP_MAX_SPACES);
	assert_int_equal(dp_figure(&g->w, "blocks"), CHAIN);
}

/* A block of a key, to be evicted before the one of another key, if there is one. */
static void put_key(
	struct dp_client *c, uint32_t space, uint32_t number, kvp_block_id after, kvp_block_id *ret)
{
	struct kvp_sqe sqe = { .op = KVP_OP_COMMIT, .space = (uint16_t)space, .tokens = 8 };
	const kvp_token key[8] = { number };
	struct dp_grant grant;
	struct kvp_cqe cqe;
	uint32_t serial;

	assert_int_equal(dp_reserve(c, space, 1, DP_WAIT_MS, &grant), 1);
	memcpy(c->page->staging[grant.index], key, sizeof(key));
	sqe.grant = grant.index;
	sqe.grant_generation = grant.generation;
	sqe.parent_kind = KVP_PARENT_ROOT;
	sqe.flags = KVP_SQE_RELEASE;
	if (after != KVP_BLOCK_NONE) {
		sqe.flags |= KVP_SQE_BEFORE;
		sqe.next_lo = kvp_load_relaxed(&c->view.blocks[after].key_lo);
		sqe.next_hi = kvp_load_relaxed(&c->view.blocks[after].key_hi);
	}
	serial = dp_push(c, &sqe);
	do
		assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
	while (cqe.serial != serial);
	assert_int_equal(cqe.status, 0);
	*ret = cqe.block;
}

/*
 * A chain of keys, first block first, and siblings at its end: no block is tried again for each one that
 * hangs on it, or the work would go with the square of the length.
 */
static void keys_with_parents_go_in_one_pass(void **state)
{
	const struct kvp_space_canon canon = {
		.version = 1,
		.layout = KVP_LAYOUT_OPAQUE,
		.block_tokens = 8,
		.opaque_bytes = 4096,
		.key_bytes = 32,
		.opaque_layout = "x",
	};
	const uint32_t links = 400, leaves = 50;
	struct stage *g = *state;
	struct kvp_msg_space space, more;
	kvp_block_id tip = KVP_BLOCK_NONE, leaf;
	char reason[KVP_MSG_TEXT];
	uint32_t steps = 0;
	int r;

	assert_int_equal(dp_open(g->c, &canon, reason, sizeof(reason), &space), 0);
	for (uint32_t i = 0; i < links; i++)
		put_key(g->c, space.space, i + 1, tip, &tip);
	for (uint32_t i = 0; i < leaves; i++)
		put_key(g->c, space.space, links + i + 1, tip, &leaf);
	dp_check(&g->w);
	assert_int_equal(close_space(g->c, &space), 0);
	for (uint32_t i = 1; i < KVP_MAX_SPACES; i++)
		assert_int_equal(open_numbered(g->c, i, &more), 0);
	assert_int_equal(dp_figure(&g->w, "blocks"), links + leaves);
	while ((r = step(g->c, KVP_MAX_SPACES, &more)) == -EINPROGRESS)
		assert_true(++steps <= links + leaves);
	assert_int_equal(r, 0);
	assert_int_equal(more.space, space.space);
	assert_int_equal(dp_figure(&g->w, "blocks"), 0);
	dp_check(&g->w);
}

/* What takes the last block away between two steps, as an eviction does; its id is in *arg then. */
static int evict_what_is_next(struct kvpd_ledger *l, void *arg)
{
	struct kvpd_tenant *t = NULL;
	uint32_t *id = arg;

	for (uint32_t i = 1; i <= l->last_tenant && !t; i++)
		t = l->tenant[i];
	*id = t->emptying.chain;
	return *id == KVP_BLOCK_NONE ? -ENOENT : kvpd_block_drop(t, *id, false, kvpd_now_ns());
}

/* The block that would have been next may have gone between two steps, and its id be another's. */
static void a_block_of_another_space_is_not_taken_for_the_next(void **state)
{
	const uint32_t links = 900, tries = 200;
	struct stage *g = *state;
	struct kvp_msg_space space[KVP_MAX_SPACES], more;
	struct dp_ref parent = dp_root();
	static struct dp_block other[200];
	struct dp_block block;
	uint32_t id, of_other = 0;
	int r;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		assert_int_equal(open_numbered(g->c, i, &space[i]), 0);
	for (uint32_t i = 0; i < links; i++) {
		kvp_token tokens[T];

		for (uint32_t k = 0; k < T; k++)
			tokens[k] = 7000 + i * T + k;
		assert_int_equal(dp_put(g->c, space[0].space, parent, tokens, T, &block), 0);
		parent = dp_ref(&block);
	}
	dp_flush(g->c);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (i != 1)
			assert_int_equal(close_space(g->c, &space[i]), 0);
	assert_int_equal(step(g->c, 64, &more), -EINPROGRESS);
	assert_int_equal(kvpd_ledger_ask(g->w.ledger, evict_what_is_next, &id), 0);
	put_many(g->c, space[1].space, tries, other);
	for (uint32_t i = 0; i < tries; i++)
		of_other += other[i].id == id;
	assert_int_equal(of_other, 1);
	while ((r = step(g->c, 64, &more)) == -EINPROGRESS)
		;
	/* Which of the closed ones it is does not matter: the pass over the first one may end early. */
	assert_int_equal(r, 0);
	for (uint32_t i = 0; i < tries; i++)
		assert_int_equal(found(g->c, space[1].space, i), 1);
}

/* Who opens it again meanwhile has it, and what is left in it; another one is emptied. */
static void one_that_is_opened_again_stays(void **state)
{
	struct stage *g = *state;
	struct kvp_msg_space space[KVP_MAX_SPACES], more, again;
	uint32_t left;
	int r;

	fill(g, space, 2);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(step(g->c, 64, &more), -EINPROGRESS);
	assert_int_equal(open_numbered(g->c, 0, &again), 0);
	assert_int_equal(again.space, space[0].space);
	assert_int_equal(again.generation, space[0].generation);
	left = (uint32_t)dp_figure(&g->w, "blocks");
	assert_in_range(left, CHAIN + 1, 2 * CHAIN - 1);
	while ((r = step(g->c, 64, &more)) == -EINPROGRESS)
		;
	assert_int_equal(r, 0);
	assert_int_equal(more.space, space[1].space);
	assert_int_equal(dp_figure(&g->w, "blocks"), left - CHAIN);
}

/* Blocks that are read stay, and so does their space; of a few such ones nobody looks further. */
static void what_is_leased_stays(void **state)
{
	struct stage *g = *state;
	struct kvp_lease lease[4] = { { NULL } };
	struct kvp_msg_space space[KVP_MAX_SPACES], more;
	struct dp_block block;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		assert_int_equal(open_numbered(g->c, i, &space[i]), 0);
		if (i >= 4) /* the oldest four are closed */
			continue;
		put_many(g->c, space[i].space, 1, &block);
		assert_int_equal(
			kvp_lease_take(g->c->page, 0, &g->c->view.blocks[block.id], block.id,
				kvp_load_relaxed(&g->c->view.blocks[block.id].word), &lease[i]),
			0);
		assert_int_equal(close_space(g->c, &space[i]), 0);
	}
	assert_int_equal(open_numbered(g->c, 64, &more), -ENOSPC);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(found(g->c, space[i].space, 0), 1);
	kvp_lease_drop(&lease[2]);
	assert_int_equal(open_numbered(g->c, 64, &more), 0);
	assert_int_equal(more.space, space[2].space);
	for (uint32_t i = 0; i < 4; i++)
		kvp_lease_drop(&lease[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_wrong_is_said, start, stop),
		cmocka_unit_test_setup_teardown(what_is_wrong_of_opaque_ones_is_said, start, stop),
		cmocka_unit_test_setup_teardown(no_byte_is_overlooked, start, stop),
		cmocka_unit_test_setup_teardown(noise_is_refused, start, stop),
		cmocka_unit_test_setup_teardown(same_bytes_are_one_space, start, stop),
		cmocka_unit_test_setup_teardown(nobody_opens_one_too_often, start, stop),
		cmocka_unit_test_setup_teardown(there_are_64, start, stop),
		cmocka_unit_test_setup_teardown(nothing_is_emptied_in_vain, start, stop),
		cmocka_unit_test_setup_teardown(a_space_is_emptied_in_steps, start, stop),
		cmocka_unit_test_setup_teardown(keys_with_parents_go_in_one_pass, start, stop),
		cmocka_unit_test_setup_teardown(
			a_block_of_another_space_is_not_taken_for_the_next, start, stop),
		cmocka_unit_test_setup_teardown(one_that_is_opened_again_stays, start, stop),
		cmocka_unit_test_setup_teardown(what_is_leased_stays, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
