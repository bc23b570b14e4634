/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Drivers of the worker process: what makes segments of a device's memory and copies to and from
 * them. A driver is a row of the table in driver.c and a file of its own.
 *
 * One thread of the worker calls; threads of a driver's own are its affair. Nothing on the way of a
 * copy (submit, poll) allocates. 0 or negative errno:
 *	-EAGAIN      busy, or some of the work is done: call again with the same arguments, soon
 *	-ENOMEM      no memory of the device now
 *	-EOPNOTSUPP
 *	-EIO         this request
 *	-ENODEV      lost to this process: the worker ends, another one may find it again
 * Numbers of segments and hosts are below KVPD_DEVICE_SEGS, and the worker has checked them: a number
 * names one piece of memory, offsets lie in it.
 */
#ifndef KVPD_DRIVER_H
#define KVPD_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#define KVPD_DRIVER_BATCH  512u /* copies of a batch */
#define KVPD_DRIVER_FLIGHT 4u   /* batches under way each way */

struct kvpd_driver;

/* Why a driver cannot go on, for the log; filled before -ENODEV and by open() before any error. */
#define KVPD_DRIVER_WHY   200u
#define KVPD_DAMAGE_NONE  0u
#define KVPD_DAMAGE_MAYBE 1u /* nobody can tell: it is to be believed by its checksums alone */
#define KVPD_DAMAGE_ALL   2u /* none of it is to be believed any more */
struct kvpd_driver_loss {
	char why[KVPD_DRIVER_WHY];
	uint32_t damage; /* KVPD_DAMAGE_*: of what lies on the device */
};

struct kvpd_driver_opts {
	uint64_t bytes;     /* of the device */
	uint32_t threads;   /* that copy, each way */
	uint32_t life;      /* 0: the first worker of its device; counts restarts */
	const char *faults; /* of "fault"; NULL: none */
	const char *unit;   /* of "cuda": which device, its UUID or its number; NULL: the first */
	uint32_t transport; /* of "cuda": KVPD_TRANSPORT_* */
	bool no_copies;     /* the device's own processes copy: submit() is not called */
	struct kvpd_driver_loss *loss; /* never NULL */
};

/*
 * What a segment's descriptor is: READABLE: a memfd, its memory; HANDLES: a memfd with the handle that
 * names it, in KVPD_HANDLE_BYTES; neither: CUDA's, of the memory.
 */
#define KVPD_DRIVER_READABLE \
	1u /* the processor reads segments, and copies are done when they say so */
#define KVPD_DRIVER_HANDLES   2u /* segments end with the process */
#define KVPD_DRIVER_NO_COPIES 4u
#define KVPD_DRIVER_FLAGS     7u
struct kvpd_driver_caps {
	uint64_t bytes;       /* of the device */
	uint64_t granularity; /* segments are multiples of it */
	uint32_t flags;
	int32_t numa_node; /* -1: none */
	uint8_t uuid[16];
	/*
	 * Bytes of a batch, about: all but one of KVPD_DRIVER_FLIGHT last for as long as the end of one takes to
	 * be heard of and the next one to come. An urgent copy waits for all of them.
	 */
	uint64_t batch;
};

#define KVPD_DRIVER_LEAST (UINT64_C(128) << 10) /* bytes of a batch, */
#define KVPD_DRIVER_MOST  (UINT64_C(1) << 30)

struct kvpd_copy {
	uint32_t seg, host;
	uint64_t seg_off, host_off;
	uint64_t bytes;
	uint32_t sum; /* 1: the only one of its batch, and the sum of what arrives is of use */
	uint32_t reserved;
};

struct kvpd_done {
	uint64_t batch;
	int32_t status;
	uint32_t reserved;
	uint64_t ns;  /* that it took */
	uint64_t sum; /* if it was asked for and is to be had on the way; else 0 */
};

/* Of the device's memory, in bytes. */
struct kvpd_driver_usage {
	uint64_t free, total; /* whoever has the rest; 0: not known */
	uint64_t context;     /* that this process has beside segments; KVPD_NO_FIGURE */
};

