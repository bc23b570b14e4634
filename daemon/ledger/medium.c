/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of the ledger, and what a tenant has of them. */
#include "daemon/ledger/medium.h"

#include <errno.h>
#include <numa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/config.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/again.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/lesson.h"
#include "daemon/ledger/pool.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/segment.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tenant_limits.h"
#include "daemon/log.h"
#include "policy/kvp_evict.h"

#define LOOK_MS    1000
#define PAGE       UINT64_C(4096)
#define LARGE      (UINT64_C(1) << 20)
#define LARGE_PAGE (UINT64_C(64) << 10)

const struct kvpd_medium_ops *kvpd_medium_ops(const struct kvpd_extent *x)
{
	static const struct kvpd_medium_ops dram = { kvpd_pool_make, kvpd_pool_drop,
		kvpd_pool_drop_now };
	static const struct kvpd_medium_ops device = { kvpd_segment_make, kvpd_segment_drop,
		kvpd_segment_drop_now };

	return x->cls->medium == KVPD_DRAM ? &dram : &device;
}

uint64_t kvpd_device_slot(uint64_t block_bytes)
{
	uint64_t page = block_bytes < LARGE ? PAGE : LARGE_PAGE;

	return (block_bytes + page - 1) / page * page;
}

/* ---- the ledger's --------------------------------------------------------------------------- */

static char *copy_text(const char *text, bool *ok)
{
	char *copy = text ? strdup(text) : NULL;

	*ok = *ok && (copy || !text);
	return copy;
}

int kvpd_media_new(struct kvpd_ledger *l, const struct kvpd_config *config)
{
	struct kvpd_limits unsaid;
	bool ok = true;

	for (uint32_t i = 0; i < KVP_MAX_DEVICES; i++)
		unsaid.device_share[i] = KVPD_SHARE_DEFAULT;
	for (uint32_t i = 0; i < config->n_devices; i++) {
		const struct kvpd_device_entry *d = &config->devices[i];
		struct kvpd_medium *m = &l->medium[i];

		l->n_media = i + 1;
		m->ledger = l;
		m->number = i;
		m->node = -1;
		m->said_node = -2; /* it has not been asked */
		snprintf(m->name, sizeof(m->name), "%s", d->name);
		m->driver = copy_text(d->driver, &ok);
		m->faults = copy_text(d->faults, &ok);
		m->worker = copy_text(d->worker, &ok);
		m->unit = copy_text(d->unit, &ok);
		m->transport = d->transport;
		m->no_copies = d->no_copies;
		m->mps = d->mps;
		m->grain = kvpd_config_grain(d);
		m->bytes = d->bytes;
		m->segment = d->segment;
		m->copy_rate = d->copy_rate;
		m->timeout_ms = d->timeout_ms;
		m->share = kvpd_config_device_share(config, &unsaid, i);
	}
	return ok ? 0 : -ENOMEM;
}

static void wake(void *ctx)
{
	kvpd_ledger_kick(ctx);
}

int kvpd_media_start(struct kvpd_ledger *l)
{
	for (uint32_t i = 0; i < l->n_media; i++) {
		struct kvpd_medium *m = &l->medium[i];
		struct kvpd_device_config c = {
			.driver = m->driver,
			.faults = m->faults,
			.worker = m->worker,
			.unit = m->unit,
			.transport = m->transport,
			.no_copies = m->no_copies,
			.mps = m->mps,
			.bytes = m->bytes,
			.copy_rate = m->copy_rate,
			.timeout_ms = m->timeout_ms,
			.wake = wake,
			.ctx = l,
		};
		int r;

		memcpy(c.name, m->name, sizeof(c.name));
		r = kvpd_device_new(&c, &m->device);
		if (r < 0) {
			kvpd_err("device %s: %s", m->name, strerror(-r));
			return r;
		}
	}
	return 0;
}

void kvpd_media_stop(struct kvpd_ledger *l)
{
	for (uint32_t i = 0; i < l->n_media; i++) {
		struct kvpd_device *d = l->medium[i].device;

		/* What is done() then asks for nothing more of it. */
		l->medium[i].device = NULL;
		kvpd_device_free(d);
	}
}

void kvpd_media_free(struct kvpd_ledger *l)
{
	for (uint32_t i = 0; i < l->n_media; i++) {
		free(l->medium[i].driver);
		free(l->medium[i].faults);
		free(l->medium[i].worker);
		free(l->medium[i].unit);
	}
}

