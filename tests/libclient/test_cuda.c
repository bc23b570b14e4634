/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvpool_cuda.h beside a real daemon without devices: cached blocks in DRAM copied to an engine's own device
 * memory and back, on a simulated GPU that reports every misuse.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libclient/kvpool_cuda.h"
#include "shm/kvp_atomic.h"
#include "tests/libclient/gpu.h"
#include "tests/libclient/live.h"

#define BLOCK_BYTES (T * TOKEN_BYTES)

static struct gpu gpu;
/* What the simulated driver can do, and what it does is asked of nobody. */
static struct cudadrv_config machine;

static struct kvp_cuda *cuda_new(struct engine *e, uint64_t stage_bytes)
{
	struct kvp_cuda_opts o = { .size = sizeof(o), .stage_bytes = stage_bytes };
	struct kvp_cuda *cuda;

	EQUAL(kvp_cuda_open(e->client, &o, &cuda), 0);
	return cuda;
}

static struct kvp_cuda_props props(struct kvp_cuda *cuda)
{
	struct kvp_cuda_props p = { .size = sizeof(p) };

	EQUAL(kvp_cuda_info(cuda, &p), 0);
	return p;
}

/* A view of device memory at `base`, whose pointers nobody follows. */
static struct kvp_view device_view(struct engine *e, uint32_t layout, uint64_t base, uint32_t n,
	struct kvp_view_plane planes[2])
{
	uint64_t bytes;

	EQUAL(kvp_view_dense(e->space, layout, (void *)(uintptr_t)base, n, planes, &bytes), 0);
	return (struct kvp_view){ .size = sizeof(struct kvp_view), .planes = planes };
}

static struct kvp_prefix *all(struct engine *e)
{
	struct kvp_prefix_info info;

	return find_soon(e, N, N, &info);
}

/* Tokens [from, from + n) come to the device as kvp_get() has them. */
static void get_and_compare(
	struct engine *e, struct kvp_cuda *cuda, struct kvp_prefix *m, uint32_t from, uint32_t n)
{
	uint64_t at = gpu_alloc(&gpu, (uint64_t)n * TOKEN_BYTES);
	uint8_t *back = malloc((size_t)n * TOKEN_BYTES), *want = malloc((size_t)n * TOKEN_BYTES);
	struct kvp_view_plane planes[2], host[2];
	struct kvp_view h;

	for (uint32_t layout = KVP_VIEW_NCLD; layout <= KVP_VIEW_LBHSD; layout++) {
		(void)device_view(e, layout, at, n, planes);
		h = device_view(e, layout, (uintptr_t)want, n, host);
		memset(want, 0xee, (size_t)n * TOKEN_BYTES);
		gpu_write(&gpu, at, want, (uint64_t)n * TOKEN_BYTES);
		EQUAL(kvp_get(m, from, n, &h, 0), n);
		for (uint32_t done = 0; done < n;) {
			struct kvp_view_plane rest[2];
			struct kvp_view r = { .size = sizeof(r), .planes = rest };
			int64_t got;

			memcpy(rest, planes, sizeof(rest));
			for (uint32_t i = 0; i < 2; i++) {
				rest[i].k = (char *)planes[i].k + done * planes[i].k_token_stride;
				rest[i].v = (char *)planes[i].v + done * planes[i].v_token_stride;
			}
			got = kvp_cuda_get(m, cuda, from + done, n - done, &r, gpu.stream);
			if (got == -EAGAIN)
				gpu_sync(&gpu);
			else
				CHECK(got > 0);
			done += got > 0 ? (uint32_t)got : 0;
		}
		gpu_read(&gpu, back, at, (uint64_t)n * TOKEN_BYTES);
		CHECK(memcmp(back, want, (size_t)n * TOKEN_BYTES) == 0);
	}
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	free(back);
	free(want);
}

/* What is in an arena goes through the library's memory, more than that holds. */
static void test_get_staged(void)
{
	struct engine *e = engine_new("cuda-staged", KVP_LAYOUT_LCND, 1);
	struct kvp_cuda *cuda;
	struct kvp_prefix *m;

	store(e, N, 0);
	cuda = cuda_new(e, 2 * BLOCK_BYTES);
	EQUAL(props(cuda).device, KVP_CUDA_NO_DEVICE);
	EQUAL(props(cuda).stream_words, !machine.no_mem_ops);
	m = all(e);
	get_and_compare(e, cuda, m, 0, N);
	get_and_compare(e, cuda, m, 5, T);
	get_and_compare(e, cuda, m, 3 * T + 1, 2 * T + 7);
	EQUAL(props(cuda).direct_bytes, 0);
	EQUAL(props(cuda).staged_bytes, 3 * (uint64_t)(N + T + 2 * T + 7) * TOKEN_BYTES);
	kvp_release(m);
	kvp_cuda_close(cuda);
	engine_free(e);
}

