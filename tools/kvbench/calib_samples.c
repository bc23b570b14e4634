/* SPDX-License-Identifier: Apache-2.0 */
/* Samples for a calibration: from a model's own passes over texts, or from a file of tensors. */
#include "tools/kvbench/calib_samples.h"
#include "tools/kvrun/kvr_blas.h"
#include "tools/kvrun/kvr_file.h"
#include "tools/kvrun/kvr_model.h"
#include "tools/kvrun/kvr_safetensors.h"
#include "tools/kvrun/kvr_seq.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK     64u
#define WINDOW    1024u
#define DUMP_MAX  (UINT64_C(8) << 30)
#define HEADS_MAX 1024u

/* What queries and output projections say, by layer; energies are those before or after RoPE alike. */
struct costs {
	uint32_t q_heads, hidden;
	double *energy;    /* [layers][q_heads][dim]: of a query's channels, with their partners' */
	size_t n;          /* queries that energy is the sum of */
	const float **out; /* [layers]: [hidden][q_heads * dim]; NULL: not known */
};

static int refuse(const char *path, const char *what)
{
	fprintf(stderr, "kvbench calibrate: %s: %s\n", path, what);
	return -EINVAL;
}

static int samples_new(struct samples *s, size_t tokens)
{
	const size_t row = (size_t)s->info.heads * s->info.dim;

	s->tokens = tokens;
	s->x = calloc(2 * (size_t)s->info.layers, sizeof *s->x);
	s->metric = calloc(2 * (size_t)s->info.layers, sizeof *s->metric);
	if (!s->x || !s->metric)
		return -ENOMEM;
	for (size_t i = 0; i < 2 * (size_t)s->info.layers; i++) {
		s->x[i] = calloc(tokens * row, sizeof **s->x);
		s->metric[i] = calloc(row * s->info.dim, sizeof **s->metric);
		if (!s->x[i] || !s->metric[i])
			return -ENOMEM;
	}
	return 0;
}

void kvbench_samples_done(struct samples *s)
{
	for (size_t i = 0; i < 2 * (size_t)s->info.layers; i++) {
		if (s->x)
			free(s->x[i]);
		if (s->metric)
			free(s->metric[i]);
	}
	free(s->x);
	free(s->metric);
}

/* RoPE off n rows of keys where they lie. */
static int undo_rope(const struct kvp_kernels *k, const struct samples *s, uint32_t position,
	uint32_t n, float *x)
{
	const ptrdiff_t head = 4 * (ptrdiff_t)s->info.dim, token = head * (ptrdiff_t)s->info.heads;
	const struct kvp_plane p = { n, s->info.heads, s->info.dim, KVP_DTYPE_F32, KVP_PLANE_K };
	struct kvp_rope rope;
	int r = kvp_rope_init(&s->info.rope, &rope);

	return r ? r
		 : kvp_rope_undo(k, &rope, &p, position, (struct kvp_raw_const){ x, head, token },
			   KVP_DTYPE_F32, (struct kvp_raw){ x, head, token });
}

/* ---- what errors cost ---- */

/* The energy of RoPE's pairs: at another distance it falls on the other channel of the pair. */
static void share_pairs(const struct kvp_rope_desc *rope, uint32_t dim, double *energy)
{
	for (uint32_t i = 0;
		rope->pairing != KVP_ROPE_NONE && i < rope->dim / 2 && rope->dim <= dim; i++) {
		const int split = rope->pairing == KVP_ROPE_HALF_SPLIT;
		double *a = energy + (split ? i : 2 * i);
		double *b = energy + (split ? i + rope->dim / 2 : 2 * i + 1);

		*a = *b = (*a + *b) / 2.0;
	}
}

