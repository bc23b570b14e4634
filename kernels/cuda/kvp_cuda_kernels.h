/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVP_CUDA_KERNELS_H
#define KVP_CUDA_KERNELS_H
#include <stddef.h>
#include <stdint.h>
struct kvp_cuda_shape {
	uint32_t grid[3];
	uint32_t threads;
	uint32_t smem_bytes;
};
#endif
