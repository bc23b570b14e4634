/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass against plain loops in double, on small models with random weights. */
#include "tests/tools/kvrun/common.h"
#include "tools/kvrun/kvr_forward.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 160

/* What the naive pass keeps of a token in a layer: K and V as stored, and as a codec returns them.
 */
struct naive {
	const struct kvr_model *m;
	enum kvr_dtype dtype;
	uint32_t window; /* 0: no substitute */
	float *kv;       /* [layer][K, V][token][kv_dim], rounded to dtype */
};

/*
 * A stand-in for a codec: far enough from the value to matter, and smooth, so that the last bits
 * in which engine and reference differ stay last bits.
 */
static float bent(float x)
{
	return .75f * x + .125f;
}

static float *naive_row(const struct naive *s, uint32_t layer, uint32_t value, uint32_t token)
{
	size_t dim = (size_t)s->m->config.kv_heads * s->m->config.head_dim;

	return s->kv + (((size_t)layer * 2 + value) * MAX_TOKENS + token) * dim;
}

static void naive_mul(const double *x, const float *w, uint32_t out, uint32_t in, double *y)
{
	for (uint32_t o = 0; o < out; o++) {
		y[o] = 0;
		for (uint32_t i = 0; i < in; i++)
			y[o] += x[i] * w[(size_t)o * in + i];
	}
}

static void naive_norm(const double *x, const float *w, uint32_t n, double eps, double *y)
{
	double sum = 0;

	for (uint32_t i = 0; i < n; i++)
		sum += x[i] * x[i];
	for (uint32_t i = 0; i < n; i++)
		y[i] = x[i] / sqrt(sum / n + eps) * w[i];
}

static void naive_rope(const struct kvr_config *c, double *head, uint32_t position)
{
	uint32_t half = c->head_dim / 2;

	for (uint32_t i = 0; i < half; i++) {
		double angle = position * pow(c->rope_theta, -2.0 * i / c->head_dim);
		uint32_t a = c->rope_pairs == KVR_ROPE_HALF_SPLIT ? i : 2 * i;
		uint32_t b = c->rope_pairs == KVR_ROPE_HALF_SPLIT ? i + half : 2 * i + 1;
		double x = head[a], y = head[b];

		head[a] = x * cos(angle) - y * sin(angle);
		head[b] = x * sin(angle) + y * cos(angle);
	}
}

static void naive_attend(
	const struct naive *s, uint32_t layer, uint32_t position, const double *q, double *out)
{
	const struct kvr_config *c = &s->m->config;

	for (uint32_t h = 0; h < c->heads; h++) {
		uint32_t g = h / (c->heads / c->kv_heads);
		double p[MAX_TOKENS], max = -INFINITY, sum = 0;

		for (uint32_t t = 0; t <= position; t++) {
			const float *k = naive_row(s, layer, 0, t) + (size_t)g * c->head_dim;
			int coded = s->window && t + s->window <= position;

			p[t] = 0;
			for (uint32_t i = 0; i < c->head_dim; i++)
				p[t] += q[h * c->head_dim + i] * (coded ? bent(k[i]) : k[i]);
			p[t] /= sqrt(c->head_dim);
			max = fmax(max, p[t]);
		}
		memset(out + (size_t)h * c->head_dim, 0, c->head_dim * sizeof(*out));
		for (uint32_t t = 0; t <= position; t++)
			sum += p[t] = exp(p[t] - max);
		for (uint32_t t = 0; t <= position; t++) {
			const float *v = naive_row(s, layer, 1, t) + (size_t)g * c->head_dim;
			int coded = s->window && t + s->window <= position;

			for (uint32_t i = 0; i < c->head_dim; i++)
				out[h * c->head_dim + i] +=
					p[t] / sum * (coded ? bent(v[i]) : v[i]);
		}
	}
}

static void naive_store(
	const struct naive *s, uint32_t layer, uint32_t value, uint32_t position, const double *x)
{
	uint32_t dim = s->m->config.kv_heads * s->m->config.head_dim;
	float *row = naive_row(s, layer, value, position);
	uint8_t stored[4096];

	for (uint32_t i = 0; i < dim; i++)
		row[i] = (float)x[i];
	kvr_narrow(s->dtype, row, dim, stored);
	kvr_widen(s->dtype, stored, dim, row);
}

