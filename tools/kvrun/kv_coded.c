/* SPDX-License-Identifier: Apache-2.0 */
/* Sealed blocks in a codec, beside the native ones of another cache or instead of them. */
#include "tools/kvrun/kvr_kv_coded.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct block {
	void *native;     /* primary only: while it is written, or for good if the codec refused */
	uint8_t *payload; /* of all layers; memory that is kept from one sequence to the next */
	int coded;
};

struct coded_kv {
	struct kvr_kv kv; /* first: the engine's handle */
	struct kvr_coding coding;
	struct kvp_kernels *kernels;
	uint32_t codec[2];         /* of K, of V */
	struct kvp_plane plane[2]; /* of a whole block */
	size_t bytes[2];           /* of a payload */
	struct kvr_kv *native;     /* NULL: primary */
	uint32_t head_dim;
	size_t payload_at[2]; /* of K and V in what a layer has */
	size_t layer_bytes;
	struct block *block;
	uint32_t n;    /* of the sequence */
	uint32_t room; /* allocated */
	void *spare;   /* primary: native memory for the next block */
};

static struct coded_kv *coded_of(struct kvr_kv *kv)
{
	return (struct coded_kv *)kv;
}

static uint8_t *payload_of(const struct coded_kv *c, uint32_t index, uint32_t layer, uint32_t value)
{
	return c->block[index].payload + layer * c->layer_bytes + c->payload_at[value];
}

static void *coded_block(struct kvr_kv *kv, uint32_t index)
{
	struct coded_kv *c = coded_of(kv);

	return c->native ? c->native->ops->block(c->native, index) : c->block[index].native;
}

static bool coded_planes(
	struct kvr_kv *kv, uint32_t index, uint32_t layer, struct kvp_attend_plane ret_plane[2])
{
	struct coded_kv *c = coded_of(kv);

	for (uint32_t value = 0; c->block[index].coded && value < 2; value++) {
		const struct kvp_plane *p = &c->plane[value];
		struct kvp_attend_plane plane = {
			.codec = c->codec[value],
			.dtype = p->dtype,
			.data = payload_of(c, index, layer, value),
			.bytes = c->bytes[value],
		};

		if (plane.codec == KVP_CODEC_NATIVE) { /* [head][token][channel], without gaps */
			plane.head_stride = (ptrdiff_t)(plane.bytes / p->heads);
			plane.token_stride = plane.head_stride / (ptrdiff_t)p->tokens;
		}
		ret_plane[value] = plane;
	}
	return c->block[index].coded;
}

/* Adds a block to the sequence. */
static int append(struct coded_kv *c)
{
	if (c->n == c->room) {
		uint32_t room = c->room ? 2 * c->room : 16;
		struct block *p = realloc(c->block, room * sizeof(*p));

		if (!p)
			return -ENOMEM;
		memset(p + c->room, 0, (room - c->room) * sizeof(*p));
		c->block = p;
		c->room = room;
	}
	c->block[c->n++].coded = 0;
	return 0;
}

static int encode(struct coded_kv *c, uint32_t index, const uint8_t *native)
{
	const struct kvr_geom *g = &c->kv.geom;
	int r = 0;

	for (uint32_t l = 0; r == 0 && l < g->layers; l++)
		for (uint32_t value = 0; r == 0 && value < 2; value++) {
			struct kvp_raw_const src = {
				native + kvr_row_offset(g, l, value, 0),
				(ptrdiff_t)(c->head_dim * kvr_dtype_bytes(g->dtype)),
				(ptrdiff_t)kvr_row_bytes(g),
			};

			r = kvp_plane_encode(c->kernels, c->codec[value], &c->plane[value], NULL,
				src, payload_of(c, index, l, value), c->bytes[value]);
		}
	return r;
}

/* A whole block, natively there, into the codec; it stays as it is if that fails. */
static void code(struct coded_kv *c, uint32_t index)
{
	struct block *b = &c->block[index];
	void *p;

	if (!b->payload && posix_memalign(&p, 64, c->kv.geom.layers * c->layer_bytes) == 0)
		b->payload = p;
	b->coded = b->payload && encode(c, index, coded_block(&c->kv, index)) == 0;
	if (!b->coded) {
		c->coding.errors++;
	} else if (!c->native) {
		free(c->spare);
		c->spare = b->native;
		b->native = NULL;
	}
}

/* Primary: of the native memory that the last sequence had, one block is enough for the next. */
static void drop_native(struct coded_kv *c)
{
	for (uint32_t i = 0; i < c->n; i++) {
		if (!c->block[i].native)
			continue;
		free(c->spare);
		c->spare = c->block[i].native;
		c->block[i].native = NULL;
	}
}

static int coded_start(
	struct kvr_kv *kv, const uint32_t *tokens, uint32_t n, uint32_t limit, uint32_t *ret_reused)
{
	struct coded_kv *c = coded_of(kv);
	uint32_t size = kv->geom.block_tokens;
	int r = 0;

	drop_native(c);
	c->n = 0;
	*ret_reused = 0;
	if (c->native)
		r = c->native->ops->start(c->native, tokens, n, limit, ret_reused);
	for (uint32_t at = 0; r == 0 && at < *ret_reused; at += size) {
		r = append(c);
		if (r == 0 && *ret_reused - at >= size)
			code(c, c->n - 1);
	}
	return r;
}

