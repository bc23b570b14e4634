/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core of eviction, which all policies share: which blocks there are, how they hang together in
 * chains, and what was offered as victims. Which of them goes first is the policy's business.
 *
 * The functions of kvp_evict.h are the only ones that know the caller's ids: they pass on places
 * (evict_impl.h).
 */
#include "policy/kvp_evict.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/evict_impl.h"

#define GHOSTS_MAX KVP_EVICT_MAX_IDS
#define PATIENCE   8192u /* used blocks that one call spares at most: a cache miss or two each */

/* Every policy there is. */
static const struct evict_ops *const policies[] = {
	&evict_lru,
	&evict_fifo,
	&evict_slru,
	&evict_sieve,
	&evict_s3fifo,
	&evict_s3fifo_30,
	&evict_lfuda,
	&evict_gdsf,
	&evict_arc,
	&evict_hazard,
	&evict_contest,
};

#define N_POLICIES (sizeof(policies) / sizeof(policies[0]))

const char *kvp_evict_names(size_t i, const char **ret_about)
{
	if (i >= N_POLICIES)
		return NULL;
	if (ret_about)
		*ret_about = policies[i]->about;
	return policies[i]->name;
}

static const struct evict_ops *find_policy(const char *name)
{
	for (size_t i = 0; i < N_POLICIES; i++)
		if (!strcmp(policies[i]->name, name))
			return policies[i];
	return NULL;
}

/* ---- life ---- */

static void list_clear(struct evict_list *l)
{
	*l = (struct evict_list){ .ends = INDEX_LIST_EMPTY };
}

static bool capacity_is_valid(uint64_t items, uint64_t bytes)
{
	return (items || bytes) && items <= KVP_EVICT_MAX_CAPACITY &&
	       bytes <= KVP_EVICT_MAX_CAPACITY;
}

void evict_clear_lists(struct kvp_evict *e)
{
	for (unsigned q = 0; q < EVICT_LISTS; q++)
		list_clear(&e->list[q]);
}

int evict_new(const struct evict_ops *ops, const struct kvp_evict_params *params,
	struct kvp_evict **ret_evict)
{
	struct kvp_evict *e = calloc(1, sizeof(*e));
	int r = -ENOMEM;

	if (!e)
		return -ENOMEM;
	e->policy = e->ops = ops;
	e->params = *params;
	e->ids = params->max_ids;
	if (params->max_blocks && params->max_blocks < params->max_ids) {
		e->params.max_ids = params->max_blocks;
		e->places = evict_places_new(params->max_blocks, params->seed);
		if (!e->places)
			goto error;
	}
	e->patience = UINT32_MAX;
	evict_clear_lists(e);
	/* calloc, and not malloc with memset: pages of ids never used stay untouched */
	e->node = calloc(e->params.max_ids, sizeof(*e->node));
	if (!e->node)
		goto error;
	r = ops->init ? ops->init(e) : 0;
	if (r < 0)
		goto error;
	*ret_evict = e;
	return 0;
error:
	kvp_evict_free(e);
	return r;
}

int kvp_evict_new(
	const char *name, const struct kvp_evict_params *params, struct kvp_evict **ret_evict)
{
	if (!name || !params || !ret_evict || params->size != sizeof(*params))
		return -EINVAL;
	if (!capacity_is_valid(params->items, params->bytes) || !params->max_ids ||
		params->max_ids > KVP_EVICT_MAX_IDS || params->ghosts > GHOSTS_MAX)
		return -EINVAL;

	const struct evict_ops *ops = find_policy(name);
	return ops ? evict_new(ops, params, ret_evict) : -ENOENT;
}

struct kvp_evict *kvp_evict_free(struct kvp_evict *e)
{
	if (!e)
		return NULL;
	if (e->policy->fini)
		e->policy->fini(e);
	evict_ghosts_free(e->ghosts);
	evict_places_free(e->places);
	free(e->heap);
	free(e->node);
	free(e);
	return NULL;
}

int kvp_evict_resize(struct kvp_evict *e, uint64_t items, uint64_t bytes)
{
	if (!capacity_is_valid(items, bytes))
		return -EINVAL;
	e->params.items = items;
	e->params.bytes = bytes;
	if (e->policy->capacity)
		e->policy->capacity(e);
	return 0;
}

/* ---- lists ---- */

/* The block is in list[q] now. */
static void entered(struct kvp_evict *e, uint32_t q, uint32_t id)
{
	e->node[id].where = (uint8_t)q;
	e->list[q].items++;
	e->list[q].bytes += e->node[id].bytes;
}

