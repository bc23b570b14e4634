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
#include "tools/kvbench/bench_fairness_client.h"
#include "tools/kvbench/kvbench.h"

#define BLOCK_TOKENS  64u
#define BLOCK_BYTES   UINT64_C(16384)
#define CHAIN_BLOCKS  4u
#define CHAIN_TOKENS  (CHAIN_BLOCKS * BLOCK_TOKENS)
#define HOT_CHAINS    64u
#define PERIOD_NS     UINT64_C(2000000) /* a put, and so many matches: */
#define MATCHES       1000u
#define HOT_MATCHES   10000000u /* beside the loads, unless --seconds says otherwise */
#define SECONDS       20u
#define OWN_SCHEDSTAT "/proc/thread-self/schedstat"
#define WAIT_MS       10000u
#define MOVED_CHAINS  8u       /* that each client of `moves` leaves behind */
#define NEW_CHAINS    1000000u /* chain numbers from here on are nobody's else, for each load */

/* ---- times ---------------------------------------------------------------------------------- */

/* Times in buckets, 32 for each power of two: percentiles are right to 3 %. */
#define TIME_BUCKETS (60u * 32u)

struct times {
	uint64_t n;
	uint64_t count[TIME_BUCKETS];
};

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

static void add(struct times *t, uint64_t ns)
{
	t->n++;
	t->count[bucket_of(ns)]++;
}

static double percentile(const struct times *t, double p)
{
	uint64_t want = (uint64_t)(p * (double)t->n), seen = 0;
	uint32_t i = 0;

	while (i + 1 < TIME_BUCKETS && (seen += t->count[i]) <= want)
		i++;
	return middle_of(i);
}

/* What the client met in one phase. */
struct phase {
	struct times match, reserve, commit;
	uint64_t hot_matches, hot_misses;
	uint64_t failed;       /* puts; each counts with the time it took */
	double daemon_wait_ms; /* for a processor, all its threads together */
	uint64_t cpu_wait_ns;  /* in puts, not counted: ready to run, without a processor */
};

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
	struct kvp_prefix *held[HOT_CHAINS];
	uint32_t *hot;  /* tokens of the hot chains */
	uint32_t chain; /* the next that this process puts */
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
};

#define N_LOADS (sizeof(loads) / sizeof(loads[0]))

static int start_loads(struct world *w, pid_t *pids)
{
	pid_t parent = getpid();

	for (uint32_t i = 0; i < N_LOADS; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			return -errno;
		if (!pids[i]) {
			int r;

			kvt_end_with(parent, SIGKILL);
			w->chain = (i + 2) * NEW_CHAINS;
			r = loads[i].run(w);
			fprintf(stderr, "kvbench background: the load %s ended: %s\n",
				loads[i].name, strerror(-r));
			atomic_store(&w->control->error, r);
			_exit(1);
		}
	}
	while (atomic_load(&w->control->ready) < N_LOADS && !atomic_load(&w->control->error))
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

/* ---- the client ----------------------------------------------------------------------------- */

/* Whole, and leased. */
static int match_hot(struct world *w, uint32_t chain, struct kvp_prefix **ret_prefix)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	int r = kvp_match(w->pool.space, w->hot + (size_t)chain * CHAIN_TOKENS, CHAIN_TOKENS, NULL,
		ret_prefix);

	if (r < 0)
		return r;
	kvp_match_info(*ret_prefix, &info);
	if (info.n_tokens == CHAIN_TOKENS && info.flags & KVP_MATCHED_LEASED)
		return 0;
	kvp_release(*ret_prefix);
	return -ENOENT;
}

/* Fills the cache, the hot set last, and leases that for good. */
static int prepare(struct world *w)
{
	uint32_t chains = w->blocks / CHAIN_BLOCKS;
	int r;

	w->hot = malloc(HOT_CHAINS * CHAIN_TOKENS * sizeof(*w->hot));
	if (!w->hot)
		return -ENOMEM;
	r = bench_pool_fill(&w->pool, 0, chains, CHAIN_BLOCKS);
	for (uint32_t i = 0; i < HOT_CHAINS && r >= 0; i++) {
		bench_chain_tokens(
			chains - HOT_CHAINS + i, w->hot + (size_t)i * CHAIN_TOKENS, CHAIN_TOKENS);
		r = match_hot(w, i, &w->held[i]);
	}
	return r < 0 ? r : 0;
}

