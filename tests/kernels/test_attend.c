/* SPDX-License-Identifier: Apache-2.0 */
/* Attention against a double-precision reference over what the planes decode to. */
#include "kernels/dsp.h"
#include "kernels/kvp_attend.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "tests/kernels/attend_rig.h"
#include "tests/kernels/guard.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/ladder.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct kvp_kernels *kernels[LADDER];
static size_t n_kernels;
/* With `--few`, for sanitizers, every fifth case of the longest lists; the seed says which. */
static uint32_t stride = 1;

static void compare_within(struct rig *g, const struct tolerance *most, const char *what)
{
	rig_reference(g);
	for (size_t set = 0; set < n_kernels; set++) {
		struct kvp_attend_result res = { 0 };

		rig_run(g, kernels[set], &res);
		for (size_t row = 0; row < g->n / g->a.v_dim; row++)
			rig_compare_row(g, row, most, ladder[set].name, what);
	}
}

/* Every instruction set against the reference. */
static void compare(struct rig *g, const char *what)
{
	static const struct tolerance most = { 4e-4, 1e-3, 1e-5 };

	compare_within(g, &most, what);
}

static const char *const pairs[][2] = { { "native", "native" }, { "tq4", "tq4" }, { "tq3", "tq3" },
	{ "tq2", "tq2" }, { "kivi4-g16", "kivi4-g16" }, { "kivi2-g16", "kivi2-g16" },
	{ "fp8", "asym4" }, { "int8", "int8" }, { "tq4-nc", "asym4" }, { "hadamard4", "hadamard4" },
	{ "tq4-h3-sphere", "tq3-plain-wide" }, { "fp8-e5m2", "native" } };
#define PAIRS (sizeof pairs / sizeof *pairs)

/* A context in blocks of 64 with a partial last, which kivi's groups may not fit. */
static struct rig *context_new(
	const char *const *pair, uint32_t ctx, uint32_t group, uint32_t dim, float loud)
{
	struct rig *g = rig_new(kernels[0], 1, 2 * group, 2, dim);

	g->loud = loud;
	while (g->total < ctx) {
		uint32_t left = ctx - g->total, n = left < 64 ? left : 64;
		int kivi = strncmp(pair[0], "kivi", 4) == 0 && n < 16;

		rig_add(g, kivi ? "native" : pair[0], kivi ? "native" : pair[1], n);
	}
	return g;
}

/*
 * Contexts, group sizes and dims of the acceptance list, all of them in every codec, and its bound.
 * What words cost has a tail, which another seed may meet: hence one seed.
 */
static void d033_d034_d039_contexts(void **state)
{
	static const uint32_t contexts[] = { 0, 1, 15, 16, 17, 256, 1023, 1024, 4096 };
	static const uint32_t groups[] = { 1, 4, 8 };
	static const struct tolerance most = { 1.22e-4, 1e-3, 1e-5 };
	uint64_t seed = inputs_random();

	(void)state;
	for (size_t i = seed % stride; i < PAIRS * 9 * 3 * 2; i += stride) {
		const char *const *pair = pairs[i / 54];
		uint32_t ctx = contexts[i / 6 % 9], group = groups[i / 2 % 3], dim = 64u << i % 2;
		struct rig *g;
		char what[80];

		inputs_reseed(39 + i); /* the bounds are met by these, whichever of them run */
		g = context_new(pair, ctx, group, dim, 1.0f);
		snprintf(what, sizeof what, "%s context %u group %u dim %u", pair[0], ctx, group,
			dim);
		compare_within(g, &most, what);
		rig_free(g);
	}
	inputs_reseed(seed);
}

/*
 * Keys and values a hundred and a thousand times as large. Scores are so, too, and one token of a
 * context gets nearly all the weight unless two are close. Then what a score is off by is what its
 * weight is off by, relative to itself: in fp32 some 2^-24 of the product of the norms, which is
 * loud * dim / sqrt(dim) here. All beyond that is what the weights cost as words.
 */
static void d034_large_norms(void **state)
{
	static const float loud[] = { 100.0f, 1000.0f };
	static const uint32_t dims[] = { 64, 128, 512 };

	(void)state;
	for (size_t i = 0; i < PAIRS * 2 * 3; i++) {
		const char *const *pair = pairs[i / 6];
		double times = (double)loud[i % 2];
		double off = 8 * 0x1p-24 * times * sqrt(dims[i / 2 % 3]);
		struct tolerance most = { times * (4e-4 + 4 * off), 1e-3 + 2 * off, 1e-5 + off };
		struct rig *g = context_new(pair, 256, 4, dims[i / 2 % 3], loud[i % 2]);
		char what[80];

		snprintf(what, sizeof what, "%s %g times as large, dim %u", pair[0], times,
			dims[i / 2 % 3]);
		compare_within(g, &most, what);
		rig_free(g);
	}
}

/* One query to eight, whose groups of heads do not fill the kernels' tiles, and other dims. */
static void queries_groups_dims(void **state)
{
	static const uint32_t dims[] = { 64, 80, 96, 128, 192, 256 };
	static const uint32_t groups[] = { 1, 2, 4, 8 };

	(void)state;
	for (uint32_t queries = 1; queries <= 8; queries++) {
		for (size_t i = 0; i < PAIRS; i++) {
			struct rig *g = rig_new(kernels[0], queries, 2 * groups[(queries + i) % 4],
				2, dims[(queries + i) % 6]);

			rig_add(g, pairs[i][0], pairs[i][1], 64);
			rig_add(g, pairs[i][0], pairs[i][1], 131);
			rig_add(g, pairs[i][0], pairs[i][1], 33);
			g->a.position = g->total - queries;
			g->a.causal = 1;
			g->a.window = queries % 3 ? 0 : 100;
			compare(g, pairs[i][0]);
			rig_free(g);
		}
	}
}

