/* SPDX-License-Identifier: Apache-2.0 */
/* The transforms of `pca` with 16 floats to a register: the bytes of pca.c. */
#define LANES  16u
#define TOKENS 8u
#define VECS   2u
#include "kernels/pca.h"
#include "kernels/pca_rows.h"
#include "kernels/x86_avx512.h"

/* ---- symbols: PCA_BLOCK components of PCA_ROWS tokens at a time ---- */

/* Eight rows of eight bytes to columns. */
INLINE __m512i turn_bytes(__m512i x)
{
	const __m512i pairs = _mm512_broadcast_i32x4(
		_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
	const __m512i order =
		_mm512_cvtepu8_epi16(_mm256_setr_epi8(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3,
			11, 19, 27, 4, 12, 20, 28, 5, 13, 21, 29, 6, 14, 22, 30, 7, 15, 23, 31));

	return _mm512_permutexvar_epi16(order, _mm512_shuffle_epi8(x, pairs));
}

/* Eight bytes of each of two, four and eight lines, which are PCA_TILE apart; no gather is faster. */
INLINE __m128i load_pair(const uint8_t *lines)
{
	const __m128i low = _mm_loadl_epi64((const __m128i *)(const void *)lines);

	return _mm_castps_si128(_mm_loadh_pi(
		_mm_castsi128_ps(low), (const __m64 *)(const void *)(lines + PCA_TILE)));
}

INLINE __m256i load_four(const uint8_t *lines)
{
	return _mm256_inserti128_si256(
		_mm256_castsi128_si256(load_pair(lines)), load_pair(lines + 2 * PCA_TILE), 1);
}

INLINE __m512i load_eight(const uint8_t *lines)
{
	return _mm512_inserti64x4(
		_mm512_castsi256_si512(load_four(lines)), load_four(lines + 4 * PCA_TILE), 1);
}

INLINE void store_pair(uint8_t *lines, __m128i x)
{
	_mm_storel_pi((__m64 *)(void *)lines, _mm_castsi128_ps(x));
	_mm_storeh_pi((__m64 *)(void *)(lines + PCA_TILE), _mm_castsi128_ps(x));
}

INLINE void store_eight(uint8_t *lines, __m512i x)
{
	store_pair(lines, _mm512_castsi512_si128(x));
	store_pair(lines + 2 * PCA_TILE, _mm512_extracti32x4_epi32(x, 1));
	store_pair(lines + 4 * PCA_TILE, _mm512_extracti32x4_epi32(x, 2));
	store_pair(lines + 6 * PCA_TILE, _mm512_extracti32x4_epi32(x, 3));
}

/* Bytes of a block: of token t at (t / 2 + t % 2 * 4). */
struct block {
	__m512i token[2]; /* the even ones, the odd ones */
};

INLINE const uint8_t *bytes_of(const struct block *b, uint32_t t)
{
	return (const uint8_t *)&b->token[t % 2] + t / 2 * 16;
}

/* Lines of components, which are 8 bytes of a tile's PCA_TILE, and back. */
INLINE struct block block_of(__m512i first, __m512i second)
{
	const __m512i a = turn_bytes(first), b = turn_bytes(second);

	return (struct block){ { _mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b) } };
}

INLINE void store_block(const struct block *b, uint8_t *lines)
{
	const __m512i first = turn_bytes(_mm512_unpacklo_epi64(b->token[0], b->token[1]));
	const __m512i second = turn_bytes(_mm512_unpackhi_epi64(b->token[0], b->token[1]));

	store_eight(lines, first);
	store_eight(lines + 8 * PCA_TILE, second);
}

