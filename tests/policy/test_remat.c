/* SPDX-License-Identifier: Apache-2.0 */
/* Recompute or load, what to give up, what to get back: against enumeration. */
#include "tests/policy/plan_test.h"

#include "policy/kvp_ladder.h"
#include "policy/kvp_remat.h"

#define MAX_RUNS 500

static struct kvp_remat_run runs[MAX_RUNS];
static struct kvp_remat_decision decisions[MAX_RUNS];

/* Llama-3.1-8B on 400 TFLOP/s effective; 128 KiB of KV a token. */
static struct kvp_remat_opts llama(uint32_t max_pieces, uint32_t max_runs)
{
	struct kvp_remat_opts o;

	kvp_remat_opts_init(&o, max_pieces, max_runs);
	o.model = (struct kvp_remat_model){ 8e9, 32, 32, 128, 400e12, 1e-4 };
	return o;
}

static struct kvp_remat *make(const struct kvp_remat_opts *o)
{
	struct kvp_remat *r = NULL;

	assert_int_equal(kvp_remat_new(o, &r), 0);
	return r;
}

/* FLOPs with attention; the worked example of 40 us a token; dearer further along. */
static void test_cost_model(void **state)
{
	struct kvp_remat_model m = llama(1, 1).model;
	struct kvp_remat_source pcie = { 0, 1 / 25e9, 0 }, ethernet = { 0, 1 / 1.25e9, 0 };
	double last = 0, sum = 0;
	uint64_t s;

	(void)state;
	assert_true(fabs(kvp_remat_compute_seconds(&m, 0, 1) - 40e-6) < 1e-6);
	assert_true(fabs(kvp_remat_compute_seconds(&m, 1000, 1064) -
			    (2 * 8e9 * 64 + 4. * 32 * 32 * 128 * 64 * 1032) / 400e12) < 1e-12);
	for (s = 0; s < 131072; s += 64) {
		double t = kvp_remat_compute_seconds(&m, s, s + 64);

		assert_true(t > last);
		last = t;
		sum += t;
	}
	/* blocks add up to the whole */
	assert_true(fabs(sum - kvp_remat_compute_seconds(&m, 0, 131072)) < 1e-9 * sum);
	/* per token: 5.2 us over PCIe, 105 us over 10 GbE, 26 us of it at a quarter of the bytes:
	 * compression turns the decision round */
	assert_true(fabs(kvp_remat_load_seconds(&pcie, 131072, 1) - 5.2e-6) < 1e-7);
	assert_true(
		kvp_remat_load_seconds(&ethernet, 131072, 1) > kvp_remat_compute_seconds(&m, 0, 1));
	assert_true(kvp_remat_load_seconds(&ethernet, 131072 / 4, 1) <
		    kvp_remat_compute_seconds(&m, 0, 1));
	/* rent */
	assert_int_equal(kvp_remat_keep(.5, .01, 1000, 10, 4e-7), 1);
	assert_int_equal(kvp_remat_keep(.5, .01, 1000, 10, 6e-7), 0);
}

/* ---- restore ---- */

static double simulate(const struct kvp_remat_opts *o, const struct kvp_remat_piece *p, uint32_t n,
	uint64_t first, const uint8_t *action)
{
	double end[3] = { 0 }, all_loaded = 0, gpu = 0;
	uint64_t at = first;
	uint32_t i;

	for (i = 0; i < n; at += p[i].tokens, i++) {
		uint32_t t = p[i].tier;

		if (action[i] == KVP_REMAT_LOAD) {
			if (end[t] == 0)
				end[t] = o->source[t].latency;
			end[t] += (double)p[i].bytes * o->source[t].seconds_per_byte +
				  p[i].tokens * o->source[t].decode_seconds;
			if (end[t] > all_loaded)
				all_loaded = end[t];
		} else if (action[i] == KVP_REMAT_COMPUTE) {
			if (gpu < all_loaded)
				gpu = all_loaded;
			gpu += kvp_remat_compute_seconds(&o->model, at, at + p[i].tokens);
			if (i == 0 || action[i - 1] != KVP_REMAT_COMPUTE)
				gpu += o->model.launch_seconds;
		}
	}
	return gpu > all_loaded ? gpu : all_loaded;
}

