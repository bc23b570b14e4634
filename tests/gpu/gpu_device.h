/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU as a device for tests/cudasim/checks.h: guarded allocations, and every kernel by name. */
#ifndef TESTS_GPU_DEVICE_H
#define TESTS_GPU_DEVICE_H

#include "tests/cudasim/checks.h"
#include "gpu/kvp_cu.h"

#define GPU_KERNELS_MAX 64

struct gpu {
	struct device device; /* first: the checks get this */
	struct kvp_cu cu;
	struct CUstream_st *stream;
	struct kvp_kernels *ref;
	struct CUmod_st *module[8];
	struct CUfunc_st *function[GPU_KERNELS_MAX]; /* in the order of kvp_cuda_kernels[] */
	uint32_t modules;
	int quick; /* everything once and small: is the program right? */
};

/* Opens device 0 and loads all images. -ENODEV: no GPU; other negative errno: anything else.
 * ret_why (at least 200 bytes) has the reason. */
int gpu_open(struct gpu *ret_gpu, char *ret_why);
/* What the device allocated, the reference library, the context. */
void gpu_close(struct gpu *g);

/* Puts a launch into gpu->stream without waiting. 0, or -1 with the reason in device.error. */
int gpu_enqueue(struct gpu *g, const struct kvp_cuda_kernel *k, const void *params);

#endif
