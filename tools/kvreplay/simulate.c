/* SPDX-License-Identifier: Apache-2.0 */
/* kvreplay simulate: policies x capacities over one trace, on all cores. */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "policy/kvp_evict.h"
#include "tools/kvreplay/kvreplay.h"
#include "tools/kvreplay/plot.h"
#include "tools/kvreplay/sim.h"
#include "tools/kvreplay/trace.h"

#define MAX_POLICIES   32 /* more than there are */
#define MAX_CAPACITIES 64
#define MAX_JOBS       64

struct options {
	const char *trace;
	char *name; /* of the trace, as results can hold it */
	enum trace_format format;
	struct trace_options load;
	const char *policy[MAX_POLICIES];
	size_t n_policies;
	uint64_t capacity[MAX_CAPACITIES];
	size_t n_capacities;
	enum sim_order order;
	bool tiers; /* --store was given, be it 0 */
	uint64_t store;
	uint32_t ingest;
	bool ingest_given;
	uint64_t seed;
	unsigned threads;
	bool json;
	const char *plot;
};

struct work {
	pthread_mutex_t lock;
	struct sim_job *job;
	struct sim_result *result;
	size_t n, next, done;
	int error;
};

static void usage(FILE *f)
{
	fputs("usage: kvreplay simulate --trace PATH --format FORMAT --capacity LIST [OPTION]...\n"
	      "\n"
	      "  --trace PATH        a file, or for agent traces also a folder of *.jsonl, with "
	      "subfolders\n"
	      "  --format mooncake|agent|oracle\n"
	      "                      of the trace; oracle: libCacheSim's oracleGeneral\n"
	      "  --capacity LIST     blocks (oracle: bytes), with K, M or G for 2^10, 2^20, 2^30\n"
	      "  --policy LIST       names, or all (default); min is Belady's optimum\n"
	      "  --store N           a second tier of N blocks (oracle: bytes) below memory; 0: "
	      "none.\n"
	      "                      With this option a capacity may be 0, too: no memory\n"
	      "  --ingest all|hot|evicted\n"
	      "                      what the store takes (default all)\n"
	      "  --order free|leaf   free: blocks one by one (default); leaf: as the daemon does\n"
	      "  --block-tokens N    agent: bytes of text per block (default 64)\n"
	      "  --overlap           agent: let all sessions begin at the same time\n"
	      "  --time-scale X      all intervals times X\n"
	      "  --from N, --count N leave requests out\n"
	      "  --threads N         default: one per core\n"
	      "  --seed N            of what policies sample (default 1)\n"
	      "  --plot FILE         SVG, hit ratio against capacity\n"
	      "  --json              result as JSON on stdout instead of a table\n"
	      "  --list              names of the policies, and what they are\n"
	      "  --help\n",
		f);
}

static int list_policies(void)
{
	const char *about = NULL, *name;

	for (size_t i = 0; (name = kvp_evict_names(i, &about)); i++)
		printf("%-11s %s\n", name, about);
	puts("min         Belady's optimum, which knows the future");
	return 0;
}

static bool known_policy(const char *name)
{
	const char *other;

	for (size_t i = 0; (other = kvp_evict_names(i, NULL)); i++)
		if (!strcmp(name, other))
			return true;
	return !strcmp(name, "min");
}

/* Each once: a second time it would say the same. */
static void add_policy(struct options *o, const char *name)
{
	for (size_t i = 0; i < o->n_policies; i++)
		if (!strcmp(o->policy[i], name))
			return;
	assert(o->n_policies < MAX_POLICIES);
	o->policy[o->n_policies++] = name;
}

static int parse_policies(struct options *o, char *list)
{
	o->n_policies = 0;
	for (char *save = NULL, *s = strtok_r(list, ",", &save); s;
		s = strtok_r(NULL, ",", &save)) {
		if (!strcmp(s, "all")) {
			const char *name;
			for (size_t i = 0; (name = kvp_evict_names(i, NULL)); i++)
				add_policy(o, name);
			s = (char *)"min";
		}
		if (!known_policy(s)) {
			fprintf(stderr, "kvreplay: no policy '%s'; see --list\n", s);
			return -EINVAL;
		}
		add_policy(o, s);
	}
	if (!o->n_policies)
		fputs("kvreplay: --policy names none; see --list\n", stderr);
	return o->n_policies ? 0 : -EINVAL;
}

