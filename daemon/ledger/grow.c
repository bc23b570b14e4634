/* SPDX-License-Identifier: Apache-2.0 */
/* Growing the vault and the arenas inside a tenant's share. */
#include "daemon/ledger/grow.h"

#include "daemon/clock.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/pool.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/publish.h"
#include "daemon/ledger/relief.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/stock.h"
#include "daemon/ledger/tenant.h"
#include "daemon/log.h"

/* How long not to try again after work for room was begun. */
#define RECLAIM_NS (5 * KVPD_MS)
/* What another class gives is waited for so long: a session that says nothing does not unmap it. */
#define AWAITED_NS (50 * KVPD_MS)
/* Likewise while processes keep too many arenas. */
#define KEPT_NS (1000 * KVPD_MS)

/* A session's first arena is small, so that its first slots are there soon. */
#define FIRST_ARENA (UINT64_C(8) << 20)
#define FIRST_SLOTS 16u

#define BURSTS_AHEAD 2u /* for so much of what a session wrote at once there are free slots, */
#define AHEAD_PART   8u /* but of the share no more than this */
#define STOCK_ARENAS \
	16u /* of one session that come out of the stock: each is looked at when it asks for slots */

#define NURSERY_PART 16u /* of the share is for arenas where blocks may be coded, */
#define NURSERY_MOST 8u  /* of a small one so much at most */

#define HELD_PART 2u

#define EXTENTS 16u /* of one share, at least, if slots are not larger */

#define ARENAS_THERE 4u /* of one session on a device, at least, if slots are not larger */
#define DRAIN_NS     (50 * KVPD_MS) /* between two extents of a device that are emptied for others */

/* ---- what there may be ---------------------------------------------------------------------- */

static uint64_t data_bytes(const struct kvpd_tenant *t)
{
	return t->limits.share > t->meta_bytes ? t->limits.share - t->meta_bytes : 0;
}

bool kvpd_slot_fits(const struct kvpd_tenant *t, uint64_t slot_bytes)
{
	return slot_bytes <= UINT32_MAX && kvpd_pool_round(t->ledger, slot_bytes) <= data_bytes(t);
}

static uint64_t round_down(const struct kvpd_ledger *l, uint64_t bytes)
{
	uint64_t up = kvpd_pool_round(l, bytes);

	return up == bytes ? bytes : up - (kvpd_pool_round(l, 1));
}

/* Exact size of a new extent: as wanted, at least a slot, at most room. 0: there is no room. */
static uint64_t extent_size(
	const struct kvpd_ledger *l, const struct kvpd_class *c, uint64_t want, uint64_t room)
{
	uint64_t bytes, slots = want / c->slot_bytes;

	/* The ledger looks at all slots of an extent when it searches for blocks to move. */
	if (slots > KVPD_EXTENT_SLOTS)
		slots = KVPD_EXTENT_SLOTS;
	bytes = kvpd_pool_round(l, (slots ? slots : 1) * c->slot_bytes);
	if (bytes > room)
		bytes = round_down(l, room);
	return bytes < c->slot_bytes ? 0 : bytes;
}

/*
 * What an extent should measure, if its slots are not larger. A share that is cut into a few large
 * ones cannot be divided among models and clients, and loses much whenever one is emptied.
 */
static uint64_t extent_wish(const struct kvpd_tenant *t)
{
	uint64_t part = t->limits.share / EXTENTS;

	return part < t->ledger->extent_bytes ? part : t->ledger->extent_bytes;
}

static uint64_t room(const struct kvpd_tenant *t, uint64_t back)
{
	uint64_t share = kvpd_share_now(t), charged = t->charged - back;

	return share > charged ? share - charged : 0;
}

static uint64_t arena_total(const struct kvpd_tenant *t, uint64_t slot_bytes)
{
	uint64_t share = kvpd_share_now(t), one = kvpd_pool_round(t->ledger, slot_bytes);
	uint64_t half = share > t->meta_bytes ? (share - t->meta_bytes) / 2 : 0;

	return half < one ? one : half;
}

