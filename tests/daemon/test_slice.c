/* SPDX-License-Identifier: Apache-2.0 */
/* A slice is what was asked for where the kernel knows slices, and nothing else changes. */
#include "daemon/slice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
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

	kvpd_slice_ask(300 * US);
	after = now();
	if (!before.runtime) {
		/* Before Linux 6.12 there is none to ask for. */
		assert_int_equal(after.runtime, 0);
		skip();
	}
	assert_int_equal(after.runtime, 300 * US);
	kvpd_slice_ask(2000 * US);
	assert_int_equal(now().runtime, 2000 * US);
}

static void nothing_else_changes(void **state)
{
	struct attributes before, after;
	(void)state;

	assert_int_equal(setpriority(PRIO_PROCESS, 0, 3), 0);
	before = now();
	kvpd_slice_ask(200 * US);
	after = now();
	assert_int_equal(after.nice, 3);
	assert_int_equal(after.policy, before.policy);
	assert_int_equal(after.flags, before.flags);
	assert_int_equal(after.priority, before.priority);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_slice_is_what_was_asked_for),
		cmocka_unit_test(nothing_else_changes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
