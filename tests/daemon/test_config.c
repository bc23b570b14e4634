/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"

/* What the machine leaves to a configuration that does not say. */
#define MEMORY (UINT64_C(6) << 30)

static struct kvpd_config *good(const char *text)
{
	struct kvpd_config *c = NULL;
	char error[512] = "";
	int r = kvpd_config_parse("t.yaml", text, strlen(text), MEMORY, error, sizeof(error), &c);

	if (r < 0)
		fail_msg("%s\n%s", error, text);
	return c;
}

static void test_defaults(void **state)
{
	struct kvpd_config *c = good(""), *d = NULL;
	char error[512];

	(void)state;
	assert_string_equal(c->runtime_dir, "/run/kvpool");
	assert_null(c->state_dir);
	assert_null(c->calibrations);
	assert_string_equal(c->socket, "kvpool.sock");
	assert_string_equal(c->user, "kvpool");
	assert_string_equal(c->admin_group, "");
	assert_string_equal(c->policy, "hazard");
	assert_true(c->memory == MEMORY);
	assert_true(c->defaults.share == c->memory / 4);
	assert_int_equal(c->numa_node, -1);
	assert_int_equal(c->realtime, KVPD_NEVER);
	assert_int_equal(c->realtime_percent, 66);
	assert_true(c->unlisted_uids);
	assert_false(c->trust_daemon_uid);
	assert_false(c->trust_overflow_uid);
	assert_int_equal(c->n_tenants, 0);
	assert_int_equal(c->defaults.quality_target, 90);
	assert_int_equal(c->defaults.min_materialized, 512);
	/* Without a file: the same. */
	assert_int_equal(kvpd_config_load(NULL, MEMORY, error, sizeof(error), &d), 0);
	assert_null(d->path);
	assert_true(d->defaults.share == c->defaults.share && d->memory == c->memory);
	kvpd_config_free(d);
	kvpd_config_free(c);
	c = good("# only a comment\n");
	kvpd_config_free(c);
	assert_null(kvpd_config_free(NULL));
}

