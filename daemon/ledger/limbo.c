/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the lease slots that protect the old bytes of moved blocks, and watching them change. */
#include "daemon/ledger/limbo.h"

#include <stdlib.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "shm/kvp_lease.h"

/* Marks what it walked over with the answer, `yes` or `no`, so that no block is met twice. */
static bool protects_limbo(const struct kvpd_tenant *t, uint32_t tip, uint32_t yes, uint32_t no)
{
	uint32_t end = tip, answer = no;

	while (end < t->layout.max_blocks && kvpd_block_state(t, end) != KVP_BLOCK_FREE) {
		uint32_t mark = t->block[end].mark;

		if (mark == yes || t->block[end].flags & KVPD_BLOCK_LIMBO)
			answer = yes;
		if (mark == no || answer == yes)
			break;
		end = kvp_load_relaxed(&t->view.blocks[end].parent);
	}
	for (; tip != end; tip = kvp_load_relaxed(&t->view.blocks[tip].parent))
		t->block[tip].mark = answer;
	return answer == yes;
}

/* Writes the lease slots that may protect what was just moved, at most max; returns how many. */
static uint32_t find_holders(struct kvpd_tenant *t, struct kvpd_limbo_holder *out, uint32_t max)
{
	uint32_t n = 0, yes = kvpd_scan_begin(t), no = kvpd_scan_begin(t);

	for (struct kvpd_list *it = t->sessions.next; it != &t->sessions; it = it->next) {
		struct kvpd_session *s = kvpd_container(it, struct kvpd_session, in_tenant);

		for (uint32_t i = 0; i < KVPD_LEASES && n < max; i++) {
			uint64_t v = kvp_lease_slot(s->page, i);

			if (!v || !protects_limbo(t, kvp_slot_block(v), yes, no))
				continue;
			out[n++] = (struct kvpd_limbo_holder){
				.session = s->id, .place = s->place, .slot = i, .value = v
			};
		}
	}
	return n;
}

static uint32_t count_leases(const struct kvpd_tenant *t)
{
	return t->n_sessions * KVPD_LEASES;
}

struct kvpd_limbo *kvpd_limbo_new(const struct kvpd_tenant *t)
{
	struct kvpd_limbo *limbo =
		malloc(sizeof(*limbo) + sizeof(limbo->holder[0]) * count_leases(t));

	if (limbo)
		limbo->n_places = limbo->n_holders = 0;
	return limbo;
}

void kvpd_limbo_add(struct kvpd_limbo *limbo, struct kvpd_place place)
{
	place.extent->slot[place.slot].flags |= KVPD_SLOT_LIMBO;
	limbo->place[limbo->n_places++] = place;
}

void kvpd_limbo_enter(struct kvpd_tenant *t, struct kvpd_limbo *limbo)
{
	struct kvpd_limbo *shrunk;

	limbo->n_holders = find_holders(t, limbo->holder, count_leases(t));
	shrunk = realloc(limbo, sizeof(*limbo) + sizeof(limbo->holder[0]) * limbo->n_holders);
	limbo = shrunk ? shrunk : limbo;
	kvpd_list_append(&t->limbo, &limbo->link);
}

static void limbo_free(struct kvpd_limbo *limbo)
{
	for (uint32_t i = 0; i < limbo->n_places; i++)
		kvpd_slot_clear(limbo->place[i], KVPD_SLOT_LIMBO);
	kvpd_list_remove(&limbo->link);
	free(limbo);
}

static bool still_held(const struct kvpd_tenant *t, const struct kvpd_limbo_holder *h)
{
	const struct kvpd_session *s = t->ledger->session[h->place];

	return s && s->id == h->session && kvp_lease_slot(s->page, h->slot) == h->value;
}

void kvpd_limbo_step(struct kvpd_tenant *t)
{
	struct kvpd_list *it, *tmp;

	kvpd_each(it, tmp, &t->limbo) {
		struct kvpd_limbo *limbo = kvpd_container(it, struct kvpd_limbo, link);
		uint32_t n = 0;

		/* A slot that was seen to change is done with: a later lease gets the new place. */
		for (uint32_t i = 0; i < limbo->n_holders; i++)
			if (still_held(t, &limbo->holder[i]))
				limbo->holder[n++] = limbo->holder[i];
		limbo->n_holders = n;
		if (!n)
			limbo_free(limbo);
	}
}

void kvpd_limbo_free_all(struct kvpd_tenant *t)
{
	while (!kvpd_list_empty(&t->limbo)) {
		struct kvpd_limbo *limbo = kvpd_container(t->limbo.next, struct kvpd_limbo, link);

		kvpd_list_remove(&limbo->link);
		free(limbo);
	}
}
