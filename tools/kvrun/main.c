/* SPDX-License-Identifier: Apache-2.0 */
/* kvrun: runs prompts through a model with its KV cache in kvpool, and reports the savings. */
#include "tools/kvrun/kvr_file.h"
#include "tools/kvrun/kvr_kv_coded.h"
#include "tools/kvrun/kvr_kv_cuda.h"
#include "tools/kvrun/kvr_kv_pool.h"
#include "tools/kvrun/kvr_model.h"
#include "tools/kvrun/kvr_perplexity.h"
#include "tools/kvrun/kvr_sample.h"
#include "tools/kvrun/kvr_seq.h"
#include "tools/kvrun/kvr_serve.h"
#include "tools/kvrun/kvr_tokenizer.h"
#include "tools/kvrun/options.h"
#include "tools/kvrun/output.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define EXIT_FAILED 1
#define EXIT_INPUT  3

struct engine {
	const struct options *opt;
	struct kvr_model *model;
	struct kvr_tokenizer *tokenizer;
	struct kvr_kv *kv;
	struct kvr_kv *pool;                      /* of `kv` or the same; NULL: not used */
	struct kvr_kv *coded;                     /* the same as `kv`; NULL: blocks are native */
	struct kvr_kv *cuda;                      /* the same as `kv`; NULL: not on a GPU */
	char codec[2 * KVP_CODEC_NAME_MAX + 1];   /* canonical names of keys' and values' */
	char adapter[2 * KVP_CODEC_NAME_MAX + 8]; /* that, and whether by tiles */
	struct kvr_seq *seq;
	XXH3_state_t *digest;
	FILE *logits; /* NULL: nobody asked */
};

static int say(int exit_status, const char *what)
{
	fprintf(stderr, "kvrun: %s\n", what);
	return exit_status;
}

static int failed(const struct engine *e, int r)
{
	if (e->cuda && kvr_kv_cuda_why(e->cuda)[0])
		return say(EXIT_FAILED, kvr_kv_cuda_why(e->cuda));
	if (r == -EIO && e->logits && ferror(e->logits))
		return say(EXIT_FAILED, "the file of --logits cannot be written");
	return say(EXIT_FAILED, r == -EIO ? "standard output cannot be written" : strerror(-r));
}

static double now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

/* In the model's directory: tok<VOCAB>.bin, else tokenizer.bin. NULL: neither. free() it. */
static char *find_tokenizer(const char *model, uint32_t vocab)
{
	const char *slash = strrchr(model, '/');
	struct stat st;
	int is_dir = stat(model, &st) == 0 && S_ISDIR(st.st_mode);
	int prefix = is_dir ? (int)strlen(model) : slash ? (int)(slash - model) : 1;
	const char *dir = is_dir || slash ? model : ".";
	char *path;

	for (int i = 0; i < 2; i++) {
		int n = i == 0 ? asprintf(&path, "%.*s/tok%u.bin", prefix, dir, vocab)
			       : asprintf(&path, "%.*s/tokenizer.bin", prefix, dir);

		if (n < 0)
			return NULL;
		if (access(path, R_OK) == 0)
			return path;
		free(path);
	}
	return NULL;
}

static int open_tokenizer(struct engine *e)
{
	struct kvr_error err;
	char *found = NULL;
	int r;

	if (!e->opt->tokenizer)
		found = find_tokenizer(e->opt->model, e->model->config.vocab);
	r = kvr_tokenizer_open(e->opt->tokenizer ? e->opt->tokenizer : found,
		e->model->config.vocab, &err, &e->tokenizer);
	free(found);
	return r < 0 ? say(EXIT_INPUT, err.text) : 0;
}

static int open_native(struct engine *e, const struct kvr_geom *geom)
{
	const struct options *o = e->opt;
	struct kvr_pool_opts pool = { o->socket, o->store, o->reuse_tail,
		o->codec ? e->adapter : NULL, o->device, o->want_ms, { o->floor[0], o->floor[1] },
		o->report_every };
	int r;

	/* the model's own scores are wanted, so nothing is read from a cache */
	if (o->off || o->perplexity)
		return kvr_kv_heap_new(geom, &e->kv);
	r = kvr_kv_pool_new(e->model, geom, &pool, &e->kv);
	if (r == 0)
		e->pool = e->kv;
	return r;
}

