/* SPDX-License-Identifier: Apache-2.0 */
/* Memory segments: made, sealed, checked for the seals they should have, mapped. */
#include "shm/kvp_seg.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif

static int make_memfd(const char *name, unsigned flags)
{
	int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd < 0 ? -errno : fd;
}

int kvp_seg_create(const char *name, uint64_t bytes, uint32_t flags, int *ret_fd)
{
	unsigned mfd = MFD_CLOEXEC | MFD_ALLOW_SEALING;
	uint64_t page = 4096;
	int r;

	if (flags & KVP_SEG_HUGETLB) {
		mfd |= MFD_HUGETLB | MFD_HUGE_2MB;
		page = UINT64_C(2) << 20;
	}
	if (!bytes || bytes % page || bytes > INT64_MAX)
		return -EINVAL;

	kvp_autoclose int fd = make_memfd(name, mfd);
	if (fd < 0)
		return fd;
	if (fchmod(fd, 0600) < 0 || ftruncate(fd, (off_t)bytes) < 0)
		return -errno;
	r = kvp_seg_seal(fd, KVP_SEALS_FIXED);
	if (r < 0)
		return r;
	*ret_fd = kvp_take_fd(&fd);
	return 0;
}

int kvp_seg_seal(int fd, unsigned seals)
{
	return fcntl(fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

int kvp_seg_check(int fd, uint64_t bytes, unsigned seals)
{
	int have = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (have < 0 || ((unsigned)have & seals) != seals)
		return -EPROTO;
	if (fstat(fd, &st) < 0)
		return -errno;
	return st.st_size >= 0 && (uint64_t)st.st_size == bytes ? 0 : -EPROTO;
}

int kvp_seg_sealed(const char *name, const void *data, size_t bytes, int *ret_fd)
{
	kvp_autoclose int fd = make_memfd(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	const uint8_t *from = data;
	int r;

	if (fd < 0)
		return fd;
	if (fchmod(fd, 0600) < 0)
		return -errno;
	for (size_t at = 0; at < bytes;) {
		ssize_t n = write(fd, from + at, bytes - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENOSPC;
		at += (size_t)n;
	}
	r = kvp_seg_seal(fd, KVP_SEALS_FROZEN);
	if (r < 0)
		return r;
	*ret_fd = kvp_take_fd(&fd);
	return 0;
}

int kvp_seg_sealed_read(int fd, size_t most, void **ret_data, size_t *ret_bytes)
{
	struct stat st;
	uint8_t *data;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (st.st_size <= 0 || (uint64_t)st.st_size > most)
		return -EFBIG;
	r = kvp_seg_check(fd, (uint64_t)st.st_size, KVP_SEALS_FROZEN);
	if (r < 0)
		return r;
	data = malloc((size_t)st.st_size);
	if (!data)
		return -ENOMEM;
	for (off_t at = 0; at < st.st_size;) {
		ssize_t n = pread(fd, data + at, (size_t)(st.st_size - at), at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			r = n < 0 ? -errno : -EPROTO;
			free(data);
			return r;
		}
		at += n;
	}
	*ret_data = data;
	*ret_bytes = (size_t)st.st_size;
	return 0;
}

static int reopen(int fd, int flags, int *ret_fd)
{
	char path[32];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, flags | O_CLOEXEC);
	if (again < 0)
		return -errno;
	*ret_fd = again;
	return 0;
}

int kvp_seg_reopen_ro(int fd, int *ret_fd)
{
	return reopen(fd, O_RDONLY, ret_fd);
}

int kvp_seg_reopen_rw(int fd, int *ret_fd)
{
	return reopen(fd, O_RDWR, ret_fd);
}

int kvp_seg_unused(int fd)
{
	kvp_autoclose int ro = -1;
	int r = kvp_seg_reopen_ro(fd, &ro);

	if (r < 0)
		return r;
	if (fcntl(ro, F_SETLEASE, F_RDLCK) < 0)
		return errno == EAGAIN ? -EBUSY : -EOPNOTSUPP;
	/* No writer. Closing the descriptor ends a lease. */
	(void)fcntl(ro, F_SETLEASE, F_UNLCK);
	if (fcntl(ro, F_SETLEASE, F_WRLCK) < 0)
		return errno == EAGAIN ? -EAGAIN : -EOPNOTSUPP;
	return 0;
}

int kvp_seg_watches(void)
{
	int watches = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	return watches < 0 ? -errno : watches;
}

int kvp_seg_watch(int watches, int fd)
{
	char path[32];
	int watch;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	watch = inotify_add_watch(watches, path, IN_DELETE_SELF);
	return watch < 0 ? -errno : watch;
}

/*
 * A memfd has no name, so the kernel removes its watches when the last reference to its entry goes,
 * and the inode with it. A watch itself does not keep it. Which watches there are is read from the
 * kernel's list of them: the events that it queues as well may overflow, and are thrown away.
 */
bool kvp_seg_gone(int watches, int watch)
{
	char events[4096], *line = NULL;
	bool gone = true;
	size_t size = 0;
	FILE *list;
	unsigned w;

	while (read(watches, events, sizeof(events)) > 0)
		;
	snprintf(events, sizeof(events), "/proc/self/fdinfo/%d", watches);
	list = fopen(events, "re");
	if (!list)
		return false;
	while (gone && getline(&line, &size, list) > 0)
		if (sscanf(line, "inotify wd:%x", &w) == 1 && w == (unsigned)watch)
			gone = false;
	if (ferror(list))
		gone = false;
	free(line);
	fclose(list);
	return gone;
}

/* The kernel itself chooses such addresses only where all shared memory may have huge pages. */
static void *map_aligned(int fd, uint64_t bytes, int prot)
{
	uint64_t more = bytes + KVP_SEG_HUGE - 4096;
	uint8_t *p =
		mmap(NULL, more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uint64_t before, after;

	if (p == MAP_FAILED)
		return mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
	before = -(uintptr_t)p & (KVP_SEG_HUGE - 1);
	after = more - before - bytes;
	if (before)
		munmap(p, before);
	p += before;
	if (after)
		munmap(p + bytes, after);
	if (mmap(p, bytes, prot, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
		int saved = errno;

		munmap(p, bytes);
		errno = saved;
		return MAP_FAILED;
	}
	return p;
}

int kvp_seg_map(int fd, uint64_t bytes, uint32_t flags, void **ret_addr)
{
	int prot = PROT_READ | (flags & KVP_MAP_WRITE ? PROT_WRITE : 0), r;
	void *p = flags & KVP_MAP_HUGEPAGE && bytes >= KVP_SEG_HUGE
			  ? map_aligned(fd, bytes, prot)
			  : mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return -errno;
	if ((flags & KVP_MAP_DONTFORK && madvise(p, bytes, MADV_DONTFORK) < 0) ||
		(flags & KVP_MAP_DONTDUMP && madvise(p, bytes, MADV_DONTDUMP) < 0)) {
		r = -errno;
		munmap(p, bytes);
		return r;
	}
	/* A wish: -EINVAL where shared memory has no transparent huge pages. */
	if (flags & KVP_MAP_HUGEPAGE)
		(void)madvise(p, bytes, MADV_HUGEPAGE);
	*ret_addr = p;
	return 0;
}

void kvp_seg_unmap(void *addr, uint64_t bytes)
{
	int saved = errno;

	if (addr)
		munmap(addr, bytes);
	errno = saved;
}

/* The kernel makes one page of what there is and refuses where there is nothing, so the first small one is brought in. */
int kvp_seg_huge(void *addr)
{
	if ((uintptr_t)addr % KVP_SEG_HUGE)
		return -EINVAL; /* the kernel would do nothing and be content */
	if (madvise(addr, 4096, MADV_POPULATE_WRITE) < 0 ||
		madvise(addr, KVP_SEG_HUGE, MADV_COLLAPSE) < 0)
		return -errno;
	return 0;
}

static int read_line(const char *path, char *buf, int bytes)
{
	FILE *f = fopen(path, "re");
	int r = 0;

	if (!f)
		return -errno;
	if (!fgets(buf, bytes, f))
		r = -EIO;
	fclose(f);
	return r;
}

static uint64_t read_count(const char *path)
{
	char line[64];
	unsigned long long n = 0;

	if (read_line(path, line, sizeof(line)) < 0 || sscanf(line, "%llu", &n) != 1)
		return 0;
	return n;
}

int kvp_seg_hugeinfo(struct kvp_seg_hugeinfo *ret_info)
{
	struct kvp_seg_hugeinfo info = { 0 };
	char line[128], *open_bracket, *close_bracket;
	int r;

	info.hugetlb_free = read_count("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
	info.hugetlb_total = read_count("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
	r = read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled", line, sizeof(line));
	if (r == -ENOENT) {
		strcpy(info.shmem_thp, "none");
	} else if (r < 0) {
		return r;
	} else {
		open_bracket = strchr(line, '[');
		close_bracket = open_bracket ? strchr(open_bracket, ']') : NULL;
		if (!close_bracket ||
			close_bracket - open_bracket > (ptrdiff_t)sizeof(info.shmem_thp))
			return -EIO;
		memcpy(info.shmem_thp, open_bracket + 1,
			(size_t)(close_bracket - open_bracket - 1));
	}
	*ret_info = info;
	return 0;
}
