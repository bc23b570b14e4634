/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the codec `squat` asks of a put besides keys: the directions that queries look in (SQuat, arXiv
 * 2503.24358). Of a sequence's queries, in one layer and for each KV head, the subspace that has most of
 * their energy; errors of keys are then pushed out of it. docs/formats.md, "squat", has the arithmetic.
 *
 * Nothing here locks, logs or keeps state; every function may be called by any thread, and any number of
 * encoders may use one object at a time; each takes 100 KiB of its stack. Errors are negative errno values,
 * and nothing has been written then.
 */
#ifndef KVP_SQUAT_H
#define KVP_SQUAT_H

#include "kernels/kvp_codec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What zeros in struct kvp_squat_opts stand for: what was published. */
#define KVP_SQUAT_RANK   20u
#define KVP_SQUAT_BLOCK  64u
#define KVP_SQUAT_LAMBDA 1e-3

#define KVP_SQUAT_RANK_MAX   128u
#define KVP_SQUAT_NUMBER_MAX 1e12 /* of queries and axes, in magnitude */

/* Zero-initialise, then set size, heads and dim. */
struct kvp_squat_opts {
	size_t size;    /* sizeof(struct kvp_squat_opts) */
	uint32_t heads; /* KV heads, 1..256 */
	uint32_t group; /* query heads of each; 0 = 1; up to 64 */
	uint32_t dim;   /* 8..1024, a multiple of 8 */
	/* Of the subspace, up to KVP_SQUAT_RANK_MAX and dim; 0 = KVP_SQUAT_RANK, or dim if less. */
	uint32_t rank;
	/* Channels that are rounded together, after which the next ones make up for them: a multiple of 8 up to
	 * 64; 0 = KVP_SQUAT_BLOCK, of dim 64 and less half of it. Fewer are better along queries, and slower. */
	uint32_t block;
	uint32_t reserved;
	double lambda; /* what an error along queries weighs beside any other: up to 1; 0 = KVP_SQUAT_LAMBDA */
};

struct kvp_squat;

/*
 * Of n tokens' queries as they meet the keys, with RoPE where those have it: q[n][heads * group][dim], query
 * heads of one KV head together. Those of a whole prompt, as published: the energy is a sum, so the more
 * there are the more they weigh. Costs n * group * dim^2 / 2 products a head, and some 30 * rank * dim^2.
 * -EINVAL: an option, n 0, a number that is not finite or too large; -ENOMEM.
 */
int kvp_squat_of_queries(
	const struct kvp_squat_opts *opts, const float *q, size_t n, struct kvp_squat **ret_squat);

/*
 * Of the subspace itself, axes[heads][rank][dim]: right singular vectors of the queries, each as long as its
 * singular value. -EINVAL: as above, or no matrix can be solved with them; -ENOMEM.
 */
int kvp_squat_of_axes(
	const struct kvp_squat_opts *opts, const float *axes, struct kvp_squat **ret_squat);

/* Accepts NULL; returns NULL. */
struct kvp_squat *kvp_squat_free(struct kvp_squat *squat);

/* Options, zeros replaced; the axes of a head, [rank][dim], valid as long as the object. NULL: no such head. */
const struct kvp_squat_opts *kvp_squat_options(const struct kvp_squat *squat);
const float *kvp_squat_axes(const struct kvp_squat *squat, uint32_t head);

#ifdef __cplusplus
}
#endif
#endif