static void random_prefix(struct kvp_remat_opts *o, struct kvp_remat_piece *p, uint32_t n)
{
	double mix = uniform();
	uint32_t i, present = below(3) ? 0 : below(n + 1), missing = below(3) ? 0 : below(n + 1);

	o->source[KVP_TIER_DRAM].seconds_per_byte = 1 / (5e8 * pow(100, uniform()));
	o->source[KVP_TIER_STORE].seconds_per_byte = 1 / (1e8 * pow(100, uniform()));
	o->model.launch_seconds = below(2) ? 0 : 1e-3 * uniform();
	for (i = 0; i < n; i++) {
		p[i] = (struct kvp_remat_piece){ 64,
			uniform() < mix ? KVP_TIER_DRAM : KVP_TIER_STORE,
			below(3) ? 8388608 : 1000000 + below(8000000) };
		if (i < present)
			p[i].tier = KVP_TIER_VRAM;
		else if (i + missing >= n || !below(12))
			p[i].tier = KVP_TIER_RECIPE;
	}
	p[n - 1].tokens = 1 + below(64);
}

/* Never more than 5 % off the best of all 2^n ways; exact up to 12 loadable pieces. A-043. */
static void test_restore_against_enumeration(void **state)
{
	uint32_t round;
	double worst = 0;

	(void)state;
	seed_from_env(40);
	for (round = 0; round < 700; round++) {
		struct kvp_remat_opts o = llama(16, 1);
		struct kvp_remat_piece p[16];
		struct kvp_remat_range ranges[16];
		struct kvp_remat *r;
		uint8_t action[16], trial[16];
		uint32_t n = round % 50 ? 1 + below(12) : 15, i, set, count, loads = 0, k;
		uint64_t first = below(2) ? 0 : below(100000), at;
		double best = INFINITY, got;

		random_prefix(&o, p, n);
		r = make(&o);
		for (i = 0; i < n; i++)
			loads += p[i].tier != KVP_TIER_VRAM && p[i].tier != KVP_TIER_RECIPE;
		assert_int_equal(
			kvp_remat_restore(r, p, n, first, action, ranges, &count, &got), 0);
		assert_true(fabs(simulate(&o, p, n, first, action) - got) < 1e-12);
		for (i = 0; i < n; i++) {
			if (p[i].tier == KVP_TIER_VRAM)
				assert_int_equal(action[i], KVP_REMAT_PRESENT);
			else if (p[i].tier == KVP_TIER_RECIPE)
				assert_int_equal(action[i], KVP_REMAT_COMPUTE);
			else
				assert_true(action[i] == KVP_REMAT_LOAD ||
					    action[i] == KVP_REMAT_COMPUTE);
		}
		for (set = 0; set < 1u << loads; set++) {
			uint32_t bit = 0;
			double t;

			for (i = 0; i < n; i++)
				trial[i] = p[i].tier == KVP_TIER_VRAM     ? KVP_REMAT_PRESENT
					   : p[i].tier == KVP_TIER_RECIPE ? KVP_REMAT_COMPUTE
					   : set & 1u << bit++            ? KVP_REMAT_COMPUTE
									  : KVP_REMAT_LOAD;
			t = simulate(&o, p, n, first, trial);
			if (t < best)
				best = t;
		}
		if (best > 0)
			worst = fmax(worst, got / best - 1);
		assert_true(got <= best * (loads <= 12 ? 1 + 1e-9 : 1.05) + 1e-12);
		/* the ranges are exactly the tokens of the computed pieces, in order, merged */
		for (i = 0, k = 0, at = first; i < n; at += p[i].tokens, i++) {
			if (action[i] != KVP_REMAT_COMPUTE)
				continue;
			while (k < count && ranges[k].end <= at)
				k++;
			assert_true(k < count && ranges[k].begin <= at &&
				    ranges[k].end >= at + p[i].tokens);
		}
		for (at = 0, i = 0; i < count; i++) {
			assert_true(ranges[i].begin < ranges[i].end);
			assert_true(i == 0 || ranges[i].begin > ranges[i - 1].end);
			at += ranges[i].end - ranges[i].begin;
		}
		for (i = 0; i < n; i++)
			at -= action[i] == KVP_REMAT_COMPUTE ? p[i].tokens : 0;
		assert_int_equal(at, 0);
		kvp_remat_free(r);
	}
	print_message("worst: %.3f %% above the best\n", 100 * worst);
}

