/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plain value types and numbers that every layer shares: the shared-memory ABI, policies, the
 * daemon, the library. Nothing here is an object, a function with state, or needs more than a
 * freestanding C11 or C++11 compiler; policy/ includes this header and no other of shm/.
 */
#ifndef KVP_TYPES_H
#define KVP_TYPES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A token id as the engine counts it. 32 bits hold every vocabulary in use. */
typedef uint32_t kvp_token;

/* Index of a block descriptor inside one tenant's catalog. */
typedef uint32_t kvp_block_id;
#define KVP_BLOCK_NONE UINT32_C(0xffffffff)

/*
 * Chained digest of (space root, parent's key, the block's token ids): XXH3-128, seed 0.
 * All zero never names a block.
 */
struct kvp_key {
	uint64_t lo;
	uint64_t hi;
};

static inline int kvp_key_equal(struct kvp_key a, struct kvp_key b)
{
	return a.lo == b.lo && a.hi == b.hi;
}

/*
 * Where a payload lies. The numbers are ABI. DRAM is 0 because its payload shares the first cache
 * line of a descriptor; the order from fast to slow is VRAM, DRAM, STORE, RECIPE.
 */
#define KVP_TIER_DRAM     0u
#define KVP_TIER_VRAM     1u
#define KVP_TIER_STORE    2u
#define KVP_TIER_PAYLOADS 3u /* tiers that hold bytes */
#define KVP_TIER_RECIPE   3u /* token ids only */

/* How a payload is coded. Further ids belong to kernels/kvp_codec.h; 0 is fixed here. */
#define KVP_CODEC_NATIVE 0u

/* Element type of a space's keys and values. */
#define KVP_DTYPE_F32  1u
#define KVP_DTYPE_F16  2u
#define KVP_DTYPE_BF16 3u
#define KVP_DTYPE_F8   4u /* e4m3 or e5m2: opaque bytes to the native codec */

/* Bytes of one element; 0: no such type. */
static inline uint32_t kvp_dtype_bytes(uint32_t dtype)
{
	switch (dtype) {
	case KVP_DTYPE_F32:
		return 4;
	case KVP_DTYPE_F16:
	case KVP_DTYPE_BF16:
		return 2;
	case KVP_DTYPE_F8:
		return 1;
	default:
		return 0;
	}
}

/* Order of a block's elements; see kvpool.h for the address formula. */
#define KVP_LAYOUT_NCLD   0u /* [tokens][K,V][layers][heads * dim] */
#define KVP_LAYOUT_LCND   1u /* [layers][K,V][tokens][heads * dim] */
#define KVP_LAYOUT_OPAQUE 2u /* the engine's own affair */

/* Keys that name blocks instead of token ids: multiples of a token id's size. */
#define KVP_KEY_BYTES_MIN 16u
#define KVP_KEY_BYTES_MAX 64u

#define KVP_BLOCK_TOKENS_MIN     16u
#define KVP_BLOCK_TOKENS_MAX     512u
#define KVP_BLOCK_TOKENS_DEFAULT 64u
#define KVP_MAX_LAYERS           256u

#ifdef __cplusplus
}
#endif
#endif
