/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocator of short runs of consecutive numbers: descriptor ids (runs of 1) and recipe cells (runs
 * of at most KVPD_RUN_MAX). A chain asks for the place right behind its parent first, so that a
 * match walks memory forward; what starts anew prefers a stretch of 64 that is wholly free, so
 * that chains that grow at the same time do not interleave.
 *
 * A run never crosses a multiple of 64. Constant time up to the size of two summary bitmaps
 * (1/4096 of the numbers, in bits), and KVPD_RUN_LOOK words where the free ones are in pieces: then
 * a run may be missed that a later call finds. Not thread-safe.
 */
#ifndef KVPD_RUNS_H
#define KVPD_RUNS_H

#include <stdbool.h>
#include <stdint.h>

#define KVPD_RUN_MAX  33u /* the recipe of 512 tokens and a salt */
#define KVPD_RUN_NONE UINT32_C(0xffffffff)
#define KVPD_RUN_LOOK 4096u

struct kvpd_runs {
	uint64_t *free;  /* a bit for each number, 1 = free */
	uint64_t *some;  /* a bit for each word of `free`: not 0 */
	uint64_t *whole; /* likewise: all 64 free */
	uint32_t total;
	uint32_t words;
	uint32_t n_free;
	uint32_t hint; /* word at which the next search begins */
	bool wanted;   /* the last search was in vain */
};

/* All of [0, total) free. -ENOMEM. */
int kvpd_runs_init(struct kvpd_runs *r, uint32_t total);
void kvpd_runs_fini(struct kvpd_runs *r);

/* A run of n at `prefer` if it is free there, else anywhere; KVPD_RUN_NONE: none was found. */
uint32_t kvpd_runs_take(struct kvpd_runs *r, uint32_t n, uint32_t prefer);
void kvpd_runs_give(struct kvpd_runs *r, uint32_t first, uint32_t n);
bool kvpd_runs_is_free(const struct kvpd_runs *r, uint32_t number);

#endif
