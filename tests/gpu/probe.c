/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the design of the CUDA backend has to know and no document says: questions to the driver,
 * each answered by what was seen; 9 and later are in probe_more.c. Several processes, since the questions are about sharing;
 * the parent never touches CUDA itself, so that it can fork.
 *
 *	probe [1..17]...	all questions, or only these; root answers more of them
 *
 * Exit status: 0 the questions were put (their answers may be "no"), 1 the program failed, 77 there
 * is no GPU. Uses up to 64 GiB of video memory (never more than half of what is free) for seconds.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/gpu/probe.h"

#define EXIT_SKIP 77
#define NOBODY    65534

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void nap(double s)
{
	struct timespec t = { (time_t)s, (long)((s - (double)(time_t)s) * 1e9) };

	nanosleep(&t, NULL);
}

/* ---- notes ---- */

int tell(int sock, const struct note *n, int fd)
{
	struct iovec io = { .iov_base = (void *)(uintptr_t)n, .iov_len = sizeof(*n) };
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1 };

	if (fd >= 0) {
		m.msg_control = control.bytes;
		m.msg_controllen = sizeof(control.bytes);
		CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
		CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
		CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof(fd));
	}
	return sendmsg(sock, &m, MSG_NOSIGNAL) == (ssize_t)sizeof(*n) ? 0 : -errno;
}

int hear(int sock, double seconds, struct note *ret_n, int *ret_fd)
{
	struct pollfd p = { .fd = sock, .events = POLLIN };
	struct iovec io = { .iov_base = ret_n, .iov_len = sizeof(*ret_n) };
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr m = { .msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes) };
	int fd = -1;
	ssize_t got;

	if (poll(&p, 1, (int)(seconds * 1e3)) == 0)
		return -ETIMEDOUT;
	got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	if (got < 0 &&
		errno == ECONNRESET) /* ended with our note unread; its last one is still there */
		got = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	if (got != (ssize_t)sizeof(*ret_n))
		return -EPIPE;
	if (CMSG_FIRSTHDR(&m) && CMSG_FIRSTHDR(&m)->cmsg_type == SCM_RIGHTS)
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	ret_n->text[sizeof(ret_n->text) - 1] = '\0';
	if (ret_fd)
		*ret_fd = fd;
	else if (fd >= 0)
		close(fd);
	return 0;
}

/* ---- what the children do with CUDA ---- */

struct kvp_cu cu;

void must(int r, const char *fmt, ...)
{
	struct note n = { .ok = 0 };
	va_list ap;
	int len;

	if (r == CU_OK)
		return;
	va_start(ap, fmt);
	len = vsnprintf(n.text, sizeof(n.text), fmt, ap);
	va_end(ap);
	if (len >= 0 && (size_t)len < sizeof(n.text))
		snprintf(n.text + len, sizeof(n.text) - (size_t)len, ": %s", kvp_cu_name(&cu, r));
	tell(LINK_FD, &n, -1);
	exit(0);
}

void report(const struct note *n)
{
	tell(LINK_FD, n, -1);
}

struct cu_location device_location(void)
{
	return (struct cu_location){ CU_LOC_DEVICE, cu.device };
}

uint64_t seg_create(uint64_t bytes, struct cu_location where)
{
	struct cu_alloc_prop prop = { .type = 1, .handle_types = CU_HANDLE_FD, .location = where };
	uint64_t mem;

	must(cu.cuMemCreate(&mem, bytes, &prop, 0), "cuMemCreate of %llu MiB",
		(unsigned long long)(bytes / MIB));
	return mem;
}

int seg_export(uint64_t mem)
{
	int fd = -1;

	must(cu.cuMemExportToShareableHandle(&fd, mem, CU_HANDLE_FD, 0), "export");
	return fd;
}

uint64_t seg_import(int fd)
{
	uint64_t mem;

	must(cu.cuMemImportFromShareableHandle(&mem, (void *)(uintptr_t)fd, CU_HANDLE_FD),
		"import");
	return mem;
}

