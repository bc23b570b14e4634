/* SPDX-License-Identifier: Apache-2.0 */
/* Figures: what the ledger counts, copied in portions into memory of the control thread. */
#include "daemon/figures.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/lookups.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

/*
 * Where the walk is. Between two portions sessions neither come nor go, and no tenant ends that has
 * one: the control thread does all that, and it waits here. So a session's place in its tenant's
 * list stays good.
 */
struct walk {
	const char *only;
	uint32_t what;
	struct kvpd_figures *f;
	uint32_t room_tenants, room_spaces, room_clients;
	uint32_t tenant;           /* which is looked at */
	struct kvpd_list *session; /* of it, which comes next; NULL: it is not begun */
	bool done;
};

static void read_ledger(struct kvpd_ledger *l, struct kvpd_figures *f)
{
	f->epoch = l->epoch;
	f->taken_ns = kvpd_now_ns();
	f->uptime_ns = f->taken_ns - l->started_ns;
	f->sessions = l->n_sessions;
	f->max_sessions = l->max_sessions;
	f->memory_bytes = l->memory;
	f->promised_bytes = l->shares;
	f->hugetlb = l->hugetlb;
	f->rounds = kvp_load_relaxed(&l->rounds);
	f->slice_ns = KVPD_SLICE_NS;
	kvpd_portion_read(&l->portions, f->taken_ns, f->portion);
	snprintf(f->policy, sizeof(f->policy), "%s", l->policy);
}

static void read_tenant(const struct kvpd_tenant *t, struct kvpd_tenant_figures *f)
{
	const struct kvp_catalog_stats *st = &t->view.cat->stats;

	*f = (struct kvpd_tenant_figures){
		.id = t->id,
		.born_ns = t->born_ns,
		.abandoned = t->abandoned,
		.sessions = t->n_sessions,
		.share_bytes = t->limits.share,
		.charged_bytes = t->charged,
		.metadata_bytes = t->meta_bytes,
		.metadata_bytes_per_block = t->meta_bytes / t->layout.max_blocks,
		.lease_scan_ns = t->proof_ns,
		.arena_bytes = t->arena_bytes,
		.payload_bytes = kvp_load_relaxed(&st->payload_bytes),
		.blocks = t->n_blocks,
		.max_blocks = t->limits.max_blocks,
		.recipes = t->n_recipes,
		.max_recipes = t->limits.recipe_blocks,
		.open_claims = t->n_claims,
		.lookups = t->ended,
		.tokens_put = t->tokens_put,
		.commits = kvp_load_relaxed(&st->commits),
		.duplicates = kvp_load_relaxed(&st->duplicates),
		.refused = kvp_load_relaxed(&st->refused),
		.evictions = kvp_load_relaxed(&st->evictions),
		.forgotten = kvp_load_relaxed(&st->forgotten),
		.moves = kvp_load_relaxed(&st->moves),
		.claims = kvp_load_relaxed(&st->claims),
		.waits = kvp_load_relaxed(&st->waits),
		.deleted = kvp_load_relaxed(&st->deleted),
	};
	snprintf(f->name, sizeof(f->name), "%s", t->name);
	snprintf(f->policy, sizeof(f->policy), "%s", kvp_evict_name(t->evict));
}

static void read_space(const struct kvpd_tenant *t, uint32_t i, struct kvpd_space_figures *f)
{
	const struct kvp_shm_space *s = &t->view.spaces[i];

	f->space = i;
	snprintf(f->model, sizeof(f->model), "%.*s", (int)sizeof(s->canon.model), s->canon.model);
	snprintf(f->adapter, sizeof(f->adapter), "%.*s", (int)sizeof(s->canon.adapter),
		s->canon.adapter);
	memcpy(f->fingerprint, s->fingerprint, sizeof(f->fingerprint));
	f->block_tokens = s->canon.block_tokens;
	f->layers = s->canon.n_layers;
	f->block_bytes = s->block_bytes;
	f->opens = t->space[i].opens;
	f->blocks = t->space[i].payloads;
	f->tokens_put = t->space[i].tokens_put;
	f->tokens_asked = t->space[i].tokens_asked;
	f->tokens_matched = t->space[i].tokens_matched;
	f->evictions = t->space[i].evictions;
	f->generation = s->generation;
}

static void read_client(struct kvpd_session *s, struct kvpd_client_figures *f)
{
	kvp_block_id leased[KVP_LEASES];

	*f = (struct kvpd_client_figures){
		.session = s->id,
		.pid = s->peer.pid,
		.uid = s->peer.uid,
		.gid = s->peer.gid,
		.attached_ns = kvpd_now_ns() - s->attached_ns,
		.leases = kvp_lease_scan(s->page, leased, NULL, KVP_LEASES),
		.grants = s->n_grants,
		.claims = s->n_claims,
		.arena_bytes = s->arena_bytes,
		.lookups = s->lookups,
		.expelled = s->expelled,
	};
	snprintf(f->name, sizeof(f->name), "%s", s->peer.name);
}

