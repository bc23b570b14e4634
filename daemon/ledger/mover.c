/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving blocks into the vault. The mover thread copies while the block stays readable at its old
 * place; when the copy is complete the ledger switches the block over as in an eviction: mark,
 * fence, scan. A block leased at that moment stays where it is and the copy is dropped; where it
 * must go all the same its old bytes stay in limbo (limbo.h).
 */
#include "daemon/ledger/mover.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/limbo.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"
#include "shm/kvp_lease.h"

struct move {
	uint32_t block;
	struct kvpd_place from;
	struct kvpd_place to;
	const void *src;
	void *dst;
	uint64_t bytes;
	uint64_t checksum; /* 0: not copied */
	uint64_t word;
	bool leased;
};

struct move_job {
	struct kvpd_job job;
	struct kvpd_tenant *tenant;
	bool force; /* leased blocks too */
	uint32_t n;
	struct move move[KVPD_MOVE_BLOCKS];
};

static void run_move(struct kvpd_job *job)
{
	struct move_job *j = kvpd_container(job, struct move_job, job);

	for (uint32_t i = 0; i < j->n; i++) {
		struct move *m = &j->move[i];

		memcpy(m->dst, m->src, m->bytes);
		m->checksum = kvp_payload_checksum(m->dst, m->bytes);
	}
}

/* ---- switching over ------------------------------------------------------------------------- */

static void stay(struct kvpd_tenant *t, struct move *m)
{
	kvp_block_unmark(&t->view, m->block, m->word);
	kvpd_slot_clear(m->to, KVPD_SLOT_TARGET);
}

static void switch_over(struct kvpd_tenant *t, struct move *m, struct kvpd_limbo *limbo)
{
	uint64_t where = kvp_load_relaxed(&kvpd_block_payload(t, m->block, m->from.tier)->where);

	kvpd_block_lay(
		t, m->block, m->to, kvp_where_codec(where), kvp_where_bytes(where), m->checksum);
	kvp_block_moved(&t->view, m->block, KVP_BLOCK_LIVE);
	m->to.extent->slot[m->to.slot].block = m->block;
	kvpd_slot_clear(m->to, KVPD_SLOT_TARGET);
	if (m->leased) {
		kvpd_limbo_add(limbo, m->from);
		t->block[m->block].flags |= KVPD_BLOCK_LIMBO;
	}
	kvpd_slot_unblock(m->from);
	kvp_bump(&t->view.cat->stats.moves, 1);
}

static void done_move(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct move_job *j = kvpd_container(job, struct move_job, job);
	struct kvpd_tenant *t = j->tenant;
	struct kvpd_limbo *limbo = NULL;

	(void)l;
	t->n_jobs--;
	t->n_move_jobs--;
	t->dirty = true;
	for (uint32_t i = 0; i < j->n; i++) {
		j->move[i].word = kvp_block_mark(&t->view, j->move[i].block);
		t->block[j->move[i].block].flags &= ~KVPD_BLOCK_MOVING;
	}
	kvp_lease_fence();
	kvpd_lease_marks(t, true);
	for (uint32_t i = 0; i < j->n; i++) {
		struct move *m = &j->move[i];

		m->leased = kvpd_leased(t, m->block);
		if (m->leased && j->force && !limbo)
			limbo = kvpd_limbo_new(t);
		if (!m->checksum || (m->leased && (!j->force || !limbo)))
			stay(t, m);
		else
			switch_over(t, m, limbo);
	}
	if (limbo)
		kvpd_limbo_enter(t, limbo);
	for (uint32_t i = 0; i < j->n; i++)
		t->block[j->move[i].block].flags &= ~KVPD_BLOCK_LIMBO;
	free(j);
}

/* ---- choosing ------------------------------------------------------------------------------- */

static bool movable(const struct kvpd_extent *x, uint32_t slot, bool leased_too)
{
	const struct kvpd_tenant *t = x->tenant;
	uint32_t block = x->slot[slot].block;

	return block != KVP_BLOCK_NONE && !x->slot[slot].flags &&
	       !(t->block[block].flags & KVPD_BLOCK_MOVING) &&
	       (leased_too || !kvpd_leased(t, block));
}

static void choose(struct move_job *j, struct kvpd_extent *x, uint32_t n, bool leased_too,
	bool urgent, uint64_t now)
{
	struct kvpd_tenant *t = x->tenant;
	bool evicted = false;

	for (uint32_t i = 0; i < x->slots && j->n < n; i++) {
		uint32_t slot = (x->hand + i) % x->slots;
		struct move *m = &j->move[j->n];
		struct kvpd_place to;

		if (!movable(x, slot, leased_too))
			continue;
		if (!kvpd_vault_take(t, x->cls, x, now, &to)) {
			/* A vault extent in the making is waited for. */
			if (!urgent || evicted || x->cls->making ||
				!kvpd_evict_some(t, kvpd_evict_batch(t), now))
				return;
			evicted = true;
			t->dirty =
				true; /* what went may have lain elsewhere: the next step goes on */
			kvpd_lease_marks(t, true);
			if (!movable(x, slot, leased_too) ||
				!kvpd_vault_take(t, x->cls, x, now, &to))
				continue;
		}
		m->block = x->slot[slot].block;
		m->from = kvpd_place_at(x, slot);
		m->to = to;
		m->src = kvpd_place_addr(m->from);
		m->dst = kvpd_place_addr(m->to);
		m->bytes = t->view.spaces[kvp_shape_space(kvp_load_relaxed(
						  &t->view.blocks[m->block].shape))]
				   .block_bytes;
		t->block[m->block].flags |= KVPD_BLOCK_MOVING;
		j->n++;
		if (j->n == n)
			x->hand = (slot + 1) % x->slots;
	}
}

uint32_t kvpd_move_out(struct kvpd_extent *x, uint32_t n, bool urgent, uint64_t now)
{
	struct kvpd_tenant *t = x->tenant;
	struct move_job *j;

	if (t->n_move_jobs >= KVPD_MOVE_JOBS || !x->used)
		return 0;
	j = calloc(1, sizeof(*j));
	if (!j)
		return 0;
	if (n > KVPD_MOVE_BLOCKS)
		n = KVPD_MOVE_BLOCKS;
	if (n * x->cls->slot_bytes > KVPD_MOVE_BYTES)
		n = (uint32_t)(KVPD_MOVE_BYTES / x->cls->slot_bytes);
	if (!n)
		n = 1;
	j->tenant = t;
	j->force = urgent || x->draining;
	j->job.run = run_move;
	j->job.done = done_move;
	kvpd_lease_marks(t, true);
	choose(j, x, n, false, urgent, now);
	if (!j->n && j->force)
		choose(j, x, n, true, urgent, now);
	n = j->n;
	if (!n) {
		free(j);
		return 0;
	}
	t->n_jobs++;
	t->n_move_jobs++;
	kvpd_worker_submit(&t->ledger->mover, &j->job);
	return n;
}
