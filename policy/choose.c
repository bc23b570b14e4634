/* SPDX-License-Identifier: Apache-2.0 */
/* The optimiser of choose.h: prices by bisection, a greedy fill, exchanges, an exact search. */
#include "policy/choose.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS       16u
#define BISECTIONS   14u
#define FILL_PASSES  8u
#define EXCHANGE_MAX 48u     /* items up to which pairs are exchanged */
#define SEARCH_MAX   64u     /* items up to which the exact search is tried */
#define SEARCH_NODES 200000u /* ... for so many nodes */
#define PRICE_FACTOR 16.0
#define PRICE_MOST   1e15 /* in units, see price_unit() */
#define HARD_WEIGHT  1e9
#define EXCHANGES    200u
#define PRICE_STEPS  8u

struct fill {
	double merit;
	uint32_t item, option;
};

struct choose {
	uint32_t max_items;
	double (*below)[CHOOSE_LEVELS];  /* cost of the subtrees under an item, by support */
	uint32_t (*best)[CHOOSE_LEVELS]; /* option that is best when at most this level may stand */
	uint32_t *pick;                  /* of the evaluation under way */
	uint32_t *chosen;                /* best choice so far */
	uint8_t *children;               /* highest level among an item's children */
	struct fill *fill;
	double price[CHOOSE_DIMS];
	double scale[CHOOSE_DIMS]; /* 1 / (cost-free unit) to compare excesses across dimensions */
	double used[CHOOSE_DIMS];  /* by `chosen` */
	double chosen_excess;
	struct choose_result result;
	/* exact search */
	double suffix[SEARCH_MAX + 1];             /* priced lower bound of the items from i on */
	double least[SEARCH_MAX + 1][CHOOSE_DIMS]; /* least use of the items from i on */
	uint32_t path[SEARCH_MAX];
	uint32_t nodes;
};

struct choose *choose_new(uint32_t max_items)
{
	struct choose *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->max_items = max_items;
	c->below = calloc(max_items, sizeof(*c->below));
	c->best = calloc(max_items, sizeof(*c->best));
	c->pick = calloc(max_items, sizeof(*c->pick));
	c->chosen = calloc(max_items, sizeof(*c->chosen));
	c->children = calloc(max_items, sizeof(*c->children));
	c->fill = calloc(max_items, sizeof(*c->fill));
	if (!c->below || !c->best || !c->pick || !c->chosen || !c->children || !c->fill)
		return choose_free(c);
	return c;
}

struct choose *choose_free(struct choose *c)
{
	if (c) {
		free(c->below);
		free(c->best);
		free(c->pick);
		free(c->chosen);
		free(c->children);
		free(c->fill);
		free(c);
	}
	return NULL;
}

static uint32_t parent_of(const struct choose_problem *p, uint32_t i)
{
	return p->parent ? p->parent[i] : CHOOSE_NONE;
}

static double priced(const struct choose *c, const struct choose_option *o)
{
	double v = o->cost;
	uint32_t d;

	for (d = 0; d < CHOOSE_DIMS; d++)
		v += c->price[d] * o->use[d];
	return v;
}

static void total(
	const struct choose_problem *p, const uint32_t *pick, double *ret_cost, double *ret_used)
{
	double cost = 0;
	uint32_t i, d;

	for (d = 0; d < CHOOSE_DIMS; d++)
		ret_used[d] = 0;
	for (i = 0; i < p->items; i++) {
		const struct choose_option *o = &p->options[pick[i]];

		cost += o->cost;
		for (d = 0; d < CHOOSE_DIMS; d++)
			ret_used[d] += o->use[d];
	}
	*ret_cost = cost;
}

static double excess_of(const struct choose *c, const struct choose_problem *p, const double *used)
{
	double sum = 0;
	uint32_t d;

	for (d = 0; d < CHOOSE_DIMS; d++)
		if (used[d] > p->budget[d])
			sum += (used[d] - p->budget[d]) * c->scale[d];
	return sum;
}

