/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client on a CUDA device: what the files cuda*.c share, and what the rest of the library calls.
 *
 * Its thread does all that is slow: it makes a lane for each attachment, in which that one's device memory is mapped,
 * its vaults are registered and its page's timelines are known to the device; it lets go of what the daemon retires;
 * it follows streams whose bytes are on their way to slots. A second one watches words of host memory: marks that
 * streams write, and tickets that streams wait for. It makes no call of the driver, which may take milliseconds to map
 * memory, and may wait for such a stream meanwhile. Callers' threads look things up in lanes and enqueue.
 *
 * Which lanes a caller may look into: that of the attachment of a prefix that it holds. A lane counts among
 * its attachment's refs, and goes when the attachment is dead and no handle and no lease is left of it.
 *
 * Locks, beside those of client.h, in this order: stage_lock (the library's pinned memory and its events, the
 * order of values of timelines), ring_lock, cuda_lock of the client (the list of these, and what they share),
 * lock (maps, waits). The driver is called with stage_lock held, and with none of the others; but the page of an
 * attachment is registered under cuda_lock, which takes no time.
 */
#ifndef KVP_CLIENT_CUDA_H
#define KVP_CLIENT_CUDA_H

#include "gpu/kvp_cu.h"
#include "libclient/client.h"
#include "libclient/kvpool_cuda.h"

#define CUDA_LANES    8u
#define CUDA_WINDOWS  16u
#define CUDA_BATCHES  256u
#define CUDA_LANDINGS 4096u
#define CUDA_WAITS    32u
#define CUDA_PIECE    (UINT64_C(256) << 20) /* registered at a time */

/* ---- lanes ----------------------------------------------------------------------------------- */

#define REG_NONE    0u
#define REG_COMING  1u
#define REG_THERE   2u
#define REG_REFUSED 3u /* by the driver; not again, until the extent is another one */

/* A vault that is registered. `state` and `drop` change under cuda_lock, the rest is the owner's. */
struct cuda_reg {
	KVP_ATOMIC(uintptr_t) base; /* of all of it; 0: not to be relied on */
	uintptr_t at;
	uint64_t bytes;
	uint64_t done;
	uint32_t state;
	uint32_t drop; /* the daemon wants it back */
};

/*
 * An attachment's memory that the driver knows. Registering is for a whole process: several devices of a
 * client share it, and the thread of one of them, the owner, does the work.
 */
struct host_regs {
	struct kvp_cuda *owner; /* NULL: whoever comes first */
	uint32_t lanes;         /* of the attachment */
	uint32_t page;          /* its timelines are registered */
	struct cuda_reg reg[KVP_MAX_EXTENTS];
};

#define MAP_NONE   0u
#define MAP_COMING 1u
#define MAP_THERE  2u
#define MAP_FAILED 3u

/* An extent on the device. `state`, `hidden` and `drop` change under lock, the rest before `base` is stored. */
struct cuda_map {
	KVP_ATOMIC(uint64_t) base; /* 0: not to be used */
	uint64_t at;
	uint64_t bytes;
	uint64_t slot_bytes;
	int64_t first_slot; /* of the window; -1: it lies outside */
	uint32_t legacy;    /* opened by a handle */
	uint32_t generation;
	uint32_t state;
	uint32_t hidden; /* the daemon wants it back: nobody is told of it any more, */
	uint32_t drop;   /* and nobody is left who may be reading there */
};

struct lane {
	struct attachment *att;
	KVP_ATOMIC(uint32_t)
	device;             /* the daemon's number, or KVP_CUDA_NO_DEVICE; see lane_device() */
	uint64_t done_page; /* its timelines as the device sees them; 0: it does not */
	struct host_regs *host;
	struct cuda_map map[KVP_MAX_EXTENTS];
};

/* ---- the library's pinned memory ------------------------------------------------------------- */

/* Bytes that are copied on when their batch has come. */
struct landing {
	void *dst;
	const void *src;
	uint64_t bytes;
};

