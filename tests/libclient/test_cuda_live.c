/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine and a real daemon with memory on one simulated GPU: blocks that the daemon's worker copied there
 * are read by the engine where they lie, in windows of slots, while it decodes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/libclient/gpu_live.h"

static struct gpu gpu;
static int legacy; /* memory comes by handles, which know no windows and no reading alone */

static struct kvp_cuda_props props(struct kvp_cuda *cuda)
{
	struct kvp_cuda_props p = { .size = sizeof(p) };

	EQUAL(kvp_cuda_info(cuda, &p), 0);
	return p;
}

/* The worker may be being started, and an extent made and mapped, before all of it is there. */
static void warm_all(struct engine *e, struct kvp_cuda *cuda, struct kvp_prefix *m, uint64_t *addrs)
{
	for (uint32_t i = 0; i < 6000; i++) {
		struct kvp_ticket ticket;
		int why = 0;

		EQUAL(kvp_cuda_warm(m, cuda, NULL, &ticket), 0);
		CHECK(kvp_ticket_wait(e->client, ticket, WAIT_MS, &why) >= 0);
		if (!why && kvp_cuda_addrs(m, cuda, 0, BLOCKS, 0, addrs) == BLOCKS)
			return;
		CHECK(!why || why == -EAGAIN || why == -ENODEV);
		usleep(10000);
	}
	give_up();
}

static void same_there(struct engine *e, const uint64_t *addrs)
{
	uint64_t at = gpu_alloc(&gpu, BLOCK_BYTES);
	uint8_t back[BLOCK_BYTES];

	for (uint32_t i = 0; i < BLOCKS; i++) {
		EQUAL(gpu.cu.cuMemcpyDtoDAsync_v2(at, addrs[i], BLOCK_BYTES, gpu.stream), CU_OK);
		gpu_read(&gpu, back, at, BLOCK_BYTES);
		CHECK(memcmp(back, e->kv + (size_t)i * BLOCK_BYTES, BLOCK_BYTES) == 0);
	}
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
}

static void test_read_in_place(void)
{
	struct engine *e = engine_new("cuda-live", KVP_LAYOUT_NCLD, 1);
	struct kvp_cuda_range range = { .size = sizeof(range) };
	struct kvp_cuda *cuda = gpu_live_open(e);
	struct kvp_timeline *line;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;
	uint64_t addrs[BLOCKS], value;
	int32_t slots[BLOCKS];

	EQUAL(kvp_timeline_new(e->client, &line), 0);
	store(e, N, 0);
	m = find_soon(e, N, N, &info);
	warm_all(e, cuda, m, addrs);
	CHECK(props(cuda).mapped_bytes >= N * TOKEN_BYTES);
	EQUAL(props(cuda).reads_guarded, !legacy);
	EQUAL(kvp_cuda_slots(m, cuda, 0, BLOCKS, 0, slots), legacy ? 0 : BLOCKS);
	EQUAL(kvp_cuda_window(cuda, e->space, &range), legacy ? -ENOENT : 0);
	for (uint32_t i = 0; !legacy && i < BLOCKS; i++)
		EQUAL(addrs[i], range.base + (uint64_t)slots[i] * range.slot_bytes);
	same_there(e, addrs);
	EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &value), 0);
	EQUAL(kvp_release_after(m, line, value), 0);
	gpu_sync(&gpu);
	EQUAL(kvp_timeline_reached(line, value), 1);
	engine_free(e);
}

