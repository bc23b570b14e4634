/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs: golden errors, exact sizes, edges, refusals. Names begin with rows of the acceptance
 * list. */
#include "kernels/dsp.h"
#include "kernels/kvp_haar.h"
#include "kernels/kvp_lloyd.h"
#include "kernels/numeric.h"
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

static struct kvp_kernels *k;

static uint32_t codec_of(const char *name)
{
	uint32_t codec;

	if (kvp_codec_parse(name, &codec) < 0)
		fail_msg("no codec %s", name);
	return codec;
}

static struct kvp_calib haar_of(uint32_t dim)
{
	static struct kvp_calib calib[2];
	struct kvp_calib *c = &calib[dim == 128];

	if (!c->dim) {
		double *work = malloc(sizeof *work * dim * dim);
		float *m = malloc(sizeof *m * dim * dim);

		assert_int_equal(kvp_haar_init(dim, 42, work, m, c), 0);
		free(work);
	}
	return *c;
}

/* A dense fp32 plane, its payload, and what that decodes to. */
struct trip {
	struct kvp_plane p;
	uint32_t codec;
	float *x, *y;
	uint8_t *payload;
	size_t n, bytes;
	struct kvp_calib calib;
};

static struct trip trip_new(
	const char *name, uint32_t tokens, uint32_t heads, uint32_t dim, uint32_t kind)
{
	struct trip t = { .p = { tokens, heads, dim, KVP_DTYPE_F32, kind },
		.codec = codec_of(name),
		.n = (size_t)tokens * heads * dim };

	t.x = calloc(t.n, sizeof *t.x);
	t.y = calloc(t.n, sizeof *t.y);
	assert_int_equal(kvp_plane_bytes(t.codec, &t.p, &t.bytes), 0);
	t.payload = aligned_alloc(64, (t.bytes + 63) & ~(size_t)63);
	if (strstr(name, "haar"))
		t.calib = haar_of(dim);
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
	struct kvp_encode_opts o = { .size = sizeof o, .calib = &t->calib };
	ptrdiff_t row = (ptrdiff_t)(t->p.dim * sizeof(float));

	return kvp_plane_encode(k, t->codec, &t->p, &o,
		(struct kvp_raw_const){ t->x, row * t->p.tokens, row }, t->payload, t->bytes);
}

