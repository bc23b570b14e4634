/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA kernels as a C program sees them: their names, their parameter structs, and how to shape
 * a launch. No CUDA header is needed and none is included: addresses are uint64_t.
 *
 * Every kernel takes one struct by value. To launch one through the Driver API:
 *
 *	struct kvp_cuda_shape s;
 *	void *args[] = { &params };
 *	kernel->shape(&params, &s);                  (-EINVAL, -ENOTSUP: nothing to launch)
 *	cuLaunchKernel(function, s.grid[0], s.grid[1], s.grid[2], s.threads, 1, 1,
 *		s.smem_bytes, stream, args, NULL);
 *
 * A function whose smem_bytes exceeds 48 KiB needs CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
 * raised once to kvp_cuda_kernel.smem_max, when the module is loaded.
 *
 * All kernels can be captured into a graph: they allocate nothing, wait for nothing and need no
 * decision of the host. Whatever changes from step to step (page tables, slots, lengths) is read
 * from device memory; the structs hold what stays.
 *
 * A page is the payload of one block of tokens; it holds the planes of all layers at fixed offsets
 * (page_offset). A plane is what docs/formats.md describes. Pages must be aligned to 64 bytes.
 * Encoders are byte-identical with kvp_plane_encode(), decoders with kvp_plane_decode().
 */
#ifndef KVP_CUDA_KERNELS_H
#define KVP_CUDA_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kvp_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvp_cuda_shape {
	uint32_t grid[3];
	uint32_t threads; /* per block */
	uint32_t smem_bytes;
};

/* A rotation as docs/formats.md has it, signs as bits. rounds 0 and no matrix: none. */
struct kvp_cuda_rotation {
	uint32_t rounds; /* 0, 1 or 3 */
	uint32_t order;  /* of the matrix that is not a power of two; 1, 12, 20, 28, 36 */
	float rescale;   /* of the middle one of three rounds, or of the dense matrix */
	uint32_t reserved;
	uint64_t dense; /* HAAR: f32[dim][dim] in device memory; else 0 */
	uint32_t sign[3][KVP_PLANE_DIM_MAX / 32];
	uint64_t paley[36];
};

/* struct kvp_calib on the device. */
struct kvp_cuda_calib {
	uint32_t dim;
	uint32_t reserved;
	uint64_t haar;   /* f32[dim][dim] in device memory, row-major */
	uint64_t digest; /* not 0 */
};

/* The parts of a codec that a kernel needs; filled by kvp_cuda_codec_init(). */
struct kvp_cuda_codec {
	uint32_t id;
	uint32_t bits;
	uint32_t scalar;    /* tq: KVP_TQ_* */
	uint32_t wide;      /* tq: fp32 scalars */
	uint32_t heads;     /* KV heads */
	uint32_t dim;       /* channels */
	uint32_t tokens;    /* of a page */
	uint32_t dtype;     /* of raw elements */
	uint32_t kind;      /* KVP_PLANE_* */
	uint32_t row_bytes; /* and the other members of struct kvp_layout */
	uint32_t group;
	uint32_t groups;
	uint32_t coded;
	uint32_t codes;
	uint32_t scale;
	uint32_t minimum;
	uint32_t native;
	uint32_t bytes;
	uint64_t seed;
	uint64_t calib; /* digest */
	float cent[16];
	float bound[16];
	struct kvp_cuda_rotation rot;
};

/*
 * Describes planes of this geometry in this codec. seed 0 = KVP_SEED_DEFAULT; calib is needed by
 * KVP_ROT_HAAR, else ignored and may be NULL. -EINVAL: no such codec or plane; -ENOENT: no
 * calibration of this dim; -ENOTSUP: a family that has no kernels here (others than native, fp8,
 * int8, kivi, asym and tq).
 */
int kvp_cuda_codec_init(uint32_t codec, const struct kvp_plane *p, uint64_t seed,
	const struct kvp_cuda_calib *calib, struct kvp_cuda_codec *ret_codec);

/*
 * Parameters of kvp_cu_plane_begin, kvp_cu_*_encode and kvp_cu_*_decode.
 *
 * Whole pages (slots == 0): page i of `count` has its raw rows at raws[i] (or raw + i *
 * raw_page_stride where raws is 0) and its plane at pages[i] + page_offset.
 * Scattered tokens (slots != 0, not for keys in kivi): row i of `count` has its raw elements at
 * raw + i * raw_token_stride and belongs to token slots[i] % tokens of page slots[i] / tokens;
 * negative slots are skipped. That is how one step's new keys and values are encoded and stored in
 * one kernel; no two rows may have one slot.
 *
 * The exponent of each plane is read from its header, so plane_begin (or the host) comes first.
 * Elements are read and written singly: rows need the alignment of their elements only.
 */
