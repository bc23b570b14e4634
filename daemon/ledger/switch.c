/* SPDX-License-Identifier: Apache-2.0 */
/* Switching over what was copied, and finding the leases that protect what was there before. */
#include "daemon/ledger/switch.h"

#include <stdlib.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/limbo.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/room.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/warm.h"
#include "shm/kvp_lease.h"

#define PORTION 512u /* slots read and steps walked in one portion: two cache misses a step */

void kvpd_switch_init(struct kvpd_tenant *t)
{
	kvpd_list_init(&t->copied);
	kvpd_list_init(&t->switching.jobs);
}

void kvpd_switch_add(struct kvpd_tenant *t, struct kvpd_move_job *job)
{
	kvpd_list_append(&t->copied, &job->link);
	kvpd_due(t, KVPD_DUE_SWITCH);
}

void kvpd_switch_forget(struct kvpd_session *s)
{
	struct kvpd_switch *w = &s->tenant->switching;

	if (!w->under_way || w->next != &s->in_tenant)
		return;
	w->next = s->in_tenant.next;
	w->slot = 0;
	w->walk.under_way = false;
}

/* ---- marking -------------------------------------------------------------------------------- */

/* Numbers that no block carries. */
static void new_answers(struct kvpd_tenant *t, struct kvpd_switch *w)
{
	/* After some 2^30 switches; a number that is met again would be a wrong answer. */
	if (t->walk >= UINT32_MAX - 3) {
		for (uint32_t i = 0; i < t->layout.max_blocks; i++)
			if (kvpd_block_holds(t, i))
				t->block[i].walked = 0;
		t->walk = 0;
	}
	w->here = ++t->walk;
	w->yes = ++t->walk;
	w->no = ++t->walk;
}

/* The block lies at its new place from now on. */
static void arrived(struct kvpd_tenant *t, struct kvpd_move *m)
{
	m->to.extent->slot[m->to.slot].block = m->block;
	kvpd_slot_clear(m->to, KVPD_SLOT_TARGET);
	kvpd_slot_unblock(m->from);
	kvp_bump(&t->view.cat->stats.moves, 1);
}

static void switch_first(struct kvpd_tenant *t, struct kvpd_switch *w, struct kvpd_move *m)
{
	kvpd_block_move(t, m->block, m->to, m->width, (uint32_t)m->bytes, m->checksum);
	kvpd_limbo_add(w->limbo, m->from);
	arrived(t, m);
}

/* Is there a limbo for the old places of the job's blocks? What must go has all of them, other moves a half. */
static bool can_be_first(
	const struct kvpd_tenant *t, struct kvpd_switch *w, const struct kvpd_move_job *j)
{
	if (j->drop || j->codes)
		return false;
	if (!w->limbo && t->n_limbo < (j->force ? KVPD_LIMBOS : KVPD_LIMBOS / 2))
		w->limbo = kvpd_limbo_new();
	return w->limbo;
}

static void scan_begin(const struct kvpd_tenant *t, struct kvpd_switch *w)
{
	w->blind = false;
	w->next = t->sessions.next;
	w->slot = 0;
	w->walk.under_way = false;
}

static void begin(struct kvpd_tenant *t, struct kvpd_switch *w)
{
	w->under_way = true;
	new_answers(t, w);
	while (!kvpd_list_empty(&t->copied)) {
		struct kvpd_move_job *j =
			kvpd_container(t->copied.next, struct kvpd_move_job, link);

		kvpd_list_remove(&j->link);
		kvpd_list_append(&w->jobs, &j->link);
		j->first = can_be_first(t, w, j);
		for (uint32_t i = 0; i < j->n; i++) {
			t->block[j->move[i].block].walked = w->here;
			if (j->first)
				switch_first(t, w, &j->move[i]);
			else
				j->move[i].word = kvp_block_mark(&t->view, j->move[i].block);
		}
	}
	kvp_lease_fence();
	scan_begin(t, w);
}

/* ---- scanning ------------------------------------------------------------------------------- */

static void walk_to(const struct kvpd_tenant *t, struct kvpd_walk *k, uint32_t block)
{
	k->at = block;
	if (block < t->layout.max_blocks)
		k->birth = kvp_word_birth(kvpd_block_word(t, block));
}

static bool still_there(const struct kvpd_tenant *t, const struct kvpd_walk *k)
{
	return kvp_word_birth(kvpd_block_word(t, k->at)) == k->birth && kvpd_block_holds(t, k->at);
}