/* Covariance of one head's values. */
static void covariance(
	const struct samples *s, const float *x, uint32_t head, double *mean, double *c)
{
	const uint32_t dim = s->info.dim;
	const size_t row = (size_t)s->info.heads * dim;

	memset(mean, 0, sizeof *mean * dim);
	memset(c, 0, sizeof *c * dim * dim);
	for (size_t t = 0; t < s->tokens; t++)
		for (uint32_t i = 0; i < dim; i++)
			mean[i] += (double)x[t * row + head * dim + i] / (double)s->tokens;
	for (size_t t = 0; t < s->tokens; t++) {
		for (uint32_t i = 0; i < dim; i++) {
			const double a = (double)x[t * row + head * dim + i] - mean[i];

			for (uint32_t j = 0; j < dim; j++)
				c[(size_t)i * dim + j] +=
					a * ((double)x[t * row + head * dim + j] - mean[j]) /
					(double)s->tokens;
		}
	}
}

/* out^T out of one query head. */
static void gram(const struct costs *k, uint32_t layer, uint32_t q_head, uint32_t dim, double *g)
{
	const size_t row = (size_t)k->q_heads * dim;

	memset(g, 0, sizeof *g * dim * dim);
	for (uint32_t r = 0; r < k->hidden; r++) {
		const float *w = k->out[layer] + r * row + (size_t)q_head * dim;

		for (uint32_t i = 0; i < dim; i++)
			for (uint32_t j = 0; j < dim; j++)
				g[(size_t)i * dim + j] += (double)w[i] * (double)w[j];
	}
}

/*
 * One KV head. An error v of a value moves what the layer puts out by |out v| times the weight it has in
 * attention; one of a key, k, moves the weight by q k / sqrt(dim) of itself, and so what is put out by that
 * and the value's distance from the others', |out (v - mean)|. With that both are the same unit.
 */
static void head_metric(const struct samples *s, const struct costs *k, uint32_t layer,
	uint32_t head, double *mean, double *c, double *g)
{
	const uint32_t dim = s->info.dim, group = k->q_heads / s->info.heads;
	double *keys = s->metric[2 * layer] + (size_t)head * dim * dim;
	double *values = s->metric[2 * layer + 1] + (size_t)head * dim * dim;

	covariance(s, s->x[2 * layer + 1], head, mean, c);
	for (uint32_t q = head * group; q < (head + 1) * group; q++) {
		const double *energy = k->energy + ((size_t)layer * k->q_heads + q) * dim;
		double spread = 0.0;

		gram(k, layer, q, dim, g);
		for (size_t i = 0; i < (size_t)dim * dim; i++) {
			values[i] += g[i];
			spread += g[i] * c[i];
		}
		for (uint32_t i = 0; i < dim; i++)
			keys[(size_t)i * dim + i] += energy[i] / (double)k->n / dim * spread;
	}
}

/* Without queries and projections: errors against the size of what they are of. */
static void plain_metric(const struct samples *s, uint32_t plane)
{
	const uint32_t dim = s->info.dim;
	const size_t n = s->tokens * s->info.heads * dim;
	double sum = 0.0, square = 0.0, variance;

	for (size_t i = 0; i < n; i++) {
		sum += (double)s->x[plane][i];
		square += (double)s->x[plane][i] * (double)s->x[plane][i];
	}
	variance = square / (double)n - sum / (double)n * (sum / (double)n);
	for (uint32_t h = 0; h < s->info.heads; h++)
		for (uint32_t i = 0; i < dim; i++)
			s->metric[plane][((size_t)h * dim + i) * dim + i] =
				1.0 / fmax(variance, 1e-12);
}

static int metrics(const struct samples *s, const struct costs *k)
{
	const uint32_t dim = s->info.dim;
	double *work = malloc(sizeof *work * (dim + 2 * (size_t)dim * dim));

	if (!work)
		return -ENOMEM;
	for (uint32_t l = 0; l < s->info.layers; l++) {
		if (!k->out || !k->out[l]) {
			plain_metric(s, 2 * l);
			plain_metric(s, 2 * l + 1);
			continue;
		}
		for (uint32_t q = 0; q < k->q_heads; q++)
			share_pairs(
				&s->info.rope, dim, k->energy + ((size_t)l * k->q_heads + q) * dim);
		for (uint32_t h = 0; h < s->info.heads; h++)
			head_metric(s, k, l, h, work, work + dim, work + dim + (size_t)dim * dim);
	}
	free(work);
	return 0;
}

