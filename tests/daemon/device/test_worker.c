/* SPDX-License-Identifier: Apache-2.0 */
/* A device with its real worker process: memory and copies, workers that are killed, and faults. */
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/device/device.h"
#include "daemon/log.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_seg.h"

#define MIB (UINT64_C(1) << 20)

struct world {
	struct kvpd_device *device;
	int event;
	uint32_t done;
};

static void wake(void *ctx)
{
	(void)eventfd_write(((struct world *)ctx)->event, 1);
}

static struct world *w;

static void on_done(struct kvpd_device_work *work)
{
	(void)work;
	w->done++;
}

static void open_device(
	struct world *ret, const char *driver, const char *faults, uint32_t timeout_ms)
{
	struct kvpd_device_config c = {
		.name = "test",
		.driver = driver,
		.faults = faults,
		.worker = getenv("KVPOOL_DEVICE"),
		.bytes = 64 * MIB,
		.timeout_ms = timeout_ms,
		.restart_ms = 1,
		.wake = wake,
		.ctx = ret,
	};

	*ret = (struct world){ .event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	w = ret;
	assert_int_equal(kvpd_device_new(&c, &ret->device), 0);
}

static void close_device(void)
{
	w->device = kvpd_device_free(w->device);
	close(w->event);
}

/* Waits until so many pieces of work are done in all. */
static void wait_done(uint32_t n)
{
	while (w->done < n) {
		struct pollfd p = { .fd = w->event, .events = POLLIN };
		eventfd_t value;

		if (kvpd_device_drain(w->device, 3))
			continue;
		assert_int_equal(poll(&p, 1, 60000), 1);
		(void)eventfd_read(w->event, &value);
	}
}

static int ask(struct kvpd_device_op *op)
{
	int r;

	op->work.done = on_done;
	r = kvpd_device_ask(w->device, op);
	if (r < 0)
		return r;
	wait_done(w->done + 1);
	return op->work.status;
}

static int copy(struct kvpd_device_copy *c)
{
	uint32_t before = w->done;
	int r;

	c->work.done = on_done;
	r = kvpd_device_copy(w->device, c);
	if (r < 0)
		return r;
	wait_done(before + 1);
	return c->work.status;
}

/* A device that is down takes nothing; it is tried again until it is up. */
static int until_up(int (*f)(struct kvpd_device_copy *), struct kvpd_device_copy *c)
{
	int r;

	while ((r = f(c)) == -ENODEV || r == -EAGAIN)
		poll(NULL, 0, 1);
	return r;
}

static int until_asked(struct kvpd_device_op *op)
{
	int r;

	while ((r = ask(op)) == -ENODEV || r == -EAGAIN)
		poll(NULL, 0, 1);
	return r;
}

struct extent {
	uint32_t id;
	uint64_t bytes;
	int fd; /* that proves */
	unsigned char *addr;
};

static void make_segment(struct extent *x, uint64_t bytes)
{
	struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = bytes };
	int r;

	while ((r = ask(&op)) == -ENODEV)
		poll(NULL, 0, 1);
	assert_int_equal(r, 0);
	assert_int_equal(kvp_seg_check(op.fd, bytes, KVP_SEALS_VAULT), 0);
	*x = (struct extent){ .id = op.id, .bytes = bytes, .fd = op.fd };
	assert_int_equal(kvp_seg_map(op.fd, bytes, KVP_MAP_WRITE, (void **)&x->addr), 0);
}

static void add_extent(struct extent *x, uint64_t bytes, bool writable)
{
	struct kvpd_device_op op = { .kind = KVPD_HOST_ADD, .bytes = bytes, .writable = writable };
	int r;

	*x = (struct extent){ .bytes = bytes };
	assert_int_equal(kvp_seg_create("test-dram", bytes, 0, &x->fd), 0);
	assert_int_equal(kvp_seg_seal(x->fd, KVP_SEALS_FIXED), 0);
	assert_int_equal(kvp_seg_map(x->fd, bytes, KVP_MAP_WRITE, (void **)&x->addr), 0);
	do {
		assert_int_equal(
			(writable ? kvp_seg_reopen_rw : kvp_seg_reopen_ro)(x->fd, &op.fd), 0);
		r = ask(&op);
	} while (r == -ENODEV && (poll(NULL, 0, 1), true));
	assert_int_equal(r, 0);
	x->id = op.id;
}

