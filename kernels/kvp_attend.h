/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention of one or a few queries (decode, speculative decode) over planes that stay compressed.
 *
 * The context is a list of parts; a part is the K and the V plane of some consecutive tokens, each
 * in a codec of its own, so that a native tail, 4-bit blocks and a 2-bit archive are one call.
 * Queries of a KV head share its keys: MHA, GQA and MQA differ only in q_heads / kv_heads.
 *
 * score(i, j) = scale * <q_i, k_j> + mask(i, j); weights by streaming softmax, all sums in fp32.
 * Rotated codecs are attended in the rotated domain: each query is rotated once per distinct
 * rotation, and the result rotated back once, whatever the context; counters prove it.
 *
 * Where the work is done, 128 tokens of one KV head at a time:
 *   native, fp8-e5m2           converted on the way into fp32 multiplications;
 *   int8, tq, asym, hadamard,  keys of dims that are multiples of 64: each code is looked up in a
 *   kivi, fp8                  table of floats, which are multiplied with the queries' (fp8: in
 *                              AVX-512 with VBMI and up to 256 channels, else as native). kivi's
 *                              scales of keys are folded into the query once per group.
 *                              Values: 16-bit words against weights as words: 32 products an
 *                              instruction with vpdpwssd (AVX-512), 16 with vpmaddwd (AVX2); scales
 *                              and minima go to the weights. What has dims that are no multiple of
 *                              64 (values in AVX-512 at 2 and 3 bits: 64 or of 128), and in AVX2
 *                              values in groups of 16 channels, is decoded into the first cache
 *                              and fp32 from there;
 *   tqprod, hybrid, smart,     decoded into the workspace, a chunk at a time, then as native fp32:
 *   lossless, layouts of       what they save is memory, not time. lossless decodes all tokens of a
 *   others                     head before a chunk, too.
 * With KVP_CPU_TILES tq in 4 bits, of dims that are multiples of 64: matrix tiles, in which a centroid and a query's
 * number are a byte, and a weight's one or two. With KVP_CPU_BYTES and from two queries of a KV head on: the same
 * by vectors and vpdpbusd, with the same results to the bit; so go tq in 2 and 3 bits, int8, and asym and hadamard
 * with one scale a row, keys of any of them beside values of any, where every query sees all of up to 128 tokens.
 * With KVP_CPU_TILES_BF16 native rows in bf16, of dims that are multiples of 32 and from two queries of a KV head
 * on, in fp16 from five: matrix tiles, for which a query's or weight's number is two in bf16.
 * In NEON all of them are decoded into the first cache, some rows at a time, and fp32 from there.
 * While a chunk is worked on, the rows of the next are fetched into the second cache.
 *
 * Three phases, so that threads can share the work (split-K):
 *   kvp_attend_prepare()  once;
 *   kvp_attend_range()    once per split, splits in parallel, parts [split's first, last);
 *   kvp_attend_finish()   once, after all ranges.
 * All state lies in the caller's workspace. Nothing allocates or locks. kvp_attend() is the three
 * in a row with one split.
 *
 * How exact: scores are fp32 sums of fp32 products with what the codes decode to, off by less than
 * 1e-6 of the product of the norms where values are normal; an error of a score would grow with it
 * and be one of all weights. Values and weights as words cost up to 1e-3 of the result's length,
 * usually 1e-4, relative to the weights that are large; reference C has none of that. So results of
 * different instruction sets agree within 1e-3, not bit for bit; those of one instruction set and
 * one partition into splits are reproducible. With tiles or bytes scores and
 * values are off by what a byte is: usually 8e-3 of the result's length, up to 2e-2, where four
 * bits themselves cost .1 (docs/attention.md). With tiles of bf16 queries and weights are off by
 * up to 2^-17 of themselves, native numbers below 2^-126 are 0, and what an infinity reaches is NaN.
 */
#ifndef KVP_ATTEND_H
#define KVP_ATTEND_H

#include "kernels/kvp_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_ATTEND_QUERIES_MAX   8u
#define KVP_ATTEND_Q_HEADS_MAX   1024u
#define KVP_ATTEND_SPLITS_MAX    256u
#define KVP_ATTEND_PARTS_MAX     (1u << 20)
#define KVP_ATTEND_ROTATIONS_MAX 3u /* distinct ones among the keys, and among the values */

/* One plane of a part. */
struct kvp_attend_plane {
	uint32_t codec;
	uint32_t dtype;                /* of the raw elements */
	const void *data;              /* payload, 16-byte aligned; native: the first element */
	size_t bytes;                  /* of the payload; native: ignored */
	ptrdiff_t head_stride;         /* native only, bytes */
	ptrdiff_t token_stride;        /* native only, bytes */
	const struct kvp_calib *calib; /* for KVP_ROT_HAAR */
};

struct kvp_attend_part {
	uint32_t tokens; /* 1..512; of both planes */
	uint32_t reserved;
	struct kvp_attend_plane k;
	struct kvp_attend_plane v;
};

/* The job. Read-only during all three phases; set size first. */
struct kvp_attention {
	size_t size;       /* sizeof(struct kvp_attention) */
	uint32_t queries;  /* 1..8 */
	uint32_t q_heads;  /* a multiple of kv_heads; head h uses KV head h / (q_heads/kv_heads) */
	uint32_t kv_heads; /* 1..256 */
	uint32_t k_dim;    /* 8..1024 */
	uint32_t v_dim;
	float scale;    /* usually 1 / sqrt(k_dim) */
	const float *q; /* [query][q_head][k_dim] */
	const struct kvp_attend_part *parts;
	uint32_t n_parts;   /* 0 is legal: an empty context */
	uint32_t n_splits;  /* 1..256 */
	const float *mask;  /* [query][mask_stride], additive, -infinity masks; or NULL */
	size_t mask_stride; /* floats between queries, at least the number of tokens */
	/*
	 * Position of query 0, counted in tokens from the first token of part 0; query i is at
	 * position + i. With causal set a query sees no token beyond its own position; with a
	 * window it sees only the last `window` of those up to its position.
	 */
	uint64_t position;
	uint32_t causal;
	uint32_t window; /* 0 = all */
	void *workspace; /* 64-byte aligned */
	size_t workspace_size;
};

/* Where results go; any but out may be NULL. */
struct kvp_attend_result {
	float *out;  /* [query][q_head][v_dim]; may be where the job's q is */
	float *lse;  /* [query][q_head] log-sum-exp of the scores; -infinity: nothing seen */
	float *mass; /* [kv_head][mass_stride]: sum over the head's queries of the weight that a
		      * token got; costs a second pass over the keys */
	size_t mass_stride; /* floats, at least the number of tokens */
	uint32_t rotations; /* set by finish: queries rotated + results rotated back, per query */
};

/*
 * A number of splits for so many tokens and threads: never more than threads, one of them at least
 * KVP_ATTEND_SPLIT_MIN tokens times KV heads, and 1 where dividing is not worth waking a thread.
 */
#define KVP_ATTEND_SPLIT_MIN 8192u
uint32_t kvp_attend_splits(uint64_t tokens, uint32_t kv_heads, uint32_t threads);

/* Bytes of workspace. -EINVAL. */
int kvp_attend_workspace(const struct kvp_attention *a, size_t *ret_bytes);

/*
 * Checks the job and every payload's header, rotates the queries. -EINVAL, -ENOSPC (workspace),
 * -E2BIG (too many distinct rotations), and what kvp_plane_check() returns.
 */
int kvp_attend_prepare(const struct kvp_kernels *k, const struct kvp_attention *a);

/*
 * Attends over the parts of one split, 0 <= split < n_splits; parts are dealt out evenly and in
 * order. Payloads are checked again: a hostile writer gains nothing by changing one in between.
 */
int kvp_attend_range(const struct kvp_kernels *k, const struct kvp_attention *a, uint32_t split);

/*
 * Merges the splits. A query that saw nothing (empty context, all masked) gets 0 and a log-sum-exp
 * of -infinity. NaN or infinities in native K reach exactly the queries that see them; those in
 * native V all queries of their KV head if one of them does, none if none does.
 */
int kvp_attend_finish(
	const struct kvp_kernels *k, const struct kvp_attention *a, struct kvp_attend_result *res);

int kvp_attend(
	const struct kvp_kernels *k, const struct kvp_attention *a, struct kvp_attend_result *res);

#ifdef __cplusplus
}
#endif
#endif
