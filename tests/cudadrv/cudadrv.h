/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests do with the simulated CUDA driver, libcuda.so.1 of this folder; README.md says what it
 * models. A simulated machine is a folder, best on tmpfs, that the environment's KVP_SIM_GPU names
 * to every process with the driver in it; without that variable the driver says that there is no
 * device. The folder lives as long as its owner wants; its files hold the devices' memory.
 *
 * What is set here holds at once for all processes that run. Reports are lines of the file "reports"
 * in the folder, one for each misuse that a process was caught at:
 *	NAME PID PROGRAM what was done
 * and are counted by name. Where CUDA has an error for the misuse, the caller gets it as well; the
 * same line goes to the process's stderr unless KVP_SIM_QUIET is set.
 *
 * The functions return 0 or a negative errno and may be called by any thread of any process; they
 * are no part of the driver and do not load it. The program `cudadrv` does the same for scripts.
 */
#ifndef TESTS_CUDADRV_CUDADRV_H
#define TESTS_CUDADRV_CUDADRV_H

#include <stddef.h>
#include <stdint.h>

/* Reports, each by what the caller did. */
#define CUDADRV_REPORTS(X)                                                                      \
	X(BEFORE_INIT, "before-init")          /* a call before cuInit() */                     \
	X(AFTER_FORK, "after-fork")            /* a call in a child of fork() */                \
	X(NO_CONTEXT, "no-context")            /* a call that needs a current context */        \
	X(WRONG_CONTEXT, "wrong-context")      /* a handle of another context's */              \
	X(BAD_HANDLE, "bad-handle")            /* no such handle, or not any more */            \
	X(BAD_VALUE, "bad-value")              /* an argument that CUDA refuses */              \
	X(UNMAPPED, "unmapped-access")         /* device access where nothing is mapped */      \
	X(OUT_OF_RANGE, "out-of-range-access") /* beyond the end of an allocation */            \
	X(NO_ACCESS, "no-access")              /* mapped, but cuMemSetAccess() never called */  \
	X(READ_ONLY, "read-only-access")       /* a write through PROT_READ */                  \
	X(MAP_OFFSET, "map-offset")            /* cuMemMap() with an offset */                  \
	X(MAP_PART, "map-part")                /* of a part of a handle's memory */             \
	X(MISALIGNED, "misaligned")            /* sizes and addresses of VMM calls, values */   \
	X(MAP_TWICE, "map-twice")              /* where something is mapped already */          \
	X(NOT_RESERVED, "not-reserved")        /* addresses nobody reserved */                  \
	X(UNMAP_PART, "unmap-part")            /* of a part of a mapping */                     \
	X(FREE_MAPPED, "free-mapped")          /* addresses that still map something */         \
	X(RUNNING, "release-under-work")       /* unmap, free, unregister under running work */ \
	X(IMPORT_FOREIGN, "import-foreign")    /* an fd that is none of a segment */            \
	X(PROP_MISMATCH, "prop-mismatch")      /* a size or device that is not the segment's */ \
	X(EXPORT_UNASKED, "export-unasked")    /* memory made without the handle type */        \
	X(IPC_ON_VMM, "ipc-on-vmm")            /* legacy IPC of VMM memory */                   \
	X(VMM_ON_ALLOC, "vmm-on-alloc")        /* VMM calls on memory of cuMemAlloc() */        \
	X(IPC_IN_EXPORTER, "ipc-in-exporter")  /* a handle opened by who made it */             \
	X(IPC_FREE_OPEN, "ipc-free-open")      /* freed while others have it open */            \
	X(IPC_STALE, "ipc-stale")              /* a handle whose memory is gone */              \
	X(UNREGISTERED, "unregistered-async")  /* pageable memory in an asynchronous copy */    \
	X(REGISTER_TWICE, "register-twice")                                                     \
	X(REGISTER_READ_ONLY, "register-read-only") /* a read-only mapping without READ_ONLY */ \
	X(NOT_REGISTERED, "not-registered") /* unregister or device address of what is not */   \
	X(BATCH_NULL_STREAM, "batch-null-stream")                                               \
	X(BATCH_OVERLAP, "batch-overlap")         /* pieces of one batch overlap */             \
	X(BATCH_CAPTURED, "batch-captured")       /* a batch copy in a capture */               \
	X(BATCH_ORDER_ANY, "batch-order-any")     /* order "any" for a source on the device */  \
	X(CAPTURE, "capture")                     /* a call that a capture under way forbids */ \
	X(WAIT_UNREGISTERED, "wait-unregistered") /* stream value operations on other memory */ \
	X(HAZARD, "hazard")                       /* running operations overlap, one writes */  \
	X(WRONG_DATA, "wrong-data")               /* check or slow_check found other bytes */   \
	X(KERNEL, "kernel")                       /* what tests/cudasim saw within a kernel */  \
	X(LEAK, "leak")                           /* left at exit */

enum cudadrv_report {
#define CUDADRV_ENUM(id, name) CUDADRV_##id,
	CUDADRV_REPORTS(CUDADRV_ENUM)
#undef CUDADRV_ENUM
		CUDADRV_REPORTS_N
};

