/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks on devices: warmed while they are leased, read where they were copied to, taken from there for
 * others, with workers that die and drivers that fail.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "shm/kvp_ring.h"
#include "tests/daemon/ledger/dp_world.h"

#define T     16u
#define MIB   (UINT64_C(1) << 20)
#define BLOCK (64u << 10)
#define MOST  64u /* blocks of a chain here */

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

static void begin(struct pool *p, const struct kvpd_limits *limits)
{
	dp_start(&p->w, limits);
	p->c = dp_attach(&p->w, p->w.tenant);
	p->space = dp_large_space(p->c, "m", BLOCK);
}

static void put(struct pool *p, struct dp_client *c, struct chain *k, uint32_t n, uint32_t seed)
{
	struct dp_ref parent = dp_root();

	(void)p;
	k->n = n;
	for (uint32_t i = 0; i < n * T; i++)
		k->tokens[i] = seed * 100000 + i;
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(
			dp_put(c, p->space, parent, k->tokens + (size_t)i * T, T, &k->block[i]), 0);
		parent = dp_ref(&k->block[i]);
	}
}

static struct kvp_sqe warm_of(const struct chain *k, uint32_t n, uint32_t device)
{
	return (struct kvp_sqe){
		.op = KVP_OP_WARM,
		.grant = device,
		.count = n,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = k->block[k->n - 1].id,
		.parent_birth = k->block[k->n - 1].birth,
	};
}

/* The completion of this serial; whatever comes before it is passed over. */
static void answer(struct dp_client *c, uint32_t serial, struct kvp_cqe *ret)
{
	do
		assert_int_equal(dp_next(c, DP_WAIT_MS, ret), 0);
	while (ret->serial != serial);
	assert_int_equal(ret->op, KVP_OP_WARM);
}

static void parked(struct dp_client *c, uint32_t serial)
{
	struct kvp_cqe cqe;

	answer(c, serial, &cqe);
	assert_int_equal(cqe.flags, KVP_CQE_PARKED);
	assert_int_equal(cqe.status, 0);
}

static void late(struct dp_client *c, uint32_t serial, struct kvp_cqe *ret)
{
	parked(c, serial);
	answer(c, serial, ret);
	assert_int_equal(ret->flags, KVP_CQE_LATE);
}

static int warm(struct dp_client *c, struct kvp_sqe sqe, uint32_t *ret_there)
{
	struct kvp_cqe cqe;

	late(c, dp_push(c, &sqe), &cqe);
	*ret_there = cqe.more;
	return cqe.status;
}

/* What is refused at once. */
static int refused(struct dp_client *c, struct kvp_sqe sqe)
{
	struct kvp_cqe cqe;

	answer(c, dp_push(c, &sqe), &cqe);
	assert_int_equal(cqe.flags, 0);
	return cqe.status;
}

static void lease(struct dp_client *c, const struct chain *k, struct kvp_lease *ret)
{
	uint32_t id = k->block[k->n - 1].id;
	uint64_t word = kvp_load_acquire(&c->view.blocks[id].word);

	assert_int_equal(kvp_lease_take(c->page, 0, &c->view.blocks[id], id, word, ret), 0);
}

/* Does the block have a payload there, and is it what was put? As a reader sees it, under a lease. */
static bool lies(struct dp_client *c, const struct chain *k, uint32_t i, uint32_t tier)
{
	const struct kvp_block *b = &c->view.blocks[k->block[i].id];
	struct kvp_hit hit = { .id = k->block[i].id, .tier = (uint16_t)tier };
	struct kvp_lease lease;

	do {
		hit.word = kvp_load_acquire(&b->word);
		kvp_payload_read(b, hit.word, tier, &hit.where, &hit.offset);
		if (kvp_word_birth(hit.word) != k->block[i].birth || !hit.where)
			return false;
	} while (kvp_word_state(hit.word) != KVP_BLOCK_LIVE || !dp_lease(c, &hit, 1, &lease));
	if (tier == KVP_TIER_VRAM) {
		const struct kvp_shm_extent *x = &c->view.extents[kvp_where_extent(hit.where)];

		assert_int_equal(kvp_load_acquire(&x->tier), KVP_TIER_VRAM);
		assert_int_equal(kvp_load_acquire(&x->kind), KVP_EXTENT_VAULT);
		assert_true(kvp_load_acquire(&b->payload[tier].checksum) != 0);
	}
	assert_true(dp_payload_right(c, &hit, k->tokens + (size_t)i * T, T));
	kvp_lease_drop(&lease);
	return true;
}

static uint32_t count(struct dp_client *c, const struct chain *k, uint32_t tier)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < k->n; i++)
		n += lies(c, k, i, tier);
	return n;
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

