/* SPDX-License-Identifier: Apache-2.0 */
/* The management library, found like the driver's. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

#include "gpu/kvp_nvml.h"

int kvp_nvml_open(struct kvp_nvml *ret_nvml)
{
	const char *path = secure_getenv("KVPOOL_LIBNVML");
	struct kvp_nvml n = { 0 };

	n.library = dlopen(path && *path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!n.library)
		return -ENODEV;
#define NVML_FIND(name, args) *(void **)&n.name = dlsym(n.library, #name);
	NVML_FUNCTIONS(NVML_FIND)
#undef NVML_FIND
	if (!n.nvmlInit_v2 || !n.nvmlShutdown || n.nvmlInit_v2() != NVML_OK) {
		dlclose(n.library);
		return -ENODEV;
	}
	*ret_nvml = n;
	return 0;
}

void kvp_nvml_close(struct kvp_nvml *nvml)
{
	if (!nvml->library)
		return;
	(void)nvml->nvmlShutdown();
	dlclose(nvml->library);
	*nvml = (struct kvp_nvml){ 0 };
}
