/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that clients write on a device: granted there, committed there, read there by others, taken from
 * there for others, with clients that die and workers that do.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "tests/daemon/ledger/dp_world.h"

#define T     16u
#define MIB   (UINT64_C(1) << 20)
#define BLOCK (64u << 10)
#define MOST  64u /* blocks of a chain here */

#define HERE  0u
#define THERE 1u

#define DEVICE_FIRST KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_DRAM, KVP_TIER_RECIPE)

struct chain {
	uint32_t n;
	kvp_token tokens[MOST * T];
	struct dp_block block[MOST];
};

struct pool {
	struct dp_world w;
	struct kvpd_device_entry device[2];
	struct dp_client *c;
	uint32_t space;
	pid_t killed; /* the worker that was last */
};

static void defaults(struct pool *p, struct kvpd_limits *limits, uint32_t devices, uint64_t bytes)
{
	static const char *const names[2] = { "first", "second" };

	dp_defaults(&p->w, limits);
	for (uint32_t i = 0; i < devices; i++) {
		p->device[i] = (struct kvpd_device_entry){
			.name = (char *)(uintptr_t)names[i],
			.driver = (char *)(uintptr_t) "host",
			.worker = getenv("KVPOOL_DEVICE"),
			.bytes = bytes,
			.segment = bytes < MIB ? bytes : MIB,
		};
		limits->device_share[i] = bytes;
	}
	p->w.config.devices = p->device;
	p->w.config.n_devices = devices;
}

static void faults(struct pool *p, const char *what)
{
	p->device[0].driver = (char *)(uintptr_t) "fault";
	p->device[0].faults = (char *)(uintptr_t)what;
}

static void begin(struct pool *p, const struct kvpd_limits *limits)
{
	dp_start(&p->w, limits);
	p->c = dp_attach(&p->w, p->w.tenant);
	p->space = dp_large_space(p->c, "m", BLOCK);
}

static void end(struct pool *p)
{
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

static const kvp_token *row(const struct chain *k, uint32_t i)
{
	return k->tokens + (size_t)i * T;
}

static void chain_init(struct chain *k, uint32_t n, uint32_t seed)
{
	k->n = n;
	for (uint32_t i = 0; i < n * T; i++)
		k->tokens[i] = seed * 100000 + i;
	for (uint32_t i = 0; i < n; i++)
		k->block[i].id = KVP_BLOCK_NONE;
}

static struct dp_ref above(const struct chain *k, uint32_t i)
{
	return i ? dp_ref(&k->block[i - 1]) : dp_root();
}

/* Blocks [from, n) of the chain, in that medium. */
static void put_on(
	struct pool *p, struct dp_client *c, struct chain *k, uint32_t from, uint32_t medium)
{
	for (uint32_t i = from; i < k->n; i++)
		assert_int_equal(
			dp_put_at(c, p->space, medium, above(k, i), row(k, i), T, &k->block[i]), 0);
}

static void put(struct pool *p, struct dp_client *c, struct chain *k, uint32_t n, uint32_t seed,
	uint32_t medium)
{
	chain_init(k, n, seed);
	put_on(p, c, k, 0, medium);
}

static uint64_t word_of(struct dp_client *c, const struct chain *k, uint32_t i)
{
	return kvp_load_acquire(&c->view.blocks[k->block[i].id].word);
}

static uint64_t where_of(struct dp_client *c, const struct chain *k, uint32_t i, uint32_t tier)
{
	return kvp_load_acquire(&c->view.blocks[k->block[i].id].payload[tier].where);
}

/* One that is being moved, which no reader finds meanwhile. */
static bool is_marked(struct dp_client *c, const struct chain *k, uint32_t i)
{
	uint64_t word = k->block[i].id == KVP_BLOCK_NONE ? 0 : word_of(c, k, i);

	return kvp_word_state(word) == KVP_BLOCK_EVICTING &&
	       kvp_word_birth(word) == k->block[i].birth;
}

/* How many blocks of the chain a reader finds, each with the right bytes. */
static uint32_t found(struct pool *p, struct dp_client *c, const struct chain *k, uint32_t tiers)
{
	struct kvp_hit hits[MOST];
	uint32_t n;

	do
		n = dp_read(c, p->space, k->tokens, k->n * T, tiers, hits, MOST);
	while (n < k->n && is_marked(c, k, n));
	return n;
}

static void lease(struct dp_client *c, const struct chain *k, struct kvp_lease *ret)
{
	uint32_t id = k->block[k->n - 1].id;
	uint64_t word = word_of(c, k, k->n - 1);

	assert_int_equal(kvp_lease_take(c->page, 0, &c->view.blocks[id], id, word, ret), 0);
}

static void delete_block(struct dp_client *c, const struct dp_block *b)
{
	dp_push(c, &(struct kvp_sqe){ .op = KVP_OP_DELETE,
			   .parent_kind = KVP_PARENT_BLOCK,
			   .parent_id = b->id,
			   .parent_birth = b->birth });
}

static uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

static uint64_t device_figure(struct dp_world *w, const char *name)
{
	json_t *answer, *device;
	uint64_t n;

	assert_int_equal(dp_admin(w, "{\"verb\": \"devices\"}", &answer), 0);
	device = json_array_get(json_object_get(answer, "devices"), 0);
	assert_true(json_is_integer(json_object_get(device, name)));
	n = (uint64_t)json_integer_value(json_object_get(device, name));
	json_decref(answer);
	return n;
}

/* Waits for something that the ledger does by and by. */
#define AWAIT(w, condition)                                         \
	do {                                                        \
		for (uint32_t tries_ = 0; !(condition); tries_++) { \
			assert_true(tries_ < 12000);                \
			usleep(5000);                               \
			dp_pump(w);                                 \
		}                                                   \
	} while (0)

/* ---- committing ----------------------------------------------------------------------------- */

static void test_there(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct dp_client *other;
	const struct kvp_shm_extent *x;
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, 4 * MIB);
	begin(p, &limits);
	other = dp_attach(&p->w, p->w.tenant);
	(void)dp_large_space(other, "m", BLOCK);
	put(p, p->c, &k, 8, 1, THERE);
	assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), 8);
	assert_int_equal(found(p, other, &k, DEVICE_FIRST), 8);
	for (uint32_t i = 0; i < 8; i++) {
		x = &p->c->view.extents[kvp_where_extent(where_of(p->c, &k, i, KVP_TIER_VRAM))];
		assert_int_equal(kvp_load_acquire(&x->kind), KVP_EXTENT_ARENA);
		assert_int_equal(kvp_load_acquire(&x->tier), KVP_TIER_VRAM);
		assert_int_equal(kvp_load_acquire(&x->device), 0);
		assert_int_equal(kvp_load_acquire(&x->owner), p->c->at.session);
	}
	assert_int_equal(device_figure(&p->w, "blocks"), 8);
	assert_int_equal(device_figure(&p->w, "put_total"), 8);
	assert_int_equal(device_figure(&p->w, "warmed_total"), 0);
	end(p);
}

