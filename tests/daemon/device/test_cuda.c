/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver cuda with its real worker process, over the simulated CUDA driver: what it does to the
 * driver's rules is reported there, and every test ends with no report at all. With KVP_TEST_GPU=real in the
 * environment over this machine's driver, without the tests that need faults.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/device/device.h"
#include "gpu/kvp_cu.h"
#include "gpu/kvp_nvml.h"
#include "shm/kvp_catalog.h"
#include "shm/kvp_proto.h"
#include "shm/kvp_seg.h"
#include "tests/cudadrv/cudadrv.h"

#define MIB (UINT64_C(1) << 20)

static struct kvpd_device *device;
static struct cudadrv *sim; /* NULL: a real device, whose memory NVML knows */
static struct kvp_nvml nvml;
static uint64_t used_before;
static int event;
static uint32_t n_done;

static void wake(void *ctx)
{
	(void)ctx;
	(void)eventfd_write(event, 1);
}

static void on_done(struct kvpd_device_work *work)
{
	(void)work;
	n_done++;
}

/* Questions, of which there is one at a time. */
static bool answered;

static void on_answer(struct kvpd_device_work *work)
{
	on_done(work);
	answered = true;
}

static void open_device(const struct kvpd_device_config *with)
{
	struct kvpd_device_config c = *with;

	memcpy(c.name, "gpu", 4);
	c.driver = "cuda";
	c.worker = getenv("KVPOOL_DEVICE");
	c.bytes = c.bytes ? c.bytes : 512 * MIB;
	c.restart_ms = 1;
	c.wake = wake;
	event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	n_done = 0;
	assert_int_equal(kvpd_device_new(&c, &device), 0);
}

/* Bytes of a real device that somebody holds. */
static uint64_t used_bytes(void)
{
	struct nvmlDevice_st *first;
	struct nvml_memory m;

	assert_int_equal(nvml.nvmlDeviceGetHandleByIndex_v2(0, &first), NVML_OK);
	assert_int_equal(nvml.nvmlDeviceGetMemoryInfo(first, &m), NVML_OK);
	return m.used;
}

static bool memory_is_held(void)
{
	uint32_t n;

	if (!sim)
		return used_bytes() > used_before + MIB;
	assert_int_equal(cudadrv_segments(sim, &n), 0);
	return n != 0;
}

static void close_device(void)
{
	device = kvpd_device_free(device);
	close(event);
	/* Nothing stays behind: the memory was the daemon's and the worker's. */
	for (uint32_t tries = 0; tries < 12000; tries++) {
		if (!memory_is_held())
			return;
		poll(NULL, 0, 5);
	}
	fail_msg("memory of the device is still held");
}

static void wait_done(uint32_t n)
{
	while (n_done < n) {
		struct pollfd p = { .fd = event, .events = POLLIN };
		eventfd_t value;

		if (kvpd_device_drain(device, 3))
			continue;
		assert_int_equal(poll(&p, 1, 60000), 1);
		(void)eventfd_read(event, &value);
	}
}

static int ask(struct kvpd_device_op *op)
{
	int r;

	op->work.done = on_answer;
	answered = false;
	while ((r = kvpd_device_ask(device, op)) == -ENODEV)
		poll(NULL, 0, 1);
	if (r < 0)
		return r;
	while (!answered)
		wait_done(n_done + 1);
	return op->work.status;
}

/* Again while workers come and go. */
static int copy(struct kvpd_device_copy *c)
{
	int r;

	do {
		const uint32_t before = n_done;

		c->work.done = on_done;
		c->tenant = 1;
		r = kvpd_device_copy(device, c);
		if (r == 0) {
			wait_done(before + 1);
			r = c->work.status;
		}
		if (r == -EAGAIN)
			poll(NULL, 0, 1);
	} while (r == -EAGAIN);
	return r;
}

static struct kvpd_device_figures figures(void)
{
	struct kvpd_device_figures f;

	kvpd_device_figures(device, &f);
	return f;
}

static void there_is_a_worker(void)
{
	while (kvpd_device_state(device) != KVPD_DEVICE_UP)
		poll(NULL, 0, 1);
}

/* ---- memory --------------------------------------------------------------------------------- */

struct extent {
	uint32_t id;
	uint64_t bytes;
	int fd;
	unsigned char *addr;
};

static uint32_t make_segment(uint64_t bytes, int *ret_fd)
{
	struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = bytes };

	assert_int_equal(ask(&op), 0);
	assert_true(op.fd >= 0);
	if (ret_fd)
		*ret_fd = op.fd;
	return op.id;
}

static void drop_segment(uint32_t id)
{
	struct kvpd_device_op op = { .kind = KVPD_SEG_DROP, .id = id };

	assert_int_equal(ask(&op), 0);
}