/* What one call has enqueued that needs the library's memory; first in, first out. */
struct batch {
	struct CUevent_st *event;
	uint64_t end;              /* of its part of the memory */
	uint32_t landings;         /* 0: the bytes go to the device */
	struct attachment *att;    /* of the landings' slots, with a reference; NULL: none */
	struct kvp_timeline *line; /* reaches value then; NULL: none */
	uint64_t value;
};

/* ---- the whole ------------------------------------------------------------------------------- */

struct cuda_window {
	uint64_t slot_bytes;
	uint64_t base;
	uint64_t bytes;
};

/* A descriptor that came from the daemon. */
struct arrival {
	struct arrival *next;
	struct attachment *att;
	struct kvp_msg_extent x;
	int fd;
	/* Of attachment.owns: the daemon is to be told that it can be written, and has been. */
	uint32_t to_ack, acked;
};

/* A stream that waits for a ticket: for word number i to reach value. lock */
struct cuda_wait {
	struct kvp_ticket ticket;
	uint64_t deadline;
	uint64_t value;
	uint32_t used;
};

/* Words of host memory that streams write and wait for; each has a cache line. */
struct cuda_words {
	struct kvp_timeline_word mark[KVP_TIMELINES]; /* of timelines while there is no lane */
	struct kvp_timeline_word ready[CUDA_WAITS];
};

/* A thread that sleeps between its looks, and is woken for what it would find too late. */
struct sleeper {
	int kick;
	KVP_ATOMIC(uint32_t) asleep;
};

struct kvp_cuda {
	struct kvp_client *client;
	struct kvp_cuda *next; /* of the client; cuda_lock */
	struct kvp_cu cu;
	struct CUctx_st *ctx;
	int ordinal;
	uint8_t uuid[16];
	uint32_t words_work; /* streams write and wait for words */
	uint32_t registers;  /* memory that may only be read can be registered */
	uint64_t granularity;
	uint64_t window_bytes;
	uint32_t timeout_ms;
	KVP_ATOMIC(uint32_t) lost;
	KVP_ATOMIC(int32_t) driver_error;
	KVP_ATOMIC(uint64_t) direct_bytes;
	KVP_ATOMIC(uint64_t) staged_bytes;
	KVP_ATOMIC(uint64_t) placed_bytes; /* into slots on the device */
	KVP_ATOMIC(uint64_t) displaced;    /* blocks that were to go there, and went to DRAM */
	KVP_ATOMIC(struct lane *) lanes[CUDA_LANES]; /* the thread's to change, under ring_lock */

	pthread_mutex_t lock;
	pthread_cond_t changed; /* with lock: the thread has done something */
	struct arrival *arrivals;
	uint64_t mapped_bytes;
	uint32_t unguarded; /* an extent could not be mapped for reading alone */
	uint32_t settled;   /* all that there was at the last look is mapped and registered */
	uint64_t looks;     /* so far */
	struct cuda_wait waits[CUDA_WAITS];
	struct cuda_window windows[CUDA_WINDOWS];

	/* The kernel that copies from one place of the device to another; NULL: the driver does. */
	struct CUmod_st *module;
	struct CUfunc_st *runs;

	pthread_mutex_t stage_lock;
	uint8_t *stage;
	uint64_t stage_bytes;
	uint64_t stage_head, stage_begun, stage_tail; /* counted on; begun: of the batch to come */
	uint64_t batch_head, batch_tail;
	uint32_t followed; /* batches that the thread has to see the end of */
	uint64_t landing_head, landing_begun, landing_tail; /* begun: of the batch to come */
	struct batch batches[CUDA_BATCHES];
	struct landing landings[CUDA_LANDINGS];

	struct cuda_words *words;
	uint64_t words_dev;

	pthread_t thread, watcher; /* cuda_thread(), watch_thread() */
	struct sleeper work, watch;
	/* The watcher's: since when nothing has come of what somebody waits for. */
	uint64_t awaited_ns, awaited_sum;
	uint32_t acks; /* the thread's: the daemon has to be told of arenas, see acks_serve() */
	KVP_ATOMIC(uint32_t) closing;
	KVP_ATOMIC(uint32_t) dirty; /* memory has come, or is to go: all of it is to be looked at */
};

