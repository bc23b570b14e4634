/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks, medians, command lines, and the private daemon that a benchmark measures. */
#include "tools/kvbench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FLUSH_BYTES (UINT64_C(256) << 20)
#define WAIT_MS     20000u

uint64_t bench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double bench_percentile(double *v, size_t n, double p)
{
	qsort(v, n, sizeof(*v), ascending);
	return n ? v[(size_t)((double)(n - 1) * p)] : 0;
}

double bench_median(double *v, size_t n)
{
	return bench_percentile(v, n, .5);
}

struct bench_spread bench_spread(double *v, size_t n)
{
	struct bench_spread s = { 0 };

	if (n) {
		s.median = bench_median(v, n);
		s.min = v[0];
		s.max = v[n - 1];
	}
	return s;
}

void bench_add(json_t *object, const char *name, struct bench_spread s)
{
	char key[80];

	json_object_set_new(object, name, json_real(s.median));
	snprintf(key, sizeof(key), "%s_min", name);
	json_object_set_new(object, key, json_real(s.min));
	snprintf(key, sizeof(key), "%s_max", name);
	json_object_set_new(object, key, json_real(s.max));
}

const char *bench_show(struct bench_spread s, int digits, char *buf)
{
	snprintf(buf, 64, "%.*f (%.*f to %.*f)", digits, s.median, digits, s.min, digits, s.max);
	return buf;
}

void bench_print_json(const json_t *object)
{
	json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
	putchar('\n');
}

uint64_t bench_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void usage(
	FILE *f, const char *name, const char *about, const struct bench_option *o, size_t n)
{
	char head[64];

	fprintf(f, "usage: kvbench %s [OPTION]...\n\n%s\n\n", name, about);
	for (size_t i = 0; i < n; i++) {
		const char *takes = o[i].takes   ? o[i].takes
				    : o[i].value ? "N"
				    : o[i].text  ? "WORD"
						 : "";

		snprintf(head, sizeof(head), "--%s %s", o[i].name, takes);
		if (strlen(head) > 24)
			fprintf(f, "  %s\n  %-24s %s\n", head, "", o[i].help);
		else
			fprintf(f, "  %-24s %s\n", head, o[i].help);
	}
	fprintf(f, "  %-24s %s\n", "--help", "this");
}

static int take(const char *name, const struct bench_option *o, const char *text)
{
	char *end;
	unsigned long long v;

	errno = 0;
	v = strtoull(text, &end, 10);
	if (errno || end == text || *end || text[0] == '-' || v < o->min || v > o->max) {
		fprintf(stderr, "kvbench %s: --%s takes a number from %llu to %llu, not '%s'\n",
			name, o->name, (unsigned long long)o->min, (unsigned long long)o->max,
			text);
		return -1;
	}
	*o->value = v;
	return 1;
}

static int take_text(const char *name, const struct bench_option *o, const char *text)
{
	if (!o->times) {
		*o->text = text;
		return 1;
	}
	if (*o->times == o->max) {
		fprintf(stderr, "kvbench %s: --%s more than %llu times\n", name, o->name,
			(unsigned long long)o->max);
		return -1;
	}
	o->text[(*o->times)++] = text;
	return 1;
}

static int unknown(const char *name, const struct bench_option *options, size_t n, const char *text)
{
	fprintf(stderr, "kvbench %s: what is '%s'? There are", name, text);
	for (size_t i = 0; i < n; i++)
		fprintf(stderr, " --%s", options[i].name);
	fprintf(stderr, " (kvbench %s --help)\n", name);
	return -1;
}

int bench_parse(
	int argc, char **argv, const char *about, const struct bench_option *options, size_t n)
{
	uint64_t seen = 0; /* bit i: options[i] */

	for (int i = 1; i < argc; i++) {
		const struct bench_option *o = NULL;
		int r = 1;

		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
			usage(stdout, argv[0], about, options, n);
			return 0;
		}
		for (size_t k = 0; k < n; k++)
			if (!strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, options[k].name))
				o = &options[k];
		if (!o)
			return unknown(argv[0], options, n, argv[i]);
		if (!o->times && seen >> (o - options) & 1) {
			fprintf(stderr, "kvbench %s: --%s is given twice\n", argv[0], o->name);
			return -1;
		}
		seen |= UINT64_C(1) << (o - options);
		if ((o->value || o->text) && i + 1 == argc) {
			fprintf(stderr, "kvbench %s: --%s needs a value\n", argv[0], o->name);
			return -1;
		}
		if (o->text)
			r = take_text(argv[0], o, argv[++i]);
		else if (o->value)
			r = take(argv[0], o, argv[++i]);
		else
			*o->flag = true;
		if (r < 0)
			return r;
	}
	return 1;
}

