/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over blocks of the cache, tile by tile: native, coded, or substituted ones. */
#include "tools/kvrun/kvr_attend.h"
#include "tools/kvrun/kvr_blas.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One call's constants, so that the steps below do not drag ten parameters along. */
struct run {
	struct kvr_attend *a;
	struct kvr_kv *kv;
	const struct kvr_substitute *substitute;
	uint32_t layer, first, n;
	uint32_t group; /* query heads of one KV head */
	uint32_t rows;  /* n * group; row r is query r / group */
	/* of the KV head at work */
	uint32_t kv_head;
	float *q, *acc, *max, *sum;
};

/* One block as the queries see it. */
struct view {
	uint32_t block;
	uint32_t start;         /* position of its first token */
	uint32_t tokens;        /* that some query sees */
	int native;             /* some query sees some token natively */
	int coded;              /* some query sees some token through the substitute */
	const uint8_t *base[2]; /* K and V of the layer: the block's, or what they decoded to */
};

static uint64_t round16(uint64_t n)
{
	return (n + 15) & ~UINT64_C(15);
}

int kvr_attend_init(struct kvr_attend *a, const struct kvr_config *config, uint32_t block_tokens)
{
	uint64_t rows = (uint64_t)block_tokens * (config->heads / config->kv_heads);
	uint64_t all = rows * config->kv_heads, q = round16(all * config->head_dim);
	uint64_t row = round16(all), s = round16(rows * block_tokens);
	uint64_t tile = round16((uint64_t)block_tokens * config->head_dim);
	void *arena;
	float *p;

	*a = (struct kvr_attend){
		.heads = config->heads,
		.kv_heads = config->kv_heads,
		.head_dim = config->head_dim,
		.block_tokens = block_tokens,
	};
	if (posix_memalign(&arena, 64, (2 * q + 2 * s + 2 * row + tile) * sizeof(float)) != 0)
		return -ENOMEM;
	a->arena = p = arena;
	a->q = p;
	a->acc = p += q;
	a->score = p += q;
	a->score_coded = p += s;
	a->max = p += s;
	a->sum = p += row;
	a->tile = p + row;
	return 0;
}

void kvr_attend_done(struct kvr_attend *a)
{
	free(a->arena);
	free(a->decoded[0]);
	free(a->decoded[1]);
	free(a->parts);
	free(a->fused);
	free(a->mass);
	kvp_kernels_free(a->kernels);
	*a = (struct kvr_attend){ 0 };
}

static void select_head(struct run *r, uint32_t kv_head)
{
	const struct kvr_attend *a = r->a;
	size_t at = (size_t)kv_head * r->rows;

	r->kv_head = kv_head;
	r->q = a->q + at * a->head_dim;
	r->acc = a->acc + at * a->head_dim;
	r->max = a->max + at;
	r->sum = a->sum + at;
}

/* Gathers the queries of one KV head and folds the 1/sqrt(head_dim) of the scores into them. */
static void begin(const struct run *r, const float *q)
{
	const struct kvr_attend *a = r->a;
	float scale = (float)(1 / sqrt(a->head_dim));
	size_t width = (size_t)r->group * a->head_dim;

	for (uint32_t t = 0; t < r->n; t++) {
		const float *src = q + (size_t)t * a->heads * a->head_dim + r->kv_head * width;
		float *dst = r->q + t * width;

		for (size_t i = 0; i < width; i++)
			dst[i] = src[i] * scale;
	}
	memset(r->acc, 0, r->n * width * sizeof(float));
	for (uint32_t i = 0; i < r->rows; i++) {
		r->max[i] = -INFINITY;
		r->sum[i] = 0;
	}
}

static struct view view_of(const struct run *r, uint32_t block)
{
	const struct kvr_geom *g = &r->kv->geom;
	const uint8_t *base = r->kv->ops->block(r->kv, block);
	uint32_t end = r->first + r->n;
	struct view v = { .block = block, .start = block * r->a->block_tokens, .native = 1 };

	for (uint32_t value = 0; base && value < 2; value++)
		v.base[value] = base + kvr_row_offset(g, r->layer, value, 0);
	v.tokens = end - v.start < r->a->block_tokens ? end - v.start : r->a->block_tokens;
	if (r->substitute) {
		uint64_t window = r->substitute->window;

		v.native = v.start + v.tokens - 1 + window > r->first;
		v.coded = v.start + window < end;
	}
	return v;
}

/*
 * K and V of the layer out of a block that is in a codec, for all KV heads. -EBADMSG: they cannot be read, for whatever
 * reason: of another version, too, they are a miss.
 */
