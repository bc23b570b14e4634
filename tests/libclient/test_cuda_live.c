/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine and a real daemon with memory on one simulated GPU: blocks that the daemon's worker copied there
 * are read by the engine where they lie, in windows of slots, while it decodes.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shm/kvp_atomic.h"
#include "tests/libclient/gpu_live.h"

static struct gpu gpu;

/* In the program with the library's variant that has such points; on its threads. */
void fault_point(const char *name);
static void (*at_point)(const char *name);

void fault_point(const char *name)
{
	if (at_point)
		at_point(name);
}
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

/* Slots in memory that this client maps nowhere: none is made for it. */
static void test_reserved_blindly(void)
{
	struct engine *e = engine_new("cuda-blind", KVP_LAYOUT_LCND, 40);
	struct kvp_device_props there = { .size = sizeof(there) };
	struct kvp_cuda *cuda;
	struct kvp_grant *g;

	/* The daemon comes to know the device when its worker has told. */
	for (uint32_t i = 0; i < 12000 && kvp_device_info(e->client, 0, &there); i++)
		usleep(5000);
	EQUAL(kvp_reserve_on(e->space, 0, 0, NULL, &g), -EOPNOTSUPP);
	EQUAL(kvp_reserve_on(e->space, 1, 0, NULL, &g), -ENODEV);
	cuda = gpu_live_open(e);
	g = gpu_live_reserve(e, cuda);
	kvp_grant_release(g);
	/* And now it is mapped. */
	EQUAL(kvp_reserve_on(e->space, 0, WAIT_MS, NULL, &g), 0);
	kvp_grant_release(g);
	kvp_cuda_close(cuda);
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

/* ---- put there ------------------------------------------------------------------------------- */

/* An engine whose KV lies in device memory of its own, and a daemon that has slots for it on the same device. */
struct putter {
	struct engine *e;
	struct kvp_cuda *cuda;
	struct kvp_timeline *line;
	uint64_t at, value;
	struct kvp_view_plane planes[2];
	struct kvp_view v;
};

static struct putter putter_new(const char *name, uint32_t layout, uint32_t seed)
{
	struct putter p = { .e = engine_new(name, layout, seed) };
	uint64_t bytes;

	p.cuda = gpu_live_open(p.e);
	EQUAL(kvp_timeline_new(p.e->client, &p.line), 0);
	p.at = gpu_alloc(&gpu, (uint64_t)(N + T) * TOKEN_BYTES);
	gpu_write(&gpu, p.at, p.e->kv, (uint64_t)(N + T) * TOKEN_BYTES);
	EQUAL(kvp_view_dense(
		      p.e->space, KVP_VIEW_NCLD, (void *)(uintptr_t)p.at, N + T, p.planes, &bytes),
		0);
	return p;
}

static void putter_free(struct putter *p)
{
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFree_v2(p->at), CU_OK);
	kvp_cuda_close(p->cuda);
	engine_free(p->e);
}

static uint32_t retry_ms; /* of the last put() */

/* The prompt's tokens [from, n). */
static int64_t put(struct putter *p, uint32_t from, uint32_t n, uint32_t flags, uint32_t timeout_ms)
{
	struct kvp_put_opts o = { .size = sizeof(o), .flags = flags, .timeout_ms = timeout_ms };
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };

	retry_ms = 0;
	memcpy(planes, p->planes, sizeof(planes));
	for (uint32_t i = 0; i < 2; i++) {
		planes[i].k = (char *)planes[i].k + from * planes[i].k_token_stride;
		planes[i].v = (char *)planes[i].v + from * planes[i].v_token_stride;
	}
	return kvp_cuda_put(p->e->space, p->cuda, p->e->tokens, n, from, &v, &o, gpu.stream,
		p->line, &p->value, &retry_ms);
}

/* Memory of the daemon's, mapped here, to put into. */
static void make_room(struct putter *p)
{
	kvp_grant_release(gpu_live_reserve(p->e, p->cuda));
}

static uint32_t found_there(struct engine *e, uint32_t n, struct kvp_prefix **ret)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_DEVICE };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *m;

	EQUAL(kvp_match(e->space, e->tokens, n, &o, &m), 0);
	EQUAL(kvp_match_info(m, &info), 0);
	if (ret)
		*ret = m;
	else
		kvp_release(m);
	return info.n_tokens + info.tail_tokens;
}