/* What is written there comes to DRAM by itself, as it is, without a word that changes. */
static void test_behind(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	uint64_t words[40], where[40];
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, 16 * MIB);
	begin(p, &limits);
	put(p, p->c, &k, 40, 1, THERE);
	for (uint32_t i = 0; i < 40; i++) {
		words[i] = word_of(p->c, &k, i);
		where[i] = where_of(p->c, &k, i, KVP_TIER_VRAM);
	}
	AWAIT(&p->w, found(p, p->c, &k, KVP_TIERS_DRAM) == 40);
	for (uint32_t i = 0; i < 40; i++) {
		const struct kvp_block *b = &p->c->view.blocks[k.block[i].id];

		assert_true(words[i] == word_of(p->c, &k, i));
		assert_true(where[i] == where_of(p->c, &k, i, KVP_TIER_VRAM));
		assert_true(kvp_load_acquire(&b->payload[KVP_TIER_DRAM].checksum) != 0);
	}
	assert_int_equal(device_figure(&p->w, "behind_total"), 40);
	assert_int_equal(kvp_load_relaxed(&p->c->view.devices[0].from_device_bytes), 40 * BLOCK);
	assert_int_equal(dp_figure(&p->w, "recipes"), 0);
	end(p);
}

/* More than the device holds: what makes room has been copied, nothing is lost. */
static void spill(const char *what)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain k[6];

	defaults(p, &limits, 1, 2 * MIB); /* 16 slots for arenas */
	if (what)
		faults(p, what);
	begin(p, &limits);
	for (uint32_t i = 0; i < 6; i++)
		put(p, p->c, &k[i], 40, 1 + i, THERE);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(found(p, p->c, &k[i], DEVICE_FIRST), 40);
	AWAIT(&p->w, found(p, p->c, &k[5], KVP_TIERS_DRAM) == 40);
	assert_int_equal(dp_figure(&p->w, "recipes"), 0);
	assert_true(device_figure(&p->w, "dropped_total") > 0);
	end(p);
}

static void test_spill(void **state)
{
	(void)state;
	spill(NULL);
	spill("copy=slow:60"); /* what is written comes faster than it is copied */
}

/* Blocks are deleted while they are copied: they go when that is over, and nothing of them is left. */
static void test_deleted(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain first, k;

	(void)state;
	defaults(p, &limits, 1, 8 * MIB);
	faults(p, "copy=slow:100");
	begin(p, &limits);
	/* There is room in DRAM from then on, which the device knows. */
	put(p, p->c, &first, 1, 9, THERE);
	AWAIT(&p->w, found(p, p->c, &first, KVP_TIERS_DRAM) == 1);
	put(p, p->c, &k, 8, 1, THERE);
	for (uint32_t i = 8; i-- > 0;)
		delete_block(p->c, &k.block[i]);
	dp_flush(p->c);
	AWAIT(&p->w, !found(p, p->c, &k, DEVICE_FIRST));
	dp_await_most(&p->w, "blocks", 1);
	dp_check(&p->w);
	put(p, p->c, &k, 8, 2, THERE);
	AWAIT(&p->w, found(p, p->c, &k, KVP_TIERS_DRAM) == 8);
	end(p);
}

