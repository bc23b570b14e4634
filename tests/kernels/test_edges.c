/* SPDX-License-Identifier: Apache-2.0 */
/* What every codec owes its caller: bad input refused and nothing written, NaN kept where it is. */
#include "kernels/dsp.h"
#include "kernels/kvp_haar.h"
#include "tests/kernels/inputs.h"
#include "tests/kernels/ladder.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TOKENS 64u
#define HEADS  2u
#define DIM    64u
#define N      ((size_t)TOKENS * HEADS * DIM)
#define ROW    ((ptrdiff_t)(DIM * sizeof(float)))
#define ROOM   65536u

static const char *const names[] = { "fp8", "fp8-e5m2", "int8", "kivi2", "kivi3", "kivi4",
	"kivi4-g64", "asym2", "asym3-g16", "asym4", "tq2", "tq3", "tq4", "tq4-plain", "tq3-nc",
	"tq4-h3", "tq3-sphere", "tq2-wide", "tq4-haar", "hadamard2", "hadamard4", "tqprod2",
	"tqprod3", "tqprod4", "hybrid", "hybrid-25", "hybrid-prod", "hybrid-25-prod",
	"hybrid-calibrated", "smart", "smart-asym", "smart-sym", "smart-keys3", "smart-sym-g8",
	"smart-asym-g16-wide", "asym3-g8", "asym4-g16-wide", "sym2-g8-wide", "sym4", "sym8-g16",
	"pub-kivi2", "pub-kivi4-g64", "pub-aither2", "pub-aither3", "pub-aither4", "pub-vllm3",
	"pub-vllm4" };
#define NAMES (sizeof names / sizeof *names)

static struct kvp_kernels *k;
static struct kvp_calib calib;
static uint8_t widths[TOKENS];

/* One plane of fp32, its payload and what comes back. */
struct plane {
	struct kvp_plane p;
	uint32_t codec;
	struct kvp_encode_opts o;
	float x[N], y[N];
	uint8_t *payload;
	size_t bytes;
};

static struct plane *plane_new(const char *name, uint32_t kind)
{
	struct plane *t = calloc(1, sizeof *t);

	t->p = (struct kvp_plane){ TOKENS, HEADS, DIM, KVP_DTYPE_F32, kind };
	t->o = (struct kvp_encode_opts){ .size = sizeof t->o, .calib = &calib, .widths = widths };
	if (kvp_codec_parse(name, &t->codec) < 0)
		fail_msg("no codec %s", name);
	assert_int_equal(kvp_plane_bytes(t->codec, &t->p, &t->bytes), 0);
	if (strncmp(name, "smart", 5) == 0)
		assert_int_equal(kvp_smart_bytes(t->codec, &t->p, widths, &t->bytes), 0);
	t->payload = aligned_alloc(64, ROOM);
	inputs_fill(t->x, N, KVP_DTYPE_F32, INPUT_NORMAL);
	return t;
}

static void plane_free(struct plane *t)
{
	free(t->payload);
	free(t);
}

static int encode(struct plane *t, const float *x, void *out, size_t size)
{
	return kvp_plane_encode(k, t->codec, &t->p, &t->o,
		(struct kvp_raw_const){ x, ROW * TOKENS, ROW }, out, size);
}

/* Into t->payload; by every instruction set of this machine, to the same bytes. */
static void encode_alike(struct plane *t)
{
	static uint8_t other[ROOM] __attribute__((aligned(64)));

	assert_int_equal(encode(t, t->x, t->payload, ROOM), 0);
	for (size_t i = 0; i < LADDER && ladder_reaches(i); i++) {
		struct kvp_kernels *all = k;
		int r;

		assert_int_equal(kvp_kernels_new(ladder[i].mask, &k), 0);
		r = encode(t, t->x, other, ROOM);
		kvp_kernels_free(k);
		k = all;
		assert_int_equal(r, 0);
		assert_memory_equal(other, t->payload, t->bytes);
	}
}

static int decode(struct plane *t, const void *in, size_t size, float *y)
{
	return kvp_plane_decode(
		k, t->codec, &t->p, &calib, in, size, (struct kvp_raw){ y, ROW * TOKENS, ROW });
}

