/* SPDX-License-Identifier: Apache-2.0 */
/* Slots for a session: granted at once or when there are some, and returned. */
#include "daemon/ledger/grant.h"

#include <assert.h>
#include <errno.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/wake.h"
#include "shm/kvp_ring.h"

/* How long a RESERVE waits for slots before it is answered with -EAGAIN. */
#define RESERVE_WAIT_NS (50 * KVPD_MS)

/* ---- grants --------------------------------------------------------------------------------- */

struct kvpd_grant *kvpd_grant_of(struct kvpd_session *s, uint32_t i, uint32_t generation)
{
	if (i >= KVP_MAX_GRANTS || s->grant[i].state == KVPD_GRANT_FREE ||
		s->grant[i].generation != generation)
		return NULL;
	return &s->grant[i];
}

void kvpd_grant_release(struct kvpd_session *s, struct kvpd_grant *g)
{
	struct kvpd_tenant *t = s->tenant;
	uint32_t block = g->place.extent->slot[g->place.slot].block;

	kvpd_slot_clear(g->place, KVPD_SLOT_GRANTED);
	if (block != KVP_BLOCK_NONE && !kvpd_block_granted(t, block))
		t->block[block].flags &= ~KVPD_BLOCK_HELD;
	g->state = KVPD_GRANT_FREE;
	g->generation++;
	g->next = s->grant_free;
	s->grant_free = (uint32_t)(g - s->grant);
	s->n_grants--;
}

static void grant_one(struct kvpd_session *s, struct kvpd_place place, uint32_t serial,
	uint32_t bytes, uint32_t more)
{
	uint32_t i = s->grant_free;
	struct kvpd_grant *g = &s->grant[i];
	struct kvp_cqe cqe = {
		.op = KVP_OP_RESERVE,
		.serial = serial,
		.grant = i,
		.grant_generation = g->generation,
		.extent = place.extent->id,
		.bytes = bytes,
		.offset = kvpd_place_offset(place),
		.block = KVP_BLOCK_NONE,
		.more = more,
	};

	s->grant_free = g->next;
	g->state = KVPD_GRANT_WRITING;
	g->place = place;
	s->n_grants++;
	kvpd_ring_complete(s, &cqe);
}

/* ---- slots of the arenas -------------------------------------------------------------------- */

struct kvpd_arena_slots kvpd_arena_slots(const struct kvpd_session *s, const struct kvpd_class *c)
{
	struct kvpd_arena_slots n = { 0, 0, 0 };

	for (struct kvpd_list *it = s->arenas.next; it != &s->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (x->cls != c || !kvpd_extent_gives(x))
			continue;
		n.all += x->slots;
		n.free += x->slots - x->used;
		n.coming += x->moving;
	}
	return n;
}

static bool take_slot(struct kvpd_session *s, const struct kvpd_class *c, struct kvpd_place *ret)
{
	for (struct kvpd_list *it = s->arenas.next; it != &s->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);
		uint32_t slot;

		if (x->cls == c && kvpd_slot_take(x, KVPD_SLOT_GRANTED, &slot)) {
			*ret = kvpd_place_at(x, slot);
			return true;
		}
	}
	return false;
}

/* Grants up to `count` slots, as many as there are; returns how many. */
static uint32_t grant_some(struct kvpd_session *s, uint32_t space, struct kvpd_class *c,
	uint32_t count, uint32_t serial, uint64_t now)
{
	const struct kvpd_tenant *t = s->tenant;
	uint32_t bytes = (uint32_t)t->view.spaces[space].block_bytes;
	uint32_t room = kvp_cq_room(s->page, s->cq_tail), limit = KVP_MAX_GRANTS - s->n_grants;
	uint64_t n = kvpd_arena_slots(s, c).free;
	struct kvpd_place place;

	if (n > count)
		n = count;
	if (n > limit)
		n = limit;
	if (n > room)
		n = room;
	for (uint64_t i = n; i > 0; i--) {
		bool taken = take_slot(s, c, &place);

		assert(taken);
		(void)taken;
		grant_one(s, place, serial, bytes, (uint32_t)(i - 1));
	}
	if (c->medium == KVPD_DRAM)
		kvpd_pace_note(&s->pace, n * c->slot_bytes, now);
	return (uint32_t)n;
}