/* Copies to DRAM that fail, hang, are slow: what is written there is there, and DRAM serves. */
static void test_behind_fails(void **state)
{
	static const char *const what[] = { "copy=fail:5", "copy=die@1#0,copy=die@3#1",
		"add=fail:12@1", "add=die@1#0", "copy=slow:30", "submit=fail:5@2",
		"hostdrop=die@1#0" };

	(void)state;
	for (uint32_t i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
		struct pool *p = calloc(1, sizeof(*p));
		struct kvpd_limits limits;
		struct chain k, here;
		struct dp_block no;
		uint32_t tries = 0;
		int r;

		defaults(p, &limits, 1, 2 * MIB);
		faults(p, what[i]);
		begin(p, &limits);
		chain_init(&k, 12, 1);
		for (k.n = 0; k.n < 12 && tries < 6000; tries++) {
			r = dp_put_at(p->c, p->space, THERE, above(&k, k.n), row(&k, k.n), T,
				&k.block[k.n]);
			assert_true(r == 0 || r == -EAGAIN || r == -ENODEV);
			k.n += r == 0;
			if (r < 0)
				usleep(20000);
		}
		assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), 12);
		if (i)
			AWAIT(&p->w, found(p, p->c, &k, KVP_TIERS_DRAM) == 12);
		/* Room is had there, if need be by giving up what cannot be copied. */
		for (uint32_t j = 0; j < 24; j++) {
			chain_init(&here, 1, 100 + j);
			do
				r = dp_put_at(
					p->c, p->space, THERE, dp_root(), row(&here, 0), T, &no);
			while ((r == -EAGAIN || r == -ENODEV) && tries++ < 12000 &&
				usleep(5000) == 0);
			assert_int_equal(r, 0);
			assert_int_equal(dp_put(p->c, p->space, dp_root(), row(&k, 0), T, &no), 0);
		}
		end(p);
	}
}

static void test_refused(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct dp_grant g;

	(void)state;
	defaults(p, &limits, 2, 4 * MIB);
	limits.device_share[1] = 0;
	begin(p, &limits);
	assert_int_equal(dp_reserve_at(p->c, p->space, 2, 1, 1000, &g), -ENODEV);
	assert_int_equal(dp_reserve_at(p->c, p->space, 3, 1, 1000, &g), -ENODEV);
	assert_int_equal(dp_reserve_at(p->c, p->space, UINT32_MAX, 1, 1000, &g), -ENODEV);
	assert_int_equal(dp_reserve_at(p->c, p->space + 1, 1, 1, 1000, &g), -EINVAL);
	assert_int_equal(dp_reserve_at(p->c, p->space, 1, 1, DP_WAIT_MS, &g), 1);
	dp_release(p->c, &g);
	dp_flush(p->c);
	end(p);
}

static void test_no_devices(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct dp_grant g;

	(void)state;
	defaults(p, &limits, 0, 0);
	begin(p, &limits);
	assert_int_equal(dp_reserve_at(p->c, p->space, 1, 1, 1000, &g), -EOPNOTSUPP);
	assert_int_equal(dp_reserve_at(p->c, p->space, 0, 1, DP_WAIT_MS, &g), 1);
	end(p);
}

/* DRAM is full of what is leased. */
static void fill_dram(struct pool *p, struct chain *here, uint32_t n, struct kvp_lease *l)
{
	for (uint32_t i = 0; i < n; i++)
		put(p, p->c, &here[i], 4, 100 + i, HERE);
	usleep(200000);
	for (uint32_t i = 0; i < n; i++) {
		here[i].n = found(p, p->c, &here[i], KVP_TIERS_DRAM);
		if (here[i].n)
			lease(p->c, &here[i], &l[i]);
	}
}

/* What waits on a device for room in DRAM is not given up for that room, but for what is written there. */
static void test_behind_waits(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct chain here[64], *k = calloc(200, sizeof(*k));
	struct kvp_lease in_dram[64], l[200];
	struct kvpd_limits limits;
	struct dp_grant g;
	uint64_t evicted;
	uint32_t n = 0;

	(void)state;
	defaults(p, &limits, 1, 4 * MIB);
	limits.share = 6 * MIB;
	begin(p, &limits);
	fill_dram(p, here, 64, in_dram);
	evicted = kvp_load_acquire(&p->c->view.cat->stats.evictions);
	for (; n < 8; n++)
		put(p, p->c, &k[n], 1, 1 + n, THERE);
	/* It is tried once a second. */
	usleep(2500000);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(found(p, p->c, &k[i], DEVICE_FIRST), 1);
	assert_int_equal(kvp_load_acquire(&p->c->view.cat->stats.evictions), evicted);
	for (uint32_t i = 0; i < n; i++)
		lease(p->c, &k[i], &l[i]);
	for (; n < 200; n++) {
		chain_init(&k[n], 1, 1 + n);
		if (dp_reserve_at(p->c, p->space, THERE, 1, 5000, &g) != 1)
			break;
		dp_fill(&g, row(&k[n], 0), T);
		assert_int_equal(dp_commit(p->c, p->space, &g, dp_root(), row(&k[n], 0), T,
					 KVP_SQE_RELEASE, &k[n].block[0]),
			0);
		lease(p->c, &k[n], &l[n]);
	}
	assert_in_range(n, 16, 199);
	/* All of them could go, to DRAM if there was room: one does, and no more than one. */
	for (uint32_t i = 0; i < n; i++)
		kvp_lease_drop(&l[i]);
	assert_int_equal(dp_reserve_at(p->c, p->space, THERE, 1, DP_WAIT_MS, &g), 1);
	assert_true(kvp_load_acquire(&p->c->view.cat->stats.evictions) <= evicted + 2);
	dp_release(p->c, &g);
	dp_flush(p->c);
	free(k);
	end(p);
}