static void drop(struct extent *x, uint32_t kind)
{
	struct kvpd_device_op op = { .kind = kind, .id = x->id };

	assert_int_equal(ask(&op), 0);
	kvp_seg_unmap(x->addr, x->bytes);
	if (kind == KVPD_HOST_DROP) {
		/* Nobody has it any more: what the proof of an arena needs. */
		assert_int_equal(kvp_seg_unused(x->fd), 0);
		close(x->fd);
	}
}

static int count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static void pattern(unsigned char *p, uint64_t n, uint64_t seed)
{
	for (uint64_t i = 0; i < n; i += 8) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		memcpy(p + i, &seed, 8);
	}
}

static void segments_are_made_and_dropped(void **state)
{
	struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = 65 * MIB };
	struct world world;
	struct extent x, y;
	int fds = count_fds();

	(void)state;
	open_device(&world, "host", NULL, 0);
	make_segment(&x, 24 * MIB);
	make_segment(&y, MIB);
	assert_int_not_equal(x.id, y.id);
	for (uint64_t i = 0; i < x.bytes; i += 512)
		assert_int_equal(x.addr[i], 0);
	assert_int_equal(ask(&op), -ENOMEM);
	op.bytes = 4097;
	assert_int_equal(ask(&op), -EINVAL);
	drop(&x, KVPD_SEG_DROP);
	op = (struct kvpd_device_op){ .kind = KVPD_SEG_DROP, .id = x.id };
	assert_int_equal(kvpd_device_ask(world.device, &op), -EINVAL);
	drop(&y, KVPD_SEG_DROP);
	close_device();
	assert_int_equal(count_fds(), fds);
}

/* A copy alone is summed on the way, chunk by chunk. */
static void sums_are_of_what_arrived(void **state)
{
	static const uint64_t bytes[] = { 64, 4096, 256u << 10, (256u << 10) + 64, MIB + 192,
		2 * MIB };
	struct world world;
	struct extent seg, host;

	(void)state;
	open_device(&world, "host", NULL, 0);
	make_segment(&seg, 4 * MIB);
	add_extent(&host, 4 * MIB, true);
	pattern(host.addr, host.bytes, 1);
	for (uint32_t i = 0; i < 2 * sizeof(bytes) / sizeof(bytes[0]); i++) {
		struct kvpd_device_copy c = {
			.tenant = 1,
			.flags = KVPD_COPY_SUM,
			.way = i % 2 ? KVPD_TO_HOST : KVPD_TO_DEVICE,
			.seg = seg.id,
			.host = host.id,
			.seg_off = 128,
			.host_off = 64,
			.bytes = bytes[i / 2],
		};
		uint64_t sum = kvp_payload_checksum(host.addr + 64, c.bytes);

		assert_int_equal(copy(&c), 0);
		assert_true(c.checksum == sum);
		c.flags = KVPD_COPY_CHECK;
		assert_int_equal(copy(&c), 0);
		c.checksum ^= 2;
		assert_int_equal(copy(&c), -EBADMSG);
		assert_memory_equal(seg.addr + 128, host.addr + 64, c.bytes);
	}
	drop(&host, KVPD_HOST_DROP);
	drop(&seg, KVPD_SEG_DROP);
	close_device();
}

