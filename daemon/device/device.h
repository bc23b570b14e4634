/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device wing: memory of a device in segments, and copies between them and DRAM. Each device
 * has a worker process (kvpool-device), which alone talks to the device's driver, and a thread here
 * (kvpool-dev-NAME), which asks the worker, restarts it when it dies or hangs, holds the segments'
 * descriptors, so that their memory outlives any worker, and owns the queue of copies.
 *
 * All functions are called by the device's owner, one thread (the ledger); none blocks but _new()
 * and _free(). What is asked for is a piece of work in the caller's memory: it belongs to the device
 * from a call that returned 0 until its done() is called, by kvpd_device_drain() on the owner's own
 * thread. done() may free it, submit it again and submit other work, but not call _drain() or _free().
 * Exactly one done() follows each such call, also when the worker dies or the device is freed. A call
 * that fails leaves the work the caller's.
 *
 * Statuses of work, negative errno:
 *	-EAGAIN     a worker died or hung under it; ask again
 *	-ENODEV     the device is down: it did not come back after a restart
 *	-ENOMEM     the device has no memory for a segment now
 *	-EBADMSG    a copy that was to be checked is not what its checksum says
 *	-EIO        the driver refused it, or it killed workers twice
 *	-ESHUTDOWN  the device was freed first
 * When done() is called no worker touches the memory named in the work any more, whatever the status:
 * a worker that died has been reaped before. That a GPU's copy engine has stopped by then is likely, but
 * nothing proves it (docs/gpu.md).
 */
#ifndef KVPD_DEVICE_H
#define KVPD_DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "daemon/config.h"

struct kvpd_device;

#define KVPD_DEVICE_NAME 12u    /* with its end; a thread's name has room for no more */
#define KVPD_DEVICE_SEGS 16384u /* segments of a device, and DRAM extents that it knows */

/* Ways; independent of each other. */
#define KVPD_TO_DEVICE 0u
#define KVPD_TO_HOST   1u
#define KVPD_WAYS      2u

/* Classes of copies, the first first. A class that was passed over by 1 GiB gets a batch. */
#define KVPD_COPY_URGENT 0u /* somebody waits for a warm */
#define KVPD_COPY_SPILL  1u /* a reserve waits for room */
#define KVPD_COPY_WARM   2u
#define KVPD_COPY_BEHIND 3u /* write-behind: a copy of what the device has */
#define KVPD_COPY_AHEAD  4u /* prefetch */
#define KVPD_COPY_KINDS  5u

#define KVPD_DEVICE_STARTING 0u /* the first worker has not answered yet */
#define KVPD_DEVICE_UP       1u
#define KVPD_DEVICE_RESTART  2u /* the worker died; what is queued waits */
#define KVPD_DEVICE_DOWN     3u /* a restart failed, too: work fails, restarts go on */
#define KVPD_DEVICE_DETACHED 4u /* there is no worker, and nothing of the device is open */

#define KVPD_HANDLE_BYTES  64u   /* of a legacy handle, */
#define KVPD_HANDLE_MEMORY 4096u /* which lies at the beginning of a memfd of this size */

struct kvpd_device_config {
	char name[KVPD_DEVICE_NAME];
	const char *driver; /* "cuda", "host", "fault" */
	const char *faults; /* of "fault": see driver.h; NULL: none */
	const char *worker; /* path of kvpool-device; NULL: where it was installed */
	const char *unit;   /* of "cuda": UUID or number; NULL: the first */
	uint32_t transport; /* of "cuda": KVPD_TRANSPORT_* */
	bool no_copies;     /* of "cuda": clients do all copying; kvpd_device_copy() does none */
	bool mps;           /* of "cuda": the worker joins a server of MPS, where there is one */
	uint64_t bytes;     /* the device's memory; segments fit in it */
	uint64_t copy_rate; /* bytes a second each way; 0: no limit */
	uint32_t threads;   /* that copy, each way; 0: one */
	uint32_t
		timeout_ms; /* a question or a batch that takes longer: the worker hangs; 0: 10 s */
	uint32_t
		restart_ms; /* before a restart, doubled with each failure up to a minute; 0: 1 s */
	void (*wake)(
		void *ctx); /* work is done: call _drain(); or the state is another. Any thread but
			       the owner's; must not block */
	void *ctx;
};

/* What done() gets; the head of every piece of work. */
struct kvpd_device_work {
	TAILQ_ENTRY(kvpd_device_work) link; /* the device's */
	void (*done)(struct kvpd_device_work *work);
	int status;   /* valid in done() */
	bool is_copy; /* the device's: which of the two it is */
};

