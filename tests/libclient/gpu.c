/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/libclient/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/kvp_atomic.h"

#define MUST(x)                                                                            \
	do {                                                                               \
		int must_ = (x);                                                           \
		if (must_) {                                                               \
			fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #x, must_); \
			_exit(1);                                                          \
		}                                                                          \
	} while (0)

bool gpu_is_real(void)
{
	const char *which = getenv("KVP_TEST_GPU");

	return which && !strcmp(which, "real");
}

void gpu_begin(struct gpu *g, const struct cudadrv_config *config)
{
	char why[KVP_CU_WHY];
	struct cudadrv_config c;

	const char *there = getenv("KVP_SIM_GPU");

	memset(g, 0, sizeof(*g));
	if (gpu_is_real()) {
		/* Nothing to make. */
	} else if (there) {
		MUST(cudadrv_open(there, &g->sim));
	} else {
		cudadrv_defaults(&c);
		snprintf(g->folder, sizeof(g->folder), "/dev/shm/kvpool-gpu-XXXXXX");
		MUST(!mkdtemp(g->folder));
		MUST(cudadrv_new(g->folder, config ? config : &c, &g->sim));
		MUST(setenv("KVP_SIM_GPU", g->folder, 1));
	}
	if (kvp_cu_open(0, &g->cu, why) < 0) {
		fprintf(stderr, "%s\n", why);
		_exit(1);
	}
	MUST(g->cu.cuStreamCreate(&g->stream, CU_STREAM_ASYNC));
	if (!gpu_is_real())
		return;
	MUST(g->cu.cuMemHostAlloc((void **)&g->gate, 4096, CU_REG_DEVICEMAP));
	MUST(g->cu.cuMemHostGetDevicePointer_v2(&g->gate_there, g->gate, 0));
}

/* A real device's engines cannot be stopped, but a stream can be told to wait. */
void gpu_hold(struct gpu *g)
{
	if (g->sim) {
		cudadrv_stall(g->sim, 0, 1, 1);
		return;
	}
	kvp_store_relaxed((_Atomic(uint64_t) *)g->gate, 0);
	MUST(g->cu.cuStreamWaitValue64_v2(g->stream, g->gate_there, 1, CU_WAIT_GEQ));
}

void gpu_go(struct gpu *g)
{
	if (g->sim)
		cudadrv_stall(g->sim, 0, 1, 0);
	else
		kvp_store_release((_Atomic(uint64_t) *)g->gate, 1);
}

int gpu_end(struct gpu *g)
{
	uint64_t reports = 0;
	char command[128];

	gpu_sync(g);
	MUST(g->cu.cuStreamDestroy_v2(g->stream));
	if (g->gate)
		MUST(g->cu.cuMemFreeHost(g->gate));
	MUST(g->cu.cuDevicePrimaryCtxRelease_v2(g->cu.device));
	if (!g->sim)
		return 0;
	for (uint32_t i = 0; i < CUDADRV_REPORTS_N; i++) {
		uint64_t n = cudadrv_reports(g->sim, (enum cudadrv_report)i);

		if (n)
			fprintf(stderr, "reported %s: %llu\n",
				cudadrv_report_name((enum cudadrv_report)i), (unsigned long long)n);
		reports += n;
	}
	cudadrv_close(g->sim);
	if (g->folder[0]) {
		snprintf(command, sizeof(command), "rm -rf '%s'", g->folder);
		MUST(system(command));
	}
	return reports != 0;
}

uint64_t gpu_alloc(struct gpu *g, uint64_t bytes)
{
	uint64_t at = 0;

	MUST(g->cu.cuMemAlloc_v2(&at, bytes));
	return at;
}

void gpu_write(struct gpu *g, uint64_t to, const void *from, uint64_t bytes)
{
	MUST(g->cu.cuMemcpyHtoD_v2(to, from, bytes));
}

void gpu_read(struct gpu *g, void *to, uint64_t from, uint64_t bytes)
{
	gpu_sync(g);
	MUST(g->cu.cuMemcpyDtoH_v2(to, from, bytes));
}

void gpu_sync(struct gpu *g)
{
	MUST(g->cu.cuStreamSynchronize(g->stream));
}

uint64_t gpu_slow_calls(struct gpu *g)
{
	/* What remains is quick: it enqueues, asks, or names an error. */
	static const char *const quick[] = { "cuCtxGetCurrent", "cuCtxPushCurrent_v2",
		"cuCtxPopCurrent_v2", "cuStreamIsCapturing", "cuMemcpyHtoDAsync_v2",
		"cuMemcpyDtoHAsync_v2", "cuMemcpyDtoDAsync_v2", "cuMemcpyBatchAsync",
		"cuMemcpyBatchAsync_v2", "cuLaunchKernel", "cuEventRecord", "cuEventQuery",
		"cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2" };
	uint64_t sum = 0;

	for (uint32_t i = 0; g->sim && cudadrv_function(i); i++) {
		const char *name = cudadrv_function(i);
		size_t k = 0;

		while (k < sizeof(quick) / sizeof(quick[0]) && strcmp(name, quick[k]) != 0)
			k++;
		if (k == sizeof(quick) / sizeof(quick[0]))
			sum += (uint64_t)cudadrv_calls(g->sim, name);
	}
	return sum;
}
