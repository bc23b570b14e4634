/* SPDX-License-Identifier: Apache-2.0 */
/* One layer's attention of a run of queries over blocks; private to the forward pass. */
#ifndef KVR_ATTEND_H
#define KVR_ATTEND_H

#include "tools/kvrun/kvr_forward.h"

struct kvr_attend {
	uint32_t heads, kv_heads, head_dim;
	uint32_t block_tokens; /* also the most queries of a run */
	/* workspace, rows = queries * heads of one KV head */
	float *q;           /* [rows][head_dim], scaled by head_dim^-1/2 */
	float *acc;         /* [rows][head_dim] */
	float *max, *sum;   /* [rows] */
	float *score;       /* [rows][block_tokens] */
	float *score_coded; /* [rows][block_tokens] */
	float *tile;        /* [block_tokens][head_dim] */
	float *arena;
};

/* -ENOMEM. kvr_attend_done accepts a failed or zeroed one. */
int kvr_attend_init(struct kvr_attend *a, const struct kvr_config *config, uint32_t block_tokens);
void kvr_attend_done(struct kvr_attend *a);

/*
 * Causal attention in `layer` of `n` queries at positions from `first` on, over everything up to
 * and including themselves. `q` and `out` are [n][heads][head_dim]; they may be the same memory.
 * What substitute->read returned, else 0.
 */
int kvr_attend_run(struct kvr_attend *a, struct kvr_kv *kv, const struct kvr_substitute *substitute,
	uint32_t layer, uint32_t first, uint32_t n, const float *q, float *out);

#endif
