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

/* Appends the components from c on whose quotients are not 0. */
INLINE void append(
	const struct pca_unit *u, uint32_t c, __mmask16 in, __m512i q, struct pca_list *list)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i m = _mm512_abs_epi32(q);
	const __mmask16 more = _mm512_cmpgt_epi32_mask(m, _mm512_set1_epi32(1));
	const __m512i sign = _mm512_and_si512(q, _mm512_set1_epi32(INT32_MIN));
	const __m512 offset = _mm512_mask_blend_ps(
		more, _mm512_loadu_ps(u->offset[0] + c), _mm512_loadu_ps(u->offset[1] + c));
	const __m512 v = _mm512_xor_ps(
		_mm512_sub_ps(_mm512_cvtepi32_ps(m), offset), _mm512_castsi512_ps(sign));

	in &= _mm512_test_epi32_mask(q, q);
	in &= _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_OQ);
	_mm512_storeu_ps(list->value + list->n, _mm512_maskz_compress_ps(in, v));
	_mm256_storeu_si256((__m256i *)(void *)(list->at + list->n),
		_mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(
			in, _mm512_add_epi32(lane, _mm512_set1_epi32((int)(c % PCA_CHUNK))))));
	list->n += (uint32_t)__builtin_popcount(in);
}

static void lists(const struct pca_unit *u, const struct pca_tile *tile, uint32_t at,
	uint32_t first, const uint8_t **escape, struct pca_list *list)
{
	const uint32_t end = u->rank - first < PCA_CHUNK ? u->rank : first + PCA_CHUNK;
	const __m512i zero = _mm512_set1_epi8((char)KVP_CALIB_ZERO);
	int32_t high[PCA_ROWS][PCA_BLOCK];

	for (uint32_t t = 0; t < PCA_ROWS; t++)
		list[t].n = 0;
	for (uint32_t c = first; c < end; c += PCA_BLOCK) {
		const uint8_t *lines = tile->sym + c * PCA_TILE + at;
		const uint32_t n = end - c < PCA_BLOCK ? end - c : PCA_BLOCK;
		const __mmask16 in = (__mmask16)((1u << n) - 1);
		const __m512i a = load_eight(lines), b = load_eight(lines + 8 * PCA_TILE);
		struct block sym, low;
		int escapes;

		if (!u->shifts &&
			!(_mm512_cmpneq_epi8_mask(a, zero) | _mm512_cmpneq_epi8_mask(b, zero)))
			continue;
		escapes = (_mm512_testn_epi8_mask(a, a) | _mm512_testn_epi8_mask(b, b)) != 0;
		if (escapes)
			take_escapes(lines, n, escape, high);
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
			append(u, c, in, q, &list[t]);
		}
	}
}

void kvp_pca_slots_avx512(struct dsp *dsp)
{
	dsp->pca_project = project;
	dsp->pca_build = build;
	dsp->pca_symbols = symbols;
	dsp->pca_lists = lists;
}
