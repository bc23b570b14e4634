/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench precision: a daemon that codes blocks with fewer bits, and a client beside it.
 *
 * In rounds: a space with a floor is filled, which is not timed; then it gets a budget that only its floor can
 * meet, and the client is timed until every block has been coded. What a processor codes in a second is compared
 * with the codec by itself, over blocks of the same round where they lie, so that what memory costs is the same: with
 * nothing beside it, and beside the same client, which the daemon codes beside, too. The rest is checksums, and decoding
 * one of sixteen again to see what was lost. What the movers do besides is moving what the client puts, and is printed too.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kvp_codec.h"
#include "libclient/kvpool_admin.h"
#include "tools/kvbench/bench.h"
#include "tools/kvbench/bench_client.h"
#include "tools/kvbench/kbench.h"
#include "tools/kvbench/kvbench.h"

#define TOKENS       64u
#define HEADS        8u /* and channels, as kvbench codecs has them */
#define DIM          128u
#define NATIVE       (UINT64_C(4) * TOKENS * HEADS * DIM)
#define CLIENT_BYTES UINT64_C(16384)
#define CLIENT_PUTS  16384u /* that there is room for, before its oldest go */
#define PLANES       16u    /* different contents */
#define ENCODED      1024u  /* blocks of a round that the codec by itself encodes */
#define WIDTHS       5u     /* that a payload may have, native among them */
#define MODEL        "kvbench-precision"
#define WAIT_MS      60000u
#define ROUND_NS     (UINT64_C(60) * 1000000000) /* one that takes longer will not end */
#define FIRST_NS     UINT64_C(500000000)         /* without, before the first */
#define MOVER        "kvpool-mover"

struct world {
	struct bench_pool pool;
	struct bench_client client;
	struct kvp_space *space;
	struct kvp_admin *admin;
	uint64_t blocks; /* in a round */
	uint64_t coded;  /* bytes of a coded one */
	uint8_t *source; /* PLANES payloads */
	struct kvp_kernels *kernels;
	uint32_t codec[2];  /* of keys and values */
	size_t plane_bytes; /* of the larger one, a multiple of 64 */
	uint8_t *payloads;  /* of ENCODED blocks */
	uint64_t sink;      /* so that what is only touched is read */
	struct bench_phase *idle, *busy;
	struct bench_phase *apart; /* beside the codec by itself; not reported */
};

/* What the daemon's threads have computed, in seconds. */
struct spent {
	double coding; /* blocks, as the daemon counts it */
	double movers, all;
};

struct rounds {
	double seconds;
	double codec;  /* seconds of the codec by itself, for a block of each round */
	double beside; /* likewise, while the client runs */
	struct spent spent;
};

static double ran_seconds(const char *path)
{
	unsigned long long ns = 0;
	FILE *f = fopen(path, "re");

	if (f && fscanf(f, "%llu", &ns) != 1)
		ns = 0;
	if (f)
		fclose(f);
	return (double)ns / 1e9;
}

static bool is_mover(const char *path)
{
	char name[32] = "";
	FILE *f = fopen(path, "re");

	if (f && !fgets(name, sizeof(name), f))
		name[0] = 0;
	if (f)
		fclose(f);
	return !strncmp(name, MOVER, strlen(MOVER));
}

static struct spent spent_by_threads(pid_t pid)
{
	struct spent s = { 0 };
	char path[600];
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	d = opendir(path);
	while (d && (e = readdir(d))) {
		double ran;

		snprintf(path, sizeof(path), "/proc/%d/task/%s/schedstat", (int)pid, e->d_name);
		ran = ran_seconds(path);
		snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", (int)pid, e->d_name);
		s.all += ran;
		s.movers += is_mover(path) ? ran : 0;
	}
	if (d)
		closedir(d);
	return s;
}

/* ---- the daemon ------------------------------------------------------------------------------ */

