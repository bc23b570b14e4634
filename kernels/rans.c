/* SPDX-License-Identifier: Apache-2.0 */
/* The entropy coder's tables, and the coder in reference C. */
#include "kernels/rans.h"

#include <errno.h>
#include <string.h>

/* ---- frequencies and tables ---- */

static uint32_t most_frequent(const uint16_t *freq)
{
	uint32_t best = 0;

	for (uint32_t s = 1; s < RANS_SYMBOLS; s++)
		if (freq[s] > freq[best])
			best = s;
	return best;
}

void kvp_rans_normalise(const uint32_t *count, uint16_t *ret_freq)
{
	uint64_t total = 0;
	uint32_t sum = 0;

	for (uint32_t s = 0; s < RANS_SYMBOLS; s++)
		total += count[s];
	for (uint32_t s = 0; s < RANS_SYMBOLS; s++) {
		uint64_t f = (2 * RANS_TOTAL * (uint64_t)count[s] + total) / (2 * total);

		ret_freq[s] = (uint16_t)(count[s] && !f ? 1 : f);
		sum += ret_freq[s];
	}
	for (; sum < RANS_TOTAL; sum++)
		ret_freq[most_frequent(ret_freq)]++;
	for (; sum > RANS_TOTAL; sum--)
		ret_freq[most_frequent(ret_freq)]--;
}

/*
 * With m = floor(2^44 / f) + 1, x m / 2^44 exceeds x / f by less than 1 / f, which takes it past no
 * integer, as long as x f < 2^44; x < 2^20 f when a symbol is coded, so this holds up to f = 2^12.
 */
void kvp_rans_coder(const uint16_t *freq, struct rans_coder *ret_coder)
{
	uint32_t start = 0;

	for (uint32_t s = 0; s < RANS_SYMBOLS; s++) {
		ret_coder->word[s] = freq[s] | start << 16;
		ret_coder->inverse[s] = freq[s] ? (UINT64_C(1) << 44) / freq[s] + 1 : 0;
		start += freq[s];
	}
}

int kvp_rans_table(const uint16_t *freq, struct rans_table *ret_table)
{
	uint32_t sum = 0, at = 0;

	for (uint32_t s = 0; s < RANS_SYMBOLS; s++)
		sum += freq[s];
	if (sum != RANS_TOTAL)
		return -EBADMSG;
	ret_table->common = most_frequent(freq);
	ret_table->freq = freq[ret_table->common];
	for (uint32_t s = 0; s < RANS_SYMBOLS; s++) {
		if (s == ret_table->common)
			ret_table->start = at;
		for (uint32_t i = 0; i < freq[s]; i++)
			ret_table->slot[at++] = s | (freq[s] - 1u) << 8 | i << 20;
	}
	return 0;
}

/* ---- coding ---- */

struct rans_writer kvp_rans_writer(uint8_t *floor, uint8_t *top)
{
	struct rans_writer w = { .at = top, .floor = floor };

	for (uint32_t i = 0; i < RANS_LANES; i++)
		w.x[i] = RANS_LOW;
	return w;
}

/* Symbols of one group, or the first n of it. */
static void encode_group(
	const struct rans_coder *c, const uint8_t *sym, uint32_t n, struct rans_writer *w)
{
	for (uint32_t lane = n; lane-- > 0;) {
		uint32_t x = w->x[lane], f = c->word[sym[lane]] & 0xffffu;

		if (x >> (32 - RANS_BITS) >= f) {
			uint16_t word = (uint16_t)x;

			w->at -= sizeof word;
			memcpy(w->at, &word, sizeof word);
			x >>= 16;
		}
		x += (uint32_t)(x * c->inverse[sym[lane]] >> 44) * (RANS_TOTAL - f);
		w->x[lane] = x + (c->word[sym[lane]] >> 16);
	}
}

int kvp_rans_encode_c(
	const struct rans_coder *c, const uint8_t *sym, size_t n, struct rans_writer *w)
{
	size_t i = n & ~(size_t)(RANS_LANES - 1);

	for (;; i -= RANS_LANES) {
		if (w->at - w->floor < (ptrdiff_t)RANS_GROUP_BYTES)
			return -ENOSPC;
		encode_group(c, sym + i, n - i < RANS_LANES ? (uint32_t)(n - i) : RANS_LANES, w);
		if (!i)
			return 0;
	}
}

int kvp_rans_finish(struct rans_writer *w)
{
	if (w->at - w->floor < (ptrdiff_t)sizeof w->x)
		return -ENOSPC;
	w->at -= sizeof w->x;
	memcpy(w->at, w->x, sizeof w->x);
	return 0;
}

/* ---- decoding ---- */

int kvp_rans_reader(const uint8_t *in, size_t bytes, struct rans_reader *ret_reader)
{
	struct rans_reader r = { .at = in + RANS_STATE_BYTES, .end = in + bytes };

	if (bytes < RANS_STATE_BYTES || bytes % 2)
		return -EBADMSG;
	memcpy(r.x, in, sizeof r.x);
	*ret_reader = r;
	return 0;
}

static uint16_t next_word(struct rans_reader *r)
{
	uint16_t word = 0;

	if (r->at == r->end) {
		r->over = 1;
		return 0;
	}
	memcpy(&word, r->at, sizeof word);
	r->at += sizeof word;
	return word;
}

void kvp_rans_decode_c(const struct rans_table *t, struct rans_reader *r, uint8_t *sym, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t *x = &r->x[i % RANS_LANES], e = t->slot[*x % RANS_TOTAL];

		sym[i] = (uint8_t)e;
		*x = ((e >> 8 & (RANS_TOTAL - 1)) + 1) * (*x >> RANS_BITS) + (e >> 20);
		if (*x < RANS_LOW)
			*x = *x << 16 | next_word(r);
	}
}

const uint8_t *kvp_rans_rest(const struct rans_reader *r, uint8_t *rest)
{
	size_t left = (size_t)(r->end - r->at);

	memset(rest, 0, RANS_GROUP_BYTES);
	memcpy(rest, r->at, left < RANS_GROUP_BYTES ? left : RANS_GROUP_BYTES);
	return rest;
}

void kvp_rans_skip(struct rans_reader *r, size_t n)
{
	size_t left = (size_t)(r->end - r->at);

	r->over |= n > left;
	r->at += n < left ? n : left;
}

int kvp_rans_end(const struct rans_reader *r)
{
	uint32_t bad = r->over | (r->at != r->end);

	for (uint32_t i = 0; i < RANS_LANES; i++)
		bad |= r->x[i] ^ RANS_LOW;
	return bad ? -EBADMSG : 0;
}
