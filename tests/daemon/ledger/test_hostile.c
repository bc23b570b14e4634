/* SPDX-License-Identifier: Apache-2.0 */
/* Clients that write nonsense into their pages, and keys that collide. */
#include "tests/daemon/ledger/dp_world.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/ledger/claim.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/touch.h"

#define T 16u

static uint64_t seed;

static uint64_t rnd(void)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return seed >> 31;
}

static void read_seed(void)
{
	const char *text = getenv("KVP_TEST_SEED");

	seed = text ? strtoull(text, NULL, 0) : (uint64_t)time(NULL);
	print_message("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
}

static uint32_t small_or_wild(uint32_t bound)
{
	switch (rnd() % 8) {
	case 0:
		return (uint32_t)rnd();
	case 1:
		return UINT32_MAX;
	default:
		return (uint32_t)(rnd() % bound);
	}
}

static void random_entry(struct kvp_sqe *e)
{
	memset(e, 0, sizeof(*e));
	e->op = rnd() % 50 ? (uint32_t)(rnd() % KVP_OP_MAX_) : (uint32_t)rnd();
	e->serial = small_or_wild(1000);
	e->grant = small_or_wild(KVP_MAX_GRANTS);
	e->grant_generation = small_or_wild(6);
	e->space = (uint16_t)small_or_wild(3);
	e->tokens = (uint16_t)small_or_wild(T + 2);
	e->count = small_or_wild(8);
	e->flags = (uint32_t)(rnd() & 1);
	e->parent_kind = small_or_wild(3);
	e->parent_id = small_or_wild(200);
	e->parent_birth = small_or_wild(4);
	e->next_lo = rnd() % 100;
	e->next_hi = rnd() % 2;
	e->until = rnd() % 2 ? 0 : kvp_until(small_or_wild(KVP_TIMELINES), rnd() % 8);
}

static void scribble(struct dp_client *c)
{
	struct kvp_shard *sh = &c->page->shard[rnd() % KVP_SHARDS];
	KVP_ATOMIC(uint64_t) *lease = c->page->lease[rnd() % KVP_SHARDS];

	if (rnd() % 4)
		kvp_store_relaxed(&c->page->lease_lines[rnd() % 2], rnd());
	if (rnd() % 4) {
		kvp_store_relaxed(&c->page->until_lines[rnd() % 2], rnd());
		kvp_store_relaxed(&c->page->until[rnd() % KVP_SHARDS][rnd() % KVP_SHARD_LEASES],
			rnd() % 2 ? rnd() : kvp_until((uint32_t)rnd() % KVP_TIMELINES, rnd() % 4));
		kvp_store_relaxed(&c->page->done[rnd() % KVP_TIMELINES].value, rnd() % 8);
	}

	switch (rnd() % 4) {
	case 0:
		kvp_store_relaxed(&lease[rnd() % KVP_SHARD_LEASES], rnd() % 2 ? rnd() : 0);
		break;
	case 1:
		kvp_store_relaxed(&lease[rnd() % KVP_SHARD_LEASES], rnd() % 200);
		break;
	case 2:
		kvp_store_relaxed(&c->page->touched, (uint32_t)rnd());
		kvp_store_relaxed(&sh->touch[rnd() % KVP_TOUCHES], rnd() % 300);
		kvp_store_relaxed(&sh->touch_tail, (uint32_t)rnd() % 1000);
		break;
	default:
		c->page->staging[rnd() % KVP_MAX_GRANTS][rnd() % T] = (kvp_token)(rnd() % 5);
		break;
	}
}

/* 100,000 random entries of two clients, with pages scribbled on; nothing breaks. */
static void random_entries(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c[2], *honest;
	uint32_t space[2];
	kvp_token tokens[T];
	struct dp_block block;
	struct kvp_hit hit;
	struct kvp_cqe cqe;

	(void)state;
	read_seed();
	dp_defaults(&w, &limits);
	limits.max_blocks = 100;
	limits.recipe_blocks = 50;
	limits.share = 8 << 20;
	w.config.claim_ttl_ms = 1;
	dp_start(&w, &limits);
	honest = dp_attach(&w, w.tenant);
	for (int i = 0; i < 2; i++) {
		c[i] = dp_attach(&w, w.tenant);
		space[0] = dp_space(c[i], "m", 8);
		space[1] = dp_space(c[i], "n", 64);
	}
	dp_space(honest, "m", 8);
	for (uint32_t n = 0; n < 100000; n++) {
		struct dp_client *x = c[rnd() & 1];
		struct kvp_sqe e;

		random_entry(&e);
		if (e.op == KVP_OP_RESERVE && e.space < 2)
			e.space = (uint16_t)space[e.space];
		dp_push(x, &e);
		if (n % 3 == 0)
			scribble(x);
		while (dp_next(x, 0, &cqe) == 0)
			;
		if (n % 20000 == 0)
			dp_check(&w);
	}
	for (int i = 0; i < 2; i++) {
		assert_int_equal(c[i]->expelled, 0);
		dp_detach(c[i]);
	}
	for (uint32_t i = 0; i < 50; i++) {
		for (uint32_t k = 0; k < T; k++)
			tokens[k] = 7000 + i + k;
		assert_int_equal(dp_put(honest, space[0], dp_root(), tokens, T, &block), 0);
		assert_int_equal(dp_read(honest, space[0], tokens, T, KVP_TIERS_DRAM, &hit, 1), 1);
	}
	dp_check(&w);
	dp_stop(&w);
}

static void wake(struct dp_client *c)
{
	uint64_t one = 1;

	assert_int_equal(write(c->at.wake_fd, &one, sizeof(one)), sizeof(one));
}

static void a_ring_that_lies_ends_the_session(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	kvp_store_seq(&a->page->sq_tail, KVP_SQ_ENTRIES + 1);
	wake(a);
	for (int i = 0; i < 60000 && !a->expelled; i++) {
		dp_pump(&w);
		usleep(1000);
	}
	assert_int_equal(a->expelled, 1);
	/* once, and whatever it does from now on */
	wake(a);
	dp_flush(b);
	dp_pump(&w);
	assert_int_equal(a->expelled, 1);
	dp_check(&w);
	dp_stop(&w);
}

/* The eventfd is one open file for both sides: a client may read it, and make reads of it block. */
static void a_wake_up_taken_back_blocks_nobody(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	uint64_t n;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	assert_int_equal(fcntl(a->at.wake_fd, F_SETFL, 0), 0);
	for (int i = 0; i < 2000; i++) {
		wake(a);
		assert_int_equal(read(a->at.wake_fd, &n, sizeof(n)), sizeof(n));
		if (i % 10 == 0)
			dp_flush(b);
	}
	n = UINT64_MAX - 1;
	assert_int_equal(write(a->at.wake_fd, &n, sizeof(n)), sizeof(n));
	dp_flush(b);
	dp_stop(&w);
}

static void who_never_reads_stops_only_itself(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	struct kvp_sqe e = { .op = KVP_OP_NOP };
	struct kvp_cqe cqe;
	uint32_t n = 0;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	for (int i = 0; i < 200000 && n < KVP_CQ_ENTRIES + KVP_SQ_ENTRIES - 1; i++) {
		if (kvp_sq_push(a->page, &a->sq_tail, &e) == 0)
			n++;
		else
			usleep(10);
		if (kvp_sq_must_wake(a->page))
			wake(a);
	}
	assert_int_equal(n, KVP_CQ_ENTRIES + KVP_SQ_ENTRIES - 1);
	for (int i = 0; i < 10; i++)
		dp_flush(b);
	dp_check(&w);
	/* it reads after all: the rest is served without another wake-up */
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(dp_next(a, DP_WAIT_MS, &cqe), 0);
	kvp_store_release(&a->page->cq_head, 12345);
	wake(a);
	dp_flush(b);
	dp_check(&w);
	dp_stop(&w);
}

static void limits_of_one_session(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct dp_grant g[KVP_MAX_GRANTS];
	struct kvp_sqe e = { .op = KVP_OP_CLAIM };
	struct kvp_cqe cqe;
	uint32_t space, got = 0, claims = 0;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.claim_ttl_ms = 600000; /* none ends while the test counts them */
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 8);
	while (got < KVP_MAX_GRANTS) {
		int n = dp_reserve(c, space, KVP_MAX_GRANTS - got, 2000, g + got);

		assert_true(n > 0);
		got += (uint32_t)n;
	}
	assert_int_equal(dp_reserve(c, space, 1, 2000, g), -EDQUOT);
	for (uint32_t i = 0; i < 200; i++) {
		e.next_lo = i + 1;
		dp_push(c, &e);
		assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
		claims += cqe.status == 0;
		assert_true(cqe.status == 0 || cqe.status == -ENOBUFS);
	}
	assert_true(claims > 0 && claims <= KVPD_SESSION_CLAIMS);
	dp_check(&w);
	dp_stop(&w);
}

