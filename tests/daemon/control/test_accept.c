/* SPDX-License-Identifier: Apache-2.0 */
/* The doors: who has few connections that wait comes in, however many others have. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/control/accept.h"
#include "daemon/control/control.h"
#include "daemon/control/listener.h"
#include "daemon/control/loop.h"
#include "daemon/control/state.h"
#include "daemon/dataplane.h"
#include "daemon/log.h"

#define DOORS   5u /* one user has a payer at each */
#define CROWDED (KVPD_PENDING_MAX / KVPD_PENDING_PER_UID)
#define FILES   (2 * KVPD_PENDING_MAX + 256u)
#define FEW     10u

_Static_assert(CROWDED < DOORS, "the last door is nobody's yet");

static char dir[64];
static struct kvpd_control *control;
static struct kvpd_ledger *ledger;

static int start(void **state)
{
	struct kvpd_ledger_params params = { .epoch = 1, .post = kvpd_control_post };
	struct rlimit files = { FILES, FILES };
	struct kvpd_config *config;
	struct kvpd_account account;
	char text[1024], error[512];
	int n;

	(void)state;
	if (getrlimit(RLIMIT_NOFILE, &files) < 0 || files.rlim_max < FILES)
		skip();
	files.rlim_cur = FILES;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
	snprintf(dir, sizeof(dir), "/tmp/kvpool-accept-XXXXXX");
	assert_non_null(mkdtemp(dir));
	n = snprintf(text, sizeof(text),
		"user: \"\"\nhugepages: never\nruntime_dir: %s\nlog_level: error\ntenants:\n", dir);
	for (uint32_t i = 0; i < DOORS; i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n,
			"- { name: t%u, socket: t%u.sock, share: 4MiB }\n", i, i);
	if (kvpd_config_parse("t", text, strlen(text), 64 << 20, error, sizeof(error), &config) < 0)
		fail_msg("%s", error);
	kvpd_log_level(KVPD_LOG_ERR); /* no word of each that is refused */
	assert_int_equal(kvpd_account_find("", &account), 0);
	assert_int_equal(kvpd_control_new(config, &account, 1, &control), 0);
	params.ctx = control;
	params.config = config;
	assert_int_equal(kvpd_ledger_new(&params, &ledger), 0);
	assert_int_equal(kvpd_control_bind(control, ledger), 0);
	return 0;
}

static int stop(void **state)
{
	char path[80];

	(void)state;
	if (!control)
		return 0;
	kvpd_control_stop(control);
	ledger = kvpd_ledger_free(ledger);
	control = kvpd_control_free(control);
	snprintf(path, sizeof(path), "rm -r %s", dir);
	return system(path);
}

/* A connection that has said something: it is not silent, and waits for its payer's turn. */
static int come(uint32_t door)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	snprintf(a.sun_path, sizeof(a.sun_path), "%s/t%u.sock", dir, door);
	assert_true(fd >= 0);
	assert_int_equal(connect(fd, (const struct sockaddr *)&a, sizeof(a)), 0);
	assert_int_equal(send(fd, "?", 1, MSG_NOSIGNAL), 1);
	return fd;
}

static void let_in(uint32_t door)
{
	struct kvpd_listener *l;
	char name[16];

	snprintf(name, sizeof(name), "t%u", door);
	TAILQ_FOREACH(l, &control->listeners, link)
		if (l->tenant && !strcmp(l->tenant, name))
			kvpd_accept(l);
}

static uint32_t waiting_at(uint32_t door)
{
	struct kvpd_payer *p;
	char name[16];
	uint32_t n;

	snprintf(name, sizeof(name), "t%u", door);
	p = kvpd_payer_get(&control->payers, getuid(), name);
	assert_non_null(p);
	n = p->n_pending;
	kvpd_payer_put(&control->payers, p);
	return n;
}

static void few_come_in_where_many_wait(void **state)
{
	static int crowd[KVPD_PENDING_MAX], few[FEW];
	uint32_t most = 0;

	(void)state;
	for (uint32_t i = 0; i < KVPD_PENDING_MAX; i++) {
		crowd[i] = come(i % CROWDED);
		let_in(i % CROWDED);
	}
	assert_int_equal(control->n_pending, KVPD_PENDING_MAX);
	/* One of those whose payer has the most makes way. */
	for (uint32_t i = 0; i < FEW; i++) {
		few[i] = come(CROWDED);
		let_in(CROWDED);
		assert_int_equal(waiting_at(CROWDED), i + 1);
		assert_int_equal(control->n_pending, KVPD_PENDING_MAX);
		kvpd_control_bury(control);
	}
	for (uint32_t i = 0; i < CROWDED; i++)
		most = waiting_at(i) > most ? waiting_at(i) : most;
	assert_in_range(most, KVPD_PENDING_PER_UID - FEW, KVPD_PENDING_PER_UID);
	/* One more of these is turned away, and does not stay at the door. */
	close(come(0));
	let_in(0);
	assert_int_equal(control->n_pending, KVPD_PENDING_MAX);
	for (uint32_t i = 0; i < KVPD_PENDING_MAX; i++)
		close(crowd[i]);
	for (uint32_t i = 0; i < FEW; i++)
		close(few[i]);
}

static struct kvpd_listener *listener_of(const char *tenant)
{
	struct kvpd_listener *l;

	TAILQ_FOREACH(l, &control->listeners, link)
		if (l->tenant && !strcmp(l->tenant, tenant))
			return l;
	return NULL;
}

/*
 * A process that the daemon starts has all its descriptors until it is the other program, and what the
 * daemon closes meanwhile is closed for the daemon alone.
 */
static void nothing_is_heard_of_what_was_closed(void **state)
{
	struct epoll_event e;
	int fd, door;
	pid_t child;

	(void)state;
	fd = come(0);
	let_in(0);
	door = come(1);
	assert_int_equal(control->n_pending, 1);
	child = fork();
	assert_true(child >= 0);
	if (!child) {
		pause();
		_exit(0);
	}
	kvpd_listener_remove(listener_of("t1"));
	/* What it has said is no HELLO. */
	while (control->n_conns)
		assert_int_equal(kvpd_control_turn(control, 100), 0);
	assert_int_equal(send(fd, "?", 1, MSG_NOSIGNAL), 1);
	assert_int_equal(epoll_wait(control->epfd, &e, 1, 0), 0);
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(fd);
	close(door);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_is_heard_of_what_was_closed, start, stop),
		cmocka_unit_test_setup_teardown(few_come_in_where_many_wait, start, stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
