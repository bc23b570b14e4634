/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the simulated driver: one process's contexts, mappings, streams and handles. All of it is
 * guarded by sim.lock, which every entry point takes in sim_enter(), and the runner between slices of
 * work. Order of locks: sim.lock, then the shared state's.
 */
#ifndef TESTS_CUDADRV_SIM_H
#define TESTS_CUDADRV_SIM_H

#include <pthread.h>

#include "kernels/cuda/kvp_cuda_kernels.h"
#include "tests/cudadrv/state.h"

#define SIM_EXPORT __attribute__((visibility("default")))

/* The driver's functions are those that the project's programs look for, as its header has them. */
#define SIM_DECLARE(name, args) SIM_EXPORT int name args;
CU_FUNCTIONS(SIM_DECLARE)
CU_OPTIONAL(SIM_DECLARE)
#undef SIM_DECLARE

/* Errors that only the driver itself has to name; the others are gpu/kvp_cu.h's. */
#define SIM_OUT_OF_SLOTS     304 /* CUDA_ERROR_OPERATING_SYSTEM */
#define SIM_ERR_BAD_DEVICE   101
#define SIM_ERR_BAD_IMAGE    200
#define SIM_ERR_MAPPED       208
#define SIM_ERR_NOT_FOUND    500
#define SIM_ERR_ADDRESS      700
#define SIM_ERR_MISALIGNED   716
#define SIM_ERR_LAUNCH       719
#define SIM_ERR_INVALIDATED  901
#define SIM_ERR_UNMATCHED    903
#define SIM_ERR_UNJOINED     904
#define SIM_ERR_IMPLICIT     906
#define SIM_ERR_WRONG_THREAD 908
#define SIM_ERR_UNKNOWN      999

struct sim_capture;
struct sim_op;

struct CUctx_st {
	int device;
	uint32_t retained;
	unsigned int flags;
	uint32_t ecc; /* errors of the device's memory before this context */
	struct sim_ref cost;
	struct CUstream_st *null_stream;
};

struct CUstream_st {
	struct CUstream_st *next;
	struct CUctx_st *ctx;
	unsigned int flags;
	bool live; /* not destroyed */
	uint64_t last, done;
	struct sim_op *first, **end;
	struct sim_capture *capture;
	uint64_t captured; /* operations of it that a capture took */
	uint64_t joined;   /* of these, what the capture's first stream has waited for */
};

struct CUevent_st {
	struct CUevent_st *next;
	struct CUctx_st *ctx;
	unsigned int flags;
	bool live;
	struct CUstream_st *stream; /* of the last record; NULL: never */
	uint64_t seq, ns;
	struct sim_capture *capture; /* recorded within */
	uint64_t captured;
};

/* Addresses at which a device sees something. */
struct sim_map {
	struct sim_map *next;
	uint64_t at, bytes;
	uint64_t requested; /* an access beyond is out of range */
	struct sim_ref ref;
	uint8_t *alias;
	uint8_t prot[SIM_DEVICES];
	bool cpu; /* host memory that the processor may touch at `at` */
	bool ipc; /* opened from a legacy handle */
	uint32_t opened;
	uint32_t running;
	uint32_t reachable; /* by kernels that run and say only while they do what they touch */
	int ipc_fd;
};

/* Host memory that is registered, or the driver's own. */
struct sim_host {
	struct sim_host *next;
	uint8_t *p;
	uint64_t bytes, device_at;
	unsigned int flags;
	bool own;
	uint32_t running, reachable;
	uint64_t space, offset; /* for hazards: the file behind it, or 0 */
	int pin[2];
};

struct sim_reservation {
	struct sim_reservation *next;
	uint64_t at, bytes;
};

struct sim_handle {
	struct sim_handle *next;
	uint64_t number;
	uint32_t references;
	struct sim_ref ref;
};

struct sim_dep {
	struct CUstream_st *stream;
	uint64_t seq;
};

