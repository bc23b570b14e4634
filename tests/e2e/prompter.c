/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that does what its standard input says, a line each, and answers each with a number:
 *
 *   put MODEL FIRST N     stores tokens FIRST, FIRST + 1 ... of the model, the last block partial
 *   match MODEL FIRST N   how many of them are cached
 *   peek MODEL FIRST N    the same, not counted
 *
 * Blocks have 16 tokens. It ends with its input.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/kvpool.h"

#define BLOCK_TOKENS 16u
#define MODELS       8u
#define MOST         4096u
#define WAIT_MS      20000u

static struct kvp_client *client;
static struct {
	char name[32];
	struct kvp_space *space;
} models[MODELS];
static float kv[MOST * 2 * 8];

static int64_t must(int64_t r, const char *what)
{
	if (r >= 0)
		return r;
	fprintf(stderr, "%s: %s\n", what, strerror((int)-r));
	exit(1);
}

static struct kvp_space *space_of(const char *name)
{
	const struct kvp_layer layer = { .kv_heads = 1, .k_dim = 8, .v_dim = 8 };
	const struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = name,
		.dtype = KVP_DTYPE_F32,
		.block_tokens = BLOCK_TOKENS,
		.n_layers = 1,
		.layers = &layer,
	};
	uint32_t i = 0;

	while (i < MODELS && models[i].space && strcmp(models[i].name, name) != 0)
		i++;
	if (i == MODELS)
		exit(1);
	if (!models[i].space) {
		snprintf(models[i].name, sizeof(models[i].name), "%s", name);
		must(kvp_space_open(client, &desc, WAIT_MS, &models[i].space), "space");
	}
	return models[i].space;
}

static int64_t put(struct kvp_space *space, const uint32_t *tokens, uint32_t n)
{
	const struct kvp_put_opts opts = {
		.size = sizeof(opts), .flags = KVP_PUT_PARTIAL, .timeout_ms = WAIT_MS
	};
	struct kvp_view view = { .size = sizeof(view) };
	struct kvp_view_plane plane;
	uint64_t bytes;
	int64_t r;

	must(kvp_view_dense(space, KVP_VIEW_LCND, kv, n, &plane, &bytes), "view");
	view.planes = &plane;
	r = must(kvp_put(space, tokens, n, 0, &view, &opts, NULL), "put");
	must(kvp_flush(client, WAIT_MS), "flush");
	return r;
}

static int64_t match(struct kvp_space *space, const uint32_t *tokens, uint32_t n, uint32_t flags)
{
	const struct kvp_match_opts opts = { .size = sizeof(opts), .flags = flags };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *prefix;

	must(kvp_match(space, tokens, n, &opts, &prefix), "match");
	must(kvp_match_info(prefix, &info), "info");
	kvp_release(prefix);
	return info.n_tokens + info.tail_tokens;
}

int main(void)
{
	const struct kvp_open_opts opts = { .size = sizeof(opts), .name = "prompter" };
	char what[16], model[32];
	uint32_t tokens[MOST];
	unsigned first, n;

	must(kvp_open(&opts, &client), "open");
	while (scanf("%15s %31s %u %u", what, model, &first, &n) == 4 && n <= MOST) {
		struct kvp_space *space = space_of(model);

		for (uint32_t i = 0; i < n; i++)
			tokens[i] = first + i;
		printf("%lld\n",
			(long long)(!strcmp(what, "put") ? put(space, tokens, n)
				    : !strcmp(what, "match")
					    ? match(space, tokens, n, 0)
					    : match(space, tokens, n, KVP_MATCH_NO_TOUCH)));
		fflush(stdout);
	}
	kvp_close(client);
	return 0;
}
