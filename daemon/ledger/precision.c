/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing blocks to be coded with fewer bits, and coding them. */
#include "daemon/ledger/precision.h"

#include <errno.h>
#include <stdlib.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/budget.h"
#include "daemon/ledger/calibs.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/grow.h"
#include "daemon/ledger/importance.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/quality.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tokens.h"
#include "policy/kvp_allot.h"
#include "policy/kvp_evict.h"
#include "policy/kvp_ladder.h"

_Static_assert(KVP_PAYLOAD_WIDTHS == KVP_WIDTHS, "a payload's width is that of policy/");

#define VIEW         64u   /* candidates that are weighed against each other */
#define LOOK         2048u /* what one portion looks at: a free descriptor is 1 of it, */
#define LOOK_LIVE    8u    /* another one so many */
#define VAIN_BATCHES 16u   /* evictions after nothing was found that could be coded */
#define FEW_SLOTS    8u    /* coded ones: with fewer others evict */
#define WANT_BLOCKS  8u    /* of the wanted slots, so many at a time */
#define BAND         8u /* an octave: what is as much above the least important is not told from it */
#define FIRST_BAR    .37f  /* what nothing is known of, when as much came as there is room for */
#define SAMPLES      1024u /* blocks that say what extents are worth, of all of them, */
#define SAMPLES_MOST 16u   /* and of one */
/* To the ladder a block is worth more than any precision: the space's owner said what that may come to. */
#define BLOCK_SECONDS 1e6

/* ---- what a space's floor means ------------------------------------------------------------- */

int kvpd_precision_enter(struct kvpd_tenant *t, uint32_t space, const struct kvp_space_canon *canon,
	const struct kvpd_calib *calib)
{
	uint32_t lowest = kvp_payload_lowest(canon);
	struct kvpd_codes *c;
	int r = 0;

	if (!lowest)
		return 0;
	c = t->space[space].codes = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	if (!t->precision.floors++) {
		t->precision.bar = kvp_allot_bucket(FIRST_BAR);
		t->precision.least = KVP_ALLOT_BUCKETS;
	}
	c->lowest = lowest;
	c->positions = kvp_payload_positions(canon);
	c->calib = calib;
	for (uint32_t w = 0; r == 0 && w <= lowest; w++) {
		r = kvp_payload_layout(canon, w, &c->width[w]);
		if (r == 0 && calib)
			kvp_payload_calib_give(canon, calib->set, &c->width[w]);
	}
	if (r == 0)
		r = kvp_kernels_new(KVP_CPU_ALL, &c->kernels);
	c->scratch = kvp_payload_scratch(&c->width[0]);
	if (r == 0)
		r = kvpd_quality_new(c, &t->space[space].quality);
	if (r < 0)
		kvpd_precision_leave(t, space);
	return r;
}

void kvpd_precision_leave(struct kvpd_tenant *t, uint32_t space)
{
	struct kvpd_codes *c = t->space[space].codes;

	if (!c)
		return;
	t->precision.floors--;
	kvp_kernels_free(c->kernels);
	free(c);
	free(t->space[space].quality);
	t->space[space].codes = NULL;
	t->space[space].quality = NULL;
}

uint64_t kvpd_width_bytes(const struct kvpd_tenant *t, uint32_t space, uint32_t width)
{
	const struct kvpd_codes *c = t->space[space].codes;

	return c && width && width <= c->lowest ? c->width[width].bytes
						: t->view.spaces[space].block_bytes;
}

uint32_t kvpd_width_floor_by(
	const struct kvpd_tenant *t, uint32_t space, const struct kvpd_rule *rule)
{
	const struct kvpd_codes *c = t->space[space].codes;
	uint32_t width = c ? c->lowest : 0;

	if (rule->bounded && width > rule->lowest)
		width = rule->lowest;
	while (width && kvp_width_bits(width) < t->limits.least_bits)
		width--;
	return width;
}

uint32_t kvpd_width_floor(const struct kvpd_tenant *t, uint32_t space)
{
	return kvpd_width_floor_by(t, space, &t->space[space].rule);
}

uint32_t kvpd_width_lowest(const struct kvpd_tenant *t, uint32_t space)
{
	return kvpd_quality_width(t, space, kvpd_width_floor(t, space));
}

/* ---- counting ------------------------------------------------------------------------------- */

