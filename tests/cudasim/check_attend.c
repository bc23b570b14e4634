/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/numeric.h"
#include "tests/cudasim/planes.h"

#define TIERS_MAX     2
#define SEQS_MAX      2
#define PAGES_PER_SEQ 16u
#define TOLERANCE     1e-3

/* Pages of one pair of codecs: all sequences have some tokens in it. */
struct tier {
	uint32_t k_codec;
	uint32_t v_codec;
	uint32_t dtype;
	uint32_t page_tokens;
	uint32_t first[SEQS_MAX]; /* position of its first token */
	uint32_t count[SEQS_MAX];
	struct kvp_cuda_codec k;
	struct kvp_cuda_codec v;
	uint32_t splits;
};

struct scene {
	struct tier tier[TIERS_MAX];
	uint32_t tiers;
	uint32_t seqs;
	uint32_t heads;
	uint32_t group;
	uint32_t queries;
	uint32_t dim;
	uint32_t total[SEQS_MAX];
	uint32_t tokens_max;
	uint32_t split_total;
	uint32_t causal;
	uint32_t window;
	uint32_t q_dtype;
	uint32_t out_dtype;
	float scale;
	float v_size; /* magnitude of values */
	float v_max;  /* the largest that there is */
	float *q;     /* [seq][query][head][dim], as stored */
	float *k;     /* [seq][head][tokens_max][dim], decoded */
	float *v;
};

static const struct {
	uint32_t k;
	uint32_t v;
	uint32_t native_dtype; /* 0: codecs over fp32 planes */
} pairs[] = {
	{ KVP_CODEC_NATIVE, KVP_CODEC_NATIVE, KVP_DTYPE_F16 },
	{ KVP_CODEC_NATIVE, KVP_CODEC_NATIVE, KVP_DTYPE_BF16 },
	{ KVP_CODEC_FP8_E4M3, KVP_CODEC_FP8_E4M3, 0 },
	{ KVP_CODEC_FP8_E5M2, KVP_CODEC_FP8_E5M2, 0 },
	{ KVP_CODEC_KIVI(4u, 5u), KVP_CODEC_KIVI(4u, 5u), 0 },
	{ KVP_CODEC_KIVI(2u, 5u), KVP_CODEC_KIVI(2u, 5u), 0 },
	{ KVP_CODEC_KIVI(4u, 4u), KVP_CODEC_KIVI(4u, 6u), 0 },
	{ KVP_CODEC_KIVI(2u, 6u), KVP_CODEC_KIVI(2u, 7u), 0 },
	{ KVP_CODEC_TQ4, KVP_CODEC_TQ4, 0 },
	{ KVP_CODEC_TQ3, KVP_CODEC_TQ3, 0 },
	{ KVP_CODEC_TQ2, KVP_CODEC_TQ2, 0 },
	{ KVP_CODEC_TQ(4u, KVP_TQ_NC, KVP_ROT_H3, 0u, 0u), KVP_CODEC_TQ4, 0 },
	{ KVP_CODEC_FP8_E4M3, KVP_CODEC_ASYM(4u, 0u), 0 },
	{ KVP_CODEC_TQ(4u, KVP_TQ_NC, 0u, 0u, 0u), KVP_CODEC_ASYM(4u, 0u), 0 },
	{ KVP_CODEC_TQ(3u, KVP_TQ_NC, 0u, 0u, 0u), KVP_CODEC_ASYM(4u, 4u), 0 },
};

static float *scene_kv(const struct scene *s, float *base, uint32_t seq, uint32_t head, uint32_t t)
{
	return base + (((size_t)seq * s->heads + head) * s->tokens_max + t) * s->dim;
}

/* Lengths that end inside a tile, at its end, or nowhere. */
static uint32_t draw_count(struct rng *r, uint32_t max)
{
	static const uint32_t some[] = { 0, 1, 15, 16, 17, 31, 33, 64, 255, 256, 257 };
	uint32_t n = rng_below(r, 2) ? some[rng_below(r, sizeof(some) / sizeof(some[0]))]
				     : rng_below(r, max + 1);

	return n < max ? n : max;
}

