/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LFU with dynamic aging, priority L + uses, and GreedyDual-Size-Frequency, priority
 * L + uses * cost / size. L is the priority of the last victim: what has not been used for long
 * is overtaken by what is new.
 */
#include "policy/evict_impl.h"

#include <stdlib.h>

enum { LFUDA, GDSF };

static double priority(const struct kvp_evict *e, uint32_t id)
{
	const struct evict_node *n = &e->node[id];

	if (e->ops->variant == LFUDA)
		return e->age + n->freq;
	return e->age + n->freq * (double)n->cost / n->bytes;
}

static int lfuda_init(struct kvp_evict *e)
{
	return evict_heap_init(e);
}

static void lfuda_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	(void)item;
	e->node[id].freq = 1;
	evict_heap_push(e, id, priority(e, id));
}

static void lfuda_access(struct kvp_evict *e, uint32_t id)
{
	struct evict_node *n = &e->node[id];

	if (n->freq < UINT32_MAX)
		n->freq++;
	if (n->where == EVICT_HEAP)
		evict_heap_change(e, id, priority(e, id));
	else
		evict_heap_push(e, id, priority(e, id));
}

static uint32_t lfuda_take(struct kvp_evict *e)
{
	double pri;
	uint32_t id = evict_heap_pop(e, &pri);

	/* what had to wait for its children may come back below L */
	if (id != KVP_BLOCK_NONE && pri > e->age)
		e->age = pri;
	return id;
}

static void lfuda_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	evict_heap_push(e, id, how == EVICT_BACK_DUE ? e->age : priority(e, id));
}

static bool lfuda_hot(const struct kvp_evict *e, uint32_t id)
{
	return e->node[id].freq >= 2;
}

const struct evict_ops evict_lfuda = {
	.name = "lfu-da",
	.about = "least frequently used, with dynamic aging",
	.variant = LFUDA,
	.init = lfuda_init,
	.insert = lfuda_insert,
	.access = lfuda_access,
	.take = lfuda_take,
	.back = lfuda_back,
	.detach = evict_heap_remove,
	.hot = lfuda_hot,
	.check = evict_heap_check,
};

const struct evict_ops evict_gdsf = {
	.name = "gdsf",
	.about = "GreedyDual-Size-Frequency: uses x seconds to recompute / bytes, with aging",
	.variant = GDSF,
	.init = lfuda_init,
	.insert = lfuda_insert,
	.access = lfuda_access,
	.take = lfuda_take,
	.back = lfuda_back,
	.detach = evict_heap_remove,
	.hot = lfuda_hot,
	.check = evict_heap_check,
};