void kvpd_arena_count(struct kvpd_session *s, int64_t bytes)
{
	bool growing;

	s->arena_bytes += (uint64_t)bytes;
	growing = s->arena_bytes || s->reserve.waiting;
	if (growing != s->growing)
		s->tenant->n_growing += growing ? 1 : -1u;
	s->growing = growing;
}

void kvpd_arena_counts(const struct kvpd_extent *x, bool more)
{
	uint32_t medium = x->cls->medium;
	struct kvpd_session *s = x->owner;
	uint64_t *there;

	if (medium == KVPD_DRAM) {
		kvpd_arena_count(s, more ? (int64_t)x->bytes : -(int64_t)x->bytes);
		return;
	}
	there = &s->there[medium - 1];
	s->tenant->part[medium - 1].owners += more && !*there;
	*there += more ? x->bytes : -x->bytes;
	s->tenant->part[medium - 1].owners -= !more && !*there;
}

/* Bytes in DRAM that the session has published and not let go of: they stay where they are, see grant.h. */
static uint64_t held_bytes(const struct kvpd_session *s)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; s->n_grants && i < KVP_MAX_GRANTS; i++) {
		const struct kvpd_grant *g = &s->grant[i];

		if ((g->state == KVPD_GRANT_COMMITTED || g->state == KVPD_GRANT_PARKED) &&
			g->place.extent->cls->medium == KVPD_DRAM)
			sum += g->place.extent->cls->slot_bytes;
	}
	return sum;
}

/*
 * What one of so many sessions may have of it to write into. A slot of an arena is a native one, and what is new goes
 * there: where older blocks are coded, arenas beyond what clients need to write into would be the largest part of
 * what is not.
 */
static uint64_t arena_most(const struct kvpd_tenant *t, uint64_t slot_bytes, uint32_t sessions)
{
	uint64_t nursery = data_bytes(t) / NURSERY_PART / (sessions ? sessions : 1);

	if (!t->precision.floors)
		return t->limits.arena;
	if (nursery < FIRST_ARENA)
		nursery = data_bytes(t) / NURSERY_MOST < FIRST_ARENA ? data_bytes(t) / NURSERY_MOST
								     : FIRST_ARENA;
	if (nursery < FIRST_SLOTS * slot_bytes)
		nursery = FIRST_SLOTS * slot_bytes;
	return nursery < t->limits.arena ? nursery : t->limits.arena;
}

/* Sessions with an arena or in want of one share what arenas may take in all. */
static uint64_t arena_cap(const struct kvpd_session *s, uint64_t slot_bytes)
{
	const struct kvpd_tenant *t = s->tenant;
	uint64_t one = kvpd_pool_round(t->ledger, slot_bytes);
	uint32_t sessions = t->n_growing + !s->growing;
	uint64_t cap = arena_total(t, slot_bytes) / sessions;
	uint64_t most = arena_most(t, slot_bytes, sessions);

	/* What it holds is no room to write into, counted in halves of that: else each block brought an extent. */
	if (most < t->limits.arena) {
		most += held_bytes(s) / (most / HELD_PART) * (most / HELD_PART);
		most = most < t->limits.arena ? most : t->limits.arena;
	}
	if (cap > most)
		cap = most;
	return cap < one ? one : cap;
}

/* ---- the vault ------------------------------------------------------------------------------ */

/* The vault leaves room for the first arena. `back`: of what is charged, so much will be given back. */
static uint64_t vault_room(const struct kvpd_tenant *t, const struct kvpd_class *c, uint64_t back)
{
	uint64_t keep = arena_total(t, c->slot_bytes), left = room(t, back);
	uint64_t most = arena_most(t, c->slot_bytes, 1);

	if (keep > most)
		keep = most;
	keep = keep > t->arena_bytes ? keep - t->arena_bytes : 0;
	keep += kvpd_precision_keep(t, c, kvpd_pool_round(t->ledger, extent_wish(t)));
	return left > keep ? left - keep : 0;
}