uint64_t seg_map(uint64_t mem, uint64_t bytes, int prot)
{
	struct cu_access access = { device_location(), prot };
	uint64_t at;

	must(cu.cuMemAddressReserve(&at, bytes, 0, 0, 0), "cuMemAddressReserve");
	must(cu.cuMemMap(at, bytes, 0, mem, 0), "cuMemMap");
	must(cu.cuMemSetAccess(at, bytes, &access, 1), "cuMemSetAccess(%d)", prot);
	return at;
}

/* poke: one store. spin: counts in memory until `ns` nanoseconds have gone by. */
static const char kernels_ptx[] =
	".version 7.0\n.target sm_75\n.address_size 64\n"
	".visible .entry poke(.param .u64 at, .param .u64 value)\n{\n"
	"	.reg .u64 a, v;\n"
	"	ld.param.u64 a, [at];\n	ld.param.u64 v, [value];\n"
	"	st.volatile.global.u64 [a], v;\n	ret;\n}\n"
	".visible .entry spin(.param .u64 at, .param .u64 ns)\n{\n"
	"	.reg .u64 a, n, t0, t, c;\n	.reg .pred p;\n"
	"	ld.param.u64 a, [at];\n	ld.param.u64 n, [ns];\n"
	"	mov.u64 t0, %globaltimer;\n	mov.u64 c, 0;\n"
	"again:\n	add.u64 c, c, 1;\n	st.volatile.global.u64 [a], c;\n"
	"	mov.u64 t, %globaltimer;\n	sub.u64 t, t, t0;\n"
	"	setp.lt.u64 p, t, n;\n	@p bra again;\n	ret;\n}\n";

void launch(const char *name, uint64_t a, uint64_t b)
{
	struct CUfunc_st *f;
	struct CUmod_st *m;
	void *args[] = { &a, &b };

	must(cu.cuModuleLoadData(&m, kernels_ptx), "loading PTX");
	must(cu.cuModuleGetFunction(&f, m, name), "%s", name);
	must(cu.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, args, NULL), "launch of %s", name);
}

uint64_t read_word(uint64_t at)
{
	uint64_t word = 0;

	must(cu.cuMemcpyDtoH_v2(&word, at, sizeof(word)), "reading a word");
	return word;
}

/* ---- roles; each begins with the parent's first note ---- */

/* v: bytes, location type, location id. Sends the fd of a filled segment, then lives on. */
static void role_export(const struct note *job, int fd)
{
	struct cu_location where = { (int)job->v[1], (int)job->v[2] };
	struct note n = { .ok = 1 };
	double t = now();
	uint64_t mem, at;

	(void)fd;
	if (where.type == CU_LOC_DEVICE)
		where = device_location();
	mem = seg_create(job->v[0], where);
	n.v[0] = (uint64_t)((now() - t) * 1e6);
	at = seg_map(mem, job->v[0], CU_PROT_RW);
	must(cu.cuMemsetD8_v2(at, PATTERN, job->v[0]), "filling");
	must(cu.cuCtxSynchronize(), "filling");
	tell(LINK_FD, &n, seg_export(mem));
	pause();
}

/* v: number of 1 GiB segments at most. Sends each fd; the last note has ok = 2. */
static void role_export_many(const struct note *job, int fd)
{
	size_t free_bytes = 0, total = 0;
	struct note n = { .ok = 1 };
	uint64_t count;

	(void)fd;
	must(cu.cuMemGetInfo_v2(&free_bytes, &total), "cuMemGetInfo");
	count = free_bytes / 2 / GIB < job->v[0] ? free_bytes / 2 / GIB : job->v[0];
	for (n.v[0] = 0; n.v[0] < count; n.v[0]++) {
		int out = seg_export(seg_create(GIB, device_location()));

		tell(LINK_FD, &n, out);
		close(out);
	}
	n.ok = 2;
	report(&n);
	pause();
}

/* Imports and maps every fd that comes, until a note without one. v: sum and worst, microseconds of
 * import and of mapping. */
static void role_import_many(const struct note *job, int fd)
{
	struct note n = { .ok = 1 }, in = *job;

	while (fd >= 0) {
		double t0 = now(), t1, t2;
		uint64_t mem = seg_import(fd), map;

		t1 = now();
		seg_map(mem, GIB, CU_PROT_RW);
		t2 = now();
		close(fd);
		map = (uint64_t)((t2 - t1) * 1e6);
		n.v[0]++;
		n.v[1] += (uint64_t)((t1 - t0) * 1e6);
		n.v[2] += map;
		n.v[3] = map > n.v[3] ? map : n.v[3];
		fd = -1;
		if (hear(LINK_FD, CHILD_LIFE, &in, &fd) < 0)
			break;
	}
	report(&n);
}

