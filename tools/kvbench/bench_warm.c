/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench warm: how long until a block that lies in DRAM lies on a device, as a client has it: from
 * kvp_warm() to the moment at which its payload there can be read; and until it is told where that will be, of as many
 * blocks again that are asked for with KVP_WARM_EARLY. The device is of host memory, behind a
 * worker process as any device is, and full: room is made for each block. Every payload is compared with that in DRAM.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/kvbench/bench.h"
#include "tools/kvbench/kvbench.h"

#define BLOCK_TOKENS 16u
#define CHAINS       64u /* of a block each; they come round, so that none is on the device still */
#define THERE        16u /* blocks that the device holds */
#define WAIT_MS      10000u
#define SIZES        2u

static const uint64_t sizes_kib[SIZES] = { 512, 2048 };

struct result {
	uint64_t block_bytes;
	uint32_t warms;   /* that were measured, */
	uint32_t already; /* and that were not: the block was there */
	double median_us, p99_us, max_us;
	double place_median_us, place_p99_us; /* until its place was known; */
	double early_median_us, early_p99_us; /* of these until it could be read there */
};

/* Of one block. */
struct times {
	double place_us; /* 0: it was not asked for */
	double us;
};

static int is_there(struct kvp_prefix *m, struct kvp_payload_info *ret_payload)
{
	*ret_payload = (struct kvp_payload_info){ .size = sizeof(*ret_payload) };
	return kvp_device_payload(m, 0, 0, ret_payload);
}

/* Until there is an address: the library may still be mapping the segment. */
static int placed(struct bench_pool *p, struct kvp_prefix *m, struct kvp_ticket ticket,
	uint64_t began, struct times *ret, const void **ret_addr)
{
	int r = kvp_ticket_placed(p->client, ticket, WAIT_MS);

	if (r == 1)
		do
			r = kvp_device_payloads(m, 0, 0, 1, KVP_DEVICE_PENDING, ret_addr);
		while (!r && bench_now() - began < UINT64_C(1000000) * WAIT_MS);
	ret->place_us = (double)(bench_now() - began) / 1e3;
	return r == 1 ? 0 : r < 0 ? r : -EIO;
}

/* The block's leased prefix is copied, and read there. 0; 1: it was there; a negative errno. */
static int warm(struct bench_pool *p, struct kvp_prefix *m, bool early, struct times *ret)
{
	struct kvp_warm_opts opts = { .size = sizeof(opts), .flags = early ? KVP_WARM_EARLY : 0 };
	const void *place = NULL;
	struct kvp_payload_info here = { .size = sizeof(here) }, there;
	struct kvp_ticket ticket;
	uint64_t began;
	int r, why = 0;

	if (is_there(m, &there) != -ENOENT)
		return 1;
	began = bench_now();
	r = kvp_warm(m, &opts, &ticket);
	if (r == 0 && early)
		r = placed(p, m, ticket, began, ret, &place);
	if (r == 0)
		r = kvp_ticket_wait(p->client, ticket, WAIT_MS, &why);
	if (r < 0)
		return r;
	if (r != 1)
		return why ? why : -EIO;
	/* The library may still be mapping the segment: the payload is not the reader's before. */
	do
		r = is_there(m, &there);
	while (r == -EAGAIN && bench_now() - began < UINT64_C(1000000) * WAIT_MS);
	ret->us = (double)(bench_now() - began) / 1e3;
	if (r == 0 && early && place != there.addr)
		r = -ESTALE;
	if (r == 0)
		r = kvp_payload(m, 0, &here);
	if (r < 0)
		return r;
	return there.bytes == here.bytes && !memcmp(there.addr, here.addr, here.bytes) ? 0
										       : -EBADMSG;
}

static int one(struct bench_pool *p, uint32_t chain, bool early, struct times *ret)
{
	uint32_t tokens[BLOCK_TOKENS];
	struct kvp_prefix *m;
	int r;

	bench_chain_tokens(chain, tokens, BLOCK_TOKENS);
	r = kvp_match(p->space, tokens, BLOCK_TOKENS, NULL, &m);
	if (r < 0)
		return r;
	r = warm(p, m, early, ret);
	kvp_release(m);
	return r;
}

/* n of them, the first of which is chain `from`; their times, sorted, each by itself. */
static int series(struct bench_pool *p, uint32_t n, bool early, double *us, double *place_us,
	struct result *ret)
{
	struct times t = { 0 };
	uint32_t done = 0, already = 0;

	for (uint32_t i = 0; done < n; i++) {
		int r = one(p, i % CHAINS, early, &t);

		if (r < 0)
			return r;
		already += r == 1;
		if (already > n)
			return -EALREADY;
		if (r)
			continue;
		us[done] = t.us;
		place_us[done++] = t.place_us;
	}
	ret->already += already;
	return 0;
}

