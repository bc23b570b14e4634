/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of extents, as the pool threads make it. */
#include <errno.h>
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/ledger/ledger.h"
#include "daemon/ledger/pool.h"
#include "shm/kvp_seg.h"

#define MIB   (UINT64_C(1) << 20)
#define BYTES (5 * MIB) /* two huge pages, and a rest that is none */

/* KiB of the mapping that begins there which huge pages of shared memory serve. */
static unsigned long huge_kib(const void *addr)
{
	unsigned long from, to, kib = 0, found = 0;
	FILE *f = fopen("/proc/self/smaps", "re");
	char line[512];
	int inside = 0;

	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			inside = from == (uintptr_t)addr;
		else if (inside && sscanf(line, "ShmemPmdMapped: %lu", &kib) == 1)
			found = kib;
	}
	fclose(f);
	return found;
}

/* Does the kernel make one for whoever asks? */
static int can_be_had(void)
{
	kvp_autoclose int fd = -1;
	void *addr;
	int r;

	assert_int_equal(kvp_seg_create("t", KVP_SEG_HUGE, 0, &fd), 0);
	assert_int_equal(kvp_seg_map(fd, KVP_SEG_HUGE, KVP_MAP_WRITE | KVP_MAP_HUGEPAGE, &addr), 0);
	r = kvp_seg_huge(addr);
	kvp_seg_unmap(addr, KVP_SEG_HUGE);
	return r == 0;
}

static unsigned long make(enum kvpd_tristate hugepages)
{
	struct kvpd_ledger l = {
		.hugepages = hugepages,
		.mlock = KVPD_NEVER,
		.owner = geteuid(),
		.numa_node = -1,
		.populate_threads = 1,
	};
	struct kvpd_pool_ahead a = { .fd = -1, .bytes = BYTES };
	kvp_autoclose int fd = -1;
	unsigned long kib;
	uint8_t *writer;
	void *addr;

	assert_int_equal(kvpd_pool_ahead(&l, -1, &a), 0);
	fd = a.fd;
	addr = a.addr;
	for (uint64_t i = 0; i < BYTES; i += 4096)
		assert_int_equal(((const uint8_t *)addr)[i], 0);
	kib = huge_kib(addr);
	/* Who writes there need not map it as it was made, and the last seal is still to be had. */
	assert_int_equal(kvp_seg_map(fd, BYTES, KVP_MAP_WRITE, (void **)&writer), 0);
	memset(writer, 7, BYTES);
	assert_int_equal(kvp_seg_seal(fd, F_SEAL_WRITE), -EBUSY);
	kvp_seg_unmap(writer, BYTES);
	assert_int_equal(((const uint8_t *)addr)[BYTES - 1], 7);
	kvp_seg_unmap(addr, BYTES);
	assert_int_equal(kvp_seg_unused(fd), 0);
	assert_int_equal(kvp_seg_seal(fd, F_SEAL_WRITE), 0);
	return kib;
}

static void memory_comes_in_huge_pages(void **state)
{
	int can = can_be_had();
	unsigned long kib = make(KVPD_AUTO);

	(void)state;
	/* One that takes the kernel long is the last for a while. */
	if (can)
		assert_true(kib == 4096 || kib == 2048);
}

static void unless_they_are_not_wanted(void **state)
{
	(void)state;
	assert_int_equal(make(KVPD_NEVER), 0);
}

/* Whoever waits for the thread waits for one piece, and what was made is not made again. */
static void what_nobody_waits_for_gives_way(void **state)
{
	struct kvpd_ledger l = {
		.hugepages = KVPD_NEVER,
		.mlock = KVPD_NEVER,
		.owner = geteuid(),
		.numa_node = -1,
		.populate_threads = 1,
	};
	struct kvpd_pool_ahead a = { .fd = -1, .bytes = BYTES };
	uint8_t in_core[BYTES / 4096];
	uint32_t there = 0;
	int fd;

	(void)state;
	l.pool.last = 1; /* a tenant has a job */
	assert_int_equal(kvpd_pool_ahead(&l, -1, &a), -EAGAIN);
	fd = a.fd;
	assert_true(a.touched > 0 && a.touched < BYTES);
	assert_int_equal(mincore(a.addr, BYTES, in_core), 0);
	for (uint32_t i = 0; i < BYTES / 4096; i++)
		there += in_core[i] & 1u;
	assert_int_equal(there, a.touched / 4096);
	l.pool.last = 0;
	assert_int_equal(kvpd_pool_ahead(&l, -1, &a), 0);
	assert_int_equal(a.fd, fd);
	assert_int_equal(a.touched, BYTES);
	assert_int_equal(mincore(a.addr, BYTES, in_core), 0);
	for (uint32_t i = 0; i < BYTES / 4096; i++)
		assert_true(in_core[i] & 1u);
	kvpd_pool_ahead_drop(&a);
	assert_int_equal(a.fd, -1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(memory_comes_in_huge_pages),
		cmocka_unit_test(unless_they_are_not_wanted),
		cmocka_unit_test(what_nobody_waits_for_gives_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
