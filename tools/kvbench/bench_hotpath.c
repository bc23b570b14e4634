/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench hotpath: match, lease and release, hashing and proof included, in a thread that a seccomp
 * filter kills at its first system call.
 */
#include <errno.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "shm/kvp_lease.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/kvbench.h"

#define BLOCK_TOKENS 64u
#define CHAIN_BLOCKS 128u /* 8,192 tokens */
#define SHORT_BLOCKS 23u  /* 1,472 tokens: what is whole in a prompt of 1,500 */
#define LONG_TOKENS  131072u
#define ROUNDS       7u
#define HOT_PROMPTS  32u /* that lie on the device, with --device */

struct result {
	_Atomic int done; /* 1: measured, -1: wrong answers */
	double per_block[ROUNDS], per_block_short[ROUNDS], per_block_cold[ROUNDS];
	double one_block[ROUNDS], lease_release[ROUNDS], long_us[ROUNDS];
	/* With addresses in DRAM, and on the device. */
	double here[ROUNDS], there[ROUNDS];
};

struct setup {
	struct bench_pool pool;
	uint32_t chains;
	uint32_t prompts; /* prompts at hand: chains 0 .. prompts - 1 */
	uint32_t *tokens; /* [prompts][CHAIN_BLOCKS * BLOCK_TOKENS] */
	uint32_t *long_tokens;
	struct result *result;
	bool device;
};

static const uint32_t *prompt(const struct setup *s, uint64_t i)
{
	return s->tokens + (size_t)(i % s->prompts) * CHAIN_BLOCKS * BLOCK_TOKENS;
}

/*
 * ns for one match and release of `tokens` tokens, over random prompts. Negative: a wrong answer.
 */
static double time_matches(const struct setup *s, uint32_t tokens, uint32_t count, uint64_t *rng)
{
	uint64_t began = bench_now();

	for (uint32_t i = 0; i < count; i++) {
		struct kvp_prefix_info info = { .size = sizeof(info) };
		struct kvp_prefix *m;

		if (kvp_match(s->pool.space, prompt(s, bench_random(rng)), tokens, NULL, &m) < 0)
			return -1;
		kvp_match_info(m, &info);
		if (info.n_tokens != tokens / BLOCK_TOKENS * BLOCK_TOKENS ||
			!(info.flags & KVP_MATCHED_LEASED))
			return -1;
		kvp_release(m);
	}
	return (double)(bench_now() - began) / count;
}

/* ns for a match, the addresses of all its blocks and a release, of prompts that lie on the device. */
static double time_addresses(const struct setup *s, bool there, uint32_t count, uint64_t *rng)
{
	const void *addrs[SHORT_BLOCKS];
	uint64_t began = bench_now();

	for (uint32_t i = 0; i < count; i++) {
		const uint32_t *tokens = prompt(s, bench_random(rng) % HOT_PROMPTS);
		struct kvp_prefix *m;
		int n;

		if (kvp_match(s->pool.space, tokens, SHORT_BLOCKS * BLOCK_TOKENS, NULL, &m) < 0)
			return -1;
		n = there ? kvp_device_payloads(m, 0, 0, SHORT_BLOCKS, 0, addrs)
			  : kvp_payloads(m, 0, SHORT_BLOCKS, addrs);
		kvp_release(m);
		if (n != (int)SHORT_BLOCKS)
			return -1;
	}
	return (double)(bench_now() - began) / count;
}