static int draw_tier(struct rng *r, const struct scene *s, struct tier *t)
{
	uint32_t i = rng_below(r, sizeof(pairs) / sizeof(pairs[0]));
	struct kvp_plane p = { .heads = s->heads, .dim = s->dim };

	t->k_codec = pairs[i].k;
	t->v_codec = pairs[i].v;
	t->dtype = pairs[i].native_dtype ? pairs[i].native_dtype : KVP_DTYPE_F32;
	t->page_tokens = 16u << rng_below(r, 4);
	t->splits = 1 + rng_below(r, 4);
	p.tokens = t->page_tokens;
	p.dtype = t->dtype;
	p.kind = KVP_PLANE_K;
	if (kvp_cuda_codec_init(t->k_codec, &p, 0, NULL, &t->k) < 0)
		return -1;
	p.kind = KVP_PLANE_V;
	if (kvp_cuda_codec_init(t->v_codec, &p, 0, NULL, &t->v) < 0)
		return -1;
	return t->k.coded == t->page_tokens ? 0 : -1;
}

static void scene_draw(struct rng *r, struct scene *s)
{
	static const uint32_t dtypes[] = { KVP_DTYPE_F32, KVP_DTYPE_F16, KVP_DTYPE_BF16 };

	memset(s, 0, sizeof(*s));
	s->tiers = 1 + rng_below(r, TIERS_MAX);
	s->seqs = 1 + rng_below(r, SEQS_MAX);
	s->heads = 1 + rng_below(r, 3);
	s->group = rng_below(r, 4) ? 1 + rng_below(r, 8) : 17;
	s->queries = rng_below(r, 2) ? 1 : 1 + rng_below(r, 5);
	s->dim = rng_below(r, 2) ? 64 : 128;
	s->q_dtype = dtypes[rng_below(r, 3)];
	s->out_dtype = rng_below(r, 3) ? KVP_DTYPE_F32 : KVP_DTYPE_F16;
	s->causal = rng_below(r, 2);
	s->window = rng_below(r, 3) ? 0 : 1 + rng_below(r, 100);
	s->scale = 1.0f / sqrtf((float)s->dim);
	s->v_size = ldexpf(1.0f, (int)rng_below(r, 4) * 5 - 10);
	for (uint32_t i = 0; i < s->tiers; i++) {
		struct tier *t = &s->tier[i];

		while (draw_tier(r, s, t) < 0)
			;
		s->split_total += t->splits;
		for (uint32_t q = 0; q < s->seqs; q++) {
			t->first[q] = s->total[q];
			t->count[q] = draw_count(r, t->page_tokens * PAGES_PER_SEQ < 300
							    ? t->page_tokens * PAGES_PER_SEQ
							    : 300);
			s->total[q] += t->count[q];
			s->tokens_max = s->total[q] > s->tokens_max ? s->total[q] : s->tokens_max;
		}
	}
}

static int fail(struct device *d, const struct scene *s, const char *what)
{
	char reason[200], names[TIERS_MAX][80] = { "", "" };

	snprintf(reason, sizeof(reason), "%.199s", d->error);
	for (uint32_t i = 0; i < s->tiers; i++)
		snprintf(names[i], sizeof(names[i]), "[0x%x/0x%x dtype %u page %u: %u+%u]",
			s->tier[i].k_codec, s->tier[i].v_codec, s->tier[i].dtype,
			s->tier[i].page_tokens, s->tier[i].count[0], s->tier[i].count[1]);
	snprintf(d->error, sizeof(d->error),
		"attention: %s: %s%s dim %u heads %u group %u queries %u causal %u window %u %s",
		what, names[0], names[1], s->dim, s->heads, s->group, s->queries, s->causal,
		s->window, reason);
	return -1;
}

static void keep_row(struct scene *s, const struct tier *t, const struct kvp_cuda_codec *c,
	float *kv, const uint8_t *row)
{
	for (uint32_t ch = 0; ch < s->dim; ch++) {
		kv[ch] = load_element(row, t->dtype, ch);
		if (c->kind == KVP_PLANE_V && fabsf(kv[ch]) > s->v_max)
			s->v_max = fabsf(kv[ch]);
	}
}

/* A token that the sequence does not have yet: codes, and scalars of its own, are anything;
 * 0x7b7b is nearly the largest fp16. */
static void poison_row(const struct kvp_cuda_codec *c, uint8_t *page, uint32_t row)
{
	int chan = KVP_CODEC_FAMILY(c->id) == KVP_FAMILY_KIVI && c->kind == KVP_PLANE_K;

	memset(page + c->codes + (size_t)row * c->row_bytes, 0xff, c->row_bytes);
	if (c->scale && !chan)
		memset(page + c->scale + (size_t)row * c->groups * 2, 0x7b, c->groups * 2);
	if (c->minimum && !chan)
		memset(page + c->minimum + (size_t)row * c->groups * 2, 0x7b, c->groups * 2);
}

