/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our own policy: evict where the fewest hits are to be expected per time held.
 *
 * The blocks that one request last used form a group: they have the same age and, mostly, the same
 * fate. A group has a class, told by what is known when it arises: fresh blocks or blocks seen
 * before, the turn of its conversation (0..3 and more), the number of new blocks of the request
 * (log 2). What came back more than three times, by requests with one new block at most, is told by
 * the mean time between its uses. Partial last blocks have a class of their own until they come
 * back, blocks that several chains share one for each power of two of chains.
 *
 * Ages fall into bins, two per octave. For every class and bin (a cell) we count how many blocks
 * entered it, and how many were used again in it; evicted blocks go on being counted while their
 * ghosts last, which keep class and birth for themselves. Their ratio, drawn towards that of the
 *kind and of all blocks where data are few, is the hazard. From it follows a cell's index, the best
 *over all horizons of expected hits until the horizon / expected time held until a hit or the
 *horizon (the index of Gittins, computed from old to young by merging bins while that raises it).
 *The victim is the tip of the oldest group in the cell of the smallest index.
 *
 * Ages are counted half in requests and half in time: blocks compete request by request, but
 * people and tools come back after a time. A long gap counts for no more than sixteen mean ones,
 * and where the clock stands still only requests count. Ages below one mean step are one bin: what
 * comes back at once would else make everything new look precious. Beyond the oldest age seen the
 * hazard falls as 1 / age.
 */
#include "policy/evict_impl.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NONE         KVP_BLOCK_NONE
#define QUEUED       (EVICT_HEAP + 1u) /* `where` of a block in its group's list */
#define SUB_BITS     1u
#define PER_OCTAVE   (1u << SUB_BITS)
#define FIRST_OCTAVE 10u /* ages below 2^10 share bin 0 */
#define LAST_OCTAVE  46u /* 2^26 mean steps: more requests than anyone remembers */
#define BINS         (PER_OCTAVE * (LAST_OCTAVE - FIRST_OCTAVE))
#define TURNS        4u
#define SIZES        8u
#define SEEN_FIRST   (TURNS * SIZES)
#define OFTEN        (2u * TURNS * SIZES)
#define GAPS         16u /* octaves of the mean time between uses, in steps */
#define PARTIAL      (OFTEN + 2u * GAPS)
#define SHARED       (PARTIAL + 1u)
#define BRANCHES     4u /* 2, 4, 8, 16 chains and more */
#define CLASSES      (SHARED + BRANCHES)
#define CELLS        (CLASSES * BINS)
#define LEVELS       1024u
#define REQUESTS     16u /* served at the same time; more only blur classes */
#define GHOSTS_EXTRA 20000u
#define GHOST_UNIT   14u       /* log2; a ghost's birth is kept in 32 bits */
#define ADOPT_STEPS  32.0      /* ages given to blocks taken over from another algorithm */
#define STEP_LOG2    20u       /* of the policy's own clock: a request, on average */
#define STEP         1048576.0 /* 2^STEP_LOG2 */
#define FLOOR_BIN    ((STEP_LOG2 - FIRST_OCTAVE) * PER_OCTAVE) /* ages up to this bin are one */
#define GAP_USES     8u
#define GAP_MEMORY   16384.0 /* gaps between requests, that their mean remembers */
#define GAP_MAX      16.0    /* longest gap, in mean ones */

/*
 * How many blocks of data weigh as much as what is assumed without them. For a class it grows with
 * experience: at first any difference is worth trying, later the choice of the best among many
 * cells favours those that look good by chance.
 */
#define WEIGHT_CLASS_MIN 25.0
#define WEIGHT_CLASS_MAX 300.0
#define WEIGHT_GROWTH    100.0 /* blocks seen for each more */
#define WEIGHT_ALL       20.0
#define HAZARD_PRIOR     0.05 /* per bin */

enum kind { FRESH, SEEN };

struct group {
	uint64_t born;
	uint32_t t_young, t_old; /* neighbours in the timeline of its bin; t_old links free ones */
	uint32_t c_young, c_old; /* neighbours in its cell, while it has queued blocks */
	uint32_t young, old;     /* its queued blocks */
	uint32_t queued;
	uint32_t total; /* cached blocks that belong to it, queued or not */
	uint16_t klass;
	uint8_t bin;
	uint8_t request; /* REQUESTS: of none */
	float gap;       /* mean time between its uses so far, in steps */
};
static_assert(sizeof(struct group) == 48, "12 bytes a block at one group for four blocks");

struct ends {
	uint32_t young, old;
};

struct cell {
	struct ends groups; /* with queued blocks */
	float entries;
	float events;
	uint16_t level;
	uint16_t prev, next; /* cells of this level that have groups */
};