/* ---- a model ---- */

struct gathering {
	const struct kvr_model *model;
	const struct kvp_kernels *k;
	struct samples *s;
	struct costs costs;
	size_t done; /* tokens */
};

static void add_energy(void *arg, uint32_t layer, uint32_t first, uint32_t n, const float *q)
{
	struct gathering *g = arg;
	const size_t row = (size_t)g->costs.q_heads * g->s->info.dim;
	double *to = g->costs.energy + layer * row;

	(void)first;
	for (uint32_t t = 0; t < n; t++)
		for (size_t i = 0; i < row; i++)
			to[i] += (double)q[t * row + i] * (double)q[t * row + i];
	if (!layer)
		g->costs.n += n;
}

/* Keys and values of a window's whole blocks. */
static int take_blocks(struct gathering *g, struct kvr_kv *kv, uint32_t n)
{
	const size_t row = (size_t)g->s->info.heads * g->s->info.dim;
	int r = 0;

	for (uint32_t b = 0; b < n / BLOCK && !r; b++) {
		const uint8_t *block = kv->ops->block(kv, b);

		for (uint32_t i = 0; i < 2 * g->s->info.layers && !r; i++) {
			float *to = g->s->x[i] + (g->done + b * BLOCK) * row;

			memcpy(to, block + kvr_row_offset(&kv->geom, i / 2, i % 2, 0),
				BLOCK * row * sizeof *to);
			if (i % 2 == KVP_PLANE_K)
				r = undo_rope(g->k, g->s, b * BLOCK, BLOCK, to);
		}
	}
	g->done += n;
	return r;
}

static int no_score(void *arg, uint32_t first, uint32_t n, const float *logits)
{
	(void)arg;
	(void)first;
	(void)n;
	(void)logits;
	return 0;
}

static int run_window(struct gathering *g, const uint8_t *text, uint32_t n)
{
	const struct kvr_geom geom = kvr_model_geom(g->model, BLOCK, KVR_F32);
	const struct kvr_watch watch = { add_energy, g };
	uint32_t tokens[WINDOW];
	struct kvr_kv *kv = NULL;
	struct kvr_seq *seq = NULL;
	int r = kvr_kv_heap_new(&geom, &kv);

	for (uint32_t i = 0; i < n; i++)
		tokens[i] = text[i];
	if (!r)
		r = kvr_seq_new(g->model, kv, NULL, &seq);
	if (!r) {
		kvr_seq_watch(seq, &watch);
		r = kvr_seq_score(seq, tokens, n, no_score, NULL);
	}
	if (!r)
		r = take_blocks(g, kv, n);
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	return r;
}

/* Windows at equal distances in each text, until there are enough tokens. */
static int run_texts(struct gathering *g, const char *const *texts, size_t n_texts, uint32_t window)
{
	int r = 0;

	for (size_t i = 0; i < n_texts && !r; i++) {
		const size_t windows =
			g->s->tokens / window / n_texts + (i < g->s->tokens / window % n_texts);
		struct kvr_error err = { 0 };
		char *text = NULL;
		size_t bytes = 0;

		if (kvr_file_load(texts[i], 1u << 30, &err, &text, &bytes) < 0) {
			fprintf(stderr, "kvbench calibrate: %s\n", err.text);
			return -EINVAL;
		}
		if (bytes < windows * window)
			r = refuse(texts[i], "too short for so many tokens");
		for (size_t w = 0; w < windows && !r; w++)
			r = run_window(
				g, (const uint8_t *)text + (bytes - window) / windows * w, window);
		free(text);
	}
	return r;
}

