/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for kernels/cuda/image.c in programs that run over the simulated driver alone. */
#include <errno.h>

#include "kernels/cuda/kvp_cuda_kernels.h"
#include "tests/cudadrv/cudadrv.h"

int kvp_cuda_image(uint32_t index, const void **ret_image, size_t *ret_bytes)
{
	*ret_image = cudadrv_project_image;
	*ret_bytes = 1;
	return index == 0 ? 0 : -ENOENT;
}
