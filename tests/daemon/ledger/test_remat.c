/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recomputation: chains of which something is missing are wanted, and clients that have offered to compute
 * are asked for it, or not. A-043: the ranges are exact. D-045: a miss everywhere becomes a plan.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "tests/daemon/ledger/dp_world.h"

#define T    16u
#define MOST 64u
/* What an offer says of a token that the test commits at once, and of one that it never computes. */
#define SLOW_PS UINT64_C(1000000000000) /* 1 s */
#define FAST_PS UINT64_C(1000000)       /* 1 us */

struct chain {
	uint32_t n;
	kvp_token tokens[MOST * T];
	struct dp_block block[MOST];
};

struct world {
	struct dp_world w;
	struct kvpd_device_entry device;
	struct dp_client *a, *b; /* who wants, who computes */
	uint32_t space, space_b;
	struct chain k;
};

static void begin_with(struct world *x, uint32_t devices, uint64_t copy_rate)
{
	struct kvpd_limits limits;

	dp_defaults(&x->w, &limits);
	limits.recipe_blocks = 512;
	x->device = (struct kvpd_device_entry){
		.name = (char *)(uintptr_t) "first",
		.driver = (char *)(uintptr_t) "host",
		.worker = getenv("KVPOOL_DEVICE"),
		.bytes = UINT64_C(16) << 20,
		.segment = UINT64_C(1) << 20,
		.copy_rate = copy_rate,
	};
	limits.device_share[0] = devices ? x->device.bytes : 0;
	x->w.config.devices = &x->device;
	x->w.config.n_devices = devices;
	dp_start(&x->w, &limits);
	x->a = dp_attach(&x->w, x->w.tenant);
	x->b = dp_attach(&x->w, x->w.tenant);
	x->space = dp_space(x->a, "m", 4);
	x->space_b = dp_space(x->b, "m", 4);
	assert_int_equal(x->space, x->space_b);
}

static void begin(struct world *x)
{
	begin_with(x, 0, 0);
}

static void end(struct world *x)
{
	dp_check(&x->w);
	dp_stop(&x->w);
}

/* Blocks [from, to) of the chain, as an engine computes them. */
static void compute(
	struct dp_client *c, uint32_t space, struct chain *k, uint32_t from, uint32_t to)
{
	for (uint32_t i = from; i < to; i++)
		assert_int_equal(dp_put(c, space, i ? dp_ref(&k->block[i - 1]) : dp_root(),
					 k->tokens + (size_t)i * T, T, &k->block[i]),
			0);
}

static void put(struct world *x, struct chain *k, uint32_t n, uint32_t seed)
{
	k->n = n;
	for (uint32_t i = 0; i < n * T; i++)
		k->tokens[i] = seed * 100000 + i;
	compute(x->a, x->space, k, 0, n);
	dp_flush(x->a);
}

struct dropping {
	struct world *x;
	const struct chain *k;
	uint32_t keep;
};

static int drop_on_ledger(struct kvpd_ledger *l, void *arg)
{
	const struct dropping *d = arg;
	struct kvpd_tenant *t = l->tenant[d->x->w.tenant];

	for (uint32_t i = d->k->n; i > d->keep; i--)
		if (kvpd_block_drop(t, d->k->block[i - 1].id, false, kvpd_now_ns()) < 0)
			return -EBUSY;
	return 0;
}

/* All but the first blocks lose their payload. */
static void drop(struct world *x, const struct chain *k, uint32_t keep)
{
	struct dropping d = { x, k, keep };

	/* What lies in the memory of a client that has gone is being moved, for a while. */
	for (uint32_t i = 0; i < 1000 && kvpd_ledger_ask(x->w.ledger, drop_on_ledger, &d) < 0;
		i++) {
		dp_pump(&x->w);
		usleep(10000);
	}
	assert_int_equal(kvpd_ledger_ask(x->w.ledger, drop_on_ledger, &d), 0);
}

/* ---- entries -------------------------------------------------------------------------------- */

static struct kvp_sqe want_of(const struct chain *k, uint32_t ms, uint32_t flags)
{
	return (struct kvp_sqe){
		.op = KVP_OP_WANT,
		.count = ms ? ms : KVP_WANT_MS_MAX,
		.flags = flags,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = k->block[k->n - 1].id,
		.parent_birth = k->block[k->n - 1].birth,
	};
}

static struct kvp_sqe serve_of(uint32_t space, uint64_t token_ps, uint32_t flags)
{
	return (struct kvp_sqe){
		.op = KVP_OP_SERVE,
		.space = (uint16_t)space,
		.flags = flags,
		.next_lo = token_ps,
		.parent_id = 1u << 20,
	};
}

/* The next completion is of this serial and op. */
static struct kvp_cqe next(struct dp_client *c, uint32_t op, uint32_t serial)
{
	struct kvp_cqe cqe;

	assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
	assert_int_equal(cqe.op, op);
	assert_int_equal(cqe.serial, serial);
	return cqe;
}

