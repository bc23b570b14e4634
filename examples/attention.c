/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine that attends over cached blocks, whichever codec they are in, and says which of them its queries
 * look at: where the space has a budget (kvctl space set), those keep their bits for longer.
 *
 *	cc attention.c $(pkg-config --cflags --libs kvpool kvpool-kernels) && ./a.out
 */
#include <errno.h>
#include <kernels/kvp_attend.h>
#include <kvpool.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADS  2
#define DIM    64
#define T      32
#define BLOCKS 4

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

static int store_prompt(struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens)
{
	static float kv[2][BLOCKS * T][HEADS * DIM];
	struct kvp_put_opts put = { .size = sizeof(put), .timeout_ms = 5000 };
	struct kvp_view_plane plane;
	struct kvp_view view = { .size = sizeof(view), .planes = &plane };
	uint64_t bytes;
	int64_t n;
	int r;

	for (uint32_t t = 0; t < BLOCKS * T; t++)
		for (uint32_t i = 0; i < HEADS * DIM; i++)
			kv[0][t][i] = kv[1][t][i] = sinf((float)(tokens[t] * 5 + i * 11));
	r = kvp_view_dense(space, KVP_VIEW_LCND, kv, BLOCKS * T, &plane, &bytes);
	if (r < 0)
		return r;
	n = kvp_put(space, tokens, BLOCKS * T, 0, &view, &put, NULL);
	return n < 0 ? (int)n : kvp_flush(client, KVP_DEFAULT_TIMEOUT);
}

static struct kvp_attend_plane plane_of(const struct kvp_payload_half *half)
{
	return (struct kvp_attend_plane){
		.codec = half->codec,
		.dtype = KVP_DTYPE_F32,
		.data = half->addr,
		.bytes = half->bytes,
		.head_stride = (ptrdiff_t)half->head_stride,
		.token_stride = (ptrdiff_t)half->token_stride,
	};
}

/* One query over all blocks; of each the weight that its tokens got together. */
static int attend(const struct kvp_prefix *match, float *ret_attention)
{
	struct kvp_attend_part parts[BLOCKS];
	float q[HEADS * DIM], out[HEADS * DIM], mass[HEADS][BLOCKS * T];
	struct kvp_attention job = {
		.size = sizeof(job),
		.queries = 1,
		.q_heads = HEADS,
		.kv_heads = HEADS,
		.k_dim = DIM,
		.v_dim = DIM,
		.scale = 1 / sqrtf(DIM),
		.q = q,
		.parts = parts,
		.n_parts = BLOCKS,
		.n_splits = 1,
	};
	struct kvp_attend_result result = {
		.out = out, .mass = mass[0], .mass_stride = BLOCKS * T
	};
	struct kvp_kernels *kernels;
	int r = kvp_kernels_new(KVP_CPU_ALL, &kernels);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < HEADS * DIM; i++)
		q[i] = 4 * sinf((float)(40 * 5 + i * 11)); /* looks for token 40 */
	for (uint32_t b = 0; r == 0 && b < BLOCKS; b++) {
		struct kvp_payload_layer_info layer = { .size = sizeof(layer) };

		r = kvp_payload_planes(match, b, 0, &layer);
		parts[b] = (struct kvp_attend_part){
			.tokens = T, .k = plane_of(&layer.k), .v = plane_of(&layer.v)
		};
	}
	if (r == 0)
		r = kvp_attend_workspace(&job, &job.workspace_size);
	if (r == 0) {
		job.workspace = aligned_alloc(64, (job.workspace_size + 63) / 64 * 64);
		r = job.workspace ? kvp_attend(kernels, &job, &result) : -ENOMEM;
	}
	free(job.workspace);
	kvp_kernels_free(kernels);
	for (uint32_t b = 0; r == 0 && b < BLOCKS; b++) {
		ret_attention[b] = 0;
		for (uint32_t h = 0; h < HEADS; h++)
			for (uint32_t t = b * T; t < (b + 1) * T; t++)
				ret_attention[b] += mass[h][t] / HEADS;
	}
	return r;
}

static int run(struct kvp_client *client, struct kvp_space *space)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	float attention[BLOCKS];
	uint32_t tokens[BLOCKS * T];
	struct kvp_prefix *match;
	int r;

	for (uint32_t t = 0; t < BLOCKS * T; t++)
		tokens[t] = t + 1;
	r = store_prompt(client, space, tokens);
	if (r == 0)
		r = kvp_match(space, tokens, BLOCKS * T, NULL, &match);
	if (r < 0)
		return r;
	r = kvp_match_info(match, &info);
	if (r == 0)
		r = info.n_blocks == BLOCKS ? attend(match, attention) : -ENOENT;
	/* -EAGAIN would be a report that is lost, and none that the engine has to wait for. */
	if (r == 0)
		r = kvp_report_attention(match, attention, BLOCKS, 0);
	for (uint32_t b = 0; r > 0 && b < BLOCKS; b++)
		printf("block %u got %.3f of the attention\n", b, (double)attention[b]);
	kvp_release(match);
	return r < 0 ? r : 0;
}

int main(void)
{
	struct kvp_layer layer = { .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM };
	struct kvp_space_desc desc = {
		.size = sizeof(desc),
		.model = "attention-example",
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = T,
		.n_layers = 1,
		.layers = &layer,
		.floor_k = KVP_CODEC_TQ4,
		.floor_v = KVP_CODEC_TQ4,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	int r;

	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &desc, KVP_DEFAULT_TIMEOUT, &space);
	if (r == 0) {
		r = run(client, space);
		kvp_space_close(space);
	}
	kvp_close(client);
	return r < 0 ? fail("attention", r) : 0;
}
