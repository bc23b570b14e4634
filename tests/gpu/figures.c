/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kvpool_cuda.h costs beside a real daemon with memory on a GPU, in the shape of an 8B model: 32 layers of 8
 * KV heads of 128, bf16, 128 KiB a token. Prints figures and judges none but that every byte is right. To be run
 * by tests/gpu/device beside a daemon of its own; needs twice the prompt in DRAM, three times in device memory.
 *
 *	figures [TOKENS]	of the prompt, a multiple of 64 (default 32768)
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libclient/client.h"
#include "libclient/kvpool_cuda.h"
#include "shm/kvp_atomic.h"
#include "tests/libclient/gpu.h"
#include "tests/libclient/live.h"

#define LAYERS  32u
#define HEADS   8u
#define DIM     128u
#define TOKEN   ((uint64_t)LAYERS * 2 * HEADS * DIM * 2)
#define BLOCK   (T * TOKEN)
#define STEPS   2000u
#define COMMITS 200u
#define PUTS    4u
#define FILL    (UINT64_C(1) << 20) /* words that are alike in device memory */

static struct gpu gpu;
static uint32_t n_tokens = 32768;
static uint32_t *tokens;

struct user {
	struct kvp_client *client;
	struct kvp_space *space;
	struct kvp_cuda *cuda;
};

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void spread(const char *what, double *us, uint32_t n)
{
	qsort(us, n, sizeof(*us), by_value);
	printf("%-58s p50 %8.2f us  p99 %8.2f us  (%u)\n", what, us[n / 2], us[n - 1 - n / 100], n);
}

static void rate(const char *what, double us)
{
	printf("%-58s %8.1f ms  %6.2f GB/s\n", what, us * 1e-3,
		(double)n_tokens * (double)TOKEN / us * 1e-3);
}

static struct user user_new(void)
{
	static struct kvp_layer all[LAYERS];
	struct kvp_space_desc d = { .size = sizeof(d),
		.model = "8b-shape",
		.dtype = KVP_DTYPE_BF16,
		.layout = KVP_LAYOUT_LCND,
		.n_layers = LAYERS,
		.layers = all,
		.rope_pairing = KVP_ROPE_HALF_SPLIT,
		.rope_dim = DIM,
		.rope_theta = 500000 };
	struct kvp_cuda_opts o = { .size = sizeof(o), .stage_bytes = UINT64_C(256) << 20 };
	struct user u;

	for (uint32_t i = 0; i < LAYERS; i++)
		all[i] = (struct kvp_layer){
			.index = i, .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM
		};
	EQUAL(kvp_open(NULL, &u.client), 0);
	EQUAL(kvp_space_open(u.client, &d, KVP_DEFAULT_TIMEOUT, &u.space), 0);
	EQUAL(kvp_cuda_open(u.client, &o, &u.cuda), 0);
	return u;
}

static void user_free(struct user *u)
{
	kvp_cuda_close(u->cuda);
	kvp_space_close(u->space);
	kvp_close(u->client);
}

static struct kvp_cuda_props props(struct kvp_cuda *cuda)
{
	struct kvp_cuda_props p = { .size = sizeof(p) };

	EQUAL(kvp_cuda_info(cuda, &p), 0);
	return p;
}

static struct kvp_prefix *match_of(struct user *u, uint32_t flags, struct kvp_prefix_info *ret_info)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = flags };
	struct kvp_prefix *m;

	ret_info->size = sizeof(*ret_info);
	EQUAL(kvp_match(u->space, tokens, n_tokens, &o, &m), 0);
	EQUAL(kvp_match_info(m, ret_info), 0);
	return m;
}

static struct kvp_prefix *all_of(struct user *u)
{
	struct kvp_prefix_info info;

	for (uint32_t i = 0; i < 4000; i++) {
		struct kvp_prefix *m = match_of(u, 0, &info);

		if (info.n_tokens == n_tokens)
			return m;
		kvp_release(m);
		usleep(5000);
	}
	EQUAL(info.n_tokens, n_tokens);
	return NULL;
}

/* ---- the engine's own cache: dense, layer by layer ---- */

static struct kvp_view view_at(
	struct user *u, uint64_t at, uint32_t from, struct kvp_view_plane planes[LAYERS])
{
	uint64_t bytes;

	EQUAL(kvp_view_dense(
		      u->space, KVP_VIEW_LCND, (void *)(uintptr_t)at, n_tokens, planes, &bytes),
		0);
	for (uint32_t i = 0; i < LAYERS; i++) {
		planes[i].k = (char *)planes[i].k + from * planes[i].k_token_stride;
		planes[i].v = (char *)planes[i].v + from * planes[i].v_token_stride;
	}
	return (struct kvp_view){ .size = sizeof(struct kvp_view), .planes = planes };
}

