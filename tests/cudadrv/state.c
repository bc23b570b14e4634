/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/cudadrv/state.h"

/* Bytes of the state file that are locked: the state itself, and one for each process. */
#define LOCK_STATE   0
#define LOCK_PROCESS 4096
/* Bytes of a segment's file: who holds it, who opened it as a legacy handle. */
#define LOCK_HELD   0
#define LOCK_SHARED 1

const char *const sim_function_names[SIM_FUNCTIONS] = {
#define SIM_NAME(name, args) [SIM_##name] = #name,
	CU_FUNCTIONS(SIM_NAME) CU_OPTIONAL(SIM_NAME)
#undef SIM_NAME
		[SIM_OP_COPY] = "op:copy",
	[SIM_OP_SET] = "op:set",
	[SIM_OP_KERNEL] = "op:kernel",
	[SIM_OP_WRITE] = "op:write",
	[SIM_OP_WAIT] = "op:wait",
};

static const char *const report_names[CUDADRV_REPORTS_N] = {
#define REPORT_NAME(id, name) [CUDADRV_##id] = name,
	CUDADRV_REPORTS(REPORT_NAME)
#undef REPORT_NAME
};

const char *cudadrv_report_name(enum cudadrv_report kind)
{
	return kind < CUDADRV_REPORTS_N ? report_names[kind] : "all";
}