struct sim_copy {
	uint64_t to, from;
	size_t bytes;
	bool to_host, from_host; /* else addresses of the device */
};

struct sim_kernel;

/* What a run of bytes lies in, for the time that it is worked on. */
struct sim_run {
	uint8_t *p;
	size_t bytes;
	struct sim_map *map;
	struct sim_host *host;
	uint64_t space, offset;
};

#define SIM_PARAMS 5
enum sim_op_kind { SIM_COPY, SIM_SET, SIM_KERNEL, SIM_WRITE, SIM_WAIT, SIM_RECORD, SIM_NOTHING };

struct sim_op {
	struct sim_op *next;
	enum sim_op_kind kind;
	struct CUstream_st *stream;
	uint64_t seq;
	struct sim_dep *dep;
	uint32_t deps;
	struct sim_copy *copy; /* n of them; SET: `to` and bytes of the first */
	size_t n;
	uint64_t value; /* SET, WRITE, WAIT */
	uint64_t at;    /* WRITE, WAIT */
	unsigned int flags;
	const struct sim_kernel *kernel;
	uint64_t param[SIM_PARAMS];
	struct CUevent_st *event;
	/* a kernel of the project's: its parameters are a copy */
	const struct kvp_cuda_kernel *project;
	struct kvp_cuda_shape shape;
	void *params;
	struct sim_held {
		struct sim_map *map;
		struct sim_host *host;
	} * held;
	uint32_t helds;
	/* once it runs */
	bool begun;
	int error;
	const struct sim_fault *hangs_by; /* as long as it is set */
	uint64_t begun_ns, until_ns;
	struct sim_run *to, *from;
	size_t runs, room, next_run;
	size_t next_byte;
	uint64_t wrong; /* words; kernels that check */
	uint32_t *interval;
	uint32_t intervals;
};

struct sim {
	pthread_mutex_t lock;
	pthread_cond_t done; /* an operation ended, or a sticky error came */
	pthread_cond_t work;
	struct sim_shared shared;
	bool opened, inited, forked, running, stopping;
	int sticky;
	uint32_t slot;
	uint64_t life;
	int life_fd;
	uint64_t seed, slices;
	struct CUctx_st ctx[SIM_DEVICES];
	struct CUstream_st *streams;
	struct CUevent_st *events;
	struct sim_map *maps;
	struct sim_host *hosts;
	struct sim_reservation *reservations;
	struct sim_handle *handles;
	uint64_t next_handle;
	struct sim_capture *captures; /* under way */
	pthread_t runner;
	uint64_t next_op;
};
extern struct sim sim;

/* What a call needs. */
#define SIM_ANY    0u
#define SIM_INIT   1u
#define SIM_CTX    2u /* a current context; its device is not in a sticky error */
#define SIM_UNSAFE 4u /* forbidden while somebody captures, by the thread's mode */

/* ---- process.c ---- */

