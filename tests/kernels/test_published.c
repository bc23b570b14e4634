/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of others: bytes worked out by hand, and a reader that knows only docs/formats.md. */
#include "kernels/kvp_codec.h"
#include "kernels/kvp_haar.h"
#include "kernels/numeric.h"
#include "tests/kernels/inputs.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct kvp_kernels *k;

static uint32_t codec_of(const char *name)
{
	uint32_t codec;

	if (kvp_codec_parse(name, &codec) < 0)
		fail_msg("no codec %s", name);
	return codec;
}

/* A dense fp32 plane [head][token][channel] and its payload. */
struct trip {
	struct kvp_plane p;
	uint32_t codec;
	struct kvp_layout lay;
	const struct kvp_calib *calib;
	float *x, *y;
	uint8_t *payload;
	size_t n;
};

static struct trip trip_new(const char *name, uint32_t tokens, uint32_t heads, uint32_t dim,
	uint32_t kind, const struct kvp_calib *calib)
{
	struct trip t = { .p = { tokens, heads, dim, KVP_DTYPE_F32, kind },
		.codec = codec_of(name),
		.calib = calib,
		.n = (size_t)tokens * heads * dim };

	assert_int_equal(kvp_plane_layout(t.codec, &t.p, &t.lay), 0);
	t.x = calloc(t.n, sizeof *t.x);
	t.y = calloc(t.n, sizeof *t.y);
	t.payload = aligned_alloc(64, (t.lay.bytes + 63) & ~63u);
	inputs_fill(t.x, t.n, KVP_DTYPE_F32, INPUT_NORMAL);
	return t;
}

static void trip_free(struct trip *t)
{
	free(t->x);
	free(t->y);
	free(t->payload);
}

static int trip_encode(struct trip *t)
{
	struct kvp_encode_opts o = { .size = sizeof o, .calib = t->calib };
	ptrdiff_t row = (ptrdiff_t)(t->p.dim * sizeof(float));

	return kvp_plane_encode(k, t->codec, &t->p, &o,
		(struct kvp_raw_const){ t->x, row * t->p.tokens, row }, t->payload, t->lay.bytes);
}

static int trip_decode(struct trip *t)
{
	ptrdiff_t row = (ptrdiff_t)(t->p.dim * sizeof(float));

	return kvp_plane_decode(k, t->codec, &t->p, t->calib, t->payload, t->lay.bytes,
		(struct kvp_raw){ t->y, row * t->p.tokens, row });
}

static void trip_run(struct trip *t)
{
	assert_int_equal(trip_encode(t), 0);
	assert_int_equal(trip_decode(t), 0);
}

static double relmse(const struct trip *t)
{
	double e = 0.0, x = 0.0;

	for (size_t i = 0; i < t->n; i++) {
		double d = (double)t->x[i] - (double)t->y[i];

		e += d * d;
		x += (double)t->x[i] * (double)t->x[i];
	}
	return e / x;
}

/* The identity: what aither's rows hold is then a matter of arithmetic on paper. */
static const struct kvp_calib *identity(uint32_t dim)
{
	static float m[KVP_PLANE_DIM_MAX * KVP_PLANE_DIM_MAX];
	static struct kvp_calib c;

	memset(m, 0, sizeof m);
	for (uint32_t i = 0; i < dim; i++)
		m[i * dim + i] = 1.0f;
	c = (struct kvp_calib){ .dim = dim, .haar = m, .digest = 1 };
	return &c;
}

static const struct kvp_calib *haar(uint32_t dim)
{
	static float m[128 * 128];
	static double work[128 * 128];
	static struct kvp_calib c;

	if (c.dim != dim)
		assert_int_equal(kvp_haar_init(dim, 42, work, m, &c), 0);
	return &c;
}

/* ---- by hand ---- */

/* Channel c of 32 tokens is c + (t + c) % 4: scale 1, minimum c, codes (t + c) % 4. */
static void kivi_keys_by_hand(void **state)
{
	static const uint8_t byte[] = { 0xe4, 0x39, 0x4e, 0x93 };
	struct trip t = trip_new("pub-kivi2", 32, 1, 8, KVP_PLANE_K, NULL);

	(void)state;
	for (uint32_t i = 0; i < 32; i++)
		for (uint32_t c = 0; c < 8; c++)
			t.x[i * 8 + c] = (float)(c + (i + c) % 4);
	trip_run(&t);
	/* [channel][two words of 16 tokens] */
	for (uint32_t c = 0; c < 8; c++) {
		for (uint32_t i = 0; i < 8; i++)
			assert_int_equal(t.payload[t.lay.codes + c * 8 + i], byte[c % 4]);
		assert_int_equal(load_u16(t.payload + t.lay.scale + 2 * c), 0x3c00);
		assert_int_equal(load_u16(t.payload + t.lay.minimum + 2 * c), f32_to_f16((float)c));
	}
	assert_memory_equal(t.x, t.y, t.n * sizeof *t.x);
	trip_free(&t);
}

