/* SPDX-License-Identifier: Apache-2.0 */
/* Draining the touch logs: each entry names the tip of a chain that a client has matched. */
#include "daemon/ledger/touch.h"

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

/* Returns how many blocks that took. */
static uint32_t touched(struct kvpd_tenant *t, uint64_t entry, uint64_t now)
{
	uint32_t tip = kvp_slot_block(entry), asked = (uint32_t)(entry >> 32) & 0xffff;
	struct kvp_evict_request req = { .tip = KVP_BLOCK_NONE, .blocks = asked };

	if (tip < t->layout.max_blocks && kvpd_block_state(t, tip) == KVP_BLOCK_LIVE) {
		const struct kvp_block *b = &t->view.blocks[tip];
		uint32_t space = kvp_shape_space(kvp_load_relaxed(&b->shape));

		req.tip = tip;
		req.matched = kvp_load_relaxed(&b->depth) + 1;
		if (req.matched > KVPD_TOUCH_DEPTH)
			return 1;
		if (req.blocks < req.matched)
			req.blocks = req.matched;
		req.tokens = req.blocks * t->view.spaces[space].canon.block_tokens;
	} else if (tip != KVP_BLOCK_NONE) {
		return 1; /* gone meanwhile, or nonsense */
	}
	kvp_evict_request(t->evict, &req, now);
	if (req.tip == KVP_BLOCK_NONE)
		return 1;
	kvp_evict_access_chain(t->evict, tip, now);
	while (tip != KVP_BLOCK_NONE) {
		struct kvp_block *b = &t->view.blocks[tip];

		kvp_bump(&b->hits, 1);
		kvp_store_relaxed(&b->touched_s, (uint32_t)(now / (1000 * KVPD_MS)));
		tip = kvp_load_relaxed(&b->parent);
	}
	return req.matched;
}

void kvpd_touch_apply(struct kvpd_session *s, uint64_t now)
{
	uint32_t spent = s->touch_debt;
	uint64_t entry;

	/*
	 * A log full of the tips of long chains is seconds of work, which all tenants would wait
	 * for. Entries that are left stay in the log; touches that the log has no room for
	 * then are lost.
	 */
	for (uint32_t i = 0; i < KVP_SHARDS && spent < KVPD_TOUCH_BLOCKS; i++) {
		uint32_t shard = s->touch_shard;

		while (spent < KVPD_TOUCH_BLOCKS &&
			kvp_touch_drain(s->page, shard, &s->touch_head[shard], &entry, 1))
			spent += touched(s->tenant, entry, now);
		s->touch_shard = (shard + 1) % KVP_SHARDS;
	}
	s->touch_debt = spent > KVPD_TOUCH_BLOCKS ? spent - KVPD_TOUCH_BLOCKS : 0;
}
