/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single flight: several engines get the same new prompt at the same moment; one computes, the
 * others wait for each block and take it from the cache. If the one that computes goes away, the
 * next claims.
 */
#include <errno.h>
#include <kvpool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DIM     16
#define T       16
#define BLOCKS  4
#define ENGINES 3

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

static int compute_and_put(
	struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens, unsigned from)
{
	static float kv[BLOCKS * T * 2 * DIM];
	struct kvp_put_opts put = { .size = sizeof(put), .timeout_ms = 5000 };
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;
	int64_t n;

	/* Block by block, so that engines that wait can go on early. The claim moves along. */
	for (unsigned b = from; b < BLOCKS; b++) {
		nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL); /* prefill */
		kvp_view_dense(space, KVP_VIEW_NCLD, kv, T, &plane, &bytes);
		n = kvp_put(space, tokens, (b + 1) * T, b * T, &view, &put, NULL);
		if (n < 0)
			return (int)n;
	}
	return kvp_flush(client, KVP_DEFAULT_TIMEOUT);
}

/* Returns how many blocks this engine computed, or a negative errno. */
static int serve(struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens)
{
	struct kvp_match_opts opts = {
		.size = sizeof(opts), .flags = KVP_MATCH_CLAIM, .timeout_ms = KVP_DEFAULT_TIMEOUT
	};
	int computed = 0, r = 0;

	while (r == 0 || r == -EAGAIN) {
		struct kvp_prefix_info info = { .size = sizeof(info) };
		struct kvp_prefix *match;

		r = kvp_match(space, tokens, BLOCKS * T, &opts, &match);
		if (r < 0)
			break;
		kvp_match_info(match, &info);
		if (info.n_blocks == BLOCKS) {
			kvp_release(match);
			return computed;
		}
		if (info.flags & KVP_MATCHED_PENDING) {
			r = kvp_wait(match, 5000);
		} else {
			/* Claimed; or the daemon has no claim to give, then it is no worse. */
			r = compute_and_put(client, space, tokens, info.n_blocks);
			computed += BLOCKS - (int)info.n_blocks;
			if (r == -EAGAIN || r == -ETIMEDOUT) {
				/* Computed, and not cached: there is no room, or no answer. */
				kvp_release(match);
				return computed;
			}
		}
		kvp_release(match);
	}
	return r;
}

static int engine(unsigned number)
{
	struct kvp_layer layer = { .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc model = {
		.size = sizeof(model),
		.model = "single-flight",
		.dtype = KVP_DTYPE_F32,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t tokens[BLOCKS * T];
	int r;

	for (uint32_t t = 0; t < BLOCKS * T; t++)
		tokens[t] = 3 * t;
	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &model, KVP_DEFAULT_TIMEOUT, &space);
	if (r == 0) {
		r = serve(client, space, tokens);
		kvp_space_close(space);
	}
	kvp_close(client);
	if (r < 0)
		return fail("engine", r);
	printf("engine %u computed %d of %d blocks\n", number, r, BLOCKS);
	return 0;
}

int main(void)
{
	int bad = 0, status;

	for (unsigned i = 0; i < ENGINES; i++) {
		pid_t pid = fork();

		if (pid < 0)
			return fail("fork", -errno);
		if (!pid)
			return engine(i);
	}
	for (unsigned i = 0; i < ENGINES; i++)
		bad |= wait(&status) < 0 || status != 0;
	return bad;
}
