/* SPDX-License-Identifier: Apache-2.0 */
/* Real models: golden figures, and warm runs that equal cold ones to the bit. */
#include "tests/tools/kvrun/common.h"
#include "tools/kvrun/kvr_file.h"
#include "tools/kvrun/kvr_perplexity.h"
#include "tools/kvrun/kvr_sample.h"
#include "tools/kvrun/kvr_seq.h"
#include "tools/kvrun/kvr_tokenizer.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvr_model *model; /* bytes-4m, loaded once */

static int load_model(void **unused)
{
	struct kvr_error err;

	(void)unused;
	if (kvr_model_open(test_bytes4m(), &err, &model) == 0)
		return 0;
	print_error("%s\n", err.text);
	return -1;
}

static int free_model(void **unused)
{
	(void)unused;
	model = kvr_model_free(model);
	return 0;
}

static struct kvr_kv *heap(uint32_t block_tokens, enum kvr_dtype dtype)
{
	struct kvr_geom geom = kvr_model_geom(model, block_tokens, dtype);
	struct kvr_kv *kv;

	assert_int_equal(kvr_kv_heap_new(&geom, &kv), 0);
	return kv;
}

static json_t *load_golden(void)
{
	char path[4096];
	json_t *root;

	snprintf(path, sizeof(path), "%s/golden.json", test_bytes4m());
	root = json_load_file(path, 0, NULL);
	assert_non_null(root);
	return root;
}

/* Runs one golden prompt; the greedy text must be equal, the top logits within 1e-3. */
static void check_golden(const json_t *want, uint32_t block_tokens, enum kvr_dtype dtype)
{
	const char *prompt = json_string_value(json_object_get(want, "prompt"));
	const char *text = json_string_value(json_object_get(want, "text"));
	const json_t *top = json_object_get(want, "top5_logits"), *pair;
	struct kvr_kv *kv = heap(block_tokens, dtype);
	struct kvr_tokenizer *tokenizer;
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;
	uint32_t *tokens;
	double worst = 0;
	size_t n, i;

	assert_int_equal(kvr_tokenizer_open(NULL, model->config.vocab, NULL, &tokenizer), 0);
	assert_int_equal(
		kvr_encode(tokenizer, model->config.bos, prompt, strlen(prompt), &tokens, &n), 0);
	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	assert_int_equal(kvr_seq_prompt(seq, tokens, (uint32_t)n, &prefill, &logits), 0);
	assert_int_equal(prefill.reused, 0);
	assert_int_equal(prefill.computed, n);
	assert_int_equal(json_array_size(top), 5);
	json_array_foreach(top, i, pair) {
		json_int_t id = json_integer_value(json_array_get(pair, 0));
		double value = json_number_value(json_array_get(pair, 1));

		worst = fmax(worst, fabs((double)logits[id] - value));
	}
	print_message("block %u, %s: largest difference %.2g\n", block_tokens,
		kvr_dtype_name(dtype), worst);
	/* the golden run kept K and V in fp32; rounded to half they move the logits a little */
	assert_true(worst < (dtype == KVR_F32 ? 1e-3 : 5e-3));
	assert_int_equal(strlen(text), 96);
	for (i = 0; i < 96; i++) {
		uint32_t token = kvr_argmax(logits, model->config.vocab);

		assert_int_equal(token, (unsigned char)text[i]);
		if (i < 95)
			assert_int_equal(kvr_seq_next(seq, token, &logits), 0);
	}
	free(tokens);
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	kvr_tokenizer_free(tokenizer);
}

static void golden_texts(void **unused)
{
	static const struct {
		uint32_t block_tokens;
		enum kvr_dtype dtype;
	} cases[] = { { 64, KVR_F32 }, { 64, KVR_F16 }, { 16, KVR_F32 }, { 512, KVR_F32 } };
	json_t *golden = load_golden(), *entry;
	const json_t *greedy = json_object_get(golden, "greedy");
	size_t i;

	(void)unused;
	assert_int_equal(json_array_size(greedy), 3);
	json_array_foreach(greedy, i, entry)
		for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++)
			check_golden(entry, cases[k].block_tokens, cases[k].dtype);
	json_decref(golden);
}

/* Real text of at least `n` bytes for prompts: the model's own README, repeated. */
static void fill_prompt(uint32_t *tokens, uint32_t n)
{
	char path[4096], *text;
	size_t bytes;

	snprintf(path, sizeof(path), "%s/README.md", test_bytes4m());
	assert_int_equal(kvr_file_load(path, 1 << 20, NULL, &text, &bytes), 0);
	tokens[0] = model->config.bos;
	for (uint32_t i = 1; i < n; i++)
		tokens[i] = (unsigned char)text[i % bytes];
	free(text);
}

