/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that each do one thing wrong, and their right twins: the model must tell them apart.
 * All take struct hazard_params; run them with 64 threads and 4 KiB of shared memory, except
 * where test_cudasim.c says otherwise.
 */
#ifndef HAZARDS_H
#define HAZARDS_H

#include <stdint.h>

struct hazard_params {
	uint64_t in;  /* 64 words */
	uint64_t out; /* 64 words */
	uint32_t fix; /* not 0: the right twin */
};

#ifdef __cplusplus
extern "C" {
#endif
void hz_reverse(const void *params);       /* no barrier between store and load */
void hz_reverse_warp(const void *params);  /* a warp barrier where a block barrier is due */
void hz_overwrite(const void *params);     /* write after read without a barrier */
void hz_same_word(const void *params);     /* two threads store one word */
void hz_uninit(const void *params);        /* reads what nobody wrote */
void hz_async_early(const void *params);   /* reads the destination before the wait */
void hz_async_others(const void *params);  /* reads another thread's copy without a barrier */
void hz_async_groups(const void *params);  /* waits for the wrong group */
void hz_async_left(const void *params);    /* ends with a copy under way */
void hz_align_shared(const void *params);  /* 16-byte load at offset 8 */
void hz_align_global(const void *params);  /* 16-byte load at address 4 mod 16 */
void hz_align_async(const void *params);   /* cp.async from address 8 mod 16 */
void hz_bounds_shared(const void *params); /* one past the end of shared memory */
void hz_bounds_global(const void *params); /* one past the end of a region */
void hz_read_only(const void *params);     /* stores to the input */
void hz_global_race(const void *params);   /* two blocks store one word */
void hz_small(const void *params);         /* right; compiled for 32 threads only */
void hz_barrier_some(const void *params);  /* half of the threads miss a barrier */
void hz_shuffle_some(const void *params);  /* one lane misses a shuffle */
void hz_order(const void *params);         /* right; out depends on the order of threads */
void hz_mma(const void *params);           /* right; out = a * b, see test_cudasim.c */
#ifdef __cplusplus
}
#endif
#endif
