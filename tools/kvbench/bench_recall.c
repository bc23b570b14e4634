/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench quality --recall: whether a model still finds in its coded cache what it read. A passage of random
 * letters, some text, the passage's beginning again; what the model then says, by itself or with each
 * letter before told, is compared with the rest. Only models that recall natively can tell.
 */
#include "tools/kvbench/kbench.h"
#include "tools/kvbench/kvbench.h"
#include "tools/kvbench/quality_store.h"
#include "tools/kvrun/kvr_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PASSAGE      64u
#define TOLD         8u /* of the passage, before the model goes on */
#define ASKED        (PASSAGE - TOLD)
#define DISTANCE_MAX (QUALITY_WINDOW - 2 * PASSAGE)

struct recall {
	const struct kvp_kernels *k;
	const struct kvr_model *model;
	const uint8_t *text;
	size_t text_bytes;
	uint64_t seed; /* of rotations; passages are the same for all */
	uint32_t cases, distance;
};

/* Shares of the letters asked for that were right, over cases. */
struct share {
	double sum, square;
};

static void count(struct share *s, uint32_t right)
{
	const double v = (double)right / ASKED;

	s->sum += v;
	s->square += v * v;
}

static double mean_of(const struct share *s, uint32_t n)
{
	return s->sum / n;
}

/* Of the mean. */
static double error_of(const struct share *s, uint32_t n)
{
	const double mean = s->sum / n, variance = s->square / n - mean * mean;

	return n > 1 && variance > 0.0 ? sqrt(variance / (n - 1)) : 0.0;
}

static uint64_t next(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	return (z ^ z >> 31) * UINT64_C(0x94d049bb133111eb) >> 8;
}

/* Passage, text, passage. Case i is the same in every run. */
static void make_case(const struct recall *r, uint32_t i, uint32_t *tokens)
{
	uint64_t state = (uint64_t)i * 1000003 + 11;
	size_t at;

	for (uint32_t j = 0; j < PASSAGE; j++)
		tokens[j] = tokens[PASSAGE + r->distance + j] = 'a' + (uint32_t)(next(&state) % 26);
	at = next(&state) % (r->text_bytes - r->distance + 1);
	for (uint32_t j = 0; j < r->distance; j++)
		tokens[PASSAGE + j] = r->text[at + j];
}

static uint32_t most_likely(const float *v, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		best = v[i] > v[best] ? i : best;
	return best;
}

/* With every letter before told: logits at position p are about token p + 1. */
struct told {
	const uint32_t *tokens;
	uint32_t first, vocab, right;
};

static int judge(void *arg, uint32_t first, uint32_t n, const float *logits)
{
	struct told *t = arg;

	for (uint32_t i = 0; i < n; i++)
		if (first + i >= t->first)
			t->right += most_likely(logits + (size_t)i * t->vocab, t->vocab) ==
				    t->tokens[first + i + 1];
	return 0;
}

static int run_told(struct kvr_seq *seq, const uint32_t *tokens, uint32_t start, uint32_t vocab,
	uint32_t *ret_right)
{
	struct told t = { tokens, start - 1, vocab, 0 };
	int r = kvr_seq_score(seq, tokens, start + ASKED - 1, judge, &t);

	*ret_right = t.right;
	return r;
}

/* By itself: each letter that it says is the next that it reads. */
static int run_free(struct kvr_seq *seq, const uint32_t *tokens, uint32_t start, uint32_t vocab,
	uint32_t *ret_right)
{
	struct kvr_prefill prefill;
	const float *logits;
	int r = kvr_seq_prompt(seq, tokens, start, &prefill, &logits);

	*ret_right = 0;
	for (uint32_t i = 0; i < ASKED && !r; i++) {
		const uint32_t said = most_likely(logits, vocab);

		*ret_right += said == tokens[start + i];
		if (i + 1 < ASKED)
			r = kvr_seq_next(seq, said, &logits);
	}
	return r;
}

static int run_case(const struct recall *job, uint32_t i, struct store *store, struct share *shares)
{
	const uint32_t start = PASSAGE + job->distance + TOLD, vocab = job->model->config.vocab;
	const struct kvr_geom geom = kvr_model_geom(job->model, store->block, KVR_F32);
	const struct kvr_substitute sub = {
		.window = store->block, .read = store_read, .arg = store
	};
	uint32_t tokens[QUALITY_WINDOW], right;
	struct kvr_seq *seq = NULL;
	struct kvr_kv *kv = NULL;
	int r = kvr_kv_heap_new(&geom, &kv);

	make_case(job, i, tokens);
	if (!r)
		r = kvr_seq_new(job->model, kv, &sub, &seq);
	if (!r)
		r = store_queries(store, job->model, tokens, start);
	for (int free_running = 0; free_running < 2 && !r; free_running++) {
		r = (free_running ? run_free : run_told)(seq, tokens, start, vocab, &right);
		count(&shares[free_running], right);
		store_clear(store);
	}
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	return r;
}

