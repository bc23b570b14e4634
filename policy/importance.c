/* SPDX-License-Identifier: Apache-2.0 */
/* Importance of tokens: attention averaged and blended over heads, or estimated from queries. */
#include "policy/kvp_importance.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EPS           1e-12
#define TRI_OFFSETS   17u /* delta = 2^0 .. 2^16 */
#define TRI_PAIRS_MAX 512u
#define HEADS_MAX     1024u
#define LAYER_NONE    UINT32_MAX
#define WEIGHT_MAX    1e30f /* sums over heads and layers stay finite */

struct kvp_importance {
	struct kvp_importance_opts opts;
	uint32_t tokens;
	uint32_t layer;       /* of the update under way, LAYER_NONE outside of one */
	uint32_t heads_seen;  /* rows that it had so far */
	uint32_t n;           /* tokens in its rows */
	uint32_t step_layers; /* layers that have reported in this step */
	int complete;         /* `weighted` holds a complete step */
	float *ema;           /* [layers][max_tokens] */
	float *weighted;      /* [max_tokens]: I_w of the last complete step */
	float *step_sum;      /* [max_tokens]: sum over the layers of this step */
	float *row_mean;      /* [max_tokens]: the update under way, sums over heads */
	float *row_weighted;
	float *eta;     /* [layers][heads] */
	float *weights; /* [heads]: w_h while an update is under way */
	float *stat;    /* [heads] */
	uint64_t *tau;
	uint8_t reported[KVP_MAX_LAYERS]; /* in this step */
};

void kvp_importance_opts_init(
	struct kvp_importance_opts *opts, uint32_t layers, uint32_t heads, uint32_t max_tokens)
{
	*opts = (struct kvp_importance_opts){
		.size = sizeof(*opts),
		.layers = layers,
		.heads = heads,
		.max_tokens = max_tokens,
		.gamma = .9f,
		.gamma_head = .95f,
		.recency = 512,
		.blend = .3f,
		.head_stat = KVP_HEAD_STAT_MAX,
	};
}

static int opts_valid(const struct kvp_importance_opts *o)
{
	return o->size == sizeof(*o) && o->layers && o->layers <= KVP_MAX_LAYERS && o->heads &&
	       o->heads <= HEADS_MAX && o->max_tokens && o->max_tokens <= UINT32_C(1) << 28 &&
	       o->gamma >= .85f && o->gamma <= .95f && o->gamma_head > 0 && o->gamma_head < 1 &&
	       o->recency >= 0 && isfinite(o->recency) && o->blend >= 0 && o->blend <= 1 &&
	       o->head_stat <= KVP_HEAD_STAT_ENTROPY && o->normalise <= 1;
}

int kvp_importance_new(const struct kvp_importance_opts *opts, struct kvp_importance **ret)
{
	struct kvp_importance *imp;
	size_t n, i, etas;

	if (!opts_valid(opts))
		return -EINVAL;
	imp = calloc(1, sizeof(*imp));
	if (!imp)
		return -ENOMEM;
	imp->opts = *opts;
	imp->layer = LAYER_NONE;
	n = opts->max_tokens;
	etas = (size_t)opts->layers * opts->heads;
	imp->ema = calloc(n * opts->layers, sizeof(float));
	imp->weighted = calloc(n, sizeof(float));
	imp->step_sum = calloc(n, sizeof(float));
	imp->row_mean = calloc(n, sizeof(float));
	imp->row_weighted = calloc(n, sizeof(float));
	imp->eta = calloc(etas, sizeof(float));
	imp->weights = calloc(opts->heads, sizeof(float));
	imp->stat = calloc(opts->heads, sizeof(float));
	imp->tau = calloc(n, sizeof(*imp->tau));
	if (!imp->ema || !imp->weighted || !imp->step_sum || !imp->row_mean || !imp->row_weighted ||
		!imp->eta || !imp->weights || !imp->stat || !imp->tau) {
		kvp_importance_free(imp);
		return -ENOMEM;
	}
	for (i = 0; i < etas; i++)
		imp->eta[i] = 1;
	*ret = imp;
	return 0;
}

