/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies in, copies out: what an engine does that keeps its KV cache in memory of its own and uses
 * kvpool behind it. Run it twice: the second run finds what the first one left.
 *
 *	cc put_get.c $(pkg-config --cflags --libs kvpool) && ./a.out
 */
#include <errno.h>
#include <kvpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS 2
#define HEADS  4
#define DIM    64
#define PROMPT 300

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* Stands for a model: keys and values of one token. */
static void compute(const uint32_t *tokens, size_t from, size_t to, float *kv, size_t per_token)
{
	for (size_t t = from; t < to; t++)
		for (size_t i = 0; i < per_token; i++)
			kv[t * per_token + i] = (float)tokens[t] + (float)i / 1000;
}

static int run(struct kvp_space *space)
{
	enum { PER_TOKEN = 2 * LAYERS * HEADS * DIM };
	static float kv[PROMPT * PER_TOKEN], expected[PROMPT * PER_TOKEN];
	struct kvp_put_opts put = { .size = sizeof(put), .flags = KVP_PUT_PARTIAL };
	struct kvp_view_plane planes[LAYERS];
	struct kvp_view view = { .size = sizeof(view), .planes = planes };
	uint32_t tokens[PROMPT];
	struct kvp_prefix *match;
	uint64_t bytes;
	int64_t have, stored, kept;
	int r, why;

	for (uint32_t t = 0; t < PROMPT; t++)
		tokens[t] = t * t % 1000;
	/* [token][K,V][layer][head][dim] */
	r = kvp_view_dense(space, KVP_VIEW_NCLD, kv, PROMPT, planes, &bytes);
	if (r < 0 || bytes != sizeof(kv))
		return fail("kvp_view_dense", r);

	r = kvp_match(space, tokens, PROMPT, NULL, &match);
	if (r < 0)
		return fail("kvp_match", r);
	have = kvp_get(match, 0, PROMPT, &view, KVP_GET_VERIFY);
	kvp_release(match);
	if (have < 0)
		return fail("kvp_get", have);

	/* Only the tokens that were not there have to be computed. */
	compute(tokens, (size_t)have, PROMPT, kv, PER_TOKEN);
	compute(tokens, 0, PROMPT, expected, PER_TOKEN);
	if (memcmp(kv, expected, sizeof(kv)) != 0)
		return fail("what the cache gave", -EBADMSG);

	put.timeout_ms = 5000;
	stored = kvp_put(space, tokens, PROMPT, 0, &view, &put, NULL);
	if (stored < 0)
		return fail("kvp_put", stored);
	/* Handed over; an engine goes on here. What has become of it can be asked for later. */
	kept = kvp_put_outcome(space, tokens, PROMPT, 0, KVP_DEFAULT_TIMEOUT, &why);
	if (kept < 0)
		return fail("kvp_put_outcome", kept);
	printf("%lld of %d tokens were cached, %lld were handed over, %lld are there now%s%s\n",
		(long long)have, PROMPT, (long long)stored, (long long)kept, why ? ": " : "",
		why ? strerror(-why) : "");
	return 0;
}

int main(void)
{
	struct kvp_layer layers[LAYERS];
	struct kvp_space_desc model = {
		.size = sizeof(model),
		.model = "example",
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_NCLD,
		.n_layers = LAYERS,
		.layers = layers,
		.rope_pairing = KVP_ROPE_HALF_SPLIT,
		.rope_dim = DIM,
		.rope_theta = 10000,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	int r;

	for (uint32_t i = 0; i < LAYERS; i++)
		layers[i] = (struct kvp_layer){
			.index = i, .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM
		};
	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &model, KVP_DEFAULT_TIMEOUT, &space);
	if (r < 0) {
		kvp_close(client);
		return fail("kvp_space_open", r);
	}
	r = run(space);
	kvp_space_close(space);
	kvp_close(client);
	return r;
}