static void symbols(const struct pca_unit *u, const int32_t *q, uint32_t n, uint32_t at,
	struct pca_tile *tile, uint8_t *ret_odd)
{
	for (uint32_t c = 0; c < u->rank; c += PCA_BLOCK) {
		const __m512i shift = _mm512_loadu_si512(u->shift + c);
		const __m512i least = _mm512_loadu_si512(u->least + c);
		const __m512i most = _mm512_loadu_si512(u->most + c);
		const __m512i below = _mm512_sub_epi32(
			_mm512_sllv_epi32(_mm512_set1_epi32(1), shift), _mm512_set1_epi32(1));
		struct block sym, low;
		__mmask16 odd = 0;

		for (uint32_t t = 0; t < PCA_ROWS; t++) {
			const __m512i v = t < n ? _mm512_loadu_si512(q + t * u->rank_stride + c)
						: _mm512_setzero_si512();
			const __m512i high = _mm512_srav_epi32(v, shift);

			odd |= _mm512_cmplt_epi32_mask(high, least) |
			       _mm512_cmpgt_epi32_mask(high, most);
			_mm_store_si128((__m128i *)(void *)bytes_of(&sym, t),
				_mm512_cvtepi32_epi8(_mm512_add_epi32(
					high, _mm512_set1_epi32((int)KVP_CALIB_ZERO))));
			if (u->shifts)
				_mm_store_si128((__m128i *)(void *)bytes_of(&low, t),
					_mm512_cvtepi32_epi8(_mm512_and_si512(v, below)));
		}
		ret_odd[c / PCA_BLOCK] = odd != 0;
		store_block(&sym, tile->sym + c * PCA_TILE + at);
		if (u->shifts)
			store_block(&low, tile->low + c * PCA_TILE + at);
	}
}

/* Lines of n components from c on: their escapes, in the order in which they were written. */
static void take_escapes(
	const uint8_t *lines, uint32_t n, const uint8_t **escape, int32_t high[][PCA_BLOCK])
{
	for (uint32_t c = 0; c < n; c++)
		for (uint32_t t = 0; t < PCA_ROWS; t++) {
			int16_t v;

			if (lines[c * PCA_TILE + t] != KVP_CALIB_ESCAPE)
				continue;
			memcpy(&v, *escape, sizeof v);
			*escape += sizeof v;
			high[t][c] = v;
		}
}

INLINE __m512i widen(const uint8_t *bytes)
{
	return _mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)(const void *)bytes));
}

/* What PCA_BLOCK quotients of components from c on stand for. */
INLINE __m512i values_of(const struct pca_unit *u, uint32_t c, __mmask16 in, __m512i q)
{
	const __m512i m = _mm512_abs_epi32(q);
	const __mmask16 more = _mm512_cmpgt_epi32_mask(m, _mm512_set1_epi32(1));
	const __m512i offset = _mm512_mask_blend_epi32(
		more, _mm512_loadu_si512(u->offset[0] + c), _mm512_loadu_si512(u->offset[1] + c));
	const __m512i v = _mm512_maskz_sub_epi32(_mm512_mask_test_epi32_mask(in, q, q),
		_mm512_slli_epi32(m, PCA_VALUE_BITS), offset);

	return _mm512_mask_sub_epi32(v, _mm512_movepi32_mask(q), _mm512_setzero_si512(), v);
}

INLINE void store_words(void *to, __mmask16 in, __m512i x)
{
	_mm256_storeu_si256(to, _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(in, x)));
}

/* Appends the components from c on that are not 0 in both tokens. */
INLINE void append(uint32_t c, __m512i even, __m512i odd, struct pca_pair *pair)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i any = _mm512_or_si512(even, odd);
	const __mmask16 in = _mm512_test_epi32_mask(any, any);

	store_words(pair->at + pair->n, in, _mm512_add_epi32(lane, _mm512_set1_epi32((int)c)));
	store_words(pair->value[0] + pair->n, in, even);
	store_words(pair->value[1] + pair->n, in, odd);
	pair->n += (uint32_t)__builtin_popcount(in);
}

/* What 16 bits have of it. */
INLINE __m512i part_of(__m512i v)
{
	return _mm512_max_epi32(
		_mm512_min_epi32(v, _mm512_set1_epi32(INT16_MAX)), _mm512_set1_epi32(-INT16_MAX));
}

