/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of codes as bytes by vectors: what the files of them share, whatever the codes are. Private to them. */
#ifndef KVP_KERNELS_ATTEND_BYTES_VBMI_H
#define KVP_KERNELS_ATTEND_BYTES_VBMI_H

#include "kernels/attend_step.h"

/*
 * Four signed bytes, to be multiplied with four of each lane. In a register, for more products than one: of 512
 * bits one load is done a cycle, as one product is, and the rows are to be loaded, too.
 */
INLINE __m512i four_bytes(const int8_t *at)
{
	int32_t x;

	memcpy(&x, at, sizeof x);
	return _mm512_set1_epi32(x);
}

/* sum + in each lane the products of its four bytes, unsigned, with four signed ones. */
INLINE __m512i dot_four(__m512i sum, __m512i x, __m512i four)
{
	__asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(four));
	return sum;
}

INLINE __m512i unsigned_book(__m512i book)
{
	return _mm512_xor_si512(book, _mm512_set1_epi8(-128));
}

/*
 * What is called for hundreds of products at a time. Not inlined, because next to everything else the
 * compiler runs out of registers for addresses.
 */
#define APART static __attribute__((noinline))

/* ---- keys ---- */

/* 16 bytes of each of GROUP rows: x[i] has rows 4 i .. 4 i + 3, or i, i + 4, .. where they are turned. */
INLINE __m512i four_pieces(const uint8_t *at, ptrdiff_t stride)
{
	__m512i x = _mm512_broadcast_i32x4(load128(at));

	x = _mm512_mask_broadcast_i32x4(x, 0x00f0, load128(at + stride));
	x = _mm512_mask_broadcast_i32x4(x, 0x0f00, load128(at + 2 * stride));
	return _mm512_mask_broadcast_i32x4(x, 0xf000, load128(at + 3 * stride));
}

/* GROUP rows. With turned 0 row i is to be in lane i, else row 4 k + i in lane 4 i + k. */
struct group {
	const uint8_t *row;
	ptrdiff_t next, apart; /* from a row to that in the lane behind it, and four behind it */
};

/* Four bytes at `at` of each row, and those behind them: x[k] has bytes 4 k .. 4 k + 3. */
INLINE void turn_group(const struct group *g, uint32_t at, __m512i *x)
{
	UNROLL for (uint32_t k = 0; k < 4; k++) x[k] =
		four_pieces(g->row + at + k * g->next, g->apart);
	turn_lanes(x);
}

/* Rows of so many bytes from t on where they lie, or, at the end, what there is of them in `copy`. */
INLINE struct group group_at(
	const struct kvp_rows *r, uint32_t t, int turned, uint32_t bytes, uint8_t *copy)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
	ptrdiff_t stride = r->stride;

	if (t + GROUP > r->n) {
		stride = (ptrdiff_t)bytes;
		memset(copy, 0, GROUP * (size_t)stride);
		for (uint32_t i = 0; t + i < r->n; i++)
			memcpy(copy + i * stride, row + (ptrdiff_t)i * r->stride, (size_t)stride);
		row = copy;
	}
	return turned ? (struct group){ row, 4 * stride, stride }
		      : (struct group){ row, stride, 4 * stride };
}

/* Sums of GROUP rows, a query a register and rows turned (struct group), to [row][query]. */
INLINE void put_group(__m512i *x, uint32_t m, int32_t *to)
{
	const __m512i order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
	const __m512i after = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);

	turn_lanes(x);
	if (m == 4) {
		UNROLL for (uint32_t k = 0; k < 4; k++) _mm512_store_si512(to + k * LANES, x[k]);
		return;
	}
	turn_lanes(x + 4);
	UNROLL for (uint32_t k = 0; k < 4; k++)
	{
		_mm512_store_si512(
			to + 2 * k * LANES, _mm512_permutex2var_epi64(x[k], order, x[4 + k]));
		_mm512_store_si512(
			to + (2 * k + 1) * LANES, _mm512_permutex2var_epi64(x[k], after, x[4 + k]));
	}
}

/* ---- values ---- */

/* Mostly there is nothing to do: no score is larger than those before. */
INLINE void fade_rows(const float *fade, uint32_t nq, uint32_t dim, float *acc)
{
	for (uint32_t i = 0; i < nq; i++)
		for (uint32_t c = 0; fade[i] != 1.0f && c < dim; c += LANES)
			_mm512_storeu_ps(acc + (size_t)i * dim + c,
				_mm512_mul_ps(_mm512_loadu_ps(acc + (size_t)i * dim + c),
					_mm512_set1_ps(fade[i])));
}

#endif