static void fill_device(uint64_t at)
{
	const uint64_t bytes = n_tokens * TOKEN;

	for (uint64_t off = 0, i = 1; off < bytes; off += FILL, i++)
		EQUAL(gpu.cu.cuMemsetD8Async(
			      at + off, (unsigned char)(i * 37 + i / 256), FILL, gpu.stream),
			CU_OK);
	gpu_sync(&gpu);
}

static void same_device(uint64_t a, uint64_t b)
{
	const uint64_t part = UINT64_C(64) << 20, bytes = n_tokens * TOKEN;
	void *x = malloc(part), *y = malloc(part);

	for (uint64_t off = 0; off < bytes; off += part) {
		const uint64_t n = bytes - off < part ? bytes - off : part;

		gpu_read(&gpu, x, a + off, n);
		gpu_read(&gpu, y, b + off, n);
		CHECK(memcmp(x, y, n) == 0);
	}
	free(x);
	free(y);
}

static void get_all(struct user *u, struct kvp_prefix *m, uint64_t at, const char *what)
{
	const double began = now_us();
	uint64_t direct = props(u->cuda).direct_bytes;
	struct kvp_view_plane planes[LAYERS];

	for (uint32_t done = 0; done < n_tokens;) {
		struct kvp_view v = view_at(u, at, done, planes);
		int64_t n = kvp_cuda_get(m, u->cuda, done, n_tokens - done, &v, gpu.stream);

		CHECK(n > 0 || n == -EAGAIN);
		done += n > 0 ? (uint32_t)n : 0;
	}
	gpu_sync(&gpu);
	rate(what, now_us() - began);
	direct = props(u->cuda).direct_bytes - direct;
	if (direct < n_tokens * TOKEN)
		printf("    %.0f%% of it through the library's memory\n",
			100 - 100 * (double)direct / ((double)n_tokens * (double)TOKEN));
}

/* ---- the figures ---- */

static void put_all(struct user *u, uint64_t at)
{
	const double began = now_us();
	struct kvp_put_opts o = { .size = sizeof(o), .timeout_ms = WAIT_MS };
	struct kvp_view_plane planes[LAYERS];
	struct kvp_timeline *line;
	uint64_t value = 0;

	EQUAL(kvp_timeline_new(u->client, &line), 0);
	for (uint32_t from = 0; from < n_tokens;) {
		struct kvp_view v = view_at(u, at, from, planes);
		int64_t n = kvp_cuda_put(u->space, u->cuda, tokens, n_tokens, from, &v, &o,
			gpu.stream, line, &value, NULL);

		CHECK(n > 0 || n == -EAGAIN);
		if (n < 0)
			usleep(200);
		from += n > 0 ? (uint32_t)n : 0;
	}
	EQUAL(kvp_flush(u->client, WAIT_MS), 0);
	rate("put: device to DRAM, published", now_us() - began);
	kvp_timeline_free(line);
}

/* The first quarter of the prompt's bytes, under tokens of their own, into what the daemon has on the device. */
static void put_there(struct user *u, uint64_t at, const uint32_t *own, uint32_t n)
{
	struct kvp_put_opts o = {
		.size = sizeof(o), .flags = KVP_PUT_ON_DEVICE, .timeout_ms = WAIT_MS
	};
	const struct kvp_cuda_props before = props(u->cuda);
	const double began = now_us();
	struct kvp_view_plane planes[LAYERS];
	struct kvp_timeline *line;
	double called, copied, all;
	uint64_t value = 0;

	EQUAL(kvp_timeline_new(u->client, &line), 0);
	for (uint32_t from = 0; from < n;) {
		struct kvp_view v = view_at(u, at, from, planes);
		int64_t r = kvp_cuda_put(
			u->space, u->cuda, own, n, from, &v, &o, gpu.stream, line, &value, NULL);

		CHECK(r > 0 || r == -EAGAIN);
		if (r < 0)
			usleep(200);
		from += r > 0 ? (uint32_t)r : 0;
	}
	called = now_us();
	gpu_sync(&gpu);
	copied = now_us();
	EQUAL(kvp_flush(u->client, WAIT_MS), 0);
	all = now_us();
	printf("%-58s %8.1f ms  %6.2f GB/s\n",
		"put: device to the daemon's memory there, published", (all - began) * 1e-3,
		(double)n * (double)TOKEN / (all - began) * 1e-3);
	printf("    the calls %.2f ms, copied after %.2f ms (%.2f GB/s); %llu MiB there, %llu of "
	       "%u blocks to DRAM\n",
		(called - began) * 1e-3, (copied - began) * 1e-3,
		(double)n * (double)TOKEN / (copied - began) * 1e-3,
		(unsigned long long)((props(u->cuda).placed_bytes - before.placed_bytes) >> 20),
		(unsigned long long)(props(u->cuda).displaced_blocks - before.displaced_blocks),
		n / T);
	kvp_timeline_free(line);
}