/* DRAM full of another space's blocks, twice as large, of which every fourth is leased and the others are deleted. */
static uint32_t thin_out_dram(struct pool *p, struct kvp_lease ret_lease[35])
{
	uint32_t other = dp_large_space(p->c, "other", 2 * BLOCK), n = 0;
	struct chain *k = calloc(140, sizeof(*k));

	for (uint32_t i = 0; i < 140; i++) {
		chain_init(&k[i], 1, 5000 + i);
		assert_int_equal(
			dp_put_at(p->c, other, HERE, dp_root(), row(&k[i], 0), T, &k[i].block[0]),
			0);
	}
	for (uint32_t i = 0; i < 140; i++) {
		uint32_t id = k[i].block[0].id;

		if (i % 4)
			delete_block(p->c, &k[i].block[0]);
		else if (kvp_word_birth(word_of(p->c, &k[i], 0)) == k[i].block[0].birth)
			n += !kvp_lease_take(p->c->page, 0, &p->c->view.blocks[id], id,
				word_of(p->c, &k[i], 0), &ret_lease[n]);
	}
	dp_flush(p->c);
	dp_await_most(&p->w, "blocks", n);
	free(k);
	return n;
}

/*
 * What lies on the device alone does not go for what is written there while memory of another class is on its way to
 * where it can be copied. That is waited for 50 ms: an answer that took as long proves nothing.
 */
static void test_behind_awaits(void **state)
{
	uint32_t proven = 0;

	(void)state;
	for (uint32_t tries = 0; tries < 100 && !proven; tries++) {
		struct pool *p = calloc(1, sizeof(*p));
		struct chain *k = calloc(4, sizeof(*k));
		struct kvpd_limits limits;
		struct kvp_lease l[35];
		uint32_t leased, n = 0;
		uint64_t began;

		defaults(p, &limits, 1, UINT64_C(4) * BLOCK);
		limits.share = 16 * MIB;
		begin(p, &limits);
		leased = thin_out_dram(p, l);
		usleep(20000); /* what was looked for in vain is looked for again */
		began = now_ms();
		for (uint32_t i = 0; i < 4; i++)
			put(p, p->c, &k[i], 1, 1 + i, THERE);
		dp_push(p->c, &(struct kvp_sqe){ .op = KVP_OP_RESERVE,
				      .grant = THERE,
				      .space = (uint16_t)p->space,
				      .count = 1 });
		usleep(10000);
		for (uint32_t i = 0; i < 4; i++)
			n += found(p, p->c, &k[i], DEVICE_FIRST);
		if (now_ms() - began < 40) {
			assert_int_equal(n, 4);
			proven++;
		}
		for (uint32_t i = 0; i < leased; i++)
			kvp_lease_drop(&l[i]);
		dp_flush(p->c);
		free(k);
		end(p);
	}
	assert_int_equal(proven, 1);
}

/* What lies on a device that is not there keeps nothing on another one from being copied. */
static void test_behind_two(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain stays, k[4];

	(void)state;
	defaults(p, &limits, 2, 4 * MIB);
	faults(p, "copy=die@1#0,open=die@1#1,open=die@1#2,open=die@1#3,open=die@1#4,open=die@1#5,"
		  "open=die@1#6");
	begin(p, &limits);
	put(p, p->c, &stays, 2, 9, THERE);
	AWAIT(&p->w, kvp_load_acquire(&p->c->view.devices[0].state) == KVP_DEVICE_DOWN);
	for (uint32_t i = 0; i < 4; i++)
		put(p, p->c, &k[i], 2, 1 + i, THERE + 1);
	for (uint32_t i = 0; i < 4; i++)
		AWAIT(&p->w, found(p, p->c, &k[i], KVP_TIERS_DRAM) == 2);
	assert_int_equal(found(p, p->c, &stays, KVP_TIERS_DRAM), 0);
	end(p);
}

/* What is written again where it did not lie lies there from then on. */
static void test_both(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct dp_block again;
	struct chain k;
	uint64_t word;

	(void)state;
	defaults(p, &limits, 1, 4 * MIB);
	begin(p, &limits);
	put(p, p->c, &k, 6, 1, HERE);
	word = word_of(p->c, &k, 3);
	assert_int_equal(
		found(p, p->c, &k, KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_RECIPE, KVP_TIER_RECIPE)), 0);
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(
			dp_put_at(p->c, p->space, THERE, above(&k, i), row(&k, i), T, &again), 0);
		assert_int_equal(again.id, k.block[i].id);
		assert_true(again.flags & KVP_CQE_DUPLICATE);
	}
	assert_true(word == word_of(p->c, &k, 3));
	assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), 6);
	assert_int_equal(
		found(p, p->c, &k, KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_RECIPE, KVP_TIER_RECIPE)), 6);
	assert_int_equal(found(p, p->c, &k, KVP_TIERS_DRAM), 6);
	dp_check(&p->w);
	/* A third time it is nothing new. */
	assert_int_equal(dp_put_at(p->c, p->space, THERE, dp_root(), row(&k, 0), T, &again), 0);
	dp_check(&p->w);
	put(p, p->c, &k, 6, 2, THERE);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(dp_put(p->c, p->space, above(&k, i), row(&k, i), T, &again), 0);
	assert_int_equal(found(p, p->c, &k, KVP_TIERS_DRAM), 6);
	assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), 6);
	end(p);
}

