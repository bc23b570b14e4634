/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loads of kvbench fairness: what another tenant does while a well-behaved client is measured.
 * A load runs in processes of its own, in a tenant of its own.
 */
#ifndef KVBENCH_BENCH_FAIRNESS_H
#define KVBENCH_BENCH_FAIRNESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* In memory that all processes of a load share with the one that measures. */
struct fair_control {
	_Atomic uint32_t ready; /* processes whose load stands */
	_Atomic uint32_t go;    /* 1: begin */
	_Atomic int error;      /* negative errno of a process that could not */
	_Atomic uint64_t ops;   /* what the load has done since; see man/kvbench.1 */
};

/* What one process of a load has to do. */
struct fair_load {
	const char *socket;
	uint32_t process;  /* its number, from 0 */
	uint32_t sessions; /* of this process */
	struct fair_control *control;
};

struct fair_mode {
	const char *name;
	const char *help;
	uint32_t sessions;  /* at --sessions 250; scaled with it unless `fixed` */
	uint32_t processes; /* at most */
	uint64_t share;     /* bytes of the load's tenant; 0: as the daemon has it by default */
	uint32_t files;     /* descriptors that the daemon may have; 0: no limit but the system's */
	bool fixed;
	bool threads; /* one session, and `sessions` counts its threads */
	bool control; /* does nothing to the daemon: its figures are not judged */
	/*
	 * Prepares, calls fair_ready(), and goes on until it is killed. Returns negative errno if
	 * it could not begin.
	 */
	int (*run)(struct fair_load *load);
};

extern const struct fair_mode fair_modes[];
extern const uint32_t fair_n_modes;

/*
 * The load stands: gives way to all others (SCHED_IDLE, every thread of the process), says so and
 * waits for the start.
 */
void fair_ready(struct fair_load *load);

#endif