/* A request whose blocks may still be coming. */
struct request {
	uint32_t seen, fresh; /* its groups, or NONE */
	uint32_t count;       /* blocks that nobody knew */
	uint32_t uses;        /* turns before this one; TURNS: as many and more */
	float gap;            /* mean time between them, in steps */
	uint32_t branch;      /* log2 of the most chains that a block met so far belongs to */
};

struct hazard {
	struct group *group;
	uint32_t n_groups;
	uint32_t n_used;
	uint32_t free_group;
	uint32_t newest[CLASSES];
	struct ends timeline[BINS];
	struct cell cell[CELLS];
	uint16_t level[LEVELS];
	uint64_t bitmap[LEVELS / 64];
	struct request request[REQUESTS];
	uint32_t current;
	uint32_t tip;       /* of the current request */
	uint32_t announced; /* tip that request() told of and chain() has yet to touch */
	uint64_t now;       /* own clock, see advance() */
	double gap;         /* mean time between requests, in the caller's clock */
	uint64_t requests;
	uint64_t uses;  /* of blocks, the first included */
	uint32_t ghost; /* the last one that was counted on */
	uint64_t begun; /* time of the last request */
	uint64_t swept;
	uint64_t changes; /* since the last relearn() */
	uint64_t seen;    /* before the last relearn() */
};

#define NO_CELL UINT16_MAX
static_assert(CELLS < NO_CELL, "cells have 16-bit numbers");

/* ---- ages ---- */

static uint32_t log2_floor(uint64_t x)
{
	return 63u - (uint32_t)__builtin_clzll(x);
}

static uint32_t bin_of(uint64_t age)
{
	if (age < UINT64_C(1) << FIRST_OCTAVE)
		return 0;
	uint32_t octave = log2_floor(age);
	uint32_t bin = (octave - FIRST_OCTAVE) * PER_OCTAVE +
		       (uint32_t)(age >> (octave - SUB_BITS) & (PER_OCTAVE - 1));
	return bin < BINS ? bin : BINS - 1;
}

static uint64_t bin_begin(uint32_t bin)
{
	uint32_t octave = bin / PER_OCTAVE + FIRST_OCTAVE;

	if (!bin)
		return 0;
	return UINT64_C(1) << octave | (uint64_t)(bin % PER_OCTAVE) << (octave - SUB_BITS);
}

static uint64_t bin_end(uint32_t bin)
{
	return bin + 1 < BINS ? bin_begin(bin + 1) : UINT64_MAX;
}

/* ---- cells by level of their index ---- */

static struct cell *cell_of(struct hazard *h, const struct group *g)
{
	return &h->cell[g->klass * BINS + g->bin];
}

static void level_add(struct hazard *h, struct cell *c)
{
	uint16_t i = (uint16_t)(c - h->cell);

	c->prev = NO_CELL;
	c->next = h->level[c->level];
	if (c->next != NO_CELL)
		h->cell[c->next].prev = i;
	h->level[c->level] = i;
	h->bitmap[c->level / 64] |= UINT64_C(1) << c->level % 64;
}

static void level_remove(struct hazard *h, struct cell *c)
{
	if (c->prev != NO_CELL)
		h->cell[c->prev].next = c->next;
	else
		h->level[c->level] = c->next;
	if (c->next != NO_CELL)
		h->cell[c->next].prev = c->prev;
	if (h->level[c->level] == NO_CELL)
		h->bitmap[c->level / 64] &= ~(UINT64_C(1) << c->level % 64);
}

static void cell_add(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];
	struct cell *c = cell_of(h, g);

	g->c_young = NONE;
	g->c_old = c->groups.young;
	c->groups.young = i;
	if (g->c_old != NONE) {
		h->group[g->c_old].c_young = i;
	} else {
		c->groups.old = i;
		level_add(h, c);
	}
}

static void cell_remove(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];
	struct cell *c = cell_of(h, g);

	if (g->c_young != NONE)
		h->group[g->c_young].c_old = g->c_old;
	else
		c->groups.young = g->c_old;
	if (g->c_old != NONE)
		h->group[g->c_old].c_young = g->c_young;
	else
		c->groups.old = g->c_young;
	if (c->groups.old == NONE)
		level_remove(h, c);
}

/* ---- groups by age ---- */

/* In order of birth. Almost always the group is the youngest. */
static void timeline_add(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];
	struct ends *t = &h->timeline[g->bin];

	g->t_young = NONE;
	g->t_old = t->young;
	while (g->t_old != NONE && h->group[g->t_old].born > g->born) {
		g->t_young = g->t_old;
		g->t_old = h->group[g->t_old].t_old;
	}
	if (g->t_young != NONE)
		h->group[g->t_young].t_old = i;
	else
		t->young = i;
	if (g->t_old != NONE)
		h->group[g->t_old].t_young = i;
	else
		t->old = i;
}

