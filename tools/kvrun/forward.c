/* SPDX-License-Identifier: Apache-2.0 */
/* One forward pass of a Llama-family model: layers, attention over the cache, logits. */
#include "tools/kvrun/kvr_forward.h"
#include "tools/kvrun/kvr_attend.h"
#include "tools/kvrun/kvr_blas.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct kvr_pass {
	const struct kvr_model *model;
	uint32_t block_tokens;
	struct kvr_attend attend;
	float *x;             /* [n][hidden]: the residual stream */
	float *normed;        /* [n][hidden] */
	float *q;             /* [n][heads * head_dim]; attention's output too */
	float *k, *v;         /* [n][kv_dim] */
	float *gate, *up;     /* [n][ffn] */
	float *cos, *sin;     /* [n][head_dim / 2] */
	float *logits;        /* [n][vocab], or one row until all are asked for */
	uint32_t logits_rows; /* allocated */
	float *arena;
	const struct kvr_watch *watch; /* NULL: nobody */
};

struct kvr_geom kvr_model_geom(
	const struct kvr_model *model, uint32_t block_tokens, enum kvr_dtype dtype)
{
	const struct kvr_config *c = &model->config;

	return (struct kvr_geom){ c->layers, c->kv_heads * c->head_dim, block_tokens, dtype };
}

static int alloc_workspace(struct kvr_pass *p)
{
	const struct kvr_config *c = &p->model->config;
	const struct {
		float **dst;
		uint64_t width;
	} part[] = {
		{ &p->x, c->hidden },
		{ &p->normed, c->hidden },
		{ &p->q, (uint64_t)c->heads * c->head_dim },
		{ &p->k, (uint64_t)c->kv_heads * c->head_dim },
		{ &p->v, (uint64_t)c->kv_heads * c->head_dim },
		{ &p->gate, c->ffn },
		{ &p->up, c->ffn },
		{ &p->cos, c->head_dim / 2 },
		{ &p->sin, c->head_dim / 2 },
	};
	uint64_t total = 0;
	void *arena;

	/* block_tokens is at least 16, so each part starts on a cache line */
	for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
		total += (part[i].width * p->block_tokens + 15) & ~UINT64_C(15);
	if (posix_memalign(&arena, 64, total * sizeof(float)) != 0)
		return -ENOMEM;
	p->arena = arena;
	total = 0;
	for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
		*part[i].dst = p->arena + total;
		total += (part[i].width * p->block_tokens + 15) & ~UINT64_C(15);
	}
	return 0;
}