static void test_everything(void **state)
{
	struct kvpd_config *c = good("runtime_dir: /var/tmp/x\n"
				     "state_dir: /var/tmp/y\n"
				     "socket: s.sock\n"
				     "user: \"\"\n"
				     "admin_group: wheel\n"
				     "memory: 3 GiB\n"
				     "extent: 1052672\n"
				     "populate_threads: 3\n"
				     "hugepages: require\n"
				     "mlock: never\n"
				     "numa_node: 1\n"
				     "policy: fifo\n"
				     "advisor: true\n"
				     "advisor_period_ms: 60000\n"
				     "advisor_batch: 1\n"
				     "advisor_prefetch: 64\n"
				     "realtime: true\n"
				     "realtime_percent: 20\n"
				     "claim_ttl_ms: 77\n"
				     "max_sessions: 12\n"
				     "handshake_ms: 900\n"
				     "peer_pidfd: never\n"
				     "log_level: debug\n"
				     "unlisted_uids: no\n"
				     "trust_daemon_uid: on\n"
				     "trust_overflow_uid: true\n"
				     "defaults:\n"
				     "  share: 16MiB\n"
				     "  max_blocks: 1000\n"
				     "  precision: zones\n"
				     "  stale_tokens: 256\n"
				     "tenants:\n"
				     "  - name: a\n"
				     "    uids: [root, 1001]\n"
				     "    share: 1GiB\n"
				     "    max_blocks: 2000\n"
				     "    recipe_blocks: 5\n"
				     "    recipe_tokens: 128000\n"
				     "    arena: 64MiB\n"
				     "    max_sessions: 3\n"
				     "    quality_target: 75\n"
				     "    min_materialized: 0\n"
				     "    tail_index: false\n"
				     "    precision: budget\n"
				     "    budget: 37.5%\n"
				     "    hot_tokens: 128\n"
				     "  - name: b\n"
				     "    budget: .45\n"
				     "    socket: b.sock\n");

	(void)state;
	assert_string_equal(c->state_dir, "/var/tmp/y");
	assert_string_equal(c->path, "t.yaml");
	assert_string_equal(c->user, "");
	assert_true(c->memory == UINT64_C(3) << 30);
	assert_int_equal(c->extent, 1052672);
	assert_int_equal(c->hugepages, KVPD_REQUIRE);
	assert_int_equal(c->mlock, KVPD_NEVER);
	assert_int_equal(c->numa_node, 1);
	assert_true(c->advisor.on);
	assert_int_equal(c->advisor.period_ms, 60000);
	assert_int_equal(c->advisor.batch, 1);
	assert_int_equal(c->advisor.prefetch, 64);
	assert_int_equal(c->realtime, KVPD_REQUIRE);
	assert_int_equal(c->realtime_percent, 20);
	assert_int_equal(c->claim_ttl_ms, 77);
	assert_int_equal(c->log_level, 7);
	assert_false(c->unlisted_uids);
	assert_true(c->trust_daemon_uid && c->trust_overflow_uid);
	assert_int_equal(c->n_tenants, 2);
	assert_int_equal(c->tenants[0].n_uids, 2);
	assert_int_equal(c->tenants[0].uids[0], 0);
	assert_int_equal(c->tenants[0].limits.max_blocks, 2000);
	assert_int_equal(c->tenants[0].limits.recipe_tokens, 128000);
	assert_false(c->tenants[0].limits.tail_index);
	assert_int_equal(c->tenants[0].limits.rule.policy, KVPD_RULE_BUDGET);
	assert_int_equal(c->tenants[0].limits.rule.budget, 375000);
	assert_int_equal(c->tenants[0].limits.rule.hot_tokens, 128);
	assert_int_equal(c->tenants[0].limits.rule.stale_tokens, 256);
	assert_int_equal(c->tenants[1].limits.rule.policy, KVPD_RULE_ZONES);
	assert_int_equal(c->tenants[1].limits.rule.budget, 450000);
	assert_int_equal(c->tenants[0].limits.quality_target, 75);
	assert_int_equal(c->tenants[1].limits.quality_target, 90);
	assert_int_equal(c->tenants[0].limits.min_materialized, 0);
	assert_int_equal(c->tenants[1].limits.min_materialized, 512);
	/* What a tenant does not say, the defaults do. */
	assert_int_equal(c->tenants[1].limits.max_blocks, 1000);
	assert_int_equal(c->tenants[1].limits.share, 16 << 20);
	assert_ptr_equal(kvpd_config_by_uid(c, 1001), &c->tenants[0]);
	assert_null(kvpd_config_by_uid(c, 1002));
	assert_ptr_equal(kvpd_config_by_name(c, "b"), &c->tenants[1]);
	assert_null(kvpd_config_by_name(c, "c"));
	kvpd_config_free(c);
}

static void test_devices(void **state)
{
	struct kvpd_config *c = good(
		"memory: 1GiB\n"
		"devices:\n"
		"  - name: one\n"
		"    driver: host\n"
		"    bytes: 1GiB\n"
		"  - {name: two, driver: fault, faults: copy=die, bytes: 64MiB,\n"
		"     segment: 1MiB, copy_rate: 2GiB, timeout_ms: 300, worker: /usr/libexec/w}\n"
		"tenants:\n"
		"  - {name: a, uids: [1]}\n"
		"  - {name: b, uids: [2], devices: [{name: two, share: 16MiB}]}\n");
	const struct kvpd_device_entry *d = c->devices;

	(void)state;
	assert_int_equal(c->n_devices, 2);
	assert_string_equal(d[0].name, "one");
	assert_string_equal(d[0].driver, "host");
	assert_null(d[0].faults);
	assert_null(d[0].worker);
	assert_int_equal(d[0].bytes, 1 << 30);
	assert_int_equal(d[0].segment, 256 << 20);
	assert_int_equal(d[0].copy_rate, 0);
	assert_int_equal(d[0].timeout_ms, 10000);
	assert_int_equal(d[1].timeout_ms, 300);
	assert_string_equal(d[1].driver, "fault");
	assert_string_equal(d[1].faults, "copy=die");
	assert_string_equal(d[1].worker, "/usr/libexec/w");
	assert_int_equal(d[1].segment, 1 << 20);
	assert_true(d[1].copy_rate == UINT64_C(2) << 30);
	/* Who is told nothing has an equal part. */
	assert_int_equal(kvpd_config_device_share(c, &c->tenants[0].limits, 0), 512 << 20);
	assert_int_equal(kvpd_config_device_share(c, &c->tenants[0].limits, 1), 32 << 20);
	assert_int_equal(kvpd_config_device_share(c, &c->tenants[1].limits, 1), 16 << 20);
	kvpd_config_free(c);
	c = good("devices:\n  - {name: a, driver: host, bytes: 64MiB}\n");
	assert_int_equal(c->devices[0].segment, 64 << 20);
	assert_int_equal(kvpd_config_device_share(c, &c->defaults, 0), 64 << 20);
	assert_int_equal(c->defaults.device_share[1], 0);
	kvpd_config_free(c);
}