static void copies_go_both_ways(void **state)
{
	struct kvpd_device_copy c = { .tenant = 1, .flags = KVPD_COPY_SUM };
	struct kvpd_device_figures f;
	struct world world;
	struct extent seg, host;

	(void)state;
	open_device(&world, "host", NULL, 0);
	make_segment(&seg, 16 * MIB);
	add_extent(&host, 16 * MIB, true);
	pattern(host.addr, host.bytes, 1);
	c.seg = seg.id;
	c.host = host.id;
	c.host_off = 64;
	c.seg_off = 128;
	c.bytes = 9 * MIB + 40;
	assert_int_equal(copy(&c), 0);
	assert_memory_equal(seg.addr + 128, host.addr + 64, c.bytes);
	assert_int_equal(seg.addr[128 + c.bytes], 0);
	assert_int_equal(seg.addr[127], 0);
	assert_true(c.checksum == kvp_payload_checksum(host.addr + 64, c.bytes));
	/* The sum is right, then it is not. */
	c.flags = KVPD_COPY_CHECK;
	c.way = KVPD_TO_HOST;
	c.kind = KVPD_COPY_BEHIND;
	c.host_off = 0;
	assert_int_equal(copy(&c), 0);
	assert_memory_equal(seg.addr + 128, host.addr, c.bytes);
	seg.addr[5 * MIB] ^= 1;
	assert_int_equal(copy(&c), -EBADMSG);
	kvpd_device_figures(world.device, &f);
	assert_int_equal(f.state, KVPD_DEVICE_UP);
	assert_int_equal(f.damaged, 1);
	assert_int_equal(f.restarts, 0);
	assert_int_equal(f.bytes[KVPD_TO_DEVICE], c.bytes);
	assert_int_equal(f.bytes[KVPD_TO_HOST], 2 * c.bytes);
	assert_int_equal(f.kind[KVPD_COPY_URGENT].done, 1);
	assert_int_equal(f.kind[KVPD_COPY_BEHIND].done, 1);
	assert_int_equal(f.kind[KVPD_COPY_BEHIND].failed, 1);
	drop(&host, KVPD_HOST_DROP);
	drop(&seg, KVPD_SEG_DROP);
	close_device();
}

static void nonsense_is_refused(void **state)
{
	struct kvpd_device_copy c = { .tenant = 1, .bytes = MIB }, bad;
	struct kvpd_device_op op = { .kind = KVPD_HOST_DROP };
	struct world world;
	struct extent seg, host;

	(void)state;
	open_device(&world, "host", NULL, 0);
	make_segment(&seg, MIB);
	add_extent(&host, MIB, false);
	c.seg = seg.id;
	c.host = host.id;
	bad = c;
	bad.bytes = MIB + 1;
	assert_int_equal(kvpd_device_copy(world.device, &bad), -EINVAL);
	bad = c;
	bad.seg_off = 64;
	assert_int_equal(kvpd_device_copy(world.device, &bad), -EINVAL);
	bad = c;
	bad.host_off = UINT64_MAX - 63;
	assert_int_equal(kvpd_device_copy(world.device, &bad), -EINVAL);
	bad = c;
	bad.seg = seg.id + 1;
	assert_int_equal(kvpd_device_copy(world.device, &bad), -EINVAL);
	bad = c;
	bad.way = KVPD_TO_HOST; /* which is read-only */
	assert_int_equal(kvpd_device_copy(world.device, &bad), -EINVAL);
	bad = c;
	bad.tenant = 0;
	assert_int_equal(kvpd_device_copy(world.device, &bad), -EINVAL);
	/* What a copy names is not dropped. */
	c.work.done = on_done;
	op.id = host.id;
	assert_int_equal(kvpd_device_copy(world.device, &c), 0);
	assert_int_equal(kvpd_device_ask(world.device, &op), -EBUSY);
	wait_done(world.done + 1);
	assert_int_equal(c.work.status, 0);
	drop(&host, KVPD_HOST_DROP);
	drop(&seg, KVPD_SEG_DROP);
	close_device();
}

/* ---- workers that die ----------------------------------------------------------------------- */

#define BLOCKS 24u
#define BLOCK  (128u << 10)

/* The only child that this process has; 0: none now. */
static pid_t worker_pid(void)
{
	DIR *tasks = opendir("/proc/self/task");
	const struct dirent *e;
	int pid = 0;

	while (!pid && (e = readdir(tasks))) {
		char path[300];
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%s/children", e->d_name);
		f = fopen(path, "re");
		if (f && fscanf(f, "%d", &pid) != 1)
			pid = 0;
		if (f)
			fclose(f);
	}
	closedir(tasks);
	return pid;
}