/* The blocks of a client that has gone lie in vaults; then the device reads them there. */
static struct kvp_prefix *all_registered(struct engine *e, struct kvp_cuda *cuda)
{
	const void *addrs[BLOCKS];

	for (uint32_t i = 0; i < 12000; i++) {
		struct kvp_prefix *m = all(e);
		EQUAL(kvp_host_register(cuda, 0, WAIT_MS), 0);
		EQUAL(props(cuda).refused_bytes, 0);
		if (kvp_host_payloads(m, cuda, 0, BLOCKS, addrs) == BLOCKS)
			return m;
		kvp_release(m);
		usleep(5000);
	}
	give_up();
}

/* Without words it is the library's thread that sees the end of a stream's work. */
static void soon_reached(struct kvp_timeline *line, uint64_t value)
{
	for (uint32_t i = 0; machine.no_mem_ops && i < 60000; i++) {
		if (kvp_timeline_reached(line, value))
			break;
		usleep(1000);
	}
	EQUAL(kvp_timeline_reached(line, value), 1);
}

static void leave_blocks(const char *name, uint32_t layout, uint32_t seed)
{
	struct engine *e = engine_new(name, layout, seed);

	store(e, N, 0);
	engine_free(e);
}

static void test_get_registered(void)
{
	struct engine *e;
	struct kvp_cuda *cuda;
	struct kvp_prefix *m;
	const void *addrs[BLOCKS];
	struct kvp_cuda_piece piece = { .block = 3, .offset = 64, .bytes = 4096 };
	uint8_t back[4096];
	uint64_t at = gpu_alloc(&gpu, sizeof(back));

	leave_blocks("cuda-registered", KVP_LAYOUT_LCND, 2);
	e = engine_new("cuda-registered", KVP_LAYOUT_LCND, 2);
	cuda = cuda_new(e, 0);
	if (machine.no_read_only) {
		EQUAL(kvp_host_register(cuda, 0, WAIT_MS), -EOPNOTSUPP);
		m = all(e);
		EQUAL(kvp_host_payloads(m, cuda, 0, BLOCKS, addrs), 0);
		get_and_compare(e, cuda, m, 0, N);
		EQUAL(props(cuda).direct_bytes, 0);
		kvp_release(m);
		engine_free(e);
		EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
		return;
	}
	m = all(e);
	EQUAL(kvp_host_payloads(m, cuda, 0, BLOCKS, addrs), 0);
	kvp_release(m);
	m = all_registered(e, cuda);
	CHECK(props(cuda).registered_bytes >= N * TOKEN_BYTES);
	EQUAL(props(cuda).refused_bytes, 0);
	get_and_compare(e, cuda, m, 0, N);
	get_and_compare(e, cuda, m, 70, 3);
	EQUAL(props(cuda).staged_bytes, 0);
	EQUAL(props(cuda).direct_bytes, 3 * (uint64_t)(N + 3) * TOKEN_BYTES);
	/* The engine itself, from the same place; and a piece by the library. */
	EQUAL(kvp_host_payloads(m, cuda, 3, 1, addrs), 1);
	EQUAL(gpu.cu.cuMemcpyHtoDAsync_v2(at, addrs[0], sizeof(back), gpu.stream), CU_OK);
	gpu_read(&gpu, back, at, sizeof(back));
	CHECK(memcmp(back, addrs[0], sizeof(back)) == 0);
	piece.device_addr = at;
	EQUAL(kvp_cuda_load(m, cuda, &piece, 1, gpu.stream), 1);
	gpu_read(&gpu, back, at, sizeof(back));
	CHECK(memcmp(back, (const char *)addrs[0] + 64, sizeof(back)) == 0);
	kvp_release(m);
	kvp_cuda_close(cuda);
	engine_free(e);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
}

/* What the driver does not take is read through the library's memory, and counted. */
static void test_registering_refused(void)
{
	const struct cudadrv_fault refuses = { .function = "cuMemHostRegister_v2",
		.program = "test_client_cuda",
		.action = CUDADRV_RETURN,
		.value = 2 };
	const void *addrs[BLOCKS];
	struct engine *e;
	struct kvp_cuda *cuda;
	struct kvp_prefix *m;

	if (machine.no_read_only || gpu_is_real())
		return;
	leave_blocks("cuda-unregistered", KVP_LAYOUT_LCND, 11);
	e = engine_new("cuda-unregistered", KVP_LAYOUT_LCND, 11);
	cuda = cuda_new(e, 0);
	EQUAL(cudadrv_set(gpu.sim, &refuses, NULL), 0);
	m = all(e);
	for (uint32_t i = 0; i < 12000 && !props(cuda).refused_bytes; i++) {
		EQUAL(kvp_host_register(cuda, 0, WAIT_MS), 0);
		EQUAL(kvp_host_payloads(m, cuda, 0, BLOCKS, addrs), 0);
		usleep(5000);
	}
	CHECK(props(cuda).refused_bytes >= N * TOKEN_BYTES);
	EQUAL(props(cuda).registered_bytes, 0);
	get_and_compare(e, cuda, m, 0, N);
	EQUAL(props(cuda).direct_bytes, 0);
	kvp_release(m);
	kvp_cuda_close(cuda);
	EQUAL(cudadrv_clear(gpu.sim), 0);
	engine_free(e);
}

