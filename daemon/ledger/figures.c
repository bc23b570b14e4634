/* SPDX-License-Identifier: Apache-2.0 */
/* Figures: what the ledger counts, copied in portions into memory of the control thread. */
#include "daemon/figures.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/clock.h"
#include "daemon/ledger/advice.h"
#include "daemon/ledger/calibs.h"
#include "daemon/ledger/claim.h"
#include "daemon/ledger/lease.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/lookups.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/quality.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/session.h"
#include "daemon/ledger/tenant.h"
#include "kernels/kvp_codec.h"
#include "policy/kvp_evict.h"
#include "shm/kvp_lease.h"

#define PLACES 64u /* that are looked at in one go: a pointer each */

/*
 * Where the walk is. Between two steps sessions come and go, and tenants too: these are known by
 * their number, sessions are looked for by place.
 */
struct kvpd_figures_walk {
	char *only;
	uint32_t what;
	struct kvpd_figures f;
	uint32_t room_tenants, room_spaces, room_clients;
	uint32_t tenant; /* which is looked at; 0: not begun */
	uint64_t number; /* of it, when it was begun; 0: it is not */
	uint32_t place;  /* of the session that comes next */
};

static void read_device(struct kvpd_medium *m, struct kvpd_device_row *f)
{
	struct kvpd_device_figures d = { .state = KVPD_DEVICE_DOWN, .context = KVPD_NO_FIGURE };

	if (m->device)
		kvpd_device_figures(m->device, &d);
	snprintf(f->name, sizeof(f->name), "%s", m->name);
	snprintf(f->driver, sizeof(f->driver), "%s", m->driver);
	f->state = kvpd_medium_word(m, d.state);
	f->pid = d.pid;
	snprintf(f->error, sizeof(f->error), "%s", d.why);
	f->error_age_ns = *d.why ? kvpd_now_ns() - d.why_ns : 0;
	memcpy(f->uuid, d.uuid, sizeof(f->uuid));
	f->numa_node = d.granularity ? d.numa_node : -1;
	f->bound_node = m->node;
	f->bytes = m->bytes;
	f->segment_bytes = m->segment;
	f->promised_bytes = m->promised;
	f->free_bytes = d.free;
	f->total_bytes = d.total;
	f->owed_bytes = d.owed_bytes;
	f->context_bytes = d.context;
	f->losses = d.losses;
	f->segments = d.segments;
	f->restarts = d.restarts;
	f->damaged = d.damaged;
	f->pieces = d.pieces;
	for (uint32_t w = 0; w < KVPD_WAYS; w++) {
		f->copied_bytes[w] = d.bytes[w];
		f->bytes_per_second[w] = d.bytes_per_s[w];
	}
	for (uint32_t k = 0; k < KVPD_COPY_KINDS; k++) {
		f->queue[k].queued = d.kind[k].queued;
		f->queue[k].oldest_ns = d.kind[k].oldest_ns;
		f->queue[k].done = d.kind[k].done;
		f->queue[k].failed = d.kind[k].failed;
	}
}

_Static_assert(KVPD_COPY_KINDS == KVPD_FIGURES_CLASSES, "classes of copies");

static void read_parts(const struct kvpd_tenant *t, struct kvpd_part_figures *f)
{
	for (uint32_t i = 0; i < t->ledger->n_media; i++) {
		const struct kvpd_part *p = &t->part[i];

		f[i] = (struct kvpd_part_figures){
			.share_bytes = p->share,
			.charged_bytes = p->charged,
			.payload_bytes = p->payload_bytes,
			.blocks = p->blocks,
			.put = p->put,
			.behind = p->behind,
			.warmed = p->warmed,
			.dropped = p->dropped,
			.reloads = p->reloads,
			.damaged = p->damaged,
			.ahead = p->ahead,
			.ahead_used = p->ahead_used,
			.verified = p->verified,
			.unverified = p->unverified,
			.verifying = p->verifying,
		};
	}
}

