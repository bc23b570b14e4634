/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a codec lost of rows: the sums of (x - y)^2 and of x^2, x being an element and y what it was decoded to.
 * Included by a file for each instruction set after it has said how LOST_LANES elements of a row are added:
 *
 *	static void add_lanes(uint32_t dtype, const uint8_t *x, const uint8_t *y, struct lost_sums *s);
 *
 * An x that is not finite has no error, and counts for nothing; a y that is not finite counts as 0. Every lane is a sum
 * of its own in fp32, without contraction, and the lanes of a row are added in double, by halves: so all give the same.
 */
#ifndef KVP_KERNELS_LOST_H
#define KVP_KERNELS_LOST_H

#include <math.h>
#include <string.h>

#include "kernels/dsp.h"
#include "kernels/numeric.h"

#define LOST_LANES 16u

/* Of a row, in lanes of KVP_PLANE_DIM_MAX / LOST_LANES elements at most. */
struct lost_sums {
	_Alignas(64) float lost[LOST_LANES];
	_Alignas(64) float all[LOST_LANES];
};

static void add_lanes(uint32_t dtype, const uint8_t *x, const uint8_t *y, struct lost_sums *s);

/* The same in double, where squares are too large or too small for a float. */
static void add_exactly(
	uint32_t dtype, const uint8_t *x, const uint8_t *y, uint32_t n, double row[2])
{
	for (uint32_t i = 0; i < n; i++) {
		double a = (double)load_element(x, dtype, i), b = (double)load_element(y, dtype, i);

		if (!isfinite(a))
			continue;
		b = isfinite(b) ? b : 0;
		row[0] += (a - b) * (a - b);
		row[1] += a * a;
	}
}

/* By halves, so that it is no chain of sums. */
static inline double sum_of(const float *lane)
{
	double sum[LOST_LANES];

	for (uint32_t i = 0; i < LOST_LANES; i++)
		sum[i] = (double)lane[i];
	for (uint32_t i = 0; i < 8; i++)
		sum[i] += sum[i + 8];
	for (uint32_t i = 0; i < 4; i++)
		sum[i] += sum[i + 4];
	return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

static inline __attribute__((always_inline)) void add_row(uint32_t dtype, uint32_t element,
	const uint8_t *x, const uint8_t *y, uint32_t n, double *lost, double *all)
{
	const uint32_t whole = n / LOST_LANES * LOST_LANES, rest = n - whole;
	uint8_t tail[2][4 * LOST_LANES] = { 0 };
	struct lost_sums s = { { 0 }, { 0 } };
	double row[2] = { 0 };

	for (uint32_t i = 0; i < whole; i += LOST_LANES)
		add_lanes(dtype, x + (size_t)i * element, y + (size_t)i * element, &s);
	if (rest) {
		memcpy(tail[0], x + (size_t)whole * element, rest * element);
		memcpy(tail[1], y + (size_t)whole * element, rest * element);
		add_lanes(dtype, tail[0], tail[1], &s);
	}
	row[0] = sum_of(s.lost);
	row[1] = sum_of(s.all);
	/* Keys of other tokens may be so much louder that this one's are lost by more than a float can square. */
	if (!(row[1] > 1e-25 && row[1] < 1e30 && row[0] < 1e30)) {
		row[0] = row[1] = 0;
		add_exactly(dtype, x, y, n, row);
	}
	*lost += row[0];
	*all += row[1];
}

/* A kvp_lost_fn. With a dtype that is known there is no branch in what is done for each number. */
static void lost_rows(const struct rows_in *x, const uint8_t *y, ptrdiff_t stride, double *ret_lost,
	double *ret_all)
{
	double lost = 0, all = 0;

	for (uint32_t i = 0; i < x->n; i++) {
		const uint8_t *a = x->data + (ptrdiff_t)i * x->stride,
			      *b = y + (ptrdiff_t)i * stride;

		if (x->dtype == KVP_DTYPE_F16)
			add_row(KVP_DTYPE_F16, 2, a, b, x->dim, &lost, &all);
		else if (x->dtype == KVP_DTYPE_BF16)
			add_row(KVP_DTYPE_BF16, 2, a, b, x->dim, &lost, &all);
		else
			add_row(KVP_DTYPE_F32, 4, a, b, x->dim, &lost, &all);
	}
	*ret_lost = lost;
	*ret_all = all;
}

#endif
