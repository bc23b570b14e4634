/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The real daemon with a device that clients write on: what one commits there the others read there, however
 * the first one ends, and while the worker is killed; what a client was granted and did not commit costs
 * nobody anything.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/e2e/e2e.h"

#define MOST 40u /* blocks of a prompt here */

static void start(struct kvt_daemon *d, const char *driver)
{
	char more[800];
	struct kvt_daemon_opts opts = {
		.share = 64 << 20, .memory = 256 << 20, .max_blocks = 4000, .more = more
	};

	snprintf(more, sizeof(more),
		"devices:\n  - {name: one, bytes: 4MiB, segment: 1MiB, worker: %s, %s}\n",
		getenv("KVPOOL_DEVICE"), driver);
	e2e_start(d, &opts);
}

static void prompt(uint32_t number, uint32_t blocks, uint32_t *tokens)
{
	for (uint32_t i = 0; i < blocks * E2E_BT; i++)
		tokens[i] = number * 100000 + i;
}

static int reserve(const struct e2e *e, struct kvp_grant **ret)
{
	uint32_t retry_ms;
	int r;

	for (uint32_t tries = 0; tries < 6000; tries++) {
		r = kvp_reserve_on(e->space, 0, E2E_WAIT_MS, &retry_ms, ret);
		/* The worker may be being started. */
		if (r != -EAGAIN && r != -ENODEV)
			return r;
		e2e_sleep_us(10000);
	}
	return r;
}

/* All of the prompt, on the device; 0 or the first error. */
static int store(const struct e2e *e, const uint32_t *tokens, uint32_t blocks)
{
	struct kvp_ref parent = kvp_ref_root();
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < blocks; i++) {
		struct kvp_grant *g;

		r = reserve(e, &g);
		if (r < 0)
			break;
		e2e_derive(tokens, (i + 1) * E2E_BT, kvp_grant_addr(g));
		r = kvp_commit(g, parent, tokens + (size_t)i * E2E_BT, E2E_BT, NULL, 0);
		if (r == 0)
			r = kvp_grant_wait(g, E2E_WAIT_MS);
		if (r >= 0)
			r = kvp_grant_ref(g, &parent);
		kvp_grant_release(g);
	}
	return r;
}

/* How many leading blocks a match finds, each with the right bytes; *ret_there: of these on the device. */
static uint32_t fetch(const struct e2e *e, const uint32_t *tokens, uint32_t blocks, uint32_t flags,
	uint32_t *ret_there)
{
	struct kvp_match_opts o = { .size = sizeof(o), .flags = flags | KVP_MATCH_NO_TAIL };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *m;

	*ret_there = 0;
	assert_int_equal(kvp_match(e->space, tokens, (size_t)blocks * E2E_BT, &o, &m), 0);
	assert_int_equal(kvp_match_info(m, &info), 0);
	for (uint32_t i = 0; i < info.n_blocks; i++) {
		struct kvp_payload_info p = { .size = sizeof(p) };

		assert_int_equal(kvp_payload(m, i, &p), 0);
		assert_true(e2e_derived(tokens, (i + 1) * E2E_BT, p.addr));
		*ret_there += p.tier == KVP_TIER_VRAM;
	}
	kvp_release(m);
	return info.n_blocks;
}

/* Extents are mapped by the library's thread: looks again for a while. */
static uint32_t fetch_all(
	const struct e2e *e, const uint32_t *tokens, uint32_t blocks, uint32_t flags)
{
	uint32_t n = 0, there;

	for (uint32_t tries = 0; tries < 60000 && n < blocks; tries++) {
		n = fetch(e, tokens, blocks, flags, &there);
		if (n < blocks)
			e2e_sleep_us(1000);
	}
	return n;
}

static void what_is_written_is_read(void **state)
{
	uint32_t tokens[MOST * E2E_BT], there, retry_ms;
	struct kvp_match_opts wrong = { .size = sizeof(wrong), .device = KVP_CLIENT_DEVICES };
	struct kvp_prefix *m;
	struct kvp_grant *g;
	struct kvt_daemon d;
	struct e2e a, b;

	(void)state;
	start(&d, "driver: host");
	assert_int_equal(e2e_attach(&a, d.socket), 0);
	assert_int_equal(e2e_attach(&b, d.socket), 0);
	prompt(1, MOST, tokens);
	assert_int_equal(store(&a, tokens, MOST), 0);
	assert_int_equal(fetch(&a, tokens, MOST, KVP_MATCH_DEVICE, &there), MOST);
	assert_int_equal(there, MOST);
	assert_int_equal(fetch_all(&b, tokens, MOST, KVP_MATCH_DEVICE), MOST);
	/* It comes to DRAM by itself, for those who read nothing else. */
	assert_int_equal(fetch_all(&b, tokens, MOST, 0), MOST);
	assert_int_equal(fetch(&b, tokens, MOST, 0, &there), MOST);
	assert_int_equal(there, 0);
	/* Of another device it is not. */
	wrong.flags = KVP_MATCH_DEVICE;
	assert_int_equal(kvp_match(a.space, tokens, E2E_BT, &wrong, &m), -EINVAL);
	assert_int_equal(kvp_reserve_on(a.space, 1, 0, &retry_ms, &g), -ENODEV);
	assert_int_equal(kvp_reserve_on(a.space, KVP_CLIENT_DEVICES, 0, &retry_ms, &g), -EINVAL);
	/* Slots in DRAM are had beside those. */
	assert_int_equal(kvp_reserve(a.space, E2E_WAIT_MS, &retry_ms, &g), 0);
	kvp_grant_release(g);
	e2e_detach(&b);
	assert_int_equal(e2e_clean(d.socket, 1), 0);
	e2e_detach(&a);
	kvt_daemon_stop(&d);
}

