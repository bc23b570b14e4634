/* SPDX-License-Identifier: Apache-2.0 */
/* What a checked calibration of kvquant is in memory. Private to kernels/ and its tests. */
#ifndef KVP_KERNELS_NUQ_H
#define KVP_KERNELS_NUQ_H

#include "kernels/kvp_nuq.h"

#define NUQ_BITS_MIN 2u
#define NUQ_BITS_MAX 4u
#define NUQ_CODES    16u /* at most */

/* A channel that never varied has a range of so much: what leaves it is an outlier, not lost. */
#define NUQ_RANGE_MIN 0x1p-20f
#define NUQ_INPUT_MAX 65504.0f

/* Codes of one number of bits. */
struct nuq_book {
	float post[NUQ_CODES];  /* 2^bits of them, ascending */
	float bound[NUQ_CODES]; /* 2^bits - 1: code i ends where bound[i] is exceeded */
};

/* One entry of a file. */
struct kvp_nuq {
	uint32_t layer, form, heads, dim;
	const struct kvp_rope *rope; /* turns nothing but keys before RoPE */
	struct nuq_book book[NUQ_BITS_MAX - NUQ_BITS_MIN + 1];
	/* Of keys, [heads * dim]: a channel's middle, half its range, and the reciprocal of that. */
	float *middle, *range, *inverse;
};

/* What one row is measured by: x is about middle + factor * signpost; encoders take the reciprocal. */
struct nuq_row {
	const float *middle, *factor; /* [dim] */
};

/* Boundaries half way between signposts. */
void kvp_nuq_book_init(uint32_t bits, const float *post, struct nuq_book *ret_book);
/* Signposts at even distances from -1 to 1. */
void kvp_nuq_book_even(uint32_t bits, struct nuq_book *ret_book);

#endif
