/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of coded blocks, and the width that follows from them. */
#include "daemon/ledger/quality.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "daemon/ledger/class.h"
#include "daemon/ledger/mover.h"
#include "daemon/ledger/precision.h"
#include "daemon/ledger/tenant.h"

#define LEAST_LIMIT 1e-12 /* of a codec that loses nothing */
/* Of a layer's running mean; as slow as the mean of KVP_QUALITY_RECENT. */
#define LAYER_STEP .02f

static double target(const struct kvpd_tenant *t)
{
	return t->limits.quality_target / 100.;
}

int kvpd_quality_new(const struct kvpd_codes *codes, struct kvpd_quality **ret_quality)
{
	/* The native zone is the owner's business: only the width is turned. */
	const struct kvp_threshold start = { KVP_THRESHOLD_HOT_MIN, KVP_THRESHOLD_HOT_MIN,
		codes->lowest };
	const struct kvp_adapt_opts opts = {
		.size = sizeof(opts),
		.target = 1, /* until the first score comes */
		.period = KVPD_QUALITY_PERIOD,
		.most_bits = kvp_width_bits(KVP_WIDTH_NATIVE),
		.least_bits = kvp_width_bits(codes->lowest),
	};
	struct kvpd_quality *q = calloc(1, sizeof(*q));

	if (!q || kvp_adapt_init(&q->adapt, &opts, &start) < 0) {
		free(q);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < KVP_MAX_LAYERS; i++)
		q->layer[i] = -1;
	q->start.origin = KVP_ORIGIN_DEFAULT;
	*ret_quality = q;
	return 0;
}

void kvpd_quality_start(struct kvpd_tenant *t, uint32_t space, uint32_t width, uint32_t origin)
{
	struct kvpd_quality *q = t->space[space].quality;
	uint32_t lowest = t->space[space].codes->lowest;

	if (q->adapt.changes)
		return;
	q->adapt.now.archive_width = width < lowest ? width : lowest;
	q->adapt.since_change = 0;
	q->start.origin = origin;
}

const char *kvpd_quality_origin(const struct kvpd_tenant *t, uint32_t space)
{
	static const char *const words[] = {
		[KVP_ORIGIN_MEASURED] = "measured",
		[KVP_ORIGIN_INHERITED] = "inherited",
		[KVP_ORIGIN_DEFAULT] = "default",
	};
	const struct kvpd_quality *q = t->space[space].quality;

	return q ? words[q->start.origin] : "";
}

uint32_t kvpd_quality_width(const struct kvpd_tenant *t, uint32_t space, uint32_t floor)
{
	const struct kvpd_quality *q = t->space[space].quality;

	return q && t->limits.quality_target && q->adapt.now.archive_width < floor
		       ? q->adapt.now.archive_width
		       : floor;
}

/* ---- scores ---------------------------------------------------------------------------------- */

/* Whose score may come now; NULL: nobody's. */
static struct kvpd_quality *listening(struct kvpd_tenant *t, uint32_t space)
{
	return t->limits.quality_target ? t->space[space].quality : NULL;
}

static void add(struct kvpd_tenant *t, uint32_t space, struct kvpd_quality *q, float score)
{
	uint32_t floor = kvpd_width_floor(t, space);

	/* Both may have changed since, by a reload. */
	if (q->adapt.opts.target != target(t))
		(void)kvp_adapt_retarget(&q->adapt, target(t));
	if (q->adapt.now.archive_width > floor)
		q->adapt.now.archive_width = floor;
	kvpd_learnt_scored(t, space, kvp_adapt_sample(&q->adapt, score) > 0);
	q->idle = 0;
}

int kvpd_quality_reported(struct kvpd_tenant *t, uint32_t space, float score)
{
	struct kvpd_quality *q = listening(t, space);

	if (!(score >= 0 && score <= 1))
		return -EINVAL;
	if (!q)
		return -EOPNOTSUPP;
	q->reported++;
	add(t, space, q, score);
	return 0;
}

void kvpd_quality_checked(struct kvpd_tenant *t, uint32_t space, const struct kvpd_check *c)
{
	struct kvpd_quality *q = listening(t, space);

	if (!q || !c->done || !c->heads)
		return;
	q->limit[0] = c->limit[0];
	q->limit[1] = c->limit[1];
	q->worst = c->worst;
	if (c->tokens > q->tokens)
		q->tokens = c->tokens;
	for (uint32_t i = 0; i < KVP_MAX_LAYERS; i++) {
		if (c->layer[i] < 0)
			continue;
		q->layer[i] += q->layer[i] < 0 ? c->layer[i] - q->layer[i]
					       : LAYER_STEP * (c->layer[i] - q->layer[i]);
	}
	q->checked++;
	add(t, space, q, (float)c->within / (float)c->heads);
}

