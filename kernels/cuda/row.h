/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of this folder share: number formats and the rotation of one row by one warp.
 * Private to kernels/cuda. The formulas are those of docs/formats.md and kernels/numeric.h, in the
 * same order, so that every stored byte is the same.
 *
 * A row in registers: element 32 e + lane is x[e], e < E = dim / 32.
 */
#ifndef KVP_CUDA_ROW_H
#define KVP_CUDA_ROW_H

#include "kernels/cuda/kvp_cuda_kernels.h"
#include "kernels/cuda/kvp_cuda_prims.h"

#define ROW_E_MAX    8 /* rows in registers: dims 64, 128, 256 */
#define INPUT_MAX    1024.0f
#define F16_LARGEST  65504.0f
#define BF16_LARGEST 3.38953138925153547590470800371487866880e38f
#define F32_LARGEST  3.40282346638528859811704183484516925440e38f

/* 2^e, -126 <= e <= 127 */
KVP_DEV float pow2i(int32_t e)
{
	return kvp_bits_f32((uint32_t)(e + 127) << 23);
}

KVP_DEV float clamp_to(float f, float max)
{
	f = f > max ? max : f;
	return f < -max ? -max : f;
}

KVP_DEV const uint8_t *at_const(uint64_t base, int64_t offset)
{
	return (const uint8_t *)(uintptr_t)(base + (uint64_t)offset);
}

KVP_DEV uint8_t *at(uint64_t base, int64_t offset)
{
	return (uint8_t *)(uintptr_t)(base + (uint64_t)offset);
}

KVP_DEV float load_raw(const uint8_t *row, uint32_t dtype, uint32_t i)
{
	if (dtype == KVP_DTYPE_F32)
		return kvp_ldg_f32(row + 4 * i);
	if (dtype == KVP_DTYPE_F16)
		return kvp_f16_to_f32(kvp_ldg_u16(row + 2 * i));
	return kvp_bits_f32(kvp_ldg_u16(row + 2 * i) << 16);
}

/* NaN counts as 0, the rest is scaled and bounded. */
KVP_DEV float sanitize(float f, float scale)
{
	if (f != f)
		return 0.0f;
	return clamp_to(f * scale, INPUT_MAX);
}

KVP_DEV int is_finite(float f)
{
	return (kvp_f32_bits(f) & 0x7f800000u) != 0x7f800000u;
}

/* Stores f, saturating; a NaN stays one. */
KVP_DEV void store_raw(uint8_t *row, uint32_t dtype, uint32_t i, float f)
{
	if (dtype == KVP_DTYPE_F32)
		kvp_stg_f32(row + 4 * i, clamp_to(f, F32_LARGEST));
	else if (dtype == KVP_DTYPE_F16)
		kvp_stg_u16(row + 2 * i, kvp_f32_to_f16_rn(clamp_to(f, F16_LARGEST)));
	else
		kvp_stg_u16(row + 2 * i, kvp_pack_bf16(clamp_to(f, BF16_LARGEST), 0.0f) & 0xffffu);
}

/* fp16 bits of a scalar as a number; infinities and NaN, which no encoder writes, count as 0. */
KVP_DEV float scalar_f16(uint32_t h)
{
	return (h & 0x7c00u) == 0x7c00u ? 0.0f : kvp_f16_to_f32(h);
}

KVP_DEV float scalar_f32(float f)
{
	return (kvp_f32_bits(f) & 0x7f800000u) == 0x7f800000u ? 0.0f : f;
}

/* Round to nearest even, |f| < 2^22. */
KVP_DEV int32_t rne(float f)
{
	return (int32_t)(kvp_f32_bits(f + 12582912.0f) - 0x4b400000u);
}

/* The sum over the warp in the reference's tree: lane i takes lane i + 16, then + 8, ... */
KVP_DEV float warp_sum(float v)
{
	KVP_UNROLL
	for (uint32_t m = 16; m > 0; m /= 2)
		v += kvp_shfl_xor_f32(v, m);
	return v;
}

/* Sum of a[i] * b[i]: 32 running sums over ascending i, then the tree. */
KVP_DEV float row_dot(const float *a, const float *b, const int E)
{
	float sum = 0.0f;

	KVP_UNROLL
	for (int e = 0; e < E; e++)
		sum += a[e] * b[e];
	return warp_sum(sum);
}

KVP_DEV void row_flip(float *x, const uint32_t *sign, uint32_t lane, const int E)
{
	KVP_UNROLL
	for (int e = 0; e < E; e++)
		x[e] = kvp_bits_f32(kvp_f32_bits(x[e]) ^ (sign[e] >> lane & 1u) << 31);
}

/* Butterflies at distance 1, 2, 4, ... dim / 2. */
KVP_DEV void row_hadamard(float *x, uint32_t lane, const int E)
{
	KVP_UNROLL
	for (uint32_t m = 1; m < 32; m *= 2) {
		KVP_UNROLL
		for (int e = 0; e < E; e++) {
			float other = kvp_shfl_xor_f32(x[e], m);

			x[e] = lane & m ? other - x[e] : x[e] + other;
		}
	}
	KVP_UNROLL
	for (int m = 1; m < E; m *= 2) {
		KVP_UNROLL
		for (int e = 0; e < E; e++) {
			if ((e & m) == 0) {
				float a = x[e], b = x[e + m];

				x[e] = a + b;
				x[e + m] = a - b;
			}
		}
	}
}

KVP_DEV void row_scale(float *x, float f, const int E)
{
	KVP_UNROLL
	for (int e = 0; e < E; e++)
		x[e] *= f;
}

/* R x, and R^T x; R R^T = dim I. */
KVP_DEV void row_rotate(const struct kvp_cuda_rotation *rot, float *x, uint32_t lane, const int E)
{
	for (uint32_t r = 0; r < rot->rounds; r++) {
		row_flip(x, rot->sign[r], lane, E);
		row_hadamard(x, lane, E);
		if (r == 1)
			row_scale(x, rot->rescale, E);
	}
}

KVP_DEV void row_unrotate(const struct kvp_cuda_rotation *rot, float *x, uint32_t lane, const int E)
{
	for (uint32_t r = rot->rounds; r-- > 0;) {
		row_hadamard(x, lane, E);
		row_flip(x, rot->sign[r], lane, E);
		if (r == 1)
			row_scale(x, rot->rescale, E);
	}
}

#endif