static int trip_decode(struct trip *t)
{
	ptrdiff_t row = (ptrdiff_t)(t->p.dim * sizeof(float));

	return kvp_plane_decode(k, t->codec, &t->p, &t->calib, t->payload, t->bytes,
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

/* 20,480 vectors of N(0,1) within 1.5 % of the golden error. */
static void golden(const char *name, uint32_t dim, uint32_t kind, double want)
{
	struct trip t = trip_new(name, 512, 40, dim, kind);
	double got;

	trip_run(&t);
	got = relmse(&t);
	if (fabs(got / want - 1.0) > 0.015)
		fail_msg("%s d%u kind %u: relMSE %g, want %g", name, dim, kind, got, want);
	trip_free(&t);
}

static void a006_a011_a012_a015_kivi_errors(void **state)
{
	(void)state;
	for (uint32_t kind = 0; kind < 2; kind++) {
		golden("kivi2", 128, kind, 0.1539);
		golden("kivi3", 128, kind, 0.0281);
		golden("kivi4", 128, kind, 0.0061);
		golden("kivi2-g64", 128, kind, 0.2023);
		golden("kivi4-g64", 128, kind, 0.00803);
		golden("kivi2-g128", 128, kind, 0.2505);
		golden("kivi4-g128", 128, kind, 0.00996);
		golden("kivi2-g16", 128, kind, 0.1068); /* any group */
		golden("kivi4-g16", 128, kind, 0.00423);
	}
}

static void a072_hadamard_errors(void **state)
{
	(void)state;
	golden("hadamard4", 128, 0, 0.0099);
	golden("hadamard2", 128, 0, 0.2505);
}

static void byte_codec_errors(void **state)
{
	(void)state;
	golden("int8", 128, 0, 4.2e-5);
	golden("fp8", 128, 0, 6.6e-4);
	golden("fp8-e5m2", 128, 0, 2.63e-3);
}

static void d002_d020_tq_errors(void **state)
{
	(void)state;
	golden("tq2", 128, 0, 0.1305);
	golden("tq3", 128, 0, 0.0347);
	golden("tq4", 128, 0, 0.00924);
	golden("tq2-plain", 128, 0, 0.1160);
	golden("tq3-plain", 128, 0, 0.0340);
	golden("tq4-plain", 128, 0, 0.00932);
	golden("tq2-nc", 128, 0, 0.1188);
	golden("tq3-nc", 128, 0, 0.0338);
	golden("tq4-nc", 128, 0, 0.00917);
	golden("tq2", 64, 0, 0.1280);
	golden("tq3", 64, 0, 0.0337);
	golden("tq4", 64, 0, 0.0089);
	golden("tq4-h3", 128, 0, 0.00924);
	golden("tq3-haar", 128, 0, 0.0347);
}

/* 10,000 unit vectors: the plain variant's error against 4^-b, which the paper bounds by 2.72. */
static void d021_tq_ratio_to_the_bound(void **state)
{
	static const double want[] = { 1.86, 2.17, 2.39 };
	static const char *const names[] = { "tq2-plain", "tq3-plain", "tq4-plain" };

	(void)state;
	for (int i = 0; i < 3; i++) {
		struct trip t = trip_new(names[i], 500, 20, 128, 0);
		double ratio;

		trip_run(&t);
		ratio = relmse(&t) * pow(4.0, i + 2);
		assert_true(fabs(ratio / want[i] - 1.0) < 0.015);
		assert_true(ratio < sqrt(3.0) * M_PI / 2.0);
		trip_free(&t);
	}
}

static double bytes_of(const char *name, uint32_t tokens, uint32_t dim)
{
	double sum = 0.0;

	for (uint32_t kind = 0; kind < 2; kind++) {
		struct kvp_plane p = { tokens, 8, dim, KVP_DTYPE_F16, kind };
		size_t bytes;

		assert_int_equal(kvp_plane_bytes(codec_of(name), &p, &bytes), 0);
		sum += (double)(bytes - KVP_PLANE_HDR_BYTES) / (tokens * 8.0);
	}
	return sum;
}

static void a013_a014_a015_a017_d022_sizes(void **state)
{
	struct kvp_plane k_plane = { 100, 3, 128, KVP_DTYPE_F16, KVP_PLANE_K };
	struct kvp_plane v_plane = { 100, 3, 80, KVP_DTYPE_F16, KVP_PLANE_V };
	struct kvp_layout lay;

	(void)state;
	assert_true(bytes_of("tq4", 64, 128) == 132.0);
	assert_true(bytes_of("tq3", 64, 128) == 100.0);
	assert_true(bytes_of("tq2", 64, 128) == 68.0);
	assert_true(bytes_of("tq4-wide", 64, 128) == 136.0);
	assert_true(bytes_of("tq3-wide", 64, 128) == 104.0);
	assert_true(bytes_of("tq2-wide", 64, 128) == 72.0);
	assert_true(bytes_of("tq4", 64, 64) == 68.0);
	assert_true(bytes_of("kivi4", 64, 128) == 160.0);
	assert_true(bytes_of("kivi2", 64, 128) == 96.0);
	assert_true(bytes_of("kivi2-g64", 64, 128) == 80.0);
	assert_true(bytes_of("kivi2-g128", 128, 128) == 72.0);
	assert_true(bytes_of("kivi2-g16", 64, 128) == 128.0);
	assert_true(bytes_of("int8", 64, 128) == 260.0);
	assert_true(bytes_of("fp8", 64, 128) == 260.0);
	assert_true(bytes_of("hadamard4", 64, 128) == 136.0);
	assert_true(bytes_of("hadamard2", 64, 128) == 72.0);
	/* Keys: one scale per channel and group; the four tokens beyond three groups stay native.
	 */
	assert_int_equal(kvp_plane_layout(codec_of("kivi4"), &k_plane, &lay), 0);
	assert_int_equal(lay.minimum - lay.scale, 3 * 3 * 128 * 2);
	assert_int_equal(lay.bytes - lay.native, 3 * 4 * 128 * 2);
	/* Values: one scale per token and ceil(80 / 32) groups. */
	assert_int_equal(kvp_plane_layout(codec_of("kivi4"), &v_plane, &lay), 0);
	assert_int_equal(lay.bytes - lay.minimum, 3 * 100 * 3 * 2);
}

/* 16 tokens, 8 heads, d 128, K and V in 4 bits with fp32 scalars. */
static void d028_page_bytes(void **state)
{
	(void)state;
	assert_true(bytes_of("tq4-wide", 16, 128) * 16 * 8 == 17408.0);
}

static void a005_native_is_bit_exact(void **state)
{
	static const uint32_t dtypes[] = { KVP_DTYPE_F32, KVP_DTYPE_F16, KVP_DTYPE_BF16,
		KVP_DTYPE_F8 };
	static const uint32_t sizes[] = { 4, 2, 2, 1 };

	(void)state;
	for (int i = 0; i < 4; i++) {
		struct kvp_plane p = { 7, 3, 33, dtypes[i], 0 };
		size_t n = 7 * 3 * 33 * sizes[i], bytes;
		uint8_t *x = malloc(n), *y = malloc(n), *out = aligned_alloc(16, (n + 15) & ~15ul);
		ptrdiff_t row = 33 * (ptrdiff_t)sizes[i];

		inputs_noise(x, n);
		assert_int_equal(kvp_plane_bytes(KVP_CODEC_NATIVE, &p, &bytes), 0);
		assert_int_equal(bytes, n);
		/* [token][head] in, [head][token] stored, [token][head] out */
		assert_int_equal(kvp_plane_encode(k, KVP_CODEC_NATIVE, &p, NULL,
					 (struct kvp_raw_const){ x, row, 3 * row }, out, n),
			0);
		assert_int_equal(kvp_plane_decode(k, KVP_CODEC_NATIVE, &p, NULL, out, n,
					 (struct kvp_raw){ y, row, 3 * row }),
			0);
		assert_memory_equal(x, y, n);
		free(x);
		free(y);
		free(out);
	}
}

static void d003_d004_d005_d006_d007_codebooks(void **state)
{
	static const double gauss[] = { .7978846, .4527800, 1.5104176, .2450942, .7560053,
		1.3439093, 2.1519457, .1283950, .3880483, .6567591, .9423405, 1.2562312, 1.6180464,
		2.0690172, 2.7325896 };
	static const double mse[] = { .363380, .117482, .034548, .009501 };
	/* Of the sphere, by the error its book leaves. */
	static const double sphere64[] = { .35839, .11453, .03339, .00913 };
	static const double sphere128[] = { .36089, .11600, .03397, .00932 };
	double c[128], m;
	int at = 0;

	(void)state;
	for (uint32_t b = 1; b <= 4; b++) {
		assert_int_equal(kvp_lloyd_max(b, 0, c, &m), 0);
		for (int i = 0; i < 1 << (b - 1); i++)
			assert_true(fabs(c[i] - gauss[at++]) < 1e-6);
		assert_true(fabs(m - mse[b - 1]) < 1e-6);
		assert_int_equal(kvp_lloyd_max(b, 64, c, &m), 0);
		assert_true(fabs(m - sphere64[b - 1]) < 6e-6);
		assert_int_equal(kvp_lloyd_max(b, 128, c, &m), 0);
		assert_true(fabs(m - sphere128[b - 1]) < 6e-6);
	}
	assert_int_equal(kvp_lloyd_max(0, 0, c, &m), -EINVAL);
	assert_int_equal(kvp_lloyd_max(9, 0, c, &m), -EINVAL);
	assert_int_equal(kvp_lloyd_max(4, 3, c, &m), -EINVAL);
}

/* Every carried centroid is the solver's, rounded to 2^-14. */
static void d005_books_are_the_solvers(void **state)
{
	(void)state;
	for (uint32_t dim = 0; dim <= KVP_PLANE_DIM_MAX; dim += 8) {
		for (uint32_t bits = 1; bits <= 4; bits++) {
			float cent[16], bound[16];
			double c[8], m;
			uint32_t half = 1u << (bits - 1);

			assert_int_equal(kvp_codebook(bits, dim, cent, bound), 0);
			assert_int_equal(kvp_lloyd_max(bits, dim, c, &m), 0);
			for (uint32_t i = 0; i < half; i++) {
				assert_true(
					fabs((double)cent[half + i] - c[i]) <= 0x1p-15 * 1.0001);
				assert_true(cent[half - 1 - i] == -cent[half + i]);
			}
		}
	}
}

/* The bucket of z, as struct tq has it. */
static uint32_t code_by_step(const struct tq *tq, float z)
{
	uint32_t step = tq->step[(uint32_t)rne(4.0f * clampf(z, 3.75f)) & 31u];

	return (step & 15u) + (f32_from_bits(step & ~15u) <= z);
}

static uint32_t code_by_step_abs(const struct tq *tq, float z)
{
	uint32_t half = 1u << (tq->bits - 1), negative = z < 0.0f;
	uint32_t step = tq->step_abs[(uint32_t)fminf(3.5f * fabsf(z), 7.0f)];
	uint32_t i = (step & 15u) + (f32_bits(fabsf(z)) - negative > (step | 15u));

	return negative ? half - 1 - i : half + i;
}

/* One comparison finds the number of boundaries that are not above z: on all of them, and beside.
 */
static void codes_by_one_comparison(void **state)
{
	(void)state;
	for (uint32_t dim = 0; dim <= KVP_PLANE_DIM_MAX; dim += 8) {
		for (uint32_t bits = 2; bits <= 4; bits++) {
			struct tq tq = { .bits = bits };
			uint32_t n = (1u << bits) - 1;

			assert_int_equal(kvp_codebook(bits, dim, tq.cent, tq.bound), 0);
			kvp_codebook_steps(tq.bound, bits, tq.step, tq.step_abs);
			for (uint32_t i = 0; i < n; i++) {
				float b = tq.bound[i];
				float down = nextafterf(b, -10.0f), up = nextafterf(b, 10.0f);

				assert_int_equal(code_by_step(&tq, b), i + 1);
				assert_int_equal(code_by_step(&tq, down), i);
				assert_int_equal(code_by_step(&tq, up), i + 1);
				assert_int_equal(code_by_step_abs(&tq, b), i + 1);
				assert_int_equal(code_by_step_abs(&tq, down), i);
				assert_int_equal(code_by_step_abs(&tq, up), i + 1);
			}
			for (float z = -33.0f; z < 33.0f; z += 0x1p-7f) {
				uint32_t code = 0;

				for (uint32_t i = 0; i < n; i++)
					code += tq.bound[i] <= z;
				assert_int_equal(code_by_step(&tq, z), code);
				assert_int_equal(code_by_step_abs(&tq, z), code);
			}
			assert_int_equal(code_by_step(&tq, -0.0f), 1u << (bits - 1));
			assert_int_equal(code_by_step_abs(&tq, -0.0f), 1u << (bits - 1));
		}
	}
}

/* The sphere's density, integrated by brute force, has its cells' means where the solver says. */
static void d006_sphere_by_brute_force(void **state)
{
	(void)state;
	for (uint32_t dim = 64; dim <= 128; dim += 64) {
		double c[8], m, root = sqrt(dim);

		assert_int_equal(kvp_lloyd_max(4, dim, c, &m), 0);
		for (int i = 0; i < 8; i++) {
			double a = i ? (c[i - 1] + c[i]) / 2 : 0.0;
			double b = i < 7 ? (c[i] + c[i + 1]) / 2 : root;
			double mass = 0.0, moment = 0.0;

			for (int j = 0; j < 100000; j++) {
				double z = a + (b - a) * (j + 0.5) / 100000;
				double f = pow(1.0 - z * z / dim, (dim - 3.0) / 2.0);

				mass += f;
				moment += f * z;
			}
			assert_true(fabs(moment / mass - c[i]) < 1e-6);
		}
	}
}

static void d008_haar_is_orthogonal_and_pinned(void **state)
{
	static const uint64_t digest[] = { UINT64_C(0x3abd40de6592c8e4),
		UINT64_C(0xb8c4a71210c734b4) };

	(void)state;
	for (int i = 0; i < 2; i++) {
		uint32_t d = 64u << i;
		struct kvp_calib c = haar_of(d);

		assert_true(c.digest == digest[i]);
		for (uint32_t a = 0; a < d; a++) {
			for (uint32_t b = 0; b <= a; b++) {
				double dot = 0.0;

				for (uint32_t j = 0; j < d; j++)
					dot += (double)c.haar[a * d + j] *
					       (double)c.haar[b * d + j];
				assert_true(fabs(dot - (a == b)) < 1e-5);
			}
		}
	}
}

/* R^T R = d I and R preserves lengths, for every dim that has a Hadamard matrix. */
static void d009_hadamard_rotations(void **state)
{
	unsigned int dims = 0;

	(void)state;
	for (uint32_t d = 8; d <= KVP_PLANE_DIM_MAX; d += 8) {
		for (uint32_t kind = KVP_ROT_H1; kind <= KVP_ROT_H3; kind++) {
			struct rotation rot;
			float x[KVP_PLANE_DIM_MAX], y[KVP_PLANE_DIM_MAX];
			double xx = 0.0, yy = 0.0;

			if (kvp_hadamard_order(d) < 0)
				continue;
			dims++;
			assert_int_equal(kvp_rotation_init(&rot, kind, d, 5, NULL), 0);
			inputs_fill(x, d, KVP_DTYPE_F32, INPUT_NORMAL);
			memcpy(y, x, sizeof *y * d);
			kvp_rotate_fwd(&rot, y);
			for (uint32_t i = 0; i < d; i++) {
				xx += (double)x[i] * (double)x[i];
				yy += (double)y[i] * (double)y[i];
			}
			assert_true(fabs(yy / (xx * d) - 1.0) < 1e-5);
			kvp_rotate_inv(&rot, y);
			for (uint32_t i = 0; i < d; i++)
				assert_true(fabs((double)y[i] / d - (double)x[i]) < 1e-5);
		}
	}
	assert_true(dims > 40);
	assert_int_equal(kvp_hadamard_order(576), 36);
	assert_int_equal(kvp_hadamard_order(104), -EINVAL);
}

/* Slope of <q, x^> on <q, x> at cos(q, x) = .3: unbiased within 3 sigma of 1, plain below. */
static void unbiased_inner_products(void **state)
{
	static const char *const names[] = { "tq2", "tq3", "tq4", "tq2-plain", "tq3-plain",
		"tq4-plain" };
	static const double want[] = { 0, 0, 0, -.115, -.033, -.009 };

	(void)state;
	for (int i = 0; i < 6; i++) {
		struct trip t = trip_new(names[i], 512, 40, 128, 0);
		double sum = 0.0, sq = 0.0, n = 0.0, mean, sigma;

		trip_run(&t);
		for (size_t v = 0; v < t.n; v += 128) {
			double u[128], xx = 0.0, xu = 0.0, uu = 0.0, a = 0.0, b = 0.0, f;

			for (int j = 0; j < 128; j++) {
				u[j] = inputs_normal();
				xx += (double)t.x[v + j] * (double)t.x[v + j];
				xu += (double)t.x[v + j] * u[j];
			}
			for (int j = 0; j < 128; j++) {
				u[j] -= xu / xx * (double)t.x[v + j];
				uu += u[j] * u[j];
			}
			for (int j = 0; j < 128; j++) {
				double q = 0.3 * (double)t.x[v + j] / sqrt(xx) +
					   sqrt(0.91) * u[j] / sqrt(uu);

				a += q * (double)t.x[v + j];
				b += q * (double)t.y[v + j];
			}
			f = b / a - 1.0;
			sum += f;
			sq += f * f;
			n += 1.0;
		}
		mean = sum / n;
		sigma = sqrt((sq / n - mean * mean) / n);
		if (i < 3)
			assert_true(fabs(mean) < 3.5 * sigma + 1e-4);
		else
			assert_true(fabs(mean - want[i]) < 4.0 * sigma + 0.0015);
		trip_free(&t);
	}
}

static const char *const lossy[] = { "fp8", "fp8-e5m2", "int8", "kivi2", "kivi4", "asym3",
	"asym3-g8", "asym4-g16-wide", "sym4-g8", "sym4-g16-wide", "sym8-wide", "tq2", "tq3", "tq4",
	"tq4-plain", "tq4-nc", "tq4-h3", "tq3-sphere-wide", "tq4-haar", "hadamard2", "hadamard4" };
#define LOSSY (sizeof lossy / sizeof *lossy)

/* Zeros decode to zeros, constants stay finite, whatever the codec. */
static void edges_zero_and_constant(void **state)
{
	(void)state;
	for (size_t i = 0; i < LOSSY; i++) {
		struct trip t = trip_new(lossy[i], 64, 2, 128, i & 1);

		memset(t.x, 0, t.n * sizeof *t.x);
		trip_run(&t);
		for (size_t j = 0; j < t.n; j++)
			assert_true(t.y[j] == 0.0f);
		for (size_t j = 0; j < t.n; j++)
			t.x[j] = 3.25f;
		trip_run(&t);
		for (size_t j = 0; j < t.n; j++)
			assert_true(isfinite(t.y[j]));
		trip_free(&t);
	}
}

/* A constant group has scale 0 and decodes to its value exactly (if fp16 can hold it). */
static void a011_constant_group(void **state)
{
	struct trip t = trip_new("kivi4", 32, 1, 64, KVP_PLANE_K);

	(void)state;
	for (size_t j = 0; j < t.n; j++)
		t.x[j] = (float)(j % 64) - 31.5f;
	trip_run(&t);
	for (size_t j = 0; j < t.n; j++)
		assert_true(t.y[j] == t.x[j]);
	trip_free(&t);
}

/* NaN and infinities change their own element, or vector, and no other token. */
static void edges_nan_stays_where_it_is(void **state)
{
	static const float evil[] = { NAN, INFINITY, -INFINITY };

	(void)state;
	for (size_t i = 0; i < LOSSY; i++) {
		for (int e = 0; e < 3; e++) {
			struct trip a = trip_new(lossy[i], 64, 2, 128, KVP_PLANE_V);
			size_t at = 37 * 128 + 5;
			float *clean = malloc(a.n * sizeof *clean);

			trip_run(&a);
			memcpy(clean, a.y, a.n * sizeof *clean);
			a.x[at] = evil[e];
			trip_run(&a);
			for (size_t j = 0; j < a.n; j++) {
				assert_true(isfinite(a.y[j]));
				if (j / 128 != 37)
					assert_true(a.y[j] == clean[j]);
			}
			free(clean);
			trip_free(&a);
		}
	}
}

/* Norms that overflow fp16, and ones that underflow it, cost no accuracy. */
static void edges_magnitudes(void **state)
{
	static const double magnitude[] = { 1e37, 1e20, 7e4, 1e-3, 1e-20, 1e-33 };

	(void)state;
	for (size_t i = 0; i < LOSSY; i++) {
		struct trip t = trip_new(lossy[i], 64, 4, 128, i & 1);
		double base;
		float *x = malloc(t.n * sizeof *x);

		memcpy(x, t.x, t.n * sizeof *x);
		trip_run(&t);
		base = relmse(&t);
		for (int m = 0; m < 6; m++) {
			double e = 0.0, xx = 0.0;

			for (size_t j = 0; j < t.n; j++)
				t.x[j] = (float)((double)x[j] * magnitude[m]);
			trip_run(&t);
			for (size_t j = 0; j < t.n; j++) {
				double d = ((double)t.x[j] - (double)t.y[j]) / magnitude[m];

				e += d * d;
				xx += (double)x[j] * (double)x[j];
			}
			if (fabs(e / xx / base - 1.0) > 0.03)
				fail_msg("%s at %g: relMSE %g instead of %g", lossy[i],
					magnitude[m], e / xx, base);
		}
		free(x);
		trip_free(&t);
	}
}

/* One token is enough to encode (but for kivi keys), and encoding is per token: no calibration. */
static void d001_online(void **state)
{
	(void)state;
	for (size_t i = 0; i < LOSSY; i++) {
		struct trip all = trip_new(lossy[i], 16, 1, 128, KVP_PLANE_V);

		trip_run(&all);
		for (uint32_t tok = 0; tok < 16; tok++) {
			struct trip one = trip_new(lossy[i], 1, 1, 128, KVP_PLANE_V);

			memcpy(one.x, all.x + (size_t)tok * 128, 512);
			trip_run(&one);
			assert_memory_equal(one.y, all.y + (size_t)tok * 128, 512);
			trip_free(&one);
		}
		trip_free(&all);
	}
}

/* Rows of 68 bytes of which 64 are used, negative strides, heads interleaved. */
static void d057_strides(void **state)
{
	struct trip t = trip_new("tq4", 9, 2, 32, 0);
	float wide[9 * 2 * 34], back[9 * 2 * 34];
	uint8_t payload[4096] __attribute__((aligned(64)));

	(void)state;
	trip_run(&t);
	memset(back, 0, sizeof back);
	for (int tok = 0; tok < 9; tok++)
		for (int h = 0; h < 2; h++)
			memcpy(wide + ((size_t)(8 - tok) * 2 + (size_t)h) * 34,
				t.x + ((size_t)h * 9 + (size_t)tok) * 32, 128);
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, NULL,
				 (struct kvp_raw_const){ wide + 8 * 68, 136, -272 }, payload,
				 sizeof payload),
		0);
	assert_memory_equal(payload, t.payload, t.bytes);
	assert_int_equal(kvp_plane_decode(k, t.codec, &t.p, NULL, payload, t.bytes,
				 (struct kvp_raw){ back + 8 * 68, 136, -272 }),
		0);
	for (int tok = 0; tok < 9; tok++)
		for (int h = 0; h < 2; h++) {
			const float *row = back + ((size_t)(8 - tok) * 2 + (size_t)h) * 34;

			assert_memory_equal(row, t.y + ((size_t)h * 9 + (size_t)tok) * 32, 128);
			assert_true(row[32] == 0.0f && row[33] == 0.0f);
		}
	trip_free(&t);
}

