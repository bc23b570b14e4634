/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that put, into DRAM and on a small device, match, have blocks copied there, read, compare, hold and
 * delete them, in a pool that is too small for all, while clients and the device's workers are killed. What is
 * read under a lease has to be right, and has to stay so until the lease ends; afterwards nothing may be
 * left of anybody. `storm --sim` is storm_cuda.c's.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/device/storm.h"

#define DIM         64u
#define BLOCK_BYTES (T * 2u * 2u * 2u * DIM * 2u) /* K and V, layers, heads, fp16 */
#define WORDS       (BLOCK_BYTES / 8)

struct counts {
	_Atomic(uint64_t) hazards; /* bytes that were right and changed under the lease */
	_Atomic(uint64_t) wrong;   /* bytes that were not right when they were first read */
	_Atomic(uint64_t) there;   /* blocks read on the device */
	_Atomic(uint64_t) here;    /* and in DRAM */
	_Atomic(uint64_t) early;   /* places told of blocks that were still to come */
	_Atomic(uint64_t) stored;
	_Atomic(uint64_t) stored_there; /* of these on the device */
};

static struct kvt_daemon daemon_;
static struct counts *counts;

/* ---- contents ------------------------------------------------------------------------------- */

static void derive(const uint32_t *tokens, uint32_t blocks, uint64_t *payload)
{
	uint64_t h = storm_digest(tokens, blocks * T);

	for (uint32_t i = 0; i < WORDS; i++)
		payload[i] = h + i * UINT64_C(0x9e3779b97f4a7c15);
}

static bool derived(const uint32_t *tokens, uint32_t blocks, const uint64_t *payload)
{
	uint64_t h = storm_digest(tokens, blocks * T), diff = 0;

	for (uint32_t i = 0; i < WORDS; i++)
		diff |= payload[i] ^ (h + i * UINT64_C(0x9e3779b97f4a7c15));
	return !diff;
}

/* ---- clients -------------------------------------------------------------------------------- */

static int attach(struct e2e *e)
{
	struct kvp_open_opts opts = { .size = sizeof(opts),
		.socket = daemon_.socket,
		.name = "storm",
		.default_timeout_ms = WAIT_MS };
	struct kvp_layer layers[2] = { { .index = 0, .kv_heads = 2, .k_dim = DIM, .v_dim = DIM },
		{ .index = 1, .kv_heads = 2, .k_dim = DIM, .v_dim = DIM } };
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = "storm",
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = T,
		.n_layers = 2,
		.layers = layers };
	int r = kvp_open(&opts, &e->client);

	if (r < 0)
		return r;
	r = kvp_space_open(e->client, &desc, WAIT_MS, &e->space);
	if (r < 0)
		e->client = kvp_close(e->client);
	return r;
}

static int reserve(struct e2e *e, bool there, struct kvp_grant **ret_grant)
{
	return there ? kvp_reserve_on(e->space, 0, 100, NULL, ret_grant)
		     : kvp_reserve(e->space, 1000, NULL, ret_grant);
}

/* What is missing of the prompt's first blocks. */
static int store(struct e2e *e, const uint32_t *tokens, uint32_t blocks, bool there)
{
	struct kvp_match_opts opts = {
		.size = sizeof(opts),
		.flags = there ? KVP_MATCH_DEVICE : 0,
	};
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *last = NULL, *g;
	struct kvp_prefix *m;
	int r = kvp_match(e->space, tokens, blocks * T, &opts, &m);

	if (r < 0)
		return r;
	kvp_match_info(m, &info);
	if (info.n_blocks && info.n_blocks < blocks)
		r = kvp_match_ref(m, info.n_blocks, &parent);
	for (uint32_t i = info.n_blocks; i < blocks && r >= 0; i++) {
		r = reserve(e, there, &g);
		if (r < 0)
			break;
		derive(tokens, i + 1, kvp_grant_addr(g));
		r = kvp_commit(g, parent, tokens + i * T, T, NULL, 0);
		if (r == 0) {
			atomic_fetch_add(&counts->stored, 1);
			atomic_fetch_add(&counts->stored_there, there);
			r = i + 1 < blocks ? kvp_grant_ref(g, &parent) : 0;
		}
		kvp_grant_release(last);
		last = g;
	}
	kvp_grant_release(last);
	kvp_release(m);
	return r;
}

