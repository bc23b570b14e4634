/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places of ids: linear probing in a table that is at most half full, and no tombstones: what
 * stands behind an entry that goes moves up. A place is known in it as place + 1, so that calloc()
 * makes an empty one.
 */
#include "policy/evict_places.h"

#include <errno.h>
#include <stdlib.h>

struct evict_places {
	uint64_t seed;
	uint32_t n, entries;
	uint32_t fresh; /* places from here on were never used */
	uint32_t free;  /* place + 1, linked by `id`; 0: none */
	uint32_t taken;
	uint32_t *id;
	uint32_t *entry;
};

struct evict_places *evict_places_new(uint32_t n, uint64_t seed)
{
	struct evict_places *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->seed = seed;
	p->n = n;
	p->entries = 2 * n;
	p->id = calloc(n, sizeof(*p->id));
	p->entry = calloc(p->entries, sizeof(*p->entry));
	if (!p->id || !p->entry) {
		evict_places_free(p);
		return NULL;
	}
	return p;
}

void evict_places_free(struct evict_places *p)
{
	if (!p)
		return;
	free(p->id);
	free(p->entry);
	free(p);
}

/* Where a search for the id begins. Clients have a say in which ids there are, but not in the seed. */
static uint32_t home_of(const struct evict_places *p, kvp_block_id id)
{
	uint64_t h = (id ^ p->seed) * UINT64_C(0xff51afd7ed558ccd);

	h = (h ^ h >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
	return (uint32_t)((h >> 32) * p->entries >> 32);
}

static uint32_t after(const struct evict_places *p, uint32_t entry)
{
	return entry + 1 < p->entries ? entry + 1 : 0;
}

/* The entry of the id, or the empty one where it would be. */
static uint32_t entry_of(const struct evict_places *p, kvp_block_id id)
{
	uint32_t i = home_of(p, id);

	while (p->entry[i] && p->id[p->entry[i] - 1] != id)
		i = after(p, i);
	return i;
}

uint32_t evict_places_find(const struct evict_places *p, kvp_block_id id)
{
	return p->entry[entry_of(p, id)] - 1; /* EVICT_PLACE_NONE of an empty one */
}

uint32_t evict_places_take(struct evict_places *p, kvp_block_id id)
{
	uint32_t place;

	if (p->free) {
		place = p->free - 1;
		p->free = p->id[place];
	} else if (p->fresh < p->n) {
		place = p->fresh++;
	} else {
		return EVICT_PLACE_NONE;
	}
	p->entry[entry_of(p, id)] = place + 1;
	p->id[place] = id;
	p->taken++;
	return place;
}

kvp_block_id evict_places_id(const struct evict_places *p, uint32_t place)
{
	return p->id[place];
}

/* How far an entry is behind another one, around the end. */
static uint32_t distance(const struct evict_places *p, uint32_t from, uint32_t to)
{
	return to >= from ? to - from : to + (p->entries - from);
}

void evict_places_give(struct evict_places *p, uint32_t place)
{
	uint32_t hole = entry_of(p, p->id[place]);

	/* What was found by a search that came by the hole takes its place. */
	for (uint32_t i = after(p, hole); p->entry[i]; i = after(p, i)) {
		uint32_t home = home_of(p, p->id[p->entry[i] - 1]);

		if (distance(p, home, i) < distance(p, hole, i))
			continue;
		p->entry[hole] = p->entry[i];
		hole = i;
	}
	p->entry[hole] = 0;
	p->id[place] = p->free;
	p->free = place + 1;
	p->taken--;
}

uint64_t evict_places_memory(const struct evict_places *p)
{
	return sizeof(*p) + ((uint64_t)p->n + p->entries) * sizeof(*p->id);
}

int evict_places_check(const struct evict_places *p, uint64_t taken)
{
	uint64_t entered = 0, given = 0;

	for (uint32_t i = 0; i < p->entries; i++) {
		uint32_t place = p->entry[i] - 1;

		if (!p->entry[i])
			continue;
		if (place >= p->fresh || evict_places_find(p, p->id[place]) != place)
			return -EIO;
		entered++;
	}
	for (uint32_t i = p->free; i; i = p->id[i - 1])
		if (i > p->fresh || ++given > p->fresh)
			return -EIO;
	return entered == taken && p->taken == taken && given + taken == p->fresh ? 0 : -EIO;
}
