/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass: a run of tokens that lies inside one block, against the keys and values of the
 * blocks before it. Most callers want kvr_seq.h instead, which cuts a sequence into such passes.
 *
 * Determinism. OpenBLAS runs on one thread, whatever the environment says. K and V of the run are
 * rounded to the stored type before any query reads them, the run's own included, and are read one
 * block at a time. A pass is thus a function of the model, of the stored bytes before the run, of
 * the tokens, and of where in its block the run begins and ends; not of how the stored bytes got
 * there. Two passes over equal input give equal bits on one machine. (Runs of different length over
 * the same tokens may differ in the last bits: OpenBLAS may sum in another order.)
 */
#ifndef KVR_FORWARD_H
#define KVR_FORWARD_H

#include "tools/kvrun/kvr_kv.h"
#include "tools/kvrun/kvr_model.h"

#include <stdint.h>

/* K or V of one layer and KV head in one block, as it lies in the store. */
struct kvr_plane {
	uint32_t layer;
	uint32_t value; /* 0: K, 1: V */
	uint32_t kv_head;
	uint32_t block;       /* index in the sequence */
	uint32_t tokens;      /* written so far, 1..block_tokens */
	uint32_t query;       /* position of the first query that will read it */
	const void *native;   /* of the first token */
	size_t stride;        /* bytes from token to token */
	enum kvr_dtype dtype; /* of `native` */
	uint32_t head_dim;
};

/*
 * Lets a caller put something else in the place of stored keys and values, for instance what a
 * codec made of them. A query at position p sees positions above p - window natively (1 is itself
 * alone) and what `read` supplied at all others. `read` is called from the pass, on its thread,
 * for each layer, K and V, KV head and block, whenever some query sees the block through it; with
 * a window of at least block_tokens that is only ever a complete block. It fills `dst`
 * [tokens][head_dim] with fp32, or returns a negative errno. With that the pass ends, or, if there
 * is a counter of errors, it counts one and reads what is stored instead. `native` may not be kept.
 */
struct kvr_substitute {
	uint32_t window;
	int (*read)(void *arg, const struct kvr_plane *plane, float *dst);
	void *arg;
	uint64_t *errors; /* NULL: an error ends the pass */
};

/* Workspace of one thread's passes; any number may exist for one model. */
struct kvr_pass;

/* `block_tokens` bounds the length of a run. Sets OpenBLAS to one thread. -EINVAL, -ENOMEM. */
int kvr_pass_new(const struct kvr_model *model, uint32_t block_tokens, struct kvr_pass **ret_pass);

/* Accepts NULL; returns NULL. */
struct kvr_pass *kvr_pass_free(struct kvr_pass *pass);

/*
 * Shows a caller the queries [n][heads * head_dim] of a run, in fp32 and before RoPE, from the pass and on
 * its thread, once for each layer. They may not be kept. NULL: nobody watches.
 */
struct kvr_watch {
	void (*queries)(void *arg, uint32_t layer, uint32_t first, uint32_t n, const float *q);
	void *arg;
};
void kvr_pass_watch(struct kvr_pass *pass, const struct kvr_watch *watch);

/* Which logits a pass computes: the classifier is a large part of a short pass. */
enum kvr_logits {
	KVR_LOGITS_NONE,
	KVR_LOGITS_LAST, /* [vocab] */
	KVR_LOGITS_ALL,  /* [n][vocab] */
};

/*
 * Runs tokens[0..n) at positions first..first + n of the sequence in `kv`, all of them in block
 * first / block_tokens, which must be present and writable, as all before it must be readable.
 * Writes their K and V. `substitute` may be NULL, and must be for a store with coding or an attend
 * of its own. *ret_logits, if logits were asked for, points into the workspace until the next call. -EINVAL: the run does
 * not fit block, context or vocabulary; what substitute->read or the store's attend returned.
 */
int kvr_pass_run(struct kvr_pass *pass, struct kvr_kv *kv, const struct kvr_substitute *substitute,
	uint32_t first, const uint32_t *tokens, uint32_t n, enum kvr_logits want,
	const float **ret_logits);

/* The geometry of a model's blocks. */
struct kvr_geom kvr_model_geom(
	const struct kvr_model *model, uint32_t block_tokens, enum kvr_dtype dtype);

#endif
