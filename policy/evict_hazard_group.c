/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of blocks that one request last used: in the order of birth, by bins of age (the
 * timeline), and in piles by the level of their index, from which victims are taken.
 *
 * Only blocks without children are queued in their group, so that every block in a pile may go, and
 * a group without such blocks is in no pile. Nothing here searches: a list is entered at an end, or
 * near enough to its place.
 */
#include <errno.h>
#include <math.h>

#include "policy/evict_hazard.h"

#define SWEEP_MOST  1024u /* groups that one call makes older; a request has few */
#define LEVEL_STEPS 64u   /* piles that one insertion passes by */

/* ---- piles by level of their index ---- */

/*
 * Of one level, the pile of the youngest bin goes first: what is older has shown that it stays
 * wanted. A level rarely has more than a few piles; in a longer list the place is near enough.
 */
static void level_add(struct hazard *h, struct pile *p)
{
	uint32_t older = h->in_order[p->level].young, younger = NONE;

	for (uint32_t k = 0; k < LEVEL_STEPS && older != NONE; k++) {
		if (h->pile[older].cell % BINS >= p->cell % BINS)
			break;
		younger = older;
		older = h->pile[older].in_level.old;
	}
	index_insert_older(INDEX_LINKS(h->pile, in_level), &h->in_order[p->level],
		(uint32_t)(p - h->pile), younger);
	h->bitmap[p->level / 64] |= UINT64_C(1) << p->level % 64;
}

static void level_remove(struct hazard *h, struct pile *p)
{
	index_remove(
		INDEX_LINKS(h->pile, in_level), &h->in_order[p->level], (uint32_t)(p - h->pile));
	if (index_list_empty(&h->in_order[p->level]))
		h->bitmap[p->level / 64] &= ~(UINT64_C(1) << p->level % 64);
}

/* Twice the size, half the index. */
static uint16_t level_of(const struct hazard *h, uint32_t cell, uint8_t size)
{
	int level = h->level[cell] - SIZE_LEVELS * (size - SIZE_MIDDLE);

	return (uint16_t)(level < 0 ? 0 : level < (int)LEVELS ? level : (int)LEVELS - 1);
}

/* The pile for this cell and size; one of another size if there are too many. */
static struct pile *pile_for(struct hazard *h, uint16_t cell, uint8_t size)
{
	struct pile *own = &h->pile[cell], *p;

	if (!index_list_empty(&own->groups) && own->size == size)
		return own;
	for (uint16_t i = own->sibling; i != NO_PILE; i = h->pile[i].sibling)
		if (h->pile[i].size == size)
			return &h->pile[i];
	p = own;
	if (!index_list_empty(&own->groups)) {
		if (h->free_pile == NO_PILE)
			return own;
		p = &h->pile[h->free_pile];
		h->free_pile = p->sibling;
		p->sibling = own->sibling;
		own->sibling = (uint16_t)(p - h->pile);
	}
	p->cell = cell;
	p->size = size;
	return p;
}

static void pile_free(struct hazard *h, struct pile *p)
{
	uint16_t i = (uint16_t)(p - h->pile), *link = &h->pile[p->cell].sibling;

	if (i < CELLS)
		return;
	while (*link != i)
		link = &h->pile[*link].sibling;
	*link = p->sibling;
	p->sibling = h->free_pile;
	h->free_pile = i;
}

static void pile_add(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];
	uint16_t cell = (uint16_t)(cell_of(h, g) - h->cell);
	struct pile *p = pile_for(h, cell, g->size);

	bool was_empty = index_list_empty(&p->groups);

	g->pile = (uint16_t)(p - h->pile);
	/* One that is back because its last child went is among the oldest. */
	if (was_empty || g->born >= h->group[p->groups.young].born)
		index_push_young(INDEX_LINKS(h->group, in_pile), &p->groups, i);
	else
		index_push_old(INDEX_LINKS(h->group, in_pile), &p->groups, i);
	if (was_empty) {
		p->level = level_of(h, cell, p->size);
		level_add(h, p);
	}
}

static void pile_remove(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];
	struct pile *p = &h->pile[g->pile];

	index_remove(INDEX_LINKS(h->group, in_pile), &p->groups, i);
	if (index_list_empty(&p->groups)) {
		level_remove(h, p);
		pile_free(h, p);
	}
}

uint8_t hazard_size_of(const struct kvp_evict *e, uint32_t id)
{
	struct hazard *h = e->self;
	float bytes = (float)e->node[id].bytes;
	uint32_t bits;

	if (!e->params.bytes || e->params.items)
		return SIZE_MIDDLE;
	memcpy(&bits, &bytes, sizeof(bits));
	bits >>= SIZE_SHIFT;
	if (!h->size_base)
		h->size_base = bits;
	int size = SIZE_MIDDLE + (int)bits - (int)h->size_base;
	return (uint8_t)(size < 0 ? 0 : size < UINT8_MAX ? size : UINT8_MAX);
}

