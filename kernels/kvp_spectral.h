/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The codec `spectral`: of each key only its strongest RoPE pairs. Whether keys are such that this says
 * much of them is measured, not assumed: here is the measure, the choice of how many pairs that takes, and
 * scores of queries by what was kept. docs/formats.md, "spectral", has the arithmetic.
 *
 * Nothing here allocates, locks, logs or keeps state; every function may be called by any thread. Errors
 * are negative errno values, and nothing has been written then.
 */
#ifndef KVP_SPECTRAL_H
#define KVP_SPECTRAL_H

#include "kernels/kvp_codec.h"
#include "kernels/kvp_rope.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What kept pairs must hold of a plane's energy for kvp_plane_encode() not to refuse it. */
#define KVP_SPECTRAL_ENERGY_MIN 0.85

/*
 * The share of the energy (sum of squares) of a plane of keys that is in the pairs which the codec would
 * keep; 1 if there is no energy. Turning pairs, as RoPE does, changes nothing of it.
 * -EINVAL: not a codec or plane of spectral, strides.
 */
int kvp_spectral_energy(
	uint32_t codec, const struct kvp_plane *p, struct kvp_raw_const src, double *ret_share);

/*
 * The codec with the fewest pairs, of those that have a name, which hold at least `least` of the energy;
 * everything else is as in `codec`. -ERANGE: not even the most do. -EINVAL: as above.
 */
int kvp_spectral_choose(uint32_t codec, const struct kvp_plane *p, struct kvp_raw_const src,
	double least, uint32_t *ret_codec);

/*
 * Scores of one query and the p->tokens keys of one head, which scale multiplies: scale * <q, k>, by what
 * the payload keeps, in 10 operations a pair that is kept, whatever dim is.
 * With a rope, keys and query are before RoPE, and keys stand at positions `first` on, the query at
 * `position`: pairs are turned by their distance. With NULL both are as they are, with RoPE or without.
 * q: [p->dim], finite; ret: [p->tokens]. -EINVAL: plane, head, a rope of other pairs than the codec's or of
 * other channels than p->dim, positions from KVP_ROPE_POSITIONS_MAX on; else as kvp_plane_check().
 */
int kvp_spectral_scores(uint32_t codec, const struct kvp_plane *p, const void *in, size_t in_size,
	uint32_t head, const struct kvp_rope *rope, uint32_t first, uint32_t position,
	const float *q, float scale, float *ret);

#ifdef __cplusplus
}
#endif
#endif
