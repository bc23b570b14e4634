/* SPDX-License-Identifier: Apache-2.0 */
/* Draining, retiring and dropping extents. */
#include "daemon/ledger/retire.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/clock.h"
#include "daemon/dataplane.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/pool.h"
#include "daemon/ledger/relief.h"
#include "daemon/ledger/publish.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"

/* A fully free vault extent stays for so long after its class was last used. */
#define WARM_NS (1000 * KVPD_MS)

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
	x->tenant->n_draining++;
	x->tenant->dirty = true;
}

void kvpd_extent_orphan(struct kvpd_extent *x)
{
	struct kvpd_tenant *t = x->tenant;

	x->owner = NULL;
	kvpd_list_remove(&x->link);
	kvpd_list_append(&t->orphans, &x->link);
	kvpd_extent_drain(x);
	if (x->state == KVPD_EXTENT_LIVE)
		kvp_store_relaxed(&t->view.extents[x->id].owner, 0);
}

/* ---- retiring ------------------------------------------------------------------------------- */

/* Nobody should have it mapped any more. */
static void let_go(struct kvpd_extent *x)
{
	x->state = KVPD_EXTENT_DROPPING;
	if (kvpd_pool_drop(x) < 0)
		x->state = KVPD_EXTENT_RETIRING; /* tried again with the next tick */
}

void kvpd_extent_dropped(struct kvpd_extent *x, int result)
{
	if (result < 0) {
		x->state = KVPD_EXTENT_RETIRING;
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
		x->owner->arena_bytes -= x->bytes;
	x->owner = NULL;
	kvpd_list_remove(&x->link);
	kvpd_list_append(&t->orphans, &x->link);
	if (known) {
		kvp_store_release(&t->view.extents[x->id].state, KVP_EXTENT_RETIRED);
		for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
			struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

			x->unacked[s->place / 64] |= UINT64_C(1) << (s->place & 63);
			x->n_unacked++;
		}
	}
	if (!x->n_unacked)
		let_go(x);
}

void kvpd_extent_unmapped(struct kvpd_extent *x, uint32_t place)
{
	uint64_t bit = UINT64_C(1) << (place & 63);

	if (x->state != KVPD_EXTENT_RETIRING || !(x->unacked[place / 64] & bit))
		return;
	x->unacked[place / 64] &= ~bit;
	if (--x->n_unacked == 0)
		let_go(x);
}

bool kvpd_unproven_too_many(const struct kvpd_tenant *t, uid_t uid)
{
	uint64_t bytes = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; t->n_draining && i < t->n_extents; i++) {
		const struct kvpd_extent *x = t->extent[i];

		if (!x || !x->unproven || !x->written || x->uid != uid)
			continue;
		n++;
		bytes += x->bytes;
	}
	return n >= KVPD_UNPROVEN_MAX || (n && bytes >= t->limits.arena);
}

/* ---- now and then --------------------------------------------------------------------------- */

void kvpd_extent_step(struct kvpd_tenant *t, uint64_t now)
{
	bool pressed = !kvpd_list_empty(&t->wanting) || t->over;

	if (t->charged > kvpd_share_now(t))
		kvpd_reclaim(t, NULL, NULL);
	/* What is emptied is emptied for the session that has waited longest. */
	if (!kvpd_list_empty(&t->wanting))
		t->writer = kvpd_container(t->wanting.next, struct kvpd_session, in_wanting);
	for (uint32_t i = 0; t->n_draining && i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (!x || !x->draining)
			continue;
		if (x->state == KVPD_EXTENT_OFFERED && !x->owner)
			retire(x);
		else if (x->state == KVPD_EXTENT_LIVE && !x->used)
			retire(x);
		else if (x->state == KVPD_EXTENT_LIVE)
			kvpd_move_out(x, KVPD_MOVE_BLOCKS, pressed, now);
	}
	t->writer = NULL;
}

/* One at a time: where pages are pinned the kernel takes long to refuse. */
static void prove_next(struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[(t->prove + i) % t->n_extents];

		if (x && x->state == KVPD_EXTENT_RETIRING && !x->n_unacked) {
			t->prove = x->id + 1;
			let_go(x);
			return;
		}
	}
}

void kvpd_extent_tick(struct kvpd_tenant *t, uint64_t now)
{
	t->warm = false;
	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (!x)
			continue;
		if (kvpd_extent_counts(x) && !x->used) {
			if (now - x->cls->last_take_ns > WARM_NS)
				kvpd_extent_drain(x);
			else
				t->warm = true;
		}
	}
	prove_next(t);
	if (t->n_draining || t->over)
		t->dirty = true;
}