_Static_assert(KVPD_FIGURES_WIDTHS == KVP_PAYLOAD_WIDTHS, "widths of payloads");

static void read_ledger(struct kvpd_ledger *l, struct kvpd_figures *f)
{
	f->epoch = l->epoch;
	f->taken_ns = kvpd_now_ns();
	f->uptime_ns = f->taken_ns - l->started_ns;
	f->sessions = l->n_sessions;
	f->max_sessions = l->max_sessions;
	f->memory_bytes = l->memory;
	f->promised_bytes = l->shares;
	f->stock_bytes = l->stock.bytes;
	f->hugetlb = l->hugetlb;
	f->rounds = kvp_load_relaxed(&l->rounds);
	f->slice_ns = KVPD_SLICE_NS;
	kvpd_portion_read(&l->portions, f->taken_ns, f->portion);
	snprintf(f->policy, sizeof(f->policy), "%s", l->policy);
	f->n_devices = l->n_media;
	for (uint32_t i = 0; i < l->n_media; i++)
		read_device(&l->medium[i], &f->device[i]);
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
		.quality_target = t->limits.quality_target,
		.min_materialized = t->limits.min_materialized,
		.open_claims = t->n_claims,
		.lookups = t->lookups,
		.tokens_put = t->tokens_put,
		.commits = kvp_load_relaxed(&st->commits),
		.duplicates = kvp_load_relaxed(&st->duplicates),
		.refused = kvp_load_relaxed(&st->refused),
		.evictions = kvp_load_relaxed(&st->evictions),
		.evicted_bytes = t->evicted_bytes,
		.reloads = t->reloads,
		.yielded = t->yielded,
		.forgotten = kvp_load_relaxed(&st->forgotten),
		.moves = kvp_load_relaxed(&st->moves),
		.claims = kvp_load_relaxed(&st->claims),
		.waits = kvp_load_relaxed(&st->waits),
		.deleted = kvp_load_relaxed(&st->deleted),
	};
	for (uint32_t w = 0; w < KVPD_FIGURES_WIDTHS; w++) {
		f->width[w].steps = t->precision.steps[w];
		f->width[w].freed = t->precision.freed[w];
		for (uint32_t i = 0; i < KVP_MAX_SPACES; i++) {
			f->width[w].blocks += t->space[i].width[w].blocks;
			f->width[w].bytes += t->space[i].width[w].bytes;
		}
	}
	f->uncoded = t->precision.refused;
	f->coding_ns = t->precision.cpu_ns;
	kvpd_quality_sum(t, &f->quality);
	for (uint32_t i = 0; i < KVP_MAX_SPACES; i++)
		f->attention_reported += t->importance.reported[i];
	f->tokens_reported = t->tokens.reported;
	memcpy(f->tokens_coded, t->tokens.coded, sizeof(f->tokens_coded));
	kvpd_advice_read(t->advice, kvpd_now_ns(), &f->advisor);
	f->remat = (struct kvpd_remat_figures){
		.offers = kvpd_remat_offers(t, kvpd_now_ns()),
		.charged = t->remat.charged,
		.wants = t->remat.wanted,
		.unmet = t->remat.unmet,
		.demands = t->remat.demands,
		.met = t->remat.met,
		.returned = t->remat.returned,
		.late = t->remat.late,
		.tokens = t->remat.tokens,
		.ns = t->remat.met_ns,
	};
	read_parts(t, f->part);
	snprintf(f->name, sizeof(f->name), "%s", t->name);
	snprintf(f->policy, sizeof(f->policy), "%s", kvp_evict_name(t->evict));
}

/* "tq4/tq2", or nothing if the space is exact. */
static void read_floor(const struct kvp_space_canon *canon, char floor[KVPD_FLOOR_TEXT])
{
	char k[KVP_CODEC_NAME_MAX] = "", v[KVP_CODEC_NAME_MAX] = "";

	*floor = 0;
	if (!canon->floor_k && !canon->floor_v)
		return;
	(void)kvp_codec_name(canon->floor_k, k);
	(void)kvp_codec_name(canon->floor_v, v);
	snprintf(floor, KVPD_FLOOR_TEXT, "%s/%s", k, v);
}

