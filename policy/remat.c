/* SPDX-License-Identifier: Apache-2.0 */
/* Rematerialization: what to compute and what to load, what to give up, and what to get back. */
#include "policy/kvp_remat.h"
#include "policy/choose.h"
#include "policy/kvp_ladder.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX      1000000u
#define CUTS           8u /* places where a run can end, beside where it ends now */
#define OPTIONS_MAX    ((CUTS + 1) * KVP_WIDTHS)
#define THRESHOLDS     128u /* coarse candidates of a restore */
#define SEARCH_PIECES  64u
#define SEARCH_NODES   100000u
#define IMPROVE_PIECES 128u
#define IMPROVE_ROUNDS 16u
#define PAIR_PIECES    32u

struct kvp_remat {
	struct kvp_remat_opts opts;
	/* restore */
	double *load;    /* [max_pieces]: seconds on the tier's channel, without its latency */
	double *compute; /* [max_pieces] */
	uint32_t *order; /* loadable pieces by falling load / compute */
	uint8_t *action;
	uint8_t *trial;
	uint32_t nodes; /* of the search under way */
	/* plans */
	struct choose *choose;
	uint32_t *first;
	uint32_t *parent;
	uint32_t *chosen;
	struct choose_option *options;
	struct kvp_remat_decision *decisions; /* one for each option */
};

double kvp_remat_compute_seconds(const struct kvp_remat_model *m, uint64_t begin, uint64_t end)
{
	double n = (double)(end - begin), mid = ((double)begin + (double)end) / 2;

	return (2 * m->params * n + 4. * m->layers * m->q_heads * m->head_dim * n * mid) /
	       m->flops_per_second;
}

double kvp_remat_load_seconds(const struct kvp_remat_source *s, uint64_t bytes, uint64_t tokens)
{
	return s->latency + (double)bytes * s->seconds_per_byte +
	       (double)tokens * s->decode_seconds;
}

int kvp_remat_keep(double reuse, double seconds_saved, uint64_t bytes, double horizon, double rent)
{
	return reuse * seconds_saved >= rent * (double)bytes * horizon;
}

void kvp_remat_opts_init(struct kvp_remat_opts *opts, uint32_t max_pieces, uint32_t max_runs)
{
	struct kvp_ladder_opts ladder;

	kvp_ladder_opts_init(&ladder, 1);
	*opts = (struct kvp_remat_opts){
		.size = sizeof(*opts),
		.max_pieces = max_pieces,
		.max_runs = max_runs,
		.pressure = .9,
		.min_materialized = 512,
		.error_seconds = ladder.error_seconds,
		.widths = ladder.widths,
	};
	memcpy(opts->distortion, ladder.distortion, sizeof(opts->distortion));
	memcpy(opts->ratio, ladder.ratio, sizeof(opts->ratio));
	opts->source[KVP_TIER_DRAM] =
		(struct kvp_remat_source){ 1e-5, 1 / 25e9, ladder.decode_seconds };
	opts->source[KVP_TIER_STORE] =
		(struct kvp_remat_source){ 1e-4, 1 / 7e9, ladder.decode_seconds };
}

static int not_negative(double v)
{
	return v >= 0 && v <= KVP_LADDER_NUMBER_MAX;
}

static uint64_t to_bytes(double v)
{
	return v < 0x1p64 ? (uint64_t)v : UINT64_MAX;
}