#define DO_CHECK 0 /* does it hold the pattern? v[0] of the answer: 1 if so */
#define DO_POKE  1 /* a kernel stores v[3] at offset 0 */
#define DO_COPY  2 /* cuMemcpyDtoD over the first bytes */
#define DO_STAY  3 /* answer, then keep the mapping */
#define DO_WATCH 4 /* answer, and on every further note answer with the word at offset 0 */

/* v: bytes, protection, what to do, a value. */
static void role_import(const struct note *job, int fd)
{
	uint64_t at = seg_map(seg_import(fd), job->v[0], (int)job->v[1]), other;
	struct note n = { .ok = 1 }, more;

	switch (job->v[2]) {
	case DO_POKE:
		launch("poke", at, job->v[3]);
		must(cu.cuCtxSynchronize(), "the kernel's store");
		break;
	case DO_COPY:
		must(cu.cuMemAlloc_v2(&other, 4096), "cuMemAlloc");
		must(cu.cuMemsetD8_v2(other, 0x11, 4096), "cuMemset");
		must(cu.cuMemcpyDtoD_v2(at, other, 4096), "cuMemcpyDtoD");
		must(cu.cuCtxSynchronize(), "cuMemcpyDtoD");
		break;
	default:
		break;
	}
	n.v[1] = read_word(at);
	n.v[0] = n.v[1] == PATTERN64 && read_word(at + job->v[0] - 8) == n.v[1];
	report(&n);
	if (job->v[2] == DO_STAY)
		pause();
	while (job->v[2] == DO_WATCH && hear(LINK_FD, CHILD_LIFE, &more, NULL) == 0) {
		n.v[1] = read_word(at);
		report(&n);
	}
}

/* v: bytes, milliseconds. A kernel counts in the segment's first word. */
static void role_spin(const struct note *job, int fd)
{
	uint64_t at = seg_map(seg_import(fd), job->v[0], CU_PROT_RW);
	struct note n = { .ok = 1 };

	launch("spin", at, job->v[1] * 1000000u);
	report(&n);
	must(cu.cuCtxSynchronize(), "the spinning kernel");
	pause();
}

/* v: bytes. A stream waits for the first word to reach 1; then how long that took. */
static void role_wait(const struct note *job, int fd)
{
	uint64_t at = seg_map(seg_import(fd), job->v[0], CU_PROT_RW);
	struct CUstream_st *stream;
	struct note n = { .ok = 1 };
	double t;

	must(cu.cuMemsetD8_v2(at, 0, 64), "clearing the slot");
	must(cu.cuCtxSynchronize(), "clearing the slot");
	must(cu.cuStreamCreate(&stream, CU_STREAM_ASYNC), "cuStreamCreate");
	must(cu.cuStreamWaitValue64_v2(stream, at, 1, CU_WAIT_GEQ), "cuStreamWaitValue64");
	report(&n);
	for (t = now(); now() - t < 30.0; nap(0.0005)) {
		int r = cu.cuStreamQuery(stream);

		if (r == CU_NOT_READY)
			continue;
		must(r, "the waiting stream");
		n.v[0] = (uint64_t)((now() - t) * 1e6);
		report(&n);
		return;
	}
	n.ok = 0;
	snprintf(n.text, sizeof(n.text), "the stream still waits after 30 s");
	report(&n);
}

/* v: bytes, registration flags (UINT64_MAX: do not register). Registers a read-only mapping of the
 * memfd and copies from it. v of the answer: microseconds to register, MB/s, first word right? */