bool kvpd_media_drain(struct kvpd_ledger *l, uint64_t until_ns, uint32_t *work)
{
	bool more = false;

	for (uint32_t i = 0; i < l->n_media; i++) {
		bool late = false;

		while (!late && l->medium[i].device && kvpd_ledger_drain(l, l->medium[i].device)) {
			late = kvpd_now_ns() >= until_ns;
			*work += 1;
		}
		more = more || late;
	}
	return more;
}

int kvpd_medium_open(const struct kvpd_ledger *l, uint32_t medium)
{
	const struct kvpd_medium *m = &l->medium[medium - 1];
	uint32_t state =
		medium <= l->n_media && m->device ? kvpd_device_state(m->device) : KVPD_DEVICE_DOWN;

	return m->draining || state == KVPD_DEVICE_DOWN || state == KVPD_DEVICE_DETACHED ? -ENODEV
											 : 0;
}

bool kvpd_medium_pins(const struct kvpd_medium *m)
{
	return !strcmp(m->driver, "cuda") && !m->no_copies;
}

const char *kvpd_medium_word(const struct kvpd_medium *m, uint32_t state)
{
	static const char *const words[] = { [KVPD_DEVICE_STARTING] = "starting",
		[KVPD_DEVICE_UP] = "up",
		[KVPD_DEVICE_RESTART] = "restarting",
		[KVPD_DEVICE_DOWN] = "down",
		[KVPD_DEVICE_DETACHED] = "detached" };

	return m->draining && state == KVPD_DEVICE_UP ? "draining" : words[state];
}

/* ---- catalogs ------------------------------------------------------------------------------- */

static uint32_t log2_of(uint64_t bytes)
{
	return bytes ? 63u - (uint32_t)__builtin_clzll(bytes) : 0;
}

static void show(struct kvpd_tenant *t, const struct kvpd_medium *m)
{
	struct kvp_shm_device *d = &t->view.devices[m->number];

	if (!t->part[m->number].share)
		return;
	if (m->shown != KVP_DEVICE_FREE && kvp_load_relaxed(&d->state) == KVP_DEVICE_FREE) {
		struct kvpd_device_figures f;

		kvpd_device_figures(m->device, &f);
		d->generation = 1;
		memcpy(d->uuid, f.uuid, sizeof(d->uuid));
		d->pool_bytes = m->bytes;
		d->segment_log2 = log2_of(m->segment);
		d->granularity_log2 = log2_of(f.granularity);
		d->import = kvpd_device_import(m->device);
	}
	/* Release: who finds it up or down reads the rest. */
	kvp_store_release(&d->state, m->shown);
}

/* What lies in a segment that was lost goes, as leases allow, and so does the extent. */
static void leave_lost(struct kvpd_ledger *l, struct kvpd_medium *m)
{
	const uint32_t losses = m->device ? kvpd_device_losses(m->device) : m->losses;

	if (losses == m->losses)
		return;
	m->losses = losses;
	for (uint32_t k = 1; k <= l->last_tenant; k++)
		for (uint32_t i = 0; l->tenant[k] && i < l->tenant[k]->n_extents; i++) {
			struct kvpd_extent *x = l->tenant[k]->extent[i];

			if (x && x->cls->medium == m->number + 1 && kvpd_segment_lost(x))
				kvpd_extent_drain(x);
		}
}

/* What lies there is in doubt: its tenants say of which segments it is not to be believed. */
static void look_into(struct kvpd_ledger *l, struct kvpd_medium *m)
{
	const uint32_t doubts = m->device ? kvpd_device_doubts(m->device) : m->doubts;

	if (doubts == m->doubts)
		return;
	m->doubts = doubts;
	for (uint32_t k = 1; k <= l->last_tenant; k++)
		if (l->tenant[k] && l->tenant[k]->part[m->number].share)
			kvpd_doubt_begin(l->tenant[k], m->number + 1, doubts);
}

