/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A management library that knows one GPU in exclusive mode, whose memory is held by the process that
 * asks, and by one of which it does not know how much. It lacks what says MIG. STUB_NVML_UUID: its GPU's.
 * With KNOWS_ALL it says MIG and confidential computing, that the device is not kept up, and of no end of processes.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/kvp_nvml.h"

#define EXPORT __attribute__((visibility("default")))
#define STUB(name, args)      \
	EXPORT int name args; \
	EXPORT int name args

#pragma GCC diagnostic ignored "-Wunused-parameter"
STUB(nvmlInit_v2, (void))
{
	return NVML_OK;
}

STUB(nvmlShutdown, (void))
{
	return NVML_OK;
}

STUB(nvmlSystemGetDriverVersion, (char *version, unsigned int bytes))
{
	strncpy(version, "580.65.06", bytes);
	return NVML_OK;
}

STUB(nvmlSystemGetCudaDriverVersion_v2, (int *version))
{
	*version = 13000;
	return NVML_OK;
}

STUB(nvmlDeviceGetCount_v2, (unsigned int *count))
{
	*count = 1;
	return NVML_OK;
}

STUB(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, struct nvmlDevice_st **device))
{
	*device = (struct nvmlDevice_st *)(void *)device;
	return index;
}

STUB(nvmlDeviceGetUUID, (struct nvmlDevice_st * device, char *uuid, unsigned int bytes))
{
	const char *is = getenv("STUB_NVML_UUID");

	strncpy(uuid, is ? is : "GPU-01234567-89ab-cdef-0123-456789abcdef", bytes);
	return NVML_OK;
}

STUB(nvmlDeviceGetComputeMode, (struct nvmlDevice_st * device, unsigned int *mode))
{
	*mode = NVML_EXCLUSIVE;
	return NVML_OK;
}

STUB(nvmlDeviceGetPersistenceMode, (struct nvmlDevice_st * device, unsigned int *on))
{
#ifdef KNOWS_ALL
	*on = 0;
	return NVML_OK;
#else
	return 3; /* not supported */
#endif
}

#ifdef KNOWS_ALL
STUB(nvmlDeviceGetMigMode, (struct nvmlDevice_st * device, unsigned int *now, unsigned int *later))
{
	*now = *later = 1;
	return NVML_OK;
}

STUB(nvmlSystemGetConfComputeState, (struct nvml_confidential * state))
{
	state->on = 1;
	return NVML_OK;
}
#endif

STUB(nvmlDeviceGetMemoryInfo, (struct nvmlDevice_st * device, struct nvml_memory *memory))
{
	*memory = (struct nvml_memory){ 80ULL << 30, 16ULL << 30, 64ULL << 30 };
	return NVML_OK;
}

STUB(nvmlDeviceGetComputeRunningProcesses_v3,
	(struct nvmlDevice_st * device, unsigned int *n, struct nvml_process *process))
{
#ifdef KNOWS_ALL
	return NVML_TOO_SMALL;
#endif
	if (*n < 2)
		return NVML_TOO_SMALL;
	*n = 2;
	process[0] = (struct nvml_process){ .pid = (unsigned int)getpid(), .used = 3ULL << 30 };
	process[1] = (struct nvml_process){ .pid = 0, .used = NVML_NO_FIGURE };
	return NVML_OK;
}
