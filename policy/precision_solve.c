/* SPDX-License-Identifier: Apache-2.0 */
/* Solvers of mixed precision: by marginal gain, by dynamic programming, back down the chain. */
#include "policy/precision.h"
#include "policy/sort.h"

#include <errno.h>
#include <math.h>
#include <string.h>

int precision_rank(struct kvp_precision *p, const float *importance, uint32_t n)
{
	uint32_t *sorted, i;

	for (i = 0; i < n; i++) {
		if (!isfinite(importance[i]))
			return -EINVAL;
		p->weight[i] = importance[i] > p->opts.floor ? importance[i] : (float)p->opts.floor;
	}
	for (i = 0; i < n; i++)
		p->order[i] = i;
	sorted = sort_by_float(p->weight, p->order, p->scratch, n, 1);
	if (sorted != p->order) {
		p->scratch = p->order;
		p->order = sorted;
	}
	return 0;
}

uint64_t precision_units(const struct kvp_precision *p, const uint8_t *level, uint32_t n)
{
	uint64_t units = 0;
	uint32_t s, i;

	for (s = 0; s < p->n_streams; s++)
		for (i = 0; i < n; i++)
			units += p->stream[s].cost[level[precision_item(p, s, i)]];
	return units;
}

double precision_utility(const struct kvp_precision *p, const uint8_t *level, uint32_t n)
{
	double sum = 0;
	uint32_t s, i;

	for (s = 0; s < p->n_streams; s++)
		for (i = 0; i < n; i++)
			sum += (double)p->weight[i] *
			       p->stream[s].utility[level[precision_item(p, s, i)]];
	return sum;
}

/* The head of one step's list of tokens, in the order of importance. */
struct cursor {
	uint32_t stream, step;
	uint32_t at;  /* index into order: the head; reversed: one past it */
	double score; /* of the head */
};

static double score_at(const struct kvp_precision *p, const struct cursor *c, uint32_t at)
{
	return (double)p->weight[p->order[at]] * p->stream[c->stream].gain[c->step];
}

static uint32_t least_cost(const struct kvp_precision *p)
{
	uint32_t least = UINT32_MAX, s, k;

	for (s = 0; s < p->n_streams; s++)
		for (k = p->stream[s].base; k < PRECISION_TOP; k++)
			if (p->stream[s].cost[k + 1] - p->stream[s].cost[k] < least)
				least = p->stream[s].cost[k + 1] - p->stream[s].cost[k];
	return least;
}

/*
 * All tokens share the ratios of the steps, so the heap of (token, step) falls apart into one
 * sorted list per step, each in the order of importance, and the largest score is at one of their
 * heads. An entry whose token is not at `from` is stale: its earlier step was skipped, or its
 * bounds exclude it.
 */
void precision_greedy(struct kvp_precision *p, uint32_t n, uint64_t units,
	struct precision_event *trace, uint32_t *ret_traced, struct precision_outcome *ret)
{
	struct cursor cursor[PRECISION_STREAMS * PRECISION_TOP], *best;
	uint32_t cursors = 0, least = least_cost(p), traced = 0, s, k, c;
	uint64_t used;
	double utility, bound = INFINITY;

	for (s = 0; s < p->n_streams; s++)
		memcpy(p->level + precision_item(p, s, 0), p->lo + precision_item(p, s, 0), n);
	used = precision_units(p, p->level, n);
	utility = precision_utility(p, p->level, n);
	for (s = 0; n && s < p->n_streams; s++)
		for (k = p->stream[s].base; k < PRECISION_TOP; k++) {
			cursor[cursors] = (struct cursor){ .stream = s, .step = k };
			cursor[cursors].score = score_at(p, &cursor[cursors], 0);
			cursors++;
		}
	for (;;) {
		const struct precision_stream *st;
		double score;
		uint32_t token, cost, from;
		size_t item;

		/* The first of equals: a token's lower step before its higher. */
		for (best = &cursor[0], c = 1; c < cursors; c++)
			if (cursor[c].score > best->score)
				best = &cursor[c];
		if (!cursors || best->score < 0)
			break;
		score = best->score;
		if (!trace && units - used < least) {
			if (bound == INFINITY)
				bound = utility + score * (double)(units - used);
			break;
		}
		st = &p->stream[best->stream];
		from = best->step;
		token = p->order[best->at];
		item = precision_item(p, best->stream, token);
		best->at++;
		best->score = best->at < n ? score_at(p, best, best->at) : -1;
		if (p->level[item] != from || from >= p->hi[item])
			continue;
		cost = st->cost[from + 1] - st->cost[from];
		if (trace)
			trace[traced++] = (struct precision_event){ (uint32_t)item, (uint8_t)from,
				used + cost <= units };
		if (used + cost > units) {
			/* The first step that does not fit is the one the bound takes in part. */
			if (bound == INFINITY)
				bound = utility + score * (double)(units - used);
			continue;
		}
		p->level[item] = (uint8_t)(from + 1);
		used += cost;
		utility += score * cost;
	}
	if (ret_traced)
		*ret_traced = traced;
	*ret = (struct precision_outcome){ used, bound == INFINITY ? utility : bound };
}