/* What a device's extent measures if there is room for all of it. */
static uint64_t segment_bytes(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	const struct kvpd_medium *m = &t->ledger->medium[c->medium - 1];
	uint64_t slots = m->segment / c->slot_bytes;

	if (slots > KVPD_EXTENT_SLOTS)
		return KVPD_EXTENT_SLOTS * c->slot_bytes / m->grain * m->grain;
	return slots ? m->segment : (c->slot_bytes + m->grain - 1) / m->grain * m->grain;
}

/*
 * Numbers of slots from one extent to the next: as many as it has, and so many more that every extent
 * begins at a multiple of the grain in the addresses at which clients map them all.
 */
static uint32_t slot_stride(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	const uint64_t grain = t->ledger->medium[c->medium - 1].grain;
	uint64_t step = grain, rest = c->slot_bytes % grain, slots = segment_bytes(t, c);

	while (rest) { /* the greatest common divisor */
		uint64_t next = step % rest;

		step = rest;
		rest = next;
	}
	step = grain / step;
	slots /= c->slot_bytes;
	return (uint32_t)((slots + step - 1) / step * step);
}

/* Of which the sizes of a device's extents are multiples. */
static uint64_t granularity(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	return t->ledger->medium[c->medium - 1].grain;
}

/* One segment, or a smaller one at the end of the share. 0: there is no room. */
static uint64_t segment_size(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	const struct kvpd_part *p = &t->part[c->medium - 1];
	const uint64_t grain = granularity(t, c);
	uint64_t bytes = segment_bytes(t, c);
	uint64_t left = p->share > p->charged ? p->share - p->charged : 0;

	if (bytes > left)
		bytes = left / grain * grain;
	return bytes < c->slot_bytes ? 0 : bytes;
}

/*
 * Extents of a class lie one after the other in the numbers of its slots, each as if it were whole: the
 * first place that none of them has.
 */
static uint32_t first_slot(const struct kvpd_tenant *t, const struct kvpd_extent *x)
{
	uint32_t stride = slot_stride(t, x->cls);
	uint64_t taken[KVP_MAX_EXTENTS / 64] = { 0 };
	uint32_t i = 0;

	for (uint32_t k = 0; k < t->n_extents; k++)
		if (t->extent[k] && t->extent[k] != x && t->extent[k]->cls == x->cls)
			taken[t->extent[k]->first_slot / stride / 64] |=
				UINT64_C(1) << t->extent[k]->first_slot / stride % 64;
	while (taken[i / 64] >> i % 64 & 1)
		i++;
	return i * stride;
}

/*
 * What a class does not need of its vault: the emptiest of several extents, if what lies there has room in the
 * others and some of their slots stay free besides, so that it does not want another one at once. No block goes for that.
 */
static struct kvpd_extent *needless(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	struct kvpd_extent *least = NULL;

	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];
		uint64_t others, keep;

		if (!x || x->cls == c || x->cls->medium != KVPD_DRAM || !kvpd_extent_counts(x) ||
			kvpd_extent_kept(x, t->ledger->now_ns))
			continue;
		others = x->cls->vault_slots - x->slots;
		keep = others / 2 < x->slots ? others / 2 : x->slots;
		if (others && x->cls->vault_free >= x->slots + keep &&
			extent_size(t->ledger, c, extent_wish(t), vault_room(t, c, x->bytes)) &&
			(!least || x->used - x->lost < least->used - least->lost))
			least = x;
	}
	return least;
}

/*
 * Blocks go in the order in which they were used, whatever their size: where others are put than were put before,
 * the slots of those that went are of no use to those that come. So what one class has beyond its need goes to the one
 * that has nothing left, an extent at a time. Where blocks may be coded, precision.h has a rule of its own.
 */
static void hand_over(struct kvpd_tenant *t, struct kvpd_class *c, uint64_t now)
{
	struct kvpd_extent *x;

	if (t->handed || t->precision.floors || now < t->handed_ns + RECLAIM_NS ||
		c->vault_free > extent_wish(t) / c->slot_bytes / 4)
		return;
	t->handed_ns = now;
	x = needless(t, c);
	if (!x)
		return;
	t->handed = x;
	t->heir = c;
	kvpd_extent_drain(x);
}