static int decode_view(const struct run *r, struct view *v)
{
	struct kvr_coding *coding = r->kv->coding;
	const struct kvr_geom *g = &r->kv->geom;
	struct kvp_attend_plane plane[2];
	size_t row = kvr_row_bytes(g);

	if (!r->kv->ops->planes(r->kv, v->block, r->layer, plane))
		return 0;
	for (uint32_t value = 0; value < 2; value++) {
		struct kvp_plane p = { g->block_tokens, r->a->kv_heads, r->a->head_dim, g->dtype,
			value ? KVP_PLANE_V : KVP_PLANE_K };
		struct kvp_raw dst = { r->a->decoded[value], (ptrdiff_t)(row / p.heads),
			(ptrdiff_t)row };
		int e = kvp_plane_decode(coding->kernels, plane[value].codec, &p, NULL,
			plane[value].data, plane[value].bytes, dst);

		if (e == 0) {
			v->base[value] = dst.data;
			continue;
		}
		coding->errors++;
		if (!v->base[value])
			return -EBADMSG;
	}
	return 0;
}

/* K or V of the view as fp32 rows `*ret_stride` floats apart, in place where it is fp32 already. */
static const float *native_tile(
	const struct run *r, const struct view *v, uint32_t value, size_t *ret_stride)
{
	const struct kvr_geom *g = &r->kv->geom;
	uint32_t dim = r->a->head_dim;
	const uint8_t *base = v->base[value] + (size_t)r->kv_head * dim * kvr_dtype_bytes(g->dtype);

	if (g->dtype == KVR_F32) {
		*ret_stride = g->kv_dim;
		return (const float *)(const void *)base;
	}
	for (uint32_t t = 0; t < v->tokens; t++)
		kvr_widen(g->dtype, base + t * kvr_row_bytes(g), dim, r->a->tile + (size_t)t * dim);
	*ret_stride = dim;
	return r->a->tile;
}

static int coded_tile(const struct run *r, const struct view *v, uint32_t value)
{
	const struct kvr_geom *g = &r->kv->geom;
	struct kvr_plane plane = {
		.layer = r->layer,
		.value = value,
		.kv_head = r->kv_head,
		.block = v->block,
		.tokens = v->tokens,
		.query = r->first,
		.stride = kvr_row_bytes(g),
		.dtype = g->dtype,
		.head_dim = r->a->head_dim,
	};
	int e;

	plane.native =
		v->base[value] + (size_t)r->kv_head * plane.head_dim * kvr_dtype_bytes(g->dtype);
	e = r->substitute->read(r->substitute->arg, &plane, r->a->tile);
	if (e >= 0 || !r->substitute->errors)
		return e;
	++*r->substitute->errors;
	for (uint32_t t = 0; t < v->tokens; t++)
		kvr_widen(g->dtype, (const uint8_t *)plane.native + t * plane.stride,
			plane.head_dim, r->a->tile + (size_t)t * plane.head_dim);
	return 0;
}

/* How many of the view's tokens, counted from its start, row `row` sees through the substitute. */
static uint32_t coded_tokens(const struct run *r, const struct view *v, uint32_t row)
{
	uint64_t edge = (uint64_t)r->first + row / r->group + 1; /* one past the query */

	if (!v->coded || edge <= (uint64_t)v->start + r->substitute->window)
		return 0;
	edge -= v->start + r->substitute->window;
	return edge < v->tokens ? (uint32_t)edge : v->tokens;
}

/* a->score = queries times keys, each key from where its query sees it. */
static int score(const struct run *r, const struct view *v)
{
	struct kvr_attend *a = r->a;
	float *coded = v->native ? a->score_coded : a->score;
	const float *k;
	size_t stride;
	int e;

	if (v->native) {
		k = native_tile(r, v, 0, &stride);
		kvr_mul_wt(r->q, r->rows, k, stride, v->tokens, a->head_dim, a->score);
	}
	if (v->coded) {
		e = coded_tile(r, v, 0);
		if (e < 0)
			return e;
		kvr_mul_wt(r->q, r->rows, a->tile, a->head_dim, v->tokens, a->head_dim, coded);
	}
	for (uint32_t i = 0; v->native && v->coded && i < r->rows; i++)
		memcpy(a->score + (size_t)i * v->tokens, coded + (size_t)i * v->tokens,
			coded_tokens(r, v, i) * sizeof(float));
	return 0;
}