static int gather(struct gathering *g, const char *const *texts, size_t n_texts, size_t tokens)
{
	const struct kvr_config *c = &g->model->config;
	const uint32_t window = c->context < WINDOW ? c->context / BLOCK * BLOCK : WINDOW;
	int r;

	if (!window || c->vocab < 256)
		return refuse(g->model->name, "reads no bytes, or too few of them");
	tokens = tokens / window * window;
	if (!tokens)
		tokens = window;
	r = samples_new(g->s, tokens);
	g->costs = (struct costs){ .q_heads = c->heads,
		.hidden = c->hidden,
		.energy = calloc((size_t)c->layers * c->heads * c->head_dim, sizeof(double)),
		.out = calloc(c->layers, sizeof(float *)) };
	if (!g->costs.energy || !g->costs.out)
		r = -ENOMEM;
	for (uint32_t l = 0; l < c->layers && !r; l++)
		g->costs.out[l] = g->model->layer[l].wo;
	if (!r)
		r = run_texts(g, texts, n_texts, window);
	if (!r)
		r = metrics(g->s, &g->costs);
	free(g->costs.energy);
	free(g->costs.out);
	return r;
}

static struct kvp_calib_info info_of(const struct kvr_model *m)
{
	const struct kvr_config *c = &m->config;
	struct kvp_calib_info info = { .layers = c->layers,
		.heads = c->kv_heads,
		.dim = c->head_dim,
		.rope = { .pairing = c->rope_pairs == KVR_ROPE_HALF_SPLIT ? KVP_ROPE_HALF_SPLIT
									  : KVP_ROPE_INTERLEAVED,
			.dim = c->head_dim,
			.theta = c->rope_theta } };

	strncpy(info.model, m->name, sizeof info.model - 1);
	return info;
}

int kvbench_samples_of_model(const char *path, const char *const *texts, size_t n_texts,
	size_t tokens, struct samples *ret)
{
	struct gathering g = { .s = ret };
	struct kvp_kernels *k = NULL;
	struct kvr_model *model = NULL;
	struct kvr_error err = { 0 };
	int r = kvr_model_open(path, &err, &model);

	if (r < 0) {
		fprintf(stderr, "kvbench calibrate: %s\n", err.text);
		return r;
	}
	ret->info = info_of(model);
	g.model = model;
	r = kvp_kernels_new(KVP_CPU_ALL, &k);
	g.k = k;
	if (!r)
		r = gather(&g, texts, n_texts, tokens);
	if (r < 0 && r != -EINVAL)
		fprintf(stderr, "kvbench calibrate: %s\n", strerror(-r));
	kvp_kernels_free(k);
	kvr_model_free(model);
	return r;
}

/* ---- a dump ---- */

struct dump {
	const char *path;
	int fd;
	struct kvr_st st;
	struct samples *s;
};

static enum kvr_dtype dtype_of(const struct kvr_st_tensor *t)
{
	return t->dtype == KVR_ST_F16 ? KVR_F16 : t->dtype == KVR_ST_BF16 ? KVR_BF16 : KVR_F32;
}

/* A tensor of a layer, or NULL; -EINVAL if its shape or type is none. */
static int find(const struct dump *d, uint32_t layer, const char *what, uint32_t dims,
	const struct kvr_st_tensor **ret)
{
	char name[64];
	const struct kvr_st_tensor *t;

	snprintf(name, sizeof name, "layers.%u.%s", layer, what);
	t = kvr_st_find(&d->st, name);
	*ret = t;
	if (t && (t->n_dims != dims || (t->dtype != KVR_ST_F32 && t->dtype != KVR_ST_F16 &&
					       t->dtype != KVR_ST_BF16))) {
		fprintf(stderr,
			"kvbench calibrate: %s: %s is no %u-dimensional fp32, fp16 or bf16\n",
			d->path, name, dims);
		return -EINVAL;
	}
	return 0;
}

