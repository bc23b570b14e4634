/* SPDX-License-Identifier: Apache-2.0 */
/* Importance against straightforward double-precision references. */
#include "tests/policy/plan_test.h"

#include "policy/kvp_importance.h"

static struct kvp_importance *make(uint32_t layers, uint32_t heads, uint32_t max, float recency)
{
	struct kvp_importance_opts o;
	struct kvp_importance *imp = NULL;

	kvp_importance_opts_init(&o, layers, heads, max);
	o.recency = recency;
	assert_int_equal(kvp_importance_new(&o, &imp), 0);
	return imp;
}

static void softmax_row(float *row, uint32_t n, double sharp)
{
	double sum = 0;
	uint32_t i;

	for (i = 0; i < n; i++)
		sum += row[i] = (float)exp(sharp * uniform());
	for (i = 0; i < n; i++)
		row[i] = (float)(row[i] / sum);
}

/* B-010, B-011, B-012, B-016, B-017, B-018, B-019: every formula, over several layers and steps. */
static void test_against_reference(void **state)
{
	enum { L = 3, H = 4, N = 37, STEPS = 11 };
	static float rows[H][N];
	double ema[L][N] = { { 0 } }, eta[L][H], weighted[N] = { 0 }, w[H];
	struct kvp_importance *imp = make(L, H, N, 0);
	float got[N], gw[H];
	uint32_t l, h, i, s;

	(void)state;
	seed_from_env(4);
	for (l = 0; l < L; l++)
		for (h = 0; h < H; h++)
			eta[l][h] = 1;
	assert_int_equal(kvp_importance_append(imp, N, 1, 0), 0);
	for (s = 0; s < STEPS; s++) {
		memset(weighted, 0, sizeof(weighted));
		for (l = 0; l < L; l++) {
			double total = 0;

			for (h = 0; h < H; h++) {
				w[h] = (eta[0][h] + eta[1][h] + eta[2][h]) / L;
				total += w[h];
			}
			for (h = 0; h < H; h++)
				w[h] /= total / H;
			for (h = 0; h < H; h++)
				softmax_row(rows[h], N, 1 + 3 * h);
			assert_int_equal(kvp_importance_update(imp, l, rows[0], N, N), 0);
			for (i = 0; i < N; i++) {
				double a = 0, b = 0;

				for (h = 0; h < H; h++) {
					a += rows[h][i] / H;
					b += w[h] * rows[h][i] / H;
				}
				ema[l][i] = .9 * ema[l][i] + .1 * a;
				weighted[i] += b / L;
			}
			for (h = 0; h < H; h++) {
				double max = 0;

				for (i = 0; i < N; i++)
					max = fmax(max, rows[h][i]);
				eta[l][h] = .95 * eta[l][h] + .05 * max;
			}
			for (i = 0; i < N; i++)
				assert_true(
					fabs(kvp_importance_layer(imp, l)[i] - ema[l][i]) < 1e-6);
		}
	}
	kvp_importance_read(imp, N, got);
	for (i = 0; i < N; i++) {
		double mean = (ema[0][i] + ema[1][i] + ema[2][i]) / L;

		assert_true(fabs(got[i] - (.7 * mean + .3 * weighted[i])) < 1e-6);
	}
	kvp_importance_head_weights(imp, gw);
	{
		double sum = 0;

		for (h = 0; h < H; h++)
			sum += gw[h];
		assert_true(fabs(sum / H - 1) < 1e-6); /* B-017 */
		assert_true(gw[H - 1] > gw[0]);        /* B-016: a sharper head weighs more */
	}
	kvp_importance_free(imp);
}