static void naive_token(const struct naive *s, uint32_t token, uint32_t position, double *logits)
{
	const struct kvr_config *c = &s->m->config;
	uint32_t h = c->hidden, q_dim = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
	double x[256], n[256], q[256], k[256], v[256], a[256], g[256], u[256];

	for (uint32_t i = 0; i < h; i++)
		x[i] = s->m->embedding[(size_t)token * h + i];
	for (uint32_t l = 0; l < c->layers; l++) {
		const struct kvr_layer *w = &s->m->layer[l];

		naive_norm(x, w->norm_attn, h, c->norm_eps, n);
		naive_mul(n, w->wq, q_dim, h, q);
		naive_mul(n, w->wk, kv, h, k);
		naive_mul(n, w->wv, kv, h, v);
		for (uint32_t i = 0; i < c->heads; i++)
			naive_rope(c, q + i * c->head_dim, position);
		for (uint32_t i = 0; i < c->kv_heads; i++)
			naive_rope(c, k + i * c->head_dim, position);
		naive_store(s, l, 0, position, k);
		naive_store(s, l, 1, position, v);
		naive_attend(s, l, position, q, a);
		naive_mul(a, w->wo, h, q_dim, n);
		for (uint32_t i = 0; i < h; i++)
			x[i] += n[i];
		naive_norm(x, w->norm_ffn, h, c->norm_eps, n);
		naive_mul(n, w->w_gate, c->ffn, h, g);
		naive_mul(n, w->w_up, c->ffn, h, u);
		for (uint32_t i = 0; i < c->ffn; i++)
			g[i] = g[i] / (1 + exp(-g[i])) * u[i];
		naive_mul(g, w->w_down, h, c->ffn, n);
		for (uint32_t i = 0; i < h; i++)
			x[i] += n[i];
	}
	naive_norm(x, s->m->norm_final, h, c->norm_eps, n);
	naive_mul(n, s->m->classifier, c->vocab, h, logits);
}

/* What the engine must ask of a substitute; counts what it did ask. */
struct asked {
	uint32_t block_tokens;
	uint32_t window;
	uint32_t calls;
};

static int read_bent(void *arg, const struct kvr_plane *p, float *dst)
{
	struct asked *a = arg;

	a->calls++;
	assert_true(p->tokens >= 1 && p->tokens <= a->block_tokens);
	assert_true(p->block * a->block_tokens + a->window < p->query + a->block_tokens);
	if (a->window >= a->block_tokens)
		assert_int_equal(p->tokens, a->block_tokens);
	for (uint32_t t = 0; t < p->tokens; t++) {
		float *row = dst + (size_t)t * p->head_dim;

		kvr_widen(p->dtype, (const uint8_t *)p->native + t * p->stride, p->head_dim, row);
		for (uint32_t i = 0; i < p->head_dim; i++)
			row[i] = bent(row[i]);
	}
	return 0;
}

/*
 * Runs MAX_TOKENS random tokens in random pieces that respect block boundaries, and compares all
 * logits. The tolerance is that of fp32 against double; where a rounding to half falls the other
 * way, that of one such rounding.
 */
