/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/cudasim/planes.h"
#include "tests/gpu/bench.h"

#define HEADS       8u
#define GROUP       4u
#define DIM         128u
#define PAGE_TOKENS 64u
#define PLANE_BYTES ((size_t)HEADS * PAGE_TOKENS * DIM * 2)
#define REPEATS     8

static int complain(struct gpu *g, const char *what, int r)
{
	printf("%s: %s %s\n", what, r == CU_OK ? "failed" : kvp_cu_name(&g->cu, r),
		g->device.error);
	return -1;
}

/* ---- device memory that is freed together ---- */

struct arena {
	uint64_t ptr[32];
	uint32_t n;
};

static uint64_t take(struct gpu *g, struct arena *a, const void *init, size_t bytes)
{
	uint64_t p;

	if (a->n == sizeof(a->ptr) / sizeof(a->ptr[0]) ||
		g->cu.cuMemAlloc_v2(&p, bytes + 256) != CU_OK)
		return 0;
	a->ptr[a->n++] = p;
	if (init ? g->cu.cuMemcpyHtoD_v2(p, init, bytes) != CU_OK
		 : g->cu.cuMemsetD8_v2(p, 0, bytes) != CU_OK)
		return 0;
	return p;
}

static void drop(struct gpu *g, struct arena *a)
{
	while (a->n > 0)
		g->cu.cuMemFree_v2(a->ptr[--a->n]);
}

/* Addresses base, base + stride, ... as a table on the device. */
static uint64_t take_table(struct gpu *g, struct arena *a, uint64_t base, size_t stride, uint32_t n)
{
	uint64_t *table = malloc(n * sizeof(*table)), p = 0;

	for (uint32_t i = 0; table && i < n; i++)
		table[i] = base + (uint64_t)i * stride;
	if (table)
		p = take(g, a, table, n * sizeof(*table));
	free(table);
	return p;
}

static uint64_t take_normal(struct gpu *g, struct arena *a, struct rng *r, size_t elements)
{
	uint8_t *raw = malloc(elements * 2);
	uint64_t p = 0;

	for (size_t i = 0; raw && i < elements; i++)
		put_element(raw + 2 * i, KVP_DTYPE_F16, 0, rng_normal(r));
	if (raw)
		p = take(g, a, raw, elements * 2);
	free(raw);
	return p;
}

/* ---- timing ---- */

struct clockwork {
	struct CUevent_st *start;
	struct CUevent_st *stop;
};

static int clock_new(struct gpu *g, struct clockwork *c)
{
	return g->cu.cuEventCreate(&c->start, 0) == CU_OK &&
			       g->cu.cuEventCreate(&c->stop, 0) == CU_OK
		       ? 0
		       : -1;
}

/* Seconds of one call of enqueue(), the mean of REPEATS after one that warms up; negative: error,
 * already reported. */
static double seconds(struct gpu *g, struct clockwork *c, const char *what,
	int (*enqueue)(struct gpu *g, const void *arg), const void *arg)
{
	int r, repeats = g->quick ? 1 : REPEATS;
	float ms = 0.0f;

	if (enqueue(g, arg) < 0)
		return complain(g, what, CU_OK);
	g->cu.cuEventRecord(c->start, g->stream);
	for (int i = 0; i < repeats; i++)
		if (enqueue(g, arg) < 0)
			return complain(g, what, CU_OK);
	g->cu.cuEventRecord(c->stop, g->stream);
	r = g->cu.cuEventSynchronize(c->stop);
	if (r == CU_OK)
		r = g->cu.cuEventElapsedTime(&ms, c->start, c->stop);
	return r == CU_OK && ms > 0.0f ? ms * 1e-3 / repeats : complain(g, what, r);
}

struct launch {
	const struct kvp_cuda_kernel *kernel;
	const void *params;
};

static int enqueue_launch(struct gpu *g, const void *arg)
{
	const struct launch *l = arg;

	return gpu_enqueue(g, l->kernel, l->params);
}

struct copy {
	uint64_t to;
	uint64_t from;
	size_t bytes;
};

static int enqueue_copy(struct gpu *g, const void *arg)
{
	const struct copy *c = arg;

	return g->cu.cuMemcpyDtoDAsync_v2(c->to, c->from, c->bytes, g->stream) == CU_OK ? 0 : -1;
}

/* ---- codecs ---- */

static const struct {
	const char *name;
	uint32_t codec;
	uint32_t kind;
} subjects[] = {
	{ "tq4", KVP_CODEC_TQ4, KVP_PLANE_K },
	{ "tq3", KVP_CODEC_TQ3, KVP_PLANE_K },
	{ "tq2", KVP_CODEC_TQ2, KVP_PLANE_K },
	{ "kivi4-g32 K", KVP_CODEC_KIVI(4u, 5u), KVP_PLANE_K },
	{ "kivi4-g32 V", KVP_CODEC_KIVI(4u, 5u), KVP_PLANE_V },
	{ "kivi2-g32 K", KVP_CODEC_KIVI(2u, 5u), KVP_PLANE_K },
	{ "kivi2-g32 V", KVP_CODEC_KIVI(2u, 5u), KVP_PLANE_V },
	{ "fp8-e4m3", KVP_CODEC_FP8_E4M3, KVP_PLANE_K },
	{ "int8", KVP_CODEC_INT8, KVP_PLANE_K },
	{ "native", KVP_CODEC_NATIVE, KVP_PLANE_K },
};

