/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types of weights and of stored keys and values, and their conversion to and from fp32.
 * Widening is exact and narrowing rounds to nearest even, infinities and NaN included, so the
 * result does not depend on whether the CPU converts in hardware. No alignment is assumed.
 */
#ifndef KVR_HALF_H
#define KVR_HALF_H

#include <stddef.h>
#include <stdint.h>

enum kvr_dtype {
	KVR_F32 = 1,
	KVR_F16 = 2,
	KVR_BF16 = 3,
};

/* Bytes of one element. */
size_t kvr_dtype_bytes(enum kvr_dtype dtype);

/* "f32", "f16", "bf16". */
const char *kvr_dtype_name(enum kvr_dtype dtype);

/* `count` elements of `dtype` at `src` to fp32 at `dst`. The two must not overlap. */
void kvr_widen(enum kvr_dtype dtype, const void *src, size_t count, float *dst);

/* `count` fp32 at `src` to `dtype` at `dst`, rounded to nearest even. No overlap. */
void kvr_narrow(enum kvr_dtype dtype, const float *src, size_t count, void *dst);

#endif
