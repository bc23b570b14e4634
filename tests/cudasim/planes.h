/* SPDX-License-Identifier: Apache-2.0 */
/* Random planes: codec, geometry, content, and where their rows lie. */
#ifndef CUDASIM_PLANES_H
#define CUDASIM_PLANES_H

#include "tests/cudasim/checks.h"

struct subject {
	uint32_t codec;
	struct kvp_plane plane;
	uint64_t seed;
	int32_t exponent;
	uint32_t force;   /* exponent is given, not found */
	uint32_t pattern; /* of the content, see planes.c */
};

/* Rows in a buffer of `bytes`; element 0 of row (0, 0) is at `first`. */
struct placing {
	size_t bytes;
	size_t first;
	ptrdiff_t head_stride;
	ptrdiff_t token_stride;
};

/* Any codec that has CUDA kernels. */
uint32_t codec_draw(struct rng *r);
/* Such a codec, in any geometry that it takes, small enough for the model. */
void subject_draw(struct rng *r, struct subject *ret);
/* Does the codec rotate by a dense matrix? */
int is_dense(uint32_t codec);
/* The calibration that reference C needs for such planes, made once; NULL if it needs none. */
const struct kvp_calib *subject_calib(uint32_t codec, uint32_t dim);
/* Dense, padded, token-major or running backwards. */
void placing_draw(struct rng *r, const struct kvp_plane *p, struct placing *ret);
void plane_fill(struct rng *r, const struct subject *s, uint8_t *buffer, const struct placing *pl);
/* Element i of a row, whatever its bits. */
void put_element(uint8_t *row, uint32_t dtype, uint32_t i, float f);

#endif
