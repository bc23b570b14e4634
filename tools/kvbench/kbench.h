/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel benchmarks share: which of their options a command takes, and random inputs. */
#ifndef KVBENCH_KBENCH_H
#define KVBENCH_KBENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/kvbench/kvbench.h"

#define KBENCH_CODECS_MAX 64
#define KBENCH_TEXTS_MAX  8
#define KBENCH_CALIBS_MAX 16

/* Options that a command takes besides --json; at least one. */
#define KBENCH_ISA      1u
#define KBENCH_CODEC    2u
#define KBENCH_CTX      4u
#define KBENCH_THREADS  8u
#define KBENCH_MODEL    16u
#define KBENCH_TEXT     32u
#define KBENCH_REPEAT   64u
#define KBENCH_VALIDATE 128u
#define KBENCH_SEED     256u
#define KBENCH_CALIB    512u
#define KBENCH_RECALL   1024u
#define KBENCH_QUERIES  2048u
#define KBENCH_NATIVE   4096u

struct kbench_args {
	bool json;
	unsigned int cpu_mask;
	const char *isa; /* the highest one in use */
	const char *codecs[KBENCH_CODECS_MAX];
	size_t n_codecs; /* 0: the default list */
	uint32_t ctx[16];
	size_t n_ctx;
	uint32_t queries[8]; /* per KV head */
	size_t n_queries;
	uint64_t threads; /* at least 1 */
	uint32_t native;  /* dtype of native rows: KVP_DTYPE_F16 or KVP_DTYPE_BF16 */
	const char *model;
	const char *texts[KBENCH_TEXTS_MAX];
	size_t n_texts;
	bool repeat;
	bool validate;
	uint64_t seed; /* of rotations; 0: the default */
	const char *calibs[KBENCH_CALIBS_MAX];
	size_t n_calibs;
	uint64_t recall; /* cases; 0: windows of text instead */
};

/*
 * 0; 1 after --help; -EINVAL with a message on stderr. Strings point into argv. `options`: what the
 * command takes, as bits.
 */
int kbench_parse(int argc, char **argv, const char *about, unsigned int options,
	struct kbench_args *ret_args);

double kbench_now(void); /* seconds */
void kbench_seed(uint64_t seed);
double kbench_normal(void);
void *kbench_alloc(size_t size); /* 64-byte aligned; exits if there is no memory */
struct kvp_calib;
struct kvp_calib_set;
struct kvp_nuq_set;
/* A calibration, for pca or for kvquant; the other is NULL. */
struct kbench_calib {
	struct kvp_calib_set *pca;
	struct kvp_nuq_set *nuq;
};
/* Of a file; a message on stderr and negative errno. kbench_calib_done() in any case. */
int kbench_calib_open(const char *path, struct kbench_calib *ret);
void kbench_calib_done(struct kbench_calib *c);
/* What the codec needs of a layer's keys or values; NULL: it is not there. */
const struct kvp_calib *kbench_calib_find(
	const struct kbench_calib *c, uint32_t codec, uint32_t layer, uint32_t kind);
/* Whether a codec takes all heads together and needs a calibration; of a name, whether one of a pair does. */
int kbench_is_calibrated(uint32_t codec);
int kbench_names_calibrated(const char *name);
struct kvp_kernels;
struct kvr_model;
/* kvbench quality with --recall. Says what went wrong. */
int kbench_recall(
	const struct kvp_kernels *k, const struct kvr_model *model, const struct kbench_args *args);
/* kvbench codecs with --calib: pca or kvquant on a model's own keys and values. Says what went wrong. */
int kbench_codecs_pca(const struct kvp_kernels *k, const struct kbench_args *args);
/* n values of N(0,1) in fp16. */
void kbench_fill_f16(void *data, size_t n);

#endif