/*
 * Too many pieces for a search: at least as quick as every threshold of load over compute, as every
 * single stretch that is computed, and as the answer with any one piece changed.
 */
static void test_restore_longer(void **state)
{
	enum { N = 128 };
	static struct kvp_remat_piece p[N];
	static struct kvp_remat_range ranges[N];
	uint8_t action[N], again[N], trial[N];
	uint32_t round, i, begin, end, count;

	(void)state;
	seed_from_env(44);
	for (round = 0; round < 60; round++) {
		struct kvp_remat_opts o = llama(N, 1);
		struct kvp_remat *r;
		uint32_t n = 17 + below(N - 16);
		double got, t, best = INFINITY;

		random_prefix(&o, p, n);
		if (below(2))
			o.model.launch_seconds = .02 * uniform();
		r = make(&o);
		assert_int_equal(kvp_remat_restore(r, p, n, 0, action, ranges, &count, &got), 0);
		assert_true(fabs(simulate(&o, p, n, 0, action) - got) < 1e-12);
		for (begin = 0; begin < n; begin++)
			for (end = begin; end <= n; end++) {
				for (i = 0; i < n; i++)
					trial[i] = p[i].tier == KVP_TIER_VRAM ? KVP_REMAT_PRESENT
						   : p[i].tier == KVP_TIER_RECIPE ||
								   (i >= begin && i < end)
							   ? KVP_REMAT_COMPUTE
							   : KVP_REMAT_LOAD;
				best = fmin(best, simulate(&o, p, n, 0, trial));
			}
		assert_true(got <= best + 1e-12);
		memcpy(trial, action, n);
		for (i = 0; i < n; i++) {
			if (p[i].tier == KVP_TIER_VRAM || p[i].tier == KVP_TIER_RECIPE)
				continue;
			trial[i] ^= KVP_REMAT_LOAD ^ KVP_REMAT_COMPUTE;
			t = simulate(&o, p, n, 0, trial);
			trial[i] = action[i];
			assert_true(got <= t + 1e-12);
		}
		/* what was planned before does not matter */
		assert_int_equal(kvp_remat_restore(r, p, n, 0, again, ranges, &count, &t), 0);
		assert_true(t == got);
		assert_memory_equal(action, again, n);
		kvp_remat_free(r);
	}
}

/* The budget of the search is each plan's own. */
static void test_restore_again(void **state)
{
	struct kvp_remat_opts o = llama(15, 1);
	struct kvp_remat_piece p[15];
	struct kvp_remat_range ranges[15];
	struct kvp_remat *r, *fresh;
	uint8_t action[15];
	uint32_t round, count;
	double a, b;

	(void)state;
	seed_from_env(45);
	o.model.launch_seconds = 5e-4;
	r = make(&o);
	for (round = 0; round < 300; round++) {
		struct kvp_remat_opts any = o;

		random_prefix(&any, p, 15);
		fresh = make(&o);
		assert_int_equal(kvp_remat_restore(r, p, 15, 0, action, ranges, &count, &a), 0);
		assert_int_equal(kvp_remat_restore(fresh, p, 15, 0, action, ranges, &count, &b), 0);
		assert_true(a == b);
		kvp_remat_free(fresh);
	}
	kvp_remat_free(r);
}

