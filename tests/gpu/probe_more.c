/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Questions 9 to 17 of the probe: how fast, how long, and what happens meanwhile.
 *
 * 9 copies beside another process's kernel; 10 words that GPU and CPU write for each other; 11 when a
 * dead process's memory is free; 12 what fresh memory holds; 13 what a context takes; 14 mapping many
 * segments; 15 batches of copies; 16 pinning; 17 legacy handles.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/kvp_nvml.h"
#include "tests/gpu/probe.h"

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The part of `n` values that `part` is at; sorts them. */
static double quantile(double *v, uint32_t n, double part)
{
	qsort(v, n, sizeof(*v), by_value);
	return n ? v[(uint32_t)(part * (n - 1))] : 0;
}

static void fail(const char *what)
{
	struct note n = { .ok = 0 };

	snprintf(n.text, sizeof(n.text), "%s: errno %d", what, errno);
	report(&n);
	exit(0);
}

static void *pinned(size_t bytes)
{
	void *p;

	must(cu.cuMemHostAlloc(&p, bytes, CU_REG_PORTABLE), "cuMemHostAlloc");
	memset(p, (int)PATTERN, bytes);
	return p;
}

static uint64_t device_bytes(size_t bytes)
{
	uint64_t at;

	must(cu.cuMemAlloc_v2(&at, bytes), "cuMemAlloc of %zu MiB", bytes / MIB);
	return at;
}

static struct CUstream_st *stream_new(void)
{
	struct CUstream_st *s;

	must(cu.cuStreamCreate(&s, CU_STREAM_ASYNC), "cuStreamCreate");
	return s;
}

/* ---- 9: copies beside another process's kernel ---- */

#define RATE_BYTES  (8 * MIB)
#define RATE_DEPTH  4
#define SPIN_MILLIS 2000
#define RATE_MILLIS 1000

/* v: milliseconds. Answers when it is ready; then, once more is heard, with MB/s each way. */
static void role_rates(const struct note *job, int fd)
{
	struct CUstream_st *stream[2] = { stream_new(), stream_new() };
	char *host = pinned(2 * RATE_BYTES);
	uint64_t dev = device_bytes(2 * RATE_BYTES);
	struct note n = { .ok = 1 }, go;
	uint64_t copied = 0;
	double t;

	(void)fd;
	report(&n);
	if (hear(LINK_FD, CHILD_LIFE, &go, NULL) < 0)
		return;
	t = now();
	while (now() - t < (double)job->v[0] * 1e-3) {
		for (int i = 0; i < RATE_DEPTH; i++) {
			must(cu.cuMemcpyHtoDAsync_v2(dev, host, RATE_BYTES, stream[0]), "copy");
			must(cu.cuMemcpyDtoHAsync_v2(
				     host + RATE_BYTES, dev + RATE_BYTES, RATE_BYTES, stream[1]),
				"copy");
		}
		must(cu.cuStreamSynchronize(stream[0]), "copy");
		must(cu.cuStreamSynchronize(stream[1]), "copy");
		copied += RATE_DEPTH * RATE_BYTES;
	}
	n.v[0] = (uint64_t)((double)copied * 1e-6 / (now() - t));
	report(&n);
}

/* v: milliseconds. A kernel counts so long: an answer when it has begun, then one with the count. */
static void role_count(const struct note *job, int fd)
{
	uint64_t at = device_bytes(4096);
	struct note n = { .ok = 1 };

	(void)fd;
	launch("spin", at, job->v[0] * 1000000u);
	report(&n);
	must(cu.cuCtxSynchronize(), "the counting kernel");
	n.v[0] = read_word(at);
	report(&n);
}

/* The counting kernel, with copies beside it or without. */
static struct note count_beside(struct child *copier, struct note *ret_rates)
{
	struct child counter = spawn("count", NULL);
	struct note n = ask(&counter, -1, SPIN_MILLIS, 0, 0, 0, NULL);

	if (n.ok == 1 && copier)
		*ret_rates = ask(copier, -1, 0, 0, 0, 0, NULL);
	if (n.ok == 1 && hear(counter.sock, 60.0, &n, NULL) < 0)
		n.ok = 0;
	finish(&counter);
	return n;
}