struct reading {
	const void *there[BLOCKS], *here[BLOCKS];
	int n_there, n_here;
};

static void read_on(struct kvp_prefix *m, struct reading *r)
{
	r->n_there = kvp_device_payloads(m, 0, 0, BLOCKS, 0, r->there);
	r->n_here = kvp_payloads(m, 0, BLOCKS, r->here);
	if (r->n_there > 0)
		atomic_fetch_add(&counts->there, (uint64_t)r->n_there);
	if (r->n_here > 0)
		atomic_fetch_add(&counts->here, (uint64_t)r->n_here);
}

static void compare(
	const uint32_t *tokens, const struct reading *r, _Atomic(uint64_t) *count, const char *what)
{
	for (int i = 0; i < r->n_there; i++)
		if (!derived(tokens, (uint32_t)i + 1, r->there[i])) {
			fprintf(stderr, "%s: block %d on the device\n", what, i);
			atomic_fetch_add(count, 1);
		}
	for (int i = 0; i < r->n_here; i++)
		if (!derived(tokens, (uint32_t)i + 1, r->here[i])) {
			fprintf(stderr, "%s: block %d in DRAM\n", what, i);
			atomic_fetch_add(count, 1);
		}
}

/* Looks where its blocks come to lie: what is there until they have come is anything, but it is there. */
static void look_early(
	struct e2e *e, struct kvp_prefix *m, const struct kvp_warm_opts *o, struct kvp_ticket t)
{
	const void *there[BLOCKS];
	int n = kvp_ticket_placed(e->client, t, 20);

	if (n <= 0)
		return;
	n = kvp_device_payloads(m, 0, o->first, (uint32_t)n, KVP_DEVICE_PENDING, there);
	for (int i = 0; i < n; i++)
		(void)*(const volatile uint64_t *)there[i];
	if (n > 0)
		atomic_fetch_add(&counts->early, (uint64_t)n);
}

static void maybe_warm(struct e2e *e, struct kvp_prefix *m, uint32_t blocks, uint64_t *rng)
{
	struct kvp_warm_opts o = { .size = sizeof(o) };
	struct kvp_ticket ticket;

	o.first = (uint32_t)(e2e_random(rng) % blocks);
	o.first = e2e_random(rng) % 4 ? 0 : o.first;
	o.n = e2e_random(rng) % 2 ? 0 : 1 + (uint32_t)(e2e_random(rng) % blocks);
	o.flags = e2e_random(rng) % 4 ? 0 : KVP_WARM_PREFETCH;
	o.flags |= e2e_random(rng) % 2 ? 0 : KVP_WARM_EARLY;
	if (kvp_warm(m, &o, &ticket) < 0)
		return;
	if (o.flags & KVP_WARM_EARLY && e2e_random(rng) % 4)
		look_early(e, m, &o, ticket);
	if (e2e_random(rng) % 4)
		(void)kvp_ticket_wait(
			e->client, ticket, 1 + (uint32_t)(e2e_random(rng) % 100), NULL);
}

static void visit(struct e2e *e, const uint32_t *tokens, uint32_t blocks, uint64_t *rng)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_match_opts opts = {
		.size = sizeof(opts),
		.flags = e2e_random(rng) % 2 ? KVP_MATCH_DEVICE : 0,
	};
	struct reading r;
	struct kvp_prefix *m;

	if (kvp_match(e->space, tokens, blocks * T, &opts, &m) < 0)
		return;
	kvp_match_info(m, &info);
	if (info.n_blocks) {
		if (e2e_random(rng) % 4)
			maybe_warm(e, m, info.n_blocks, rng);
		read_on(m, &r);
		compare(tokens, &r, &counts->wrong, "wrong");
		if (e2e_random(rng) % 2)
			e2e_sleep_us((long)(e2e_random(rng) % 8000));
		compare(tokens, &r, &counts->hazards, "hazard");
	}
	kvp_release(m);
}

