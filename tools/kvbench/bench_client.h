/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A well-behaved client whose times are taken: it holds leases on a hot set all the while, so that not one
 * match of it may miss, and stores a new block every two milliseconds. What it meets with nothing else going
 * on is one phase, what it meets beside something is another. One thread.
 */
#ifndef KVBENCH_BENCH_CLIENT_H
#define KVBENCH_BENCH_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "tools/kvbench/bench.h"

#define BENCH_HOT_CHAINS   64u
#define BENCH_CHAIN_BLOCKS 4u
#define BENCH_CLIENT_MS    10000u /* that a call of its waits at most */
#define BENCH_NEW_CHAINS \
	UINT32_C(1000000) /* chain numbers from here on are for what is put in a phase */

/* Times in buckets, 32 for each power of two: percentiles are right to 3 %. */
#define BENCH_TIME_BUCKETS (60u * 32u)

struct bench_times {
	uint64_t n;
	uint64_t count[BENCH_TIME_BUCKETS];
};

/* Begins as zeros; several runs may add to one. */
struct bench_phase {
	struct bench_times match, reserve, commit;
	uint64_t hot_matches, hot_misses;
	uint64_t failed;       /* puts; each counts with the time it took */
	double daemon_wait_ms; /* for a processor, all its threads together */
	uint64_t cpu_wait_ns;  /* in puts, not counted: ready to run, without a processor */
};

struct bench_client {
	struct bench_pool *pool; /* attached, with blocks of a space of 64 tokens */
	uint32_t chain;          /* the next that it puts */
	uint32_t *hot;
	struct kvp_prefix *held[BENCH_HOT_CHAINS];
};

/* Leases the chains first .. first + BENCH_HOT_CHAINS - 1, which are there (bench_pool_fill()). */
int bench_client_hold(struct bench_client *c, uint32_t first);
void bench_client_release(struct bench_client *c);
/* Requests, one after another, as long as more(ctx) says so. */
void bench_client_run(
	struct bench_client *c, struct bench_phase *phase, bool (*more)(void *ctx), void *ctx);

/* Adds "idle", "busy" and "ratio" with all figures, and the counts of matches and puts. */
void bench_client_json(
	json_t *object, const struct bench_phase *idle, const struct bench_phase *busy);
/* The same as a table and a line. */
void bench_client_print(const struct bench_phase *idle, const struct bench_phase *busy);

#endif
