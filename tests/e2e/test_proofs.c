/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the daemon has to prove before it may forget something, and clients that make the proof
 * hard: descriptors that nobody receives, arenas whose seals are sealed or that a child keeps,
 * programs that replace themselves without closing.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/kvp_ring.h"
#include "shm/kvp_seg.h"
#include "tests/e2e/e2e.h"
#include "tests/e2e/raw.h"

#define TOKENS (E2E_BT * 6)
#define FILES  512u

static struct kvt_daemon daemon_;

static void honest_work(uint32_t number)
{
	uint32_t tokens[TOKENS];
	struct e2e e;

	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	e2e_prompt(number, tokens, TOKENS);
	assert_true(e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, true) >= 0);
	assert_int_equal(kvp_flush(e.client, E2E_WAIT_MS), 0);
	assert_int_equal(e2e_fetch(&e, tokens, TOKENS), TOKENS);
	e2e_detach(&e);
}

/* Seconds of processor time that the daemon has used. */
static double daemon_cpu(void)
{
	unsigned long user = 0, sys = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)daemon_.pid);
	f = fopen(path, "re");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
				 &user, &sys),
		2);
	fclose(f);
	return (double)(user + sys) / (double)sysconf(_SC_CLK_TCK);
}

/* A child that has done something says so and stays until it is killed. */
static pid_t child(void (*fn)(void))
{
	int ready[2];
	char c;
	pid_t pid;

	assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
	pid = e2e_fork();
	if (!pid) {
		fn();
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	return pid;
}

static void end_child(pid_t pid)
{
	kill(pid, SIGKILL);
	e2e_reap(pid);
}

#define ANOTHER 60001

static void become_another(void)
{
	if (setresgid(ANOTHER, ANOTHER, ANOTHER) < 0 || setresuid(ANOTHER, ANOTHER, ANOTHER) < 0)
		_exit(1);
}

/* ---- descriptors in flight ------------------------------------------------------------------ */

#define MUTE 40

/* Asks for more descriptors than the daemon may have in flight, and receives none. */
static void never_receive(void)
{
	static struct raw s[MUTE];
	struct kvp_msg_id id = { .id = 0 };
	uint32_t tokens[TOKENS];
	struct e2e e;

	become_another();
	/* An arena of somebody else: what they ask for. */
	if (e2e_attach(&e, daemon_.socket) < 0)
		_exit(1);
	e2e_prompt(1, tokens, TOKENS);
	if (e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false) < 0)
		_exit(1);
	for (int i = 0; i < MUTE; i++)
		raw_attach(&s[i], daemon_.socket);
	for (int n = 0; n < 40; n++)
		for (int i = 0; i < MUTE; i++)
			(void)kvp_msg_send(
				s[i].sock, KVP_MSG_EXTENT_GET, 3, &id, sizeof(id), NULL, 0);
}

static void descriptors_that_nobody_receives(void **state)
{
	double before, after;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip(); /* they have to be of another uid */
	pid = child(never_receive);
	for (uint32_t i = 0; i < 10; i++)
		honest_work(10 + i);
	before = daemon_cpu();
	e2e_sleep_us(2000000);
	after = daemon_cpu();
	print_message(
		"beside %d mute sessions the daemon used %.2f s in 2 s\n", MUTE, after - before);
	assert_true(after - before < 1);
	end_child(pid);
	honest_work(30);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* ---- setup ---------------------------------------------------------------------------------- */

static int setup(void **state)
{
	struct kvt_daemon_opts opts = { .share = UINT64_C(48) << 20,
		.max_blocks = 600,
		.max_sessions = 64,
		.arena = UINT64_C(1) << 20,
		.files = FILES,
		.more = "extent: 1MiB\n" };
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
		cmocka_unit_test(descriptors_that_nobody_receives),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