void kvpd_precision_switched(struct kvpd_tenant *t, uint32_t block, uint64_t from, uint64_t to)
{
	uint64_t old = kvp_where_bytes(from), new = kvp_where_bytes(to);
	uint32_t width = kvp_where_codec(to) % KVP_PAYLOAD_WIDTHS;

	if (kvp_where_codec(from) == kvp_where_codec(to))
		return;
	(void)kvp_evict_set_bytes(t->evict, block, (uint32_t) new);
	t->precision.steps[width]++;
	t->precision.freed[width] += old - new;
	kvpd_patience_end(&t->precision.patience);
}

/* ---- age ------------------------------------------------------------------------------------ */

#define AGES 16.0 /* in the time in which as many blocks are published as there is room for */

/* Where the time stands: 6 bits, so that what was not used for four times that long looks young again. */
static uint32_t era(const struct kvpd_tenant *t)
{
	return (uint32_t)(t->serial / (t->capacity / AGES + 1)) & 63u;
}

double kvpd_precision_age(const struct kvpd_tenant *t, uint32_t block)
{
	uint32_t used = (t->block[block].flags & KVPD_BLOCK_USED_MASK) / KVPD_BLOCK_USED;

	return ((era(t) - used) & 63u) / AGES;
}

uint32_t kvpd_precision_below(const struct kvpd_tenant *t, uint32_t block)
{
	return (t->block[block].flags & KVPD_BLOCK_BELOW_MASK) / KVPD_BLOCK_BELOW;
}

void kvpd_precision_used(struct kvpd_tenant *t, uint32_t block)
{
	uint32_t *flags = &t->block[block].flags;

	*flags = (*flags & ~KVPD_BLOCK_USED_MASK) | era(t) * KVPD_BLOCK_USED;
}

/* Blocks that have to follow one that may be coded. */
static uint32_t native_below(const struct kvp_space_canon *c)
{
	return (uint32_t)(((uint64_t)c->native_last + c->block_tokens - 1) / c->block_tokens);
}

void kvpd_precision_came(struct kvpd_tenant *t, uint32_t block)
{
	const struct kvp_block *b = &t->view.blocks[block];
	uint32_t up = kvp_load_relaxed(&b->parent);

	kvpd_precision_used(t, block);
	kvpd_importance_forget(t, block);
	kvpd_tokens_forget(t, block);
	for (uint32_t n = 1;
		n <= KVPD_BELOW_MOST && up != KVP_BLOCK_NONE && kvpd_precision_below(t, up) < n;
		n++) {
		uint32_t *flags = &t->block[up].flags;

		*flags = (*flags & ~KVPD_BLOCK_BELOW_MASK) | n * KVPD_BLOCK_BELOW;
		up = kvp_load_relaxed(&t->view.blocks[up].parent);
	}
	kvpd_budget_stir(t, kvp_shape_space(kvp_load_relaxed(&b->shape)));
}

/* ---- asking --------------------------------------------------------------------------------- */

/* Could blocks that lie in such slots be coded further down? */
static bool helps(const struct kvpd_tenant *t, const struct kvpd_class *c)
{
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		uint32_t lowest = kvpd_width_lowest(t, i);

		for (uint32_t w = 0; w < lowest; w++)
			if (kvpd_slot_bytes(kvpd_width_bytes(t, i, w)) == c->slot_bytes)
				return true;
	}
	return false;
}

/* Is an extent being made? */
static bool coming(const struct kvpd_tenant *t)
{
	for (uint32_t i = 0; i < t->n_classes; i++)
		if (t->cls[i].medium == KVPD_DRAM && t->cls[i].making)
			return true;
	return false;
}

/* Slots that blocks can be coded into. */
static uint64_t coded_free(const struct kvpd_tenant *t)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		uint32_t lowest = kvpd_width_lowest(t, i);
		uint64_t slot = kvpd_slot_bytes(kvpd_width_bytes(t, i, lowest));

		for (uint32_t k = 0; lowest && k < t->n_classes; k++)
			if (t->cls[k].medium == KVPD_DRAM && t->cls[k].slot_bytes == slot)
				n += t->cls[k].vault_free;
	}
	return n;
}

