/* SPDX-License-Identifier: Apache-2.0 */
/* The management library, found like the driver's. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int kvp_nvml_find(
	const struct kvp_nvml *nvml, const uint8_t uuid[16], struct nvmlDevice_st **ret_device)
{
	/* "GPU-", 32 digits, four dashes and the end */
	char wanted[41] = "GPU-", text[96];
	struct nvmlDevice_st *device;
	unsigned int count = 0;
	size_t at = 4;

	if (!nvml->nvmlDeviceGetCount_v2 || !nvml->nvmlDeviceGetHandleByIndex_v2 ||
		!nvml->nvmlDeviceGetUUID || nvml->nvmlDeviceGetCount_v2(&count) != NVML_OK)
		return -ENODEV;
	for (uint32_t i = 0; i < 16; i++)
		at += (size_t)snprintf(wanted + at, sizeof(wanted) - at,
			i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
	for (unsigned int i = 0; i < count; i++) {
		if (nvml->nvmlDeviceGetHandleByIndex_v2(i, &device) != NVML_OK ||
			nvml->nvmlDeviceGetUUID(device, text, sizeof(text)) != NVML_OK)
			continue;
		text[sizeof(text) - 1] = 0;
		if (strcmp(text, wanted) == 0) {
			*ret_device = device;
			return 0;
		}
	}
	return -ENODEV;
}
