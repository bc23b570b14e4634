/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/daemon/ledger/dp_world.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/figures.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/tenant.h"
#include "libclient/kvpool.h"
#include "policy/kvp_evict.h"

static_assert(KVPD_SESSION_CLAIMS == KVP_CLIENT_CLAIMS, "kvpool.h tells the limit");

#define T 16u /* tokens in a block */

/* Token ids that begin differently for each n. */
static void make_tokens(kvp_token *out, uint32_t n, uint32_t seed)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = seed * 1000003u + i;
}

/* Puts a chain of whole blocks; the last status. */
static int put_chain(struct dp_client *c, uint32_t space, const kvp_token *tokens, uint32_t blocks,
	struct dp_block *out)
{
	struct dp_ref parent = dp_root();
	int r = 0;

	for (uint32_t i = 0; i < blocks; i++) {
		r = dp_put(c, space, parent, tokens + i * T, T, &out[i]);
		if (r < 0)
			return r;
		parent = dp_ref(&out[i]);
	}
	return r;
}

/* ---- the way of a block --------------------------------------------------------------------- */

static void reserve_commit_find(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[4 * T];
	struct dp_block block[4];
	struct kvp_hit hit[4];
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 4);
	assert_int_equal(dp_space(b, "m", 4), space);
	make_tokens(tokens, 4 * T, 1);
	assert_int_equal(put_chain(a, space, tokens, 4, block), 0);
	assert_int_equal(dp_find(b, space, tokens, 4 * T, hit, 4), 4);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(hit[i].id, block[0].id + i); /* in order */
		assert_true(dp_payload_right(b, &hit[i], tokens + i * T, T));
	}
	/* somebody else's identical block is a duplicate and names the first */
	assert_int_equal(dp_put(b, space, dp_root(), tokens, T, &block[3]), 0);
	assert_int_equal(block[3].flags, KVP_CQE_DUPLICATE);
	assert_int_equal(block[3].id, block[0].id);
	assert_int_equal(dp_figure(&w, "blocks"), 4);
	dp_check(&w);
	dp_detach(a);
	assert_int_equal(dp_find(b, space, tokens, 4 * T, hit, 4), 4);
	dp_check(&w);
	dp_stop(&w);
}

/* Parents by the serial of their commit, all pushed before any is answered. */
static void parents_by_serial(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct dp_grant g[4];
	kvp_token tokens[4 * T];
	struct kvp_hit hit[4];
	struct kvp_cqe cqe;
	uint32_t space, serial = 0;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	make_tokens(tokens, 4 * T, 2);
	assert_int_equal(dp_reserve(c, space, 4, DP_WAIT_MS, g), 4);
	for (uint32_t i = 0; i < 4; i++) {
		struct kvp_sqe sqe = {
			.op = KVP_OP_COMMIT,
			.grant = g[i].index,
			.grant_generation = g[i].generation,
			.space = (uint16_t)space,
			.tokens = T,
			.parent_kind = i ? KVP_PARENT_SERIAL : KVP_PARENT_ROOT,
			.parent_id = serial,
		};

		memcpy(c->page->staging[g[i].index], tokens + i * T, T * sizeof(*tokens));
		serial = dp_push(c, &sqe);
	}
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
		assert_int_equal(cqe.status, 0);
	}
	assert_int_equal(dp_find(c, space, tokens, 4 * T, hit, 4), 4);
	/* the same grant twice; a serial that was refused; one that never was */
	assert_int_equal(
		dp_commit(c, space, &g[0], dp_root(), tokens, T, 0, &(struct dp_block){ 0 }),
		-EALREADY);
	for (uint32_t i = 0; i < 4; i++)
		dp_release(c, &g[i]);
	assert_int_equal(dp_reserve(c, space, 1, DP_WAIT_MS, g), 1);
	assert_int_equal(
		dp_commit(c, space, &g[0], (struct dp_ref){ KVP_PARENT_SERIAL, serial + 1, 0 },
			tokens, T, 0, &(struct dp_block){ 0 }),
		-ECANCELED);
	assert_int_equal(dp_commit(c, space, &g[0], (struct dp_ref){ KVP_PARENT_SERIAL, 12345, 0 },
				 tokens, T, 0, &(struct dp_block){ 0 }),
		-ECANCELED);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- limits --------------------------------------------------------------------------------- */

static void blocks_never_exceed_their_limit(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 8;
	limits.recipe_blocks = 4;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t i = 0; i < 100; i++) {
		make_tokens(tokens, T, 100 + i);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
		assert_true(kvp_load_relaxed(&c->view.cat->stats.blocks) <= 8);
		assert_true(kvp_load_relaxed(&c->view.cat->stats.recipes) <= 4);
	}
	assert_int_equal(dp_figure(&w, "blocks"), 8);
	assert_int_equal(dp_figure(&w, "recipes"), 4);
	assert_int_equal(dp_figure(&w, "evictions_total"), 92);
	assert_int_equal(dp_figure(&w, "forgotten_total"), 88);
	/* the newest are there, with their bytes */
	make_tokens(tokens, T, 199);
	assert_int_equal(dp_find(c, space, tokens, T, &hit, 1), 1);
	assert_true(dp_payload_right(c, &hit, tokens, T));
	make_tokens(tokens, T, 191);
	assert_int_equal(dp_find(c, space, tokens, T, &hit, 1), 0);
	/* it is a recipe, and its commit gives it its payload back */
	assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
	assert_int_equal(block.flags, 0);
	assert_int_equal(dp_find(c, space, tokens, T, &hit, 1), 1);
	assert_true(dp_payload_right(c, &hit, tokens, T));
	/* the block that went for it was one recipe too many */
	assert_int_equal(dp_figure(&w, "recipes"), 3);
	dp_check(&w);
	dp_stop(&w);
}

/* Whatever comes back is counted if it would have stayed in a cache of twice the size. */
static void what_comes_back_soon_is_counted(void **state)
{
	static const uint32_t again[] = { 120, 150, 191 };
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 8;
	limits.recipe_blocks = 128;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t i = 0; i < 100; i++) {
		make_tokens(tokens, T, 100 + i);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
	}
	assert_int_equal(dp_figure(&w, "evictions_total"), 92);
	assert_int_equal(dp_figure(&w, "reloads_total"), 0);
	for (uint32_t i = 0; i < 3; i++) {
		make_tokens(tokens, T, again[i]);
		assert_int_equal(dp_find(c, space, tokens, T, &hit, 1), 0);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
		assert_int_equal(block.flags, 0);
		/* 120 and 150 went long ago, 191 not */
		assert_int_equal(dp_figure(&w, "reloads_total"), again[i] == 191);
	}
	dp_check(&w);
	dp_stop(&w);
}

