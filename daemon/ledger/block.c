/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: their descriptors, payloads and places, from publishing to the free list. */
#include "daemon/ledger/block.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "daemon/ledger/advice.h"
#include "daemon/ledger/behind.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"

/* Blocks that may share a key's index tag; more than that is a collision in all but name. */
#define CANDIDATES 16u

/* ---- asking --------------------------------------------------------------------------------- */

struct kvp_key kvpd_block_key(const struct kvpd_tenant *t, uint32_t block)
{
	const struct kvp_block *b = &t->view.blocks[block];

	return (struct kvp_key){ kvp_load_relaxed(&b->key_lo), kvp_load_relaxed(&b->key_hi) };
}

struct kvp_key kvpd_root_key(const struct kvpd_tenant *t, uint32_t space, const kvp_token *salt)
{
	const struct kvp_shm_space *s = &t->view.spaces[space];
	struct kvp_key root = { s->root_lo, s->root_hi };

	return salt ? kvp_salted_root(root, salt) : root;
}

struct kvp_key kvpd_parent_key(const struct kvpd_tenant *t, uint32_t block)
{
	const struct kvp_block *b = &t->view.blocks[block];
	uint32_t parent = kvp_load_relaxed(&b->parent);
	kvp_token salt[KVP_SALT_TOKENS];
	bool salted;

	if (parent != KVP_BLOCK_NONE)
		return kvpd_block_key(t, parent);
	salted = kvp_recipe_salt(&t->view, block, kvpd_block_word(t, block), salt) > 0;
	return kvpd_root_key(t, kvp_shape_space(kvp_load_relaxed(&b->shape)), salted ? salt : NULL);
}

unsigned kvpd_block_kept(const struct kvpd_tenant *t, uint32_t block)
{
	uint32_t flags = t->block[block].flags;
	bool pinned = kvp_load_relaxed(&t->view.blocks[block].flags) & KVP_BLOCK_F_PINNED;

	return (flags & KVPD_BLOCK_HELD ? KVPD_KEPT_GRANTED : 0) | (pinned ? KVPD_KEPT_PINNED : 0) |
	       (flags & (KVPD_BLOCK_MOVING | KVPD_BLOCK_BEHIND) ? KVPD_KEPT_MOVING : 0) |
	       (flags & KVPD_BLOCK_KEEP ? KVPD_KEPT_STEP : 0);
}

uint32_t kvpd_block_tier(const struct kvpd_tenant *t, uint32_t block)
{
	uint32_t tier = 0;

	while (tier < KVP_TIER_PAYLOADS &&
		!kvp_load_relaxed(&kvpd_block_payload(t, block, tier)->where))
		tier++;
	return tier < KVP_TIER_PAYLOADS ? tier : KVP_TIER_RECIPE;
}

bool kvpd_block_place(
	const struct kvpd_tenant *t, uint32_t block, uint32_t tier, struct kvpd_place *ret_place)
{
	const struct kvp_payload_desc *d = kvpd_block_payload(t, block, tier);
	uint64_t where = kvp_load_relaxed(&d->where);
	struct kvpd_extent *x;

	if (!where)
		return false;
	x = t->extent[kvp_where_extent(where)];
	*ret_place =
		kvpd_place_at(x, (uint32_t)(kvp_load_relaxed(&d->offset) / x->cls->slot_bytes));
	return true;
}

bool kvpd_block_granted(const struct kvpd_tenant *t, uint32_t block)
{
	struct kvpd_place p;

	for (uint32_t tier = 0; tier < KVP_TIER_PAYLOADS; tier++)
		if (kvpd_block_place(t, block, tier, &p) &&
			(p.extent->slot[p.slot].flags & KVPD_SLOT_GRANTED))
			return true;
	return false;
}

/* Is it the published block with this id, in any state? */
static int is_block(const struct kvpd_tenant *t, kvp_block_id id, const struct kvpd_new_block *b)
{
	struct kvp_hit hit;

	if (b->salt)
		return kvp_block_salted_is(&t->view, id, b->space, b->salt, b->tokens, b->n_tokens,
			KVP_TIERS_NONE, &hit);
	return kvp_block_is(
		&t->view, id, b->space, b->parent, b->tokens, b->n_tokens, KVP_TIERS_NONE, &hit);
}