/* Every place where a window and the own position can cut parts, their ends included. */
static void windows_and_positions(void **state)
{
	(void)state;
	for (uint32_t window = 0; window <= 25; window++) {
		struct rig *g = rig_new(kernels[0], 2, 2, 1, 64);

		rig_add(g, "native", "native", 9);
		rig_add(g, "tq4", "tq4", 8);
		rig_add(g, "native", "native", 7);
		g->a.window = window;
		g->a.causal = 1;
		for (g->a.position = 0; g->a.position < 24; g->a.position++)
			compare(g, "windows");
		rig_free(g);
	}
}

/* Hot native tail, warm 4-bit, 2-bit archive in one call; GQA; several queries; window; causal. */
static void a001_a035_b039_tiers_in_one_call(void **state)
{
	(void)state;
	for (int round = 0; round < 12; round++) {
		struct rig *g = rig_new(kernels[0], 1 + (uint32_t)round % 4, 8, 2, 128);

		for (int i = 0; i < 4; i++)
			rig_add(g, "tq2", "kivi2", 64);
		for (int i = 0; i < 3; i++)
			rig_add(g, "kivi4", "tq4", 100);
		rig_add(g, "int8", "fp8", 33);
		rig_add(g, "native", "native", 70);
		g->a.position = g->total - g->a.queries;
		g->a.causal = round & 1;
		g->a.window = round & 2 ? 130 : 0;
		g->a.n_splits = 1 + (uint32_t)round % 5;
		compare(g, "tiers");
		rig_free(g);
	}
}

/* Native fp16 and bf16 planes; fp32 accumulation. Queries in fours, and those that are left. */
static void a076_native_dtypes(void **state)
{
	static const uint32_t groups[] = { 1, 3, 4, 5, 8, 12 };

	(void)state;
	for (uint32_t i = 0; i < 12; i++) {
		uint32_t dtype = i % 2 ? KVP_DTYPE_F16 : KVP_DTYPE_BF16;
		struct rig *g = rig_new(kernels[0], 1, 2 * groups[i / 2], 2, 128);

		g->a.n_parts = 1;
		g->part[0].tokens = 300;
		g->total = 300;
		rig_add_plane(g, 0, "native", KVP_PLANE_K, 300, dtype);
		rig_add_plane(g, 0, "native", KVP_PLANE_V, 300, dtype);
		compare(g, "dtype");
		rig_free(g);
	}
}

/* Blocks that are alike but for one thing, side by side: none is taken for the one before it. */
static void planes_that_are_nearly_alike(void **state)
{
	/* What codes decode to in half precision is rounded. */
	static const struct tolerance most = { 1e-3, 2e-3, 1e-3 };
	static const char *const names[] = { "native", "tq4", "tq3", "kivi4-g16", "int8",
		"hadamard4" };

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct rig *g = rig_new(kernels[0], 1, 8, 2, 64);

		for (uint32_t n = 0; n < 9; n++)
			rig_add_of(g, names[i], names[n / 4 % 2 ? 0 : i], n / 2 % 2 ? 32 : 64,
				n % 2 ? KVP_DTYPE_F16 : KVP_DTYPE_F32);
		for (g->a.n_splits = 1; g->a.n_splits <= 2; g->a.n_splits++)
			compare_within(g, &most, names[i]);
		rig_free(g);
	}
}

/* Whatever lies in masked tokens, NaN included, contributes exactly nothing. */
static void a036_masked_tokens_are_absent(void **state)
{
	struct rig *g = rig_new(kernels[0], 2, 4, 2, 64);
	float *first = rig_alloc(g->n * 4);

	(void)state;
	rig_add(g, "tq4", "tq4", 64);
	rig_add(g, "native", "native", 64);
	g->a.mask_stride = 130;
	g->mask = calloc(260, sizeof *g->mask);
	for (uint32_t i = 0; i < 2; i++)
		for (uint32_t t = 0; t < 128; t++)
			g->mask[i * 130 + t] = t % 3 == 0 ? -INFINITY : 0.01f * (float)t;
	g->a.mask = g->mask;
	compare(g, "mask");
	for (size_t set = 0; set < n_kernels; set++) {
		struct kvp_attend_result res = { 0 };
		float *k = (float *)(uintptr_t)g->part[1].k.data;
		float *v = (float *)(uintptr_t)g->part[1].v.data;
		float save = k[2 * 64], save_v = v[2 * 64];

		rig_run(g, kernels[set], &res);
		memcpy(first, g->out, g->n * 4);
		k[2 * 64] = v[2 * 64] = NAN; /* token 64 + 2 = 66, masked */
		rig_run(g, kernels[set], &res);
		assert_memory_equal(first, g->out, g->n * 4);
		k[2 * 64] = save;
		v[2 * 64] = save_v;
	}
	free(first);
	rig_free(g);
}

/* 64 tokens of 2 heads of dim 128: encoded anew, with what lies in raw. */
static void encode_again(struct kvp_attend_plane *ap, uint32_t kind, const float *raw)
{
	struct kvp_plane p = { 64, 2, 128, KVP_DTYPE_F32, kind };

	assert_int_equal(kvp_plane_encode(kernels[0], ap->codec, &p, NULL,
				 (struct kvp_raw_const){ raw, 64 * 512, 512 },
				 (void *)(uintptr_t)ap->data, ap->bytes),
		0);
}

/*
 * What one query does not see and another does changes not one bit of the first one's result,
 * though both are computed together and from the same codes. kivi's keys have scales of a group of
 * tokens, so that of kivi only the values change.
 */