/* The first round fills the device and has its segments mapped: it is not measured. */
static int measure(struct bench_pool *p, uint32_t n, double *us, struct result *ret)
{
	double *place_us = us + n;
	struct times unused;
	int r = 0;

	for (uint32_t i = 0; i < CHAINS && r >= 0; i++)
		r = one(p, i, false, &unused);
	if (r >= 0)
		r = series(p, n, false, us, place_us, ret);
	if (r < 0)
		return r;
	ret->warms = n;
	ret->median_us = bench_median(us, n);
	ret->p99_us = bench_percentile(us, n, .99);
	ret->max_us = us[n - 1];
	r = series(p, n, true, us, place_us, ret);
	if (r < 0)
		return r;
	ret->early_median_us = bench_median(us, n);
	ret->early_p99_us = bench_percentile(us, n, .99);
	ret->place_median_us = bench_median(place_us, n);
	ret->place_p99_us = bench_percentile(place_us, n, .99);
	return 0;
}

static int with_size(uint64_t kib, uint32_t n, struct result *ret)
{
	struct bench_pool p = { .policy = "lru", .device_blocks = THERE };
	double *us = calloc(2 * (size_t)n, sizeof(*us));
	int r = -ENOMEM;

	*ret = (struct result){ .block_bytes = kib << 10 };
	if (us)
		r = bench_pool_start(&p, 2 * CHAINS, BLOCK_TOKENS, kib << 10, 4);
	if (r < 0) {
		free(us);
		return r;
	}
	r = bench_pool_fill(&p, 0, CHAINS, 1);
	if (r == 0)
		r = measure(&p, n, us, ret);
	if (r < 0)
		fprintf(stderr, "kvbench: a block was not warmed: %s\n", strerror(-r));
	bench_pool_stop(&p);
	free(us);
	return r;
}

static void report_json(const struct result *results, uint32_t n)
{
	json_t *list = json_array();

	for (uint32_t i = 0; i < n; i++)
		json_array_append_new(list,
			json_pack("{s:I, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f}",
				"block_bytes", (json_int_t)results[i].block_bytes, "block_tokens",
				(int)BLOCK_TOKENS, "warms", (int)results[i].warms, "already_there",
				(int)results[i].already, "median_us", results[i].median_us,
				"p99_us", results[i].p99_us, "max_us", results[i].max_us,
				"place_median_us", results[i].place_median_us, "place_p99_us",
				results[i].place_p99_us, "early_median_us",
				results[i].early_median_us, "early_p99_us",
				results[i].early_p99_us));
	bench_print_json(list);
	json_decref(list);
}

static void report(const struct result *results, uint32_t n)
{
	printf("%-10s %8s %12s %12s %12s %14s %14s\n", "block", "warms", "median us", "p99 us",
		"most us", "place: median", "p99 us");
	for (uint32_t i = 0; i < n; i++)
		printf("%6llu KiB %8u %12.1f %12.1f %12.1f %14.1f %14.1f\n",
			(unsigned long long)results[i].block_bytes >> 10, results[i].warms,
			results[i].median_us, results[i].p99_us, results[i].max_us,
			results[i].place_median_us, results[i].place_p99_us);
	printf("From kvp_warm() of one block of %u tokens until it can be read on a device of host "
	       "memory "
	       "that holds\n%u of %u blocks; every copy is compared with the block. place: of as "
	       "many "
	       "more with\nKVP_WARM_EARLY, until it is known where the block comes to lie.\n",
		BLOCK_TOKENS, THERE, CHAINS);
}

int kvbench_warm(int argc, char **argv)
{
	uint64_t kib = 0, n = 2000;
	bool json = false;
	const struct bench_option options[] = {
		{ .name = "block-kib",
			.help = "KiB of a block (default: 512, then 2048)",
			.value = &kib,
			.min = 16,
			.max = 16384 },
		{ .name = "warms",
			.help = "blocks that are copied, of each size (default 2000)",
			.value = &n,
			.min = 1,
			.max = 1000000 },
		{ .name = "json", .help = "one JSON document on stdout", .flag = &json },
	};
	struct result results[SIZES];
	uint32_t sizes;
	int r = bench_parse(argc, argv,
		"One client has a block copied to a device of host memory, again and again: the "
		"time from\n"
		"its question until it can read the payload there, and until it knows where that "
		"will be.",
		options, 3);

	if (r <= 0)
		return r ? 2 : 0;
	sizes = kib ? 1 : SIZES;
	for (uint32_t i = 0; i < sizes; i++)
		if (with_size(kib ? kib : sizes_kib[i], (uint32_t)n, &results[i]) < 0)
			return 1;
	if (json)
		report_json(results, sizes);
	else
		report(results, sizes);
	return 0;
}
