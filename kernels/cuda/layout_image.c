/* SPDX-License-Identifier: Apache-2.0 */
/* The image that libkvpool carries. */
#include "kernels/cuda/kvp_cuda_kernels.h"

#ifdef KVP_HAVE_CUDA
extern const unsigned char kvp_cuda_image_layout[];

const void *kvp_cuda_layout_image(void)
{
	return kvp_cuda_image_layout;
}
#else
const void *kvp_cuda_layout_image(void)
{
	return 0;
}
#endif