static void compare(const struct kvr_config *c, enum kvr_dtype dtype, uint32_t block_tokens,
	uint32_t window, uint64_t *state)
{
	struct kvr_model *m = test_model_new(c, state);
	struct kvr_geom geom = kvr_model_geom(m, block_tokens, dtype);
	struct naive ref = { m, dtype, window, NULL };
	struct asked asked = { block_tokens, window, 0 };
	struct kvr_substitute sub = { window, read_bent, &asked, NULL };
	double want[256], worst = 0;
	uint32_t tokens[MAX_TOKENS];
	struct kvr_pass *pass;
	struct kvr_kv *kv;

	ref.kv = calloc((size_t)c->layers * 2 * MAX_TOKENS * geom.kv_dim, sizeof(float));
	assert_non_null(ref.kv);
	assert_int_equal(kvr_kv_heap_new(&geom, &kv), 0);
	assert_int_equal(kvr_pass_new(m, block_tokens, &pass), 0);
	for (uint32_t i = 0; i < MAX_TOKENS; i++)
		tokens[i] = (uint32_t)(test_random(state) >> 32) % c->vocab;
	for (uint32_t at = 0, n; at < MAX_TOKENS; at += n) {
		uint32_t room = block_tokens - at % block_tokens;
		const float *logits;

		n = 1 + (uint32_t)(test_random(state) >> 32) % room;
		n = n < MAX_TOKENS - at ? n : MAX_TOKENS - at;
		if (at % block_tokens == 0)
			assert_int_equal(kv->ops->grow(kv, at / block_tokens), 0);
		assert_int_equal(kvr_pass_run(pass, kv, window ? &sub : NULL, at, tokens + at, n,
					 KVR_LOGITS_ALL, &logits),
			0);
		for (uint32_t t = 0; t < n; t++) {
			naive_token(&ref, tokens[at + t], at + t, want);
			for (uint32_t i = 0; i < c->vocab; i++)
				worst = fmax(
					worst, fabs(want[i] - (double)logits[t * c->vocab + i]));
		}
	}
	print_message("block %u, %s, window %u: largest difference %.2g\n", block_tokens,
		kvr_dtype_name(dtype), window, worst);
	assert_true(worst < (dtype == KVR_F32 ? 2e-4 : dtype == KVR_F16 ? 2e-2 : 2e-1));
	assert_int_equal(asked.calls > 0, window > 0 && window < MAX_TOKENS);
	kvr_pass_free(pass);
	kvr_kv_free(kv);
	kvr_model_free(m);
	free(ref.kv);
}

static const struct kvr_config grouped = {
	.layers = 2,
	.hidden = 24,
	.ffn = 40,
	.heads = 6,
	.kv_heads = 2,
	.head_dim = 10,
	.vocab = 37,
	.context = MAX_TOKENS,
	.norm_eps = 1e-5f,
	.rope_theta = 10000,
	.rope_pairs = KVR_ROPE_HALF_SPLIT,
};

static void matches_plain_loops(void **unused)
{
	uint64_t state = test_seed();
	struct kvr_config c = grouped;

	(void)unused;
	compare(&c, KVR_F32, 16, 0, &state);
	compare(&c, KVR_F32, 64, 0, &state);
	compare(&c, KVR_F16, 64, 0, &state);
	compare(&c, KVR_BF16, 512, 0, &state);
	c.kv_heads = 6; /* no grouping, tied, llama2.c's pairs */
	c.tied = 1;
	c.rope_pairs = KVR_ROPE_NEIGHBOURS;
	compare(&c, KVR_F32, 32, 0, &state);
	c.kv_heads = 1;
	c.head_dim = 8;
	c.rope_theta = 500000;
	compare(&c, KVR_F32, 32, 0, &state);
}

static void substitutes_outside_the_window(void **unused)
{
	static const uint32_t windows[] = { 1, 2, 31, 32, 33, 64, 100, MAX_TOKENS };
	uint64_t state = test_seed();

	(void)unused;
	for (size_t i = 0; i < sizeof(windows) / sizeof(windows[0]); i++)
		compare(&grouped, KVR_F32, 32, windows[i], &state);
	compare(&grouped, KVR_F16, 64, 64, &state);
}

static int read_fails(void *arg, const struct kvr_plane *p, float *dst)
{
	(void)arg, (void)p, (void)dst;
	return -EILSEQ;
}

