/* SPDX-License-Identifier: Apache-2.0 */
/* A calibration of kvquant: percentiles, and k-means over a histogram of what is between them. */
#include "tools/kvbench/nuq_fit.h"
#include "kernels/kvp_nuq.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TAIL       200u /* one sample in so many is beyond a range's end */
#define BINS       4096u
#define ROUNDS     200u
#define WINDOW     1024u /* positions of keys as they stand */
#define RANGE_MIN  1e-6f
#define TOKENS_MIN 200u

/* What lies in one bin of [-1, 1]: weights, and weights times where. */
struct bin {
	double weight, sum;
};

struct fitting {
	const struct samples *s;
	uint32_t heads, dim, width;
	float *x;      /* [tokens][width]: of one entry */
	float *column; /* [tokens] or [width] */
	struct bin *bin;
	float *low, *high; /* [entries][width] */
	struct kvp_nuq_entry *entry;
	double outside, keys;
};

static int ascending(const void *a, const void *b)
{
	const float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/* What an error of 1 in a channel costs. */
static double cost_of(const struct fitting *f, uint32_t layer, uint32_t form, uint32_t c)
{
	const double *m = f->s->metric[2 * layer + (form == KVP_NUQ_V)];
	const size_t head = c / f->dim, i = c % f->dim;

	return m[(head * f->dim + i) * f->dim + i];
}

static void add(struct fitting *f, double u, double weight)
{
	const double at = (u + 1.0) * 0.5 * BINS;
	struct bin *bin = &f->bin[at < BINS ? (size_t)at : BINS - 1];

	bin->weight += weight;
	bin->sum += weight * u;
}

static void add_keys(struct fitting *f, struct kvp_nuq_entry *e)
{
	float *low = f->low + (size_t)(e - f->entry) * f->width;
	float *high = f->high + (size_t)(e - f->entry) * f->width;
	const size_t n = f->s->tokens, tail = n / TAIL;

	for (uint32_t c = 0; c < f->width; c++) {
		double middle, half, cost;

		for (size_t t = 0; t < n; t++)
			f->column[t] = f->x[t * f->width + c];
		qsort(f->column, n, sizeof *f->column, ascending);
		low[c] = f->column[tail];
		high[c] = f->column[n - 1 - tail];
		middle = ((double)high[c] + (double)low[c]) / 2.0;
		half = ((double)high[c] - (double)low[c]) / 2.0;
		cost = cost_of(f, e->layer, e->form, c) * half * half;
		for (size_t t = tail; t < n - tail && high[c] - low[c] > RANGE_MIN; t++)
			add(f, ((double)f->column[t] - middle) / half, cost);
	}
	f->outside += 2.0 * (double)tail / (double)n;
	f->keys += 1.0;
	e->low = low;
	e->high = high;
}

static void add_values(struct fitting *f, const struct kvp_nuq_entry *e)
{
	const size_t half_percent = (f->width + 100) / 200, skip = half_percent ? half_percent : 1;

	for (size_t t = 0; t < f->s->tokens; t++) {
		const float *x = f->x + t * f->width;
		double low, high, half;

		memcpy(f->column, x, f->width * sizeof *x);
		qsort(f->column, f->width, sizeof *x, ascending);
		low = (double)f->column[skip];
		high = (double)f->column[f->width - 1 - skip];
		half = (high - low) / 2.0;
		for (uint32_t c = 0; c < f->width && high - low > (double)RANGE_MIN; c++) {
			const double u = ((double)x[c] - (high + low) / 2.0) / half;

			if (u >= -1.0 && u <= 1.0)
				add(f, u, cost_of(f, e->layer, e->form, c) * half * half);
		}
	}
}

/* Where the next of n signposts begins: those of equal weight, as a start. */
static void spread(const struct bin *bin, uint32_t n, double total, double *post)
{
	double seen = 0.0;
	uint32_t i = 0;

	for (uint32_t b = 0; b < BINS && i < n; b++) {
		seen += bin[b].weight;
		while (i < n && seen >= total * (i + 0.5) / n)
			post[i++] = (b + 0.5) * 2.0 / BINS - 1.0;
	}
	for (; i < n; i++)
		post[i] = 1.0;
}

/* Lloyd's rounds over the bins. */
static void means(const struct bin *bin, uint32_t n, float *ret_post)
{
	double post[16], total = 0.0;

	for (uint32_t b = 0; b < BINS; b++)
		total += bin[b].weight;
	if (total > 0.0)
		spread(bin, n, total, post);
	else
		for (uint32_t i = 0; i < n; i++)
			post[i] = 2.0 * i / (n - 1) - 1.0;
	for (uint32_t round = 0; round < ROUNDS && total > 0.0; round++) {
		struct bin cell[16] = { 0 };
		uint32_t i = 0;

		for (uint32_t b = 0; b < BINS; b++) {
			while (i + 1 < n &&
				(b + 0.5) * 2.0 / BINS - 1.0 > (post[i] + post[i + 1]) / 2.0)
				i++;
			cell[i].weight += bin[b].weight;
			cell[i].sum += bin[b].sum;
		}
		for (i = 0; i < n; i++)
			if (cell[i].weight > 0.0)
				post[i] = cell[i].sum / cell[i].weight;
	}
	for (uint32_t i = 0; i < n; i++) {
		const double least = i ? (double)ret_post[i - 1] : -1.0;

		ret_post[i] = (float)fmin(fmax(post[i], least), 1.0);
	}
}

/* One entry's samples to f->x: keys as they stand get their RoPE. */
static int take(struct fitting *f, const struct kvp_kernels *k, uint32_t layer, uint32_t form)
{
	const size_t n = f->s->tokens, row = (size_t)f->width;
	struct kvp_rope rope;
	int r = 0;

	memcpy(f->x, f->s->x[2 * layer + (form == KVP_NUQ_V)], n * row * sizeof(float));
	if (form != KVP_NUQ_K_POST)
		return 0;
	r = kvp_rope_init(&f->s->info.rope, &rope);
	for (size_t t = 0; t < n && !r; t++) {
		const struct kvp_plane p = { 1, f->heads, f->dim, KVP_DTYPE_F32, KVP_PLANE_K };
		float *x = f->x + t * row;
		const struct kvp_raw to = { x, 4 * (ptrdiff_t)f->dim, 4 * (ptrdiff_t)row };

		r = kvp_rope_apply(k, &rope, &p, (uint32_t)(t % WINDOW),
			(struct kvp_raw_const){ x, to.head_stride, to.token_stride }, KVP_DTYPE_F32,
			to);
	}
	return r;
}

static int fit_all(struct fitting *f, const struct kvp_kernels *k)
{
	int r = 0;

	for (uint32_t i = 0; i < KVP_NUQ_FORMS * f->s->info.layers && !r; i++) {
		struct kvp_nuq_entry *e = &f->entry[i];

		*e = (struct kvp_nuq_entry){ .layer = i / KVP_NUQ_FORMS,
			.form = i % KVP_NUQ_FORMS };
		memset(f->bin, 0, BINS * sizeof *f->bin);
		r = take(f, k, e->layer, e->form);
		if (e->form == KVP_NUQ_V)
			add_values(f, e);
		else
			add_keys(f, e);
		for (uint32_t at = 0, bits = 2; bits <= 4; at += 1u << bits, bits++)
			means(f->bin, 1u << bits, e->signpost + at);
	}
	return r;
}

static int write_file(const struct fitting *f, struct nuq_result *ret)
{
	struct kvp_nuq_info info = { .layers = f->s->info.layers,
		.heads = f->heads,
		.dim = f->dim,
		.rope = f->s->info.rope };
	const size_t n = KVP_NUQ_FORMS * (size_t)info.layers;
	int r;

	memcpy(info.model, f->s->info.model, sizeof info.model);
	r = kvp_nuq_bytes(&info, f->entry, n, &ret->bytes);
	if (r < 0)
		return r;
	ret->file = malloc(ret->bytes);
	r = ret->file ? kvp_nuq_write(&info, f->entry, n, ret->file, ret->bytes) : -ENOMEM;
	if (r < 0)
		free(ret->file);
	ret->outside = f->keys > 0.0 ? f->outside / f->keys : 0.0;
	return r;
}

int kvbench_nuq_fit(const struct samples *s, struct nuq_result *ret)
{
	const size_t entries = KVP_NUQ_FORMS * (size_t)s->info.layers;
	struct fitting f = { .s = s,
		.heads = s->info.heads,
		.dim = s->info.dim,
		.width = s->info.heads * s->info.dim };
	const size_t column = s->tokens > f.width ? s->tokens : f.width;
	struct kvp_kernels *k = NULL;
	int r = -ENOMEM;

	if (s->tokens < TOKENS_MIN)
		return -EINVAL;
	f.x = calloc(s->tokens * f.width, sizeof *f.x);
	f.column = calloc(column, sizeof *f.column);
	f.bin = calloc(BINS, sizeof *f.bin);
	f.low = calloc(entries * f.width, sizeof *f.low);
	f.high = calloc(entries * f.width, sizeof *f.high);
	f.entry = calloc(entries, sizeof *f.entry);
	if (f.x && f.column && f.bin && f.low && f.high && f.entry)
		r = kvp_kernels_new(KVP_CPU_ALL, &k);
	if (!r)
		r = fit_all(&f, k);
	if (!r)
		r = write_file(&f, ret);
	kvp_kernels_free(k);
	free(f.x);
	free(f.column);
	free(f.bin);
	free(f.low);
	free(f.high);
	free(f.entry);
	return r;
}
