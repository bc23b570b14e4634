/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ggml_attention CTX QUERIES ROUNDS: one decode step of ggml's flash attention on the CPU, on one thread, over caches of
 * f16, q8_0 and q4_0 in turn, after one round that does not count: milliseconds of every round, a line for each
 * type, then "cosine" with the result over f16. 8 KV heads of 128 channels, N(0,1), as `kvbench attention` has them;
 * QUERIES query heads of each. Built by tests/peers/attention, since it needs ggml.
 */
#include <ggml-cpu.h>
#include <ggml.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DIM        128
#define KV_HEADS   8
#define ROUNDS_MAX 99

static const enum ggml_type types[] = { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 };
#define TYPES 3

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Box and Muller's pairs, of a generator that is as good as it must be here. */
static float normal(void)
{
	static uint64_t state = 11;
	double u[2];

	for (int i = 0; i < 2; i++) {
		state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		u[i] = ((double)(state >> 33) + 0.5) * 0x1p-31;
	}
	return (float)(sqrt(-2.0 * log(u[0])) * cos(6.283185307179586 * u[1]));
}

struct step {
	struct ggml_context *memory;
	struct ggml_cgraph *graph;
	struct ggml_cplan plan;
	struct ggml_tensor *q, *out;
};

static void fill(struct ggml_tensor *t, const float *x)
{
	const int64_t rows = ggml_nelements(t) / DIM;

	ggml_quantize_chunk(t->type, x, t->data, 0, rows, DIM, NULL);
}

/* A cache as llama.cpp keeps it: a token's heads together, seen head by head. */
static struct ggml_tensor *cache_new(
	struct ggml_context *memory, enum ggml_type type, int64_t ctx, const float *x)
{
	struct ggml_tensor *t = ggml_new_tensor_3d(memory, type, DIM, KV_HEADS, ctx);

	fill(t, x);
	return ggml_permute(memory, t, 0, 2, 1, 3);
}

static struct step step_new(enum ggml_type type, int64_t ctx, int64_t queries, const float *q,
	const float *k, const float *v)
{
	const size_t cache = (size_t)ctx * KV_HEADS * ggml_row_size(type, DIM);
	struct step s = { .memory = ggml_init((struct ggml_init_params){
				  .mem_size = 2 * cache + (64u << 20) }) };
	struct ggml_tensor *keys = cache_new(s.memory, type, ctx, k);
	struct ggml_tensor *values = cache_new(s.memory, type, ctx, v);

	s.q = ggml_new_tensor_3d(s.memory, GGML_TYPE_F32, DIM, 1, queries * KV_HEADS);
	memcpy(s.q->data, q, ggml_nbytes(s.q));
	s.out = ggml_flash_attn_ext(
		s.memory, s.q, keys, values, NULL, 1.0f / sqrtf(DIM), 0.0f, 0.0f);
	s.graph = ggml_new_graph(s.memory);
	ggml_build_forward_expand(s.graph, s.out);
	s.plan = ggml_graph_plan(s.graph, 1, NULL);
	s.plan.work_data = malloc(s.plan.work_size + 64);
	if (!s.plan.work_data)
		exit(1);
	return s;
}

static double run(struct step *s)
{
	const double from = now();

	if (ggml_graph_compute(s->graph, &s->plan) != GGML_STATUS_SUCCESS)
		exit(1);
	return 1e3 * (now() - from);
}

static double cosine(const struct ggml_tensor *a, const struct ggml_tensor *b)
{
	const float *x = a->data, *y = b->data;
	double xx = 0.0, xy = 0.0, yy = 0.0;

	for (int64_t i = 0; i < ggml_nelements(a); i++) {
		xx += (double)x[i] * (double)x[i];
		xy += (double)x[i] * (double)y[i];
		yy += (double)y[i] * (double)y[i];
	}
	return xy / sqrt(xx * yy);
}

static float *normals(size_t n)
{
	float *x = malloc(n * sizeof *x);

	if (!x)
		exit(1);
	for (size_t i = 0; i < n; i++)
		x[i] = normal();
	return x;
}

int main(int argc, char **argv)
{
	const int64_t ctx = argc == 4 ? atoi(argv[1]) : 0, queries = argc == 4 ? atoi(argv[2]) : 0;
	const int rounds = argc == 4 ? atoi(argv[3]) : 0;
	const size_t n = (size_t)ctx * KV_HEADS * DIM;
	static double ms[TYPES][ROUNDS_MAX];
	struct step step[TYPES];
	float *q, *k, *v;

	if (ctx < 1 || ctx > 1 << 20 || queries < 1 || queries > 64 || rounds < 1 ||
		rounds > ROUNDS_MAX)
		return 2;
	ggml_cpu_init();
	q = normals((size_t)queries * KV_HEADS * DIM);
	k = normals(n);
	v = normals(n);
	for (int i = 0; i < TYPES; i++)
		step[i] = step_new(types[i], ctx, queries, q, k, v);
	for (int round = -1; round < rounds; round++)
		for (int i = 0; i < TYPES; i++) {
			const double t = run(&step[i]);

			if (round >= 0)
				ms[i][round] = t;
		}
	for (int i = 0; i < TYPES; i++) {
		printf("%s", ggml_type_name(types[i]));
		for (int round = 0; round < rounds; round++)
			printf(" %.4f", ms[i][round]);
		printf(" cosine %.6f\n", cosine(step[0].out, step[i].out));
	}
	for (int i = 0; i < TYPES; i++) {
		free(step[i].plan.work_data);
		ggml_free(step[i].memory);
	}
	printf("avx512 %d amx %d\n", ggml_cpu_has_avx512(), ggml_cpu_has_amx_int8());
	free(q);
	free(k);
	free(v);
	return 0;
}
