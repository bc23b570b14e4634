/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory there is for kvpoold: what the machine has, and what the control groups that it
 * runs in, up the tree, let it have (memory.max and memory.high of version 2,
 * memory.limit_in_bytes of version 1). From that follow the most that `memory` may be, its default,
 * how far pools may grow at this moment, and how much they have to give back. Everything but
 * kvpd_memory_read() is a pure function of figures.
 *
 * All functions: any thread. Figures are bytes. What cannot be read is unknown and limits nothing.
 */
#ifndef KVPD_MEMORY_H
#define KVPD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVPD_NO_LIMIT UINT64_MAX

#define KVPD_GROUPS 16u /* with a limit, from the process's own upwards; more are not looked at */

#define KVPD_GROUP_PATH 4096u /* PATH_MAX: of a longer one no file can be opened by its path */

/* One control group that has a limit. */
struct kvpd_group {
	uint64_t limit;
	uint64_t left;              /* page cache that the kernel would drop counted as left */
	char path[KVPD_GROUP_PATH]; /* its folder */
};

struct kvpd_memory {
	uint64_t total;     /* of the machine; 0: unknown */
	uint64_t available; /* likewise; what can be had without swapping */
	unsigned n_groups;
	struct kvpd_group group[KVPD_GROUPS];
	char own[KVPD_GROUP_PATH]; /* folder of the group it is in; "": unknown */
};

/*
 * The figures of this moment. `root` stands before every path that is read: "" but in tests.
 * Control groups are looked for where /proc/self/mountinfo has them, and only up to the top of what
 * is mounted there: a container sees its own limit, and version 1 says of those above what they
 * amount to (hierarchical_memory_limit).
 */
void kvpd_memory_read(const char *root, struct kvpd_memory *ret_memory);

/* The group with the lowest limit; NULL: nothing but the machine limits this process. */
const struct kvpd_group *kvpd_memory_lowest(const struct kvpd_memory *m);

/* The most that `memory` may be: less than there is, by a sixteenth and at least 48 MiB. */
uint64_t kvpd_memory_most(const struct kvpd_memory *m);

/*
 * The default of `memory`: a quarter of what the machine has, or of the lowest limit of a control
 * group if that is less; whole MiB, at least 16 MiB. 1 GiB where neither is known.
 */
uint64_t kvpd_memory_default(const struct kvpd_memory *m);

/* How much pools may grow now. */
uint64_t kvpd_memory_spare(const struct kvpd_memory *m);

/*
 * How much pools have to give back now; 0 unless the machine or one of the groups is short, however
 * long tasks elsewhere wait for memory. `stalled`: tasks have waited lately, so that less has to be
 * missing before it counts.
 *
 * Short means that less than a 64th is left (of the machine's memory or the group's limit; between
 * 16 MiB and 1 GiB), or less than twice that if stalled; then what is missing up to twice that has
 * to come back. Pools grow only as far as twice that stays, so that one does not follow the other.
 */
uint64_t kvpd_memory_missing(const struct kvpd_memory *m, bool stalled);

/* Close enough to being short that a look every second is worth its while. */
bool kvpd_memory_near(const struct kvpd_memory *m);

/* ---- parsers: texts of the kernel, bounded and not trusted */

/* The number behind `name` in lines "NAME: 12 kB" or "NAME 12"; times 1024 if "kB" follows. */
bool kvpd_memory_field(const char *text, const char *name, uint64_t *ret_value);
/* A limit or usage: a decimal number or "max". False: neither. */
bool kvpd_memory_number(const char *text, uint64_t *ret_value);

/* Where the group of this process lies. */
struct kvpd_group_place {
	bool v1;
	char mount[KVPD_GROUP_PATH];  /* folder that the tree is mounted on */
	char folder[KVPD_GROUP_PATH]; /* of the group, in or below it */
};
/* From the texts of /proc/self/cgroup and /proc/self/mountinfo; false: no memory control. */
bool kvpd_memory_place(
	const char *cgroup, const char *mountinfo, struct kvpd_group_place *ret_place);

#endif
