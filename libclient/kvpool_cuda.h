/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine on an NVIDIA GPU calls besides kvpool.h: cached blocks copied to its own device memory and
 * back on its own streams, blocks that lie on the daemon's device read where they are, and leases and commits
 * that end with the work of a stream.
 *
 * A kvp_cuda belongs to a client and to one CUDA context of this process. The driver is found when the first
 * one is opened (libcuda.so.1, or what KVPOOL_LIBCUDA names); nothing is linked with it, and no header of it
 * is needed. `struct CUctx_st *` is CUcontext, `struct CUstream_st *` is CUstream and cudaStream_t.
 *
 * Three ways to a cached block, in the order of what they cost:
 * - It lies on the daemon's device: kvp_cuda_slots() or kvp_cuda_addrs() say where, kernels read it there.
 *   kvp_cuda_warm() has it copied there.
 * - It lies in a DRAM vault that is registered with the driver (kvp_host_register()): the device copies it
 *   from where it lies, by kvp_cuda_get(), kvp_cuda_load() or the engine itself (kvp_host_payloads()).
 * - It lies elsewhere in DRAM, in what a client wrote and nobody has moved yet: the same calls copy it through
 *   pinned memory of the library's own. Such memory itself is never registered: pages that a device has
 *   pinned could not be proven to be out of use.
 *
 * Conventions are those of kvpool.h, and:
 * - Calls that take a stream enqueue and return. They map, allocate and wait for nothing, and may be made from
 *   any thread; its current context need not be the kvp_cuda's. NULL is the default stream of the context.
 * - What was enqueued reads and writes memory after the call. So hold the prefix, and the grants, until the
 *   stream has come there: kvp_cuda_mark() after the last use, then kvp_release_after() at that value.
 * - A stream that is being captured is refused (-EBUSY): which blocks are read and where they lie is decided
 *   anew for every launch. Put these calls before and after the launch of a graph.
 * - -EIO: the driver refused, kvp_cuda_info() has its number; -ENODEV: the device is lost to this process
 *   until it ends, as CUDA has it after a fault of a kernel. Calls that do not need it go on working.
 */
#ifndef KVPOOL_CUDA_H
#define KVPOOL_CUDA_H

#include "kvpool.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUctx_st;
struct CUstream_st;
struct kvp_cuda; /* a client on a device: kvp_cuda_open() to kvp_cuda_close() */

#define KVP_CLIENT_CUDAS 8u /* of one client at a time */

/* ---- open ------------------------------------------------------------------------------------ */

struct kvp_cuda_opts {
	size_t size;
	struct CUctx_st *
		context; /* NULL: the calling thread's current one. It must outlive the kvp_cuda. */
	/* Pinned memory of the library's own, for what is not registered. 0: 64 MiB. A multiple of 4096. */
	uint64_t stage_bytes;
	/* Addresses set aside for blocks on the device, for each size of slot. 0: three times its memory. */
	uint64_t window_bytes;
	uint32_t flags; /* 0 */
	/*
	 * How long kvp_cuda_open() waits for what lies on the daemon's device to be mapped, and
	 * kvp_cuda_stream_wait() lets a stream wait. 0: the client's default.
	 */
	uint32_t timeout_ms;
	char *error; /* as in kvp_open_opts */
	size_t error_bytes;
};

/*
 * Opens the context's device for the client. opts may be NULL. Allocates pinned memory and starts a thread,
 * which from then on does all that is slow: it maps and registers what comes, and follows streams; and one
 * more for streams that wait for tickets. Works without a daemon, and with one that has no such device.
 * -ENODEV: no driver, or it lacks something; -EINVAL: no context is current, or an option is wrong; -EMFILE:
 * the client has KVP_CLIENT_CUDAS; -ENOMEM; -EIO; -ECHILD.
 */
KVP_EXPORT int kvp_cuda_open(
	struct kvp_client *client, const struct kvp_cuda_opts *opts, struct kvp_cuda **ret_cuda);
/*
 * The caller's streams must have come to the end of what was enqueued with it: streams that wait go on,
 * and addresses end. Unregisters and unmaps, which may take long. Returns NULL; NULL is harmless.
 * kvp_close() closes those that are left: the context must still be there then.
 */
KVP_EXPORT struct kvp_cuda *kvp_cuda_close(struct kvp_cuda *cuda);

#define KVP_CUDA_NO_DEVICE UINT32_C(0xffffffff)

