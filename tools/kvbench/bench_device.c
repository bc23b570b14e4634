/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench device: bulk copies to and from a device, against plain memcpy() of the same cold bytes, or, on a GPU,
 * against one plain copy of pinned memory.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "shm/kvp_seg.h"
#include "tools/common/kvt_daemon.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_device.h"
#include "tools/kvbench/kvbench.h"

#define ROUNDS     5u
#define MAX_SIZES  16u
#define LEAST      UINT64_C(4096)
#define TIMEOUT_MS 60000

static struct bench_device world = { .event = -1 }; /* done() gets nothing else */

static void wake(void *ctx)
{
	(void)eventfd_write(*(int *)ctx, 1);
}

static void on_done(struct kvpd_device_work *work)
{
	world.over++;
	if (work->status < 0)
		world.failed = work->status;
}

static int wait_over(struct bench_device *w, uint32_t n)
{
	while (w->over < n) {
		struct pollfd p = { .fd = w->event, .events = POLLIN };
		eventfd_t value;

		if (kvpd_device_drain(w->device, 256))
			continue;
		if (poll(&p, 1, TIMEOUT_MS) <= 0)
			return -ETIMEDOUT;
		(void)eventfd_read(w->event, &value);
	}
	return w->failed;
}

static int ask(struct bench_device *w, struct kvpd_device_op *op)
{
	int r;

	op->work.done = on_done;
	w->over = 0;
	r = kvpd_device_ask(w->device, op);
	return r < 0 ? r : wait_over(w, 1);
}

static int make_areas(struct bench_device *w, uint32_t i)
{
	struct kvpd_device_op seg = { .kind = KVPD_SEG_MAKE, .bytes = w->region };
	struct kvpd_device_op host = {
		.kind = KVPD_HOST_ADD, .bytes = w->region, .writable = true, .pin = w->gpu != NULL
	};
	kvp_autoclose int dram = -1;
	int r = ask(w, &seg);

	if (r == 0 && w->gpu)
		r = bench_gpu_map(w->gpu, i, seg.fd, w->region, &w->map_us);
	else if (r == 0)
		r = kvp_seg_map(seg.fd, w->region, KVP_MAP_WRITE, (void **)&w->seg_addr[i]);
	if (r == 0)
		r = kvp_seg_create("kvbench", w->region, 0, &dram);
	if (r == 0)
		r = kvp_seg_seal(dram, KVP_SEALS_FIXED);
	if (r == 0)
		r = kvp_seg_map(dram, w->region, KVP_MAP_WRITE, (void **)&w->host_addr[i]);
	if (r < 0)
		return r;
	/* Every page is there, in this process as well. */
	if (!w->gpu)
		memset(w->seg_addr[i], 1, w->region);
	for (uint64_t k = 0; k < w->region; k += sizeof(k))
		memcpy(w->host_addr[i] + k, &k, sizeof(k));
	r = kvp_seg_reopen_rw(dram, &host.fd);
	if (r == 0)
		r = ask(w, &host);
	w->seg[i] = seg.id;
	w->host[i] = host.id;
	return r;
}

/* ---- copies --------------------------------------------------------------------------------- */

/* A block of an area. 0, or an error of kvpd_device_copy(). */
static int submit(struct bench_device *w, uint32_t n, uint32_t way, uint32_t area, uint64_t off,
	uint64_t block)
{
	struct kvpd_device_copy *c = &w->copies[n];

	*c = (struct kvpd_device_copy){
		.work = { .done = on_done },
		.way = way,
		.kind = way == KVPD_TO_DEVICE ? KVPD_COPY_WARM : KVPD_COPY_SPILL,
		.tenant = 1,
		.seg = w->seg[area],
		.host = w->host[area],
		.seg_off = off,
		.host_off = off,
		.bytes = block,
	};
	return kvpd_device_copy(w->device, c);
}

