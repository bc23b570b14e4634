/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixed precision: options and budgets in bits, allocations from scratch and under a cut budget,
 * and the plans that follow a sequence over time. The solvers are in precision_solve.c.
 */
#include "policy/precision.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX   (UINT32_C(1) << 26)
#define RANK_SMOOTH  .5f  /* weight of the newest rank in the smoothed one */
#define SHARE_CHANGE 1.25 /* drift: a rank move counts with this much change of weight */

void kvp_precision_opts_init(
	struct kvp_precision_opts *opts, uint32_t heads, uint32_t head_dim, uint32_t max_tokens)
{
	*opts = (struct kvp_precision_opts){
		.size = sizeof(*opts),
		.heads = heads,
		.head_dim = head_dim,
		.scale_bits = 16,
		.block_tokens = KVP_BLOCK_TOKENS_DEFAULT,
		.max_tokens = max_tokens,
		.base_steps = 16,
		.critical = 4,
		.key_min_bits = 2,
		.utility = KVP_UTILITY_DISTORTION,
		.hold = 2,
		.alpha = .6,
		.key_weight = 1,
		.value_weight = 1,
		.floor = 1e-6,
		.rank_step = .05,
		.drift_kl = .02,
		.drift_moved = .10,
	};
	memcpy(opts->distortion, kvp_width_distortion, sizeof(opts->distortion));
}

static int positive(double v)
{
	return v > 0 && v <= KVP_PRECISION_NUMBER_MAX;
}

static int opts_valid(const struct kvp_precision_opts *o)
{
	uint32_t w;

	if (o->size != sizeof(*o) || !o->heads || o->heads > 65536 || !o->head_dim ||
		o->head_dim > 65536 || (o->scale_bits != 16 && o->scale_bits != 32) ||
		(o->scale_group && o->head_dim % o->scale_group) || !o->max_tokens ||
		o->max_tokens > TOKENS_MAX || o->layer >= KVP_MAX_LAYERS || o->base_steps < 8 ||
		o->base_steps > 32 || o->split > 1 || o->key_min_bits < 2 || o->key_min_bits > 3 ||
		o->utility > KVP_UTILITY_POWER || o->middle > 1 ||
		o->block_tokens > KVP_BLOCK_TOKENS_MAX || o->distortion[KVP_WIDTH_NATIVE] != 0 ||
		o->hold < 1 || o->hold > 255)
		return 0;
	for (w = KVP_WIDTH_8; w < KVP_WIDTHS; w++)
		if (!(o->distortion[w] >= 0) || o->distortion[w] > KVP_PRECISION_NUMBER_MAX ||
			(w > KVP_WIDTH_8 && o->distortion[w] <= o->distortion[w - 1]))
			return 0;
	return o->alpha > 0 && o->alpha <= 1 && positive(o->key_weight) &&
	       positive(o->value_weight) && o->floor >= FLT_MIN && o->floor <= 1 &&
	       positive(o->rank_step) && o->rank_step < 1 && positive(o->drift_kl) &&
	       positive(o->drift_moved) && o->drift_moved < 1;
}