static void a036_what_another_query_sees(void **state)
{
	const size_t n = 64 * 2 * 128, row = 2 * 128;
	float *k = rig_alloc(n * sizeof *k), *v = rig_alloc(n * sizeof *v), first[2 * 128];

	(void)state;
	for (size_t i = 1; i < PAIRS; i++) {
		struct rig *g = rig_new(kernels[0], 2, 2, 2, 128);

		rig_add(g, pairs[i][0], pairs[i][1], 64);
		g->a.mask_stride = 64;
		g->mask = calloc(2 * 64, sizeof *g->mask);
		g->mask[20] = -INFINITY;
		g->mask[64 + 20] = 500.0f; /* query 1 sees little else, whatever the key */
		g->a.mask = g->mask;
		for (size_t set = 0; set < n_kernels; set++) {
			struct kvp_attend_result res = { 0 };
			int changed = 0;

			inputs_fill(k, n, KVP_DTYPE_F32, INPUT_NORMAL);
			inputs_fill(v, n, KVP_DTYPE_F32, INPUT_NORMAL);
			for (int loud = 0; loud < 2; loud++) {
				for (size_t c = 0; loud && c < row; c++) {
					size_t at = c / 128 * 64 * 128 + 20 * 128 + c % 128;

					k[at] *= strncmp(pairs[i][0], "kivi", 4) ? -30.0f : 1.0f;
					v[at] *= -30.0f;
				}
				if (g->part[0].v.codec == KVP_CODEC_NATIVE)
					memcpy((void *)(uintptr_t)g->part[0].v.data, v, n * 4);
				else
					encode_again(&g->part[0].v, KVP_PLANE_V, v);
				encode_again(&g->part[0].k, KVP_PLANE_K, k);
				rig_run(g, kernels[set], &res);
				if (!loud)
					memcpy(first, g->out, sizeof first);
				else if (memcmp(first, g->out, sizeof first) != 0)
					fail_msg("%s %s: a masked token counts", pairs[i][0],
						ladder[set].name);
				for (size_t c = row; loud && c < 2 * row; c++)
					changed |= fabsf(g->out[c]) > 5.0f;
			}
			assert_true(changed); /* query 1 saw it */
		}
		rig_free(g);
	}
	free(k);
	free(v);
}

static void empty_and_fully_masked_rows(void **state)
{
	struct rig *g = rig_new(kernels[0], 1, 4, 2, 64);

	(void)state;
	compare(g, "empty");
	rig_add(g, "tq4", "tq3", 20);
	g->a.mask_stride = 20;
	g->mask = calloc(20, sizeof *g->mask);
	for (uint32_t t = 0; t < 20; t++)
		g->mask[t] = -INFINITY;
	g->a.mask = g->mask;
	compare(g, "masked");
	for (size_t i = 0; i < g->n; i++)
		assert_true(g->out[i] == 0.0f);
	rig_free(g);
}

/* Splits merged by log-sum-exp equal one pass within 1e-5. */
static void d035_split_k(void **state)
{
	struct rig *g = rig_new(kernels[0], 1, 16, 4, 128);
	float *one = rig_alloc(g->n * 4);

	(void)state;
	for (int i = 0; i < 33; i++)
		rig_add(g, i % 2 ? "tq4" : "kivi4", "tq4", 64);
	for (size_t set = 0; set < n_kernels; set++) {
		struct kvp_attend_result res = { 0 };

		g->a.n_splits = 1;
		rig_run(g, kernels[set], &res);
		memcpy(one, g->out, g->n * 4);
		for (uint32_t splits = 2; splits <= 64; splits *= 2) {
			g->a.n_splits = splits;
			rig_run(g, kernels[set], &res);
			for (size_t i = 0; i < g->n; i++)
				assert_true(fabs((double)(one[i] - g->out[i])) < 1e-5);
		}
	}
	free(one);
	rig_free(g);
}

/*
 * As many splits as there are threads, but each with KVP_ATTEND_SPLIT_MIN tokens times heads to do:
 * one below 2,000 tokens of 8 heads. What is proposed is the most that this allows, of any shape.
 */
static void d036_number_of_splits(void **state)
{
	(void)state;
	assert_int_equal(kvp_attend_splits(0, 8, 16), 1);
	assert_int_equal(kvp_attend_splits(1, 1, 0), 1);
	assert_int_equal(kvp_attend_splits(1999, 8, 16), 1);
	assert_int_equal(kvp_attend_splits(2048, 8, 16), 2);
	assert_int_equal(kvp_attend_splits(131072, 8, 16), 16);
	assert_int_equal(
		kvp_attend_splits(UINT64_MAX / 8192, 256, UINT32_MAX), KVP_ATTEND_SPLITS_MAX);
	for (uint32_t i = 0; i < 100000; i++) {
		uint64_t tokens = inputs_random() >> (44 + inputs_random() % 20);
		uint32_t heads = 1 + (uint32_t)(inputs_random() % 256);
		uint32_t threads = (uint32_t)(inputs_random() % 600);
		uint32_t splits = kvp_attend_splits(tokens, heads, threads);

		assert_in_range(splits, 1, KVP_ATTEND_SPLITS_MAX);
		if (splits > 1) {
			assert_true(splits <= threads);
			assert_true(tokens * heads >= (uint64_t)splits * KVP_ATTEND_SPLIT_MIN);
		}
		if (splits < threads && splits < KVP_ATTEND_SPLITS_MAX)
			assert_true(tokens * heads < (splits + 1ull) * KVP_ATTEND_SPLIT_MIN);
	}
}

/*
 * Parts are dealt out evenly and in order, whatever the number of splits: a payload that does not
 * bear a look fails the split that has it, and no other. Beyond the parts a split has nothing to do.
 */
