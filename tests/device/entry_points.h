/* SPDX-License-Identifier: Apache-2.0 */
/* One function of the driver that goes wrong in one way, and what comes of it: entry_run.c. */
#ifndef TESTS_DEVICE_ENTRY_POINTS_H
#define TESTS_DEVICE_ENTRY_POINTS_H

#include "tests/cudadrv/cudadrv.h"
#include "tests/e2e/e2e.h"

#define ENTRY_PROGRAM "entry_points" /* this one's name */
#define MAX_POINTS    160u
#define STICKY_ERROR  700 /* an illegal address */

enum { ENTRY_NO_MEMORY, ENTRY_NOT_READY, ENTRY_STICKY };

/* Memory by legacy handles; a driver of CUDA 12.8; a worker that takes over what the last one made; ... */
#define NEEDS_IPC        1u
#define NEEDS_OLD        2u
#define NEEDS_RESTART    4u
#define NEEDS_PATIENCE   8u   /* what is asked every five seconds */
#define NEEDS_NO_CURRENT 16u  /* a thread of the engine without a current context */
#define NEEDS_KERNEL     32u  /* a library that was built with a kernel that copies */
#define NEEDS_PINNED     128u /* DRAM that the worker has pinned */
#define NEEDS_BOTH       256u /* errors in every run: one of them was not survived once */
#define NEEDS_NEVER      64u  /* it is called in no case */

struct entry_case {
	const char *name;
	bool worker; /* else the library in an engine */
	int error;
	uint32_t needs, number;
	struct cudadrv_fault fault, with; /* with.function NULL: nothing else */
};

struct entry_end {
	bool struck; /* or, with NEEDS_NEVER, it was not called */
	int heard;   /* the first error that the engine got; 0: none */
	uint32_t tenths;
};

/*
 * In a process that has no CUDA of its own. Ends it with status 1 if anything is not as it should be. The machine
 * and the daemon of a case of the library are kept for the next one; entry_over() looks at them once more.
 */
struct entry_end entry_run(const struct entry_case *k);
void entry_over(void);

bool entry_has_kernel(void);
const char *entry_errno(int error);

#endif
