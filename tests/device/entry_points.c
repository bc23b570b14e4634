/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function of CUDA's driver that the device's worker or the library calls, going wrong on the simulated
 * driver: no memory, not ready where the driver may say so, and an error after which the process gets nothing but
 * errors. The real daemon and a real engine: whatever fails, the engine is answered, reads no wrong byte and is
 * served from DRAM, the daemon lives, and an engine that comes afterwards gets all. A line for each; last how many
 * functions the sources name that no case has made fail.
 *
 *	entry_points [--all] [NAME...]	these functions only; --all: every error, else one of them each, by turns
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/kvp_cu.h"
#include "tests/device/entry_points.h"

#define WORKERS 6u /* processes with cases at a time: most of each is waiting */

/*
 * What is not ready stays so for an engine as long as it lives; for a worker, which asks once a millisecond, longer
 * than the daemon waits for it, so that another one finds it so.
 */
#define NOT_READY_CALLS 1500u

static const char *const error_names[] = { "no memory", "not ready", "sticky" };

/* What has to be the case for the function to be called at all. */
static const struct special {
	const char *name;
	bool worker;
	uint32_t needs;
	struct cudadrv_fault with;
} specials[] = {
	/* The worker ends with its process: these it leaves to that. */
	{ "cuEventDestroy_v2", true, NEEDS_NEVER, { 0 } },
	{ "cuMemFreeHost", true, NEEDS_NEVER, { 0 } },
	{ "cuStreamDestroy_v2", true, NEEDS_NEVER, { 0 } },
	{ "cuMemAlloc_v2", true, NEEDS_IPC, { 0 } },
	{ "cuMemFree_v2", true, NEEDS_IPC, { 0 } },
	{ "cuIpcGetMemHandle", true, NEEDS_IPC, { 0 } },
	/* Without its UUID no engine finds the device. */
	{ "cuDeviceGetUuid_v2", true, NEEDS_BOTH, { 0 } },
	{ "cuMemcpyBatchAsync", true, NEEDS_OLD | NEEDS_PINNED, { 0 } },
	{ "cuMemcpyBatchAsync_v2", true, NEEDS_PINNED, { 0 } },
	{ "cuMemImportFromShareableHandle", true, NEEDS_RESTART, { 0 } },
	{ "cuMemGetInfo_v2", true, NEEDS_PATIENCE, { 0 } },
	/* A context that cannot be used is given back. */
	{ "cuDevicePrimaryCtxRelease_v2", true, 0,
		{ "cuCtxSetCurrent", NULL, CUDADRV_RETURN, 0, 1, CU_ERR_NO_MEMORY } },
	/* What was begun before an event was refused is waited for, and not unmapped before. */
	{ "cuStreamSynchronize", true, NEEDS_BOTH,
		{ "cuEventRecord", NULL, CUDADRV_RETURN, 0, 1, CU_ERR_NO_MEMORY } },
	/* A driver that does not say its node. */
	{ "cuDeviceGetPCIBusId", true, 0,
		{ "cuDeviceGetAttribute", NULL, CUDADRV_RETURN, 2, 1, CU_ERR_INVALID_VALUE } },
	{ "cuGetErrorName", true, 0,
		{ "cuMemsetD8Async", NULL, CUDADRV_STICKY, 0, 1, STICKY_ERROR } },
	/* DRAM that is not pinned goes through the worker's own. */
	{ "cuMemcpyHtoDAsync_v2", true, 0,
		{ "cuMemHostRegister_v2", NULL, CUDADRV_RETURN, 0, 0, CU_ERR_NO_MEMORY } },
	{ "cuMemcpyDtoHAsync_v2", true, 0,
		{ "cuMemHostRegister_v2", NULL, CUDADRV_RETURN, 0, 0, CU_ERR_NO_MEMORY } },
	{ "cuMemHostAlloc", true, 0,
		{ "cuMemHostRegister_v2", NULL, CUDADRV_RETURN, 0, 0, CU_ERR_NO_MEMORY } },
	{ "cuIpcOpenMemHandle_v2", false, NEEDS_IPC, { 0 } },
	{ "cuIpcCloseMemHandle", false, NEEDS_IPC, { 0 } },
	{ "cuMemcpyBatchAsync", false, NEEDS_OLD, { 0 } },
	{ "cuCtxPushCurrent_v2", false, NEEDS_NO_CURRENT, { 0 } },
	{ "cuCtxPopCurrent_v2", false, NEEDS_NO_CURRENT, { 0 } },
	{ "cuGetErrorName", false, 0,
		{ "cuCtxGetDevice", NULL, CUDADRV_RETURN, 0, 1, CU_ERR_NO_MEMORY } },
	/* Where this library was built without a kernel that copies. */
	{ "cuModuleLoadData", false, NEEDS_KERNEL, { 0 } },
	{ "cuModuleGetFunction", false, NEEDS_KERNEL, { 0 } },
	{ "cuModuleUnload", false, NEEDS_KERNEL, { 0 } },
	{ "cuLaunchKernel", false, NEEDS_KERNEL, { 0 } },
};

