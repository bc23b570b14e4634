/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats and row codes in NEON; equal to numeric.h and rowcode.h bit for bit. */
#ifndef KVP_KERNELS_AARCH64_NEON_H
#define KVP_KERNELS_AARCH64_NEON_H

#include "kernels/kvp_codec.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

/* Four fp16s to floats and back, to the nearest and, of two, the even one. */
INLINE float32x4_t from_f16(uint16x4_t h)
{
	return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

INLINE uint16x4_t to_f16(float32x4_t x)
{
	return vreinterpret_u16_f16(vcvt_f16_f32(x));
}

INLINE uint16x4_t load_u16x4(const uint8_t *p)
{
	return vreinterpret_u16_u8(vld1_u8(p));
}

INLINE void store_u16x4(uint8_t *p, uint16x4_t h)
{
	vst1_u8(p, vreinterpret_u8_u16(h));
}

INLINE float32x4_t bits_and(float32x4_t x, uint32x4_t mask)
{
	return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), mask));
}

/* x where it is a number, else 0. */
INLINE float32x4_t number4(float32x4_t x)
{
	return bits_and(x, vceqq_f32(x, x));
}

/* All ones where x is finite. */
INLINE uint32x4_t finite4(float32x4_t x)
{
	return vcltq_u32(vreinterpretq_u32_f32(vabsq_f32(x)), vdupq_n_u32(0x7f800000));
}

/* Elements 4 i .. 4 i + 3 of a row. */
INLINE float32x4_t load4(const uint8_t *row, uint32_t dtype, uint32_t i)
{
	if (dtype == KVP_DTYPE_F32)
		return vreinterpretq_f32_u8(vld1q_u8(row + 16 * (size_t)i));
	if (dtype == KVP_DTYPE_F16)
		return from_f16(load_u16x4(row + 8 * (size_t)i));
	return vreinterpretq_f32_u32(vshll_n_u16(load_u16x4(row + 8 * (size_t)i), 16));
}

/* x is not NaN. */
INLINE float32x4_t clamp4(float32x4_t x, float max)
{
	return vmaxq_f32(vminq_f32(x, vdupq_n_f32(max)), vdupq_n_f32(-max));
}

INLINE void store4(uint8_t *row, uint32_t dtype, uint32_t i, float32x4_t x)
{
	uint32x4_t u;

	if (dtype == KVP_DTYPE_F32) {
		vst1q_u8(row + 16 * (size_t)i, vreinterpretq_u8_f32(clamp4(x, KVP_F32_MAX)));
		return;
	}
	if (dtype == KVP_DTYPE_F16) {
		store_u16x4(row + 8 * (size_t)i, to_f16(clamp4(x, KVP_F16_MAX)));
		return;
	}
	u = vreinterpretq_u32_f32(clamp4(x, KVP_BF16_MAX));
	u = vaddq_u32(
		u, vaddq_u32(vdupq_n_u32(0x7fff), vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1))));
	store_u16x4(row + 8 * (size_t)i, vshrn_n_u32(u, 16));
}

INLINE void store_half(uint8_t *p, float f)
{
	uint16_t h = vget_lane_u16(to_f16(vdupq_n_f32(f)), 0);

	memcpy(p, &h, sizeof h);
}

/* load_scalar() */
INLINE float load_half(const uint8_t *p, float scale)
{
	uint16_t h = load_u16(p);
	float f = vgetq_lane_f32(from_f16(vdup_n_u16(h)), 0);

	return (h & 0x7c00u) == 0x7c00u ? 0.0f : clampf(f * scale, KVP_F32_MAX);
}

INLINE float32x4_t load_half4(const uint8_t *p)
{
	const uint16x4_t h = load_u16x4(p), top = vdup_n_u16(0x7c00);

	return from_f16(vbic_u16(h, vceq_u16(vand_u16(h, top), top)));
}

