/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Number formats in integer arithmetic: the reference that every instruction set must match bit for
 * bit. All conversions round to nearest, ties to even, and honour subnormals.
 */
#ifndef KVP_KERNELS_NUMERIC_H
#define KVP_KERNELS_NUMERIC_H

#include "kernels/kvp_codec.h"

#include <string.h>

/* Largest magnitude of an input after scaling by 2^-exponent; see docs/formats.md, "Exponent". */
#define KVP_INPUT_MAX 1024.0f

static inline uint32_t f32_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return u;
}

static inline float f32_from_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof f);
	return f;
}

static inline uint16_t load_u16(const void *p)
{
	uint16_t u;

	memcpy(&u, p, sizeof u);
	return u;
}

/* 2^e for -126 <= e <= 127. */
static inline float pow2f(int e)
{
	return f32_from_bits((uint32_t)(e + 127) << 23);
}

/* Infinities and NaN keep their class; the payload of a NaN is not kept. */
static inline float f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
	uint32_t exp = h >> 10 & 0x1fu;
	uint32_t man = h & 0x3ffu;

	if (exp == 0) {
		float f = (float)man * 0x1p-24f;

		return f32_from_bits(f32_bits(f) | sign);
	}
	if (exp == 31)
		return f32_from_bits(sign | 0x7f800000u | man << 13);
	return f32_from_bits(sign | (exp + 112) << 23 | man << 13);
}

/* Overflow gives infinity, NaN gives 0x7e00 with the sign. */
static inline uint16_t f32_to_f16(float f)
{
	uint32_t u = f32_bits(f);
	uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
	uint32_t a = u & 0x7fffffffu;
	uint32_t shift, man, half, rest;

	if (a > 0x7f800000u)
		return sign | 0x7e00u;
	if (a >= 0x477ff000u) /* 65520, halfway to 2^16 */
		return sign | 0x7c00u;
	if (a >= 0x38800000u) { /* 2^-14: normal */
		a -= 112u << 23;
		a += 0xfffu + (a >> 13 & 1u);
		return sign | (uint16_t)(a >> 13);
	}
	if (a < 0x33000000u) /* below 2^-25 */
		return sign;
	shift = 126u - (a >> 23); /* 14..24: to units of 2^-24 */
	man = (a & 0x7fffffu) | 0x800000u;
	half = 1u << (shift - 1);
	rest = man & ((half << 1) - 1);
	man >>= shift;
	if (rest > half || (rest == half && (man & 1u)))
		man++;
	return sign | (uint16_t)man;
}

static inline float bf16_to_f32(uint16_t h)
{
	return f32_from_bits((uint32_t)h << 16);
}

