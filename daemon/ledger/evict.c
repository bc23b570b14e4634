/* SPDX-License-Identifier: Apache-2.0 */
/* Eviction in batches, in the policy's order. */
#include "daemon/ledger/evict.h"

#include "daemon/clock.h"
#include "daemon/ledger/block.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/recipe.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tip.h"
#include "daemon/ledger/touch.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

struct choice {
	const struct kvpd_tenant *tenant;
	uint64_t now;
};

static int is_protected(void *ctx, kvp_block_id id)
{
	const struct choice *c = ctx;
	const struct kvpd_tenant *t = c->tenant;

	return kvpd_block_kept(t, id) || kvpd_leased(t, id) || kvpd_tip_now(t->writer, id, c->now);
}

/* While there are others, no chain that is being written loses blocks. */
static int is_spared(void *ctx, kvp_block_id id)
{
	const struct choice *c = ctx;

	return is_protected(ctx, id) || kvpd_tip_any(c->tenant, id);
}

static uint32_t choose(struct kvpd_tenant *t, uint32_t n, uint64_t now, kvp_block_id *out)
{
	struct choice c = { .tenant = t, .now = now };
	size_t found = kvp_evict_victims(t->evict, n, 0, is_spared, &c, now, out, n);

	if (!found && t->n_tips)
		found = kvp_evict_victims(t->evict, n, 0, is_protected, &c, now, out, n);
	return (uint32_t)found;
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
		kvpd_touch_apply(kvpd_container(it, struct kvpd_session, in_tenant), now);
}

uint32_t kvpd_evict_some(struct kvpd_tenant *t, uint32_t n, uint64_t now)
{
	kvp_block_id victim[KVPD_EVICT_MAX];
	uint64_t word[KVPD_EVICT_MAX];
	uint32_t gone = 0;

	drain_touches(t, now);
	/* A first look spares what is leased, so that hot blocks never flicker. */
	kvpd_lease_marks(t, false);
	n = choose(t, n, now, victim);
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
		kvpd_block_take(t, victim[i], false);
		gone++;
	}
	kvp_bump(&t->view.cat->stats.evictions, gone);
	kvpd_recipe_trim(t);
	return gone;
}

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