/* B-011: the closed form of a constant attention a after k steps is a (1 - gamma^k). */
static void test_ema_closed_form(void **state)
{
	struct kvp_importance *imp = make(1, 1, 4, 0);
	float row[4] = { .5f, .25f, .25f, 0 };
	uint32_t k;

	(void)state;
	kvp_importance_append(imp, 4, 1, 0);
	for (k = 1; k <= 50; k++) {
		assert_int_equal(kvp_importance_update(imp, 0, row, 4, 4), 0);
		assert_true(fabs(kvp_importance_layer(imp, 0)[0] - .5 * (1 - pow(.9, k))) < 1e-6);
		assert_true(kvp_importance_layer(imp, 0)[3] == 0);
	}
	kvp_importance_free(imp);
}

/* B-013: scaled to mean 1 when asked for, also when all is zero (no NaN). */
static void test_normalised(void **state)
{
	struct kvp_importance_opts o;
	struct kvp_importance *imp;
	float row[8] = { .3f, .1f, .1f, .1f, .1f, .1f, .1f, .1f }, got[8];
	double sum = 0;
	uint32_t i;

	(void)state;
	kvp_importance_opts_init(&o, 1, 1, 8);
	o.normalise = 1;
	o.recency = 0;
	assert_int_equal(kvp_importance_new(&o, &imp), 0);
	kvp_importance_append(imp, 8, 1, 0);
	kvp_importance_read(imp, 8, got);
	for (i = 0; i < 8; i++)
		assert_true(got[i] == 0);
	kvp_importance_update(imp, 0, row, 8, 8);
	kvp_importance_read(imp, 8, got);
	for (i = 0; i < 8; i++)
		sum += got[i];
	assert_true(fabs(sum / 8 - 1) < 1e-6);
	kvp_importance_free(imp);
}

/* B-014, B-015: e^-1 at age 512; tau is the position in prefill, the step in decode. */
static void test_recency(void **state)
{
	enum { N = 600 };
	struct kvp_importance *imp = make(1, 1, N + 2, 512);
	float scores[N + 2], got[N + 2];
	uint32_t i;

	(void)state;
	for (i = 0; i < N + 2; i++)
		scores[i] = 1;
	kvp_importance_append(imp, N, 1, 12345); /* the step does not matter in prefill */
	kvp_importance_set(imp, 0, scores, N);
	kvp_importance_read(imp, N - 1, got);
	for (i = 0; i < N; i++)
		assert_true(fabs(got[i] - .7 * exp(-(double)(N - 1 - i) / 512)) < 1e-6);
	assert_true(fabs(got[N - 1 - 512] / got[N - 1] - exp(-1)) < 1e-6);

	kvp_importance_append(imp, 1, 0, N); /* decode: born at step N, N + 7 */
	kvp_importance_append(imp, 1, 0, N + 7);
	kvp_importance_set(imp, 0, scores, N + 2);
	kvp_importance_read(imp, N + 17, got);
	assert_true(fabs(got[N] - .7 * exp(-17. / 512)) < 1e-6);
	assert_true(fabs(got[N + 1] - .7 * exp(-10. / 512)) < 1e-6);
	assert_int_equal(kvp_importance_touch(imp, 0, N + 17), 0);
	assert_int_equal(kvp_importance_touch(imp, N + 2, 0), -EINVAL);
	kvp_importance_read(imp, N + 17, got);
	assert_true(fabs(got[0] - .7) < 1e-6);
	kvp_importance_free(imp);
}

/* B-016: mean attention is 1/n for every head; the entropy statistic tells them apart. */
static void test_entropy_statistic(void **state)
{
	struct kvp_importance_opts o;
	struct kvp_importance *imp;
	float rows[2][16], w[2];
	uint32_t i, s;

	(void)state;
	kvp_importance_opts_init(&o, 1, 2, 16);
	o.head_stat = KVP_HEAD_STAT_ENTROPY;
	assert_int_equal(kvp_importance_new(&o, &imp), 0);
	kvp_importance_append(imp, 16, 1, 0);
	for (i = 0; i < 16; i++) {
		rows[0][i] = 1 / 16.f; /* uniform: statistic 0 */
		rows[1][i] = i == 5;   /* one token: statistic 1 */
	}
	for (s = 0; s < 400; s++)
		assert_int_equal(kvp_importance_update(imp, 0, rows[0], 16, 16), 0);
	kvp_importance_head_weights(imp, w);
	assert_true(fabs(w[0]) < 1e-5 && fabs(w[1] - 2) < 1e-5);
	kvp_importance_free(imp);
}

