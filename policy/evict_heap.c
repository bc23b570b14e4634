/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Indexed 4-ary heap of block ids. Keys lie in the array, so that a level costs one cache line
 * instead of four nodes.
 */
#include <errno.h>
#include <stdlib.h>

#include "policy/evict_impl.h"

#define ARITY  4u
#define OFFSET (ARITY - 1) /* so that the children of an entry are one cache line */

int evict_heap_init(struct kvp_evict *e)
{
	size_t bytes = ((size_t)e->params.max_ids + 2 * ARITY) * sizeof(*e->heap);
	struct evict_heap_entry *memory = aligned_alloc(64, bytes & ~(size_t)63);

	if (!memory)
		return -ENOMEM;
	e->heap = memory + OFFSET;
	return 0;
}

void evict_heap_done(struct kvp_evict *e)
{
	if (e->heap)
		free(e->heap - OFFSET);
}

/* The counter wraps: a tie between changes more than 2^31 apart falls either way. */
static bool before(const struct evict_heap_entry *a, const struct evict_heap_entry *b)
{
	return a->pri < b->pri || (!(b->pri < a->pri) && (int32_t)(a->seq - b->seq) < 0);
}

static void put_at(struct kvp_evict *e, uint32_t pos, struct evict_heap_entry x)
{
	e->heap[pos] = x;
	e->node[x.id].pos = pos;
}

static void sift_up(struct kvp_evict *e, uint32_t pos, struct evict_heap_entry x)
{
	while (pos) {
		uint32_t up = (pos - 1) / ARITY;
		if (!before(&x, &e->heap[up]))
			break;
		put_at(e, pos, e->heap[up]);
		pos = up;
	}
	put_at(e, pos, x);
}

static void sift_down(struct kvp_evict *e, uint32_t pos, struct evict_heap_entry x)
{
	for (;;) {
		uint64_t first = (uint64_t)pos * ARITY + 1;
		if (first >= e->heap_len)
			break;
		uint32_t end = first + ARITY < e->heap_len ? (uint32_t)first + ARITY : e->heap_len;
		uint32_t best = (uint32_t)first;
		/* one of these lines is the next level */
		uint64_t next = first * ARITY + 1;
		for (unsigned i = 0; i < ARITY && next < e->heap_len; i++, next += ARITY)
			__builtin_prefetch(&e->heap[next]);
		for (uint32_t i = best + 1; i < end; i++)
			if (before(&e->heap[i], &e->heap[best]))
				best = i;
		if (!before(&e->heap[best], &x))
			break;
		put_at(e, pos, e->heap[best]);
		pos = best;
	}
	put_at(e, pos, x);
}

void evict_heap_push(struct kvp_evict *e, uint32_t id, double pri)
{
	struct evict_heap_entry x = { .pri = pri, .seq = ++e->seq, .id = id };

	e->node[id].where = EVICT_HEAP;
	sift_up(e, e->heap_len++, x);
}

static void settle(struct kvp_evict *e, uint32_t pos, struct evict_heap_entry x)
{
	if (pos && before(&x, &e->heap[(pos - 1) / ARITY]))
		sift_up(e, pos, x);
	else
		sift_down(e, pos, x);
}

void evict_heap_change(struct kvp_evict *e, uint32_t id, double pri)
{
	struct evict_heap_entry x = { .pri = pri, .seq = ++e->seq, .id = id };

	settle(e, e->node[id].pos, x);
}

void evict_heap_remove(struct kvp_evict *e, uint32_t id)
{
	uint32_t pos = e->node[id].pos;
	struct evict_heap_entry last = e->heap[--e->heap_len];

	e->node[id].where = EVICT_OUT;
	if (last.id != id)
		settle(e, pos, last);
}

uint32_t evict_heap_pop(struct kvp_evict *e, double *ret_pri)
{
	if (!e->heap_len)
		return KVP_BLOCK_NONE;
	uint32_t id = e->heap[0].id;

	*ret_pri = e->heap[0].pri;
	evict_heap_remove(e, id);
	return id;
}

int evict_heap_check(const struct kvp_evict *e, uint64_t in_queues)
{
	if (e->heap_len != in_queues)
		return -EIO;
	for (uint32_t i = 0; i < e->heap_len; i++) {
		const struct evict_heap_entry *x = &e->heap[i];
		if (x->id >= e->params.max_ids || e->node[x->id].where != EVICT_HEAP ||
			e->node[x->id].pos != i)
			return -EIO;
		if (i && before(x, &e->heap[(i - 1) / ARITY]))
			return -EIO;
	}
	return 0;
}