bool kvpd_precision_first(struct kvpd_tenant *t, struct kvpd_class *c, uint64_t now)
{
	struct kvpd_precision *p = &t->precision;

	if (!p->floors || c->medium != KVPD_DRAM)
		return false;
	kvpd_quality_wanted(t, c);
	if (!helps(t, c))
		return false;
	/* Nothing could be coded: some evictions, or as many blocks that came since, then it is looked for again. */
	if (p->grace && t->serial - p->vain_serial < VAIN_BATCHES * kvpd_evict_batch(t)) {
		p->grace--;
		return false;
	}
	p->grace = 0;
	if (!p->want) {
		p->looked = 0;
		p->spared = false;
	}
	p->want = c;
	kvpd_due(t, KVPD_DUE_PRECISION);
	if (p->n_jobs)
		return true;
	/* What goes then leaves slots for others to be coded into. */
	if (p->full && !coming(t) && coded_free(t) < FEW_SLOTS)
		return false;
	return kvpd_patience_lasts(&p->patience, coming(t), now);
}

double kvpd_precision_worth(const struct kvpd_tenant *t, const struct kvpd_extent *x)
{
	const uint32_t used = x->used - x->lost;
	uint32_t n = SAMPLES / (t->n_extents + 1), known = 0;
	double sum = 0;

	if (!t->importance.of)
		return used;
	n = n < 1 ? 1 : n > SAMPLES_MOST ? SAMPLES_MOST : n;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t block = x->slot[(uint64_t)i * x->slots / n].block, space;

		if (block == KVP_BLOCK_NONE)
			continue;
		space = kvp_shape_space(kvp_load_relaxed(&t->view.blocks[block].shape));
		sum += kvpd_importance_known(t, space) ? kvpd_importance_worth(t, block) : 1;
		known++;
	}
	return known ? used * sum / known : used;
}

static bool has_extents(const struct kvpd_tenant *t, uint64_t slot_bytes)
{
	for (uint32_t i = 0; i < t->n_classes; i++)
		if (t->cls[i].medium == KVPD_DRAM && t->cls[i].slot_bytes == slot_bytes &&
			t->cls[i].extents)
			return true;
	return false;
}

uint64_t kvpd_precision_keep(
	const struct kvpd_tenant *t, const struct kvpd_class *c, uint64_t extent)
{
	const struct kvpd_precision *p = &t->precision;

	if (!p->floors)
		return 0;
	if (p->hungry)
		return p->hungry == c ? 0 : extent;
	/* The first one comes out of what others leave. */
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
		uint32_t lowest = kvpd_width_lowest(t, i);
		uint64_t slot = kvpd_slot_bytes(kvpd_width_bytes(t, i, lowest));

		if (lowest && slot < c->slot_bytes && !has_extents(t, slot))
			return extent;
	}
	return 0;
}

/* ---- choosing ------------------------------------------------------------------------------- */

struct view {
	const struct kvpd_class *cls; /* in whose slots all of them lie */
	uint32_t space;               /* of all of them; KVP_MAX_SPACES: none yet */
	uint32_t n;
	struct kvp_ladder_block block[VIEW];
};

bool kvpd_precision_may(const struct kvpd_tenant *t, uint32_t id, uint32_t space)
{
	const struct kvp_block *b = &t->view.blocks[id];
	const struct kvp_space_canon *c = &t->view.spaces[space].canon;
	uint64_t first = (uint64_t)kvp_load_relaxed(&b->depth) * c->block_tokens;
	uint64_t where = kvp_load_relaxed(&b->payload[KVP_TIER_DRAM].where);

	return where && kvp_where_codec(where) < kvpd_width_lowest(t, space) &&
	       kvp_shape_tokens(kvp_load_relaxed(&b->shape)) == c->block_tokens &&
	       first >= c->native_first &&
	       first + c->block_tokens <= t->space[space].codes->positions &&
	       kvpd_precision_below(t, id) >= native_below(c);
}

bool kvpd_precision_idle(const struct kvpd_tenant *t, uint32_t id)
{
	return !kvpd_block_kept(t, id) && !kvpd_leased(t, KVPD_LOOK_CHAINS, id);
}

double kvpd_precision_recency(const struct kvpd_tenant *t, uint32_t id)
{
	return 1 / (1 + kvpd_precision_age(t, id));
}

/*
 * Is it among the least important, as far as the last round knows? A round over all descriptors says where the bar
 * lies in the next one, so that what is coded does not depend on where the hand happens to be.
 */
