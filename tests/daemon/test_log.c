/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/log.h"

/* Runs `emit` with stderr in a pipe and returns what came out. */
static const char *captured(void (*emit)(void))
{
	static char buf[8192];
	int p[2], saved;
	ssize_t n;

	assert_int_equal(pipe(p), 0);
	saved = dup(STDERR_FILENO);
	dup2(p[1], STDERR_FILENO);
	emit();
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(p[1]);
	n = read(p[0], buf, sizeof(buf) - 1);
	close(p[0]);
	assert_true(n >= 0);
	buf[n] = 0;
	return buf;
}

static void emit_levels(void)
{
	errno = ENOTDIR;
	kvpd_debug("too detailed");
	kvpd_info("name %s\nsecond\x1b[31m", "x");
	assert_int_equal(errno, ENOTDIR);
}

static void test_levels_and_control_characters(void **state)
{
	const char *out;

	(void)state;
	kvpd_log_init(KVPD_LOG_INFO);
	out = captured(emit_levels);
	assert_null(strstr(out, "too detailed"));
	assert_non_null(strstr(out, "kvpoold info: name x?second?[31m\n"));
	assert_ptr_equal(strchr(out, '\n'), out + strlen(out) - 1);
}

static void emit_long(void)
{
	static char text[3 * KVPD_LOG_LINE];

	memset(text, 'a', sizeof(text) - 1);
	kvpd_err("%s", text);
}

static void test_long_line_is_cut(void **state)
{
	const char *out;

	(void)state;
	out = captured(emit_long);
	assert_true(strlen(out) < KVPD_LOG_LINE + 64);
	assert_int_equal(out[strlen(out) - 1], '\n');
}

static struct kvpd_ratelimit limit = KVPD_RATELIMIT(3600, 3);

static void emit_many(void)
{
	for (int i = 0; i < 10; i++)
		kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL, "noise %d", i);
}

static void emit_one(void)
{
	kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL, "again");
}

static void test_rate_limit(void **state)
{
	const char *out;

	(void)state;
	out = captured(emit_many);
	assert_non_null(strstr(out, "noise 2"));
	assert_null(strstr(out, "noise 3"));
	/* The next window: what was held back is counted. */
	limit.window_s = INT64_MIN;
	out = captured(emit_one);
	assert_non_null(strstr(out, "again (7 more held back before this)"));
}

/* A journal of our own, where only this process sees it. -1: this is not allowed here. */
static int private_journal(void)
{
	const struct sockaddr_un a = { AF_UNIX, "/run/systemd/journal/socket" };
	int sock;

	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("tmpfs", "/run", "tmpfs", 0, NULL) < 0)
		return -1;
	mkdir("/run/systemd", 0755);
	mkdir("/run/systemd/journal", 0755);
	sock = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(sock >= 0);
	assert_int_equal(bind(sock, (const struct sockaddr *)&a, sizeof(a)), 0);
	return sock;
}

static int journal;

static void emit_to_journal(void)
{
	struct kvpd_who who = { .session = 7, .tenant = 3, .pid = 42, .uid = 0 };
	char stream[64];
	struct stat st;

	/* As systemd says that stderr leads to the journal. */
	fstat(STDERR_FILENO, &st);
	snprintf(stream, sizeof(stream), "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino);
	setenv("JOURNAL_STREAM", stream, 1);
	kvpd_log_init(KVPD_LOG_INFO);
	kvpd_log_who(KVPD_LOG_WARNING, &who, "it did %s", "this");
	who = (struct kvpd_who){ .uid = (uid_t)-1 };
	kvpd_log_who(KVPD_LOG_INFO, &who, "nobody");
}

static const char *received(void)
{
	static char buf[4096];
	ssize_t n = recv(journal, buf, sizeof(buf) - 1, MSG_DONTWAIT);

	assert_true(n > 0);
	buf[n] = 0;
	return buf;
}

static void test_journal_fields(void **state)
{
	const char *m;

	(void)state;
	journal = private_journal();
	if (journal < 0) {
		print_message("skipped: a mount namespace of our own is not allowed here\n");
		skip();
	}
	assert_string_equal(captured(emit_to_journal), "");
	m = received();
	assert_non_null(strstr(m, "MESSAGE=it did this\n"));
	assert_non_null(strstr(m, "PRIORITY=4\n"));
	assert_non_null(strstr(m, "KVPOOL_SESSION=7\n"));
	assert_non_null(strstr(m, "KVPOOL_TENANT=3\n"));
	assert_non_null(strstr(m, "KVPOOL_PID=42\n"));
	assert_non_null(strstr(m, "KVPOOL_UID=0\n"));
	m = received();
	assert_non_null(strstr(m, "MESSAGE=nobody\n"));
	assert_null(strstr(m, "KVPOOL_"));
	close(journal);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_levels_and_control_characters),
		cmocka_unit_test(test_long_line_is_cut),
		cmocka_unit_test(test_rate_limit),
		/* Last: from here on stderr counts as the journal's. */
		cmocka_unit_test(test_journal_fields),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