static void add(struct extent *x, uint64_t bytes, bool writable, bool pin)
{
	struct kvpd_device_op op = {
		.kind = KVPD_HOST_ADD, .bytes = bytes, .writable = writable, .pin = pin
	};

	*x = (struct extent){ .bytes = bytes };
	assert_int_equal(kvp_seg_create("test-dram", bytes, 0, &x->fd), 0);
	assert_int_equal(kvp_seg_seal(x->fd, KVP_SEALS_FIXED), 0);
	assert_int_equal(kvp_seg_map(x->fd, bytes, KVP_MAP_WRITE, (void **)&x->addr), 0);
	assert_int_equal((writable ? kvp_seg_reopen_rw : kvp_seg_reopen_ro)(x->fd, &op.fd), 0);
	assert_int_equal(ask(&op), 0);
	x->id = op.id;
}

static void leave(struct extent *x)
{
	struct kvpd_device_op op = { .kind = KVPD_HOST_DROP, .id = x->id };

	assert_int_equal(ask(&op), 0);
	kvp_seg_unmap(x->addr, x->bytes);
	/* Neither mapped nor pinned any more. */
	assert_int_equal(kvp_seg_unused(x->fd), 0);
	assert_int_equal(kvp_seg_seal(x->fd, F_SEAL_WRITE), 0);
	close(x->fd);
}

/* Of a function, by all processes; 0 of a real driver. */
static int64_t calls(const char *function)
{
	return sim ? cudadrv_calls(sim, function) : 0;
}

static void pattern(unsigned char *p, uint64_t n, uint64_t key)
{
	for (uint64_t i = 0; i < n / 8; i++) {
		uint64_t v = cudadrv_pattern(key, i);

		memcpy(p + i * 8, &v, 8);
	}
}

static bool all_zero(const unsigned char *p, uint64_t n)
{
	while (n && !*p)
		p++, n--;
	return n == 0;
}

/* There and back: what comes back is what went, and nothing else was touched. */
static void there_and_back(uint32_t seg, struct extent *from, struct extent *to, uint64_t seg_off,
	uint64_t off, uint64_t bytes)
{
	struct kvpd_device_copy c = {
		.seg = seg, .host = from->id, .seg_off = seg_off, .host_off = off, .bytes = bytes
	};

	memset(to->addr, 0x5a, to->bytes);
	assert_int_equal(copy(&c), 0);
	c.way = KVPD_TO_HOST;
	c.host = to->id;
	assert_int_equal(copy(&c), 0);
	assert_memory_equal(to->addr + off, from->addr + off, bytes);
	assert_true(off == 0 || to->addr[off - 1] == 0x5a);
	assert_true(off + bytes == to->bytes || to->addr[off + bytes] == 0x5a);
}

/* All of a segment, by way of DRAM. */
static void there_is(struct extent *to, uint32_t seg, const void *expected)
{
	struct kvpd_device_copy c = {
		.way = KVPD_TO_HOST, .seg = seg, .host = to->id, .bytes = to->bytes
	};

	assert_int_equal(copy(&c), 0);
	assert_memory_equal(to->addr, expected, to->bytes);
}

/* ---- tests ---------------------------------------------------------------------------------- */

static void fresh_memory_is_zero(void **state)
{
	/* Two segments; the third round has what was dropped before. */
	const struct kvpd_device_config plain = { .transport = KVPD_TRANSPORT_AUTO,
		.bytes = 32 * MIB };
	struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = 3 * MIB };
	struct kvpd_device_copy c = { .way = KVPD_TO_HOST, .bytes = 16 * MIB };
	struct extent host;
	uint8_t uuid[16];

	(void)state;
	open_device(&plain);
	for (uint32_t round = 0; round < 3; round++) {
		c.seg = make_segment(16 * MIB, NULL);
		add(&host, 16 * MIB, true, true);
		memset(host.addr, 0xff, host.bytes);
		c.host = host.id;
		assert_int_equal(copy(&c), 0);
		assert_true(all_zero(host.addr, host.bytes));
		/* What lies there is not for the next. */
		pattern(host.addr, host.bytes, round);
		c.way = KVPD_TO_DEVICE;
		assert_int_equal(copy(&c), 0);
		c.way = KVPD_TO_HOST;
		leave(&host);
		drop_segment(c.seg);
	}
	assert_int_equal(kvpd_device_import(device), KVP_IMPORT_CUDA_FD);
	assert_int_equal(figures().granularity, 2 * MIB);
	if (sim) {
		assert_int_equal(cudadrv_uuid(sim, 0, uuid), 0);
		assert_memory_equal(figures().uuid, uuid, 16);
	}
	assert_int_equal(ask(&op), -EINVAL);
	op.bytes = 34 * MIB;
	assert_int_equal(ask(&op), -ENOMEM);
	assert_int_equal(figures().owed_bytes, 0);
	close_device();
}