/* All of an area, in blocks; ways as bits. GB/s; negative: a copy failed. */
static double device_gbps(struct bench_device *w, uint64_t block, uint32_t ways)
{
	const uint64_t began = bench_now();
	uint32_t n = 0;

	w->over = 0;
	for (uint64_t off = 0; off + block <= w->region; off += block)
		for (uint32_t way = 0; way < KVPD_WAYS; way++)
			if (ways & 1u << way && submit(w, n++, way, way, off, block) < 0)
				return -1;
	if (wait_over(w, n) < 0)
		return -1;
	return (double)n * (double)block / (double)(bench_now() - began);
}

/* Both areas to the device. GB/s */
static double fill(struct bench_device *w)
{
	const uint64_t began = bench_now();

	w->over = 0;
	for (uint32_t area = 0; area < 2; area++)
		if (submit(w, area, KVPD_TO_DEVICE, area, 0, w->region) < 0)
			return -1;
	if (wait_over(w, 2) < 0)
		return -1;
	return 2 * (double)w->region / (double)(bench_now() - began);
}

/*
 * On a GPU DRAM is pinned in the background, and copies are slow meanwhile: until three rounds are alike. What
 * is to come back lies there then, and is wiped here.
 */
static int settle(struct bench_device *w)
{
	double last[2] = { 0, 0 };

	for (uint32_t i = 0; i < 100; i++) {
		const double now = fill(w);

		if (now < 0)
			return -EIO;
		if (now < last[0] * 1.05 && now > last[0] * .95 && now < last[1] * 1.05 &&
			now > last[1] * .95)
			break;
		last[1] = last[0];
		last[0] = now;
	}
	memset(w->host_addr[1], 0, w->region);
	return 0;
}

static int start(struct bench_device *w, const char *driver, uint64_t threads, uint64_t rate)
{
	char worker[600];
	struct kvpd_device_config c = {
		.name = "bench",
		.driver = driver,
		.bytes = 2 * w->region,
		.threads = (uint32_t)threads,
		.copy_rate = rate,
		.wake = wake,
		.ctx = &w->event,
	};
	int r;

	kvt_find_worker(worker, sizeof(worker));
	c.worker = *worker ? worker : NULL;
	w->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	w->copies = calloc(2 * (w->region / LEAST), sizeof(*w->copies));
	if (w->event < 0 || !w->copies)
		return -ENOMEM;
	r = kvpd_device_new(&c, &w->device);
	if (r == 0 && !strcmp(driver, "cuda"))
		r = bench_gpu_open(w->region, &w->gpu);
	for (uint32_t i = 0; r == 0 && i < 2; i++)
		r = make_areas(w, i);
	return r == 0 && w->gpu ? settle(w) : r;
}

static void stop(struct bench_device *w)
{
	w->gpu = bench_gpu_free(w->gpu);
	w->device = kvpd_device_free(w->device);
	for (uint32_t i = 0; i < 2; i++) {
		kvp_seg_unmap(w->seg_addr[i], w->region);
		kvp_seg_unmap(w->host_addr[i], w->region);
	}
	if (w->event >= 0)
		close(w->event);
	free(w->copies);
}

struct plain {
	struct bench_device *w;
	uint64_t block;
	uint32_t way;
};

static void *plain_copy(void *arg)
{
	const struct plain *p = arg;
	char *seg = p->w->seg_addr[p->way], *host = p->w->host_addr[p->way];

	for (uint64_t off = 0; off + p->block <= p->w->region; off += p->block)
		memcpy((p->way == KVPD_TO_DEVICE ? seg : host) + off,
			(p->way == KVPD_TO_DEVICE ? host : seg) + off, p->block);
	return NULL;
}

/* One thread each way. */
static double memcpy_gbps(struct bench_device *w, uint64_t block, uint32_t ways)
{
	struct plain p[2] = { { w, block, KVPD_TO_DEVICE }, { w, block, KVPD_TO_HOST } };
	const uint64_t bytes = w->region / block * block * (ways == 3 ? 2 : 1);
	const uint64_t began = bench_now();
	pthread_t other;

	if (ways == 3 && pthread_create(&other, NULL, plain_copy, &p[1]))
		return -1;
	plain_copy(&p[ways == 2]);
	if (ways == 3)
		pthread_join(other, NULL);
	return (double)bytes / (double)(bench_now() - began);
}