static void test_pieces_wrong(void)
{
	struct engine *e = engine_new("cuda-pieces", KVP_LAYOUT_LCND, 3);
	struct kvp_cuda *cuda = cuda_new(e, 0);
	struct kvp_cuda_piece p[2] = { { .bytes = 64 }, { .bytes = 64 } };
	struct kvp_prefix_info info;
	struct kvp_prefix *m;

	store(e, 2 * T, 0);
	m = find_soon(e, 2 * T, 2 * T, &info);
	p[0].device_addr = p[1].device_addr = gpu_alloc(&gpu, 256);
	p[1].device_addr += 64;
	p[1].block = 2;
	EQUAL(kvp_cuda_load(m, cuda, p, 2, gpu.stream), -ENOENT);
	p[1].block = 1;
	p[1].offset = BLOCK_BYTES - 63;
	EQUAL(kvp_cuda_load(m, cuda, p, 2, gpu.stream), -EINVAL);
	p[1].offset = UINT64_MAX - 10;
	EQUAL(kvp_cuda_load(m, cuda, p, 2, gpu.stream), -EINVAL);
	p[1].offset = 0;
	p[1].bytes = 0;
	EQUAL(kvp_cuda_load(m, cuda, p, 2, gpu.stream), -EINVAL);
	p[1].bytes = 64;
	EQUAL(kvp_cuda_load(NULL, cuda, p, 2, gpu.stream), -EINVAL);
	EQUAL(kvp_cuda_load(m, NULL, p, 2, gpu.stream), -EINVAL);
	EQUAL(props(cuda).staged_bytes, 0);
	EQUAL(kvp_cuda_load(m, cuda, p, 2, gpu.stream), 2);
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFree_v2(p[0].device_addr), CU_OK);
	kvp_release(m);
	kvp_cuda_close(cuda);
	engine_free(e);
}

/* Device memory becomes blocks, in calls that take as much as there is room for. */
static void test_put(void)
{
	struct engine *e = engine_new("cuda-put", KVP_LAYOUT_NCLD, 4);
	struct engine *other = engine_new("cuda-put", KVP_LAYOUT_NCLD, 4);
	struct kvp_cuda *cuda = cuda_new(e, 3 * BLOCK_BYTES);
	uint64_t at = gpu_alloc(&gpu, (uint64_t)N * TOKEN_BYTES), value = 0, last = 0;
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct kvp_view_plane planes[2];
	struct kvp_view v = device_view(e, KVP_VIEW_NCLD, at, N, planes);
	struct kvp_timeline *line;
	struct kvp_prefix *m;

	EQUAL(kvp_timeline_new(e->client, &line), 0);
	gpu_write(&gpu, at, e->kv, (uint64_t)N * TOKEN_BYTES);
	for (uint32_t from = 0, tries = 0; from < N; tries++) {
		struct kvp_view_plane rest[2];
		int64_t n;

		CHECK(tries < 60000);
		memcpy(rest, planes, sizeof(rest));
		for (uint32_t i = 0; i < 2; i++) {
			rest[i].k = (char *)planes[i].k + from * planes[i].k_token_stride;
			rest[i].v = (char *)planes[i].v + from * planes[i].v_token_stride;
		}
		v.planes = rest;
		n = kvp_cuda_put(
			e->space, cuda, e->tokens, N, from, &v, &o, gpu.stream, line, &value, NULL);
		if (n == -EAGAIN) {
			usleep(1000);
			continue;
		}
		CHECK(n > 0);
		CHECK(value > last);
		last = value;
		from += (uint32_t)n;
	}
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	EQUAL(kvp_timeline_reached(line, value), 1);
	m = all(other);
	same_bytes(other, m, N);
	kvp_release(m);
	/* It is there: nothing is enqueued. */
	value = 77;
	v.planes = planes;
	EQUAL(kvp_cuda_put(e->space, cuda, e->tokens, N, 0, &v, &o, gpu.stream, line, &value, NULL),
		N);
	EQUAL(value, 77);
	EQUAL(kvp_timeline_advance(line, 1000), -EINVAL);
	EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &value), -EINVAL);
	kvp_timeline_free(line);
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_cuda_close(cuda);
	engine_free(other);
	engine_free(e);
}

