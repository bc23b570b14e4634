/* SPDX-License-Identifier: Apache-2.0 */
/* The table of codec families: for each its layout, and encode and decode of whole planes. */
#include "kernels/dsp.h"
#include "kernels/groups.h"
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

int kvp_layout_groups(struct kvp_layout *lay, uint32_t dim, uint32_t variant)
{
	uint32_t log2_group = (variant & ~KVP_CODEC_WIDE) >> 4;

	if (log2_group && log2_group < 3)
		return -EINVAL;
	lay->group = log2_group ? 1u << log2_group : dim;
	lay->groups = (dim + lay->group - 1) / lay->group;
	return 0;
}

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

static int layout_tq(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t v = KVP_CODEC_VARIANT(id);
	uint32_t bits = (v & 3u) + 1;
	uint32_t rotation = v >> 4 & 3u;
	struct kvp_layout lay = kvp_layout_new(p, bits);

	if (bits < 2 || (v >> 2 & 3u) > KVP_TQ_NC || rotation > KVP_ROT_HAAR)
		return -EINVAL;
	if (rotation != KVP_ROT_HAAR && kvp_hadamard_order(p->dim) < 0)
		return -EINVAL;
	lay.codes = kvp_layout_section(&lay, p->heads * p->tokens * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, p->heads * p->tokens * (v >> 7 ? 4 : 2));
	*ret = lay;
	return 0;
}

static int layout_hadamard(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t bits = KVP_CODEC_VARIANT(id);
	struct kvp_layout lay = kvp_layout_new(p, bits);

	if ((bits != 2 && bits != 4) || kvp_hadamard_order(p->dim) < 0)
		return -EINVAL;
	lay.codes = kvp_layout_section(&lay, p->heads * p->tokens * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, p->heads * p->tokens * 2);
	lay.minimum = kvp_layout_section(&lay, p->heads * p->tokens * 2);
	*ret = lay;
	return 0;
}

/* ---- encode and decode of whole planes ---- */

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

static const struct kvp_plane_hdr *header(const uint8_t *in)
{
	return (const struct kvp_plane_hdr *)(const void *)in;
}