static bool below_bar(struct kvpd_tenant *t, uint32_t id)
{
	uint32_t at = kvp_allot_bucket(kvpd_importance_worth(t, id));
	struct kvpd_precision *p = &t->precision;

	if (at < p->least)
		p->least = at;
	p->spared |= at > p->bar;
	return at <= p->bar;
}

static void sweep_on(const struct kvpd_tenant *t, struct kvpd_precision *p)
{
	if (++p->swept < t->layout.max_blocks)
		return;
	if (p->least < KVP_ALLOT_BUCKETS)
		p->bar = p->least + BAND;
	p->least = KVP_ALLOT_BUCKETS;
	p->swept = 0;
}

/* Has the hand been everywhere? Twice more, if all that could be coded was above the bar, which sinks and rises with a round. */
static bool looked_everywhere(const struct kvpd_tenant *t)
{
	const struct kvpd_precision *p = &t->precision;

	return p->looked >= (p->spared ? 3 : 1) * (uint64_t)t->layout.max_blocks;
}

/* To the ladder a number from 0 to 1. */
static double weight(double worth)
{
	return worth / (1 + worth);
}

/* spare: not if it is more important than others. */
static void look_at(struct kvpd_tenant *t, uint32_t id, bool spare, struct view *v)
{
	const struct kvp_block *b = &t->view.blocks[id];
	uint32_t space = kvp_shape_space(kvp_load_relaxed(&b->shape));
	uint64_t where = kvp_load_relaxed(&b->payload[KVP_TIER_DRAM].where);
	bool known = kvpd_importance_known(t, space);
	struct kvpd_place place;

	if ((v->n && space != v->space) || !t->space[space].codes ||
		!kvpd_precision_may(t, id, space) || !kvpd_precision_idle(t, id) ||
		!kvpd_block_place(t, id, KVP_TIER_DRAM, &place) || place.extent->cls != v->cls)
		return;
	if (known && spare && !below_bar(t, id))
		return;
	v->space = space;
	v->block[v->n++] = (struct kvp_ladder_block){
		.block = id,
		.parent = KVP_BLOCK_NONE,
		.tokens = t->view.spaces[space].canon.block_tokens,
		.native_bytes = t->view.spaces[space].block_bytes,
		.bytes = { [KVP_TIER_DRAM] = kvp_where_bytes(where) },
		.width = { [KVP_TIER_DRAM] = (uint8_t)kvp_where_codec(where) },
		.reuse = known ? weight(kvpd_importance_worth(t, id))
			       : kvpd_precision_recency(t, id),
		.recompute_seconds = BLOCK_SECONDS,
	};
}

/* An extent that is being emptied, so that a class of smaller slots can grow; or NULL. */
static struct kvpd_extent *emptied(const struct kvpd_tenant *t)
{
	for (uint32_t i = 0; t->n_draining && i < t->n_extents; i++) {
		struct kvpd_extent *x = t->extent[i];

		if (x && x->draining && !kvpd_extent_empty(x) && x->kind == KVP_EXTENT_VAULT &&
			x->state == KVPD_EXTENT_LIVE && x->cls->medium == KVPD_DRAM &&
			helps(t, x->cls))
			return x;
	}
	return NULL;
}

/*
 * Its blocks go first, and nobody else's meanwhile: they need the slots that are left, and what they lie in
 * is of use only when all have gone.
 */
static void look_into(struct kvpd_tenant *t, struct kvpd_extent *x, struct view *v)
{
	uint32_t n = x->slots < LOOK / LOOK_LIVE ? x->slots : LOOK / LOOK_LIVE;

	for (; n && v->n < VIEW; n--) {
		uint32_t block = x->slot[x->hand].block;

		x->hand = (x->hand + 1) % x->slots;
		if (block != KVP_BLOCK_NONE && kvpd_block_state(t, block) == KVP_BLOCK_LIVE)
			look_at(t, block, false, v);
	}
}

/* Some descriptors on. False: blocks are on their way that others have to wait for. */
static bool look(struct kvpd_tenant *t, struct view *v)
{
	struct kvpd_precision *p = &t->precision;
	struct kvpd_extent *x = emptied(t);

	if (x) {
		v->cls = x->cls;
		look_into(t, x, v);
	}
	if (v->n || (x && x->moving))
		return v->n != 0;
	v->cls = p->want;

	for (uint32_t work = 0; work < LOOK && v->n < VIEW && !looked_everywhere(t); p->looked++) {
		uint32_t id = p->hand % t->layout.max_blocks;
		bool live = kvpd_block_state(t, id) == KVP_BLOCK_LIVE;

		work += live ? LOOK_LIVE : 1;
		p->hand = id + 1;
		if (live)
			look_at(t, id, true, v);
		sweep_on(t, p);
	}
	return true;
}

