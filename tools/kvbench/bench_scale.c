/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench scale: what more attached clients cost. The same one process matches all the time; the
 * others are attached, have opened the space, and sleep. Also metadata per block, the idle daemon's
 * CPU, and the ledger's scan of all lease slots.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "libclient/kvpool_admin.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/kvbench.h"

#define BLOCK_TOKENS 64u
#define CHAIN_BLOCKS 128u
#define ROUNDS       7u
#define STEPS        4u

static const uint32_t steps[STEPS] = { 1, 8, 64, 1000 };

struct crowd {
	pid_t *pid;
	uint32_t n;
	_Atomic uint32_t *attached; /* in shared memory; counts those that failed too */
	_Atomic uint32_t *failed;
};

static void wait_ms(long ms)
{
	struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&t, NULL);
}

/* One more process that attaches and sleeps until it is ended. */
static int join(struct crowd *crowd, struct bench_pool *p)
{
	pid_t parent = getpid(), pid = fork();

	if (pid < 0)
		return -errno;
	if (!pid) {
		int r;

		kvt_end_with(parent, SIGKILL);
		r = bench_pool_attach(p);

		atomic_fetch_add(r < 0 ? crowd->failed : crowd->attached, 1);
		if (r < 0)
			_exit(1);
		for (;;)
			pause();
	}
	crowd->pid[crowd->n++] = pid;
	return 0;
}

static int grow(struct crowd *crowd, struct bench_pool *p, uint32_t to)
{
	while (crowd->n < to) {
		int r = join(crowd, p);

		if (r < 0)
			return r;
	}
	for (int waited = 0; *crowd->attached + *crowd->failed < to; waited += 20) {
		if (waited > 120000)
			return -ETIMEDOUT;
		wait_ms(20);
	}
	return *crowd->failed ? -ECONNREFUSED : 0;
}

static void disperse(struct crowd *crowd)
{
	for (uint32_t i = 0; i < crowd->n; i++)
		kill(crowd->pid[i], SIGKILL);
	for (uint32_t i = 0; i < crowd->n; i++)
		waitpid(crowd->pid[i], NULL, 0);
	crowd->n = 0;
}

static struct bench_spread match_ns(struct bench_pool *p, uint32_t chains)
{
	uint32_t tokens = CHAIN_BLOCKS * BLOCK_TOKENS;
	uint32_t *prompts = malloc((size_t)chains * tokens * sizeof(*prompts));
	double rounds[ROUNDS];
	uint64_t rng = 12345;

	if (!prompts)
		return (struct bench_spread){ -1, -1, -1 };
	for (uint32_t c = 0; c < chains; c++)
		bench_chain_tokens(c, prompts + (size_t)c * tokens, tokens);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		uint64_t began = bench_now(), blocks = 0;

		for (uint32_t k = 0; k < 2000; k++) {
			struct kvp_prefix_info info = { .size = sizeof(info) };
			struct kvp_prefix *m;

			if (kvp_match(p->space, prompts + bench_random(&rng) % chains * tokens,
				    tokens, NULL, &m) < 0)
				break;
			kvp_match_info(m, &info);
			blocks += info.n_blocks;
			kvp_release(m);
		}
		rounds[i] = blocks == 2000u * CHAIN_BLOCKS
				    ? (double)(bench_now() - began) / (double)blocks
				    : -1;
	}
	free(prompts);
	return bench_spread(rounds, ROUNDS);
}

/* CPU seconds that a process has used. */
static double cpu_seconds(pid_t pid)
{
	unsigned long user = 0, kernel = 0;
	char path[64], line[1024] = "", *after;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	f = fopen(path, "re");
	if (f) {
		if (!fgets(line, sizeof(line), f))
			line[0] = 0;
		fclose(f);
	}
	after = strrchr(line, ')');
	if (after)
		sscanf(after + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
			&kernel);
	return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static double idle_percent(pid_t pid, uint64_t seconds)
{
	double before, after;

	wait_ms(2000);
	before = cpu_seconds(pid);
	wait_ms((long)seconds * 1000);
	after = cpu_seconds(pid);
	return (after - before) / (double)seconds * 100;
}

/* Numbers that only the daemon knows: metadata per block, and how long a lease scan takes now. */
static int ask_daemon(const struct bench_pool *p, double *bytes_per_block, double *scan_us)
{
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = p->daemon.socket, .default_timeout_ms = 10000
	};
	struct kvp_admin *admin;
	json_t *answer, *tenant;
	char *text = NULL;
	int r = kvp_admin_open(&opts, &admin);

	if (r < 0)
		return r;
	/* An eviction scans the slots of all sessions. */
	r = kvp_admin_request(admin, "{\"verb\":\"evict\",\"count\":1}", 10000, 0, &text);
	free(text);
	text = NULL;
	if (r == 0)
		r = kvp_admin_request(admin, "{\"verb\":\"tenants\"}", 10000, 0, &text);
	kvp_admin_close(admin);
	answer = r < 0 ? NULL : json_loads(text, 0, NULL);
	free(text);
	tenant = json_array_get(json_object_get(answer, "tenants"), 0);
	*bytes_per_block = json_number_value(json_object_get(tenant, "block_metadata_bytes"));
	*scan_us = json_number_value(json_object_get(tenant, "lease_scan_seconds")) * 1e6;
	if (r == 0 && !tenant)
		r = -EBADMSG;
	json_decref(answer);
	return r;
}

