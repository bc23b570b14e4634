/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving blocks into the vault. The mover thread copies while the block stays readable at its old
 * place; when the copy is complete the ledger switches the block over as in an eviction: mark,
 * fence, scan. A block leased at that moment stays where it is and the copy is dropped; where it
 * must go all the same its old bytes stay in limbo until the lease slots of that moment have
 * changed.
 */
#include "daemon/ledger/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- limbo ---------------------------------------------------------------------------------- */

/* Marks what it walked over with the answer, `yes` or `no`, so that no block is met twice. */
static bool protects_limbo(const struct kvpd_tenant *t, uint32_t tip, uint32_t yes, uint32_t no)
{
	uint32_t end = tip, answer = no;

	while (end < t->layout.max_blocks && kvpd_block_state(t, end) != KVP_BLOCK_FREE) {
		uint32_t mark = t->block[end].mark;

		if (mark == yes || t->block[end].flags & KVPD_BLOCK_LIMBO)
			answer = yes;
		if (mark == no || answer == yes)
			break;
		end = kvp_load_relaxed(&t->view.blocks[end].parent);
	}
	for (; tip != end; tip = kvp_load_relaxed(&t->view.blocks[tip].parent))
		t->block[tip].mark = answer;
	return answer == yes;
}

/* Writes the lease slots that may protect what was just moved, at most max; returns how many. */
static uint32_t find_holders(struct kvpd_tenant *t, struct kvpd_limbo_holder *out, uint32_t max)
{
	uint32_t n = 0, yes = kvpd_scan_begin(t), no = kvpd_scan_begin(t);

	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

		for (uint32_t i = 0; i < KVPD_LEASES && n < max; i++) {
			uint64_t v = kvp_lease_slot(s->page, i);

			if (!v || !protects_limbo(t, kvp_slot_block(v), yes, no))
				continue;
			out[n++] = (struct kvpd_limbo_holder){
				.session = s->id, .place = s->place, .slot = i, .value = v
			};
		}
	}
	return n;
}

static void limbo_free(struct kvpd_limbo *limbo)
{
	for (uint32_t i = 0; i < limbo->n_places; i++)
		kvpd_slot_clear(limbo->place[i], KVPD_SLOT_LIMBO);
	kvpd_list_remove(&limbo->link);
	free(limbo);
}

static bool still_held(const struct kvpd_tenant *t, const struct kvpd_limbo_holder *h)
{
	const struct kvpd_session *s = t->ledger->session[h->place];

	return s && s->id == h->session && kvp_lease_slot(s->page, h->slot) == h->value;
}

void kvpd_limbo_step(struct kvpd_tenant *t)
{
	struct kvpd_list *it, *tmp;

	kvpd_each(it, tmp, &t->limbo) {
		struct kvpd_limbo *limbo = kvpd_container(it, struct kvpd_limbo, link);
		uint32_t n = 0;

		/* Seen changed once is done: whoever leases now gets the new place. */
		for (uint32_t i = 0; i < limbo->n_holders; i++)
			if (still_held(t, &limbo->holder[i]))
				limbo->holder[n++] = limbo->holder[i];
		limbo->n_holders = n;
		if (!n)
			limbo_free(limbo);
	}
}

/* ---- switching over ------------------------------------------------------------------------- */

static void stay(struct kvpd_tenant *t, struct move *m)
{
	kvp_block_unmark(&t->view, m->block, m->word);
	kvpd_slot_clear(m->to, KVPD_SLOT_TARGET);
}

static void switch_over(struct kvpd_tenant *t, struct move *m)
{
	const struct kvp_payload_desc *d = &t->view.blocks[m->block].payload[KVP_TIER_DRAM];
	uint64_t where = kvp_load_relaxed(&d->where);

	kvp_block_set_payload(&t->view, m->block, KVP_TIER_DRAM,
		kvp_where(m->to.extent->id, kvp_where_codec(where), kvp_where_bytes(where)),
		kvpd_place_offset(m->to), m->checksum);
	kvp_block_moved(&t->view, m->block, KVP_BLOCK_LIVE);
	m->to.extent->slot[m->to.slot].block = m->block;
	kvpd_slot_clear(m->to, KVPD_SLOT_TARGET);
	if (m->leased) {
		m->from.extent->slot[m->from.slot].flags |= KVPD_SLOT_LIMBO;
		t->block[m->block].flags |= KVPD_BLOCK_LIMBO;
	}
	kvpd_slot_unblock(m->from);
	kvp_bump(&t->view.cat->stats.moves, 1);
}

static uint32_t count_leases(const struct kvpd_tenant *t)
{
	return t->n_sessions * KVPD_LEASES;
}

static void done_move(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct move_job *j = kvpd_container(job, struct move_job, job);
	struct kvpd_tenant *t = j->tenant;
	struct kvpd_limbo *limbo = NULL, *shrunk;

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
			limbo = malloc(sizeof(*limbo) + sizeof(limbo->holder[0]) * count_leases(t));
		if (!m->checksum || (m->leased && (!j->force || !limbo)))
			stay(t, m);
		else
			switch_over(t, m);
	}
	if (limbo) {
		limbo->n_places = 0;
		limbo->n_holders = find_holders(t, limbo->holder, count_leases(t));
		for (uint32_t i = 0; i < j->n; i++) {
			if (!(t->block[j->move[i].block].flags & KVPD_BLOCK_LIMBO))
				continue;
			t->block[j->move[i].block].flags &= ~KVPD_BLOCK_LIMBO;
			limbo->place[limbo->n_places++] = j->move[i].from;
		}
		shrunk = realloc(
			limbo, sizeof(*limbo) + sizeof(limbo->holder[0]) * limbo->n_holders);
		limbo = shrunk ? shrunk : limbo;
		kvpd_list_append(&t->limbo, &limbo->link);
	}
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
			kvpd_lease_marks(t, true);
			if (!movable(x, slot, leased_too) ||
				!kvpd_vault_take(t, x->cls, x, now, &to))
				continue;
		}
		m->block = x->slot[slot].block;
		m->from = (struct kvpd_place){ .extent = x, .slot = slot };
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