/* A stream is told to wait before anything is there, and reads what has come. */
static void test_stream_wait(void)
{
	struct engine *e = engine_new("cuda-live-wait", KVP_LAYOUT_NCLD, 2);
	struct kvp_cuda *cuda = gpu_live_open(e);
	uint64_t at = gpu_alloc(&gpu, (uint64_t)N * TOKEN_BYTES), addrs[BLOCKS], bytes;
	uint8_t *back = malloc((size_t)N * TOKEN_BYTES);
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	struct kvp_prefix_info info;
	struct kvp_ticket ticket;
	struct kvp_prefix *m;
	int why = 1;

	store(e, N, 0);
	m = find_soon(e, N, N, &info);
	EQUAL(kvp_cuda_warm(m, cuda, NULL, &ticket), 0);
	EQUAL(kvp_cuda_stream_wait(cuda, gpu.stream, ticket), 0);
	gpu_sync(&gpu);
	CHECK(kvp_ticket_wait(e->client, ticket, 0, &why) >= 0);
	warm_all(e, cuda, m, addrs);
	EQUAL(kvp_view_dense(e->space, KVP_VIEW_NCLD, (void *)(uintptr_t)at, N, planes, &bytes), 0);
	EQUAL(kvp_cuda_get(m, cuda, 0, N, &v, gpu.stream), N);
	EQUAL(props(cuda).direct_bytes, (uint64_t)N * TOKEN_BYTES);
	EQUAL(props(cuda).staged_bytes, 0);
	/* Where the library has a kernel for it, that has copied. */
	if (gpu.sim && cudadrv_calls(gpu.sim, "cuModuleLoadData") > 0)
		CHECK(cudadrv_calls(gpu.sim, "cuLaunchKernel") > 0);
	gpu_read(&gpu, back, at, (uint64_t)N * TOKEN_BYTES);
	CHECK(memcmp(back, e->kv, (size_t)N * TOKEN_BYTES) == 0);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_release(m);
	free(back);
	kvp_cuda_close(cuda);
	engine_free(e);
}

/*
 * A step enqueued with the places of blocks that have not come. Whatever comes of the ticket, the stream goes on; its
 * results are good if all of it is there. The first tickets find a worker that starts, or memory that is mapped still.
 */
static bool step_early(
	struct engine *e, struct kvp_cuda *cuda, uint64_t mine, uint32_t *ret_pending)
{
	struct kvp_warm_opts o = { .size = sizeof(o), .flags = KVP_WARM_EARLY };
	uint64_t addrs[BLOCKS], now[BLOCKS];
	struct kvp_prefix_info info;
	struct kvp_ticket ticket;
	struct kvp_prefix *m = find_soon(e, N, N, &info);
	int why = 1, n, there = 0;

	EQUAL(kvp_cuda_warm(m, cuda, &o, &ticket), 0);
	n = kvp_ticket_placed(e->client, ticket, WAIT_MS);
	CHECK(n >= 0 && n <= (int)BLOCKS);
	n = kvp_cuda_addrs(m, cuda, 0, BLOCKS, KVP_DEVICE_PENDING, addrs);
	CHECK(n >= 0);
	EQUAL(kvp_cuda_stream_wait(cuda, gpu.stream, ticket), 0);
	for (int i = 0; i < n; i++)
		EQUAL(gpu.cu.cuMemcpyDtoDAsync_v2(
			      mine + (uint64_t)i * BLOCK_BYTES, addrs[i], BLOCK_BYTES, gpu.stream),
			CU_OK);
	*ret_pending = (uint32_t)(n - kvp_cuda_addrs(m, cuda, 0, BLOCKS, 0, now));
	gpu_sync(&gpu);
	there = kvp_ticket_wait(e->client, ticket, WAIT_MS, &why);
	CHECK(there >= 0 && (!why || why == -EAGAIN || why == -ENODEV));
	if (!why && n == (int)BLOCKS) {
		EQUAL(kvp_cuda_addrs(m, cuda, 0, BLOCKS, 0, now), BLOCKS);
		CHECK(memcmp(now, addrs, sizeof(now)) == 0);
	}
	kvp_release(m);
	return !why && n == (int)BLOCKS;
}

static void test_step_early(void)
{
	struct engine *e = engine_new("cuda-live-early", KVP_LAYOUT_NCLD, 6);
	uint64_t mine = gpu_alloc(&gpu, (uint64_t)N * TOKEN_BYTES);
	struct kvp_cuda *cuda = gpu_live_open(e);
	uint8_t *back = malloc((size_t)N * TOKEN_BYTES);
	uint32_t tries = 0, pending;

	store(e, N, 0);
	while (!step_early(e, cuda, mine, &pending)) {
		CHECK(tries++ < 6000);
		usleep(10000);
	}
	fprintf(stderr, "after %u tries, %u blocks not there when it was enqueued\n", tries,
		pending);
	gpu_read(&gpu, back, mine, (uint64_t)N * TOKEN_BYTES);
	for (uint32_t i = 0; i < BLOCKS; i++)
		CHECK(memcmp(back + (size_t)i * BLOCK_BYTES, e->kv + (size_t)i * BLOCK_BYTES,
			      BLOCK_BYTES) == 0);
	EQUAL(gpu.cu.cuMemFree_v2(mine), CU_OK);
	free(back);
	kvp_cuda_close(cuda);
	engine_free(e);
}

