/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench background: one well-behaved client, idle and beside all that the daemon does in the
 * background. Loads run in processes that give way to all others; what they make the daemon do does
 * not. The client holds leases on a hot set all the while, so that not one match of it may miss.
 */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "libclient/kvpool_admin.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_client.h"
#include "tools/kvbench/kvbench.h"

#define BLOCK_TOKENS 64u
#define BLOCK_BYTES  UINT64_C(16384)
#define CHAIN_BLOCKS BENCH_CHAIN_BLOCKS
#define CHAIN_TOKENS (CHAIN_BLOCKS * BLOCK_TOKENS)
#define HOT_MATCHES  10000000u /* beside the loads, unless --seconds says otherwise */
#define SECONDS      20u
#define WAIT_MS      10000u
#define MOVED_CHAINS 8u /* that each client of `moves` leaves behind */

/* ---- loads ---------------------------------------------------------------------------------- */

struct control {
	_Atomic uint32_t ready; /* loads that stand */
	_Atomic uint32_t go;
	_Atomic int error; /* negative errno of one that could not begin */
};

struct world {
	struct bench_pool pool;
	struct control *control; /* shared with the loads */
	uint32_t blocks;
	struct bench_client client;
	uint32_t chain;   /* the next that a load puts */
	const char *only; /* the load that runs by itself; NULL: all do */
};

static void nap_us(long us)
{
	const struct timespec t = { us / 1000000, us % 1000000 * 1000 };

	nanosleep(&t, NULL);
}

static void stand_by(struct control *c)
{
	static const struct sched_param none;

	(void)sched_setscheduler(0, SCHED_IDLE, &none);
	atomic_fetch_add(&c->ready, 1);
	while (!atomic_load(&c->go))
		nap_us(200);
}

/* Stores new chains as fast as it can, and so evicts others. */
static int load_evict(struct world *w)
{
	int r = bench_pool_attach(&w->pool);

	if (r < 0)
		return r;
	stand_by(w->control);
	for (;;) {
		r = bench_pool_put(&w->pool, w->chain++, CHAIN_BLOCKS);
		if (r < 0 && r != -EAGAIN && r != -ETIMEDOUT && r != -ENOSPC)
			return r;
	}
}

/* Clients that store some blocks and die: what they leave is copied to where the daemon owns it. */
static int load_moves(struct world *w)
{
	stand_by(w->control);
	for (;; w->chain += MOVED_CHAINS) {
		pid_t parent = getpid(), pid = fork();

		if (pid < 0)
			return -errno;
		if (!pid) {
			kvt_end_with(parent, SIGKILL);
			if (bench_pool_attach(&w->pool) == 0) {
				for (uint32_t i = 0; i < MOVED_CHAINS; i++)
					(void)bench_pool_put(&w->pool, w->chain + i, CHAIN_BLOCKS);
				kvp_flush(w->pool.client, WAIT_MS);
			}
			_exit(0);
		}
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
	}
}

/* Matches what was there at first: touches and leases, for the policy and the advisor. */
static int load_match(struct world *w)
{
	uint32_t tokens[CHAIN_TOKENS];
	uint64_t rng = 88172645463325252u;
	int r = bench_pool_attach(&w->pool);

	if (r < 0)
		return r;
	stand_by(w->control);
	for (;;) {
		struct kvp_prefix *m;

		bench_chain_tokens((uint32_t)(bench_random(&rng) % (w->blocks / CHAIN_BLOCKS)),
			tokens, CHAIN_TOKENS);
		if (kvp_match(w->pool.space, tokens, CHAIN_TOKENS, NULL, &m) >= 0)
			kvp_release(m);
	}
}

/*
 * Has chains copied to the device, which holds an eighth of them, so that others leave it: at full rate,
 * with as many questions under way as a client may have.
 */