static void q9_beside_a_kernel(void)
{
	struct note alone, beside = { .ok = 0 }, counted, counted_beside;
	struct child copier = spawn("rates", NULL);

	alone = ask(&copier, -1, RATE_MILLIS, 0, 0, 0, NULL);
	if (alone.ok == 1)
		alone = ask(&copier, -1, 0, 0, 0, 0, NULL);
	finish(&copier);
	counted = count_beside(NULL, NULL);
	copier = spawn("rates", NULL);
	ask(&copier, -1, RATE_MILLIS, 0, 0, 0, NULL);
	counted_beside = count_beside(&copier, &beside);
	finish(&copier);
	if (alone.ok != 1 || beside.ok != 1 || counted.ok != 1 || counted_beside.ok != 1) {
		printf("Q9  not answered: %s%s%s\n", alone.text, beside.text, counted_beside.text);
		return;
	}
	printf("Q9  copies both ways at once: %.1f GB/s each way alone, %.1f beside another "
	       "process's kernel of %.1f s; the kernel counts %.2f of what it counts alone\n",
		(double)alone.v[0] * 1e-3, (double)beside.v[0] * 1e-3, SPIN_MILLIS * 1e-3,
		counted.v[0] ? (double)counted_beside.v[0] / (double)counted.v[0] : 0.0);
}

/* ---- 10: words that GPU and CPU write for each other ---- */

#define WORD_ROUNDS 200

/* In a page of which the GPU writes `done` and reads `go`. Times are of the monotonic clock. */
struct words {
	_Alignas(64) _Atomic uint64_t done;
	_Alignas(64) _Atomic uint64_t go;
	_Alignas(64) _Atomic double written; /* when the child asked for the write */
	_Alignas(64) _Atomic double stored;  /* when the parent stored `go` */
	_Alignas(64) _Atomic uint64_t seen;  /* what the parent saw of `done` */
	_Alignas(64) _Atomic uint64_t armed; /* the value that a stream waits for */
};

/* Whether a word reaches a value in 5 s. */
static int reaches(const _Atomic uint64_t *word, uint64_t value)
{
	double t = now();

	while (atomic_load(word) < value)
		if (now() - t > 5.0)
			return 0;
	return 1;
}

static struct words *words_of(int fd)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* Registers the page; a stream writes a word of it 200 times, then waits for another as often. v of
 * the answer: nanoseconds from the store until the stream has gone on, middle and 99th of 100. */
static void role_words(const struct note *job, int fd)
{
	struct words *w = words_of(fd);
	struct CUstream_st *stream = stream_new();
	static double took[WORD_ROUNDS];
	struct note n = { .ok = 1 };
	uint64_t dev;

	(void)job;
	if (!w)
		fail("mmap");
	if (!cu.cuStreamWriteValue64_v2 || !cu.cuStreamWaitValue64_v2)
		fail("the driver lacks words of 64 bits");
	must(cu.cuMemHostRegister_v2(w, 4096, CU_REG_DEVICEMAP | CU_REG_PORTABLE), "register");
	must(cu.cuMemHostGetDevicePointer_v2(&dev, w, 0), "cuMemHostGetDevicePointer");
	for (uint64_t i = 1; i <= WORD_ROUNDS; i++) {
		atomic_store(&w->written, now());
		must(cu.cuStreamWriteValue64_v2(
			     stream, dev + offsetof(struct words, done), i, CU_WRITE_PLAIN),
			"cuStreamWriteValue64");
		if (!reaches(&w->seen, i))
			fail("the parent does not see the word");
	}
	for (uint64_t i = 1; i <= WORD_ROUNDS; i++) {
		int r;

		must(cu.cuStreamWaitValue64_v2(
			     stream, dev + offsetof(struct words, go), i, CU_WAIT_GEQ),
			"cuStreamWaitValue64");
		atomic_store(&w->armed, i);
		for (double t = now(); (r = cu.cuStreamQuery(stream)) == CU_NOT_READY;)
			if (now() - t > 5.0)
				fail("the stream does not go on");
		must(r, "the waiting stream");
		took[i - 1] = now() - atomic_load(&w->stored);
	}
	n.v[0] = (uint64_t)(quantile(took, WORD_ROUNDS, .5) * 1e9);
	n.v[1] = (uint64_t)(quantile(took, WORD_ROUNDS, .99) * 1e9);
	report(&n);
}

