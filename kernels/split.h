/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words of 16 bits, rotated left, as their high and their low bytes, and back. Compiled with each
 * instruction set, for which compilers turn these loops into vectors.
 */
#ifndef KVP_KERNELS_SPLIT_H
#define KVP_KERNELS_SPLIT_H

#include "kernels/numeric.h"

/* rotate: 0 to 15 bits. */
static inline void split_words(uint32_t rotate, const uint8_t *words, uint32_t n,
	uint8_t *restrict high, uint8_t *restrict low)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t w = load_u16(words + 2 * (size_t)i);

		w = w << rotate | w >> (16 - rotate);
		high[i] = (uint8_t)(w >> 8);
		low[i] = (uint8_t)w;
	}
}

static inline void join_words(uint32_t rotate, const uint8_t *high, const uint8_t *low, uint32_t n,
	uint8_t *restrict words)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t w = (uint32_t)high[i] << 8 | low[i];
		uint16_t u = (uint16_t)(w >> rotate | w << (16 - rotate));

		memcpy(words + 2 * (size_t)i, &u, sizeof u);
	}
}

#endif
