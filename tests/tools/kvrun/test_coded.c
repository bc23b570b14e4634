/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences whose sealed blocks are in a codec: beside native ones, and instead of them. */
#include "tests/tools/kvrun/common.h"
#include "tools/kvrun/kvr_kv_coded.h"
#include "tools/kvrun/kvr_seq.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	LAYERS = 3,
	DIM = 64,
	BLOCK = 32,
	TOKENS = 5 * BLOCK + 9,
	PROMPT = 2 * BLOCK + 5,
	VOCAB = 50
};

static const struct kvr_config config = {
	.layers = LAYERS,
	.hidden = 48,
	.ffn = 80,
	.heads = 4,
	.kv_heads = 2,
	.head_dim = DIM,
	.vocab = VOCAB,
	.context = 256,
	.norm_eps = 1e-5f,
	.rope_theta = 10000,
};

static const char *const codecs[] = { "native", "fp8", "int8", "kivi4", "kivi2", "tq4", "tq2",
	"4bit", "k8v4", "tq3-h3/tq2", "hadamard4", "tqprod3", "native/tq4" };
enum { CODECS = sizeof(codecs) / sizeof(codecs[0]) };

typedef float logits_rows[TOKENS][VOCAB];

static struct kvr_model *model;
static uint32_t token[TOKENS];

static int prepare(void **unused)
{
	uint64_t state = test_seed();

	(void)unused;
	model = test_model_new(&config, &state);
	for (uint32_t i = 0; i < TOKENS; i++)
		token[i] = (uint32_t)(test_random(&state) >> 32) % VOCAB;
	return 0;
}

static int finish(void **unused)
{
	(void)unused;
	model = kvr_model_free(model);
	return 0;
}

static struct kvr_kv *heap(enum kvr_dtype dtype)
{
	struct kvr_geom geom = kvr_model_geom(model, BLOCK, dtype);
	struct kvr_kv *kv;

	assert_int_equal(kvr_kv_heap_new(&geom, &kv), 0);
	return kv;
}

static int try_coded(const char *codec, enum kvr_coded_mode mode, enum kvr_dtype dtype,
	struct kvr_error *ret_error, struct kvr_kv **ret_kv)
{
	struct kvr_geom geom = kvr_model_geom(model, BLOCK, dtype);
	struct kvr_coded_opts opts = { .mode = mode };
	struct kvr_kv *native = mode == KVR_SHADOW ? heap(dtype) : NULL;
	int r;

	assert_int_equal(kvp_codec_parse_pair(codec, &opts.codec[0], &opts.codec[1]), 0);
	r = kvr_kv_coded_new(&config, &geom, &opts, native, ret_error, ret_kv);
	if (r < 0)
		kvr_kv_free(native);
	return r;
}

static struct kvr_kv *coded(const char *codec, enum kvr_coded_mode mode, enum kvr_dtype dtype)
{
	struct kvr_error err;
	struct kvr_kv *kv = NULL;

	if (try_coded(codec, mode, dtype, &err, &kv) < 0)
		fail_msg("%s: %s", codec, err.text);
	return kv;
}

static int keep(void *arg, uint32_t first, uint32_t n, const float *logits)
{
	memcpy((float *)arg + (size_t)first * VOCAB, logits, n * VOCAB * sizeof(float));
	return 0;
}

/* The logits of all tokens, block by block: attention of many queries. */
static void score(struct kvr_kv *kv, logits_rows rows)
{
	struct kvr_seq *seq;

	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	assert_int_equal(kvr_seq_score(seq, token, TOKENS, keep, rows), 0);
	kvr_seq_end(seq);
	kvr_seq_free(seq);
}

/* Those from the end of the prompt on, token by token: attention of one query. */
static void step(struct kvr_kv *kv, logits_rows rows)
{
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;

	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	assert_int_equal(kvr_seq_prompt(seq, token, PROMPT, &prefill, &logits), 0);
	assert_int_equal(prefill.computed, PROMPT);
	for (uint32_t i = PROMPT; i < TOKENS; i++) {
		assert_int_equal(kvr_seq_next(seq, token[i], &logits), 0);
		memcpy(rows[i], logits, sizeof(rows[i]));
	}
	kvr_seq_end(seq);
	kvr_seq_free(seq);
}

