/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Our own policy: evict where the fewest hits are to be expected per time held.
 *
 * The blocks that one request last used form a group: they have the same age and, mostly, the same
 * fate. A group has a class, told by what is known when it arises: fresh blocks or blocks seen
 * before, the turn of its conversation (0..3 and more), the number of new blocks of the request
 * (log 2). What came back more than three times, by requests with one new block at most, is told by
 * the mean time between its uses. Partial last blocks have a class of their own until they come
 * back, blocks that several chains share one for each power of two of chains. When hardly any
 * request meets a known block, what they bring is classed apart: it may be a scan.
 *
 * Ages fall into bins, two per octave. For every class and bin (a cell) we count how many blocks
 * entered it, and how many were used again in it; evicted blocks go on being counted while their
 * ghosts last, which keep class and birth for themselves. Their ratio, drawn towards that of the
 * kind and of all blocks where data are few, is the hazard. From it follows a cell's index, the
 * best over all horizons of expected hits until the horizon / expected time held until a hit or the
 * horizon (the index of Gittins, computed from old to young by merging bins while that raises it).
 * The victim is the tip of the oldest group in the cell of the smallest index; where bytes bound
 * the cache, of the smallest index by bytes.
 *
 * Ages are counted half in requests and half in time: blocks compete request by request, but
 * people and tools come back after a time. A long gap counts for no more than sixteen mean ones,
 * and where the clock stands still only requests count. Ages below one mean step are one bin: what
 * comes back at once would else make everything new look precious. Beyond the oldest age seen the
 * hazard falls as 1 / age.
 */
#include "policy/evict_impl.h"
#include "policy/evict_hazard.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define GHOSTS_EXTRA   20000u
#define GHOSTS_FEW     4096u /* and a quarter of its blocks, where a cache is a part of another */
#define GHOSTS_AT_ONCE 32u   /* counted on by one eviction, at most */
#define GHOST_UNIT     14u   /* log2; a ghost's birth is kept in 32 bits */
#define COLD_MEMORY    16.0  /* requests */
#define GAP_USES       8u
#define GAP_MEMORY     16384.0 /* gaps between requests, that their mean remembers */
#define GAP_MAX        16.0    /* longest gap, in mean ones */

/* ---- requests ---- */

struct hazard_class hazard_class_of(const struct request *r, enum hazard_kind kind)
{
	uint32_t size = log2_floor((uint64_t)r->count + 1);

	if (kind == SEEN && r->uses >= TURNS && r->count <= 1)
		return (struct hazard_class){ OFTEN, r->gap >= 2 ? log2_floor((uint64_t)r->gap) : 0,
			r->count };
	if (kind == FRESH && r->cold)
		return (struct hazard_class){ COLD, r->cold - 1, size };
	return (struct hazard_class){ kind, r->uses, size };
}

/* The request comes back to what had this class and mean gap, and is now so old. */
static void return_to(struct request *r, struct hazard_class c, double gap, uint64_t age)
{
	double steps = (double)age / STEP;

	if (c.kind == FRESH || c.kind == SEEN)
		r->uses = c.major + 1;
	else
		r->uses = c.kind == OFTEN ? TURNS : 1;
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
	hazard_sweep(e);
}

/* When hardly any request meets what is known, it is a scan, and what it brings is of its own. */
static uint32_t cold_of(const struct hazard *h)
{
	return (h->unknown > .75) + (h->unknown > .9) + (h->unknown > .97);
}

/*
 * A request that begins at this cached block. It is the next turn of a conversation if nothing
 * but a partial block was ever put below it.
 */
static struct request *begin(struct kvp_evict *e, uint32_t tip)
{
	struct hazard *h = e->self;