struct kvp_importance *kvp_importance_free(struct kvp_importance *imp)
{
	if (imp) {
		free(imp->ema);
		free(imp->weighted);
		free(imp->step_sum);
		free(imp->row_mean);
		free(imp->row_weighted);
		free(imp->eta);
		free(imp->weights);
		free(imp->stat);
		free(imp->tau);
		free(imp);
	}
	return NULL;
}

size_t kvp_importance_bytes(const struct kvp_importance *imp)
{
	size_t n = imp->opts.max_tokens, heads = imp->opts.heads, layers = imp->opts.layers;

	return sizeof(*imp) + sizeof(float) * (n * (layers + 4) + heads * (layers + 2)) +
	       sizeof(*imp->tau) * n;
}

uint32_t kvp_importance_tokens(const struct kvp_importance *imp)
{
	return imp->tokens;
}

int kvp_importance_append(struct kvp_importance *imp, uint32_t n, int prefill, uint64_t step)
{
	uint32_t i;

	if (n > imp->opts.max_tokens - imp->tokens)
		return -ENOSPC;
	for (i = imp->tokens; i < imp->tokens + n; i++)
		imp->tau[i] = prefill ? i : step;
	imp->tokens += n;
	return 0;
}

int kvp_importance_touch(struct kvp_importance *imp, uint32_t i, uint64_t step)
{
	if (i >= imp->tokens)
		return -EINVAL;
	imp->tau[i] = step;
	return 0;
}

void kvp_importance_head_weights(const struct kvp_importance *imp, float *ret_weights)
{
	uint32_t heads = imp->opts.heads, layers = imp->opts.layers, h, l;
	double total = 0;

	for (h = 0; h < heads; h++) {
		double sum = 0;

		for (l = 0; l < layers; l++)
			sum += imp->eta[(size_t)l * heads + h];
		ret_weights[h] = (float)(sum / layers);
		total += ret_weights[h];
	}
	for (h = 0; h < heads; h++)
		ret_weights[h] = (float)(ret_weights[h] / (total / heads + EPS));
}

static void finish_step(struct kvp_importance *imp)
{
	uint32_t i;

	for (i = 0; i < imp->tokens; i++)
		imp->weighted[i] = imp->step_sum[i] / (float)imp->step_layers;
	memset(imp->step_sum, 0, imp->tokens * sizeof(float));
	memset(imp->reported, 0, sizeof(imp->reported));
	imp->step_layers = 0;
	imp->complete = 1;
}

int kvp_importance_begin(struct kvp_importance *imp, uint32_t layer, uint32_t n)
{
	if (layer >= imp->opts.layers || n > imp->tokens)
		return -EINVAL;
	imp->layer = layer;
	imp->n = n;
	imp->heads_seen = 0;
	memset(imp->row_mean, 0, n * sizeof(float));
	memset(imp->row_weighted, 0, n * sizeof(float));
	kvp_importance_head_weights(imp, imp->weights);
	return 0;
}

static float row_stat(uint32_t kind, const float *row, uint32_t n)
{
	double sum = 0, entropy = 0, max = 0;
	uint32_t i;

	for (i = 0; i < n; i++) {
		sum += row[i];
		if (row[i] > max)
			max = row[i];
	}
	if (kind == KVP_HEAD_STAT_MAX)
		return (float)max;
	if (sum <= 0)
		return 0;
	if (n < 2)
		return 1;
	for (i = 0; i < n; i++)
		if (row[i] > 0)
			entropy -= row[i] / sum * log(row[i] / sum);
	return (float)(1 - entropy / log(n));
}

int kvp_importance_head(struct kvp_importance *imp, uint32_t head, const float *row)
{
	float w;
	uint32_t i;

	if (imp->layer == LAYER_NONE || head != imp->heads_seen || head >= imp->opts.heads)
		return -EINVAL;
	w = imp->weights[head];
	for (i = 0; i < imp->n; i++) {
		if (!(row[i] >= 0) || row[i] > WEIGHT_MAX) {
			imp->layer = LAYER_NONE;
			return -EINVAL;
		}
		imp->row_mean[i] += row[i];
		imp->row_weighted[i] += w * row[i];
	}
	imp->stat[head] = row_stat(imp->opts.head_stat, row, imp->n);
	imp->heads_seen++;
	return 0;
}

