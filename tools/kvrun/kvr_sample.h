/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Choosing the next token. Everything is a function of the logits, the parameters and the seed:
 * the same seed gives the same tokens.
 */
#ifndef KVR_SAMPLE_H
#define KVR_SAMPLE_H

#include <stdint.h>

struct kvr_sampler {
	float temperature; /* 0: the most probable token, seed and top_p unused */
	float top_p;       /* in (0, 1]; 1: the whole distribution */
	uint64_t state;    /* xorshift64*, never 0 */
	uint32_t vocab;
	struct kvr_choice *choice; /* workspace, one per token */
};

/* -EINVAL for a temperature that is negative or not finite or a top_p outside (0, 1], -ENOMEM. */
int kvr_sampler_init(
	struct kvr_sampler *sampler, uint32_t vocab, float temperature, float top_p, uint64_t seed);

void kvr_sampler_done(struct kvr_sampler *sampler);

/*
 * With p = softmax(logits / temperature): draws from the smallest set of most probable tokens whose
 * sum exceeds top_p. Equal logits are taken in order of their ids.
 */
uint32_t kvr_sample(struct kvr_sampler *sampler, const float *logits);

/* The index of the largest of `n` values, the first among equals. */
uint32_t kvr_argmax(const float *values, uint32_t n);

#endif
