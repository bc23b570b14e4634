/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/notify.h"

static struct {
	char dir[64], path[96];
	int fd;
} manager;

static int listen_at(void **state)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	(void)state;
	snprintf(manager.dir, sizeof(manager.dir), "/tmp/kvpd-notify-XXXXXX");
	assert_non_null(mkdtemp(manager.dir));
	snprintf(manager.path, sizeof(manager.path), "%s/notify", manager.dir);
	memcpy(a.sun_path, manager.path, strlen(manager.path));
	manager.fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(manager.fd, (struct sockaddr *)&a, sizeof(a)), 0);
	return 0;
}

static int leave(void **state)
{
	(void)state;
	close(manager.fd);
	unlink(manager.path);
	rmdir(manager.dir);
	return 0;
}

/* The next message; "" if there is none. */
static const char *heard(void)
{
	static char text[1024];
	ssize_t n = recv(manager.fd, text, sizeof(text) - 1, 0);

	text[n < 0 ? 0 : n] = 0;
	return text;
}

static void test_messages(void **state)
{
	struct kvpd_notify n;

	(void)state;
	assert_int_equal(kvpd_notify_open(&n, manager.path), 0);
	kvpd_notify(&n, 0, "READY=1\nSTATUS=no sessions");
	assert_string_equal(heard(), "READY=1\nSTATUS=no sessions\n");
	kvpd_notify(&n, 0, "STOPPING=1");
	assert_string_equal(heard(), "STOPPING=1\n");
	assert_true(kvpd_notify_again(&n, 0) == UINT64_MAX);
	kvpd_notify_close(&n);
}

static void fill(struct kvpd_notify *n)
{
	unsigned sent = 0;

	for (; !n->unsent[0]; sent++) {
		assert_true(sent < 100000);
		kvpd_notify(n, 0, "FILL=1");
	}
}

/* Nothing waits, the last word of each variable is kept, in the order of these last words. */
static void test_full_socket(void **state)
{
	struct kvpd_notify n;
	uint64_t again;

	(void)state;
	assert_int_equal(kvpd_notify_open(&n, manager.path), 0);
	fill(&n);
	kvpd_notify(&n, 0, "READY=1");
	for (unsigned i = 0; i < 1000; i++) {
		char text[64];

		snprintf(text, sizeof(text), "WATCHDOG=1\nSTATUS=%u sessions\nREADYISH=%u", i, i);
		kvpd_notify(&n, 0, text);
	}
	again = kvpd_notify_again(&n, 0);
	assert_true(again > 0 && again != UINT64_MAX);
	while (!strcmp(heard(), "FILL=1\n"))
		;
	/* There is room, but it is not time. */
	assert_true(kvpd_notify_again(&n, again - 1) == again);
	assert_string_equal(heard(), "");
	assert_true(kvpd_notify_again(&n, again) == UINT64_MAX);
	assert_string_equal(
		heard(), "FILL=1\nREADY=1\nWATCHDOG=1\nSTATUS=999 sessions\nREADYISH=999\n");
	assert_string_equal(heard(), "");
	kvpd_notify_close(&n);
}

/* The next message takes along what is left, and what has no room is left out whole. */
static void test_bounds(void **state)
{
	char text[KVPD_NOTIFY_TEXT + 16];
	struct kvpd_notify n;

	(void)state;
	assert_int_equal(kvpd_notify_open(&n, manager.path), 0);
	fill(&n);
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	memcpy(text, "STATUS=", 7);
	kvpd_notify(&n, 0, text);
	while (!strcmp(heard(), "FILL=1\n"))
		;
	text[KVPD_NOTIFY_TEXT - 1 - strlen("FILL=1\n") - 1] = 0;
	kvpd_notify(&n, 0, text);
	assert_int_equal(strlen(heard()), KVPD_NOTIFY_TEXT - 1);
	assert_true(kvpd_notify_again(&n, 0) == UINT64_MAX);
	kvpd_notify_close(&n);
}

static void test_nobody(void **state)
{
	static const char *const bad[] = { "vsock:2:1234", "notify" };
	char name[200];
	struct kvpd_notify n;

	(void)state;
	assert_int_equal(kvpd_notify_open(&n, NULL), 0);
	kvpd_notify(&n, 0, "READY=1");
	assert_true(kvpd_notify_again(&n, 0) == UINT64_MAX);
	kvpd_notify_close(&n);

	memset(name, 'a', sizeof(name) - 1);
	name[0] = '/';
	name[sizeof(name) - 1] = 0;
	assert_int_equal(kvpd_notify_open(&n, name), -EAFNOSUPPORT);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(kvpd_notify_open(&n, bad[i]), -EAFNOSUPPORT);
	kvpd_notify(&n, 0, "READY=1");
	assert_true(kvpd_notify_again(&n, 0) == UINT64_MAX);

	/* One that went away hears nothing later. */
	snprintf(name, sizeof(name), "%s/nobody", manager.dir);
	assert_int_equal(kvpd_notify_open(&n, name), 0);
	kvpd_notify(&n, 0, "READY=1");
	assert_true(kvpd_notify_again(&n, 0) == UINT64_MAX);
	kvpd_notify_close(&n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_messages, listen_at, leave),
		cmocka_unit_test_setup_teardown(test_full_socket, listen_at, leave),
		cmocka_unit_test_setup_teardown(test_bounds, listen_at, leave),
		cmocka_unit_test_setup_teardown(test_nobody, listen_at, leave),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