static void role_register(const struct note *job, int fd)
{
	size_t bytes = job->v[0];
	void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
	struct note n = { .ok = 1 };
	uint64_t at;
	double t;

	if (map == MAP_FAILED) {
		n.ok = 0;
		snprintf(n.text, sizeof(n.text), "mmap: errno %d", errno);
		report(&n);
		return;
	}
	t = now();
	if (job->v[1] != UINT64_MAX)
		must(cu.cuMemHostRegister_v2(map, bytes, (unsigned int)job->v[1]),
			"cuMemHostRegister(flags %u)", (unsigned int)job->v[1]);
	n.v[0] = (uint64_t)((now() - t) * 1e6);
	must(cu.cuMemAlloc_v2(&at, bytes), "cuMemAlloc");
	must(cu.cuMemcpyHtoD_v2(at, map, bytes), "copy");
	t = now();
	must(cu.cuMemcpyHtoDAsync_v2(at, map, bytes, NULL), "copy");
	must(cu.cuCtxSynchronize(), "copy");
	n.v[1] = (uint64_t)((double)bytes * 1e-6 / (now() - t));
	n.v[2] = read_word(at) == PATTERN64;
	report(&n);
}

/* v: bytes, NUMA node. Imports host memory for GPU and CPU; v[0] of the answer: the CPU read it. */
static void role_import_host(const struct note *job, int fd)
{
	struct cu_access both[2] = { { device_location(), CU_PROT_RW },
		{ { CU_LOC_HOST_NUMA, (int)job->v[1] }, CU_PROT_RW } };
	struct note n = { .ok = 1 };
	uint64_t mem = seg_import(fd), at, out;
	double t;

	must(cu.cuMemAddressReserve(&at, job->v[0], 0, 0, 0), "cuMemAddressReserve");
	must(cu.cuMemMap(at, job->v[0], 0, mem, 0), "cuMemMap");
	must(cu.cuMemSetAccess(at, job->v[0], both, 2), "cuMemSetAccess for the CPU");
	n.v[0] = *(const volatile unsigned char *)(uintptr_t)at == PATTERN;
	must(cu.cuMemAlloc_v2(&out, job->v[0]), "cuMemAlloc");
	t = now();
	must(cu.cuMemcpyDtoDAsync_v2(out, at, job->v[0], NULL), "copy");
	must(cu.cuCtxSynchronize(), "copy");
	n.v[1] = (uint64_t)((double)job->v[0] * 1e-6 / (now() - t));
	report(&n);
}

/* v of the answer: NUMA node of the GPU, whether HOST_NUMA, fds and read-only registration work. */
static void role_hello(const struct note *job, int fd)
{
	int numa = -1, host_numa = 0, vmm = 0, posix_fd = 0, ro = 0, version = 0;
	struct note n = { .ok = 1 };
	char name[100] = "?";

	(void)job;
	(void)fd;
	cu.cuDeviceGetAttribute(&numa, CU_ATTR_HOST_NUMA_ID, cu.device);
	cu.cuDeviceGetAttribute(&host_numa, CU_ATTR_HOST_NUMA_VMM, cu.device);
	cu.cuDeviceGetAttribute(&vmm, CU_ATTR_VMM, cu.device);
	cu.cuDeviceGetAttribute(&posix_fd, CU_ATTR_POSIX_FD, cu.device);
	cu.cuDeviceGetAttribute(&ro, CU_ATTR_READ_ONLY_REG, cu.device);
	cu.cuDriverGetVersion(&version);
	cu.cuDeviceGetName(name, sizeof(name), cu.device);
	n.v[0] = (uint64_t)(numa < 0 ? 0 : numa);
	n.v[1] = (uint64_t)host_numa;
	n.v[2] = (uint64_t)(vmm && posix_fd);
	n.v[3] = (uint64_t)ro;
	snprintf(n.text, sizeof(n.text), "%s, driver %d.%d", name, version / 1000,
		version % 1000 / 10);
	report(&n);
}

static const struct role roles[] = {
	{ "hello", role_hello },
	{ "export", role_export },
	{ "export-many", role_export_many },
	{ "import", role_import },
	{ "import-many", role_import_many },
	{ "import-host", role_import_host },
	{ "spin", role_spin },
	{ "wait", role_wait },
	{ "register", role_register },
};