/* Equal blocks: the head is computed, the tail loaded, and both end at about the same time. */
static void test_restore_overlaps(void **state)
{
	enum { N = 2000 };
	struct kvp_remat_opts o = llama(N, 1);
	static struct kvp_remat_piece p[N];
	static struct kvp_remat_range ranges[N];
	static uint8_t action[N];
	struct kvp_remat *r;
	uint32_t i, count;
	double got, load_all, compute_all;

	(void)state;
	o.source[KVP_TIER_STORE].seconds_per_byte = 1 / 3e9;
	o.model.launch_seconds = 0;
	r = make(&o);
	for (i = 0; i < N; i++)
		p[i] = (struct kvp_remat_piece){ 64, KVP_TIER_STORE, 64 * 131072 };
	assert_int_equal(kvp_remat_restore(r, p, N, 0, action, ranges, &count, &got), 0);
	assert_int_equal(count, 1);
	assert_int_equal(ranges[0].begin, 0);
	for (i = 1; i < N; i++)
		assert_true(action[i] <= action[i - 1]); /* COMPUTE ... LOAD */
	load_all = N * 64 * 131072. / 3e9;
	compute_all = kvp_remat_compute_seconds(&o.model, 0, N * 64);
	assert_true(got < .75 * fmin(load_all, compute_all));
	assert_true(fabs(kvp_remat_compute_seconds(&o.model, 0, ranges[0].end) -
			    (N - ranges[0].end / 64.) * 64 * 131072 / 3e9) < .01 * got);

	p[5].tier = KVP_TIER_RECIPE + 1;
	assert_int_equal(kvp_remat_restore(r, p, N, 0, action, ranges, &count, &got), -EINVAL);
	p[5].tier = KVP_TIER_DRAM;
	p[5].tokens = 0;
	assert_int_equal(kvp_remat_restore(r, p, N, 0, action, ranges, &count, &got), -EINVAL);
	assert_int_equal(kvp_remat_restore(r, p, N + 1, 0, action, ranges, &count, &got), -EINVAL);
	assert_int_equal(kvp_remat_restore(r, p, 0, 0, action, ranges, &count, &got), 0);
	assert_true(count == 0 && got == 0);
	kvp_remat_free(r);
}

/* ---- giving up ---- */

static void random_runs(uint32_t n, uint32_t max_blocks)
{
	uint32_t i;

	for (i = 0; i < n; i++) {
		struct kvp_remat_run *x = &runs[i];
		uint32_t parent = i && below(2) ? below(i) : KVP_BLOCK_NONE;

		*x = (struct kvp_remat_run){
			.id = i,
			.parent = parent,
			.blocks = 1 + below(max_blocks),
			.block_tokens = 64,
			.width = below(3) ? 0 : below(5),
			.native_bytes = 4000000 + below(8000000),
			.reuse = pow(uniform(), 2),
			.age = 3600 * uniform(),
			.live = !below(4),
		};
		if (parent != KVP_BLOCK_NONE)
			x->first = runs[parent].first +
				   (uint64_t)runs[parent].blocks * runs[parent].block_tokens;
		/* only the end can be missing, and nothing stands behind what is missing */
		x->materialized = below(3) ? x->blocks : below(x->blocks + 1);
		if (parent != KVP_BLOCK_NONE && runs[parent].materialized < runs[parent].blocks)
			x->materialized = 0;
	}
}

static double run_bytes(const struct kvp_remat_opts *o, uint32_t i, uint32_t keep, uint32_t width)
{
	return keep * ceil(runs[i].native_bytes * o->ratio[width]);
}

static double loss(const struct kvp_remat_opts *o, uint32_t i, uint32_t keep, uint32_t width)
{
	const struct kvp_remat_run *x = &runs[i];
	double decode = o->source[KVP_TIER_DRAM].decode_seconds, t = 0;
	double p = x->reuse;

	if (o->age_half_life > 0)
		p *= pow(.5, x->age / o->age_half_life);
	if (keep < x->materialized)
		t = (x->materialized == x->blocks ? o->model.launch_seconds : 0) +
		    kvp_remat_compute_seconds(&o->model, x->first + keep * UINT64_C(64),
			    x->first + x->materialized * UINT64_C(64));
	t += keep * 64. *
	     (o->error_seconds * (o->distortion[width] - o->distortion[x->width]) +
		     (width && !x->width ? decode : 0));
	return p * t;
}