/* More bytes than the share: blocks move to the vault, then the oldest go. */
static void bytes_never_exceed_the_share(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token tokens[4 * T];
	struct dp_block block[4];
	struct kvp_hit hit[4];
	uint32_t space, found = 0;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 12 << 20;
	limits.arena = 2 << 20;
	limits.max_blocks = 4096;
	limits.recipe_tokens = 4096 * 16;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 64); /* 16 KiB a block */
	for (uint32_t i = 0; i < 400; i++) {
		make_tokens(tokens, 4 * T, 1000 + i);
		assert_int_equal(put_chain(c, space, tokens, 4, block), 0);
		if (i % 50 == 0) {
			assert_true(dp_figure(&w, "charged_bytes") <= limits.share);
			dp_check(&w);
		}
	}
	assert_true(dp_figure(&w, "moves_total") > 0);
	assert_true(dp_figure(&w, "evictions_total") > 0);
	assert_true(dp_figure(&w, "blocks") > 300);
	for (uint32_t i = 0; i < 400; i++) {
		make_tokens(tokens, 4 * T, 1000 + i);
		found += dp_read(c, space, tokens, 4 * T, KVP_TIERS_DRAM, hit, 4);
	}
	assert_int_equal(found, dp_figure(&w, "blocks"));
	dp_check(&w);
	dp_stop(&w);
}

/*
 * For each policy and several limits: the least share that is named is enough for what it has to
 * hold, a tenant can be made with it, and not with less. Here that is one slot and no more.
 */
static void the_smallest_share_works(void **state)
{
	static const struct kvpd_limits tried[] = {
		{ .max_blocks = 4, .recipe_tokens = 64, .max_sessions = 32, .tail_index = true },
		{ .max_blocks = 3000, .recipe_blocks = 1000, .max_sessions = 32 },
		{ .max_sessions = 32 },
	};
	const char *policy;

	(void)state;
	for (size_t i = 0; (policy = kvp_evict_names(i, NULL)); i++) {
		/* Each without an advisor, and with one. */
		for (size_t k = 0; k < 2 * sizeof(tried) / sizeof(tried[0]); k++) {
			const struct kvpd_config config = {
				.policy = (char *)(uintptr_t)policy,
				.advisor = { .on = k % 2, .period_ms = 50, .batch = 256 },
			};
			struct kvpd_limits limits = tried[k / 2];
			struct dp_world w;
			struct dp_client *c;
			kvp_token tokens[T];
			struct dp_block block;
			struct kvp_hit hit;
			uint32_t space, tenant;
			uint64_t least = 0;

			limits.share = 1 << 20;
			assert_int_equal(kvpd_limits_check(&config, &limits, &least), -ENOSPC);
			limits.share = least;
			assert_int_equal(kvpd_limits_check(&config, &limits, &least), 0);
			dp_defaults(&w, &limits);
			limits = tried[k / 2];
			limits.share = least;
			w.config.policy = config.policy;
			w.config.advisor = config.advisor;
			dp_start(&w, &limits);
			limits.share -= 1 << 16;
			assert_int_equal(
				kvpd_tenant_open(w.ledger, "two", &limits, &tenant), -ENOSPC);
			c = dp_attach(&w, w.tenant);
			space = dp_large_space(c, "m", 1 << 20);
			for (uint32_t n = 0; n < 4; n++) {
				make_tokens(tokens, T, n);
				assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
				assert_int_equal(
					dp_read(c, space, tokens, T, KVP_TIERS_DRAM, &hit, 1), 1);
				assert_true(dp_figure(&w, "charged_bytes") <= least);
			}
			assert_int_equal(dp_figure(&w, "blocks"), 1);
			dp_check(&w);
			dp_stop(&w);
		}
	}
}

/* ---- protection ----------------------------------------------------------------------------- */