static void timeline_remove(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];
	struct ends *t = &h->timeline[g->bin];

	if (g->t_young != NONE)
		h->group[g->t_young].t_old = g->t_old;
	else
		t->young = g->t_old;
	if (g->t_old != NONE)
		h->group[g->t_old].t_young = g->t_young;
	else
		t->old = g->t_young;
}

/* The group has grown older than its bin. */
static void grow_older(struct hazard *h, uint32_t i, uint32_t bin)
{
	struct group *g = &h->group[i];

	timeline_remove(h, i);
	if (g->queued)
		cell_remove(h, i);
	while (g->bin < bin) {
		g->bin++;
		cell_of(h, g)->entries += (float)g->total;
	}
	timeline_add(h, i);
	if (g->queued)
		cell_add(h, i);
}

/* Time has moved on. Old bins first, so that no group is moved twice. */
static void sweep(struct kvp_evict *e)
{
	struct hazard *h = e->self;

	if (h->now == h->swept)
		return;
	h->swept = h->now;
	for (uint32_t b = BINS - 1; b-- > 0;) {
		uint32_t i;
		while ((i = h->timeline[b].old) != NONE && h->now - h->group[i].born >= bin_end(b))
			grow_older(h, i, bin_of(h->now - h->group[i].born));
	}
}

/* ---- groups ---- */

static void forget_request(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];

	if (g->request < REQUESTS) {
		struct request *r = &h->request[g->request];
		if (r->seen == i)
			r->seen = NONE;
		if (r->fresh == i)
			r->fresh = NONE;
	}
	g->request = REQUESTS;
}

static void group_unref(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];

	if (--g->total)
		return;
	timeline_remove(h, i);
	if (h->newest[g->klass] == i)
		h->newest[g->klass] = NONE;
	forget_request(h, i);
	g->t_old = h->free_group;
	h->free_group = i;
	h->n_used--;
}

/* How much older than now a group may be and yet take in more blocks: the fewer are left, the more.
 */
static uint64_t tolerance(const struct hazard *h)
{
	uint32_t half = h->n_groups / 2;

	if (h->n_used <= half)
		return 0;
	return (uint64_t)ldexp(STEP, (int)((uint64_t)(h->n_used - half) * 16 / half));
}

/* A group of this class born about now. Never fails: some group is always there to join. */
static uint32_t group_for(struct kvp_evict *e, uint32_t klass, bool may_share)
{
	struct hazard *h = e->self;
	uint32_t i = h->newest[klass];
	bool crowded = h->n_used > h->n_groups / 2;

	if (i != NONE && (may_share || crowded) && h->now - h->group[i].born <= tolerance(h))
		return i;
	if (h->free_group == NONE) {
		for (uint32_t k = klass; i == NONE; k = (k + 1) % CLASSES)
			i = h->newest[k];
		return i;
	}
	i = h->free_group;
	h->free_group = h->group[i].t_old;
	h->n_used++;
	h->group[i] = (struct group){
		.born = h->now,
		.young = NONE,
		.old = NONE,
		.klass = (uint16_t)klass,
		.request = REQUESTS,
	};
	timeline_add(h, i);
	h->newest[klass] = i;
	return i;
}

/* Queues a detached block of this group at its young or old end. */
static void queue(struct kvp_evict *e, uint32_t i, uint32_t id, bool young)
{
	struct hazard *h = e->self;
	struct group *g = &h->group[i];
	struct evict_node *n = &e->node[id];

	n->prev = young ? NONE : g->old;
	n->next = young ? g->young : NONE;
	if (n->prev != NONE)
		e->node[n->prev].next = id;
	else
		g->young = id;
	if (n->next != NONE)
		e->node[n->next].prev = id;
	else
		g->old = id;
	n->where = QUEUED;
	n->home = i;
	if (!g->queued++)
		cell_add(h, i);
}

static void unqueue(struct kvp_evict *e, uint32_t id)
{
	struct hazard *h = e->self;
	struct evict_node *n = &e->node[id];
	struct group *g = &h->group[n->home];

	if (n->prev != NONE)
		e->node[n->prev].next = n->next;
	else
		g->young = n->next;
	if (n->next != NONE)
		e->node[n->next].prev = n->prev;
	else
		g->old = n->prev;
	n->where = EVICT_OUT;
	if (!--g->queued)
		cell_remove(h, n->home);
}