static int opts_valid(const struct kvp_remat_opts *o)
{
	const struct kvp_remat_model *m = &o->model;
	uint32_t t, w;

	if (o->size != sizeof(*o) || !o->max_pieces || o->max_pieces > COUNT_MAX || !o->max_runs ||
		o->max_runs > COUNT_MAX || !(m->params > 0) || m->params > 1e18 || !m->layers ||
		m->layers > KVP_MAX_LAYERS || !m->q_heads || m->q_heads > 65536 || !m->head_dim ||
		m->head_dim > 65536 || !(m->flops_per_second >= 1) || m->flops_per_second > 1e30 ||
		!not_negative(m->launch_seconds))
		return 0;
	for (t = 0; t < KVP_TIER_PAYLOADS; t++)
		if (!not_negative(o->source[t].latency) ||
			!not_negative(o->source[t].seconds_per_byte) ||
			!not_negative(o->source[t].decode_seconds))
			return 0;
	for (w = 1; w < KVP_WIDTHS; w++)
		if (!(o->ratio[w] > 0) || o->ratio[w] >= o->ratio[w - 1] ||
			!not_negative(o->distortion[w]) || o->distortion[w] < o->distortion[w - 1])
			return 0;
	return o->pressure > 0 && o->pressure <= 1 && not_negative(o->age_half_life) &&
	       not_negative(o->error_seconds) && o->ratio[0] == 1 && o->distortion[0] == 0 &&
	       o->widths < 1u << KVP_WIDTHS;
}

int kvp_remat_new(const struct kvp_remat_opts *opts, struct kvp_remat **ret)
{
	struct kvp_remat *r;
	size_t pieces, runs;

	if (!opts_valid(opts))
		return -EINVAL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return -ENOMEM;
	r->opts = *opts;
	pieces = opts->max_pieces;
	runs = opts->max_runs;
	r->load = calloc(pieces, sizeof(*r->load));
	r->compute = calloc(pieces, sizeof(*r->compute));
	r->order = calloc(pieces, sizeof(*r->order));
	r->action = calloc(pieces, 1);
	r->trial = calloc(pieces, 1);
	r->choose = choose_new(opts->max_runs);
	r->first = calloc(runs + 1, sizeof(*r->first));
	r->parent = calloc(runs, sizeof(*r->parent));
	r->chosen = calloc(runs, sizeof(*r->chosen));
	r->options = calloc(runs * OPTIONS_MAX, sizeof(*r->options));
	r->decisions = calloc(runs * OPTIONS_MAX, sizeof(*r->decisions));
	if (!r->load || !r->compute || !r->order || !r->action || !r->trial || !r->choose ||
		!r->first || !r->parent || !r->chosen || !r->options || !r->decisions) {
		kvp_remat_free(r);
		return -ENOMEM;
	}
	*ret = r;
	return 0;
}

struct kvp_remat *kvp_remat_free(struct kvp_remat *r)
{
	if (r) {
		free(r->load);
		free(r->compute);
		free(r->order);
		free(r->action);
		free(r->trial);
		choose_free(r->choose);
		free(r->first);
		free(r->parent);
		free(r->chosen);
		free(r->options);
		free(r->decisions);
		free(r);
	}
	return NULL;
}

/* A schedule under way: loads per tier in chain order, computing when all before is in. */
struct schedule {
	double channel[KVP_TIER_PAYLOADS];
	double loaded, computed;
	int running; /* the piece before was computed too: no new launch */
};

static void schedule_piece(
	const struct kvp_remat *r, struct schedule *s, uint32_t tier, uint32_t i, uint8_t action)
{
	double *c;

	switch (action) {
	case KVP_REMAT_LOAD:
		c = &s->channel[tier];
		*c += (*c == 0 ? r->opts.source[tier].latency : 0) + r->load[i];
		s->loaded = fmax(s->loaded, *c);
		break;
	case KVP_REMAT_COMPUTE:
		s->computed = fmax(s->computed, s->loaded) + r->compute[i];
		if (!s->running)
			s->computed += r->opts.model.launch_seconds;
		break;
	}
	s->running = action == KVP_REMAT_COMPUTE;
}

static double makespan(const struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n,
	const uint8_t *action)
{
	struct schedule s = { .running = 0 };
	uint32_t i;

	for (i = 0; i < n; i++)
		schedule_piece(r, &s, pieces[i].tier, i, action[i]);
	return fmax(s.computed, s.loaded);
}

static double ratio_of(const struct kvp_remat *r, uint32_t i)
{
	return r->load[i] / r->compute[i];
}

/* Sorts order[lo, hi) by falling ratio, earlier pieces first; a heap, for its bounded stack. */
static int before(const struct kvp_remat *r, uint32_t a, uint32_t b)
{
	double x = ratio_of(r, a), y = ratio_of(r, b);

	return x != y ? x > y : a < b;
}