int bench_pool_start(struct bench_pool *p, uint32_t blocks, uint32_t block_tokens,
	uint64_t block_bytes, uint32_t max_sessions)
{
	/* Room for metadata, and for arenas of which every slot of the fill may lie there. */
	uint64_t per_block = block_bytes + 64 + 512 + 4u * block_tokens;
	struct kvt_daemon_opts opts = {
		.share = blocks * per_block * 9 / 4 + (UINT64_C(512) << 20),
		.max_blocks = blocks,
		.recipe_tokens = (uint64_t)blocks * block_tokens,
		.arena = blocks * (block_bytes + 64) + (UINT64_C(128) << 20),
		.max_sessions = max_sessions,
	};
	char error[1500];
	int r;

	p->client = NULL;
	p->space = NULL;
	opts.policy = p->policy;
	opts.more = p->more;
	if (p->device_blocks) {
		opts.device_segment =
			((block_bytes + 4095) / 4096 * 4096) * ((p->device_blocks + 7) / 8);
		opts.device_bytes = 8 * opts.device_segment;
	}
	p->block_tokens = block_tokens;
	p->block_bytes = block_bytes;
	r = kvt_daemon_start(&opts, &p->daemon, error, sizeof(error));
	if (r < 0) {
		fprintf(stderr, "kvbench: %s\n", error);
		return r;
	}
	r = bench_pool_attach(p);
	if (r < 0)
		kvt_daemon_stop(&p->daemon);
	return r;
}

int bench_pool_attach(struct bench_pool *p)
{
	struct kvp_open_opts open_opts = { .size = sizeof(open_opts),
		.socket = p->daemon.socket,
		.name = "kvbench",
		.default_timeout_ms = WAIT_MS };
	/*
	 * One token's bytes as keys and values of equal width, in layers of at most 4096 channels.
	 */
	uint32_t channels = (uint32_t)(p->block_bytes / p->block_tokens / 4), layers = 1;
	struct kvp_layer layer[64];
	struct kvp_space_desc desc = { .size = sizeof(desc),
		.model = "kvbench",
		.dtype = KVP_DTYPE_F16,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = p->block_tokens,
		.layers = layer };
	int r;

	while (channels / layers > 1024 && layers < 64)
		layers *= 2;
	memset(layer, 0, sizeof(layer));
	for (uint32_t i = 0; i < layers; i++) {
		layer[i].index = i;
		layer[i].kv_heads = 1;
		layer[i].k_dim = channels / layers;
		layer[i].v_dim = channels / layers;
	}
	desc.n_layers = layers;
	r = kvp_open(&open_opts, &p->client);
	if (r < 0) {
		fprintf(stderr, "kvbench: cannot attach: %s\n", strerror(-r));
		return r;
	}
	r = kvp_space_open(p->client, &desc, WAIT_MS, &p->space);
	if (r < 0) {
		fprintf(stderr, "kvbench: cannot open a space: %s\n", strerror(-r));
		p->client = kvp_close(p->client);
	}
	return r;
}

void bench_pool_detach(struct bench_pool *p)
{
	p->space = kvp_space_close(p->space);
	p->client = kvp_close(p->client);
}

void bench_pool_stop(struct bench_pool *p)
{
	if (p->client)
		bench_pool_detach(p);
	kvt_daemon_stop(&p->daemon);
}

void bench_chain_tokens(uint32_t chain, uint32_t *out, uint32_t n)
{
	uint64_t state = chain * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (uint32_t i = 0; i < n; i++)
		out[i] = (uint32_t)(bench_random(&state) >> 20) & 0x1ffff;
}

static int fill_chain(struct bench_pool *p, const uint32_t *tokens, uint32_t blocks)
{
	struct kvp_ref parent = kvp_ref_root();
	struct kvp_grant *last = NULL;
	int r = 0;

	for (uint32_t b = 0; b < blocks && r >= 0; b++) {
		struct kvp_grant *g;

		r = kvp_reserve(p->space, WAIT_MS, NULL, &g);
		if (r < 0)
			break;
		memset(kvp_grant_addr(g), (int)b, p->block_bytes);
		r = kvp_commit(
			g, parent, tokens + (size_t)b * p->block_tokens, p->block_tokens, NULL, 0);
		if (r >= 0)
			r = kvp_grant_ref(g, &parent);
		kvp_grant_release(last);
		last = g;
	}
	kvp_grant_release(last);
	return r;
}

int bench_pool_put(struct bench_pool *p, uint32_t chain, uint32_t blocks)
{
	uint32_t n = blocks * p->block_tokens;
	uint32_t *tokens = malloc((size_t)n * sizeof(*tokens));
	int r;

	if (!tokens)
		return -ENOMEM;
	bench_chain_tokens(chain, tokens, n);
	r = fill_chain(p, tokens, blocks);
	free(tokens);
	return r;
}

int bench_pool_fill(
	struct bench_pool *p, uint32_t first, uint32_t chains, uint32_t blocks_per_chain)
{
	bool terminal = isatty(STDERR_FILENO);
	int r = 0;

	for (uint32_t c = 0; c < chains && r >= 0; c++) {
		r = bench_pool_put(p, first + c, blocks_per_chain);
		if (terminal && c % 64 == 0)
			fprintf(stderr, "\rfilling %u of %u chains", c, chains);
	}
	if (terminal)
		fprintf(stderr, "\r\033[K");
	if (r >= 0)
		r = kvp_flush(p->client, WAIT_MS);
	if (r < 0)
		fprintf(stderr, "kvbench: cannot fill the pool: %s\n", strerror(-r));
	return r;
}

void bench_flush_caches(void)
{
	static uint8_t *buffer;

	if (!buffer)
		buffer = malloc(FLUSH_BYTES);
	if (buffer)
		memset(buffer, (int)bench_now(), FLUSH_BYTES);
}
