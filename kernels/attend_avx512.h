/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of attention in AVX-512 share. Private to them. */
#ifndef KVP_KERNELS_ATTEND_AVX512_H
#define KVP_KERNELS_ATTEND_AVX512_H

#include "kernels/attend_fetch.h"
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx512.h"

#define DIM_MAX KVP_PLANE_DIM_MAX

/* attend_keys_avx512.c: keys that are codes, as floats. Returns 0 where the geometry is not its. */
int kvp_score_codes_avx512(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride);

/* attend_vnni.c: values that are codes, as words. Returns 0 where the geometry is not its. */
int kvp_accumulate_words(const struct kvp_rows *r, const struct kvp_weights *w, float *acc);

/* attend_avx512.c: any rows, in fp32. */
kvp_score_fn kvp_score_float_avx512;
kvp_accumulate_fn kvp_accumulate_float_avx512;

INLINE __mmask16 first16(uint32_t n)
{
	return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/*
 * sum + the products of two words of each lane of x with the same two of all lanes. Of the
 * intrinsic gcc 12 makes copies of all sums of a loop.
 */
INLINE __m512i dot_pair(__m512i sum, __m512i x, const int16_t *pair)
{
	__asm__("vpdpwssd %2%{1to16%}, %1, %0"
		: "+v"(sum)
		: "v"(x), "m"(*(const int16_t(*)[2])pair));
	return sum;
}

/* sum + x * the float that all lanes have: for the same reason. */
INLINE __m512 multiply_add(__m512 sum, __m512 x, const float *y)
{
	__asm__("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(x), "m"(*y));
	return sum;
}

/* Rows t .. t + 3; beyond the last one the last is repeated, and its result not stored. */
INLINE void tile_rows(const struct kvp_rows *r, uint32_t t, const uint8_t **row)
{
	for (uint32_t j = 0; j < TILE; j++)
		row[j] = r->codes + (ptrdiff_t)(t + j < r->n ? t + j : r->n - 1) * r->stride;
}

/* Per 128-bit lane: the four sums of v[0], v[1], v[2], v[3] in that lane. */
INLINE __m512 sum_lanes(const __m512 *v)
{
	__m512 a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
	__m512 b = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));

	return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

/* Lane k: the sum of the four lanes of c[k]. With sum_lanes(): [token][query]. */
INLINE __m512 sum_tokens(const __m512 *c)
{
	__m512 e = _mm512_add_ps(
		_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
	__m512 f = _mm512_add_ps(
		_mm512_shuffle_f32x4(c[2], c[3], 0x88), _mm512_shuffle_f32x4(c[2], c[3], 0xdd));

	return _mm512_add_ps(_mm512_shuffle_f32x4(e, f, 0x88), _mm512_shuffle_f32x4(e, f, 0xdd));
}

/* Lane i of f to the four lanes of token i. */
INLINE __m512 spread_tokens(__m512 f)
{
	return _mm512_permutexvar_ps(
		_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), f);
}

/* [token][query] to rows of s; nt and nq of them are wanted. */
INLINE void store_tile(__m512 x, float *s, size_t s_stride, uint32_t nt, uint32_t nq)
{
	const __m512i turn =
		_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	__m128 row[TILE];
	__mmask8 m = (__mmask8)((1u << nt) - 1);

	x = _mm512_permutexvar_ps(turn, x);
	row[0] = _mm512_castps512_ps128(x);
	row[1] = _mm512_extractf32x4_ps(x, 1);
	row[2] = _mm512_extractf32x4_ps(x, 2);
	row[3] = _mm512_extractf32x4_ps(x, 3);
	for (uint32_t i = 0; i < nq; i++)
		_mm_mask_storeu_ps(s + i * s_stride, m, row[i]);
}

INLINE uint32_t least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

INLINE __m128i load128(const void *p)
{
	return _mm_loadu_si128(p);
}

INLINE __m256i load256(const void *p)
{
	return _mm256_loadu_si256(p);
}

/* e^x for x <= 0, 0 below -87; as exp_nonpositive() of reference C. */
INLINE __m512 exp16(__m512 x)
{
	__mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LE_OQ);
	__m512 n, f, p;

	n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p0f)),
		_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e43p-1f), x);
	f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-0x1.05c61p-29f), f);
	p = _mm512_set1_ps(0x1.6c16c2p-10f);
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.111112p-7f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.555556p-5f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.555556p-3f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.5f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
	p = _mm512_scalef_ps(p, n);
	return _mm512_mask_mov_ps(p, tiny, _mm512_setzero_ps());
}

