/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction in batches, in the policy's order. */
#include "daemon/ledger/evict.h"

#include <errno.h>

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/lesson.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/relief.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tip.h"
#include "daemon/ledger/touch.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

#define VAIN 64u /* batches without a victim in a row */

/* ---- victims -------------------------------------------------------------------------------- */

struct search {
	struct kvpd_tenant *t;
	uint64_t now;
	struct kvpd_advice *advice; /* NULL: not asked, or not any more */
	bool any_tip; /* no chain that is being written loses blocks, while there are others */
	uint32_t refused;
	uint32_t leased;    /* of these, as the last look has it */
	uint32_t written;   /* only because somebody writes the chain */
	uint32_t advised;   /* only because a ranking would keep it */
	bool in_dram;       /* what has no payload in DRAM stays, while there is other */
	uint32_t elsewhere; /* only because of that */
	bool no_arenas;     /* likewise what lies in an arena: only its client gets that place */
	uint32_t theirs;
};

/*
 * The policy asks until it has enough, and a client can protect any number of blocks. So at some
 * point all is given to it, and what it then names is left alone: it counts as used, like what is
 * refused, and the next search begins behind it.
 */
static bool enough(const struct search *q)
{
	return q->refused >= KVPD_EVICT_REFUSED;
}

/* Does its payload lie where its client goes on writing? */
static bool in_arena(const struct kvpd_tenant *t, kvp_block_id id)
{
	struct kvpd_place p;

	return kvpd_block_place(t, id, KVP_TIER_DRAM, &p) && kvpd_extent_is_dram_arena(p.extent) &&
	       kvpd_extent_gives(p.extent);
}

/* Why a block is left alone; NULL: it is not. */
static uint32_t *why_spared(struct search *q, kvp_block_id id)
{
	static uint32_t otherwise;

	if (kvpd_block_kept(q->t, id) || kvpd_tip_now(q->t->writer, id, q->now))
		return &otherwise;
	if (kvpd_leased(q->t, KVPD_LOOK_TIPS, id))
		return &q->leased;
	if (q->in_dram && !kvpd_block_in_dram(q->t, id))
		return &q->elsewhere;
	if (q->no_arenas && in_arena(q->t, id))
		return &q->theirs;
	if (q->any_tip && kvpd_tip_any(q->t, id))
		return &q->written;
	return kvpd_advice_spares(q->advice, id) ? &q->advised : NULL;
}

static int is_protected(void *ctx, kvp_block_id id)
{
	struct search *q = ctx;
	uint32_t *why = enough(q) ? NULL : why_spared(q, id);

	if (!why)
		return 0;
	q->refused++;
	(*why)++;
	return 1;
}

static uint32_t search(struct search *q, uint32_t n, kvp_block_id *victim)
{
	uint32_t good = 0;

	q->refused = q->leased = q->written = q->advised = q->elsewhere = q->theirs = 0;
	n = (uint32_t)kvp_evict_victims(q->t->evict, n, 0, is_protected, q, q->now, victim, n);
	if (!enough(q))
		return n;
	while (good < n && !why_spared(q, victim[good]))
		good++;
	return good;
}

/* There may be victims where it did not look. */
static bool looked_enough(const struct search *q)
{
	return enough(q) || kvp_evict_cut_short(q->t->evict);
}

/*
 * Is it time to give up what lies in arenas? When there is nothing else: the search met all that there is, or as
 * many in a row, piece by piece.
 */
static bool only_arenas(struct search *q)
{
	q->t->spared += q->theirs;
	return q->theirs && (!looked_enough(q) || q->t->spared >= q->t->n_blocks);
}

/* For whom room is made. */
enum purpose {
	FOR_ANY,   /* a descriptor, or a slot wherever */
	FOR_DRAM,  /* what lies on a device alone stays, and so does what is above */
	FOR_VAULT, /* an extent that goes: blocks in arenas stay, while there are others */
};

/* Writes at most n victims; returns how many. *ret_more: not all that there is was looked at. */
static uint32_t choose(struct kvpd_tenant *t, uint32_t n, enum purpose purpose, uint64_t now,
	kvp_block_id *victim, bool *ret_more)
{
	struct search q = {
		.t = t,
		.now = now,
		.advice = kvpd_advice_consult(t->advice, now) ? t->advice : NULL,
		.any_tip = t->n_tips != 0,
		.in_dram = t->ledger->n_media != 0,
		.no_arenas = purpose == FOR_VAULT,
	};
	bool fresh = kvpd_lease_look(t, KVPD_LOOK_TIPS, false);
	uint32_t found = search(&q, n, victim);

	*ret_more = looked_enough(&q);
	/* It spared what is leased no more, perhaps, and there is nothing else. */
	if (!found && q.leased && !fresh) {
		*ret_more = !kvpd_lease_look(t, KVPD_LOOK_TIPS, true);
		found = search(&q, n, victim);
		*ret_more = *ret_more || looked_enough(&q);
	}
	if (!found && q.advised) {
		q.advice = NULL;
		found = search(&q, n, victim);
		*ret_more = *ret_more || looked_enough(&q);
	}
	if (found && q.no_arenas)
		t->spared = 0;
	if (!found && q.no_arenas && only_arenas(&q)) {
		q.no_arenas = false;
		q.advice = NULL;
		found = search(&q, n, victim);
		*ret_more = *ret_more || looked_enough(&q);
	}
	if (!found && q.elsewhere && purpose != FOR_DRAM) {
		q.in_dram = false;
		q.advice = NULL;
		found = search(&q, n, victim);
		*ret_more = *ret_more || looked_enough(&q);
	}
	if (!found && q.written) {
		q.any_tip = false;
		q.advice = NULL; /* which did not say of what was written that it would keep it */
		found = search(&q, n, victim);
		*ret_more = *ret_more || looked_enough(&q);
	}
	return found;
}

