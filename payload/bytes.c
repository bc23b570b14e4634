/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of payloads: decoded a layer at a time, and coded anew. */
#include "payload/kvp_payload.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define ALIGN 64u

static size_t element(uint32_t dtype)
{
	return kvp_dtype_bytes(dtype);
}

static size_t up(size_t bytes)
{
	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* Of a plane's elements, [head][token][channel]. */
static size_t raw_bytes(const struct kvp_block_layout *l, const struct kvp_block_plane *p)
{
	return (size_t)p->heads * l->tokens * p->dim * element(l->dtype);
}

static struct kvp_plane plane_of(
	const struct kvp_block_layout *l, const struct kvp_block_plane *p, uint32_t kind)
{
	return (struct kvp_plane){ l->tokens, p->heads, p->dim, l->dtype, kind };
}

static struct kvp_raw raw_at(
	const struct kvp_block_layout *l, const struct kvp_block_plane *p, void *at)
{
	ptrdiff_t row = (ptrdiff_t)(p->dim * element(l->dtype));

	return (struct kvp_raw){ at, row * (ptrdiff_t)l->tokens, row };
}

size_t kvp_payload_scratch(const struct kvp_block_layout *l)
{
	size_t most = 0;

	for (uint32_t i = 0; i < l->n_layers; i++) {
		size_t n = up(raw_bytes(l, &l->plane[i][0])) + up(raw_bytes(l, &l->plane[i][1]));

		most = n > most ? n : most;
	}
	return most;
}

int kvp_payload_decode(const struct kvp_kernels *k, const struct kvp_block_layout *l,
	uint32_t layer, const void *payload, uint64_t bytes, void *scratch,
	struct kvp_payload_layer *ret_layer)
{
	const void *at[2] = { NULL, NULL };
	struct kvp_decode_job job[2];
	uint8_t *to = scratch;
	size_t n = 0, done;
	int r = 0;

	if (layer >= l->n_layers || l->native)
		return -EINVAL;
	if (bytes < l->bytes)
		return -EBADMSG;
	for (uint32_t kind = 0; kind < 2; kind++) {
		const struct kvp_block_plane *p = &l->plane[layer][kind];
		const void *in = (const uint8_t *)payload + p->offset;

		if (!p->heads)
			continue;
		at[kind] = p->codec == KVP_CODEC_NATIVE ? in : to;
		if (p->codec == KVP_CODEC_NATIVE)
			continue;
		job[n++] = (struct kvp_decode_job){
			.codec = p->codec,
			.plane = plane_of(l, p, kind),
			.calib = p->calib,
			.in = in,
			.in_size = p->bytes,
			.dst = raw_at(l, p, to),
		};
		to += up(raw_bytes(l, p));
	}
	if (n)
		r = kvp_planes_decode(k, job, n, &done);
	if (r == 0)
		*ret_layer = (struct kvp_payload_layer){ at[0], at[1] };
	return r;
}

/* ---- coding anew ----------------------------------------------------------------------------- */

/* Rows from one place to another. */
static void copy_rows(const struct kvp_block_layout *l, const struct kvp_block_plane *p,
	struct kvp_raw_const src, struct kvp_raw dst)
{
	size_t row = p->dim * element(l->dtype);

	for (uint32_t h = 0; h < p->heads; h++)
		for (uint32_t t = 0; t < l->tokens; t++)
			memcpy((uint8_t *)dst.data + (ptrdiff_t)h * dst.head_stride +
					(ptrdiff_t)t * dst.token_stride,
				(const uint8_t *)src.data + (ptrdiff_t)h * src.head_stride +
					(ptrdiff_t)t * src.token_stride,
				row);
}

static uint32_t budget_of(const struct kvp_block_layout *l, const struct kvp_block_plane *p)
{
	return p->heads ? kvp_smart_budget(p->codec, l->tokens) : 0;
}

/* Of a plane whose codec has a mean. */
static int token_bits(const struct kvp_block_layout *l, const struct kvp_block_plane *p,
	uint32_t kind, const void *payload, uint8_t *ret_bits)
{
	const struct kvp_plane plane = plane_of(l, p, kind);
	const uint8_t *in = (const uint8_t *)payload + p->offset;
	struct kvp_layout lay;
	size_t bytes;

	if (kvp_plane_layout(p->codec, &plane, &lay) < 0)
		return -EINVAL;
	memcpy(ret_bits, in + lay.extra, l->tokens);
	return kvp_smart_bytes(p->codec, &plane, ret_bits, &bytes) < 0 ? -EBADMSG : 0;
}

/* What tokens are to have, of which some may have fewer already. bits: NULL, or what is wished. */
static void bits_of(uint32_t budget, uint32_t n, const uint8_t *bits, uint8_t *now)
{
	uint32_t each = budget / n, more = budget - each * n;

	for (uint32_t t = 0; t < n; t++) {
		uint8_t want = bits ? bits[t] : (uint8_t)(each + (t < more));

		if (now[t] > want)
			now[t] = want;
	}
}

/* A plane whose codec has a mean, from native elements or from one with a higher mean. */
static int recode_smart(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const struct kvp_block_plane *f, const void *src, const struct kvp_block_layout *to,
	const struct kvp_block_plane *t, uint32_t kind, uint8_t *dst, struct kvp_raw_const raw,
	const uint8_t *bits)
{
	const struct kvp_plane plane = plane_of(to, t, kind);
	struct kvp_encode_opts o = { .size = sizeof(o) };
	uint8_t now[KVP_PLANE_TOKENS_MAX];
	int coded = budget_of(from, f) != 0, r = 0;
	uint32_t used = 0;

	memset(now, 8, sizeof(now));
	if (coded)
		r = token_bits(from, f, kind, src, now);
	if (r < 0)
		return r;
	bits_of(budget_of(to, t), to->tokens, bits, now);
	o.widths = now;
	if (coded)
		r = kvp_smart_recode(k, f->codec, t->codec, &plane,
			(const uint8_t *)src + f->offset, f->bytes, now, dst + t->offset, t->bytes);
	else
		r = kvp_plane_encode(k, t->codec, &plane, &o, raw, dst + t->offset, t->bytes);
	if (r < 0)
		return r;
	memcpy(&used, dst + t->offset + offsetof(struct kvp_plane_hdr, bytes), sizeof(used));
	memset(dst + t->offset + used, 0, t->bytes - used);
	return 0;
}

static int recode_plane(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const struct kvp_block_plane *f, const void *src, const struct kvp_block_layout *to,
	const struct kvp_block_plane *t, uint32_t kind, uint8_t *dst, const uint8_t *bits,
	uint32_t position, void *scratch)
{
	const struct kvp_encode_opts o = {
		.size = sizeof(o), .calib = t->calib, .position = position
	};
	struct kvp_plane plane = plane_of(to, t, kind);
	const int smart = budget_of(to, t) != 0;
	struct kvp_raw_const raw = { (const uint8_t *)src + f->offset, (ptrdiff_t)f->head_stride,
		(ptrdiff_t)f->token_stride };

	if (f->codec == t->codec && f->codec != KVP_CODEC_NATIVE) {
		memcpy(dst + t->offset, raw.data, t->bytes);
		return 0;
	}
	if (f->codec != KVP_CODEC_NATIVE && !(smart && budget_of(from, f))) {
		struct kvp_raw decoded = raw_at(from, f, scratch);
		int r = kvp_plane_decode(
			k, f->codec, &plane, f->calib, raw.data, f->bytes, decoded);

		if (r < 0)
			return r;
		raw = (struct kvp_raw_const){ decoded.data, decoded.head_stride,
			decoded.token_stride };
	}
	if (t->codec == KVP_CODEC_NATIVE) {
		copy_rows(to, t, raw, raw_at(to, t, dst + t->offset));
		return 0;
	}
	if (smart)
		return recode_smart(k, from, f, src, to, t, kind, dst, raw, bits);
	return kvp_plane_encode(k, t->codec, &plane, &o, raw, dst + t->offset, t->bytes);
}

int kvp_payload_recode(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const void *src, const struct kvp_block_layout *to, void *dst, void *scratch)
{
	return kvp_payload_recode_tokens(k, from, src, to, dst, NULL, scratch);
}

int kvp_payload_recode_tokens(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const void *src, const struct kvp_block_layout *to, void *dst,
	const struct kvp_payload_tokens *tokens, void *scratch)
{
	uint64_t end = 0;

	if (to->native || from->n_layers != to->n_layers || from->tokens != to->tokens ||
		from->dtype != to->dtype)
		return -EINVAL;
	for (uint32_t i = 0; i < to->n_layers; i++)
		for (uint32_t kind = 0; kind < 2; kind++) {
			const struct kvp_block_plane *t = &to->plane[i][kind];
			int r;

			if (!t->heads)
				continue;
			memset((uint8_t *)dst + end, 0, t->offset - end);
			end = t->offset + t->bytes;
			r = recode_plane(k, from, &from->plane[i][kind], src, to, t, kind, dst,
				tokens ? tokens->bits[kind] : NULL, tokens ? tokens->position : 0,
				scratch);
			if (r < 0)
				return r;
		}
	return 0;
}

/* The first plane of the kind whose codec has a mean; NULL: there is none. */
static const struct kvp_block_plane *smart_plane(const struct kvp_block_layout *l, uint32_t kind)
{
	for (uint32_t i = 0; i < l->n_layers; i++)
		if (budget_of(l, &l->plane[i][kind]))
			return &l->plane[i][kind];
	return NULL;
}

int kvp_payload_token_bits(
	const struct kvp_block_layout *l, const void *payload, uint32_t kind, uint8_t *ret_bits)
{
	const struct kvp_block_plane *p = smart_plane(l, kind);
	uint8_t bits[KVP_PLANE_TOKENS_MAX];
	int r = p ? token_bits(l, p, kind, payload, bits) : -ENOENT;

	if (r == 0)
		memcpy(ret_bits, bits, l->tokens);
	return r;
}

uint32_t kvp_payload_token_budget(const struct kvp_block_layout *l, uint32_t kind)
{
	const struct kvp_block_plane *p = smart_plane(l, kind);

	return p ? budget_of(l, p) : 0;
}