static int load_copies(struct world *w)
{
	struct kvp_ticket ticket[KVP_CLIENT_WARMS];
	struct kvp_prefix *m[KVP_CLIENT_WARMS] = { NULL };
	uint32_t tokens[CHAIN_TOKENS];
	uint64_t rng = 1181783497276652981u;
	int r = bench_pool_attach(&w->pool);

	if (r < 0)
		return r;
	stand_by(w->control);
	for (uint32_t i = 0;; i = (i + 1) % KVP_CLIENT_WARMS) {
		if (m[i]) {
			(void)kvp_ticket_wait(w->pool.client, ticket[i], WAIT_MS, NULL);
			kvp_release(m[i]);
			m[i] = NULL;
		}
		bench_chain_tokens((uint32_t)(bench_random(&rng) % (w->blocks / CHAIN_BLOCKS)),
			tokens, CHAIN_TOKENS);
		if (kvp_match(w->pool.space, tokens, CHAIN_TOKENS, NULL, &m[i]) < 0) {
			m[i] = NULL;
		} else if (kvp_warm(m[i], NULL, &ticket[i]) < 0) {
			kvp_release(m[i]);
			m[i] = NULL;
		}
	}
}

/* Stores on the device, from where the daemon copies it to DRAM behind all that somebody waits for. */
static int load_behind(struct world *w)
{
	uint32_t tokens[BLOCK_TOKENS];
	int r = bench_pool_attach(&w->pool);

	if (r < 0)
		return r;
	stand_by(w->control);
	for (;;) {
		struct kvp_grant *g;

		r = kvp_reserve_on(w->pool.space, 0, WAIT_MS, NULL, &g);
		if (r == -EAGAIN || r == -ETIMEDOUT || r == -ENOSPC)
			continue;
		if (r < 0)
			return r;
		bench_chain_tokens(w->chain++, tokens, BLOCK_TOKENS);
		memset(kvp_grant_addr(g), (int)w->chain, BLOCK_BYTES);
		r = kvp_commit(g, kvp_ref_root(), tokens, BLOCK_TOKENS, NULL, KVP_COMMIT_RELEASE);
		if (r < 0)
			return r;
	}
}

/*
 * One process each, all beside one another; they end when they are killed. What the daemon learns to do in
 * the background gets a line here that makes it do that.
 */
static const struct load {
	const char *name;
	int (*run)(struct world *w);
} loads[] = {
	{ "evict", load_evict },
	{ "moves", load_moves },
	{ "match", load_match },
	{ "copies", load_copies },
	{ "behind", load_behind },
};

#define N_LOADS (sizeof(loads) / sizeof(loads[0]))

static bool is_load(const char *name)
{
	for (uint32_t i = 0; i < N_LOADS; i++)
		if (!strcmp(loads[i].name, name))
			return true;
	return false;
}

static int start_loads(struct world *w, pid_t *pids)
{
	pid_t parent = getpid();

	for (uint32_t i = 0; i < N_LOADS; i++) {
		if (w->only && strcmp(loads[i].name, w->only) != 0)
			continue;
		pids[i] = fork();
		if (pids[i] < 0)
			return -errno;
		if (!pids[i]) {
			int r;

			kvt_end_with(parent, SIGKILL);
			w->chain = (i + 2) * BENCH_NEW_CHAINS;
			r = loads[i].run(w);
			fprintf(stderr, "kvbench background: the load %s ended: %s\n",
				loads[i].name, strerror(-r));
			atomic_store(&w->control->error, r);
			_exit(1);
		}
	}
	while (atomic_load(&w->control->ready) < (w->only ? 1 : N_LOADS) &&
		!atomic_load(&w->control->error))
		nap_us(1000);
	atomic_store(&w->control->go, 1);
	return atomic_load(&w->control->error);
}

static void stop_loads(pid_t *pids)
{
	for (uint32_t i = 0; i < N_LOADS; i++)
		if (pids[i] > 0)
			kill(pids[i], SIGKILL);
	for (uint32_t i = 0; i < N_LOADS; i++)
		while (pids[i] > 0 && waitpid(pids[i], NULL, 0) < 0 && errno == EINTR)
			;
}

