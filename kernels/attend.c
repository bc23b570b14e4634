/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kvp_attend.h"
#include "kernels/dsp.h"
#include "kernels/groups.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <errno.h>
#include <math.h>

#define DOMAINS (1 + KVP_ATTEND_ROTATIONS_MAX) /* domain 0 is the plain one */
#define ALIGN   64u

/* The rotations that occur among the keys, or among the values. */
struct domains {
	uint32_t n; /* besides domain 0 */
	uint32_t kind[KVP_ATTEND_ROTATIONS_MAX];
	uint64_t name[KVP_ATTEND_ROTATIONS_MAX]; /* seed, or digest of a dense one */
	struct rotation rot[KVP_ATTEND_ROTATIONS_MAX];
};

/*
 * The workspace: this header; the queries as [domain][kv_head][row][k_dim], where row is
 * query * group + head in the group; one area per split.
 */
struct workspace {
	struct domains k;
	struct domains v;
	uint32_t rotations;
};

struct shape {
	uint32_t rows;   /* queries of one KV head */
	size_t q;        /* offset of the queries */
	size_t q_domain; /* floats per domain */
	size_t split0;
	size_t split; /* bytes per split */
	size_t bytes;
};

/* A split's area, all floats: scores, then per KV head max, sum and accumulators. */
struct split {
	float *scores; /* [row][ATTEND_CHUNK] */
	float *rows;   /* [ATTEND_CHUNK][dim]: rows of codecs that cannot be attended in place */
	float *max;    /* [kv_head][row] */
	float *sum;
	float *acc; /* [kv_head][domain][row][v_dim] */
};

