/* SPDX-License-Identifier: Apache-2.0 */
/* What the advisor's ranking names comes to the device ahead of need; what it ranks higher stays there. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#include "tests/daemon/ledger/dp_world.h"

#define T      16u
#define BLOCK  (64u << 10)
#define MOST   8u    /* blocks of a chain */
#define ROUNDS 2000u /* of uses, before a test gives up: some ms each */

struct chain {
	uint32_t n, seed;
	kvp_token tokens[MOST * T];
	struct dp_block block[MOST];
};

struct pool {
	struct dp_world w;
	struct kvpd_device_entry device;
	struct dp_client *c, *other;
	uint32_t space;
};

static const char *policy; /* NULL: the default one */

/* A device for so many blocks, and an advisor that ranks as often as it may. */
static struct pool *begin(
	uint32_t there, uint32_t prefetch, uint32_t max_blocks, const char *faults)
{
	struct pool *p = calloc(1, sizeof(*p));
	struct kvpd_limits limits;

	dp_defaults(&p->w, &limits);
	p->device = (struct kvpd_device_entry){
		.name = (char *)(uintptr_t) "one",
		.driver = (char *)(uintptr_t)(faults ? "fault" : "host"),
		.faults = (char *)(uintptr_t)faults,
		.worker = getenv("KVPOOL_DEVICE"),
		.bytes = there * (uint64_t)BLOCK,
		.segment = there * (uint64_t)BLOCK,
	};
	limits.device_share[0] = p->device.bytes;
	limits.max_blocks = max_blocks;
	p->w.config.devices = &p->device;
	p->w.config.n_devices = 1;
	if (policy)
		p->w.config.policy = (char *)(uintptr_t)policy;
	p->w.config.advisor = (struct kvpd_advisor_config){
		.on = true, .period_ms = 50, .batch = 256, .prefetch = prefetch
	};
	dp_start(&p->w, &limits);
	p->c = dp_attach(&p->w, p->w.tenant);
	p->other = dp_attach(&p->w, p->w.tenant);
	p->space = dp_large_space(p->c, "m", BLOCK);
	assert_int_equal(dp_large_space(p->other, "m", BLOCK), p->space);
	return p;
}

static void end(struct pool *p)
{
	dp_check(&p->w);
	dp_stop(&p->w);
	free(p);
}

static void put(struct pool *p, struct chain *k, uint32_t n, uint32_t seed)
{
	struct dp_ref parent = dp_root();

	k->n = n;
	k->seed = seed;
	for (uint32_t i = 0; i < n * T; i++)
		k->tokens[i] = seed * 100000 + i;
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(
			dp_put(p->c, p->space, parent, k->tokens + (size_t)i * T, T, &k->block[i]),
			0);
		parent = dp_ref(&k->block[i]);
	}
}

/* Asks that the first n of the chain go to the device. */
static uint32_t ask(struct pool *p, const struct chain *k, uint32_t n)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_WARM,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = k->block[n - 1].id,
		.parent_birth = k->block[n - 1].birth,
	};

	return dp_push(p->c, &sqe);
}

/* The status that the client hears. */
static int warm(struct pool *p, const struct chain *k, uint32_t n)
{
	const uint32_t serial = ask(p, k, n);
	struct kvp_cqe cqe;

	do
		assert_int_equal(dp_next(p->c, DP_WAIT_MS, &cqe), 0);
	while (cqe.serial != serial || cqe.flags & KVP_CQE_PARKED);
	return cqe.status;
}

/* Of the leading n blocks those that a reader finds on the device, byte for byte what was put. */
static uint32_t there(struct pool *p, const struct chain *k, uint32_t n)
{
	struct kvp_hit hit[MOST];
	uint32_t count = 0,
		 found = dp_read(p->c, p->space, k->tokens, n * T,
			 KVP_TIERS(KVP_TIER_VRAM, KVP_TIER_DRAM, KVP_TIER_RECIPE), hit, n);

	for (uint32_t i = 0; i < found; i++)
		count += kvp_load_relaxed(
				 &p->c->view.blocks[hit[i].id].payload[KVP_TIER_VRAM].where) != 0;
	return count;
}

/* Two clients, one after the other, use the first n blocks. */
static void use(struct pool *p, const struct chain *k, uint32_t n)
{
	kvp_touch_push(p->c->page, 0, k->block[n - 1].id, n);
	dp_flush(p->c);
	kvp_touch_push(p->other->page, 0, k->block[n - 1].id, n);
	dp_flush(p->other);
}

static struct kvpd_advisor_figures advisor(struct pool *p)
{
	struct kvpd_advisor_figures a;
	struct kvpd_figures f;

	assert_int_equal(dp_figures(&p->w, NULL, 0, &f), 0);
	a = f.tenant[0].advisor;
	assert_true(a.fetched_used <= a.fetched);
	assert_true(a.fetched <= f.tenant[0].part[0].ahead);
	kvpd_figures_fini(&f);
	return a;
}