static int encode_byte(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = header(out);

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

static int encode_asym(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = header(out);
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

static int decode_asym(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	uint32_t v = KVP_CODEC_VARIANT(hdr->codec), wide = v & KVP_CODEC_WIDE;
	kvp_asym_decode_fn *fn = wide ? kvp_asym_decode_wide : k->dsp.asym_decode;

	(void)calib;
	for (uint32_t h = 0; h < p->heads; h++) {
		size_t row = (size_t)h * p->tokens;
		size_t scal = row * lay->groups * scalar_bytes(wide);
		struct rows_out out = kvp_rows_out(p, dst, h, 0, p->tokens, hdr->exponent);

		fn(v & 15u, lay->group, in + lay->codes + row * lay->row_bytes,
			in + lay->scale + scal, in + lay->minimum + scal, &out);
	}
	return 0;
}

/* Keys' last, incomplete group stays as it was. */
static void kivi_tail(const struct kvp_plane *p, const struct kvp_layout *lay,
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
	const struct kvp_plane_hdr *hdr = header(out);
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
	kivi_tail(p, lay, src, out + lay->native);
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
		return decode_asym(k, p, lay, calib, hdr, in, dst);
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

int kvp_tq_init(struct tq *ret_tq, uint32_t variant, uint32_t dim, uint64_t seed,
	const struct kvp_calib *calib)
{
	uint32_t book = variant >> 6 & 1u;
	int r;

	ret_tq->bits = (variant & 3u) + 1;
	ret_tq->scalar = variant >> 2 & 3u;
	ret_tq->wide = variant >> 7 & 1u;
	r = kvp_codebook(
		ret_tq->bits, book == KVP_BOOK_SPHERE ? dim : 0, ret_tq->cent, ret_tq->bound);
	if (r < 0)
		return r;
	kvp_codebook_steps(ret_tq->bound, ret_tq->bits, ret_tq->step, ret_tq->step_abs);
	return kvp_rotation_init(&ret_tq->rot, variant >> 4 & 3u, dim, seed, calib);
}

static int encode_tq(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = header(out);
	struct tq tq;
	int r;

	r = kvp_tq_init(&tq, KVP_CODEC_VARIANT(hdr->codec), p->dim, hdr->seed, o->calib);
	if (r < 0)
		return r;
	for (uint32_t h = 0; h < p->heads; h++) {
		size_t row = (size_t)h * p->tokens;
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);

		k->dsp.tq_encode(&tq, &in, out + lay->codes + row * lay->row_bytes,
			out + lay->scale + row * (tq.wide ? 4 : 2));
	}
	return 0;
}

void kvp_tq_decode_plane(const struct kvp_kernels *k, const struct tq *tq,
	const struct kvp_plane *p, const struct kvp_layout *lay, int32_t exponent,
	const uint8_t *in, struct kvp_raw dst)
{
	for (uint32_t h = 0; h < p->heads; h++) {
		size_t row = (size_t)h * p->tokens;
		struct rows_out out = kvp_rows_out(p, dst, h, 0, p->tokens, exponent);

		k->dsp.tq_decode(tq, in + lay->codes + row * lay->row_bytes,
			in + lay->scale + row * (tq->wide ? 4 : 2), &out);
	}
}

static int decode_tq(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	struct tq tq;
	int r;

	r = kvp_tq_init(&tq, KVP_CODEC_VARIANT(hdr->codec), p->dim, hdr->seed, calib);
	if (r < 0)
		return r;
	kvp_tq_decode_plane(k, &tq, p, lay, hdr->exponent, in, dst);
	return 0;
}

static int encode_hadamard(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = header(out);
	struct rotation rot;
	int r;

	(void)o;
	r = kvp_rotation_init(&rot, KVP_ROT_H1, p->dim, hdr->seed, NULL);
	if (r < 0)
		return r;
	for (uint32_t h = 0; h < p->heads; h++) {
		size_t row = (size_t)h * p->tokens;
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);

		k->dsp.had_encode(KVP_CODEC_VARIANT(hdr->codec), &rot, &in,
			out + lay->codes + row * lay->row_bytes, out + lay->scale + row * 2,
			out + lay->minimum + row * 2);
	}
	return 0;
}

static int decode_hadamard(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	struct rotation rot;
	int r;

	(void)calib;
	r = kvp_rotation_init(&rot, KVP_ROT_H1, p->dim, hdr->seed, NULL);
	if (r < 0)
		return r;
	for (uint32_t h = 0; h < p->heads; h++) {
		size_t row = (size_t)h * p->tokens;
		struct rows_out out = kvp_rows_out(p, dst, h, 0, p->tokens, hdr->exponent);

		k->dsp.had_decode(KVP_CODEC_VARIANT(hdr->codec), &rot,
			in + lay->codes + row * lay->row_bytes, in + lay->scale + row * 2,
			in + lay->minimum + row * 2, &out);
	}
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

static const struct kvp_codec codecs[] = {
	{ .family = KVP_FAMILY_NATIVE,
		.name = "native",
		.layout = layout_native,
		.encode = encode_native,
		.decode = decode_native },
	{ .family = KVP_FAMILY_FP8,
		.name = "fp8",
		.layout = layout_byte,
		.encode = encode_byte,
		.decode = decode_byte },
	{ .family = KVP_FAMILY_INT8,
		.name = "int8",
		.layout = layout_byte,
		.encode = encode_byte,
		.decode = decode_byte },
	{ .family = KVP_FAMILY_KIVI,
		.name = "kivi",
		.layout = layout_kivi,
		.encode = encode_kivi,
		.decode = decode_kivi },
	{ .family = KVP_FAMILY_ASYM,
		.name = "asym",
		.layout = layout_asym,
		.encode = encode_asym,
		.decode = decode_asym },
	{ .family = KVP_FAMILY_TQ,
		.name = "tq",
		.layout = layout_tq,
		.encode = encode_tq,
		.decode = decode_tq },
	{ .family = KVP_FAMILY_HADAMARD,
		.name = "hadamard",
		.layout = layout_hadamard,
		.encode = encode_hadamard,
		.decode = decode_hadamard },
	{ .family = KVP_FAMILY_TQPROD,
		.name = "tqprod",
		.layout = kvp_layout_prod,
		.encode = kvp_encode_prod,
		.decode = kvp_decode_rows },
	{ .family = KVP_FAMILY_HYBRID,
		.name = "hybrid",
		.layout = kvp_layout_hybrid,
		.encode = kvp_encode_hybrid,
		.decode = kvp_decode_rows },
	{ .family = KVP_FAMILY_SMART,
		.name = "smart",
		.layout = kvp_layout_smart,
		.encode = kvp_encode_smart,
		.decode = kvp_decode_rows },
	{ .family = KVP_FAMILY_PUB_KIVI,
		.name = "pub-kivi",
		.layout = kvp_layout_pub_kivi,
		.encode = kvp_encode_pub_kivi,
		.decode = kvp_decode_rows },
	{ .family = KVP_FAMILY_PUB_AITHER,
		.name = "pub-aither",
		.layout = kvp_layout_pub_aither,
		.encode = kvp_encode_pub_aither,
		.decode = kvp_decode_rows },
	{ .family = KVP_FAMILY_PUB_VLLM,
		.name = "pub-vllm",
		.layout = kvp_layout_pub_vllm,
		.encode = kvp_encode_pub_vllm,
		.decode = kvp_decode_rows },
	{ .family = KVP_FAMILY_SYM,
		.name = "sym",
		.layout = kvp_layout_sym,
		.encode = kvp_encode_sym,
		.decode = kvp_decode_rows },
};

const struct kvp_codec *kvp_codec_row(uint32_t family)
{
	for (size_t i = 0; i < sizeof codecs / sizeof *codecs; i++)
		if (codecs[i].family == family)
			return &codecs[i];
	return NULL;
}
