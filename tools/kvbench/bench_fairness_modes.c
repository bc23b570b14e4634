/* SPDX-License-Identifier: Apache-2.0 */
/* The loads of kvbench fairness: honest engines, and clients that ask for all that they can. */
#include "tools/kvbench/bench_fairness.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "shm/kvp_lease.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_raw.h"

#define BLOCK_TOKENS 16u /* small blocks: many in a tenant, and none of them costs a copy */
#define DIM          16u
#define LARGE_TOKENS 64u /* 64 KiB: few slots */
#define LARGE_DIM    256u
#define CHAIN        32u  /* blocks of the chains that `commits` makes */
#define DEEP_CHAIN   512u /* whose tip `touches` names */
#define DOOMED_CHAIN 8u
#define TRIES        100u
#define TOUCHES      256u /* that `commits` logs at each visit of a session */
#define PROMPT       16u  /* blocks of an honest engine's prompts */
#define PROMPTS      2000u
#define HOLD_MS      20u

static void nap_us(long us)
{
	const struct timespec t = { us / 1000000, us % 1000000 * 1000 };

	nanosleep(&t, NULL);
}

static void done(struct fair_load *load, uint64_t n)
{
	atomic_fetch_add_explicit(&load->control->ops, n, memory_order_relaxed);
}

/* Threads that the library started are lowered too. */
static void lower(void)
{
	const struct sched_param none = { 0 };
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;

	while (d && (e = readdir(d)))
		if (e->d_name[0] != '.')
			(void)sched_setscheduler(atoi(e->d_name), SCHED_IDLE, &none);
	if (d)
		closedir(d);
}

void fair_ready(struct fair_load *load)
{
	lower();
	atomic_fetch_add(&load->control->ready, 1);
	while (!atomic_load(&load->control->go))
		nap_us(200);
}

static _Noreturn void wait_for_the_end(void)
{
	for (;;)
		pause();
}

/* ---- sessions without the library ----------------------------------------------------------- */

struct crowd {
	struct raw_session *s;
	struct kvp_packet *packet;
	uint32_t n;
};

static int crowd_attach(struct fair_load *load, uint32_t tokens, uint32_t dim, struct crowd *ret)
{
	struct crowd c = {
		.s = calloc(load->sessions, sizeof(*c.s)),
		.packet = malloc(sizeof(*c.packet)),
	};
	int r = c.s && c.packet ? 0 : -ENOMEM;

	for (; r == 0 && c.n < load->sessions; c.n++) {
		r = raw_attach(load->socket, c.packet, &c.s[c.n]);
		if (r == 0)
			r = raw_space(&c.s[c.n], c.packet, "kvbench-raw", tokens, dim);
	}
	*ret = c;
	return r;
}

/* Each visit of a session keeps its ring as full as it goes. */
static _Noreturn void visit_all(struct fair_load *load, struct crowd *c,
	uint32_t (*visit)(struct raw_session *s, void *arg), void *arg)
{
	for (uint32_t round = 0;; round++) {
		uint32_t n = 0;

		for (uint32_t i = 0; i < c->n; i++) {
			if (round % 16 == i % 16)
				(void)raw_listen(&c->s[i], c->packet);
			done(load, raw_drain(&c->s[i]));
			n += visit(&c->s[i], arg);
		}
		if (!n)
			nap_us(100);
	}
}

static void touch(struct raw_session *s, struct raw_block tip, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		kvp_touch_push(s->page, i % KVP_SHARDS, tip.id, 1);
}

static uint32_t visit_commit(struct raw_session *s, void *arg)
{
	struct kvp_sqe reserve = {
		.op = KVP_OP_RESERVE,
		.space = (uint16_t)s->space,
		.count = KVP_MAX_GRANTS,
	};
	uint32_t n = 0;

	(void)arg;
	for (; s->n_grants; n++) {
		/* The one before it, whatever became of that; every so often a new chain. */
		bool root = s->number % CHAIN == 0;
		struct raw_block parent = { .id = s->serial };

		if (raw_commit(s, root ? KVP_PARENT_ROOT : KVP_PARENT_SERIAL, parent) < 0)
			break;
	}
	if (!s->n_grants && !s->reserving && raw_submit(s, &reserve) == 0)
		s->reserving = true;
	touch(s, s->last, TOUCHES);
	return n;
}

static int run_commits(struct fair_load *load)
{
	struct crowd c;
	int r = crowd_attach(load, BLOCK_TOKENS, DIM, &c);

	if (r < 0)
		return r;
	fair_ready(load);
	visit_all(load, &c, visit_commit, NULL);
}