static int ask(struct world *w, const char *request)
{
	char *text = NULL;
	int r = kvp_admin_request(w->admin, request, WAIT_MS, 0, &text);

	if (r < 0)
		fprintf(stderr, "kvbench precision: %s: %s\n", request, text ? text : strerror(-r));
	free(text);
	return r;
}

/* What all tenants' coding has had of processors; negative: the daemon did not say. */
static double coding_seconds(struct world *w)
{
	json_t *answer, *tenant;
	char *text = NULL;
	double sum = 0;
	size_t i;

	if (kvp_admin_request(w->admin, "{\"verb\":\"tenants\"}", WAIT_MS, 0, &text) < 0) {
		free(text);
		return -1;
	}
	answer = json_loads(text, 0, NULL);
	json_array_foreach(json_object_get(answer, "tenants"), i, tenant)
		sum += json_number_value(json_object_get(tenant, "coding_cpu_seconds"));
	json_decref(answer);
	free(text);
	return sum;
}

static struct spent spent_by(struct world *w)
{
	struct spent s = spent_by_threads(w->pool.daemon.pid);

	s.coding = coding_seconds(w);
	return s;
}

static int set_rule(struct world *w, const char *precision)
{
	/* Above the least that is possible, but by less than a block of all: none may stay native. */
	double budget = (double)w->coded / (double)NATIVE + .1 / (double)w->blocks;
	char request[160];

	snprintf(request, sizeof(request),
		"{\"verb\":\"space-set\",\"space\":\"" MODEL
		"\",\"precision\":\"%s\",\"budget\":%.8f}",
		precision, budget);
	return ask(w, request);
}

static int open_space(struct world *w)
{
	struct kvp_layer layer = { .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = MODEL,
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = TOKENS,
		.n_layers = 1,
		.layers = &layer,
		.floor_k = w->codec[0],
		.floor_v = w->codec[1] };
	int r = kvp_space_open(w->pool.client, &desc, WAIT_MS, &w->space);

	w->coded = NATIVE;
	for (uint32_t width = 1; r == 0 && width < WIDTHS; width++) {
		uint64_t bytes;

		if (kvp_space_block_bytes(w->space, width, &bytes) == 0 && bytes < w->coded)
			w->coded = bytes;
	}
	return r == 0 && w->coded == NATIVE ? -EOPNOTSUPP : r;
}

static int start(struct world *w, char *more, size_t bytes)
{
	uint32_t blocks = (uint32_t)(w->blocks * (NATIVE / CLIENT_BYTES)) + CLIENT_PUTS;
	struct kvp_open_opts opts = { .size = sizeof(opts), .default_timeout_ms = WAIT_MS };
	int r;

	snprintf(more, bytes, "admin_group: \"%u\"\n", (unsigned)getegid());
	w->pool.more = more;
	r = bench_pool_start(&w->pool, blocks, TOKENS, CLIENT_BYTES, 8);
	if (r < 0)
		return r;
	w->client.pool = &w->pool;
	w->client.chain = BENCH_NEW_CHAINS;
	opts.socket = w->pool.daemon.socket;
	r = kvp_admin_open(&opts, &w->admin);
	if (r == 0)
		r = open_space(w);
	if (r == 0)
		r = bench_pool_fill(&w->pool, 0, BENCH_HOT_CHAINS, BENCH_CHAIN_BLOCKS);
	if (r >= 0)
		r = bench_client_hold(&w->client, 0);
	return r;
}

/* Blocks of a round, each a sequence of its own. */
static int fill(struct world *w, uint32_t round)
{
	uint32_t tokens[TOKENS];
	int r = 0;

	for (uint64_t i = 0; i < w->blocks && r >= 0; i++) {
		struct kvp_grant *g;

		bench_chain_tokens((uint32_t)(round * w->blocks + i), tokens, TOKENS);
		r = kvp_reserve(w->space, WAIT_MS, NULL, &g);
		if (r < 0)
			break;
		memcpy(kvp_grant_addr(g), w->source + i % PLANES * NATIVE, NATIVE);
		r = kvp_commit(g, kvp_ref_root(), tokens, TOKENS, NULL, KVP_COMMIT_RELEASE);
	}
	return r < 0 ? r : kvp_flush(w->pool.client, WAIT_MS);
}