static inline struct lane *lane_of(const struct kvp_cuda *cuda, const struct attachment *att)
{
	for (uint32_t i = 0; i < CUDA_LANES; i++) {
		struct lane *l = kvp_load_acquire(&cuda->lanes[i]);

		if (l && l->att == att)
			return l;
	}
	return NULL;
}

/* ---- cuda.c ---------------------------------------------------------------------------------- */

/* The daemon's number of the device, which it may come to know late: its worker has to tell first. */
uint32_t lane_device(const struct kvp_cuda *cuda, struct lane *lane);
/* Notes an error of the driver and says it in errno's numbers; 0 for CU_OK. */
int cuda_error(struct kvp_cuda *cuda, int error);
/*
 * Around calls of the driver on a caller's thread, which has any context or none. *ret_pushed is what
 * cuda_leave() takes. -ENODEV: lost.
 */
int cuda_enter(struct kvp_cuda *cuda, int *ret_pushed);
void cuda_leave(struct kvp_cuda *cuda, int pushed);
/* Is it one that can be used here? -EINVAL, -ECHILD. */
int cuda_usable(const struct kvp_cuda *cuda);
/* -EBUSY: the stream is being captured. */
int cuda_capturing(struct kvp_cuda *cuda, struct CUstream_st *stream);
/* Has the thread look once more; a system call only if it sleeps. Any lock may be held. */
void sleeper_stir(struct sleeper *s);
/* The thread's own: at its beginning; */
void sleeper_begin(const char *name);
/* between these it is asleep to sleeper_stir(): it looks once more, and then sleeps so long, 0: until it is stirred. */
void sleeper_lies_down(struct sleeper *s);
void sleeper_sleep(struct sleeper *s, uint64_t us);
/* Has it look at memory. Any lock may be held. */
void cuda_rouse(struct kvp_cuda *cuda);

/* ---- cuda_map.c ------------------------------------------------------------------------------ */

/* The thread's: takes what has arrived, lets go of what is to go. */
void maps_serve(struct kvp_cuda *cuda);
/* The thread's: tells daemons which arenas can be written. 1: a socket has no room for that now. */
int acks_serve(struct kvp_cuda *cuda);
/* Asks for all that lies on the lane's device; what this client writes there has come already. */
void maps_want(struct kvp_cuda *cuda, struct lane *lane);
/* The lane goes, and what it maps. */
void maps_drop(struct kvp_cuda *cuda, struct lane *lane);
/* lock. Is all mapped that can be? */
int maps_settled(struct kvp_cuda *cuda);
void windows_free(struct kvp_cuda *cuda);
/* Where block i of the prefix lies on the device; NULL: not there, or not mapped yet. */
const struct cuda_map *map_of(const struct kvp_prefix *m, struct lane *lane, uint32_t i,
	struct kvp_hit *ret_hit, uint64_t *ret_addr);

/* ---- cuda_host.c ----------------------------------------------------------------------------- */

/* A lane begins, and ends: -ENOMEM. The context is current. */
int host_begin(struct kvp_cuda *cuda, struct lane *lane);
void host_drop(struct kvp_cuda *cuda, struct lane *lane);
/* The thread's: registers a piece, or lets go of one. 1: there is more to do. */
int host_serve(struct kvp_cuda *cuda);
/* Is all registered that may be? */
int host_settled(struct kvp_cuda *cuda);
/* cuda_lock. Has the owner let go of it, in a while. 1: it is still registered. */
int host_held(struct attachment *att, uint32_t extent);
/* Is [addr, addr + bytes), in this extent of the lane, registered? *ret_base: where its pieces begin. */
int host_registered(const struct lane *lane, uint32_t extent, const uint8_t *addr, uint64_t bytes,
	uintptr_t *ret_base);

/* ---- cuda_stage.c ---------------------------------------------------------------------------- */

int stage_open(struct kvp_cuda *cuda, uint64_t bytes);
void stage_close(struct kvp_cuda *cuda);
/*
 * stage_lock held, and the context current. Room for what one call enqueues, at the end of what it has
 * already; -EAGAIN: there is none now; -E2BIG: there never is so much.
 */
