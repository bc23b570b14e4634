/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated machine as several processes see it: who holds memory, what streams do in which
 * order, and what goes wrong on command.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/cudadrv/child.h"

#define VRAM    (512 * MIB)
#define CONTEXT (32 * MIB)
#define SEG     (64 * MIB)
#define NOBODY  65534

static void nap_ms(long ms)
{
	const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

static uint64_t free_now(void)
{
	uint64_t bytes = 0;

	assert_int_equal(cudadrv_free_bytes(machine, 0, &bytes), 0);
	return bytes;
}

static void no_reports(void)
{
	if (cudadrv_reports(machine, CUDADRV_REPORTS_N))
		for (uint32_t i = 0; i < CUDADRV_REPORTS_N; i++)
			if (cudadrv_reports(machine, i))
				print_error("reported: %s\n", cudadrv_report_name(i));
	assert_int_equal(cudadrv_reports(machine, CUDADRV_REPORTS_N), 0);
}

static int before_each(void **state)
{
	(void)state;
	return cudadrv_clear(machine) < 0 || cudadrv_forget(machine) < 0;
}

/* ---- who holds memory ---- */

static uint64_t device_alloc(uint64_t bytes)
{
	uint64_t at;

	must(cu.cuMemAlloc_v2(&at, bytes));
	return at;
}

/* Exports a segment full of a pattern and lives on. */
static void exporter(void)
{
	uint64_t handle, at;
	int fd;

	child_open();
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	must(launch(NULL, "fill", at, SEG, 77, 0, 0));
	must(cu.cuCtxSynchronize());
	fd = seg_export(handle);
	child_tell(child_link, 1, fd);
	close(fd);
	pause();
}

static uint64_t wrong_words(uint64_t at, uint64_t bytes, uint64_t key)
{
	uint64_t bad = device_alloc(8);

	must(cu.cuMemsetD8_v2(bad, 0, 8));
	must(launch(NULL, "check", at, bytes, key, bad, 0));
	must(cu.cuCtxSynchronize());
	return read_word(bad);
}

/* Imports what comes by its link, checks it, says so and lives on. */
static void importer(void)
{
	uint64_t at;
	int fd = -1;

	child_open();
	child_hear(child_link, &fd);
	at = seg_map(seg_import(fd), SEG, CU_PROT_READ);
	close(fd);
	holds(wrong_words(at, SEG, 77) == 0);
	child_tell(child_link, 1, -1);
	pause();
}

static void kill_child(pid_t pid)
{
	kill(pid, SIGKILL);
	assert_int_equal(child_end(pid), SIGKILL);
}

static void a_descriptor_holds_memory(void **state)
{
	pid_t from, to;
	int link, other, fd = -1;

	(void)state;
	assert_int_equal(free_now(), VRAM);
	from = child_start_linked(exporter, &link);
	assert_int_equal(child_hear(link, &fd), 1);
	assert_int_equal(free_now(), VRAM - CONTEXT - SEG);
	kill_child(from);
	assert_int_equal(free_now(), VRAM - SEG);

	/* the contents outlive their maker, too */
	to = child_start_linked(importer, &other);
	child_tell(other, 1, fd);
	assert_int_equal(child_hear(other, NULL), 1);
	close(fd);
	assert_int_equal(free_now(), VRAM - CONTEXT - SEG - 65536);
	kill_child(to);
	assert_int_equal(free_now(), VRAM);
	close(link);
	close(other);
	no_reports();
}

static void a_descriptor_in_flight_holds_memory(void **state)
{
	int link, pair[2], fd = -1;
	pid_t from;

	(void)state;
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	from = child_start_linked(exporter, &link);
	assert_int_equal(child_hear(link, &fd), 1);
	child_tell(pair[0], 1, fd);
	close(fd);
	kill_child(from);
	assert_int_equal(free_now(), VRAM - SEG);
	close(pair[0]);
	close(pair[1]);
	assert_int_equal(free_now(), VRAM);
	close(link);
	no_reports();
}

static void sleeper(void)
{
	pause();
}

/* Its child keeps what it had mapped, as a forked data loader does. */
static void forker(void)
{
	uint64_t handle;
	pid_t child;

	child_open();
	seg_new(SEG, CU_HANDLE_FD, &handle);
	child = child_start(sleeper);
	child_tell(child_link, (uint64_t)child, -1);
	pause();
}

static void a_forked_child_holds_memory(void **state)
{
	int link;
	pid_t parent = child_start_linked(forker, &link);
	pid_t child = (pid_t)child_hear(link, NULL);

	(void)state;
	assert_int_equal(free_now(), VRAM - CONTEXT - SEG);
	kill_child(parent);
	assert_int_equal(free_now(), VRAM - CONTEXT - SEG);
	kill(child, SIGKILL);
	for (int i = 0; i < 1000 && free_now() != VRAM; i++)
		nap_ms(5); /* somebody else reaps it */
	assert_int_equal(free_now(), VRAM);
	close(link);
	no_reports();
}

/* Takes the machine's lock all the time. */
static void busy_forker(void)
{
	uint64_t free, total;
	pid_t child;

	child_open();
	child = child_start(sleeper);
	child_tell(child_link, (uint64_t)child, -1);
	for (;;)
		must(cu.cuMemGetInfo_v2(&free, &total));
}

/* One that is killed with the lock may have a child that has all its files. */
static void a_forked_child_holds_no_lock(void **state)
{
	(void)state;
	for (int i = 0; i < 16; i++) {
		int link;
		pid_t parent = child_start_linked(busy_forker, &link);
		pid_t child = (pid_t)child_hear(link, NULL);

		nap_ms(1 + i % 4);
		kill_child(parent);
		alarm(20);
		assert_int_equal(free_now(), VRAM - CONTEXT);
		alarm(0);
		kill(child, SIGKILL);
		for (int k = 0; k < 1000 && free_now() != VRAM; k++)
			nap_ms(5);
		close(link);
	}
	assert_int_equal(free_now(), VRAM);
	no_reports();
}

static void other_user(void)
{
	if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
		_exit(77);
	importer();
}

static void another_user_imports(void **state)
{
	int link, other, fd = -1;
	pid_t from, to;

	(void)state;
	if (geteuid() != 0)
		skip();
	from = child_start_linked(exporter, &link);
	assert_int_equal(child_hear(link, &fd), 1);
	to = child_start_linked(other_user, &other);
	child_tell(other, 1, fd);
	assert_int_equal(child_hear(other, NULL), 1);
	close(fd);
	kill_child(from);
	kill_child(to);
	close(link);
	close(other);
	assert_int_equal(free_now(), VRAM);
	no_reports();
}

static void fill_the_device(void)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED, .location = { CU_LOC_DEVICE, 0 } };
	size_t left, total;
	uint64_t handle[9], extra;
	uint32_t n = 0;

	child_open();
	while (n < 9 && cu.cuMemCreate(&handle[n], SEG, &prop, 0) == CU_OK)
		n++;
	holds(n == 7); /* the context has the place of the eighth */
	must(cu.cuMemGetInfo_v2(&left, &total));
	holds(total == VRAM && left == VRAM - CONTEXT - 7 * SEG);
	gives(CU_ERR_NO_MEMORY, cu.cuMemAlloc_v2(&extra, SEG));
	must(cu.cuMemRelease(handle[3]));
	must(cu.cuMemAlloc_v2(&extra, SEG));
	must(cu.cuMemFree_v2(extra));
}

