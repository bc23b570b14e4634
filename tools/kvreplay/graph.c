/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvreplay graph: what the advisor's graph is worth on a trace. Three questions, each at several
 * capacities: evicting by its ranking, against LRU (leaf-first both); letting it choose among what
 * the default policy would evict next, against that policy alone; and prefetching its suggestions
 * into a fast tier above a slow one that keeps everything.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/kvp_evict.h"
#include "policy/kvp_graph.h"
#include "tools/kvreplay/kvreplay.h"
#include "tools/kvreplay/trace.h"

#define CAPACITIES_MAX 16
#define BATCH          1024u
#define EDGE_SLOTS     (1u << 20)
#define SPARED_MAX     128u /* in one call, as the daemon has it */
#define PER_ASK        4u   /* blocks asked for at a time */
#define HOPS_MAX       64u  /* asks in a row, each from the answers of the one before */

struct options {
	const char *trace;
	enum trace_format format;
	uint64_t capacity[CAPACITIES_MAX];
	uint32_t n_capacities;
	double half_life_s;
	double period_ms;
	uint32_t ahead; /* blocks prefetched after each request */
	double spare;   /* score from which a candidate stays; 0: `among` instead */
	uint32_t among; /* candidates of the policy for each block that has to go */
	bool json;
};

struct study {
	const struct trace *t;
	const struct options *o;
	uint64_t capacity;
	struct kvp_graph *g;
	struct kvp_ranking *r;
	struct kvp_evict *e; /* order of the cache or of the fast tier, leaf-first */
	uint8_t *fast;       /* by block: cached (eviction), in the fast tier (prefetch) */
	uint8_t *seen;       /* by block: has a node */
	uint8_t *fetched;    /* by block: came by prefetch and was not used yet */
	uint32_t *children;  /* by block: cached children */
	uint64_t *touched;   /* by block: request of its last use */
	uint64_t held;
	uint64_t seq; /* of the request under way */
	uint64_t ranked_seq;
	uint64_t ranked_at;
	uint64_t max_age;
	uint64_t now;
	kvp_block_id batch[BATCH];
	uint32_t n_batch, at_batch;
	/* figures */
	uint64_t refs, hits, cold, prefetched, useful, asked, answered, right;
};

static void study_done(struct study *s)
{
	s->r = kvp_ranking_free(s->r);
	s->g = kvp_graph_free(s->g);
	s->e = kvp_evict_free(s->e);
	free(s->fast);
	free(s->seen);
	free(s->fetched);
	free(s->children);
	free(s->touched);
}

static int study_init(struct study *s, const struct trace *t, const struct options *o,
	const char *policy, uint64_t capacity)
{
	struct kvp_evict_params p = {
		.size = sizeof(p),
		.items = capacity,
		.max_ids = t->n_blocks,
		.seed = 1,
	};
	struct kvp_graph_opts g;
	int r;

	*s = (struct study){ .t = t, .o = o, .capacity = capacity };
	s->max_age = (uint64_t)(o->period_ms * 4e6);
	kvp_graph_opts_init(&g, t->n_blocks, EDGE_SLOTS, o->half_life_s * 1e9);
	r = kvp_graph_new(&g, &s->g);
	if (!r)
		r = kvp_evict_new(policy, &p, &s->e);
	s->r = kvp_ranking_new(t->n_blocks, t->n_blocks < BATCH ? t->n_blocks : BATCH);
	s->fast = calloc(t->n_blocks, 1);
	s->seen = calloc(t->n_blocks, 1);
	s->fetched = calloc(t->n_blocks, 1);
	s->children = calloc(t->n_blocks, sizeof(*s->children));
	s->touched = calloc(t->n_blocks, sizeof(*s->touched));
	if (r < 0 || !s->r || !s->fast || !s->seen || !s->fetched || !s->children || !s->touched) {
		study_done(s);
		return r < 0 ? r : -ENOMEM;
	}
	return 0;
}

/* The trace names no session; a conversation is known by its second block, the first being a
 * system prompt that all may share. */
