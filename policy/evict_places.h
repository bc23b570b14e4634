/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places for blocks whose ids are many more than there are blocks at a time: a block that comes gets
 * the place that was given back last, or else the lowest one that was never used, and keeps it until
 * it goes. What is kept of a block can then lie in arrays as long as there are places. An open table
 * finds the place of an id, with two entries of four bytes for each place. Private to policy/.
 */
#ifndef KVP_POLICY_EVICT_PLACES_H
#define KVP_POLICY_EVICT_PLACES_H

#include <stdint.h>

#include "shm/kvp_types.h"

#define EVICT_PLACE_NONE UINT32_MAX

struct evict_places;

/* n: places, 1 .. KVP_EVICT_MAX_IDS. NULL: no memory. */
struct evict_places *evict_places_new(uint32_t n, uint64_t seed);
void evict_places_free(struct evict_places *p); /* NULL is harmless */

/* EVICT_PLACE_NONE: the id has none. A few steps on average, whatever ids there are. */
uint32_t evict_places_find(const struct evict_places *p, kvp_block_id id);
/* A place for an id that has none; EVICT_PLACE_NONE: all are taken. */
uint32_t evict_places_take(struct evict_places *p, kvp_block_id id);
/* The id at a place that is taken. */
kvp_block_id evict_places_id(const struct evict_places *p, uint32_t place);
/* Gives a place back that is taken. */
void evict_places_give(struct evict_places *p, uint32_t place);

uint64_t evict_places_memory(const struct evict_places *p);
/* -EIO: it contradicts itself, or so many places are not what is taken. O(places). */
int evict_places_check(const struct evict_places *p, uint64_t taken);

#endif