struct kvp_cuda_props {
	size_t size;
	uint8_t uuid[16];
	/* The daemon's number of it, or KVP_CUDA_NO_DEVICE, also while its worker has not come up yet. */
	uint32_t device;
	uint32_t stream_words; /* 1: streams write and wait for words; 0: this driver's cannot */
	uint64_t mapped_bytes; /* of the daemon's device memory, now */
	uint64_t registered_bytes; /* of DRAM vaults, now */
	uint64_t refused_bytes;    /* of them, that the driver would not register */
	uint64_t stage_bytes;
	/* Copied so far, enqueued ones included. */
	uint64_t direct_bytes;  /* from where it lay */
	uint64_t staged_bytes;  /* through the library's memory */
	int32_t driver_error;   /* the last one that the driver gave, 0: none */
	uint32_t reads_guarded; /* 1: what others wrote on the device is mapped for reading alone */
	uint64_t placed_bytes;  /* copied so far into slots on the daemon's device */
	uint64_t
		displaced_blocks; /* of KVP_PUT_ON_DEVICE, that found no room there: they went to DRAM */
};

/* No call of the driver. -EINVAL; -ECHILD. */
KVP_EXPORT int kvp_cuda_info(struct kvp_cuda *cuda, struct kvp_cuda_props *ret_props);

/* ---- DRAM ------------------------------------------------------------------------------------ */

/*
 * Has the tenant's DRAM vaults registered with the driver, for reading, in pieces of 256 MiB: those that
 * this client has mapped, and those that it maps later, up to max_bytes (0: all). Registering takes the
 * driver a second for some gigabytes, and other work of the driver waits meanwhile; it is done by the
 * library's thread. Waits at most timeout_ms until all that is mapped now is done.
 * 0: it is, or max_bytes are; -ETIMEDOUT: it goes on; -EOPNOTSUPP: this device registers no memory that may
 * only be read: all is copied through the library's; -EINVAL; -ECHILD.
 */
KVP_EXPORT int kvp_host_register(struct kvp_cuda *cuda, uint64_t max_bytes, uint32_t timeout_ms);

/*
 * As kvp_payloads(), of blocks that the device can copy from where they lie: ends before the first that is
 * not registered as a whole.
 */
KVP_EXPORT int kvp_host_payloads(const struct kvp_prefix *prefix, struct kvp_cuda *cuda,
	uint32_t first, uint32_t n, const void **ret_addrs);

/* ---- copies ---------------------------------------------------------------------------------- */

/*
 * Copies matched tokens [from, from + n) to where dst's planes say, which are addresses of the device. As
 * kvp_get(), enqueued: blocks are read where they lie, on the device first, then registered DRAM, else
 * through the library's memory. What lies on the device is copied by a kernel, where this library was built with it:
 * dst must be memory of the same device, and pieces of it must not overlap. Runs shorter than some 32 KiB are slow over PCIe: KVP_LAYOUT_LCND and views
 * whose tokens lie side by side make long ones.
 * Returns the tokens enqueued: fewer than asked for where the prefix ends, or the library's memory has no
 * room left. -EAGAIN: it had none from the beginning: again when a stream has gone on; -ENOLCK: the prefix is not leased;
 * -EOPNOTSUPP: channels of the view do not lie side by side, or a block is in a codec; -E2BIG: a block is larger
 * than the library's memory (kvp_cuda_opts.stage_bytes); -EBUSY; -EIO; -ENODEV; -EINVAL; -ECHILD.
 */
KVP_EXPORT int64_t kvp_cuda_get(const struct kvp_prefix *prefix, struct kvp_cuda *cuda,
	uint32_t from, uint32_t n, const struct kvp_view *dst, struct CUstream_st *stream);

/* Bytes of one block's payload, and where they are in the caller's device memory. */
struct kvp_cuda_piece {
	uint32_t block;    /* of the prefix, the tail being block n_blocks; or index of the grant */
	uint32_t reserved; /* 0 */
	uint64_t offset;   /* in the payload */
	uint64_t bytes;
	uint64_t device_addr;
};

/*
 * Copies pieces of a leased prefix's payloads to device memory, for engines that know the layout
 * themselves. Returns how many leading pieces were enqueued. -EAGAIN: none, as kvp_cuda_get();
 * -EINVAL: also if a piece does not lie in its block's payload: nothing is enqueued then; -ENOENT: a
 * block that is none of the prefix's; else as kvp_cuda_get().
 */