void evict_push_young(struct kvp_evict *e, uint32_t q, uint32_t id)
{
	index_push_young(evict_links(e), &e->list[q].ends, id);
	entered(e, q, id);
}

void evict_push_old(struct kvp_evict *e, uint32_t q, uint32_t id)
{
	index_push_old(evict_links(e), &e->list[q].ends, id);
	entered(e, q, id);
}

void evict_insert_older(struct kvp_evict *e, uint32_t q, uint32_t id, uint32_t young)
{
	index_insert_older(evict_links(e), &e->list[q].ends, id, young);
	entered(e, q, id);
}

void evict_unlink(struct kvp_evict *e, uint32_t id)
{
	struct evict_node *n = &e->node[id];
	struct evict_list *l = &e->list[n->where];

	index_remove(evict_links(e), &l->ends, id);
	l->items--;
	l->bytes -= n->bytes;
	n->where = EVICT_OUT;
}

uint32_t evict_pop_old(struct kvp_evict *e, uint32_t q)
{
	uint32_t id = e->list[q].ends.old;
	if (id != KVP_BLOCK_NONE)
		evict_unlink(e, id);
	return id;
}

/* ---- ids and places ---- */

#define NOWHERE EVICT_PLACE_NONE
static_assert(NOWHERE == KVP_BLOCK_NONE, "no block is at no place");

/* The place of a cached block; NOWHERE: it is not cached, or there is no such id. */
static uint32_t place_of(const struct kvp_evict *e, kvp_block_id id)
{
	if (id >= e->ids)
		return NOWHERE;
	if (e->places)
		return evict_places_find(e->places, id);
	return e->node[id].where != EVICT_OUT ? id : NOWHERE;
}

/* The id of the block at a place; KVP_BLOCK_NONE at NOWHERE. */
static kvp_block_id id_at(const struct kvp_evict *e, uint32_t place)
{
	return e->places && place != NOWHERE ? evict_places_id(e->places, place) : place;
}

/* ---- chains and offers ---- */

static void tick(struct kvp_evict *e, uint64_t now)
{
	if (now > e->now)
		e->now = now;
}

/* The offered blocks are list[0], linked like any other, but with a `where` of their own. */
static void offer_push(struct kvp_evict *e, uint32_t id)
{
	evict_push_old(e, 0, id);
	e->node[id].where = EVICT_OFFERED;
}

static void offer_unlink(struct kvp_evict *e, uint32_t id)
{
	e->node[id].where = 0;
	evict_unlink(e, id);
}

void evict_release_parent(struct kvp_evict *e, uint32_t parent)
{
	struct evict_node *p = &e->node[parent];

	if (--p->children == 0 && p->where == EVICT_PARKED) {
		p->where = EVICT_OUT;
		e->policy->back(e, parent, EVICT_BACK_DUE);
	}
}

/* An offered block stays after all, and so must those of its ancestors that were offered. */
static void restore(struct kvp_evict *e, uint32_t id)
{
	while (id != KVP_BLOCK_NONE && e->node[id].where == EVICT_OFFERED) {
		uint32_t parent = e->node[id].parent;

		offer_unlink(e, id);
		if (parent != KVP_BLOCK_NONE) {
			e->node[parent].offered--;
			e->node[parent].children++;
		}
		e->policy->back(e, id, EVICT_BACK_USED);
		id = parent;
	}
}

static uint64_t fold_key(struct kvp_key key)
{
	return key.lo ^ (key.hi << 29 | key.hi >> 35);
}

int kvp_evict_admit(struct kvp_evict *e, const struct kvp_evict_item *item, uint64_t now)
{
	tick(e, now);
	return !e->policy->admit || e->policy->admit(e, item, fold_key(item->key));
}

int kvp_evict_insert(
	struct kvp_evict *e, kvp_block_id id, const struct kvp_evict_item *item, uint64_t now)
{
	uint32_t parent = place_of(e, item->parent), i = id;

	if (id >= e->ids)
		return -EINVAL;
	if (place_of(e, id) != NOWHERE)
		return -EEXIST;
	if (item->parent != KVP_BLOCK_NONE && parent == NOWHERE)
		return -EINVAL;
	if (e->places)
		i = evict_places_take(e->places, id);
	if (i == NOWHERE)
		return -ENOSPC;
	tick(e, now);

