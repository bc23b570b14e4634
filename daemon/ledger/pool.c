/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pool threads: making and dropping the memory of extents. First touch is parallel, because one
 * thread clears pages at a few GB/s only, and goes through the kernel's populate call, which
 * reports lack of memory as an error where a plain store would be answered with SIGBUS.
 */
#include "daemon/ledger/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numa.h>
#include <numaif.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "daemon/clock.h"
#include "daemon/ledger/extent.h"
#include "daemon/ledger/ledger.h"
#include "daemon/ledger/list.h"
#include "daemon/ledger/publish.h"
#include "daemon/ledger/retire.h"
#include "daemon/ledger/round.h"
#include "daemon/ledger/tenant.h"
#include "daemon/ledger/worker.h"
#include "daemon/log.h"
#include "daemon/memory.h"
#include "daemon/slice.h"
#include "shm/kvp_seg.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define MIB        (UINT64_C(1) << 20)
#define SMALL_PAGE UINT64_C(4096)
#define HUGE_PAGE  KVP_SEG_HUGE
/*
 * First touch, of one thread at a time. The kernel reads the map of this process's memory meanwhile,
 * and whoever maps something (the control thread, for a client that attaches) waits for the piece.
 */
#define PIECE        HUGE_PAGE
#define SMALL_PIECE  (MIB / 8)
#define NAP_PIECES   4u         /* small ones after which others are let in for certain */
#define PER_THREAD   (32 * MIB) /* first touch of less than this takes no thread more */
#define MAX_THREADS  64u
#define PROGRESS_NS  (2 * UINT64_C(1000000000))
#define MEMLOCK_MORE (64 * MIB)        /* beside the pools: stacks, heap */
#define HUGE_MOST_NS (KVPD_MS / 2)     /* that a huge page may take of a processor */
#define HUGE_WAIT_NS (100 * KVPD_MS)   /* in all */
#define HUGE_REST_NS (10000 * KVPD_MS) /* after one that took longer, or did not come */

uint64_t kvpd_pool_round(const struct kvpd_ledger *l, uint64_t bytes)
{
	uint64_t page = l->hugetlb ? HUGE_PAGE : SMALL_PAGE;

	return (bytes + page - 1) / page * page;
}

/* ---- checks at the start -------------------------------------------------------------------- */

static int check_huge(struct kvpd_ledger *l)
{
	struct kvp_seg_hugeinfo info;
	int r = kvp_seg_hugeinfo(&info);
	uint64_t free_bytes = r < 0 ? 0 : info.hugetlb_free * HUGE_PAGE;

	if (l->hugepages == KVPD_NEVER)
		return 0;
	if (free_bytes >= l->memory) {
		l->hugetlb = true;
		return 0;
	}
	if (l->hugepages == KVPD_REQUIRE) {
		kvpd_err("hugepages: require, but only %" PRIu64 " of %" PRIu64
			 " MiB are free in 2 MiB pages; "
			 "write %" PRIu64 " to /proc/sys/vm/nr_hugepages or lower `memory`",
			free_bytes / MIB, l->memory / MIB, (l->memory + HUGE_PAGE - 1) / HUGE_PAGE);
		return -ENOMEM;
	}
	if (r == 0 && (!strcmp(info.shmem_thp, "never") || !strcmp(info.shmem_thp, "none") ||
			      !strcmp(info.shmem_thp, "deny")))
		kvpd_notice("no huge pages for catalogs: lookups are slower; reserve 2 MiB "
			    "pages or set /sys/kernel/mm/transparent_hugepage/shmem_enabled to "
			    "advise");
	return 0;
}

static int check_memlock(struct kvpd_ledger *l)
{
	struct rlimit lim;
	rlim_t want = l->memory + MEMLOCK_MORE;

	if (l->mlock == KVPD_NEVER || getrlimit(RLIMIT_MEMLOCK, &lim) < 0)
		return 0;
	if (lim.rlim_cur == RLIM_INFINITY || lim.rlim_cur >= want)
		return 0;
	lim.rlim_cur = want;
	if (lim.rlim_max != RLIM_INFINITY && lim.rlim_max < want)
		lim.rlim_max = want; /* granted to root alone */
	if (setrlimit(RLIMIT_MEMLOCK, &lim) == 0)
		return 0;
	if (l->mlock == KVPD_REQUIRE) {
		kvpd_err("mlock: require, but RLIMIT_MEMLOCK allows less than the %" PRIu64
			 " MiB of `memory`; "
			 "set LimitMEMLOCK=infinity in the unit, or ulimit -l",
			l->memory / MIB);
		return -EPERM;
	}
	kvpd_notice("memory is not locked: RLIMIT_MEMLOCK is too small; set LimitMEMLOCK=infinity "
		    "in the unit, or ulimit -l");
	l->mlock = KVPD_NEVER;
	return 0;
}

