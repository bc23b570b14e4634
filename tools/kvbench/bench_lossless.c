/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvbench lossless: what `lossless` makes of elements, beside zstd's library over the same planes, as
 * they lie and with their bytes apart. Of N(0,1), or of the keys and values of a model.
 */
#include "kernels/kvp_codec.h"
#include "tools/kvbench/kbench.h"
#include "tools/kvbench/kvbench.h"
#include "tools/kvrun/kvr_model.h"
#include "tools/kvrun/kvr_seq.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK       64u
#define TEXT_TOKENS 1024u
#define BYTES       (64u << 20) /* that pass by in one round, several times the last-level cache */
#define ROUNDS      3
#define ZSTD_LEVEL  1

/* Planes of one kind and dtype, one after another, each as a payload of native has it. */
struct planes {
	const char *what;
	struct kvp_plane p;
	uint8_t *data;
	size_t n, bytes; /* of a plane */
};

struct result {
	double ratio;
	double encode, decode, copy; /* raw bytes per second; ratio 0: not measured */
};

/* ---- zstd, if this machine has its library ---- */

static struct {
	void *(*new_c)(void);
	void *(*new_d)(void);
	size_t (*compress)(void *, void *, size_t, const void *, size_t, int);
	size_t (*decompress)(void *, void *, size_t, const void *, size_t);
	unsigned int (*is_error)(size_t);
	void *c, *d;
} zstd;

static int zstd_open(void)
{
	void *lib = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!lib)
		return -ENOENT;
	*(void **)&zstd.new_c = dlsym(lib, "ZSTD_createCCtx");
	*(void **)&zstd.new_d = dlsym(lib, "ZSTD_createDCtx");
	*(void **)&zstd.compress = dlsym(lib, "ZSTD_compressCCtx");
	*(void **)&zstd.decompress = dlsym(lib, "ZSTD_decompressDCtx");
	*(void **)&zstd.is_error = dlsym(lib, "ZSTD_isError");
	if (!zstd.new_c || !zstd.new_d || !zstd.compress || !zstd.decompress || !zstd.is_error)
		return -ENOENT;
	zstd.c = zstd.new_c();
	zstd.d = zstd.new_d();
	return zstd.c && zstd.d ? 0 : -ENOMEM;
}

/* ---- one round: each method codes a plane and gives it back; sizes are what it returns ---- */

struct method {
	const char *name;
	size_t (*encode)(const struct kvp_kernels *k, const struct planes *s, const uint8_t *raw,
		uint8_t *out, size_t room);
	int (*decode)(const struct kvp_kernels *k, const struct planes *s, const uint8_t *in,
		size_t bytes, uint8_t *raw);
	int needs_zstd;
};

static size_t encode_ours(const struct kvp_kernels *k, const struct planes *s, const uint8_t *raw,
	uint8_t *out, size_t room)
{
	ptrdiff_t row = 2 * (ptrdiff_t)s->p.dim;
	struct kvp_plane_hdr hdr;

	if (kvp_plane_encode(k, KVP_CODEC_LOSSLESS, &s->p, NULL,
		    (struct kvp_raw_const){ raw, row * s->p.tokens, row }, out, room) < 0)
		return 0;
	memcpy(&hdr, out, sizeof hdr);
	return hdr.bytes;
}

static int decode_ours(const struct kvp_kernels *k, const struct planes *s, const uint8_t *in,
	size_t bytes, uint8_t *raw)
{
	ptrdiff_t row = 2 * (ptrdiff_t)s->p.dim;

	return kvp_plane_decode(k, KVP_CODEC_LOSSLESS, &s->p, NULL, in, bytes,
		(struct kvp_raw){ raw, row * s->p.tokens, row });
}

static size_t encode_zstd(const struct kvp_kernels *k, const struct planes *s, const uint8_t *raw,
	uint8_t *out, size_t room)
{
	size_t n = zstd.compress(zstd.c, out, room, raw, s->bytes, ZSTD_LEVEL);

	(void)k;
	return zstd.is_error(n) ? 0 : n;
}