/* Tokens [from, N) of what lies at `at`. */
static int64_t put_from(struct engine *e, struct kvp_cuda *cuda, uint64_t at, uint32_t from,
	struct kvp_timeline *line)
{
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct kvp_view_plane planes[2];
	struct kvp_view v = device_view(e, KVP_VIEW_NCLD, at, N, planes);
	uint64_t value;

	for (uint32_t i = 0; i < 2; i++) {
		planes[i].k = (char *)planes[i].k + from * planes[i].k_token_stride;
		planes[i].v = (char *)planes[i].v + from * planes[i].v_token_stride;
	}
	return kvp_cuda_put(
		e->space, cuda, e->tokens, N, from, &v, &o, gpu.stream, line, &value, NULL);
}

/* A put whose bytes find no room in the library's memory gives the slot back that it had for them. */
static void test_put_no_room(void)
{
	struct engine *e = engine_new("cuda-put-no-room", KVP_LAYOUT_NCLD, 14);
	struct kvp_cuda *cuda = cuda_new(e, 3 * BLOCK_BYTES);
	uint64_t at = gpu_alloc(&gpu, (uint64_t)N * TOKEN_BYTES);
	struct kvp_timeline *line;
	uint32_t from = 0;
	int64_t n;

	EQUAL(kvp_timeline_new(e->client, &line), 0);
	gpu_write(&gpu, at, e->kv, (uint64_t)N * TOKEN_BYTES);
	gpu_hold(&gpu);
	while ((n = put_from(e, cuda, at, from, line)) > 0)
		from += (uint32_t)n;
	CHECK(from > 0 && from < N);
	for (uint32_t i = 0; i < 2 * KVP_CLIENT_GRANTS; i++)
		EQUAL(put_from(e, cuda, at, from, line), -EAGAIN);
	gpu_go(&gpu);
	for (uint32_t tries = 0; from < N; tries++) {
		CHECK(tries < 60000);
		n = put_from(e, cuda, at, from, line);
		CHECK(n > 0 || n == -EAGAIN);
		from += n > 0 ? (uint32_t)n : 0;
		usleep(1000);
	}
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	kvp_timeline_free(line);
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_cuda_close(cuda);
	engine_free(e);
}

static void test_store(void)
{
	struct engine *e = engine_new("cuda-store", KVP_LAYOUT_NCLD, 5);
	struct engine *other = engine_new("cuda-store", KVP_LAYOUT_NCLD, 5);
	struct kvp_cuda *cuda = cuda_new(e, 0);
	uint64_t at = gpu_alloc(&gpu, 2 * BLOCK_BYTES), value = 0;
	struct kvp_cuda_piece p[4];
	struct kvp_grant *g[2];
	struct kvp_timeline *line;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;
	struct kvp_ref ref;

	EQUAL(kvp_timeline_new(e->client, &line), 0);
	gpu_write(&gpu, at, e->kv, 2 * BLOCK_BYTES);
	EQUAL(kvp_reserve_run(e->space, 2, WAIT_MS, NULL, g), 2);
	for (uint32_t i = 0; i < 4; i++)
		p[i] = (struct kvp_cuda_piece){ .block = i / 2,
			.offset = i % 2 * BLOCK_BYTES / 2,
			.bytes = BLOCK_BYTES / 2,
			.device_addr = at + i * BLOCK_BYTES / 2 };
	p[3].block = 2;
	EQUAL(kvp_cuda_store(cuda, g, 2, p, 4, gpu.stream, line, &value), -EINVAL);
	p[3].block = 1;
	p[3].offset++;
	EQUAL(kvp_cuda_store(cuda, g, 2, p, 4, gpu.stream, line, &value), -EINVAL);
	p[3].offset--;
	/* The device is slow: nothing is there, and nothing is published. */
	gpu_hold(&gpu);
	EQUAL(kvp_cuda_store(cuda, g, 2, p, 4, gpu.stream, line, &value), 4);
	EQUAL(kvp_commit_after(g[0], kvp_ref_root(), e->tokens, T, NULL, 0, line, value), 0);
	EQUAL(kvp_grant_ref(g[0], &ref), 0);
	EQUAL(kvp_commit_after(g[1], ref, e->tokens + T, T, NULL, KVP_COMMIT_RELEASE, line, value),
		0);
	EQUAL(kvp_grant_release_after(g[0], line, value), 0);
	usleep(20000);
	EQUAL(kvp_timeline_reached(line, value), 0);
	m = find(other, 2 * T, 0, &info);
	EQUAL(info.n_blocks, 0);
	kvp_release(m);
	gpu_go(&gpu);
	m = find_soon(other, 2 * T, 2 * T, &info);
	same_bytes(other, m, 2 * T);
	kvp_release(m);
	EQUAL(kvp_timeline_reached(line, value), 1);
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_timeline_free(line);
	kvp_cuda_close(cuda);
	engine_free(other);
	engine_free(e);
}

