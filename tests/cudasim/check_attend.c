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
	uint32_t dtype; /* of native planes */
	uint32_t page_tokens;
	uint32_t first[SEQS_MAX]; /* position of its first token */
	uint32_t count[SEQS_MAX];
	struct kvp_cuda_codec k;
	struct kvp_cuda_codec v;
	uint32_t splits;
	struct kvp_cuda_attend launched;
};

struct scene {
	struct tier tier[TIERS_MAX];
	uint32_t tiers;
	uint32_t seqs;
	uint32_t heads;
	uint32_t group;
	uint32_t queries;
	uint32_t k_dim;
	uint32_t v_dim;
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
	float *q;     /* [seq][query][head][k_dim], as stored */
	float *k;     /* [seq][head][tokens_max][k_dim], decoded */
	float *v;
	float *mask;   /* [seq][query][tokens_max], or NULL */
	uint8_t *dead; /* [tokens_max]: masked for all, and anything may lie there */
	double *mass;  /* [seq][head][tokens_max], expected */
	/* queries as the keys want them: as they are, then one per distinct rotation */
	uint32_t domains;
	uint64_t q_at[1 + TIERS_MAX];
	struct kvp_cuda_rotation rot[1 + TIERS_MAX];
};

static const struct {
	uint32_t k;
	uint32_t v;
	uint32_t native_dtype;
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
	{ KVP_CODEC_TQ(3u, KVP_TQ_NC, 0u, 0u, 0u), KVP_CODEC_ASYM(3u, 0u), 0 },
	{ KVP_CODEC_KIVI(3u, 5u), KVP_CODEC_KIVI(3u, 6u), 0 },
	{ KVP_CODEC_INT8, KVP_CODEC_INT8, 0 },
};

static size_t kv_token(const struct scene *s, uint32_t seq, uint32_t head, uint32_t t)
{
	return ((size_t)seq * s->heads + head) * s->tokens_max + t;
}

static float *scene_k(const struct scene *s, uint32_t seq, uint32_t head, uint32_t t)
{
	return s->k + kv_token(s, seq, head, t) * s->k_dim;
}

static float *scene_v(const struct scene *s, uint32_t seq, uint32_t head, uint32_t t)
{
	return s->v + kv_token(s, seq, head, t) * s->v_dim;
}

/* Lengths that end inside a tile, at its end, or nowhere. */
static uint32_t draw_count(struct rng *r, uint32_t max)
{
	static const uint32_t some[] = { 0, 1, 15, 16, 17, 31, 33, 64, 255, 256, 257 };
	uint32_t n = rng_below(r, 2) ? some[rng_below(r, sizeof(some) / sizeof(some[0]))]
				     : rng_below(r, max + 1);

	return n < max ? n : max;
}

/* Of codecs other than native fp32, which decoding does not round. */
static uint32_t plane_dtype(const struct tier *t, uint32_t codec)
{
	return codec == KVP_CODEC_NATIVE ? t->dtype : KVP_DTYPE_F32;
}

/* Scenes of even turns go through all tuned kernels, with their first tier. */
static int takes_turn(const struct rng *r, const struct scene *s, const struct tier *t)
{
	return r->turn % 2 == 0 && t == s->tier;
}

/* A pair that has a kernel of its own and pages that this kernel takes, or anything at all. */
static int draw_tier(struct device *d, struct rng *r, const struct scene *s, struct tier *t)
{
	static const uint32_t floats[] = { KVP_DTYPE_F32, KVP_DTYPE_F16, KVP_DTYPE_BF16 };
	uint32_t i = rng_below(r, sizeof(pairs) / sizeof(pairs[0]));
	int tuned = (s->k_dim == s->v_dim && rng_below(r, 3)) || takes_turn(r, s, t);
	struct kvp_plane k, v;
	struct kvp_layout lay;

	if (takes_turn(r, s, t))
		i = r->turn / 4 % (sizeof(pairs) / sizeof(pairs[0]));
	t->k_codec = tuned ? pairs[i].k : codec_draw(r);
	t->v_codec = tuned ? pairs[i].v : codec_draw(r);
	t->dtype = tuned ? pairs[i].native_dtype : floats[rng_below(r, 3)];
	t->page_tokens = tuned ? 16u << rng_below(r, 4) : 1 + rng_below(r, 70);
	t->splits = 1 + rng_below(r, 4);
	k = (struct kvp_plane){ t->page_tokens, s->heads, s->k_dim, plane_dtype(t, t->k_codec),
		KVP_PLANE_K };
	v = (struct kvp_plane){ t->page_tokens, s->heads, s->v_dim, plane_dtype(t, t->v_codec),
		KVP_PLANE_V };
	if (kvp_plane_layout(t->k_codec, &k, &lay) < 0 ||
		kvp_plane_layout(t->v_codec, &v, &lay) < 0)
		return -1;
	/* dense rotations of large dims would take the model minutes */
	if (s->k_dim > 128 && (is_dense(t->k_codec) || is_dense(t->v_codec)))
		return -1;
	if (device_codec_init(d, t->k_codec, &k, 0, &t->k) < 0)
		return -1;
	return device_codec_init(d, t->v_codec, &v, 0, &t->v);
}

