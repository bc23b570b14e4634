/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lloyd-Max solver: where the wire centroids of codebook.c come from. It uses libm and serves
 * tools and tests; no codec calls it.
 */
#ifndef KVP_LLOYD_H
#define KVP_LLOYD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_LLOYD_BITS_MAX 8u

/*
 * The 2^(bits-1) positive centroids, ascending, of the quantiser with least mean squared error, and
 * that error. dim 0: N(0,1). dim 4..1024: one coordinate, times sqrt(dim), of a uniform
 * vector on the unit sphere, whose density is proportional to (1 - x^2)^((dim-3)/2).
 * Both densities have variance 1. Accurate to 1e-10. -EINVAL, -EDOM (no convergence).
 */
int kvp_lloyd_max(uint32_t bits, uint32_t dim, double *ret_centroids, double *ret_mse);

#ifdef __cplusplus
}
#endif
#endif
