/* SPDX-License-Identifier: Apache-2.0 */
/* Single blocks that are to go, as far as leases and the ledger's own reasons allow. */
#include "daemon/ledger/delete.h"

#include <errno.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

#define DOOMED_NS (60000 * KVPD_MS) /* a deletion that stays blocked for so long is dropped */

int kvpd_block_drop(struct kvpd_tenant *t, uint32_t id, bool forget, uint64_t now)
{
	uint64_t word;
	int r;

	if (kvpd_block_kept(t, id))
		return -EBUSY;
	if (kvpd_block_state(t, id) == KVP_BLOCK_RECIPE)
		return forget ? kvpd_recipe_forget(t, id) : 0;
	if (kvpd_block_state(t, id) != KVP_BLOCK_LIVE)
		return -ENOENT;
	kvpd_lease_marks(t, false);
	if (kvpd_leased(t, id))
		return -EBUSY;
	word = kvp_block_mark(&t->view, id);
	kvp_lease_fence();
	kvpd_lease_marks(t, false);
	r = kvpd_leased(t, id) ? -EBUSY : kvp_evict_remove(t->evict, id, 0, now);
	if (r < 0) {
		bool leased = kvpd_leased(t, id);

		kvp_block_unmark(&t->view, id, word);
		return leased ? -EBUSY : -ENOTEMPTY;
	}
	kvpd_block_take(t, id, forget);
	kvpd_recipe_trim(t);
	return 0;
}

void kvpd_chain_drop(struct kvpd_tenant *t, uint32_t id, uint64_t now)
{
	uint32_t run[KVPD_EVICT_MAX], n, parent;
	uint64_t word[KVPD_EVICT_MAX];

	do {
		/* From the leaf up, as long as nothing else hangs on it. */
		for (n = 0; n < KVPD_EVICT_MAX && id != KVP_BLOCK_NONE; id = parent) {
			uint32_t state = kvpd_block_state(t, id);

			parent = kvp_load_relaxed(&t->view.blocks[id].parent);
			if (state == KVP_BLOCK_FREE || kvpd_block_kept(t, id) ||
				t->block[id].children != (n ? 1 : 0))
				break;
			if (state == KVP_BLOCK_RECIPE) {
				kvpd_recipe_forget(t, id);
				continue;
			}
			word[n] = kvp_block_mark(&t->view, id);
			run[n++] = id;
		}
		kvp_lease_fence();
		if (n)
			kvpd_lease_marks(t, false);
		for (uint32_t i = 0; i < n; i++) {
			/* The blocks above one that stays have a child, and stay as well. */
			if (kvpd_leased(t, run[i]) ||
				kvp_evict_remove(t->evict, run[i], 0, now) < 0) {
				kvp_block_unmark(&t->view, run[i], word[i]);
				id = KVP_BLOCK_NONE;
				continue;
			}
			kvpd_block_take(t, run[i], true);
		}
	} while (n == KVPD_EVICT_MAX && id != KVP_BLOCK_NONE);
}

/* ---- deletions that wait -------------------------------------------------------------------- */

int kvpd_doom(struct kvpd_tenant *t, uint32_t block, uint64_t now)
{
	if (t->block[block].flags & KVPD_BLOCK_DOOMED)
		return 0;
	if (t->n_doomed == KVPD_DOOMED)
		return -EAGAIN;
	t->block[block].flags |= KVPD_BLOCK_DOOMED;
	t->doomed[t->n_doomed++] = (struct kvpd_doomed){
		.block = block,
		.birth = kvp_word_birth(kvpd_block_word(t, block)),
		.until_ns = now + DOOMED_NS,
	};
	return 0;
}

void kvpd_doomed_step(struct kvpd_tenant *t, uint64_t now)
{
	uint32_t n = t->n_doomed, kept_n = 0;

	/* One look at the leases for all of them; a block that it does not spare gets its own. */
	if (n)
		kvpd_lease_marks(t, false);
	/* In order: a client that deletes a chain names its deepest block first. */
	for (uint32_t i = 0; i < n; i++) {
		struct kvpd_doomed d = t->doomed[i];
		uint64_t word = kvpd_block_word(t, d.block);
		int r;

		if (kvp_word_birth(word) != d.birth || kvp_word_state(word) == KVP_BLOCK_FREE)
			continue;
		r = kvpd_leased(t, d.block) ? -EBUSY : kvpd_block_drop(t, d.block, true, now);
		if (r == 0)
			kvp_bump(&t->view.cat->stats.deleted, 1);
		else if (now < d.until_ns)
			t->doomed[kept_n++] = d;
		else
			t->block[d.block].flags &= ~KVPD_BLOCK_DOOMED;
	}
	t->n_doomed = kept_n;
}
