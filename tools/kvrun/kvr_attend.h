/* SPDX-License-Identifier: Apache-2.0 */
/* One layer's attention of a run of queries over blocks; private to the forward pass. */
#ifndef KVR_ATTEND_H
#define KVR_ATTEND_H

#include "kernels/kvp_attend.h"
#include "tools/kvrun/kvr_forward.h"

struct kvr_attend {
	uint32_t heads, kv_heads, head_dim;
	uint32_t block_tokens; /* also the most queries of a run */
	/* workspace, rows = queries * heads of one KV head */
	float *q;           /* [kv_head][rows][head_dim], scaled by head_dim^-1/2 */
	float *acc;         /* [kv_head][rows][head_dim] */
	float *max, *sum;   /* [kv_head][rows] */
	float *score;       /* [rows][block_tokens] */
	float *score_coded; /* [rows][block_tokens] */
	float *tile;        /* [block_tokens][head_dim] */
	float *arena;
	/* for blocks in a codec; made when the first one is met */
	void *decoded[2]; /* K and V of one layer of one block, as they lie in a native one */
	struct kvp_attend_part *parts;
	uint32_t parts_room;
	void *fused; /* workspace of kvp_attend() */
	size_t fused_bytes;
	/* for stores that ask what is attended to; likewise */
	struct kvp_kernels *kernels;
	float *mass; /* [kv_head][mass_tokens], then [heads * head_dim] */
	uint32_t mass_tokens;
};

/* -ENOMEM. kvr_attend_done accepts a failed or zeroed one. */
int kvr_attend_init(struct kvr_attend *a, const struct kvr_config *config, uint32_t block_tokens);
void kvr_attend_done(struct kvr_attend *a);

/*
 * Causal attention in `layer` of `n` queries at positions from `first` on, over everything up to
 * and including themselves. `q` and `out` are [n][heads][head_dim]; they may be the same memory.
 * Over blocks in a codec one query attends as they are; several, whose products outweigh it, over
 * the decoded values of each block. A payload that cannot be read is passed over for the native
 * block and counted, if there is a native block. Returns 0, -ENOMEM, or the error of
 * substitute->read or kvp_plane_decode().
 */
int kvr_attend_run(struct kvr_attend *a, struct kvr_kv *kv, const struct kvr_substitute *substitute,
	uint32_t layer, uint32_t first, uint32_t n, const float *q, float *out);

/* The same of one query by kvp_attend(), for a store with coding. Its errors too. */
int kvr_attend_fused(struct kvr_attend *a, struct kvr_kv *kv, uint32_t layer, uint32_t position,
	const float *q, float *out);

/*
 * Tells a store that asks what share of the weights of one query its blocks get. By kvp_attend(), whose result
 * is dropped. Its errors and -ENOMEM: the store hears nothing.
 */
int kvr_attend_shares(
	struct kvr_attend *a, struct kvr_kv *kv, uint32_t layer, uint32_t position, const float *q);

#endif
