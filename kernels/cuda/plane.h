/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the parts of one vector lie in a plane, what its codes and scalars are as numbers, and the
 * rotation of a vector of any dim in shared memory. Private to kernels/cuda.
 */
#ifndef KVP_CUDA_PLANE_H
#define KVP_CUDA_PLANE_H

#include "kernels/cuda/row.h"

/* Where one row lies. */
struct row_at {
	uint8_t *raw;
	uint8_t *plane;
	uint32_t head;
	uint32_t token; /* of the page */
	int32_t exponent;
};

KVP_DEV int32_t plane_exponent(const struct kvp_cuda_codec *c, const uint8_t *plane)
{
	return c->id == KVP_CODEC_NATIVE ? 0 : (int32_t)kvp_ldg_u32(plane + 24);
}

/* Number of the row among those of a section [head][token]. */
KVP_DEV uint32_t row_index(const struct kvp_cuda_codec *c, const struct row_at *row)
{
	return row->head * c->coded + row->token;
}

KVP_DEV uint8_t *row_codes(const struct kvp_cuda_codec *c, const struct row_at *row)
{
	return row->plane + c->codes + row_index(c, row) * c->row_bytes;
}

/* Elements as they are: of the native codec, and of the incomplete group of kivi keys. */
KVP_DEV uint8_t *native_row(const struct kvp_cuda_codec *c, const struct row_at *row)
{
	uint32_t size = c->dtype == KVP_DTYPE_F32 ? 4 : c->dtype == KVP_DTYPE_F8 ? 1 : 2;
	uint32_t first = c->id == KVP_CODEC_NATIVE ? 0 : c->coded;

	return row->plane + c->native +
	       ((uint64_t)row->head * (c->tokens - first) + row->token - first) * c->dim * size;
}

/* ---- codes ---- */

/* Bits of element i's code, as they lie in a 1, 2, 4 or 8-bit row. */
KVP_DEV uint32_t field(const uint8_t *codes, uint32_t dim, uint32_t bits, uint32_t i)
{
	uint32_t per = dim * bits / 8; /* bytes of the row = codes that share a bit position */

	return kvp_ldg_u8(codes + i % per) >> (i / per * bits) & ((1u << bits) - 1);
}

KVP_DEV uint32_t load_code(const uint8_t *codes, uint32_t dim, uint32_t bits, uint32_t i)
{
	if (bits == 3)
		return field(codes, dim, 2, i) |
		       (kvp_ldg_u8(codes + dim / 4 + i / 8) >> (i % 8) & 1u) << 2;
	return field(codes, dim, bits, i);
}

KVP_DEV float from_fp8(uint32_t code, int32_t man, int32_t min_exp, uint32_t max)
{
	uint32_t a = code & 0x7fu, exp = a >> man;
	float m = (float)(a & ((1u << man) - 1)), f;

	if (a > max)
		return 0.0f;
	if (exp)
		m += (float)(1u << man);
	f = m * pow2i(min_exp - man + (exp ? (int32_t)exp - 1 : 0));
	return code & 0x80u ? -f : f;
}

/* Of the codecs with 8-bit codes. */
KVP_DEV float byte_value(uint32_t id, uint32_t code)
{
	if (id == KVP_CODEC_FP8_E4M3)
		return from_fp8(code, 3, -6, 0x7e);
	if (id == KVP_CODEC_FP8_E5M2)
		return from_fp8(code, 2, -14, 0x7b);
	return (float)((int32_t)(code ^ 0x80u) - 128);
}

/* ---- scalars ---- */

/* The one scalar of a row in tq, fp8 and int8. */
KVP_DEV float row_scalar(const struct kvp_cuda_codec *c, const struct row_at *row)
{
	const uint8_t *scale = row->plane + c->scale;
	float t = c->wide ? scalar_f32(kvp_ldg_f32(scale + 4 * row_index(c, row)))
			  : scalar_f16(kvp_ldg_u16(scale + 2 * row_index(c, row)));

	return clamp_to(t * pow2i(row->exponent), F32_LARGEST);
}

/* Keys of kivi: scalars per group of tokens and channel, not per token. */
KVP_DEV int per_channel(const struct kvp_cuda_codec *c)
{
	return c->kind == KVP_PLANE_K && KVP_CODEC_FAMILY(c->id) == KVP_FAMILY_KIVI;
}

/* Number of the scalars of element i in kivi and asym. */
KVP_DEV uint32_t scalar_index(const struct kvp_cuda_codec *c, const struct row_at *row, uint32_t i)
{
	if (per_channel(c))
		return (row->head * c->groups + row->token / c->group) * c->dim + i;
	return row_index(c, row) * c->groups + i / c->group;
}

/* Element i of kivi and asym, but for the plane's exponent. */
KVP_DEV float affine_value(
	const struct kvp_cuda_codec *c, const struct row_at *row, const uint8_t *codes, uint32_t i)
{
	uint32_t at = scalar_index(c, row, i);
	float s = scalar_f16(kvp_ldg_u16(row->plane + c->scale + 2 * at));
	float m = scalar_f16(kvp_ldg_u16(row->plane + c->minimum + 2 * at));

	return (float)load_code(codes, c->dim, c->bits, i) * s + m;
}

