/* SPDX-License-Identifier: Apache-2.0 */
/* The table of drivers. */
#include "daemon/device/driver.h"

#include <stddef.h>
#include <string.h>

static const struct kvpd_driver_ops *const drivers[] = {
	&kvpd_driver_cuda,
	&kvpd_driver_host,
	&kvpd_driver_fault,
};

const struct kvpd_driver_ops *kvpd_driver_find(const char *name)
{
	for (size_t i = 0; i < sizeof(drivers) / sizeof(drivers[0]); i++)
		if (!strcmp(drivers[i]->name, name))
			return drivers[i];
	return NULL;
}
