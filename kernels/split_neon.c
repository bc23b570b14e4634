/* SPDX-License-Identifier: Apache-2.0 */
/* Words as their bytes and back, in vectors: the bytes of codec_lossless.c. Entropy coding is rans.c's: there is no gather. */
#include "kernels/dsp.h"
#include "kernels/split.h"

static void split(uint32_t rotate, const uint8_t *words, uint32_t n, uint8_t *high, uint8_t *low)
{
	split_words(rotate, words, n, high, low);
}

static void join(
	uint32_t rotate, const uint8_t *high, const uint8_t *low, uint32_t n, uint8_t *words)
{
	join_words(rotate, high, low, n, words);
}

void kvp_split_slots_neon(struct dsp *dsp)
{
	dsp->split = split;
	dsp->join = join;
}