/* All of the prompt's bytes in memory of the engine's own: the first tokens from that, the others from the prompt. */
static void same_there(struct user *u, struct kvp_prefix *m, uint64_t a, uint64_t b,
	const uint32_t *own, uint32_t n)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_DEVICE };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_view_plane planes[LAYERS];
	struct kvp_prefix *mine = NULL;

	for (uint32_t i = 0; i < 4000; i++) {
		EQUAL(kvp_match(u->space, own, n, &o, &mine), 0);
		EQUAL(kvp_match_info(mine, &info), 0);
		if (info.n_tokens == n)
			break;
		kvp_release(mine);
		usleep(5000);
	}
	EQUAL(info.n_tokens, n);
	EQUAL(gpu.cu.cuMemsetD8Async(b, 0, n_tokens * TOKEN, gpu.stream), CU_OK);
	for (uint32_t done = 0; done < n_tokens;) {
		struct kvp_view v = view_at(u, b, done, planes);
		int64_t r =
			done < n ? kvp_cuda_get(mine, u->cuda, done, n - done, &v, gpu.stream)
				 : kvp_cuda_get(m, u->cuda, done, n_tokens - done, &v, gpu.stream);

		CHECK(r > 0 || r == -EAGAIN);
		done += r > 0 ? (uint32_t)r : 0;
	}
	same_device(a, b);
	kvp_release(mine);
}

/* Again and again: at first the daemon makes its memory meanwhile, and the client maps it. */
static void puts_there(struct user *u, struct kvp_prefix *m, uint64_t a, uint64_t b)
{
	const uint32_t n = n_tokens / 4 / T * T;
	uint32_t *own = calloc(n, sizeof(*own));

	for (uint32_t round = 0; round < PUTS; round++) {
		for (uint32_t i = 0; i < n; i++)
			own[i] = (1 + round) * 500000000 + i * 3;
		put_there(u, a, own, n);
		if (round == PUTS - 1)
			same_there(u, m, a, b, own, n);
		CHECK(kvp_delete(u->space, own, n, WAIT_MS) >= 0);
	}
	free(own);
}

static void register_all(struct user *u)
{
	const void **addrs = calloc(n_tokens / T, sizeof(*addrs));
	double began = now_us();

	for (uint32_t i = 0; i < 200; i++) {
		struct kvp_prefix *m = all_of(u);
		int n;

		EQUAL(kvp_host_register(u->cuda, 0, WAIT_MS), 0);
		/* What the one that put it left lies in its arenas until the daemon has taken those over. */
		n = kvp_host_payloads(m, u->cuda, 0, n_tokens / T, addrs);
		kvp_release(m);
		if (n == (int)(n_tokens / T))
			break;
		usleep(20000);
	}
	free(addrs);
	printf("%-58s %8.1f ms, %llu MiB\n", "DRAM taken over and registered",
		(now_us() - began) * 1e-3,
		(unsigned long long)(props(u->cuda).registered_bytes >> 20));
}

static void warm(struct user *u, struct kvp_prefix *m)
{
	const double began = now_us();
	const uint32_t n = n_tokens / T;
	uint64_t *addrs = calloc(n, sizeof(*addrs));
	uint32_t there = 0;

	while (there < n) {
		struct kvp_warm_opts o = { .size = sizeof(o), .first = there };
		struct kvp_ticket ticket;
		int why = 0, got;

		EQUAL(kvp_cuda_warm(m, u->cuda, &o, &ticket), 0);
		got = kvp_ticket_wait(u->client, ticket, WAIT_MS, &why);
		CHECK(got >= 0);
		CHECK(!why || why == -EAGAIN || why == -ENODEV);
		there += (uint32_t)got;
		if (why)
			usleep(1000);
	}
	rate("warm: DRAM to the daemon's device memory, by the worker", now_us() - began);
	for (uint32_t i = 0; i < 100000; i++) {
		if ((uint32_t)kvp_cuda_addrs(m, u->cuda, 0, n, 0, addrs) == n)
			break;
		usleep(100);
	}
	for (uint32_t i = 0; i < n; i++)
		if (!addrs[i])
			fprintf(stderr, "block %u has no address\n", i);
	if (kvp_cuda_addrs(m, u->cuda, 0, n, 0, addrs) != (int)n)
		fprintf(stderr, "driver error %d, %llu MiB mapped\n", props(u->cuda).driver_error,
			(unsigned long long)(props(u->cuda).mapped_bytes >> 20));
	EQUAL(kvp_cuda_addrs(m, u->cuda, 0, n, 0, addrs), n);
	printf("%-58s %8.1f ms\n", "    and mapped here, from the first question on",
		(now_us() - began) * 1e-3);
	free(addrs);
}