/* A prompt and `steps` greedy tokens; every row of logits goes to `rows` [steps + 1][vocab]. */
static struct kvr_prefill run(
	struct kvr_kv *kv, uint32_t *tokens, uint32_t n, uint32_t steps, float *rows)
{
	size_t row = model->config.vocab * sizeof(float);
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;

	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	assert_int_equal(kvr_seq_prompt(seq, tokens, n, &prefill, &logits), 0);
	memcpy(rows, logits, row);
	for (uint32_t i = 1; i <= steps; i++) {
		tokens[n + i - 1] = kvr_argmax(logits, model->config.vocab);
		assert_int_equal(kvr_seq_next(seq, tokens[n + i - 1], &logits), 0);
		memcpy(rows + i * (size_t)model->config.vocab, logits, row);
	}
	kvr_seq_end(seq);
	kvr_seq_free(seq);
	return prefill;
}

static void check_warm(enum kvr_dtype dtype)
{
	static const uint32_t lengths[] = { 1, 63, 64, 129, 200 };
	enum { STEPS = 70, MOST = 200 + 2 * STEPS };
	struct kvr_geom geom = kvr_model_geom(model, 64, dtype);
	size_t bytes = (STEPS + 1) * model->config.vocab * sizeof(float);
	float *cold = malloc(bytes), *warm = malloc(bytes);
	uint32_t a[MOST], b[MOST];

	assert_non_null(cold);
	assert_non_null(warm);
	for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
		struct test_memory *memory = test_memory_new();
		uint32_t n = lengths[i], more;
		struct kvr_kv *kv;

		fill_prompt(a, n);
		memcpy(b, a, sizeof(a));
		/* cold, filling the memory; then the same from it */
		kv = test_store_new(&geom, memory);
		assert_int_equal(run(kv, a, n, STEPS, cold).reused, 0);
		kvr_kv_free(kv);
		assert_int_equal(test_memory_blocks(memory), (n + STEPS) / 64);
		kv = test_store_new(&geom, memory);
		assert_int_equal(run(kv, b, n, STEPS, warm).reused, (n - 1) / 64 * 64);
		kvr_kv_free(kv);
		assert_memory_equal(cold, warm, bytes);
		assert_memory_equal(a, b, (n + STEPS) * sizeof(*a));
		/* a longer prompt whose blocks were computed token by token, against private memory
		 */
		more = n + STEPS;
		kv = heap(64, dtype);
		run(kv, a, more, STEPS, cold);
		kvr_kv_free(kv);
		kv = test_store_new(&geom, memory);
		assert_int_equal(run(kv, b, more, STEPS, warm).reused, (more - 1) / 64 * 64);
		kvr_kv_free(kv);
		assert_memory_equal(cold, warm, bytes);
		test_memory_free(memory);
	}
	free(cold);
	free(warm);
}

static void warm_equals_cold(void **unused)
{
	(void)unused;
	check_warm(KVR_F16);
	check_warm(KVR_F32); /* read by OpenBLAS where it lies, at another alignment */
}

static void sequences_follow_each_other(void **unused)
{
	size_t bytes = 11 * model->config.vocab * sizeof(float);
	float *first = malloc(bytes), *again = malloc(bytes);
	struct kvr_kv *kv = heap(64, KVR_F16);
	uint32_t tokens[400];

	(void)unused;
	assert_non_null(first);
	assert_non_null(again);
	fill_prompt(tokens, 100);
	run(kv, tokens, 100, 10, first);
	fill_prompt(tokens, 333);
	run(kv, tokens, 333, 10, again);
	fill_prompt(tokens, 100);
	run(kv, tokens, 100, 10, again);
	assert_memory_equal(first, again, bytes);
	kvr_kv_free(kv);
	free(first);
	free(again);
}

static void context_is_a_limit(void **unused)
{
	uint32_t n = model->config.context, *tokens = malloc((n + 1) * sizeof(*tokens));
	struct kvr_kv *kv = heap(512, KVR_F16);
	struct kvr_prefill prefill;
	const float *logits = NULL;
	struct kvr_seq *seq;

	(void)unused;
	assert_non_null(tokens);
	fill_prompt(tokens, n + 1);
	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	assert_int_equal(kvr_seq_prompt(seq, tokens, n + 1, &prefill, &logits), -E2BIG);
	assert_int_equal(kvr_seq_prompt(seq, tokens, 0, &prefill, &logits), -EINVAL);
	tokens[3] = model->config.vocab;
	assert_int_equal(kvr_seq_prompt(seq, tokens, n, &prefill, &logits), -EINVAL);
	tokens[3] = 0;
	assert_null(logits);
	assert_int_equal(kvr_seq_prompt(seq, tokens, n - 1, &prefill, &logits), 0);
	assert_int_equal(kvr_seq_next(seq, model->config.vocab, &logits), -EINVAL);
	assert_int_equal(kvr_seq_next(seq, 65, &logits), 0);
	assert_int_equal(kvr_seq_next(seq, 65, &logits), -E2BIG);
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	free(tokens);
}