/* All of it lies on the device, and has the prompt's bytes; then in DRAM, too. */
static void read_there(struct engine *e, struct kvp_cuda *cuda, uint32_t n)
{
	const uint32_t blocks = (n + T - 1) / T;
	uint64_t mine = gpu_alloc(&gpu, (uint64_t)n * TOKEN_BYTES), addrs[BLOCKS + 1], bytes;
	uint8_t *back = malloc((size_t)n * TOKEN_BYTES);
	struct kvp_view_plane planes[2];
	struct kvp_view v = { .size = sizeof(v), .planes = planes };
	const uint64_t before = props(cuda).direct_bytes;
	struct kvp_prefix *m = NULL;
	struct kvp_prefix_info info;

	/* What the daemon has moved since is mapped in a moment. */
	for (uint32_t i = 0; i < 6000; i++) {
		if (found_there(e, n, &m) == n &&
			kvp_cuda_addrs(m, cuda, 0, blocks, 0, addrs) == (int)blocks)
			break;
		kvp_release(m);
		m = NULL;
		usleep(5000);
	}
	CHECK(m);
	EQUAL(kvp_view_dense(e->space, KVP_VIEW_NCLD, (void *)(uintptr_t)mine, n, planes, &bytes),
		0);
	EQUAL(kvp_cuda_get(m, cuda, 0, n, &v, gpu.stream), n);
	gpu_read(&gpu, back, mine, (uint64_t)n * TOKEN_BYTES);
	CHECK(memcmp(back, e->kv, (size_t)n * TOKEN_BYTES) == 0);
	EQUAL(props(cuda).direct_bytes - before, (uint64_t)n * TOKEN_BYTES);
	kvp_release(m);
	m = find_soon(e, n, n, &info);
	same_bytes(e, m, n);
	kvp_release(m);
	EQUAL(gpu.cu.cuMemFree_v2(mine), CU_OK);
	free(back);
}

/* Straight into the daemon's memory, a piece of a sequence at a time, and read there by another engine. */
static void test_put_there(void)
{
	struct putter p = putter_new("cuda-live-put", KVP_LAYOUT_LCND, 11);
	struct engine *other = engine_new("cuda-live-put", KVP_LAYOUT_LCND, 11);
	struct kvp_cuda *theirs = gpu_live_open(other);
	int64_t launches = gpu.sim ? cudadrv_calls(gpu.sim, "cuLaunchKernel") : 0;
	uint64_t last = 0;

	make_room(&p);
	for (uint32_t from = 0, ask[] = { T, 5 * T + 3, N, N }, i = 0; from < N; i++) {
		const uint32_t n = i < 4 ? ask[i] : N;
		int64_t r = put(&p, from, n, KVP_PUT_ON_DEVICE, WAIT_MS);

		EQUAL(r, n / T * T - from);
		CHECK(p.value > last);
		last = p.value;
		from += (uint32_t)r;
	}
	EQUAL(kvp_flush(p.e->client, WAIT_MS), 0);
	EQUAL(kvp_timeline_reached(p.line, p.value), 1);
	EQUAL(props(p.cuda).displaced_blocks, 0);
	EQUAL(props(p.cuda).placed_bytes, (uint64_t)N * TOKEN_BYTES);
	EQUAL(props(p.cuda).staged_bytes, 0);
	if (gpu.sim && cudadrv_calls(gpu.sim, "cuModuleLoadData") > 0)
		CHECK(cudadrv_calls(gpu.sim, "cuLaunchKernel") > launches);
	read_there(other, theirs, N);
	/* It is there: nothing is enqueued. */
	EQUAL(put(&p, 0, N, KVP_PUT_ON_DEVICE, WAIT_MS), N);
	EQUAL(p.value, last);
	EQUAL(props(p.cuda).placed_bytes, (uint64_t)N * TOKEN_BYTES);
	/* The rest, which is no whole block. */
	EQUAL(put(&p, N, N + 7, KVP_PUT_ON_DEVICE | KVP_PUT_PARTIAL, WAIT_MS), 7);
	EQUAL(kvp_flush(p.e->client, WAIT_MS), 0);
	read_there(other, theirs, N + 7);
	kvp_cuda_close(theirs);
	engine_free(other);
	putter_free(&p);
}