static uint32_t session_of(const struct trace *t, const struct trace_request *q)
{
	return t->n_sessions > 1 ? q->session : t->ref[q->first + (q->blocks > 1)];
}

static int add_node(struct study *s, uint32_t b, uint32_t session)
{
	const struct trace_block *x = &s->t->block[b];
	struct kvp_graph_block n = {
		.block = b,
		.parent = x->parent != TRACE_BLOCK_NONE && s->seen[x->parent] ? x->parent
									      : KVP_BLOCK_NONE,
		.label = KVP_LABEL_USER,
		.first_token = x->depth * s->t->block_tokens,
		.tokens = x->tokens,
		.session = session,
	};

	s->seen[b] = 1;
	return kvp_graph_insert(s->g, &n, s->now);
}

static void rank_now(struct study *s)
{
	kvp_graph_rank(s->g, NULL, s->now, s->r);
	s->ranked_at = s->now;
	s->ranked_seq = s->seq;
	s->n_batch = (uint32_t)kvp_ranking_evict(s->r, s->now, s->max_age, BATCH, s->batch);
	s->at_batch = 0;
}

static void rank_if_due(struct study *s)
{
	if (!s->ranked_at || (double)(s->now - s->ranked_at) >= s->o->period_ms * 1e6)
		rank_now(s);
}

/* ---- eviction by the graph ---- */

static void forget(struct study *s, uint32_t b)
{
	uint32_t parent = s->t->block[b].parent;

	s->fast[b] = s->seen[b] = 0;
	s->held--;
	if (parent != TRACE_BLOCK_NONE)
		s->children[parent]--;
	kvp_graph_remove(s->g, b);
}

/*
 * Takes the ranking's candidates in order; what was used or got a child meanwhile is passed over.
 */
static void evict_by_graph(struct study *s)
{
	uint64_t before = UINT64_MAX;

	while (s->held > s->capacity) {
		uint32_t b;

		if (s->at_batch == s->n_batch) {
			if (s->held == before)
				return; /* a whole new ranking, and nothing could go */
			before = s->held;
			rank_now(s);
			continue;
		}
		b = s->batch[s->at_batch++];
		if (s->fast[b] && !s->children[b] && s->touched[b] <= s->ranked_seq)
			forget(s, b);
	}
}

static int request_evict(struct study *s, const struct trace_request *q)
{
	const uint32_t *ref = s->t->ref + q->first;
	uint32_t session = session_of(s->t, q), k = 0, i;

	while (k < q->blocks && s->fast[ref[k]])
		k++;
	s->hits += k;
	s->refs += q->blocks;
	for (i = k; i < q->blocks; i++) {
		uint32_t parent = s->t->block[ref[i]].parent;

		if (s->fast[ref[i]])
			continue;
		if (add_node(s, ref[i], session) < 0)
			return -EINVAL;
		s->fast[ref[i]] = 1;
		s->held++;
		if (parent != TRACE_BLOCK_NONE)
			s->children[parent]++;
	}
	for (i = 0; i < q->blocks; i++)
		s->touched[ref[i]] = s->seq;
	kvp_graph_request(s->g, ref, q->blocks, session, s->now);
	kvp_graph_co_attend(s->g, ref, q->blocks, s->now);
	if (s->held > s->capacity)
		rank_if_due(s);
	evict_by_graph(s);
	return 0;
}

/* ---- prefetch into a fast tier ---- */

static void drop_excess(struct study *s)
{
	uint64_t items, bytes;

	for (;;) {
		kvp_block_id out[BATCH];
		size_t n, i;

		kvp_evict_excess(s->e, &items, &bytes);
		if (!items)
			return;
		n = kvp_evict_victims(s->e, items, 0, NULL, NULL, s->now, out, BATCH);
		for (i = 0; i < n; i++) {
			kvp_evict_remove(s->e, out[i], 1, s->now);
			s->fast[out[i]] = s->fetched[out[i]] = 0;
			kvp_graph_spill(s->g, out[i], 1, s->now);
		}
		if (!n)
			return;
	}
}

