/* SPDX-License-Identifier: Apache-2.0 */
/* Answering sessions that wait for slots, and making slots for those that have few. */
#include "daemon/ledger/supply.h"

#include "daemon/clock.h"
#include "daemon/ledger/behind.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/warm.h"

/*
 * In one portion: sessions that wait and are looked at, sessions for which slots are made. The
 * latter is what costs; jobs for movers are few in a tenant, whoever asks for them.
 */
#define ANSWERS 64u
#define MAKINGS 4u
/* So many are looked at whenever room may have come. */
#define FEW 4u

static void is_low(struct kvpd_session *s)
{
	if (kvpd_list_empty(&s->in_low))
		kvpd_list_append(&s->tenant->low, &s->in_low);
}

void kvpd_supply_want(struct kvpd_session *s)
{
	is_low(s);
	kvpd_due(s->tenant, KVPD_DUE_SUPPLY);
}

/* Half of its arenas, and what it is likely to want at once. */
static bool has_plenty(const struct kvpd_session *s, struct kvpd_arena_slots n)
{
	return n.free > n.all / 2 &&
	       (s->wants->medium != KVPD_DRAM ||
		       n.free * s->wants->slot_bytes >= kvpd_arena_ahead(s, s->wants));
}

void kvpd_supply_note(struct kvpd_session *s)
{
	if (s->wants && !has_plenty(s, kvpd_arena_slots(s, s->wants)))
		kvpd_supply_want(s);
}

/*
 * How many slots of a session's arenas should be free, once they are few. Blocks that have to be evicted
 * for it are worth more than slots that nobody asked for yet: then it is no more than the next
 * reservations take. Where the vault has room anyhow it costs a copy.
 */
static uint64_t free_goal(const struct kvpd_session *s, uint64_t slots, bool urgent)
{
	uint64_t goal = slots / (urgent ? 4 : 2);

	return urgent && s->reserve.waiting && goal < s->reserve.count ? s->reserve.count : goal;
}

/*
 * A larger arena as long as the session may have one, and then room in those it has by moving its
 * blocks to the vault. A session that waits already gets both, unless the vault would have to grow for it
 * as well: that is made by the same threads, and a copy takes time besides.
 */
static void make_here(struct kvpd_session *s, uint64_t now)
{
	bool waits = s->reserve.waiting, urgent;
	struct kvpd_class *c = s->wants;
	struct kvpd_arena_slots n = kvpd_arena_slots(s, c);
	uint64_t have = n.free + n.coming, goal;

	if (has_plenty(s, n))
		return;
	kvpd_arena_grow(s, c, now, n.free > n.all / 2);
	if (n.free > n.all / 2)
		return;
	if (kvpd_supplied(s, c)->making && (!waits || !c->vault_free))
		return;
	urgent = waits || n.free < n.all / 8;
	goal = free_goal(s, n.all, urgent);
	s->tenant->writer = s;
	for (struct kvpd_list *it = s->arenas.next; it != &s->arenas && have < goal;
		it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);
		uint64_t most = goal - have < KVPD_MOVE_BLOCKS ? goal - have : KVPD_MOVE_BLOCKS;

		if (x->cls == c && kvpd_extent_gives(x))
			have += kvpd_move_out(x, (uint32_t)most, urgent, now);
	}
	s->tenant->writer = NULL;
}

/*
 * On a device what was written stays where it is: nothing is moved, and a payload is only taken for one who
 * waits.
 */
static void make_there(struct kvpd_session *s, uint64_t now)
{
	struct kvpd_class *c = s->wants;
	struct kvpd_arena_slots n = kvpd_arena_slots(s, c);

	if (n.free > n.all / 4)
		return;
	kvpd_arena_grow(s, c, now, false);
	if (n.free || !n.all || !s->reserve.waiting || kvpd_supplied(s, c)->making)
		return;
	(void)kvpd_room_own(s, c, now, &s->reserve.room);
	if (s->reserve.room.again)
		kvpd_supply_want(s);
}

/* False: it goes on waiting. */
static bool answer(struct kvpd_session *s, uint64_t now)
{
	if (kvpd_reserve_step(s, now))
		return true;
	/* Not due by this: it would be for as long as one waits. */
	is_low(s);
	return false;
}

/* Those that have a slot now, then all in the look that is under way. False: there are more. */
static bool answer_waiting(struct kvpd_tenant *t, uint64_t now)
{
	uint32_t i = 0;

	for (; i < ANSWERS && !kvpd_list_empty(&t->ready); i++) {
		struct kvpd_session *s =
			kvpd_container(t->ready.next, struct kvpd_session, in_ready);

		kvpd_list_remove(&s->in_ready);
		(void)answer(s, now);
	}
	for (; i < ANSWERS && t->wanting_left && !kvpd_list_empty(&t->wanting); i++) {
		struct kvpd_session *s =
			kvpd_container(t->wanting.next, struct kvpd_session, in_wanting);

		t->wanting_left--;
		if (answer(s, now))
			continue;
		kvpd_list_remove(&s->in_wanting);
		kvpd_list_append(&t->wanting, &s->in_wanting);
	}
	if (kvpd_list_empty(&t->wanting))
		t->wanting_left = 0;
	return kvpd_list_empty(&t->ready) && !t->wanting_left;
}

void kvpd_supply_look(struct kvpd_tenant *t)
{
	t->room_came = false;
	t->wanting_left = t->n_wanting;
	kvpd_due(t, KVPD_DUE_SUPPLY);
}

void kvpd_supply_soon(struct kvpd_tenant *t)
{
	t->room_came = t->n_wanting != 0;
}

void kvpd_supply_again(struct kvpd_tenant *t)
{
	if (t->n_wanting > FEW)
		kvpd_supply_soon(t);
	else if (t->n_wanting)
		kvpd_supply_look(t);
}

void kvpd_supply_came(struct kvpd_extent *x)
{
	struct kvpd_session *s = x->owner;

	if (x->cls->medium != KVPD_DRAM)
		kvpd_warm_again(x->tenant);
	else if (x->kind == KVP_EXTENT_VAULT)
		kvpd_behind_again(x->tenant);
	if (x->kind == KVP_EXTENT_VAULT || !kvpd_extent_gives(x)) {
		kvpd_supply_again(x->tenant);
	} else if (s && s->reserve.waiting && kvpd_list_empty(&s->in_ready)) {
		kvpd_list_append(&x->tenant->ready, &s->in_ready);
		kvpd_due(x->tenant, KVPD_DUE_SUPPLY);
	}
}

bool kvpd_supply_step(struct kvpd_tenant *t, uint64_t now)
{
	bool more = !answer_waiting(t, now);

	for (uint32_t i = 0; i < MAKINGS && !kvpd_list_empty(&t->low); i++) {
		struct kvpd_session *s = kvpd_container(t->low.next, struct kvpd_session, in_low);

		kvpd_list_remove(&s->in_low);
		if (s->wants->medium == KVPD_DRAM)
			make_here(s, now);
		else
			make_there(s, now);
		if (kvpd_now_ns() - now >= KVPD_SLICE_NS)
			break;
	}
	return more || !kvpd_list_empty(&t->low);
}