/* One plane of random rows, encoded into `page`; what it decodes to goes into `kv`. */
static int make_plane(struct device *d, struct rng *r, struct scene *s, const struct tier *t,
	const struct kvp_cuda_codec *c, uint8_t *page, float *kv, uint32_t seq, uint32_t token)
{
	struct kvp_plane p = { t->page_tokens, s->heads, s->dim, t->dtype, c->kind };
	size_t size = dtype_bytes(t->dtype), row = s->dim * size;
	struct kvp_raw raw = { NULL, (ptrdiff_t)(row * t->page_tokens), (ptrdiff_t)row };
	uint8_t *data = malloc(row * t->page_tokens * s->heads);
	int rc;

	if (!data)
		return -1;
	raw.data = data;
	for (uint32_t i = 0; i < t->page_tokens * s->heads; i++)
		for (uint32_t ch = 0; ch < s->dim; ch++)
			put_element(data + i * row, t->dtype, ch,
				rng_normal(r) * (c->kind == KVP_PLANE_V ? s->v_size
							: ch % 41 == 7  ? 4.0f
									: 1.0f));
	rc = kvp_plane_encode(d->ref, c->id, &p, NULL,
		(struct kvp_raw_const){ data, raw.head_stride, raw.token_stride }, page, c->bytes);
	if (rc == 0)
		rc = kvp_plane_decode(d->ref, c->id, &p, NULL, page, c->bytes, raw);
	for (uint32_t i = 0; rc == 0 && i < t->page_tokens * s->heads; i++) {
		uint32_t at = token + i % t->page_tokens;

		if (at < t->first[seq] + t->count[seq])
			keep_row(s, t, c, scene_kv(s, kv, seq, i / t->page_tokens, at),
				data + i * row);
		else
			poison_row(c, page, i);
	}
	free(data);
	return rc;
}

/* Pages of all sequences; tokens beyond a sequence's length are poison. */
static int make_pages(
	struct device *d, struct rng *r, struct scene *s, struct tier *t, struct kvp_cuda_attend *p)
{
	size_t v_at = (t->k.bytes + 63) / 64 * 64, page_bytes = v_at + (t->v.bytes + 63) / 64 * 64;
	size_t n = (size_t)s->seqs * PAGES_PER_SEQ;
	uint8_t *pages = aligned_alloc(64, n * page_bytes);
	uint64_t table[SEQS_MAX * PAGES_PER_SEQ], base;
	int rc = pages ? 0 : -1;

	for (size_t i = 0; rc == 0 && i < n * page_bytes; i++)
		pages[i] = 0xff;
	for (uint32_t q = 0; rc == 0 && q < s->seqs; q++) {
		for (uint32_t i = 0; rc == 0 && i * t->page_tokens < t->count[q]; i++) {
			uint8_t *page = pages + (q * PAGES_PER_SEQ + i) * page_bytes;
			uint32_t token = t->first[q] + i * t->page_tokens;

			rc = make_plane(d, r, s, t, &t->k, page, s->k, q, token);
			if (rc == 0)
				rc = make_plane(d, r, s, t, &t->v, page + v_at, s->v, q, token);
		}
	}
	base = rc == 0 ? d->alloc(d, pages, n * page_bytes, 0) : 0;
	for (size_t i = 0; i < n; i++)
		table[i] = base + i * page_bytes;
	free(pages);
	p->tables = d->alloc(d, table, n * sizeof(table[0]), 0);
	p->table_stride = PAGES_PER_SEQ;
	p->k_offset = 0;
	p->v_offset = v_at;
	p->k = t->k;
	p->v = t->v;
	return base && p->tables ? 0 : -1;
}

static int run_tier(
	struct device *d, struct rng *r, struct scene *s, struct tier *t, struct kvp_cuda_attend *p)
{
	const struct kvp_cuda_kernel *k;

