/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver "cuda": segments are memory of one GPU. What its parts share: driver_cuda.c has segments,
 * the context and the table of operations, cuda_copy.c the threads that copy, one each way, cuda_pin.c
 * the one that pins DRAM, cuda_sum.c reads what is to be compared with its checksum.
 *
 * Segments are made with the virtual memory calls and leave as descriptors, which keep the memory alive
 * without this process; or, as the second choice, with cuMemAlloc() and legacy handles, which do not.
 * The process has a context from its first segment, copy or pin on, and none at all with no_copies.
 *
 * DRAM that may be pinned is, piece by piece, and copied directly where it is pinned by then; all else
 * goes through staging buffers. Any error that ends the process's use of the device is kept in `lost`,
 * which the next call of poll(), or of whatever asks, returns as -ENODEV.
 */
#ifndef KVPD_CUDA_H
#define KVPD_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/device/device.h"
#include "daemon/device/driver.h"
#include "gpu/kvp_cu.h"

#define CUDA_PIN_PIECE (UINT64_C(256) << 20)
/*
 * On an H100 it takes up to .3 ms from the end of a batch until the next one has come (a thread wakes, the daemon is
 * told, and answers), and .15 ms to copy 8 MiB: three batches bridge that. With two of 4 MiB the link was idle for a
 * third of the time (docs/gpu-results.md).
 */
#define CUDA_BATCH_BYTES (UINT64_C(8) << 20)
#define CUDA_STAGE_BYTES (UINT64_C(32) << 20)
#define CUDA_STAGES      2u                  /* each way */
#define CUDA_RUN         KVPD_DRIVER_BATCH   /* pieces that are handed to the driver at once */
#define CUDA_SUM_BYTES   (UINT64_C(2) << 20) /* of the scratch of sums, one of the */
#define CUDA_SUMS        2u

struct cuda_batch;

struct cuda_segment {
	uint64_t addr; /* 0: none, or not mapped */
	uint64_t bytes;
};

struct cuda_host {
	char *addr; /* NULL: none */
	uint64_t bytes;
	bool writable;
	bool pin;                 /* it is to be pinned, */
	bool leave;               /* or not any more */
	_Atomic(uint64_t) pinned; /* bytes from its beginning on, in whole pieces but the last */
};

/* A place through which bytes go that are not pinned. */
struct cuda_stage {
	char *buf; /* NULL until it is needed */
	struct CUevent_st *event;
	uint64_t fill;
	bool under_way;           /* `event` was recorded after its last copy */
	struct cuda_batch *batch; /* whose bytes are in it; NULL: nobody's */
	/* To the host: what is to be taken out once it is there. */
	uint32_t n_out;
	struct {
		char *to;
		uint64_t off, bytes;
	} out[CUDA_RUN];
};

struct cuda_batch {
	enum { CUDA_FREE, CUDA_QUEUED, CUDA_ISSUED } state;
	uint64_t id;
	uint64_t seq;
	uint64_t began_ns;
	uint32_t n;
	int status;
	uint32_t looks; /* at its end, while nothing else was under way */
	struct CUevent_st *event;
	struct kvpd_copy copy[KVPD_DRIVER_BATCH];
};

struct cuda_way {
	struct kvpd_driver *d;
	uint32_t way;
	pthread_t thread;
	bool started;
	pthread_mutex_t lock; /* batches' states, done, stop */
	pthread_cond_t cond;
	bool stop;
	uint64_t seq;
	struct cuda_batch batch[KVPD_DRIVER_FLIGHT];
	struct kvpd_done done[KVPD_DRIVER_FLIGHT]; /* polled by nobody yet */
	uint32_t n_done;
	/* The thread's. */
	struct CUstream_st *stream;
	bool ready; /* the context is current, the stream is there */
	bool loop;  /* the driver takes no batches */
	struct cuda_stage stage[CUDA_STAGES];
	uint32_t at;    /* the stage that is being filled */
	uint32_t n_run; /* pieces that are not handed over yet */
	uint64_t to[CUDA_RUN], from[CUDA_RUN];
	size_t bytes[CUDA_RUN];
};

struct cuda_pinner {
	pthread_t thread;
	bool started;
	pthread_mutex_t lock; /* all of hosts that `pinned` does not say by itself */
	pthread_cond_t cond;
	bool stop;
	uint32_t busy; /* the extent that is being pinned or let go; KVPD_DEVICE_SEGS: none */
	bool changed;  /* the table is to be looked through once more */
};

/* Reads segments for their sums; the worker's thread for these has it to itself. */
struct cuda_summer {
	struct kvp_summing *summing;
	struct CUstream_st *stream;
	struct CUevent_st *event[CUDA_SUMS];
	void *buf[CUDA_SUMS]; /* pinned; NULL until they are needed */
	bool current;         /* the context is this thread's */
};

struct kvpd_driver {
	struct kvp_cu cu;
	int device;
	bool ipc, copies;
	uint64_t bytes, used; /* that may be taken, that are */
	uint64_t granularity;
	int32_t numa_node;
	uint8_t uuid[16];
	struct CUctx_st *ctx; /* NULL until it is needed */
	uint64_t context;     /* its bytes; KVPD_NO_FIGURE */
	int event;
	_Atomic(int) lost; /* the error; CU_OK */
	struct kvpd_driver_loss *loss;
	/* A segment in the making. */
	struct {
		bool open;
		uint32_t id;
		uint64_t handle; /* of VMM; 0: none any more */
		uint64_t addr, bytes;
		bool mapped, zeroing;
		struct CUstream_st *stream;
		struct CUevent_st *event;
	} making;
	struct cuda_way way[KVPD_WAYS];
	struct cuda_pinner pinner;
	struct cuda_summer summer;
	struct cuda_segment seg[KVPD_DEVICE_SEGS];
	struct cuda_host host[KVPD_DEVICE_SEGS];
};

/* 0, or the negative errno of an error, which is kept if the device is lost by it. Any thread. */
int kvpd_cuda_check(struct kvpd_driver *d, int error);
/*
 * Nothing of the stream is under way any more, or the device counts as lost: then the process is to end, and what
 * the stream may write must be left as it is until then. Any thread.
 */
void kvpd_cuda_settle(struct kvpd_driver *d, struct CUstream_st *stream);

/* cuda_copy.c. A thread each way; the context is there before anything is submitted. */
int kvpd_cuda_copy_start(struct cuda_way *w, struct kvpd_driver *d, uint32_t way);
void kvpd_cuda_copy_stop(struct cuda_way *w);
int kvpd_cuda_copy_submit(
	struct cuda_way *w, uint64_t batch, const struct kvpd_copy *copies, uint32_t n);
uint32_t kvpd_cuda_copy_poll(struct cuda_way *w, struct kvpd_done *out, uint32_t max);

/* cuda_pin.c */
int kvpd_cuda_pin_start(struct kvpd_driver *d);
void kvpd_cuda_pin_stop(struct kvpd_driver *d);
/* It begins soon; until then, and wherever it cannot, copies go through the stages. */
void kvpd_cuda_pin(struct kvpd_driver *d, uint32_t id);
/* 0: nothing of it is pinned any more; -EAGAIN. */
int kvpd_cuda_unpin(struct kvpd_driver *d, uint32_t id);

/* cuda_sum.c: the operation; -ENOMEM of the start. */
int kvpd_cuda_sum_start(struct kvpd_driver *d);
void kvpd_cuda_sum_stop(struct kvpd_driver *d);
int kvpd_cuda_seg_sum(
	struct kvpd_driver *d, uint32_t id, uint64_t off, uint64_t bytes, uint64_t *ret_sum);

#endif