static int untouched(const void *data, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (((const uint8_t *)data)[i] != 0x5a)
			return 0;
	return 1;
}

static void encode_refuses(void **state)
{
	(void)state;
	for (size_t i = 0; i < 2 * NAMES; i++) {
		struct plane *t = plane_new(names[i / 2], i & 1);
		struct kvp_plane p = t->p;

		memset(t->payload, 0x5a, ROOM);
		assert_int_equal(encode(t, t->x, t->payload, t->bytes - 1), -ENOSPC);
		assert_int_equal(encode(t, t->x, t->payload + 4, t->bytes), -EINVAL);
		assert_int_equal(encode(t, t->x, NULL, t->bytes), -EINVAL);
		assert_int_equal(
			encode(t, (float *)(void *)((char *)t->x + 1), t->payload, ROOM), -EINVAL);
		assert_int_equal(
			encode(t, (float *)(void *)(t->payload + 32), t->payload, ROOM), -EINVAL);
		t->p.tokens = 513;
		assert_int_equal(encode(t, t->x, t->payload, ROOM), -EINVAL);
		t->p = p;
		t->p.heads = UINT32_MAX;
		assert_int_equal(encode(t, t->x, t->payload, ROOM), -EINVAL);
		t->p = p;
		t->p.dim = 60;
		assert_int_equal(encode(t, t->x, t->payload, ROOM), -EINVAL);
		t->p = p;
		t->p.dtype = KVP_DTYPE_F8;
		assert_int_equal(encode(t, t->x, t->payload, ROOM), -EINVAL);
		t->p = p;
		t->o.size = 1;
		assert_int_equal(encode(t, t->x, t->payload, ROOM), -EINVAL);
		assert_true(untouched(t->payload, ROOM));
		plane_free(t);
	}
}

static void decode_refuses(void **state)
{
	/* magic, codec, bytes, tokens, kind, exponent, reserved: byte and bit */
	static const struct {
		uint8_t at, bit;
	} flips[] = { { 0, 1 }, { 8, 0x40 }, { 13, 0x20 }, { 16, 1 }, { 20, 8 }, { 23, 1 },
		{ 27, 0x40 }, { 28, 1 }, { 63, 0x80 } };

	(void)state;
	for (size_t i = 0; i < 2 * NAMES; i++) {
		struct plane *t = plane_new(names[i / 2], i & 1);
		float *over = (float *)(void *)t->payload;

		assert_int_equal(encode(t, t->x, t->payload, ROOM), 0);
		memset(t->y, 0x5a, sizeof t->y);
		for (size_t f = 0; f < sizeof flips / sizeof *flips; f++) {
			t->payload[flips[f].at] ^= flips[f].bit;
			assert_int_equal(decode(t, t->payload, t->bytes, t->y), -EBADMSG);
			t->payload[flips[f].at] ^= flips[f].bit;
		}
		t->payload[4] = KVP_PLANE_VERSION + 1;
		assert_int_equal(decode(t, t->payload, t->bytes, t->y), -EPROTONOSUPPORT);
		t->payload[4] = KVP_PLANE_VERSION;
		assert_int_equal(decode(t, t->payload, t->bytes - 1, t->y), -EBADMSG);
		assert_int_equal(decode(t, t->payload + 8, t->bytes, t->y), -EINVAL);
		assert_int_equal(decode(t, t->payload, t->bytes, over), -EINVAL);
		assert_true(untouched(t->y, sizeof t->y));
		assert_int_equal(decode(t, t->payload, t->bytes, t->y), 0);
		plane_free(t);
	}
}