/* A segment that a client writes: copies come from there and do not go there. */
static void clients_write_segments(void **state)
{
	struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = MIB, .client = true };
	struct kvpd_device_copy c = { .tenant = 1, .bytes = MIB };
	struct world world;
	struct extent host;
	unsigned char *addr;

	(void)state;
	open_device(&world, "host", NULL, 0);
	assert_int_equal(until_asked(&op), 0);
	assert_int_equal(kvp_seg_check(op.fd, MIB, KVP_SEALS_FIXED), 0);
	assert_int_equal(kvp_seg_map(op.fd, MIB, KVP_MAP_WRITE, (void **)&addr), 0);
	assert_int_equal(kvp_seg_seal(op.fd, KVP_SEALS_ARENA), 0);
	add_extent(&host, MIB, true);
	pattern(addr, MIB, 1);
	c.seg = op.id;
	c.host = host.id;
	assert_int_equal(kvpd_device_copy(world.device, &c), -EINVAL);
	c.way = KVPD_TO_HOST;
	assert_int_equal(until_up(copy, &c), 0);
	assert_memory_equal(host.addr, addr, MIB);
	/* The next worker takes it over, although nobody may map it writable any more. */
	memset(host.addr, 0, MIB);
	assert_int_equal(kill(worker_pid(), SIGKILL), 0);
	assert_int_equal(until_up(copy, &c), 0);
	assert_memory_equal(host.addr, addr, MIB);
	kvp_seg_unmap(addr, MIB);
	drop(&host, KVPD_HOST_DROP);
	op = (struct kvpd_device_op){ .kind = KVPD_SEG_DROP, .id = op.id };
	assert_int_equal(ask(&op), 0);
	close_device();
}

static void round_of_copies(struct kvpd_device_copy *c, const struct extent *seg,
	const struct extent *host, uint64_t seed, bool kill_it)
{
	uint32_t before = w->done;
	const pid_t pid = kill_it ? worker_pid() : 0;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		c[i] = (struct kvpd_device_copy){
			.work = { .done = on_done },
			.way = KVPD_TO_DEVICE,
			.kind = i % KVPD_COPY_KINDS,
			.tenant = 1 + i % 3,
			.seg = seg->id,
			.host = host->id,
			.seg_off = i * BLOCK,
			.host_off = i * BLOCK,
			.bytes = BLOCK,
			.flags = i % 4 ? 0 : KVPD_COPY_SUM,
		};
		pattern(host->addr + i * BLOCK, BLOCK, seed + i);
		assert_int_equal(kvpd_device_copy(w->device, &c[i]), 0);
	}
	if (kill_it) {
		struct timespec t = { .tv_nsec = (long)(seed % 97) * 30000 };

		nanosleep(&t, NULL);
		/* Between a death and its restart there is none, or one that was reaped. */
		if (pid > 0)
			(void)kill(pid, SIGKILL);
	}
	wait_done(before + BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		/* This worker's processor copied, and is gone with it. */
		assert_false(c[i].late);
		if (c[i].work.status == 0) {
			assert_memory_equal(seg->addr + i * BLOCK, host->addr + i * BLOCK, BLOCK);
			continue;
		}
		assert_true(c[i].work.status == -EAGAIN || c[i].work.status == -ENODEV);
		assert_int_equal(until_up(copy, &c[i]), 0);
		assert_memory_equal(seg->addr + i * BLOCK, host->addr + i * BLOCK, BLOCK);
	}
}

static void wait_up(void)
{
	while (kvpd_device_state(w->device) != KVPD_DEVICE_UP)
		poll(NULL, 0, 1);
}

static void killed_workers_lose_nothing(void **state)
{
	static struct kvpd_device_copy c[BLOCKS];
	const char *rounds = getenv("KVP_TEST_ROUNDS");
	const uint32_t n = rounds ? (uint32_t)atoi(rounds) : 200;
	uint64_t seed = getenv("KVP_TEST_SEED") ? strtoull(getenv("KVP_TEST_SEED"), NULL, 0) : 7;
	struct kvpd_device_figures f = { 0 };
	const uint64_t first = seed;
	struct extent seg, host, kept;
	struct world world;
	int fds = count_fds();

	(void)state;
	print_message("seed %llu\n", (unsigned long long)seed);
	open_device(&world, "host", NULL, 0);
	make_segment(&seg, BLOCKS * BLOCK);
	make_segment(&kept, MIB);
	add_extent(&host, BLOCKS * BLOCK, true);
	pattern(kept.addr, MIB, first);
	for (uint32_t i = 0; i < n; i++) {
		seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
		wait_up();
		round_of_copies(c, &seg, &host, seed >> 20, true);
		/* Each kill meets a worker that lives. */
		do {
			poll(NULL, 0, 1);
			kvpd_device_figures(world.device, &f);
		} while (f.restarts <= i);
	}
	wait_up();
	round_of_copies(c, &seg, &host, 5, false);
	/* What nobody copied is as it was: segments outlive their worker. */
	pattern(host.addr, MIB, first);
	assert_memory_equal(kept.addr, host.addr, MIB);
	kvpd_device_figures(world.device, &f);
	print_message("%u rounds, %llu restarts\n", n, (unsigned long long)f.restarts);
	assert_true(f.restarts >= n);
	drop(&kept, KVPD_SEG_DROP);
	drop(&host, KVPD_HOST_DROP);
	drop(&seg, KVPD_SEG_DROP);
	close_device();
	assert_int_equal(count_fds(), fds);
	/* No child is left. */
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
	assert_int_equal(errno, ECHILD);
}

