/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from devices to DRAM. */
#include "daemon/ledger/behind.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/remat.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/warm.h"

#define PORTION 256u            /* slots looked at in one portion */
#define BEGUN   8u              /* copies begun in one */
#define REST_NS (500 * KVPD_MS) /* after a copy that failed */

struct copy {
	struct kvpd_device_copy c;
	struct kvpd_tenant *tenant;
	uint32_t block, medium;
	struct kvpd_place to;
};

void kvpd_behind_again(struct kvpd_tenant *t)
{
	if (t->n_only > t->behind.copies)
		kvpd_due(t, KVPD_DUE_BEHIND);
}

/* ---- copies --------------------------------------------------------------------------------- */

static bool full(const struct kvpd_behind *b)
{
	return b->copies >= KVPD_BEHIND_COPIES || b->bytes >= KVPD_BEHIND_BYTES;
}

static void let_go(struct kvpd_tenant *t, uint32_t block, struct kvpd_place to, bool late)
{
	t->block[block].flags &= ~KVPD_BLOCK_BEHIND;
	kvpd_slot_missed(to, late);
}

/* The payload is in DRAM: it appears, the word staying what it is. */
static void appear(struct kvpd_tenant *t, const struct copy *c)
{
	const uint64_t where =
		kvp_load_relaxed(&kvpd_block_payload(t, c->block, KVP_TIER_VRAM)->where);

	c->to.extent->slot[c->to.slot].block = c->block;
	kvpd_block_lay(
		t, c->block, c->to, kvp_where_codec(where), kvp_where_bytes(where), c->c.checksum);
	/* They are the same bytes. */
	kvp_store_release(&t->view.blocks[c->block].payload[KVP_TIER_VRAM].checksum, c->c.checksum);
	kvp_bump(&t->view.devices[c->medium - 1].from_device_bytes, c->c.bytes);
	t->part[c->medium - 1].behind++;
	t->n_only--;
}

static void copied(struct kvpd_device_work *w)
{
	struct copy *c =
		kvpd_container(kvpd_container(w, struct kvpd_device_copy, work), struct copy, c);
	struct kvpd_tenant *t = c->tenant;
	uint64_t now = kvpd_now_ns();

	kvpd_ledger_charge(t->ledger, t);
	t->changes++;
	t->n_jobs--;
	t->behind.copies--;
	t->behind.bytes -= c->c.bytes;
	/* It may have been committed in DRAM meanwhile. */
	if (w->status == 0 && !kvpd_block_in_dram(t, c->block))
		appear(t, c);
	else if (w->status < 0)
		t->behind.rest_ns = now + REST_NS;
	let_go(t, c->block, c->to, c->c.late);
	kvpd_behind_again(t);
	kvpd_remat_again(t); /* for what waits until it is there */
	/* It may go from the device now. */
	kvpd_warm_again(t);
	kvpd_supply_again(t);
	kvpd_due(t, t->n_draining ? KVPD_DUE_EXTENTS : 0);
	free(c);
}

static int begin_copy(struct kvpd_tenant *t, uint32_t block, struct kvpd_place to, uint32_t kind)
{
	const struct kvp_payload_desc *d = kvpd_block_payload(t, block, KVP_TIER_VRAM);
	struct copy *c = calloc(1, sizeof(*c));
	struct kvpd_place from;
	int r;

	if (!c)
		return -ENOMEM;
	(void)kvpd_block_place(t, block, KVP_TIER_VRAM, &from);
	c->tenant = t;
	c->block = block;
	c->medium = from.extent->cls->medium;
	c->to = to;
	c->c = (struct kvpd_device_copy){
		.work.done = copied,
		.way = KVPD_TO_HOST,
		.kind = kind,
		.flags = KVPD_COPY_SUM,
		.tenant = t->id,
		.seg = kvpd_segment_id(from.extent),
		.host = kvpd_host_id(to.extent, c->medium),
		.seg_off = kvpd_place_offset(from),
		.host_off = kvpd_place_offset(to),
		.bytes = kvp_where_bytes(kvp_load_relaxed(&d->where)),
	};
	r = kvpd_device_copy(t->ledger->medium[c->medium - 1].device, &c->c);
	if (r < 0) {
		free(c);
		return r;
	}
	t->n_jobs++;
	t->behind.copies++;
	t->behind.bytes += c->c.bytes;
	return 0;
}

/* ---- where to ------------------------------------------------------------------------------- */

static struct kvpd_class *class_of(const struct kvpd_tenant *t, uint32_t block)
{
	return t->space[kvp_shape_space(kvp_load_relaxed(&t->view.blocks[block].shape))].cls;
}

/* A vault extent is in the making or on its way, and is waited for. */
static bool is_coming(const struct kvpd_tenant *t, const struct kvpd_class *c, uint64_t now)
{
	return c->making || kvpd_vault_awaited(t, c, now);
}

static bool take_target(struct kvpd_tenant *t, uint32_t block, uint64_t now, struct kvpd_place *ret)
{
	struct kvpd_class *c = class_of(t, block);

	if (kvpd_vault_take(t, c, NULL, now, ret))
		return true;
	/* No block goes that would be copied next. */
	if (is_coming(t, c, now) || kvpd_evict_in_dram(t, kvpd_evict_batch(t), now) <= 0)
		return false;
	return kvpd_vault_take(t, c, NULL, now, ret);
}