static void d010_d011_d012_d013_packing(void **state)
{
	struct kvp_plane p = { 1, 1, 128, KVP_DTYPE_F16, 0 };
	struct kvp_layout lay;

	(void)state;
	assert_int_equal(kvp_plane_layout(codec_of("tq4"), &p, &lay), 0);
	assert_int_equal(lay.row_bytes, 64);
	assert_int_equal(kvp_plane_layout(codec_of("tq3"), &p, &lay), 0);
	assert_int_equal(lay.row_bytes, 48);
	assert_int_equal(kvp_plane_layout(codec_of("tq2"), &p, &lay), 0);
	assert_int_equal(lay.row_bytes, 32);
	p.dim = 100;
	assert_int_equal(kvp_plane_layout(codec_of("tq2"), &p, &lay), -EINVAL);
}

static void refusals_of_geometry(void **state)
{
	static const struct {
		const char *codec;
		struct kvp_plane p;
	} bad[] = {
		{ "tq4", { 0, 1, 128, KVP_DTYPE_F16, 0 } },
		{ "tq4", { 513, 1, 128, KVP_DTYPE_F16, 0 } },
		{ "tq4", { UINT32_MAX, UINT32_MAX, UINT32_MAX, KVP_DTYPE_F16, 0 } },
		{ "tq4", { 1, 0, 128, KVP_DTYPE_F16, 0 } },
		{ "tq4", { 1, 257, 128, KVP_DTYPE_F16, 0 } },
		{ "tq4", { 1, 1, 0, KVP_DTYPE_F16, 0 } },
		{ "tq4", { 1, 1, 1032, KVP_DTYPE_F16, 0 } },
		{ "tq4", { 1, 1, 104, KVP_DTYPE_F16, 0 } },
		{ "tq4", { 1, 1, 128, KVP_DTYPE_F8, 0 } },
		{ "tq4", { 1, 1, 128, 9, 0 } },
		{ "tq4", { 1, 1, 128, KVP_DTYPE_F16, 2 } },
		{ "kivi4", { 31, 1, 128, KVP_DTYPE_F16, KVP_PLANE_K } },
		{ "hadamard4", { 1, 1, 88, KVP_DTYPE_F16, 0 } },
		{ "int8", { 1, 1, 12, KVP_DTYPE_F16, 0 } },
	};
	size_t bytes = 77;

	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		assert_int_equal(
			kvp_plane_bytes(codec_of(bad[i].codec), &bad[i].p, &bytes), -EINVAL);
		assert_int_equal(bytes, 77);
	}
	for (uint32_t id = 1; id < 0x2000; id++) {
		struct kvp_plane p = { 512, 1, 64, KVP_DTYPE_F16, 0 };
		char name[KVP_CODEC_NAME_MAX];
		uint32_t again;

		/* Ids and names are the same set. */
		if (kvp_plane_bytes(id, &p, &bytes) < 0) {
			assert_int_equal(kvp_codec_name(id, name), -ENOENT);
			continue;
		}
		assert_int_equal(kvp_codec_name(id, name), 0);
		assert_int_equal(kvp_codec_parse(name, &again), 0);
		assert_int_equal(again, id);
	}
	assert_int_equal(kvp_codec_parse("tq5", &(uint32_t){ 0 }), -ENOENT);
	assert_int_equal(kvp_codec_parse("tq4-", &(uint32_t){ 0 }), -ENOENT);
	assert_int_equal(kvp_codec_parse("", &(uint32_t){ 0 }), -ENOENT);
}