static void d036_parts_of_splits(void **state)
{
	enum { PARTS = 7 };
	struct rig *g = rig_new(kernels[0], 1, 2, 1, 64);
	size_t bytes;

	(void)state;
	for (uint32_t i = 0; i < PARTS; i++)
		rig_add(g, "tq4", "tq4", 16);
	for (uint32_t splits = 1; splits <= 2 * PARTS; splits++) {
		g->a.n_splits = splits;
		assert_int_equal(kvp_attend_workspace(&g->a, &bytes), 0);
		g->a.workspace = rig_alloc(bytes);
		g->a.workspace_size = bytes;
		assert_int_equal(kvp_attend_prepare(kernels[0], &g->a), 0);
		for (uint32_t bad = 0, before = 0; bad < PARTS; bad++) {
			uint32_t failed = 0, which = 0;

			((uint8_t *)g->data[2 * bad])[32] ^= 2;
			for (uint32_t i = 0; i < splits; i++) {
				if (kvp_attend_range(kernels[0], &g->a, i) < 0) {
					failed++;
					which = i;
				}
			}
			((uint8_t *)g->data[2 * bad])[32] ^= 2;
			assert_int_equal(failed, 1);
			assert_true(which >= before);
			assert_true(which == before || splits > 1);
			/* of PARTS parts each split has as many as any other, or one more or less */
			assert_true(bad * splits < (which + 1) * PARTS);
			assert_true((bad + 1) * splits > which * PARTS);
			before = which;
		}
		free(g->a.workspace);
		g->a.workspace = NULL;
	}
	rig_free(g);
}

/*
 * A copy that is encoded on the side does not depend on whether anybody attends over it: the same
 * bytes before and after, and with every instruction set, and attention leaves them alone.
 */
static void d068_encoding_does_not_depend_on_attention(void **state)
{
	static const char *const codecs[] = { "tq4", "kivi4", "fp8", "smart", "hybrid" };
	struct kvp_plane p = { 64, 2, 64, KVP_DTYPE_F32, KVP_PLANE_K };
	struct kvp_raw_const src = { NULL, 64 * 256, 256 };
	struct kvp_encode_opts o = { .size = sizeof o };
	float *x = rig_alloc(64 * 2 * 64 * sizeof *x);
	uint8_t widths[64];

	(void)state;
	memset(widths, 3, sizeof widths);
	o.widths = widths;
	src.data = x;
	for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
		uint8_t *before, *after;
		uint32_t codec;
		size_t bytes;

		inputs_fill(x, 64 * 2 * 64, KVP_DTYPE_F32, INPUT_NORMAL);
		assert_int_equal(kvp_codec_parse(codecs[c], &codec), 0);
		assert_int_equal(kvp_plane_bytes(codec, &p, &bytes), 0);
		before = rig_alloc(bytes);
		after = rig_alloc(bytes);
		memset(before, 0, bytes);
		memset(after, 0, bytes);
		assert_int_equal(
			kvp_plane_encode(kernels[0], codec, &p, &o, src, before, bytes), 0);
		for (size_t set = 0; set < n_kernels; set++) {
			struct rig *g = rig_new(kernels[0], 1, 4, 2, 64);
			struct kvp_attend_result res = { 0 };

			rig_add(g, "native", "native", 64);
			memcpy(after, before, bytes);
			g->part[0].k = (struct kvp_attend_plane){ .codec = codec,
				.dtype = KVP_DTYPE_F32,
				.data = after,
				.bytes = bytes };
			rig_run(g, kernels[set], &res);
			assert_memory_equal(after, before, bytes);
			memset(after, 0, bytes);
			assert_int_equal(
				kvp_plane_encode(kernels[set], codec, &p, &o, src, after, bytes),
				0);
			assert_memory_equal(after, before, bytes);
			rig_free(g);
		}
		free(before);
		free(after);
	}
	free(x);
}

/* Two rotations per query, one there and one back, whatever the context. */
static void d030_d031_two_rotations(void **state)
{
	(void)state;
	for (uint32_t blocks = 1; blocks <= 64; blocks *= 4) {
		struct rig *g = rig_new(kernels[0], 1, 4, 2, 64);
		struct kvp_attend_result res = { 0 };

		for (uint32_t i = 0; i < blocks; i++)
			rig_add(g, "tq4", i % 2 ? "tq4" : "tq2", 64);
		rig_run(g, kernels[n_kernels - 1], &res);
		assert_int_equal(res.rotations, 2);
		rig_free(g);
	}
}

/*
 * The score in the rotated domain equals the dot product with the decoded vector: within 1e-5 where
 * both are normal, and within 1e-6 of the product of their norms.
 */
static void rotated_score(const char *codec, uint32_t dim)
{
	struct rig *g = rig_new(kernels[0], 1, 1, 1, dim);

	rig_add(g, codec, codec, 1);
	for (size_t set = 0; set < n_kernels; set++) {
		struct kvp_attend_result res = { 0 };
		double dot = 0.0, qq = 0.0, kk = 0.0, apart;

		rig_run(g, kernels[set], &res);
		for (uint32_t c = 0; c < dim; c++) {
			dot += (double)g->q[c] * (double)g->k[0][c];
			qq += (double)g->q[c] * (double)g->q[c];
			kk += (double)g->k[0][c] * (double)g->k[0][c];
		}
		/* One token: the log-sum-exp is its score. */
		apart = fabs(dot * (double)g->a.scale - (double)g->lse[0]);
		if (!(apart <= 1e-5 && apart <= 1e-6 * sqrt(qq * kk) * (double)g->a.scale))
			fail_msg("%s %s dim %u: %g off, norms %g", codec, ladder[set].name, dim,
				apart, sqrt(qq * kk) * (double)g->a.scale);
	}
	rig_free(g);
}