/* It came up: where is it? What has been made stays where it lies. */
static void look_node(struct kvpd_ledger *l, struct kvpd_medium *m)
{
	struct kvpd_device_figures d;
	int said;

	kvpd_device_figures(m->device, &d);
	said = d.numa_node;
	if (l->numa_node != KVPD_NODE_AUTO || said == m->said_node)
		return;
	m->said_node = said;
	m->node = -1;
	if (said < 0)
		kvpd_notice("device %s: its driver knows no NUMA node of it; numa_node: auto "
			    "binds nothing for it",
			m->name);
	else if (numa_available() < 0 || said > numa_max_node() ||
		 !numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned)said))
		kvpd_warning(
			"device %s: it is on NUMA node %d, which has no memory that the daemon "
			"may take (numactl -H, cpuset.mems of its control group); numa_node: "
			"auto binds nothing for it",
			m->name, said);
	else
		m->node = said;
	if (m->node >= 0)
		kvpd_info("device %s: vaults of its tenants are bound to NUMA node %d from now on",
			m->name, m->node);
}

int kvpd_parts_node(const struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < t->ledger->n_media; i++)
		if (t->part[i].share && t->ledger->medium[i].node >= 0)
			return t->ledger->medium[i].node;
	return -1;
}

int kvpd_media_look(struct kvpd_ledger *l)
{
	for (uint32_t i = 0; i < l->n_media; i++) {
		struct kvpd_medium *m = &l->medium[i];
		uint32_t is = m->device ? kvpd_device_state(m->device) : KVPD_DEVICE_DOWN;
		uint32_t shown = m->shown;

		leave_lost(l, m);
		look_into(l, m);
		if (is == KVPD_DEVICE_UP)
			shown = m->draining ? KVP_DEVICE_DOWN : KVP_DEVICE_UP;
		else if (is == KVPD_DEVICE_DETACHED && m->shown != KVP_DEVICE_FREE)
			shown = KVP_DEVICE_DETACHED;
		else if (is == KVPD_DEVICE_DOWN && m->shown != KVP_DEVICE_FREE)
			shown = KVP_DEVICE_DOWN;
		if (shown == m->shown)
			continue;
		m->shown = shown;
		if (shown == KVP_DEVICE_UP)
			look_node(l, m);
		for (uint32_t k = 1; k <= l->last_tenant; k++)
			if (l->tenant[k])
				show(l->tenant[k], m);
	}
	return l->n_media ? LOOK_MS : -1;
}

void kvpd_parts_show(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < t->ledger->n_media; i++)
		if (t->ledger->medium[i].device)
			show(t, &t->ledger->medium[i]);
}

int kvpd_medium_serves(const struct kvpd_tenant *t, uint32_t medium)
{
	if (!t->ledger->n_media)
		return -EOPNOTSUPP;
	if (medium - 1 >= t->ledger->n_media || !t->part[medium - 1].share)
		return -ENODEV;
	return kvpd_medium_open(t->ledger, medium);
}

/* ---- parts ---------------------------------------------------------------------------------- */

int kvpd_parts_new(struct kvpd_tenant *t, const uint64_t share[KVP_MAX_DEVICES], uint64_t *bytes)
{
	for (uint32_t i = 0; i < t->ledger->n_media; i++) {
		struct kvp_evict_params params = {
			.size = sizeof(params),
			.items = kvpd_limits_part_blocks(&t->limits, share[i]),
			.max_ids = t->layout.max_blocks,
			.max_blocks = kvpd_limits_part_blocks(&t->limits, share[i]),
			.steps = KVPD_EVICT_STEPS,
			.seed = t->salt.hi,
		};
		struct kvp_evict_memory memory;
		int r;

		if (!share[i])
			continue;
		r = kvp_evict_new(t->ledger->policy, &params, &t->part[i].evict);
		if (r < 0)
			return r;
		t->part[i].share = share[i];
		t->part[i].max_slots = params.max_blocks;
		kvp_evict_memory(t->part[i].evict, &memory);
		*bytes += memory.total;
		t->part[i].again = kvpd_again_new(params.max_blocks, memory.ghosts);
		if (!t->part[i].again)
			return -ENOMEM;
		*bytes += kvpd_again_bytes(params.max_blocks);
		r = kvpd_lesson_new(
			&t->ledger->advisor, t->part[i].evict, bytes, &t->part[i].lesson);
		if (r < 0)
			return r;
	}
	return 0;
}

void kvpd_parts_leave(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; t->ledger->n_media && i < t->n_extents; i++)
		if (t->extent[i])
			kvpd_segment_leave(t->extent[i]);
}