/* ---- clients that die ----------------------------------------------------------------------- */

#define KILLS 24u

/* In a process of its own, which dies with so many blocks committed and further slots granted. */
_Noreturn static void write_and_die(const char *socket, uint32_t number)
{
	uint32_t tokens[MOST * E2E_BT], blocks = 1 + number % 6;
	struct kvp_grant *g;
	struct e2e e;

	prompt(number, blocks, tokens);
	if (e2e_attach(&e, socket) < 0 || store(&e, tokens, blocks) < 0)
		_exit(1);
	for (uint32_t i = 0; i < number % 3; i++)
		if (reserve(&e, &g) < 0)
			_exit(2);
	kill(getpid(), SIGKILL);
	_exit(3);
}

static void dead_clients_cost_nothing(void **state)
{
	uint32_t tokens[MOST * E2E_BT], there, kept = 0;
	struct kvt_daemon d;
	struct e2e e;

	(void)state;
	start(&d, "driver: host");
	assert_int_equal(e2e_attach(&e, d.socket), 0);
	for (uint32_t i = 1; i <= KILLS; i++) {
		pid_t pid = e2e_fork();

		if (!pid)
			write_and_die(d.socket, i);
		assert_int_equal(e2e_reap(pid), 128 + SIGKILL);
		/* What it committed is there, wherever: */
		prompt(i, 1 + i % 6, tokens);
		assert_int_equal(fetch_all(&e, tokens, 1 + i % 6, KVP_MATCH_DEVICE), 1 + i % 6);
	}
	for (uint32_t i = 1; i <= KILLS; i++) {
		prompt(i, 1 + i % 6, tokens);
		kept += fetch(&e, tokens, 1 + i % 6, KVP_MATCH_DEVICE, &there) > 0;
	}
	assert_true(kept > 0);
	/* and there is room for others, all of it. */
	for (uint32_t i = 0; i < 10; i++) {
		prompt(1000 + i, MOST, tokens);
		assert_int_equal(store(&e, tokens, MOST), 0);
		assert_int_equal(fetch_all(&e, tokens, MOST, KVP_MATCH_DEVICE), MOST);
	}
	assert_int_equal(e2e_clean(d.socket, 1), 0);
	e2e_detach(&e);
	kvt_daemon_stop(&d);
}

/* ---- workers that die ----------------------------------------------------------------------- */

/* Copies that fail, or take long, cost nobody what is on the device, and DRAM serves all the while. */
static void a_failing_driver_keeps_blocks_there(void **state)
{
	static const char *const faults[] = { "copy=fail:5", "copy=slow:20", "copy=die@2#0" };

	(void)state;
	for (uint32_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		uint32_t tokens[MOST * E2E_BT], here[MOST * E2E_BT];
		char driver[100];
		struct kvt_daemon d;
		struct e2e e;

		snprintf(driver, sizeof(driver), "driver: fault, faults: \"%s\"", faults[i]);
		start(&d, driver);
		assert_int_equal(e2e_attach(&e, d.socket), 0);
		prompt(1, MOST, tokens);
		prompt(2, MOST, here);
		assert_int_equal(store(&e, tokens, MOST), 0);
		assert_int_equal(fetch_all(&e, tokens, MOST, KVP_MATCH_DEVICE), MOST);
		assert_int_equal(e2e_store(&e, here, MOST * E2E_BT, E2E_WAIT_MS, false), (int)MOST);
		assert_int_equal(fetch_all(&e, here, MOST, 0), MOST);
		if (i)
			assert_int_equal(fetch_all(&e, tokens, MOST, 0), MOST);
		e2e_detach(&e);
		kvt_daemon_stop(&d);
	}
}

static void a_killed_worker_loses_nothing(void **state)
{
	uint32_t tokens[MOST * E2E_BT];
	struct kvt_daemon d;
	struct e2e e;

	(void)state;
	start(&d, "driver: host");
	assert_int_equal(e2e_attach(&e, d.socket), 0);
	for (uint32_t i = 0; i < 6; i++) {
		pid_t worker = e2e_worker(d.pid);

		prompt(1 + i, MOST, tokens);
		if (worker && i % 2)
			kill(worker, SIGKILL);
		assert_int_equal(store(&e, tokens, MOST), 0);
		if (worker && !(i % 2))
			kill(worker, SIGKILL);
		assert_int_equal(fetch_all(&e, tokens, MOST, KVP_MATCH_DEVICE), MOST);
	}
	assert_int_equal(e2e_clean(d.socket, 1), 0);
	e2e_detach(&e);
	kvt_daemon_stop(&d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_written_is_read),
		cmocka_unit_test(dead_clients_cost_nothing),
		cmocka_unit_test(a_killed_worker_loses_nothing),
		cmocka_unit_test(a_failing_driver_keeps_blocks_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
