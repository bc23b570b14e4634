/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cudadrv/child.h"

#define LIFE 60 /* seconds; nothing hangs for ever */

struct kvp_cu cu;
static struct CUmod_st *module;
static struct cudadrv *volatile parents; /* not the child's to close */
int child_link = -1;
int child_answers = -1;
const char *child_case = "";
struct cudadrv *machine;
char machine_folder[64];

void child_check(int got, int want, const char *what, const char *file, int line)
{
	const char *name = NULL;

	if (got == want)
		return;
	if (cu.cuGetErrorName)
		cu.cuGetErrorName(got, &name);
	if (child_answers >= 0) {
		dprintf(child_answers, "%s: %s is %d and not %d\n", child_case, what, got, want);
		_exit(CHILD_DIFFERS);
	}
	fprintf(stderr, "%s:%d: %s gave %d (%s), not %d\n", file, line, what, got,
		name ? name : "?", want);
	_exit(99);
}

void child_needs(int is, const char *what, const char *file, int line)
{
	if (is)
		return;
	if (child_answers < 0)
		fprintf(stderr, "%s:%d: there has to be %s\n", file, line, what);
	_exit(CHILD_LACKS);
}

void child_load(void)
{
	char why[KVP_CU_WHY];

	if (kvp_cu_load(&cu, why) < 0) {
		fprintf(stderr, "%s\n", why);
		_exit(98);
	}
}

void child_open(void)
{
	char why[KVP_CU_WHY];

	if (kvp_cu_open(0, &cu, why) < 0) {
		fprintf(stderr, "%s\n", why);
		_exit(98);
	}
	/* now: a capture under way would forbid it */
	must(cu.cuModuleLoadData(&module, cudadrv_ptx));
}

pid_t child_start(void (*work)(void))
{
	pid_t pid = fork();

	if (pid == 0) {
		alarm(LIFE);
		/* a lock of the parent's description would not keep the parent out */
		parents = machine;
		if (machine)
			cudadrv_open(machine_folder, &machine);
		signal(SIGSEGV, SIG_DFL); /* the test library's would go on with the next test */
		work();
		_exit(0);
	}
	return pid;
}

int child_end(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

int child_run(void (*work)(void))
{
	return child_end(child_start(work));
}

pid_t child_start_linked(void (*work)(void), int *ret_link)
{
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -1;
	child_link = pair[1];
	pid = child_start(work);
	close(pair[1]);
	*ret_link = pair[0];
	return pid;
}

void child_tell(int link, uint64_t word, int fd)
{
	struct iovec io = { &word, sizeof(word) };
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
	if (sendmsg(link, &m, MSG_NOSIGNAL) != (ssize_t)sizeof(word))
		fprintf(stderr, "a note was not sent: errno %d\n", errno);
}

uint64_t child_hear(int link, int *ret_fd)
{
	struct pollfd p = { .fd = link, .events = POLLIN };
	uint64_t word = UINT64_MAX;
	struct iovec io = { &word, sizeof(word) };
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr m = { .msg_iov = &io,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes) };
	int fd = -1;

	if (poll(&p, 1, 20000) != 1 || recvmsg(link, &m, MSG_CMSG_CLOEXEC) != sizeof(word)) {
		fprintf(stderr, "no note came\n");
		return UINT64_MAX;
	}
	if (CMSG_FIRSTHDR(&m))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
	if (ret_fd)
		*ret_fd = fd;
	else if (fd >= 0)
		close(fd);
	return word;
}

/* ---- short forms ---- */

uint64_t seg_reserve(uint64_t bytes)
{
	uint64_t at;

	must(cu.cuMemAddressReserve(&at, bytes, 0, 0, 0));
	return at;
}

uint64_t seg_map(uint64_t handle, uint64_t bytes, int prot)
{
	struct cu_access access = { { CU_LOC_DEVICE, cu.device }, prot };
	uint64_t at = seg_reserve(bytes);

	must(cu.cuMemMap(at, bytes, 0, handle, 0));
	if (prot)
		must(cu.cuMemSetAccess(at, bytes, &access, 1));
	return at;
}

uint64_t seg_new(uint64_t bytes, int handle_types, uint64_t *ret_handle)
{
	struct cu_alloc_prop prop = { .type = CU_MEM_PINNED,
		.handle_types = handle_types,
		.location = { CU_LOC_DEVICE, cu.device } };

	must(cu.cuMemCreate(ret_handle, bytes, &prop, 0));
	return seg_map(*ret_handle, bytes, CU_PROT_RW);
}

int seg_export(uint64_t handle)
{
	int fd = -1;

	must(cu.cuMemExportToShareableHandle(&fd, handle, CU_HANDLE_FD, 0));
	return fd;
}

uint64_t seg_import(int fd)
{
	uint64_t handle;

	must(cu.cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_HANDLE_FD));
	return handle;
}

struct CUstream_st *stream_new(void)
{
	struct CUstream_st *s;

	must(cu.cuStreamCreate(&s, CU_STREAM_ASYNC));
	return s;
}

int launch(struct CUstream_st *stream, const char *name, uint64_t a, uint64_t b, uint64_t c,
	uint64_t d, uint64_t e)
{
	void *params[] = { &a, &b, &c, &d, &e };
	struct CUfunc_st *f;

	must(cu.cuModuleGetFunction(&f, module, name));
	return cu.cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
}

uint64_t read_word(uint64_t at)
{
	uint64_t word = 0;

	must(cu.cuMemcpyDtoH_v2(&word, at, sizeof(word)));
	return word;
}

/* ---- the machine ---- */

int machine_setup(const struct cudadrv_config *config)
{
	machine = NULL;
	snprintf(machine_folder, sizeof(machine_folder), "%s/cudadrv-test.XXXXXX",
		access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	if (!mkdtemp(machine_folder) || setenv("KVP_SIM_GPU", machine_folder, 1) < 0)
		return -1;
	setenv("KVP_SIM_QUIET", "1", 1);
	return cudadrv_new(machine_folder, config, &machine);
}

void machine_teardown(void)
{
	char command[100];

	machine = cudadrv_close(machine);
	snprintf(command, sizeof(command), "rm -rf '%s'", machine_folder);
	if (system(command) != 0)
		fprintf(stderr, "%s stays\n", machine_folder);
}