static void capacity_is_the_machine_s(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++)
		assert_int_equal(child_run(fill_the_device), 0);
	assert_int_equal(free_now(), VRAM);
	no_reports();
}

/* A mapping keeps memory when its handle is released. */
static void release_before_unmap(void)
{
	uint64_t handle, at;
	size_t before, after, total;

	child_open();
	must(cu.cuMemGetInfo_v2(&before, &total));
	at = seg_new(SEG, CU_HANDLE_FD, &handle);
	must(cu.cuMemRelease(handle));
	must(cu.cuMemsetD8_v2(at, 1, SEG));
	must(cu.cuCtxSynchronize());
	must(cu.cuMemGetInfo_v2(&after, &total));
	holds(before - after == SEG);
	must(cu.cuMemUnmap(at, SEG));
	must(cu.cuMemGetInfo_v2(&after, &total));
	holds(before == after);
}

static void mappings_hold_memory(void **state)
{
	(void)state;
	assert_int_equal(child_run(release_before_unmap), 0);
	no_reports();
}

static void fresh_is_poison(void)
{
	uint64_t handle, at;

	child_open();
	at = seg_new(SEG, 0, &handle);
	holds(read_word(at + SEG - 8) != 0);
	must(cu.cuMemsetD8_v2(at, 0, SEG));
	must(cu.cuCtxSynchronize());
	holds(read_word(at) == 0 && read_word(at + SEG - 8) == 0);
}