static uint32_t least_blocks(const struct kvp_remat_opts *o, uint32_t i)
{
	uint32_t least = 0;

	if (runs[i].live)
		while (least < runs[i].materialized &&
			runs[i].first + least * UINT64_C(64) < o->min_materialized)
			least++;
	return least;
}

struct brute {
	const struct kvp_remat_opts *o;
	uint32_t n, keep[8];
	double need, best;
};

static void brute_plan(struct brute *b, uint32_t i, double freed, double cost)
{
	uint32_t keep, width;

	if (i == b->n) {
		if (freed >= b->need && cost < b->best)
			b->best = cost;
		return;
	}
	for (keep = least_blocks(b->o, i); keep <= runs[i].materialized; keep++)
		for (width = runs[i].width; width < 5; width++) {
			uint32_t parent = runs[i].parent;

			if (width > runs[i].width && !keep)
				continue;
			if (keep && parent != KVP_BLOCK_NONE &&
				b->keep[parent] < runs[parent].materialized)
				continue;
			b->keep[i] = keep;
			brute_plan(b, i + 1,
				freed + run_bytes(b->o, i, runs[i].materialized, runs[i].width) -
					run_bytes(b->o, i, keep, width),
				cost + loss(b->o, i, keep, width));
		}
}

/* At most 5 % off the best of all cuts and widths; live sequences keep their 512 tokens. */
static void test_plan_against_enumeration(void **state)
{
	uint32_t round, solved = 0, impossible = 0;
	double worst = 0;

	(void)state;
	seed_from_env(41);
	for (round = 0; round < 500; round++) {
		struct kvp_remat_opts o = llama(1, 4);
		struct kvp_remat_result res;
		struct kvp_remat *r;
		struct brute b = { .o = &o, .n = 1 + below(4), .best = INFINITY };
		double held = 0, freed = 0, cost = 0;
		uint32_t i;

		o.age_half_life = below(2) ? 0 : below(4) ? 600 : .5;
		o.model.launch_seconds = below(2) ? 1e-4 : .01 * uniform();
		o.min_materialized = below(2) ? 512 : 128;
		random_runs(b.n, 6);
		for (i = 0; i < b.n; i++)
			held += run_bytes(&o, i, runs[i].materialized, runs[i].width);
		b.need = floor(held * uniform());
		r = make(&o);
		brute_plan(&b, 0, 0, 0);
		assert_int_equal(
			kvp_remat_plan(r, .95, (uint64_t)b.need, runs, b.n, decisions, &res), 0);
		for (i = 0; i < b.n; i++) {
			const struct kvp_remat_decision *d = &decisions[i];

			freed += run_bytes(&o, i, runs[i].materialized, runs[i].width) -
				 run_bytes(&o, i, d->keep, d->width);
			cost += loss(&o, i, d->keep, d->width);
			assert_true(d->keep >= least_blocks(&o, i)); /* */
			assert_true(fabs(d->seconds - loss(&o, i, d->keep, d->width)) < 1e-12);
			if (d->keep && runs[i].parent != KVP_BLOCK_NONE)
				assert_int_equal(decisions[runs[i].parent].keep,
					runs[runs[i].parent].materialized);
		}
		assert_true(fabs(freed - (double)res.freed) < 1);
		assert_true(fabs(cost - res.seconds) < 1e-9);
		if (b.best == INFINITY) {
			assert_true(res.missing > 0);
			impossible++;
		} else {
			assert_int_equal(res.missing, 0);
			assert_true(freed >= b.need);
			assert_true(cost <= 1.05 * b.best + 1e-9 && cost >= b.best - 1e-9);
			assert_true(res.bound <= b.best + 1e-9);
			if (b.best > 1e-9)
				worst = fmax(worst, cost / b.best - 1);
			solved++;
		}
		kvp_remat_free(r);
	}
	print_message("%u instances, worst gap %.4f %%, %u impossible\n", solved, 100 * worst,
		impossible);
}

