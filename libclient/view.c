/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where elements lie in a payload and in a caller's view, and copies between the two.
 */
#include "libclient/client.h"
#include "libclient/geometry.h"
#include "payload/kvp_payload.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* ---- geometry -------------------------------------------------------------------------------- */

/* Strides of the space's own layout, as payload/ has it. */
static void place_layers(struct geometry *g, const struct kvp_block_layout *native)
{
	for (uint32_t i = 0; i < g->n_layers; i++) {
		struct geo_layer *l = &g->layers[i];

		l->k_off = native->plane[i][KVP_PLANE_K].offset;
		l->v_off = native->plane[i][KVP_PLANE_V].offset;
		l->k_stride = native->plane[i][KVP_PLANE_K].token_stride;
		l->v_stride = native->plane[i][KVP_PLANE_V].token_stride;
	}
}

/* What lies where in it only the engine knows: there is nothing to make a view of. */
static int opaque_init(
	const struct kvp_space_canon *canon, struct geometry *g, struct geometry *ret_geo)
{
	if (!g->block_tokens || g->block_tokens > KVP_BLOCK_TOKENS_MAX || !canon->opaque_bytes)
		return -EINVAL;
	if (canon->opaque_bytes > UINT32_MAX)
		return -E2BIG;
	g->block_bytes = canon->opaque_bytes;
	g->token_bytes = g->block_bytes / g->block_tokens;
	*ret_geo = *g;
	return 0;
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
	struct kvp_block_layout native;
	int r;

	g.element = e;
	if (g.layout == KVP_LAYOUT_OPAQUE)
		return opaque_init(canon, &g, ret_geo);
	r = kvp_block_layout(canon, KVP_CODEC_NATIVE, KVP_CODEC_NATIVE, &native);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < g.n_layers; i++) {
		const struct kvp_shm_layer *c = &canon->layers[i];
		struct geo_layer *l = &g.layers[i];

		l->heads = c->kv_heads;
		l->k_row = e * c->k_dim;
		l->v_row = e * c->v_dim;
		if (c->kv_heads != canon->layers[0].kv_heads ||
			c->k_dim != canon->layers[0].k_dim || c->v_dim != canon->layers[0].v_dim)
			g.homogeneous = 0;
		g.k_token_bytes += (uint64_t)l->heads * l->k_row;
		g.token_bytes += (uint64_t)l->heads * (l->k_row + l->v_row);
	}
	g.block_bytes = native.bytes;
	place_layers(&g, &native);
	*ret_geo = g;
	return 0;
}

/* ---- views ----------------------------------------------------------------------------------- */

/* One side of a plane: the keys or the values. */
struct half {
	uint8_t *base; /* NULL: left out */
	uint64_t page_stride, token_stride, head_stride, channel_stride;
};

static struct half key_half(const struct kvp_view_plane *p)
{
	return (struct half){ p->k, p->k_page_stride, p->k_token_stride, p->k_head_stride,
		p->k_channel_stride };
}

static struct half value_half(const struct kvp_view_plane *p)
{
	return (struct half){ p->v, p->v_page_stride, p->v_token_stride, p->v_head_stride,
		p->v_channel_stride };
}

/* Do channels lie side by side? Then a head's are copied as one row. */
static int has_rows(const struct half *h, uint32_t element)
{
	return !h->channel_stride || h->channel_stride == element;
}

/* Strides that would lay one token, head or channel over the next are a mistake. */
static int half_ok(
	const struct kvp_view *v, struct half h, uint32_t element, uint64_t row, uint32_t heads)
{
	uint64_t least = has_rows(&h, element) ? row : element;

	if (!h.base)
		return 1;
	return (h.channel_stride >= element || !h.channel_stride) &&
	       (h.head_stride >= least || heads == 1) &&
	       (h.token_stride >= least || v->page_tokens == 1) &&
	       (h.page_stride >= least || !v->page_tokens || v->pool_pages == 1);
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
	return half_ok(v, key_half(&v->planes[i]), geo->element, l->k_row, heads) &&
	       half_ok(v, value_half(&v->planes[i]), geo->element, l->v_row, heads);
}

/* Number i, or one that is too large for anything. */
static uint64_t id_at(const struct kvp_ids *ids, uint64_t i)
{
	switch (ids->type) {
	case KVP_IDS_U32:
		return ((const uint32_t *)ids->ids)[i];
	case KVP_IDS_I32:
		return (uint64_t)(int64_t)((const int32_t *)ids->ids)[i];
	default:
		return (uint64_t)((const int64_t *)ids->ids)[i];
	}
}