/*
 * Large enough that a proof serves several victims; small enough that the room kept free on
 * average, half of it, costs no hits: at 1/256 of the capacity a conversation trace lost .0015 of
 * hit ratio, at 1/1024 less than .0005.
 */
uint32_t kvpd_evict_batch(const struct kvpd_tenant *t)
{
	uint32_t n = t->capacity / 1024, more = t->n_sessions / 16;

	/* Many sessions make a proof dear: then more victims share it. */
	if (n < more)
		n = more < t->capacity / 256 ? more : t->capacity / 256;
	return n < 1 ? 1 : n > KVPD_EVICT_MAX ? KVPD_EVICT_MAX : n;
}

/*
 * Whoever comes back before so many others have gone as there are in the cache would have been held
 * by one of twice the size: it should rather have stayed.
 */
void kvpd_evict_returned(struct kvpd_tenant *t, uint32_t block)
{
	uint32_t gone = (uint32_t)kvp_load_relaxed(&t->view.cat->stats.evictions);
	uint32_t at = t->block[block].evicted;

	if (at && gone - at < t->capacity)
		t->reloads++;
	t->block[block].evicted = 0;
}

static uint32_t space_of(const struct kvpd_tenant *t, kvp_block_id id)
{
	return kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape));
}

/* It has left the policy. */
static void take(struct kvpd_tenant *t, kvp_block_id id)
{
	t->space[space_of(t, id)].evictions++;
	kvp_bump(&t->view.cat->stats.evictions, 1);
	t->block[id].evicted = (uint32_t)kvp_load_relaxed(&t->view.cat->stats.evictions);
	kvpd_block_take(t, id, false);
}

int kvpd_evict_marked(struct kvpd_tenant *t, uint32_t id, uint64_t now)
{
	int r = kvp_evict_remove(t->evict, id, 1, now);

	if (r < 0)
		return r;
	take(t, id);
	kvpd_due(t, KVPD_DUE_ROOM); /* there may be too many recipes now */
	return 0;
}

static int evict(struct kvpd_tenant *t, uint32_t n, enum purpose purpose, uint64_t now)
{
	kvp_block_id victim[KVPD_EVICT_MAX];
	uint64_t word[KVPD_EVICT_MAX], leased;
	bool more = false;
	int gone = 0;

	kvpd_touch_all(t, now);
	kvpd_lesson_on(t->lesson, t->evict);
	n = choose(t, n, purpose, now, victim, &more);
	if (!n)
		return more ? -EAGAIN : 0;
	for (uint32_t i = 0; i < n; i++)
		word[i] = kvp_block_mark(&t->view, victim[i]);
	leased = kvpd_lease_prove(t, victim, n);
	for (uint32_t i = 0; i < n; i++) {
		/* -EBUSY: a child of it in this batch stayed. */
		if ((leased >> i & 1) || kvp_evict_remove(t->evict, victim[i], 1, now) < 0) {
			kvp_block_unmark(&t->view, victim[i], word[i]);
			continue;
		}
		take(t, victim[i]);
		gone++;
	}
	kvpd_recipe_trim(t);
	return gone ? gone : -EAGAIN;
}

int kvpd_evict_some(struct kvpd_tenant *t, uint32_t n, uint64_t now)
{
	return evict(t, n, FOR_ANY, now);
}

int kvpd_evict_in_dram(struct kvpd_tenant *t, uint32_t n, uint64_t now)
{
	return evict(t, n, FOR_DRAM, now);
}

int kvpd_evict_for_vault(struct kvpd_tenant *t, uint32_t n, uint64_t now)
{
	return evict(t, n, FOR_VAULT, now);
}

bool kvpd_room_step(struct kvpd_tenant *t, uint64_t now)
{
	int gone = 0;

	kvpd_recipe_trim(t);
	if (t->n_blocks > t->limits.max_blocks)
		gone = kvpd_evict_some(t, KVPD_EVICT_MAX, now);
	t->room_vain = gone == -EAGAIN ? t->room_vain + 1 : 0;
	t->over = t->n_blocks > t->limits.max_blocks || t->charged > kvpd_share_now(t);
	/* Where much is protected the next tick goes on. */
	return gone && t->room_vain < VAIN && t->n_blocks > t->limits.max_blocks;
}
