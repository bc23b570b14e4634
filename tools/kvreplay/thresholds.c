/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvreplay thresholds: a log of quality scores through the controllers of policy/, one for each
 * model, layer and context length, and the file in which what they learn outlasts a process.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "policy/kvp_thresholds.h"
#include "policy/kvp_zones.h"
#include "tools/common/kvt_file.h"
#include "tools/kvreplay/kvreplay.h"

#define RECORDS_MAX 65536u
#define FILE_MAX    ((size_t)16 << 20) /* more than so many records take */
#define STREAMS_MAX 4096u              /* models, layers and contexts in one log */
#define TEXT_MAX    4096u

struct options {
	const char *file;
	const char *scores;
	double target;
	bool json;
};

/* What one model, layer and context length has learnt in this run. */
struct stream {
	struct kvp_threshold_record record;
	struct kvp_adapt adapt;
};

struct learner {
	const struct options *o;
	struct kvp_threshold_store *store;
	struct stream *stream;
	uint32_t n_streams;
	uint64_t samples;
};

/* One score, as a line of the log tells it. */
struct score {
	const char *model;
	uint32_t layer, context;
	struct kvp_model_shape shape;
	double score;
};

static const char *const origins[] = { "measured", "inherited", "default" };

/* ---- the file ---- */

/* A file that is not there yet is an empty store. */
static int load(const char *path, struct kvp_threshold_store *store)
{
	void *buf;
	size_t size;
	int r = kvt_file_read(path, FILE_MAX, &buf, &size);

	if (r == -ENOENT)
		return 0;
	if (r == 0) {
		r = kvp_threshold_store_unpack(store, buf, size);
		free(buf);
	}
	if (r == -EBADMSG || r == -ENOSPC || r == -EFBIG)
		fprintf(stderr,
			"kvreplay thresholds: %s is damaged, or no file of thresholds; it was "
			"left as it is. Remove it to begin anew\n",
			path);
	else if (r < 0)
		fprintf(stderr, "kvreplay thresholds: %s: %s\n", path, strerror(-r));
	return r;
}

static int save(const char *path, const struct kvp_threshold_store *store)
{
	size_t size = kvp_threshold_store_packed_size(store);
	void *buf = malloc(size);
	int r = buf ? kvp_threshold_store_pack(store, buf, size) : -ENOMEM;

	if (r == 0)
		r = kvt_file_replace(path, buf, size);
	free(buf);
	if (r < 0)
		fprintf(stderr, "kvreplay thresholds: %s: %s\n", path, strerror(-r));
	return r;
}

/* ---- learning ---- */

static int get_number(const json_t *line, const char *name, uint32_t *ret)
{
	const json_t *v = json_object_get(line, name);

	if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > UINT32_MAX)
		return -EINVAL;
	*ret = (uint32_t)json_integer_value(v);
	return 0;
}

/* -EINVAL: something is missing or of the wrong kind. */
static int get_score(const json_t *line, struct score *s)
{
	const json_t *score = json_object_get(line, "score");

	s->model = json_string_value(json_object_get(line, "model"));
	s->score = json_number_value(score);
	if (!s->model || !json_is_number(score) || get_number(line, "layer", &s->layer) < 0 ||
		get_number(line, "context", &s->context) < 0 ||
		get_number(line, "layers", &s->shape.layers) < 0 ||
		get_number(line, "kv_heads", &s->shape.kv_heads) < 0 ||
		get_number(line, "head_dim", &s->shape.head_dim) < 0)
		return -EINVAL;
	return 0;
}

/* The controller of a stream, begun with what is known of it or of the most similar model. */
static int stream_of(struct learner *l, const struct score *s, struct stream **ret)
{
	struct kvp_adapt_opts opts = { .size = sizeof(opts), .target = l->o->target };
	struct stream *x;
	int r;

	for (uint32_t i = 0; i < l->n_streams; i++) {
		x = &l->stream[i];
		if (x->record.layer == s->layer && x->record.context_tokens == s->context &&
			!strcmp(x->record.model, s->model)) {
			*ret = x;
			return 0;
		}
	}
	if (l->n_streams == STREAMS_MAX)
		return -ENOSPC;
	x = &l->stream[l->n_streams];
	r = kvp_threshold_nearest(l->store, s->model, s->layer, s->context, &x->record);
	if (r == 0 && x->record.context_tokens != s->context) {
		x->record.context_tokens = s->context;
		x->record.origin = KVP_ORIGIN_INHERITED;
	}
	if (r == -ENOENT)
		r = kvp_threshold_bootstrap(
			l->store, s->model, &s->shape, s->layer, s->context, &x->record);
	if (r == 0)
		r = kvp_adapt_init(&x->adapt, &opts, &x->record.threshold);
	if (r < 0)
		return r;
	l->n_streams++;
	*ret = x;
	return 0;
}

static int learn_line(struct learner *l, const char *text)
{
	json_t *line = json_loads(text, 0, NULL);
	struct stream *x = NULL;
	struct score s;
	int r = line ? get_score(line, &s) : -EINVAL;

	if (r == 0)
		r = stream_of(l, &s, &x);
	if (r == 0)
		r = kvp_adapt_sample(&x->adapt, (float)s.score);
	l->samples++;
	json_decref(line);
	return r < 0 ? r : 0;
}

