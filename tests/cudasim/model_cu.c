/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Driver API over the model of a device, so that tests/gpu/check.c itself runs without a GPU:
 * what it allocates, launches, captures and compares is real, its times mean nothing. Stands in for
 * gpu/cu.c.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cudasim/sim_device.h"
#include "gpu/kvp_cu.h"

#define BLOCKS_MAX   60 /* the model maps 64 regions */
#define CAPTURED_MAX 16
#define PARAM_MAX    4096
#define BAD_VALUE    1
#define NO_MEMORY    2
#define NOT_FOUND    500
#define LAUNCH_ERROR 719
#define CAPTURING    900 /* not permitted now */

struct CUfunc_st {
	const struct kvp_cuda_kernel *kernel;
	uint32_t smem; /* granted */
};
struct CUevent_st {
	double ms;
};

struct launch {
	const struct kvp_cuda_kernel *kernel;
	struct kvp_cuda_shape shape;
	_Alignas(16) uint8_t params[PARAM_MAX];
};

static struct {
	struct {
		void *p;
		size_t bytes;
	} block[BLOCKS_MAX];
	uint32_t blocks;
	struct CUfunc_st function[SIM_KERNELS_MAX];
	/* the graph that is captured, or was; there is one */
	struct launch captured[CAPTURED_MAX];
	uint32_t launches;
	int capturing;
	uint64_t seed;
} model;

const char *kvp_cu_name(const struct kvp_cu *cu, int error)
{
	static char name[40];

	(void)cu;
	snprintf(name, sizeof(name), "the model's error %d", error);
	return name;
}

/* Without nvcc there are no images; the model needs none. */
int kvp_cuda_image(uint32_t index, const void **ret_image, size_t *ret_bytes)
{
	*ret_image = "";
	*ret_bytes = 1;
	return index == 0 ? 0 : -ENOENT;
}

/* ---- memory ---- */

static int mem_alloc(uint64_t *ptr, size_t bytes)
{
	void *p = aligned_alloc(256, (bytes + 256) / 256 * 256);

	if (!p || model.blocks == BLOCKS_MAX) {
		free(p);
		return NO_MEMORY;
	}
	model.block[model.blocks].p = p;
	model.block[model.blocks++].bytes = bytes;
	*ptr = (uintptr_t)p;
	return CU_OK;
}

static int mem_free(uint64_t ptr)
{
	for (uint32_t i = 0; i < model.blocks; i++) {
		if ((uintptr_t)model.block[i].p == ptr) {
			free(model.block[i].p);
			model.block[i] = model.block[--model.blocks];
			return CU_OK;
		}
	}
	return BAD_VALUE;
}

static int mem_info(size_t *free_bytes, size_t *total)
{
	*free_bytes = *total = (size_t)1 << 30;
	return CU_OK;
}

static int copy_in(uint64_t to, const void *from, size_t bytes)
{
	memcpy((void *)(uintptr_t)to, from, bytes);
	return CU_OK;
}

static int copy_out(void *to, uint64_t from, size_t bytes)
{
	memcpy(to, (const void *)(uintptr_t)from, bytes);
	return CU_OK;
}

static int copy(uint64_t to, uint64_t from, size_t bytes)
{
	return copy_in(to, (const void *)(uintptr_t)from, bytes);
}

static int copy_async(uint64_t to, uint64_t from, size_t bytes, struct CUstream_st *stream)
{
	(void)stream;
	return copy(to, from, bytes);
}

static int set(uint64_t to, unsigned char value, size_t bytes)
{
	memset((void *)(uintptr_t)to, value, bytes);
	return CU_OK;
}

/* ---- functions and launches ---- */

static int module_load(struct CUmod_st **module, const void *image)
{
	(void)image;
	*module = NULL;
	return CU_OK;
}

static int module_function(struct CUfunc_st **function, struct CUmod_st *module, const char *name)
{
	const struct kvp_cuda_kernel *k;
	struct CUfunc_st *f;

	(void)module;
	if (kvp_cuda_kernel_find(name, &k) < 0 || !sim_find(name) || k->param_bytes > PARAM_MAX)
		return NOT_FOUND;
	f = &model.function[k - kvp_cuda_kernels];
	f->kernel = k;
	f->smem = 48u << 10;
	*function = f;
	return CU_OK;
}

static int function_set(struct CUfunc_st *function, int attribute, int value)
{
	if (attribute != CU_FUNC_MAX_DYNAMIC_SMEM || value > 99 << 10)
		return BAD_VALUE;
	function->smem = (uint32_t)value;
	return CU_OK;
}

static int function_get(int *value, int attribute, struct CUfunc_st *function)
{
	(void)attribute;
	(void)function;
	*value = 0;
	return CU_OK;
}

static int run(const struct launch *l)
{
	struct cudasim_report report;
	int r;

	cudasim_unmap_all();
	for (uint32_t i = 0; i < model.blocks; i++)
		cudasim_map(model.block[i].p, model.block[i].bytes, 1);
	r = cudasim_launch(sim_find(l->kernel->name), l->params, &l->shape, model.seed++, &report);
	cudasim_unmap_all();
	if (r == 0 && report.total == 0)
		return CU_OK;
	printf("%s: %s\n", l->kernel->name, report.first);
	return LAUNCH_ERROR;
}