/* each decision is reached; below the mark all is kept; older goes first. */
static void test_decisions(void **state)
{
	struct kvp_remat_opts o = llama(1, 4);
	struct kvp_remat_result res;
	struct kvp_remat *r;
	uint64_t bytes;
	uint32_t i;

	(void)state;
	o.age_half_life = 600;
	r = make(&o);
	for (i = 0; i < 2; i++)
		runs[i] = (struct kvp_remat_run){ .id = i,
			.parent = KVP_BLOCK_NONE,
			.blocks = 32,
			.materialized = 32,
			.block_tokens = 64,
			.native_bytes = 8388608,
			.reuse = .5,
			.age = i ? 3600 : 10 };
	bytes = 32 * UINT64_C(8388608);
	assert_int_equal(kvp_remat_plan(r, .89, bytes, runs, 2, decisions, &res), 0);
	for (i = 0; i < 2; i++) /* */
		assert_true(decisions[i].action == KVP_REMAT_KEEP && decisions[i].keep == 32);
	assert_int_equal(res.freed, 0);
	assert_int_equal(kvp_remat_plan(r, .95, 0, runs, 2, decisions, &res), 0);
	assert_int_equal(decisions[0].action, KVP_REMAT_KEEP);

	/* a little: 8 bits somewhere is cheaper than computing anything again */
	assert_int_equal(kvp_remat_plan(r, .95, bytes / 4, runs, 2, decisions, &res), 0);
	assert_int_equal(decisions[1].action, KVP_REMAT_QUANTIZE);
	assert_true(decisions[1].width > 0 && decisions[1].keep == 32);
	assert_int_equal(decisions[0].action, KVP_REMAT_KEEP); /* the older one pays */

	/* precision dear: then it is evicted, the older first, and computed again at need */
	kvp_remat_free(r);
	o.error_seconds = 100;
	r = make(&o);
	assert_int_equal(kvp_remat_plan(r, .95, bytes, runs, 2, decisions, &res), 0);
	assert_int_equal(decisions[1].action, KVP_REMAT_EVICT);
	assert_int_equal(decisions[1].keep, 0);
	assert_int_equal(decisions[0].action, KVP_REMAT_KEEP);

	/* a live sequence keeps 512 tokens even if that is not enough */
	runs[0].live = runs[1].live = 1;
	o.widths = 0;
	kvp_remat_free(r);
	r = make(&o);
	assert_int_equal(kvp_remat_plan(r, 1, 2 * bytes, runs, 2, decisions, &res), 0);
	assert_int_equal(decisions[0].keep, 8);
	assert_int_equal(decisions[1].keep, 8);
	assert_int_equal(res.missing, 16 * UINT64_C(8388608));
	kvp_remat_free(r);
}

/* The part of a decision's loss that comes from computing again. */
static double recompute_loss(
	const struct kvp_remat_opts *o, uint32_t i, const struct kvp_remat_decision *d)
{
	struct kvp_remat_run *x = &runs[i];
	uint32_t all = x->materialized;
	double kept;

	if (d->keep == all)
		return 0;
	x->materialized = d->keep; /* the same without what goes */
	kept = loss(o, i, d->keep, d->width);
	x->materialized = all;
	return d->seconds - kept;
}

/* More need never costs less; slower compute never makes the plan compute more. */
static void test_monotone(void **state)
{
	uint32_t round, k, i;

	(void)state;
	seed_from_env(42);
	for (round = 0; round < 100; round++) {
		struct kvp_remat_opts o = llama(1, MAX_RUNS);
		struct kvp_remat_result res;
		struct kvp_remat *r = make(&o);
		uint32_t n = round % 5 ? 2 + below(5) : 200;
		double held = 0, last = 0, base = 0, gap;

		random_runs(n, 12);
		for (i = 0; i < n; i++)
			held += run_bytes(&o, i, runs[i].materialized, runs[i].width);
		for (k = 0; k < 10; k++) {
			assert_int_equal(kvp_remat_plan(r, 1, (uint64_t)(held * k / 20), runs, n,
						 decisions, &res),
				0);
			assert_true(res.seconds >= last * (res.exact ? 1 - 1e-6 : .98) - 1e-12);
			last = fmax(last, res.seconds);
		}
		kvp_remat_free(r);
		for (k = 0, gap = 0; k < 8; k++) {
			double recompute = 0, now;

			r = make(&o);
			assert_int_equal(kvp_remat_plan(r, 1, (uint64_t)(held * .4), runs, n,
						 decisions, &res),
				0);
			for (i = 0; i < n; i++)
				recompute += recompute_loss(&o, i, &decisions[i]) / pow(2, k);
			/* Of two plans that are at most g1 and g2 above the optimum of their prices
			 * a1 < a2, the second computes at most (g1 + g2) / (a2 - a1) more. */
			now = fmax(0, res.seconds - res.bound);
			if (k)
				assert_true(recompute <=
					    base * (1 + 1e-6) + (gap + now) / pow(2, k - 1) + 1e-9);
			base = recompute;
			gap = now;
			kvp_remat_free(r);
			o.model.flops_per_second /= 2;
			o.model.launch_seconds *= 2;
		}
	}
}