bool kvpd_vault_awaited(const struct kvpd_tenant *t, const struct kvpd_class *c, uint64_t now)
{
	return t->handed && t->heir == c && now < t->handed_ns + AWAITED_NS;
}

static void vault_grow(struct kvpd_tenant *t, struct kvpd_class *c, uint64_t now)
{
	const bool dram = c->medium == KVPD_DRAM;
	struct kvpd_extent *x;
	uint64_t bytes;

	if (c->making || now < c->refused_ns || t->abandoned || (dram && kvpd_pressed(t, now)))
		return;
	bytes = dram ? extent_size(t->ledger, c, extent_wish(t), vault_room(t, c, 0))
		     : segment_size(t, c);
	if (!bytes && dram)
		hand_over(t, c, now);
	/* What is being emptied for it is larger than what is left at the end of the share. */
	if (!bytes || (t->precision.hungry == c && bytes < extent_wish(t) / 2))
		return;
	x = kvpd_extent_new(t, c, KVP_EXTENT_VAULT, bytes);
	if (!x)
		return;
	c->making = 1;
	if (t->precision.hungry == c)
		t->precision.hungry = NULL;
	x->first_slot = dram ? 0 : first_slot(t, x);
	kvpd_list_append(&c->vaults, &x->link);
	if (kvpd_medium_ops(x)->make(x) < 0) {
		c->making = 0;
		kvpd_extent_free(x);
	}
}

bool kvpd_vault_take(struct kvpd_tenant *t, struct kvpd_class *c, const struct kvpd_extent *except,
	uint64_t now, struct kvpd_place *ret_place)
{
	if (c->vault_free <= c->vault_slots / 4)
		vault_grow(t, c, now);
	for (struct kvpd_list *it = c->vaults.next; it != &c->vaults; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);
		uint32_t slot;

		if (x == except || !kvpd_slot_take(x, KVPD_SLOT_TARGET, &slot))
			continue;
		c->last_take_ns = now;
		*ret_place = kvpd_place_at(x, slot);
		return true;
	}
	return false;
}

/* ---- room for somebody else ----------------------------------------------------------------- */

/* An arena of the session that has most beyond its part; the one in which least lies. */
static struct kvpd_extent *arena_victim(struct kvpd_tenant *t, const struct kvpd_session *except)
{
	struct kvpd_session *most = NULL;
	struct kvpd_extent *least = NULL;

	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

		if (s != except && s->arena_bytes && (!most || s->arena_bytes > most->arena_bytes))
			most = s;
	}
	if (!most)
		return NULL;
	for (struct kvpd_list *it = most->arenas.next; it != &most->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (x->cls->medium == KVPD_DRAM && kvpd_extent_gives(x) &&
			(!least || x->used < least->used))
			least = x;
	}
	return least && most->arena_bytes > arena_cap(most, least->cls->slot_bytes) ? least : NULL;
}

/* The vault extent in which least lies, also by attention; of another class than `except`. */
static struct kvpd_extent *vault_victim(struct kvpd_tenant *t, const struct kvpd_class *except)
{
	struct kvpd_extent *least = NULL;
	double lost = 0;

	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];
		double would;

		if (!x || x->cls->medium != KVPD_DRAM || x->cls == except ||
			!kvpd_extent_counts(x) || kvpd_extent_kept(x, t->ledger->now_ns))
			continue;
		would = kvpd_precision_worth(t, x);
		if (!least || would < lost) {
			least = x;
			lost = would;
		}
	}
	return least;
}

static bool reclaiming(const struct kvpd_tenant *t);

