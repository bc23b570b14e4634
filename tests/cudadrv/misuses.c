/* SPDX-License-Identifier: Apache-2.0 */
/* What the simulated driver says to each misuse that it knows, and to its corrected twin. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/kvp_cuda_kernels.h"
#include "tests/cudadrv/child.h"
#include "tests/cudadrv/misuses.h"

#define SEG     (4 * MIB)
#define ADDRESS 700

/* Host memory, 1 MiB, page by page zero. */
static uint8_t *host_new(void)
{
	uint8_t *p = mmap(NULL, MIB, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	holds(p != MAP_FAILED);
	return p;
}

static uint8_t *pinned_new(void)
{
	uint8_t *p = host_new();

	must(cu.cuMemHostRegister_v2(p, MIB, CU_REG_PORTABLE | CU_REG_DEVICEMAP));
	return p;
}

static uint64_t alloc(uint64_t bytes)
{
	uint64_t at;

	must(cu.cuMemAlloc_v2(&at, bytes));
	return at;
}

/* ---- initialisation, forks, contexts ---- */

static void init_wrong(void)
{
	int n;

	child_load();
	gives(CU_ERR_NOT_INIT, cu.cuDeviceGetCount(&n));
}

static void init_right(void)
{
	int n;

	child_load();
	must(cu.cuInit(0));
	must(cu.cuDeviceGetCount(&n));
	holds(n == 2 || !machine);
}

static void call_in_fork(void)
{
	size_t a, b;

	gives(CU_ERR_NOT_INIT, cu.cuMemGetInfo_v2(&a, &b));
}

static void no_call(void)
{
}

static void fork_with(void (*work)(void))
{
	size_t a, b;

	child_open();
	holds(child_run(work) == 0);
	must(cu.cuMemGetInfo_v2(&a, &b));
}

static void fork_wrong(void)
{
	fork_with(call_in_fork);
}

static void fork_right(void)
{
	fork_with(no_call);
}

static void context_wrong(void)
{
	uint64_t at;

	child_load();
	must(cu.cuInit(0));
	gives(CU_ERR_BAD_CONTEXT, cu.cuMemAlloc_v2(&at, 4096));
}

static void context_right(void)
{
	child_open();
	must(cu.cuMemFree_v2(alloc(4096)));
}

static void with_contexts(int result, bool back)
{
	struct CUctx_st *second, *popped;
	struct CUstream_st *s;
	uint64_t at;
	int n;

	child_open();
	at = alloc(4096);
	s = stream_new();
	must(cu.cuDeviceGetCount(&n));
	needs(n > 1);
	must(cu.cuDevicePrimaryCtxRetain(&second, 1));
	must(cu.cuCtxPushCurrent_v2(second));
	if (back) {
		must(cu.cuCtxPopCurrent_v2(&popped));
		holds(popped == second);
	}
	gives(result, cu.cuMemsetD8Async(at, 0, 4096, s));
}

static void other_context_wrong(void)
{
	with_contexts(CU_ERR_BAD_HANDLE, false);
}

static void other_context_right(void)
{
	with_contexts(CU_OK, true);
}

static void handle_wrong(void)
{
	struct CUstream_st *s;

	child_open();
	s = stream_new();
	must(cu.cuStreamDestroy_v2(s));
	gives(CU_ERR_BAD_HANDLE, cu.cuStreamSynchronize(s));
}

static void handle_right(void)
{
	struct CUstream_st *s;

	child_open();
	s = stream_new();
	must(cu.cuStreamSynchronize(s));
	must(cu.cuStreamDestroy_v2(s));
}

/* A context that nobody retains any more takes its streams and events along. */
static void of_context(bool kept)
{
	struct CUstream_st *s;
	struct CUctx_st *again;

	child_open();
	s = stream_new();
	if (kept)
		must(cu.cuDevicePrimaryCtxRetain(&again, cu.device));
	must(cu.cuDevicePrimaryCtxRelease_v2(cu.device));
	if (!kept)
		must(cu.cuDevicePrimaryCtxRetain(&again, cu.device));
	must(cu.cuCtxSetCurrent(again));
	gives(kept ? CU_OK : CU_ERR_BAD_HANDLE, cu.cuStreamSynchronize(s));
	if (kept)
		must(cu.cuStreamDestroy_v2(s));
}

static void of_context_wrong(void)
{
	of_context(false);
}

static void of_context_right(void)
{
	of_context(true);
}

static void value_wrong(void)
{
	struct CUevent_st *e;

	child_open();
	gives(CU_ERR_INVALID_VALUE, cu.cuEventCreate(&e, 1u << 20));
}

static void value_right(void)
{
	struct CUevent_st *e;

	child_open();
	must(cu.cuEventCreate(&e, CU_EVENT_NO_TIMING));
	must(cu.cuEventDestroy_v2(e));
}

/* ---- accesses ---- */

/* A kernel that faults: the launch succeeds, what follows has the sticky error. */
static void kernel_faults(uint64_t at, uint64_t bytes, int error)
{
	uint64_t more;

	must(launch(NULL, "fill", at, bytes, 1, 0, 0));
	gives(error, cu.cuCtxSynchronize());
	gives(error, cu.cuMemAlloc_v2(&more, 4096));
}

static void unmapped_wrong(void)
{
	child_open();
	kernel_faults(seg_reserve(SEG), 4096, ADDRESS);
}

static void unmapped_copy_wrong(void)
{
	uint8_t byte = 0;

	child_open();
	gives(CU_ERR_INVALID_VALUE, cu.cuMemcpyHtoD_v2(seg_reserve(SEG), &byte, 1));
	must(cu.cuCtxSynchronize()); /* not sticky */
}

static void unmapped_right(void)
{
	uint64_t handle, at;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	must(launch(NULL, "fill", at, 4096, 1, 0, 0));
	must(cu.cuCtxSynchronize());
}

static void range_wrong(void)
{
	child_open();
	kernel_faults(alloc(4096), 8192, ADDRESS);
}

static void range_right(void)
{
	child_open();
	must(launch(NULL, "fill", alloc(8192), 8192, 1, 0, 0));
	must(cu.cuCtxSynchronize());
}

static void access_of(int prot, const char *kernel, int error)
{
	uint64_t handle, bad, at;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	must(launch(NULL, "fill", at, SEG, 5, 0, 0));
	must(cu.cuMemAlloc_v2(&bad, 8));
	must(cu.cuMemsetD8_v2(bad, 0, 8));
	at = seg_map(handle, SEG, prot);
	must(launch(NULL, kernel, at, SEG, 5, bad, 0));
	gives(error, cu.cuCtxSynchronize());
}

static void no_access_wrong(void)
{
	access_of(0, "check", ADDRESS);
}

static void no_access_right(void)
{
	access_of(CU_PROT_RW, "check", CU_OK);
}

static void read_only_wrong(void)
{
	access_of(CU_PROT_READ, "fill", ADDRESS);
}

static void read_only_right(void)
{
	access_of(CU_PROT_READ, "check", CU_OK);
}

/* ---- VMM ---- */

static uint64_t seg_only(int handle_types)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED,
		.handle_types = handle_types,
		.location = { CU_LOC_DEVICE, cu.device } };
	uint64_t handle;

	must(cu.cuMemCreate(&handle, SEG, &prop, 0));
	return handle;
}