static void test_gpus(void **state)
{
	struct kvpd_config *c = good(
		"devices:\n"
		"  - {name: a, driver: cuda, bytes: 1GiB}\n"
		"  - {name: b, driver: cuda, bytes: 511MiB, index: 3, transport: ipc, mps: join}\n"
		"  - {name: c, driver: cuda, bytes: 4GiB, copy: none, transport: vmm,\n"
		"     uuid: MIG-01234567-89ab-cdef-0123-456789ABCDEF}\n"
		"unlisted_uids: false\n"
		"tenants:\n"
		"  - {name: t, uids: [1]}\n"
		"  - {name: u, uids: [2], devices: [{name: c, share: 0}]}\n");
	const struct kvpd_device_entry *d = c->devices;

	(void)state;
	assert_string_equal(d[0].unit, "0");
	assert_int_equal(d[0].transport, KVPD_TRANSPORT_AUTO);
	assert_false(d[0].no_copies || d[0].mps);
	assert_int_equal(d[0].segment, 256 << 20);
	assert_string_equal(d[1].unit, "3");
	assert_int_equal(d[1].transport, KVPD_TRANSPORT_IPC);
	assert_true(d[1].mps);
	assert_string_equal(d[2].unit, "MIG-01234567-89ab-cdef-0123-456789ABCDEF");
	assert_int_equal(d[2].transport, KVPD_TRANSPORT_VMM);
	assert_true(d[2].no_copies);
	kvpd_config_free(c);
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} t[] = {
		{ "1.5GiB", UINT64_C(1536) << 20 },
		{ "1.5 GiB", UINT64_C(1536) << 20 },
		{ "0.0625GiB", UINT64_C(64) << 20 },
		{ "16777217", 16777217 },
		{ "16384.5KiB", 16777728 },
		/* Whole bytes, and what is less than that of a TiB does not count. */
		{ "20.0000001MiB", UINT64_C(20) << 20 },
		{ "2.000000999999TiB", UINT64_C(2) << 40 },
		{ "2.000001TiB", (UINT64_C(2) << 40) + 1099511 },
	};
	char text[64];

	(void)state;
	for (unsigned i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct kvpd_config *c;

		snprintf(text, sizeof(text), "memory: %s\n", t[i].text);
		c = good(text);
		if (c->memory != t[i].bytes)
			fail_msg("%s: %llu", t[i].text, (unsigned long long)c->memory);
		assert_true(c->memory_given);
		kvpd_config_free(c);
	}
}

static void test_json(void **state)
{
	struct kvpd_config *c = good("{\"memory\": \"64MiB\", \"unlisted_uids\": false,\n"
				     " \"tenants\": [{\"name\": \"x\", \"uids\": [1, 2]}]}\n");

	(void)state;
	assert_int_equal(c->memory, 64 << 20);
	assert_false(c->unlisted_uids);
	assert_int_equal(c->tenants[0].uids[1], 2);
	kvpd_config_free(c);
}