	if (make_pages(d, r, s, t, p) < 0)
		return fail(d, s, "making pages");
	p->lengths = d->alloc(d, t->count, sizeof(t->count), 0);
	p->firsts = t == s->tier && s->tiers == 1 ? 0 : d->alloc(d, t->first, sizeof(t->first), 0);
	p->splits = t->splits;
	if (kvp_cuda_attend_kernel(&t->k, &t->v, &k) < 0)
		return fail(d, s, "no kernel");
	if (d->launch(d, k, p) < 0)
		return fail(d, s, k->name);
	p->split_first += t->splits;
	return 0;
}

/* Softmax attention of one row in double precision. */
static void expect_row(const struct scene *s, uint32_t seq, uint32_t query, uint32_t head,
	double *out, double *lse)
{
	const float *q =
		s->q + (((size_t)seq * s->queries + query) * s->heads * s->group + head) * s->dim;
	int64_t position = (int64_t)s->total[seq] - s->queries + query;
	double max = -INFINITY, sum = 0.0;
	double *score = malloc((s->total[seq] + 1) * sizeof(*score));

	for (uint32_t ch = 0; ch < s->dim; ch++)
		out[ch] = 0.0;
	for (uint32_t t = 0; score && t < s->total[seq]; t++) {
		const float *k = scene_kv(s, s->k, seq, head / s->group, t);

		score[t] = 0.0;
		for (uint32_t ch = 0; ch < s->dim; ch++)
			score[t] += (double)q[ch] * k[ch];
		score[t] *= s->scale;
		if ((s->causal && t > position) ||
			(s->window && t + (int64_t)s->window <= position))
			score[t] = -INFINITY;
		max = score[t] > max ? score[t] : max;
	}
	for (uint32_t t = 0; score && max > -INFINITY && t < s->total[seq]; t++) {
		const float *v = scene_kv(s, s->v, seq, head / s->group, t);
		double w = exp(score[t] - max);

		sum += w;
		for (uint32_t ch = 0; ch < s->dim; ch++)
			out[ch] += w * v[ch];
	}
	for (uint32_t ch = 0; sum > 0.0 && ch < s->dim; ch++)
		out[ch] /= sum;
	*lse = sum > 0.0 ? max + log(sum) : -INFINITY;
	free(score);
}

static int compare_row(struct device *d, const struct scene *s, const double *want,
	const uint8_t *got, double want_lse, float got_lse)
{
	double dot = 0.0, a = 0.0, b = 0.0, sum = 0.0, size = s->v_max > 1 ? s->v_max : 1;
	char what[120];

	for (uint32_t ch = 0; ch < s->dim; ch++) {
		double x = (double)load_element(got, s->out_dtype, ch), off;

		/* what the result's own type loses is not the kernel's error */
		off = fabs(x - want[ch]);
		off -= s->out_dtype == KVP_DTYPE_F16 ? fabs(want[ch]) * 0x1p-11 : 0.0;
		if (!(off <= TOLERANCE * size)) {
			snprintf(what, sizeof(what), "channel %u is %g, not %g", ch, x, want[ch]);
			return fail(d, s, what);
		}
		sum += off > 0.0 ? off * off : 0.0;
		dot += x * want[ch];
		a += x * x;
		b += want[ch] * want[ch];
	}
	if (!(sqrt(sum / s->dim) <= TOLERANCE / 4 * size)) {
		snprintf(what, sizeof(what), "root mean square error %g", sqrt(sum / s->dim));
		return fail(d, s, what);
	}
	if (b > 0.0 && !(dot >= 0.9999 * sqrt(a * b))) {
		snprintf(what, sizeof(what), "cosine %.6f", dot / sqrt(a * b));
		return fail(d, s, what);
	}
	if (want_lse == -INFINITY
			? got_lse != -INFINITY
			: !(fabs(got_lse - want_lse) <= TOLERANCE * fmax(2, fabs(want_lse)))) {
		snprintf(what, sizeof(what), "lse %g, not %g", (double)got_lse, want_lse);
		return fail(d, s, what);
	}
	return 0;
}

static int compare(struct device *d, const struct scene *s, uint64_t out, uint64_t lse)
{
	uint32_t rows = s->queries * s->group, all = s->seqs * s->queries * s->heads * s->group;
	size_t size = dtype_bytes(s->out_dtype);
	uint8_t *got = malloc(all * s->dim * size);
	float *got_lse = malloc(all * sizeof(*got_lse));
	double want[128], want_lse;
	int rc = got && got_lse ? d->read(d, out, got, all * s->dim * size) : -1;

	if (rc == 0)
		rc = d->read(d, lse, got_lse, all * sizeof(*got_lse));
	for (uint32_t i = 0; rc == 0 && i < all; i++) {
		uint32_t head = i % (s->heads * s->group), qi = i / (s->heads * s->group);
		uint32_t query = qi % s->queries, seq = qi / s->queries;
		uint32_t row = (seq * s->heads + head / s->group) * rows + query * s->group +
			       head % s->group;

		expect_row(s, seq, query, head, want, &want_lse);
		rc = compare_row(
			d, s, want, got + (size_t)i * s->dim * size, want_lse, got_lse[row]);
	}
	free(got);
	free(got_lse);
	return rc;
}

