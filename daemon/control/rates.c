/* SPDX-License-Identifier: Apache-2.0 */
/* Rates: two snapshots of the figures, and what was counted between them. */
#include "daemon/control/rates.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>

#include "daemon/answer.h"
#include "daemon/clock.h"

/* ---- the snapshots --------------------------------------------------------------------------- */

void kvpd_rates_take(struct kvpd_rates *r, const struct kvpd_figures *figures)
{
	kvpd_figures_fini(&r->older);
	r->older = r->newer;
	r->newer = *figures;
}

static void look_on(struct kvpd_source *source, uint32_t events)
{
	struct kvpd_rates *r =
		(struct kvpd_rates *)((char *)source - offsetof(struct kvpd_rates, source));
	int status = kvpd_figures_step(r->ledger, r->walk);
	struct kvpd_figures f;

	if (status == -EINPROGRESS) {
		kvpd_source_raise(source, events);
		return;
	}
	kvpd_figures_end(r->walk, &f);
	r->walk = NULL;
	if (status == 0)
		kvpd_rates_take(r, &f);
	else
		kvpd_figures_fini(&f);
}

void kvpd_rates_init(struct kvpd_rates *r, struct kvpd_turns *row)
{
	kvpd_payer_init(&r->payer, row);
	r->source = (struct kvpd_source){ .ready = look_on, .payer = &r->payer };
}

uint64_t kvpd_rates_turn(struct kvpd_rates *r, struct kvpd_ledger *ledger, uint64_t now)
{
	if (now < r->next_ns)
		return r->next_ns;
	r->ledger = ledger;
	r->next_ns = now + KVPD_RATES_NS;
	if (!r->walk && kvpd_figures_begin(NULL, KVPD_FIGURES_SPACES, &r->walk) == 0)
		kvpd_source_raise(&r->source, KVPD_AGAIN);
	return r->next_ns;
}

void kvpd_rates_fini(struct kvpd_rates *r)
{
	struct kvpd_figures f;

	kvpd_source_end(&r->source);
	if (r->walk) {
		kvpd_figures_end(r->walk, &f);
		kvpd_figures_fini(&f);
	}
	kvpd_figures_fini(&r->older);
	kvpd_figures_fini(&r->newer);
}

/* ---- what was counted ------------------------------------------------------------------------ */

struct counted {
	uint64_t lookups, commits, asked, matched, put, evictions;
	int64_t bytes; /* more than before */
};

static uint64_t lookups_of(const struct kvpd_lookups *n)
{
	return n->hits + n->partial + n->misses;
}

/* Counts do not go back; one that did, for whatever reason, has begun again. */
static uint64_t grown(uint64_t now, uint64_t before)
{
	return now < before ? now : now - before;
}

/* then: NULL if it is younger. */
static struct counted of_tenant(
	const struct kvpd_tenant_figures *now, const struct kvpd_tenant_figures *then)
{
	static const struct kvpd_tenant_figures nothing;

	if (!then)
		then = &nothing;
	return (struct counted){
		.lookups = grown(lookups_of(&now->lookups), lookups_of(&then->lookups)),
		.commits = grown(now->commits, then->commits),
		.asked = grown(now->lookups.tokens_asked, then->lookups.tokens_asked),
		.matched = grown(now->lookups.tokens_matched, then->lookups.tokens_matched),
		.put = grown(now->tokens_put, then->tokens_put),
		.evictions = grown(now->evictions, then->evictions),
		.bytes = (int64_t)(now->charged_bytes - then->charged_bytes),
	};
}

static struct counted of_space(
	const struct kvpd_space_figures *now, const struct kvpd_space_figures *then)
{
	static const struct kvpd_space_figures nothing;

	if (!then)
		then = &nothing;
	return (struct counted){
		.asked = grown(now->tokens_asked, then->tokens_asked),
		.matched = grown(now->tokens_matched, then->tokens_matched),
		.put = grown(now->tokens_put, then->tokens_put),
		.evictions = grown(now->evictions, then->evictions),
		.bytes = (int64_t)(now->payload_bytes - then->payload_bytes),
	};
}

/* Tenants lie in the order of their ids, spaces in that of their tenants and numbers. */
static const struct kvpd_tenant_figures *tenant_in(
	const struct kvpd_figures *f, const struct kvpd_tenant_figures *t)
{
	uint32_t from = 0, to = f->n_tenants;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (f->tenant[mid].id < t->id)
			from = mid + 1;
		else
			to = mid;
	}
	if (from == f->n_tenants || f->tenant[from].id != t->id ||
		f->tenant[from].born_ns != t->born_ns)
		return NULL;
	return &f->tenant[from];
}