/* One row of golden.json's table; the whole of it is `kvrun --perplexity`'s business. */
static void perplexity(void **unused)
{
	static const char *const texts[][2] = {
		{ "sherlock", "text/sherlock.held.txt" },
		{ "shakespeare", "text/tinyshakespeare.held.txt" },
	};
	json_t *golden, *row;
	struct kvr_seq *seq;
	struct kvr_kv *kv;
	size_t i;

	(void)unused;
	if (!test_data(texts[0][1]) || !test_data(texts[1][1]))
		skip();
	golden = load_golden();
	kv = heap(64, KVR_F32);
	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	json_array_foreach(json_object_get(golden, "nll"), i, row) {
		const char *name = json_string_value(json_object_get(row, "text"));
		uint32_t window = (uint32_t)json_integer_value(json_object_get(row, "window"));
		double want = json_number_value(json_object_get(row, "nll_nats_per_byte")), got;
		uint32_t *tokens;
		size_t bytes;
		char *text;

		for (size_t k = 0; k < 2 && window <= 256; k++) {
			if (strcmp(name, texts[k][0]) != 0)
				continue;
			assert_int_equal(
				kvr_file_load(test_data(texts[k][1]), 1 << 20, NULL, &text, &bytes),
				0);
			tokens = calloc(bytes, sizeof(*tokens));
			assert_non_null(tokens);
			for (size_t b = 0; b < bytes; b++)
				tokens[b] = (unsigned char)text[b];
			assert_int_equal(kvr_mean_nll(seq, model->config.vocab, tokens, bytes,
						 window, 16, &got),
				0);
			assert_true(fabs(got - want) < 1e-4);
			assert_int_equal(kvr_mean_nll(seq, model->config.vocab, tokens, 16 * window,
						 window, 16, &got),
				-EINVAL);
			free(tokens);
			free(text);
		}
	}
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	json_decref(golden);
}

/* The text between the `nth` (from 0) line that begins with "$ ./run" and the fence after it. */
static char *documented(char *page, int nth)
{
	char *from = page;

	for (int i = 0; i <= nth; i++)
		from = strchr(strstr(from, "$ ./run"), '\n') + 1;
	*strstr(from, "\n```") = '\0';
	return from;
}

static void check_story(struct kvr_model *m, const struct kvr_tokenizer *tokenizer,
	float temperature, uint64_t seed, const char *want)
{
	struct kvr_geom geom = kvr_model_geom(m, 64, KVR_F32);
	uint32_t *tokens, last;
	size_t n, at = 0, bytes;
	struct kvr_prefill prefill;
	struct kvr_sampler sampler;
	const float *logits;
	struct kvr_seq *seq;
	struct kvr_kv *kv;

	assert_int_equal(kvr_kv_heap_new(&geom, &kv), 0);
	assert_int_equal(kvr_seq_new(m, kv, NULL, &seq), 0);
	assert_int_equal(kvr_sampler_init(&sampler, m->config.vocab, temperature, .9f, seed), 0);
	assert_int_equal(kvr_encode(tokenizer, m->config.bos, "", 0, &tokens, &n), 0);
	assert_int_equal(n, 1);
	last = tokens[0];
	assert_int_equal(kvr_seq_prompt(seq, tokens, 1, &prefill, &logits), 0);
	for (int i = 0; i < 256; i++) {
		uint32_t token = kvr_sample(&sampler, logits);
		const char *piece = kvr_decode(tokenizer, last, token, &bytes);

		if (token == m->config.eos[0])
			break;
		assert_int_equal(strncmp(want + at, piece, bytes), 0);
		at += bytes;
		last = token;
		assert_int_equal(kvr_seq_next(seq, token, &logits), 0);
	}
	assert_int_equal(at, strlen(want));
	kvr_sampler_done(&sampler);
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	free(tokens);
}

static void stories_as_documented(void **unused)
{
	static const char *const files[] = {
		"models/stories260K/stories260K.bin",
		"models/stories260K/tok512.bin",
		"models/stories260K/stories260K.md",
	};
	struct kvr_tokenizer *tokenizer;
	struct kvr_model *m;
	char *page, *twice;
	size_t bytes;

	(void)unused;
	for (int i = 0; i < 3; i++)
		if (!test_data(files[i]))
			skip();
	assert_int_equal(kvr_model_open(test_data(files[0]), NULL, &m), 0);
	assert_int_equal(
		kvr_tokenizer_open(test_data(files[1]), m->config.vocab, NULL, &tokenizer), 0);
	assert_int_equal(kvr_file_load(test_data(files[2]), 1 << 20, NULL, &page, &bytes), 0);
	twice = strdup(page);
	assert_non_null(twice);
	check_story(m, tokenizer, 0, 1, documented(page, 0));
	check_story(m, tokenizer, 1, 133742, documented(twice, 1));
	free(twice);
	free(page);
	kvr_tokenizer_free(tokenizer);
	kvr_model_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_texts),
		cmocka_unit_test(warm_equals_cold),
		cmocka_unit_test(sequences_follow_each_other),
		cmocka_unit_test(context_is_a_limit),
		cmocka_unit_test(perplexity),
		cmocka_unit_test(stories_as_documented),
	};

	return cmocka_run_group_tests(tests, load_model, free_model);
}