/* Whatever is refused leaves the output as it was. */
static void refusals_write_nothing(void **state)
{
	struct trip t = trip_new("tq4", 16, 2, 64, 0);
	struct kvp_encode_opts o = { .size = sizeof o };
	struct kvp_raw_const src = { t.x, 16 * 256, 256 };
	uint8_t out[8192] __attribute__((aligned(64))), clean[8192];

	(void)state;
	memset(out, 0x5a, sizeof out);
	memset(clean, 0x5a, sizeof clean);
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o, src, out, t.bytes - 1), -ENOSPC);
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o, src, out + 4, t.bytes), -EINVAL);
	src.data = (uint8_t *)t.x + 1;
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o, src, out, sizeof out), -EINVAL);
	src.data = out + 64; /* overlaps */
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o, src, out, sizeof out), -EINVAL);
	src.data = t.x;
	src.token_stride = 255;
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o, src, out, sizeof out), -EINVAL);
	src.token_stride = PTRDIFF_MAX / 4 * 4;
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o, src, out, sizeof out), -EINVAL);
	src.token_stride = 256;
	o.size = 8;
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o, src, out, sizeof out), -EINVAL);
	o = (struct kvp_encode_opts){ .size = sizeof o, .force_exponent = 1, .exponent = 126 };
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o, src, out, sizeof out), -EINVAL);
	assert_int_equal(
		kvp_plane_encode(k, codec_of("tq4-haar"), &t.p, NULL, src, out, sizeof out),
		-ENOENT);
	assert_memory_equal(out, clean, sizeof out);
	trip_free(&t);
}