/* Copies the hot prompts to the device, and waits until this process can read them there. */
static int warm_up(const struct setup *s)
{
	const void *addrs[SHORT_BLOCKS];
	int r = 0, why = 0, n = 0;

	for (uint32_t i = 0; i < HOT_PROMPTS && r >= 0; i++) {
		struct kvp_ticket ticket;
		struct kvp_prefix *m;

		r = kvp_match(s->pool.space, prompt(s, i), SHORT_BLOCKS * BLOCK_TOKENS, NULL, &m);
		if (r < 0)
			break;
		r = kvp_warm(m, NULL, &ticket);
		if (r == 0)
			r = kvp_ticket_wait(s->pool.client, ticket, KVP_DEFAULT_TIMEOUT, &why);
		for (uint32_t k = 0; r >= 0 && k < 1000; k++) {
			n = kvp_device_payloads(m, 0, 0, SHORT_BLOCKS, 0, addrs);
			if (n == (int)SHORT_BLOCKS)
				break;
			usleep(1000); /* the library maps what is new */
		}
		kvp_release(m);
		if (r >= 0 && n != (int)SHORT_BLOCKS)
			r = why < 0 ? why : -ETIMEDOUT;
	}
	if (r < 0)
		fprintf(stderr, "kvbench: nothing could be copied to the device: %s\n",
			strerror(-r));
	return r;
}

static double time_long(const struct setup *s)
{
	uint64_t began = bench_now();
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *m;

	if (kvp_match(s->pool.space, s->long_tokens, LONG_TOKENS, NULL, &m) < 0)
		return -1;
	kvp_match_info(m, &info);
	kvp_release(m);
	return info.n_tokens == LONG_TOKENS ? (double)(bench_now() - began) / 1e3 : -1;
}

/* The lease by itself, on a page of our own: take it on a live block, drop it. */
static double time_lease(struct kvp_session_page *page, uint32_t count)
{
	uint64_t word = kvp_word(1, 0, KVP_BLOCK_LIVE), began;
	struct kvp_block block;

	memset(&block, 0, sizeof(block));
	kvp_store_relaxed(&block.word, word);
	began = bench_now();
	for (uint32_t i = 0; i < count; i++) {
		struct kvp_lease lease = { NULL };

		if (kvp_lease_take(page, 0, &block, 3, word, &lease) < 0)
			return -1;
		kvp_lease_drop(&lease);
	}
	return (double)(bench_now() - began) / count;
}

static bool measure(const struct setup *s, struct kvp_session_page *page, uint32_t scale)
{
	struct result *r = s->result;
	uint64_t rng = 88172645463325252u;
	bool wrong = false;

	for (uint32_t i = 0; i < ROUNDS; i++) {
		r->per_block[i] = time_matches(s, CHAIN_BLOCKS * BLOCK_TOKENS, 20 * scale, &rng) /
				  CHAIN_BLOCKS;
		r->per_block_short[i] =
			time_matches(s, SHORT_BLOCKS * BLOCK_TOKENS, 100 * scale, &rng) /
			SHORT_BLOCKS;
		r->one_block[i] = time_matches(s, BLOCK_TOKENS, 1000 * scale, &rng);
		r->lease_release[i] = time_lease(page, 10000 * scale);
		if (s->device) {
			r->here[i] = time_addresses(s, false, 100 * scale, &rng) / SHORT_BLOCKS;
			r->there[i] = time_addresses(s, true, 100 * scale, &rng) / SHORT_BLOCKS;
			wrong |= r->here[i] < 0 || r->there[i] < 0;
		}
		time_long(s);
		r->long_us[i] = time_long(s);
		bench_flush_caches();
		r->per_block_cold[i] =
			time_matches(s, CHAIN_BLOCKS * BLOCK_TOKENS, 1, &rng) / CHAIN_BLOCKS;
		wrong |= r->per_block[i] < 0 || r->per_block_short[i] < 0 || r->one_block[i] < 0 ||
			 r->per_block_cold[i] < 0 || r->long_us[i] < 0;
	}
	return !wrong;
}

/* No rule at all: every system call of this thread ends the process. */
static int forbid_system_calls(void)
{
	scmp_filter_ctx ctx = seccomp_init(SCMP_ACT_KILL_PROCESS);
	int r;

	if (!ctx)
		return -ENOMEM;
	r = seccomp_load(ctx);
	/* Not released: free() may give memory back by a system call. */
	return r;
}

static void idle_until_killed(void)
{
	for (volatile int forever = 1; forever;)
		;
}