static void descriptions_out_of_range(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct kvp_space_canon canon;
	struct kvp_msg_space space = { 99, 99 };
	char reason[128];

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
#define REFUSED(error, change)                                                               \
	do {                                                                                 \
		dp_canon(&canon, "m", 2);                                                    \
		change;                                                                      \
		reason[0] = 0;                                                               \
		assert_int_equal(dp_open(c, &canon, reason, sizeof(reason), &space), error); \
		assert_true(reason[0]);                                                      \
		assert_int_equal(space.space, 99);                                           \
	} while (0)
	REFUSED(-EINVAL, canon.version = 2);
	REFUSED(-EINVAL, canon.dtype = 0);
	REFUSED(-EINVAL, canon.dtype = 5);
	REFUSED(-EINVAL, canon.layout = KVP_LAYOUT_OPAQUE + 1);
	REFUSED(-EINVAL, canon.block_tokens = 15);
	REFUSED(-EINVAL, canon.block_tokens = 513);
	REFUSED(-EINVAL, canon.n_layers = 0);
	REFUSED(-EINVAL, canon.n_layers = KVP_MAX_LAYERS + 1);
	REFUSED(-EINVAL, memset(canon.model, 'x', sizeof(canon.model)));
	REFUSED(-EINVAL, canon.model[100] = 'x');
	REFUSED(-EINVAL, canon.layers[1].kv_heads = 0);
	REFUSED(-EINVAL, canon.layers[1].index = 0);
	REFUSED(-EINVAL, canon.layers[2].k_dim = 1);
	REFUSED(-E2BIG, canon.layers[1].kv_heads = canon.layers[1].k_dim = 65535);
#undef REFUSED
	dp_check(&w);
	dp_stop(&w);
}

/* 64 spaces, all open: the next is refused; one that nobody has open makes way. */
static void spaces_are_bounded(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct kvp_space_canon canon;
	struct kvp_msg_space space;
	struct kvp_msg_id id;
	struct dp_block block;
	kvp_token tokens[T] = { 1, 2, 3 };
	struct kvp_hit hit;
	char reason[128], name[16];

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		assert_int_equal(dp_space(c, name, 4), i);
	}
	assert_int_equal(dp_put(c, 5, dp_root(), tokens, T, &block), 0);
	dp_canon(&canon, "one more", 4);
	assert_int_equal(dp_open(c, &canon, reason, sizeof(reason), &space), -ENOSPC);
	id = (struct kvp_msg_id){ 5, c->view.spaces[5].generation };
	assert_int_equal(kvpd_space_close(w.ledger, c->at.session, &id), 0);
	assert_int_equal(kvpd_space_close(w.ledger, c->at.session, &id), -ENOENT);
	assert_int_equal(dp_open(c, &canon, reason, sizeof(reason), &space), 0);
	assert_int_equal(space.space, 5);
	assert_int_equal(dp_find(c, 5, tokens, T, &hit, 1), 0);
	assert_int_equal(dp_figure(&w, "blocks"), 0);
	dp_check(&w);
	dp_stop(&w);
}

