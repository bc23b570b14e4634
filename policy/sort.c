/* SPDX-License-Identifier: Apache-2.0 */
/* A radix sort of floats by their bits, eleven at a time. */
#include "policy/sort.h"

#include <string.h>

#define RADIX_BITS 11u
#define RADIX_SIZE (1u << RADIX_BITS)

/* Floats that are not negative order as their bits do. */
static uint32_t bits_of(float key, uint32_t flip)
{
	uint32_t u;

	memcpy(&u, &key, sizeof(u));
	return u ^ flip;
}

static void radix_pass(const float *key, const uint32_t *in, uint32_t *out, uint32_t n,
	uint32_t shift, uint32_t flip)
{
	uint32_t count[RADIX_SIZE] = { 0 }, sum = 0, i;

	for (i = 0; i < n; i++)
		count[bits_of(key[in[i]], flip) >> shift & (RADIX_SIZE - 1)]++;
	for (i = 0; i < RADIX_SIZE; i++) {
		uint32_t c = count[i];

		count[i] = sum;
		sum += c;
	}
	for (i = 0; i < n; i++)
		out[count[bits_of(key[in[i]], flip) >> shift & (RADIX_SIZE - 1)]++] = in[i];
}

uint32_t *sort_by_float(
	const float *key, uint32_t *order, uint32_t *scratch, uint32_t n, int falling)
{
	uint32_t flip = falling ? UINT32_MAX : 0, shift;

	for (shift = 0; shift < 32; shift += RADIX_BITS) {
		uint32_t *t = order;

		radix_pass(key, order, scratch, n, shift, flip);
		order = scratch;
		scratch = t;
	}
	return order;
}
