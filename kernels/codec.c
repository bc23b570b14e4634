/* SPDX-License-Identifier: Apache-2.0 */
/* The table of codec families, and what their functions share. */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <assert.h>
#include <errno.h>

#define HDR(field, at) \
	static_assert(offsetof(struct kvp_plane_hdr, field) == (at), "payload header: " #field)
HDR(magic, 0);
HDR(version, 4);
HDR(codec, 8);
HDR(bytes, 12);
HDR(tokens, 16);
HDR(heads, 18);
HDR(dim, 20);
HDR(dtype, 22);
HDR(kind, 23);
HDR(exponent, 24);
HDR(seed, 32);
HDR(calib, 40);
static_assert(sizeof(struct kvp_plane_hdr) == KVP_PLANE_HDR_BYTES, "payload header: size");

static const struct kvp_codec *const codecs[KVP_FAMILY_MAX_] = {
	[KVP_FAMILY_NATIVE] = &kvp_codec_native,
	[KVP_FAMILY_FP8] = &kvp_codec_fp8,
	[KVP_FAMILY_INT8] = &kvp_codec_int8,
	[KVP_FAMILY_KIVI] = &kvp_codec_kivi,
	[KVP_FAMILY_ASYM] = &kvp_codec_asym,
	[KVP_FAMILY_TQ] = &kvp_codec_tq,
	[KVP_FAMILY_HADAMARD] = &kvp_codec_hadamard,
	[KVP_FAMILY_TQPROD] = &kvp_codec_tqprod,
	[KVP_FAMILY_HYBRID] = &kvp_codec_hybrid,
	[KVP_FAMILY_SMART] = &kvp_codec_smart,
	[KVP_FAMILY_PUB_KIVI] = &kvp_codec_pub_kivi,
	[KVP_FAMILY_PUB_AITHER] = &kvp_codec_pub_aither,
	[KVP_FAMILY_PUB_VLLM] = &kvp_codec_pub_vllm,
	[KVP_FAMILY_SYM] = &kvp_codec_sym,
	[KVP_FAMILY_LOSSLESS] = &kvp_codec_lossless,
	[KVP_FAMILY_PCA] = &kvp_codec_pca,
	[KVP_FAMILY_KVQUANT] = &kvp_codec_kvquant,
	[KVP_FAMILY_SPECTRAL] = &kvp_codec_spectral,
	[KVP_FAMILY_SQUAT] = &kvp_codec_squat,
};

const struct kvp_codec *kvp_codec_row(uint32_t family)
{
	return family < KVP_FAMILY_MAX_ ? codecs[family] : NULL;
}

uint32_t kvp_codec_facts(uint32_t id)
{
	const struct kvp_codec *c = kvp_codec_row(KVP_CODEC_FAMILY(id));

	if (!c)
		return 0;
	return c->facts | (c->facts_of ? c->facts_of(KVP_CODEC_VARIANT(id)) : 0);
}

struct kvp_in_place kvp_codec_in_place(uint32_t id, uint32_t kind)
{
	const struct kvp_codec *c = kvp_codec_row(KVP_CODEC_FAMILY(id));

	if (!c || !c->in_place)
		return (struct kvp_in_place){ .form = KVP_FORMS, .rotation = KVP_ROT_NONE };
	return c->in_place(id, kind);
}

/* ---- layouts ---- */

/* Appends a section to the payload and returns its offset. */
uint32_t kvp_layout_section(struct kvp_layout *lay, uint32_t bytes)
{
	uint32_t at = (lay->bytes + KVP_SECTION_ALIGN - 1) & ~(KVP_SECTION_ALIGN - 1);

	if (!bytes)
		return 0;
	lay->bytes = at + bytes;
	return at;
}

struct kvp_layout kvp_layout_new(const struct kvp_plane *p, uint32_t bits)
{
	return (struct kvp_layout){
		.row_bytes = kvp_row_bytes(bits, p->dim),
		.groups = 1,
		.group = p->dim,
		.coded = p->tokens,
		.bytes = KVP_PLANE_HDR_BYTES,
	};
}

int kvp_layout_groups(struct kvp_layout *lay, uint32_t dim, uint32_t variant)
{
	uint32_t log2_group = (variant & ~KVP_CODEC_WIDE) >> 4;

	if (log2_group && log2_group < 3)
		return -EINVAL;
	lay->group = log2_group ? 1u << log2_group : dim;
	lay->groups = (dim + lay->group - 1) / lay->group;
	return 0;
}

/* ---- rows ---- */

struct rows_in kvp_rows_in(const struct kvp_plane *p, struct kvp_raw_const src, uint32_t head,
	uint32_t first, uint32_t n, int32_t exponent)
{
	return (struct rows_in){
		.data = (const uint8_t *)src.data + (ptrdiff_t)head * src.head_stride +
			(ptrdiff_t)first * src.token_stride,
		.stride = src.token_stride,
		.n = n,
		.dim = p->dim,
		.dtype = p->dtype,
		.scale = pow2f(-exponent),
	};
}

struct rows_out kvp_rows_out(const struct kvp_plane *p, struct kvp_raw dst, uint32_t head,
	uint32_t first, uint32_t n, int32_t exponent)
{
	return (struct rows_out){
		.data = (uint8_t *)dst.data + (ptrdiff_t)head * dst.head_stride +
			(ptrdiff_t)first * dst.token_stride,
		.stride = dst.token_stride,
		.n = n,
		.dim = p->dim,
		.dtype = p->dtype,
		.scale = pow2f(exponent),
	};
}

void kvp_row_load(const struct rows_in *in, uint32_t t, float *x)
{
	const uint8_t *row = in->data + (ptrdiff_t)t * in->stride;

	for (uint32_t i = 0; i < in->dim; i++)
		x[i] = sanitize(load_element(row, in->dtype, i), in->scale);
}

void kvp_row_store(const struct rows_out *out, uint32_t t, const float *x)
{
	uint8_t *row = out->data + (ptrdiff_t)t * out->stride;

	for (uint32_t i = 0; i < out->dim; i++)
		store_element(row, out->dtype, i, x[i]);
}

int kvp_rows_decode(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	return kvp_codec_row(KVP_CODEC_FAMILY(codec))
		->rows(k, codec, p, lay, calib, in, head, first, out);
}

int kvp_decode_rows(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	int r = 0;

	for (uint32_t h = 0; h < p->heads && !r; h++) {
		struct rows_out out = kvp_rows_out(p, dst, h, 0, p->tokens, hdr->exponent);

		r = kvp_rows_decode(k, hdr->codec, p, lay, calib, in, h, 0, &out);
	}
	return r;
}
