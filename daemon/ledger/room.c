/* SPDX-License-Identifier: Apache-2.0 */
/* Victims on devices. */
#include "daemon/ledger/room.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/behind.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/lesson.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/switch.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tip.h"
#include "daemon/ledger/warm.h"
#include "policy/kvp_evict.h"

#define LOWEST  64u           /* blocks that the ranking would give up and that are looked at */
#define TRIES   16u           /* jobs for one slot: clients may take leases as fast as they end */
#define REST_NS (2 * KVPD_MS) /* as for movers */

/* ---- victims -------------------------------------------------------------------------------- */

struct search {
	struct kvpd_tenant *t;
	const struct kvpd_class *cls; /* only a slot of this one is of use, */
	enum { VAULT, OWN, ONLY, ANY } where;
	const struct kvpd_session *owner; /* OWN: in its arenas that give slots */
	const struct kvpd_extent *only;   /* ONLY: in this one, which drains */
	uint64_t now;
	uint32_t refused, leased;
	bool keeps;    /* what came back soon so often stays, while there is other */
	uint32_t kept; /* only because of that */
	/* Those that lie there alone, and could go if they were in DRAM as well; unless `any_way`. */
	bool any_way;
	kvp_block_id only_there[KVPD_MOVE_BLOCKS];
	uint32_t n_only;
};

static bool of_use(const struct search *q, const struct kvpd_extent *x)
{
	if (x->cls != q->cls)
		return false;
	switch (q->where) {
	case VAULT:
		return kvpd_extent_counts(x);
	case OWN:
		return x->owner == q->owner && kvpd_extent_gives(x);
	case ONLY:
		return x == q->only;
	default:
		return true;
	}
}

/* One that lies nowhere else goes altogether, and so it cannot before those below it. */
static bool has_below(const struct kvpd_tenant *t, kvp_block_id id)
{
	struct kvp_evict_info info;

	return kvp_evict_peek(t->evict, id, &info) == 0 && info.children;
}

/* What a session wrote last is what it goes on from: it does not go for its own next block. */
static bool is_written(const struct search *q, kvp_block_id id)
{
	return q->where == OWN && kvpd_tip_now(q->owner, id, q->now);
}

static bool spared(struct search *q, kvp_block_id id, bool *ret_leased)
{
	struct kvpd_place p;

	*ret_leased = false;
	if (kvpd_block_kept(q->t, id) || !kvpd_block_place(q->t, id, KVP_TIER_VRAM, &p) ||
		!of_use(q, p.extent))
		return true;
	*ret_leased = kvpd_leased(q->t, KVPD_LOOK_CHAINS, id);
	if (*ret_leased)
		return true;
	if (q->keeps && kvpd_part_spares(q->t, q->cls->medium, id)) {
		q->kept++;
		return true;
	}
	if (kvpd_block_in_dram(q->t, id))
		return false;
	if (q->any_way)
		return has_below(q->t, id) || is_written(q, id);
	if (q->n_only < KVPD_MOVE_BLOCKS)
		q->only_there[q->n_only++] = id;
	return true;
}

/* After so many it is given all, and what it then names is left alone; as in evict.c. */
static int is_protected(void *ctx, kvp_block_id id)
{
	struct search *q = ctx;
	bool leased;

	if (q->refused >= KVPD_EVICT_REFUSED || !spared(q, id, &leased))
		return 0;
	q->refused++;
	q->leased += leased;
	return 1;
}

/* A proof serves several victims; of a small device they are not all that lies there. */
static uint32_t batch(const struct kvpd_part *part)
{
	uint64_t n = part->blocks / 64 + 1;

	return n < KVPD_MOVE_BLOCKS ? (uint32_t)n : KVPD_MOVE_BLOCKS;
}

static uint32_t search(
	struct search *q, const struct kvpd_part *part, uint64_t now, kvp_block_id *victim)
{
	uint32_t good = 0, n = batch(part);
	bool leased;

	kvpd_lesson_on(part->lesson, part->evict);
	n = (uint32_t)kvp_evict_victims(part->evict, n, 0, is_protected, q, now, victim, n);
	while (good < n && !spared(q, victim[good], &leased))
		good++;
	return good;
}

/* A worker that died is back soon: nothing is given up for want of it. */
static bool is_restarting(const struct search *q)
{
	const struct kvpd_device *d = q->t->ledger->medium[q->cls->medium - 1].device;
	uint32_t state = d ? kvpd_device_state(d) : KVPD_DEVICE_DOWN;

	return state == KVPD_DEVICE_STARTING || state == KVPD_DEVICE_RESTART;
}