/* Page tables and strides for `pages` planes of one codec at `payload`. */
static int rows_of(struct gpu *g, struct arena *a, uint32_t codec, uint32_t kind, uint32_t pages,
	uint64_t payload, struct kvp_cuda_rows *p)
{
	struct kvp_plane plane = { PAGE_TOKENS, HEADS, DIM, KVP_DTYPE_F16, kind };

	memset(p, 0, sizeof(*p));
	if (kvp_cuda_codec_init(codec, &plane, 0, NULL, &p->codec) < 0)
		return -1;
	p->raw_token_stride = DIM * 2;
	p->raw_head_stride = PAGE_TOKENS * DIM * 2;
	p->raw_page_stride = (int64_t)PLANE_BYTES;
	p->count = pages;
	p->pages = take_table(g, a, payload, (p->codec.bytes + 255) / 256 * 256, pages);
	return p->pages ? 0 : -1;
}

static int bench_codec(struct gpu *g, struct clockwork *clock, size_t i, uint32_t pages,
	uint64_t raw, uint64_t out, uint64_t payload, double copy)
{
	struct launch begin = { NULL, NULL }, encode, decode;
	struct kvp_cuda_rows p, back;
	double raw_gb = (double)pages * (double)PLANE_BYTES * 1e-9, tb = 0.0, te, td;
	struct arena a = { .n = 0 };
	int rc = rows_of(g, &a, subjects[i].codec, subjects[i].kind, pages, payload, &p);

	p.raw = raw;
	back = p;
	back.raw = out;
	encode.params = begin.params = &p;
	decode.params = &back;
	if (rc == 0)
		rc = kvp_cuda_kernel_find("kvp_cu_plane_begin", &begin.kernel);
	if (rc == 0)
		rc = kvp_cuda_encode_kernel(&p.codec, &encode.kernel);
	if (rc == 0)
		rc = kvp_cuda_decode_kernel(&p.codec, &decode.kernel);
	if (rc == 0 && subjects[i].codec != KVP_CODEC_NATIVE)
		tb = seconds(g, clock, "plane_begin", enqueue_launch, &begin);
	te = rc == 0 ? seconds(g, clock, "encode", enqueue_launch, &encode) : -1.0;
	td = rc == 0 ? seconds(g, clock, "decode", enqueue_launch, &decode) : -1.0;
	drop(g, &a);
	if (rc < 0 || tb < 0.0 || te < 0.0 || td < 0.0)
		return complain(g, subjects[i].name, CU_OK);
	printf("  %-14s %10.0f %10.0f %10.0f %9.2f %9.2f\n", subjects[i].name,
		tb > 0.0 ? raw_gb / tb : 0.0, raw_gb / te, raw_gb / td, copy / te, copy / td);
	return 0;
}

int bench_codecs(struct gpu *g, struct rng *r)
{
	size_t free_bytes = 0, total = 0;
	struct clockwork clock;
	struct arena a = { .n = 0 };
	uint32_t pages, pattern_pages;
	struct copy copy;
	uint64_t payload;
	double t;
	int rc = 0;

	if (clock_new(g, &clock) < 0 || g->cu.cuMemGetInfo_v2(&free_bytes, &total) != CU_OK)
		return complain(g, "codecs", CU_OK);
	pages = g->quick ? 1 : 4096;
	while (pages > 64 && 4 * pages * PLANE_BYTES > free_bytes)
		pages /= 2;
	copy.bytes = pages * PLANE_BYTES;
	pattern_pages = pages < 64 ? pages : 64;
	copy.from = take_normal(g, &a, r, pattern_pages * PLANE_BYTES / 2);
	if (copy.from) {
		uint64_t pattern = copy.from;

		copy.from = take(g, &a, NULL, copy.bytes);
		for (uint32_t i = 0; copy.from && i < pages; i += pattern_pages)
			g->cu.cuMemcpyDtoD_v2(
				copy.from + i * PLANE_BYTES, pattern, pattern_pages * PLANE_BYTES);
	}
	copy.to = take(g, &a, NULL, copy.bytes);
	payload = take(g, &a, NULL, copy.bytes + pages * (size_t)256);
	if (!copy.from || !copy.to || !payload) {
		drop(g, &a);
		return complain(g, "codecs: memory", CU_OK);
	}
	t = seconds(g, &clock, "copy", enqueue_copy, &copy);
	rc = t < 0.0 ? -1 : 0;
	printf("codecs: %u planes of %u heads x %u tokens x %u, GB/s of raw fp16; device-to-device "
	       "copy of the same bytes: %.0f GB/s\n",
		pages, HEADS, PAGE_TOKENS, DIM, (double)copy.bytes * 1e-9 / t);
	printf("  %-14s %10s %10s %10s %9s %9s\n", "codec", "exponent", "encode", "decode",
		"enc/copy", "dec/copy");
	for (size_t i = 0; rc == 0 && i < sizeof(subjects) / sizeof(subjects[0]); i++)
		rc = bench_codec(g, &clock, i, pages, copy.from, copy.to, payload, t);
	drop(g, &a);
	return rc;
}

/* ---- attention ---- */

