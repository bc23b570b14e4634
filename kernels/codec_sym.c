/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sym, SmartKV's quantiser: symmetric, no zero point, one scale per group of channels. Reference C
 * on every machine, attended by decoding: min/max codes of the same size are better at few bits.
 */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <errno.h>
#include <math.h>

struct kvp_sym kvp_sym_init(uint32_t bits, uint32_t group, uint32_t wide, uint32_t dim)
{
	int32_t half = 1 << (bits - 1);

	/* 8 bits are int8: two's complement, whose lowest value is not used. */
	return (struct kvp_sym){
		.bits = bits,
		.group = group,
		.wide = wide,
		.dim = dim,
		.low = bits == 8 ? 1 - half : -half,
		.high = half - 1,
		.bias = bits == 8 ? 0 : half,
	};
}

void kvp_sym_encode(const struct kvp_sym *s, const float *x, uint8_t *codes, uint8_t *scale)
{
	const size_t size = scalar_bytes(s->wide);
	uint8_t code[KVP_PLANE_DIM_MAX];

	for (uint32_t at = 0; at < s->dim; at += s->group, scale += size) {
		uint32_t end = s->dim - at < s->group ? s->dim : at + s->group;
		float max = 0.0f, step, inv;

		for (uint32_t i = at; i < end; i++)
			max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
		step = store_scale(s->wide, scale, max / (float)s->high);
		inv = step > 0.0f ? 1.0f / step : 0.0f;
		for (uint32_t i = at; i < end; i++) {
			int32_t q = rne(x[i] * inv);

			q = q < s->low ? s->low : q > s->high ? s->high : q;
			code[i] = (uint8_t)(q + s->bias);
		}
	}
	kvp_row_pack(s->bits, s->dim, code, codes);
}

void kvp_sym_decode(
	const struct kvp_sym *s, const uint8_t *codes, const uint8_t *scale, float factor, float *x)
{
	const size_t size = scalar_bytes(s->wide);
	uint8_t code[KVP_PLANE_DIM_MAX];

	kvp_row_unpack(s->bits, s->dim, codes, code);
	for (uint32_t i = 0; i < s->dim; i++) {
		float step = load_scalar_as(s->wide, scale + size * (i / s->group), factor);
		int32_t q = s->bits == 8 ? (int8_t)code[i] : (int32_t)code[i] - s->bias;

		x[i] = (float)q * step;
	}
}

/* ---- the family of that name ---- */

static struct kvp_sym sym_of(
	uint32_t codec, const struct kvp_plane *p, const struct kvp_layout *lay)
{
	uint32_t v = KVP_CODEC_VARIANT(codec);

	return kvp_sym_init(v & 15u, lay->group, v & KVP_CODEC_WIDE, p->dim);
}

static int layout_sym(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t v = KVP_CODEC_VARIANT(id), bits = v & 15u, rows = p->heads * p->tokens;
	struct kvp_layout lay = kvp_layout_new(p, bits);

	if ((bits < 2 || bits > 4) && bits != 8)
		return -EINVAL;
	if (kvp_layout_groups(&lay, p->dim, v) < 0)
		return -EINVAL;
	lay.codes = kvp_layout_section(&lay, rows * lay.row_bytes);
	lay.scale = kvp_layout_section(
		&lay, rows * lay.groups * (uint32_t)scalar_bytes(v & KVP_CODEC_WIDE));
	*ret = lay;
	return 0;
}

static int encode_sym(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = kvp_header(out);
	const struct kvp_sym s = sym_of(hdr->codec, p, lay);
	const size_t scalars = lay->groups * scalar_bytes(s.wide);
	float x[KVP_PLANE_DIM_MAX];

	(void)k;
	(void)o;
	for (uint32_t h = 0; h < p->heads; h++) {
		const struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);

		for (uint32_t t = 0; t < p->tokens; t++) {
			size_t row = (size_t)h * p->tokens + t;

			kvp_row_load(&in, t, x);
			kvp_sym_encode(&s, x, out + lay->codes + row * lay->row_bytes,
				out + lay->scale + row * scalars);
		}
	}
	return 0;
}

static int rows_sym(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	const struct kvp_sym s = sym_of(codec, p, lay);
	const size_t scalars = lay->groups * scalar_bytes(s.wide);
	float x[KVP_PLANE_DIM_MAX];

	(void)k;
	(void)calib;
	for (uint32_t t = 0; t < out->n; t++) {
		size_t row = (size_t)head * p->tokens + first + t;

		kvp_sym_decode(&s, in + lay->codes + row * lay->row_bytes,
			in + lay->scale + row * scalars, out->scale, x);
		kvp_row_store(out, t, x);
	}
	return 0;
}

const struct kvp_codec kvp_codec_sym = {
	.family = KVP_FAMILY_SYM,
	.name = "sym",
	.names = { .bits_min = 2,
		.bits_max = 8,
		.bits_mask = 15,
		.options = { kvp_names_any_groups, kvp_names_wide } },
	.layout = layout_sym,
	.encode = encode_sym,
	.decode = kvp_decode_rows,
	.rows = rows_sym,
};
