/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism: each of four ranks caches its own heads, in a space of its own. The scheduler asks
 * once, and all ranks are told the same number of tokens: what every one of them has.
 *
 *	cc group.c $(pkg-config --cflags --libs kvpool) && ./a.out
 */
#include <errno.h>
#include <kvpool.h>
#include <stdio.h>
#include <string.h>

#define RANKS  4
#define HEADS  2 /* of each rank */
#define DIM    32
#define T      64
#define PROMPT (6 * T)

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

static int open_ranks(struct kvp_client *client, struct kvp_space **spaces)
{
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		struct kvp_layer layer = {
			.kv_heads = HEADS, .first_head = rank * HEADS, .k_dim = DIM, .v_dim = DIM
		};
		struct kvp_space_desc desc = {
			.size = sizeof(desc),
			.model = "group-example",
			.dtype = KVP_DTYPE_F32,
			.n_layers = 1,
			.layers = &layer,
		};
		int r = kvp_space_open(client, &desc, KVP_DEFAULT_TIMEOUT, &spaces[rank]);

		if (r < 0)
			return r;
	}
	return 0;
}

/* Stands for what a rank has computed: one of them is behind. */
static int store(
	struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens, size_t n)
{
	static float kv[PROMPT * 2 * HEADS * DIM];
	struct kvp_put_opts put = { .size = sizeof(put), .timeout_ms = 5000 };
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;
	int64_t stored;

	kvp_view_dense(space, KVP_VIEW_NCLD, kv, PROMPT, &plane, &bytes);
	stored = kvp_put(space, tokens, n, 0, &view, &put, NULL);
	if (stored < 0)
		return (int)stored;
	return kvp_flush(client, KVP_DEFAULT_TIMEOUT);
}

static int run(struct kvp_client *client)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_space *spaces[RANKS];
	struct kvp_prefix *ranks[RANKS];
	uint32_t tokens[PROMPT];
	struct kvp_ids ids = { tokens, PROMPT, KVP_IDS_U32 };
	int r = open_ranks(client, spaces);

	for (uint32_t t = 0; t < PROMPT; t++)
		tokens[t] = t * 17 % 1000;
	for (uint32_t rank = 0; r == 0 && rank < RANKS; rank++)
		r = store(client, spaces[rank], tokens, rank == 2 ? 4 * T : PROMPT);
	if (r < 0)
		return fail("storing", r);
	r = kvp_match_group(spaces, RANKS, &ids, NULL, ranks);
	if (r < 0)
		return fail("kvp_match_group", r);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		/* A rank in another process would be given kvp_match_export() of its prefix. */
		kvp_match_info(ranks[rank], &info);
		printf("rank %u: %u of %u tokens\n", rank, info.n_tokens, PROMPT);
		kvp_release(ranks[rank]);
	}
	return info.n_tokens > 4 * T;
}

int main(void)
{
	struct kvp_client *client;
	int r = kvp_open(NULL, &client);

	if (r < 0)
		return fail("kvp_open", r);
	r = run(client);
	kvp_close(client);
	return r;
}