static void join(struct kvp_evict *e, uint32_t i, uint32_t id, bool young)
{
	struct hazard *h = e->self;
	struct group *g = &h->group[i];

	g->total++;
	cell_of(h, g)->entries += 1;
	h->changes++;
	h->uses++;
	queue(e, i, id, young);
}

/* ---- learning ---- */

/* A block of this group is used again. */
static void count_hit(struct kvp_evict *e, uint32_t i)
{
	struct hazard *h = e->self;
	const struct group *g = &h->group[i];
	uint32_t bin = bin_of(h->now - g->born);
	struct cell *c = &h->cell[g->klass * BINS];

	c[bin].events += 1;
	for (uint32_t b = g->bin + 1u; b <= bin; b++)
		c[b].entries += 1; /* no sweep has seen it there */
}

struct stretch {
	double hits, time, survive;
};

static void set_level(struct hazard *h, struct cell *c, double index)
{
	/* sixteen levels an octave, read off the bits of the float; 2^-64 .. 1 */
	float f = (float)index;
	uint32_t bits, base = (127u - 64u) << 4;
	memcpy(&bits, &f, sizeof(bits));
	bits >>= 19;
	uint16_t level = (uint16_t)(bits < base            ? 0
				    : bits - base < LEVELS ? bits - base
							   : LEVELS - 1);

	if (level == c->level)
		return;
	if (c->groups.old != NONE)
		level_remove(h, c);
	c->level = level;
	if (c->groups.old != NONE)
		level_add(h, c);
}

/* Levels of one class, given the hazard of each of its bins up to `top`. */
static void index_class(struct hazard *h, uint32_t klass, const double *hazard, uint32_t top)
{
	struct cell *c = &h->cell[klass * BINS];
	struct stretch stack[BINS];
	uint32_t n = 0, floor_bin = FLOOR_BIN < top ? FLOOR_BIN : top;
	double index = 0;

	for (uint32_t b = top + 1; b-- > floor_bin;) {
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
		set_level(h, &c[b], index);
	}
	for (uint32_t b = 0; b < floor_bin; b++)
		set_level(h, &c[b], index);
	index = stack[0].hits / stack[0].time; /* of bin `top` */
	for (uint32_t b = top + 1; b < BINS; b++)
		set_level(h, &c[b], index * (double)bin_begin(top) / (double)bin_begin(b));
}

/* Which of the groups of classes a class is drawn towards: fresh, seen, partial, shared. */
static uint32_t family(uint32_t klass)
{
	return klass < SEEN_FIRST ? 0 : klass < PARTIAL ? 1 : klass < SHARED ? 2 : 3;
}

#define FAMILIES 4u
#define ALL      FAMILIES

/* What a family's hazard is taken for, by that of all blocks, as long as it has no data. */
static const double family_prior[FAMILIES] = { 1, 3, 0.2, 10 };

struct tally {
	double entries, events, hazard;
};

static double class_weight(const struct hazard *h)
{
	double w = WEIGHT_CLASS_MIN + (double)h->seen / WEIGHT_GROWTH;

	return w < WEIGHT_CLASS_MAX ? w : WEIGHT_CLASS_MAX;
}

