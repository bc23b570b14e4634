/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages of a mapping, brought in a step at a time so that whoever does it has time for others, and
 * so that no copy takes faults.
 */
#ifndef KVPD_POPULATE_H
#define KVPD_POPULATE_H

#include <stdbool.h>
#include <stdint.h>

#define KVPD_POPULATE_STEP (UINT64_C(8) << 20)

/*
 * The next step from *at on, which it moves. 0: all of `bytes` is there; -EAGAIN: call again;
 * -ENOMEM: there is no memory for it. Kernels that cannot (before 5.14) are no error: faults come later.
 */
int kvpd_populate(void *addr, uint64_t bytes, bool writable, uint64_t *at);

#endif