/* Of the memory that is held there the part that holds nothing. */
static double fragmentation(struct pool *p)
{
	struct kvpd_figures f;
	double part;

	assert_int_equal(dp_figures(&p->w, NULL, 0, &f), 0);
	part = kvpd_part_fragmentation(&f.tenant[0].part[0]);
	kvpd_figures_fini(&f);
	return part;
}

static uint64_t dropped(struct pool *p)
{
	struct kvpd_figures f;
	uint64_t n;

	assert_int_equal(dp_figures(&p->w, NULL, 0, &f), 0);
	n = f.tenant[0].part[0].dropped;
	kvpd_figures_fini(&f);
	return n;
}

static void nap(void)
{
	const struct timespec pause = { 0, 2000000 };

	nanosleep(&pause, NULL);
}

/* The first n blocks are used until so many lie on the device. */
static void use_until(struct pool *p, const struct chain *k, uint32_t n, uint32_t come)
{
	for (uint32_t i = 0; there(p, k, k->n) < come; i++) {
		assert_true(i < ROUNDS);
		use(p, k, n);
		nap();
	}
	assert_int_equal(there(p, k, k->n), come);
}

/* Until rankings have been made that know of all that was told so far. */
static void ranked(struct pool *p, const struct chain *k, uint32_t n)
{
	const uint64_t seen = advisor(p).rankings;

	for (uint32_t i = 0; advisor(p).rankings < seen + 3; i++) {
		assert_true(i < ROUNDS);
		use(p, k, n);
		nap();
	}
}

/* D-079: what is next to the blocks in use and lies on no device comes, as long as it is used; nothing else does. */
static void test_neighbours_come(void **state)
{
	struct pool *p = begin(32, 4, 1024, NULL);
	struct chain a, b;

	(void)state;
	put(p, &a, 8, 1);
	put(p, &b, 8, 2);
	assert_int_equal(warm(p, &a, 4), 0);
	use_until(p, &a, 4, 5);
	ranked(p, &a, 4);
	assert_int_equal(there(p, &a, 8), 5); /* the one after next is nobody's neighbour yet */
	assert_int_equal(advisor(p).fetched, 1);
	assert_int_equal(advisor(p).fetched_used, 0);
	use_until(p, &a, 5, 6);
	assert_int_equal(advisor(p).fetched, 2);
	assert_int_equal(advisor(p).fetched_used, 1); /* each counts once */
	use_until(p, &a, 6, 7);
	use_until(p, &a, 7, 8);
	assert_int_equal(advisor(p).fetched, 4);
	assert_int_equal(advisor(p).fetched_used, 3);
	ranked(p, &a, 8);
	assert_int_equal(advisor(p).fetched, 4);
	assert_int_equal(there(p, &b, 8), 0); /* used by nobody, near nothing */
	assert_int_equal(dropped(p), 0);
	end(p);
}

/* Nor does anything where the configuration does not ask for it, or nobody reads on the device. */
static void test_not_asked(void **state)
{
	struct pool *p = begin(32, 0, 1024, NULL);
	struct chain a;

	(void)state;
	put(p, &a, 8, 1);
	assert_int_equal(warm(p, &a, 4), 0);
	ranked(p, &a, 4);
	assert_int_equal(there(p, &a, 8), 4);
	assert_int_equal(advisor(p).suggested, 0);
	end(p);
	p = begin(32, 4, 1024, NULL);
	put(p, &a, 8, 1);
	ranked(p, &a, 4);
	assert_int_equal(there(p, &a, 8), 0);
	assert_int_equal(advisor(p).suggested, 0);
	end(p);
}

/* On a device that is full a block comes for one that the ranking scores lower, one for one. */
static void test_lower_ranks_go(void **state)
{
	struct pool *p = begin(8, 4, 1024, NULL);
	struct chain a, b;

	(void)state;
	put(p, &a, 6, 1);
	put(p, &b, 8, 2);
	assert_int_equal(warm(p, &a, 4), 0);
	assert_true(fragmentation(p) == .5); /* */
	assert_int_equal(warm(p, &b, 4), 0);
	assert_true(fragmentation(p) == 0);
	/* So often that they are neighbours, as blocks that are used together. */
	for (uint32_t i = 0; i < 20; i++)
		use(p, &a, 6);
	use_until(p, &a, 4, 6);
	assert_int_equal(there(p, &b, 8), 2);
	assert_int_equal(dropped(p), 2);
	assert_int_equal(there(p, &b, 2), 2); /* those below went first */
	assert_int_equal(advisor(p).fetched, 2);
	assert_true(fragmentation(p) == 0);
	end(p);
}