static void q10_words(void)
{
	static double took[WORD_ROUNDS];
	int fd = memfd_create("words", MFD_CLOEXEC);
	struct words *w = fd >= 0 && ftruncate(fd, 4096) == 0 ? words_of(fd) : NULL;
	struct note n = { .ok = 1 };
	struct child c;
	int r = -1;

	if (!w) {
		printf("Q10 not answered: no memory to share\n");
		return;
	}
	c = spawn("words", NULL);
	tell(c.sock, &n, fd);
	/* the child opens the driver before the first word; the others come at once */
	for (uint64_t i = 1; i <= WORD_ROUNDS; i++) {
		for (double t = now(); atomic_load(&w->done) < i && now() - t < 20.0;)
			;
		took[i - 1] = now() - atomic_load(&w->written);
		if (atomic_load(&w->done) < i)
			break;
		atomic_store(&w->seen, i);
	}
	for (uint64_t i = 1; i <= WORD_ROUNDS && atomic_load(&w->done) >= WORD_ROUNDS; i++) {
		if (!reaches(&w->armed, i))
			break;
		nap(0.0002); /* until the stream really waits */
		atomic_store(&w->stored, now());
		atomic_store(&w->go, i);
	}
	r = hear(c.sock, 20.0, &n, NULL);
	if (r == 0 && n.ok == 1)
		printf("Q10 a stream writes a registered page, another process sees it: p50 %.1f "
		       "us, p99 %.1f us from the call on; the CPU stores, a waiting stream has "
		       "gone on: p50 %.1f us, p99 %.1f us\n",
			quantile(took, WORD_ROUNDS, .5) * 1e6,
			quantile(took, WORD_ROUNDS, .99) * 1e6, (double)n.v[0] * 1e-3,
			(double)n.v[1] * 1e-3);
	else
		printf("Q10 not answered: %s\n", r == 0 ? n.text : "no answer");
	finish(&c);
	munmap(w, 4096);
	close(fd);
}

/* ---- 11: when a dead process's memory is free; 13: what a context takes ---- */

#define HELD_BYTES (512 * MIB)

/* Answers each note with the device's free memory. */
static void role_free(const struct note *job, int fd)
{
	struct note n = { .ok = 1 }, more;
	size_t free_bytes, total;

	(void)job;
	(void)fd;
	do {
		must(cu.cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
		n.v[0] = free_bytes;
		report(&n);
	} while (hear(LINK_FD, CHILD_LIFE, &more, NULL) == 0);
}

static uint64_t free_of(struct child *watcher)
{
	struct note n = ask(watcher, -1, 0, 0, 0, 0, NULL);

	return n.ok == 1 ? n.v[0] : 0;
}

/* v: whether to leave a forked child. Imports, maps and stays; v of the answer: the child's pid. */
static void role_hold(const struct note *job, int fd)
{
	struct note n = { .ok = 1 };
	pid_t child = 0;

	seg_map(seg_import(fd), HELD_BYTES, CU_PROT_RW);
	close(fd);
	if (job->v[0]) {
		child = fork();
		if (child == 0) {
			alarm(CHILD_LIFE);
			pause();
			_exit(0);
		}
	}
	n.v[0] = (uint64_t)child;
	report(&n);
	pause();
}

/* v: bytes. Makes a segment, sends it and ends. */
static void role_make(const struct note *job, int fd)
{
	struct note n = { .ok = 1 };

	(void)fd;
	tell(LINK_FD, &n, seg_export(seg_create(job->v[0], device_location())));
}

/* 1: the management library lists the process, 0: it does not, -1: there is none. */
static int listed(pid_t pid)
{
	struct nvml_process all[64];
	unsigned int n = sizeof(all) / sizeof(all[0]);
	struct nvmlDevice_st *device;
	struct kvp_nvml nvml;
	int found = -1;

	if (kvp_nvml_open(&nvml) < 0)
		return -1;
	if (nvml.nvmlDeviceGetHandleByIndex_v2 && nvml.nvmlDeviceGetComputeRunningProcesses_v3 &&
		nvml.nvmlDeviceGetHandleByIndex_v2(0, &device) == NVML_OK &&
		nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &n, all) == NVML_OK) {
		found = 0;
		for (unsigned int i = 0; i < n; i++)
			found |= all[i].pid == (unsigned int)pid;
	}
	kvp_nvml_close(&nvml);
	return found;
}

/* Seconds until so much memory is free, or -1 after `most`. */
static double until_free(struct child *watcher, uint64_t bytes, double most)
{
	double t = now();

	while (now() - t < most) {
		if (free_of(watcher) >= bytes)
			return now() - t;
		nap(0.001);
	}
	return -1.0;
}