static void append_parts(uint32_t c, __m512i even, __m512i odd, struct pca_pair *pair)
{
	for (;;) {
		const __m512i part[2] = { part_of(even), part_of(odd) };
		__m512i left;

		append(c, part[0], part[1], pair);
		even = _mm512_sub_epi32(even, part[0]);
		odd = _mm512_sub_epi32(odd, part[1]);
		left = _mm512_or_si512(even, odd);
		if (!_mm512_test_epi32_mask(left, left))
			return;
		if (pair->n > c + PCA_MORE)
			break;
	}
	pair->wide |= PCA_WIDE_VALUE;
}

static void finish(const __m512i *size, struct pca_pair *pair)
{
	if (_mm512_reduce_add_epi32(size[0]) > PCA_SUM_MAX ||
		_mm512_reduce_add_epi32(size[1]) > PCA_SUM_MAX)
		pair->wide |= PCA_WIDE_SUM;
	pair->at[pair->n] = 0;
	pair->value[0][pair->n] = pair->value[1][pair->n] = 0;
	pair->n += pair->n % 2;
}

static void lists(const struct pca_unit *u, const struct pca_tile *tile, uint32_t at,
	const uint8_t *escape, struct pca_pair *pair)
{
	const __m512i zero = _mm512_set1_epi8((char)KVP_CALIB_ZERO);
	int32_t high[PCA_ROWS][PCA_BLOCK];
	__m512i size[PCA_ROWS], v[2];

	for (uint32_t t = 0; t < PCA_ROWS; t++) {
		pair[t / 2].n = pair[t / 2].wide = 0;
		size[t] = _mm512_setzero_si512();
	}
	for (uint32_t c = 0; c < u->rank; c += PCA_BLOCK) {
		const uint8_t *lines = tile->sym + c * PCA_TILE + at;
		const uint32_t n = u->rank - c < PCA_BLOCK ? u->rank - c : PCA_BLOCK;
		const __mmask16 in = (__mmask16)((1u << n) - 1);
		const __m512i a = load_eight(lines), b = load_eight(lines + 8 * PCA_TILE);
		struct block sym, low;
		int escapes;

		if (!u->shifts &&
			!(_mm512_cmpneq_epi8_mask(a, zero) | _mm512_cmpneq_epi8_mask(b, zero)))
			continue;
		escapes = (_mm512_testn_epi8_mask(a, a) | _mm512_testn_epi8_mask(b, b)) != 0;
		if (escapes)
			take_escapes(lines, n, &escape, high);
		sym = block_of(a, b);
		if (u->shifts) {
			lines = tile->low + c * PCA_TILE + at;
			low = block_of(load_eight(lines), load_eight(lines + 8 * PCA_TILE));
		}
		for (uint32_t t = 0; t < PCA_ROWS; t++) {
			const __m512i s = widen(bytes_of(&sym, t));
			__m512i q = _mm512_sub_epi32(s, _mm512_set1_epi32((int)KVP_CALIB_ZERO));

			if (escapes)
				q = _mm512_mask_loadu_epi32(
					q, _mm512_testn_epi32_mask(s, s) & in, high[t]);
			if (u->shifts) {
				const __m512i shift = _mm512_loadu_si512(u->shift + c);

				q = _mm512_sllv_epi32(q, shift);
				q = _mm512_mask_add_epi32(q, _mm512_test_epi32_mask(shift, shift),
					q, widen(bytes_of(&low, t)));
			}
			v[t % 2] = values_of(u, c, in, q);
			/* No larger than matters, or sums of escapes would have more than 32 bits. */
			size[t] = _mm512_add_epi32(
				size[t], _mm512_min_epi32(_mm512_abs_epi32(v[t % 2]),
						 _mm512_set1_epi32(PCA_SUM_MAX + 1)));
			if (t % 2 && (escapes || u->shifts))
				append_parts(c, v[0], v[1], &pair[t / 2]);
			else if (t % 2)
				append(c, v[0], v[1], &pair[t / 2]);
		}
	}
	for (uint32_t t = 0; t < PCA_ROWS; t += 2)
		finish(size + t, &pair[t / 2]);
}

