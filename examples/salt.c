/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One model, requests with different adapters: the same prompt is cached once for each, and never found
 * for another. Run it twice: the second run finds what the first one left.
 *
 *	cc salt.c $(pkg-config --cflags --libs kvpool) && ./a.out
 */
#include <errno.h>
#include <kvpool.h>
#include <stdio.h>
#include <string.h>

#define HEADS  2
#define DIM    32
#define PROMPT 192

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* What a request runs with besides its tokens: an engine would hash it, with SHA-256 say. */
static void salt_of(const char *adapter, uint8_t salt[32])
{
	memset(salt, 0, 32);
	memcpy(salt, adapter, strlen(adapter));
}

/* Stands for a model with an adapter: no two of them compute the same. */
static void compute(const char *adapter, float *kv, size_t from, size_t to)
{
	for (size_t t = from; t < to; t++)
		for (size_t i = 0; i < (size_t)2 * HEADS * DIM; i++)
			kv[t * 2 * HEADS * DIM + i] = (float)(t + i) + (float)adapter[0];
}

static int request(struct kvp_space *model, const char *adapter, const uint32_t *tokens)
{
	static float kv[PROMPT * 2 * HEADS * DIM], expected[PROMPT * 2 * HEADS * DIM];
	struct kvp_put_opts put = { .size = sizeof(put), .timeout_ms = 5000 };
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	struct kvp_space *space;
	struct kvp_prefix *match;
	int64_t have, stored = 0;
	uint8_t salt[32];
	uint64_t bytes;
	int r;

	salt_of(adapter, salt);
	r = kvp_space_salted(model, salt, &space);
	if (r < 0)
		return fail("kvp_space_salted", r);
	kvp_view_dense(space, KVP_VIEW_NCLD, kv, PROMPT, &plane, &bytes);
	r = kvp_match(space, tokens, PROMPT, NULL, &match);
	if (r < 0)
		return fail("kvp_match", r);
	have = kvp_get(match, 0, PROMPT, &view, 0);
	kvp_release(match);
	if (have < 0)
		return fail("kvp_get", have);
	compute(adapter, kv, (size_t)have, PROMPT);
	compute(adapter, expected, 0, PROMPT);
	if (memcmp(kv, expected, sizeof(kv)) != 0)
		return fail("what the cache gave", -EBADMSG);
	stored = kvp_put(space, tokens, PROMPT, 0, &view, &put, NULL);
	if (stored < 0)
		return fail("kvp_put", stored);
	printf("%s: %lld of %d tokens were cached\n", *adapter ? adapter : "no adapter",
		(long long)have, PROMPT);
	kvp_space_close(space);
	return 0;
}

int main(void)
{
	static const char *const adapters[] = { "", "legal-v2", "poems" };
	struct kvp_layer layer = { .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = "salt-example",
		.dtype = KVP_DTYPE_F32,
		.n_layers = 1,
		.layers = &layer,
	};
	uint32_t tokens[PROMPT];
	struct kvp_client *client;
	struct kvp_space *model;
	int r;

	for (uint32_t t = 0; t < PROMPT; t++)
		tokens[t] = t * 31 % 1000;
	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &desc, KVP_DEFAULT_TIMEOUT, &model);
	for (size_t i = 0; r == 0 && i < sizeof(adapters) / sizeof(adapters[0]); i++)
		r = request(model, adapters[i], tokens);
	if (r < 0)
		fail("kvp_space_open", r);
	kvp_close(client);
	return r != 0;
}