/* In the child: attach, warm up, close the door, measure. Never returns. */
static void measured_child(struct setup *s)
{
	struct kvp_session_page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (page == MAP_FAILED || bench_pool_attach(&s->pool) < 0)
		_exit(1);
	if (s->device && warm_up(s) < 0)
		_exit(1);
	bench_flush_caches();
	if (!measure(s, page, 1) || forbid_system_calls() < 0) {
		fprintf(stderr, "kvbench: the warm-up matched something else than was stored\n");
		_exit(1);
	}
	s->result->done = measure(s, page, 100) ? 1 : -1;
	idle_until_killed();
}

/* Shows that the filter bites: a child that asks for its parent's id must die of SIGSYS. */
static bool filter_bites(void)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		if (forbid_system_calls() == 0)
			(void)getppid();
		idle_until_killed();
	}
	return pid > 0 && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) &&
	       WTERMSIG(status) == SIGSYS;
}

/* 0: measured without a system call. */
static int run_child(struct setup *s)
{
	struct timespec pause = { 0, 20000000 };
	pid_t pid = fork();
	int status;

	if (pid < 0)
		return -errno;
	if (!pid)
		measured_child(s);
	while (!s->result->done) {
		if (waitpid(pid, &status, WNOHANG) == pid) {
			if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
				fprintf(stderr, "kvbench: a system call in the loop\n");
			return -EPERM;
		}
		nanosleep(&pause, NULL);
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	return s->result->done > 0 ? 0 : -EBADMSG;
}

static void report_json(struct result *r, uint32_t blocks, unsigned page_kib, bool device)
{
	json_t *o =
		json_pack("{s:i, s:i}", "blocks", (int)blocks, "block_tokens", (int)BLOCK_TOKENS);

	bench_add(o, "match_ns_per_block", bench_spread(r->per_block, ROUNDS));
	bench_add(o, "match_ns_per_block_1500", bench_spread(r->per_block_short, ROUNDS));
	bench_add(o, "match_ns_per_block_cold", bench_spread(r->per_block_cold, ROUNDS));
	bench_add(o, "one_block_ns", bench_spread(r->one_block, ROUNDS));
	bench_add(o, "lease_release_ns", bench_spread(r->lease_release, ROUNDS));
	bench_add(o, "match_128k_us", bench_spread(r->long_us, ROUNDS));
	if (device) {
		bench_add(o, "addresses_ns_per_block_1500", bench_spread(r->here, ROUNDS));
		bench_add(o, "device_addresses_ns_per_block_1500", bench_spread(r->there, ROUNDS));
	}
	json_object_set_new(o, "page_kib", json_integer(page_kib));
	json_object_set_new(o, "syscalls_in_loop", json_integer(0));
	bench_print_json(o);
	json_decref(o);
}

static void report(struct result *r, uint32_t blocks, unsigned page_kib, bool device)
{
	const struct {
		const char *what;
		double *v;
		const char *unit;
	} rows[] = {
		{ "match, 8,192-token prompts", r->per_block, "ns per block" },
		{ "match, 1,500-token prompts", r->per_block_short, "ns per block" },
		{ "match, caches flushed", r->per_block_cold, "ns per block" },
		{ "match + release, one block", r->one_block, "ns" },
		{ "lease + release", r->lease_release, "ns" },
		{ "match, 128K-token prompt", r->long_us, "us" },
	};
	char text[64];

	printf("%u blocks of %u tokens in the catalog, pages of %u KiB, no system call in the "
	       "loop;\nmedians of %u rounds (least to most)\n",
		blocks, BLOCK_TOKENS, page_kib, ROUNDS);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		printf("  %-28s %s %s\n", rows[i].what,
			bench_show(bench_spread(rows[i].v, ROUNDS), 1, text), rows[i].unit);
	if (!device)
		return;
	printf("with the addresses of %u blocks of each of %u prompts:\n", SHORT_BLOCKS,
		HOT_PROMPTS);
	printf("  %-28s %s ns per block\n", "in DRAM",
		bench_show(bench_spread(r->here, ROUNDS), 1, text));
	printf("  %-28s %s ns per block\n", "on a device",
		bench_show(bench_spread(r->there, ROUNDS), 1, text));
}

/* Page size under the catalog's mapping of this process, as the kernel tells it. */
static unsigned catalog_page_kib(void)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	char line[512];
	bool inside = false;
	unsigned long kib, page = 4, size = 0;

	while (f && fgets(line, sizeof(line), f)) {
		if (strstr(line, "/memfd:"))
			inside = strstr(line, "catalog") != NULL;
		else if (inside && sscanf(line, "Size: %lu", &kib) == 1)
			size = kib;
		else if (inside && sscanf(line, "KernelPageSize: %lu", &kib) == 1)
			page = kib;
		else if (inside && sscanf(line, "ShmemPmdMapped: %lu", &kib) == 1 && kib * 2 > size)
			page = 2048;
	}
	if (f)
		fclose(f);
	return (unsigned)page;
}