/* Where the codec fails and errors are counted, the answer is the native one. */
static void d054_errors_fall_back_to_what_is_stored(void **unused)
{
	static const enum kvr_dtype dtypes[] = { KVR_F32, KVR_F16, KVR_BF16 };
	uint64_t state = test_seed();
	struct kvr_model *m = test_model_new(&grouped, &state);
	uint32_t tokens[64];

	(void)unused;
	for (uint32_t i = 0; i < 64; i++)
		tokens[i] = (uint32_t)(test_random(&state) >> 32) % grouped.vocab;
	for (int d = 0; d < 3; d++) {
		struct kvr_geom geom = kvr_model_geom(m, 32, dtypes[d]);
		uint64_t errors = 0;
		struct kvr_substitute sub = { 8, read_fails, NULL, &errors };
		float *native = malloc(32 * grouped.vocab * sizeof *native);
		const float *logits;
		struct kvr_pass *pass;
		struct kvr_kv *kv;

		for (int run = 0; run < 2; run++) {
			assert_int_equal(kvr_pass_new(m, 32, &pass), 0);
			assert_int_equal(kvr_kv_heap_new(&geom, &kv), 0);
			for (uint32_t b = 0; b < 2; b++) {
				assert_int_equal(kv->ops->grow(kv, b), 0);
				assert_int_equal(
					kvr_pass_run(pass, kv, run ? &sub : NULL, 32 * b,
						tokens + 32 * b, 32, KVR_LOGITS_ALL, &logits),
					0);
			}
			for (uint32_t i = 0; i < 32 * grouped.vocab; i++) {
				if (run)
					assert_true(fabsf(native[i] - logits[i]) < 1e-4f);
				else
					native[i] = logits[i];
			}
			kvr_kv_free(kv);
			kvr_pass_free(pass);
		}
		assert_true(errors > 0);
		free(native);
	}
	kvr_model_free(m);
}

static void refuses_runs_that_do_not_fit(void **unused)
{
	uint64_t state = test_seed();
	struct kvr_model *m = test_model_new(&grouped, &state);
	struct kvr_geom geom = kvr_model_geom(m, 32, KVR_F32), other = geom;
	struct kvr_substitute sub = { 1, read_fails, NULL, NULL };
	uint32_t tokens[64] = { 0 };
	const float *logits = NULL;
	struct kvr_pass *pass;
	struct kvr_kv *kv;

	(void)unused;
	assert_int_equal(kvr_pass_new(m, 15, &pass), -EINVAL);
	assert_int_equal(kvr_pass_new(m, 513, &pass), -EINVAL);
	assert_int_equal(kvr_pass_new(m, 32, &pass), 0);
	assert_int_equal(kvr_kv_heap_new(&geom, &kv), 0);
	assert_int_equal(kv->ops->grow(kv, 0), 0);
	for (uint32_t i = 0; i < 3; i++) /* none; beyond the block; beyond it from inside */
		assert_int_equal(kvr_pass_run(pass, kv, NULL, i == 2 ? 31 : 0, tokens,
					 i == 0   ? 0
					 : i == 1 ? 33
						  : 2,
					 KVR_LOGITS_LAST, &logits),
			-EINVAL);
	assert_int_equal(
		kvr_pass_run(pass, kv, NULL, grouped.context, tokens, 1, KVR_LOGITS_LAST, &logits),
		-EINVAL);
	tokens[1] = grouped.vocab;
	assert_int_equal(
		kvr_pass_run(pass, kv, NULL, 0, tokens, 2, KVR_LOGITS_LAST, &logits), -EINVAL);
	tokens[1] = 0;
	assert_int_equal(
		kvr_pass_run(pass, kv, &sub, 0, tokens, 2, KVR_LOGITS_LAST, &logits), -EILSEQ);
	assert_null(logits);
	assert_int_equal(kvr_pass_run(pass, kv, NULL, 0, tokens, 2, KVR_LOGITS_LAST, &logits), 0);
	assert_non_null(logits);
	kvr_kv_free(kv);
	other.block_tokens = 64;
	assert_int_equal(kvr_kv_heap_new(&other, &kv), 0);
	assert_int_equal(
		kvr_pass_run(pass, kv, NULL, 0, tokens, 2, KVR_LOGITS_LAST, &logits), -EINVAL);
	kvr_kv_free(kv);
	kvr_pass_free(pass);
	kvr_model_free(m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(matches_plain_loops),
		cmocka_unit_test(substitutes_outside_the_window),
		cmocka_unit_test(d054_errors_fall_back_to_what_is_stored),
		cmocka_unit_test(refuses_runs_that_do_not_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