static void leased_blocks_stay(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token chain[4 * T], tokens[T];
	struct dp_block block[4], other;
	struct kvp_hit hit[4];
	struct kvp_lease lease;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 6;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	make_tokens(chain, 4 * T, 1);
	assert_int_equal(put_chain(c, space, chain, 4, block), 0);
	assert_int_equal(dp_find(c, space, chain, 4 * T, hit, 4), 4);
	assert_int_equal(kvp_lease_take(c->page, 0, &c->view.blocks[hit[3].id], hit[3].id,
				 hit[3].word, &lease),
		0);
	for (uint32_t i = 0; i < 20; i++) {
		make_tokens(tokens, T, 50 + i);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &other), 0);
		assert_int_equal(kvp_revalidate(&c->view, hit, 4), 4);
	}
	kvp_lease_drop(&lease);
	for (uint32_t i = 0; i < 20; i++) {
		make_tokens(tokens, T, 80 + i);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &other), 0);
	}
	assert_int_equal(dp_find(c, space, chain, 4 * T, hit, 4), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* All blocks leased: a commit is refused with a hint, nothing is lost, and it works afterwards. */
static void full_of_leases(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token tokens[T];
	struct dp_block block;
	struct dp_grant g;
	struct kvp_hit hit[6];
	struct kvp_lease lease[6];
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 6;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	for (uint32_t i = 0; i < 6; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
		assert_int_equal(dp_find(c, space, tokens, T, &hit[i], 1), 1);
		assert_int_equal(kvp_lease_take(c->page, i, &c->view.blocks[hit[i].id], hit[i].id,
					 hit[i].word, &lease[i]),
			0);
	}
	make_tokens(tokens, T, 7);
	assert_int_equal(dp_reserve(c, space, 1, DP_WAIT_MS, &g), 1);
	assert_int_equal(dp_commit(c, space, &g, dp_root(), tokens, T, 0, &block), -ENOSPC);
	assert_int_equal(kvp_revalidate(&c->view, hit, 6), 6);
	kvp_lease_drop(&lease[3]);
	assert_int_equal(dp_commit(c, space, &g, dp_root(), tokens, T, 0, &block), 0);
	assert_int_equal(kvp_revalidate(&c->view, hit, 3), 3);
	assert_int_equal(kvp_revalidate(&c->view, hit + 3, 1), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* A leased block whose arena has to go is read at its old place until its lease ends. */
static void limbo_keeps_old_bytes(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token chain[3 * T], more[T];
	struct dp_block block[3], other;
	struct kvp_hit hit[3], now[3];
	struct kvp_lease lease;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	b->ack_retires = false;
	space = dp_space(a, "m", 64);
	assert_int_equal(dp_space(b, "m", 64), space);
	make_tokens(chain, 3 * T, 1);
	assert_int_equal(put_chain(a, space, chain, 3, block), 0);
	dp_pump(&w);
	assert_int_equal(dp_find(b, space, chain, 3 * T, hit, 3), 3);
	assert_int_equal(kvp_lease_take(b->page, 0, &b->view.blocks[hit[2].id], hit[2].id,
				 hit[2].word, &lease),
		0);
	dp_detach(a);
	for (int i = 0; i < 6000 && dp_figure(&w, "moves_total") < 3; i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "moves_total"), 3);
	dp_check(&w);
	/* b goes on reading where it was */
	for (uint32_t i = 0; i < 3; i++)
		assert_true(dp_payload_right(b, &hit[i], chain + i * T, T));
	assert_int_equal(kvp_revalidate(&b->view, hit, 3), 0);
	assert_int_equal(dp_find(b, space, chain, 3 * T, now, 3), 3);
	for (uint32_t i = 0; i < 3; i++) {
		assert_true(dp_payload_right(b, &now[i], chain + i * T, T));
		assert_int_not_equal(
			kvp_where_extent(now[i].where), kvp_where_extent(hit[i].where));
	}
	kvp_lease_drop(&lease);
	b->ack_retires = true;
	for (int i = 0; i < 6000 && dp_figure(&w, "arena_bytes"); i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "arena_bytes"), 0);
	make_tokens(more, T, 9);
	assert_int_equal(dp_put(b, space, dp_root(), more, T, &other), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- memory comes and goes ------------------------------------------------------------------ */

static void empty_extents_return_their_memory(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[T];
	struct dp_block block;
	uint32_t space;
	uint64_t meta;

	(void)state;
	dp_defaults(&w, &limits);
	limits.arena = 1 << 20;
	dp_start(&w, &limits);
	meta = dp_figure(&w, "metadata_bytes");
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 64);
	for (uint32_t i = 0; i < 500; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	}
	assert_true(dp_figure(&w, "charged_bytes") > meta + (7 << 20));
	dp_detach(a);
	for (int i = 0; i < 6000 && dp_figure(&w, "charged_bytes") > meta; i++) {
		/* again and again: what is just being moved is left alone */
		assert_int_equal(dp_admin(&w, "{\"verb\": \"drain\"}", NULL), 0);
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "charged_bytes"), meta);
	assert_int_equal(dp_figure(&w, "blocks"), 0);
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++)
		assert_null(b->extent[i].addr);
	dp_check(&w);
	dp_stop(&w);
}

static uint64_t tenant_figure(struct dp_world *w, const char *tenant, const char *name)
{
	char request[80];
	json_t *answer = NULL;
	uint64_t n;

	snprintf(request, sizeof(request), "{\"verb\": \"tenants\", \"tenant\": \"%s\"}", tenant);
	assert_int_equal(dp_admin(w, request, &answer), 0);
	n = (uint64_t)json_integer_value(
		json_object_get(json_array_get(json_object_get(answer, "tenants"), 0), name));
	json_decref(answer);
	return n;
}

/* What each of three tenants is charged, when nothing has changed for a while. */
static void settle(struct dp_world *w, const char *const names[3], uint64_t charged[3])
{
	for (uint32_t same = 0, round = 0; same < 100 && round < 4000; round++, same++) {
		dp_pump(w);
		for (uint32_t k = 0; k < 3; k++) {
			uint64_t now = tenant_figure(w, names[k], "charged_bytes");

			if (round && now == charged[k])
				continue;
			charged[k] = now;
			same = 0;
		}
		usleep(2000);
	}
}

static void settle_tenant_below(struct dp_world *w, const char *tenant, uint64_t charged)
{
	for (int i = 0; i < 12000 && tenant_figure(w, tenant, "charged_bytes") > charged; i++) {
		dp_pump(w);
		usleep(5000);
	}
}

static uint64_t settle_below(struct dp_world *w, uint64_t charged)
{
	settle_tenant_below(w, "one", charged);
	return dp_figure(w, "charged_bytes");
}

/*
 * Row E-049: the machine is short of memory. The cache gives back what is missing and no more, does
 * not grow, and goes on working.
 */
static void pressure_shrinks_the_cache(void **state)
{
	const uint64_t mib = 1 << 20;
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a;
	kvp_token tokens[T];
	struct dp_block block;
	uint32_t space;
	uint64_t coming, before, charged, kept;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.memory = limits.share; /* nothing is in stock, which would go first */
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 256);
	for (uint32_t i = 0; i < 1000; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	}
	before = dp_figure(&w, "blocks");
	charged = dp_figure(&w, "charged_bytes");
	assert_true(charged > 60 * mib);
	assert_int_equal(kvpd_relieve(w.ledger, 16 * mib, &coming), 0);
	assert_true(coming == 16 * mib);
	/* Asked again before it has come: nothing more is taken. */
	assert_int_equal(kvpd_relieve(w.ledger, 16 * mib, &coming), 0);
	assert_true(coming <= 16 * mib);
	assert_true(settle_below(&w, charged - 16 * mib) <= charged - 16 * mib);
	/*
	 * Not more than an extent beyond what was asked for. Of what the policy gave up meanwhile
	 * some lay in the client's arena, which stays: that room is for the next puts.
	 */
	assert_true(dp_figure(&w, "charged_bytes") >= charged - 17 * mib);
	assert_true(dp_figure(&w, "blocks") >= before / 2);
	/* Puts make room for themselves. */
	charged = dp_figure(&w, "charged_bytes");
	for (uint32_t i = 1000; i < 1500; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	}
	assert_true(dp_figure(&w, "charged_bytes") <= charged);
	/* However much is missing, a quarter of what its share holds is the tenant's. */
	kept = dp_figure(&w, "metadata_bytes");
	kept += (limits.share - kept) / 4;
	assert_int_equal(kvpd_relieve(w.ledger, UINT64_C(1) << 50, &coming), 0);
	assert_true(coming == charged - kept);
	assert_true(settle_below(&w, kept) <= kept);
	assert_true(dp_figure(&w, "charged_bytes") + mib > kept);
	assert_int_equal(kvpd_relieve(w.ledger, UINT64_C(1) << 50, &coming), 0);
	assert_true(coming == 0);
	for (uint32_t i = 1500; i < 1600; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	}
	assert_true(dp_figure(&w, "blocks") > 100);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * Tenants give in proportion to what they hold beyond what stays theirs: an idle one nothing. The
 * first two put more than fits, so that what they hold does not depend on how far the movers are.
 */
