/* SPDX-License-Identifier: Apache-2.0 */
/* A prompt is read on a device piece by piece, and the next piece is on its way meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "tests/device/device.h"

#define CHUNKS 5u
#define CHUNK  (DEV_BLOCKS / CHUNKS)

static struct kvp_ticket ask(struct dev_prompt *p, uint32_t chunk)
{
	struct kvp_warm_opts o = {
		.size = sizeof(o), .first = chunk * CHUNK, .n = CHUNK, .flags = KVP_WARM_PREFETCH
	};
	struct kvp_ticket t;

	assert_int_equal(kvp_warm(p->match, &o, &t), 0);
	return t;
}

/* Every block of the chunk lies there, and is what was stored. */
static void read_chunk(const struct dev_prompt *p, uint32_t chunk)
{
	const uint32_t first = chunk * CHUNK;
	const void *there[CHUNK];

	/* The library may still be mapping the segment. */
	while (kvp_device_payloads(p->match, 0, first, CHUNK, 0, there) != (int)CHUNK)
		e2e_sleep_us(1000);
	for (uint32_t i = 0; i < CHUNK; i++)
		assert_true(e2e_derived(p->tokens, (first + i + 1) * E2E_BT, there[i]));
}

/*
 * C-059. While a chunk is read the device's worker is stopped, so that the next one is on its way for certain: it has
 * been asked for before, and its ticket has not ended after.
 */
static void the_next_chunk_is_on_its_way(void **state)
{
	struct dev_prompt *p = calloc(1, sizeof(*p));
	struct dev_world w = { 0 };
	struct kvp_ticket this, next;
	int why = 0;

	(void)state;
	/* Nobody takes the worker that is stopped for one that hangs. */
	dev_begin(&w, "driver: host, timeout_ms: 60000", "");
	dev_put(&w, p, 1);
	this = ask(p, 0);
	for (uint32_t i = 0; i < CHUNKS; i++) {
		pid_t worker = (pid_t)dev_figure(&w, "pid");

		assert_int_equal(kvp_ticket_wait(w.e.client, this, E2E_WAIT_MS, &why), CHUNK);
		assert_int_equal(why, 0);
		if (i + 1 == CHUNKS)
			break;
		assert_int_equal(kill(worker, SIGSTOP), 0);
		next = ask(p, i + 1);
		read_chunk(p, i);
		assert_int_equal(kvp_ticket_wait(w.e.client, next, 0, NULL), -ETIMEDOUT);
		assert_int_equal(dev_figure(&w, "warmed_total"), (i + 1) * CHUNK);
		assert_int_equal(kill(worker, SIGCONT), 0);
		this = next;
	}
	read_chunk(p, CHUNKS - 1);
	assert_int_equal(dev_read(&w, p), DEV_BLOCKS);
	/* Each block was copied once. */
	assert_int_equal(dev_figure(&w, "warmed_total"), DEV_BLOCKS);
	dev_release(p);
	dev_end(&w);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(the_next_chunk_is_on_its_way) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