static uint32_t ask(struct dp_client *c, struct kvp_sqe sqe)
{
	uint32_t serial = dp_push(c, &sqe);
	struct kvp_cqe cqe = next(c, sqe.op, serial);

	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.flags, KVP_CQE_PARKED);
	return serial;
}

static int refused(struct dp_client *c, struct kvp_sqe sqe)
{
	struct kvp_cqe cqe = next(c, sqe.op, dp_push(c, &sqe));

	assert_int_equal(cqe.flags, 0);
	return cqe.status;
}

static int answered(struct dp_client *c, uint32_t want, uint32_t *ret_there)
{
	struct kvp_cqe cqe = next(c, KVP_OP_WANT, want);

	assert_int_equal(cqe.flags, KVP_CQE_LATE);
	*ret_there = cqe.more;
	return cqe.status;
}

/* The client of this SERVE is asked for exactly blocks [from, to) of the chain. */
static uint64_t asked_for(
	struct dp_client *c, uint32_t serve, const struct chain *k, uint32_t from, uint32_t to)
{
	struct kvp_cqe cqe = next(c, KVP_OP_SERVE, serve);

	assert_int_equal(cqe.flags, KVP_CQE_LATE);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.block, k->block[to - 1].id);
	assert_int_equal(cqe.birth, k->block[to - 1].birth);
	assert_int_equal(cqe.more, to - from);
	return cqe.offset;
}

static struct kvpd_remat_figures figures(struct world *x)
{
	struct kvpd_remat_figures r;
	struct kvpd_figures f;

	assert_int_equal(dp_figures(&x->w, "one", 0, &f), 0);
	r = f.tenant[0].remat;
	kvpd_figures_fini(&f);
	return r;
}

/* ---- what is met ---------------------------------------------------------------------------- */

static void exact_ranges_are_computed(void **state)
{
	struct kvpd_remat_figures f;
	uint32_t want, serve, there;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 10, 1);
	/* Nothing is missing: nobody needs to be asked. */
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), 0);
	assert_int_equal(there, 10);
	for (uint32_t keep = 0; keep < 10; keep += 3) {
		drop(&x, &x.k, keep);
		serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
		want = ask(x.a, want_of(&x.k, 0, 0));
		asked_for(x.b, serve, &x.k, keep, 10);
		compute(x.b, x.space_b, &x.k, keep, 10);
		assert_int_equal(answered(x.a, want, &there), 0);
		assert_int_equal(there, 10);
	}
	f = figures(&x);
	assert_int_equal(f.wants, 5);
	assert_int_equal(f.demands, 4);
	assert_int_equal(f.met, 4);
	assert_int_equal(f.tokens, (10 + 7 + 4 + 1) * T);
	assert_int_equal(f.unmet + f.returned + f.late, 0);
	end(&x);
}

static void a_part_of_a_block_is_computed_as_what_it_was(void **state)
{
	uint32_t want, serve, there;
	struct world x;
	kvp_token rest[5] = { 7, 7, 7, 7, 7 };

	(void)state;
	begin(&x);
	put(&x, &x.k, 2, 1);
	assert_int_equal(dp_put(x.a, x.space, dp_ref(&x.k.block[1]), rest, 5, &x.k.block[2]), 0);
	x.k.n = 3;
	dp_flush(x.a);
	drop(&x, &x.k, 1);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	/* 16 + 5 tokens at a second each. */
	assert_int_equal(asked_for(x.b, serve, &x.k, 1, 3), UINT64_C(21000000000));
	compute(x.b, x.space_b, &x.k, 1, 2);
	assert_int_equal(dp_put(x.b, x.space_b, dp_ref(&x.k.block[1]), rest, 5, &x.k.block[2]), 0);
	assert_int_equal(answered(x.a, want, &there), 0);
	assert_int_equal(there, 3);
	end(&x);
}

static void whoever_commits_it_meets_it(void **state)
{
	uint32_t want, serve, there;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 6, 1);
	drop(&x, &x.k, 2);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 2, 6);
	compute(x.a, x.space, &x.k, 2, 4);
	compute(x.b, x.space_b, &x.k, 4, 6);
	assert_int_equal(answered(x.a, want, &there), 0);
	assert_int_equal(there, 6);
	assert_int_equal(figures(&x).met, 1);
	end(&x);
}

/* Three wants come while the provider computes a fourth; the nearest is next, what nobody waits for last. */
static void the_nearest_demand_is_next(void **state)
{
	uint32_t want[4], serve, there;
	struct chain k[4];
	struct world x;

	(void)state;
	begin(&x);
	for (uint32_t i = 0; i < 4; i++) {
		put(&x, &k[i], 3, i + 1);
		drop(&x, &k[i], 0);
	}
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want[0] = ask(x.a, want_of(&k[0], 0, 0));
	asked_for(x.b, serve, &k[0], 0, 3);
	want[1] = ask(x.a, want_of(&k[1], 2000000, KVP_SQE_PREFETCH));
	want[2] = ask(x.a, want_of(&k[2], 3000000, 0));
	want[3] = ask(x.a, want_of(&k[3], 2500000, 0));
	for (uint32_t i = 0; i < 4; i++) {
		static const uint32_t order[] = { 0, 3, 2, 1 };
		struct chain *c = &k[order[i]];

		if (i) {
			serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
			asked_for(x.b, serve, c, 0, 3);
		}
		compute(x.b, x.space_b, c, 0, 3);
		assert_int_equal(answered(x.a, want[order[i]], &there), 0);
		assert_int_equal(there, 3);
	}
	end(&x);
}