	advance(e);
	h->expects_root = false;
	const struct request *last = &h->request[h->current];
	if (last->count || last->known)
		h->unknown += (!last->known - h->unknown) / COLD_MEMORY;
	h->current = (h->current + 1) % REQUESTS;
	struct request *r = &h->request[h->current];
	if (r->seen != NONE)
		hazard_forget_request(h, r->seen);
	if (r->fresh != NONE)
		hazard_forget_request(h, r->fresh);
	*r = (struct request){ .seen = NONE, .fresh = NONE };
	if (tip == NONE)
		r->cold = cold_of(h);
	r->known = tip != NONE;
	const struct group *g = &h->group[tip != NONE ? e->node[tip].home : 0];
	if (tip != NONE && e->node[tip].freq == 0)
		return_to(r, hazard_decode(g->code), (double)gap_of(g), h->now - g->born);
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
	} else if (h->expects_root) {
		h->expects_root = false;
		return &h->request[h->current];
	}
	return begin(e, parent);
}

/* The group of this kind of a request. In a crowd it is nobody's own, and keeps its class. */
static uint32_t group_of(
	struct kvp_evict *e, struct request *r, enum hazard_kind kind, uint8_t size)
{
	struct hazard *h = e->self;
	uint32_t *own = kind == SEEN ? &r->seen : &r->fresh;

	if (*own != NONE)
		return *own;
	uint32_t i = hazard_group_for(e, hazard_class_of(r, kind), size, false);
	if (!h->group[i].total) {
		*own = i;
		set_gap(&h->group[i], r->gap);
		h->group[i].request = (uint8_t)(r - h->request);
	}
	return i;
}

/* ---- operations ---- */

void hazard_reset(struct kvp_evict *e)
{
	struct hazard *h = e->self;

	hazard_groups_reset(h);
	for (uint32_t i = 0; i < REQUESTS; i++)
		h->request[i] = (struct request){ .seen = NONE, .fresh = NONE };
	h->tip = NONE;
	h->announced = NONE;
	h->expects_root = false;
	h->begun = e->now;
	hazard_relearn(e);
}

/*
 * Ghosts beyond the capacity. A cache of few of its ids is a device's, beside one that has all of them and remembers
 * them: there fewer do, and their memory is what the device costs.
 */
static uint64_t extra_ghosts(const struct kvp_evict *e, uint64_t capacity)
{
	uint64_t few = GHOSTS_FEW + capacity / 4;

	return e->params.max_blocks && few < GHOSTS_EXTRA ? few : GHOSTS_EXTRA;
}

static int hazard_init(struct kvp_evict *e)
{
	struct hazard *h = calloc(1, sizeof(*h));
	uint64_t c = e->params.items ? e->params.items : e->params.max_ids;

	e->self = h;
	if (!h)
		return -ENOMEM;
	int r = evict_ghosts_init(e, c + extra_ghosts(e, c));
	if (r < 0)
		return r;
	h->n_groups = e->params.max_ids / 4 + 4 * CLASSES;
	h->group = e->arena ? e->arena : calloc(h->n_groups, sizeof(*h->group));
	h->level = calloc(CELLS, sizeof(*h->level));
	h->spare = calloc(CELLS, sizeof(*h->spare));
	if (!h->group || !h->level || !h->spare)
		return -ENOMEM;
	hazard_reset(e);
	return 0;
}

static void hazard_fini(struct kvp_evict *e)
{
	struct hazard *h = e->self;

	if (!h)
		return;
	if (!e->arena)
		free(h->group);
	free(h->level);
	free(h->spare);
	free(h);
}

static void hazard_request(struct kvp_evict *e, const struct kvp_evict_request *req)
{
	struct hazard *h = e->self;

	begin(e, req->tip);
	h->announced = req->tip;
	h->expects_root = req->tip == NONE;
}

static void hazard_chain(struct kvp_evict *e, uint32_t tip, bool alone)
{
	struct hazard *h = e->self;

	(void)alone;
	if (h->announced != tip)
		begin(e, tip);
	h->announced = NONE;
}

static uint32_t hazard_current(const struct kvp_evict *e)
{
	const struct hazard *h = e->self;

	return h->current;
}

/* Its place may be a later request's by now: then its blocks count as that one's. */
static void hazard_resume(struct kvp_evict *e, uint32_t request)
{
	struct hazard *h = e->self;

	h->current = request;
}

