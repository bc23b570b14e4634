/* SPDX-License-Identifier: Apache-2.0 */
/* numa_node: auto. Where a device is decides to which node vaults are bound, or why to none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>
#include <numa.h>
#include <numaif.h>

#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "tests/daemon/ledger/dp_world.h"

#define MIB (UINT64_C(1) << 20)
#define T   16u

struct subject {
	struct dp_world w;
	struct kvpd_device_entry device;
	struct dp_client *c;
	/* of the vaults that there are, the kernel's word */
	uint32_t vaults, bound, elsewhere;
	int node;
};

static struct kvpd_device_row row_of(struct subject *s)
{
	struct kvpd_device_row row;
	struct kvpd_figures f;

	assert_int_equal(dp_figures(&s->w, NULL, KVPD_FIGURES_BRIEF, &f), 0);
	row = f.device[0];
	kvpd_figures_fini(&f);
	return row;
}

static int shown_on_ledger(struct kvpd_ledger *l, void *arg)
{
	(void)arg;
	return l->medium[0].shown == KVP_DEVICE_UP;
}

static void begin(struct subject *s, int numa_node, const char *faults)
{
	struct kvpd_limits limits;

	*s = (struct subject){ 0 };
	s->device = (struct kvpd_device_entry){
		.name = (char *)(uintptr_t) "near",
		.driver = (char *)(uintptr_t) "fault",
		.faults = (char *)(uintptr_t)faults,
		.worker = getenv("KVPOOL_DEVICE"),
		.bytes = 16 * MIB,
		.segment = MIB,
	};
	dp_defaults(&s->w, &limits);
	s->w.config.devices = &s->device;
	s->w.config.n_devices = 1;
	s->w.config.numa_node = numa_node;
	limits.device_share[0] = s->device.bytes;
	limits.arena = 2 * MIB;
	dp_start(&s->w, &limits);
	for (uint32_t ms = 0; !kvpd_ledger_ask(s->w.ledger, shown_on_ledger, NULL); ms++) {
		assert_true(ms < DP_WAIT_MS);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}

static int vaults_on_ledger(struct kvpd_ledger *l, void *arg)
{
	struct subject *s = arg;
	struct kvpd_tenant *t = l->tenant[s->w.tenant];
	struct bitmask *nodes = numa_allocate_nodemask();

	for (uint32_t i = 0; i < t->n_extents; i++) {
		const struct kvpd_extent *x = t->extent[i];
		int mode = -1;

		if (!x || x->state != KVPD_EXTENT_LIVE || x->kind != KVP_EXTENT_VAULT ||
			x->cls->medium != KVPD_DRAM)
			continue;
		s->vaults++;
		if (get_mempolicy(&mode, nodes->maskp, nodes->size + 1, x->addr, MPOL_F_ADDR) < 0)
			continue;
		if (mode == MPOL_BIND && numa_bitmask_weight(nodes) == 1 &&
			numa_bitmask_isbitset(nodes, 0))
			s->bound++;
		else if (mode == MPOL_DEFAULT)
			s->elsewhere++;
	}
	numa_bitmask_free(nodes);
	return 0;
}

/* More than the client's arena holds goes into the vault. */
static void fill(struct subject *s)
{
	struct dp_client *c = dp_attach(&s->w, s->w.tenant);
	uint32_t space = dp_space(c, "m", 64);

	for (uint32_t ms = 0; !s->vaults; ms++) {
		kvp_token tokens[T] = { ms };
		struct dp_block b;

		assert_true(ms < DP_WAIT_MS);
		assert_int_equal(dp_put(c, space, dp_root(), tokens, T, &b), 0);
		assert_int_equal(kvpd_ledger_ask(s->w.ledger, vaults_on_ledger, s), 0);
	}
	dp_check(&s->w);
	dp_detach(c);
}

static void vaults_are_bound_where_the_device_is(void **state)
{
	struct kvpd_device_row row;
	struct subject s;

	(void)state;
	if (numa_available() < 0)
		skip();
	begin(&s, KVPD_NODE_AUTO, "caps=node:0");
	fill(&s);
	row = row_of(&s);
	assert_int_equal(row.numa_node, 0);
	assert_int_equal(row.bound_node, 0);
	assert_int_equal(s.bound, s.vaults);
	dp_stop(&s.w);
}

/* A node that does not exist, or that nobody knows: vaults are made as without it, and the log says so. */
static void others_are_not(void **state)
{
	static const struct {
		int numa_node;
		const char *faults;
		int said;
	} cases[] = { { KVPD_NODE_AUTO, "caps=node:1000", 1000 }, { KVPD_NODE_AUTO, NULL, -1 },
		{ KVPD_NODE_ANY, "caps=node:0", 0 } };

	(void)state;
	if (numa_available() < 0)
		skip();
	for (uint32_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct kvpd_device_row row;
		struct subject s;

		begin(&s, cases[i].numa_node, cases[i].faults);
		fill(&s);
		row = row_of(&s);
		assert_int_equal(row.numa_node, cases[i].said);
		assert_int_equal(row.bound_node, -1);
		assert_int_equal(s.elsewhere, s.vaults);
		dp_stop(&s.w);
	}
}

/* A worker that claims a node beyond all is not believed: it is malformed. */
static void nonsense_is_refused(void **state)
{
	struct kvpd_limits limits;
	struct subject s = { 0 };

	(void)state;
	s.device = (struct kvpd_device_entry){
		.name = (char *)(uintptr_t) "far",
		.driver = (char *)(uintptr_t) "fault",
		.faults = (char *)(uintptr_t) "caps=node:4000000",
		.worker = getenv("KVPOOL_DEVICE"),
		.bytes = 16 * MIB,
		.segment = MIB,
	};
	dp_defaults(&s.w, &limits);
	s.w.config.devices = &s.device;
	s.w.config.n_devices = 1;
	s.w.config.numa_node = KVPD_NODE_AUTO;
	dp_start(&s.w, &limits);
	for (uint32_t ms = 0; !row_of(&s).error[0]; ms++) {
		assert_true(ms < DP_WAIT_MS);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	assert_int_equal(row_of(&s).bound_node, -1);
	dp_stop(&s.w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vaults_are_bound_where_the_device_is),
		cmocka_unit_test(others_are_not),
		cmocka_unit_test(nonsense_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