static void d030_rotated_scores(void **state)
{
	static const char *const codecs[] = { "tq4", "tq3", "tq2", "tq4-nc", "tq4-h3-sphere",
		"tq3-plain-wide", "hadamard4", "hadamard2" };

	(void)state;
	for (uint32_t i = 0; i < 8 * 3 * 50; i++)
		rotated_score(codecs[i % 8], 64u << i / 8 % 3);
}

/* Mass per token and KV head: weights of all its queries; their sum is the number of queries. */
static void attention_mass(void **state)
{
	struct rig *g = rig_new(kernels[0], 2, 8, 2, 64);
	float mass[2 * 300];

	(void)state;
	rig_add(g, "tq4", "tq4", 64);
	rig_add(g, "kivi4", "kivi4", 77);
	rig_add(g, "native", "native", 100);
	g->a.position = g->total - 2;
	g->a.causal = 1;
	g->a.window = 200;
	for (size_t set = 0; set < n_kernels; set++) {
		struct kvp_attend_result res = { .mass = mass, .mass_stride = 300 };

		rig_run(g, kernels[set], &res);
		for (uint32_t h = 0; h < 2; h++) {
			double sum = 0.0;

			for (uint32_t t = 0; t < g->total; t++) {
				assert_true(mass[h * 300 + t] >= 0.0f);
				sum += (double)mass[h * 300 + t];
				if (t + 200 <= g->total - 2)
					assert_true(mass[h * 300 + t] == 0.0f);
			}
			assert_true(fabs(sum - 2.0 * 4.0) < 1e-3);
		}
	}
	rig_free(g);
}

/*
 * KIVI's residual window is the caller's: the last R tokens native, those before in pieces as the
 * window let go of them; none at all leaves the incomplete group of keys native in its plane.
 */
static void a016_residual_window(void **state)
{
	static const uint32_t windows[] = { 0, 32, 128 };

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		uint32_t r = windows[i], left = 300 - r, piece = r ? r : left;
		struct rig *g = rig_new(kernels[0], 1, 8, 2, 128);

		for (; left >= 32; left -= piece < left ? piece : left)
			rig_add(g, "kivi2", "kivi2", piece < left ? piece : left);
		if (left + r)
			rig_add(g, "native", "native", left + r);
		assert_int_equal(g->total, 300);
		compare(g, "residual window");
		rig_free(g);
	}
}

/* Memory of its own that the process has, in KiB; statm would be off by what processors batch. */
static unsigned long own_memory(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "r");
	unsigned long sum = 0, kib;
	char line[256];

	assert_non_null(f);
	while (fgets(line, sizeof line, f))
		if (sscanf(line, "Anonymous: %lu kB", &kib) == 1 ||
			sscanf(line, "Swap: %lu kB", &kib) == 1)
			sum += kib;
	fclose(f);
	return sum;
}

/* Scratch is the caller's workspace: however often it is called, the process does not grow. */
static void a037_no_memory_is_kept(void **state)
{
	struct kvp_attend_result res = { 0 };
	struct rig *g = rig_new(kernels[0], 2, 8, 2, 128);
	unsigned long before;
	size_t bytes;

	(void)state;
	for (size_t i = 0; i < PAIRS; i++)
		rig_add(g, pairs[i][0], pairs[i][1], 160);
	g->a.n_splits = 3;
	assert_int_equal(kvp_attend_workspace(&g->a, &bytes), 0);
	g->a.workspace = rig_alloc(bytes);
	g->a.workspace_size = bytes;
	res.out = g->out;
	for (size_t set = 0; set < n_kernels; set++) {
		assert_int_equal(kvp_attend(kernels[set], &g->a, &res), 0);
		before = own_memory();
		for (int i = 0; i < 100; i++)
			assert_int_equal(kvp_attend(kernels[set], &g->a, &res), 0);
		assert_true(own_memory() <= before + 256);
	}
	free(g->a.workspace);
	rig_free(g);
}

static unsigned int decoded;

static void count_tq(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out)
{
	(void)tq, (void)codes, (void)scal, (void)out;
	decoded++;
}

static void count_asym(uint32_t bits, uint32_t group, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	(void)bits, (void)group, (void)codes, (void)scale, (void)min, (void)out;
	decoded++;
}

static void count_chan(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	(void)bits, (void)codes, (void)scale, (void)min, (void)out;
	decoded++;
}

/* A copied payload is the block, wherever it lies: beams and forks copy bytes and decode nothing.
 */
static void d026_copies_are_not_decoded(void **state)
{
	(void)state;
	for (size_t set = 0; set < n_kernels; set++) {
		struct kvp_kernels counting = *kernels[set];
		struct kvp_attend_result res = { 0 };
		struct rig *g = rig_new(kernels[0], 1, 8, 2, 128);
		float *first = rig_alloc(g->n * 4);

		counting.dsp.tq_decode = count_tq;
		counting.dsp.asym_decode = count_asym;
		counting.dsp.chan_decode = count_chan;
		rig_add(g, "tq4", "kivi4", 64);
		rig_add(g, "kivi4", "tq3", 64);
		rig_run(g, &counting, &res);
		memcpy(first, g->out, g->n * 4);
		for (uint32_t i = 0; i < 2 * g->a.n_parts; i++) {
			struct kvp_attend_plane *p = i % 2 ? &g->part[i / 2].v : &g->part[i / 2].k;
			void *copy = rig_alloc(p->bytes);

			memcpy(copy, p->data, p->bytes);
			memset(g->data[i], 0, p->bytes);
			free(g->data[i]);
			g->data[i] = copy;
			p->data = copy;
		}
		rig_run(g, &counting, &res);
		assert_memory_equal(g->out, first, g->n * 4);
		assert_int_equal(decoded, 0);
		free(first);
		rig_free(g);
	}
}

/*
 * A decode step of one query reads the planes as they are. A prefill of many queries reads them
 * eight queries at a time, or decodes them once and attends over what came out: all agree.
 */
