/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where elements lie in a payload and in a caller's view, and copies between the two.
 */
#include "libclient/client.h"
#include "libclient/geometry.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- geometry -------------------------------------------------------------------------------- */

/* The formulas of kvpool.h, with e * D as k_width and v_width. */
static void place_layers(struct geometry *g)
{
	uint64_t t = g->block_tokens, keys = 0, values = 0;

	for (uint32_t i = 0; i < g->n_layers; i++) {
		struct geo_layer *l = &g->layers[i];
		uint64_t k_width = (uint64_t)l->heads * l->k_row;
		uint64_t v_width = (uint64_t)l->heads * l->v_row;

		if (g->layout == KVP_LAYOUT_NCLD) {
			l->k_off = keys;
			l->v_off = g->k_token_bytes + values;
			l->k_stride = l->v_stride = g->token_bytes;
		} else {
			l->k_off = t * (keys + values);
			l->v_off = l->k_off + t * k_width;
			l->k_stride = k_width;
			l->v_stride = v_width;
		}
		keys += k_width;
		values += v_width;
	}
}

int geometry_init(const struct kvp_space_canon *canon, struct geometry *ret_geo)
{
	struct geometry g = {
		.block_tokens = canon->block_tokens,
		.layout = canon->layout,
		.n_layers = canon->n_layers,
		.homogeneous = 1,
	};
	uint32_t e = kvp_dtype_bytes(canon->dtype);

	if (!e || g.block_tokens < KVP_BLOCK_TOKENS_MIN || g.block_tokens > KVP_BLOCK_TOKENS_MAX ||
		!g.n_layers || g.n_layers > KVP_MAX_LAYERS || g.layout > KVP_LAYOUT_LCND)
		return -EINVAL;
	for (uint32_t i = 0; i < g.n_layers; i++) {
		const struct kvp_shm_layer *c = &canon->layers[i];
		struct geo_layer *l = &g.layers[i];

		if (!c->kv_heads || !c->k_dim)
			return -EINVAL;
		l->heads = c->kv_heads;
		l->k_row = e * c->k_dim;
		l->v_row = e * c->v_dim;
		if (c->kv_heads != canon->layers[0].kv_heads ||
			c->k_dim != canon->layers[0].k_dim || c->v_dim != canon->layers[0].v_dim)
			g.homogeneous = 0;
		g.k_token_bytes += (uint64_t)l->heads * l->k_row;
		g.token_bytes += (uint64_t)l->heads * (l->k_row + l->v_row);
	}
	g.block_bytes = g.token_bytes * g.block_tokens;
	if (g.block_bytes > UINT32_MAX)
		return -E2BIG;
	place_layers(&g);
	*ret_geo = g;
	return 0;
}

/* ---- views ----------------------------------------------------------------------------------- */

static int plane_ok(const struct geo_layer *l, const struct kvp_view_plane *p, uint32_t heads)
{
	int k = !p->k ||
		((p->k_head_stride >= l->k_row || heads == 1) && p->k_token_stride >= l->k_row);
	int v = !p->v ||
		((p->v_head_stride >= l->v_row || heads == 1) && p->v_token_stride >= l->v_row);

	return k && v;
}

static uint32_t view_layer(const struct kvp_view *view, uint32_t i)
{
	return view->layers ? view->layers[i] : i;
}

static int view_layer_ok(const struct geometry *geo, const struct kvp_view *v, uint32_t i)
{
	const struct geo_layer *l;
	uint32_t layer = view_layer(v, i), heads;

	if (layer >= geo->n_layers || (i && layer <= view_layer(v, i - 1)))
		return 0;
	l = &geo->layers[layer];
	if (v->first_head >= l->heads || v->n_heads > l->heads - v->first_head)
		return 0;
	heads = v->n_heads ? v->n_heads : l->heads - v->first_head;
	return plane_ok(l, &v->planes[i], heads);
}

/* A view that is written from must give all there is. */
static int view_covers(const struct geometry *geo, const struct kvp_view *v)
{
	if (v->n_layers != geo->n_layers || v->first_head)
		return 0;
	for (uint32_t i = 0; i < geo->n_layers; i++) {
		const struct geo_layer *l = &geo->layers[i];

		if (!v->planes[i].k || (l->v_row && !v->planes[i].v) ||
			(v->n_heads && v->n_heads != l->heads))
			return 0;
	}
	return 1;
}

int view_check(const struct geometry *geo, const struct kvp_view *view, uint32_t mode,
	struct kvp_view *ret_view)
{
	struct kvp_view v;

