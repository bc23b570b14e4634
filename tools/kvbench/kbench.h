/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel benchmarks share. */
#ifndef KVBENCH_KBENCH_H
#define KVBENCH_KBENCH_H

#include <stddef.h>
#include <stdint.h>

#include "tools/kvbench/kvbench.h"

#define KBENCH_CODECS_MAX 64
#define KBENCH_TEXTS_MAX  8

struct kbench_args {
	int json;
	unsigned int cpu_mask;
	const char *isa; /* the highest one in use */
	const char *codecs[KBENCH_CODECS_MAX];
	size_t n_codecs; /* 0: the default list */
	uint32_t ctx[16];
	size_t n_ctx;
	uint32_t threads; /* at least 1 */
	const char *model;
	const char *texts[KBENCH_TEXTS_MAX];
	size_t n_texts;
	int repeat;
	int validate;
	uint64_t seed; /* of rotations; 0: the default */
};

/* 0; 1 after --help; -EINVAL with a message on stderr. Strings point into argv. */
int kbench_parse(int argc, char **argv, const char *usage, struct kbench_args *ret_args);

double kbench_now(void); /* seconds */
void kbench_seed(uint64_t seed);
double kbench_normal(void);
void *kbench_alloc(size_t size); /* 64-byte aligned; exits if there is no memory */
/* n values of N(0,1) in fp16. */
void kbench_fill_f16(void *data, size_t n);

#endif