/* Pieces of a block that the engine lays out itself, into slots here and there by one call. */
static void test_store_there(void)
{
	struct putter p = putter_new("cuda-live-store", KVP_LAYOUT_NCLD, 12);
	struct kvp_cuda_piece piece[3] = {
		{ .block = 0, .bytes = BLOCK_BYTES / 2, .device_addr = p.at },
		{ .block = 1, .bytes = BLOCK_BYTES, .device_addr = p.at + BLOCK_BYTES },
		{ .block = 0,
			.offset = BLOCK_BYTES / 2,
			.bytes = BLOCK_BYTES / 2,
			.device_addr = p.at + BLOCK_BYTES / 2 },
	};
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *g[2];
	struct kvp_prefix *m = NULL;

	g[0] = gpu_live_reserve(p.e, p.cuda);
	EQUAL(kvp_reserve(p.e->space, WAIT_MS, NULL, &g[1]), 0);
	piece[2].bytes++;
	EQUAL(kvp_cuda_store(p.cuda, g, 2, piece, 3, gpu.stream, p.line, &p.value), -EINVAL);
	piece[2].bytes--;
	EQUAL(props(p.cuda).placed_bytes, 0);
	EQUAL(kvp_cuda_store(p.cuda, g, 2, piece, 3, gpu.stream, p.line, &p.value), 3);
	EQUAL(props(p.cuda).placed_bytes, BLOCK_BYTES);
	EQUAL(props(p.cuda).staged_bytes, BLOCK_BYTES);
	EQUAL(kvp_commit_after(g[0], parent, p.e->tokens, T, NULL, 0, p.line, p.value), 0);
	EQUAL(kvp_grant_ref(g[0], &parent), 0);
	EQUAL(kvp_commit_after(g[1], parent, p.e->tokens + T, T, NULL, 0, p.line, p.value), 0);
	EQUAL(kvp_grant_wait(g[0], WAIT_MS), 0);
	EQUAL(kvp_grant_wait(g[1], WAIT_MS), 0);
	EQUAL(found_there(p.e, 2 * T, &m), 2 * T);
	kvp_release(m);
	m = find_soon(p.e, 2 * T, 2 * T, &(struct kvp_prefix_info){ 0 });
	same_bytes(p.e, m, 2 * T);
	kvp_release(m);
	EQUAL(kvp_grant_release(g[0]), 0);
	EQUAL(kvp_grant_release(g[1]), 0);
	putter_free(&p);
}

/* A slot that one of the client's reserved is written by another, where that one has it. */
static void test_store_by_the_other(void)
{
	struct putter p = putter_new("cuda-live-other", KVP_LAYOUT_NCLD, 19);
	struct kvp_cuda *first = gpu_live_open(p.e);
	const struct kvp_cuda_piece piece = { .bytes = BLOCK_BYTES, .device_addr = p.at };
	struct kvp_grant *g = gpu_live_reserve(p.e, first);
	struct kvp_prefix *m = NULL;
	int r = -EINVAL;

	kvp_cuda_close(first);
	/* It may have to be mapped there first. */
	for (uint32_t i = 0; i < 6000 && r == -EINVAL; i++) {
		r = kvp_cuda_store(p.cuda, &g, 1, &piece, 1, gpu.stream, p.line, &p.value);
		if (r == -EINVAL)
			usleep(5000);
	}
	EQUAL(r, 1);
	EQUAL(kvp_commit_after(g, kvp_ref_root(), p.e->tokens, T, NULL, 0, p.line, p.value), 0);
	EQUAL(kvp_grant_wait(g, WAIT_MS), 0);
	m = find_soon(p.e, T, T, &(struct kvp_prefix_info){ 0 });
	same_bytes(p.e, m, T);
	kvp_release(m);
	EQUAL(kvp_grant_release(g), 0);
	putter_free(&p);
}

/* A word for which the stream waits, and kernels after it. */
struct gate {
	_Atomic(uint64_t) *word;
	uint64_t there;
};

static struct gate gate_new(void)
{
	struct gate g;
	void *at;

