/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA Driver API that the project uses, found in libcuda.so.1 at run time, so that
 * neither headers nor libraries of CUDA are needed to build anything. Types and numbers are those of
 * the driver's ABI; handles have the tags of cuda.h, functions its names with the version suffix of
 * their symbol. tests/gpu/abi.py compares all of it with cuda.h where there is one.
 *
 * The functions return CU_OK or an error of the driver, which kvp_cu_name() names and kvp_cu_errno()
 * translates; those that are asynchronous may return errors of earlier calls. Nothing here writes
 * messages, and nothing forks; as anywhere in CUDA, a child of fork() can call none of them.
 */
#ifndef GPU_KVP_CU_H
#define GPU_KVP_CU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;

/* Errors that somebody has to tell apart. */
#define CU_OK                0
#define CU_ERR_INVALID_VALUE 1
#define CU_ERR_NO_MEMORY     2
#define CU_ERR_NOT_INIT      3
#define CU_ERR_SHUTDOWN      4  /* the driver is going */
#define CU_ERR_UNAVAILABLE   46 /* another process has the device to itself */
#define CU_ERR_NO_DEVICE     100
#define CU_ERR_BAD_CONTEXT   201
#define CU_ERR_ECC           214
#define CU_ERR_CONTAINED     226 /* memory of this process was lost to an error of the hardware */
#define CU_ERR_BAD_HANDLE    400
#define CU_NOT_READY         600
#define CU_ERR_NO_CONTEXT    709 /* it was destroyed */
#define CU_ERR_MPS_FIRST     805
#define CU_ERR_MPS_LAST      810
#define CU_ERR_REGISTERED    712 /* host memory is registered already */
#define CU_ERR_UNREGISTERED  713
#define CU_ERR_NOT_PERMITTED 800
#define CU_ERR_UNSUPPORTED   801
#define CU_ERR_CAPTURING     900

/* cuDeviceGetAttribute() */
#define CU_ATTR_SM_COUNT      16
#define CU_ATTR_COMPUTE_MODE  20
#define CU_ATTR_PCI_BUS       33
#define CU_ATTR_PCI_DEVICE    34
#define CU_ATTR_PCI_DOMAIN    50
#define CU_ATTR_CC_MAJOR      75
#define CU_ATTR_CC_MINOR      76
#define CU_ATTR_HOST_SAME_VA  91 /* registered host memory has one address for both sides */
#define CU_ATTR_HOST_REGISTER 99
#define CU_ATTR_VMM           102
#define CU_ATTR_POSIX_FD      103
#define CU_ATTR_READ_ONLY_REG 113
#define CU_ATTR_MEM_OPS_64    122 /* stream writes and waits of 64 bits */
#define CU_ATTR_MPS           133
#define CU_ATTR_HOST_NUMA_ID  134
#define CU_ATTR_HOST_NUMA_VMM 141

#define CU_COMPUTE_DEFAULT    0
#define CU_COMPUTE_PROHIBITED 2
#define CU_COMPUTE_EXCLUSIVE  3

#define CU_FUNC_LOCAL_BYTES      3
#define CU_FUNC_REGS             4
#define CU_FUNC_MAX_DYNAMIC_SMEM 8

#define CU_LOC_DEVICE    1
#define CU_LOC_HOST      2
#define CU_LOC_HOST_NUMA 3
#define CU_MEM_PINNED    1
#define CU_HANDLE_FD     1
#define CU_PROT_READ     1
#define CU_PROT_RW       3
#define CU_GRAN_MINIMUM  0
#define CU_GRAN_BEST     1
#define CU_IPC_LAZY_PEER 1 /* the one flag that cuIpcOpenMemHandle() takes */
#define CU_IPC_BYTES     64

#define CU_SCHED_BLOCKING 4 /* cuDevicePrimaryCtxSetFlags(): whoever waits sleeps */

#define CU_REG_PORTABLE  1 /* of cuMemHostAlloc() too */
#define CU_REG_DEVICEMAP 2 /* of cuMemHostAlloc() too */
#define CU_REG_READ_ONLY 8

#define CU_STREAM_ASYNC    1 /* does not wait for the default stream */
#define CU_WAIT_GEQ        0
#define CU_WRITE_PLAIN     0
#define CU_EVENT_BLOCKING  1
#define CU_EVENT_NO_TIMING 2

