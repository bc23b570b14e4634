/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench attention: one decode step over a compressed context, three ways: native fp16 (or bf16), the codec
 * decoded to fp16 and attended natively, and attended where it lies, by vectors and, where the
 * processor has either, by matrix tiles or by bytes. Beside them the share of native and of fused attention that
 * merely reading their bytes takes, and the cosine of the fused result with attention in double
 * precision over what the codec decodes to.
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
#include <time.h>

#define KV_HEADS 8u
#define QUERIES  4u /* of a KV head, if --queries does not say it */
#define DIM      128u
#define TOKENS   64u

static const char *const default_codecs[] = { "tq4", "tq3", "tq2", "kivi4", "kivi2", "fp8", "int8",
	"k8v4", "4bit_nc" };

/* A context in one representation. */
struct context {
	struct kvp_attend_part *parts;
	uint32_t n_parts;
	uint8_t *data;
	size_t bytes;
};

struct job {
	const struct kvp_kernels *k;
	const struct kvp_kernels *tiles; /* with tiles or bytes besides; NULL: not timed */
	uint32_t group;                  /* query heads of a KV head */
	const struct context *native;    /* what is timed as native: fp16 or bf16 */
	struct kvp_attention a;
	float *q;
	float *out;
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
	c.bytes = c.n_parts * 2 * plane;
	c.data = kbench_alloc(c.bytes);
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
	c.bytes = c.n_parts * (kb + vb);
	c.data = kbench_alloc(c.bytes);
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
	const struct kvp_attend_part *to)
{
	int r = 0;

	for (uint32_t kind = 0; kind < 2 && !r; kind++) {
		const struct kvp_attend_plane *a = kind ? &from->v : &from->k;
		const struct kvp_attend_plane *b = kind ? &to->v : &to->k;
		struct kvp_plane p = plane_of(from->tokens, KVP_DTYPE_F16, kind);
		struct kvp_raw dst = { (void *)(uintptr_t)b->data, b->head_stride,
			b->token_stride };

		r = kvp_plane_decode(k, a->codec, &p, NULL, a->data,
			a->codec == KVP_CODEC_NATIVE ? SIZE_MAX / 2 : a->bytes, dst);
	}
	return r;
}

/* ---- the three ways ---- */

/*
 * Seconds. One thread's are those in which it ran, so that other load of the machine counts less:
 * it costs caches, not turns.
 */
