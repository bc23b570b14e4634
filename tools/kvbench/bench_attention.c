/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench attention: one decode step over a compressed context, three ways: native fp16, the codec
 * decoded to fp16 and attended natively, and attended where it lies.
 */
#include "kernels/kvp_attend.h"
#include "tools/kvbench/kbench.h"
#include "tools/kvbench/kvbench.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KV_HEADS 8u
#define Q_HEADS  32u
#define DIM      128u
#define TOKENS   64u

static const char *const default_codecs[] = { "tq4", "tq3", "tq2", "kivi4", "kivi2", "fp8", "int8",
	"k8v4", "4bit_nc" };

/* A context in one representation. */
struct context {
	struct kvp_attend_part *parts;
	uint32_t n_parts;
	uint8_t *data;
};

struct job {
	const struct kvp_kernels *k;
	struct kvp_attend a;
	float *q;
	float *out;
	uint32_t threads;
};

static void context_free(struct context *c)
{
	free(c->parts);
	free(c->data);
}

static struct kvp_plane plane_of(uint32_t tokens, uint32_t dtype, uint32_t kind)
{
	return (struct kvp_plane){ tokens, KV_HEADS, DIM, dtype, kind };
}

/* Native planes of a dtype, block by block, K before V. */
static struct context context_native(uint32_t ctx, uint32_t dtype)
{
	size_t row = DIM * (dtype == KVP_DTYPE_F32 ? 4 : 2), plane = row * KV_HEADS * TOKENS;
	struct context c = { .n_parts = (ctx + TOKENS - 1) / TOKENS };

	c.parts = kbench_alloc(c.n_parts * sizeof *c.parts);
	c.data = kbench_alloc(c.n_parts * 2 * plane);
	memset(c.parts, 0, c.n_parts * sizeof *c.parts);
	for (uint32_t i = 0; i < c.n_parts; i++) {
		uint32_t left = ctx - i * TOKENS;
		struct kvp_attend_plane p = { .codec = KVP_CODEC_NATIVE,
			.dtype = dtype,
			.data = c.data + 2 * i * plane,
			.head_stride = (ptrdiff_t)(row * TOKENS),
			.token_stride = (ptrdiff_t)row };

		c.parts[i].tokens = left < TOKENS ? left : TOKENS;
		c.parts[i].k = p;
		p.data = c.data + (2 * i + 1) * plane;
		c.parts[i].v = p;
	}
	return c;
}

static int encode_plane(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_attend_plane *from, uint8_t *at, struct kvp_attend_plane *ret)
{
	struct kvp_raw_const src = { from->data, from->head_stride, from->token_stride };
	size_t bytes;
	int r = kvp_plane_bytes(codec, p, &bytes);

	if (!r)
		r = kvp_plane_encode(k, codec, p, NULL, src, at, bytes);
	*ret = (struct kvp_attend_plane){
		.codec = codec, .dtype = p->dtype, .data = at, .bytes = bytes
	};
	if (codec == KVP_CODEC_NATIVE) {
		ret->token_stride = DIM * 2;
		ret->head_stride = (ptrdiff_t)(DIM * 2 * p->tokens);
	}
	return r;
}

static int context_encode(const struct kvp_kernels *k, const struct context *native, uint32_t kc,
	uint32_t vc, struct context *ret)
{
	struct context c = { .n_parts = native->n_parts };
	struct kvp_plane kp = plane_of(TOKENS, KVP_DTYPE_F16, KVP_PLANE_K);
	struct kvp_plane vp = plane_of(TOKENS, KVP_DTYPE_F16, KVP_PLANE_V);
	size_t kb, vb;
	int r = 0;

	if (kvp_plane_bytes(kc, &kp, &kb) < 0 || kvp_plane_bytes(vc, &vp, &vb) < 0)
		return -EINVAL;
	kb = (kb + 63) & ~(size_t)63;
	vb = (vb + 63) & ~(size_t)63;
	c.parts = kbench_alloc(c.n_parts * sizeof *c.parts);
	c.data = kbench_alloc(c.n_parts * (kb + vb));
	for (uint32_t i = 0; i < c.n_parts && !r; i++) {
		uint8_t *at = c.data + i * (kb + vb);

		kp.tokens = vp.tokens = native->parts[i].tokens;
		c.parts[i] = (struct kvp_attend_part){ .tokens = kp.tokens };
		r = encode_plane(k, kc, &kp, &native->parts[i].k, at, &c.parts[i].k);
		if (!r)
			r = encode_plane(k, vc, &vp, &native->parts[i].v, at + kb, &c.parts[i].v);
	}
	*ret = c;
	return r;
}

