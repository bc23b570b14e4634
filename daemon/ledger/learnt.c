/* SPDX-License-Identifier: Apache-2.0 */
/* From windows to files and back: jobs of the store's thread. */
#include "daemon/ledger/learnt.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/ledger/chores.h"
#include "daemon/ledger/calibs.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/quality.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"
#include "daemon/log.h"
#include "policy/kvp_thresholds.h"
#include "shm/kvp_proto.h"

_Static_assert(KVP_MAX_SPACES <= 64, "spaces of a tenant, a bit each");
_Static_assert(KVPD_TENANT_NAME == KVPD_LEARNT_NAME, "names of tenants");

/*
 * What a job says of a space. It names its tenant by number and not by its address: a disk that answers no more
 * keeps no tenant from ending.
 */
struct learnt_job {
	struct kvpd_job job;
	const char *folder; /* the ledger's */
	char name[KVPD_LEARNT_NAME];
	uint64_t tenant; /* number */
	uint32_t space, generation;
	int status;
	struct kvpd_learnt row; /* of the space; a question's answer */
	bool save;
	bool alone;                  /* it goes by no neighbour */
	float layer[KVP_MAX_LAYERS]; /* to be saved; below 0: nothing is known */
};

void kvpd_learnt_begin(struct kvpd_ledger *l, const struct kvpd_config *config)
{
	char why[KVPD_LEARNT_WHY] = "";

	if (config->state_dir &&
		kvpd_learnt_folder(config->state_dir, l->owner, why, &l->state_dir) < 0)
		kvpd_warning("`state_dir`: %s; what is learnt of precision is forgotten when "
			     "kvpoold ends",
			why);
}

/* ---- who a space is -------------------------------------------------------------------------- */

/* All by which what a codec does to a model may differ; not what only its blocks or their names are. */
static void identify(const struct kvp_space_canon *canon, const struct kvpd_calib *calib,
	char id[KVPD_LEARNT_ID])
{
	struct kvp_space_canon c = *canon;
	kvp_token words[sizeof(c) / sizeof(kvp_token)];
	const uint32_t total = sizeof(words) / sizeof(words[0]);
	struct kvp_key key = { 0, 0 };

	c.layout = c.block_tokens = c.native_first = c.native_last = 0;
	memset(c.tokenizer, 0, sizeof(c.tokenizer));
	memcpy(words, &c, sizeof(c));
	for (uint32_t at = 0; at < total; at += KVP_BLOCK_TOKENS_MAX)
		key = kvp_chain_key(key, words + at,
			total - at < KVP_BLOCK_TOKENS_MAX ? total - at : KVP_BLOCK_TOKENS_MAX);
	if (calib) {
		memcpy(words, &calib->digest, sizeof(calib->digest));
		key = kvp_chain_key(key, words, sizeof(calib->digest) / sizeof(words[0]));
	}
	snprintf(id, KVPD_LEARNT_ID, "%016llx%016llx", (unsigned long long)key.hi,
		(unsigned long long)key.lo);
}

/* The largest of its layers stands for all. */
static struct kvp_model_shape shape_of(const struct kvp_space_canon *c)
{
	struct kvp_model_shape s = { .layers = c->n_layers };

	for (uint32_t i = 0; i < c->n_layers; i++) {
		if (c->layers[i].kv_heads > s.kv_heads)
			s.kv_heads = c->layers[i].kv_heads;
		if (c->layers[i].k_dim > s.head_dim)
			s.head_dim = c->layers[i].k_dim;
	}
	return s;
}

/* What its rows have in common. */
static struct kvpd_learnt row_of(const struct kvpd_tenant *t, uint32_t space)
{
	const struct kvp_space_canon *c = &t->view.spaces[space].canon;
	struct kvpd_learnt row = {
		.layer = KVPD_LEARNT_ALL,
		.shape = shape_of(c),
		.origin = KVP_ORIGIN_MEASURED,
	};