static double seconds(uint32_t threads)
{
	struct timespec t;

	if (threads > 1)
		return kbench_now();
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct range {
	const struct job *job;
	const struct kvp_kernels *k;
	uint32_t split;
	int r;
};

static void *range_main(void *arg)
{
	struct range *range = arg;

	range->r = kvp_attend_range(range->k, &range->job->a, range->split);
	return NULL;
}

/* Runs main(element) for each of n elements, one on this thread. */
static int fan_out(void *(*main)(void *), void *array, size_t size, uint32_t n)
{
	pthread_t thread[64];
	int r = 0;

	for (uint32_t i = 1; i < n; i++)
		r |= -pthread_create(&thread[i], NULL, main, (char *)array + i * size);
	main(array);
	for (uint32_t i = 1; i < n && !r; i++)
		pthread_join(thread[i], NULL);
	return r;
}

/* Seconds of one attention over c. */
static double attend(
	struct job *job, const struct kvp_kernels *k, const struct context *c, float *out)
{
	struct kvp_attend_result res = { .out = out };
	struct range range[64];
	double t;
	int r;

	job->a.parts = c->parts;
	job->a.n_parts = c->n_parts;
	t = seconds(job->a.n_splits);
	r = kvp_attend_prepare(k, &job->a);
	for (uint32_t i = 0; i < job->a.n_splits; i++)
		range[i] = (struct range){ job, k, i, 0 };
	r |= fan_out(range_main, range, sizeof *range, job->a.n_splits);
	for (uint32_t i = 0; i < job->a.n_splits; i++)
		r |= range[i].r;
	r |= kvp_attend_finish(k, &job->a, &res);
	if (r) {
		fprintf(stderr, "kvbench attention: %s\n", strerror(-r));
		exit(1);
	}
	return seconds(job->a.n_splits) - t;
}

#define ROUNDS 11

static int compare_doubles(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static double median(double *x, size_t n)
{
	qsort(x, n, sizeof *x, compare_doubles);
	return x[n / 2];
}

/* ---- the floor ---- */

/* One thread's share of the bytes, read in some streams at once: one alone is slower. */
struct reading {
	const uint8_t *from;
	size_t bytes;
	uint32_t streams;
	uint64_t sum;
};

static void *reading_main(void *arg)
{
	typedef uint64_t line __attribute__((vector_size(16), may_alias));
	struct reading *r = arg;
	size_t stream = r->bytes / r->streams / 64 * 64;
	line x = { 0 };

	for (size_t i = 0; i < stream; i += 64) {
		for (uint32_t s = 0; s < r->streams; s++) {
			const line *p = (const void *)(r->from + s * stream + i);

			x ^= p[0] ^ p[1] ^ p[2] ^ p[3];
		}
	}
	r->sum = x[0] ^ x[1];
	return NULL;
}

/* Seconds of the best of several ways to read n bytes. */
static double read_all(const uint8_t *data, size_t n, uint32_t threads)
{
	static volatile uint64_t sink;
	double best = INFINITY;

	for (uint32_t streams = 2; streams <= 16; streams *= 2) {
		struct reading share[64];
		double t;

		for (uint32_t i = 0; i < threads; i++)
			share[i] = (struct reading){ data + n / threads / 64 * 64 * i,
				n / threads / 64 * 64, streams, 0 };
		t = seconds(threads);
		if (fan_out(reading_main, share, sizeof *share, threads))
			exit(1);
		best = fmin(best, seconds(threads) - t);
		for (uint32_t i = 0; i < threads; i++)
			sink = sink ^ share[i].sum;
	}
	return best;
}

/* ---- the reference ---- */

static float f16_value(uint16_t h)
{
	int e = h >> 10 & 31;
	float x = ldexpf((float)(h & 1023) + (e ? 1024.0f : 0.0f), (e ? e : 1) - 25);

	return h & 0x8000 ? -x : x;
}

/* The same context in bf16. */
static struct context context_bf16(uint32_t ctx, const struct context *f16)
{
	struct context c = context_native(ctx, KVP_DTYPE_BF16);
	const uint16_t *from = (const void *)f16->data;
	uint16_t *to = (void *)c.data;

	for (size_t i = 0; i < c.bytes / 2; i++) {
		const float x = f16_value(from[i]);
		uint32_t u;

		memcpy(&u, &x, sizeof u);
		to[i] = (uint16_t)((u + 0x8000u) >> 16);
	}
	return c;
}

/* A plane of fp16 through a codec and back, in fp32: the same values are coded from and to fp32. */
static int decode_wide(const struct kvp_kernels *k, uint32_t codec,
	const struct kvp_attend_plane *native, uint32_t tokens, uint32_t kind, float *ret)
{
	struct kvp_plane p = plane_of(tokens, KVP_DTYPE_F32, kind);
	const ptrdiff_t row = DIM * sizeof *ret;
	struct kvp_raw raw = { ret, row * tokens, row };
	size_t bytes;
	void *payload;
	int r;

	for (uint32_t h = 0; h < KV_HEADS; h++) {
		const uint16_t *x = (const void *)((const uint8_t *)native->data +
						   (ptrdiff_t)h * native->head_stride);

		for (uint32_t i = 0; i < tokens * DIM; i++)
			ret[(size_t)h * tokens * DIM + i] = f16_value(x[i]);
	}
	if (codec == KVP_CODEC_NATIVE)
		return 0;
	r = kvp_plane_bytes(codec, &p, &bytes);
	if (r < 0)
		return r;
	payload = kbench_alloc(bytes);
	r = kvp_plane_encode(k, codec, &p, NULL,
		(struct kvp_raw_const){ raw.data, raw.head_stride, raw.token_stride }, payload,
		bytes);
	if (!r)
		r = kvp_plane_decode(k, codec, &p, NULL, payload, bytes, raw);
	free(payload);
	return r;
}

/* One query head so far. */
struct head_sum {
	double max, sum, out[DIM];
};

static void attend_wide(const struct job *job, uint32_t head, const float *k, const float *v,
	uint32_t tokens, struct head_sum *h)
{
	const float *q = job->q + (size_t)head * DIM;

	for (uint32_t t = 0; t < tokens; t++, k += DIM, v += DIM) {
		double s = 0.0, fade = 1.0, w;

		for (uint32_t c = 0; c < DIM; c++)
			s += (double)q[c] * (double)k[c];
		s *= (double)job->a.scale;
		if (s > h->max) {
			fade = exp(h->max - s);
			h->max = s;
		}
		w = exp(s - h->max);
		h->sum = h->sum * fade + w;
		for (uint32_t c = 0; c < DIM; c++)
			h->out[c] = h->out[c] * fade + w * (double)v[c];
	}
}

static uint32_t q_heads(const struct job *job)
{
	return job->group * KV_HEADS;
}

/* Attention in double precision over a native context after codecs kc and vc. */
static int reference(
	const struct job *job, const struct context *native, uint32_t kc, uint32_t vc, float *ret)
{
	size_t plane = (size_t)KV_HEADS * TOKENS * DIM;
	struct head_sum *h = kbench_alloc(q_heads(job) * sizeof *h);
	float *k = kbench_alloc(plane * sizeof *k), *v = kbench_alloc(plane * sizeof *v);
	int r = 0;

	memset(h, 0, q_heads(job) * sizeof *h);
	for (uint32_t i = 0; i < q_heads(job); i++)
		h[i].max = -INFINITY;
	for (uint32_t i = 0; i < native->n_parts && !r; i++) {
		const struct kvp_attend_part *part = &native->parts[i];

		r = decode_wide(job->k, kc, &part->k, part->tokens, KVP_PLANE_K, k);
		if (!r)
			r = decode_wide(job->k, vc, &part->v, part->tokens, KVP_PLANE_V, v);
		for (uint32_t j = 0; j < q_heads(job) && !r; j++) {
			size_t at = (size_t)(j / job->group) * part->tokens * DIM;

			attend_wide(job, j, k + at, v + at, part->tokens, &h[j]);
		}
	}
	for (uint32_t i = 0; i < q_heads(job) * DIM; i++)
		ret[i] = (float)(h[i / DIM].out[i % DIM] / h[i / DIM].sum);
	free(h);
	free(k);
	free(v);
	return r;
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

struct result {
	double native, floor; /* native attention, and reading the native bytes */
	double decode;        /* and attending natively */
	double share;         /* of that which decoding takes */
	double fused, own;    /* over codes, and reading these */
	double cosine;
	double tiles, tiles_cosine; /* the fused one again, by tiles or bytes; 0: not timed */
};

/* In turn, so that other load of the machine hits all of them. */
static void time_all(struct job *job, const struct context *native, const struct context *coded,
	uint32_t threads, int rounds, struct result *ret)
{
	double n[ROUNDS], f[ROUNDS], c[ROUNDS], o[ROUNDS], t[ROUNDS] = { 0 };

	attend(job, job->k, native, job->out);
	for (int i = 0; i < rounds; i++) {
		n[i] = attend(job, job->k, native, job->out);
		f[i] = read_all(native->data, native->bytes, threads);
		c[i] = attend(job, job->k, coded, job->out);
		o[i] = read_all(coded->data, coded->bytes, threads);
		if (job->tiles) {
			/* After the native bytes, as the other one. */
			read_all(native->data, native->bytes, threads);
			t[i] = attend(job, job->tiles, coded, job->out);
		}
	}
	ret->native = median(n, (size_t)rounds);
	ret->floor = median(f, (size_t)rounds);
	ret->fused = median(c, (size_t)rounds);
	ret->own = median(o, (size_t)rounds);
	ret->tiles = median(t, (size_t)rounds);
}

static int time_decoding(
	const struct job *job, const struct context *coded, const struct context *to, double *ret)
{
	double best = INFINITY;
	int r = 0;

	for (int i = 0; i < 3; i++) {
		double t = seconds(1);

		for (uint32_t j = 0; j < coded->n_parts && !r; j++)
			r = decode_part(job->k, &coded->parts[j], &to->parts[j]);
		best = fmin(best, seconds(1) - t);
	}
	*ret = best;
	return r;
}

static int encode_named(const struct job *job, const char *name, const struct context *native,
	uint32_t *ret_kc, uint32_t *ret_vc, struct context *ret)
{
	int r = kvp_codec_parse_pair(name, ret_kc, ret_vc);

	if (r < 0) {
		fprintf(stderr, "kvbench attention: no codec is called %s\n", name);
		return r;
	}
	r = context_encode(job->k, native, *ret_kc, *ret_vc, ret);
	if (r < 0)
		fprintf(stderr, "kvbench attention: %s: %s\n", name,
			r == -ENOENT ? "needs a matrix, which this benchmark does not make"
				     : strerror(-r));
	return r;
}

static int bench_one(struct job *job, const char *name, const struct context *native,
	const struct context *scratch, uint32_t threads, int rounds, struct result *ret)
{
	size_t n = (size_t)q_heads(job) * DIM;
	float *ref = kbench_alloc(n * sizeof *ref);
	struct context coded = { 0 };
	double decode = 0.0;
	uint32_t kc, vc;
	int r = encode_named(job, name, native, &kc, &vc, &coded);

	if (!r)
		r = time_decoding(job, &coded, scratch, &decode);
	if (!r) {
		time_all(job, job->native, &coded, threads, rounds, ret);
		ret->decode = decode + ret->native;
		ret->share = decode / ret->decode;
		attend(job, job->k, &coded, job->out);
		r = reference(job, native, kc, vc, ref);
		ret->cosine = cosine(ref, job->out, n);
		if (job->tiles) {
			attend(job, job->tiles, &coded, job->out);
			ret->tiles_cosine = cosine(ref, job->out, n);
		}
	}
	context_free(&coded);
	free(ref);
	return r;
}

static const char *tiles_name(void)
{
	return kvp_cpu_detect() & KVP_CPU_TILES ? "tiles" : "bytes";
}

/* Beside the vectors' results those of matrix tiles, or bytes. */
static void print_tiles(const struct kbench_args *args, const char *name, const struct result *res)
{
	double gain = res->native / res->tiles, bound = res->own / res->tiles;

	if (args->json)
		printf(",\"%s_ms\":%.4f,\"%s_gain\":%.3f,\"%s_cosine\":%.10f", name,
			res->tiles * 1e3, name, gain, name, res->tiles_cosine);
	else
		printf(" %9.3f %5.0f%% %6.2f %12.10f", res->tiles * 1e3, 100.0 * bound, gain,
			res->tiles_cosine);
}

static void print_result(const struct kbench_args *args, const struct job *job, uint32_t ctx,
	const char *name, const struct result *res)
{
	double gain = res->native / res->fused, bound = res->own / res->fused;

	if (args->json)
		printf("{\"ctx\":%u,\"queries\":%u,\"codec\":\"%s\",\"native_ms\":%.4f,"
		       "\"floor_ms\":%.4f,\"decode_then_attend_ms\":%.4f,\"decode_share\":%.3f,"
		       "\"fused_ms\":%.4f,\"gain\":%.3f,\"fused_floor_ms\":%.4f,"
		       "\"cosine\":%.10f,\"isa\":\"%s\",\"threads\":%u,\"native\":\"%s\"",
			ctx, job->group, name, res->native * 1e3, res->floor * 1e3,
			res->decode * 1e3, res->share, res->fused * 1e3, gain, res->own * 1e3,
			res->cosine, args->isa, (unsigned int)args->threads,
			args->native == KVP_DTYPE_BF16 ? "bf16" : "fp16");
	else
		printf("%8u %3u %-10s %9.3f %5.0f%% %10.3f %5.0f%% %9.3f %5.0f%% %6.2f %12.10f",
			ctx, job->group, name, res->native * 1e3, 100.0 * res->floor / res->native,
			res->decode * 1e3, 100.0 * res->share, res->fused * 1e3, 100.0 * bound,
			gain, res->cosine);
	if (job->tiles)
		print_tiles(args, tiles_name(), res);
	printf("%s", args->json ? "}" : "\n");
	fflush(stdout);
}

static int bench_context(struct job *job, const struct kbench_args *args, uint32_t ctx, int first)
{
	struct context native = context_native(ctx, KVP_DTYPE_F16);
	struct context scratch = context_native(ctx, KVP_DTYPE_F16), bf16 = { 0 };
	size_t n = args->n_codecs ? args->n_codecs : sizeof default_codecs / sizeof *default_codecs;
	int r = 0;

	kbench_fill_f16(native.data, native.bytes / 2);
	memset(scratch.data, 0, scratch.bytes);
	if (args->native == KVP_DTYPE_BF16)
		bf16 = context_bf16(ctx, &native);
	job->native = args->native == KVP_DTYPE_BF16 ? &bf16 : &native;
	job->a.position = ctx - 1;
	job->a.n_splits = kvp_attend_splits(ctx, KV_HEADS, (uint32_t)args->threads);
	for (size_t i = 0; i < n && !r; i++) {
		const char *name = args->n_codecs ? args->codecs[i] : default_codecs[i];
		struct result res = { 0 };

		r = bench_one(job, name, &native, &scratch, (uint32_t)args->threads,
			ctx > 50000 ? 3 : ROUNDS, &res);
		if (r < 0)
			break;
		if (args->json)
			printf("%s\n", first && !i ? "" : ",");
		print_result(args, job, ctx, name, &res);
	}
	context_free(&native);
	context_free(&scratch);
	context_free(&bf16);
	return r;
}

/* All contexts with so many queries of a KV head. */
static int bench_queries(const struct kvp_kernels *k, const struct kvp_kernels *tiles,
	const struct kbench_args *args, uint32_t group, int first)
{
	struct job job = { .k = k, .tiles = tiles, .group = group };
	size_t bytes, n = (size_t)q_heads(&job) * DIM;
	int r;

	job.q = kbench_alloc(n * sizeof *job.q);
	job.out = kbench_alloc(n * sizeof *job.out);
	kbench_seed(11);
	for (size_t i = 0; i < n; i++)
		job.q[i] = (float)kbench_normal();
	job.a = (struct kvp_attention){ .size = sizeof job.a,
		.queries = 1,
		.q_heads = q_heads(&job),
		.kv_heads = KV_HEADS,
		.k_dim = DIM,
		.v_dim = DIM,
		.scale = 1.0f / sqrtf(DIM),
		.q = job.q,
		.n_splits = (uint32_t)args->threads };
	r = kvp_attend_workspace(&job.a, &bytes);
	job.a.workspace = kbench_alloc(bytes);
	job.a.workspace_size = bytes;
	for (size_t i = 0; i < args->n_ctx && !r; i++)
		r = bench_context(&job, args, args->ctx[i], first && i == 0);
	free(job.q);
	free(job.out);
	free(job.a.workspace);
	return r;
}

/* Without --isa, tiles or bytes are timed beside the vectors. Whether there are none is an answer, too. */
static int tiles_beside(const struct kbench_args *args, struct kvp_kernels **ret)
{
	const unsigned int either = KVP_CPU_TILES | KVP_CPU_BYTES;

	*ret = NULL;
	if (args->cpu_mask != (kvp_cpu_detect() & KVP_CPU_ALL) || !(kvp_cpu_detect() & either))
		return 0;
	return kvp_kernels_new(KVP_CPU_ALL | either, ret);
}

static void print_head(int tiles)
{
	printf("%8s %3s %-10s %9s %6s %10s %6s %9s %6s %6s %12s", "ctx", "q", "codec", "native_ms",
		"floor", "dec+att_ms", "dec", "fused_ms", "floor", "gain", "cosine");
	if (tiles)
		printf(" %6s_ms %6s %6s %12s", tiles_name(), "floor", "gain", "cosine");
	printf("\n");
}

int kvbench_attention(int argc, char **argv)
{
	struct kbench_args args = { 0 };
	struct kvp_kernels *k, *tiles;
	int r;

	r = kbench_parse(argc, argv,
		"One decode step over a compressed context, beside native attention and the time\n"
		"in which the bytes can be read at all. Times are medians of several.",
		KBENCH_CTX | KBENCH_CODEC | KBENCH_ISA | KBENCH_THREADS | KBENCH_QUERIES |
			KBENCH_NATIVE,
		&args);
	if (r)
		return r < 0 ? 2 : 0;
	if (!args.n_ctx) {
		static const uint32_t ctx[] = { 1024, 8192, 32768, 131072 };

		memcpy(args.ctx, ctx, sizeof ctx);
		args.n_ctx = 4;
	}
	if (!args.n_queries)
		args.queries[args.n_queries++] = QUERIES;
	if (kvp_kernels_new(args.cpu_mask, &k) < 0)
		return 1;
	if (tiles_beside(&args, &tiles) < 0) {
		kvp_kernels_free(k);
		return 1;
	}
	if (args.json)
		printf("[");
	else
		print_head(tiles != NULL);
	for (size_t i = 0; i < args.n_queries && !r; i++)
		r = bench_queries(k, tiles, &args, args.queries[i], i == 0);
	if (args.json)
		printf("\n]\n");
	kvp_kernels_free(tiles);
	kvp_kernels_free(k);
	return r < 0 ? 1 : 0;
}