int kvpd_block_lookup(
	const struct kvpd_tenant *t, const struct kvpd_new_block *b, uint32_t *ret_block)
{
	kvp_block_id id[CANDIDATES];
	uint32_t n = kvp_index_candidates(
		t->view.index, t->view.index_buckets, b->key.lo, id, CANDIDATES);

	for (uint32_t i = 0; i < n; i++) {
		if (is_block(t, id[i], b)) {
			*ret_block = id[i];
			return 1;
		}
		if (kvp_key_equal(kvpd_block_key(t, id[i]), b->key))
			return -EEXIST;
	}
	return 0;
}

uint32_t kvpd_block_keyed(const struct kvpd_tenant *t, uint32_t space, struct kvp_key key)
{
	kvp_block_id id[CANDIDATES];
	uint32_t n =
		kvp_index_candidates(t->view.index, t->view.index_buckets, key.lo, id, CANDIDATES);

	for (uint32_t i = 0; i < n; i++)
		if (kvp_key_equal(kvpd_block_key(t, id[i]), key) && kvpd_block_lives(t, id[i]) &&
			kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id[i]].shape)) == space &&
			kvp_evict_contains(t->evict, id[i]))
			return id[i];
	return KVP_BLOCK_NONE;
}

uint32_t kvpd_block_after(const struct kvpd_tenant *t, uint32_t block)
{
	struct kvp_evict_info info;

	return kvp_evict_peek(t->evict, block, &info) == 0 ? info.parent : KVP_BLOCK_NONE;
}

/* ---- new blocks ----------------------------------------------------------------------------- */

/*
 * What one commit may do for its room. A client can protect any number of blocks and cut the recipe
 * store into any pieces; a commit that finds no room within this is refused, and the next one goes
 * on where it ended.
 */
#define ROOM_BATCHES 4u  /* evictions */
#define ROOM_RECIPES 64u /* recipes forgotten */

static bool make_room(struct kvpd_tenant *t, uint64_t now)
{
	for (uint32_t i = 0; i < ROOM_BATCHES && t->n_blocks >= t->limits.max_blocks; i++)
		if (!kvpd_evict_some(t, kvpd_evict_batch(t), now))
			break;
	return t->n_blocks < t->limits.max_blocks;
}

/* A recipe goes, or blocks do; false: neither can, or this commit has done enough. */
static bool make_cells(struct kvpd_tenant *t, uint64_t now, uint32_t *work)
{
	if (*work >= ROOM_RECIPES)
		return false;
	*work += 1;
	if (kvpd_recipe_forget_oldest(t))
		return true;
	*work += ROOM_RECIPES / ROOM_BATCHES;
	return kvpd_evict_some(t, kvpd_evict_batch(t), now) != 0;
}

KVP_ABI_ASSERT(KVP_BLOCK_TOKENS_MAX + KVP_SALT_TOKENS <= KVPD_RUN_MAX * KVP_RECIPE_CELL,
	"a run has room for the largest recipe");

static uint32_t new_cells(const struct kvpd_new_block *b)
{
	return kvp_shape_cells(b->n_tokens | (b->salt ? KVP_SHAPE_SALTED : 0));
}

/* Descriptor and recipe cells behind the parent's if they are free, so that chains lie in order. */
static bool take_descriptor(struct kvpd_tenant *t, const struct kvpd_new_block *b, uint64_t now,
	uint32_t *ret_id, uint32_t *ret_cell)
{
	uint32_t want = new_cells(b), id, cell, work = 0;
	uint32_t after = KVP_BLOCK_NONE, cell_after = KVPD_RUN_NONE;

	if (b->parent != KVP_BLOCK_NONE) {
		const struct kvp_block *p = &t->view.blocks[b->parent];

		after = b->parent + 1;
		cell_after =
			kvp_load_relaxed(&p->recipe) + kvp_shape_cells(kvp_load_relaxed(&p->shape));
	}
	while ((cell = kvpd_runs_take(&t->cells, want, cell_after)) == KVPD_RUN_NONE)
		if (!make_cells(t, now, &work))
			return false;
	while ((id = kvpd_runs_take(&t->ids, 1, after)) == KVPD_RUN_NONE)
		if (!kvpd_recipe_forget_oldest(t)) {
			kvpd_runs_give(&t->cells, cell, want);
			return false;
		}
	*ret_id = id;
	*ret_cell = cell;
	return true;
}