/* Hazards of all blocks, then of the families. Returns the last bin with data. */
static uint32_t tally(const struct hazard *h, struct tally t[FAMILIES + 1][BINS])
{
	uint32_t top = 0;
	double before = HAZARD_PRIOR, w = class_weight(h);

	memset(t, 0, (FAMILIES + 1) * sizeof(t[0]));
	for (uint32_t i = 0; i < CELLS; i++) {
		const struct cell *c = &h->cell[i];
		struct tally *f = &t[family(i / BINS)][i % BINS], *a = &t[ALL][i % BINS];

		f->entries += (double)c->entries;
		f->events += (double)c->events;
		/* a prompt that all chains share says nothing about the others */
		if (i / BINS < SHARED) {
			a->entries += (double)c->entries;
			a->events += (double)c->events;
		}
		if (c->entries > 0 && i % BINS > top)
			top = i % BINS;
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

static void relearn(struct hazard *h)
{
	struct tally t[FAMILIES + 1][BINS], often[2][BINS];
	double hazard[BINS], w = class_weight(h);
	uint32_t top = tally(h, t) + PER_OCTAVE;

	if (top >= BINS)
		top = BINS - 1;
	memset(often, 0, sizeof(often));
	for (uint32_t i = OFTEN * BINS; i < PARTIAL * BINS; i++) {
		struct tally *n = &often[i / BINS % 2][i % BINS];
		n->entries += (double)h->cell[i].entries;
		n->events += (double)h->cell[i].events;
	}
	for (uint32_t k = 0; k < CLASSES; k++) {
		const struct cell *c = &h->cell[k * BINS];
		for (uint32_t b = 0; b <= top; b++) {
			double p = t[family(k)][b].hazard;
			if (k >= OFTEN && k < PARTIAL) {
				const struct tally *n = &often[k % 2][b];
				p = (n->events + w * p) / (n->entries + w);
			}
			p = ((double)c[b].events + w * p) / ((double)c[b].entries + w);
			hazard[b] = p < 0.99 ? p : 0.99;
		}
		index_class(h, k, hazard, top);
	}
	h->seen += h->changes;
	h->changes = 0;
}

/*
 * Half of what was learnt fades whenever as much again could be: with a memory of a hundred times
 * the cache at least, and of a million blocks.
 */
static void fade(struct kvp_evict *e)
{
	struct hazard *h = e->self;
	double born = 0, limit = 1e6 + 100.0 * e->params.max_ids;

	for (uint32_t k = 0; k < CLASSES; k++)
		born += (double)h->cell[k * BINS].entries;
	if (born < limit)
		return;
	for (uint32_t i = 0; i < CELLS; i++) {
		h->cell[i].entries *= 0.5f;
		h->cell[i].events *= 0.5f;
	}
}

/* ---- requests ---- */

static uint32_t class_of(const struct request *r, enum kind kind)
{
	uint32_t size = log2_floor((uint64_t)r->count + 1);
	uint32_t turn = r->uses < TURNS ? r->uses : TURNS - 1;

	if (kind == SEEN && r->uses >= TURNS && r->count <= 1) {
		uint32_t octave = r->gap >= 2 ? log2_floor((uint64_t)r->gap) : 0;
		return OFTEN + (octave < GAPS ? octave : GAPS - 1) * 2 + r->count;
	}
	return (kind == SEEN ? SEEN_FIRST : 0) + turn * SIZES + (size < SIZES ? size : SIZES - 1);
}

/* The request comes back to what had this class and mean gap, and is now so old. */
static void return_to(struct request *r, uint32_t klass, double gap, uint64_t age)
{
	double steps = (double)age / STEP;

	if (klass >= PARTIAL)
		r->uses = 1;
	else
		r->uses = klass < OFTEN ? klass % SEEN_FIRST / SIZES + 1 : TURNS;
	/* of the last few, so that it can change */
	r->gap = (float)(gap + (steps - gap) / (r->uses < TURNS ? r->uses : GAP_USES));
}

/* The age of everything grows by one request. */
static void advance(struct kvp_evict *e)
{
	struct hazard *h = e->self;
	double gap = h->requests ? (double)(e->now - h->begun) : 0, relative = 1;

	h->begun = e->now;
	if (h->requests)
		h->gap += (gap - h->gap) /
			  (h->requests < GAP_MEMORY ? (double)h->requests : GAP_MEMORY);
	h->requests++;
	if (h->gap > 0)
		relative = gap < GAP_MAX * h->gap ? gap / h->gap : GAP_MAX;
	h->now += (uint64_t)(STEP * (1 + relative) / 2);
	sweep(e);
}

/*
 * A request that begins at this cached block. It is the next turn of a conversation if nothing
 * but a partial block was ever put below it.
 */
static struct request *begin(struct kvp_evict *e, uint32_t tip)
{
	struct hazard *h = e->self;

	advance(e);
	h->current = (h->current + 1) % REQUESTS;
	struct request *r = &h->request[h->current];
	if (r->seen != NONE)
		forget_request(h, r->seen);
	if (r->fresh != NONE)
		forget_request(h, r->fresh);
	*r = (struct request){ .seen = NONE, .fresh = NONE };
	const struct group *g = &h->group[tip != NONE ? e->node[tip].home : 0];
	if (tip != NONE && e->node[tip].freq == 0)
		return_to(r, g->klass, (double)g->gap, h->now - g->born);
	h->tip = tip;
	return r;
}

/* The request whose blocks the parent's group holds, or else a new one. */
static struct request *request_of(struct kvp_evict *e, uint32_t parent)
{
	struct hazard *h = e->self;

	if (parent != NONE) {
		uint32_t r = h->group[e->node[parent].home].request;
		if (r < REQUESTS)
			return &h->request[r];
		if (parent == h->tip)
			return &h->request[h->current];
	}
	return begin(e, parent);
}

static void relabel(struct hazard *h, uint32_t i, uint32_t klass)
{
	struct group *g = &h->group[i];

	if (i == NONE || g->klass == klass)
		return;
	if (g->queued)
		cell_remove(h, i);
	cell_of(h, g)->entries = fmaxf(0, cell_of(h, g)->entries - (float)g->total);
	if (h->newest[g->klass] == i)
		h->newest[g->klass] = NONE;
	g->klass = (uint16_t)klass;
	h->newest[klass] = i;
	cell_of(h, g)->entries += (float)g->total;
	if (g->queued)
		cell_add(h, i);
}

/* The group of this kind of a request. In a crowd it is nobody's own, and keeps its class. */
static uint32_t group_of(struct kvp_evict *e, struct request *r, enum kind kind)
{
	struct hazard *h = e->self;
	uint32_t *own = kind == SEEN ? &r->seen : &r->fresh;

	if (*own != NONE)
		return *own;
	uint32_t i = group_for(e, class_of(r, kind), false);
	if (!h->group[i].total) {
		*own = i;
		h->group[i].gap = r->gap;
		h->group[i].request = (uint8_t)(r - h->request);
	}
	return i;
}

/* ---- operations ---- */

static void hazard_reset(struct kvp_evict *e)
{
	struct hazard *h = e->self;

	for (uint32_t i = 0; i < h->n_groups; i++)
		h->group[i].t_old = i + 1 < h->n_groups ? i + 1 : NONE;
	h->free_group = 0;
	h->n_used = 0;
	memset(h->newest, 0xff, sizeof(h->newest));
	memset(h->timeline, 0xff, sizeof(h->timeline));
	memset(h->level, 0xff, sizeof(h->level));
	memset(h->bitmap, 0, sizeof(h->bitmap));
	for (uint32_t i = 0; i < CELLS; i++)
		h->cell[i].groups = (struct ends){ .young = NONE, .old = NONE };
	for (uint32_t i = 0; i < REQUESTS; i++)
		h->request[i] = (struct request){ .seen = NONE, .fresh = NONE };
	h->tip = NONE;
	h->announced = NONE;
	h->begun = e->now;
	relearn(h);
}

static void hazard_learn(struct kvp_evict *e, const struct kvp_evict *shadow)
{
	struct hazard *h = e->self;
	const struct hazard *s = shadow->self;

	for (uint32_t i = 0; i < CELLS; i++) {
		h->cell[i].entries = s->cell[i].entries;
		h->cell[i].events = s->cell[i].events;
	}
	h->now = h->swept = s->now;
	h->gap = s->gap;
	h->requests = s->requests;
	h->uses = s->uses;
	h->begun = s->begun;
	h->seen = s->seen;
	relearn(h);
}

/*
 * A block that another algorithm ranked. Its age is what LRU would need to bring it there; its
 * class follows from its uses and depth.
 */
static void hazard_adopt(struct kvp_evict *e, uint32_t id, double rank,
	const struct kvp_evict *shadow, const struct evict_node *like)
{
	struct hazard *h = e->self;
	struct evict_node *n = &e->node[id];
	struct request guess = { .count = n->depth + 1u };
	uint32_t uses = evict_uses(n);
	double step = floor((1 - rank) * ADOPT_STEPS) / ADOPT_STEPS;
	uint64_t age = (uint64_t)(step * STEP * (double)e->items * h->requests / (h->uses + 1));
	uint64_t born = age < h->now ? h->now - age : 0;
	uint32_t klass = uses ? SEEN_FIRST + (uses < TURNS ? uses : TURNS - 1) * SIZES
			      : class_of(&guess, FRESH);
	float gap = 0;

	if (like) {
		const struct group *g = &((const struct hazard *)shadow->self)->group[like->home];
		klass = g->klass;
		born = g->born;
		gap = g->gap;
	}
	uint32_t i = h->newest[klass];

	if (i == NONE || h->group[i].born != born) {
		i = group_for(e, klass, false);
		if (!h->group[i].total) {
			timeline_remove(h, i);
			h->group[i].born = born;
			h->group[i].gap = gap;
			h->group[i].bin = (uint8_t)bin_of(h->now - born);
			timeline_add(h, i);
		}
	}
	n->freq = like ? like->freq : n->children;
	h->group[i].total++;
	queue(e, i, id, true);
}

static int hazard_init(struct kvp_evict *e)
{
	struct hazard *h = calloc(1, sizeof(*h));
	uint64_t c = e->params.items ? e->params.items : e->params.max_ids;

	e->self = h;
	if (!h)
		return -ENOMEM;
	int r = evict_ghosts_init(e, c + GHOSTS_EXTRA);
	if (r < 0)
		return r;
	h->n_groups = e->params.max_ids / 4 + 4 * CLASSES;
	h->group = e->arena ? e->arena : calloc(h->n_groups, sizeof(*h->group));
	if (!h->group)
		return -ENOMEM;
	hazard_reset(e);
	return 0;
}

static void hazard_fini(struct kvp_evict *e)
{
	struct hazard *h = e->self;

	if (h && !e->arena)
		free(h->group);
	free(h);
}

static void hazard_request(struct kvp_evict *e, const struct kvp_evict_request *req)
{
	struct hazard *h = e->self;

	sweep(e);
	begin(e, req->tip);
	h->announced = req->tip;
}

static void hazard_chain(struct kvp_evict *e, uint32_t tip)
{
	struct hazard *h = e->self;

	sweep(e);
	if (h->announced != tip)
		begin(e, tip);
	h->announced = NONE;
}

static void hazard_access(struct kvp_evict *e, uint32_t id)
{
	struct hazard *h = e->self;
	struct evict_node *n = &e->node[id];
	struct request *r = &h->request[h->current];
	uint32_t was = n->home;

	if (n->where == QUEUED)
		unqueue(e, id);
	count_hit(e, was);
	/* what lies above a branch belongs to as many chains */
	if (n->freq > 1 && log2_floor(n->freq) > r->branch)
		r->branch = log2_floor(n->freq) < BRANCHES ? log2_floor(n->freq) : BRANCHES;
	join(e, r->branch ? group_for(e, SHARED + r->branch - 1, true) : group_of(e, r, SEEN), id,
		true);
	group_unref(h, was);
}

static uint64_t ghost_age(const struct kvp_evict *e, uint32_t i)
{
	const struct hazard *h = e->self;
	uint32_t born = evict_ghost_at(e->ghosts, i)->weight;

	return (uint64_t)((uint32_t)(h->now >> GHOST_UNIT) - born) << GHOST_UNIT;
}

/* The ghost has grown older since it was last looked at. Returns its cells, sets its bin. */
static struct cell *ghost_ages(struct kvp_evict *e, uint32_t i, uint32_t *ret_bin)
{
	struct hazard *h = e->self;
	uint8_t *note = evict_ghost_note(e->ghosts, i);
	struct cell *c = &h->cell[note[0] * BINS];
	uint32_t bin = bin_of(ghost_age(e, i));

	while (note[1] < bin)
		c[++note[1]].entries += 1;
	*ret_bin = note[1];
	return c;
}

/*
 * A ghost comes back: the block was evicted too early. Returns the class it had, or NONE if
 * nobody knows the block.
 */
static uint32_t revive(struct kvp_evict *e, struct request *r, uint64_t key)
{
	uint32_t ghost = evict_ghost_find(e->ghosts, key), klass, bin;

	if (ghost == EVICT_GHOST_NONE)
		return NONE;
	const uint8_t *note = evict_ghost_note(e->ghosts, ghost);
	klass = note[0];
	if (!r->count && klass < SHARED)
		return_to(r, klass, exp2(note[2] / 8.0), ghost_age(e, ghost));
	else if (!r->count)
		r->uses = 0;
	ghost_ages(e, ghost, &bin)[bin].events += 1;
	evict_ghost_drop(e->ghosts, ghost);
	return klass;
}

static void hazard_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	struct hazard *h = e->self;
	struct evict_node *n = &e->node[id];
	struct request *r = request_of(e, n->parent);
	bool partial = n->flags & KVP_EVICT_PARTIAL;
	uint32_t was, to;

	(void)item;
	sweep(e);
	was = revive(e, r, n->key);
	if (was == NONE) {
		r->count++;
		if (n->parent != NONE && !partial)
			e->node[n->parent].freq++;
	}
	relabel(h, r->seen, class_of(r, SEEN));
	relabel(h, r->fresh, class_of(r, FRESH));
	if (partial && was == NONE) {
		to = group_for(e, PARTIAL, true);
	} else if (was != NONE && was >= SHARED) {
		n->freq = 1u << (was - SHARED + 1);
		to = group_for(e, was, true);
	} else {
		to = group_of(e, r, was == NONE ? FRESH : SEEN);
	}
	/* new blocks come root first, and leave tip first */
	join(e, to, id, false);
	if (r == &h->request[h->current])
		h->tip = id;
}

static uint32_t hazard_take(struct kvp_evict *e)
{
	struct hazard *h = e->self;
	uint64_t limit = e->items / 16 > 1024 ? e->items / 16 : 1024;

	/* in the beginning every request teaches much */
	if (limit > 32 + h->seen / 8)
		limit = 32 + h->seen / 8;

	sweep(e);
	if (h->changes >= limit) {
		fade(e);
		relearn(h);
	}
	for (uint32_t w = 0; w < LEVELS / 64; w++) {
		if (!h->bitmap[w])
			continue;
		uint32_t level = w * 64 + (uint32_t)__builtin_ctzll(h->bitmap[w]);
		uint32_t id = h->group[h->cell[h->level[level]].groups.old].old;
		unqueue(e, id);
		return id;
	}
	return NONE;
}

static void hazard_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	struct hazard *h = e->self;
	uint32_t i = e->node[id].home;

	if (how == EVICT_BACK_DUE) {
		queue(e, i, id, false);
		return;
	}
	join(e, group_for(e, h->group[i].klass, true), id, true);
	group_unref(h, i);
}