static const char *said(double s, char text[40])
{
	if (s < 0.0)
		snprintf(text, 40, "not in 2 s");
	else
		snprintf(text, 40, "after %.1f ms", s * 1e3);
	return text;
}

static void q11_memory_of_the_dead(int forks)
{
	struct child watcher = spawn("free", NULL), maker = spawn("make", NULL),
		     holder = spawn("hold", NULL);
	struct note n = ask(&watcher, -1, 0, 0, 0, 0, NULL), held;
	static const char *const lists[] = { "does not say", "does not list it", "lists it" };
	char a[40], b[40] = "";
	uint64_t before;
	pid_t pid = holder.pid;
	double gone;
	int fd = -1, seen;

	if (n.ok == 1)
		n = ask(&maker, -1, HELD_BYTES, 0, 0, 0, &fd);
	finish(&maker);
	held = n;
	if (n.ok == 1 && fd >= 0)
		held = ask(&holder, fd, (uint64_t)forks, 0, 0, 0, NULL);
	if (fd >= 0)
		close(fd);
	if (held.ok != 1) {
		printf("Q11 not answered: %s\n", held.text);
		goto out;
	}
	nap(0.2);
	before = free_of(&watcher);
	finish(&holder);
	gone = until_free(&watcher, before + HELD_BYTES, 2.0);
	seen = listed(pid);
	if (forks && held.v[0]) {
		double later;

		kill((pid_t)held.v[0], SIGKILL);
		later = until_free(&watcher, before + HELD_BYTES, 2.0);
		snprintf(b, sizeof(b), "%s", said(later, a));
	}
	printf("Q11 SIGKILL of the last holder of %llu MiB%s: free again %s%s%s; the management "
	       "library %s\n",
		(unsigned long long)(HELD_BYTES / MIB),
		forks ? ", whose forked child lives on" : "", said(gone, a),
		forks ? ", once the child is killed too " : "", b, lists[seen + 1]);
out:
	finish(&holder);
	finish(&watcher);
}

/* Answers, and stays with its context. */
static void role_stay(const struct note *job, int fd)
{
	struct note n = { .ok = 1 };

	(void)job;
	(void)fd;
	report(&n);
	pause();
}

static void q13_context(void)
{
	struct child watcher = spawn("free", NULL), other = spawn("stay", NULL);
	struct note n = ask(&watcher, -1, 0, 0, 0, 0, NULL);
	uint64_t before = n.v[0], after;

	nap(0.2);
	before = n.ok == 1 ? free_of(&watcher) : 0;
	if (n.ok == 1)
		n = ask(&other, -1, 0, 0, 0, 0, NULL);
	after = n.ok == 1 ? free_of(&watcher) : 0;
	if (n.ok == 1 && before && after)
		printf("Q13 a context of another process without a module: %.1f MiB of video "
		       "memory\n",
			((double)before - (double)after) / (double)MIB);
	else
		printf("Q13 not answered: %s\n", n.text);
	finish(&other);
	finish(&watcher);
}

/* ---- 12: what fresh memory holds ---- */

/* v: bytes. v of the answer: bytes that are not 0 in new memory, then in that which this process
 * has filled and given back. */
static void role_fresh(const struct note *job, int fd)
{
	size_t bytes = job->v[0];
	uint8_t *host = malloc(bytes);
	struct note n = { .ok = 1 };

	(void)fd;
	if (!host)
		fail("malloc");
	for (int turn = 0; turn < 2; turn++) {
		uint64_t mem = seg_create(bytes, device_location());
		uint64_t at = seg_map(mem, bytes, CU_PROT_RW);

		must(cu.cuMemcpyDtoH_v2(host, at, bytes), "reading");
		for (size_t i = 0; i < bytes; i++)
			n.v[turn] += host[i] != 0;
		must(cu.cuMemsetD8_v2(at, PATTERN, bytes), "filling");
		must(cu.cuCtxSynchronize(), "filling");
		must(cu.cuMemUnmap(at, bytes), "cuMemUnmap");
		must(cu.cuMemRelease(mem), "cuMemRelease");
		must(cu.cuMemAddressFree(at, bytes), "cuMemAddressFree");
	}
	report(&n);
}