static struct point {
	char name[48];
	bool worker;
	bool covered;
} points[MAX_POINTS];
static uint32_t n_points;

static const struct special *special_of(const char *name, bool worker)
{
	for (size_t i = 0; i < sizeof(specials) / sizeof(specials[0]); i++)
		if (specials[i].worker == worker && !strcmp(specials[i].name, name))
			return &specials[i];
	return NULL;
}

/* ---- what the sources name ------------------------------------------------------------------- */

static void point_add(const char *name, size_t len, bool worker)
{
	struct point *p = &points[n_points];

	if (len >= sizeof(p->name))
		e2e_die("a name is too long", EINVAL);
	snprintf(p->name, sizeof(p->name), "%.*s", (int)len, name);
	p->worker = worker;
	for (uint32_t i = 0; i < n_points; i++)
		if (points[i].worker == worker && !strcmp(points[i].name, p->name))
			return;
	if (++n_points == MAX_POINTS)
		e2e_die("too many functions", ENOSPC);
}

/* Calls are cu->cuName(...) and cu.cuName(...). */
static void scan(const char *path, bool worker)
{
	FILE *f = fopen(path, "r");
	char line[512];

	if (!f)
		e2e_die(path, errno);
	while (fgets(line, sizeof(line), f)) {
		for (const char *at = line; (at = strstr(at, "cu")); at++) {
			const char *name = !strncmp(at, "cu->cu", 6)  ? at + 4
					   : !strncmp(at, "cu.cu", 5) ? at + 3
								      : NULL;

			if (name && name[2] >= 'A' && name[2] <= 'Z')
				point_add(name,
					strspn(name, "abcdefghijklmnopqrstuvwxyz"
						     "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
						     "0123456789_"),
					worker);
		}
	}
	fclose(f);
}

static int by_name(const void *a, const void *b)
{
	const struct point *p = a, *q = b;

	return p->worker != q->worker ? p->worker - q->worker : strcmp(p->name, q->name);
}

/* CUDA_SOURCES: the files, a colon between any two; whose they are their folder says. */
static void scan_all(void)
{
	char *list = strdup(getenv("CUDA_SOURCES")), *rest = list, *path;

	while ((path = strsep(&rest, ":")))
		scan(path, strstr(path, "daemon/") != NULL);
	free(list);
	/* kvp_cu_name()'s */
	point_add("cuGetErrorName", strlen("cuGetErrorName"), false);
	point_add("cuGetErrorName", strlen("cuGetErrorName"), true);
	qsort(points, n_points, sizeof(points[0]), by_name);
}

/* ---- cases ----------------------------------------------------------------------------------- */

/* The driver may say of these that it is not ready. */
static bool may_be_not_ready(const char *name)
{
	return !strcmp(name, "cuEventQuery") || !strcmp(name, "cuMemSetAccess");
}

static struct entry_case case_of(uint32_t i, uint32_t error)
{
	const struct special *s = special_of(points[i].name, points[i].worker);
	struct entry_case k = {
		.name = points[i].name,
		.error = error,
		.worker = points[i].worker,
		.needs = s ? s->needs : 0,
		.number = 3 * i + error,
		.fault = { .function = points[i].name,
			.action = error == ENTRY_STICKY ? CUDADRV_STICKY : CUDADRV_RETURN,
			.times = error != ENTRY_NOT_READY ? 1
				 : points[i].worker       ? NOT_READY_CALLS
							  : 0,
			.value = error == ENTRY_STICKY      ? STICKY_ERROR
				 : error == ENTRY_NOT_READY ? CU_NOT_READY
							    : CU_ERR_NO_MEMORY },
	};

	if (s)
		k.with = s->with;
	if (k.needs & NEEDS_NEVER) {
		k.fault.action = CUDADRV_SLEEP;
		k.fault.value = 0;
		k.fault.times = 0;
	}
	k.fault.program = k.with.program = k.worker ? "kvpool-device" : ENTRY_PROGRAM;
	return k;
}

static void report(const struct entry_case *k, int heard, uint32_t seconds10)
{
	printf("%-7s %-32s %-10s ", k->worker ? "worker" : "client", k->name,
		k->needs & NEEDS_NEVER ? "never" : error_names[k->error]);
	if (heard)
		printf("daemon alive, client got %s", entry_errno(heard));
	else
		printf("daemon alive, client got all of it");
	printf(" (%u.%u s)\n", seconds10 / 10, seconds10 % 10);
	fflush(stdout);
}

