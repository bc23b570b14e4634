/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recomputation: one process offers to compute what was evicted, another one wants it and reads it from the
 * cache. With a daemon that keeps token ids (recipe_blocks) and has little room, a prompt that is long gone comes
 * back; with one that keeps none, or has room for all, there is nothing to be computed, and the example says so.
 */
#include <errno.h>
#include <kvpool.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIM    16
#define T      16
#define TOKENS (4 * T)

static const struct kvp_layer layer = { .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

static int open_space(struct kvp_client **client, struct kvp_space **space)
{
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = "example-remat",
		.dtype = KVP_DTYPE_F32,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
	};
	int r = kvp_open(NULL, client);

	return r < 0 ? r : kvp_space_open(*client, &desc, KVP_DEFAULT_TIMEOUT, space);
}

/* What an engine does with a prompt of which the first tokens are cached. */
static int compute(struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens,
	uint32_t n, uint32_t first)
{
	static float kv[TOKENS * 2 * DIM];
	struct kvp_put_opts put = { .size = sizeof(put), .timeout_ms = 5000 };
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;
	int64_t r;

	for (uint32_t t = first; t < n; t++)
		for (uint32_t i = 0; i < 2 * DIM; i++)
			kv[(t - first) * 2 * DIM + i] = (float)tokens[t] + (float)i / 64;
	kvp_view_dense(space, KVP_VIEW_NCLD, kv, n - first, &plane, &bytes);
	r = kvp_put(space, tokens, n, first, &view, &put, NULL);
	return r < 0 ? (int)r : kvp_flush(client, KVP_DEFAULT_TIMEOUT);
}

/* A provider: an engine that has nothing else to do. */
static int serve(void)
{
	/* At most a millisecond for each token, and ten more for each demand. */
	struct kvp_serve_opts opts = { .size = sizeof(opts),
		.launch_seconds = 10e-3,
		.token_seconds = 1e-3,
		.max_tokens = TOKENS };
	struct kvp_demand demand = { .size = sizeof(demand) };
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t tokens[TOKENS];
	int r = open_space(&client, &space);

	while (r == 0 || r == -ETIMEDOUT) {
		r = kvp_serve_remat(space, &opts, 1000, tokens, NULL, &demand);
		if (r == 0) {
			printf("provider: tokens %u to %u of %u\n", demand.first, demand.n_tokens,
				demand.n_tokens);
			fflush(stdout);
			r = compute(client, space, tokens, demand.n_tokens, demand.first);
		}
	}
	return fail("serve", r);
}

static int want(struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens)
{
	struct kvp_want_opts opts = { .size = sizeof(opts), .within_ms = 2000, .timeout_ms = 1000 };
	const struct kvp_ids ids = { tokens, TOKENS, KVP_IDS_U32 };
	struct kvp_ticket ticket;
	int n, there, why;

	/* The provider has just been started: it may not have offered yet. */
	for (int i = 0; i < 100; i++) {
		n = kvp_want(space, &ids, &opts, &ticket);
		if (n <= 0)
			break;
		there = kvp_ticket_wait(client, ticket, 5000, &why);
		if (there < 0 || why != -ENODEV)
			break;
		usleep(10000);
	}
	if (n == 0) {
		printf("the daemon keeps no token ids of what it evicted\n");
		return 0;
	}
	if (n < 0 || there < 0)
		return fail("want", n < 0 ? n : there);
	printf("%d of %d blocks are cached%s%s\n", there, n, why ? ": " : "",
		why ? strerror(-why) : "");
	return 0;
}

int main(void)
{
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t tokens[TOKENS];
	pid_t provider = fork();
	int r;

	if (provider == 0)
		return serve();
	for (uint32_t i = 0; i < TOKENS; i++)
		tokens[i] = i;
	r = open_space(&client, &space);
	if (r == 0)
		r = compute(client, space, tokens, TOKENS, 0);
	/* Other prompts take its place, where there is little room. */
	for (uint32_t other = 1; r == 0 && other <= 16; other++) {
		uint32_t more[TOKENS];

		for (uint32_t i = 0; i < TOKENS; i++)
			more[i] = 1000 * other + i;
		r = compute(client, space, more, TOKENS, 0);
	}
	r = r < 0 ? fail("put", r) : want(client, space, tokens);
	kill(provider, SIGTERM);
	waitpid(provider, NULL, 0);
	if (r == 0) {
		kvp_space_close(space);
		kvp_close(client);
	}
	return r;
}
