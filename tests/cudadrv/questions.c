/* SPDX-License-Identifier: Apache-2.0 */
/* What the daemon's worker and the library ask a driver, and what the simulated one answers. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cudadrv/child.h"
#include "tests/cudadrv/misuses.h"

#define SEG (4 * MIB)

static int attribute(int which)
{
	int value = -1;

	must(cu.cuDeviceGetAttribute(&value, which, cu.device));
	return value;
}

static void attributes(void)
{
	child_open();
	gives(1, attribute(CU_ATTR_VMM));
	gives(1, attribute(CU_ATTR_POSIX_FD));
	gives(1, attribute(CU_ATTR_HOST_REGISTER));
	gives(1, attribute(CU_ATTR_READ_ONLY_REG));
	gives(1, attribute(CU_ATTR_MEM_OPS_64));
	gives(CU_COMPUTE_DEFAULT, attribute(CU_ATTR_COMPUTE_MODE));
}

static void same_address(void)
{
	child_open();
	gives(0, attribute(CU_ATTR_HOST_SAME_VA));
}

static void granularity(void)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED,
		.handle_types = CU_HANDLE_FD,
		.location = { CU_LOC_DEVICE, 0 } };
	size_t bytes = 0;

	child_open();
	must(cu.cuMemGetAllocationGranularity(&bytes, &prop, CU_GRAN_MINIMUM));
	gives(2, (int)(bytes / MIB));
	must(cu.cuMemGetAllocationGranularity(&bytes, &prop, CU_GRAN_BEST));
	gives(2, (int)(bytes / MIB));
}

static void properties(void)
{
	struct cu_alloc_prop prop;
	uint64_t handle;

	child_open();
	(void)seg_new(SEG, CU_HANDLE_FD, &handle);
	must(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	gives(CU_LOC_DEVICE, prop.location.type);
	gives(CU_HANDLE_FD, prop.handle_types);
}

static void access_of_mapping(void)
{
	struct cu_location here = { CU_LOC_DEVICE, 0 };
	unsigned long long flags = 99;
	uint64_t handle, at;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	must(cu.cuMemGetAccess(&flags, &here, at));
	gives(CU_PROT_RW, (int)flags);
	at = seg_map(handle, SEG, CU_PROT_READ);
	must(cu.cuMemGetAccess(&flags, &here, at));
	gives(CU_PROT_READ, (int)flags);
}

static void pointers(void)
{
	unsigned int type = 0;
	uint64_t handle, at, start = 0;
	size_t bytes = 0;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	must(cu.cuPointerGetAttribute(&type, CU_PTR_MEMORY_TYPE, at + 4096));
	gives(CU_MEMORY_DEVICE, (int)type);
	must(cu.cuPointerGetAttribute(&start, CU_PTR_START, at + 4096));
	holds(start == at);
	must(cu.cuPointerGetAttribute(&bytes, CU_PTR_BYTES, at + 4096));
	holds(bytes == SEG);
}

static void pointer_of_a_stranger(void)
{
	unsigned int type = 0;
	static char mine[64];

	child_open();
	gives(CU_ERR_INVALID_VALUE,
		cu.cuPointerGetAttribute(&type, CU_PTR_MEMORY_TYPE, (uintptr_t)mine));
}

static void readiness(void)
{
	struct CUstream_st *s;
	struct CUevent_st *e;
	uint64_t at;

	child_open();
	must(cu.cuMemAlloc_v2(&at, 4096));
	s = stream_new();
	must(cu.cuEventCreate(&e, CU_EVENT_NO_TIMING));
	gives(CU_OK, cu.cuEventQuery(e));
	must(launch(s, "spin", at, UINT64_C(300000000), 0, 0, 0));
	must(cu.cuEventRecord(e, s));
	gives(CU_NOT_READY, cu.cuStreamQuery(s));
	gives(CU_NOT_READY, cu.cuEventQuery(e));
	must(cu.cuStreamSynchronize(s));
	gives(CU_OK, cu.cuEventQuery(e));
}

static void capturing(void)
{
	struct CUstream_st *s;
	struct CUgraph_st *g;
	unsigned int status = 99;

	child_open();
	s = stream_new();
	must(cu.cuStreamIsCapturing(s, &status));
	gives(CU_CAPTURE_NONE, (int)status);
	must(cu.cuStreamBeginCapture_v2(s, CU_CAPTURE_RELAXED));
	must(cu.cuStreamIsCapturing(s, &status));
	gives(CU_CAPTURE_ACTIVE, (int)status);
	must(cu.cuStreamEndCapture(s, &g));
	must(cu.cuGraphDestroy(g));
}

static void timelines_in_a_capture(void)
{
	static uint64_t *word;
	struct CUstream_st *s;
	struct CUgraph_st *g;
	uint64_t at;

	child_open();
	needs(cu.cuStreamWriteValue64_v2);
	must(cu.cuMemHostAlloc((void **)&word, 4096, CU_REG_PORTABLE | CU_REG_DEVICEMAP));
	must(cu.cuMemHostGetDevicePointer_v2(&at, word, 0));
	s = stream_new();
	must(cu.cuStreamBeginCapture_v2(s, CU_CAPTURE_RELAXED));
	must(cu.cuStreamWriteValue64_v2(s, at, 3, CU_WRITE_PLAIN));
	must(cu.cuStreamEndCapture(s, &g));
}

static void contexts(void)
{
	unsigned int flags = 0;
	int active = -1;

	child_load();
	must(cu.cuInit(0));
	must(cu.cuDeviceGet(&cu.device, 0));
	must(cu.cuDevicePrimaryCtxGetState(cu.device, &flags, &active));
	gives(0, active);
	must(cu.cuDevicePrimaryCtxSetFlags_v2(cu.device, CU_SCHED_BLOCKING));
	must(cu.cuDevicePrimaryCtxRetain(&cu.ctx, cu.device));
	must(cu.cuDevicePrimaryCtxGetState(cu.device, &flags, &active));
	gives(1, active);
	gives(CU_SCHED_BLOCKING, (int)flags);
	must(cu.cuDevicePrimaryCtxRelease_v2(cu.device));
}

/* A segment without a context, exported and imported by the same process. */
static void without_a_context(void)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED,
		.handle_types = CU_HANDLE_FD,
		.location = { CU_LOC_DEVICE, 0 } };
	uint64_t handle;
	int fd;

	child_load();
	must(cu.cuInit(0));
	must(cu.cuMemCreate(&handle, SEG, &prop, 0));
	fd = seg_export(handle);
	must(cu.cuMemRelease(handle));
	handle = seg_import(fd);
	must(cu.cuMemRelease(handle));
	close(fd);
}

static void too_much(void)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED,
		.handle_types = CU_HANDLE_FD,
		.location = { CU_LOC_DEVICE, 0 } };
	uint64_t handle, at;

	child_open();
	gives(CU_ERR_NO_MEMORY, cu.cuMemCreate(&handle, UINT64_C(1) << 42, &prop, 0));
	gives(CU_ERR_NO_MEMORY, cu.cuMemAlloc_v2(&at, UINT64_C(1) << 42));
}

#define QUESTION(name)      \
	{                   \
#name, name \
	}
const struct question questions[] = {
	QUESTION(attributes),
	QUESTION(same_address),
	QUESTION(granularity),
	QUESTION(properties),
	QUESTION(access_of_mapping),
	QUESTION(pointers),
	QUESTION(pointer_of_a_stranger),
	QUESTION(readiness),
	QUESTION(capturing),
	QUESTION(timelines_in_a_capture),
	QUESTION(contexts),
	QUESTION(without_a_context),
	QUESTION(too_much),
};
const uint32_t n_questions = sizeof(questions) / sizeof(questions[0]);