/*
 * Two token sequences with one key cannot be made on purpose, so the ledger's own state is changed
 * to what it would be: another block stands under the key that the next commit will compute.
 */
static int forge_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct dp_client *c = arg;
	struct kvpd_tenant *t = kvpd_session_find(l, c->at.session)->tenant;
	struct kvp_block *b = &t->view.blocks[0];
	kvp_token other[T] = { 9, 9, 9 };
	struct kvp_key root = { t->view.spaces[0].root_lo, t->view.spaces[0].root_hi };
	struct kvp_key forged = kvp_chain_key(root, other, T);

	assert_int_equal(kvp_index_remove(t->view.index, t->view.index_buckets,
				 kvp_load_relaxed(&b->key_lo), 0),
		0);
	kvp_store_relaxed(&b->key_lo, forged.lo);
	kvp_store_relaxed(&b->key_hi, forged.hi);
	return kvp_index_insert(t->view.index, t->view.index_buckets, forged.lo, 0);
}

static void a_collision_is_refused(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct dp_block block;
	kvp_token tokens[T] = { 1, 2, 3 }, other[T] = { 9, 9, 9 };
	struct kvp_hit hit;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
	assert_int_equal(block.id, 0);
	assert_int_equal(kvpd_ledger_ask(w.ledger, forge_on_ledger, c), 0);
	assert_int_equal(dp_find(c, space, other, T, &hit, 1), 0);
	assert_int_equal(dp_put(c, space, dp_root(), other, T, &block), -EEXIST);
	/* and check notices what was done to the catalog */
	assert_int_equal(dp_admin(&w, "{\"verb\": \"check\"}", NULL), -EBADMSG);
	dp_stop(&w);
}

/* A salt stands in the page, and is one of the first block of a chain of tokens, or refused. */
static void salts_where_they_belong(void **state)
{
	kvp_token tokens[2 * T] = { 1, 2, 3 }, salt[KVP_SALT_TOKENS] = { [3] = 7 };
	struct kvpd_limits limits;
	struct kvp_hit hits[2];
	struct kvp_found found;
	struct dp_block block, child;
	struct dp_grant g[3];
	struct dp_client *c;
	struct dp_world w;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 4);
	assert_int_equal(dp_reserve(c, space, 3, DP_WAIT_MS, g), 3);
	/* all zeros are none */
	assert_int_equal(
		dp_commit(c, space, &g[0], dp_root(), tokens, T, KVP_SQE_SALTED, &block), -EINVAL);
	memcpy(c->page->salt[g[0].index], salt, sizeof(salt));
	memcpy(c->page->salt[g[1].index], salt, sizeof(salt));
	assert_int_equal(
		dp_commit(c, space, &g[0], dp_root(), tokens, T, KVP_SQE_SALTED, &block), 0);
	assert_int_equal(
		dp_commit(c, space, &g[1], dp_ref(&block), tokens + T, T, KVP_SQE_SALTED, &child),
		-EINVAL);
	assert_int_equal(dp_commit(c, space, &g[1], dp_ref(&block), tokens + T, T, 0, &child), 0);
	assert_int_equal(dp_find(c, space, tokens, 2 * T, hits, 2), 0);
	kvp_find_salted(&c->view, space, salt, tokens, 2 * T, 0, KVP_TIERS_DRAM, hits, 2, &found);
	assert_int_equal(found.n_hits, 2);
	/* The same tokens without it are another block, with it the same one. */
	assert_int_equal(dp_commit(c, space, &g[2], dp_root(), tokens, T, 0, &child), 0);
	assert_int_equal(child.flags, 0);
	dp_release(c, &g[2]);
	assert_int_equal(dp_reserve(c, space, 1, DP_WAIT_MS, &g[2]), 1);
	memcpy(c->page->salt[g[2].index], salt, sizeof(salt));
	assert_int_equal(
		dp_commit(c, space, &g[2], dp_root(), tokens, T, KVP_SQE_SALTED, &child), 0);
	assert_int_equal(child.flags, KVP_CQE_DUPLICATE);
	assert_int_equal(child.id, block.id);
	for (uint32_t i = 0; i < 3; i++)
		dp_release(c, &g[i]);
	dp_check(&w);
	dp_stop(&w);
}

/* A log full of uses of a long chain is served bit by bit, between the entries of all. */
static void long_chains_are_touched_bit_by_bit(void **state)
{
	const uint32_t depth = 500, all = KVP_SHARDS * KVP_TOUCHES;
	KVP_ATOMIC(uint32_t) *hits;
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct dp_block block = { 0 };
	uint32_t space, root = 0;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 1);
	for (uint32_t i = 0; i < depth; i++) {
		kvp_token tokens[T] = { i };

		assert_int_equal(
			dp_put(c, space, i ? dp_ref(&block) : dp_root(), tokens, T, &block), 0);
		if (!i)
			root = block.id;
	}
	for (uint32_t shard = 0; shard < KVP_SHARDS; shard++)
		for (uint32_t i = 0; i < KVP_TOUCHES; i++)
			kvp_touch_push(c->page, shard, block.id, depth);
	hits = &c->view.blocks[root].hits;
	dp_flush(c);
	assert_true(kvp_load_relaxed(hits) < all);
	/* A slow machine needs several turns for one of them. */
	for (uint32_t i = 0; i < 100 * all && kvp_load_relaxed(hits) < all; i++)
		dp_flush(c);
	assert_int_equal(kvp_load_relaxed(hits), all);
	dp_check(&w);
	dp_stop(&w);
}

