/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory given back when the machine is short of it. A tenant gets a ceiling below its share for a
 * while; what then follows is what follows when a share was lowered: extents are emptied, the least
 * useful blocks making room for the others, and returned one after the other.
 */
#include "daemon/ledger/relief.h"

#include "daemon/clock.h"
#include "daemon/ledger/chores.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/stock.h"
#include "daemon/ledger/supply.h"
#include "daemon/ledger/tenant.h"

#define PRESSED_NS (10000 * KVPD_MS) /* no tenant grows for so long after a relief */
#define COMING_NS  (5000 * KVPD_MS)  /* what has not come by then is not waited for */
#define KEPT_PART  4                 /* of what a tenant may cache, it keeps one part */

uint64_t kvpd_share_now(const struct kvpd_tenant *t)
{
	return t->ceiling && t->ceiling < t->limits.share ? t->ceiling : t->limits.share;
}

bool kvpd_pressed(const struct kvpd_tenant *t, uint64_t now)
{
	return now < t->ledger->pressed_until_ns;
}

static uint64_t beyond(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* What a tenant was asked for and has not given yet. */
static uint64_t coming(const struct kvpd_tenant *t, uint64_t now)
{
	return t->ceiling && now - t->asked_ns < COMING_NS ? beyond(t->charged, kvpd_share_now(t))
							   : 0;
}

/* What it could give in addition. */
static uint64_t spare(const struct kvpd_tenant *t)
{
	uint64_t held = t->charged < kvpd_share_now(t) ? t->charged : kvpd_share_now(t);

	return beyond(held, t->meta_bytes + beyond(t->limits.share, t->meta_bytes) / KEPT_PART);
}

static void ask(struct kvpd_tenant *t, uint64_t bytes, uint64_t now)
{
	uint64_t held = t->charged < kvpd_share_now(t) ? t->charged : kvpd_share_now(t);

	t->ceiling = held - bytes;
	t->asked_ns = now;
	t->over = true;
	kvpd_due(t, KVPD_DUE_ROOM | KVPD_DUE_EXTENTS);
}

void kvpd_relief_tick(struct kvpd_tenant *t, uint64_t now)
{
	if (!t->ceiling || kvpd_pressed(t, now))
		return;
	t->ceiling = 0;
	kvpd_stock_look(t->ledger);
	kvpd_due(t, KVPD_DUE_ROOM | KVPD_DUE_EXTENTS);
	kvpd_supply_again(t);
}

struct relief {
	uint64_t missing;
	uint64_t coming;
};

static int relieve_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct relief *r = arg;
	uint64_t now = kvpd_now_ns(), all = 0, want;
	double due = 0, each;

	if (l->hugetlb)
		return 0;
	l->pressed_until_ns = now + PRESSED_NS;
	r->coming += l->stock.bytes;
	kvpd_stock_look(l);
	for (uint32_t i = 1; i <= l->last_tenant; i++) {
		r->coming += l->tenant[i] ? coming(l->tenant[i], now) : 0;
		all += l->tenant[i] ? spare(l->tenant[i]) : 0;
	}
	want = beyond(r->missing, r->coming);
	if (want > all)
		want = all;
	each = all ? (double)want / (double)all : 0;
	/*
	 * Memory goes by the extent: a tenant whose part is less than half of one gives nothing, and
	 * those after it give that too.
	 */
	for (uint32_t i = 1; i <= l->last_tenant; i++) {
		struct kvpd_tenant *t = l->tenant[i];
		uint64_t most = t ? spare(t) : 0, give;

		due += (double)most * each;
		if (!most || due < (double)l->extent_bytes / 2)
			continue;
		give = due < (double)most ? (uint64_t)(due + .5) : most;
		due -= (double)give;
		ask(t, give, now);
		r->coming += give;
	}
	return 0;
}

int kvpd_relieve(struct kvpd_ledger *ledger, uint64_t bytes, uint64_t *ret_coming)
{
	struct relief relief = { .missing = bytes };
	int r = kvpd_ledger_ask(ledger, relieve_on_ledger, &relief);

	if (r == 0)
		*ret_coming = relief.coming;
	return r;
}