/* The first n elements of a tensor, as floats. */
static int read_floats(const struct dump *d, const struct kvr_st_tensor *t, size_t n, float *to)
{
	const size_t bytes = n * kvr_dtype_bytes(dtype_of(t));
	struct kvr_error err = { 0 };
	void *raw = malloc(bytes);
	int r = raw ? 0 : -ENOMEM;

	if (!r && lseek(d->fd, (off_t)(d->st.data_offset + t->begin), SEEK_SET) < 0)
		r = -errno;
	if (!r)
		r = kvr_file_read(d->fd, d->path, raw, bytes, &err);
	if (!r)
		kvr_widen(dtype_of(t), raw, n, to);
	for (size_t i = 0; i < n && !r; i++)
		if (!isfinite(to[i]))
			r = refuse(d->path, "an element is not finite");
	free(raw);
	return r;
}

/* Layers, heads, dim and tokens, which all keys and values share. */
static int take_shape(struct dump *d, const struct kvp_rope_desc *rope, size_t tokens)
{
	struct kvp_calib_info *info = &d->s->info;
	const char *slash = strrchr(d->path, '/');
	const struct kvr_st_tensor *t, *first = NULL;
	uint32_t layers = 0;

	for (; layers <= KVP_CALIB_LAYERS_MAX; layers++) {
		if (find(d, layers, "k", 3, &t) < 0)
			return -EINVAL;
		if (!t)
			break;
		first = first ? first : t;
		for (int v = 0; v < 2; v++) {
			if (v && find(d, layers, "v", 3, &t) < 0)
				return -EINVAL;
			if (!t || memcmp(t->dims, first->dims, 3 * sizeof *t->dims) != 0)
				return refuse(d->path, "keys and values differ in shape, or lack");
		}
	}
	if (!layers || layers > KVP_CALIB_LAYERS_MAX || first->dims[1] > KVP_PLANE_HEADS_MAX ||
		first->dims[2] > KVP_CALIB_WIDTH_MAX || first->dims[2] % 8 || !first->dims[1] ||
		!first->dims[2] || first->dims[0] < BLOCK)
		return refuse(
			d->path, "no layers.0.k [tokens][heads][dim] that a calibration takes");
	*info = (struct kvp_calib_info){ .layers = layers,
		.heads = (uint32_t)first->dims[1],
		.dim = (uint32_t)first->dims[2],
		.rope = *rope };
	info->rope.dim = rope->pairing == KVP_ROPE_NONE ? 0 : info->dim;
	strncpy(info->model, slash ? slash + 1 : d->path, sizeof info->model - 1);
	return samples_new(d->s, first->dims[0] < tokens ? first->dims[0] : tokens);
}

static int read_planes(const struct dump *d, const struct kvp_kernels *k)
{
	const size_t row = (size_t)d->s->info.heads * d->s->info.dim;
	int r = 0;

	for (uint32_t i = 0; i < 2 * d->s->info.layers && !r; i++) {
		const struct kvr_st_tensor *t;
		float *x = d->s->x[i];

		r = find(d, i / 2, i % 2 ? "v" : "k", 3, &t);
		if (!r)
			r = read_floats(d, t, d->s->tokens * row, x);
		for (size_t at = 0; at < d->s->tokens && !r && i % 2 == KVP_PLANE_K; at += BLOCK) {
			const size_t left = d->s->tokens - at;

			r = undo_rope(k, d->s, (uint32_t)at,
				(uint32_t)(left < BLOCK ? left : BLOCK), x + at * row);
		}
	}
	return r;
}

/* Queries' energies and the projection of one layer. */
static int read_costs(const struct dump *d, uint32_t layer, const struct kvr_st_tensor *q,
	const struct kvr_st_tensor *o, struct costs *k)
{
	const size_t row = (size_t)k->q_heads * d->s->info.dim, n = q->dims[0] * row;
	float *x = malloc(sizeof *x * n), *out = malloc(sizeof *out * k->hidden * row);
	int r = x && out ? read_floats(d, q, n, x) : -ENOMEM;

	if (!r)
		r = read_floats(d, o, k->hidden * row, out);
	for (size_t i = 0; i < n && !r; i++)
		k->energy[layer * row + i % row] +=
			(double)x[i] * (double)x[i] / (double)q->dims[0];
	free(x);
	if (r < 0)
		free(out);
	else
		k->out[layer] = out;
	return r;
}

