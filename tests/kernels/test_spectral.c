/* SPDX-License-Identifier: Apache-2.0 */
/* Keys by their strongest RoPE pairs: what that takes, what it keeps, what it refuses, and scores by it. */
#include "kernels/dsp.h"
#include "kernels/kvp_spectral.h"
#include "kernels/numeric.h"
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

static struct kvp_kernels *isa[LADDER];
static size_t sets;

static uint32_t codec_of(const char *name)
{
	uint32_t codec;

	assert_int_equal(kvp_codec_parse(name, &codec), 0);
	return codec;
}

struct trip {
	uint32_t codec;
	struct kvp_plane p;
	struct guard src, dst, out;
	struct kvp_raw raw; /* strides */
	size_t bytes, element;
};

static struct trip trip_new(
	const char *name, uint32_t tokens, uint32_t heads, uint32_t dim, uint32_t dtype)
{
	struct trip t = { .codec = codec_of(name),
		.p = { tokens, heads, dim, dtype, KVP_PLANE_K },
		.element = dtype == KVP_DTYPE_F32 ? 4 : 2 };
	const size_t raw = t.element * tokens * heads * dim;

	t.raw.token_stride = (ptrdiff_t)(t.element * dim);
	t.raw.head_stride = t.raw.token_stride * (ptrdiff_t)tokens;
	t.src = guard_new(raw, t.element);
	t.dst = guard_new(raw, t.element);
	assert_int_equal(kvp_plane_bytes(t.codec, &t.p, &t.bytes), 0);
	t.out = guard_new(t.bytes, 16);
	return t;
}

static void trip_free(struct trip *t)
{
	guard_free(&t->src);
	guard_free(&t->dst);
	guard_free(&t->out);
}

static struct kvp_raw_const source(const struct trip *t)
{
	return (struct kvp_raw_const){ t->src.data, t->raw.head_stride, t->raw.token_stride };
}

static int trip_encode(struct trip *t, size_t set)
{
	int r = kvp_plane_encode(isa[set], t->codec, &t->p, NULL, source(t), t->out.data, t->bytes);

	assert_true(guard_intact(&t->out) && guard_intact(&t->src));
	return r;
}

static int trip_decode(struct trip *t, size_t set)
{
	int r = kvp_plane_decode(isa[set], t->codec, &t->p, NULL, t->out.data, t->bytes,
		(struct kvp_raw){ t->dst.data, t->raw.head_stride, t->raw.token_stride });

	assert_true(guard_intact(&t->dst));
	return r;
}

static float element(const struct guard *g, const struct trip *t, size_t i)
{
	return load_element(g->data, t->p.dtype, (uint32_t)i);
}

/* Rows D-086, D-087, D-088: bytes of a key, for 256 of fp16; 12 pairs if none are named. */
static void sizes(void **state)
{
	static const struct {
		const char *name;
		uint32_t bytes;
		double ratio;
	} want[] = { { "spectral", 26, 9.85 }, { "spectral-f12", 26, 9.85 },
		{ "spectral-f8", 18, 14.2 }, { "spectral-f16-i8", 50, 5.1 },
		{ "spectral-i16", 62, 4.1 } };
	const struct kvp_plane p = { 64, 8, 128, KVP_DTYPE_F16, KVP_PLANE_K };
	struct kvp_plane wrong = p;
	struct kvp_layout lay;
	char name[KVP_CODEC_NAME_MAX];

	(void)state;
	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		uint32_t bytes;

		assert_int_equal(kvp_plane_layout(codec_of(want[i].name), &p, &lay), 0);
		/* Sections are multiples of 64 bytes here: nothing is between them. */
		bytes = (lay.bytes - KVP_PLANE_HDR_BYTES) / (64 * 8);
		assert_int_equal(bytes * 64 * 8, lay.bytes - KVP_PLANE_HDR_BYTES);
		assert_int_equal(bytes, want[i].bytes);
		assert_true(fabs(256.0 / bytes - want[i].ratio) < 0.06);
	}
	assert_int_equal(kvp_codec_name(codec_of("spectral-f12"), name), 0);
	assert_string_equal(name, "spectral");
	/* Values have no RoPE; no more pairs than there are, none beyond what a byte can name. */
	wrong.kind = KVP_PLANE_V;
	assert_int_equal(kvp_plane_layout(codec_of("spectral"), &wrong, &lay), -EINVAL);
	wrong = p;
	wrong.dim = 16;
	assert_int_equal(kvp_plane_layout(codec_of("spectral"), &wrong, &lay), -EINVAL);
	assert_int_equal(kvp_plane_layout(codec_of("spectral-f8"), &wrong, &lay), 0);
	wrong.dim = 520;
	assert_int_equal(kvp_plane_layout(codec_of("spectral"), &wrong, &lay), -EINVAL);
	assert_int_equal(kvp_plane_layout(codec_of("spectral") | 0x80u, &p, &lay), -EINVAL);
	assert_int_equal(kvp_plane_layout(codec_of("spectral") | 0x18u, &p, &lay), -EINVAL);
}