/*
 * A question about memory. They are put to the worker one at a time, in the order in which they came;
 * those of kind DROP never fail but by -ESHUTDOWN (and even then the memory is let go).
 */
#define KVPD_SEG_MAKE  0u /* in: bytes. out: id, fd */
#define KVPD_SEG_DROP  1u /* in: id */
#define KVPD_HOST_ADD  2u /* in: bytes, fd, writable. out: id */
#define KVPD_HOST_DROP 3u /* in: id */
struct kvpd_device_op {
	struct kvpd_device_work work;
	uint32_t kind;
	/*
	 * A segment's number, or a DRAM extent's: two separate sets below KVPD_DEVICE_SEGS. A number
	 * names the memory from its MAKE or ADD until its DROP is asked for, and is given out again after.
	 */
	uint32_t id;
	uint64_t bytes;
	/*
	 * MAKE: what kvpd_device_import() says, which stays the device's until DROP is done; the memory
	 * is all zero, but with no_copies. A memfd is sealed with KVP_SEALS_VAULT, or (`client`)
	 * KVP_SEALS_FIXED; re-open it for whoever is to map it. A CUDA descriptor is to be sent as it
	 * is.
	 * ADD: an open file of its own of a memfd (kvp_seg_reopen_*()), never a copy of the descriptor
	 * that proves; the device takes it if the call returned 0 and closes it, with the worker's
	 * mapping, before the done() of DROP or of a failed ADD: what is to be proven of the memory
	 * (kvp_seg_unused()) can be proven then.
	 */
	int fd;
	bool writable; /* ADD: copies to the host may go there */
	bool client; /* MAKE: a client writes it, and no copy does. The caller may add F_SEAL_FUTURE_WRITE */
	bool pin; /* ADD: its pages may be pinned by the device: no arena, of which that would have
			to be disproved */
	uint32_t attempts; /* the device's */
};

/* A copy between a segment and a DRAM extent. */
#define KVPD_COPY_EARLY \
	1u /* deadline_ns counts: earliest first, while its tenant is at most 64 MiB ahead */
#define KVPD_COPY_SUM   2u /* checksum: out, kvp_payload_checksum() of what was copied */
#define KVPD_COPY_CHECK 4u /* checksum: in; -EBADMSG if what was copied has another */
/*
 * Together with one of these, of way TO_HOST: nothing is copied, `host` is not looked at, and what lies in
 * the segment is summed.
 */
#define KVPD_COPY_ONLY 8u
struct kvpd_device_copy {
	struct kvpd_device_work work;
	uint32_t way;
	uint32_t kind; /* KVPD_COPY_URGENT ... */
	uint32_t flags;
	uint32_t tenant; /* 1 .. KVPD_MAX_TENANTS; tenants of a class take turns by bytes */
	uint32_t seg, host;
	uint64_t seg_off, host_off; /* multiples of 64 */
	uint64_t bytes;             /* not 0 */
	uint64_t deadline_ns;       /* on CLOCK_MONOTONIC */
	uint64_t checksum;
	/* Out: when it was submitted, and when the last of its bytes was copied. */
	uint64_t queued_ns, copied_ns;
	/*
	 * Out, of a copy that failed: its worker ended while the hardware was copying, and nothing proves that it does
	 * not write there still: that place is to get nothing else. Never of a driver whose worker copies by itself.
	 */
	bool late;
	/* The device's; see queue.h. */
	struct {
		TAILQ_ENTRY(kvpd_device_copy) age;
		struct kvpd_device_copy *left, *right, *up;
		uint64_t seq, cut, deadline;
		uint32_t pieces;
		int status;
	} q;
};

/* Is there a driver of this name? Any thread. */
bool kvpd_device_driver_known(const char *driver);

/* Are these rules of what goes wrong, of the driver "fault", well-formed? NULL and "": no rules. Any thread. */
bool kvpd_device_faults_valid(const char *faults);

/*
 * Starts the thread, which starts the worker. -EINVAL: the configuration makes no sense; -ENOENT: no
 * such driver; -ENOMEM, -EMFILE, errors of pthread_create(). A worker that cannot be started is not
 * an error: the device is down and goes on trying. The strings are copied.
 */
int kvpd_device_new(const struct kvpd_device_config *config, struct kvpd_device **ret_device);
/* Ends worker and thread; all work that is left is done() first. Waits about a second at most. */
struct kvpd_device *kvpd_device_free(
	struct kvpd_device *device); /* NULL is harmless; returns NULL */