/* ---- rows of codes ---- */

/* Whether a function is compiled for this dim alone: the usual one, whose loops are unrolled. */
#define fixed(dim) (__builtin_constant_p(dim) && (dim) == 128)

#define GROUPS_MAX 16u

#define ZEROS_BEHIND 64u /* a step reads the scales of 64 rows, of which one may be there */

/* Of rows of codes: [row][group], with zeros behind; add where there are minima. */
struct scales {
	float scale[GROUPS_MAX * ATTEND_CHUNK + ZEROS_BEHIND];
	float add[GROUPS_MAX * ATTEND_CHUNK +
		  ZEROS_BEHIND]; /* the middle of what the codes can say */
};

static inline void scales_init(const struct kvp_rows *r, struct scales *s)
{
	const float half = 0.5f * (float)((1u << r->bits) - 1);
	uint32_t n = r->n * (r->groups > 1 ? r->groups : 1);

	if (r->form == KVP_FORM_BOOK && r->format)
		load_wides(r->scale, n, r->factor, s->scale);
	else
		load_halves(r->scale, n, r->factor, s->scale);
	memset(s->scale + n, 0, ZEROS_BEHIND * sizeof *s->scale);
	if (!r->minimum)
		return;
	load_halves(r->minimum, n, r->factor, s->add);
	for (uint32_t i = 0; i < n; i++)
		s->add[i] += half * s->scale[i];
	memset(s->add + n, 0, ZEROS_BEHIND * sizeof *s->add);
}

/* Four by four lanes of 32 bits, in each 128 bits. */
INLINE void turn_lanes(__m512i *x)
{
	__m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
	__m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);

	x[0] = _mm512_unpacklo_epi64(a, c);
	x[1] = _mm512_unpackhi_epi64(a, c);
	x[2] = _mm512_unpacklo_epi64(b, d);
	x[3] = _mm512_unpackhi_epi64(b, d);
}

/* 32 bytes of each of 16 rows: x[k] has bytes 4 k .. 4 k + 3, a row a lane. */
INLINE void turn_rows32(const uint8_t *const *row, size_t at, __m512i *x)
{
	for (uint32_t i = 0; i < 8; i++) {
		const uint8_t *const *from = row + i % 4 + i / 4 * 8;

		x[i] = _mm512_inserti64x4(
			_mm512_castsi256_si512(load256(from[0] + at)), load256(from[4] + at), 1);
	}
	turn_lanes(x);
	turn_lanes(x + 4);
	for (uint32_t i = 0; i < 4; i++) {
		__m512i y = x[i];

		x[i] = _mm512_shuffle_i32x4(y, x[i + 4], 0x88);
		x[i + 4] = _mm512_shuffle_i32x4(y, x[i + 4], 0xdd);
	}
}

/* The same of 16 bytes. */
INLINE void turn_rows16(const uint8_t *const *row, size_t at, __m512i *x)
{
	for (uint32_t i = 0; i < 4; i++) {
		x[i] = _mm512_broadcast_i32x4(load128(row[i] + at));
		x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x00f0, load128(row[i + 4] + at));
		x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x0f00, load128(row[i + 8] + at));
		x[i] = _mm512_mask_broadcast_i32x4(x[i], 0xf000, load128(row[i + 12] + at));
	}
	turn_lanes(x);
}

/*
 * The rows' dwords, each with sixteen rows in its lanes. The last 16 bytes of a row may be read
 * twice: nothing beyond it is.
 */
INLINE void turn_all(const uint8_t *const *row, uint32_t bytes, __m512i *x)
{
	uint32_t at = 0;

	for (; at + 32 <= bytes; at += 32)
		turn_rows32(row, at, x + at / 4);
	if (at + 16 <= bytes) {
		turn_rows16(row, at, x + at / 4);
		at += 16;
	}
	if (at < bytes)
		turn_rows16(row, bytes - 16, x + (bytes - 16) / 4);
}

#define PER_BITS(bits, call)     \
	do {                     \
		switch (bits) {  \
		case 2:          \
			call(2); \
			break;   \
		case 3:          \
			call(3); \
			break;   \
		case 4:          \
			call(4); \
			break;   \
		default:         \
			call(8); \
			break;   \
		}                \
	} while (0)

#endif
