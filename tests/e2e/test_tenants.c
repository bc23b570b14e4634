/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants: the same tokens under another uid do not hit; no descriptor or mapping of another
 * tenant's segments ever reaches a client; nothing that belongs to the daemon or to another client
 * can be written, whatever is tried; shares hold under pressure. Needs root, to become two uids.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/e2e/e2e.h"

#define ALICE      20001u
#define BOB        20002u
#define ALSO_ALICE 20003u
#define TOKENS     (E2E_BT * 6)
#define MAX_INODES 256u

static struct kvt_daemon daemon_;

static void become(uid_t uid)
{
	if (setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
		e2e_die("setresuid", errno);
}

/* Runs fn as uid in a process of its own; returns its exit status. */
static int as(uid_t uid, int (*fn)(void))
{
	pid_t pid = e2e_fork();

	if (!pid) {
		become(uid);
		_exit(fn());
	}
	return e2e_reap(pid);
}

static int store_prompt(void)
{
	uint32_t tokens[TOKENS];
	struct e2e e;

	e2e_prompt(1, tokens, TOKENS);
	if (e2e_attach(&e, daemon_.socket) < 0)
		return 1;
	if (e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false) != 6)
		return 2;
	if (kvp_flush(e.client, E2E_WAIT_MS) < 0 || e2e_fetch_all(&e, tokens, TOKENS) != TOKENS)
		return 3;
	e2e_detach(&e);
	return 0;
}

static int fetch_prompt(void)
{
	uint32_t tokens[TOKENS];
	struct e2e e;
	int r;

	e2e_prompt(1, tokens, TOKENS);
	if (e2e_attach(&e, daemon_.socket) < 0)
		return 100;
	r = e2e_fetch(&e, tokens, TOKENS);
	e2e_detach(&e);
	return r < 0 ? 101 : r;
}

static void no_hit_across_tenants(void **state)
{
	(void)state;
	assert_int_equal(as(ALICE, store_prompt), 0);
	assert_int_equal(as(BOB, fetch_prompt), 0);
	/* A uid that the administrator put into alice's tenant does hit. */
	assert_int_equal(as(ALSO_ALICE, fetch_prompt), TOKENS);
	assert_int_equal(as(ALICE, fetch_prompt), TOKENS);
}

/* Inodes of all memfds that a process has open or mapped. */
static uint32_t memfd_inodes(pid_t pid, ino_t *out, uint32_t max)
{
	char path[64], line[1024];
	uint32_t n = 0;
	struct dirent *entry;
	DIR *d;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)pid);
	d = opendir(path);
	while (d && (entry = readdir(d)) && n < max) {
		char link[384], target[256];
		struct stat st;
		ssize_t len;

		snprintf(link, sizeof(link), "%s/%s", path, entry->d_name);
		len = readlink(link, target, sizeof(target) - 1);
		if (len <= 0)
			continue;
		target[len] = 0;
		if (!strncmp(target, "/memfd:", 7) && stat(link, &st) == 0)
			out[n++] = st.st_ino;
	}
	if (d)
		closedir(d);
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "re");
	while (f && n < max && fgets(line, sizeof(line), f)) {
		unsigned long inode;

		if (strstr(line, "/memfd:") && sscanf(line, "%*s %*s %*s %*s %lu", &inode) == 1 &&
			inode)
			out[n++] = inode;
	}
	if (f)
		fclose(f);
	return n;
}

/* Attaches as uid, works a little, stays. */
static pid_t resident(uid_t uid, int ready)
{
	pid_t pid = e2e_fork();
	uint32_t tokens[TOKENS];
	struct e2e e;

	if (pid)
		return pid;
	become(uid);
	/* /proc/PID/fd of a process that changed its uid belongs to root; the parent is root. */
	e2e_prompt(1, tokens, TOKENS);
	if (e2e_attach(&e, daemon_.socket) < 0 ||
		e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false) < 0 ||
		kvp_flush(e.client, E2E_WAIT_MS) < 0 ||
		e2e_fetch_all(&e, tokens, TOKENS) != TOKENS || write(ready, "x", 1) != 1)
		_exit(1);
	for (;;)
		pause();
}

