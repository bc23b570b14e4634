/* SPDX-License-Identifier: Apache-2.0 */
/* Eigenvectors of a symmetric matrix by Jacobi's rotations: slow, short, and as exact as can be. */
#include "tools/kvbench/calib_fit.h"

#include <math.h>
#include <string.h>

#define SWEEPS_MAX 40

static double off_diagonal(uint32_t n, const double *a)
{
	double sum = 0.0;

	for (uint32_t i = 0; i < n; i++)
		for (uint32_t j = i + 1; j < n; j++)
			sum += a[(size_t)i * n + j] * a[(size_t)i * n + j];
	return sum;
}

/* Rows p and q become c p - s q and s p + c q. */
static void turn_rows(uint32_t n, double *p, double *q, double c, double s)
{
	for (uint32_t i = 0; i < n; i++) {
		const double x = p[i], y = q[i];

		p[i] = c * x - s * y;
		q[i] = s * x + c * y;
	}
}

/* Makes a[p][q] 0: the same rotation of rows and of columns. */
static void annihilate(uint32_t n, double *a, double *vectors, uint32_t p, uint32_t q)
{
	double *row_p = a + (size_t)p * n, *row_q = a + (size_t)q * n;
	const double theta = (row_q[q] - row_p[p]) / (2.0 * row_p[q]);
	const double t = (theta < 0.0 ? -1.0 : 1.0) / (fabs(theta) + sqrt(theta * theta + 1.0));
	const double c = 1.0 / sqrt(t * t + 1.0), s = t * c;

	turn_rows(n, row_p, row_q, c, s);
	for (uint32_t i = 0; i < n; i++) {
		double *x = a + (size_t)i * n + p, *y = a + (size_t)i * n + q;
		const double u = *x, v = *y;

		*x = c * u - s * v;
		*y = s * u + c * v;
	}
	turn_rows(n, vectors + (size_t)p * n, vectors + (size_t)q * n, c, s);
}

static void swap_rows(uint32_t n, double *values, double *vectors, uint32_t i, uint32_t j)
{
	const double v = values[i];

	values[i] = values[j];
	values[j] = v;
	turn_rows(n, vectors + (size_t)i * n, vectors + (size_t)j * n, 0.0, 1.0);
}

void kvbench_eigen(uint32_t n, double *a, double *values, double *vectors)
{
	double total = 0.0;

	memset(vectors, 0, sizeof *vectors * n * n);
	for (uint32_t i = 0; i < n; i++) {
		vectors[(size_t)i * n + i] = 1.0;
		total += a[(size_t)i * n + i] * a[(size_t)i * n + i];
	}
	for (int sweep = 0; sweep < SWEEPS_MAX; sweep++) {
		const double off = off_diagonal(n, a);
		/* What is far below the rest can wait for the next sweep. */
		const double least = sweep < 4 ? sqrt(off) / (n * 4.0) : 0.0;

		if (off <= 1e-22 * total)
			break;
		for (uint32_t p = 0; p < n; p++)
			for (uint32_t q = p + 1; q < n; q++)
				if (fabs(a[(size_t)p * n + q]) > least)
					annihilate(n, a, vectors, p, q);
	}
	for (uint32_t i = 0; i < n; i++)
		values[i] = a[(size_t)i * n + i];
	for (uint32_t i = 0; i < n; i++) {
		uint32_t best = i;

		for (uint32_t j = i + 1; j < n; j++)
			best = values[j] > values[best] ? j : best;
		if (best != i)
			swap_rows(n, values, vectors, i, best);
	}
}