/* Into the fast tier, its ancestors first: a block without them would not be a hit. */
static uint32_t bring(struct study *s, uint32_t b, int by_prefetch)
{
	uint32_t path[4096], n = 0, brought = 0;

	while (b != TRACE_BLOCK_NONE && !s->fast[b] && n < 4096) {
		path[n++] = b;
		b = s->t->block[b].parent;
	}
	while (n--) {
		struct kvp_evict_item item = { .parent = s->t->block[path[n]].parent,
			.bytes = 1,
			.depth = s->t->block[path[n]].depth,
			.tokens = s->t->block[path[n]].tokens,
			.cost = 1 + (float)s->t->block[path[n]].depth / 64,
			.flags = s->t->block[path[n]].tokens < s->t->block_tokens
					 ? KVP_EVICT_PARTIAL
					 : 0,
			.key = { .lo = path[n] + 1 } };

		if (item.parent == TRACE_BLOCK_NONE)
			item.parent = KVP_BLOCK_NONE;
		if (kvp_evict_insert(s->e, path[n], &item, s->now) < 0)
			break;
		s->fast[path[n]] = 1;
		s->fetched[path[n]] = (uint8_t)by_prefetch;
		kvp_graph_spill(s->g, path[n], 0, s->now);
		brought++;
	}
	return brought;
}

/*
 * How much of what a request will need from the slow tier do the suggestions name, when only its
 * first quarter is known? Asked hop by hop, as far as there are blocks to come.
 */
static void ask_inside(struct study *s, const uint32_t *ref, uint32_t blocks)
{
	uint32_t known = blocks / 4 ? blocks / 4 : 1, want = 0, i, hop;
	kvp_block_id active[KVP_GRAPH_ACTIVE_MAX], got[PER_ASK];
	uint32_t n = 0;

	for (i = known; i < blocks && s->seen[ref[i]]; i++)
		want += !s->fast[ref[i]];
	if (!want)
		return;
	for (i = known > 8 ? known - 8 : 0; i < known; i++)
		active[n++] = ref[i];
	s->asked += want;
	for (hop = 0; hop < HOPS_MAX && want && n < KVP_GRAPH_ACTIVE_MAX; hop++) {
		int k = kvp_ranking_prefetch(s->r, s->now, s->max_age, active, n, PER_ASK, got), j;

		if (k <= 0)
			break;
		for (j = 0; j < k && want && n < KVP_GRAPH_ACTIVE_MAX; j++) {
			s->answered++;
			for (i = known; i < blocks && ref[i] != got[j]; i++)
				;
			if (i < blocks && !s->fast[got[j]]) {
				s->right++;
				want--;
			}
			active[n++] = got[j];
		}
	}
}

static void prefetch_after(struct study *s, const uint32_t *ref, uint32_t blocks)
{
	kvp_block_id got[256];
	int k = kvp_ranking_prefetch(s->r, s->now, s->max_age, ref, blocks, s->o->ahead, got);

	for (int i = 0; i < k; i++)
		if (!s->fast[got[i]])
			s->prefetched += bring(s, got[i], 1);
}

static int request_prefetch(struct study *s, const struct trace_request *q)
{
	const uint32_t *ref = s->t->ref + q->first;
	uint32_t session = session_of(s->t, q), k = 0, i;

	rank_if_due(s);
	ask_inside(s, ref, q->blocks);
	while (k < q->blocks && s->fast[ref[k]]) {
		s->useful += s->fetched[ref[k]];
		s->fetched[ref[k]] = 0;
		k++;
	}
	s->hits += k;
	s->refs += q->blocks;
	for (i = k; i < q->blocks; i++)
		s->cold += s->seen[ref[i]];
	if (k)
		kvp_evict_access_chain(s->e, ref[k - 1], s->now);
	for (i = k; i < q->blocks; i++) {
		if (!s->seen[ref[i]] && add_node(s, ref[i], session) < 0)
			return -EINVAL;
		bring(s, ref[i], 0);
	}
	kvp_graph_request(s->g, ref, q->blocks, session, s->now);
	kvp_graph_co_attend(s->g, ref, q->blocks, s->now);
	if (s->o->ahead)
		prefetch_after(s, ref, q->blocks);
	drop_excess(s);
	return 0;
}