/* ---- what the daemon did ------------------------------------------------------------------- */

struct done {
	uint64_t evictions, moves, rankings, copies, behind;
};

static uint64_t figure(const json_t *o, const char *name)
{
	json_int_t v = json_integer_value(json_object_get(o, name));

	return v < 0 ? 0 : (uint64_t)v;
}

static int ask_done(const struct world *w, struct done *ret_done)
{
	const struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = w->pool.daemon.socket, .default_timeout_ms = WAIT_MS
	};
	struct kvp_device_props device = { .size = sizeof(device) };
	struct kvp_admin *admin = NULL;
	char *text = NULL;
	json_t *answer = NULL, *row;
	int r = kvp_admin_open(&opts, &admin);

	if (r == 0)
		r = kvp_admin_request(admin, "{\"verb\":\"tenants\"}", WAIT_MS, 0, &text);
	if (r == 0)
		answer = json_loads(text, 0, NULL);
	row = json_array_get(json_object_get(answer, "tenants"), 0);
	if (r == 0 && !row)
		r = -EBADMSG;
	if (r == 0)
		r = kvp_device_info(w->pool.client, 0, &device);
	if (r == 0)
		*ret_done = (struct done){
			.evictions = figure(row, "evictions_total"),
			.moves = figure(row, "moves_total"),
			.rankings = figure(json_object_get(row, "advisor"), "rankings_total"),
			.copies = device.to_device_bytes / BLOCK_BYTES,
			.behind = device.from_device_bytes / BLOCK_BYTES,
		};
	json_decref(answer);
	free(text);
	kvp_admin_close(admin);
	return r;
}

/* ---- the command ---------------------------------------------------------------------------- */

/* How long a phase lasts, and what ends it before. */
struct span {
	const struct world *w;
	const struct bench_phase *phase;
	uint64_t until, least_matches;
};

static bool more(void *ctx)
{
	const struct span *s = ctx;

	return !atomic_load(&s->w->control->error) &&
	       (bench_now() < s->until || s->phase->hot_matches < s->least_matches);
}

static void run_phase(
	struct world *w, uint64_t seconds, uint64_t least_matches, struct bench_phase *p)
{
	struct span s = { w, p, bench_now() + seconds * UINT64_C(1000000000), least_matches };

	bench_client_run(&w->client, p, more, &s);
}

/* Fills the cache, the hot set last, and leases that for good. */
static int prepare(struct world *w)
{
	uint32_t chains = w->blocks / CHAIN_BLOCKS;
	int r = bench_pool_fill(&w->pool, 0, chains, CHAIN_BLOCKS);

	w->client.pool = &w->pool;
	w->client.chain = BENCH_NEW_CHAINS;
	return r < 0 ? r : bench_client_hold(&w->client, chains - BENCH_HOT_CHAINS);
}

static void report(const struct bench_phase *idle, const struct bench_phase *busy,
	const struct done *did, bool json)
{
	json_t *o, *d;

	if (!json) {
		bench_client_print(idle, busy);
		printf("beside them %" PRIu64 " evictions, %" PRIu64 " moves, %" PRIu64
		       " blocks copied to a device, %" PRIu64
		       " written there and copied from there, %" PRIu64 " rankings\n",
			did->evictions, did->moves, did->copies, did->behind, did->rankings);
		return;
	}
	o = json_object();
	bench_client_json(o, idle, busy);
	d = json_pack("{s:I, s:I, s:I, s:I, s:I}", "evictions", (json_int_t)did->evictions, "moves",
		(json_int_t)did->moves, "rankings", (json_int_t)did->rankings, "copies",
		(json_int_t)did->copies, "behind", (json_int_t)did->behind);
	json_object_set_new(o, "background", d);
	bench_print_json(o);
	json_decref(o);
}

