/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which widths the blocks of a space have under a budget of bytes, by importance, where there are too
 * many of them to be planned one by one. One pass over the blocks counts them by width and importance, a
 * cut is worked out from the counts, a second pass asks the cut for each block. Nothing is kept for a
 * block but its importance, a float whose mean is about 1.
 *
 * The problem is that of kvp_precision.h: the least sum of I D(width) within the budget, D being the
 * relative squared error. All blocks have the same bytes in a width and none gets bits back, so it is
 * solved by steps down the lower convex hull of (bytes, D), the one that costs least for the bytes that
 * it frees first. Importance is rounded down to an eighth of an octave, and the last step is taken by as
 * many blocks as are needed, so what is freed is the least that is enough, and what is lost is at most
 * 2^(1/8) times the least there is for as many bytes.
 *
 * Importance over time: a report says what attention was paid to a block, its mean over the blocks
 * of the report being 1; I <- gamma I + (1 - gamma) a, as in kvp_importance.h, beginning at 1, what a block
 * is worth of which nothing is known.
 *
 * Pure functions, any thread, a few microseconds.
 */
#ifndef KVP_ALLOT_H
#define KVP_ALLOT_H

#include "policy/kvp_width.h"
#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_ALLOT_BUCKETS 128u /* eight to an octave, from 2^-8 to 2^8 */
#define KVP_ALLOT_GAMMA   .9f

struct kvp_allot_counts {
	uint32_t blocks[KVP_WIDTHS][KVP_ALLOT_BUCKETS];
};

struct kvp_allot_cut {
	uint8_t to[KVP_WIDTHS][KVP_ALLOT_BUCKETS]; /* the next step down; the width itself: none */
	/* The last step, which is not for all: so many more blocks take it. */
	uint32_t last_width, last_bucket, last_blocks;
};

/* Where a block of this importance is counted; below the range in the first, above in the last. */
uint32_t kvp_allot_bucket(float importance);

/* The average after one more report. */
static inline float kvp_allot_learn(float importance, float reported)
{
	return KVP_ALLOT_GAMMA * importance + (1 - KVP_ALLOT_GAMMA) * reported;
}

/*
 * Works out who goes down so that `save` bytes are freed. bytes[w]: of a block in width w, falling, for
 * widths up to `lowest`. *ret_freed: how many that frees, `save` or a little more; less: all go to `lowest`.
 */
void kvp_allot_cut(const struct kvp_allot_counts *counts, const uint64_t bytes[KVP_WIDTHS],
	uint32_t lowest, uint64_t save, struct kvp_allot_cut *ret, uint64_t *ret_freed);

/* In the second pass: the width that a block should have, never less precise than `lowest` of the cut. */
uint32_t kvp_allot_width(struct kvp_allot_cut *cut, uint32_t width, float importance);

#ifdef __cplusplus
}
#endif
#endif
