/* SPDX-License-Identifier: Apache-2.0 */
/* The pressure ladder: states of each block with their costs, and the steps of the plan chosen. */
#include "policy/kvp_ladder.h"
#include "policy/choose.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX 1000000u
/* Keep; 6 proper subsets of three payloads; 3 tiers x 5 widths; recipe; nothing. */
#define STATES_MAX 24u

enum presence { GONE, AS_RECIPE, AS_PAYLOAD };

/* Payload tiers from fast to slow. */
static const uint8_t by_speed[KVP_TIER_PAYLOADS] = { KVP_TIER_VRAM, KVP_TIER_DRAM, KVP_TIER_STORE };

/* What an option means, beside its numbers. */
struct state {
	uint8_t rung; /* KVP_LADDER_RUNGS: stays as it is */
	uint8_t tier;
	uint8_t width;
	uint8_t drops; /* tiers whose payload goes */
};

struct kvp_ladder {
	struct kvp_ladder_opts opts;
	struct choose *choose;
	uint32_t *first;
	uint32_t *parent;
	uint32_t *chosen;
	struct choose_option *options;
	struct state *states;
};

void kvp_ladder_opts_init(struct kvp_ladder_opts *opts, uint32_t max_blocks)
{
	const struct kvp_width_plane vector = { .heads = 1, .head_dim = 128, .scale_bits = 16 };
	uint32_t w;

	*opts = (struct kvp_ladder_opts){
		.size = sizeof(*opts),
		.max_blocks = max_blocks,
		.widths = 1u << KVP_WIDTH_8 | 1u << KVP_WIDTH_4 | 1u << KVP_WIDTH_3 |
			  1u << KVP_WIDTH_2,
		.error_seconds = 1e-3,
		.decode_seconds = 1e-7,
		.encode_seconds = 1e-6,
		.move_price = .05,
		.forget_seconds = 1e-3,
	};
	memcpy(opts->distortion, kvp_width_distortion, sizeof(opts->distortion));
	opts->ratio[KVP_WIDTH_NATIVE] = 1;
	for (w = KVP_WIDTH_8; w < KVP_WIDTHS; w++)
		opts->ratio[w] = (double)kvp_width_token_bits(&vector, w) /
				 (vector.head_dim * kvp_width_bits(KVP_WIDTH_NATIVE));
}

static int in_range(double v)
{
	return v >= 0 && v <= KVP_LADDER_NUMBER_MAX;
}

static int opts_valid(const struct kvp_ladder_opts *o)
{
	uint32_t w;

	if (o->size != sizeof(*o) || !o->max_blocks || o->max_blocks > BLOCKS_MAX ||
		o->widths >= 1u << KVP_WIDTHS || o->ratio[0] != 1 || o->distortion[0] != 0)
		return 0;
	for (w = 1; w < KVP_WIDTHS; w++)
		if (!(o->ratio[w] > 0) || o->ratio[w] >= o->ratio[w - 1] ||
			!in_range(o->distortion[w]) || o->distortion[w] < o->distortion[w - 1])
			return 0;
	return in_range(o->error_seconds) && in_range(o->decode_seconds) &&
	       in_range(o->encode_seconds) && in_range(o->move_price) &&
	       in_range(o->forget_seconds);
}

int kvp_ladder_new(const struct kvp_ladder_opts *opts, struct kvp_ladder **ret)
{
	struct kvp_ladder *l;
	size_t n;

	if (!opts_valid(opts))
		return -EINVAL;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->opts = *opts;
	n = opts->max_blocks;
	l->choose = choose_new(opts->max_blocks);
	l->first = calloc(n + 1, sizeof(*l->first));
	l->parent = calloc(n, sizeof(*l->parent));
	l->chosen = calloc(n, sizeof(*l->chosen));
	l->options = calloc(n * STATES_MAX, sizeof(*l->options));
	l->states = calloc(n * STATES_MAX, sizeof(*l->states));
	if (!l->choose || !l->first || !l->parent || !l->chosen || !l->options || !l->states) {
		kvp_ladder_free(l);
		return -ENOMEM;
	}
	*ret = l;
	return 0;
}