/* What a step costs in this space. */
static void costs(const struct kvpd_tenant *t, uint32_t space, struct kvp_ladder_opts *o)
{
	const struct kvpd_codes *c = t->space[space].codes;
	uint32_t lowest = kvpd_width_lowest(t, space);

	kvp_ladder_opts_init(o, VIEW);
	o->widths = 1u << lowest;
	for (uint32_t w = 1; w < KVP_WIDTHS; w++) {
		double ratio =
			w <= c->lowest ? (double)c->width[w].bytes / (double)c->width[0].bytes : 0;

		/* What is not allowed only has to be in order. */
		o->ratio[w] = ratio > 0 && ratio < o->ratio[w - 1] ? ratio : o->ratio[w - 1] / 2;
	}
	/* Who accepts a floor would rather have what it makes of a token than compute that again. */
	o->error_seconds = kvpd_claim_token_seconds(t, space) / 2 / o->distortion[lowest];
	if (t->precision.encode_seconds > 0)
		o->encode_seconds = t->precision.encode_seconds;
}

/* The steps that free `bytes` at the least cost; of all rungs. */
static uint32_t plan(const struct kvpd_tenant *t, const struct view *v, uint64_t bytes,
	struct kvp_ladder_step *ret_step)
{
	struct kvp_ladder_tier tier[KVP_LADDER_TIERS] = { 0 };
	struct kvp_ladder_tier *dram = &tier[KVP_TIER_DRAM];
	struct kvp_ladder_result result;
	struct kvp_ladder_opts opts;
	struct kvp_ladder *ladder;
	uint64_t all = 0;
	uint32_t n = 0;

	for (uint32_t i = 0; i < v->n; i++)
		all += v->block[i].bytes[KVP_TIER_DRAM];
	bytes = bytes < all / 4 ? bytes : all / 4;
	/* A tier that is that much above the low mark, and holds nothing else. */
	dram->capacity = all + all / 4;
	dram->high = (double)(all - 1) / (double)dram->capacity;
	dram->low = (double)(all - bytes) / (double)dram->capacity;
	dram->rise = dram->low / 2;
	dram->used = all;
	costs(t, v->space, &opts);
	if (kvp_ladder_new(&opts, &ladder) < 0)
		return 0;
	if (kvp_ladder_plan(ladder, tier, v->block, v->n, ret_step, &n, &result) < 0)
		n = 0;
	kvp_ladder_free(ladder);
	return n;
}

/* ---- a job ---------------------------------------------------------------------------------- */

/* A slot for a block of this width; false: there is none, and what may bring one is begun. */
static bool take_slot(
	struct kvpd_tenant *t, uint32_t space, uint32_t width, uint64_t now, struct kvpd_place *ret)
{
	struct kvpd_class *c =
		kvpd_class_get(t, KVPD_DRAM, kvpd_slot_bytes(kvpd_width_bytes(t, space, width)));
	struct kvpd_precision *p = &t->precision;
	bool taken;

	if (!c)
		return false;
	taken = kvpd_vault_take(t, c, NULL, now, ret);
	/* It grows while there is room; else, before it is full, out of what has larger slots. */
	if (!c->making && kvpd_vault_trade(t, c, p->want))
		p->hungry = c;
	return taken;
}

/*
 * A slot for a block that a budget would have in this width: where no extent of it can be made, a slot of fewer bits
 * that is there, since what the rule says is bytes.
 */
static bool take_slot_below(struct kvpd_tenant *t, uint32_t space, uint32_t *width, uint64_t now,
	struct kvpd_place *ret)
{
	if (t->space[space].rule.policy != KVPD_RULE_BUDGET || t->precision.hungry || coming(t))
		return false;
	for (uint32_t w = *width + 1; w <= kvpd_width_lowest(t, space); w++) {
		uint64_t slot = kvpd_slot_bytes(kvpd_width_bytes(t, space, w));

		for (uint32_t i = 0; i < t->n_classes; i++) {
			struct kvpd_class *c = &t->cls[i];

			if (c->medium != KVPD_DRAM || c->slot_bytes != slot || !c->vault_free ||
				!kvpd_vault_take(t, c, NULL, now, ret))
				continue;
			*width = w;
			return true;
		}
	}
	return false;
}