static int decode_part(const struct kvp_kernels *k, const struct kvp_attend_part *from,
	const struct kvp_attend_part *to, uint32_t dtype)
{
	int r = 0;

	for (uint32_t kind = 0; kind < 2 && !r; kind++) {
		const struct kvp_attend_plane *a = kind ? &from->v : &from->k;
		const struct kvp_attend_plane *b = kind ? &to->v : &to->k;
		/* The header names fp16; the reference wants the decoded values, in whatever type.
		 */
		struct kvp_plane p = plane_of(from->tokens, dtype, kind);
		struct kvp_raw dst = { (void *)(uintptr_t)b->data, b->head_stride,
			b->token_stride };

		r = kvp_plane_decode(k, a->codec, &p, NULL, a->data,
			a->codec == KVP_CODEC_NATIVE ? SIZE_MAX / 2 : a->bytes, dst);
	}
	return r;
}

struct range {
	const struct job *job;
	uint32_t split;
	int r;
};

static void *range_main(void *arg)
{
	struct range *range = arg;

	range->r = kvp_attend_range(range->job->k, &range->job->a, range->split);
	return NULL;
}

/* Seconds of one attention over c. */
static double attend(struct job *job, const struct context *c, float *out)
{
	struct kvp_attend_result res = { .out = out };
	pthread_t thread[64];
	struct range range[64];
	double t;
	int r;

	job->a.parts = c->parts;
	job->a.n_parts = c->n_parts;
	t = kbench_now();
	r = kvp_attend_prepare(job->k, &job->a);
	for (uint32_t i = 0; i < job->threads; i++)
		range[i] = (struct range){ job, i, 0 };
	for (uint32_t i = 1; i < job->threads; i++)
		r |= -pthread_create(&thread[i], NULL, range_main, &range[i]);
	range_main(&range[0]);
	for (uint32_t i = 1; i < job->threads; i++)
		pthread_join(thread[i], NULL);
	for (uint32_t i = 0; i < job->threads; i++)
		r |= range[i].r;
	r |= kvp_attend_finish(job->k, &job->a, &res);
	if (r) {
		fprintf(stderr, "kvbench attention: %s\n", strerror(-r));
		exit(1);
	}
	return kbench_now() - t;
}

static double best_of(struct job *job, const struct context *c, float *out, int rounds)
{
	double best = INFINITY;

	for (int i = 0; i < rounds; i++)
		best = fmin(best, attend(job, c, out));
	return best;
}

static double cosine(const float *a, const float *b, size_t n)
{
	double ab = 0.0, aa = 0.0, bb = 0.0;

	for (size_t i = 0; i < n; i++) {
		ab += (double)a[i] * (double)b[i];
		aa += (double)a[i] * (double)a[i];
		bb += (double)b[i] * (double)b[i];
	}
	return ab / sqrt(aa * bb);
}

static int bench_one(struct job *job, const struct kvp_kernels *c_only, const char *name,
	const struct context *native, struct context *scratch, double native_s, double *ret_decode,
	double *ret_fused, double *ret_cos)
{
	const struct kvp_kernels *fast = job->k;
	size_t n = (size_t)Q_HEADS * DIM;
	float *ref = kbench_alloc(n * sizeof *ref);
	int rounds = native_s > 0.05 ? 3 : 10;
	uint32_t kc, vc;
	struct context coded = { 0 };
	double decode = INFINITY;
	int r = kvp_codec_parse_pair(name, &kc, &vc);

	if (!r)
		r = context_encode(fast, native, kc, vc, &coded);
	if (r < 0) {
		fprintf(stderr, "kvbench attention: codec %s: %s\n", name, strerror(-r));
		free(ref);
		return r;
	}
	for (int i = 0; i < (rounds > 3 ? 3 : rounds); i++) {
		double t = kbench_now();

		for (uint32_t j = 0; j < coded.n_parts && !r; j++)
			r = decode_part(fast, &coded.parts[j], &scratch->parts[j], KVP_DTYPE_F16);
		decode = fmin(decode, kbench_now() - t);
	}
	*ret_decode = decode + native_s;
	/* fp32 attention over what the codec decodes to. */
	job->k = c_only;
	attend(job, scratch, ref);
	job->k = fast;
	*ret_fused = best_of(job, &coded, job->out, rounds);
	*ret_cos = cosine(ref, job->out, n);
	context_free(&coded);
	free(ref);
	return r;
}