static void sift(struct kvp_remat *r, uint32_t at, uint32_t n)
{
	uint32_t *h = r->order, child;

	for (; (child = 2 * at + 1) < n; at = child) {
		uint32_t t = h[at];

		if (child + 1 < n && before(r, h[child], h[child + 1]))
			child++;
		if (!before(r, h[at], h[child]))
			break;
		h[at] = h[child];
		h[child] = t;
	}
}

static void sort_by_ratio(struct kvp_remat *r, uint32_t n)
{
	uint32_t k;

	for (k = n / 2; k-- > 0;)
		sift(r, k, n);
	for (k = n; k-- > 1;) {
		uint32_t t = r->order[0];

		r->order[0] = r->order[k];
		r->order[k] = t;
		sift(r, 0, k);
	}
}

/* The first k loadable pieces of the order are computed, the others loaded. */
static double try_threshold(struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n,
	uint32_t loadable, uint32_t k, double best)
{
	double t;
	uint32_t i;

	for (i = 0; i < loadable; i++)
		r->trial[r->order[i]] = i < k ? KVP_REMAT_COMPUTE : KVP_REMAT_LOAD;
	t = makespan(r, pieces, n, r->trial);
	if (t >= best)
		return best;
	memcpy(r->action, r->trial, n);
	return t;
}

static double search_thresholds(
	struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n, uint32_t loadable)
{
	uint32_t step = loadable / THRESHOLDS + 1, k, at = 0;
	double best = INFINITY, t;

	for (k = 0; k <= loadable + step - 1; k += step) {
		uint32_t at_k = k < loadable ? k : loadable;

		t = try_threshold(r, pieces, n, loadable, at_k, best);
		if (t < best) {
			best = t;
			at = at_k;
		}
	}
	for (k = at > step ? at - step : 0; k <= at + step && k <= loadable; k++)
		best = try_threshold(r, pieces, n, loadable, k, best);
	return best;
}

/* A stretch of the chain is computed in one run, all else loaded: where launches are dear. */
static double search_stretches(
	struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n, double best)
{
	uint32_t begin, end, i;

	for (begin = 0; begin < n; begin++) {
		for (i = 0; i < n; i++)
			if (r->trial[i] != KVP_REMAT_PRESENT && pieces[i].tier != KVP_TIER_RECIPE)
				r->trial[i] = KVP_REMAT_LOAD;
		for (end = begin; end < n; end++) {
			double t;

			if (r->trial[end] != KVP_REMAT_LOAD)
				continue;
			r->trial[end] = KVP_REMAT_COMPUTE;
			t = makespan(r, pieces, n, r->trial);
			if (t < best) {
				best = t;
				memcpy(r->action, r->trial, n);
			}
		}
	}
	return best;
}

static void flip(struct kvp_remat *r, uint32_t at)
{
	uint8_t *a = &r->action[r->order[at]];

	*a = *a == KVP_REMAT_LOAD ? KVP_REMAT_COMPUTE : KVP_REMAT_LOAD;
}

/* Keeps the flip of pieces i and j (i == j: of one) if that is quicker. */
static double try_flip(struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n,
	uint32_t i, uint32_t j, double best)
{
	double t;

	flip(r, i);
	if (i != j)
		flip(r, j);
	t = makespan(r, pieces, n, r->action);
	if (t < best)
		return t;
	flip(r, i);
	if (i != j)
		flip(r, j);
	return best;
}

/* One piece changes sides, or two at once, as long as that helps. */
static double improve(struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n,
	uint32_t loadable, double best)
{
	uint32_t reach = loadable <= PAIR_PIECES ? loadable : 1, round, i, j;
	double last = INFINITY;

	for (round = 0; best < last && round < IMPROVE_ROUNDS; round++) {
		last = best;
		for (i = 0; i < loadable; i++)
			for (j = i; j < loadable && j < i + reach; j++)
				best = try_flip(r, pieces, n, i, j, best);
	}
	return best;
}

