/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory there is, read from a made-up /proc and made-up control groups, and what follows
 * from given figures. Row E-049.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

/* ---- parsers ------------------------------------------------------------------------------- */

static void test_numbers(void **state)
{
	static const struct {
		const char *text;
		bool good;
		uint64_t value;
	} t[] = {
		{ "0\n", true, 0 },
		{ "314572800\n", true, 300 * MIB },
		{ "314572800", true, 300 * MIB },
		{ "max\n", true, KVPD_NO_LIMIT },
		{ "18446744073709551615\n", true, UINT64_MAX },
		/* More than 64 bits are as many as there are. */
		{ "99999999999999999999999999\n", true, UINT64_MAX },
		{ "", false, 0 },
		{ "\n", false, 0 },
		{ "maximum\n", false, 0 },
		{ "-1\n", false, 0 },
		{ "12 MiB\n", false, 0 },
		{ "0x10\n", false, 0 },
	};
	(void)state;

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		uint64_t v = 7;

		assert_int_equal(kvpd_memory_number(t[i].text, &v), t[i].good);
		assert_true(v == (t[i].good ? t[i].value : 7));
	}
}

static void test_fields(void **state)
{
	static const char meminfo[] = "MemTotal:       24684096 kB\n"
				      "MemFree:        23615672 kB\n"
				      "MemAvailable:   23546172 kB\n"
				      "HugePages_Total:      12\n"
				      "Huge: 99999999999999999999 kB\n"
				      "Broken: kB\n"
				      "inactive_file 4096";
	uint64_t v = 7;
	(void)state;

	assert_true(kvpd_memory_field(meminfo, "MemTotal", &v));
	assert_true(v == UINT64_C(24684096) * 1024);
	assert_true(kvpd_memory_field(meminfo, "MemAvailable", &v));
	assert_true(v == UINT64_C(23546172) * 1024);
	assert_true(kvpd_memory_field(meminfo, "HugePages_Total", &v));
	assert_true(v == 12);
	assert_true(kvpd_memory_field(meminfo, "inactive_file", &v));
	assert_true(v == 4096);
	assert_true(kvpd_memory_field(meminfo, "Huge", &v));
	assert_true(v == UINT64_MAX);
	v = 7;
	assert_false(kvpd_memory_field(meminfo, "Mem", &v));
	assert_false(kvpd_memory_field(meminfo, "Broken", &v));
	assert_false(kvpd_memory_field("", "MemTotal", &v));
	assert_false(kvpd_memory_field("\n\n\n", "MemTotal", &v));
	assert_true(v == 7);
}

#define V1_MOUNT "35 31 0:32 %s %s rw,relatime shared:9 - cgroup cgroup rw,memory\n"
#define V2_MOUNT "41 31 0:38 %s %s rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

#define OTHER_MOUNT "40 31 0:38 /../.. /host rw - cgroup2 cgroup2 rw\n"

