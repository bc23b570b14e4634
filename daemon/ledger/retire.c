/* SPDX-License-Identifier: Apache-2.0 */
/* Draining, retiring and dropping extents. */
#include "daemon/ledger/retire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/dataplane.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/relief.h"
#include "daemon/ledger/publish.h"
#include "daemon/ledger/room.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/tenant.h"

/* A fully free vault extent stays for so long after its class was last used. */
#define WARM_NS (1000 * KVPD_MS)
/* One from which nothing leaves for so long is kept, for so long at least: under leases, or in nobody's way. */
#define STUCK_NS   (500 * KVPD_MS)
#define KEPT_NS    (5000 * KVPD_MS)
#define KEEPS_MOST 2u

/* ---- draining ------------------------------------------------------------------------------- */

void kvpd_extent_drain(struct kvpd_extent *x)
{
	if (x->draining)
		return;
	if (kvpd_extent_counts(x)) {
		x->cls->vault_slots -= x->slots;
		x->cls->vault_free -= x->slots - x->used;
	}
	x->draining = true;
	x->left = x->used;
	x->left_ns = x->tenant->ledger->now_ns;
	x->tenant->n_draining++;
	kvpd_due(x->tenant, KVPD_DUE_EXTENTS);
}

bool kvpd_extent_stuck(const struct kvpd_extent *x, uint64_t now)
{
	/* Who asks may have looked at the clock before it was written. */
	return x->state == KVPD_EXTENT_LIVE && x->used == x->left && !x->moving &&
	       now >= x->left_ns + STUCK_NS;
}

bool kvpd_extent_kept(const struct kvpd_extent *x, uint64_t now)
{
	return now < x->kept_ns;
}

/* Gives slots again: what somebody reads there for long stays, and another extent is emptied in its place. */
static void keep(struct kvpd_extent *x, uint64_t now)
{
	x->draining = false;
	/* Twice as long each time: a reader that stays takes less and less of what is to be emptied. */
	x->kept_ns = now + (KEPT_NS << x->keeps);
	x->keeps += x->keeps < KEEPS_MOST;
	x->tenant->n_draining--;
	x->tenant->warm |= kvpd_extent_worn(x);
	if (x->tenant->handed == x)
		x->tenant->handed = NULL;
	if (kvpd_extent_counts(x)) {
		x->cls->vault_slots += x->slots;
		x->cls->vault_free += x->slots - x->used;
	}
	kvpd_supply_came(x);
}

void kvpd_extent_orphan(struct kvpd_extent *x)
{
	struct kvpd_tenant *t = x->tenant;

	kvpd_arena_counts(x, false);
	x->owner = NULL;
	kvpd_list_remove(&x->link);
	kvpd_list_append(&t->orphans, &x->link);
	if (x->cls->medium != KVPD_DRAM && x->state == KVPD_EXTENT_LIVE && !kvpd_extent_empty(x))
		x->closed = true;
	else
		kvpd_extent_drain(x);
	if (x->state == KVPD_EXTENT_LIVE)
		kvp_store_relaxed(&t->view.extents[x->id].owner, 0);
}

/* ---- retiring ------------------------------------------------------------------------------- */

void kvpd_extent_let_go(struct kvpd_extent *x)
{
	x->state = KVPD_EXTENT_DROPPING;
	/* A device that copies out of it has it mapped. */
	if (kvpd_hosts_drop(x))
		return;
	if (kvpd_medium_ops(x)->drop(x) < 0)
		x->state = KVPD_EXTENT_RETIRING; /* tried again with the next tick */
}

void kvpd_extent_dropped(struct kvpd_extent *x, int result)
{
	struct kvpd_tenant *t = x->tenant;

	if (result < 0) {
		x->state = KVPD_EXTENT_RETIRING;
		t->n_unproven += !x->unproven;
		x->unproven = true;
		x->written = result != -EAGAIN;
		return;
	}
	kvp_store_release(&x->tenant->view.extents[x->id].state, KVP_EXTENT_FREE);
	kvpd_extent_free(x);
}

static void retire(struct kvpd_extent *x)
{
	struct kvpd_tenant *t = x->tenant;
	bool known = x->state == KVPD_EXTENT_LIVE;

	x->unacked = calloc(KVPD_MAX_SESSIONS / 64, sizeof(*x->unacked));
	if (!x->unacked)
		return; /* tried again in the next step */
	if (known && kvpd_extent_post(x, KVPD_EV_RETIRE, -1) < 0) {
		free(x->unacked);
		x->unacked = NULL;
		return; /* likewise */
	}
	x->state = KVPD_EXTENT_RETIRING;
	if (x->owner)
		kvpd_arena_counts(x, false);
	x->owner = NULL;
	kvpd_list_remove(&x->link);
	kvpd_list_append(&t->orphans, &x->link);
	if (known) {
		kvp_store_release(&t->view.extents[x->id].state, KVP_EXTENT_RETIRED);
		memcpy(x->unacked, t->places, sizeof(t->places));
		x->n_unacked = t->n_sessions;
	}
	if (!x->n_unacked)
		kvpd_extent_let_go(x);
}