/* A lease ends, and a block is published, when a stream has come to a mark. */
static void test_mark(void)
{
	struct engine *e = engine_new("cuda-mark", KVP_LAYOUT_NCLD, 6);
	struct kvp_cuda *cuda = cuda_new(e, 0);
	uint64_t value = 0, second = 0, at = gpu_alloc(&gpu, 4096);
	struct kvp_prefix_info info;
	struct kvp_timeline *line;
	struct kvp_prefix *m;
	struct kvp_grant *g;
	void *pinned;

	EQUAL(kvp_timeline_new(e->client, &line), 0);
	EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &value), 0);
	EQUAL(value, 1);
	gpu_sync(&gpu);
	soon_reached(line, value);
	EQUAL(kvp_timeline_reached(line, value + 1), 0);
	EQUAL(kvp_timeline_advance(line, 100), -EINVAL);
	gpu_hold(&gpu);
	store(e, T, 0);
	m = find_soon(e, T, T, &info);
	EQUAL(kvp_reserve(e->space, WAIT_MS, NULL, &g), 0);
	memcpy(kvp_grant_addr(g), e->kv + BLOCK_BYTES, BLOCK_BYTES);
	EQUAL(gpu.cu.cuMemHostAlloc(&pinned, 4096, 0), CU_OK);
	EQUAL(gpu.cu.cuMemcpyDtoHAsync_v2(pinned, at, 4096, gpu.stream), CU_OK);
	EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &second), 0);
	EQUAL(second, 2);
	EQUAL(kvp_commit_after(
		      g, kvp_ref_root(), e->tokens + T, T, NULL, KVP_COMMIT_RELEASE, line, second),
		0);
	EQUAL(kvp_release_after(m, line, second), 0);
	usleep(10000);
	EQUAL(kvp_timeline_reached(line, second), 0);
	EQUAL(kvp_match(e->space, e->tokens + T, T, NULL, &m), 0);
	EQUAL(kvp_match_info(m, &info), 0);
	EQUAL(info.n_blocks, 0);
	kvp_release(m);
	gpu_go(&gpu);
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	EQUAL(kvp_timeline_reached(line, second), 1);
	EQUAL(kvp_match(e->space, e->tokens + T, T, NULL, &m), 0);
	EQUAL(kvp_match_info(m, &info), 0);
	EQUAL(info.n_blocks, 1);
	kvp_release(m);
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFreeHost(pinned), CU_OK);
	EQUAL(kvp_timeline_advance(line, 100), -EINVAL);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_cuda_close(cuda);
	/* The host's again. */
	EQUAL(kvp_timeline_advance(line, 100), 0);
	EQUAL(kvp_timeline_reached(line, 100), 1);
	kvp_timeline_free(line);
	engine_free(e);
}

/*
 * Without words a mark is an event in the same row as the library's memory, of which it has none: when it
 * comes late, room that was given out meanwhile is not free for that.
 */
static void test_mark_late(void)
{
	struct engine *e = engine_new("cuda-mark-late", KVP_LAYOUT_LCND, 10);
	struct kvp_cuda *cuda = cuda_new(e, BLOCK_BYTES);
	uint64_t at = gpu_alloc(&gpu, 3 * BLOCK_BYTES), value = 0;
	uint8_t back[BLOCK_BYTES], want[BLOCK_BYTES];
	struct kvp_view_plane planes[2], rest[2], host[2];
	struct kvp_view v = device_view(e, KVP_VIEW_LCND, at, T, planes);
	struct kvp_view r = device_view(e, KVP_VIEW_LCND, at + BLOCK_BYTES, T, rest);
	struct kvp_view h = device_view(e, KVP_VIEW_LCND, (uintptr_t)want, T, host);
	struct kvp_prefix_info info;
	struct CUstream_st *late;
	struct kvp_timeline *line;
	struct kvp_prefix *m;
	int64_t got = 0;
	void *pinned;

	store(e, 2 * T, 0);
	m = find_soon(e, 2 * T, 2 * T, &info);
	EQUAL(kvp_timeline_new(e->client, &line), 0);
	EQUAL(gpu.cu.cuStreamCreate(&late, CU_STREAM_ASYNC), CU_OK);
	EQUAL(gpu.cu.cuMemHostAlloc(&pinned, 4096, 0), CU_OK);
	EQUAL(kvp_cuda_get(m, cuda, 0, T / 4, &r, gpu.stream), T / 4);
	gpu_sync(&gpu);
	cudadrv_stall(gpu.sim, 0, 1, 1);
	EQUAL(gpu.cu.cuMemcpyDtoHAsync_v2(pinned, at + 2 * BLOCK_BYTES, 4096, late), CU_OK);
	EQUAL(kvp_cuda_mark(cuda, line, late, &value), 0);
	cudadrv_stall(gpu.sim, 0, 0, 1);
	/* All of the memory, once what the first one had is free. */
	for (uint32_t i = 0; i < 60000 && got <= 0; i++) {
		got = kvp_cuda_get(m, cuda, 0, T, &v, gpu.stream);
		CHECK(got == T || got == -EAGAIN);
		usleep(got < 0 ? 1000 : 0);
	}
	if (got == T) {
		cudadrv_stall(gpu.sim, 0, 1, 0);
		EQUAL(gpu.cu.cuStreamSynchronize(late), CU_OK);
		soon_reached(line, value);
		usleep(20000);
		EQUAL(kvp_cuda_get(m, cuda, T, T / 4, &r, gpu.stream), -EAGAIN);
	}
	cudadrv_stall(gpu.sim, 0, 1, 0);
	cudadrv_stall(gpu.sim, 0, 0, 0);
	gpu_read(&gpu, back, at, sizeof(back));
	EQUAL(kvp_get(m, 0, T, &h, 0), T);
	EQUAL(got, T);
	CHECK(memcmp(back, want, sizeof(back)) == 0);
	kvp_release(m);
	EQUAL(gpu.cu.cuStreamSynchronize(late), CU_OK);
	EQUAL(gpu.cu.cuStreamDestroy_v2(late), CU_OK);
	EQUAL(gpu.cu.cuMemFreeHost(pinned), CU_OK);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_timeline_free(line);
	kvp_cuda_close(cuda);
	engine_free(e);
}

