/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Engines that are killed while the device works for them: what they have published stays and is what they
 * computed, what others read and write is not touched, and the memory that was theirs alone comes back. To be run
 * beside a real daemon with memory on the device, by tests/gpu/device or on the simulated driver.
 *
 *	kills [ROUNDS]		(default 20); KVP_TEST_SEED=N repeats a run; $KVCTL checks the daemon afterwards
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu/kvp_nvml.h"
#include "tests/libclient/gpu_live.h"

#define MINE   8u /* blocks that the keeper reads all the time */
#define THEIRS 4u /* that each victim publishes */
#define MIB    (UINT64_C(1) << 20)

static struct gpu gpu;
static struct kvp_nvml nvml;
static uint64_t state;

static uint32_t below(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % n;
}

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static uint64_t free_bytes(void)
{
	struct nvmlDevice_st *first;
	struct nvml_memory m;
	uint64_t free = 0;

	if (gpu.sim) {
		EQUAL(cudadrv_free_bytes(gpu.sim, 0, &free), 0);
		return free;
	}
	EQUAL(nvml.nvmlDeviceGetHandleByIndex_v2(0, &first), NVML_OK);
	EQUAL(nvml.nvmlDeviceGetMemoryInfo(first, &m), NVML_OK);
	return m.free;
}

/*
 * Those blocks are found and are what was computed. On a device that is full they may have made way for others:
 * then they lie in DRAM alone. Returns how many lie on the device.
 */
static uint32_t verify(
	struct engine *reader, const struct engine *what, struct kvp_cuda *cuda, uint32_t n)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = KVP_MATCH_DEVICE };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint64_t addrs[MINE], at = gpu_alloc(&gpu, BLOCK_BYTES);
	struct kvp_payload_info p = { .size = sizeof(p) };
	uint8_t back[BLOCK_BYTES];
	struct kvp_prefix *m = NULL;
	uint32_t there = 0;

	/* A new extent is mapped a moment after its blocks are published. */
	for (uint32_t i = 0; i < 4000; i++) {
		bool readable = true;

		EQUAL(kvp_match(reader->space, what->tokens, n * T, &o, &m), 0);
		EQUAL(kvp_match_info(m, &info), 0);
		there = (uint32_t)kvp_cuda_addrs(m, cuda, 0, n, 0, addrs);
		for (uint32_t k = 0; k < info.n_blocks && readable; k++)
			readable = addrs[k] || (kvp_payload(m, k, &p) == 0 && p.addr);
		if (info.n_blocks == n && readable)
			break;
		kvp_release(m);
		m = NULL;
		usleep(5000);
	}
	EQUAL(info.n_blocks, n);
	CHECK(m);
	for (uint32_t i = 0; i < n; i++) {
		const uint8_t *bytes = back;

		if (addrs[i]) {
			EQUAL(gpu.cu.cuMemcpyDtoDAsync_v2(at, addrs[i], BLOCK_BYTES, gpu.stream),
				CU_OK);
			gpu_read(&gpu, back, at, BLOCK_BYTES);
		} else {
			EQUAL(kvp_payload(m, i, &p), 0);
			bytes = p.addr;
		}
		CHECK(memcmp(bytes, what->kv + (size_t)i * BLOCK_BYTES, BLOCK_BYTES) == 0);
	}
	kvp_release(m);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	return there;
}

/* ---- who is killed ---- */

/* Publishes, says so on its standard output, and writes a slot that it never publishes until it is killed. */
static void victim(uint32_t seed)
{
	struct engine *e;
	struct kvp_cuda *cuda;
	struct kvp_grant *g;
	uint64_t at;

	gpu_begin(&gpu, NULL);
	e = engine_new("gpu-kills", KVP_LAYOUT_NCLD, seed);
	cuda = gpu_live_open(e);
	at = gpu_alloc(&gpu, THEIRS * BLOCK_BYTES);
	gpu_write(&gpu, at, e->kv, THEIRS * BLOCK_BYTES);
	gpu_live_compute(&gpu, e, cuda, at, THEIRS);
	g = gpu_live_reserve(e, cuda);
	for (uint32_t i = 0;; i++) {
		EQUAL(gpu.cu.cuMemsetD8Async(
			      kvp_grant_device_addr(g), (unsigned char)i, BLOCK_BYTES, gpu.stream),
			CU_OK);
		if (i == 16)
			EQUAL(write(STDOUT_FILENO, "r", 1), 1);
		if (i % 256 == 255)
			gpu_sync(&gpu);
	}
}

