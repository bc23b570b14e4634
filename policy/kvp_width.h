/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Width: how many bits an element of a payload takes. It is the one word in which policies speak of
 * precision: an index from the most precise to the least, so that tables have a row for each. All
 * others say which width they mean:
 *
 *	zone of a sequence (kvp_zones.h)   HOT: NATIVE; WARM: 4; ARCHIVE: that of its codec
 *	archive codec (kvp_zones.h)        KIVI2 and SQUAT: 2; KVQUANT: 2 to 4
 *	learnt threshold (kvp_thresholds.h)   a width of the archive, 2 to 4
 *	payload in a plan (kvp_ladder.h, kvp_remat.h)   any
 *	token in a mixed plane (kvp_precision.h)   8 to 2
 *
 * A codec's id (kernels/kvp_codec.h) says how the bits are found, which is no business of policy/:
 * its callers have a codec for each width.
 *
 * Pure functions, any thread.
 */
#ifndef KVP_WIDTH_H
#define KVP_WIDTH_H

#include <stdint.h>

#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_WIDTH_NATIVE 0u /* as the engine wrote it; counts as 16 bits */
#define KVP_WIDTH_8      1u
#define KVP_WIDTH_4      2u
#define KVP_WIDTH_3      3u
#define KVP_WIDTH_2      4u
#define KVP_WIDTHS       5u

/* Bits of an element; 0: no such width. */
uint32_t kvp_width_bits(uint32_t width);
/* The width of so many bits: 16, 8, 4, 3 or 2. KVP_WIDTHS: there is none. */
uint32_t kvp_width_of_bits(uint32_t bits);

/*
 * Relative squared error of a vector that was coded in a width and decoded, E|x - x'|^2 / E|x|^2,
 * of the codecs that kernels/ recommends: TurboQuant at 128 dimensions, and 8 bits symmetric.
 */
extern const double kvp_width_distortion[KVP_WIDTHS];

/*
 * A plane, the keys or the values of one layer in one block, whose tokens may have different
 * widths: what kernels/ writes as the codec `smart` with symmetric or TurboQuant codes.
 */
struct kvp_width_plane {
	uint32_t heads;       /* KV heads, 1..65536 */
	uint32_t head_dim;    /* 1..65536, a multiple of 8 */
	uint32_t scale_bits;  /* 16 or 32 */
	uint32_t scale_group; /* channels per scale; 0: one scale for the head */
};

#define KVP_WIDTH_HEADER_BYTES 64u /* of a plane's payload */
#define KVP_WIDTH_ALIGN        64u /* sections of a payload begin at such multiples */

/* Codes and scales of one token in one plane: head_dim x bits + scales, for each head. */
uint64_t kvp_width_token_bits(const struct kvp_width_plane *plane, uint32_t width);

/*
 * Bytes of a plane's payload with tokens[w] tokens of width w, as it is written: header, a byte a
 * token that says its width, codes and scales by width, and the gaps between these. tokens[NATIVE]
 * must be 0.
 */
uint64_t kvp_width_plane_bytes(
	const struct kvp_width_plane *plane, const uint32_t tokens[KVP_WIDTHS]);

/*
 * Of these bytes, those that are no codes and no scales: the most they can be with `tokens` tokens,
 * whatever their widths.
 */
uint64_t kvp_width_plane_overhead(const struct kvp_width_plane *plane, uint32_t tokens);

#ifdef __cplusplus
}
#endif
#endif
