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

/* While a batch is chosen: blocks above those of running sequences that go in it, and so the ends of what is left. */
struct ends {
	uint32_t n;
	uint32_t block[KVPD_EVICT_MAX];
};

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
	bool least; /* a running sequence keeps its first tokens */
	uint32_t floored;
	struct ends ends;
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

/* Is it among the first tokens of a sequence, of which each running one keeps a number? */
static bool is_first(const struct kvpd_tenant *t, kvp_block_id id)
{
	const struct kvp_block *b = &t->view.blocks[id];
	uint32_t space = kvp_shape_space(kvp_load_relaxed(&b->shape));

	return (uint64_t)kvp_load_relaxed(&b->depth) * t->view.spaces[space].canon.block_tokens <
	       t->limits.min_materialized;
}

/* The end of a running sequence, if what came before in this batch goes? */
static bool is_end(const struct kvpd_tenant *t, const struct ends *e, kvp_block_id id)
{
	for (uint32_t i = 0; i < e->n; i++)
		if (e->block[i] == id)
			return true;
	return kvpd_tip_any(t, id);
}

/* Such a block goes. */
static void end_goes(const struct kvpd_tenant *t, struct ends *e, kvp_block_id id)
{
	uint32_t up = kvp_load_relaxed(&t->view.blocks[id].parent), i = 0;

	while (i < e->n && e->block[i] != id)
		i++;
	if (i == KVPD_EVICT_MAX)
		return;
	e->block[i] = up;
	e->n += i == e->n;
}

/* Is it the least that a running sequence keeps? If not it may go. */
static bool is_least(struct search *q, kvp_block_id id)
{
	if (!is_end(q->t, &q->ends, id))
		return false;
	if (q->least && is_first(q->t, id))
		return true;
	end_goes(q->t, &q->ends, id);
	return false;
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
	if (kvpd_advice_spares(q->advice, id))
		return &q->advised;
	return !q->any_tip && is_least(q, id) ? &q->floored : NULL;
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
	q->floored = q->ends.n = 0;
	n = (uint32_t)kvp_evict_victims(q->t->evict, n, 0, is_protected, q, q->now, victim, n);
	if (!enough(q))
		return n;
	q->ends.n = 0;
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

/*
 * Is it time to take first tokens of running sequences? When there is nothing else: the search met all that there is,
 * or as many in a row as there are such sequences.
 */
static bool only_first(struct search *q)
{
	q->t->floored += q->floored;
	return q->floored && (!looked_enough(q) || q->t->floored >= q->t->n_tips);
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
		q.least = true;
		found = search(&q, n, victim);
		*ret_more = *ret_more || looked_enough(&q);
	}
	if (!found && only_first(&q)) {
		q.least = false;
		found = search(&q, n, victim);
		*ret_more = *ret_more || looked_enough(&q);
	}
	if (found)
		t->floored = 0;
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
	t->evicted_bytes +=
		kvp_where_bytes(kvp_load_relaxed(&kvpd_block_payload(t, id, KVP_TIER_DRAM)->where));
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

/*
 * Marked blocks go but for those that are leased: running sequences end above them. Returns which of them were among
 * the first tokens of one.
 */
static uint64_t shorten(
	struct kvpd_tenant *t, const kvp_block_id *victim, uint32_t n, uint64_t leased)
{
	struct ends ends = { 0 };
	uint64_t first = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (leased >> i & 1 || !is_end(t, &ends, victim[i]))
			continue;
		end_goes(t, &ends, victim[i]);
		first |= (uint64_t)is_first(t, victim[i]) << i;
	}
	if (ends.n)
		kvpd_tip_up(t);
	return first;
}

static int evict(struct kvpd_tenant *t, uint32_t n, enum purpose purpose, uint64_t now)
{
	kvp_block_id victim[KVPD_EVICT_MAX];
	uint64_t word[KVPD_EVICT_MAX], leased, first;
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
	for (uint32_t i = 0; i < n; i++)
		if (leased >> i & 1)
			kvp_block_unmark(&t->view, victim[i], word[i]);
	first = shorten(t, victim, n, leased);
	for (uint32_t i = 0; i < n; i++) {
		if (leased >> i & 1)
			continue;
		/* -EBUSY: a child of it in this batch stayed. */
		if (kvp_evict_remove(t->evict, victim[i], 1, now) < 0) {
			kvp_block_unmark(&t->view, victim[i], word[i]);
			continue;
		}
		t->yielded += first >> i & 1;
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
	uint32_t beyond;
	int gone = 0;

	kvpd_recipe_trim(t);
	if (t->n_blocks > t->limits.max_blocks) {
		beyond = t->n_blocks - t->limits.max_blocks;
		gone = kvpd_evict_some(t, beyond < KVPD_EVICT_MAX ? beyond : KVPD_EVICT_MAX, now);
	}
	t->room_vain = gone == -EAGAIN ? t->room_vain + 1 : 0;
	t->over = t->n_blocks > t->limits.max_blocks || t->charged > kvpd_share_now(t);
	/* Where much is protected the next tick goes on. */
	return gone && t->room_vain < VAIN && t->n_blocks > t->limits.max_blocks;
}
