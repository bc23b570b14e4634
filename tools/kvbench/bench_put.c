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

int kvbench_put(int argc, char **argv)
{
	uint64_t kib = 512, blocks = 512;
	bool json = false;
	const struct bench_option options[] = {
		{ "block-kib", "KiB of a block (default 512)", &kib, NULL, 16, 16384, NULL },
		{ "blocks", "blocks per round (default 512)", &blocks, NULL, 16, 100000, NULL },
		{ "json", "one JSON object on stdout", NULL, &json, 0, 0, NULL },
	};
	double put[ROUNDS], place[ROUNDS], copy[ROUNDS], ratio[ROUNDS], place_ratio[ROUNDS];
	struct bench_pool p = { 0 };
	struct bench_copy c;
	int r = bench_parse(
		argc, argv, "Puts new blocks, one after another, by one thread.", options, 3);

	if (r <= 0)
		return r ? 2 : 0;
	if (bench_copy_init(&c, kib << 10, (uint32_t)blocks) < 0) {
		fprintf(stderr, "kvbench: no memory\n");
		return 1;
	}
	r = bench_pool_start(&p, (uint32_t)blocks * (2 * ROUNDS + 1), BLOCK_TOKENS, kib << 10, 4);
	if (r < 0)
		return 1;
	/* Fresh memory on both sides once, then every round into what was not touched before. */
	for (uint32_t i = 0; i < ROUNDS && r == 0; i++) {
		uint32_t first = i * 2 * (uint32_t)blocks;

		copy[i] = bench_copy_gbps(&c, (uint32_t)blocks);
		put[i] = bench_put_gbps(&p, &c, first, (uint32_t)blocks);
		place[i] = in_place_gbps(&p, &c, first + (uint32_t)blocks, (uint32_t)blocks);
		ratio[i] = put[i] / copy[i];
		place_ratio[i] = place[i] / copy[i];
		if (put[i] < 0 || place[i] < 0)
			r = -1;
	}
	if (r < 0)
		fprintf(stderr, "kvbench: a put failed\n");
	else if (json)
		printf("{\"block_bytes\":%llu,\"blocks\":%llu,\"put_gbps\":%.2f,\"in_place_gbps\":%"
		       ".2f,"
		       "\"memcpy_gbps\":%.2f,\"put_memcpy_ratio\":%.3f,\"in_place_memcpy_ratio\":%."
		       "3f}\n",
			(unsigned long long)kib << 10, (unsigned long long)blocks,
			bench_median(put, ROUNDS), bench_median(place, ROUNDS),
			bench_median(copy, ROUNDS), bench_median(ratio, ROUNDS),
			bench_median(place_ratio, ROUNDS));
	else
		printf("%llu blocks of %llu KiB, medians of %u rounds\n"
		       "  kvp_put           %6.2f GB/s, %.2f of memcpy\n"
		       "  reserve + commit  %6.2f GB/s, %.2f of memcpy\n"
		       "  memcpy            %6.2f GB/s\n",
			(unsigned long long)blocks, (unsigned long long)kib, ROUNDS,
			bench_median(put, ROUNDS), bench_median(ratio, ROUNDS),
			bench_median(place, ROUNDS), bench_median(place_ratio, ROUNDS),
			bench_median(copy, ROUNDS));
	bench_pool_stop(&p);
	bench_copy_done(&c);
	return r == 0 ? 0 : 1;
}