/* ---- decided by cost ------------------------------------------------------------------------ */

static void what_would_take_too_long_is_refused_at_once(void **state)
{
	struct kvp_sqe sqe;
	uint32_t there, serve, want;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 8, 1);
	drop(&x, &x.k, 4);
	/* Nobody offers. */
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), -ENODEV);
	assert_int_equal(there, 4);
	/* 64 tokens at a second each, within 63 seconds. */
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 63000, 0)), &there), -ETIME);
	/* Longer than it computes. */
	sqe = serve_of(x.space, FAST_PS, KVP_SQE_WITHDRAW);
	assert_int_equal(refused(x.b, sqe), 0);
	sqe = serve_of(x.space, SLOW_PS, 0);
	sqe.parent_id = 8 * T - 1;
	serve = ask(x.b, sqe);
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), -ENODEV);
	sqe.flags = KVP_SQE_WITHDRAW;
	assert_int_equal(refused(x.b, sqe), 0);
	/* One token a second: what comes after these 64 has to wait for a minute. */
	sqe = serve_of(x.space, SLOW_PS, 0);
	sqe.count = 1;
	serve = ask(x.b, sqe);
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 4, 8);
	compute(x.b, x.space_b, &x.k, 4, 8);
	assert_int_equal(answered(x.a, want, &there), 0);
	drop(&x, &x.k, 7);
	serve = ask(x.b, sqe);
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 1000, 0)), &there), -ETIME);
	assert_int_equal(figures(&x).demands, 1);
	end(&x);
}

/* Of two who say the same, the one that was quicker is asked; and of two, the one that says less. */
static void the_quicker_provider_is_asked(void **state)
{
	uint32_t serve_a, serve_b, want, there;
	struct dp_client *c;
	struct world x;

	(void)state;
	begin(&x);
	c = dp_attach(&x.w, x.w.tenant);
	assert_int_equal(dp_space(c, "m", 4), x.space);
	put(&x, &x.k, 4, 1);
	drop(&x, &x.k, 0);
	serve_a = ask(c, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 300000, 0));
	asked_for(c, serve_a, &x.k, 0, 4);
	compute(c, x.space, &x.k, 0, 4);
	assert_int_equal(answered(x.a, want, &there), 0);
	drop(&x, &x.k, 0);
	serve_b = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	serve_a = ask(c, serve_of(x.space, SLOW_PS, 0));
	/* Four blocks within 30 seconds: by their word alone, nobody would be asked. */
	want = ask(x.a, want_of(&x.k, 30000, 0));
	asked_for(c, serve_a, &x.k, 0, 4);
	compute(c, x.space, &x.k, 0, 4);
	assert_int_equal(answered(x.a, want, &there), 0);
	(void)serve_b;
	end(&x);
}

/* What is wanted soon waits for the quick one, which is busy, and does not go to one that would be too late. */
static void a_slow_provider_is_not_handed_what_is_near(void **state)
{
	uint32_t serve_c, slow, first, second, there;
	struct dp_client *c;
	struct chain *other = calloc(1, sizeof(*other));
	struct world x;

	(void)state;
	begin(&x);
	c = dp_attach(&x.w, x.w.tenant);
	assert_int_equal(dp_space(c, "m", 4), x.space);
	put(&x, &x.k, 4, 1);
	put(&x, other, 4, 2);
	drop(&x, &x.k, 0);
	drop(&x, other, 0);
	serve_c = ask(c, serve_of(x.space, SLOW_PS / 4, 0)); /* 16 s for four blocks */
	first = ask(x.a, want_of(&x.k, 60000, 0));
	asked_for(c, serve_c, &x.k, 0, 4);
	slow = ask(x.b, serve_of(x.space, SLOW_PS, 0)); /* 64 s */
	second = ask(x.a, want_of(other, 60000, 0));
	compute(c, x.space, &x.k, 0, 4);
	assert_int_equal(answered(x.a, first, &there), 0);
	serve_c = ask(c, serve_of(x.space, SLOW_PS / 4, 0));
	asked_for(c, serve_c, other, 0, 4);
	compute(c, x.space, other, 0, 4);
	assert_int_equal(answered(x.a, second, &there), 0);
	assert_int_equal(figures(&x).demands, 2);
	(void)slow;
	end(&x);
	free(other);
}