/* Row D-089: of isotropic keys 12 of 64 pairs hold half: energy, error and cosine; they are refused. */
static void isotropic(void **state)
{
	static const struct {
		const char *name, *gated;
		double energy, relmse, cosine;
	} want[] = { { "spectral-any", "spectral", .495, .507, .70 },
		{ "spectral-f8-any", "spectral-f8", .378, .623, .613 },
		{ "spectral-f16-i8-interleaved-any", "spectral-f16-i8-interleaved", .591, .409,
			.768 } };

	(void)state;
	inputs_reseed(86);
	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		struct trip t = trip_new(want[i].name, 512, 8, 128, KVP_DTYPE_F32);
		const size_t n = t.src.size / 4;
		double ee = 0.0, xx = 0.0, cosine = 0.0, share;
		uint32_t codec = codec_of(want[i].gated);

		inputs_fill(t.src.data, n, KVP_DTYPE_F32, INPUT_NORMAL);
		assert_int_equal(kvp_spectral_energy(t.codec, &t.p, source(&t), &share), 0);
		assert_true(fabs(share / want[i].energy - 1.0) < 0.015);
		assert_int_equal(trip_encode(&t, 0), 0);
		assert_int_equal(trip_decode(&t, 0), 0);
		for (size_t row = 0; row < n; row += 128) {
			double xy = 0.0, own = 0.0, yy = 0.0;

			for (size_t c = row; c < row + 128; c++) {
				const double a = (double)element(&t.src, &t, c);
				const double b = (double)element(&t.dst, &t, c);

				ee += (a - b) * (a - b);
				own += a * a;
				xy += a * b;
				yy += b * b;
			}
			xx += own;
			cosine += xy / sqrt(own * yy) / ((double)n / 128.0);
		}
		assert_true(fabs(ee / xx / want[i].relmse - 1.0) < 0.015);
		assert_true(fabs(cosine / want[i].cosine - 1.0) < 0.015);
		t.codec = codec;
		assert_int_equal(trip_encode(&t, 0), -ERANGE);
		/* Nor is there any number of pairs that would do. */
		assert_int_equal(kvp_spectral_choose(t.codec, &t.p, source(&t),
					 KVP_SPECTRAL_ENERGY_MIN, &codec),
			-ERANGE);
		trip_free(&t);
	}
	inputs_init();
}

/* Keys whose energy is in few pairs, others in a tenth of the amplitude. */
static void fill_spectral(struct trip *t, uint32_t strong, int interleaved)
{
	float *x = (float *)(void *)t->src.data;
	const uint32_t dim = t->p.dim, pairs = dim / 2;

	for (uint32_t row = 0; row < t->p.tokens * t->p.heads; row++, x += dim)
		for (uint32_t i = 0; i < pairs; i++) {
			const float gain = (i * 7 + row) % pairs < strong ? 3.0f : 0.1f;
			const uint32_t a = interleaved ? 2 * i : i;
			const uint32_t b = interleaved ? 2 * i + 1 : i + pairs;

			x[a] = gain * (float)inputs_normal();
			x[b] = gain * (float)inputs_normal();
		}
}

