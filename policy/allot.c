/* SPDX-License-Identifier: Apache-2.0 */
/* Widths of blocks under a budget, from counts; see kvp_allot.h. */
#include "policy/kvp_allot.h"

#include <math.h>
#include <string.h>

#define LEAST      (-8.0f) /* log2 of the least importance that is told from others */
#define PER_OCTAVE 8.0f

uint32_t kvp_allot_bucket(float importance)
{
	float at = importance > 0 ? (log2f(importance) - LEAST) * PER_OCTAVE : 0;

	if (!(at > 0))
		return 0;
	return at < KVP_ALLOT_BUCKETS - 1 ? (uint32_t)at : KVP_ALLOT_BUCKETS - 1;
}

static double importance_of(uint32_t bucket)
{
	return exp2((double)LEAST + bucket / (double)PER_OCTAVE);
}

/* Error for a byte that is freed, of a step from width a to width b. */
static double slope(const uint64_t *bytes, uint32_t a, uint32_t b)
{
	return (kvp_width_distortion[b] - kvp_width_distortion[a]) / (double)(bytes[a] - bytes[b]);
}

/* Where the best step down from a width leads; the width itself: it is the lowest. */
static uint32_t step_from(const uint64_t *bytes, uint32_t width, uint32_t lowest)
{
	uint32_t best = width;

	for (uint32_t w = width + 1; w <= lowest; w++)
		if (bytes[w] < bytes[width] &&
			(best == width || slope(bytes, width, w) <= slope(bytes, width, best)))
			best = w;
	return best;
}

void kvp_allot_cut(const struct kvp_allot_counts *counts, const uint64_t bytes[KVP_WIDTHS],
	uint32_t lowest, uint64_t save, struct kvp_allot_cut *ret, uint64_t *ret_freed)
{
	struct kvp_allot_counts now = *counts;
	uint32_t next[KVP_WIDTHS] = { 0 }; /* the bucket of each width that comes next */
	uint64_t freed = 0;

	memset(ret, 0, sizeof(*ret));
	for (uint32_t w = 0; w < KVP_WIDTHS; w++)
		memset(ret->to[w], (int)w, sizeof(ret->to[w]));
	ret->last_width = KVP_WIDTHS;
	while (freed < save) {
		uint32_t width = KVP_WIDTHS, to, bucket, n;
		double cost = 0;
		uint64_t each;

		/* Of each width the least important bucket; of these the cheapest step. */
		for (uint32_t w = 0; w < lowest; w++) {
			uint32_t down = step_from(bytes, w, lowest);
			double c;

			if (down == w || next[w] == KVP_ALLOT_BUCKETS)
				continue;
			c = importance_of(next[w]) * slope(bytes, w, down);
			if (width == KVP_WIDTHS || c < cost) {
				width = w;
				cost = c;
			}
		}
		if (width == KVP_WIDTHS)
			break;
		bucket = next[width]++;
		n = now.blocks[width][bucket];
		if (!n)
			continue;
		to = step_from(bytes, width, lowest);
		each = bytes[width] - bytes[to];
		ret->to[width][bucket] = (uint8_t)to;
		if (freed + n * each > save && n > (save - freed + each - 1) / each) {
			n = (uint32_t)((save - freed + each - 1) / each);
			ret->last_width = width;
			ret->last_bucket = bucket;
			ret->last_blocks = n;
		}
		now.blocks[width][bucket] -= n;
		now.blocks[to][bucket] += n;
		freed += n * each;
	}
	*ret_freed = freed;
}

uint32_t kvp_allot_width(struct kvp_allot_cut *cut, uint32_t width, float importance)
{
	uint32_t bucket = kvp_allot_bucket(importance);

	while (cut->to[width][bucket] != width) {
		if (width == cut->last_width && bucket == cut->last_bucket && !cut->last_blocks--) {
			cut->last_blocks = 0;
			break;
		}
		width = cut->to[width][bucket];
	}
	return width;
}