static void report_json(
	const struct bench_spread *ns, double per_block, double idle_pct, double scan_us)
{
	json_t *o = json_object(), *list = json_array();

	for (uint32_t i = 0; i < STEPS; i++) {
		json_t *step = json_pack("{s:i}", "n", (int)steps[i]);

		bench_add(step, "match_ns_per_block", ns[i]);
		json_array_append_new(list, step);
	}
	json_object_set_new(o, "clients", list);
	json_object_set_new(o, "bytes_per_block", json_real(per_block));
	json_object_set_new(o, "idle_cpu_pct", json_real(idle_pct));
	json_object_set_new(o, "evict_scan_us", json_real(scan_us));
	bench_print_json(o);
	json_decref(o);
}

static void report(const struct bench_spread *ns, double per_block, double idle_pct, double scan_us)
{
	char text[64];

	printf("medians of %u rounds (least to most)\n", ROUNDS);
	for (uint32_t i = 0; i < STEPS; i++)
		printf("%5u clients attached: match %s ns per block\n", steps[i],
			bench_show(ns[i], 1, text));
	printf("metadata %.1f bytes per block of %u tokens; idle daemon %.3f %% CPU; lease scan "
	       "%.1f us\n",
		per_block, BLOCK_TOKENS, idle_pct, scan_us);
}

static int measure(
	struct bench_pool *p, struct crowd *crowd, uint32_t chains, uint64_t idle, bool json)
{
	struct bench_spread ns[STEPS];
	double per_block, scan_us, idle_pct;
	int r;

	for (uint32_t i = 0; i < STEPS; i++) {
		/* The measuring process is one of the attached. */
		r = grow(crowd, p, steps[i] - 1);
		if (r < 0) {
			fprintf(stderr, "kvbench: %u clients could not attach: %s\n", steps[i],
				strerror(-r));
			return r;
		}
		ns[i] = match_ns(p, chains);
	}
	idle_pct = idle_percent(p->daemon.pid, idle);
	r = ask_daemon(p, &per_block, &scan_us);
	if (r < 0) {
		fprintf(stderr, "kvbench: the daemon does not answer: %s\n", strerror(-r));
		return r;
	}
	for (uint32_t i = 0; i < STEPS; i++)
		if (ns[i].min < 0) {
			fprintf(stderr, "kvbench: what was stored was not matched\n");
			return -EBADMSG;
		}
	if (json)
		report_json(ns, per_block, idle_pct, scan_us);
	else
		report(ns, per_block, idle_pct, scan_us);
	return 0;
}

int kvbench_scale(int argc, char **argv)
{
	uint64_t chains = 2000, idle = 10;
	bool json = false;
	const struct bench_option options[] = {
		{ .name = "chains",
			.help = "chains of 128 blocks in the pool (default 2000)",
			.value = &chains,
			.min = 1,
			.max = 5000 },
		{ .name = "idle",
			.help = "seconds over which the idle daemon is watched (default 10)",
			.value = &idle,
			.min = 1,
			.max = 600 },
		{ .name = "json", .help = "one JSON object on stdout", .flag = &json },
	};
	struct crowd crowd = { 0 };
	/*
	 * The default policy keeps a history of blocks gone, which is not metadata of blocks held.
	 */
	struct bench_pool p = { .policy = "lru" };
	_Atomic uint32_t *counts;
	int r = bench_parse(argc, argv, "What attached clients cost: 1, 8, 64, 1,000.", options, 3);

	if (r <= 0)
		return r ? 2 : 0;
	counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	crowd.pid = calloc(steps[STEPS - 1], sizeof(*crowd.pid));
	if (counts == MAP_FAILED || !crowd.pid) {
		fprintf(stderr, "kvbench: no memory\n");
		return 1;
	}
	crowd.attached = &counts[0];
	crowd.failed = &counts[1];
	r = bench_pool_start(&p, (uint32_t)chains * CHAIN_BLOCKS + 256, BLOCK_TOKENS,
		4 * BLOCK_TOKENS, steps[STEPS - 1] + 16);
	if (r < 0)
		return 1;
	r = bench_pool_fill(&p, 0, (uint32_t)chains, CHAIN_BLOCKS);
	if (r == 0)
		r = measure(&p, &crowd, (uint32_t)chains, idle, json);
	disperse(&crowd);
	bench_pool_stop(&p);
	free(crowd.pid);
	return r == 0 ? 0 : 1;
}
