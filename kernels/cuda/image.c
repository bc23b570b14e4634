/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled CUDA kernels as the linker embedded them, or none where they were not built. */
#include "kernels/cuda/kvp_cuda_kernels.h"

#include <errno.h>

#ifdef KVP_HAVE_CUDA
/* Made by embed.S from what nvcc made of each .cu file. */
extern const unsigned char kvp_cuda_image_codec[], kvp_cuda_image_codec_end[];
extern const unsigned char kvp_cuda_image_attend[], kvp_cuda_image_attend_end[];
extern const unsigned char kvp_cuda_image_attend_any[], kvp_cuda_image_attend_any_end[];
extern const unsigned char kvp_cuda_image_layout[], kvp_cuda_image_layout_end[];

int kvp_cuda_image(uint32_t index, const void **ret_image, size_t *ret_bytes)
{
	static const struct {
		const unsigned char *start;
		const unsigned char *end;
	} images[] = {
		{ kvp_cuda_image_codec, kvp_cuda_image_codec_end },
		{ kvp_cuda_image_attend, kvp_cuda_image_attend_end },
		{ kvp_cuda_image_attend_any, kvp_cuda_image_attend_any_end },
		{ kvp_cuda_image_layout, kvp_cuda_image_layout_end },
	};

	if (index >= sizeof(images) / sizeof(images[0]))
		return -ENOENT;
	*ret_image = images[index].start;
	*ret_bytes = (size_t)(images[index].end - images[index].start);
	return 0;
}
#else
int kvp_cuda_image(uint32_t index, const void **ret_image, size_t *ret_bytes)
{
	(void)index;
	(void)ret_image;
	(void)ret_bytes;
	return -ENOTSUP;
}
#endif