static void no_segment_of_another_tenant(void **state)
{
	ino_t alice[MAX_INODES], bob[MAX_INODES];
	uint32_t n_alice, n_bob;
	int pipefd[2];
	pid_t a, b;
	char byte;
	(void)state;

	assert_int_equal(pipe(pipefd), 0);
	a = resident(ALICE, pipefd[1]);
	b = resident(BOB, pipefd[1]);
	assert_int_equal(read(pipefd[0], &byte, 1), 1);
	assert_int_equal(read(pipefd[0], &byte, 1), 1);
	n_alice = memfd_inodes(a, alice, MAX_INODES);
	n_bob = memfd_inodes(b, bob, MAX_INODES);
	/* Catalog, page and at least one extent, open or mapped. */
	assert_true(n_alice >= 3);
	assert_true(n_bob >= 3);
	for (uint32_t i = 0; i < n_alice; i++)
		for (uint32_t k = 0; k < n_bob; k++)
			assert_true(alice[i] != bob[k]);
	kill(a, SIGKILL);
	kill(b, SIGKILL);
	e2e_reap(a);
	e2e_reap(b);
	close(pipefd[0]);
	close(pipefd[1]);
}

/* Tries to write into every memfd mapping of this process that is not writable already. */
static int try_to_write(void)
{
	uint32_t tokens[TOKENS], read_only = 0;
	char line[1024], target[256], link[64];
	struct dirent *entry;
	struct e2e e;
	FILE *f;
	DIR *d;
	int mem;

	e2e_prompt(1, tokens, TOKENS);
	if (e2e_attach(&e, daemon_.socket) < 0 || e2e_fetch_all(&e, tokens, TOKENS) != TOKENS)
		return 1;
	mem = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
	f = fopen("/proc/self/maps", "re");
	while (f && fgets(line, sizeof(line), f)) {
		unsigned long from, to, inode;
		char perms[8];

		if (!strstr(line, "/memfd:") ||
			sscanf(line, "%lx-%lx %7s %*s %*s %lu", &from, &to, perms, &inode) != 4 ||
			perms[1] == 'w')
			continue;
		read_only++;
		if (mprotect((void *)from, to - from, PROT_READ | PROT_WRITE) == 0)
			return 2;
		if (mem >= 0 && pwrite(mem, "x", 1, (off_t)from) == 1)
			return 3;
	}
	if (f)
		fclose(f);
	/* The catalog and one vault or foreign arena at least. */
	if (read_only < 2)
		return 4;
	d = opendir("/proc/self/fd");
	while (d && (entry = readdir(d))) {
		ssize_t len;
		int fd, again;

		snprintf(link, sizeof(link), "/proc/self/fd/%.20s", entry->d_name);
		len = readlink(link, target, sizeof(target) - 1);
		if (len <= 0)
			continue;
		target[len] = 0;
		/* The session page is this client's own to write. */
		if (strncmp(target, "/memfd:", 7) || strstr(target, "session"))
			continue;
		fd = atoi(entry->d_name);
		if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED)
			return 5;
		again = open(link, O_RDWR | O_CLOEXEC);
		if (again >= 0 && mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0) !=
					  MAP_FAILED)
			return 6;
		if (fchmod(fd, 0777) == 0 || ftruncate(fd, 4096) == 0)
			return 7;
	}
	if (d)
		closedir(d);
	e2e_detach(&e);
	return 0;
}

static void nothing_foreign_is_writable(void **state)
{
	(void)state;
	assert_int_equal(as(ALICE, store_prompt) & ~2, 0);
	/* Another process of the same tenant: what alice's process wrote is read-only for it. */
	assert_int_equal(as(ALSO_ALICE, try_to_write), 0);
}