/* Half of all scenes suit the tuned kernels; the others have other dims, some of them large. */
static void draw_dims(struct rng *r, struct scene *s)
{
	static const uint32_t dims[][2] = { { 80, 80 }, { 96, 96 }, { 256, 256 }, { 576, 512 },
		{ 192, 128 }, { 64, 128 }, { 40, 24 }, { 8, 8 }, { 112, 112 } };
	uint32_t i = rng_below(r, sizeof(dims) / sizeof(dims[0]));

	s->k_dim = s->v_dim = r->turn / 2 % 2 ? 64 : 128;
	if (r->turn % 2 == 0)
		return;
	s->k_dim = dims[i][0];
	s->v_dim = dims[i][1];
	s->queries = s->queries > 2 ? 2 : s->queries;
	if (s->k_dim > 128) {
		s->heads = 1;
		s->seqs = 1;
	}
}

static uint32_t tokens_limit(const struct scene *s, const struct tier *t)
{
	uint32_t most = s->k_dim > 256 ? 40 : s->k_dim > 128 ? 80 : 300;

	return t->page_tokens * PAGES_PER_SEQ < most ? t->page_tokens * PAGES_PER_SEQ : most;
}

static void scene_draw(struct device *d, struct rng *r, struct scene *s)
{
	static const uint32_t dtypes[] = { KVP_DTYPE_F32, KVP_DTYPE_F16, KVP_DTYPE_BF16 };

	memset(s, 0, sizeof(*s));
	s->tiers = 1 + rng_below(r, TIERS_MAX);
	s->seqs = 1 + rng_below(r, SEQS_MAX);
	s->heads = 1 + rng_below(r, 3);
	s->group = rng_below(r, 4) ? 1 + rng_below(r, 8) : 17;
	s->queries = rng_below(r, 2) ? 1 : 1 + rng_below(r, 5);
	draw_dims(r, s);
	s->q_dtype = dtypes[rng_below(r, 3)];
	s->out_dtype = rng_below(r, 3) ? KVP_DTYPE_F32 : KVP_DTYPE_F16;
	s->causal = rng_below(r, 2);
	s->window = rng_below(r, 3) ? 0 : 1 + rng_below(r, 100);
	s->scale = 1.0f / sqrtf((float)s->k_dim);
	s->v_size = ldexpf(1.0f, (int)rng_below(r, 4) * 5 - 10);
	for (uint32_t i = 0; i < s->tiers; i++) {
		struct tier *t = &s->tier[i];

		while (draw_tier(d, r, s, t) < 0)
			;
		s->split_total += t->splits;
		for (uint32_t q = 0; q < s->seqs; q++) {
			t->first[q] = s->total[q];
			t->count[q] = draw_count(r, tokens_limit(s, t));
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
		"attention: %s: %s%s dims %u/%u heads %u group %u queries %u causal %u window %u "
		"mask %d %s",
		what, names[0], names[1], s->k_dim, s->v_dim, s->heads, s->group, s->queries,
		s->causal, s->window, s->mask != NULL, reason);
	return -1;
}

static void keep_row(struct scene *s, const struct kvp_cuda_codec *c, float *kv, const uint8_t *row)
{
	for (uint32_t ch = 0; ch < c->dim; ch++) {
		kv[ch] = load_element(row, c->dtype, ch);
		if (c->kind == KVP_PLANE_V && fabsf(kv[ch]) > s->v_max)
			s->v_max = fabsf(kv[ch]);
	}
}

/* A token that the sequence does not have, or nobody may see: codes, and scalars of its own, are
 * anything; 0x7b7b is nearly the largest fp16. Native elements become NaN. */
static void poison_row(const struct kvp_cuda_codec *c, uint8_t *page, uint32_t head, uint32_t token)
{
	int chan = KVP_CODEC_FAMILY(c->id) == KVP_FAMILY_KIVI && c->kind == KVP_PLANE_K;
	size_t row = (size_t)head * c->coded + token, tail = c->tokens - c->coded;
	size_t scalars = (c->wide ? 4u : 2u) * (size_t)c->groups;

	if (token >= c->coded) {
		size_t bytes = c->dim * dtype_bytes(c->dtype);

		memset(page + c->native + (head * tail + token - c->coded) * bytes, 0xff, bytes);
		return;
	}
	memset(page + c->codes + row * c->row_bytes, 0xff, c->row_bytes);
	if (c->scale && !chan)
		memset(page + c->scale + row * scalars, 0x7b, scalars);
	if (c->minimum && !chan)
		memset(page + c->minimum + row * scalars, 0x7b, scalars);
}

/* One plane of random rows, encoded into `page`; what it decodes to goes into `kv`. */
static int make_plane(struct device *d, struct rng *r, struct scene *s, const struct tier *t,
	const struct kvp_cuda_codec *c, uint8_t *page, uint32_t seq, uint32_t token)
{
	struct kvp_plane p = { t->page_tokens, s->heads, c->dim, c->dtype, c->kind };
	const struct kvp_calib *calib = subject_calib(c->id, c->dim);
	struct kvp_encode_opts o = { .size = sizeof(o), .calib = calib };
	size_t size = dtype_bytes(c->dtype), row = c->dim * size;
	struct kvp_raw raw = { NULL, (ptrdiff_t)(row * t->page_tokens), (ptrdiff_t)row };
	uint8_t *data = malloc(row * t->page_tokens * s->heads);
	int rc;

	if (!data)
		return -1;
	raw.data = data;
	for (uint32_t i = 0; i < t->page_tokens * s->heads; i++)
		for (uint32_t ch = 0; ch < c->dim; ch++)
			put_element(data + i * row, c->dtype, ch,
				rng_normal(r) * (c->kind == KVP_PLANE_V ? s->v_size
							: ch % 41 == 7  ? 4.0f
									: 1.0f));
	rc = kvp_plane_encode(d->ref, c->id, &p, &o,
		(struct kvp_raw_const){ data, raw.head_stride, raw.token_stride }, page, c->bytes);
	if (rc == 0)
		rc = kvp_plane_decode(d->ref, c->id, &p, calib, page, c->bytes, raw);
	for (uint32_t i = 0; rc == 0 && i < t->page_tokens * s->heads; i++) {
		uint32_t at = token + i % t->page_tokens, head = i / t->page_tokens;
		int there = at < t->first[seq] + t->count[seq];

		if (there && !s->dead[at])
			keep_row(s, c,
				c->kind == KVP_PLANE_K ? scene_k(s, seq, head, at)
						       : scene_v(s, seq, head, at),
				data + i * row);
		else
			poison_row(c, page, head, i % t->page_tokens);
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

			rc = make_plane(d, r, s, t, &t->k, page, q, token);
			if (rc == 0)
				rc = make_plane(d, r, s, t, &t->v, page + v_at, q, token);
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

static int same_rotation(const struct kvp_cuda_rotation *a, const struct kvp_cuda_rotation *b)
{
	/* a dense one is in memory as often as a codec was made of it, but there is only one */
	return (a->dense && b->dense) || memcmp(a, b, sizeof(*a)) == 0;
}

/* Queries in the domain of the tier's keys: rotated once, whatever the number of tiers. */
static int find_queries(
	struct device *d, struct scene *s, const struct tier *t, struct kvp_cuda_attend *p)
{
	uint32_t heads = s->heads * s->group, n = s->seqs * s->queries * heads, i = 0;
	struct kvp_cuda_rotate rot = {
		.q = s->q_at[0],
		.q_seq_stride = p->q_seq_stride,
		.q_query_stride = p->q_query_stride,
		.q_head_stride = p->q_head_stride,
		.q_dtype = s->q_dtype,
		.seqs = s->seqs,
		.queries = s->queries,
		.heads = heads,
		.dim = s->k_dim,
		.rot = t->k.rot,
	};
	const struct kvp_cuda_kernel *k;
	float *poison;

	while (i < s->domains && !same_rotation(&s->rot[i], &t->k.rot))
		i++;
	if (i == s->domains) {
		poison = malloc((size_t)n * s->k_dim * sizeof(*poison));
		if (!poison)
			return -1;
		memset(poison, 0xff, (size_t)n * s->k_dim * sizeof(*poison));
		s->q_at[i] = rot.out = d->alloc(d, poison, (size_t)n * s->k_dim * sizeof(float), 1);
		free(poison);
		s->rot[i] = t->k.rot;
		s->domains++;
		if (kvp_cuda_kernel_find("kvp_cu_rotate", &k) < 0 || d->launch(d, k, &rot) < 0)
			return -1;
	}
	p->q = s->q_at[i];
	if (i == 0)
		return 0;
	p->q_dtype = KVP_DTYPE_F32;
	p->q_head_stride = s->k_dim * (int64_t)sizeof(float);
	p->q_query_stride = heads * p->q_head_stride;
	p->q_seq_stride = s->queries * p->q_query_stride;
	return 0;
}

static int run_tier(struct device *d, struct rng *r, struct scene *s, struct tier *t,
	const struct kvp_cuda_attend *common, uint32_t split_first)
{
	struct kvp_cuda_attend *p = &t->launched;
	const struct kvp_cuda_kernel *k;

	*p = *common;
	p->split_first = split_first;
	if (find_queries(d, s, t, p) < 0)
		return fail(d, s, "rotating queries");

	if (make_pages(d, r, s, t, p) < 0)
		return fail(d, s, "making pages");
	p->lengths = d->alloc(d, t->count, sizeof(t->count), 0);
	p->firsts = t == s->tier && s->tiers == 1 ? 0 : d->alloc(d, t->first, sizeof(t->first), 0);
	p->splits = t->splits;
	if (kvp_cuda_attend_kernel(&t->k, &t->v, &k) < 0)
		return fail(d, s, "no kernel");
	return d->launch(d, k, p) < 0 ? fail(d, s, k->name) : 0;
}

/* Scaled and masked score of a token; minus infinity if the query does not see it. */
static double expect_score(
	const struct scene *s, uint32_t seq, uint32_t query, uint32_t head, uint32_t t)
{
	const float *q =
		s->q + (((size_t)seq * s->queries + query) * s->heads * s->group + head) * s->k_dim;
	const float *k = scene_k(s, seq, head / s->group, t);
	int64_t position = (int64_t)s->total[seq] - s->queries + query;
	double score = 0.0, mask = 0.0;

	if (s->mask)
		mask = s->mask[((size_t)seq * s->queries + query) * s->tokens_max + t];
	if ((s->causal && t > position) || (s->window && t + (int64_t)s->window <= position))
		return -INFINITY;
	for (uint32_t ch = 0; mask > -INFINITY && ch < s->k_dim; ch++)
		score += (double)q[ch] * k[ch];
	return score * s->scale + mask;
}

/* Softmax attention of one row in double precision; its weights are added to the mass. */
static void expect_row(const struct scene *s, uint32_t seq, uint32_t query, uint32_t head,
	double *out, double *lse)
{
	double max = -INFINITY, sum = 0.0;
	double *w = malloc((s->total[seq] + 1) * sizeof(*w));

	for (uint32_t ch = 0; ch < s->v_dim; ch++)
		out[ch] = 0.0;
	for (uint32_t t = 0; w && t < s->total[seq]; t++) {
		w[t] = expect_score(s, seq, query, head, t);
		max = w[t] > max ? w[t] : max;
	}
	for (uint32_t t = 0; w && max > -INFINITY && t < s->total[seq]; t++) {
		const float *v = scene_v(s, seq, head / s->group, t);

		w[t] = exp(w[t] - max);
		sum += w[t];
		for (uint32_t ch = 0; w[t] > 0.0 && ch < s->v_dim; ch++)
			out[ch] += w[t] * v[ch];
	}
	for (uint32_t ch = 0; sum > 0.0 && ch < s->v_dim; ch++)
		out[ch] /= sum;
	for (uint32_t t = 0; sum > 0.0 && t < s->total[seq]; t++)
		s->mass[kv_token(s, seq, head / s->group, t)] += w[t] / sum;
	*lse = sum > 0.0 ? max + log(sum) : -INFINITY;
	free(w);
}

static int compare_row(struct device *d, const struct scene *s, const double *want,
	const uint8_t *got, double want_lse, float got_lse)
{
	double dot = 0.0, a = 0.0, b = 0.0, sum = 0.0, size = s->v_max > 1 ? s->v_max : 1;
	char what[120];

	for (uint32_t ch = 0; ch < s->v_dim; ch++) {
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
	if (!(sqrt(sum / s->v_dim) <= TOLERANCE / 4 * size)) {
		snprintf(what, sizeof(what), "root mean square error %g", sqrt(sum / s->v_dim));
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
	uint8_t *got = malloc(all * s->v_dim * size);
	float *got_lse = malloc(all * sizeof(*got_lse));
	double want[KVP_PLANE_DIM_MAX], want_lse;
	int rc = got && got_lse ? d->read(d, out, got, all * s->v_dim * size) : -1;

	if (rc == 0)
		rc = d->read(d, lse, got_lse, all * sizeof(*got_lse));
	for (uint32_t i = 0; rc == 0 && i < all; i++) {
		uint32_t head = i % (s->heads * s->group), qi = i / (s->heads * s->group);
		uint32_t query = qi % s->queries, seq = qi / s->queries;
		uint32_t row = (seq * s->heads + head / s->group) * rows + query * s->group +
			       head % s->group;

		expect_row(s, seq, query, head, want, &want_lse);
		rc = compare_row(
			d, s, want, got + (size_t)i * s->v_dim * size, want_lse, got_lse[row]);
	}
	free(got);
	free(got_lse);
	return rc;
}

/* What kvp_cu_mass makes of every tier; needs the expected mass, which compare() leaves. */
static int check_mass(struct device *d, const struct scene *s, uint64_t lse)
{
	size_t n = (size_t)s->seqs * s->heads * s->tokens_max;
	struct kvp_cuda_mass p = {
		.lse = lse,
		.mass_head_stride = (int64_t)(s->tokens_max * sizeof(float)),
		.mass_seq_stride = (int64_t)(s->heads * s->tokens_max * sizeof(float)),
	};
	const struct kvp_cuda_kernel *k;
	float *mass = malloc((n + 1) * sizeof(*mass));
	char what[80];
	int rc = mass && kvp_cuda_kernel_find("kvp_cu_mass", &k) == 0 ? 0 : -1;

	for (size_t i = 0; rc == 0 && i < n; i++)
		mass[i] = -1.0f;
	p.mass = rc == 0 ? d->alloc(d, mass, (n + 1) * sizeof(*mass), 1) : 0;
	for (uint32_t i = 0; rc == 0 && i < s->tiers; i++) {
		p.attend = s->tier[i].launched;
		rc = d->launch(d, k, &p) < 0 ? fail(d, s, k->name) : 0;
	}
	if (rc == 0)
		rc = d->read(d, p.mass, mass, n * sizeof(*mass));
	for (size_t i = 0; rc == 0 && i < n; i++) {
		/* what no tier has, no tier writes */
		int there = i % s->tokens_max < s->total[i / s->tokens_max / s->heads];

		if (there ? fabs(mass[i] - s->mass[i]) <= 2 * TOLERANCE * s->queries * s->group
			  : mass[i] == -1.0f)
			continue;
		snprintf(what, sizeof(what), "mass of token %zu is %g, not %g", i % s->tokens_max,
			(double)mass[i], s->mass[i]);
		rc = fail(d, s, what);
	}
	free(mass);
	return rc;
}

/* An additive mask, some of it minus infinity, and tokens that nobody sees. */
static int draw_mask(struct device *d, struct rng *r, struct scene *s, struct kvp_cuda_attend *p)
{
	size_t rows = (size_t)s->seqs * s->queries, n = rows * s->tokens_max;

	if (rng_below(r, 3))
		return 0;
	s->mask = malloc((n + 1) * sizeof(*s->mask));
	if (!s->mask)
		return -1;
	for (uint32_t t = 0; t < s->tokens_max; t++)
		s->dead[t] = rng_below(r, 8) == 0;
	for (size_t i = 0; i < n; i++) {
		int hidden = s->dead[i % s->tokens_max] || rng_below(r, 6) == 0;

		s->mask[i] = hidden ? -INFINITY : rng_normal(r);
	}
	/* and a query that sees nothing */
	for (size_t t = 0; rng_below(r, 4) == 0 && t < s->tokens_max; t++)
		s->mask[t] = -INFINITY;
	p->mask = d->alloc(d, s->mask, (n + 1) * sizeof(*s->mask), 0);
	p->mask_query_stride = (int64_t)(s->tokens_max * sizeof(*s->mask));
	p->mask_seq_stride = s->queries * p->mask_query_stride;
	return p->mask ? 0 : -1;
}

/* Queries as the kernels will read them, rounded to their type on both sides. */
static uint64_t make_queries(struct device *d, struct rng *r, struct scene *s)
{
	size_t n = (size_t)s->seqs * s->queries * s->heads * s->group * s->k_dim;
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

/* Tiers whose values are rotated alike share a domain. */
static void add_domain(struct kvp_cuda_merge *m, const struct tier *t, uint32_t split_end)
{
	if (!m->domains || !same_rotation(&m->domain[m->domains - 1].rot, &t->v.rot))
		m->domain[m->domains++].rot = t->v.rot;
	m->domain[m->domains - 1].split_end = split_end;
}

static int run_scene(struct device *d, struct rng *r, struct scene *s)
{
	uint32_t rows = s->queries * s->group, heads = s->heads * s->group;
	size_t n = (size_t)s->seqs * s->heads * rows, size = dtype_bytes(s->q_dtype);
	size_t out_row = s->v_dim * dtype_bytes(s->out_dtype);
	size_t part_bytes = n * s->split_total * (s->v_dim + 2) * sizeof(float);
	uint8_t *poison = malloc(part_bytes + n * out_row);
	const struct kvp_cuda_kernel *k;
	struct kvp_cuda_attend p = {
		.q_seq_stride = (int64_t)(s->queries * heads * s->k_dim * size),
		.q_query_stride = (int64_t)(heads * s->k_dim * size),
		.q_head_stride = (int64_t)(s->k_dim * size),
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
		.dim = s->v_dim,
		.split_total = s->split_total,
		.out_dtype = s->out_dtype,
	};
	int rc = 0;

	if (!poison)
		return -1;
	memset(poison, 0xff, part_bytes + n * out_row); /* NaN, whatever the type */
	s->q_at[0] = make_queries(d, r, s);
	s->domains = 1;
	if (draw_mask(d, r, s, &p) < 0)
		rc = -1;
	p.totals = d->alloc(d, s->total, sizeof(s->total), 0);
	p.partial = m.partial = d->alloc(d, poison, part_bytes, 1);
	m.out = d->alloc(d, poison, n * out_row, 1);
	m.lse = d->alloc(d, poison, n * sizeof(float), 1);
	free(poison);
	for (uint32_t i = 0, split = 0; rc == 0 && i < s->tiers; split += s->tier[i++].splits) {
		rc = run_tier(d, r, s, &s->tier[i], &p, split);
		add_domain(&m, &s->tier[i], split + s->tier[i].splits);
	}
	if (rc == 0 && (kvp_cuda_kernel_find("kvp_cu_merge", &k) < 0 || d->launch(d, k, &m) < 0))
		rc = fail(d, s, "merge");
	if (rc == 0)
		rc = compare(d, s, m.out, m.lse);
	return rc == 0 ? check_mass(d, s, m.lse) : rc;
}

int check_attend(struct device *d, struct rng *r)
{
	struct scene s;
	size_t kv;
	int rc = -1;

	scene_draw(d, r, &s);
	kv = (size_t)s.seqs * s.heads * (s.tokens_max + 1);
	s.q = calloc((size_t)s.seqs * s.queries * s.heads * s.group * s.k_dim, sizeof(float));
	s.k = calloc(kv * s.k_dim, sizeof(float));
	s.v = calloc(kv * s.v_dim, sizeof(float));
	s.mass = calloc(kv, sizeof(*s.mass));
	s.dead = calloc(s.tokens_max + 1, 1);
	if (s.q && s.k && s.v && s.mass && s.dead)
		rc = run_scene(d, r, &s);
	free(s.q);
	free(s.k);
	free(s.v);
	free(s.mask);
	free(s.mass);
	free(s.dead);
	d->reset(d);
	return rc;
}
