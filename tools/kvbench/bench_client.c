/* SPDX-License-Identifier: Apache-2.0 */
/* A client's match, reserve and commit, timed one by one. */
#include "tools/kvbench/bench_client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tools/kvbench/bench_fairness_client.h"

#define PERIOD_NS     UINT64_C(2000000) /* a put, and so many matches: */
#define MATCHES       1000u
#define OWN_SCHEDSTAT "/proc/thread-self/schedstat"
#define MOST_TOKENS   512u

/* ---- times ---------------------------------------------------------------------------------- */

static uint32_t bucket_of(uint64_t ns)
{
	uint32_t exp;

	if (ns < 32)
		return (uint32_t)ns;
	exp = 63 - (uint32_t)__builtin_clzll(ns);
	return (exp - 4) * 32 + (uint32_t)(ns >> (exp - 5) & 31);
}

static double middle_of(uint32_t bucket)
{
	uint32_t exp = bucket / 32 + 4;

	if (bucket < 32)
		return bucket;
	return (double)(UINT64_C(1) << (exp - 5)) * (32 + bucket % 32 + .5);
}

static void add(struct bench_times *t, uint64_t ns)
{
	t->n++;
	t->count[bucket_of(ns)]++;
}

static double percentile(const struct bench_times *t, double p)
{
	uint64_t want = (uint64_t)(p * (double)t->n), seen = 0;
	uint32_t i = 0;

	while (i + 1 < BENCH_TIME_BUCKETS && (seen += t->count[i]) <= want)
		i++;
	return middle_of(i);
}

/* ---- requests ------------------------------------------------------------------------------- */

static uint32_t chain_tokens(const struct bench_client *c)
{
	return BENCH_CHAIN_BLOCKS * c->pool->block_tokens;
}

/* Whole, and leased. */
static int match_hot(struct bench_client *c, uint32_t chain, struct kvp_prefix **ret_prefix)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t n = chain_tokens(c);
	int r = kvp_match(c->pool->space, c->hot + (size_t)chain * n, n, NULL, ret_prefix);

	if (r < 0)
		return r;
	kvp_match_info(*ret_prefix, &info);
	if (info.n_tokens == n && info.flags & KVP_MATCHED_LEASED)
		return 0;
	kvp_release(*ret_prefix);
	return -ENOENT;
}

int bench_client_hold(struct bench_client *c, uint32_t first)
{
	uint32_t n = chain_tokens(c);
	int r = 0;

	c->hot = malloc((size_t)BENCH_HOT_CHAINS * n * sizeof(*c->hot));
	if (!c->hot)
		return -ENOMEM;
	for (uint32_t i = 0; i < BENCH_HOT_CHAINS && r >= 0; i++) {
		bench_chain_tokens(first + i, c->hot + (size_t)i * n, n);
		r = match_hot(c, i, &c->held[i]);
		if (r < 0)
			c->held[i] = NULL;
	}
	return r < 0 ? r : 0;
}

void bench_client_release(struct bench_client *c)
{
	for (uint32_t i = 0; i < BENCH_HOT_CHAINS; i++)
		kvp_release(c->held[i]);
	free(c->hot);
	memset(c->held, 0, sizeof(c->held));
	c->hot = NULL;
}

/*
 * The time since `began`, without what this thread itself was ready to run and had no processor: the
 * loads' processes and others compute there, and nobody but the kernel can shorten that.
 */
static uint64_t since(struct bench_phase *p, uint64_t began, uint64_t waited)
{
	uint64_t took = bench_now() - began, own = fair_cpu_wait_ns(OWN_SCHEDSTAT) - waited;

	own = own < took ? own : took;
	p->cpu_wait_ns += own;
	return took - own;
}

static void time_put(struct bench_client *c, struct bench_phase *p)
{
	uint32_t tokens[MOST_TOKENS], n = c->pool->block_tokens;
	uint64_t waited = fair_cpu_wait_ns(OWN_SCHEDSTAT), began;
	struct kvp_grant *g = NULL;
	int r;

	bench_chain_tokens(c->chain++, tokens, n);
	began = bench_now();
	r = kvp_reserve(c->pool->space, BENCH_CLIENT_MS, NULL, &g);
	add(&p->reserve, since(p, began, waited));
	if (r < 0) {
		p->failed++;
		return;
	}
	memset(kvp_grant_addr(g), (int)c->chain, c->pool->block_bytes);
	waited = fair_cpu_wait_ns(OWN_SCHEDSTAT);
	began = bench_now();
	r = kvp_commit(g, kvp_ref_root(), tokens, n, NULL, 0);
	if (r >= 0)
		r = kvp_grant_wait(g, BENCH_CLIENT_MS);
	add(&p->commit, since(p, began, waited));
	p->failed += r < 0;
	kvp_grant_release(g);
}