struct kvp_ladder *kvp_ladder_free(struct kvp_ladder *ladder)
{
	if (ladder) {
		choose_free(ladder->choose);
		free(ladder->first);
		free(ladder->parent);
		free(ladder->chosen);
		free(ladder->options);
		free(ladder->states);
		free(ladder);
	}
	return NULL;
}

static int tier_valid(const struct kvp_ladder_tier *t)
{
	/* Where nothing can go any more there may still be payloads. */
	if (!in_range(t->latency) || !in_range(t->seconds_per_byte))
		return 0;
	if (!t->capacity)
		return 1;
	return t->rise > 0 && t->rise < t->low && t->low < t->high && t->high <= 1 &&
	       t->capacity <= UINT64_C(1) << 52 && t->used <= UINT64_C(1) << 52;
}

static int block_valid(const struct kvp_ladder_block *b, uint32_t i)
{
	uint32_t t;

	for (t = 0; t < KVP_TIER_PAYLOADS; t++)
		if (b->bytes[t] > UINT32_MAX || b->width[t] >= KVP_WIDTHS)
			return 0;
	return (b->parent == KVP_BLOCK_NONE || b->parent < i) && b->native_bytes <= UINT32_MAX &&
	       b->reuse >= 0 && b->reuse <= 1 && in_range(b->recompute_seconds);
}

static uint32_t payloads(const struct kvp_ladder_block *b)
{
	uint32_t t, mask = 0;

	for (t = 0; t < KVP_TIER_PAYLOADS; t++)
		if (b->bytes[t])
			mask |= 1u << t;
	return mask;
}

/* Place in by_speed of the fastest payload of a mask that is not 0. */
static uint32_t fastest(uint32_t mask)
{
	uint32_t s = 0;

	while (!(mask & 1u << by_speed[s]))
		s++;
	return s;
}

static double copy_seconds(const struct kvp_ladder_tier *tiers, uint32_t tier, double bytes)
{
	return tiers[tier].latency + bytes * tiers[tier].seconds_per_byte;
}

/* Seconds that one reuse costs, reading a payload from a tier. */
static double access_seconds(const struct kvp_ladder *l, const struct kvp_ladder_tier *tiers,
	const struct kvp_ladder_block *b, uint32_t tier, uint32_t width, double bytes)
{
	double s = tier == KVP_TIER_VRAM ? 0 : copy_seconds(tiers, tier, bytes);

	if (width != KVP_WIDTH_NATIVE)
		s += b->tokens * l->opts.decode_seconds;
	return s + b->tokens * l->opts.error_seconds * l->opts.distortion[width];
}

static double present_seconds(const struct kvp_ladder *l, const struct kvp_ladder_tier *tiers,
	const struct kvp_ladder_block *b, uint32_t mask)
{
	uint32_t t;

	if (!mask)
		return b->recompute_seconds;
	t = by_speed[fastest(mask)];
	return access_seconds(l, tiers, b, t, b->width[t], (double)b->bytes[t]);
}

/* Where options are appended while a view is turned into a problem. */
struct builder {
	struct kvp_ladder *l;
	const struct kvp_ladder_tier *tiers;
	const struct kvp_ladder_block *b;
	double now;           /* seconds of a reuse as things are */
	enum presence parent; /* the most that can be asked of the parent: what it is now */
	uint32_t pressed;     /* tiers over their marks: they receive nothing */
	uint32_t n;           /* options so far */
};

static struct choose_option *add_state(
	struct builder *w, double seconds, double work, enum presence presence, struct state state)
{
	struct choose_option *o = &w->l->options[w->n];