/* ---- getting back ---- */

static void brute_ahead(struct brute *b, uint32_t i, double bytes, double seconds, double room,
	double time, double price, double rent, double value)
{
	uint32_t keep;

	if (bytes > room || seconds > time)
		return;
	if (i == b->n) {
		b->best = fmax(b->best, value);
		return;
	}
	for (keep = runs[i].materialized; keep <= runs[i].blocks; keep++) {
		uint32_t parent = runs[i].parent;
		double t = 0, x = (keep - runs[i].materialized) * (double)runs[i].native_bytes;
		double saved = 0;

		if (keep > runs[i].materialized) {
			if (parent != KVP_BLOCK_NONE && b->keep[parent] < runs[parent].blocks)
				continue;
			t = b->o->model.launch_seconds +
			    kvp_remat_compute_seconds(&b->o->model,
				    runs[i].first + runs[i].materialized * UINT64_C(64),
				    runs[i].first + keep * UINT64_C(64));
			/* what is still missing needs a launch of its own */
			saved = t - (keep < runs[i].blocks ? b->o->model.launch_seconds : 0);
		}
		b->keep[i] = keep;
		brute_ahead(b, i + 1, bytes + x, seconds + t, room, time, price, rent,
			value + runs[i].reuse * saved - price * t - rent * x);
	}
}

static void test_ahead_against_enumeration(void **state)
{
	uint32_t round, useful = 0;

	(void)state;
	seed_from_env(43);
	for (round = 0; round < 400; round++) {
		struct kvp_remat_opts o = llama(1, 4);
		struct kvp_remat_result res;
		struct kvp_remat *r;
		struct brute b = { .o = &o, .n = 1 + below(4), .best = -INFINITY };
		double room, seconds, price = .3 * uniform(), rent = 1e-11 * uniform();
		double bytes = 0, time = 0;
		uint32_t i;

		o.model.launch_seconds = below(2) ? 1e-4 : .01 * uniform();
		r = make(&o);
		random_runs(b.n, 6);
		room = floor(1.5e8 * uniform());
		seconds = .03 * uniform();
		brute_ahead(&b, 0, 0, 0, room, seconds, price, rent, 0);
		assert_int_equal(kvp_remat_ahead(r, (uint64_t)room, seconds, price, rent, runs, b.n,
					 decisions, &res),
			0);
		for (i = 0; i < b.n; i++) {
			uint32_t parent = runs[i].parent, more;

			assert_true(decisions[i].keep >= runs[i].materialized);
			more = decisions[i].keep - runs[i].materialized;
			bytes += more * (double)runs[i].native_bytes;
			if (!more)
				continue;
			time += o.model.launch_seconds +
				kvp_remat_compute_seconds(&o.model,
					runs[i].first + runs[i].materialized * UINT64_C(64),
					runs[i].first + decisions[i].keep * UINT64_C(64));
			if (parent != KVP_BLOCK_NONE)
				assert_int_equal(decisions[parent].keep, runs[parent].blocks);
		}
		assert_true(bytes <= room && time <= seconds);
		assert_int_equal(res.freed, (uint64_t)bytes); /* taken, that is */
		assert_true(res.seconds >= .95 * b.best - 1e-12 && res.seconds <= b.best + 1e-12);
		useful += b.best > 0;
		kvp_remat_free(r);
	}
	assert_true(useful > 50);
}