/* But for none that came back soon twice, whatever is used less: that goes when the policy names it, and not before. */
static void test_what_came_back_twice_stays(void **state)
{
	struct chain a, b, x;
	struct pool *p;

	(void)state;
	policy = "lru";
	p = begin(8, 4, 1024, NULL);
	policy = NULL;
	put(p, &a, 6, 1);
	put(p, &b, 8, 2);
	put(p, &x, 1, 3);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(warm(p, &x, 1), 0);
		use(p, &b, 8);
		assert_int_equal(warm(p, &b, 8), 0);
		assert_int_equal(there(p, &x, 1), 0);
	}
	assert_int_equal(warm(p, &x, 1), 0);
	assert_int_equal(warm(p, &a, 4), 0);
	assert_int_equal(there(p, &x, 1), 1);
	assert_int_equal(there(p, &b, 8), 3);
	for (uint32_t i = 0; i < 20; i++)
		use(p, &a, 6);
	use_until(p, &a, 4, 6);
	assert_int_equal(there(p, &x, 1), 1);
	assert_int_equal(there(p, &b, 8), 1);
	end(p);
}

/* And for none that it scores as high. */
static void test_higher_ranks_stay(void **state)
{
	struct pool *p = begin(8, 4, 1024, NULL);
	struct chain a, b;

	(void)state;
	put(p, &a, 8, 1);
	put(p, &b, 8, 2);
	assert_int_equal(warm(p, &a, 4), 0);
	assert_int_equal(warm(p, &b, 4), 0);
	for (uint32_t i = 0; i < 20; i++) {
		use(p, &a, 4);
		use(p, &b, 4);
	}
	for (uint64_t i = 0; i < 3; i++) {
		ranked(p, &a, 4);
		ranked(p, &b, 4);
	}
	assert_true(advisor(p).suggested > 0);
	assert_int_equal(advisor(p).fetched, 0);
	assert_int_equal(there(p, &a, 8), 4);
	assert_int_equal(there(p, &b, 8), 4);
	assert_int_equal(dropped(p), 0);
	end(p);
}

/* Nothing comes by advice while somebody waits for copies that he has asked for. */
static void test_behind_those_who_wait(void **state)
{
	struct pool *p = begin(32, 4, 1024, "submit=slow:250");
	struct kvp_cqe cqe = { 0 };
	struct chain a, b;
	uint32_t serial;

	(void)state;
	put(p, &a, 8, 1);
	put(p, &b, 8, 2);
	assert_int_equal(warm(p, &a, 4), 0);
	serial = ask(p, &b, 8);
	while (cqe.serial != serial)
		assert_int_equal(dp_next(p->c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.flags, KVP_CQE_PARKED);
	for (;;) {
		uint64_t suggested;

		kvp_touch_push(p->other->page, 0, a.block[3].id, 4);
		dp_flush(p->other);
		suggested = advisor(p).suggested;
		if (dp_next(p->c, 0, &cqe) == 0 && cqe.serial == serial)
			break;
		assert_int_equal(suggested, 0);
		nap();
	}
	assert_int_equal(cqe.status, 0);
	use_until(p, &a, 4, 5);
	end(p);
}

/* Whoever asks by himself gets what he asks for, wherever it was on its way, and evicted blocks leave nothing behind. */
static void test_among_others(void **state)
{
	struct pool *p = begin(16, 8, 60, NULL);
	struct chain k[8] = { 0 };
	unsigned seed = 3;

	(void)state;
	for (uint32_t i = 0; i < 400; i++) {
		struct chain *one = &k[rand_r(&seed) % 8];
		uint32_t n = 1 + (uint32_t)rand_r(&seed) % MOST;

		if (!one->n || rand_r(&seed) % 16 == 0) {
			put(p, one, MOST, 10 + i);
			continue;
		}
		if (there(p, one, MOST) > MOST)
			fail();
		if (dp_read(p->c, p->space, one->tokens, n * T, KVP_TIERS_DRAM,
			    (struct kvp_hit[MOST]){ 0 }, n) < n) {
			one->n = 0;
			continue;
		}
		use(p, one, n);
		if (rand_r(&seed) % 4 == 0) {
			int r = warm(p, one, n);

			assert_true(r == 0 || r == -ENOENT || r == -ENOSPC);
		}
		if (i % 100 == 99)
			dp_check(&p->w);
	}
	assert_true(advisor(p).rankings > 0);
	end(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_neighbours_come),
		cmocka_unit_test(test_not_asked),
		cmocka_unit_test(test_lower_ranks_go),
		cmocka_unit_test(test_what_came_back_twice_stays),
		cmocka_unit_test(test_higher_ranks_stay),
		cmocka_unit_test(test_behind_those_who_wait),
		cmocka_unit_test(test_among_others),
	};

	if (getenv("ONLY"))
		cmocka_set_test_filter(getenv("ONLY"));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
