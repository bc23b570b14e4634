/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model's cache held in codecs, for kvbench quality: what the forward pass reads in the place of keys and
 * values, coded block by block when it is first asked for.
 */
#ifndef KVBENCH_QUALITY_STORE_H
#define KVBENCH_QUALITY_STORE_H

#include "tools/kvbench/kbench.h"
#include "tools/kvrun/kvr_seq.h"

#include <stddef.h>
#include <stdint.h>

#define QUALITY_NEAR   64u   /* tokens that a query sees natively, itself included */
#define QUALITY_WINDOW 2048u /* most tokens of a sequence */

/* A codec per age: [0] for warm tokens, [1] for those of the archive; K and V. */
struct scheme {
	uint32_t codec[2][2];
	int mixed;
	struct kbench_calib calib; /* for pca or kvquant */
};

/* Tiles that are decoded already, by age class, layer, K or V, head, block. */
struct store {
	const struct kvp_kernels *k;
	const struct scheme *scheme;
	uint64_t seed;  /* of rotations */
	uint32_t block; /* tokens */
	uint32_t layers, heads, blocks;
	float **tile;             /* NULL: not decoded yet */
	struct kvp_squat **squat; /* by layer and KV head; NULL: no queries are known */
	double bits, values;
	double energy,
		energies;  /* of keys, in what spectral keeps: sum over planes, and how many */
	double energy_min; /* of the plane that loses most */
};

/*
 * A scheme by the name of a codec, a pair, a preset or `mix`, with the calibration in a file, or NULL;
 * scheme_done() in any case. Says what went wrong; negative errno.
 */
int scheme_open(const char *name, const char *calib, struct scheme *ret);
void scheme_done(struct scheme *s);

/* Fills what follows from the model and from s->scheme; store_done() in any case. -ENOMEM. */
int store_init(struct store *s, const struct kvr_model *model);
/* Forgets the sequence's blocks, but not the bits that they took. */
void store_clear(struct store *s);
void store_done(struct store *s);

/*
 * quality_queries.c: for squat, the queries of a sequence's first n tokens, of a native pass over these; for
 * other codecs nothing. What was known of another sequence is forgotten. Negative errno.
 */
int store_queries(
	struct store *s, const struct kvr_model *model, const uint32_t *tokens, uint32_t n);
void store_queries_done(struct store *s);

/* The `read` of struct kvr_substitute, whose window is s->block: a block is coded once it is complete. */
int store_read(void *arg, const struct kvr_plane *plane, float *dst);

/* Says why a run with this scheme failed. */
void scheme_complain(const char *name, int error);

#endif