/* Over the tokens that step() makes, as a share of the largest logit. */
static double difference(logits_rows a, logits_rows b)
{
	double worst = 0, largest = 0;

	for (uint32_t i = PROMPT; i < TOKENS; i++)
		for (uint32_t j = 0; j < VOCAB; j++) {
			worst = fmax(worst, fabs((double)a[i][j] - (double)b[i][j]));
			largest = fmax(largest, fabs((double)a[i][j]));
		}
	return worst / largest;
}

/* Decoding copies it, so that many queries see the very bits. */
static void native_payloads_change_nothing(void **unused)
{
	static const enum kvr_dtype dtypes[] = { KVR_F32, KVR_F16, KVR_BF16 };
	static logits_rows want, got;

	(void)unused;
	for (int i = 0; i < 3; i++)
		for (int mode = KVR_SHADOW; mode <= KVR_PRIMARY; mode++) {
			struct kvr_kv *plain = heap(dtypes[i]);
			struct kvr_kv *kv = coded("native", (enum kvr_coded_mode)mode, dtypes[i]);

			score(plain, want);
			score(kv, got);
			assert_memory_equal(want, got, sizeof(want));
			kvr_kv_free(plain);
			kvr_kv_free(kv);
		}
}

static void check_report(struct kvr_kv *kv, enum kvr_coded_mode mode)
{
	struct kvp_attend_plane plane[2];
	struct kvr_coded_report r;

	assert_true(kv->ops->planes(kv, 0, 0, plane));
	kvr_kv_coded_report(kv, &r);
	assert_int_equal(r.errors, 0);
	assert_int_equal(r.blocks, TOKENS / BLOCK);
	assert_int_equal(r.bytes, r.blocks * (plane[0].bytes + plane[1].bytes) * LAYERS);
	/* the last block is not full: it is the one that is native under primary */
	assert_int_equal(r.native_bytes,
		kvr_block_bytes(&kv->geom) * (mode == KVR_SHADOW ? r.blocks + 1 : 1));
}

/* Where the native blocks are makes no difference, and one store can serve many sequences. */
static void modes_agree(void **unused)
{
	static logits_rows one[2], many[2];

	(void)unused;
	for (int i = 0; i < CODECS; i++) {
		for (int mode = KVR_SHADOW; mode <= KVR_PRIMARY; mode++) {
			struct kvr_kv *kv = coded(codecs[i], (enum kvr_coded_mode)mode, KVR_F16);

			step(kv, one[mode]);
			check_report(kv, (enum kvr_coded_mode)mode);
			score(kv, many[mode]);
			check_report(kv, (enum kvr_coded_mode)mode);
			kvr_kv_free(kv);
		}
		assert_memory_equal(
			&one[0][PROMPT], &one[1][PROMPT], (TOKENS - PROMPT) * sizeof(one[0][0]));
		assert_memory_equal(many[0], many[1], sizeof(many[0]));
	}
}

/* Attention in place gives what attention over the decoded blocks gives, which is not native's. */
static void one_query_sees_what_many_see(void **unused)
{
	static logits_rows one, many, plain;
	struct kvr_kv *native = heap(KVR_F32);

	(void)unused;
	score(native, plain);
	kvr_kv_free(native);
	for (int i = 0; i < CODECS; i++) {
		struct kvr_kv *kv = coded(codecs[i], KVR_PRIMARY, KVR_F32);
		double fused, codec;

		step(kv, one);
		score(kv, many);
		fused = difference(one, many);
		codec = difference(plain, many);
		print_message("%s: in place %.1e, codec %.1e\n", codecs[i], fused, codec);
		assert_true(fused > 0 && fused < 4e-3); /* 0: it was not done in place at all */
		assert_true(i == 0 ? codec == 0 : codec > 10 * fused);
		kvr_kv_free(kv);
	}
}