static int check_memory(const struct kvpd_ledger *l)
{
	const struct kvpd_group *g;
	struct kvpd_memory m;

	/* Reserved huge pages are not part of what is available. */
	if (l->hugetlb)
		return 0;
	kvpd_memory_read("", &m);
	g = kvpd_memory_lowest(&m);
	if (l->memory > kvpd_memory_most(&m)) {
		kvpd_err("memory: %" PRIu64 " MiB asked for, but %s%s has %" PRIu64
			 " MiB in all; at most %" PRIu64 " MiB can be had here: lower `memory`%s",
			l->memory / MIB, g ? "the control group " : "the machine", g ? g->path : "",
			(g ? g->limit : m.total) / MIB, kvpd_memory_most(&m) / MIB,
			g ? ", or raise the group's limit" : "");
		return -ENOMEM;
	}
	/* Perhaps engines still hold the memory of the daemon that was here before. */
	if (kvpd_memory_spare(&m) < l->memory)
		kvpd_warning("memory: only %" PRIu64 " of %" PRIu64
			     " MiB can be had now; the pools grow as far as there is memory",
			kvpd_memory_spare(&m) / MIB, l->memory / MIB);
	return 0;
}

int kvpd_pool_check(struct kvpd_ledger *l)
{
	int r;

	r = check_huge(l);
	if (r == 0)
		r = check_memory(l);
	return r < 0 ? r : check_memlock(l);
}

/* ---- first touch ---------------------------------------------------------------------------- */

struct populate {
	uint8_t *addr;
	int fd;
	uint64_t bytes;
	_Atomic(uint64_t) next;
	_Atomic(int) error;
	_Atomic(bool) huge;
};

/*
 * The kernel makes a huge page in one go: on a processor that is making one, the ledger waits until it is there, whatever
 * their priorities (kernels with `preempt=none` or `voluntary`). A tenth of a millisecond is little, but memory that is in
 * pieces, or that the host of a virtual machine had taken back, takes several: then pages are small for a while, and
 * others get the processor between them.
 */
static _Atomic(uint64_t) no_huge_until_ns;

/* A piece as one page. False: small ones are to be brought in, there and in what follows. */
static bool touch_huge(struct populate *p, uint64_t at)
{
	uint64_t begun = kvpd_now_ns(), worked = kvpd_thread_ns(), now;
	bool whole;

	if (!atomic_load(&p->huge) || at % PIECE || p->bytes - at < PIECE)
		return false;
	whole = kvp_seg_huge(p->addr + at) == 0;
	worked = kvpd_thread_ns() - worked;
	now = kvpd_now_ns();
	if (!whole || worked >= HUGE_MOST_NS || now - begun >= HUGE_WAIT_NS)
		atomic_store(&no_huge_until_ns, now + HUGE_REST_NS);
	if (now < atomic_load(&no_huge_until_ns))
		atomic_store(&p->huge, false);
	return whole;
}

static int touch(struct populate *p, uint64_t at, uint64_t n)
{
	int r = madvise(p->addr + at, n, MADV_POPULATE_WRITE) < 0 ? errno : 0;

	if (r == EINVAL) /* an older kernel */
		r = fallocate(p->fd, 0, (off_t)at, (off_t)n) < 0 ? errno : 0;
	return r == ENOSPC || r == EFAULT ? ENOMEM : r;
}

/*
 * Returns 0 when there is nothing left to touch. The kernel clears pages for a tick's 4 ms, whoever waits
 * for the processor: where others do, they get it between small pieces, each of which returns to this
 * process, and for certain while it naps.
 */
static int touch_next(struct populate *p)
{
	static _Thread_local struct kvpd_crowd crowd;
	static _Thread_local uint32_t small;
	const struct timespec nap = { .tv_nsec = 50000 };
	bool crowded = kvpd_crowded(&crowd, kvpd_now_ns()), huge = atomic_load(&p->huge);
	uint64_t piece = crowded && !huge ? SMALL_PIECE : PIECE;
	uint64_t at = atomic_fetch_add(&p->next, piece);
	int r = 0;

	if (at >= p->bytes || atomic_load(&p->error))
		return 0;
	if (!huge || !touch_huge(p, at))
		r = touch(p, at, p->bytes - at < piece ? p->bytes - at : piece);
	if (r)
		atomic_store(&p->error, r);
	if (crowded && (huge || ++small % NAP_PIECES == 0))
		clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, NULL);
	return 1;
}

