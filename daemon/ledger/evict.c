/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction: the policy orders, leases and the ledger's own reasons decide; see kvp_lease.h. */
#include "daemon/ledger/ledger.h"

#include <errno.h>
#include <string.h>

#define PRESSED_NS  (10000 * KVPD_MS) /* no tenant grows for so long after a relief */
#define RELIEF_PART 8                 /* of what is cached goes each time */
#define DOOMED_NS   (60000 * KVPD_MS) /* a deletion that stays blocked for so long is dropped */

/* ---- leases --------------------------------------------------------------------------------- */

uint32_t kvpd_scan_begin(struct kvpd_tenant *t)
{
	/* Before it wraps, so that two that begin together are still two. */
	if (t->scan >= UINT32_MAX - 1) {
		for (uint32_t i = 0; i < t->layout.max_blocks; i++)
			t->block[i].mark = 0;
		t->scan = 0;
	}
	return ++t->scan;
}

void kvpd_lease_marks(struct kvpd_tenant *t, bool chains)
{
	const uint64_t began = kvpd_now_ns();
	kvp_block_id id[KVPD_LEASES];

	kvpd_scan_begin(t);
	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);
		uint32_t n = kvp_lease_scan(s->page, id, NULL, KVPD_LEASES);

		for (uint32_t i = 0; i < n; i++) {
			uint32_t b = id[i];

			while (b < t->layout.max_blocks && t->block[b].mark != t->scan &&
				kvpd_block_state(t, b) != KVP_BLOCK_FREE) {
				t->block[b].mark = t->scan;
				if (chains)
					b = kvp_load_relaxed(&t->view.blocks[b].parent);
			}
		}
	}
	t->scan_ns = kvpd_now_ns() - began;
}

bool kvpd_leased(const struct kvpd_tenant *t, uint32_t block)
{
	return t->block[block].mark == t->scan;
}

static bool kept(const struct kvpd_tenant *t, uint32_t block)
{
	return (t->block[block].flags & (KVPD_BLOCK_MOVING | KVPD_BLOCK_HELD | KVPD_BLOCK_KEEP)) ||
	       (kvp_load_relaxed(&t->view.blocks[block].flags) & KVP_BLOCK_F_PINNED);
}

static int is_protected(void *ctx, kvp_block_id id)
{
	const struct kvpd_tenant *t = ctx;

	return kept(t, id) || kvpd_leased(t, id);
}

/* ---- taking payloads ------------------------------------------------------------------------ */

/* The block is EVICTING, unleased, and out of the policy. */
static void take_payload(struct kvpd_tenant *t, uint32_t id, bool forget)
{
	struct kvp_catalog_stats *st = &t->view.cat->stats;
	const struct kvp_payload_desc *d = &t->view.blocks[id].payload[KVP_TIER_DRAM];
	struct kvpd_place place = kvpd_block_place(t, id);

	t->n_blocks--;
	kvp_store_relaxed(&st->blocks, t->n_blocks);
	kvp_bump(&st->payload_bytes, -(uint64_t)kvp_where_bytes(kvp_load_relaxed(&d->where)));
	kvp_block_set_payload(&t->view, id, KVP_TIER_DRAM, 0, 0, 0);
	kvpd_slot_unblock(place);
	if (!t->block[id].children && (forget || !t->limits.recipe_blocks)) {
		kvpd_block_release(t, id);
		return;
	}
	kvp_block_moved(&t->view, id, KVP_BLOCK_RECIPE);
	t->n_recipes++;
	kvp_store_relaxed(&st->recipes, t->n_recipes);
	if (!t->block[id].children)
		kvpd_recipe_list(t, id, false);
}

bool kvpd_forget_oldest(struct kvpd_tenant *t)
{
	struct kvp_catalog_stats *st = &t->view.cat->stats;
	uint32_t id = t->recipe_old;

	while (id != KVP_BLOCK_NONE && (t->block[id].flags & KVPD_BLOCK_KEEP))
		id = t->block[id].next;
	if (id == KVP_BLOCK_NONE)
		return false;
	kvpd_recipe_unlist(t, id);
	t->n_recipes--;
	kvp_store_relaxed(&st->recipes, t->n_recipes);
	kvp_bump(&st->forgotten, 1);
	kvpd_block_release(t, id);
	return true;
}

static void trim_recipes(struct kvpd_tenant *t)
{
	while (t->n_recipes > t->limits.recipe_blocks)
		if (!kvpd_forget_oldest(t))
			break;
}

/*
 * Large enough that a scan of the leases serves several victims; small enough that the room kept
 * free on average, half of it, costs no hits: at 1/256 of the capacity a conversation trace lost
 * .0015 of hit ratio, at 1/1024 less than .0005.
 */
uint32_t kvpd_evict_batch(const struct kvpd_tenant *t)
{
	uint32_t n = t->capacity / 1024, more = t->n_sessions / 16;

	/* Many sessions make a scan dear: then more victims share it. */
	if (n < more)
		n = more < t->capacity / 256 ? more : t->capacity / 256;
	return n < 1 ? 1 : n > KVPD_EVICT_MAX ? KVPD_EVICT_MAX : n;
}

static void drain_touches(struct kvpd_tenant *t, uint64_t now)
{
	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next)
		kvpd_session_drain_touches(kvpd_container(it, struct kvpd_session, in_tenant), now);
}