/* Takes all it can get. Returns 0 if it was held to something below the machine's memory. */
static int greedy(void)
{
	uint32_t tokens[TOKENS];
	struct e2e e;

	if (e2e_attach(&e, daemon_.socket) < 0)
		return 1;
	for (uint32_t p = 0; p < 3000; p++) {
		int r;

		e2e_prompt(p, tokens, TOKENS);
		r = e2e_store(&e, tokens, TOKENS, 2000, false);
		if (r < 0 && r != -EAGAIN && r != -ETIMEDOUT)
			return 2;
	}
	e2e_detach(&e);
	return 0;
}

static void shares_hold_under_pressure(void **state)
{
	json_t *answer, *list;
	size_t i;
	json_t *tenant;
	(void)state;

	assert_int_equal(as(ALICE, store_prompt) & ~2, 0);
	assert_int_equal(as(BOB, greedy), 0);
	/* Bob's appetite took nothing of alice's. */
	assert_int_equal(as(ALICE, fetch_prompt), TOKENS);
	answer = e2e_ask(daemon_.socket, "{\"verb\":\"tenants\"}", NULL);
	list = json_is_array(answer) ? answer : json_object_get(answer, "tenants");
	assert_true(json_array_size(list) >= 2);
	json_array_foreach(list, i, tenant) {
		json_int_t used = json_integer_value(json_object_get(tenant, "charged_bytes"));
		json_int_t share = json_integer_value(json_object_get(tenant, "share_bytes"));

		assert_true(share > 0);
		assert_true(used > 0);
		assert_true(used <= share);
	}
	json_decref(answer);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

static int refused(void)
{
	struct e2e e;
	int r = e2e_attach(&e, daemon_.socket);

	return r == -EACCES || r == -ENOSPC ? 0 : 1;
}

static void overflow_uid_is_refused(void **state)
{
	(void)state;
	assert_int_equal(as(65534, refused), 0);
}

static int ask_as_user(void)
{
	struct kvp_open_opts opts = { .size = sizeof(opts), .socket = daemon_.socket };
	struct kvp_admin *admin;
	char *text = NULL;
	int r = kvp_admin_open(&opts, &admin);

	if (r == 0) {
		r = kvp_admin_request(admin, "{\"verb\":\"status\"}", E2E_WAIT_MS, 0, &text);
		kvp_admin_close(admin);
	}
	free(text);
	return r == -EPERM || r == -EACCES ? 0 : 1;
}

static void administration_is_for_root(void **state)
{
	(void)state;
	assert_int_equal(as(BOB, ask_as_user), 0);
}

static int setup(void **state)
{
	struct kvt_daemon_opts opts = { .share = UINT64_C(16) << 20,
		.memory = UINT64_C(128) << 20,
		.max_blocks = 400,
		.max_sessions = 16,
		.more = "extent: 1MiB\n"
			"tenants:\n"
			"  - name: alice\n"
			"    uids: [20001, 20003]\n"
			"    share: 24MiB\n"
			"    max_blocks: 400\n"
			"  - name: bob\n"
			"    uids: [20002]\n"
			"    share: 24MiB\n"
			"    max_blocks: 400\n" };
	(void)state;

	e2e_start(&daemon_, &opts);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kvt_daemon_stop(&daemon_);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_hit_across_tenants),
		cmocka_unit_test(no_segment_of_another_tenant),
		cmocka_unit_test(nothing_foreign_is_writable),
		cmocka_unit_test(shares_hold_under_pressure),
		cmocka_unit_test(overflow_uid_is_refused),
		cmocka_unit_test(administration_is_for_root),
	};

	if (geteuid() != 0) {
		printf("skipped: needs root to act as two users\n");
		return 77;
	}
	return cmocka_run_group_tests(tests, setup, teardown);
}