void kvpd_quality_wanted(struct kvpd_tenant *t, const struct kvpd_class *c)
{
	for (uint32_t i = 0; t->limits.quality_target && i < KVP_MAX_SPACES; i++) {
		struct kvpd_quality *q = t->space[i].quality;

		if (!q || q->adapt.now.archive_width != KVP_WIDTH_NATIVE || t->space[i].cls != c ||
			++q->idle < KVP_QUALITY_WINDOW)
			continue;
		q->idle = 0;
		if (kvp_adapt_retry(&q->adapt) > 0)
			kvpd_learnt_scored(t, i, true);
	}
}

/* ---- checks ---------------------------------------------------------------------------------- */

struct kvpd_check *kvpd_check_new(struct kvpd_tenant *t, uint32_t space, uint32_t blocks)
{
	struct kvpd_quality *q = listening(t, space);
	struct kvpd_check *c;

	if (!q)
		return NULL;
	q->unchecked += blocks;
	if (q->unchecked < KVPD_CHECK_EVERY)
		return NULL;
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	q->unchecked = 0;
	c->limit[0] = q->limit[0];
	c->limit[1] = q->limit[1];
	return c;
}

/* What the floor's codecs may lose, which is asked once for a space. */
static int find_limits(const struct kvpd_codes *codes, double limit[2])
{
	const struct kvp_block_layout *l = &codes->width[codes->lowest];
	void *scratch = aligned_alloc(64, kvp_payload_golden_scratch(l));
	int r = scratch ? 0 : -ENOMEM;

	for (uint32_t kind = 0; r == 0 && kind < 2; kind++) {
		double golden = 0;

		r = kvp_payload_golden(codes->kernels, l, kind, scratch, &golden);
		if (r == -ENOENT)
			r = 0; /* there are none, or they stay native */
		limit[kind] = fmax(KVPD_CHECK_LIMIT * golden, LEAST_LIMIT);
	}
	free(scratch);
	return r;
}

void kvpd_check_run(const struct kvpd_codes *codes, const struct kvpd_move *m, struct kvpd_check *c)
{
	const struct kvp_block_layout *to = &codes->width[m->width];
	void *scratch = aligned_alloc(64, (codes->scratch + 63) / 64 * 64);
	int r = scratch ? 0 : -ENOMEM;

	if (r == 0 && !(c->limit[0] > 0))
		r = find_limits(codes, c->limit);
	for (uint32_t i = 0; i < KVP_MAX_LAYERS; i++)
		c->layer[i] = -1;
	for (uint32_t i = 0; r == 0 && i < to->n_layers; i++) {
		struct kvp_payload_error e;

		r = kvp_payload_compare(codes->kernels, &codes->width[0], m->src, to, m->dst, i,
			scratch, c->limit, &e);
		if (r < 0 || !e.heads)
			continue;
		c->layer[i] = (float)e.within / (float)e.heads;
		c->heads += e.heads;
		c->within += e.within;
		c->worst = fmax(c->worst, e.worst);
	}
	free(scratch);
	c->done = r == 0;
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Of an element in this width: the mean that tokens share, where they have bits of their own. */
static double bits_of(const struct kvpd_tenant *t, uint32_t space, uint32_t width)
{
	const struct kvpd_codes *c = t->space[space].codes;
	double sum = 0;
	uint32_t kinds = 0;

	for (uint32_t kind = 0; c && width && kind < 2; kind++) {
		uint32_t budget = kvp_payload_token_budget(&c->width[width], kind);

		sum += (double)budget / c->width[width].tokens;
		kinds += budget != 0;
	}
	return kinds ? sum / kinds : kvp_width_bits(width);
}

void kvpd_quality_read(
	const struct kvpd_tenant *t, uint32_t space, struct kvpd_quality_figures *ret_figures)
{
	const struct kvpd_quality *q = t->space[space].quality;
	uint32_t floor = kvpd_width_floor(t, space), width = kvpd_width_lowest(t, space);
	struct kvpd_quality_figures f = {
		.floor_bits = bits_of(t, space, floor),
		.coding_bits = bits_of(t, space, width),
		.mean = -1,
		.worst = -1,
	};

	if (q) {
		f.spaces = 1;
		f.raised = width < floor;
		f.samples = q->adapt.quality.count;
		(void)kvp_quality_mean(&q->adapt.quality, KVP_QUALITY_RECENT, &f.mean);
		f.worst = q->checked ? q->worst : -1;
		f.checked = q->checked;
		f.reported = q->reported;
		f.changes = q->adapt.changes;
	}
	*ret_figures = f;
}

void kvpd_quality_sum(const struct kvpd_tenant *t, struct kvpd_quality_figures *ret_figures)
{
	struct kvpd_quality_figures sum = { .mean = -1, .worst = -1 }, f;

	for (uint32_t i = 0; t->precision.floors && i < KVP_MAX_SPACES; i++) {
		if (!t->space[i].quality)
			continue;
		kvpd_quality_read(t, i, &f);
		kvpd_quality_add(&sum, &f);
	}
	*ret_figures = sum;
}
