/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A block's payload: the one place that knows where its planes lie and in which codecs they are, for
 * both sides of shared memory. Above shm/ (what a space is) and kernels/ (what a codec is), below the
 * daemon, which codes payloads anew, and the library, which reads them.
 *
 * A native payload lies as the space's layout says. A coded one is a row of planes, K and V of the
 * first layer, of the second and so on, each a payload of its codec (kernels/kvp_codec.h) that begins
 * at a multiple of 64 bytes. Layers that the space excepts are in it natively, [head][token][channel].
 * Only whole blocks are coded, and only those of a space with a floor.
 *
 * Width: how coded a payload is, the number that its descriptor carries (kvp_where_codec()). It is
 * that of policy/kvp_width.h: 0 native, then 8, 4, 3 and 2 bits. Which codecs a width means follows
 * from the space's floor (kvp_payload_codecs()).
 *
 * Under a floor of the family smart, 4, 3 and 2 bits are means: 4, 3 and 2.5 bits that the tokens of a block
 * share among themselves, in 2, 3, 4 or 8 bits each, the same in all heads and layers. Who codes the block says
 * which (struct kvp_payload_tokens); its payload has the bytes of the width whatever they are, and says them itself.
 *
 * Under a floor of the family kvquant planes are coded and decoded with a calibration of the space's model, which whoever
 * makes layouts gives to these (kvp_payload_calib_give()). Without it, or with another one, such a plane is -ENOENT.
 *
 * Pure functions, any thread. Errors are negative errno; outputs come last. A layout that could not be made
 * holds anything; other outputs are untouched on failure.
 */
#ifndef KVP_PAYLOAD_H
#define KVP_PAYLOAD_H

#include "kernels/kvp_codec.h"
#include "kernels/kvp_nuq.h"
#include "shm/kvp_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_PAYLOAD_WIDTHS 5u
/* At the end of a sequence at most so many blocks stay native by kvp_space_canon.native_last. */
#define KVP_PAYLOAD_NATIVE_LAST 15u

struct kvp_block_plane {
	uint64_t offset; /* of the plane's payload, or of its first element, from the block's */
	uint64_t bytes;  /* of the payload; native: of the elements, which may not lie together */
	uint64_t head_stride; /* native only, bytes */
	uint64_t token_stride;
	uint32_t codec;
	uint32_t heads; /* 0: there is no such plane: a latent has no values */
	uint32_t dim;
	const struct kvp_calib *calib; /* that the codec needs; NULL: none, or it is not there */
};

struct kvp_block_layout {
	uint64_t bytes; /* of the block's payload */
	uint32_t n_layers;
	uint32_t tokens; /* of a whole block */
	uint32_t dtype;
	uint32_t native;                                 /* 1: as the space's layout says */
	struct kvp_block_plane plane[KVP_MAX_LAYERS][2]; /* KVP_PLANE_K, KVP_PLANE_V */
};

/*
 * Where the planes of a block lie that is in these codecs; both native: as the engine wrote it.
 * -EOPNOTSUPP: of an opaque layout only the engine knows; -EINVAL: a description that no space has, or
 * a codec that does not take its planes; -E2BIG: a payload of 4 GiB or more.
 */
int kvp_block_layout(const struct kvp_space_canon *canon, uint32_t codec_k, uint32_t codec_v,
	struct kvp_block_layout *ret_layout);

/*
 * The codec that a floor means: KVP_CODEC_SMART, which has no mean, is KVP_CODEC_SMART25; any other is itself.
 */
uint32_t kvp_payload_floor(uint32_t codec);

/*
 * Can blocks of the space be coded as its floor says? 0: yes, or the space is exact. -EINVAL: not a
 * codec that a floor may be (one of fixed size that needs no calibration but kvquant's), or one that does not take
 * the space's planes, or needs no fewer bytes than native.
 */
int kvp_payload_judge(const struct kvp_space_canon *canon);

/*
 * The codecs of a width in a space that kvp_payload_judge() accepted: the recommended ones, as long as
 * they need more bytes than the floor's, which are what all lower widths mean. -EINVAL: no such width.
 */
int kvp_payload_codecs(
	const struct kvp_space_canon *canon, uint32_t width, uint32_t *ret_k, uint32_t *ret_v);
/* The lowest width, whose codecs are the floor's; 0: the space is exact. */
uint32_t kvp_payload_lowest(const struct kvp_space_canon *canon);
/*
 * The lowest width in which neither keys nor values of the space take fewer bytes than they would in these codecs.
 * -ERANGE: its floor takes more than one of them; -EINVAL: one does not take the space's planes, or is none that a floor may be.
 */
int kvp_payload_width_of(const struct kvp_space_canon *canon, uint32_t codec_k, uint32_t codec_v,
	uint32_t *ret_width);
/*
 * Blocks with a token at that position of their sequence or a later one cannot be coded as the floor says, if that needs a
 * calibration: no RoPE is known there. UINT64_MAX: all can.
 */
uint64_t kvp_payload_positions(const struct kvp_space_canon *canon);
/* kvp_block_layout() of a width. */
int kvp_payload_layout(
	const struct kvp_space_canon *canon, uint32_t width, struct kvp_block_layout *ret_layout);