	memcpy(row.id, t->space[space].quality->start.id, sizeof(row.id));
	snprintf(row.model, sizeof(row.model), "%.*s", (int)sizeof(c->model),
		c->model[0] ? c->model : "?");
	return row;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static int save(const struct learnt_job *j, struct kvpd_learnt_file *f)
{
	struct kvpd_learnt *rows = calloc(KVP_MAX_LAYERS + 1, sizeof(*rows));
	size_t n = 0;
	int r;

	if (!rows)
		return -ENOMEM;
	rows[n++] = j->row;
	for (uint32_t i = 0; i < j->row.shape.layers; i++) {
		if (j->layer[i] < 0)
			continue;
		rows[n] = j->row;
		rows[n].layer = i;
		rows[n++].quality = j->layer[i];
	}
	r = kvpd_learnt_save(f, rows, n);
	free(rows);
	return r;
}

static int run_once(struct learnt_job *j)
{
	struct kvpd_learnt want = j->row;
	struct kvpd_learnt_file *f = NULL;
	int r = kvpd_learnt_open(j->folder, j->name, j->save, &f);

	if (r == 0)
		r = j->save ? save(j, f) : kvpd_learnt_find(f, &want, !j->alone, &j->row);
	kvpd_learnt_close(f);
	return r;
}

static void run(struct kvpd_job *job)
{
	struct learnt_job *j = kvpd_container(job, struct learnt_job, job);

	j->status = run_once(j);
	/* What was there has been moved aside. */
	if (j->status == -EBADMSG)
		j->status = run_once(j);
}

static void answered(struct kvpd_tenant *t, const struct learnt_job *j)
{
	struct kvpd_quality *q = t->space[j->space].quality;

	if (kvp_load_relaxed(&t->view.spaces[j->space].state) != KVP_SPACE_LIVE ||
		t->view.spaces[j->space].generation != j->generation || !q)
		return;
	q->start.asking = false;
	if (j->status == 0)
		kvpd_quality_start(t, j->space, j->row.width, j->row.origin);
}

static void done(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct learnt_job *j = kvpd_container(job, struct learnt_job, job);
	struct kvpd_tenant *t = l->tenant[job->tenant];

	if (t && t->number == j->tenant) {
		kvpd_ledger_charge(l, t);
		if (j->save) {
			t->learner.saving--;
			/* At the daemon's end: it is lost. */
			if (j->status == -ECANCELED)
				t->learner.changed |= UINT64_C(1) << j->space;
		} else {
			t->learner.asking--;
			answered(t, j);
		}
	}
	free(j);
}

static bool submit(struct kvpd_tenant *t, uint32_t space, struct kvpd_learnt row, bool saves)
{
	const struct kvpd_quality *q = t->space[space].quality;
	struct learnt_job *j = malloc(sizeof(*j));

	if (!j)
		return false;
	*j = (struct learnt_job){
		.job = { .tenant = t->id, .run = run, .done = done },
		.folder = t->ledger->state_dir,
		.tenant = t->number,
		.space = space,
		.generation = t->view.spaces[space].generation,
		.status = -ECANCELED,
		.row = row,
		.save = saves,
		.alone = t->space[space].codes->calib != NULL,
	};
	snprintf(j->name, sizeof(j->name), "%s", t->name);
	memcpy(j->layer, q->layer, sizeof(j->layer));
	if (saves)
		t->learner.saving++;
	else
		t->learner.asking++;
	kvpd_worker_submit(&t->ledger->store, &j->job);
	return true;
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void ask(struct kvpd_tenant *t, uint32_t space, uint32_t context)
{
	struct kvpd_quality *q = t->space[space].quality;
	struct kvpd_learnt row;

	/* As many as there may be spaces: who opens one after the other may begin with nothing. */
	if (q->start.asking || t->learner.asking >= KVP_MAX_SPACES)
		return;
	row = row_of(t, space);
	row.context_tokens = context;
	row.width = t->space[space].codes->lowest;
	q->start.context = context;
	q->start.asking = submit(t, space, row, false);
}

void kvpd_learnt_enter(struct kvpd_tenant *t, uint32_t space)
{
	struct kvpd_quality *q = t->space[space].quality;

	t->learner.changed &= ~(UINT64_C(1) << space);
	if (!t->ledger->state_dir || !q)
		return;
	q->start.origin = KVP_ORIGIN_DEFAULT;
	identify(&t->view.spaces[space].canon, t->space[space].codes->calib, q->start.id);
	ask(t, space, 0);
}

/* ---- handing over ---------------------------------------------------------------------------- */

static bool hand_over(struct kvpd_tenant *t, uint32_t space)
{
	struct kvpd_quality *q = t->space[space].quality;
	struct kvpd_learnt row;
	double mean = 0;

	t->learner.changed &= ~(UINT64_C(1) << space);
	if (!q || kvp_quality_mean(&q->adapt.quality, KVP_QUALITY_RECENT, &mean) < 0)
		return true;
	row = row_of(t, space);
	row.context_tokens = kvpd_learnt_context(q->tokens);
	row.width = q->adapt.now.archive_width;
	row.quality = (float)mean;
	row.scores = q->adapt.quality.count;
	q->start.scores = 0;
	return submit(t, space, row, true);
}

void kvpd_learnt_scored(struct kvpd_tenant *t, uint32_t space, bool changed)
{
	struct kvpd_quality *q = t->space[space].quality;
	uint32_t context;

	if (!t->ledger->state_dir)
		return;
	if (changed || ++q->start.scores >= KVPD_QUALITY_PERIOD)
		t->learner.changed |= UINT64_C(1) << space;
	context = kvpd_learnt_context(q->tokens);
	if (!q->adapt.changes && q->start.origin == KVP_ORIGIN_MEASURED &&
		context != q->start.context)
		ask(t, space, context);
}

/* Once a second: chores.c. */
bool kvpd_learnt_step(struct kvpd_tenant *t, uint64_t now)
{
	(void)now;
	if (!t->learner.changed || t->learner.saving >= KVPD_LEARNT_JOBS)
		return false;
	return hand_over(t, (uint32_t)__builtin_ctzll(t->learner.changed)) && t->learner.changed;
}

void kvpd_learnt_leave(struct kvpd_tenant *t, uint32_t space)
{
	if (t->learner.changed >> space & 1 && t->learner.saving < KVPD_LEARNT_JOBS)
		(void)hand_over(t, space);
}

void kvpd_learnt_flush(struct kvpd_tenant *t)
{
	while (t->learner.changed)
		(void)hand_over(t, (uint32_t)__builtin_ctzll(t->learner.changed));
}

bool kvpd_learnt_end(struct kvpd_ledger *l)
{
	uint32_t lost = 0;
	bool stored;

	for (uint32_t i = 1; i <= KVPD_MAX_TENANTS; i++)
		if (l->tenant[i])
			kvpd_learnt_flush(l->tenant[i]);
	stored = kvpd_worker_stop_within(&l->store, l->store_ns);
	while (kvpd_ledger_finish_jobs(l))
		;
	for (uint32_t i = 1; !stored && i <= KVPD_MAX_TENANTS; i++)
		if (l->tenant[i])
			lost += l->tenant[i]->learner.saving +
				(uint32_t)__builtin_popcountll(l->tenant[i]->learner.changed);
	if (!stored)
		kvpd_warning("`state_dir`: the disk of %s has not answered for %u seconds; what "
			     "%u spaces have learnt of precision since it was last written is lost",
			l->state_dir, (unsigned)(l->store_ns / 1000000000), lost);
	return stored;
}