/* Processes of cases, each with a machine and a daemon of its own. */
static struct running {
	pid_t pid;
	int fd;
	uint32_t point;
} running[WORKERS];

/* A process takes every case of its list, one after the other: a word for each. */
static void run_list(struct running *r, const uint32_t *list, uint32_t n)
{
	int ends[2];

	if (pipe(ends) < 0)
		e2e_die("pipe", errno);
	r->pid = e2e_fork();
	if (r->pid) {
		close(ends[1]);
		r->fd = ends[0];
		return;
	}
	close(ends[0]);
	for (uint32_t i = 0; i < n; i++) {
		struct entry_case k = case_of(list[i] / 3, list[i] % 3);
		struct entry_end e = entry_run(&k);
		uint32_t words[4] = { list[i], (uint32_t)e.struck, (uint32_t)e.heard, e.tenths };

		if (write(ends[1], words, sizeof(words)) != sizeof(words))
			_exit(1);
	}
	entry_over();
	_exit(0);
}

static bool take_word(struct running *r)
{
	uint32_t w[4];
	struct entry_case k;

	if (read(r->fd, w, sizeof(w)) != sizeof(w)) {
		close(r->fd);
		r->fd = -1;
		if (e2e_reap(r->pid) != 0)
			exit(1);
		return false;
	}
	k = case_of(w[0] / 3, w[0] % 3);
	if (w[1])
		report(&k, (int)w[2], w[3]);
	else
		printf("%-7s %-32s %-10s %s\n", k.worker ? "worker" : "client", k.name,
			error_names[k.error],
			k.needs & NEEDS_NEVER ? "was called" : "was not called");
	fflush(stdout);
	points[w[0] / 3].covered |= w[1] != 0;
	return true;
}

/* The lists are dealt out to WORKERS processes. */
static void run_all(const uint32_t *cases, uint32_t n)
{
	static uint32_t list[WORKERS][3 * MAX_POINTS];
	uint32_t have[WORKERS] = { 0 }, left = 0;

	for (uint32_t i = 0; i < n; i++)
		list[i % WORKERS][have[i % WORKERS]++] = cases[i];
	for (uint32_t i = 0; i < WORKERS; i++) {
		run_list(&running[i], list[i], have[i]);
		left++;
	}
	while (left) {
		struct pollfd p[WORKERS];

		for (uint32_t i = 0; i < WORKERS; i++)
			p[i] = (struct pollfd){ .fd = running[i].fd, .events = POLLIN };
		if (poll(p, WORKERS, -1) < 0 && errno != EINTR)
			e2e_die("poll", errno);
		for (uint32_t i = 0; i < WORKERS; i++)
			if (p[i].revents && !take_word(&running[i]))
				left--;
	}
}

static bool wanted(int argc, char **argv, const char *name, bool *ret_all)
{
	bool any = false, hit = false;

	*ret_all = false;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--all")) {
			*ret_all = true;
			continue;
		}
		any = true;
		hit = hit || !strcmp(argv[i], name);
	}
	*ret_all |= any;
	return hit || !any;
}

int main(int argc, char **argv)
{
	static uint32_t cases[3 * MAX_POINTS];
	uint32_t n = 0, uncovered = 0, turn = 0;

	if (!getenv("KVPOOL_DEVICE") || !getenv("CUDA_SOURCES"))
		e2e_die("KVPOOL_DEVICE names the worker, CUDA_SOURCES what calls the driver",
			EINVAL);
	scan_all();
	for (uint32_t i = 0; i < n_points; i++) {
		const struct special *s = special_of(points[i].name, points[i].worker);
		bool all, mine = wanted(argc, argv, points[i].name, &all);

		if (!mine) {
			points[i].covered = true;
			continue;
		}
		if (s && s->needs & NEEDS_NEVER) {
			cases[n++] = 3 * i + ENTRY_NO_MEMORY;
			continue;
		}
		if (s && s->needs & NEEDS_KERNEL && !entry_has_kernel()) {
			printf("client  %-32s not in this build\n", points[i].name);
			points[i].covered = true;
			continue;
		}
		all = all || (s && s->needs & NEEDS_BOTH);
		if (all || turn % 2 == 0)
			cases[n++] = 3 * i + ENTRY_NO_MEMORY;
		if (all || turn % 2 == 1)
			cases[n++] = 3 * i + ENTRY_STICKY;
		if (may_be_not_ready(points[i].name))
			cases[n++] = 3 * i + ENTRY_NOT_READY;
		turn++;
	}
	run_all(cases, n);
	for (uint32_t i = 0; i < n_points; i++)
		if (!points[i].covered) {
			printf("%s of the %s has no case in which it is called\n", points[i].name,
				points[i].worker ? "worker" : "client");
			uncovered++;
		}
	printf("uncovered entry points %u\n", uncovered);
	return uncovered != 0;
}