static int learn(struct learner *l)
{
	bool from_stdin = !strcmp(l->o->scores, "-");
	FILE *f = from_stdin ? stdin : fopen(l->o->scores, "re");
	char text[TEXT_MAX];
	uint64_t n = 0;
	int r = 0;

	if (!f) {
		fprintf(stderr, "kvreplay thresholds: %s: %s\n", l->o->scores, strerror(errno));
		return -errno;
	}
	while (r == 0 && fgets(text, sizeof(text), f)) {
		n++;
		r = strchr(text, '\n') || feof(f) ? learn_line(l, text) : -E2BIG;
	}
	if (r == -ENOSPC)
		fprintf(stderr, "kvreplay thresholds: %s has more than %u models and layers\n",
			l->o->scores, STREAMS_MAX);
	else if (r < 0)
		fprintf(stderr,
			"kvreplay thresholds: %s, line %llu: no score of a model and layer\n",
			l->o->scores, (unsigned long long)n);
	else if (ferror(f))
		r = -EIO;
	if (!from_stdin)
		fclose(f);
	return r;
}

/* Everything that was learnt into the store. */
static int keep(struct learner *l)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < l->n_streams; i++) {
		struct stream *x = &l->stream[i];
		double mean;

		x->record.threshold = x->adapt.now;
		x->record.origin = KVP_ORIGIN_MEASURED;
		r = kvp_quality_mean(&x->adapt.quality, KVP_QUALITY_RECENT, &mean);
		if (r < 0)
			break;
		x->record.quality = (float)mean;
		r = kvp_threshold_store_put(l->store, &x->record);
	}
	return r;
}

/* ---- printing ---- */

static void print_json(const struct kvp_threshold_store *store)
{
	json_t *records = json_array(), *root = json_pack("{s:o}", "thresholds", records);

	for (uint32_t i = 0; i < kvp_threshold_store_count(store); i++) {
		struct kvp_threshold_record r;

		kvp_threshold_store_at(store, i, &r);
		json_array_append_new(records,
			json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:f}", "model", r.model,
				"layer", (json_int_t)r.layer, "context",
				(json_int_t)r.context_tokens, "hot_tokens",
				(json_int_t)r.threshold.hot_tokens, "stale_tokens",
				(json_int_t)r.threshold.stale_tokens, "archive_bits",
				(json_int_t)kvp_width_bits(r.threshold.archive_width), "origin",
				origins[r.origin], "quality", (double)r.quality));
	}
	json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
	putchar('\n');
	json_decref(root);
}

static void print_table(const struct kvp_threshold_store *store)
{
	printf("%-32s %5s %9s %7s %7s %7s %8s  %s\n", "model", "layer", "context", "hot", "stale",
		"archive", "quality", "origin");
	for (uint32_t i = 0; i < kvp_threshold_store_count(store); i++) {
		struct kvp_threshold_record r;

		kvp_threshold_store_at(store, i, &r);
		printf("%-32.63s %5u %9u %7u %7u %2u bits %8.4f  %s\n", r.model, r.layer,
			r.context_tokens, r.threshold.hot_tokens, r.threshold.stale_tokens,
			kvp_width_bits(r.threshold.archive_width), (double)r.quality,
			origins[r.origin]);
	}
}

/* ---- the command ---- */

static void usage(FILE *f)
{
	fputs("usage: kvreplay thresholds --file FILE [OPTION]...\n\n"
	      "  --file FILE     what has been learnt: read if it is there, and with --scores "
	      "written\n"
	      "                  back, whole or not at all\n"
	      "  --scores LOG    quality scores to learn from, one JSON object a line; -: stdin\n"
	      "  --target X      the mean score that is wanted (default .95)\n"
	      "  --json          JSON on stdout instead of a table\n"
	      "  --help\n",
		f);
}

/* 1: go on; 0: help was asked for; -EINVAL. */
static int parse(int argc, char **argv, struct options *o)
{
	static const struct option longopts[] = { { "file", required_argument, NULL, 'f' },
		{ "scores", required_argument, NULL, 's' },
		{ "target", required_argument, NULL, 't' }, { "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' }, { 0 } };
	char *end;
	int c;

	while ((c = getopt_long(argc, argv, "h", longopts, NULL)) >= 0) {
		switch (c) {
		case 'f':
			o->file = optarg;
			break;
		case 's':
			o->scores = optarg;
			break;
		case 't':
			o->target = strtod(optarg, &end);
			if (end == optarg || *end || !(o->target > 0) || !isfinite(o->target)) {
				fprintf(stderr, "kvreplay thresholds: no target '%s'\n", optarg);
				return -EINVAL;
			}
			break;
		case 'j':
			o->json = true;
			break;
		case 'h':
			return 0;
		default:
			return -EINVAL;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "kvreplay thresholds: what is '%s'?\n", argv[optind]);
		return -EINVAL;
	}
	return o->file ? 1 : -EINVAL;
}

int cmd_thresholds(int argc, char **argv)
{
	struct options o = { .target = .95 };
	struct learner l = { .o = &o };
	int r = parse(argc, argv, &o);

	if (r <= 0) {
		usage(r ? stderr : stdout);
		return r ? 2 : 0;
	}
	l.store = kvp_threshold_store_new(RECORDS_MAX);
	l.stream = calloc(STREAMS_MAX, sizeof(*l.stream));
	r = l.store && l.stream ? load(o.file, l.store) : -ENOMEM;
	if (r == 0 && o.scores) {
		r = learn(&l);
		if (r == 0)
			r = keep(&l);
		if (r == 0)
			r = save(o.file, l.store);
	}
	if (r == 0 && o.json)
		print_json(l.store);
	else if (r == 0)
		print_table(l.store);
	kvp_threshold_store_free(l.store);
	free(l.stream);
	return r < 0;
}