	EQUAL(gpu.cu.cuMemHostAlloc(&at, 4096, CU_REG_PORTABLE | CU_REG_DEVICEMAP), CU_OK);
	EQUAL(gpu.cu.cuMemHostGetDevicePointer_v2(&g.there, at, 0), CU_OK);
	g.word = at;
	kvp_store_relaxed(g.word, 0);
	return g;
}

static void gate_shut(struct gate *g)
{
	EQUAL(gpu.cu.cuStreamWaitValue64_v2(gpu.stream, g->there, 1, CU_WAIT_GEQ), CU_OK);
}

static void gate_open(struct gate *g)
{
	kvp_store_release(g->word, 1);
}

static void gate_free(struct gate *g)
{
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFreeHost((void *)g->word), CU_OK);
}

/* It returns before the stream has come there, and nobody finds anything before that. */
static void test_put_behind(void)
{
	struct putter p = putter_new("cuda-live-behind", KVP_LAYOUT_NCLD, 13);
	struct gate gate = gate_new();

	make_room(&p);
	gate_shut(&gate);
	EQUAL(put(&p, 0, 4 * T, KVP_PUT_ON_DEVICE, WAIT_MS), 4 * T);
	EQUAL(kvp_timeline_reached(p.line, p.value), 0);
	/* On its way: nothing is enqueued twice. */
	EQUAL(put(&p, 0, 4 * T, KVP_PUT_ON_DEVICE, WAIT_MS), 4 * T);
	EQUAL(props(p.cuda).placed_bytes, 4 * BLOCK_BYTES);
	usleep(20000);
	EQUAL(found_there(p.e, 4 * T, NULL), 0);
	gate_open(&gate);
	EQUAL(kvp_flush(p.e->client, WAIT_MS), 0);
	EQUAL(kvp_timeline_reached(p.line, p.value), 1);
	read_there(p.e, p.cuda, 4 * T);
	gate_free(&gate);
	putter_free(&p);
}

/* A timeline that is left publishes nothing whose bytes are still on their way. */
static void test_put_and_leave(void)
{
	struct putter p = putter_new("cuda-live-leave", KVP_LAYOUT_NCLD, 30);
	struct gate gate = gate_new();
	struct kvp_prefix *m;

	make_room(&p);
	gate_shut(&gate);
	EQUAL(put(&p, 0, 2 * T, 0, WAIT_MS), 2 * T);
	EQUAL(put(&p, 2 * T, 4 * T, KVP_PUT_ON_DEVICE, WAIT_MS), 2 * T);
	kvp_timeline_free(p.line);
	usleep(20000);
	EQUAL(found_there(p.e, 4 * T, NULL), 0);
	gate_open(&gate);
	EQUAL(kvp_flush(p.e->client, WAIT_MS), 0);
	m = find_soon(p.e, 4 * T, 4 * T, &(struct kvp_prefix_info){ 0 });
	same_bytes(p.e, m, 4 * T);
	kvp_release(m);
	/* And its place is another's again. */
	for (uint32_t i = 0; i < KVP_CLIENT_TIMELINES; i++)
		EQUAL(kvp_timeline_new(p.e->client, &p.line), 0);
	gate_free(&gate);
	putter_free(&p);
}

/* What streams have written by the time of kvp_cuda_close() is there, and its slots come back. */
static void test_put_and_close(void)
{
	for (uint32_t i = 0; i < 8; i++) {
		struct putter p = putter_new("cuda-live-close", KVP_LAYOUT_NCLD, 20 + i);
		struct gate gate = gate_new();

		make_room(&p);
		gate_shut(&gate);
		EQUAL(put(&p, 0, 4 * T, i % 2 ? KVP_PUT_ON_DEVICE : 0, WAIT_MS), 4 * T);
		usleep(20000);
		gate_open(&gate);
		gpu_sync(&gpu);
		kvp_cuda_close(p.cuda);
		p.cuda = NULL;
		EQUAL(kvp_timeline_reached(p.line, p.value), 1);
		EQUAL(kvp_flush(p.e->client, WAIT_MS), 0);
		gate_free(&gate);
		putter_free(&p);
	}
}