/* ---- the codec by itself --------------------------------------------------------------------- */

struct codec_run {
	struct world *w;
	uint32_t round;
	double seconds; /* of a block */
	int result;
	_Atomic(bool) over;
};

static double own_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Keys and values as KVP_LAYOUT_LCND has them: the heads of a token lie side by side. smart: three bits a token. */
static int encode_block(
	const struct world *w, const uint8_t *block, uint8_t *payload, double *seconds)
{
	struct kvp_encode_opts o = { .size = sizeof o };
	double began = own_seconds();
	uint8_t widths[TOKENS];
	int r = 0;

	memset(widths, 3, sizeof widths);
	o.widths = widths;
	for (uint32_t kind = 0; kind < 2 && r == 0; kind++) {
		struct kvp_plane p = { TOKENS, HEADS, DIM, KVP_DTYPE_F16, kind };
		struct kvp_raw_const src = { block + kind * (NATIVE / 2), DIM * 2,
			DIM * 2 * HEADS };

		r = kvp_plane_encode(w->kernels, w->codec[kind], &p, &o, src,
			payload + kind * w->plane_bytes, w->plane_bytes);
	}
	*seconds += own_seconds() - began;
	return r;
}

/* The first blocks of the round, leased one after the other. */
static int encode_round(struct codec_run *run)
{
	struct world *w = run->w;
	uint64_t n = w->blocks < ENCODED ? w->blocks : ENCODED;
	uint32_t tokens[TOKENS];
	double sum = 0;

	for (uint64_t i = 0; i < n; i++) {
		const uint8_t *block;
		const void *at;
		struct kvp_prefix *m;
		int r;

		bench_chain_tokens((uint32_t)(run->round * w->blocks + i), tokens, TOKENS);
		r = kvp_match(w->space, tokens, TOKENS, NULL, &m);
		if (r < 0)
			return r;
		r = kvp_payloads(m, 0, 1, &at);
		block = at;
		/* This process maps the page; the daemon has. */
		for (uint64_t page = 0; r > 0 && page < NATIVE; page += 4096)
			w->sink += block[page];
		r = r ? r : -ENOENT;
		if (r > 0)
			r = encode_block(w, block, w->payloads + i * 2 * w->plane_bytes, &sum);
		kvp_release(m);
		if (r < 0)
			return r;
	}
	run->seconds = sum / (double)n;
	return 0;
}

static void *codec_thread(void *arg)
{
	struct codec_run *run = arg;

	run->result = encode_round(run);
	atomic_store(&run->over, true);
	return NULL;
}

static bool until_over(void *ctx)
{
	struct codec_run *run = ctx;

	return !atomic_load(&run->over);
}