bool kvpd_vault_trade(struct kvpd_tenant *t, struct kvpd_class *c, const struct kvpd_class *from)
{
	struct kvpd_extent *least = NULL;
	double lost = 0;

	/* A piece of an extent at the end of the share would put off what has to be begun now. */
	if (reclaiming(t) || vault_room(t, c, 0) >= extent_wish(t) / 2)
		return false;
	/* Slots that a session does not write into any more go before blocks have to be coded for it. */
	least = arena_victim(t, NULL);
	if (least && least->used <= least->cls->vault_free) {
		kvpd_extent_drain(least);
		return true;
	}
	least = NULL;
	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];
		double would;

		if (!x || x->cls->medium != KVPD_DRAM || x->cls->slot_bytes <= c->slot_bytes ||
			!kvpd_extent_counts(x) || x->cls->vault_slots <= x->slots)
			continue;
		/* A piece from the end of the share makes no room for an extent, see vault_grow(). */
		if (x->bytes < extent_wish(t) / 2)
			continue;
		would = kvpd_precision_worth(t, x);
		if (!least || (x->cls == from && least->cls != from) ||
			((x->cls == from) == (least->cls == from) && would < lost)) {
			least = x;
			lost = would;
		}
	}
	/* What lies there goes into slots that c still has, besides those of jobs under way. */
	if (!least || (c->vault_free > c->vault_slots / 4 &&
			      c->vault_free > least->used + KVPD_MOVE_JOBS * KVPD_MOVE_BLOCKS))
		return false;
	kvpd_extent_drain(least);
	return true;
}

static bool reclaiming(const struct kvpd_tenant *t)
{
	for (uint32_t i = 0; t->n_draining && i < t->n_extents; i++) {
		const struct kvpd_extent *x = t->extent[i];

		if (x && x->draining && !x->unproven && x->cls->medium == KVPD_DRAM &&
			!kvpd_extent_stuck(x, t->ledger->now_ns))
			return true;
	}
	return false;
}

void kvpd_reclaim(
	struct kvpd_tenant *t, const struct kvpd_session *spared, const struct kvpd_class *c)
{
	struct kvpd_extent *x;

	if (reclaiming(t))
		return;
	x = arena_victim(t, spared);
	if (!x)
		x = vault_victim(t, c);
	if (!x)
		x = vault_victim(t, NULL);
	if (x)
		kvpd_extent_drain(x);
}

/* Its class needs it no more: half of the others' slots are free, and the vault has room for what lies there. */
static bool is_spare(const struct kvpd_session *s, const struct kvpd_extent *x)
{
	struct kvpd_arena_slots n = kvpd_arena_slots(s, x->cls);
	uint64_t others = n.all - x->slots;

	return others && n.free >= x->slots + others / 2 && x->used <= x->cls->vault_free;
}

/*
 * A session that turned to blocks of another size gives up an arena of the former, and one that has some of both
 * what it has beyond its need.
 */
static void trade_class(struct kvpd_session *s, const struct kvpd_class *c)
{
	struct kvpd_extent *least = NULL;
	bool has = false;

	for (struct kvpd_list *it = s->arenas.next; it != &s->arenas; it = it->next) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (x->cls->medium != KVPD_DRAM)
			continue;
		if (x->draining)
			return; /* is at it */
		has = has || x->cls == c;
		if (x->cls != c && kvpd_extent_gives(x) && (!least || x->used < least->used))
			least = x;
	}
	if (least && (!has || is_spare(s, least)))
		kvpd_extent_drain(least);
}

/* ---- arenas --------------------------------------------------------------------------------- */

/*
 * What the next arena of the session should measure, if there were room for anything: a quarter of what it has, so
 * that one that has just begun to write does not wait for memory that it may never need, and one that writes without a
 * pause has some of it soon.
 */
static uint64_t arena_wish(const struct kvpd_session *s, const struct kvpd_class *c, uint64_t cap)
{
	uint64_t most = extent_wish(s->tenant), want = s->arena_bytes / 4;

	if (want < FIRST_ARENA)
		want = FIRST_ARENA;
	if (want < FIRST_SLOTS * c->slot_bytes)
		want = FIRST_SLOTS * c->slot_bytes;
	if (want > most)
		want = most;
	return want > cap / 2 ? cap / 2 : want;
}

