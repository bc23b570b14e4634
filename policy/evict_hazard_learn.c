/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hazards from counts, and the index of every cell from hazards.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "policy/evict_hazard.h"

/*
 * How many blocks of data weigh as much as what is assumed without them. For a class it grows with
 * experience: at first any difference is worth trying, later the choice of the best among many
 * cells favours those that look good by chance.
 */
#define WEIGHT_CLASS_MIN 10.0
#define WEIGHT_CLASS_MAX 300.0
#define WEIGHT_GROWTH    100.0 /* blocks seen for each more */
#define WEIGHT_ALL       15.0
#define HAZARD_PRIOR     0.05 /* per bin */
#define HAZARD_MAX       0.99
/* Bins on either side that a bin is compared with: an octave. */
#define NEIGHBOURS PER_OCTAVE

#define ALL FAMILIES /* beside the families */

struct stretch {
	double hits, time, survive;
};

/* What a family's hazard is taken for, by that of all blocks, as long as it has no data. */
static const double family_prior[FAMILIES] = {
	[FAMILY_FRESH] = 1, [FAMILY_SEEN] = 2, [FAMILY_PARTIAL] = 0.2, [FAMILY_SHARED] = 10
};

struct tally {
	double entries, events, hazard;
};

/* What all classes together say. */
struct lesson {
	struct tally family[FAMILIES + 1][BINS];
	struct tally often[2][BINS]; /* by the minor number of the class */
	double weight;
	uint32_t top;
};

#define BLANKS (FAMILIES + 2) /* different classes without data: families, and OFTEN by minor */

void hazard_count_hit(struct kvp_evict *e, uint32_t i)
{
	struct hazard *h = e->self;
	const struct group *g = &h->group[i];
	uint32_t bin = bin_of(h->now - g->born);
	struct cell *c = &h->cell[g->code * BINS];

	c[bin].events += 1;
	for (uint32_t b = g->bin + 1u; b <= bin; b++)
		c[b].entries += 1; /* no sweep has seen it there */
}

/* The index of each bin of a class, given the hazards of those up to `top`. */
static void index_class(const double *hazard, uint32_t top, double *ret_index)
{
	struct stretch stack[BINS];
	uint32_t n = 0, floor_bin = FLOOR_BIN < top ? FLOOR_BIN : top;
	double index = 0;

	for (uint32_t b = top;; b--) {
		double live = 1 - hazard[b], begin = (double)bin_begin(b);
		for (uint32_t k = 0; b == floor_bin && k < b; k++) {
			live *= 1 - hazard[k];
			begin = 0;
		}
		struct stretch s = {
			.hits = 1 - live,
			.time = ((double)bin_end(b) - begin) * (1 + live) / 2,
			.survive = live,
		};
		while (n && stack[n - 1].hits * s.time > s.hits * stack[n - 1].time) {
			const struct stretch *u = &stack[--n];
			s.hits += s.survive * u->hits;
			s.time += s.survive * u->time;
			s.survive *= u->survive;
		}
		stack[n++] = s;
		index = s.hits / s.time;
		ret_index[b] = index;
		if (b == floor_bin)
			break;
	}
	for (uint32_t b = 0; b < floor_bin; b++)
		ret_index[b] = index;
	index = stack[0].hits / stack[0].time; /* of bin `top` */
	for (uint32_t b = top + 1; b < BINS; b++)
		ret_index[b] = index * (double)bin_begin(top) / (double)bin_begin(b);
}

static double class_weight(uint64_t seen)
{
	double w = WEIGHT_CLASS_MIN + (double)seen / WEIGHT_GROWTH;

	return w < WEIGHT_CLASS_MAX ? w : WEIGHT_CLASS_MAX;
}

