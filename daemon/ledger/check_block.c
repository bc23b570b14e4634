/* SPDX-License-Identifier: Apache-2.0 */
/* kvctl check: what one block must fulfil, whatever others do. */
#include <inttypes.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/check.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"

#define CANDIDATES 64u

static void check_parent(struct kvpd_check *c, uint32_t id)
{
	const struct kvp_block *b = &c->t->view.blocks[id], *p;
	uint32_t parent = kvp_load_relaxed(&b->parent);
	uint32_t space = kvp_shape_space(kvp_load_relaxed(&b->shape));

	if (parent == KVP_BLOCK_NONE) {
		if (kvp_load_relaxed(&b->depth))
			kvpd_check_wrong(c, "block %u has no parent but depth %u", id,
				kvp_load_relaxed(&b->depth));
		return;
	}
	if (kvp_load_relaxed(&b->shape) & KVP_SHAPE_SALTED)
		kvpd_check_wrong(c, "block %u has a parent and a salt", id);
	if (parent >= c->t->layout.max_blocks || kvpd_check_state(c, parent) == KVP_BLOCK_FREE) {
		kvpd_check_wrong(c, "block %u: its parent %u does not exist", id, parent);
		return;
	}
	p = &c->t->view.blocks[parent];
	c->children[parent]++;
	c->live[parent] += kvpd_check_state(c, id) == KVP_BLOCK_LIVE;
	if (kvp_load_relaxed(&b->depth) != kvp_load_relaxed(&p->depth) + 1)
		kvpd_check_wrong(c, "block %u: its depth does not follow its parent's", id);
	if (kvp_shape_space(kvp_load_relaxed(&p->shape)) != space)
		kvpd_check_wrong(c, "block %u: its parent %u is of another space", id, parent);
	else if (kvp_shape_tokens(kvp_load_relaxed(&p->shape)) !=
		 c->t->view.spaces[space].canon.block_tokens)
		kvpd_check_wrong(c, "block %u: its parent %u is a partial block", id, parent);
	if (kvpd_check_state(c, id) == KVP_BLOCK_LIVE &&
		kvpd_check_state(c, parent) != KVP_BLOCK_LIVE)
		kvpd_check_wrong(c, "block %u has a payload, its parent %u has not", id, parent);
}

static void check_recipe(struct kvpd_check *c, uint32_t id)
{
	struct kvpd_tenant *t = c->t;
	const struct kvp_block *b = &t->view.blocks[id];
	uint32_t shape = kvp_load_relaxed(&b->shape), n = kvp_shape_tokens(shape);
	uint32_t cell = kvp_load_relaxed(&b->recipe), cells = kvp_shape_cells(shape);
	kvp_token tokens[KVP_BLOCK_TOKENS_MAX];
	struct kvp_key key;

	if (!n || n > KVP_BLOCK_TOKENS_MAX || cell >= t->layout.recipe_cells ||
		cells > t->layout.recipe_cells - cell) {
		kvpd_check_wrong(c, "block %u: its recipe lies outside of the store", id);
		return;
	}
	for (uint32_t i = 0; i < cells; i++) {
		if (kvpd_runs_is_free(&t->cells, cell + i))
			kvpd_check_wrong(c, "block %u: its recipe cell %u is in the free list", id,
				cell + i);
		c->cell[cell + i] += c->cell[cell + i] < UINT8_MAX;
	}
	if (kvp_recipe_read(&t->view, id, kvpd_block_word(t, id), tokens, n) != (int)n) {
		kvpd_check_wrong(c, "block %u: its recipe cannot be read", id);
		return;
	}
	key = kvp_chain_key(kvpd_parent_key(t, id), tokens, n);
	if (!kvp_key_equal(key, kvpd_block_key(t, id)))
		kvpd_check_wrong(
			c, "block %u: its key does not follow from its parent and tokens", id);
}

/* Is this the class for blocks of the space in the extent's medium? */
static bool is_class(
	const struct kvpd_tenant *t, const struct kvpd_class *c, uint32_t space, uint32_t width)
{
	uint64_t bytes = kvpd_width_bytes(t, space, width);

	if (c->medium == KVPD_DRAM)
		return width ? c->slot_bytes == kvpd_slot_bytes(bytes) : t->space[space].cls == c;
	return c->slot_bytes == kvpd_device_slot(bytes);
}

/* May a payload of the space have this width? */
static bool is_width(const struct kvpd_tenant *t, uint32_t space, uint32_t width)
{
	const struct kvpd_codes *codes = t->space[space].codes;

	return !width || (codes && width <= codes->lowest);
}

