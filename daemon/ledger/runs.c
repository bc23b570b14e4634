/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of consecutive numbers: a bitmap, with two summaries that make the search short. */
#include "daemon/ledger/runs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mask(uint32_t n)
{
	return n >= 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1;
}

static void summarise(struct kvpd_runs *r, uint32_t w)
{
	uint64_t bit = UINT64_C(1) << (w & 63);

	if (r->free[w])
		r->some[w >> 6] |= bit;
	else
		r->some[w >> 6] &= ~bit;
	if (r->free[w] == ~UINT64_C(0))
		r->whole[w >> 6] |= bit;
	else
		r->whole[w >> 6] &= ~bit;
}

int kvpd_runs_init(struct kvpd_runs *r, uint32_t total)
{
	uint32_t words = (uint32_t)(((uint64_t)total + 63) / 64);
	uint32_t summary = (words + 63) / 64;

	memset(r, 0, sizeof(*r));
	r->free = calloc(words, sizeof(*r->free));
	r->some = calloc(summary, sizeof(*r->some));
	r->whole = calloc(summary, sizeof(*r->whole));
	if (!r->free || !r->some || !r->whole) {
		kvpd_runs_fini(r);
		return -ENOMEM;
	}
	r->total = total;
	r->words = words;
	r->n_free = total;
	for (uint32_t w = 0; w < words; w++) {
		r->free[w] = mask(total - w * 64 < 64 ? total - w * 64 : 64);
		summarise(r, w);
	}
	return 0;
}

void kvpd_runs_fini(struct kvpd_runs *r)
{
	free(r->free);
	free(r->some);
	free(r->whole);
	memset(r, 0, sizeof(*r));
}

/* Bits at which n free ones begin. */
static uint64_t starts(uint64_t word, uint32_t n)
{
	uint32_t have = 1;

	while (have < n) {
		uint32_t step = have < n - have ? have : n - have;

		word &= word >> step;
		have += step;
	}
	return word;
}

/*
 * First word from `from` on, around the end, that is set in the summary and holds a run of n, as
 * far as the look reaches; where it ended without one, *hint is where to go on.
 */
static uint32_t find(const struct kvpd_runs *r, const uint64_t *summary, uint32_t from, uint32_t n,
	uint32_t *hint)
{
	uint32_t n_summary = (r->words + 63) / 64, looked = 0;

	for (uint32_t i = 0; i <= n_summary; i++) {
		uint32_t s = (from / 64 + i) % n_summary;
		uint64_t bits = summary[s];

		if (i == 0)
			bits &= ~mask(from & 63);
		else if (i == n_summary)
			bits &= mask(from & 63);
		for (; bits; bits &= bits - 1) {
			uint32_t w = s * 64 + (uint32_t)__builtin_ctzll(bits);

			if (starts(r->free[w], n))
				return w;
			if (++looked == KVPD_RUN_LOOK) {
				*hint = w;
				return KVPD_RUN_NONE;
			}
		}
	}
	return KVPD_RUN_NONE;
}

static uint32_t take_at(struct kvpd_runs *r, uint32_t w, uint32_t bit, uint32_t n)
{
	r->free[w] &= ~(mask(n) << bit);
	r->n_free -= n;
	summarise(r, w);
	return w * 64 + bit;
}

uint32_t kvpd_runs_take(struct kvpd_runs *r, uint32_t n, uint32_t prefer)
{
	assert(n >= 1 && n <= KVPD_RUN_MAX);
	if (n > r->n_free)
		return KVPD_RUN_NONE;
	if (prefer < r->total && (prefer & 63) + n <= 64 &&
		(r->free[prefer / 64] >> (prefer & 63) & mask(n)) == mask(n))
		return take_at(r, prefer / 64, prefer & 63, n);

	uint32_t from = r->hint, w = find(r, r->whole, from, n, &r->hint);
	if (w == KVPD_RUN_NONE)
		w = find(r, r->some, from, n, &r->hint);
	r->wanted = w == KVPD_RUN_NONE;
	if (r->wanted)
		return KVPD_RUN_NONE;
	r->hint = w;
	return take_at(r, w, (uint32_t)__builtin_ctzll(starts(r->free[w], n)), n);
}

void kvpd_runs_give(struct kvpd_runs *r, uint32_t first, uint32_t n)
{
	uint32_t w = first / 64;

	assert(first < r->total && (first & 63) + n <= 64);
	assert(!(r->free[w] & mask(n) << (first & 63)));
	r->free[w] |= mask(n) << (first & 63);
	r->n_free += n;
	summarise(r, w);
	/* Who looks for a run in vain looks here first when something has come back. */
	if (r->wanted)
		r->hint = w;
}

bool kvpd_runs_is_free(const struct kvpd_runs *r, uint32_t number)
{
	return r->free[number / 64] >> (number & 63) & 1;
}