/* It ends with the session's use of the space: its number may be another model's afterwards. */
static void an_offer_ends_with_its_space(void **state)
{
	uint32_t serve, want, there;
	struct kvp_msg_id id;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	drop(&x, &x.k, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 4);
	assert_int_equal(figures(&x).offers, 1);
	id = (struct kvp_msg_id){ x.space_b, x.b->view.spaces[x.space_b].generation };
	assert_int_equal(kvpd_space_close(x.w.ledger, x.b->at.session, &id), 0);
	assert_int_equal(answered(x.a, want, &there), -EAGAIN);
	assert_int_equal(figures(&x).offers, 0);
	end(&x);
}

static void an_idle_offer_is_one_while_it_waits(void **state)
{
	uint32_t serve, want, there;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	drop(&x, &x.k, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, KVP_SQE_IDLE));
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 4);
	compute(x.b, x.space_b, &x.k, 0, 4);
	assert_int_equal(answered(x.a, want, &there), 0);
	drop(&x, &x.k, 0);
	assert_int_equal(figures(&x).offers, 0);
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), -ENODEV);
	/* One that is always there is asked when it comes by. */
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 4);
	compute(x.b, x.space_b, &x.k, 0, 4);
	assert_int_equal(answered(x.a, want, &there), 0);
	drop(&x, &x.k, 2);
	assert_int_equal(figures(&x).offers, 1);
	want = ask(x.a, want_of(&x.k, 0, 0));
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	asked_for(x.b, serve, &x.k, 2, 4);
	compute(x.b, x.space_b, &x.k, 2, 4);
	assert_int_equal(answered(x.a, want, &there), 0);
	end(&x);
}

/* Copies are quicker than a provider that says a second for each token: it is asked for what is lost alone. */
static void what_lies_on_a_device_is_loaded(void **state)
{
	uint32_t serve, want, there;
	struct world x;

	(void)state;
	begin_with(&x, 1, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	for (uint32_t round = 0; round < 8; round++) {
		x.k.n = 8;
		for (uint32_t i = 0; i < 8 * T; i++)
			x.k.tokens[i] = 1000000 * (round + 1) + i;
		compute(x.a, x.space, &x.k, 0, 3);
		for (uint32_t i = 3; i < 8; i++)
			assert_int_equal(dp_put_at(x.a, x.space, 1, dp_ref(&x.k.block[i - 1]),
						 x.k.tokens + (size_t)i * T, T, &x.k.block[i]),
				0);
		assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), 0);
		assert_int_equal(there, 8);
	}
	assert_int_equal(figures(&x).demands, 0);
	drop(&x, &x.k, 6);
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 6, 8);
	compute(x.b, x.space_b, &x.k, 6, 8);
	assert_int_equal(answered(x.a, want, &there), 0);
	end(&x);
}

/* A device that has little to do is not a slow one. */
static void a_device_is_not_slow_for_being_idle(void **state)
{
	uint32_t there;
	struct world x;

	(void)state;
	begin_with(&x, 1, 0);
	ask(x.b, serve_of(x.space, SLOW_PS / 100000, 0)); /* 1.3 ms for eight blocks */
	for (uint32_t round = 0; round < 3; round++) {
		x.k.n = 8;
		for (uint32_t i = 0; i < 8 * T; i++)
			x.k.tokens[i] = 1000000 * (round + 1) + i;
		for (uint32_t i = 0; i < 8; i++)
			assert_int_equal(dp_put_at(x.a, x.space, 1,
						 i ? dp_ref(&x.k.block[i - 1]) : dp_root(),
						 x.k.tokens + (size_t)i * T, T, &x.k.block[i]),
				0);
		assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 10000, 0)), &there), 0);
		usleep(round < 2 ? 1100000 : 0); /* a second in which hardly anything is copied */
	}
	assert_int_equal(figures(&x).demands, 0);
	end(&x);
}

/* Nobody computes it, and it takes longer than a second: as long as it gets on, it is waited for. */
static void a_slow_device_is_waited_for(void **state)
{
	uint32_t space, there;
	struct world x;

	(void)state;
	begin_with(&x, 1, UINT64_C(3) << 20);
	space = dp_large_space(x.a, "large", 128 << 10);
	x.k.n = 48;
	for (uint32_t i = 0; i < x.k.n * T; i++)
		x.k.tokens[i] = i;
	for (uint32_t i = 0; i < x.k.n; i++)
		assert_int_equal(dp_put_at(x.a, space, 1, i ? dp_ref(&x.k.block[i - 1]) : dp_root(),
					 x.k.tokens + (size_t)i * T, T, &x.k.block[i]),
			0);
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), 0);
	assert_int_equal(there, x.k.n);
	end(&x);
}

/* ---- providers that fail -------------------------------------------------------------------- */

