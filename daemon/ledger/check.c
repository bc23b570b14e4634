/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvctl check: recomputes from the descriptors alone what every list, count and index should say,
 * and compares. On the ledger thread, so that nothing changes meanwhile; contents in slices,
 * between which the ledger serves everybody else.
 */
#include "daemon/ledger/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grant.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/limbo.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"

#define CANDIDATES 64u

struct check {
	struct kvpd_tenant *t;
	json_t *problems;
	size_t max;
	uint64_t wrong;
	uint32_t *children; /* of each block, counted from its children */
	uint8_t *cell;      /* times each recipe cell is used */
	uint32_t blocks, recipes;
	uint64_t payload_bytes;
	uint32_t payloads[KVP_MAX_SPACES]; /* blocks with one, of each space */
};

__attribute__((format(printf, 2, 3))) static void wrong(struct check *c, const char *format, ...)
{
	char text[256];
	int n = snprintf(text, sizeof(text), "tenant %s: ", c->t->name);
	va_list ap;

	c->wrong++;
	if (!c->problems || json_array_size(c->problems) >= c->max)
		return;
	if (n < 0 || (size_t)n >= sizeof(text))
		n = 0;
	va_start(ap, format);
	vsnprintf(text + n, sizeof(text) - (size_t)n, format, ap);
	va_end(ap);
	json_array_append_new(c->problems, json_string(text));
}

static uint32_t state_of(const struct check *c, uint32_t id)
{
	/* As good as LIVE: it is being switched over. */
	return kvpd_block_lives(c->t, id) ? KVP_BLOCK_LIVE : kvpd_block_state(c->t, id);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static void check_parent(struct check *c, uint32_t id)
{
	const struct kvp_block *b = &c->t->view.blocks[id], *p;
	uint32_t parent = kvp_load_relaxed(&b->parent);
	uint32_t space = kvp_shape_space(kvp_load_relaxed(&b->shape));

	if (parent == KVP_BLOCK_NONE) {
		if (kvp_load_relaxed(&b->depth))
			wrong(c, "block %u has no parent but depth %u", id,
				kvp_load_relaxed(&b->depth));
		return;
	}
	if (parent >= c->t->layout.max_blocks || state_of(c, parent) == KVP_BLOCK_FREE) {
		wrong(c, "block %u: its parent %u does not exist", id, parent);
		return;
	}
	p = &c->t->view.blocks[parent];
	c->children[parent]++;
	if (kvp_load_relaxed(&b->depth) != kvp_load_relaxed(&p->depth) + 1)
		wrong(c, "block %u: its depth does not follow its parent's", id);
	if (kvp_shape_space(kvp_load_relaxed(&p->shape)) != space)
		wrong(c, "block %u: its parent %u is of another space", id, parent);
	else if (kvp_shape_tokens(kvp_load_relaxed(&p->shape)) !=
		 c->t->view.spaces[space].canon.block_tokens)
		wrong(c, "block %u: its parent %u is a partial block", id, parent);
	if (state_of(c, id) == KVP_BLOCK_LIVE && state_of(c, parent) != KVP_BLOCK_LIVE)
		wrong(c, "block %u has a payload, its parent %u has not", id, parent);
}

static void check_recipe(struct check *c, uint32_t id)
{
	struct kvpd_tenant *t = c->t;
	const struct kvp_block *b = &t->view.blocks[id];
	uint32_t n = kvp_shape_tokens(kvp_load_relaxed(&b->shape));
	uint32_t cell = kvp_load_relaxed(&b->recipe), cells = kvp_recipe_cells(n);
	kvp_token tokens[KVP_BLOCK_TOKENS_MAX];
	struct kvp_key key;

	if (!n || n > KVP_BLOCK_TOKENS_MAX || cell >= t->layout.recipe_cells ||
		cells > t->layout.recipe_cells - cell) {
		wrong(c, "block %u: its recipe lies outside of the store", id);
		return;
	}
	for (uint32_t i = 0; i < cells; i++) {
		if (kvpd_runs_is_free(&t->cells, cell + i))
			wrong(c, "block %u: its recipe cell %u is in the free list", id, cell + i);
		if (c->cell[cell + i]++)
			wrong(c, "recipe cell %u belongs to two blocks, one is %u", cell + i, id);
	}
	if (kvp_recipe_read(&t->view, id, kvpd_block_word(t, id), tokens, n) != (int)n) {
		wrong(c, "block %u: its recipe cannot be read", id);
		return;
	}
	key = kvp_chain_key(kvpd_parent_key(t, id), tokens, n);
	if (!kvp_key_equal(key, kvpd_block_key(t, id)))
		wrong(c, "block %u: its key does not follow from its parent and tokens", id);
}

static void check_payload(struct check *c, uint32_t id, uint32_t tier, bool bytes)
{
	struct kvpd_tenant *t = c->t;
	const struct kvp_payload_desc *d = kvpd_block_payload(t, id, tier);
	uint32_t space = kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape));
	uint64_t where = kvp_load_relaxed(&d->where), offset = kvp_load_relaxed(&d->offset);
	uint64_t sum = kvp_load_relaxed(&d->checksum);
	struct kvpd_extent *x =
		kvp_where_extent(where) < t->n_extents ? t->extent[kvp_where_extent(where)] : NULL;
	uint64_t slot;

	if (!x || x->state != KVPD_EXTENT_LIVE) {
		wrong(c, "block %u: its payload's extent %u does not exist", id,
			kvp_where_extent(where));
		return;
	}
	slot = offset / x->cls->slot_bytes;
	if (offset % x->cls->slot_bytes || slot >= x->slots ||
		kvp_where_bytes(where) != t->view.spaces[space].block_bytes ||
		tier != x->cls->tier || t->space[space].cls != x->cls) {
		wrong(c, "block %u: its payload does not lie in a slot of its size", id);
		return;
	}
	if (x->slot[slot].block != id)
		wrong(c, "block %u: slot %" PRIu64 " of extent %u does not know of it", id, slot,
			x->id);
	c->payload_bytes += kvp_where_bytes(where);
	if (bytes && sum &&
		kvp_payload_checksum(kvpd_place_addr(kvpd_place_at(x, (uint32_t)slot)),
			kvp_where_bytes(where)) != sum)
		wrong(c, "block %u: its payload does not match its checksum", id);
}

