/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Radix heap of block ids: no key pushed is less than the last one popped, so lists will do. The
 * list of a block is chosen by the highest digit in which its key differs from `base`, and by the
 * value of that digit; in a list of level 0 all keys are equal. When level 0 is used up, the lowest
 * list of the lowest level that has one gives the new base and is spread over the levels below:
 * LEVELS - 1 times at most for a block, however many there are. Lists keep their order, so equal
 * keys leave in the order in which they came.
 *
 * Neighbours in a list lie anywhere in memory, and only a block tells where the next one is: a
 * cache miss each, one after the other. So every block names besides the one that came AHEAD places
 * after it. That may have left since; it is good enough to ask for memory in time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/evict_impl.h"

#define DIGIT  6u /* bits: a level has as many lists as a word has bits */
#define WIDTH  (1u << DIGIT)
#define LEVELS ((64 + DIGIT - 1) / DIGIT)
#define AHEAD  8u

struct list {
	uint32_t young, old;
	uint64_t least;         /* no key in it is less */
	uint32_t recent[AHEAD]; /* that came, the latest last */
};

struct evict_heap {
	uint64_t base; /* no key in the heap is less */
	uint32_t len;
	uint64_t filled[LEVELS]; /* one bit for each list; an empty list holds nothing valid */
	struct list list[LEVELS][WIDTH];
};

int evict_heap_init(struct kvp_evict *e)
{
	e->heap = calloc(1, sizeof(*e->heap));
	return e->heap ? 0 : -ENOMEM;
}

void evict_heap_clear(struct kvp_evict *e)
{
	e->heap->base = 0;
	e->heap->len = 0;
	memset(e->heap->filled, 0, sizeof(e->heap->filled));
}

uint64_t evict_heap_memory(const struct kvp_evict *e)
{
	(void)e;
	return sizeof(*e->heap);
}

static unsigned level_of(const struct evict_heap *h, uint64_t key)
{
	return (63 - (unsigned)__builtin_clzll((key ^ h->base) | 1)) / DIGIT;
}

static unsigned digit_of(uint64_t key, unsigned level)
{
	return key >> level * DIGIT & (WIDTH - 1);
}

/* Its key is set. */
static void link_young(struct kvp_evict *e, uint32_t id)
{
	struct evict_heap *h = e->heap;
	struct evict_node *n = &e->node[id];
	uint64_t key = *evict_heap_key(e, id);
	unsigned level = level_of(h, key), digit = digit_of(key, level);
	struct list *l = &h->list[level][digit];
	uint64_t bit = UINT64_C(1) << digit;

	n->prev = KVP_BLOCK_NONE;
	if (h->filled[level] & bit) {
		n->next = l->young;
		e->node[l->young].prev = id;
		if (key < l->least)
			l->least = key;
	} else {
		h->filled[level] |= bit;
		n->next = KVP_BLOCK_NONE;
		l->old = id;
		l->least = key;
		for (unsigned i = 0; i < AHEAD; i++)
			l->recent[i] = id;
	}
	l->young = id;
	n->ahead = id;
	e->node[l->recent[0]].ahead = id;
	memmove(l->recent, l->recent + 1, sizeof(l->recent) - sizeof(l->recent[0]));
	l->recent[AHEAD - 1] = id;
}

static void fetch(const struct kvp_evict *e, uint32_t id)
{
	__builtin_prefetch(&e->node[id], 1);
	__builtin_prefetch(&e->node[id].freq, 1); /* it may lie on two lines */
}

void evict_heap_push(struct kvp_evict *e, uint32_t id, uint64_t key)
{
	struct evict_node *n = &e->node[id];

	assert(key >= e->heap->base);
	*evict_heap_key(e, id) = key;
	n->where = EVICT_HEAP;
	link_young(e, id);
	e->heap->len++;
}

void evict_heap_remove(struct kvp_evict *e, uint32_t id)
{
	struct evict_heap *h = e->heap;
	struct evict_node *n = &e->node[id];
	uint64_t key = *evict_heap_key(e, id);
	unsigned level = level_of(h, key), digit = digit_of(key, level);
	struct list *l = &h->list[level][digit];

	if (n->prev != KVP_BLOCK_NONE)
		e->node[n->prev].next = n->next;
	else
		l->young = n->next;
	if (n->next != KVP_BLOCK_NONE)
		e->node[n->next].prev = n->prev;
	else
		l->old = n->prev;
	if (l->young == KVP_BLOCK_NONE)
		h->filled[level] &= ~(UINT64_C(1) << digit);
	h->len--;
	n->where = EVICT_OUT;
}

/* Level 0 is empty, the heap is not. */
static void spread(struct kvp_evict *e)
{
	struct evict_heap *h = e->heap;
	unsigned level = 1;

	while (!h->filled[level])
		level++;
	const struct list l = h->list[level][__builtin_ctzll(h->filled[level])];

	h->filled[level] &= h->filled[level] - 1;
	h->base = l.least;
	for (uint32_t id = l.old, young; id != KVP_BLOCK_NONE; id = young) {
		young = e->node[id].prev;
		fetch(e, e->node[id].ahead);
		link_young(e, id);
	}
}

uint32_t evict_heap_pop(struct kvp_evict *e, uint64_t *ret_key)
{
	struct evict_heap *h = e->heap;

	if (!h->len)
		return KVP_BLOCK_NONE;
	/* `least` may be of a block that has gone, so that nothing arrives on level 0 */
	while (!h->filled[0])
		spread(e);
	uint32_t id = h->list[0][__builtin_ctzll(h->filled[0])].old;

	/* this one has been fetched when it was twice as far away */
	const struct evict_node *soon = &e->node[e->node[id].ahead];

	fetch(e, soon->ahead);
	if (soon->parent != KVP_BLOCK_NONE)
		fetch(e, soon->parent);
	*ret_key = *evict_heap_key(e, id);
	evict_heap_remove(e, id);
	return id;
}

/* Counts the blocks of one list, or -EIO. */
static int64_t check_list(const struct kvp_evict *e, unsigned level, unsigned digit)
{
	const struct evict_heap *h = e->heap;
	const struct list *l = &h->list[level][digit];
	uint32_t old = KVP_BLOCK_NONE, n = 0;

	for (uint32_t id = l->old; id != KVP_BLOCK_NONE; id = e->node[id].prev) {
		if (id >= e->params.max_ids || e->node[id].where != EVICT_HEAP || ++n > h->len)
			return -EIO;
		uint64_t key = *evict_heap_key(e, id);
		if (e->node[id].next != old || key < h->base || key < l->least ||
			level_of(h, key) != level || digit_of(key, level) != digit)
			return -EIO;
		old = id;
	}
	return n && l->young == old ? (int64_t)n : -EIO;
}

int evict_heap_check(const struct kvp_evict *e, uint64_t in_queues)
{
	uint64_t n = 0;

	for (unsigned level = 0; level < LEVELS; level++)
		for (unsigned digit = 0; digit < WIDTH; digit++) {
			if (!(e->heap->filled[level] >> digit & 1))
				continue;
			int64_t r = check_list(e, level, digit);
			if (r < 0)
				return -EIO;
			n += (uint64_t)r;
		}
	return n == in_queues && n == e->heap->len ? 0 : -EIO;
}