/* 0: sim.lock is held, go on to sim_leave(); else the error that the call returns. */
int sim_enter(enum sim_function function, unsigned int need);
int sim_leave(int r);
#define SIM_CALL(name, need, work)            \
	int r_ = sim_enter(SIM_##name, need); \
	return r_ == CU_OK ? sim_leave(work) : r_

struct CUctx_st *sim_current(void);
/* A report; formatted. */
__attribute__((format(printf, 2, 3))) void sim_says(
	enum cudadrv_report kind, const char *format, ...);
/* The same, and the error that the caller returns. */
#define sim_refuse(error, ...) (sim_says(__VA_ARGS__), (error))
/* The process's sticky error from now on; whoever waits is woken. */
void sim_break(int error);
int sim_device_ok(int device);
/* Breaks if a device of this process is gone or had an error of its memory. */
void sim_watch_devices(void);
/* A stream that is alive and of the current context; NULL after a report. */
struct CUstream_st *sim_stream(struct CUstream_st *stream, int *ret_error);

/* ---- capture.c ---- */

bool sim_capture_forbids(void);
void sim_capture_spoil(void);
/* Is a stream captured that the default stream waits for? */
bool sim_capture_of_blocking(void);
/* The stream's capture takes the operation (and owns it). */
int sim_capture_take(struct CUstream_st *stream, struct sim_op *op);
int sim_capture_record(struct CUstream_st *stream, struct CUevent_st *event);
int sim_capture_wait(struct CUstream_st *stream, struct CUevent_st *event);
void sim_capture_spoiled_by(struct CUstream_st *stream);

/* ---- space.c ---- */

#define SIM_READ         0
#define SIM_WRITE_ACCESS 1
/*
 * The first run of the bytes at an address of the device, for an operation: NULL-sized and an error
 * (after a report) if there is none. `device`: whose access is asked for.
 */
int sim_resolve(uint64_t at, size_t bytes, int access, int device, struct sim_run *ret_run);
/* Host addresses always resolve. */
void sim_resolve_host(uint64_t at, size_t bytes, struct sim_run *ret_run);
/* Is there anything of the device at all? For checks when something is enqueued. */
bool sim_is_mapped(uint64_t at, size_t bytes);
struct sim_map *sim_map_at(uint64_t at);
struct sim_host *sim_host_at(uint64_t at, size_t bytes);
struct sim_host *sim_host_device_at(uint64_t at, size_t bytes);
/* Bytes are about to be read or partly written: what is fresh there becomes poison. */
void sim_touch(const struct sim_run *run, bool covers);
/* Waits until nothing that runs uses it; reports if there was anything. */
void sim_quiesce_map(struct sim_map *map, const char *what);
void sim_quiesce_host(struct sim_host *host, const char *what);

/* ---- stream.c ---- */

struct sim_op *sim_op_new(enum sim_op_kind kind, size_t copies);
struct sim_op *sim_op_clone(const struct sim_op *op);
void sim_op_free(struct sim_op *op);
/* Takes the operation. 0 or an error; *ret_seq may be NULL. */
int sim_enqueue(struct CUstream_st *stream, struct sim_op *op);
/* Until the stream has come so far. Gives the lock away meanwhile; the sticky error, if one came. */
int sim_wait(struct CUstream_st *stream, uint64_t seq);
struct CUstream_st *sim_stream_new(struct CUctx_st *ctx, unsigned int flags);
/* The context is destroyed: its streams, but the default one, and its events are no more. */
void sim_stream_end(struct CUctx_st *ctx);
bool sim_work_at(uint64_t at, uint64_t bytes);

/* ---- run.c: what the runner does with an operation, in slices ---- */

/* FAILED: with op->error, which becomes the sticky one. */
enum sim_slice { SIM_MORE, SIM_IDLE, SIM_DONE, SIM_FAILED };
/* Resolves addresses, takes intervals and the engine. An error is the process's sticky one. */
int sim_op_begin(struct sim_op *op);
enum sim_slice sim_op_slice(struct sim_op *op);
void sim_op_end(struct sim_op *op);

/* ---- hazards.c ---- */

void sim_hazard_begin(struct sim_op *op);
void sim_hazard_end(struct sim_op *op);
/* Forgets what the dead have left; the shared state is locked. Every process does so as it begins. */
void sim_hazard_sweep(void);
const char *sim_op_name(const struct sim_op *op);

/* ---- kernels.c ---- */

struct sim_kernel {
	const char *name;
	uint32_t params;
	bool writes; /* to (param 0, param 1) or to the word at param 0 */
	bool word;   /* works on the word at param 0 alone */
	bool counts; /* adds to the word at param 3 */
};
const struct sim_kernel *sim_kernel_find(const char *name);
enum sim_slice sim_kernel_slice(struct sim_op *op);

/* ---- project.c: kernels of kernels/cuda ---- */

const struct kvp_cuda_kernel *sim_project_find(const char *name);
int sim_project_begin(struct sim_op *op);
int sim_project_run(struct sim_op *op);
void sim_project_end(struct sim_op *op);

#endif
