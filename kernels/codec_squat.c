/* SPDX-License-Identifier: Apache-2.0 */
/*
 * squat: payloads of kivi, written so that keys' errors lie where queries do not look. Channels are rounded
 * block by block; what a block's error is along the queries' axes, the channels after it make up for.
 */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/squat.h"

#include <errno.h>

#define GROUP_MAX 128u /* tokens */
#define BLOCK     KVP_SQUAT_BLOCK

static int layout_squat(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	return kvp_codec_kivi.layout(id, p, ret);
}

/* One group of one head while its blocks are coded. */
struct coding {
	const struct kvp_kernels *k;
	uint32_t bits;
	struct rows_in in; /* all channels of the group */
	struct squat_part part;
	uint32_t at; /* the block's first channel */
	float sum[GROUP_MAX][KVP_SQUAT_RANK_MAX];
	float x[GROUP_MAX][BLOCK];
	uint8_t codes[GROUP_MAX * BLOCK / 2]; /* rows of the block's channels alone */
};

/* The block's channels in the rows of the plane. */
static struct rows_in block_in(const struct coding *c)
{
	struct rows_in in = c->in;

	in.data += (size_t)c->at * dtype_bytes(in.dtype);
	in.dim = c->part.n;
	return in;
}

static void load_block(struct coding *c)
{
	const struct rows_in in = block_in(c);

	for (uint32_t t = 0; t < in.n; t++) {
		c->k->dsp.squat_load(&in, t, c->x[t]);
		if (c->at)
			c->k->dsp.squat_bend(&c->part, c->sum[t], c->x[t]);
	}
}

/* What the block has lost, along the axes. */
static void see_block(struct coding *c, const uint8_t *scale, const uint8_t *minimum)
{
	const struct rows_in in = block_in(c);
	const struct rows_out out = { (uint8_t *)c->x, sizeof c->x[0], in.n, in.dim, KVP_DTYPE_F32,
		1.0f };
	float x[BLOCK];

	c->k->dsp.chan_decode(c->bits, c->codes, scale, minimum, &out);
	for (uint32_t t = 0; t < in.n; t++) {
		c->k->dsp.squat_load(&in, t, x);
		c->k->dsp.squat_see(&c->part, x, c->x[t], c->sum[t]);
	}
}

static void code_block(struct coding *c, uint8_t *rows, uint8_t *scale, uint8_t *minimum)
{
	const struct rows_in in = { (const uint8_t *)c->x, sizeof c->x[0], c->in.n, c->part.n,
		KVP_DTYPE_F32, 1.0f };
	const uint32_t own = kvp_row_bytes(c->bits, c->part.n);
	const uint32_t row = kvp_row_bytes(c->bits, c->in.dim);

	load_block(c);
	c->k->dsp.chan_encode(c->bits, &in, c->codes, scale, minimum);
	for (uint32_t t = 0; t < in.n; t++)
		c->k->dsp.squat_place(c->bits, &c->part, c->at, c->codes + (size_t)t * own,
			rows + (size_t)t * row);
}

static void code_group(struct coding *c, const struct kvp_squat *s, uint32_t head, uint8_t *rows,
	uint8_t *scale, uint8_t *minimum)
{
	const uint32_t dim = c->in.dim;
	const float *seen = s->seen + (size_t)head * dim * s->lanes;
	const float *bends = s->bend + (size_t)head * s->o.rank * dim;

	memset(rows, 0, (size_t)c->in.n * kvp_row_bytes(c->bits, dim));
	memset(c->sum, 0, sizeof c->sum[0] * c->in.n);
	for (c->at = 0; c->at < dim; c->at += s->o.block) {
		const uint32_t n = dim - c->at < s->o.block ? dim - c->at : s->o.block;

		c->part = (struct squat_part){ seen + (size_t)c->at * s->lanes, bends + c->at, n,
			s->o.rank, s->lanes, dim };
		code_block(c, rows, scale + 2 * (size_t)c->at, minimum + 2 * (size_t)c->at);
		if (c->at + n < dim)
			see_block(c, scale + 2 * (size_t)c->at, minimum + 2 * (size_t)c->at);
	}
}

static int encode_squat(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = kvp_header(out);
	struct coding c = { .k = k, .bits = KVP_CODEC_VARIANT(hdr->codec) & 15u };

	if (p->kind == KVP_PLANE_V)
		return kvp_codec_kivi.encode(k, p, lay, o, src, out);
	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t g = 0; g < lay->groups; g++) {
			const size_t at = (size_t)h * lay->groups + g;

			c.in = kvp_rows_in(p, src, h, g * lay->group, lay->group, hdr->exponent);
			code_group(&c, o->queries, h,
				out + lay->codes + at * lay->group * lay->row_bytes,
				out + lay->scale + at * p->dim * 2,
				out + lay->minimum + at * p->dim * 2);
		}
	}
	kvp_kivi_tail(p, lay, src, out + lay->native);
	return 0;
}

static int decode_squat(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	return kvp_codec_kivi.decode(k, p, lay, calib, hdr, in, dst);
}

static int rows_squat(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	return kvp_codec_kivi.rows(k, codec, p, lay, calib, in, head, first, out);
}

static struct kvp_in_place in_place_squat(uint32_t id, uint32_t kind)
{
	return kvp_codec_kivi.in_place(id, kind);
}

const struct kvp_codec kvp_codec_squat = {
	.family = KVP_FAMILY_SQUAT,
	.name = "squat",
	.names = { .bits_min = 2,
		.bits_max = 4,
		.bits_mask = 15,
		.fallback = 5u << 4,
		.options = { kvp_names_groups } },
	.facts = KVP_FACT_QUERIES,
	.layout = layout_squat,
	.encode = encode_squat,
	.decode = decode_squat,
	.rows = rows_squat,
	.in_place = in_place_squat,
};
