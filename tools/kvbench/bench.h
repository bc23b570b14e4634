/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the benchmarks share: clocks, medians, options, and a private daemon with one space. A
 * benchmark prints figures and judges none; ratios are taken within one run.
 */
#ifndef KVBENCH_BENCH_H
#define KVBENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libclient/kvpool.h"
#include "tools/common/kvt_daemon.h"

/* Nanoseconds, CLOCK_MONOTONIC by vDSO. */
uint64_t bench_now(void);
/* Sorts v in place. */
double bench_median(double *v, size_t n);
double bench_percentile(double *v, size_t n, double p);

/* A figure of several rounds. */
struct bench_spread {
	double median, min, max;
};
/* Sorts v in place. */
struct bench_spread bench_spread(double *v, size_t n);
/* Adds NAME, NAME_min and NAME_max. */
void bench_add(json_t *object, const char *name, struct bench_spread s);
/* "1.25 (1.10 to 1.31)", of figures with so many digits behind the point; a buffer of the caller's,
 * of at least 64 bytes, which it returns. */
const char *bench_show(struct bench_spread s, int digits, char *buf);
/* The object on standard output, members as they were added. */
void bench_print_json(const json_t *object);
uint64_t bench_random(uint64_t *state);

struct bench_option {
	const char *name;
	const char *help;
	uint64_t *value; /* NULL: a flag, which sets *flag */
	bool *flag;
	uint64_t min, max;
	const char **text; /* instead of both: a word, as it stands */
	const char *takes; /* what the help calls the value; NULL: N or WORD */
	/* Of a text that may be given up to `max` times: text[*times] is the next. NULL: once. */
	size_t *times;
};

/*
 * Parses --name VALUE and flags. 1: go on; 0: --help was printed; -1: wrong, said on stderr with
 * what would be right. Nothing may be given twice that counts once.
 */
int bench_parse(
	int argc, char **argv, const char *about, const struct bench_option *options, size_t n);

/* The daemon that a benchmark measures. Everything is ended by bench_daemon_stop(). */
struct bench_pool {
	struct kvt_daemon daemon;
	struct kvp_client *client;
	struct kvp_space *space;
	const char *policy;     /* NULL: the daemon's default; set before the start, */
	const char *more;       /* as this: further lines of YAML, or NULL */
	uint32_t device_blocks; /* likewise: device 0 holds so many; 0: there is none */
	uint32_t block_tokens;
	uint64_t block_bytes;
};

/*
 * Starts a daemon with room for `blocks` blocks of block_bytes (a multiple of 4 * block_tokens),
 * and attaches. Says on stderr what went wrong and returns negative errno.
 */
int bench_pool_start(struct bench_pool *p, uint32_t blocks, uint32_t block_tokens,
	uint64_t block_bytes, uint32_t max_sessions);
/* Attaches to it; also from a forked child, which must not use the parent's client. */
int bench_pool_attach(struct bench_pool *p);
void bench_pool_detach(struct bench_pool *p);
void bench_pool_stop(struct bench_pool *p);

/* Publishes chains first .. first + chains - 1, their tokens bench_chain_tokens(number, ...). */
void bench_chain_tokens(uint32_t chain, uint32_t *out, uint32_t n);
int bench_pool_put(struct bench_pool *p, uint32_t chain, uint32_t blocks); /* one, quietly */
int bench_pool_fill(
	struct bench_pool *p, uint32_t first, uint32_t chains, uint32_t blocks_per_chain);

/* Writes over a buffer larger than the private caches and most of the shared one. */
void bench_flush_caches(void);

#endif