static void all_kinds_of_memory_are_copied(void **state)
{
	static const struct {
		uint64_t seg_off, off, bytes;
	} at[] = { { 0, 0, 64 }, { 4096, 64, 8 * MIB }, { 0, 0, 80 * MIB },
		{ 64, 128, 70 * MIB + 24 }, { 79 * MIB, 3 * MIB, MIB },
		{ 0, 79 * MIB + 64, 4096 } };
	const struct kvpd_device_config plain = { .transport = KVPD_TRANSPORT_VMM };
	const int64_t pins = calls("cuMemHostRegister_v2"), unpins = calls("cuMemHostUnregister");
	struct extent from[2], to[2];
	uint32_t seg;

	(void)state;
	open_device(&plain);
	seg = make_segment(80 * MIB, NULL);
	for (uint32_t pin = 0; pin < 2; pin++) {
		add(&from[pin], 80 * MIB, false, pin);
		add(&to[pin], 80 * MIB, true, pin);
		pattern(from[pin].addr, from[pin].bytes, pin);
	}
	for (uint32_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
		for (uint32_t k = 0; k < 4; k++)
			there_and_back(seg, &from[k & 1], &to[k >> 1], at[i].seg_off, at[i].off,
				at[i].bytes);
	for (uint32_t pin = 0; pin < 2; pin++) {
		leave(&from[pin]);
		leave(&to[pin]);
	}
	/* What may be pinned was, and nothing else. */
	if (sim) {
		assert_int_equal(calls("cuMemHostRegister_v2"), pins + 2);
		assert_int_equal(calls("cuMemHostUnregister"), unpins + 2);
	}
	close_device();
}

/* DRAM is pinned in pieces, as far as the driver takes them; what is copied lies across the first border. */
static void pinned_in_pieces(void **state)
{
	const uint64_t border = 256 * MIB, bytes = 4 * MIB;
	const struct kvpd_device_config plain = { .timeout_ms = 20000 };
	struct kvpd_device_copy c = { .host_off = border - bytes / 2, .bytes = bytes };
	struct extent from, to;

	(void)state;
	for (uint32_t pieces = 0; pieces < 3; pieces++) {
		const struct cudadrv_fault refuses = {
			.function = "cuMemHostRegister_v2",
			.program = "kvpool-device",
			.action = CUDADRV_RETURN,
			.skip = pieces,
			.value = 2,
		};
		const int64_t tries = calls("cuMemHostRegister_v2") + (pieces ? 2 : 1);
		const int64_t unpins = calls("cuMemHostUnregister");

		open_device(&plain);
		assert_int_equal(cudadrv_set(sim, &refuses, NULL), 0);
		c.seg = make_segment(bytes, NULL);
		add(&from, border + bytes, false, true);
		add(&to, bytes, true, false);
		pattern(from.addr + c.host_off, bytes, pieces);
		/* Two of them, or what was refused, and no more after that. */
		for (uint32_t i = 0; i < 12000 && calls("cuMemHostRegister_v2") < tries; i++)
			poll(NULL, 0, 1);
		assert_int_equal(calls("cuMemHostRegister_v2"), tries);
		c.way = KVPD_TO_DEVICE;
		c.host = from.id;
		assert_int_equal(copy(&c), 0);
		there_is(&to, c.seg, from.addr + c.host_off);
		leave(&from);
		leave(&to);
		assert_int_equal(calls("cuMemHostRegister_v2"), tries);
		assert_int_equal(calls("cuMemHostUnregister"), unpins + pieces);
		assert_int_equal(cudadrv_clear(sim), 0);
		drop_segment(c.seg);
		close_device();
	}
}

/* Many at once, each way, while extents come and go. */
static void many_copies_at_once(void **state)
{
	const struct kvpd_device_config plain = { .copy_rate = 0 };
	static struct kvpd_device_copy c[256];
	struct extent from, to, passing;
	uint32_t seg, before;

	(void)state;
	open_device(&plain);
	seg = make_segment(64 * MIB, NULL);
	add(&from, 64 * MIB, false, true);
	add(&to, 64 * MIB, true, false);
	pattern(from.addr, from.bytes, 9);
	for (uint32_t way = 0; way < KVPD_WAYS; way++) {
		before = n_done;
		for (uint32_t i = 0; i < 256; i++) {
			c[i] = (struct kvpd_device_copy){
				.work.done = on_done,
				.way = way,
				.kind = i % KVPD_COPY_KINDS,
				.tenant = 1 + i % 3,
				.seg = seg,
				.host = way == KVPD_TO_DEVICE ? from.id : to.id,
				.seg_off = i * 256 * 1024,
				.host_off = i * 256 * 1024,
				.bytes = 256 * 1024,
			};
			assert_int_equal(kvpd_device_copy(device, &c[i]), 0);
		}
		add(&passing, 4 * MIB, false, true);
		leave(&passing);
		wait_done(before + 256 + 2);
		for (uint32_t i = 0; i < 256; i++)
			assert_int_equal(c[i].work.status, 0);
	}
	assert_memory_equal(from.addr, to.addr, to.bytes);
	assert_true(!sim || calls("cuMemcpyBatchAsync_v2") > 0);
	leave(&from);
	leave(&to);
	close_device();
}

static void killed_workers_lose_nothing(void **state)
{
	const struct kvpd_device_config plain = { .timeout_ms = 20000 };
	struct kvpd_device_copy c = { .way = KVPD_TO_HOST, .bytes = 8 * MIB };
	const uint32_t rounds = 20;
	struct extent from, to;
	uint32_t seg;

	(void)state;
	open_device(&plain);
	seg = make_segment(8 * MIB, NULL);
	add(&from, 8 * MIB, false, true);
	add(&to, 8 * MIB, true, true);
	pattern(from.addr, from.bytes, 3);
	there_and_back(seg, &from, &to, 0, 0, 8 * MIB);
	c.seg = seg;
	c.host = to.id;
	for (uint32_t i = 0; i < rounds; i++) {
		const pid_t pid = figures().pid;

		if (pid)
			assert_int_equal(kill(pid, SIGKILL), 0);
		memset(to.addr, 0, to.bytes);
		assert_int_equal(copy(&c), 0);
		assert_memory_equal(to.addr, from.addr, to.bytes);
	}
	assert_int_equal(figures().losses, 0);
	assert_true(figures().restarts > 0);
	assert_false(kvpd_device_seg_lost(device, seg));
	leave(&from);
	leave(&to);
	close_device();
}

/* What the hardware was given when its worker was killed may still be written; what it was not given may not. */
static void what_was_under_way_is_late(void **state)
{
	const struct kvpd_device_config plain = { .timeout_ms = 20000 };
	static struct kvpd_device_copy c[64];
	struct extent from;
	uint32_t seg, n_late = 0;

	(void)state;
	open_device(&plain);
	seg = make_segment(64 * MIB, NULL);
	add(&from, 64 * MIB, false, true);
	for (uint32_t round = 0; round < 50 && !n_late; round++) {
		uint32_t before = n_done;
		const pid_t pid = figures().pid;

		for (uint32_t i = 0; i < 64; i++) {
			c[i] = (struct kvpd_device_copy){
				.work.done = on_done,
				.way = KVPD_TO_DEVICE,
				.tenant = 1,
				.seg = seg,
				.host = from.id,
				.seg_off = i * MIB,
				.host_off = i * MIB,
				.bytes = MIB,
				.late = true,
			};
			assert_int_equal(kvpd_device_copy(device, &c[i]), 0);
		}
		poll(NULL, 0, (int)round % 5);
		if (pid)
			assert_int_equal(kill(pid, SIGKILL), 0);
		wait_done(before + 64);
		for (uint32_t i = 0; i < 64; i++) {
			assert_true(c[i].work.status == 0 || c[i].work.status == -EAGAIN);
			assert_true(c[i].late == (c[i].work.status == -EAGAIN));
			n_late += c[i].late;
		}
		there_is_a_worker();
	}
	assert_true(n_late > 0);
	leave(&from);
	close_device();
}

static void handles_end_with_their_worker(void **state)
{
	const struct kvpd_device_config ipc = { .transport = KVPD_TRANSPORT_IPC };
	struct kvpd_device_copy c = { .bytes = MIB };
	struct kvpd_device_op drop[3];
	struct extent from, to;
	uint32_t seg, more, before;
	int fd;

	(void)state;
	open_device(&ipc);
	seg = make_segment(8 * MIB, &fd);
	more = make_segment(2 * MIB, NULL);
	assert_int_equal(kvpd_device_import(device), KVP_IMPORT_CUDA_IPC);
	assert_int_equal(kvp_seg_check(fd, KVPD_HANDLE_MEMORY, KVP_SEALS_VAULT | F_SEAL_WRITE), 0);
	add(&from, 8 * MIB, false, false);
	add(&to, 8 * MIB, true, true);
	pattern(from.addr, from.bytes, 3);
	there_and_back(seg, &from, &to, 0, 0, 8 * MIB);
	assert_int_equal(kill(figures().pid, SIGKILL), 0);
	while (!kvpd_device_losses(device))
		poll(NULL, 0, 1);
	assert_true(kvpd_device_seg_lost(device, seg));
	c.seg = seg;
	c.host = from.id;
	assert_int_equal(copy(&c), -ENODEV);
	/* Nobody is asked about what is lost, and what was asked for behind it is not held up. */
	drop[0] = (struct kvpd_device_op){ .kind = KVPD_SEG_DROP, .id = seg };
	drop[1] = (struct kvpd_device_op){ .kind = KVPD_SEG_DROP, .id = more };
	drop[2] = (struct kvpd_device_op){ .kind = KVPD_SEG_MAKE, .bytes = 8 * MIB };
	before = n_done;
	for (uint32_t i = 0; i < 3; i++) {
		drop[i].work.done = on_done;
		assert_int_equal(kvpd_device_ask(device, &drop[i]), 0);
	}
	wait_done(before + 3);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(drop[i].work.status, 0);
	seg = drop[2].id;
	assert_false(kvpd_device_seg_lost(device, seg));
	there_and_back(seg, &from, &to, 0, 0, 8 * MIB);
	leave(&from);
	leave(&to);
	close_device();
}

/* What lies in the segment now, compared with the sum of these bytes. */
static int compare(uint32_t seg, uint64_t off, const unsigned char *bytes, uint64_t n)
{
	struct kvpd_device_copy c = {
		.way = KVPD_TO_HOST,
		.flags = KVPD_COPY_CHECK | KVPD_COPY_ONLY,
		.seg = seg,
		.seg_off = off,
		.bytes = n,
		.checksum = kvp_payload_checksum(bytes, n),
	};

	return copy(&c);
}

static void what_lies_there_is_summed(void **state)
{
	static const struct {
		uint64_t off, bytes;
	} at[] = { { 0, 64 }, { 4096, 2 * MIB }, { 64, 2 * MIB + 8 }, { 0, 16 * MIB },
		{ 3 * MIB, 5 * MIB + 24 } };
	static const uint32_t transports[] = { KVPD_TRANSPORT_VMM, KVPD_TRANSPORT_IPC };
	uint64_t damaged = 0;

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		const struct kvpd_device_config c = { .transport = transports[i] };
		struct kvpd_device_copy damage = { .bytes = 64 };
		struct extent from;
		uint32_t seg;

		open_device(&c);
		seg = make_segment(16 * MIB, NULL);
		add(&from, 16 * MIB, false, true);
		pattern(from.addr, from.bytes, 5);
		damage.seg = seg;
		damage.host = from.id;
		for (uint32_t k = 0; k < sizeof(at) / sizeof(at[0]); k++) {
			struct kvpd_device_copy all = {
				.seg = seg, .host = from.id, .bytes = from.bytes
			};
			const uint64_t last = (at[k].off + at[k].bytes - 1) / 64 * 64;

			assert_int_equal(copy(&all), 0);
			assert_int_equal(
				compare(seg, at[k].off, from.addr + at[k].off, at[k].bytes), 0);
			/* One line of it is another's. */
			damage.seg_off = last;
			damage.host_off = (last + 8 * MIB) % (16 * MIB);
			assert_int_equal(copy(&damage), 0);
			assert_int_equal(
				compare(seg, at[k].off, from.addr + at[k].off, at[k].bytes),
				-EBADMSG);
			damaged++;
		}
		assert_int_equal(figures().damaged, sizeof(at) / sizeof(at[0]));
		drop_segment(seg);
		leave(&from);
		close_device();
	}
	assert_int_equal(damaged, 10);
}

