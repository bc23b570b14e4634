/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The longest single calls of eviction policies for `kvbench policy --worst`, under what a client
 * might do to make them long. CPU time, so that who else runs on the machine does not count.
 */
#ifndef KVBENCH_BENCH_POLICY_WORST_H
#define KVBENCH_BENCH_POLICY_WORST_H

#include <stdint.h>

#define BENCH_WORST_ROWS 8u

struct bench_worst_row {
	const char *what; /* was done */
	const char *call; /* was longest */
	double longest_us;
};

/*
 * Runs all of them on one policy with so many blocks, at least 4,096; at most BENCH_WORST_ROWS
 * rows. Returns how many, or -ENOMEM.
 */
int bench_policy_worst(const char *policy, uint32_t blocks, struct bench_worst_row *ret_rows);

#endif