/* A seed where the codec has one and none elsewhere; the matrix that fits and no other. */
static void seeds_and_matrices(void **state)
{
	static float matrix[2 * DIM * DIM];
	const struct kvp_calib wrong[] = { { .dim = DIM / 2, .haar = matrix, .digest = 7 },
		{ .dim = 2 * DIM, .haar = matrix, .digest = 7 }, { .dim = DIM, .digest = 7 },
		{ .dim = DIM, .haar = matrix } };
	unsigned int with_seed = 0, with_matrix = 0;

	(void)state;
	for (size_t i = 0; i < 2 * NAMES; i++) {
		struct plane *t = plane_new(names[i / 2], i & 1);
		struct kvp_plane_hdr hdr;

		assert_int_equal(encode(t, t->x, t->payload, ROOM), 0);
		memcpy(&hdr, t->payload, sizeof hdr);
		with_seed += hdr.seed != 0;
		with_matrix += hdr.calib != 0;
		hdr.seed = hdr.seed ? 0 : 1;
		memcpy(t->payload, &hdr, sizeof hdr);
		memset(t->y, 0x5a, sizeof t->y);
		assert_int_equal(decode(t, t->payload, t->bytes, t->y), -EBADMSG);
		hdr.seed = hdr.seed ? 0 : KVP_SEED_DEFAULT;
		memcpy(t->payload, &hdr, sizeof hdr);
		for (size_t w = 0; hdr.calib && w < sizeof wrong / sizeof *wrong; w++) {
			assert_int_equal(
				kvp_plane_decode(k, t->codec, &t->p, &wrong[w], t->payload,
					t->bytes, (struct kvp_raw){ t->y, ROW * TOKENS, ROW }),
				-ENOENT);
			memset(t->payload, 0x5a, ROOM);
			t->o.calib = &wrong[w];
			assert_int_equal(encode(t, t->x, t->payload, ROOM), -ENOENT);
			assert_true(untouched(t->payload, ROOM));
			memcpy(t->payload, &hdr, sizeof hdr);
		}
		assert_true(untouched(t->y, sizeof t->y));
		plane_free(t);
	}
	assert_true(with_seed > 0 && with_seed < 2 * NAMES && with_matrix > 0);
}

/*
 * Whoever wrote a payload may go on writing into it: what was checked is what is used. A header
 * that turns to garbage after the check changes nothing (but the seed's, of which none is wrong).
 */
static void header_is_read_once(void **state)
{
	(void)state;
	for (size_t i = 0; i < 2 * NAMES; i++) {
		struct plane *t = plane_new(names[i / 2], i & 1);
		struct kvp_raw dst = { t->y, ROW * TOKENS, ROW };
		static float before[N];
		struct kvp_layout lay;
		struct kvp_plane_hdr hdr;
		uint8_t *exact = aligned_alloc(16, (t->bytes + 15) & ~(size_t)15);

		assert_int_equal(encode(t, t->x, t->payload, ROOM), 0);
		assert_int_equal(decode(t, t->payload, t->bytes, before), 0);
		assert_int_equal(kvp_plane_layout(t->codec, &t->p, &lay), 0);
		memcpy(&hdr, t->payload, sizeof hdr);
		lay.bytes = hdr.bytes;
		memcpy(exact, t->payload, t->bytes);
		memset(exact, 0xff, offsetof(struct kvp_plane_hdr, seed));
		memset(exact + offsetof(struct kvp_plane_hdr, calib), 0xff, 24);
		assert_int_equal(k->codec[KVP_CODEC_FAMILY(t->codec)].decode(
					 k, &t->p, &lay, &calib, &hdr, exact, dst),
			0);
		assert_memory_equal(t->y, before, sizeof before);
		free(exact);
		plane_free(t);
	}
}

/* A stride that steps over nothing may be anything; the smallest has no positive counterpart. */
static void strides_at_the_limits(void **state)
{
	struct plane *t = plane_new("int8", KVP_PLANE_K);
	struct kvp_raw_const src = { t->x, PTRDIFF_MIN, ROW };
	struct kvp_raw dst = { t->y, PTRDIFF_MIN, ROW };

	(void)state;
	t->p.heads = 1;
	assert_int_equal(kvp_plane_encode(k, t->codec, &t->p, &t->o, src, t->payload, ROOM), 0);
	assert_int_equal(kvp_plane_decode(k, t->codec, &t->p, NULL, t->payload, t->bytes, dst), 0);
	t->p.heads = 2;
	for (int i = 0; i < 2; i++) {
		ptrdiff_t wild = i ? PTRDIFF_MIN : PTRDIFF_MAX & ~3;

		src.head_stride = dst.head_stride = wild;
		assert_int_equal(kvp_plane_encode(k, t->codec, &t->p, &t->o, src, t->payload, ROOM),
			-EINVAL);
		src.head_stride = ROW;
		src.token_stride = wild;
		assert_int_equal(kvp_plane_encode(k, t->codec, &t->p, &t->o, src, t->payload, ROOM),
			-EINVAL);
		src.token_stride = ROW;
	}
	/* Down by one stride and past the end of the address space by the other. */
	t->p.tokens = 2;
	src.head_stride = -ROW;
	src.token_stride = 1 << 20;
	src.data = (const void *)(UINTPTR_MAX & ~(uintptr_t)4095); /* never looked at */
	assert_int_equal(
		kvp_plane_encode(k, t->codec, &t->p, &t->o, src, t->payload, ROOM), -EINVAL);
	plane_free(t);
}