/* Of a LIVE block, in all tiers. */
static void check_payloads(struct check *c, uint32_t id, bool bytes)
{
	if (kvpd_block_tier(c->t, id) == KVP_TIER_RECIPE)
		wrong(c, "block %u is live and has no payload", id);
	for (uint32_t tier = 0; tier < KVP_TIER_PAYLOADS; tier++)
		if (kvp_load_relaxed(&kvpd_block_payload(c->t, id, tier)->where))
			check_payload(c, id, tier, bytes);
}

static bool in_table(const struct kvp_bucket *table, uint32_t buckets, uint64_t hash, uint32_t id)
{
	kvp_block_id cand[CANDIDATES];
	uint32_t n = kvp_index_candidates(table, buckets, hash, cand, CANDIDATES);

	for (uint32_t i = 0; i < n; i++)
		if (cand[i] == id)
			return true;
	return n == CANDIDATES; /* cannot tell */
}

static void check_block(struct check *c, uint32_t id)
{
	struct kvpd_tenant *t = c->t;
	uint32_t state = state_of(c, id), space;
	bool cached = kvp_evict_contains(t->evict, id);
	const struct kvp_block *b = &t->view.blocks[id];

	if (kvpd_runs_is_free(&t->ids, id) != (state == KVP_BLOCK_FREE))
		wrong(c, "block %u: the free list and its state %u disagree", id, state);
	if (cached != (state == KVP_BLOCK_LIVE))
		wrong(c, "block %u: the policy and its state %u disagree", id, state);
	if (state == KVP_BLOCK_FREE)
		return;
	space = kvp_shape_space(kvp_load_relaxed(&b->shape));
	if (space >= KVP_MAX_SPACES) {
		wrong(c, "block %u: no such space", id);
		return;
	}
	if (!in_table(t->view.index, t->view.index_buckets, kvp_load_relaxed(&b->key_lo), id))
		wrong(c, "block %u is not in the index", id);
	check_parent(c, id);
	check_recipe(c, id);
	if (state == KVP_BLOCK_LIVE) {
		c->blocks++;
		c->payloads[space]++;
		check_payloads(c, id, false);
	} else if (state == KVP_BLOCK_RECIPE) {
		c->recipes++;
		if (kvpd_block_tier(t, id) != KVP_TIER_RECIPE)
			wrong(c, "block %u is a recipe but names a payload", id);
	} else {
		wrong(c, "block %u is being evicted by nobody", id);
	}
	if (t->block[id].flags & (KVPD_BLOCK_KEEP | KVPD_BLOCK_ASKED))
		wrong(c, "block %u: a flag of one step is left over", id);
}

