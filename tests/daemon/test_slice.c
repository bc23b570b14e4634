/* SPDX-License-Identifier: Apache-2.0 */
/* A slice is what was asked for where the kernel knows slices, and nothing else changes. */
#include "daemon/slice.h"

#include <errno.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define US UINT64_C(1000)

/* sched_getattr(2), version 0. */
struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

static struct attributes now(void)
{
	struct attributes a = { 0 };

	assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0), 0);
	return a;
}

static void a_slice_is_what_was_asked_for(void **state)
{
	struct attributes before = now(), after;
	(void)state;

	kvpd_slice_ask(300 * US, 0);
	after = now();
	if (!before.runtime) {
		/* Before Linux 6.12 there is none to ask for. */
		assert_int_equal(after.runtime, 0);
		skip();
	}
	assert_int_equal(after.runtime, 300 * US);
	kvpd_slice_ask(2000 * US, 0);
	assert_int_equal(now().runtime, 2000 * US);
}

static void nothing_else_changes(void **state)
{
	struct attributes before, after;
	(void)state;

	assert_int_equal(setpriority(PRIO_PROCESS, 0, 3), 0);
	before = now();
	kvpd_slice_ask(200 * US, 0);
	after = now();
	assert_int_equal(after.nice, 3);
	assert_int_equal(after.policy, before.policy);
	assert_int_equal(after.flags, before.flags);
	assert_int_equal(after.priority, before.priority);
}

/* Root may, and so may a process that was given the right; another gets the slice alone. */
static void a_thread_may_become_less_nice(void **state)
{
	struct rlimit none = { 0, 0 };
	pid_t pid;
	int ws;
	(void)state;

	if (geteuid() != 0) {
		print_message("only root can try both\n");
		skip();
	}
	assert_int_equal(setpriority(PRIO_PROCESS, 0, 3), 0);
	kvpd_slice_ask(400 * US, 2);
	assert_int_equal(now().nice, 1);
	kvpd_slice_ask(400 * US, 100);
	assert_int_equal(now().nice, -20);
	assert_int_equal(setpriority(PRIO_PROCESS, 0, 3), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		if (setrlimit(RLIMIT_NICE, &none) < 0 || setresuid(65534, 65534, 65534) < 0)
			_exit(2);
		kvpd_slice_ask(500 * US, 2);
		_exit(now().nice != 3 || (now().runtime && now().runtime != 500 * US));
	}
	assert_int_equal(waitpid(pid, &ws, 0), pid);
	assert_int_equal(ws, 0);
}

/* Whoever may not is told and stays what it is; threads and programs of one that may are ordinary ones, and so is itself again. */
static void a_thread_may_go_ahead_of_all_others(void **state)
{
	const struct rlimit none = { 0, 0 }, one = { KVPD_REALTIME, KVPD_REALTIME };
	struct attributes before;
	pid_t pid;
	int ws;
	(void)state;

	if (geteuid() != 0) {
		print_message("only root can try both\n");
		skip();
	}
	for (int may = 0; may < 2; may++) {
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			if (setrlimit(RLIMIT_RTPRIO, may ? &one : &none) < 0)
				_exit(errno == EPERM ? 77 : 2);
			kvpd_slice_ask(300 * US, 4);
			before = now();
			if (setresuid(65534, 65534, 65534) < 0)
				_exit(2);
			if ((kvpd_realtime_ask() == 0) != may ||
				now().policy != (may ? SCHED_RR : SCHED_OTHER) ||
				now().priority != (may ? KVPD_REALTIME : 0u))
				_exit(1);
			pid = fork();
			if (!pid)
				_exit(now().policy != SCHED_OTHER);
			if (kvpd_realtime_leave() < 0 || now().policy != SCHED_OTHER ||
				now().nice != before.nice || now().runtime != before.runtime)
				_exit(3);
			_exit(waitpid(pid, &ws, 0) != pid || ws);
		}
		assert_int_equal(waitpid(pid, &ws, 0), pid);
		if (may && WIFEXITED(ws) && WEXITSTATUS(ws) == 77) {
			print_message("CAP_SYS_RESOURCE is missing\n");
			skip();
		}
		assert_int_equal(ws, 0);
	}
}

/* What has stepped back stays so in its threads and programs, and takes no processor from others. */
static void some_give_way(void **state)
{
	pid_t pid = fork();
	int ws;
	(void)state;

	assert_true(pid >= 0);
	if (!pid) {
		struct attributes before = now(), after;

		kvpd_step_back();
		after = now();
		if (after.policy != SCHED_BATCH || after.nice != before.nice + 5)
			_exit(1);
		pid = fork();
		if (!pid)
			_exit(now().policy != SCHED_BATCH || now().nice != after.nice);
		if (waitpid(pid, &ws, 0) != pid || ws)
			_exit(2);
		kvpd_step_aside();
		_exit(now().policy != SCHED_IDLE);
	}
	assert_int_equal(waitpid(pid, &ws, 0), pid);
	assert_int_equal(ws, 0);
}

/* It follows from what the kernel counts, and is forgotten after a tenth of a second. */
static void a_crowd_is_noticed(void **state)
{
	const uint64_t second = 1000000 * US, now_ns = 5 * second;
	struct kvpd_crowd c = { 0 };
	struct rusage u;
	(void)state;

	assert_int_equal(getrusage(RUSAGE_THREAD, &u), 0);
	(void)kvpd_crowded(&c, now_ns);
	assert_true(c.n_taken_off >= u.ru_nivcsw);
	c.n_taken_off = -1; /* as if it had just been taken off */
	assert_true(kvpd_crowded(&c, now_ns + second));
	assert_true(c.seen_ns == now_ns + second);
	/* unless that happens once more, meanwhile */
	if (c.n_taken_off == u.ru_nivcsw)
		(void)kvpd_crowded(&c, now_ns + 2 * second);
	assert_true(c.seen_ns == now_ns + second || c.n_taken_off > u.ru_nivcsw);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_slice_is_what_was_asked_for),
		cmocka_unit_test(nothing_else_changes),
		cmocka_unit_test(a_thread_may_become_less_nice),
		cmocka_unit_test(a_thread_may_go_ahead_of_all_others),
		cmocka_unit_test(some_give_way),
		cmocka_unit_test(a_crowd_is_noticed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
