/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a cached prompt on a device: has it copied there, sets up the work that is to read it while that goes on, since
 * it is told at once where the blocks come to lie, and reads what has come in place. Without a device, or where there was no room for all of it, the rest is read in DRAM. Then
 * the next block is written on the device, as one would that computes there, and found again.
 */
#include <errno.h>
#include <kvpool.h>
#include <stdio.h>
#include <string.h>

#define DIM    16
#define T      16
#define BLOCKS 4

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

static int put(struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens)
{
	static float kv[BLOCKS * T * 2 * DIM];
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;
	int64_t n;

	for (unsigned i = 0; i < BLOCKS * T * 2 * DIM; i++)
		kv[i] = 1;
	kvp_view_dense(space, KVP_VIEW_NCLD, kv, BLOCKS * T, &plane, &bytes);
	n = kvp_put(space, tokens, BLOCKS * T, 0, &view, NULL, NULL);
	return n < 0 ? (int)n : kvp_flush(client, KVP_DEFAULT_TIMEOUT);
}

/* Sums the prompt's blocks, those on device 0 there. Returns how many these were. */
static int read_prompt(struct kvp_client *client, struct kvp_prefix *prefix, double *sum)
{
	struct kvp_warm_opts opts = { .size = sizeof(opts), .flags = KVP_WARM_EARLY };
	const void *there[BLOCKS], *here[BLOCKS];
	struct kvp_ticket ticket;
	int n_here, n = 0, r, why = 0;

	r = kvp_warm(prefix, &opts, &ticket);
	if (r == 0)
		r = kvp_ticket_placed(client, ticket, KVP_DEFAULT_TIMEOUT);
	if (r >= 0)
		r = n = kvp_device_payloads(prefix, 0, 0, BLOCKS, KVP_DEVICE_PENDING, there);
	if (r < 0)
		return r;
	/* ... the table is filled, whatever else there is to do is done; nothing is read yet ... */
	r = kvp_ticket_wait(client, ticket, KVP_DEFAULT_TIMEOUT, &why);
	if (r < 0)
		return r;
	if (why)
		printf("not all of it is on the device: %s\n", strerror(-why));
	if (n > r)
		n = r; /* the others have not come to where they were to lie */
	n_here = kvp_payloads(prefix, 0, BLOCKS, here);
	for (int i = 0; i < n_here; i++) {
		const float *kv = i < n ? there[i] : here[i];

		for (unsigned k = 0; k < T * 2 * DIM; k++)
			*sum += kv[k];
	}
	return n;
}

/* Writes the block after the prefix on device 0. 1: it is found there; 0: there is no device. */
static int write_next(struct kvp_space *space, const struct kvp_prefix *prefix, uint32_t *tokens)
{
	struct kvp_match_opts opts = { .size = sizeof(opts), .flags = KVP_MATCH_DEVICE };
	struct kvp_prefix_info info = { .size = sizeof(info) };
	struct kvp_prefix *longer;
	struct kvp_grant *grant;
	struct kvp_ref after;
	int r = kvp_match_ref(prefix, BLOCKS, &after);

	if (r == 0)
		r = kvp_reserve_on(space, 0, KVP_DEFAULT_TIMEOUT, NULL, &grant);
	if (r < 0)
		return r == -EOPNOTSUPP || r == -ENODEV ? 0 : r;
	for (unsigned i = 0; i < T * 2 * DIM; i++)
		((float *)kvp_grant_addr(grant))[i] = 2;
	for (unsigned i = 0; i < T; i++)
		tokens[BLOCKS * T + i] = 2000 + i;
	r = kvp_commit(grant, after, tokens + BLOCKS * T, T, NULL, 0);
	if (r == 0)
		r = kvp_grant_wait(grant, KVP_DEFAULT_TIMEOUT);
	kvp_grant_release(grant);
	if (r >= 0)
		r = kvp_match(space, tokens, (BLOCKS + 1) * T, &opts, &longer);
	if (r < 0)
		return r;
	kvp_match_info(longer, &info);
	kvp_release(longer);
	return info.n_blocks == BLOCKS + 1 ? 1 : -ENOENT;
}

int main(void)
{
	const struct kvp_layer layer = { .kv_heads = 1, .k_dim = DIM, .v_dim = DIM };
	const struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = "example-device",
		.dtype = KVP_DTYPE_F32,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
	};
	struct kvp_device_props device = { .size = sizeof(device) };
	uint32_t tokens[(BLOCKS + 1) * T];
	struct kvp_client *client;
	struct kvp_space *space;
	struct kvp_prefix *prefix;
	double sum = 0;
	int r;

	for (unsigned i = 0; i < BLOCKS * T; i++)
		tokens[i] = 1000 + i;
	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("no daemon", r);
	r = kvp_space_open(client, &desc, KVP_DEFAULT_TIMEOUT, &space);
	if (r < 0)
		return fail("space", r);
	r = put(client, space, tokens);
	if (r < 0)
		return fail("put", r);
	if (kvp_device_info(client, 0, &device) < 0)
		puts("this daemon has no device");
	r = kvp_match(space, tokens, BLOCKS * T, NULL, &prefix);
	if (r < 0)
		return fail("match", r);
	r = read_prompt(client, prefix, &sum);
	if (r < 0)
		return fail("warm", r);
	printf("%d of %d blocks read on the device, sum %.0f\n", r, BLOCKS, sum);
	r = write_next(space, prefix, tokens);
	if (r < 0)
		return fail("write there", r);
	printf("%s\n",
		r ? "the next block was written on the device" : "and no block written there");
	kvp_release(prefix);
	kvp_space_close(space);
	kvp_close(client);
	return sum == BLOCKS * T * 2 * DIM ? 0 : 1;
}