/* A payload, as its descriptor has it, came (1) or went (-1); 0: there is none. Its extent is there still. */
static void count(struct kvpd_tenant *t, uint32_t id, uint32_t tier, uint64_t where, int64_t n)
{
	struct kvpd_space *s =
		&t->space[kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape))];
	struct kvpd_payloads *width = &s->width[kvp_where_codec(where) % KVP_PAYLOAD_WIDTHS];
	uint64_t bytes = (uint64_t)(n * (int64_t)kvp_where_bytes(where));

	if (!where)
		return;
	kvp_bump(&t->view.cat->stats.payload_bytes, bytes);
	s->payload_bytes += bytes;
	if (tier != KVP_TIER_DRAM) {
		t->part[t->extent[kvp_where_extent(where)]->cls->medium - 1].payload_bytes += bytes;
		return;
	}
	width->blocks += (uint64_t)n;
	width->bytes += bytes;
}

/* The payload there is counted instead of the one that the block has in its tier; what it will be called. */
static uint64_t count_instead(
	struct kvpd_tenant *t, uint32_t id, struct kvpd_place place, uint32_t codec, uint32_t bytes)
{
	uint64_t where = kvp_where(place.extent->id, codec, bytes);

	count(t, id, place.tier, kvp_load_relaxed(&kvpd_block_payload(t, id, place.tier)->where),
		-1);
	count(t, id, place.tier, where, 1);
	return where;
}

void kvpd_block_lay(struct kvpd_tenant *t, uint32_t id, struct kvpd_place place, uint32_t codec,
	uint32_t bytes, uint64_t checksum)
{
	uint64_t where = count_instead(t, id, place, codec, bytes);

	kvp_block_set_payload(&t->view, id, place.tier, where, kvpd_place_offset(place), checksum);
}

void kvpd_block_move(struct kvpd_tenant *t, uint32_t id, struct kvpd_place place, uint32_t codec,
	uint32_t bytes, uint64_t checksum)
{
	uint64_t where = count_instead(t, id, place, codec, bytes);

	assert(place.tier == KVP_TIER_DRAM);
	kvp_block_move(&t->view, id, where, kvpd_place_offset(place), checksum);
}

/* As its client wrote it; a mover computes the checksum when it copies. */
static void lay_new(struct kvpd_tenant *t, uint32_t id, const struct kvpd_new_block *b)
{
	uint64_t bytes = t->view.spaces[b->space].block_bytes;

	kvpd_block_lay(t, id, b->place, KVP_CODEC_NATIVE, (uint32_t)bytes, 0);
}

static int publish(
	struct kvpd_tenant *t, const struct kvpd_new_block *b, uint64_t now, uint32_t *ret_block)
{
	struct kvp_block_init init = {
		.key = b->key,
		.parent = b->parent,
		.space = b->space,
		.serial = t->serial,
		.n_tokens = b->n_tokens,
		.tokens = b->tokens,
		.salt = b->salt,
	};
	uint32_t id, cell;
	int r;

	if (!take_descriptor(t, b, now, &id, &cell))
		return -ENOSPC;
	if (b->parent == KVP_BLOCK_NONE) {
		init.parent_key = kvpd_root_key(t, b->space, b->salt);
	} else {
		init.parent_key = kvpd_block_key(t, b->parent);
		init.depth = kvp_load_relaxed(&t->view.blocks[b->parent].depth) + 1;
	}
	init.recipe = cell;
	kvp_block_fill(&t->view, id, &init);
	lay_new(t, id, b);
	r = kvp_block_publish(&t->view, id, init.parent_key);
	if (r < 0) {
		count(t, id, b->place.tier,
			kvp_load_relaxed(&kvpd_block_payload(t, id, b->place.tier)->where), -1);
		kvpd_runs_give(&t->cells, cell, new_cells(b));
		kvpd_runs_give(&t->ids, id, 1);
		return r;
	}
	t->serial++;
	t->space[b->space].blocks++;
	t->block[id] = (struct kvpd_block){ 0 };
	if (b->parent != KVP_BLOCK_NONE)
		t->block[b->parent].children++;
	*ret_block = id;
	return 0;
}