	*o = (struct choose_option){
		.cost = w->b->reuse * fmax(0, seconds - w->now) + w->l->opts.move_price * work,
		.level = presence < w->parent ? presence : w->parent,
		.support = presence,
	};
	if (presence != GONE)
		o->use[KVP_TIER_RECIPE] = w->b->recipe_bytes;
	w->l->states[w->n++] = state;
	return o;
}

/* The block keeps exactly the payloads of `mask`. */
static void add_subset(struct builder *w, uint32_t have, uint32_t mask)
{
	uint32_t t, keep = by_speed[fastest(mask)];
	struct state s = { mask == have ? KVP_LADDER_RUNGS : KVP_LADDER_DROP, (uint8_t)keep,
		w->b->width[keep], (uint8_t)(have & ~mask) };
	struct choose_option *o =
		add_state(w, present_seconds(w->l, w->tiers, w->b, mask), 0, AS_PAYLOAD, s);

	for (t = 0; t < KVP_TIER_PAYLOADS; t++)
		if (mask & 1u << t)
			o->use[t] = (double)w->b->bytes[t];
}

/* The block has one payload afterwards, in `tier` at `width`. */
static void add_single(struct builder *w, uint32_t have, uint32_t tier, uint32_t width)
{
	const struct kvp_ladder_block *b = w->b;
	uint32_t source = have & 1u << tier ? tier : by_speed[fastest(have)];
	double bytes, work = 0;
	struct choose_option *o;
	struct state s = { tier == source           ? KVP_LADDER_REQUANTISE
			   : tier == KVP_TIER_STORE ? KVP_LADDER_STORE
						    : KVP_LADDER_SPILL,
		(uint8_t)tier, (uint8_t)width, (uint8_t)(have & ~(1u << tier)) };

	if (width < b->width[source] || (tier == source && width == b->width[source]))
		return;
	if (width != b->width[source] && !(w->l->opts.widths & 1u << width))
		return;
	bytes = width == b->width[source] ? (double)b->bytes[source]
					  : ceil((double)b->native_bytes * w->l->opts.ratio[width]);
	if (bytes > (double)b->bytes[source])
		return; /* the codec in use is denser than the table thinks */
	if (tier != source)
		work += copy_seconds(w->tiers, tier, bytes);
	if (width != b->width[source])
		work += b->tokens * w->l->opts.encode_seconds;
	o = add_state(
		w, access_seconds(w->l, w->tiers, b, tier, width, bytes), work, AS_PAYLOAD, s);
	o->use[tier] = bytes;
}

/*
 * A new payload in `tier` must not replace one in a slower tier: the plan's order, which fills
 * STORE before DRAM, could not free the slower one in time.
 */
static int may_hold(const struct builder *w, uint32_t have, uint32_t tier)
{
	if (!w->tiers[tier].capacity)
		return 0;
	return have & 1u << tier ||
	       (!(w->pressed & 1u << tier) &&
		       !(tier == KVP_TIER_DRAM && have & 1u << KVP_TIER_STORE));
}

static void add_block(struct builder *w)
{
	const struct kvp_ladder_block *b = w->b;
	uint32_t have = payloads(b), mask, s, width;

	if (have)
		add_subset(w, have, have);
	else
		add_state(w, b->recompute_seconds, 0, AS_RECIPE,
			(struct state){ KVP_LADDER_RUNGS, KVP_TIER_RECIPE, 0, 0 });
	if (b->flags & KVP_LADDER_FIXED)
		return;
	if (have) {
		for (mask = (have - 1) & have; mask; mask = (mask - 1) & have)
			add_subset(w, have, mask);
		for (s = fastest(have); s < KVP_TIER_PAYLOADS; s++)
			for (width = 0; width < KVP_WIDTHS; width++)
				if (may_hold(w, have, by_speed[s]))
					add_single(w, have, by_speed[s], width);
		add_state(w, b->recompute_seconds, 0, AS_RECIPE,
			(struct state){ KVP_LADDER_RECIPE, KVP_TIER_RECIPE, 0, (uint8_t)have });
	}
	add_state(w, b->recompute_seconds + w->l->opts.forget_seconds, 0, GONE,
		(struct state){ KVP_LADDER_FORGET, KVP_TIER_RECIPE, 0, (uint8_t)have });
}