/* Another version, codec, geometry, size or calibration is refused before anything is written. */
static void refusals_of_payloads(void **state)
{
	struct trip t = trip_new("tq4", 16, 2, 64, 0);
	static const struct {
		unsigned int at;
		int want;
	} flips[] = { { 0, -EBADMSG }, { 4, -EPROTONOSUPPORT }, { 6, -EBADMSG }, { 8, -EBADMSG },
		{ 12, -EBADMSG }, { 16, -EBADMSG }, { 18, -EBADMSG }, { 20, -EBADMSG },
		{ 22, -EBADMSG }, { 23, -EBADMSG }, { 27, -EBADMSG }, { 28, -EBADMSG },
		{ 40, -EBADMSG }, { 60, -EBADMSG } };
	ptrdiff_t row = 64 * sizeof(float);

	(void)state;
	trip_run(&t);
	for (size_t i = 0; i < sizeof flips / sizeof *flips; i++) {
		memset(t.y, 0x33, t.n * sizeof *t.y);
		t.payload[flips[i].at] ^= 0x40;
		assert_int_equal(trip_decode(&t), flips[i].want);
		t.payload[flips[i].at] ^= 0x40;
		for (size_t j = 0; j < t.n * sizeof *t.y; j++)
			assert_int_equal(((uint8_t *)t.y)[j], 0x33);
	}
	assert_int_equal(kvp_plane_decode(k, t.codec, &t.p, NULL, t.payload, t.bytes - 1,
				 (struct kvp_raw){ t.y, row * 16, row }),
		-EBADMSG);
	/* Rows that overlap when written. */
	assert_int_equal(kvp_plane_decode(k, t.codec, &t.p, NULL, t.payload, t.bytes,
				 (struct kvp_raw){ t.y, row * 16, row - 4 }),
		-EINVAL);
	assert_int_equal(kvp_plane_decode(k, t.codec, &t.p, NULL, t.payload, t.bytes,
				 (struct kvp_raw){ t.y, row, row }),
		-EINVAL);
	trip_free(&t);
}