/* Hazards of all blocks, then of the families. Returns the last bin with data. */
static uint32_t tally(const struct cell *cell, double w, struct tally t[FAMILIES + 1][BINS])
{
	uint32_t top = 0;
	double before = HAZARD_PRIOR;

	memset(t, 0, (FAMILIES + 1) * sizeof(t[0]));
	for (uint32_t code = 0; code < CLASSES; code++) {
		const struct cell *c = &cell[code * BINS];
		enum hazard_family family = hazard_family(hazard_decode((uint8_t)code));

		for (uint32_t b = 0; b < BINS; b++) {
			t[family][b].entries += (double)c[b].entries;
			t[family][b].events += (double)c[b].events;
			if (c[b].entries > 0 && b > top)
				top = b;
			/* a prompt that all chains share says nothing about the others */
			if (family == FAMILY_SHARED)
				continue;
			t[ALL][b].entries += (double)c[b].entries;
			t[ALL][b].events += (double)c[b].events;
		}
	}
	for (uint32_t b = 0; b < BINS; b++) {
		struct tally *a = &t[ALL][b];
		a->hazard = (a->events + WEIGHT_ALL * before) / (a->entries + WEIGHT_ALL);
		before = a->hazard;
		for (uint32_t k = 0; k < FAMILIES; k++) {
			struct tally *f = &t[k][b];
			f->hazard =
				(f->events + w * family_prior[k] * a->hazard) / (f->entries + w);
		}
	}
	return top;
}

/*
 * The hazard that a bin and its neighbours have together, as far as they agree, and what is assumed
 * as far as not. One by one they err by chance, and the index would pick out those that err most;
 * but a loop, or a tool that takes its time, is a peak in one bin.
 */
static double smoothed(const struct cell *c, uint32_t b, uint32_t top, double assumed, double w)
{
	uint32_t from = b > NEIGHBOURS ? b - NEIGHBOURS : 0;
	uint32_t to = b + NEIGHBOURS < top ? b + NEIGHBOURS : top;
	double events = 0, entries = 0, square = 0, freedom = -1;

	for (uint32_t k = from; k <= to; k++) {
		events += (double)c[k].events;
		entries += (double)c[k].entries;
	}
	if (!(entries > 0))
		return assumed;
	double p = fmin((events + w * assumed) / (entries + w), HAZARD_MAX);
	for (uint32_t k = from; k <= to; k++) {
		double n = (double)c[k].entries, d = (double)c[k].events - n * p;
		if (!(n > 0))
			continue;
		square += d * d / (n * p * (1 - p));
		freedom += 1;
	}
	/* chi-square: as large as that on average if all have the same hazard */
	double agree = freedom > 0 && square > freedom ? freedom / square : 1;
	return agree * p + (1 - agree) * assumed;
}

/* The hazard of what came back often, whatever the mean time between its uses. */
static void tally_often(const struct cell *cell, struct tally t[2][BINS])
{
	memset(t, 0, 2 * sizeof(t[0]));
	for (uint32_t major = 0; major < GAPS; major++)
		for (uint32_t minor = 0; minor < 2; minor++) {
			uint8_t code = hazard_encode((struct hazard_class){ OFTEN, major, minor });
			const struct cell *c = &cell[code * BINS];

			for (uint32_t b = 0; b < BINS; b++) {
				t[minor][b].entries += (double)c[b].entries;
				t[minor][b].events += (double)c[b].events;
			}
		}
}

static void lesson_begin(const struct cell *cell, uint64_t seen, struct lesson *ret)
{
	ret->weight = class_weight(seen);
	ret->top = tally(cell, ret->weight, ret->family) + PER_OCTAVE;
	if (ret->top >= BINS)
		ret->top = BINS - 1;
	tally_often(cell, ret->often);
}

/* What is assumed of a bin of a class without data of its own. */
static double assumed(const struct lesson *l, struct hazard_class class, uint32_t b)
{
	double p = l->family[hazard_family(class)][b].hazard, w = l->weight;
	const struct tally *n;

	if (class.kind != OFTEN)
		return p;
	n = &l->often[class.minor][b];
	return (n->events + w * p) / (n->entries + w);
}

static void learn_class(const struct cell *cell, const struct lesson *l, uint32_t code, double *ret)
{
	const struct cell *c = &cell[code * BINS];
	struct hazard_class class = hazard_decode((uint8_t)code);
	double hazard[BINS], w = l->weight;

	for (uint32_t b = 0; b <= l->top; b++) {
		double p = smoothed(c, b, l->top, assumed(l, class, b), w);

		p = ((double)c[b].events + w * p) / ((double)c[b].entries + w);
		hazard[b] = fmin(p, HAZARD_MAX);
	}
	index_class(hazard, l->top, ret);
}