/*
 * Room for the view's blocks in each tier. A FIXED child in the view holds its parents by their
 * presence, because the options of a parent must support those of its children.
 */
static uint32_t set_budgets(const struct kvp_ladder_tier *tiers,
	const struct kvp_ladder_block *blocks, uint32_t n, double *ret_budget)
{
	uint32_t t, i, pressed = 0;

	for (t = 0; t < KVP_LADDER_TIERS; t++) {
		double in_view = 0, mark;

		if (!tiers[t].capacity) {
			ret_budget[t] = INFINITY;
			continue;
		}
		for (i = 0; i < n; i++)
			in_view += t == KVP_TIER_RECIPE ? blocks[i].recipe_bytes
							: (double)blocks[i].bytes[t];
		mark = tiers[t].high * (double)tiers[t].capacity;
		if ((double)tiers[t].used > mark) {
			pressed |= 1u << t;
			mark = tiers[t].low * (double)tiers[t].capacity;
		}
		/* Others' bytes; a view that counts more than `used` leaves them at none. */
		ret_budget[t] = mark - fmax(0, (double)tiers[t].used - in_view);
	}
	return pressed;
}

/* RECIPE and FORGET go together: a chain may end in both. */
static uint32_t rung_class(uint32_t rung)
{
	return rung == KVP_LADDER_FORGET ? KVP_LADDER_RECIPE : rung;
}

static int step_order(const void *a, const void *b)
{
	const struct kvp_ladder_step *x = a, *y = b;
	uint32_t cx = rung_class(x->rung), cy = rung_class(y->rung);

	if (cx != cy)
		return cx < cy ? -1 : 1;
	/* Leaves before parents, which come earlier in the view. */
	return x->index > y->index ? -1 : x->index < y->index;
}

static void descend(struct kvp_ladder *l, const struct kvp_ladder_tier *tiers,
	const struct kvp_ladder_block *blocks, uint32_t n, const double *budget,
	struct kvp_ladder_step *steps, uint32_t *ret_n, struct kvp_ladder_result *result)
{
	struct builder w = { .l = l, .tiers = tiers, .pressed = result->under_pressure };
	struct choose_problem problem = {
		.items = n, .first = l->first, .options = l->options, .parent = l->parent
	};
	struct choose_result r;
	uint32_t i, t, count = 0;

	for (i = 0; i < n; i++) {
		w.b = &blocks[i];
		w.now = present_seconds(l, tiers, w.b, payloads(w.b));
		/* A hole in a chain (a parent without payload) is no reason to drop the child. */
		w.parent = blocks[i].parent == KVP_BLOCK_NONE || payloads(&blocks[blocks[i].parent])
				   ? AS_PAYLOAD
				   : AS_RECIPE;
		l->first[i] = w.n;
		l->parent[i] = blocks[i].parent == KVP_BLOCK_NONE ? CHOOSE_NONE : blocks[i].parent;
		add_block(&w);
	}
	l->first[n] = w.n;
	/* Relief for one tier must never overfill another. */
	problem.hard = ~result->under_pressure;
	memcpy(problem.budget, budget, sizeof(problem.budget));
	choose_solve(l->choose, &problem, l->chosen, &r);
	for (i = 0; i < n; i++) {
		const struct state *s = &l->states[l->chosen[i]];

		if (s->rung == KVP_LADDER_RUNGS)
			continue;
		steps[count++] = (struct kvp_ladder_step){ i, blocks[i].block, s->rung, s->tier,
			s->width, s->drops, l->options[l->chosen[i]].cost };
	}
	qsort(steps, count, sizeof(*steps), step_order);
	result->cost = r.cost;
	result->bound = r.bound;
	result->exact = (uint32_t)r.exact;
	for (t = 0; t < KVP_LADDER_TIERS; t++)
		result->missing[t] = (uint64_t)ceil(r.excess[t]);
	*ret_n = count;
}