/* One use of a chain that is longer than any turn is walked in pieces, from its tip up. */
static void one_long_chain_is_no_single_step(void **state)
{
	const uint32_t depth = 20000;
	KVP_ATOMIC(uint32_t) *first, *last;
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct dp_block block = { 0 };
	uint32_t space, root = 0;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = depth;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 1);
	for (uint32_t i = 0; i < depth; i++) {
		kvp_token tokens[T] = { i };

		assert_int_equal(
			dp_put(c, space, i ? dp_ref(&block) : dp_root(), tokens, T, &block), 0);
		if (!i)
			root = block.id;
	}
	first = &c->view.blocks[block.id].hits;
	last = &c->view.blocks[root].hits;
	kvp_touch_push(c->page, 0, block.id, depth);
	/* Until it has begun: a turn of a ledger that had to wait for a processor may be over before. */
	do
		dp_flush(c);
	while (!kvp_load_relaxed(first));
	assert_int_equal(kvp_load_relaxed(first), 1);
	assert_int_equal(kvp_load_relaxed(last), 0);
	for (uint32_t i = 0; i < depth && !kvp_load_relaxed(last); i++)
		dp_flush(c);
	assert_int_equal(kvp_load_relaxed(first), 1);
	assert_int_equal(kvp_load_relaxed(last), 1);
	dp_check(&w);
	dp_stop(&w);
}

/* However small the blocks are: what the ledger keeps and looks at for an extent is bounded. */
static void tiny_blocks_make_small_extents(void **state)
{
	struct kvp_space_canon canon;
	struct kvp_msg_space space;
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	char reason[64];
	uint32_t vaults = 0;

	(void)state;
	dp_defaults(&w, &limits);
	w.config.extent = 64 << 20;
	limits.arena = 64 << 10;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	dp_canon(&canon, "tiny", 1);
	canon.dtype = KVP_DTYPE_F8;
	canon.layers[0].k_dim = canon.layers[0].v_dim = 2;
	assert_int_equal(dp_open(c, &canon, reason, sizeof(reason), &space), 0);
	for (uint32_t i = 0; i < 5000 && !vaults; i++) {
		kvp_token tokens[T] = { i };
		struct dp_block block;

		assert_int_equal(dp_put(c, space.space, dp_root(), tokens, T, &block), 0);
		for (uint32_t x = 0; x < KVP_MAX_EXTENTS; x++) {
			const struct kvp_shm_extent *e = &c->view.extents[x];

			if (kvp_load_acquire(&e->state) != KVP_EXTENT_LIVE)
				continue;
			assert_in_range(kvp_load_relaxed(&e->slots), 1, KVPD_EXTENT_SLOTS);
			vaults += kvp_load_relaxed(&e->kind) == KVP_EXTENT_VAULT;
		}
	}
	assert_true(vaults > 0);
	dp_check(&w);
	dp_stop(&w);
}

static uint32_t some_extent(const struct dp_client *c, uint32_t kind, uint32_t state)
{
	for (uint32_t i = 0; i < KVP_MAX_EXTENTS; i++)
		if (kvp_load_acquire(&c->view.extents[i].state) == state &&
			kvp_load_relaxed(&c->view.extents[i].kind) == kind)
			return i;
	return KVP_MAX_EXTENTS;
}

