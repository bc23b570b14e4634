/* SPDX-License-Identifier: Apache-2.0 */
/* How well a model predicts a text. */
#ifndef KVR_PERPLEXITY_H
#define KVR_PERPLEXITY_H

#include "tools/kvrun/kvr_seq.h"

/* Natural logarithm of softmax(logits)[token], summed in double. */
double kvr_log_prob(const float *logits, uint32_t vocab, uint32_t token);

/*
 * Mean negative log-likelihood in nats per token over `windows` consecutive windows of `window`
 * tokens from the start of `tokens`. Each window is run on its own, with nothing put in front, and
 * each of its tokens predicts the next one, the last one the first of the window after it, so that
 * (windows * window + 1) tokens are looked at. Perplexity is exp of the result. -EINVAL when a count
 * is 0 or `n` tokens do not suffice; else as kvr_seq_score.
 */
int kvr_mean_nll(struct kvr_seq *seq, uint32_t vocab, const uint32_t *tokens, size_t n,
	uint32_t window, uint32_t windows, double *ret_nats);

#endif
