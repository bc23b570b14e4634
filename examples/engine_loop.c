/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zero copy: an engine whose KV cache *is* kvpool. It reads cached blocks where they lie and writes
 * new ones where they will be read by others. "Attention" here is a sum over all keys, which is
 * enough to show that cached and computed blocks are read alike.
 */
#include <errno.h>
#include <kvpool.h>
#include <stdio.h>
#include <string.h>

#define DIM    16
#define T      16
#define PROMPT (6 * T)
#define BLOCKS (PROMPT / T)

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* One block of one layer and head in LCND: T rows of keys, then T rows of values. */
static void prefill(const uint32_t *tokens, float *block)
{
	for (int t = 0; t < T; t++)
		for (int i = 0; i < DIM; i++) {
			block[t * DIM + i] = (float)(tokens[t] % 97);
			block[(T + t) * DIM + i] = (float)i;
		}
}

/* Blocks of one prompt: the first n_matched belong to the match, the others to grants. */
struct sequence {
	struct kvp_prefix *match;
	struct kvp_grant *grant[BLOCKS];
	const float *block[BLOCKS];
	unsigned matched;
};

static int attend(const struct sequence *s)
{
	double sum = 0;

	for (int b = 0; b < BLOCKS; b++)
		for (int i = 0; i < T * DIM; i++)
			sum += (double)s->block[b][i];
	return (int)sum;
}

static int use_cached(struct sequence *s)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	const void *addrs[BLOCKS];
	int r = kvp_match_info(s->match, &info);

	/* Without a lease nothing holds the blocks in place: compute instead. */
	if (r < 0 || !(info.flags & KVP_MATCHED_LEASED))
		return r;
	r = kvp_payloads(s->match, 0, info.n_blocks, addrs);
	for (int b = 0; b < r; b++)
		s->block[b] = addrs[b];
	s->matched = r < 0 ? 0 : (unsigned)r;
	return r < 0 ? r : 0;
}

/* All that is missing: slots in one call, the model, and all of it published in one call. */
static int compute_rest(struct kvp_space *space, struct sequence *s, const uint32_t *tokens)
{
	struct kvp_grant **grants = s->grant + s->matched;
	uint32_t n = BLOCKS - s->matched;
	struct kvp_ref parent;
	int r = kvp_match_ref(s->match, s->matched, &parent);

	if (r < 0 || !n)
		return r;
	/* An engine that gets fewer computes the rest in memory of its own; this one has none. */
	r = kvp_reserve_run(space, n, 5000, NULL, grants);
	if (r != (int)n)
		return r < 0 ? r : -EAGAIN;
	for (unsigned b = s->matched; b < BLOCKS; b++) {
		s->block[b] = kvp_grant_addr(s->grant[b]);
		prefill(tokens + b * T, kvp_grant_addr(s->grant[b]));
	}
	r = kvp_commit_run(grants, n, parent, tokens + s->matched * T, n * T, s->match, 0, NULL);
	return r < 0 ? r : 0;
}

/* Returns the result of attention, or a negative errno. */
static int one_request(struct kvp_space *space, const uint32_t *tokens, unsigned *ret_matched)
{
	struct sequence s = { .matched = 0 };
	int r = kvp_match(space, tokens, PROMPT, NULL, &s.match);

	if (r < 0)
		return r;
	r = use_cached(&s);
	if (r == 0)
		r = compute_rest(space, &s, tokens);
	if (r == 0)
		r = attend(&s);
	*ret_matched = s.matched;
	/* Committed blocks stay in the cache; only our hold on the slots ends. */
	for (int b = 0; b < BLOCKS; b++)
		kvp_grant_release(s.grant[b]);
	kvp_release(s.match);
	return r;
}

int main(void)
{
	struct kvp_layer layer = { .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc model = {
		.size = sizeof(model),
		.model = "engine-loop",
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	uint32_t tokens[PROMPT];
	unsigned matched = 0;
	int r, first;

	for (uint32_t t = 0; t < PROMPT; t++)
		tokens[t] = 7 * t + 1;
	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &model, KVP_DEFAULT_TIMEOUT, &space);
	if (r < 0) {
		kvp_close(client);
		return fail("kvp_space_open", r);
	}
	first = one_request(space, tokens, &matched);
	printf("first request: %u of %d blocks cached, result %d\n", matched, BLOCKS, first);
	kvp_flush(client, KVP_DEFAULT_TIMEOUT);
	r = one_request(space, tokens, &matched);
	printf("second request: %u of %d blocks cached, result %d\n", matched, BLOCKS, r);
	kvp_space_close(space);
	kvp_close(client);
	return first < 0 || r != first || matched != BLOCKS;
}