/* Keeps `pick` if it is better: less excess first, then less cost. */
static void consider(struct choose *c, const struct choose_problem *p, const uint32_t *pick)
{
	double used[CHOOSE_DIMS], cost, excess;

	total(p, pick, &cost, used);
	excess = excess_of(c, p, used);
	if (excess > c->chosen_excess || (excess == c->chosen_excess && cost >= c->result.cost))
		return;
	memcpy(c->chosen, pick, p->items * sizeof(*pick));
	memcpy(c->used, used, sizeof(used));
	c->chosen_excess = excess;
	c->result.cost = cost;
}

/*
 * Best choice at the present prices: leaves first, each item's best option for every support that
 * its parent may offer; then from the roots down. Fills ret_used; raises the bound.
 */
static void evaluate(struct choose *c, const struct choose_problem *p, double *ret_used)
{
	double value = 0, cost;
	uint32_t i, k, l, d;

	memset(c->below, 0, p->items * sizeof(*c->below));
	for (i = p->items; i-- > 0;) {
		double low[CHOOSE_LEVELS] = { INFINITY, INFINITY, INFINITY };
		uint32_t parent = parent_of(p, i);

		for (k = p->first[i]; k < p->first[i + 1]; k++) {
			const struct choose_option *o = &p->options[k];
			double v = priced(c, o) + c->below[i][o->support];

			if (v < low[o->level]) {
				low[o->level] = v;
				c->best[i][o->level] = k;
			}
		}
		for (l = 1; l < CHOOSE_LEVELS; l++)
			if (low[l - 1] <= low[l]) {
				low[l] = low[l - 1];
				c->best[i][l] = c->best[i][l - 1];
			}
		if (parent == CHOOSE_NONE)
			value += low[CHOOSE_LEVELS - 1];
		else
			for (l = 0; l < CHOOSE_LEVELS; l++)
				c->below[parent][l] += low[l];
	}
	for (i = 0; i < p->items; i++) {
		uint32_t parent = parent_of(p, i);

		l = parent == CHOOSE_NONE ? CHOOSE_LEVELS - 1 : p->options[c->pick[parent]].support;
		c->pick[i] = c->best[i][l];
	}
	for (d = 0; d < CHOOSE_DIMS; d++)
		if (c->price[d] > 0)
			value -= c->price[d] * p->budget[d];
	if (value > c->result.bound)
		c->result.bound = value;
	total(p, c->pick, &cost, ret_used);
	consider(c, p, c->pick);
}

/* The lowest price of dimension d, the others given, at which its budget holds. */
static void search_price(struct choose *c, const struct choose_problem *p, uint32_t d, double unit)
{
	double used[CHOOSE_DIMS], lo, hi = c->price[d] > 0 ? c->price[d] : unit;
	uint32_t k;

	c->price[d] = 0;
	evaluate(c, p, used);
	if (used[d] <= p->budget[d])
		return;
	/* no budget that can be met at all needs more, and rounds of this must not end in infinity
	 */
	for (k = 0, lo = 0; k < PRICE_STEPS && hi <= unit * PRICE_MOST; k++) {
		c->price[d] = hi;
		evaluate(c, p, used);
		if (used[d] <= p->budget[d])
			break;
		lo = hi;
		hi *= PRICE_FACTOR;
	}
	/* Feasible at the first guess: look for where it stops being so. */
	for (k = 0; lo == 0 && k < PRICE_STEPS; k++) {
		c->price[d] = hi / PRICE_FACTOR;
		evaluate(c, p, used);
		if (used[d] <= p->budget[d])
			hi = c->price[d];
		else
			lo = c->price[d];
	}
	for (k = 0; lo > 0 && k < BISECTIONS && hi / lo > 1.0005; k++) {
		c->price[d] = sqrt(lo * hi);
		evaluate(c, p, used);
		if (used[d] <= p->budget[d])
			hi = c->price[d];
		else
			lo = c->price[d];
	}
	c->price[d] = hi;
}

/* Cost per unit that is typical of dimension d: where the search for its price begins. */
static double price_unit(const struct choose_problem *p, uint32_t d)
{
	double cost = 0, use = 0;
	uint32_t k;

	for (k = 0; k < p->first[p->items]; k++) {
		cost += fabs(p->options[k].cost);
		use += p->options[k].use[d];
	}
	return cost > 0 && use > 0 ? cost / use : 1e-12;
}