	if (!view || opts_take(&v, sizeof(v), view) < 0 || !v.planes || v.n_layers > geo->n_layers)
		return -EINVAL;
	if (!v.n_layers && v.layers)
		return -EINVAL;
	if (!v.n_layers)
		v.n_layers = geo->n_layers;
	for (uint32_t i = 0; i < v.n_layers; i++)
		if (!view_layer_ok(geo, &v, i))
			return -EINVAL;
	if (mode == VIEW_WRITE && !view_covers(geo, &v))
		return -EINVAL;
	*ret_view = v;
	return 0;
}

int kvp_view_dense(struct kvp_space *space, uint32_t layout, void *base, size_t tokens,
	struct kvp_view_plane *planes, uint64_t *ret_bytes)
{
	const struct geometry *geo;
	uint64_t k_done = 0, v_done = 0, n = tokens;
	uint8_t *to = base;

	if (!space || layout > KVP_VIEW_LBHSD || !ret_bytes || tokens > MAX_TOKENS ||
		(base && !planes))
		return -EINVAL;
	if (!client_mine(space->client))
		return -ECHILD;
	geo = &space->geo;
	for (uint32_t i = 0; base && i < geo->n_layers; i++) {
		const struct geo_layer *l = &geo->layers[i];
		uint64_t k = (uint64_t)l->heads * l->k_row, v = (uint64_t)l->heads * l->v_row;
		struct kvp_view_plane p = { .k_token_stride = k, .v_token_stride = v };

		p.k_head_stride = l->k_row;
		p.v_head_stride = l->v_row;
		if (layout == KVP_VIEW_NCLD) {
			p.k = to + k_done;
			p.v = to + geo->k_token_bytes + v_done;
			p.k_token_stride = p.v_token_stride = geo->token_bytes;
		} else if (layout == KVP_VIEW_LCND) {
			p.k = to + n * (k_done + v_done);
			p.v = to + n * (k_done + v_done + k);
		} else {
			p.k = to + n * k_done;
			p.v = to + n * (geo->k_token_bytes + v_done);
			p.k_token_stride = l->k_row;
			p.v_token_stride = l->v_row;
			p.k_head_stride = n * l->k_row;
			p.v_head_stride = n * l->v_row;
		}
		if (!v)
			p.v = NULL;
		planes[i] = p;
		k_done += k;
		v_done += v;
	}
	*ret_bytes = n * geo->token_bytes;
	return 0;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/*
 * A call that copies as much as a good part of a core's own cache writes around it, in runs of at
 * least a few pages: each line then crosses the memory bus once and not twice, and what the caller
 * is working on stays where it is. memcpy() decides by the size of the shared cache and of one run.
 */
#define AROUND_CACHE (UINT64_C(512) << 10)
#define AROUND_RUN   (UINT64_C(8) << 10)

#ifdef __SSE2__
static void copy_around(uint8_t *dst, const uint8_t *src, uint64_t n)
{
	uint64_t head = -(uintptr_t)dst & 63;

	memcpy(dst, src, head);
	dst += head, src += head, n -= head;
	for (; n >= 64; n -= 64, dst += 64, src += 64) {
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)src);
		__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(src + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(src + 48));

		_mm_prefetch(src + 1024, _MM_HINT_NTA);
		_mm_stream_si128((__m128i *)(void *)dst, a);
		_mm_stream_si128((__m128i *)(void *)(dst + 16), b);
		_mm_stream_si128((__m128i *)(void *)(dst + 32), c);
		_mm_stream_si128((__m128i *)(void *)(dst + 48), d);
	}
	memcpy(dst, src, n);
	/* Streaming stores are ordered by nothing else, a release store included. */
	_mm_sfence();
}
#else
#define copy_around memcpy
#endif

/* Which way, and how. */
#define TO_VIEW    0u
#define TO_PAYLOAD 1u
#define AROUND     2u

static void copy_run(uint32_t how, void *dst, const void *src, uint64_t n)
{
	if (how & AROUND && n >= AROUND_RUN)
		copy_around(dst, src, n);
	else
		memcpy(dst, src, n);
}

/* One side of a copy of n tokens of `heads` rows. */
struct side {
	uint8_t *at;
	uint64_t token_stride, head_stride;
};

static void copy_rows(
	uint32_t how, struct side dst, struct side src, uint32_t n, uint32_t heads, uint64_t row)
{
	if (dst.head_stride == row && src.head_stride == row) {
		row *= heads;
		heads = 1;
	}
	if (heads == 1 && dst.token_stride == row && src.token_stride == row) {
		copy_run(how, dst.at, src.at, n * row);
		return;
	}
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t h = 0; h < heads; h++)
			memcpy(dst.at + t * dst.token_stride + h * dst.head_stride,
				src.at + t * src.token_stride + h * src.head_stride, row);
}