static void check_counts(struct check *c)
{
	struct kvpd_tenant *t = c->t;
	const struct kvp_catalog_stats *st = &t->view.cat->stats;
	uint32_t listed = 0, childless = 0;

	for (uint32_t id = 0; id < t->layout.max_blocks; id++) {
		if (state_of(c, id) == KVP_BLOCK_FREE)
			continue;
		if (c->children[id] != t->block[id].children)
			wrong(c, "block %u has %u children, %u are counted", id, c->children[id],
				t->block[id].children);
		childless += state_of(c, id) == KVP_BLOCK_RECIPE && !c->children[id];
	}
	for (uint32_t id = t->recipe_old; id != KVP_BLOCK_NONE && listed <= childless;
		id = t->block[id].next, listed++)
		if (state_of(c, id) != KVP_BLOCK_RECIPE || c->children[id])
			wrong(c, "block %u is listed as a childless recipe", id);
	if (listed != childless)
		wrong(c, "%u childless recipes, %u are listed", childless, listed);
	if (c->blocks != t->n_blocks || c->blocks != kvp_load_relaxed(&st->blocks) ||
		c->blocks != kvp_evict_len(t->evict))
		wrong(c, "%u blocks, %u are counted", c->blocks, t->n_blocks);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (c->payloads[i] != t->space[i].payloads)
			wrong(c, "space %u has %u blocks, %u are counted", i, c->payloads[i],
				t->space[i].payloads);
	if (c->recipes != t->n_recipes || c->recipes != kvp_load_relaxed(&st->recipes))
		wrong(c, "%u recipes, %u are counted", c->recipes, t->n_recipes);
	if (c->payload_bytes != kvp_load_relaxed(&st->payload_bytes))
		wrong(c, "%" PRIu64 " bytes of payload, %" PRIu64 " are counted", c->payload_bytes,
			kvp_load_relaxed(&st->payload_bytes));
	if ((t->n_blocks > t->limits.max_blocks && !t->over) ||
		(t->n_recipes > t->limits.recipe_blocks && !(t->due & KVPD_DUE_ROOM)))
		wrong(c, "more blocks or recipes than the limits allow");
	for (uint32_t i = 0; i < t->layout.recipe_cells; i++)
		if (!c->cell[i] && !kvpd_runs_is_free(&t->cells, i))
			wrong(c, "recipe cell %u is lost", i);
	if (kvp_evict_assert_consistency(t->evict) < 0)
		wrong(c, "the eviction policy's state contradicts itself");
}

/* ---- indexes -------------------------------------------------------------------------------- */

static uint64_t tail_hash(const struct kvpd_tenant *t, uint32_t id)
{
	kvp_token first[KVP_TAIL_PREFIX];

	if (kvp_recipe_read(&t->view, id, kvpd_block_word(t, id), first, KVP_TAIL_PREFIX) !=
		(int)KVP_TAIL_PREFIX)
		return 0;
	return kvp_tail_hash(kvpd_parent_key(t, id), first);
}

/* Every entry names a published block and lies where that block's hash leads. */
static void check_table(
	struct check *c, const struct kvp_bucket *table, uint32_t buckets, bool tail)
{
	const char *what = tail ? "tail index" : "index";
	uint32_t entries = 0, published = c->blocks + c->recipes;

	for (uint32_t b = 0; b < buckets; b++) {
		for (uint32_t i = 0; i < KVP_BUCKET_ENTRIES; i++) {
			uint64_t e = kvp_load_relaxed(&table[b].entry[i]), hash;
			uint32_t id = (uint32_t)e - 1;

			if (!e)
				continue;
			entries++;
			if (id >= c->t->layout.max_blocks || state_of(c, id) == KVP_BLOCK_FREE) {
				wrong(c, "%s: bucket %u names block %u, which is free", what, b,
					id);
				continue;
			}
			hash = tail ? tail_hash(c->t, id)
				    : kvp_load_relaxed(&c->t->view.blocks[id].key_lo);
			if ((hash >> 32) != (e >> 32) || !in_table(table, buckets, hash, id))
				wrong(c, "%s: bucket %u holds block %u by a wrong hash", what, b,
					id);
		}
	}
	if (tail ? entries > published : entries != published)
		wrong(c, "%s: %u entries for %u blocks", what, entries, published);
}