static int launch(struct CUfunc_st *f, unsigned int gx, unsigned int gy, unsigned int gz,
	unsigned int bx, unsigned int by, unsigned int bz, unsigned int smem,
	struct CUstream_st *stream, void **params, void **extra)
{
	struct launch *l = &model.captured[model.launches], direct;

	(void)stream;
	if (by != 1 || bz != 1 || extra || smem > f->smem || model.launches == CAPTURED_MAX)
		return BAD_VALUE;
	if (!model.capturing)
		l = &direct;
	l->kernel = f->kernel;
	l->shape = (struct kvp_cuda_shape){ { gx, gy, gz }, bx, smem };
	memcpy(l->params, params[0], f->kernel->param_bytes);
	model.launches += (uint32_t)model.capturing;
	return model.capturing ? CU_OK : run(l);
}

/* ---- streams, graphs, events ---- */

static int stream_new(struct CUstream_st **stream, unsigned int flags)
{
	(void)flags;
	*stream = NULL;
	return CU_OK;
}

static int stream_wait(struct CUstream_st *stream)
{
	(void)stream;
	return model.capturing ? CAPTURING : CU_OK;
}

static int capture_begin(struct CUstream_st *stream, int mode)
{
	(void)stream;
	(void)mode;
	model.capturing = 1;
	model.launches = 0;
	return CU_OK;
}

static int capture_end(struct CUstream_st *stream, struct CUgraph_st **graph)
{
	(void)stream;
	model.capturing = 0;
	*graph = (struct CUgraph_st *)(void *)&model;
	return CU_OK;
}

static int graph_instantiate(
	struct CUgraphExec_st **exec, struct CUgraph_st *graph, unsigned long long flags)
{
	(void)flags;
	*exec = (struct CUgraphExec_st *)(void *)graph;
	return CU_OK;
}

static int graph_launch(struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
	int r = CU_OK;

	(void)exec;
	(void)stream;
	for (uint32_t i = 0; r == CU_OK && i < model.launches; i++)
		r = run(&model.captured[i]);
	return r;
}

static int graph_free(struct CUgraph_st *graph)
{
	(void)graph;
	return CU_OK;
}

static int exec_free(struct CUgraphExec_st *exec)
{
	(void)exec;
	model.launches = 0;
	return CU_OK;
}

static int event_new(struct CUevent_st **event, unsigned int flags)
{
	static struct CUevent_st events[64];
	static uint32_t n;

	(void)flags;
	*event = &events[n++ % 64];
	return CU_OK;
}

static int event_record(struct CUevent_st *event, struct CUstream_st *stream)
{
	struct timespec t;

	(void)stream;
	clock_gettime(CLOCK_MONOTONIC, &t);
	event->ms = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
	return CU_OK;
}

static int event_wait(struct CUevent_st *event)
{
	(void)event;
	return CU_OK;
}

static int event_elapsed(float *milliseconds, struct CUevent_st *start, struct CUevent_st *end)
{
	*milliseconds = (float)(end->ms - start->ms);
	return CU_OK;
}

/* ---- the device ---- */

static int driver_version(int *version)
{
	*version = 0;
	return CU_OK;
}

static int device_name(char *name, int len, int device)
{
	(void)device;
	snprintf(name, (size_t)len, "the model (its times mean nothing)");
	return CU_OK;
}

static int device_attribute(int *value, int attribute, int device)
{
	(void)device;
	*value = attribute == CU_ATTR_SM_COUNT ? 2 : 0;
	return CU_OK;
}

int kvp_cu_open(int ordinal, struct kvp_cu *ret_cu, char *ret_why)
{
	(void)ordinal;
	(void)ret_why;
	*ret_cu = (struct kvp_cu){
		.cuDriverGetVersion = driver_version,
		.cuDeviceGetName = device_name,
		.cuDeviceGetAttribute = device_attribute,
		.cuMemGetInfo_v2 = mem_info,
		.cuMemAlloc_v2 = mem_alloc,
		.cuMemFree_v2 = mem_free,
		.cuMemcpyHtoD_v2 = copy_in,
		.cuMemcpyDtoH_v2 = copy_out,
		.cuMemcpyDtoD_v2 = copy,
		.cuMemcpyDtoDAsync_v2 = copy_async,
		.cuMemsetD8_v2 = set,
		.cuModuleLoadData = module_load,
		.cuModuleGetFunction = module_function,
		.cuFuncSetAttribute = function_set,
		.cuFuncGetAttribute = function_get,
		.cuLaunchKernel = launch,
		.cuStreamCreate = stream_new,
		.cuStreamSynchronize = stream_wait,
		.cuStreamBeginCapture_v2 = capture_begin,
		.cuStreamEndCapture = capture_end,
		.cuGraphInstantiateWithFlags = graph_instantiate,
		.cuGraphLaunch = graph_launch,
		.cuGraphExecDestroy = exec_free,
		.cuGraphDestroy = graph_free,
		.cuEventCreate = event_new,
		.cuEventRecord = event_record,
		.cuEventSynchronize = event_wait,
		.cuEventElapsedTime = event_elapsed,
	};
	return 0;
}
