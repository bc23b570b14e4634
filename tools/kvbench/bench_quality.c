/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench quality: what a codec does to a real model. Every key and value goes through the codec,
 * except that a query sees itself and the 63 tokens before it natively; next-token distributions
 * are compared with those of the native run.
 */
#include "kernels/kvp_calib.h"
#include "kernels/kvp_codec.h"
#include "tools/kvbench/kbench.h"
#include "tools/kvbench/kvbench.h"
#include "tools/kvrun/kvr_half.h"
#include "tools/kvrun/kvr_model.h"
#include "tools/kvrun/kvr_perplexity.h"
#include "tools/kvrun/kvr_seq.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEAR         64u  /* tokens that a query sees natively, itself included */
#define BLOCK_MAX    128u /* tokens, for groups that do not fit into NEAR */
#define WINDOW       1024u
#define WINDOWS      5u
#define SKIP         256u /* positions without enough of a coded past */
#define PASSAGE      400u
#define PASSAGES     10u
#define PASSAGE_STEP 2000u
#define WARM_AGE     512u /* tokens from which on the mix takes the archive's codec */

static const char *const default_codecs[] = { "native", "fp8", "fp8-e5m2", "int8", "k8v4", "kivi4",
	"kivi4-g64", "kivi4-g128", "kivi3", "kivi2", "kivi2-g64", "kivi2-g128", "asym4", "asym3",
	"asym2", "hadamard4", "hadamard2", "4bit", "3bit", "2bit", "4bit_nc", "k3v4_nc", "3bit_nc",
	"tq4", "tq3", "tq2", "tq4-plain", "tq3-plain", "tq2-plain", "tq4-nc", "tq3-nc", "tq2-nc",
	"tq4-h3", "tq2-h3", "tq4-sphere", "tq4/tq3", "tq3/tq2", "tq4-nc/tq3-nc", "tq3-nc/tq2-nc",
	"tqprod4", "tqprod3", "tqprod2", "hybrid", "hybrid-25", "hybrid-prod", "hybrid-25-prod",
	"hybrid-calibrated", "hybrid-25-calibrated", "smart", "smart-asym", "smart-sym", "mix" };

/* A codec per age: [0] for warm tokens, [1] for those of the archive; K and V. */
struct scheme {
	uint32_t codec[2][2];
	int mixed;
	struct kvp_calib_set *calib; /* for pca; NULL: none */
};

/* Tiles that are decoded already, by age class, layer, K or V, head, block. */
struct store {
	const struct kvp_kernels *k;
	const struct scheme *scheme;
	uint64_t seed;  /* of rotations */
	uint32_t block; /* tokens */
	uint32_t layers, heads, blocks;
	float **tile; /* NULL: not decoded yet */
	double bits, values;
};

static size_t tiles_of(const struct store *s)
{
	return (size_t)2 * s->layers * 2 * s->heads * s->blocks;
}

static void store_clear(struct store *s)
{
	for (size_t i = 0; i < tiles_of(s); i++) {
		free(s->tile[i]);
		s->tile[i] = NULL;
	}
}

/*
 * smart: a quarter of the block's tokens, the loudest, get 4 bits and the quietest quarter 2 (keys
 * 3). Their importance is not known yet, so the cost of an error decides.
 */
static void choose_widths(const struct kvr_plane *from, uint8_t *widths)
{
	double energy[BLOCK_MAX];

	for (uint32_t t = 0; t < from->tokens; t++) {
		const float *row = (const float *)(const void *)((const uint8_t *)from->native +
								 t * from->stride);

		energy[t] = 0.0;
		for (uint32_t c = 0; c < from->head_dim; c++)
			energy[t] += (double)row[c] * (double)row[c];
	}
	for (uint32_t t = 0; t < from->tokens; t++) {
		uint32_t louder = 0, quarter = from->tokens / 4;

		for (uint32_t u = 0; u < from->tokens; u++)
			louder += energy[u] > energy[t] || (energy[u] == energy[t] && u < t);
		widths[t] = louder < quarter ? 4 : louder < 3 * quarter || !from->value ? 3 : 2;
	}
}