static int run_role(const char *name)
{
	struct note job, n = { .ok = -1 };
	int fd = -1;

	alarm(CHILD_LIFE);
	if (hear(LINK_FD, CHILD_LIFE, &job, &fd) < 0)
		return 1;
	if (kvp_cu_open(0, &cu, n.text) < 0) {
		tell(LINK_FD, &n, -1);
		return 0;
	}
	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++)
		if (strcmp(roles[i].name, name) == 0)
			roles[i].run(&job, fd);
	for (size_t i = 0; i < more_roles_count; i++)
		if (strcmp(more_roles[i].name, name) == 0)
			more_roles[i].run(&job, fd);
	return 0;
}

/* ---- the parent ---- */

static int self_fd = -1;

static void become(const char *role, int sock, const struct where *w)
{
	char *const argv[] = { (char *)(uintptr_t) "probe", (char *)(uintptr_t) "--role",
		(char *)(uintptr_t)role, NULL };

	if (dup2(sock, LINK_FD) < 0)
		_exit(1);
	if (w->other_pids) {
		pid_t inner;

		if (unshare(CLONE_NEWPID) < 0)
			_exit(1);
		inner = fork();
		if (inner != 0) {
			if (inner > 0)
				waitpid(inner, NULL, 0);
			_exit(inner < 0);
		}
	}
	if (w->other_uid && (setgid(NOBODY) < 0 || setuid(NOBODY) < 0))
		_exit(1);
	fexecve(self_fd, argv, environ);
	_exit(1);
}

struct child spawn(const char *role, const struct where *w)
{
	static const struct where here;
	struct child c = { .pid = -1, .pidfd = -1, .sock = -1 };
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return c;
	c.pid = fork();
	if (c.pid == 0)
		become(role, pair[1], w ? w : &here);
	close(pair[1]);
	c.sock = pair[0];
	if (c.pid > 0)
		c.pidfd = (int)syscall(SYS_pidfd_open, c.pid, 0);
	return c;
}

void finish(struct child *c)
{
	if (c->pid > 0) {
		kill(c->pid, SIGKILL);
		waitpid(c->pid, NULL, 0);
	}
	if (c->pidfd >= 0)
		close(c->pidfd);
	if (c->sock >= 0)
		close(c->sock);
	*c = (struct child){ -1, -1, -1 };
}

struct note ask(
	struct child *c, int fd, uint64_t a, uint64_t b, uint64_t d, uint64_t e, int *ret_fd)
{
	struct note n = { .ok = 1, .v = { a, b, d, e } };
	int r = -EPIPE;

	/* a child that has already given up has left a note: read it even if none can be sent */
	if (c->sock >= 0) {
		tell(c->sock, &n, fd);
		r = hear(c->sock, 90.0, &n, ret_fd);
	}
	if (r < 0) {
		memset(&n, 0, sizeof(n));
		snprintf(n.text, sizeof(n.text), "%s",
			r == -ETIMEDOUT ? "no answer in 90 s" : "the process died");
	}
	return n;
}

/* One import in a process of its own. */
static struct note import_once(
	int fd, uint64_t bytes, int prot, uint64_t what, uint64_t value, const struct where *w)
{
	struct child c = spawn("import", w);
	struct note n = ask(&c, fd, bytes, (uint64_t)prot, what, value, NULL);

	finish(&c);
	return n;
}

static const char *held(const struct note *n)
{
	return n->ok != 1 ? n->text : n->v[0] ? "content intact" : "content CHANGED";
}

int segment(struct child *ret_owner, int question)
{
	struct note n;
	int fd = -1;

	*ret_owner = spawn("export", NULL);
	n = ask(ret_owner, -1, 64 * MIB, CU_LOC_DEVICE, 0, 0, &fd);
	if (n.ok == 1 && fd >= 0)
		return fd;
	printf("Q%d  not answered: no segment: %s\n", question, n.text);
	finish(ret_owner);
	return -1;
}

static int runs(const char *comm)
{
	char command[120];

	snprintf(command, sizeof(command), "cat /proc/[0-9]*/comm 2>/dev/null | grep -q '^%.15s'",
		comm);
	return system(command) == 0;
}