static void job_add(struct kvpd_move_job *j, uint32_t block, uint32_t width, struct kvpd_place to)
{
	struct kvpd_tenant *t = j->tenant;
	struct kvpd_move *m = &j->move[j->n++];

	m->block = block;
	(void)kvpd_block_place(t, m->block, KVP_TIER_DRAM, &m->from);
	m->to = to;
	m->src = kvpd_place_addr(m->from);
	m->dst = kvpd_place_addr(m->to);
	m->from_width = kvp_where_codec(
		kvp_load_relaxed(&kvpd_block_payload(t, m->block, KVP_TIER_DRAM)->where));
	m->width = width;
	m->bytes = j->codes->width[width].bytes;
	m->levelled = kvpd_tokens_read(t, block, &m->levels);
	m->position = kvp_load_relaxed(&t->view.blocks[block].depth) * j->codes->width[0].tokens;
	t->block[m->block].flags |= KVPD_BLOCK_MOVING;
	m->from.extent->moving++;
}

uint64_t kvpd_precision_frees(const struct kvpd_move *m, const struct kvpd_codes *codes)
{
	return codes->width[m->from_width].bytes - m->bytes;
}

bool kvpd_precision_busy(const struct kvpd_tenant *t)
{
	return t->precision.n_jobs >= KVPD_PRECISION_JOBS || t->n_move_jobs >= KVPD_MOVE_JOBS;
}

/*
 * Which of its blocks is to be looked at again: one that goes from its native bytes to the lowest width, which is
 * the one that is judged; NULL: none.
 */
static struct kvpd_check *check_of(const struct kvpd_move_job *j)
{
	const struct kvpd_tenant *t = j->tenant;
	uint32_t tokens = t->view.spaces[j->space].canon.block_tokens, natives = 0, first = 0;
	uint32_t lowest = kvpd_width_lowest(t, j->space);
	struct kvpd_check *check;

	for (uint32_t i = j->n; i-- > 0;)
		if (!j->move[i].from_width && j->move[i].width == lowest) {
			first = i;
			natives++;
		}
	check = natives ? kvpd_check_new(j->tenant, j->space, natives) : NULL;
	if (check) {
		uint64_t depth = kvp_load_relaxed(&t->view.blocks[j->move[first].block].depth);

		check->move = first;
		check->tokens = (uint32_t)((depth + 1) * tokens);
	}
	return check;
}

uint32_t kvpd_precision_code(struct kvpd_tenant *t, uint32_t space,
	const struct kvpd_coding *coding, uint32_t n, uint64_t now)
{
	struct kvpd_move_job *j = n ? kvpd_move_job_new(t) : NULL;
	uint32_t without = 0; /* widths that have no slot, a bit each */
	uint64_t bytes = 0;
	struct kvpd_place to;

	if (!j)
		return 0;
	j->codes = t->space[space].codes;
	for (uint32_t i = 0; i < n && j->n < KVPD_MOVE_BLOCKS && bytes < KVPD_MOVE_BYTES; i++) {
		uint32_t width = coding[i].width;

		if (without >> width & 1)
			continue;
		if (!take_slot(t, space, width, now, &to) &&
			!take_slot_below(t, space, &width, now, &to)) {
			without |= 1u << coding[i].width;
			continue;
		}
		job_add(j, coding[i].block, width, to);
		bytes += j->codes->width[j->move[j->n - 1].from_width].bytes;
		t->space[space].pending += kvpd_precision_frees(&j->move[j->n - 1], j->codes);
	}
	if (!j->n) {
		free(j);
		return 0;
	}
	n = j->n;
	j->space = space;
	j->check = check_of(j);
	t->precision.n_jobs++;
	kvpd_move_job_begin(j);
	return n;
}