struct attention {
	struct kvp_cuda_rows k;
	struct kvp_cuda_rows v;
	uint64_t query; /* as the engine has it */
	struct kvp_cuda_rotate rotate;
	struct kvp_cuda_attend attend;
	struct kvp_cuda_merge merge;
	const struct kvp_cuda_kernel *rotate_kernel; /* NULL: the keys need none */
	const struct kvp_cuda_kernel *attend_kernel;
	const struct kvp_cuda_kernel *merge_kernel;
	size_t page_bytes;
};

static int enqueue_attention(struct gpu *g, const void *arg)
{
	const struct attention *t = arg;

	if (t->rotate_kernel && gpu_enqueue(g, t->rotate_kernel, &t->rotate) < 0)
		return -1;
	if (gpu_enqueue(g, t->attend_kernel, &t->attend) < 0)
		return -1;
	return gpu_enqueue(g, t->merge_kernel, &t->merge);
}

static uint32_t split_count(struct gpu *g, uint32_t seqs, uint32_t tokens)
{
	int sms = 0;

	g->cu.cuDeviceGetAttribute(&sms, CU_ATTR_SM_COUNT, g->cu.device);
	return kvp_cuda_splits((uint32_t)sms, seqs * HEADS, tokens);
}

static int encode_pages(struct gpu *g, struct attention *t, uint64_t raw)
{
	const struct kvp_cuda_kernel *begin, *encode;
	struct kvp_cuda_rows *planes[] = { &t->k, &t->v };

	if (kvp_cuda_kernel_find("kvp_cu_plane_begin", &begin) < 0)
		return -1;
	for (int i = 0; i < 2; i++) {
		/* all pages get the same rows; they are other bytes in memory all the same */
		planes[i]->raw = raw + (uint64_t)i * PLANE_BYTES;
		planes[i]->raw_page_stride = 0;
		if (planes[i]->codec.id != KVP_CODEC_NATIVE && gpu_enqueue(g, begin, planes[i]) < 0)
			return -1;
		if (kvp_cuda_encode_kernel(&planes[i]->codec, &encode) < 0 ||
			gpu_enqueue(g, encode, planes[i]) < 0)
			return -1;
	}
	return g->cu.cuStreamSynchronize(g->stream) == CU_OK ? 0 : -1;
}

/* Queries of rotated keys go through kvp_cu_rotate first. */
static int rotate_new(struct gpu *g, struct arena *a, struct attention *t)
{
	struct kvp_cuda_attend *p = &t->attend;

	if (!kvp_cuda_rotates(&p->k))
		return 0;
	t->rotate = (struct kvp_cuda_rotate){
		.q = p->q,
		.q_seq_stride = p->q_seq_stride,
		.q_query_stride = p->q_query_stride,
		.q_head_stride = p->q_head_stride,
		.out = take(g, a, NULL, (size_t)p->seqs * HEADS * GROUP * DIM * 4),
		.q_dtype = p->q_dtype,
		.seqs = p->seqs,
		.queries = p->queries,
		.heads = HEADS * GROUP,
		.dim = DIM,
		.rot = p->k.rot,
	};
	p->q = t->rotate.out;
	p->q_dtype = KVP_DTYPE_F32;
	p->q_head_stride = DIM * 4;
	p->q_seq_stride = p->q_query_stride = HEADS * GROUP * DIM * 4;
	return p->q ? kvp_cuda_kernel_find("kvp_cu_rotate", &t->rotate_kernel) : -1;
}

static int attention_new(struct gpu *g, struct arena *a, struct rng *r, uint32_t codec,
	uint32_t seqs, uint32_t tokens, struct attention *t)
{
	struct kvp_plane plane = { PAGE_TOKENS, HEADS, DIM, KVP_DTYPE_F16, KVP_PLANE_K };
	uint32_t pages = seqs * tokens / PAGE_TOKENS, rows = seqs * HEADS * GROUP, *lengths;
	struct kvp_cuda_attend *p = &t->attend;
	uint64_t base, raw;

	memset(t, 0, sizeof(*t));
	if (kvp_cuda_codec_init(codec, &plane, 0, NULL, &p->k) < 0)
		return -1;
	plane.kind = KVP_PLANE_V;
	if (kvp_cuda_codec_init(codec, &plane, 0, NULL, &p->v) < 0)
		return -1;
	p->v_offset = (p->k.bytes + 63u) / 64u * 64u;
	t->page_bytes = p->v_offset + (p->v.bytes + 63u) / 64u * 64u;
	base = take(g, a, NULL, pages * t->page_bytes);
	p->tables = take_table(g, a, base, t->page_bytes, pages);
	p->table_stride = tokens / PAGE_TOKENS;
	lengths = malloc(seqs * sizeof(*lengths));
	for (uint32_t i = 0; lengths && i < seqs; i++)
		lengths[i] = tokens;
	p->lengths = lengths ? take(g, a, lengths, seqs * sizeof(*lengths)) : 0;
	free(lengths);
	p->q = t->query = take_normal(g, a, r, (size_t)rows * DIM);
	p->q_dtype = KVP_DTYPE_F16;
	p->q_seq_stride = p->q_query_stride = HEADS * GROUP * DIM * 2;
	p->q_head_stride = DIM * 2;
	p->seqs = seqs;
	p->queries = 1;
	p->group = GROUP;
	p->splits = p->split_total = split_count(g, seqs, tokens);
	p->scale = 1.0f / sqrtf((float)DIM);
	p->partial = take(g, a, NULL, (size_t)rows * p->split_total * (DIM + 2) * 4);
	t->merge = (struct kvp_cuda_merge){
		.partial = p->partial,
		.out = take(g, a, NULL, (size_t)rows * DIM * 2),
		.out_seq_stride = HEADS * GROUP * DIM * 2,
		.out_query_stride = HEADS * GROUP * DIM * 2,
		.out_head_stride = DIM * 2,
		.lse = take(g, a, NULL, (size_t)rows * 4),
		.seqs = seqs,
		.heads = HEADS,
		.group = GROUP,
		.queries = 1,
		.dim = DIM,
		.split_total = p->split_total,
		.out_dtype = KVP_DTYPE_F16,
		.domains = 1,
		.domain = { { .split_end = p->split_total, .rot = p->v.rot } },
	};
	raw = take_normal(g, a, r, PLANE_BYTES);
	if (!base || !p->tables || !p->lengths || !p->q || !p->partial || !t->merge.out ||
		!t->merge.lse || !raw)
		return -1;
	if (rotate_new(g, a, t) < 0)
		return -1;
	if (rows_of(g, a, codec, KVP_PLANE_K, pages, base, &t->k) < 0 ||
		rows_of(g, a, codec, KVP_PLANE_V, pages, base, &t->v) < 0)
		return -1;
	t->k.pages = t->v.pages = p->tables;
	t->v.page_offset = p->v_offset;
	if (kvp_cuda_attend_kernel(&p->k, &p->v, &t->attend_kernel) < 0 ||
		kvp_cuda_kernel_find("kvp_cu_merge", &t->merge_kernel) < 0)
		return -1;
	return encode_pages(g, t, raw);
}