KVP_EXPORT int kvp_cuda_load(const struct kvp_prefix *prefix, struct kvp_cuda *cuda,
	const struct kvp_cuda_piece *pieces, uint32_t n, struct CUstream_st *stream);

/*
 * The other way: copies pieces of device memory into slots; to those of kvp_cuda_reserve() on the device, by a kernel
 * where this library was built with it, and through the library's memory to those in DRAM. *ret_value is
 * what `timeline` reaches when all of them are there, whereupon the slots can be published:
 * kvp_commit_after() at that value, which may be called at once. A timeline that this has been called with
 * is advanced by the library alone, and by no other means; kvp_timeline_free() of it takes effect when all is there.
 * Returns how many leading pieces were enqueued; *ret_value is of them. Keep the grants until the value is
 * reached, or give them back at it (KVP_COMMIT_RELEASE of kvp_commit_after(), kvp_grant_release_after()).
 * If the device is lost before, the value is never reached, and what was to be published at it never is;
 * kvp_flush() of this client waits for it in vain. After -EIO slots on the device may still be written: give those back
 * when the stream has come to its end.
 * -EAGAIN: no room in the library's memory; -E2BIG: there never is as much as a piece needs; -EINVAL: also if a grant is another client's or a timeline is
 * advanced otherwise; -EBUSY; -EIO; -ENODEV; -ECHILD.
 */
KVP_EXPORT int kvp_cuda_store(struct kvp_cuda *cuda, struct kvp_grant *const *grants,
	uint32_t n_grants, const struct kvp_cuda_piece *pieces, uint32_t n,
	struct CUstream_st *stream, struct kvp_timeline *timeline, uint64_t *ret_value);

/*
 * As kvp_put(), from planes that are addresses of the device: reserves slots, copies what is not cached yet
 * into them on the stream, and has each block published when its bytes are there. Returns tokens as
 * kvp_put() does: those that were cached already or are on their way; the caller may use its memory again
 * when the stream has come there. *ret_value: when `timeline` has reached it, all that this call enqueued has
 * been handed to the daemon; untouched if it enqueued nothing. See kvp_cuda_store() for `timeline`.
 * A call takes no more blocks than KVP_CLIENT_GRANTS, of which some may still wait for earlier calls: go on
 * with what is left. Errors as kvp_put() and kvp_cuda_store(). opts->flags: KVP_PUT_PARTIAL; opts->after; and
 * KVP_PUT_ON_DEVICE: into slots on the daemon's device, straight from the planes, which are memory of the same device
 * then, by a kernel on the stream where this library was built with it. What is stored so is found by matches with
 * KVP_MATCH_DEVICE, and by others later: kvp_reserve_on() says when. So have the flag with all calls for a sequence. What
 * lies in DRAM already stays there. A slot is not waited for longer than the daemon takes to answer, 50 ms, and not
 * again for as long as it has said: a block that gets none goes to DRAM, and all of the call after it;
 * kvp_cuda_props.displaced_blocks counts them.
 */
#define KVP_PUT_ON_DEVICE 2u
KVP_EXPORT int64_t kvp_cuda_put(struct kvp_space *space, struct kvp_cuda *cuda,
	const uint32_t *tokens, size_t n, size_t from, const struct kvp_view *src,
	const struct kvp_put_opts *opts, struct CUstream_st *stream, struct kvp_timeline *timeline,
	uint64_t *ret_value, uint32_t *ret_retry_ms);

/* ---- timelines of streams -------------------------------------------------------------------- */

/*
 * Enqueues that the timeline reaches its next value, which is told: the stream writes it where the daemon
 * looks. One timeline for each stream, since values must come in order; a timeline that this has been called
 * with is advanced by the device alone (kvp_timeline_advance() is -EINVAL). What was released after the
 * value ends when the device writes; what was committed after it is published a moment later, when the
 * library's thread has looked. kvp_timeline_reached() looks itself. Without stream_words all of it is a moment
 * later: an event stands in, and the thread looks.
 * -EINVAL: not a timeline of this client, or one that is advanced otherwise; -EAGAIN: without stream_words,
 * too many are under way; -EBUSY; -EIO; -ENODEV; -ECHILD.
 */
KVP_EXPORT int kvp_cuda_mark(struct kvp_cuda *cuda, struct kvp_timeline *timeline,
	struct CUstream_st *stream, uint64_t *ret_value);

/* ---- blocks on the daemon's device ----------------------------------------------------------- */

