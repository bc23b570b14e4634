/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verb check: recomputes from the descriptors alone what every list, count and index should say,
 * and compares, stage by stage; see check.h for what that means while things change.
 */
#include "daemon/ledger/check.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/answer.h"
#include "daemon/ledger/admin.h"
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
#include "shm/kvp_catalog.h"

#define PASSES 4u /* over a tenant that changes */
#define STRIDE 8u /* of what is dearer than most: between two looks at the clock */

struct stage {
	/* False: the portion is over. */
	bool (*run)(struct kvpd_check *c);
	bool sums; /* what it says holds only if nothing has changed since the first stage */
};

void kvpd_check_wrong(struct kvpd_check *c, const char *format, ...)
{
	char text[256];
	int n = snprintf(text, sizeof(text), "tenant %s: ", c->t->name);
	va_list ap;

	/* A further pass is for the sums alone. */
	if (c->pass && !c->sums)
		return;
	c->wrong++;
	if (json_array_size(c->problems) >= KVPD_CHECK_PROBLEMS)
		return;
	if (n < 0 || (size_t)n >= sizeof(text))
		n = 0;
	va_start(ap, format);
	vsnprintf(text + n, sizeof(text) - (size_t)n, format, ap);
	va_end(ap);
	json_array_append_new(c->problems, json_string(text));
}

uint32_t kvpd_check_state(const struct kvpd_check *c, uint32_t id)
{
	return kvpd_block_lives(c->t, id) ? KVP_BLOCK_LIVE : kvpd_block_state(c->t, id);
}

/* Before the next of `at`: is the portion over? */
static bool pause_at(const struct kvpd_check *c, uint32_t at, uint32_t stride)
{
	return at % stride == 0 && kvpd_request_over(c->q);
}

/* ---- blocks --------------------------------------------------------------------------------- */