/* Turns scores into weights relative to the running maximum, and scales the sums so far. */
static void soften(const struct run *r, const struct view *v)
{
	struct kvr_attend *a = r->a;

	for (uint32_t i = 0; i < r->rows; i++) {
		float *s = a->score + (size_t)i * v->tokens;
		uint32_t last = r->first + i / r->group - v->start; /* its own token, if in here */
		uint32_t n = last < v->tokens ? last + 1 : v->tokens;
		float max = r->max[i], sum = 0;

		for (uint32_t j = 0; j < n; j++)
			max = s[j] > max ? s[j] : max;
		if (max > r->max[i]) {
			float shrink = expf(r->max[i] - max);
			float *acc = r->acc + (size_t)i * a->head_dim;

			for (uint32_t j = 0; j < a->head_dim; j++)
				acc[j] *= shrink;
			r->sum[i] *= shrink;
			r->max[i] = max;
		}
		for (uint32_t j = 0; j < n; j++) {
			s[j] = expf(s[j] - max);
			sum += s[j];
		}
		r->sum[i] += sum;
		memset(s + n, 0, (v->tokens - n) * sizeof(float));
	}
}

/* a->acc += weights times values, each value from where its query sees it. */
static int gather(const struct run *r, const struct view *v)
{
	struct kvr_attend *a = r->a;
	float *coded = v->native ? a->score_coded : a->score;
	const float *values;
	size_t stride;
	int e;

	for (uint32_t i = 0; v->native && v->coded && i < r->rows; i++) {
		uint32_t n = coded_tokens(r, v, i);
		float *from = a->score + (size_t)i * v->tokens;
		float *to = coded + (size_t)i * v->tokens;

		memcpy(to, from, n * sizeof(float));
		memset(to + n, 0, (v->tokens - n) * sizeof(float));
		memset(from, 0, n * sizeof(float));
	}
	if (v->native) {
		values = native_tile(r, v, 1, &stride);
		kvr_add_mul(a->score, r->rows, values, stride, v->tokens, a->head_dim, r->acc);
	}
	if (v->coded) {
		e = coded_tile(r, v, 1);
		if (e < 0)
			return e;
		kvr_add_mul(coded, r->rows, a->tile, a->head_dim, v->tokens, a->head_dim, r->acc);
	}
	return 0;
}

static void finish(const struct run *r, float *out)
{
	const struct kvr_attend *a = r->a;
	size_t width = (size_t)r->group * a->head_dim;

	for (uint32_t i = 0; i < r->rows; i++) {
		float *dst = out + (size_t)(i / r->group) * a->heads * a->head_dim +
			     r->kv_head * width + (size_t)(i % r->group) * a->head_dim;
		const float *src = r->acc + (size_t)i * a->head_dim;

		for (uint32_t j = 0; j < a->head_dim; j++)
			dst[j] = src[j] / r->sum[i];
	}
}

static int run_block(struct run *r, struct view *v)
{
	int e = r->kv->coding ? decode_view(r, v) : 0;

	for (uint32_t h = 0; e == 0 && h < r->a->kv_heads; h++) {
		select_head(r, h);
		e = score(r, v);
		if (e < 0)
			return e;
		soften(r, v);
		e = gather(r, v);
	}
	return e;
}

/* Decoded values of coded blocks, one layer of one block at a time. */
static int room_to_decode(struct kvr_attend *a, const struct kvr_geom *g)
{
	for (uint32_t value = 0; value < 2; value++)
		if (!a->decoded[value] && posix_memalign(&a->decoded[value], 64,
						  g->block_tokens * kvr_row_bytes(g)) != 0) {
			a->decoded[value] = NULL;
			return -ENOMEM;
		}
	return 0;
}

int kvr_attend_run(struct kvr_attend *a, struct kvr_kv *kv, const struct kvr_substitute *substitute,
	uint32_t layer, uint32_t first, uint32_t n, const float *q, float *out)
{
	struct run r = { a, kv, substitute, layer, first, n, .group = a->heads / a->kv_heads };
	int e = 0;

	if (n == 1 && kv->ops->asks && kv->ops->asks(kv, first))
		(void)kvr_attend_shares(a, kv, layer, first, q);
	/* a kernel that refuses one payload may take the others: block by block, below */
	if (kv->coding && n == 1 && first >= a->block_tokens) {
		if (kvr_attend_fused(a, kv, layer, first, q, out) == 0)
			return 0;
		kv->coding->errors++;
	}
	if (kv->coding)
		e = room_to_decode(a, &kv->geom);
	r.rows = n * r.group;
	for (uint32_t h = 0; h < a->kv_heads; h++) {
		select_head(&r, h);
		begin(&r, q);
	}
	for (uint32_t b = 0; e == 0 && b <= (first + n - 1) / a->block_tokens; b++) {
		struct view v = view_of(&r, b);

		e = run_block(&r, &v);
	}
	for (uint32_t h = 0; e == 0 && h < a->kv_heads; h++) {
		select_head(&r, h);
		finish(&r, out);
	}
	return e;
}
