/* SPDX-License-Identifier: Apache-2.0 */
/* What is due in a tenant, kind by kind, a portion at a time. */
#include "daemon/ledger/chores.h"

#include "daemon/clock.h"
#include "daemon/ledger/ahead.h"
#include "daemon/ledger/behind.h"
#include "daemon/ledger/budget.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/delete.h"
#include "daemon/ledger/doubt.h"
#include "daemon/ledger/evict.h"
#include "daemon/ledger/learnt.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/limbo.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/relief.h"
#include "daemon/ledger/remat.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/ring.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/switch.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tip.h"
#include "daemon/ledger/wake.h"
#include "daemon/ledger/warm.h"

#define TICK_NS (1000 * KVPD_MS)
#define TICK_MS 1000
/* While a RESERVE waits: leases that end, which nobody tells the ledger of, may make room for it. */
#define HURRY_MS 5
/* While sleepers are to be woken. */
#define WAKE_MS 1

/* By bit number. Each does one portion and returns whether more of it is due at once. */
static bool (*const steps[KVPD_DUE_KINDS])(struct kvpd_tenant *t, uint64_t now) = {
	kvpd_switch_step,
	kvpd_limbo_step,
	kvpd_supply_step,
	kvpd_extent_step,
	kvpd_room_step,
	kvpd_doomed_step,
	kvpd_claim_step,
	kvpd_wake_step,
	kvpd_stalled_step,
	kvpd_tip_step,
	kvpd_warm_step,
	kvpd_precision_step,
	kvpd_behind_step,
	kvpd_budget_step,
	kvpd_remat_step,
	kvpd_ahead_step,
	kvpd_learnt_step,
	kvpd_doubt_step,
};

void kvpd_due(struct kvpd_tenant *t, uint32_t kinds)
{
	t->due |= kinds;
	kvpd_ledger_join(t, &t->chores);
}

bool kvpd_chores_do(struct kvpd_tenant *t, uint64_t now, uint64_t until_ns)
{
	while (t->due) {
		uint64_t ended;
		uint32_t kind, bit, rest = t->due & ~((1u << t->due_hand) - 1);

		/* Kind after kind, so that none of them keeps the others waiting. */
		kind = (uint32_t)__builtin_ctz(rest ? rest : t->due);
		bit = 1u << kind;
		t->due_hand = (kind + 1) % KVPD_DUE_KINDS;
		/* Cleared first: what the step itself makes due is not lost. */
		t->due &= ~bit;
		if (steps[kind](t, now))
			t->due |= bit;
		ended = kvpd_now_ns();
		kvpd_portion_note(&t->ledger->portions, KVPD_PORTION_CHORE, ended - now);
		now = ended;
		if (now >= until_ns || kvpd_ledger_is_wanted(t->ledger))
			break;
	}
	return t->due != 0;
}

/* What is looked at once a second. */
static uint32_t ticking(const struct kvpd_tenant *t)
{
	return (t->over ? KVPD_DUE_ROOM : 0) | (t->n_claims ? KVPD_DUE_CLAIMS : 0) |
	       (t->n_doomed ? KVPD_DUE_DOOMED : 0) | (t->n_stalled ? KVPD_DUE_STALLED : 0) |
	       (t->n_limbo ? KVPD_DUE_LIMBO : 0) | (t->switching.under_way ? KVPD_DUE_SWITCH : 0) |
	       (t->n_draining || t->n_unproven || t->warm || t->over ? KVPD_DUE_EXTENTS : 0) |
	       (t->n_tips ? KVPD_DUE_TIPS : 0) | (t->n_only ? KVPD_DUE_BEHIND : 0) |
	       (t->learner.changed ? KVPD_DUE_LEARNT : 0);
}

/*
 * Is it time to go on with emptying extents beyond a share that was lowered? Leases end, and blocks are coded, without
 * anybody telling it, and where nobody waits for slots nothing else asks. As often as for those who wait, as
 * long as something comes of it; more and more seldom where nothing does. *ret_ms: when to look again.
 */
static bool reach_on(struct kvpd_tenant *t, uint64_t now, int *ret_ms)
{
	const struct kvp_catalog_stats *s = &t->view.cat->stats;
	uint64_t done;

	if (!t->n_draining || t->charged <= kvpd_share_now(t))
		return false;
	/* What is spared grows with each look; as many as there are blocks, and nothing else came of it. */
	done = kvp_load_relaxed(&s->evictions) + kvp_load_relaxed(&s->moves) +
	       (t->spared < t->n_blocks ? t->spared : t->n_blocks) - t->charged;
	if (done != t->reach_done || !t->reach_ns)
		t->reach_ns = HURRY_MS * KVPD_MS;
	*ret_ms = t->reach_ns < TICK_NS ? (int)(t->reach_ns / KVPD_MS) : TICK_MS;
	if (now - t->reach_at < t->reach_ns)
		return false;
	if (done == t->reach_done && t->reach_ns < TICK_NS)
		t->reach_ns *= 2;
	t->reach_done = done;
	t->reach_at = now;
	return true;
}

int kvpd_chores_look(struct kvpd_tenant *t, uint64_t now)
{
	bool wakes = t->wakes || !kvpd_list_empty(&t->waking), waits = t->n_wanting != 0;
	uint64_t hurry = t->room_came ? KVPD_CHORES_NS : HURRY_MS * KVPD_MS;
	uint32_t tick = ticking(t), due = 0;
	int ms = tick || t->ceiling ? TICK_MS : -1, remat;

	kvpd_relief_tick(t, now);
	if (tick && now - t->tick_ns >= TICK_NS) {
		t->tick_ns = now;
		t->tick = true;
		due |= tick;
	}
	/* An idle ledger looks here before it sleeps: what is tried in vain is not tried at once. */
	if (wakes && now - t->woken_ns >= KVPD_CHORES_NS) {
		t->woken_ns = now;
		due |= KVPD_DUE_WAKES;
	}
	if (waits && now - t->hurried_ns >= hurry) {
		t->hurried_ns = now;
		kvpd_supply_look(t);
		due |= t->n_limbo ? KVPD_DUE_LIMBO : 0;
		due |= t->n_draining ? KVPD_DUE_EXTENTS : 0;
		due |= t->precision.want ? KVPD_DUE_PRECISION : 0;
	}
	if (reach_on(t, now, &ms)) {
		due |= KVPD_DUE_EXTENTS | (t->n_limbo ? KVPD_DUE_LIMBO : 0);
		due |= t->precision.want ? KVPD_DUE_PRECISION : 0;
	}
	due |= kvpd_budget_look(t, now, &ms) ? KVPD_DUE_BUDGET : 0;
	if (waits)
		ms = t->room_came ? 1 : HURRY_MS;
	if (wakes)
		ms = WAKE_MS;
	remat = kvpd_remat_look(t, now);
	if (remat >= 0 && (ms < 0 || remat < ms))
		ms = remat;
	if (due)
		kvpd_due(t, due);
	return t->due ? 0 : ms;
}