static void revive_block(struct kvpd_tenant *t, const struct kvpd_new_block *b, uint32_t id)
{
	if (!t->block[id].children)
		kvpd_recipe_unlist(t, id);
	kvpd_recipe_count(t, -1);
	kvpd_evict_returned(t, id);
	memset(t->block[id].look, 0, sizeof(t->block[id].look));
	t->block[id].walked = 0;
	lay_new(t, id, b);
	kvp_block_moved(&t->view, id, KVP_BLOCK_LIVE);
}

/* What the policy may know of a block that comes. */
static struct kvp_evict_item policy_item(
	const struct kvpd_tenant *t, const struct kvpd_new_block *b)
{
	const struct kvp_shm_space *space = &t->view.spaces[b->space];
	uint32_t parent = b->parent;

	return (struct kvp_evict_item){
		.parent = parent == KVP_BLOCK_NONE ? b->after : parent,
		.bytes = (uint32_t)space->block_bytes,
		.depth = parent == KVP_BLOCK_NONE
				 ? 0
				 : kvp_load_relaxed(&t->view.blocks[parent].depth) + 1,
		.tokens = b->n_tokens,
		.flags = b->n_tokens < space->canon.block_tokens ? KVP_EVICT_PARTIAL : 0,
		.cost = (float)(b->n_tokens * kvpd_claim_token_cost(t, b->space)),
		.key = b->key,
	};
}

/* The policies know the block: a client's slot is its payload's now. */
static void arrived(
	struct kvpd_tenant *t, const struct kvpd_new_block *b, uint32_t id, uint64_t now)
{
	uint32_t medium = b->place.extent->cls->medium;

	b->place.extent->slot[b->place.slot].block = id;
	t->block[id].flags |= KVPD_BLOCK_HELD;
	if (medium == KVPD_DRAM) {
		/* Of one that is there already: it lay on a device alone. */
		t->n_only -=
			kvp_load_relaxed(&kvpd_block_payload(t, id, KVP_TIER_VRAM)->where) != 0;
		return;
	}
	kvpd_part_enter(t, medium, id, now);
	t->part[medium - 1].put++;
	t->n_only += !kvpd_block_in_dram(t, id);
	kvpd_behind_again(t);
}

int kvpd_block_add(struct kvpd_tenant *t, const struct kvpd_new_block *b, uint32_t revive,
	uint64_t now, uint32_t *ret_block)
{
	struct kvp_catalog_stats *st = &t->view.cat->stats;
	struct kvp_evict_item item = policy_item(t, b);
	uint32_t keep = KVPD_BLOCK_KEEP, id = revive;
	uint32_t up = b->parent == KVP_BLOCK_NONE ? b->after : b->parent;
	int r = 0;

	if (up != KVP_BLOCK_NONE)
		t->block[up].flags |= keep;
	if (revive != KVP_BLOCK_NONE)
		t->block[revive].flags |= keep;
	/*
	 * ARC and S3-FIFO choose victims by what they are for. It is taken in any case: it is there, and
	 * what follows it in its chain needs it.
	 */
	(void)kvp_evict_admit(t->evict, &item, now);
	if (!make_room(t, now))
		r = -ENOSPC;
	else if (revive == KVP_BLOCK_NONE)
		r = publish(t, b, now, &id);
	else
		revive_block(t, b, revive);
	if (up != KVP_BLOCK_NONE)
		t->block[up].flags &= ~keep;
	if (revive != KVP_BLOCK_NONE)
		t->block[revive].flags &= ~keep;
	if (r < 0)
		return r;

	r = kvp_evict_insert(t->evict, id, &item, now);
	assert(r == 0);
	arrived(t, b, id, now);
	t->n_blocks++;
	t->space[b->space].payloads++;
	if (t->space[b->space].codes)
		kvpd_precision_came(t, id);
	kvp_store_relaxed(&st->blocks, t->n_blocks);
	kvp_bump(&st->commits, 1);
	*ret_block = id;
	return 0;
}

