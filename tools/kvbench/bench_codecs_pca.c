/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench codecs, the rows of pca and kvquant: they are for a model's own keys and values, so they are
 * measured on them, in blocks of 64 tokens as an fp16 cache holds them.
 */
#include "tools/kvbench/calib_samples.h"
#include "tools/kvbench/kbench.h"
#include "tools/kvrun/kvr_half.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK       64u
#define TEXT_TOKENS 1024u
#define BYTES       (16u << 20) /* raw, that pass by in one round */
#define ROUNDS      3

/* K and V of all layers of all blocks, in the order layer, kind, block. */
struct planes {
	const struct kbench_calib *calib;
	uint32_t codec;
	uint32_t heads, dim, layers, blocks;
	size_t n, bytes; /* of a plane */
	uint8_t *raw;
};

struct result {
	double bits, relmse;
	double encode, decode, copy; /* raw bytes per second, best of the rounds */
};

static struct kvp_plane plane_of(const struct planes *s, size_t i)
{
	return (struct kvp_plane){ BLOCK, s->heads, s->dim, KVP_DTYPE_F16,
		i / s->blocks % 2 ? KVP_PLANE_V : KVP_PLANE_K };
}

static const struct kvp_calib *calib_of(const struct planes *s, size_t i)
{
	return kbench_calib_find(
		s->calib, s->codec, (uint32_t)(i / s->blocks / 2), i / s->blocks % 2);
}

static struct kvp_raw raw_of(const struct planes *s, uint8_t *data)
{
	const ptrdiff_t row = 2 * (ptrdiff_t)s->dim;

	return (struct kvp_raw){ data, row * BLOCK, row };
}

/* Keys get their RoPE again: samples are without it. */
static int take(const struct kvp_kernels *k, const struct samples *from, struct planes *s)
{
	const size_t row = (size_t)s->heads * s->dim;
	float *x = kbench_alloc(BLOCK * row * sizeof *x);
	struct kvp_rope rope;
	int r = kvp_rope_init(&from->info.rope, &rope);

	for (size_t i = 0; i < s->n && !r; i++) {
		const struct kvp_plane p = { BLOCK, s->heads, s->dim, KVP_DTYPE_F32, KVP_PLANE_K };
		const uint32_t first = (uint32_t)(i % s->blocks) * BLOCK;
		const struct kvp_raw all = { x, 4 * (ptrdiff_t)s->dim, 4 * (ptrdiff_t)row };

		memcpy(x, from->x[i / s->blocks] + first * row, BLOCK * row * sizeof *x);
		if (plane_of(s, i).kind == KVP_PLANE_K)
			r = kvp_rope_apply(k, &rope, &p, first,
				(struct kvp_raw_const){ x, all.head_stride, all.token_stride },
				KVP_DTYPE_F32, all);
		for (uint32_t h = 0; h < s->heads; h++)
			for (uint32_t t = 0; t < BLOCK; t++)
				kvr_narrow(KVR_F16, x + t * row + (size_t)h * s->dim, s->dim,
					s->raw + i * s->bytes +
						2 * (size_t)(h * BLOCK + t) * s->dim);
	}
	free(x);
	return r;
}

static int encode(
	const struct kvp_kernels *k, const struct planes *s, size_t i, uint8_t *out, size_t slot)
{
	const struct kvp_plane p = plane_of(s, i);
	const struct kvp_raw raw = raw_of(s, s->raw + i * s->bytes);
	const struct kvp_encode_opts o = { .size = sizeof o,
		.calib = calib_of(s, i),
		.position = (uint32_t)(i % s->blocks) * BLOCK };

	return kvp_plane_encode(k, s->codec, &p, &o,
		(struct kvp_raw_const){ raw.data, raw.head_stride, raw.token_stride }, out, slot);
}

static int decode(const struct kvp_kernels *k, const struct planes *s, size_t i, const uint8_t *in,
	size_t slot, uint8_t *to)
{
	const struct kvp_plane p = plane_of(s, i);

	return kvp_plane_decode(k, s->codec, &p, calib_of(s, i), in, slot, raw_of(s, to));
}

static double error_of(const struct planes *s, const uint8_t *back)
{
	const size_t n = s->n * s->bytes / 2;
	double ee = 0.0, xx = 0.0;

	for (size_t i = 0; i < n; i++) {
		float a, b;

		kvr_widen(KVR_F16, s->raw + 2 * i, 1, &a);
		kvr_widen(KVR_F16, back + 2 * i, 1, &b);
		ee += ((double)a - (double)b) * ((double)a - (double)b);
		xx += (double)a * (double)a;
	}
	return ee / xx;
}

