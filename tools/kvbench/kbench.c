/* SPDX-License-Identifier: Apache-2.0 */
/* Options, clock and random numbers of the kernel benchmarks. */
#include "tools/kvbench/kbench.h"
#include "kernels/kvp_calib.h"
#include "kernels/kvp_codec.h"
#include "kernels/kvp_nuq.h"
#include "tools/kvbench/bench.h"
#include "tools/kvrun/kvr_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t state = 1;

double kbench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void kbench_seed(uint64_t seed)
{
	state = seed;
}

static double uniform(void)
{
	uint64_t z = state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

double kbench_normal(void)
{
	double u = 1.0 - uniform();

	return sqrt(-2.0 * log(u)) * cos(2.0 * M_PI * uniform());
}

void *kbench_alloc(size_t size)
{
	void *p = aligned_alloc(64, (size + 63) & ~(size_t)63);

	if (!p) {
		fprintf(stderr, "kvbench: no memory for %zu bytes\n", size);
		exit(1);
	}
	return p;
}

void kbench_fill_f16(void *data, size_t n)
{
	/* A period of a prime number of values: cheap, and no two rows alike. */
	enum { PERIOD = 65521 };
	static uint16_t values[PERIOD];
	uint16_t *out = data;

	for (size_t i = 0; i < PERIOD; i++) {
		double x = kbench_normal();
		int e;
		double m = frexp(fabs(x), &e); /* [.5, 1) */
		uint32_t h = fabs(x) < 0x1p-14 ? 0
					       : (uint32_t)(e + 14) * 1024 +
							 (uint32_t)((2.0 * m - 1.0) * 1024.0);

		values[i] = (uint16_t)(h | (x < 0.0 ? 0x8000u : 0u));
	}
	for (size_t i = 0; i < n; i++)
		out[i] = values[i % PERIOD];
}

int kbench_calib_open(const char *path, struct kbench_calib *ret)
{
	struct kvr_error err = { 0 };
	size_t bytes = 0;
	char *data = NULL;
	uint32_t magic = 0;
	int r = kvr_file_load(path, KVP_CALIB_BYTES_MAX, &err, &data, &bytes);

	*ret = (struct kbench_calib){ 0 };
	if (!r && bytes >= sizeof magic)
		memcpy(&magic, data, sizeof magic);
	if (!r)
		r = magic == KVP_NUQ_MAGIC ? kvp_nuq_set_new(data, bytes, &ret->nuq)
					   : kvp_calib_set_new(data, bytes, &ret->pca);
	if (err.text[0])
		fprintf(stderr, "kvbench: %s\n", err.text);
	else if (r < 0)
		fprintf(stderr, "kvbench: %s: %s\n", path,
			r == -EBADMSG           ? "no calibration, or a damaged one"
			: r == -EPROTONOSUPPORT ? "a calibration of another version"
						: strerror(-r));
	free(data);
	return r;
}

void kbench_calib_done(struct kbench_calib *c)
{
	c->pca = kvp_calib_set_free(c->pca);
	c->nuq = kvp_nuq_set_free(c->nuq);
}

const struct kvp_calib *kbench_calib_find(
	const struct kbench_calib *c, uint32_t codec, uint32_t layer, uint32_t kind)
{
	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_PCA)
		return c->pca ? kvp_calib_set_find(c->pca, layer, kind) : NULL;
	if (!c->nuq)
		return NULL;
	return kvp_nuq_set_find(c->nuq, layer,
		kind == KVP_PLANE_V                           ? KVP_NUQ_V
		: KVP_CODEC_VARIANT(codec) & KVP_KVQUANT_POST ? KVP_NUQ_K_POST
							      : KVP_NUQ_K);
}

int kbench_is_calibrated(uint32_t codec)
{
	return KVP_CODEC_FAMILY(codec) == KVP_FAMILY_PCA ||
	       KVP_CODEC_FAMILY(codec) == KVP_FAMILY_KVQUANT;
}

int kbench_names_calibrated(const char *name)
{
	uint32_t k, v;

	return kvp_codec_parse_pair(name, &k, &v) == 0 &&
	       (kbench_is_calibrated(k) || kbench_is_calibrated(v));
}