static void all_tenants_give_their_part(void **state)
{
	const uint64_t mib = 1 << 20;
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c[3];
	kvp_token tokens[T];
	struct dp_block block;
	uint32_t space, tenant[3];
	uint64_t coming, charged[3], gave[3], spare[3];
	static const uint32_t blocks[3] = { 1000, 500, 10 }, share[3] = { 64, 30, 64 };
	static const char *const names[3] = { "one", "two", "three" };

	(void)state;
	dp_defaults(&w, &limits);
	w.config.memory = (share[0] + share[1] + share[2]) *
			  mib; /* and nothing in stock, which would go first */
	dp_start(&w, &limits);
	tenant[0] = w.tenant;
	for (uint32_t k = 0; k < 3; k++) {
		limits.share = share[k] * mib;
		assert_int_equal(kvpd_tenant_open(w.ledger, names[k], &limits, &tenant[k]), 0);
		c[k] = dp_attach(&w, tenant[k]);
		space = dp_space(c[k], "m", 256);
		for (uint32_t i = 0; i < blocks[k]; i++) {
			make_tokens(tokens, T, i);
			assert_int_equal(dp_put(c[k], space, dp_root(), tokens, T, &block), 0);
		}
	}
	settle(&w, names, charged);
	for (uint32_t k = 0; k < 2; k++) {
		uint64_t meta = tenant_figure(&w, names[k], "metadata_bytes");

		spare[k] = charged[k] - meta - (share[k] * mib - meta) / 4;
	}
	assert_int_equal(kvpd_relieve(w.ledger, 15 * mib, &coming), 0);
	assert_true(coming <= 15 * mib && coming >= 14 * mib);
	for (uint32_t k = 0; k < 2; k++) {
		uint64_t due = 15 * mib * spare[k] / (spare[0] + spare[1]);

		/* Each by itself: one gives more than its part, by the rest of an extent. */
		settle_tenant_below(&w, names[k], charged[k] - due);
		gave[k] = charged[k] - tenant_figure(&w, names[k], "charged_bytes");
		assert_in_range(gave[k], due, due + mib);
	}
	/* What they can give is three quarters of 61 and of 27 MiB. */
	assert_in_range(gave[0], 9 * mib, 12 * mib);
	assert_in_range(gave[1], 3 * mib, 6 * mib);
	assert_int_equal(tenant_figure(&w, "three", "blocks"), 10);
	assert_int_equal(tenant_figure(&w, "three", "evictions_total"), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* As long as one client has it mapped its bytes stay charged. */
static void unacknowledged_memory_stays_charged(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[T];
	struct dp_block block;
	uint32_t space;
	uint64_t held;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	b->ack_retires = false;
	space = dp_space(a, "m", 64);
	make_tokens(tokens, T, 1);
	assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	dp_detach(a);
	assert_int_equal(dp_admin(&w, "{\"verb\": \"drain\"}", NULL), 0);
	usleep(1500000);
	dp_pump(&w);
	held = dp_figure(&w, "arena_bytes");
	assert_true(held > 0);
	dp_check(&w);
	dp_detach(b);
	for (int i = 0; i < 6000 && dp_figure(&w, "arena_bytes"); i++)
		usleep(10000);
	assert_int_equal(dp_figure(&w, "arena_bytes"), 0);
	dp_stop(&w);
}

/* The daemon is stopped while a session has not let go of an extent that retires. */
static void a_stop_while_an_extent_retires(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[T];
	struct dp_block block;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	b->ack_retires = false;
	space = dp_space(a, "m", 64);
	make_tokens(tokens, T, 1);
	assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	dp_pump(&w);
	assert_non_null(b->extent[0].addr);
	dp_detach(a);
	assert_int_equal(dp_admin(&w, "{\"verb\": \"drain\"}", NULL), 0);
	for (int i = 0; i < 6000 && b->extent[0].addr; i++) {
		dp_pump(&w); /* until it is told that the extent retires */
		usleep(10000);
	}
	assert_null(b->extent[0].addr);
	w.ledger = kvpd_ledger_free(w.ledger);
	dp_stop(&w);
}

/* One session has filled the share; a second one still gets its part. */
static void arenas_are_shared_out(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c[6];
	kvp_token tokens[T];
	struct dp_block block;
	uint32_t space = 0;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 16 << 20;
	dp_start(&w, &limits);
	for (uint32_t k = 0; k < 6; k++) {
		c[k] = dp_attach(&w, w.tenant);
		space = dp_space(c[k], "m", 64);
		for (uint32_t i = 0; i < 300; i++) {
			make_tokens(tokens, T, 1000 * k + i);
			assert_int_equal(dp_put(c[k], space, dp_root(), tokens, T, &block), 0);
		}
		assert_true(dp_figure(&w, "charged_bytes") <= limits.share);
		dp_check(&w);
	}
	for (uint32_t i = 0; i < 600; i++) {
		make_tokens(tokens, T, 20000 + i);
		assert_int_equal(dp_put(c[i % 6], space, dp_root(), tokens, T, &block), 0);
	}
	dp_check(&w);
	dp_stop(&w);
}

/* Blocks of one size fill the share; blocks of another size take it over. */
static void size_classes_trade_room(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	uint32_t small, large;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 16 << 20;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	small = dp_space(c, "small", 32);
	large = dp_space(c, "large", 100); /* not a power of two */
	for (uint32_t i = 0; i < 1500; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(c, small, dp_root(), tokens, T, &block), 0);
	}
	for (uint32_t i = 0; i < 300; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(c, large, dp_root(), tokens, T, &block), 0);
		assert_int_equal(dp_read(c, large, tokens, T, KVP_TIERS_DRAM, &hit, 1), 1);
	}
	assert_true(dp_figure(&w, "charged_bytes") <= limits.share);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- death ---------------------------------------------------------------------------------- */

static void a_dead_client_leaves_nothing_but_blocks(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[T];
	struct dp_block block;
	struct dp_grant g[20];
	struct kvp_hit hit;
	struct kvp_lease lease;
	struct kvp_sqe claim = { .op = KVP_OP_CLAIM, .next_lo = 5, .next_hi = 6 };
	struct kvp_cqe cqe;
	uint32_t space, word;
	int n;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 64);
	assert_int_equal(dp_space(b, "m", 64), space);
	n = dp_reserve(a, space, 20, DP_WAIT_MS, g);
	assert_true(n > 3);
	make_tokens(tokens, T, 3);
	memset(g[0].addr, 0, g[0].bytes);
	assert_int_equal(dp_commit(a, space, &g[0], dp_root(), tokens, T, 0, &block), 0);
	assert_int_equal(dp_find(a, space, tokens, T, &hit, 1), 1);
	assert_int_equal(
		kvp_lease_take(a->page, 3, &a->view.blocks[hit.id], hit.id, hit.word, &lease), 0);
	dp_push(a, &claim);
	assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.flags, 0);
	dp_push(b, &claim);
	assert_int_equal(dp_next(b, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, KVP_CQE_PENDING);
	word = kvp_load_acquire(&b->view.cat->futex[5].word);
	dp_check(&w);
	dp_detach(a);
	/* whoever waits is woken, and may compute it itself */
	assert_int_not_equal(kvp_load_acquire(&b->view.cat->futex[5].word), word);
	dp_push(b, &claim);
	assert_int_equal(dp_next(b, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, 0);
	/* it moves to the vault now */
	assert_int_equal(dp_find(b, space, tokens, T, &hit, 1), 1);
	for (int i = 0; i < 6000 && dp_figure(&w, "arena_bytes"); i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "arena_bytes"), 0);
	assert_int_equal(dp_find(b, space, tokens, T, &hit, 1), 1);
	dp_check(&w);
	dp_stop(&w);
}