static void q1_outlives(void)
{
	struct child owner, reader;
	struct note n;
	int fd = segment(&owner, 1);

	if (fd < 0)
		return;
	finish(&owner);
	nap(2.0);
	n = import_once(fd, 64 * MIB, CU_PROT_RW, DO_CHECK, 0, NULL);
	printf("Q1  VRAM by an fd alone, exporter killed 2 s before, no CUDA process left: %s "
	       "(nvidia-persistenced %s; repeat with the other)\n",
		held(&n), runs("nvidia-persiste") ? "runs" : "does not run");
	close(fd);

	fd = segment(&owner, 1);
	if (fd < 0)
		return;
	reader = spawn("import", NULL);
	n = ask(&reader, fd, 64 * MIB, CU_PROT_RW, DO_WATCH, 0, NULL);
	close(fd);
	finish(&owner);
	nap(1.0);
	if (n.ok == 1)
		n = ask(&reader, -1, 0, 0, 0, 0, NULL);
	printf("Q1  VRAM by an importer's mapping, exporter killed, fd closed: %s\n",
		n.ok != 1             ? n.text
		: n.v[1] == PATTERN64 ? "content intact"
				      : "content CHANGED");
	finish(&reader);
}

static void q2_read_only(void)
{
	static const struct {
		const char *name;
		uint64_t what;
		int prot;
	} tries[] = {
		{ "mapped PROT_READ, a kernel stores", DO_POKE, CU_PROT_READ },
		{ "mapped PROT_READ, cuMemcpyDtoD into it", DO_COPY, CU_PROT_READ },
		{ "importer maps READWRITE by itself and stores", DO_POKE, CU_PROT_RW },
	};

	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		struct child owner;
		int fd = segment(&owner, 2);
		struct note n, after;

		if (fd < 0)
			return;
		n = import_once(fd, 64 * MIB, tries[i].prot, tries[i].what, 7, NULL);
		after = import_once(fd, 64 * MIB, CU_PROT_RW, DO_CHECK, 0, NULL);
		printf("Q2  %s: %s; afterwards %s\n", tries[i].name,
			n.ok == 1 ? "no error" : n.text, held(&after));
		close(fd);
		finish(&owner);
	}
}

static void q3_map_time(void)
{
	struct child from = spawn("export-many", NULL), to = spawn("import-many", NULL);
	struct note n;
	int fd = -1;

	n = ask(&from, -1, 64, 0, 0, 0, &fd);
	while (n.ok == 1 && fd >= 0) {
		tell(to.sock, &n, fd);
		close(fd);
		fd = -1;
		if (hear(from.sock, 90.0, &n, &fd) < 0)
			break;
	}
	if (n.ok == 2)
		n = ask(&to, -1, 0, 0, 0, 0, NULL);
	if (n.ok == 1 && n.v[0] > 0)
		printf("Q3  %llu segments of 1 GiB: import %.1f us, map and set access %.1f us "
		       "each "
		       "(worst %llu us)\n",
			(unsigned long long)n.v[0], (double)n.v[1] / (double)n.v[0],
			(double)n.v[2] / (double)n.v[0], (unsigned long long)n.v[3]);
	else
		printf("Q3  not answered: %s\n", n.text[0] ? n.text : "no room for 1 GiB");
	finish(&from);
	finish(&to);
}

static void q4_who_imports(void)
{
	static const struct {
		const char *name;
		struct where where;
	} tries[] = {
		{ "another uid", { 1, 0 } },
		{ "another PID namespace", { 0, 1 } },
		{ "another uid and PID namespace", { 1, 1 } },
	};

	for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
		struct child owner;
		struct note n;
		int fd;

		if (geteuid() != 0) {
			printf("Q4  import by %s: not answered, needs root\n", tries[i].name);
			continue;
		}
		fd = segment(&owner, 4);
		if (fd < 0)
			return;
		n = import_once(fd, 64 * MIB, CU_PROT_RW, DO_CHECK, 0, &tries[i].where);
		printf("Q4  import by %s: %s\n", tries[i].name, held(&n));
		close(fd);
		finish(&owner);
	}
	if (runs("nvidia-cuda-mps"))
		printf("Q4  MPS runs: all answers above and below are answers under MPS\n");
	else
		printf("Q4  MPS does not run: import under MPS not answered\n");
}

