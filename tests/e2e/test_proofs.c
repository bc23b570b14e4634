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
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
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
	assert_int_equal(e2e_fetch_all(&e, tokens, TOKENS), TOKENS);
	e2e_detach(&e);
}

/* How often the daemon's two loops have come round. */
static uint64_t daemon_rounds(void)
{
	int status;
	json_t *o = e2e_ask(daemon_.socket, "{\"verb\":\"status\"}", &status);
	const json_t *ledger = json_object_get(o, "ledger"),
		     *control = json_object_get(o, "daemon");
	const json_t *rounds = json_object_get(ledger, "rounds_total");
	const json_t *turns = json_object_get(control, "turns_total");
	uint64_t n;

	assert_int_equal(status, 0);
	assert_true(json_is_integer(rounds) && json_is_integer(turns));
	n = (uint64_t)(json_integer_value(rounds) + json_integer_value(turns));
	json_decref(o);
	return n;
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
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* another uid: forgotten */
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
	uint64_t before, after;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip(); /* they have to be of another uid */
	pid = child(never_receive);
	for (uint32_t i = 0; i < 10; i++)
		honest_work(10 + i);
	before = daemon_rounds();
	e2e_sleep_us(2000000);
	after = daemon_rounds();
	print_message("beside %d mute sessions the daemon made %llu rounds in 2 s\n", MUTE,
		(unsigned long long)(after - before));
	assert_true(after - before < 4000);
	end_child(pid);
	honest_work(30);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* ---- arenas --------------------------------------------------------------------------------- */

static int daemon_fds(void)
{
	char path[64];
	int n = 0;

	for (int fd = 0; fd < (int)FILES; fd++) {
		snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)daemon_.pid, fd);
		n += access(path, F_OK) == 0 || errno == ELOOP;
	}
	return n;
}

/* A figure of the tenant of that other uid. */
static long long figure(const char *name)
{
	json_t *answer =
		e2e_ask(daemon_.socket, "{\"verb\":\"tenants\",\"tenant\":\"uid-60001\"}", NULL);
	json_t *t = json_array_get(json_object_get(answer, "tenants"), 0);
	long long n = json_integer_value(json_object_get(t, name));

	json_decref(answer);
	return n;
}

static void say_bye(struct raw *s)
{
	char c;

	kvp_msg_send(s->sock, KVP_MSG_BYE, 0, NULL, 0, NULL, 0);
	/* Until the daemon has hung up. */
	while (recv(s->sock, &c, 1, 0) > 0)
		;
	raw_detach(s);
}

/* More arenas than the daemon may have descriptors, each with its seals sealed. */
static void seal_the_seals(void)
{
	become_another();
	for (uint32_t i = 0; i < 2 * FILES; i++) {
		struct raw s;
		void *arena;
		int fd;

		raw_attach(&s, daemon_.socket);
		if (raw_arena(&s, F_SEAL_SEAL, i & 1, RAW_IS_DUE, &fd, &arena) < 0)
			_exit(2);
		munmap(arena, s.arena_bytes);
		close(fd);
		say_bye(&s);
	}
}