struct kvpd_driver_ops {
	const char *name;
	/* -EINVAL: the options make no sense. */
	int (*open)(const struct kvpd_driver_opts *opts, struct kvpd_driver **ret_driver);
	/* Waits for copies that are under way. NULL is harmless; returns NULL. */
	struct kvpd_driver *(*close)(struct kvpd_driver *d);
	int (*caps)(struct kvpd_driver *d, struct kvpd_driver_caps *ret_caps);
	/* Zeroed before it returns 0, but with no_copies. The descriptor is the caller's. */
	int (*seg_make)(struct kvpd_driver *d, uint32_t id, uint64_t bytes, int *ret_fd);
	/* A segment that an earlier process made; the descriptor stays the caller's. Not of HANDLES. */
	int (*seg_take)(struct kvpd_driver *d, uint32_t id, uint64_t bytes, int fd);
	void (*seg_drop)(struct kvpd_driver *d, uint32_t id);
	/*
	 * kvp_payload_checksum() of what lies there now, by way of the driver's own scratch where the processor cannot
	 * read it. The one call that another thread of the worker makes, one at a time; the segment stays until it
	 * returns. -EOPNOTSUPP: no_copies.
	 */
	int (*seg_sum)(struct kvpd_driver *d, uint32_t id, uint64_t off, uint64_t bytes,
		uint64_t *ret_sum);
	/* DRAM, mapped by the worker until host_drop() returned 0. Flags: KVPD_MEMORY_*. */
	int (*host_add)(
		struct kvpd_driver *d, uint32_t id, void *addr, uint64_t bytes, uint32_t flags);
	/* 0 or -EAGAIN. No copy names it. */
	int (*host_drop)(struct kvpd_driver *d, uint32_t id);
	/* At most KVPD_DRIVER_FLIGHT under way each way; `copies` is read before it returns. */
	int (*submit)(struct kvpd_driver *d, uint32_t way, uint64_t batch,
		const struct kvpd_copy *copies, uint32_t n);
	/* How many of `out` were filled; never waits. */
	int (*poll)(struct kvpd_driver *d, struct kvpd_done *out, uint32_t max);
	/* Readable when poll() may have something. */
	int (*event)(struct kvpd_driver *d);
	int (*usage)(struct kvpd_driver *d, struct kvpd_driver_usage *ret_usage);
};

#define KVPD_MEMORY_WRITABLE 1u /* copies to the host may go there */
#define KVPD_MEMORY_PIN      2u /* pages may be pinned: nobody has to prove that none is */
#define KVPD_MEMORY_FLAGS    3u

/* NULL: there is none of that name. Any thread. */
const struct kvpd_driver_ops *kvpd_driver_find(const char *name);

/*
 * "host": segments are sealed memfds, copies run in threads.
 *
 * "cuda": segments are memory of a GPU; see driver_cuda.h.
 *
 * "fault": wraps host; `faults` says what goes wrong, in rules parted by commas, each
 *	OPERATION=WHAT[:NUMBER][@N[+]][#LIFE]
 * OPERATION: open close caps make take drop sum add hostdrop submit poll event usage, or copy: a
 * batch's own outcome. WHAT: fail:ERRNO, slow:MILLISECONDS, hang, die (the process ends), and of a copy damage
 * (one bit of the first piece is wrong afterwards); of caps node:NUMBER (the device is near that NUMA node). @N: the N-th call alone, from 1; @N+: and all
 * after it; without: all. #LIFE: only in the worker's life of that number, from 0. The first rule that
 * fits decides. Operations that cannot fail take fail: for nothing.
 */
/* Are these rules of "fault" well-formed? NULL and "": no rules. Any thread. */
bool kvpd_fault_rules_valid(const char *faults);

/* Where a segment of "host" lies. */
char *kvpd_host_seg_addr(struct kvpd_driver *d, uint32_t id);

extern const struct kvpd_driver_ops kvpd_driver_cuda;
extern const struct kvpd_driver_ops kvpd_driver_host;
extern const struct kvpd_driver_ops kvpd_driver_fault;

#endif