static int bench_context(struct job *job, const struct kvp_kernels *c_only,
	const struct kbench_args *args, uint32_t ctx, int first)
{
	struct context native = context_native(ctx, KVP_DTYPE_F16);
	struct context scratch = context_native(ctx, KVP_DTYPE_F16);
	size_t n = args->n_codecs ? args->n_codecs : sizeof default_codecs / sizeof *default_codecs;
	double native_s;
	int r = 0;

	kbench_fill_f16(native.data, (size_t)native.n_parts * 2 * TOKENS * KV_HEADS * DIM);
	memset(scratch.data, 0, (size_t)native.n_parts * 4 * TOKENS * KV_HEADS * DIM);
	job->a.position = ctx - 1;
	attend(job, &native, job->out);
	native_s = best_of(job, &native, job->out, ctx > 50000 ? 3 : 10);
	for (size_t i = 0; i < n && !r; i++) {
		const char *name = args->n_codecs ? args->codecs[i] : default_codecs[i];
		double decode, fused, cos;

		r = bench_one(
			job, c_only, name, &native, &scratch, native_s, &decode, &fused, &cos);
		if (r < 0)
			break;
		if (args->json)
			printf("%s\n{\"ctx\":%u,\"codec\":\"%s\",\"native_ms\":%.4f,"
			       "\"decode_then_attend_ms\":%.4f,\"fused_ms\":%.4f,\"cosine\":%.7f,"
			       "\"isa\":\"%s\",\"threads\":%u}",
				first && !i ? "" : ",", ctx, name, native_s * 1e3, decode * 1e3,
				fused * 1e3, cos, args->isa, args->threads);
		else
			printf("%8u %-10s %10.3f %10.3f %10.3f %6.2f %10.7f\n", ctx, name,
				native_s * 1e3, decode * 1e3, fused * 1e3, native_s / fused, cos);
		fflush(stdout);
	}
	context_free(&native);
	context_free(&scratch);
	return r;
}

int kvbench_attention(int argc, char **argv)
{
	struct kbench_args args = { 0 };
	struct kvp_kernels *k, *c_only;
	struct job job;
	size_t bytes;
	int r;

	r = kbench_parse(argc, argv,
		"kvbench attention [--json] [--ctx N[,N...]] [--codec NAME[,NAME...]] "
		"[--isa c|avx2|avx512] [--threads N]",
		&args);
	if (r)
		return r < 0 ? 2 : 0;
	if (!args.n_ctx) {
		static const uint32_t ctx[] = { 1024, 8192, 32768, 131072 };

		memcpy(args.ctx, ctx, sizeof ctx);
		args.n_ctx = 4;
	}
	if (kvp_kernels_new(args.cpu_mask, &k) < 0 || kvp_kernels_new(0, &c_only) < 0)
		return 1;
	job = (struct job){ .k = k, .threads = args.threads };
	job.q = kbench_alloc(sizeof(float) * Q_HEADS * DIM);
	job.out = kbench_alloc(sizeof(float) * Q_HEADS * DIM);
	kbench_seed(11);
	for (size_t i = 0; i < Q_HEADS * DIM; i++)
		job.q[i] = (float)kbench_normal();
	job.a = (struct kvp_attend){ .size = sizeof job.a,
		.queries = 1,
		.q_heads = Q_HEADS,
		.kv_heads = KV_HEADS,
		.k_dim = DIM,
		.v_dim = DIM,
		.scale = 1.0f / sqrtf(DIM),
		.q = job.q,
		.n_splits = args.threads };
	r = kvp_attend_workspace(&job.a, &bytes);
	job.a.workspace = kbench_alloc(bytes);
	job.a.workspace_size = bytes;
	if (args.json)
		printf("[");
	else
		printf("%8s %-10s %10s %10s %10s %6s %10s\n", "ctx", "codec", "native_ms",
			"dec+att_ms", "fused_ms", "gain", "cosine");
	for (size_t i = 0; i < args.n_ctx && !r; i++)
		r = bench_context(&job, c_only, &args, args.ctx[i], i == 0);
	if (args.json)
		printf("\n]\n");
	free(job.q);
	free(job.out);
	free(job.a.workspace);
	kvp_kernels_free(k);
	kvp_kernels_free(c_only);
	return r < 0 ? 1 : 0;
}