/* Every whole block is coded, and what is in it is what its native neighbour encodes to. */
static void check_shadow(struct kvr_kv *kv)
{
	for (uint32_t i = 0; i < LAYERS * 2 * (TOKENS / BLOCK); i++) {
		uint32_t block = i / (LAYERS * 2), layer = i / 2 % LAYERS, value = i % 2;
		struct kvp_plane p = { BLOCK, config.kv_heads, DIM, KVP_DTYPE_F16,
			value ? KVP_PLANE_V : KVP_PLANE_K };
		const uint8_t *native = kv->ops->block(kv, block);
		ptrdiff_t row = (ptrdiff_t)kvr_row_bytes(&kv->geom);
		struct kvp_raw_const src = { native + kvr_row_offset(&kv->geom, layer, value, 0),
			row / p.heads, row };
		struct kvp_attend_plane plane[2];
		void *fresh;

		assert_non_null(native);
		assert_true(kv->ops->planes(kv, block, layer, plane));
		fresh = aligned_alloc(64, (plane[value].bytes + 63) & ~(size_t)63);
		assert_non_null(fresh);
		assert_int_equal(kvp_plane_encode(kv->coding->kernels, plane[value].codec, &p, NULL,
					 src, fresh, plane[value].bytes),
			0);
		assert_memory_equal(plane[value].data, fresh, plane[value].bytes);
		free(fresh);
	}
}

/*
 * A shadow is made of every whole block, whether its tokens were attended in place (one query at a
 * time, from the prompt's end on) or block by block over decoded ones.
 */
static void d068_shadows_whatever_attention_does(void **unused)
{
	static logits_rows rows;
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;

	(void)unused;
	for (int i = 0; i < CODECS; i++) {
		struct kvr_kv *kv = coded(codecs[i], KVR_SHADOW, KVR_F16);

		assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
		assert_int_equal(kvr_seq_prompt(seq, token, PROMPT, &prefill, &logits), 0);
		for (uint32_t t = PROMPT; t < TOKENS; t++)
			assert_int_equal(kvr_seq_next(seq, token[t], &logits), 0);
		check_shadow(kv);
		kvr_seq_end(seq);
		kvr_seq_free(seq);
		assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
		assert_int_equal(kvr_seq_score(seq, token, TOKENS, keep, rows), 0);
		check_shadow(kv);
		kvr_seq_end(seq);
		kvr_seq_free(seq);
		kvr_kv_free(kv);
	}
}

/* What a long sequence held is not kept for shorter ones; only payloads are, for the next. */
static void native_memory_does_not_pile_up(void **unused)
{
	struct kvr_kv *kv = coded("tq4", KVR_PRIMARY, KVR_F16);
	struct kvr_coded_report r;
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;

	(void)unused;
	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	for (uint32_t n = TOKENS; n >= BLOCK; n -= BLOCK) {
		assert_int_equal(kvr_seq_prompt(seq, token, n, &prefill, &logits), 0);
		kvr_seq_end(seq);
		kvr_kv_coded_report(kv, &r);
		assert_int_equal(r.native_bytes, kvr_block_bytes(&kv->geom));
		for (uint32_t i = 0; i < TOKENS / BLOCK + 1; i++) /* of earlier sequences, too */
			assert_true((kv->ops->block(kv, i) != NULL) == (i == n / BLOCK));
	}
	kvr_seq_free(seq);
	kvr_kv_free(kv);
}

static void corrupt(struct kvr_kv *kv, uint32_t block)
{
	struct kvp_attend_plane plane[2];

	for (uint32_t l = 0; l < LAYERS; l++) {
		assert_true(kv->ops->planes(kv, block, l, plane));
		for (uint32_t value = 0; value < 2; value++) /* their magic numbers */
			memset((void *)(uintptr_t)plane[value].data, 0x5a, 4);
	}
}

