/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client for kvctl to look at: stores as many blocks as its argument says, leases them, with a
 * second argument commits one more in a slot that it keeps, prints a line, and waits until its
 * standard input ends.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/kvpool.h"

#define BLOCK_TOKENS 16u
#define WAIT_MS      10000u

static void must(int64_t r, const char *what)
{
	if (r >= 0)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror((int)-r));
	exit(1);
}

/* A block of its own whose slot stays granted. */
static struct kvp_grant *keep_one(struct kvp_space *space)
{
	uint32_t tokens[BLOCK_TOKENS] = { 0 };
	struct kvp_grant *grant;

	must(kvp_reserve(space, WAIT_MS, NULL, &grant), "reserve");
	must(kvp_commit(grant, kvp_ref_root(), tokens, BLOCK_TOKENS, NULL, 0), "commit");
	must(kvp_grant_wait(grant, WAIT_MS), "grant");
	return grant;
}

int main(int argc, char **argv)
{
	const struct kvp_layer layer = { .kv_heads = 1, .k_dim = 8, .v_dim = 8 };
	const struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = "kvctl-test",
		.dtype = KVP_DTYPE_F32,
		.block_tokens = BLOCK_TOKENS,
		.n_layers = 1,
		.layers = &layer,
	};
	const struct kvp_open_opts open_opts = { .size = sizeof(open_opts), .name = "watched" };
	const struct kvp_put_opts put_opts = { .size = sizeof(put_opts), .timeout_ms = WAIT_MS };
	uint32_t n = argc > 1 ? (uint32_t)atoi(argv[1]) * BLOCK_TOKENS : 0;
	uint32_t *tokens = calloc(n + 1, sizeof(*tokens));
	struct kvp_view view = { .size = sizeof(view) };
	struct kvp_view_plane plane;
	struct kvp_client *client;
	struct kvp_space *space;
	struct kvp_grant *grant = NULL;
	struct kvp_prefix *match;
	uint64_t bytes;
	void *data;

	for (uint32_t i = 0; i < n; i++)
		tokens[i] = i + 1;
	must(kvp_open(&open_opts, &client), "open");
	must(kvp_space_open(client, &desc, WAIT_MS, &space), "space");
	must(kvp_view_dense(space, KVP_VIEW_LCND, NULL, n, &plane, &bytes), "view");
	data = calloc(1, bytes + 1);
	must(kvp_view_dense(space, KVP_VIEW_LCND, data, n, &plane, &bytes), "view");
	view.planes = &plane;
	must(kvp_put(space, tokens, n, 0, &view, &put_opts, NULL), "put");
	must(kvp_flush(client, WAIT_MS), "flush");
	must(kvp_match(space, tokens, n, NULL, &match), "match");
	if (argc > 2)
		grant = keep_one(space);
	puts("ready");
	fflush(stdout);
	while (getchar() != EOF)
		;
	kvp_release(match);
	kvp_grant_release(grant);
	kvp_space_close(space);
	kvp_close(client);
	free(data);
	free(tokens);
	return 0;
}
