/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LFU with dynamic aging, priority L + uses, and GreedyDual-Size-Frequency, priority
 * L + uses * cost / size. L is the priority of the last victim: what has not been used for long
 * is overtaken by what is new.
 */
#include "policy/evict_impl.h"

#include <string.h>

enum { LFUDA, GDSF };

/* Priorities as the heap's keys: of numbers not negative, the bits rise with the value. */
static uint64_t key_of(double pri)
{
	uint64_t key;

	memcpy(&key, &pri, sizeof(key));
	return key;
}

static double pri_of(uint64_t key)
{
	double pri;

	memcpy(&pri, &key, sizeof(pri));
	return pri;
}

static uint64_t priority(const struct kvp_evict *e, uint32_t id)
{
	const struct evict_node *n = &e->node[id];

	if (e->ops->variant == LFUDA)
		return key_of(e->age + n->freq);
	return key_of(e->age + n->freq * (double)n->cost / n->bytes);
}

static void lfuda_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	(void)item;
	e->node[id].freq = 1;
	evict_heap_push(e, id, priority(e, id));
}

static void lfuda_reset(struct kvp_evict *e)
{
	e->age = 0;
	evict_heap_clear(e);
}

static void lfuda_adopt(struct kvp_evict *e, uint32_t id, double rank)
{
	(void)rank;
	e->node[id].freq = 1 + evict_uses(&e->node[id]);
	evict_heap_push(e, id, priority(e, id));
}

static void lfuda_access(struct kvp_evict *e, uint32_t id)
{
	struct evict_node *n = &e->node[id];

	if (n->freq < UINT32_MAX)
		n->freq++;
	if (n->where == EVICT_HEAP)
		evict_heap_remove(e, id);
	evict_heap_push(e, id, priority(e, id));
}

static uint32_t lfuda_take(struct kvp_evict *e)
{
	uint64_t key;
	uint32_t id = evict_heap_pop(e, &key);

	if (id != KVP_BLOCK_NONE)
		e->age = pri_of(key);
	return id;
}

/* What a use is worth by byte changes; how long ago the last one was does not. */
static void lfuda_resized(struct kvp_evict *e, uint32_t id, uint32_t was)
{
	const struct evict_node *n = &e->node[id];
	double worth = n->freq * (double)n->cost, pri;

	if (e->ops->variant == LFUDA || n->where != EVICT_HEAP || n->bytes == was)
		return;
	pri = pri_of(*evict_heap_key(e, id)) - worth / was + worth / n->bytes;
	evict_heap_remove(e, id);
	evict_heap_push(e, id, key_of(pri > e->age ? pri : e->age));
}

static void lfuda_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	evict_heap_push(e, id, how == EVICT_BACK_DUE ? key_of(e->age) : priority(e, id));
}

static bool lfuda_hot(const struct kvp_evict *e, uint32_t id)
{
	return e->node[id].freq >= 2;
}

#define LFUDA_OPS                                                                              \
	.init = evict_heap_init, .insert = lfuda_insert, .access = lfuda_access,               \
	.take = lfuda_take, .back = lfuda_back, .detach = evict_heap_remove, .hot = lfuda_hot, \
	.resized = lfuda_resized, .check = evict_heap_check, .memory = evict_heap_memory,      \
	.reset = lfuda_reset, .adopt = lfuda_adopt

const struct evict_ops evict_lfuda = {
	.name = "lfu-da",
	.about = "least frequently used, with dynamic aging",
	.variant = LFUDA,
	LFUDA_OPS,
};

const struct evict_ops evict_gdsf = {
	.name = "gdsf",
	.about = "GreedyDual-Size-Frequency: uses x seconds to recompute / bytes, with aging",
	.variant = GDSF,
	LFUDA_OPS,
};