static void fresh_memory_is_poison(void **state)
{
	(void)state;
	assert_int_equal(child_run(fresh_is_poison), 0);
	no_reports();
}

static void touch_device_memory(void)
{
	uint64_t handle;

	child_open();
	*(volatile char *)(uintptr_t)seg_new(SEG, 0, &handle) = 1;
}

static void the_host_faults_on_device_memory(void **state)
{
	int status = child_run(touch_device_memory);

	(void)state;
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	no_reports();
}

/* ---- pins ---- */

static void seal_while_pinned(void)
{
	int fd = memfd_create("arena", MFD_CLOEXEC | MFD_ALLOW_SEALING), ro;
	char path[40];
	void *p;

	child_open();
	holds(ftruncate(fd, MIB) == 0);
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(p, 1, MIB);
	munmap(p, MIB);
	/* read-only through and through: the mapping alone would not keep the seal away */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	p = mmap(NULL, MIB, PROT_READ, MAP_SHARED, ro, 0);
	must(cu.cuMemHostRegister_v2(p, MIB, CU_REG_READ_ONLY));
	holds(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0);
	must(cu.cuMemHostUnregister(p));
	holds(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
}

static void pins_defeat_the_write_seal(void **state)
{
	(void)state;
	assert_int_equal(child_run(seal_while_pinned), 0);
	no_reports();
}

/* ---- streams ---- */

static void fifo(void)
{
	struct CUstream_st *s;
	struct CUevent_st *start, *end;
	uint64_t at;
	float ms = -1;

	child_open();
	at = device_alloc(8);
	s = stream_new();
	must(cu.cuEventCreate(&start, 0));
	must(cu.cuEventCreate(&end, CU_EVENT_BLOCKING));
	must(cu.cuEventQuery(end)); /* never recorded */
	must(cu.cuEventRecord(start, s));
	must(launch(s, "spin", at, 20000000, 0, 0, 0));
	for (uint64_t i = 1; i <= 100; i++)
		must(launch(s, "poke", at, i, 0, 0, 0));
	must(cu.cuEventRecord(end, s));
	gives(CU_NOT_READY, cu.cuEventQuery(end));
	gives(CU_NOT_READY, cu.cuStreamQuery(s));
	must(cu.cuEventSynchronize(end));
	must(cu.cuStreamQuery(s));
	must(cu.cuEventElapsedTime(&ms, start, end));
	holds(ms >= 20.0f);
	holds(read_word(at) == 100);
}

static void streams_are_queues(void **state)
{
	(void)state;
	assert_int_equal(child_run(fifo), 0);
	no_reports();
}

/* Blocking streams and the default one wait for each other, others do not. */
static void default_stream(void)
{
	struct CUstream_st *blocking, *async = NULL;
	uint64_t at, other;

	child_open();
	at = device_alloc(8);
	other = device_alloc(8);
	must(cu.cuStreamCreateWithPriority(&blocking, 0, -1));
	async = stream_new();
	must(launch(blocking, "spin", at, 50000000, 0, 0, 0));
	must(launch(NULL, "poke", at, 5, 0, 0, 0));
	must(launch(async, "poke", other, 6, 0, 0, 0));
	must(cu.cuStreamSynchronize(async));
	gives(CU_NOT_READY, cu.cuStreamQuery(NULL));
	must(cu.cuStreamSynchronize(NULL));
	holds(read_word(at) == 5);
}

static void the_default_stream_waits(void **state)
{
	(void)state;
	assert_int_equal(child_run(default_stream), 0);
	no_reports();
}

/* A stream of one process waits for what a stream of another writes into shared host memory. */
static uint64_t *page;

static uint64_t device_page(void)
{
	uint64_t at;

	must(cu.cuMemHostRegister_v2(page, 4096, CU_REG_PORTABLE | CU_REG_DEVICEMAP));
	must(cu.cuMemHostGetDevicePointer_v2(&at, page, 0));
	return at;
}

static void waiter(void)
{
	struct CUstream_st *s;
	uint64_t at;

	child_open();
	at = device_page();
	s = stream_new();
	must(cu.cuStreamWaitValue64_v2(s, at, 3, CU_WAIT_GEQ));
	must(cu.cuStreamWriteValue64_v2(s, at + 8, 1, CU_WRITE_PLAIN));
	gives(CU_NOT_READY, cu.cuStreamQuery(s));
	child_tell(child_link, 1, -1);
	must(cu.cuStreamSynchronize(s));
}

static void signaller(void)
{
	struct CUstream_st *s;
	uint64_t at;

	child_open();
	at = device_page();
	s = stream_new();
	must(cu.cuStreamWriteValue64_v2(s, at, 4, CU_WRITE_PLAIN));
	must(cu.cuStreamSynchronize(s));
}

static void values_cross_processes(void **state)
{
	pid_t waits;
	int link;

	(void)state;
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(page, MAP_FAILED);
	waits = child_start_linked(waiter, &link);
	assert_int_equal(child_hear(link, NULL), 1);
	assert_int_equal(page[1], 0);
	assert_int_equal(child_run(signaller), 0);
	assert_int_equal(child_end(waits), 0);
	assert_int_equal(page[1], 1);
	munmap(page, 4096);
	close(link);
	no_reports();
}

static void graph(void)
{
	struct CUgraphExec_st *exec;
	struct CUgraph_st *g;
	struct CUstream_st *s;
	unsigned int status = 9;
	uint64_t at, bad;

	child_open();
	at = device_alloc(65536);
	bad = device_alloc(8);
	s = stream_new();
	must(cu.cuMemsetD8_v2(bad, 0, 8));
	must(cu.cuCtxSynchronize());
	must(cu.cuStreamBeginCapture_v2(s, CU_CAPTURE_LOCAL));
	must(launch(s, "fill", at, 65536, 8, 0, 0));
	must(launch(s, "check", at, 65536, 8, bad, 0));
	must(cu.cuStreamIsCapturing(s, &status));
	holds(status == CU_CAPTURE_ACTIVE);
	must(cu.cuStreamEndCapture(s, &g));
	must(cu.cuGraphInstantiateWithFlags(&exec, g, 0));
	must(cu.cuGraphDestroy(g));
	must(cu.cuStreamSynchronize(s));
	holds(read_word(at) != cudadrv_pattern(8, 0)); /* captured, not run */
	for (int i = 0; i < 3; i++)
		must(cu.cuGraphLaunch(exec, s));
	must(cu.cuStreamSynchronize(s));
	holds(read_word(at) == cudadrv_pattern(8, 0) && read_word(bad) == 0);
	must(cu.cuGraphExecDestroy(exec));
}

static void graphs_run_what_was_captured(void **state)
{
	(void)state;
	assert_int_equal(child_run(graph), 0);
	no_reports();
}

static void pointers(void)
{
	uint64_t handle, seg, at, mapped, start;
	struct cu_location where = { CU_LOC_DEVICE, 0 };
	unsigned long long access;
	unsigned int type, managed;
	int ordinal, ipc, is;
	size_t bytes;
	void *host;

	child_open();
	seg = seg_new(SEG, CU_HANDLE_FD, &handle);
	at = device_alloc(5000);
	must(cu.cuMemHostAlloc(&host, 4096, CU_REG_PORTABLE | CU_REG_DEVICEMAP));
	must(cu.cuPointerGetAttribute(&type, CU_PTR_MEMORY_TYPE, seg + 8));
	must(cu.cuPointerGetAttribute(&ordinal, CU_PTR_ORDINAL, at + 4999));
	must(cu.cuPointerGetAttribute(&ipc, CU_PTR_LEGACY_IPC, seg));
	must(cu.cuPointerGetAttribute(&managed, CU_PTR_MANAGED, seg));
	holds(type == CU_MEMORY_DEVICE && ordinal == 0 && ipc == 0 && managed == 0);
	must(cu.cuPointerGetAttribute(&start, CU_PTR_START, at + 100));
	must(cu.cuPointerGetAttribute(&bytes, CU_PTR_BYTES, at + 100));
	holds(start == at && bytes == 5000);
	must(cu.cuPointerGetAttribute(&type, CU_PTR_MEMORY_TYPE, (uintptr_t)host));
	must(cu.cuPointerGetAttribute(&mapped, CU_PTR_DEVICE, (uintptr_t)host));
	must(cu.cuMemHostGetDevicePointer_v2(&start, host, 0));
	holds(type == CU_MEMORY_HOST && mapped == start);
	must(cu.cuPointerGetAttribute(&is, CU_PTR_MAPPED, (uintptr_t)&is));
	holds(!is);
	gives(CU_ERR_INVALID_VALUE,
		cu.cuPointerGetAttribute(&type, CU_PTR_MEMORY_TYPE, (uintptr_t)&is));
	must(cu.cuMemGetAccess(&access, &where, seg));
	holds(access == CU_PROT_RW);
	must(cu.cuMemFreeHost(host));
}

static void pointers_say_what_they_are(void **state)
{
	(void)state;
	assert_int_equal(child_run(pointers), 0);
	no_reports();
}

static void devices(void)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED, .location = { CU_LOC_DEVICE, 0 } };
	struct CUctx_st *ctx, *popped, *of_stream;
	struct CUfunc_st *f;
	struct CUmod_st *m;
	struct cu_uuid uuid;
	uint8_t said[16];
	unsigned int flags;
	int active, device, version, value;
	size_t bytes;
	char text[64];

	child_open();
	must(cu.cuDeviceGetUuid_v2(&uuid, cu.device));
	holds(cudadrv_uuid(machine, 0, said) == 0 && memcmp(said, uuid.bytes, 16) == 0);
	holds(kvp_cu_find(&cu, said, &device) == 0 && device == cu.device);
	must(cu.cuDeviceGetName(text, sizeof(text), cu.device));
	must(cu.cuDeviceGetPCIBusId(text, sizeof(text), cu.device));
	must(cu.cuDeviceTotalMem_v2(&bytes, cu.device));
	holds(bytes == VRAM);
	must(cu.cuDeviceGetAttribute(&value, CU_ATTR_POSIX_FD, cu.device));
	holds(value == 1 && strcmp(kvp_cu_name(&cu, 700), "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
	must(cu.cuDriverGetVersion(&version));
	holds(version == 13000);
	must(cu.cuDevicePrimaryCtxSetFlags_v2(cu.device, CU_SCHED_BLOCKING));
	must(cu.cuDevicePrimaryCtxGetState(cu.device, &flags, &active));
	holds(active && flags == CU_SCHED_BLOCKING);
	must(cu.cuCtxGetCurrent(&ctx));
	must(cu.cuCtxPushCurrent_v2(ctx));
	must(cu.cuCtxPopCurrent_v2(&popped));
	must(cu.cuCtxGetDevice(&device));
	must(cu.cuStreamGetCtx(stream_new(), &of_stream));
	holds(ctx == popped && device == cu.device && of_stream == ctx);
	must(cu.cuMemGetAllocationGranularity(&bytes, &prop, CU_GRAN_MINIMUM));
	holds(bytes == 2 * MIB);
	must(cu.cuModuleLoadData(&m, cudadrv_ptx));
	gives(500, cu.cuModuleGetFunction(&f, m, "nothing"));
	must(cu.cuModuleGetFunction(&f, m, "fill"));
	must(cu.cuFuncSetAttribute(f, CU_FUNC_MAX_DYNAMIC_SMEM, 1024));
	must(cu.cuFuncGetAttribute(&value, CU_FUNC_LOCAL_BYTES, f));
	must(cu.cuModuleUnload(m));
	must(cu.cuCtxSetCurrent(NULL));
}

static void devices_say_what_they_are(void **state)
{
	(void)state;
	assert_int_equal(child_run(devices), 0);
	no_reports();
}

/* ---- what a killed process leaves ---- */

static uint64_t shared_seg(int fd)
{
	return seg_map(seg_import(fd), SEG, CU_PROT_RW);
}

static uint32_t hanging;

static void filler(void)
{
	uint64_t at;
	int fd = -1;

	child_open();
	child_hear(child_link, &fd);
	at = shared_seg(fd);
	must(launch(stream_new(), "fill", at, SEG, 1, 0, 0));
	while (cudadrv_hit(machine, hanging) == 0)
		nap_ms(1);
	child_tell(child_link, 1, -1);
	pause();
}

static void reader(void)
{
	uint64_t at;
	int fd = -1;

	child_open();
	child_hear(child_link, &fd);
	at = shared_seg(fd);
	(void)read_word(at + 8);
}

/* The fill of one process hangs; another reads there while it lives, and after it was killed. */
static void writes_of_the_dead_linger(void **state)
{
	const struct cudadrv_fault hang = {
		.function = "op:kernel", .action = CUDADRV_HANG, .times = 1
	};
	int link[4], fd = -1;
	pid_t owner, writer, late[2];

	(void)state;
	owner = child_start_linked(exporter, &link[0]);
	assert_int_equal(child_hear(link[0], &fd), 1);
	assert_int_equal(cudadrv_set(machine, &hang, &hanging), 0);
	writer = child_start_linked(filler, &link[1]);
	child_tell(link[1], 1, fd);
	assert_int_equal(child_hear(link[1], NULL), 1);
	late[0] = child_start_linked(reader, &link[2]);
	child_tell(link[2], 1, fd);
	assert_int_equal(child_end(late[0]), 0);
	assert_int_equal(cudadrv_reports(machine, CUDADRV_HAZARD), 1);
	kill_child(writer);
	late[1] = child_start_linked(reader, &link[3]);
	child_tell(link[3], 1, fd);
	assert_int_equal(child_end(late[1]), 0);
	assert_int_equal(cudadrv_reports(machine, CUDADRV_HAZARD), 2);
	kill_child(owner);
	close(fd);
	for (int i = 0; i < 4; i++)
		close(link[i]);
}

/* ---- killed anywhere ---- */

#define KILLS 60

/* Something of everything, until somebody ends it. */
static void busy(void)
{
	struct CUstream_st *s;
	uint8_t *p;
	uint64_t bad;

	child_open();
	p = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(cu.cuMemHostRegister_v2(p, MIB, CU_REG_PORTABLE | CU_REG_DEVICEMAP));
	bad = device_alloc(8);
	s = stream_new();
	must(cu.cuMemsetD8Async(bad, 0, 8, s));
	for (;;) {
		uint64_t made, taken, a, b;
		int fd;

		a = seg_new(4 * MIB, CU_HANDLE_FD, &made);
		fd = seg_export(made);
		taken = seg_import(fd);
		b = seg_map(taken, 4 * MIB, CU_PROT_READ);
		close(fd);
		must(launch(s, "fill", a, 4 * MIB, 3, 0, 0));
		must(launch(s, "check", b, 4 * MIB, 3, bad, 0));
		must(cu.cuMemcpyDtoHAsync_v2(p, b, MIB, s));
		must(cu.cuMemcpyHtoDAsync_v2(a, p, MIB, s));
		must(cu.cuStreamSynchronize(s));
		must(cu.cuMemUnmap(b, 4 * MIB));
		must(cu.cuMemAddressFree(b, 4 * MIB));
		must(cu.cuMemUnmap(a, 4 * MIB));
		must(cu.cuMemAddressFree(a, 4 * MIB));
		must(cu.cuMemRelease(taken));
		must(cu.cuMemRelease(made));
	}
}

/* Wherever they die: no lock stays, no memory, nobody else's work is harmed. */
static void the_killed_leave_nothing(void **state)
{
	pid_t pid[3];
	uint32_t n = 0;

	(void)state;
	for (int i = 0; i < 3; i++)
		pid[i] = child_start(busy);
	for (int i = 0; i < KILLS; i++) {
		nap_ms(3 + i * 7 % 23);
		kill_child(pid[i % 3]);
		pid[i % 3] = child_start(busy);
	}
	for (int i = 0; i < 3; i++)
		kill_child(pid[i]);
	assert_int_equal(free_now(), VRAM);
	assert_int_equal(cudadrv_segments(machine, &n), 0);
	assert_int_equal(n, 0);
	no_reports();
}

/* ---- host memory that two processes registered ---- */

#define POOL_SLOTS 2
static int pool_fd;

static uint8_t *pool_map(void)
{
	void *p = mmap(NULL, POOL_SLOTS * MIB, PROT_READ | PROT_WRITE, MAP_SHARED, pool_fd, 0);

	holds(p != MAP_FAILED);
	must(cu.cuMemHostRegister_v2(p, POOL_SLOTS * MIB, CU_REG_PORTABLE));
	return p;
}

/* A copy from the device into slot 0 that hangs. */
static void spiller(void)
{
	uint64_t at;
	uint8_t *p;

	child_open();
	p = pool_map();
	at = device_alloc(MIB);
	must(cu.cuMemcpyDtoHAsync_v2(p, at, MIB, stream_new()));
	while (cudadrv_hit(machine, hanging) == 0)
		nap_ms(1);
	child_tell(child_link, 1, -1);
	pause();
}

static void warm(uint64_t slot)
{
	struct CUstream_st *s;
	uint8_t *p;

	child_open();
	p = pool_map();
	s = stream_new();
	must(cu.cuMemcpyHtoDAsync_v2(device_alloc(MIB), p + slot * MIB, MIB, s));
	must(cu.cuStreamSynchronize(s));
}

static void warm_first(void)
{
	warm(0);
}

static void warm_second(void)
{
	warm(1);
}

/* Each process has the pool at its own address: the file says that the bytes are the same. */
static void hazards_are_seen_in_shared_host_memory(void **state)
{
	const struct cudadrv_fault hang = {
		.function = "op:copy", .action = CUDADRV_HANG, .times = 1
	};
	pid_t spills;
	int link;

	(void)state;
	pool_fd = memfd_create("pool", MFD_CLOEXEC);
	assert_true(pool_fd >= 0 && ftruncate(pool_fd, POOL_SLOTS * MIB) == 0);
	assert_int_equal(cudadrv_set(machine, &hang, &hanging), 0);
	spills = child_start_linked(spiller, &link);
	assert_int_equal(child_hear(link, NULL), 1);
	assert_int_equal(child_run(warm_second), 0);
	no_reports();
	assert_int_equal(child_run(warm_first), 0);
	assert_int_equal(cudadrv_reports(machine, CUDADRV_HAZARD), 1);
	kill_child(spills);
	close(link);
	close(pool_fd);
}

/* ---- all of it ---- */

static void ipc_taker(void)
{
	struct cu_ipc_handle ipc;
	uint64_t at;
	int fd = -1;

	child_open();
	child_hear(child_link, &fd);
	holds(pread(fd, &ipc, sizeof(ipc), 0) == (ssize_t)sizeof(ipc));
	must(cu.cuIpcOpenMemHandle_v2(&at, ipc, CU_IPC_LAZY_PEER));
	must(cu.cuIpcCloseMemHandle(at));
}

static void ipc_giver(void)
{
	int fd = memfd_create("handle", MFD_CLOEXEC), link;
	pid_t taker = child_start_linked(ipc_taker, &link);
	struct cu_ipc_handle ipc;

	child_open();
	must(cu.cuIpcGetMemHandle(&ipc, device_alloc(4096)));
	holds(pwrite(fd, &ipc, sizeof(ipc), 0) == (ssize_t)sizeof(ipc));
	child_tell(link, 1, fd);
	holds(child_end(taker) == 0);
}

/* What no other test here calls. */
static void the_others(void)
{
	struct cu_copy_attr attr = { .order = CU_ORDER_STREAM };
	struct cu_alloc_prop prop;
	struct CUstream_st *s;
	struct CUevent_st *e;
	unsigned int mode = CU_CAPTURE_RELAXED;
	uint64_t handle, seg, at, host;
	size_t n = 4096, first = 0, fail;
	void *p;

	child_open();
	must(cu.cuThreadExchangeStreamCaptureMode(&mode));
	holds(mode == CU_CAPTURE_GLOBAL);
	seg = seg_new(SEG, CU_HANDLE_FD, &handle);
	must(cu.cuMemGetAllocationPropertiesFromHandle(&prop, handle));
	must(cu.cuMemUnmap(seg, SEG));
	must(cu.cuMemRelease(handle));
	must(cu.cuMemAddressFree(seg, SEG));
	at = device_alloc(8192);
	must(cu.cuMemHostAlloc(&p, 8192, CU_REG_PORTABLE));
	host = (uintptr_t)p;
	memset(p, 0x42, 8192);
	s = stream_new();
	must(cu.cuEventCreate(&e, CU_EVENT_NO_TIMING));
	must(cu.cuMemcpyHtoD_v2(at, p, 4096));
	must(cu.cuMemcpyDtoD_v2(at + 4096, at, 4096));
	must(cu.cuCtxSynchronize());
	holds(read_word(at + 8184) == UINT64_C(0x4242424242424242));
	must(cu.cuMemcpyDtoDAsync_v2(at, at + 4096, 4096, s));
	must(cu.cuMemsetD8Async(at + 4096, 1, 4096, s));
	must(cu.cuMemcpyBatchAsync(&at, &host, &n, 1, &attr, &first, 1, &fail, s));
	must(cu.cuMemcpyBatchAsync_v2(&at, &host, &n, 1, &attr, &first, 1, s));
	must(cu.cuEventRecord(e, s));
	must(cu.cuStreamWaitEvent(s, e, 0));
	must(cu.cuMemcpyDtoHAsync_v2(p, at, 4096, s));
	must(cu.cuStreamSynchronize(s));
	must(cu.cuEventDestroy_v2(e));
	must(cu.cuStreamDestroy_v2(s));
	must(cu.cuMemFreeHost(p));
	must(cu.cuMemFree_v2(at));
	must(cu.cuDevicePrimaryCtxRelease_v2(cu.device));
}

/* The last test: what the driver has has been called, by this program alone. */
static void every_entry_point_is_called(void **state)
{
	(void)state;
	assert_int_equal(child_run(ipc_giver), 0);
	assert_int_equal(child_run(the_others), 0);
	no_reports();
	for (uint32_t i = 0; cudadrv_function(i); i++)
		if (cudadrv_calls(machine, cudadrv_function(i)) == 0)
			print_error("%s is not called\n", cudadrv_function(i));
	for (uint32_t i = 0; cudadrv_function(i); i++)
		assert_true(cudadrv_calls(machine, cudadrv_function(i)) > 0);
}

int main(void)
{
#define EACH(test) cmocka_unit_test_setup(test, before_each)
	const struct CMUnitTest tests[] = {
		EACH(a_descriptor_holds_memory),
		EACH(a_descriptor_in_flight_holds_memory),
		EACH(a_forked_child_holds_memory),
		EACH(a_forked_child_holds_no_lock),
		EACH(another_user_imports),
		EACH(capacity_is_the_machine_s),
		EACH(mappings_hold_memory),
		EACH(fresh_memory_is_poison),
		EACH(the_host_faults_on_device_memory),
		EACH(pins_defeat_the_write_seal),
		EACH(streams_are_queues),
		EACH(the_default_stream_waits),
		EACH(values_cross_processes),
		EACH(graphs_run_what_was_captured),
		EACH(pointers_say_what_they_are),
		EACH(devices_say_what_they_are),
		EACH(writes_of_the_dead_linger),
		EACH(the_killed_leave_nothing),
		EACH(hazards_are_seen_in_shared_host_memory),
		EACH(every_entry_point_is_called),
	};
	const struct cudadrv_config c = {
		.vram_bytes = VRAM, .context_bytes = CONTEXT, .linger_ns = UINT64_C(10000000000)
	};
	int failed;

	if (machine_setup(&c) < 0)
		return 1;
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	machine_teardown();
	return failed;
}
