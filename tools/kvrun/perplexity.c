/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of a text under a model. */
#include "tools/kvrun/kvr_perplexity.h"
#include "tools/kvrun/kvr_sample.h"

#include <errno.h>
#include <math.h>

double kvr_log_prob(const float *logits, uint32_t vocab, uint32_t token)
{
	double max = logits[kvr_argmax(logits, vocab)], sum = 0;

	for (uint32_t i = 0; i < vocab; i++)
		sum += exp(logits[i] - max);
	return logits[token] - max - log(sum);
}

struct nll {
	const uint32_t *tokens; /* of the window */
	uint32_t vocab;
	double sum;
};

static int add_chunk(void *arg, uint32_t first, uint32_t n, const float *logits)
{
	struct nll *s = arg;

	for (uint32_t i = 0; i < n; i++)
		s->sum -= kvr_log_prob(
			logits + (size_t)i * s->vocab, s->vocab, s->tokens[first + i + 1]);
	return 0;
}

int kvr_mean_nll(struct kvr_seq *seq, uint32_t vocab, const uint32_t *tokens, size_t n,
	uint32_t window, uint32_t windows, double *ret_nats)
{
	struct nll s = { .vocab = vocab };

	if (window == 0 || windows == 0 || n == 0 || (n - 1) / window < windows)
		return -EINVAL;
	for (uint32_t w = 0; w < windows; w++) {
		int r;

		s.tokens = tokens + (size_t)w * window;
		r = kvr_seq_score(seq, s.tokens, window, add_chunk, &s);
		if (r < 0)
			return r;
	}
	*ret_nats = s.sum / ((double)windows * window);
	return 0;
}