int stage_take(struct kvp_cuda *cuda, uint64_t bytes, uint8_t **ret_at);
/* stage_lock. Is there a place for one more batch, with so many landings? */
int stage_batch_free(struct kvp_cuda *cuda, uint32_t landings);
/* stage_lock. A landing of the next batch. */
void stage_land(struct kvp_cuda *cuda, void *dst, const void *src, uint64_t bytes);
/*
 * stage_lock. The call has enqueued all of its batch on the stream. Where the timeline is not NULL it reaches its next
 * value with the batch; `att` is that of the landings' slots.
 */
int stage_end(struct kvp_cuda *cuda, struct CUstream_st *stream, struct attachment *att,
	struct kvp_timeline *line, uint64_t *ret_value);
/* The thread's. 1: bytes are on their way to slots. */
int stage_serve(struct kvp_cuda *cuda);

/* ---- cuda_stream.c --------------------------------------------------------------------------- */

/* The other thread, until watch_stop(), after which there is none. */
void *watch_thread(void *cuda);
void watch_stop(struct kvp_cuda *cuda);
/* Streams that still wait go on. */
void waits_end(struct kvp_cuda *cuda);

/* ---- for the rest of the library ------------------------------------------------------------- */

/* The library's thread. The daemon has sent an extent of a device; the descriptor stays the caller's. */
void cuda_extent_came(struct attachment *att, const struct kvp_msg_extent *x, int fd);
/* Has the client one on this device? What a daemon that has just come has there is mapped in a moment. */
int cuda_reaches(struct kvp_client *client, const struct kvp_shm_device *device);
/* The attachment goes. */
void cuda_owns_free(struct attachment *att);
/* The library's thread. Nobody finds it any more. 1: it is mapped somewhere. */
int cuda_extent_hide(struct attachment *att, const struct kvp_msg_id *id);
/* The library's thread. Has it let go, in a while. 1: it is still mapped or registered. */
int cuda_extent_held(struct attachment *att, uint32_t id);
/* Any thread, ring_lock held or not: attachments or extents have changed. */
void cuda_notice(struct kvp_client *client);
/* ring_lock. Looks how far a timeline of a device has come. */
void cuda_look(struct kvp_timeline *timeline);
/* ring_lock. More than leases waits for a timeline of a device now. */
void cuda_hasten(struct kvp_timeline *timeline);
/*
 * A block for a slot: copies it on the stream, and says when it will be there. As view_to_payload().
 * -EAGAIN: no room now; else as kvp_cuda_put().
 */
int cuda_block_to_slot(struct kvp_cuda *cuda, const struct kvp_grant *grant, uint32_t n,
	const struct kvp_view *view, uint64_t user, struct CUstream_st *stream,
	struct kvp_timeline *line, uint64_t *ret_value);
/* A slot on the device, and tokens [user, user + n) of a view that go there. */
struct cuda_slot {
	uint64_t at;
	uint64_t user;
	uint32_t n;
};
/*
 * Blocks for slots on the device, all at once. *ret_value is when they are there; 0: nothing was enqueued. With an
 * error and a value some may be on their way: nobody else may have the slots before, which is never if the device is lost.
 */
int cuda_blocks_to_slots(struct kvp_cuda *cuda, const struct geometry *geo,
	const struct cuda_slot *slots, uint32_t n_slots, const struct kvp_view *view,
	struct CUstream_st *stream, struct kvp_timeline *line, uint64_t *ret_value);
/* ring_lock. What grants of the device are of, as grant_reserve_there() takes it; 0: the daemon has no such device. */
uint32_t cuda_medium(struct kvp_cuda *cuda, const struct attachment *att);
/* ring_lock. Where this one has the grant's slot, which another of the client's may have elsewhere; 0: not now. */
uint64_t cuda_slot_at(const struct kvp_cuda *cuda, const struct kvp_grant *grant);
/* kvp_close(). */
void cudas_close(struct kvp_client *client);

#endif
