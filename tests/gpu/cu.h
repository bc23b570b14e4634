/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA Driver API that the GPU programs use, found in libcuda.so.1 at run time, so
 * that neither headers nor libraries of CUDA are needed to build them. Types and numbers are those
 * of the driver's ABI; functions have the names of cuda.h with the version suffix of their symbol.
 */
#ifndef TESTS_GPU_CU_H
#define TESTS_GPU_CU_H

#include <stddef.h>
#include <stdint.h>

struct cu_ctx;
struct cu_module;
struct cu_function;
struct cu_stream;
struct cu_event;
struct cu_graph;
struct cu_graph_exec;

#define CU_OK        0
#define CU_NOT_READY 600

#define CU_ATTR_SM_COUNT         16
#define CU_ATTR_CC_MAJOR         75
#define CU_ATTR_CC_MINOR         76
#define CU_ATTR_VMM              102
#define CU_ATTR_POSIX_FD         103
#define CU_ATTR_READ_ONLY_REG    113
#define CU_ATTR_HOST_NUMA_ID     134
#define CU_ATTR_HOST_NUMA_VMM    141
#define CU_FUNC_LOCAL_BYTES      3
#define CU_FUNC_REGS             4
#define CU_FUNC_MAX_DYNAMIC_SMEM 8

#define CU_LOC_DEVICE    1
#define CU_LOC_HOST_NUMA 3
#define CU_HANDLE_FD     1
#define CU_PROT_READ     1
#define CU_PROT_RW       3
#define CU_REG_READ_ONLY 8
#define CU_WAIT_GEQ      0
#define CU_CAPTURE_LOCAL 1 /* thread-local mode */
#define CU_STREAM_ASYNC  1 /* does not wait for the default stream */

struct cu_location {
	int type;
	int id;
};

struct cu_alloc_prop {
	int type; /* 1: pinned */
	int handle_types;
	struct cu_location location;
	void *win32;
	unsigned char compression;
	unsigned char rdma;
	unsigned short usage;
	unsigned char reserved[4];
};

struct cu_access {
	struct cu_location location;
	int flags;
};