/* A client that has all its slots waits for them, and takes none in DRAM instead. */
static void test_put_slots_out(void)
{
	struct putter p = putter_new("cuda-live-out", KVP_LAYOUT_NCLD, 14);
	struct kvp_grant *held[KVP_CLIENT_GRANTS];
	struct kvp_prefix *m;
	uint32_t n = 0;

	for (; n < KVP_CLIENT_GRANTS; n++)
		held[n] = gpu_live_reserve(p.e, p.cuda);
	EQUAL(put(&p, 0, 2 * T, KVP_PUT_ON_DEVICE, 20), -EAGAIN);
	CHECK(retry_ms);
	EQUAL(props(p.cuda).displaced_blocks, 0);
	kvp_grant_release(held[--n]);
	/* One at a time. */
	for (uint32_t from = 0; from < 3 * T;) {
		int64_t r = put(&p, from, 3 * T, KVP_PUT_ON_DEVICE, WAIT_MS);

		CHECK(r > 0);
		from += (uint32_t)r;
	}
	/* So much of the memory there is taken that more of it may be long in coming. */
	EQUAL(props(p.cuda).placed_bytes + props(p.cuda).displaced_blocks * BLOCK_BYTES,
		3 * BLOCK_BYTES);
	CHECK(props(p.cuda).placed_bytes);
	EQUAL(kvp_flush(p.e->client, WAIT_MS), 0);
	while (n)
		kvp_grant_release(held[--n]);
	/* The daemon may have moved them: so much of its memory there was taken. */
	m = find_soon(p.e, 3 * T, 3 * T, &(struct kvp_prefix_info){ 0 });
	same_bytes(p.e, m, 3 * T);
	kvp_release(m);
	putter_free(&p);
}

/* Where there is no room it goes to DRAM, and it is said how much. */
static void test_put_displaced(void)
{
	const struct cudadrv_fault full = { .function = "cuMemCreate",
		.program = "kvpool-device",
		.action = CUDADRV_RETURN,
		.value = 2 };
	struct putter p = putter_new("cuda-live-displaced", KVP_LAYOUT_NCLD, 15);
	struct kvp_put_opts o = { .size = sizeof(o), .flags = KVP_PUT_ON_DEVICE };
	struct kvp_prefix *m;

	EQUAL(kvp_put(p.e->space, p.e->tokens, N, 0, &p.e->view, &o, NULL), -EINVAL);
	EQUAL(put(&p, 0, N, 4, WAIT_MS), -EINVAL);
	if (gpu.sim) {
		EQUAL(cudadrv_set(gpu.sim, &full, NULL), 0);
		EQUAL(put(&p, 0, N, KVP_PUT_ON_DEVICE, WAIT_MS), N);
		EQUAL(props(p.cuda).displaced_blocks, BLOCKS);
		EQUAL(props(p.cuda).staged_bytes, (uint64_t)N * TOKEN_BYTES);
		EQUAL(props(p.cuda).placed_bytes, 0);
		EQUAL(kvp_flush(p.e->client, WAIT_MS), 0);
		m = find_soon(p.e, N, N, &(struct kvp_prefix_info){ 0 });
		same_bytes(p.e, m, N);
		kvp_release(m);
		EQUAL(cudadrv_clear(gpu.sim), 0);
	}
	putter_free(&p);
}

static struct gate full_gate;
static uint32_t full_writes;

/* There is room again by when the call would write a second time. */
static void at_write(const char *name)
{
	if (strcmp(name, "put-write") || ++full_writes != 2)
		return;
	gate_open(&full_gate);
	gpu_sync(&gpu);
	usleep(100000);
}