static int parse_u64(const char *s, uint64_t max, uint64_t *ret_value)
{
	char *end;

	errno = 0;
	uint64_t x = strtoull(s, &end, 10);
	if (errno || end == s || *s == '-' || *end || x > max)
		return -EINVAL;
	*ret_value = x;
	return 0;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}

/* A number with K, M or G behind it, or k, m, g, which are the same here. */
static int parse_amount(const char *what, const char *s, uint64_t *ret_value)
{
	char *end;

	errno = 0;
	uint64_t x = strtoull(s, &end, 10);
	int unit = toupper((unsigned char)*end);
	unsigned shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
	if (errno || end == s || *s == '-' || end[shift != 0] ||
		x > KVP_EVICT_MAX_CAPACITY >> shift) {
		fprintf(stderr,
			"kvreplay: bad %s '%s': a number of at most 2^60, with K, M or G for 2^10, "
			"2^20, 2^30\n",
			what, s);
		return -EINVAL;
	}
	*ret_value = x << shift;
	return 0;
}

static int parse_capacities(struct options *o, char *list)
{
	o->n_capacities = 0;
	for (char *save = NULL, *s = strtok_r(list, ",", &save); s;
		s = strtok_r(NULL, ",", &save)) {
		if (o->n_capacities == MAX_CAPACITIES) {
			fprintf(stderr, "kvreplay: more than %d capacities\n", MAX_CAPACITIES);
			return -EINVAL;
		}
		if (parse_amount("capacity", s, &o->capacity[o->n_capacities++]) < 0)
			return -EINVAL;
	}
	if (!o->n_capacities)
		fputs("kvreplay: --capacity names none\n", stderr);
	qsort(o->capacity, o->n_capacities, sizeof(*o->capacity), by_value);
	size_t distinct = 0;
	for (size_t i = 0; i < o->n_capacities; i++)
		if (!i || o->capacity[i] != o->capacity[i - 1])
			o->capacity[distinct++] = o->capacity[i];
	o->n_capacities = distinct;
	return o->n_capacities ? 0 : -EINVAL;
}

enum {
	OPT_TRACE = 256,
	OPT_FORMAT,
	OPT_CAPACITY,
	OPT_POLICY,
	OPT_STORE,
	OPT_INGEST,
	OPT_ORDER,
	OPT_BLOCK,
	OPT_OVERLAP,
	OPT_SCALE,
	OPT_FROM,
	OPT_COUNT,
	OPT_THREADS,
	OPT_SEED,
	OPT_PLOT,
	OPT_JSON,
	OPT_LIST
};

static const struct option long_options[] = {
	{ "trace", 1, NULL, OPT_TRACE },
	{ "format", 1, NULL, OPT_FORMAT },
	{ "capacity", 1, NULL, OPT_CAPACITY },
	{ "policy", 1, NULL, OPT_POLICY },
	{ "store", 1, NULL, OPT_STORE },
	{ "ingest", 1, NULL, OPT_INGEST },
	{ "order", 1, NULL, OPT_ORDER },
	{ "block-tokens", 1, NULL, OPT_BLOCK },
	{ "overlap", 0, NULL, OPT_OVERLAP },
	{ "time-scale", 1, NULL, OPT_SCALE },
	{ "from", 1, NULL, OPT_FROM },
	{ "count", 1, NULL, OPT_COUNT },
	{ "threads", 1, NULL, OPT_THREADS },
	{ "seed", 1, NULL, OPT_SEED },
	{ "plot", 1, NULL, OPT_PLOT },
	{ "json", 0, NULL, OPT_JSON },
	{ "list", 0, NULL, OPT_LIST },
	{ "help", 0, NULL, 'h' },
	{ 0 },
};

static int parse_number(const char *s, uint64_t min, uint64_t max, uint64_t *ret_value)
{
	uint64_t x = 0;

	if (parse_u64(s, max, &x) < 0 || x < min) {
		fprintf(stderr, "kvreplay: '%s' is not a number from %" PRIu64 " to %" PRIu64 "\n",
			s, min, max);
		return -EINVAL;
	}
	*ret_value = x;
	return 0;
}

