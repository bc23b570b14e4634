/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over cached blocks where they lie: a runtime matches a prompt, holds the lease, and
 * lets the kernels read keys and values out of shared memory. Nothing is copied.
 *
 *	cc attend.c $(pkg-config --cflags --libs kvpool kvpool-kernels) && ./a.out
 */
#include <errno.h>
#include <kernels/kvp_attend.h>
#include <kvpool.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS  2
#define HEADS   2 /* of keys and values; each serves GROUP query heads */
#define GROUP   3
#define DIM     64
#define T       32
#define BLOCKS  4
#define Q_HEADS (HEADS * GROUP)

static int fail(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return 1;
}

/* Stands for a model. */
static float element(uint32_t layer, uint32_t value, uint32_t token, uint32_t i)
{
	return sinf((float)(layer * 7 + value * 3 + token * 5 + i * 11) * .37f);
}

static int store_prompt(struct kvp_client *client, struct kvp_space *space, const uint32_t *tokens)
{
	static float kv[LAYERS][2][BLOCKS * T][HEADS * DIM];
	struct kvp_put_opts put = { .size = sizeof(put), .timeout_ms = 5000 };
	struct kvp_view_plane planes[LAYERS];
	struct kvp_view view = { .size = sizeof(view), .planes = planes };
	uint64_t bytes;
	int64_t n;
	int r;

	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t v = 0; v < 2; v++)
			for (uint32_t t = 0; t < BLOCKS * T; t++)
				for (uint32_t i = 0; i < HEADS * DIM; i++)
					kv[l][v][t][i] = element(l, v, tokens[t], i);
	r = kvp_view_dense(space, KVP_VIEW_LCND, kv, BLOCKS * T, planes, &bytes);
	if (r < 0)
		return r;
	n = kvp_put(space, tokens, BLOCKS * T, 0, &view, &put, NULL);
	return n < 0 ? (int)n : kvp_flush(client, KVP_DEFAULT_TIMEOUT);
}

/* One part of the context for each block, which the space has as [layer][K, V][token][...]. */
static int parts_of(const struct kvp_prefix *match, uint32_t layer, struct kvp_attend_part *parts)
{
	const size_t row = HEADS * DIM * sizeof(float);

	for (uint32_t b = 0; b < BLOCKS; b++) {
		struct kvp_payload_info p = { .size = sizeof(p) };
		struct kvp_attend_plane plane = {
			.codec = KVP_CODEC_NATIVE,
			.dtype = KVP_DTYPE_F32,
			.head_stride = DIM * sizeof(float),
			.token_stride = (ptrdiff_t)row,
		};
		int r = kvp_payload(match, b, &p);

		if (r < 0)
			return r;
		if (!p.addr || p.codec != KVP_CODEC_NATIVE)
			return -ENOTSUP; /* kvp_get() reads those, too */
		parts[b] = (struct kvp_attend_part){ .tokens = p.tokens, .k = plane, .v = plane };
		parts[b].k.data = (const char *)p.addr + 2 * layer * T * row;
		parts[b].v.data = (const char *)p.addr + (2 * layer + 1) * T * row;
	}
	return 0;
}

/* The same the slow way; returns the largest difference. */
static double check(const uint32_t *tokens, uint32_t layer, const float *q, const float *out)
{
	double worst = 0;

	for (uint32_t h = 0; h < Q_HEADS; h++) {
		double weight[BLOCKS * T], sum = 0;

		for (uint32_t t = 0; t < BLOCKS * T; t++) {
			double dot = 0;

			for (uint32_t i = 0; i < DIM; i++)
				dot += (double)q[h * DIM + i] *
				       (double)element(layer, 0, tokens[t], h / GROUP * DIM + i);
			sum += weight[t] = exp(dot / sqrt(DIM));
		}
		for (uint32_t i = 0; i < DIM; i++) {
			double x = 0;

			for (uint32_t t = 0; t < BLOCKS * T; t++)
				x += weight[t] / sum *
				     (double)element(layer, 1, tokens[t], h / GROUP * DIM + i);
			worst = fmax(worst, fabs(x - (double)out[h * DIM + i]));
		}
	}
	return worst;
}

static int attend(const struct kvp_prefix *match, const uint32_t *tokens)
{
	struct kvp_attend_part parts[BLOCKS];
	float q[Q_HEADS * DIM], out[Q_HEADS * DIM];
	struct kvp_attention job = {
		.size = sizeof(job),
		.queries = 1,
		.q_heads = Q_HEADS,
		.kv_heads = HEADS,
		.k_dim = DIM,
		.v_dim = DIM,
		.scale = 1 / sqrtf(DIM),
		.q = q,
		.parts = parts,
		.n_parts = BLOCKS,
		.n_splits = 1,
	};
	struct kvp_attend_result result = { .out = out };
	struct kvp_kernels *kernels;
	int r = kvp_kernels_new(KVP_CPU_ALL, &kernels);

	if (r < 0)
		return r;
	r = kvp_attend_workspace(&job, &job.workspace_size);
	if (r == 0) {
		job.workspace = aligned_alloc(64, (job.workspace_size + 63) / 64 * 64);
		r = job.workspace ? 0 : -ENOMEM;
	}
	for (uint32_t i = 0; i < Q_HEADS * DIM; i++)
		q[i] = cosf((float)i);
	for (uint32_t l = 0; r == 0 && l < LAYERS; l++) {
		r = parts_of(match, l, parts);
		if (r == 0)
			r = kvp_attend(kernels, &job, &result);
		if (r == 0 && !(check(tokens, l, q, out) < 1e-4))
			r = -EBADMSG;
		if (r == 0)
			printf("layer %u: %u tokens attended in place, first output %f\n", l,
				BLOCKS * T, (double)out[0]);
	}
	free(job.workspace);
	kvp_kernels_free(kernels);
	return r;
}

static int run(struct kvp_client *client, struct kvp_space *space)
{
	struct kvp_prefix_info info = { .size = sizeof(info) };
	uint32_t tokens[BLOCKS * T];
	struct kvp_prefix *match;
	int r;

	for (uint32_t t = 0; t < BLOCKS * T; t++)
		tokens[t] = t * t % 1000;
	r = store_prompt(client, space, tokens);
	if (r == 0)
		r = kvp_match(space, tokens, BLOCKS * T, NULL, &match);
	if (r < 0)
		return r;
	r = kvp_match_info(match, &info);
	if (r == 0 && info.n_blocks != BLOCKS)
		r = -ENOENT;
	if (r == 0)
		r = attend(match, tokens); /* the lease keeps the blocks where they are */
	kvp_release(match);
	return r;
}

int main(void)
{
	struct kvp_layer layers[LAYERS];
	struct kvp_space_desc model = {
		.size = sizeof(model),
		.model = "attend",
		.dtype = KVP_DTYPE_F32,
		.layout = KVP_LAYOUT_LCND,
		.block_tokens = T,
		.n_layers = LAYERS,
		.layers = layers,
	};
	struct kvp_client *client;
	struct kvp_space *space;
	int r;

	for (uint32_t i = 0; i < LAYERS; i++)
		layers[i] = (struct kvp_layer){
			.index = i, .kv_heads = HEADS, .k_dim = DIM, .v_dim = DIM
		};
	r = kvp_open(NULL, &client);
	if (r < 0)
		return fail("kvp_open", r);
	r = kvp_space_open(client, &model, KVP_DEFAULT_TIMEOUT, &space);
	if (r == 0) {
		r = run(client, space);
		kvp_space_close(space);
	}
	kvp_close(client);
	return r < 0 ? fail("attend", r) : 0;
}