/* Each is refused, with this beginning and with a word of what would be right. */
static const struct {
	const char *text, *begins, *has;
} bad[] = {
	{ "memory: 12QB\n", "t.yaml:1: memory: ", "KiB, MiB, GiB or TiB" },
	{ "\nmemory: lots\n", "t.yaml:2: memory: ", "512MiB" },
	{ "memory: -1\n", "t.yaml:1: memory: ", "not a size" },
	{ "memory: 1KiB\n", "t.yaml:1: memory: ", "16MiB to 64TiB" },
	{ "memory: 65TiB\n", "t.yaml:1: memory: ", "16MiB to 64TiB" },
	{ "memory: 18446744073709551616\n", "t.yaml:1: memory: ", "not a size" },
	{ "memory: 18014398509481985KiB\n", "t.yaml:1: memory: ", "out of range" },
	{ "memory: 50%\n", "t.yaml:1: memory: ", "no unit" },
	{ "memory: 1.5\n", "t.yaml:1: memory: ", "whole number of bytes" },
	{ "memory: 1.5.5GiB\n", "t.yaml:1: memory: ", "no unit" },
	{ "memory: 1.GiB\n", "t.yaml:1: memory: ", "no unit" },
	{ "memory: .5GiB\n", "t.yaml:1: memory: ", "a size, e.g. 512MiB" },
	{ "memory: 16777215.9999999TiB\n", "t.yaml:1: memory: ", "out of range" },
	{ "memory:\n", "t.yaml:1: memory: ", "has no value; a size, e.g. 512MiB is wanted" },
	{ "memory: [1, 2]\n", "t.yaml:1: memory: ", "is a list; a size, e.g. 512MiB is wanted" },
	{ "\nmemory: {a: b}\n", "t.yaml:2: memory: ", "is a mapping; a size" },
	{ "unlisted_uids: {}\n", "t.yaml:1: unlisted_uids: ", "a mapping; true or false" },
	{ "unlisted_uids:\n", "t.yaml:1: unlisted_uids: ", "has no value; one of these" },
	{ "max_sessions: []\n", "t.yaml:1: max_sessions: ", "is a list; a whole number" },
	{ "max_sessions: many\n", "t.yaml:1: max_sessions: ", "'many' is not a whole number" },
	{ "numa_node: [0]\n", "t.yaml:1: numa_node: ", "the number of a node, auto or any" },
	{ "defaults: 3\n", "t.yaml:1: defaults: ", "is a single value; a mapping of limits" },
	{ "defaults:\n", "t.yaml:1: defaults: ", "is empty; a mapping of limits" },
	{ "defaults:\n  share: [4MiB]\n", "t.yaml:2: defaults.share: ", "a list; a size" },
	{ "tenants: 5\n", "t.yaml:1: tenants: ", "a single value; a list of tenants" },
	{ "tenants:\n", "t.yaml:1: tenants: ", "is empty; a list of tenants" },
	{ "tenants:\n  - 5\n", "t.yaml:2: tenants.0: ", "a single value; a mapping with name" },
	{ "tenants:\n  - name: a\n    uids: 5\n",
		"t.yaml:3: tenants.0.uids: ", "a single value; a list of users" },
	{ "tenants:\n  - name: a\n    uids: [1]\n  - name: b\n    uids:\n      - 1\n      - [5]\n",
		"t.yaml:7: tenants.1.uids.1: ", "is a list; a user's name or number" },
	{ "- memory\n", "t.yaml:1: ", "is a list; a mapping of keys to values" },
	{ "hello\n", "t.yaml:1: ", "is a single value; a mapping of keys to values" },
	{ "extent: 1048577\n", "t.yaml:1: extent: ", "multiple of 4096" },
	{ "populate_threads: 257\n", "t.yaml:1: populate_threads: ", "0 to 256" },
	{ "populate_threads: 0x1\n", "t.yaml:1: populate_threads: ", "whole number" },
	{ "hugepages: maybe\n", "t.yaml:1: hugepages: ", "auto, never, require" },
	{ "unlisted_uids: 2\n", "t.yaml:1: unlisted_uids: ", "true" },
	{ "numa_node: 1024\n", "t.yaml:1: numa_node: ", "0 to 1023" },
	{ "defaults:\n  quality_target: 91\n", "t.yaml:2: defaults.quality_target: ", "0 to 90" },
	{ "defaults:\n  min_materialized: 2000000\n",
		"t.yaml:2: defaults.min_materialized: ", "0 to 1048576" },
	{ "numa_node: automatic\n", "t.yaml:1: numa_node: ", "the number of a node, auto or any" },
	{ "policy: magic\n", "t.yaml:1: policy: ", "lru" },
	{ "advisor: perhaps\n", "t.yaml:1: advisor: ", "true" },
	{ "advisor_period_ms: 49\n", "t.yaml:1: advisor_period_ms: ", "50 to" },
	{ "advisor_batch: 0\n", "t.yaml:1: advisor_batch: ", "1 to" },
	{ "advisor: true\nadvisor_prefetch: 65\n", "t.yaml:2: advisor_prefetch: ", "0 to 64" },
	{ "advisor_prefetch: 8\n", "t.yaml:1: advisor_prefetch: ", "needs advisor: true" },
	{ "realtime: require\n", "t.yaml:1: realtime: ", "auto, false, true" },
	{ "realtime:\n", "t.yaml:1: realtime: ", "auto, false, true" },
	{ "realtime_percent: 0\n", "t.yaml:1: realtime_percent: ", "1 to 75" },
	{ "realtime_percent: 76\n", "t.yaml:1: realtime_percent: ", "1 to 75" },
	{ "claim_ttl_ms: 9\n", "t.yaml:1: claim_ttl_ms: ", "10 to" },
	{ "defaults: {budget: 0.005}\n", "t.yaml:1: defaults.budget: ", "0.01 to 1" },
	{ "defaults: {budget: 101%}\n", "t.yaml:1: defaults.budget: ", "0.01 to 1" },
	{ "defaults: {budget: .}\n", "t.yaml:1: defaults.budget: ", "0.4 or 40%" },
	{ "defaults: {budget: half}\n", "t.yaml:1: defaults.budget: ", "0.4 or 40%" },
	{ "defaults: {budget: 0.4%%}\n", "t.yaml:1: defaults.budget: ", "0.4 or 40%" },
	{ "defaults: {precision: high}\n",
		"t.yaml:1: defaults.precision: ", "pressure, budget, zones" },
	{ "defaults: {hot_tokens: 513}\n",
		"t.yaml:1: defaults.hot_tokens: ", "stale_tokens (512)" },
	{ "max_sessions: 4097\n", "t.yaml:1: max_sessions: ", "1 to 4096" },
	{ "max_sessions: 0\n", "t.yaml:1: max_sessions: ", "1 to 4096" },
	{ "socket: ../x\n", "t.yaml:1: socket: ", "letters, digits" },
	{ "socket: kvpoold.lock\n", "t.yaml:1: socket: ", "lock file" },
	{ "socket: \"\"\n", "t.yaml:1: socket: ", "letters, digits" },
	{ "runtime_dir: run\n", "t.yaml:1: runtime_dir: ", "absolute path" },
	{ "state_dir: state\n", "t.yaml:1: state_dir: ", "absolute path" },
	{ "calibrations: here\n", "t.yaml:1: calibrations: ", "absolute path" },
	{ "state_dir: \"\"\n", "t.yaml:1: state_dir: ", "absolute path" },
	{ "user: \"a\\nb\"\n", "t.yaml:1: user: ", "control characters" },
	{ "# a\nmemery: 1\n", "t.yaml:2: ", "unknown key 'memery'" },
	{ "memory: 1GiB\ndefaults:\n  share: 32MiB\n  shore: 1\n", "t.yaml:4: ", "'shore'" },
	{ "memory: 1GiB\nmemory: 2GiB\n", "t.yaml:", "already seen" },
	{ "memory: {\n", "t.yaml:", "" },
	{ "\n\n\tmemory: 1\n", "t.yaml:3: ", "" },
	{ "memory: \xff\xfe\n", "t.yaml:1: ", "UTF-8" },
	{ "---\nmemory: 1GiB\n---\nmemory: 2GiB\n", "t.yaml:4: ", "second document" },
	{ "socket: &x a\nadmin_group: *x\n", "t.yaml:", "" },
	{ "memory: 1GiB\ndefaults:\n  share: 2GiB\n",
		"t.yaml:3: defaults.share: ", "1MiB to 1GiB" },
	{ "defaults:\n  arena: 2GiB\n", "t.yaml:", "more than share" },
	{ "defaults:\n  max_blocks: 268435456\n  recipe_blocks: 1\n", "t.yaml:", "exceed" },
	{ "tenants:\n  - uids: [1]\n", "t.yaml:2: tenants.0: ", "`name`" },
	{ "tenants:\n  - name: a\n", "t.yaml:2: tenants.0: ", "`uids`, a `socket`" },
	{ "tenants:\n  - name: uid-7\n    uids: [1]\n", "t.yaml:2: tenants.0.name: ", "uid-" },
	{ "tenants:\n  - name: a b\n    uids: [1]\n", "t.yaml:2: tenants.0.name: ", "letters" },
	{ "tenants:\n  - name: a\n    uids:\n      - 1\n      - nobody-here\n",
		"t.yaml:5: tenants.0.uids.1: ", "numeric uid" },
	{ "tenants:\n  - name: a\n    uids: [4294967295]\n",
		"t.yaml:3: tenants.0.uids.0: ", "no uid" },
	{ "tenants:\n  - name: a\n    uids: [1]\n  - name: a\n    uids: [2]\n",
		"t.yaml:4: tenants.1: ", "two tenants" },
	{ "tenants:\n  - name: a\n    uids: [1]\n  - name: b\n    uids: [2, 1]\n",
		"t.yaml:4: tenants.1: ", "uid 1 is in tenant 'a' already" },
	{ "tenants:\n  - name: a\n    socket: s\n  - name: b\n    socket: s\n",
		"t.yaml:4: tenants.1: ", "has the socket" },
	{ "tenants:\n  - name: a\n    socket: kvpool.sock\n", "t.yaml:2: tenants.0: ", "main" },
	{ "memory: 64MiB\ntenants:\n  - name: a\n    uids: [1]\n    share: 40MiB\n"
	  "  - name: b\n    uids: [2]\n    share: 30MiB\n",
		"t.yaml:6: tenants.1: ", "more than memory" },
	{ "devices: 1\n", "t.yaml:1: devices: ", "a single value; a list of mappings" },
	{ "devices:\n  - name: a\n    driver: host\n", "t.yaml:2: devices.0: ", "`bytes`" },
	{ "devices:\n  - {name: a, driver: rocm, bytes: 1GiB}\n",
		"t.yaml:2: devices.0.driver: ", "cuda, host, fault" },
	{ "devices:\n  - {name: a, driver: host, bytes: 1GiB, copy: engine}\n",
		"t.yaml:2: devices.0: ", "`copy` is for the driver cuda" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB, uuid: GPU-12}\n",
		"t.yaml:2: devices.0.uuid: ", "nvidia-smi -L" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB, index: 0,\n"
	  "     uuid: GPU-01234567-89ab-cdef-0123-456789abcdef}\n",
		"t.yaml:2: devices.0.index: ", "`uuid` names the device already" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB, index: 256}\n",
		"t.yaml:2: devices.0.index: ", "0 to 255" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB}\n"
	  "  - {name: b, driver: cuda, bytes: 1GiB, index: 0}\n",
		"t.yaml:3: devices.1: ", "device 'a' is 0 already" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB, transport: fabric}\n",
		"t.yaml:2: devices.0.transport: ", "auto, vmm, ipc" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB, copy: none, transport: ipc}\n",
		"t.yaml:2: devices.0.copy: ", "take one of them out" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1MiB}\n",
		"t.yaml:2: devices.0.bytes: ", "pieces of 2MiB" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB, segment: 1MiB}\n",
		"t.yaml:2: devices.0.segment: ", "multiple of 2097152" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB, copy: none}\n",
		"t.yaml:2: devices.0: ", "say `copy: engine`" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 1GiB, copy: none}\n"
	  "unlisted_uids: false\n"
	  "tenants:\n  - {name: t, uids: [1]}\n  - {name: u, uids: [2]}\n",
		"t.yaml:2: devices.0: ", "one tenant alone" },
	{ "devices:\n  - {name: twelveletters, driver: host, bytes: 1GiB}\n",
		"t.yaml:2: devices.0.name: ", "11 letters" },
	{ "devices:\n  - {name: a, driver: host, bytes: 1GiB}\n"
	  "  - {name: a, driver: host, bytes: 1GiB}\n",
		"t.yaml:3: devices.1.name: ", "two devices" },
	{ "devices:\n  - {name: a, driver: host, bytes: 1KiB}\n",
		"t.yaml:2: devices.0.bytes: ", "1MiB to" },
	{ "devices:\n  - {name: a, driver: host, bytes: 4MiB, segment: 5MiB}\n",
		"t.yaml:2: devices.0.segment: ", "more than the device's bytes" },
	{ "devices:\n  - {name: a, driver: host, bytes: 4MiB, segment: 65537}\n",
		"t.yaml:2: devices.0.segment: ", "multiple of 4096" },
	{ "devices:\n  - {name: a, driver: host, bytes: 4MiB, worker: w}\n",
		"t.yaml:2: devices.0.worker: ", "absolute path" },
	{ "devices:\n  - {name: a, driver: host, bytes: 4MiB, copy_rate: 2TiB}\n",
		"t.yaml:2: devices.0.copy_rate: ", "0 to 1TiB" },
	{ "devices:\n  - {name: a, driver: host, bytes: 4MiB, timeout_ms: 49}\n",
		"t.yaml:2: devices.0.timeout_ms: ", "50 to 600000" },
	{ "devices:\n  - {name: a, driver: cuda, bytes: 4MiB, mps: maybe}\n",
		"t.yaml:2: devices.0.mps: ", "avoid, join" },
	{ "devices:\n  - {name: a, driver: host, bytes: 4MiB}\ndefaults:\n  devices:\n"
	  "    - {name: a, share: 1MiB}\n    - {name: a, share: 2MiB}\n",
		"t.yaml:6: defaults.devices.1: ", "two parts of device 'a'" },
	{ "defaults:\n  devices:\n    - {name: a, share: 1MiB}\n",
		"t.yaml:3: defaults.devices.0: ", "no device 'a'" },
	{ "devices:\n  - {name: a, driver: host, bytes: 4MiB}\n"
	  "tenants:\n  - name: t\n    uids: [1]\n    devices: [{name: a, share: 5MiB}]\n",
		"t.yaml:6: tenants.0.devices.0.share: ", "to 4MiB" },
	{ "devices:\n  - {name: a, driver: host, bytes: 4MiB}\n"
	  "defaults:\n  share: 16MiB\n  devices: [{name: a, share: 3MiB}]\n"
	  "tenants:\n  - name: t\n    uids: [1]\n  - name: u\n    uids: [2]\n",
		"t.yaml:2: devices.0: ", "the shares of the tenants (6MiB) are more" },
	{ "tenants:\n  - name: a\n    uids: [1]\n    max_sessions: 5000\n",
		"t.yaml:4: tenants.0.max_sessions: ", "1 to 4096" },
};

