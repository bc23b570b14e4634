/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that an administrator empties, detaches and attaches again: leased blocks stay until their
 * leases end, nothing new comes there, nothing of it is open afterwards, and no block is lost.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/device/device.h"

static uint64_t number(const json_t *o, const char *name)
{
	return (uint64_t)json_integer_value(json_object_get(o, name));
}

/* Descriptors of the device's memory that the daemon has open. */
static uint32_t open_segments(pid_t daemon)
{
	char path[400], to[64];
	struct dirent *e;
	uint32_t n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", (int)daemon);
	dir = opendir(path);
	assert_non_null(dir);
	while ((e = readdir(dir))) {
		ssize_t len;

		snprintf(path, sizeof(path), "/proc/%d/fd/%s", (int)daemon, e->d_name);
		len = readlink(path, to, sizeof(to) - 1);
		to[len < 0 ? 0 : len] = 0;
		n += !strncmp(to, "/memfd:kvpool-device", 20);
	}
	closedir(dir);
	return n;
}

/* Until there are so many blocks there; false: half a minute passed. */
static bool await_blocks(struct dev_world *w, uint64_t blocks)
{
	for (int i = 0; i < 1500; i++) {
		json_t *left = dev_ask(w, "device-left");
		uint64_t n = number(left, "blocks");

		json_decref(left);
		if (n == blocks)
			return true;
		e2e_sleep_us(20000);
	}
	return false;
}

static int kvctl(struct dev_world *w, const char *words)
{
	char line[600];

	snprintf(line, sizeof(line), "%s --socket %s %s", getenv("KVCTL"), w->daemon.socket, words);
	return system(line) >> 8;
}

static void leases_first(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(3, sizeof(*p));
	struct kvp_device_props props = { .size = sizeof(props) };
	json_t *left;
	int why;

	(void)state;
	dev_begin(&w, "driver: host", "");
	for (uint32_t i = 0; i < 3; i++)
		dev_put(&w, &p[i], i + 1);
	assert_true(dev_warm_all(&w, &p[0]));
	assert_true(dev_warm_all(&w, &p[1]));
	dev_release(&p[1]);
	assert_int_equal(dev_figure(&w, "blocks"), 2 * DEV_BLOCKS);
	assert_true(open_segments(w.daemon.pid) > 0);

	/* What nobody has leased goes; the rest can be read as long as it is leased. */
	json_decref(dev_ask(&w, "device-drain"));
	assert_true(await_blocks(&w, DEV_BLOCKS));
	left = dev_ask(&w, "device-left");
	assert_string_equal(json_string_value(json_object_get(left, "state")), "draining");
	assert_false(json_is_true(json_object_get(left, "empty")));
	assert_int_equal(number(json_object_get(left, "kept"), "leased"), DEV_BLOCKS);
	json_decref(left);
	assert_int_equal(dev_read(&w, &p[0]), DEV_BLOCKS);
	/* It is not detached under a reader, however often that is asked for. */
	for (int i = 0; i < 3; i++)
		json_decref(dev_ask(&w, "device-detach"));
	assert_true(dev_await(&w, "device-left", "draining"));
	assert_true(e2e_worker(w.daemon.pid) > 0);
	assert_int_equal(kvctl(&w, "--timeout 1 device drain one"), 1);
	/* Nothing new comes there, and clients hear why. */
	assert_int_equal(dev_warm(&w, &p[2], &why), 0);
	assert_int_equal(why, -ENODEV);
	assert_int_equal(kvp_device_info(w.e.client, 0, &props), 0);
	assert_int_not_equal(props.state, KVP_DEVICE_IS_UP);

	dev_release(&p[0]);
	assert_int_equal(kvctl(&w, "device detach one"), 0);
	assert_int_equal(e2e_worker(w.daemon.pid), 0);
	assert_int_equal(open_segments(w.daemon.pid), 0);
	assert_int_equal(dev_figure(&w, "charged_bytes"), 0);
	assert_int_equal(dev_warm(&w, &p[2], &why), 0);
	assert_int_equal(why, -ENODEV);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(e2e_fetch_all(&w.e, p[i].tokens, DEV_TOKENS), DEV_TOKENS);
	/* Once more is harmless. */
	assert_int_equal(kvctl(&w, "device detach one"), 0);

	assert_int_equal(kvctl(&w, "device attach one"), 0);
	assert_true(e2e_worker(w.daemon.pid) > 0);
	assert_true(dev_warm_all(&w, &p[2]));
	assert_int_equal(dev_read(&w, &p[2]), DEV_BLOCKS);
	/* What was emptied by an administrator is not back soon: nothing went for others. */
	dev_put(&w, &p[1], 2);
	assert_true(dev_warm_all(&w, &p[1]));
	assert_int_equal(dev_figure(&w, "reloads_total"), 0);
	dev_release(&p[1]);
	assert_int_equal(kvctl(&w, "device list"), 0);
	dev_release(&p[2]);
	dev_end(&w);
	free(p);
}