uint32_t kvpd_evict_some(struct kvpd_tenant *t, uint32_t n, uint64_t now)
{
	kvp_block_id victim[KVPD_EVICT_MAX];
	uint64_t word[KVPD_EVICT_MAX];
	uint32_t gone = 0;

	drain_touches(t, now);
	/* A first look spares what is leased, so that hot blocks never flicker. */
	kvpd_lease_marks(t, false);
	n = (uint32_t)kvp_evict_victims(t->evict, n, 0, is_protected, t, now, victim, n);
	if (!n)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		word[i] = kvp_block_mark(&t->view, victim[i]);
	kvp_lease_fence();
	kvpd_lease_marks(t, false);
	for (uint32_t i = 0; i < n; i++) {
		/* -EBUSY: a child of it in this batch stayed. */
		if (kvpd_leased(t, victim[i]) ||
			kvp_evict_remove(t->evict, victim[i], 1, now) < 0) {
			kvp_block_unmark(&t->view, victim[i], word[i]);
			continue;
		}
		take_payload(t, victim[i], false);
		gone++;
	}
	kvp_bump(&t->view.cat->stats.evictions, gone);
	trim_recipes(t);
	return gone;
}

/* ---- single blocks -------------------------------------------------------------------------- */

static int drop_recipe(struct kvpd_tenant *t, uint32_t id)
{
	struct kvp_catalog_stats *st = &t->view.cat->stats;

	if (t->block[id].children)
		return -ENOTEMPTY;
	kvpd_recipe_unlist(t, id);
	t->n_recipes--;
	kvp_store_relaxed(&st->recipes, t->n_recipes);
	kvpd_block_release(t, id);
	return 0;
}

int kvpd_block_drop(struct kvpd_tenant *t, uint32_t id, bool forget, uint64_t now)
{
	uint64_t word;
	int r;

	if (kept(t, id))
		return -EBUSY;
	if (kvpd_block_state(t, id) == KVP_BLOCK_RECIPE)
		return forget ? drop_recipe(t, id) : 0;
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
	take_payload(t, id, forget);
	trim_recipes(t);
	return 0;
}

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

void kvpd_chain_drop(struct kvpd_tenant *t, uint32_t id, uint64_t now)
{
	uint32_t run[KVPD_EVICT_MAX], n, parent;
	uint64_t word[KVPD_EVICT_MAX];

	do {
		/* From the leaf up, as long as nothing else hangs on it. */
		for (n = 0; n < KVPD_EVICT_MAX && id != KVP_BLOCK_NONE; id = parent) {
			uint32_t state = kvpd_block_state(t, id);

			parent = kvp_load_relaxed(&t->view.blocks[id].parent);
			if (state == KVP_BLOCK_FREE || kept(t, id) ||
				t->block[id].children != (n ? 1 : 0))
				break;
			if (state == KVP_BLOCK_RECIPE) {
				drop_recipe(t, id);
				continue;
			}
			word[n] = kvp_block_mark(&t->view, id);
			run[n++] = id;
		}
		kvp_lease_fence();
		if (n)
			kvpd_lease_marks(t, false);
		for (uint32_t i = 0; i < n; i++) {
			/* What is above a block that stays has a child, and stays as well. */
			if (kvpd_leased(t, run[i]) ||
				kvp_evict_remove(t->evict, run[i], 0, now) < 0) {
				kvp_block_unmark(&t->view, run[i], word[i]);
				id = KVP_BLOCK_NONE;
				continue;
			}
			take_payload(t, run[i], true);
		}
	} while (n == KVPD_EVICT_MAX && id != KVP_BLOCK_NONE);
}

void kvpd_doomed_step(struct kvpd_tenant *t, uint64_t now)
{
	uint32_t n = t->n_doomed, kept_n = 0;

	/* One look at the leases for all of them; who is not spared by it gets one of its own. */
	if (n)
		kvpd_lease_marks(t, false);
	/* In order: whoever deletes a chain names its deepest block first. */
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

/* ---- relief --------------------------------------------------------------------------------- */

uint64_t kvpd_evict_up_to(struct kvpd_tenant *t, uint64_t want)
{
	uint64_t gone = 0, now = kvpd_now_ns();

	while (gone < want) {
		uint64_t n = want - gone < KVPD_EVICT_MAX ? want - gone : KVPD_EVICT_MAX;

		n = kvpd_evict_some(t, (uint32_t)n, now);
		if (!n)
			break;
		gone += n;
	}
	t->dirty = true;
	return gone;
}

static int relieve_on_ledger(struct kvpd_ledger *l, void *arg)
{
	uint64_t *evicted = arg;

	l->pressed_until_ns = kvpd_now_ns() + PRESSED_NS;
	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++) {
		struct kvpd_tenant *t = l->tenant[i];

		if (t)
			*evicted += kvpd_evict_up_to(t, t->n_blocks / RELIEF_PART + 1);
	}
	return 0;
}

int kvpd_relieve(struct kvpd_ledger *ledger, uint64_t *ret_evicted)
{
	uint64_t evicted = 0;
	int r = kvpd_ledger_ask(ledger, relieve_on_ledger, &evicted);

	if (r == 0)
		*ret_evicted = evicted;
	return r;
}
