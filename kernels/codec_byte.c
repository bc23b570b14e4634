/* SPDX-License-Identifier: Apache-2.0 */
/* Elements as they are, and in a byte each: native, fp8, int8. */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"

#include <errno.h>

static int layout_native(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t row = p->dim * dtype_bytes(p->dtype);

	if (KVP_CODEC_VARIANT(id))
		return -EINVAL;
	*ret = (struct kvp_layout){
		.row_bytes = row,
		.coded = p->tokens,
		.bytes = p->heads * p->tokens * row,
	};
	return 0;
}

static int encode_native(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	(void)k;
	(void)o;
	for (uint32_t h = 0; h < p->heads; h++)
		for (uint32_t t = 0; t < p->tokens; t++)
			memcpy(out + ((size_t)h * p->tokens + t) * lay->row_bytes,
				(const uint8_t *)src.data + (ptrdiff_t)h * src.head_stride +
					(ptrdiff_t)t * src.token_stride,
				lay->row_bytes);
	return 0;
}

static int decode_native(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	(void)k;
	(void)calib;
	(void)hdr;
	for (uint32_t h = 0; h < p->heads; h++)
		for (uint32_t t = 0; t < p->tokens; t++)
			memcpy((uint8_t *)dst.data + (ptrdiff_t)h * dst.head_stride +
					(ptrdiff_t)t * dst.token_stride,
				in + ((size_t)h * p->tokens + t) * lay->row_bytes, lay->row_bytes);
	return 0;
}

static struct kvp_in_place in_place_native(uint32_t id, uint32_t kind)
{
	(void)id;
	(void)kind;
	return (struct kvp_in_place){ .form = KVP_FORM_NATIVE, .rotation = KVP_ROT_NONE };
}

const struct kvp_codec kvp_codec_native = {
	.family = KVP_FAMILY_NATIVE,
	.name = "native",
	.facts = KVP_FACT_BARE,
	.layout = layout_native,
	.encode = encode_native,
	.decode = decode_native,
	.in_place = in_place_native,
};

static int layout_byte(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	struct kvp_layout lay = kvp_layout_new(p, 8);

	if (id != KVP_CODEC_INT8 && id != KVP_CODEC_FP8_E4M3 && id != KVP_CODEC_FP8_E5M2)
		return -EINVAL;
	lay.codes = kvp_layout_section(&lay, p->heads * p->tokens * p->dim);
	lay.scale = kvp_layout_section(&lay, p->heads * p->tokens * 2);
	*ret = lay;
	return 0;
}

static int encode_byte(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = kvp_header(out);

	(void)o;
	for (uint32_t h = 0; h < p->heads; h++) {
		size_t row = (size_t)h * p->tokens;
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);

		k->dsp.byte_encode(hdr->codec, &in, out + lay->codes + row * p->dim,
			out + lay->scale + row * 2);
	}
	return 0;
}

static int decode_byte(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{

	(void)calib;
	for (uint32_t h = 0; h < p->heads; h++) {
		size_t row = (size_t)h * p->tokens;
		struct rows_out out = kvp_rows_out(p, dst, h, 0, p->tokens, hdr->exponent);

		k->dsp.byte_decode(hdr->codec, in + lay->codes + row * p->dim,
			in + lay->scale + row * 2, &out);
	}
	return 0;
}

static struct kvp_in_place in_place_byte(uint32_t id, uint32_t kind)
{
	(void)kind;
	return (struct kvp_in_place){ .form = id == KVP_CODEC_INT8 ? KVP_FORM_INT8 : KVP_FORM_FP8,
		.format = id,
		.rotation = KVP_ROT_NONE };
}

static const struct kvp_name_option formats[] = { { "-e5m2", KVP_FP8_E5M2 }, { NULL, 0 } };

const struct kvp_codec kvp_codec_fp8 = {
	.family = KVP_FAMILY_FP8,
	.name = "fp8",
	.names = { .options = { formats } },
	.layout = layout_byte,
	.encode = encode_byte,
	.decode = decode_byte,
	.in_place = in_place_byte,
};

const struct kvp_codec kvp_codec_int8 = {
	.family = KVP_FAMILY_INT8,
	.name = "int8",
	.layout = layout_byte,
	.encode = encode_byte,
	.decode = decode_byte,
	.in_place = in_place_byte,
};
