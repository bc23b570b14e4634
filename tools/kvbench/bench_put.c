/* SPDX-License-Identifier: Apache-2.0 */
/* kvbench put: kvp_put() and writing in place, against memcpy of the same bytes, cold to cold. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_copy.h"
#include "tools/kvbench/kvbench.h"

#define BLOCK_TOKENS 64u
#define ROUNDS       5u

static int put_one(struct bench_pool *p, uint32_t chain, uint8_t *source)
{
	struct kvp_view_plane planes[64];
	struct kvp_view view = { .size = sizeof(view), .planes = planes };
	struct kvp_put_opts opts = { .size = sizeof(opts), .timeout_ms = 10000 };
	uint32_t tokens[BLOCK_TOKENS];
	uint64_t bytes;
	int r = kvp_view_dense(p->space, KVP_VIEW_LCND, source, BLOCK_TOKENS, planes, &bytes);

	bench_chain_tokens(chain, tokens, BLOCK_TOKENS);
	if (r < 0)
		return r;
	return kvp_put(p->space, tokens, BLOCK_TOKENS, 0, &view, &opts, NULL) == BLOCK_TOKENS ? 0
											      : -1;
}

double bench_put_gbps(struct bench_pool *p, struct bench_copy *c, uint32_t first, uint32_t blocks)
{
	uint64_t began = bench_now();

	for (uint32_t i = 0; i < blocks; i++)
		if (put_one(p, first + i, bench_copy_source(c)) < 0)
			return -1;
	return (double)blocks * (double)p->block_bytes / (double)(bench_now() - began);
}

static double in_place_gbps(
	struct bench_pool *p, struct bench_copy *c, uint32_t first, uint32_t blocks)
{
	uint32_t tokens[BLOCK_TOKENS];
	uint64_t began = bench_now();

	for (uint32_t i = 0; i < blocks; i++) {
		struct kvp_grant *g;

		bench_chain_tokens(first + i, tokens, BLOCK_TOKENS);
		if (kvp_reserve(p->space, 10000, NULL, &g) < 0)
			return -1;
		memcpy(kvp_grant_addr(g), bench_copy_source(c), p->block_bytes);
		if (kvp_commit(g, kvp_ref_root(), tokens, BLOCK_TOKENS, NULL, KVP_COMMIT_RELEASE) <
			0)
			return -1;
	}
	return (double)blocks * (double)p->block_bytes / (double)(bench_now() - began);
}

/* A figure of every round. */
struct rounds {
	double put[ROUNDS], place[ROUNDS];   /* GB/s */
	double copy[ROUNDS], stream[ROUNDS]; /* GB/s of memcpy(), and of a streaming copy */
	double put_copy[ROUNDS], put_stream[ROUNDS];
	double place_copy[ROUNDS], place_stream[ROUNDS];
};

/* Every round puts into memory that was not touched before. */
static int measure(struct bench_pool *p, struct bench_copy *c, uint32_t blocks, struct rounds *r)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint32_t first = i * 2 * blocks;

		r->copy[i] = bench_copy_gbps(c, blocks);
		r->stream[i] = bench_stream_gbps(c, blocks);
		r->put[i] = bench_put_gbps(p, c, first, blocks);
		r->place[i] = in_place_gbps(p, c, first + blocks, blocks);
		if (r->put[i] < 0 || r->place[i] < 0)
			return -1;
		r->put_copy[i] = r->put[i] / r->copy[i];
		r->put_stream[i] = r->put[i] / r->stream[i];
		r->place_copy[i] = r->place[i] / r->copy[i];
		r->place_stream[i] = r->place[i] / r->stream[i];
	}
	return 0;
}