_Static_assert(KVPD_FLOOR_TEXT >= 2 * KVP_CODEC_NAME_MAX, "names of two codecs");

static void read_space(const struct kvpd_tenant *t, uint32_t i, struct kvpd_space_figures *f)
{
	const struct kvp_shm_space *s = &t->view.spaces[i];

	*f = (struct kvpd_space_figures){ .space = i };
	snprintf(f->model, sizeof(f->model), "%.*s", (int)sizeof(s->canon.model), s->canon.model);
	snprintf(f->adapter, sizeof(f->adapter), "%.*s", (int)sizeof(s->canon.adapter),
		s->canon.adapter);
	memcpy(f->fingerprint, s->fingerprint, sizeof(f->fingerprint));
	f->block_tokens = s->canon.block_tokens;
	f->layers = s->canon.n_layers;
	f->kv_heads = s->canon.layers[0].kv_heads;
	f->head_dim = s->canon.layers[0].k_dim;
	f->block_bytes = s->block_bytes;
	f->opens = t->space[i].opens;
	f->blocks = t->space[i].payloads;
	f->payload_bytes = t->space[i].payload_bytes;
	for (uint32_t w = 0; w < KVPD_FIGURES_WIDTHS; w++)
		f->width[w] = (struct kvpd_width_figures){
			.blocks = t->space[i].width[w].blocks,
			.bytes = t->space[i].width[w].bytes,
		};
	read_floor(&s->canon, f->floor);
	if (t->space[i].codes && t->space[i].codes->calib)
		snprintf(f->calibration, sizeof(f->calibration), "%s",
			t->space[i].codes->calib->name);
	f->tokens_put = t->space[i].tokens_put;
	f->tokens_asked = t->space[i].tokens_asked;
	f->tokens_matched = t->space[i].tokens_matched;
	f->evictions = t->space[i].evictions;
	if (t->space[i].computing.tokens)
		f->computing_seconds = kvpd_claim_token_seconds(t, i);
	f->generation = s->generation;
	f->precision = kvpd_rule_words[t->space[i].rule.policy];
	f->budget = t->space[i].rule.budget;
	f->hot_tokens = t->space[i].rule.hot_tokens;
	f->stale_tokens = t->space[i].rule.stale_tokens;
	f->by_attention = kvpd_importance_known(t, i);
	f->attention_reported = t->importance.reported[i];
	kvpd_budget_bytes(t, i, &f->dram_bytes, &f->native_bytes);
	kvpd_quality_read(t, i, &f->quality);
	f->quality_start = kvpd_quality_origin(t, i);
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
		.parked = kvpd_parked_commits(s),
		.arena_bytes = s->arena_bytes,
		.lookups = s->lookups,
		.expelled = s->expelled,
	};
	snprintf(f->name, sizeof(f->name), "%s", s->peer.name);
}

/* What a step of the walk does; false if there is no room for it yet. */
static bool begin_tenant(struct kvpd_figures_walk *w, struct kvpd_tenant *t)
{
	struct kvpd_figures *f = &w->f;

	if (f->n_tenants == w->room_tenants || w->room_spaces - f->n_spaces < KVP_MAX_SPACES)
		return false;
	read_tenant(t, &f->tenant[f->n_tenants++]);
	w->number = t->number;
	w->place = w->what & KVPD_FIGURES_BRIEF || !t->n_sessions ? KVPD_MAX_SESSIONS : 0;
	return true;
}

static void next_tenant(struct kvpd_figures_walk *w)
{
	w->number = 0;
	w->tenant++;
}

