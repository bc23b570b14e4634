/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a configuration fits a machine with given memory, and this one's users, groups and nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/control/fit.h"
#include "shm/kvp_seg.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* What is said of a configuration on this machine; "" if it fits. */
static const char *said(const char *text, const struct kvpd_memory *m)
{
	static char error[512];
	struct kvpd_config *c = NULL;
	int r;

	if (kvpd_config_parse(
		    "t", text, strlen(text), kvpd_memory_default(m), error, sizeof(error), &c) < 0)
		fail_msg("%s", error);
	*error = 0;
	r = kvpd_fit_machine(c, m, error, sizeof(error));
	if (r == 0)
		r = kvpd_fit_shares(c, error, sizeof(error));
	assert_int_equal(r, *error ? -EINVAL : 0);
	kvpd_config_free(c);
	return error;
}

static void expect(const char *text, const struct kvpd_memory *m, const char *has)
{
	const char *what = said(text, m);

	if (*has ? !strstr(what, has) : *what)
		fail_msg("'%s' for:\n%s", what, text);
}

#define ME "user: \"\"\nhugepages: never\n"

static void test_memory(void **state)
{
	struct kvpd_memory m = { .total = 16 * GIB, .available = 4 * GIB };

	(void)state;
	expect(ME, &m, "");
	expect(ME "memory: 15GiB\n", &m, "");
	expect(ME "memory: 15361MiB\n", &m,
		"t:3: memory: 15361MiB is more than there is: the machine");
	expect(ME "memory: 15361MiB\n", &m, "at most 15360MiB can be had");
	m.n_groups = 2;
	m.group[0] = (struct kvpd_group){ .limit = 4 * GIB, .left = GIB, .path = "/cg/low" };
	m.group[1] = (struct kvpd_group){ .limit = 8 * GIB, .left = GIB, .path = "/cg" };
	expect(ME "memory: 3840MiB\n", &m, "");
	expect(ME "memory: 4GiB\n", &m, "the control group /cg/low has 4GiB; at most 3840MiB");
	expect(ME "memory: 4GiB\n", &m, "raise the group's limit");
	/* The default is a quarter of the lower one, and so always fits, unless all is too little. */
	m.group[0].limit = 128 * MIB;
	expect(ME, &m, "");
	m.group[0].limit = 60 * MIB;
	expect(ME, &m, "memory: 16MiB is more than there is");
}

static void test_huge_pages(void **state)
{
	struct kvpd_memory m = { .total = 16 * GIB, .available = 4 * GIB };
	struct kvp_seg_hugeinfo huge;
	char text[128];

	(void)state;
	if (kvp_seg_hugeinfo(&huge) < 0)
		skip();
	snprintf(text, sizeof(text), "user: \"\"\nhugepages: require\nmemory: %lluMiB\n",
		(unsigned long long)(huge.hugetlb_total * 2 + 16));
	expect(text, &m, "t:2: hugepages: require, but fewer");
}

static void test_who_and_where(void **state)
{
	struct kvpd_memory m = { .total = 16 * GIB, .available = 4 * GIB };

	(void)state;
	expect("user: nobody\n", &m, "");
	expect("user: \"4242\"\n", &m, "");
	expect("user: \"4294967295\"\n", &m, "t:1: user: there is no user '4294967295'");
	expect("user: no-such-user\n", &m, "t:1: user: there is no user 'no-such-user': create it");
	expect(ME "admin_group: no-such-group\n", &m, "t:3: admin_group: there is no group");
	expect(ME "admin_group: \"0\"\n", &m, "");
	expect(ME "numa_node: 1000\n", &m, "t:3: numa_node: ");
	expect(ME "numa_node: auto\n", &m, "t:3: numa_node: auto is the node of a device");
}

static void test_shares(void **state)
{
	struct kvpd_memory m = { .total = 16 * GIB, .available = 4 * GIB };

	(void)state;
	expect(ME "defaults:\n  share: 1MiB\n", &m, "t:4: defaults.share: 1MiB is too little");
	/* Nobody gets the default ones. */
	expect(ME "unlisted_uids: false\ndefaults:\n  share: 1MiB\n", &m, "");
	expect(ME "memory: 16MiB\nunlisted_uids: true\npolicy: lru\n", &m, "");
	expect(ME
		"tenants:\n  - name: a\n    uids: [1]\n    share: 64MiB\n    max_blocks: 1000000\n",
		&m, "t:6: tenants.0.share: 64MiB is too little");
	expect(ME
		"tenants:\n  - name: a\n    uids: [1]\n    share: 64MiB\n    max_blocks: 1000000\n",
		&m, "or lower max_blocks");
	expect(ME "defaults:\n  recipe_tokens: 68719476736\n", &m,
		"t:3: defaults: no catalog can be");
}

static void test_devices(void **state)
{
	static const char *const bad_faults[] = { "copy", "copy=die,,", "copy=what", "make=damage",
		"walk=die", "copy=fail:x", "copy=die;make=die" };
	struct kvpd_memory m = { .total = 16 * GIB, .available = 4 * GIB };
	char text[256];

	(void)state;
	expect(ME "devices: [{name: a, driver: host, bytes: 4MiB}]\n", &m, "");
	expect(ME "devices: [{name: a, driver: host, bytes: 4MiB, worker: /bin/sh}]\n", &m, "");
	expect(ME "devices:\n - {name: a, driver: host, bytes: 4MiB}\n"
		  " - {name: b, driver: host, bytes: 4MiB, worker: /nowhere/kvpool-device}\n",
		&m, "t:5: devices.1.worker: there is no program '/nowhere/kvpool-device'");
	expect(ME "devices: [{name: a, driver: host, bytes: 4MiB, worker: /dev}]\n", &m,
		"devices.0.worker: there is no program '/dev'");
	expect(ME "devices: [{name: a, driver: host, bytes: 4MiB, worker: /dev/null}]\n", &m,
		"devices.0.worker: there is no program '/dev/null'");
	expect(ME "devices: [{name: a, driver: fault, bytes: 4MiB}]\n", &m, "");
	expect(ME "devices: [{name: a, driver: fault, bytes: 4MiB, faults: '"
		  "copy=fail:5@2+#1,make=slow:3,caps=node:1'}]\n",
		&m, "");
	for (size_t i = 0; i < sizeof(bad_faults) / sizeof(bad_faults[0]); i++) {
		snprintf(text, sizeof(text),
			ME "devices: [{name: a, driver: fault, bytes: 4MiB, faults: '%s'}]\n",
			bad_faults[i]);
		expect(text, &m, "t:3: devices.0.faults: '");
	}
	expect(ME "devices: [{name: a, driver: host, bytes: 15GiB}]\n", &m, "");
	expect(ME "devices: [{name: a, driver: host, bytes: 900GiB}]\n", &m,
		"t:3: devices.0.bytes: 900GiB of host memory is more than there is: at most "
		"15360MiB");
	expect(ME "devices: [{name: a, driver: fault, bytes: 16GiB}]\n", &m,
		"devices.0.bytes: 16GiB");
	/* A GPU's memory is none of the machine's. */
	expect(ME "devices: [{name: a, driver: cuda, bytes: 900GiB}]\n", &m, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory),
		cmocka_unit_test(test_huge_pages),
		cmocka_unit_test(test_who_and_where),
		cmocka_unit_test(test_shares),
		cmocka_unit_test(test_devices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