/* ---- rotation of a row in shared memory ---- */

/*
 * A vector of any dim that has a rotation, worked on by one warp: floats at byte offset `x`, behind
 * them as many of scratch. Outside of these functions lane l touches the elements l, l + 32, ...
 * only, and no barrier is needed.
 */
struct mem_row {
	uint32_t x;
	uint32_t dim;
};

KVP_DEV struct mem_row mem_row(uint32_t dim, uint32_t at)
{
	struct mem_row m = { at, dim };

	return m;
}

/* Byte offset of element i, and of its place in the scratch. */
KVP_DEV uint32_t mem_x(struct mem_row m, uint32_t i)
{
	return m.x + 4 * i;
}
KVP_DEV uint32_t mem_y(struct mem_row m, uint32_t i)
{
	return m.x + 4 * (m.dim + i);
}

KVP_DEV void mem_scale(struct mem_row m, float f, uint32_t lane)
{
	for (uint32_t i = lane; i < m.dim; i += 32)
		kvp_sts_f32(mem_x(m, i), kvp_lds_f32(mem_x(m, i)) * f);
}

KVP_DEV void mem_flip(struct mem_row m, const uint32_t *sign, uint32_t lane)
{
	for (uint32_t i = lane; i < m.dim; i += 32)
		kvp_sts_u32(mem_x(m, i), kvp_lds_u32(mem_x(m, i)) ^ (sign[i / 32] >> (i % 32) & 1u)
									    << 31);
}

KVP_DEV void mem_from_scratch(struct mem_row m, uint32_t lane)
{
	kvp_syncwarp();
	for (uint32_t i = lane; i < m.dim; i += 32)
		kvp_sts_f32(mem_x(m, i), kvp_lds_f32(mem_y(m, i)));
}

KVP_DEV void mem_paley(
	const struct kvp_cuda_rotation *rot, struct mem_row m, int transpose, uint32_t lane)
{
	uint32_t span = m.dim / rot->order;

	for (uint32_t i = lane; i < m.dim; i += 32) {
		uint32_t a = i / span, b = i % span;
		float sum = 0.0f;

		for (uint32_t j = 0; j < rot->order; j++) {
			uint64_t minus = transpose ? rot->paley[j] >> a : rot->paley[a] >> j;
			float v = kvp_lds_f32(mem_x(m, j * span + b));

			v = minus & 1u ? -v : v;
			sum = j ? sum + v : v;
		}
		kvp_sts_f32(mem_y(m, i), sum);
	}
	mem_from_scratch(m, lane);
}

KVP_DEV void mem_hadamard(
	const struct kvp_cuda_rotation *rot, struct mem_row m, int transpose, uint32_t lane)
{
	kvp_syncwarp();
	for (uint32_t h = 1; h < m.dim / rot->order; h *= 2) {
		for (uint32_t j = lane; j < m.dim / 2; j += 32) {
			uint32_t i = (j & ~(h - 1)) * 2 + (j & (h - 1));
			float a = kvp_lds_f32(mem_x(m, i)), b = kvp_lds_f32(mem_x(m, i + h));

			kvp_sts_f32(mem_x(m, i), a + b);
			kvp_sts_f32(mem_x(m, i + h), a - b);
		}
		kvp_syncwarp();
	}
	if (rot->order > 1)
		mem_paley(rot, m, transpose, lane);
}

/* Sums over ascending j from 0, as the reference has them; a variant for parity, not for speed. */
KVP_DEV void mem_dense(
	const struct kvp_cuda_rotation *rot, struct mem_row m, int transpose, uint32_t lane)
{
	kvp_syncwarp();
	for (uint32_t i = lane; i < m.dim; i += 32) {
		uint64_t first = transpose ? i : (uint64_t)i * m.dim, step = transpose ? m.dim : 1;
		float sum = 0.0f;

		for (uint32_t j = 0; j < m.dim; j++)
			sum += kvp_ldg_f32(
				       at_const(rot->dense, (int64_t)(4 * (first + j * step)))) *
			       kvp_lds_f32(mem_x(m, j));
		kvp_sts_f32(mem_y(m, i), sum);
	}
	mem_from_scratch(m, lane);
	mem_scale(m, rot->rescale, lane);
}

/* R x, and R^T x; R R^T = dim I. */
KVP_DEV void mem_rotate(const struct kvp_cuda_rotation *rot, struct mem_row m, uint32_t lane)
{
	if (rot->dense)
		mem_dense(rot, m, 0, lane);
	for (uint32_t r = 0; r < rot->rounds; r++) {
		mem_flip(m, rot->sign[r], lane);
		mem_hadamard(rot, m, 0, lane);
		if (r == 1)
			mem_scale(m, rot->rescale, lane);
	}
}

KVP_DEV void mem_unrotate(const struct kvp_cuda_rotation *rot, struct mem_row m, uint32_t lane)
{
	if (rot->dense)
		mem_dense(rot, m, 1, lane);
	for (uint32_t r = rot->rounds; r-- > 0;) {
		mem_hadamard(rot, m, 1, lane);
		mem_flip(m, rot->sign[r], lane);
		if (r == 1)
			mem_scale(m, rot->rescale, lane);
	}
}

#endif