uint64_t sim_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t sim_random(uint64_t *seed)
{
	uint64_t x = *seed += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

void sim_uuid(const struct sim_state *s, uint32_t device, uint8_t ret_uuid[16])
{
	uint64_t seed = s->nonce + device, half;

	for (int i = 0; i < 2; i++) {
		half = sim_random(&seed);
		memcpy(ret_uuid + 8 * i, &half, 8);
	}
}

/* ---- locks of descriptions ---- */

static int lock_byte(int fd, int command, short type, off_t byte)
{
	struct flock l = { .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };

	while (fcntl(fd, command, &l) < 0)
		if (errno != EINTR)
			return -errno;
	return command == F_OFD_GETLK ? l.l_type != F_UNLCK : 0;
}

/* The state by another description. */
static int open_again(const struct sim_shared *sh)
{
	char path[32];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", sh->fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	return fd < 0 ? openat(sh->folder, "state", O_RDWR | O_CLOEXEC) : fd;
}

void sim_shared_renew(struct sim_shared *sh)
{
	int fd = open_again(sh);

	if (fd < 0)
		return;
	/* The mapping holds the old one as well. */
	(void)!mmap(sh->s, sizeof(*sh->s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
	dup3(fd, sh->fd, O_CLOEXEC);
	close(fd);
}

void sim_lock(struct sim_shared *sh)
{
	pthread_mutex_lock(&sh->mutex);
	lock_byte(sh->fd, F_OFD_SETLKW, F_WRLCK, LOCK_STATE);
}

void sim_unlock(struct sim_shared *sh)
{
	lock_byte(sh->fd, F_OFD_SETLK, F_UNLCK, LOCK_STATE);
	pthread_mutex_unlock(&sh->mutex);
}

/* ---- the state file ---- */

void cudadrv_defaults(struct cudadrv_config *ret_config)
{
	*ret_config = (struct cudadrv_config){
		.devices = 1,
		.driver_version = 13000,
		.vram_bytes = UINT64_C(8) << 30,
		.context_bytes = UINT64_C(128) << 20,
		.seed = 1,
		.linger_ns = 20000000,
	};
}

static void fill_in(struct cudadrv_config *c)
{
	struct cudadrv_config d;

	cudadrv_defaults(&d);
	c->devices = c->devices ? c->devices : d.devices;
	c->devices = c->devices > SIM_DEVICES ? SIM_DEVICES : c->devices;
	c->driver_version = c->driver_version ? c->driver_version : d.driver_version;
	c->vram_bytes = c->vram_bytes ? c->vram_bytes : d.vram_bytes;
	c->context_bytes = c->context_bytes ? c->context_bytes : d.context_bytes;
	c->seed = c->seed ? c->seed : d.seed;
	c->linger_ns = c->linger_ns ? c->linger_ns : d.linger_ns;
}

static int map_state(struct sim_shared *sh)
{
	void *p =
		mmap(NULL, sizeof(struct sim_state), PROT_READ | PROT_WRITE, MAP_SHARED, sh->fd, 0);

	if (p == MAP_FAILED)
		return -errno;
	sh->s = p;
	return 0;
}

static int open_in(const char *folder, int flags, struct sim_shared *ret_sh)
{
	struct sim_shared sh = { .folder = -1, .fd = -1 };
	int r = 0;

	sh.folder = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (sh.folder < 0)
		return -errno;
	sh.fd = openat(sh.folder, "state", O_RDWR | O_CLOEXEC | flags, 0666);
	if (sh.fd < 0)
		r = -errno;
	if (r == 0 && (flags & O_CREAT) &&
		(fchmod(sh.fd, 0666) < 0 || ftruncate(sh.fd, sizeof(struct sim_state)) < 0))
		r = -errno;
	if (r == 0) {
		struct stat st;

		r = fstat(sh.fd, &st) < 0                    ? -errno
		    : st.st_size != sizeof(struct sim_state) ? -EPROTO
							     : map_state(&sh);
	}
	if (r < 0) {
		if (sh.fd >= 0)
			close(sh.fd);
		close(sh.folder);
		return r;
	}
	pthread_mutex_init(&sh.mutex, NULL);
	*ret_sh = sh;
	return 0;
}

int sim_shared_make(const char *folder, const struct cudadrv_config *config)
{
	struct sim_shared sh;
	int r = open_in(folder, O_CREAT | O_EXCL, &sh), fd;

	if (r < 0)
		return r;
	fd = openat(sh.folder, "reports", O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (fd < 0 || fchmod(fd, 0666) < 0 || chmod(folder, 0777) < 0)
		r = -errno;
	if (fd >= 0)
		close(fd);
	if (getrandom(&sh.s->nonce, sizeof(sh.s->nonce), 0) < 0)
		r = -errno;
	sh.s->version = SIM_VERSION;
	sh.s->config = *config;
	fill_in(&sh.s->config);
	sh.s->next_segment = sh.s->next_life = 1;
	sh.s->magic = SIM_MAGIC;
	atomic_thread_fence(memory_order_release);
	sh.s->ready = r == 0;
	sim_shared_close(&sh);
	return r;
}

int sim_shared_open(const char *folder, struct sim_shared *ret_sh)
{
	struct sim_shared sh;
	int r = open_in(folder, 0, &sh);

	if (r < 0)
		return r;
	if (sh.s->magic != SIM_MAGIC || sh.s->version != SIM_VERSION || !sh.s->ready) {
		sim_shared_close(&sh);
		return -EPROTO;
	}
	*ret_sh = sh;
	return 0;
}

void sim_shared_close(struct sim_shared *sh)
{
	munmap(sh->s, sizeof(struct sim_state));
	close(sh->fd);
	close(sh->folder);
	pthread_mutex_destroy(&sh->mutex);
}

/* ---- segments ---- */

static void name_of(uint64_t id, char name[32])
{
	snprintf(name, 32, "seg.%llu", (unsigned long long)id);
}

static size_t meta_bytes(uint64_t bytes)
{
	size_t n = offsetof(struct sim_meta, touched) + (bytes + SIM_GRANULE - 1) / SIM_GRANULE;

	return (n + 4095) & ~(size_t)4095;
}

static int open_segment(struct sim_shared *sh, uint64_t id, int flags)
{
	char name[32];
	int fd;

	name_of(id, name);
	fd = openat(sh->folder, name, O_RDWR | O_CLOEXEC | flags, 0666);
	return fd < 0 ? -errno : fd;
}

static bool is_locked(int fd, off_t byte)
{
	return lock_byte(fd, F_OFD_GETLK, F_WRLCK, byte) != 0;
}

uint64_t sim_sweep(struct sim_shared *sh, uint32_t device)
{
	uint64_t held = 0;

	for (uint32_t i = 0; i < sh->s->segments; i++) {
		struct sim_segment *g = &sh->s->segment[i];
		int fd;

		if (!g->used)
			continue;
		fd = open_segment(sh, g->id, 0);
		if (fd < 0 || !is_locked(fd, LOCK_HELD)) {
			char name[32];

			name_of(g->id, name);
			unlinkat(sh->folder, name, 0);
			g->used = 0;
		} else if (g->device == device && g->kind != SIM_HOST_VMM) {
			held += g->bytes;
		}
		if (fd >= 0)
			close(fd);
	}
	return held;
}

uint32_t sim_count(struct sim_shared *sh)
{
	uint32_t n = 0;

	sim_sweep(sh, 0);
	for (uint32_t i = 0; i < sh->s->segments; i++)
		n += sh->s->segment[i].used;
	return n;
}

static int map_meta(int fd, uint64_t bytes, struct sim_ref *ret_ref)
{
	size_t n = meta_bytes(bytes);
	void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
		(off_t)((bytes + 4095) & ~UINT64_C(4095)));

	if (p == MAP_FAILED)
		return -errno;
	*ret_ref = (struct sim_ref){ p, n };
	return 0;
}

static struct sim_segment *free_segment(struct sim_shared *sh)
{
	for (uint32_t i = 0; i < SIM_SEGMENTS; i++)
		if (!sh->s->segment[i].used) {
			sh->s->segments = i < sh->s->segments ? sh->s->segments : i + 1;
			return &sh->s->segment[i];
		}
	return NULL;
}

int sim_segment_make(struct sim_shared *sh, const struct sim_meta *like, struct sim_ref *ret_ref)
{
	struct sim_segment *g = free_segment(sh);
	struct stat st;
	uint64_t id;
	int fd, r = 0;

	if (!g)
		return -ENOMEM;
	/* first of all: who is killed here leaves a file without memory, not a name that is taken */
	id = sh->s->next_segment++;
	fd = open_segment(sh, id, O_CREAT | O_EXCL);
	if (fd < 0)
		return fd;
	if (fchmod(fd, 0666) < 0 || fstat(fd, &st) < 0 ||
		ftruncate(fd, (off_t)(((like->bytes + 4095) & ~UINT64_C(4095)) +
				      meta_bytes(like->bytes))) < 0)
		r = -errno;
	if (r == 0)
		r = lock_byte(fd, F_OFD_SETLK, F_RDLCK, LOCK_HELD);
	if (r == 0)
		r = map_meta(fd, like->bytes, ret_ref);
	if (r == 0) {
		memcpy(ret_ref->meta, like, offsetof(struct sim_meta, touched));
		ret_ref->meta->id = id;
		ret_ref->meta->magic = SIM_MAGIC;
		*g = (struct sim_segment){ .kind = like->kind,
			.device = like->device,
			.id = id,
			.bytes = like->bytes,
			.ino = st.st_ino };
		g->used = 1;
	}
	close(fd);
	return r;
}

int sim_segment_open(struct sim_shared *sh, uint64_t id)
{
	int fd = open_segment(sh, id, 0), r;

	if (fd < 0)
		return fd;
	r = lock_byte(fd, F_OFD_SETLK, F_RDLCK, LOCK_HELD);
	if (r == 0)
		return fd;
	close(fd);
	return r;
}

int sim_segment_of(struct sim_shared *sh, int fd, uint64_t *ret_id)
{
	struct stat st, mine;
	int r = -EINVAL;

	if (fstat(fd, &st) < 0 || fstat(sh->fd, &mine) < 0 || st.st_dev != mine.st_dev)
		return -EINVAL;
	sim_lock(sh);
	for (uint32_t i = 0; r < 0 && i < sh->s->segments; i++) {
		if (sh->s->segment[i].used && sh->s->segment[i].ino == st.st_ino) {
			*ret_id = sh->s->segment[i].id;
			r = 0;
		}
	}
	sim_unlock(sh);
	return r;
}

int sim_ref_take(struct sim_shared *sh, uint64_t id, struct sim_ref *ret_ref)
{
	uint64_t bytes = 0;
	int fd = -ENOENT, r;

	/* within the lock, so that nobody sweeps it between opening and locking */
	sim_lock(sh);
	for (uint32_t i = 0; fd < 0 && i < sh->s->segments; i++) {
		if (sh->s->segment[i].used && sh->s->segment[i].id == id) {
			bytes = sh->s->segment[i].bytes;
			fd = open_segment(sh, id, 0);
			if (fd >= 0 && !is_locked(fd, LOCK_HELD)) {
				close(fd);
				fd = -ENOENT;
				break;
			}
		}
	}
	if (fd >= 0)
		lock_byte(fd, F_OFD_SETLK, F_RDLCK, LOCK_HELD);
	sim_unlock(sh);
	if (fd < 0)
		return fd;
	r = map_meta(fd, bytes, ret_ref);
	close(fd);
	return r;
}

void sim_ref_drop(struct sim_ref *ref)
{
	if (ref->meta)
		munmap(ref->meta, ref->meta_bytes);
	*ref = (struct sim_ref){ NULL, 0 };
}

void *sim_segment_map(struct sim_shared *sh, const struct sim_meta *meta)
{
	int fd = sim_segment_open(sh, meta->id), error;
	void *p;

	if (fd < 0) {
		errno = -fd;
		return MAP_FAILED;
	}
	p = mmap(NULL, meta->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	error = errno;
	close(fd);
	errno = error;
	return p;
}

int sim_segment_share(int fd)
{
	return lock_byte(fd, F_OFD_SETLK, F_RDLCK, LOCK_SHARED);
}

bool sim_segment_shared(struct sim_shared *sh, uint64_t id)
{
	int fd = open_segment(sh, id, 0);
	bool shared = fd >= 0 && is_locked(fd, LOCK_SHARED);

	if (fd >= 0)
		close(fd);
	return shared;
}

/* ---- processes ---- */

int sim_process_join(struct sim_shared *sh, uint32_t *ret_slot, int *ret_fd)
{
	int fd = open_again(sh);

	if (fd < 0)
		return -errno;
	for (uint32_t i = 0; i < SIM_PROCESSES; i++) {
		struct sim_process *p = &sh->s->process[i];

		/* one that died a moment ago may have writes on the way still */
		if (p->used && sim_process_lives(sh, i, p->life))
			continue;
		if (p->used && sim_now() - p->died < sh->s->config.linger_ns)
			continue;
		if (lock_byte(fd, F_OFD_SETLK, F_WRLCK, LOCK_PROCESS + i) < 0)
			continue;
		*p = (struct sim_process){ .pid = getpid(), .life = sh->s->next_life++ };
		snprintf(p->name, sizeof(p->name), "%.15s", program_invocation_short_name);
		p->used = 1;
		*ret_slot = i;
		*ret_fd = fd;
		return 0;
	}
	close(fd);
	return -EUSERS;
}

bool sim_process_lives(struct sim_shared *sh, uint32_t slot, uint64_t life)
{
	struct sim_process *p = &sh->s->process[slot];

	if (!p->used || p->life != life)
		return false;
	if (p->died)
		return false;
	if (is_locked(sh->fd, LOCK_PROCESS + slot))
		return true;
	p->died = sim_now();
	return false;
}

/* ---- reports ---- */

void sim_report(
	struct sim_shared *sh, enum cudadrv_report kind, const char *program, const char *text)
{
	char line[400];
	int fd, n;

	n = snprintf(line, sizeof(line), "%s %d %.15s %s\n", report_names[kind], (int)getpid(),
		program, text);
	if (n >= (int)sizeof(line)) {
		n = sizeof(line) - 1;
		line[n - 1] = '\n';
	}
	fd = openat(sh->folder, "reports", O_WRONLY | O_APPEND | O_CLOEXEC);
	if (fd >= 0) {
		if (write(fd, line, (size_t)n) < 0)
			fprintf(stderr, "cudadrv: the next report is in no file\n");
		close(fd);
	}
	if (!getenv("KVP_SIM_QUIET"))
		fprintf(stderr, "cudadrv: %s", line);
	/* after the line: who has seen the count finds it */
	atomic_fetch_add(&sh->s->reports[kind], 1);
}

/* ---- faults ---- */

int sim_fault_strikes(struct sim_shared *sh, uint32_t function, const char *program)
{
	int struck = -1;

	if (atomic_load(&sh->s->n_faults) == 0)
		return -1;
	sim_lock(sh);
	for (uint32_t i = 0; struck < 0 && i < SIM_FAULTS; i++) {
		struct sim_fault *f = &sh->s->fault[i];

		if (!atomic_load(&f->used) || f->function != function)
			continue;
		if (f->program[0] && strncmp(f->program, program, 15) != 0)
			continue;
		if (f->skip > 0) {
			f->skip--;
			continue;
		}
		if (f->times > 0 && atomic_load(&f->hits) >= f->times)
			continue;
		atomic_fetch_add(&f->hits, 1);
		struck = (int)i;
	}
	sim_unlock(sh);
	return struck;
}
