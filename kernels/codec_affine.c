/* SPDX-License-Identifier: Apache-2.0 */
/* Minimum and scale of groups: of a token's channels (asym), or of a channel's tokens (kivi). */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"

#include <errno.h>

static int layout_asym(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t v = KVP_CODEC_VARIANT(id), bits = v & 15u, scalars;
	struct kvp_layout lay = kvp_layout_new(p, bits);

	if (bits < 2 || bits > 4 || kvp_layout_groups(&lay, p->dim, v) < 0)
		return -EINVAL;
	scalars = p->heads * p->tokens * lay.groups * (uint32_t)scalar_bytes(v & KVP_CODEC_WIDE);
	lay.codes = kvp_layout_section(&lay, p->heads * p->tokens * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, scalars);
	lay.minimum = kvp_layout_section(&lay, scalars);
	*ret = lay;
	return 0;
}

static int encode_asym(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = kvp_header(out);
	uint32_t v = KVP_CODEC_VARIANT(hdr->codec), wide = v & KVP_CODEC_WIDE;
	kvp_asym_encode_fn *fn = wide ? kvp_asym_encode_wide : k->dsp.asym_encode;

	(void)o;
	for (uint32_t h = 0; h < p->heads; h++) {
		size_t row = (size_t)h * p->tokens;
		size_t scal = row * lay->groups * scalar_bytes(wide);
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);

		fn(v & 15u, lay->group, &in, out + lay->codes + row * lay->row_bytes,
			out + lay->scale + scal, out + lay->minimum + scal);
	}
	return 0;
}

static int rows_asym(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	uint32_t wide = KVP_CODEC_VARIANT(codec) & KVP_CODEC_WIDE;
	size_t row = (size_t)head * p->tokens + first;
	size_t scalars = row * lay->groups * scalar_bytes(wide);

	(void)calib;
	(wide ? kvp_asym_decode_wide : k->dsp.asym_decode)(KVP_CODEC_VARIANT(codec) & 15u,
		lay->group, in + lay->codes + row * lay->row_bytes, in + lay->scale + scalars,
		in + lay->minimum + scalars, out);
	return 0;
}

static struct kvp_in_place in_place_asym(uint32_t id, uint32_t kind)
{
	uint32_t v = KVP_CODEC_VARIANT(id);
	int apart =
		v & KVP_CODEC_WIDE || v >> 4 == 3; /* no kernel has fp32 scalars, or groups of 8 */

	(void)kind;
	return (struct kvp_in_place){ .form = apart ? KVP_FORMS : KVP_FORM_AFFINE,
		.bits = v & 15u,
		.rotation = KVP_ROT_NONE };
}

const struct kvp_codec kvp_codec_asym = {
	.family = KVP_FAMILY_ASYM,
	.name = "asym",
	.names = { .bits_min = 2,
		.bits_max = 4,
		.bits_mask = 15,
		.options = { kvp_names_any_groups, kvp_names_wide } },
	.layout = layout_asym,
	.encode = encode_asym,
	.decode = kvp_decode_rows,
	.rows = rows_asym,
	.in_place = in_place_asym,
};

static int layout_kivi(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t log2_group = KVP_CODEC_VARIANT(id) >> 4;
	struct kvp_layout lay;
	int r;

	if (log2_group < 4 || log2_group > 7)
		return -EINVAL;
	r = layout_asym(id, p, &lay);
	if (r < 0 || p->kind == KVP_PLANE_V) {
		if (!r)
			*ret = lay;
		return r;
	}
	lay = kvp_layout_new(p, KVP_CODEC_VARIANT(id) & 15u);
	lay.group = 1u << log2_group;
	lay.groups = p->tokens / lay.group;
	if (!lay.groups)
		return -EINVAL;
	lay.coded = lay.groups * lay.group;
	lay.codes = kvp_layout_section(&lay, p->heads * lay.coded * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, p->heads * lay.groups * p->dim * 2);
	lay.minimum = kvp_layout_section(&lay, p->heads * lay.groups * p->dim * 2);
	lay.native = kvp_layout_section(
		&lay, p->heads * (p->tokens - lay.coded) * p->dim * dtype_bytes(p->dtype));
	*ret = lay;
	return 0;
}

/* Keys' last, incomplete group stays as it was. */
void kvp_kivi_tail(const struct kvp_plane *p, const struct kvp_layout *lay,
	struct kvp_raw_const src, uint8_t *out)
{
	size_t row = (size_t)p->dim * dtype_bytes(p->dtype);

	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t t = lay->coded; t < p->tokens; t++) {
			memcpy(out,
				(const uint8_t *)src.data + (ptrdiff_t)h * src.head_stride +
					(ptrdiff_t)t * src.token_stride,
				row);
			out += row;
		}
	}
}

static int encode_kivi(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = kvp_header(out);
	uint32_t bits = KVP_CODEC_VARIANT(hdr->codec) & 15u;

	if (p->kind == KVP_PLANE_V)
		return encode_asym(k, p, lay, o, src, out);
	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t g = 0; g < lay->groups; g++) {
			size_t at = (size_t)h * lay->groups + g;
			struct rows_in in =
				kvp_rows_in(p, src, h, g * lay->group, lay->group, hdr->exponent);

			k->dsp.chan_encode(bits, &in,
				out + lay->codes + at * lay->group * lay->row_bytes,
				out + lay->scale + at * p->dim * 2,
				out + lay->minimum + at * p->dim * 2);
		}
	}
	kvp_kivi_tail(p, lay, src, out + lay->native);
	return 0;
}

static int decode_kivi(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	uint32_t bits = KVP_CODEC_VARIANT(hdr->codec) & 15u;
	const uint8_t *tail = in + lay->native;
	size_t row = (size_t)p->dim * dtype_bytes(p->dtype);

	if (p->kind == KVP_PLANE_V)
		return kvp_decode_rows(k, p, lay, calib, hdr, in, dst);
	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t g = 0; g < lay->groups; g++) {
			size_t at = (size_t)h * lay->groups + g;
			struct rows_out out =
				kvp_rows_out(p, dst, h, g * lay->group, lay->group, hdr->exponent);

			k->dsp.chan_decode(bits, in + lay->codes + at * lay->group * lay->row_bytes,
				in + lay->scale + at * p->dim * 2,
				in + lay->minimum + at * p->dim * 2, &out);
		}
		for (uint32_t t = lay->coded; t < p->tokens; t++) {
			memcpy((uint8_t *)dst.data + (ptrdiff_t)h * dst.head_stride +
					(ptrdiff_t)t * dst.token_stride,
				tail, row);
			tail += row;
		}
	}
	return 0;
}

static struct kvp_in_place in_place_kivi(uint32_t id, uint32_t kind)
{
	return (struct kvp_in_place){ .form = KVP_FORM_AFFINE,
		.bits = KVP_CODEC_VARIANT(id) & 15u,
		.per_channel = kind == KVP_PLANE_K,
		.rotation = KVP_ROT_NONE };
}

const struct kvp_codec kvp_codec_kivi = {
	.family = KVP_FAMILY_KIVI,
	.name = "kivi",
	.names = { .bits_min = 2,
		.bits_max = 4,
		.bits_mask = 15,
		.fallback = 5u << 4,
		.options = { kvp_names_groups } },
	.layout = layout_kivi,
	.encode = encode_kivi,
	.decode = decode_kivi,
	.rows = rows_asym, /* of values */
	.in_place = in_place_kivi,
};