/* Depth first over the chain; a schedule only gets longer, so one that is too long is left. */
static void search_pieces(struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n,
	uint32_t i, const struct schedule *so_far, double *best)
{
	uint8_t action;

	if (fmax(so_far->computed, so_far->loaded) >= *best || r->nodes >= SEARCH_NODES)
		return;
	r->nodes++;
	if (i == n) {
		*best = fmax(so_far->computed, so_far->loaded);
		memcpy(r->action, r->trial, n);
		return;
	}
	for (action = KVP_REMAT_PRESENT; action <= KVP_REMAT_COMPUTE; action++) {
		struct schedule next = *so_far;
		int loadable = pieces[i].tier != KVP_TIER_VRAM && pieces[i].tier != KVP_TIER_RECIPE;

		if (loadable ? action == KVP_REMAT_PRESENT : action != r->action[i])
			continue;
		schedule_piece(r, &next, pieces[i].tier, i, action);
		r->trial[i] = action;
		search_pieces(r, pieces, n, i + 1, &next, best);
	}
}

int kvp_remat_restore(struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n,
	uint64_t first, uint8_t *ret_action, struct kvp_remat_range *ret_ranges, uint32_t *ret_n,
	double *ret_seconds)
{
	uint32_t i, loadable = 0, ranges = 0;
	uint64_t at = first;
	double best;

	if (n > r->opts.max_pieces || first > UINT64_C(1) << 40)
		return -EINVAL;
	for (i = 0; i < n; i++) {
		if (!pieces[i].tokens || pieces[i].tier > KVP_TIER_RECIPE)
			return -EINVAL;
	}
	for (i = 0; i < n; at += pieces[i].tokens, i++) {
		const struct kvp_remat_piece *p = &pieces[i];

		r->compute[i] = kvp_remat_compute_seconds(&r->opts.model, at, at + p->tokens);
		r->action[i] = p->tier == KVP_TIER_VRAM     ? KVP_REMAT_PRESENT
			       : p->tier == KVP_TIER_RECIPE ? KVP_REMAT_COMPUTE
							    : KVP_REMAT_LOAD;
		if (r->action[i] == KVP_REMAT_LOAD) {
			const struct kvp_remat_source *s = &r->opts.source[p->tier];

			r->load[i] = kvp_remat_load_seconds(s, p->bytes, p->tokens) - s->latency;
			r->order[loadable++] = i;
		}
	}
	memcpy(r->trial, r->action, n);
	sort_by_ratio(r, loadable);
	best = search_thresholds(r, pieces, n, loadable);
	if (loadable <= IMPROVE_PIECES && n <= IMPROVE_PIECES) {
		best = search_stretches(r, pieces, n, best);
		best = improve(r, pieces, n, loadable, best);
	}
	if (n <= SEARCH_PIECES) {
		struct schedule start = { .running = 0 };

		r->nodes = 0;
		search_pieces(r, pieces, n, 0, &start, &best);
	}

	memcpy(ret_action, r->action, n);
	for (i = 0, at = first; i < n; at += pieces[i].tokens, i++) {
		if (r->action[i] != KVP_REMAT_COMPUTE)
			continue;
		if (ranges && ret_ranges[ranges - 1].end == at)
			ret_ranges[ranges - 1].end += pieces[i].tokens;
		else
			ret_ranges[ranges++] =
				(struct kvp_remat_range){ at, at + pieces[i].tokens };
	}
	*ret_n = ranges;
	*ret_seconds = best;
	return 0;
}

static int run_valid(const struct kvp_remat_run *run, uint32_t i)
{
	return (run->parent == KVP_BLOCK_NONE || run->parent < i) && run->blocks >= 1 &&
	       run->blocks <= COUNT_MAX && run->block_tokens >= 1 &&
	       run->block_tokens <= KVP_BLOCK_TOKENS_MAX && run->materialized <= run->blocks &&
	       run->width < KVP_WIDTHS && run->native_bytes <= UINT32_MAX &&
	       run->first <= UINT64_C(1) << 40 && run->reuse >= 0 && run->reuse <= 1 &&
	       not_negative(run->age);
}