/* A commit that waits for its moment. */
static void test_until(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct kvp_sqe sqe = { .op = KVP_OP_COMMIT, .parent_kind = KVP_PARENT_ROOT, .tokens = T };
	struct dp_grant g;
	struct kvp_cqe cqe;
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, 4 * MIB);
	begin(p, &limits);
	chain_init(&k, 1, 1);
	assert_int_equal(dp_reserve_at(p->c, p->space, THERE, 1, DP_WAIT_MS, &g), 1);
	memcpy(p->c->page->staging[g.index], k.tokens, T * sizeof(k.tokens[0]));
	sqe.grant = g.index;
	sqe.grant_generation = g.generation;
	sqe.space = (uint16_t)p->space;
	sqe.until = kvp_until(3, 7);
	sqe.serial = dp_push(p->c, &sqe);
	assert_int_equal(dp_next(p->c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, KVP_CQE_PARKED);
	assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), 0);
	/* The device writes until then. */
	dp_fill(&g, k.tokens, T);
	kvp_store_seq(&p->c->page->done[3].value, 7);
	assert_int_equal(write(p->c->at.wake_fd, &(uint64_t){ 1 }, 8), 8);
	assert_int_equal(dp_next(p->c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, KVP_CQE_LATE);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), 1);
	dp_release(p->c, &g);
	dp_flush(p->c);
	end(p);
}

static int looked_for_on_ledger(struct kvpd_ledger *l, void *arg)
{
	(void)arg;
	return !kvpd_list_empty(&l->marks);
}

/* A block that waits for value 1 and so on of timeline 3. */
static void commit_waits(struct pool *p, uint32_t value, struct dp_grant *ret_grant)
{
	struct kvp_sqe sqe = { .op = KVP_OP_COMMIT, .parent_kind = KVP_PARENT_ROOT, .tokens = T };
	struct kvp_cqe cqe;
	struct chain k;

	chain_init(&k, 1, value);
	assert_int_equal(dp_reserve_at(p->c, p->space, THERE, 1, DP_WAIT_MS, ret_grant), 1);
	dp_fill(ret_grant, k.tokens, T);
	memcpy(p->c->page->staging[ret_grant->index], k.tokens, T * sizeof(k.tokens[0]));
	sqe.grant = ret_grant->index;
	sqe.grant_generation = ret_grant->generation;
	sqe.space = (uint16_t)p->space;
	sqe.until = kvp_until(3, value);
	sqe.serial = dp_push(p->c, &sqe);
	assert_int_equal(dp_next(p->c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, KVP_CQE_PARKED);
}

/*
 * A device wakes nobody when it writes a moment: the ledger looks for it, while it is worth while. Here the test may have been
 * away for longer, and the library would wake the ledger: again then.
 */
static void test_marks(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct dp_grant g;
	struct kvp_cqe cqe;
	uint32_t seen = 0;

	(void)state;
	defaults(p, &limits, 1, 4 * MIB);
	begin(p, &limits);
	for (uint32_t value = 1; value <= 20 && !seen; value++) {
		commit_waits(p, value, &g);
		usleep(2000);
		kvp_store_seq(&p->c->page->done[3].value, value);
		seen = dp_next(p->c, 2000, &cqe) == 0;
		if (!seen) {
			assert_int_equal(write(p->c->at.wake_fd, &(uint64_t){ 1 }, 8), 8);
			assert_int_equal(dp_next(p->c, DP_WAIT_MS, &cqe), 0);
		}
		assert_int_equal(cqe.flags, KVP_CQE_LATE);
		assert_int_equal(cqe.status, 0);
		dp_release(p->c, &g);
		dp_flush(p->c);
	}
	assert_true(seen);
	/* What does not come is not looked for without end. */
	commit_waits(p, 30, &g);
	for (uint32_t i = 0; kvpd_ledger_ask(p->w.ledger, looked_for_on_ledger, NULL); i++) {
		assert_true(i < DP_WAIT_MS / 10);
		usleep(10000);
	}
	kvp_store_seq(&p->c->page->done[3].value, 30);
	assert_int_equal(write(p->c->at.wake_fd, &(uint64_t){ 1 }, 8), 8);
	assert_int_equal(dp_next(p->c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.status, 0);
	dp_release(p->c, &g);
	/* Nor for one that has gone meanwhile. */
	commit_waits(p, 40, &g);
	p->c = dp_detach(p->c);
	p->c = dp_attach(&p->w, p->w.tenant);
	assert_int_equal(kvpd_ledger_ask(p->w.ledger, looked_for_on_ledger, NULL), 0);
	end(p);
}

/* ---- clients that die ----------------------------------------------------------------------- */

/*
 * What a dead client was granted nobody else is ever granted; what it committed is read where it is, and goes
 * first when room is wanted.
 */
static void test_dies(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct dp_grant lost[4], g[16];
	struct dp_client *other;
	struct chain k, own;
	uint32_t dead = UINT32_MAX;
	int n;

	(void)state;
	defaults(p, &limits, 1, 2 * MIB);
	begin(p, &limits);
	other = dp_attach(&p->w, p->w.tenant);
	(void)dp_large_space(other, "m", BLOCK);
	put(p, other, &k, 2, 1, THERE);
	n = dp_reserve_at(other, p->space, THERE, 2, DP_WAIT_MS, lost);
	assert_true(n > 0);
	for (int i = 0; i < n; i++)
		dead = lost[i].extent;
	dp_detach(other);
	/* Its lost slots are not among all that another one can get. */
	for (uint32_t i = 0; i < 100; i++) {
		n = dp_reserve_at(p->c, p->space, THERE, 16, 100, g);
		assert_true(n > 0 || n == -EAGAIN);
		for (int j = 0; j < n; j++)
			assert_true(g[j].extent != dead ||
				    p->c->extent[dead].generation !=
					    kvp_load_acquire(&p->c->view.extents[dead].generation));
		for (int j = 0; j < n; j++)
			dp_release(p->c, &g[j]);
		dp_flush(p->c);
	}
	assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), 2);
	dp_check(&p->w);
	/* As much as all of the device: its arena goes, and is charged no more. */
	for (uint32_t i = 0; i < 5; i++)
		put(p, p->c, &own, 40, 2 + i, THERE);
	AWAIT(&p->w, kvp_load_acquire(&p->c->view.extents[dead].state) != KVP_EXTENT_LIVE ||
			     found(p, p->c, &k, DEVICE_FIRST) == 2);
	end(p);
}