struct figures {
	double gbps[3][ROUNDS], plain[3][ROUNDS], ratio[3][ROUNDS]; /* warm, spill, both */
};

static int measure(struct bench_device *w, uint64_t block, struct figures *f)
{
	for (uint32_t i = 0; i < ROUNDS; i++)
		for (uint32_t k = 0; k < 3; k++) {
			f->plain[k][i] = w->gpu ? bench_gpu_gbps(w->gpu, k + 1)
						: memcpy_gbps(w, block, k + 1);
			f->gbps[k][i] = device_gbps(w, block, k + 1);
			if (f->plain[k][i] < 0 || f->gbps[k][i] < 0)
				return -EIO;
			f->ratio[k][i] = f->gbps[k][i] / f->plain[k][i];
		}
	/* What was timed was done. */
	if (w->gpu)
		return bench_gpu_same(w->gpu, 0, w->host_addr[0], w->region / block * block) < 0 ||
				       bench_gpu_same(w->gpu, 1, w->host_addr[1],
					       w->region / block * block) < 0
			       ? -EIO
			       : 0;
	return memcmp(w->seg_addr[0], w->host_addr[0], w->region / block * block) ||
			       memcmp(w->seg_addr[1], w->host_addr[1], w->region / block * block)
		       ? -EIO
		       : 0;
}

static const char *const names[] = { "warm", "spill", "both" };

static json_t *as_json(struct figures *f, uint64_t block, bool gpu)
{
	json_t *o = json_pack("{s:I}", "block_bytes", (json_int_t)block);

	for (uint32_t k = 0; k < 3; k++) {
		char name[32];

		snprintf(name, sizeof(name), "%s_ratio", names[k]);
		bench_add(o, name, bench_spread(f->ratio[k], ROUNDS));
		snprintf(name, sizeof(name), "%s_gbps", names[k]);
		bench_add(o, name, bench_spread(f->gbps[k], ROUNDS));
		snprintf(name, sizeof(name), gpu ? "%s_plain_gbps" : "%s_memcpy_gbps", names[k]);
		bench_add(o, name, bench_spread(f->plain[k], ROUNDS));
	}
	return o;
}

static void as_text(struct figures *f, uint64_t block)
{
	char a[64], b[64], c[64];

	for (uint32_t k = 0; k < 3; k++)
		printf("%7llu KiB  %-6s %-24s %-24s %s\n", (unsigned long long)(block >> 10),
			names[k], bench_show(bench_spread(f->gbps[k], ROUNDS), 2, a),
			bench_show(bench_spread(f->plain[k], ROUNDS), 2, b),
			bench_show(bench_spread(f->ratio[k], ROUNDS), 2, c));
}

/* "8M,256K": how many, negative: no list of sizes. */
static int sizes(const char *text, uint64_t region, uint64_t out[MAX_SIZES])
{
	int n = 0;

	do {
		char *rest;
		uint64_t v = strtoull(text, &rest, 10);

		if (rest == text || *text == '-' || v > region)
			return -1;
		if (*rest == 'K' || *rest == 'M')
			v <<= *rest++ == 'K' ? 10 : 20;
		if (n == MAX_SIZES || v < LEAST || v > region || v % 64 || (*rest && *rest != ','))
			return -1;
		out[n++] = v;
		text = *rest ? rest + 1 : rest;
	} while (*text);
	return n;
}

static int measure_all(const uint64_t *block, int n, bool json)
{
	static struct figures f;
	json_t *all = json ? json_array() : NULL;
	int r = 0;

	if (!json && world.gpu)
		printf("shared memory registered for reading at %.2f GB/s; a segment of %llu MiB "
		       "taken in "
		       "%.0f us\n",
			bench_gpu_pin_gbps(world.gpu, world.region),
			(unsigned long long)(world.region >> 20), world.map_us);
	if (!json)
		printf("%-19s%-24s %-24s %s\n", "block", "GB/s",
			world.gpu ? "of a plain copy" : "of memcpy()", "ratio");
	for (int i = 0; r == 0 && i < n; i++) {
		r = measure(&world, block[i], &f);
		if (r == 0 && json)
			json_array_append_new(all, as_json(&f, block[i], world.gpu));
		else if (r == 0)
			as_text(&f, block[i]);
	}
	if (r == 0 && json)
		bench_print_json(all);
	json_decref(all);
	return r;
}