static void report(const struct recall *job, const char *name, const char *calib,
	const struct share *shares, const struct store *store, int json, int first)
{
	const char *slash = calib ? strrchr(calib, '/') : NULL, *file = slash ? slash + 1 : calib;
	const double bits = store->values > 0.0 ? store->bits / store->values : 16.0;
	const double told = mean_of(&shares[0], job->cases), said = mean_of(&shares[1], job->cases);
	const double told_error = error_of(&shares[0], job->cases);
	const double said_error = error_of(&shares[1], job->cases);

	if (json)
		printf("%s\n{\"codec\":\"%s\",%s%s%s\"distance\":%u,\"cases\":%u,\"bits_per_"
		       "value\":%.4f,"
		       "\"forced\":%.4f,\"forced_error\":%.4f,\"free\":%.4f,\"free_error\":%.4f}",
			first ? "" : ",", name, file ? "\"calib\":\"" : "", file ? file : "",
			file ? "\"," : "", job->distance, job->cases, bits, told, told_error, said,
			said_error);
	else
		printf("%-18s %8u %6.3f %7.3f +- %.3f %7.3f +- %.3f %s\n", name, job->distance,
			bits, told, told_error, said, said_error, file ? file : "");
	fflush(stdout);
}

static int run_codec(
	const struct recall *job, const char *name, const char *calib, int json, int first)
{
	struct share shares[2] = { { 0 } };
	struct scheme scheme = { 0 };
	struct store store = { .k = job->k, .scheme = &scheme, .seed = job->seed };
	int r = scheme_open(name, calib, &scheme);

	if (r < 0)
		return r;
	r = store_init(&store, job->model);
	for (uint32_t i = 0; i < job->cases && !r; i++)
		r = run_case(job, i, &store, shares);
	store_done(&store);
	if (r < 0)
		scheme_complain(name, r);
	else
		report(job, name, calib, shares, &store, json, first);
	scheme_done(&scheme);
	return r;
}

static const uint32_t usual[] = { 300, 800 };

static int run_all(struct recall *job, const struct kbench_args *args)
{
	static const char *const codecs[] = { "native", "int8", "4bit", "3bit", "2bit", "tq2",
		"kivi2" };
	const size_t n = args->n_codecs ? args->n_codecs : sizeof codecs / sizeof *codecs;
	const size_t far = args->n_ctx ? args->n_ctx : sizeof usual / sizeof *usual;
	int first = 1, r = 0;

	if (args->json)
		printf("[");
	else
		printf("%-18s %8s %6s %16s %16s\n", "codec", "distance", "bits", "forced", "free");
	for (size_t i = 0; i < n * far && !r; i++) {
		const char *name = args->n_codecs ? args->codecs[i / far] : codecs[i / far];
		const size_t calibs = kbench_names_calibrated(name) ? args->n_calibs : 0;

		job->distance = args->n_ctx ? args->ctx[i % far] : usual[i % far];
		for (size_t j = 0; j < (calibs ? calibs : 1) && !r; j++, first = 0)
			r = run_codec(
				job, name, calibs ? args->calibs[j] : NULL, args->json, first);
	}
	if (args->json)
		printf("\n]\n");
	return r;
}

int kbench_recall(
	const struct kvp_kernels *k, const struct kvr_model *model, const struct kbench_args *args)
{
	struct recall job = {
		.k = k, .model = model, .seed = args->seed, .cases = (uint32_t)args->recall
	};
	struct kvr_error err = { 0 };
	char *text = NULL;
	size_t longest = args->n_ctx ? 0 : usual[1];
	int r;

	for (size_t i = 0; i < args->n_ctx; i++)
		longest = args->ctx[i] > longest ? args->ctx[i] : longest;
	if (longest > DISTANCE_MAX || model->config.vocab < 256 ||
		model->config.context < longest + 2 * PASSAGE) {
		fprintf(stderr,
			"kvbench quality: --recall wants distances up to %u, and a model that "
			"reads "
			"bytes, %u more of them than the distance\n",
			DISTANCE_MAX, 2 * PASSAGE);
		return -EINVAL;
	}
	r = kvr_file_load(args->texts[0], 1u << 30, &err, &text, &job.text_bytes);
	if (r < 0)
		fprintf(stderr, "kvbench quality: %s\n", err.text);
	if (!r && job.text_bytes < longest) {
		fprintf(stderr, "kvbench quality: %s: too short\n", args->texts[0]);
		r = -EINVAL;
	}
	job.text = (const uint8_t *)text;
	if (!r)
		r = run_all(&job, args);
	free(text);
	return r;
}
