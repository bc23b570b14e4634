/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes, tenants' turns and deadlines of copies. A tenant's copies of a class are a skew heap, whose
 * links lie in the copies: nothing is allocated, and a copy can be taken out of the middle.
 */
#include "daemon/device/queue.h"

#include <stdbool.h>
#include <string.h>

/* Of a copy that is larger than a batch at least one piece goes into it: see cut(). */
_Static_assert(KVPD_DRIVER_LEAST >= 2 * KVPD_QUEUE_PIECE, "a batch may be too small for any piece");

static bool before(const struct kvpd_device_copy *a, const struct kvpd_device_copy *b)
{
	if (a->q.deadline != b->q.deadline)
		return a->q.deadline < b->q.deadline;
	return a->q.seq < b->q.seq;
}

static struct kvpd_device_copy *merge(struct kvpd_device_copy *a, struct kvpd_device_copy *b)
{
	struct kvpd_device_copy *root = NULL, **at = &root, *up = NULL;

	while (a && b) {
		struct kvpd_device_copy *rest;

		if (before(b, a)) {
			rest = a;
			a = b;
			b = rest;
		}
		*at = a;
		a->q.up = up;
		up = a;
		rest = a->q.right;
		a->q.right = a->q.left;
		at = &a->q.left;
		a = rest;
	}
	*at = a ? a : b;
	if (*at)
		(*at)->q.up = up;
	return root;
}

void kvpd_queue_init(struct kvpd_copy_queue *q, uint64_t rate)
{
	memset(q, 0, sizeof(*q));
	q->rate = rate;
	q->batch = KVPD_QUEUE_BATCH;
	for (uint32_t w = 0; w < KVPD_WAYS; w++)
		for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++)
			TAILQ_INIT(&q->way[w].kind[k].age);
}

static struct kvpd_queue_class *class_of(
	struct kvpd_copy_queue *q, const struct kvpd_device_copy *c)
{
	return &q->way[c->way].kind[c->kind];
}

static uint64_t fewest(const struct kvpd_queue_class *k)
{
	uint64_t least = UINT64_MAX;

	for (uint32_t i = 0; i < k->n_active; i++)
		if (k->tenant[k->active[i]].served < least)
			least = k->tenant[k->active[i]].served;
	return k->n_active ? least : k->floor;
}

void kvpd_queue_add(struct kvpd_copy_queue *q, struct kvpd_device_copy *copy, uint64_t now)
{
	struct kvpd_queue_class *k = class_of(q, copy);

	copy->queued_ns = now;
	copy->copied_ns = 0;
	copy->q.seq = q->seq++;
	copy->q.cut = 0;
	copy->q.pieces = 0;
	copy->q.status = 0;
	copy->q.left = copy->q.right = copy->q.up = NULL;
	copy->q.deadline = copy->flags & KVPD_COPY_EARLY ? copy->deadline_ns : UINT64_MAX;
	if (!k->tenant[copy->tenant].heap) {
		uint64_t least = fewest(k);

		if (k->tenant[copy->tenant].served < least)
			k->tenant[copy->tenant].served = least;
		k->active[k->n_active++] = (uint16_t)copy->tenant;
	}
	k->tenant[copy->tenant].heap = merge(k->tenant[copy->tenant].heap, copy);
	TAILQ_INSERT_TAIL(&k->age, copy, q.age);
	k->n++;
}

void kvpd_queue_remove(struct kvpd_copy_queue *q, struct kvpd_device_copy *copy)
{
	struct kvpd_queue_class *k = class_of(q, copy);
	struct kvpd_device_copy *up = copy->q.up, *rest;

	if (copy->q.cut == copy->bytes)
		return;
	rest = merge(copy->q.left, copy->q.right);
	if (rest)
		rest->q.up = up;
	if (!up)
		k->tenant[copy->tenant].heap = rest;
	else if (up->q.left == copy)
		up->q.left = rest;
	else
		up->q.right = rest;
	if (!k->tenant[copy->tenant].heap)
		for (uint32_t i = 0; i < k->n_active; i++)
			if (k->active[i] == copy->tenant) {
				k->active[i] = k->active[--k->n_active];
				break;
			}
	TAILQ_REMOVE(&k->age, copy, q.age);
	k->n--;
	if (!k->n)
		k->passed = 0;
	copy->q.cut = copy->bytes;
}

/* ---- who is next ---------------------------------------------------------------------------- */