static void what_is_left_is_given_back(void **state)
{
	static struct kvpd_device_copy c[BLOCKS];
	struct extent seg, host;
	struct world world;
	uint32_t before;

	(void)state;
	open_device(&world, "fault", "submit=hang", 0);
	make_segment(&seg, MIB);
	add_extent(&host, MIB, false);
	before = world.done;
	for (uint32_t i = 0; i < BLOCKS; i++) {
		c[i] = (struct kvpd_device_copy){
			.work = { .done = on_done },
			.tenant = 1,
			.seg = seg.id,
			.host = host.id,
			.bytes = MIB,
		};
		assert_int_equal(kvpd_device_copy(world.device, &c[i]), 0);
	}
	world.device = kvpd_device_free(world.device);
	assert_int_equal(world.done, before + BLOCKS);
	for (uint32_t i = 0; i < BLOCKS; i++)
		assert_true(c[i].work.status == -ESHUTDOWN || c[i].work.status == -EAGAIN);
	kvp_seg_unmap(seg.addr, seg.bytes);
	kvp_seg_unmap(host.addr, host.bytes);
	close(host.fd);
	close(world.event);
}

/* ---- what goes wrong ------------------------------------------------------------------------ */

/*
 * One line of faults: a segment, an extent, a copy there and back, and dropping, each with what may
 * come of it. Whatever happens everything ends, and what says that it worked worked.
 */
struct fault {
	const char *rule;
	int make, add, copy; /* 0: it works, at once or when it is asked again */
};

static const struct fault faults[] = {
	{ "open=fail:12", -ENODEV, 0, 0 },
	{ "open=hang", -ENODEV, 0, 0 },
	{ "open=fail:12#0", 0, 0, 0 },
	{ "open=hang#0", 0, 0, 0 },
	{ "open=slow:20", 0, 0, 0 },
	{ "caps=fail:5", -ENODEV, 0, 0 },
	{ "caps=hang#0", 0, 0, 0 },
	{ "caps=slow:20", 0, 0, 0 },
	{ "make=fail:12", -ENOMEM, 0, 0 },
	{ "make=fail:5", -EIO, 0, 0 },
	{ "make=fail:19", -EIO, 0, 0 }, /* ENODEV: costs two workers */
	{ "make=hang", -EIO, 0, 0 },
	{ "make=hang#0", 0, 0, 0 },
	{ "make=die", -EIO, 0, 0 },
	{ "make=slow:20", 0, 0, 0 },
	{ "make=fail:11@1", 0, 0, 0 },
	{ "add=fail:12", 0, -ENOMEM, 0 },
	{ "add=hang", 0, -EIO, 0 },
	{ "add=hang#0", 0, 0, 0 },
	{ "add=slow:20", 0, 0, 0 },
	{ "take=slow:20,submit=die#0", 0, 0, 0 },
	{ "take=fail:5#1,submit=die#0", 0, 0, 0 },
	{ "take=hang#1,submit=hang#0", 0, 0, 0 },
	{ "submit=fail:5", 0, 0, -EIO },
	{ "submit=fail:11@1", 0, 0, 0 },
	{ "submit=fail:19#0", 0, 0, 0 },
	{ "submit=hang#0", 0, 0, 0 },
	{ "submit=die#0", 0, 0, 0 },
	{ "submit=slow:20", 0, 0, 0 },
	{ "poll=die@5#0", 0, 0, 0 },
	{ "poll=hang@5#0", 0, 0, 0 },
	{ "poll=slow:2", 0, 0, 0 },
	{ "copy=fail:5", 0, 0, -EIO },
	{ "copy=hang#0", 0, 0, 0 },
	{ "copy=die#0", 0, 0, 0 },
	{ "copy=slow:20", 0, 0, 0 },
	{ "copy=damage", 0, 0, -EBADMSG },
	{ "drop=hang,hostdrop=hang", 0, 0, 0 },
	{ "drop=die,hostdrop=die", 0, 0, 0 },
	{ "drop=slow:20,hostdrop=slow:20", 0, 0, 0 },
};