/* ---- a policy, alone and advised ---- */

/* Tells the policy of the request; how many leading blocks are cached. */
static uint32_t use(struct study *s, const struct trace_request *q)
{
	const uint32_t *ref = s->t->ref + q->first;
	struct kvp_evict_request shape = {
		.tip = KVP_BLOCK_NONE,
		.blocks = q->blocks,
		.tokens = q->tokens,
	};

	while (shape.matched < q->blocks && s->fast[ref[shape.matched]])
		shape.tip = ref[shape.matched++];
	s->hits += shape.matched;
	s->refs += q->blocks;
	kvp_evict_request(s->e, &shape, s->now);
	if (shape.matched)
		kvp_evict_access_chain(s->e, shape.tip, s->now);
	return shape.matched;
}

static int request_alone(struct study *s, const struct trace_request *q)
{
	const uint32_t *ref = s->t->ref + q->first;
	uint32_t i;

	for (i = use(s, q); i < q->blocks; i++)
		bring(s, ref[i], 0);
	drop_excess(s);
	return 0;
}

/* What came since the ranking has no score: it is as recent as can be. */
static float score(const struct study *s, kvp_block_id b)
{
	float x = kvp_ranking_score(s->r, b);

	return x < 0 ? 1 : x;
}

/* Of n candidates in the policy's order the `items` with the lowest score go, children first. */
static void drop_lowest(struct study *s, kvp_block_id *candidate, size_t n, uint64_t items)
{
	for (; items && n; items--) {
		size_t best = n, i;

		for (i = 0; i < n; i++) {
			struct kvp_evict_info info;

			if (!kvp_evict_peek(s->e, candidate[i], &info) && !info.children &&
				(best == n || score(s, candidate[i]) < score(s, candidate[best])))
				best = i;
		}
		if (best == n)
			return;
		kvp_evict_remove(s->e, candidate[best], 1, s->now);
		kvp_graph_remove(s->g, candidate[best]);
		s->fast[candidate[best]] = s->seen[candidate[best]] = 0;
		n--;
		memmove(candidate + best, candidate + best + 1, (n - best) * sizeof(*candidate));
	}
}

static void drop_advised(struct study *s)
{
	uint64_t items, bytes, before = UINT64_MAX;

	for (;;) {
		kvp_block_id out[BATCH];
		size_t n;

		kvp_evict_excess(s->e, &items, &bytes);
		if (!items || items == before)
			return;
		before = items;
		if (items > BATCH / s->o->among)
			items = BATCH / s->o->among;
		n = kvp_evict_victims(s->e, items * s->o->among, 0, NULL, NULL, s->now, out, BATCH);
		drop_lowest(s, out, n, items);
	}
}

/* As the daemon takes advice: the policy's victims go, but those that score so highly. */
struct sparing {
	const struct study *s;
	uint32_t left; /* blocks that this call may spare */
};

static int is_spared(void *ctx, kvp_block_id id)
{
	struct sparing *q = ctx;

	if (!q->left || kvp_ranking_score(q->s->r, id) < (float)q->s->o->spare)
		return 0;
	q->left--;
	return 1;
}

static void drop_unspared(struct study *s)
{
	struct sparing q = { s, SPARED_MAX };
	uint64_t items, bytes;

	for (;;) {
		kvp_block_id out[BATCH];
		size_t n, i;

		kvp_evict_excess(s->e, &items, &bytes);
		if (!items)
			return;
		n = kvp_evict_victims(s->e, items, 0, is_spared, &q, s->now, out, BATCH);
		for (i = 0; i < n; i++) {
			kvp_evict_remove(s->e, out[i], 1, s->now);
			kvp_graph_remove(s->g, out[i]);
			s->fast[out[i]] = s->seen[out[i]] = 0;
		}
		if (!n && !q.left)
			return;
		if (!n)
			q.left = 0;
	}
}

