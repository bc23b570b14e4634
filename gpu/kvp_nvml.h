/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVIDIA's management library that says how GPUs stand and who holds their memory, found at
 * run time in libnvidia-ml.so.1. Unlike the driver it makes no context and initialises no device for
 * computing. Functions that a version lacks are NULL; so whoever asks may have to say "unknown".
 */
#ifndef GPU_KVP_NVML_H
#define GPU_KVP_NVML_H

#include <stdint.h>

struct nvmlDevice_st;

struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml_process {
	unsigned int pid;
	unsigned long long used; /* ~0: not known */
	unsigned int instance, compute_instance;
};

struct nvml_confidential {
	unsigned int environment, on, tools;
};

#define NVML_OK         0
#define NVML_TOO_SMALL  7 /* there are more than fit */
#define NVML_NAME_BYTES 96
#define NVML_EXCLUSIVE  3 /* compute modes */
#define NVML_PROHIBITED 2
#define NVML_NO_FIGURE  (~0ULL)

#define NVML_FUNCTIONS(X)                                                                        \
	X(nvmlInit_v2, (void))                                                                   \
	X(nvmlShutdown, (void))                                                                  \
	X(nvmlSystemGetDriverVersion, (char *version, unsigned int bytes))                       \
	X(nvmlSystemGetCudaDriverVersion_v2, (int *version))                                     \
	X(nvmlSystemGetConfComputeState, (struct nvml_confidential * state))                     \
	X(nvmlDeviceGetCount_v2, (unsigned int *count))                                          \
	X(nvmlDeviceGetHandleByIndex_v2, (unsigned int index, struct nvmlDevice_st **device))    \
	X(nvmlDeviceGetUUID, (struct nvmlDevice_st * device, char *uuid, unsigned int bytes))    \
	X(nvmlDeviceGetName, (struct nvmlDevice_st * device, char *name, unsigned int bytes))    \
	X(nvmlDeviceGetMinorNumber, (struct nvmlDevice_st * device, unsigned int *minor))        \
	X(nvmlDeviceGetComputeMode, (struct nvmlDevice_st * device, unsigned int *mode))         \
	X(nvmlDeviceGetPersistenceMode, (struct nvmlDevice_st * device, unsigned int *on))       \
	X(nvmlDeviceGetMigMode,                                                                  \
		(struct nvmlDevice_st * device, unsigned int *now, unsigned int *later))         \
	X(nvmlDeviceGetMemoryInfo, (struct nvmlDevice_st * device, struct nvml_memory * memory)) \
	X(nvmlDeviceGetComputeRunningProcesses_v3,                                               \
		(struct nvmlDevice_st * device, unsigned int *n, struct nvml_process *process))

#define NVML_MEMBER(name, args) int(*name) args;
struct kvp_nvml {
	NVML_FUNCTIONS(NVML_MEMBER)
	void *library;
};
#undef NVML_MEMBER

/*
 * Opens the library that the environment's KVPOOL_LIBNVML names, else libnvidia-ml.so.1, and initialises
 * it. -ENODEV: there is none, or it cannot speak to the driver.
 */
int kvp_nvml_open(struct kvp_nvml *ret_nvml);
void kvp_nvml_close(struct kvp_nvml *nvml);
/* The device that has this UUID, as CUDA says it. -ENODEV: it knows none such; an instance of MIG is none. */
int kvp_nvml_find(
	const struct kvp_nvml *nvml, const uint8_t uuid[16], struct nvmlDevice_st **ret_device);

#endif