static pid_t start(const char *self, uint32_t seed, int *ret_fd)
{
	char text[16];
	int ends[2];
	pid_t pid;

	EQUAL(pipe(ends), 0);
	snprintf(text, sizeof(text), "%u", seed);
	fflush(stdout);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		dup2(ends[1], STDOUT_FILENO);
		execl(self, self, "--victim", text, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	*ret_fd = ends[0];
	return pid;
}

static double kill_one(const char *self, uint32_t seed, struct engine *e, struct kvp_cuda *cuda)
{
	const uint64_t before = free_bytes();
	struct pollfd p = { .events = POLLIN };
	double killed, back = -1;
	char said;
	int status;
	pid_t pid = start(self, seed, &p.fd);

	EQUAL(poll(&p, 1, 60000), 1);
	EQUAL(read(p.fd, &said, 1), 1);
	(void)verify(e, e, cuda, MINE);
	usleep(below(20000));
	EQUAL(kill(pid, SIGKILL), 0);
	killed = now_ms();
	EQUAL(waitpid(pid, &status, 0), pid);
	close(p.fd);
	/* Within a segment of what there was; the victim's blocks may have needed one more. */
	for (uint32_t i = 0; i < 20000 && back < 0; i++) {
		if (free_bytes() + 9 * MIB >= before)
			back = now_ms() - killed;
		usleep(500);
	}
	CHECK(back >= 0);
	return back;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	const uint32_t rounds = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 20;
	const char *seed = getenv("KVP_TEST_SEED"), *kvctl = getenv("KVCTL");
	double *back = calloc(rounds + 1, sizeof(*back));
	char command[600];
	struct engine *e;
	struct kvp_cuda *cuda;
	uint32_t stayed = 0;
	uint64_t at;
	int bad;

	if (argc == 3 && !strcmp(argv[1], "--victim"))
		victim((uint32_t)strtoul(argv[2], NULL, 10));
	CHECK(back && rounds);
	state = seed ? strtoull(seed, NULL, 0) : (uint64_t)time(NULL);
	printf("KVP_TEST_SEED=%llu\n", (unsigned long long)state);
	gpu_begin(&gpu, NULL);
	if (!gpu.sim)
		EQUAL(kvp_nvml_open(&nvml), 0);
	e = engine_new("gpu-kills", KVP_LAYOUT_NCLD, 1);
	cuda = gpu_live_open(e);
	at = gpu_alloc(&gpu, MINE * BLOCK_BYTES);
	gpu_write(&gpu, at, e->kv, MINE * BLOCK_BYTES);
	gpu_live_compute(&gpu, e, cuda, at, MINE);
	for (uint32_t i = 0; i < rounds; i++) {
		struct engine *fresh = engine_new("gpu-kills", KVP_LAYOUT_NCLD, 1000 + 2 * i);
		struct engine *dead = engine_new("gpu-kills", KVP_LAYOUT_NCLD, 1001 + 2 * i);
		struct kvp_cuda *theirs = gpu_live_open(fresh);

		back[i] = kill_one(argv[0], 1001 + 2 * i, e, cuda);
		/* At once into slots that are free now, while the device may still write for the dead. */
		gpu_write(&gpu, at, fresh->kv, MINE * BLOCK_BYTES);
		gpu_live_compute(&gpu, fresh, theirs, at, MINE);
		stayed += verify(e, dead, cuda, THEIRS);
		(void)verify(e, fresh, cuda, MINE);
		(void)verify(e, e, cuda, MINE);
		kvp_cuda_close(theirs);
		engine_free(fresh);
		engine_free(dead);
	}
	qsort(back, rounds, sizeof(*back), by_value);
	printf("killed %u, lost blocks 0, wrong blocks 0, %u of their %u blocks on the device "
	       "still; memory "
	       "back after ms p50 %.1f worst %.1f\n",
		rounds, stayed, rounds * THEIRS, back[rounds / 2], back[rounds - 1]);
	snprintf(command, sizeof(command), "'%s' check", kvctl ? kvctl : "kvctl");
	bad = kvctl && system(command); /* NOLINT: the path is the test's own */
	free(back);
	EQUAL(gpu.cu.cuMemFree_v2(at), CU_OK);
	kvp_cuda_close(cuda);
	engine_free(e);
	return gpu_end(&gpu) || bad;
}