static int code_plane(struct store *s, uint32_t codec, const struct kvr_plane *from, float *to)
{
	struct kvp_plane p = { from->tokens, 1, from->head_dim, KVP_DTYPE_F32,
		from->value ? KVP_PLANE_V : KVP_PLANE_K };
	ptrdiff_t row = (ptrdiff_t)(from->head_dim * sizeof(float));
	struct kvp_raw_const src = { from->native, row * from->tokens, (ptrdiff_t)from->stride };
	uint8_t widths[BLOCK_MAX];
	struct kvp_encode_opts o = { .size = sizeof o, .seed = s->seed, .widths = widths };
	int smart = KVP_CODEC_FAMILY(codec) == KVP_FAMILY_SMART;
	struct kvp_plane half = p;
	size_t bytes, wire;
	void *payload;
	int r = kvp_plane_bytes(codec, &p, &bytes);

	if (smart)
		choose_widths(from, widths);

	if (r < 0)
		return r;
	payload = kbench_alloc(bytes);
	r = kvp_plane_encode(s->k, codec, &p, &o, src, payload, bytes);
	if (!r)
		r = kvp_plane_decode(s->k, codec, &p, NULL, payload, bytes,
			(struct kvp_raw){ to, row * from->tokens, row });
	free(payload);
	/* Bits as they would be for fp16 keys and values. */
	half.dtype = KVP_DTYPE_F16;
	if (!r && (smart ? kvp_smart_bytes(codec, &half, widths, &wire)
			 : kvp_plane_bytes(codec, &half, &wire)) == 0) {
		s->bits += 8.0 * (double)(wire - (codec ? KVP_PLANE_HDR_BYTES : 0));
		s->values += (double)from->tokens * from->head_dim;
	}
	return r;
}

/* Where in store.tile K or V of a block is, in one class of age. */
static float **tile_at(struct store *s, uint32_t old, const struct kvr_plane *plane, uint32_t head)
{
	size_t at = (((size_t)old * s->layers + plane->layer) * 2 + plane->value) * s->heads + head;

	return &s->tile[at * s->blocks + plane->block];
}

/* pca takes all heads of a layer together, and leaves a tile for each. */
static int code_heads(struct store *s, uint32_t old, const struct kvr_plane *from)
{
	const struct kvp_plane p = { from->tokens, s->heads, from->head_dim, KVP_DTYPE_F16,
		from->value ? KVP_PLANE_V : KVP_PLANE_K };
	const size_t n = (size_t)p.tokens * p.heads * p.dim, rows = (size_t)p.tokens * p.heads;
	const uint8_t *first =
		(const uint8_t *)from->native - (size_t)from->kv_head * p.dim * sizeof(float);
	const struct kvp_encode_opts o = { .size = sizeof o,
		.calib = s->scheme->calib
				 ? kvp_calib_set_find(s->scheme->calib, from->layer, p.kind)
				 : NULL,
		.position = from->block * s->block };
	/* Elements are those of an fp16 cache: what is stored then takes what it would take. */
	const ptrdiff_t row = 2 * (ptrdiff_t)p.dim;
	uint8_t *raw = kbench_alloc(2 * n), *payload;
	struct kvp_plane_hdr hdr;
	size_t bytes;
	int r = kvp_plane_bytes(KVP_CODEC_PCA, &p, &bytes);

	payload = kbench_alloc(bytes);
	for (size_t i = 0; i < rows; i++)
		kvr_narrow(KVR_F16,
			(const float *)(const void *)(first + i % p.tokens * from->stride) +
				i / p.tokens * p.dim,
			p.dim, raw + i * (size_t)row);
	if (!r)
		r = kvp_plane_encode(s->k, KVP_CODEC_PCA, &p, &o,
			(struct kvp_raw_const){ raw, row * p.tokens, row }, payload, bytes);
	if (!r)
		r = kvp_plane_decode(s->k, KVP_CODEC_PCA, &p, o.calib, payload, bytes,
			(struct kvp_raw){ raw, row * p.tokens, row });
	for (uint32_t h = 0; h < p.heads && !r; h++) {
		float **tile = tile_at(s, old, from, h);

		free(*tile);
		*tile = kbench_alloc((size_t)p.tokens * p.dim * sizeof **tile);
		kvr_widen(
			KVR_F16, raw + h * (size_t)row * p.tokens, (size_t)p.tokens * p.dim, *tile);
	}
	if (!r) {
		memcpy(&hdr, payload, sizeof hdr);
		s->bits += 8.0 * (double)(hdr.bytes - KVP_PLANE_HDR_BYTES);
		s->values += (double)n;
	}
	free(raw);
	free(payload);
	return r;
}

