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

#define DOOMED_NS      (60000 * KVPD_MS) /* a deletion that stays blocked for so long is dropped */
#define DOOMED_PORTION 512u              /* looked at in one portion */

int kvpd_block_drop(struct kvpd_tenant *t, uint32_t id, bool forget, uint64_t now)
{
	struct kvp_evict_info info;
	kvp_block_id block = id;
	uint64_t word;
	int r;

	if (kvpd_block_kept(t, id))
		return -EBUSY;
	if (kvpd_block_state(t, id) == KVP_BLOCK_RECIPE)
		return forget ? kvpd_recipe_forget(t, id) : 0;
	if (kvpd_block_state(t, id) != KVP_BLOCK_LIVE)
		return -ENOENT;
	if (kvp_evict_peek(t->evict, id, &info) == 0 && info.children)
		return -ENOTEMPTY;
	word = kvp_block_mark(&t->view, id);
	r = kvpd_lease_prove(t, &block, 1) ? -EBUSY : kvp_evict_remove(t->evict, id, 0, now);
	if (r < 0) {
		kvp_block_unmark(&t->view, id, word);
		return r;
	}
	t->block[id].evicted = 0; /* not for room */
	kvpd_block_take(t, id, forget);
	kvpd_recipe_trim(t);
	return 0;
}

/*
 * The blocks from a leaf up as long as nothing else hangs on them and nothing but a lease may
 * protect them, marked; RECIPE ones are forgotten at once. `only`: with this flag. Returns how many
 * are in run[from..], and in *ret_next where the chain goes on (KVP_BLOCK_NONE: nowhere).
 */
static uint32_t mark_run(struct kvpd_tenant *t, uint32_t id, uint32_t only, kvp_block_id *run,
	uint64_t *word, uint32_t from, uint32_t *ret_next)
{
	uint32_t n = from, parent;

	for (; n < KVPD_PROOF && id != KVP_BLOCK_NONE; id = parent) {
		uint32_t state = kvpd_block_state(t, id);

		parent = kvp_load_relaxed(&t->view.blocks[id].parent);
		if ((state != KVP_BLOCK_LIVE && state != KVP_BLOCK_RECIPE) ||
			kvpd_block_kept(t, id) || (t->block[id].flags & only) != only ||
			t->block[id].children != (n > from ? 1 : 0)) {
			id = KVP_BLOCK_NONE;
			break;
		}
		if (state == KVP_BLOCK_RECIPE) {
			kvpd_recipe_forget(t, id);
			continue;
		}
		word[n] = kvp_block_mark(&t->view, id);
		run[n++] = id;
	}
	*ret_next = id;
	return n;
}

/* Takes those of n marked blocks that are not leased; returns how many. */
static uint32_t take_marked(struct kvpd_tenant *t, const kvp_block_id *run, const uint64_t *word,
	uint32_t n, uint64_t now)
{
	uint64_t leased = n ? kvpd_lease_prove(t, run, n) : 0;
	uint32_t gone = 0;

	for (uint32_t i = 0; i < n; i++) {
		/* The blocks above one that stays have a child, and stay as well. */
		if ((leased >> i & 1) || kvp_evict_remove(t->evict, run[i], 0, now) < 0) {
			kvp_block_unmark(&t->view, run[i], word[i]);
			continue;
		}
		t->block[run[i]].evicted = 0;
		kvpd_block_take(t, run[i], true);
		gone++;
	}
	return gone;
}

uint32_t kvpd_chain_drop(struct kvpd_tenant *t, uint32_t id, uint64_t now)
{
	kvp_block_id run[KVPD_PROOF];
	uint64_t word[KVPD_PROOF];
	uint32_t n = mark_run(t, id, 0, run, word, 0, &id);

	return take_marked(t, run, word, n, now) == n ? id : KVP_BLOCK_NONE;
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

/* Is it still there, and is it still the time to try? Else it is taken off the list. */
static bool still_doomed(struct kvpd_tenant *t, const struct kvpd_doomed *d, uint64_t now)
{
	uint64_t word = kvpd_block_word(t, d->block);

	if (kvp_word_birth(word) != d->birth || kvp_word_state(word) == KVP_BLOCK_FREE)
		return false;
	if (now < d->until_ns)
		return true;
	t->block[d->block].flags &= ~KVPD_BLOCK_DOOMED;
	return false;
}

/*
 * Goes through the list once, a portion at a time. Only blocks without children are tried, each
 * with what is doomed right above it; one proof serves all of a portion.
 */
bool kvpd_doomed_step(struct kvpd_tenant *t, uint64_t now)
{
	kvp_block_id run[KVPD_PROOF];
	uint64_t word[KVPD_PROOF];
	uint32_t n = 0, next, end = t->doomed_at + DOOMED_PORTION;
	uint32_t before = t->n_recipes, gone;

	(void)kvpd_lease_look(t, KVPD_LOOK_TIPS, false);
	for (; t->doomed_at < t->n_doomed && t->doomed_at < end && n < KVPD_PROOF; t->doomed_at++) {
		struct kvpd_doomed *d = &t->doomed[t->doomed_at];

		if (!still_doomed(t, d, now)) {
			/* The last one takes its place, and is met there. */
			*d = t->doomed[--t->n_doomed];
			t->doomed_at--;
		} else if (!t->block[d->block].children &&
			   !kvpd_leased(t, KVPD_LOOK_TIPS, d->block)) {
			n = mark_run(t, d->block, KVPD_BLOCK_DOOMED, run, word, n, &next);
		}
	}
	gone = take_marked(t, run, word, n, now);
	gone += before > t->n_recipes ? before - t->n_recipes : 0;
	kvp_bump(&t->view.cat->stats.deleted, gone);
	kvpd_recipe_trim(t);
	if (t->doomed_at < t->n_doomed)
		return true;
	t->doomed_at = 0;
	return false;
}