static int measure(struct world *w, uint64_t seconds, struct bench_phase *idle,
	struct bench_phase *busy, struct done *did)
{
	uint64_t least = seconds ? 0 : HOT_MATCHES, time = seconds ? seconds : SECONDS;
	pid_t pids[N_LOADS] = { 0 };
	struct done before;
	int r = prepare(w);

	if (r < 0) {
		fprintf(stderr, "kvbench background: cannot fill the cache: %s\n", strerror(-r));
		return r;
	}
	run_phase(w, (time + 3) / 4, 0, idle);
	r = ask_done(w, &before);
	if (r == 0)
		r = start_loads(w, pids);
	if (r == 0) {
		run_phase(w, time, least, busy);
		r = atomic_load(&w->control->error);
	}
	if (r == 0)
		r = ask_done(w, did);
	stop_loads(pids);
	if (r < 0) {
		fprintf(stderr, "kvbench background: %s\n", strerror(-r));
		return r;
	}
	*did = (struct done){ did->evictions - before.evictions, did->moves - before.moves,
		did->rankings - before.rankings, did->copies - before.copies,
		did->behind - before.behind };
	return 0;
}

int kvbench_background(int argc, char **argv)
{
	uint64_t blocks = 8192, seconds = 0;
	bool json = false;
	const char *realtime = "false";
	struct world w = { 0 };
	const struct bench_option options[] = {
		{ .name = "blocks",
			.help = "blocks that the cache holds (default 8192)",
			.value = &blocks,
			.min = 1024,
			.max = 1000000 },
		{ .name = "seconds",
			.help = "beside the loads; a quarter of it without (default 20, and more "
				"until "
				"10,000,000 matches are done)",
			.value = &seconds,
			.min = 1,
			.max = 3600 },
		{ .name = "realtime",
			.help = "what the ledger's class is: auto, true, false (default)",
			.text = &realtime },
		{ .name = "only",
			.help = "one of the loads by itself: evict, moves, match, copies, behind",
			.text = &w.only },
		{ .name = "json", .help = "one JSON object on stdout", .flag = &json },
	};
	struct bench_phase *idle = calloc(1, sizeof(*idle)), *busy = calloc(1, sizeof(*busy));
	struct done did = { 0 };
	char more[96];
	int n;
	int r = bench_parse(argc, argv,
		"Match, reserve and commit of one client, idle and beside evictions, moves, "
		"copies to a device and from there, and the advisor.",
		options, sizeof(options) / sizeof(options[0]));

	if (r > 0 && w.only && !is_load(w.only)) {
		fprintf(stderr, "kvbench background: there is no load %s\n", w.only);
		r = -1;
	}
	if (r > 0 && strcmp(realtime, "auto") && strcmp(realtime, "true") &&
		strcmp(realtime, "false")) {
		fprintf(stderr, "kvbench background: realtime is none of auto, true, false: %s\n",
			realtime);
		r = -1;
	}
	if (r <= 0 || !idle || !busy) {
		free(idle);
		free(busy);
		return r ? 2 : 0;
	}
	w.blocks = (uint32_t)blocks / CHAIN_BLOCKS * CHAIN_BLOCKS;
	w.control = mmap(NULL, sizeof(*w.control), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	n = snprintf(more, sizeof(more), "advisor: true\nrealtime: %s\n", realtime);
	if (geteuid())
		snprintf(more + n, sizeof(more) - (size_t)n, "admin_group: \"%u\"\n",
			(unsigned)getegid());
	w.pool.more = more;
	w.pool.device_blocks = w.blocks / 8;
	r = w.control == MAP_FAILED
		    ? -ENOMEM
		    : bench_pool_start(&w.pool, w.blocks, BLOCK_TOKENS, BLOCK_BYTES, 64);
	if (r == 0)
		r = measure(&w, seconds, idle, busy, &did);
	if (r == 0)
		report(idle, busy, &did, json);
	bench_client_release(&w.client);
	bench_pool_stop(&w.pool);
	free(idle);
	free(busy);
	return r == 0 ? 0 : 1;
}