uint16_t hazard_level_of(double index)
{
	/* sixteen levels an octave, read off the bits of the float; 2^-64 .. 1 */
	float f = (float)index;
	uint32_t bits, base = (127u - 64u) << 4;

	memcpy(&bits, &f, sizeof(bits));
	bits >>= 19;
	return (uint16_t)(bits < base ? 0 : bits - base < LEVELS ? bits - base : LEVELS - 1);
}

/* The cell's level has changed. */
static void order_anew(struct hazard *h, uint32_t cell)
{
	for (uint16_t i = (uint16_t)cell; i != NO_PILE; i = h->pile[i].sibling) {
		struct pile *p = &h->pile[i];
		if (index_list_empty(&p->groups))
			continue;
		level_remove(h, p);
		p->level = level_of(h, cell, p->size);
		level_add(h, p);
	}
}

void hazard_use_levels(struct hazard *h, uint16_t **level)
{
	uint16_t *was = h->level;

	h->level = *level;
	*level = was;
	for (uint32_t i = 0; i < CELLS; i++)
		if (h->level[i] != was[i])
			order_anew(h, i);
}

/* ---- groups by age ---- */

/* In order of birth. Almost always the group is the youngest. */
static void timeline_add(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];
	struct index_link *t = &h->timeline[g->bin];
	uint32_t older = t->young, younger = NONE;

	while (older != NONE && h->group[older].born > g->born) {
		younger = older;
		older = h->group[older].in_bin.old;
	}
	index_insert_older(INDEX_LINKS(h->group, in_bin), t, i, younger);
}

static void timeline_remove(struct hazard *h, uint32_t i)
{
	index_remove(INDEX_LINKS(h->group, in_bin), &h->timeline[h->group[i].bin], i);
}

void hazard_backdate(struct hazard *h, uint32_t i, uint64_t born)
{
	struct group *g = &h->group[i];

	timeline_remove(h, i);
	g->born = born;
	g->bin = (uint8_t)bin_of(h->now - born);
	timeline_add(h, i);
}

/* The group has grown older than its bin. */
static void grow_older(struct hazard *h, uint32_t i, uint32_t bin)
{
	struct group *g = &h->group[i];

	timeline_remove(h, i);
	if (g->queued)
		pile_remove(h, i);
	while (g->bin < bin) {
		g->bin++;
		cell_of(h, g)->entries += (float)g->total;
	}
	timeline_add(h, i);
	if (g->queued)
		pile_add(h, i);
}

void hazard_sweep(struct kvp_evict *e)
{
	struct hazard *h = e->self;
	uint32_t i, moved = 0;

	if (h->now == h->swept)
		return;
	for (uint32_t b = BINS - 1; b-- > 0;)
		while ((i = h->timeline[b].old) != NONE &&
			h->now - h->group[i].born >= bin_end(b)) {
			if (moved++ == SWEEP_MOST)
				return; /* the next call goes on */
			grow_older(h, i, bin_of(h->now - h->group[i].born));
		}
	h->swept = h->now;
}

/* ---- groups ---- */

void hazard_groups_reset(struct hazard *h)
{
	h->free_group = NONE;
	h->fresh_group = 0;
	h->n_used = 0;
	memset(h->newest, 0xff, sizeof(h->newest));
	memset(h->timeline, 0xff, sizeof(h->timeline));
	memset(h->in_order, 0xff, sizeof(h->in_order));
	memset(h->bitmap, 0, sizeof(h->bitmap));
	for (uint32_t i = 0; i < PILES; i++) {
		index_list_init(&h->pile[i].groups);
		h->pile[i].sibling = i >= CELLS && i + 1 < PILES ? (uint16_t)(i + 1) : NO_PILE;
	}
	h->free_pile = CELLS;
}

void hazard_forget_request(struct hazard *h, uint32_t i)
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