/* Pages that the client has taken out of its arena are not the daemon's to find when it reads. */
static void an_arena_with_holes_is_not_taken(void **state)
{
	struct kvpd_limits limits;
	struct kvpd_event ev = { 0 };
	struct dp_world w;
	struct dp_client *c;
	struct kvp_sqe e = { .op = KVP_OP_RESERVE, .count = 1 };
	struct kvp_msg_id id;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	e.space = (uint16_t)dp_space(c, "m", 8);
	dp_push(c, &e);
	for (int i = 0; i < 60000 && ev.type != KVPD_EV_ARENA; i++) {
		pthread_mutex_lock(&w.lock);
		if (w.taken != w.posted)
			ev = w.event[w.taken++ % DP_EVENTS];
		pthread_mutex_unlock(&w.lock);
		usleep(1000);
	}
	assert_int_equal(ev.type, KVPD_EV_ARENA);
	id = (struct kvp_msg_id){ ev.extent.extent, ev.extent.generation };
	assert_int_equal(fallocate(ev.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
	assert_int_equal(kvpd_arena_ack(w.ledger, c->at.session, &id), -EPROTO);
	assert_int_equal(some_extent(c, KVP_EXTENT_ARENA, KVP_EXTENT_LIVE), KVP_MAX_EXTENTS);
	/* sealed by now, it gets no more of them */
	assert_int_equal(
		fallocate(ev.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), -1);
	close(ev.fd);
	dp_check(&w);
	dp_stop(&w);
}

static uint32_t lease_scans(struct dp_world *w)
{
	return (uint32_t)w->ledger->tenant[w->tenant]->proofs;
}

/*
 * A space that is emptied for another costs about one look at the leases for 64 blocks of a chain,
 * and what is leased of it, with all above it, stays.
 */
static void a_space_is_emptied_in_one_go(void **state)
{
	const uint32_t n = 900;
	struct dp_block block[900];
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct kvp_space_canon canon;
	struct kvp_msg_space space;
	struct kvp_msg_id id;
	struct kvp_lease lease = { 0 };
	char reason[128], name[16];
	uint32_t scans;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 800;
	limits.recipe_blocks = 400;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		snprintf(name, sizeof(name), "m%u", i);
		assert_int_equal(dp_space(c, name, 4), i);
	}
	/* one long chain, with a twig here and there; what is above 800 blocks turns to recipes */
	for (uint32_t i = 0; i < n; i++) {
		kvp_token tokens[T] = { i };
		struct dp_ref parent = !i ? dp_root() : dp_ref(&block[i % 64 ? i - 1 : i - 2]);
		int r;

		if (i >= 700)
			parent = dp_root();
		r = dp_put(c, 5, parent, tokens, T, &block[i]);
		assert_int_equal(r, 0);
	}
	assert_true(dp_figure(&w, "recipes") > 0);
	dp_canon(&canon, "one more", 4);
	id = (struct kvp_msg_id){ 5, c->view.spaces[5].generation };
	assert_int_equal(kvpd_space_close(w.ledger, c->at.session, &id), 0);
	assert_int_equal(kvp_lease_take(c->page, 0, &c->view.blocks[block[300].id], block[300].id,
				 kvp_load_acquire(&c->view.blocks[block[300].id].word), &lease),
		0);
	assert_int_equal(dp_open(c, &canon, reason, sizeof(reason), &space), -ENOSPC);
	assert_in_range(dp_figure(&w, "blocks"), 290, 301);
	dp_check(&w);
	kvp_lease_drop(&lease);
	scans = lease_scans(&w);
	assert_int_equal(dp_open(c, &canon, reason, sizeof(reason), &space), 0);
	assert_in_range(lease_scans(&w) - scans, 1, 301 / KVPD_EVICT_MAX + 301 / 64 + 2);
	assert_int_equal(space.space, 5);
	assert_int_equal(dp_figure(&w, "blocks"), 0);
	assert_int_equal(dp_figure(&w, "recipes"), 0);
	dp_check(&w);
	dp_stop(&w);
}

/* Who says that it has unmapped the vault and holds on to it has zeros, and no memory of the pool.
 */
static void who_keeps_the_vault_keeps_nothing(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *c;
	struct kvp_msg_extent extent;
	struct stat st;
	uint32_t space, id = KVP_MAX_EXTENTS;
	int fd;

	(void)state;
	dp_defaults(&w, &limits);
	limits.arena = 64 << 10;
	dp_start(&w, &limits);
	c = dp_attach(&w, w.tenant);
	space = dp_space(c, "m", 8);
	for (uint32_t i = 0; i < 1000 && id == KVP_MAX_EXTENTS; i++) {
		kvp_token tokens[T] = { i };
		struct dp_block block;

		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &block), 0);
		id = some_extent(c, KVP_EXTENT_VAULT, KVP_EXTENT_LIVE);
	}
	assert_int_equal(kvpd_extent_get(w.ledger, c->at.session, id, &extent, &fd), 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_true(st.st_blocks > 0);
	for (int i = 0; i < 60000 && st.st_blocks; i++) {
		/* What a mover is about to put there is not drained. */
		if (i % 100 == 0)
			assert_int_equal(
				dp_admin(&w, "{\"verb\": \"drain\", \"tenant\": \"one\"}", NULL),
				0);
		dp_pump(&w);
		usleep(1000);
		assert_int_equal(fstat(fd, &st), 0);
	}
	assert_int_equal(st.st_blocks, 0);
	close(fd);
	dp_check(&w);
	dp_stop(&w);
}

/* Pinned pages of an arena that its client has unmapped hold the memory back, and nothing else. */
static void pinned_pages_hold_back_their_arena_alone(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	struct dp_grant g;
	struct dp_block block;
	kvp_token tokens[T] = { 1 };
	uint64_t before;
	uint32_t space;
	int pipes[2];

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	before = dp_figure(&w, "charged_bytes");
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 8);
	dp_space(b, "m", 8);
	assert_int_equal(dp_reserve(a, space, 1, DP_WAIT_MS, &g), 1);
	assert_int_equal(pipe(pipes), 0);
	assert_true(vmsplice(pipes[1], &(struct iovec){ g.addr, 64 }, 1, 0) > 0);
	dp_detach(a);
	/* the drop has been tried and refused by the time that another's arena is there and gone */
	for (int i = 0; i < 200; i++) {
		dp_pump(&w);
		dp_flush(b);
		usleep(1000);
	}
	assert_int_equal(dp_put(b, space, dp_root(), tokens, T, &block), 0);
	dp_check(&w);
	dp_detach(b);
	for (int i = 0; i < 300; i++) {
		dp_pump(&w);
		usleep(1000);
	}
	assert_true(dp_figure(&w, "charged_bytes") > before);
	close(pipes[0]);
	close(pipes[1]);
	for (int i = 0; i < 60000 && dp_figure(&w, "charged_bytes") != before; i++) {
		/* What a mover is about to put somewhere is not drained. */
		if (i % 100 == 0)
			assert_int_equal(
				dp_admin(&w, "{\"verb\": \"drain\", \"tenant\": \"one\"}", NULL),
				0);
		dp_pump(&w);
		usleep(1000);
	}
	assert_int_equal(dp_figure(&w, "charged_bytes"), before);
	dp_check(&w);
	dp_stop(&w);
}

static uint64_t space_figure(struct dp_world *w, uint32_t space, const char *name)
{
	json_t *answer, *v;
	uint64_t n;

	assert_int_equal(dp_admin(w, "{\"verb\": \"spaces\", \"tenant\": \"one\"}", &answer), 0);
	v = json_object_get(json_array_get(json_object_get(answer, "spaces"), space), name);
	assert_true(json_is_integer(v));
	n = (uint64_t)json_integer_value(v);
	json_decref(answer);
	return n;
}

