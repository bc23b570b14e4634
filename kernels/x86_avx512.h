/* SPDX-License-Identifier: Apache-2.0 */
/* Number formats and row codes in AVX-512; equal to numeric.h and rowcode.h bit for bit. */
#ifndef KVP_KERNELS_X86_AVX512_H
#define KVP_KERNELS_X86_AVX512_H

#include "kernels/kvp_codec.h"
#include "kernels/numeric.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define RNE    (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

/* Elements 16 i .. 16 i + 15 of a row. */
INLINE __m512 load16(const uint8_t *row, uint32_t dtype, uint32_t i)
{
	if (dtype == KVP_DTYPE_F32)
		return _mm512_loadu_ps(row + 64 * (size_t)i);
	if (dtype == KVP_DTYPE_F16)
		return _mm512_cvtph_ps(
			_mm256_loadu_si256((const __m256i *)(const void *)(row + 32 * (size_t)i)));
	return _mm512_castsi512_ps(
		_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
					  (const __m256i *)(const void *)(row + 32 * (size_t)i))),
			16));
}

/*
 * Some processors make vrangeps and vpermps wait for the old value of the register that they write,
 * which chains independent rows to one another: here they are spelled otherwise.
 */

/* The smaller of |x| and max with the sign of x; x is not NaN. */
INLINE __m512 clamp16(__m512 x, __m512 max)
{
	x = _mm512_min_ps(x, max);
	return _mm512_max_ps(x, _mm512_sub_ps(_mm512_setzero_ps(), max));
}

/* table[k mod 16] */
INLINE __m512 lookup16(__m512i k, __m512 table)
{
	return _mm512_permutex2var_ps(table, k, table);
}

INLINE void store16(uint8_t *row, uint32_t dtype, uint32_t i, __m512 x)
{
	__m512i u;

	if (dtype == KVP_DTYPE_F32) {
		_mm512_storeu_ps(row + 64 * (size_t)i, clamp16(x, _mm512_set1_ps(KVP_F32_MAX)));
		return;
	}
	if (dtype == KVP_DTYPE_F16) {
		_mm256_storeu_si256((__m256i *)(void *)(row + 32 * (size_t)i),
			_mm512_cvtps_ph(clamp16(x, _mm512_set1_ps(KVP_F16_MAX)), RNE));
		return;
	}
	u = _mm512_castps_si512(clamp16(x, _mm512_set1_ps(KVP_BF16_MAX)));
	u = _mm512_add_epi32(
		u, _mm512_add_epi32(_mm512_set1_epi32(0x7fff),
			   _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1))));
	_mm256_storeu_si256((__m256i *)(void *)(row + 32 * (size_t)i),
		_mm512_cvtepi32_epi16(_mm512_srli_epi32(u, 16)));
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

INLINE __m512 load_half16(__m256i h, float scale)
{
	__mmask16 finite = _mm256_cmpneq_epi16_mask(
		_mm256_and_si256(h, _mm256_set1_epi16(0x7c00)), _mm256_set1_epi16(0x7c00));

	return clamp16(_mm512_maskz_mul_ps(finite, _mm512_cvtph_ps(h), _mm512_set1_ps(scale)),
		_mm512_set1_ps(KVP_F32_MAX));
}

INLINE void load_halves(const uint8_t *p, uint32_t n, float scale, float *f)
{
	for (uint32_t i = 0; i < n; i += 16) {
		__mmask16 m = n - i >= 16 ? 0xffff : (__mmask16)((1u << (n - i)) - 1);

		_mm512_mask_storeu_ps(f + i, m,
			load_half16(_mm256_maskz_loadu_epi16(m, p + 2 * (size_t)i), scale));
	}
}

/* load_scalar_wide() */
INLINE void load_wides(const uint8_t *p, uint32_t n, float scale, float *f)
{
	for (uint32_t i = 0; i < n; i++)
		f[i] = load_scalar_wide(p + 4 * (size_t)i, scale);
}

INLINE __m512i load_codes(const uint8_t *code, uint32_t i)
{
	return _mm512_cvtepu8_epi32(
		_mm_loadu_si128((const __m128i *)(const void *)(code + 16 * (size_t)i)));
}

INLINE __mmask64 first64(uint32_t n)
{
	return n >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1;
}