void kvpd_parts_free(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < KVP_MAX_DEVICES; i++) {
		kvp_evict_free(t->part[i].evict);
		kvpd_again_free(t->part[i].again);
		kvpd_lesson_leave(t->part[i].lesson);
	}
}

void kvpd_parts_capacity(struct kvpd_tenant *t, uint64_t least)
{
	for (uint32_t i = 0; i < t->ledger->n_media; i++) {
		uint64_t n = t->part[i].share / kvpd_device_slot(least);

		if (n > t->part[i].max_slots)
			n = t->part[i].max_slots;
		if (t->part[i].evict)
			kvp_evict_resize(t->part[i].evict, n ? n : 1, 0);
	}
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* What the device's policy may know of a block. */
static struct kvp_evict_item item_of(
	const struct kvpd_tenant *t, const struct kvpd_part *p, uint32_t id)
{
	struct kvp_evict_info info;
	struct kvp_evict_item item = { .parent = KVP_BLOCK_NONE, .key = kvpd_block_key(t, id) };
	uint32_t parent = kvp_load_relaxed(&t->view.blocks[id].parent);

	if (kvp_evict_peek(t->evict, id, &info) == 0) {
		item.bytes = info.bytes;
		item.depth = info.depth;
		item.flags = info.flags;
		item.cost = (float)info.cost;
	}
	item.tokens = kvp_shape_tokens(kvp_load_relaxed(&t->view.blocks[id].shape));
	if (parent != KVP_BLOCK_NONE && kvp_evict_contains(p->evict, parent))
		item.parent = parent;
	return item;
}

void kvpd_part_expect(struct kvpd_tenant *t, uint32_t medium, uint32_t id, uint64_t now)
{
	struct kvpd_part *p = &t->part[medium - 1];
	struct kvp_evict_item item = item_of(t, p, id);

	/* As in DRAM it is taken in any case; some choose victims by what they are for. */
	(void)kvp_evict_admit(p->evict, &item, now);
}

void kvpd_part_enter(struct kvpd_tenant *t, uint32_t medium, uint32_t id, uint64_t now)
{
	struct kvpd_part *p = &t->part[medium - 1];
	struct kvp_evict_item item = item_of(t, p, id);

	(void)kvp_evict_insert(p->evict, id, &item, now);
	p->reloads += kvpd_again_came(p->again, item.key, p->slots);
	p->blocks++;
	kvpd_advice_place(t->advice, id, false);
}

int kvpd_part_leave(
	struct kvpd_tenant *t, uint32_t medium, uint32_t id, bool for_room, uint64_t now)
{
	struct kvpd_part *p = &t->part[medium - 1];
	int r = kvp_evict_remove(p->evict, id, 1, now);

	if (r < 0)
		return r;
	if (for_room)
		kvpd_again_left(p->again, kvpd_block_key(t, id));
	else
		kvpd_again_forget(p->again, kvpd_block_key(t, id));
	p->blocks--;
	kvpd_advice_place(t->advice, id, true);
	return 0;
}

bool kvpd_part_keeps(const struct kvpd_tenant *t, uint32_t medium, uint32_t id)
{
	return kvpd_again_kept(t->part[medium - 1].again, kvpd_block_key(t, id));
}

bool kvpd_part_spares(const struct kvpd_tenant *t, uint32_t medium, uint32_t id)
{
	const struct kvpd_part *p = &t->part[medium - 1];

	return kvpd_again_spare(p->again, kvpd_block_key(t, id));
}

void kvpd_part_touch(struct kvpd_tenant *t, uint32_t id, uint64_t now)
{
	uint64_t where = kvp_load_relaxed(&kvpd_block_payload(t, id, KVP_TIER_VRAM)->where);
	struct kvpd_part *p;

	if (!where)
		return;
	p = &t->part[t->extent[kvp_where_extent(where)]->cls->medium - 1];
	(void)kvp_evict_access(p->evict, id, now);
	kvpd_again_used(p->again, kvpd_block_key(t, id), p->slots);
	if (!(t->block[id].flags & KVPD_BLOCK_AHEAD))
		return;
	p->ahead_used++;
	kvpd_advice_paid(t->advice, id);
	t->block[id].flags &= ~KVPD_BLOCK_AHEAD;
}