/* An error that ends the worker, and of which nobody can tell what it did to memory. */
static void doubt_all(void)
{
	const struct cudadrv_fault fault = {
		.function = "cuMemsetD8Async",
		.program = "kvpool-device",
		.action = CUDADRV_STICKY,
		.times = 1,
		.value = 700,
	};
	const uint32_t before = kvpd_device_doubts(device);
	struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = 2 * MIB };

	assert_int_equal(cudadrv_set(sim, &fault, NULL), 0);
	/* It is made by the next worker. */
	assert_int_equal(ask(&op), 0);
	while (kvpd_device_doubts(device) == before)
		poll(NULL, 0, 1);
	assert_int_equal(cudadrv_clear(sim), 0);
	assert_int_equal(kvpd_device_state(device), KVPD_DEVICE_RESTART);
	assert_false(kvpd_device_seg_doubted(device, op.id));
	drop_segment(op.id);
}

static void doubted_segments_are_judged(void **state)
{
	const struct kvpd_device_config plain = { .timeout_ms = 20000 };
	struct kvpd_device_copy c = { .bytes = 2 * MIB };
	struct extent from, to;
	uint32_t seg[3], doubts;

	(void)state;
	open_device(&plain);
	for (uint32_t i = 0; i < 3; i++)
		seg[i] = make_segment(2 * MIB, NULL);
	add(&from, 2 * MIB, false, true);
	add(&to, 2 * MIB, true, true);
	pattern(from.addr, from.bytes, 3);
	for (uint32_t i = 0; i < 3; i++)
		there_and_back(seg[i], &from, &to, 0, 0, 2 * MIB);
	doubt_all();
	doubts = kvpd_device_doubts(device);
	for (uint32_t i = 0; i < 3; i++)
		assert_true(kvpd_device_seg_doubted(device, seg[i]));
	assert_int_equal(compare(seg[1], 0, from.addr, 2 * MIB), 0);
	/* Of copies none is made; a verdict of another time is none. */
	c.seg = seg[1];
	c.host = from.id;
	c.work.done = on_done;
	c.tenant = 1;
	assert_int_equal(kvpd_device_copy(device, &c), 0);
	kvpd_device_judge(device, seg[0], doubts - 1, false);
	kvpd_device_judge(device, seg[0], doubts, true);
	kvpd_device_judge(device, seg[2], doubts, false);
	while (kvpd_device_seg_doubted(device, seg[2]))
		poll(NULL, 0, 1);
	assert_true(kvpd_device_seg_lost(device, seg[2]));
	assert_false(kvpd_device_seg_lost(device, seg[0]));
	assert_int_equal(kvpd_device_state(device), KVPD_DEVICE_RESTART);
	assert_int_equal(kvpd_device_drain(device, 1), 0);
	kvpd_device_judge(device, seg[1], doubts, true);
	wait_done(n_done + 1);
	assert_int_equal(c.work.status, 0);
	assert_int_equal(kvpd_device_state(device), KVPD_DEVICE_UP);
	assert_int_equal(figures().losses, 1);
	there_is(&to, seg[0], from.addr);
	there_is(&to, seg[1], from.addr);
	assert_int_equal(compare(seg[2], 0, from.addr, 2 * MIB), -ENODEV);
	/* A worker that dies in the middle of it: they are doubted still. */
	doubt_all();
	doubts = kvpd_device_doubts(device);
	assert_int_equal(kill(figures().pid, SIGKILL), 0);
	while (kvpd_device_doubts(device) == doubts)
		poll(NULL, 0, 1);
	doubts = kvpd_device_doubts(device);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(compare(seg[i], 0, from.addr, 2 * MIB), 0);
		kvpd_device_judge(device, seg[i], doubts, true);
	}
	there_is(&to, seg[1], from.addr);
	for (uint32_t i = 0; i < 3; i++)
		drop_segment(seg[i]);
	leave(&from);
	leave(&to);
	close_device();
}