struct kvp_cuda_rows {
	uint64_t raw;
	uint64_t raws;
	int64_t raw_page_stride; /* bytes, of any sign, multiples of the element size */
	int64_t raw_head_stride;
	int64_t raw_token_stride;
	uint64_t pages; /* u64[] in device memory */
	uint64_t page_offset;
	uint64_t slots; /* i32[count] in device memory, or 0 */
	uint32_t count;
	/* plane_begin: used if force_exponent, else the exponent is found from the raw rows */
	int32_t exponent;
	uint32_t force_exponent;
	uint32_t reserved;
	struct kvp_cuda_codec codec;
};

/*
 * Parameters of kvp_cu_rotate: queries into the domain of rotated keys, once per step and distinct
 * rotation. Result: f32[seqs][queries][heads][dim], to be attended with as kvp_cuda_attend.q.
 */
struct kvp_cuda_rotate {
	uint64_t q; /* first element; fp16, bf16 or fp32 by q_dtype */
	int64_t q_seq_stride;
	int64_t q_query_stride;
	int64_t q_head_stride; /* per query head; bytes */
	uint64_t out;
	uint32_t q_dtype;
	uint32_t seqs;
	uint32_t queries;
	uint32_t heads; /* query heads */
	uint32_t dim;
	uint32_t reserved;
	struct kvp_cuda_rotation rot; /* that of the keys' codec */
};

/*
 * Parameters of kvp_cu_attend_*: attention of a few queries over pages of one pair of codecs, as
 * `splits` partial results per row, to be merged by kvp_cu_merge. Several launches (a native tail,
 * 4-bit pages, 2-bit pages) may fill different splits of the same partials.
 *
 * kvp_cu_attend_any takes every pair of codecs that kvp_cuda_codec_init() knows (native fp8 aside)
 * and any dims. kvp_cuda_attend_kernel() finds a faster one where there is: K and V of one dim, 64
 * or 128; pages of a multiple of 16 tokens, and of whole groups where K is kivi; fp16 scalars;
 * Hadamard rotations. Agrees within 1e-3 of the largest value with kvp_attend().
 *
 * Where the codec of K rotates, q has to come from kvp_cu_rotate; where that of V does, the partial
 * results are rotated, and kvp_cu_merge has to be told.
 *
 * A page must be there for every token below its sequence's length, and none beyond is read.
 *
 * Rows: row r of a sequence and KV head is query r / group, query head kv_head * group + r % group.
 */
struct kvp_cuda_attend {
	uint64_t q; /* first element; fp16, bf16 or fp32 by q_dtype */
	int64_t q_seq_stride;
	int64_t q_query_stride;
	int64_t q_head_stride; /* per query head; bytes */
	uint64_t tables;       /* u64[seqs][table_stride]: pages of each sequence, in order */
	uint64_t lengths;      /* u32[seqs]: tokens in these pages */
	uint64_t firsts;       /* u32[seqs]: position of the first of them; 0 = all zeros */
	uint64_t totals;       /* u32[seqs]: length of the whole sequence; 0 = firsts + lengths */
	uint64_t k_offset;     /* of the K and the V plane in a page */
	uint64_t v_offset;
	uint64_t partial; /* f32[seqs][heads][rows][split_total][v.dim + 2]; see kvp_cuda_merge */
	uint64_t mask;    /* f32, additive, by position in the sequence; -infinity masks; or 0 */
	int64_t mask_seq_stride; /* bytes */
	int64_t mask_query_stride;
	uint32_t table_stride;
	uint32_t seqs;
	uint32_t q_dtype;
	uint32_t queries; /* per sequence */
	uint32_t group;   /* query heads per KV head */
	uint32_t splits;  /* of this launch */
	uint32_t split_first;
	uint32_t split_total;
	uint32_t causal; /* query i stands at position total - queries + i and sees nothing later */
	uint32_t window; /* not 0: and nothing at or before its position - window */
	float scale;     /* of the scores, usually 1 / sqrt(dim) */
	uint32_t reserved;
	struct kvp_cuda_codec k;
	struct kvp_cuda_codec v;
};

/* Consecutive splits whose partial results are in one domain. */
struct kvp_cuda_domain {
	uint32_t split_end; /* they begin where those of the domain before end, the first at 0 */
	uint32_t reserved;
	struct kvp_cuda_rotation rot; /* that of V's codec; all zeros: none */
};
#define KVP_CUDA_DOMAINS_MAX 4

/*
 * Parameters of kvp_cu_merge. A partial result is v.dim sums, then the maximum (in units of log2)
 * and the sum of weights; every split must have been written by some launch. Sums are rotated back
 * once per domain. A row that saw no token gives zeros and minus infinity.
 */
