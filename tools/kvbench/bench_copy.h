/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What copies are measured against: the same bytes, from random places in a region larger than the
 * caches into another such region, in two ways. memcpy() is the C library's, which at these sizes
 * goes through the caches: every line that is written is read first. A streaming copy writes around
 * them, as kvpool's own copies of large blocks do, and is the floor.
 */
#ifndef KVBENCH_BENCH_COPY_H
#define KVBENCH_BENCH_COPY_H

#include <stdint.h>

#include "tools/kvbench/bench.h"

struct bench_copy {
	uint8_t *from, *to;
	uint64_t region; /* bytes of each */
	uint64_t block;
	uint64_t state;
};

/* Regions of at least `blocks` blocks and 1 GiB, touched. -ENOMEM. */
int bench_copy_init(struct bench_copy *c, uint64_t block, uint32_t blocks);
void bench_copy_done(struct bench_copy *c);

/* A block to read from and one to write to, at random places. */
uint8_t *bench_copy_source(struct bench_copy *c);
uint8_t *bench_copy_sink(struct bench_copy *c);

/* GB/s (1e9 bytes) of memcpy() between the two. */
double bench_copy_gbps(struct bench_copy *c, uint32_t blocks);
/* The same by streaming stores; by memcpy() where this machine has none: bench_can_stream. */
double bench_stream_gbps(struct bench_copy *c, uint32_t blocks);
void bench_stream(void *to, const void *from, uint64_t bytes);
extern const bool bench_can_stream;

/* GB/s of kvp_put() of new one-block chains first .. first + blocks - 1; negative: one failed. */
double bench_put_gbps(struct bench_pool *p, struct bench_copy *c, uint32_t first, uint32_t blocks);

#endif