/* One more token after the prompt's two whole blocks, none of which can be read. */
static int step_past_damage(struct kvr_kv *kv, float *ret_logits)
{
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;
	int r;

	assert_int_equal(kvr_seq_new(model, kv, NULL, &seq), 0);
	assert_int_equal(kvr_seq_prompt(seq, token, PROMPT, &prefill, &logits), 0);
	corrupt(kv, 0);
	corrupt(kv, 1);
	r = kvr_seq_next(seq, token[PROMPT], &logits);
	if (r == 0)
		memcpy(ret_logits, logits, VOCAB * sizeof(float));
	kvr_seq_free(seq);
	return r;
}

/* The plain path takes over, over the native bytes, and says so; without them there is an error. */
static void unreadable_payloads(void **unused)
{
	struct kvr_geom geom = kvr_model_geom(model, BLOCK, KVR_F16);
	struct kvr_coded_opts opts = { { KVP_CODEC_FP8_E4M3, KVP_CODEC_TQ4 }, KVR_SHADOW, 0 };
	struct kvr_kv *native = heap(KVR_F16), *kv;
	struct kvr_pass *pass;
	const float *want;
	float got[VOCAB];

	(void)unused;
	assert_int_equal(kvr_kv_coded_new(&config, &geom, &opts, native, NULL, &kv), 0);
	assert_int_equal(step_past_damage(kv, got), 0);
	assert_int_equal(kv->coding->errors, LAYERS * (2 * 2 + 1)); /* in place, then two blocks */
	assert_int_equal(kvr_pass_new(model, BLOCK, &pass), 0);
	assert_int_equal(
		kvr_pass_run(pass, native, NULL, PROMPT, &token[PROMPT], 1, KVR_LOGITS_LAST, &want),
		0);
	assert_memory_equal(got, want, sizeof(got));
	kvr_pass_free(pass);
	kvr_kv_free(kv);

	kv = coded("fp8/tq4", KVR_PRIMARY, KVR_F16);
	assert_int_equal(step_past_damage(kv, got), -EBADMSG);
	kvr_kv_free(kv);
}

static void what_a_codec_cannot_hold(void **unused)
{
	static const struct {
		const char *codec;
		const char *word;
	} cases[] = { { "kivi4-g64", "kivi4-g64 cannot hold keys of 32 tokens" },
		{ "fp8/tq4-haar", "tq4-haar cannot hold values" }, { "smart", "keys" } };

	(void)unused;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (int mode = KVR_SHADOW; mode <= KVR_PRIMARY; mode++) {
			struct kvr_error err;
			struct kvr_kv *kv;

			assert_int_equal(try_coded(cases[i].codec, (enum kvr_coded_mode)mode,
						 KVR_F16, &err, &kv),
				-EINVAL);
			if (!strstr(err.text, cases[i].word))
				fail_msg("%s", err.text);
		}
}

static int read_nothing(void *arg, const struct kvr_plane *plane, float *dst)
{
	(void)arg, (void)plane, (void)dst;
	return -EIO;
}

static void no_substitute_besides(void **unused)
{
	struct kvr_substitute substitute = { 1, read_nothing, NULL, NULL };
	struct kvr_kv *kv = coded("tq4", KVR_PRIMARY, KVR_F32);
	struct kvr_prefill prefill;
	const float *logits;
	struct kvr_seq *seq;

	(void)unused;
	assert_int_equal(kvr_seq_new(model, kv, &substitute, &seq), 0);
	assert_int_equal(kvr_seq_prompt(seq, token, PROMPT, &prefill, &logits), -EINVAL);
	kvr_seq_free(seq);
	kvr_kv_free(kv);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(native_payloads_change_nothing),
		cmocka_unit_test(modes_agree),
		cmocka_unit_test(one_query_sees_what_many_see),
		cmocka_unit_test(d068_shadows_whatever_attention_does),
		cmocka_unit_test(native_memory_does_not_pile_up),
		cmocka_unit_test(unreadable_payloads),
		cmocka_unit_test(what_a_codec_cannot_hold),
		cmocka_unit_test(no_substitute_besides),
	};

	return cmocka_run_group_tests(tests, prepare, finish);
}