static void test_refused(void **state)
{
	(void)state;
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct kvpd_config *c = NULL;
		char error[512] = "";
		int r = kvpd_config_parse("t.yaml", bad[i].text, strlen(bad[i].text), MEMORY, error,
			sizeof(error), &c);

		if (r != -EINVAL || c || strncmp(error, bad[i].begins, strlen(bad[i].begins)) ||
			!strstr(error, bad[i].has))
			fail_msg("%d '%s' for:\n%s", r, error, bad[i].text);
	}
}

static void test_long_runtime_dir(void **state)
{
	struct kvpd_config *c = NULL;
	char error[512], text[256];

	(void)state;
	snprintf(text, sizeof(text), "runtime_dir: /%0100d\n", 0);
	assert_int_equal(
		kvpd_config_parse("t.yaml", text, strlen(text), MEMORY, error, sizeof(error), &c),
		-EINVAL);
	assert_non_null(strstr(error, "t.yaml:1: runtime_dir: "));
	assert_non_null(strstr(error, "107 bytes"));
}

static void test_given_runtime_dir(void **state)
{
	struct kvpd_config *c = good("socket: a.sock\n");
	char error[512], dir[128];

	(void)state;
	assert_int_equal(kvpd_config_set_runtime_dir(c, "/var/tmp/r", error, sizeof(error)), 0);
	assert_string_equal(c->runtime_dir, "/var/tmp/r");
	assert_true(c->runtime_dir_given);
	assert_int_equal(kvpd_config_set_runtime_dir(c, "r", error, sizeof(error)), -EINVAL);
	assert_string_equal(error, "--runtime-dir: 'r' is not an absolute path");
	snprintf(dir, sizeof(dir), "/%0105d", 0);
	assert_int_equal(kvpd_config_set_runtime_dir(c, dir, error, sizeof(error)), -EINVAL);
	assert_non_null(strstr(error, "107 bytes"));
	kvpd_config_free(c);
}