/* Planes of several codecs, dims and seeds in one call come out as one by one; or none at all. */
static void a078_many_planes(void **state)
{
	static const char *const names[] = { "tq4", "tq4", "tq2", "kivi4", "native", "tq4-haar",
		"tq4-haar", "tq4", "hybrid", "tq4-nc" };
	enum { N = sizeof names / sizeof *names };
	struct kvp_decode_job jobs[N];
	struct trip t[N];
	float *want[N], *wide = aligned_alloc(64, 32 * 128 * sizeof *wide);
	static float other[128 * 128]; /* another matrix than haar_of(128) */
	size_t done;

	(void)state;
	for (size_t i = 0; i < N; i++) {
		struct kvp_encode_opts o = { .size = sizeof o, .seed = i == 1 ? 7 : 0 };
		ptrdiff_t row;

		t[i] = trip_new(names[i], 32, 1 + (uint32_t)i % 2, i == 7 ? 64 : 128, 0);
		row = (ptrdiff_t)(t[i].p.dim * sizeof(float));
		for (size_t j = 0; i == 6 && j < 128 * 128; j++)
			other[j] = -t[i].calib.haar[j ^ 1];
		if (i == 6)
			t[i].calib = (struct kvp_calib){ .dim = 128, .haar = other, .digest = 77 };
		o.calib = &t[i].calib;
		assert_int_equal(kvp_plane_encode(k, t[i].codec, &t[i].p, &o,
					 (struct kvp_raw_const){ t[i].x, row * 32, row },
					 t[i].payload, t[i].bytes),
			0);
		assert_int_equal(trip_decode(&t[i]), 0);
		want[i] = malloc(t[i].n * sizeof(float));
		memcpy(want[i], t[i].y, t[i].n * sizeof(float));
		memset(t[i].y, 0x33, t[i].n * sizeof(float));
		jobs[i] = (struct kvp_decode_job){ t[i].codec, t[i].p,
			t[i].calib.haar ? &t[i].calib : NULL, t[i].payload, t[i].bytes,
			{ t[i].y, row * 32, row } };
	}
	jobs[N - 1].in_size--;
	assert_int_equal(kvp_planes_decode(k, jobs, N, &done), -EBADMSG);
	assert_int_equal(done, 0);
	for (size_t i = 0; i < N; i++)
		for (size_t j = 0; j < t[i].n * sizeof(float); j++)
			assert_int_equal(((uint8_t *)t[i].y)[j], 0x33);
	jobs[N - 1].in_size++;
	assert_int_equal(kvp_planes_decode(k, jobs, N, &done), 0);
	assert_int_equal(done, N);
	for (size_t i = 0; i < N; i++)
		assert_memory_equal(t[i].y, want[i], t[i].n * sizeof(float));
	/* A destination over the payload of the next: that one is found out, not trusted. */
	memcpy(wide, t[1].payload, t[1].bytes);
	jobs[1].in = wide;
	jobs[0].dst.data = wide;
	assert_int_equal(kvp_planes_decode(k, jobs, 2, &done), -EBADMSG);
	assert_int_equal(done, 1);
	assert_int_equal(kvp_planes_decode(k, NULL, 0, &done), 0);
	free(wide);
	for (size_t i = 0; i < N; i++) {
		free(want[i]);
		trip_free(&t[i]);
	}
}

