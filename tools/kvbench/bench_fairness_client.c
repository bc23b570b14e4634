/* SPDX-License-Identifier: Apache-2.0 */
/* The well-behaved client of kvbench fairness; see bench_fairness_client.h. */
#include "tools/kvbench/bench_fairness_client.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tools/kvbench/bench.h"

#define BLOCK_TOKENS 64u
#define BLOCK_BYTES  UINT64_C(16384)
#define PUT_BLOCKS   4u
/* Fills the cache of a tenant with default limits: puts that evict are measured, idle or not. */
#define WARM_UP         1200u
#define CLIENT_SLICE_NS 100000
#define OWN_SCHEDSTAT   "/proc/thread-self/schedstat"

static void add(struct fair_track *t, uint64_t ns, int error)
{
	if (t->n == FAIR_SAMPLES)
		return;
	if (error < 0) {
		t->failed++;
		t->error = error;
		if (ns < FAIR_TIMEOUT_MS * UINT64_C(1000000))
			ns = FAIR_TIMEOUT_MS * UINT64_C(1000000);
	}
	t->us[t->n++] = (double)ns / 1e3;
}

/* struct sched_attr, version 0 (sched_setattr(2)). */
struct attributes {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

/*
 * For the calling thread and those that it makes, where the kernel knows slices (Linux 6.12). What a
 * client waits for its own processor, which the load's clients compute on, is no wait for the daemon.
 */
static void ask_for_short_slices(void)
{
	struct attributes a = { 0 };

	if (syscall(SYS_sched_getattr, 0, &a, sizeof(a), 0) < 0)
		return;
	a.size = sizeof(a);
	a.flags = 0;
	a.runtime = CLIENT_SLICE_NS;
	(void)syscall(SYS_sched_setattr, 0, &a, 0);
}

static void sleep_until(uint64_t ns)
{
	const struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

void fair_pace(struct fair_track *track, uint64_t until_ns, uint64_t period_ns,
	int (*request)(void *ctx), void (*after)(void *ctx), void *ctx)
{
	for (uint64_t due = bench_now(); due < until_ns; due += period_ns) {
		uint64_t now = bench_now(), from = due, own;
		int r;

		if (now >= until_ns) {
			track->undone++;
			add(track, now - due, 0);
			continue;
		}
		if (now < due) {
			/* How late this thread wakes up is not the daemon's doing. */
			sleep_until(due);
			from = bench_now();
		}
		own = fair_cpu_wait_ns(OWN_SCHEDSTAT);
		r = request(ctx);
		now = bench_now();
		own = fair_cpu_wait_ns(OWN_SCHEDSTAT) - own;
		if (own > now - from)
			own = now - from;
		add(track, now - from - own, r);
		due += own;
		if (after) {
			after(ctx);
			due += bench_now() - now;
		}
	}
}

uint64_t fair_cpu_wait_ns(const char *schedstat)
{
	unsigned long long waited = 0;
	FILE *f = fopen(schedstat, "re");

	if (f && fscanf(f, "%*u %llu", &waited) != 1)
		waited = 0;
	if (f)
		fclose(f);
	return waited;
}

double fair_process_wait_ms(pid_t pid)
{
	char path[600];
	struct dirent *e;
	uint64_t ns = 0;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int)pid, e->d_name);
		ns += fair_cpu_wait_ns(path);
	}
	if (d)
		closedir(d);
	return (double)ns / 1e6;
}

/* ---- requests ------------------------------------------------------------------------------- */

struct putter {
	struct bench_pool pool;
	uint32_t chain;
	uint8_t *source;
};

static int put(void *ctx)
{
	struct putter *p = ctx;
	struct kvp_view_plane planes[64];
	struct kvp_view view = { .size = sizeof(view), .planes = planes };
	struct kvp_put_opts opts = { .size = sizeof(opts), .timeout_ms = FAIR_TIMEOUT_MS };
	uint32_t tokens[PUT_BLOCKS * BLOCK_TOKENS], n = PUT_BLOCKS * BLOCK_TOKENS;
	uint64_t bytes;
	int64_t r = kvp_view_dense(p->pool.space, KVP_VIEW_LCND, p->source, n, planes, &bytes);

	bench_chain_tokens(p->chain++, tokens, n);
	if (r == 0)
		r = kvp_put(p->pool.space, tokens, n, 0, &view, &opts, NULL);
	if (r >= 0 && r < n)
		return -ENOBUFS; /* not all of it */
	return r < 0 ? (int)r : kvp_flush(p->pool.client, FAIR_TIMEOUT_MS);
}

struct attacher {
	struct fair_client *client;
	struct putter *putter;
	uint32_t phase;
	struct kvp_client *opened;
};

static int attach(void *ctx)
{
	struct attacher *a = ctx;
	const struct kvp_open_opts opts = {
		.size = sizeof(opts),
		.socket = a->putter->pool.daemon.socket,
		.name = "kvbench",
		.default_timeout_ms = FAIR_TIMEOUT_MS,
	};

	return kvp_open(&opts, &a->opened);
}

/*
 * Not timed: kvp_close() waits for the library's own thread and for nothing of the daemon's, and a
 * thread as young as that one waits for its turn until the next tick.
 */
static void detach(void *ctx)
{
	struct attacher *a = ctx;

	a->opened = kvp_close(a->opened);
}

/* ---- phases --------------------------------------------------------------------------------- */

static uint64_t wait_for_phase(struct fair_client *c, uint32_t phase)
{
	uint64_t until;

	while (!(until = atomic_load(&c->until_ns[phase])))
		sleep_until(bench_now() + 500000);
	return until;
}

static void *attach_in_phase(void *arg)
{
	struct attacher *a = arg;

	fair_pace(&a->client->attach[a->phase], atomic_load(&a->client->until_ns[a->phase]),
		FAIR_ATTACH_NS, attach, detach, a);
	return NULL;
}

static int run_phase(struct fair_client *c, struct putter *p, uint32_t phase)
{
	struct attacher a = { .client = c, .putter = p, .phase = phase };
	uint64_t until = wait_for_phase(c, phase);
	pthread_t thread;
	int r = -pthread_create(&thread, NULL, attach_in_phase, &a);

	if (r < 0)
		return r;
	c->cpu_wait_ns[phase] = fair_cpu_wait_ns(OWN_SCHEDSTAT);
	fair_pace(&c->put[phase], until, FAIR_PUT_NS, put, NULL, p);
	c->cpu_wait_ns[phase] = fair_cpu_wait_ns(OWN_SCHEDSTAT) - c->cpu_wait_ns[phase];
	pthread_join(thread, NULL);
	atomic_store(&c->done[phase], 1);
	return 0;
}

int fair_client_run(struct fair_client *c, const char *socket)
{
	struct putter p = {
		.pool = { .block_tokens = BLOCK_TOKENS, .block_bytes = BLOCK_BYTES },
		.source = calloc(PUT_BLOCKS, BLOCK_BYTES),
	};
	int r = p.source ? 0 : -ENOMEM;

	ask_for_short_slices();
	memccpy(p.pool.daemon.socket, socket, 0, sizeof(p.pool.daemon.socket) - 1);
	if (r == 0)
		r = bench_pool_attach(&p.pool);
	for (uint32_t i = 0; i < WARM_UP && r == 0; i++)
		r = put(&p);
	if (r == 0) {
		atomic_store(&c->attached, 1);
		r = run_phase(c, &p, FAIR_IDLE);
	}
	if (r == 0)
		r = run_phase(c, &p, FAIR_LOADED);
	if (p.pool.client)
		bench_pool_detach(&p.pool);
	free(p.source);
	return r;
}