static void hazard_access(struct kvp_evict *e, uint32_t id)
{
	struct hazard *h = e->self;
	struct evict_node *n = &e->node[id];
	struct request *r = &h->request[h->current];
	uint32_t was = n->home, to;

	if (evict_in_queue(n))
		hazard_unqueue(e, id);
	hazard_count_hit(e, was);
	/* what lies above a branch belongs to as many chains */
	if (n->freq > 1 && log2_floor(n->freq) > r->branch)
		r->branch = log2_floor(n->freq);
	if (r->branch)
		to = hazard_group_for(e, (struct hazard_class){ SHARED, r->branch - 1, 0 },
			hazard_size_of(e, id), true);
	else
		to = group_of(e, r, SEEN, hazard_size_of(e, id));
	hazard_join(e, to, id, true);
	hazard_group_unref(h, was);
}

/* What a ghost's note holds. */
enum { NOTE_CODE, NOTE_BIN, NOTE_GAP }; /* NOTE_GAP: log2 of the gap, in eighths */

static uint64_t ghost_age(const struct hazard *h, const struct evict_ghost *x)
{
	uint32_t born = x->weight;

	return (uint64_t)((uint32_t)(h->now >> GHOST_UNIT) - born) << GHOST_UNIT;
}

/* The ghost has grown older since it was last looked at. Returns its cell. */
static struct cell *ghost_ages(struct hazard *h, struct evict_ghost *x)
{
	struct cell *c = &h->cell[x->note[NOTE_CODE] * BINS];
	uint32_t bin = bin_of(ghost_age(h, x));

	while (x->note[NOTE_BIN] < bin)
		c[++x->note[NOTE_BIN]].entries += 1;
	return &c[x->note[NOTE_BIN]];
}

/*
 * A ghost comes back: the block was evicted too early. Sets the class it had. False: nobody knows
 * the block.
 */
static bool revive(struct kvp_evict *e, struct request *r, uint64_t key, struct hazard_class *was)
{
	struct hazard *h = e->self;
	uint32_t ghost = evict_ghost_find(e->ghosts, key);

	if (ghost == EVICT_GHOST_NONE)
		return false;
	struct evict_ghost *x = evict_ghost_at(e->ghosts, ghost);
	*was = hazard_decode(x->note[NOTE_CODE]);
	r->cold = 0;
	r->known = true;
	if (!r->count && was->kind != SHARED)
		return_to(r, *was, exp2(x->note[NOTE_GAP] / 8.0), ghost_age(h, x));
	else if (!r->count)
		r->uses = 0;
	ghost_ages(h, x)->events += 1;
	evict_ghost_drop(e->ghosts, ghost);
	return true;
}

static void hazard_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	struct hazard *h = e->self;
	struct evict_node *n = &e->node[id];
	struct request *r = request_of(e, n->parent);
	bool partial = n->flags & KVP_EVICT_PARTIAL;
	struct hazard_class was;
	uint32_t to;

	(void)item;
	if (n->parent != NONE && e->node[n->parent].where == QUEUED) {
		/* it cannot go before this one: nobody shall meet it on the way to a victim */
		hazard_unqueue(e, n->parent);
		e->node[n->parent].where = EVICT_PARKED;
	}
	bool known = revive(e, r, n->key, &was);
	if (!known) {
		r->count++;
		if (n->parent != NONE && !partial)
			e->node[n->parent].freq++;
	}
	hazard_relabel(h, r->seen, hazard_class_of(r, SEEN));
	hazard_relabel(h, r->fresh, hazard_class_of(r, FRESH));
	if (partial && !known) {
		to = hazard_group_for(
			e, (struct hazard_class){ .kind = PARTIAL }, hazard_size_of(e, id), true);
	} else if (known && was.kind == SHARED) {
		n->freq = 1u << (was.major + 1);
		to = hazard_group_for(e, was, hazard_size_of(e, id), true);
	} else {
		to = group_of(e, r, known ? SEEN : FRESH, hazard_size_of(e, id));
	}
	/* new blocks come root first, and leave tip first */
	hazard_join(e, to, id, false);
	if (r == &h->request[h->current])
		h->tip = id;
}