/* All ghosts once in as many evictions as a quarter of the cache has blocks, and 1,024. */
static void count_ghosts_on(struct kvp_evict *e)
{
	struct hazard *h = e->self;
	uint32_t places = evict_ghosts_places(e->ghosts), bin;

	for (uint64_t n = 1 + places / (1024 + e->items / 4); n > 0; n--) {
		h->ghost = h->ghost + 1 < places ? h->ghost + 1 : 0;
		if (evict_ghost_note(e->ghosts, h->ghost))
			ghost_ages(e, h->ghost, &bin);
	}
}

static void hazard_gone(struct kvp_evict *e, uint32_t id, bool evicted)
{
	struct hazard *h = e->self;
	const struct evict_node *n = &e->node[id];
	const struct group *g = &h->group[n->home];
	uint32_t ghost, bin;

	if (!evicted) {
		group_unref(h, n->home);
		return;
	}
	ghost = evict_ghost_victim(e->ghosts);
	if (ghost != EVICT_GHOST_NONE)
		ghost_ages(e, ghost, &bin);
	ghost = evict_ghost_add(e->ghosts, 0, n->key, (uint32_t)(g->born >> GHOST_UNIT));
	uint8_t *note = evict_ghost_note(e->ghosts, ghost);
	note[0] = (uint8_t)g->klass;
	note[1] = g->bin;
	note[2] = g->gap > 1 ? (uint8_t)fminf(255, log2f(g->gap) * 8) : 0;
	group_unref(h, n->home);
	count_ghosts_on(e);
}