	if (parent != NOWHERE) {
		restore(e, parent);
		e->node[parent].children++;
	}
	e->node[i] = (struct evict_node){
		.key = fold_key(item->key),
		.parent = parent,
		.bytes = item->bytes ? item->bytes : 1,
		.cost = isfinite(item->cost) && item->cost > 0 ? item->cost : 1,
		.depth = item->depth < UINT16_MAX ? (uint16_t)item->depth : UINT16_MAX,
		.flags = item->flags & KVP_EVICT_PARTIAL,
	};
	e->items++;
	e->bytes += e->node[i].bytes;
	e->policy->insert(e, i, item);
	if (e->params.hooks.on_put)
		e->params.hooks.on_put(e->params.hooks.ctx, id);
	return 0;
}

static void access_one(struct kvp_evict *e, uint32_t i)
{
	restore(e, i);
	e->policy->access(e, i);
	if ((e->node[i].flags & EVICT_USES) != EVICT_USES)
		e->node[i].flags += 1u << EVICT_USES_SHIFT;
	if (e->params.hooks.on_hot_access && e->policy->hot(e, i))
		e->params.hooks.on_hot_access(e->params.hooks.ctx, id_at(e, i));
}

int kvp_evict_access(struct kvp_evict *e, kvp_block_id id, uint64_t now)
{
	uint32_t i = place_of(e, id);

	if (i == NOWHERE)
		return -ENOENT;
	tick(e, now);
	if (e->policy->chain)
		e->policy->chain(e, i, true);
	access_one(e, i);
	return 0;
}

int kvp_evict_access_chain(struct kvp_evict *e, kvp_block_id tip, uint64_t now)
{
	struct kvp_evict_walk walk;
	int r = kvp_evict_access_begin(e, tip, now, &walk);

	return r < 0 ? r : kvp_evict_access_on(e, &walk, UINT32_MAX, now);
}

int kvp_evict_access_begin(
	struct kvp_evict *e, kvp_block_id tip, uint64_t now, struct kvp_evict_walk *ret_walk)
{
	uint32_t i = place_of(e, tip);

	if (i == NOWHERE)
		return -ENOENT;
	tick(e, now);
	if (e->policy->chain)
		e->policy->chain(e, i, false);
	*ret_walk = (struct kvp_evict_walk){
		.next = tip,
		.request = e->policy->current ? e->policy->current(e) : 0,
	};
	return 0;
}

int kvp_evict_access_on(struct kvp_evict *e, struct kvp_evict_walk *w, uint32_t n, uint64_t now)
{
	uint32_t others = e->policy->current ? e->policy->current(e) : 0;
	uint32_t i = place_of(e, w->next);

	if (w->next == KVP_BLOCK_NONE)
		return 0;
	if (i == NOWHERE)
		return -ENOENT;
	tick(e, now);
	if (e->policy->resume)
		e->policy->resume(e, w->request);
	for (; n && i != NOWHERE; n--) {
		access_one(e, i);
		i = e->node[i].parent;
	}
	if (e->policy->resume)
		e->policy->resume(e, others);
	w->next = id_at(e, i);
	return w->next != KVP_BLOCK_NONE;
}

int kvp_evict_request(struct kvp_evict *e, const struct kvp_evict_request *req, uint64_t now)
{
	struct kvp_evict_request there = *req;

	there.tip = place_of(e, req->tip);
	if (req->matched > req->blocks || (req->tip != KVP_BLOCK_NONE && there.tip == NOWHERE))
		return -EINVAL;
	tick(e, now);
	if (e->policy->request)
		e->policy->request(e, &there);
	return 0;
}

int kvp_evict_set_bytes(struct kvp_evict *e, kvp_block_id id, uint32_t bytes)
{
	uint32_t i = place_of(e, id);

	if (i == NOWHERE)
		return -ENOENT;
	struct evict_node *n = &e->node[i];
	uint32_t was = n->bytes;

	n->bytes = bytes ? bytes : 1;
	e->bytes = e->bytes - was + n->bytes;
	if (n->where < EVICT_LISTS)
		e->list[n->where].bytes = e->list[n->where].bytes - was + n->bytes;
	else if (n->where == EVICT_OFFERED)
		e->list[0].bytes = e->list[0].bytes - was + n->bytes;
	if (e->policy->resized)
		e->policy->resized(e, i, was);
	return 0;
}

