/* SPDX-License-Identifier: Apache-2.0 */
/* The entropy coder with 16 lanes to a register: the bytes of rans.c. */
#include "kernels/dsp.h"
#include "kernels/split.h"
#include "kernels/x86_avx512.h"

#include <errno.h>

/* ---- coding ---- */

/* floor(x / f): what a division in double is off is less than the 1 / f to the next integer. */
INLINE __m512i quotient(__m512i x, __m512i f)
{
	const __m256i lo =
		_mm512_cvttpd_epu32(_mm512_div_pd(_mm512_cvtepu32_pd(_mm512_castsi512_si256(x)),
			_mm512_cvtepu32_pd(_mm512_castsi512_si256(f))));
	const __m256i hi = _mm512_cvttpd_epu32(
		_mm512_div_pd(_mm512_cvtepu32_pd(_mm512_extracti64x4_epi64(x, 1)),
			_mm512_cvtepu32_pd(_mm512_extracti64x4_epi64(f, 1))));

	return _mm512_inserti64x4(_mm512_castsi256_si512(lo), hi, 1);
}

/* Writes the words that lanes are too full for, and takes them off. */
INLINE __m512i empty_into(__m512i x, __m512i f, struct rans_writer *w)
{
	const __mmask16 full = _mm512_cmpge_epu32_mask(_mm512_srli_epi32(x, 32 - RANS_BITS), f);
	const uint32_t n = (uint32_t)__builtin_popcount(full);

	w->at -= 2 * n;
	_mm256_mask_storeu_epi16(w->at, (__mmask16)((1u << n) - 1),
		_mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(full, x)));
	return _mm512_mask_srli_epi32(x, full, x, 16);
}

INLINE __m512i encode16(
	const struct rans_coder *c, const uint8_t *sym, __m512i x, struct rans_writer *w)
{
	const __m512i s = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)sym));
	const __m512i e = _mm512_i32gather_epi32(s, c->word, 4);
	const __m512i f = _mm512_and_si512(e, _mm512_set1_epi32(0xffff));

	x = empty_into(x, f, w);
	x = _mm512_add_epi32(x, _mm512_mullo_epi32(quotient(x, f),
					_mm512_sub_epi32(_mm512_set1_epi32((int)RANS_TOTAL), f)));
	return _mm512_add_epi32(x, _mm512_srli_epi32(e, 16));
}

/*
 * floor(x / f) by f's inverse: (x + .5) / f is .5 / f at least from any integer, and what rounding takes it
 * off is less than 2^-20.
 */
INLINE __m256i quotient8(__m256i x, double inverse)
{
	return _mm512_cvttpd_epu32(
		_mm512_mul_pd(_mm512_add_pd(_mm512_cvtepu32_pd(x), _mm512_set1_pd(0.5)),
			_mm512_set1_pd(inverse)));
}

/* All lanes code the same symbol. */
INLINE __m512i encode_alike(uint32_t word, double inverse, __m512i x, struct rans_writer *w)
{
	const uint32_t f = word & 0xffffu;
	__m512i q;

	x = empty_into(x, _mm512_set1_epi32((int)f), w);
	q = _mm512_inserti64x4(
		_mm512_castsi256_si512(quotient8(_mm512_castsi512_si256(x), inverse)),
		quotient8(_mm512_extracti64x4_epi64(x, 1), inverse), 1);
	x = _mm512_add_epi32(x, _mm512_mullo_epi32(q, _mm512_set1_epi32((int)(RANS_TOTAL - f))));
	return _mm512_add_epi32(x, _mm512_set1_epi32((int)(word >> 16)));
}

INLINE int alike(const uint8_t *sym)
{
	const __m256i all = _mm256_loadu_si256((const __m256i *)(const void *)sym);

	return _mm256_cmpeq_epi8_mask(all, _mm256_set1_epi8((char)sym[0])) == UINT32_MAX;
}

/* A group. */
INLINE void encode32(
	const struct rans_coder *c, const uint8_t *sym, __m512i *x, struct rans_writer *w)
{
	if (alike(sym)) {
		const uint32_t word = c->word[sym[0]];
		const double inverse = 1.0 / (word & 0xffffu);

		x[1] = encode_alike(word, inverse, x[1], w);
		x[0] = encode_alike(word, inverse, x[0], w);
		return;
	}
	x[1] = encode16(c, sym + 16, x[1], w);
	x[0] = encode16(c, sym, x[0], w);
}

static int encode(const struct rans_coder *c, const uint8_t *sym, size_t n, struct rans_writer *w)
{
	size_t whole = n & ~(size_t)(RANS_LANES - 1);
	__m512i x[2];

	if (whole < n) {
		int r = kvp_rans_encode_c(c, sym + whole, n - whole, w);

		if (r < 0)
			return r;
	}
	for (int i = 0; i < 2; i++)
		x[i] = _mm512_loadu_si512(w->x + 16 * i);
	for (size_t i = whole; i; i -= RANS_LANES) {
		if (w->at - w->floor < (ptrdiff_t)RANS_GROUP_BYTES)
			return -ENOSPC;
		encode32(c, sym + i - RANS_LANES, x, w);
	}
	for (int i = 0; i < 2; i++)
		_mm512_storeu_si512(w->x + 16 * i, x[i]);
	return 0;
}