/*
 * Does the view look like payload tokens [at, at + n) byte for byte, from view token `user` on?
 * Then all of it is one run, which begins at *ret_first. In LCND the planes lie as far apart as in
 * a payload only for whole blocks.
 */
static int is_image(const struct geometry *geo, const struct kvp_view *v, uint32_t at, uint32_t n,
	uint64_t user, uint8_t **ret_first)
{
	uint8_t *first = v->planes[0].k;

	if (v->n_layers != geo->n_layers || v->first_head || v->n_heads || !first)
		return 0;
	if (geo->layout == KVP_LAYOUT_LCND && (at || user || n != geo->block_tokens))
		return 0;
	for (uint32_t i = 0; i < geo->n_layers; i++) {
		const struct geo_layer *l = &geo->layers[i];
		const struct kvp_view_plane *p = &v->planes[i];

		if ((uint8_t *)p->k != first + l->k_off || p->k_token_stride != l->k_stride ||
			p->k_head_stride != l->k_row)
			return 0;
		if (l->v_row &&
			((uint8_t *)p->v != first + l->v_off || p->v_token_stride != l->v_stride ||
				p->v_head_stride != l->v_row))
			return 0;
	}
	*ret_first = first + user * (geo->layout == KVP_LAYOUT_NCLD ? geo->token_bytes : 0);
	return 1;
}

static void copy_side(uint32_t how, struct side payload, struct side user, uint32_t n,
	uint32_t heads, uint64_t row)
{
	if (how & TO_PAYLOAD)
		copy_rows(how, payload, user, n, heads, row);
	else
		copy_rows(how, user, payload, n, heads, row);
}

static void copy_layer(uint32_t how, const struct geo_layer *l, uint8_t *payload, uint32_t at,
	uint32_t n, const struct kvp_view *v, const struct kvp_view_plane *p, uint64_t user)
{
	uint32_t heads = v->n_heads ? v->n_heads : l->heads - v->first_head;
	struct side in, out;

	if (p->k) {
		in = (struct side){ payload + l->k_off + at * l->k_stride +
					    (uint64_t)v->first_head * l->k_row,
			l->k_stride, l->k_row };
		out = (struct side){ (uint8_t *)p->k + user * p->k_token_stride, p->k_token_stride,
			p->k_head_stride };
		copy_side(how, in, out, n, heads, l->k_row);
	}
	if (p->v && l->v_row) {
		in = (struct side){ payload + l->v_off + at * l->v_stride +
					    (uint64_t)v->first_head * l->v_row,
			l->v_stride, l->v_row };
		out = (struct side){ (uint8_t *)p->v + user * p->v_token_stride, p->v_token_stride,
			p->v_head_stride };
		copy_side(how, in, out, n, heads, l->v_row);
	}
}

static void copy(uint32_t how, const struct geometry *geo, uint8_t *payload, uint32_t at,
	uint32_t n, const struct kvp_view *v, uint64_t user)
{
	uint8_t *run;

	if (is_image(geo, v, at, n, user, &run)) {
		uint8_t *here = payload + at * geo->token_bytes;

		copy_run(how, how & TO_PAYLOAD ? here : run, how & TO_PAYLOAD ? run : here,
			n * geo->token_bytes);
		return;
	}
	for (uint32_t i = 0; i < v->n_layers; i++)
		copy_layer(how, &geo->layers[view_layer(v, i)], payload, at, n, v, &v->planes[i],
			user);
}

static uint32_t around(const struct geometry *geo, uint64_t tokens)
{
	return tokens * geo->token_bytes >= AROUND_CACHE ? AROUND : 0;
}

void view_from_payload(const struct geometry *geo, const void *payload, uint32_t at, uint32_t n,
	const struct kvp_view *view, uint64_t user, uint64_t total)
{
	copy(TO_VIEW | around(geo, total), geo, (uint8_t *)payload, at, n, view, user);
}

void view_to_payload(const struct geometry *geo, void *payload, uint32_t n,
	const struct kvp_view *view, uint64_t user, uint64_t total)
{
	copy(TO_PAYLOAD | around(geo, total), geo, payload, 0, n, view, user);
}

void payload_prefix(const struct geometry *geo, void *dst, const void *src, uint32_t n)
{
	if (geo->layout == KVP_LAYOUT_NCLD || n == geo->block_tokens) {
		memcpy(dst, src, n * geo->token_bytes);
		return;
	}
	for (uint32_t i = 0; i < geo->n_layers; i++) {
		const struct geo_layer *l = &geo->layers[i];

		memcpy((uint8_t *)dst + l->k_off, (const uint8_t *)src + l->k_off, n * l->k_stride);
		memcpy((uint8_t *)dst + l->v_off, (const uint8_t *)src + l->v_off, n * l->v_stride);
	}
}