static bool hazard_hot(const struct kvp_evict *e, uint32_t id)
{
	const struct hazard *h = e->self;
	uint32_t f = family(h->group[e->node[id].home].klass);

	return f == SEEN || f == family(SHARED);
}

/* ---- consistency ---- */

static int check_group(const struct kvp_evict *e, uint32_t i, uint64_t *queued)
{
	const struct hazard *h = e->self;
	const struct group *g = &h->group[i];
	uint32_t n = 0, prev = NONE;

	for (uint32_t id = g->young; id != NONE; id = e->node[id].next) {
		const struct evict_node *x = &e->node[id];
		if (x->where != QUEUED || x->home != i || x->prev != prev || ++n > g->queued)
			return -EIO;
		prev = id;
	}
	if (n != g->queued || g->old != prev || !g->total || g->queued > g->total)
		return -EIO;
	*queued += n;
	return 0;
}

static int hazard_check(const struct kvp_evict *e, uint64_t in_queues)
{
	const struct hazard *h = e->self;
	uint64_t queued = 0, celled = 0, used = 0, total = 0;

	for (uint32_t b = 0; b < BINS; b++) {
		uint64_t born = 0;
		for (uint32_t i = h->timeline[b].old; i != NONE; i = h->group[i].t_young) {
			const struct group *g = &h->group[i];
			if (++used > h->n_used || g->bin != b || g->born < born ||
				check_group(e, i, &queued) < 0)
				return -EIO;
			born = g->born;
			total += g->total;
		}
	}
	for (uint32_t k = 0; k < CELLS; k++) {
		const struct cell *c = &h->cell[k];
		for (uint32_t i = c->groups.old; i != NONE; i = h->group[i].c_young)
			celled += h->group[i].queued;
		bool listed = h->bitmap[c->level / 64] >> c->level % 64 & 1;
		if (c->groups.old != NONE && !listed)
			return -EIO;
	}
	if (used != h->n_used || queued != in_queues || celled != queued || total != e->items)
		return -EIO;
	return 0;
}

static uint64_t hazard_memory(const struct kvp_evict *e)
{
	const struct hazard *h = e->self;

	return sizeof(*h) + (e->arena ? 0 : (uint64_t)h->n_groups * sizeof(*h->group));
}

const struct evict_ops evict_hazard = {
	.name = "hazard",
	.about = "hits to expect per time held, learnt from the ages at which blocks come back",
	.init = hazard_init,
	.fini = hazard_fini,
	.request = hazard_request,
	.chain = hazard_chain,
	.insert = hazard_insert,
	.access = hazard_access,
	.take = hazard_take,
	.back = hazard_back,
	.detach = unqueue,
	.gone = hazard_gone,
	.hot = hazard_hot,
	.check = hazard_check,
	.memory = hazard_memory,
	.contest = true,
	.reset = hazard_reset,
	.learn = hazard_learn,
	.adopt = hazard_adopt,
};