/* False: there is no room for it yet. */
static bool begin_tenant(struct walk *w, struct kvpd_tenant *t)
{
	struct kvpd_figures *f = w->f;

	if (f->n_tenants == w->room_tenants || w->room_spaces - f->n_spaces < KVP_MAX_SPACES)
		return false;
	read_tenant(t, &f->tenant[f->n_tenants++]);
	w->session = w->what & KVPD_FIGURES_BRIEF ? &t->sessions : t->sessions.next;
	return true;
}

/* Its sessions have been asked what they looked up: now its spaces know. There is room for them. */
static void end_tenant(struct walk *w, const struct kvpd_tenant *t)
{
	struct kvpd_figures *f = w->f;

	for (uint32_t i = 0; w->what & KVPD_FIGURES_SPACES && i < KVP_MAX_SPACES; i++) {
		if (kvp_load_relaxed(&t->view.spaces[i].state) != KVP_SPACE_LIVE)
			continue;
		f->space[f->n_spaces].tenant = f->n_tenants - 1;
		read_space(t, i, &f->space[f->n_spaces++]);
	}
	w->session = NULL;
	w->tenant++;
}

/* One session of the tenant that was begun last; likewise. */
static bool next_session(struct walk *w)
{
	struct kvpd_session *s = kvpd_container(w->session, struct kvpd_session, in_tenant);
	struct kvpd_figures *f = w->f;

	if (f->n_clients == w->room_clients)
		return false;
	kvpd_session_lookups(s, &f->tenant[f->n_tenants - 1].lookups);
	if (w->what & KVPD_FIGURES_CLIENTS) {
		read_client(s, &f->client[f->n_clients]);
		f->client[f->n_clients++].tenant = f->n_tenants - 1;
	}
	w->session = w->session->next;
	return true;
}

/* One step of the walk; likewise. */
static bool step(struct walk *w, struct kvpd_tenant *t)
{
	if (!t || (w->only && strcmp(w->only, t->name) != 0)) {
		w->tenant++;
		return true;
	}
	if (!w->session ? !begin_tenant(w, t) : !next_session(w))
		return false;
	if (w->session == &t->sessions)
		end_tenant(w, t);
	return true;
}

static int walk_on_ledger(struct kvpd_ledger *l, void *arg)
{
	const uint64_t until = kvpd_now_ns() + KVPD_SLICE_NS;
	struct walk *w = arg;
	bool room = true;

	if (!w->tenant) {
		if (w->only && !kvpd_tenant_find(l, w->only))
			return -ENOENT;
		read_ledger(l, w->f);
		w->tenant = 1;
	}
	/* A step is one tenant with its spaces, or one session: some microseconds. */
	while (room && w->tenant <= KVPD_MAX_TENANTS && kvpd_now_ns() < until)
		room = step(w, l->tenant[w->tenant]);
	w->done = w->tenant > KVPD_MAX_TENANTS;
	return 0;
}

/* Room for `least` more rows than there are; grown here, not on the ledger thread. */
static int grow(void *array, size_t row, uint32_t n, uint32_t least, uint32_t *room)
{
	uint32_t want = 2 * n + least;
	void *grown;

	if (*room - n >= least)
		return 0;
	grown = reallocarray(*(void **)array, want, row);
	if (!grown)
		return -ENOMEM;
	*(void **)array = grown;
	*room = want;
	return 0;
}

static int make_room(struct walk *w)
{
	struct kvpd_figures *f = w->f;
	int r = grow(&f->tenant, sizeof(*f->tenant), f->n_tenants, 8, &w->room_tenants);

	if (r == 0)
		r = grow(
			&f->space, sizeof(*f->space), f->n_spaces, KVP_MAX_SPACES, &w->room_spaces);
	if (r == 0)
		r = grow(&f->client, sizeof(*f->client), f->n_clients, 64, &w->room_clients);
	return r;
}

int kvpd_figures_read(struct kvpd_ledger *ledger, const char *only, uint32_t what,
	struct kvpd_figures *ret_figures)
{
	struct kvpd_figures figures = { 0 };
	struct walk w = { .only = only, .what = what, .f = &figures };
	int r = 0;

	while (r == 0 && !w.done) {
		r = make_room(&w);
		if (r == 0)
			r = kvpd_ledger_ask(ledger, walk_on_ledger, &w);
	}
	if (r < 0) {
		kvpd_figures_fini(&figures);
		return r;
	}
	*ret_figures = figures;
	return 0;
}
