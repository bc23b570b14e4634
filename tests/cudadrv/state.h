/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state that all processes of a simulated machine share: a file "state" in its folder, mapped by
 * everybody, and a file for each segment of device memory. Who holds a segment (a handle, a mapping,
 * an exported descriptor, wherever it is) holds a read lock on its file by an open file description,
 * so the kernel itself lets go with the last one: of a killed process, of a descriptor in flight, of
 * a forked child. A file that nobody locks is free memory.
 */
#ifndef TESTS_CUDADRV_STATE_H
#define TESTS_CUDADRV_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/kvp_cu.h"
#include "tests/cudadrv/cudadrv.h"

#define SIM_MAGIC     UINT64_C(0x6d69732d61647563) /* "cuda-sim" */
#define SIM_VERSION   1u
#define SIM_DEVICES   16u
#define SIM_SEGMENTS  8192u
#define SIM_PROCESSES 512u
#define SIM_RUNNING   16384u
#define SIM_FAULTS    32u
#define SIM_GRANULE   UINT64_C(65536)   /* of poison */
#define SIM_VMM_BYTES UINT64_C(2097152) /* granularity of segments */
#define SIM_POISON    0xd5

enum sim_function {
#define SIM_ENUM(name, args) SIM_##name,
	CU_FUNCTIONS(SIM_ENUM) CU_OPTIONAL(SIM_ENUM)
#undef SIM_ENUM
		SIM_CALLS,
	SIM_OP_COPY = SIM_CALLS,
	SIM_OP_SET,
	SIM_OP_KERNEL,
	SIM_OP_WRITE,
	SIM_OP_WAIT,
	SIM_FUNCTIONS
};

extern const char *const sim_function_names[SIM_FUNCTIONS];

enum sim_kind {
	SIM_VMM = 1,  /* cuMemCreate() */
	SIM_ALLOC,    /* cuMemAlloc() */
	SIM_CONTEXT,  /* what a context costs */
	SIM_HOST_VMM, /* cuMemCreate() of host memory; not the device's */
};

struct sim_segment {
	uint32_t used, kind, device;
	uint32_t reserved;
	uint64_t id, bytes;
	uint64_t ino;
};

/* Behind a segment's bytes in its file; `touched` says which granules are no longer fresh. */
struct sim_meta {
	uint64_t magic, id;
	uint64_t bytes;     /* of the file that are memory */
	uint64_t requested; /* by the caller; less or the same */
	uint32_t kind, device;
	int32_t handle_types, location_type, location_id;
	uint32_t maker; /* process slot and its generation */
	uint64_t maker_life;
	_Atomic uint8_t touched[];
};

struct sim_process {
	uint32_t used;
	int32_t pid;
	uint64_t life; /* no two processes have the same */
	uint64_t died; /* when somebody saw that; ns, 0: nobody */
	char name[16];
};

/* Bytes that a running operation reads or writes. */
struct sim_interval {
	_Atomic uint32_t used; /* 0, or slot of the process + 1 */
	uint32_t write;
	uint64_t space; /* what the offsets are of: a segment, a file, or one process's memory */
	uint64_t begin, end;
	uint64_t life, op;
	char what[40];
};

struct sim_fault {
	_Atomic uint32_t used;
	uint32_t function, action;
	char program[16];
	uint32_t skip, times;
	_Atomic uint32_t hits;
	uint64_t value;
};

struct sim_device {
	_Atomic uint32_t gone, ecc;
	_Atomic uint32_t stalled[2];
	uint64_t free_at[2]; /* when the engine has done what was begun; ns */
};

struct sim_state {
	uint64_t magic;
	uint32_t version, ready;
	uint64_t nonce;
	struct cudadrv_config config;
	_Atomic uint64_t oom_below;
	_Atomic uint32_t n_faults;
	_Atomic uint32_t steps; /* that may be taken */
	_Atomic uint32_t stepped;
	_Atomic uint64_t reports[CUDADRV_REPORTS_N];
	_Atomic uint64_t calls[SIM_FUNCTIONS];
	uint64_t next_segment, next_life;
	struct sim_fault fault[SIM_FAULTS];
	struct sim_device device[SIM_DEVICES];
	struct sim_process process[SIM_PROCESSES];
	uint32_t segments; /* of the table that were ever used */
	uint32_t running;  /* likewise */
	struct sim_segment segment[SIM_SEGMENTS];
	struct sim_interval interval[SIM_RUNNING];
};

/* One process's view of it. */
struct sim_shared {
	int folder, fd;
	struct sim_state *s;
	pthread_mutex_t mutex; /* threads of this process; the lock on the file is for the others */
};

/* What holds a segment: its meta page, mapped through a locked description. */
struct sim_ref {
	struct sim_meta *meta; /* NULL: holds nothing */
	size_t meta_bytes;
};

uint64_t sim_now(void);
void sim_uuid(const struct sim_state *s, uint32_t device, uint8_t ret_uuid[16]);
uint64_t sim_random(uint64_t *seed);

/* -ENOENT: not made yet. */
int sim_shared_open(const char *folder, struct sim_shared *ret_sh);
int sim_shared_make(const char *folder, const struct cudadrv_config *config);
void sim_shared_close(struct sim_shared *sh);
/*
 * In a child of fork(): a description of its own. What its parent has locked by the common one when it is killed would
 * stay locked for as long as the child lives.
 */
void sim_shared_renew(struct sim_shared *sh);
void sim_lock(struct sim_shared *sh);
void sim_unlock(struct sim_shared *sh);

/* ---- locked ---- */

/* Forgets segments that nobody holds; bytes of `device` that are held. */
uint64_t sim_sweep(struct sim_shared *sh, uint32_t device);
uint32_t sim_count(struct sim_shared *sh);
/* Makes one, all its fields but id and magic from `like`. -ENOMEM */
int sim_segment_make(struct sim_shared *sh, const struct sim_meta *like, struct sim_ref *ret_ref);
/* A process's slot; *ret_fd holds it. -EUSERS */
int sim_process_join(struct sim_shared *sh, uint32_t *ret_slot, int *ret_fd);
/* Does it still live? Notes when it was first seen dead. */
bool sim_process_lives(struct sim_shared *sh, uint32_t slot, uint64_t life);

/* ---- not locked ---- */

/* A new description of a segment that is held; the lock lives as long as it. */
int sim_segment_open(struct sim_shared *sh, uint64_t id);
/* The segment that a descriptor is of; -EINVAL: of none. */
int sim_segment_of(struct sim_shared *sh, int fd, uint64_t *ret_id);
int sim_ref_take(struct sim_shared *sh, uint64_t id, struct sim_ref *ret_ref);
void sim_ref_drop(struct sim_ref *ref);
/* Its bytes, mapped; they stay held until they are unmapped. MAP_FAILED with errno */
void *sim_segment_map(struct sim_shared *sh, const struct sim_meta *meta);
/* Legacy IPC: a second byte of the file says that somebody has it open. */
int sim_segment_share(int fd);
bool sim_segment_shared(struct sim_shared *sh, uint64_t id);

/* Counts a report and writes its line. */
void sim_report(
	struct sim_shared *sh, enum cudadrv_report kind, const char *program, const char *text);

/* A fault that strikes here and now: its number, or -1. */
int sim_fault_strikes(struct sim_shared *sh, uint32_t function, const char *program);

#endif