static int make_prompts(struct setup *s, uint32_t blocks)
{
	uint32_t n = CHAIN_BLOCKS * BLOCK_TOKENS, long_chains = LONG_TOKENS / BLOCK_TOKENS;

	s->chains = (blocks - long_chains) / CHAIN_BLOCKS;
	s->prompts = s->chains < 4096 ? s->chains : 4096;
	s->tokens = malloc((size_t)s->prompts * n * sizeof(*s->tokens));
	s->long_tokens = malloc(LONG_TOKENS * sizeof(*s->long_tokens));
	s->result = mmap(NULL, sizeof(*s->result), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (!s->tokens || !s->long_tokens || s->result == MAP_FAILED)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->prompts; i++)
		bench_chain_tokens(i, s->tokens + (size_t)i * n, n);
	return 0;
}

/* One chain of 128K tokens beside the many of 8K: chain number `chains`, stored by itself. */
static int fill(struct setup *s)
{
	int r = bench_pool_fill(&s->pool, 0, s->chains, CHAIN_BLOCKS);

	if (r < 0)
		return r;
	bench_chain_tokens(s->chains, s->long_tokens, LONG_TOKENS);
	return bench_pool_fill(&s->pool, s->chains, 1, LONG_TOKENS / BLOCK_TOKENS);
}

int kvbench_hotpath(int argc, char **argv)
{
	uint64_t blocks = 1000000;
	struct setup s = { 0 };
	bool json = false;
	const struct bench_option options[] = {
		{ .name = "blocks",
			.help = "blocks in the catalog (default 1000000)",
			.value = &blocks,
			.min = 4096,
			.max = 8000000 },
		{ .name = "device",
			.help = "with a device of host memory, and addresses on it",
			.flag = &s.device },
		{ .name = "json", .help = "one JSON object on stdout", .flag = &json },
	};
	int r = bench_parse(argc, argv,
		"Match, lease and release under a filter that kills at any "
		"system call.",
		options, sizeof(options) / sizeof(options[0]));

	if (r <= 0)
		return r ? 2 : 0;
	if (!filter_bites()) {
		fprintf(stderr,
			"kvbench: seccomp filters do not work here: nothing could be proven\n");
		return 1;
	}
	if (make_prompts(&s, (uint32_t)blocks) < 0) {
		fprintf(stderr, "kvbench: no memory for the prompts\n");
		return 1;
	}
	s.pool.device_blocks = s.device ? HOT_PROMPTS * SHORT_BLOCKS : 0;
	r = bench_pool_start(&s.pool, (uint32_t)blocks, BLOCK_TOKENS, 4 * BLOCK_TOKENS, 8);
	if (r == 0)
		r = fill(&s);
	if (r == 0) {
		unsigned page_kib = catalog_page_kib();

		r = run_child(&s);
		if (r == 0 && json)
			report_json(s.result, (uint32_t)blocks, page_kib, s.device);
		else if (r == 0)
			report(s.result, (uint32_t)blocks, page_kib, s.device);
		else
			fprintf(stderr, "kvbench: the measured process failed: %s\n", strerror(-r));
	}
	bench_pool_stop(&s.pool);
	free(s.tokens);
	free(s.long_tokens);
	munmap(s.result, sizeof(*s.result));
	return r == 0 ? 0 : 1;
}