static size_t align(size_t n)
{
	return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static size_t rows_bytes(const struct kvp_attend *a)
{
	return align(
		(size_t)ATTEND_CHUNK * (a->k_dim > a->v_dim ? a->k_dim : a->v_dim) * sizeof(float));
}

static int shape_init(const struct kvp_attend *a, struct shape *ret)
{
	struct shape s = { 0 };
	uint32_t esize = sizeof(float);

	if (a->size != sizeof *a || !a->queries || a->queries > KVP_ATTEND_QUERIES_MAX ||
		!a->kv_heads || a->kv_heads > KVP_PLANE_HEADS_MAX || !a->q_heads ||
		a->q_heads > KVP_ATTEND_Q_HEADS_MAX || a->q_heads % a->kv_heads ||
		a->k_dim < KVP_PLANE_DIM_MIN || a->k_dim > KVP_PLANE_DIM_MAX ||
		a->v_dim < KVP_PLANE_DIM_MIN || a->v_dim > KVP_PLANE_DIM_MAX || !a->n_splits ||
		a->n_splits > KVP_ATTEND_SPLITS_MAX || a->n_parts > KVP_ATTEND_PARTS_MAX)
		return -EINVAL;
	s.rows = a->queries * (a->q_heads / a->kv_heads);
	s.q = align(sizeof(struct workspace));
	s.q_domain = (size_t)a->kv_heads * s.rows * a->k_dim;
	s.split0 = s.q + align(DOMAINS * s.q_domain * esize);
	s.split = align((size_t)s.rows * ATTEND_CHUNK * esize) + rows_bytes(a) +
		  2 * align((size_t)a->kv_heads * s.rows * esize) +
		  align((size_t)a->kv_heads * DOMAINS * s.rows * a->v_dim * esize);
	s.bytes = s.split0 + a->n_splits * s.split;
	*ret = s;
	return 0;
}

static struct split split_area(const struct kvp_attend *a, const struct shape *s, uint32_t split)
{
	uint8_t *at = (uint8_t *)a->workspace + s->split0 + split * s->split;
	struct split area;

	area.scores = (float *)(void *)at;
	at += align((size_t)s->rows * ATTEND_CHUNK * sizeof(float));
	area.rows = (float *)(void *)at;
	at += rows_bytes(a);
	area.max = (float *)(void *)at;
	at += align((size_t)a->kv_heads * s->rows * sizeof(float));
	area.sum = (float *)(void *)at;
	at += align((size_t)a->kv_heads * s->rows * sizeof(float));
	area.acc = (float *)(void *)at;
	return area;
}

int kvp_attend_workspace(const struct kvp_attend *a, size_t *ret_bytes)
{
	struct shape s;
	int r = shape_init(a, &s);

	if (r < 0)
		return r;
	*ret_bytes = s.bytes;
	return 0;
}

/* ---- one plane of a part ---- */

struct plane_view {
	struct kvp_plane p;
	struct kvp_layout lay;
	struct kvp_plane_hdr hdr;
	uint32_t rotation; /* KVP_ROT_*, or NO_ROTATION */
	uint32_t domain;
	float cent[16], bound[16];
};
#define NO_ROTATION UINT32_MAX

static uint32_t plane_rotation(uint32_t codec)
{
	switch (KVP_CODEC_FAMILY(codec)) {
	case KVP_FAMILY_TQ:
		return KVP_CODEC_VARIANT(codec) >> 4 & 3u;
	case KVP_FAMILY_HADAMARD:
		return KVP_ROT_H1;
	default:
		return NO_ROTATION;
	}
}

static int plane_view(const struct kvp_attend *a, const struct kvp_attend_part *part, uint32_t kind,
	struct plane_view *ret)
{
	const struct kvp_attend_plane *ap = kind == KVP_PLANE_K ? &part->k : &part->v;
	struct plane_view *v = ret;
	int r;

	v->p = (struct kvp_plane){ part->tokens, a->kv_heads,
		kind == KVP_PLANE_K ? a->k_dim : a->v_dim, ap->dtype, kind };
	v->rotation = NO_ROTATION;
	v->domain = 0;
	if (ap->codec == KVP_CODEC_NATIVE) {
		uint32_t size = dtype_bytes(ap->dtype);

		if (ap->dtype == KVP_DTYPE_F8 || !ap->data || !size || (uintptr_t)ap->data % size ||
			ap->head_stride % (ptrdiff_t)size || ap->token_stride % (ptrdiff_t)size)
			return -EINVAL;
		return kvp_plane_layout(ap->codec, &v->p, &v->lay);
	}
	r = kvp_plane_check(ap->codec, &v->p, ap->calib, ap->data, ap->bytes);
	if (r < 0)
		return r;
	r = kvp_plane_layout(ap->codec, &v->p, &v->lay);
	if (r < 0)
		return r;
	memcpy(&v->hdr, ap->data, sizeof v->hdr);
	/* Of smart the layout knows only a bound; the header was checked against ap->bytes. */
	if (v->lay.bytes > ap->bytes)
		v->lay.bytes = (uint32_t)ap->bytes;
	/* The header may have changed since the check; what is used from it is bounded here. */
	if (v->hdr.exponent < -120 || v->hdr.exponent > 125)
		return -EBADMSG;
	v->rotation = plane_rotation(ap->codec);
	if (KVP_CODEC_FAMILY(ap->codec) == KVP_FAMILY_TQ)
		r = kvp_codebook((KVP_CODEC_VARIANT(ap->codec) & 3u) + 1,
			KVP_CODEC_VARIANT(ap->codec) >> 6 & 1u ? v->p.dim : 0, v->cent, v->bound);
	return r;
}

static int domain_find(const struct domains *d, const struct plane_view *v)
{
	uint64_t name = v->rotation == KVP_ROT_HAAR ? v->hdr.calib : v->hdr.seed;

	if (v->rotation == NO_ROTATION)
		return 0;
	for (uint32_t i = 0; i < d->n; i++)
		if (d->kind[i] == v->rotation && d->name[i] == name)
			return (int)i + 1;
	return -ENOENT;
}

static int domain_add(struct domains *d, const struct plane_view *v, const struct kvp_calib *calib)
{
	int r;

	if (domain_find(d, v) >= 0)
		return 0;
	if (d->n == KVP_ATTEND_ROTATIONS_MAX)
		return -E2BIG;
	r = kvp_rotation_init(&d->rot[d->n], v->rotation, v->p.dim, v->hdr.seed, calib);
	if (r < 0)
		return r;
	d->kind[d->n] = v->rotation;
	d->name[d->n] = v->rotation == KVP_ROT_HAAR ? v->hdr.calib : v->hdr.seed;
	d->n++;
	return 0;
}

/* Tokens [first, first + n) of a head; kivi's native tail and its groups are never in one call. */
static struct kvp_rows rows_of(const struct plane_view *v, const struct kvp_attend_plane *ap,
	uint32_t head, uint32_t first, uint32_t n)
{
	const uint8_t *data = ap->data;
	uint32_t family = KVP_CODEC_FAMILY(ap->codec);
	size_t row = (size_t)head * v->lay.coded + first;
	struct kvp_rows r = { .family = family, .dim = v->p.dim, .n = n, .factor = 1.0f };

	if (family == KVP_FAMILY_NATIVE || first >= v->lay.coded) {
		uint32_t size = dtype_bytes(ap->dtype);
		ptrdiff_t head_stride = ap->head_stride;

		r.family = KVP_FAMILY_NATIVE;
		r.format = ap->dtype;
		r.stride = ap->token_stride;
		if (family != KVP_FAMILY_NATIVE) {
			data += v->lay.native;
			first -= v->lay.coded;
			r.stride = (ptrdiff_t)(v->p.dim * size);
			head_stride = r.stride * (ptrdiff_t)(v->p.tokens - v->lay.coded);
		}
		r.codes = data + (ptrdiff_t)head * head_stride + (ptrdiff_t)first * r.stride;
		return r;
	}
	r.format = ap->codec;
	r.bits = KVP_CODEC_VARIANT(ap->codec) & 15u;
	r.stride = v->lay.row_bytes;
	r.codes = data + v->lay.codes + row * v->lay.row_bytes;
	r.factor = pow2f(v->hdr.exponent);
	r.group = v->lay.group;
	r.groups = v->lay.groups;
	r.cent = v->cent;
	if (family == KVP_FAMILY_TQ) {
		r.bits = (KVP_CODEC_VARIANT(ap->codec) & 3u) + 1;
		r.format = KVP_CODEC_VARIANT(ap->codec) >> 7;
		r.scale = data + v->lay.scale + row * (r.format ? 4 : 2);
		return r;
	}
	if (family == KVP_FAMILY_HADAMARD)
		r.factor *= 1.0f / sqrtf((float)v->p.dim);
	if (family == KVP_FAMILY_KIVI && v->p.kind == KVP_PLANE_K) {
		r.per_channel = 1;
		row = ((size_t)head * v->lay.groups + first / v->lay.group) * v->p.dim;
	} else {
		row *= v->lay.groups;
	}
	r.scale = data + v->lay.scale + row * 2;
	r.minimum = data + v->lay.minimum + row * 2;
	return r;
}

/* The same for any codec: what cannot be attended in place is decoded, a chunk at a time. */
static int rows_get(const struct kvp_kernels *k, const struct plane_view *v,
	const struct kvp_attend_plane *ap, uint32_t head, uint32_t first, uint32_t n,
	float *scratch, struct kvp_rows *ret)
{
	struct rows_out out = { (uint8_t *)scratch, (ptrdiff_t)(v->p.dim * sizeof *scratch), n,
		v->p.dim, KVP_DTYPE_F32, pow2f(v->hdr.exponent) };

	if (KVP_CODEC_FAMILY(ap->codec) < KVP_FAMILY_TQPROD) {
		*ret = rows_of(v, ap, head, first, n);
		return 0;
	}
	*ret = (struct kvp_rows){ .family = KVP_FAMILY_NATIVE,
		.format = KVP_DTYPE_F32,
		.dim = v->p.dim,
		.n = n,
		.factor = 1.0f,
		.stride = out.stride,
		.codes = (const uint8_t *)scratch };
	return kvp_rows_decode(
		k, ap->codec, &v->p, &v->lay, ap->calib, ap->data, head, first, &out);
}

/* ---- the three phases ---- */

static float *queries_of(
	const struct kvp_attend *a, const struct shape *s, uint32_t domain, uint32_t head)
{
	float *q = (float *)(void *)((uint8_t *)a->workspace + s->q);

	return q + domain * s->q_domain + (size_t)head * s->rows * a->k_dim;
}

static void gather_queries(const struct kvp_attend *a, const struct shape *s, struct workspace *ws)
{
	uint32_t group = a->q_heads / a->kv_heads;

	for (uint32_t h = 0; h < a->kv_heads; h++) {
		for (uint32_t i = 0; i < s->rows; i++) {
			size_t from = (size_t)(i / group) * a->q_heads + h * group + i % group;
			size_t row = (size_t)i * a->k_dim;
			float *plain = queries_of(a, s, 0, h) + row;

			memcpy(plain, a->q + from * a->k_dim, a->k_dim * sizeof *plain);
			for (uint32_t d = 0; d < ws->k.n; d++) {
				float *q = queries_of(a, s, d + 1, h) + row;

				memcpy(q, plain, a->k_dim * sizeof *q);
				kvp_rotate_fwd(&ws->k.rot[d], q);
			}
		}
	}
	ws->rotations = ws->k.n;
}

int kvp_attend_prepare(const struct kvp_kernels *k, const struct kvp_attend *a)
{
	struct workspace *ws = a->workspace;
	uint64_t tokens = 0;
	struct plane_view v;
	struct shape s;
	int r;

	(void)k;
	r = shape_init(a, &s);
	if (r < 0)
		return r;
	if (!ws || (uintptr_t)ws % ALIGN || !a->q || (a->n_parts && !a->parts))
		return -EINVAL;
	if (a->workspace_size < s.bytes)
		return -ENOSPC;
	ws->k.n = 0;
	ws->v.n = 0;
	for (uint32_t i = 0; i < a->n_parts; i++) {
		const struct kvp_attend_part *part = &a->parts[i];

		r = plane_view(a, part, KVP_PLANE_K, &v);
		if (!r)
			r = domain_add(&ws->k, &v, part->k.calib);
		if (!r)
			r = plane_view(a, part, KVP_PLANE_V, &v);
		if (!r)
			r = domain_add(&ws->v, &v, part->v.calib);
		if (r < 0)
			return r;
		tokens += part->tokens;
	}
	if (a->mask && a->mask_stride < tokens)
		return -EINVAL;
	gather_queries(a, &s, ws);
	return 0;
}

/* The tokens [lo, hi) of a chunk of n beginning at token `at` that a query may see. */
static void visible(const struct kvp_attend *a, uint32_t query, uint64_t at, struct softmax *job)
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

static void weigh(const struct kvp_kernels *k, const struct kvp_attend *a, const struct shape *s,
	const struct domains *dv, const struct split *area, uint32_t head, uint64_t at, uint32_t n)
{
	uint32_t group = a->q_heads / a->kv_heads;
	size_t domain = (size_t)s->rows * a->v_dim;
	float *acc = area->acc + (size_t)head * DOMAINS * domain;

	for (uint32_t i = 0; i < s->rows; i++) {
		struct softmax job = { .scale = a->scale, .n = n };
		float *max = &area->max[(size_t)head * s->rows + i];
		float *sum = &area->sum[(size_t)head * s->rows + i];
		float add, m, fade;

		if (a->mask)
			job.mask = a->mask + (i / group) * a->mask_stride + at;
		visible(a, i / group, at, &job);
		m = k->dsp.softmax(&job, area->scores + (size_t)i * ATTEND_CHUNK, *max, &add);
		fade = *max == -INFINITY ? 0.0f : expf(*max - m);
		*max = m;
		*sum = *sum * fade + add;
		for (uint32_t d = 0; d <= dv->n; d++)
			for (uint32_t c = 0; c < a->v_dim; c++)
				acc[d * domain + (size_t)i * a->v_dim + c] *= fade;
	}
}

/* Chunks end at multiples of ATTEND_CHUNK and where a kivi plane's native tail begins. */
static uint32_t chunk_end(uint32_t t, uint32_t tokens, uint32_t k_coded, uint32_t v_coded)
{
	uint32_t end = (t / ATTEND_CHUNK + 1) * ATTEND_CHUNK;

	end = t < k_coded && end > k_coded ? k_coded : end;
	end = t < v_coded && end > v_coded ? v_coded : end;
	return end < tokens ? end : tokens;
}

struct part_view {
	const struct kvp_attend_part *part;
	struct plane_view k, v;
	uint64_t at; /* of its first token */
};

static int part_view(
	const struct kvp_attend *a, const struct workspace *ws, uint32_t i, struct part_view *ret)
{
	int r;

	ret->part = &a->parts[i];
	r = plane_view(a, ret->part, KVP_PLANE_K, &ret->k);
	if (!r)
		r = plane_view(a, ret->part, KVP_PLANE_V, &ret->v);
	if (r < 0)
		return r;
	r = domain_find(&ws->k, &ret->k);
	if (r < 0)
		return -EBADMSG;
	ret->k.domain = (uint32_t)r;
	r = domain_find(&ws->v, &ret->v);
	if (r < 0)
		return -EBADMSG;
	ret->v.domain = (uint32_t)r;
	return 0;
}

static int score_chunk(const struct kvp_kernels *k, const struct kvp_attend *a,
	const struct shape *s, const struct part_view *pv, const struct split *area, uint32_t head,
	uint32_t t, uint32_t n)
{
	struct kvp_rows rows;
	int r = rows_get(k, &pv->k, &pv->part->k, head, t, n, area->rows, &rows);

	if (r < 0)
		return r;
	k->codec[rows.family].score(
		&rows, queries_of(a, s, pv->k.domain, head), s->rows, area->scores, ATTEND_CHUNK);
	return 0;
}

/* Whether any query of the KV head gives token t of the chunk a weight. */
static int weighted(const struct shape *s, const struct split *area, uint32_t t)
{
	for (uint32_t i = 0; i < s->rows; i++)
		if (area->scores[(size_t)i * ATTEND_CHUNK + t] != 0.0f)
			return 1;
	return 0;
}

/*
 * Values times weights. With masks, tokens that no query sees are left out, not multiplied by 0:
 * what lies there may be anything, NaN included.
 */
static int accumulate_chunk(const struct kvp_kernels *k, const struct kvp_attend *a,
	const struct shape *s, const struct part_view *pv, const struct split *area, uint32_t head,
	uint32_t t, uint32_t n)
{
	int masks = a->mask || a->causal || a->window;
	size_t domain = (size_t)s->rows * a->v_dim;
	float *acc = area->acc + ((size_t)head * DOMAINS + pv->v.domain) * domain;

	for (uint32_t i = 0; i < n;) {
		uint32_t end = n;
		struct kvp_rows rows;
		int r;

		if (masks) {
			while (i < n && !weighted(s, area, i))
				i++;
			for (end = i; end < n && weighted(s, area, end);)
				end++;
		}
		if (i == end)
			break;
		r = rows_get(k, &pv->v, &pv->part->v, head, t + i, end - i, area->rows, &rows);
		if (r < 0)
			return r;
		k->codec[rows.family].accumulate(
			&rows, area->scores + i, ATTEND_CHUNK, s->rows, acc);
		i = end;
	}
	return 0;
}

static int attend_part(const struct kvp_kernels *k, const struct kvp_attend *a,
	const struct shape *s, const struct part_view *pv, const struct split *area)
{
	const struct workspace *ws = a->workspace;
	uint32_t tokens = pv->part->tokens;

	for (uint32_t h = 0; h < a->kv_heads; h++) {
		for (uint32_t t = 0; t < tokens;) {
			uint32_t n = chunk_end(t, tokens, pv->k.lay.coded, pv->v.lay.coded) - t;

			int r = score_chunk(k, a, s, pv, area, h, t, n);

			if (r < 0)
				return r;
			weigh(k, a, s, &ws->v, area, h, pv->at + t, n);
			r = accumulate_chunk(k, a, s, pv, area, h, t, n);
			if (r < 0)
				return r;
			t += n;
		}
	}
	return 0;
}

int kvp_attend_range(const struct kvp_kernels *k, const struct kvp_attend *a, uint32_t split)
{
	struct workspace *ws = a->workspace;
	uint32_t first, last;
	struct split area;
	struct shape s;
	struct part_view pv;
	int r;

	r = shape_init(a, &s);
	if (r < 0 || split >= a->n_splits)
		return -EINVAL;
	first = (uint32_t)((uint64_t)a->n_parts * split / a->n_splits);
	last = (uint32_t)((uint64_t)a->n_parts * (split + 1) / a->n_splits);
	area = split_area(a, &s, split);
	for (size_t i = 0; i < (size_t)a->kv_heads * s.rows; i++) {
		area.max[i] = -INFINITY;
		area.sum[i] = 0.0f;
	}
	memset(area.acc, 0, (size_t)a->kv_heads * DOMAINS * s.rows * a->v_dim * sizeof(float));
	pv.at = 0;
	for (uint32_t i = 0; i < first; i++)
		pv.at += a->parts[i].tokens;
	for (uint32_t i = first; i < last; i++) {
		r = part_view(a, ws, i, &pv);
		if (r < 0)
			return r;
		r = attend_part(k, a, &s, &pv, &area);
		if (r < 0)
			return r;
		pv.at += pv.part->tokens;
	}
	return 0;
}

/* Folds every split into split 0: max, sum and accumulators of one row. */
static void merge_row(const struct kvp_attend *a, const struct shape *s, uint32_t domains,
	uint32_t head, uint32_t row)
{
	struct split to = split_area(a, s, 0);
	size_t at = (size_t)head * s->rows + row;
	size_t domain = (size_t)s->rows * a->v_dim;
	size_t acc = (size_t)head * DOMAINS * domain + (size_t)row * a->v_dim;

	for (uint32_t i = 1; i < a->n_splits; i++) {
		struct split from = split_area(a, s, i);
		float max = from.max[at] > to.max[at] ? from.max[at] : to.max[at];
		float shift = max == -INFINITY ? 0.0f : max;
		float f0 = expf(to.max[at] - shift), f1 = expf(from.max[at] - shift);

		to.sum[at] = to.sum[at] * f0 + from.sum[at] * f1;
		to.max[at] = max;
		for (uint32_t d = 0; d < domains; d++) {
			float *x = to.acc + acc + d * domain;
			const float *y = from.acc + acc + d * domain;

			for (uint32_t c = 0; c < a->v_dim; c++)
				x[c] = x[c] * f0 + y[c] * f1;
		}
	}
}

static void output_row(const struct kvp_attend *a, const struct shape *s, uint32_t head,
	uint32_t row, struct kvp_attend_result *res)
{
	const struct workspace *ws = a->workspace;
	struct split area = split_area(a, s, 0);
	uint32_t group = a->q_heads / a->kv_heads;
	size_t to = (size_t)(row / group) * a->q_heads + head * group + row % group;
	size_t at = (size_t)head * s->rows + row;
	size_t domain = (size_t)s->rows * a->v_dim;
	float *acc = area.acc + (size_t)head * DOMAINS * domain + (size_t)row * a->v_dim;
	float inv = area.sum[at] == 0.0f ? 0.0f : 1.0f / area.sum[at];
	float *out = res->out + to * a->v_dim;

	for (uint32_t d = 0; d < ws->v.n; d++) {
		float *x = acc + (d + 1) * domain;

		kvp_rotate_inv(&ws->v.rot[d], x);
		for (uint32_t c = 0; c < a->v_dim; c++)
			acc[c] += x[c];
	}
	for (uint32_t c = 0; c < a->v_dim; c++)
		out[c] = acc[c] * inv;
	if (res->lse)
		res->lse[to] = area.max[at] + (inv == 0.0f ? -INFINITY : logf(area.sum[at]));
}

/* The second pass: weights with the final log-sum-exp, summed over the queries of a KV head. */
static int attend_mass(const struct kvp_kernels *k, const struct kvp_attend *a,
	const struct shape *s, struct kvp_attend_result *res)
{
	const struct workspace *ws = a->workspace;
	struct split area = split_area(a, s, 0);
	uint32_t group = a->q_heads / a->kv_heads;
	struct part_view pv = { .at = 0 };

	for (uint32_t i = 0; i < a->n_parts; i++, pv.at += pv.part->tokens) {
		int r = part_view(a, ws, i, &pv);

		if (r < 0)
			return r;
		for (uint32_t h = 0; h < a->kv_heads; h++) {
			for (uint32_t t = 0; t < pv.part->tokens;) {
				uint32_t n = chunk_end(t, pv.part->tokens, pv.k.lay.coded, 0) - t;
				float *mass = res->mass + h * res->mass_stride + pv.at + t;

				r = score_chunk(k, a, s, &pv, &area, h, t, n);
				if (r < 0)
					return r;
				memset(mass, 0, n * sizeof *mass);
				for (uint32_t j = 0; j < s->rows; j++) {
					size_t at = (size_t)h * s->rows + j;
					float *w = area.scores + (size_t)j * ATTEND_CHUNK;
					struct softmax job = { .scale = a->scale, .n = n };
					float sum;

					if (a->mask)
						job.mask = a->mask + pv.at + t +
							   (j / group) * a->mask_stride;
					visible(a, j / group, pv.at + t, &job);
					k->dsp.softmax(&job, w, area.max[at], &sum);
					for (uint32_t c = 0; c < n && area.sum[at] > 0.0f; c++)
						mass[c] += w[c] / area.sum[at];
				}
				t += n;
			}
		}
	}
	return 0;
}

int kvp_attend_finish(
	const struct kvp_kernels *k, const struct kvp_attend *a, struct kvp_attend_result *res)
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
			output_row(a, &s, h, i, res);
		}
	}
	res->rotations = ws->rotations + ws->v.n;
	return res->mass ? attend_mass(k, a, &s, res) : 0;
}

int kvp_attend(
	const struct kvp_kernels *k, const struct kvp_attend *a, struct kvp_attend_result *res)
{
	int r = kvp_attend_prepare(k, a);

	for (uint32_t i = 0; !r && i < a->n_splits; i++)
		r = kvp_attend_range(k, a, i);
	return r < 0 ? r : kvp_attend_finish(k, a, res);
}
