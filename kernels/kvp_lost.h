/* SPDX-License-Identifier: Apache-2.0 */
/* What a codec lost, seen beside what it was made of. Any thread. */
#ifndef KVP_LOST_H
#define KVP_LOST_H

#include "kernels/kvp_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What a codec lost of one head of a plane: the sums of (x - x')^2 and of x^2 over its tokens and channels, x' being
 * what x was decoded to, in the plane's dtype, which is not F8. An x that is not finite counts for nothing, an x' that
 * is not counts as 0. The same values on every machine. Rows are of the caller's making: nothing is checked.
 */
void kvp_head_lost(const struct kvp_kernels *k, const struct kvp_plane *p, uint32_t head,
	struct kvp_raw_const src, struct kvp_raw_const decoded, double *ret_lost, double *ret_all);

#ifdef __cplusplus
}
#endif
#endif
