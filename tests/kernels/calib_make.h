/* SPDX-License-Identifier: Apache-2.0 */
/* Calibrations of no model: orthogonal axes at random, for what tests want to see. */
#ifndef KVP_TESTS_KERNELS_CALIB_MAKE_H
#define KVP_TESTS_KERNELS_CALIB_MAKE_H

#include "kernels/kvp_calib.h"

struct calib_make {
	uint32_t layers, heads, dim, joint;
	uint32_t rank;   /* of joint * dim */
	uint32_t tables; /* at most rank */
	uint32_t shift;  /* of every other table */
	uint32_t reach;  /* quotients beyond it, shifted, are escapes */
	float step;      /* components are multiples of it */
	uint32_t pairing;
};

/* A file with K and V of every layer, which the caller frees; aborts if there is no memory. */
void *calib_make(const struct calib_make *m, size_t *ret_bytes);

#endif