int kvp_evict_remove(struct kvp_evict *e, kvp_block_id id, int evicted, uint64_t now)
{
	uint32_t i = place_of(e, id);

	if (i == NOWHERE)
		return -ENOENT;
	struct evict_node *n = &e->node[i];

	if (n->children || n->offered)
		return -EBUSY;
	tick(e, now);

	bool was_offered = n->where == EVICT_OFFERED;
	if (was_offered)
		offer_unlink(e, i);
	else if (n->where != EVICT_PARKED)
		e->policy->detach(e, i);
	n->where = EVICT_OUT;
	e->items--;
	e->bytes -= n->bytes;
	if (e->policy->gone)
		e->policy->gone(e, i, evicted);
	if (n->parent != NOWHERE) {
		if (was_offered)
			e->node[n->parent].offered--;
		else
			evict_release_parent(e, n->parent);
	}
	if (e->places)
		evict_places_give(e->places, i);
	if (evicted && e->params.hooks.on_evict)
		e->params.hooks.on_evict(e->params.hooks.ctx, id);
	return 0;
}

size_t kvp_evict_victims(struct kvp_evict *e, uint64_t want_items, uint64_t want_bytes,
	kvp_evict_protected_fn is_protected, void *ctx, uint64_t now, kvp_block_id *out, size_t max)
{
	uint32_t refused = NOWHERE;
	uint64_t bytes = 0;
	uint32_t steps = 0;
	size_t n = 0;

	tick(e, now);
	e->cut = false;
	while (!index_list_empty(&e->list[0].ends))
		restore(e, e->list[0].ends.young);
	if (e->policy->settle)
		e->policy->settle(e);
	if (!want_items && !want_bytes)
		want_items = e->params.evict_by ? e->params.evict_by : 1;

	e->patience = PATIENCE;
	while (n < max && (n < want_items || bytes < want_bytes)) {
		if (e->params.steps && steps++ == e->params.steps) {
			e->cut = true;
			break;
		}
		uint32_t i = e->policy->take(e);
		if (i == NOWHERE)
			break;
		struct evict_node *b = &e->node[i];

		if (b->children) {
			b->where = EVICT_PARKED;
			continue;
		}
		if (is_protected && is_protected(ctx, id_at(e, i))) {
			/* kept aside until the end, or one call could meet it for ever */
			b->link.old = refused;
			refused = i;
			continue;
		}
		offer_push(e, i);
		if (e->ghosts) /* removing it will want that */
			evict_ghost_prefetch(e->ghosts, b->key);
		bytes += b->bytes;
		out[n++] = id_at(e, i);
		if (b->parent != NOWHERE) {
			e->node[b->parent].offered++;
			evict_release_parent(e, b->parent);
		}
	}
	e->patience = UINT32_MAX;
	while (refused != NOWHERE) {
		uint32_t next = e->node[refused].link.old;
		e->policy->back(e, refused, EVICT_BACK_USED);
		refused = next;
	}
	return n;
}

/* ---- read-only ---- */

int kvp_evict_cut_short(const struct kvp_evict *e)
{
	return e->cut;
}

void kvp_evict_excess(const struct kvp_evict *e, uint64_t *ret_items, uint64_t *ret_bytes)
{
	const struct kvp_evict_params *p = &e->params;

	*ret_items = p->items && e->items > p->items ? e->items - p->items : 0;
	*ret_bytes = p->bytes && e->bytes > p->bytes ? e->bytes - p->bytes : 0;
}

int kvp_evict_contains(const struct kvp_evict *e, kvp_block_id id)
{
	return place_of(e, id) != NOWHERE;
}

int kvp_evict_peek(const struct kvp_evict *e, kvp_block_id id, struct kvp_evict_info *ret_info)
{
	uint32_t i = place_of(e, id);

	if (i == NOWHERE)
		return -ENOENT;
	const struct evict_node *n = &e->node[i];

	*ret_info = (struct kvp_evict_info){
		.parent = id_at(e, n->parent),
		.bytes = n->bytes,
		.depth = n->depth,
		.flags = n->flags & KVP_EVICT_PARTIAL,
		.children = n->children + n->offered,
		.hot = e->policy->hot(e, i),
		.cost = (double)n->cost,
	};
	return 0;
}

int kvp_evict_hot(const struct kvp_evict *e, kvp_block_id id)
{
	uint32_t i = place_of(e, id);

	return i != NOWHERE && e->policy->hot(e, i);
}

uint64_t kvp_evict_len(const struct kvp_evict *e)
{
	return e->items;
}

uint64_t kvp_evict_bytes(const struct kvp_evict *e)
{
	return e->bytes;
}

kvp_block_id kvp_evict_next(const struct kvp_evict *e, kvp_block_id id)
{
	for (id = id == KVP_BLOCK_NONE ? 0 : id + 1; id < e->ids; id++)
		if (place_of(e, id) != NOWHERE)
			return id;
	return KVP_BLOCK_NONE;
}