static int decode_zstd(const struct kvp_kernels *k, const struct planes *s, const uint8_t *in,
	size_t bytes, uint8_t *raw)
{
	(void)k;
	return zstd.decompress(zstd.d, raw, s->bytes, in, bytes) == s->bytes ? 0 : -EBADMSG;
}

/* High bytes, then low ones: of bf16 rotated by a bit, as `lossless` splits them. */
static uint8_t *apart;

static size_t encode_apart(const struct kvp_kernels *k, const struct planes *s, const uint8_t *raw,
	uint8_t *out, size_t room)
{
	const size_t n = s->bytes / 2;
	const uint32_t rotate = s->p.dtype == KVP_DTYPE_BF16;

	for (size_t i = 0; i < n; i++) {
		uint32_t w = (uint32_t)raw[2 * i] | (uint32_t)raw[2 * i + 1] << 8;

		w = w << rotate | w >> (16 - rotate);
		apart[i] = (uint8_t)(w >> 8);
		apart[n + i] = (uint8_t)w;
	}
	return encode_zstd(k, s, apart, out, room);
}

static int decode_apart(const struct kvp_kernels *k, const struct planes *s, const uint8_t *in,
	size_t bytes, uint8_t *raw)
{
	const size_t n = s->bytes / 2;
	const uint32_t rotate = s->p.dtype == KVP_DTYPE_BF16;
	int r = decode_zstd(k, s, in, bytes, apart);

	for (size_t i = 0; i < n && !r; i++) {
		uint32_t w = (uint32_t)apart[i] << 8 | apart[n + i];

		w = w >> rotate | w << (16 - rotate);
		raw[2 * i] = (uint8_t)w;
		raw[2 * i + 1] = (uint8_t)(w >> 8);
	}
	return r;
}

static const struct method methods[] = {
	{ "lossless", encode_ours, decode_ours, 0 },
	{ "zstd-1", encode_zstd, decode_zstd, 1 },
	{ "zstd-1-split", encode_apart, decode_apart, 1 },
};

/* All planes, over and over until BYTES have passed, there and back. */
static int measure(const struct kvp_kernels *k, const struct planes *s, const struct method *m,
	struct result *ret)
{
	const size_t n = BYTES / s->bytes + 1,
		     slot = (s->bytes + s->bytes / 64 + 1024) & ~(size_t)63;
	uint8_t *out = kbench_alloc(n * slot), *back = kbench_alloc(n * s->bytes);
	size_t *size = kbench_alloc(n * sizeof *size);
	double sum = 0.0, all = (double)(n * s->bytes);
	int r = 0;

	*ret = (struct result){ 0 };
	memset(out, 0, n * slot);
	memset(back, 0, n * s->bytes);
	for (int round = 0; round < ROUNDS && !r; round++) {
		double t[4] = { kbench_now() };

		for (size_t i = 0; i < n; i++) {
			size[i] = m->encode(
				k, s, s->data + i % s->n * s->bytes, out + i * slot, slot);
			if (!size[i])
				r = -EIO;
		}
		t[1] = kbench_now();
		for (size_t i = 0; i < n && !r; i++)
			r = m->decode(k, s, out + i * slot, size[i], back + i * s->bytes);
		t[2] = kbench_now();
		for (size_t i = 0; i < n && !r; i++)
			if (memcmp(back + i * s->bytes, s->data + i % s->n * s->bytes, s->bytes))
				r = -EIO;
		t[3] = kbench_now();
		for (size_t i = 0; i < n; i++)
			memcpy(back + i * s->bytes, s->data + i % s->n * s->bytes, s->bytes);
		t[3] = kbench_now() - t[3];
		ret->encode = ret->encode > all / (t[1] - t[0]) ? ret->encode : all / (t[1] - t[0]);
		ret->decode = ret->decode > all / (t[2] - t[1]) ? ret->decode : all / (t[2] - t[1]);
		ret->copy = ret->copy > all / t[3] ? ret->copy : all / t[3];
	}
	for (size_t i = 0; i < s->n; i++)
		sum += (double)size[i];
	ret->ratio = (double)(s->n * s->bytes) / sum;
	free(out);
	free(back);
	free(size);
	return r;
}

