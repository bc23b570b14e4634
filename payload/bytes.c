/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of payloads: decoded a layer at a time, and coded anew. */
#include "payload/kvp_payload.h"

#include <errno.h>
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

static int recode_plane(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const struct kvp_block_plane *f, const void *src, const struct kvp_block_layout *to,
	const struct kvp_block_plane *t, uint32_t kind, uint8_t *dst, void *scratch)
{
	struct kvp_plane plane = plane_of(to, t, kind);
	struct kvp_raw_const raw = { (const uint8_t *)src + f->offset, (ptrdiff_t)f->head_stride,
		(ptrdiff_t)f->token_stride };

	if (f->codec == t->codec && f->codec != KVP_CODEC_NATIVE) {
		memcpy(dst + t->offset, raw.data, t->bytes);
		return 0;
	}
	if (f->codec != KVP_CODEC_NATIVE) {
		struct kvp_raw decoded = raw_at(from, f, scratch);
		int r = kvp_plane_decode(k, f->codec, &plane, NULL, raw.data, f->bytes, decoded);

		if (r < 0)
			return r;
		raw = (struct kvp_raw_const){ decoded.data, decoded.head_stride,
			decoded.token_stride };
	}
	if (t->codec == KVP_CODEC_NATIVE) {
		copy_rows(to, t, raw, raw_at(to, t, dst + t->offset));
		return 0;
	}
	return kvp_plane_encode(k, t->codec, &plane, NULL, raw, dst + t->offset, t->bytes);
}

int kvp_payload_recode(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const void *src, const struct kvp_block_layout *to, void *dst, void *scratch)
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
			r = recode_plane(
				k, from, &from->plane[i][kind], src, to, t, kind, dst, scratch);
			if (r < 0)
				return r;
		}
	return 0;
}