enum what { COPY, DEMAND, LOAD, WHATS };
static const char *const whats[WHATS] = { "copy", "demand", "load" };

static int run(enum what what, const uint64_t *list, int n, uint64_t seconds, bool json)
{
	switch (what) {
	case DEMAND:
		return bench_device_demand(&world, list, n, json);
	case LOAD:
		return bench_device_load(&world, seconds, json);
	default:
		return measure_all(list, n, json);
	}
}

static int which(int argc, char **argv, enum what *ret_what)
{
	if (argc < 2 || argv[1][0] == '-')
		return 0;
	for (uint32_t i = 0; i < WHATS; i++)
		if (!strcmp(argv[1], whats[i])) {
			*ret_what = (enum what)i;
			return 1;
		}
	fprintf(stderr, "kvbench device: no '%s'; there are 'copy', 'demand' and 'load'\n",
		argv[1]);
	return -1;
}

int kvbench_device(int argc, char **argv)
{
	const char *driver = "host", *block = "8M,2M,256K,64K";
	uint64_t mib = 256, threads = 1, seconds = 10, rate = 0, list[MAX_SIZES];
	enum what what = COPY;
	bool json = false;
	const struct bench_option options[] = {
		{ .name = "driver", .help = "the device's driver (default host)", .text = &driver },
		{ .name = "block",
			.help = "bytes of blocks (default 8M,2M,256K,64K)",
			.text = &block,
			.takes = "LIST" },
		{ .name = "mib",
			.help = "MiB copied each way in a round (default 256)",
			.value = &mib,
			.min = 8,
			.max = 65536 },
		{ .name = "threads",
			.help = "threads of the driver each way (default 1)",
			.value = &threads,
			.min = 1,
			.max = 16 },
		{ .name = "seconds",
			.help = "how long `load` copies (default 10)",
			.value = &seconds,
			.min = 1,
			.max = 3600 },
		{ .name = "rate",
			.help = "MiB a second that copies each way may take (default 0: no limit)",
			.value = &rate,
			.max = 1 << 20 },
		{ .name = "json", .help = "one JSON value on stdout", .flag = &json },
	};
	const int named = which(argc, argv, &what);
	int n, r;

	if (named < 0)
		return 2;
	if (named)
		argv[1] = argv[0];
	r = bench_parse(argc - named, argv + named,
		"device copy: blocks to a device and from it by its worker process, in bulk, "
		"against\n"
		"memcpy() between the same areas, or a GPU's plain copy of pinned memory; one way, "
		"and\n"
		"both at once.\n"
		"device demand: how long one block takes that somebody waits for, alone and "
		"beside\n"
		"bulk copies both ways.\n"
		"device load: bulk copies both ways, for what else is measured beside them.",
		options, sizeof(options) / sizeof(options[0]));
	if (r <= 0)
		return r ? 2 : 0;
	world.region = mib << 20;
	n = sizes(block, world.region, list);
	if (n < 0) {
		fprintf(stderr, "kvbench device: no list of sizes up to %llu MiB: %s\n",
			(unsigned long long)mib, block);
		return 2;
	}
	if (!kvpd_device_driver_known(driver)) {
		fprintf(stderr, "kvbench device: --driver: '%s' is not one of cuda, host, fault\n",
			driver);
		return 2;
	}
	r = start(&world, driver, threads, rate << 20);
	if (r == 0)
		r = run(what, list, n, seconds, json);
	if (r < 0)
		fprintf(stderr, "kvbench device: %s\n", strerror(-r));
	stop(&world);
	return r < 0;
}