static uint32_t visit_delete(struct raw_session *s, void *arg)
{
	const struct raw_block *block = arg;
	uint32_t n = 0;

	while (raw_delete(s, *block) == 0)
		n++;
	return n;
}

static int run_deletes(struct fair_load *load)
{
	struct raw_block block;
	struct crowd c;
	int r = crowd_attach(load, BLOCK_TOKENS, DIM, &c);

	if (r == 0)
		r = raw_put(&c.s[0], c.packet, NULL, &block);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < c.n; i++)
		raw_lease_all(&c.s[i], block);
	fair_ready(load);
	visit_all(load, &c, visit_delete, &block);
}

/*
 * Puts a chain. Its tip may be evicted, or be on its way to another place, when the next block is to
 * follow it: then from the root again.
 */
static int put_chain(
	struct raw_session *s, struct kvp_packet *packet, struct raw_block *out, uint32_t n)
{
	int r = 0;

	for (uint32_t tries = 0; tries < TRIES; tries++) {
		for (uint32_t i = 0; i < n; i++) {
			r = raw_put(s, packet, i ? &out[i - 1] : NULL, &out[i]);
			if (r < 0)
				break;
		}
		if (r != -ECANCELED)
			break;
		nap_us(1000);
	}
	return r;
}

/*
 * A chain for each session, which leases its tip; the first session puts them all. They are deleted
 * only at the start, because a daemon that suffers from deletions that wait would not let us prepare
 * more of them.
 */
static int run_doomed(struct fair_load *load)
{
	struct raw_block(*chain)[DOOMED_CHAIN] = calloc(load->sessions, sizeof(*chain));
	struct crowd c = { 0 };
	int r = chain ? crowd_attach(load, BLOCK_TOKENS, DIM, &c) : -ENOMEM;

	for (uint32_t i = 0; i < c.n && r == 0; i++) {
		r = put_chain(&c.s[0], c.packet, chain[i], DOOMED_CHAIN);
		if (r == 0)
			raw_lease_all(&c.s[i], chain[i][DOOMED_CHAIN - 1]);
	}
	if (r < 0)
		return r;
	fair_ready(load);
	for (uint32_t i = 0; i < c.n; i++)
		for (uint32_t b = DOOMED_CHAIN; b-- > 0;)
			done(load, raw_delete(&c.s[i], chain[i][b]) == 0);
	wait_for_the_end();
}

static uint32_t visit_touch(struct raw_session *s, void *arg)
{
	struct kvp_sqe nop = { .op = KVP_OP_NOP };
	const struct raw_block *tip = arg;

	touch(s, *tip, KVP_SHARDS * KVP_TOUCHES);
	/* A log is looked at when its session has an entry. */
	return raw_submit(s, &nop) == 0;
}

static int run_touches(struct fair_load *load)
{
	struct raw_block chain[DEEP_CHAIN];
	struct crowd c;
	int r = crowd_attach(load, BLOCK_TOKENS, DIM, &c);

	if (r == 0)
		r = put_chain(&c.s[0], c.packet, chain, DEEP_CHAIN);
	if (r < 0)
		return r;
	fair_ready(load);
	visit_all(load, &c, visit_touch, &chain[DEEP_CHAIN - 1]);
}

static uint32_t visit_reserve(struct raw_session *s, void *arg)
{
	struct kvp_sqe sqe = {
		.op = KVP_OP_RESERVE,
		.space = (uint16_t)s->space,
		.count = KVP_MAX_GRANTS,
	};
	uint32_t n = 0;

	(void)arg;
	while (raw_submit(s, &sqe) == 0)
		n++;
	return n;
}

static int run_reserves(struct fair_load *load)
{
	struct crowd c;
	int r = crowd_attach(load, LARGE_TOKENS, LARGE_DIM, &c);

	if (r < 0)
		return r;
	fair_ready(load);
	visit_all(load, &c, visit_reserve, NULL);
}

/* ---- a claim that a thousand threads wait for ----------------------------------------------- */

#define CLAIM_KEY    7u
#define THREAD_STACK (256u << 10)

static void *wait_for_claim(void *arg)
{
	KVP_ATOMIC(uint32_t) *word = arg;

	for (;;)
		(void)syscall(SYS_futex, word, FUTEX_WAIT, kvp_load_acquire(word), NULL, NULL, 0);
	return NULL;
}