int kvp_importance_end(struct kvp_importance *imp)
{
	const struct kvp_importance_opts *o = &imp->opts;
	float *ema, *eta;
	uint32_t i;

	if (imp->layer == LAYER_NONE || imp->heads_seen != o->heads)
		return -EINVAL;
	if (imp->reported[imp->layer])
		finish_step(imp);
	ema = imp->ema + (size_t)imp->layer * o->max_tokens;
	eta = imp->eta + (size_t)imp->layer * o->heads;
	for (i = 0; i < imp->tokens; i++) {
		float a = i < imp->n ? imp->row_mean[i] / (float)o->heads : 0;

		ema[i] = o->gamma * ema[i] + (1 - o->gamma) * a;
	}
	for (i = 0; i < imp->n; i++)
		imp->step_sum[i] += imp->row_weighted[i] / (float)o->heads;
	for (i = 0; i < o->heads; i++)
		eta[i] = o->gamma_head * eta[i] + (1 - o->gamma_head) * imp->stat[i];
	imp->reported[imp->layer] = 1;
	if (++imp->step_layers == o->layers)
		finish_step(imp);
	imp->layer = LAYER_NONE;
	return 0;
}

int kvp_importance_update(
	struct kvp_importance *imp, uint32_t layer, const float *rows, size_t stride, uint32_t n)
{
	uint32_t h;
	int r;

	r = kvp_importance_begin(imp, layer, n);
	for (h = 0; !r && h < imp->opts.heads; h++)
		r = kvp_importance_head(imp, h, rows + h * stride);
	return r ? r : kvp_importance_end(imp);
}

int kvp_importance_set(struct kvp_importance *imp, uint32_t layer, const float *scores, uint32_t n)
{
	uint32_t i;

	if (layer >= imp->opts.layers || n > imp->tokens)
		return -EINVAL;
	for (i = 0; i < n; i++)
		if (!(scores[i] >= 0) || scores[i] > WEIGHT_MAX)
			return -EINVAL;
	memcpy(imp->ema + (size_t)layer * imp->opts.max_tokens, scores, n * sizeof(float));
	return 0;
}

const float *kvp_importance_layer(const struct kvp_importance *imp, uint32_t layer)
{
	return imp->ema + (size_t)layer * imp->opts.max_tokens;
}

float kvp_importance_recency(float age, float recency)
{
	return recency > 0 ? expf(-age / recency) : 1;
}

void kvp_importance_read(const struct kvp_importance *imp, uint64_t step, float *ret)
{
	const struct kvp_importance_opts *o = &imp->opts;
	const float *weighted = imp->complete ? imp->weighted : imp->step_sum;
	float share = 1;
	double sum = 0;
	uint32_t i, l;

	if (!imp->complete && imp->step_layers)
		share = 1 / (float)imp->step_layers;
	memset(ret, 0, imp->tokens * sizeof(float));
	for (l = 0; l < o->layers; l++) {
		const float *ema = imp->ema + (size_t)l * o->max_tokens;

		for (i = 0; i < imp->tokens; i++)
			ret[i] += ema[i];
	}
	for (i = 0; i < imp->tokens; i++) {
		uint64_t age = step > imp->tau[i] ? step - imp->tau[i] : 0;

		ret[i] =
			(1 - o->blend) * ret[i] / (float)o->layers + o->blend * share * weighted[i];
		ret[i] *= kvp_importance_recency((float)age, o->recency);
		sum += ret[i];
	}
	if (!o->normalise || !imp->tokens)
		return;
	sum = sum / imp->tokens + EPS;
	for (i = 0; i < imp->tokens; i++)
		ret[i] = (float)(ret[i] / sum);
}

struct kvp_tri {
	uint32_t pairs;
	double *omega;
	double *scale2; /* s_f^2 */
	double *g_re;   /* mean over delta of exp(i omega_f delta) */
	double *g_im;
};

static int all_finite(const float *v, uint32_t n)
{
	while (n && isfinite(v[n - 1]))
		n--;
	return !n;
}