/* ---- calibrations ---------------------------------------------------------------------------- */

/* Do blocks of the space need a calibration to be coded as its floor says? */
int kvp_payload_calibrated(const struct kvp_space_canon *canon);

/*
 * Is the calibration one for such a space: of its model, whose layers have those heads, dims and RoPE, with an entry for each
 * plane that needs one? NULL: yes; else what is wrong, in a few words that live for ever. Any description, judged or not.
 */
const char *kvp_payload_calib_wrong(
	const struct kvp_space_canon *canon, const struct kvp_nuq_set *set);
/* Has the layout's planes use it, which is right for the space and lives as long as the layout is used. */
void kvp_payload_calib_give(const struct kvp_space_canon *canon, const struct kvp_nuq_set *set,
	struct kvp_block_layout *layout);

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Bytes of scratch, aligned to 64, that the functions below need for one layer of such blocks. */
size_t kvp_payload_scratch(const struct kvp_block_layout *layout);

/* Elements of a layer, [head][token][channel]; NULL where there is no such plane. */
struct kvp_payload_layer {
	const void *k, *v;
};

/*
 * Decodes a layer of a coded payload of `bytes` bytes into scratch; what it is in natively is not
 * copied. The payload may be hostile, as kvp_plane_decode() has it, whose errors these are; -EBADMSG
 * also where it is too short.
 */
int kvp_payload_decode(const struct kvp_kernels *k, const struct kvp_block_layout *layout,
	uint32_t layer, const void *payload, uint64_t bytes, void *scratch,
	struct kvp_payload_layer *ret_layer);

/*
 * Codes a whole block anew: from one layout of a space into another, whose bytes dst has room for
 * (aligned to 64); `to` is a coded one. Planes whose codec stays keep their bytes; others are coded
 * from what they decode to. What lies between planes is written as zeros. On failure dst holds anything.
 */
int kvp_payload_recode(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const void *src, const struct kvp_block_layout *to, void *dst, void *scratch);

/*
 * Bits of a block's tokens, 2, 3, 4 or 8 each, in the planes of keys and of values whose codec has a mean. What one
 * has already is never raised. NULL: the mean is spread evenly.
 */
struct kvp_payload_tokens {
	const uint8_t *bits[2]; /* KVP_PLANE_K, KVP_PLANE_V; tokens of the layout */
	uint32_t position;      /* of the block's first token, for codecs that take RoPE off keys */
};

/*
 * The same with what is known of the block's tokens; `tokens` may be NULL. Tokens of such planes that have the same bits on both sides
 * keep their codes. -EINVAL also where the bits of a plane's tokens add up to more than its mean.
 */
int kvp_payload_recode_tokens(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const void *src, const struct kvp_block_layout *to, void *dst,
	const struct kvp_payload_tokens *tokens, void *scratch);

/*
 * The bits of the tokens in the first plane of the kind whose codec has a mean; of a payload that is coded.
 * -ENOENT: there is no such plane; -EBADMSG: the payload is not one.
 */
int kvp_payload_token_bits(const struct kvp_block_layout *layout, const void *payload,
	uint32_t kind, uint8_t *ret_bits);
/* Bits that they may add up to: of the tokens of such a plane; 0: the layout has none of this kind. */
uint32_t kvp_payload_token_budget(const struct kvp_block_layout *layout, uint32_t kind);

/* ---- errors ---------------------------------------------------------------------------------- */

/* The error of a head is the sum of (x - x')^2 over its tokens and channels, divided by that of x^2. */
struct kvp_payload_error {
	uint32_t heads;  /* that were compared: coded ones, of keys and of values */
	uint32_t within; /* of them, those whose error is at most the limit of their kind */
	double worst;    /* the largest error, as a multiple of that limit */
};

/*
 * Decodes a layer of a coded payload and compares it with the native one that it was coded from. limit:
 * of keys and of values, > 0. Where tokens have bits of their own, the limit is that of tokens in 2 bits, and a head's
 * is what its tokens may lose together, each by its bits. Elements that are not finite count for nothing, and so does a head that
 * is all zeros. Errors as kvp_payload_decode(); -EINVAL also for layouts that do not go together.
 */
int kvp_payload_compare(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const void *src, const struct kvp_block_layout *to, const void *coded, uint32_t layer,
	void *scratch, const double limit[2], struct kvp_payload_error *ret_error);

/* Bytes of scratch, aligned to 64, that kvp_payload_golden() needs. */
size_t kvp_payload_golden_scratch(const struct kvp_block_layout *layout);

/*
 * The golden value of a coded layout's keys or values: the mean error of a head of (nearly) normal
 * numbers, in the first plane of that kind that is coded, with all tokens in 2 bits where they have bits of
 * their own. Of a calibrated codec, which is for other numbers, that of tq, or asym, of as many bits. The same whenever it is asked for. -ENOENT:
 * none is coded; -ENOSPC: a plane's payload is larger than its elements.
 */
int kvp_payload_golden(const struct kvp_kernels *k, const struct kvp_block_layout *layout,
	uint32_t kind, void *scratch, double *ret_error);

#ifdef __cplusplus
}
#endif
#endif
