/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence of tokens being continued: a prompt, then one token at a time, over blocks that a
 * kvr_kv supplies.
 *
 * Warm equals cold, to the bit. The prompt is run in chunks that begin and end on block
 * boundaries; whole blocks found in the cache take the place of their chunks; the last block is
 * always computed, whole, since its logits are needed. When a block becomes complete in any other
 * way (token by token), it is computed once more in one pass before it is sealed. A sealed block is
 * thus always the outcome of one pass over all its tokens after sealed blocks, so its bytes depend
 * on the model and the tokens alone, and so do the logits after it. That repeated pass costs a
 * continuation the prefill of its own tokens. The only exception is the reuse of partial
 * blocks, an option of the store.
 */
#ifndef KVR_SEQ_H
#define KVR_SEQ_H

#include "tools/kvrun/kvr_forward.h"

#include <stddef.h>
#include <stdint.h>

struct kvr_seq;

struct kvr_prefill {
	uint32_t reused;   /* tokens whose keys and values came from the store */
	uint32_t computed; /* the others */
};

/*
 * `model`, `kv` and `substitute` (may be NULL, see kvr_pass_run()) must outlive the sequence; `kv`
 * is used by it alone. -EINVAL when `kv` has another geometry than the model, -ENOMEM.
 */
int kvr_seq_new(const struct kvr_model *model, struct kvr_kv *kv,
	const struct kvr_substitute *substitute, struct kvr_seq **ret_seq);

/* Accepts NULL; returns NULL. */
struct kvr_seq *kvr_seq_free(struct kvr_seq *seq);

/* kvr_pass_watch() of the sequence's passes; `watch` must outlive it, or be taken back with NULL. */
void kvr_seq_watch(struct kvr_seq *seq, const struct kvr_watch *watch);

/*
 * Forgets what was there and runs a prompt of `n` tokens. *ret_logits [vocab] are those of the
 * last token, valid until the next call. -E2BIG: n is beyond the model's context; -EINVAL: n is 0
 * or a token is beyond the vocabulary; -ENOMEM; what the substitute returned.
 */
int kvr_seq_prompt(struct kvr_seq *seq, const uint32_t *tokens, uint32_t n,
	struct kvr_prefill *ret_prefill, const float **ret_logits);

/*
 * Appends one token and gives the logits after it. Errors as above; -E2BIG: the context is full,
 * -EINVAL also: there is no prompt.
 */
int kvr_seq_next(struct kvr_seq *seq, uint32_t token, const float **ret_logits);

/*
 * Called for each chunk of kvr_seq_score with the logits [n][vocab] at positions first..first + n.
 * A negative return ends the run with it.
 */
typedef int (*kvr_score_fn)(void *arg, uint32_t first, uint32_t n, const float *logits);

/* Like kvr_seq_prompt, but gives the logits of every token; nothing is reused, for that. */
int kvr_seq_score(
	struct kvr_seq *seq, const uint32_t *tokens, uint32_t n, kvr_score_fn fn, void *arg);

/*
 * Ends the sequence: the store may keep the last, partial block, and what was borrowed from it goes
 * back. Only a new prompt can follow.
 */
void kvr_seq_end(struct kvr_seq *seq);

#endif