/* Of two tenants with copies; the same for each, whatever the order of `active`. */
static bool tenant_before(
	const struct kvpd_queue_class *k, uint32_t a, uint32_t b, uint64_t deadline_below)
{
	const struct kvpd_device_copy *x = k->tenant[a].heap, *y = k->tenant[b].heap;
	const bool early = x->q.deadline != UINT64_MAX && k->tenant[a].served <= deadline_below;
	const bool other = y->q.deadline != UINT64_MAX && k->tenant[b].served <= deadline_below;

	if (early != other)
		return early;
	if (early && x->q.deadline != y->q.deadline)
		return x->q.deadline < y->q.deadline;
	if (k->tenant[a].served != k->tenant[b].served)
		return k->tenant[a].served < k->tenant[b].served;
	return x->q.seq < y->q.seq;
}

static struct kvpd_device_copy *pick(struct kvpd_queue_class *k)
{
	uint32_t best = k->active[0];

	k->floor = fewest(k);
	for (uint32_t i = 1; i < k->n_active; i++)
		if (tenant_before(k, k->active[i], best, k->floor + KVPD_QUEUE_AHEAD))
			best = k->active[i];
	return k->tenant[best].heap;
}

/* How much of what is left of a copy goes into a batch that has so much room; 0: nothing now. */
static uint64_t cut(uint64_t left, uint64_t room)
{
	if (left <= room || left < 2 * KVPD_QUEUE_PIECE)
		return left <= room ? left : 0;
	if (left - room < KVPD_QUEUE_PIECE)
		room = left - KVPD_QUEUE_PIECE;
	room &= ~UINT64_C(63);
	return room < KVPD_QUEUE_PIECE ? 0 : room;
}

static bool choose_class(struct kvpd_copy_queue *q, uint32_t way, uint32_t *ret)
{
	bool any = false;

	for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++) {
		const struct kvpd_queue_class *c = &q->way[way].kind[k];

		if (!c->n)
			continue;
		if (c->passed >= KVPD_QUEUE_PASSED) {
			*ret = k;
			return true;
		}
		if (!any)
			*ret = k;
		any = true;
	}
	return any;
}

static uint32_t fill(struct kvpd_copy_queue *q, struct kvpd_queue_class *k,
	struct kvpd_queue_piece *out, uint64_t *ret_bytes)
{
	uint64_t bytes = 0;
	uint32_t n = 0;

	while (k->n && n < KVPD_DRIVER_BATCH && bytes < q->batch) {
		struct kvpd_device_copy *c = pick(k);
		uint64_t part = cut(c->bytes - c->q.cut, q->batch - bytes);

		if (!part)
			break;
		out[n++] = (struct kvpd_queue_piece){ c, c->q.cut, part };
		k->tenant[c->tenant].served += part;
		bytes += part;
		c->q.pieces++;
		if (c->q.cut + part == c->bytes)
			kvpd_queue_remove(q, c);
		else
			c->q.cut += part;
	}
	*ret_bytes = bytes;
	return n;
}

uint32_t kvpd_queue_next(struct kvpd_copy_queue *q, uint32_t way, uint64_t now,
	struct kvpd_queue_piece *out, uint32_t *ret_kind)
{
	uint64_t bytes;
	uint32_t kind = 0, n;

	if (now < q->way[way].ready_ns || !choose_class(q, way, &kind))
		return 0;
	n = fill(q, &q->way[way].kind[kind], out, &bytes);
	q->way[way].kind[kind].passed = 0;
	for (uint32_t k = kind + 1; k < KVPD_COPY_KINDS; k++)
		if (q->way[way].kind[k].n)
			q->way[way].kind[k].passed += bytes;
	/* Batches are a few MiB: the product fits. */
	if (q->rate)
		q->way[way].ready_ns = now + bytes * UINT64_C(1000000000) / q->rate;
	*ret_kind = kind;
	return n;
}

uint32_t kvpd_queue_join(
	const struct kvpd_queue_piece *pieces, uint32_t n, struct kvpd_copy *ret_copies)
{
	struct kvpd_copy *last = NULL;
	uint32_t copies = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct kvpd_queue_piece *p = &pieces[i];
		uint64_t seg_off = p->copy->seg_off + p->off, host_off = p->copy->host_off + p->off;

		if (last && last->seg == p->copy->seg && last->host == p->copy->host &&
			last->seg_off + last->bytes == seg_off &&
			last->host_off + last->bytes == host_off) {
			last->bytes += p->bytes;
			continue;
		}
		last = &ret_copies[copies++];
		*last = (struct kvpd_copy){
			.seg = p->copy->seg,
			.host = p->copy->host,
			.seg_off = seg_off,
			.host_off = host_off,
			.bytes = p->bytes,
		};
	}
	return copies;
}

uint64_t kvpd_queue_ready(const struct kvpd_copy_queue *q, uint32_t way)
{
	for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++)
		if (q->way[way].kind[k].n)
			return q->way[way].ready_ns;
	return UINT64_MAX;
}