void hazard_group_unref(struct hazard *h, uint32_t i)
{
	struct group *g = &h->group[i];

	if (--g->total)
		return;
	timeline_remove(h, i);
	if (*newest(h, g->code, g->size) == i)
		*newest(h, g->code, g->size) = NONE;
	hazard_forget_request(h, i);
	g->in_bin.old = h->free_group;
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

static uint32_t take_place(struct hazard *h)
{
	uint32_t i = h->free_group;

	h->n_used++;
	if (i == NONE)
		return h->fresh_group++;
	h->free_group = h->group[i].in_bin.old;
	return i;
}

uint32_t hazard_group_for(struct kvp_evict *e, struct hazard_class c, uint8_t size, bool may_share)
{
	struct hazard *h = e->self;
	uint8_t code = hazard_encode(c);
	uint32_t *place = newest(h, code, size), i = *place;
	bool crowded = h->n_used > h->n_groups / 2;

	if (i != NONE && (may_share || crowded) && h->group[i].size == size &&
		h->now - h->group[i].born <= tolerance(h))
		return i;
	if (h->n_used == h->n_groups) {
		/* There is one: the group that took the last place is the newest of its kind. */
		for (uint32_t k = (uint32_t)(place - h->newest); i == NONE;
			k = (k + 1) % (CLASSES * NEWEST_SIZES))
			i = h->newest[k];
		return i;
	}
	i = take_place(h);
	h->group[i] = (struct group){
		.born = h->now,
		.blocks = INDEX_LIST_EMPTY,
		.code = code,
		.size = size,
		.request = REQUESTS,
	};
	timeline_add(h, i);
	*place = i;
	return i;
}

void hazard_relabel(struct hazard *h, uint32_t i, struct hazard_class c)
{
	struct group *g = &h->group[i];
	uint8_t code = hazard_encode(c);

	if (i == NONE || g->code == code)
		return;
	if (g->queued)
		pile_remove(h, i);
	cell_of(h, g)->entries = fmaxf(0, cell_of(h, g)->entries - (float)g->total);
	if (*newest(h, g->code, g->size) == i)
		*newest(h, g->code, g->size) = NONE;
	g->code = code;
	*newest(h, code, g->size) = i;
	cell_of(h, g)->entries += (float)g->total;
	if (g->queued)
		pile_add(h, i);
}

void hazard_queue(struct kvp_evict *e, uint32_t i, uint32_t id, bool young)
{
	struct hazard *h = e->self;
	struct group *g = &h->group[i];
	struct evict_node *n = &e->node[id];

	n->home = i;
	if (n->children) {
		n->where = EVICT_PARKED;
		return;
	}
	if (young)
		index_push_young(evict_links(e), &g->blocks, id);
	else
		index_push_old(evict_links(e), &g->blocks, id);
	n->where = QUEUED;
	if (!g->queued++)
		pile_add(h, i);
}

void hazard_unqueue(struct kvp_evict *e, uint32_t id)
{
	struct hazard *h = e->self;
	struct evict_node *n = &e->node[id];
	struct group *g = &h->group[n->home];

	index_remove(evict_links(e), &g->blocks, id);
	n->where = EVICT_OUT;
	if (!--g->queued)
		pile_remove(h, n->home);
}

void hazard_join(struct kvp_evict *e, uint32_t i, uint32_t id, bool young)
{
	struct hazard *h = e->self;
	struct group *g = &h->group[i];

	g->total++;
	cell_of(h, g)->entries += 1;
	h->changes++;
	h->uses++;
	hazard_queue(e, i, id, young);
}

uint32_t hazard_pop_least(struct kvp_evict *e)
{
	struct hazard *h = e->self;

	for (uint32_t w = 0; w < LEVELS / 64; w++) {
		if (!h->bitmap[w])
			continue;
		uint32_t level = w * 64 + (uint32_t)__builtin_ctzll(h->bitmap[w]);
		uint32_t id = h->group[h->pile[h->in_order[level].young].groups.old].blocks.old;
		hazard_unqueue(e, id);
		return id;
	}
	return NONE;
}

/* ---- consistency ---- */

static int check_group(const struct kvp_evict *e, uint32_t i, uint64_t *queued)
{
	const struct hazard *h = e->self;
	const struct group *g = &h->group[i];
	uint32_t n = 0, prev = NONE;

	for (uint32_t id = g->blocks.young; id != NONE; id = e->node[id].link.old) {
		const struct evict_node *x = &e->node[id];
		if (x->where != QUEUED || x->home != i || x->link.young != prev || ++n > g->queued)
			return -EIO;
		prev = id;
	}
	if (n != g->queued || g->blocks.old != prev || !g->total || g->queued > g->total)
		return -EIO;
	*queued += n;
	return 0;
}

int hazard_check(const struct kvp_evict *e, uint64_t in_queues)
{
	const struct hazard *h = e->self;
	uint64_t queued = 0, celled = 0, used = 0, total = 0;

	for (uint32_t b = 0; b < BINS; b++) {
		uint64_t born = 0;
		for (uint32_t i = h->timeline[b].old; i != NONE; i = h->group[i].in_bin.young) {
			const struct group *g = &h->group[i];
			if (++used > h->n_used || g->bin != b || g->born < born ||
				check_group(e, i, &queued) < 0)
				return -EIO;
			born = g->born;
			total += g->total;
		}
	}
	for (uint32_t k = 0; k < PILES; k++) {
		const struct pile *p = &h->pile[k];
		for (uint32_t i = p->groups.old; i != NONE; i = h->group[i].in_pile.young)
			celled += h->group[i].pile == k ? h->group[i].queued : 0;
		bool listed = h->bitmap[p->level / 64] >> p->level % 64 & 1;
		if (p->groups.old != NONE && !listed)
			return -EIO;
	}
	if (used != h->n_used || queued != in_queues || celled != queued || total != e->items)
		return -EIO;
	return 0;
}