/* ---- extents -------------------------------------------------------------------------------- */

static uint32_t count_free(const struct kvpd_extent *x)
{
	uint32_t n = 0;

	for (uint32_t i = x->free_head; i != KVP_BLOCK_NONE && n <= x->slots; i = x->slot[i].next) {
		if (i >= x->slots || x->slot[i].flags || x->slot[i].block != KVP_BLOCK_NONE)
			return UINT32_MAX;
		n++;
	}
	return n;
}

static bool is_granted(const struct check *c, struct kvpd_place p)
{
	for (struct kvpd_list *it = c->t->sessions.next; it != &c->t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

		if (s != p.extent->owner)
			continue;
		for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++)
			if (s->grant[i].state != KVPD_GRANT_FREE &&
				s->grant[i].place.extent == p.extent &&
				s->grant[i].place.slot == p.slot)
				return true;
	}
	return false;
}

static bool in_limbo(const struct check *c, struct kvpd_place p)
{
	for (struct kvpd_list *it = c->t->limbo.next; it != &c->t->limbo; it = it->next) {
		struct kvpd_limbo *l = kvpd_container(it, struct kvpd_limbo, link);

		for (uint32_t i = 0; i < l->n_places; i++)
			if (l->place[i].extent == p.extent && l->place[i].slot == p.slot)
				return true;
	}
	return false;
}

static void check_slot(struct check *c, struct kvpd_place p)
{
	const struct kvpd_slot *s = &p.extent->slot[p.slot];

	if (s->block != KVP_BLOCK_NONE) {
		struct kvpd_place lies;

		if (s->block >= c->t->layout.max_blocks ||
			state_of(c, s->block) != KVP_BLOCK_LIVE) {
			wrong(c, "extent %u slot %u holds block %u, which has no payload",
				p.extent->id, p.slot, s->block);
			return;
		}
		if (!kvpd_block_place(c->t, s->block, p.tier, &lies) || lies.extent != p.extent ||
			lies.slot != p.slot)
			wrong(c, "extent %u slot %u holds block %u, which lies elsewhere",
				p.extent->id, p.slot, s->block);
		if (!!(s->flags & KVPD_SLOT_GRANTED) !=
			!!(c->t->block[s->block].flags & KVPD_BLOCK_HELD))
			wrong(c, "block %u: its grant and its slot disagree", s->block);
	}
	if (!!(s->flags & KVPD_SLOT_GRANTED) != is_granted(c, p))
		wrong(c, "extent %u slot %u: granted by nobody, or not known to be", p.extent->id,
			p.slot);
	if (!!(s->flags & KVPD_SLOT_LIMBO) != in_limbo(c, p))
		wrong(c, "extent %u slot %u: in limbo for nobody", p.extent->id, p.slot);
	if ((s->flags & KVPD_SLOT_TARGET) && !c->t->n_move_jobs)
		wrong(c, "extent %u slot %u waits for a copy that nobody makes", p.extent->id,
			p.slot);
}

static void check_extents(struct check *c)
{
	struct kvpd_tenant *t = c->t;
	uint64_t charged = t->meta_bytes, arena = 0;

	for (uint32_t i = 0; i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];
		uint32_t used = 0;

		if (!x)
			continue;
		charged += x->bytes;
		arena += x->kind == KVP_EXTENT_ARENA ? x->bytes : 0;
		for (uint32_t s = 0; s < x->slots; s++) {
			if (!x->slot[s].flags && x->slot[s].block == KVP_BLOCK_NONE)
				continue;
			used++;
			check_slot(c, kvpd_place_at(x, s));
		}
		if (used != x->used || count_free(x) != x->slots - used)
			wrong(c, "extent %u: %u slots in use, %u counted, %u in the free list",
				x->id, used, x->used, count_free(x));
	}
	if (charged != t->charged || arena != t->arena_bytes)
		wrong(c, "%" PRIu64 " bytes are held, %" PRIu64 " are charged", charged,
			t->charged);
	if (t->charged > t->limits.share && !t->over)
		wrong(c, "%" PRIu64 " bytes are charged, the share is %" PRIu64, t->charged,
			t->limits.share);
}