/* With nothing beside it, then beside the client. */
static int codec_alone(struct world *w, uint32_t round, struct rounds *sum)
{
	struct codec_run run = { .w = w, .round = round };
	pthread_t thread;
	int r = encode_round(&run);

	sum->codec += run.seconds;
	if (r == 0)
		r = -pthread_create(&thread, NULL, codec_thread, &run);
	if (r < 0)
		return r;
	bench_client_run(&w->client, w->apart, until_over, &run);
	pthread_join(thread, NULL);
	sum->beside += run.seconds;
	return run.result;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

struct span {
	struct world *w;
	uint64_t puts; /* of the client, when it began */
	uint64_t
		bytes; /* of all payloads, when every block is coded, but for what the client put since */
	uint64_t until;
	bool late;
};

static uint64_t payload_bytes(struct world *w)
{
	struct kvp_counters c = { .size = sizeof(c) };

	return kvp_stats(w->pool.client, &c) == 0 ? c.payload_bytes : 0;
}

static bool until_then(void *ctx)
{
	const struct span *s = ctx;

	return bench_now() < s->until;
}

static bool until_coded(void *ctx)
{
	struct span *s = ctx;
	uint64_t put = (s->w->busy->commit.n - s->puts) * CLIENT_BYTES;

	s->late = bench_now() >= s->until;
	return !s->late && payload_bytes(s->w) > s->bytes + put;
}

static int run_round(struct world *w, uint32_t number, struct rounds *sum)
{
	struct span s = { .w = w, .puts = w->busy->commit.n };
	struct spent before, after;
	uint64_t began, took;
	int r = fill(w, number);

	if (r == 0)
		r = codec_alone(w, number, sum);
	if (r < 0)
		return r;
	/* About as long with nothing beside it: as long as the rounds before were. */
	s.until = bench_now() + (number ? (uint64_t)(sum->seconds * 1e9) / number : FIRST_NS);
	bench_client_run(&w->client, w->idle, until_then, &s);
	s.bytes = payload_bytes(w) - w->blocks * (NATIVE - w->coded);
	before = spent_by(w);
	began = bench_now();
	s.until = began + ROUND_NS;
	r = set_rule(w, "budget");
	if (r < 0)
		return r;
	bench_client_run(&w->client, w->busy, until_coded, &s);
	took = bench_now() - began;
	after = spent_by(w);
	if (s.late) {
		fprintf(stderr,
			"kvbench precision: %" PRIu64
			" bytes were not coded in %u seconds; next blocks may have been given "
			"more bits\n",
			payload_bytes(w) - s.bytes, (unsigned)(ROUND_NS / 1000000000));
		return -ETIMEDOUT;
	}
	sum->seconds += (double)took / 1e9;
	sum->spent.coding += after.coding - before.coding;
	sum->spent.movers += after.movers - before.movers;
	sum->spent.all += after.all - before.all;
	r = set_rule(w, "pressure");
	return r < 0 ? r : ask(w, "{\"verb\":\"evict\",\"all\":true}");
}

static void report(const struct world *w, uint64_t rounds, const char *codec,
	const struct rounds *sum, bool json)
{
	double blocks = (double)(rounds * w->blocks);
	double codec_blocks = (double)rounds / sum->codec;
	double beside_blocks = (double)rounds / sum->beside;
	double core = blocks / sum->spent.coding;
	json_t *o;

	if (!json) {
		printf("%s, blocks of %" PRIu64 " bytes, %.0f of them in %.2f s\n", codec, NATIVE,
			blocks, sum->seconds);
		printf("coded a second       %12.0f\n", blocks / sum->seconds);
		printf("of a coding second   %12.0f\n", core);
		printf("of a mover's         %12.0f\n", blocks / sum->spent.movers);
		printf("of the daemon's      %12.0f\n", blocks / sum->spent.all);
		printf("the codec by itself  %12.0f   a coding second's part of it %.2f\n",
			codec_blocks, core / codec_blocks);
		printf("beside the client    %12.0f   a coding second's part of it %.2f\n",
			beside_blocks, core / beside_blocks);
		bench_client_print(w->idle, w->busy);
		return;
	}
	o = json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
		      "s:f}",
		"codec", codec, "blocks", (json_int_t)blocks, "native_bytes", (json_int_t)NATIVE,
		"coded_bytes", (json_int_t)w->coded, "seconds", sum->seconds, "blocks_per_second",
		blocks / sum->seconds, "coding_cpu_seconds", sum->spent.coding, "mover_cpu_seconds",
		sum->spent.movers, "daemon_cpu_seconds", sum->spent.all, "blocks_per_coding_second",
		core, "blocks_per_mover_second", blocks / sum->spent.movers,
		"blocks_per_daemon_second", blocks / sum->spent.all, "codec_blocks_per_second",
		codec_blocks, "ratio_to_codec", core / codec_blocks,
		"codec_blocks_per_second_beside", beside_blocks, "ratio_to_codec_beside",
		core / beside_blocks);
	bench_client_json(o, w->idle, w->busy);
	bench_print_json(o);
	json_decref(o);
}

