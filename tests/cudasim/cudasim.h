/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of one CUDA device, enough to run the kernels of kernels/cuda on a CPU and to catch what
 * a GPU would punish at random: each thread of a block is a fibre, and the order in which fibres
 * run between two barriers is drawn from a seed.
 *
 * What is checked while a kernel runs:
 *  - shared memory: bounds, natural alignment, reading what was never written, and data races (two
 *    threads touch a byte, one of them writes, and no barrier lies between; whether the order
 *    drawn happened to be harmless does not matter);
 *  - global memory: bounds against the regions that were mapped, natural alignment, writes to
 *    read-only regions, and any byte written by one thread and touched by another in one launch;
 *  - cp.async: the destination is poison until the issuing thread waits;
 *  - barriers and warp collectives that not all threads reach;
 *  - blocks larger than the kernel's launch bounds.
 *
 * What it cannot show: docs/testing.md. One launch at a time, from one host thread.
 */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/kvp_cuda_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUDASIM_RACE   0 /* shared or global data race */
#define CUDASIM_UNINIT 1 /* read of shared memory that nobody wrote */
#define CUDASIM_PENDING \
	2 /* touched the destination of an unfinished cp.async, or left one behind */
#define CUDASIM_ALIGN   3 /* address not a multiple of the access size */
#define CUDASIM_BOUNDS  4 /* outside every region, or a write to a read-only one */
#define CUDASIM_DIVERGE 5 /* a barrier or collective that not all threads reached */
#define CUDASIM_LAUNCH  6 /* more threads per block than the kernel was compiled for */
#define CUDASIM_KINDS   7

struct cudasim_report {
	uint32_t count[CUDASIM_KINDS];
	uint32_t total;
	char first[240]; /* the first hazard in words; empty if none */
};

/*
 * Makes [p, p + bytes) visible to kernels; writable or not. At most 1,024 regions; one more
 * aborts the test. Regions must not overlap. The memory stays the caller's.
 */
void cudasim_map(const void *p, size_t bytes, int writable);
/* The same of memory that kernels see at p and that lies at `at`. */
void cudasim_map_at(const void *p, void *at, size_t bytes, int writable);
/* Is told of each access to a region before it happens; NULL: nobody is. */
void cudasim_on_touch(void (*touch)(const void *p, uint32_t size));
/* Forgets all regions. */
void cudasim_unmap_all(void);

/*
 * Runs fn (a kernel compiled for the model) over the whole grid. The params struct is read in
 * place. Always fills *ret; a block that cannot go on (divergence) is given up and the next block
 * runs. 0, or -EINVAL for a shape no device would take.
 */
int cudasim_launch(void (*fn)(const void *params), const void *params,
	const struct kvp_cuda_shape *shape, uint64_t seed, struct cudasim_report *ret);

/*
 * Breaks the kernels that run from now on: the n-th block barrier (from 0) of every thread is left
 * out. CUDASIM_WHOLE: none is. For tests of tests.
 */
#define CUDASIM_WHOLE UINT32_MAX
void cudasim_skip_barrier(uint32_t n);

#ifdef __cplusplus
}
#endif
#endif