static int bench_context(struct gpu *g, struct rng *r, uint32_t seqs, uint32_t tokens)
{
	static const struct {
		const char *name;
		uint32_t codec;
	} rows[] = {
		{ "native fp16", KVP_CODEC_NATIVE },
		{ "fp8-e4m3", KVP_CODEC_FP8_E4M3 },
		{ "int8", KVP_CODEC_INT8 },
		{ "kivi4-g32", KVP_CODEC_KIVI(4u, 5u) },
		{ "kivi2-g32", KVP_CODEC_KIVI(2u, 5u) },
		{ "tq4", KVP_CODEC_TQ4 },
		{ "tq3", KVP_CODEC_TQ3 },
		{ "tq2", KVP_CODEC_TQ2 },
	};
	struct clockwork clock;
	double native = 0.0;
	int rc = clock_new(g, &clock);

	printf("attention: %u sequences of %u tokens, %u KV heads, %u query heads, dim %u\n", seqs,
		tokens, HEADS, HEADS * GROUP, DIM);
	printf("  %-14s %10s %14s %10s %9s\n", "codec", "ms", "tokens/s", "read GB/s", "speedup");
	for (size_t i = 0; rc == 0 && i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct arena a = { .n = 0 };
		struct attention t;
		double s = -1.0;

		rc = attention_new(g, &a, r, rows[i].codec, seqs, tokens, &t);
		if (rc == 0)
			s = seconds(g, &clock, rows[i].name, enqueue_attention, &t);
		drop(g, &a);
		if (s < 0.0)
			return complain(g, rows[i].name, CU_OK);
		native = i == 0 ? s : native;
		printf("  %-14s %10.3f %14.4g %10.0f %9.2f\n", rows[i].name, s * 1e3,
			(double)seqs * tokens / s,
			(double)seqs * tokens / PAGE_TOKENS * (double)t.page_bytes * 1e-9 / s,
			native / s);
	}
	return rc;
}

static double split_into(struct gpu *g, struct clockwork *c, struct attention *t, uint32_t splits)
{
	t->attend.splits = t->attend.split_total = t->merge.split_total = splits;
	t->merge.domain[0].split_end = splits;
	return seconds(g, c, "splits", enqueue_attention, t);
}

/* One layer in one split, in the number that split_count() chose, and in parts and multiples of it. */
static int bench_splits(struct gpu *g, struct rng *r, uint32_t codec, const char *name,
	uint32_t seqs, uint32_t tokens)
{
	struct arena a = { .n = 0 };
	struct clockwork clock;
	struct attention t;
	uint32_t chosen = 0;
	double one = -1;
	int rc = clock_new(g, &clock);

	/* Room for the partial results of the most splits. */
	if (rc == 0)
		rc = attention_new(g, &a, r, codec, seqs, tokens, &t);
	if (rc == 0) {
		chosen = t.attend.splits;
		t.attend.partial = t.merge.partial = take(
			g, &a, NULL, (size_t)seqs * HEADS * GROUP * chosen * 4 * (DIM + 2) * 4);
		rc = t.attend.partial ? 0 : -1;
	}
	if (rc == 0)
		one = split_into(g, &clock, &t, 1);
	printf("  %-12s %2u x %6u tokens: 1 split %8.1f us", name, seqs, tokens, one * 1e6);
	for (uint32_t k = 1; rc == 0 && k <= 16; k *= 2) {
		uint32_t splits = chosen * k / 4 ? chosen * k / 4 : 1;
		double s = split_into(g, &clock, &t, splits);

		rc = s < 0 ? -1 : 0;
		printf(", %u%s %.1f", splits, k == 4 ? " (chosen)" : "", s * 1e6);
	}
	printf("\n");
	drop(g, &a);
	return rc < 0 || one < 0 ? complain(g, name, CU_OK) : 0;
}