/* An error of the process alone costs the worker, one of the hardware what lies there, any other has it doubted. */
static void sticky_errors_end_the_worker(void **state)
{
	static const struct {
		int error;
		const char *name;
	} errors[] = { { 709, "CUDA" }, { 700, "ILLEGAL_ADDRESS" }, { 214, "ECC" } };
	const struct kvpd_device_config plain = { .timeout_ms = 20000 };

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		const struct cudadrv_fault fault = {
			.function = "op:copy",
			.program = "kvpool-device",
			.action = CUDADRV_STICKY,
			.times = 1,
			.value = (uint64_t)errors[i].error,
		};
		struct extent from, to;
		struct kvpd_device_copy c = { .bytes = 8 * MIB };
		uint32_t seg, number;

		open_device(&plain);
		seg = make_segment(8 * MIB, NULL);
		add(&from, 8 * MIB, false, true);
		add(&to, 8 * MIB, true, true);
		pattern(from.addr, from.bytes, 3);
		there_and_back(seg, &from, &to, 0, 0, 8 * MIB);
		assert_int_equal(cudadrv_set(sim, &fault, &number), 0);
		c.seg = seg;
		c.host = from.id;
		if (i == 1) {
			c.work.done = on_done;
			c.tenant = 1;
			assert_int_equal(kvpd_device_copy(device, &c), 0);
			while (!kvpd_device_doubts(device))
				poll(NULL, 0, 1);
			kvpd_device_judge(device, seg, kvpd_device_doubts(device), false);
			wait_done(n_done + 1);
			assert_true(c.work.status == -EAGAIN || c.work.status == -ENODEV);
		}
		assert_int_equal(copy(&c), i ? -ENODEV : 0);
		assert_int_equal(cudadrv_hit(sim, number), 1);
		assert_non_null(strstr(figures().why, errors[i].name));
		assert_int_equal(kvpd_device_seg_lost(device, seg), i != 0);
		while (i && figures().state != KVPD_DEVICE_UP)
			poll(NULL, 0, 1);
		assert_int_equal(kvpd_device_losses(device), i != 0);
		assert_int_equal(cudadrv_clear(sim), 0);
		drop_segment(seg);
		leave(&from);
		leave(&to);
		close_device();
	}
}