#define CU_CAPTURE_GLOBAL  0
#define CU_CAPTURE_LOCAL   1 /* thread-local mode */
#define CU_CAPTURE_RELAXED 2
#define CU_CAPTURE_NONE    0 /* cuStreamIsCapturing() */
#define CU_CAPTURE_ACTIVE  1

/* cuPointerGetAttribute(); the type of what it fills */
#define CU_PTR_CONTEXT     1  /* struct CUctx_st * */
#define CU_PTR_MEMORY_TYPE 2  /* unsigned int: CU_MEMORY_... */
#define CU_PTR_DEVICE      3  /* uint64_t: its address on the device */
#define CU_PTR_MANAGED     8  /* unsigned int */
#define CU_PTR_ORDINAL     9  /* int */
#define CU_PTR_LEGACY_IPC  10 /* int */
#define CU_PTR_START       11 /* uint64_t */
#define CU_PTR_BYTES       12 /* size_t */
#define CU_PTR_MAPPED      13 /* int */
#define CU_PTR_ACCESS      16 /* unsigned int: CU_PROT_... */
#define CU_MEMORY_HOST     1
#define CU_MEMORY_DEVICE   2

struct cu_uuid {
	uint8_t bytes[16];
};

struct cu_location {
	int type;
	int id;
};

