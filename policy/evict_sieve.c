/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIEVE (NSDI'24): one FIFO queue, a bit for "used", and a hand that moves from old to young,
 * clears the bits it meets and stops at the first block without. node.freq is the bit.
 */
#include "policy/evict_impl.h"

#include <errno.h>
#include <stdlib.h>

static int sieve_init(struct kvp_evict *e)
{
	e->hand = KVP_BLOCK_NONE; /* the old end */
	return 0;
}

static void sieve_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	(void)item;
	evict_push_young(e, 1, id);
}

static void sieve_adopt(struct kvp_evict *e, uint32_t id, double rank)
{
	(void)rank;
	e->node[id].freq = evict_uses(&e->node[id]) > 0;
	evict_push_young(e, 1, id);
}

static void sieve_access(struct kvp_evict *e, uint32_t id)
{
	e->node[id].freq = 1;
}

static void sieve_detach(struct kvp_evict *e, uint32_t id)
{
	if (e->hand == id)
		e->hand = e->node[id].link.young;
	evict_unlink(e, id);
}

static uint32_t sieve_take(struct kvp_evict *e)
{
	uint32_t id = e->hand;

	for (;; id = e->node[id].link.young) {
		if (id == KVP_BLOCK_NONE)
			id = e->list[1].ends.old;
		if (id == KVP_BLOCK_NONE)
			return KVP_BLOCK_NONE;
		if (!e->node[id].freq || !evict_spare(e))
			break;
		e->node[id].freq = 0;
	}
	e->hand = id;
	sieve_detach(e, id);
	return id;
}

static void sieve_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	if (how == EVICT_BACK_USED) {
		evict_push_young(e, 1, id);
	} else if (e->hand == KVP_BLOCK_NONE) {
		evict_push_old(e, 1, id);
	} else {
		/* the hand comes back for it before it moves on */
		evict_insert_older(e, 1, id, e->hand);
		e->hand = id;
	}
}

static bool sieve_hot(const struct kvp_evict *e, uint32_t id)
{
	return evict_uses(&e->node[id]) > 0;
}

static int sieve_check(const struct kvp_evict *e, uint64_t in_queues)
{
	if (in_queues || (e->hand != KVP_BLOCK_NONE && e->node[e->hand].where != 1))
		return -EIO;
	return 0;
}

const struct evict_ops evict_sieve = {
	.name = "sieve",
	.about = "SIEVE: FIFO with a moving hand that spares what was used",
	.init = sieve_init,
	.insert = sieve_insert,
	.access = sieve_access,
	.take = sieve_take,
	.back = sieve_back,
	.detach = sieve_detach,
	.hot = sieve_hot,
	.check = sieve_check,
	.adopt = sieve_adopt,
};
