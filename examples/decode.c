/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding: a sequence that grows token by token, whose blocks are stored as they become full. Each
 * step goes on from the prefix of the step before, so that only new tokens are looked at, and the
 * token ids stay the 64-bit ones that the engine has.
 *
 *	cc decode.c $(pkg-config --cflags --libs kvpool) && ./a.out
 */
#include <errno.h>
#include <kvpool.h>
#include <stdio.h>
#include <string.h>

#define DIM    16
#define T      16 /* tokens of a block */
#define PROMPT 40
#define STEPS  100

/* The engine's own cache, [token][K,V][dim], and the tokens of the sequence so far. */
struct sequence {
	int64_t tokens[PROMPT + STEPS];
	float kv[PROMPT + STEPS][2][DIM];
	uint32_t n;
	struct kvp_prefix *prefix; /* what of it is cached, as far as we know */
	uint32_t known;            /* tokens of that, whole blocks */
};

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* Stands for a model: the next token, and its keys and values. */
static void step(struct sequence *s)
{
	uint32_t t = s->n++;

	if (t >= PROMPT)
		s->tokens[t] = (s->tokens[t - 1] * 31 + 7) % 50000;
	for (int i = 0; i < DIM; i++) {
		s->kv[t][0][i] = (float)s->tokens[t];
		s->kv[t][1][i] = (float)i;
	}
}

/* Looks at the tokens after what is known, and goes on from the longer prefix. */
static int look(struct kvp_space *space, struct sequence *s)
{
	struct kvp_match_opts opts = {
		.size = sizeof(opts), .flags = KVP_MATCH_NO_TAIL, .after = s->prefix
	};
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_ids fresh = { s->tokens + s->known, s->n - s->known, KVP_IDS_I64 };
	struct kvp_prefix *longer;
	int r = kvp_match_ids(space, &fresh, &opts, &longer);

	if (r < 0)
		return r;
	kvp_release(s->prefix);
	s->prefix = longer;
	r = kvp_match_info(longer, &info);
	s->known = info.n_tokens / T * T;
	return r;
}

/* Stores what has become whole since; the bytes are taken when the call returns. */
static int store(struct kvp_space *space, struct sequence *s)
{
	struct kvp_put_opts opts = { .size = sizeof(opts), .timeout_ms = 5000, .after = s->prefix };
	struct kvp_ids fresh = { s->tokens + s->known, s->n - s->known, KVP_IDS_I64 };
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;
	int64_t r;

	r = kvp_view_dense(space, KVP_VIEW_NCLD, s->kv[s->known], fresh.n, &plane, &bytes);
	if (r == 0)
		r = kvp_put_ids(space, &fresh, 0, &view, &opts, NULL);
	/* No room is no error: what is not cached will be computed. */
	return r < 0 && r != -EAGAIN ? (int)r : look(space, s);
}

static int generate(struct kvp_space *space)
{
	static struct sequence s;
	uint32_t cached;
	int r;

	for (uint32_t t = 0; t < PROMPT; t++)
		s.tokens[t] = t * 11 + 1;
	while (s.n < PROMPT)
		step(&s);
	r = look(space, &s);
	cached = s.known;
	while (r == 0 && s.n < PROMPT + STEPS) {
		step(&s);
		if (s.n % T == 0)
			r = store(space, &s);
	}
	if (r == 0)
		printf("%u tokens were cached at the beginning, %u of %u are known to be now\n",
			cached, s.known, s.n);
	kvp_release(s.prefix);
	return r < 0 ? fail("generate", r) : 0;
}

int main(void)
{
	struct kvp_layer layer = { .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc model = {
		.size = sizeof(model),
		.model = "decode",
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_NCLD,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	int r;

	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &model, KVP_DEFAULT_TIMEOUT, &space);
	if (r < 0) {
		kvp_close(client);
		return fail("kvp_space_open", r);
	}
	r = generate(space);
	kvp_space_close(space);
	kvp_close(client);
	return r;
}