/* One step up, from a block that is still there, or from none. False: this was the end. */
static bool step_up(struct kvpd_tenant *t, struct kvpd_switch *w, struct kvpd_walk *k)
{
	if (k->at >= t->layout.max_blocks || t->block[k->at].walked == w->no)
		return false;
	if (t->block[k->at].walked == w->yes) {
		k->above = true;
		return false;
	}
	k->steps++;
	if (t->block[k->at].walked == w->here) {
		t->block[k->at].flags |= KVPD_BLOCK_LEASED;
		k->below = k->steps;
	}
	walk_to(t, k, kvp_load_relaxed(&t->view.blocks[k->at].parent));
	return true;
}

/* One step of the way that was walked, to leave the answer. False: this was the last. */
static bool step_back(struct kvpd_tenant *t, struct kvpd_switch *w, struct kvpd_walk *k)
{
	if (!k->steps)
		return false;
	k->steps--;
	t->block[k->at].walked = k->above || k->below ? w->yes : w->no;
	k->below -= k->below > 0;
	walk_to(t, k, kvp_load_relaxed(&t->view.blocks[k->at].parent));
	return true;
}

static void add_holder(struct kvpd_switch *w, const struct kvpd_session *s)
{
	if (w->n_holders == w->room) {
		uint32_t room = w->room ? 2 * w->room : 64;
		void *p = realloc(w->holder, room * sizeof(*w->holder));

		if (!p) {
			w->blind = true;
			return;
		}
		w->holder = p;
		w->room = room;
	}
	w->holder[w->n_holders++] = (struct kvpd_limbo_holder){
		.session = s->id,
		.place = s->place,
		.slot = w->slot,
		.value = w->walk.value,
	};
}

/* Goes on with the walk. False: there is more of it; *work says how many steps are left to do. */
static bool walk_on(
	struct kvpd_tenant *t, struct kvpd_switch *w, const struct kvpd_session *s, uint32_t *work)
{
	struct kvpd_walk *k = &w->walk;
	uint32_t tip = kvp_slot_block(k->value);

	for (;;) {
		if (!*work)
			return false;
		(*work)--;
		if (k->at < t->layout.max_blocks && !still_there(t, k))
			break;
		if (!k->back && !step_up(t, w, k)) {
			if (w->limbo && (k->above || k->below))
				add_holder(w, s);
			k->back = true;
			walk_to(t, k, tip);
		} else if (k->back && !step_back(t, w, k)) {
			break;
		}
	}
	k->under_way = false;
	return true;
}

static void walk_begin(const struct kvpd_tenant *t, struct kvpd_walk *k, uint64_t value)
{
	*k = (struct kvpd_walk){ .under_way = true, .value = value };
	walk_to(t, k, kvp_slot_block(value));
}

/* The slots of one session. False: there is more of it. */
static bool scan_session(struct kvpd_tenant *t, struct kvpd_switch *w, uint32_t *work)
{
	struct kvpd_session *s = kvpd_container(w->next, struct kvpd_session, in_tenant);

	while (*work && w->slot < KVP_LEASES) {
		if (!w->walk.under_way) {
			uint32_t lines = 0;
			uint64_t value = kvp_lease_next(s->page, &w->slot, &lines);

			/* A line of empty slots costs about as much as a step. */
			*work -= lines < *work ? lines : *work;
			if (value && kvp_slot_block(value) < t->layout.max_blocks)
				walk_begin(t, &w->walk, value);
		}
		if (w->walk.under_way && !walk_on(t, w, s, work))
			return false;
		w->slot++;
	}
	return w->slot >= KVP_LEASES;
}

/* False: there is more to scan. */
static bool scan(struct kvpd_tenant *t, struct kvpd_switch *w)
{
	uint32_t work = PORTION;

	while (w->next != &t->sessions) {
		if (!work || !scan_session(t, w, &work))
			return false;
		w->next = w->next->next;
		w->slot = 0;
	}
	return true;
}

/* ---- the end -------------------------------------------------------------------------------- */

static void stay(struct kvpd_tenant *t, struct kvpd_move *m)
{
	kvp_block_unmark(&t->view, m->block, m->word);
	kvpd_slot_clear(m->to, KVPD_SLOT_TARGET);
}

static void switch_over(struct kvpd_tenant *t, struct kvpd_move *m)
{
	const struct kvp_payload_desc *d = kvpd_block_payload(t, m->block, m->from.tier);
	uint64_t where = kvp_load_relaxed(&d->where);

	kvpd_block_lay(t, m->block, m->to, m->width, (uint32_t)m->bytes, m->checksum);
	kvpd_precision_switched(t, m->block, where, kvp_load_relaxed(&d->where));
	kvp_block_moved(&t->view, m->block, KVP_BLOCK_LIVE);
	arrived(t, m);
}

