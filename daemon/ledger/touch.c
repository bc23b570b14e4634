/* SPDX-License-Identifier: Apache-2.0 */
/* Draining the touch logs: each entry names the tip of a chain that a client has matched. */
#include "daemon/ledger/touch.h"

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/ahead.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/curve.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

#define TOUCH_PIECE 64u /* blocks of a chain between two looks at the clock */
#define TOUCH_PART  8u  /* of the time, at most, goes into touches for evictions: an eighth */

/* An entry: the chain up from its tip is to be walked. */
static void touched(struct kvpd_session *s, uint64_t entry, uint64_t now)
{
	uint32_t tip = kvp_slot_block(entry), asked = (uint32_t)(entry >> 32) & 0xffff;
	struct kvp_evict_request req = { .tip = KVP_BLOCK_NONE, .blocks = asked };
	struct kvpd_tenant *t = s->tenant;

	if (tip < t->layout.max_blocks && kvpd_block_lives(t, tip)) {
		const struct kvp_block *b = &t->view.blocks[tip];
		uint32_t space = kvp_shape_space(kvp_load_relaxed(&b->shape));

		req.tip = tip;
		req.matched = kvp_load_relaxed(&b->depth) + 1;
		if (req.matched > KVPD_TOUCH_DEPTH)
			return;
		if (req.blocks < req.matched)
			req.blocks = req.matched;
		req.tokens = req.blocks * t->view.spaces[space].canon.block_tokens;
	} else if (tip != KVP_BLOCK_NONE) {
		return; /* gone meanwhile, or nonsense */
	}
	kvp_evict_request(t->evict, &req, now);
	kvpd_curve_begin(t->curve, s->id);
	if (req.tip != KVP_BLOCK_NONE) {
		kvpd_advice_used(t->advice, tip, s->id);
		kvpd_ahead_used(t, tip);
	}
	if (req.tip != KVP_BLOCK_NONE && kvp_evict_access_begin(t->evict, tip, now, &s->touch) == 0)
		s->touch_birth = kvp_word_birth(kvpd_block_word(t, tip));
}

/* A piece of the chain. What went meanwhile, with all that hung on it, ends the walk. */
static void walk_on(struct kvpd_session *s, uint64_t now)
{
	uint32_t id = s->touch.next, n = TOUCH_PIECE;
	struct kvpd_tenant *t = s->tenant;

	if (kvp_word_birth(kvpd_block_word(t, id)) != s->touch_birth ||
		kvp_evict_access_on(t->evict, &s->touch, n, now) < 0) {
		s->touch.next = KVP_BLOCK_NONE;
		return;
	}
	for (; n && id != KVP_BLOCK_NONE; n--) {
		struct kvp_block *b = &t->view.blocks[id];

		kvp_bump(&b->hits, 1);
		kvpd_curve_used(t->curve, kvpd_block_key(t, id), s->id);
		if (t->space[kvp_shape_space(kvp_load_relaxed(&b->shape))].codes)
			kvpd_precision_used(t, id);
		kvpd_part_touch(t, id, now);
		kvp_store_relaxed(&b->touched_s, (uint32_t)(now / (1000 * KVPD_MS)));
		id = kvp_load_relaxed(&b->parent);
	}
	if (id != KVP_BLOCK_NONE)
		s->touch_birth = kvp_word_birth(kvpd_block_word(t, id));
}

/*
 * A log full of the tips of long chains is seconds of work, and one such chain several slices.
 * Entries that are left stay in the log; touches that the log has no room for then are lost. Returns
 * the time.
 */
static uint64_t apply(struct kvpd_session *s, uint64_t now, uint64_t until_ns)
{
	uint32_t shards = kvp_touch_shards(s->page), looked = 0;
	uint64_t entry;

	while (now < until_ns) {
		uint32_t shard = s->touch_shard;

		if (s->touch.next != KVP_BLOCK_NONE) {
			walk_on(s, now);
			now = kvpd_now_ns();
		} else if ((shards >> shard & 1) &&
			   kvp_touch_drain(s->page, shard, &s->touch_head[shard], &entry, 1)) {
			touched(s, entry, now);
			now = kvpd_now_ns();
		} else {
			s->touch_shard = (shard + 1) % KVP_SHARDS;
			if (!shards || ++looked == KVP_SHARDS)
				break;
		}
	}
	return now;
}

uint64_t kvpd_touch_apply(struct kvpd_session *s, uint64_t now)
{
	return apply(s, now, now + KVPD_TOUCH_NS);
}

void kvpd_touch_all(struct kvpd_tenant *t, uint64_t now)
{
	uint64_t began = kvpd_now_ns(), until = began + KVPD_TOUCH_NS;
	uint32_t sessions = t->n_sessions;

	now = began;
	if (now < t->touch_ns)
		return;
	for (; sessions && now < until; sessions--) {
		if (t->touch_at == &t->sessions)
			t->touch_at = t->sessions.next;
		now = apply(
			kvpd_container(t->touch_at, struct kvpd_session, in_tenant), now, until);
		t->touch_at = t->touch_at->next;
	}
	now = kvpd_now_ns();
	t->touch_ns = now + (TOUCH_PART - 1) * (now - began);
}

void kvpd_touch_forget(struct kvpd_session *s)
{
	if (s->tenant->touch_at == &s->in_tenant)
		s->tenant->touch_at = s->in_tenant.next;
}
