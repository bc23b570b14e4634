/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats and row codes in AVX2; equal to numeric.h and rowcode.h bit for bit. */
#ifndef KVP_KERNELS_X86_AVX2_H
#define KVP_KERNELS_X86_AVX2_H

#include "kernels/kvp_codec.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define RNE    (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

INLINE __m128i load128(const void *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

INLINE void store128(void *p, __m128i x)
{
	_mm_storeu_si128((__m128i *)p, x);
}

/* Elements 8 i .. 8 i + 7 of a row. */
INLINE __m256 load8(const uint8_t *row, uint32_t dtype, uint32_t i)
{
	if (dtype == KVP_DTYPE_F32)
		return _mm256_loadu_ps((const float *)(const void *)(row + 32 * (size_t)i));
	if (dtype == KVP_DTYPE_F16)
		return _mm256_cvtph_ps(load128(row + 16 * (size_t)i));
	return _mm256_castsi256_ps(
		_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(row + 16 * (size_t)i)), 16));
}

/* x is not NaN. */
INLINE __m256 clamp8(__m256 x, float max)
{
	x = _mm256_min_ps(x, _mm256_set1_ps(max));
	return _mm256_max_ps(x, _mm256_set1_ps(-max));
}

INLINE void store8(uint8_t *row, uint32_t dtype, uint32_t i, __m256 x)
{
	__m256i u;

	if (dtype == KVP_DTYPE_F32) {
		_mm256_storeu_ps((float *)(void *)(row + 32 * (size_t)i), clamp8(x, KVP_F32_MAX));
		return;
	}
	if (dtype == KVP_DTYPE_F16) {
		store128(row + 16 * (size_t)i, _mm256_cvtps_ph(clamp8(x, KVP_F16_MAX), RNE));
		return;
	}
	u = _mm256_castps_si256(clamp8(x, KVP_BF16_MAX));
	u = _mm256_add_epi32(
		u, _mm256_add_epi32(_mm256_set1_epi32(0x7fff),
			   _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1))));
	u = _mm256_srli_epi32(u, 16);
	store128(row + 16 * (size_t)i,
		_mm_packus_epi32(_mm256_castsi256_si128(u), _mm256_extracti128_si256(u, 1)));
}

INLINE void store_half(uint8_t *p, float f)
{
	uint16_t h = (uint16_t)_mm_cvtsi128_si32(_mm_cvtps_ph(_mm_set_ss(f), RNE));

	memcpy(p, &h, sizeof h);
}

/* load_scalar() */
INLINE float load_half(const uint8_t *p, float scale)
{
	uint16_t h = load_u16(p);
	float f = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));

	return (h & 0x7c00u) == 0x7c00u ? 0.0f : clampf(f * scale, KVP_F32_MAX);
}

INLINE __m256 load_half8(__m128i h)
{
	__m128i top = _mm_set1_epi16(0x7c00);

	h = _mm_andnot_si128(_mm_cmpeq_epi16(_mm_and_si128(h, top), top), h);
	return _mm256_cvtph_ps(h);
}

/* Codes 8 i .. 8 i + 7 as dwords. */
INLINE __m256i load_codes(const uint8_t *code, uint32_t i)
{
	return _mm256_cvtepu8_epi32(
		_mm_loadl_epi64((const __m128i *)(const void *)(code + 8 * (size_t)i)));
}

/* Dwords 0..255 to eight bytes. */
INLINE void store_codes(uint8_t *code, uint32_t i, __m256i q)
{
	__m128i w = _mm_packus_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));

	_mm_storel_epi64((__m128i *)(void *)(code + 8 * (size_t)i), _mm_packus_epi16(w, w));
}

INLINE void pack_row(uint32_t bits, uint32_t dim, const uint8_t *code, uint8_t *row)
{
	uint32_t part = bits == 4 ? dim / 2 : dim / 4;

	if (part % 16 || bits < 2 || bits > 4) {
		kvp_row_pack(bits, dim, code, row);
		return;
	}
	for (uint32_t i = 0; i < part; i += 16) {
		__m128i x = load128(code + i), low = _mm_set1_epi8(3);

		if (bits == 4) {
			x = _mm_or_si128(x, _mm_slli_epi16(load128(code + part + i), 4));
		} else {
			x = _mm_and_si128(x, low);
			x = _mm_or_si128(
				x, _mm_slli_epi16(_mm_and_si128(load128(code + part + i), low), 2));
			x = _mm_or_si128(
				x, _mm_slli_epi16(
					   _mm_and_si128(load128(code + 2 * (size_t)part + i), low),
					   4));
			x = _mm_or_si128(
				x, _mm_slli_epi16(
					   _mm_and_si128(load128(code + 3 * (size_t)part + i), low),
					   6));
		}
		store128(row + i, x);
	}
	for (uint32_t i = 0; bits == 3 && i < dim; i += 16) {
		uint16_t high = (uint16_t)_mm_movemask_epi8(_mm_slli_epi16(load128(code + i), 5));

		memcpy(row + part + i / 8, &high, 2);
	}
}