/* At each block: what it has computed stays, and the next provider is asked for the rest alone. */
static void a_provider_that_dies_is_replaced(void **state)
{
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	for (uint32_t at = 0; at <= 4; at++) {
		struct dp_client *c = dp_attach(&x.w, x.w.tenant);
		uint32_t serve, want, there;

		assert_int_equal(dp_space(c, "m", 4), x.space);
		drop(&x, &x.k, 0);
		serve = ask(c, serve_of(x.space, SLOW_PS / 2, 0));
		want = ask(x.a, want_of(&x.k, 600000, 0));
		asked_for(c, serve, &x.k, 0, 4);
		compute(c, x.space, &x.k, 0, at);
		serve = at < 4 ? ask(x.b, serve_of(x.space, SLOW_PS, 0)) : 0;
		dp_detach(c);
		if (at < 4) {
			asked_for(x.b, serve, &x.k, at, 4);
			compute(x.b, x.space_b, &x.k, at, 4);
		}
		assert_int_equal(answered(x.a, want, &there), 0);
		assert_int_equal(there, 4);
	}
	end(&x);
}

static void without_another_one_nobody_waits_for_a_dead_provider(void **state)
{
	uint32_t serve, want, there;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	drop(&x, &x.k, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 4);
	compute(x.b, x.space_b, &x.k, 0, 1);
	x.b = dp_detach(x.b);
	assert_int_equal(answered(x.a, want, &there), -EAGAIN);
	assert_int_equal(there, 1);
	assert_int_equal(figures(&x).offers, 0);
	end(&x);
}

/* It says a microsecond a token and does nothing: whoever waits is told, and it is not asked again. */
static void a_provider_that_lies_loses_its_offer(void **state)
{
	uint32_t serve, want, there;
	struct kvpd_remat_figures f;
	struct kvp_sqe sqe;
	struct kvp_cqe cqe;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	drop(&x, &x.k, 0);
	sqe = serve_of(x.space, FAST_PS, 0);
	serve = ask(x.b, sqe);
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 4);
	assert_int_equal(answered(x.a, want, &there), -ETIME);
	assert_int_equal(there, 0);
	f = figures(&x);
	assert_int_equal(f.late, 1);
	assert_int_equal(f.offers, 0);
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), -ENODEV);
	/* It hears for how long when it comes, and forgetting the offer does not help. */
	cqe = next(x.b, KVP_OP_SERVE, dp_push(x.b, &sqe));
	assert_int_equal(cqe.status, -ETIME);
	assert_in_range(cqe.retry_ms, 1, 10001);
	sqe.flags = KVP_SQE_WITHDRAW;
	assert_int_equal(refused(x.b, sqe), 0);
	sqe.flags = 0;
	assert_int_equal(refused(x.b, sqe), -ETIME);
	end(&x);
}

/* What it says with a SERVE counts from then on, also if a demand was under way when that came. */
static void new_terms_count_at_once(void **state)
{
	uint32_t serve, want, there;
	struct kvp_sqe sqe;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	drop(&x, &x.k, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 4);
	/* It gives it back, because such a chain is too long for it. */
	sqe = serve_of(x.space, SLOW_PS, 0);
	sqe.parent_id = 3 * T;
	serve = ask(x.b, sqe);
	assert_int_equal(answered(x.a, want, &there), -EAGAIN);
	compute(x.a, x.space, &x.k, 0, 4);
	drop(&x, &x.k, 2);
	x.k.n = 3;
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 2, 3);
	compute(x.b, x.space_b, &x.k, 2, 3);
	assert_int_equal(answered(x.a, want, &there), 0);
	end(&x);
}

/* Who is through says so before its device is: nothing was given back. */
static void commits_that_wait_are_not_given_back(void **state)
{
	uint32_t serve, want, there, commit;
	uint64_t one = 1;
	struct kvp_sqe sqe;
	struct dp_grant g;
	struct kvp_cqe cqe;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 1, 1);
	drop(&x, &x.k, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 1);
	assert_int_equal(dp_reserve(x.b, x.space_b, 1, DP_WAIT_MS, &g), 1);
	dp_fill(&g, x.k.tokens, T);
	memcpy(x.b->page->staging[g.index], x.k.tokens, T * sizeof(x.k.tokens[0]));
	sqe = (struct kvp_sqe){ .op = KVP_OP_COMMIT,
		.grant = g.index,
		.grant_generation = g.generation,
		.space = (uint16_t)x.space_b,
		.tokens = T,
		.flags = KVP_SQE_RELEASE,
		.until = kvp_until(3, 1) };
	commit = dp_push(x.b, &sqe);
	assert_int_equal(next(x.b, KVP_OP_COMMIT, commit).flags, KVP_CQE_PARKED);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	/* Whatever is to be done about it has been done when the ledger has been asked twice. */
	assert_int_equal(figures(&x).returned, 0);
	assert_int_equal(figures(&x).returned, 0);
	kvp_store_seq(&x.b->page->done[3].value, 1);
	assert_int_equal(write(x.b->at.wake_fd, &one, sizeof(one)), sizeof(one));
	cqe = next(x.b, KVP_OP_COMMIT, commit);
	assert_int_equal(cqe.status, 0);
	assert_int_equal(cqe.flags & KVP_CQE_LATE, KVP_CQE_LATE);
	assert_int_equal(answered(x.a, want, &there), 0);
	assert_int_equal(figures(&x).met, 1);
	/* The SERVE waits still, for the next one. */
	drop(&x, &x.k, 0);
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 1);
	compute(x.b, x.space_b, &x.k, 0, 1);
	assert_int_equal(answered(x.a, want, &there), 0);
	end(&x);
}