static void memory_that_the_driver_owes(void **state)
{
	const struct kvpd_device_config plain = { .bytes = UINT64_C(64) << 30 };
	struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = 32 * MIB };
	uint32_t seg;

	(void)state;
	open_device(&plain);
	seg = make_segment(2 * MIB, NULL);
	cudadrv_oom_below(sim, UINT64_MAX / 2);
	assert_int_equal(ask(&op), -ENOMEM);
	assert_true(figures().owed_bytes >= op.bytes);
	assert_int_equal(figures().state, KVPD_DEVICE_UP);
	cudadrv_oom_below(sim, 0);
	assert_int_equal(ask(&op), 0);
	assert_int_equal(figures().owed_bytes, 0);
	drop_segment(op.id);
	drop_segment(seg);
	close_device();
}

/* A process that holds what the device has left, says so, and ends when it is told to. */
static void hold_all(int said, int told)
{
	char why[KVP_CU_WHY], c = 'h';
	uint64_t held;
	struct kvp_cu cu;

	if (kvp_cu_open(0, &cu, why) < 0)
		_exit(1);
	for (uint64_t bytes = UINT64_C(16) << 30; bytes >= MIB;)
		if (cu.cuMemAlloc_v2(&held, bytes) != CU_OK)
			bytes /= 2;
	if (write(said, &c, 1) != 1 || read(told, &c, 1) < 0)
		_exit(1);
	_exit(0);
}