/* Rows D-089, D-090: the gate looks at the plane, pairs are as many as it takes, wider codes are nearer. */
static void measured(void **state)
{
	static const char *const names[] = { "spectral-f16", "spectral-f16-i8",
		"spectral-f16-i16" };
	double last = 1.0;

	(void)state;
	for (uint32_t i = 0; i < 6; i++) {
		struct trip t = trip_new(names[i % 3], 40, 2, 128, KVP_DTYPE_F32);
		uint32_t codec = 0;
		double ee = 0.0, xx = 0.0, share;

		t.codec |= i >= 3 ? KVP_SPECTRAL_INTERLEAVED : 0;
		last = i == 3 ? 1.0 : last;
		fill_spectral(&t, 14, i >= 3);
		assert_int_equal(trip_encode(&t, 0), 0);
		assert_int_equal(trip_decode(&t, 0), 0);
		for (size_t c = 0; c < t.src.size / 4; c++) {
			const double a = (double)element(&t.src, &t, c);

			ee += pow(a - (double)element(&t.dst, &t, c), 2);
			xx += a * a;
		}
		assert_int_equal(kvp_spectral_energy(t.codec, &t.p, source(&t), &share), 0);
		/* What is lost is what was left out, and a step's part of the rest. */
		ee = ee / xx - (1.0 - share);
		assert_true(share > 0.99 && ee < last / 4);
		last = ee > 0.0 ? ee : 0.0;
		assert_int_equal(kvp_spectral_choose(t.codec, &t.p, source(&t), 0.99, &codec), 0);
		assert_int_equal(codec, (t.codec & ~KVP_SPECTRAL_PAIRS) | 3u); /* 14 */
		assert_int_equal(kvp_spectral_choose(t.codec, &t.p, source(&t), 0.1, &codec), 0);
		assert_int_equal(codec, t.codec & ~KVP_SPECTRAL_PAIRS); /* 8 */
		trip_free(&t);
	}
}

/* Whatever the elements: all sets write one payload, read it alike, and what they read is finite. */
static void any_input(void **state)
{
	static const char *const names[] = { "spectral-f8-any", "spectral-i8-interleaved-any",
		"spectral-f16-i16-any" };
	static const uint32_t dims[] = { 32, 40, 128, 512 }, tokens[] = { 1, 9, 33 };

	(void)state;
	for (uint32_t i = 0; i < 12 * INPUT_MAX_; i++) {
		struct trip t = trip_new(names[i % 3], tokens[i / 4 % 3], 1 + i % 3, dims[i % 4],
			KVP_DTYPE_F32 + i / 3 % 3);
		struct guard first = guard_new(t.bytes, 16), back = guard_new(t.dst.size, 4);

		inputs_fill(
			t.src.data, t.src.size / t.element, t.p.dtype, (enum input_kind)(i / 12));
		for (size_t s = 0; s < 2 * sets; s++) {
			const size_t set = s % sets;

			if (s == sets) /* what no encoder wrote */
				inputs_noise(t.out.data + KVP_PLANE_HDR_BYTES,
					t.bytes - KVP_PLANE_HDR_BYTES);
			if (s < sets) {
				assert_int_equal(trip_encode(&t, set), 0);
				if (!s)
					memcpy(first.data, t.out.data, t.bytes);
				assert_memory_equal(t.out.data, first.data, t.bytes);
			}
			assert_int_equal(trip_decode(&t, set), 0);
			if (!set)
				memcpy(back.data, t.dst.data, t.dst.size);
			assert_memory_equal(t.dst.data, back.data, t.dst.size);
			for (size_t j = 0; j < t.src.size / t.element; j++)
				assert_true(isfinite(element(&t.dst, &t, j)));
		}
		guard_free(&first);
		guard_free(&back);
		trip_free(&t);
	}
}

/*
 * Row D-091: what pairs say of keys before RoPE, turned by the distance, is what the decoded keys and the query
 * with RoPE on would; of keys as they stand the score is their product. For both pairings.
 */
