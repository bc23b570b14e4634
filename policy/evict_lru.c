/* SPDX-License-Identifier: Apache-2.0 */
/* LRU, and FIFO, which is LRU without the effect of a use. */
#include "policy/evict_impl.h"

enum { FIFO, LRU };

static void lru_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	(void)item;
	evict_push_young(e, 1, id);
}

static void lru_access(struct kvp_evict *e, uint32_t id)
{
	if (e->ops->variant == FIFO)
		return;
	if (evict_in_queue(&e->node[id]))
		evict_unlink(e, id);
	evict_push_young(e, 1, id);
}

static uint32_t lru_take(struct kvp_evict *e)
{
	return evict_pop_old(e, 1);
}

static void lru_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	if (how == EVICT_BACK_DUE)
		evict_push_old(e, 1, id);
	else
		evict_push_young(e, 1, id);
}

static bool lru_hot(const struct kvp_evict *e, uint32_t id)
{
	return evict_uses(&e->node[id]) > 0;
}

const struct evict_ops evict_lru = {
	.name = "lru",
	.about = "least recently used",
	.variant = LRU,
	.insert = lru_insert,
	.access = lru_access,
	.take = lru_take,
	.back = lru_back,
	.detach = evict_unlink,
	.hot = lru_hot,
};

const struct evict_ops evict_fifo = {
	.name = "fifo",
	.about = "oldest first, whatever its use",
	.variant = FIFO,
	.insert = lru_insert,
	.access = lru_access,
	.take = lru_take,
	.back = lru_back,
	.detach = evict_unlink,
	.hot = lru_hot,
};
