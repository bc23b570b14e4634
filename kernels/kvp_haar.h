/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dense rotation of KVP_ROT_HAAR: an orthogonal matrix drawn from the Haar measure on O(d) (its
 * determinant may be -1). It is made once per space and carried in its calibration object; payloads
 * name it by digest. Only exactly rounded operations are used (no libm), so every machine makes the
 * same bits from the same seed; tests pin the digests.
 */
#ifndef KVP_HAAR_H
#define KVP_HAAR_H

#include "kernels/kvp_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Fills ret_matrix (dim * dim floats, row-major; the caller keeps it alive as long as ret_calib is
 * used) with the help of work (dim * dim doubles). O(dim^3): 10 ms at 128, seconds at 1024.
 * -EINVAL: dim is not a multiple of 8 in 8..1024.
 */
int kvp_haar_init(
	uint32_t dim, uint64_t seed, double *work, float *ret_matrix, struct kvp_calib *ret_calib);

#ifdef __cplusplus
}
#endif
#endif