static void test_appears(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	const struct kvp_shm_device *d;
	struct kvp_lease l;
	struct chain k;
	uint32_t there;
	uint64_t word;

	(void)state;
	defaults(p, &limits, 1, 4 * MIB);
	begin(p, &limits);
	put(p, p->c, &k, 20, 1);
	lease(p->c, &k, &l);
	word = kvp_load_acquire(&p->c->view.blocks[k.block[3].id].word);
	/* A run of less than the chain ends at the tip. */
	assert_int_equal(warm(p->c, warm_of(&k, 5, 0), &there), 0);
	assert_int_equal(there, 5);
	assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 5);
	assert_true(lies(p->c, &k, 15, KVP_TIER_VRAM));
	assert_int_equal(warm(p->c, warm_of(&k, 0, 0), &there), 0);
	assert_int_equal(there, 20);
	assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 20);
	assert_int_equal(count(p->c, &k, KVP_TIER_DRAM), 20);
	assert_true(word == kvp_load_acquire(&p->c->view.blocks[k.block[3].id].word));
	d = &p->c->view.devices[0];
	assert_int_equal(kvp_load_acquire(&d->state), KVP_DEVICE_UP);
	assert_int_equal(d->pool_bytes, 4 * MIB);
	assert_int_equal(kvp_load_relaxed(&d->to_device_bytes), 20 * BLOCK);
	assert_int_equal(kvp_load_relaxed(&p->c->view.devices[1].state), KVP_DEVICE_FREE);
	/* All of it is there already. */
	assert_int_equal(warm(p->c, warm_of(&k, 0, 0), &there), 0);
	assert_int_equal(there, 20);
	assert_int_equal(kvp_load_relaxed(&d->to_device_bytes), 20 * BLOCK);
	assert_int_equal(device_figure(&p->w, "blocks"), 20);
	assert_int_equal(device_figure(&p->w, "warmed_total"), 20);
	assert_int_equal(device_figure(&p->w, "dropped_total"), 0);
	assert_int_equal(device_figure(&p->w, "charged_bytes"), 2 * MIB);
	kvp_lease_drop(&l);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

static void test_refused(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct dp_client *other;
	struct kvp_sqe sqe;
	struct chain k;

	(void)state;
	defaults(p, &limits, 2, 4 * MIB);
	limits.device_share[1] = 0;
	begin(p, &limits);
	put(p, p->c, &k, 3, 1);
	assert_int_equal(refused(p->c, warm_of(&k, 3, 1)), -ENODEV);
	assert_int_equal(refused(p->c, warm_of(&k, 3, 2)), -ENODEV);
	assert_int_equal(refused(p->c, warm_of(&k, 3, UINT32_MAX)), -ENODEV);
	assert_int_equal(refused(p->c, warm_of(&k, KVP_WARM_BLOCKS + 1, 0)), -EINVAL);
	sqe = warm_of(&k, 3, 0);
	sqe.flags = KVP_SQE_RELEASE;
	assert_int_equal(refused(p->c, sqe), -EINVAL);
	sqe = warm_of(&k, KVP_WARM_EARLY_BLOCKS + 1, 0);
	sqe.flags = KVP_SQE_EARLY;
	assert_int_equal(refused(p->c, sqe), -EINVAL);
	sqe = warm_of(&k, 3, 0);
	sqe.parent_kind = KVP_PARENT_SERIAL;
	assert_int_equal(refused(p->c, sqe), -EINVAL);
	sqe = warm_of(&k, 3, 0);
	sqe.parent_id = limits.max_blocks + limits.recipe_blocks;
	assert_int_equal(refused(p->c, sqe), -EINVAL);
	sqe = warm_of(&k, 3, 0);
	sqe.parent_birth++;
	assert_int_equal(refused(p->c, sqe), -ENOENT);
	other = dp_attach(&p->w, p->w.tenant);
	assert_int_equal(refused(other, warm_of(&k, 3, 0)), -EACCES);
	assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 0);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

static void test_no_devices(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain k;

	(void)state;
	defaults(p, &limits, 0, 0);
	begin(p, &limits);
	put(p, p->c, &k, 3, 1);
	assert_int_equal(refused(p->c, warm_of(&k, 3, 0)), -EOPNOTSUPP);
	dp_stop(&p->w);
	free(p);
}

