/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of one query over blocks in a codec, by the kernels and without decoding. */
#include "tools/kvrun/kvr_attend.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

static struct kvp_attend_plane native_plane(const struct kvr_attend *a, struct kvr_kv *kv,
	uint32_t block, uint32_t layer, uint32_t value)
{
	const struct kvr_geom *g = &kv->geom;
	const uint8_t *base = kv->ops->block(kv, block);

	return (struct kvp_attend_plane){
		.codec = KVP_CODEC_NATIVE,
		.dtype = g->dtype,
		.data = base + kvr_row_offset(g, layer, value, 0),
		.head_stride = (ptrdiff_t)(a->head_dim * kvr_dtype_bytes(g->dtype)),
		.token_stride = (ptrdiff_t)kvr_row_bytes(g),
	};
}

static struct kvp_attend_part part_of(const struct kvr_attend *a, struct kvr_kv *kv, uint32_t block,
	uint32_t layer, uint32_t tokens)
{
	struct kvp_attend_part part = { .tokens = tokens };
	struct kvp_attend_plane plane[2];

	if (!kv->coding || !kv->ops->planes(kv, block, layer, plane))
		for (uint32_t value = 0; value < 2; value++)
			plane[value] = native_plane(a, kv, block, layer, value);
	part.k = plane[0];
	part.v = plane[1];
	return part;
}

static int room_for(struct kvr_attend *a, uint32_t parts)
{
	void *p;

	if (parts <= a->parts_room)
		return 0;
	p = realloc(a->parts, 2 * parts * sizeof(*a->parts));
	if (!p)
		return -ENOMEM;
	a->parts = p;
	a->parts_room = 2 * parts;
	return 0;
}

static int workspace_for(struct kvr_attend *a, struct kvp_attention *job)
{
	size_t bytes;
	void *p;
	int r = kvp_attend_workspace(job, &bytes);

	if (r < 0)
		return r;
	if (bytes > a->fused_bytes) {
		if (posix_memalign(&p, 64, bytes) != 0)
			return -ENOMEM;
		free(a->fused);
		a->fused = p;
		a->fused_bytes = bytes;
	}
	job->workspace = a->fused;
	job->workspace_size = a->fused_bytes;
	return 0;
}

/* One query over all up to its position. */
static int job_of(struct kvr_attend *a, struct kvr_kv *kv, uint32_t layer, uint32_t position,
	const float *q, struct kvp_attention *ret_job)
{
	struct kvp_attention job = {
		.size = sizeof(job),
		.queries = 1,
		.q_heads = a->heads,
		.kv_heads = a->kv_heads,
		.k_dim = a->head_dim,
		.v_dim = a->head_dim,
		.scale = (float)(1 / sqrt(a->head_dim)),
		.q = q,
		.n_parts = position / a->block_tokens + 1,
		.n_splits = 1,
	};
	int r = room_for(a, job.n_parts);

	if (r < 0)
		return r;
	for (uint32_t b = 0; b < job.n_parts; b++) {
		uint32_t left = position + 1 - b * a->block_tokens;

		a->parts[b] =
			part_of(a, kv, b, layer, left < a->block_tokens ? left : a->block_tokens);
	}
	job.parts = a->parts;
	r = workspace_for(a, &job);
	*ret_job = job;
	return r;
}

int kvr_attend_fused(struct kvr_attend *a, struct kvr_kv *kv, uint32_t layer, uint32_t position,
	const float *q, float *out)
{
	struct kvp_attend_result result = { .out = out };
	struct kvp_attention job;
	int r = job_of(a, kv, layer, position, q, &job);

	return r < 0 ? r : kvp_attend(kv->coding->kernels, &job, &result);
}

static int mass_for(struct kvr_attend *a, uint32_t tokens)
{
	uint32_t room = 2 * tokens;
	float *p;
	int r = a->kernels ? 0 : kvp_kernels_new(KVP_CPU_ALL, &a->kernels);

	if (r < 0 || tokens <= a->mass_tokens)
		return r;
	p = malloc(((size_t)a->kv_heads * room + (size_t)a->heads * a->head_dim) * sizeof(*p));
	if (!p)
		return -ENOMEM;
	free(a->mass);
	a->mass = p;
	a->mass_tokens = room;
	return 0;
}

int kvr_attend_shares(
	struct kvr_attend *a, struct kvr_kv *kv, uint32_t layer, uint32_t position, const float *q)
{
	struct kvp_attention job;
	uint32_t tokens = position + 1;
	int r = mass_for(a, tokens);

	if (r == 0)
		r = job_of(a, kv, layer, position, q, &job);
	if (r == 0) {
		struct kvp_attend_result result = {
			.out = a->mass + (size_t)a->kv_heads * a->mass_tokens,
			.mass = a->mass,
			.mass_stride = a->mass_tokens,
		};

		r = kvp_attend(a->kernels, &job, &result);
	}
	if (r < 0)
		return r;
	/* In place: the first head's row takes the mean. */
	for (uint32_t t = 0; t < tokens; t++) {
		float sum = 0;

		for (uint32_t h = 0; h < a->kv_heads; h++)
			sum += a->mass[(size_t)h * a->mass_tokens + t];
		a->mass[t] = sum / (float)a->heads;
	}
	kv->ops->attended(kv, layer, a->mass, tokens);
	return 0;
}
