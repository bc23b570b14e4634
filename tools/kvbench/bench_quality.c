/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench quality: what a codec does to a real model. Every key and value goes through the codec,
 * except that a query sees itself and the 63 tokens before it natively; next-token distributions
 * are compared with those of the native run.
 */
#include "tools/kvbench/kbench.h"
#include "tools/kvbench/kvbench.h"
#include "tools/kvbench/quality_store.h"
#include "tools/kvrun/kvr_model.h"
#include "tools/kvrun/kvr_perplexity.h"
#include "tools/kvrun/kvr_seq.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW       1024u
#define WINDOWS      5u
#define SKIP         256u /* positions without enough of a coded past */
#define PASSAGE      400u
#define PASSAGES     10u
#define PASSAGE_STEP 2000u

static const char *const default_codecs[] = { "native", "fp8", "fp8-e5m2", "int8", "k8v4", "kivi4",
	"kivi4-g64", "kivi4-g128", "kivi3", "kivi2", "kivi2-g64", "kivi2-g128", "asym4", "asym3",
	"asym2", "hadamard4", "hadamard2", "4bit", "3bit", "2bit", "4bit_nc", "k3v4_nc", "3bit_nc",
	"tq4", "tq3", "tq2", "tq4-plain", "tq3-plain", "tq2-plain", "tq4-nc", "tq3-nc", "tq2-nc",
	"tq4-h3", "tq2-h3", "tq4-sphere", "tq4/tq3", "tq3/tq2", "tq4-nc/tq3-nc", "tq3-nc/tq2-nc",
	"tqprod4", "tqprod3", "tqprod2", "hybrid", "hybrid-25", "hybrid-prod", "hybrid-25-prod",
	"hybrid-calibrated", "hybrid-25-calibrated", "smart", "smart-asym", "smart-sym", "smart-4",
	"smart-3", "smart-25", "mix" };

/* One stretch of text and the positions that count. */
struct stretch {
	uint32_t tokens[WINDOW + 1];
	uint32_t n; /* run; tokens[n] is the last target */
	uint32_t first;
};

struct score {
	const struct stretch *stretch;
	uint32_t vocab;
	float *log_prob; /* [n][vocab] of the native run */
	int native;      /* fill log_prob, do not compare */
	double nll_native, nll, kl, top1, count;
};

static uint32_t argmax(const float *v, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		best = v[i] > v[best] ? i : best;
	return best;
}

static int score_chunk(void *arg, uint32_t first, uint32_t n, const float *logits)
{
	struct score *s = arg;
	float *row = malloc(s->vocab * sizeof *row);

	if (!row)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t pos = first + i, target = s->stretch->tokens[pos + 1];
		float *ref = s->log_prob + (size_t)pos * s->vocab;
		const float *l = logits + (size_t)i * s->vocab;
		double max = (double)l[argmax(l, s->vocab)], sum = 0.0, kl = 0.0;

		for (uint32_t v = 0; v < s->vocab; v++)
			sum += exp((double)l[v] - max);
		for (uint32_t v = 0; v < s->vocab; v++)
			row[v] = (float)((double)l[v] - max - log(sum));
		if (s->native) {
			memcpy(ref, row, s->vocab * sizeof *row);
			continue;
		}
		if (pos < s->stretch->first)
			continue;
		for (uint32_t v = 0; v < s->vocab; v++)
			kl += exp((double)ref[v]) * ((double)ref[v] - (double)row[v]);
		s->kl += kl;
		s->nll_native -= (double)ref[target];
		s->nll -= (double)row[target];
		s->top1 += argmax(ref, s->vocab) == argmax(row, s->vocab);
		s->count += 1.0;
	}
	free(row);
	return 0;
}

struct quality_job {
	const struct kvp_kernels *k;
	struct kvr_model *model;
	uint64_t seed;
	struct stretch *stretch;
	float **log_prob; /* of the native run, per stretch */
	size_t n;
};

