/* SPDX-License-Identifier: Apache-2.0 */
/* What a tenant has of a device: for how many blocks, and what the ledger's own state of it takes. */
#include "daemon/ledger/medium.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/ledger/block.h"
#include "daemon/ledger/class.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/tenant_limits.h"
#include "policy/kvp_evict.h"
#include "tests/daemon/ledger/dp_world.h"

#define T      16u
#define KIB    (UINT64_C(1) << 10)
#define MIB    (UINT64_C(1) << 20)
#define GIB    (UINT64_C(1) << 30)
#define BLOCKS 256000u

/* Never asked for anything. */
static struct kvpd_device_entry device = {
	.name = (char *)(uintptr_t) "none",
	.driver = (char *)(uintptr_t) "host",
	.worker = (char *)(uintptr_t) "/nowhere",
	.segment = MIB,
};

static void begin(struct dp_world *w, struct kvpd_limits *limits, uint64_t device_bytes)
{
	device.bytes = device_bytes;
	w->config.devices = &device;
	w->config.n_devices = device_bytes != 0;
	limits->device_share[0] = device_bytes;
	dp_start(w, limits);
}

/* Bytes of metadata for each of BLOCKS blocks of 64 tokens, with the default policy. */
static uint64_t metadata(uint64_t device_bytes)
{
	struct kvpd_limits limits;
	struct dp_world w;
	uint64_t bytes;

	dp_defaults(&w, &limits);
	w.config.policy = (char *)(uintptr_t)KVP_EVICT_DEFAULT;
	w.config.memory = 20 * GIB;
	limits.share = BLOCKS * 64 * KIB;
	limits.max_blocks = BLOCKS;
	limits.recipe_tokens = 0; /* 64 for each block */
	limits.max_sessions = 0;
	begin(&w, &limits, device_bytes);
	bytes = dp_figure(&w, "metadata_bytes") / BLOCKS;
	dp_stop(&w);
	return bytes;
}

/* 560 bytes a block at most, also with a device for a tenth of them. */
static void test_metadata(void **state)
{
	uint64_t without = metadata(0), tenth = metadata(BLOCKS / 10 * 64 * KIB);

	(void)state;
	print_message("%u without a device, %u with one\n", (unsigned)without, (unsigned)tenth);
	assert_in_range(without, 1, 560);
	assert_in_range(tenth, without + 1, 560);
}

static void test_places(void **state)
{
	struct kvpd_limits limits = { .share = 10 * GIB, .max_blocks = 163840 };

	(void)state;
	/* at 64 KiB a block */
	assert_int_equal(kvpd_limits_part_blocks(&limits, GIB), 16384);
	assert_int_equal(kvpd_limits_part_blocks(&limits, 100 * GIB), 163840);
	/* a few are always there, but no more than blocks */
	assert_int_equal(kvpd_limits_part_blocks(&limits, MIB), 4096);
	limits.max_blocks = 1000;
	assert_int_equal(kvpd_limits_part_blocks(&limits, MIB), 1000);
	/* larger blocks are not supposed, smaller ones are */
	limits.max_blocks = 16384;
	assert_int_equal(kvpd_limits_part_blocks(&limits, GIB / 2), 8192);
	limits.max_blocks = 10 * 163840;
	assert_int_equal(kvpd_limits_part_blocks(&limits, GIB), 131072); /* in slots of 8 KiB */
	limits.max_blocks = UINT32_C(1) << 29;
	limits.share = 1;
	assert_int_equal(kvpd_limits_part_blocks(&limits, GIB), 262144); /* of 4 KiB */
}

/* Extents of smaller blocks than were supposed: no more slots than the policy has places. */
static int fill_on_ledger(struct kvpd_ledger *l, void *arg)
{
	const uint32_t *tenant = arg;
	struct kvpd_tenant *t = l->tenant[*tenant];
	struct kvpd_part *p = &t->part[0];
	struct kvpd_class *c = kvpd_class_get(t, KVPD_DRAM + 1, 4096);
	struct kvpd_extent *x[3];

	for (uint32_t i = 0; i < 3; i++)
		x[i] = kvpd_extent_new(t, c, KVP_EXTENT_VAULT, 2 * MIB);
	if (!x[0] || x[0]->slots != 512 || x[0]->bytes != 2 * MIB)
		return __LINE__;
	if (!x[1] || x[1]->slots != 88 || x[1]->bytes != 88 * 4096u || x[2])
		return __LINE__;
	if (p->slots != p->max_slots || p->charged != x[0]->bytes + x[1]->bytes)
		return __LINE__;
	kvpd_extent_free(x[0]);
	x[2] = kvpd_extent_new(t, c, KVP_EXTENT_VAULT, 2 * MIB);
	if (!x[2] || x[2]->slots != 512)
		return __LINE__;
	kvpd_extent_free(x[1]);
	kvpd_extent_free(x[2]);
	return p->slots || p->charged ? __LINE__ : 0;
}

static void test_slots(void **state)
{
	struct kvpd_limits limits;
	struct dp_world w;

	(void)state;
	dp_defaults(&w, &limits);
	limits.max_blocks = 600;
	begin(&w, &limits, 8 * MIB);
	assert_int_equal(kvpd_ledger_ask(w.ledger, fill_on_ledger, &w.tenant), 0);
	dp_check(&w);
	dp_stop(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_metadata),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_slots),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