/* Two tokens of 32 channels, i % 16 and -4 + (i % 16) / 2. */
static void kivi_values_by_hand(void **state)
{
	static const uint8_t row[] = { 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe };
	struct trip t = trip_new("pub-kivi4", 2, 1, 32, KVP_PLANE_V, NULL);

	(void)state;
	for (uint32_t i = 0; i < 32; i++) {
		t.x[i] = (float)(i % 16);
		t.x[32 + i] = -4.0f + (float)(i % 16) / 2.0f;
	}
	trip_run(&t);
	for (uint32_t i = 0; i < 4; i++)
		assert_memory_equal(t.payload + t.lay.codes + 8 * i, row, 8);
	assert_int_equal(load_u16(t.payload + t.lay.scale), 0x3c00);
	assert_int_equal(load_u16(t.payload + t.lay.scale + 2), 0x3800);
	assert_int_equal(load_u16(t.payload + t.lay.minimum), 0);
	assert_int_equal(load_u16(t.payload + t.lay.minimum + 2), 0xc400);
	assert_memory_equal(t.x, t.y, t.n * sizeof *t.x);
	trip_free(&t);
}

/*
 * x = (3, 1, -1, -3, 3, 1, -1, -3) / 2 has norm sqrt 10; divided by it and times sqrt 8 that is
 * +-1.3416 and +-.4472: codes 3 2 1 0, 6 4 3 1 or 12 9 6 3, twice.
 */
static void aither_by_hand(void **state)
{
	static const struct {
		const char *name;
		uint8_t row[4];
		float c[2];
	} want[] = { { "pub-aither2", { 0xe4, 0xe4 }, { 1.510469f, .452781f } },
		{ "pub-aither3", { 0xd1, 0x9d, 0x19 }, { 1.344134f, .245104f } },
		{ "pub-aither4", { 0xc9, 0x63, 0xc9, 0x63 }, { 1.256233f, .388089f } } };

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct trip t = trip_new(want[i].name, 3, 2, 8, KVP_PLANE_K, identity(8));

		for (uint32_t j = 0; j < t.n; j++)
			t.x[j] =
				(float)(1u << j / 8) * ((float[]){ 1.5f, .5f, -.5f, -1.5f })[j % 4];
		trip_run(&t);
		for (uint32_t j = 0; j < 6; j++) {
			/* [token][head] */
			float norm, scale = (float)(1u << (j % 2 * 3 + j / 2));

			assert_memory_equal(t.payload + t.lay.codes + j * t.lay.row_bytes,
				want[i].row, t.lay.row_bytes);
			memcpy(&norm, t.payload + t.lay.scale + 4 * j, 4);
			assert_true(fabs((double)norm / sqrt(10.0) / (double)scale - 1.0) < 1e-6);
		}
		assert_true(fabsf(t.y[0] / (sqrtf(10.0f / 8.0f) * want[i].c[0]) - 1.0f) < 1e-6f);
		assert_true(fabsf(t.y[5] / (sqrtf(10.0f / 8.0f) * want[i].c[1]) - 1.0f) < 1e-6f);
		assert_true(t.y[7] == -t.y[0]);
		trip_free(&t);
	}
}

/*
 * (0, 1, 2, 0, 0, 0, 0, 0) times the Hadamard matrix of order 8 is (3, 1, -1, -3) twice, and its
 * norm sqrt 5: the codes of above, from the low bits up. Read back it has that norm, in fp16.
 */