static int report(const struct kvp_kernels *k, const struct planes *s, int have_zstd,
	const struct kbench_args *args, int *first)
{
	const char *dtype = s->p.dtype == KVP_DTYPE_BF16 ? "bf16" : "fp16";
	int r = 0;

	apart = kbench_alloc(s->bytes);
	for (size_t i = 0; i < sizeof methods / sizeof *methods && !r; i++) {
		const struct method *m = &methods[i];
		struct result q;

		if (m->needs_zstd && !have_zstd)
			continue;
		r = measure(k, s, m, &q);
		if (r < 0)
			fprintf(stderr, "kvbench lossless: %s does not give %s back\n", m->name,
				s->what);
		else if (args->json)
			printf("%s\n{\"data\":\"%s\",\"dtype\":\"%s\",\"method\":\"%s\",\"ratio\":"
			       "%.4f,\"encode_gbps\":%.3f,\"decode_gbps\":%.3f,\"memcpy_gbps\":%."
			       "3f,"
			       "\"isa\":\"%s\"}",
				*first ? "" : ",", s->what, dtype, m->name, q.ratio,
				q.encode * 1e-9, q.decode * 1e-9, q.copy * 1e-9, args->isa);
		else
			printf("%-8s %-5s %-13s %7.4f %7.2f %7.2f %7.2f\n", s->what, dtype, m->name,
				q.ratio, q.encode * 1e-9, q.decode * 1e-9, q.copy * 1e-9);
		*first = 0;
		fflush(stdout);
	}
	free(apart);
	return r;
}

/* ---- data ---- */

/* Planes of N(0,1), of 8 heads of 128 channels. */
static struct planes planes_of_normals(uint32_t dtype)
{
	struct planes s = { .what = "normal",
		.p = { BLOCK, 8, 128, dtype, KVP_PLANE_K },
		.n = 16,
		.bytes = (size_t)BLOCK * 8 * 128 * 2 };

	s.data = kbench_alloc(s.n * s.bytes);
	kbench_seed(7);
	for (size_t i = 0; i < s.n * s.bytes / 2; i++) {
		const float x = (float)kbench_normal();
		enum kvr_dtype type = dtype == KVP_DTYPE_BF16 ? KVR_BF16 : KVR_F16;

		kvr_narrow(type, &x, 1, s.data + 2 * i);
	}
	return s;
}

static int read_text(const char *path, uint32_t *tokens)
{
	uint8_t text[TEXT_TOKENS];
	FILE *f = fopen(path, "rb");
	size_t got = f ? fread(text, 1, sizeof text, f) : 0;

	if (f)
		fclose(f);
	for (size_t i = 0; i < got; i++)
		tokens[i] = text[i];
	return got == TEXT_TOKENS ? 0 : -EINVAL;
}

/* All whole blocks of the text's keys, or values, of all layers, as the model stores them. */
static struct planes planes_of_cache(
	const struct kvr_model *model, struct kvr_kv *kv, uint32_t dtype, uint32_t value)
{
	const struct kvr_config *c = &model->config;
	struct planes s = { .what = value ? "values" : "keys",
		.p = { BLOCK, c->kv_heads, c->head_dim, dtype, value ? KVP_PLANE_V : KVP_PLANE_K },
		.bytes = (size_t)BLOCK * c->kv_heads * c->head_dim * 2 };
	const size_t row = 2 * (size_t)c->head_dim;
	uint8_t *to;

	s.n = (size_t)(TEXT_TOKENS / BLOCK) * c->layers;
	s.data = to = kbench_alloc(s.n * s.bytes);
	for (uint32_t b = 0; b < TEXT_TOKENS / BLOCK; b++)
		for (uint32_t l = 0; l < c->layers; l++)
			for (uint32_t h = 0; h < c->kv_heads; h++)
				for (uint32_t t = 0; t < BLOCK; t++, to += row)
					memcpy(to,
						(const uint8_t *)kv->ops->block(kv, b) +
							kvr_row_offset(&kv->geom, l, value, t) +
							h * row,
						row);
	return s;
}