int kvr_pass_new(const struct kvr_model *model, uint32_t block_tokens, struct kvr_pass **ret_pass)
{
	struct kvr_pass *p;

	if (block_tokens < KVR_BLOCK_TOKENS_MIN || block_tokens > KVR_BLOCK_TOKENS_MAX)
		return -EINVAL;
	openblas_set_num_threads(1);
	p = calloc(1, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->model = model;
	p->block_tokens = block_tokens;
	if (alloc_workspace(p) < 0 ||
		kvr_attend_init(&p->attend, &model->config, block_tokens) < 0) {
		kvr_pass_free(p);
		return -ENOMEM;
	}
	*ret_pass = p;
	return 0;
}

struct kvr_pass *kvr_pass_free(struct kvr_pass *p)
{
	if (p) {
		kvr_attend_done(&p->attend);
		free(p->logits);
		free(p->arena);
		free(p);
	}
	return NULL;
}

void kvr_pass_watch(struct kvr_pass *p, const struct kvr_watch *watch)
{
	p->watch = watch;
}

static void rms_norm(
	const float *x, uint32_t n, uint32_t dim, const float *weight, float eps, float *out)
{
	for (uint32_t t = 0; t < n; t++, x += dim, out += dim) {
		float scale = 1 / sqrtf(cblas_sdot((int)dim, x, 1, x, 1) / (float)dim + eps);

		for (uint32_t i = 0; i < dim; i++)
			out[i] = weight[i] * (scale * x[i]);
	}
}

/* The rotations of the run's positions; angles in double, as long contexts need it. */
static void prepare_rope(struct kvr_pass *p, uint32_t first, uint32_t n)
{
	const struct kvr_config *c = &p->model->config;
	uint32_t half = c->head_dim / 2;

	for (uint32_t i = 0; i < half; i++) {
		double frequency = pow(c->rope_theta, -2.0 * i / c->head_dim);

		for (uint32_t t = 0; t < n; t++) {
			double angle = (first + t) * frequency;

			p->cos[(size_t)t * half + i] = (float)cos(angle);
			p->sin[(size_t)t * half + i] = (float)sin(angle);
		}
	}
}

static void rotate(const struct kvr_pass *p, uint32_t n, uint32_t heads, float *x)
{
	const struct kvr_config *c = &p->model->config;
	uint32_t half = c->head_dim / 2;
	int split = c->rope_pairs == KVR_ROPE_HALF_SPLIT;
	uint32_t step = split ? 1 : 2, partner = split ? half : 1;

	for (uint32_t t = 0; t < n; t++) {
		const float *co = p->cos + (size_t)t * half, *si = p->sin + (size_t)t * half;

		for (uint32_t h = 0; h < heads; h++, x += c->head_dim) {
			for (uint32_t i = 0; i < half; i++) {
				float a = x[i * step], b = x[i * step + partner];

				x[i * step] = a * co[i] - b * si[i];
				x[i * step + partner] = a * si[i] + b * co[i];
			}
		}
	}
}

/* Keys and values of the run into their block. */
static void store(struct kvr_pass *p, struct kvr_kv *kv, uint32_t layer, uint32_t first, uint32_t n)
{
	const struct kvr_geom *g = &kv->geom;
	uint8_t *base = kv->ops->block(kv, first / g->block_tokens);
	uint32_t at = first % g->block_tokens;

	kvr_narrow(g->dtype, p->k, (size_t)n * g->kv_dim, base + kvr_row_offset(g, layer, 0, at));
	kvr_narrow(g->dtype, p->v, (size_t)n * g->kv_dim, base + kvr_row_offset(g, layer, 1, at));
}

static void add(float *x, const float *y, size_t count)
{
	for (size_t i = 0; i < count; i++)
		x[i] += y[i];
}

static int run_attention(struct kvr_pass *p, struct kvr_kv *kv,
	const struct kvr_substitute *substitute, uint32_t layer, uint32_t first, uint32_t n)
{
	const struct kvr_config *c = &p->model->config;
	const struct kvr_layer *l = &p->model->layer[layer];
	uint32_t dim = c->hidden, q_dim = c->heads * c->head_dim, kv_dim = kv->geom.kv_dim;
	int r;

	rms_norm(p->x, n, dim, l->norm_attn, c->norm_eps, p->normed);
	kvr_mul_wt(p->normed, n, l->wq, dim, q_dim, dim, p->q);
	kvr_mul_wt(p->normed, n, l->wk, dim, kv_dim, dim, p->k);
	kvr_mul_wt(p->normed, n, l->wv, dim, kv_dim, dim, p->v);
	if (p->watch)
		p->watch->queries(p->watch->arg, layer, first, n, p->q);
	rotate(p, n, c->heads, p->q);
	rotate(p, n, c->kv_heads, p->k);
	if (kv->ops->attend) {
		r = kv->ops->attend(kv, layer, first, n, p->q, p->k, p->v, p->q);
	} else {
		store(p, kv, layer, first, n);
		r = kvr_attend_run(&p->attend, kv, substitute, layer, first, n, p->q, p->q);
	}
	if (r < 0)
		return r;
	kvr_mul_wt(p->q, n, l->wo, q_dim, dim, q_dim, p->normed);
	add(p->x, p->normed, (size_t)n * dim);
	return 0;
}

static void run_ffn(struct kvr_pass *p, uint32_t layer, uint32_t n)
{
	const struct kvr_config *c = &p->model->config;
	const struct kvr_layer *l = &p->model->layer[layer];

	rms_norm(p->x, n, c->hidden, l->norm_ffn, c->norm_eps, p->normed);
	kvr_mul_wt(p->normed, n, l->w_gate, c->hidden, c->ffn, c->hidden, p->gate);
	kvr_mul_wt(p->normed, n, l->w_up, c->hidden, c->ffn, c->hidden, p->up);
	for (size_t i = 0; i < (size_t)n * c->ffn; i++)
		p->gate[i] = p->gate[i] / (1 + expf(-p->gate[i])) * p->up[i];
	kvr_mul_wt(p->gate, n, l->w_down, c->ffn, c->hidden, c->ffn, p->normed);
	add(p->x, p->normed, (size_t)n * c->hidden);
}

static int run_classifier(struct kvr_pass *p, uint32_t n, enum kvr_logits want)
{
	const struct kvr_config *c = &p->model->config;
	uint32_t rows = want == KVR_LOGITS_ALL ? n : 1;
	const float *x = p->x + (size_t)(n - rows) * c->hidden;

	if (rows > p->logits_rows) {
		uint32_t room = rows > 1 ? p->block_tokens : 1;
		void *logits;

		if (posix_memalign(&logits, 64, (size_t)room * c->vocab * sizeof(float)) != 0)
			return -ENOMEM;
		free(p->logits);
		p->logits = logits;
		p->logits_rows = room;
	}
	rms_norm(x, rows, c->hidden, p->model->norm_final, c->norm_eps, p->normed);
	kvr_mul_wt(
		p->normed, rows, p->model->classifier, c->hidden, c->vocab, c->hidden, p->logits);
	return 0;
}

static int check_run(const struct kvr_pass *p, const struct kvr_kv *kv,
	const struct kvr_substitute *substitute, uint32_t first, const uint32_t *tokens, uint32_t n)
{
	const struct kvr_config *c = &p->model->config;
	const struct kvr_geom *g = &kv->geom;

	if ((kv->coding || kv->ops->attend) && substitute)
		return -EINVAL;
	if (g->block_tokens != p->block_tokens || g->layers != c->layers ||
		g->kv_dim != c->kv_heads * c->head_dim)
		return -EINVAL;
	if (n == 0 || n > g->block_tokens - first % g->block_tokens || first > c->context ||
		n > c->context - first)
		return -EINVAL;
	for (uint32_t i = 0; i < n; i++)
		if (tokens[i] >= c->vocab)
			return -EINVAL;
	return 0;
}

int kvr_pass_run(struct kvr_pass *p, struct kvr_kv *kv, const struct kvr_substitute *substitute,
	uint32_t first, const uint32_t *tokens, uint32_t n, enum kvr_logits want,
	const float **ret_logits)
{
	uint32_t dim = p->model->config.hidden;
	int r = check_run(p, kv, substitute, first, tokens, n);

	if (r < 0)
		return r;
	for (uint32_t t = 0; t < n; t++)
		memcpy(p->x + (size_t)t * dim, p->model->embedding + (size_t)tokens[t] * dim,
			dim * sizeof(float));
	prepare_rope(p, first, n);
	for (uint32_t l = 0; l < p->model->config.layers; l++) {
		r = run_attention(p, kv, substitute, l, first, n);
		if (r < 0)
			return r;
		run_ffn(p, l, n);
	}
	if (want == KVR_LOGITS_NONE)
		return 0;
	r = run_classifier(p, n, want);
	if (r == 0)
		*ret_logits = p->logits;
	return r;
}