static int feasible_at(
	struct choose *c, const struct choose_problem *p, const double *base, double rise)
{
	double used[CHOOSE_DIMS];
	uint32_t d;

	for (d = 0; d < CHOOSE_DIMS; d++)
		c->price[d] = base[d] * (1 + rise);
	evaluate(c, p, used);
	return excess_of(c, p, used) == 0;
}

/*
 * Prices found one after another can miss a budget by the little that the last one pushed over;
 * the least common rise at which all hold is a candidate close to the bound.
 */
static void raise_together(struct choose *c, const struct choose_problem *p)
{
	double base[CHOOSE_DIMS], lo = 0, hi;
	uint32_t k;

	memcpy(base, c->price, sizeof(base));
	for (hi = 1e-4; hi < 1e3 && !feasible_at(c, p, base, hi); hi *= 4)
		lo = hi;
	for (k = 0; lo > 0 && k < BISECTIONS; k++) {
		double mid = (lo + hi) / 2;

		if (feasible_at(c, p, base, mid))
			hi = mid;
		else
			lo = mid;
	}
	memcpy(c->price, base, sizeof(base));
}

static void search_prices(struct choose *c, const struct choose_problem *p)
{
	double used[CHOOSE_DIMS], unit[CHOOSE_DIMS];
	uint32_t round, d;

	/* Everything as dear as can be: the least use there is, and so the first candidate. */
	for (d = 0; d < CHOOSE_DIMS; d++) {
		unit[d] = price_unit(p, d);
		c->price[d] = p->budget[d] < INFINITY ? unit[d] * 1e9 : 0;
	}
	evaluate(c, p, used);
	memset(c->price, 0, sizeof(c->price));
	evaluate(c, p, used);
	if (excess_of(c, p, used) == 0)
		return;
	for (round = 0; round < ROUNDS; round++) {
		double before[CHOOSE_DIMS], moved = 0;

		memcpy(before, c->price, sizeof(before));
		for (d = 0; d < CHOOSE_DIMS; d++) {
			if (p->budget[d] < INFINITY)
				search_price(c, p, d, unit[d]);
			moved = fmax(moved,
				fabs(c->price[d] - before[d]) / (c->price[d] + before[d] + 1e-300));
		}
		if (moved < 1e-3)
			break;
	}
	raise_together(c, p);
}

static void refresh_children(struct choose *c, const struct choose_problem *p)
{
	uint32_t i, parent;

	memset(c->children, 0, p->items);
	for (i = 0; i < p->items; i++) {
		parent = parent_of(p, i);
		if (parent != CHOOSE_NONE && p->options[c->chosen[i]].level > c->children[parent])
			c->children[parent] = (uint8_t)p->options[c->chosen[i]].level;
	}
}

static int stands(
	const struct choose *c, const struct choose_problem *p, uint32_t i, uint32_t option)
{
	const struct choose_option *o = &p->options[option];
	uint32_t parent = parent_of(p, i);

	if (parent != CHOOSE_NONE && o->level > p->options[c->chosen[parent]].support)
		return 0;
	return o->support >= c->children[i];
}

static int fits(const struct choose *c, const struct choose_problem *p,
	const struct choose_option *from, const struct choose_option *to)
{
	uint32_t d;

	for (d = 0; d < CHOOSE_DIMS; d++)
		if (to->use[d] > from->use[d] &&
			c->used[d] + to->use[d] - from->use[d] > p->budget[d])
			return 0;
	return 1;
}

static void apply(struct choose *c, const struct choose_problem *p, uint32_t i, uint32_t option)
{
	const struct choose_option *from = &p->options[c->chosen[i]], *to = &p->options[option];
	uint32_t d, parent = parent_of(p, i);

	for (d = 0; d < CHOOSE_DIMS; d++)
		c->used[d] += to->use[d] - from->use[d];
	c->result.cost += to->cost - from->cost;
	c->chosen[i] = option;
	if (parent != CHOOSE_NONE && to->level > c->children[parent])
		c->children[parent] = (uint8_t)to->level;
}