/*
 * The time since `began`, without what this thread itself was ready to run and had no processor: the
 * loads' processes and others compute there, and nobody but the kernel can shorten that.
 */
static uint64_t since(struct phase *p, uint64_t began, uint64_t waited)
{
	uint64_t took = bench_now() - began, own = fair_cpu_wait_ns(OWN_SCHEDSTAT) - waited;

	own = own < took ? own : took;
	p->cpu_wait_ns += own;
	return took - own;
}

static void time_put(struct world *w, struct phase *p)
{
	uint32_t tokens[BLOCK_TOKENS];
	uint64_t waited = fair_cpu_wait_ns(OWN_SCHEDSTAT), began;
	struct kvp_grant *g = NULL;
	int r;

	bench_chain_tokens(w->chain++, tokens, BLOCK_TOKENS);
	began = bench_now();
	r = kvp_reserve(w->pool.space, WAIT_MS, NULL, &g);
	add(&p->reserve, since(p, began, waited));
	if (r < 0) {
		p->failed++;
		return;
	}
	memset(kvp_grant_addr(g), (int)w->chain, BLOCK_BYTES);
	waited = fair_cpu_wait_ns(OWN_SCHEDSTAT);
	began = bench_now();
	r = kvp_commit(g, kvp_ref_root(), tokens, BLOCK_TOKENS, NULL, 0);
	if (r >= 0)
		r = kvp_grant_wait(g, WAIT_MS);
	add(&p->commit, since(p, began, waited));
	p->failed += r < 0;
	kvp_grant_release(g);
}

static void time_matches(struct world *w, struct phase *p)
{
	for (uint32_t i = 0; i < MATCHES; i++) {
		uint64_t began = bench_now();
		struct kvp_prefix *m;
		int r = match_hot(w, i % HOT_CHAINS, &m);

		if (r == 0)
			kvp_release(m);
		add(&p->match, bench_now() - began);
		p->hot_matches++;
		p->hot_misses += r < 0;
	}
}

static void run_phase(struct world *w, uint64_t seconds, uint64_t least_matches, struct phase *p)
{
	uint64_t now = bench_now(), until = now + seconds * UINT64_C(1000000000), due = now;

	p->daemon_wait_ms = -fair_process_wait_ms(w->pool.daemon.pid);
	while (bench_now() < until || p->hot_matches < least_matches) {
		time_put(w, p);
		time_matches(w, p);
		/* What is late is not made up for: one request at a time, as an engine has them. */
		due += PERIOD_NS;
		now = bench_now();
		if (due < now)
			due = now;
		else
			nap_us((long)((due - now) / 1000));
		if (atomic_load(&w->control->error))
			return;
	}
	p->daemon_wait_ms += fair_process_wait_ms(w->pool.daemon.pid);
}

/* ---- what the daemon did ------------------------------------------------------------------- */

struct done {
	uint64_t evictions, moves, rankings, copies;
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
		};
	json_decref(answer);
	free(text);
	kvp_admin_close(admin);
	return r;
}

/* ---- reports -------------------------------------------------------------------------------- */

static const struct figure {
	const char *name;
	size_t at; /* of its times in a phase */
	double p;
	double unit; /* nanoseconds */
} figures[] = {
	{ "match_p50_ns", offsetof(struct phase, match), .5, 1 },
	{ "match_p99_ns", offsetof(struct phase, match), .99, 1 },
	{ "reserve_p50_us", offsetof(struct phase, reserve), .5, 1e3 },
	{ "reserve_p99_us", offsetof(struct phase, reserve), .99, 1e3 },
	{ "commit_p50_us", offsetof(struct phase, commit), .5, 1e3 },
	{ "commit_p99_us", offsetof(struct phase, commit), .99, 1e3 },
};

