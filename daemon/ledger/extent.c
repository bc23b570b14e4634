/* SPDX-License-Identifier: Apache-2.0 */
/* Extents with their slots, and what both are charged. */
#include "daemon/ledger/extent.h"

#include <stdlib.h>

#include "daemon/ledger/chores.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/warm.h"

/* ---- making and freeing --------------------------------------------------------------------- */

/* Of a device's places those that clients have to write into. */
static uint32_t clients_slots(const struct kvpd_tenant *t, uint32_t medium)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < t->n_extents; i++)
		if (t->extent[i] && t->extent[i]->owner && t->extent[i]->cls->medium == medium)
			sum += t->extent[i]->slots;
	return sum;
}

/*
 * The slots of an extent of so many bytes; on a device no more than there may be in all, in whole pieces of its memory. Arenas
 * take half of those at most, but for a slot each: the least piece of memory may hold more, and what is copied needs some.
 */
static uint32_t slots_in(
	const struct kvpd_tenant *t, const struct kvpd_class *c, uint32_t kind, uint64_t *bytes)
{
	uint64_t slots = *bytes / c->slot_bytes, most = UINT64_MAX;

	if (c->medium != KVPD_DRAM) {
		const struct kvpd_part *p = &t->part[c->medium - 1];

		most = p->max_slots - p->slots;
		if (kind == KVP_EXTENT_ARENA) {
			const uint32_t half = (p->max_slots + 1) / 2;
			const uint32_t taken = clients_slots(t, c->medium);
			const uint32_t left = half > taken ? half - taken : 1;

			most = most < left ? most : left;
		}
	}
	if (slots > most) {
		const uint64_t grain = t->ledger->medium[c->medium - 1].grain;

		slots = most;
		*bytes = (slots * c->slot_bytes + grain - 1) / grain * grain;
	}
	return (uint32_t)slots;
}

struct kvpd_extent *kvpd_extent_new(
	struct kvpd_tenant *t, struct kvpd_class *c, uint32_t kind, uint64_t bytes)
{
	struct kvpd_extent *x = calloc(1, sizeof(*x));
	uint32_t id = 0, slots = slots_in(t, c, kind, &bytes);

	while (id < t->n_extents && t->extent[id])
		id++;
	if (!x || !slots || id == KVP_MAX_EXTENTS)
		goto error;
	x->tenant = t;
	x->cls = c;
	x->kind = kind;
	x->id = id;
	x->bytes = bytes;
	x->slots = slots;
	x->fd = x->watch = -1;
	kvpd_list_init(&x->link);
	x->slot = calloc(x->slots, sizeof(*x->slot));
	if (!x->slot)
		goto error;
	for (uint32_t i = 0; i < x->slots; i++) {
		x->slot[i].block = KVP_BLOCK_NONE;
		x->slot[i].next = i + 1 < x->slots ? i + 1 : KVP_BLOCK_NONE;
	}
	x->generation = kvp_load_relaxed(&t->view.extents[id].generation) + 1;
	if (id == t->n_extents)
		t->n_extents++;
	t->extent[id] = x;
	c->extents++;
	if (c->medium == KVPD_DRAM) {
		t->charged += bytes;
	} else {
		t->part[c->medium - 1].charged += bytes;
		t->part[c->medium - 1].slots += slots;
	}
	if (kvpd_extent_is_dram_arena(x))
		t->arena_bytes += bytes;
	return x;
error:
	free(x);
	return NULL;
}

static void free_parts(struct kvpd_extent *x)
{
	for (uint32_t i = 0; i < KVP_MAX_DEVICES; i++)
		free(x->hosting[i]);
	free(x->segment);
	free(x->unacked);
	free(x->slot);
	free(x);
}

void kvpd_extent_free(struct kvpd_extent *x)
{
	struct kvpd_tenant *t = x->tenant;

	kvpd_list_remove(&x->link);
	t->extent[x->id] = NULL;
	x->cls->extents--;
	if (x->cls->medium == KVPD_DRAM) {
		t->charged -= x->bytes;
	} else {
		t->part[x->cls->medium - 1].charged -= x->bytes;
		t->part[x->cls->medium - 1].slots -= x->slots;
	}
	if (kvpd_extent_is_dram_arena(x))
		t->arena_bytes -= x->bytes;
	t->n_draining -= x->draining;
	t->n_unproven -= x->unproven;
	if (t->handed == x)
		t->handed = NULL;
	kvpd_due(t, KVPD_DUE_EXTENTS);
	kvpd_supply_again(t);
	kvpd_warm_again(t);
	free_parts(x);
}

