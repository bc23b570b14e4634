/* SPDX-License-Identifier: Apache-2.0 */
/* kvbench device on a GPU: what this process's own copies do there, which the worker's are compared with. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpu/kvp_cu.h"
#include "shm/kvp_seg.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_device.h"

struct bench_gpu {
	struct kvp_cu cu;
	uint64_t bytes;
	void *host[2];
	uint64_t device[2];
	struct CUstream_st *stream[2];
	struct {
		uint64_t at, bytes;
	} seg[2];
};

static int refused(struct bench_gpu *g, const char *what, int error)
{
	if (error)
		fprintf(stderr, "kvbench device: %s: %s\n", what, kvp_cu_name(&g->cu, error));
	return kvp_cu_errno(error);
}

int bench_gpu_open(uint64_t bytes, struct bench_gpu **ret_gpu)
{
	struct bench_gpu *g = calloc(1, sizeof(*g));
	char why[KVP_CU_WHY];
	int r;

	if (!g)
		return -ENOMEM;
	r = kvp_cu_open(0, &g->cu, why);
	if (r < 0) {
		fprintf(stderr, "kvbench device: %s\n", why);
		free(g);
		return r;
	}
	g->bytes = bytes;
	*ret_gpu = g;
	for (uint32_t i = 0; r == 0 && i < 2; i++) {
		r = refused(g, "cuMemHostAlloc", g->cu.cuMemHostAlloc(&g->host[i], bytes, 0));
		if (r == 0)
			r = refused(g, "cuMemAlloc", g->cu.cuMemAlloc_v2(&g->device[i], bytes));
		if (r == 0)
			r = refused(g, "cuStreamCreate",
				g->cu.cuStreamCreate(&g->stream[i], CU_STREAM_ASYNC));
		if (r == 0)
			memset(g->host[i], 1, bytes);
	}
	return r;
}

struct bench_gpu *bench_gpu_free(struct bench_gpu *g)
{
	if (!g)
		return NULL;
	for (uint32_t i = 0; i < 2; i++) {
		if (g->seg[i].at) {
			(void)g->cu.cuMemUnmap(g->seg[i].at, g->seg[i].bytes);
			(void)g->cu.cuMemAddressFree(g->seg[i].at, g->seg[i].bytes);
		}
		if (g->stream[i])
			(void)g->cu.cuStreamDestroy_v2(g->stream[i]);
		if (g->device[i])
			(void)g->cu.cuMemFree_v2(g->device[i]);
		if (g->host[i])
			(void)g->cu.cuMemFreeHost(g->host[i]);
	}
	(void)g->cu.cuDevicePrimaryCtxRelease_v2(g->cu.device);
	free(g);
	return NULL;
}

double bench_gpu_gbps(struct bench_gpu *g, uint32_t ways)
{
	const uint64_t began = bench_now();
	int r = CU_OK;

	if (ways & 1u << KVPD_TO_DEVICE)
		r = g->cu.cuMemcpyHtoDAsync_v2(g->device[0], g->host[0], g->bytes, g->stream[0]);
	if (r == CU_OK && ways & 1u << KVPD_TO_HOST)
		r = g->cu.cuMemcpyDtoHAsync_v2(g->host[1], g->device[1], g->bytes, g->stream[1]);
	for (uint32_t i = 0; r == CU_OK && i < 2; i++)
		r = g->cu.cuStreamSynchronize(g->stream[i]);
	if (refused(g, "a plain copy", r) < 0)
		return -1;
	return (double)g->bytes * (ways == 3 ? 2 : 1) / (double)(bench_now() - began);
}

int bench_gpu_map(struct bench_gpu *g, uint32_t i, int fd, uint64_t bytes, double *ret_us)
{
	const uint64_t began = bench_now();
	struct cu_access access = { { CU_LOC_DEVICE, g->cu.device }, CU_PROT_READ };
	uint64_t memory;
	int r;

	r = refused(g, "cuMemImportFromShareableHandle",
		g->cu.cuMemImportFromShareableHandle(&memory, (void *)(intptr_t)fd, CU_HANDLE_FD));
	if (r < 0)
		return r;
	r = refused(
		g, "cuMemAddressReserve", g->cu.cuMemAddressReserve(&g->seg[i].at, bytes, 0, 0, 0));
	if (r == 0)
		r = refused(g, "cuMemMap", g->cu.cuMemMap(g->seg[i].at, bytes, 0, memory, 0));
	(void)g->cu.cuMemRelease(memory);
	if (r < 0)
		return r;
	g->seg[i].bytes = bytes;
	r = refused(g, "cuMemSetAccess", g->cu.cuMemSetAccess(g->seg[i].at, bytes, &access, 1));
	*ret_us = (double)(bench_now() - began) * 1e-3;
	return r;
}

int bench_gpu_same(struct bench_gpu *g, uint32_t i, const void *bytes, uint64_t n)
{
	int r = refused(g, "cuMemcpyDtoH", g->cu.cuMemcpyDtoH_v2(g->host[i], g->seg[i].at, n));

	if (r < 0)
		return r;
	return memcmp(g->host[i], bytes, n) ? -EIO : 0;
}

double bench_gpu_pin_gbps(struct bench_gpu *g, uint64_t bytes)
{
	kvp_autoclose int fd = -1;
	void *p = NULL, *ro = NULL;
	double gbps = -1;
	uint64_t began;
	int r = kvp_seg_create("kvbench-pin", bytes, 0, &fd);

	if (r == 0)
		r = kvp_seg_map(fd, bytes, KVP_MAP_WRITE, &p);
	if (r < 0)
		return -1;
	memset(p, 1, bytes);
	kvp_seg_unmap(p, bytes);
	ro = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (ro == MAP_FAILED)
		return -1;
	began = bench_now();
	r = g->cu.cuMemHostRegister_v2(ro, bytes, CU_REG_READ_ONLY);
	if (refused(g, "cuMemHostRegister", r) == 0) {
		gbps = (double)bytes / (double)(bench_now() - began);
		(void)g->cu.cuMemHostUnregister(ro);
	}
	munmap(ro, bytes);
	return gbps;
}
