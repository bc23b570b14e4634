/* SPDX-License-Identifier: Apache-2.0 */
/* The model as a device for checks.h. There is one; its memory is the process's. */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "tests/cudasim/checks.h"
#include "tests/cudasim/cudasim.h"

int sim_device_init(struct device *d, uint64_t seed);

#define SIM_KERNELS_MAX 64
/* How often a kernel has been launched. */
uint32_t sim_device_launches(const struct kvp_cuda_kernel *k);

/*
 * From now on kernels of such names lack their n-th block barrier, or do not run at all: for tests
 * of the checks. NULL: all kernels are whole.
 */
#define SIM_SKIP_LAUNCH (CUDASIM_WHOLE - 1)
void sim_device_break(int (*broken)(const char *kernel), uint32_t barrier);

/* The kernel of that name as the C++ compiler made it; NULL if there is none. */
void (*sim_find(const char *name))(const void *params);

#endif
