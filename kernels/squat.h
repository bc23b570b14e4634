/* SPDX-License-Identifier: Apache-2.0 */
/* What encoders of squat read of a subspace. Private to kernels/ and its tests. */
#ifndef KVP_KERNELS_SQUAT_H
#define KVP_KERNELS_SQUAT_H

#include "kernels/kvp_squat.h"

#define SQUAT_LANES \
	16u /* sums of one channel come in so many: rows of `seen` have zeros up to there */

struct kvp_squat {
	struct kvp_squat_opts o;
	uint32_t lanes; /* rank, up to a multiple of SQUAT_LANES */
	float *axes;    /* [heads][rank][dim] */
	float *seen;    /* [heads][dim][lanes]: axes, by channel */
	float *bend; /* [heads][rank][dim]: what a channel owes to sums over the blocks before its own */
};

/* One token's `n` channels of a block, from channel `at` of a head on. */
struct squat_part {
	const float *seen; /* of the block's first channel, [n][lanes] */
	const float *bend; /* likewise, rows `dim` apart */
	uint32_t n, rank, lanes, dim;
};

#endif