static int gain_order(const void *a, const void *b)
{
	const struct kvp_ladder_step *x = a, *y = b;

	if (x->cost != y->cost)
		return x->cost < y->cost ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

/*
 * Fills the tiers that are below their rise mark, fastest first, with what gains most per byte.
 * The copy in the slower tier stays: under pressure the new one is then free to drop.
 */
static void ascend(struct kvp_ladder *l, const struct kvp_ladder_tier *tiers,
	const struct kvp_ladder_block *blocks, uint32_t n, struct kvp_ladder_step *steps,
	uint32_t *ret_n, struct kvp_ladder_result *result)
{
	uint32_t s, i, k, count = 0;

	for (i = 0; i < n; i++)
		l->chosen[i] = 0; /* 1: has a step already */
	for (s = 0; s + 1 < KVP_TIER_PAYLOADS; s++) {
		uint32_t tier = by_speed[s], begin = count, kept = begin;
		double room =
			tiers[tier].rise * (double)tiers[tier].capacity - (double)tiers[tier].used;

		for (i = 0; room > 0 && i < n; i++) {
			const struct kvp_ladder_block *b = &blocks[i];
			uint32_t have = payloads(b), from;
			double gain, bytes;

			if (l->chosen[i] || b->flags & KVP_LADDER_FIXED || !have ||
				fastest(have) <= s)
				continue;
			from = by_speed[fastest(have)];
			bytes = (double)b->bytes[from];
			gain = b->reuse * (present_seconds(l, tiers, b, have) -
						  access_seconds(l, tiers, b, tier, b->width[from],
							  bytes)) -
			       l->opts.move_price * copy_seconds(tiers, from, bytes);
			if (gain > 0)
				steps[count++] =
					(struct kvp_ladder_step){ i, b->block, KVP_LADDER_RISE,
						(uint8_t)tier, b->width[from], 0, -gain / bytes };
		}
		qsort(steps + begin, count - begin, sizeof(*steps), gain_order);
		for (k = begin; k < count; k++) {
			struct kvp_ladder_step step = steps[k];
			double bytes =
				(double)blocks[step.index]
					.bytes[by_speed[fastest(payloads(&blocks[step.index]))]];

			if (bytes > room)
				continue;
			room -= bytes;
			step.cost *= bytes;
			result->cost += step.cost;
			l->chosen[step.index] = 1;
			steps[kept++] = step;
		}
		count = kept;
	}
	result->bound = result->cost;
	*ret_n = count;
}

int kvp_ladder_plan(struct kvp_ladder *ladder, const struct kvp_ladder_tier *tiers,
	const struct kvp_ladder_block *blocks, uint32_t n, struct kvp_ladder_step *ret_steps,
	uint32_t *ret_n, struct kvp_ladder_result *ret)
{
	struct kvp_ladder_result result = { 0 };
	double budget[KVP_LADDER_TIERS];
	uint32_t i;

	if (n > ladder->opts.max_blocks)
		return -EINVAL;
	for (i = 0; i < KVP_LADDER_TIERS; i++)
		if (!tier_valid(&tiers[i]))
			return -EINVAL;
	for (i = 0; i < n; i++)
		if (!block_valid(&blocks[i], i))
			return -EINVAL;
	result.under_pressure = set_budgets(tiers, blocks, n, budget);
	if (result.under_pressure)
		descend(ladder, tiers, blocks, n, budget, ret_steps, ret_n, &result);
	else
		ascend(ladder, tiers, blocks, n, ret_steps, ret_n, &result);
	*ret = result;
	return 0;
}
