/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage of Hadamard matrices whose order is no power of two. Every output is a sum over all
 * inputs in order; products with +-1 are exact, so that fused operations change no bit. With p
 * elements to an input, a register has the sums of 8 / p neighbouring outputs, or of one.
 */
#include "kernels/dsp.h"
#include "kernels/x86_avx2.h"

#define ORDER_MAX 36u

/* Signs of the outputs that lie in one register; `lanes` of them take turns. */
INLINE __m256 signs(const float *sign, uint32_t lanes)
{
	if (lanes == 1)
		return _mm256_broadcast_ss(sign);
	if (lanes == 2)
		return _mm256_castpd_ps(_mm256_broadcast_sd((const double *)(const void *)sign));
	return _mm256_broadcast_ps((const __m128 *)(const void *)sign);
}

/* Sums of n registers of outputs: sign[j * order] belongs to input j and the first output. */
INLINE void tile(uint32_t lanes, uint32_t n, uint32_t order, const float *sign, const __m256 *in,
	__m256 *out)
{
	__m256 sum[14];

	for (uint32_t i = 0; i < n; i++)
		sum[i] = _mm256_mul_ps(signs(sign + (size_t)i * lanes, lanes), in[0]);
	for (uint32_t j = 1; j < order; j++) {
		const float *row = sign + (size_t)j * order;
		const __m256 x = in[j];

		for (uint32_t i = 0; i < n; i++)
			sum[i] = _mm256_fmadd_ps(signs(row + (size_t)i * lanes, lanes), x, sum[i]);
	}
	for (uint32_t i = 0; i < n; i++)
		out[i] = sum[i];
}

/* All outputs, as many registers at a time as the file holds beside an input and its signs. */
INLINE void tiles(uint32_t lanes, uint32_t n, uint32_t order, const float *sign, const __m256 *in,
	__m256 *out)
{
	for (uint32_t i = 0; i < order / lanes; i += n)
		tile(lanes, n, order, sign + (size_t)i * lanes, in, out + i);
}

INLINE void all_tiles(
	uint32_t lanes, uint32_t order, const float *sign, const __m256 *in, __m256 *out)
{
	if (order == 12)
		tiles(lanes, 12 / lanes, 12, sign, in, out);
	else if (order == 20)
		tiles(lanes, lanes == 4 ? 5 : 10, 20, sign, in, out);
	else if (order == 28)
		tiles(lanes, lanes == 4 ? 7 : 14, 28, sign, in, out);
	else
		tiles(lanes, lanes == 1 ? 12 : 9, 36, sign, in, out);
}

/* p is 8 or more: a register has elements of one input. */
static void paley_wide(uint32_t order, uint32_t p, const float *sign, float *x)
{
	__m256 in[ORDER_MAX], out[ORDER_MAX];

	for (uint32_t c = 0; c < p; c += 8) {
		for (uint32_t j = 0; j < order; j++)
			in[j] = _mm256_loadu_ps(x + (size_t)j * p + c);
		all_tiles(1, order, sign, in, out);
		for (uint32_t i = 0; i < order; i++)
			_mm256_storeu_ps(x + (size_t)i * p + c, out[i]);
	}
}

/* p = 4: lanes 2 b and 2 b + 1 have element b of two outputs. */
static void paley_four(uint32_t order, const float *sign, float *x)
{
	const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
	const __m256i apart = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
	__m256 in[ORDER_MAX], out[ORDER_MAX / 2];

	for (uint32_t j = 0; j < order; j++)
		in[j] = _mm256_permutevar8x32_ps(
			_mm256_castps128_ps256(_mm_loadu_ps(x + 4 * (size_t)j)), twice);
	all_tiles(2, order, sign, in, out);
	for (uint32_t i = 0; i < order / 2; i++)
		_mm256_storeu_ps(x + 8 * (size_t)i, _mm256_permutevar8x32_ps(out[i], apart));
}

/* p = 2: lanes 4 b to 4 b + 3 have element b of four outputs. */
static void paley_two(uint32_t order, const float *sign, float *x)
{
	const __m256i apart = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	__m256 in[ORDER_MAX], out[ORDER_MAX / 4];

	for (uint32_t j = 0; j < order; j++)
		in[j] = _mm256_setr_m128(_mm_broadcast_ss(x + 2 * (size_t)j),
			_mm_broadcast_ss(x + 2 * (size_t)j + 1));
	all_tiles(4, order, sign, in, out);
	for (uint32_t i = 0; i < order / 4; i++)
		_mm256_storeu_ps(x + 8 * (size_t)i, _mm256_permutevar8x32_ps(out[i], apart));
}

void kvp_rotate_paley_avx2(const struct rotation *rot, int transpose, float *x)
{
	const float *sign = rot->paley_sign[!!transpose];
	const uint32_t p = rot->dim / rot->order;

	if (p == 2)
		paley_two(rot->order, sign, x);
	else if (p == 4)
		paley_four(rot->order, sign, x);
	else
		paley_wide(rot->order, p, sign, x);
}
