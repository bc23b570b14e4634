/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over parts that are native or in a codec: the workspace, and the three phases that every
 * instruction set shares. What the parts' planes say is in attend_plane.c.
 */
#include "kernels/attend_plane.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <errno.h>
#include <math.h>

#define ALIGN      64u
#define CACHE_LINE 64u

#define HEADERS_AHEAD 8u

/*
 * The workspace: this header; the queries as [domain][kv_head][row][k_dim], where row is
 * query * group + head in the group; the sums of each; the queries as tiles, where they may be of
 * use; one area per split.
 */
struct workspace {
	struct domains k;
	struct domains v;
	uint32_t rotations;
	uint32_t tiles; /* of domains, as bits: in which queries are there as tiles */
	uint32_t pairs; /* of native keys' dtypes, as bits: for which queries are there in bf16 */
};

struct shape {
	uint32_t rows;     /* queries of one KV head */
	size_t q;          /* offset of the queries */
	size_t q_domain;   /* floats per domain */
	size_t sums;       /* [domain][kv_head][row] */
	size_t tiles;      /* [domain][kv_head] */
	size_t tiles_head; /* bytes of a KV head's; 0: never used */
	size_t pairs;      /* [dtype][kv_head] */
	size_t pairs_head; /* likewise */
	size_t split0;
	size_t split; /* bytes per split */
	size_t bytes;
};

/*
 * A split's area. Accumulators are multiplied by a new factor whenever the maximum of the scores
 * grows; fade holds what those of a domain still have to be multiplied by, so that only a domain
 * in use is touched, and only where it is read and written anyway.
 */
struct split {
	float *scores; /* [row][ATTEND_CHUNK] */
	float *rows;   /* [ATTEND_CHUNK][dim]: rows of codecs that cannot be attended in place */
	struct running *run; /* [kv_head][row] */
	float *fade;         /* [kv_head][domain][row] */
	float *acc;          /* [kv_head][domain][row][v_dim] */
};