static void d053_decode_and_prefill(void **state)
{
	enum { PREFILL = 24 };

	(void)state;
	for (size_t i = 1; i < PAIRS; i++) {
		struct rig *g = rig_new(kernels[0], PREFILL, 8, 2, 128);
		size_t row = 8 * 128;
		const float *q = g->q;

		rig_add(g, pairs[i][0], pairs[i][1], 128);
		rig_add(g, "native", "native", PREFILL); /* their own keys and values */
		g->a.position = 128;
		g->a.causal = 1;
		rig_reference(g); /* over decoded planes: the standard path */
		for (size_t set = 0; set < n_kernels; set++) {
			for (uint32_t step = 1; step <= 8; step += 7) {
				struct kvp_attend_result res = { 0 };

				g->a.queries = step;
				for (uint32_t at = 0; at < PREFILL; at += step) {
					g->a.q = q + at * row;
					g->a.position = 128 + at;
					rig_run(g, kernels[set], &res);
					for (size_t j = 0; j < step * row; j++)
						assert_true(fabsf(g->out[j] -
								    g->ref[at * row + j]) <= 4e-4f);
				}
			}
		}
		rig_free(g);
	}
}

/* NaN in one head's native keys reaches the queries of that head, and no others. */
static void nan_stays_in_its_head(void **state)
{
	struct rig *g = rig_new(kernels[0], 1, 4, 2, 64);

	(void)state;
	rig_add(g, "native", "native", 40);
	((float *)(uintptr_t)g->part[0].k.data)[7 * 64] = NAN;
	for (size_t set = 0; set < n_kernels; set++) {
		struct kvp_attend_result res = { 0 };

		rig_run(g, kernels[set], &res);
		for (uint32_t c = 0; c < 128; c++)
			assert_true(isnan(g->out[c]));
		for (uint32_t c = 128; c < 256; c++)
			assert_true(isfinite(g->out[c]));
	}
	rig_free(g);
}

static void refusals(void **state)
{
	struct rig *g = rig_new(kernels[0], 1, 4, 2, 64);
	struct kvp_attention bad;
	size_t bytes = 1;

	(void)state;
	rig_add(g, "tq4", "tq4", 64);
	assert_int_equal(kvp_attend_workspace(&g->a, &bytes), 0);
	g->a.workspace = rig_alloc(bytes);
	g->a.workspace_size = bytes;
	bad = g->a;
	bad.q_heads = 3;
	assert_int_equal(kvp_attend_prepare(kernels[0], &bad), -EINVAL);
	bad = g->a;
	bad.queries = 9;
	assert_int_equal(kvp_attend_prepare(kernels[0], &bad), -EINVAL);
	bad = g->a;
	bad.workspace_size--;
	assert_int_equal(kvp_attend_prepare(kernels[0], &bad), -ENOSPC);
	bad = g->a;
	bad.n_splits = 0;
	assert_int_equal(kvp_attend_prepare(kernels[0], &bad), -EINVAL);
	bad = g->a;
	bad.k_dim = 32;
	assert_int_equal(kvp_attend_prepare(kernels[0], &bad), -EBADMSG);
	g->part[0].k.bytes--;
	assert_int_equal(kvp_attend_prepare(kernels[0], &g->a), -EBADMSG);
	g->part[0].k.bytes++;
	((uint8_t *)g->data[0])[4] ^= 2;
	assert_int_equal(kvp_attend_prepare(kernels[0], &g->a), -EPROTONOSUPPORT);
	((uint8_t *)g->data[0])[4] ^= 2;
	assert_int_equal(kvp_attend_prepare(kernels[0], &g->a), 0);
	/* A header that changes between the phases is caught. */
	((uint8_t *)g->data[0])[32] ^= 2;
	assert_int_equal(kvp_attend_range(kernels[0], &g->a, 0), -EBADMSG);
	free(g->a.workspace);
	rig_free(g);
}

/* Rows of one geometry, in memory that ends with them. */
struct geometry {
	uint32_t form, bits, dim, n, group, per_channel, wide;
};

struct row_rig {
	struct kvp_rows r;
	uint8_t *codes, *scale, *min;
	float q[9 * 1024], w[9 * ATTEND_CHUNK], cent[16], bound[16];
};

static uint8_t *halves(size_t n, float low, float high)
{
	uint8_t *p = malloc(2 * n);

	assert_non_null(p);
	for (size_t i = 0; i < n; i++) {
		float f = low + (high - low) * (float)inputs_uniform();
		uint16_t h = f32_to_f16(f);

		memcpy(p + 2 * i, &h, sizeof h);
	}
	return p;
}

