/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rotary position embedding (RoPE, arXiv 2104.09864) as a space declares it, put on keys and taken off
 * again: for codecs that work on keys as they were before it. docs/formats.md, "RoPE", has every
 * operation; all machines and instruction sets give the same bytes.
 *
 * Nothing here allocates, locks, logs or keeps state; every function may be called by any thread, and a
 * struct kvp_rope is read-only once made. Errors are negative errno values, and nothing has been
 * written then. Floating point as in kvp_codec.h.
 */
#ifndef KVP_ROPE_H
#define KVP_ROPE_H

#include "kernels/kvp_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers of kvpool.h. */
#define KVP_ROPE_NONE        0u
#define KVP_ROPE_HALF_SPLIT  1u /* pairs (i, i + d/2): Llama in the Hugging Face layout, Qwen */
#define KVP_ROPE_INTERLEAVED 2u /* pairs (2i, 2i + 1): llama2.c, GPT-J */

#define KVP_ROPE_SCALING_NONE   0u
#define KVP_ROPE_SCALING_LINEAR 1u
#define KVP_ROPE_SCALING_NTK    2u
#define KVP_ROPE_SCALING_YARN   3u
#define KVP_ROPE_SCALING_LLAMA3 4u

/* Positions are smaller than this. */
#define KVP_ROPE_POSITIONS_MAX (1u << 27)

/*
 * The fields of struct kvp_space_desc. Pair i of dim / 2 turns by position * theta^(-2 i / dim), and of
 * that a scaling makes, with params[0] = factor:
 *   LINEAR  a factor-th;
 *   NTK     the same with theta * factor^(dim / (dim - 2)) for theta;
 *   LLAMA3  a factor-th of slow frequencies, of which original context (params[3]) holds fewer than low
 *           (params[1]) turns, none of fast ones with more than high (params[2]), between them a mixture;
 *   YARN    likewise, mixed over the pairs from where original context (params[3]) holds high turns
 *           (params[2], beta_fast; 0: 32) to where it holds low ones (params[1], beta_slow; 0: 1); keys
 *           are longer by 0.1 ln(factor) + 1, too.
 * What scales by the length of a sequence ("dynamic") has no such form: a key would depend on later ones.
 */
struct kvp_rope_desc {
	uint32_t pairing; /* KVP_ROPE_* */
	uint32_t dim;     /* the first so many channels of a key turn; even, 2..1024 */
	uint32_t scaling; /* KVP_ROPE_SCALING_* */
	uint32_t reserved;
	double theta; /* greater than 1, at most 2^40 */
	double params[4];
};

/* Made by kvp_rope_init(); some 4 KiB, the caller's. */
struct kvp_rope {
	uint32_t pairing;
	uint32_t dim;                        /* 0 where the space declares none */
	double gain;                         /* keys get longer by it: 1 but for YARN */
	double freq[KVP_PLANE_DIM_MAX / 2u]; /* radians a position, by pair */
};

/*
 * -EINVAL: a number that no declaration has: factor beyond 1..2^20, theta, dim, original context beyond
 * 1..2^31, low or high not positive (but for YARN's 0), high not above low.
 */
int kvp_rope_init(const struct kvp_rope_desc *desc, struct kvp_rope *ret_rope);

/*
 * Keys of one plane: token t has position `first` + t. p->dtype is that of src; dst, of the same geometry
 * and of dtype dst_dtype, is src with the same strides and dtype, or overlaps it nowhere. Channels that do
 * not turn are converted. A NaN counts as 0 and a magnitude beyond 2^126 as 2^126; what dst_dtype cannot
 * hold saturates.
 *
 * kvp_rope_undo() turns back what kvp_rope_apply(), or an engine, has turned. Undone to fp32 and applied
 * again, an element is off by at most 2^-21 of the length of its pair before it is rounded to dst_dtype.
 * So a bf16 comes back bit for bit if it is more than 2^-11 of that length, an fp16 if it is more than 2^-8;
 * smaller ones may be off by that much.
 * -EINVAL: plane, dtypes, strides, overlap, a plane of values, p->dim less than what turns, or a position
 * from KVP_ROPE_POSITIONS_MAX on.
 */
int kvp_rope_apply(const struct kvp_kernels *k, const struct kvp_rope *rope,
	const struct kvp_plane *p, uint32_t first, struct kvp_raw_const src, uint32_t dst_dtype,
	struct kvp_raw dst);
int kvp_rope_undo(const struct kvp_kernels *k, const struct kvp_rope *rope,
	const struct kvp_plane *p, uint32_t first, struct kvp_raw_const src, uint32_t dst_dtype,
	struct kvp_raw dst);

#ifdef __cplusplus
}
#endif
#endif