static void map_with(uint64_t at_off, uint64_t bytes, uint64_t offset, int result)
{
	uint64_t handle, at;

	child_open();
	handle = seg_only(CU_HANDLE_FD);
	at = seg_reserve(4 * SEG);
	gives(result, cu.cuMemMap(at + at_off, bytes, offset, handle, 0));
}

static void map_right(void)
{
	map_with(SEG, SEG, 0, CU_OK);
}

static void map_offset_wrong(void)
{
	map_with(0, SEG - 2 * MIB, 2 * MIB, CU_ERR_INVALID_VALUE);
}

static void map_part_wrong(void)
{
	map_with(0, SEG - 2 * MIB, 0, CU_ERR_INVALID_VALUE);
}

static void map_misaligned_wrong(void)
{
	map_with(4096, SEG, 0, CU_ERR_INVALID_VALUE);
}

static void map_more_wrong(void)
{
	map_with(0, 2 * SEG, 0, CU_ERR_INVALID_VALUE);
}

static void create_misaligned_wrong(void)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED, .location = { CU_LOC_DEVICE, 0 } };
	uint64_t handle;

	child_open();
	gives(CU_ERR_INVALID_VALUE, cu.cuMemCreate(&handle, MIB, &prop, 0));
}

static void map_twice_wrong(void)
{
	uint64_t handle, at;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	gives(208, cu.cuMemMap(at, SEG, 0, handle, 0));
}