/* The payload on a device goes, unless a lease protects it. */
static void drop(
	struct kvpd_tenant *t, const struct kvpd_move_job *j, struct kvpd_move *m, bool leased)
{
	if (leased || kvpd_block_drop_copy(t, m->block, j->for_room, t->ledger->now_ns) < 0)
		kvp_block_unmark(&t->view, m->block, m->word);
}

/* What was switched first leaves its old place, or that to limbo. */
static void leave(struct kvpd_switch *w, struct kvpd_move *m, bool leased)
{
	m->from.extent->moving--;
	if (leased)
		kvpd_limbo_add(w->limbo, m->from);
	else
		kvpd_slot_clear(m->from, KVPD_SLOT_LIMBO);
}

/* What was marked is switched over, unless a lease protects it or the copy came to nothing. */
static void go_or_stay(
	struct kvpd_tenant *t, const struct kvpd_move_job *j, struct kvpd_move *m, bool leased)
{
	uint32_t space = kvp_shape_space(kvp_load_relaxed(&t->view.blocks[m->block].shape));
	bool stays = leased || !m->checksum;

	m->from.extent->moving--;
	if (j->codes) {
		t->space[space].pending -= kvpd_precision_frees(m, j->codes);
		if (stays) {
			t->precision.refused++;
			kvpd_budget_stir(t, space);
		}
	}
	if (stays)
		stay(t, m);
	else
		switch_over(t, m);
}

static void finish_job(struct kvpd_tenant *t, struct kvpd_switch *w, struct kvpd_move_job *j)
{
	for (uint32_t i = 0; i < j->n; i++) {
		struct kvpd_move *m = &j->move[i];
		bool leased = t->block[m->block].flags & KVPD_BLOCK_LEASED;

		t->block[m->block].flags &= ~(KVPD_BLOCK_MOVING | KVPD_BLOCK_LEASED);
		if (j->drop)
			drop(t, j, m, leased);
		else if (j->first)
			leave(w, m, leased);
		else
			go_or_stay(t, j, m, leased);
	}
	kvpd_list_remove(&j->link);
	if (j->drop)
		kvpd_room_dropped(t, j);
	free(j);
	t->n_move_jobs--;
}

static void finish(struct kvpd_tenant *t, struct kvpd_switch *w)
{
	w->under_way = false;
	if (w->limbo)
		w->limbo->n_places = 0; /* those that leases protect come in again */
	while (!kvpd_list_empty(&w->jobs))
		finish_job(t, w, kvpd_container(w->jobs.next, struct kvpd_move_job, link));
	if (w->limbo)
		kvpd_limbo_enter(t, w->limbo, w->holder, w->n_holders);
	else
		free(w->holder);
	w->limbo = NULL;
	w->holder = NULL;
	w->n_holders = w->room = 0;
	/* Slots are free, or those that wait for them have to look elsewhere. */
	kvpd_due(t, KVPD_DUE_EXTENTS);
	kvpd_supply_again(t);
	kvpd_warm_again(t);
	kvpd_budget_again(t);
}

/* Not every lease was found room for: all slots are read once more. */
static void scan_again(const struct kvpd_tenant *t, struct kvpd_switch *w)
{
	free(w->holder);
	w->holder = NULL;
	w->n_holders = w->room = 0;
	scan_begin(t, w);
}

bool kvpd_switch_step(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_switch *w = &t->switching;

	(void)now;
	if (!w->under_way) {
		if (kvpd_list_empty(&t->copied))
			return false;
		begin(t, w);
	}
	if (!scan(t, w))
		return true;
	if (w->blind) {
		scan_again(t, w); /* with the next tick: see kvpd_chores_look() */
		return false;
	}
	finish(t, w);
	return !kvpd_list_empty(&t->copied);
}

void kvpd_switch_free_all(struct kvpd_tenant *t)
{
	struct kvpd_list *const lists[] = { &t->copied, &t->switching.jobs };

	for (uint32_t i = 0; i < 2; i++) {
		while (!kvpd_list_empty(lists[i])) {
			struct kvpd_move_job *j =
				kvpd_container(lists[i]->next, struct kvpd_move_job, link);

			kvpd_list_remove(&j->link);
			free(j);
		}
	}
	free(t->switching.holder);
	free(t->switching.limbo);
}