static int substitute_read(void *arg, const struct kvr_plane *plane, float *dst)
{
	struct store *s = arg;
	uint32_t age = plane->query - plane->block * s->block;
	uint32_t old = s->scheme->mixed && age >= WARM_AGE;
	uint32_t codec = s->scheme->codec[old][plane->value];
	size_t n = (size_t)plane->tokens * plane->head_dim;
	float **tile = tile_at(s, old, plane, plane->kv_head);

	if (plane->tokens != s->block || plane->dtype != KVR_F32)
		return -EINVAL;
	if (!*tile && codec == KVP_CODEC_PCA) {
		int r = code_heads(s, old, plane);

		if (r < 0)
			return r;
	}
	if (!*tile) {
		int r;

		*tile = kbench_alloc(n * sizeof **tile);
		r = code_plane(s, codec, plane, *tile);
		if (r < 0)
			return r;
	}
	memcpy(dst, *tile, n * sizeof *dst);
	return 0;
}

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
	uint32_t block = store ? store->block : NEAR;
	struct kvr_geom geom = kvr_model_geom(job->model, block, KVR_F32);
	/* a block is coded once it is complete, hence a window as long as a block */
	struct kvr_substitute sub = { .window = block, .read = substitute_read, .arg = store };
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

static int scheme_parse(const char *name, struct scheme *ret)
{
	struct scheme s = { 0 };
	int r;

	if (strcmp(name, "mix") == 0) {
		s.mixed = 1;
		r = kvp_codec_parse_pair("4bit", &s.codec[0][0], &s.codec[0][1]);
		if (!r)
			r = kvp_codec_parse_pair("2bit", &s.codec[1][0], &s.codec[1][1]);
		if (!r)
			*ret = s;
		return r;
	}
	r = kvp_codec_parse_pair(name, &s.codec[0][0], &s.codec[0][1]);
	if (!r)
		*ret = s;
	return r;
}

/* The smallest block from NEAR on that the scheme's codecs take; NEAR if there is none. */
static uint32_t block_of(const struct scheme *s, uint32_t dim)
{
	for (uint32_t block = NEAR; block <= BLOCK_MAX; block *= 2) {
		int takes = 1;

		for (uint32_t i = 0; i < 4; i++) {
			const struct kvp_plane p = { block, 1, dim, KVP_DTYPE_F32,
				i & 1 ? KVP_PLANE_V : KVP_PLANE_K };
			size_t bytes;

			takes &= kvp_plane_bytes(s->codec[i >> 1][i & 1], &p, &bytes) == 0;
		}
		if (takes)
			return block;
	}
	return NEAR;
}