static int report_model(const struct kvp_kernels *k, const struct kvr_model *model,
	const uint32_t *tokens, uint32_t dtype, int have_zstd, const struct kbench_args *args,
	int *first)
{
	struct kvr_geom geom =
		kvr_model_geom(model, BLOCK, dtype == KVP_DTYPE_BF16 ? KVR_BF16 : KVR_F16);
	struct kvr_prefill prefill;
	struct kvr_seq *seq = NULL;
	struct kvr_kv *kv = NULL;
	const float *logits;
	int r = kvr_kv_heap_new(&geom, &kv);

	if (!r)
		r = kvr_seq_new(model, kv, NULL, &seq);
	if (!r)
		r = kvr_seq_prompt(seq, tokens, TEXT_TOKENS, &prefill, &logits);
	for (uint32_t value = 0; value < 2 && !r; value++) {
		struct planes s = planes_of_cache(model, kv, dtype, value);

		r = report(k, &s, have_zstd, args, first);
		free(s.data);
	}
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	return r;
}

static int run(
	const struct kvp_kernels *k, const struct kvr_model *model, const struct kbench_args *args)
{
	static const uint32_t dtypes[] = { KVP_DTYPE_BF16, KVP_DTYPE_F16 };
	int have_zstd = zstd_open() == 0, first = 1, r = 0;
	uint32_t tokens[TEXT_TOKENS];

	if (!have_zstd)
		fprintf(stderr,
			"kvbench lossless: no libzstd.so.1 here, so nothing to compare with\n");
	if (model && read_text(args->texts[0], tokens) < 0) {
		fprintf(stderr, "kvbench lossless: %s: unreadable or too short\n", args->texts[0]);
		return -EINVAL;
	}
	if (args->json)
		printf("[");
	else
		printf("%-8s %-5s %-13s %7s %7s %7s %7s\n", "data", "dtype", "method", "ratio",
			"enc", "dec", "memcpy");
	for (int i = 0; i < 2 && !r; i++) {
		if (model) {
			r = report_model(k, model, tokens, dtypes[i], have_zstd, args, &first);
		} else {
			struct planes s = planes_of_normals(dtypes[i]);

			r = report(k, &s, have_zstd, args, &first);
			free(s.data);
		}
	}
	if (args->json)
		printf("\n]\n");
	return r;
}

int kvbench_lossless(int argc, char **argv)
{
	struct kbench_args args = { 0 };
	struct kvr_error err = { 0 };
	struct kvr_model *model = NULL;
	struct kvp_kernels *k = NULL;
	int r = kbench_parse(argc, argv,
		"Ratio and speed of the codec lossless over blocks of 64 tokens, beside zstd's "
		"library\n"
		"(level 1; split: its high and low bytes apart) and memcpy(). Speeds are GB/s of "
		"raw\n"
		"bytes, the best of three rounds. With --model and --text, of a model's keys and "
		"values.",
		KBENCH_MODEL | KBENCH_TEXT | KBENCH_ISA, &args);

	if (r)
		return r < 0 ? 2 : 0;
	if (!args.model != !args.n_texts) {
		fprintf(stderr, "kvbench lossless: --model DIR goes with --text FILE\n");
		return 2;
	}
	if (args.model && kvr_model_open(args.model, &err, &model) < 0) {
		fprintf(stderr, "kvbench lossless: %s\n", err.text);
		return 1;
	}
	r = kvp_kernels_new(args.cpu_mask, &k);
	if (!r)
		r = run(k, model, &args);
	kvp_kernels_free(k);
	kvr_model_free(model);
	return r < 0 ? 1 : 0;
}