static void test_refusals(void **state)
{
	struct kvp_remat_opts o = llama(4, 4), bad;
	struct kvp_remat_result res;
	struct kvp_remat *r = NULL;

	(void)state;
	bad = o, bad.model.flops_per_second = 0;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.pressure = 1.1;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.ratio[3] = 1;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.source[0].latency = NAN;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.size = 0;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.source[KVP_TIER_STORE].seconds_per_byte = -1;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.model.params = 0;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.model.head_dim = 0;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.model.q_heads = 65537;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.ratio[2] = bad.ratio[1];
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.model.launch_seconds = 1e13;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.model.params = 1e19;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	bad = o, bad.model.flops_per_second = 1e-300;
	assert_int_equal(kvp_remat_new(&bad, &r), -EINVAL);
	assert_null(r);
	/* the defaults' sources: 25 and 7 GB/s */
	assert_true(
		fabs(kvp_remat_load_seconds(&o.source[KVP_TIER_DRAM], 25000000000, 0) - 1) < 1e-4);
	assert_true(
		fabs(kvp_remat_load_seconds(&o.source[KVP_TIER_STORE], 7000000000, 0) - 1) < 1e-3);
	r = make(&o);
	random_runs(4, 3);
	runs[2].parent = 2;
	assert_int_equal(kvp_remat_plan(r, 1, 1, runs, 4, decisions, &res), -EINVAL);
	runs[2].parent = KVP_BLOCK_NONE;
	runs[3].materialized = runs[3].blocks + 1;
	assert_int_equal(kvp_remat_plan(r, 1, 1, runs, 4, decisions, &res), -EINVAL);
	runs[3].materialized = 0;
	runs[1].reuse = -1;
	assert_int_equal(kvp_remat_ahead(r, 1, 1, 1, 1, runs, 4, decisions, &res), -EINVAL);
	runs[1].reuse = 1;
	assert_int_equal(kvp_remat_plan(r, 1, 1, runs, 5, decisions, &res), -EINVAL);
	assert_int_equal(kvp_remat_ahead(r, 1, NAN, 1, 1, runs, 4, decisions, &res), -EINVAL);
	assert_int_equal(kvp_remat_plan(r, 1, 1, runs, 4, decisions, &res), 0);
	/* the smallest and the largest block that there is */
	runs[0].block_tokens = 1;
	runs[1].block_tokens = KVP_BLOCK_TOKENS_MAX;
	assert_int_equal(kvp_remat_plan(r, 1, 1, runs, 4, decisions, &res), 0);
	runs[0].block_tokens = 0;
	assert_int_equal(kvp_remat_plan(r, 1, 1, runs, 4, decisions, &res), -EINVAL);
	runs[0].block_tokens = 64;
	runs[1].block_tokens = KVP_BLOCK_TOKENS_MAX + 1;
	assert_int_equal(kvp_remat_plan(r, 1, 1, runs, 4, decisions, &res), -EINVAL);
	runs[1].block_tokens = 64;
	/* more than there is, as much as can be asked for */
	assert_int_equal(kvp_remat_plan(r, 1, UINT64_MAX, runs, 4, decisions, &res), 0);
	assert_true(res.missing > UINT64_MAX / 2);
	assert_int_equal(kvp_remat_ahead(r, UINT64_MAX, 1e12, 0, 0, runs, 4, decisions, &res), 0);
	assert_null(kvp_remat_free(r));
	assert_null(kvp_remat_free(NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_cost_model),
		cmocka_unit_test(test_restore_against_enumeration),
		cmocka_unit_test(test_restore_longer),
		cmocka_unit_test(test_restore_again),
		cmocka_unit_test(test_restore_overlaps),
		cmocka_unit_test(test_plan_against_enumeration),
		cmocka_unit_test(test_decisions),
		cmocka_unit_test(test_monotone),
		cmocka_unit_test(test_ahead_against_enumeration),
		cmocka_unit_test(test_refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