/* -ENODEV: there is no GPU to be used, and none has to be. */
static int open_cuda(struct engine *e, const struct kvr_geom *geom)
{
	const struct options *o = e->opt;
	struct kvr_cuda_opts cuda = { o->ordinal, o->off || o->perplexity, o->socket, o->store,
		o->reuse_tail };
	struct kvr_error err;
	int r = kvr_kv_cuda_new(e->model, geom, &cuda, &err, &e->kv);

	if (o->cuda_or_cpu && (r == -ENODEV || r == -ENOTSUP)) {
		fprintf(stderr, "kvrun: computed on the CPU: %s\n", err.text);
		return -ENODEV;
	}
	if (r < 0)
		return say(EXIT_FAILED, err.text);
	e->cuda = e->kv;
	return 0;
}

static void name_codecs(struct engine *e)
{
	size_t n;

	kvp_codec_name(e->opt->coded.codec[0], e->codec);
	n = strlen(e->codec);
	e->codec[n] = '/';
	kvp_codec_name(e->opt->coded.codec[1], e->codec + n + 1);
	/* Tiles are less exact, so what they make of later tokens is not for those without them. */
	snprintf(e->adapter, sizeof e->adapter, "%s%s", e->codec,
		e->opt->coded.tiles ? "+tiles" : "");
}

static int open_store(struct engine *e)
{
	const struct options *o = e->opt;
	struct kvr_geom geom = kvr_model_geom(
		e->model, o->block_tokens, o->dtype_given ? o->dtype : e->model->config.dtype);
	struct kvr_error err;
	int r = 0;

	if (o->cuda) {
		r = open_cuda(e, &geom);
		if (r != -ENODEV)
			return r;
	}
	if (o->codec)
		name_codecs(e);
	if (!o->codec || o->coded.mode == KVR_SHADOW)
		r = open_native(e, &geom);
	if (r < 0)
		return say(EXIT_FAILED, "no memory for the KV cache");
	if (!o->codec)
		return 0;
	r = kvr_kv_coded_new(&e->model->config, &geom, &o->coded, e->kv, &err, &e->coded);
	if (r < 0)
		return say(r == -ENOMEM ? EXIT_FAILED : EXIT_INPUT, err.text);
	e->kv = e->coded;
	return 0;
}

static int engine_open(const struct options *opt, struct engine *e)
{
	struct kvr_error err;
	int r;

	*e = (struct engine){ .opt = opt };
	if (opt->logits) {
		e->logits = fopen(opt->logits, "wb");
		if (!e->logits) {
			fprintf(stderr, "kvrun: %s: %s\n", opt->logits, strerror(errno));
			return EXIT_FAILED;
		}
	}
	if (kvr_model_open(opt->model, &err, &e->model) < 0)
		return say(EXIT_INPUT, err.text);
	r = open_tokenizer(e);
	if (r)
		return r;
	e->digest = XXH3_createState();
	r = open_store(e);
	if (r == 0 && (!e->digest || kvr_seq_new(e->model, e->kv, NULL, &e->seq) < 0))
		return say(EXIT_FAILED, "no memory for the model's workspace");
	return r;
}

static void engine_close(struct engine *e)
{
	if (e->logits)
		fclose(e->logits); /* all of it was flushed with the last result */
	kvr_seq_free(e->seq);
	kvr_kv_free(e->kv);
	XXH3_freeState(e->digest);
	kvr_tokenizer_free(e->tokenizer);
	kvr_model_free(e->model);
}

static int is_eos(const struct kvr_config *c, uint32_t token)
{
	for (uint32_t i = 0; i < c->n_eos; i++)
		if (c->eos[i] == token)
			return 1;
	return 0;
}

static int choose(struct engine *e, struct kvr_sampler *s, const float *logits, uint32_t *ret_token)
{
	uint32_t n = e->model->config.vocab;

	XXH3_128bits_update(e->digest, logits, n * sizeof(*logits));
	if (e->logits && fwrite(logits, sizeof(*logits), n, e->logits) != n)
		return -EIO;
	*ret_token = kvr_sample(s, logits);
	return 0;
}