/* Its owner, if it has one, may ask for another. */
static void disown(struct kvpd_extent *x)
{
	struct kvpd_session *s = x->owner;

	if (!s)
		return;
	kvpd_arena_counts(x, false);
	x->owner = NULL;
	kvpd_supplied(s, x->cls)->making = false;
}

void kvpd_extent_give_up(struct kvpd_extent *x)
{
	disown(x);
	kvpd_extent_free(x);
}

void kvpd_extent_unwanted(struct kvpd_extent *x)
{
	disown(x);
	kvpd_list_remove(&x->link);
	kvpd_list_append(&x->tenant->orphans, &x->link);
	kvpd_extent_let_go(x);
}

void kvpd_extent_free_all(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (!x)
			continue;
		kvpd_medium_ops(x)->drop_now(x);
		free_parts(x);
	}
}

/* ---- slots ---------------------------------------------------------------------------------- */

bool kvpd_extent_gives(const struct kvpd_extent *x)
{
	return x->state == KVPD_EXTENT_LIVE && !x->draining && !x->closed;
}

bool kvpd_extent_is_dram_arena(const struct kvpd_extent *x)
{
	return x->kind == KVP_EXTENT_ARENA && x->cls->medium == KVPD_DRAM;
}

bool kvpd_extent_counts(const struct kvpd_extent *x)
{
	return x->kind == KVP_EXTENT_VAULT && kvpd_extent_gives(x);
}

bool kvpd_extent_empty(const struct kvpd_extent *x)
{
	return x->used == x->lost;
}

bool kvpd_extent_worn(const struct kvpd_extent *x)
{
	return x->lost && x->lost * 4 >= x->slots;
}

static void show_used(struct kvpd_extent *x)
{
	kvp_store_relaxed(&x->tenant->view.extents[x->id].used, x->used);
}

bool kvpd_slot_take(struct kvpd_extent *x, uint32_t flags, uint32_t *ret_slot)
{
	uint32_t i = x->free_head;

	if (!kvpd_extent_gives(x) || i == KVP_BLOCK_NONE)
		return false;
	x->free_head = x->slot[i].next;
	x->slot[i].next = i;
	x->slot[i].flags = flags;
	x->used++;
	show_used(x);
	if (x->kind == KVP_EXTENT_VAULT)
		x->cls->vault_free--;
	*ret_slot = i;
	return true;
}

static void slot_settle(struct kvpd_place p)
{
	struct kvpd_extent *x = p.extent;
	struct kvpd_slot *s = &x->slot[p.slot];

	if (s->flags || s->block != KVP_BLOCK_NONE)
		return;
	s->next = x->free_head;
	x->free_head = p.slot;
	x->used--;
	show_used(x);
	if (kvpd_extent_counts(x)) {
		x->cls->vault_free++;
		x->tenant->warm |= kvpd_extent_empty(x);
	}
	if ((x->closed || x->lost) && kvpd_extent_empty(x))
		kvpd_extent_drain(x);
	if (x->draining)
		kvpd_due(x->tenant, KVPD_DUE_EXTENTS);
	kvpd_supply_came(x);
}

void kvpd_slot_clear(struct kvpd_place p, uint32_t flags)
{
	p.extent->slot[p.slot].flags &= ~flags;
	slot_settle(p);
}

void kvpd_slot_missed(struct kvpd_place p, bool late)
{
	struct kvpd_extent *x = p.extent;

	if (late) {
		x->slot[p.slot].flags |= KVPD_SLOT_LOST;
		x->lost++;
		if (kvpd_extent_worn(x) || kvpd_extent_empty(x))
			kvpd_extent_drain(x);
	}
	kvpd_slot_clear(p, KVPD_SLOT_TARGET);
	if (late && x->draining)
		kvpd_due(x->tenant, KVPD_DUE_EXTENTS);
}

void kvpd_slot_unblock(struct kvpd_place p)
{
	p.extent->slot[p.slot].block = KVP_BLOCK_NONE;
	slot_settle(p);
}

/* ---- places --------------------------------------------------------------------------------- */

struct kvpd_place kvpd_place_at(struct kvpd_extent *x, uint32_t slot)
{
	return (struct kvpd_place){ .extent = x, .slot = slot, .tier = x->cls->tier };
}

uint64_t kvpd_place_offset(struct kvpd_place p)
{
	return p.slot * p.extent->cls->slot_bytes;
}

void *kvpd_place_addr(struct kvpd_place p)
{
	return (uint8_t *)p.extent->addr + kvpd_place_offset(p);
}