static void q12_fresh(void)
{
	struct note first, second;
	struct child c = spawn("fresh", NULL);

	first = ask(&c, -1, 64 * MIB, 0, 0, 0, NULL);
	finish(&c);
	c = spawn("fresh", NULL);
	second = ask(&c, -1, 64 * MIB, 0, 0, 0, NULL);
	finish(&c);
	if (first.ok != 1 || second.ok != 1) {
		printf("Q12 not answered: %s%s\n", first.text, second.text);
		return;
	}
	printf("Q12 fresh memory of cuMemCreate, bytes that are not 0 of 64 MiB: %llu at first, "
	       "%llu in what the process had filled, %llu and %llu in the next process\n",
		(unsigned long long)first.v[0], (unsigned long long)first.v[1],
		(unsigned long long)second.v[0], (unsigned long long)second.v[1]);
}

/* ---- 14: mapping many segments ---- */

#define MANY_SEGMENTS 256
#define TIB           (UINT64_C(1) << 40)

/* Microseconds to map `n` segments and give access to them, one by one; then they are unmapped. */
static uint64_t map_many(uint64_t at, const uint64_t *mem, uint64_t bytes, uint32_t n)
{
	struct cu_access access = { device_location(), CU_PROT_RW };
	double t = now();
	uint64_t took;

	for (uint32_t i = 0; i < n; i++) {
		must(cu.cuMemMap(at + i * bytes, bytes, 0, mem[i], 0), "cuMemMap");
		must(cu.cuMemSetAccess(at + i * bytes, bytes, &access, 1), "cuMemSetAccess");
	}
	took = (uint64_t)((now() - t) * 1e6);
	for (uint32_t i = 0; i < n; i++)
		must(cu.cuMemUnmap(at + i * bytes, bytes), "cuMemUnmap");
	return took;
}

