/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Token ids as callers have them. Those of 32 bits are used where they lie; those of 64 bits are
 * narrowed a few blocks at a time.
 */
#include "libclient/match.h"

#ifdef __SSE2__
#include <emmintrin.h>

/*
 * A match of 64 blocks takes about as long as these loops do when the compiler leaves them as they are written, and without
 * -O3 it does.
 */
#define STEP 8u /* ids at a time */

static __m128i load(const void *p)
{
	return _mm_loadu_si128(p);
}

/* All bits that any of the first ids has, in whole steps; *ret_n says how many ids those are. */
static uint64_t bits_of_wide(const int64_t *ids, size_t n, size_t *ret_n)
{
	__m128i a = _mm_setzero_si128(), b = a;
	uint64_t both[2];
	size_t i = 0;

	for (; n - i >= STEP; i += STEP) {
		a = _mm_or_si128(a, _mm_or_si128(load(ids + i), load(ids + i + 2)));
		b = _mm_or_si128(b, _mm_or_si128(load(ids + i + 4), load(ids + i + 6)));
	}
	_mm_storeu_si128((void *)both, _mm_or_si128(a, b));
	*ret_n = i;
	return both[0] | both[1];
}

static uint32_t bits_of_plain(const kvp_token *ids, size_t n, size_t *ret_n)
{
	__m128i a = _mm_setzero_si128(), b = a;
	uint32_t four[4];
	size_t i = 0;

	for (; n - i >= STEP; i += STEP) {
		a = _mm_or_si128(a, load(ids + i));
		b = _mm_or_si128(b, load(ids + i + 4));
	}
	_mm_storeu_si128((void *)four, _mm_or_si128(a, b));
	*ret_n = i;
	return four[0] | four[1] | four[2] | four[3];
}

/* The lower halves of four ids. */
static __m128i narrow(const int64_t *ids)
{
	return _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(load(ids)),
		_mm_castsi128_ps(load(ids + 2)), _MM_SHUFFLE(2, 0, 2, 0)));
}

static uint32_t narrow_steps(const int64_t *ids, uint32_t n, kvp_token *room)
{
	uint32_t i = 0;

	for (; n - i >= STEP; i += STEP) {
		_mm_storeu_si128((void *)(room + i), narrow(ids + i));
		_mm_storeu_si128((void *)(room + i + 4), narrow(ids + i + 4));
	}
	return i;
}
#else
static uint64_t bits_of_wide(const int64_t *ids, size_t n, size_t *ret_n)
{
	(void)ids, (void)n;
	*ret_n = 0;
	return 0;
}

static uint32_t bits_of_plain(const kvp_token *ids, size_t n, size_t *ret_n)
{
	(void)ids, (void)n;
	*ret_n = 0;
	return 0;
}

static uint32_t narrow_steps(const int64_t *ids, uint32_t n, kvp_token *room)
{
	(void)ids, (void)n, (void)room;
	return 0;
}
#endif

/* Has any of them bits that no token id has? */
static int wide_bad(const int64_t *ids, size_t n)
{
	size_t i;
	uint64_t bits = bits_of_wide(ids, n, &i);

	for (; i < n; i++)
		bits |= (uint64_t)ids[i];
	return bits >> 32 != 0;
}

static int negative(const kvp_token *ids, size_t n)
{
	size_t i;
	uint32_t bits = bits_of_plain(ids, n, &i);

	for (; i < n; i++)
		bits |= ids[i];
	return bits >> 31 != 0;
}

int tokens_take(const struct kvp_ids *ids, struct tokens *ret_tokens)
{
	int wide = ids->type == KVP_IDS_I64;

	if ((ids->n && !ids->ids) || ids->n > MAX_TOKENS || ids->type > KVP_IDS_I64)
		return -EINVAL;
	if ((wide && wide_bad(ids->ids, ids->n)) ||
		(ids->type == KVP_IDS_I32 && negative(ids->ids, ids->n)))
		return -EINVAL;
	ret_tokens->n = (uint32_t)ids->n;
	ret_tokens->plain = wide ? NULL : ids->ids;
	ret_tokens->wide = wide ? ids->ids : NULL;
	return 0;
}

const kvp_token *tokens_narrow(
	const struct tokens *tokens, uint32_t at, uint32_t n, kvp_token *room)
{
	for (uint32_t i = narrow_steps(tokens->wide + at, n, room); i < n; i++)
		room[i] = (kvp_token)tokens->wide[at + i];
	return room;
}
