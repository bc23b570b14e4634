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

/* Consecutive tokens of one head in one codec. */
struct kvp_rows {
	uint32_t family;
	uint32_t bits;   /* of a code; 0: see family */
	uint32_t format; /* byte codecs: the codec id; native: the dtype; tq: 1 = wide scalars */
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
};

/*
 * s[i * s_stride + t] = <q + i * r->dim, row t>, for i < nq and t < r->n; both 64-byte aligned,
 * s_stride a multiple of 16. Elements of s beyond r->n up to the next multiple of 16 may be
 * overwritten.
 */
typedef void kvp_score_fn(
	const struct kvp_rows *r, const float *q, uint32_t nq, float *s, size_t s_stride);

/* acc[i * r->dim + c] += sum over t of w[i * w_stride + t] * row t [c]. */
typedef void kvp_accumulate_fn(
	const struct kvp_rows *r, const float *w, size_t w_stride, uint32_t nq, float *acc);

kvp_score_fn kvp_score_c;
kvp_accumulate_fn kvp_accumulate_c;

#endif