/* ---- decoding ---- */

INLINE __m512i slots_of(__m512i x)
{
	return _mm512_and_si512(x, _mm512_set1_epi32((int)(RANS_TOTAL - 1)));
}

/* Lanes that need a word. */
INLINE __mmask16 empty16(__m512i x)
{
	return _mm512_cmplt_epu32_mask(x, _mm512_set1_epi32((int)RANS_LOW));
}

/* What empty lanes take of the 32 bytes at *at, which goes on by as many as that is. */
INLINE __m512i fill16(__m512i x, const uint8_t **at)
{
	const __mmask16 empty = empty16(x);
	const __m512i words =
		_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)*at));

	*at += 2 * __builtin_popcount(empty);
	return _mm512_mask_or_epi32(
		x, empty, _mm512_slli_epi32(x, 16), _mm512_maskz_expand_epi32(empty, words));
}

/* Decodes one symbol a lane. */
INLINE __m512i decode16(const struct rans_table *t, __m512i x, const uint8_t **at, uint8_t *sym)
{
	const __m512i e = _mm512_i32gather_epi32(slots_of(x), t->slot, 4);
	const __m512i f = _mm512_add_epi32(slots_of(_mm512_srli_epi32(e, 8)), _mm512_set1_epi32(1));

	_mm_storeu_si128((__m128i *)(void *)sym, _mm512_cvtepi32_epi8(e));
	x = _mm512_add_epi32(
		_mm512_mullo_epi32(_mm512_srli_epi32(x, RANS_BITS), f), _mm512_srli_epi32(e, 20));
	return fill16(x, at);
}

/* Lanes whose symbol is the common one. */
INLINE __mmask16 common16(const struct rans_table *t, __m512i x)
{
	return _mm512_cmplt_epu32_mask(
		_mm512_sub_epi32(slots_of(x), _mm512_set1_epi32((int)t->start)),
		_mm512_set1_epi32((int)t->freq));
}

/* Lanes of which each decodes that. */
INLINE __m512i skip16(const struct rans_table *t, __m512i x)
{
	return _mm512_add_epi32(_mm512_mullo_epi32(_mm512_srli_epi32(x, RANS_BITS),
					_mm512_set1_epi32((int)t->freq)),
		_mm512_sub_epi32(slots_of(x), _mm512_set1_epi32((int)t->start)));
}

/* A group; reads up to 64 bytes at *at. Most groups of a table with a common symbol look nothing up. */
INLINE void decode32(const struct rans_table *t, __m512i *x, const uint8_t **at, uint8_t *sym)
{
	if (t->freq >= RANS_COMMON &&
		(common16(t, x[0]) & common16(t, x[1])) == (__mmask16)UINT16_MAX) {
		_mm256_storeu_si256((__m256i *)(void *)sym, _mm256_set1_epi8((char)t->common));
		x[0] = skip16(t, x[0]);
		x[1] = skip16(t, x[1]);
		if (empty16(x[0]) | empty16(x[1])) {
			x[0] = fill16(x[0], at);
			x[1] = fill16(x[1], at);
		}
		return;
	}
	x[0] = decode16(t, x[0], at, sym);
	x[1] = decode16(t, x[1], at, sym + 16);
}

static void decode(const struct rans_table *t, struct rans_reader *r, uint8_t *sym, size_t n)
{
	size_t whole = n & ~(size_t)(RANS_LANES - 1), i = 0;
	__m512i x[2];

	for (int j = 0; j < 2; j++)
		x[j] = _mm512_loadu_si512(r->x + 16 * j);
	for (; i < whole && r->end - r->at >= (ptrdiff_t)RANS_GROUP_BYTES; i += RANS_LANES)
		decode32(t, x, &r->at, sym + i);
	for (; i < whole; i += RANS_LANES) {
		uint8_t rest[RANS_GROUP_BYTES];
		const uint8_t *at = kvp_rans_rest(r, rest);

		decode32(t, x, &at, sym + i);
		kvp_rans_skip(r, (size_t)(at - rest));
	}
	for (int j = 0; j < 2; j++)
		_mm512_storeu_si512(r->x + 16 * j, x[j]);
	if (whole < n)
		kvp_rans_decode_c(t, r, sym + whole, n - whole);
}

/* ---- bytes of words ---- */

static void split(uint32_t rotate, const uint8_t *words, uint32_t n, uint8_t *high, uint8_t *low)
{
	split_words(rotate, words, n, high, low);
}

static void join(
	uint32_t rotate, const uint8_t *high, const uint8_t *low, uint32_t n, uint8_t *words)
{
	join_words(rotate, high, low, n, words);
}

void kvp_rans_slots_avx512(struct dsp *dsp)
{
	dsp->rans_encode = encode;
	dsp->rans_decode = decode;
	dsp->split = split;
	dsp->join = join;
}