/* A table without page_tokens would be a view that is taken for another. */
static int paging_ok(const struct kvp_view *v)
{
	if (!v->page_tokens)
		return !v->pool_pages && !v->first_slot && !v->pages.ids && !v->pages.n;
	return v->pool_pages && (v->pages.ids || !v->pages.n) && v->pages.type <= KVP_IDS_I64;
}

int view_reaches(const struct kvp_view *v, uint64_t n)
{
	uint64_t end;

	if (!v->page_tokens || !n)
		return 0;
	end = (v->first_slot + n - 1) / v->page_tokens + 1;
	if (end > v->pages.n)
		return -EINVAL;
	for (uint64_t i = v->first_slot / v->page_tokens; i < end; i++)
		if (id_at(&v->pages, i) >= v->pool_pages)
			return -EINVAL;
	return 0;
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

	if (geo->layout == KVP_LAYOUT_OPAQUE)
		return -EOPNOTSUPP;
	if (!view || opts_take(&v, sizeof(v), view) < 0 || !v.planes || v.n_layers > geo->n_layers)
		return -EINVAL;
	if ((!v.n_layers && v.layers) || !paging_ok(&v))
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
	if (geo->layout == KVP_LAYOUT_OPAQUE)
		return -EOPNOTSUPP;
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
 * least a KiB, which one token's row in a pool of tokens may be: each line then crosses the memory
 * bus once and not twice, and what the caller is working on stays where it is. memcpy() decides by
 * the size of the shared cache and of one run.
 */
#define AROUND_CACHE (UINT64_C(512) << 10)
#define AROUND_RUN   (UINT64_C(1) << 10)
/*
 * Source lines are asked for so far ahead, into all caches: asked for as lines that are used once (NTA), they came later
 * than those that were not asked for at all.
 */
#define AROUND_AHEAD 2048

#ifdef __SSE2__
static void copy_around(uint8_t *dst, const uint8_t *src, uint64_t n)
{
	uint64_t head = -(uintptr_t)dst & 63;

	if (head > n)
		head = n;
	memcpy(dst, src, head);
	dst += head, src += head, n -= head;
	for (; n >= 64; n -= 64, dst += 64, src += 64) {
		__m128i a = _mm_loadu_si128((const __m128i *)(const void *)src);
		__m128i b = _mm_loadu_si128((const __m128i *)(const void *)(src + 16));
		__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(src + 32));
		__m128i d = _mm_loadu_si128((const __m128i *)(const void *)(src + 48));

		_mm_prefetch(src + AROUND_AHEAD, _MM_HINT_T0);
		_mm_stream_si128((__m128i *)(void *)dst, a);
		_mm_stream_si128((__m128i *)(void *)(dst + 16), b);
		_mm_stream_si128((__m128i *)(void *)(dst + 32), c);
		_mm_stream_si128((__m128i *)(void *)(dst + 48), d);
	}
	memcpy(dst, src, n);
}

/* Streaming stores are ordered by nothing else, a release store included. */
static void copied_around(void)
{
	_mm_sfence();
}
#else
#define copy_around memcpy
static void copied_around(void)
{
}
#endif

void payload_copy(void *dst, const void *src, uint64_t n, uint64_t total)
{
	if (total < AROUND_CACHE) {
		memcpy(dst, src, n);
		return;
	}
	copy_around(dst, src, n);
	copied_around();
}

/* Which way, and how. */
#define TO_VIEW    0u
#define TO_PAYLOAD 1u
#define AROUND     2u

struct way {
	uint32_t how;
	const struct view_sink *sink; /* not NULL: is told of the runs, and copies them itself */
};

static void copy_run(const struct way *w, void *dst, const void *src, uint64_t n)
{
	if (w->sink)
		w->sink->run(w->sink->ctx, dst, src, n);
	else if (w->how & AROUND && n >= AROUND_RUN)
		copy_around(dst, src, n);
	else
		memcpy(dst, src, n);
}

/* One side of a copy of n tokens of `heads` rows. */
struct side {
	uint8_t *at;
	uint64_t token_stride, head_stride, channel_stride;
};

/* What is copied of each token. */
struct rows {
	uint32_t heads, element;
	uint64_t row; /* bytes of a head */
};