uint32_t kvpd_device_state(const struct kvpd_device *device); /* any thread */
/* What a segment's descriptor is: KVP_IMPORT_*, as clients are told. Valid once one was made. */
uint32_t kvpd_device_import(const struct kvpd_device *device);
/*
 * Segments may be lost with a worker: those behind handles, and all after an error of the hardware or if
 * another worker cannot take them over. What lies in one is not to be read any more, and no copy names it
 * (-ENODEV): it is to be dropped. Each time that this may have happened the number of losses grows, and
 * wake() is called. Any thread.
 */
uint32_t kvpd_device_losses(const struct kvpd_device *device);
bool kvpd_device_seg_lost(const struct kvpd_device *device, uint32_t seg);
/*
 * A worker may end for an error after which nobody can tell what lies in the segments that it had. They are doubted
 * then: the next worker has them, the device stays in RESTART and copies nothing, but sums (KVPD_COPY_ONLY) are worked
 * out. The owner compares what it has sums of and judges each segment: one that it does not believe is lost. When none
 * is doubted the device is up. Each time that verdicts are wanted the number of doubts grows, and wake() is called; it is
 * to be said with a verdict, and one of an earlier time counts for nothing. A segment that is not judged within half
 * a minute, or before two workers more have ended, is lost. Any thread, but judging is the owner's.
 */
uint32_t kvpd_device_doubts(const struct kvpd_device *device);
bool kvpd_device_seg_doubted(const struct kvpd_device *device, uint32_t seg);
void kvpd_device_judge(struct kvpd_device *device, uint32_t seg, uint32_t doubts, bool is_believed);

/*
 * Ends the worker, and leaves it at that: 0; the device is DETACHED a moment later, wake() is called, and
 * all that is asked for fails with -ENODEV from now on. -EBUSY: memory of it is known, or asked about:
 * drop that first. kvpd_device_attach(): it is STARTING again, at once. Both are harmless where it is so.
 */
int kvpd_device_detach(struct kvpd_device *device);
void kvpd_device_attach(struct kvpd_device *device);

/*
 * 0, -EINVAL: a number that names nothing, or no bytes; -ENOSPC: KVPD_DEVICE_SEGS; -ENODEV: MAKE or
 * ADD of a device that is down; -EBUSY: DROP of what a copy still names.
 */
int kvpd_device_ask(struct kvpd_device *device, struct kvpd_device_op *op);
/*
 * 0, -EINVAL: beyond its segment or extent, unaligned, towards an extent that is not writable or a
 * segment that a client writes, of no class or tenant; -ENODEV: the device is down, or the segment lost;
 * -EOPNOTSUPP: the device is not to copy.
 */
int kvpd_device_copy(struct kvpd_device *device, struct kvpd_device_copy *copy);
/* done() of at most `max` pieces of work. Returns how many; `max`: there may be more. */
uint32_t kvpd_device_drain(struct kvpd_device *device, uint32_t max);

struct kvpd_device_class_figures {
	uint64_t queued;       /* copies that are not wholly under way */
	uint64_t oldest_ns;    /* age of the oldest of these; 0: none */
	uint64_t done, failed; /* since the device was made */
};
#define KVPD_DEVICE_WHY 96u
#define KVPD_NO_FIGURE  UINT64_MAX
struct kvpd_device_figures {
	uint32_t state;
	int32_t pid;               /* of the worker; 0: there is none */
	char why[KVPD_DEVICE_WHY]; /* the last worker that ended by itself ended, or ""; */
	uint64_t why_ns;           /* when, on CLOCK_MONOTONIC */
	uint8_t uuid[16];          /* all zero, */
	uint64_t granularity;      /* and 0, until the first worker has said what it has */
	int32_t numa_node;    /* of the machine, that the device is nearest to; -1: not known */
	uint64_t free, total; /* of its memory, whoever has the rest; 0: not known */
	uint64_t context;     /* of it, that the worker has beside segments; KVPD_NO_FIGURE */
	uint32_t segments;
	uint64_t segment_bytes;
	/*
	 * What the books say is free and the driver does not have: others' memory, or that of processes
	 * which are dead but not gone. Known while a segment was refused for it.
	 */
	uint64_t owed_bytes;
	uint64_t losses;   /* times that segments were lost */
	uint64_t restarts; /* workers that were started after the first */
	uint64_t damaged;  /* copies that were not what their checksum says */
	uint64_t pieces;   /* that the driver was given to copy: neighbours are one */
	uint64_t bytes[KVPD_WAYS];
	uint64_t
		bytes_per_s[KVPD_WAYS]; /* of the last whole second in which something was copied */
	struct kvpd_device_class_figures kind[KVPD_COPY_KINDS];
};
/* Any thread, while the device is there. */
void kvpd_device_figures(struct kvpd_device *device, struct kvpd_device_figures *ret_figures);

#endif
