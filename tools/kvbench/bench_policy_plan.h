/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of the planners for `kvbench policy`: allocator, advisor, ladder, rematerialization. */
#ifndef KVBENCH_BENCH_POLICY_PLAN_H
#define KVBENCH_BENCH_POLICY_PLAN_H

#include <stddef.h>
#include <stdint.h>

#define BENCH_PLAN_ROWS 32u

struct bench_plan_row {
	const char *name; /* what was measured */
	uint64_t n;       /* of how many tokens, blocks, pieces */
	const char *unit; /* of value */
	double value;
};

/* Runs all of them, a few seconds; at most BENCH_PLAN_ROWS rows. Returns how many, or -ENOMEM. */
int bench_policy_plan(struct bench_plan_row *ret_rows);

#endif
