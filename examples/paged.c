/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pages: an engine whose KV cache is a pool of pages and a block table for each request, as vLLM's
 * is. What it finds is copied into the request's pages, what it has computed is stored out of them,
 * each with one call for the whole request. Run it twice: the second run finds what the first left.
 *
 *	cc paged.c $(pkg-config --cflags --libs kvpool) && ./a.out
 */
#include <errno.h>
#include <kvpool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS      2
#define HEADS       4
#define DIM         64
#define PAGE_TOKENS 16
#define POOL_PAGES  64
#define PROMPT      300
#define PAGES       ((PROMPT + PAGE_TOKENS - 1) / PAGE_TOKENS)

/* A tensor [K,V][pages][page_tokens][heads][dim] for each layer. */
static float pool[LAYERS][2][POOL_PAGES][PAGE_TOKENS][HEADS][DIM];

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* Stands for a model: one element of the cache. */
static float element(uint32_t token, int layer, int value, int head, int channel)
{
	return (float)token + (float)(((layer * 2 + value) * HEADS + head) * DIM + channel) / 1024;
}

static void compute(const uint32_t *tokens, const int32_t *table, int from, int to)
{
	for (int t = from; t < to; t++)
		for (int l = 0; l < LAYERS; l++)
			for (int v = 0; v < 2; v++)
				for (int h = 0; h < HEADS; h++)
					for (int c = 0; c < DIM; c++)
						pool[l][v][table[t / PAGE_TOKENS]][t % PAGE_TOKENS]
						    [h][c] = element(tokens[t], l, v, h, c);
}

/* Does the page hold what the model would have computed? */
static int is_right(const uint32_t *tokens, const int32_t *table, int n)
{
	for (int t = 0; t < n; t++)
		for (int l = 0; l < LAYERS; l++)
			for (int v = 0; v < 2; v++)
				for (int h = 0; h < HEADS; h++)
					for (int c = 0; c < DIM; c++)
						if (pool[l][v][table[t / PAGE_TOKENS]]
							[t % PAGE_TOKENS][h][c] !=
							element(tokens[t], l, v, h, c))
							return 0;
	return 1;
}

static int serve(struct kvp_space *space, const uint32_t *tokens, const int32_t *table)
{
	struct kvp_put_opts put = { .size = sizeof(put), .timeout_ms = 5000 };
	struct kvp_view_plane planes[LAYERS];
	struct kvp_view view = {
		.size = sizeof(view),
		.planes = planes,
		.page_tokens = PAGE_TOKENS,
		.pool_pages = POOL_PAGES,
		.pages = { .ids = table, .n = PAGES, .type = KVP_IDS_I32 },
	};
	struct kvp_prefix *match;
	int64_t have, stored;
	uint32_t from;
	int r;

	for (int l = 0; l < LAYERS; l++)
		planes[l] = (struct kvp_view_plane){
			.k = pool[l][0],
			.v = pool[l][1],
			.k_page_stride = sizeof(pool[l][0][0]),
			.v_page_stride = sizeof(pool[l][1][0]),
			.k_token_stride = sizeof(pool[l][0][0][0]),
			.v_token_stride = sizeof(pool[l][1][0][0]),
			.k_head_stride = sizeof(pool[l][0][0][0][0]),
			.v_head_stride = sizeof(pool[l][1][0][0][0]),
		};

	r = kvp_match(space, tokens, PROMPT, NULL, &match);
	if (r < 0)
		return fail("kvp_match", r);
	have = kvp_get(match, 0, PROMPT, &view, 0);
	kvp_release(match);
	if (have < 0)
		return fail("kvp_get", have);
	if (!is_right(tokens, table, (int)have))
		return fail("what the cache gave", -EBADMSG);
	compute(tokens, table, (int)have, PROMPT);

	/* From the last whole block on: what was found is there already. */
	from = (uint32_t)have / 64 * 64;
	view.first_slot = from;
	stored = kvp_put(space, tokens, PROMPT, from, &view, &put, NULL);
	if (stored < 0)
		return fail("kvp_put", stored);
	printf("%lld of %d tokens were restored into %d pages, %lld were stored\n", (long long)have,
		PROMPT, PAGES, (long long)stored);
	return 0;
}

int main(void)
{
	struct kvp_layer layers[LAYERS];
	struct kvp_space_desc model = {
		.size = sizeof(model),
		.model = "paged",
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = 64,
		.n_layers = LAYERS,
		.layers = layers,
		.rope_pairing = KVP_ROPE_HALF_SPLIT,
		.rope_dim = DIM,
		.rope_theta = 10000,
	};
	uint32_t tokens[PROMPT];
	int32_t table[2][PAGES];
	struct kvp_client *client;
	struct kvp_space *space;
	int r;

	for (uint32_t t = 0; t < PROMPT; t++)
		tokens[t] = t * t % 1000;
	/* The pages that the engine's allocator has given to two requests with the same prompt. */
	for (int i = 0; i < PAGES; i++) {
		table[0][i] = i * 2;
		table[1][i] = POOL_PAGES - 1 - i * 2;
	}
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
	r = serve(space, tokens, table[0]);
	kvp_flush(client, KVP_DEFAULT_TIMEOUT);
	if (r == 0)
		r = serve(space, tokens, table[1]);
	kvp_space_close(space);
	kvp_close(client);
	return r;
}
