/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's library, found and bound by the exact names of its symbols. */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/kvp_cu.h"

const char *kvp_cu_name(const struct kvp_cu *cu, int error)
{
	const char *name;

	return cu->cuGetErrorName(error, &name) == CU_OK && name ? name : "an unnamed CUDA error";
}

bool kvp_cu_lost(int error)
{
	switch (error) {
	case CU_ERR_SHUTDOWN:
	case CU_ERR_ECC:
	case 220: /* NVLink */
	case CU_ERR_CONTAINED:
	case CU_ERR_NO_CONTEXT:
	case 710: /* an assertion of a kernel */
	case 721: /* tensor memory that a kernel left behind */
	case 911: /* another device of a shared context */
	case 999: /* unknown */
		return true;
	default:
		/* addresses, instructions, time: faults of kernels and copies */
		return error == 700 || error == 702 || (error >= 714 && error <= 719) ||
		       (error >= CU_ERR_MPS_FIRST && error <= CU_ERR_MPS_LAST);
	}
}

int kvp_cu_errno(int error)
{
	if (kvp_cu_lost(error))
		return -ENODEV;
	switch (error) {
	case CU_OK:
		return 0;
	case CU_ERR_INVALID_VALUE:
		return -EINVAL;
	case CU_ERR_NO_MEMORY:
		return -ENOMEM;
	case CU_ERR_UNAVAILABLE:
	case CU_ERR_NO_DEVICE:
		return -ENODEV;
	case CU_NOT_READY:
		return -EAGAIN;
	case CU_ERR_NOT_PERMITTED:
		return -EPERM;
	case CU_ERR_UNSUPPORTED:
		return -EOPNOTSUPP;
	default:
		return error >= CU_ERR_CAPTURING && error <= 908 ? -EBUSY : -EIO;
	}
}

static int bind(struct kvp_cu *cu, const char *path, char *why)
{
#define CU_FIND(name, args) *(void **)&cu->name = dlsym(cu->library, #name);
	CU_FUNCTIONS(CU_FIND)
	CU_OPTIONAL(CU_FIND)
#undef CU_FIND
#define CU_DEMAND(name, args)                                               \
	if (!cu->name) {                                                    \
		snprintf(why, KVP_CU_WHY, "%.120s has no %s", path, #name); \
		return -ENODEV;                                             \
	}
	CU_FUNCTIONS(CU_DEMAND)
#undef CU_DEMAND
	return 0;
}

int kvp_cu_load(struct kvp_cu *ret_cu, char *ret_why)
{
	const char *path = secure_getenv("KVPOOL_LIBCUDA");
	struct kvp_cu cu = { .device = -1 };
	int r;

	if (!path || !*path)
		path = "libcuda.so.1";
	cu.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!cu.library) {
		snprintf(ret_why, KVP_CU_WHY, "%s", dlerror());
		return -ENODEV;
	}
	r = bind(&cu, path, ret_why);
	if (r < 0)
		kvp_cu_unload(&cu);
	else
		*ret_cu = cu;
	return r;
}

void kvp_cu_unload(struct kvp_cu *cu)
{
	if (cu->library)
		dlclose(cu->library);
	*cu = (struct kvp_cu){ .device = -1 };
}

static int open_device(struct kvp_cu *cu, int ordinal, char *why)
{
	int count = 0, r;

	r = cu->cuInit(0);
	if (r != CU_OK) {
		snprintf(why, KVP_CU_WHY, "cuInit: %s", kvp_cu_name(cu, r));
		return -ENODEV;
	}
	if (cu->cuDeviceGetCount(&count) != CU_OK || count <= ordinal) {
		snprintf(why, KVP_CU_WHY, "the driver sees %d devices", count);
		return -ENODEV;
	}
	r = cu->cuDeviceGet(&cu->device, ordinal);
	if (r == CU_OK)
		r = cu->cuDevicePrimaryCtxRetain(&cu->ctx, cu->device);
	if (r == CU_OK)
		r = cu->cuCtxSetCurrent(cu->ctx);
	if (r != CU_OK) {
		snprintf(why, KVP_CU_WHY, "no context on device %d: %s", ordinal,
			kvp_cu_name(cu, r));
		return -ENODEV;
	}
	return 0;
}

int kvp_cu_open(int ordinal, struct kvp_cu *ret_cu, char *ret_why)
{
	struct kvp_cu cu;
	int r = kvp_cu_load(&cu, ret_why);

	if (r < 0)
		return r;
	r = open_device(&cu, ordinal, ret_why);
	if (r < 0)
		kvp_cu_unload(&cu);
	else
		*ret_cu = cu;
	return r;
}

int kvp_cu_find(const struct kvp_cu *cu, const uint8_t uuid[16], int *ret_device)
{
	int count = 0;

	if (cu->cuDeviceGetCount(&count) != CU_OK)
		return -ENODEV;
	for (int i = 0; i < count; i++) {
		struct cu_uuid u;
		int device;

		if (cu->cuDeviceGet(&device, i) != CU_OK ||
			cu->cuDeviceGetUuid_v2(&u, device) != CU_OK)
			continue;
		if (memcmp(u.bytes, uuid, sizeof(u.bytes)) == 0) {
			*ret_device = device;
			return 0;
		}
	}
	return -ENODEV;
}