static int measure(struct world *w, uint64_t rounds, struct rounds *sum)
{
	int r = kvp_kernels_new(KVP_CPU_ALL, &w->kernels);

	for (uint32_t kind = 0; kind < 2 && r == 0; kind++) {
		struct kvp_plane p = { TOKENS, HEADS, DIM, KVP_DTYPE_F16, kind };
		size_t bytes = 0;

		r = kvp_plane_bytes(w->codec[kind], &p, &bytes);
		bytes = (bytes + 63) / 64 * 64;
		w->plane_bytes = bytes > w->plane_bytes ? bytes : w->plane_bytes;
	}
	if (r == 0) {
		w->payloads = kbench_alloc(2 * ENCODED * w->plane_bytes);
		memset(w->payloads, 0, 2 * ENCODED * w->plane_bytes);
	}
	for (uint32_t i = 0; i < rounds && r == 0; i++)
		r = run_round(w, i, sum);
	if (r == 0 && (sum->spent.movers <= 0 || sum->spent.coding <= 0)) {
		fputs("kvbench precision: nobody says what threads compute (the kernel's "
		      "schedstat, "
		      "the daemon's coding_cpu_seconds)\n",
			stderr);
		return -EOPNOTSUPP;
	}
	return r;
}

static int bench(struct world *w, const char *name, uint64_t rounds, bool json)
{
	struct rounds sum = { 0 };
	char more[64];
	int r = kvp_codec_parse_pair(name, &w->codec[0], &w->codec[1]);

	if (r < 0) {
		fprintf(stderr, "kvbench precision: no codec is called %s\n", name);
		return 2;
	}
	w->source = kbench_alloc(PLANES * NATIVE);
	kbench_seed(11);
	kbench_fill_f16(w->source, PLANES * NATIVE / 2);
	r = start(w, more, sizeof(more));
	if (r == 0)
		r = measure(w, rounds, &sum);
	if (r == 0)
		report(w, rounds, name, &sum, json);
	else
		fprintf(stderr, "kvbench precision: %s\n", strerror(-r));
	kvp_kernels_free(w->kernels);
	bench_client_release(&w->client);
	kvp_admin_close(w->admin);
	kvp_space_close(w->space);
	bench_pool_stop(&w->pool);
	free(w->payloads);
	free(w->source);
	return r == 0 ? 0 : 1;
}

int kvbench_precision(int argc, char **argv)
{
	uint64_t blocks = 4096, rounds = 5;
	const char *codec = "tq4";
	bool json = false;
	const struct bench_option options[] = {
		{ .name = "blocks",
			.help = "that are coded in a round, of 256 KiB (default 4096)",
			.value = &blocks,
			.min = 16,
			.max = 100000 },
		{ .name = "rounds",
			.help = "(default 5)",
			.value = &rounds,
			.min = 1,
			.max = 1000 },
		{ .name = "codec",
			.help = "of keys and values, the space's floor (default tq4)",
			.text = &codec },
		{ .name = "json", .help = "one JSON object on stdout", .flag = &json },
	};
	struct world w = { 0 };
	int r = bench_parse(argc, argv,
		"Blocks coded with fewer bits by the daemon, by processor time and beside the "
		"codec "
		"alone, and what a client meets meanwhile.",
		options, sizeof(options) / sizeof(options[0]));

	if (r <= 0)
		return r ? 2 : 0;
	w.blocks = blocks;
	w.idle = calloc(1, sizeof(*w.idle));
	w.busy = calloc(1, sizeof(*w.busy));
	w.apart = calloc(1, sizeof(*w.apart));
	r = w.idle && w.busy && w.apart ? bench(&w, codec, rounds, json) : 1;
	free(w.apart);
	free(w.idle);
	free(w.busy);
	return r;
}