/* ---- room ----------------------------------------------------------------------------------- */

/* What is leased stays; the rest goes for what comes. */
static void test_room(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct kvp_lease l;
	uint64_t words[4];
	struct chain a, b;

	(void)state;
	defaults(p, &limits, 1, 2 * MIB);
	begin(p, &limits);
	put(p, p->c, &a, 4, 1, THERE);
	lease(p->c, &a, &l);
	for (uint32_t i = 0; i < 4; i++)
		words[i] = where_of(p->c, &a, i, KVP_TIER_VRAM);
	for (uint32_t i = 0; i < 8; i++)
		put(p, p->c, &b, 6, 10 + i, THERE);
	assert_int_equal(found(p, p->c, &b, DEVICE_FIRST), 6);
	assert_int_equal(found(p, p->c, &a, DEVICE_FIRST), 4);
	for (uint32_t i = 0; i < 4; i++)
		assert_true(words[i] == where_of(p->c, &a, i, KVP_TIER_VRAM));
	kvp_lease_drop(&l);
	end(p);
}

/* What was copied there goes for what is written there, and the reverse. */
static void test_vault(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct kvp_cqe cqe;
	struct chain a, b;

	(void)state;
	defaults(p, &limits, 1, MIB); /* 16 blocks */
	begin(p, &limits);
	put(p, p->c, &a, 16, 1, HERE);
	for (uint32_t i = 0; i < 200; i++) {
		struct kvp_sqe sqe = {
			.op = KVP_OP_WARM,
			.parent_kind = KVP_PARENT_BLOCK,
			.parent_id = a.block[15].id,
			.parent_birth = a.block[15].birth,
		};
		uint32_t serial = dp_push(p->c, &sqe);

		do
			assert_int_equal(dp_next(p->c, DP_WAIT_MS, &cqe), 0);
		while (cqe.serial != serial || cqe.flags & KVP_CQE_PARKED);
		if (cqe.more == 16)
			break;
		usleep(5000);
	}
	assert_int_equal(cqe.more, 16);
	/* All of the share is a vault segment now: it is given up. */
	put(p, p->c, &b, 4, 2, THERE);
	assert_int_equal(found(p, p->c, &b, DEVICE_FIRST), 4);
	assert_int_equal(found(p, p->c, &a, KVP_TIERS_DRAM), 16);
	assert_true(device_figure(&p->w, "charged_bytes") <= MIB);
	end(p);
}

/* ---- room where nothing can be copied --------------------------------------------------------- */

/*
 * A chain fills the device, and nothing can be copied: its end does not go for its own next block while the session
 * writes, which it does for a tenth of a second after a block. An answer that took as long proves nothing.
 */
static void test_own_tip(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	uint32_t proven = 0;
	struct dp_grant g;
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, 2 * MIB); /* 16 slots for arenas */
	faults(p, "copy=fail:5");
	begin(p, &limits);
	for (uint32_t i = 0; i < 60 && proven < 3; i++) {
		uint64_t began;
		int r;

		chain_init(&k, 16, 1 + i);
		k.n = 15;
		put_on(p, p->c, &k, 0, THERE);
		k.n = 16;
		began = now_ms();
		put_on(p, p->c, &k, 15, THERE);
		r = dp_reserve_at(p->c, p->space, THERE, 1, 0, &g);
		if (now_ms() - began < 90) {
			assert_int_equal(r, -EAGAIN);
			assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), 16);
			proven++;
		} else if (r == 1) {
			dp_release(p->c, &g);
		}
	}
	assert_int_equal(proven, 3);
	end(p);
}

/* A block there and one below it in DRAM; false: there is no slot for it, whatever is waited for. */
static bool put_pair(struct pool *p, struct chain *k, uint32_t seed)
{
	struct dp_grant g;

	chain_init(k, 2, seed);
	if (dp_reserve_at(p->c, p->space, THERE, 1, 500, &g) != 1)
		return false;
	dp_fill(&g, row(k, 0), T);
	assert_int_equal(dp_commit(p->c, p->space, &g, dp_root(), row(k, 0), T, KVP_SQE_RELEASE,
				 &k->block[0]),
		0);
	put_on(p, p->c, k, 1, HERE);
	return true;
}