INLINE void unpack_row(uint32_t bits, uint32_t dim, const uint8_t *row, uint8_t *code)
{
	const __m128i bit = _mm_set1_epi64x((long long)0x8040201008040201);
	const __m128i spread = _mm_set_epi64x(0x0101010101010101, 0);
	uint32_t part = bits == 4 ? dim / 2 : dim / 4;

	if (part % 16 || bits < 2 || bits > 4) {
		kvp_row_unpack(bits, dim, row, code);
		return;
	}
	for (uint32_t i = 0; i < part; i += 16) {
		__m128i x = load128(row + i);

		if (bits == 4) {
			__m128i low = _mm_set1_epi8(15);

			store128(code + i, _mm_and_si128(x, low));
			store128(code + part + i, _mm_and_si128(_mm_srli_epi16(x, 4), low));
			continue;
		}
		for (int j = 0; j < 4; j++)
			store128(code + (size_t)j * part + i,
				_mm_and_si128(_mm_srl_epi16(x, _mm_cvtsi32_si128(2 * j)),
					_mm_set1_epi8(3)));
	}
	for (uint32_t i = 0; bits == 3 && i < dim; i += 16) {
		__m128i x =
			_mm_shuffle_epi8(_mm_cvtsi32_si128(load_u16(row + part + i / 8)), spread);

		x = _mm_cmpeq_epi8(_mm_and_si128(x, bit), bit);
		x = _mm_and_si128(x, _mm_set1_epi8(4));
		store128(code + i, _mm_or_si128(load128(code + i), x));
	}
}

/* Rows whose fields do not fill registers. */
static __attribute__((noinline, unused)) void load_odd_codes(
	uint32_t bits, uint32_t n, const uint8_t *row, __m256i *k)
{
	uint8_t code[KVP_PLANE_DIM_MAX];

	unpack_row(bits, 8 * n, row, code);
	for (uint32_t i = 0; i < n; i++)
		k[i] = load_codes(code, i);
}

static __attribute__((noinline, unused)) void store_odd_codes(
	uint32_t bits, uint32_t n, const __m256i *k, uint8_t *row)
{
	uint8_t code[KVP_PLANE_DIM_MAX];

	for (uint32_t i = 0; i < n; i++)
		store_codes(code, i, k[i]);
	pack_row(bits, 8 * n, code, row);
}

/*
 * A row of n registers of codes, 8 to a register. Loaded, only the low `bits` bits of a lane are
 * defined; to be stored, the others must be 0.
 */
INLINE void load_row_codes(uint32_t bits, uint32_t n, const uint8_t *row, __m256i *k)
{
	const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
	const uint32_t fields = bits == 4 ? 2 : 4, part = n / fields;

	if (n % fields) {
		load_odd_codes(bits, n, row, k);
		return;
	}
	for (uint32_t i = 0; i < part; i++) {
		__m256i x = load_codes(row, i);

		for (uint32_t j = 0; j < fields; j++)
			k[i + j * part] = _mm256_srli_epi32(x, (int)(8 / fields * j));
	}
	for (uint32_t i = 0; bits == 3 && i < n; i++) {
		/* Bit 8 (i mod 4) + lane of four registers' high bits moves to bit 2. */
		const int by = 8 * (int)(i & 3) - 2;
		uint32_t high;
		__m256i x;

		memcpy(&high, row + 8 * (size_t)part + 4 * (size_t)(i / 4), sizeof high);
		x = _mm256_set1_epi32((int)(by < 0 ? high << 2 : high));
		x = _mm256_srlv_epi32(
			x, _mm256_add_epi32(lane, _mm256_set1_epi32(by < 0 ? 0 : by)));
		k[i] = _mm256_or_si256(_mm256_and_si256(k[i], _mm256_set1_epi32(3)),
			_mm256_and_si256(x, _mm256_set1_epi32(4)));
	}
}