static bool is_up(const struct kvpd_tenant *t, const struct kvpd_extent *x)
{
	const struct kvpd_device *d = t->ledger->medium[x->cls->medium - 1].device;

	return d && kvpd_device_state(d) == KVPD_DEVICE_UP;
}

/* 1: it is under way; 0: not now; negative errno. `to`: its slot. */
static int go(struct kvpd_tenant *t, uint32_t block, struct kvpd_place to, uint32_t kind)
{
	struct kvpd_place from;
	int r;

	(void)kvpd_block_place(t, block, KVP_TIER_VRAM, &from);
	r = kvpd_host_want(to.extent, from.extent->cls->medium, true);
	if (r > 0)
		r = begin_copy(t, block, to, kind);
	else if (r == 0)
		return 0;
	return r < 0 ? r : 1;
}

/* The same of one that has no slot yet. */
static int begin(struct kvpd_tenant *t, uint32_t block, uint32_t kind, uint64_t now)
{
	struct kvpd_behind *b = &t->behind;
	struct kvpd_place from, to;
	int r;

	if (b->held || full(b) || !kvpd_block_place(t, block, KVP_TIER_VRAM, &from) ||
		!is_up(t, from.extent))
		return 0;
	t->block[block].flags |= KVPD_BLOCK_BEHIND; /* it does not go for its own slot */
	if (!take_target(t, block, now, &to)) {
		t->block[block].flags &= ~KVPD_BLOCK_BEHIND;
		return 0;
	}
	r = go(t, block, to, kind);
	if (r > 0)
		return r;
	if (r == 0) {
		/* Given back the slot would be there for the next one to be tried with. */
		b->held = true;
		b->block = block;
		b->to = to;
		return 0;
	}
	b->rest_ns = now + REST_NS;
	let_go(t, block, to, false);
	return r;
}

/* False: it still waits for its extent. */
static bool go_on_held(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_behind *b = &t->behind;
	int r = b->held ? go(t, b->block, b->to, KVPD_COPY_BEHIND) : 1;

	if (!r)
		return false;
	if (r < 0) {
		b->rest_ns = now + REST_NS;
		let_go(t, b->block, b->to, false);
		kvpd_warm_again(t);
		kvpd_supply_again(t);
	}
	b->held = false;
	return true;
}

/* ---- which ---------------------------------------------------------------------------------- */

static bool waits(const struct kvpd_tenant *t, uint32_t block)
{
	return block != KVP_BLOCK_NONE && kvpd_block_only_there(t, block) &&
	       !(t->block[block].flags & (KVPD_BLOCK_BEHIND | KVPD_BLOCK_MOVING));
}

bool kvpd_behind_hurry(struct kvpd_tenant *t, const kvp_block_id *block, uint32_t n, uint64_t now)
{
	bool some = t->behind.copies || t->behind.held;

	for (uint32_t i = 0; i < n && now >= t->behind.rest_ns; i++)
		if (waits(t, block[i]))
			some = begin(t, block[i], KVPD_COPY_SPILL, now) > 0 || some ||
			       is_coming(t, class_of(t, block[i]), now);
	return some || t->behind.held;
}

/* May something that waits be copied from there now? What lies on a device that is down waits until it is up. */
static bool gives(const struct kvpd_tenant *t, const struct kvpd_extent *x)
{
	return x && x->kind == KVP_EXTENT_ARENA && x->cls->medium != KVPD_DRAM &&
	       x->state == KVPD_EXTENT_LIVE && is_up(t, x);
}

/* The next block that waits, within *work slots; KVP_BLOCK_NONE: none among these, *ret_all: none at all. */
static uint32_t next(struct kvpd_tenant *t, uint32_t *work, bool *ret_all)
{
	struct kvpd_behind *b = &t->behind;

	for (; *work && b->vain <= t->n_extents; (*work)--) {
		const struct kvpd_extent *x =
			b->extent < t->n_extents ? t->extent[b->extent] : NULL;

		if (b->extent >= t->n_extents) {
			b->extent = b->slot = 0;
		} else if (!gives(t, x) || b->slot >= x->slots) {
			b->extent++;
			b->slot = 0;
			b->vain++;
		} else if (waits(t, x->slot[b->slot].block)) {
			b->vain = 0;
			return x->slot[b->slot++].block;
		} else {
			b->slot++;
		}
	}
	*ret_all = b->vain > t->n_extents;
	if (*ret_all)
		b->vain = 0;
	return KVP_BLOCK_NONE;
}

bool kvpd_behind_step(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_behind *b = &t->behind;
	uint32_t work = PORTION, block;
	bool all = false;

	if (!go_on_held(t, now) || now < b->rest_ns)
		return false;
	for (uint32_t i = 0; i < BEGUN && t->n_only > b->copies && !full(b); i++) {
		block = next(t, &work, &all);
		if (block == KVP_BLOCK_NONE)
			return !all; /* further on, or with the next tick */
		if (begin(t, block, KVPD_COPY_BEHIND, now) <= 0) {
			b->slot -= b->slot > 0; /* the same again */
			return false;
		}
	}
	return t->n_only > b->copies && !full(b);
}