static double block_bytes(
	const struct kvp_remat *r, const struct kvp_remat_run *run, uint32_t width)
{
	return ceil((double)run->native_bytes * r->opts.ratio[width]);
}

/* Seconds to have blocks [from, to) of a run computed, the launch included. */
static double run_seconds(
	const struct kvp_remat *r, const struct kvp_remat_run *run, uint32_t from, uint32_t to)
{
	uint64_t begin = run->first + (uint64_t)from * run->block_tokens;
	uint64_t end = run->first + (uint64_t)to * run->block_tokens;

	return from < to ? kvp_remat_compute_seconds(&r->opts.model, begin, end) +
				   r->opts.model.launch_seconds
			 : 0;
}

/* Loss per reuse of having tokens at a width rather than native. */
static double width_seconds(const struct kvp_remat *r, double tokens, uint32_t width)
{
	double decode = width ? r->opts.source[KVP_TIER_DRAM].decode_seconds : 0;

	return tokens * (decode + r->opts.error_seconds * r->opts.distortion[width]);
}

static double reuse_now(const struct kvp_remat *r, const struct kvp_remat_run *run)
{
	if (r->opts.age_half_life > 0)
		return run->reuse * exp2(-run->age / r->opts.age_half_life);
	return run->reuse;
}

/* The k-th of the places between lo and hi where a run may be cut, k = 0..cuts. */
static uint32_t cut_count(uint32_t lo, uint32_t hi)
{
	return hi - lo < CUTS ? hi - lo : CUTS;
}

static uint32_t cut_at(uint32_t lo, uint32_t hi, uint32_t k)
{
	uint32_t cuts = cut_count(lo, hi);

	return cuts ? lo + (uint32_t)((uint64_t)(hi - lo) * k / cuts) : lo;
}

/* Options of a run under pressure: where to cut, and at which width the rest stays. */
static uint32_t give_up_options(struct kvp_remat *r, const struct kvp_remat_run *run, uint32_t n)
{
	uint32_t have = run->materialized, least = 0, k, width, keep;
	double p = reuse_now(r, run);

	if (run->live && run->first < r->opts.min_materialized) {
		uint64_t tokens = r->opts.min_materialized - run->first;
		uint64_t blocks = (tokens + run->block_tokens - 1) / run->block_tokens;

		least = blocks < have ? (uint32_t)blocks : have;
	}
	for (k = 0; k <= cut_count(least, have); k++)
		for (width = run->width; width < KVP_WIDTHS; width++) {
			double seconds;

			keep = cut_at(least, have, k);
			if (width != run->width && (!(r->opts.widths & 1u << width) || !keep))
				continue;
			seconds = run_seconds(r, run, keep, run->blocks) -
				  run_seconds(r, run, have, run->blocks) +
				  width_seconds(r, (double)keep * run->block_tokens, width) -
				  width_seconds(r, (double)keep * run->block_tokens, run->width);
			r->decisions[n] = (struct kvp_remat_decision){ keep < have ? KVP_REMAT_EVICT
								       : width > run->width
									       ? KVP_REMAT_QUANTIZE
									       : KVP_REMAT_KEEP,
				keep, width, p * seconds };
			r->options[n++] = (struct choose_option){ .cost = p * seconds,
				.use = { keep * block_bytes(r, run, width) },
				.level = keep > 0,
				.support = keep == have };
		}
	return n;
}

static void link_parents(struct kvp_remat *r, const struct kvp_remat_run *runs, uint32_t n)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		r->parent[i] = runs[i].parent == KVP_BLOCK_NONE ? CHOOSE_NONE : runs[i].parent;
}

static void solve_runs(struct kvp_remat *r, const double *budget, uint32_t n,
	struct kvp_remat_decision *ret_decisions, struct choose_result *result)
{
	struct choose_problem problem = {
		.items = n, .first = r->first, .options = r->options, .parent = r->parent
	};
	uint32_t i;