static int wrong(const char *command, const char *option, const char *right, const char *text)
{
	fprintf(stderr, "kvbench %s: --%s takes %s, not '%s'\n", command, option, right, text);
	return -EINVAL;
}

static int parse_isa(const char *command, const char *name, unsigned int *ret_mask)
{
	static const struct {
		const char *name;
		unsigned int mask;
	} isas[] = {
		{ "c", 0 },
		{ "avx2", KVP_CPU_AVX2 },
		{ "avx512", KVP_CPU_AVX2 | KVP_CPU_AVX512 },
		{ "vbmi", KVP_CPU_ALL & ~KVP_CPU_NEON },
		{ "bytes", (KVP_CPU_ALL & ~KVP_CPU_NEON) | KVP_CPU_BYTES },
		{ "amx", (KVP_CPU_ALL & ~KVP_CPU_NEON) | KVP_CPU_TILES },
		{ "amx-bf16", (KVP_CPU_ALL & ~KVP_CPU_NEON) | KVP_CPU_TILES | KVP_CPU_TILES_BF16 },
		{ "neon", KVP_CPU_NEON },
	};

	for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
		if (strcmp(name, isas[i].name) != 0)
			continue;
		if (isas[i].mask & ~kvp_cpu_detect()) {
			fprintf(stderr, "kvbench %s: this machine has no %s\n", command, name);
			return -EINVAL;
		}
		*ret_mask = isas[i].mask;
		return 0;
	}
	return wrong(command, "isa", "c, avx2, avx512, vbmi, bytes, amx, amx-bf16 or neon", name);
}