static void map_unreserved_wrong(void)
{
	uint64_t at;

	child_open();
	at = seg_reserve(SEG);
	must(cu.cuMemAddressFree(at, SEG));
	gives(CU_ERR_INVALID_VALUE, cu.cuMemMap(at, SEG, 0, seg_only(CU_HANDLE_FD), 0));
}

static void unmap_with(uint64_t bytes, int result)
{
	uint64_t handle, at;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	gives(result, cu.cuMemUnmap(at, bytes));
	if (result == CU_OK)
		must(cu.cuMemAddressFree(at, SEG));
}

static void unmap_part_wrong(void)
{
	unmap_with(2 * MIB, CU_ERR_INVALID_VALUE);
}

static void unmap_right(void)
{
	unmap_with(SEG, CU_OK);
}

static void free_mapped_wrong(void)
{
	uint64_t handle, at;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	gives(CU_ERR_INVALID_VALUE, cu.cuMemAddressFree(at, SEG));
}

static void foreign_wrong(void)
{
	int fd = memfd_create("none", MFD_CLOEXEC);
	uint64_t handle;

	child_open();
	gives(CU_ERR_INVALID_VALUE,
		cu.cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_HANDLE_FD));
}

static void foreign_right(void)
{
	struct cu_alloc_prop prop;
	uint64_t handle;

	child_open();
	handle = seg_import(seg_export(seg_only(CU_HANDLE_FD)));
	must(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	holds(prop.location.type == CU_LOC_DEVICE && prop.handle_types == CU_HANDLE_FD);
	must(cu.cuMemRelease(handle));
}

static void export_wrong(void)
{
	int fd;

	child_open();
	gives(CU_ERR_INVALID_VALUE,
		cu.cuMemExportToShareableHandle(&fd, seg_only(0), CU_HANDLE_FD, 0));
}

static void vmm_on_alloc_wrong(void)
{
	uint64_t at;

	child_open();
	at = alloc(2 * MIB);
	gives(CU_ERR_INVALID_VALUE, cu.cuMemUnmap(at, 2 * MIB));
}

/* ---- work that still runs ---- */

#define SPIN_NS UINT64_C(100000000)

/* A kernel that surely runs when this returns. */
static void launch_running(struct CUstream_st *s, const char *name, const uint64_t param[5])
{
	int64_t before = machine ? cudadrv_calls(machine, "op:kernel") : 0;

	must(launch(s, name, param[0], param[1], param[2], param[3], param[4]));
	usleep(machine ? 0 : 20000);
	while (machine && cudadrv_calls(machine, "op:kernel") == before)
		usleep(100);
}

static void unmap_under_work(bool wait)
{
	uint64_t handle, at;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	launch_running(stream_new(), "spin", (uint64_t[5]){ at, SPIN_NS });
	if (wait)
		must(cu.cuCtxSynchronize());
	must(cu.cuMemUnmap(at, SEG));
}

static void unmap_running_wrong(void)
{
	unmap_under_work(false);
}

static void unmap_running_right(void)
{
	unmap_under_work(true);
}

/* What is only queued counts as well. */
static void free_under_work(bool wait)
{
	struct CUstream_st *s;
	uint64_t a, b;

	child_open();
	a = alloc(4096);
	b = alloc(4096);
	s = stream_new();
	/* who does not wait is gone before what is queued runs; a real driver waits itself */
	must(launch(s, "spin", a, wait || !machine ? SPIN_NS : 300 * SPIN_NS, 0, 0, 0));
	must(cu.cuMemsetD8Async(b, 0, 4096, s));
	if (wait)
		must(cu.cuStreamSynchronize(s));
	must(cu.cuMemFree_v2(b));
}

static void free_queued_wrong(void)
{
	free_under_work(false);
}

static void free_queued_right(void)
{
	free_under_work(true);
}

static void unregister_under_work(bool wait)
{
	struct CUstream_st *s;
	uint8_t *p;
	uint64_t at;

	child_open();
	p = pinned_new();
	must(cu.cuMemHostGetDevicePointer_v2(&at, p, 0));
	s = stream_new();
	launch_running(s, "spin", (uint64_t[5]){ at, SPIN_NS });
	if (wait)
		must(cu.cuStreamSynchronize(s));
	must(cu.cuMemHostUnregister(p));
}

static void unregister_running_wrong(void)
{
	unregister_under_work(false);
}

static void unregister_running_right(void)
{
	unregister_under_work(true);
}

/* ---- legacy IPC ---- */

static void ipc_on_vmm_wrong(void)
{
	struct cu_ipc_handle ipc;
	uint64_t handle, at;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	gives(CU_ERR_INVALID_VALUE, cu.cuIpcGetMemHandle(&ipc, at));
}

static void ipc_own_wrong(void)
{
	struct cu_ipc_handle ipc;
	uint64_t at;

	child_open();
	must(cu.cuIpcGetMemHandle(&ipc, alloc(4096)));
	gives(CU_ERR_BAD_CONTEXT, cu.cuIpcOpenMemHandle_v2(&at, ipc, CU_IPC_LAZY_PEER));
}

/* Handles travel by a pipe; its other end says what to do. */
static int ipc_pipe[2], ipc_back[2];

static void ipc_opener(void)
{
	struct cu_ipc_handle ipc;
	uint64_t at, again;
	char go;

	child_open();
	holds(read(ipc_pipe[0], &ipc, sizeof(ipc)) == sizeof(ipc));
	must(cu.cuIpcOpenMemHandle_v2(&at, ipc, CU_IPC_LAZY_PEER));
	must(cu.cuIpcOpenMemHandle_v2(&again, ipc, CU_IPC_LAZY_PEER));
	holds(at == again);
	holds(read_word(at) == cudadrv_pattern(9, 0));
	must(cu.cuIpcCloseMemHandle(again));
	holds(write(ipc_back[1], "o", 1) == 1);
	holds(read(ipc_pipe[0], &go, 1) == 1);
	must(cu.cuIpcCloseMemHandle(at));
}

static void ipc_free(bool close_first)
{
	struct cu_ipc_handle ipc;
	uint64_t at;
	pid_t opener;
	char byte;

	holds(pipe(ipc_pipe) == 0 && pipe(ipc_back) == 0);
	opener = child_start(ipc_opener);
	child_open();
	at = alloc(4096);
	must(launch(NULL, "fill", at, 4096, 9, 0, 0));
	must(cu.cuCtxSynchronize());
	must(cu.cuIpcGetMemHandle(&ipc, at));
	holds(write(ipc_pipe[1], &ipc, sizeof(ipc)) == sizeof(ipc));
	holds(read(ipc_back[0], &byte, 1) == 1);
	if (!close_first)
		must(cu.cuMemFree_v2(at));
	holds(write(ipc_pipe[1], "c", 1) == 1);
	holds(child_end(opener) == 0);
	if (close_first)
		must(cu.cuMemFree_v2(at));
}

static void ipc_free_wrong(void)
{
	ipc_free(false);
}

static void ipc_right(void)
{
	ipc_free(true);
}

static void ipc_maker(void)
{
	struct cu_ipc_handle ipc;

	child_open();
	must(cu.cuIpcGetMemHandle(&ipc, alloc(4096)));
	holds(write(ipc_pipe[1], &ipc, sizeof(ipc)) == sizeof(ipc));
}

static void ipc_stale_wrong(void)
{
	struct cu_ipc_handle ipc;
	uint64_t at;

	holds(pipe(ipc_pipe) == 0);
	holds(child_run(ipc_maker) == 0);
	holds(read(ipc_pipe[0], &ipc, sizeof(ipc)) == sizeof(ipc));
	child_open();
	gives(CU_ERR_INVALID_VALUE, cu.cuIpcOpenMemHandle_v2(&at, ipc, CU_IPC_LAZY_PEER));
}

/* ---- host memory ---- */

static void async_copy(bool pinned)
{
	struct CUstream_st *s;
	uint64_t at;
	uint8_t *p;

	child_open();
	at = alloc(MIB);
	p = pinned ? pinned_new() : host_new();
	s = stream_new();
	memset(p, 0x77, MIB);
	must(cu.cuMemcpyHtoDAsync_v2(at, p, MIB, s));
	memset(p, 0, pinned ? 0 : MIB); /* pageable memory was taken within the call */
	must(cu.cuStreamSynchronize(s));
	must(cu.cuMemcpyDtoHAsync_v2(p, at, MIB, s));
	must(cu.cuStreamSynchronize(s));
	holds(p[0] == 0x77 && p[MIB - 1] == 0x77);
}

static void unregistered_wrong(void)
{
	async_copy(false);
}

static void unregistered_right(void)
{
	async_copy(true);
}

static void register_twice_wrong(void)
{
	uint8_t *p;

	child_open();
	p = pinned_new();
	gives(CU_ERR_REGISTERED, cu.cuMemHostRegister_v2(p + 4096, 4096, 0));
}

static void register_again_right(void)
{
	uint8_t *p;

	child_open();
	p = pinned_new();
	must(cu.cuMemHostUnregister(p));
	must(cu.cuMemHostRegister_v2(p + 4096, 4096, 0));
}

static void register_read_only(unsigned int flags, int result)
{
	int fd = memfd_create("pool", MFD_CLOEXEC);
	void *p;

	child_open();
	holds(ftruncate(fd, MIB) == 0);
	p = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
	gives(result, cu.cuMemHostRegister_v2(p, MIB, flags));
}

static void register_read_only_wrong(void)
{
	register_read_only(0, CU_ERR_INVALID_VALUE);
}

static void register_read_only_right(void)
{
	register_read_only(CU_REG_READ_ONLY, CU_OK);
}

static void unregister_wrong(void)
{
	child_open();
	gives(CU_ERR_UNREGISTERED, cu.cuMemHostUnregister(host_new()));
}

static void value_at(bool pinned, int result)
{
	uint64_t at;
	uint8_t *p;

	child_open();
	needs(cu.cuStreamWriteValue64_v2);
	p = pinned ? pinned_new() : host_new();
	at = (uintptr_t)p;
	if (pinned)
		must(cu.cuMemHostGetDevicePointer_v2(&at, p, 0));
	gives(result, cu.cuStreamWriteValue64_v2(stream_new(), at, 3, CU_WRITE_PLAIN));
	must(cu.cuCtxSynchronize());
	holds(!pinned || *(uint64_t *)(void *)p == 3);
}

static void wait_wrong(void)
{
	value_at(false, CU_ERR_INVALID_VALUE);
}

static void wait_right(void)
{
	value_at(true, CU_OK);
}

/* ---- batches ---- */

static void batch(struct CUstream_st *s, uint64_t apart, int order, int result)
{
	struct cu_copy_attr attr = { .order = order, .flags = CU_COPY_OVERLAP };
	uint64_t at = alloc(MIB), to[2] = { at, at + apart }, from[2];
	uint8_t *p = pinned_new();
	size_t bytes[2] = { 4096, 4096 }, first = 0;

	needs(cu.cuMemcpyBatchAsync_v2);
	from[0] = (uintptr_t)p;
	from[1] = (uintptr_t)p + 65536;
	memset(p, 0x31, 4096);
	memset(p + 65536, 0x32, 4096);
	gives(result, cu.cuMemcpyBatchAsync_v2(to, from, bytes, 2, &attr, &first, 1, s));
	if (result != CU_OK)
		return;
	must(cu.cuCtxSynchronize());
	holds(read_word(at) == UINT64_C(0x3131313131313131));
	holds(read_word(at + apart) == UINT64_C(0x3232323232323232));
}

static void batch_right(void)
{
	child_open();
	batch(stream_new(), 4096, CU_ORDER_STREAM, CU_OK);
	batch(stream_new(), 8192, CU_ORDER_ANY, CU_OK);
}

static void batch_null_wrong(void)
{
	child_open();
	batch(NULL, 4096, CU_ORDER_STREAM, CU_ERR_INVALID_VALUE);
}

static void batch_overlap_wrong(void)
{
	child_open();
	batch(stream_new(), 4088, CU_ORDER_STREAM, CU_ERR_INVALID_VALUE);
}

static void batch_captured_wrong(void)
{
	struct CUstream_st *s;
	struct CUgraph_st *g;
	size_t one = 8, first = 0;
	struct cu_copy_attr attr = { .order = CU_ORDER_STREAM };
	uint64_t a, b;

	child_open();
	needs(cu.cuMemcpyBatchAsync_v2);
	a = alloc(8);
	b = alloc(8);
	s = stream_new();
	must(cu.cuStreamBeginCapture_v2(s, CU_CAPTURE_LOCAL));
	gives(CU_ERR_CAPTURING, cu.cuMemcpyBatchAsync_v2(&a, &b, &one, 1, &attr, &first, 1, s));
	gives(901, cu.cuStreamEndCapture(s, &g));
}

static void batch_order(int order)
{
	struct cu_copy_attr attr = { .order = order };
	uint64_t from, to;
	size_t one = 4096, first = 0, fail;

	child_open();
	needs(cu.cuMemcpyBatchAsync);
	from = alloc(4096);
	to = (uintptr_t)pinned_new();
	must(cu.cuMemcpyBatchAsync(&to, &from, &one, 1, &attr, &first, 1, &fail, stream_new()));
	must(cu.cuCtxSynchronize());
}

static void batch_order_wrong(void)
{
	batch_order(CU_ORDER_ANY);
}

static void batch_order_right(void)
{
	batch_order(CU_ORDER_STREAM);
}

/* ---- capture ---- */

static void alloc_in_capture(unsigned int mode, int result)
{
	struct CUstream_st *s;
	struct CUgraph_st *g;
	uint64_t at;

	child_open();
	s = stream_new();
	must(cu.cuStreamBeginCapture_v2(s, CU_CAPTURE_GLOBAL));
	must(cu.cuThreadExchangeStreamCaptureMode(&mode));
	gives(result, cu.cuMemAlloc_v2(&at, 4096));
	gives(result == CU_OK ? CU_OK : 901, cu.cuStreamEndCapture(s, &g));
}

static void capture_wrong(void)
{
	alloc_in_capture(CU_CAPTURE_GLOBAL, CU_ERR_CAPTURING);
}

static void capture_right(void)
{
	alloc_in_capture(CU_CAPTURE_RELAXED, CU_OK);
}

static void capture_sync_wrong(void)
{
	struct CUstream_st *s;

	child_open();
	s = stream_new();
	must(cu.cuStreamBeginCapture_v2(s, CU_CAPTURE_LOCAL));
	gives(CU_ERR_CAPTURING, cu.cuStreamSynchronize(s));
}

static void capture_default_wrong(void)
{
	struct CUstream_st *s;

	child_open();
	must(cu.cuStreamCreate(&s, 0));
	must(cu.cuStreamBeginCapture_v2(s, CU_CAPTURE_RELAXED));
	gives(906, launch(NULL, "poke", alloc(8), 1, 0, 0, 0));
}

/* A fork of the capture that its first stream never waits for. */
static void capture_fork(bool join, int result)
{
	struct CUstream_st *a, *b;
	struct CUevent_st *e;
	struct CUgraph_st *g;
	uint64_t at;

	child_open();
	at = alloc(16);
	a = stream_new();
	b = stream_new();
	must(cu.cuEventCreate(&e, CU_EVENT_NO_TIMING));
	must(cu.cuStreamBeginCapture_v2(a, CU_CAPTURE_LOCAL));
	must(cu.cuEventRecord(e, a));
	must(cu.cuStreamWaitEvent(b, e, 0));
	must(launch(b, "poke", at, 1, 0, 0, 0));
	if (join) {
		must(cu.cuEventRecord(e, b));
		must(cu.cuStreamWaitEvent(a, e, 0));
	}
	gives(result, cu.cuStreamEndCapture(a, &g));
}

static void capture_unjoined_wrong(void)
{
	capture_fork(false, 904);
}

static void capture_joined_right(void)
{
	capture_fork(true, CU_OK);
}

/* ---- order and contents ---- */

static void two_streams(bool ordered)
{
	struct CUstream_st *a, *b;
	struct CUevent_st *e;
	uint64_t at, bad;

	child_open();
	at = alloc(MIB);
	bad = alloc(8);
	must(cu.cuMemsetD8_v2(bad, 0, 8));
	must(launch(NULL, "fill", at, MIB, 4, 0, 0));
	must(cu.cuCtxSynchronize());
	a = stream_new();
	b = stream_new();
	must(cu.cuEventCreate(&e, CU_EVENT_NO_TIMING));
	launch_running(a, "slow_check", (uint64_t[5]){ at, MIB, 4, bad, SPIN_NS });
	must(cu.cuEventRecord(e, a));
	if (ordered)
		must(cu.cuStreamWaitEvent(b, e, 0));
	must(launch(b, "fill", at, MIB, 4, 0, 0));
	must(cu.cuCtxSynchronize());
	holds(read_word(bad) == 0);
}

static void hazard_wrong(void)
{
	two_streams(false);
}

static void hazard_right(void)
{
	two_streams(true);
}

static void contents(uint64_t key, bool wrong)
{
	uint64_t at, bad;

	child_open();
	at = alloc(65536);
	bad = alloc(8);
	must(cu.cuMemsetD8_v2(bad, 0, 8));
	must(launch(NULL, "fill", at, 65536, 4, 0, 0));
	must(launch(NULL, "check", at, 65536, key, bad, 0));
	must(cu.cuCtxSynchronize());
	holds((read_word(bad) != 0) == wrong);
}

static void data_wrong(void)
{
	contents(5, true);
}

static void data_right(void)
{
	contents(4, false);
}

/* ---- the project's own kernels ---- */

/* kvp_cu_copy of one run of 512 bytes, from the end of an allocation or from beyond it. */
static void project_copy(uint64_t beyond, int result)
{
	struct kvp_cuda_copy p = {
		.count = 1, .n = { 1, 1, 1 }, .run_bytes = 512, .src_offset = (int64_t)beyond
	};
	uint64_t from, to, list[2];
	const struct kvp_cuda_kernel *k;
	struct kvp_cuda_shape s;
	struct CUfunc_st *f;
	struct CUmod_st *m;
	void *args[] = { &p };

	child_open();
	needs(machine); /* its image is the simulated driver's */
	from = alloc(4096);
	to = alloc(512);
	list[0] = from + 4096 - 512;
	list[1] = to;
	p.src = alloc(16);
	p.dst = p.src + 8;
	must(cu.cuMemcpyHtoD_v2(p.src, list, sizeof(list)));
	must(launch(NULL, "fill", from, 4096, 6, 0, 0));
	holds(kvp_cuda_kernel_find("kvp_cu_copy", &k) == 0 && k->shape(&p, &s) == 0);
	must(cu.cuModuleLoadData(&m, cudadrv_project_image));
	must(cu.cuModuleGetFunction(&f, m, k->name));
	must(cu.cuLaunchKernel(f, s.grid[0], s.grid[1], s.grid[2], s.threads, 1, 1, s.smem_bytes,
		NULL, args, NULL));
	gives(result, cu.cuCtxSynchronize());
	if (result == CU_OK)
		holds(read_word(to + 504) == cudadrv_pattern(6, 511));
}

static void project_wrong(void)
{
	project_copy(16, ADDRESS);
}

static void project_right(void)
{
	project_copy(0, CU_OK);
}

/* ---- the end ---- */

static void leak_wrong(void)
{
	child_open();
	alloc(4096);
	exit(0);
}

static void leak_right(void)
{
	struct CUstream_st *s;
	uint64_t at, handle;
	uint8_t *p;

	child_open();
	must(cu.cuMemFree_v2(alloc(4096)));
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	must(cu.cuMemUnmap(at, SEG));
	must(cu.cuMemRelease(handle));
	must(cu.cuMemAddressFree(at, SEG));
	s = stream_new();
	must(cu.cuStreamDestroy_v2(s));
	p = pinned_new();
	must(cu.cuMemHostUnregister(p));
	must(cu.cuDevicePrimaryCtxRelease_v2(cu.device));
	exit(0);
}

/* ---- the table ---- */

#define TWIN(kind, name)                                          \
	{                                                         \
		CUDADRV_##kind, #name, name##_wrong, name##_right \
	}
#define ONLY(kind, name, right)                            \
	{                                                  \
		CUDADRV_##kind, #name, name##_wrong, right \
	}
const struct misuse misuses[] = {
	TWIN(BEFORE_INIT, init),
	TWIN(AFTER_FORK, fork),
	TWIN(NO_CONTEXT, context),
	TWIN(WRONG_CONTEXT, other_context),
	TWIN(BAD_HANDLE, handle),
	TWIN(BAD_HANDLE, of_context),
	TWIN(BAD_VALUE, value),
	TWIN(UNMAPPED, unmapped),
	ONLY(UNMAPPED, unmapped_copy, unmapped_right),
	TWIN(OUT_OF_RANGE, range),
	TWIN(NO_ACCESS, no_access),
	TWIN(READ_ONLY, read_only),
	ONLY(MAP_OFFSET, map_offset, map_right),
	ONLY(MAP_PART, map_part, map_right),
	ONLY(MISALIGNED, map_misaligned, map_right),
	ONLY(MISALIGNED, create_misaligned, map_right),
	ONLY(MAP_TWICE, map_twice, map_right),
	ONLY(NOT_RESERVED, map_unreserved, map_right),
	ONLY(UNMAP_PART, unmap_part, unmap_right),
	ONLY(FREE_MAPPED, free_mapped, unmap_right),
	TWIN(RUNNING, unmap_running),
	TWIN(RUNNING, free_queued),
	TWIN(RUNNING, unregister_running),
	TWIN(IMPORT_FOREIGN, foreign),
	ONLY(PROP_MISMATCH, map_more, map_right),
	ONLY(EXPORT_UNASKED, export, foreign_right),
	ONLY(IPC_ON_VMM, ipc_on_vmm, ipc_right),
	ONLY(VMM_ON_ALLOC, vmm_on_alloc, unmap_right),
	ONLY(IPC_IN_EXPORTER, ipc_own, ipc_right),
	ONLY(IPC_FREE_OPEN, ipc_free, ipc_right),
	ONLY(IPC_STALE, ipc_stale, ipc_right),
	TWIN(UNREGISTERED, unregistered),
	ONLY(REGISTER_TWICE, register_twice, register_again_right),
	TWIN(REGISTER_READ_ONLY, register_read_only),
	ONLY(NOT_REGISTERED, unregister, register_again_right),
	ONLY(BATCH_NULL_STREAM, batch_null, batch_right),
	ONLY(BATCH_OVERLAP, batch_overlap, batch_right),
	ONLY(BATCH_CAPTURED, batch_captured, batch_right),
	TWIN(BATCH_ORDER_ANY, batch_order),
	TWIN(CAPTURE, capture),
	ONLY(CAPTURE, capture_sync, capture_right),
	ONLY(CAPTURE, capture_default, capture_joined_right),
	ONLY(CAPTURE, capture_unjoined, capture_joined_right),
	TWIN(WAIT_UNREGISTERED, wait),
	TWIN(HAZARD, hazard),
	TWIN(WRONG_DATA, data),
	TWIN(KERNEL, project),
	TWIN(LEAK, leak),
};
const uint32_t n_misuses = sizeof(misuses) / sizeof(misuses[0]);
