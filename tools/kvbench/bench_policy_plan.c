/* SPDX-License-Identifier: Apache-2.0 */
/* kvbench policy, its planners: time and quality of allocation, advisor, ladder and restore. */
#include "tools/kvbench/bench_policy_plan.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "policy/kvp_graph.h"
#include "policy/kvp_ladder.h"
#include "policy/kvp_precision.h"
#include "policy/kvp_remat.h"

#define REPEATS 5

struct rows {
	struct bench_plan_row *row;
	int n;
};

static uint64_t state = 1;

static uint64_t rnd(void)
{
	uint64_t z = (state += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static double uniform(void)
{
	return (double)(rnd() >> 11) / 9007199254740992.0;
}

/* Of this thread's CPU time: the planners neither sleep nor share. */
static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void add(struct rows *r, const char *name, uint64_t n, const char *unit, double value)
{
	if (r->n < (int)BENCH_PLAN_ROWS)
		r->row[r->n++] = (struct bench_plan_row){ name, n, unit, value };
}

/* B-043, B-053. Allocating n tokens at beta .3, the best of some runs; what it reaches against its
 * bounds. */
static int bench_precision(struct rows *r, uint32_t n)
{
	struct kvp_precision_opts o;
	struct kvp_precision_result result = { 0 };
	struct kvp_precision *p;
	float *importance = malloc(n * sizeof(*importance));
	uint8_t *k = malloc(n), *v = malloc(n);
	double best = INFINITY, sum = 0, got = 0, water = 0, c = INFINITY;
	uint32_t i;

	kvp_precision_opts_init(&o, 8, 128, n);
	if (!importance || !k || !v || kvp_precision_new(&o, &p) < 0) {
		free(importance);
		free(k);
		free(v);
		return -ENOMEM;
	}
	for (i = 0; i < n; i++)
		importance[i] = (float)pow(uniform(), 4);
	for (i = 0; i < REPEATS; i++) {
		double t = now_ms();

		kvp_precision_allocate(p, importance, n, kvp_precision_budget(p, n, .3), NULL, NULL,
			k, v, &result);
		best = fmin(best, now_ms() - t);
	}
	add(r, "smartkv_allocate", n, "ms", best);
	add(r, "smartkv_share_of_lp_bound", n, "ratio", result.utility / result.bound);
	for (i = KVP_WIDTH_8; i < KVP_WIDTHS; i++)
		c = fmin(c, o.distortion[i] * pow(4, kvp_width_bits(i)));
	for (i = 0; i < n; i++) {
		sum += importance[i];
		got += importance[i] * o.distortion[kvp_width_of_bits(v[i])];
	}
	kvp_precision_waterfill(importance, n, 16 * .3 - 16. / 128, c, &water);
	add(r, "smartkv_distortion", n, "relmse", got / sum);
	add(r, "smartkv_waterfill_bound", n, "relmse", water / sum);
	kvp_precision_free(p);
	free(importance);
	free(k);
	free(v);
	return 0;
}

/* D-081, D-085. One advisor cycle: `blocks` nodes in chains, ten times as many edges. */
static int bench_advisor(struct rows *r, uint32_t blocks)
{
	struct kvp_graph_opts o;
	struct kvp_graph *g = NULL;
	struct kvp_ranking *ranking = kvp_ranking_new(blocks, 256);
	kvp_block_id got[16], pair[2];
	uint32_t edges[KVP_EDGES], nodes, i, total = 0;
	double best = INFINITY, t;
	uint64_t sum = 0;

	kvp_graph_opts_init(&o, blocks, 20 * blocks, 1e9);
	if (!ranking || kvp_graph_new(&o, &g) < 0) {
		kvp_ranking_free(ranking);
		return -ENOMEM;
	}
	for (i = 0; i < blocks; i++) {
		struct kvp_graph_block b = { .block = i,
			.parent = i % 64 ? i - 1 : KVP_BLOCK_NONE,
			.label = KVP_LABEL_USER,
			.session = i / 64 };

		kvp_graph_insert(g, &b, 1);
		kvp_graph_request(g, &b.block, 1, b.session, 1);
		if (rnd() % 4 == 0)
			kvp_graph_spill(g, i, 1, 1);
	}
	for (i = 0; i < 9 * blocks; i++) {
		pair[0] = (uint32_t)(rnd() % blocks);
		pair[1] = (uint32_t)(rnd() % blocks);
		kvp_graph_co_attend(g, pair, 2, 1);
		kvp_graph_co_attend(g, pair, 2, 1);
		kvp_graph_co_attend(g, pair, 2, 1);
	}
	kvp_graph_count(g, 1, &nodes, edges);
	for (i = 0; i < KVP_EDGES; i++)
		total += edges[i];
	for (i = 0; i < REPEATS; i++) {
		t = now_ms();
		kvp_graph_rank(g, NULL, 2, ranking);
		best = fmin(best, now_ms() - t);
	}
	add(r, "advisor_edges", blocks, "edges", total);
	add(r, "advisor_cycle", blocks, "ms", best);
	t = now_ms();
	for (i = 0; i < 100000; i++) {
		pair[0] = (uint32_t)(rnd() % blocks);
		pair[1] = (uint32_t)(rnd() % blocks);
		sum += (uint64_t)kvp_ranking_prefetch(ranking, 2, 10, pair, 2, 8, got);
	}
	add(r, "advisor_prefetch_read", blocks, "ns", (now_ms() - t) * 1e6 / 100000);
	add(r, "advisor_prefetch_answers", blocks, "blocks", (double)sum / 100000);
	kvp_ranking_free(ranking);
	kvp_graph_free(g);
	return 0;
}

/* A plan for n blocks in VRAM, 10 % over its mark, with DRAM half full. */
static int bench_ladder(struct rows *r, uint32_t n)
{
	struct kvp_ladder_opts o;
	struct kvp_ladder_tier tiers[KVP_LADDER_TIERS] = { { 0 } };
	struct kvp_ladder_result result = { 0 };
	struct kvp_ladder_block *blocks = calloc(n, sizeof(*blocks));
	struct kvp_ladder_step *steps = calloc(n, sizeof(*steps));
	struct kvp_ladder *l;
	uint32_t i, count;
	double t;

	kvp_ladder_opts_init(&o, n);
	if (!blocks || !steps || kvp_ladder_new(&o, &l) < 0) {
		free(blocks);
		free(steps);
		return -ENOMEM;
	}
	for (i = 0; i < KVP_LADDER_TIERS; i++)
		tiers[i] = (struct kvp_ladder_tier){ 0, 0, .95, .85, .75, 1e-5, 1 / 7e9 };
	for (i = 0; i < n; i++) {
		blocks[i] = (struct kvp_ladder_block){ .block = i,
			.parent = i % 16 ? i - 1 : KVP_BLOCK_NONE,
			.tokens = 64,
			.native_bytes = 8388608,
			.recipe_bytes = 300,
			.reuse = pow(uniform(), 3),
			.recompute_seconds = 2.6e-3 * (1 + (i % 16) * .01) };
		blocks[i].bytes[KVP_TIER_VRAM] = 8388608;
		tiers[KVP_TIER_VRAM].used += 8388608;
	}
	tiers[KVP_TIER_VRAM].capacity = tiers[KVP_TIER_VRAM].used;
	tiers[KVP_TIER_DRAM].capacity = tiers[KVP_TIER_VRAM].used;
	tiers[KVP_TIER_DRAM].used = tiers[KVP_TIER_VRAM].used / 2;
	t = now_ms();
	kvp_ladder_plan(l, tiers, blocks, n, steps, &count, &result);
	add(r, "ladder_plan", n, "ms", now_ms() - t);
	add(r, "ladder_cost_over_bound", n, "ratio",
		result.bound > 0 ? result.cost / result.bound : 1);
	kvp_ladder_free(l);
	free(blocks);
	free(steps);
	return 0;
}

/* Restoring a 128K-token prefix of 2,048 blocks from the store. */
static int bench_restore(struct rows *r)
{
	enum { N = 2048 };
	static struct kvp_remat_piece pieces[N];
	static struct kvp_remat_range ranges[N];
	static uint8_t action[N];
	struct kvp_remat_opts o;
	struct kvp_remat *m;
	uint32_t i, n;
	double t, seconds = 0, load = 0, compute;

	kvp_remat_opts_init(&o, N, 1);
	o.model = (struct kvp_remat_model){ 8e9, 32, 32, 128, 400e12, 1e-4 };
	o.source[KVP_TIER_STORE].seconds_per_byte = 1 / 3e9;
	if (kvp_remat_new(&o, &m) < 0)
		return -ENOMEM;
	for (i = 0; i < N; i++) {
		pieces[i] = (struct kvp_remat_piece){ 64, KVP_TIER_STORE, 64 * 131072 };
		load += pieces[i].bytes / 3e9;
	}
	t = now_ms();
	kvp_remat_restore(m, pieces, N, 0, action, ranges, &n, &seconds);
	add(r, "remat_restore_plan", N, "ms", now_ms() - t);
	compute = kvp_remat_compute_seconds(&o.model, 0, N * 64);
	add(r, "remat_restore_over_best_single", N, "ratio", seconds / fmin(load, compute));
	kvp_remat_free(m);
	return 0;
}

int bench_policy_plan(struct bench_plan_row *ret_rows)
{
	static const uint32_t tokens[] = { 10000, 100000, 1000000 };
	static const uint32_t blocks[] = { 10000, 30000, 100000 };
	struct rows r = { ret_rows, 0 };
	size_t i;
	int ret = 0;

	for (i = 0; !ret && i < sizeof(tokens) / sizeof(tokens[0]); i++)
		ret = bench_precision(&r, tokens[i]);
	for (i = 0; !ret && i < sizeof(blocks) / sizeof(blocks[0]); i++)
		ret = bench_advisor(&r, blocks[i]);
	if (!ret)
		ret = bench_ladder(&r, 2000);
	if (!ret)
		ret = bench_ladder(&r, 20000);
	if (!ret)
		ret = bench_restore(&r);
	return ret < 0 ? ret : r.n;
}