/* D-067: others hold all of a real device's memory; what the worker is asked for is refused, and comes later. */
static void memory_that_others_hold(void **state)
{
	const struct kvpd_device_config plain = { .bytes = UINT64_C(4) << 30 };
	struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = 1024 * MIB };
	int said[2], told[2], status, r = -ENOMEM;
	uint32_t seg;
	pid_t pid;
	char c;

	(void)state;
	open_device(&plain);
	seg = make_segment(2 * MIB, NULL);
	assert_int_equal(pipe(said) | pipe(told), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		hold_all(said[1], told[0]);
	assert_int_equal(read(said[0], &c, 1), 1);
	assert_int_equal(ask(&op), -ENOMEM);
	assert_true(figures().owed_bytes >= op.bytes);
	assert_int_equal(figures().state, KVPD_DEVICE_UP);
	assert_int_equal(write(told[1], &c, 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* The driver takes a moment to have a dead process's memory back. */
	for (uint32_t i = 0; r == -ENOMEM && i < 1000; i++) {
		r = ask(&op);
		poll(NULL, 0, r ? 10 : 0);
	}
	assert_int_equal(r, 0);
	assert_int_equal(figures().owed_bytes, 0);
	for (uint32_t i = 0; i < 2; i++) {
		close(said[i]);
		close(told[i]);
	}
	drop_segment(op.id);
	drop_segment(seg);
	close_device();
}

/* What was made for a context that could not be finished went with it. */
static void a_context_in_the_second_try(void **state)
{
	static const char *const functions[] = { "cuStreamCreate", "cuEventCreate" };
	const struct kvpd_device_config plain = { .transport = KVPD_TRANSPORT_AUTO };

	(void)state;
	for (uint32_t i = 0; i < 2; i++) {
		const struct cudadrv_fault fault = {
			.function = functions[i],
			.program = "kvpool-device",
			.action = CUDADRV_RETURN,
			.times = 1,
			.value = 2,
		};
		struct kvpd_device_op op = { .kind = KVPD_SEG_MAKE, .bytes = 8 * MIB };
		uint32_t number;

		open_device(&plain);
		assert_int_equal(cudadrv_set(sim, &fault, &number), 0);
		assert_int_equal(ask(&op), -ENOMEM);
		assert_int_equal(cudadrv_hit(sim, number), 1);
		assert_int_equal(ask(&op), 0);
		assert_int_equal(cudadrv_clear(sim), 0);
		drop_segment(op.id);
		close_device();
	}
}

static void without_copies_there_is_no_context(void **state)
{
	const struct kvpd_device_config none = { .no_copies = true };
	struct kvpd_device_copy c = { .bytes = MIB };
	struct extent host;

	(void)state;
	open_device(&none);
	c.seg = make_segment(8 * MIB, NULL);
	add(&host, 8 * MIB, true, true);
	c.host = host.id;
	assert_int_equal(copy(&c), -EOPNOTSUPP);
	/* The descriptor keeps it, also without a worker. */
	assert_int_equal(kill(figures().pid, SIGKILL), 0);
	drop_segment(make_segment(8 * MIB, NULL));
	assert_false(kvpd_device_seg_lost(device, c.seg));
	assert_int_equal(calls("cuDevicePrimaryCtxRetain"), 0);
	while (figures().context == KVPD_NO_FIGURE)
		poll(NULL, 0, 1);
	assert_int_equal(figures().context, 0);
	drop_segment(c.seg);
	leave(&host);
	close_device();
}

/* As the management library has it; that of the tests says 3 GiB of whoever asks. */
static void a_context_takes_memory(void **state)
{
	const struct kvpd_device_config plain = { .timeout_ms = 20000 };
	char text[48] = "GPU-";
	uint8_t uuid[16];

	(void)state;
	assert_int_equal(cudadrv_uuid(sim, 0, uuid), 0);
	for (uint32_t i = 0; i < 16; i++)
		snprintf(text + strlen(text), 4,
			i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
	assert_int_equal(setenv("KVPOOL_LIBNVML", getenv("STUB_NVML"), 1), 0);
	for (uint32_t known = 0; known < 2; known++) {
		uint32_t seg;

		if (known)
			assert_int_equal(setenv("STUB_NVML_UUID", text, 1), 0);
		open_device(&plain);
		seg = make_segment(2 * MIB, NULL);
		while (!figures().total)
			poll(NULL, 0, 1);
		assert_int_equal(figures().context, known ? 3072 * MIB : KVPD_NO_FIGURE);
		drop_segment(seg);
		close_device();
	}
	unsetenv("STUB_NVML_UUID");
	unsetenv("KVPOOL_LIBNVML");
}

static void a_worker_says_why_it_cannot(void **state)
{
	static const struct {
		const char *library, *unit, *why;
	} cases[] = { { "/nonexistent/libcuda.so.1", NULL, "/nonexistent/libcuda.so.1" },
		{ NULL, "7", "no such device: 7" },
		{ NULL, "GPU-00112233-4455-6677-8899-aabbccddeeff", "no such device" } };
	char *library = strdup(getenv("KVPOOL_LIBCUDA"));

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		const struct kvpd_device_config c = { .unit = cases[i].unit };

		setenv("KVPOOL_LIBCUDA", cases[i].library ? cases[i].library : library, 1);
		open_device(&c);
		while (kvpd_device_state(device) != KVPD_DEVICE_DOWN)
			poll(NULL, 0, 1);
		poll(NULL, 0, 20);
		if (!strstr(figures().why, cases[i].why))
			fail_msg("why: '%s'", figures().why);
		close_device();
	}
	setenv("KVPOOL_LIBCUDA", library, 1);
	free(library);
}

/* Engines know a device by its UUID: a worker that is not told it makes way for one that is. */
static void no_device_without_its_uuid(void **state)
{
	const struct kvpd_device_config plain = { .transport = KVPD_TRANSPORT_AUTO };
	const struct cudadrv_fault fault = {
		.function = "cuDeviceGetUuid_v2",
		.program = "kvpool-device",
		.action = CUDADRV_RETURN,
		.times = 1,
		.value = CU_ERR_NO_MEMORY,
	};
	uint32_t number;
	uint8_t uuid[16];

	(void)state;
	assert_int_equal(cudadrv_set(sim, &fault, &number), 0);
	open_device(&plain);
	for (uint32_t i = 0; i < 20000 && kvpd_device_state(device) != KVPD_DEVICE_UP; i++)
		poll(NULL, 0, 1);
	assert_int_equal(kvpd_device_state(device), KVPD_DEVICE_UP);
	assert_int_equal(cudadrv_hit(sim, number), 1);
	assert_int_equal(cudadrv_uuid(sim, 0, uuid), 0);
	assert_memory_equal(figures().uuid, uuid, sizeof(uuid));
	assert_int_equal(cudadrv_clear(sim), 0);
	close_device();
}

/* How memory goes to clients is not chosen by what one call failed to say: not by this worker, nor by the next. */
static void transport_is_asked_for_again(void **state)
{
	const struct kvpd_device_config plain = { .transport = KVPD_TRANSPORT_AUTO };
	struct cudadrv_fault fault = {
		.function = "cuDeviceGetAttribute",
		.program = "kvpool-device",
		.action = CUDADRV_RETURN,
		.value = CU_ERR_NO_MEMORY,
	};
	uint32_t number;

	(void)state;
	for (fault.times = 1; fault.times <= 4; fault.times += 3) {
		assert_int_equal(cudadrv_set(sim, &fault, &number), 0);
		open_device(&plain);
		for (uint32_t i = 0; i < 20000 && kvpd_device_state(device) != KVPD_DEVICE_UP; i++)
			poll(NULL, 0, 1);
		assert_int_equal(kvpd_device_state(device), KVPD_DEVICE_UP);
		assert_int_equal(cudadrv_hit(sim, number), fault.times);
		assert_int_equal(kvpd_device_import(device), KVP_IMPORT_CUDA_FD);
		assert_int_equal(cudadrv_clear(sim), 0);
		close_device();
	}
}

static int clean(void **state)
{
	(void)state;
	/* A test that failed leaves nothing that the next one would wait for. */
	if (device) {
		if (sim)
			(void)cudadrv_clear(sim);
		device = kvpd_device_free(device);
		close(event);
	}
	if (!sim)
		return 0;
	for (uint32_t i = 0; i < CUDADRV_REPORTS_N; i++)
		if (cudadrv_reports(sim, i)) {
			printf("%llu of %s\n", (unsigned long long)cudadrv_reports(sim, i),
				cudadrv_report_name(i));
			return -1;
		}
	return cudadrv_forget(sim);
}

int main(void)
{
	const char *which = getenv("KVP_TEST_GPU");
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(without_copies_there_is_no_context, clean),
		cmocka_unit_test_teardown(fresh_memory_is_zero, clean),
		cmocka_unit_test_teardown(all_kinds_of_memory_are_copied, clean),
		cmocka_unit_test_teardown(many_copies_at_once, clean),
		cmocka_unit_test_teardown(killed_workers_lose_nothing, clean),
		cmocka_unit_test_teardown(what_was_under_way_is_late, clean),
		cmocka_unit_test_teardown(handles_end_with_their_worker, clean),
		cmocka_unit_test_teardown(what_lies_there_is_summed, clean),
	};
	const struct CMUnitTest full[] = {
		cmocka_unit_test_teardown(memory_that_others_hold, clean),
	};
	const struct CMUnitTest faults[] = {
		cmocka_unit_test_teardown(sticky_errors_end_the_worker, clean),
		cmocka_unit_test_teardown(doubted_segments_are_judged, clean),
		cmocka_unit_test_teardown(pinned_in_pieces, clean),
		cmocka_unit_test_teardown(memory_that_the_driver_owes, clean),
		cmocka_unit_test_teardown(a_context_in_the_second_try, clean),
		cmocka_unit_test_teardown(a_worker_says_why_it_cannot, clean),
		cmocka_unit_test_teardown(a_context_takes_memory, clean),
		cmocka_unit_test_teardown(no_device_without_its_uuid, clean),
		cmocka_unit_test_teardown(transport_is_asked_for_again, clean),
	};

	if (which && !strcmp(which, "real")) {
		if (kvp_nvml_open(&nvml) < 0)
			return 77;
		used_before = used_bytes();
		return cmocka_run_group_tests(tests, NULL, NULL) +
		       cmocka_run_group_tests(full, NULL, NULL);
	}
	if (cudadrv_open(getenv("KVP_SIM_GPU"), &sim) < 0) {
		printf("to be run by tests/cudadrv/cudadrv\n");
		return 1;
	}
	return cmocka_run_group_tests(tests, NULL, NULL) +
	       cmocka_run_group_tests(faults, NULL, NULL);
}