/* DRAM is pinned when it is made, not when the first copy asks for it. */
static void test_pinned_early(void)
{
	const int64_t before = gpu.sim ? cudadrv_calls(gpu.sim, "cuMemHostRegister_v2") : 0;
	struct engine *e = engine_new("cuda-live-pinned", KVP_LAYOUT_NCLD, 7);

	if (!gpu.sim) {
		engine_free(e);
		return; /* nobody counts calls */
	}
	store(e, N, 0);
	engine_free(e);
	/* What a client leaves comes to a vault; nothing was asked to be on the device. */
	for (uint32_t i = 0; i < 4000; i++) {
		if (cudadrv_calls(gpu.sim, "cuMemHostRegister_v2") > before)
			return;
		usleep(5000);
	}
	give_up();
}

#define SOME 6u

static void test_computed_there(void)
{
	struct engine *e = engine_new("cuda-live-compute", KVP_LAYOUT_NCLD, 3);
	struct engine *other = engine_new("cuda-live-compute", KVP_LAYOUT_NCLD, 3);
	struct kvp_cuda *cuda = gpu_live_open(e), *theirs = gpu_live_open(other);
	uint64_t at = gpu_alloc(&gpu, SOME * BLOCK_BYTES), addrs[SOME];
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_DEVICE };
	struct kvp_payload_info p = { .size = sizeof(p) };
	struct kvp_payload_layer_info layer = { .size = sizeof(layer) };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	uint8_t back[BLOCK_BYTES];
	struct kvp_prefix *m = NULL;
	uint64_t bytes;

	gpu_write(&gpu, at, e->kv, SOME * BLOCK_BYTES);
	gpu_live_compute(&gpu, e, cuda, at, SOME);
	for (uint32_t i = 0; i < 6000; i++) {
		EQUAL(kvp_match(other->space, e->tokens, SOME * T, &o, &m), 0);
		EQUAL(kvp_match_info(m, &info), 0);
		if (info.n_blocks == SOME)
			break;
		kvp_release(m);
		usleep(5000);
	}
	EQUAL(info.n_blocks, SOME);
	EQUAL(kvp_cuda_addrs(m, theirs, 0, SOME, 0, addrs), SOME);
	for (uint32_t i = 0; i < SOME; i++) {
		EQUAL(kvp_payload(m, i, &p), 0);
		EQUAL(p.tier, KVP_TIER_VRAM);
		CHECK(!p.addr);
		EQUAL(p.device_addr, addrs[i]);
		EQUAL(kvp_payload_planes(m, i, 0, &layer), -EOPNOTSUPP);
		EQUAL(gpu.cu.cuMemcpyDtoDAsync_v2(at, addrs[i], BLOCK_BYTES, gpu.stream), CU_OK);
		gpu_read(&gpu, back, at, BLOCK_BYTES);
		CHECK(memcmp(back, e->kv + (size_t)i * BLOCK_BYTES, BLOCK_BYTES) == 0);
	}
	/* Copied there, into memory of the reader's own. */
	EQUAL(kvp_view_dense(
		      other->space, KVP_VIEW_NCLD, (void *)(uintptr_t)at, SOME * T, planes, &bytes),
		0);
	EQUAL(kvp_cuda_get(m, theirs, T, T, &v, gpu.stream), T);
	gpu_read(&gpu, back, at, BLOCK_BYTES);
	CHECK(memcmp(back, e->kv + BLOCK_BYTES, BLOCK_BYTES) == 0);
	EQUAL(props(theirs).staged_bytes, 0);
	kvp_release(m);
	/* The daemon copies them to DRAM by itself: then others find them, too. */
	m = find_soon(other, SOME * T, SOME * T, &info);
	same_bytes(other, m, SOME * T);
	kvp_release(m);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_cuda_close(theirs);
	kvp_cuda_close(cuda);
	engine_free(other);
	engine_free(e);
}