static int fill_order(const void *a, const void *b)
{
	const struct fill *x = a, *y = b;

	if (x->merit != y->merit)
		return x->merit < y->merit ? 1 : -1;
	return x->item < y->item ? -1 : x->item > y->item;
}

/* Gives back what the prices freed beyond need: cheaper options that fit, best per unit first. */
static int fill_pass(struct choose *c, const struct choose_problem *p)
{
	uint32_t i, k, d, n = 0, applied = 0;

	refresh_children(c, p);
	for (i = 0; i < p->items; i++) {
		const struct choose_option *from = &p->options[c->chosen[i]];
		struct fill f = { .merit = 0 };

		for (k = p->first[i]; k < p->first[i + 1]; k++) {
			const struct choose_option *to = &p->options[k];
			double gain = from->cost - to->cost, weight = 1e-300;

			if (!(gain > 0) || !stands(c, p, i, k) || !fits(c, p, from, to))
				continue;
			for (d = 0; d < CHOOSE_DIMS; d++)
				if (to->use[d] > from->use[d])
					weight += (to->use[d] - from->use[d]) *
						  (c->price[d] + c->scale[d] * 1e-9);
			if (gain / weight > f.merit)
				f = (struct fill){ gain / weight, i, k };
		}
		if (f.merit > 0)
			c->fill[n++] = f;
	}
	qsort(c->fill, n, sizeof(*c->fill), fill_order);
	for (i = 0; i < n; i++) {
		const struct fill *f = &c->fill[i];

		if (!stands(c, p, f->item, f->option) ||
			!fits(c, p, &p->options[c->chosen[f->item]], &p->options[f->option]))
			continue;
		apply(c, p, f->item, f->option);
		applied++;
	}
	return applied > 0;
}

/* Two items change at once where neither could alone. 1 when something got cheaper. */
static int exchange_pass(struct choose *c, const struct choose_problem *p)
{
	uint32_t i, j, a, b, d;

	for (i = 0; i < p->items; i++)
		for (a = p->first[i]; a < p->first[i + 1]; a++) {
			const struct choose_option *fa = &p->options[c->chosen[i]],
						   *ta = &p->options[a];

			if (!(ta->cost < fa->cost) || !stands(c, p, i, a))
				continue;
			for (j = 0; j < p->items; j++)
				for (b = p->first[j]; j != i && b < p->first[j + 1]; b++) {
					const struct choose_option *fb = &p->options[c->chosen[j]],
								   *tb = &p->options[b];
					int ok = ta->cost - fa->cost + tb->cost - fb->cost <
						 -1e-12 * fabs(c->result.cost);

					for (d = 0; ok && d < CHOOSE_DIMS; d++)
						ok = c->used[d] + ta->use[d] - fa->use[d] +
							     tb->use[d] - fb->use[d] <=
						     fmax(p->budget[d], c->used[d]);
					if (!ok || parent_of(p, i) == j || parent_of(p, j) == i ||
						!stands(c, p, j, b))
						continue;
					apply(c, p, i, a);
					apply(c, p, j, b);
					refresh_children(c, p);
					return 1;
				}
		}
	return 0;
}

static void prepare_search(struct choose *c, const struct choose_problem *p)
{
	uint32_t i, k, d;

	c->suffix[p->items] = 0;
	memset(c->least[p->items], 0, sizeof(c->least[0]));
	for (i = p->items; i-- > 0;) {
		double low = INFINITY,
		       use[CHOOSE_DIMS] = { INFINITY, INFINITY, INFINITY, INFINITY };

		for (k = p->first[i]; k < p->first[i + 1]; k++) {
			low = fmin(low, priced(c, &p->options[k]));
			for (d = 0; d < CHOOSE_DIMS; d++)
				use[d] = fmin(use[d], p->options[k].use[d]);
		}
		c->suffix[i] = c->suffix[i + 1] + low;
		for (d = 0; d < CHOOSE_DIMS; d++)
			c->least[i][d] = c->least[i + 1][d] + use[d];
	}
}