int bench_attention(struct gpu *g, struct rng *r)
{
	static const struct {
		const char *name;
		uint32_t codec;
	} codecs[] = { { "native fp16", KVP_CODEC_NATIVE }, { "int8", KVP_CODEC_INT8 },
		{ "tq4", KVP_CODEC_TQ4 } };
	size_t free_bytes = 0, total = 0;
	uint32_t seqs = 32;

	if (g->cu.cuMemGetInfo_v2(&free_bytes, &total) != CU_OK)
		return complain(g, "attention", CU_OK);
	if (g->quick)
		return bench_context(g, r, 2, PAGE_TOKENS);
	while (seqs > 1 && (size_t)seqs * 8192 / PAGE_TOKENS * 2 * PLANE_BYTES * 2 > free_bytes)
		seqs /= 2;
	printf("one layer, 8 KV heads, 32 query heads, dim 128, by the number of splits\n");
	for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++) {
		if (bench_splits(g, r, codecs[i].codec, codecs[i].name, 1, 16384) < 0 ||
			bench_splits(g, r, codecs[i].codec, codecs[i].name, 1, 131072) < 0 ||
			bench_splits(g, r, codecs[i].codec, codecs[i].name, seqs, 8192) < 0)
			return -1;
	}
	if (bench_context(g, r, 1, 8192) < 0 || bench_context(g, r, 1, 131072) < 0)
		return -1;
	return bench_context(g, r, seqs, 8192);
}