static int request_advised(struct study *s, const struct trace_request *q)
{
	const uint32_t *ref = s->t->ref + q->first;
	uint32_t session = session_of(s->t, q), i;

	rank_if_due(s);
	for (i = use(s, q); i < q->blocks; i++) {
		if (!s->seen[ref[i]] && add_node(s, ref[i], session) < 0)
			return -EINVAL;
		bring(s, ref[i], 0);
	}
	kvp_graph_request(s->g, ref, q->blocks, session, s->now);
	kvp_graph_co_attend(s->g, ref, q->blocks, s->now);
	if (s->o->spare > 0)
		drop_unspared(s);
	else
		drop_advised(s);
	return 0;
}

static int run(const struct trace *t, const struct options *o, const char *policy,
	uint64_t capacity, int (*request)(struct study *, const struct trace_request *),
	struct study *ret)
{
	uint32_t i;
	int r = study_init(ret, t, o, policy, capacity);

	for (i = 0; !r && i < t->n_requests; i++) {
		ret->now = t->request[i].time_ns + 1;
		ret->seq = i;
		r = t->request[i].blocks ? request(ret, &t->request[i]) : 0;
		progress("graph", i + 1, t->n_requests);
	}
	if (r < 0)
		return r;
	study_done(ret);
	return 0;
}

static double share(uint64_t a, uint64_t b)
{
	return b ? (double)a / (double)b : 0;
}

static int report(const struct trace *t, const struct options *o, uint64_t capacity, int first)
{
	static const char *const text =
		"%8" PRIu64 "  %8.4f %8.4f  %8.4f %8.4f  %8.4f %10" PRIu64 " %7.4f  %9.4f %9.4f\n";
	static const char *const json =
		"%s{\"capacity\":%" PRIu64 ",\"lru\":%.4f,\"graph\":%.4f,\"default\":%.4f,"
		"\"advised\":%.4f,\"prefetch\":%.4f,\"prefetched\":%" PRIu64 ",\"useful\":%.4f,"
		"\"inside_covered\":%.4f,\"inside_right\":%.4f}";
	struct study lru, graph, alone, advised, fetch;
	double a, b, c, d, e, useful, covered, right;
	int r = run(t, o, "lru", capacity, request_alone, &lru);

	if (!r)
		r = run(t, o, "lru", capacity, request_evict, &graph);
	if (!r)
		r = run(t, o, KVP_EVICT_DEFAULT, capacity, request_alone, &alone);
	if (!r)
		r = run(t, o, KVP_EVICT_DEFAULT, capacity, request_advised, &advised);
	if (!r)
		r = run(t, o, "lru", capacity, request_prefetch, &fetch);
	if (r < 0) {
		fprintf(stderr, "kvreplay graph: %s\n", strerror(-r));
		return r;
	}
	a = share(lru.hits, lru.refs);
	b = share(graph.hits, graph.refs);
	c = share(alone.hits, alone.refs);
	d = share(advised.hits, advised.refs);
	e = share(fetch.hits, fetch.refs);
	useful = share(fetch.useful, fetch.prefetched);
	covered = share(fetch.right, fetch.asked);
	right = share(fetch.right, fetch.answered);
	if (o->json)
		printf(json, first ? "" : ",", capacity, a, b, c, d, e, fetch.prefetched, useful,
			covered, right);
	else
		printf(text, capacity, a, b, c, d, e, fetch.prefetched, useful, covered, right);
	fflush(stdout);
	return 0;
}

static int parse_capacities(const char *arg, struct options *o)
{
	o->n_capacities = 0;
	for (;;) {
		char *end;
		unsigned long long v;

		if (*arg < '0' || *arg > '9' || o->n_capacities == CAPACITIES_MAX)
			return -EINVAL;
		v = strtoull(arg, &end, 10);
		if (!v || v > UINT32_MAX || (*end && *end != ','))
			return -EINVAL;
		o->capacity[o->n_capacities++] = v;
		if (!*end)
			return 0;
		arg = end + 1;
	}
}