static const struct kvpd_space_figures *space_in(const struct kvpd_figures *f,
	const struct kvpd_tenant_figures *t, const struct kvpd_space_figures *s)
{
	const struct kvpd_tenant_figures *there = tenant_in(f, t);
	uint32_t from = 0, to = f->n_spaces, of;

	if (!there)
		return NULL;
	of = (uint32_t)(there - f->tenant);
	while (from < to) {
		uint32_t mid = from + (to - from) / 2;
		const struct kvpd_space_figures *at = &f->space[mid];

		if (at->tenant < of || (at->tenant == of && at->space < s->space))
			from = mid + 1;
		else
			to = mid;
	}
	if (from == f->n_spaces || f->space[from].tenant != of ||
		f->space[from].space != s->space || f->space[from].generation != s->generation)
		return NULL;
	return &f->space[from];
}

/* ---- in JSON --------------------------------------------------------------------------------- */

static bool two_looks(const struct kvpd_rates *r)
{
	return r->older.taken_ns && r->newer.taken_ns > r->older.taken_ns;
}

static void put_rate(json_t *o, const char *name, double n, double seconds)
{
	json_object_set_new(o, name, json_real(n / seconds));
}

static json_t *rates_json(const struct kvpd_rates *r, const struct counted *n, const char *bytes)
{
	double seconds = (double)(r->newer.taken_ns - r->older.taken_ns) / 1e9;
	json_t *o = json_object();

	kvpd_put_seconds(o, "interval_seconds", r->newer.taken_ns - r->older.taken_ns);
	put_rate(o, "asked_tokens_per_second", (double)n->asked, seconds);
	put_rate(o, "matched_tokens_per_second", (double)n->matched, seconds);
	put_rate(o, "put_tokens_per_second", (double)n->put, seconds);
	put_rate(o, "evictions_per_second", (double)n->evictions, seconds);
	put_rate(o, bytes, (double)n->bytes, seconds);
	json_object_set_new(o, "hit_ratio",
		n->asked ? json_real((double)n->matched / (double)n->asked) : json_null());
	return o;
}

/* Lookups and commits are counted by tenant only. */
static json_t *tenant_json(const struct kvpd_rates *r, const struct counted *n)
{
	double seconds = (double)(r->newer.taken_ns - r->older.taken_ns) / 1e9;
	json_t *o = rates_json(r, n, "charged_bytes_per_second");

	put_rate(o, "lookups_per_second", (double)n->lookups, seconds);
	put_rate(o, "commits_per_second", (double)n->commits, seconds);
	return o;
}

json_t *kvpd_rates_of_all(const struct kvpd_rates *r, const struct kvpd_figures *f)
{
	struct counted sum = { 0 };

	if (!two_looks(r))
		return json_null();
	for (uint32_t i = 0; i < f->n_tenants; i++) {
		const struct kvpd_tenant_figures *now = tenant_in(&r->newer, &f->tenant[i]);
		struct counted n;

		if (!now)
			continue;
		n = of_tenant(now, tenant_in(&r->older, now));
		sum.lookups += n.lookups;
		sum.commits += n.commits;
		sum.asked += n.asked;
		sum.matched += n.matched;
		sum.put += n.put;
		sum.evictions += n.evictions;
		sum.bytes += n.bytes;
	}
	return tenant_json(r, &sum);
}

json_t *kvpd_rates_of_tenant(const struct kvpd_rates *r, const struct kvpd_tenant_figures *t)
{
	const struct kvpd_tenant_figures *now = tenant_in(&r->newer, t);
	struct counted n;

	if (!two_looks(r) || !now)
		return json_null();
	n = of_tenant(now, tenant_in(&r->older, t));
	return tenant_json(r, &n);
}

json_t *kvpd_rates_of_space(const struct kvpd_rates *r, const struct kvpd_tenant_figures *tenant,
	const struct kvpd_space_figures *s)
{
	const struct kvpd_space_figures *now = space_in(&r->newer, tenant, s);
	struct counted n;

	if (!two_looks(r) || !now)
		return json_null();
	n = of_space(now, space_in(&r->older, tenant, s));
	return rates_json(r, &n, "payload_bytes_per_second");
}