	memcpy(problem.budget, budget, sizeof(problem.budget));
	choose_solve(r->choose, &problem, r->chosen, result);
	for (i = 0; i < n; i++)
		ret_decisions[i] = r->decisions[r->chosen[i]];
}

int kvp_remat_plan(struct kvp_remat *r, double used, uint64_t need,
	const struct kvp_remat_run *runs, uint32_t n, struct kvp_remat_decision *ret_decisions,
	struct kvp_remat_result *ret)
{
	double budget[CHOOSE_DIMS] = { 0, INFINITY, INFINITY, INFINITY }, held = 0, after = 0;
	struct choose_result result;
	uint32_t i, count = 0;

	if (n > r->opts.max_runs || !not_negative(used))
		return -EINVAL;
	for (i = 0; i < n; i++)
		if (!run_valid(&runs[i], i))
			return -EINVAL;
	if (used < r->opts.pressure || !need) {
		for (i = 0; i < n; i++)
			ret_decisions[i] = (struct kvp_remat_decision){ KVP_REMAT_KEEP,
				runs[i].materialized, runs[i].width, 0 };
		*ret = (struct kvp_remat_result){ .exact = 1 };
		return 0;
	}
	link_parents(r, runs, n);
	for (i = 0; i < n; i++) {
		held += runs[i].materialized * block_bytes(r, &runs[i], runs[i].width);
		r->first[i] = count;
		count = give_up_options(r, &runs[i], count);
	}
	r->first[n] = count;
	budget[0] = held - (double)need;
	solve_runs(r, budget, n, ret_decisions, &result);
	for (i = 0; i < n; i++)
		after += ret_decisions[i].keep * block_bytes(r, &runs[i], ret_decisions[i].width);
	*ret = (struct kvp_remat_result){ .freed = to_bytes(held - after),
		.missing = to_bytes(result.excess[0]),
		.seconds = result.cost,
		.bound = result.bound,
		.exact = (uint32_t)result.exact };
	return 0;
}

int kvp_remat_ahead(struct kvp_remat *r, uint64_t room, double seconds, double price_compute,
	double rent, const struct kvp_remat_run *runs, uint32_t n,
	struct kvp_remat_decision *ret_decisions, struct kvp_remat_result *ret)
{
	double budget[CHOOSE_DIMS] = { (double)room, seconds, INFINITY, INFINITY }, taken = 0;
	struct choose_result result;
	uint32_t i, k, count = 0;

	if (n > r->opts.max_runs || !not_negative(seconds) || !not_negative(price_compute) ||
		!not_negative(rent))
		return -EINVAL;
	for (i = 0; i < n; i++)
		if (!run_valid(&runs[i], i))
			return -EINVAL;
	link_parents(r, runs, n);
	for (i = 0; i < n; i++) {
		const struct kvp_remat_run *run = &runs[i];
		uint32_t have = run->materialized, cuts = cut_count(have, run->blocks);

		r->first[i] = count;
		for (k = 0; k <= cuts; k++) {
			uint32_t keep = cut_at(have, run->blocks, k);
			double now = run_seconds(r, run, have, keep);
			double bytes = (keep - have) * block_bytes(r, run, 0);
			double saved = run_seconds(r, run, have, run->blocks) -
				       run_seconds(r, run, keep, run->blocks);
			double cost =
				rent * bytes + price_compute * now - reuse_now(r, run) * saved;

			r->decisions[count] = (struct kvp_remat_decision){ KVP_REMAT_KEEP, keep,
				run->width, cost };
			r->options[count++] = (struct choose_option){ .cost = cost,
				.use = { bytes, now },
				.level = keep > have,
				.support = keep == run->blocks };
		}
	}
	r->first[n] = count;
	solve_runs(r, budget, n, ret_decisions, &result);
	for (i = 0; i < n; i++)
		taken += (ret_decisions[i].keep - runs[i].materialized) *
			 block_bytes(r, &runs[i], 0);
	*ret = (struct kvp_remat_result){ .freed = to_bytes(taken),
		.seconds = -result.cost,
		.bound = -result.bound,
		.exact = (uint32_t)result.exact };
	return 0;
}