static int parse_number(const char *arg, double min, double max, double *ret)
{
	char *end;
	double v = strtod(arg, &end);

	if (end == arg || *end || !(v >= min && v <= max))
		return -EINVAL;
	*ret = v;
	return 0;
}

static void usage(FILE *f)
{
	fputs("usage: kvreplay graph --trace PATH [OPTION]...\n\n"
	      "  --trace PATH        a file, or for agent traces also a folder\n"
	      "  --format mooncake|agent\n"
	      "                      of the trace (default mooncake)\n"
	      "  --capacity N,...    blocks of the cache, or of the fast tier\n"
	      "  --half-life S       of weights and counts, default 1200 seconds\n"
	      "  --period MS         of the advisor, default 500\n"
	      "  --ahead N           blocks prefetched after each request, 0..256, default 8\n"
	      "  --among N           candidates of the default policy, for each block that goes,\n"
	      "                      among which the ranking chooses, 1..1024, default 4\n"
	      "  --spare SCORE       instead: its victims go but those that score so highly, "
	      ".01..2;\n"
	      "                      as the daemon does it with .6\n"
	      "  --json              one JSON object on stdout\n"
	      "  --help\n",
		f);
}

int cmd_graph(int argc, char **argv)
{
	static const struct option longopts[] = {
		{ "trace", required_argument, NULL, 't' },
		{ "format", required_argument, NULL, 'f' },
		{ "capacity", required_argument, NULL, 'c' },
		{ "half-life", required_argument, NULL, 'l' },
		{ "period", required_argument, NULL, 'p' },
		{ "ahead", required_argument, NULL, 'a' },
		{ "among", required_argument, NULL, 'm' },
		{ "spare", required_argument, NULL, 's' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	struct options o = { .format = TRACE_MOONCAKE,
		.capacity = { 1000, 3000, 10000, 30000 },
		.n_capacities = 4,
		.half_life_s = 1200,
		.period_ms = 500,
		.ahead = 8 };
	struct trace_options load = { .overlap = true };
	struct trace trace;
	char error[256];
	double ahead = 8, among = 4;
	int c, option = 0, r = 0;
	uint32_t i;

	while (!r && (c = getopt_long(argc, argv, "h", longopts, &option)) != -1) {
		switch (c) {
		case 't':
			o.trace = optarg;
			break;
		case 'f':
			r = trace_format_parse(optarg, &o.format);
			if (!r && o.format == TRACE_ORACLE)
				r = -EINVAL;
			break;
		case 'c':
			r = parse_capacities(optarg, &o);
			break;
		case 'l':
			r = parse_number(optarg, 1e-3, 1e7, &o.half_life_s);
			break;
		case 'p':
			r = parse_number(optarg, 1, 1e6, &o.period_ms);
			break;
		case 'a':
			r = parse_number(optarg, 0, 256, &ahead);
			break;
		case 'm':
			r = parse_number(optarg, 1, BATCH, &among);
			break;
		case 's':
			r = parse_number(optarg, .01, 2, &o.spare);
			break;
		case 'j':
			o.json = true;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (r < 0 || !o.trace || optind != argc) {
		if (r < 0)
			fprintf(stderr, "kvreplay graph: '%s' is no value for --%s\n", optarg,
				longopts[option].name);
		usage(stderr);
		return 2;
	}
	o.ahead = (uint32_t)ahead;
	o.among = (uint32_t)among;
	r = trace_load(o.trace, o.format, &load, &trace, error, sizeof(error));
	if (r < 0) {
		fprintf(stderr, "kvreplay graph: %s\n", error);
		return 1;
	}
	if (o.json)
		printf("{\"results\":[");
	else
		printf("%8s  %8s %8s  %8s %8s  %8s %10s %7s  %9s %9s\n", "capacity", "lru", "graph",
			"default", "advised", "prefetch", "fetched", "useful", "covered", "right");
	for (i = 0; !r && i < o.n_capacities; i++)
		r = report(&trace, &o, o.capacity[i], i == 0);
	if (o.json)
		printf("]}\n");
	trace_done(&trace);
	return r < 0 ? 1 : 0;
}