/* A step of an engine whose blocks lie on the device: addresses, and a lease that ends with the stream. */
static void steps(struct user *u)
{
	static double match[STEPS], mark[STEPS];
	const uint32_t n = n_tokens / T;
	uint64_t *addrs = calloc(n, sizeof(*addrs)), value;
	struct kvp_prefix_info info;
	struct kvp_timeline *line;

	EQUAL(kvp_timeline_new(u->client, &line), 0);
	for (uint32_t i = 0; i < STEPS; i++) {
		double a = now_us(), b;
		struct kvp_prefix *m = match_of(u, 0, &info);

		EQUAL(kvp_cuda_addrs(m, u->cuda, 0, n, 0, addrs), n);
		b = now_us();
		EQUAL(kvp_cuda_mark(u->cuda, line, gpu.stream, &value), 0);
		EQUAL(kvp_release_after(m, line, value), 0);
		match[i] = b - a;
		mark[i] = now_us() - b;
		gpu_sync(&gpu);
	}
	spread("match, and addresses of all blocks on the device", match, STEPS);
	spread("mark + release_after", mark, STEPS);
	kvp_timeline_free(line);
	free(addrs);
}

/* Where the device writes the marks of a timeline, and what of them the ledger waits for: in the page of its client. */
static struct kvp_session_page *page_of(const struct user *u)
{
	struct attachment *att = kvp_load_seq(&u->client->att);

	CHECK(att != NULL);
	return att->page;
}

/* What a stream waits for: on the simulated driver, too, where gpu_hold() holds copies alone. */
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

/* A block of the device's, which is to be published at the mark's moment: *ret_value, as it stands in the page. */
static void commit_held(struct user *u, struct kvp_timeline *line, const uint32_t own[T],
	const struct gate *gate, uint64_t *ret_value)
{
	const uint64_t next = kvp_load_relaxed(gate->word) + 1;
	struct kvp_grant *g;
	uint64_t value;
	int r;

	while ((r = kvp_cuda_reserve(u->space, u->cuda, WAIT_MS, NULL, &g)) == -EAGAIN)
		usleep(1000);
	EQUAL(r, 0);
	EQUAL(gpu.cu.cuStreamWaitValue64_v2(gpu.stream, gate->there, next, CU_WAIT_GEQ), CU_OK);
	EQUAL(gpu.cu.cuMemsetD8Async(
		      kvp_grant_device_addr(g), (unsigned char)next, BLOCK, gpu.stream),
		CU_OK);
	EQUAL(kvp_cuda_mark(u->cuda, line, gpu.stream, &value), 0);
	EQUAL(kvp_commit_after(g, kvp_ref_root(), own, T, NULL, KVP_COMMIT_RELEASE, line, value),
		0);
	*ret_value = line->base + value;
}

static uint32_t blocks_found(struct user *u, const uint32_t own[T])
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_DEVICE };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *m;

	EQUAL(kvp_match(u->space, own, T, &o, &m), 0);
	EQUAL(kvp_match_info(m, &info), 0);
	kvp_release(m);
	return info.n_blocks;
}

/*
 * From the moment when the stream may go on, and from the mark's being written: to the one when the ledger has published
 * the block, which the engine finds that wrote it, and to the one when another finds it, which may have to map the memory
 * first. Each looks again and again.
 */