static void q5_death(void)
{
	struct child owner, spinner, watcher;
	struct note a = { .ok = 0 }, b = { .ok = 0 }, n;
	struct pollfd p = { .events = POLLIN };
	int fd = segment(&owner, 5), r;
	double t, gone;

	if (fd < 0)
		return;
	watcher = spawn("import", NULL);
	spinner = spawn("spin", NULL);
	n = ask(&watcher, fd, 64 * MIB, CU_PROT_RW, DO_WATCH, 0, NULL);
	if (n.ok == 1)
		n = ask(&spinner, fd, 64 * MIB, 20000, 0, 0, NULL);
	nap(0.5);
	p.fd = spinner.pidfd;
	t = now();
	kill(spinner.pid, SIGKILL);
	r = poll(&p, 1, 60000);
	gone = now() - t;
	if (n.ok == 1 && r == 1) {
		a = ask(&watcher, -1, 0, 0, 0, 0, NULL);
		nap(1.0);
		b = ask(&watcher, -1, 0, 0, 0, 0, NULL);
	}
	if (a.ok == 1 && b.ok == 1)
		printf("Q5  SIGKILL under a running kernel: pidfd readable after %.1f ms, count "
		       "%llu; "
		       "1 s later %llu: GPU writes %s\n",
			gone * 1e3, (unsigned long long)a.v[1], (unsigned long long)b.v[1],
			a.v[1] == 0        ? "were never seen"
			: a.v[1] == b.v[1] ? "had stopped before"
					   : "WENT ON");
	else
		printf("Q5  not answered: %s%s\n", n.ok == 1 ? "" : n.text,
			r == 1 ? a.text : " pidfd not readable in 60 s");
	close(fd);
	finish(&spinner);
	finish(&watcher);
	finish(&owner);
}

/* A sealed memfd full of the pattern, opened again for reading only. -1: none to be had. */
static int sealed_memfd(size_t bytes, unsigned int flags)
{
	int fd = memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags), ro;
	char path[40];
	void *map;

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0) {
		if (fd >= 0)
			close(fd);
		return -1;
	}
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED) {
		close(fd);
		return -1;
	}
	memset(map, PATTERN, bytes);
	munmap(map, bytes);
	fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	ro = open(path, O_RDONLY | O_CLOEXEC);
	close(fd);
	return ro;
}

static void q6_register(void)
{
	static const struct {
		const char *name;
		uint64_t flags;
	} tries[] = {
		{ "not registered", UINT64_MAX },
		{ "registered with flags 0", 0 },
		{ "registered READ_ONLY", CU_REG_READ_ONLY },
	};
	static const char *const pages[] = { "4 KiB pages", "huge pages" };
	const size_t bytes = 256 * MIB;

	for (int huge = 0; huge < 2; huge++) {
		int fd = sealed_memfd(bytes, huge ? MFD_HUGETLB : 0);

		if (fd < 0) {
			printf("Q6  read-only memfd of %s: not answered, none to be had\n",
				pages[huge]);
			continue;
		}
		for (size_t i = 0; i < sizeof(tries) / sizeof(tries[0]); i++) {
			struct child c = spawn("register", NULL);
			struct note n = ask(&c, fd, bytes, tries[i].flags, 0, 0, NULL);

			finish(&c);
			if (n.ok == 1)
				printf("Q6  read-only memfd, %s, %s: %.1f ms, then %.1f GB/s to "
				       "the "
				       "GPU%s\n",
					pages[huge], tries[i].name, (double)n.v[0] * 1e-3,
					(double)n.v[1] * 1e-3, n.v[2] ? "" : ", content WRONG");
			else
				printf("Q6  read-only memfd, %s, %s: %s\n", pages[huge],
					tries[i].name, n.text);
		}
		close(fd);
	}
}