/* For finite f below the halfway point to 2^128. */
static inline uint16_t f32_to_bf16(float f)
{
	uint32_t u = f32_bits(f);

	return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline uint32_t dtype_bytes(uint32_t dtype)
{
	switch (dtype) {
	case KVP_DTYPE_F32:
		return 4;
	case KVP_DTYPE_F16:
	case KVP_DTYPE_BF16:
		return 2;
	case KVP_DTYPE_F8:
		return 1;
	default:
		return 0;
	}
}

/* Element i of a row, unscaled. */
static inline float load_element(const void *row, uint32_t dtype, uint32_t i)
{
	float f;

	switch (dtype) {
	case KVP_DTYPE_F16:
		return f16_to_f32(load_u16((const uint8_t *)row + 2 * (size_t)i));
	case KVP_DTYPE_BF16:
		return bf16_to_f32(load_u16((const uint8_t *)row + 2 * (size_t)i));
	default:
		memcpy(&f, (const uint8_t *)row + 4 * (size_t)i, sizeof f);
		return f;
	}
}

/* What every lossy encoder sees: NaN is +0, everything else is scaled and bounded. */
static inline float sanitize(float f, float scale)
{
	if (f != f)
		return 0.0f;
	f *= scale;
	f = f > KVP_INPUT_MAX ? KVP_INPUT_MAX : f;
	return f < -KVP_INPUT_MAX ? -KVP_INPUT_MAX : f;
}

static inline int is_finite(float f)
{
	return (f32_bits(f) & 0x7f800000u) != 0x7f800000u;
}

static inline float clampf(float f, float max)
{
	f = f > max ? max : f;
	return f < -max ? -max : f;
}

#define KVP_F32_MAX  0x1.fffffep127f
#define KVP_F16_MAX  65504.0f
#define KVP_BF16_MAX 0x1.fep127f

/* Stores f, which is not NaN, as element i; beyond the largest finite value it saturates. */
static inline void store_element(void *row, uint32_t dtype, uint32_t i, float f)
{
	uint16_t h;

	if (dtype == KVP_DTYPE_F32) {
		f = clampf(f, KVP_F32_MAX);
		memcpy((uint8_t *)row + 4 * (size_t)i, &f, sizeof f);
		return;
	}
	h = dtype == KVP_DTYPE_F16 ? f32_to_f16(clampf(f, KVP_F16_MAX))
				   : f32_to_bf16(clampf(f, KVP_BF16_MAX));
	memcpy((uint8_t *)row + 2 * (size_t)i, &h, sizeof h);
}

/* A scalar of a payload: fp16, where a hostile infinity or NaN counts as 0, times 2^exponent. */
static inline float load_scalar(const uint8_t *p, float scale)
{
	uint16_t h = load_u16(p);

	if ((h & 0x7c00u) == 0x7c00u)
		return 0.0f;
	return clampf(f16_to_f32(h) * scale, KVP_F32_MAX);
}

static inline float load_scalar_wide(const uint8_t *p, float scale)
{
	float f;

	memcpy(&f, p, sizeof f);
	if ((f32_bits(f) & 0x7f800000u) == 0x7f800000u)
		return 0.0f;
	return clampf(f * scale, KVP_F32_MAX);
}

static inline void store_scalar(uint8_t *p, float f)
{
	uint16_t h = f32_to_f16(f);

	memcpy(p, &h, sizeof h);
}

/* The same with a choice: fp16, or fp32 if wide. */
static inline size_t scalar_bytes(uint32_t wide)
{
	return wide ? sizeof(float) : 2;
}

static inline float load_scalar_as(uint32_t wide, const uint8_t *p, float scale)
{
	return wide ? load_scalar_wide(p, scale) : load_scalar(p, scale);
}

/* Stores a finite f and returns what was stored. */
static inline float store_scalar_as(uint32_t wide, uint8_t *p, float f)
{
	if (!wide) {
		store_scalar(p, f);
		return f16_to_f32(load_u16(p));
	}
	memcpy(p, &f, sizeof f);
	return f;
}

/* A scale of 0 or more; a wide one without a finite reciprocal becomes 0. */
static inline float store_scale(uint32_t wide, uint8_t *p, float f)
{
	return store_scalar_as(wide, p, wide && f < 0x1p-126f ? 0.0f : f);
}

/* Round to nearest even; |f| < 2^22. Adding 1.5 * 2^23 leaves the integer in the low bits. */
static inline int32_t rne(float f)
{
	return (int32_t)(f32_bits(f + 0x1.8p23f) - 0x4b400000u);
}

/* fp8 of a finite f with 1 <= man_bits, saturating at max; see docs/formats.md. */
static inline uint8_t f32_to_fp8(float f, int man_bits, int min_exp, uint8_t max_code)
{
	uint8_t sign = (uint8_t)(f32_bits(f) >> 24 & 0x80u);
	float a = f32_from_bits(f32_bits(f) & 0x7fffffffu);
	int exp = (int)(f32_bits(a) >> 23) - 127;
	int32_t q;

	if (a >= 65536.0f)
		return sign | max_code;
	if (exp < min_exp)
		exp = min_exp;
	/* In units of the last place of this binade; a carry moves on to the next one by itself. */
	q = rne(a * pow2f(man_bits - exp));
	q += (exp - min_exp) << man_bits;
	return sign | (uint8_t)(q > max_code ? max_code : q);
}

static inline uint8_t f32_to_e4m3(float f)
{
	return f32_to_fp8(f, 3, -6, 0x7e);
}

static inline uint8_t f32_to_e5m2(float f)
{
	return f32_to_fp8(f, 2, -14, 0x7b);
}

/* NaN and infinity, which no encoder writes, count as 0. */
static inline float fp8_to_f32(uint8_t c, int man_bits, int min_exp, uint8_t max_code)
{
	uint32_t a = c & 0x7fu;
	uint32_t exp = a >> man_bits;
	float man = (float)(a & ((1u << man_bits) - 1));
	float f;

	if (a > max_code)
		return 0.0f;
	if (exp)
		man += (float)(1u << man_bits);
	f = man * pow2f(min_exp - man_bits + (exp ? (int)exp - 1 : 0));
	return c & 0x80u ? -f : f;
}

static inline float e4m3_to_f32(uint8_t c)
{
	return fp8_to_f32(c, 3, -6, 0x7e);
}

static inline float e5m2_to_f32(uint8_t c)
{
	return fp8_to_f32(c, 2, -14, 0x7b);
}

#endif