static uint32_t visit_claim(struct raw_session *s, void *arg)
{
	struct kvp_sqe claim = { .op = KVP_OP_CLAIM, .next_lo = CLAIM_KEY };
	struct kvp_sqe unclaim = { .op = KVP_OP_UNCLAIM, .next_lo = CLAIM_KEY };
	uint32_t n = 0;

	(void)arg;
	while (raw_submit(s, &claim) == 0 && raw_submit(s, &unclaim) == 0)
		n++;
	return n;
}

static int run_futex(struct fair_load *load)
{
	uint32_t threads = load->sessions;
	pthread_attr_t attr;
	struct crowd c;
	int r;

	load->sessions = 1;
	r = crowd_attach(load, BLOCK_TOKENS, DIM, &c);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	for (uint32_t i = 0; i < threads && r == 0; i++) {
		pthread_t thread;

		r = -pthread_create(&thread, &attr, wait_for_claim,
			&c.s[0].view.cat->futex[CLAIM_KEY % KVP_FUTEX_WORDS].word);
	}
	pthread_attr_destroy(&attr);
	if (r < 0)
		return r;
	fair_ready(load);
	visit_all(load, &c, visit_claim, NULL);
}

/* ---- sockets -------------------------------------------------------------------------------- */

/* The first session has an extent; the others ask for its descriptor and never read. */
static int run_inflight(struct fair_load *load)
{
	struct kvp_msg_id extent;
	struct raw_block block;
	struct crowd c;
	int r;

	load->sessions++;
	r = crowd_attach(load, BLOCK_TOKENS, DIM, &c);
	if (r == 0)
		r = raw_put(&c.s[0], c.packet, NULL, &block);
	if (r < 0)
		return r;
	extent = c.s[0].extent;
	fair_ready(load);
	for (;;) {
		uint64_t sent = 0;

		for (uint32_t i = 1; i < c.n; i++)
			while (kvp_msg_send(c.s[i].sock, KVP_MSG_EXTENT_GET, 3, &extent,
				       sizeof(extent), NULL, 0) == 0)
				sent++;
		done(load, sent);
		if (!sent)
			nap_us(1000);
	}
}

static void *attach_for_ever(void *arg)
{
	struct kvp_packet *packet = malloc(sizeof(*packet));
	struct fair_load *load = arg;
	struct raw_session s;

	while (packet) {
		if (raw_attach(load->socket, packet, &s) == 0) {
			raw_detach(&s, true);
			done(load, 1);
		} else {
			nap_us(1000);
		}
	}
	return NULL;
}

/* ---- clients of the library ----------------------------------------------------------------- */

/* Runs `fn` in a thread for each session but the first, and in this one for that. */
static int in_threads(struct fair_load *load, void *(*fn)(void *), void *args, size_t size)
{
	int r = 0;

	for (uint32_t i = 1; i < load->sessions && r == 0; i++) {
		pthread_t thread;

		r = -pthread_create(&thread, NULL, fn, (char *)args + i * size);
	}
	if (r == 0)
		fn(args);
	return r;
}

static int run_attach(struct fair_load *load)
{
	fair_ready(load);
	return in_threads(load, attach_for_ever, load, 0);
}

struct engine {
	struct fair_load *load;
	struct bench_pool pool;
	uint64_t rng;
};

static int engines_attach(
	struct fair_load *load, uint32_t tokens, uint64_t block_bytes, struct engine **ret_engines)
{
	struct engine *e = calloc(load->sessions, sizeof(*e));
	int r = e ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < load->sessions && r == 0; i++) {
		e[i].load = load;
		e[i].rng = UINT64_C(0x9e3779b97f4a7c15) * (load->process * 1000 + i + 1);
		e[i].pool.block_tokens = tokens;
		e[i].pool.block_bytes = block_bytes;
		memccpy(e[i].pool.daemon.socket, load->socket, 0,
			sizeof(e[i].pool.daemon.socket) - 1);
		r = bench_pool_attach(&e[i].pool);
	}
	if (r == 0)
		*ret_engines = e;
	return r;
}

/* One prompt: what is not cached is computed, which here takes no time, and published. */
static void serve_prompt(struct engine *e)
{
	uint32_t tokens[PROMPT * BLOCK_TOKENS];
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *last = NULL;
	struct kvp_prefix *m;
	int r;

	bench_chain_tokens(
		(uint32_t)(bench_random(&e->rng) % PROMPTS), tokens, PROMPT * BLOCK_TOKENS);
	if (kvp_match(e->pool.space, tokens, PROMPT * BLOCK_TOKENS, NULL, &m) < 0)
		return;
	kvp_match_info(m, &info);
	r = kvp_match_ref(m, info.n_blocks, &parent);
	for (uint32_t i = info.n_blocks; i < PROMPT && r == 0; i++) {
		struct kvp_grant *g;

		r = kvp_reserve(e->pool.space, 1000, NULL, &g);
		if (r < 0)
			break;
		memset(kvp_grant_addr(g), (int)i, e->pool.block_bytes);
		r = kvp_commit(g, parent, tokens + i * BLOCK_TOKENS, BLOCK_TOKENS, NULL, 0);
		if (r == 0)
			r = kvp_grant_ref(g, &parent);
		kvp_grant_release(last);
		last = g;
	}
	kvp_grant_release(last);
	kvp_release(m);
	done(e->load, 1);
}