/* What a step of an engine calls costs no call of the driver that might wait, map or allocate. */
static void test_quick(void)
{
	struct engine *e = engine_new("cuda-quick", KVP_LAYOUT_LCND, 7);
	struct kvp_cuda *cuda = cuda_new(e, 0);
	uint64_t at = gpu_alloc(&gpu, (uint64_t)N * TOKEN_BYTES), value, put = 0, before;
	struct kvp_timeline *line, *puts;
	struct kvp_view_plane planes[2];
	struct kvp_view v = device_view(e, KVP_VIEW_LCND, at, N, planes);
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct kvp_prefix *m;

	EQUAL(kvp_timeline_new(e->client, &line), 0);
	EQUAL(kvp_timeline_new(e->client, &puts), 0);
	store(e, N / T / 2 * T, 0);
	gpu_write(&gpu, at, e->kv, (uint64_t)N * TOKEN_BYTES);
	EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &value), 0);
	before = gpu_slow_calls(&gpu);
	for (uint32_t i = 0; i < 50; i++) {
		m = find_soon(e, T, T, &(struct kvp_prefix_info){ 0 });
		EQUAL(kvp_cuda_get(m, cuda, 0, T, &v, gpu.stream), T);
		EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &value), 0);
		EQUAL(kvp_release_after(m, line, value), 0);
	}
	CHECK(kvp_cuda_put(e->space, cuda, e->tokens, N, 0, &v, &o, gpu.stream, puts, &put, NULL) >
		0);
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	EQUAL(gpu_slow_calls(&gpu), before);
	gpu_sync(&gpu);
	soon_reached(line, value);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_close(e->client); /* with what is left open */
	free(e->kv);
	free(e);
}

