/* SPDX-License-Identifier: Apache-2.0 */
/* kvreplay generate: prompts that share as much as those of real services do. */
#include "tools/kvreplay/generate.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/kvreplay/kvreplay.h"
#include "tools/kvreplay/trace.h"

#define BLOCK        512u
#define MAX_TOKENS   (UINT32_C(1) << 17)
#define MAX_REQUESTS (UINT32_C(1) << 26)
#define MAX_CHAINS   4096u
#define MIN_RATE     .01 /* below, times would be too large for a reader */
#define MAX_RATE     1e6

/* Lengths are in tokens. */
struct kind {
	const char *name;
	double exact;
	double partial;
	uint32_t first_min, first_max; /* of a prompt that begins anew */
	uint32_t more_min, more_max;   /* appended to what is reused */
	uint32_t output_min, output_max;
	bool grows;  /* a reused prompt is replaced by its continuation */
	bool one;    /* only one prompt ever begins anew */
	double skew; /* how much younger prompts are preferred; 1: not at all */
};

static const struct kind kinds[] = {
	{ "chat", .95, .03, 1100, 8000, 60, 1500, 30, 800, true, false, 3 },
	{ "rag", .60, .30, 3000, 16000, 20, 400, 50, 500, false, false, 2 },
	{ "batch", 1.0, 0, 1500, 3000, 100, 2000, 10, 200, false, true, 1 },
	{ "mixed", .50, .30, 1100, 12000, 40, 1500, 20, 600, true, false, 2 },
};

/* A prompt that others may reuse. */
struct chain {
	uint64_t *id;
	uint32_t tokens;
	uint32_t first; /* full blocks when it arose; no prompt ends among them but at the last */
};

struct generator {
	const struct kind *kind;
	struct chain chain[MAX_CHAINS]; /* by age, then by chance */
	uint32_t n_chains;
	uint64_t next_id;
	uint64_t rng;
};