static void check_payload(struct kvpd_check *c, uint32_t id, uint32_t tier)
{
	struct kvpd_tenant *t = c->t;
	const struct kvp_payload_desc *d = kvpd_block_payload(t, id, tier);
	uint32_t space = kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape));
	uint64_t where = kvp_load_relaxed(&d->where), offset = kvp_load_relaxed(&d->offset);
	struct kvpd_extent *x =
		kvp_where_extent(where) < t->n_extents ? t->extent[kvp_where_extent(where)] : NULL;
	uint32_t width = kvp_where_codec(where);
	uint64_t slot;

	if (!x || x->state != KVPD_EXTENT_LIVE) {
		kvpd_check_wrong(c, "block %u: its payload's extent %u does not exist", id,
			kvp_where_extent(where));
		return;
	}
	slot = offset / x->cls->slot_bytes;
	if (offset % x->cls->slot_bytes || slot >= x->slots || !is_width(t, space, width) ||
		kvp_where_bytes(where) != kvpd_width_bytes(t, space, width) ||
		tier != x->cls->tier || !is_class(t, x->cls, space, width)) {
		kvpd_check_wrong(c, "block %u: its payload does not lie in a slot of its size", id);
		return;
	}
	if (x->slot[slot].block != id)
		kvpd_check_wrong(c, "block %u: slot %" PRIu64 " of extent %u does not know of it",
			id, slot, x->id);
	c->sum.payload_bytes += kvp_where_bytes(where);
	c->sum.bytes[space] += kvp_where_bytes(where);
	if (tier == KVP_TIER_DRAM) {
		c->sum.width[space][width].blocks++;
		c->sum.width[space][width].bytes += kvp_where_bytes(where);
	}
	if (x->cls->medium == KVPD_DRAM)
		return;
	c->sum.on[x->cls->medium - 1]++;
	if (!kvp_evict_contains(t->part[x->cls->medium - 1].evict, id))
		kvpd_check_wrong(c, "block %u lies on device %u, whose policy does not know it", id,
			x->cls->medium - 1);
}

/* Of a LIVE block, in all tiers. */
static void check_payloads(struct kvpd_check *c, uint32_t id)
{
	if (kvpd_block_tier(c->t, id) == KVP_TIER_RECIPE)
		kvpd_check_wrong(c, "block %u is live and has no payload", id);
	for (uint32_t tier = 0; tier < KVP_TIER_PAYLOADS; tier++)
		if (kvp_load_relaxed(&kvpd_block_payload(c->t, id, tier)->where))
			check_payload(c, id, tier);
}

bool kvpd_check_in_table(
	const struct kvp_bucket *table, uint32_t buckets, uint64_t hash, uint32_t id)
{
	kvp_block_id cand[CANDIDATES];
	uint32_t n = kvp_index_candidates(table, buckets, hash, cand, CANDIDATES);

	for (uint32_t i = 0; i < n; i++)
		if (cand[i] == id)
			return true;
	return n == CANDIDATES; /* cannot tell */
}

/* Does the policy see it as the catalog does? */
static void check_policy(struct kvpd_check *c, uint32_t id)
{
	const struct kvp_block *b = &c->t->view.blocks[id];
	uint32_t space = kvp_shape_space(kvp_load_relaxed(&b->shape)), parent;
	struct kvp_evict_info info;
	uint64_t where;

	if (kvp_evict_peek(c->t->evict, id, &info) < 0)
		return;
	parent = kvp_load_relaxed(&b->parent);
	/* In a space of keys another block may be evicted after it, and the catalog has no parents. */
	if (c->t->view.spaces[space].canon.key_bytes &&
		kvp_evict_contains(c->t->evict, info.parent) &&
		kvp_shape_space(kvp_load_relaxed(&c->t->view.blocks[info.parent].shape)) == space) {
		parent = info.parent;
		c->live[parent]++;
	}
	where = kvp_load_relaxed(&kvpd_block_payload(c->t, id, KVP_TIER_DRAM)->where);
	if (info.parent != parent || info.bytes != (where ? kvp_where_bytes(where)
							  : c->t->view.spaces[space].block_bytes))
		kvpd_check_wrong(c, "block %u: the policy has another parent or size of it", id);
}

void kvpd_check_block(struct kvpd_check *c, uint32_t id)
{
	struct kvpd_tenant *t = c->t;
	uint32_t state = kvpd_check_state(c, id), space;
	bool cached = kvp_evict_contains(t->evict, id);
	const struct kvp_block *b = &t->view.blocks[id];

	if (kvpd_runs_is_free(&t->ids, id) != (state == KVP_BLOCK_FREE))
		kvpd_check_wrong(c, "block %u: the free list and its state %u disagree", id, state);
	if (cached != (state == KVP_BLOCK_LIVE))
		kvpd_check_wrong(c, "block %u: the policy and its state %u disagree", id, state);
	if (state == KVP_BLOCK_FREE)
		return;
	space = kvp_shape_space(kvp_load_relaxed(&b->shape));
	if (space >= KVP_MAX_SPACES) {
		kvpd_check_wrong(c, "block %u: no such space", id);
		return;
	}
	if (!kvpd_check_in_table(
		    t->view.index, t->view.index_buckets, kvp_load_relaxed(&b->key_lo), id))
		kvpd_check_wrong(c, "block %u is not in the index", id);
	check_parent(c, id);
	check_recipe(c, id);
	if (state == KVP_BLOCK_LIVE) {
		c->sum.blocks++;
		c->sum.payloads[space]++;
		check_payloads(c, id);
		check_policy(c, id);
		c->sum.only += kvpd_block_only_there(t, id);
	} else if (state == KVP_BLOCK_RECIPE) {
		c->sum.recipes++;
		if (kvpd_block_tier(t, id) != KVP_TIER_RECIPE)
			kvpd_check_wrong(c, "block %u is a recipe but names a payload", id);
	} else {
		kvpd_check_wrong(c, "block %u is being evicted by nobody", id);
	}
	if (t->block[id].flags & (KVPD_BLOCK_KEEP | KVPD_BLOCK_ASKED))
		kvpd_check_wrong(c, "block %u: a flag of one step is left over", id);
}
