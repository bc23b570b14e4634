/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segmented LRU: new blocks are on probation; a use moves them to the protected segment, which may
 * hold 4/5 of the capacity and gives its oldest back to probation.
 */
#include "policy/evict_impl.h"

enum { PROBATION = 1, PROTECTED };

static void shrink_protected(struct kvp_evict *e)
{
	uint64_t share = evict_capacity(e) - evict_capacity(e) / 5;

	while (evict_list_fill(e, PROTECTED) > share)
		evict_push_young(e, PROBATION, evict_pop_old(e, PROTECTED));
}

static void slru_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	(void)item;
	e->node[id].home = PROBATION;
	evict_push_young(e, PROBATION, id);
}

static void slru_access(struct kvp_evict *e, uint32_t id)
{
	if (evict_in_queue(&e->node[id]))
		evict_unlink(e, id);
	evict_push_young(e, PROTECTED, id);
	shrink_protected(e);
}

static uint32_t slru_take(struct kvp_evict *e)
{
	uint32_t q = e->list[PROBATION].items ? PROBATION : PROTECTED;
	uint32_t id = evict_pop_old(e, q);

	if (id != KVP_BLOCK_NONE)
		e->node[id].home = q;
	return id;
}

static void slru_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	if (how == EVICT_BACK_DUE)
		evict_push_old(e, PROBATION, id);
	else
		evict_push_young(e, e->node[id].home, id);
}

static bool slru_hot(const struct kvp_evict *e, uint32_t id)
{
	return e->node[id].where == PROTECTED;
}

const struct evict_ops evict_slru = {
	.name = "slru",
	.about = "segmented LRU: probation, and a protected segment of 4/5",
	.capacity = shrink_protected,
	.insert = slru_insert,
	.access = slru_access,
	.take = slru_take,
	.back = slru_back,
	.detach = evict_unlink,
	.hot = slru_hot,
};