/* Contents are verified in slices; all slices together see every payload once. */
static void a_damaged_payload_is_found(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	struct kvpd_extent *x;
	json_t *answer;
	char request[64];
	uint64_t from = 0, bytes = 0, slices = 0, problems = 0;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 160 << 20;
	limits.max_blocks = 2000;
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 250);
	assert_int_equal(dp_space(b, "m", 250), space);
	for (uint32_t i = 0; i < 1200; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	}
	dp_detach(a); /* its blocks move, and get a checksum as they do */
	for (int i = 0; i < 6000 && dp_figure(&w, "arena_bytes"); i++) {
		dp_pump(&w);
		usleep(10000);
	}
	assert_int_equal(dp_figure(&w, "arena_bytes"), 0);
	dp_check(&w);
	assert_int_equal(dp_find(b, space, tokens, T, &hit, 1), 1);
	x = w.ledger->tenant[w.tenant]->extent[kvp_where_extent(hit.where)];
	((uint8_t *)x->addr)[hit.offset + 77] ^= 4;
	assert_int_equal(dp_admin(&w, "{\"verb\": \"check\"}", NULL), 0);
	for (bool more = true; more; slices++) {
		snprintf(request, sizeof(request), "{\"verb\": \"check\", \"from\": %llu}",
			(unsigned long long)from);
		int r = dp_admin(&w, request, &answer);
		json_t *next = json_object_get(answer, "next");

		more = next != NULL;
		from = (uint64_t)json_integer_value(next);
		assert_int_equal(r, json_is_true(json_object_get(answer, "clean")) ? 0 : -EBADMSG);
		problems += (uint64_t)json_integer_value(json_object_get(answer, "problems_found"));
		bytes += (uint64_t)json_integer_value(json_object_get(answer, "bytes"));
		json_decref(answer);
	}
	assert_true(slices > 2);
	assert_int_equal(problems, 1);
	assert_int_equal(bytes, 1200 * 64000);
	((uint8_t *)x->addr)[hit.offset + 77] ^= 4;
	dp_check(&w);
	/* from beyond the last tenant there is nothing left */
	assert_int_equal(
		dp_admin(&w, "{\"verb\": \"check\", \"from\": 9000000000000000000}", NULL), 0);
	dp_stop(&w);
}