/* Also who was not handed out yet hears that nobody offers any more. */
static void who_waits_hears_that_the_last_offer_went(void **state)
{
	uint32_t serve, want[2];
	struct chain *other = calloc(1, sizeof(*other));
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	put(&x, other, 4, 2);
	drop(&x, &x.k, 0);
	drop(&x, other, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want[0] = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 4);
	want[1] = ask(x.a, want_of(other, 0, KVP_SQE_PREFETCH));
	x.b = dp_detach(x.b);
	for (uint32_t i = 0; i < 2; i++) {
		struct kvp_cqe cqe;

		assert_int_equal(dp_next(x.a, DP_WAIT_MS, &cqe), 0);
		assert_int_equal(cqe.status, cqe.serial == want[0] ? -EAGAIN : -ENODEV);
		assert_true(cqe.serial == want[0] || cqe.serial == want[1]);
	}
	end(&x);
	free(other);
}

/* It says a microsecond a token, and is as quick when it has a processor; it is given the time to get one. */
static void nobody_is_late_for_want_of_a_processor(void **state)
{
	uint32_t serve, want, there;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	drop(&x, &x.k, 0);
	serve = ask(x.b, serve_of(x.space, FAST_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	assert_true(asked_for(x.b, serve, &x.k, 0, 4) >= 50 * KVPD_MS);
	compute(x.b, x.space_b, &x.k, 0, 4);
	(void)answered(x.a, want, &there);
	end(&x);
	/* Nor is it lost when its next SERVE is late once; but when it does not come. */
	begin(&x);
	put(&x, &x.k, 4, 1);
	serve = ask(x.b, serve_of(x.space, FAST_PS, 0));
	drop(&x, &x.k, 3);
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 3, 4);
	compute(x.a, x.space, &x.k, 3, 4);
	assert_int_equal(answered(x.a, want, &there), 0);
	drop(&x, &x.k, 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(figures(&x).offers, 1);
		assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), -ETIME);
	}
	assert_int_equal(figures(&x).offers, 0);
	end(&x);
}

static void who_gives_back_is_asked_a_few_times(void **state)
{
	uint32_t want, there, serve;
	struct kvp_cqe cqe;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 4, 1);
	drop(&x, &x.k, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	asked_for(x.b, serve, &x.k, 0, 4);
	for (uint32_t i = 0; i < 2; i++) {
		serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
		asked_for(x.b, serve, &x.k, 0, 4);
	}
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	cqe = next(x.b, KVP_OP_SERVE, serve);
	assert_int_equal(cqe.status, -ETIME);
	assert_int_equal(answered(x.a, want, &there), -EAGAIN);
	assert_int_equal(figures(&x).returned, 3);
	end(&x);
}

/* An engine that has claimed the chain computes it anyway: nobody else is asked. */
static void what_is_claimed_is_not_asked_for(void **state)
{
	uint32_t serve, want, there;
	struct kvp_key key;
	struct kvp_cqe cqe;
	struct kvp_sqe claim;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 2, 1);
	drop(&x, &x.k, 1);
	key.lo = kvp_load_relaxed(&x.a->view.blocks[x.k.block[1].id].key_lo);
	key.hi = kvp_load_relaxed(&x.a->view.blocks[x.k.block[1].id].key_hi);
	claim = (struct kvp_sqe){ .op = KVP_OP_CLAIM, .next_lo = key.lo, .next_hi = key.hi };
	cqe = next(x.b, KVP_OP_CLAIM, dp_push(x.b, &claim));
	assert_int_equal(cqe.status | (int)cqe.flags, 0);
	serve = ask(x.b, serve_of(x.space, SLOW_PS, 0));
	want = ask(x.a, want_of(&x.k, 0, 0));
	compute(x.b, x.space_b, &x.k, 1, 2);
	assert_int_equal(answered(x.a, want, &there), 0);
	assert_int_equal(figures(&x).demands, 0);
	(void)serve;
	end(&x);
}

/* ---- entries that are wrong ----------------------------------------------------------------- */

#define LONG  1650u /* blocks: more than a share of SMALL has room to want at a time */
#define SMALL (UINT64_C(6) << 20)

/* A chain of n blocks that is there; returns its last one. */
static struct dp_block long_chain(struct world *x, uint32_t n)
{
	struct dp_ref parent = dp_root();
	struct dp_block b = { 0 };
	kvp_token tokens[T];

	for (uint32_t i = 0; i < n; i++) {
		for (uint32_t k = 0; k < T; k++)
			tokens[k] = i * T + k;
		assert_int_equal(dp_put(x->a, x->space, parent, tokens, T, &b), 0);
		parent = dp_ref(&b);
	}
	dp_flush(x->a);
	return b;
}