static void *populate_main(void *arg)
{
	while (touch_next(arg))
		;
	return NULL;
}

static void populate_begin(
	struct populate *p, const struct kvpd_ledger *l, void *addr, int fd, uint64_t bytes)
{
	*p = (struct populate){
		.addr = addr,
		.fd = fd,
		.bytes = bytes,
		.huge = l->hugepages != KVPD_NEVER && !l->hugetlb &&
			kvpd_now_ns() >= atomic_load(&no_huge_until_ns),
	};
}

/* The kernel would rather kill somebody than refuse. */
static bool has_memory(const struct kvpd_ledger *l, uint64_t bytes)
{
	struct kvpd_memory m;

	kvpd_memory_read("", &m);
	return l->hugetlb ||
	       (kvpd_memory_spare(&m) >= bytes && l->pressed_until_ns <= kvpd_now_ns());
}

static int populate(const struct kvpd_ledger *l, void *addr, int fd, uint64_t bytes)
{
	uint64_t said = kvpd_now_ns(), parts = (bytes + PER_THREAD - 1) / PER_THREAD;
	pthread_t helper[MAX_THREADS];
	struct populate p;
	uint32_t n = 0;

	if (!has_memory(l, bytes))
		return -ENOMEM;
	populate_begin(&p, l, addr, fd, bytes);
	while (n + 1 < l->populate_threads && n + 1 < parts && n < MAX_THREADS) {
		if (pthread_create(&helper[n], NULL, populate_main, &p))
			break; /* slower, not wrong */
		n++;
	}
	while (touch_next(&p)) {
		uint64_t now = kvpd_now_ns(), at = atomic_load(&p.next);

		if (now - said < PROGRESS_NS)
			continue;
		said = now;
		kvpd_info("populating: %" PRIu64 " of %" PRIu64 " MiB",
			(at < bytes ? at : bytes) / MIB, bytes / MIB);
	}
	for (uint32_t i = 0; i < n; i++)
		pthread_join(helper[i], NULL);
	return -atomic_load(&p.error);
}

static int bind_node(int node, void *addr, uint64_t bytes)
{
	struct bitmask *nodes;
	int r;

	if (node < 0)
		return 0;
	nodes = numa_allocate_nodemask();
	if (!nodes)
		return -ENOMEM;
	numa_bitmask_setbit(nodes, (unsigned)node);
	r = mbind(addr, bytes, MPOL_BIND, nodes->maskp, nodes->size + 1, 0) < 0 ? -errno : 0;
	numa_bitmask_free(nodes);
	return r;
}

static int lock_memory(const struct kvpd_ledger *l, const void *addr, uint64_t bytes)
{
	static struct kvpd_ratelimit limit = KVPD_RATELIMIT(3600, 1);
	int r;

	if (l->mlock == KVPD_NEVER || mlock(addr, bytes) == 0)
		return 0;
	r = -errno;
	kvpd_log_limited(&limit, KVPD_LOG_WARNING, NULL,
		"mlock: %s; raise RLIMIT_MEMLOCK (LimitMEMLOCK= in the unit)", strerror(-r));
	return l->mlock == KVPD_REQUIRE ? r : 0;
}

static int create(const struct kvpd_ledger *l, const char *name, uint64_t bytes, int *ret_fd)
{
	kvp_autoclose int fd = -1;
	int r = kvp_seg_create(name, bytes, l->hugetlb ? KVP_SEG_HUGETLB : 0, &fd);

	if (r < 0)
		return r;
	/* Else the daemon could not re-open it once it is that user. */
	if (l->owner != geteuid() && fchown(fd, l->owner, (gid_t)-1) < 0)
		return -errno;
	*ret_fd = kvp_take_fd(&fd);
	return 0;
}

static uint32_t map_flags(const struct kvpd_ledger *l)
{
	return KVP_MAP_DONTFORK | KVP_MAP_DONTDUMP |
	       (l->hugepages != KVPD_NEVER ? KVP_MAP_HUGEPAGE : 0);
}