void kvpd_block_add_payload(
	struct kvpd_tenant *t, const struct kvpd_new_block *b, uint32_t id, uint64_t now)
{
	if (kvp_load_relaxed(&kvpd_block_payload(t, id, b->place.tier)->where) ||
		kvpd_block_state(t, id) != KVP_BLOCK_LIVE ||
		(t->block[id].flags & KVPD_BLOCK_MOVING))
		return;
	lay_new(t, id, b);
	arrived(t, b, id, now);
}

/* ---- the end of a payload, and of a block --------------------------------------------------- */

static void take_payload(struct kvpd_tenant *t, uint32_t id, struct kvpd_place place)
{
	count(t, id, place.tier, kvp_load_relaxed(&kvpd_block_payload(t, id, place.tier)->where),
		-1);
	kvp_block_set_payload(&t->view, id, place.tier, 0, 0, 0);
	kvpd_slot_unblock(place);
}

void kvpd_block_take(struct kvpd_tenant *t, uint32_t id, bool forget)
{
	struct kvpd_place place;

	kvpd_advice_gone(t->advice, id);
	t->n_only -= kvpd_block_only_there(t, id);
	t->n_blocks--;
	t->space[kvp_shape_space(kvp_load_relaxed(&t->view.blocks[id].shape))].payloads--;
	kvp_store_relaxed(&t->view.cat->stats.blocks, t->n_blocks);
	for (uint32_t tier = 0; tier < KVP_TIER_PAYLOADS; tier++)
		if (kvpd_block_place(t, id, tier, &place)) {
			/* Its children went before it, on devices too. */
			if (place.extent->cls->medium != KVPD_DRAM)
				(void)kvpd_part_leave(
					t, place.extent->cls->medium, id, false, t->ledger->now_ns);
			take_payload(t, id, place);
		}
	if (!t->block[id].children && (forget || !t->limits.recipe_blocks)) {
		kvpd_block_release(t, id);
		return;
	}
	kvp_block_moved(&t->view, id, KVP_BLOCK_RECIPE);
	kvpd_recipe_count(t, 1);
	if (!t->block[id].children)
		kvpd_recipe_list(t, id, false);
}

int kvpd_block_drop_copy(struct kvpd_tenant *t, uint32_t id, bool for_room, uint64_t now)
{
	struct kvpd_place place;
	int r;

	if (!kvpd_block_place(t, id, KVP_TIER_VRAM, &place))
		return -ENOENT;
	if (kvpd_block_in_dram(t, id)) {
		r = kvpd_part_leave(t, place.extent->cls->medium, id, for_room, now);
		if (r == 0) {
			take_payload(t, id, place);
			kvp_block_moved(&t->view, id, KVP_BLOCK_LIVE);
		}
	} else {
		r = kvpd_evict_marked(t, id, now);
	}
	if (r == 0)
		t->part[place.extent->cls->medium - 1].dropped++;
	return r;
}

void kvpd_block_release(struct kvpd_tenant *t, uint32_t block)
{
	const struct kvp_block *b = &t->view.blocks[block];
	uint32_t parent = kvp_load_relaxed(&b->parent), cell = kvp_load_relaxed(&b->recipe);
	uint32_t shape = kvp_load_relaxed(&b->shape);

	t->space[kvp_shape_space(shape)].blocks--;
	kvp_block_retire(&t->view, block, kvpd_parent_key(t, block));
	kvpd_runs_give(&t->cells, cell, kvp_shape_cells(shape));
	kvpd_runs_give(&t->ids, block, 1);
	t->block[block].flags = 0;
	if (parent == KVP_BLOCK_NONE)
		return;
	/* It is at least as old as the child that went first. */
	if (--t->block[parent].children == 0 && kvpd_block_state(t, parent) == KVP_BLOCK_RECIPE)
		kvpd_recipe_list(t, parent, true);
}