static void check_classes(struct check *c)
{
	struct kvpd_tenant *t = c->t;

	for (uint32_t k = 0; k < t->n_classes; k++) {
		uint64_t slots = 0, n_free = 0;

		for (uint32_t i = 0; i < t->n_extents; i++) {
			const struct kvpd_extent *x = t->extent[i];

			if (!x || x->cls != &t->cls[k] || x->kind != KVP_EXTENT_VAULT ||
				x->state != KVPD_EXTENT_LIVE || x->draining)
				continue;
			slots += x->slots;
			n_free += x->slots - x->used;
		}
		if (slots != t->cls[k].vault_slots || n_free != t->cls[k].vault_free)
			wrong(c,
				"class of %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64
				" vault slots are free, %" PRIu64 " of %" PRIu64 " counted",
				t->cls[k].slot_bytes, n_free, slots, t->cls[k].vault_free,
				t->cls[k].vault_slots);
	}
}

static void check_sessions(struct check *c)
{
	struct kvpd_tenant *t = c->t;
	uint32_t sessions = 0, claims = 0, claims_of_sessions = 0, opens[KVP_MAX_SPACES] = { 0 };

	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);
		uint32_t grants = 0;

		sessions++;
		claims_of_sessions += s->n_claims;
		for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
			opens[i] += s->opens[i];
		for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++) {
			const struct kvpd_grant *g = &s->grant[i];

			if (g->state == KVPD_GRANT_FREE)
				continue;
			grants++;
			if (!(g->place.extent->slot[g->place.slot].flags & KVPD_SLOT_GRANTED))
				wrong(c, "session %u: grant %u names a slot that is not granted",
					s->id, i);
		}
		if (grants != s->n_grants)
			wrong(c, "session %u has %u grants, %u are counted", s->id, grants,
				s->n_grants);
	}
	for (uint32_t i = 0; i < KVP_MAX_CLAIMS; i++) {
		uint32_t owner = kvp_load_relaxed(&t->view.claims[i].session);
		struct kvpd_session *s = owner ? kvpd_session_find(t->ledger, owner) : NULL;

		claims += owner != 0;
		if (owner && (!s || s->tenant != t))
			wrong(c, "claim %u belongs to session %u, which is gone", i, owner);
	}
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (opens[i] != t->space[i].opens)
			wrong(c, "space %u is open %u times, %u are counted", i, opens[i],
				t->space[i].opens);
	if (sessions != t->n_sessions)
		wrong(c, "%u sessions, %u are counted", sessions, t->n_sessions);
	if (claims != t->n_claims || claims != claims_of_sessions)
		wrong(c, "%u claims, %u are counted, %u by sessions", claims, t->n_claims,
			claims_of_sessions);
}

uint64_t kvpd_check_tenant(struct kvpd_tenant *t, json_t *problems, size_t max)
{
	struct check c = { .t = t, .problems = problems, .max = max };

	c.children = calloc(t->layout.max_blocks, sizeof(*c.children));
	c.cell = calloc(t->layout.recipe_cells, sizeof(*c.cell));
	if (!c.children || !c.cell) {
		wrong(&c, "no memory to check");
		goto out;
	}
	for (uint32_t id = 0; id < t->layout.max_blocks; id++)
		check_block(&c, id);
	check_counts(&c);
	check_table(&c, t->view.index, t->view.index_buckets, false);
	check_table(&c, t->view.tail, t->view.tail_buckets, true);
	check_extents(&c);
	check_classes(&c);
	check_sessions(&c);
out:
	free(c.children);
	free(c.cell);
	return c.wrong;
}

uint64_t kvpd_check_payloads(struct kvpd_tenant *t, uint32_t *block, uint64_t bytes,
	json_t *problems, size_t max, uint64_t *ret_bytes)
{
	struct check c = { .t = t, .problems = problems, .max = max };

	for (; *block < t->layout.max_blocks && c.payload_bytes < bytes; (*block)++)
		if (state_of(&c, *block) == KVP_BLOCK_LIVE &&
			kvp_shape_space(kvp_load_relaxed(&t->view.blocks[*block].shape)) <
				KVP_MAX_SPACES)
			check_payloads(&c, *block, true);
	*ret_bytes = c.payload_bytes;
	return c.wrong;
}