/* As many of the plan's blocks as there are slots for. False: none. */
static bool begin(struct kvpd_tenant *t, const struct view *v, uint64_t now)
{
	struct kvpd_coding coding[VIEW];
	struct kvp_ladder_step step[VIEW];
	uint32_t steps = plan(t, v, WANT_BLOCKS * v->cls->slot_bytes, step), n = 0;

	for (uint32_t i = 0; i < steps; i++)
		if (step[i].rung == KVP_LADDER_REQUANTISE)
			coding[n++] = (struct kvpd_coding){ step[i].block, step[i].width };
	return kvpd_precision_code(t, v->space, coding, n, now) != 0;
}

/*
 * There is no slot for what is left in an extent that is being emptied: blocks are evicted until it is empty.
 * Those few give the whole extent, and all others wait for it. False: nothing went.
 */
static bool make_way(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_extent *x = emptied(t);

	if (!x || kvpd_evict_some(t, kvpd_evict_batch(t), now) <= 0)
		return false;
	(void)kvpd_move_out(x, KVPD_MOVE_BLOCKS, false, now);
	return true;
}

bool kvpd_precision_step(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_precision *p = &t->precision;
	struct kvpd_class *want = p->want;
	struct view v = { .space = KVP_MAX_SPACES };

	if (!want)
		return false;
	p->patience.looked = true;
	if (kvpd_precision_busy(t))
		return false;
	(void)kvpd_lease_look(t, KVPD_LOOK_CHAINS, false);
	if (!look(t, &v))
		return false;
	if (v.n && begin(t, &v, now)) {
		p->want = NULL; /* until somebody asks again */
		p->full = false;
		p->looked = 0;
		p->spared = false;
		return false;
	}
	if (!v.n && !looked_everywhere(t))
		return true;
	p->full = v.n != 0;
	if (v.n) {
		/* There are no slots for it: soon, or when others have evicted. It is still there then. */
		p->looked = 0;
		p->spared = false;
		return !coming(t) && make_way(t, now);
	}
	/* Nothing can be coded. */
	p->want = p->hungry = NULL;
	p->grace = VAIN_BATCHES;
	p->vain_serial = t->serial;
	kvpd_patience_end(&p->patience);
	kvpd_due(t, KVPD_DUE_EXTENTS);
	return false;
}

void kvpd_precision_run(struct kvpd_move_job *j)
{
	const struct kvpd_codes *c = j->codes;
	void *scratch = aligned_alloc(64, (c->scratch + 63) / 64 * 64);
	struct kvpd_sharing *sharing = kvpd_sharing_new(c);
	uint64_t began = kvpd_now_ns(), had = kvpd_thread_ns(), checked = 0;

	for (uint32_t i = 0; scratch && i < j->n; i++) {
		struct kvpd_move *m = &j->move[i];
		const struct kvp_payload_tokens tokens =
			kvpd_sharing_bits(sharing, c, m, m->levelled ? &m->levels : NULL);

		if (kvp_payload_recode_tokens(c->kernels, &c->width[m->from_width], m->src,
			    &c->width[m->width], m->dst, &tokens, scratch) == 0) {
			m->checksum = kvp_payload_checksum(m->dst, m->bytes);
			if (sharing)
				kvpd_sharing_count(c, m, j->coded_tokens);
		}
		/* While what it was coded from is in the processor's caches. */
		if (j->check && j->check->move == i && m->checksum) {
			uint64_t from = kvpd_now_ns();

			kvpd_check_run(c, m, j->check);
			checked = kvpd_now_ns() - from;
		}
	}
	free(scratch);
	kvpd_sharing_free(sharing);
	j->ran_ns = kvpd_now_ns() - began - checked;
	j->cpu_ns = kvpd_thread_ns() - had;
}

void kvpd_precision_done(struct kvpd_move_job *j)
{
	struct kvpd_precision *p = &j->tenant->precision;
	double tokens = (double)j->n * j->codes->width[0].tokens;
	double seconds = (double)j->ran_ns / 1e9 / tokens;

	/* Its blocks are on their way, so the space is still the same. */
	if (j->check)
		kvpd_quality_checked(j->tenant, j->space, j->check);
	free(j->check);
	j->check = NULL;
	p->n_jobs--;
	p->cpu_ns += j->cpu_ns;
	for (uint32_t i = 0; i < KVPD_TOKEN_BITS; i++)
		j->tenant->tokens.coded[i] += j->coded_tokens[i];
	p->encode_seconds = p->encode_seconds > 0 ? .9 * p->encode_seconds + .1 * seconds : seconds;
	kvpd_budget_again(j->tenant);
}
