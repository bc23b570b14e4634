/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transforms of `pca`, written once and compiled with each instruction set, whose file says LANES
 * (floats of a register) and TOKENS (rows at a time; divides PCA_ROWS) before it includes this. Every
 * sum is taken in one order, product by product, so all of them give the same bits.
 */
#ifndef KVP_KERNELS_PCA_ROWS_H
#define KVP_KERNELS_PCA_ROWS_H

#include "kernels/attend_unroll.h"
#include "kernels/dsp.h"
#include "kernels/numeric.h"

#include <string.h>

typedef float vec __attribute__((vector_size(4 * LANES)));

static inline __attribute__((always_inline)) vec vec_load(const float *p)
{
	vec v;

	memcpy(&v, p, sizeof v);
	return v;
}

static inline __attribute__((always_inline)) void vec_store(float *p, vec v)
{
	memcpy(p, &v, sizeof v);
}

/* Two registers of components of TOKENS rows. */
static inline __attribute__((always_inline)) void project_block(const float *x, uint32_t x_stride,
	uint32_t width, const float *forward, float *z, uint32_t stride)
{
	vec acc[TOKENS][2];

	UNROLL for (uint32_t t = 0; t < TOKENS; t++) acc[t][0] = acc[t][1] = (vec){ 0 };
	for (uint32_t i = 0; i < width; i++, forward += PCA_GROUP) {
		const vec a = vec_load(forward), b = vec_load(forward + LANES);

		UNROLL for (uint32_t t = 0; t < TOKENS; t++)
		{
			acc[t][0] += a * x[t * x_stride + i];
			acc[t][1] += b * x[t * x_stride + i];
		}
	}
	UNROLL for (uint32_t t = 0; t < TOKENS; t++)
	{
		vec_store(z + t * stride, acc[t][0]);
		vec_store(z + t * stride + LANES, acc[t][1]);
	}
}

static void quotients(const float *z, uint32_t n, float round, int32_t *q)
{
	for (uint32_t i = 0; i < n; i++) {
		float m = z[i] < 0.0f ? -z[i] : z[i];
		int32_t v;

		m += round;
		m = m < (float)PCA_QUOTIENT_MAX ? m : (float)PCA_QUOTIENT_MAX;
		v = (int32_t)m;
		q[i] = z[i] < 0.0f ? -v : v;
	}
}

/* Channels, no larger than they may be, without their means; no NaN is among them. */
static void centre(float *restrict x, const float *restrict mean, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		x[i] = clampf(x[i], PCA_INPUT_MAX) - mean[i];
}

static void project(
	const struct kvp_pca *pca, const struct pca_unit *u, float *x, int32_t *q, float *z)
{
	for (uint32_t t = 0; t < PCA_ROWS; t++)
		centre(x + t * pca->width_stride, u->mean, pca->width);
	for (uint32_t t = 0; t < PCA_ROWS; t += TOKENS)
		for (uint32_t j = 0; j < u->rank_stride; j += 2 * LANES)
			project_block(x + t * pca->width_stride, pca->width_stride, pca->width,
				u->forward + j / PCA_GROUP * PCA_GROUP * pca->width + j % PCA_GROUP,
				z + t * u->rank_stride + j, u->rank_stride);
	quotients(z, PCA_ROWS * u->rank_stride, pca->round, q);
}

/* REGS registers of channels of one token. */
#define REGS (PCA_ALIGN / LANES < 4 ? PCA_ALIGN / LANES : 4)
static inline __attribute__((always_inline)) void build_block(
	const struct pca_list *list, const float *mean, const float *inverse, float *y)
{
	vec acc[REGS];

	UNROLL for (uint32_t r = 0; r < REGS; r++) acc[r] = vec_load(mean + r * LANES);
	for (uint32_t k = 0; k < list->n; k++) {
		const float *row = inverse + (size_t)list->at[k] * PCA_ALIGN, v = list->value[k];

		UNROLL for (uint32_t r = 0; r < REGS; r++) acc[r] += vec_load(row + r * LANES) * v;
	}
	UNROLL for (uint32_t r = 0; r < REGS; r++) vec_store(y + r * LANES, acc[r]);
}

static void build(const struct kvp_pca *pca, const struct pca_unit *u, const struct pca_list *list,
	uint32_t n, float *y)
{
	for (uint32_t i = 0; i < pca->width_stride; i += REGS * LANES)
		for (uint32_t t = 0; t < n; t++)
			build_block(&list[t], u->mean + i,
				u->inverse + i / PCA_ALIGN * PCA_ALIGN * u->rank + i % PCA_ALIGN,
				y + t * pca->width_stride + i);
}

#endif
