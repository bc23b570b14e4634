/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of rotated vectors: TurboQuant (tq), and minimum and scale behind a rotation (hadamard). */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"

#include <errno.h>

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
	const struct kvp_plane_hdr *hdr = kvp_header(out);
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

static int prepare_tq(
	uint32_t id, uint32_t dim, uint64_t seed, const struct kvp_calib *calib, struct tq *ret_tq)
{
	return kvp_tq_init(ret_tq, KVP_CODEC_VARIANT(id), dim, seed, calib);
}

static void decode_prepared_tq(const struct kvp_kernels *k, const struct tq *tq,
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
	decode_prepared_tq(k, &tq, p, lay, hdr->exponent, in, dst);
	return 0;
}

static uint32_t facts_tq(uint32_t variant)
{
	return (variant >> 4 & 3u) == KVP_ROT_HAAR ? KVP_FACT_MATRIX : KVP_FACT_SEED;
}

static const struct kvp_name_option tq_scalar[] = { { "-plain", KVP_TQ_PLAIN << 2 },
	{ "-nc", KVP_TQ_NC << 2 }, { NULL, 0 } };
static const struct kvp_name_option tq_rotation[] = { { "-h3", KVP_ROT_H3 << 4 },
	{ "-haar", KVP_ROT_HAAR << 4 }, { NULL, 0 } };
static const struct kvp_name_option tq_book[] = { { "-sphere", KVP_BOOK_SPHERE << 6 },
	{ NULL, 0 } };
static const struct kvp_name_option tq_wide[] = { { "-wide", 1u << 7 }, { NULL, 0 } };

static struct kvp_in_place in_place_tq(uint32_t id, uint32_t kind)
{
	uint32_t v = KVP_CODEC_VARIANT(id);

	(void)kind;
	return (struct kvp_in_place){ .form = KVP_FORM_BOOK,
		.bits = (v & 3u) + 1,
		.format = v >> 7,
		.rotation = v >> 4 & 3u,
		.book = v >> 6 & 1u };
}

const struct kvp_codec kvp_codec_tq = {
	.family = KVP_FAMILY_TQ,
	.name = "tq",
	.names = { .bits_min = 2,
		.bits_max = 4,
		.bits_bias = 1,
		.bits_mask = 3,
		.options = { tq_scalar, tq_rotation, tq_book, tq_wide } },
	.facts_of = facts_tq,
	.layout = layout_tq,
	.encode = encode_tq,
	.decode = decode_tq,
	.prepare = prepare_tq,
	.decode_prepared = decode_prepared_tq,
	.in_place = in_place_tq,
};

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

static int encode_hadamard(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = kvp_header(out);
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

static struct kvp_in_place in_place_hadamard(uint32_t id, uint32_t kind)
{
	(void)kind;
	return (struct kvp_in_place){ .form = KVP_FORM_AFFINE,
		.bits = KVP_CODEC_VARIANT(id),
		.rotation = KVP_ROT_H1,
		.unit = 1 };
}

const struct kvp_codec kvp_codec_hadamard = {
	.family = KVP_FAMILY_HADAMARD,
	.name = "hadamard",
	.names = { .bits_min = 2, .bits_max = 4, .bits_mask = 15 },
	.facts = KVP_FACT_SEED,
	.layout = layout_hadamard,
	.encode = encode_hadamard,
	.decode = decode_hadamard,
	.in_place = in_place_hadamard,
};
