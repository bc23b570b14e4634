/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only a contest asks of hazard (evict_contest.c): to take in blocks that another algorithm
 * has held, and to put aside those that a shadow does not hold.
 */
#include <math.h>

#include "policy/evict_hazard.h"

#define ADOPT_STEPS 32.0 /* ages given to blocks taken over from another algorithm */

/* The group of this class born then, as far as there is room. */
static uint32_t group_born(struct kvp_evict *e, struct hazard_class c, uint8_t size, uint64_t born)
{
	struct hazard *h = e->self;
	uint32_t i = *newest(h, hazard_encode(c), size);

	if (i != NONE && h->group[i].born == born && h->group[i].size == size)
		return i;
	i = hazard_group_for(e, c, size, false);
	if (!h->group[i].total)
		hazard_backdate(h, i, born);
	return i;
}

void hazard_adopt(struct kvp_evict *e, uint32_t id, double rank)
{
	struct hazard *h = e->self;
	struct evict_node *n = &e->node[id];
	struct request guess = { .count = n->depth + 1u };
	uint32_t uses = evict_uses(n);
	uint8_t size = hazard_size_of(e, id);
	double step = floor((1 - rank) * ADOPT_STEPS) / ADOPT_STEPS;
	uint64_t age = (uint64_t)(step * STEP * (double)e->items * h->requests / (h->uses + 1));
	uint64_t born = age < h->now ? h->now - age : 0;
	struct hazard_class c =
		uses ? (struct hazard_class){ SEEN, uses, 0 } : hazard_class_of(&guess, FRESH);
	uint32_t i = group_born(e, c, size, born);

	n->freq = n->children;
	h->group[i].total++;
	hazard_queue(e, i, id, true);
}

static void part_pile(struct kvp_evict *e, const struct pile *p,
	bool (*wanted)(const struct kvp_evict *e, uint32_t id))
{
	struct hazard *h = e->self;
	uint32_t i, younger, id, next;

	for (i = p->groups.old; i != NONE; i = younger) {
		younger = h->group[i].in_pile.young;
		for (id = h->group[i].blocks.old; id != NONE; id = next) {
			next = e->node[id].link.young;
			if (wanted(e, id))
				continue;
			hazard_unqueue(e, id);
			evict_push_young(e, EVICT_ASIDE, id);
		}
	}
}

void hazard_part(struct kvp_evict *e, bool (*wanted)(const struct kvp_evict *e, uint32_t id))
{
	struct hazard *h = e->self;
	uint32_t id, younger;

	for (id = e->list[EVICT_ASIDE].ends.old; id != NONE; id = younger) {
		younger = e->node[id].link.young;
		if (wanted && !wanted(e, id))
			continue;
		evict_unlink(e, id);
		hazard_queue(e, e->node[id].home, id, false);
	}
	for (uint32_t l = 0; wanted && l < LEVELS; l++) {
		uint32_t p, next;
		for (p = h->in_order[l].young; p != NONE; p = next) {
			next = h->pile[p].in_level.old;
			part_pile(e, &h->pile[p], wanted);
		}
	}
}
