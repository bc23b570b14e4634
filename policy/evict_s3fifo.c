/* SPDX-License-Identifier: Apache-2.0 */
/*
 * S3-FIFO (SOSP'23), as libCacheSim has it: a small queue for what is new, a main queue for what
 * proved useful there, and ghosts of what left the small queue. Two parameter sets: the paper's
 * (a tenth of the capacity is small, two uses to prove), and that of AIBrix (three tenths, one).
 */
#include "policy/evict_impl.h"

#include <errno.h>
#include <stdlib.h>

enum { SMALL = 1, MAIN };
enum { PAPER, AIBRIX };

struct s3 {
	uint64_t small_share;
	uint64_t ghost_share;
	uint32_t threshold;
	struct evict_promises promises;
};

static void s3_capacity(struct kvp_evict *e)
{
	struct s3 *s = e->self;
	uint64_t c = evict_capacity(e);

	s->small_share = e->ops->variant == PAPER ? c / 10 : c * 3 / 10;
	if (!s->small_share)
		s->small_share = 1;
	s->ghost_share = (uint64_t)((double)c * 0.9);
	while (evict_ghost_weight(e->ghosts, 0) > s->ghost_share)
		evict_ghost_drop_oldest(e->ghosts, 0);
}

static int s3_init(struct kvp_evict *e)
{
	struct s3 *s = calloc(1, sizeof(*s));

	e->self = s;
	if (!s)
		return -ENOMEM;
	s->threshold = e->ops->variant == PAPER ? 2 : 1;
	int r = evict_ghosts_init(e, e->params.max_ids);
	if (r < 0)
		return r;
	s3_capacity(e);
	return 0;
}

static void s3_fini(struct kvp_evict *e)
{
	free(e->self);
}

static bool take_ghost(struct kvp_evict *e, uint64_t key)
{
	struct s3 *s = e->self;
	uint32_t i;

	if (evict_promise_find(&s->promises, key) != EVICT_GHOST_NONE)
		return true;
	i = evict_ghost_find(e->ghosts, key);
	if (i == EVICT_GHOST_NONE)
		return false;
	evict_promise(e, &s->promises, i);
	return true;
}

static bool s3_admit(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t key)
{
	const struct s3 *s = e->self;

	return take_ghost(e, key) || evict_weight(e, item->bytes) < s->small_share ||
	       s->small_share == 1;
}

static void s3_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	struct s3 *s = e->self;
	struct evict_node *n = &e->node[id];

	(void)item;
	n->home = take_ghost(e, n->key) ? MAIN : SMALL;
	(void)evict_promise_keep(&s->promises, n->key);
	evict_push_young(e, n->home, id);
}

static void s3_adopt(struct kvp_evict *e, uint32_t id, double rank)
{
	struct evict_node *n = &e->node[id];

	(void)rank;
	n->freq = 0;
	n->home = evict_uses(n) ? MAIN : SMALL;
	evict_push_young(e, n->home, id);
}

static void s3_access(struct kvp_evict *e, uint32_t id)
{
	if (e->node[id].freq < UINT32_MAX)
		e->node[id].freq++;
}

static uint32_t take_small(struct kvp_evict *e)
{
	const struct s3 *s = e->self;
	uint32_t id;

	while ((id = evict_pop_old(e, SMALL)) != KVP_BLOCK_NONE) {
		if (e->node[id].freq < s->threshold || !evict_spare(e))
			break;
		e->node[id].freq = 0;
		e->node[id].home = MAIN;
		evict_push_young(e, MAIN, id);
	}
	return id;
}

static uint32_t take_main(struct kvp_evict *e)
{
	uint32_t id;

	while ((id = evict_pop_old(e, MAIN)) != KVP_BLOCK_NONE) {
		uint32_t freq = e->node[id].freq;
		if (!freq || !evict_spare(e))
			break;
		e->node[id].freq = (freq < 3 ? freq : 3) - 1;
		evict_push_young(e, MAIN, id);
	}
	return id;
}

static uint32_t s3_take(struct kvp_evict *e)
{
	const struct s3 *s = e->self;
	uint64_t c = evict_capacity(e);
	uint64_t main_share = c > s->small_share ? c - s->small_share : 0;
	uint32_t id = KVP_BLOCK_NONE;

	if (evict_list_fill(e, MAIN) <= main_share)
		id = take_small(e);
	if (id == KVP_BLOCK_NONE)
		id = take_main(e);
	if (id == KVP_BLOCK_NONE)
		id = take_small(e);
	return id;
}

static void s3_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	if (how == EVICT_BACK_DUE)
		evict_push_old(e, e->node[id].home, id);
	else
		evict_push_young(e, e->node[id].home, id);
}

static void s3_gone(struct kvp_evict *e, uint32_t id, bool evicted)
{
	const struct s3 *s = e->self;
	const struct evict_node *n = &e->node[id];
	uint32_t weight = evict_weight(e, n->bytes);

	if (!evicted || n->home != SMALL || weight > s->ghost_share)
		return;
	while (evict_ghost_weight(e->ghosts, 0) + weight > s->ghost_share)
		evict_ghost_drop_oldest(e->ghosts, 0);
	evict_ghost_add(e->ghosts, 0, n->key, weight);
}

static bool s3_hot(const struct kvp_evict *e, uint32_t id)
{
	return e->node[id].home == MAIN;
}

#define S3_OPS                                                                        \
	.init = s3_init, .fini = s3_fini, .capacity = s3_capacity, .admit = s3_admit, \
	.insert = s3_insert, .access = s3_access, .take = s3_take, .back = s3_back,   \
	.detach = evict_unlink, .gone = s3_gone, .hot = s3_hot, .adopt = s3_adopt

const struct evict_ops evict_s3fifo = {
	.name = "s3-fifo",
	.about = "S3-FIFO: small queue .1, two uses to enter the main queue",
	.variant = PAPER,
	S3_OPS,
};

const struct evict_ops evict_s3fifo_30 = {
	.name = "s3-fifo-30",
	.about = "S3-FIFO: small queue .3, one use to enter the main queue",
	.variant = AIBRIX,
	S3_OPS,
};