static void test_places(void **state)
{
	static const struct {
		const char *cgroup, *mount, *part, *at, *folder; /* folder NULL: none */
		bool v1;
	} t[] = {
		{ "0::/system.slice/kvpoold.service\n", V2_MOUNT, "/", "/sys/fs/cgroup",
			"/sys/fs/cgroup/system.slice/kvpoold.service", false },
		{ "0::/\n", V2_MOUNT, "/", "/sys/fs/cgroup", "/sys/fs/cgroup", false },
		{ "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/x\n", V1_MOUNT, "/",
			"/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/a/b", true },
		/* A container without a name space of its own sees its part of the tree. */
		{ "4:memory:/docker/1f\n", V1_MOUNT, "/docker/1f", "/sys/fs/cgroup/memory",
			"/sys/fs/cgroup/memory", true },
		{ "4:memory:/docker/1f/sub\n", V1_MOUNT, "/docker/1f", "/sys/fs/cgroup/memory",
			"/sys/fs/cgroup/memory/sub", true },
		/* A process that was moved out of what it sees, or never was in it. */
		{ "0::/../../other\n", V2_MOUNT, "/", "/sys/fs/cgroup", "/sys/fs/cgroup", false },
		{ "4:memory:/docker/1fab\n", V1_MOUNT, "/docker/1f", "/cg", "/cg", true },
		{ "4:memory:/a b\n", V1_MOUNT, "/", "/mnt/c\\040g", "/mnt/c g/a b", true },
		/* Another part of the tree is mounted too, and comes first. */
		{ "0::/a/b\n", OTHER_MOUNT V2_MOUNT, "/", "/cg", "/cg/a/b", false },
		{ "0::/\n", OTHER_MOUNT V2_MOUNT, "/", "/cg", "/cg", false },
		{ "0::/a/b\n", OTHER_MOUNT V2_MOUNT, "/c", "/cg", "/host", false },
		/* Nothing to be found. */
		{ "", V2_MOUNT, "/", "/sys/fs/cgroup", NULL, false },
		{ "4:cpu:/a\n", V1_MOUNT, "/", "/sys/fs/cgroup/memory", NULL, false },
		{ "4:memory:relative\n", V1_MOUNT, "/", "/cg", NULL, false },
		{ "4:memory:/a\n", "35 31 0:32 %s %s rw - tmpfs memory rw,memory\n", "/", "/cg",
			NULL, false },
		{ "4:memory:/a\n", "no dash %s %s cgroup cgroup rw,memory\n", "/", "/cg", NULL,
			false },
		{ "4:memory:/a\n", V1_MOUNT, "/", "/c\\999", NULL, false },
	};
	(void)state;

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct kvpd_group_place place;
		char mounts[1024], line[512];
		bool found;

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		snprintf(line, sizeof(line), t[i].mount, t[i].part, t[i].at);
#pragma GCC diagnostic pop
		snprintf(mounts, sizeof(mounts),
			"23 1 8:1 / / rw - ext4 /dev/root rw\n%s"
			"36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n",
			line);
		found = kvpd_memory_place(t[i].cgroup, mounts, &place);
		assert_int_equal(found, t[i].folder != NULL);
		if (!found)
			continue;
		assert_string_equal(place.folder, t[i].folder);
		assert_int_equal(place.v1, t[i].v1);
	}
}

/* A path that does not fit is none, and no text makes the parser leave its buffers. */
static void test_long_paths(void **state)
{
	struct kvpd_group_place place;
	char path[4400], cgroup[4500], mounts[9000];
	(void)state;

	for (size_t n = 1; n < sizeof(path); n += 7) {
		memset(path, '/', n);
		path[n] = 0;
		snprintf(cgroup, sizeof(cgroup), "4:memory:%s", path);
		snprintf(mounts, sizeof(mounts), V1_MOUNT, "/", "/m");
		if (kvpd_memory_place(cgroup, mounts, &place))
			assert_true(strlen(place.folder) < sizeof(place.folder));
		snprintf(mounts, sizeof(mounts), V1_MOUNT, path, path);
		(void)kvpd_memory_place("4:memory:/x", mounts, &place);
		/* Cut off anywhere. */
		mounts[n < strlen(mounts) ? n : 0] = 0;
		(void)kvpd_memory_place("4:memory:/x", mounts, &place);
	}
}

/* ---- a machine made of files ---------------------------------------------------------------- */

