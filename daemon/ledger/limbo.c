/* SPDX-License-Identifier: Apache-2.0 */
/* Watching the lease slots that protect the old bytes of moved blocks. */
#include "daemon/ledger/limbo.h"

#include <stdlib.h>

#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "shm/kvp_lease.h"

#define PORTION 512u /* holders looked at in one portion: a cache miss each */

struct kvpd_limbo *kvpd_limbo_new(void)
{
	return calloc(1, sizeof(struct kvpd_limbo));
}

void kvpd_limbo_add(struct kvpd_limbo *limbo, struct kvpd_place place)
{
	place.extent->slot[place.slot].flags |= KVPD_SLOT_LIMBO;
	limbo->place[limbo->n_places++] = place;
}

static void limbo_free(struct kvpd_tenant *t, struct kvpd_limbo *limbo)
{
	for (uint32_t i = 0; i < limbo->n_places; i++)
		kvpd_slot_clear(limbo->place[i], KVPD_SLOT_LIMBO);
	kvpd_list_remove(&limbo->link);
	t->n_limbo--;
	free(limbo->holder);
	free(limbo);
}

void kvpd_limbo_enter(struct kvpd_tenant *t, struct kvpd_limbo *limbo,
	struct kvpd_limbo_holder *holder, uint32_t n_holders)
{
	limbo->holder = holder;
	limbo->n_holders = n_holders;
	kvpd_list_append(&t->limbo, &limbo->link);
	t->n_limbo++;
	if (!limbo->n_places)
		limbo_free(t, limbo);
}

static bool still_held(const struct kvpd_tenant *t, const struct kvpd_limbo_holder *h)
{
	const struct kvpd_session *s = t->ledger->session[h->place];

	return s && s->id == h->session && kvp_lease_slot(s->page, h->slot) == h->value;
}

/* Looks at no more than *work holders of it; false: there are more. */
static bool look(struct kvpd_tenant *t, struct kvpd_limbo *limbo, uint32_t *work)
{
	/* A lease that was seen to end is done with: a later one gets the new place. */
	for (; limbo->looked < limbo->n_holders && *work; limbo->looked++, (*work)--)
		if (still_held(t, &limbo->holder[limbo->looked]))
			limbo->holder[limbo->kept++] = limbo->holder[limbo->looked];
	if (limbo->looked < limbo->n_holders)
		return false;
	limbo->n_holders = limbo->kept;
	limbo->looked = limbo->kept = 0;
	return true;
}

bool kvpd_limbo_step(struct kvpd_tenant *t, uint64_t now)
{
	uint32_t work = PORTION;

	(void)now;
	if (!t->limbo_left)
		t->limbo_left = t->n_limbo;
	while (t->limbo_left && !kvpd_list_empty(&t->limbo)) {
		struct kvpd_limbo *limbo = kvpd_container(t->limbo.next, struct kvpd_limbo, link);

		if (!work || !look(t, limbo, &work))
			return true;
		t->limbo_left--;
		/* Round and round: the next look begins where this one ended. */
		kvpd_list_remove(&limbo->link);
		kvpd_list_append(&t->limbo, &limbo->link);
		if (!limbo->n_holders)
			limbo_free(t, limbo);
	}
	t->limbo_left = 0;
	return false;
}

void kvpd_limbo_free_all(struct kvpd_tenant *t)
{
	while (!kvpd_list_empty(&t->limbo))
		limbo_free(t, kvpd_container(t->limbo.next, struct kvpd_limbo, link));
}
