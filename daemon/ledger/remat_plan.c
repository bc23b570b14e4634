/* SPDX-License-Identifier: Apache-2.0 */
/* What is loaded and what is computed: worked out on a thread of its own, since it may take a millisecond. */
#include <errno.h>
#include <stdlib.h>

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/medium.h"
#include "daemon/ledger/remat_parts.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"

/* Until a device was seen to be quicker, or said to be slower (copy_rate). */
#define LOAD_LATENCY 1e-4
#define LOAD_BYTES_S 1e9

struct kvpd_plan {
	struct kvpd_job job;
	struct kvpd_want *want;
	struct kvp_remat_model model;
	struct kvp_remat_source source;
	uint64_t first; /* position of the first token */
	uint32_t from;  /* block of the want that is piece 0 */
	int status;
	uint32_t n;
	uint32_t begin, end; /* blocks of the want to be computed */
	double seconds;
	uint8_t *action;
	struct kvp_remat_range *range;
	struct kvp_remat_piece piece[];
};

uint64_t kvpd_plan_bytes(uint32_t n)
{
	const struct kvpd_plan *p = NULL;

	return sizeof(*p) + KVP_REMAT_RUN_BYTES +
	       n * (uint64_t)(sizeof(p->piece[0]) + sizeof(*p->action) + sizeof(*p->range) +
			      KVP_REMAT_PIECE_BYTES);
}

int kvpd_plan_new(struct kvpd_want *w, uint32_t first)
{
	uint32_t n = w->n - first;
	struct kvpd_plan *p = calloc(1, sizeof(*p) + n * sizeof(p->piece[0]));
	uint64_t end;

	if (!p)
		return -ENOMEM;
	p->want = w;
	p->from = first;
	p->status = -ECANCELED;
	kvpd_want_tokens(w, first, first + 1, &p->first, &end);
	p->action = calloc(n, sizeof(*p->action));
	p->range = calloc(n, sizeof(*p->range));
	if (!p->action || !p->range) {
		kvpd_plan_free(p);
		return -ENOMEM;
	}
	w->plan = p;
	return 0;
}

void kvpd_plan_free(struct kvpd_plan *p)
{
	if (!p)
		return;
	free(p->action);
	free(p->range);
	free(p);
}

void kvpd_plan_add(struct kvpd_plan *p, uint32_t tokens, uint32_t tier, uint64_t bytes)
{
	/* In the planner's words what is where it is wanted is in the fastest tier, and devices are a store. */
	uint32_t as = tier == KVP_TIER_DRAM   ? KVP_TIER_VRAM
		      : tier == KVP_TIER_VRAM ? KVP_TIER_STORE
					      : tier;

	p->piece[p->n++] = (struct kvp_remat_piece){ .tokens = tokens, .tier = as, .bytes = bytes };
}

/* An offer's figures are those of the model's formula, divided by its speed: any speed will do. */
static struct kvp_remat_model model_of(const struct kvpd_offer *o)
{
	double token = o->terms.token * o->part, position = o->terms.position * o->part;
	double least = token * 1e-12; /* a token of 0 parameters there is not, nor of 1e18 */
	double speed = 4 / (position > least ? position : least);

	return (struct kvp_remat_model){
		.params = token * speed / 2,
		.layers = 1,
		.q_heads = 1,
		.head_dim = 1,
		.flops_per_second = speed,
		.launch_seconds = o->terms.launch * o->part,
	};
}

/*
 * A device's figure is of a second, in which it may have had little to do: it is as quick as that at least. The
 * slowest one of those that the tenant has a share of counts.
 */
static struct kvp_remat_source source_of(const struct kvpd_tenant *t)
{
	double slowest = 0;

	for (uint32_t i = 0; i < t->ledger->n_media; i++) {
		const struct kvpd_medium *m = &t->ledger->medium[i];
		struct kvpd_device_figures f = { 0 };
		double speed = LOAD_BYTES_S;

		if (!m->device || !t->part[i].blocks)
			continue;
		kvpd_device_figures(m->device, &f);
		if (m->copy_rate && (double)m->copy_rate < speed)
			speed = (double)m->copy_rate;
		if ((double)f.bytes_per_s[KVPD_TO_HOST] > speed)
			speed = (double)f.bytes_per_s[KVPD_TO_HOST];
		slowest = slowest > 0 && slowest < speed ? slowest : speed;
	}
	return (struct kvp_remat_source){ .latency = LOAD_LATENCY,
		.seconds_per_byte = 1 / (slowest > 0 ? slowest : LOAD_BYTES_S) };
}

/* The piece that begins at this position. */
static uint32_t piece_at(const struct kvpd_plan *p, uint64_t position)
{
	uint64_t at = p->first;
	uint32_t i = 0;

	while (i < p->n && at < position)
		at += p->piece[i++].tokens;
	return i;
}

/* Of several ranges the first is computed; when that is there the rest is planned anew. */
static void run(struct kvpd_job *job)
{
	struct kvpd_plan *p = kvpd_container(job, struct kvpd_plan, job);
	struct kvp_remat_opts opts;
	uint32_t n_ranges = 0;
	struct kvp_remat *r;

	kvp_remat_opts_init(&opts, p->n, 1);
	opts.model = p->model;
	opts.source[KVP_TIER_STORE] = p->source;
	p->status = kvp_remat_new(&opts, &r);
	if (p->status < 0)
		return;
	p->status = kvp_remat_restore(
		r, p->piece, p->n, p->first, p->action, p->range, &n_ranges, &p->seconds);
	kvp_remat_free(r);
	if (p->status == 0 && n_ranges) {
		p->begin = p->from + piece_at(p, p->range[0].begin);
		p->end = p->from + piece_at(p, p->range[0].end);
	}
}

static void done(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct kvpd_plan *p = kvpd_container(job, struct kvpd_plan, job);
	struct kvpd_want *w = p->want;

	kvpd_ledger_charge(l, w->tenant);
	w->tenant->n_jobs--;
	w->plan = NULL;
	kvpd_want_planned(w, p->status, p->begin, p->end, p->seconds);
	kvpd_plan_free(p);
}

void kvpd_plan_make(struct kvpd_plan *p, const struct kvpd_offer *o)
{
	struct kvpd_tenant *t = p->want->tenant;

	p->model = model_of(o);
	p->source = source_of(t);
	p->job.tenant = t->id;
	p->job.run = run;
	p->job.done = done;
	t->n_jobs++;
	kvpd_worker_submit(&t->ledger->planner, &p->job);
}
