/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `check --payloads` with devices: what lies there is compared with its checksums by the worker; a payload
 * that is damaged at rest is found, counted and taken away, and every reader has the one in DRAM.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/device/device.h"

/* Flips a bit of these bytes, where the worker has them. */
static void damage(pid_t worker, const void *bytes, size_t n)
{
	char path[64], line[400];
	uint64_t from, to;
	bool done = false;
	FILE *maps;
	int mem;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)worker);
	maps = fopen(path, "r");
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)worker);
	mem = open(path, O_RDWR | O_CLOEXEC);
	if (!maps || mem < 0)
		skip();
	while (!done && fgets(line, sizeof(line), maps)) {
		uint8_t *copy, *at;

		if (!strstr(line, "/memfd:kvpool-device") ||
			sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		copy = malloc(to - from);
		assert_int_equal(pread(mem, copy, to - from, (off_t)from), to - from);
		at = memmem(copy, to - from, bytes, n);
		if (at) {
			*at ^= 0x40;
			assert_int_equal(
				pwrite(mem, at, 1, (off_t)(from + (uint64_t)(at - copy))), 1);
			done = true;
		}
		free(copy);
	}
	assert_true(done);
	fclose(maps);
	close(mem);
}

/* The answer of kvctl check --payloads; its exit status has to be this. */
static json_t *check(struct dev_world *w, int status)
{
	char line[600], text[8000];
	json_error_t error;
	json_t *answer;
	size_t n;
	FILE *f;

	snprintf(line, sizeof(line), "%s --socket %s --json check --payloads", getenv("KVCTL"),
		w->daemon.socket);
	f = popen(line, "r");
	assert_non_null(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = 0;
	assert_int_equal(pclose(f) >> 8, status);
	answer = json_loads(text, 0, &error);
	assert_non_null(answer);
	return answer;
}

static void expect(struct dev_world *w, int status, int verified, int damaged, int unverified)
{
	json_t *a = check(w, status);

	assert_int_equal(json_integer_value(json_object_get(a, "device_verified")), verified);
	assert_int_equal(json_integer_value(json_object_get(a, "device_damaged")), damaged);
	assert_int_equal(json_integer_value(json_object_get(a, "device_unverified")), unverified);
	assert_int_equal(json_is_true(json_object_get(a, "clean")), !damaged);
	json_decref(a);
}

static void damaged_at_rest(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(1, sizeof(*p));
	const void *there[DEV_BLOCKS];
	int i;

	(void)state;
	dev_begin(&w, "driver: host", "");
	dev_put(&w, p, 1);
	assert_true(dev_warm_all(&w, p));
	assert_int_equal(dev_read(&w, p), DEV_BLOCKS);
	expect(&w, 0, DEV_BLOCKS, 0, 0);
	assert_int_equal(
		kvp_device_payloads(p->match, 0, 0, DEV_BLOCKS, 0, there), (int)DEV_BLOCKS);
	damage(e2e_worker(w.daemon.pid), there[DEV_BLOCKS - 1], E2E_BLOCK_BYTES);
	assert_int_equal(dev_read(&w, p), -1);
	/* As long as it is leased it stays, and is found each time. */
	expect(&w, 1, DEV_BLOCKS, 1, 0);
	expect(&w, 1, DEV_BLOCKS, 1, 0);
	assert_int_equal(dev_figure(&w, "blocks"), DEV_BLOCKS);
	dev_release(p);
	expect(&w, 1, DEV_BLOCKS, 1, 0);
	for (i = 0; i < 1500 && dev_figure(&w, "blocks") != DEV_BLOCKS - 1; i++)
		e2e_sleep_us(20000);
	assert_true(i < 1500);
	expect(&w, 0, DEV_BLOCKS - 1, 0, 0);
	assert_int_equal(e2e_fetch_all(&w.e, p->tokens, DEV_TOKENS), DEV_TOKENS);
	dev_put(&w, p, 1);
	assert_true(dev_warm_all(&w, p));
	assert_int_equal(dev_read(&w, p), DEV_BLOCKS);
	/* It went for its own sake. */
	assert_int_equal(dev_figure(&w, "reloads_total"), 0);
	dev_release(p);
	dev_end(&w);
	free(p);
}

/* What cannot be verified, since the worker dies of it, is said to be so, and nothing waits for ever. */
static void unverified(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(1, sizeof(*p));
	json_t *a;

	(void)state;
	dev_begin(&w, "driver: fault, timeout_ms: 700, faults: 'sum=hang@50#0'", "");
	dev_put(&w, p, 1);
	assert_true(dev_warm_all(&w, p));
	a = check(&w, 0);
	assert_true(json_integer_value(json_object_get(a, "device_unverified")) > 0);
	assert_int_equal(json_integer_value(json_object_get(a, "device_unverified")) +
				 json_integer_value(json_object_get(a, "device_verified")),
		DEV_BLOCKS);
	json_decref(a);
	expect(&w, 0, DEV_BLOCKS, 0, 0);
	dev_release(p);
	dev_end(&w);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(damaged_at_rest),
		cmocka_unit_test(unverified),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
