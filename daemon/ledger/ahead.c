/* SPDX-License-Identifier: Apache-2.0 */
/* From a use to the blocks near it. */
#include "daemon/ledger/ahead.h"

#include "daemon/ledger/advice.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/warm.h"

void kvpd_ahead_used(struct kvpd_tenant *t, kvp_block_id tip)
{
	if (!t->ledger->n_media || !kvpd_advice_fetches(t->advice))
		return;
	t->ahead = (struct kvpd_ahead){ true, tip, kvp_word_birth(kvpd_block_word(t, tip)) };
	kvpd_due(t, KVPD_DUE_AHEAD);
}

/* The chain from the tip up, as far as a ranking looks; *ret_medium: where the first of it lies that lies on a device. */
static uint32_t climb(
	const struct kvpd_tenant *t, kvp_block_id id, kvp_block_id *ret_chain, uint32_t *ret_medium)
{
	uint32_t n = 0;

	for (; n < KVP_GRAPH_ACTIVE_MAX && id != KVP_BLOCK_NONE; n++) {
		struct kvpd_place p;

		ret_chain[n] = id;
		if (*ret_medium == KVPD_DRAM && kvpd_block_place(t, id, KVP_TIER_VRAM, &p))
			*ret_medium = p.extent->cls->medium;
		id = kvp_load_relaxed(&t->view.blocks[id].parent);
	}
	return n;
}

bool kvpd_ahead_step(struct kvpd_tenant *t, uint64_t now)
{
	kvp_block_id chain[KVP_GRAPH_ACTIVE_MAX], near[KVPD_ADVICE_AHEAD];
	uint32_t medium = KVPD_DRAM, n, tip = t->ahead.tip;

	/* Whoever waits for copies has the device for himself. */
	if (!t->ahead.asked || kvpd_warm_is_wanted(t))
		return false;
	t->ahead.asked = false;
	if (kvp_word_birth(kvpd_block_word(t, tip)) != t->ahead.birth || !kvpd_block_lives(t, tip))
		return false;
	n = climb(t, tip, chain, &medium);
	if (medium == KVPD_DRAM)
		return false;
	n = kvpd_advice_suggest(t->advice, chain, n, now, near);
	for (uint32_t i = 0; i < n && kvpd_warm_advised(t, medium, near[i]); i++)
		;
	return false;
}
