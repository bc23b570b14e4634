/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving blocks into the vault: which ones, and where to. A mover thread copies while the block stays
 * readable at its old place; when the copy is complete the ledger switches it over (switch.h).
 */
#include "daemon/ledger/mover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/relief.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/switch.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"

/* An extent in which nothing was found to move is left alone for so long. */
#define REST_NS (2 * KVPD_MS)
/* A job has fewer blocks than it might if choosing them takes so long. */
#define CHOOSE_NS (2 * KVPD_SLICE_NS)

static void run_move(struct kvpd_job *job)
{
	struct kvpd_move_job *j = kvpd_container(job, struct kvpd_move_job, job);

	if (j->codes) {
		kvpd_precision_run(j);
		return;
	}
	for (uint32_t i = 0; i < j->n; i++) {
		struct kvpd_move *m = &j->move[i];

		memcpy(m->dst, m->src, m->bytes);
		m->checksum = kvp_payload_checksum(m->dst, m->bytes);
	}
}

static void done_move(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct kvpd_move_job *j = kvpd_container(job, struct kvpd_move_job, job);

	kvpd_ledger_charge(l, j->tenant);
	j->tenant->n_jobs--;
	if (j->codes)
		kvpd_precision_done(j);
	kvpd_switch_add(j->tenant, j);
}

/* ---- choosing ------------------------------------------------------------------------------- */

/*
 * Is the block in this slot to be copied? What a lease protects, as far as the last look knows, is
 * spared unless `leased_too`: its copy would be dropped.
 */
static bool movable(const struct kvpd_extent *x, uint32_t slot, bool leased_too)
{
	const struct kvpd_tenant *t = x->tenant;
	uint32_t block = x->slot[slot].block;

	return block != KVP_BLOCK_NONE && !x->slot[slot].flags &&
	       !(t->block[block].flags & KVPD_BLOCK_MOVING) &&
	       (leased_too || !kvpd_leased(t, KVPD_LOOK_CHAINS, block));
}

static bool take_target(struct kvpd_extent *x, bool urgent, uint64_t now, struct kvpd_place *ret)
{
	struct kvpd_tenant *t = x->tenant;
	int r;

	if (kvpd_vault_take(t, x->cls, x, now, ret))
		return true;
	/* A vault extent in the making or on its way is waited for, and so is what is coded with fewer bits. */
	if (x->cls->making || kvpd_vault_awaited(t, x->cls, now) ||
		kvpd_precision_first(t, x->cls, now) || !urgent)
		return false;
	if (x->draining && t->charged > kvpd_share_now(t))
		r = kvpd_evict_for_vault(t, kvpd_evict_batch(t), now);
	else
		r = kvpd_evict_some(t, kvpd_evict_batch(t), now);
	if (r == -EAGAIN)
		kvpd_supply_soon(t); /* the search goes on */
	if (r <= 0)
		return false;
	/* What went may have lain elsewhere: then the next portion goes on. */
	kvpd_due(t, KVPD_DUE_EXTENTS);
	return kvpd_vault_take(t, x->cls, x, now, ret);
}

static void choose(struct kvpd_move_job *j, struct kvpd_extent *x, uint32_t n, bool leased_too,
	bool urgent, uint64_t now)
{
	struct kvpd_tenant *t = x->tenant;
	uint32_t look = x->slots < KVPD_MOVE_LOOK ? x->slots : KVPD_MOVE_LOOK;

	for (; look && j->n < n; look--) {
		uint32_t slot = x->hand;
		struct kvpd_move *m = &j->move[j->n];
		struct kvpd_place to;
		uint64_t where;

		if (!movable(x, slot, leased_too)) {
			x->hand = (slot + 1) % x->slots;
			continue;
		}
		if (!take_target(x, urgent, now, &to))
			return;
		x->hand = (slot + 1) % x->slots;
		/* Room for it was perhaps made by evicting it. */
		if (!movable(x, slot, leased_too)) {
			kvpd_slot_clear(to, KVPD_SLOT_TARGET);
			continue;
		}
		m->block = x->slot[slot].block;
		m->from = kvpd_place_at(x, slot);
		m->to = to;
		m->src = kvpd_place_addr(m->from);
		m->dst = kvpd_place_addr(m->to);
		where = kvp_load_relaxed(&kvpd_block_payload(t, m->block, m->from.tier)->where);
		m->bytes = kvp_where_bytes(where);
		m->from_width = m->width = kvp_where_codec(where);
		t->block[m->block].flags |= KVPD_BLOCK_MOVING;
		x->moving++;
		j->n++;
		/* Each target may have taken an eviction. */
		if (kvpd_now_ns() - now >= CHOOSE_NS)
			return;
	}
}

struct kvpd_move_job *kvpd_move_job_new(struct kvpd_tenant *t)
{
	struct kvpd_move_job *j = calloc(1, sizeof(*j));

	if (!j)
		return NULL;
	kvpd_list_init(&j->link);
	j->tenant = t;
	j->job.tenant = t->id;
	j->job.run = run_move;
	j->job.done = done_move;
	return j;
}

void kvpd_move_job_begin(struct kvpd_move_job *j)
{
	j->tenant->n_jobs++;
	j->tenant->n_move_jobs++;
	kvpd_worker_submit(&j->tenant->ledger->mover, &j->job);
}

/* Not from a search that lacked the room which has come since. */
static bool rests(const struct kvpd_extent *x, uint64_t now)
{
	return now < x->rest_ns && x->cls->came_ns + REST_NS < x->rest_ns;
}

uint32_t kvpd_move_out(struct kvpd_extent *x, uint32_t n, bool urgent, uint64_t now)
{
	struct kvpd_tenant *t = x->tenant;
	uint64_t evicted = kvp_load_relaxed(&t->view.cat->stats.evictions);
	struct kvpd_move_job *j;

	if (t->n_move_jobs >= KVPD_MOVE_JOBS || kvpd_extent_empty(x) || rests(x, now))
		return 0;
	j = kvpd_move_job_new(t);
	if (!j)
		return 0;
	if (n > KVPD_MOVE_BLOCKS)
		n = KVPD_MOVE_BLOCKS;
	if (n * x->cls->slot_bytes > KVPD_MOVE_BYTES)
		n = (uint32_t)(KVPD_MOVE_BYTES / x->cls->slot_bytes);
	if (!n)
		n = 1;
	j->force = urgent || x->draining;
	(void)kvpd_lease_look(t, KVPD_LOOK_CHAINS, false);
	choose(j, x, n, false, urgent, now);
	if (!j->n && j->force)
		choose(j, x, n, true, urgent, now);
	n = j->n;
	if (!n) {
		/* All that was looked at is held, or nothing could make room. */
		if (evicted == kvp_load_relaxed(&t->view.cat->stats.evictions))
			x->rest_ns = now + REST_NS;
		free(j);
		return 0;
	}
	kvpd_move_job_begin(j);
	return n;
}