/* ---- reserving ------------------------------------------------------------------------------ */

static void begin_waiting(
	struct kvpd_session *s, const struct kvp_sqe *sqe, uint32_t count, uint64_t now)
{
	s->reserve = (struct kvpd_reserve){
		.waiting = true,
		.serial = sqe->serial,
		.space = sqe->space,
		.medium = sqe->grant,
		.count = count,
		.until_ns = now + RESERVE_WAIT_NS,
	};
	kvpd_list_append(&s->tenant->wanting, &s->in_wanting);
	s->tenant->n_wanting++;
	kvpd_arena_count(s, 0);
}

void kvpd_reserve_end(struct kvpd_session *s)
{
	if (!s->reserve.waiting)
		return;
	s->reserve.waiting = false;
	kvpd_list_remove(&s->in_wanting);
	kvpd_list_remove(&s->in_ready);
	s->tenant->n_wanting--;
	kvpd_arena_count(s, 0);
}

void kvpd_reserve_begin(struct kvpd_session *s, const struct kvp_sqe *sqe, uint64_t now)
{
	uint32_t count = sqe->count < 1                ? 1
			 : sqe->count > KVP_MAX_GRANTS ? KVP_MAX_GRANTS
						       : sqe->count;
	struct kvpd_class *c;
	int status;

	if (sqe->space >= KVP_MAX_SPACES || !s->opens[sqe->space])
		status = -EINVAL;
	else
		status = sqe->grant ? kvpd_medium_serves(s->tenant, sqe->grant) : 0;
	if (status == 0 && s->n_grants == KVP_MAX_GRANTS)
		status = -EDQUOT;
	else if (status == 0 && s->reserve.waiting)
		status = -EAGAIN;
	c = status ? NULL : kvpd_class_of(s->tenant, sqe->space, sqe->grant);
	if (status == 0 && !c)
		status = -EAGAIN;
	if (status) {
		kvpd_ring_answer(s, sqe, status, 0);
		return;
	}
	s->wants = c;
	if (!grant_some(s, sqe->space, c, count, sqe->serial, now))
		begin_waiting(s, sqe, count, now);
	kvpd_supply_note(s);
}

/*
 * An entry is served only if two completions fit, so a client that keeps to the rules has room for
 * this answer whatever else it asked for. One that has not is waited for with its other entries: as
 * a session whose completion ring is full, which is looked at once a second.
 */
static void owe(struct kvpd_session *s)
{
	s->reserve.owed = true;
	kvpd_ring_stall(s, true);
}

void kvpd_reserve_settle(struct kvpd_session *s)
{
	struct kvp_sqe sqe = { .op = KVP_OP_RESERVE, .serial = s->reserve.serial };

	if (!s->reserve.owed || !kvp_cq_room(s->page, s->cq_tail))
		return;
	s->reserve.owed = false;
	kvpd_ring_answer(s, &sqe, -EAGAIN, 0);
}

bool kvpd_reserve_step(struct kvpd_session *s, uint64_t now)
{
	struct kvpd_reserve *r = &s->reserve;
	struct kvp_sqe sqe = { .op = KVP_OP_RESERVE, .serial = r->serial };
	struct kvpd_class *c =
		s->opens[r->space] ? kvpd_class_of(s->tenant, r->space, r->medium) : NULL;
	bool done = true;

	if (s->expelled || !kvp_cq_room(s->page, s->cq_tail)) {
		done = now >= r->until_ns;
		if (done && !s->expelled)
			owe(s);
	} else if (!c) {
		kvpd_ring_answer(s, &sqe, -EINVAL, 0);
	} else if (!grant_some(s, r->space, c, r->count, r->serial, now)) {
		done = now >= r->until_ns;
		if (done)
			kvpd_ring_answer(s, &sqe, -EAGAIN, 0);
	}
	if (!done)
		return false;
	kvpd_reserve_end(s);
	kvpd_wake_client(s);
	return true;
}