static void vllm_keys_by_hand(void **state)
{
	static const struct {
		const char *name;
		uint8_t row[6];
		double a, b;
	} want[] = { { "pub-vllm3", { 0xe6, 0x62, 0x2e, 0x79, 0x40 }, 1.34318, .2449836 },
		{ "pub-vllm4", { 0x9c, 0x36, 0x9c, 0x36, 0x79, 0x40 }, 1.2562576, .3881378 } };

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct trip t = trip_new(want[i].name, 1, 1, 8, KVP_PLANE_K, NULL);
		double a = want[i].a, b = want[i].b, unit = 2.236328125 / sqrt(2 * (a * a + b * b));

		memset(t.x, 0, t.n * sizeof *t.x);
		t.x[1] = 1.0f;
		t.x[2] = 2.0f;
		trip_run(&t);
		assert_int_equal(t.lay.bytes - t.lay.codes, i ? 6 : 5);
		assert_memory_equal(t.payload + t.lay.codes, want[i].row, i ? 6 : 5);
		assert_true(fabs((double)t.y[1] - unit * (a - b)) < 1e-6);
		assert_true(fabs((double)t.y[2] - unit * (a + b)) < 1e-6);
		assert_true(fabsf(t.y[0]) < 1e-6f && fabsf(t.y[7]) < 1e-6f);
		trip_free(&t);
	}
}

static void vllm_values_and_fp8_keys_by_hand(void **state)
{
	struct trip t3 = trip_new("pub-vllm3", 1, 1, 8, KVP_PLANE_V, NULL);
	struct trip t4 = trip_new("pub-vllm4", 1, 1, 8, KVP_PLANE_V, NULL);
	struct trip t8 = trip_new("pub-vllm8", 1, 1, 8, KVP_PLANE_K, NULL);
	static const uint8_t want3[] = { 0x88, 0xc6, 0xfa, 0x00, 0x3c, 0x00, 0x00 };
	/* Halves go up: .25 is code 1 here, not 0. */
	static const float x4[] = { -1.0f, 6.5f, -.75f, 6.0f, 0.0f, 5.5f, .5f, 5.0f };
	static const uint8_t want4[] = { 0xf0, 0xe1, 0xd2, 0xc3, 0x00, 0x38, 0x00, 0xbc };
	static const float x8[] = { 1.0f, 448.0f, 500.0f, -2.0f, 0.0f, 0x1p-9f, 1.0625f, -1.1875f };
	static const uint8_t want8[] = { 0x38, 0x7e, 0x7e, 0xc0, 0x00, 0x01, 0x38, 0xba };

	(void)state;
	for (int i = 0; i < 8; i++)
		t3.x[i] = (float)i;
	trip_run(&t3);
	assert_int_equal(t3.lay.bytes - t3.lay.codes, 7);
	assert_memory_equal(t3.payload + t3.lay.codes, want3, 7);
	assert_memory_equal(t3.x, t3.y, 32);
	memcpy(t4.x, x4, sizeof x4);
	trip_run(&t4);
	assert_int_equal(t4.lay.bytes - t4.lay.codes, 8);
	assert_memory_equal(t4.payload + t4.lay.codes, want4, 8);
	assert_true(t4.y[2] == -.5f && t4.y[7] == 5.0f);
	memcpy(t8.x, x8, sizeof x8);
	trip_run(&t8);
	assert_int_equal(t8.lay.bytes - t8.lay.codes, 8);
	assert_memory_equal(t8.payload + t8.lay.codes, want8, 8);
	assert_true(t8.y[2] == 448.0f && t8.y[5] == 0x1p-9f && t8.y[7] == -1.25f);
	trip_free(&t3);
	trip_free(&t4);
	trip_free(&t8);
}

/* ---- a reader of its own ---- */

/* Bit by bit: code i of a row, whose bits begin at the low or at the high end of every byte. */
static unsigned int code_at(const uint8_t *row, uint32_t bits, uint32_t i, int high_first)
{
	unsigned int code = 0;

	for (uint32_t b = 0; b < bits; b++) {
		uint32_t at = i * bits + b;
		unsigned int bit =
			high_first ? row[at / 8] >> (7 - at % 8) & 1u : row[at / 8] >> at % 8 & 1u;

		code |= bit << (high_first ? bits - 1 - b : b);
	}
	return code;
}

static double half_at(const uint8_t *p)
{
	return (double)f16_to_f32(load_u16(p));
}

static void same(const struct trip *t, uint32_t h, uint32_t tok, uint32_t c, double want)
{
	double got = (double)t->y[((size_t)h * t->p.tokens + tok) * t->p.dim + c];

	if (fabs(got - want) > 2e-5 * (1.0 + fabs(want)))
		fail_msg("codec %x head %u token %u channel %u: %g, not %g", t->codec, h, tok, c,
			got, want);
}

