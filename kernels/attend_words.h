/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values as 16-bit words, for attention on x86: what no instruction set changes. Words of a book
 * of centroids are multiplied with words of weights, and the products summed in 32 bits.
 *
 * What words cost: a centroid of the Gaussian is off by 2.5e-5 at most, one of a sphere by 1e-4,
 * where the values of a row are 1 in the mean square. A weight is off by half a level of its
 * block; together WORD_ROWS of them change what is added by less than 2.9e-4 of the length that
 * it would have if all values were orthogonal. int8 and codes between a minimum and a maximum are
 * words exactly, and their weights have LEVELS levels.
 *
 * Keys are multiplied in floats: an error of a score grows with the score, and e to its power is
 * the weight.
 */
#ifndef KVP_KERNELS_ATTEND_WORDS_H
#define KVP_KERNELS_ATTEND_WORDS_H

#include <stdint.h>

#define WORD_ROWS   64u /* whose products with centroids are added as integers */
#define BOOK_LEVELS 16383.0f
#define LEVELS      32767.0f
/* All words of weights of WORD_ROWS rows, times a centroid: less than 2^31 / BOOK_LEVELS. */
#define BOOK_SUM 131000.0f

/* Of 2, 3 and 4 bits: scales at which centroids of the Gaussian are nearly integers themselves. */
static const float book_scale[] = { 0.0f, 0.0f, 6177.682f, 6058.327f, 5434.425f };

/*
 * Levels of `largest` of weights whose sizes add up to sum. Of many equally large ones their sum,
 * not the largest, limits the words. A whole number, so that the largest, which many may equal, is
 * a word exactly. What NaN or overflow make of it is bounded, too.
 */
static inline float book_levels(float largest, float sum)
{
	const float least_levels = 2046.0f; /* of WORD_ROWS equal ones */
	float levels = BOOK_SUM / (sum / largest);

	levels = levels < LEVELS ? levels : LEVELS;
	return (float)(int32_t)(levels > least_levels ? levels : least_levels);
}

#endif