static char root[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static int make_root(void **state)
{
	(void)state;
	snprintf(root, sizeof(root), "/tmp/kvpool-test-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state)
{
	(void)state;
	return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void file(const char *path, const char *text)
{
	char whole[KVPD_GROUP_PATH];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s%s", root, path);
	for (char *slash = whole + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		if (mkdir(whole, 0755) < 0)
			assert_int_equal(errno, EEXIST);
		*slash = '/';
	}
	f = fopen(whole, "w");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void machine(const char *cgroup, const char *mounts)
{
	file("/proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n");
	file("/proc/self/cgroup", cgroup);
	file("/proc/self/mountinfo", mounts);
}

static void test_version_2(void **state)
{
	struct kvpd_memory m;
	(void)state;

	machine("0::/a/b\n", "41 31 0:38 / /cg rw - cgroup2 cgroup2 rw\n");
	file("/cg/a/memory.max", "2147483648\n");
	file("/cg/a/memory.high", "1073741824\n");
	file("/cg/a/memory.current", "1072693248\n"); /* 1 GiB - 1 MiB */
	file("/cg/a/memory.stat", "anon 5\ninactive_file 104857600\nactive_file 20971520\n");
	file("/cg/a/b/memory.max", "max\n");
	file("/cg/a/b/memory.high", "314572800\n");
	file("/cg/a/b/memory.current", "104857600\n");
	kvpd_memory_read(root, &m);
	assert_true(m.total == 16 * GIB && m.available == 8 * GIB);
	assert_int_equal(m.n_groups, 2);
	assert_string_equal(m.own, "/cg/a/b");
	assert_string_equal(kvpd_memory_lowest(&m)->path, "/cg/a/b");
	assert_true(m.group[0].limit == 300 * MIB && m.group[0].left == 200 * MIB);
	/* Of the page cache all that is cold and half of the warm. */
	assert_true(m.group[1].limit == GIB && m.group[1].left == 111 * MIB);
	assert_true(kvpd_memory_most(&m) == 252 * MIB);
	assert_true(kvpd_memory_default(&m) == 75 * MIB);
	/* The one above is the tighter one: 111 MiB less two times 16. */
	assert_true(kvpd_memory_spare(&m) == 79 * MIB);
	assert_true(kvpd_memory_missing(&m, true) == 0);
	file("/cg/a/memory.stat", "");
	kvpd_memory_read(root, &m);
	assert_true(kvpd_memory_spare(&m) == 0);
	assert_true(kvpd_memory_missing(&m, false) == 31 * MIB);
}

/* A group as deep as a path may be has its limit: one that was not seen let pools outgrow it. */
static void test_a_long_path(void **state)
{
	char path[KVPD_GROUP_PATH - 200] = "", line[KVPD_GROUP_PATH], limit[KVPD_GROUP_PATH];
	struct kvpd_memory m;
	(void)state;

	while (strlen(path) < 3000)
		strcat(path, "/a-name-of-a-group-as-long-as-systemd-makes-them-for-some.slice");
	snprintf(line, sizeof(line), "0::%s\n", path);
	snprintf(limit, sizeof(limit), "/cg%s/memory.max", path);
	machine(line, "41 31 0:38 / /cg rw - cgroup2 cgroup2 rw\n");
	file(limit, "314572800\n");
	kvpd_memory_read(root, &m);
	assert_int_equal(m.n_groups, 1);
	assert_true(m.group[0].limit == 300 * MIB);
	assert_int_equal(strlen(m.own), strlen("/cg") + strlen(path));
}

static void test_version_1(void **state)
{
	struct kvpd_memory m;
	(void)state;

	machine("4:memory:/x\n0::/\n", "35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory\n");
	file("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
	file("/cg/memory/memory.usage_in_bytes", "4294967296\n");
	file("/cg/memory/x/memory.limit_in_bytes", "9223372036854771712\n");
	file("/cg/memory/x/memory.usage_in_bytes", "104857600\n");
	file("/cg/memory/x/memory.stat", "total_inactive_file 0\n");
	kvpd_memory_read(root, &m);
	assert_int_equal(m.n_groups, 0);
	assert_null(kvpd_memory_lowest(&m));
	assert_true(kvpd_memory_most(&m) == 15 * GIB);
	assert_true(kvpd_memory_default(&m) == 4 * GIB);
	/* What no mount shows, a container's group says all the same. */
	file("/cg/memory/x/memory.stat", "hierarchical_memory_limit 314572800\n");
	kvpd_memory_read(root, &m);
	assert_int_equal(m.n_groups, 1);
	assert_true(m.group[0].limit == 300 * MIB && m.group[0].left == 200 * MIB);
	file("/cg/memory/x/memory.limit_in_bytes", "209715200\n");
	kvpd_memory_read(root, &m);
	assert_true(m.group[0].limit == 200 * MIB && m.group[0].left == 100 * MIB);
	/* Used beyond what it may: nothing is left. */
	file("/cg/memory/x/memory.usage_in_bytes", "419430400\n");
	kvpd_memory_read(root, &m);
	assert_true(m.group[0].left == 0);
	assert_true(kvpd_memory_missing(&m, false) == 32 * MIB);
}

static void test_nothing_known(void **state)
{
	struct kvpd_memory m;
	(void)state;

	kvpd_memory_read("/nowhere", &m);
	assert_true(m.total == 0 && m.n_groups == 0);
	assert_true(kvpd_memory_default(&m) == GIB);
	assert_true(kvpd_memory_most(&m) == UINT64_MAX);
	assert_true(kvpd_memory_spare(&m) == UINT64_MAX);
	assert_true(kvpd_memory_missing(&m, true) == 0);
	assert_false(kvpd_memory_near(&m));
}

/* ---- the decision --------------------------------------------------------------------------- */

static struct kvpd_memory figures(uint64_t total, uint64_t available, uint64_t limit, uint64_t left)
{
	struct kvpd_memory m = { .total = total, .available = available };

	if (limit) {
		m.n_groups = 1;
		m.group[0] = (struct kvpd_group){ .limit = limit, .left = left };
	}
	return m;
}

static void test_decision(void **state)
{
	static const struct {
		uint64_t total, available, limit, left;
		bool stalled;
		uint64_t missing;
	} t[] = {
		/* Defect 8: tasks wait somewhere, 20 GB are available. */
		{ 24 * GIB, 20 * GIB, 0, 0, true, 0 },
		{ 24 * GIB, 20 * GIB, 8 * GIB, 4 * GIB, true, 0 },
		/* A 64th of 16 GiB is 256 MiB; what comes back fills it up to twice that. */
		{ 16 * GIB, 256 * MIB, 0, 0, false, 0 },
		{ 16 * GIB, 255 * MIB, 0, 0, false, 257 * MIB },
		{ 16 * GIB, 0, 0, 0, false, 512 * MIB },
		/* When tasks wait, twice that counts as short already. */
		{ 16 * GIB, 511 * MIB, 0, 0, false, 0 },
		{ 16 * GIB, 511 * MIB, 0, 0, true, 1 * MIB },
		{ 16 * GIB, 512 * MIB, 0, 0, true, 0 },
		/* Never less than 16 MiB, nor more than 1 GiB. */
		{ 512 * MIB, 15 * MIB, 0, 0, false, 17 * MIB },
		{ 1024 * GIB, 1000 * MIB, 0, 0, false, 1048 * MIB },
		{ 1024 * GIB, 1024 * MIB, 0, 0, false, 0 },
		/* The group is short and the machine is not, and the other way round. */
		{ 24 * GIB, 20 * GIB, 300 * MIB, 10 * MIB, false, 22 * MIB },
		{ 16 * GIB, 100 * MIB, 8 * GIB, 8 * GIB, false, 412 * MIB },
		{ 16 * GIB, 100 * MIB, 300 * MIB, 10 * MIB, false, 412 * MIB },
	};
	(void)state;

	for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
		struct kvpd_memory m = figures(t[i].total, t[i].available, t[i].limit, t[i].left);

		if (kvpd_memory_missing(&m, t[i].stalled) != t[i].missing)
			fail_msg("case %zu: %llu are missing", i,
				(unsigned long long)kvpd_memory_missing(&m, t[i].stalled));
	}
}

/* Whatever the figures: what may grow never makes a shortage, and what comes back ends it. */
static void test_properties(void **state)
{
	const char *given = getenv("KVP_TEST_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)getpid();
	unsigned short x[3] = { (unsigned short)seed, (unsigned short)(seed >> 16), 9 };
	(void)state;

	printf("KVP_TEST_SEED=%llu\n", (unsigned long long)seed);
	for (int i = 0; i < 100000; i++) {
		uint64_t total = (uint64_t)(erand48(x) * (double)(64 * GIB)) + MIB;
		uint64_t available = (uint64_t)(erand48(x) * erand48(x) * (double)total);
		uint64_t limit = i & 1 ? (uint64_t)(erand48(x) * (double)total) + 1 : 0;
		uint64_t left = (uint64_t)(erand48(x) * erand48(x) * (double)limit);
		struct kvpd_memory m = figures(total, available, limit, left);
		uint64_t grow = kvpd_memory_spare(&m), missing = kvpd_memory_missing(&m, true);

		/* Both at once there never are. */
		assert_true(!grow || !missing);
		assert_true(kvpd_memory_missing(&m, false) <= missing);
		/* What may have to be given back is looked at often. */
		assert_true(!missing || kvpd_memory_near(&m));
		assert_true(grow <= available && (!limit || grow <= left));
		m = figures(total, available - grow, limit, left - (limit ? grow : 0));
		assert_true(kvpd_memory_missing(&m, true) == missing);
		m = figures(total, available + missing, limit, left + missing);
		assert_true(kvpd_memory_missing(&m, true) == 0);
		assert_true(kvpd_memory_most(&m) < total);
		assert_true(!limit || kvpd_memory_most(&m) < limit);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_fields),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_long_paths),
		cmocka_unit_test_setup_teardown(test_version_2, make_root, drop_root),
		cmocka_unit_test_setup_teardown(test_a_long_path, make_root, drop_root),
		cmocka_unit_test_setup_teardown(test_version_1, make_root, drop_root),
		cmocka_unit_test(test_nothing_known),
		cmocka_unit_test(test_decision),
		cmocka_unit_test(test_properties),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