/*
 * What is in DRAM too comes first, and of that what is not kept for having come back so often. Where nothing else is left, blocks that lie there alone are copied to DRAM
 * (*ret_wait: they come with the next search), or if that cannot be they go altogether.
 */
static uint32_t search_all(struct search *q, const struct kvpd_part *part, uint64_t now,
	kvp_block_id *victim, bool *ret_wait)
{
	uint32_t n = search(q, part, now, victim);

	if (!n && q->kept) {
		q->keeps = false;
		q->refused = q->leased = q->n_only = 0;
		n = search(q, part, now, victim);
	}
	*ret_wait = !n && q->n_only && kvpd_behind_hurry(q->t, q->only_there, q->n_only, now);
	if (n || !q->n_only || *ret_wait || is_restarting(q))
		return n;
	q->any_way = true;
	q->refused = q->leased = 0;
	return search(q, part, now, victim);
}

static struct kvpd_move_job *job_new(struct kvpd_tenant *t)
{
	struct kvpd_move_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	kvpd_list_init(&j->link);
	j->tenant = t;
	j->drop = true;
	return j;
}

static void job_add(struct kvpd_move_job *j, uint32_t block)
{
	struct kvpd_move *m = &j->move[j->n++];

	m->block = block;
	(void)kvpd_block_place(j->tenant, block, KVP_TIER_VRAM, &m->from);
	j->tenant->block[block].flags |= KVPD_BLOCK_MOVING;
}

static void job_begin(struct kvpd_move_job *j, struct kvpd_part *part, bool for_room)
{
	j->for_room = for_room;
	part->dropping = true;
	j->tenant->n_move_jobs++;
	kvpd_switch_add(j->tenant, j);
}

void kvpd_room_damaged(struct kvpd_tenant *t, uint32_t block)
{
	struct kvpd_place p;
	struct kvpd_move_job *j = NULL;

	if (kvpd_block_place(t, block, KVP_TIER_VRAM, &p) && !kvpd_block_kept(t, block))
		j = job_new(t);
	if (!j)
		return;
	job_add(j, block);
	job_begin(j, &t->part[p.extent->cls->medium - 1], false);
}

void kvpd_room_dropped(struct kvpd_tenant *t, const struct kvpd_move_job *j)
{
	t->part[j->move[0].from.extent->cls->medium - 1].dropping = false;
	kvpd_warm_again(t);
	kvpd_supply_again(t);
}

/* ---- for a block of one class --------------------------------------------------------------- */

static int begin(struct kvpd_tenant *t, struct kvpd_part *part, const kvp_block_id *victim,
	uint32_t n, struct kvpd_room *room)
{
	struct kvpd_move_job *j = room->tries++ < TRIES ? job_new(t) : NULL;

	if (!j)
		return -ENOSPC;
	for (uint32_t i = 0; i < n; i++)
		job_add(j, victim[i]);
	/* Where an administrator empties the device nothing goes for others. */
	job_begin(j, part, !t->ledger->medium[part - t->part].draining);
	return 0;
}

static int evict(struct search *q, struct kvpd_part *part, uint64_t now, struct kvpd_room *room)
{
	kvp_block_id victim[KVPD_MOVE_BLOCKS];
	struct kvpd_tenant *t = q->t;
	bool wait;
	uint32_t n;

	(void)kvpd_lease_look(t, KVPD_LOOK_CHAINS, false);
	n = search_all(q, part, now, victim, &wait);
	if (n)
		return begin(t, part, victim, n, room);
	if (wait)
		return 0;
	room->again = true;
	if ((q->refused >= KVPD_EVICT_REFUSED || kvp_evict_cut_short(part->evict)) &&
		room->vain++ <= part->blocks / KVPD_EVICT_REFUSED)
		return 0;
	/* It spared what is leased no more, perhaps. */
	if (!room->looked) {
		if (!room->look)
			room->look = kvpd_lease_look_from_now(t, KVPD_LOOK_CHAINS);
		room->looked = kvpd_lease_look_reached(t, KVPD_LOOK_CHAINS, room->look);
		room->vain = 0;
		return 0;
	}
	room->again = false;
	return -ENOSPC;
}

/*
 * A slot of the class, which is the search's from then on, that is free there. 1: here it is; 0: there is one soon;
 * -EAGAIN: it has to be made; -ENOSPC: there is no such class.
 */