/* What is leased stays, on the device too; what is not goes from there and from nowhere else. */
static void test_room(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain a, b;
	struct kvp_lease l, m;
	uint32_t there;
	uint64_t words[16];

	(void)state;
	defaults(p, &limits, 1, MIB); /* 16 blocks */
	begin(p, &limits);
	put(p, p->c, &a, 12, 1);
	put(p, p->c, &b, 10, 2);
	lease(p->c, &a, &l);
	lease(p->c, &b, &m);
	assert_int_equal(warm(p->c, warm_of(&a, 0, 0), &there), 0);
	for (uint32_t i = 0; i < 12; i++)
		words[i] = kvp_load_acquire(&p->c->view.blocks[a.block[i].id].word);
	assert_int_equal(warm(p->c, warm_of(&b, 0, 0), &there), -ENOSPC);
	assert_int_equal(there, 4);
	assert_int_equal(count(p->c, &a, KVP_TIER_VRAM), 12);
	for (uint32_t i = 0; i < 12; i++)
		assert_true(words[i] == kvp_load_acquire(&p->c->view.blocks[a.block[i].id].word));
	kvp_lease_drop(&l);
	assert_int_equal(warm(p->c, warm_of(&b, 0, 0), &there), 0);
	assert_int_equal(there, 10);
	assert_int_equal(count(p->c, &b, KVP_TIER_VRAM), 10);
	assert_int_equal(count(p->c, &a, KVP_TIER_VRAM), 6);
	assert_int_equal(count(p->c, &a, KVP_TIER_DRAM), 12);
	for (uint32_t i = 0; i < 12; i++)
		assert_int_equal(
			kvp_word_state(kvp_load_acquire(&p->c->view.blocks[a.block[i].id].word)),
			KVP_BLOCK_LIVE);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* The tip that is leased does not lie on the device; what lies above it does, and stays. */
static void test_leased_below(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain a, upper, b;
	struct kvp_lease l, m;
	uint32_t there;

	(void)state;
	defaults(p, &limits, 1, MIB);
	begin(p, &limits);
	put(p, p->c, &a, 20, 1);
	put(p, p->c, &b, 10, 2);
	upper = a;
	upper.n = 12;
	assert_int_equal(warm(p->c, warm_of(&upper, 0, 0), &there), 0);
	lease(p->c, &a, &l);
	lease(p->c, &b, &m);
	assert_int_equal(warm(p->c, warm_of(&b, 0, 0), &there), -ENOSPC);
	assert_int_equal(count(p->c, &upper, KVP_TIER_VRAM), 12);
	kvp_lease_drop(&l);
	assert_int_equal(warm(p->c, warm_of(&b, 0, 0), &there), 0);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* Leases of a chain, of which only the upper blocks lie on the device, that come and go all the time. */
struct flicker {
	struct dp_client *c;
	const struct chain *chain;
	uint32_t upper;
	_Atomic bool stop;
	_Atomic uint32_t held, wrong; /* leases with blocks there; those under which one went */
};

#define FLICKER_SPINS 2000u

static uint64_t there_of(const struct flicker *f, uint32_t i)
{
	return kvp_load_acquire(
		&f->c->view.blocks[f->chain->block[i].id].payload[KVP_TIER_VRAM].where);
}

static uint64_t word_of(const struct flicker *f, uint32_t i)
{
	return kvp_load_acquire(&f->c->view.blocks[f->chain->block[i].id].word);
}

/* As a match does: words, lease, words again. Then what lies on the device stays until it ends. */
static void flicker_once(struct flicker *f)
{
	uint32_t tip = f->chain->n - 1, id = f->chain->block[tip].id, n = 0;
	uint64_t words[MOST], where[MOST], word = word_of(f, tip);
	struct kvp_lease lease;
	bool good = kvp_word_state(word) == KVP_BLOCK_LIVE;

	for (uint32_t i = 0; i < f->upper; i++) {
		words[i] = word_of(f, i);
		good = good && kvp_word_state(words[i]) == KVP_BLOCK_LIVE;
	}
	if (!good || kvp_lease_take(f->c->page, 1, &f->c->view.blocks[id], id, word, &lease) < 0)
		return;
	for (uint32_t i = 0; i < f->upper; i++) {
		where[i] = there_of(f, i);
		n += where[i] != 0;
		good = good && word_of(f, i) == words[i];
	}
	for (uint32_t i = 0; good && i < FLICKER_SPINS; i++)
		kvp_cpu_relax();
	for (uint32_t i = 0; good && i < f->upper; i++)
		f->wrong += where[i] && there_of(f, i) != where[i];
	f->held += good && n;
	kvp_lease_drop(&lease);
}

static void *flicker_main(void *arg)
{
	struct flicker *f = arg;

	while (!f->stop) {
		flicker_once(f);
		for (uint32_t i = 0; i < FLICKER_SPINS; i++)
			kvp_cpu_relax();
	}
	return NULL;
}

/* A lease may come after leases were looked at and before a copy is taken: the proof sees it. */
static void test_leased_meanwhile(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain a, upper, b;
	struct flicker f;
	pthread_t thread;
	bool went = false; /* copies of the one chain for those of the other */
	uint32_t there;

	(void)state;
	defaults(p, &limits, 1, MIB); /* 16 blocks */
	begin(p, &limits);
	put(p, p->c, &a, 20, 1);
	put(p, p->c, &b, 10, 2);
	upper = a;
	upper.n = 12;
	f = (struct flicker){ .c = p->c, .chain = &a, .upper = upper.n };
	assert_int_equal(pthread_create(&thread, NULL, flicker_main, &f), 0);
	for (uint32_t i = 0; i < 20000 && (i < 1000 || !f.held); i++) {
		(void)warm(p->c, warm_of(&upper, 0, 0), &there);
		(void)warm(p->c, warm_of(&b, 0, 0), &there);
		went = went || there > 16 - upper.n;
	}
	f.stop = true;
	pthread_join(thread, NULL);
	assert_true(f.held > 0);
	assert_true(went);
	assert_int_equal(f.wrong, 0);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* A block that leaves DRAM leaves the device. */
static void test_both_go(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain a, b;
	uint32_t there;

	(void)state;
	defaults(p, &limits, 1, 2 * MIB);
	limits.max_blocks = 24;
	limits.recipe_blocks = 100;
	begin(p, &limits);
	put(p, p->c, &a, 16, 1);
	assert_int_equal(warm(p->c, warm_of(&a, 0, 0), &there), 0);
	put(p, p->c, &b, 20, 2);
	for (uint32_t i = 0; i < 16; i++)
		assert_true(lies(p->c, &a, i, KVP_TIER_DRAM) == lies(p->c, &a, i, KVP_TIER_VRAM));
	assert_true(count(p->c, &a, KVP_TIER_VRAM) <= 4);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* Whoever has a guaranteed share has it, whatever another tenant does. */
static void test_shares(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits, others;
	struct dp_client *other;
	uint32_t second, space, there;
	struct chain a, b;
	struct kvp_lease l;

	(void)state;
	defaults(p, &limits, 1, 2 * MIB);
	limits.device_share[0] = MIB;
	begin(p, &limits);
	others = limits;
	/* Asks for more than is left. */
	others.device_share[0] = 2 * MIB;
	assert_int_equal(kvpd_tenant_open(p->w.ledger, "two", &others, &second), 0);
	other = dp_attach(&p->w, second);
	space = p->space;
	put(p, p->c, &a, 20, 1);
	lease(p->c, &a, &l);
	assert_int_equal(warm(p->c, warm_of(&a, 0, 0), &there), -ENOSPC);
	assert_int_equal(there, 16);
	p->space = dp_large_space(other, "m", BLOCK);
	put(p, other, &b, 16, 2);
	lease(other, &b, &l);
	assert_int_equal(warm(other, warm_of(&b, 0, 0), &there), 0);
	assert_int_equal(there, 16);
	assert_int_equal(count(other, &b, KVP_TIER_VRAM), 16);
	p->space = space;
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* Blocks of another size find all segments taken by the first: one is emptied for them. */
static void test_classes(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain a, b;
	uint32_t there, first, tries = 0;
	int r;

	(void)state;
	defaults(p, &limits, 1, 2 * MIB);
	begin(p, &limits);
	put(p, p->c, &a, 32, 1);
	assert_int_equal(warm(p->c, warm_of(&a, 0, 0), &there), 0);
	first = p->space;
	p->space = dp_large_space(p->c, "n", 2 * BLOCK);
	put(p, p->c, &b, 4, 2);
	while ((r = warm(p->c, warm_of(&b, 0, 0), &there)) == -ENOSPC && tries++ < 12000)
		usleep(5000);
	assert_int_equal(r, 0);
	assert_int_equal(there, 4);
	assert_int_equal(count(p->c, &b, KVP_TIER_VRAM), 4);
	p->space = first;
	assert_int_equal(count(p->c, &a, KVP_TIER_DRAM), 32);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* An extent that is to be emptied and in which all is leased waits: others are not emptied instead. */
static void test_leased_drains(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct kvp_lease l;
	struct chain a, b, large;
	uint32_t there, first, tries = 0;
	int r;

	(void)state;
	defaults(p, &limits, 1, 2 * MIB); /* 16 blocks in each of 2 segments */
	begin(p, &limits);
	first = p->space;
	put(p, p->c, &a, 16, 1);
	put(p, p->c, &b, 16, 2);
	assert_int_equal(warm(p->c, warm_of(&a, 0, 0), &there), 0);
	lease(p->c, &a, &l);
	assert_int_equal(warm(p->c, warm_of(&b, 0, 0), &there), 0);
	p->space = dp_large_space(p->c, "n", 2 * BLOCK);
	put(p, p->c, &large, 4, 3);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(warm(p->c, warm_of(&large, 0, 0), &there), -ENOSPC);
		usleep(5000);
	}
	assert_int_equal(count(p->c, &a, KVP_TIER_VRAM), 16);
	assert_int_equal(count(p->c, &b, KVP_TIER_VRAM), 16);
	kvp_lease_drop(&l);
	while ((r = warm(p->c, warm_of(&large, 0, 0), &there)) == -ENOSPC && tries++ < 12000)
		usleep(5000);
	assert_int_equal(r, 0);
	assert_int_equal(count(p->c, &large, KVP_TIER_VRAM), 4);
	assert_int_equal(count(p->c, &b, KVP_TIER_VRAM), 16);
	p->space = first;
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* For a block that the share has no room for nothing is emptied. */
static void test_too_large(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain a, b;
	uint32_t there;

	(void)state;
	defaults(p, &limits, 1, MIB);
	begin(p, &limits);
	put(p, p->c, &a, 16, 1);
	assert_int_equal(warm(p->c, warm_of(&a, 0, 0), &there), 0);
	p->space = dp_large_space(p->c, "n", 2 * MIB);
	put(p, p->c, &b, 1, 2);
	for (uint32_t i = 0; i < 20; i++) {
		assert_int_equal(warm(p->c, warm_of(&b, 0, 0), &there), -ENOSPC);
		assert_int_equal(there, 0);
		usleep(5000);
	}
	assert_int_equal(count(p->c, &a, KVP_TIER_VRAM), 16);
	assert_int_equal(device_figure(&p->w, "dropped_total"), 0);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

static void faults(struct pool *p, const char *what)
{
	p->device[0].driver = (char *)(uintptr_t) "fault";
	p->device[0].faults = (char *)(uintptr_t)what;
}

/* The worker dies with copies under way; what was there stays, and the rest comes with the next. */
static void test_worker_dies(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	uint32_t there, tries = 0;
	struct kvp_lease l;
	struct chain k;
	int r;

	(void)state;
	defaults(p, &limits, 1, 8 * MIB);
	faults(p, "copy=die@1#1,submit=die@2#0");
	begin(p, &limits);
	put(p, p->c, &k, 60, 1);
	lease(p->c, &k, &l);
	while ((r = warm(p->c, warm_of(&k, 0, 0), &there)) != 0 && tries++ < 3000) {
		assert_true(r == -EAGAIN || r == -ENODEV || r == -EIO);
		assert_int_equal(count(p->c, &k, KVP_TIER_DRAM), 60);
		usleep(20000);
	}
	assert_int_equal(r, 0);
	assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 60);
	kvp_lease_drop(&l);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

static int warm_or_not(struct dp_client *c, struct kvp_sqe sqe)
{
	struct kvp_cqe cqe;

	answer(c, dp_push(c, &sqe), &cqe);
	while (cqe.flags & (KVP_CQE_PARKED | KVP_CQE_PLACE))
		answer(c, cqe.serial, &cqe);
	return cqe.status;
}

/* No driver's failure is more than an answer. */
static void test_driver_fails(void **state)
{
	static const struct {
		const char *what;
		int status, or_status;
	} each[] = {
		{ "make=fail:12", -ENOSPC, -ENOSPC },
		{ "make=fail:5", -ENOSPC, -ENOSPC },
		{ "make=fail:11@1", 0, 0 },
		{ "add=fail:5", -EIO, -EIO },
		{ "add=fail:12", -ENOMEM, -ENOMEM },
		{ "submit=fail:5", -EIO, -EIO },
		{ "submit=fail:11@1", 0, 0 },
		{ "copy=fail:5", -EIO, -EIO },
		{ "copy=fail:5@1", -EIO, -EIO },
		{ "copy=die", -EAGAIN, -ENODEV },
		{ "open=fail:12", -ENODEV, -ENODEV },
		{ "caps=fail:5", -ENODEV, -ENODEV },
		{ "drop=slow:50", 0, 0 },
		{ "hostdrop=slow:50", 0, 0 },
		{ "copy=slow:20", 0, 0 },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(each) / sizeof(each[0]); i++) {
		struct pool *p = calloc(1, sizeof(*p));
		struct kvpd_limits limits;
		struct kvp_sqe sqe;
		struct chain k;
		int r;

		defaults(p, &limits, 1, 8 * MIB);
		faults(p, each[i].what);
		begin(p, &limits);
		put(p, p->c, &k, 20, 1);
		sqe = warm_of(&k, 0, 0);
		sqe.flags = i % 2 ? KVP_SQE_EARLY : 0;
		r = warm_or_not(p->c, sqe);
		print_message("%-18s %s\n", each[i].what, r ? strerror(-r) : "done");
		assert_true(r == each[i].status || r == each[i].or_status);
		if (!r)
			assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 20);
		assert_int_equal(count(p->c, &k, KVP_TIER_DRAM), 20);
		dp_check(&p->w);
		dp_stop(&p->w);
		free(p);
	}
}

/*
 * A device has the arena mapped out of which it copies. When its client is gone, what lay there moves and
 * the kernel is asked whether anybody has it still: by then the device has not.
 */
static void test_arena_goes(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	uint32_t there, serial;
	struct kvp_cqe cqe;
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, 8 * MIB);
	p->device[0].copy_rate = 8 * MIB;
	begin(p, &limits);
	for (uint32_t i = 0; i < 3; i++) {
		struct dp_client *writer = dp_attach(&p->w, p->w.tenant);
		struct kvp_sqe sqe;

		(void)dp_large_space(writer, "m", BLOCK);
		put(p, writer, &k, 20, 1 + i);
		sqe = warm_of(&k, 0, 0);
		serial = dp_push(p->c, &sqe);
		answer(p->c, serial, &cqe);
		assert_int_equal(cqe.flags, KVP_CQE_PARKED);
		/* With copies out of it under way, and after them. */
		if (i)
			usleep(1000 * i);
		else
			answer(p->c, serial, &cqe);
		dp_detach(writer);
		if (i)
			answer(p->c, serial, &cqe);
		assert_int_equal(cqe.status, 0);
		assert_int_equal(cqe.more, 20);
		dp_await_most(&p->w, "arena_bytes", 0);
		assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 20);
		assert_int_equal(count(p->c, &k, KVP_TIER_DRAM), 20);
		dp_check(&p->w);
	}
	/* Out of the vault it goes as well. */
	assert_int_equal(warm(p->c, warm_of(&k, 0, 0), &there), 0);
	dp_stop(&p->w);
	free(p);
}

/* What a bit has fallen out of on the way is not shown. */
static void test_damage(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct dp_client *writer;
	uint32_t there;
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, 8 * MIB);
	faults(p, "copy=damage");
	begin(p, &limits);
	/* Blocks whose client is gone move to the vault, and have a checksum from then on. */
	writer = dp_attach(&p->w, p->w.tenant);
	(void)dp_large_space(writer, "m", BLOCK);
	put(p, writer, &k, 10, 1);
	dp_detach(writer);
	dp_await_most(&p->w, "arena_bytes", 0);
	assert_int_equal(count(p->c, &k, KVP_TIER_DRAM), 10);
	assert_int_equal(warm(p->c, warm_of(&k, 0, 0), &there), -EBADMSG);
	assert_int_equal(there, 0);
	assert_int_equal(count(p->c, &k, KVP_TIER_DRAM), 10);
	assert_true(device_figure(&p->w, "damaged_total") > 0);
	assert_false(lies(p->c, &k, 0, KVP_TIER_VRAM));
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* Sessions that end take their tickets with them, wherever these are. */
static void test_session_ends(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, 8 * MIB);
	p->device[0].copy_rate = 16 * MIB;
	begin(p, &limits);
	put(p, p->c, &k, 60, 1);
	for (uint32_t i = 0; i < 30; i++) {
		struct dp_client *c = dp_attach(&p->w, p->w.tenant);
		uint32_t n = 1 + i % (KVP_WARM_TICKETS + 2);

		(void)dp_large_space(c, "m", BLOCK);
		for (uint32_t j = 0; j < n; j++) {
			struct kvp_sqe sqe = warm_of(&k, 1 + (i * 7 + j) % 60, 0);

			sqe.flags = (j % 2 ? KVP_SQE_PREFETCH : 0) | (j % 3 ? 0 : KVP_SQE_EARLY);
			dp_push(c, &sqe);
		}
		if (i % 3)
			usleep(1000 * (i % 7));
		dp_detach(c);
	}
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* ---- told where blocks come to lie ---------------------------------------------------------- */

static uint32_t push_early(struct dp_client *c, const struct chain *k, uint32_t n)
{
	struct kvp_sqe sqe = warm_of(k, n, 0);

	sqe.flags = KVP_SQE_EARLY;
	return dp_push(c, &sqe);
}

/* The next completion of the ticket says where block i of the chain comes to lie, `above` blocks of the run being above. */
static struct kvp_cqe place(
	struct dp_client *c, uint32_t serial, const struct chain *k, uint32_t i, uint32_t above)
{
	struct kvp_cqe cqe;

	answer(c, serial, &cqe);
	assert_int_equal(cqe.flags, KVP_CQE_PLACE);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.more, above);
	assert_int_equal(cqe.block, k->block[i].id);
	assert_int_equal(cqe.birth, k->block[i].birth);
	assert_int_equal(cqe.bytes, BLOCK);
	assert_int_equal(cqe.grant, 0);
	assert_int_equal(cqe.grant_generation, 0); /* native */
	return cqe;
}

/* Does the block lie where the completion says? */
static bool lies_at(struct dp_client *c, const struct chain *k, uint32_t i, struct kvp_cqe at)
{
	const struct kvp_block *b = &c->view.blocks[k->block[i].id];
	uint64_t where, offset;

	kvp_payload_read(b, kvp_load_acquire(&b->word), KVP_TIER_VRAM, &where, &offset);
	return where && kvp_where_extent(where) == at.extent && offset == at.offset &&
	       kvp_where_bytes(where) == at.bytes;
}

static int ended(struct dp_client *c, uint32_t serial, uint32_t *ret_there)
{
	struct kvp_cqe cqe;

	answer(c, serial, &cqe);
	assert_int_equal(cqe.flags, KVP_CQE_LATE);
	*ret_there = cqe.more;
	return cqe.status;
}

/* Places are known while the copies still go on, also of what is there; and there the blocks come to lie. */
static void test_early(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct kvp_cqe at[24];
	struct chain k, upper;
	uint32_t there, serial;
	struct kvp_lease l;

	(void)state;
	defaults(p, &limits, 1, 4 * MIB);
	faults(p, "copy=slow:30");
	begin(p, &limits);
	put(p, p->c, &k, 24, 1);
	lease(p->c, &k, &l);
	upper = k;
	upper.n = 6;
	assert_int_equal(warm(p->c, warm_of(&upper, 4, 0), &there), 0); /* blocks 2 to 5 */
	serial = push_early(p->c, &k, 0);
	parked(p->c, serial);
	for (uint32_t i = 0; i < 24; i++)
		at[i] = place(p->c, serial, &k, i, i);
	for (uint32_t i = 2; i < 6; i++)
		assert_true(lies_at(p->c, &k, i, at[i]));
	assert_false(lies(p->c, &k, 23, KVP_TIER_VRAM));
	assert_int_equal(ended(p->c, serial, &there), 0);
	assert_int_equal(there, 24);
	for (uint32_t i = 0; i < 24; i++)
		assert_true(lies_at(p->c, &k, i, at[i]));
	assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 24);
	/* All is there: the places are what they were. */
	serial = push_early(p->c, &k, 3);
	parked(p->c, serial);
	for (uint32_t i = 21; i < 24; i++)
		assert_true(lies_at(p->c, &k, i, place(p->c, serial, &k, i, i - 21)));
	assert_int_equal(ended(p->c, serial, &there), 0);
	assert_int_equal(there, 3);
	kvp_lease_drop(&l);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* Five chains are on their way: as many copies as there may be, and slots for more. */
static void fill(struct dp_client *c, const struct chain *full)
{
	for (uint32_t i = 0; i < 5; i++) {
		uint32_t serial = push_early(c, &full[i], 0);

		parked(c, serial);
		for (uint32_t j = 0; j < MOST; j++)
			(void)place(c, serial, &full[i], j, j);
	}
}

/* More than may be under way at a time: slots are taken all the same, and nobody else brings these blocks meanwhile. */
static void test_early_beyond(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain *full = calloc(5, sizeof(*full)), k;
	uint32_t serial, plain, there;
	struct dp_client *other;
	struct kvp_cqe at[20];
	struct kvp_sqe sqe;

	(void)state;
	defaults(p, &limits, 1, 32 * MIB);
	p->device[0].copy_rate = 16 * MIB;
	begin(p, &limits);
	for (uint32_t i = 0; i < 5; i++)
		put(p, p->c, &full[i], MOST, 1 + i);
	put(p, p->c, &k, 20, 9);
	other = dp_attach(&p->w, p->w.tenant);
	(void)dp_large_space(other, "m", BLOCK);
	fill(other, full);
	serial = push_early(p->c, &k, 0);
	parked(p->c, serial);
	for (uint32_t i = 0; i < 20; i++)
		at[i] = place(p->c, serial, &k, i, i);
	assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 0);
	dp_check(&p->w);
	sqe = warm_of(&k, 0, 0);
	plain = dp_push(other, &sqe);
	parked(other, plain);
	assert_int_equal(ended(p->c, serial, &there), 0);
	assert_int_equal(there, 20);
	assert_int_equal(ended(other, plain, &there), 0);
	assert_int_equal(there, 20);
	for (uint32_t i = 0; i < 20; i++)
		assert_true(lies_at(p->c, &k, i, at[i]));
	assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 20);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(full);
	free(p);
}

/* Its client dies when slots are held for copies that have not begun: they and the blocks are anybody's again. */
static void test_early_killed(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain *full = calloc(5, sizeof(*full)), k;
	struct dp_client *other, *dies;
	uint32_t serial, there;

	(void)state;
	defaults(p, &limits, 1, 32 * MIB);
	p->device[0].copy_rate = 16 * MIB;
	begin(p, &limits);
	for (uint32_t i = 0; i < 5; i++)
		put(p, p->c, &full[i], MOST, 1 + i);
	put(p, p->c, &k, 20, 9);
	other = dp_attach(&p->w, p->w.tenant);
	(void)dp_large_space(other, "m", BLOCK);
	dies = dp_attach(&p->w, p->w.tenant);
	(void)dp_large_space(dies, "m", BLOCK);
	fill(other, full);
	serial = push_early(dies, &k, 0);
	parked(dies, serial);
	for (uint32_t i = 0; i < 20; i++)
		(void)place(dies, serial, &k, i, i);
	dp_detach(dies);
	assert_int_equal(warm(p->c, warm_of(&k, 0, 0), &there), 0);
	assert_int_equal(there, 20);
	dp_check(&p->w);
	/* And at once with the tenant. */
	serial = push_early(p->c, &k, 0);
	parked(p->c, serial);
	dp_stop(&p->w);
	free(full);
	free(p);
}

/*
 * Ahead of need slots are taken only as copies may begin: such a ticket would keep blocks that somebody needs for as long as
 * others fill more than its part of what may be under way.
 */
static void test_early_ahead(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct chain *full = calloc(3, sizeof(*full)), k;
	uint32_t ahead, need, tail;
	struct dp_client *other;
	struct kvp_sqe sqe;

	(void)state;
	defaults(p, &limits, 1, 32 * MIB);
	p->device[0].segment = 32 * MIB;
	p->device[0].copy_rate = MIB / 4; /* hardly any is over before the test is */
	begin(p, &limits);
	for (uint32_t i = 0; i < 3; i++)
		put(p, p->c, &full[i], MOST, 1 + i);
	put(p, p->c, &k, 20, 9);
	other = dp_attach(&p->w, p->w.tenant);
	(void)dp_large_space(other, "m", BLOCK);
	for (uint32_t i = 0; i < 3; i++) {
		need = push_early(p->c, &full[i], 0);
		parked(p->c, need);
		for (uint32_t j = 0; j < MOST; j++)
			(void)place(p->c, need, &full[i], j, j);
	}
	sqe = warm_of(&k, 0, 0);
	sqe.flags = KVP_SQE_EARLY | KVP_SQE_PREFETCH;
	ahead = dp_push(other, &sqe);
	parked(other, ahead);
	/* The device is told of memory meanwhile, and a ticket that took more would have taken it. */
	usleep(200000);
	tail = kvp_load_acquire(&other->page->cq_tail);
	need = push_early(p->c, &k, 0);
	parked(p->c, need);
	for (uint32_t i = 0; i < 20; i++)
		(void)place(p->c, need, &k, i, i);
	assert_int_equal(kvp_load_acquire(&other->page->cq_tail), tail);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(full);
	free(p);
}

/* Places for as many as there is room for, which are what the end counts. */
static void test_early_no_room(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	struct kvp_cqe at[16];
	uint32_t serial, there;
	struct kvp_lease l;
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, MIB); /* 16 blocks */
	begin(p, &limits);
	put(p, p->c, &k, 20, 1);
	lease(p->c, &k, &l);
	serial = push_early(p->c, &k, 0);
	parked(p->c, serial);
	for (uint32_t i = 0; i < 16; i++)
		at[i] = place(p->c, serial, &k, i, i);
	assert_int_equal(ended(p->c, serial, &there), -ENOSPC);
	assert_int_equal(there, 16);
	for (uint32_t i = 0; i < 16; i++)
		assert_true(lies_at(p->c, &k, i, at[i]));
	kvp_lease_drop(&l);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* A copy fails whose slot is known: the end does not count it, and the slot is free for others. */
static void test_early_fails(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	uint32_t serial, there;
	struct kvp_cqe cqe;
	struct chain k;
	uint32_t places = 0;

	(void)state;
	defaults(p, &limits, 1, MIB); /* 16 blocks: all of them */
	faults(p, "copy=fail:5@1");
	begin(p, &limits);
	put(p, p->c, &k, 16, 1);
	serial = push_early(p->c, &k, 0);
	parked(p->c, serial);
	for (answer(p->c, serial, &cqe); cqe.flags == KVP_CQE_PLACE; places++)
		answer(p->c, serial, &cqe);
	assert_int_equal(cqe.flags, KVP_CQE_LATE);
	assert_int_equal(cqe.status, -EIO);
	assert_true(cqe.more < 16 && cqe.more <= places);
	dp_check(&p->w);
	serial = push_early(p->c, &k, 0);
	parked(p->c, serial);
	for (uint32_t i = 0; i < 16; i++)
		(void)place(p->c, serial, &k, i, i);
	assert_int_equal(ended(p->c, serial, &there), 0);
	assert_int_equal(there, 16);
	assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 16);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* A client that does not read its ring is told of no more than that has room for, and of the rest when it has read. */
static void test_early_ring_full(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;
	uint32_t serial, there;
	struct dp_client *c;
	struct kvp_lease l;
	struct chain k;

	(void)state;
	defaults(p, &limits, 1, 4 * MIB);
	begin(p, &limits);
	put(p, p->c, &k, 20, 1);
	c = dp_attach(&p->w, p->w.tenant);
	(void)dp_large_space(c, "m", BLOCK);
	lease(c, &k, &l);
	while (kvp_cq_room(c->page, kvp_load_acquire(&c->page->cq_tail)) > 8) {
		struct kvp_sqe nop = { .op = KVP_OP_NOP };
		uint32_t tail = kvp_load_acquire(&c->page->cq_tail);

		dp_push(c, &nop);
		while (kvp_load_acquire(&c->page->cq_tail) == tail)
			usleep(10);
	}
	serial = push_early(c, &k, 0);
	/* PARKED and six places: the last completions that there is room for. */
	while (kvp_cq_room(c->page, kvp_load_acquire(&c->page->cq_tail)) > 1)
		usleep(100);
	/* Others are served meanwhile, and find what has come so far. */
	assert_int_equal(warm(p->c, warm_of(&k, 0, 0), &there), 0);
	assert_int_equal(kvp_cq_room(c->page, kvp_load_acquire(&c->page->cq_tail)), 1);
	parked(c, serial);
	for (uint32_t i = 0; i < 20; i++)
		assert_true(lies_at(c, &k, i, place(c, serial, &k, i, i)));
	assert_int_equal(ended(c, serial, &there), 0);
	assert_int_equal(there, 20);
	kvp_lease_drop(&l);
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

/* Anything at any time, against what the catalog says and `check` counts. */
static void test_anything(void **state)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct chain *k = calloc(8, sizeof(*k));
	struct kvpd_limits limits;
	unsigned seed = 7;

	(void)state;
	defaults(p, &limits, 1, 2 * MIB);
	limits.share = 12 * MIB;
	limits.max_blocks = 100;
	limits.recipe_blocks = 50;
	begin(p, &limits);
	for (uint32_t i = 0; i < 600; i++) {
		struct chain *one = &k[rand_r(&seed) % 8];
		uint32_t there = 0;

		switch (rand_r(&seed) % 4) {
		case 0:
			put(p, p->c, one, 1 + (uint32_t)rand_r(&seed) % 20, 10 + i);
			break;
		case 1: {
			struct kvp_sqe sqe = { .op = KVP_OP_DELETE,
				.parent_kind = KVP_PARENT_BLOCK,
				.parent_id = one->block[one->n ? one->n - 1 : 0].id,
				.parent_birth = one->block[one->n ? one->n - 1 : 0].birth };

			dp_push(p->c, &sqe);
			one->n -= one->n > 0;
			break;
		}
		default:
			if (one->n) {
				struct kvp_sqe sqe = warm_of(one, (uint32_t)rand_r(&seed) % 20, 0);
				struct kvp_cqe cqe;

				sqe.flags = rand_r(&seed) % 2 ? KVP_SQE_EARLY : 0;
				answer(p->c, dp_push(p->c, &sqe), &cqe);
				while (cqe.flags & (KVP_CQE_PARKED | KVP_CQE_PLACE))
					answer(p->c, cqe.serial, &cqe);
				there = cqe.more;
				assert_true(cqe.status == 0 || cqe.status == -ENOENT ||
					    cqe.status == -ENOSPC);
				assert_true(there <= 20);
			}
		}
		if (i % 50 == 49)
			dp_check(&p->w);
	}
	dp_check(&p->w);
	dp_stop(&p->w);
	free(k);
	free(p);
}

/*
 * D-047. What its driver is given to copy for a run of blocks is the same, however many layers they have: at most
 * one piece a block, and one for all that lie side by side and wait together.
 */
static void test_pieces(void **state)
{
	static const uint32_t layers[] = { 1, 16, 64 };

	(void)state;
	for (uint32_t i = 0; i < sizeof(layers) / sizeof(layers[0]); i++) {
		struct pool *p = calloc(1, sizeof(*p));
		struct kvp_space_canon canon;
		struct kvp_msg_space space;
		struct kvpd_limits limits;
		char why[KVP_MSG_TEXT];
		struct chain k;
		uint32_t there;

		defaults(p, &limits, 1, 4 * MIB);
		begin(p, &limits);
		dp_canon(&canon, "layers", layers[i]);
		for (uint32_t l = 0; l < layers[i]; l++)
			canon.layers[l].kv_heads = (uint16_t)(BLOCK / 256 / layers[i]);
		assert_int_equal(dp_open(p->c, &canon, why, sizeof(why), &space), 0);
		p->space = space.space;
		put(p, p->c, &k, 40, 1);
		assert_int_equal(warm(p->c, warm_of(&k, 0, 0), &there), 0);
		assert_int_equal(there, 40);
		assert_int_equal(count(p->c, &k, KVP_TIER_VRAM), 40);
		assert_int_equal(
			kvp_load_relaxed(&p->c->view.devices[0].to_device_bytes), 40 * BLOCK);
		assert_true(device_figure(&p->w, "pieces_total") <= 40);
		print_message("%u layers: %u pieces for 40 blocks\n", layers[i],
			(unsigned)device_figure(&p->w, "pieces_total"));
		dp_check(&p->w);
		dp_stop(&p->w);
		free(p);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_pieces),
		cmocka_unit_test(test_appears),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_no_devices),
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_leased_below),
		cmocka_unit_test(test_leased_meanwhile),
		cmocka_unit_test(test_both_go),
		cmocka_unit_test(test_shares),
		cmocka_unit_test(test_classes),
		cmocka_unit_test(test_leased_drains),
		cmocka_unit_test(test_too_large),
		cmocka_unit_test(test_worker_dies),
		cmocka_unit_test(test_driver_fails),
		cmocka_unit_test(test_arena_goes),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_session_ends),
		cmocka_unit_test(test_early),
		cmocka_unit_test(test_early_beyond),
		cmocka_unit_test(test_early_killed),
		cmocka_unit_test(test_early_ahead),
		cmocka_unit_test(test_early_no_room),
		cmocka_unit_test(test_early_fails),
		cmocka_unit_test(test_early_ring_full),
		cmocka_unit_test(test_anything),
	};

	if (getenv("ONLY"))
		cmocka_set_test_filter(getenv("ONLY"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