static void copy_rows(const struct way *w, struct side dst, struct side src, uint32_t n,
	uint32_t heads, uint64_t row)
{
	if (dst.head_stride == row && src.head_stride == row) {
		row *= heads;
		heads = 1;
	}
	if (heads == 1 && dst.token_stride == row && src.token_stride == row) {
		copy_run(w, dst.at, src.at, n * row);
		return;
	}
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t h = 0; h < heads; h++)
			copy_run(w, dst.at + t * dst.token_stride + h * dst.head_stride,
				src.at + t * src.token_stride + h * src.head_stride, row);
}

/* Element by element: on one side the channels of a head lie apart. Tokens may be neighbours there. */
static void copy_elements(struct side dst, struct side src, uint32_t n, const struct rows *r)
{
	for (uint32_t h = 0; h < r->heads; h++) {
		for (uint64_t c = 0; c < r->row / r->element; c++) {
			uint8_t *to = dst.at + h * dst.head_stride + c * dst.channel_stride;
			const uint8_t *from = src.at + h * src.head_stride + c * src.channel_stride;

			for (uint32_t t = 0; t < n; t++)
				memcpy(to + t * dst.token_stride, from + t * src.token_stride,
					r->element);
		}
	}
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

	if (v->n_layers != geo->n_layers || v->first_head || v->n_heads || !first || v->page_tokens)
		return 0;
	if (geo->layout == KVP_LAYOUT_LCND && (at || user || n != geo->block_tokens))
		return 0;
	for (uint32_t i = 0; i < geo->n_layers; i++) {
		const struct geo_layer *l = &geo->layers[i];
		const struct kvp_view_plane *p = &v->planes[i];

		if ((uint8_t *)p->k != first + l->k_off || p->k_token_stride != l->k_stride ||
			p->k_head_stride != l->k_row || p->k_channel_stride)
			return 0;
		if (l->v_row &&
			((uint8_t *)p->v != first + l->v_off || p->v_token_stride != l->v_stride ||
				p->v_head_stride != l->v_row || p->v_channel_stride))
			return 0;
	}
	*ret_first = first + user * (geo->layout == KVP_LAYOUT_NCLD ? geo->token_bytes : 0);
	return 1;
}

static void copy_side(const struct way *w, struct side payload, struct side user, uint32_t n,
	const struct rows *r)
{
	struct side dst = w->how & TO_PAYLOAD ? payload : user;
	struct side src = w->how & TO_PAYLOAD ? user : payload;

	if (user.channel_stride == r->element)
		copy_rows(w, dst, src, n, r->heads, r->row);
	else
		copy_elements(dst, src, n, r);
}

/* Page by page; pages that follow one another in the table and in the pool are one piece. */
static void copy_pages(const struct way *w, struct side payload, const struct half *h,
	struct side user, uint32_t n, const struct rows *r, const struct kvp_view *v, uint64_t slot)
{
	uint64_t i = slot / v->page_tokens;
	uint32_t in = (uint32_t)(slot % v->page_tokens);
	int dense = h->page_stride == (uint64_t)v->page_tokens * h->token_stride;

	for (uint32_t done = 0, len; done < n; done += len, in = 0) {
		uint64_t page = id_at(&v->pages, i++), next = page + 1;

		len = v->page_tokens - in < n - done ? v->page_tokens - in : n - done;
		for (; dense && len < n - done && id_at(&v->pages, i) == next; i++, next++)
			len += v->page_tokens < n - done - len ? v->page_tokens : n - done - len;
		user.at = h->base + page * h->page_stride + in * h->token_stride;
		copy_side(w, payload, user, len, r);
		payload.at += len * payload.token_stride;
	}
}

/* Keys or values of n tokens; `payload` stands at the first of them. */
static void copy_half(const struct way *w, struct side payload, struct half h, uint32_t n,
	const struct rows *r, const struct kvp_view *v, uint64_t user_token)
{
	struct side user = { h.base, h.token_stride, h.head_stride,
		has_rows(&h, r->element) ? r->element : h.channel_stride };

	if (!h.base || !r->row)
		return;
	if (v->page_tokens == 1)
		h.token_stride = user.token_stride = h.page_stride;
	if (v->page_tokens) {
		copy_pages(w, payload, &h, user, n, r, v, v->first_slot + user_token);
	} else {
		user.at += user_token * h.token_stride;
		copy_side(w, payload, user, n, r);
	}
}