int kvp_tri_new(uint32_t pairs, double theta, const float *scale, struct kvp_tri **ret)
{
	struct kvp_tri *t;
	uint32_t f, k;

	if (!pairs || pairs > TRI_PAIRS_MAX || !(theta > 1) || !isfinite(theta) ||
		(scale && !all_finite(scale, pairs)))
		return -EINVAL;
	t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	t->pairs = pairs;
	t->omega = calloc((size_t)pairs * 4, sizeof(double));
	if (!t->omega) {
		kvp_tri_free(t);
		return -ENOMEM;
	}
	t->scale2 = t->omega + pairs;
	t->g_re = t->scale2 + pairs;
	t->g_im = t->g_re + pairs;
	for (f = 0; f < pairs; f++) {
		t->omega[f] = pow(theta, -(double)f / pairs);
		t->scale2[f] = scale ? (double)scale[f] * scale[f] : 1;
		for (k = 0; k < TRI_OFFSETS; k++) {
			t->g_re[f] += cos(t->omega[f] * (double)(1u << k)) / TRI_OFFSETS;
			t->g_im[f] += sin(t->omega[f] * (double)(1u << k)) / TRI_OFFSETS;
		}
	}
	*ret = t;
	return 0;
}

struct kvp_tri *kvp_tri_free(struct kvp_tri *tri)
{
	if (tri) {
		free(tri->omega);
		free(tri);
	}
	return NULL;
}

double kvp_tri_score(const struct kvp_tri *tri, const struct kvp_tri_head *head, const float *key,
	uint64_t p, uint64_t t)
{
	double s = 0, dist = (double)(t - p);
	uint32_t f;

	for (f = 0; f < tri->pairs; f++) {
		double mr = head->mean_re[f], mi = head->mean_im[f];
		double kr = key[f], ki = key[f + tri->pairs];
		double c = cos(tri->omega[f] * dist), d = sin(tri->omega[f] * dist);
		/* z = m conj(k) e^{i omega dist} G; |m||k| cos(...) averaged over delta = Re z */
		double xr = mr * kr + mi * ki, xi = mi * kr - mr * ki;
		double yr = xr * c - xi * d, yi = xr * d + xi * c;

		s += tri->scale2[f] * (yr * tri->g_re[f] - yi * tri->g_im[f] +
					      (head->mean_abs[f] - hypot(mr, mi)) * hypot(kr, ki));
	}
	return s;
}

int kvp_tri_importance(const struct kvp_tri *tri, const struct kvp_tri_head *head, uint32_t heads,
	const float *keys, size_t key_stride, uint32_t n, uint64_t first, uint64_t t, float *ret)
{
	double root = sqrt(2.0 * tri->pairs);
	uint32_t h, i;

	if (!n || !heads || t < first || t - first < n - 1)
		return -EINVAL;
	for (h = 0; h < heads; h++)
		if (!all_finite(head[h].mean_re, tri->pairs) ||
			!all_finite(head[h].mean_im, tri->pairs) ||
			!all_finite(head[h].mean_abs, tri->pairs))
			return -EINVAL;
	for (i = 0; i < n; i++)
		if (!all_finite(keys + i * key_stride, 2 * tri->pairs))
			return -EINVAL;
	for (i = 0; i < n; i++)
		ret[i] = 0;
	for (h = 0; h < heads; h++) {
		double max = -INFINITY, sum = 0;

		/* A running maximum makes one pass over the scores enough for the normaliser; the
		 * scores themselves are cheap enough to be taken twice rather than stored. */
		for (i = 0; i < n; i++) {
			double s =
				kvp_tri_score(tri, &head[h], keys + i * key_stride, first + i, t) /
				root;

			if (s > max) {
				sum = sum * exp(max - s);
				max = s;
			}
			sum += exp(s - max);
		}
		for (i = 0; i < n; i++) {
			double s =
				kvp_tri_score(tri, &head[h], keys + i * key_stride, first + i, t) /
				root;

			ret[i] += (float)(exp(s - max) / sum / heads);
		}
	}
	return 0;
}