static void q7_host_numa(const struct note *hello)
{
	struct child owner, reader;
	struct note made, n;
	int fd = -1;

	if (!hello->v[1]) {
		printf("Q7  HOST_NUMA: the device says that it does not support it\n");
		return;
	}
	owner = spawn("export", NULL);
	made = ask(&owner, -1, 256 * MIB, CU_LOC_HOST_NUMA, hello->v[0], 0, &fd);
	if (made.ok != 1 || fd < 0) {
		printf("Q7  HOST_NUMA: %s\n", made.text);
		finish(&owner);
		return;
	}
	reader = spawn("import-host", NULL);
	n = ask(&reader, fd, 256 * MIB, hello->v[0], 0, 0, NULL);
	if (n.ok == 1)
		printf("Q7  HOST_NUMA on node %llu: 256 MiB made in %.1f ms, imported elsewhere by "
		       "fd, "
		       "CPU read %s, GPU reads it at %.1f GB/s (compare Q6)\n",
			(unsigned long long)hello->v[0], (double)made.v[0] * 1e-3,
			n.v[0] ? "right" : "WRONG", (double)n.v[1] * 1e-3);
	else
		printf("Q7  HOST_NUMA: made in %.1f ms, importing it: %s\n",
			(double)made.v[0] * 1e-3, n.text);
	close(fd);
	finish(&reader);
	finish(&owner);
}

static void q8_dead_signaller(void)
{
	struct child owner, waiter;
	struct note n, poke;
	int fd = segment(&owner, 8), r;
	double t;

	if (fd < 0)
		return;
	waiter = spawn("wait", NULL);
	n = ask(&waiter, fd, 64 * MIB, 0, 0, 0, NULL);
	finish(&owner); /* it would have signalled */
	if (n.ok != 1) {
		printf("Q8  not answered: %s\n", n.text);
		goto out;
	}
	r = hear(waiter.sock, 3.0, &n, NULL);
	printf("Q8  WaitValue64 on a slot whose signaller was killed: %s\n",
		r == -ETIMEDOUT ? "still waits after 3 s, no error"
		: r < 0         ? "the waiter died"
		: n.ok == 1     ? "RETURNED without a signal"
				: n.text);
	if (r == -ETIMEDOUT) {
		poke = import_once(fd, 64 * MIB, CU_PROT_RW, DO_POKE, 1, NULL);
		t = now();
		r = hear(waiter.sock, 40.0, &n, NULL);
		printf("Q8  a third process stores the value for the dead: %s; the waiter %s "
		       "(%.1f ms after that process was done)\n",
			poke.ok == 1 ? "stored" : poke.text,
			r == 0 && n.ok == 1 ? "woke" : "did NOT wake", (now() - t) * 1e3);
	}
out:
	close(fd);
	finish(&waiter);
}

/* This program, at a number beyond LINK_FD, which is kept taken: dup2 to it must never be a no-op.
 */
static int open_self(void)
{
	int fd;

	do {
		fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	} while (fd >= 0 && fd <= LINK_FD);
	return fd < 0 ? -errno : fd;
}

static int wanted(int argc, char **argv, int question)
{
	for (int i = 1; i < argc; i++)
		if (atoi(argv[i]) == question)
			return 1;
	return argc == 1;
}

int main(int argc, char **argv)
{
	struct child c;
	struct note hello;

	if (argc == 3 && strcmp(argv[1], "--role") == 0)
		return run_role(argv[2]);
	self_fd = open_self();
	if (self_fd < 0) {
		printf("cannot open my own program: errno %d\n", -self_fd);
		return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	c = spawn("hello", NULL);
	hello = ask(&c, -1, 0, 0, 0, 0, NULL);
	finish(&c);
	if (hello.ok == -1) {
		printf("skipped, no GPU run: %s\n", hello.text);
		return EXIT_SKIP;
	}
	if (hello.ok != 1) {
		printf("cannot use the GPU: %s\n", hello.text);
		return 1;
	}
	printf("%s%s\n", hello.text,
		hello.v[2] ? "" : " (says that it cannot share VMM memory by fd)");
	if (wanted(argc, argv, 1))
		q1_outlives();
	if (wanted(argc, argv, 2))
		q2_read_only();
	if (wanted(argc, argv, 3))
		q3_map_time();
	if (wanted(argc, argv, 4))
		q4_who_imports();
	if (wanted(argc, argv, 5))
		q5_death();
	if (wanted(argc, argv, 6))
		q6_register();
	if (wanted(argc, argv, 7))
		q7_host_numa(&hello);
	if (wanted(argc, argv, 8))
		q8_dead_signaller();
	for (int q = MORE_FIRST; q <= MORE_LAST; q++)
		if (wanted(argc, argv, q))
			ask_more(q);
	return 0;
}