/* Bytes shifted left or right, the bits that cross into a neighbour masked by the caller. */
INLINE void pack_row(uint32_t bits, uint32_t dim, const uint8_t *code, uint8_t *row)
{
	uint32_t part = bits == 4 ? dim / 2 : dim / 4;

	for (uint32_t i = 0; i < part; i += 64) {
		__mmask64 m = first64(part - i);
		__m512i x = _mm512_maskz_loadu_epi8(m, code + i);

		if (bits == 4) {
			__m512i hi = _mm512_maskz_loadu_epi8(m, code + part + i);

			x = _mm512_or_si512(x, _mm512_slli_epi16(hi, 4));
		} else {
			__m512i low = _mm512_set1_epi8(3);

			x = _mm512_and_si512(x, low);
			for (int j = 1; j < 4; j++) {
				__m512i y = _mm512_maskz_loadu_epi8(m, code + (size_t)j * part + i);

				y = _mm512_and_si512(y, low);
				x = _mm512_or_si512(
					x, _mm512_sll_epi16(y, _mm_cvtsi32_si128(2 * j)));
			}
		}
		_mm512_mask_storeu_epi8(row + i, m, x);
	}
	for (uint32_t i = 0; bits == 3 && i < dim; i += 64) {
		__mmask64 m = first64(dim - i);
		uint64_t high = _mm512_test_epi8_mask(
			_mm512_maskz_loadu_epi8(m, code + i), _mm512_set1_epi8(4));

		memcpy(row + part + i / 8, &high, dim - i >= 64 ? 8 : (dim - i) / 8);
	}
}

INLINE void unpack_row(uint32_t bits, uint32_t dim, const uint8_t *row, uint8_t *code)
{
	uint32_t part = bits == 4 ? dim / 2 : dim / 4;
	__m512i low = _mm512_set1_epi8(bits == 4 ? 15 : 3);

	for (uint32_t i = 0; i < part; i += 64) {
		__mmask64 m = first64(part - i);
		__m512i x = _mm512_maskz_loadu_epi8(m, row + i);

		for (int j = 0; j < (bits == 4 ? 2 : 4); j++) {
			__m512i y = _mm512_srl_epi16(x, _mm_cvtsi32_si128((bits == 4 ? 4 : 2) * j));

			_mm512_mask_storeu_epi8(
				code + (size_t)j * part + i, m, _mm512_and_si512(y, low));
		}
	}
	for (uint32_t i = 0; bits == 3 && i < dim; i += 64) {
		__mmask64 m = first64(dim - i);
		uint64_t high = 0;
		__m512i x;

		memcpy(&high, row + part + i / 8, dim - i >= 64 ? 8 : (dim - i) / 8);
		x = _mm512_maskz_loadu_epi8(m, code + i);
		x = _mm512_or_si512(x, _mm512_maskz_set1_epi8(high, 4));
		_mm512_mask_storeu_epi8(code + i, m, x);
	}
}

/* Rows whose fields do not fill registers. */
static __attribute__((noinline, unused)) void load_odd_codes(
	uint32_t bits, uint32_t n, const uint8_t *row, __m512i *k)
{
	uint8_t code[KVP_PLANE_DIM_MAX];

	unpack_row(bits, 16 * n, row, code);
	for (uint32_t i = 0; i < n; i++)
		k[i] = load_codes(code, i);
}

static __attribute__((noinline, unused)) void store_odd_codes(
	uint32_t bits, uint32_t n, const __m512i *k, uint8_t *row)
{
	uint8_t code[KVP_PLANE_DIM_MAX];

	for (uint32_t i = 0; i < n; i++)
		_mm_storeu_si128((__m128i *)(void *)(code + 16 * (size_t)i),
			_mm512_cvtepi32_epi8(
				_mm512_and_si512(k[i], _mm512_set1_epi32((1 << bits) - 1))));
	pack_row(bits, 16 * n, code, row);
}

/*
 * A row of n registers of codes, 16 to a register. Loaded, only the low `bits` bits of a lane are
 * defined; stored, only they count.
 */
INLINE void load_row_codes(uint32_t bits, uint32_t n, const uint8_t *row, __m512i *k)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const uint32_t fields = bits == 4 ? 2 : 4, part = n / fields;

	if (n % fields) {
		load_odd_codes(bits, n, row, k);
		return;
	}
	for (uint32_t i = 0; i < part; i++) {
		__m512i x = load_codes(row, i);

		for (uint32_t j = 0; j < fields; j++)
			k[i + j * part] = _mm512_srli_epi32(x, 8 / fields * j);
	}
	for (uint32_t i = 0; bits == 3 && i < n; i++) {
		/* Bit 16 (i mod 2) + lane of two registers' high bits moves to bit 2. */
		__m512i by = _mm512_add_epi32(lane, _mm512_set1_epi32(i & 1 ? 14 : -2));
		uint32_t high;

		memcpy(&high, row + 16 * (size_t)part + 4 * (size_t)(i / 2), sizeof high);
		k[i] = _mm512_ternarylogic_epi32(_mm512_set1_epi32(4),
			_mm512_rorv_epi32(_mm512_set1_epi32((int)high), by), k[i], 0xca);
	}
}