static void report(const char *name, const char *calib, const struct score *s,
	const struct store *store, int json, int first)
{
	const char *slash = calib ? strrchr(calib, '/') : NULL, *file = slash ? slash + 1 : calib;
	double native = exp(s->nll_native / s->count), ppl = exp(s->nll / s->count);
	double delta = 100.0 * (ppl / native - 1.0);
	double bits = store->values > 0.0 ? store->bits / store->values : 16.0;
	double kl = fmax(s->kl / s->count, 0.0); /* of equal distributions, it may come out below */

	if (json)
		printf("%s\n{\"codec\":\"%s\",%s%s%s\"ppl_native\":%.5f,\"ppl\":%.5f,\"delta_pct\":"
		       "%.4f,"
		       "\"kl_nats\":%.6f,\"top1_agreement\":%.5f,\"bits_per_value\":%.4f}",
			first ? "" : ",", name, file ? "\"calib\":\"" : "", file ? file : "",
			file ? "\"," : "", native, ppl, delta, kl, s->top1 / s->count, bits);
	else
		printf("%-14s %6.3f %9.5f %+8.3f %9.6f %8.5f %s\n", name, bits, ppl, delta, kl,
			s->top1 / s->count, file ? file : "");
	fflush(stdout);
}

static int run_codec(
	struct quality_job *job, const char *name, const char *calib, int json, int first)
{
	const struct kvr_config *c = &job->model->config;
	struct score score = { .vocab = c->vocab };
	struct scheme scheme;
	struct store store = { .k = job->k,
		.scheme = &scheme,
		.layers = c->layers,
		.heads = c->kv_heads,
		.seed = job->seed };
	int r = scheme_parse(name, &scheme);

	if (r < 0) {
		fprintf(stderr, "kvbench quality: no codec is called %s\n", name);
		return r;
	}
	r = calib ? kbench_calib_open(calib, &scheme.calib) : 0;
	if (r < 0)
		return r;
	store.block = block_of(&scheme, c->head_dim);
	store.blocks = WINDOW / store.block + 1;
	store.tile = calloc(tiles_of(&store), sizeof *store.tile);
	if (!store.tile)
		return -ENOMEM;
	for (size_t i = 0; i < job->n && !r; i++) {
		r = run_stretch(job, i, &store, &score);
		store_clear(&store);
	}
	free(store.tile);
	if (r == -ENOENT)
		fprintf(stderr, "kvbench quality: %s: no calibration of this model: --calib\n",
			name);
	else if (r < 0)
		fprintf(stderr, "kvbench quality: %s: %s\n", name, strerror(-r));
	else
		report(name, calib, &score, &store, json, first);
	kvp_calib_set_free(scheme.calib);
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
		const size_t times = strstr(name, "pca") && args->n_calibs ? args->n_calibs : 1;

		for (size_t j = 0; j < times && !r; j++, first = 0)
			r = run_codec(job, name,
				strstr(name, "pca") && args->n_calibs ? args->calibs[j] : NULL,
				args->json, first);
	}
	if (args->json)
		printf("%s\n", list ? "\n]" : "");
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
			KBENCH_CALIB,
		&args);

	if (r)
		return r < 0 ? 2 : 0;
	if (!args.model || !args.n_texts) {
		fprintf(stderr, "kvbench quality: needs --model DIR and --text FILE\n");
		return 2;
	}
	r = kvr_model_open(args.model, &err, &job.model);
	if (r < 0) {
		fprintf(stderr, "kvbench quality: %s\n", err.text);
		return 1;
	}
	job.stretch = kbench_alloc(args.n_texts * PASSAGES * sizeof *job.stretch);
	job.log_prob = calloc(args.n_texts * PASSAGES, sizeof *job.log_prob);
	for (size_t i = 0; i < args.n_texts && !r; i++) {
		size_t n = 0;

		r = load_text(args.texts[i], args.repeat, job.stretch + job.n, &n);
		job.n += n;
	}
	if (!r)
		r = kvp_kernels_new(args.cpu_mask, &k);
	job.k = k;
	job.seed = args.seed;
	if (!r)
		r = run_all(&job, &args);
	for (size_t i = 0; i < job.n && job.log_prob; i++)
		free(job.log_prob[i]);
	free(job.log_prob);
	free(job.stretch);
	kvp_kernels_free(k);
	kvr_model_free(job.model);
	return r < 0 ? 1 : 0;
}