/* v: whether a kernel runs meanwhile. Text of the answer: all of it. */
static void role_map_many(const struct note *job, int fd)
{
	static uint64_t mem[MANY_SEGMENTS];
	struct note n = { .ok = 1 };
	size_t free_bytes = 0, total = 0;
	uint64_t at, bytes = 64 * MIB, took[3], word = device_bytes(4096);
	double t = now();

	(void)fd;
	must(cu.cuMemAddressReserve(&at, TIB, 0, 0, 0), "reserving 1 TiB");
	t = now() - t;
	must(cu.cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
	while (bytes > 2 * MIB && bytes * MANY_SEGMENTS > free_bytes / 2)
		bytes /= 2;
	for (uint32_t i = 0; i < MANY_SEGMENTS; i++)
		mem[i] = seg_create(bytes, device_location());
	if (job->v[0])
		launch("spin", word, UINT64_C(3000000000));
	took[0] = map_many(at, mem, bytes, 1);
	took[1] = map_many(at, mem, bytes, 64);
	took[2] = map_many(at, mem, bytes, MANY_SEGMENTS);
	n.v[0] = job->v[0] && cu.cuStreamQuery(NULL) == CU_NOT_READY;
	snprintf(n.text, sizeof(n.text),
		"1 TiB reserved in %.0f us; map and access of 1, 64, 256 segments of %llu MiB: "
		"%.1f, "
		"%.1f, %.1f us each",
		t * 1e6, (unsigned long long)(bytes / MIB), (double)took[0], (double)took[1] / 64,
		(double)took[2] / MANY_SEGMENTS);
	report(&n);
}

/* v: the thread's mode of capture while it maps. Text: what was returned. */
static void role_map_captured(const struct note *job, int fd)
{
	struct cu_access access = { device_location(), CU_PROT_RW };
	struct CUstream_st *stream = stream_new();
	uint64_t mem = seg_create(2 * MIB, device_location()), at;
	unsigned int mode = (unsigned int)job->v[0];
	struct CUgraph_st *graph = NULL;
	struct note n = { .ok = 1 };
	int map, set, end;

	(void)fd;
	must(cu.cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0), "cuMemAddressReserve");
	must(cu.cuStreamBeginCapture_v2(stream, CU_CAPTURE_GLOBAL), "cuStreamBeginCapture");
	must(cu.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
	map = cu.cuMemMap(at, 2 * MIB, 0, mem, 0);
	set = map == CU_OK ? cu.cuMemSetAccess(at, 2 * MIB, &access, 1) : map;
	must(cu.cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
	end = cu.cuStreamEndCapture(stream, &graph);
	snprintf(n.text, sizeof(n.text), "cuMemMap %s, cuMemSetAccess %s, the capture %s",
		map == CU_OK ? "works" : kvp_cu_name(&cu, map),
		set == CU_OK ? "works" : kvp_cu_name(&cu, set),
		end == CU_OK ? "ends well" : kvp_cu_name(&cu, end));
	report(&n);
}

static void q14_mapping(void)
{
	static const struct {
		const char *name;
		uint64_t mode;
	} modes[] = { { "global", CU_CAPTURE_GLOBAL }, { "relaxed", CU_CAPTURE_RELAXED } };
	struct note n;

	for (uint64_t kernel = 0; kernel < 2; kernel++) {
		struct child c = spawn("map-many", NULL);

		n = ask(&c, -1, kernel, 0, 0, 0, NULL);
		finish(&c);
		printf("Q14 %s: %s%s\n", kernel ? "beside a running kernel" : "idle", n.text,
			!kernel || n.ok != 1 ? ""
			: n.v[0]             ? "; the kernel still ran"
					     : "; the kernel had ended, so mapping waited for it");
	}
	for (size_t i = 0; i < 2; i++) {
		struct child c = spawn("map-captured", NULL);

		n = ask(&c, -1, modes[i].mode, 0, 0, 0, NULL);
		finish(&c);
		printf("Q14 beside a capture of the same thread, in %s mode: %s\n", modes[i].name,
			n.text);
	}
}

/* ---- 15: batches of copies ---- */

#define BATCH_BYTES (256 * MIB)
#define BATCH_MAX   4096

static int batch(uint64_t *to, uint64_t *from, size_t *bytes, size_t n, struct CUstream_st *stream)
{
	struct cu_copy_attr attr = { .order = CU_ORDER_STREAM, .flags = CU_COPY_OVERLAP };
	size_t at = 0, bad;

	if (cu.cuMemcpyBatchAsync_v2)
		return cu.cuMemcpyBatchAsync_v2(to, from, bytes, n, &attr, &at, 1, stream);
	if (cu.cuMemcpyBatchAsync)
		return cu.cuMemcpyBatchAsync(to, from, bytes, n, &attr, &at, 1, &bad, stream);
	return CU_ERR_UNSUPPORTED;
}

/* v: bytes of a piece. Copies 256 MiB to the device in pieces, in reverse order so that none joins
 * the next; v of the answer: MB/s in a loop, in batches of at most 512. */
static void role_batch(const struct note *job, int fd)
{
	static uint64_t to[BATCH_MAX], from[BATCH_MAX];
	static size_t bytes[BATCH_MAX];
	struct CUstream_st *stream = stream_new();
	uint64_t dev = device_bytes(BATCH_BYTES);
	char *host = pinned(BATCH_BYTES);
	uint32_t n = (uint32_t)(BATCH_BYTES / job->v[0]);
	struct note answer = { .ok = 1 };

	(void)fd;
	for (uint32_t i = 0; i < n; i++) {
		to[i] = dev + i * job->v[0];
		from[i] = (uint64_t)(uintptr_t)host + (n - 1 - i) * job->v[0];
		bytes[i] = job->v[0];
	}
	for (int way = 0; way < 2; way++) {
		double best = 1e9;

		for (int turn = 0; turn < 4; turn++) {
			double t = now();

			for (uint32_t i = 0; i < n; i += way ? 512 : 1)
				must(way ? batch(to + i, from + i, bytes + i,
						   n - i < 512 ? n - i : 512, stream)
					 : cu.cuMemcpyHtoDAsync_v2(to[i],
						   (const void *)(uintptr_t)from[i], bytes[i],
						   stream),
					way ? "a batch" : "a copy");
			must(cu.cuStreamSynchronize(stream), "copies");
			best = now() - t < best ? now() - t : best;
		}
		answer.v[way] = (uint64_t)((double)BATCH_BYTES * 1e-6 / best);
	}
	report(&answer);
}

static void q15_batches(void)
{
	static const uint64_t pieces[] = { 64 << 10, 256 << 10, MIB, 8 * MIB };

	printf("Q15 256 MiB to the device, GB/s in a loop, in batches:");
	for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
		struct child c = spawn("batch", NULL);
		struct note n = ask(&c, -1, pieces[i], 0, 0, 0, NULL);

		finish(&c);
		if (n.ok == 1)
			printf("%s %llu KiB %.1f, %.1f", i ? ";" : "",
				(unsigned long long)(pieces[i] >> 10), (double)n.v[0] * 1e-3,
				(double)n.v[1] * 1e-3);
		else
			printf("%s %llu KiB not answered (%s)", i ? ";" : "",
				(unsigned long long)(pieces[i] >> 10), n.text);
	}
	printf("\n");
}

/* ---- 16: pinning ---- */

#define PIN_BYTES (512 * MIB)

/* Answers when it is ready; copies 1 MiB again and again, and answers each further note with the
 * worst of them since the last one, in microseconds. */
static void role_pace(const struct note *job, int fd)
{
	struct CUstream_st *stream = stream_new();
	uint64_t dev = device_bytes(MIB);
	char *host = pinned(MIB);
	struct pollfd p = { .fd = LINK_FD, .events = POLLIN };
	struct note n = { .ok = 1 }, more;

	(void)job;
	(void)fd;
	report(&n);
	for (;;) {
		double t = now(), took;

		must(cu.cuMemcpyHtoDAsync_v2(dev, host, MIB, stream), "copy");
		must(cu.cuStreamSynchronize(stream), "copy");
		took = (now() - t) * 1e6;
		n.v[0] = took > (double)n.v[0] ? (uint64_t)took : n.v[0];
		if (poll(&p, 1, 0) == 0)
			continue;
		if (hear(LINK_FD, 1.0, &more, NULL) < 0)
			return;
		report(&n);
		n.v[0] = 0;
	}
}

/* v: bytes of a piece. Registers the memfd in pieces; v of the answer: microseconds. */
static void role_pin(const struct note *job, int fd)
{
	char *map = mmap(NULL, PIN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	struct note n = { .ok = 1 };
	double t;

	if (map == MAP_FAILED)
		fail("mmap");
	t = now();
	for (size_t at = 0; at < PIN_BYTES; at += job->v[0])
		must(cu.cuMemHostRegister_v2(map + at, job->v[0], CU_REG_PORTABLE), "register");
	n.v[0] = (uint64_t)((now() - t) * 1e6);
	for (size_t at = 0; at < PIN_BYTES; at += job->v[0])
		must(cu.cuMemHostUnregister(map + at), "unregister");
	report(&n);
}

/* A memfd of PIN_BYTES with all of its pages; -1. */
static int pin_memory(unsigned int flags)
{
	int fd = memfd_create("pin", MFD_CLOEXEC | flags);
	void *map;

	if (fd < 0)
		return -1;
	map = ftruncate(fd, (off_t)PIN_BYTES) == 0
		      ? mmap(NULL, PIN_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
		      : MAP_FAILED;
	if (map == MAP_FAILED) {
		close(fd);
		return -1;
	}
	memset(map, (int)PATTERN, PIN_BYTES);
	munmap(map, PIN_BYTES);
	return fd;
}

static void q16_pinning(void)
{
	static const uint64_t pieces[] = { 2 * MIB, 64 * MIB, PIN_BYTES };
	static const char *const pages[] = { "4 KiB pages", "huge pages" };

	for (int huge = 0; huge < 2; huge++) {
		int fd = pin_memory(huge ? MFD_HUGETLB : 0);

		if (fd < 0) {
			printf("Q16 pinning memory of %s: not answered, none to be had\n",
				pages[huge]);
			continue;
		}
		for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
			struct child pace = spawn("pace", NULL), pin = spawn("pin", NULL);
			struct note idle = ask(&pace, -1, 0, 0, 0, 0, NULL), n, beside;

			ask(&pace, -1, 0, 0, 0, 0, NULL); /* its first copies are slow */
			nap(0.3);
			idle = ask(&pace, -1, 0, 0, 0, 0, NULL);
			n = ask(&pin, fd, pieces[i], 0, 0, 0, NULL);
			beside = ask(&pace, -1, 0, 0, 0, 0, NULL);
			finish(&pin);
			finish(&pace);
			if (n.ok == 1 && idle.ok == 1 && beside.ok == 1)
				printf("Q16 pinning memory of %s in pieces of %llu MiB: %.1f GB/s; "
				       "another process's copies of 1 MiB: worst %.2f ms idle, "
				       "%.2f ms meanwhile\n",
					pages[huge], (unsigned long long)(pieces[i] / MIB),
					(double)PIN_BYTES * 1e-3 / (double)(n.v[0] ? n.v[0] : 1),
					(double)idle.v[0] * 1e-3, (double)beside.v[0] * 1e-3);
			else
				printf("Q16 pinning memory of %s in pieces of %llu MiB: %s%s\n",
					pages[huge], (unsigned long long)(pieces[i] / MIB), n.text,
					beside.text);
		}
		close(fd);
	}
}

/* ---- 17: legacy handles ---- */

#define LEGACY_BYTES (64 * MIB)

/* Text of the answer: a handle of filled memory. Stays. */
static void role_legacy_make(const struct note *job, int fd)
{
	uint64_t at = device_bytes(LEGACY_BYTES);
	struct cu_ipc_handle handle;
	struct note n = { .ok = 1 };

	(void)job;
	(void)fd;
	must(cu.cuMemsetD8_v2(at, PATTERN, LEGACY_BYTES), "filling");
	must(cu.cuCtxSynchronize(), "filling");
	must(cu.cuIpcGetMemHandle(&handle, at), "cuIpcGetMemHandle");
	memcpy(n.text, handle.bytes, sizeof(handle.bytes));
	report(&n);
	pause();
}

/* Opens the handle in the job's text; answers this and every further note with the first word. */
static void role_legacy_open(const struct note *job, int fd)
{
	struct cu_ipc_handle handle;
	struct note n = { .ok = 1 }, more;
	uint64_t at;

	(void)fd;
	memcpy(handle.bytes, job->text, sizeof(handle.bytes));
	must(cu.cuIpcOpenMemHandle_v2(&at, handle, CU_IPC_LAZY_PEER), "cuIpcOpenMemHandle");
	do {
		n.v[0] = read_word(at);
		report(&n);
	} while (hear(LINK_FD, CHILD_LIFE, &more, NULL) == 0);
}

static const char *word_said(int r, const struct note *n)
{
	return r < 0                  ? "no answer"
	       : n->ok != 1           ? n->text
	       : n->v[0] == PATTERN64 ? "content intact"
				      : "content CHANGED";
}

static void q17_legacy(void)
{
	static const struct where others[] = { { 0, 0 }, { 1, 0 } };

	for (int uid = 0; uid < 2; uid++) {
		struct child owner, reader;
		struct note handle, n;
		int r;

		if (uid && geteuid() != 0) {
			printf("Q17 a legacy handle in a process of another uid: not answered, "
			       "needs root\n");
			continue;
		}
		owner = spawn("legacy-make", NULL);
		reader = spawn("legacy-open", &others[uid]);
		handle = ask(&owner, -1, 0, 0, 0, 0, NULL);
		if (handle.ok != 1) {
			printf("Q17 not answered: %s\n", handle.text);
			finish(&owner);
			finish(&reader);
			continue;
		}
		tell(reader.sock, &handle, -1);
		r = hear(reader.sock, 60.0, &n, NULL);
		printf("Q17 a legacy handle in a process of %s uid: %s",
			uid ? "another" : "the same", word_said(r, &n));
		finish(&owner);
		nap(1.0);
		if (r == 0 && n.ok == 1) {
			n = ask(&reader, -1, 0, 0, 0, 0, NULL);
			printf("; 1 s after its maker was killed: %s", word_said(0, &n));
		}
		printf("\n");
		finish(&reader);
	}
}

/* ---- */

const struct role more_roles[] = {
	{ "rates", role_rates },
	{ "count", role_count },
	{ "words", role_words },
	{ "free", role_free },
	{ "hold", role_hold },
	{ "make", role_make },
	{ "stay", role_stay },
	{ "fresh", role_fresh },
	{ "map-many", role_map_many },
	{ "map-captured", role_map_captured },
	{ "batch", role_batch },
	{ "pace", role_pace },
	{ "pin", role_pin },
	{ "legacy-make", role_legacy_make },
	{ "legacy-open", role_legacy_open },
};
const size_t more_roles_count = sizeof(more_roles) / sizeof(more_roles[0]);

void ask_more(int question)
{
	switch (question) {
	case 9:
		q9_beside_a_kernel();
		break;
	case 10:
		q10_words();
		break;
	case 11:
		q11_memory_of_the_dead(0);
		q11_memory_of_the_dead(1);
		break;
	case 12:
		q12_fresh();
		break;
	case 13:
		q13_context();
		break;
	case 14:
		q14_mapping();
		break;
	case 15:
		q15_batches();
		break;
	case 16:
		q16_pinning();
		break;
	case 17:
		q17_legacy();
		break;
	default:
		break;
	}
	fflush(stdout);
}
