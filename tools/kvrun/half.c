/* SPDX-License-Identifier: Apache-2.0 */
/* fp16 and bf16 to fp32 and back, by F16C where there is one, to the same bits elsewhere. */
#include "tools/kvrun/kvr_half.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t float_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static float bits_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static float f16_to_f32(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	uint32_t exp = (h >> 10) & 0x1f;
	uint32_t man = h & 0x3ff;

	if (exp == 0x1f) /* a NaN comes out quiet, as the hardware does it */
		return bits_float(sign | 0x7f800000 | (man << 13) | (man ? 0x400000 : 0));
	if (exp == 0) /* zero or denormal: man * 2^-24 is exact in fp32 */
		return bits_float(sign | float_bits((float)man * 0x1p-24f));
	return bits_float(sign | ((exp + 112) << 23) | (man << 13));
}

static uint16_t f32_to_f16(float f)
{
	uint32_t u = float_bits(f);
	uint16_t sign = (uint16_t)((u >> 16) & 0x8000);
	uint32_t abs = u & 0x7fffffff;

	if (abs > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | ((abs >> 13) & 0x3ff));
	if (abs >= 0x477ff000) /* 65520 and up rounds to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (abs < 0x38800000) { /* below 2^-14: adding .5 aligns the last kept bit with bit 0 */
		float sum = bits_float(abs) + 0.5f;

		return (uint16_t)(sign | (float_bits(sum) - float_bits(0.5f)));
	}
	abs += 0xfff + ((abs >> 13) & 1);
	return (uint16_t)(sign | ((abs >> 13) - (112u << 10)));
}

static uint16_t f32_to_bf16(float f)
{
	uint32_t u = float_bits(f);

	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)((u >> 16) | 0x40);
	return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#if defined(__x86_64__)
/* Every CPU with AVX2 has F16C, and unlike "f16c" both compilers know the name "avx2". */
static int have_f16c(void)
{
	return __builtin_cpu_supports("avx2");
}

__attribute__((target("avx,f16c"))) static size_t widen_f16c(
	const uint8_t *src, size_t count, float *dst)
{
	size_t i = 0;

	for (; i + 8 <= count; i += 8) {
		__m128i h = _mm_loadu_si128((const __m128i *)(const void *)(src + 2 * i));

		_mm256_storeu_ps(dst + i, _mm256_cvtph_ps(h));
	}
	return i;
}

__attribute__((target("avx,f16c"))) static size_t narrow_f16c(
	const float *src, size_t count, uint8_t *dst)
{
	size_t i = 0;

	for (; i + 8 <= count; i += 8) {
		__m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);

		_mm_storeu_si128((__m128i *)(void *)(dst + 2 * i), h);
	}
	return i;
}
#else
static int have_f16c(void)
{
	return 0;
}

static size_t widen_f16c(const uint8_t *src, size_t count, float *dst)
{
	(void)src, (void)count, (void)dst;
	return 0;
}

static size_t narrow_f16c(const float *src, size_t count, uint8_t *dst)
{
	(void)src, (void)count, (void)dst;
	return 0;
}
#endif

size_t kvr_dtype_bytes(enum kvr_dtype dtype)
{
	return dtype == KVR_F32 ? 4 : 2;
}

const char *kvr_dtype_name(enum kvr_dtype dtype)
{
	return dtype == KVR_F32 ? "f32" : dtype == KVR_F16 ? "f16" : "bf16";
}

void kvr_widen(enum kvr_dtype dtype, const void *src, size_t count, float *dst)
{
	const uint8_t *s = src;
	size_t i = 0;
	uint16_t h;

	if (dtype == KVR_F32) {
		memcpy(dst, src, count * sizeof(float));
		return;
	}
	if (dtype == KVR_F16 && have_f16c())
		i = widen_f16c(s, count, dst);
	for (; i < count; i++) {
		memcpy(&h, s + 2 * i, sizeof(h));
		dst[i] = dtype == KVR_F16 ? f16_to_f32(h) : bits_float((uint32_t)h << 16);
	}
}

void kvr_narrow(enum kvr_dtype dtype, const float *src, size_t count, void *dst)
{
	uint8_t *d = dst;
	size_t i = 0;
	uint16_t h;

	if (dtype == KVR_F32) {
		memcpy(dst, src, count * sizeof(float));
		return;
	}
	if (dtype == KVR_F16 && have_f16c())
		i = narrow_f16c(src, count, d);
	for (; i < count; i++) {
		h = dtype == KVR_F16 ? f32_to_f16(src[i]) : f32_to_bf16(src[i]);
		memcpy(d + 2 * i, &h, sizeof(h));
	}
}
