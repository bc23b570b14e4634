/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench policy: what an eviction policy costs per decision once its cache is full. Prompts are
 * chains; a part of them continue one of the younger prompts, as turns of a conversation do. Room
 * is made as in the daemon, by batches.
 */
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "policy/kvp_evict.h"
#include "tools/kvbench/bench_policy_plan.h"
#include "tools/kvbench/bench_policy_worst.h"
#include "tools/kvbench/kvbench.h"

#define BATCH     64u
#define MAX_CHAIN 64u
#define TIPS      65536u /* prompts that may be continued */

struct bench {
	struct kvp_evict *e;
	uint32_t blocks;
	kvp_block_id *free;
	uint32_t n_free;
	kvp_block_id tip[TIPS];
	uint64_t n_prompts;
	uint64_t rng;
	uint64_t now;
	uint64_t evicted, inserted, accessed;
	double evict_ns, insert_ns, access_ns;
	double longest_ns; /* of a batch of evictions, or of one prompt's accesses or inserts */
};

static double clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* Nanoseconds since `begin`. */
static double lap(struct bench *b, double begin)
{
	double ns = clock_ns() - begin;

	if (ns > b->longest_ns)
		b->longest_ns = ns;
	return ns;
}

static uint32_t draw(struct bench *b, uint32_t n)
{
	b->rng = b->rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((b->rng >> 33) % n);
}

static void make_room(struct bench *b)
{
	kvp_block_id out[BATCH];
	double begin = clock_ns();
	size_t n = kvp_evict_victims(b->e, BATCH, 0, NULL, NULL, b->now, out, BATCH);

	for (size_t i = 0; i < n; i++) {
		kvp_evict_remove(b->e, out[i], 1, b->now);
		b->free[b->n_free++] = out[i];
	}
	b->evict_ns += lap(b, begin);
	b->evicted += n;
}

/* One prompt: the chain it continues is touched, its new blocks come. */
static void prompt(struct bench *b)
{
	uint32_t fresh = 1 + draw(b, MAX_CHAIN);
	uint64_t known = b->n_prompts < TIPS ? b->n_prompts : TIPS;
	kvp_block_id parent = KVP_BLOCK_NONE;
	struct kvp_evict_info info = { 0 };
	double begin;

	b->now += 1000000 + draw(b, 1000000);
	while (b->n_free < fresh)
		make_room(b);
	if (known && draw(b, 2)) {
		kvp_block_id tip = b->tip[(b->n_prompts - 1 - draw(b, (uint32_t)known)) % TIPS];
		if (!kvp_evict_peek(b->e, tip, &info) && info.depth < 4 * MAX_CHAIN)
			parent = tip;
	}
	begin = clock_ns();
	struct kvp_evict_request req = {
		.tip = parent,
		.matched = parent == KVP_BLOCK_NONE ? 0 : info.depth + 1,
		.blocks = (parent == KVP_BLOCK_NONE ? 0 : info.depth + 1) + fresh,
	};
	kvp_evict_request(b->e, &req, b->now);
	if (parent != KVP_BLOCK_NONE)
		kvp_evict_access_chain(b->e, parent, b->now);
	b->access_ns += lap(b, begin);
	begin = clock_ns();
	for (uint32_t i = 0; i < fresh; i++) {
		struct kvp_evict_item item = {
			.parent = parent,
			.bytes = 1 << 20,
			.depth = req.matched + i,
			.tokens = 64,
			.cost = 0.01f * (1 + (float)(req.matched + i) / 64),
			.key = { .lo = ++b->inserted },
		};
		kvp_block_id id = b->free[--b->n_free];
		kvp_evict_insert(b->e, id, &item, b->now);
		parent = id;
	}
	b->insert_ns += lap(b, begin);
	b->accessed += req.matched;
	b->tip[b->n_prompts++ % TIPS] = parent;
}

static int run_one(const char *policy, uint32_t blocks, json_t *results)
{
	struct kvp_evict_params p = {
		.size = sizeof(p), .items = blocks, .max_ids = blocks, .seed = 1
	};
	struct kvp_evict_memory m;
	struct bench *b = calloc(1, sizeof(*b));
	int r = -ENOMEM;

	if (!b)
		return r;
	b->blocks = blocks;
	b->rng = 7;
	b->free = malloc(blocks * sizeof(*b->free));
	if (!b->free)
		goto out;
	r = kvp_evict_new(policy, &p, &b->e);
	if (r < 0)
		goto out;
	for (uint32_t i = 0; i < blocks; i++)
		b->free[b->n_free++] = blocks - 1 - i;
	while (b->inserted < (uint64_t)blocks * 3 / 2)
		prompt(b);
	b->evict_ns = b->insert_ns = b->access_ns = b->longest_ns = 0;
	b->evicted = b->accessed = 0;
	uint64_t warm = b->inserted;
	while (b->inserted < warm + blocks)
		prompt(b);
	kvp_evict_memory(b->e, &m);
	json_array_append_new(results,
		json_pack("{s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I}", "policy", policy,
			"blocks", (json_int_t)blocks, "evict_ns", b->evict_ns / (double)b->evicted,
			"insert_ns", b->insert_ns / (double)(b->inserted - warm), "access_ns",
			b->accessed ? b->access_ns / (double)b->accessed : 0.0, "longest_us",
			b->longest_ns / 1e3, "state_bytes_per_block", (json_int_t)m.per_block,
			"ghosts", (json_int_t)m.ghosts, "bytes_per_ghost", (json_int_t)m.per_ghost,
			"total_bytes", (json_int_t)m.total));
out:
	kvp_evict_free(b->e);
	free(b->free);
	free(b);
	return r;
}