const char *kvp_evict_name(const struct kvp_evict *e)
{
	return e->policy->name;
}

void kvp_evict_memory(const struct kvp_evict *e, struct kvp_evict_memory *ret_memory)
{
	*ret_memory = (struct kvp_evict_memory){
		.total = sizeof(*e) + (uint64_t)e->params.max_ids * sizeof(*e->node),
		.per_block = sizeof(*e->node),
	};
	if (e->places) {
		uint64_t places = evict_places_memory(e->places);
		ret_memory->total += places;
		ret_memory->per_block += (uint32_t)(places / e->params.max_ids);
	}
	if (e->policy->memory)
		e->policy->memory(e, ret_memory);
	if (e->ghosts) {
		uint64_t ghosts = evict_ghosts_memory(e->ghosts);
		ret_memory->total += ghosts;
		ret_memory->ghosts = evict_ghosts_max(e->ghosts);
		ret_memory->per_ghost = (uint32_t)(ghosts / ret_memory->ghosts);
	}
}

/* ---- consistency ---- */

static int check_list(const struct kvp_evict *e, uint32_t q, uint64_t *items)
{
	const struct evict_list *l = &e->list[q];
	uint8_t where = q ? (uint8_t)q : EVICT_OFFERED;
	uint32_t prev = KVP_BLOCK_NONE;
	uint64_t n = 0, bytes = 0;

	for (uint32_t id = l->ends.young; id != KVP_BLOCK_NONE; id = e->node[id].link.old) {
		if (id >= e->params.max_ids || e->node[id].where != where ||
			e->node[id].link.young != prev || ++n > e->items)
			return -EIO;
		bytes += e->node[id].bytes;
		prev = id;
	}
	if (l->ends.old != prev || l->items != n || l->bytes != bytes)
		return -EIO;
	*items += n;
	return 0;
}

/* Children as the blocks themselves tell it, against the counts of their parents. */
static int check_children(const struct kvp_evict *e, uint64_t *parked)
{
	uint32_t *kids = calloc((size_t)e->params.max_ids * 2, sizeof(*kids));
	uint64_t items = 0, bytes = 0;
	int r = -EIO;

	if (!kids)
		return -ENOMEM;
	for (uint32_t id = 0; id < e->params.max_ids; id++) {
		const struct evict_node *n = &e->node[id];
		if (n->where == EVICT_OUT)
			continue;
		items++;
		bytes += n->bytes;
		*parked += n->where == EVICT_PARKED;
		if (n->parent == KVP_BLOCK_NONE)
			continue;
		if (n->parent >= e->params.max_ids || e->node[n->parent].where == EVICT_OUT)
			goto out;
		kids[2 * (size_t)n->parent + (n->where == EVICT_OFFERED)]++;
	}
	for (uint32_t id = 0; id < e->params.max_ids; id++) {
		const struct evict_node *n = &e->node[id];
		if (n->where == EVICT_OUT)
			continue;
		if (kids[2 * (size_t)id] != n->children || kids[2 * (size_t)id + 1] != n->offered)
			goto out;
		if (n->where == EVICT_PARKED && !n->children)
			goto out; /* nothing would ever bring it back */
		if (n->where == EVICT_OFFERED && n->children)
			goto out;
	}
	if (items == e->items && bytes == e->bytes)
		r = 0;
out:
	free(kids);
	return r;
}

int kvp_evict_assert_consistency(const struct kvp_evict *e)
{
	uint64_t parked = 0, listed = 0;
	int r = check_children(e, &parked);

	for (uint32_t q = 0; r == 0 && q < EVICT_LISTS; q++)
		r = check_list(e, q, &listed);
	if (r < 0)
		return r;
	if (e->ghosts && evict_ghosts_check(e->ghosts) < 0)
		return -EIO;
	if (e->places && evict_places_check(e->places, e->items) < 0)
		return -EIO;
	if (e->policy->check)
		return e->policy->check(e, e->items - parked - listed);
	return listed + parked == e->items ? 0 : -EIO;
}

/* ---- ingestion ---- */

int kvp_ingest_wants(uint32_t mode, uint32_t event, int hot)
{
	if (event > KVP_INGEST_EVENT_EVICT)
		return -EINVAL;
	switch (mode) {
	case KVP_INGEST_ALL:
		return event == KVP_INGEST_EVENT_PUT;
	case KVP_INGEST_HOT:
		return event == KVP_INGEST_EVENT_ACCESS && hot;
	case KVP_INGEST_EVICTED:
		return event == KVP_INGEST_EVENT_EVICT;
	default:
		return -EINVAL;
	}
}