void kvpd_extent_unmapped(struct kvpd_extent *x, uint32_t place)
{
	uint64_t bit = UINT64_C(1) << (place & 63);

	if (x->state != KVPD_EXTENT_RETIRING || !(x->unacked[place / 64] & bit))
		return;
	x->unacked[place / 64] &= ~bit;
	if (--x->n_unacked == 0)
		kvpd_extent_let_go(x);
}

void kvpd_extent_forgotten(struct kvpd_session *s)
{
	struct kvpd_list *it, *tmp;

	kvpd_each(it, tmp, &s->tenant->orphans) {
		struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (x->unacked)
			kvpd_extent_unmapped(x, s->place);
	}
}

bool kvpd_arenas_too_many(const struct kvpd_tenant *t, uid_t uid, bool *ret_kept)
{
	uint64_t kept_bytes = 0, asked_bytes = 0;
	uint32_t kept = 0, asked = 0;

	for (struct kvpd_list *it = t->orphans.next; t->n_draining && it != &t->orphans;
		it = it->next) {
		const struct kvpd_extent *x = kvpd_container(it, struct kvpd_extent, link);

		if (x->uid != uid)
			continue;
		if (x->unproven && x->written) {
			kept++;
			kept_bytes += x->bytes;
		} else if (x->state == KVPD_EXTENT_DROPPING) {
			asked++;
			asked_bytes += x->bytes;
		}
	}
	*ret_kept = kept >= KVPD_OWED_MAX || (kept && kept_bytes >= t->limits.arena);
	return kept + asked >= KVPD_OWED_MAX ||
	       (kept && kept_bytes + asked_bytes >= t->limits.arena);
}

/* ---- now and then --------------------------------------------------------------------------- */

#define PORTION 256u /* extents looked at in one portion */
#define MOVES   2u   /* jobs begun in one */

/* Returns how many jobs it began. */
static uint32_t step_draining(struct kvpd_tenant *t, struct kvpd_extent *x, uint64_t now)
{
	bool pressed = t->n_wanting || t->over;

	if (x->used != x->left) {
		x->left = x->used;
		x->left_ns = now;
	}
	if (x->state == KVPD_EXTENT_OFFERED && !x->owner)
		retire(x);
	else if (x->state == KVPD_EXTENT_LIVE && kvpd_extent_empty(x))
		retire(x);
	else if (x->state == KVPD_EXTENT_LIVE && x->cls->medium != KVPD_DRAM)
		return kvpd_room_empty(x, now) > 0;
	else if (x->state == KVPD_EXTENT_LIVE &&
		 kvpd_move_out(x, KVPD_MOVE_BLOCKS, pressed, now) > 0)
		return 1;
	else if (x->kind == KVP_EXTENT_VAULT && kvpd_extent_stuck(x, now))
		keep(x, now);
	return 0;
}

/* Once a second: a vault extent goes that is wholly free while its class is not in use, or that is worn. */
static void tick_free(struct kvpd_tenant *t, struct kvpd_extent *x, uint64_t now)
{
	bool worn = kvpd_extent_worn(x);

	if (!kvpd_extent_counts(x) || (!worn && !kvpd_extent_empty(x)))
		return;
	if (worn ? !kvpd_extent_kept(x, now) : now - x->cls->last_take_ns > WARM_NS)
		kvpd_extent_drain(x);
	else
		t->warm = true;
}

/* One at a time: where pages are pinned the kernel takes long to refuse. */
static void prove_next(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[(t->prove + i) % t->n_extents];

		if (x && x->state == KVPD_EXTENT_RETIRING && !x->n_unacked) {
			t->prove = x->id + 1;
			kvpd_extent_let_go(x);
			return;
		}
	}
}

static void begin_round(struct kvpd_tenant *t)
{
	t->ticking = t->tick;
	t->tick = false;
	if (t->ticking) {
		t->warm = false;
		prove_next(t);
	}
	if (t->charged > kvpd_share_now(t))
		kvpd_reclaim(t, NULL, NULL);
}

bool kvpd_extent_step(struct kvpd_tenant *t, uint64_t now)
{
	uint32_t end = t->extent_at + PORTION, moves = 0;

	if (!t->extent_at)
		begin_round(t);
	/* What is emptied is emptied for a session that waits. */
	if (!kvpd_list_empty(&t->wanting))
		t->writer = kvpd_container(t->wanting.next, struct kvpd_session, in_wanting);
	if (!t->n_draining && !t->ticking)
		t->extent_at = t->n_extents;
	for (; t->extent_at < t->n_extents && t->extent_at < end && moves < MOVES; t->extent_at++) {
		struct kvpd_extent *x = t->extent[t->extent_at];

		if (x && t->ticking)
			tick_free(t, x, now);
		if (x && x->draining)
			moves += step_draining(t, x, now);
	}
	t->writer = NULL;
	if (t->extent_at < t->n_extents)
		return true;
	t->extent_at = 0;
	return false;
}