#define N_FIGURES (sizeof(figures) / sizeof(figures[0]))

static double value(const struct phase *p, const struct figure *f)
{
	return percentile((const struct times *)((const char *)p + f->at), f->p) / f->unit;
}

static void report_json(const struct phase *idle, const struct phase *busy, const struct done *did)
{
	json_t *a = json_object(), *b = json_object(), *c = json_object();
	json_t *o = json_pack("{s:o, s:o, s:o, s:I, s:I, s:I}", "idle", a, "busy", b, "ratio", c,
		"hot_matches", (json_int_t)(idle->hot_matches + busy->hot_matches), "hot_misses",
		(json_int_t)(idle->hot_misses + busy->hot_misses), "failed_puts",
		(json_int_t)(idle->failed + busy->failed));
	json_t *d = json_pack("{s:I, s:I, s:I, s:I}", "evictions", (json_int_t)did->evictions,
		"moves", (json_int_t)did->moves, "rankings", (json_int_t)did->rankings, "copies",
		(json_int_t)did->copies);

	json_object_set_new(o, "background", d);
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
	bench_print_json(o);
	json_decref(o);
}

static void report(const struct phase *idle, const struct phase *busy, const struct done *did)
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
	       ", failed %" PRIu64 "\nbeside them %" PRIu64 " evictions, %" PRIu64
	       " moves, %" PRIu64 " blocks copied to a device, %" PRIu64 " rankings\n",
		idle->hot_matches + busy->hot_matches, idle->hot_misses + busy->hot_misses,
		idle->reserve.n + busy->reserve.n, idle->failed + busy->failed, did->evictions,
		did->moves, did->copies, did->rankings);
}

/* ---- the command ---------------------------------------------------------------------------- */

static int measure(
	struct world *w, uint64_t seconds, struct phase *idle, struct phase *busy, struct done *did)
{
	uint64_t least = seconds ? 0 : HOT_MATCHES, time = seconds ? seconds : SECONDS;
	pid_t pids[N_LOADS] = { 0 };
	struct done before;
	int r = prepare(w);

	if (r < 0) {
		fprintf(stderr, "kvbench background: cannot fill the cache: %s\n", strerror(-r));
		return r;
	}
	w->chain = NEW_CHAINS;
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
		did->rankings - before.rankings, did->copies - before.copies };
	for (uint32_t i = 0; i < HOT_CHAINS; i++)
		kvp_release(w->held[i]);
	return 0;
}

int kvbench_background(int argc, char **argv)
{
	uint64_t blocks = 8192, seconds = 0;
	bool json = false, realtime = false;
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
			.help = "the ledger in the real-time class (`realtime: true`)",
			.flag = &realtime },
		{ .name = "json", .help = "one JSON object on stdout", .flag = &json },
	};
	struct phase *idle = calloc(1, sizeof(*idle)), *busy = calloc(1, sizeof(*busy));
	struct world w = { 0 };
	struct done did = { 0 };
	char more[96];
	int n;
	int r = bench_parse(argc, argv,
		"Match, reserve and commit of one client, idle and beside evictions, moves, "
		"copies to a device and the advisor.",
		options, sizeof(options) / sizeof(options[0]));

	if (r <= 0 || !idle || !busy) {
		free(idle);
		free(busy);
		return r ? 2 : 0;
	}
	w.blocks = (uint32_t)blocks / CHAIN_BLOCKS * CHAIN_BLOCKS;
	w.control = mmap(NULL, sizeof(*w.control), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	n = snprintf(
		more, sizeof(more), "advisor: true\nrealtime: %s\n", realtime ? "true" : "false");
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
	if (r == 0 && json)
		report_json(idle, busy, &did);
	else if (r == 0)
		report(idle, busy, &did);
	bench_pool_stop(&w.pool);
	free(w.hot);
	free(idle);
	free(busy);
	return r == 0 ? 0 : 1;
}