/*
 * A cache of several layers, of which one buffer of one layer holds what is decoded: layer after
 * layer, or some blocks of one. Only the rows of these blocks are written.
 */
static void d023_d024_d025_one_buffer_for_all_layers(void **state)
{
	enum { LAYERS = 5, BLOCKS = 6, T = 16, D = 64, BLOCK = 2 * T * D };
	static float layer[BLOCKS * BLOCK];
	const ptrdiff_t row = D * sizeof(float);
	struct trip t[LAYERS][BLOCKS];
	struct kvp_decode_job jobs[BLOCKS];
	size_t done;

	(void)state;
	for (int l = 0; l < LAYERS; l++) {
		for (int b = 0; b < BLOCKS; b++) {
			t[l][b] = trip_new(l % 2 ? "tq4" : "kivi2-g16", T, 2, D, b & 1);
			trip_run(&t[l][b]);
		}
	}
	for (int l = 0; l < LAYERS; l++) {
		for (int b = 0; b < BLOCKS; b++)
			jobs[b] = (struct kvp_decode_job){ t[l][b].codec, t[l][b].p, NULL,
				t[l][b].payload, t[l][b].bytes,
				{ layer + (size_t)b * BLOCK, row * T, row } };
		assert_int_equal(kvp_planes_decode(k, jobs, BLOCKS, &done), 0);
		for (int b = 0; b < BLOCKS; b++)
			assert_memory_equal(
				layer + (size_t)b * BLOCK, t[l][b].y, BLOCK * sizeof(float));
	}
	memset(layer, 0x33, sizeof layer);
	jobs[0] = jobs[4];
	jobs[1] = jobs[2];
	assert_int_equal(kvp_planes_decode(k, jobs, 2, &done), 0);
	for (int b = 0; b < BLOCKS; b++) {
		const uint8_t *at = (const uint8_t *)(layer + (size_t)b * BLOCK);

		if (b == 2 || b == 4)
			assert_memory_equal(at, t[LAYERS - 1][b].y, BLOCK * sizeof(float));
		for (size_t i = 0; b != 2 && b != 4 && i < BLOCK * sizeof(float); i++)
			assert_int_equal(at[i], 0x33);
	}
	for (int l = 0; l < LAYERS; l++)
		for (int b = 0; b < BLOCKS; b++)
			trip_free(&t[l][b]);
}

/* Twice the vector has the same codes and twice the norm; channels come back where they were. */
static void d032_norms_scale(void **state)
{
	static const char *const names[] = { "tq2-plain", "tq3", "tq4-nc", "tq4-wide" };

	(void)state;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		struct trip one = trip_new(names[i], 32, 1, 128, 0);
		struct trip two = trip_new(names[i], 32, 1, 128, 0);
		struct kvp_layout lay;

		for (size_t j = 0; j < one.n; j++)
			two.x[j] = 2.0f * one.x[j];
		trip_run(&one);
		trip_run(&two);
		assert_int_equal(kvp_plane_layout(one.codec, &one.p, &lay), 0);
		assert_memory_equal(one.payload + lay.codes, two.payload + lay.codes,
			32 * (size_t)lay.row_bytes);
		for (size_t j = 0; j < one.n; j++)
			assert_true(fabsf(two.y[j] - 2.0f * one.y[j]) <= 1e-5f * fabsf(two.y[j]));
		trip_free(&one);
		trip_free(&two);
	}
	/* One loud channel, even or odd, in either half of a row: it is the loudest afterwards. */
	for (uint32_t at = 0; at < 128; at++) {
		struct trip t = trip_new("tq4", 1, 1, 128, 0);
		uint32_t loudest = 0;

		memset(t.x, 0, t.n * sizeof *t.x);
		t.x[at] = 3.0f;
		trip_run(&t);
		for (uint32_t j = 0; j < 128; j++)
			loudest = fabsf(t.y[j]) > fabsf(t.y[loudest]) ? j : loudest;
		assert_int_equal(loudest, at);
		trip_free(&t);
	}
}

/* Scores in pieces give the weights and the sum that all at once give, by every instruction set. */
static void d032_softmax_streams(void **state)
{
	enum { PIECES = 7, N = PIECES * 112 };
	static float s[N] __attribute__((aligned(64))), w[N] __attribute__((aligned(64)));

	(void)state;
	for (size_t set = 0; set < LADDER && ladder_reaches(set); set++) {
		struct running run = { .max = -INFINITY };
		double max = -INFINITY, sum = 0.0, faded[PIECES];
		struct kvp_kernels *one;

		assert_int_equal(kvp_kernels_new(ladder[set].mask, &one), 0);
		for (int i = 0; i < N; i++) {
			s[i] = (float)(20.0 * inputs_normal());
			max = fmax(max, 0.25 * (double)s[i]);
		}
		for (int i = 0; i < N; i++)
			sum += exp(0.25 * (double)s[i] - max);
		memcpy(w, s, sizeof w);
		for (int p = 0; p < PIECES; p++) {
			struct softmax job = { .scale = 0.25f, .n = 112, .hi = 112 };
			float fade = one->dsp.softmax(&job, w + 112 * p, &run);

			faded[p] = 1.0;
			for (int before = 0; before < p; before++)
				faded[before] *= (double)fade;
		}
		assert_true(fabs((double)run.sum / sum - 1.0) < 1e-5);
		assert_true(fabs((double)run.max - max) < 1e-5);
		for (int i = 0; i < N; i++) {
			double want = exp(0.25 * (double)s[i] - max);

			assert_true(fabs((double)w[i] * faded[i / 112] - want) < 1e-5);
		}
		kvp_kernels_free(one);
	}
}