/* Where blocks of one size of slot lie: slot i at base + i * slot_bytes. */
struct kvp_cuda_range {
	size_t size;
	uint64_t base;
	uint64_t slot_bytes;
	uint64_t slots; /* numbers are below */
};

/*
 * The space's range of addresses, in which all of its blocks on the device lie, those that come later
 * included: what a kernel with a base and a table of numbers takes. Stable until kvp_cuda_close().
 * -ENODEV: the daemon has no such device; -ENOENT: the space has nothing there yet, ask again after
 * kvp_cuda_warm(), or the device's memory comes by legacy handles (`transport: ipc`), which have addresses of
 * their own, and kvp_cuda_addrs() alone says which; -ENOMEM: no addresses; -EINVAL; -ESHUTDOWN; -ECHILD.
 */
KVP_EXPORT int kvp_cuda_window(
	struct kvp_cuda *cuda, struct kvp_space *space, struct kvp_cuda_range *ret_range);

/*
 * Blocks [first, first + n) of a leased prefix on the device: numbers in the space's window, or -1; or
 * addresses, or 0. Writes n of them. Returns how many leading ones are there. They stay there until
 * kvp_release(), or the moment of kvp_release_after(). A block whose memory the library is still mapping is
 * not there yet, and one that lies there with fewer bits (kvp_payload_info.codec) never is. No call of the driver,
 * nor a system call without KVP_DEVICE_PENDING, with which the daemon's answers are read first.
 * flags: 0, or KVP_DEVICE_PENDING: also those that a ticket of this client is filling (KVP_WARM_EARLY). So a step is
 * enqueued before its blocks have come: kvp_cuda_warm() with KVP_WARM_EARLY, kvp_ticket_placed(), this,
 * kvp_cuda_stream_wait(), the kernels, kvp_cuda_mark(), kvp_release_after(); and kvp_ticket_wait() before their results
 * are believed. kvp_ticket_placed() has what may be read when.
 * -ENODEV: the daemon has no such device; -ENOLCK; -EOPNOTSUPP: a prefix of keys; -EINVAL; -ECHILD.
 */
KVP_EXPORT int kvp_cuda_slots(const struct kvp_prefix *prefix, struct kvp_cuda *cuda,
	uint32_t first, uint32_t n, uint32_t flags, int32_t *ret_slots);
KVP_EXPORT int kvp_cuda_addrs(const struct kvp_prefix *prefix, struct kvp_cuda *cuda,
	uint32_t first, uint32_t n, uint32_t flags, uint64_t *ret_addrs);

/*
 * A slot on the device, to compute a block into: as kvp_reserve_on(), which says what becomes of it.
 * kvp_grant_device_addr() says where it is, which is the caller's to write until the grant is released. Have
 * the stream that writes it mark a timeline, and publish it with kvp_commit_after() at that value. Also -ENODEV:
 * the daemon has no such device; -ESHUTDOWN; -EINVAL; -ECHILD.
 */
KVP_EXPORT int kvp_cuda_reserve(struct kvp_space *space, struct kvp_cuda *cuda, uint32_t timeout_ms,
	uint32_t *ret_retry_ms, struct kvp_grant **ret_grant);
/* 0: the slot is host memory, see kvp_grant_addr(). */
KVP_EXPORT uint64_t kvp_grant_device_addr(const struct kvp_grant *grant);

/* As kvp_warm() to this device; opts->device is not looked at. -ENODEV: the daemon has no such device. */
KVP_EXPORT int kvp_cuda_warm(struct kvp_prefix *prefix, struct kvp_cuda *cuda,
	const struct kvp_warm_opts *opts, struct kvp_ticket *ret_ticket);

/*
 * What is enqueued on the stream afterwards runs when the ticket has ended, well or not, or the time of
 * kvp_cuda_opts is over, or the daemon has gone: a stream is never left waiting. So ask kvp_ticket_wait(),
 * with timeout_ms 0, before results of a reader are believed: anything but all of the blocks, and they are
 * not. Returns at once, and enqueues nothing for a ticket that has ended.
 * -EAGAIN: 32 streams wait already; -EOPNOTSUPP: without stream_words; -EBUSY; -EIO; -ENODEV; -EINVAL:
 * as kvp_ticket_wait(); -ESHUTDOWN; -ECHILD.
 */
KVP_EXPORT int kvp_cuda_stream_wait(
	struct kvp_cuda *cuda, struct CUstream_st *stream, struct kvp_ticket ticket);

#ifdef __cplusplus
}
#endif
#endif