/* For ever. */
static int life(uint64_t rng)
{
	uint32_t tokens[BLOCKS * T];
	struct e2e e;

	int r = attach(&e);

	if (r < 0) {
		fprintf(stderr, "a client cannot attach: %s\n", strerror(-r));
		return 1;
	}
	for (;;) {
		uint32_t blocks =
			e2e_random(&rng) % 4 ? BLOCKS : 1 + (uint32_t)(e2e_random(&rng) % BLOCKS);
		struct kvp_ids ids = { .ids = tokens, .n = blocks * T, .type = KVP_IDS_U32 };

		storm_prompt((uint32_t)(e2e_random(&rng) % PROMPTS), tokens);
		switch (e2e_random(&rng) % 16) {
		case 0:
			(void)kvp_delete(e.space, tokens, blocks * T, 100);
			break;
		case 1:
			(void)kvp_prefetch(e.space, &ids, NULL);
			break;
		case 2:
		case 3:
		case 4:
		case 5:
			(void)store(&e, tokens, blocks, e2e_random(&rng) % 2);
			break;
		default:
			visit(&e, tokens, blocks, &rng);
		}
	}
}

/* ---- one who holds what he has -------------------------------------------------------------- */

struct keeper {
	struct e2e e;
	struct kvp_prefix *m[KEPT];
	struct reading r[KEPT];
	uint32_t tokens[KEPT][BLOCKS * T];
};

static int keep(struct keeper *k)
{
	struct kvp_warm_opts upper = { .size = sizeof(upper), .n = SHARED };
	struct kvp_ticket ticket;
	int why, r = attach(&k->e);

	for (uint32_t i = 0; i < KEPT && r >= 0; i++) {
		storm_prompt(PROMPTS + i, k->tokens[i]);
		r = store(&k->e, k->tokens[i], BLOCKS, false);
		if (r >= 0)
			r = kvp_flush(k->e.client, WAIT_MS);
		if (r >= 0)
			r = kvp_match(k->e.space, k->tokens[i], BLOCKS * T, NULL, &k->m[i]);
		/* The upper blocks alone: what protects them there is a lease far below. */
		if (r >= 0)
			r = kvp_warm(k->m[i], &upper, &ticket);
		if (r >= 0)
			r = kvp_ticket_wait(k->e.client, ticket, WAIT_MS, &why);
		if (r >= 0)
			read_on(k->m[i], &k->r[i]);
		if (r >= 0 && (r != (int)SHARED || k->r[i].n_here != (int)BLOCKS))
			r = -ENODATA;
	}
	return r;
}

/* At the addresses of the first time: what others do moves nothing of it (row A-074). */
static void kept(struct keeper *k)
{
	for (uint32_t i = 0; i < KEPT; i++)
		compare(k->tokens[i], &k->r[i], &counts->hazards, "hazard, held from the first");
}

/* Blocks that were held all the time and are not there. */
static uint32_t lost(struct keeper *k)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < KEPT; i++) {
		struct reading r;
		struct kvp_prefix *m;
		int error = kvp_match(k->e.space, k->tokens[i], BLOCKS * T, NULL, &m);

		if (error < 0) {
			n += BLOCKS;
			continue;
		}
		read_on(m, &r);
		compare(k->tokens[i], &r, &counts->wrong, "wrong, held from the first");
		n += BLOCKS - (uint32_t)(r.n_here > 0 ? r.n_here : 0);
		kvp_release(m);
		kvp_release(k->m[i]);
	}
	return n;
}

/* ---- killing -------------------------------------------------------------------------------- */

