/* SPDX-License-Identifier: Apache-2.0 */
/* One sequence: a prompt through model and cache, chunk by chunk, then token by token. */
#include "tools/kvrun/kvr_seq.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct kvr_seq {
	const struct kvr_model *model;
	struct kvr_kv *kv;
	const struct kvr_substitute *substitute;
	struct kvr_pass *pass;
	uint32_t *tokens; /* [context] */
	uint32_t n;       /* of them have keys and values, */
	uint32_t reused;  /* so many of these from the store */
};

int kvr_seq_new(const struct kvr_model *model, struct kvr_kv *kv,
	const struct kvr_substitute *substitute, struct kvr_seq **ret_seq)
{
	struct kvr_geom g = kvr_model_geom(model, kv->geom.block_tokens, kv->geom.dtype);
	struct kvr_seq *s;
	int r;

	if (g.layers != kv->geom.layers || g.kv_dim != kv->geom.kv_dim)
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->model = model;
	s->kv = kv;
	s->substitute = substitute;
	s->tokens = calloc(model->config.context, sizeof(*s->tokens));
	r = s->tokens ? kvr_pass_new(model, kv->geom.block_tokens, &s->pass) : -ENOMEM;
	if (r < 0) {
		kvr_seq_free(s);
		return r;
	}
	*ret_seq = s;
	return 0;
}

struct kvr_seq *kvr_seq_free(struct kvr_seq *s)
{
	if (s) {
		kvr_pass_free(s->pass);
		free(s->tokens);
		free(s);
	}
	return NULL;
}

void kvr_seq_watch(struct kvr_seq *s, const struct kvr_watch *watch)
{
	kvr_pass_watch(s->pass, watch);
}

/*
 * Runs s->tokens[s->n .. s->n + n), inside one block, and seals that block if this completes it.
 * The logits point into the workspace: a pass that only recomputes asks for none and leaves them.
 */
static int advance(struct kvr_seq *s, uint32_t n, enum kvr_logits want, const float **ret_logits)
{
	uint32_t size = s->kv->geom.block_tokens;
	uint32_t index = s->n / size, start = index * size;
	int whole = n == size;
	int r = 0;

	if (s->n == start)
		r = s->kv->ops->grow(s->kv, index);
	if (r == 0)
		r = kvr_pass_run(
			s->pass, s->kv, s->substitute, s->n, s->tokens + s->n, n, want, ret_logits);
	if (r < 0)
		return r;
	s->n += n;
	if (s->n < start + size)
		return 0;
	if (!whole)
		r = kvr_pass_run(s->pass, s->kv, s->substitute, start, s->tokens + start, size,
			KVR_LOGITS_NONE, NULL);
	if (r == 0)
		s->kv->ops->seal(s->kv, index, s->tokens + start, size);
	return r;
}

/* Takes over the prompt; at most `limit` of its tokens from the store. */
static int start(struct kvr_seq *s, const uint32_t *tokens, uint32_t n, uint32_t limit)
{
	uint32_t reused;
	int r;

	if (n == 0)
		return -EINVAL;
	if (n > s->model->config.context)
		return -E2BIG;
	for (uint32_t i = 0; i < n; i++)
		if (tokens[i] >= s->model->config.vocab)
			return -EINVAL;
	s->n = 0;
	r = s->kv->ops->start(s->kv, tokens, n, limit, &reused);
	if (r < 0)
		return r;
	memmove(s->tokens, tokens, n * sizeof(*tokens));
	s->n = s->reused = reused;
	return 0;
}

/* How many tokens the next chunk of a prompt of `n` has. */
static uint32_t chunk(const struct kvr_seq *s, uint32_t n)
{
	uint32_t room = s->kv->geom.block_tokens - s->n % s->kv->geom.block_tokens;

	return n - s->n < room ? n - s->n : room;
}

/* The rest of s->tokens[0..n). `want`: of the last one. */
static int advance_to(struct kvr_seq *s, uint32_t n, enum kvr_logits want, const float **ret_logits)
{
	int r = 0;

	while (s->n < n && r == 0) {
		uint32_t m = chunk(s, n);

		r = advance(s, m, s->n + m == n ? want : KVR_LOGITS_NONE, ret_logits);
	}
	return r;
}

/* Something that came from the store cannot be read after all: it is a miss, and all is computed. */
static int was_a_miss(const struct kvr_seq *s, int r)
{
	return r == -EBADMSG && s->reused;
}

int kvr_seq_prompt(struct kvr_seq *s, const uint32_t *tokens, uint32_t n,
	struct kvr_prefill *ret_prefill, const float **ret_logits)
{
	int r = start(s, tokens, n, n ? n - 1 : 0);

	if (r == 0)
		r = advance_to(s, n, KVR_LOGITS_LAST, ret_logits);
	if (was_a_miss(s, r)) {
		r = start(s, tokens, n, 0);
		if (r == 0)
			r = advance_to(s, n, KVR_LOGITS_LAST, ret_logits);
	}
	if (r == 0)
		*ret_prefill = (struct kvr_prefill){ s->reused, n - s->reused };
	return r;
}

int kvr_seq_next(struct kvr_seq *s, uint32_t token, const float **ret_logits)
{
	uint32_t n = s->n;
	int r;

	if (s->n >= s->model->config.context)
		return -E2BIG;
	if (token >= s->model->config.vocab || s->n == 0)
		return -EINVAL;
	s->tokens[n] = token;
	r = advance(s, 1, KVR_LOGITS_LAST, ret_logits);
	if (was_a_miss(s, r)) {
		r = start(s, s->tokens, n, 0);
		s->tokens[n] = token;
		if (r == 0)
			r = advance_to(s, n, KVR_LOGITS_NONE, NULL);
		if (r == 0)
			r = advance(s, 1, KVR_LOGITS_LAST, ret_logits);
	}
	return r;
}

int kvr_seq_score(struct kvr_seq *s, const uint32_t *tokens, uint32_t n, kvr_score_fn fn, void *arg)
{
	int r = start(s, tokens, n, 0);

	while (r == 0 && s->n < n) {
		uint32_t first = s->n, m = chunk(s, n);
		const float *logits;

		r = advance(s, m, KVR_LOGITS_ALL, &logits);
		if (r == 0)
			r = fn(arg, first, m, logits);
	}
	return r;
}

void kvr_seq_end(struct kvr_seq *s)
{
	uint32_t size = s->kv->geom.block_tokens, start = s->n / size * size;

	if (s->n > start)
		s->kv->ops->seal(s->kv, s->n / size, s->tokens + start, s->n - start);
	s->n = 0;
	s->kv->ops->end(s->kv);
}
