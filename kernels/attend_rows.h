/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What attention needs of a codec: scores of rows against queries, and weighted sums of rows, both
 * in the domain in which the codes lie. Private to kernels/ and its tests.
 */
#ifndef KVP_KERNELS_ATTEND_ROWS_H
#define KVP_KERNELS_ATTEND_ROWS_H

#include "kernels/kvp_codec.h"

/* Tokens that are scored at a time; a multiple of every kivi group. */
#define ATTEND_CHUNK 128u

/*
 * How codes become values, which is all that the kernels of attention know of a codec. Theirs are
 * in kvp_kernels.attend, by form.
 */
#define KVP_FORM_NATIVE 0u /* elements */
#define KVP_FORM_FP8    1u /* times a scale per row */
#define KVP_FORM_INT8   2u /* likewise */
#define KVP_FORM_AFFINE 3u /* code * scale + minimum, of a group */
#define KVP_FORM_BOOK   4u /* centroid of the code times a scalar per row */
#define KVP_FORMS       5u /* no form: rows are decoded first */

/* Consecutive tokens of one head in one codec. */
struct kvp_rows {
	uint32_t form;   /* KVP_FORM_* */
	uint32_t bits;   /* of a code; 0: see form */
	uint32_t format; /* fp8, int8: the codec id; native: the dtype; book: 1 = wide scalars */
	uint32_t dim;
	uint32_t n;
	uint32_t group;       /* elements per scale; per_channel: tokens per group */
	uint32_t groups;      /* scalars per row */
	uint32_t per_channel; /* kivi K: scale and minimum are [group][dim], row 0 begins a group */
	float factor;         /* times every decoded value */
	ptrdiff_t stride;     /* bytes between rows */
	const uint8_t *codes; /* at row 0 */
	const uint8_t *scale;
	const uint8_t *minimum;
	const float *cent; /* tq: 16 of them */
	/* Codes of rows that will be read next, to be fetched meanwhile; next_n 0: none. */
	const uint8_t *next;
	ptrdiff_t next_stride;
	uint32_t next_n;
	uint32_t next_bytes; /* of a row */
	uint32_t tiles; /* the queries that this thread's tiles are configured for; 0: none are */
};

/* Up to so many queries as bytes: of a channel of each one, or, wide, two, 128 high + low. */
#define KVP_TILE_QUERIES 8u
struct kvp_tiles {
	float unit[KVP_TILE_QUERIES];   /* of a query's 1 */
	int32_t less[KVP_TILE_QUERIES]; /* products with centroids that are all -128 */
	int8_t b[];
};
static inline size_t kvp_tiles_bytes(uint32_t dim)
{
	return sizeof(struct kvp_tiles) + (size_t)((dim + 127) / 128) * 2048;
}

/*
 * Up to so many queries in bf16, high and low, two channels next to one another, as tiles take them; which
 * channels these are depends on the keys' dtype.
 */
static inline size_t kvp_pairs_bytes(uint32_t dim)
{
	return (size_t)dim * 2 * KVP_TILE_QUERIES * 2;
}

/* The queries of one KV head. */
struct kvp_queries {
	uint32_t n;
	const float *f; /* [n][dim] */
	const float
		*sum; /* [n]: of a query's floats, which is what a minimum of keys is added times */
	const void
		*tiles; /* struct kvp_tiles for every KVP_TILE_QUERIES; NULL: none are configured */
	uint32_t
		wide; /* these are of two bytes: no rotation has made the queries nearly Gaussian */
	/* kvp_pairs_bytes() for every KVP_TILE_QUERIES, for keys in fp16 and in bf16; NULL: likewise */
	const void *pairs[2];
};

/*
 * s[i * s_stride + t] = <query i, row t>, for i < q->n and t < r->n; all arrays 64-byte aligned,
 * s_stride a multiple of 16. Elements of s beyond r->n up to the next multiple of 16 may be
 * overwritten.
 */
typedef void kvp_score_fn(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride);

/* Weights of nq queries. acc[i][c] = acc[i][c] * fade[i] + sum over t of w[i][t] * row t [c]. */
struct kvp_weights {
	uint32_t nq;
	const float *w; /* [nq][stride] */
	size_t stride;
	const float *fade; /* [nq] */
};
typedef void kvp_accumulate_fn(
	const struct kvp_rows *r, const struct kvp_weights *w, float *acc /* [nq][dim] */);

/*
 * Keys and values of the same tokens of one or more heads, all of which all queries see, from scores to
 * sums in one go. run and acc as in softmax and kvp_accumulate_fn; grown[i] is what sums of other
 * domains still have to be multiplied by. Returns 0, with nothing done, where forms or geometry are
 * not its.
 */
struct running;
struct kvp_step {
	/* Of the first head; what they say is read next is read after the last one. */
	const struct kvp_rows *k, *v;
	const struct kvp_queries *q;
	float scale;
	struct running *run; /* [heads][q->n] */
	const float *fade;
	float *grown; /* [heads][q->n] */
	float *acc;   /* [q->n][v->dim] */
	uint32_t heads;
	/* From one head to the next: bytes, and floats. */
	struct {
		size_t k_codes, k_scale, v_codes, v_scale, tiles;
		size_t fade, acc;
	} apart;
};
typedef int kvp_step_fn(const struct kvp_step *step);

kvp_score_fn kvp_score_c;
kvp_accumulate_fn kvp_accumulate_c;

#endif
