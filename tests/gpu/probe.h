/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the questions of the probe share: notes between the parent and its children, children that
 * never outlive their time, and segments of video memory. Private to the probe.
 */
#ifndef TESTS_GPU_PROBE_H
#define TESTS_GPU_PROBE_H

#include <stdint.h>
#include <sys/types.h>

#include "gpu/kvp_cu.h"

#define LINK_FD    3   /* a child's end of its socket */
#define CHILD_LIFE 120 /* seconds; nothing hangs for ever */
#define MIB        (UINT64_C(1) << 20)
#define GIB        (UINT64_C(1) << 30)
#define PATTERN    0x5aU
#define PATTERN64  (PATTERN * UINT64_C(0x0101010101010101))

/* What parent and child tell each other; a file descriptor may come with it. */
struct note {
	int32_t ok;
	uint32_t reserved;
	uint64_t v[4];
	char text[200];
};

double now(void);
void nap(double s);

int tell(int sock, const struct note *n, int fd);
/* -ETIMEDOUT after `seconds`, -EPIPE if the other side is gone. *ret_fd is -1 if none came. */
int hear(int sock, double seconds, struct note *ret_n, int *ret_fd);

/* ---- of children, which alone touch CUDA ---- */

extern struct kvp_cu cu;

/* A CUDA call that has to succeed: else the child says so and ends. */
__attribute__((format(printf, 2, 3))) void must(int r, const char *fmt, ...);
void report(const struct note *n);

uint64_t seg_create(uint64_t bytes, struct cu_location where);
int seg_export(uint64_t mem);
uint64_t seg_import(int fd);
uint64_t seg_map(uint64_t mem, uint64_t bytes, int prot);
struct cu_location device_location(void);
/* Kernels: poke stores b at a; spin counts at a for b nanoseconds. */
void launch(const char *name, uint64_t a, uint64_t b);
uint64_t read_word(uint64_t at);

/* What a child does; its job is the parent's first note. */
struct role {
	const char *name;
	void (*run)(const struct note *job, int fd);
};
extern const struct role more_roles[];
extern const size_t more_roles_count;

/* ---- of the parent ---- */

struct child {
	pid_t pid;
	int pidfd;
	int sock;
};

struct where {
	int other_uid;
	int other_pids;
};

struct child spawn(const char *role, const struct where *w);
void finish(struct child *c);
/* Gives a child its job and hears its first answer; a silent child's answer says why. */
struct note ask(
	struct child *c, int fd, uint64_t a, uint64_t b, uint64_t d, uint64_t e, int *ret_fd);
/* A segment of 64 MiB whose exporter lives on in *ret_owner. -1 after a line that says why not. */
int segment(struct child *ret_owner, int question);

/* Questions 9 to 17. */
#define MORE_FIRST 9
#define MORE_LAST  17
void ask_more(int question);

#endif