/* flat: every code, query and weight as large as can be, so that sums are. */
static void row_rig_fill(struct row_rig *g, const struct geometry *o, int flat)
{
	int minima = o->form != KVP_FORM_BOOK && o->form != KVP_FORM_INT8;
	uint32_t bytes = kvp_row_bytes(o->bits, o->dim), groups, scalars;

	groups = o->per_channel ? (o->n + o->group - 1) / o->group
				: (o->group ? o->dim / o->group : 1);
	scalars = groups * (o->per_channel ? o->dim : o->n);
	g->r = (struct kvp_rows){ .form = o->form,
		.bits = o->form == KVP_FORM_INT8 ? 0 : o->bits,
		.format = o->form == KVP_FORM_INT8 ? KVP_CODEC_INT8 : o->wide,
		.dim = o->dim,
		.n = o->n,
		.group = o->group ? o->group : o->dim,
		.groups = groups,
		.per_channel = o->per_channel,
		.factor = 0.5f,
		.stride = bytes,
		.cent = g->cent };
	if (o->form == KVP_FORM_BOOK)
		assert_int_equal(kvp_codebook(o->bits, o->dim, g->cent, g->bound), 0);
	g->r.codes = g->codes = malloc((size_t)bytes * o->n);
	assert_non_null(g->codes);
	if (flat)
		memset(g->codes, o->form == KVP_FORM_INT8 ? 0x81 : 0xff, (size_t)bytes * o->n);
	else
		inputs_noise(g->codes, (size_t)bytes * o->n);
	if (o->wide) {
		g->scale = malloc(4 * (size_t)scalars);
		assert_non_null(g->scale);
		for (uint32_t i = 0; i < scalars; i++) {
			float f = 0.5f + (float)inputs_uniform();

			memcpy(g->scale + 4 * (size_t)i, &f, sizeof f);
		}
	} else {
		g->scale = halves(scalars, flat ? 1.0f : 0.01f, 1.0f);
	}
	g->min = minima ? halves(scalars, -8.0f, 0.0f) : NULL;
	g->r.scale = g->scale;
	g->r.minimum = g->min;
	for (uint32_t i = 0; i < 9 * 1024; i++)
		g->q[i] = flat ? 1.0f : (float)inputs_normal();
	for (uint32_t i = 0; i < 9 * ATTEND_CHUNK; i++)
		g->w[i] = flat ? 1.0f : expf(2.0f * (float)inputs_normal() - 6.0f);
}

static void row_rig_free(struct row_rig *g)
{
	free(g->codes);
	free(g->scale);
	free(g->min);
}

/* What the rows are, by C: one query per channel would be slow, so by weights of a single row. */
static void row_values(const struct row_rig *g, float *ret)
{
	for (uint32_t t = 0; t < g->r.n; t++) {
		float w[ATTEND_CHUNK] = { 0 }, fade = 0.0f;
		struct kvp_weights one = { 1, w, ATTEND_CHUNK, &fade };

		w[t] = 1.0f;
		memset(ret + (size_t)t * g->r.dim, 0, g->r.dim * sizeof *ret);
		kvp_accumulate_c(&g->r, &one, ret + (size_t)t * g->r.dim);
	}
}

/*
 * Scores as exact as a sum of fp32 products is in any order, which is relative to the product of
 * the norms: dim roundings of products and sums, and some of scales.
 */
static void compare_scores(const struct kvp_kernels *k, struct row_rig *g, const float *x,
	uint32_t nq, const char *what)
{
	uint32_t dim = g->r.dim;
	float *s = rig_alloc((size_t)nq * ATTEND_CHUNK * sizeof *s), sum[9] = { 0 };
	float *q = rig_alloc((size_t)nq * dim * sizeof *q);
	struct kvp_queries kq = { nq, q, sum, NULL, 0, { NULL, NULL } };

	memcpy(q, g->q, (size_t)nq * dim * sizeof *q);
	for (uint32_t i = 0; i < nq * dim; i++)
		sum[i / dim] += q[i];
	k->attend[g->r.form].score(&g->r, &kq, s, ATTEND_CHUNK);
	for (uint32_t i = 0; i < nq; i++) {
		for (uint32_t t = 0; t < g->r.n; t++) {
			double dot = 0.0, qq = 0.0, xx = 0.0;

			for (uint32_t c = 0; c < dim; c++) {
				double a = (double)q[i * dim + c],
				       b = (double)x[(size_t)t * dim + c];

				dot += a * b;
				qq += a * a;
				xx += b * b;
			}
			if (!(fabs(dot - (double)s[i * ATTEND_CHUNK + t]) <=
				    (dim + 16) * 0x1p-24 * sqrt(qq * xx)))
				fail_msg("%s: query %u row %u: score %g, not %g", what, i, t,
					(double)s[i * ATTEND_CHUNK + t], dot);
		}
	}
	free(s);
	free(q);
}

/* Sums within 2.5e-4 of what the largest element would give under all the weights. */
static void compare_sums(const struct kvp_kernels *k, struct row_rig *g, const float *x,
	uint32_t nq, const char *what)
{
	uint32_t dim = g->r.dim;
	float *acc = rig_alloc((size_t)nq * dim * sizeof *acc), fade[9];
	struct kvp_weights kw = { nq, g->w, ATTEND_CHUNK, fade };
	double top = 0.0;

	for (uint32_t i = 0; i < nq * dim; i++)
		acc[i] = (float)(i % 7);
	for (uint32_t i = 0; i < nq; i++)
		fade[i] = 0.25f * (float)i;
	for (size_t i = 0; i < (size_t)g->r.n * dim; i++)
		top = fmax(top, fabs((double)x[i]));
	k->attend[g->r.form].accumulate(&g->r, &kw, acc);
	for (uint32_t i = 0; i < nq * dim; i++) {
		double sum = (double)(i % 7) * (double)fade[i / dim], size = 1e-3;

		for (uint32_t t = 0; t < g->r.n; t++) {
			double w = (double)g->w[i / dim * ATTEND_CHUNK + t];

			sum += w * (double)x[(size_t)t * dim + i % dim];
			size += w;
		}
		if (!(fabs(sum - (double)acc[i]) <= 2.5e-4 * size * top + 1e-5))
			fail_msg("%s: query %u channel %u: sum %g, not %g", what, i / dim, i % dim,
				(double)acc[i], sum);
	}
	free(acc);
}

/* Score and accumulate of every instruction set, whatever the geometry, at random and at the
 * largest sums.
 */