/* A client's counters: whatever is written there, sums neither overflow nor go back. */
static void counters_that_lie(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	uint64_t before, after;
	uint32_t x, y;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	x = dp_space(a, "x", 8);
	assert_int_equal(dp_space(b, "x", 8), x);
	y = dp_space(b, "y", 8);
	kvp_store_relaxed(&a->page->shard[3].hits, 6);
	kvp_store_relaxed(&a->page->shard[4].hits, 1);
	kvp_store_relaxed(&a->page->shard[3].use[x].asked, 100);
	kvp_store_relaxed(&a->page->shard[4].use[x].asked, 12);
	kvp_store_relaxed(&a->page->shard[4].use[x].matched, 1000);
	kvp_store_relaxed(&a->page->shard[4].use[y].asked, 5000); /* which it does not have */
	assert_int_equal(dp_figure(&w, "lookups_total"), 7);
	assert_int_equal(dp_figure(&w, "asked_tokens_total"), 112);
	assert_int_equal(dp_figure(&w, "matched_tokens_total"), 112);
	assert_int_equal(space_figure(&w, x, "asked_tokens_total"), 112);
	assert_int_equal(space_figure(&w, x, "matched_tokens_total"), 112);
	assert_int_equal(space_figure(&w, y, "asked_tokens_total"), 0);
	kvp_store_relaxed(&a->page->shard[3].hits, 1);
	kvp_store_relaxed(&a->page->shard[3].use[x].asked, 1);
	assert_int_equal(dp_figure(&w, "lookups_total"), 7);
	assert_int_equal(dp_figure(&w, "asked_tokens_total"), 112);
	/* What it says of a space before it has it was of another of that number, or of none. */
	assert_int_equal(dp_space(a, "y", 8), y);
	kvp_store_relaxed(&a->page->shard[4].use[y].asked, 5003);
	assert_int_equal(space_figure(&w, y, "asked_tokens_total"), 3);
	assert_int_equal(dp_figure(&w, "asked_tokens_total"), 115);
	kvp_store_relaxed(&a->page->shard[0].misses, UINT64_MAX / 2);
	kvp_store_relaxed(&b->page->shard[0].misses, UINT64_MAX / 2 + 9);
	kvp_store_relaxed(&b->page->shard[1].misses, 1);
	kvp_store_relaxed(&b->page->shard[1].use[x].asked, UINT64_MAX);
	kvp_store_relaxed(&b->page->shard[1].use[y].asked, UINT64_MAX);
	kvp_store_relaxed(&b->page->shard[1].use[y].matched, UINT64_MAX);
	before = dp_figure(&w, "lookups_total");
	assert_true(before > 7 && before < UINT64_C(1) << 45);
	assert_true(dp_figure(&w, "asked_tokens_total") < UINT64_C(1) << 49);
	assert_true(space_figure(&w, x, "asked_tokens_total") +
			    space_figure(&w, y, "asked_tokens_total") <=
		    dp_figure(&w, "asked_tokens_total"));
	dp_detach(a);
	dp_detach(b);
	/* The dead are counted where they were. */
	assert_true(space_figure(&w, x, "asked_tokens_total") >= 112);
	assert_int_equal(space_figure(&w, x, "asked_tokens_total") +
				 space_figure(&w, y, "asked_tokens_total"),
		dp_figure(&w, "asked_tokens_total"));
	assert_int_equal(space_figure(&w, x, "matched_tokens_total") +
				 space_figure(&w, y, "matched_tokens_total"),
		dp_figure(&w, "matched_tokens_total"));
	after = dp_figure(&w, "lookups_total");
	assert_true(after >= before && after < UINT64_C(1) << 45);
	dp_stop(&w);
}

static void lose(struct dp_world *w, uint32_t type, uint32_t n)
{
	pthread_mutex_lock(&w->lock);
	w->lose[type] = n;
	pthread_mutex_unlock(&w->lock);
}

/* What finds no memory to be posted is posted later, or done without. */
static void events_that_find_no_memory(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct dp_client *a, *b;
	kvp_token tokens[T] = { 1, 2, 3 };
	struct dp_block block;
	uint32_t space;

	(void)state;
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	a = dp_attach(&w, w.tenant);
	b = dp_attach(&w, w.tenant);
	space = dp_space(a, "m", 8);
	lose(&w, KVPD_EV_ARENA, 1);
	lose(&w, KVPD_EV_EXTENT, 1);
	assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	assert_int_equal(w.lose[KVPD_EV_ARENA] + w.lose[KVPD_EV_EXTENT], 0);
	/* What was there already is not put again. */
	assert_int_equal(dp_put(a, space, dp_root(), tokens, T, &block), 0);
	assert_int_equal(dp_figure(&w, "put_tokens_total"), T);

	lose(&w, KVPD_EV_RETIRE, 2);
	dp_detach(a);
	for (int i = 0; i < 60000 && dp_figure(&w, "arena_bytes"); i++) {
		dp_pump(&w);
		usleep(1000);
	}
	assert_int_equal(dp_figure(&w, "arena_bytes"), 0);
	assert_int_equal(w.lose[KVPD_EV_RETIRE], 0);

	lose(&w, KVPD_EV_EXPEL, 1);
	kvp_store_seq(&b->page->sq_tail, KVP_SQ_ENTRIES + 1);
	wake(b);
	for (int i = 0; i < 60000 && !b->expelled; i++) {
		dp_pump(&w);
		usleep(1000);
	}
	assert_int_equal(b->expelled, 1);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- a drain beside clients that go on putting ---------------------------------------------- */

#define DRAINED 64u /* blocks there may be */
#define PUTS    20000u

struct putter {
	struct dp_client *c;
	uint32_t space;
	_Atomic(bool) stop;
	_Atomic(uint32_t) answered;
};

/* Another thread: looks at the rings alone, because the events are the first thread's. */
static void *put_on(void *arg)
{
	struct putter *p = arg;
	struct kvp_cqe cqe;
	struct kvp_sqe ask = { .op = KVP_OP_RESERVE, .space = (uint16_t)p->space, .count = 8 };
	uint32_t open = 0, number = 0;

	while (!atomic_load(&p->stop) && number < PUTS) {
		struct kvp_sqe put = { .op = KVP_OP_COMMIT,
			.space = (uint16_t)p->space,
			.tokens = T,
			.flags = KVP_SQE_RELEASE,
			.parent_kind = KVP_PARENT_ROOT };

		if (!open++)
			dp_push(p->c, &ask);
		while (kvp_cq_pop(p->c->page, &p->c->cq_head, &cqe) < 0)
			usleep(1);
		if (cqe.op != KVP_OP_RESERVE) {
			atomic_fetch_add(&p->answered, 1);
			continue;
		}
		open = cqe.more > 0;
		if (cqe.status < 0)
			continue;
		put.grant = cqe.grant;
		put.grant_generation = cqe.grant_generation;
		for (uint32_t i = 0; i < T; i++)
			p->c->page->staging[cqe.grant][i] = i ? i : number;
		number++;
		dp_push(p->c, &put);
	}
	return NULL;
}

/* ---- coming and going ----------------------------------------------------------------------- */

#define VISITS 50u

#if defined(__SANITIZE_THREAD__)
#define SHADOWED 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SHADOWED 1
#endif
#endif
#ifndef SHADOWED
#define SHADOWED 0
#endif

static int faults_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct rusage u;

	(void)l;
	if (getrusage(RUSAGE_THREAD, &u) < 0)
		return -errno;
	*(uint64_t *)arg = (uint64_t)u.ru_minflt;
	return 0;
}