/* Two tokens have an entropy too, one has none; scores of any layer can be set. */
static void test_small_and_layers(void **state)
{
	struct kvp_importance_opts o;
	struct kvp_importance *imp;
	float rows[2][2] = { { .5f, .5f }, { 1, 0 } }, scores[2] = { .25f, .75f }, w[2], got[2];
	uint32_t s;

	(void)state;
	kvp_importance_opts_init(&o, 2, 2, 2);
	o.head_stat = KVP_HEAD_STAT_ENTROPY;
	o.recency = 0;
	assert_int_equal(kvp_importance_new(&o, &imp), 0);
	kvp_importance_append(imp, 2, 1, 0);
	for (s = 0; s < 400; s++) {
		assert_int_equal(kvp_importance_update(imp, 0, rows[0], 2, 2), 0);
		assert_int_equal(kvp_importance_update(imp, 1, rows[0], 2, 2), 0);
	}
	kvp_importance_head_weights(imp, w);
	assert_true(fabs(w[0]) < 1e-5 && fabs(w[1] - 2) < 1e-5);
	assert_int_equal(kvp_importance_set(imp, 1, scores, 2), 0);
	assert_true(kvp_importance_layer(imp, 1)[0] == .25f);
	assert_true(kvp_importance_layer(imp, 1)[1] == .75f);
	assert_true(fabs(kvp_importance_layer(imp, 0)[0] - .75) < 1e-5);
	kvp_importance_free(imp);

	/* before the first complete step: the mean over the layers that have reported */
	imp = make(3, 2, 2, 0);
	kvp_importance_append(imp, 2, 1, 0);
	assert_int_equal(kvp_importance_update(imp, 0, rows[0], 2, 2), 0);
	assert_int_equal(kvp_importance_update(imp, 1, rows[0], 2, 2), 0);
	kvp_importance_read(imp, 2, got);
	kvp_importance_head_weights(imp, w);
	assert_true(fabs(got[0] - (.7 * .1 * .75 * 2 / 3 + .3 * .75)) < .01);
	kvp_importance_free(imp);
}

/* B-020: rows one by one; memory does not depend on how many are fed, and is linear in tokens. */
static void test_streaming(void **state)
{
	struct kvp_importance *a = make(2, 8, 1000, 512), *b = make(2, 8, 1000, 512);
	struct kvp_importance *big = make(2, 8, 2000, 512);
	static float rows[8][1000], x[1000], y[1000];
	uint32_t h, l;

	(void)state;
	assert_true(kvp_importance_bytes(a) < 1000 * (6 * 4 + 8) + 1024);
	assert_true(kvp_importance_bytes(big) - kvp_importance_bytes(a) == 1000 * (6 * 4 + 8));
	kvp_importance_append(a, 1000, 1, 0);
	kvp_importance_append(b, 1000, 1, 0);
	for (l = 0; l < 2; l++) {
		for (h = 0; h < 8; h++)
			softmax_row(rows[h], 1000, 4);
		assert_int_equal(kvp_importance_update(a, l, rows[0], 1000, 1000), 0);
		assert_int_equal(kvp_importance_begin(b, l, 1000), 0);
		for (h = 0; h < 8; h++)
			assert_int_equal(kvp_importance_head(b, h, rows[h]), 0);
		assert_int_equal(kvp_importance_end(b), 0);
	}
	kvp_importance_read(a, 1000, x);
	kvp_importance_read(b, 1000, y);
	assert_memory_equal(x, y, sizeof(x));
	kvp_importance_free(a);
	kvp_importance_free(b);
	kvp_importance_free(big);
}