static void unknown_codecs(void **state)
{
	struct plane *t = plane_new("int8", KVP_PLANE_K);
	char name[KVP_CODEC_NAME_MAX];

	(void)state;
	memset(t->payload, 0x5a, ROOM);
	for (uint32_t i = 0; i < 32; i++) {
		t->codec = KVP_CODEC(KVP_FAMILY_MAX_, 0u) << i;
		if (KVP_CODEC_FAMILY(t->codec) < KVP_FAMILY_MAX_)
			continue;
		assert_int_equal(encode(t, t->x, t->payload, ROOM), -EINVAL);
		assert_int_equal(decode(t, t->payload, t->bytes, t->y), -EINVAL);
		assert_int_equal(kvp_codec_name(t->codec, name), -ENOENT);
		assert_null(kvp_codec_row(KVP_CODEC_FAMILY(t->codec)));
	}
	assert_true(untouched(t->payload, ROOM));
	plane_free(t);
}

/*
 * One evil element changes what is decoded of its own vector and nothing of any other token: those
 * are as if it had been another token's element, or, where energies count, nothing. In groups that
 * have a range the rest of its own vector is untouched, too, and it becomes an end of the range, or
 * for NaN what 0 would. Every instruction set writes the same bytes.
 */
static void nan_and_infinity(void **state)
{
	static const float evil[] = { NAN, -NAN, INFINITY, -INFINITY };
	const size_t at = 37 * DIM + 5;

	(void)state;
	for (size_t i = 0; i < 8 * NAMES; i++) {
		const char *name = names[i / 8];
		struct plane *t = plane_new(name, i / 4 % 2);
		int ranged = strstr(name, "kivi") || strncmp(name, "asym", 4) == 0;
		int chosen = !!strstr(name, "calibrated");
		const float e = evil[i % 4];
		static float clean[N];

		/* The neighbour along the range: a token of kivi's keys, else a channel. */
		t->x[at] = chosen                                             ? 0.0f
			   : strstr(name, "kivi") && t->p.kind == KVP_PLANE_K ? t->x[at - DIM]
									      : t->x[at - 1];
		encode_alike(t);
		assert_int_equal(decode(t, t->payload, t->bytes, clean), 0);
		t->x[at] = e;
		encode_alike(t);
		assert_int_equal(decode(t, t->payload, t->bytes, t->y), 0);
		for (size_t j = 0; j < N; j++) {
			assert_true(isfinite(t->y[j]));
			if (j / DIM != at / DIM || (ranged && j != at))
				if (t->y[j] != clean[j])
					fail_msg("%s kind %u: %g at %zu", name, t->p.kind,
						(double)e, j);
		}
		plane_free(t);
	}
}

/* What one group of kivi's keys, or one of values, makes of elements that are not numbers. */
static void ranges_of_what_is_finite(void **state)
{
	static const char *const ranged[] = { "kivi2", "kivi3", "kivi4", "asym4-g32", "pub-kivi4" };

	(void)state;
	for (size_t i = 0; i < 2 * sizeof ranged / sizeof *ranged; i++) {
		struct plane *t = plane_new(ranged[i / 2], i & 1);
		int keys = i & 1 ? 0 : strncmp(ranged[i / 2], "asym", 4) != 0;
		size_t step = keys ? DIM : 1; /* element n of the first group: n * step */
		float *x = t->x, *y = t->y;

		t->p.kind = keys ? KVP_PLANE_K : KVP_PLANE_V;
		assert_int_equal(kvp_plane_bytes(t->codec, &t->p, &t->bytes), 0);
		for (size_t n = 0; n < 32; n++) {
			x[n * step] = n % 2 ? 55.0f : -50.0f;             /* exact in every width */
			x[n * step + 32 * step] = n % 2 ? INFINITY : NAN; /* nothing finite */
		}
		x[3 * step] = INFINITY;
		x[5 * step] = -INFINITY;
		x[9 * step] = NAN;
		encode_alike(t);
		assert_int_equal(decode(t, t->payload, t->bytes, y), 0);
		for (size_t n = 0; n < 32; n++) {
			float want = n % 2 && n != 5 ? 55.0f : -50.0f;

			if (n != 9)
				assert_true(y[n * step] == want);
			assert_true(y[n * step + 32 * step] == 0.0f);
		}
		assert_true(fabsf(y[9 * step]) <= 17.5f); /* the code nearest to 0 */
		plane_free(t);
	}
}