/* What a client writes on the device it can write as long as that one is open by which it reserved. */
static void test_computed_by_the_other(void)
{
	struct engine *e = engine_new("cuda-live-other", KVP_LAYOUT_NCLD, 4);
	struct kvp_cuda *cuda = gpu_live_open(e), *other = gpu_live_open(e);
	uint64_t at = gpu_alloc(&gpu, BLOCK_BYTES);
	struct kvp_grant *g;

	gpu_write(&gpu, at, e->kv, BLOCK_BYTES);
	gpu_live_compute(&gpu, e, cuda, at, 1);
	EQUAL(kvp_cuda_reserve(e->space, cuda, WAIT_MS, NULL, &g), 0);
	kvp_cuda_close(other);
	CHECK(kvp_grant_device_addr(g));
	EQUAL(gpu.cu.cuMemcpyDtoDAsync_v2(kvp_grant_device_addr(g), at, BLOCK_BYTES, gpu.stream),
		CU_OK);
	gpu_sync(&gpu);
	kvp_grant_release(g);
	gpu_live_compute(&gpu, e, cuda, at, 1);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_cuda_close(cuda);
	engine_free(e);
}

/* Closed and opened again: it gets slots as before. */
static void test_computed_again(void)
{
	struct engine *e = engine_new("cuda-live-again", KVP_LAYOUT_NCLD, 5);
	uint64_t at = gpu_alloc(&gpu, BLOCK_BYTES);
	struct kvp_cuda *cuda;

	gpu_write(&gpu, at, e->kv, BLOCK_BYTES);
	for (uint32_t i = 0; i < 3; i++) {
		cuda = gpu_live_open(e);
		gpu_live_compute(&gpu, e, cuda, at, 1);
		kvp_cuda_close(cuda);
	}
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	engine_free(e);
}

/* Another engine's blocks were copied there before, and it is gone or still there: slots are to be had. */
static void computed_beside(const char *model, bool gone)
{
	struct engine *first = engine_new(model, KVP_LAYOUT_NCLD, 8), *e;
	uint64_t at = gpu_alloc(&gpu, BLOCK_BYTES), addrs[BLOCKS];
	struct kvp_cuda *theirs = gpu_live_open(first), *cuda;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;

	store(first, N, 0);
	m = find_soon(first, N, N, &info);
	warm_all(first, theirs, m, addrs);
	if (gone) {
		kvp_release(m);
		kvp_cuda_close(theirs);
		engine_free(first);
	}
	e = engine_new(model, KVP_LAYOUT_NCLD, 9);
	gpu_write(&gpu, at, e->kv, BLOCK_BYTES);
	cuda = gpu_live_open(e);
	gpu_live_compute(&gpu, e, cuda, at, 1);
	kvp_cuda_close(cuda);
	engine_free(e);
	if (!gone) {
		kvp_release(m);
		kvp_cuda_close(theirs);
		engine_free(first);
	}
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
}

static void test_computed_beside(void)
{
	computed_beside("cuda-live-beside", false);
}

static void test_computed_after(void)
{
	computed_beside("cuda-live-after", true);
}

int main(int argc, char **argv)
{
	static const struct live_test tests[] = {
		{ "read in place", test_read_in_place },
		{ "a stream waits", test_stream_wait },
		{ "a step is enqueued early", test_step_early },
		{ "computed there", test_computed_there },
	};
	static const struct live_test again[] = {
		{ "pinned early", test_pinned_early },
		{ "computed beside another's", test_computed_beside },
		{ "computed after another's", test_computed_after },
		{ "computed again", test_computed_again },
		{ "computed by the other", test_computed_by_the_other },
	};
	int r;

	legacy = argc > 1 && strcmp(argv[1], "legacy") == 0;
	gpu_begin(&gpu, NULL);
	if (argc > 1 && strcmp(argv[1], "again") == 0)
		r = live_main(again, sizeof(again) / sizeof(again[0]));
	else
		r = live_main(tests, sizeof(tests) / sizeof(tests[0]));
	return gpu_end(&gpu) || r;
}