static int fault_make(const struct fault *f, struct kvpd_device_op *op)
{
	int r;

	do {
		op->kind = KVPD_SEG_MAKE;
		op->bytes = MIB;
		r = ask(op);
	} while (r == -ENODEV && f->make != -ENODEV && (poll(NULL, 0, 1), true));
	return r;
}

static int fault_add(struct kvpd_device_op *op, int dram)
{
	int r;

	do {
		*op = (struct kvpd_device_op){
			.kind = KVPD_HOST_ADD, .bytes = MIB, .writable = true
		};
		assert_int_equal(kvp_seg_reopen_rw(dram, &op->fd), 0);
		r = ask(op);
	} while (r == -ENODEV && (poll(NULL, 0, 1), true));
	return r;
}

static void fault_copy(const struct fault *f, uint32_t seg, uint32_t host, int dram)
{
	struct kvpd_device_copy c = {
		.tenant = 1,
		.kind = KVPD_COPY_SPILL,
		.flags = KVPD_COPY_CHECK,
		.seg = seg,
		.host = host,
		.bytes = MIB,
	};
	unsigned char *p;

	assert_int_equal(kvp_seg_map(dram, MIB, KVP_MAP_WRITE, (void **)&p), 0);
	pattern(p, MIB, 3);
	c.checksum = kvp_payload_checksum(p, MIB);
	assert_int_equal(until_up(copy, &c), f->copy);
	if (!f->copy) {
		memset(p, 0, MIB);
		c.way = KVPD_TO_HOST;
		assert_int_equal(until_up(copy, &c), 0);
		assert_true(kvp_payload_checksum(p, MIB) == c.checksum);
	}
	kvp_seg_unmap(p, MIB);
}

static void each_operation_goes_wrong(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
		const struct fault *f = &faults[i];
		struct kvpd_device_op seg = { 0 }, host = { 0 }, op = { 0 };
		struct world world;
		int fds = count_fds(), dram;

		print_message("%s\n", f->rule);
		assert_int_equal(kvp_seg_create("test-dram", MIB, 0, &dram), 0);
		assert_int_equal(kvp_seg_seal(dram, KVP_SEALS_FIXED), 0);
		open_device(&world, "fault", f->rule, 400);
		assert_int_equal(fault_make(f, &seg), f->make);
		if (!f->make) {
			assert_int_equal(fault_add(&host, dram), f->add);
			if (!f->add) {
				fault_copy(f, seg.id, host.id, dram);
				op = (struct kvpd_device_op){ .kind = KVPD_HOST_DROP,
					.id = host.id };
				assert_int_equal(ask(&op), 0);
			}
			assert_int_equal(kvp_seg_unused(dram), 0);
			op = (struct kvpd_device_op){ .kind = KVPD_SEG_DROP, .id = seg.id };
			assert_int_equal(ask(&op), 0);
		}
		close_device();
		close(dram);
		assert_int_equal(count_fds(), fds);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(segments_are_made_and_dropped),
		cmocka_unit_test(copies_go_both_ways),
		cmocka_unit_test(sums_are_of_what_arrived),
		cmocka_unit_test(nonsense_is_refused),
		cmocka_unit_test(clients_write_segments),
		cmocka_unit_test(what_is_left_is_given_back),
		cmocka_unit_test(each_operation_goes_wrong),
		cmocka_unit_test(killed_workers_lose_nothing),
	};

	kvpd_log_init(KVPD_LOG_ERR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