/* A run that finds no room ends the call: what comes after it does not follow what came before. */
static void test_put_run_fails(void)
{
	struct putter p = putter_new("cuda-live-run", KVP_LAYOUT_NCLD, 18);
	struct kvp_cuda_piece piece = { .bytes = 16, .device_addr = p.at };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_grant *mine = gpu_live_reserve(p.e, p.cuda);
	struct kvp_prefix *m;
	uint64_t value;
	uint32_t n = 0;
	int64_t r = 1;

	full_gate = gate_new();
	gate_shut(&full_gate);
	for (; r == 1 && n < 1000; n++)
		r = kvp_cuda_store(p.cuda, &mine, 1, &piece, 1, gpu.stream, p.line, &value);
	EQUAL(r, -EAGAIN);
	at_point = at_write;
	EQUAL(put(&p, 0, N, KVP_PUT_ON_DEVICE, WAIT_MS), -EAGAIN);
	CHECK(retry_ms);
	at_point = NULL;
	EQUAL(full_writes, 1);
	gate_open(&full_gate);
	gate_free(&full_gate);
	kvp_grant_release(mine);
	for (uint32_t i = 1; i < BLOCKS; i++) {
		EQUAL(kvp_match(p.e->space, p.e->tokens + (size_t)i * T, T, NULL, &m), 0);
		EQUAL(kvp_match_info(m, &info), 0);
		EQUAL(info.n_tokens + info.tail_tokens, 0);
		kvp_release(m);
	}
	for (uint32_t from = 0; from < N;) {
		r = put(&p, from, N, KVP_PUT_ON_DEVICE, WAIT_MS);
		if (r != -EAGAIN)
			CHECK(r > 0);
		from += r > 0 ? (uint32_t)r : 0;
	}
	EQUAL(kvp_flush(p.e->client, WAIT_MS), 0);
	m = find_soon(p.e, N, N, &info);
	same_bytes(p.e, m, N);
	kvp_release(m);
	putter_free(&p);
}

/* A worker that copies nothing: what an engine put is read on the device, and who holds memory there is told. */
static void test_put_no_copies(void)
{
	struct putter p = putter_new("cuda-live-none", KVP_LAYOUT_NCLD, 17);
	uint64_t addrs[BLOCKS];
	struct kvp_prefix *m;
	char command[512];
	int why = 1;

	make_room(&p);
	EQUAL(put(&p, 0, N, KVP_PUT_ON_DEVICE, WAIT_MS), N);
	EQUAL(kvp_put_outcome(p.e->space, p.e->tokens, N, 0, WAIT_MS, &why), N);
	EQUAL(why, 0);
	EQUAL(props(p.cuda).placed_bytes, (uint64_t)N * TOKEN_BYTES);
	EQUAL(found_there(p.e, N, &m), N);
	EQUAL(kvp_cuda_addrs(m, p.cuda, 0, BLOCKS, 0, addrs), BLOCKS);
	same_there(p.e, addrs);
	kvp_release(m);
	if (getenv("KVCTL")) {
		snprintf(command, sizeof(command),
			"'%s' device list; '%s' doctor | grep 'memory is held'", getenv("KVCTL"),
			getenv("KVCTL"));
		printf("this engine is process %d\n", (int)getpid());
		fflush(stdout);
		(void)!system(command);
	}
	EQUAL(kvp_delete(p.e->space, p.e->tokens, N, WAIT_MS), BLOCKS);
	EQUAL(found_there(p.e, N, NULL), 0);
	putter_free(&p);
}

/* The daemon goes while a stream still writes into what it had lent: nothing is unmapped under it. */
static void test_put_left(void)
{
	const char *text = getenv("KVPOOLD_PID");
	struct putter p = putter_new("cuda-live-left", KVP_LAYOUT_NCLD, 16);
	struct kvp_counters info = { .size = sizeof(info) };
	struct gate gate = gate_new();
	struct kvp_grant *mine;

	make_room(&p);
	mine = gpu_live_reserve(p.e, p.cuda);
	gate_shut(&gate);
	EQUAL(put(&p, 0, 4 * T, KVP_PUT_ON_DEVICE, WAIT_MS), 4 * T);
	EQUAL(gpu.cu.cuMemcpyDtoDAsync_v2(
		      kvp_grant_device_addr(mine), p.at, BLOCK_BYTES, gpu.stream),
		CU_OK);
	CHECK(text && kill((pid_t)atoi(text), SIGTERM) == 0);
	for (uint32_t i = 0; i < 12000; i++) {
		EQUAL(kvp_stats(p.e->client, &info), 0);
		if (!info.attached)
			break;
		usleep(5000);
	}
	EQUAL(info.attached, 0);
	usleep(300000);
	CHECK(props(p.cuda).mapped_bytes);
	gate_open(&gate);
	gpu_sync(&gpu);
	gate_free(&gate);
	kvp_grant_release(mine);
	/* And let go when it has come to its end. */
	for (uint32_t i = 0; i < 12000 && props(p.cuda).mapped_bytes; i++)
		usleep(5000);
	EQUAL(props(p.cuda).mapped_bytes, 0);
	putter_free(&p);
}