/* How many requests it takes to have the one block that can go make way for another, in a new daemon. */
static uint32_t ask_beside_parents(void)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	uint32_t n = 0, asked = 1;
	struct chain pair[MOST], one;
	struct dp_grant g;

	defaults(p, &limits, 1, 6 * MIB); /* 48 slots for arenas; one request tries 16 times */
	faults(p, "copy=fail:5");
	begin(p, &limits);
	while (n < MOST && put_pair(p, &pair[n], 1 + n))
		n++;
	assert_in_range(n, 40, MOST - 1);
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(found(p, p->c, &pair[i], DEVICE_FIRST), 2);
	delete_block(p->c, &pair[n - 1].block[1]);
	delete_block(p->c, &pair[n - 1].block[0]);
	put(p, p->c, &one, 1, 1000, THERE);
	usleep(150000); /* the session writes no more */
	for (; dp_reserve_at(p->c, p->space, THERE, 1, 0, &g) != 1; asked++)
		assert_true(asked < 1000);
	dp_release(p->c, &g);
	for (uint32_t i = 0; i + 1 < n; i++)
		assert_int_equal(found(p, p->c, &pair[i], DEVICE_FIRST), 2);
	end(p);
	return asked;
}

/*
 * Blocks that lie on the device alone with others below them, in DRAM, cannot go; they are not tried one after the other
 * until a request has come to its end. What was written last makes way, for the first request if nothing delays it: mostly.
 */
static void test_parents_there(void **state)
{
	uint32_t at_once = 0;

	(void)state;
	for (uint32_t i = 0; i < 9 && at_once < 3; i++)
		at_once += ask_beside_parents() == 1;
	assert_int_equal(at_once, 3);
}

/* ---- the device fails ----------------------------------------------------------------------- */

static void test_worker_dies(void **state)
{
	static const char *const what[] = { "make=die@1#0", "make=fail:12@1#0", "make=slow:200",
		"make=die@2#0", "take=slow:100,make=die@2#0" };

	(void)state;
	for (uint32_t i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
		struct pool *p = calloc(1, sizeof(*p));
		struct kvpd_limits limits;
		struct chain a, b;
		struct dp_block no;
		uint32_t tries = 0;
		int r;

		defaults(p, &limits, 1, 8 * MIB);
		faults(p, what[i]);
		begin(p, &limits);
		chain_init(&a, 60, 1);
		for (a.n = 0; a.n < 60 && tries < 6000; tries++) {
			r = dp_put_at(p->c, p->space, THERE, above(&a, a.n), row(&a, a.n), T,
				&a.block[a.n]);
			if (r == 0)
				a.n++;
			else
				assert_true(r == -EAGAIN || r == -ENODEV);
			/* DRAM is there all the time. */
			if (r < 0) {
				chain_init(&b, 1, 100 + tries);
				assert_int_equal(
					dp_put(p->c, p->space, dp_root(), row(&b, 0), T, &no), 0);
				usleep(20000);
			}
		}
		assert_int_equal(a.n, 60);
		assert_true(found(p, p->c, &a, DEVICE_FIRST) > 0);
		end(p);
	}
}

/* ---- what a reader has found and not leased yet ---------------------------------------------- */

struct meanwhile {
	struct pool *p;
	struct dp_client *writer;
	struct chain *k, other;
	uint32_t times; /* something was found */
};

/* The writer's arena is emptied and goes: what was found there is not mapped any more. */
static void writer_goes(void *ctx)
{
	struct meanwhile *m = ctx;

	if (m->times++)
		return;
	dp_detach(m->writer);
	dp_await_most(&m->p->w, "arena_bytes", 0);
}

/* The last block goes, and another one is written into its slot. */
static void slot_is_used(void *ctx)
{
	struct meanwhile *m = ctx;
	struct dp_block *last = &m->k->block[m->k->n - 1];
	uint64_t where = where_of(m->p->c, m->k, m->k->n - 1, KVP_TIER_VRAM);
	uint64_t offset =
		kvp_load_acquire(&m->p->c->view.blocks[last->id].payload[KVP_TIER_VRAM].offset);

	if (m->times++)
		return;
	delete_block(m->p->c, last);
	dp_flush(m->p->c);
	dp_await_most(&m->p->w, "blocks", m->k->n - 1);
	put(m->p, m->p->c, &m->other, 1, 2, THERE);
	assert_true(where_of(m->p->c, &m->other, 0, KVP_TIER_VRAM) == where);
	assert_true(kvp_load_acquire(&m->p->c->view.blocks[m->other.block[0].id]
					      .payload[KVP_TIER_VRAM]
					      .offset) == offset);
}

/* It is found anew: bytes count under a lease alone. */
static void test_meanwhile(void **state)
{
	for (uint32_t i = 0; i < 2; i++) {
		struct pool *p = calloc(1, sizeof(*p));
		struct meanwhile m = { .p = p };
		struct kvpd_limits limits;
		struct chain k;

		(void)state;
		defaults(p, &limits, 1, 4 * MIB);
		begin(p, &limits);
		m.k = &k;
		m.writer = i ? p->c : dp_attach(&p->w, p->w.tenant);
		(void)dp_large_space(m.writer, "m", BLOCK);
		put(p, m.writer, &k, 4, 1, i ? THERE : HERE);
		/* A block that is being copied is deleted later. */
		AWAIT(&p->w, found(p, p->c, &k, KVP_TIERS_DRAM) == 4);
		p->w.between = i ? slot_is_used : writer_goes;
		p->w.between_ctx = &m;
		assert_int_equal(found(p, p->c, &k, DEVICE_FIRST), i ? 3 : 4);
		assert_int_equal(m.times, 2);
		p->w.between = NULL;
		end(p);
	}
}

/* ---- anything ------------------------------------------------------------------------------- */

/* 0: it is not up. */
static pid_t worker(struct dp_world *w)
{
	json_t *answer, *device;
	pid_t pid = 0;

	assert_int_equal(dp_admin(w, "{\"verb\": \"devices\"}", &answer), 0);
	device = json_array_get(json_object_get(answer, "devices"), 0);
	if (!strcmp(json_string_value(json_object_get(device, "state")), "up"))
		pid = (pid_t)json_integer_value(json_object_get(device, "pid"));
	json_decref(answer);
	return pid;
}

