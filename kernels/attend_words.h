/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes as 16-bit words, for attention on x86: what no instruction set changes. Words of a book of
 * centroids are multiplied with words of queries or weights, and the products summed in 32 bits.
 */
#ifndef KVP_KERNELS_ATTEND_WORDS_H
#define KVP_KERNELS_ATTEND_WORDS_H

#include <stdint.h>

#define BOOK_LEVELS 4095.0f
#define LEVELS      32767.0f
/* All words of a query, or weights of one, times a centroid: less than 2^31 / BOOK_LEVELS. */
#define BOOK_SUM 520000.0f

/* Of 2, 3 and 4 bits: scales at which centroids of the Gaussian are nearly integers themselves. */
static const float book_scale[] = { 0.0f, 0.0f, 1879.59f, 1750.07f, 1417.68f };

/*
 * Levels of `largest` of values whose sizes add up to sum. Of many equally large ones their sum,
 * not the largest, limits the words. A whole number, so that the largest, which many may equal, is
 * a word exactly. What NaN or overflow make of it is bounded, too.
 */
static inline float book_levels(float largest, float sum)
{
	const float least_levels = 507.0f; /* of 1024 equal ones */
	float levels = BOOK_SUM / (sum / largest);

	levels = levels < LEVELS ? levels : LEVELS;
	return (float)(int32_t)(levels > least_levels ? levels : least_levels);
}

#endif