static int measure(const struct kvp_kernels *k, const struct planes *s, struct result *ret)
{
	const size_t slot = (s->bytes + 2 * KVP_PLANE_HDR_BYTES + 63) & ~(size_t)63;
	const size_t times = BYTES / (s->n * s->bytes) + 1;
	uint8_t *out = kbench_alloc(s->n * slot), *back = kbench_alloc(s->n * s->bytes);
	const double all = (double)(times * s->n * s->bytes);
	int r = 0;

	*ret = (struct result){ 0 };
	memset(back, 0, s->n * s->bytes);
	memset(out, 0, s->n * slot);
	for (int round = 0; round < ROUNDS && !r; round++) {
		double t[4] = { kbench_now() };

		for (size_t i = 0; i < times * s->n && !r; i++)
			r = encode(k, s, i % s->n, out + i % s->n * slot, slot);
		t[1] = kbench_now();
		for (size_t i = 0; i < times * s->n && !r; i++)
			r = decode(k, s, i % s->n, out + i % s->n * slot, slot,
				back + i % s->n * s->bytes);
		t[2] = kbench_now();
		if (!r)
			ret->relmse = error_of(s, back);
		t[3] = kbench_now();
		for (size_t i = 0; i < times * s->n; i++)
			memcpy(back + i % s->n * s->bytes, s->raw + i % s->n * s->bytes, s->bytes);
		t[3] = kbench_now() - t[3];
		ret->encode = ret->encode > all / (t[1] - t[0]) ? ret->encode : all / (t[1] - t[0]);
		ret->decode = ret->decode > all / (t[2] - t[1]) ? ret->decode : all / (t[2] - t[1]);
		ret->copy = ret->copy > all / t[3] ? ret->copy : all / t[3];
	}
	for (size_t i = 0; i < s->n && !r; i++) {
		struct kvp_plane_hdr hdr;

		memcpy(&hdr, out + i * slot, sizeof hdr);
		ret->bits += 8.0 * (double)(hdr.bytes - KVP_PLANE_HDR_BYTES) /
			     ((double)s->n * (double)s->bytes / 2.0);
	}
	free(out);
	free(back);
	return r;
}

static int row(const struct kvp_kernels *k, struct planes *s, const char *name, const char *path,
	const struct kbench_args *args, int first)
{
	struct result q = { 0 };
	int r = kvp_codec_parse(name, &s->codec);

	if (!r)
		r = measure(k, s, &q);
	if (r < 0)
		fprintf(stderr, "kvbench codecs: %s with %s: %s\n", name, path,
			r == -ENOENT ? "it is of another model" : strerror(-r));
	else if (args->json)
		printf("%s\n{\"codec\":\"%s\",\"calib\":\"%s\",\"head_dim\":%u,\"bits_per_value\":"
		       "%.4f,"
		       "\"relmse\":%.6g,\"encode_gbps\":%.3f,\"decode_gbps\":%.3f,\"memcpy_gbps\":%"
		       ".3f,"
		       "\"isa\":\"%s\"}",
			first ? "" : ",", name, path, s->dim, q.bits, q.relmse, q.encode * 1e-9,
			q.decode * 1e-9, q.copy * 1e-9, args->isa);
	else
		printf("%-16s %4u %8.3f %10.5g %7.3f %7.3f %7.2f %s\n", name, s->dim, q.bits,
			q.relmse, q.encode * 1e-9, q.decode * 1e-9, q.copy * 1e-9, path);
	return r;
}

/* What the calibration in a file is for. */
static int rows(const struct kvp_kernels *k, struct planes *s, const char *path,
	const struct kbench_args *args, int first)
{
	static const char *const of_pca[] = { "pca", NULL };
	static const char *const of_nuq[] = { "kvquant4", "kvquant3", "kvquant2", "kvquant3-post",
		NULL };
	struct kbench_calib calib = { 0 };
	int r = kbench_calib_open(path, &calib);

	s->calib = &calib;
	for (const char *const *name = calib.nuq ? of_nuq : of_pca; *name && !r; name++, first = 0)
		r = row(k, s, *name, path, args, first);
	s->calib = NULL;
	kbench_calib_done(&calib);
	return r;
}

int kbench_codecs_pca(const struct kvp_kernels *k, const struct kbench_args *args)
{
	struct samples from = { 0 };
	struct planes s = { 0 };
	int r = kvbench_samples_of_model(
		args->model, args->texts, args->n_texts, TEXT_TOKENS, &from);

	if (!r) {
		s = (struct planes){ .heads = from.info.heads,
			.dim = from.info.dim,
			.layers = from.info.layers,
			.blocks = (uint32_t)(from.tokens / BLOCK) };
		s.n = 2 * (size_t)s.layers * s.blocks;
		s.bytes = 2 * (size_t)BLOCK * s.heads * s.dim;
		s.raw = kbench_alloc(s.n * s.bytes);
		r = take(k, &from, &s);
	}
	if (!r && args->json)
		printf("[");
	else if (!r)
		printf("%-16s %4s %8s %10s %7s %7s %7s\n", "codec", "dim", "bits", "relmse", "enc",
			"dec", "memcpy");
	for (size_t i = 0; i < args->n_calibs && !r; i++)
		r = rows(k, &s, args->calibs[i], args, i == 0);
	if (args->json)
		printf("\n]\n");
	free(s.raw);
	kvbench_samples_done(&from);
	return r;
}