struct cu_alloc_prop {
	int type; /* CU_MEM_PINNED */
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

struct cu_ipc_handle {
	char bytes[CU_IPC_BYTES];
};

/* Of a piece of a batch copy: when its source is read, and where it goes. */
#define CU_ORDER_STREAM 1
#define CU_ORDER_ANY    3 /* at any time from the call on: never for what the device wrote before */
#define CU_COPY_OVERLAP 1 /* flags: leave the SMs alone */
struct cu_copy_attr {
	int order;
	struct cu_location from, to; /* hints; all zero: none */
	unsigned int flags;
};

/* What every driver since CUDA 11.4 has. */
#define CU_FUNCTIONS(X)                                                                           \
	X(cuInit, (unsigned int flags))                                                           \
	X(cuDriverGetVersion, (int *version))                                                     \
	X(cuGetErrorName, (int error, const char **name))                                         \
	X(cuDeviceGetCount, (int *count))                                                         \
	X(cuDeviceGet, (int *device, int ordinal))                                                \
	X(cuDeviceGetName, (char *name, int len, int device))                                     \
	X(cuDeviceGetUuid_v2, (struct cu_uuid * uuid, int device))                                \
	X(cuDeviceGetPCIBusId, (char *id, int len, int device))                                   \
	X(cuDeviceGetAttribute, (int *value, int attribute, int device))                          \
	X(cuDeviceTotalMem_v2, (size_t * bytes, int device))                                      \
	X(cuDevicePrimaryCtxRetain, (struct CUctx_st * *ctx, int device))                         \
	X(cuDevicePrimaryCtxRelease_v2, (int device))                                             \
	X(cuDevicePrimaryCtxSetFlags_v2, (int device, unsigned int flags))                        \
	X(cuDevicePrimaryCtxGetState, (int device, unsigned int *flags, int *active))             \
	X(cuCtxSetCurrent, (struct CUctx_st * ctx))                                               \
	X(cuCtxGetCurrent, (struct CUctx_st * *ctx))                                              \
	X(cuCtxPushCurrent_v2, (struct CUctx_st * ctx))                                           \
	X(cuCtxPopCurrent_v2, (struct CUctx_st * *ctx))                                           \
	X(cuCtxGetDevice, (int *device))                                                          \
	X(cuCtxSynchronize, (void))                                                               \
	X(cuMemGetInfo_v2, (size_t * free, size_t * total))                                       \
	X(cuMemAlloc_v2, (uint64_t * ptr, size_t bytes))                                          \
	X(cuMemFree_v2, (uint64_t ptr))                                                           \
	X(cuMemHostAlloc, (void **ptr, size_t bytes, unsigned int flags))                         \
	X(cuMemFreeHost, (void *ptr))                                                             \
	X(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes))                         \
	X(cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes))                               \
	X(cuMemcpyDtoD_v2, (uint64_t to, uint64_t from, size_t bytes))                            \
	X(cuMemcpyDtoDAsync_v2,                                                                   \
		(uint64_t to, uint64_t from, size_t bytes, struct CUstream_st * stream))          \
	X(cuMemcpyHtoDAsync_v2,                                                                   \
		(uint64_t to, const void *from, size_t bytes, struct CUstream_st *stream))        \
	X(cuMemcpyDtoHAsync_v2,                                                                   \
		(void *to, uint64_t from, size_t bytes, struct CUstream_st *stream))              \
	X(cuMemsetD8_v2, (uint64_t to, unsigned char value, size_t bytes))                        \
	X(cuMemsetD8Async,                                                                        \
		(uint64_t to, unsigned char value, size_t bytes, struct CUstream_st *stream))     \
	X(cuPointerGetAttribute, (void *data, int attribute, uint64_t ptr))                       \
	X(cuModuleLoadData, (struct CUmod_st * *module, const void *image))                       \
	X(cuModuleUnload, (struct CUmod_st * module))                                             \
	X(cuModuleGetFunction,                                                                    \
		(struct CUfunc_st * *function, struct CUmod_st * module, const char *name))       \
	X(cuFuncSetAttribute, (struct CUfunc_st * function, int attribute, int value))            \
	X(cuFuncGetAttribute, (int *value, int attribute, struct CUfunc_st *function))            \
	X(cuLaunchKernel,                                                                         \
		(struct CUfunc_st * function, unsigned int gx, unsigned int gy, unsigned int gz,  \
			unsigned int bx, unsigned int by, unsigned int bz, unsigned int smem,     \
			struct CUstream_st *stream, void **params, void **extra))                 \
	X(cuStreamCreate, (struct CUstream_st * *stream, unsigned int flags))                     \
	X(cuStreamCreateWithPriority,                                                             \
		(struct CUstream_st * *stream, unsigned int flags, int priority))                 \
	X(cuStreamDestroy_v2, (struct CUstream_st * stream))                                      \
	X(cuStreamSynchronize, (struct CUstream_st * stream))                                     \
	X(cuStreamQuery, (struct CUstream_st * stream))                                           \
	X(cuStreamGetCtx, (struct CUstream_st * stream, struct CUctx_st * *ctx))                  \
	X(cuStreamWaitEvent,                                                                      \
		(struct CUstream_st * stream, struct CUevent_st * event, unsigned int flags))     \
	X(cuStreamBeginCapture_v2, (struct CUstream_st * stream, int mode))                       \
	X(cuStreamEndCapture, (struct CUstream_st * stream, struct CUgraph_st * *graph))          \
	X(cuStreamIsCapturing, (struct CUstream_st * stream, unsigned int *status))               \
	X(cuThreadExchangeStreamCaptureMode, (unsigned int *mode))                                \
	X(cuGraphInstantiateWithFlags, (struct CUgraphExec_st * *exec, struct CUgraph_st * graph, \
					       unsigned long long flags))                         \
	X(cuGraphLaunch, (struct CUgraphExec_st * exec, struct CUstream_st * stream))             \
	X(cuGraphExecDestroy, (struct CUgraphExec_st * exec))                                     \
	X(cuGraphDestroy, (struct CUgraph_st * graph))                                            \
	X(cuEventCreate, (struct CUevent_st * *event, unsigned int flags))                        \
	X(cuEventDestroy_v2, (struct CUevent_st * event))                                         \
	X(cuEventRecord, (struct CUevent_st * event, struct CUstream_st * stream))                \
	X(cuEventQuery, (struct CUevent_st * event))                                              \
	X(cuEventSynchronize, (struct CUevent_st * event))                                        \
	X(cuEventElapsedTime,                                                                     \
		(float *milliseconds, struct CUevent_st *start, struct CUevent_st *end))          \
	X(cuMemCreate, (uint64_t * handle, size_t bytes, const struct cu_alloc_prop *prop,        \
			       unsigned long long flags))                                         \
	X(cuMemRelease, (uint64_t handle))                                                        \
	X(cuMemExportToShareableHandle,                                                           \
		(void *handle, uint64_t mem, int type, unsigned long long flags))                 \
	X(cuMemImportFromShareableHandle, (uint64_t * mem, void *handle, int type))               \
	X(cuMemAddressReserve, (uint64_t * ptr, size_t bytes, size_t align, uint64_t hint,        \
				       unsigned long long flags))                                 \
	X(cuMemAddressFree, (uint64_t ptr, size_t bytes))                                         \
	X(cuMemMap, (uint64_t ptr, size_t bytes, size_t offset, uint64_t mem,                     \
			    unsigned long long flags))                                            \
	X(cuMemUnmap, (uint64_t ptr, size_t bytes))                                               \
	X(cuMemSetAccess, (uint64_t ptr, size_t bytes, const struct cu_access *access, size_t n)) \
	X(cuMemGetAccess,                                                                         \
		(unsigned long long *flags, const struct cu_location *location, uint64_t ptr))    \
	X(cuMemGetAllocationGranularity,                                                          \
		(size_t * bytes, const struct cu_alloc_prop *prop, int option))                   \
	X(cuMemGetAllocationPropertiesFromHandle, (struct cu_alloc_prop * prop, uint64_t handle)) \
	X(cuMemHostRegister_v2, (void *ptr, size_t bytes, unsigned int flags))                    \
	X(cuMemHostGetDevicePointer_v2, (uint64_t * device, void *ptr, unsigned int flags))       \
	X(cuMemHostUnregister, (void *ptr))                                                       \
	X(cuIpcGetMemHandle, (struct cu_ipc_handle * handle, uint64_t ptr))                       \
	X(cuIpcOpenMemHandle_v2,                                                                  \
		(uint64_t * ptr, struct cu_ipc_handle handle, unsigned int flags))                \
	X(cuIpcCloseMemHandle, (uint64_t ptr))