/*
 * There may be no more blocks than fit into the least memory that a driver gives: what engines' slots take there leaves some for
 * copies, of however many engines.
 */
static void few_places(uint32_t engines)
{
	struct engine *e[2];
	struct kvp_cuda *cuda[2];
	struct kvp_grant *g[2];
	struct kvp_prefix_info info;
	struct kvp_ticket ticket;
	struct kvp_prefix *m;
	int why = -EAGAIN, n = 0;

	for (uint32_t i = 0; i < engines; i++) {
		e[i] = engine_new("cuda-few", KVP_LAYOUT_LCND, 41);
		cuda[i] = gpu_live_open(e[i]);
		g[i] = gpu_live_reserve(e[i], cuda[i]);
	}
	store(e[0], 2 * T, 0);
	m = find_soon(e[0], 2 * T, 2 * T, &info);
	for (uint32_t i = 0; i < 1000 && why; i++) {
		EQUAL(kvp_cuda_warm(m, cuda[0], NULL, &ticket), 0);
		n = kvp_ticket_wait(e[0]->client, ticket, WAIT_MS, &why);
		usleep(10000);
	}
	EQUAL(why, 0);
	EQUAL(n, 2);
	kvp_release(m);
	for (uint32_t i = 0; i < engines; i++) {
		kvp_grant_release(g[i]);
		kvp_cuda_close(cuda[i]);
		engine_free(e[i]);
	}
}

static void test_few_places(void)
{
	few_places(1);
}

static void test_few_places_for_two(void)
{
	few_places(2);
}

int main(int argc, char **argv)
{
	static const struct live_test tests[] = {
		{ "reserved blindly", test_reserved_blindly },
		{ "read in place", test_read_in_place },
		{ "a stream waits", test_stream_wait },
		{ "a step is enqueued early", test_step_early },
		{ "computed there", test_computed_there },
		{ "put there", test_put_there },
		{ "stored there", test_store_there },
		{ "stored by the other", test_store_by_the_other },
	};
	static const struct live_test again[] = {
		{ "pinned early", test_pinned_early },
		{ "computed beside another's", test_computed_beside },
		{ "computed after another's", test_computed_after },
		{ "computed again", test_computed_again },
		{ "computed by the other", test_computed_by_the_other },
	};
	static const struct live_test puts[] = {
		{ "put behind a stream", test_put_behind },
		{ "put, and left", test_put_and_leave },
		{ "put, and closed", test_put_and_close },
		{ "put with all slots out", test_put_slots_out },
		{ "put where there is no room", test_put_displaced },
	};
	static const struct live_test points[] = { { "put, and a run fails", test_put_run_fails } };
	static const struct live_test none[] = { { "put, and no copies", test_put_no_copies } };
	static const struct live_test left[] = { { "put, and the daemon goes", test_put_left } };
	static const struct live_test few[] = { { "few places", test_few_places } };
	static const struct live_test two[] = { { "few places for two", test_few_places_for_two } };
	int r;

	legacy = argc > 1 && strcmp(argv[1], "legacy") == 0;
	gpu_begin(&gpu, NULL);
	if (argc > 1 && strcmp(argv[1], "again") == 0)
		r = live_main(again, sizeof(again) / sizeof(again[0]));
	else if (argc > 1 && strcmp(argv[1], "put") == 0)
		r = live_main(puts, sizeof(puts) / sizeof(puts[0]));
	else if (argc > 1 && strcmp(argv[1], "none") == 0)
		r = live_main(none, sizeof(none) / sizeof(none[0]));
	else if (argc > 1 && strcmp(argv[1], "points") == 0)
		r = live_main(points, sizeof(points) / sizeof(points[0]));
	else if (argc > 1 && strcmp(argv[1], "few") == 0)
		r = live_main(few, sizeof(few) / sizeof(few[0]));
	else if (argc > 1 && strcmp(argv[1], "two") == 0)
		r = live_main(two, sizeof(two) / sizeof(two[0]));
	else if (argc > 1 && strcmp(argv[1], "left") == 0)
		r = live_main(left, sizeof(left) / sizeof(left[0]));
	else
		r = live_main(tests, sizeof(tests) / sizeof(tests[0]));
	return gpu_end(&gpu) || r;
}
