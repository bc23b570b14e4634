/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's calls that attention on a GPU takes, and what is said when one of them fails. */
#include "tools/kvrun/kvr_gpu.h"

#include <errno.h>
#include <stdlib.h>

#define SMEM_PLAIN (48u << 10) /* that a launch may have without asking */

/* An error of the driver as an errno. The first one is kept: those after it may be its consequences. */
static int check(struct kvr_gpu *g, const char *what, int error)
{
	if (error == CU_OK)
		return 0;
	if (!g->why.text[0])
		kvr_fail(&g->why, 0, "cuda:%u: %s: %s", g->ordinal, what,
			kvp_cu_name(&g->cu, error));
	return kvp_cu_lost(error) ? -ENODEV : error == CU_ERR_NO_MEMORY ? -ENOMEM : -EIO;
}

static int load_images(struct kvr_gpu *g)
{
	const void *image;
	size_t bytes;
	int r = 0;

	while (g->images < KVR_GPU_IMAGES_MAX &&
		(r = kvp_cuda_image(g->images, &image, &bytes)) == 0) {
		r = check(g, "the kernels cannot be loaded",
			g->cu.cuModuleLoadData(&g->image[g->images], image));
		if (r < 0)
			return r;
		g->images++;
	}
	if (r == -ENOTSUP)
		return kvr_fail(&g->why, r,
			"kvrun was built without CUDA kernels: build it where nvcc 12.8 or newer "
			"is");
	return 0;
}

int kvr_gpu_open(uint32_t ordinal, struct kvr_error *err, struct kvr_gpu **ret_gpu)
{
	struct kvr_gpu *g = calloc(1, sizeof(*g));
	char why[KVP_CU_WHY];
	int r;

	if (!g || !(g->function = calloc(kvp_cuda_kernel_count, sizeof(*g->function)))) {
		free(g);
		return kvr_fail(err, -ENOMEM, "no memory");
	}
	g->ordinal = ordinal;
	r = kvp_cu_open((int)ordinal, &g->cu, why);
	if (r < 0) {
		free(g->function);
		free(g);
		return kvr_fail(err, r, "no device cuda:%u: %s", ordinal, why);
	}
	r = load_images(g);
	if (r == 0)
		r = check(g, "no stream", g->cu.cuStreamCreate(&g->stream, CU_STREAM_ASYNC));
	if (r < 0) {
		kvr_fail(err, r, "%s", g->why.text);
		kvr_gpu_close(g);
		return r;
	}
	*ret_gpu = g;
	return 0;
}

struct kvr_gpu *kvr_gpu_close(struct kvr_gpu *g)
{
	if (!g)
		return NULL;
	if (g->stream) {
		g->cu.cuStreamSynchronize(g->stream);
		g->cu.cuStreamDestroy_v2(g->stream);
	}
	while (g->images > 0)
		g->cu.cuModuleUnload(g->image[--g->images]);
	g->cu.cuDevicePrimaryCtxRelease_v2(g->cu.device);
	free(g->function);
	free(g);
	return NULL;
}

int kvr_gpu_alloc(struct kvr_gpu *g, size_t bytes, uint64_t *ret_at)
{
	return check(g, "no memory on the device", g->cu.cuMemAlloc_v2(ret_at, bytes));
}

void kvr_gpu_free(struct kvr_gpu *g, uint64_t at)
{
	if (at)
		g->cu.cuMemFree_v2(at);
}

int kvr_gpu_host_alloc(struct kvr_gpu *g, size_t bytes, void **ret_p)
{
	return check(g, "no pinned memory", g->cu.cuMemHostAlloc(ret_p, bytes, 0));
}

void kvr_gpu_host_free(struct kvr_gpu *g, void *p)
{
	if (p)
		g->cu.cuMemFreeHost(p);
}

int kvr_gpu_upload(struct kvr_gpu *g, uint64_t to, const void *from, size_t bytes)
{
	return check(
		g, "a copy to the device", g->cu.cuMemcpyHtoDAsync_v2(to, from, bytes, g->stream));
}

int kvr_gpu_download(struct kvr_gpu *g, void *to, uint64_t from, size_t bytes)
{
	return check(g, "a copy from the device",
		g->cu.cuMemcpyDtoHAsync_v2(to, from, bytes, g->stream));
}

static int find_function(struct kvr_gpu *g, const struct kvp_cuda_kernel *k)
{
	struct CUfunc_st **known = &g->function[k - kvp_cuda_kernels], *f = NULL;
	int error = CU_ERR_INVALID_VALUE; /* there are no images */

	if (*known)
		return 0;
	for (uint32_t i = 0; error != CU_OK && i < g->images; i++)
		error = g->cu.cuModuleGetFunction(&f, g->image[i], k->name);
	if (error == CU_OK && k->smem_max > SMEM_PLAIN)
		error = g->cu.cuFuncSetAttribute(f, CU_FUNC_MAX_DYNAMIC_SMEM, (int)k->smem_max);
	if (error == CU_OK)
		*known = f;
	return check(g, k->name, error);
}

int kvr_gpu_launch(struct kvr_gpu *g, const struct kvp_cuda_kernel *k, const void *params)
{
	union {
		const void *in;
		void *arg;
	} args[1] = { { .in = params } };
	struct kvp_cuda_shape s;
	int r = k->shape(params, &s);

	if (r < 0) {
		if (!g->why.text[0])
			kvr_fail(&g->why, r, "%s does not take this model's keys and values",
				k->name);
		return r;
	}
	r = find_function(g, k);
	if (r < 0)
		return r;
	return check(g, k->name,
		g->cu.cuLaunchKernel(g->function[k - kvp_cuda_kernels], s.grid[0], s.grid[1],
			s.grid[2], s.threads, 1, 1, s.smem_bytes, g->stream, &args[0].arg, NULL));
}

int kvr_gpu_wait(struct kvr_gpu *g)
{
	return check(g, "what was computed on the device", g->cu.cuStreamSynchronize(g->stream));
}