static int read_all_costs(const struct dump *d, struct costs *k)
{
	const struct kvp_calib_info *info = &d->s->info;
	int r = 0;

	for (uint32_t l = 0; l < info->layers && !r; l++) {
		const struct kvr_st_tensor *q, *o;

		if (find(d, l, "q", 3, &q) < 0 || find(d, l, "o", 2, &o) < 0)
			return -EINVAL;
		if (!q && !o && !k->q_heads)
			continue; /* of no layer, then */
		if (!q || !o || (l && !k->q_heads) || q->dims[2] != info->dim || !q->dims[0] ||
			!q->dims[1] || q->dims[1] > HEADS_MAX || q->dims[1] % info->heads ||
			o->dims[1] != q->dims[1] * info->dim || !o->dims[0] ||
			o->dims[0] > KVR_MAX_HIDDEN ||
			(k->q_heads && (q->dims[1] != k->q_heads || o->dims[0] != k->hidden)))
			return refuse(d->path, "queries and projections do not fit together");
		if (!l) {
			k->q_heads = (uint32_t)q->dims[1];
			k->hidden = (uint32_t)o->dims[0];
			k->n = 1;
			k->energy = calloc(
				(size_t)info->layers * k->q_heads * info->dim, sizeof *k->energy);
			k->out = calloc(info->layers, sizeof *k->out);
			if (!k->energy || !k->out)
				return -ENOMEM;
		}
		r = read_costs(d, l, q, o, k);
	}
	return r;
}

static int open_dump(struct dump *d)
{
	struct kvr_error err = { 0 };
	uint8_t prefix[8];
	uint64_t bytes;
	size_t n = 0;
	char *json = NULL;
	int r = kvr_file_open(d->path, &err, &d->fd, &bytes);

	if (r < 0) {
		d->fd = -1;
	} else if (bytes > DUMP_MAX) {
		return refuse(d->path, "larger than 8 GiB");
	} else {
		r = kvr_file_read(d->fd, d->path, prefix, sizeof prefix, &err);
		if (!r)
			r = kvr_st_header_length(prefix, bytes, &err, &n);
		json = r ? NULL : malloc(n ? n : 1);
		if (!r)
			r = json ? kvr_file_read(d->fd, d->path, json, n, &err) : -ENOMEM;
		if (!r)
			r = kvr_st_parse(json, n, bytes, &err, &d->st);
		free(json);
	}
	if (r < 0)
		fprintf(stderr, "kvbench calibrate: %s: %s\n", d->path,
			err.text[0] ? err.text : strerror(-r));
	return r;
}

int kvbench_samples_of_dump(
	const char *path, const struct kvp_rope_desc *rope, size_t tokens, struct samples *ret)
{
	struct dump d = { .path = path, .fd = -1, .s = ret };
	struct costs costs = { 0 };
	struct kvp_kernels *k = NULL;
	int r = open_dump(&d);

	if (!r)
		r = take_shape(&d, rope, tokens);
	if (!r)
		r = kvp_kernels_new(KVP_CPU_ALL, &k);
	if (!r)
		r = read_planes(&d, k);
	if (!r)
		r = read_all_costs(&d, &costs);
	if (!r)
		r = metrics(ret, &costs);
	if (r == -ENOMEM)
		fprintf(stderr, "kvbench calibrate: %s: no memory\n", path);
	for (uint32_t l = 0; costs.out && l < ret->info.layers; l++)
		free((void *)(uintptr_t)costs.out[l]);
	free(costs.out);
	free(costs.energy);
	kvp_kernels_free(k);
	kvr_st_done(&d.st);
	if (d.fd >= 0)
		close(d.fd);
	return r;
}