/* Its sessions have been asked what they looked up: now it knows, and its spaces. There is room. */
static bool end_tenant(struct kvpd_figures_walk *w, const struct kvpd_tenant *t)
{
	struct kvpd_figures *f = &w->f;

	f->tenant[f->n_tenants - 1].lookups = t->lookups;
	for (uint32_t i = 0; w->what & KVPD_FIGURES_SPACES && i < KVP_MAX_SPACES; i++) {
		if (kvp_load_relaxed(&t->view.spaces[i].state) != KVP_SPACE_LIVE)
			continue;
		read_space(t, i, &f->space[f->n_spaces]);
		f->space[f->n_spaces++].tenant = f->n_tenants - 1;
	}
	next_tenant(w);
	return true;
}

/* The next session of the tenant that was begun last, or some places without one. */
static bool next_session(struct kvpd_figures_walk *w, const struct kvpd_tenant *t)
{
	struct kvpd_figures *f = &w->f;
	struct kvpd_session *s = NULL;

	if (f->n_clients == w->room_clients)
		return false;
	for (uint32_t n = 0; n < PLACES && w->place < KVPD_MAX_SESSIONS && !s; n++, w->place++)
		if (t->ledger->session[w->place] && t->ledger->session[w->place]->tenant == t)
			s = t->ledger->session[w->place];
	if (!s)
		return true;
	kvpd_session_lookups(s);
	if (w->what & KVPD_FIGURES_CLIENTS) {
		read_client(s, &f->client[f->n_clients]);
		f->client[f->n_clients++].tenant = f->n_tenants - 1;
	}
	return true;
}

static bool walk_on(struct kvpd_figures_walk *w, struct kvpd_tenant *t)
{
	if (!t || (w->only && strcmp(w->only, t->name) != 0) ||
		(w->number && w->number != t->number)) {
		next_tenant(w);
		return true;
	}
	if (!w->number)
		return begin_tenant(w, t);
	return w->place < KVPD_MAX_SESSIONS ? next_session(w, t) : end_tenant(w, t);
}

static int step_on_ledger(struct kvpd_ledger *l, void *arg)
{
	const uint64_t until = kvpd_now_ns() + KVPD_SLICE_NS;
	struct kvpd_figures_walk *w = arg;
	bool room = true;

	if (!w->tenant) {
		if (w->only && !kvpd_tenant_find(l, w->only))
			return -ENOENT;
		read_ledger(l, &w->f);
		w->tenant = 1;
	}
	/* One tenant with its spaces, or one session: some microseconds. */
	while (room && w->tenant <= KVPD_MAX_TENANTS && kvpd_now_ns() < until)
		room = walk_on(w, l->tenant[w->tenant]);
	return w->tenant > KVPD_MAX_TENANTS ? 0 : -EINPROGRESS;
}

/* ---- on the control thread ------------------------------------------------------------------ */

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

static int make_room(struct kvpd_figures_walk *w)
{
	struct kvpd_figures *f = &w->f;
	int r = grow(&f->tenant, sizeof(*f->tenant), f->n_tenants, 8, &w->room_tenants);

	if (r == 0)
		r = grow(
			&f->space, sizeof(*f->space), f->n_spaces, KVP_MAX_SPACES, &w->room_spaces);
	if (r == 0)
		r = grow(&f->client, sizeof(*f->client), f->n_clients, 64, &w->room_clients);
	return r;
}

int kvpd_figures_begin(const char *only, uint32_t what, struct kvpd_figures_walk **ret_walk)
{
	struct kvpd_figures_walk *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->what = what;
	w->only = only ? strdup(only) : NULL;
	if (only && !w->only) {
		free(w);
		return -ENOMEM;
	}
	*ret_walk = w;
	return 0;
}

int kvpd_figures_step(struct kvpd_ledger *ledger, struct kvpd_figures_walk *w)
{
	int r = make_room(w);

	return r < 0 ? r : kvpd_ledger_ask(ledger, step_on_ledger, w);
}

void kvpd_figures_end(struct kvpd_figures_walk *w, struct kvpd_figures *ret_figures)
{
	*ret_figures = w->f;
	free(w->only);
	free(w);
}