/* A forked child that outlives the client could still write: its arena's bytes stay charged. */
static void a_writer_left_over_keeps_memory_charged(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a;
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	uint32_t space, x;
	struct dp_mapped kept;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 64);
	make_tokens(tokens, T, 3);
	assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	assert_int_equal(dp_find(a, space, tokens, T, &hit, 1), 1);
	x = kvp_where_extent(hit.where);
	kept = a->extent[x];
	a->extent[x].addr = NULL; /* the mapping outlives the session */
	dp_detach(a);
	assert_int_equal(dp_admin(&w, "{\"verb\": \"drain\"}", NULL), 0);
	usleep(1500000);
	assert_int_equal(dp_figure(&w, "arena_bytes"), kept.bytes);
	kvp_seg_unmap(kept.addr, kept.bytes);
	for (int i = 0; i < 6000 && dp_figure(&w, "arena_bytes"); i++)
		usleep(10000);
	assert_int_equal(dp_figure(&w, "arena_bytes"), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- single flight, deletion ---------------------------------------------------------------- */

/* Keys are random: where a whole client's claims crowd out neither of these two. */
static uint64_t claims_apart_from(struct kvp_key a, struct kvp_key b)
{
	uint64_t room = 2 * KVPD_SESSION_CLAIMS, at = 0;

	while (at / room == a.lo % KVP_MAX_CLAIMS / room ||
		at / room == b.lo % KVP_MAX_CLAIMS / room)
		at += room;
	return at;
}

static void claims_move_with_commits_and_expire(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[2 * T];
	struct kvp_key root, k0, k1;
	struct kvp_sqe claim = { .op = KVP_OP_CLAIM, .count = 60000 }, commit;
	struct kvp_cqe cqe;
	struct dp_grant g;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 4);
	assert_int_equal(dp_space(b, "m", 4), space);
	make_tokens(tokens, 2 * T, 4);
	root = (struct kvp_key){ a->view.spaces[space].root_lo, a->view.spaces[space].root_hi };
	k0 = kvp_chain_key(root, tokens, T);
	k1 = kvp_chain_key(k0, tokens + T, T);
	/* with as many others as a client may have: it moves all the same */
	for (uint32_t i = 1; i < KVPD_SESSION_CLAIMS; i++) {
		claim.next_lo = claims_apart_from(k0, k1) + i;
		dp_push(a, &claim);
		assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
		assert_int_equal(cqe.status, 0);
	}
	claim.next_lo = k0.lo;
	claim.next_hi = k0.hi;
	dp_push(a, &claim);
	assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, 0);
	assert_int_equal(kvp_claim_find(&b->view, k0, 0), a->at.session);
	assert_int_equal(dp_reserve(a, space, 1, DP_WAIT_MS, &g), 1);
	memcpy(a->page->staging[g.index], tokens, T * sizeof(*tokens));
	commit = (struct kvp_sqe){
		.op = KVP_OP_COMMIT,
		.grant = g.index,
		.grant_generation = g.generation,
		.space = (uint16_t)space,
		.tokens = T,
		.next_lo = k1.lo,
		.next_hi = k1.hi,
	};
	dp_push(a, &commit);
	assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(kvp_claim_find(&b->view, k0, 0), 0);
	assert_int_equal(kvp_claim_find(&b->view, k1, 0), a->at.session);
	dp_push(b, &claim);
	assert_int_equal(dp_next(b, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, KVP_CQE_PRESENT);
	/* at most ten times the configured minute, and the time a client names if that is less */
	claim.next_lo = 1001;
	claim.next_hi = 0;
	claim.count = 20;
	dp_push(a, &claim);
	assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
	usleep(50000);
	dp_push(b, &claim);
	assert_int_equal(dp_next(b, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, 0);
	dp_check(&w);
	dp_stop(&w);
}

static int delete_block(struct dp_client *c, const struct dp_block *b)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_DELETE,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = b->id,
		.parent_birth = b->birth,
	};
	struct kvp_cqe cqe;

	dp_push(c, &sqe);
	assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
	return cqe.status;
}

static void deletion_waits_for_leases(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	kvp_token tokens[3 * T];
	struct dp_block block[3];
	struct kvp_hit hit[3];
	struct kvp_lease lease;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.recipe_blocks = 100;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	make_tokens(tokens, 3 * T, 4);
	assert_int_equal(put_chain(c, space, tokens, 3, block), 0);
	assert_int_equal(dp_find(c, space, tokens, 3 * T, hit, 3), 3);
	assert_int_equal(kvp_lease_take(c->page, 0, &c->view.blocks[hit[2].id], hit[2].id,
				 hit[2].word, &lease),
		0);
	assert_int_equal(delete_block(c, &block[1]), -ENOTEMPTY);
	assert_int_equal(delete_block(c, &block[2]), 0);
	assert_int_equal(delete_block(c, &block[1]), 0);
	assert_int_equal(kvp_revalidate(&c->view, hit, 3), 3);
	kvp_lease_drop(&lease);
	for (int i = 0; i < 6000 && dp_figure(&w, "deleted_total") < 2; i++)
		usleep(10000);
	assert_int_equal(dp_figure(&w, "deleted_total"), 2);
	assert_int_equal(dp_figure(&w, "blocks"), 1);
	assert_int_equal(dp_figure(&w, "recipes"), 0);
	assert_int_equal(delete_block(c, &block[2]), -ENOENT);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- tenants -------------------------------------------------------------------------------- */

static void tenants_share_nothing(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	uint32_t space, other, third;
	struct kvp_msg_extent msg;
	struct dp_grant none;
	int fd;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	assert_int_equal(kvpd_tenant_open(w.ledger, "two", &limits, &other), 0);
	assert_int_not_equal(other, w.tenant);
	limits.share = 200 << 20;
	assert_int_equal(kvpd_tenant_open(w.ledger, "three", &limits, &third), -ENOSPC);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, other);
	space = dp_space(a, "m", 4);
	assert_int_equal(dp_space(b, "m", 4), space);
	assert_int_not_equal(a->view.spaces[space].root_lo, b->view.spaces[space].root_lo);
	make_tokens(tokens, T, 4);
	assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	assert_int_equal(dp_find(a, space, tokens, T, &hit, 1), 1);
	assert_int_equal(dp_find(b, space, tokens, T, &hit, 1), 0);
	assert_int_equal(kvpd_extent_get(w.ledger, b->at.session, 0, &msg, &fd), -ENOENT);
	assert_int_equal(kvpd_tenant_abandon(w.ledger, other), 0);
	assert_int_equal(dp_reserve(b, space, 1, 500, &none), -EAGAIN);
	dp_detach(b);
	/* its memory is free for others now */
	limits.share = 192 << 20;
	assert_int_equal(kvpd_tenant_open(w.ledger, "three", &limits, &third), 0);
	limits.share = 0;
	assert_int_equal(kvpd_tenant_open(w.ledger, "four", &limits, &third), -ENOSPC);
	dp_check(&w);
	dp_stop(&w);
}

/* Another tenant of this name, in the place of one that has been abandoned. */
static void replace_tenant(
	struct dp_world *w, const char *name, const struct kvpd_limits *limits, uint32_t id)
{
	uint32_t got;

	assert_int_equal(kvpd_tenant_open(w->ledger, name, limits, &got), 0);
	for (uint32_t i = 0; got != id; i++) {
		/* It has not ended yet. */
		assert_in_range(i, 0, 60000);
		assert_int_equal(kvpd_tenant_abandon(w->ledger, got), 0);
		usleep(1000);
		assert_int_equal(kvpd_tenant_open(w->ledger, name, limits, &got), 0);
	}
}

