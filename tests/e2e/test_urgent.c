/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ledger in the real-time class, beside clients that keep it busy without end: it gives the class back, so that they
 * do not take a processor from the rest of the machine, and takes it again when they are gone.
 */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "shm/kvp_lease.h"
#include "shm/kvp_ring.h"
#include "tests/e2e/e2e.h"
#include "tests/e2e/raw.h"

#define FLOODS 3u
#define BLOCKS 200u

static struct kvt_daemon daemon_;

/* The ledger thread of the daemon; 0: it is not there. */
static pid_t ledger(void)
{
	char path[300], name[32] = "";
	const struct dirent *e;
	pid_t found = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)daemon_.pid);
	d = opendir(path);
	while (d && !found && (e = readdir(d))) {
		FILE *f;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)daemon_.pid, e->d_name);
		f = fopen(path, "re");
		if (f && fgets(name, sizeof(name), f) && !strcmp(name, "kvpool-ledger\n"))
			found = (pid_t)strtol(e->d_name, NULL, 10);
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return found;
}

static int class_of(pid_t thread)
{
	return sched_getscheduler(thread) & ~SCHED_RESET_ON_FORK;
}

/* Would a daemon that is started here get it? */
static bool may_be_urgent(void)
{
	const struct sched_param lowest = { .sched_priority = 1 };
	pid_t pid = e2e_fork();

	if (!pid)
		_exit(sched_setscheduler(0, SCHED_RR, &lowest) == 0 ? 0 : 1);
	return e2e_reap(pid) == 0;
}

/* Does it come to be of that class? Something is asked meanwhile, so that the ledger has reason to look. */
static bool becomes(pid_t thread, int class)
{
	uint64_t until = raw_in(E2E_LONG_MS);

	while (class_of(thread) != class) {
		int status;

		if (raw_in(0) > until)
			return false;
		json_decref(e2e_ask(daemon_.socket, "{\"verb\":\"status\"}", &status));
		e2e_sleep_us(10000);
	}
	return true;
}

/* The end of the longest chain. */
static uint32_t deepest(const struct raw *s)
{
	uint32_t found = 0;

	for (uint32_t i = 0; i < s->view.max_blocks; i++)
		if (kvp_load_relaxed(&s->view.blocks[i].depth) >
			kvp_load_relaxed(&s->view.blocks[found].depth))
			found = i;
	return found;
}

/*
 * Uses of a long chain, which cost the ledger much and a client nothing, and entries, before each of which it hears of
 * some: even a client that hardly gets a processor keeps it busy like that. Until it is killed.
 */
static _Noreturn void flood(void)
{
	struct kvp_sqe sqe = { .op = KVP_OP_FLUSH };
	struct kvp_cqe cqe;
	struct raw s;
	uint32_t tip;

	raw_attach(&s, daemon_.socket);
	tip = deepest(&s);
	for (;;) {
		for (uint32_t i = 0; i < KVP_SHARDS * KVP_TOUCHES; i++)
			kvp_touch_push(s.page, i % KVP_SHARDS, tip, BLOCKS);
		while (kvp_sq_push(s.page, &s.sq_tail, &sqe) == 0)
			;
		raw_bell(&s);
		while (kvp_cq_pop(s.page, &s.cq_head, &cqe) == 0)
			;
		e2e_sleep_us(200);
	}
}

static void a_flood_does_not_take_a_processor(void **state)
{
	const struct kvt_daemon_opts opts = { .share = 32 << 20,
		.more = "realtime: true\nrealtime_percent: 20\n" };
	pid_t floods[FLOODS], thread;
	static uint32_t tokens[E2E_BT * BLOCKS];
	struct e2e e;
	(void)state;

	if (!may_be_urgent()) {
		print_message("no right to the real-time class here\n");
		skip();
	}
	e2e_start(&daemon_, &opts);
	assert_int_equal(e2e_attach(&e, daemon_.socket), 0);
	for (uint64_t until = raw_in(E2E_LONG_MS); !(thread = ledger()) && raw_in(0) < until;)
		e2e_sleep_us(1000);
	assert_true(thread > 0);
	assert_true(becomes(thread, SCHED_RR));
	e2e_prompt(7, tokens, E2E_BT * BLOCKS);
	assert_int_equal(e2e_store(&e, tokens, E2E_BT * BLOCKS, E2E_LONG_MS, true), BLOCKS);
	assert_int_equal(kvp_flush(e.client, E2E_LONG_MS), 0);
	for (uint32_t i = 0; i < FLOODS; i++) {
		floods[i] = e2e_fork();
		if (!floods[i])
			flood();
	}
	assert_true(becomes(thread, SCHED_OTHER));
	/* It serves as ever. */
	e2e_prompt(8, tokens, E2E_BT * 4);
	assert_true(e2e_store(&e, tokens, E2E_BT * 4, E2E_LONG_MS, true) >= 0);
	assert_int_equal(kvp_flush(e.client, E2E_LONG_MS), 0);
	for (uint32_t i = 0; i < FLOODS; i++) {
		kill(floods[i], SIGKILL);
		(void)e2e_reap(floods[i]);
	}
	assert_true(becomes(thread, SCHED_RR));
	assert_int_equal(e2e_fetch_all(&e, tokens, E2E_BT * 4), E2E_BT * 4);
	e2e_detach(&e);
	assert_int_equal(e2e_clean(daemon_.socket, 0), 0);
	kvt_daemon_stop(&daemon_);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_flood_does_not_take_a_processor),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
