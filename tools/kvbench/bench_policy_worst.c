/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench policy --worst: every call on a policy is timed by itself, while a cache is filled and
 * used in ways that make a policy do much at once: chains that grow side by side, so that parents
 * are older than all tips; leases on what would go next; long silence; a cache emptied or resized.
 */
#include "tools/kvbench/bench_policy_worst.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "policy/kvp_evict.h"

#define ABREAST 1000u  /* chains that grow side by side */
#define LEASED  65536u /* blocks refused: 1,024 leases in each of 64 sessions */
#define BATCH   64u
#define ROUNDS  2000u

struct worst {
	struct kvp_evict *e;
	uint32_t blocks;
	uint64_t now;
	uint64_t keys;
	uint32_t refused, refuse; /* of `refuse` */
	uint32_t n_free;
	kvp_block_id *free;
	struct bench_worst_row row;
	struct bench_worst_row *rows;
	int n_rows;
};

static double cpu_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e6 + (double)ts.tv_nsec / 1e3;
}

static void lap(struct worst *w, const char *call, double begin)
{
	double us = cpu_us() - begin;

	if (us <= w->row.longest_us)
		return;
	w->row.longest_us = us;
	w->row.call = call;
}

/* What was done since the last report. */
static void report(struct worst *w, const char *what)
{
	w->row.what = what;
	w->rows[w->n_rows++] = w->row;
	w->row = (struct bench_worst_row){ .call = "-" };
}

static int is_refused(void *ctx, kvp_block_id id)
{
	struct worst *w = ctx;

	(void)id;
	return w->refused++ < w->refuse;
}

static kvp_block_id insert(struct worst *w, kvp_block_id parent, uint32_t depth)
{
	kvp_block_id id = w->free[--w->n_free];
	struct kvp_evict_item item = {
		.parent = parent,
		.bytes = 1 << 20,
		.depth = depth,
		.tokens = 64,
		.cost = 0.01f,
		.key = { .lo = ++w->keys },
	};
	double begin = cpu_us();

	kvp_evict_insert(w->e, id, &item, w->now);
	lap(w, "insert", begin);
	return id;
}

static void evict(struct worst *w, uint32_t n)
{
	kvp_block_id out[BATCH];
	double begin = cpu_us();
	size_t got = kvp_evict_victims(w->e, n, 0, is_refused, w, w->now, out, n);

	lap(w, "victims", begin);
	for (size_t i = 0; i < got; i++) {
		begin = cpu_us();
		kvp_evict_remove(w->e, out[i], 1, w->now);
		lap(w, "remove", begin);
		w->free[w->n_free++] = out[i];
	}
}

static void request(struct worst *w, kvp_block_id tip, uint32_t matched)
{
	struct kvp_evict_request req = { .tip = tip, .matched = matched, .blocks = matched + 1 };
	double begin = cpu_us();

	kvp_evict_request(w->e, &req, w->now);
	lap(w, "request", begin);
}

static void empty(struct worst *w)
{
	while (kvp_evict_len(w->e))
		evict(w, BATCH);
}

/* All chains get a block, then all get another; nobody announces any of it. */
static void side_by_side(struct worst *w)
{
	kvp_block_id tip[ABREAST];
	uint32_t chains = w->blocks / 4 < ABREAST ? w->blocks / 4 : ABREAST;

	for (uint32_t depth = 0; w->n_free >= chains; depth++)
		for (uint32_t i = 0; i < chains; i++) {
			w->now += 1000;
			tip[i] = insert(w, depth ? tip[i] : KVP_BLOCK_NONE, depth);
		}
	report(w, "chains that grow side by side");
	for (uint32_t i = 0; i < ROUNDS; i++)
		evict(w, 1);
	report(w, "one victim at a time of these");
	empty(w);
	report(w, "all of them evicted");
}

/* Prompts of a block, in one instant, and then nothing for a long time. */
static void silence(struct worst *w)
{
	while (w->n_free)
		insert(w, KVP_BLOCK_NONE, 0);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		w->now += (uint64_t)1 << i % 50;
		request(w, KVP_BLOCK_NONE, 0);
	}
	report(w, "prompts of one block, long silence");
}

static void leased(struct worst *w)
{
	for (uint32_t i = 0; i < 16; i++) {
		w->now += 1000000;
		w->refused = 0;
		w->refuse = w->blocks / 2 < LEASED ? w->blocks / 2 : LEASED;
		evict(w, 1);
	}
	w->refuse = 0;
	report(w, "65,536 blocks leased that would go next");
}

static void resized(struct worst *w)
{
	for (uint32_t i = 0; i < 8; i++) {
		double begin = cpu_us();

		kvp_evict_resize(w->e, i % 2 ? w->blocks : w->blocks / 16, 0);
		lap(w, "resize", begin);
	}
	report(w, "capacity to a sixteenth and back");
}

/* A chain as long as a quarter of the cache, used as a whole. */
static void long_chain(struct worst *w)
{
	kvp_block_id tip = KVP_BLOCK_NONE;
	uint32_t depth = 0;

	empty(w);
	for (; depth < w->blocks / 4; depth++)
		tip = insert(w, tip, depth);
	w->row = (struct bench_worst_row){ .call = "-" };
	for (uint32_t i = 0; i < 8; i++) {
		double begin;

		w->now += 1000000;
		request(w, tip, depth);
		begin = cpu_us();
		kvp_evict_access_chain(w->e, tip, w->now);
		lap(w, "access_chain", begin);
	}
	w->row.longest_us /= depth / 1000.0;
	report(w, "a use of a chain, for 1,000 blocks of it");
}

int bench_policy_worst(const char *policy, uint32_t blocks, struct bench_worst_row *ret_rows)
{
	struct kvp_evict_params p = {
		.size = sizeof(p), .items = blocks, .max_ids = blocks, .seed = 1
	};
	struct worst w = { .blocks = blocks, .rows = ret_rows, .row = { .call = "-" } };
	double begin = cpu_us();
	int r = kvp_evict_new(policy, &p, &w.e);

	if (r < 0)
		return r;
	lap(&w, "new", begin);
	report(&w, "a new cache");
	w.free = malloc(blocks * sizeof(*w.free));
	if (!w.free) {
		kvp_evict_free(w.e);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < blocks; i++)
		w.free[w.n_free++] = blocks - 1 - i;
	side_by_side(&w);
	silence(&w);
	leased(&w);
	resized(&w);
	long_chain(&w);
	kvp_evict_free(w.e);
	free(w.free);
	return w.n_rows;
}