/* All blocks of the tenant become RECIPEs, or go if there are too many of these. */
/* What a mover has just then stays, so it is asked for until nothing is left. */
static void forget_all(struct world *x)
{
	json_t *answer;

	for (uint32_t tries = 0; dp_figure(&x->w, "blocks"); tries++) {
		assert_true(tries < 12000);
		assert_int_equal(dp_admin(&x->w, "{\"verb\":\"evict\",\"all\":true}", &answer), 0);
		json_decref(answer);
		dp_pump(&x->w);
		usleep(5000);
	}
}

/* Of so many wants there is no room for all: one is answered so, and none otherwise. */
static void some_are_too_much(struct dp_client *c, struct kvp_sqe want, uint32_t n)
{
	struct kvp_cqe cqe;

	for (uint32_t i = 0; i < n; i++)
		dp_push(c, &want);
	do {
		assert_int_equal(dp_next(c, DP_WAIT_MS, &cqe), 0);
		assert_int_equal(cqe.op, KVP_OP_WANT);
		if (cqe.status < 0)
			assert_int_equal(cqe.status, -EAGAIN);
		else
			assert_int_equal(cqe.flags, KVP_CQE_PARKED);
	} while (!cqe.status);
}

/*
 * What wants and their plans take is the tenant's that asked, and bounded: what is too long by itself is refused for
 * good, what is too much beside others for the moment, and nothing of that is charged twice.
 */
static void wants_are_charged(void **state)
{
	struct kvp_sqe much, more;
	struct kvpd_limits limits;
	uint32_t want[KVP_WANTS], there;
	uint64_t metadata, charged;
	struct dp_block b;
	struct world x;

	(void)state;
	dp_defaults(&x.w, &limits);
	limits.share = SMALL;
	limits.max_blocks = 2048;
	limits.recipe_blocks = 2048;
	dp_start(&x.w, &limits);
	x.a = dp_attach(&x.w, x.w.tenant);
	x.b = dp_attach(&x.w, x.w.tenant);
	x.space = dp_space(x.a, "m", 4);
	x.space_b = dp_space(x.b, "m", 4);
	metadata = dp_figure(&x.w, "metadata_bytes");
	b = long_chain(&x, LONG);
	much = (struct kvp_sqe){
		.op = KVP_OP_WANT,
		.count = KVP_WANT_MS_MAX,
		.parent_kind = KVP_PARENT_BLOCK,
		.parent_id = b.id,
		.parent_birth = b.birth,
	};
	/* Nothing of it is missing, so it takes a page. */
	assert_int_equal(answered(x.a, ask(x.a, much), &there), 0);
	assert_int_equal(there, LONG);
	assert_int_equal(dp_figure(&x.w, "metadata_bytes"), metadata + 4096);
	/* All of it: too much for the share, once and again. */
	forget_all(&x);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(answered(x.a, ask(x.a, much), &there), -EDQUOT);
		assert_int_equal(there, 0);
		assert_int_equal(dp_figure(&x.w, "metadata_bytes"), metadata + 4096);
	}
	/* Those of which blocks are missing are under way as long as nobody computes them. */
	put(&x, &x.k, MOST, 2);
	drop(&x, &x.k, 1);
	assert_int_equal(ask(x.b, serve_of(x.space, SLOW_PS / MOST, 0)) != 0, true);
	more = want_of(&x.k, 0, 0);
	for (uint32_t i = 0; i < KVP_WANTS; i++)
		want[i] = ask(x.a, more);
	charged = figures(&x).charged;
	assert_int_equal(dp_figure(&x.w, "metadata_bytes"), metadata + charged);
	assert_true(charged > KVP_WANTS * MOST * sizeof(uint32_t));
	assert_true(charged <= SMALL / 64);
	/* Its own session has as many as it may; another one of the tenant's meets what they may take. */
	{
		struct dp_client *c = dp_attach(&x.w, x.w.tenant);

		assert_int_equal(dp_space(c, "m", 4), x.space);
		some_are_too_much(c, more, KVP_WANTS);
		assert_true(figures(&x).charged <= SMALL / 64);
		dp_detach(c);
	}
	compute(x.b, x.space_b, &x.k, 1, MOST);
	for (uint32_t i = 0; i < KVP_WANTS; i++)
		assert_int_equal(answered(x.a, want[i], &there), 0);
	charged = figures(&x).charged;
	assert_int_equal(answered(x.a, ask(x.a, more), &there), 0);
	assert_int_equal(figures(&x).charged, charged);
	end(&x);
}