static int parse_contexts(const char *command, char *list, struct kbench_args *args)
{
	static const char right[] = "up to 16 numbers from 1 to 4194304, separated by commas";

	for (char *save, *s = strtok_r(list, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		char *end;
		unsigned long v = strtoul(s, &end, 10);

		if (*end || !v || v > 1u << 22 ||
			args->n_ctx == sizeof args->ctx / sizeof *args->ctx)
			return wrong(command, "ctx", right, s);
		args->ctx[args->n_ctx++] = (uint32_t)v;
	}
	return args->n_ctx ? 0 : wrong(command, "ctx", right, list);
}

static int parse_queries(const char *command, char *list, struct kbench_args *args)
{
	static const char right[] = "up to 8 numbers from 1 to 64, separated by commas";

	for (char *save, *s = strtok_r(list, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		char *end;
		unsigned long v = strtoul(s, &end, 10);

		if (*end || !v || v > 64 ||
			args->n_queries == sizeof args->queries / sizeof *args->queries)
			return wrong(command, "queries", right, s);
		args->queries[args->n_queries++] = (uint32_t)v;
	}
	return args->n_queries ? 0 : wrong(command, "queries", right, list);
}

static int parse_codecs(const char *command, char *list, struct kbench_args *args)
{
	static const char right[] = "names of up to 64 codecs, separated by commas";

	for (char *save, *s = strtok_r(list, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		if (args->n_codecs == KBENCH_CODECS_MAX)
			return wrong(command, "codec", right, s);
		args->codecs[args->n_codecs++] = s;
	}
	return args->n_codecs ? 0 : wrong(command, "codec", right, list);
}

static int parse_native(const char *command, const char *s, struct kbench_args *args)
{
	if (strcmp(s, "fp16") != 0 && strcmp(s, "bf16") != 0)
		return wrong(command, "native", "fp16 or bf16", s);
	args->native = *s == 'b' ? KVP_DTYPE_BF16 : KVP_DTYPE_F16;
	return 0;
}

static int parse_seed(const char *command, const char *s, struct kbench_args *args)
{
	char *end;

	args->seed = strtoull(s, &end, 0);
	return *s && !*end ? 0 : wrong(command, "seed", "a number", s);
}

int kbench_parse(int argc, char **argv, const char *about, unsigned int options,
	struct kbench_args *ret_args)
{
	struct kbench_args args = {
		.cpu_mask = KVP_CPU_ALL, .threads = 1, .native = KVP_DTYPE_F16
	};
	const char *isa = NULL, *codecs = NULL, *ctx = NULL, *seed = NULL, *queries = NULL,
		   *native = NULL;
	const struct {
		unsigned int bit;
		struct bench_option option;
	} all[] = {
		{ KBENCH_CODEC, { .name = "codec",
					.help = "some of the codecs (docs/formats.md), or presets "
						"like 4bit",
					.text = &codecs,
					.takes = "NAME[,NAME...]" } },
		{ KBENCH_VALIDATE,
			{ .name = "validate",
				.help = "compare each error with what it must be instead",
				.flag = &args.validate } },
		{ KBENCH_CTX, { .name = "ctx",
				      .help = "tokens of context",
				      .text = &ctx,
				      .takes = "N[,N...]" } },
		{ KBENCH_QUERIES, { .name = "queries",
					  .help = "query heads per KV head (default 4)",
					  .text = &queries,
					  .takes = "N[,N...]" } },
		{ KBENCH_NATIVE, { .name = "native",
					 .help = "what native attention is over (default fp16)",
					 .text = &native,
					 .takes = "fp16|bf16" } },
		{ KBENCH_ISA, { .name = "isa",
				      .help = "the highest instruction set to use (default: all)",
				      .text = &isa,
				      .takes = "c|avx2|avx512|vbmi|bytes|amx|amx-bf16|neon" } },
		{ KBENCH_THREADS, { .name = "threads",
					  .help = "that share one step (default 1)",
					  .value = &args.threads,
					  .min = 1,
					  .max = 64 } },
		{ KBENCH_MODEL, { .name = "model",
					.help = "folder of a model, as for kvrun",
					.text = &args.model,
					.takes = "DIR" } },
		{ KBENCH_TEXT, { .name = "text",
				       .help = "to score; may be given several times",
				       .text = args.texts,
				       .takes = "FILE",
				       .max = KBENCH_TEXTS_MAX,
				       .times = &args.n_texts } },
		{ KBENCH_REPEAT, { .name = "repeat",
					 .help = "passages of 400 bytes, each followed by itself, "
						 "instead of windows",
					 .flag = &args.repeat } },
		{ KBENCH_SEED, { .name = "seed",
				       .help = "of the rotations",
				       .text = &seed,
				       .takes = "N" } },
		{ KBENCH_CALIB, { .name = "calib",
					.help = "a calibration for pca or kvquant; may be given "
						"several times: a row each",
					.text = args.calibs,
					.takes = "FILE",
					.max = KBENCH_CALIBS_MAX,
					.times = &args.n_calibs } },
		{ KBENCH_RECALL, { .name = "recall",
					 .help = "so many passages to be recalled over --ctx "
						 "(300,800) bytes instead",
					 .value = &args.recall,
					 .min = 1,
					 .max = 100000 } },
		{ ~0u, { .name = "json",
			       .help = "one JSON document on stdout",
			       .flag = &args.json } },
	};
	struct bench_option taken[sizeof all / sizeof *all];
	size_t n = 0;
	int r;

	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i].bit & options)
			taken[n++] = all[i].option;
	r = bench_parse(argc, argv, about, taken, n);
	if (r <= 0)
		return r ? -EINVAL : 1;
	r = isa ? parse_isa(argv[0], isa, &args.cpu_mask) : 0;
	/* The lists are taken apart where they stand, in argv. */
	if (!r && codecs)
		r = parse_codecs(argv[0], (char *)(uintptr_t)codecs, &args);
	if (!r && ctx)
		r = parse_contexts(argv[0], (char *)(uintptr_t)ctx, &args);
	if (!r && queries)
		r = parse_queries(argv[0], (char *)(uintptr_t)queries, &args);
	if (!r && native)
		r = parse_native(argv[0], native, &args);
	if (!r && seed)
		r = parse_seed(argv[0], seed, &args);
	if (r < 0)
		return r;
	args.cpu_mask &= kvp_cpu_detect();
	args.isa = args.cpu_mask & KVP_CPU_TILES_BF16 ? "amx-bf16"
		   : args.cpu_mask & KVP_CPU_TILES    ? "amx"
		   : args.cpu_mask & KVP_CPU_BYTES    ? "bytes"
		   : args.cpu_mask & KVP_CPU_VBMI     ? "vbmi"
		   : args.cpu_mask & KVP_CPU_AVX512   ? "avx512"
		   : args.cpu_mask & KVP_CPU_AVX2     ? "avx2"
		   : args.cpu_mask & KVP_CPU_NEON     ? "neon"
						      : "c";
	*ret_args = args;
	return 0;
}