static int emit(struct engine *e, struct result *res, uint32_t prev, uint32_t token)
{
	size_t bytes;
	const char *piece = kvr_decode(e->tokenizer, prev, token, &bytes);
	char *text = realloc(res->text, res->text_bytes + bytes + 1);

	if (!text)
		return -ENOMEM;
	res->text = text;
	memcpy(text + res->text_bytes, piece, bytes);
	res->text_bytes += bytes;
	res->tokens[res->n_tokens++] = token;
	if (e->opt->json)
		return 0;
	return fwrite(piece, 1, bytes, stdout) == bytes && fflush(stdout) == 0 ? 0 : -EIO;
}

/* From the prompt's logits on. */
static int generate(
	struct engine *e, const float *logits, uint32_t last, double started, struct result *res)
{
	const struct options *o = e->opt;
	struct kvr_sampler sampler;
	double first = 0;
	int r = kvr_sampler_init(
		&sampler, e->model->config.vocab, o->temperature, o->top_p, o->seed);

	if (r < 0)
		return r;
	res->stop = "steps";
	for (uint32_t i = 0; r == 0 && i < o->steps; i++) {
		uint32_t token;

		r = choose(e, &sampler, logits, &token);
		if (r < 0)
			break;
		if (i == 0) {
			first = now_ms();
			res->ttft_ms = first - started;
		}
		if (is_eos(&e->model->config, token)) {
			res->stop = "eos";
			break;
		}
		r = emit(e, res, last, token);
		last = token;
		if (r == 0 && i + 1 < o->steps)
			r = kvr_seq_next(e->seq, token, &logits);
		if (r == -E2BIG) {
			res->stop = "context";
			r = 0;
			break;
		}
	}
	if (o->steps)
		res->decode_ms = now_ms() - first;
	else
		res->ttft_ms = now_ms() - started;
	kvr_sampler_done(&sampler);
	return r;
}

static int report(struct engine *e, struct result *res)
{
	XXH128_hash_t h = XXH3_128bits_digest(e->digest);

	res->digest_lo = h.low64;
	res->digest_hi = h.high64;
	res->off = e->opt->off;
	if (e->pool)
		kvr_kv_pool_report(e->pool, &res->pool);
	if (e->cuda)
		kvr_kv_cuda_report(e->cuda, &res->pool);
	if (e->coded) {
		res->codec = e->codec;
		res->mode = e->opt->coded.mode;
		kvr_kv_coded_report(e->coded, &res->coded);
	}
	if (e->logits && fflush(e->logits) != 0)
		return -EIO;
	if (!res->off && !res->pool.attached)
		fprintf(stderr, "kvrun: running without kvpool: %s\n", res->pool.why);
	if (res->pool.no_device && e->opt->device == KVR_FIRST_DEVICE)
		fprintf(stderr, "kvrun: --device host: the daemon has no device that is up; cached "
				"blocks are read in DRAM\n");
	else if (res->pool.no_device)
		fprintf(stderr,
			"kvrun: --device %u: the daemon has no such device that is up; cached "
			"blocks are read in DRAM\n",
			e->opt->device);
	if (e->opt->json)
		return output_json(e->model, e->opt->block_tokens, res);
	if (res->text_bytes && (putchar('\n') == EOF || fflush(stdout) != 0))
		return -EIO;
	output_summary(res);
	return 0;
}

static int run_tokens(struct engine *e, const uint32_t *tokens, size_t n, double started)
{
	struct result res = { .prompt_tokens = (uint32_t)n };
	uint32_t room = e->model->config.context;
	struct kvr_prefill prefill;
	const float *logits;
	int r;

	if (n > room) {
		fprintf(stderr,
			"kvrun: the prompt has %zu tokens and the model's context is %u: shorten "
			"the prompt\n",
			n, room);
		return EXIT_INPUT;
	}
	XXH3_128bits_reset(e->digest);
	res.tokens = calloc(e->opt->steps < room ? e->opt->steps + 1 : room + 1, sizeof(uint32_t));
	r = res.tokens ? kvr_seq_prompt(e->seq, tokens, (uint32_t)n, &prefill, &logits) : -ENOMEM;
	if (r == 0) {
		res.reused_tokens = prefill.reused;
		res.computed_tokens = prefill.computed;
		r = generate(e, logits, tokens[n - 1], started, &res);
	}
	if (r == 0) {
		kvr_seq_end(e->seq);
		r = report(e, &res);
	}
	free(res.tokens);
	free(res.text);
	return r < 0 ? failed(e, r) : 0;
}

