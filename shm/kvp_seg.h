/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments: memfds that are sized, sealed, passed and mapped. Nothing is ever named in a
 * filesystem.
 *
 * All functions: any thread; 0 or negative errno; outputs last, untouched on failure.
 */
#ifndef KVP_SEG_H
#define KVP_SEG_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

/* Seals of each kind of segment; receivers check with kvp_seg_check(). */
#define KVP_SEALS_FIXED   (F_SEAL_GROW | F_SEAL_SHRINK)
#define KVP_SEALS_CATALOG (KVP_SEALS_FIXED | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define KVP_SEALS_PAGE    (KVP_SEALS_FIXED | F_SEAL_SEAL)
#define KVP_SEALS_VAULT   (KVP_SEALS_FIXED | F_SEAL_SEAL)
#define KVP_SEALS_FROZEN  (KVP_SEALS_FIXED | F_SEAL_WRITE | F_SEAL_SEAL)
#define KVP_SEALS_ARENA   (KVP_SEALS_FIXED | F_SEAL_FUTURE_WRITE)

#define KVP_SEG_HUGETLB 1u /* 2 MiB pages of the hugetlb pool; size must be a multiple */

/* -ENOMEM: no memory or no free huge page; -EINVAL: size is 0 or no multiple of the page. */
int kvp_seg_create(const char *name, uint64_t bytes, uint32_t flags, int *ret_fd);

/* Adds seals. -EBUSY: F_SEAL_WRITE while a writable mapping exists; -EPERM: sealed already. */
int kvp_seg_seal(int fd, unsigned seals);

/*
 * What a receiver does before it maps: a memfd, of exactly this size, with at least these seals.
 * -EPROTO if not.
 */
int kvp_seg_check(int fd, uint64_t bytes, unsigned seals);

/*
 * A memfd of these bytes and no others, which nobody can change any more; and what such a one has, of at most `most` bytes, for the
 * caller to free. -EPROTO: it is not one; -EFBIG: it has more, or none.
 */
int kvp_seg_sealed(const char *name, const void *data, size_t bytes, int *ret_fd);
int kvp_seg_sealed_read(int fd, size_t most, void **ret_data, size_t *ret_bytes);

/*
 * A descriptor of the same memory with an open file of its own: read-only, or also to write. The
 * caller must own the memfd's inode (or be root).
 */
int kvp_seg_reopen_ro(int fd, int *ret_fd);
int kvp_seg_reopen_rw(int fd, int *ret_fd);

/*
 * Does nobody have the memory open or mapped any more, in whatever process, but through `fd`, the
 * descriptor that kvp_seg_create() made? Asks the kernel for a lease on the file, which it gives
 * only to who is alone, and gives it back at once. It counts what was opened with
 * kvp_seg_reopen_*(), with every copy and mapping of that: so nobody may be given a copy of `fd`.
 * Pages pinned by a device or an io_uring are not counted, nor is a descriptor opened with O_PATH,
 * although who owns the inode can open the memory again through it: see kvp_seg_watch().
 * 0: nobody. -EBUSY: somebody may still write. -EAGAIN: only readers are left. -EOPNOTSUPP: the
 * kernel gives no leases here. The process should ignore SIGIO, which an open meanwhile would send.
 */
int kvp_seg_unused(int fd);

/*
 * What tells when memory is gone: when nobody has it open in any way, O_PATH included, or mapped.
 * kvp_seg_watches() makes a descriptor for all the memory that the process ever watches: closing one
 * takes the kernel ten milliseconds and more, and a user may have few. kvp_seg_watch() returns the
 * number of a watch, never 0. To be asked after `fd` was closed, which counts as well. Negative errno;
 * -EMFILE: the user has too many inotify instances, -ENOSPC: too many watches.
 */
int kvp_seg_watches(void);
int kvp_seg_watch(int watches, int fd);
/* Is it gone? Also false while that cannot be found out, for want of a descriptor. */
bool kvp_seg_gone(int watches, int watch);

#define KVP_MAP_WRITE    1u
#define KVP_MAP_DONTFORK 2u /* a forked child does not inherit the mapping */
#define KVP_MAP_DONTDUMP 4u /* left out of core files */
#define KVP_MAP_HUGEPAGE \
	8u /* where huge pages fit, and asks for transparent ones; harmless where there are none */

int kvp_seg_map(int fd, uint64_t bytes, uint32_t flags, void **ret_addr);
void kvp_seg_unmap(void *addr, uint64_t bytes); /* NULL is harmless; keeps errno */

#define KVP_SEG_HUGE (UINT64_C(2) << 20)
/*
 * Has the kernel bring in KVP_SEG_HUGE bytes as one page, where nothing was yet. They begin at a multiple of that,
 * inside a mapping made with KVP_MAP_WRITE and KVP_MAP_HUGEPAGE. That is several times quicker than to bring in small
 * pages, for whoever maps the segment later as well, and takes no administrator's consent but that they did not forbid
 * it ("deny"). May take long where memory is in pieces. Negative errno: not all of it was brought in, nothing is lost.
 */
int kvp_seg_huge(void *addr);

/*
 * How huge pages for shared memory stand on this machine, for messages and kvctl doctor:
 * free hugetlb pages of 2 MiB, and the chosen word of shmem_enabled ("never", "advise", ...).
 */
struct kvp_seg_hugeinfo {
	uint64_t hugetlb_free;
	uint64_t hugetlb_total;
	char shmem_thp[16];
};
int kvp_seg_hugeinfo(struct kvp_seg_hugeinfo *ret_info);

/* File descriptors: scope cleanup and hand-over. */
static inline void kvp_close_fdp(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}
#define kvp_autoclose __attribute__((cleanup(kvp_close_fdp)))

static inline int kvp_take_fd(int *fd)
{
	int taken = *fd;

	*fd = -1;
	return taken;
}

#endif
