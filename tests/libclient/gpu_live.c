/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/libclient/gpu_live.h"

#include <errno.h>
#include <unistd.h>

struct kvp_cuda *gpu_live_open(struct engine *e)
{
	struct kvp_cuda_opts o = { .size = sizeof(o), .stage_bytes = 4 << 20 };
	struct kvp_cuda_props p = { .size = sizeof(p) };
	struct kvp_cuda *cuda;

	EQUAL(kvp_cuda_open(e->client, &o, &cuda), 0);
	for (uint32_t i = 0; i < 12000; i++) {
		EQUAL(kvp_cuda_info(cuda, &p), 0);
		if (p.device != KVP_CUDA_NO_DEVICE)
			break;
		usleep(5000);
	}
	EQUAL(p.device, 0);
	return cuda;
}

struct kvp_grant *gpu_live_reserve(struct engine *e, struct kvp_cuda *cuda)
{
	struct kvp_grant *g = NULL;
	int r = -EAGAIN;

	for (uint32_t i = 0; i < 6000; i++) {
		r = kvp_cuda_reserve(e->space, cuda, WAIT_MS, NULL, &g);
		if (r != -EAGAIN && r != -ENODEV)
			break;
		usleep(10000);
	}
	EQUAL(r, 0);
	CHECK(!kvp_grant_addr(g));
	CHECK(kvp_grant_device_addr(g));
	return g;
}

void gpu_live_compute(
	struct gpu *g, struct engine *e, struct kvp_cuda *cuda, uint64_t from, uint32_t blocks)
{
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_timeline *line;
	uint64_t value = 0;

	EQUAL(kvp_timeline_new(e->client, &line), 0);
	for (uint32_t i = 0; i < blocks; i++) {
		struct kvp_grant *slot = gpu_live_reserve(e, cuda);

		EQUAL(g->cu.cuMemcpyDtoDAsync_v2(kvp_grant_device_addr(slot),
			      from + (uint64_t)i * BLOCK_BYTES, BLOCK_BYTES, g->stream),
			CU_OK);
		EQUAL(kvp_cuda_mark(cuda, line, g->stream, &value), 0);
		EQUAL(kvp_commit_after(
			      slot, parent, e->tokens + (size_t)i * T, T, NULL, 0, line, value),
			0);
		EQUAL(kvp_grant_ref(slot, &parent), 0);
		EQUAL(kvp_grant_release_after(slot, line, value), 0);
	}
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	EQUAL(kvp_timeline_reached(line, value), 1);
	kvp_timeline_free(line);
}