static int by_value(const void *a, const void *b)
{
	const float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

#define DECODES 20000u

/* Launches one after the other, each timed by the device; `ms` has room for DECODES. */
static int decode_for(struct gpu *g, struct clockwork *c, const struct attention *t, double seconds,
	float *ms, uint32_t *ret_n)
{
	struct timespec began, now;
	uint32_t n = 0;

	clock_gettime(CLOCK_MONOTONIC, &began);
	do {
		g->cu.cuEventRecord(c->start, g->stream);
		if (enqueue_attention(g, t) < 0)
			return -1;
		g->cu.cuEventRecord(c->stop, g->stream);
		if (g->cu.cuEventSynchronize(c->stop) != CU_OK ||
			g->cu.cuEventElapsedTime(&ms[n++], c->start, c->stop) != CU_OK)
			return -1;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (n < DECODES && (double)(now.tv_sec - began.tv_sec) +
						(double)(now.tv_nsec - began.tv_nsec) * 1e-9 <
					seconds);
	*ret_n = n;
	return 0;
}

int bench_decode(struct gpu *g, struct rng *r, double seconds)
{
	const uint32_t seqs = g->quick ? 1 : 16, tokens = g->quick ? PAGE_TOKENS : 8192;
	float *ms = malloc(DECODES * sizeof(*ms));
	struct arena a = { .n = 0 };
	struct clockwork clock;
	struct attention t;
	uint32_t n = 0;
	int rc = ms ? clock_new(g, &clock) : -1;

	if (rc == 0)
		rc = attention_new(g, &a, r, KVP_CODEC_NATIVE, seqs, tokens, &t);
	if (rc == 0)
		rc = decode_for(g, &clock, &t, seconds, ms, &n);
	drop(g, &a);
	if (rc < 0) {
		free(ms);
		return complain(g, "decode", CU_OK);
	}
	qsort(ms, n, sizeof(*ms), by_value);
	printf("attention of a decode step, %u sequences of %u tokens, native fp16: %u launches, "
	       "ms p50 %.4f p99 %.4f worst %.4f\n",
		seqs, tokens, n, (double)ms[n / 2], (double)ms[n - 1 - n / 100], (double)ms[n - 1]);
	free(ms);
	return 0;
}

/* ---- copies, and nothing else ---- */

#define LINK_BYTES (UINT64_C(64) << 20) /* of one copy */
#define LINK_DEPTH 4u                   /* copies each way under way */

/* [0] to the device, [1] from it. */
struct link {
	struct CUstream_st *stream[2];
	struct CUevent_st *event[2][LINK_DEPTH];
	void *host[2];
	uint64_t device[2], bytes[2];
};

static bool link_new(struct gpu *g, struct arena *a, struct link *l)
{
	for (uint32_t way = 0; way < 2; way++) {
		if (g->cu.cuStreamCreate(&l->stream[way], CU_STREAM_ASYNC) != CU_OK ||
			g->cu.cuMemHostAlloc(&l->host[way], LINK_BYTES, 0) != CU_OK)
			return false;
		memset(l->host[way], 1, LINK_BYTES);
		l->device[way] = take(g, a, NULL, LINK_BYTES);
		for (uint32_t i = 0; i < LINK_DEPTH; i++)
			if (g->cu.cuEventCreate(&l->event[way][i], 0) != CU_OK)
				return false;
		if (!l->device[way])
			return false;
	}
	return true;
}

static bool link_copy(struct gpu *g, struct link *l, uint32_t way, uint32_t i)
{
	const int r =
		way ? g->cu.cuMemcpyDtoHAsync_v2(l->host[1], l->device[1], LINK_BYTES, l->stream[1])
		    : g->cu.cuMemcpyHtoDAsync_v2(
			      l->device[0], l->host[0], LINK_BYTES, l->stream[0]);

	l->bytes[way] += LINK_BYTES;
	return r == CU_OK && g->cu.cuEventRecord(l->event[way][i], l->stream[way]) == CU_OK;
}

static void link_free(struct gpu *g, struct link *l)
{
	for (uint32_t way = 0; way < 2; way++) {
		for (uint32_t i = 0; i < LINK_DEPTH; i++)
			if (l->event[way][i])
				g->cu.cuEventDestroy_v2(l->event[way][i]);
		if (l->stream[way]) {
			g->cu.cuStreamSynchronize(l->stream[way]);
			g->cu.cuStreamDestroy_v2(l->stream[way]);
		}
		if (l->host[way])
			g->cu.cuMemFreeHost(l->host[way]);
	}
}

int bench_copies(struct gpu *g, double seconds)
{
	struct link l = { .bytes = { 0 } };
	struct arena a = { .n = 0 };
	struct timespec began, now;
	/* The streams do not wait for what the default one was told to set. */
	bool ok = link_new(g, &a, &l) && g->cu.cuCtxSynchronize() == CU_OK;
	double took = 0;

	clock_gettime(CLOCK_MONOTONIC, &began);
	for (uint32_t i = 0; ok && i < LINK_DEPTH; i++)
		ok = link_copy(g, &l, 0, i) && link_copy(g, &l, 1, i);
	for (uint32_t i = 0; ok && took < seconds; i = (i + 1) % LINK_DEPTH) {
		for (uint32_t way = 0; ok && way < 2; way++)
			ok = g->cu.cuEventSynchronize(l.event[way][i]) == CU_OK &&
			     link_copy(g, &l, way, i);
		clock_gettime(CLOCK_MONOTONIC, &now);
		took = (double)(now.tv_sec - began.tv_sec) +
		       (double)(now.tv_nsec - began.tv_nsec) * 1e-9;
	}
	link_free(g, &l);
	drop(g, &a);
	if (!ok)
		return complain(g, "plain copies", CU_OK);
	/* Those that were under way at the end are left out. */
	for (uint32_t way = 0; way < 2; way++)
		printf("%s %.2f GB/s%s", way ? ", from it" : "plain copies to the device",
			(double)(l.bytes[way] - LINK_DEPTH * LINK_BYTES) / took * 1e-9,
			way ? "\n" : "");
	return 0;
}

/* ---- graphs ---- */

#define STEP_TOKENS 3u
#define STEPS       12u
#define STEP_PAGES  2u

/* Everything that one step reads and writes, at addresses that stay. */
struct step {
	struct attention t;
	struct arena a;
	uint64_t raw; /* new keys, then new values: [token][head][dim] */
	uint64_t slots;
	struct kvp_cuda_mass mass;
	uint64_t pages;
	size_t pages_bytes;
};

#define STEP_ROW   ((size_t)HEADS * DIM * 2)
#define STEP_QUERY ((size_t)HEADS * GROUP * DIM * 2)
#define MASS_BYTES ((size_t)HEADS * STEP_PAGES * PAGE_TOKENS * 4)

static int step_new(struct gpu *g, struct rng *r, uint32_t codec, struct step *s)
{
	struct kvp_cuda_rows *planes[] = { &s->t.k, &s->t.v };
	const struct kvp_cuda_kernel *begin;

	memset(s, 0, sizeof(*s));
	if (attention_new(g, &s->a, r, codec, 1, STEP_PAGES * PAGE_TOKENS, &s->t) < 0)
		return -1;
	s->t.attend.splits = s->t.attend.split_total = s->t.merge.split_total = 1;
	s->t.merge.domain[0].split_end = 1;
	s->pages = s->a.ptr[0];
	s->pages_bytes = STEP_PAGES * s->t.page_bytes;
	s->raw = take(g, &s->a, NULL, 2 * STEP_TOKENS * STEP_ROW);
	s->slots = take(g, &s->a, NULL, STEP_TOKENS * 4);
	s->mass = (struct kvp_cuda_mass){
		.lse = s->t.merge.lse,
		.mass = take(g, &s->a, NULL, MASS_BYTES),
		.mass_seq_stride = (int64_t)MASS_BYTES,
		.mass_head_stride = (int64_t)(MASS_BYTES / HEADS),
		.attend = s->t.attend,
	};
	if (!s->raw || !s->slots || !s->mass.mass ||
		kvp_cuda_kernel_find("kvp_cu_plane_begin", &begin) < 0 ||
		g->cu.cuMemsetD8_v2(s->pages, 0, s->pages_bytes) != CU_OK)
		return -1;
	for (int i = 0; i < 2; i++) {
		planes[i]->force_exponent = 1;
		if (codec != KVP_CODEC_NATIVE && gpu_enqueue(g, begin, planes[i]) < 0)
			return -1;
		planes[i]->raw = s->raw + (uint64_t)i * STEP_TOKENS * STEP_ROW;
		planes[i]->raw_token_stride = (int64_t)STEP_ROW;
		planes[i]->raw_head_stride = DIM * 2;
		planes[i]->slots = s->slots;
		planes[i]->count = STEP_TOKENS;
	}
	return g->cu.cuStreamSynchronize(g->stream) == CU_OK ? 0 : -1;
}

static int step_enqueue(struct gpu *g, const struct step *s)
{
	const struct kvp_cuda_kernel *encode, *mass;

	if (kvp_cuda_encode_kernel(&s->t.k.codec, &encode) < 0 ||
		kvp_cuda_kernel_find("kvp_cu_mass", &mass) < 0 ||
		gpu_enqueue(g, encode, &s->t.k) < 0 || gpu_enqueue(g, encode, &s->t.v) < 0)
		return -1;
	if (enqueue_attention(g, &s->t) < 0)
		return -1;
	return gpu_enqueue(g, mass, &s->mass);
}

/* New tokens, their slots, the length and the query of step i, into the same addresses. */
static int step_load(
	struct gpu *g, const struct step *s, uint32_t i, const uint8_t *raw, const uint8_t *query)
{
	uint32_t length = (i + 1) * STEP_TOKENS;
	int32_t slots[STEP_TOKENS];

	for (uint32_t t = 0; t < STEP_TOKENS; t++)
		slots[t] = (int32_t)(i * STEP_TOKENS + t);
	return g->cu.cuMemcpyHtoD_v2(s->raw, raw, 2 * STEP_TOKENS * STEP_ROW) == CU_OK &&
			       g->cu.cuMemcpyHtoD_v2(s->slots, slots, sizeof(slots)) == CU_OK &&
			       g->cu.cuMemcpyHtoD_v2(s->t.attend.lengths, &length, 4) == CU_OK &&
			       g->cu.cuMemcpyHtoD_v2(s->t.query, query, STEP_QUERY) == CU_OK
		       ? 0
		       : -1;
}

static int same(struct gpu *g, uint64_t a, uint64_t b, size_t bytes)
{
	uint8_t *x = malloc(bytes), *y = malloc(bytes);
	int ok = x && y && g->cu.cuMemcpyDtoH_v2(x, a, bytes) == CU_OK &&
		 g->cu.cuMemcpyDtoH_v2(y, b, bytes) == CU_OK && memcmp(x, y, bytes) == 0;

	free(x);
	free(y);
	return ok;
}

static int replay(struct gpu *g, struct rng *r, const struct step *captured,
	const struct step *direct, struct CUgraphExec_st *exec)
{
	static uint8_t raw[2 * STEP_TOKENS * STEP_ROW], query[STEP_QUERY];

	for (uint32_t i = 0; i < (g->quick ? 2 : STEPS); i++) {
		for (size_t e = 0; e < sizeof(raw) / 2; e++)
			put_element(raw + 2 * e, KVP_DTYPE_F16, 0, rng_normal(r));
		for (size_t e = 0; e < sizeof(query) / 2; e++)
			put_element(query + 2 * e, KVP_DTYPE_F16, 0, rng_normal(r));
		if (step_load(g, captured, i, raw, query) < 0 ||
			step_load(g, direct, i, raw, query) < 0)
			return complain(g, "graph: loading a step", CU_OK);
		if (g->cu.cuGraphLaunch(exec, g->stream) != CU_OK || step_enqueue(g, direct) < 0 ||
			g->cu.cuStreamSynchronize(g->stream) != CU_OK)
			return complain(g, "graph: running a step", CU_OK);
		if (!same(g, captured->pages, direct->pages, direct->pages_bytes) ||
			!same(g, captured->mass.mass, direct->mass.mass, MASS_BYTES) ||
			!same(g, captured->t.merge.out, direct->t.merge.out, STEP_QUERY) ||
			!same(g, captured->t.merge.lse, direct->t.merge.lse, HEADS * GROUP * 4))
			return complain(g, "graph: replay and direct launch differ", CU_OK);
	}
	return 0;
}

static int capture(struct gpu *g, const struct step *s, struct CUgraphExec_st **ret)
{
	struct CUgraph_st *graph = NULL;
	int r = g->cu.cuStreamBeginCapture_v2(g->stream, CU_CAPTURE_LOCAL), bad;

	if (r != CU_OK)
		return complain(g, "graph: begin capture", r);
	bad = step_enqueue(g, s);
	r = g->cu.cuStreamEndCapture(g->stream, &graph);
	if (bad < 0 || r != CU_OK)
		return complain(g, "graph: capture", r);
	r = g->cu.cuGraphInstantiateWithFlags(ret, graph, 0);
	g->cu.cuGraphDestroy(graph);
	return r == CU_OK ? 0 : complain(g, "graph: instantiate", r);
}

static int replay_codec(struct gpu *g, struct rng *r, const char *name, uint32_t codec)
{
	struct CUgraphExec_st *exec = NULL;
	struct step captured, direct;
	int rc = step_new(g, r, codec, &captured);

	if (rc == 0)
		rc = step_new(g, r, codec, &direct);
	else
		direct.a.n = 0;
	if (rc < 0)
		complain(g, "graph: memory", CU_OK);
	if (rc == 0)
		rc = capture(g, &captured, &exec);
	if (rc == 0)
		rc = replay(g, r, &captured, &direct, exec);
	if (exec)
		g->cu.cuGraphExecDestroy(exec);
	drop(g, &captured.a);
	drop(g, &direct.a);
	printf("captured step of %-27s %s  %u replays on changing data\n", name,
		rc == 0 ? "ok" : "FAILED", g->quick ? 2 : STEPS);
	return rc;
}

/* D-065, D-066: captured once, replayed on changing data, equal to launching each time. */
int graph_replays(struct gpu *g, struct rng *r)
{
	static const struct {
		const char *name;
		uint32_t codec;
	} steps[] = {
		{ "native fp16", KVP_CODEC_NATIVE },
		{ "fp8-e4m3", KVP_CODEC_FP8_E4M3 },
		{ "int8", KVP_CODEC_INT8 },
		{ "tq4", KVP_CODEC_TQ4 },
		{ "tq3-h3, general kernel", KVP_CODEC_TQ(3u, 0u, KVP_ROT_H3, 0u, 1u) },
	};
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < sizeof(steps) / sizeof(steps[0]); i++)
		rc = replay_codec(g, r, steps[i].name, steps[i].codec);
	return rc;
}

/* ---- a graph of each shape ---- */

#define SHAPE_PAGES 16u /* of a sequence, at most */
#define SHAPE_SEQS  6u

/* Attention over sequences of all lengths, of a codec and in a number of splits that chance chose. */
static int shape_new(struct gpu *g, struct arena *a, struct rng *r, struct attention *t)
{
	static const uint32_t codecs[] = { KVP_CODEC_NATIVE, KVP_CODEC_FP8_E4M3, KVP_CODEC_INT8,
		KVP_CODEC_KIVI(4u, 5u), KVP_CODEC_KIVI(2u, 5u), KVP_CODEC_TQ4, KVP_CODEC_TQ3,
		KVP_CODEC_TQ2 };
	const uint32_t codec = codecs[rng_below(r, sizeof(codecs) / sizeof(codecs[0]))];
	const uint32_t seqs = 1 + rng_below(r, g->quick ? 2 : SHAPE_SEQS),
		       pages = 1 + rng_below(r, g->quick ? 1 : SHAPE_PAGES);
	uint32_t lengths[SHAPE_SEQS], splits;

	if (attention_new(g, a, r, codec, seqs, pages * PAGE_TOKENS, t) < 0)
		return -1;
	for (uint32_t i = 0; i < seqs; i++)
		lengths[i] = 1 + rng_below(r, pages * PAGE_TOKENS);
	splits = 1 + rng_below(r, t->attend.splits);
	t->attend.splits = t->attend.split_total = t->merge.split_total = splits;
	t->merge.domain[0].split_end = splits;
	return g->cu.cuMemcpyHtoD_v2(t->attend.lengths, lengths, seqs * sizeof(*lengths)) == CU_OK
		       ? 0
		       : -1;
}

static int capture_attention(struct gpu *g, const struct attention *t, struct CUgraphExec_st **ret)
{
	struct CUgraph_st *graph = NULL;
	int r = g->cu.cuStreamBeginCapture_v2(g->stream, CU_CAPTURE_LOCAL), bad;

	if (r != CU_OK)
		return -1;
	bad = enqueue_attention(g, t);
	r = g->cu.cuStreamEndCapture(g->stream, &graph);
	if (bad < 0 || r != CU_OK)
		return -1;
	r = g->cu.cuGraphInstantiateWithFlags(ret, graph, 0);
	g->cu.cuGraphDestroy(graph);
	return r == CU_OK ? 0 : -1;
}

/* 0: what the graph computes is what direct launches do; 1: it differs; -1. */
static int shape_differs(struct gpu *g, struct rng *r)
{
	struct arena a = { .n = 0 };
	struct CUgraphExec_st *exec = NULL;
	struct attention t;
	size_t bytes = 0;
	uint8_t *x = NULL, *y = NULL;
	int rc = shape_new(g, &a, r, &t);

	if (rc == 0) {
		bytes = t.attend.seqs * STEP_QUERY;
		x = malloc(bytes);
		y = malloc(bytes);
		rc = x && y ? capture_attention(g, &t, &exec) : -1;
	}
	if (rc == 0 &&
		(enqueue_attention(g, &t) < 0 || g->cu.cuStreamSynchronize(g->stream) != CU_OK ||
			g->cu.cuMemcpyDtoH_v2(x, t.merge.out, bytes) != CU_OK ||
			g->cu.cuMemsetD8_v2(t.merge.out, 0xee, bytes) != CU_OK ||
			g->cu.cuGraphLaunch(exec, g->stream) != CU_OK ||
			g->cu.cuStreamSynchronize(g->stream) != CU_OK ||
			g->cu.cuMemcpyDtoH_v2(y, t.merge.out, bytes) != CU_OK))
		rc = -1;
	if (rc == 0)
		rc = memcmp(x, y, bytes) != 0;
	if (exec)
		g->cu.cuGraphExecDestroy(exec);
	drop(g, &a);
	free(x);
	free(y);
	return rc;
}

int graph_shapes(struct gpu *g, struct rng *r)
{
	const uint32_t n = g->quick ? 3 : 1000;
	int rc = 0;

	for (uint32_t i = 0; rc == 0 && i < n; i++)
		rc = shape_differs(g, r);
	printf("captured attention of %u shapes %*s %s\n", n, 11, "", rc == 0 ? "ok" : "FAILED");
	return rc == 0 ? 0
		       : complain(g, rc > 0 ? "graph: a shape differs" : "graph: a shape", CU_OK);
}