/* B-050 and bad input: refused, and what was there stays. */
static void test_refusals(void **state)
{
	struct kvp_importance_opts o;
	struct kvp_importance *imp = NULL;
	float rows[2][4] = { { .25f, .25f, .25f, .25f }, { .25f, NAN, .25f, .25f } }, got[4],
	      bad[4];
	uint32_t i;

	(void)state;
	kvp_importance_opts_init(&o, 1, 2, 4);
	o.gamma = .84f;
	assert_int_equal(kvp_importance_new(&o, &imp), -EINVAL);
	o.gamma = .96f;
	assert_int_equal(kvp_importance_new(&o, &imp), -EINVAL);
	o.gamma_head = 0;
	o.gamma = .9f;
	assert_int_equal(kvp_importance_new(&o, &imp), -EINVAL);
	o.gamma_head = 1;
	assert_int_equal(kvp_importance_new(&o, &imp), -EINVAL);
	o.gamma_head = .95f;
	o.gamma = .85f; /* both ends are in */
	assert_int_equal(kvp_importance_new(&o, &imp), 0);
	imp = kvp_importance_free(imp);
	o.gamma = .95f;
	o.heads = 0;
	assert_int_equal(kvp_importance_new(&o, &imp), -EINVAL);
	o.heads = 2;
	o.size = 1;
	assert_int_equal(kvp_importance_new(&o, &imp), -EINVAL);
	assert_null(imp);
	o.size = sizeof(o);
	assert_int_equal(kvp_importance_new(&o, &imp), 0);
	assert_int_equal(kvp_importance_append(imp, 5, 1, 0), -ENOSPC);
	assert_int_equal(kvp_importance_tokens(imp), 0);
	assert_int_equal(kvp_importance_append(imp, 1, 1, 0), 0);
	assert_int_equal(kvp_importance_append(imp, 4, 1, 0), -ENOSPC);
	assert_int_equal(kvp_importance_append(imp, UINT32_MAX, 1, 0), -ENOSPC);
	assert_int_equal(kvp_importance_append(imp, 3, 1, 0), 0);
	assert_int_equal(kvp_importance_tokens(imp), 4);
	/* heads: all of them, in order, and none too many */
	assert_int_equal(kvp_importance_head(imp, 0, rows[0]), -EINVAL);
	assert_int_equal(kvp_importance_end(imp), -EINVAL);
	assert_int_equal(kvp_importance_begin(imp, 0, 4), 0);
	assert_int_equal(kvp_importance_head(imp, 1, rows[0]), -EINVAL);
	assert_int_equal(kvp_importance_head(imp, 0, rows[0]), 0);
	assert_int_equal(kvp_importance_end(imp), -EINVAL);
	assert_int_equal(kvp_importance_head(imp, 1, rows[0]), 0);
	assert_int_equal(kvp_importance_head(imp, 2, rows[0]), -EINVAL);
	assert_int_equal(kvp_importance_update(imp, 1, rows[0], 4, 4), -EINVAL);
	assert_int_equal(kvp_importance_update(imp, 0, rows[0], 4, 5), -EINVAL);
	assert_int_equal(kvp_importance_update(imp, 0, rows[0], 4, 4), -EINVAL); /* the NaN */
	assert_int_equal(kvp_importance_end(imp), -EINVAL);
	kvp_importance_read(imp, 4, got);
	assert_true(got[0] == 0 && got[1] == 0);
	memcpy(bad, rows[0], sizeof(bad));
	bad[2] = -1;
	assert_int_equal(kvp_importance_set(imp, 0, bad, 4), -EINVAL);
	bad[2] = 1e31f; /* sums of such could overflow */
	assert_int_equal(kvp_importance_set(imp, 0, bad, 4), -EINVAL);
	bad[2] = NAN;
	assert_int_equal(kvp_importance_set(imp, 0, bad, 4), -EINVAL);
	assert_true(kvp_importance_layer(imp, 0)[0] == 0);
	bad[2] = 0;
	assert_int_equal(kvp_importance_set(imp, 0, bad, 4), 0);
	bad[2] = 1e30f; /* of these not */
	for (i = 0; i < 1000; i++) {
		assert_int_equal(kvp_importance_begin(imp, 0, 4), 0);
		assert_int_equal(kvp_importance_head(imp, 0, bad), 0);
		assert_int_equal(kvp_importance_head(imp, 1, bad), 0);
		assert_int_equal(kvp_importance_end(imp), 0);
	}
	kvp_importance_read(imp, 4, got);
	for (i = 0; i < 4; i++)
		assert_true(isfinite(got[i]) && got[i] > 0);
	kvp_importance_free(imp);
	assert_null(kvp_importance_free(NULL));
}

