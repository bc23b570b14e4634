/* SPDX-License-Identifier: Apache-2.0 */
/* Draining the touch logs: each entry names the tip of a chain that a client has matched. */
#include "daemon/ledger/touch.h"

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

#define TOUCH_PART 8u /* of the time, at most, goes into touches for evictions: an eighth */

static void touched(struct kvpd_tenant *t, uint64_t entry, uint64_t now)
{
	uint32_t tip = kvp_slot_block(entry), asked = (uint32_t)(entry >> 32) & 0xffff;
	struct kvp_evict_request req = { .tip = KVP_BLOCK_NONE, .blocks = asked };

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
	if (req.tip == KVP_BLOCK_NONE)
		return;
	kvp_evict_access_chain(t->evict, tip, now);
	while (tip != KVP_BLOCK_NONE) {
		struct kvp_block *b = &t->view.blocks[tip];

		kvp_bump(&b->hits, 1);
		kvp_store_relaxed(&b->touched_s, (uint32_t)(now / (1000 * KVPD_MS)));
		tip = kvp_load_relaxed(&b->parent);
	}
}

/*
 * A log full of the tips of long chains is seconds of work. Entries that are left stay in the log;
 * touches that the log has no room for then are lost. Returns the time.
 */
static uint64_t apply(struct kvpd_session *s, uint64_t now, uint64_t until_ns)
{
	uint32_t shards = kvp_touch_shards(s->page);
	uint64_t entry;

	for (uint32_t i = 0; shards && i < KVP_SHARDS && now < until_ns; i++) {
		uint32_t shard = s->touch_shard;

		while ((shards >> shard & 1) && now < until_ns &&
			kvp_touch_drain(s->page, shard, &s->touch_head[shard], &entry, 1)) {
			touched(s->tenant, entry, now);
			now = kvpd_now_ns();
		}
		s->touch_shard = (shard + 1) % KVP_SHARDS;
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