/* Queries as the kernels will read them, rounded to their type on both sides. */
static uint64_t make_queries(struct device *d, struct rng *r, struct scene *s)
{
	size_t n = (size_t)s->seqs * s->queries * s->heads * s->group * s->dim;
	uint8_t *raw = malloc(n * dtype_bytes(s->q_dtype));
	uint64_t q = 0;

	for (size_t i = 0; raw && i < n; i++) {
		put_element(raw, s->q_dtype, (uint32_t)i, rng_normal(r));
		s->q[i] = load_element(raw, s->q_dtype, (uint32_t)i);
	}
	if (raw)
		q = d->alloc(d, raw, n * dtype_bytes(s->q_dtype), 0);
	free(raw);
	return q;
}

static int run_scene(struct device *d, struct rng *r, struct scene *s)
{
	uint32_t rows = s->queries * s->group, heads = s->heads * s->group;
	size_t n = (size_t)s->seqs * s->heads * rows, size = dtype_bytes(s->q_dtype);
	size_t out_row = s->dim * dtype_bytes(s->out_dtype);
	size_t part_bytes = n * s->split_total * (s->dim + 2) * sizeof(float);
	uint8_t *poison = malloc(part_bytes + n * out_row);
	const struct kvp_cuda_kernel *k;
	struct kvp_cuda_attend p = {
		.q_seq_stride = (int64_t)(s->queries * heads * s->dim * size),
		.q_query_stride = (int64_t)(heads * s->dim * size),
		.q_head_stride = (int64_t)(s->dim * size),
		.seqs = s->seqs,
		.q_dtype = s->q_dtype,
		.queries = s->queries,
		.group = s->group,
		.split_total = s->split_total,
		.causal = s->causal,
		.window = s->window,
		.scale = s->scale,
	};
	struct kvp_cuda_merge m = {
		.out_seq_stride = (int64_t)(s->queries * heads * out_row),
		.out_query_stride = (int64_t)(heads * out_row),
		.out_head_stride = (int64_t)out_row,
		.seqs = s->seqs,
		.heads = s->heads,
		.group = s->group,
		.queries = s->queries,
		.dim = s->dim,
		.split_total = s->split_total,
		.out_dtype = s->out_dtype,
	};
	int rc = 0;

	if (!poison)
		return -1;
	memset(poison, 0xff, part_bytes + n * out_row); /* NaN, whatever the type */
	p.q = make_queries(d, r, s);
	p.totals = d->alloc(d, s->total, sizeof(s->total), 0);
	p.partial = m.partial = d->alloc(d, poison, part_bytes, 1);
	m.out = d->alloc(d, poison, n * out_row, 1);
	m.lse = d->alloc(d, poison, n * sizeof(float), 1);
	free(poison);
	for (uint32_t i = 0; rc == 0 && i < s->tiers; i++)
		rc = run_tier(d, r, s, &s->tier[i], &p);
	if (rc == 0 && (kvp_cuda_kernel_find("kvp_cu_merge", &k) < 0 || d->launch(d, k, &m) < 0))
		rc = fail(d, s, "merge");
	return rc == 0 ? compare(d, s, m.out, m.lse) : rc;
}

int check_attend(struct device *d, struct rng *r)
{
	struct scene s;
	size_t kv;
	int rc = -1;

	scene_draw(r, &s);
	kv = (size_t)s.seqs * s.heads * (s.tokens_max + 1) * s.dim;
	s.q = calloc((size_t)s.seqs * s.queries * s.heads * s.group * s.dim, sizeof(float));
	s.k = calloc(kv, sizeof(float));
	s.v = calloc(kv, sizeof(float));
	if (s.q && s.k && s.v)
		rc = run_scene(d, r, &s);
	free(s.q);
	free(s.k);
	free(s.v);
	d->reset(d);
	return rc;
}