static size_t align(size_t n)
{
	return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static size_t rows_bytes(const struct kvp_attention *a)
{
	return align(
		(size_t)ATTEND_CHUNK * (a->k_dim > a->v_dim ? a->k_dim : a->v_dim) * sizeof(float));
}

static int shape_init(const struct kvp_attention *a, struct shape *ret)
{
	struct shape s = { 0 };
	uint32_t esize = sizeof(float);
	size_t heads;

	if (a->size != sizeof *a || !a->queries || a->queries > KVP_ATTEND_QUERIES_MAX ||
		!a->kv_heads || a->kv_heads > KVP_PLANE_HEADS_MAX || !a->q_heads ||
		a->q_heads > KVP_ATTEND_Q_HEADS_MAX || a->q_heads % a->kv_heads ||
		a->k_dim < KVP_PLANE_DIM_MIN || a->k_dim > KVP_PLANE_DIM_MAX ||
		a->v_dim < KVP_PLANE_DIM_MIN || a->v_dim > KVP_PLANE_DIM_MAX || !a->n_splits ||
		a->n_splits > KVP_ATTEND_SPLITS_MAX || a->n_parts > KVP_ATTEND_PARTS_MAX)
		return -EINVAL;
	s.rows = a->queries * (a->q_heads / a->kv_heads);
	s.q = align(sizeof(struct workspace));
	heads = (size_t)a->kv_heads * s.rows;
	s.q_domain = heads * a->k_dim;
	s.sums = s.q + align(DOMAINS * s.q_domain * esize);
	s.tiles = s.sums + align(DOMAINS * heads * esize);
	if (a->k_dim % 64 == 0)
		s.tiles_head = (s.rows + KVP_TILE_QUERIES - 1) / KVP_TILE_QUERIES *
			       kvp_tiles_bytes(a->k_dim);
	s.pairs = s.tiles + DOMAINS * a->kv_heads * s.tiles_head;
	if (a->k_dim % 32 == 0)
		s.pairs_head = (s.rows + KVP_TILE_QUERIES - 1) / KVP_TILE_QUERIES *
			       kvp_pairs_bytes(a->k_dim);
	s.split0 = s.pairs + 2 * a->kv_heads * s.pairs_head;
	s.split = align((size_t)s.rows * ATTEND_CHUNK * esize) + rows_bytes(a) +
		  align(heads * sizeof(struct running)) + align(DOMAINS * heads * esize) +
		  align(DOMAINS * heads * a->v_dim * esize);
	s.bytes = s.split0 + a->n_splits * s.split;
	*ret = s;
	return 0;
}

static struct split split_area(const struct kvp_attention *a, const struct shape *s, uint32_t split)
{
	uint8_t *at = (uint8_t *)a->workspace + s->split0 + split * s->split;
	struct split area;

	area.scores = (float *)(void *)at;
	at += align((size_t)s->rows * ATTEND_CHUNK * sizeof(float));
	area.rows = (float *)(void *)at;
	at += rows_bytes(a);
	area.run = (struct running *)(void *)at;
	at += align((size_t)a->kv_heads * s->rows * sizeof *area.run);
	area.fade = (float *)(void *)at;
	at += align((size_t)a->kv_heads * DOMAINS * s->rows * sizeof(float));
	area.acc = (float *)(void *)at;
	return area;
}

uint32_t kvp_attend_splits(uint64_t tokens, uint32_t kv_heads, uint32_t threads)
{
	uint64_t most = threads < KVP_ATTEND_SPLITS_MAX ? threads : KVP_ATTEND_SPLITS_MAX;
	uint64_t worth = tokens / KVP_ATTEND_SPLIT_MIN * kv_heads +
			 tokens % KVP_ATTEND_SPLIT_MIN * kv_heads / KVP_ATTEND_SPLIT_MIN;

	if (worth < most)
		most = worth;
	return most ? (uint32_t)most : 1;
}

int kvp_attend_workspace(const struct kvp_attention *a, size_t *ret_bytes)
{
	struct shape s;
	int r = shape_init(a, &s);

	if (r < 0)
		return r;
	*ret_bytes = s.bytes;
	return 0;
}

/* ---- fetching ahead ---- */

static void fetch(const uint8_t *p, size_t bytes)
{
	for (size_t i = 0; p && i < bytes; i += CACHE_LINE)
		__builtin_prefetch(p + i);
}

/* Payloads lie anywhere: the first look at one misses the caches and its page's translation. */
static void fetch_headers(const struct kvp_attention *a, uint32_t part)
{
	if (part >= a->n_parts)
		return;
	fetch(a->parts[part].k.data, KVP_PLANE_HDR_BYTES);
	fetch(a->parts[part].v.data, KVP_PLANE_HDR_BYTES);
}

/* ---- rows of floats ---- */

typedef float lanes __attribute__((vector_size(16)));
#define LANES ((uint32_t)(sizeof(lanes) / sizeof(float)))

static lanes load_lanes(const float *p)
{
	lanes v;

	memcpy(&v, p, sizeof v);
	return v;
}

static void store_lanes(float *p, lanes v)
{
	memcpy(p, &v, sizeof v);
}

/* out = x * f */
static void scale_row(float *out, const float *x, uint32_t n, float f)
{
	uint32_t c = 0;

	for (; c + LANES <= n; c += LANES)
		store_lanes(out + c, load_lanes(x + c) * f);
	for (; c < n; c++)
		out[c] = x[c] * f;
}

static void add_row(float *to, const float *x, uint32_t n)
{
	uint32_t c = 0;

	for (; c + LANES <= n; c += LANES)
		store_lanes(to + c, load_lanes(to + c) + load_lanes(x + c));
	for (; c < n; c++)
		to[c] += x[c];
}

static float sum_row(const float *x, uint32_t n)
{
	lanes sum[2] = { { 0 }, { 0 } };
	uint32_t c = 0;
	float rest = 0.0f;

	for (; c + 2 * LANES <= n; c += 2 * LANES) {
		sum[0] += load_lanes(x + c);
		sum[1] += load_lanes(x + c + LANES);
	}
	for (; c < n; c++)
		rest += x[c];
	sum[0] += sum[1];
	return sum[0][0] + sum[0][1] + (sum[0][2] + sum[0][3]) + rest;
}

/* ---- the three phases ---- */

/* Row `row` of a KV head in a domain: where its floats and their sum lie. */
struct query_place {
	float *f;
	float *sum;
};

static struct query_place query_place(const struct kvp_attention *a, const struct shape *s,
	uint32_t domain, uint32_t head, uint32_t row)
{
	uint8_t *base = a->workspace;
	size_t at = ((size_t)domain * a->kv_heads + head) * s->rows + row;

	return (struct query_place){
		(float *)(void *)(base + s->q) + at * a->k_dim,
		(float *)(void *)(base + s->sums) + at,
	};
}

static void *tiles_place(
	const struct kvp_attention *a, const struct shape *s, uint32_t domain, uint32_t head)
{
	return (uint8_t *)a->workspace + s->tiles +
	       ((size_t)domain * a->kv_heads + head) * s->tiles_head;
}

static void *pairs_place(
	const struct kvp_attention *a, const struct shape *s, uint32_t dtype, uint32_t head)
{
	return (uint8_t *)a->workspace + s->pairs +
	       ((size_t)(dtype - KVP_DTYPE_F16) * a->kv_heads + head) * s->pairs_head;
}

/* Native rows are in no domain but the plain one. */
static struct kvp_queries queries_of(
	const struct kvp_attention *a, const struct shape *s, uint32_t domain, uint32_t head)
{
	const struct workspace *ws = a->workspace;
	struct query_place p = query_place(a, s, domain, head, 0);
	struct kvp_queries q = { s->rows, p.f, p.sum,
		ws->tiles & 1u << domain ? tiles_place(a, s, domain, head) : NULL, domain == 0,
		{ NULL, NULL } };

	for (uint32_t i = KVP_DTYPE_F16; i <= KVP_DTYPE_BF16 && !domain; i++)
		if (ws->pairs & 1u << i)
			q.pairs[i - KVP_DTYPE_F16] = pairs_place(a, s, i, head);
	return q;
}

/* As many queries of a KV head as there are tiles or bytes for; 0: there are none. */
static uint32_t tiles_for(const struct kvp_kernels *k, const struct shape *s)
{
	return k->tiles.queries && s->rows >= k->tiles.least ? s->rows : 0;
}

/* The same of tiles of bf16. */
static uint32_t pairs_for(const struct kvp_kernels *k, const struct shape *s)
{
	return k->tiles.pairs ? s->rows : 0;
}

/* What tiles of bf16 take of the queries, where native keys are among the parts. */
static void pair_queries(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, struct workspace *ws)
{
	uint32_t seen = 0;

	ws->pairs = 0;
	if (!k->tiles.pairs || !s->pairs_head)
		return;
	for (uint32_t i = 0; i < a->n_parts; i++)
		if (a->parts[i].k.codec == KVP_CODEC_NATIVE)
			seen |= 1u << a->parts[i].k.dtype;
	for (uint32_t i = KVP_DTYPE_F16; i <= KVP_DTYPE_BF16; i++)
		for (uint32_t h = 0; seen & 1u << i && h < a->kv_heads; h++)
			if (k->tiles.pairs(query_place(a, s, 0, h, 0).f, s->rows, a->k_dim, i,
				    pairs_place(a, s, i, h)))
				ws->pairs |= 1u << i;
}

/* Queries in all their domains, and what matrix tiles take of them. */
static void gather_queries(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, struct workspace *ws)
{
	uint32_t group = a->q_heads / a->kv_heads;

	for (uint32_t h = 0; h < a->kv_heads; h++) {
		for (uint32_t i = 0; i < s->rows; i++) {
			size_t from = (size_t)(i / group) * a->q_heads + h * group + i % group;

			for (uint32_t d = 0; d <= ws->k.n; d++) {
				struct query_place p = query_place(a, s, d, h, i);

				memcpy(p.f, a->q + from * a->k_dim, a->k_dim * sizeof *p.f);
				if (d)
					k->dsp.rotate(&ws->k.rot[d - 1], 0, p.f);
				*p.sum = sum_row(p.f, a->k_dim);
			}
		}
	}
	ws->rotations = ws->k.n;
	ws->tiles = 0;
	if (s->tiles_head && tiles_for(k, s))
		ws->tiles = k->tiles.any ? ws->k.codes : ws->k.books;
	for (uint32_t h = 0; ws->tiles && h < a->kv_heads; h++)
		for (uint32_t d = 0; d <= ws->k.n; d++)
			if (ws->tiles & 1u << d)
				k->tiles.queries(query_place(a, s, d, h, 0).f, s->rows, a->k_dim,
					d == 0, tiles_place(a, s, d, h));
	pair_queries(k, a, s, ws);
}

int kvp_attend_prepare(const struct kvp_kernels *k, const struct kvp_attention *a)
{
	struct workspace *ws = a->workspace;
	uint64_t tokens = 0;
	struct plane_view key = { .known = 0 }, value = { .known = 0 };
	struct shape s;
	int r;

	r = shape_init(a, &s);
	if (r < 0)
		return r;
	if (!ws || (uintptr_t)ws % ALIGN || !a->q || (a->n_parts && !a->parts))
		return -EINVAL;
	if (a->workspace_size < s.bytes)
		return -ENOSPC;
	ws->k.n = ws->k.books = ws->k.codes = 0;
	ws->v.n = ws->v.books = ws->v.codes = 0;
	for (uint32_t i = 0; i < a->n_parts; i++) {
		const struct kvp_attend_part *part = &a->parts[i];

		fetch_headers(a, i + HEADERS_AHEAD);
		r = kvp_attend_view(a, part, KVP_PLANE_K, &key);
		if (!r)
			r = kvp_attend_domain_add(&ws->k, &key, part->k.calib);
		if (!r)
			r = kvp_attend_view(a, part, KVP_PLANE_V, &value);
		if (!r)
			r = kvp_attend_domain_add(&ws->v, &value, part->v.calib);
		if (r < 0)
			return r;
		tokens += part->tokens;
	}
	if (a->mask && a->mask_stride < tokens)
		return -EINVAL;
	gather_queries(k, a, &s, ws);
	return 0;
}

/* The tokens [lo, hi) of n beginning at token `at` that a query may see. */
static void visible(const struct kvp_attention *a, uint32_t query, uint64_t at, struct softmax *job)
{
	uint64_t pos = a->position + query;

	job->lo = 0;
	job->hi = job->n;
	if (a->causal && pos < at + job->n)
		job->hi = pos < at ? 0 : (uint32_t)(pos - at + 1);
	if (a->window && pos + 1 > a->window && pos + 1 - a->window > at) {
		uint64_t lo = pos + 1 - a->window - at;

		job->lo = lo < job->n ? (uint32_t)lo : job->n;
	}
}

static uint32_t row_bytes(const struct kvp_rows *r)
{
	switch (r->form) {
	case KVP_FORM_NATIVE:
		return r->dim * dtype_bytes(r->format);
	case KVP_FORM_FP8:
	case KVP_FORM_INT8:
		return r->dim;
	default:
		return kvp_row_bytes(r->bits, r->dim);
	}
}

/*
 * Has the codes of `next` fetched while r is worked on; the few scales are asked for at once. What
 * is read next was not read lately, and the hardware prefetcher begins anew in every page.
 */
static void fetch_while(struct kvp_rows *r, const struct kvp_rows *next)
{
	size_t scalars = (size_t)next->n * next->groups;

	if (next->form == KVP_FORMS)
		return;
	r->next = next->codes;
	r->next_stride = next->stride;
	r->next_n = next->n;
	r->next_bytes = row_bytes(next);
	if (next->per_channel)
		scalars = (size_t)(next->n / next->group) * next->dim;
	else if (next->form == KVP_FORM_BOOK && next->format)
		scalars *= 2;
	fetch(next->scale, 2 * scalars);
	fetch(next->minimum, 2 * scalars);
}

static int score_chunk(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, const struct chunk *c, const struct split *area)
{
	struct kvp_queries q = queries_of(a, s, c->pv->k.domain, c->head);
	struct kvp_rows rows = c->k;
	int r = kvp_attend_rows_ready(
		k, &c->pv->k, &c->pv->part->k, c->head, c->t, area->rows, &rows);

	if (r < 0)
		return r;
	fetch_while(&rows, &c->v);
	k->attend[rows.form].score(&rows, &q, area->scores, ATTEND_CHUNK);
	return 0;
}

/* Scores to weights. Returns whether some query does not see some token. */
static int weigh(const struct kvp_kernels *k, const struct kvp_attention *a, const struct shape *s,
	const struct domains *dv, const struct split *area, const struct chunk *c)
{
	uint32_t group = a->q_heads / a->kv_heads;
	float *fade = area->fade + (size_t)c->head * DOMAINS * s->rows;
	struct running *run = area->run + (size_t)c->head * s->rows;
	uint64_t at = c->pv->at + c->t;
	int hidden = a->mask != NULL;

	for (uint32_t i = 0; i < s->rows; i++) {
		struct softmax job = { .scale = a->scale, .n = c->n };
		float f;

		if (a->mask)
			job.mask = a->mask + (i / group) * a->mask_stride + at;
		visible(a, i / group, at, &job);
		hidden |= job.lo > 0 || job.hi < c->n;
		f = k->dsp.softmax(&job, area->scores + (size_t)i * ATTEND_CHUNK, &run[i]);
		for (uint32_t d = 0; d <= dv->n; d++)
			fade[(size_t)d * s->rows + i] *= f;
	}
	return hidden;
}

/* Whether any query of the KV head gives token t of the chunk a weight. */
static int weighted(const struct shape *s, const struct split *area, uint32_t t)
{
	for (uint32_t i = 0; i < s->rows; i++)
		if (area->scores[(size_t)i * ATTEND_CHUNK + t] != 0.0f)
			return 1;
	return 0;
}

/* Values times weights, tokens [first, end) of the chunk. */
static int accumulate_run(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, const struct chunk *c, const struct split *area, uint32_t first,
	uint32_t end, const struct chunk *next)
{
	const struct plane_view *view = &c->pv->v;
	const struct kvp_attend_plane *ap = &c->pv->part->v;
	size_t at = ((size_t)c->head * DOMAINS + view->domain) * s->rows;
	struct kvp_weights w = { s->rows, area->scores + first, ATTEND_CHUNK, area->fade + at };
	struct kvp_rows rows = c->v;
	int r;

	if (end - first < c->n)
		rows = kvp_attend_rows(view, ap, c->head, c->t + first, end - first);
	r = kvp_attend_rows_ready(k, view, ap, c->head, c->t + first, area->rows, &rows);
	if (r < 0)
		return r;
	if (next->pv)
		fetch_while(&rows, &next->k);
	rows.tiles = rows.form == KVP_FORM_NATIVE ? pairs_for(k, s) : tiles_for(k, s);
	k->attend[rows.form].accumulate(&rows, &w, area->acc + at * a->v_dim);
	for (uint32_t i = 0; i < s->rows; i++)
		area->fade[at + i] = 1.0f;
	return 0;
}

/*
 * With masks, tokens that no query sees are left out, not multiplied by 0: what lies there may be
 * anything, NaN included.
 */
static int accumulate_chunk(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, const struct chunk *c, const struct split *area, int hidden,
	const struct chunk *next)
{
	int r = 0;

	if (!hidden)
		return accumulate_run(k, a, s, c, area, 0, c->n, next);
	for (uint32_t i = 0; i < c->n && !r;) {
		uint32_t first;

		while (i < c->n && !weighted(s, area, i))
			i++;
		for (first = i; i < c->n && weighted(s, area, i);)
			i++;
		if (first < i)
			r = accumulate_run(k, a, s, c, area, first, i, next);
	}
	return r;
}

/* Whether each query sees every token of the chunk. */
static int all_visible(const struct kvp_attention *a, const struct chunk *c)
{
	uint64_t at = c->pv->at + c->t;

	if (a->mask)
		return 0;
	for (uint32_t i = 0; i < a->queries; i++) {
		struct softmax job = { .n = c->n };

		visible(a, i, at, &job);
		if (job.lo > 0 || job.hi < c->n)
			return 0;
	}
	return 1;
}

/* Bytes from a head's rows to the next head's, of a plane that is a codec's. */
static size_t head_codes(const struct plane_view *v)
{
	return (size_t)v->lay.coded * v->lay.row_bytes;
}

static size_t head_scales(const struct plane_view *v)
{
	return (size_t)v->lay.coded * (v->in.form == KVP_FORM_BOOK && v->in.format ? 4 : 2);
}

/*
 * The chunk, and those of the same tokens of `heads` heads in all, from scores to sums in one go;
 * next: what is read behind them. Returns whether there is such a kernel for it.
 */
static int step_chunk(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, const struct chunk *c, uint32_t heads, const struct split *area,
	const struct chunk *next)
{
	const struct workspace *ws = a->workspace;
	size_t head = (size_t)c->head * DOMAINS * s->rows;
	size_t own = (size_t)c->pv->v.domain * s->rows;
	struct kvp_queries q = queries_of(a, s, c->pv->k.domain, c->head);
	float grown[KVP_ATTEND_Q_HEADS_MAX], *fade = area->fade + head;
	struct kvp_rows keys = c->k, values = c->v;
	struct kvp_step step = { &keys, &values, &q, a->scale,
		area->run + (size_t)c->head * s->rows, fade + own, grown,
		area->acc + (head + own) * a->v_dim, heads,
		{ head_codes(&c->pv->k), head_scales(&c->pv->k), head_codes(&c->pv->v),
			head_scales(&c->pv->v), s->tiles_head, (size_t)DOMAINS * s->rows,
			(size_t)DOMAINS * s->rows * a->v_dim } };

	if (next->pv) {
		fetch_while(&keys, &next->k);
		fetch_while(&values, &next->v);
	}
	if (!k->tiles.step(&step))
		return 0;
	for (uint32_t h = 0; h < heads; h++, fade += DOMAINS * s->rows) {
		for (uint32_t d = 0; d <= ws->v.n; d++)
			for (uint32_t i = 0; i < s->rows; i++)
				fade[(size_t)d * s->rows + i] *= grown[h * s->rows + i];
		for (uint32_t i = 0; i < s->rows; i++)
			fade[own + i] = 1.0f;
	}
	return 1;
}

/* Whether rows are such, one scale each, that a kernel may take them in one go. */
static int coded(const struct kvp_kernels *k, const struct kvp_rows *r)
{
	if (r->form == KVP_FORM_AFFINE)
		return k->tiles.any && !r->per_channel && r->groups == 1;
	return r->form == KVP_FORM_BOOK || (k->tiles.any && r->form == KVP_FORM_INT8);
}

/* As many heads, from the chunk's on, as a kernel takes in one go; 0: there is none for them. */
static uint32_t heads_at_once(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, const struct chunk *c)
{
	const struct part_view *pv = c->pv;

	if (!tiles_for(k, s) || s->rows > KVP_ATTEND_Q_HEADS_MAX || !coded(k, &c->k) ||
		!coded(k, &c->v) || !all_visible(a, c))
		return 0;
	if (c->n < pv->part->tokens || s->rows * a->kv_heads > KVP_ATTEND_Q_HEADS_MAX)
		return 1;
	return a->kv_heads - c->head;
}

static int attend_part(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, const struct split *area, const struct part_view *pv,
	const struct part_view *after)
{
	const struct workspace *ws = a->workspace;
	struct chunk c = kvp_attend_chunk_first(pv);

	while (c.pv == pv) {
		uint32_t heads = heads_at_once(k, a, s, &c);
		struct chunk next = heads > 1 ? kvp_attend_chunk_first(after)
					      : kvp_attend_chunk_next(a, &c, after);
		int r = 0;

		if (!heads || !step_chunk(k, a, s, &c, heads, area, &next)) {
			if (heads > 1)
				next = kvp_attend_chunk_next(a, &c, after);
			r = score_chunk(k, a, s, &c, area);
			if (!r)
				r = accumulate_chunk(
					k, a, s, &c, area, weigh(k, a, s, &ws->v, area, &c), &next);
		}
		if (r < 0)
			return r;
		c = next;
	}
	return 0;
}

static void split_begin(const struct kvp_attention *a, const struct shape *s, uint32_t domains,
	const struct split *area)
{
	size_t heads = (size_t)a->kv_heads * s->rows, domain = (size_t)s->rows * a->v_dim;

	for (size_t i = 0; i < heads; i++)
		area->run[i] = (struct running){ -INFINITY, 0.0f };
	for (size_t i = 0; i < DOMAINS * heads; i++)
		area->fade[i] = 1.0f;
	for (uint32_t h = 0; h < a->kv_heads; h++)
		memset(area->acc + h * DOMAINS * domain, 0, domains * domain * sizeof(float));
}

/* Applies what is left in fade. */
static void split_end(const struct kvp_attention *a, const struct shape *s, uint32_t domains,
	const struct split *area)
{
	for (uint32_t h = 0; h < a->kv_heads; h++) {
		for (uint32_t i = 0; i < domains * s->rows; i++) {
			size_t at = (size_t)h * DOMAINS * s->rows + i;

			if (area->fade[at] != 1.0f)
				scale_row(area->acc + at * a->v_dim, area->acc + at * a->v_dim,
					a->v_dim, area->fade[at]);
		}
	}
}

int kvp_attend_range(const struct kvp_kernels *k, const struct kvp_attention *a, uint32_t split)
{
	struct workspace *ws = a->workspace;
	/* The part at hand and the one after it, in turn. */
	struct part_view view[2] = { { .part = NULL }, { .part = NULL } };
	uint32_t first, last;
	struct split area;
	uint64_t at = 0;
	struct shape s;
	int r;

	r = shape_init(a, &s);
	if (r < 0 || split >= a->n_splits)
		return -EINVAL;
	first = (uint32_t)((uint64_t)a->n_parts * split / a->n_splits);
	last = (uint32_t)((uint64_t)a->n_parts * (split + 1) / a->n_splits);
	area = split_area(a, &s, split);
	split_begin(a, &s, ws->v.n + 1, &area);
	if (k->tiles.begin)
		k->tiles.begin(s.rows);
	for (uint32_t i = 0; i < first; i++)
		at += a->parts[i].tokens;
	if (first < last)
		r = kvp_attend_part_view(a, &ws->k, &ws->v, first, at, &view[0]);
	for (uint32_t i = first; i < last && !r; i++) {
		struct part_view *pv = &view[(i - first) % 2], *after = NULL;

		if (i + 1 < last) {
			fetch_headers(a, i + 2);
			after = &view[(i + 1 - first) % 2];
			r = kvp_attend_part_view(
				a, &ws->k, &ws->v, i + 1, pv->at + pv->part->tokens, after);
		}
		if (!r)
			r = attend_part(k, a, &s, &area, pv, after);
	}
	if (k->tiles.end)
		k->tiles.end();
	split_end(a, &s, ws->v.n + 1, &area);
	return r;
}

/* Folds every split into split 0: maximum, sum and accumulators of one row. */
static void merge_row(const struct kvp_attention *a, const struct shape *s, uint32_t domains,
	uint32_t head, uint32_t row)
{
	struct split to = split_area(a, s, 0);
	size_t at = (size_t)head * s->rows + row;
	size_t domain = (size_t)s->rows * a->v_dim;
	size_t acc = (size_t)head * DOMAINS * domain + (size_t)row * a->v_dim;

	for (uint32_t i = 1; i < a->n_splits; i++) {
		struct split from = split_area(a, s, i);
		struct running *x = &to.run[at], *y = &from.run[at];
		float max = y->max > x->max ? y->max : x->max;
		float shift = max == -INFINITY ? 0.0f : max;
		float f0 = expf(x->max - shift), f1 = expf(y->max - shift);

		*x = (struct running){ max, x->sum * f0 + y->sum * f1 };
		for (uint32_t d = 0; d < domains; d++) {
			float *p = to.acc + acc + d * domain;
			const float *q = from.acc + acc + d * domain;

			for (uint32_t c = 0; c < a->v_dim; c++)
				p[c] = p[c] * f0 + q[c] * f1;
		}
	}
}

static void output_row(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, uint32_t head, uint32_t row, struct kvp_attend_result *res)
{
	const struct workspace *ws = a->workspace;
	struct split area = split_area(a, s, 0);
	uint32_t group = a->q_heads / a->kv_heads;
	size_t to = (size_t)(row / group) * a->q_heads + head * group + row % group;
	struct running run = area.run[(size_t)head * s->rows + row];
	size_t domain = (size_t)s->rows * a->v_dim;
	float *acc = area.acc + (size_t)head * DOMAINS * domain + (size_t)row * a->v_dim;
	float inv = run.sum == 0.0f ? 0.0f : 1.0f / run.sum;
	float *out = res->out + to * a->v_dim;

	for (uint32_t d = 0; d < ws->v.n; d++) {
		float *x = acc + (d + 1) * domain;

		k->dsp.rotate(&ws->v.rot[d], 1, x);
		add_row(acc, x, a->v_dim);
	}
	scale_row(out, acc, a->v_dim, inv);
	if (res->lse)
		res->lse[to] = run.max + (inv == 0.0f ? -INFINITY : logf(run.sum));
}

/* Weights of a chunk with the final log-sum-exp, summed over the queries of its KV head. */
static int mass_chunk(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, const struct split *area, const struct chunk *c, float *mass)
{
	uint32_t group = a->q_heads / a->kv_heads;
	uint64_t at = c->pv->at + c->t;
	int r = score_chunk(k, a, s, c, area);

	if (r < 0)
		return r;
	memset(mass, 0, c->n * sizeof *mass);
	for (uint32_t i = 0; i < s->rows; i++) {
		const struct running *end = &area->run[(size_t)c->head * s->rows + i];
		struct softmax job = { .scale = a->scale, .n = c->n };
		float *w = area->scores + (size_t)i * ATTEND_CHUNK;
		struct running run = *end;

		if (a->mask)
			job.mask = a->mask + (i / group) * a->mask_stride + at;
		visible(a, i / group, at, &job);
		k->dsp.softmax(&job, w, &run);
		for (uint32_t t = 0; t < c->n && end->sum > 0.0f; t++)
			mass[t] += w[t] / end->sum;
	}
	return 0;
}

static int attend_mass(const struct kvp_kernels *k, const struct kvp_attention *a,
	const struct shape *s, struct kvp_attend_result *res)
{
	const struct workspace *ws = a->workspace;
	struct split area = split_area(a, s, 0);
	struct part_view pv = { .part = NULL };
	uint64_t at = 0;

	for (uint32_t i = 0; i < a->n_parts; i++) {
		int r = kvp_attend_part_view(a, &ws->k, &ws->v, i, at, &pv);

		if (r < 0)
			return r;
		for (struct chunk c = kvp_attend_chunk_first(&pv); c.pv;
			c = kvp_attend_chunk_next(a, &c, NULL)) {
			r = mass_chunk(k, a, s, &area, &c,
				res->mass + c.head * res->mass_stride + at + c.t);
			if (r < 0)
				return r;
		}
		at += pv.part->tokens;
	}
	return 0;
}

int kvp_attend_finish(
	const struct kvp_kernels *k, const struct kvp_attention *a, struct kvp_attend_result *res)
{
	struct workspace *ws = a->workspace;
	uint64_t tokens = 0;
	struct shape s;
	int r;

	r = shape_init(a, &s);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < a->n_parts; i++)
		tokens += a->parts[i].tokens;
	if (!res->out || (res->mass && res->mass_stride < tokens))
		return -EINVAL;
	for (uint32_t h = 0; h < a->kv_heads; h++) {
		for (uint32_t i = 0; i < s.rows; i++) {
			merge_row(a, &s, ws->v.n + 1, h, i);
			output_row(k, a, &s, h, i, res);
		}
	}
	res->rotations = ws->rotations + ws->v.n;
	if (!res->mass)
		return 0;
	if (k->tiles.begin)
		k->tiles.begin(s.rows);
	r = attend_mass(k, a, &s, res);
	if (k->tiles.end)
		k->tiles.end();
	return r;
}

int kvp_attend(
	const struct kvp_kernels *k, const struct kvp_attention *a, struct kvp_attend_result *res)
{
	int r = kvp_attend_prepare(k, a);

	for (uint32_t i = 0; !r && i < a->n_splits; i++)
		r = kvp_attend_range(k, a, i);
	return r < 0 ? r : kvp_attend_finish(k, a, res);
}
