/* SPDX-License-Identifier: Apache-2.0 */
/* The next token: the most probable one, or drawn from the most probable ones. */
#include "tools/kvrun/kvr_sample.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct kvr_choice {
	uint32_t token;
	float p;
};

int kvr_sampler_init(
	struct kvr_sampler *s, uint32_t vocab, float temperature, float top_p, uint64_t seed)
{
	if (!(temperature >= 0 && isfinite(temperature)) || !(top_p > 0 && top_p <= 1))
		return -EINVAL;
	*s = (struct kvr_sampler){
		.temperature = temperature,
		.top_p = top_p,
		.state = seed ? seed : UINT64_C(0x9e3779b97f4a7c15),
		.vocab = vocab,
		.choice = calloc(vocab, sizeof(*s->choice)),
	};
	return s->choice ? 0 : -ENOMEM;
}

void kvr_sampler_done(struct kvr_sampler *s)
{
	free(s->choice);
	s->choice = NULL;
}

/* xorshift64* (Vigna 2016), upper half, as a number in [0, 1). */
static float uniform(struct kvr_sampler *s)
{
	s->state ^= s->state >> 12;
	s->state ^= s->state << 25;
	s->state ^= s->state >> 27;
	return (float)((s->state * UINT64_C(0x2545f4914f6cdd1d)) >> 40) * 0x1p-24f;
}

static int by_probability(const void *a, const void *b)
{
	const struct kvr_choice *x = a, *y = b;

	if (x->p > y->p || x->p < y->p)
		return x->p > y->p ? -1 : 1;
	return (x->token > y->token) - (x->token < y->token);
}

uint32_t kvr_argmax(const float *values, uint32_t n)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < n; i++)
		if (values[i] > values[best])
			best = i;
	return best;
}

/* The smallest set of most probable tokens beyond top_p to the front; returns their number. */
static uint32_t cut(struct kvr_sampler *s, float *ret_sum)
{
	float sum = 0;
	uint32_t n = 0;

	if (s->top_p < 1)
		qsort(s->choice, s->vocab, sizeof(*s->choice), by_probability);
	while (n < s->vocab && (s->top_p >= 1 || sum <= s->top_p))
		sum += s->choice[n++].p;
	*ret_sum = sum;
	return n;
}

uint32_t kvr_sample(struct kvr_sampler *s, const float *logits)
{
	uint32_t top = kvr_argmax(logits, s->vocab), n;
	float sum = 0, coin, upto = 0;

	if (s->temperature <= 0)
		return top;
	for (uint32_t i = 0; i < s->vocab; i++) {
		float p = expf((logits[i] - logits[top]) / s->temperature);

		s->choice[i] = (struct kvr_choice){ i, p };
		sum += p;
	}
	for (uint32_t i = 0; i < s->vocab; i++)
		s->choice[i].p /= sum;
	n = cut(s, &sum);
	coin = uniform(s) * sum;
	for (uint32_t i = 0; i < n; i++) {
		upto += s->choice[i].p;
		if (coin < upto)
			return s->choice[i].token;
	}
	return s->choice[n - 1].token; /* rounding left the coin beyond the sum */
}