/* Depth first, parents before children; `limit` is what the prices make of the budgets. */
static void search(struct choose *c, const struct choose_problem *p, uint32_t i, double cost,
	const double *used, double limit)
{
	double value = cost - limit + c->suffix[i];
	double best = c->chosen_excess > 0 ? INFINITY : c->result.cost;
	uint32_t k, d, parent;

	if (c->nodes >= SEARCH_NODES)
		return;
	c->nodes++;
	for (d = 0; d < CHOOSE_DIMS; d++) {
		value += c->price[d] * used[d];
		if (used[d] + c->least[i][d] > p->budget[d])
			return;
	}
	if (best < INFINITY && value >= best - 1e-9 * fabs(best))
		return;
	if (i == p->items) {
		consider(c, p, c->path);
		return;
	}
	parent = parent_of(p, i);
	for (k = p->first[i]; k < p->first[i + 1]; k++) {
		const struct choose_option *o = &p->options[k];
		double next[CHOOSE_DIMS];

		if (parent != CHOOSE_NONE && o->level > p->options[c->path[parent]].support)
			continue;
		for (d = 0; d < CHOOSE_DIMS; d++)
			next[d] = used[d] + o->use[d];
		c->path[i] = k;
		search(c, p, i + 1, cost + o->cost, next, limit);
	}
}

static void search_exactly(struct choose *c, const struct choose_problem *p)
{
	double used[CHOOSE_DIMS] = { 0 }, limit = 0;
	uint32_t d;

	for (d = 0; d < CHOOSE_DIMS; d++)
		if (c->price[d] > 0)
			limit += c->price[d] * p->budget[d];
	prepare_search(c, p);
	c->nodes = 0;
	search(c, p, 0, 0, used, limit);
	c->result.exact = c->nodes < SEARCH_NODES;
}

/* Solves with the budgets of `p`, from scratch. */
static void solve(struct choose *c, const struct choose_problem *p)
{
	uint32_t d, k;

	c->result = (struct choose_result){ .cost = INFINITY, .bound = -INFINITY };
	c->chosen_excess = INFINITY;
	for (d = 0; d < CHOOSE_DIMS; d++) {
		/* Relative to all that could be used, so that a budget of 0 weighs no more. */
		double all = 1;

		for (k = 0; k < p->first[p->items]; k++)
			all += p->options[k].use[d];
		c->scale[d] = (p->hard & 1u << d ? HARD_WEIGHT : 1) / all;
	}
	search_prices(c, p);
	if (c->chosen_excess > 0 && p->items <= SEARCH_MAX)
		search_exactly(c, p); /* prices cannot pack: few large items may still fit */
	if (c->chosen_excess > 0)
		return;
	if (c->result.cost <= c->result.bound + 1e-12 * fabs(c->result.bound)) {
		c->result.exact = 1;
		return;
	}
	for (k = 0; k < FILL_PASSES && fill_pass(c, p); k++)
		;
	if (p->items <= EXCHANGE_MAX)
		for (k = 0; k < EXCHANGES && (exchange_pass(c, p) || fill_pass(c, p)); k++)
			;
	if (p->items <= SEARCH_MAX)
		search_exactly(c, p);
}

void choose_solve(struct choose *c, const struct choose_problem *problem, uint32_t *ret,
	struct choose_result *result)
{
	struct choose_problem p = *problem;
	uint32_t d;

	solve(c, &p);
	if (c->chosen_excess > 0) {
		/* Not to be met: what was reached becomes the budget, and the cost counts again. */
		for (d = 0; d < CHOOSE_DIMS; d++)
			p.budget[d] = fmax(p.budget[d], c->used[d]);
		solve(c, &p);
	}
	if (c->result.exact)
		c->result.bound = c->result.cost;
	for (d = 0; d < CHOOSE_DIMS; d++)
		c->result.excess[d] = fmax(0, c->used[d] - problem->budget[d]);
	memcpy(ret, c->chosen, problem->items * sizeof(*ret));
	*result = c->result;
}