/* The tenant that a request is at ends between two steps, and a larger one gets its place and name. */
static int outlive(const char *verb, json_t **ret_answer)
{
	struct kvpd_limits limits;
	struct kvpd_request *q;
	struct dp_block block;
	struct dp_client *b;
	struct dp_world w;
	json_t *json, *answer;
	kvp_token tokens[T];
	uint32_t other;
	int r;

	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	assert_int_equal(kvpd_tenant_open(w.ledger, "two", &limits, &other), 0);
	b = dp_attach(&w, other);
	make_tokens(tokens, T, 4);
	assert_int_equal(dp_put(b, dp_space(b, "m", 4), dp_root(), tokens, T, &block), 0);
	assert_int_equal(dp_admin(&w, "{\"verb\": \"blocks\", \"tenant\": \"two\"}", &answer), 0);
	json = json_pack("{s:s, s:s, s:O}", "verb", verb, "tenant", "two", "key",
		json_object_get(json_array_get(json_object_get(answer, "blocks"), 0), "key"));
	json_decref(answer);
	assert_int_equal(kvpd_admin_begin(json, &q), 0);
	assert_int_equal(kvpd_admin_step(w.ledger, q), -EINPROGRESS);
	dp_detach(b);
	assert_int_equal(kvpd_tenant_abandon(w.ledger, other), 0);
	limits.max_blocks *= 8;
	replace_tenant(&w, "two", &limits, other);
	b = dp_attach(&w, other);
	assert_int_equal(dp_put(b, dp_space(b, "m", 4), dp_root(), tokens, T, &block), 0);
	while ((r = kvpd_admin_step(w.ledger, q)) == -EINPROGRESS)
		;
	*ret_answer = kvpd_admin_end(q);
	/* One that nobody wants any more. */
	assert_int_equal(kvpd_admin_begin(json, &q), 0);
	(void)kvpd_admin_step(w.ledger, q);
	json_decref(kvpd_admin_end(q));
	json_decref(json);
	dp_detach(b);
	dp_stop(&w);
	return r;
}

static void a_request_outlives_its_tenant(void **state)
{
	json_t *answer;

	(void)state;
	assert_int_equal(outlive("check", &answer), 0);
	assert_int_equal(json_integer_value(json_object_get(answer, "blocks")), 0);
	json_decref(answer);
	assert_int_equal(outlive("inspect", &answer), -ENOENT);
	assert_non_null(json_object_get(answer, "error"));
	json_decref(answer);
}

/* ---- configuration -------------------------------------------------------------------------- */

static int try_start(const struct kvpd_config *config)
{
	struct kvpd_ledger_params p = { .config = config, .epoch = 1, .owner = geteuid() };
	struct kvpd_ledger *ledger = NULL;
	int r = kvpd_ledger_new(&p, &ledger);

	assert_true((r == 0) == (ledger != NULL));
	kvpd_ledger_free(ledger);
	return r;
}

static void what_cannot_be_is_refused_at_the_start(void **state)
{
	struct kvpd_limits limits;
	struct kvp_seg_hugeinfo huge;
	struct dp_world w;

	(void)state;
	dp_defaults(&w, &limits);
	assert_int_equal(try_start(&w.config), 0);
	w.config.memory = UINT64_C(1) << 50;
	assert_int_equal(try_start(&w.config), -ENOMEM);
	dp_defaults(&w, &limits);
	assert_int_equal(kvp_seg_hugeinfo(&huge), 0);
	w.config.hugepages = KVPD_REQUIRE;
	assert_int_equal(try_start(&w.config), huge.hugetlb_free >= 128 ? 0 : -ENOMEM);
}

static void limits_change_while_running(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct kvpd_tenant_config tenant = { .name = (char *)(uintptr_t) "one" };
	struct kvp_hit hit[10];
	struct kvp_lease lease[10];
	struct dp_block block;
	kvp_token tokens[T];
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 500;
	limits.recipe_blocks = 100;
	dp_start(&w, &limits);
	w.config.tenants = &tenant;
	w.config.n_tenants = 1;
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 64);
	for (uint32_t i = 0; i < 600; i++) {
		make_tokens(tokens, T, i);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
	}
	for (uint32_t i = 0; i < 10; i++) {
		make_tokens(tokens, T, 590 + i);
		assert_int_equal(dp_find(c, space, tokens, T, &hit[i], 1), 1);
		assert_int_equal(kvp_lease_take(c->page, i, &c->view.blocks[hit[i].id], hit[i].id,
					 hit[i].word, &lease[i]),
			0);
	}
	tenant.limits = limits;
	tenant.limits.max_blocks = 5;
	tenant.limits.recipe_blocks = 7;
	tenant.limits.share = 8 << 20;
	assert_int_equal(kvpd_reconfigure(w.ledger, &w.config), 0);
	dp_await_most(&w, "blocks", 10);
	dp_await_most(&w, "recipes", 7);
	assert_int_equal(dp_figure(&w, "blocks"), 10); /* leased */
	assert_int_equal(dp_figure(&w, "recipes"), 7);
	assert_int_equal(kvp_revalidate(&c->view, hit, 10), 10);
	dp_check(&w);
	for (uint32_t i = 0; i < 10; i++)
		kvp_lease_drop(&lease[i]);
	for (int i = 0; i < 6000; i++) {
		dp_pump(&w);
		if (dp_figure(&w, "blocks") <= 5 && dp_figure(&w, "charged_bytes") <= 8 << 20)
			break;
		usleep(10000);
	}
	assert_true(dp_figure(&w, "blocks") <= 5);
	assert_true(dp_figure(&w, "charged_bytes") <= 8 << 20);
	/* never less than the catalog takes, never more descriptors than it has */
	tenant.limits.share = 4096;
	tenant.limits.max_blocks = 5000;
	assert_int_equal(kvpd_reconfigure(w.ledger, &w.config), 0);
	assert_int_equal(dp_figure(&w, "share_bytes"), 8 << 20);
	assert_int_equal(dp_figure(&w, "max_blocks"), 600);
	make_tokens(tokens, T, 5000);
	assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * Figures of more tenants, clients and spaces than one portion or the first arrays hold: each is
 * told once, under its own tenant, and sums are those of the clients.
 */