static void read_kivi(const struct trip *t, uint32_t bits, uint32_t g)
{
	int keys = t->p.kind == KVP_PLANE_K;
	uint32_t T = t->p.tokens, D = t->p.dim, along = keys ? T : D, across = keys ? D : T;

	for (uint32_t h = 0; h < t->p.heads; h++)
		for (uint32_t a = 0; a < across; a++)
			for (uint32_t i = 0; i < along; i++) {
				size_t line = (size_t)h * across + a;
				size_t scalar = 2 * (line * (along / g) + i / g);
				unsigned int code =
					code_at(t->payload + t->lay.codes + line * along * bits / 8,
						bits, i, 0);

				same(t, h, keys ? i : a, keys ? a : i,
					code * half_at(t->payload + t->lay.scale + scalar) +
						half_at(t->payload + t->lay.minimum + scalar));
			}
}

static void kivi_is_read_as_documented(void **state)
{
	(void)state;
	for (uint32_t kind = 0; kind < 2; kind++) {
		struct trip a = trip_new("pub-kivi2", 96, 3, 64, kind, NULL);
		struct trip b = trip_new("pub-kivi4-g64", 128, 2, 192, kind, NULL);

		trip_run(&a);
		read_kivi(&a, 2, 32);
		trip_run(&b);
		read_kivi(&b, 4, 64);
		trip_free(&a);
		trip_free(&b);
	}
}

/* The same codes and scalars as kivi, in another order: what comes back is bit for bit the same. */
static void kivi_equals_ours(void **state)
{
	static const char *const names[][2] = { { "pub-kivi2", "kivi2" }, { "pub-kivi4", "kivi4" },
		{ "pub-kivi2-g64", "kivi2-g64" }, { "pub-kivi4-g128", "kivi4-g128" } };

	(void)state;
	for (int i = 0; i < 8; i++) {
		struct trip a = trip_new(names[i / 2][0], 128, 2, 128, i & 1, NULL);
		struct trip b = trip_new(names[i / 2][1], 128, 2, 128, i & 1, NULL);

		memcpy(b.x, a.x, a.n * sizeof *a.x);
		trip_run(&a);
		trip_run(&b);
		assert_memory_equal(a.y, b.y, a.n * sizeof *a.y);
		trip_free(&a);
		trip_free(&b);
	}
}

static double centroid(const double *half, uint32_t bits, unsigned int code)
{
	unsigned int n = 1u << (bits - 1);

	return code >= n ? half[code - n] : -half[n - 1 - code];
}

static void aither_is_read_as_documented(void **state)
{
	static const double half[3][8] = { { .452781, 1.510469 },
		{ .245104, .756031, 1.344134, 2.152090 },
		{ .128350, .388089, .656804, .942391, 1.256233, 1.618002, 2.069016, 2.733266 } };
	static const char *const names[] = { "pub-aither2", "pub-aither3", "pub-aither4" };
	static const double error[] = { .1160, .0340, .00932 };

	(void)state;
	for (uint32_t b = 2; b <= 4; b++) {
		struct trip t = trip_new(names[b - 2], 400, 2, 128, b & 1, haar(128));
		const float *m = t.calib->haar;

		trip_run(&t);
		assert_int_equal(t.lay.row_bytes, 128 * b / 8);
		assert_int_equal(t.lay.bytes - t.lay.scale, 400 * 2 * 4);
		assert_true(fabs(relmse(&t) / error[b - 2] - 1.0) < 0.03);
		for (uint32_t tok = 0; tok < 400; tok += 57) {
			for (uint32_t h = 0; h < 2; h++) {
				const uint8_t *row =
					t.payload + t.lay.codes + (tok * 2 + h) * (128 * b / 8);
				float norm;

				memcpy(&norm, t.payload + t.lay.scale + (tok * 2 + h) * 4, 4);
				for (uint32_t c = 0; c < 128; c++) {
					double sum = 0.0;

					for (uint32_t i = 0; i < 128; i++)
						sum += (double)m[i * 128 + c] *
						       centroid(half[b - 2], b,
							       code_at(row, b, i, 1));
					same(&t, h, tok, c, sum * (double)norm / sqrt(128.0));
				}
			}
		}
		trip_free(&t);
	}
}

/* Sylvester's matrix: the sign of entry i, j is the parity of i & j. */
static double sylvester(uint32_t i, uint32_t j)
{
	return __builtin_parity(i & j) ? -1.0 : 1.0;
}