/* The pages of what clients count are not made on the ledger's time: two dozen for each of them. */
static void who_comes_and_goes_makes_no_pages(void **state)
{
	struct kvpd_limits limits;
	uint64_t before, after;
	struct dp_world w;

	(void)state;
	if (SHADOWED)
		skip(); /* the pages in which accesses are noted come on top of it */
	dp_defaults(&w, &limits);
	dp_start(&w, &limits);
	assert_int_equal(kvpd_ledger_ask(w.ledger, faults_on_ledger, &before), 0);
	for (uint32_t i = 0; i < VISITS; i++) {
		struct dp_client *c = dp_attach(&w, w.tenant);

		(void)dp_space(c, "m", 4);
		dp_detach(c);
	}
	assert_int_equal(kvpd_ledger_ask(w.ledger, faults_on_ledger, &after), 0);
	assert_true(after - before < 6 * VISITS);
	dp_check(&w);
	dp_stop(&w);
}

/* ---- those that wait ------------------------------------------------------------------------ */

#define WAITING 40u
#define TURNS   500u

static int chores_on_ledger(struct kvpd_ledger *l, void *arg)
{
	*(uint64_t *)arg = l->portions.kind[KVPD_PORTION_CHORE].count;
	return 0;
}

static uint64_t chores_so_far(const struct dp_world *w)
{
	uint64_t n = 0;

	assert_int_equal(kvpd_ledger_ask(w->ledger, chores_on_ledger, &n), 0);
	return n;
}

static void wait_for_slots(struct dp_client *c, uint32_t space)
{
	struct kvp_sqe sqe = { .op = KVP_OP_RESERVE, .space = (uint16_t)space, .count = 1 };

	dp_push(c, &sqe);
}

/*
 * A session gives slots back and takes them again, beside many that wait for some: its slots are of
 * no use to them, and what the ledger does must not grow with how many they are.
 */
static void a_slot_of_one_is_no_matter_for_all(void **state)
{
	struct dp_client *c[WAITING + 1];
	struct kvpd_limits limits;
	struct dp_grant g[KVP_MAX_GRANTS];
	struct dp_world w;
	uint32_t space = 0, held = 0;
	uint64_t before;
	int r;

	(void)state;
	dp_defaults(&w, &limits);
	limits.share = 12 << 20;
	limits.max_sessions = WAITING + 1;
	dp_start(&w, &limits);
	for (uint32_t i = 0; i <= WAITING; i++) {
		c[i] = dp_attach(&w, w.tenant);
		space = dp_large_space(c[i], "m", 64 << 10);
		/* The first has some; the others wait when there are no more. */
		while (!i && held < 8 &&
			(r = dp_reserve(c[0], space, 8 - held, 2000, g + held)) > 0)
			held += (uint32_t)r;
	}
	assert_int_equal(held, 8);
	for (uint32_t i = 1; i <= WAITING; i++) {
		struct dp_grant own[KVP_MAX_GRANTS];

		while (dp_reserve(c[i], space, KVP_MAX_GRANTS, 0, own) > 0)
			;
		wait_for_slots(c[i], space);
	}
	before = chores_so_far(&w);
	for (uint32_t k = 0; k < TURNS; k++) {
		struct dp_client *other = c[1 + k % WAITING];
		struct kvp_cqe cqe;

		dp_release(c[0], &g[k % 8]);
		assert_int_equal(dp_reserve(c[0], space, 1, 2000, &g[k % 8]), 1);
		/* Answered after 50 ms, it asks again. */
		if (dp_next(other, 0, &cqe) == 0)
			wait_for_slots(other, space);
	}
	/* All of them were looked at for each slot: a dozen portions a turn. */
	assert_true(chores_so_far(&w) - before < 4 * TURNS);
	dp_check(&w);
	dp_stop(&w);
}

