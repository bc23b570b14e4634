/* SPDX-License-Identifier: Apache-2.0 */
/* What squat asks of a put: where the queries of a sequence's beginning look, by layer and KV head. */
#include "kernels/kvp_rope.h"
#include "kernels/kvp_squat.h"
#include "tools/kvbench/kbench.h"
#include "tools/kvbench/quality_store.h"
#include "tools/kvrun/kvr_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct gathering {
	const struct kvp_kernels *k;
	const struct kvr_config *c;
	struct kvp_rope rope;
	uint32_t tokens;
	float *q; /* [layers][KV heads][tokens][group][head_dim] */
	int error;
};

/* A run's queries, each turned to its position. */
static void take(void *arg, uint32_t layer, uint32_t first, uint32_t n, const float *q)
{
	struct gathering *g = arg;
	const uint32_t dim = g->c->head_dim, group = g->c->heads / g->c->kv_heads;
	const struct kvp_plane p = { n, group, dim, KVP_DTYPE_F32, KVP_PLANE_K };
	const ptrdiff_t row = 4 * (ptrdiff_t)dim;

	for (uint32_t h = 0; h < g->c->kv_heads && !g->error; h++)
		g->error = kvp_rope_apply(g->k, &g->rope, &p, first,
			(struct kvp_raw_const){
				q + (size_t)h * group * dim, row, row * (ptrdiff_t)g->c->heads },
			KVP_DTYPE_F32,
			(struct kvp_raw){
				g->q + (((size_t)layer * g->c->kv_heads + h) * g->tokens + first) *
						group * dim,
				row, row * (ptrdiff_t)group });
}

static int no_score(void *arg, uint32_t first, uint32_t n, const float *logits)
{
	(void)arg;
	(void)first;
	(void)n;
	(void)logits;
	return 0;
}

static int run(struct gathering *g, const struct kvr_model *model, const uint32_t *tokens)
{
	const struct kvr_geom geom = kvr_model_geom(model, QUALITY_NEAR, KVR_F32);
	const struct kvr_watch watch = { take, g };
	struct kvr_kv *kv = NULL;
	struct kvr_seq *seq = NULL;
	int r = kvr_kv_heap_new(&geom, &kv);

	if (!r)
		r = kvr_seq_new(model, kv, NULL, &seq);
	if (!r) {
		kvr_seq_watch(seq, &watch);
		r = kvr_seq_score(seq, tokens, g->tokens, no_score, NULL);
	}
	kvr_seq_free(seq);
	kvr_kv_free(kv);
	return r ? r : g->error;
}

static void forget(struct store *s)
{
	for (size_t i = 0; s->squat && i < (size_t)s->layers * s->heads; i++)
		s->squat[i] = kvp_squat_free(s->squat[i]);
}

static int wanted(const struct scheme *s)
{
	return KVP_CODEC_FAMILY(s->codec[0][0]) == KVP_FAMILY_SQUAT ||
	       KVP_CODEC_FAMILY(s->codec[1][0]) == KVP_FAMILY_SQUAT;
}

int store_queries(
	struct store *s, const struct kvr_model *model, const uint32_t *tokens, uint32_t n)
{
	const struct kvr_config *c = &model->config;
	const struct kvp_rope_desc desc = { .pairing = c->rope_pairs == KVR_ROPE_HALF_SPLIT
							       ? KVP_ROPE_HALF_SPLIT
							       : KVP_ROPE_INTERLEAVED,
		.dim = c->head_dim,
		.theta = c->rope_theta };
	const struct kvp_squat_opts o = {
		.size = sizeof o, .heads = 1, .group = c->heads / c->kv_heads, .dim = c->head_dim
	};
	const size_t planes = (size_t)s->layers * s->heads, part = (size_t)n * o.group * o.dim;
	struct gathering g = { .k = s->k, .c = c, .tokens = n };
	int r;

	if (!wanted(s->scheme))
		return 0;
	forget(s);
	if (!s->squat)
		s->squat = calloc(planes, sizeof(struct kvp_squat *));
	g.q = malloc(planes * part * sizeof *g.q);
	r = s->squat && g.q ? kvp_rope_init(&desc, &g.rope) : -ENOMEM;
	if (!r)
		r = run(&g, model, tokens);
	for (size_t i = 0; i < planes && !r; i++)
		r = kvp_squat_of_queries(&o, g.q + i * part, n, &s->squat[i]);
	free(g.q);
	return r;
}

void store_queries_done(struct store *s)
{
	forget(s);
	free(s->squat);
	s->squat = NULL;
}
