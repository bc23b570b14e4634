/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>

#include "tests/gpu/cu.h"

#define WHY_BYTES 200

const char *cu_name(const struct cu *cu, int error)
{
	const char *name;

	return cu->cuGetErrorName(error, &name) == CU_OK && name ? name : "an unnamed CUDA error";
}

static int find_functions(struct cu *cu, char *why)
{
#define CU_FIND(name, args)                                                \
	*(void **)&cu->name = dlsym(cu->library, #name);                   \
	if (!cu->name) {                                                   \
		snprintf(why, WHY_BYTES, "libcuda.so.1 has no %s", #name); \
		return -ENODEV;                                            \
	}
	CU_FUNCTIONS(CU_FIND)
#undef CU_FIND
	return 0;
}

static int open_device(struct cu *cu, char *why)
{
	int count = 0, r;

	r = cu->cuInit(0);
	if (r != CU_OK) {
		snprintf(why, WHY_BYTES, "cuInit: %s", cu_name(cu, r));
		return -ENODEV;
	}
	if (cu->cuDeviceGetCount(&count) != CU_OK || count == 0) {
		snprintf(why, WHY_BYTES, "the driver sees no device");
		return -ENODEV;
	}
	r = cu->cuDeviceGet(&cu->device, 0);
	if (r == CU_OK)
		r = cu->cuDevicePrimaryCtxRetain(&cu->ctx, cu->device);
	if (r == CU_OK)
		r = cu->cuCtxSetCurrent(cu->ctx);
	if (r != CU_OK) {
		snprintf(why, WHY_BYTES, "no context on device 0: %s", cu_name(cu, r));
		return -ENODEV;
	}
	return 0;
}

int cu_open(struct cu *ret_cu, char *ret_why)
{
	struct cu cu = { .library = dlopen("libcuda.so.1", RTLD_NOW) };
	int r;

	if (!cu.library) {
		snprintf(ret_why, WHY_BYTES, "%s", dlerror());
		return -ENODEV;
	}
	r = find_functions(&cu, ret_why);
	if (r == 0)
		r = open_device(&cu, ret_why);
	if (r == 0)
		*ret_cu = cu;
	else
		dlclose(cu.library);
	return r;
}