static void scores(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		const int interleaved = i & 1;
		struct trip t = trip_new(interleaved ? "spectral-i8-interleaved" : "spectral-i8",
			30, 2, 128, KVP_DTYPE_F32);
		const struct kvp_rope_desc desc = { .pairing = interleaved ? KVP_ROPE_INTERLEAVED
									   : KVP_ROPE_HALF_SPLIT,
			.dim = 128,
			.theta = 10000.0 };
		const struct kvp_plane one = { 1, 1, 128, KVP_DTYPE_F32, KVP_PLANE_K };
		const uint32_t first = i & 2 ? 100000 : 0, at = first + (i & 4 ? 31 : 5000);
		float q[128], turned[128], got[30], *k;
		struct kvp_rope rope;
		double worst = 0.0;

		fill_spectral(&t, 10, interleaved);
		for (uint32_t c = 0; c < 128; c++)
			q[c] = (float)inputs_normal() * 0.1f;
		assert_int_equal(kvp_rope_init(&desc, &rope), 0);
		assert_int_equal(trip_encode(&t, 0), 0);
		assert_int_equal(trip_decode(&t, 0), 0);
		k = (float *)(void *)(t.dst.data + t.raw.head_stride);
		for (int with = 0; with < 2; with++) {
			assert_int_equal(kvp_spectral_scores(t.codec, &t.p, t.out.data, t.bytes, 1,
						 with ? &rope : NULL, first, at, q, 0.1f, got),
				0);
			memcpy(turned, q, sizeof q);
			if (with) {
				assert_int_equal(
					kvp_rope_apply(isa[0], &rope, &t.p, first,
						(struct kvp_raw_const){ t.dst.data,
							t.raw.head_stride, t.raw.token_stride },
						KVP_DTYPE_F32,
						(struct kvp_raw){ t.dst.data, t.raw.head_stride,
							t.raw.token_stride }),
					0);
				assert_int_equal(kvp_rope_apply(isa[0], &rope, &one, at,
							 (struct kvp_raw_const){ turned, 512, 512 },
							 KVP_DTYPE_F32,
							 (struct kvp_raw){ turned, 512, 512 }),
					0);
			}
			for (uint32_t token = 0; token < 30; token++) {
				double sum = 0.0;

				for (uint32_t c = 0; c < 128; c++)
					sum += (double)turned[c] * (double)k[token * 128 + c];
				worst = fmax(worst, fabs(0.1 * sum - (double)got[token]));
			}
		}
		assert_true(worst <= 1e-4);
		/* What does not fit. */
		assert_int_equal(kvp_spectral_scores(t.codec ^ KVP_SPECTRAL_INTERLEAVED, &t.p,
					 t.out.data, t.bytes, 1, &rope, first, at, q, 1.0f, got),
			-EBADMSG);
		assert_int_equal(kvp_spectral_scores(t.codec, &t.p, t.out.data, t.bytes, 2, &rope,
					 first, at, q, 1.0f, got),
			-EINVAL);
		assert_int_equal(kvp_spectral_scores(t.codec, &t.p, t.out.data, t.bytes, 1, &rope,
					 KVP_ROPE_POSITIONS_MAX - 29, at, q, 1.0f, got),
			-EINVAL);
		rope.dim = 64;
		assert_int_equal(kvp_spectral_scores(t.codec, &t.p, t.out.data, t.bytes, 1, &rope,
					 first, at, q, 1.0f, got),
			-EINVAL);
		trip_free(&t);
	}
}

static int setup(void **state)
{
	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	for (; sets < LADDER && ladder_reaches(sets); sets++)
		if (kvp_kernels_new(ladder[sets].mask, &isa[sets]) < 0)
			return -1;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	for (size_t s = 0; s < sets; s++)
		isa[s] = kvp_kernels_free(isa[s]);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes),
		cmocka_unit_test(isotropic),
		cmocka_unit_test(measured),
		cmocka_unit_test(any_input),
		cmocka_unit_test(scores),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