static void arenas_whose_seals_are_sealed(void **state)
{
	int before;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	honest_work(40);
	before = daemon_fds();
	pid = child(seal_the_seals);
	end_child(pid);
	honest_work(41);
	for (int i = 0; i < 3000 && (figure("arena_bytes") || daemon_fds() > before + 4); i++)
		e2e_sleep_us(20000);
	assert_int_equal(figure("arena_bytes"), 0);
	assert_true(daemon_fds() <= before + 4);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

static void keep_path(int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (open(path, O_PATH | O_CLOEXEC) < 0)
		_exit(5);
}

/* Pages that wait in a pipe are pinned: the proof takes the kernel a sixth of a second. */
static void keep_page(void *arena)
{
	struct iovec page = { arena, 4096 };
	int ends[2];

	*(volatile char *)arena = 1;
	if (pipe2(ends, O_CLOEXEC) < 0 || vmsplice(ends[1], &page, 1, 0) != 4096)
		_exit(6);
}

/* What is kept: the mapping or only a descriptor, a descriptor opened with O_PATH, a page. */
static enum { KEEP_ANY, KEEP_PATH, KEEP_PAGE } what_is_kept;

/* Gives arenas back and keeps something of them. */
static void keep_arenas(void)
{
	uint32_t n = 0;

	become_another();
	for (uint32_t i = 0; i < 100; i++) {
		struct raw s;
		void *arena;
		int fd, r;

		raw_attach(&s, daemon_.socket);
		/* The first ones are due; of a later one nobody says that there will be none. */
		r = raw_arena(&s, 0, false, n < 2 ? RAW_IS_DUE : 3000, &fd, &arena);
		if (r == 0) {
			n++;
			if (what_is_kept != KEEP_ANY) {
				if (what_is_kept == KEEP_PATH)
					keep_path(fd);
				else
					keep_page(arena);
				munmap(arena, s.arena_bytes);
				close(fd);
			} else if (i & 1)
				munmap(arena, s.arena_bytes);
			else
				close(fd);
		}
		say_bye(&s);
		if (r < 0)
			break;
	}
	/* Refused sooner or later: not more than a uid may keep. */
	if (n < 2 || n > 20)
		_exit(3);
}

static void arenas_that_are_kept(void **state)
{
	long long kept;
	int before;
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	before = daemon_fds();
	pid = child(keep_arenas);
	honest_work(50);
	kept = figure("arena_bytes");
	print_message("%lld bytes of arenas are kept, and charged\n", kept);
	assert_true(kept > 0);
	assert_true(daemon_fds() <= before + 40);
	end_child(pid);
	for (int i = 0; i < 3000 && figure("arena_bytes"); i++)
		e2e_sleep_us(20000);
	assert_int_equal(figure("arena_bytes"), 0);
	/* And the uid gets arenas again. */
	pid = child(keep_arenas);
	end_child(pid);
	honest_work(51);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* A lease does not count them, but they keep the memory as well. */
static void arenas_kept_by_path(void **state)
{
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	for (int i = 0; i < 3000 && figure("arena_bytes"); i++)
		e2e_sleep_us(20000); /* what the test before has kept */
	what_is_kept = KEEP_PATH;
	pid = child(keep_arenas);
	honest_work(55);
	assert_true(figure("arena_bytes") > 0);
	end_child(pid);
	what_is_kept = KEEP_ANY;
	for (int i = 0; i < 3000 && figure("arena_bytes"); i++)
		e2e_sleep_us(20000);
	assert_int_equal(figure("arena_bytes"), 0);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* Proofs that take long do not make it more. */
static void arenas_kept_by_a_page(void **state)
{
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	what_is_kept = KEEP_PAGE;
	pid = child(keep_arenas);
	honest_work(56);
	assert_true(figure("arena_bytes") > 0);
	end_child(pid);
	what_is_kept = KEEP_ANY;
	for (int i = 0; i < 3000 && figure("arena_bytes"); i++)
		e2e_sleep_us(20000);
	assert_int_equal(figure("arena_bytes"), 0);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* ---- programs that replace themselves ------------------------------------------------------- */

#define EXECS 300 /* more than there may be sessions */

/* Attaches, works, and begins again as a new program, without closing anything. */
static int attach_and_exec(char *const argv[])
{
	int left = atoi(argv[2]);
	uint32_t tokens[TOKENS];
	char text[16];
	struct e2e e;
	int r = e2e_attach(&e, argv[3]);

	if (r < 0)
		e2e_die("an exec'd program cannot attach", r);
	e2e_prompt(60, tokens, TOKENS);
	if (left % 50 == 0 && e2e_store(&e, tokens, TOKENS, E2E_WAIT_MS, false) < 0)
		return 2;
	if (!left)
		return 0;
	snprintf(text, sizeof(text), "%d", left - 1);
	execl("/proc/self/exe", "again", "exec", text, argv[3], (char *)NULL);
	return 3;
}

static uint32_t n_clients(void)
{
	json_t *answer = e2e_ask(daemon_.socket, "{\"verb\":\"clients\"}", NULL);
	uint32_t n = (uint32_t)json_array_size(json_object_get(answer, "clients"));

	json_decref(answer);
	return n;
}

static void a_program_that_replaces_itself(void **state)
{
	char text[16];
	pid_t pid;

	(void)state;
	snprintf(text, sizeof(text), "%d", EXECS);
	pid = e2e_fork();
	if (!pid) {
		execl("/proc/self/exe", "again", "exec", text, daemon_.socket, (char *)NULL);
		_exit(4);
	}
	assert_int_equal(e2e_reap(pid), 0);
	honest_work(61);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
}

/* A lost connection alone proves nothing; an unmapped page does. */
static void a_page_that_is_mapped_keeps_its_session(void **state)
{
	struct raw s;
	uint32_t before = n_clients();

	(void)state;
	raw_attach(&s, daemon_.socket);
	close(s.sock);
	e2e_sleep_us(2500000);
	assert_int_equal(n_clients(), before + 1);
	munmap(s.page, (sizeof(*s.page) + 4095) / 4096 * 4096);
	for (int i = 0; i < 3000 && n_clients() > before; i++)
		e2e_sleep_us(20000);
	assert_int_equal(n_clients(), before);
	close(s.wake_fd);
	free(s.packet);
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

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(descriptors_that_nobody_receives),
		cmocka_unit_test(arenas_whose_seals_are_sealed),
		cmocka_unit_test(arenas_that_are_kept),
		cmocka_unit_test(arenas_kept_by_path),
		cmocka_unit_test(arenas_kept_by_a_page),
		cmocka_unit_test(a_program_that_replaces_itself),
		cmocka_unit_test(a_page_that_is_mapped_keeps_its_session),
	};

	if (argc == 4 && !strcmp(argv[1], "exec"))
		return attach_and_exec(argv);
	return cmocka_run_group_tests(tests, setup, teardown);
}
