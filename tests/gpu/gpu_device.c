/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/gpu_device.h"

#define GUARD      512u
#define GUARD_BYTE 0xc3
#define BLOCKS_MAX 64

/* Allocations of the running check. Inputs are compared at the end: nothing may write them. */
static struct {
	struct {
		uint64_t base;
		size_t bytes;
		uint8_t *input; /* NULL: kernels may write it */
	} block[BLOCKS_MAX];
	uint32_t n;
} heap;

static uint64_t gpu_alloc(struct device *d, const void *init, size_t bytes, int writable)
{
	struct gpu *g = (struct gpu *)(void *)d;
	uint8_t *input = writable ? NULL : malloc(bytes + 1);
	uint64_t base;

	if (heap.n == BLOCKS_MAX || (!writable && !input) ||
		g->cu.cuMemAlloc_v2(&base, bytes + 2 * GUARD) != CU_OK) {
		free(input);
		return 0;
	}
	if (input)
		memcpy(input, init, bytes);
	heap.block[heap.n].base = base;
	heap.block[heap.n].bytes = bytes;
	heap.block[heap.n].input = input;
	heap.n++;
	if (g->cu.cuMemsetD8_v2(base, GUARD_BYTE, bytes + 2 * GUARD) != CU_OK ||
		g->cu.cuMemcpyHtoD_v2(base + GUARD, init, bytes) != CU_OK)
		return 0;
	return base + GUARD;
}

static int gpu_read(struct device *d, uint64_t from, void *to, size_t bytes)
{
	struct gpu *g = (struct gpu *)(void *)d;
	int r = g->cu.cuMemcpyDtoH_v2(to, from, bytes);

	if (r == CU_OK)
		return 0;
	snprintf(d->error, sizeof(d->error), "read: %s", kvp_cu_name(&g->cu, r));
	return -1;
}

/* Guards, and inputs, as they were? */
static int block_intact(struct gpu *g, uint32_t i)
{
	size_t bytes = heap.block[i].bytes + 2 * GUARD;
	uint8_t *all = malloc(bytes);
	int ok = all && gpu_read(&g->device, heap.block[i].base, all, bytes) == 0;

	for (size_t b = 0; ok && b < GUARD; b++)
		ok = all[b] == GUARD_BYTE && all[bytes - 1 - b] == GUARD_BYTE;
	if (ok && heap.block[i].input)
		ok = memcmp(all + GUARD, heap.block[i].input, heap.block[i].bytes) == 0;
	free(all);
	return ok;
}

static int heap_intact(struct gpu *g)
{
	for (uint32_t i = 0; i < heap.n; i++)
		if (!block_intact(g, i))
			return 0;
	return 1;
}

static void gpu_reset(struct device *d)
{
	struct gpu *g = (struct gpu *)(void *)d;

	while (heap.n > 0) {
		heap.n--;
		free(heap.block[heap.n].input);
		g->cu.cuMemFree_v2(heap.block[heap.n].base);
	}
}

int gpu_enqueue(struct gpu *g, const struct kvp_cuda_kernel *k, const void *params)
{
	struct kvp_cuda_shape s;
	union {
		const void *in;
		void *arg;
	} args[1] = { { .in = params } };
	int r = k->shape(params, &s);

	if (r < 0) {
		snprintf(g->device.error, sizeof(g->device.error), "%s: shape refused (%d)",
			k->name, r);
		return -1;
	}
	r = g->cu.cuLaunchKernel(g->function[k - kvp_cuda_kernels], s.grid[0], s.grid[1], s.grid[2],
		s.threads, 1, 1, s.smem_bytes, g->stream, &args[0].arg, NULL);
	if (r == CU_OK)
		return 0;
	snprintf(g->device.error, sizeof(g->device.error), "%s: launch: %s", k->name,
		kvp_cu_name(&g->cu, r));
	return -1;
}

static int gpu_launch(struct device *d, const struct kvp_cuda_kernel *k, const void *params)
{
	struct gpu *g = (struct gpu *)(void *)d;
	int r;

	if (gpu_enqueue(g, k, params) < 0)
		return -1;
	r = g->cu.cuStreamSynchronize(g->stream);
	if (r != CU_OK) {
		snprintf(d->error, sizeof(d->error), "%s: %s", k->name, kvp_cu_name(&g->cu, r));
		return -1;
	}
	if (heap_intact(g))
		return 0;
	snprintf(d->error, sizeof(d->error), "%s wrote outside of its output", k->name);
	return -1;
}

static int load_images(struct gpu *g, char *why)
{
	const void *image;
	size_t bytes;
	int r = 0;

	while (g->modules < sizeof(g->module) / sizeof(g->module[0]) &&
		(r = kvp_cuda_image(g->modules, &image, &bytes)) == 0) {
		int cr = g->cu.cuModuleLoadData(&g->module[g->modules], image);

		if (cr != CU_OK) {
			snprintf(why, 200, "image %u: %s", g->modules, kvp_cu_name(&g->cu, cr));
			return -EIO;
		}
		g->modules++;
	}
	if (r == -ENOTSUP)
		snprintf(why, 200, "built without nvcc: there are no kernels to load");
	return g->modules ? 0 : -ENOTSUP;
}

static int find_function(struct gpu *g, uint32_t i, char *why)
{
	const struct kvp_cuda_kernel *k = &kvp_cuda_kernels[i];
	int r = -1;

	for (uint32_t m = 0; r != CU_OK && m < g->modules; m++)
		r = g->cu.cuModuleGetFunction(&g->function[i], g->module[m], k->name);
	if (r == CU_OK && k->smem_max > 48u << 10)
		r = g->cu.cuFuncSetAttribute(
			g->function[i], CU_FUNC_MAX_DYNAMIC_SMEM, (int)k->smem_max);
	if (r == CU_OK)
		return 0;
	snprintf(why, 200, "%s: %s", k->name, kvp_cu_name(&g->cu, r));
	return -EIO;
}

int gpu_open(struct gpu *ret_gpu, char *ret_why)
{
	struct gpu g = { .modules = 0 };
	int r;

	r = kvp_cu_open(0, &g.cu, ret_why);
	if (r < 0)
		return r;
	if (kvp_cuda_kernel_count > GPU_KERNELS_MAX) {
		snprintf(ret_why, 200, "more kernels than GPU_KERNELS_MAX");
		return -E2BIG;
	}
	r = load_images(&g, ret_why);
	for (uint32_t i = 0; r == 0 && i < kvp_cuda_kernel_count; i++)
		r = find_function(&g, i, ret_why);
	if (r < 0)
		return r;
	/* a stream that waits for the default one, where cuMemcpy and cuMemset go */
	if (g.cu.cuStreamCreate(&g.stream, 0) != CU_OK || kvp_kernels_new(0, &g.ref) < 0) {
		snprintf(ret_why, 200, "no stream or no memory");
		return -ENOMEM;
	}
	g.device = (struct device){
		.alloc = gpu_alloc,
		.read = gpu_read,
		.launch = gpu_launch,
		.reset = gpu_reset,
		.ref = g.ref,
	};
	*ret_gpu = g;
	return 0;
}

void gpu_close(struct gpu *g)
{
	g->device.reset(&g->device);
	g->ref = kvp_kernels_free(g->ref);
	g->cu.cuStreamDestroy_v2(g->stream);
	while (g->modules > 0)
		g->cu.cuModuleUnload(g->module[--g->modules]);
	g->cu.cuDevicePrimaryCtxRelease_v2(g->cu.device);
}