int kvpd_pool_segment(const struct kvpd_ledger *l, int node, const char *name, uint64_t bytes,
	bool populated, int *ret_fd, void **ret_addr)
{
	kvp_autoclose int fd = -1;
	void *addr;
	int r = create(l, name, bytes, &fd);

	if (r < 0)
		return r;
	r = kvp_seg_map(fd, bytes, KVP_MAP_WRITE | map_flags(l), &addr);
	if (r < 0)
		return r;
	r = bind_node(node, addr, bytes);
	if (r == 0 && populated)
		r = populate(l, addr, fd, bytes);
	if (r < 0) {
		kvp_seg_unmap(addr, bytes);
		return r;
	}
	*ret_fd = kvp_take_fd(&fd);
	*ret_addr = addr;
	return 0;
}

/* ---- jobs ----------------------------------------------------------------------------------- */

struct extent_job {
	struct kvpd_job job;
	struct kvpd_extent *extent;
	bool arena;
	int node;
	int result;
};

/*
 * The daemon reads arenas through a read-only descriptor: a mapping made through a writable one
 * counts as a possible writer and would make F_SEAL_WRITE fail.
 */
static int remap_read_only(const struct kvpd_ledger *l, int fd, uint64_t bytes, void **addr)
{
	kvp_autoclose int ro = -1;
	int r;

	kvp_seg_unmap(*addr, bytes);
	*addr = NULL;
	r = kvp_seg_reopen_ro(fd, &ro);
	if (r < 0)
		return r;
	return kvp_seg_map(ro, bytes, map_flags(l), addr);
}

/* What was populated becomes an arena's memory. Unmapped on failure. */
static int arena_finish(const struct kvpd_ledger *l, int fd, uint64_t bytes, void **addr)
{
	int r = remap_read_only(l, fd, bytes, addr);

	if (r == 0)
		r = lock_memory(l, *addr, bytes);
	if (r < 0) {
		kvp_seg_unmap(*addr, bytes);
		*addr = NULL;
	}
	return r;
}

static int make_arena(
	const struct kvpd_ledger *l, int node, uint64_t bytes, int *ret_fd, void **ret_addr)
{
	kvp_autoclose int fd = -1;
	void *addr;
	int r = kvpd_pool_segment(l, node, "kvpool-arena", bytes, true, &fd, &addr);

	if (r == 0)
		r = arena_finish(l, fd, bytes, &addr);
	if (r < 0)
		return r;
	*ret_fd = kvp_take_fd(&fd);
	*ret_addr = addr;
	return 0;
}

/* A piece at a time: one who waits for memory would wait for all of this first. */
static int touch_ahead(struct kvpd_ledger *l, struct kvpd_pool_ahead *a)
{
	struct populate p;

	if (!has_memory(l, a->bytes - a->touched))
		return -ENOMEM;
	populate_begin(&p, l, a->addr, a->fd, a->bytes);
	atomic_store(&p.next, a->touched);
	while (touch_next(&p)) {
		uint64_t at = atomic_load(&p.next);

		a->touched = at < a->bytes ? at : a->bytes;
		if (at < a->bytes && !atomic_load(&p.error) && kvpd_worker_waited_for(&l->pool))
			return -EAGAIN;
	}
	return -atomic_load(&p.error);
}

int kvpd_pool_ahead(struct kvpd_ledger *l, int node, struct kvpd_pool_ahead *a)
{
	int r = 0;

	if (a->fd < 0) {
		a->touched = 0;
		r = kvpd_pool_segment(l, node, "kvpool-arena", a->bytes, false, &a->fd, &a->addr);
	}
	if (r == 0)
		r = touch_ahead(l, a);
	if (r == 0)
		r = arena_finish(l, a->fd, a->bytes, &a->addr);
	if (r < 0 && r != -EAGAIN)
		kvpd_pool_ahead_drop(a);
	return r;
}

void kvpd_pool_ahead_drop(struct kvpd_pool_ahead *a)
{
	if (a->fd < 0)
		return;
	kvp_seg_unmap(a->addr, a->bytes);
	close(a->fd);
	a->fd = -1;
	a->addr = NULL;
}

static void unmake(struct kvpd_extent *x)
{
	kvp_seg_unmap(x->addr, x->bytes);
	x->addr = NULL;
	if (x->fd >= 0)
		close(x->fd);
	x->fd = x->watch = -1;
}

static void run_make(struct kvpd_job *job)
{
	struct extent_job *j = kvpd_container(job, struct extent_job, job);
	struct kvpd_extent *x = j->extent;
	const struct kvpd_ledger *l = x->tenant->ledger;
	int r;

	if (j->arena) {
		j->result = make_arena(l, j->node, x->bytes, &x->fd, &x->addr);
		return;
	}
	r = kvpd_pool_segment(l, j->node, "kvpool-vault", x->bytes, true, &x->fd, &x->addr);
	if (r == 0)
		r = kvp_seg_seal(x->fd, KVP_SEALS_VAULT);
	if (r == 0)
		r = lock_memory(l, x->addr, x->bytes);
	if (r < 0)
		unmake(x);
	j->result = r;
}