static void wrong_entries_are_refused(void **state)
{
	struct kvp_sqe good, sqe;
	uint32_t want[KVP_WANTS], serve, there;
	struct world x;

	(void)state;
	begin(&x);
	put(&x, &x.k, 2, 1);
	drop(&x, &x.k, 0);
	good = want_of(&x.k, 0, 0);
#define WRONG(field, value, error) \
	sqe = good;                \
	sqe.field = value;         \
	assert_int_equal(refused(x.a, sqe), error)
	WRONG(parent_kind, KVP_PARENT_SERIAL, -EINVAL);
	WRONG(parent_id, UINT32_MAX, -EINVAL);
	WRONG(count, KVP_WANT_MS_MAX + 1, -EINVAL);
	WRONG(flags, KVP_SQE_IDLE, -EINVAL);
	WRONG(parent_birth, good.parent_birth + 1, -ENOENT);
	WRONG(parent_id, good.parent_id + 500, -ENOENT);
	good = serve_of(x.space, FAST_PS, 0);
	WRONG(space, KVP_MAX_SPACES, -EACCES);
	WRONG(space, 5, -EACCES);
	WRONG(next_lo, 0, -EINVAL);
	WRONG(next_lo, KVP_TOKEN_PS_MAX + 1, -EINVAL);
	WRONG(next_hi, KVP_POSITION_FS_MAX + 1, -EINVAL);
	WRONG(until, KVP_LAUNCH_NS_MAX + 1, -EINVAL);
	WRONG(parent_id, 0, -EINVAL);
	WRONG(flags, KVP_SQE_PREFETCH, -EINVAL);
	/* Another one takes its place. */
	ask(x.a, serve_of(x.space, FAST_PS, 0));
	serve = ask(x.a, serve_of(x.space, SLOW_PS, 0));
	want[0] = ask(x.b, want_of(&x.k, 0, 0));
	asked_for(x.a, serve, &x.k, 0, 2);
	for (uint32_t i = 1; i < KVP_WANTS; i++)
		want[i] = ask(x.b, want_of(&x.k, 0, 0));
	assert_int_equal(refused(x.b, want_of(&x.k, 0, 0)), -EAGAIN);
	compute(x.a, x.space, &x.k, 0, 2);
	for (uint32_t i = 0; i < KVP_WANTS; i++)
		assert_int_equal(answered(x.b, want[i], &there), 0);
	assert_int_equal(figures(&x).demands, 1);
	end(&x);
}

/* A chain under a salt: only who has the salt knows what it means. */
static void salted_chains_are_not_recomputed(void **state)
{
	kvp_token tokens[T];
	struct kvp_sqe sqe;
	struct dp_grant g;
	struct kvp_cqe cqe;
	uint32_t there;
	struct world x;

	(void)state;
	begin(&x);
	for (uint32_t i = 0; i < T; i++)
		tokens[i] = i;
	assert_int_equal(dp_reserve(x.a, x.space, 1, DP_WAIT_MS, &g), 1);
	dp_fill(&g, tokens, T);
	memcpy(x.a->page->staging[g.index], tokens, sizeof(tokens));
	x.a->page->salt[g.index][0] = 1;
	sqe = (struct kvp_sqe){ .op = KVP_OP_COMMIT,
		.grant = g.index,
		.grant_generation = g.generation,
		.space = (uint16_t)x.space,
		.tokens = T,
		.flags = KVP_SQE_RELEASE | KVP_SQE_SALTED };
	cqe = next(x.a, KVP_OP_COMMIT, dp_push(x.a, &sqe));
	assert_int_equal(cqe.status, 0);
	x.k.n = 1;
	x.k.block[0] = (struct dp_block){ .id = cqe.block, .birth = cqe.birth };
	drop(&x, &x.k, 0);
	ask(x.b, serve_of(x.space, FAST_PS, 0));
	assert_int_equal(answered(x.a, ask(x.a, want_of(&x.k, 0, 0)), &there), -EOPNOTSUPP);
	end(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exact_ranges_are_computed),
		cmocka_unit_test(a_part_of_a_block_is_computed_as_what_it_was),
		cmocka_unit_test(whoever_commits_it_meets_it),
		cmocka_unit_test(the_nearest_demand_is_next),
		cmocka_unit_test(what_would_take_too_long_is_refused_at_once),
		cmocka_unit_test(the_quicker_provider_is_asked),
		cmocka_unit_test(a_slow_provider_is_not_handed_what_is_near),
		cmocka_unit_test(an_offer_ends_with_its_space),
		cmocka_unit_test(an_idle_offer_is_one_while_it_waits),
		cmocka_unit_test(what_lies_on_a_device_is_loaded),
		cmocka_unit_test(a_device_is_not_slow_for_being_idle),
		cmocka_unit_test(a_slow_device_is_waited_for),
		cmocka_unit_test(a_provider_that_dies_is_replaced),
		cmocka_unit_test(without_another_one_nobody_waits_for_a_dead_provider),
		cmocka_unit_test(a_provider_that_lies_loses_its_offer),
		cmocka_unit_test(new_terms_count_at_once),
		cmocka_unit_test(commits_that_wait_are_not_given_back),
		cmocka_unit_test(who_waits_hears_that_the_last_offer_went),
		cmocka_unit_test(nobody_is_late_for_want_of_a_processor),
		cmocka_unit_test(who_gives_back_is_asked_a_few_times),
		cmocka_unit_test(what_is_claimed_is_not_asked_for),
		cmocka_unit_test(wants_are_charged),
		cmocka_unit_test(wrong_entries_are_refused),
		cmocka_unit_test(salted_chains_are_not_recomputed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