struct kvp_cuda_merge {
	uint64_t partial;
	uint64_t out; /* elements of out_dtype */
	int64_t out_seq_stride;
	int64_t out_query_stride;
	int64_t out_head_stride;
	uint64_t lse; /* f32[seqs][heads][rows], natural logarithm; 0 = not wanted */
	uint32_t seqs;
	uint32_t heads;
	uint32_t group;
	uint32_t queries;
	uint32_t dim; /* of V */
	uint32_t split_total;
	uint32_t out_dtype;
	uint32_t domains; /* 1..KVP_CUDA_DOMAINS_MAX; the last one ends at split_total */
	struct kvp_cuda_domain domain[KVP_CUDA_DOMAINS_MAX];
};

/*
 * Parameters of kvp_cu_mass: how much of its queries' attention each token got, per KV head; a
 * second pass over the keys, after the merge. Every token of these pages is written.
 */
struct kvp_cuda_mass {
	uint64_t lse;            /* what kvp_cu_merge wrote */
	uint64_t mass;           /* f32, by position in the sequence */
	int64_t mass_seq_stride; /* bytes */
	int64_t mass_head_stride;
	struct kvp_cuda_attend attend; /* as it was launched; V and the partials are not touched */
};

/*
 * Parameters of kvp_cu_copy: `count` boxes of n[0] x n[1] x n[2] runs of run_bytes, from
 * src[i] + src_offset to dst[i] + dst_offset by their own strides: conversion between layouts
 * (layer-major, token-major, an engine's pages). All addresses, strides and run_bytes are multiples
 * of 16.
 */
struct kvp_cuda_copy {
	uint64_t src; /* u64[count] in device memory */
	uint64_t dst;
	int64_t src_offset;
	int64_t dst_offset;
	int64_t src_stride[3]; /* bytes */
	int64_t dst_stride[3];
	uint32_t n[3];
	uint32_t run_bytes;
	uint32_t count;
	uint32_t reserved;
};

/*
 * Parameters of kvp_cu_runs: `count` runs of bytes[i] from from[i] to to[i], which may be any in number: whoever has
 * more launches again. The table goes with the launch, so nothing has to be kept until it has run. Addresses and
 * bytes are multiples of 16, runs do not overlap; `most` is the largest of the bytes.
 */
#define KVP_CUDA_RUNS 128u
struct kvp_cuda_runs {
	uint64_t to[KVP_CUDA_RUNS];
	uint64_t from[KVP_CUDA_RUNS];
	uint32_t bytes[KVP_CUDA_RUNS];
	uint32_t count;
	uint32_t most;
};

/* Does the codec rotate? Then attention needs kvp_cu_rotate for K, a domain of its own for V. */
int kvp_cuda_rotates(const struct kvp_cuda_codec *c);

/*
 * How many splits decoding takes best: `rows` sequences times KV heads, of so many tokens, on a device of `sms`
 * multiprocessors. At least 1. By what an H100 measured (docs/gpu-results.md): a block for each multiprocessor where a
 * few long sequences are all there is, each split with 1,024 tokens or more; where sequences alone fill the device, the
 * fewest with which the last blocks have company, two for each multiprocessor.
 */
uint32_t kvp_cuda_splits(uint32_t sms, uint32_t rows, uint32_t tokens);

struct kvp_cuda_kernel {
	const char *name; /* of the function in the image */
	uint32_t param_bytes;
	uint32_t threads_max; /* most threads per block that a launch may have */
	uint32_t smem_max;    /* most dynamic shared memory a launch may ask for */
	/* Fills *ret_shape for these parameters. -EINVAL: bad parameters; -ENOTSUP: another kernel
	 * has to be used. */
	int (*shape)(const void *params, struct kvp_cuda_shape *ret_shape);
};

/* All kernels. */
extern const struct kvp_cuda_kernel kvp_cuda_kernels[];
extern const uint32_t kvp_cuda_kernel_count;

/* -ENOENT: no kernel of that name. */
int kvp_cuda_kernel_find(const char *name, const struct kvp_cuda_kernel **ret_kernel);
/* The kernel that encodes (decodes, attends fastest over) such planes. -ENOTSUP: there is none. */
int kvp_cuda_encode_kernel(
	const struct kvp_cuda_codec *c, const struct kvp_cuda_kernel **ret_kernel);
int kvp_cuda_decode_kernel(
	const struct kvp_cuda_codec *c, const struct kvp_cuda_kernel **ret_kernel);
int kvp_cuda_attend_kernel(const struct kvp_cuda_codec *k, const struct kvp_cuda_codec *v,
	const struct kvp_cuda_kernel **ret_kernel);

/*
 * The fatbin images: machine code for sm_80, 90, 100 and 120 and PTX for compute_80 and 120, for
 * cuModuleLoadData. A kernel is in one of them. -ENOTSUP: built without nvcc; -ENOENT: no more.
 */
int kvp_cuda_image(uint32_t index, const void **ret_image, size_t *ret_bytes);
/* The image of kvp_cu_copy and kvp_cu_runs alone, for who needs no more. NULL: built without nvcc. */
const void *kvp_cuda_layout_image(void);

#ifdef __cplusplus
}
#endif
#endif