static int run_text(struct engine *e, const char *text, size_t bytes)
{
	double started = now_ms();
	uint32_t *tokens;
	size_t n;
	int r = kvr_encode(e->tokenizer, e->model->config.bos, text, bytes, &tokens, &n);

	if (r < 0)
		return say(EXIT_INPUT, r == -EFBIG ? "the prompt is too long" : strerror(-r));
	r = run_tokens(e, tokens, n, started);
	free(tokens);
	return r;
}

static int run_prompt(struct engine *e, const struct prompt_source *p)
{
	struct kvr_error err;
	size_t bytes;
	char *text;
	int r;

	if (p->text)
		return run_text(e, p->text, strlen(p->text));
	if (kvr_file_load(p->path, KVR_TEXT_MAX, &err, &text, &bytes) < 0)
		return say(EXIT_INPUT, err.text);
	r = run_text(e, text, bytes);
	free(text);
	return r;
}

/* Standard input may be a pipe that somebody feeds as the answers come: line by line, no ahead. */
static int run_lines(struct engine *e)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t n;
	int r = 0;

	while (r == 0 && (n = getline(&line, &room, stdin)) >= 0) {
		if (n > 0 && line[n - 1] == '\n')
			n--;
		r = run_text(e, line, (size_t)n);
	}
	free(line);
	return r;
}

static int run_score(struct engine *e)
{
	const struct options *o = e->opt;
	struct score s = { o->perplexity, e->coded ? e->codec : NULL, o->window, o->windows, 0 };
	uint64_t need = (uint64_t)o->window * o->windows + 1;
	struct kvr_error err;
	uint32_t *tokens;
	size_t bytes, n;
	char *text;
	int r;

	if (o->window > e->model->config.context)
		return say(EXIT_INPUT, "--window is beyond the model's context");
	if (kvr_file_load(o->perplexity, KVR_TEXT_MAX, &err, &text, &bytes) < 0)
		return say(EXIT_INPUT, err.text);
	r = kvr_encode(e->tokenizer, e->model->config.bos, text, bytes, &tokens, &n);
	free(text);
	if (r < 0)
		return say(EXIT_FAILED, strerror(-r));
	n--; /* scored as it is: without the BOS in front */
	if (n < need) {
		fprintf(stderr, "kvrun: %s has %zu tokens, the windows need %llu\n", o->perplexity,
			n, (unsigned long long)need);
		free(tokens);
		return EXIT_INPUT;
	}
	r = kvr_mean_nll(
		e->seq, e->model->config.vocab, tokens + 1, n, o->window, o->windows, &s.nats);
	free(tokens);
	if (r == 0)
		r = output_score(e->model, &s, o->json);
	return r < 0 ? failed(e, r) : 0;
}

static int run_serve(struct engine *e)
{
	const struct options *o = e->opt;
	const struct serve_opts opts = { o->serve_idle, o->serve_rate, o->json };
	int r = serve_others(e->model, e->pool, e->seq, &opts);

	return r < 0 ? failed(e, r) : 0;
}

int main(int argc, char **argv)
{
	struct options opt;
	struct engine e;
	int status;

	if (options_parse(argc, argv, &opt, &status) < 0)
		return status;
	status = engine_open(&opt, &e);
	if (status == 0 && opt.perplexity) {
		status = run_score(&e);
	} else {
		for (size_t i = 0; status == 0 && i < opt.n_prompts; i++)
			status = run_prompt(&e, &opt.prompt[i]);
		if (status == 0 && opt.lines)
			status = run_lines(&e);
		if (status == 0 && opt.serve)
			status = run_serve(&e);
	}
	engine_close(&e);
	options_done(&opt);
	return status;
}