/* Codes 8 i .. 8 i + 7 as dwords in two registers, and of such to bytes. */
INLINE void load_codes(const uint8_t *code, uint32_t i, uint32x4_t *k)
{
	const uint16x8_t w = vmovl_u8(vld1_u8(code + 8 * (size_t)i));

	k[0] = vmovl_u16(vget_low_u16(w));
	k[1] = vmovl_high_u16(w);
}

INLINE void store_codes(uint8_t *code, uint32_t i, const uint32x4_t *k)
{
	vst1_u8(code + 8 * (size_t)i, vmovn_u16(vmovn_high_u32(vmovn_u32(k[0]), k[1])));
}

/* Bit 2 of 16 codes, as two bytes. */
INLINE void store_high(uint8_t *p, uint8x16_t code)
{
	static const uint8_t bit[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
	const uint8x16_t x = vandq_u8(vtstq_u8(code, vdupq_n_u8(4)), vld1q_u8(bit));

	p[0] = vaddv_u8(vget_low_u8(x));
	p[1] = vaddv_u8(vget_high_u8(x));
}

INLINE uint8x16_t load_high(const uint8_t *p)
{
	static const uint8_t bit[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
	const uint8x16_t x = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));

	return vandq_u8(vtstq_u8(x, vld1q_u8(bit)), vdupq_n_u8(4));
}

INLINE void pack_row(uint32_t bits, uint32_t dim, const uint8_t *code, uint8_t *row)
{
	const uint32_t part = bits == 4 ? dim / 2 : dim / 4;

	if (part % 16 || bits < 2 || bits > 4) {
		kvp_row_pack(bits, dim, code, row);
		return;
	}
	for (uint32_t i = 0; i < part; i += 16) {
		uint8x16_t x = vld1q_u8(code + i);

		if (bits == 4) {
			x = vsliq_n_u8(x, vld1q_u8(code + part + i), 4);
		} else {
			x = vsliq_n_u8(x, vld1q_u8(code + part + i), 2);
			x = vsliq_n_u8(x, vld1q_u8(code + 2 * (size_t)part + i), 4);
			x = vsliq_n_u8(x, vld1q_u8(code + 3 * (size_t)part + i), 6);
		}
		vst1q_u8(row + i, x);
	}
	for (uint32_t i = 0; bits == 3 && i < dim; i += 16)
		store_high(row + part + i / 8, vld1q_u8(code + i));
}

INLINE void unpack_row(uint32_t bits, uint32_t dim, const uint8_t *row, uint8_t *code)
{
	const uint32_t part = bits == 4 ? dim / 2 : dim / 4;
	const uint8x16_t low = vdupq_n_u8(3);

	if (part % 16 || bits < 2 || bits > 4) {
		kvp_row_unpack(bits, dim, row, code);
		return;
	}
	for (uint32_t i = 0; i < part; i += 16) {
		const uint8x16_t x = vld1q_u8(row + i);

		if (bits == 4) {
			vst1q_u8(code + i, vandq_u8(x, vdupq_n_u8(15)));
			vst1q_u8(code + part + i, vshrq_n_u8(x, 4));
			continue;
		}
		vst1q_u8(code + i, vandq_u8(x, low));
		vst1q_u8(code + part + i, vandq_u8(vshrq_n_u8(x, 2), low));
		vst1q_u8(code + 2 * (size_t)part + i, vandq_u8(vshrq_n_u8(x, 4), low));
		vst1q_u8(code + 3 * (size_t)part + i, vshrq_n_u8(x, 6));
	}
	for (uint32_t i = 0; bits == 3 && i < dim; i += 16)
		vst1q_u8(code + i, vorrq_u8(vld1q_u8(code + i), load_high(row + part + i / 8)));
}

/* A row of n registers of codes, 4 to a register; n is even. */
INLINE void load_row_codes(uint32_t bits, uint32_t n, const uint8_t *row, uint32x4_t *k)
{
	uint8_t code[KVP_PLANE_DIM_MAX];

	unpack_row(bits, 4 * n, row, code);
	for (uint32_t i = 0; i < n / 2; i++)
		load_codes(code, i, k + 2 * (size_t)i);
}