static int run_stretch(struct quality_job *job, size_t i, struct store *store, struct score *score)
{
	uint32_t block = store ? store->block : QUALITY_NEAR;
	struct kvr_geom geom = kvr_model_geom(job->model, block, KVR_F32);
	/* a block is coded once it is complete, hence a window as long as a block */
	struct kvr_substitute sub = { .window = block, .read = store_read, .arg = store };
	struct kvr_kv *kv = NULL;
	struct kvr_seq *seq = NULL;
	int r = kvr_kv_heap_new(&geom, &kv);

	if (!r)
		r = kvr_seq_new(job->model, kv, score->native ? NULL : &sub, &seq);
	score->stretch = &job->stretch[i];
	score->log_prob = job->log_prob[i];
	if (!r)
		r = kvr_seq_score(
			seq, job->stretch[i].tokens, job->stretch[i].n, score_chunk, score);
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	return r;
}

static int run_native(struct quality_job *job)
{
	struct score score = { .vocab = job->model->config.vocab, .native = 1 };
	int r = 0;

	for (size_t i = 0; i < job->n && !r; i++) {
		job->log_prob[i] =
			kbench_alloc((size_t)job->stretch[i].n * score.vocab * sizeof(float));
		r = run_stretch(job, i, NULL, &score);
	}
	return r;
}

static void report(const char *name, const char *calib, const struct score *s,
	const struct store *store, int json, int first)
{
	const char *slash = calib ? strrchr(calib, '/') : NULL, *file = slash ? slash + 1 : calib;
	double native = exp(s->nll_native / s->count), ppl = exp(s->nll / s->count);
	double delta = 100.0 * (ppl / native - 1.0);
	double bits = store->values > 0.0 ? store->bits / store->values : 16.0;
	char energy[64] = "";
	double kl = fmax(s->kl / s->count, 0.0); /* of equal distributions, it may come out below */

	if (json && store->energies > 0.0)
		snprintf(energy, sizeof energy, ",\"energy\":%.4f,\"energy_min\":%.4f",
			store->energy / store->energies, store->energy_min);
	else if (store->energies > 0.0)
		snprintf(energy, sizeof energy, "keeps %.3f of keys' energy, %.3f at least",
			store->energy / store->energies, store->energy_min);
	if (json)
		printf("%s\n{\"codec\":\"%s\",%s%s%s\"ppl_native\":%.5f,\"ppl\":%.5f,\"delta_pct\":"
		       "%.4f,"
		       "\"kl_nats\":%.6f,\"top1_agreement\":%.5f,\"bits_per_value\":%.4f%s}",
			first ? "" : ",", name, file ? "\"calib\":\"" : "", file ? file : "",
			file ? "\"," : "", native, ppl, delta, kl, s->top1 / s->count, bits,
			energy);
	else
		printf("%-14s %6.3f %9.5f %+8.3f %9.6f %8.5f %s%s\n", name, bits, ppl, delta, kl,
			s->top1 / s->count, file ? file : "", energy);
	fflush(stdout);
}

static int run_codec(
	struct quality_job *job, const char *name, const char *calib, int json, int first)
{
	struct score score = { .vocab = job->model->config.vocab };
	struct scheme scheme = { 0 };
	struct store store = { .k = job->k, .scheme = &scheme, .seed = job->seed };
	int r = scheme_open(name, calib, &scheme);

	if (r < 0)
		return r;
	r = store_init(&store, job->model);
	for (size_t i = 0; i < job->n && !r; i++) {
		r = store_queries(
			&store, job->model, job->stretch[i].tokens, job->stretch[i].first);
		if (!r)
			r = run_stretch(job, i, &store, &score);
		store_clear(&store);
	}
	store_done(&store);
	if (r < 0)
		scheme_complain(name, r);
	else
		report(name, calib, &score, &store, json, first);
	scheme_done(&scheme);
	return r;
}

