/* SPDX-License-Identifier: Apache-2.0 */
/* The entropy coder with 8 lanes to a register: the bytes of rans.c. Coding is that of rans.c. */
#include "kernels/dsp.h"
#include "kernels/split.h"
#include "kernels/x86_avx2.h"

#define REGISTERS (RANS_LANES / 8)

/*
 * Which of the next words each lane of a mask takes: as many places on as there are lanes before it
 * in the mask. Eight numbers of four bits.
 */
#define BEFORE1(m) ((m)&1u)
#define BEFORE2(m) (BEFORE1(m) + ((m) >> 1 & 1u))
#define BEFORE3(m) (BEFORE2(m) + ((m) >> 2 & 1u))
#define BEFORE4(m) (BEFORE3(m) + ((m) >> 3 & 1u))
#define BEFORE5(m) (BEFORE4(m) + ((m) >> 4 & 1u))
#define BEFORE6(m) (BEFORE5(m) + ((m) >> 5 & 1u))
#define BEFORE7(m) (BEFORE6(m) + ((m) >> 6 & 1u))
#define PLACES(m)                                                                  \
	(BEFORE1(m) << 4 | BEFORE2(m) << 8 | BEFORE3(m) << 12 | BEFORE4(m) << 16 | \
		BEFORE5(m) << 20 | BEFORE6(m) << 24 | BEFORE7(m) << 28)
#define PLACES4(m)  PLACES(m), PLACES((m) + 1u), PLACES((m) + 2u), PLACES((m) + 3u)
#define PLACES16(m) PLACES4(m), PLACES4((m) + 4u), PLACES4((m) + 8u), PLACES4((m) + 12u)
#define PLACES64(m) PLACES16(m), PLACES16((m) + 16u), PLACES16((m) + 32u), PLACES16((m) + 48u)
static const uint32_t places[256] = { PLACES64(0u), PLACES64(64u), PLACES64(128u), PLACES64(192u) };

INLINE __m256i slots_of(__m256i x)
{
	return _mm256_and_si256(x, _mm256_set1_epi32((int)(RANS_TOTAL - 1)));
}

/* Lanes that need a word. */
INLINE __m256i empty8(__m256i x)
{
	return _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
}

/* What empty lanes take of the 16 bytes at *at, which goes on by as many as that is. */
INLINE __m256i fill8(__m256i x, const uint8_t **at)
{
	const __m256i shifts = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
	const __m256i empty = empty8(x);
	const uint32_t mask = (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(empty));
	__m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)*at));

	words = _mm256_permutevar8x32_epi32(
		words, _mm256_srlv_epi32(_mm256_set1_epi32((int)places[mask]), shifts));
	*at += 2 * __builtin_popcount(mask);
	return _mm256_blendv_epi8(x, _mm256_or_si256(_mm256_slli_epi32(x, 16), words), empty);
}

/* Decodes one symbol a lane, in the low bytes. */
INLINE __m256i decode8(const struct rans_table *t, __m256i *state, const uint8_t **at)
{
	const __m256i e =
		_mm256_i32gather_epi32((const int *)(const void *)t->slot, slots_of(*state), 4);
	const __m256i f = _mm256_add_epi32(slots_of(_mm256_srli_epi32(e, 8)), _mm256_set1_epi32(1));

	*state = fill8(_mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(*state, RANS_BITS), f),
			       _mm256_srli_epi32(e, 20)),
		at);
	return _mm256_and_si256(e, _mm256_set1_epi32(0xff));
}

/* Which of the common symbol's slots a lane is in; what is none is negative or too large. */
INLINE __m256i common8(const struct rans_table *t, __m256i x)
{
	return _mm256_sub_epi32(slots_of(x), _mm256_set1_epi32((int)t->start));
}

/* Whether all lanes are in one of them. */
INLINE int all_common(const struct rans_table *t, const __m256i *x)
{
	__m256i others = _mm256_setzero_si256();

	for (uint32_t i = 0; i < REGISTERS; i++) {
		const __m256i slot = common8(t, x[i]);

		others = _mm256_or_si256(others, slot);
		others = _mm256_or_si256(
			others, _mm256_sub_epi32(_mm256_set1_epi32((int)t->freq - 1), slot));
	}
	return !_mm256_movemask_ps(_mm256_castsi256_ps(others));
}

/* Each lane decodes it. */
INLINE void skip32(const struct rans_table *t, __m256i *x, const uint8_t **at)
{
	__m256i empty = _mm256_setzero_si256();

	for (uint32_t i = 0; i < REGISTERS; i++) {
		x[i] = _mm256_add_epi32(_mm256_mullo_epi32(_mm256_srli_epi32(x[i], RANS_BITS),
						_mm256_set1_epi32((int)t->freq)),
			common8(t, x[i]));
		empty = _mm256_or_si256(empty, empty8(x[i]));
	}
	if (!_mm256_movemask_ps(_mm256_castsi256_ps(empty)))
		return;
	for (uint32_t i = 0; i < REGISTERS; i++)
		x[i] = fill8(x[i], at);
}

/* A group; reads up to 64 bytes at *at. Most groups of a table with a common symbol look nothing up. */
INLINE void decode32(const struct rans_table *t, __m256i *x, const uint8_t **at, uint8_t *sym)
{
	__m256i s[REGISTERS];

	if (t->freq >= RANS_COMMON && all_common(t, x)) {
		_mm256_storeu_si256((__m256i *)(void *)sym, _mm256_set1_epi8((char)t->common));
		skip32(t, x, at);
		return;
	}
	for (uint32_t i = 0; i < REGISTERS; i++)
		s[i] = decode8(t, &x[i], at);
	/* Packing goes by halves of registers, which the permutation then puts in order. */
	s[0] = _mm256_packus_epi16(_mm256_packs_epi32(s[0], s[1]), _mm256_packs_epi32(s[2], s[3]));
	s[0] = _mm256_permutevar8x32_epi32(s[0], _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
	_mm256_storeu_si256((__m256i *)(void *)sym, s[0]);
}

static void decode(const struct rans_table *t, struct rans_reader *r, uint8_t *sym, size_t n)
{
	size_t whole = n & ~(size_t)(RANS_LANES - 1), i = 0;
	__m256i x[REGISTERS];

	for (uint32_t j = 0; j < REGISTERS; j++)
		x[j] = _mm256_loadu_si256((const __m256i *)(const void *)(r->x + 8 * j));
	for (; i < whole && r->end - r->at >= (ptrdiff_t)RANS_GROUP_BYTES; i += RANS_LANES)
		decode32(t, x, &r->at, sym + i);
	for (; i < whole; i += RANS_LANES) {
		uint8_t rest[RANS_GROUP_BYTES];
		const uint8_t *at = kvp_rans_rest(r, rest);

		decode32(t, x, &at, sym + i);
		kvp_rans_skip(r, (size_t)(at - rest));
	}
	for (uint32_t j = 0; j < REGISTERS; j++)
		_mm256_storeu_si256((__m256i *)(void *)(r->x + 8 * j), x[j]);
	if (whole < n)
		kvp_rans_decode_c(t, r, sym + whole, n - whole);
}

static void split(uint32_t rotate, const uint8_t *words, uint32_t n, uint8_t *high, uint8_t *low)
{
	split_words(rotate, words, n, high, low);
}

static void join(
	uint32_t rotate, const uint8_t *high, const uint8_t *low, uint32_t n, uint8_t *words)
{
	join_words(rotate, high, low, n, words);
}

void kvp_rans_slots_avx2(struct dsp *dsp)
{
	dsp->rans_decode = decode;
	dsp->split = split;
	dsp->join = join;
}