/* Utility of one vector kind at a level; POWER's is spread over K and V by their weights. */
static double kind_utility(const struct kvp_precision_opts *o, double weight, uint32_t level)
{
	if (o->utility == KVP_UTILITY_POWER)
		return weight / (o->key_weight + o->value_weight) *
		       pow(precision_bits(level), o->alpha);
	return weight * (o->distortion[KVP_WIDTH_2] - o->distortion[precision_width(level)]);
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static int build_stream(struct kvp_precision *p, struct precision_stream *st, int keys, int values)
{
	const struct kvp_precision_opts *o = &p->opts;
	uint32_t k, key_level, key_base = o->key_min_bits - 2;

	/* With keys from 3 bits only, keys alone start there; jointly the lowest level is K3V2. */
	st->base = keys && !values ? key_base : 0;
	for (k = 0; k < PRECISION_LEVELS; k++) {
		st->cost[k] = 0;
		st->utility[k] = 0;
		if (keys) {
			key_level = max_u32(k, key_base);
			st->cost[k] += precision_bits(key_level);
			st->utility[k] += kind_utility(o, o->key_weight, key_level);
		}
		if (values) {
			st->cost[k] += precision_bits(k);
			st->utility[k] += kind_utility(o, o->value_weight, k);
		}
	}
	for (k = st->base; k < PRECISION_TOP; k++) {
		st->gain[k] =
			(st->utility[k + 1] - st->utility[k]) / (st->cost[k + 1] - st->cost[k]);
		if (k == st->base || st->gain[k] <= st->gain[k - 1])
			continue;
		if (st->gain[k] > st->gain[k - 1] * (1 + 1e-9))
			return -EINVAL;
		st->gain[k] = st->gain[k - 1]; /* equal but for rounding: keep the order strict */
	}
	return 0;
}

static int alloc_arrays(struct kvp_precision *p)
{
	size_t n = p->opts.max_tokens, items = n * p->n_streams;

	p->weight = calloc(n, sizeof(*p->weight));
	p->order = calloc(n, sizeof(*p->order));
	p->scratch = calloc(n, sizeof(*p->scratch));
	p->lo = calloc(items, 1);
	p->hi = calloc(items, 1);
	p->level = calloc(items, 1);
	p->dp = calloc(PRECISION_DP_ITEMS, PRECISION_DP_UNITS);
	p->now = calloc(items, 1);
	p->streak = calloc(n, 1);
	p->guarded = calloc(n, 1);
	p->rank_ref = calloc(n, sizeof(*p->rank_ref));
	p->rank_smooth = calloc(n, sizeof(*p->rank_smooth));
	p->reference = calloc(n, sizeof(*p->reference));
	return p->weight && p->order && p->scratch && p->lo && p->hi && p->level && p->dp &&
			       p->now && p->streak && p->guarded && p->rank_ref && p->rank_smooth &&
			       p->reference
		       ? 0
		       : -ENOMEM;
}

/* Of the payloads, K and V, of one block with so many tokens. */
static uint64_t overhead_of(const struct kvp_precision *p, uint32_t tokens)
{
	const struct kvp_precision_opts *o = &p->opts;
	struct kvp_width_plane plane = { o->heads, o->head_dim, o->scale_bits, o->scale_group };

	return tokens ? 2 * 8 * kvp_width_plane_overhead(&plane, tokens) : 0;
}

int kvp_precision_new(const struct kvp_precision_opts *opts, struct kvp_precision **ret)
{
	struct kvp_precision *p;
	uint32_t group;
	int r;

	if (!opts_valid(opts))
		return -EINVAL;
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->opts = *opts;
	group = opts->scale_group ? opts->scale_group : opts->head_dim;
	p->unit_bits = (uint64_t)opts->heads * opts->head_dim;
	p->scale_bits = UINT64_C(2) * opts->heads * (opts->head_dim / group) * opts->scale_bits;
	p->block_bits = overhead_of(p, opts->block_tokens);
	p->n_streams = opts->split ? 2 : 1;
	r = build_stream(p, &p->stream[0], 1, !opts->split);
	if (!r && opts->split)
		r = build_stream(p, &p->stream[1], 0, 1);
	if (!r)
		r = alloc_arrays(p);
	if (r < 0) {
		kvp_precision_free(p);
		return r;
	}
	*ret = p;
	return 0;
}

struct kvp_precision *kvp_precision_free(struct kvp_precision *p)
{
	if (p) {
		free(p->weight);
		free(p->order);
		free(p->scratch);
		free(p->lo);
		free(p->hi);
		free(p->level);
		free(p->dp);
		free(p->now);
		free(p->streak);
		free(p->guarded);
		free(p->rank_ref);
		free(p->rank_smooth);
		free(p->reference);
		free(p);
	}
	return NULL;
}

uint64_t kvp_precision_token_bits(const struct kvp_precision *p, uint32_t bits_k, uint32_t bits_v)
{
	return p->unit_bits * (bits_k + bits_v) + p->scale_bits;
}

uint64_t kvp_precision_overhead(const struct kvp_precision *p, uint32_t n)
{
	uint32_t block = p->opts.block_tokens;

	return block ? n / block * p->block_bits + overhead_of(p, n % block) : 0;
}

/* What n tokens take whatever their widths. */
static uint64_t fixed_bits(const struct kvp_precision *p, uint32_t n)
{
	return n * p->scale_bits + kvp_precision_overhead(p, n);
}

uint64_t kvp_precision_budget(const struct kvp_precision *p, uint32_t n, double beta)
{
	double bits = (double)n * (double)(32 * p->unit_bits) * beta;

	if (!(bits > 0))
		return 0;
	return bits < 0x1p64 ? (uint64_t)bits : UINT64_MAX;
}

static uint32_t first_protected(const struct kvp_precision_opts *o)
{
	return o->middle ? o->critical : max_u32(o->critical, 1);
}

static int protected_token(const struct kvp_precision_opts *o, uint32_t i, uint32_t n)
{
	return i < first_protected(o) || n - i <= o->tail;
}

static uint32_t protected_count(const struct kvp_precision_opts *o, uint32_t n)
{
	uint64_t count = (uint64_t)first_protected(o) + o->tail;

	return count < n ? (uint32_t)count : n;
}

static uint32_t least_units(const struct kvp_precision *p)
{
	uint32_t s, units = 0;

	for (s = 0; s < p->n_streams; s++)
		units += p->stream[s].cost[p->stream[s].base];
	return units;
}

uint64_t kvp_precision_floor(const struct kvp_precision *p, uint32_t n)
{
	uint64_t guarded = protected_count(&p->opts, n);

	return fixed_bits(p, n) + p->unit_bits * (16 * guarded + (n - guarded) * least_units(p));
}

double kvp_precision_beta_min(const struct kvp_precision *p)
{
	double bits = (double)(p->unit_bits * least_units(p) + p->scale_bits);

	if (p->opts.block_tokens)
		bits += (double)p->block_bits / p->opts.block_tokens;
	return bits / (double)(32 * p->unit_bits);
}

static int level_of(uint32_t bits)
{
	switch (bits) {
	case 2:
	case 3:
	case 4:
		return (int)bits - 2;
	case 8:
		return (int)PRECISION_TOP;
	}
	return -1;
}

/* The highest level of stream s that takes no more than these widths; -1 for no widths at all. */
static int stream_level(const struct kvp_precision *p, uint32_t s, uint32_t bits_k, uint32_t bits_v)
{
	int k = level_of(bits_k), v = level_of(bits_v);

	if (k < 0 || v < 0)
		return -1;
	if (p->opts.split)
		return s ? v : k;
	return k < v ? k : v;
}

/* Widths that some level has. Jointly the keys follow: what the values have, or their least. */
static int is_allocated(const struct kvp_precision *p, uint32_t bits_k, uint32_t bits_v)
{
	uint32_t least = p->opts.key_min_bits;

	if (level_of(bits_k) < 0 || level_of(bits_v) < 0)
		return 0;
	return p->opts.split ? bits_k >= least : bits_k == max_u32(bits_v, least);
}

static void widths_of(const struct kvp_precision *p, const uint8_t *level, uint32_t i,
	uint8_t *ret_k, uint8_t *ret_v)
{
	uint32_t k = level[precision_item(p, 0, i)], v = k;

	if (p->opts.split)
		v = level[precision_item(p, 1, i)];
	*ret_k = (uint8_t)precision_bits(max_u32(k, p->opts.key_min_bits - 2));
	*ret_v = (uint8_t)precision_bits(v);
}

/* What a budget leaves for codes, in units; -ENOSPC when all else exceeds it. */
static int payload_units(
	const struct kvp_precision *p, uint32_t n, uint64_t budget, uint64_t *ret_units)
{
	if (budget < fixed_bits(p, n))
		return -ENOSPC;
	*ret_units = (budget - fixed_bits(p, n)) / p->unit_bits;
	return 0;
}

static void solve(
	struct kvp_precision *p, uint32_t n, uint64_t units, struct kvp_precision_result *result)
{
	struct precision_outcome out;

	precision_greedy(p, n, units, NULL, NULL, &out);
	result->exact = n <= KVP_PRECISION_EXACT;
	if (result->exact && n)
		precision_exact(p, n, units, &out.units);
	result->bits = out.units * p->unit_bits + fixed_bits(p, n);
	result->utility = precision_utility(p, p->level, n);
	result->bound = out.bound;
}

int kvp_precision_allocate(struct kvp_precision *p, const float *importance, uint32_t n,
	uint64_t budget, const uint8_t *cap_k, const uint8_t *cap_v, uint8_t *ret_k, uint8_t *ret_v,
	struct kvp_precision_result *ret)
{
	struct kvp_precision_result result = { 0 };
	uint32_t s, i;
	uint64_t units;

	if (n > p->opts.max_tokens || !cap_k != !cap_v || precision_rank(p, importance, n) < 0)
		return -EINVAL;
	for (s = 0; s < p->n_streams; s++)
		for (i = 0; i < n; i++) {
			size_t item = precision_item(p, s, i);
			int cap =
				cap_k ? stream_level(p, s, cap_k[i], cap_v[i]) : (int)PRECISION_TOP;

			if (cap < 0)
				return -EINVAL;
			cap = cap < (int)p->stream[s].base ? (int)p->stream[s].base : cap;
			p->hi[item] = (uint8_t)cap;
			p->lo[item] = protected_token(&p->opts, i, n) ? (uint8_t)cap
								      : (uint8_t)p->stream[s].base;
		}
	if (payload_units(p, n, budget, &units) < 0 || precision_units(p, p->lo, n) > units)
		return -ENOSPC;
	solve(p, n, units, &result);
	for (i = 0; i < n; i++)
		widths_of(p, p->level, i, &ret_k[i], &ret_v[i]);
	if (ret)
		*ret = result;
	return 0;
}

int kvp_precision_reclaim(struct kvp_precision *p, const float *importance, uint32_t n,
	uint64_t budget, uint8_t *widths_k, uint8_t *widths_v, struct kvp_precision_result *ret)
{
	struct kvp_precision_result result = { 0 };
	uint64_t units, used;
	uint32_t s, i;

	if (n > p->opts.max_tokens || precision_rank(p, importance, n) < 0)
		return -EINVAL;
	for (i = 0; i < n; i++)
		if (!is_allocated(p, widths_k[i], widths_v[i]))
			return -EINVAL;
	for (s = 0; s < p->n_streams; s++)
		for (i = 0; i < n; i++) {
			size_t item = precision_item(p, s, i);
			int level = stream_level(p, s, widths_k[i], widths_v[i]);

			p->level[item] = (uint8_t)level;
			p->lo[item] = protected_token(&p->opts, i, n) ? (uint8_t)level
								      : (uint8_t)p->stream[s].base;
		}
	if (payload_units(p, n, budget, &units) < 0 || precision_units(p, p->lo, n) > units)
		return -ENOSPC;
	used = precision_reverse(p, n, units);
	for (i = 0; i < n; i++) {
		uint8_t k, v;

		widths_of(p, p->level, i, &k, &v);
		result.lowered += k != widths_k[i] || v != widths_v[i];
		widths_k[i] = k;
		widths_v[i] = v;
	}
	result.bits = used * p->unit_bits + fixed_bits(p, n);
	result.utility = precision_utility(p, p->level, n);
	result.bound = result.utility;
	if (ret)
		*ret = result;
	return 0;
}

uint32_t kvp_precision_interval(uint32_t base_steps, uint32_t layer, uint32_t n)
{
	return max_u32(base_steps * (1 + layer / 4), max_u32(32, n / 8));
}

int kvp_precision_due(const struct kvp_precision *p, uint32_t n, uint64_t step)
{
	return !p->planned ||
	       step - p->last_step >= kvp_precision_interval(p->opts.base_steps, p->opts.layer, n);
}

/* Rank of the token at place k of the order, 0 = least important, 1 = most. */
static float rank_at(uint32_t k, uint32_t n)
{
	return n > 1 ? 1 - (float)k / (float)(n - 1) : 1;
}

int kvp_precision_drift(struct kvp_precision *p, const float *importance, uint32_t n,
	struct kvp_precision_drift *ret)
{
	struct kvp_precision_drift d = { 0 };
	uint32_t i, k, seen = 0, common = n < p->known ? n : p->known;
	double now = 0, then = 0;

	if (!p->planned || !common)
		return -ENODATA;
	if (n > p->opts.max_tokens || precision_rank(p, importance, n) < 0)
		return -EINVAL;
	for (i = 0; i < common; i++) {
		now += p->weight[i];
		then += p->reference[i];
	}
	for (i = 0; i < common; i++)
		d.kl += p->weight[i] / now * log(p->weight[i] / now * then / p->reference[i]);
	for (k = 0; k < n; k++) {
		double change;

		i = p->order[k];
		if (i >= common)
			continue;
		change = p->weight[i] / now * then / p->reference[i];
		if (fabsf(rank_at(seen++, common) - p->rank_ref[i]) >= p->opts.rank_step &&
			(change >= SHARE_CHANGE || change <= 1 / SHARE_CHANGE))
			d.moved++;
	}
	d.moved /= common;
	d.fired = d.kl > p->opts.drift_kl || d.moved > p->opts.drift_moved;
	*ret = d;
	return 0;
}

/* Bounds for one token of a plan: free to move, or held where it is. */
static void bound_token(
	struct kvp_precision *p, uint32_t i, uint32_t n, int can_rise, int free_to_move)
{
	uint32_t s;

	for (s = 0; s < p->n_streams; s++) {
		size_t item = precision_item(p, s, i);
		uint8_t cap = can_rise ? PRECISION_TOP : p->now[item];

		p->hi[item] = free_to_move ? cap : p->now[item];
		p->lo[item] = !free_to_move                     ? p->now[item]
			      : protected_token(&p->opts, i, n) ? cap
								: (uint8_t)p->stream[s].base;
	}
}

/*
 * The held tokens leave too little for the others: reclaim among all of them, starting from the
 * highest that each can have. What is new or moved must not starve beside what merely stayed.
 */
static int make_room(struct kvp_precision *p, uint32_t n, uint64_t units)
{
	uint32_t s, i;

	for (s = 0; s < p->n_streams; s++)
		for (i = 0; i < n; i++) {
			size_t item = precision_item(p, s, i);

			p->level[item] = p->hi[item];
			if (!protected_token(&p->opts, i, n))
				p->lo[item] = (uint8_t)p->stream[s].base;
		}
	if (precision_units(p, p->lo, n) > units)
		return -ENOSPC;
	precision_reverse(p, n, units);
	for (s = 0; s < p->n_streams; s++)
		memcpy(p->lo + precision_item(p, s, 0), p->level + precision_item(p, s, 0), n);
	return 0;
}

/* One check of the smoothed ranks; `commit` keeps its outcome. */
static int rank_check(struct kvp_precision *p, uint32_t i, float rank, int commit)
{
	float smooth = p->rank_smooth[i] + RANK_SMOOTH * (rank - p->rank_smooth[i]);
	uint32_t streak = 0;

	if (fabsf(smooth - p->rank_ref[i]) >= p->opts.rank_step)
		streak = p->streak[i] < 255 ? p->streak[i] + 1u : 255;
	if (commit) {
		p->rank_smooth[i] = smooth;
		p->streak[i] = (uint8_t)streak;
	}
	return streak >= p->opts.hold;
}

static int free_token(struct kvp_precision *p, uint32_t i, uint32_t n, float rank)
{
	return i >= p->known || p->guarded[i] != protected_token(&p->opts, i, n) ||
	       rank_check(p, i, rank, 0);
}

/* The budget for each token has moved since all were last allocated, by more than ranks may. */
static int budget_moved(const struct kvp_precision *p, double share)
{
	return p->planned && fabs(share - p->share) > p->opts.rank_step * p->share;
}

/* Keeps ranks and references of a plan that stands; `anew`: all tokens were free in it. */
static void remember(struct kvp_precision *p, uint32_t n, uint64_t step, int anew)
{
	uint32_t k;

	for (k = 0; k < n; k++) {
		uint32_t i = p->order[k];
		float rank = rank_at(k, n);

		if (i >= p->known) {
			p->rank_smooth[i] = p->rank_ref[i] = rank;
			p->streak[i] = 0;
		} else if (rank_check(p, i, rank, 1) || anew) {
			p->rank_ref[i] = anew ? rank : p->rank_smooth[i];
			p->streak[i] = 0;
		}
		p->guarded[i] = (uint8_t)protected_token(&p->opts, i, n);
		p->reference[i] = p->weight[i];
	}
	p->known = n;
	p->planned = 1;
	p->last_step = step;
}

int kvp_precision_plan(struct kvp_precision *p, const float *importance, uint32_t n,
	uint64_t budget, uint64_t step, const uint8_t *original,
	struct kvp_precision_change *ret_changes, uint32_t *ret_n, struct kvp_precision_result *ret)
{
	struct kvp_precision_result result = { 0 };
	uint32_t i, k, s, changes = 0;
	uint64_t units;
	double share;
	int anew;

	if (n > p->opts.max_tokens || n < p->known || precision_rank(p, importance, n) < 0)
		return -EINVAL;
	if (payload_units(p, n, budget, &units) < 0 || kvp_precision_floor(p, n) > budget)
		return -ENOSPC;
	share = n ? (double)units / n : 0;
	anew = budget_moved(p, share);
	for (k = 0; k < n; k++) {
		i = p->order[k];
		bound_token(p, i, n, i >= p->known || !original || original[i],
			anew || free_token(p, i, n, rank_at(k, n)));
	}
	if (precision_units(p, p->lo, n) > units && make_room(p, n, units) < 0)
		return -ENOSPC;
	solve(p, n, units, &result);

	for (i = 0; i < n; i++) {
		struct kvp_precision_change c = { .token = i };

		widths_of(p, p->level, i, &c.to_k, &c.to_v);
		if (i < p->known)
			widths_of(p, p->now, i, &c.from_k, &c.from_v);
		if (c.from_k == c.to_k && c.from_v == c.to_v)
			continue;
		result.raised += c.to_k > c.from_k || c.to_v > c.from_v;
		result.lowered += c.to_k < c.from_k || c.to_v < c.from_v;
		ret_changes[changes++] = c;
	}
	for (s = 0; s < p->n_streams; s++)
		memcpy(p->now + precision_item(p, s, 0), p->level + precision_item(p, s, 0), n);
	if (anew || !p->planned)
		p->share = share;
	remember(p, n, step, anew);
	*ret_n = changes;
	if (ret)
		*ret = result;
	return 0;
}

void kvp_precision_reset(struct kvp_precision *p)
{
	p->known = 0;
	p->planned = 0;
	p->last_step = 0;
}

double kvp_precision_dynamic_beta(
	double beta_short, double beta_long, uint32_t n_threshold, uint32_t n)
{
	return n < n_threshold ? beta_short : beta_long;
}

int kvp_precision_layer_budgets(
	double beta, double beta_min, const double *weights, uint32_t layers, double *ret_beta)
{
	double most = 0, least = INFINITY, lo, hi, sum;
	uint32_t l, i;

	if (!layers || layers > KVP_MAX_LAYERS || !(beta_min > 0) || !(beta >= beta_min) ||
		!(beta <= 1))
		return -EINVAL;
	for (l = 0; l < layers; l++) {
		if (!positive(weights[l]) || weights[l] < 1 / KVP_PRECISION_NUMBER_MAX)
			return -EINVAL;
		most = fmax(most, weights[l]);
		least = fmin(least, weights[l]);
	}
	/* The sum of clamp(x w_l) rises with x: bisect for the x that spends beta * layers, by its
	 * logarithm, since weights may be far apart. */
	lo = log(beta_min) - log(most);
	hi = -log(least);
	for (i = 0; i < 100; i++) {
		double x = exp((lo + hi) / 2);

		for (sum = 0, l = 0; l < layers; l++)
			sum += fmin(1, fmax(beta_min, x * weights[l]));
		if (sum > beta * layers)
			hi = (lo + hi) / 2;
		else
			lo = (lo + hi) / 2;
	}
	for (l = 0; l < layers; l++)
		ret_beta[l] = fmin(1, fmax(beta_min, exp(lo) * weights[l]));
	return 0;
}

int kvp_precision_waterfill(
	const float *importance, uint32_t n, double mean_bits, double c, double *ret_distortion)
{
	double lo = -96, hi = 96, sum = 0, theta; /* log4 of a float lies within -75 and 64 */
	uint32_t i, k;

	if (!n || !(mean_bits >= 2) || !positive(c))
		return -EINVAL;
	for (i = 0; i < n; i++)
		if (!isfinite(importance[i]))
			return -EINVAL;
	/* b_i = clamp(log4(I_i) + theta): bisect for the theta that spends the bits. */
	for (k = 0; k < 100; k++) {
		double bits = 0;

		theta = (lo + hi) / 2;
		for (i = 0; i < n; i++)
			bits += importance[i] > 0
					? fmin(8, fmax(2, .5 * log2(importance[i]) + theta))
					: 2;
		if (bits > mean_bits * n)
			hi = theta;
		else
			lo = theta;
	}
	for (i = 0; i < n; i++)
		if (importance[i] > 0)
			sum += importance[i] * c *
			       exp2(-2 * fmin(8, fmax(2, .5 * log2(importance[i]) + lo)));
	*ret_distortion = sum;
	return 0;
}