static bool check_blocks(struct kvpd_check *c)
{
	for (; c->at < c->t->layout.max_blocks; c->at++) {
		if (pause_at(c, c->at, STRIDE))
			return false;
		kvpd_check_block(c, c->at);
	}
	return true;
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

static void check_entry(struct kvpd_check *c, const struct kvp_bucket *table, uint32_t buckets,
	uint32_t bucket, uint64_t e, bool tail)
{
	const char *what = tail ? "tail index" : "index";
	uint32_t id = (uint32_t)e - 1;
	uint64_t hash;

	c->sum.entries[tail]++;
	if (id >= c->t->layout.max_blocks || kvpd_check_state(c, id) == KVP_BLOCK_FREE) {
		kvpd_check_wrong(
			c, "%s: bucket %u names block %u, which is free", what, bucket, id);
		return;
	}
	hash = tail ? tail_hash(c->t, id) : kvp_load_relaxed(&c->t->view.blocks[id].key_lo);
	if ((hash >> 32) != (e >> 32) || !kvpd_check_in_table(table, buckets, hash, id))
		kvpd_check_wrong(
			c, "%s: bucket %u holds block %u by a wrong hash", what, bucket, id);
}

/* Every entry names a published block and lies where that block's hash leads. */
static bool check_table(
	struct kvpd_check *c, const struct kvp_bucket *table, uint32_t buckets, bool tail)
{
	for (; c->at < buckets; c->at++) {
		if (pause_at(c, c->at, STRIDE))
			return false;
		for (uint32_t i = 0; i < KVP_BUCKET_ENTRIES; i++) {
			uint64_t e = kvp_load_relaxed(&table[c->at].entry[i]);

			if (e)
				check_entry(c, table, buckets, c->at, e, tail);
		}
	}
	return true;
}

static bool check_index(struct kvpd_check *c)
{
	return check_table(c, c->t->view.index, c->t->view.index_buckets, false);
}

static bool check_tail_index(struct kvpd_check *c)
{
	return check_table(c, c->t->view.tail, c->t->view.tail_buckets, true);
}

/* ---- extents -------------------------------------------------------------------------------- */

static bool is_granted(struct kvpd_place p)
{
	const struct kvpd_session *s = p.extent->owner;

	for (uint32_t i = 0; s && i < KVP_MAX_GRANTS; i++)
		if (s->grant[i].state != KVPD_GRANT_FREE && s->grant[i].place.extent == p.extent &&
			s->grant[i].place.slot == p.slot)
			return true;
	return false;
}

static bool is_among(const struct kvpd_limbo *l, struct kvpd_place p)
{
	for (uint32_t i = 0; l && i < l->n_places; i++)
		if (l->place[i].extent == p.extent && l->place[i].slot == p.slot)
			return true;
	return false;
}

static bool in_limbo(const struct kvpd_check *c, struct kvpd_place p)
{
	for (struct kvpd_list *it = c->t->limbo.next; it != &c->t->limbo; it = it->next)
		if (is_among(kvpd_container(it, struct kvpd_limbo, link), p))
			return true;
	return is_among(c->t->switching.limbo, p);
}

static void check_slot(struct kvpd_check *c, struct kvpd_place p)
{
	const struct kvpd_slot *s = &p.extent->slot[p.slot];

	if (s->block != KVP_BLOCK_NONE) {
		struct kvpd_place lies;

		if (s->block >= c->t->layout.max_blocks ||
			kvpd_check_state(c, s->block) != KVP_BLOCK_LIVE) {
			kvpd_check_wrong(c,
				"extent %u slot %u holds block %u, which has no payload",
				p.extent->id, p.slot, s->block);
			return;
		}
		if (!kvpd_block_place(c->t, s->block, p.tier, &lies) || lies.extent != p.extent ||
			lies.slot != p.slot)
			kvpd_check_wrong(c,
				"extent %u slot %u holds block %u, which lies elsewhere",
				p.extent->id, p.slot, s->block);
		if (kvpd_block_granted(c->t, s->block) !=
			!!(c->t->block[s->block].flags & KVPD_BLOCK_HELD))
			kvpd_check_wrong(c, "block %u: its grant and its slot disagree", s->block);
	}
	if (!!(s->flags & KVPD_SLOT_GRANTED) != is_granted(p))
		kvpd_check_wrong(c, "extent %u slot %u: granted by nobody, or not known to be",
			p.extent->id, p.slot);
	if (!!(s->flags & KVPD_SLOT_LIMBO) != in_limbo(c, p))
		kvpd_check_wrong(c, "extent %u slot %u: in limbo for nobody", p.extent->id, p.slot);
	if ((s->flags & KVPD_SLOT_TARGET) && !c->t->n_move_jobs && !c->t->warming.copies &&
		!c->t->warming.held && !c->t->behind.copies && !c->t->behind.held)
		kvpd_check_wrong(c, "extent %u slot %u waits for a copy that nobody makes",
			p.extent->id, p.slot);
}

static bool is_used(const struct kvpd_slot *s)
{
	return s->flags || s->block != KVP_BLOCK_NONE;
}

static bool check_slots(struct kvpd_check *c, struct kvpd_extent *x)
{
	for (; c->part < x->slots; c->part++) {
		if (pause_at(c, c->part, STRIDE))
			return false;
		if (is_used(&x->slot[c->part])) {
			c->sum.used++;
			c->sum.lost += !!(x->slot[c->part].flags & KVPD_SLOT_LOST);
			check_slot(c, kvpd_place_at(x, c->part));
		}
	}
	return true;
}

/* What else is counted of an extent, once its slots were walked. */
static void end_extent(struct kvpd_check *c, const struct kvpd_extent *x)
{
	size_t k = (size_t)(x->cls - c->t->cls);

	c->sum.all_used += c->sum.used;
	if (c->sum.lost != x->lost)
		kvpd_check_wrong(c, "extent %u: %u slots are lost, and %u are counted", x->id,
			c->sum.lost, x->lost);
	if (x->cls->medium == KVPD_DRAM) {
		c->sum.charged += x->bytes;
	} else {
		c->sum.part[x->cls->medium - 1] += x->bytes;
		c->sum.places[x->cls->medium - 1] += x->slots;
	}
	c->sum.arena += kvpd_extent_is_dram_arena(x) ? x->bytes : 0;
	if (kvpd_extent_counts(x)) {
		c->sum.slots[k] += x->slots;
		c->sum.free[k] += x->slots - x->used;
	}
}

static bool check_extents(struct kvpd_check *c)
{
	for (; c->at < c->t->n_extents; c->at++, c->part = 0, c->sum.used = c->sum.lost = 0) {
		struct kvpd_extent *x = c->t->extent[c->at];

		if (pause_at(c, c->at, STRIDE))
			return false;
		if (!x)
			continue;
		if (!check_slots(c, x))
			return false;
		end_extent(c, x);
	}
	return true;
}

/* ---- sessions ------------------------------------------------------------------------------- */

static void check_session(struct kvpd_check *c, const struct kvpd_session *s)
{
	uint32_t grants = 0;

	c->sum.sessions++;
	c->sum.claims_of_sessions += s->n_claims;
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		c->sum.opens[i] += s->opens[i];
	for (uint32_t i = 0; i < KVP_MAX_GRANTS; i++) {
		const struct kvpd_grant *g = &s->grant[i];

		if (g->state == KVPD_GRANT_FREE)
			continue;
		grants++;
		if (!(g->place.extent->slot[g->place.slot].flags & KVPD_SLOT_GRANTED))
			kvpd_check_wrong(c, "session %u: grant %u names a slot that is not granted",
				s->id, i);
	}
	if (grants != s->n_grants)
		kvpd_check_wrong(
			c, "session %u has %u grants, %u are counted", s->id, grants, s->n_grants);
}

/* By place: they come and go meanwhile. */
static bool check_sessions(struct kvpd_check *c)
{
	for (; c->at < KVPD_MAX_SESSIONS; c->at++) {
		const struct kvpd_session *s = c->t->ledger->session[c->at];

		if ((s || c->at % KVPD_ADMIN_STRIDE == 0) && kvpd_request_over(c->q))
			return false;
		if (s && s->tenant == c->t)
			check_session(c, s);
	}
	return true;
}

static bool check_claims(struct kvpd_check *c)
{
	for (; c->at < KVP_MAX_CLAIMS; c->at++) {
		uint32_t owner = kvp_load_relaxed(&c->t->view.claims[c->at].session);
		struct kvpd_session *s = owner ? kvpd_session_find(c->t->ledger, owner) : NULL;

		if (pause_at(c, c->at, KVPD_ADMIN_STRIDE))
			return false;
		c->sum.claims += owner != 0;
		if (owner && (!s || s->tenant != c->t))
			kvpd_check_wrong(
				c, "claim %u belongs to session %u, which is gone", c->at, owner);
	}
	return true;
}

/* ---- sums ----------------------------------------------------------------------------------- */

static bool sum_children(struct kvpd_check *c)
{
	const struct kvpd_tenant *t = c->t;

	for (; c->at < t->layout.max_blocks; c->at++) {
		struct kvp_evict_info info;
		uint32_t state = kvpd_check_state(c, c->at);

		if (pause_at(c, c->at, STRIDE))
			return false;
		if (state == KVP_BLOCK_FREE)
			continue;
		if (c->children[c->at] != t->block[c->at].children)
			kvpd_check_wrong(c, "block %u has %u children, %u are counted", c->at,
				c->children[c->at], t->block[c->at].children);
		if (kvp_evict_peek(t->evict, c->at, &info) == 0 && info.children != c->live[c->at])
			kvpd_check_wrong(c,
				"block %u has %u children with a payload, the policy counts %u",
				c->at, c->live[c->at], info.children);
		c->sum.childless += state == KVP_BLOCK_RECIPE && !c->children[c->at];
	}
	return true;
}

static bool sum_cells(struct kvpd_check *c)
{
	for (; c->at < c->t->layout.recipe_cells; c->at++) {
		if (pause_at(c, c->at, KVPD_ADMIN_STRIDE))
			return false;
		if (c->cell[c->at] > 1)
			kvpd_check_wrong(
				c, "recipe cell %u belongs to %u blocks", c->at, c->cell[c->at]);
		if (!c->cell[c->at] && !kvpd_runs_is_free(&c->t->cells, c->at))
			kvpd_check_wrong(c, "recipe cell %u is lost", c->at);
	}
	return true;
}

/* `at` is the one that comes next, and `part` counts them. */
static bool sum_recipe_list(struct kvpd_check *c)
{
	const struct kvpd_tenant *t = c->t;

	if (!c->part)
		c->at = t->recipe_old;
	for (; c->at != KVP_BLOCK_NONE && c->part <= c->sum.childless;
		c->at = t->block[c->at].next, c->part++) {
		if (c->part && pause_at(c, c->part, STRIDE))
			return false;
		if (kvpd_check_state(c, c->at) != KVP_BLOCK_RECIPE || c->children[c->at])
			kvpd_check_wrong(c, "block %u is listed as a childless recipe", c->at);
	}
	if (c->part != c->sum.childless)
		kvpd_check_wrong(
			c, "%u childless recipes, %u are listed", c->sum.childless, c->part);
	return true;
}

/* `part` comes next in the free list of extent `at`. */
static bool sum_free_slots(struct kvpd_check *c)
{
	for (; c->at < c->t->n_extents; c->at++, c->inside = false) {
		const struct kvpd_extent *x = c->t->extent[c->at];

		if (!x)
			continue;
		if (!c->inside) {
			c->inside = true;
			c->part = x->free_head;
			c->sum.used = 0; /* free ones, here */
		}
		for (; c->part != KVP_BLOCK_NONE && c->sum.used <= x->slots; c->sum.used++) {
			if (pause_at(c, c->sum.used + 1, KVPD_ADMIN_STRIDE))
				return false;
			if (c->part >= x->slots || is_used(&x->slot[c->part])) {
				c->sum.used = x->slots;
				break;
			}
			c->part = x->slot[c->part].next;
		}
		if (c->sum.used != x->slots - x->used)
			kvpd_check_wrong(c, "extent %u: the list of its %u free slots is broken",
				x->id, x->slots - x->used);
	}
	return true;
}

static void compare_space(struct kvpd_check *c, uint32_t i)
{
	const struct kvpd_space *s = &c->t->space[i];

	if (c->sum.payloads[i] != s->payloads || c->sum.bytes[i] != s->payload_bytes)
		kvpd_check_wrong(c,
			"space %u has %u blocks of %" PRIu64 " bytes, %u of %" PRIu64
			" are counted",
			i, c->sum.payloads[i], c->sum.bytes[i], s->payloads, s->payload_bytes);
	for (uint32_t w = 0; w < KVP_PAYLOAD_WIDTHS; w++) {
		const struct kvpd_payloads *n = &c->sum.width[i][w];

		if (n->blocks != s->width[w].blocks || n->bytes != s->width[w].bytes)
			kvpd_check_wrong(c,
				"space %u has %" PRIu64 " blocks in DRAM of width %u, %" PRIu64
				" are counted, or other bytes",
				i, n->blocks, w, s->width[w].blocks);
	}
}

static void compare_blocks(struct kvpd_check *c)
{
	const struct kvpd_tenant *t = c->t;
	const struct kvp_catalog_stats *st = &t->view.cat->stats;
	uint32_t published = c->sum.blocks + c->sum.recipes;

	if (c->sum.only != t->n_only)
		kvpd_check_wrong(c, "%u blocks lie on devices alone, %u are counted", c->sum.only,
			t->n_only);
	if (c->sum.blocks != t->n_blocks || c->sum.blocks != kvp_load_relaxed(&st->blocks) ||
		c->sum.blocks != kvp_evict_len(t->evict))
		kvpd_check_wrong(c, "%u blocks, %u are counted", c->sum.blocks, t->n_blocks);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		compare_space(c, i);
	if (c->sum.recipes != t->n_recipes || c->sum.recipes != kvp_load_relaxed(&st->recipes))
		kvpd_check_wrong(c, "%u recipes, %u are counted", c->sum.recipes, t->n_recipes);
	if (c->sum.payload_bytes != kvp_load_relaxed(&st->payload_bytes))
		kvpd_check_wrong(c, "%" PRIu64 " bytes of payload, %" PRIu64 " are counted",
			c->sum.payload_bytes, kvp_load_relaxed(&st->payload_bytes));
	if ((t->n_blocks > t->limits.max_blocks && !t->over) ||
		(t->n_recipes > t->limits.recipe_blocks && !(t->due & KVPD_DUE_ROOM)))
		kvpd_check_wrong(c, "more blocks or recipes than the limits allow");
	if (c->sum.entries[0] != published)
		kvpd_check_wrong(
			c, "index: %u entries for %u blocks", c->sum.entries[0], published);
	if (c->sum.entries[1] > published)
		kvpd_check_wrong(
			c, "tail index: %u entries for %u blocks", c->sum.entries[1], published);
}

static void compare_memory(struct kvpd_check *c)
{
	const struct kvpd_tenant *t = c->t;
	uint64_t charged = c->sum.charged + t->meta_bytes, used = 0;

	for (uint32_t i = 0; i < t->n_extents; i++)
		used += t->extent[i] ? t->extent[i]->used : 0;
	if (c->sum.all_used != used)
		kvpd_check_wrong(c, "%" PRIu64 " slots are in use, %" PRIu64 " are counted",
			c->sum.all_used, used);

	if (charged != t->charged || c->sum.arena != t->arena_bytes)
		kvpd_check_wrong(c, "%" PRIu64 " bytes are held, %" PRIu64 " are charged", charged,
			t->charged);
	if (t->charged > t->limits.share && !t->over)
		kvpd_check_wrong(c, "%" PRIu64 " bytes are charged, the share is %" PRIu64,
			t->charged, t->limits.share);
	for (uint32_t i = 0; i < t->ledger->n_media; i++) {
		const struct kvpd_part *p = &t->part[i];

		if (c->sum.part[i] != p->charged || p->charged > p->share)
			kvpd_check_wrong(c,
				"device %u: %" PRIu64 " bytes are held, %" PRIu64
				" are charged, the share is %" PRIu64,
				i, c->sum.part[i], p->charged, p->share);
		if (c->sum.places[i] != p->slots || p->slots > p->max_slots)
			kvpd_check_wrong(c, "device %u: %" PRIu64 " slots, %u are counted of %u", i,
				c->sum.places[i], p->slots, p->max_slots);
		if (c->sum.on[i] != p->blocks || (p->evict && kvp_evict_len(p->evict) != p->blocks))
			kvpd_check_wrong(c,
				"device %u: %" PRIu64 " blocks lie there, %" PRIu64 " are counted",
				i, c->sum.on[i], p->blocks);
	}
	for (uint32_t k = 0; k < t->n_classes; k++)
		if (c->sum.slots[k] != t->cls[k].vault_slots ||
			c->sum.free[k] != t->cls[k].vault_free)
			kvpd_check_wrong(c,
				"class of %" PRIu64 " bytes: %" PRIu64 " of %" PRIu64
				" vault slots are free, %" PRIu64 " of %" PRIu64 " counted",
				t->cls[k].slot_bytes, c->sum.free[k], c->sum.slots[k],
				t->cls[k].vault_free, t->cls[k].vault_slots);
}

static void compare_sessions(struct kvpd_check *c)
{
	const struct kvpd_tenant *t = c->t;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		if (c->sum.opens[i] != t->space[i].opens)
			kvpd_check_wrong(c, "space %u is open %u times, %u are counted", i,
				c->sum.opens[i], t->space[i].opens);
	if (c->sum.sessions != t->n_sessions)
		kvpd_check_wrong(c, "%u sessions, %u are counted", c->sum.sessions, t->n_sessions);
	if (c->sum.claims != t->n_claims || c->sum.claims != c->sum.claims_of_sessions)
		kvpd_check_wrong(c, "%u claims, %u are counted, %u by sessions", c->sum.claims,
			t->n_claims, c->sum.claims_of_sessions);
}

static bool compare_sums(struct kvpd_check *c)
{
	compare_blocks(c);
	compare_memory(c);
	compare_sessions(c);
	return true;
}

/* ---- stages --------------------------------------------------------------------------------- */

/* The sums follow what is counted; the first of them decides whether there is any point. */
static const struct stage stages[] = {
	{ check_blocks, false },
	{ check_index, false },
	{ check_tail_index, false },
	{ check_extents, false },
	{ check_sessions, false },
	{ check_claims, false },
	{ sum_children, true },
	{ sum_cells, true },
	{ sum_recipe_list, true },
	{ sum_free_slots, true },
	{ compare_sums, true },
};

#define N_STAGES (sizeof(stages) / sizeof(stages[0]))

static void begin_stage(struct kvpd_check *c, uint32_t stage)
{
	c->stage = stage;
	c->sums = stage < N_STAGES && stages[stage].sums;
	c->at = c->part = 0;
	c->sum.used = 0;
	c->inside = false;
}

/* Memory for its sums is asked for, which prepare() makes. */
static void begin_tenant(struct kvpd_check *c)
{
	c->begun = true;
	c->changed = false;
	c->changes = c->t->changes;
	c->sum = (struct kvpd_check_sums){ 0 };
	begin_stage(c, 0);
}

static void end_tenant(struct kvpd_check *c)
{
	c->blocks += c->t->n_blocks;
	c->bytes += kvp_load_relaxed(&c->t->view.cat->stats.payload_bytes);
	c->begun = false;
	c->pass = 0;
	c->want_blocks = c->want_cells = 0;
	c->q->tenant++;
}

/* Its sums mean nothing any more: it is counted anew, or it is not to be caught. */
static void give_up_pass(struct kvpd_check *c)
{
	c->begun = false;
	c->want_blocks = c->want_cells = 0;
	if (++c->pass < PASSES)
		return;
	c->unsettled++;
	end_tenant(c);
}

static int check_step(struct kvpd_check *c)
{
	c->t = kvpd_request_tenant(c->q);
	if (!c->t)
		return 0;
	if (c->t->number != c->number) {
		c->number = c->t->number;
		c->begun = false;
		c->pass = 0;
		c->want_blocks = c->want_cells = 0;
	}
	if (!c->want_blocks) {
		c->want_blocks = c->t->layout.max_blocks;
		c->want_cells = c->t->layout.recipe_cells;
		return -EINPROGRESS;
	}
	if (!c->begun)
		begin_tenant(c);
	c->changed = c->changed || c->t->changes != c->changes;
	while (c->stage < N_STAGES) {
		if (c->changed && (c->pass || c->sums)) {
			give_up_pass(c);
			return -EINPROGRESS;
		}
		if (!stages[c->stage].run(c))
			return -EINPROGRESS;
		begin_stage(c, c->stage + 1);
	}
	end_tenant(c);
	return -EINPROGRESS;
}

/* ---- the verb ------------------------------------------------------------------------------- */

static bool make_room(struct kvpd_check *c)
{
	if (c->room_blocks < c->want_blocks || c->room_cells < c->want_cells) {
		free(c->children);
		free(c->live);
		free(c->cell);
		c->room_blocks = c->want_blocks;
		c->room_cells = c->want_cells;
		c->children = malloc(c->room_blocks * sizeof(*c->children));
		c->live = malloc(c->room_blocks * sizeof(*c->live));
		c->cell = malloc(c->room_cells * sizeof(*c->cell));
	}
	if (!c->children || !c->live || !c->cell)
		return !c->want_blocks;
	if (!c->begun) {
		memset(c->children, 0, c->want_blocks * sizeof(*c->children));
		memset(c->live, 0, c->want_blocks * sizeof(*c->live));
		memset(c->cell, 0, c->want_cells * sizeof(*c->cell));
	}
	return true;
}

static int prepare(struct kvpd_request *q)
{
	struct kvpd_check *c = q->own;

	if (!c) {
		q->own = c = calloc(1, sizeof(*c));
		if (!c)
			return -ENOMEM;
		c->q = q;
		c->problems = json_array();
		if (json_object_get(q->json, "from")) {
			uint64_t from = kvpd_request_int(q, "from", 0);

			c->summing = kvp_summing_new();
			if (!c->summing)
				return -ENOMEM;
			q->tenant = (uint32_t)(from >> 32) ? (uint32_t)(from >> 32) : 1;
			q->at = (uint32_t)from;
		}
	}
	return make_room(c) ? 0 : kvpd_request_fail(q, -ENOMEM, "no memory to check");
}

static int step(struct kvpd_request *q)
{
	struct kvpd_check *c = q->own;

	return c->summing ? kvpd_check_contents(c) : check_step(c);
}

static int finish(struct kvpd_request *q, int result)
{
	struct kvpd_check *c = q->own;

	if (!c)
		return result;
	if (result == 0) {
		kvpd_put_int(q->answer, "bytes", c->bytes);
		if (!c->summing) {
			kvpd_put_int(q->answer, "blocks", c->blocks);
			kvpd_put_int(q->answer, "unsettled", c->unsettled);
		} else if (q->tenant <= KVPD_MAX_TENANTS) {
			kvpd_put_int(q->answer, "next", (uint64_t)q->tenant << 32 | q->at);
			kvpd_put_bool(q->answer, "busy", c->busy);
		}
		kvpd_put_bool(q->answer, "clean", !c->wrong);
		kvpd_put_int(q->answer, "problems_found", c->wrong);
		json_object_set(q->answer, "problems", c->problems);
		result = c->wrong ? -EBADMSG : 0;
	}
	json_decref(c->problems);
	kvp_summing_free(c->summing);
	free(c->children);
	free(c->live);
	free(c->cell);
	free(c);
	return result;
}

const struct kvpd_verb kvpd_verb_check = {
	.name = "check",
	.prepare = prepare,
	.step = step,
	.finish = finish,
};