static void test_refused(void)
{
	struct engine *e = engine_new("cuda-refused", KVP_LAYOUT_LCND, 8);
	struct kvp_cuda *many[KVP_CLIENT_CUDAS], *cuda;
	char why[KVP_ERROR_TEXT];
	struct kvp_cuda_opts o = {
		.size = sizeof(o), .stage_bytes = 1 << 20, .error = why, .error_bytes = sizeof(why)
	};
	struct kvp_timeline *line;
	struct CUgraph_st *graph;
	struct kvp_view_plane planes[2];
	struct kvp_view v;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;
	uint64_t at = gpu_alloc(&gpu, BLOCK_BYTES), value;
	int32_t slot;
	int status;
	pid_t pid;

	store(e, T, 0);
	m = find_soon(e, T, T, &info);
	v = device_view(e, KVP_VIEW_LCND, at, T, planes);
	for (uint32_t i = 0; i < KVP_CLIENT_CUDAS; i++)
		EQUAL(kvp_cuda_open(e->client, &o, &many[i]), 0);
	EQUAL(kvp_cuda_open(e->client, &o, &cuda), -EMFILE);
	for (uint32_t i = 1; i < KVP_CLIENT_CUDAS; i++)
		kvp_cuda_close(many[i]);
	cuda = many[0];
	EQUAL(kvp_cuda_open(NULL, &o, &cuda), -EINVAL);
	o.stage_bytes = 1;
	EQUAL(kvp_cuda_open(e->client, &o, &many[1]), -EINVAL);
	o.stage_bytes = 0;
	EQUAL(gpu.cu.cuCtxSetCurrent(NULL), CU_OK);
	EQUAL(kvp_cuda_open(e->client, &o, &many[1]), -EINVAL);
	CHECK(strstr(why, "context"));
	/* Another thread's context need not be ours, nor any. */
	EQUAL(kvp_cuda_get(m, cuda, 0, T, &v, gpu.stream), T);
	o.context = gpu.cu.ctx;
	EQUAL(kvp_cuda_open(e->client, &o, &many[1]), 0);
	kvp_cuda_close(many[1]);
	EQUAL(gpu.cu.cuCtxSetCurrent(gpu.cu.ctx), CU_OK);

	EQUAL(kvp_timeline_new(e->client, &line), 0);
	EQUAL(kvp_cuda_slots(m, cuda, 0, 1, 0, &slot), -ENODEV);
	EQUAL(kvp_cuda_warm(m, cuda, NULL, &(struct kvp_ticket){ { 0 } }), -ENODEV);
	EQUAL(kvp_cuda_stream_wait(cuda, gpu.stream, (struct kvp_ticket){ { 0 } }), -EINVAL);
	EQUAL(kvp_cuda_get(m, cuda, T, 1, &v, gpu.stream), 0);
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuStreamBeginCapture_v2(gpu.stream, CU_CAPTURE_LOCAL), CU_OK);
	EQUAL(kvp_cuda_get(m, cuda, 0, T, &v, gpu.stream), -EBUSY);
	EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &value), -EBUSY);
	EQUAL(gpu.cu.cuStreamEndCapture(gpu.stream, &graph), CU_OK);
	EQUAL(gpu.cu.cuGraphDestroy(graph), CU_OK);
	EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &value), 0);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid)
		_exit(kvp_cuda_get(m, cuda, 0, T, &v, gpu.stream) != -ECHILD ||
			kvp_cuda_mark(cuda, line, gpu.stream, &value) != -ECHILD ||
			kvp_cuda_info(cuda, &(struct kvp_cuda_props){ .size = 8 }) != -ECHILD ||
			kvp_cuda_open(e->client, NULL, &cuda) != -ECHILD || kvp_cuda_close(cuda));
	EQUAL(waitpid(pid, &status, 0), pid);
	EQUAL(status, 0);
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_release(m);
	kvp_cuda_close(cuda);
	engine_free(e);
}

/*
 * The device is lost while bytes are on their way: what was to be published then never is, calls say so,
 * and all can be closed. In a process of its own, which gets nothing but errors from then on.
 */
static void lose(void)
{
	struct engine *e = engine_new("cuda-lost", KVP_LAYOUT_NCLD, 9);
	struct kvp_cuda *cuda = cuda_new(e, 0);
	uint64_t at = gpu_alloc(&gpu, BLOCK_BYTES), value = 0, marked = 0, gate_there;
	void *gate;
	const struct cudadrv_fault fault = { .function = "op:copy",
		.program = "test_client_cuda",
		.action = CUDADRV_STICKY,
		.value = 700 };
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct kvp_view_plane planes[2];
	struct kvp_view v = device_view(e, KVP_VIEW_NCLD, at, T, planes);
	struct kvp_timeline *puts, *marks;
	struct kvp_prefix_info info;
	struct kvp_prefix *m;
	int64_t r = T;

	EQUAL(kvp_timeline_new(e->client, &puts), 0);
	EQUAL(kvp_timeline_new(e->client, &marks), 0);
	/* The stream waits until all of the put is enqueued. */
	EQUAL(gpu.cu.cuMemHostAlloc(&gate, 4096, CU_REG_DEVICEMAP), CU_OK);
	kvp_store_relaxed((_Atomic(uint64_t) *)gate, 0);
	EQUAL(gpu.cu.cuMemHostGetDevicePointer_v2(&gate_there, gate, 0), CU_OK);
	EQUAL(gpu.cu.cuStreamWaitValue64_v2(gpu.stream, gate_there, 1, CU_WAIT_GEQ), CU_OK);
	EQUAL(kvp_cuda_put(e->space, cuda, e->tokens, T, 0, &v, &o, gpu.stream, puts, &value, NULL),
		T);
	EQUAL(cudadrv_set(gpu.sim, &fault, NULL), 0);
	kvp_store_release((_Atomic(uint64_t) *)gate, 1);
	for (uint32_t i = 0; i < 60000 && r != -ENODEV; i++) {
		usleep(1000);
		r = kvp_cuda_mark(cuda, marks, gpu.stream, &marked);
	}
	EQUAL(r, -ENODEV);
	EQUAL(kvp_cuda_put(
		      e->space, cuda, e->tokens + T, T, 0, &v, &o, gpu.stream, puts, &value, NULL),
		-ENODEV);
	CHECK(props(cuda).driver_error != 0);
	usleep(20000);
	EQUAL(kvp_timeline_reached(puts, value), 0);
	m = find(e, T, 0, &info);
	EQUAL(info.n_blocks, 0);
	kvp_release(m);
	kvp_cuda_close(cuda);
	kvp_timeline_free(puts);
	/* What needs no device goes on; what waits for it is waited for in vain. */
	EQUAL(kvp_flush(e->client, 50), -ETIMEDOUT);
	EQUAL(kvp_put(e->space, e->tokens + T, T, 0, &e->view, &o, NULL), T);
	for (uint32_t i = 0; i < 12000; i++) {
		EQUAL(kvp_match(e->space, e->tokens + T, T, NULL, &m), 0);
		EQUAL(kvp_match_info(m, &info), 0);
		kvp_release(m);
		if (info.n_blocks)
			break;
		usleep(5000);
	}
	EQUAL(info.n_blocks, 1);
	engine_free(e);
	_exit(0);
}