static void commits(struct user *u, struct user *other)
{
	static double all[COMMITS], seen[COMMITS], late[COMMITS];
	struct kvp_session_page *page = page_of(u);
	struct gate gate = gate_new();
	struct kvp_timeline *line;
	uint32_t own[T];

	EQUAL(kvp_timeline_new(u->client, &line), 0);
	for (uint32_t i = 0; i < COMMITS; i++) {
		double began, written, found;
		uint64_t value;

		for (uint32_t k = 0; k < T; k++)
			own[k] = 1000000 + i * T + k;
		commit_held(u, line, own, &gate, &value);
		for (uint32_t k = 0; kvp_load_seq(&page->awaits[line->index]) != value; k++) {
			CHECK(k < 20000);
			usleep(1000);
		}
		usleep(2000);
		began = now_us();
		kvp_store_release(gate.word, kvp_load_relaxed(gate.word) + 1);
		while (kvp_load_acquire(&page->done[line->index].value) < value)
			CHECK(now_us() - began < 2e7);
		written = now_us();
		while (!blocks_found(u, own))
			CHECK(now_us() - began < 2e7);
		seen[i] = now_us() - written;
		while (!blocks_found(other, own))
			CHECK(now_us() - began < 2e7);
		found = now_us();
		all[i] = found - began;
		late[i] = found - written;
	}
	spread("a block computed on the device: written, marked, found", all, COMMITS);
	spread("    from the mark's being written: published by the ledger", seen, COMMITS);
	spread("    found by another engine", late, COMMITS);
	/* A block is found when its mark has been written, before the driver is done with that. */
	gpu_sync(&gpu);
	EQUAL(gpu.cu.cuMemFreeHost((void *)(uintptr_t)gate.word), CU_OK);
	kvp_timeline_free(line);
}

static void attach(void)
{
	const double began = now_us();
	struct user u = user_new();
	const double opened = now_us();
	struct kvp_prefix *m = all_of(&u);
	uint64_t *addrs = calloc(n_tokens / T, sizeof(*addrs));

	while ((uint32_t)kvp_cuda_addrs(m, u.cuda, 0, n_tokens / T, 0, addrs) < n_tokens / T) {
		CHECK(now_us() - began < 2e7);
		usleep(50);
	}
	printf("%-58s %8.1f ms; %.1f ms until all of the prompt has addresses, %llu MiB mapped\n",
		"a new client: open, space, CUDA", (opened - began) * 1e-3,
		(now_us() - began) * 1e-3, (unsigned long long)(props(u.cuda).mapped_bytes >> 20));
	kvp_release(m);
	free(addrs);
	user_free(&u);
}

int main(int argc, char **argv)
{
	struct user u, other;
	struct kvp_prefix *m;
	uint64_t a, b;

	if (argc > 1)
		n_tokens = (uint32_t)strtoul(argv[1], NULL, 10) / T * T;
	CHECK(n_tokens >= T && n_tokens * TOKEN % FILL == 0);
	tokens = calloc(n_tokens, sizeof(*tokens));
	for (uint32_t i = 0; i < n_tokens; i++)
		tokens[i] = i * 7 + 11;
	/* A check that fails ends the process: what was found out before it is to be read. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	gpu_begin(&gpu, NULL);
	a = gpu_alloc(&gpu, n_tokens * TOKEN);
	b = gpu_alloc(&gpu, n_tokens * TOKEN);
	fill_device(a);
	printf("a prompt of %u tokens, %llu MiB, in blocks of %llu MiB\n", n_tokens,
		(unsigned long long)(n_tokens * TOKEN >> 20), (unsigned long long)(BLOCK >> 20));
	u = user_new();
	for (uint32_t i = 0; i < 2000 && props(u.cuda).device == KVP_CUDA_NO_DEVICE; i++)
		usleep(5000);
	EQUAL(props(u.cuda).device, 0);
	put_all(&u, a);
	user_free(&u);

	u = user_new();
	m = all_of(&u);
	get_all(&u, m, b, "get: from DRAM that is not registered");
	same_device(a, b);
	kvp_release(m);
	register_all(&u);
	m = all_of(&u);
	get_all(&u, m, b, "get: from registered DRAM");
	same_device(a, b);
	warm(&u, m);
	EQUAL(gpu.cu.cuMemsetD8Async(b, 0, n_tokens * TOKEN, gpu.stream), CU_OK);
	get_all(&u, m, b, "get: from the daemon's device memory");
	same_device(a, b);
	steps(&u);
	puts_there(&u, m, a, b);
	other = user_new();
	commits(&u, &other);
	user_free(&other);
	attach();
	/* Held so far: what is committed may make others go. */
	kvp_release(m);
	user_free(&u);
	EQUAL(gpu.cu.cuMemFree_v2(a), CU_OK);
	EQUAL(gpu.cu.cuMemFree_v2(b), CU_OK);
	free(tokens);
	return gpu_end(&gpu);
}
