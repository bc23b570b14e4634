/* SPDX-License-Identifier: Apache-2.0 */
/* The model as a device for checks.h. There is one; its memory is the process's. */
#ifndef SIM_DEVICE_H
#define SIM_DEVICE_H

#include "tests/cudasim/checks.h"
#include "tests/cudasim/cudasim.h"

int sim_device_init(struct device *d, uint64_t seed);

/* The kernel of that name as the C++ compiler made it; NULL if there is none. */
void (*sim_find(const char *name))(const void *params);

#endif