static void *serve_prompts(void *arg)
{
	for (;;)
		serve_prompt(arg);
	return NULL;
}

static int run_honest(struct fair_load *load)
{
	struct engine *e = NULL;
	int r = engines_attach(load, BLOCK_TOKENS, BLOCK_TOKENS * 4 * DIM, &e);

	if (r < 0)
		return r;
	fair_ready(load);
	return in_threads(load, serve_prompts, e, sizeof(*e));
}

/* Asks for room as the library's contract says, keeps what it gets for a while, and asks again. */
static void *reserve_for_ever(void *arg)
{
	struct engine *e = arg;

	for (;;) {
		struct kvp_grant *g;
		uint32_t retry_ms = 1;
		int r = kvp_reserve(e->pool.space, 1000, &retry_ms, &g);

		if (r == 0) {
			nap_us(HOLD_MS * 1000);
			kvp_grant_release(g);
		} else {
			nap_us(retry_ms * 1000L);
		}
		done(e->load, 1);
	}
	return NULL;
}

static int run_starved(struct fair_load *load)
{
	struct engine *e = NULL;
	int r = engines_attach(load, LARGE_TOKENS, LARGE_TOKENS * 4 * LARGE_DIM, &e);

	if (r < 0)
		return r;
	fair_ready(load);
	return in_threads(load, reserve_for_ever, e, sizeof(*e));
}

/* ---- the control ---------------------------------------------------------------------------- */

static _Noreturn int run_spin(struct fair_load *load)
{
	fair_ready(load);
	for (uint64_t n = 0;; n++)
		if (n % 1000000 == 0)
			done(load, 1);
}

#define SMALL_SHARE (UINT64_C(16) << 20)

const struct fair_mode fair_modes[] = {
	{
		.name = "spin",
		.help = "as many processes that only use the processor: what scheduling alone "
			"costs",
		.fixed = true,
		.control = true,
		.processes = 2,
		.run = run_spin,
	},
	{
		.name = "honest",
		.help = "four engines that match, reserve, commit and release",
		.sessions = 4,
		.fixed = true,
		.processes = 2,
		.run = run_honest,
	},
	{
		.name = "commits",
		.help = "commits without end, caches that overflow, touch logs that are full",
		.sessions = 250,
		.processes = 2,
		.run = run_commits,
	},
	{
		.name = "deletes",
		.help = "rings full of deletions of one leased block",
		.sessions = 250,
		.processes = 2,
		.run = run_deletes,
	},
	{
		.name = "doomed",
		.help = "idle sessions, each with a deleted chain whose tip is leased",
		.sessions = 250,
		.processes = 2,
		.run = run_doomed,
	},
	{
		.name = "touches",
		.help = "touch logs always full, of a long chain",
		.sessions = 250,
		.processes = 2,
		.run = run_touches,
	},
	{
		.name = "reserves",
		.help = "rings full of reserves with all grants held",
		.sessions = 250,
		.processes = 2,
		.run = run_reserves,
	},
	{
		.name = "futex",
		.help = "one session with threads that wait for a claim that comes and goes",
		.sessions = 1000,
		.threads = true,
		.processes = 1,
		.run = run_futex,
	},
	{
		.name = "starved",
		.help = "honest engines that reserve in a tenant that is too small",
		.sessions = 100,
		.share = SMALL_SHARE,
		.processes = 2,
		.run = run_starved,
	},
	{
		.name = "starved",
		.help = "twice as many of them",
		.sessions = 200,
		.share = SMALL_SHARE,
		.processes = 2,
		.run = run_starved,
	},
	{
		.name = "inflight",
		.help = "sessions that ask for descriptors and never read",
		.sessions = 100,
		.files = 4096,
		.processes = 2,
		.run = run_inflight,
	},
	{
		.name = "attach",
		.help = "clients that attach and close without end",
		.sessions = 16,
		.fixed = true,
		.processes = 2,
		.run = run_attach,
	},
};

const uint32_t fair_n_modes = sizeof(fair_modes) / sizeof(fair_modes[0]);