/* What the library's thread does at the driver takes as long as it takes: a block is published at its mark meanwhile. */
static void test_mark_beside(void)
{
	const struct cudadrv_fault hangs = { .function = "cuMemHostRegister_v2",
		.program = "test_client_cuda",
		.action = CUDADRV_HANG };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct engine *e;
	struct kvp_cuda *cuda;
	struct kvp_timeline *line;
	struct kvp_prefix *m, *held;
	struct kvp_grant *g;
	uint32_t fault, own[T];
	uint64_t value;

	if (machine.no_read_only || machine.no_mem_ops)
		return;
	leave_blocks("cuda-mark-beside", KVP_LAYOUT_LCND, 15);
	e = engine_new("cuda-mark-beside", KVP_LAYOUT_LCND, 15);
	cuda = cuda_new(e, 0);
	for (uint32_t i = 0; i < T; i++)
		own[i] = 900000 + i;
	EQUAL(kvp_timeline_new(e->client, &line), 0);
	EQUAL(kvp_reserve(e->space, WAIT_MS, NULL, &g), 0);
	memset(kvp_grant_addr(g), 1, BLOCK_BYTES);
	EQUAL(cudadrv_set(gpu.sim, &hangs, &fault), 0);
	held = all(e);
	for (uint32_t i = 0; i < 12000 && !cudadrv_hit(gpu.sim, fault); i++) {
		(void)kvp_host_register(cuda, 0, 1);
		usleep(5000);
	}
	EQUAL(cudadrv_hit(gpu.sim, fault), 1);
	EQUAL(kvp_cuda_mark(cuda, line, gpu.stream, &value), 0);
	EQUAL(kvp_commit_after(g, kvp_ref_root(), own, T, NULL, KVP_COMMIT_RELEASE, line, value),
		0);
	EQUAL(kvp_flush(e->client, WAIT_MS), 0);
	EQUAL(kvp_match(e->space, own, T, NULL, &m), 0);
	EQUAL(kvp_match_info(m, &info), 0);
	EQUAL(info.n_blocks, 1);
	kvp_release(m);
	EQUAL(cudadrv_hit(gpu.sim, fault), 1);
	EQUAL(cudadrv_clear(gpu.sim), 0);
	kvp_release(held);
	kvp_timeline_free(line);
	kvp_cuda_close(cuda);
	engine_free(e);
}

static int machine_of(const char *name)
{
	cudadrv_defaults(&machine);
	machine.no_mem_ops = strcmp(name, "no-words") == 0;
	machine.no_read_only = strcmp(name, "no-read-only") == 0;
	machine.same_address = strcmp(name, "same-address") == 0;
	if (strcmp(name, "old") == 0)
		machine.driver_version = 12040;
	return strcmp(name, "lost") == 0;
}

int main(int argc, char **argv)
{
	static const struct live_test tests[] = {
		{ "get through the library's memory", test_get_staged },
		{ "get from registered vaults", test_get_registered },
		{ "registering is refused", test_registering_refused },
		{ "pieces that are wrong", test_pieces_wrong },
		{ "put", test_put },
		{ "put without room", test_put_no_room },
		{ "store", test_store },
		{ "mark", test_mark },
		{ "no slow call", test_quick },
		{ "refused", test_refused },
		{ "a mark that comes late", test_mark_late },
		{ "a mark beside a call that takes long", test_mark_beside },
	};
	/* The last ones stop the device's engines, and calls. */
	const size_t n = sizeof(tests) / sizeof(tests[0]) - 2 * gpu_is_real();
	int r, lost = machine_of(argc > 1 ? argv[1] : "");

	gpu_begin(&gpu, &machine);
	if (lost)
		lose();
	r = live_main(tests, n);
	return gpu_end(&gpu) || r;
}