/* Relative squared error of all elements that neither lie in row `at` nor share its range. */
static double error_of_others(const struct plane *t, const float *x, size_t at, int keys)
{
	double e = 0.0, xx = 0.0;

	for (size_t j = 0; j < N; j++) {
		/* kivi's ranges go over tokens, at most 128 of them: all of this head's. */
		if (j / DIM == at / DIM ||
			(keys && j / DIM / TOKENS == at / DIM / TOKENS && j % DIM == at % DIM))
			continue;
		e += ((double)x[j] - (double)t->y[j]) * ((double)x[j] - (double)t->y[j]);
		xx += (double)x[j] * (double)x[j];
	}
	return e / xx;
}

/*
 * One finite element as large as there are, and the plane's other rows keep their precision:
 * whatever the size of these, where that element lies, and its sign. It saturates itself.
 */
static void one_finite_outlier(void **state)
{
	static const float evil[] = { 1e38f, -3.4e38f, 1e12f, -1e12f };
	static const float size[] = { 1.0f, 0x1p-5f, 300.0f, 1e5f, 1e-8f };
	const size_t where[] = { 5, 37 * DIM + 5, N - 1 };

	(void)state;
	for (size_t i = 0; i < 2 * 5 * NAMES; i++) {
		const char *name = names[i / 10];
		struct plane *t = plane_new(name, i / 5 % 2);
		int published = strncmp(name, "pub", 3) == 0;
		int keys = strstr(name, "kivi") && t->p.kind == KVP_PLANE_K;
		static float x[N];

		/* Those have no exponent: what they hold lies within fp16. */
		for (size_t j = 0; j < N; j++)
			x[j] = t->x[j] * size[published ? i % 5 % 3 : i % 5];
		for (size_t w = 0; w < 3; w++) {
			/* Calibrated, one channel may change its group, and all codes with it. */
			double clean, most = strstr(name, "calibrated") ? 1.2 : 1.05;
			float e = evil[(i + w) % 4];

			memcpy(t->x, x, sizeof x);
			assert_int_equal(encode(t, t->x, t->payload, ROOM), 0);
			assert_int_equal(decode(t, t->payload, t->bytes, t->y), 0);
			clean = error_of_others(t, x, where[w], keys);
			t->x[where[w]] = e;
			encode_alike(t);
			assert_int_equal(decode(t, t->payload, t->bytes, t->y), 0);
			for (size_t j = 0; j < N; j++)
				assert_true(isfinite(t->y[j]));
			if (error_of_others(t, x, where[w], keys) > most * clean)
				fail_msg("%s kind %u: %g among %g leaves relMSE %g, not %g", name,
					t->p.kind, (double)e, (double)size[i % 5],
					error_of_others(t, x, where[w], keys), clean);
		}
		plane_free(t);
	}
}

/*
 * What an outlier is: of 160 rows at most ten, louder than the next by more than 2^16. A plane
 * that is loud in more of its rows, or by less, has the exponent of its loudest.
 */