/* The published formula, term by term, with its 17 offsets. */
static double tri_reference(uint32_t pairs, double theta, const float *scale,
	const struct kvp_tri_head *h, const float *key, double p, double t)
{
	double s = 0;
	uint32_t f, d;

	for (f = 0; f < pairs; f++) {
		double m = hypot(h->mean_re[f], h->mean_im[f]), k = hypot(key[f], key[f + pairs]);
		double arg = atan2(h->mean_im[f], h->mean_re[f]) - atan2(key[f + pairs], key[f]);
		double s2 = scale ? (double)scale[f] * scale[f] : 1,
		       omega = pow(theta, -(double)f / pairs);
		double sum = 0;

		for (d = 0; d <= 16; d++)
			sum += cos(omega * (t - p + pow(2, d)) + arg);
		s += s2 * m * k * sum / 17 + s2 * (h->mean_abs[f] - m) * k;
	}
	return s;
}

/* B-054 and the published TriAttention score: to 1e-5 of the formula. */
static void test_triattention(void **state)
{
	enum { F = 64, N = 200, HEADS = 4 };
	static float keys[N][2 * F], re[HEADS][F], im[HEADS][F], abs_[HEADS][F], scale[F], got[N];
	struct kvp_tri_head head[HEADS];
	struct kvp_tri *tri = NULL, *other = NULL;
	double sum = 0, want[N] = { 0 };
	uint32_t h, i, f;

	(void)state;
	seed_from_env(5);
	for (f = 0; f < F; f++)
		scale[f] = (float)(.8 + .4 * uniform());
	for (h = 0; h < HEADS; h++) {
		for (f = 0; f < F; f++) {
			re[h][f] = (float)(uniform() * 2 - 1);
			im[h][f] = (float)(uniform() * 2 - 1);
			abs_[h][f] = (float)(hypot(re[h][f], im[h][f]) + uniform());
		}
		head[h] = (struct kvp_tri_head){ re[h], im[h], abs_[h] };
	}
	for (i = 0; i < N; i++)
		for (f = 0; f < 2 * F; f++)
			keys[i][f] = (float)(uniform() * 2 - 1);
	assert_int_equal(kvp_tri_new(0, 1e6, NULL, &tri), -EINVAL);
	assert_int_equal(kvp_tri_new(F, 1, NULL, &tri), -EINVAL);
	assert_int_equal(kvp_tri_new(F, 1e6, scale, &tri), 0);
	for (i = 0; i < N; i++) {
		double p = i * 600.0, t = 131071;
		double got1 =
			kvp_tri_score(tri, &head[i % HEADS], keys[i], (uint64_t)p, (uint64_t)t);
		double ref = tri_reference(F, 1e6, scale, &head[i % HEADS], keys[i], p, t);

		assert_true(fabs(got1 - ref) <= 1e-5);
	}

	/* as an importance: softmax of the expected logits, mean over the heads that share the keys
	 */
	assert_int_equal(kvp_tri_importance(tri, head, HEADS, keys[0], 2 * F, N, 50, 500, got), 0);
	for (h = 0; h < HEADS; h++) {
		double total = 0, e[N];

		for (i = 0; i < N; i++)
			total += e[i] =
				exp(tri_reference(F, 1e6, scale, &head[h], keys[i], 50. + i, 500) /
					sqrt(2 * F));
		for (i = 0; i < N; i++)
			want[i] += e[i] / total / HEADS;
	}
	for (i = 0; i < N; i++) {
		sum += got[i];
		assert_true(fabs(got[i] - want[i]) < 1e-5);
	}
	assert_true(fabs(sum - 1) < 1e-5);
	assert_int_equal(
		kvp_tri_importance(tri, head, HEADS, keys[0], 2 * F, N, 50, 248, got), -EINVAL);
	assert_int_equal(
		kvp_tri_importance(tri, head, HEADS, keys[0], 2 * F, N, UINT64_MAX, 9, got),
		-EINVAL);
	assert_int_equal(kvp_tri_importance(tri, head, HEADS, keys[0], 2 * F, N, 50, 249, got), 0);
	/* what is not finite is refused, and the answer stays */
	got[0] = 77;
	keys[N - 1][2 * F - 1] = NAN;
	assert_int_equal(
		kvp_tri_importance(tri, head, HEADS, keys[0], 2 * F, N, 50, 500, got), -EINVAL);
	keys[N - 1][2 * F - 1] = 0;
	im[HEADS - 1][F - 1] = INFINITY;
	assert_int_equal(
		kvp_tri_importance(tri, head, HEADS, keys[0], 2 * F, N, 50, 500, got), -EINVAL);
	assert_true(got[0] == 77);
	scale[F - 1] = NAN;
	assert_int_equal(kvp_tri_new(F, 1e6, scale, &other), -EINVAL);
	assert_null(other);
	assert_null(kvp_tri_free(tri));
}

