/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ARC (FAST'03): blocks used once (T1) and more than once (T2), each with its ghosts (B1, B2); a
 * ghost that would have hit moves the border `p` between the two. Sizes are in the unit of the
 * capacity. Ghost queue 0 is B1, 1 is B2.
 */
#include "policy/evict_impl.h"

#include <errno.h>
#include <stdlib.h>

enum { T1 = 1, T2 };

struct arc {
	double p;          /* share of T1 */
	uint64_t expected; /* key that admit() looked up */
	bool has_expected;
	bool known;  /* it was a ghost */
	bool was_b2; /* of B2 */
	struct evict_promises promises;
};

static uint64_t b(const struct kvp_evict *e, uint32_t queue)
{
	return evict_ghost_weight(e->ghosts, queue);
}

static int arc_init(struct kvp_evict *e)
{
	e->self = calloc(1, sizeof(struct arc));
	if (!e->self)
		return -ENOMEM;
	return evict_ghosts_init(e, e->params.max_ids);
}

static void arc_fini(struct kvp_evict *e)
{
	free(e->self);
}

static void trim_ghosts(struct kvp_evict *e)
{
	uint64_t c = evict_capacity(e);
	uint64_t t1 = evict_list_fill(e, T1), t2 = evict_list_fill(e, T2);

	while (b(e, 0) && t1 + b(e, 0) > c)
		evict_ghost_drop_oldest(e->ghosts, 0);
	while (b(e, 1) && t1 + t2 + b(e, 0) + b(e, 1) > 2 * c)
		evict_ghost_drop_oldest(e->ghosts, 1);
}

static void arc_capacity(struct kvp_evict *e)
{
	struct arc *a = e->self;

	if (a->p > (double)evict_capacity(e))
		a->p = (double)evict_capacity(e);
	trim_ghosts(e);
}

/* Looks a missing key up and learns from it, before room is made for it. */
static bool arc_expect(struct kvp_evict *e, uint64_t key)
{
	struct arc *a = e->self;
	uint32_t i = evict_promise_find(&a->promises, key);

	a->expected = key;
	a->has_expected = true;
	a->known = i != EVICT_GHOST_NONE;
	a->was_b2 = a->known && a->promises.queue[i] == 1;
	if (a->known)
		return true;
	i = evict_ghost_find(e->ghosts, key);
	a->known = i != EVICT_GHOST_NONE;
	if (!a->known)
		return true;

	const struct evict_ghost *g = evict_ghost_at(e->ghosts, i);
	double b1 = (double)b(e, 0), b2 = (double)b(e, 1), c = (double)evict_capacity(e);
	a->was_b2 = g->queue == 1;
	if (a->was_b2) {
		a->p -= g->weight * (b1 > b2 ? b1 / b2 : 1);
		a->p = a->p > 0 ? a->p : 0;
	} else {
		a->p += g->weight * (b2 > b1 ? b2 / b1 : 1);
		a->p = a->p < c ? a->p : c;
	}
	evict_promise(e, &a->promises, i);
	return true;
}

static bool arc_admit(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t key)
{
	(void)item;
	return arc_expect(e, key);
}

static void arc_insert(struct kvp_evict *e, uint32_t id, const struct kvp_evict_item *item)
{
	struct arc *a = e->self;
	struct evict_node *n = &e->node[id];

	(void)item;
	if (!a->has_expected || a->expected != n->key)
		arc_expect(e, n->key);
	n->home = a->known ? T2 : T1;
	evict_push_young(e, n->home, id);
	(void)evict_promise_keep(&a->promises, n->key);
	a->has_expected = false;
	a->was_b2 = false;
	trim_ghosts(e);
}

static void arc_learn(struct kvp_evict *e, const struct kvp_evict *shadow)
{
	struct arc *a = e->self;
	const struct arc *s = shadow->self;

	/* the shadow may be smaller */
	a->p = s->p * (double)evict_capacity(e) / (double)evict_capacity(shadow);
}

static void arc_adopt(struct kvp_evict *e, uint32_t id, double rank)
{
	struct evict_node *n = &e->node[id];

	(void)rank;
	n->home = evict_uses(n) ? T2 : T1;
	evict_push_young(e, n->home, id);
}

static void arc_access(struct kvp_evict *e, uint32_t id)
{
	if (evict_in_queue(&e->node[id]))
		evict_unlink(e, id);
	e->node[id].home = T2;
	evict_push_young(e, T2, id);
}

static uint32_t arc_take(struct kvp_evict *e)
{
	const struct arc *a = e->self;
	double t1 = (double)evict_list_fill(e, T1);
	bool from_t1 = t1 > a->p || (a->was_b2 && t1 >= a->p);
	uint32_t q = from_t1 ? T1 : T2;

	if (!e->list[q].items)
		q = q == T1 ? T2 : T1;
	return evict_pop_old(e, q);
}

static void arc_back(struct kvp_evict *e, uint32_t id, enum evict_back how)
{
	if (how == EVICT_BACK_DUE)
		evict_push_old(e, e->node[id].home, id);
	else
		evict_push_young(e, e->node[id].home, id);
}

static void arc_gone(struct kvp_evict *e, uint32_t id, bool evicted)
{
	const struct evict_node *n = &e->node[id];

	if (evicted)
		evict_ghost_add(e->ghosts, n->home == T2, n->key, evict_weight(e, n->bytes));
}

static bool arc_hot(const struct kvp_evict *e, uint32_t id)
{
	return e->node[id].home == T2;
}

const struct evict_ops evict_arc = {
	.name = "arc",
	.about = "ARC: recency and frequency, balanced by ghosts",
	.init = arc_init,
	.fini = arc_fini,
	.capacity = arc_capacity,
	.admit = arc_admit,
	.insert = arc_insert,
	.access = arc_access,
	.take = arc_take,
	.back = arc_back,
	.detach = evict_unlink,
	.gone = arc_gone,
	.hot = arc_hot,
	.learn = arc_learn,
	.adopt = arc_adopt,
};