static int parse_scale(const char *s, double *ret_scale)
{
	char *end;
	double x = strtod(s, &end);

	if (end == s || *end || !(x >= 1e-6 && x <= 1e6)) {
		fprintf(stderr, "kvreplay: '%s' is not a factor from 1e-6 to 1e6\n", s);
		return -EINVAL;
	}
	*ret_scale = x;
	return 0;
}

/* By KVP_INGEST_*. */
static const char *const ingest_names[] = { "all", "hot", "evicted" };

static int parse_ingest(struct options *o, const char *s)
{
	for (uint32_t i = 0; i < sizeof(ingest_names) / sizeof(ingest_names[0]); i++) {
		if (!strcmp(s, ingest_names[i])) {
			o->ingest = i;
			return 0;
		}
	}
	fprintf(stderr, "kvreplay: no ingestion '%s': all, hot or evicted\n", s);
	return -EINVAL;
}

static int parse_one(struct options *o, int c)
{
	uint64_t x = 0;
	int r = 0;

	switch (c) {
	case OPT_TRACE:
		o->trace = optarg;
		break;
	case OPT_FORMAT:
		r = trace_format_parse(optarg, &o->format);
		if (r < 0)
			fprintf(stderr,
				"kvreplay: no format '%s'; there are mooncake, agent and oracle\n",
				optarg);
		break;
	case OPT_CAPACITY:
		r = parse_capacities(o, optarg);
		break;
	case OPT_POLICY:
		r = parse_policies(o, optarg);
		break;
	case OPT_STORE:
		o->tiers = true;
		r = parse_amount("--store", optarg, &o->store);
		break;
	case OPT_INGEST:
		o->ingest_given = true;
		r = parse_ingest(o, optarg);
		break;
	case OPT_ORDER:
		o->order = !strcmp(optarg, "leaf") ? SIM_LEAF : SIM_FREE;
		r = o->order == SIM_LEAF || !strcmp(optarg, "free") ? 0 : -EINVAL;
		if (r < 0)
			fprintf(stderr, "kvreplay: no order '%s': free or leaf\n", optarg);
		break;
	case OPT_BLOCK:
		r = parse_number(optarg, 1, 65536, &x);
		o->load.block_tokens = (uint32_t)x;
		break;
	case OPT_OVERLAP:
		o->load.overlap = true;
		break;
	case OPT_SCALE:
		r = parse_scale(optarg, &o->load.time_scale);
		break;
	case OPT_FROM:
		r = parse_number(optarg, 0, UINT32_MAX, &x);
		o->load.from = (uint32_t)x;
		break;
	case OPT_COUNT:
		r = parse_number(optarg, 1, UINT32_MAX, &x);
		o->load.count = (uint32_t)x;
		break;
	case OPT_THREADS:
		r = parse_number(optarg, 1, MAX_JOBS, &x);
		o->threads = (unsigned)x;
		break;
	case OPT_SEED:
		r = parse_number(optarg, 0, UINT64_MAX, &o->seed);
		break;
	case OPT_PLOT:
		o->plot = optarg;
		break;
	case OPT_JSON:
		o->json = true;
		break;
	default:
		r = -EINVAL;
	}
	return r;
}

/* ---- the runs ---- */

