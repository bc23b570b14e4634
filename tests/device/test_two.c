/* SPDX-License-Identifier: Apache-2.0 */
/* Two devices: a block lies on one of them, and each has shares, workers and troubles of its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/device/device.h"

static void begin(struct dev_world *w)
{
	char second[300];

	snprintf(second, sizeof(second),
		"  - {name: two, bytes: 1MiB, segment: 64KiB, worker: \"%s\", driver: host}\n",
		getenv("KVPOOL_DEVICE"));
	dev_begin(w, "driver: host", second);
}

static int warm_to(struct dev_world *w, struct dev_prompt *p, uint32_t device, int *ret_why)
{
	struct kvp_warm_opts o = { .size = sizeof(o), .device = device };
	struct kvp_ticket ticket;
	int r = kvp_warm(p->match, &o, &ticket);

	return r < 0 ? r : kvp_ticket_wait(w->e.client, ticket, E2E_WAIT_MS, ret_why);
}

static void a_block_lies_on_one(void **state)
{
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(2, sizeof(*p));
	const void *there[DEV_BLOCKS];
	int why;

	(void)state;
	begin(&w);
	dev_put(&w, &p[0], 1);
	dev_put(&w, &p[1], 2);
	assert_true(dev_warm_all(&w, &p[0]));
	assert_int_equal(warm_to(&w, &p[0], 1, &why), 0);
	assert_int_equal(why, -EBUSY);
	assert_int_equal(warm_to(&w, &p[1], 1, &why), DEV_BLOCKS);
	assert_int_equal(why, 0);
	assert_int_equal(dev_read(&w, &p[0]), DEV_BLOCKS);
	/* Nothing of the other one is found on this. */
	assert_true(kvp_device_payloads(p[1].match, 0, 0, DEV_BLOCKS, 0, there) <= 0);
	assert_true(kvp_device_payloads(p[0].match, 1, 0, DEV_BLOCKS, 0, there) <= 0);

	/* What is taken from one can go to the other, which that does not touch. */
	dev_release(&p[0]);
	assert_true(dev_await(&w, "device-detach", "detached"));
	dev_put(&w, &p[0], 1);
	assert_int_equal(warm_to(&w, &p[0], 0, &why), 0);
	assert_int_equal(why, -ENODEV);
	assert_int_equal(warm_to(&w, &p[0], 1, &why), DEV_BLOCKS);
	dev_release(&p[0]);
	dev_release(&p[1]);
	dev_end(&w);
	free(p);
}

/* What came ahead of need, and whether it was worth it. */
static void prefetched_and_used(void **state)
{
	struct kvp_warm_opts ahead = { .size = sizeof(ahead), .flags = KVP_WARM_PREFETCH };
	struct dev_world w = { 0 };
	struct dev_prompt *p = calloc(2, sizeof(*p));
	struct kvp_ticket ticket;
	int why, i;

	(void)state;
	begin(&w);
	for (i = 0; i < 2; i++) {
		dev_put(&w, &p[i], (uint32_t)i + 1);
		assert_int_equal(kvp_warm(p[i].match, &ahead, &ticket), 0);
		assert_int_equal(
			kvp_ticket_wait(w.e.client, ticket, E2E_WAIT_MS, &why), DEV_BLOCKS);
		dev_release(&p[i]);
	}
	assert_int_equal(dev_figure(&w, "prefetched_total"), 2 * DEV_BLOCKS);
	/* A match is a use; it is heard of with what the session asks next. */
	for (i = 0; i < 1500 && dev_figure(&w, "prefetched_used_total") < DEV_BLOCKS; i++) {
		dev_put(&w, &p[0], 1);
		assert_int_equal(dev_warm(&w, &p[0], &why), DEV_BLOCKS);
		dev_release(&p[0]);
		e2e_sleep_us(20000);
	}
	/* The match before the copy may be heard of after it, too. */
	assert_in_range(dev_figure(&w, "prefetched_used_total"), DEV_BLOCKS, 2 * DEV_BLOCKS);
	assert_int_equal(dev_figure(&w, "warmed_total"), 2 * DEV_BLOCKS);
	dev_end(&w);
	free(p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_lies_on_one),
		cmocka_unit_test(prefetched_and_used),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