/*
 * What newer drivers have; NULL elsewhere. Batch copies are 13.0's (_v2) or 12.8's, which says in
 * *fail which piece was refused; neither takes the NULL stream or can be captured.
 */
#define CU_OPTIONAL(X)                                                                             \
	X(cuMemcpyBatchAsync, (uint64_t * to, uint64_t * from, size_t * bytes, size_t n,           \
				      struct cu_copy_attr * attr, size_t * attr_at, size_t n_attr, \
				      size_t * fail, struct CUstream_st * stream))                 \
	X(cuMemcpyBatchAsync_v2, (uint64_t * to, uint64_t * from, size_t * bytes, size_t n,        \
					 struct cu_copy_attr * attr, size_t * attr_at,             \
					 size_t n_attr, struct CUstream_st * stream))              \
	X(cuStreamWaitValue64_v2,                                                                  \
		(struct CUstream_st * stream, uint64_t at, uint64_t value, unsigned int flags))    \
	X(cuStreamWriteValue64_v2,                                                                 \
		(struct CUstream_st * stream, uint64_t at, uint64_t value, unsigned int flags))

#define CU_MEMBER(name, args) int(*name) args;
struct kvp_cu {
	CU_FUNCTIONS(CU_MEMBER)
	CU_OPTIONAL(CU_MEMBER)
	void *library;
	/* kvp_cu_open()'s */
	int device;
	struct CUctx_st *ctx;
};
#undef CU_MEMBER

#define KVP_CU_WHY 200 /* bytes of a reason, with its end */

/*
 * Finds the driver: the library that the environment's KVPOOL_LIBCUDA names, which programs that
 * gained privileges ignore, else libcuda.so.1. Calls nothing of it. -ENODEV: there is none, or it
 * lacks a function; ret_why says which.
 */
int kvp_cu_load(struct kvp_cu *ret_cu, char *ret_why);
/* Lets go of the library; only of one that has made no context, or not any more. */
void kvp_cu_unload(struct kvp_cu *cu);
/*
 * Loads it, initialises it and makes the primary context of a device current. -ENODEV as above, or
 * there is no such device; nothing else is usable then.
 */
int kvp_cu_open(int ordinal, struct kvp_cu *ret_cu, char *ret_why);
/* The device with this UUID, after cuInit(). -ENODEV: none is visible to this process. */
int kvp_cu_find(const struct kvp_cu *cu, const uint8_t uuid[16], int *ret_device);

/* The name of an error, "CUDA_ERROR_..." */
const char *kvp_cu_name(const struct kvp_cu *cu, int error);
/*
 * 0, -EAGAIN: not ready, -ENOMEM, -EOPNOTSUPP, -EPERM, -EBUSY: capturing, -EINVAL, -ENODEV: the
 * device is no longer this process's (kvp_cu_lost()), -EIO: anything else.
 */
int kvp_cu_errno(int error);
/* An error after which the process gets nothing but errors from the device until it ends? */
bool kvp_cu_lost(int error);

#endif