static bool has_data(const struct cell *c, uint32_t top)
{
	for (uint32_t b = 0; b <= top; b++)
		if (c[b].entries != 0 || c[b].events != 0)
			return true;
	return false;
}

/* Of most classes nothing is known: those of which the same is assumed are worked out once. */
void hazard_learn(const struct cell *cell, uint64_t seen, uint16_t *ret_level)
{
	double own[BINS], blank[BLANKS][BINS];
	bool done[BLANKS] = { false };
	struct lesson l;

	lesson_begin(cell, seen, &l);
	for (uint32_t code = 0; code < CLASSES; code++) {
		struct hazard_class class = hazard_decode((uint8_t)code);
		const struct cell *c = &cell[code * BINS];
		uint32_t k = class.kind == OFTEN ? FAMILIES + class.minor : hazard_family(class);
		double *index = has_data(c, l.top) ? own : blank[k];

		if (index == own || !done[k])
			learn_class(cell, &l, code, index);
		if (index != own)
			done[k] = true;
		for (uint32_t b = 0; b < BINS; b++)
			ret_level[code * BINS + b] = hazard_level_of(index[b]);
	}
}

/* ---- when, and by whom ---- */

bool hazard_is_due(const struct kvp_evict *e)
{
	const struct hazard *h = e->self;
	uint64_t limit = e->items / 16 > 1024 ? e->items / 16 : 1024;

	/* in the beginning every request teaches much */
	if (limit > 16 + h->seen / 32)
		limit = 16 + h->seen / 32;
	return h->changes >= limit;
}

void hazard_relearn(struct kvp_evict *e)
{
	struct hazard *h = e->self;

	(void)hazard_fade(h->cell, hazard_fade_limit(e));
	hazard_learn(h->cell, h->seen, h->spare);
	hazard_use_levels(h, &h->spare);
	h->seen += h->changes;
	h->changes = 0;
}

double hazard_fade_limit(const struct kvp_evict *e)
{
	return 1e6 + 100.0 * e->params.max_ids;
}

void hazard_halve(struct cell *cell)
{
	for (uint32_t i = 0; i < CELLS; i++) {
		cell[i].entries *= 0.5f;
		cell[i].events *= 0.5f;
	}
}

bool hazard_fade(struct cell *cell, double limit)
{
	double born = 0;

	for (uint32_t code = 0; code < CLASSES; code++)
		born += (double)cell[code * BINS].entries;
	if (born < limit)
		return false;
	hazard_halve(cell);
	return true;
}

/* ---- lessons ---- */

int kvp_evict_lesson_new(struct kvp_evict *e, struct kvp_evict_lesson **ret_lesson)
{
	struct hazard *h = e->self;
	struct kvp_evict_lesson *l;

	if (e->policy != &evict_hazard)
		return -EOPNOTSUPP;
	if (!h->spare)
		return -EBUSY;
	l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->limit = hazard_fade_limit(e);
	l->level = h->spare;
	h->spare = NULL;
	*ret_lesson = l;
	return 0;
}

struct kvp_evict_lesson *kvp_evict_lesson_free(struct kvp_evict_lesson *l)
{
	if (l)
		free(l->level);
	free(l);
	return NULL;
}

uint64_t kvp_evict_lesson_memory(const struct kvp_evict_lesson *l)
{
	return sizeof(*l); /* its levels are counted with the instance */
}

int kvp_evict_lesson_ask(struct kvp_evict *e, struct kvp_evict_lesson *l)
{
	struct hazard *h = e->self;

	hazard_sweep(e);
	if (!hazard_is_due(e))
		return 0;
	memcpy(l->cell, h->cell, sizeof(l->cell));
	l->seen = h->seen;
	h->seen += h->changes;
	h->changes = 0;
	return 1;
}

void kvp_evict_lesson_learn(struct kvp_evict_lesson *l)
{
	l->faded = hazard_fade(l->cell, l->limit);
	hazard_learn(l->cell, l->seen, l->level);
}

void kvp_evict_lesson_use(struct kvp_evict *e, struct kvp_evict_lesson *l)
{
	struct hazard *h = e->self;

	if (l->faded)
		hazard_halve(h->cell);
	hazard_use_levels(h, &l->level);
}