INLINE void store_row_codes(uint32_t bits, uint32_t n, const uint32x4_t *k, uint8_t *row)
{
	uint8_t code[KVP_PLANE_DIM_MAX];

	for (uint32_t i = 0; i < n / 2; i++)
		store_codes(code, i, k + 2 * (size_t)i);
	pack_row(bits, 4 * n, code, row);
}

/* One of eight or sixteen floats, or words, by k: bytes 4 k .. 4 k + 3 of a table. */
INLINE uint8x16_t places(uint32x4_t k)
{
	return vreinterpretq_u8_u32(vaddq_u32(vmulq_n_u32(k, 0x04040404), vdupq_n_u32(0x03020100)));
}

INLINE uint32x4_t lookup8(uint8x16x2_t table, uint32x4_t k)
{
	return vreinterpretq_u32_u8(vqtbl2q_u8(table, places(k)));
}

INLINE float32x4_t lookup16(uint8x16x4_t table, uint32x4_t k)
{
	return vreinterpretq_f32_u8(vqtbl4q_u8(table, places(k)));
}

INLINE uint8x16x2_t table8(const void *p)
{
	return vld1q_u8_x2(p);
}

INLINE uint8x16x4_t table16(const void *p)
{
	return vld1q_u8_x4(p);
}

INLINE uint32x4_t fp8_codes(uint32_t format, float32x4_t x)
{
	const int e4m3 = format == KVP_CODEC_FP8_E4M3;
	const float32x4_t a = vabsq_f32(x);
	const uint32x4_t u = vreinterpretq_u32_f32(a);
	const uint32x4_t sign =
		vandq_u32(vshrq_n_u32(vreinterpretq_u32_f32(x), 24), vdupq_n_u32(0x80));
	const uint32x4_t tiny = vcltq_f32(a, vdupq_n_f32(e4m3 ? 0x1p-6f : 0x1p-14f));
	const int32x4_t small = vcvtnq_s32_f32(vmulq_n_f32(a, e4m3 ? 0x1p9f : 0x1p16f));
	const int32x4_t drop = vdupq_n_s32(e4m3 ? -20 : -21); /* bits */
	uint32x4_t q = vandq_u32(vshlq_u32(u, drop), vdupq_n_u32(1));

	q = vaddq_u32(u, vaddq_u32(q, vdupq_n_u32(e4m3 ? (1u << 19) - 1 : (1u << 20) - 1)));
	q = vsubq_u32(vshlq_u32(q, drop), vdupq_n_u32(e4m3 ? 120u << 3 : 112u << 2));
	q = vbslq_u32(tiny, vreinterpretq_u32_s32(small), q);
	return vorrq_u32(vminq_u32(q, vdupq_n_u32(e4m3 ? 0x7e : 0x7b)), sign);
}

/* Values of int8 or fp8 codes; through fp16, whose exponent is wide enough for both formats. */
INLINE float32x4_t byte_values(uint32_t format, const uint8_t *codes, uint32_t i)
{
	uint32_t four;
	uint8x8_t c, a;
	uint16x8_t h;

	memcpy(&four, codes + 4 * (size_t)i, sizeof four);
	c = vreinterpret_u8_u32(vdup_n_u32(four));
	a = vand_u8(c, vdup_n_u8(0x7f));
	if (format == KVP_CODEC_INT8)
		return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(c)))));
	if (format == KVP_CODEC_FP8_E5M2) {
		c = vbic_u8(c, vcgt_u8(a, vdup_n_u8(0x7b)));
		return from_f16(vget_low_u16(vshlq_n_u16(vmovl_u8(c), 8)));
	}
	c = vbic_u8(c, vcgt_u8(a, vdup_n_u8(0x7e)));
	h = vshlq_n_u16(vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(c))), 7);
	h = vandq_u16(h, vdupq_n_u16(0xbfff));
	return vmulq_n_f32(from_f16(vget_low_u16(h)), 256.0f);
}

#endif
