/* SPDX-License-Identifier: Apache-2.0 */
/* The two products that the engine is made of, on row-major fp32, by OpenBLAS. */
#ifndef KVR_BLAS_H
#define KVR_BLAS_H

#include <cblas.h>
#include <stddef.h>
#include <stdint.h>

/* y[n][out] = x[n][in] w[out][in]^T with rows `ldw` apart in w; x and y are dense. */
static inline void kvr_mul_wt(
	const float *x, uint32_t n, const float *w, size_t ldw, uint32_t out, uint32_t in, float *y)
{
	if (n == 1)
		cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)out, (int)in, 1, w, (int)ldw, x, 1, 0,
			y, 1);
	else
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n, (int)out, (int)in, 1,
			x, (int)in, w, (int)ldw, 0, y, (int)out);
}

/* y[n][out] += x[n][in] w[in][out] with rows `ldw` apart in w; x and y are dense. */
static inline void kvr_add_mul(
	const float *x, uint32_t n, const float *w, size_t ldw, uint32_t in, uint32_t out, float *y)
{
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, (int)out, (int)in, 1, x,
		(int)in, w, (int)ldw, 1, y, (int)out);
}

#endif