static void *worker(void *arg)
{
	struct work *w = arg;

	pthread_mutex_lock(&w->lock);
	while (w->next < w->n && !w->error) {
		size_t i = w->next++;
		pthread_mutex_unlock(&w->lock);
		int r = sim_run(&w->job[i], &w->result[i]);
		pthread_mutex_lock(&w->lock);
		if (r < 0)
			w->error = r;
		progress("simulating", ++w->done, w->n);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int run_all(struct work *w, unsigned threads)
{
	pthread_t thread[MAX_JOBS];
	unsigned started = 0;

	/* this thread works too, so that failing to start others only costs time */
	while (started + 1 < threads && !pthread_create(&thread[started], NULL, worker, w))
		started++;
	worker(w);
	while (started)
		pthread_join(thread[--started], NULL);
	return w->error;
}

/* In either tier. */
static double hit_ratio(const struct sim_result *r)
{
	return (double)(r->hits + r->store_hits) / (double)r->refs;
}

static void add_tiers(json_t *object, const struct sim_result *r)
{
	json_t *tiers = json_pack("{s:f, s:f, s:I, s:I}", "memory_hit_ratio",
		(double)r->hits / (double)r->refs, "store_hit_ratio",
		(double)r->store_hits / (double)r->refs, "store_writes",
		(json_int_t)r->store_writes, "store_evictions", (json_int_t)r->store_evictions);

	json_object_update(object, tiers);
	json_decref(tiers);
}

static int print_json(const struct options *o, const struct trace *t, const struct work *w)
{
	json_t *results = json_array();
	json_t *root = json_pack("{s:s, s:I, s:I, s:I, s:s, s:o}", "trace", o->name, "requests",
		(json_int_t)t->n_requests, "refs", (json_int_t)t->n_refs, "blocks",
		(json_int_t)t->n_blocks, "order", o->order == SIM_LEAF ? "leaf" : "free", "results",
		results);

	if (root && o->tiers) {
		json_object_set_new(root, "store", json_integer((json_int_t)o->store));
		json_object_set_new(root, "ingest", json_string(ingest_names[o->ingest]));
	}
	for (size_t i = 0; root && i < w->n; i++) {
		const struct sim_result *r = &w->result[i];
		json_t *object = json_pack("{s:s, s:I, s:f, s:I, s:I, s:I, s:I, s:f, s:f}",
			"policy", w->job[i].policy, "capacity", (json_int_t)w->job[i].capacity,
			"hit_ratio", hit_ratio(r), "misses",
			(json_int_t)(r->refs - r->hits - r->store_hits), "evictions",
			(json_int_t)r->evictions, "refused", (json_int_t)r->refused, "reloads",
			(json_int_t)r->reloads, "ns_per_access", r->ns_per_access,
			"state_bytes_per_block", r->state_bytes_per_block);
		if (o->tiers)
			add_tiers(object, r);
		json_array_append_new(results, object);
	}
	int bad = !root || json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) < 0;
	json_decref(root);
	putchar('\n');
	return bad ? -EIO : 0;
}

/* Of the table's column, which is headed by the capacity. */
static int column_width(uint64_t capacity)
{
	int digits = snprintf(NULL, 0, "%" PRIu64, capacity);

	return digits > 10 ? digits : 10;
}

/* The share of the hits that a tier had, below the line of its policy. */
static void print_tier(const struct options *o, const struct work *w, size_t policy, bool store)
{
	printf("%-12s", store ? "  store" : "  memory");
	for (size_t c = 0; c < o->n_capacities; c++) {
		const struct sim_result *r = &w->result[policy * o->n_capacities + c];
		printf(" %*.4f", column_width(o->capacity[c]),
			(double)(store ? r->store_hits : r->hits) / (double)r->refs);
	}
	putchar('\n');
}

static void print_table(const struct options *o, const struct trace *t, const struct work *w)
{
	printf("%u requests, %" PRIu64 " blocks, %u of them distinct\n\n%-12s", t->n_requests,
		t->n_refs, t->n_blocks, "hit ratio");
	for (size_t c = 0; c < o->n_capacities; c++)
		printf(" %*" PRIu64, column_width(o->capacity[c]), o->capacity[c]);
	printf(" %10s\n", "ns/access");
	for (size_t p = 0; p < o->n_policies; p++) {
		double ns = 0;
		printf("%-12s", o->policy[p]);
		for (size_t c = 0; c < o->n_capacities; c++) {
			const struct sim_result *r = &w->result[p * o->n_capacities + c];
			printf(" %*.4f", column_width(o->capacity[c]), hit_ratio(r));
			ns += r->ns_per_access / (double)o->n_capacities;
		}
		printf(" %10.0f\n", ns);
		for (int tier = 0; tier < 2 && o->tiers; tier++)
			print_tier(o, w, p, tier == 1);
	}
}

static int plot(const struct options *o, const struct work *w)
{
	double x[MAX_CAPACITIES];
	double *y = malloc(w->n * sizeof(*y));
	const char *name = strrchr(o->name, '/');

	if (!y)
		return -ENOMEM;
	for (size_t i = 0; i < o->n_capacities; i++)
		x[i] = (double)o->capacity[i];
	for (size_t i = 0; i < w->n; i++)
		y[i] = hit_ratio(&w->result[i]);
	int r = plot_write(o->plot, name && name[1] ? name + 1 : o->name,
		o->format == TRACE_ORACLE ? "capacity, bytes" : "capacity, blocks", o->n_capacities,
		x, o->n_policies, o->policy, y);
	free(y);
	if (r < 0)
		fprintf(stderr, "kvreplay: %s: %s\n", o->plot, strerror(-r));
	return r;
}

static int simulate(const struct options *o, const struct trace *t)
{
	struct work w = { .n = o->n_policies * o->n_capacities };
	int r = -ENOMEM;

	w.job = calloc(w.n, sizeof(*w.job));
	w.result = calloc(w.n, sizeof(*w.result));
	if (w.job && w.result) {
		for (size_t i = 0; i < w.n; i++)
			w.job[i] = (struct sim_job){
				.trace = t,
				.policy = o->policy[i / o->n_capacities],
				.capacity = o->capacity[i % o->n_capacities],
				.order = o->order,
				.store = o->store,
				.ingest = o->ingest,
				.seed = o->seed,
			};
		pthread_mutex_init(&w.lock, NULL);
		r = run_all(&w, o->threads);
		pthread_mutex_destroy(&w.lock);
	}
	if (r < 0)
		fprintf(stderr, "kvreplay: simulation failed: %s\n", strerror(-r));
	if (r == 0 && o->json)
		r = print_json(o, t, &w);
	else if (r == 0)
		print_table(o, t, &w);
	if (r == 0 && o->plot)
		r = plot(o, &w);
	free(w.job);
	free(w.result);
	return r;
}

/* The path as UTF-8, for JSON and SVG; of a path that is none only the ASCII stays. */
static char *printable(const char *path)
{
	json_t *utf8 = json_string(path);
	char *name = strdup(path);

	for (char *p = name; name && !utf8 && *p; p++)
		*p = (unsigned char)*p < 0x80 ? *p : '?';
	json_decref(utf8);
	return name;
}

/* Before the work rather than after it: long simulations should not end in a wrong path. */
static int can_write(const char *path)
{
	FILE *f = fopen(path, "ae");

	if (f && fclose(f) == 0)
		return 0;
	fprintf(stderr, "kvreplay: %s: %s\n", path, strerror(errno));
	return -EIO;
}

/* Errors that only show when all options are known. */
static int check_options(struct options *o)
{
	size_t n = 0;

	if (!o->n_capacities || !o->trace) {
		usage(stderr);
		return -EINVAL;
	}
	if (!o->capacity[0] && (!o->tiers || o->plot)) {
		fputs("kvreplay: bad capacity '0': it needs --store, and has no place in a plot\n",
			stderr);
		return -EINVAL;
	}
	if (o->ingest_given && !o->tiers) {
		fputs("kvreplay: --ingest without --store: say how large the store is\n", stderr);
		return -EINVAL;
	}
	/* Nobody knows the future of two tiers. */
	for (size_t i = 0; i < o->n_policies; i++)
		if (!o->tiers || strcmp(o->policy[i], "min"))
			o->policy[n++] = o->policy[i];
	o->n_policies = n;
	if (!n)
		fputs("kvreplay: --policy min has no --store\n", stderr);
	return n ? 0 : -EINVAL;
}

int cmd_simulate(int argc, char **argv)
{
	char all[] = "all", error[512];
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	struct options o = {
		.seed = 1,
		.threads = cores < 1          ? 1
			   : cores < MAX_JOBS ? (unsigned)cores
					      : MAX_JOBS,
		.format = TRACE_MOONCAKE,
	};
	struct trace t;
	int c;

	parse_policies(&o, all);
	while ((c = getopt_long(argc, argv, "h", long_options, NULL)) >= 0) {
		if (c == 'h') {
			usage(stdout);
			return 0;
		}
		if (c == OPT_LIST)
			return list_policies();
		if (parse_one(&o, c) < 0)
			return 2;
	}
	if (optind < argc) {
		usage(stderr);
		return 2;
	}
	if (check_options(&o) < 0)
		return 2;
	if (trace_load(o.trace, o.format, &o.load, &t, error, sizeof(error)) < 0) {
		fprintf(stderr, "kvreplay: %s\n", error);
		return 1;
	}
	int r = o.plot ? can_write(o.plot) : 0;
	o.name = printable(o.trace);
	if (r == 0)
		r = o.name ? simulate(&o, &t) : -ENOMEM;
	free(o.name);
	trace_done(&t);
	return r < 0;
}