/* Bytes i of a row: its fields from registers i, i + part, ... */
INLINE __m256i join_fields(uint32_t bits, uint32_t part, const __m256i *k, uint32_t i)
{
	const uint32_t fields = bits == 4 ? 2 : 4;
	__m256i x = _mm256_setzero_si256();

	for (uint32_t j = 0; j < fields; j++) {
		__m256i y = k[i + j * part];

		if (bits == 3)
			y = _mm256_and_si256(y, _mm256_set1_epi32(3));
		x = _mm256_or_si256(x, _mm256_slli_epi32(y, (int)(8 / fields * j)));
	}
	return x;
}

INLINE void store_row_codes(uint32_t bits, uint32_t n, const __m256i *k, uint8_t *row)
{
	const uint32_t part = n / (bits == 4 ? 2 : 4);
	uint32_t i = 0;

	if (n % (bits == 4 ? 2 : 4)) {
		store_odd_codes(bits, n, k, row);
		return;
	}
	for (; i + 4 <= part; i += 4) {
		__m256i low = _mm256_packus_epi32(
			join_fields(bits, part, k, i), join_fields(bits, part, k, i + 1));
		__m256i high = _mm256_packus_epi32(
			join_fields(bits, part, k, i + 2), join_fields(bits, part, k, i + 3));

		low = _mm256_permutevar8x32_epi32(
			_mm256_packus_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
		_mm256_storeu_si256((__m256i *)(void *)(row + 8 * (size_t)i), low);
	}
	for (; i < part; i++)
		store_codes(row, i, join_fields(bits, part, k, i));
	for (i = 0; bits == 3 && i < n; i++)
		row[8 * part + i] = (uint8_t)_mm256_movemask_ps(
			_mm256_castsi256_ps(_mm256_slli_epi32(k[i], 29)));
}

INLINE __m256i fp8_codes(uint32_t format, __m256 x)
{
	const int e4m3 = format == KVP_CODEC_FP8_E4M3;
	const int man = e4m3 ? 20 : 21; /* bits dropped */
	__m256i u = _mm256_castps_si256(x);
	__m256i sign = _mm256_and_si256(_mm256_srli_epi32(u, 24), _mm256_set1_epi32(0x80));
	__m256i q, odd, small;
	__m256 a, tiny;

	u = _mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff));
	a = _mm256_castsi256_ps(u);
	tiny = _mm256_cmp_ps(a, _mm256_set1_ps(e4m3 ? 0x1p-6f : 0x1p-14f), _CMP_LT_OQ);
	odd = _mm256_and_si256(_mm256_srli_epi32(u, man), _mm256_set1_epi32(1));
	q = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32((1 << (man - 1)) - 1)));
	q = _mm256_sub_epi32(
		_mm256_srli_epi32(q, man), _mm256_set1_epi32(e4m3 ? 120 << 3 : 112 << 2));
	small = _mm256_cvtps_epi32(_mm256_mul_ps(a, _mm256_set1_ps(e4m3 ? 0x1p9f : 0x1p16f)));
	q = _mm256_blendv_epi8(q, small, _mm256_castps_si256(tiny));
	q = _mm256_min_epi32(q, _mm256_set1_epi32(e4m3 ? 0x7e : 0x7b));
	return _mm256_or_si256(q, sign);
}

/* Values of int8 or fp8 codes; through fp16, whose exponent is wide enough for both formats. */
INLINE __m256 byte_values(uint32_t format, const uint8_t *codes, uint32_t i)
{
	__m128i c = _mm_loadl_epi64((const __m128i *)(const void *)(codes + 8 * (size_t)i));
	__m128i a = _mm_and_si128(c, _mm_set1_epi8(0x7f));

	if (format == KVP_CODEC_INT8)
		return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(c));
	if (format == KVP_CODEC_FP8_E5M2) {
		c = _mm_andnot_si128(_mm_cmpgt_epi8(a, _mm_set1_epi8(0x7b)), c);
		return _mm256_cvtph_ps(_mm_slli_epi16(_mm_cvtepu8_epi16(c), 8));
	}
	c = _mm_andnot_si128(_mm_cmpgt_epi8(a, _mm_set1_epi8(0x7e)), c);
	c = _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(c), 7), _mm_set1_epi16((short)0xbfff));
	return _mm256_mul_ps(_mm256_cvtph_ps(c), _mm256_set1_ps(256.0f));
}

#endif
