/* SPDX-License-Identifier: Apache-2.0 */
/*
 * E-047, under the real daemon with the policy that it has by default: a block that was dropped from a device and came
 * back soon twice is still there when others have gone that the policy would rather have kept.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "tests/device/device.h"

#define LONG_ONES (256u / DEV_BLOCKS) /* prompts that leave room for some blocks, and stay leased */
#define ONES      200u                /* prompts of one block */

struct world {
	struct dev_world w;
	struct dev_prompt *held[LONG_ONES];
	uint32_t tokens[ONES][E2E_BT];
	struct kvp_prefix *match[ONES]; /* leased */
	uint32_t next;                  /* this one and those behind it never lay there */
};

static struct kvp_prefix *match(struct world *x, uint32_t i, uint64_t flags)
{
	struct kvp_match_opts opts = { .size = sizeof(opts), .flags = flags };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *m;

	assert_int_equal(kvp_match(x->w.e.space, x->tokens[i], E2E_BT, &opts, &m), 0);
	assert_int_equal(kvp_match_info(m, &info), 0);
	assert_int_equal(info.n_blocks, 1);
	return m;
}

static bool lies_there(struct world *x, uint32_t i)
{
	struct kvp_prefix *m = match(x, i, KVP_MATCH_NO_TOUCH);
	const void *there;
	bool lies = kvp_device_payloads(m, 0, 0, 1, 0, &there) == 1;

	kvp_release(m);
	return lies;
}

/* A request that reads it there. */
static void read_there(struct world *x, uint32_t i)
{
	struct kvp_prefix *m = match(x, i, 0);
	struct kvp_ticket ticket;
	const void *there, *here;

	assert_int_equal(kvp_flush(x->w.e.client, E2E_WAIT_MS), 0);
	assert_int_equal(kvp_warm(m, NULL, &ticket), 0);
	assert_int_equal(kvp_ticket_wait(x->w.e.client, ticket, E2E_WAIT_MS, NULL), 1);
	assert_int_equal(kvp_device_payloads(m, 0, 0, 1, 0, &there), 1);
	assert_int_equal(kvp_payloads(m, 0, 1, &here), 1);
	assert_memory_equal(there, here, E2E_BLOCK_BYTES);
	kvp_release(m);
}

/* One more that never lay there comes. */
static uint32_t read_another(struct world *x)
{
	assert_true(x->next < ONES);
	read_there(x, x->next);
	return x->next++;
}

/* Leases what lies there but these two. */
static void lease_others(struct world *x, uint32_t a, uint32_t b)
{
	for (uint32_t i = 0; i < x->next; i++)
		if (i != a && i != b && lies_there(x, i))
			x->match[i] = match(x, i, KVP_MATCH_NO_TOUCH);
}

static void release_all(struct world *x)
{
	for (uint32_t i = 0; i < x->next; i++) {
		kvp_release(x->match[i]);
		x->match[i] = NULL;
	}
}

static struct world *begin(void)
{
	struct world *x = calloc(1, sizeof(*x));

	assert_non_null(x);
	dev_begin(&x->w, "driver: host", "");
	for (uint32_t i = 0; i < LONG_ONES; i++) {
		x->held[i] = calloc(1, sizeof(*x->held[i]));
		assert_non_null(x->held[i]);
		dev_put(&x->w, x->held[i], i);
		assert_true(dev_warm_all(&x->w, x->held[i]));
	}
	for (uint32_t i = 0; i < ONES; i++) {
		for (uint32_t k = 0; k < E2E_BT; k++)
			x->tokens[i][k] = 90000000 + i * 1000 + k;
		assert_true(e2e_store(&x->w.e, x->tokens[i], E2E_BT, E2E_WAIT_MS, false) >= 0);
	}
	assert_int_equal(kvp_flush(x->w.e.client, E2E_WAIT_MS), 0);
	while (x->next < 256 - LONG_ONES * DEV_BLOCKS)
		(void)read_another(x);
	return x;
}

static void end(struct world *x)
{
	for (uint32_t i = 0; i < LONG_ONES; i++) {
		dev_release(x->held[i]);
		free(x->held[i]);
	}
	dev_end(&x->w);
	free(x);
}

/* The first goes when all others are leased, and is asked for at once. */
static void goes_and_comes(struct world *x)
{
	lease_others(x, 0, 0);
	while (lies_there(x, 0)) {
		uint32_t i = read_another(x);

		x->match[i] = match(x, i, KVP_MATCH_NO_TOUCH);
	}
	release_all(x);
	read_there(x, 0);
}

static void what_came_back_twice_stays(void **state)
{
	struct world *x = begin();
	uint32_t hot = 1;

	(void)state;
	for (uint32_t i = 1; i <= 2; i++) {
		goes_and_comes(x);
		assert_int_equal(dev_figure(&x->w, "reloads_total"), i);
	}
	while (!lies_there(x, hot))
		hot++;
	for (uint32_t i = 0; i < 50; i++)
		read_there(x, hot);
	lease_others(x, 0, hot);
	while (lies_there(x, hot)) {
		(void)read_another(x);
		assert_true(lies_there(x, 0));
	}
	for (uint32_t i = 0; i < 40; i++) {
		(void)read_another(x);
		assert_true(lies_there(x, 0));
	}
	release_all(x);
	end(x);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(what_came_back_twice_stays) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}