static void copy_layer(const struct way *w, const struct geometry *geo, const struct geo_layer *l,
	uint8_t *payload, uint32_t at, uint32_t n, const struct kvp_view *v,
	const struct kvp_view_plane *p, uint64_t user)
{
	uint32_t heads = v->n_heads ? v->n_heads : l->heads - v->first_head, e = geo->element;
	uint64_t k = l->k_off + at * l->k_stride + (uint64_t)v->first_head * l->k_row;
	uint64_t val = l->v_off + at * l->v_stride + (uint64_t)v->first_head * l->v_row;

	copy_half(w, (struct side){ payload + k, l->k_stride, l->k_row, e }, key_half(p), n,
		&(struct rows){ heads, e, l->k_row }, v, user);
	copy_half(w, (struct side){ payload + val, l->v_stride, l->v_row, e }, value_half(p), n,
		&(struct rows){ heads, e, l->v_row }, v, user);
}

static void copy(const struct way *w, const struct geometry *geo, uint8_t *payload, uint32_t at,
	uint32_t n, const struct kvp_view *v, uint64_t user)
{
	uint8_t *run;

	if (is_image(geo, v, at, n, user, &run)) {
		uint8_t *here = payload + at * geo->token_bytes;

		copy_run(w, w->how & TO_PAYLOAD ? here : run, w->how & TO_PAYLOAD ? run : here,
			n * geo->token_bytes);
	} else {
		for (uint32_t i = 0; i < v->n_layers; i++)
			copy_layer(w, geo, &geo->layers[view_layer(v, i)], payload, at, n, v,
				&v->planes[i], user);
	}
	if (w->how & AROUND)
		copied_around();
}

static uint32_t around(const struct geometry *geo, uint64_t tokens)
{
	return tokens * geo->token_bytes >= AROUND_CACHE ? AROUND : 0;
}

void view_from_payload(const struct geometry *geo, const void *payload, uint32_t at, uint32_t n,
	const struct kvp_view *view, uint64_t user, uint64_t total)
{
	copy(&(struct way){ TO_VIEW | around(geo, total), NULL }, geo, (uint8_t *)payload, at, n,
		view, user);
}

void view_to_payload(const struct geometry *geo, void *payload, uint32_t n,
	const struct kvp_view *view, uint64_t user, uint64_t total)
{
	copy(&(struct way){ TO_PAYLOAD | around(geo, total), NULL }, geo, payload, 0, n, view,
		user);
}

void view_from_layer(const struct geometry *geo, const void *k, const void *v, uint32_t at,
	uint32_t n, const struct kvp_view *view, uint32_t i, uint64_t user)
{
	const struct geo_layer *l = &geo->layers[view_layer(view, i)];
	const struct way w = { TO_VIEW, NULL };
	uint32_t heads = view->n_heads ? view->n_heads : l->heads - view->first_head;
	uint32_t e = geo->element;
	const void *from[2] = { k, v };
	const uint64_t row[2] = { l->k_row, l->v_row };

	for (uint32_t kind = 0; kind < 2; kind++) {
		uint64_t head = row[kind] * geo->block_tokens;
		uint8_t *first = (uint8_t *)(uintptr_t)from[kind];
		struct half h = kind ? value_half(&view->planes[i]) : key_half(&view->planes[i]);

		if (first)
			copy_half(&w,
				(struct side){ first + view->first_head * head + at * row[kind],
					row[kind], head, e },
				h, n, &(struct rows){ heads, e, row[kind] }, view, user);
	}
}

int view_has_rows(const struct geometry *geo, const struct kvp_view *v)
{
	for (uint32_t i = 0; i < v->n_layers; i++) {
		struct half k = key_half(&v->planes[i]), val = value_half(&v->planes[i]);

		if ((k.base && !has_rows(&k, geo->element)) ||
			(val.base && !has_rows(&val, geo->element)))
			return 0;
	}
	return 1;
}

void view_runs(const struct geometry *geo, uint64_t payload, uint32_t at, uint32_t n,
	const struct kvp_view *view, uint64_t user, uint32_t mode, const struct view_sink *sink)
{
	const struct way w = { mode == VIEW_WRITE ? TO_PAYLOAD : TO_VIEW, sink };

	copy(&w, geo, (uint8_t *)(uintptr_t)payload, at, n, view, user);
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