/*
 * value[u] = best utility of the items so far within u units above their lowest levels; dp keeps
 * each item's choice. At most 128 items and 769 units.
 */
void precision_exact(struct kvp_precision *p, uint32_t n, uint64_t units, uint64_t *ret_units)
{
	double value[PRECISION_DP_UNITS] = { 0 };
	uint64_t least = precision_units(p, p->lo, n);
	uint32_t width, items = n * p->n_streams, i, u, level;

	width = units - least < PRECISION_DP_UNITS - 1 ? (uint32_t)(units - least)
						       : PRECISION_DP_UNITS - 1;
	for (i = 0; i < items; i++) {
		const struct precision_stream *st = &p->stream[i / n];
		size_t item = precision_item(p, i / n, i % n);
		uint8_t *choice = p->dp + (size_t)i * PRECISION_DP_UNITS;
		uint32_t lo = p->lo[item];

		for (u = width + 1; u-- > 0;) {
			double best = -1;

			for (level = lo; level <= p->hi[item]; level++) {
				uint32_t extra = st->cost[level] - st->cost[lo];
				double v;

				if (extra > u)
					break;
				v = value[u - extra] +
				    (double)p->weight[i % n] * st->utility[level];
				if (v > best) {
					best = v;
					choice[u] = (uint8_t)level;
				}
			}
			value[u] = best;
		}
	}
	u = width;
	for (i = items; i-- > 0;) {
		const struct precision_stream *st = &p->stream[i / n];
		size_t item = precision_item(p, i / n, i % n);

		level = p->dp[(size_t)i * PRECISION_DP_UNITS + u];
		p->level[item] = (uint8_t)level;
		u -= st->cost[level] - st->cost[p->lo[item]];
	}
	*ret_units = least + width - u;
}

uint64_t precision_reverse(struct kvp_precision *p, uint32_t n, uint64_t units)
{
	struct cursor cursor[PRECISION_STREAMS * PRECISION_TOP], *best;
	uint64_t used = precision_units(p, p->level, n);
	uint32_t cursors = 0, s, k, c;

	/* Gains fall along the chain, so a token's higher step always comes up before its lower. */
	for (s = 0; n && s < p->n_streams; s++)
		for (k = PRECISION_TOP; k-- > p->stream[s].base;) {
			cursor[cursors] = (struct cursor){ .stream = s, .step = k, .at = n };
			cursor[cursors].score = score_at(p, &cursor[cursors], n - 1);
			cursors++;
		}
	while (cursors && used > units) {
		const struct precision_stream *st;
		uint32_t to;
		size_t item;

		for (best = &cursor[0], c = 1; c < cursors; c++)
			if (cursor[c].score < best->score)
				best = &cursor[c];
		if (best->score == INFINITY)
			break;
		st = &p->stream[best->stream];
		to = best->step;
		item = precision_item(p, best->stream, p->order[--best->at]);
		best->score = best->at ? score_at(p, best, best->at - 1) : INFINITY;
		if (p->level[item] != to + 1 || to < p->lo[item])
			continue;
		p->level[item] = (uint8_t)to;
		used -= st->cost[to + 1] - st->cost[to];
	}
	return used;
}
