/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds over a tenant's descriptors that carry out the rules of its spaces; see budget.h. */
#include "daemon/ledger/budget.h"

#include <string.h>

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/importance.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_zones.h"

#define LOOK      2048u /* what one portion looks at: a free descriptor is 1 of it, */
#define LOOK_LIVE 8u    /* another one so many */
#define PART      16u   /* of the time, at most, goes into rounds: a sixteenth */
#define REST_NS   (20 * KVPD_MS)
#define TIRED_NS  (2000 * KVPD_MS) /* between rounds in which nothing could be coded, at most */
#define SLACK     16u /* a budget that is exceeded is gone below by so much of it: a sixteenth */
#define MILLION   UINT64_C(1000000)

/* ---- what a rule says ----------------------------------------------------------------------- */

void kvpd_budget_bytes(
	const struct kvpd_tenant *t, uint32_t space, uint64_t *ret_bytes, uint64_t *ret_native)
{
	const struct kvpd_payloads *n = t->space[space].width;

	*ret_bytes = *ret_native = 0;
	for (uint32_t w = 0; w < KVP_PAYLOAD_WIDTHS; w++) {
		*ret_bytes += n[w].bytes;
		*ret_native += n[w].blocks * kvpd_width_bytes(t, space, 0);
	}
}

uint32_t kvpd_budget_least(const struct kvpd_tenant *t, uint32_t space, uint32_t lowest)
{
	uint64_t native = kvpd_width_bytes(t, space, 0);
	uint64_t least = kvpd_width_bytes(t, space, lowest);

	return (uint32_t)((least * MILLION + native - 1) / native);
}

static const struct kvpd_rule *rule_of(const struct kvpd_tenant *t, uint32_t space)
{
	return &t->space[space].rule;
}

/* Bytes that are to go; 0: the budget holds, or the space has none. */
static uint64_t beyond(const struct kvpd_tenant *t, uint32_t space)
{
	uint64_t bytes, native, most;

	if (rule_of(t, space)->policy != KVPD_RULE_BUDGET)
		return 0;
	kvpd_budget_bytes(t, space, &bytes, &native);
	bytes -= t->space[space].pending; /* as good as gone */
	most = (uint64_t)((double)native * rule_of(t, space)->budget / (double)MILLION);
	return bytes > most ? bytes - (most - most / SLACK) : 0;
}

static bool wants(const struct kvpd_tenant *t, uint32_t space)
{
	if (!t->space[space].codes)
		return false;
	return rule_of(t, space)->policy == KVPD_RULE_ZONES || beyond(t, space);
}

static float worth(const struct kvpd_tenant *t, uint32_t id)
{
	if (!t->budget.attention)
		return (float)kvpd_precision_recency(t, id);
	return kvpd_importance_worth(t, id);
}

/*
 * The zone of a block: that of its last token. Blocks that follow it are counted, and the last of them may
 * hold a single token. Where two sequences go on from it, the longer one counts.
 */
static uint32_t zone_width(const struct kvpd_tenant *t, uint32_t space, uint32_t id)
{
	const uint32_t whole = t->view.spaces[space].canon.block_tokens;
	const uint32_t after = kvpd_precision_below(t, id),
		       most = (KVPD_BELOW_MOST - 1) * whole + 1;
	const struct kvpd_rule *r = rule_of(t, space);
	struct kvp_graduation change[KVP_GRADUATIONS_MAX];
	struct kvp_zone_rule rule = {
		.hot_tokens = r->hot_tokens < most ? r->hot_tokens : most,
		.stale_tokens = r->stale_tokens < most ? r->stale_tokens : most,
		.group_tokens = whole,
	};
	struct kvp_zones zones = { 0 };
	uint32_t n, zone, lowest = kvpd_width_lowest(t, space);

	if (kvp_zones_advance(
		    &rule, &zones, whole + (after ? (after - 1) * whole + 1 : 0), change, &n) < 0)
		return 0;
	zone = kvp_zone_of(&zones, 0);
	if (zone == KVP_ZONE_HOT)
		return KVP_WIDTH_NATIVE;
	return zone == KVP_ZONE_WARM && lowest > KVP_WIDTH_4 ? KVP_WIDTH_4 : lowest;
}