static void kill_client(pid_t *pid, uint64_t seed)
{
	if (*pid) {
		int status;

		kill(*pid, SIGKILL);
		status = e2e_reap(*pid);
		if (status != 128 + SIGKILL) {
			fprintf(stderr, "a client ended by itself, status %d\n", status);
			exit(1);
		}
	}
	*pid = e2e_fork();
	if (!*pid)
		_exit(life(seed));
}

/* Is anything wrong with slots and all else that `check` looks at? */
static uint32_t check(uint32_t clients)
{
	return e2e_clean(daemon_.socket, clients) < 0;
}

/* Until so many of both were killed. Returns how often something was wrong. */
static uint32_t storm(struct keeper *k, uint32_t kills, uint32_t worker_kills, uint64_t rng)
{
	pid_t pid[CLIENTS] = { 0 };
	uint32_t done = 0, workers = 0, wrong = 0;

	for (uint32_t i = 0; i < CLIENTS; i++)
		kill_client(&pid[i], e2e_random(&rng));
	while (done < kills || workers < worker_kills) {
		e2e_sleep_us(1000 + (long)(e2e_random(&rng) % 100000));
		if (done < kills) {
			kill_client(&pid[e2e_random(&rng) % CLIENTS], e2e_random(&rng));
			done++;
		}
		if (workers < worker_kills && (done >= kills || e2e_random(&rng) % 8 == 0)) {
			pid_t worker = e2e_worker(daemon_.pid);

			if (worker) {
				kill(worker, SIGKILL);
				workers++;
			}
		}
		kept(k);
		if (done % 256 == 255)
			wrong += check(1 + CLIENTS);
	}
	for (uint32_t i = 0; i < CLIENTS; i++) {
		kill(pid[i], SIGKILL);
		(void)e2e_reap(pid[i]);
	}
	return wrong + check(1);
}

static void start(void)
{
	static char more[1024];
	struct kvt_daemon_opts opts = { .share = 12u << 20, .max_blocks = 600, .more = more };

	snprintf(more, sizeof(more),
		"devices:\n  - {name: d0, driver: host, bytes: 4MiB, segment: 512KiB, worker: "
		"\"%s\"}\n",
		getenv("KVPOOL_DEVICE"));
	e2e_start(&daemon_, &opts);
}

int main(int argc, char **argv)
{
	const uint32_t kills = (uint32_t)storm_option(argc, argv, "--kills", 40);
	const uint32_t worker_kills = (uint32_t)storm_option(argc, argv, "--worker-kills", 3);
	uint64_t seed = storm_option(argc, argv, "--seed", 1);
	uint32_t wrong, n_lost, n_left;
	static struct keeper k;
	int r;

	if (argc > 1 && !strncmp(argv[1], "--sim", 5))
		return storm_cuda(argc, argv);
	counts = mmap(
		NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counts == MAP_FAILED || !getenv("KVPOOL_DEVICE"))
		e2e_die("KVPOOL_DEVICE names the worker", EINVAL);
	start();
	r = keep(&k);
	if (r < 0)
		e2e_die("the first blocks", r);
	wrong = storm(&k, kills, worker_kills, seed ? seed : 1);
	kept(&k);
	n_lost = lost(&k);
	e2e_detach(&k.e);
	wrong += check(0);
	n_left = storm_left(daemon_.socket);
	wrong += check(0);
	kvt_daemon_stop(&daemon_);
	printf("%llu blocks stored, %llu of them on the device, %llu read in DRAM, %llu on the "
	       "device, %llu places told early\n",
		(unsigned long long)counts->stored, (unsigned long long)counts->stored_there,
		(unsigned long long)counts->here, (unsigned long long)counts->there,
		(unsigned long long)counts->early);
	printf("hazards %llu  wrong blocks %llu  slots returned twice %u  leases left %u  "
	       "dram blocks lost %u\n",
		(unsigned long long)counts->hazards, (unsigned long long)counts->wrong, wrong,
		n_left, n_lost);
	return counts->hazards || counts->wrong || wrong || n_left || n_lost || !counts->there ||
	       !counts->stored_there || !counts->early;
}