static void rows_of_any_geometry(void **state)
{
	static const struct geometry kinds[] = { { KVP_FORM_BOOK, 4, 0, 0, 0, 0, 0 },
		{ KVP_FORM_BOOK, 3, 0, 0, 0, 0, 1 }, { KVP_FORM_BOOK, 2, 0, 0, 0, 0, 0 },
		{ KVP_FORM_INT8, 8, 0, 0, 0, 0, 0 }, { KVP_FORM_AFFINE, 4, 0, 0, 0, 0, 0 },
		{ KVP_FORM_AFFINE, 3, 0, 0, 32, 0, 0 }, { KVP_FORM_AFFINE, 2, 0, 0, 0, 0, 0 },
		{ KVP_FORM_AFFINE, 4, 0, 0, 32, 0, 0 }, { KVP_FORM_AFFINE, 2, 0, 0, 16, 0, 0 },
		{ KVP_FORM_AFFINE, 4, 0, 0, 16, 0, 0 }, { KVP_FORM_AFFINE, 2, 0, 0, 64, 0, 0 },
		{ KVP_FORM_AFFINE, 4, 0, 0, 32, 1, 0 }, { KVP_FORM_AFFINE, 2, 0, 0, 16, 1, 0 } };
	static const uint32_t dims[] = { 64, 128, 192, 256, 576, 1024, 80 };
	struct row_rig *g = calloc(1, sizeof *g);
	float *x = rig_alloc((size_t)ATTEND_CHUNK * 1024 * sizeof *x);

	(void)state;
	assert_non_null(g);
	for (uint32_t i = (uint32_t)(inputs_seed % stride); i < 2 * 13 * 7 * 3; i += stride) {
		struct geometry o = kinds[i % 13];
		uint32_t nq = 1 + (uint32_t)(inputs_random() % 9);
		int flat = i / 13 % 2;
		char what[100];

		o.dim = dims[i / 26 % 7];
		o.n = flat || inputs_random() % 3 == 0 ? ATTEND_CHUNK
						       : 1 + (uint32_t)(inputs_random() % 128);
		if (o.per_channel) /* whole groups, as kivi has them */
			o.n = (o.n + o.group - 1) / o.group * o.group;
		else if (o.group && o.dim % o.group)
			continue;
		row_rig_fill(g, &o, flat);
		row_values(g, x);
		for (size_t set = 0; set < n_kernels; set++) {
			snprintf(what, sizeof what,
				"set %zu form %u bits %u dim %u n %u group %u queries %u%s", set,
				o.form, o.bits, o.dim, o.n, o.group, nq, flat ? " flat" : "");
			compare_scores(kernels[set], g, x, nq, what);
			if (!o.per_channel)
				compare_sums(kernels[set], g, x, nq, what);
		}
		row_rig_free(g);
	}
	free(x);
	free(g);
}

/* A row turned there and back is the same to the bit by every instruction set. */
static void rotations_are_alike(void **state)
{
	static const uint32_t dims[] = { 8, 16, 24, 64, 72, 80, 96, 112, 128, 144, 192, 256, 320,
		512 };
	const size_t n = sizeof dims / sizeof *dims;

	(void)state;
	for (size_t i = 0; i < 2 * n; i++) {
		const uint32_t dim = dims[i % n], kind = i < n ? KVP_ROT_H1 : KVP_ROT_H3;
		float x[512], there[512], back[512];
		struct rotation rot;

		if (kvp_rotation_init(&rot, kind, dim, 1 + inputs_random(), NULL) < 0)
			continue;
		inputs_fill(x, dim, KVP_DTYPE_F32, INPUT_NORMAL);
		memcpy(there, x, sizeof there);
		kvp_rotate_fwd(&rot, there);
		memcpy(back, there, sizeof back);
		kvp_rotate_inv(&rot, back);
		for (size_t set = 0; set < n_kernels; set++) {
			float y[512];

			memcpy(y, x, sizeof y);
			kernels[set]->dsp.rotate(&rot, 0, y);
			assert_memory_equal(y, there, dim * sizeof *y);
			kernels[set]->dsp.rotate(&rot, 1, y);
			assert_memory_equal(y, back, dim * sizeof *y);
		}
	}
}

static int setup(void **state)
{
	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	for (; n_kernels < LADDER && ladder_reaches(n_kernels); n_kernels++)
		if (kvp_kernels_new(ladder[n_kernels].mask, &kernels[n_kernels]) < 0)
			return -1;
	for (size_t i = n_kernels; i < LADDER; i++)
		printf("%s: not on this machine, skipped\n", ladder[i].name);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (size_t i = 0; i < n_kernels; i++)
		kvp_kernels_free(kernels[i]);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a001_a035_b039_tiers_in_one_call),
		cmocka_unit_test(windows_and_positions),
		cmocka_unit_test(a016_residual_window),
		cmocka_unit_test(a036_masked_tokens_are_absent),
		cmocka_unit_test(a036_what_another_query_sees),
		cmocka_unit_test(a037_no_memory_is_kept),
		cmocka_unit_test(a076_native_dtypes),
		cmocka_unit_test(planes_that_are_nearly_alike),
		cmocka_unit_test(d026_copies_are_not_decoded),
		cmocka_unit_test(d030_d031_two_rotations),
		cmocka_unit_test(d030_rotated_scores),
		cmocka_unit_test(d033_d034_d039_contexts),
		cmocka_unit_test(d034_large_norms),
		cmocka_unit_test(d035_split_k),
		cmocka_unit_test(d036_number_of_splits),
		cmocka_unit_test(d036_parts_of_splits),
		cmocka_unit_test(d053_decode_and_prefill),
		cmocka_unit_test(d068_encoding_does_not_depend_on_attention),
		cmocka_unit_test(attention_mass),
		cmocka_unit_test(empty_and_fully_masked_rows),
		cmocka_unit_test(nan_stays_in_its_head),
		cmocka_unit_test(queries_groups_dims),
		cmocka_unit_test(refusals),
		cmocka_unit_test(rows_of_any_geometry),
		cmocka_unit_test(rotations_are_alike),
	};

	if (argc > 1 && !strcmp(argv[1], "--few"))
		stride = 5;
	return cmocka_run_group_tests(tests, setup, teardown);
}