static void vllm_is_read_as_documented(void **state)
{
	static const double half[2][8] = { { .2449836, .7556455, 1.34318, 2.1503495 },
		{ .1284277, .3881378, .6568799, .9424482, 1.2562576, 1.6178818, 2.0684471,
			2.7309222 } };
	static const char *const names[] = { "pub-vllm3", "pub-vllm4" };
	static const double error[] = { .0338, .00917 };

	(void)state;
	for (uint32_t b = 3; b <= 4; b++) {
		struct trip key = trip_new(names[b - 3], 400, 2, 128, KVP_PLANE_K, NULL);
		struct trip val = trip_new(names[b - 3], 400, 2, 128, KVP_PLANE_V, NULL);

		trip_run(&key);
		trip_run(&val);
		assert_int_equal(key.lay.row_bytes, 128 * b / 8 + 2);
		assert_int_equal(val.lay.row_bytes, 128 * b / 8 + 4);
		assert_true(fabs(relmse(&key) / error[b - 3] - 1.0) < 0.03);
		for (uint32_t i = 0; i < 800; i += 57) {
			const uint8_t *row = key.payload + key.lay.codes + i * key.lay.row_bytes;
			double c[128], cc = 0.0;

			for (uint32_t j = 0; j < 128; j++) {
				c[j] = centroid(half[b - 3], b, code_at(row, b, j, 0));
				cc += c[j] * c[j];
			}
			for (uint32_t j = 0; j < 128; j++) {
				double sum = 0.0;

				for (uint32_t l = 0; l < 128; l++)
					sum += sylvester(j, l) * c[l];
				same(&key, i % 2, i / 2, j,
					sum / sqrt(128.0 * cc) * half_at(row + 128 * b / 8));
			}
			row = val.payload + val.lay.codes + i * val.lay.row_bytes;
			for (uint32_t j = 0; j < 128; j++)
				same(&val, i % 2, i / 2, j,
					code_at(row, b, j, 0) * half_at(row + 128 * b / 8) +
						half_at(row + 128 * b / 8 + 2));
		}
		trip_free(&key);
		trip_free(&val);
	}
}

/* ---- edges ---- */

static const char *const names[] = { "pub-kivi2", "pub-kivi4-g64", "pub-aither2", "pub-aither3",
	"pub-aither4", "pub-vllm3", "pub-vllm4" };

/* NaN counts as 0, an infinity as 65504; values never reach another token. */
static void nan_stays_where_it_is(void **state)
{
	static const float evil[] = { NAN, INFINITY, -INFINITY, 1e30f };

	(void)state;
	for (size_t i = 0; i < 4 * sizeof names / sizeof *names; i++) {
		struct trip t = trip_new(names[i / 4], 64, 2, 128, KVP_PLANE_V, haar(128));
		float *clean = malloc(t.n * sizeof *clean);

		trip_run(&t);
		memcpy(clean, t.y, t.n * sizeof *clean);
		t.x[37 * 128 + 5] = evil[i % 4];
		trip_run(&t);
		for (size_t j = 0; j < t.n; j++) {
			assert_true(isfinite(t.y[j]));
			if (j / 128 != 37)
				assert_true(t.y[j] == clean[j]);
		}
		memset(t.x, 0, t.n * sizeof *t.x);
		trip_run(&t);
		for (size_t j = 0; j < t.n; j++)
			assert_true(t.y[j] == 0.0f);
		free(clean);
		trip_free(&t);
	}
}

