/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One GPU with the kernels of kernels/cuda: a context, a stream, memory, launches by name. The driver is
 * found at run time. Used by one thread, the one that opened it; everything is enqueued on `stream` but for
 * what says otherwise.
 *
 * Failures are -ENOMEM, -EINVAL or -EIO, or -ENODEV once the device is lost to this process; `why` says the
 * first one in words.
 */
#ifndef KVR_GPU_H
#define KVR_GPU_H

#include "gpu/kvp_cu.h"
#include "kernels/cuda/kvp_cuda_kernels.h"
#include "tools/kvrun/kvr_error.h"

#include <stddef.h>
#include <stdint.h>

#define KVR_GPU_IMAGES_MAX 8u

struct kvr_gpu {
	struct kvp_cu cu;
	struct CUstream_st *stream;
	uint32_t ordinal; /* as the driver numbers what this process sees */
	struct CUmod_st *image[KVR_GPU_IMAGES_MAX];
	uint32_t images;
	struct CUfunc_st **function; /* [kvp_cuda_kernel_count], found when first launched */
	struct kvr_error why;
};

/* -ENODEV: no driver or no such device; -ENOTSUP: built without the kernels; with a message. */
int kvr_gpu_open(uint32_t ordinal, struct kvr_error *err, struct kvr_gpu **ret_gpu);
/* Waits for the stream. All memory must have been freed. Accepts NULL; returns NULL. */
struct kvr_gpu *kvr_gpu_close(struct kvr_gpu *gpu);

/* Aligned to 256 bytes. Freeing 0 is harmless; the stream must be done with it. */
int kvr_gpu_alloc(struct kvr_gpu *gpu, size_t bytes, uint64_t *ret_at);
void kvr_gpu_free(struct kvr_gpu *gpu, uint64_t at);
/* Pinned memory of this process, which is what copies take. Freeing NULL is harmless. */
int kvr_gpu_host_alloc(struct kvr_gpu *gpu, size_t bytes, void **ret_p);
void kvr_gpu_host_free(struct kvr_gpu *gpu, void *p);

/* `from` and `to` are pinned, and not touched before kvr_gpu_wait(). */
int kvr_gpu_upload(struct kvr_gpu *gpu, uint64_t to, const void *from, size_t bytes);
int kvr_gpu_download(struct kvr_gpu *gpu, void *to, uint64_t from, size_t bytes);
int kvr_gpu_launch(struct kvr_gpu *gpu, const struct kvp_cuda_kernel *kernel, const void *params);
/* Until the stream has come to the end of what was enqueued. */
int kvr_gpu_wait(struct kvr_gpu *gpu);

#endif