static void time_matches(struct bench_client *c, struct bench_phase *p)
{
	for (uint32_t i = 0; i < MATCHES; i++) {
		uint64_t began = bench_now();
		struct kvp_prefix *m;
		int r = match_hot(c, i % BENCH_HOT_CHAINS, &m);

		if (r == 0)
			kvp_release(m);
		add(&p->match, bench_now() - began);
		p->hot_matches++;
		p->hot_misses += r < 0;
	}
}

void bench_client_run(
	struct bench_client *c, struct bench_phase *p, bool (*more)(void *ctx), void *ctx)
{
	uint64_t now = bench_now(), due = now;

	p->daemon_wait_ms -= fair_process_wait_ms(c->pool->daemon.pid);
	while (more(ctx)) {
		time_put(c, p);
		time_matches(c, p);
		/* What is late is not made up for: one request at a time, as an engine has them. */
		due += PERIOD_NS;
		now = bench_now();
		if (due < now)
			due = now;
		else
			nanosleep(&(struct timespec){ 0, (long)(due - now) }, NULL);
	}
	p->daemon_wait_ms += fair_process_wait_ms(c->pool->daemon.pid);
}

/* ---- reports -------------------------------------------------------------------------------- */

static const struct figure {
	const char *name;
	size_t at; /* of its times in a phase */
	double p;
	double unit; /* nanoseconds */
} figures[] = {
	{ "match_p50_ns", offsetof(struct bench_phase, match), .5, 1 },
	{ "match_p99_ns", offsetof(struct bench_phase, match), .99, 1 },
	{ "reserve_p50_us", offsetof(struct bench_phase, reserve), .5, 1e3 },
	{ "reserve_p99_us", offsetof(struct bench_phase, reserve), .99, 1e3 },
	{ "commit_p50_us", offsetof(struct bench_phase, commit), .5, 1e3 },
	{ "commit_p99_us", offsetof(struct bench_phase, commit), .99, 1e3 },
};

#define N_FIGURES (sizeof(figures) / sizeof(figures[0]))

static double value(const struct bench_phase *p, const struct figure *f)
{
	return percentile((const struct bench_times *)((const char *)p + f->at), f->p) / f->unit;
}

void bench_client_json(json_t *o, const struct bench_phase *idle, const struct bench_phase *busy)
{
	json_t *a = json_object(), *b = json_object(), *c = json_object();

	json_object_set_new(o, "idle", a);
	json_object_set_new(o, "busy", b);
	json_object_set_new(o, "ratio", c);
	json_object_set_new(o, "hot_matches",
		json_integer((json_int_t)(idle->hot_matches + busy->hot_matches)));
	json_object_set_new(
		o, "hot_misses", json_integer((json_int_t)(idle->hot_misses + busy->hot_misses)));
	json_object_set_new(
		o, "failed_puts", json_integer((json_int_t)(idle->failed + busy->failed)));
	for (size_t i = 0; i < N_FIGURES; i++) {
		double x = value(idle, &figures[i]), y = value(busy, &figures[i]);
		char name[32];

		snprintf(name, sizeof(name), "%.*s", (int)strlen(figures[i].name) - 3,
			figures[i].name);
		json_object_set_new(a, figures[i].name, json_real(x));
		json_object_set_new(b, figures[i].name, json_real(y));
		json_object_set_new(c, name, x > 0 ? json_real(y / x) : json_null());
	}
	json_object_set_new(a, "client_cpu_wait_ms", json_real((double)idle->cpu_wait_ns / 1e6));
	json_object_set_new(b, "client_cpu_wait_ms", json_real((double)busy->cpu_wait_ns / 1e6));
	json_object_set_new(a, "daemon_cpu_wait_ms", json_real(idle->daemon_wait_ms));
	json_object_set_new(b, "daemon_cpu_wait_ms", json_real(busy->daemon_wait_ms));
}

void bench_client_print(const struct bench_phase *idle, const struct bench_phase *busy)
{
	printf("%-16s %12s %12s %8s\n", "", "idle", "busy", "ratio");
	for (size_t i = 0; i < N_FIGURES; i++) {
		double x = value(idle, &figures[i]), y = value(busy, &figures[i]);

		printf("%-16s %12.2f %12.2f %8.2f\n", figures[i].name, x, y, x > 0 ? y / x : 0);
	}
	printf("cpu wait, client %12.2f %12.2f ms\ncpu wait, daemon %12.2f %12.2f ms\n",
		(double)idle->cpu_wait_ns / 1e6, (double)busy->cpu_wait_ns / 1e6,
		idle->daemon_wait_ms, busy->daemon_wait_ms);
	printf("%" PRIu64 " matches of the hot set, of which missed %" PRIu64 "; puts %" PRIu64
	       ", failed %" PRIu64 "\n",
		idle->hot_matches + busy->hot_matches, idle->hot_misses + busy->hot_misses,
		idle->reserve.n + busy->reserve.n, idle->failed + busy->failed);
}