static void figures_of_many(void **state)
{
	enum { TENANTS = 20, CLIENTS = 6, SPACES = 5 };
	uint32_t tenant[TENANTS], n_clients = 0, n_spaces = 0;
	struct dp_client *c[TENANTS * CLIENTS];
	struct kvpd_figures_walk *walk;
	struct kvpd_limits limits;
	struct kvpd_figures f;
	struct dp_world w;
	char name[16];

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 10 << 20;
	w.config.max_sessions = TENANTS * CLIENTS;
	dp_start(&w, &limits);
	for (uint32_t i = 0; i < TENANTS; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		tenant[i] = w.tenant;
		if (i)
			assert_int_equal(kvpd_tenant_open(w.ledger, name, &limits, &tenant[i]), 0);
		for (uint32_t k = 0; k < CLIENTS; k++) {
			struct dp_client *a = c[i * CLIENTS + k] = dp_attach(&w, tenant[i]);

			kvp_store_relaxed(&a->page->shard[k].hits, i + 1);
			snprintf(name, sizeof(name), "m%u", k);
			if (k < SPACES)
				dp_space(a, name, 4);
		}
	}
	assert_int_equal(dp_figures(&w, NULL, KVPD_FIGURES_SPACES | KVPD_FIGURES_CLIENTS, &f), 0);
	assert_int_equal(f.n_tenants, TENANTS);
	assert_int_equal(f.n_clients, TENANTS * CLIENTS);
	assert_int_equal(f.n_spaces, TENANTS * SPACES);
	assert_int_equal(f.sessions, TENANTS * CLIENTS);
	for (uint32_t i = 0; i < TENANTS; i++) {
		assert_int_equal(f.tenant[i].id, tenant[i]);
		assert_int_equal(f.tenant[i].sessions, CLIENTS);
		assert_int_equal(f.tenant[i].lookups.hits, CLIENTS * (i + 1));
		for (uint32_t k = 0; k < CLIENTS; k++, n_clients++) {
			assert_int_equal(f.client[n_clients].tenant, i);
			assert_int_equal(f.client[n_clients].lookups.hits, i + 1);
		}
		for (uint32_t k = 0; k < SPACES; k++, n_spaces++) {
			assert_int_equal(f.space[n_spaces].tenant, i);
			assert_int_equal(f.space[n_spaces].space, k);
			assert_int_equal(f.space[n_spaces].opens, 1);
		}
	}
	kvpd_figures_fini(&f);
	assert_int_equal(dp_figures(&w, "t7", 0, &f), 0);
	assert_int_equal(f.n_tenants, 1);
	assert_string_equal(f.tenant[0].name, "t7");
	assert_int_equal(f.tenant[0].lookups.hits, CLIENTS * 8);
	assert_int_equal(f.n_clients + f.n_spaces, 0);
	kvpd_figures_fini(&f);
	assert_int_equal(dp_figures(&w, "nobody", 0, &f), -ENOENT);
	/* What those counted that end meanwhile is not lost, and none of it is counted twice. */
	assert_int_equal(kvpd_figures_begin(NULL, KVPD_FIGURES_CLIENTS, &walk), 0);
	while (kvpd_figures_step(w.ledger, walk) == -EINPROGRESS)
		for (uint32_t k = 0; k < 4 && n_clients; k++)
			dp_detach(c[--n_clients]);
	kvpd_figures_end(walk, &f);
	assert_int_equal(f.n_tenants, TENANTS);
	for (uint32_t i = 0; i < TENANTS; i++)
		assert_int_equal(f.tenant[i].lookups.hits, CLIENTS * (i + 1));
	kvpd_figures_fini(&f);
	while (n_clients)
		dp_detach(c[--n_clients]);
	dp_stop(&w);
}

/* ---- the thread ----------------------------------------------------------------------------- */

/*
 * What the ledger is told leaves nothing behind that keeps it awake, and neither does a session
 * that waits for room which nobody makes: rounds of its loop are counted. (Awake it made 140,000 in
 * that time for the one, 6,000 for the other.)
 */
static void a_ledger_with_nothing_to_do_sleeps(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a;
	kvp_token tokens[T] = { 1 };
	struct dp_block block;
	struct dp_grant g[64];
	uint32_t space;
	uint64_t before;
	int r;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 8 << 20;
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	space = dp_large_space(a, "m", 64 << 10);
	assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	before = kvp_load_relaxed(&w.ledger->rounds);
	usleep(300000);
	assert_true(kvp_load_relaxed(&w.ledger->rounds) - before < 1000);

	do /* with time, since beside load an arena may come after who asked for it */
		r = dp_reserve(a, space, 64, 300, g);
	while (r > 0);
	assert_int_equal(r, -EAGAIN);
	before = kvp_load_relaxed(&w.ledger->rounds);
	assert_int_equal(dp_reserve(a, space, 64, 300, g), -EAGAIN);
	assert_true(kvp_load_relaxed(&w.ledger->rounds) - before < 3000);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(reserve_commit_find),
		cmocka_unit_test(parents_by_serial),
		cmocka_unit_test(blocks_never_exceed_their_limit),
		cmocka_unit_test(what_comes_back_soon_is_counted),
		cmocka_unit_test(bytes_never_exceed_the_share),
		cmocka_unit_test(the_smallest_share_works),
		cmocka_unit_test(leased_blocks_stay),
		cmocka_unit_test(full_of_leases),
		cmocka_unit_test(limbo_keeps_old_bytes),
		cmocka_unit_test(empty_extents_return_their_memory),
		cmocka_unit_test(pressure_shrinks_the_cache),
		cmocka_unit_test(all_tenants_give_their_part),
		cmocka_unit_test(unacknowledged_memory_stays_charged),
		cmocka_unit_test(a_stop_while_an_extent_retires),
		cmocka_unit_test(arenas_are_shared_out),
		cmocka_unit_test(size_classes_trade_room),
		cmocka_unit_test(a_dead_client_leaves_nothing_but_blocks),
		cmocka_unit_test(a_damaged_payload_is_found),
		cmocka_unit_test(a_writer_left_over_keeps_memory_charged),
		cmocka_unit_test(claims_move_with_commits_and_expire),
		cmocka_unit_test(deletion_waits_for_leases),
		cmocka_unit_test(tenants_share_nothing),
		cmocka_unit_test(figures_of_many),
		cmocka_unit_test(a_request_outlives_its_tenant),
		cmocka_unit_test(what_cannot_be_is_refused_at_the_start),
		cmocka_unit_test(limits_change_while_running),
		cmocka_unit_test(a_ledger_with_nothing_to_do_sleeps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