static void refusals(void **state)
{
	static const struct {
		const char *codec;
		struct kvp_plane p;
	} bad[] = {
		{ "pub-kivi2", { 33, 1, 128, KVP_DTYPE_F16, KVP_PLANE_K } },
		{ "pub-kivi2", { 16, 1, 128, KVP_DTYPE_F16, KVP_PLANE_K } },
		{ "pub-kivi4-g64", { 64, 1, 96, KVP_DTYPE_F16, KVP_PLANE_V } },
		{ "pub-kivi4", { 0, 1, 64, KVP_DTYPE_F16, KVP_PLANE_V } },
		{ "pub-aither4", { 1, 1, 96, KVP_DTYPE_F16, 0 } },
		{ "pub-aither2", { 1, 257, 128, KVP_DTYPE_F16, 0 } },
		{ "pub-vllm4", { 1, 1, 96, KVP_DTYPE_F16, KVP_PLANE_K } },
		{ "pub-vllm8", { 1, 1, 128, KVP_DTYPE_F16, KVP_PLANE_V } },
		{ "pub-vllm3", { UINT32_MAX, UINT32_MAX, 128, KVP_DTYPE_F16, KVP_PLANE_V } },
		{ "pub-vllm3", { 1, 1, 12, KVP_DTYPE_F16, KVP_PLANE_V } },
		{ "pub-vllm4", { 1, 1, 128, KVP_DTYPE_F8, KVP_PLANE_V } },
	};
	static const char *const none[] = { "pub-kivi3", "pub-kivi2-g16", "pub-vllm2", "pub-vllm5",
		"pub-aither1", "pub-aither8" };
	struct trip t = trip_new("pub-vllm4", 8, 2, 64, KVP_PLANE_K, NULL);
	struct trip a = trip_new("pub-aither4", 8, 2, 64, KVP_PLANE_K, NULL);
	struct kvp_encode_opts o = { .size = sizeof o, .force_exponent = 1, .exponent = 1 };
	struct kvp_layout lay;
	uint32_t codec;
	size_t bytes;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(
			kvp_plane_bytes(codec_of(bad[i].codec), &bad[i].p, &bytes), -EINVAL);
	for (size_t i = 0; i < sizeof none / sizeof *none; i++)
		assert_int_equal(kvp_codec_parse(none[i], &codec), -ENOENT);
	/* There is no exponent, in either direction. */
	memset(t.payload, 0x5a, t.lay.bytes);
	assert_int_equal(
		kvp_plane_encode(k, t.codec, &t.p, &o, (struct kvp_raw_const){ t.x, 8 * 256, 256 },
			t.payload, t.lay.bytes),
		-EINVAL);
	assert_int_equal(t.payload[0], 0x5a);
	trip_run(&t);
	t.payload[24] = 1;
	assert_int_equal(trip_decode(&t), -EBADMSG);
	t.payload[24] = 0;
	t.payload[4] = 2;
	assert_int_equal(trip_decode(&t), -EPROTONOSUPPORT);
	/* aither without its matrix, and with another one. */
	assert_int_equal(trip_encode(&a), -ENOENT);
	a.calib = identity(64);
	trip_run(&a);
	a.calib = haar(64);
	assert_int_equal(trip_decode(&a), -ENOENT);
	assert_int_equal(
		kvp_published_begin(KVP_CODEC_TQ4, &t.p, NULL, t.payload, t.lay.bytes, &lay),
		-EINVAL);
	assert_int_equal(kvp_published_begin(t.codec, &t.p, NULL, t.payload, t.lay.bytes - 1, &lay),
		-ENOSPC);
	assert_int_equal(kvp_published_begin(t.codec, &t.p, NULL, t.payload + 8, t.lay.bytes, &lay),
		-EINVAL);
	assert_int_equal(
		kvp_published_begin(a.codec, &a.p, NULL, a.payload, a.lay.bytes, &lay), -ENOENT);
	trip_free(&t);
	trip_free(&a);
}

/* An engine's tensors, laid in behind a header, are a payload. */
static void tensors_from_outside(void **state)
{
	struct trip t = trip_new("pub-aither4", 1, 1, 8, KVP_PLANE_V, identity(8));
	static const uint8_t row[] = { 0xc9, 0x63, 0xc9, 0x63 };
	static const float norm = 2.0f;
	struct kvp_layout lay;

	(void)state;
	memset(t.payload, 0x5a, t.lay.bytes);
	assert_int_equal(
		kvp_published_begin(t.codec, &t.p, t.calib, t.payload, t.lay.bytes, &lay), 0);
	memcpy(t.payload + lay.codes, row, sizeof row);
	memcpy(t.payload + lay.scale, &norm, sizeof norm);
	assert_int_equal(trip_decode(&t), 0);
	assert_true(fabsf(t.y[0] - 2.0f * 1.256233f / sqrtf(8.0f)) < 1e-6f);
	trip_free(&t);
}

static int setup(void **state)
{
	(void)state;
	inputs_init();
	printf("seed %llu\n", (unsigned long long)inputs_seed);
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
		cmocka_unit_test(kivi_keys_by_hand),
		cmocka_unit_test(kivi_values_by_hand),
		cmocka_unit_test(kivi_is_read_as_documented),
		cmocka_unit_test(kivi_equals_ours),
		cmocka_unit_test(aither_by_hand),
		cmocka_unit_test(aither_is_read_as_documented),
		cmocka_unit_test(vllm_keys_by_hand),
		cmocka_unit_test(vllm_values_and_fp8_keys_by_hand),
		cmocka_unit_test(vllm_is_read_as_documented),
		cmocka_unit_test(nan_stays_where_it_is),
		cmocka_unit_test(refusals),
		cmocka_unit_test(tensors_from_outside),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