static void hazard_settle(struct kvp_evict *e)
{
	struct hazard *h = e->self;

	hazard_sweep(e);
	/* With a lesson somebody else learns. */
	if (h->spare && hazard_is_due(e))
		hazard_relearn(e);
}

static void hazard_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	struct hazard *h = e->self;
	uint32_t i = e->node[id].home;

	if (how == EVICT_BACK_DUE) {
		hazard_queue(e, i, id, false);
		return;
	}
	struct hazard_class c = hazard_decode(h->group[i].code);

	hazard_join(e, hazard_group_for(e, c, h->group[i].size, true), id, true);
	hazard_group_unref(h, i);
}

/*
 * All ghosts once in as many evictions as a quarter of the cache has blocks, and 1,024; more slowly
 * if they are of a cache that was much larger.
 */
static void count_ghosts_on(struct kvp_evict *e)
{
	struct hazard *h = e->self;
	uint32_t places = evict_ghosts_places(e->ghosts);
	uint64_t n = 1 + places / (1024 + e->items / 4);

	for (n = n < GHOSTS_AT_ONCE ? n : GHOSTS_AT_ONCE; n > 0; n--) {
		h->ghost = h->ghost + 1 < places ? h->ghost + 1 : 0;
		struct evict_ghost *x = evict_ghost_at(e->ghosts, h->ghost);
		if (x)
			ghost_ages(h, x);
	}
}

static void hazard_gone(struct kvp_evict *e, uint32_t id, bool evicted)
{
	struct hazard *h = e->self;
	const struct evict_node *n = &e->node[id];
	const struct group *g = &h->group[n->home];
	struct evict_ghost *x;
	uint32_t ghost;

	if (!evicted) {
		hazard_group_unref(h, n->home);
		return;
	}
	ghost = evict_ghost_victim(e->ghosts);
	if (ghost != EVICT_GHOST_NONE)
		ghost_ages(h, evict_ghost_at(e->ghosts, ghost));
	ghost = evict_ghost_add(e->ghosts, 0, n->key, (uint32_t)(g->born >> GHOST_UNIT));
	x = evict_ghost_at(e->ghosts, ghost);
	x->note[NOTE_CODE] = g->code;
	x->note[NOTE_BIN] = g->bin;
	x->note[NOTE_GAP] = gap_of(g) > 1 ? (uint8_t)fminf(255, log2f(gap_of(g)) * 8) : 0;
	hazard_group_unref(h, n->home);
	count_ghosts_on(e);
}

static bool hazard_hot(const struct kvp_evict *e, uint32_t id)
{
	const struct hazard *h = e->self;
	enum hazard_family f = hazard_family(hazard_decode(h->group[e->node[id].home].code));

	return f == FAMILY_SEEN || f == FAMILY_SHARED;
}

static void hazard_memory(const struct kvp_evict *e, struct kvp_evict_memory *m)
{
	const struct hazard *h = e->self;
	uint64_t groups = e->arena ? 0 : (uint64_t)h->n_groups * sizeof(*h->group);

	m->total += sizeof(*h) + 2 * CELLS * sizeof(*h->level) + groups;
	m->per_block += (uint32_t)(groups / e->params.max_ids);
}

const struct evict_ops evict_hazard = {
	.name = "hazard",
	.about = "hits to expect per time held, learnt from the ages at which blocks come back",
	.init = hazard_init,
	.fini = hazard_fini,
	.request = hazard_request,
	.chain = hazard_chain,
	.current = hazard_current,
	.resume = hazard_resume,
	.insert = hazard_insert,
	.access = hazard_access,
	.settle = hazard_settle,
	.take = hazard_pop_least,
	.back = hazard_back,
	.detach = hazard_unqueue,
	.gone = hazard_gone,
	.hot = hazard_hot,
	.check = hazard_check,
	.memory = hazard_memory,
	.reset = hazard_reset,
	.adopt = hazard_adopt,
};