static void test_many_tenants(void **state)
{
	char *text = malloc(1 << 16), error[512];
	struct kvpd_config *c = NULL;
	size_t n = 0;

	(void)state;
	n += (size_t)sprintf(text, "memory: 64GiB\ndefaults:\n  share: 4MiB\ntenants:\n");
	for (unsigned i = 0; i < KVPD_MAX_TENANTS; i++)
		n += (size_t)sprintf(text + n, "  - name: t%u\n    uids: [%u]\n", i, i + 1000);
	assert_int_equal(kvpd_config_parse("t.yaml", text, n, MEMORY, error, sizeof(error), &c), 0);
	assert_int_equal(c->n_tenants, KVPD_MAX_TENANTS);
	c = kvpd_config_free(c);
	n += (size_t)sprintf(text + n, "  - name: more\n    uids: [9]\n");
	assert_int_equal(
		kvpd_config_parse("t.yaml", text, n, MEMORY, error, sizeof(error), &c), -EINVAL);
	assert_non_null(strstr(error, "256"));
	free(text);
}

static void test_files(void **state)
{
	char name[] = "/tmp/kvpool-config-XXXXXX", error[512];
	struct kvpd_config *c = NULL;
	int fd = mkstemp(name);
	FILE *f = fdopen(fd, "w");

	(void)state;
	assert_non_null(f);
	fputs("memory: 32MiB\n", f);
	fflush(f);
	assert_int_equal(kvpd_config_load(name, MEMORY, error, sizeof(error), &c), 0);
	assert_string_equal(c->path, name);
	c = kvpd_config_free(c);
	for (int i = 0; i < 70000; i++)
		fputs("# a long comment\n", f);
	fclose(f);
	assert_int_equal(kvpd_config_load(name, MEMORY, error, sizeof(error), &c), -EFBIG);
	assert_non_null(strstr(error, "1 MiB"));
	remove(name);
	assert_int_equal(kvpd_config_load(name, MEMORY, error, sizeof(error), &c), -ENOENT);
	assert_non_null(strstr(error, name));
	assert_int_equal(kvpd_config_load("/tmp", MEMORY, error, sizeof(error), &c), -EISDIR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_everything),
		cmocka_unit_test(test_devices),
		cmocka_unit_test(test_gpus),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_long_runtime_dir),
		cmocka_unit_test(test_given_runtime_dir),
		cmocka_unit_test(test_many_tenants),
		cmocka_unit_test(test_files),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