#define CU_FUNCTIONS(X)                                                                            \
	X(cuInit, (unsigned int flags))                                                            \
	X(cuDriverGetVersion, (int *version))                                                      \
	X(cuGetErrorName, (int error, const char **name))                                          \
	X(cuDeviceGetCount, (int *count))                                                          \
	X(cuDeviceGet, (int *device, int ordinal))                                                 \
	X(cuDeviceGetName, (char *name, int len, int device))                                      \
	X(cuDeviceGetAttribute, (int *value, int attribute, int device))                           \
	X(cuDevicePrimaryCtxRetain, (struct cu_ctx * *ctx, int device))                            \
	X(cuCtxSetCurrent, (struct cu_ctx * ctx))                                                  \
	X(cuCtxSynchronize, (void))                                                                \
	X(cuMemGetInfo_v2, (size_t * free, size_t * total))                                        \
	X(cuMemAlloc_v2, (uint64_t * ptr, size_t bytes))                                           \
	X(cuMemFree_v2, (uint64_t ptr))                                                            \
	X(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes))                          \
	X(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes))                                \
	X(cuMemcpyDtoD_v2, (uint64_t to, uint64_t from, size_t bytes))                             \
	X(cuMemcpyDtoDAsync_v2,                                                                    \
		(uint64_t to, uint64_t from, size_t bytes, struct cu_stream * stream))             \
	X(cuMemcpyHtoDAsync_v2,                                                                    \
		(uint64_t to, const void *from, size_t bytes, struct cu_stream *stream))           \
	X(cuMemsetD8_v2, (uint64_t to, unsigned char value, size_t bytes))                         \
	X(cuModuleLoadData, (struct cu_module * *module, const void *image))                       \
	X(cuModuleGetFunction,                                                                     \
		(struct cu_function * *function, struct cu_module * module, const char *name))     \
	X(cuFuncSetAttribute, (struct cu_function * function, int attribute, int value))           \
	X(cuFuncGetAttribute, (int *value, int attribute, struct cu_function *function))           \
	X(cuLaunchKernel,                                                                          \
		(struct cu_function * function, unsigned int gx, unsigned int gy, unsigned int gz, \
			unsigned int bx, unsigned int by, unsigned int bz, unsigned int smem,      \
			struct cu_stream *stream, void **params, void **extra))                    \
	X(cuStreamCreate, (struct cu_stream * *stream, unsigned int flags))                        \
	X(cuStreamSynchronize, (struct cu_stream * stream))                                        \
	X(cuStreamQuery, (struct cu_stream * stream))                                              \
	X(cuStreamBeginCapture_v2, (struct cu_stream * stream, int mode))                          \
	X(cuStreamEndCapture, (struct cu_stream * stream, struct cu_graph * *graph))               \
	X(cuStreamWaitValue64_v2,                                                                  \
		(struct cu_stream * stream, uint64_t at, uint64_t value, unsigned int flags))      \
	X(cuGraphInstantiateWithFlags,                                                             \
		(struct cu_graph_exec * *exec, struct cu_graph * graph, unsigned long long flags)) \
	X(cuGraphLaunch, (struct cu_graph_exec * exec, struct cu_stream * stream))                 \
	X(cuGraphExecDestroy, (struct cu_graph_exec * exec))                                       \
	X(cuGraphDestroy, (struct cu_graph * graph))                                               \
	X(cuEventCreate, (struct cu_event * *event, unsigned int flags))                           \
	X(cuEventRecord, (struct cu_event * event, struct cu_stream * stream))                     \
	X(cuEventSynchronize, (struct cu_event * event))                                           \
	X(cuEventElapsedTime, (float *milliseconds, struct cu_event *start, struct cu_event *end)) \
	X(cuMemCreate, (uint64_t * handle, size_t bytes, const struct cu_alloc_prop *prop,         \
			       unsigned long long flags))                                          \
	X(cuMemRelease, (uint64_t handle))                                                         \
	X(cuMemExportToShareableHandle,                                                            \
		(void *handle, uint64_t mem, int type, unsigned long long flags))                  \
	X(cuMemImportFromShareableHandle, (uint64_t * mem, void *handle, int type))                \
	X(cuMemAddressReserve, (uint64_t * ptr, size_t bytes, size_t align, uint64_t hint,         \
				       unsigned long long flags))                                  \
	X(cuMemAddressFree, (uint64_t ptr, size_t bytes))                                          \
	X(cuMemMap, (uint64_t ptr, size_t bytes, size_t offset, uint64_t mem,                      \
			    unsigned long long flags))                                             \
	X(cuMemUnmap, (uint64_t ptr, size_t bytes))                                                \
	X(cuMemSetAccess, (uint64_t ptr, size_t bytes, const struct cu_access *access, size_t n))  \
	X(cuMemGetAllocationGranularity,                                                           \
		(size_t * bytes, const struct cu_alloc_prop *prop, int option))                    \
	X(cuMemHostRegister_v2, (void *ptr, size_t bytes, unsigned int flags))                     \
	X(cuMemHostUnregister, (void *ptr))

#define CU_MEMBER(name, args) int(*name) args;
struct cu {
	CU_FUNCTIONS(CU_MEMBER)
	void *library;
	int device;
	struct cu_ctx *ctx;
};
#undef CU_MEMBER

/*
 * Finds the driver and device 0 and makes its primary context current. -ENODEV: there is no driver
 * or no device, and ret_why (at least 200 bytes) says which; nothing else is usable then. Call it
 * only after the last fork.
 */
int cu_open(struct cu *ret_cu, char *ret_why);

/* The name of an error, "CUDA_ERROR_..." */
const char *cu_name(const struct cu *cu, int error);

#endif