/* A tenant without a free slot, and a RESERVE of the client's that waits. Returns its serial. */
static uint32_t reserve_in_vain(struct dp_world *w, struct dp_client **ret_client)
{
	struct kvp_sqe sqe = { .op = KVP_OP_RESERVE, .count = 1 };
	struct kvpd_limits limits;
	struct dp_grant g[KVP_MAX_GRANTS];
	struct dp_client *c, *other;
	uint32_t space;
	int r;

	dp_defaults(w, &limits);
	limits.share = 8 << 20;
	dp_start(w, &limits);
	other = dp_attach(w, w->tenant);
	c = dp_attach(w, w->tenant);
	space = dp_large_space(other, "m", 64 << 10);
	assert_int_equal(dp_large_space(c, "m", 64 << 10), space);
	for (uint32_t i = 0; i < 2; i++)
		do
			/* An arena may be under way when the first answer comes. */
			r = dp_reserve(i ? c : other, space, i ? 8 : KVP_MAX_GRANTS, 300, g);
		while (r > 0);
	assert_int_equal(r, -EAGAIN);
	sqe.space = (uint16_t)space;
	*ret_client = c;
	return dp_push(c, &sqe);
}

/* However many answers lie unread, that of a RESERVE that waited is among them. */
static void an_answer_waits_for_who_does_not_read(void **state)
{
	struct kvp_sqe nop = { .op = KVP_OP_NOP };
	struct dp_world w;
	struct dp_client *c;
	uint32_t serial, n = 0, answers = 0;
	struct kvp_cqe cqe;

	(void)state;
	serial = reserve_in_vain(&w, &c);
	for (; n < 2 * KVP_CQ_ENTRIES; n++) {
		nop.serial = ++c->serial;
		for (uint32_t tries = 0; kvp_sq_push(c->page, &c->sq_tail, &nop) < 0; tries++) {
			/* Both rings are full, or the ledger has not come by yet. */
			if (tries >= 100 && n >= KVP_CQ_ENTRIES)
				goto full;
			assert_in_range(tries, 0, DP_WAIT_MS);
			wake(c);
			usleep(1000);
		}
	}
full:
	assert_in_range(n, KVP_CQ_ENTRIES, 2 * KVP_CQ_ENTRIES - 1);
	usleep(100000);
	for (uint32_t i = 0; i < n + 1; i++) {
		assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
		wake(c);
		answers += cqe.op == KVP_OP_RESERVE && cqe.serial == serial;
	}
	assert_int_equal(answers, 1);
	dp_check(&w);
	dp_stop(&w);
}

/* Nor is it lost if the client says for a while that it has read what was never written. */
static void an_answer_is_owed_until_there_is_room(void **state)
{
	struct dp_world w;
	struct dp_client *c;
	struct kvp_cqe cqe;
	uint32_t serial, head;

	(void)state;
	serial = reserve_in_vain(&w, &c);
	head = kvp_load_acquire(&c->page->cq_head);
	kvp_store_release(&c->page->cq_head, head + 12345);
	usleep(100000);
	kvp_store_release(&c->page->cq_head, head);
	/* It wakes nobody: the ledger looks once a second. */
	assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.serial, serial);
	assert_int_equal(cqe.status, -EAGAIN);
	dp_check(&w);
	dp_stop(&w);
}

/* What they put after it began is theirs to keep: else a drain might never end. */
static void a_drain_beside_putters_ends(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;
	struct putter p[3];
	pthread_t thread[3];
	kvp_token tokens[T];
	struct dp_block block;
	json_t *answer;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = DRAINED;
	dp_start(&w, &limits);
	for (uint32_t i = 0; i < 3; i++) {
		memset(&p[i], 0, sizeof(p[i]));
		p[i].c = dp_attach(&w, w.tenant);
		p[i].space = dp_space(p[i].c, "m", 4);
		for (uint32_t k = 0; k < T; k++)
			tokens[k] = 1000000 + i;
		assert_int_equal(dp_put(p[i].c, p[i].space, dp_root(), tokens, T, &block), 0);
	}
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&thread[i], NULL, put_on, &p[i]), 0);
	for (uint32_t i = 0; i < 3; i++)
		while (atomic_load(&p[i].answered) < 2 * DRAINED)
			usleep(100);
	for (uint32_t i = 0; i < 20; i++) {
		assert_int_equal(dp_admin(&w, "{\"verb\": \"drain\"}", &answer), 0);
		assert_true(json_integer_value(json_object_get(answer, "evicted")) <= DRAINED);
		json_decref(answer);
	}
	for (uint32_t i = 0; i < 3; i++)
		atomic_store(&p[i].stop, true);
	for (uint32_t i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_entries),
		cmocka_unit_test(a_ring_that_lies_ends_the_session),
		cmocka_unit_test(events_that_find_no_memory),
		cmocka_unit_test(counters_that_lie),
		cmocka_unit_test(a_wake_up_taken_back_blocks_nobody),
		cmocka_unit_test(who_never_reads_stops_only_itself),
		cmocka_unit_test(limits_of_one_session),
		cmocka_unit_test(descriptions_out_of_range),
		cmocka_unit_test(spaces_are_bounded),
		cmocka_unit_test(a_collision_is_refused),
		cmocka_unit_test(salts_where_they_belong),
		cmocka_unit_test(long_chains_are_touched_bit_by_bit),
		cmocka_unit_test(one_long_chain_is_no_single_step),
		cmocka_unit_test(tiny_blocks_make_small_extents),
		cmocka_unit_test(an_arena_with_holes_is_not_taken),
		cmocka_unit_test(a_space_is_emptied_in_one_go),
		cmocka_unit_test(who_keeps_the_vault_keeps_nothing),
		cmocka_unit_test(pinned_pages_hold_back_their_arena_alone),
		cmocka_unit_test(who_comes_and_goes_makes_no_pages),
		cmocka_unit_test(a_slot_of_one_is_no_matter_for_all),
		cmocka_unit_test(an_answer_waits_for_who_does_not_read),
		cmocka_unit_test(an_answer_is_owed_until_there_is_room),
		cmocka_unit_test(a_drain_beside_putters_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