/* The simulated machine; zeros stand for what cudadrv_defaults() sets. */
struct cudadrv_config {
	uint32_t devices;
	uint32_t driver_version; /* 13000 is 13.0 */
	uint64_t vram_bytes;     /* of each device */
	uint64_t context_bytes;  /* of a process's primary context on a device */
	uint64_t copy_rate;      /* bytes a second each way, all processes together; 0: at once */
	uint64_t latency_ns;     /* of every copy */
	uint64_t seed;           /* orders what CUDA leaves open */
	uint64_t linger_ns;      /* writes of a killed process go on for so long */
	uint32_t no_vmm;         /* 1: neither VMM nor descriptors */
	uint32_t no_read_only;   /* 1: no registration of read-only mappings */
	uint32_t no_mem_ops;     /* 1: no stream values */
	uint32_t no_ipc;         /* 1: no legacy IPC */
	uint32_t stepping;       /* 1: operations run only as cudadrv_step() lets them */
	uint32_t same_address;   /* 0: registered memory has its own address for the device, too */
};

struct cudadrv;

void cudadrv_defaults(struct cudadrv_config *ret_config);
/* Makes the machine in an empty folder that exists; everybody may then use it. */
int cudadrv_new(const char *folder, const struct cudadrv_config *config, struct cudadrv **ret_sim);
/* An existing one. -ENOENT, -EPROTO: something else, or of another version. */
int cudadrv_open(const char *folder, struct cudadrv **ret_sim);
/* Lets go of it, the machine stays. NULL is harmless; returns NULL. */
struct cudadrv *cudadrv_close(struct cudadrv *sim);

/* How often it was reported since the machine was made. CUDADRV_REPORTS_N: all kinds together. */
uint64_t cudadrv_reports(struct cudadrv *sim, enum cudadrv_report kind);
const char *cudadrv_report_name(enum cudadrv_report kind);
/* All counts to 0 and the file empty: for the next part of a test. */
int cudadrv_forget(struct cudadrv *sim);

/* As cuDeviceGetUuid() says it. -ENODEV */
int cudadrv_uuid(struct cudadrv *sim, uint32_t device, uint8_t ret_uuid[16]);
/* Bytes of a device that nobody holds. */
int cudadrv_free_bytes(struct cudadrv *sim, uint32_t device, uint64_t *ret_bytes);
/* Segments, allocations and contexts that somebody holds, of all devices. */
int cudadrv_segments(struct cudadrv *sim, uint32_t *ret_n);
/* Calls of a function, with its suffix, by all processes; -ENOENT: the driver has none such. */
int64_t cudadrv_calls(struct cudadrv *sim, const char *function);
/* Name of entry point i, NULL beyond the last. */
const char *cudadrv_function(uint32_t i);

enum cudadrv_action {
	CUDADRV_RETURN, /* the call does nothing and returns `value`, an error of CUDA's */
	CUDADRV_KILL,   /* the process ends with SIGKILL */
	CUDADRV_SLEEP,  /* `value` nanoseconds before the call does its work */
	CUDADRV_STICKY, /* `value` becomes the process's sticky error */
	CUDADRV_HANG,   /* operations: it begins and does not end; calls: as SLEEP for ever */
};

/*
 * What goes wrong. `function` names an entry point, or one of the operations that streams run:
 * "op:copy", "op:set", "op:kernel", "op:write" and "op:wait" (values), whose n-th start in all
 * processes together then fails (RETURN and STICKY alike: an asynchronous error is a sticky one),
 * hangs, is slow or kills. `program` limits it to processes of that name (at most 15 bytes of it).
 */
struct cudadrv_fault {
	const char *function;
	const char *program; /* NULL: any */
	enum cudadrv_action action;
	uint32_t skip;  /* calls that pass first */
	uint32_t times; /* then so many are hit; 0: all */
	uint64_t value;
};
/* -ENOSPC: 32 are set. The number says which in cudadrv_hit(). */
int cudadrv_set(struct cudadrv *sim, const struct cudadrv_fault *fault, uint32_t *ret_number);
/* How often a fault has struck. */
uint32_t cudadrv_hit(struct cudadrv *sim, uint32_t number);
/* No fault is set any more, what hangs goes on, no engine stalls, devices are there. */
int cudadrv_clear(struct cudadrv *sim);

/* Allocations fail that would leave less than this free. */
void cudadrv_oom_below(struct cudadrv *sim, uint64_t bytes);
/* direction 0: to the device, 1: from it. */
void cudadrv_stall(struct cudadrv *sim, uint32_t device, uint32_t direction, uint32_t on);
/* Every process that had a context there before gets the sticky error; those after it work. */
void cudadrv_ecc(struct cudadrv *sim, uint32_t device);
/* It has left the bus: sticky errors, and new processes do not see it. */
void cudadrv_gone(struct cudadrv *sim, uint32_t device, uint32_t on);

/*
 * With `stepping`: lets n operations run, in whatever processes, and waits until they have ended.
 * Returns how many ran; fewer if for 2 s none could.
 */
int cudadrv_step(struct cudadrv *sim, uint32_t n);

/* The pattern that the kernels fill, check and slow_check know: word i of a block with this key. */
static inline uint64_t cudadrv_pattern(uint64_t key, uint64_t i)
{
	uint64_t x = key * UINT64_C(0x9e3779b97f4a7c15) + i * UINT64_C(0xbf58476d1ce4e5b9);

	return x ^ x >> 29;
}

/*
 * PTX of the kernels that the simulated driver knows, for the real one. One thread, parameters all
 * of 64 bits:
 *	fill(at, bytes, key)               words of the pattern
 *	check(at, bytes, key, bad)         adds the number of wrong words to *bad
 *	slow_check(at, bytes, key, bad, ns) again and again until ns nanoseconds have passed
 *	poke(at, value)                    one store
 *	spin(at, ns)                       counts in memory until ns nanoseconds have passed
 */
extern const char cudadrv_ptx[];
/*
 * An image that has all kernels of kernels/cuda for the simulated driver, which runs their model; it
 * takes nvcc's images as well, but a build without nvcc has none.
 */
extern const char cudadrv_project_image[];

#endif