/* ---- back ---- */

#define PARTS (PCA_ALIGN / 32u) /* registers of words */

/*
 * Sums of 32 channels, in the order in which words of two rows are interleaved, to channels, or without a
 * scale as they are.
 */
INLINE void store_sums(__m512i low, __m512i high, const float *mean, const float *scale, float *y)
{
	const __m512i order[2] = { _mm512_setr_epi32(
					   0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
		_mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31) };

	for (uint32_t i = 0; i < 2; i++) {
		const __m512i sums = _mm512_permutex2var_epi32(low, order[i], high);
		const __m512 sum = _mm512_cvtepi32_ps(sums);

		if (!scale) {
			_mm512_storeu_si512(y + 16 * i, sums);
			continue;
		}
		_mm512_storeu_ps(
			y + 16 * i, _mm512_add_ps(_mm512_loadu_ps(mean + 16 * i),
					    _mm512_mul_ps(_mm512_loadu_ps(scale + 16 * i), sum)));
	}
}

/* The next two values of a token. */
INLINE __m512i two_of(const int16_t *value)
{
	int32_t v;

	memcpy(&v, value, sizeof v);
	return _mm512_set1_epi32(v);
}

/* Two rows, interleaved, serve two tokens. */
static __attribute__((noinline)) void build_pair(const struct pca_pair *pair, const int16_t *axes,
	const float *mean, const float *scale, uint32_t stride, float *y)
{
	__m512i sum[2][2 * PARTS];

	UNROLL for (uint32_t i = 0; i < 2 * PARTS; i++) sum[0][i] = sum[1][i] =
		_mm512_setzero_si512();
	for (uint32_t k = 0; k < pair->n; k += 2) {
		const int16_t *a = axes + pair->at[k] * PCA_ALIGN,
			      *b = axes + pair->at[k + 1] * PCA_ALIGN;
		const __m512i v[2] = { two_of(pair->value[0] + k), two_of(pair->value[1] + k) };

		UNROLL for (uint32_t i = 0; i < PARTS; i++)
		{
			const __m512i x = _mm512_load_si512(a + 32 * i),
				      z = _mm512_load_si512(b + 32 * i);
			const __m512i low = _mm512_unpacklo_epi16(x, z),
				      high = _mm512_unpackhi_epi16(x, z);

			UNROLL for (uint32_t t = 0; t < 2; t++)
			{
				sum[t][2 * i] = _mm512_dpwssd_epi32(sum[t][2 * i], low, v[t]);
				sum[t][2 * i + 1] =
					_mm512_dpwssd_epi32(sum[t][2 * i + 1], high, v[t]);
			}
		}
	}
	UNROLL for (uint32_t i = 0; i < PARTS; i++) UNROLL for (uint32_t t = 0; t < 2; t++)
		store_sums(sum[t][2 * i], sum[t][2 * i + 1], mean + 32 * i,
			scale ? scale + 32 * i : NULL, y + t * stride + 32 * i);
}

static void build(const struct kvp_pca *pca, const struct pca_unit *u, const struct pca_pair *pair,
	uint32_t n, float *y)
{
	const uint32_t stride = pca->width_stride;

	for (uint32_t i = 0; i < stride; i += PCA_ALIGN)
		for (uint32_t t = 0; t < n; t += 2)
			if (!(pair[t / 2].wide & ~PCA_SUMS))
				build_pair(&pair[t / 2], u->inverse + (size_t)i * u->rank,
					u->mean + i, pair[t / 2].wide ? NULL : u->scale + i, stride,
					y + (size_t)t * stride + i);
}

void kvp_pca_slots_avx512(struct dsp *dsp)
{
	dsp->pca_project = project;
	dsp->pca_build = build;
	dsp->pca_symbols = symbols;
	dsp->pca_lists = lists;
}