/*
 * What was emptied for coded blocks is theirs, and so is what their first extent needs, or blocks would have to be
 * evicted for it; except for a session that has nothing.
 */
static uint64_t arena_room(const struct kvpd_session *s, const struct kvpd_class *c)
{
	const struct kvpd_tenant *t = s->tenant;
	uint64_t left = room(t, 0), keep;

	if (!s->arena_bytes)
		return left;
	if (t->precision.hungry)
		return 0;
	keep = kvpd_precision_keep(t, c, kvpd_pool_round(t->ledger, extent_wish(t)));
	return left > keep ? left - keep : 0;
}

/* Is there an arena in stock, large enough beside what the session has, and would little of it be lost? */
static bool is_stocked(const struct kvpd_session *s, const struct kvpd_class *c)
{
	return kvpd_stock_has(s->tenant->ledger) &&
	       s->arena_bytes < STOCK_ARENAS * KVPD_STOCK_SEGMENT &&
	       c->slot_bytes <= KVPD_STOCK_SEGMENT / FIRST_SLOTS;
}

static void arena_begin(struct kvpd_session *s, struct kvpd_class *c, uint64_t bytes)
{
	struct kvpd_extent *x = kvpd_extent_new(s->tenant, c, KVP_EXTENT_ARENA, bytes);

	if (!x)
		return;
	x->owner = s;
	x->uid = s->peer.uid;
	x->first_slot = c->medium == KVPD_DRAM ? 0 : first_slot(s->tenant, x);
	kvpd_supplied(s, c)->making = true;
	kvpd_arena_counts(x, true);
	kvpd_list_append(&s->arenas, &x->link);
	if (c->medium == KVPD_DRAM && kvpd_stock_take(x))
		kvpd_extent_made(x, 0);
	else if (kvpd_medium_ops(x)->make(x) < 0)
		kvpd_extent_give_up(x);
}

/* ---- arenas on devices ----------------------------------------------------------------------- */

/* The one that is emptied for others: a closed one, else the emptiest that may go. NULL: one goes already. */
static struct kvpd_extent *victim_there(
	const struct kvpd_tenant *t, const struct kvpd_session *spared, uint32_t medium)
{
	struct kvpd_extent *least = NULL;

	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (!x || x->cls->medium != medium)
			continue;
		if (x->draining && !x->unproven)
			return NULL;
		if (x->state != KVPD_EXTENT_LIVE || x->draining || (spared && x->owner == spared))
			continue;
		if (!least || x->closed > least->closed ||
			(x->closed == least->closed &&
				x->used - x->lost < least->used - least->lost))
			least = x;
	}
	return least;
}

void kvpd_reclaim_there(
	struct kvpd_tenant *t, const struct kvpd_session *spared, uint32_t medium, uint64_t now)
{
	struct kvpd_part *p = &t->part[medium - 1];
	struct kvpd_extent *x;

	if (now - p->drained_ns < DRAIN_NS)
		return;
	p->drained_ns = now;
	x = victim_there(t, spared, medium);
	if (x)
		kvpd_extent_drain(x);
}

/* What slots of this size take of a share at most: there is state for so many, which may be fewer than fit into it. */
static uint64_t share_there(const struct kvpd_part *p, const struct kvpd_class *c)
{
	uint64_t bytes = p->max_slots * c->slot_bytes;

	return bytes < p->share ? bytes : p->share;
}

/*
 * Half of the share is for arenas, divided among those who have some; at least a slot each. The rest is for
 * what is copied there.
 */
