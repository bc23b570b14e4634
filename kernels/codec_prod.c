/* SPDX-License-Identifier: Apache-2.0 */
/* tqprod: tq in bits - 1, and one bit a channel for what that leaves. C on every machine. */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <errno.h>
#include <math.h>

int kvp_prod_init(struct kvp_prod *p, uint32_t bits, uint32_t dim, uint64_t seed)
{
	float inv = 1.0f / (float)dim;
	int r;

	p->tq.bits = bits - 1;
	p->tq.scalar = KVP_TQ_PLAIN;
	p->tq.wide = 0;
	r = kvp_codebook(bits - 1, 0, p->tq.cent, p->tq.bound);
	if (!r)
		r = kvp_rotation_init(&p->tq.rot, KVP_ROT_H1, dim, seed, NULL);
	/*
	 * The sketch must be independent of the rotation, and its entries spread like those of a
	 * random rotation: the +-1 of one round overstate large components of the residual, which
	 * are not independent of the vector.
	 */
	if (!r)
		r = kvp_rotation_init(&p->sketch, KVP_ROT_H3, dim, seed + 1, NULL);
	/* 1 / (d^1.5 E|u|) for a coordinate u of a random unit vector; a Gaussian has sqrt(pi/2)/d.
	 */
	p->unit = 0x1.40d932p0f * inv * (1.0f - 0.25f * inv * (1.0f - 0.125f * inv));
	return r;
}

void kvp_prod_encode(const struct kvp_prod *p, float *x, const struct kvp_prod_row *to)
{
	uint32_t d = p->tq.rot.dim;
	float norm = sqrtf(kvp_dot_c(x, x, d));
	float inv = norm > 0.0f ? 1.0f / norm : 0.0f;
	uint8_t code[KVP_PLANE_DIM_MAX];
	float t = norm / (float)d;

	kvp_rotate_fwd(&p->tq.rot, x);
	for (uint32_t i = 0; i < d; i++) {
		x[i] *= inv;
		code[i] = 0;
		for (uint32_t j = 0; j + 1 < 1u << p->tq.bits; j++)
			code[i] += p->tq.bound[j] <= x[i];
		x[i] -= p->tq.cent[code[i]];
	}
	kvp_row_pack(p->tq.bits, d, code, to->codes);
	store_scalar(to->scale, t);
	store_scalar(to->residual, t * sqrtf(kvp_dot_c(x, x, d)));
	kvp_rotate_fwd(&p->sketch, x);
	for (uint32_t i = 0; i < d; i++)
		code[i] = x[i] < 0.0f;
	kvp_row_pack(1, d, code, to->signs);
}

void kvp_prod_decode(
	const struct kvp_prod *p, const struct kvp_prod_row *from, float scale, float *x)
{
	uint32_t d = p->tq.rot.dim;
	float t = load_scalar(from->scale, 1.0f), g = load_scalar(from->residual, 1.0f) * p->unit;
	uint8_t code[KVP_PLANE_DIM_MAX], sign[KVP_PLANE_DIM_MAX];

	kvp_row_unpack(p->tq.bits, d, from->codes, code);
	kvp_row_unpack(1, d, from->signs, sign);
	for (uint32_t i = 0; i < d; i++)
		x[i] = sign[i] ? -1.0f : 1.0f;
	kvp_rotate_inv(&p->sketch, x);
	for (uint32_t i = 0; i < d; i++)
		x[i] = t * p->tq.cent[code[i]] + g * x[i];
	kvp_rotate_inv(&p->tq.rot, x);
	for (uint32_t i = 0; i < d; i++)
		x[i] *= scale;
}

/* Of a codec id; 0 where it is none. */
static uint32_t prod_bits(uint32_t id)
{
	return KVP_CODEC_VARIANT(id) > 8 ? KVP_CODEC_VARIANT(id) - 8 : 0;
}

static struct kvp_prod_row prod_row(
	uint8_t *payload, const struct kvp_layout *lay, size_t row, uint32_t dim)
{
	return (struct kvp_prod_row){ payload + lay->codes + row * lay->row_bytes,
		payload + lay->extra + row * (dim / 8), payload + lay->scale + row * 2,
		payload + lay->minimum + row * 2 };
}

static int layout_prod(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t bits = prod_bits(id), rows = p->heads * p->tokens;
	struct kvp_layout lay = kvp_layout_new(p, bits - 1);

	if (bits < 2 || bits > 4 || kvp_hadamard_order(p->dim) < 0)
		return -EINVAL;
	lay.codes = kvp_layout_section(&lay, rows * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, rows * 2);
	lay.minimum = kvp_layout_section(&lay, rows * 2);
	lay.extra = kvp_layout_section(&lay, rows * (p->dim / 8));
	*ret = lay;
	return 0;
}

static int encode_prod(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = kvp_header(out);
	float x[KVP_PLANE_DIM_MAX];
	struct kvp_prod prod;
	int r = kvp_prod_init(&prod, prod_bits(hdr->codec), p->dim, hdr->seed);

	(void)k;
	(void)o;
	for (uint32_t h = 0; h < p->heads && !r; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);

		for (uint32_t t = 0; t < p->tokens; t++) {
			struct kvp_prod_row to =
				prod_row(out, lay, (size_t)h * p->tokens + t, p->dim);

			kvp_row_load(&in, t, x);
			kvp_prod_encode(&prod, x, &to);
		}
	}
	return r;
}

static int rows_prod(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	float x[KVP_PLANE_DIM_MAX];
	struct kvp_prod prod;
	int r = kvp_prod_init(&prod, prod_bits(codec), p->dim, kvp_header(in)->seed);

	(void)k;
	(void)calib;
	for (uint32_t t = 0; t < out->n && !r; t++) {
		struct kvp_prod_row from = prod_row((uint8_t *)(uintptr_t)in, lay,
			(size_t)head * p->tokens + first + t, p->dim);

		kvp_prod_decode(&prod, &from, out->scale, x);
		kvp_row_store(out, t, x);
	}
	return r;
}

const struct kvp_codec kvp_codec_tqprod = {
	.family = KVP_FAMILY_TQPROD,
	.name = "tqprod",
	.names = { .bits_min = 2, .bits_max = 4, .bits_bias = -8, .bits_mask = 15 },
	.facts = KVP_FACT_SEED,
	.layout = layout_prod,
	.encode = encode_prod,
	.decode = kvp_decode_rows,
	.rows = rows_prod,
};
