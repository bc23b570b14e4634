/* SPDX-License-Identifier: Apache-2.0 */
/* kvbench device demand, load: blocks that somebody waits for beside bulk copies that never end. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>

#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_device.h"

#define BULK_BLOCK (UINT64_C(8) << 20)
#define BULK_MOST  64u /* copies each way that are under way or queued */
#define DEMANDS    400u

/* Bulk copies that are submitted again as they end; one urgent one. */
static struct bulk {
	struct bench_device *w;
	struct kvpd_device_copy copy[KVPD_WAYS][BULK_MOST], urgent;
	uint32_t under_way;
	uint64_t bytes[KVPD_WAYS];
	bool stop, answered;
	int failed;
} bulk;

static void bulk_done(struct kvpd_device_work *work)
{
	struct kvpd_device_copy *c = (struct kvpd_device_copy *)work;

	bulk.under_way--;
	if (work->status < 0)
		bulk.failed = work->status;
	else
		bulk.bytes[c->way] += c->bytes;
	if (!bulk.stop && !bulk.failed && kvpd_device_copy(bulk.w->device, c) == 0)
		bulk.under_way++;
}

static void urgent_done(struct kvpd_device_work *work)
{
	bulk.answered = true;
	if (work->status < 0)
		bulk.failed = work->status;
}

static int look(struct bench_device *w, int ms)
{
	struct pollfd p = { .fd = w->event, .events = POLLIN };
	eventfd_t value;

	if (!kvpd_device_drain(w->device, 256)) {
		(void)poll(&p, 1, ms);
		(void)eventfd_read(w->event, &value);
	}
	return bulk.failed;
}

static int bulk_start(struct bench_device *w)
{
	const uint32_t n = (uint32_t)(w->region / BULK_BLOCK);

	memset(&bulk, 0, sizeof(bulk));
	bulk.w = w;
	if (!n)
		return -EINVAL;
	for (uint32_t i = 0; i < BULK_MOST; i++)
		for (uint32_t way = 0; way < KVPD_WAYS; way++) {
			struct kvpd_device_copy *c = &bulk.copy[way][i];
			int r;

			*c = (struct kvpd_device_copy){
				.work = { .done = bulk_done },
				.way = way,
				.kind = way == KVPD_TO_DEVICE ? KVPD_COPY_WARM : KVPD_COPY_BEHIND,
				.tenant = 1,
				.seg = w->seg[way],
				.host = w->host[way],
				.seg_off = i % n * BULK_BLOCK,
				.host_off = i % n * BULK_BLOCK,
				.bytes = BULK_BLOCK,
			};
			r = kvpd_device_copy(w->device, c);
			if (r < 0)
				return r;
			bulk.under_way++;
		}
	return 0;
}

static int bulk_stop(struct bench_device *w)
{
	bulk.stop = true;
	while (bulk.under_way)
		(void)look(w, 1000);
	return bulk.failed;
}

static int run_for(struct bench_device *w, uint64_t ns)
{
	const uint64_t end = bench_now() + ns;
	int r = 0;

	while (r == 0 && bench_now() < end)
		r = look(w, 10);
	return r;
}

/* Milliseconds from the asking to the answer, one block after the other. */
static int demand(struct bench_device *w, uint64_t block, double ms[DEMANDS])
{
	for (uint32_t i = 0; i < DEMANDS; i++) {
		const uint64_t began = bench_now();
		int r;

		bulk.answered = false;
		bulk.urgent = (struct kvpd_device_copy){
			.work = { .done = urgent_done },
			.way = KVPD_TO_DEVICE,
			.kind = KVPD_COPY_URGENT,
			.tenant = 2,
			.seg = w->seg[0],
			.host = w->host[0],
			.bytes = block,
		};
		r = kvpd_device_copy(w->device, &bulk.urgent);
		while (r == 0 && !bulk.answered)
			r = look(w, 1000);
		if (r < 0)
			return r;
		ms[i] = (double)(bench_now() - began) * 1e-6;
	}
	return 0;
}

struct waits {
	double p50, p99;
};

static struct waits waits(double ms[DEMANDS])
{
	struct waits v = { .p99 = bench_percentile(ms, DEMANDS, .99) };

	v.p50 = bench_percentile(ms, DEMANDS, .5);
	return v;
}

int bench_device_demand(struct bench_device *w, const uint64_t *block, int n, bool json)
{
	json_t *all = json ? json_array() : NULL;
	double ms[DEMANDS];
	int r = 0;

	if (!json)
		printf("%-12s %-22s %s\n", "block", "idle ms p50, p99", "beside bulk copies");
	for (int i = 0; r == 0 && i < n; i++) {
		struct waits idle = { 0 }, busy = { 0 };

		memset(&bulk, 0, sizeof(bulk));
		r = demand(w, block[i], ms);
		if (r == 0)
			idle = waits(ms);
		if (r == 0)
			r = bulk_start(w);
		if (r == 0)
			r = run_for(w, 200000000);
		if (r == 0)
			r = demand(w, block[i], ms);
		if (r == 0)
			busy = waits(ms);
		if (bulk.w && bulk_stop(w) < 0)
			r = bulk.failed;
		if (r < 0)
			break;
		if (json)
			json_array_append_new(
				all, json_pack("{s:I, s:f, s:f, s:f, s:f}", "block_bytes",
					     (json_int_t)block[i], "idle_p50_ms", idle.p50,
					     "idle_p99_ms", idle.p99, "busy_p50_ms", busy.p50,
					     "busy_p99_ms", busy.p99));
		else
			printf("%7llu KiB  %.3f  %.3f           %.3f  %.3f\n",
				(unsigned long long)(block[i] >> 10), idle.p50, idle.p99, busy.p50,
				busy.p99);
	}
	if (r == 0 && json)
		bench_print_json(all);
	json_decref(all);
	return r;
}

int bench_device_load(struct bench_device *w, uint64_t seconds, bool json)
{
	const uint64_t began = bench_now();
	double s, gbps[KVPD_WAYS];
	int r = bulk_start(w), ended;

	if (r == 0)
		r = run_for(w, seconds * 1000000000u);
	s = (double)(bench_now() - began);
	for (uint32_t way = 0; way < KVPD_WAYS; way++)
		gbps[way] = (double)bulk.bytes[way] / s;
	ended = bulk_stop(w);
	if (r < 0 || ended < 0)
		return r < 0 ? r : ended;
	if (json) {
		json_t *o = json_pack("{s:f, s:f}", "warm_gbps", gbps[KVPD_TO_DEVICE], "spill_gbps",
			gbps[KVPD_TO_HOST]);

		bench_print_json(o);
		json_decref(o);
	} else {
		printf("to the device %.2f GB/s, from it %.2f GB/s\n", gbps[KVPD_TO_DEVICE],
			gbps[KVPD_TO_HOST]);
	}
	return 0;
}