static void done_make(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct extent_job *j = kvpd_container(job, struct extent_job, job);

	kvpd_ledger_charge(l, j->extent->tenant);
	j->extent->tenant->n_jobs--;
	kvpd_extent_made(j->extent, j->result);
	free(j);
}

/*
 * The last step of the proof. A lease does not count a descriptor opened with O_PATH, and such a one
 * keeps the memory, so the daemon closes its own and sees whether that was the end.
 */
static int let_go(struct kvpd_extent *x)
{
	int watches = x->tenant->ledger->watches_fd;

	x->watch = kvp_seg_watch(watches, x->fd);
	if (x->watch < 0)
		return 0; /* no more watches for this user: the lease has to do */
	close(x->fd);
	x->fd = -1;
	return kvp_seg_gone(watches, x->watch) ? 0 : -EBUSY;
}

/*
 * An arena's memory is never used again, for nobody: extents are made anew. But it is the machine's
 * until the last process that has it open or mapped lets go, and so long the tenant is charged for
 * it: a child of the client may have the arena still, or the client says falsely that it has
 * unmapped it. Two questions to the kernel prove that it is over. A lease is given to who is alone
 * with the file. F_SEAL_WRITE is refused while somebody may write through a mapping, and while
 * pages are pinned, which it may wait for. A client can forbid the seal (F_SEAL_SEAL): the lease
 * alone is enough then, and pages that it pinned count against its own limit of locked memory.
 */
static int prove(struct kvpd_extent *x)
{
	int alone, sealed;

	if (x->watch >= 0)
		return kvp_seg_gone(x->tenant->ledger->watches_fd, x->watch) ? 0 : -EBUSY;

	/* Nothing lies there any more. The daemon's own mapping is a reader too. */
	kvp_seg_unmap(x->addr, x->bytes);
	x->addr = NULL;
	alone = kvp_seg_unused(x->fd);
	if (alone == -EBUSY || alone == -EAGAIN)
		return alone;
	sealed = kvp_seg_seal(x->fd, F_SEAL_WRITE);
	if (sealed == -EPERM)
		sealed = alone;
	return sealed ? sealed : let_go(x);
}

/*
 * A vault extent's pages are punched out first: a client that falsely reports an unmap would
 * otherwise keep memory that no tenant is charged for. In an arena its seals forbid the punch.
 */
static void run_drop(struct kvpd_job *job)
{
	struct extent_job *j = kvpd_container(job, struct extent_job, job);
	struct kvpd_extent *x = j->extent;

	j->result = j->arena ? prove(x) : 0;
	if (!j->arena)
		(void)fallocate(
			x->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)x->bytes);
	if (j->result == 0)
		unmake(x);
}

static void done_drop(struct kvpd_ledger *l, struct kvpd_job *job)
{
	struct extent_job *j = kvpd_container(job, struct extent_job, job);

	kvpd_ledger_charge(l, j->extent->tenant);
	j->extent->tenant->n_jobs--;
	kvpd_extent_dropped(j->extent, j->result);
	free(j);
}

static int submit(struct kvpd_worker *worker, struct kvpd_extent *x, void (*run)(struct kvpd_job *),
	void (*done)(struct kvpd_ledger *, struct kvpd_job *))
{
	struct extent_job *j = calloc(1, sizeof(*j));

	if (!j)
		return -ENOMEM;
	j->extent = x;
	j->arena = x->kind == KVP_EXTENT_ARENA;
	j->node = x->tenant->ledger->numa_node;
	if (j->node == KVPD_NODE_AUTO && !j->arena)
		j->node = kvpd_parts_node(x->tenant);
	j->result = -ECANCELED; /* stays so if the thread is stopped before */
	j->job.tenant = x->tenant->id;
	j->job.run = run;
	j->job.done = done;
	x->tenant->n_jobs++;
	kvpd_worker_submit(worker, &j->job);
	return 0;
}

int kvpd_pool_make(struct kvpd_extent *x)
{
	return submit(&x->tenant->ledger->pool, x, run_make, done_make);
}

int kvpd_pool_drop(struct kvpd_extent *x)
{
	return submit(&x->tenant->ledger->dropper, x, run_drop, done_drop);
}

void kvpd_pool_drop_now(struct kvpd_extent *x)
{
	unmake(x);
}