/* A plane written in parts with one exponent equals the plane written at once. */
static void forced_exponent(void **state)
{
	struct kvp_encode_opts o = { .size = sizeof o, .force_exponent = 1, .exponent = 3 };
	struct trip t = trip_new("int8", 32, 1, 64, 0), half = trip_new("int8", 16, 1, 64, 0);
	ptrdiff_t row = 64 * sizeof(float);

	(void)state;
	for (size_t i = 0; i < t.n; i++)
		t.x[i] *= 100.0f;
	assert_int_equal(kvp_plane_encode(k, t.codec, &t.p, &o,
				 (struct kvp_raw_const){ t.x, row * 32, row }, t.payload, t.bytes),
		0);
	assert_int_equal(kvp_plane_encode(k, t.codec, &half.p, &o,
				 (struct kvp_raw_const){ t.x + 16 * 64, row * 16, row },
				 half.payload, half.bytes),
		0);
	assert_memory_equal(half.payload + 64, t.payload + 64 + 16 * 64, 16 * 64);
	trip_free(&t);
	trip_free(&half);
}

/* The exponent is the whole plane's, whatever its first row suggests. */
static void exponent_of_the_plane(void **state)
{
	static const struct {
		float first, rest;
		int32_t exponent;
	} cases[] = {
		{ 1.0f, 1.0f, 0 },
		{ 1.0f, 5000.0f, 10 },
		{ 5000.0f, 1.0f, 10 },
		{ 0x1p-10f, 1.0f, 0 },
		{ 1.0f, 0x1p-10f, 0 },
		{ 0x1p-10f, 0x1p-10f, -12 },
		{ INFINITY, 0x1p-10f, -12 },
		{ 0.0f, 0x1p-10f, -12 },
		{ INFINITY, 1023.0f, 0 },
		{ 1.0f, 1024.0f, 8 },
	};
	static const char *const names[] = { "tq4", "tq2-h3", "kivi4", "int8", "hadamard4",
		"hybrid", "tqprod3" };

	(void)state;
	for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
		for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
			struct trip t = trip_new(names[i], 40, 2, 64, KVP_PLANE_K);
			struct kvp_encode_opts o = {
				.size = sizeof o, .force_exponent = 1, .exponent = cases[c].exponent
			};
			ptrdiff_t row = 64 * sizeof(float);
			struct kvp_raw_const src = { t.x, row * 40, row };
			uint8_t *forced = aligned_alloc(64, (t.bytes + 63) & ~(size_t)63);
			struct kvp_plane_hdr hdr;

			for (size_t j = 0; j < t.n; j++)
				t.x[j] = j < 64 ? cases[c].first : cases[c].rest;
			assert_int_equal(
				kvp_plane_encode(k, t.codec, &t.p, NULL, src, t.payload, t.bytes),
				0);
			memcpy(&hdr, t.payload, sizeof hdr);
			assert_int_equal(hdr.exponent, cases[c].exponent);
			assert_int_equal(
				kvp_plane_encode(k, t.codec, &t.p, &o, src, forced, t.bytes), 0);
			assert_memory_equal(forced, t.payload, t.bytes);
			free(forced);
			trip_free(&t);
		}
	}
}

static void presets(void **state)
{
	uint32_t kc, vc;

	(void)state;
	assert_int_equal(kvp_codec_parse_pair("k8v4", &kc, &vc), 0);
	assert_int_equal(kc, KVP_CODEC_FP8_E4M3);
	assert_int_equal(vc, KVP_CODEC_ASYM(4u, 0u));
	assert_int_equal(kvp_codec_parse_pair("3bit_nc", &kc, &vc), 0);
	assert_int_equal(kc, codec_of("tq3-nc"));
	assert_int_equal(vc, codec_of("asym3"));
	assert_int_equal(kvp_codec_parse_pair("tq4/tq3", &kc, &vc), 0);
	assert_int_equal(kc, KVP_CODEC_TQ4);
	assert_int_equal(vc, KVP_CODEC_TQ3);
	assert_int_equal(kvp_codec_parse_pair("tq4/nope", &kc, &vc), -ENOENT);
	assert_int_equal(kvp_codec_parse_pair("3bit", &kc, &vc), 0);
	assert_int_equal(kc, codec_of("tq4-nc"));
	assert_int_equal(vc, codec_of("tq2-nc"));
	assert_int_equal(kvp_codec_parse_pair("tq25", &kc, &vc), 0);
	assert_int_equal(kc, KVP_CODEC_TQ25);
	assert_int_equal(vc, codec_of("hybrid-25"));
	assert_int_equal(kvp_codec_parse_pair("5bit", &kc, &vc), -ENOENT);
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
		cmocka_unit_test(a005_native_is_bit_exact),
		cmocka_unit_test(a006_a011_a012_a015_kivi_errors),
		cmocka_unit_test(a011_constant_group),
		cmocka_unit_test(a013_a014_a015_a017_d022_sizes),
		cmocka_unit_test(a072_hadamard_errors),
		cmocka_unit_test(a078_many_planes),
		cmocka_unit_test(byte_codec_errors),
		cmocka_unit_test(d001_online),
		cmocka_unit_test(d002_d020_tq_errors),
		cmocka_unit_test(d003_d004_d005_d006_d007_codebooks),
		cmocka_unit_test(d005_books_are_the_solvers),
		cmocka_unit_test(d006_sphere_by_brute_force),
		cmocka_unit_test(d008_haar_is_orthogonal_and_pinned),
		cmocka_unit_test(d009_hadamard_rotations),
		cmocka_unit_test(d010_d011_d012_d013_packing),
		cmocka_unit_test(d021_tq_ratio_to_the_bound),
		cmocka_unit_test(d023_d024_d025_one_buffer_for_all_layers),
		cmocka_unit_test(d028_page_bytes),
		cmocka_unit_test(d032_norms_scale),
		cmocka_unit_test(d032_softmax_streams),
		cmocka_unit_test(d057_strides),
		cmocka_unit_test(unbiased_inner_products),
		cmocka_unit_test(edges_zero_and_constant),
		cmocka_unit_test(edges_nan_stays_where_it_is),
		cmocka_unit_test(edges_magnitudes),
		cmocka_unit_test(forced_exponent),
		cmocka_unit_test(exponent_of_the_plane),
		cmocka_unit_test(codes_by_one_comparison),
		cmocka_unit_test(presets),
		cmocka_unit_test(refusals_of_geometry),
		cmocka_unit_test(refusals_write_nothing),
		cmocka_unit_test(refusals_of_payloads),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
