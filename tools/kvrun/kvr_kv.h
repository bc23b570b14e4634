/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the keys and values of one sequence live. The engine sees blocks of `block_tokens` tokens,
 * each one base address in the layout LCND, [layers][K, V][tokens][kv_heads * head_dim], and does
 * not know whether the bytes are its own heap or kvpool's shared memory. Keys are stored after
 * RoPE.
 *
 * What a block holds once it is sealed is defined by the model and the tokens up to its end alone:
 * it is the outcome of one pass over the whole block (see kvr_seq.h). That is why another engine
 * may take it over and still produce the same bits.
 */
#ifndef KVR_KV_H
#define KVR_KV_H

#include "kernels/kvp_attend.h"
#include "kernels/kvp_codec.h"
#include "tools/kvrun/kvr_half.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KVR_BLOCK_TOKENS_MIN     16u
#define KVR_BLOCK_TOKENS_MAX     512u
#define KVR_BLOCK_TOKENS_DEFAULT 64u

static_assert(KVR_F32 == KVP_DTYPE_F32 && KVR_F16 == KVP_DTYPE_F16 && KVR_BF16 == KVP_DTYPE_BF16,
	"planes have the same numbers");

struct kvr_geom {
	uint32_t layers;
	uint32_t kv_dim; /* kv_heads * head_dim */
	uint32_t block_tokens;
	enum kvr_dtype dtype; /* of what is stored */
};

static inline int kvr_geom_valid(const struct kvr_geom *g)
{
	return g->layers && g->kv_dim && g->block_tokens >= KVR_BLOCK_TOKENS_MIN &&
	       g->block_tokens <= KVR_BLOCK_TOKENS_MAX;
}

/* Bytes of one token's K or V in one layer. */
static inline size_t kvr_row_bytes(const struct kvr_geom *g)
{
	return (size_t)g->kv_dim * kvr_dtype_bytes(g->dtype);
}

/* Bytes of a block, whatever the number of its tokens. */
static inline size_t kvr_block_bytes(const struct kvr_geom *g)
{
	return 2 * (size_t)g->layers * g->block_tokens * kvr_row_bytes(g);
}

/* Offset in a block of token `token`'s K (`value` 0) or V (1) in `layer`. */
static inline size_t kvr_row_offset(
	const struct kvr_geom *g, uint32_t layer, uint32_t value, uint32_t token)
{
	return (((size_t)layer * 2 + value) * g->block_tokens + token) * kvr_row_bytes(g);
}

struct kvr_kv;

/*
 * One sequence at a time, one thread. Block indices count from 0 at the sequence's start. A store
 * that others share never fails a sequence because of them: it goes on in private memory.
 */
struct kvr_kv_ops {
	/*
	 * Starts a new sequence, dropping the previous one. Of the `n` tokens of the prompt the
	 * first *ret_reused, at most `limit`, need not be computed: their blocks can be read at
	 * once. A multiple of block_tokens, unless partial blocks were asked for at creation; then
	 * the last block holds the remainder and goes on to be written. -ENOMEM; errors of attend.
	 */
	int (*start)(struct kvr_kv *kv, const uint32_t *tokens, uint32_t n, uint32_t limit,
		uint32_t *ret_reused);

	/*
	 * Makes block `index` (the next one) present and writable until it is sealed. -ENOMEM;
	 * errors of attend.
	 */
	int (*grow)(struct kvr_kv *kv, uint32_t index);

	/*
	 * Base address of a present block, valid until the sequence ends. NULL: the block is there
	 * in a codec only, which no block is before it is sealed, or the store has `attend`.
	 */
	void *(*block)(struct kvr_kv *kv, uint32_t index);

	/*
	 * NULL, or the store's blocks are no memory of this process, and it attends over them
	 * itself: puts k and v [n][kv_dim] of positions first..first + n, which lie in one present
	 * block, there, rounded to the stored type, and attends causally with q [n][heads *
	 * head_dim] over all up to there, into `out`, which may be q. With head_dim^-1/2 as the
	 * scale. -ENODEV: what they lie on is lost; -EIO, -ENOMEM: it refused.
	 */
	int (*attend)(struct kvr_kv *kv, uint32_t layer, uint32_t first, uint32_t n, const float *q,
		const float *k, const float *v, float *out);

	/*
	 * K and V of a layer of a sealed block, which hold block_tokens tokens of all KV heads, each head's in a
	 * row where they are native; valid until the sequence ends. False: the block is native. Called if there
	 * is `coding`.
	 */
	bool (*planes)(struct kvr_kv *kv, uint32_t index, uint32_t layer,
		struct kvp_attend_plane ret_plane[2]);

	/*
	 * NULL, or 1: the store wants to know what the query at `position`, which is one alone, attends to. Then it
	 * hears for each layer what share of the weights each of the n tokens up to there got, the mean over
	 * heads. Asked and told before the query attends; what comes of it changes no result.
	 */
	int (*asks)(struct kvr_kv *kv, uint32_t position);
	void (*attended)(struct kvr_kv *kv, uint32_t layer, const float *share, uint32_t n);

	/*
	 * Block `index` is complete, its `n` token ids are `tokens`, and it is not written again:
	 * a shared store publishes it. Fewer than block_tokens only in the sequence's last call.
	 */
	void (*seal)(struct kvr_kv *kv, uint32_t index, const uint32_t *tokens, uint32_t n);

	/*
	 * The sequence is over and no block of it is touched again: what was borrowed from a shared
	 * store goes back. `start` does the same for a sequence that was not ended.
	 */
	void (*end)(struct kvr_kv *kv);

	/* Accepts a store on which `start` has not been called. */
	void (*free)(struct kvr_kv *kv);
};

/* For a store that has sealed blocks in a codec: each layer's K and V of all KV heads is one plane. */
struct kvr_coding {
	const struct kvp_kernels *kernels;
	/* Attention that was not in place, blocks left native, payloads passed over for native bytes or not readable. */
	uint64_t errors;
};

struct kvr_kv {
	const struct kvr_kv_ops *ops;
	struct kvr_geom geom;
	struct kvr_coding *coding; /* NULL: all blocks are native */
};

/* Private heap memory: reuses nothing, publishes nothing. -EINVAL (geometry), -ENOMEM. */
int kvr_kv_heap_new(const struct kvr_geom *geom, struct kvr_kv **ret_kv);

/* Accepts NULL; returns NULL. */
struct kvr_kv *kvr_kv_free(struct kvr_kv *kv);

/* 64-byte aligned memory for one block, free() it; NULL without memory. */
void *kvr_block_alloc(const struct kvr_geom *geom);

#endif
