/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/kvbench/kbench.h"
#include "kernels/kvp_codec.h"

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

static int parse_isa(const char *name, unsigned int *ret_mask)
{
	if (strcmp(name, "c") == 0)
		*ret_mask = 0;
	else if (strcmp(name, "avx2") == 0)
		*ret_mask = KVP_CPU_AVX2;
	else if (strcmp(name, "avx512") == 0)
		*ret_mask = KVP_CPU_AVX2 | KVP_CPU_AVX512;
	else if (strcmp(name, "vbmi") == 0)
		*ret_mask = KVP_CPU_ALL;
	else
		return -EINVAL;
	if (*ret_mask & ~kvp_cpu_detect()) {
		fprintf(stderr, "kvbench: this machine has no %s\n", name);
		return -EINVAL;
	}
	return 0;
}

static int parse_contexts(char *list, struct kbench_args *args)
{
	for (char *save, *s = strtok_r(list, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		char *end;
		unsigned long v = strtoul(s, &end, 10);

		if (*end || !v || v > 1u << 22 ||
			args->n_ctx == sizeof args->ctx / sizeof *args->ctx)
			return -EINVAL;
		args->ctx[args->n_ctx++] = (uint32_t)v;
	}
	return args->n_ctx ? 0 : -EINVAL;
}

static int parse_codecs(char *list, struct kbench_args *args)
{
	for (char *save, *s = strtok_r(list, ",", &save); s; s = strtok_r(NULL, ",", &save)) {
		if (args->n_codecs == KBENCH_CODECS_MAX)
			return -EINVAL;
		args->codecs[args->n_codecs++] = s;
	}
	return args->n_codecs ? 0 : -EINVAL;
}

static int parse_threads(const char *s, struct kbench_args *args)
{
	char *end;
	unsigned long v = strtoul(s, &end, 10);

	if (*end || !v || v > 64)
		return -EINVAL;
	args->threads = (uint32_t)v;
	return 0;
}

static int parse_seed(const char *s, struct kbench_args *args)
{
	char *end;

	args->seed = strtoull(s, &end, 0);
	return *s && !*end ? 0 : -EINVAL;
}

int kbench_parse(int argc, char **argv, const char *usage, struct kbench_args *ret_args)
{
	struct kbench_args args = { .cpu_mask = KVP_CPU_ALL, .threads = 1 };

	for (int i = 1; i < argc; i++) {
		char *value = i + 1 < argc ? argv[i + 1] : NULL;
		int r = -EINVAL;

		if (strcmp(argv[i], "--help") == 0) {
			printf("%s\n", usage);
			return 1;
		}
		if (strcmp(argv[i], "--json") == 0) {
			args.json = 1;
			continue;
		}
		if (strcmp(argv[i], "--repeat") == 0) {
			args.repeat = 1;
			continue;
		}
		if (strcmp(argv[i], "--validate") == 0) {
			args.validate = 1;
			continue;
		}
		if (value && strcmp(argv[i], "--model") == 0) {
			args.model = value;
			r = 0;
		} else if (value && strcmp(argv[i], "--text") == 0 &&
			   args.n_texts < KBENCH_TEXTS_MAX) {
			args.texts[args.n_texts++] = value;
			r = 0;
		} else if (value && strcmp(argv[i], "--seed") == 0) {
			r = parse_seed(value, &args);
		} else if (value && strcmp(argv[i], "--isa") == 0)
			r = parse_isa(value, &args.cpu_mask);
		else if (value && strcmp(argv[i], "--codec") == 0)
			r = parse_codecs(value, &args);
		else if (value && strcmp(argv[i], "--ctx") == 0)
			r = parse_contexts(value, &args);
		else if (value && strcmp(argv[i], "--threads") == 0)
			r = parse_threads(value, &args);
		if (r < 0) {
			fprintf(stderr, "kvbench: bad argument %s\nusage: %s\n", argv[i], usage);
			return -EINVAL;
		}
		i++;
	}
	args.cpu_mask &= kvp_cpu_detect();
	args.isa = args.cpu_mask & KVP_CPU_VBMI     ? "vbmi"
		   : args.cpu_mask & KVP_CPU_AVX512 ? "avx512"
		   : args.cpu_mask & KVP_CPU_AVX2   ? "avx2"
						    : "c";
	*ret_args = args;
	return 0;
}