static void usage(FILE *f)
{
	fputs("usage: kvbench policy [--blocks N] [--policy NAME] [--worst] [--json]\n"
	      "\n"
	      "  --blocks N      capacity (default 1000000)\n"
	      "  --policy NAME   one policy instead of all, and no planners\n"
	      "  --worst         the longest single calls, under what makes them long\n"
	      "  --json          as JSON instead of a table\n",
		f);
}

/* The planners' rows: {"plans":[{"name","n","value","unit"}...]}. */
static int add_plans(json_t *root)
{
	struct bench_plan_row row[BENCH_PLAN_ROWS];
	json_t *plans = json_array();
	int n = bench_policy_plan(row);

	json_object_set_new(root, "plans", plans);
	for (int i = 0; i < n; i++)
		json_array_append_new(plans,
			json_pack("{s:s, s:I, s:f, s:s}", "name", row[i].name, "n",
				(json_int_t)row[i].n, "value", row[i].value, "unit", row[i].unit));
	return n < 0 ? n : 0;
}

/* One policy's rows: {"results":[{"policy","blocks","what","call","longest_us"}...]}. */
static int add_worst(const char *policy, uint32_t blocks, json_t *results)
{
	struct bench_worst_row row[BENCH_WORST_ROWS];
	int n = bench_policy_worst(policy, blocks, row);

	for (int i = 0; i < n; i++)
		json_array_append_new(
			results, json_pack("{s:s, s:I, s:s, s:s, s:f}", "policy", policy, "blocks",
					 (json_int_t)blocks, "what", row[i].what, "call",
					 row[i].call, "longest_us", row[i].longest_us));
	return n < 0 ? n : 0;
}

static void print_worst(const json_t *root)
{
	const json_t *x;
	size_t i;

	printf("%-12s %-42s %-13s %11s\n", "policy", "what was done", "longest call", "us");
	json_array_foreach(json_object_get(root, "results"), i, x)
		printf("%-12s %-42s %-13s %11.1f\n",
			json_string_value(json_object_get(x, "policy")),
			json_string_value(json_object_get(x, "what")),
			json_string_value(json_object_get(x, "call")),
			json_real_value(json_object_get(x, "longest_us")));
}

static void print_table(const json_t *root)
{
	const json_t *results = json_object_get(root, "results");
	size_t i;
	json_t *x;

	printf("%-12s %9s %9s %9s %10s %11s %11s\n", "policy", "evict ns", "insert ns", "access ns",
		"longest us", "bytes/block", "bytes/ghost");
	json_array_foreach(results, i, x)
		printf("%-12s %9.0f %9.0f %9.0f %10.0f %11lld %11lld\n",
			json_string_value(json_object_get(x, "policy")),
			json_real_value(json_object_get(x, "evict_ns")),
			json_real_value(json_object_get(x, "insert_ns")),
			json_real_value(json_object_get(x, "access_ns")),
			json_real_value(json_object_get(x, "longest_us")),
			(long long)json_integer_value(json_object_get(x, "state_bytes_per_block")),
			(long long)json_integer_value(json_object_get(x, "bytes_per_ghost")));
	json_array_foreach(json_object_get(root, "plans"), i, x)
		printf("%-32s %9lld %14.6g %s\n", json_string_value(json_object_get(x, "name")),
			(long long)json_integer_value(json_object_get(x, "n")),
			json_real_value(json_object_get(x, "value")),
			json_string_value(json_object_get(x, "unit")));
}

static bool is_policy(const char *wanted)
{
	const char *name;

	for (size_t i = 0; (name = kvp_evict_names(i, NULL)); i++)
		if (!strcmp(name, wanted))
			return true;
	return false;
}

int kvbench_policy(int argc, char **argv)
{
	static const struct option options[] = { { "blocks", 1, NULL, 'b' },
		{ "policy", 1, NULL, 'p' }, { "worst", 0, NULL, 'w' }, { "json", 0, NULL, 'j' },
		{ "help", 0, NULL, 'h' }, { 0 } };
	unsigned long blocks = 1000000;
	const char *only = NULL, *name;
	bool json = false, worst = false;
	int c, r = 0;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) >= 0) {
		char *end = (char *)"";
		if (c == 'b')
			blocks = strtoul(optarg, &end, 10);
		else if (c == 'p')
			only = optarg;
		else if (c == 'w')
			worst = true;
		else if (c == 'j')
			json = true;
		if (c == '?' || c == 'h' || *end || end == optarg || blocks < 4096 ||
			blocks > KVP_EVICT_MAX_IDS) {
			usage(c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : 2;
		}
	}
	if (optind < argc || (only && !is_policy(only))) {
		fprintf(stderr, "kvbench policy: what is '%s'?\n",
			optind < argc ? argv[optind] : only);
		usage(stderr);
		return 2;
	}
	json_t *root = json_object(), *results = json_array();
	json_object_set_new(root, "results", results);
	for (size_t i = 0; r == 0 && (name = kvp_evict_names(i, NULL)); i++)
		if (!only || !strcmp(only, name))
			r = worst ? add_worst(name, (uint32_t)blocks, results)
				  : run_one(name, (uint32_t)blocks, results);
	if (r == 0 && !only && !worst)
		r = add_plans(root);
	if (r == 0 && json && json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(5)) < 0)
		r = -EIO;
	if (r < 0)
		fprintf(stderr, "kvbench: policy: %s\n", strerror(-r));
	else if (json)
		putchar('\n');
	else if (worst)
		print_worst(root);
	else
		print_table(root);
	json_decref(root);
	return r < 0;
}