/* A new chain, as far as there is room. */
static void put_some(struct pool *p, struct dp_client *c, struct chain *k, unsigned *seed)
{
	struct dp_grant g;
	uint32_t n = k->n;
	int r = 0;

	for (k->n = 0; r == 0 && k->n < n; k->n += r == 0) {
		r = dp_reserve_at(c, p->space, (uint32_t)rand_r(seed) % 2, 1, 60, &g);
		if (r == 1) {
			dp_fill(&g, row(k, k->n), T);
			r = dp_commit(c, p->space, &g, above(k, k->n), row(k, k->n), T,
				KVP_SQE_RELEASE, &k->block[k->n]);
		}
		assert_true(
			r == 0 || r == -EAGAIN || r == -ECANCELED || r == -ENOSPC || r == -ENODEV);
	}
}

static int warm_all(struct dp_client *c, const struct chain *k)
{
	const struct dp_block *tip = &k->block[k->n - 1];
	struct kvp_cqe cqe;
	uint32_t n = dp_push(c, &(struct kvp_sqe){ .op = KVP_OP_WARM,
					.parent_kind = KVP_PARENT_BLOCK,
					.parent_id = tip->id,
					.parent_birth = tip->birth });

	do
		assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
	while (cqe.serial != n || cqe.flags & KVP_CQE_PARKED);
	return cqe.status;
}

static void delete_last(struct dp_client *c, struct chain *k)
{
	k->n--;
	delete_block(c, &k->block[k->n]);
}

static struct dp_client *attach(struct pool *p)
{
	struct dp_client *c = dp_attach(&p->w, p->w.tenant);

	(void)dp_large_space(c, "m", BLOCK);
	return c;
}

/* `kills`: the worker too, while it copies. */
static void any_round(
	struct pool *p, struct dp_client **who, struct chain *k, unsigned *seed, bool kills)
{
	struct dp_grant g[3];
	pid_t pid;
	int r;

	switch (rand_r(seed) % 6) {
	case 0:
	case 1:
		chain_init(k, 1 + (uint32_t)rand_r(seed) % 20, 10 + p->w.round);
		put_some(p, *who, k, seed);
		break;
	case 2:
		if (k->n)
			delete_last(*who, k);
		break;
	case 3:
		(void)dp_reserve_at(*who, p->space, (uint32_t)rand_r(seed) % 2, 3, 100, g);
		dp_detach(*who);
		*who = attach(p);
		break;
	default:
		r = k->n ? warm_all(*who, k) : 0;
		assert_true(r == 0 || r == -ENOENT || r == -ENOSPC ||
			    (kills && (r == -EAGAIN || r == -ENODEV || r == -EIO)));
	}
	pid = kills && rand_r(seed) % 8 == 0 ? worker(&p->w) : 0;
	/* One that was killed may not be known to be gone yet. */
	if (pid && pid != p->killed) {
		assert_int_equal(kill(pid, SIGKILL), 0);
		p->killed = pid;
	}
	(void)found(p, p->c, k, DEVICE_FIRST);
}

static void anything(bool kills)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct chain *k = calloc(8, sizeof(*k));
	const char *text = getenv("KVP_TEST_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : 11;
	struct kvpd_limits limits;
	struct dp_client *c[3];

	print_message("KVP_TEST_SEED=%u\n", seed);
	defaults(p, &limits, 1, 3 * MIB);
	limits.share = 12 * MIB;
	limits.max_blocks = 100;
	limits.recipe_blocks = 50;
	begin(p, &limits);
	for (uint32_t i = 0; i < 3; i++)
		c[i] = attach(p);
	AWAIT(&p->w, worker(&p->w) > 0);
	for (p->w.round = 0; p->w.round < (kills ? 120 : 400); p->w.round++) {
		struct chain *one = &k[rand_r(&seed) % 8];

		any_round(p, &c[rand_r(&seed) % 3], one, &seed, kills);
		if (p->w.round % 20 == 19)
			dp_check(&p->w);
	}
	assert_true(!kills == !p->killed);
	free(k);
	end(p);
}

/* Anything at any time, by clients that come and go, against what the catalog says and `check` counts. */
static void test_anything(void **state)
{
	(void)state;
	anything(false);
}

static void test_anything_killed(void **state)
{
	(void)state;
	anything(true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there),
		cmocka_unit_test(test_behind),
		cmocka_unit_test(test_spill),
		cmocka_unit_test(test_deleted),
		cmocka_unit_test(test_behind_fails),
		cmocka_unit_test(test_behind_waits),
		cmocka_unit_test(test_behind_awaits),
		cmocka_unit_test(test_behind_two),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_no_devices),
		cmocka_unit_test(test_both),
		cmocka_unit_test(test_until),
		cmocka_unit_test(test_marks),
		cmocka_unit_test(test_dies),
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_vault),
		cmocka_unit_test(test_own_tip),
		cmocka_unit_test(test_parents_there),
		cmocka_unit_test(test_worker_dies),
		cmocka_unit_test(test_meanwhile),
		cmocka_unit_test(test_anything),
		cmocka_unit_test(test_anything_killed),
	};

	if (getenv("ONLY"))
		cmocka_set_test_filter(getenv("ONLY"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