INLINE void store_row_codes(uint32_t bits, uint32_t n, const __m512i *k, uint8_t *row)
{
	const uint32_t fields = bits == 4 ? 2 : 4, part = n / fields;

	if (n % fields) {
		store_odd_codes(bits, n, k, row);
		return;
	}
	for (uint32_t i = 0; i < part; i++) {
		__m512i x = k[i];

		for (uint32_t j = 1; j < fields; j++) {
			const uint32_t shift = 8 / fields * j;

			x = _mm512_ternarylogic_epi32(_mm512_set1_epi32((1 << shift) - 1), x,
				_mm512_slli_epi32(k[i + j * part], shift), 0xca);
		}
		_mm_storeu_si128(
			(__m128i *)(void *)(row + 16 * (size_t)i), _mm512_cvtepi32_epi8(x));
	}
	for (uint32_t i = 0; bits == 3 && i < n; i++) {
		__mmask16 high = _mm512_test_epi32_mask(k[i], _mm512_set1_epi32(4));

		memcpy(row + 16 * (size_t)part + 2 * (size_t)i, &high, sizeof high);
	}
}

INLINE __m128i fp8_codes(uint32_t format, __m512 x)
{
	const int e4m3 = format == KVP_CODEC_FP8_E4M3;
	const __m512i man = _mm512_set1_epi32(e4m3 ? 20 : 21); /* bits dropped */
	__m512i sign = _mm512_srli_epi32(
		_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000u)), 24);
	__m512 a = _mm512_abs_ps(x);
	__m512i u = _mm512_castps_si512(a);
	__mmask16 tiny =
		_mm512_cmp_ps_mask(a, _mm512_set1_ps(e4m3 ? 0x1p-6f : 0x1p-14f), _CMP_LT_OQ);
	__m512i half = _mm512_set1_epi32(e4m3 ? 0x7ffff : 0xfffff);
	__m512i odd = _mm512_and_si512(_mm512_srlv_epi32(u, man), _mm512_set1_epi32(1));
	__m512i q = _mm512_srlv_epi32(_mm512_add_epi32(u, _mm512_add_epi32(half, odd)), man);

	q = _mm512_sub_epi32(q, _mm512_set1_epi32(e4m3 ? 120 << 3 : 112 << 2));
	q = _mm512_mask_cvtps_epi32(
		q, tiny, _mm512_mul_ps(a, _mm512_set1_ps(e4m3 ? 0x1p9f : 0x1p16f)));
	q = _mm512_min_epi32(q, _mm512_set1_epi32(e4m3 ? 0x7e : 0x7b));
	return _mm512_cvtepi32_epi8(_mm512_or_si512(q, sign));
}

/* Values of int8 or fp8 codes; through fp16, whose exponent is wide enough for both formats. */
INLINE __m512 byte_values(uint32_t format, const uint8_t *codes, uint32_t i)
{
	__m128i c = _mm_loadu_si128((const __m128i *)(const void *)(codes + 16 * (size_t)i));
	__m128i a = _mm_and_si128(c, _mm_set1_epi8(0x7f));
	__m256i h;
	__m512 v;

	if (format == KVP_CODEC_INT8)
		return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(c));
	if (format == KVP_CODEC_FP8_E5M2) {
		c = _mm_maskz_mov_epi8(_mm_cmple_epu8_mask(a, _mm_set1_epi8(0x7b)), c);
		return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(c), 8));
	}
	c = _mm_maskz_mov_epi8(_mm_cmple_epu8_mask(a, _mm_set1_epi8(0x7e)), c);
	h = _mm256_cvtepi8_epi16(c);
	h = _mm256_and_si256(_mm256_slli_epi16(h, 7), _mm256_set1_epi16((short)0xbfff));
	v = _mm512_cvtph_ps(h);
	return _mm512_mul_ps(v, _mm512_set1_ps(256.0f));
}

#endif