/* The stretches of one text: consecutive windows, or passages followed by themselves. */
static int load_text(const char *path, int repeat, struct stretch *out, size_t *ret_n)
{
	size_t want = repeat ? PASSAGE_STEP * (PASSAGES - 1) + PASSAGE : WINDOW * WINDOWS + 1;
	uint8_t *text = kbench_alloc(want);
	FILE *f = fopen(path, "rb");
	size_t got = f ? fread(text, 1, want, f) : 0;
	int error = f && !ferror(f) ? 0 : errno;

	if (f)
		fclose(f);
	if (got < want) {
		fprintf(stderr, "kvbench quality: %s: %s\n", path,
			error ? strerror(error) : "too short");
		free(text);
		return -EINVAL;
	}
	for (size_t i = 0; i < (repeat ? PASSAGES : WINDOWS); i++) {
		const uint8_t *from = text + i * (repeat ? PASSAGE_STEP : WINDOW);
		struct stretch *s = &out[i];

		if (repeat) {
			for (uint32_t j = 0; j < PASSAGE; j++)
				s->tokens[j] = s->tokens[PASSAGE + 2 + j] = from[j];
			s->tokens[PASSAGE] = s->tokens[PASSAGE + 1] = '\n';
			s->n = 2 * PASSAGE + 1;
			s->first = PASSAGE + 2 + 15; /* it predicts the repetition's 17th byte */
		} else {
			for (uint32_t j = 0; j <= WINDOW; j++)
				s->tokens[j] = from[j];
			s->n = WINDOW;
			s->first = SKIP;
		}
	}
	free(text);
	*ret_n = repeat ? PASSAGES : WINDOWS;
	return 0;
}

static int run_all(struct quality_job *job, const struct kbench_args *args)
{
	size_t n = args->n_codecs ? args->n_codecs : sizeof default_codecs / sizeof *default_codecs;
	int list = args->json && (n > 1 || args->n_calibs > 1), first = 1;
	int r = run_native(job);

	if (list)
		printf("[");
	else if (!args->json)
		printf("%-14s %6s %9s %8s %9s %8s\n", "codec", "bits", "ppl", "delta %", "kl nats",
			"top-1");
	for (size_t i = 0; i < n && !r; i++) {
		const char *name = args->n_codecs ? args->codecs[i] : default_codecs[i];
		const size_t calibs = kbench_names_calibrated(name) ? args->n_calibs : 0;

		for (size_t j = 0; j < (calibs ? calibs : 1) && !r; j++, first = 0)
			r = run_codec(
				job, name, calibs ? args->calibs[j] : NULL, args->json, first);
	}
	if (args->json)
		printf("%s\n", list ? "\n]" : "");
	return r;
}

static int run_texts(struct quality_job *job, const struct kbench_args *args)
{
	int r = 0;

	job->stretch = kbench_alloc(args->n_texts * PASSAGES * sizeof *job->stretch);
	job->log_prob = calloc(args->n_texts * PASSAGES, sizeof *job->log_prob);
	if (!job->log_prob)
		r = -ENOMEM;
	for (size_t i = 0; i < args->n_texts && !r; i++) {
		size_t n = 0;

		r = load_text(args->texts[i], args->repeat, job->stretch + job->n, &n);
		job->n += n;
	}
	if (!r)
		r = run_all(job, args);
	for (size_t i = 0; i < job->n && job->log_prob; i++)
		free(job->log_prob[i]);
	free(job->log_prob);
	free(job->stretch);
	return r;
}

int kvbench_quality(int argc, char **argv)
{
	struct kbench_args args = { 0 };
	struct kvr_error err = { 0 };
	struct quality_job job = { 0 };
	struct kvp_kernels *k = NULL;
	int r = kbench_parse(argc, argv,
		"A real model with its cache held in a codec, against the same model natively.\n"
		"Needs --model and --text.",
		KBENCH_MODEL | KBENCH_TEXT | KBENCH_CODEC | KBENCH_REPEAT | KBENCH_SEED |
			KBENCH_CALIB | KBENCH_RECALL | KBENCH_CTX,
		&args);

	if (r)
		return r < 0 ? 2 : 0;
	if (!args.model || !args.n_texts) {
		fprintf(stderr, "kvbench quality: needs --model DIR and --text FILE\n");
		return 2;
	}
	if (!args.recall ? args.n_ctx > 0 : args.repeat || args.n_texts > 1) {
		fprintf(stderr,
			"kvbench quality: --ctx goes with --recall, --repeat without it, and it "
			"takes one --text\n");
		return 2;
	}
	r = kvr_model_open(args.model, &err, &job.model);
	if (r < 0) {
		fprintf(stderr, "kvbench quality: %s\n", err.text);
		return 1;
	}
	r = kvp_kernels_new(args.cpu_mask, &k);
	job.k = k;
	job.seed = args.seed;
	if (!r)
		r = args.recall ? kbench_recall(k, job.model, &args) : run_texts(&job, &args);
	kvp_kernels_free(k);
	kvr_model_free(job.model);
	return r < 0 ? 1 : 0;
}