static uint64_t draw(struct generator *g)
{
	uint64_t z = (g->rng += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* In [0, 1). */
static double uniform(struct generator *g)
{
	return (double)(draw(g) >> 11) * 0x1p-53;
}

/* Short ones are more frequent: uniform in the logarithm. */
static uint32_t length(struct generator *g, uint32_t min, uint32_t max)
{
	return (uint32_t)(min * pow((double)max / min, uniform(g)));
}

static uint32_t pick_chain(struct generator *g)
{
	double back = pow(uniform(g), g->kind->skew) * g->n_chains;

	return g->n_chains - 1 - (uint32_t)back;
}

/* The prompt that keeps `keep` blocks of `from` and has so many tokens; new ids for the rest. */
static int make_chain(struct generator *g, const struct chain *from, uint32_t keep, uint32_t tokens,
	struct chain *ret_chain)
{
	uint32_t n = (tokens + BLOCK - 1) / BLOCK;
	uint64_t *id = malloc(n * sizeof(*id));

	if (!id)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		id[i] = i < keep ? from->id[i] : g->next_id++;
	*ret_chain = (struct chain){ .id = id, .tokens = tokens, .first = tokens / BLOCK };
	return 0;
}

/* Takes over the chain's ids. A full table loses one by chance. */
static void remember(struct generator *g, struct chain c)
{
	if (g->n_chains == MAX_CHAINS) {
		uint32_t i = (uint32_t)(uniform(g) * MAX_CHAINS);
		free(g->chain[i].id);
		memmove(&g->chain[i], &g->chain[i + 1], (MAX_CHAINS - i - 1) * sizeof(g->chain[0]));
		g->n_chains--;
	}
	g->chain[g->n_chains++] = c;
}

static void forget(struct generator *g, uint32_t i)
{
	g->n_chains--;
	memmove(&g->chain[i], &g->chain[i + 1], (g->n_chains - i) * sizeof(g->chain[0]));
}

/* The next prompt; `*ret_keep` tells whether it may be reused (and is then remembered). */
static int next_prompt(struct generator *g, struct chain *ret_chain, bool *ret_keep)
{
	const struct kind *k = g->kind;
	double u = uniform(g);
	uint32_t more = length(g, k->more_min, k->more_max);
	uint32_t i = g->n_chains ? pick_chain(g) : 0;
	const struct chain *from = g->n_chains ? &g->chain[i] : NULL;
	uint32_t full = from ? from->tokens / BLOCK : 0;
	int r;

	if (from && from->first >= 2 && u >= k->exact && u < k->exact + k->partial) {
		uint32_t keep = 1 + (uint32_t)(uniform(g) * (from->first - 1));
		r = make_chain(g, from, keep, (keep + 1) * BLOCK + more, ret_chain);
		*ret_keep = true;
	} else if (from && (u < k->exact + k->partial || k->one)) {
		uint32_t tokens = from->tokens + more;
		if (tokens > MAX_TOKENS)
			tokens = full * BLOCK + k->more_min;
		struct chain old = *from;
		r = make_chain(g, from, full, tokens, ret_chain);
		*ret_keep = k->grows;
		if (r == 0 && k->grows) {
			ret_chain->first = old.first;
			forget(g, i);
			free(old.id);
		}
	} else {
		r = make_chain(g, NULL, 0, length(g, k->first_min, k->first_max), ret_chain);
		*ret_keep = true;
	}
	return r;
}

static void put_request(FILE *out, double ms, const struct chain *c, uint32_t output)
{
	uint32_t n = (c->tokens + BLOCK - 1) / BLOCK;

	fprintf(out,
		"{\"timestamp\": %.0f, \"input_length\": %u, \"output_length\": %u, \"hash_ids\": "
		"[",
		ms, c->tokens, output);
	for (uint32_t i = 0; i < n; i++)
		fprintf(out, "%s%" PRIu64, i ? ", " : "", c->id[i]);
	fputs("]}\n", out);
}

static const struct kind *find_kind(const char *name)
{
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (!strcmp(kinds[i].name, name))
			return &kinds[i];
	return NULL;
}

int generate(const struct generate_options *o, FILE *out)
{
	const struct kind *kind = find_kind(o->kind);
	struct generator *g;
	double ms = 0;
	int r = 0;

	if (!kind || !o->requests || o->requests > MAX_REQUESTS ||
		!(o->rate >= MIN_RATE && o->rate <= MAX_RATE))
		return -EINVAL;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->kind = kind;
	g->rng = o->seed;
	for (uint32_t i = 0; r == 0 && i < o->requests; i++) {
		struct chain c;
		bool keep;
		r = next_prompt(g, &c, &keep);
		if (r < 0)
			break;
		put_request(out, ms, &c, length(g, kind->output_min, kind->output_max));
		ms -= log(1 - uniform(g)) / o->rate * 1000;
		if (keep)
			remember(g, c);
		else
			free(c.id);
		if (i % 1024 == 0)
			progress("generating", i, o->requests);
	}
	progress("generating", 1, 1);
	while (g->n_chains)
		free(g->chain[--g->n_chains].id);
	free(g);
	if (r == 0 && (fflush(out) || ferror(out)))
		r = -EIO;
	return r;
}

static void usage(FILE *f)
{
	fputs("usage: kvreplay generate [OPTION]... > FILE\n"
	      "\n"
	      "  --kind chat|rag|batch|mixed\n"
	      "                   (default chat)\n"
	      "  --requests N     1 to 2^26 (default 10000)\n"
	      "  --rate R         requests per second, .01 to 1e6 (default 4)\n"
	      "  --seed N         same seed, same trace (default 1)\n"
	      "  --out FILE       instead of stdout\n"
	      "  --help\n",
		f);
}

static int parse(int argc, char **argv, struct generate_options *o, const char **ret_path)
{
	static const struct option options[] = {
		{ "kind", 1, NULL, 'k' },
		{ "requests", 1, NULL, 'n' },
		{ "rate", 1, NULL, 'r' },
		{ "seed", 1, NULL, 's' },
		{ "out", 1, NULL, 'o' },
		{ "help", 0, NULL, 'h' },
		{ 0 },
	};
	int c, index = 0;

	while ((c = getopt_long(argc, argv, "h", options, &index)) >= 0) {
		char *end = (char *)"";
		unsigned long long x = 1;
		errno = 0;
		if (c == 'k')
			o->kind = optarg;
		else if (c == 'o')
			*ret_path = optarg;
		else if (c == 'r')
			o->rate = strtod(optarg, &end);
		else if (c == 'n' || c == 's')
			x = strtoull(optarg, &end, 10);
		else
			return c == 'h' ? 1 : -EINVAL;
		if (c == 'n')
			o->requests = x <= MAX_REQUESTS ? (uint32_t)x : 0;
		if (c == 's')
			o->seed = x;
		if (end == optarg || *end || errno || (c == 'n' && *optarg == '-') ||
			(c == 's' && *optarg == '-') || !o->requests || !find_kind(o->kind) ||
			!(o->rate >= MIN_RATE && o->rate <= MAX_RATE)) {
			fprintf(stderr, "kvreplay generate: '%s' is no value for --%s\n", optarg,
				options[index].name);
			return -EINVAL;
		}
	}
	return optind < argc ? -EINVAL : 0;
}

int cmd_generate(int argc, char **argv)
{
	struct generate_options o = { .kind = "chat", .requests = 10000, .rate = 4, .seed = 1 };
	const char *path = NULL;
	int r = parse(argc, argv, &o, &path);

	if (r) {
		usage(r > 0 ? stdout : stderr);
		return r > 0 ? 0 : 2;
	}
	FILE *out = path ? fopen(path, "we") : stdout;
	if (!out) {
		fprintf(stderr, "kvreplay: %s: %s\n", path, strerror(errno));
		return 1;
	}
	r = generate(&o, out);
	if (path && fclose(out) && r == 0)
		r = -EIO;
	if (r < 0)
		fprintf(stderr, "kvreplay: cannot generate: %s\n", strerror(-r));
	return r == -EINVAL ? 2 : r < 0;
}