/* ---- rounds --------------------------------------------------------------------------------- */

void kvpd_budget_rule(struct kvpd_tenant *t, uint32_t space, const struct kvpd_rule *rule)
{
	struct kvpd_budget *b = &t->budget;

	t->space[space].rule = *rule;
	if (b->under_way && b->space == space)
		b->under_way = false;
	b->vain_ns = 0;
	b->next_ns = 0;
	kvpd_budget_stir(t, space);
}

void kvpd_budget_stir(struct kvpd_tenant *t, uint32_t space)
{
	if (rule_of(t, space)->policy != KVPD_RULE_PRESSURE && wants(t, space))
		t->budget.stirred |= UINT64_C(1) << space;
}

void kvpd_budget_again(struct kvpd_tenant *t)
{
	if (t->budget.under_way)
		kvpd_due(t, KVPD_DUE_BUDGET);
}

/* As long as after any round. */
static uint64_t rest_after(const struct kvpd_budget *b)
{
	uint64_t rest = b->spent_ns * (PART - 1);

	return rest > REST_NS ? rest : REST_NS;
}

void kvpd_budget_room(struct kvpd_tenant *t)
{
	struct kvpd_budget *b = &t->budget;
	uint64_t soon = t->ledger->now_ns + rest_after(b);

	b->vain_ns = 0;
	if (b->next_ns > soon)
		b->next_ns = soon;
}

bool kvpd_budget_look(struct kvpd_tenant *t, uint64_t now, int *ret_ms)
{
	const struct kvpd_budget *b = &t->budget;
	uint64_t ms;

	if (b->under_way || !b->stirred)
		return false;
	if (now >= b->next_ns)
		return true;
	ms = (b->next_ns - now) / KVPD_MS + 1;
	if (*ret_ms < 0 || ms < (uint64_t)*ret_ms)
		*ret_ms = (int)ms;
	return false;
}

/* The next space that is stirred, after the last one. False: none wants anything. */
static bool begin(struct kvpd_tenant *t)
{
	struct kvpd_budget *b = &t->budget;

	while (b->stirred) {
		uint32_t hand = (b->space + 1) % KVP_MAX_SPACES;
		uint64_t rest = b->stirred >> hand;

		b->space = rest ? hand + (uint32_t)__builtin_ctzll(rest)
				: (uint32_t)__builtin_ctzll(b->stirred);
		b->stirred &= ~(UINT64_C(1) << b->space);
		if (!wants(t, b->space))
			continue;
		b->under_way = true;
		b->counting = rule_of(t, b->space)->policy == KVPD_RULE_BUDGET;
		b->attention = kvpd_importance_known(t, b->space);
		b->passed_over = false;
		b->coded = 0;
		b->left = 0;
		b->at = 0;
		b->spent_ns = 0;
		memset(&b->counts, 0, sizeof(b->counts));
		return true;
	}
	return false;
}

/*
 * What was passed over is tried again, and so is a budget that does not hold yet, also where the second pass
 * found blocks more important than the first had counted them; more and more seldom while nothing comes of it.
 */
static void end(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_budget *b = &t->budget;
	uint64_t rest = rest_after(b);

	b->under_way = false;
	b->rounds++;
	if (b->coded)
		b->vain_ns = 0;
	else
		b->vain_ns = b->vain_ns ? 2 * b->vain_ns : REST_NS;
	if (b->vain_ns > TIRED_NS)
		b->vain_ns = TIRED_NS;
	b->next_ns = now + (rest > b->vain_ns ? rest : b->vain_ns);
	if (b->passed_over || ((b->coded || b->left) && beyond(t, b->space)))
		b->stirred |= UINT64_C(1) << b->space;
}