/* While blocks come and go all the time, and while the worker is killed. */
static void again_and_again(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(4, sizeof(*p));

	(void)state;
	dev_begin(&w, "driver: host, copy_rate: 8MiB", "");
	for (uint32_t i = 0; i < 4; i++)
		dev_put(&w, &p[i], i + 1);
	for (uint32_t round = 0; round < 4; round++) {
		struct kvp_ticket ticket;
		pid_t worker;

		for (uint32_t i = 0; i < 4; i++) {
			assert_int_equal(kvp_warm(p[i].match, NULL, &ticket), 0);
			dev_release(&p[i]);
		}
		json_decref(dev_ask(&w, "device-drain"));
		worker = e2e_worker(w.daemon.pid);
		if (round % 2 && worker)
			kill(worker, SIGKILL);
		assert_true(dev_await(&w, "device-detach", "detached"));
		assert_int_equal(open_segments(w.daemon.pid), 0);
		json_decref(dev_ask(&w, "device-attach"));
		assert_true(dev_await(&w, "devices", "up"));
		for (uint32_t i = 0; i < 4; i++)
			dev_put(&w, &p[i], i + 1);
		assert_true(dev_warm_all(&w, &p[round]));
		assert_int_equal(dev_read(&w, &p[round]), DEV_BLOCKS);
	}
	for (uint32_t i = 0; i < 4; i++)
		dev_release(&p[i]);
	dev_end(&w);
	free(p);
}

/* A drain that is called off: what comes next lies there as before. */
static void called_off(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(2, sizeof(*p));

	(void)state;
	dev_begin(&w, "driver: host", "");
	dev_put(&w, &p[0], 1);
	dev_put(&w, &p[1], 2);
	assert_true(dev_warm_all(&w, &p[0]));
	json_decref(dev_ask(&w, "device-drain"));
	json_decref(dev_ask(&w, "device-attach"));
	assert_true(dev_await(&w, "device-left", "up"));
	assert_true(dev_warm_all(&w, &p[1]));
	assert_int_equal(dev_read(&w, &p[1]), DEV_BLOCKS);
	assert_int_equal(dev_read(&w, &p[0]), DEV_BLOCKS);
	assert_int_equal(kvctl(&w, "device drain two"), 1);
	assert_int_equal(kvctl(&w, "device drain"), 2);
	assert_int_equal(kvctl(&w, "device empty one"), 2);
	dev_release(&p[0]);
	dev_release(&p[1]);
	dev_end(&w);
	free(p);
}

/*
 * Blocks that a client wrote there, and a slot that it is about to write: the device is not taken away under
 * it, and is as soon as it has committed or given up.
 */
static void written_there(void **state)
{
	struct dev_world w = { 0 };
	struct kvp_ref parent = kvp_ref_root();
	uint32_t tokens[8 * E2E_BT];
	struct kvp_grant *g, *last = NULL;
	json_t *left;

	(void)state;
	dev_begin(&w, "driver: host", "");
	assert_true(dev_await(&w, "devices", "up"));
	for (uint32_t i = 0; i < 8; i++) {
		for (uint32_t k = 0; k < E2E_BT; k++)
			tokens[i * E2E_BT + k] = 1000 + i * E2E_BT + k;
		assert_int_equal(kvp_reserve_on(w.e.space, 0, E2E_WAIT_MS, NULL, &g), 0);
		e2e_derive(tokens, (i + 1) * E2E_BT, kvp_grant_addr(g));
		assert_int_equal(kvp_commit(g, parent, tokens + i * E2E_BT, E2E_BT, NULL, 0), 0);
		assert_int_equal(kvp_grant_ref(g, &parent), 0);
		kvp_grant_release(last);
		last = g;
	}
	assert_int_equal(kvp_flush(w.e.client, E2E_WAIT_MS), 0);
	kvp_grant_release(last);
	assert_int_equal(dev_figure(&w, "blocks"), 8);
	assert_int_equal(kvp_reserve_on(w.e.space, 0, E2E_WAIT_MS, NULL, &g), 0);

	json_decref(dev_ask(&w, "device-drain"));
	assert_true(await_blocks(&w, 0));
	left = dev_ask(&w, "device-left");
	assert_false(json_is_true(json_object_get(left, "empty")));
	assert_true(number(left, "granted_slots") > 0);
	json_decref(left);
	assert_int_equal(kvctl(&w, "--timeout 1 device detach one"), 1);
	assert_int_equal(kvp_reserve_on(w.e.space, 0, 100, NULL, &last), -ENODEV);
	kvp_grant_release(g);
	assert_int_equal(kvctl(&w, "device detach one"), 0);
	assert_int_equal(open_segments(w.daemon.pid), 0);
	dev_end(&w);
}

/* Slots that came too late for the call that wanted them are nobody's reason to keep a device. */
static void granted_late(void **state)
{
	struct dev_world w = { 0 };
	struct kvp_grant *g = NULL;
	int i, r;

	(void)state;
	dev_begin(&w, "driver: fault, faults: 'make=slow:700'", "");
	assert_true(dev_await(&w, "devices", "up"));
	r = kvp_reserve_on(w.e.space, 0, 100, NULL, &g);
	assert_true(r == -EAGAIN || r == -ETIMEDOUT);
	for (i = 0; i < 1500 && !dev_figure(&w, "segments"); i++)
		e2e_sleep_us(20000);
	assert_true(i < 1500);
	assert_int_equal(kvctl(&w, "device detach one"), 0);
	assert_int_equal(kvctl(&w, "device attach one"), 0);
	assert_int_equal(kvp_reserve_on(w.e.space, 0, E2E_WAIT_MS, NULL, &g), 0);
	kvp_grant_release(g);
	dev_end(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leases_first),
		cmocka_unit_test(again_and_again),
		cmocka_unit_test(called_off),
		cmocka_unit_test(written_there),
		cmocka_unit_test(granted_late),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