static void grow_there(struct kvpd_session *s, struct kvpd_class *c, uint64_t now)
{
	struct kvpd_tenant *t = s->tenant;
	const struct kvpd_part *p = &t->part[c->medium - 1];
	uint64_t own = s->there[c->medium - 1], half = share_there(p, c) / 2;
	uint64_t cap = half / (p->owners + !own), want = segment_bytes(t, c);
	uint64_t page = granularity(t, c), left = p->share > p->charged ? p->share - p->charged : 0;

	kvpd_supplied(s, c)->refused_ns = now + RECLAIM_NS;
	if (want > cap / ARENAS_THERE)
		want = cap / ARENAS_THERE;
	if (own && own + want > cap)
		return; /* room is made in those that it has */
	want = want / page * page;
	if (want < c->slot_bytes)
		want = (c->slot_bytes + page - 1) / page * page;
	if (want <= left && p->slots < p->max_slots)
		arena_begin(s, c, want);
	else
		kvpd_reclaim_there(t, s, c->medium, now);
}

static void grow_here(struct kvpd_session *s, struct kvpd_class *c, uint64_t now, bool ahead)
{
	struct kvpd_tenant *t = s->tenant;
	struct kvpd_supplied *p = kvpd_supplied(s, c);
	uint64_t cap, want, total, own, all, bytes;

	cap = arena_cap(s, c->slot_bytes);
	want = arena_wish(s, c, cap);
	total = arena_total(t, c->slot_bytes);
	own = cap > s->arena_bytes ? cap - s->arena_bytes : 0;
	all = total > t->arena_bytes ? total - t->arena_bytes : 0;
	if (!s->arena_bytes && all < kvpd_pool_round(t->ledger, c->slot_bytes))
		all = kvpd_pool_round(t->ledger, c->slot_bytes); /* a slot for everybody */
	if (!ahead && !extent_size(t->ledger, c, want, own)) {
		p->refused_ns = now + RECLAIM_NS;
		trade_class(s, c);
		return;
	}
	if (is_stocked(s, c) && KVPD_STOCK_SEGMENT <= (own < all ? own : all) &&
		KVPD_STOCK_SEGMENT <= arena_room(s, c)) {
		arena_begin(s, c, KVPD_STOCK_SEGMENT);
		return;
	}
	bytes = extent_size(t->ledger, c, want, own < all ? own : all);
	if (ahead && (!bytes || bytes > arena_room(s, c))) {
		p->ahead_ns = now + RECLAIM_NS;
		return;
	}
	if (bytes > arena_room(s, c)) {
		uint64_t less = extent_size(t->ledger, c, want, arena_room(s, c));

		/* A session that has an arena already can wait for a whole one. */
		bytes = less >= bytes / 2 || !s->arena_bytes ? less : 0;
	}
	if (bytes) {
		arena_begin(s, c, bytes);
		return;
	}
	p->refused_ns = now + RECLAIM_NS;
	/* It looks at all sessions and extents, for whichever session asks. */
	if (now < t->reclaim_ns)
		return;
	t->reclaim_ns = now + RECLAIM_NS;
	kvpd_reclaim(t, s, c);
}

uint64_t kvpd_arena_ahead(const struct kvpd_session *s, const struct kvpd_class *c)
{
	uint64_t want = BURSTS_AHEAD * s->pace.burst, part = s->tenant->limits.share / AHEAD_PART;
	uint64_t cap = arena_cap(s, c->slot_bytes);

	if (want > part)
		want = part;
	return want > cap / 2 ? cap / 2 : want;
}

void kvpd_arena_grow(struct kvpd_session *s, struct kvpd_class *c, uint64_t now, bool ahead)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(60, 3);
	struct kvpd_tenant *t = s->tenant;
	struct kvpd_supplied *p = kvpd_supplied(s, c);
	bool kept;

	if (p->making || s->expelled || now < p->refused_ns || t->abandoned)
		return;
	if (ahead && now < p->ahead_ns)
		return;
	if (kvpd_arenas_too_many(t, s->peer.uid, &kept)) {
		if (kept)
			kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
				"tenant %s: uid %u gets no more arenas: processes of it keep those "
				"of clients that have ended; end these processes",
				t->name, (unsigned)s->peer.uid);
		p->refused_ns = now + (kept ? KEPT_NS : RECLAIM_NS);
		return;
	}
	if (c->medium != KVPD_DRAM)
		grow_there(s, c, now);
	else if (!kvpd_pressed(t, now))
		grow_here(s, c, now, ahead);
}
