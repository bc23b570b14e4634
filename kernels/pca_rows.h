/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward transform of `pca`, written once and compiled with each instruction set, whose file says LANES
 * (floats of a register), TOKENS and VECS (rows, and registers of each, at a time; TOKENS divides PCA_BATCH)
 * before it includes this. Every sum is taken in one order, product by product, so all of them give the same
 * bits; a chunk of it at a time, for all tokens, so that the axes stay in the nearest cache.
 */
#ifndef KVP_KERNELS_PCA_ROWS_H
#define KVP_KERNELS_PCA_ROWS_H

#include "kernels/attend_unroll.h"
#include "kernels/dsp.h"
#include "kernels/numeric.h"

#include <string.h>

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));

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

/*
 * Adds PCA_CHUNK products at most to VECS registers of components of each of TOKENS rows. A function of its
 * own, or compilers lack registers for what is around it.
 */
static __attribute__((noinline)) void project_block(
	const float *x, size_t x_stride, uint32_t channels, const float *forward, float *z)
{
	vec acc[TOKENS][VECS], axes[VECS];

	UNROLL for (uint32_t t = 0; t < TOKENS; t++) UNROLL for (uint32_t v = 0; v < VECS; v++)
		acc[t][v] = vec_load(z + t * PCA_GROUP + v * LANES);
	for (const float *end = x + channels; x < end; x++, forward += PCA_GROUP) {
		UNROLL for (uint32_t v = 0; v < VECS; v++) axes[v] = vec_load(forward + v * LANES);
		UNROLL for (uint32_t t = 0; t < TOKENS; t++)
			UNROLL for (uint32_t v = 0; v < VECS; v++) acc[t][v] +=
			axes[v] * x[t * x_stride];
	}
	UNROLL for (uint32_t t = 0; t < TOKENS; t++) UNROLL for (uint32_t v = 0; v < VECS; v++)
		vec_store(z + t * PCA_GROUP + v * LANES, acc[t][v]);
}

/* PCA_GROUP components of PCA_BATCH rows. */
static void project_group(const struct kvp_pca *pca, const float *x, const float *forward, float *z)
{
	memset(z, 0, sizeof *z * PCA_BATCH * PCA_GROUP);
	for (uint32_t i = 0, n; i < pca->width; i += n) {
		n = pca->width - i < PCA_CHUNK ? pca->width - i : PCA_CHUNK;
		for (uint32_t t = 0; t < PCA_BATCH; t += TOKENS)
			for (uint32_t c = 0; c < PCA_GROUP; c += VECS * LANES)
				project_block(x + t * pca->width_stride + i, pca->width_stride, n,
					forward + i * PCA_GROUP + c, z + t * PCA_GROUP + c);
	}
}

/* Those of x where mask is set, else those of y; compilers make no vectors of conditions on floats. */
static inline __attribute__((always_inline)) vec vec_choose(ints mask, vec x, vec y)
{
	return (vec)(((ints)x & mask) | ((ints)y & ~mask));
}

static inline __attribute__((always_inline)) ints quotients(vec z, float round)
{
	const ints negative = z < 0.0f;
	const vec most = (vec){ 0 } + (float)PCA_QUOTIENT_MAX;
	vec m = (vec)((ints)z & INT32_MAX) + round;
	ints q;

	m = vec_choose(m < most, m, most);
	q = __builtin_convertvector(m, ints);
	return (q ^ negative) - negative;
}

/* Channels, no larger than they may be, without their means; no NaN is among them. */
static inline __attribute__((always_inline)) vec centre(vec x, vec mean)
{
	const vec most = (vec){ 0 } + PCA_INPUT_MAX;

	x = vec_choose(x < most, x, most);
	return vec_choose(x > -most, x, -most) - mean;
}

static void project(const struct kvp_pca *pca, const struct pca_unit *u, float *x, int32_t *q)
{
	float z[PCA_BATCH * PCA_GROUP];

	for (uint32_t t = 0; t < PCA_BATCH; t++)
		for (uint32_t i = 0; i < pca->width_stride; i += LANES) {
			float *at = x + t * pca->width_stride + i;

			vec_store(at, centre(vec_load(at), vec_load(u->mean + i)));
		}
	for (uint32_t c = 0; c < u->rank_stride; c += PCA_GROUP) {
		project_group(pca, x, u->forward + c * pca->width, z);
		for (uint32_t i = 0; i < PCA_BATCH * PCA_GROUP; i += LANES) {
			const ints v = quotients(vec_load(z + i), pca->round);

			memcpy(q + i / PCA_GROUP * u->rank_stride + c + i % PCA_GROUP, &v,
				sizeof v);
		}
	}
}

#endif