static void report_json(struct rounds *r, uint64_t kib, uint64_t blocks)
{
	json_t *o = json_pack("{s:I, s:I, s:b}", "block_bytes", (json_int_t)(kib << 10), "blocks",
		(json_int_t)blocks, "streaming", (int)bench_can_stream);

	bench_add(o, "put_gbps", bench_spread(r->put, ROUNDS));
	bench_add(o, "in_place_gbps", bench_spread(r->place, ROUNDS));
	bench_add(o, "memcpy_gbps", bench_spread(r->copy, ROUNDS));
	bench_add(o, "stream_gbps", bench_spread(r->stream, ROUNDS));
	bench_add(o, "put_memcpy_ratio", bench_spread(r->put_copy, ROUNDS));
	bench_add(o, "put_stream_ratio", bench_spread(r->put_stream, ROUNDS));
	bench_add(o, "in_place_memcpy_ratio", bench_spread(r->place_copy, ROUNDS));
	bench_add(o, "in_place_stream_ratio", bench_spread(r->place_stream, ROUNDS));
	bench_print_json(o);
	json_decref(o);
}

static void report(struct rounds *r, uint64_t kib, uint64_t blocks)
{
	char a[64], b[64], c[64];

	printf("%llu blocks of %llu KiB; medians of %u rounds (least to most)\n",
		(unsigned long long)blocks, (unsigned long long)kib, ROUNDS);
	printf("%-18s %-24s %-22s %s\n", "", "GB/s", "of memcpy()", "of a streaming copy");
	printf("%-18s %-24s %-22s %s\n", "kvp_put", bench_show(bench_spread(r->put, ROUNDS), 2, a),
		bench_show(bench_spread(r->put_copy, ROUNDS), 2, b),
		bench_show(bench_spread(r->put_stream, ROUNDS), 2, c));
	printf("%-18s %-24s %-22s %s\n", "reserve + commit",
		bench_show(bench_spread(r->place, ROUNDS), 2, a),
		bench_show(bench_spread(r->place_copy, ROUNDS), 2, b),
		bench_show(bench_spread(r->place_stream, ROUNDS), 2, c));
	printf("%-18s %s\n", "memcpy()", bench_show(bench_spread(r->copy, ROUNDS), 2, a));
	printf("%-18s %s\n", bench_can_stream ? "streaming copy" : "(no streaming)",
		bench_show(bench_spread(r->stream, ROUNDS), 2, a));
	puts("memcpy() is the C library's, through the caches; a streaming copy goes around them.\n"
	     "Between reserve and commit the caller writes by memcpy().");
}

int kvbench_put(int argc, char **argv)
{
	uint64_t kib = 512, blocks = 512;
	bool json = false;
	const struct bench_option options[] = {
		{ .name = "block-kib",
			.help = "KiB of a block (default 512)",
			.value = &kib,
			.min = 16,
			.max = 16384 },
		{ .name = "blocks",
			.help = "blocks per round (default 512)",
			.value = &blocks,
			.min = 16,
			.max = 100000 },
		{ .name = "json", .help = "one JSON object on stdout", .flag = &json },
	};
	struct rounds rounds;
	struct bench_pool p = { 0 };
	struct bench_copy c;
	int r = bench_parse(argc, argv,
		"Puts new blocks, one after another, by one thread, into memory that is touched "
		"for\n"
		"the first time; beside copies of the same bytes, cold to cold.",
		options, 3);

	if (r <= 0)
		return r ? 2 : 0;
	if (bench_copy_init(&c, kib << 10, (uint32_t)blocks) < 0) {
		fprintf(stderr, "kvbench: no memory\n");
		return 1;
	}
	r = bench_pool_start(&p, (uint32_t)blocks * (2 * ROUNDS + 1), BLOCK_TOKENS, kib << 10, 4);
	if (r < 0) {
		bench_copy_done(&c);
		return 1;
	}
	r = measure(&p, &c, (uint32_t)blocks, &rounds);
	if (r < 0)
		fprintf(stderr, "kvbench: a put failed\n");
	else if (json)
		report_json(&rounds, kib, blocks);
	else
		report(&rounds, kib, blocks);
	bench_pool_stop(&p);
	bench_copy_done(&c);
	return r == 0 ? 0 : 1;
}