/* The score on the published query statistics of Qwen3-8B, where they are at hand. */
static void test_triattention_real_statistics(void **state)
{
	enum { F = 64 };
	const char *data = getenv("KVPOOL_DATA");
	char path[4096];
	int32_t header[4];
	float re[F], im[F], ab[F], key[2 * F];
	struct kvp_tri_head head = { re, im, ab };
	struct kvp_tri *tri;
	FILE *file;
	uint32_t k, f;

	(void)state;
	snprintf(path, sizeof(path), "%s/kvstats/qwen3_8b.qstats.f32",
		data ? data : "../shared/data");
	file = fopen(path, "rb");
	if (!file) {
		print_message("%s is not there: skipped\n", path);
		skip();
	}
	assert_int_equal(fread(header, sizeof(header), 1, file), 1);
	assert_int_equal(header[3], F);
	assert_int_equal(kvp_tri_new(F, 1e6, NULL, &tri), 0);
	seed_from_env(6);
	for (k = 0; k < 64; k++) {
		assert_int_equal(fread(re, sizeof(re), 1, file), 1);
		assert_int_equal(fread(im, sizeof(im), 1, file), 1);
		assert_int_equal(fread(ab, sizeof(ab), 1, file), 1);
		for (f = 0; f < 2 * F; f++)
			key[f] = (float)(4 * uniform() - 2);
		for (f = 0; f < F; f++)
			assert_true(ab[f] >= hypot(re[f], im[f]) * (1 - 1e-5));
		double ref = tri_reference(F, 1e6, NULL, &head, key, 100, 40000);

		assert_true(fabs(kvp_tri_score(tri, &head, key, 100, 40000) - ref) <=
			    1e-5 * fmax(1, fabs(ref)));
	}
	fclose(file);
	kvp_tri_free(tri);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_against_reference),
		cmocka_unit_test(test_ema_closed_form),
		cmocka_unit_test(test_normalised),
		cmocka_unit_test(test_recency),
		cmocka_unit_test(test_entropy_statistic),
		cmocka_unit_test(test_small_and_layers),
		cmocka_unit_test(test_streaming),
		cmocka_unit_test(test_refusals),
		cmocka_unit_test(test_triattention),
		cmocka_unit_test(test_triattention_real_statistics),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
