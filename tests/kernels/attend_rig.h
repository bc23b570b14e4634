/* SPDX-License-Identifier: Apache-2.0 */
/* A job of attention with everything it owns, and a double-precision reference over what its planes decode to. */
#ifndef KVP_TESTS_KERNELS_ATTEND_RIG_H
#define KVP_TESTS_KERNELS_ATTEND_RIG_H

#include "kernels/kvp_attend.h"

#define PARTS_MAX 80

struct rig {
	const struct kvp_kernels *encoder;
	struct kvp_attention a;
	struct kvp_attend_part part[PARTS_MAX];
	float *k[PARTS_MAX], *v[PARTS_MAX]; /* [head][token][dim] */
	void *data[2 * PARTS_MAX];
	float *q, *out, *lse, *ref, *ref_lse, *mask;
	uint32_t total;
	size_t n;
	float loud; /* what keys and values are multiplied by, in fp32 */
	const float *own_k,
		*own_v; /* [head][token][dim] of the next part, in fp32, instead of random ones */
};

/*
 * How far apart a row's result may be from the reference: in any element, and as a vector relative
 * to the reference's length. A cosine would not do: .9999 allows 1.4 %.
 */
struct tolerance {
	double element, length, lse;
};

void *rig_alloc(size_t size); /* for cache lines */

/* Attends over one head size for keys and values, nothing masked; k encodes what is added. */
struct rig *rig_new(const struct kvp_kernels *k, uint32_t queries, uint32_t q_heads,
	uint32_t kv_heads, uint32_t dim);
void rig_free(struct rig *g);

/* One more part, in fp32 or another dtype. */
void rig_add(struct rig *g, const char *kc, const char *vc, uint32_t tokens);
void rig_add_of(struct rig *g, const char *kc, const char *vc, uint32_t tokens, uint32_t dtype);

/* Keys or values of part i alone. */
void rig_add_plane(struct rig *g, uint32_t i, const char *name, uint32_t kind, uint32_t tokens,
	uint32_t dtype);

/* To g->ref and g->ref_lse; to g->out and g->lse. */
void rig_reference(struct rig *g);
void rig_run(struct rig *g, const struct kvp_kernels *k, struct kvp_attend_result *res);

/* The test fails, with both names, where a row is further off. */
void rig_compare_row(const struct rig *g, size_t row, const struct tolerance *most, const char *set,
	const char *what);

/*
 * The reference, then k's result, which stays in g->out, row by row; every part ends with memory that is not to be
 * read, and the result in some that is not to be written. Masses are to sum to one.
 */
void rig_compare(struct rig *g, const struct kvp_kernels *k, const struct tolerance *most,
	const char *set, const char *what);

/* A third of the tokens hidden from each query, the others further off or nearer. */
void rig_mask(struct rig *g);

#endif