static int take_free(struct search *q, uint32_t medium, uint64_t block_bytes,
	struct kvpd_room *room, struct kvpd_place *ret_place)
{
	struct kvpd_class *c = kvpd_class_get(q->t, medium, kvpd_device_slot(block_bytes));

	q->cls = c;
	room->again = false;
	if (!c)
		return -ENOSPC;
	if (kvpd_vault_take(q->t, c, NULL, q->now, ret_place)) {
		*room = (struct kvpd_room){ 0 };
		return 1;
	}
	return c->making || q->t->part[medium - 1].dropping ? 0 : -EAGAIN;
}

int kvpd_room_take(struct kvpd_tenant *t, uint32_t medium, uint64_t block_bytes, uint64_t now,
	struct kvpd_room *room, struct kvpd_place *ret_place)
{
	struct kvpd_part *part = &t->part[medium - 1];
	struct search q = { .t = t, .keeps = true, .now = now };
	int r = take_free(&q, medium, block_bytes, room, ret_place);

	if (r != -EAGAIN)
		return r;
	if (q.cls->vault_slots)
		return evict(&q, part, now, room);
	/* The class has nothing there and others have all. */
	if (q.cls->slot_bytes <= part->share)
		kvpd_reclaim_there(t, NULL, medium, now);
	return -ENOSPC;
}

/*
 * The first of those that the ranking would give up. The policy is not asked: what it names and what then stays
 * counts as used, and this would be many times in vain. Nor is anything spared less for it later (again.h).
 */
static kvp_block_id lower(struct search *q, const struct kvpd_part *part, uint32_t block)
{
	kvp_block_id first[LOWEST];
	uint32_t n = kvpd_advice_lowest(q->t->advice, q->now, LOWEST, first);
	struct kvp_evict_info info;
	bool leased;

	for (uint32_t i = 0; i < n && kvpd_advice_below(q->t->advice, first[i], block); i++)
		if (kvp_evict_peek(part->evict, first[i], &info) == 0 && !info.children &&
			!kvpd_part_keeps(q->t, q->cls->medium, first[i]) &&
			!spared(q, first[i], &leased))
			return first[i];
	return KVP_BLOCK_NONE;
}

int kvpd_room_below(struct kvpd_tenant *t, uint32_t medium, uint64_t block_bytes, uint32_t block,
	uint64_t now, struct kvpd_room *room, struct kvpd_place *ret_place)
{
	struct kvpd_part *part = &t->part[medium - 1];
	struct search q = { .t = t, .now = now };
	kvp_block_id victim;
	int r = take_free(&q, medium, block_bytes, room, ret_place);

	if (r != -EAGAIN)
		return r;
	(void)kvpd_lease_look(t, KVPD_LOOK_CHAINS, false);
	victim = lower(&q, part, block);
	return victim == KVP_BLOCK_NONE ? -ENOSPC : begin(t, part, &victim, 1, room);
}

int kvpd_room_own(
	struct kvpd_session *s, struct kvpd_class *c, uint64_t now, struct kvpd_room *room)
{
	struct search q = {
		.t = s->tenant, .cls = c, .where = OWN, .owner = s, .keeps = true, .now = now
	};
	struct kvpd_part *part = &s->tenant->part[c->medium - 1];

	room->again = false;
	return part->dropping ? 0 : evict(&q, part, now, room);
}

/* ---- for an extent that drains -------------------------------------------------------------- */

uint32_t kvpd_room_empty(struct kvpd_extent *x, uint64_t now)
{
	struct kvpd_tenant *t = x->tenant;
	struct kvpd_part *part = &t->part[x->cls->medium - 1];
	struct search q = { .t = t, .cls = x->cls, .where = ONLY, .only = x };
	kvp_block_id victim[KVPD_MOVE_BLOCKS];
	struct kvpd_room room = { 0 };
	uint32_t n;
	bool wait;

	if (part->dropping || now < x->rest_ns)
		return 0;
	(void)kvpd_lease_look(t, KVPD_LOOK_CHAINS, false);
	n = search_all(&q, part, now, victim, &wait);
	if (!n && !wait && !q.leased) {
		/*
		 * What lies there has children elsewhere on the device, which go before it. Where a
		 * lease is why nothing goes, others would go for nothing.
		 */
		q = (struct search){ .t = t, .cls = x->cls, .where = ANY };
		n = search_all(&q, part, now, victim, &wait);
	}
	if (n && begin(t, part, victim, n, &room) == 0)
		return n;
	x->rest_ns = now + REST_NS;
	return 0;
}