static int coded_grow(struct kvr_kv *kv, uint32_t index)
{
	struct coded_kv *c = coded_of(kv);
	struct block *b;
	int r = append(c);

	if (r == 0 && c->native)
		return c->native->ops->grow(c->native, index);
	if (r < 0)
		return r;
	b = &c->block[index];
	if (!b->native) {
		b->native = c->spare ? c->spare : kvr_block_alloc(&kv->geom);
		c->spare = NULL;
	}
	return b->native ? 0 : -ENOMEM;
}

static void coded_seal(struct kvr_kv *kv, uint32_t index, const uint32_t *tokens, uint32_t n)
{
	struct coded_kv *c = coded_of(kv);

	if (c->native)
		c->native->ops->seal(c->native, index, tokens, n);
	if (n == kv->geom.block_tokens)
		code(c, index);
}

static void coded_end(struct kvr_kv *kv)
{
	struct coded_kv *c = coded_of(kv);

	if (c->native)
		c->native->ops->end(c->native);
}

static void coded_free(struct kvr_kv *kv)
{
	struct coded_kv *c = coded_of(kv);

	for (uint32_t i = 0; i < c->room; i++) {
		free(c->block[i].native);
		free(c->block[i].payload);
	}
	free(c->block);
	free(c->spare);
	kvr_kv_free(c->native);
	kvp_kernels_free(c->kernels);
	free(c);
}

static const struct kvr_kv_ops coded_ops = {
	.start = coded_start,
	.grow = coded_grow,
	.block = coded_block,
	.planes = coded_planes,
	.seal = coded_seal,
	.end = coded_end,
	.free = coded_free,
};

/* Tells sizes, and tries the codec on zeros: its needs beside geometry show only there. */
static int set_codec(struct coded_kv *c, uint32_t value, struct kvr_error *ret_error)
{
	const struct kvr_geom *g = &c->kv.geom;
	struct kvp_plane *p = &c->plane[value];
	size_t raw = g->block_tokens * kvr_row_bytes(g), *bytes = &c->bytes[value];
	uint32_t codec = c->codec[value];
	char name[KVP_CODEC_NAME_MAX] = "?";
	void *zeros = NULL, *out = NULL;
	int r;

	*p = (struct kvp_plane){ g->block_tokens, g->kv_dim / c->head_dim, c->head_dim, g->dtype,
		value ? KVP_PLANE_V : KVP_PLANE_K };
	r = kvp_plane_bytes(codec, p, bytes);
	if (r == 0) {
		zeros = calloc(1, raw);
		if (!zeros || posix_memalign(&out, 64, *bytes) != 0)
			r = -ENOMEM;
	}
	if (r == 0) {
		struct kvp_raw_const src = { zeros, (ptrdiff_t)(kvr_row_bytes(g) / p->heads),
			(ptrdiff_t)kvr_row_bytes(g) };

		r = kvp_plane_encode(c->kernels, codec, p, NULL, src, out, *bytes);
	}
	free(zeros);
	free(out);
	if (r == 0 || r == -ENOMEM)
		return r;
	kvp_codec_name(codec, name);
	return kvr_fail(ret_error, -EINVAL,
		"the codec %s cannot hold %s of %u tokens and %u channels in %s, or needs what "
		"kvrun does not have (a calibration, widths)",
		name, value ? "values" : "keys", p->tokens, p->dim, kvr_dtype_name(g->dtype));
}

int kvr_kv_coded_new(const struct kvr_config *config, const struct kvr_geom *geom,
	const struct kvr_coded_opts *opts, struct kvr_kv *native, struct kvr_error *ret_error,
	struct kvr_kv **ret_kv)
{
	struct coded_kv *c;
	int r;

	if (!kvr_geom_valid(geom) || geom->kv_dim != config->kv_heads * config->head_dim ||
		(opts->mode == KVR_PRIMARY) != !native)
		return kvr_fail(ret_error, -EINVAL, "the store and the model do not agree");
	c = calloc(1, sizeof(*c));
	if (!c)
		return kvr_fail(ret_error, -ENOMEM, "no memory");
	c->kv = (struct kvr_kv){ &coded_ops, *geom, &c->coding };
	c->head_dim = config->head_dim;
	r = kvp_kernels_new(
		KVP_CPU_ALL | (opts->tiles ? KVP_CPU_TILES | KVP_CPU_BYTES : 0), &c->kernels);
	c->coding.kernels = c->kernels;
	for (uint32_t value = 0; r == 0 && value < 2; value++) {
		c->codec[value] = opts->codec[value];
		c->payload_at[value] = c->layer_bytes;
		r = set_codec(c, value, ret_error);
		c->layer_bytes += (c->bytes[value] + 63) & ~(size_t)63;
	}
	if (r == -ENOMEM)
		kvr_fail(ret_error, r, "no memory");
	if (r < 0) {
		coded_free(&c->kv);
		return r;
	}
	c->native = native;
	*ret_kv = &c->kv;
	return 0;
}

void kvr_kv_coded_report(struct kvr_kv *kv, struct kvr_coded_report *ret_report)
{
	struct coded_kv *c = coded_of(kv);
	struct kvr_coded_report report = {
		.native_bytes = c->spare ? kvr_block_bytes(&kv->geom) : 0,
		.errors = c->coding.errors,
	};

	for (uint32_t i = 0; i < c->n; i++) {
		const struct block *b = &c->block[i];

		report.blocks += b->coded != 0;
		report.bytes += b->coded ? kv->geom.layers * (c->bytes[0] + c->bytes[1]) : 0;
		report.native_bytes += c->native || b->native ? kvr_block_bytes(&kv->geom) : 0;
	}
	*ret_report = report;
}