/* All blocks have been counted: who is to be coded follows. */
static void cut(struct kvpd_tenant *t)
{
	struct kvpd_budget *b = &t->budget;
	uint64_t bytes[KVP_WIDTHS];

	for (uint32_t w = 0; w < KVP_WIDTHS; w++)
		bytes[w] = kvpd_width_bytes(t, b->space, w);
	kvp_allot_cut(&b->counts, bytes, kvpd_width_lowest(t, b->space), beyond(t, b->space),
		&b->cut, &b->left);
	b->counting = false;
	b->at = 0;
}

/* A block of the space that may be coded: counts it, or says to which width it is to go. */
static uint32_t judge(struct kvpd_tenant *t, struct kvpd_budget *b, uint32_t id)
{
	uint32_t now =
		kvp_where_codec(kvp_load_relaxed(&kvpd_block_payload(t, id, KVP_TIER_DRAM)->where));
	uint64_t frees;
	uint32_t width;

	if (b->counting) {
		b->counts.blocks[now][kvp_allot_bucket(worth(t, id))]++;
		return now;
	}
	if (rule_of(t, b->space)->policy == KVPD_RULE_ZONES)
		return zone_width(t, b->space, id);
	/* Reports that come between the passes may move all of them below the cut. */
	width = b->left ? kvp_allot_width(&b->cut, now, worth(t, id)) : now;
	frees = kvpd_width_bytes(t, b->space, now) - kvpd_width_bytes(t, b->space, width);
	b->left -= frees < b->left ? frees : b->left;
	return width;
}

/* Some descriptors on. Returns how many blocks of them are to be coded. */
static uint32_t look(struct kvpd_tenant *t, struct kvpd_coding *coding, uint32_t max)
{
	struct kvpd_budget *b = &t->budget;
	uint32_t n = 0;

	for (uint32_t work = 0; work < LOOK && n < max && b->at < t->layout.max_blocks; b->at++) {
		const struct kvp_block *d = &t->view.blocks[b->at];
		uint32_t width;

		if (kvpd_block_state(t, b->at) != KVP_BLOCK_LIVE ||
			kvp_shape_space(kvp_load_relaxed(&d->shape)) != b->space) {
			work++;
			continue;
		}
		work += LOOK_LIVE;
		if (!kvpd_precision_may(t, b->at, b->space))
			continue;
		/* What is in use is no reason to code others in its place. */
		if (!kvpd_precision_idle(t, b->at)) {
			b->passed_over = true;
			continue;
		}
		width = judge(t, b, b->at);
		if (width > kvp_where_codec(kvp_load_relaxed(&d->payload[KVP_TIER_DRAM].where)))
			coding[n++] = (struct kvpd_coding){ b->at, width };
	}
	return n;
}

bool kvpd_budget_step(struct kvpd_tenant *t, uint64_t now)
{
	struct kvpd_budget *b = &t->budget;
	struct kvpd_coding coding[KVPD_MOVE_BLOCKS];
	uint32_t n, coded;
	uint64_t ended;

	if (!b->under_way && !begin(t))
		return false;
	/* That a mover is done, or a switch, has it go on: kvpd_budget_again(). */
	if (!b->counting && kvpd_precision_busy(t))
		return false;
	(void)kvpd_lease_look(t, KVPD_LOOK_CHAINS, false);
	n = look(t, coding, KVPD_MOVE_BLOCKS);
	coded = kvpd_precision_code(t, b->space, coding, n, now);
	b->coded += coded;
	/* There was no slot for the others: room for one is being made, or will be in another round. */
	b->passed_over |= coded < n;
	ended = kvpd_now_ns();
	b->spent_ns += ended - now;
	if (b->at < t->layout.max_blocks)
		return true;
	if (b->counting) {
		cut(t);
		return true;
	}
	end(t, ended);
	return false;
}