static void outliers_are_few_and_far(void **state)
{
	static const struct {
		uint32_t loud; /* rows */
		float size, rest;
		int32_t exponent;
	} cases[] = {
		{ 10, 0x1p100f, 1.0f, 0 },
		{ 11, 0x1p100f, 1.0f, 98 },
		{ 1, 0x1p16f, 1.0f, 14 },
		{ 1, 0x1p17f, 1.0f, 0 },
		{ 1, 0x1p17f, 2.0f, 15 },
		{ 1, 0x1p40f, 0x1p12f, 10 },
		{ 1, 0x1p12f, 0x1p-10f, -12 },
		{ 1, 0x1p9f, 0x1p-10f, 0 }, /* ordinary by itself */
		{ 1, 0x1p100f, 0x1p-120f, -120 },
		{ 1, 0x1p100f, 0x1p-140f, 98 }, /* subnormal: as good as nothing */
		{ 1, 0x1p100f, 0.0f, 98 },
		{ 0, 0.0f, 0x1p100f, 98 },
	};
	struct plane *t = plane_new("int8", KVP_PLANE_K);

	(void)state;
	t->p.tokens = 80; /* fewer than N elements, of 40 channels */
	t->p.dim = 40;
	assert_int_equal(kvp_plane_bytes(t->codec, &t->p, &t->bytes), 0);
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		const struct kvp_raw_const src = { t->x, 80 * 160, 160 };
		struct kvp_plane_hdr hdr;

		for (uint32_t row = 0; row < 160; row++)
			for (uint32_t i = 0; i < 40; i++)
				/* rows 13 apart, so that heads, first and last rows have some */
				t->x[row * 40 + i] = row * 37 % 160 < cases[c].loud ? cases[c].size
										    : cases[c].rest;
		assert_int_equal(
			kvp_plane_encode(k, t->codec, &t->p, &t->o, src, t->payload, ROOM), 0);
		memcpy(&hdr, t->payload, sizeof hdr);
		if (hdr.exponent != cases[c].exponent)
			fail_msg("case %zu: exponent %d, not %d", c, hdr.exponent,
				cases[c].exponent);
	}
	/* Zeros do not count as rows, and of two rows that are left one may be an outlier. */
	memset(t->x, 0, sizeof t->x);
	t->x[0] = 1e38f;
	t->x[100 * 40] = 1.0f;
	assert_int_equal(kvp_plane_encode(k, t->codec, &t->p, &t->o,
				 (struct kvp_raw_const){ t->x, 80 * 160, 160 }, t->payload, ROOM),
		0);
	assert_int_equal(t->payload[24], 0);
	plane_free(t);
}

static void zeros_and_constants(void **state)
{
	(void)state;
	for (size_t i = 0; i < 2 * NAMES; i++) {
		struct plane *t = plane_new(names[i / 2], i & 1);

		memset(t->x, 0, sizeof t->x);
		assert_int_equal(encode(t, t->x, t->payload, ROOM), 0);
		assert_int_equal(decode(t, t->payload, t->bytes, t->y), 0);
		for (size_t j = 0; j < N; j++)
			assert_true(t->y[j] == 0.0f);
		for (size_t j = 0; j < N; j++)
			t->x[j] = -3.25f;
		assert_int_equal(encode(t, t->x, t->payload, ROOM), 0);
		assert_int_equal(decode(t, t->payload, t->bytes, t->y), 0);
		for (size_t j = 0; j < N; j++)
			assert_true(isfinite(t->y[j]) && fabsf(t->y[j]) < 100.0f);
		plane_free(t);
	}
}

static int setup(void **state)
{
	static double work[DIM * DIM];
	static float matrix[DIM * DIM];

	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
	for (uint32_t t = 0; t < TOKENS; t++)
		widths[t] = "\3\4\10"[t % 3];
	if (kvp_haar_init(DIM, 42, work, matrix, &calib) < 0)
		return -1;
	return kvp_kernels_new(KVP_CPU_ALL, &k);
}

static int teardown(void **state)
{
	(void)state;
	k = kvp_kernels_free(k);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(encode_refuses),
		cmocka_unit_test(decode_refuses),
		cmocka_unit_test(seeds_and_matrices),
		cmocka_unit_test(header_is_read_once),
		cmocka_unit_test(strides_at_the_limits),
		cmocka_unit_test(unknown_codecs),
		cmocka_unit_test(nan_and_infinity),
		cmocka_unit_test(ranges_of_what_is_finite),
		cmocka_unit_test(one_finite_outlier),
		cmocka_unit_test(outliers_are_few_and_far),
		cmocka_unit_test(zeros_and_constants),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
