/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/graph.h"
#include "policy/sort.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FORGET_BELOW 1e-3f /* an edge of less weight is dropped */

#define SCORE_HELD 2.0f /* above every score: busy, protected, or the parent of such a block */

#define WEIGHT_RECENCY    .30f
#define WEIGHT_FREQUENCY  .25f
#define WEIGHT_SHARING    .15f
#define WEIGHT_COMPANY    .15f
#define WEIGHT_IMPORTANCE .15f

struct neighbour {
	uint32_t block;
	float weight;
};

struct kvp_ranking {
	uint32_t max_blocks;
	uint32_t batch;
	uint64_t made_at;
	int made;
	uint32_t n_evict;
	kvp_block_id *evict;                            /* [batch] */
	struct neighbour (*cold)[KVP_GRAPH_NEIGHBOURS]; /* best first; weight 0 = none */
	float *score;                                   /* [max_blocks]; -1: no node */
	float *importance;
	/* scratch of the making */
	float *share;
	float *company; /* sum of weight * recency of neighbours */
	float *degree;  /* sum of weights */
	float *recency;
	uint32_t *order;
	uint32_t *scratch;
};

struct kvp_ranking *kvp_ranking_new(uint32_t max_blocks, uint32_t batch)
{
	struct kvp_ranking *r;
	size_t n = max_blocks;

	if (!max_blocks || !batch || batch > max_blocks)
		return NULL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->max_blocks = max_blocks;
	r->batch = batch;
	r->evict = calloc(batch, sizeof(*r->evict));
	r->cold = calloc(n, sizeof(*r->cold));
	r->score = calloc(n, sizeof(*r->score));
	r->importance = calloc(n, sizeof(*r->importance));
	r->share = calloc(n, sizeof(*r->share));
	r->company = calloc(n, sizeof(*r->company));
	r->degree = calloc(n, sizeof(*r->degree));
	r->recency = calloc(n, sizeof(*r->recency));
	r->order = calloc(n, sizeof(*r->order));
	r->scratch = calloc(n, sizeof(*r->scratch));
	if (!r->evict || !r->cold || !r->score || !r->importance || !r->share || !r->company ||
		!r->degree || !r->recency || !r->order || !r->scratch)
		return kvp_ranking_free(r);
	return r;
}

struct kvp_ranking *kvp_ranking_free(struct kvp_ranking *r)
{
	if (r) {
		free(r->evict);
		free(r->cold);
		free(r->score);
		free(r->importance);
		free(r->share);
		free(r->company);
		free(r->degree);
		free(r->recency);
		free(r->order);
		free(r->scratch);
		free(r);
	}
	return NULL;
}

/* Remembers `block` among the cold neighbours of another, the strongest first. */
static void add_cold(struct neighbour *list, uint32_t block, float weight)
{
	uint32_t i, k;

	for (i = 0; i < KVP_GRAPH_NEIGHBOURS; i++) /* another kind of edge to the same block */
		if (list[i].weight > 0 && list[i].block == block) {
			weight += list[i].weight;
			memmove(&list[i], &list[i + 1],
				(KVP_GRAPH_NEIGHBOURS - 1 - i) * sizeof(*list));
			list[KVP_GRAPH_NEIGHBOURS - 1].weight = 0;
			break;
		}
	for (k = KVP_GRAPH_NEIGHBOURS; k > 0 && list[k - 1].weight < weight; k--)
		if (k < KVP_GRAPH_NEIGHBOURS)
			list[k] = list[k - 1];
	if (k < KVP_GRAPH_NEIGHBOURS)
		list[k] = (struct neighbour){ block, weight };
}

static void scan_nodes(const struct kvp_graph *g, uint32_t tick, struct kvp_ranking *r)
{
	uint32_t i;

	memset(r->cold, 0, g->opts.max_blocks * sizeof(*r->cold));
	for (i = 0; i < g->opts.max_blocks; i++) {
		const struct graph_node *n = &g->nodes[i];

		r->share[i] = r->company[i] = r->degree[i] = 0;
		r->recency[i] = n->used ? graph_decay(g, n->last_tick, tick) : 0;
		r->importance[i] = n->importance;
	}
}

static void scan_edges(struct kvp_graph *g, uint32_t tick, struct kvp_ranking *r)
{
	uint32_t slots = (g->bucket_mask + 1) * GRAPH_WAYS, i;

	for (i = 0; i < slots; i++) {
		struct graph_edge *e = &g->edges[i];
		float w;

		if (e->weight == 0)
			continue;
		w = e->weight * graph_decay(g, graph_stamp(e), tick);
		if (w < FORGET_BELOW || !graph_alive(g, e)) {
			e->weight = 0;
			continue;
		}
		if (!graph_counts(e))
			continue;
		r->degree[e->a] += w;
		r->degree[e->b] += w;
		r->company[e->a] += w * r->recency[e->b];
		r->company[e->b] += w * r->recency[e->a];
		if (graph_kind(e) == KVP_EDGE_PREFIX_SHARE) {
			r->share[e->a] += w;
			r->share[e->b] += w;
		}
		if (g->nodes[e->b].cold)
			add_cold(r->cold[e->a], e->b, w);
		if (g->nodes[e->a].cold)
			add_cold(r->cold[e->b], e->a, w);
	}
}

static void score_nodes(
	const struct kvp_graph *g, const uint8_t *busy, uint32_t tick, struct kvp_ranking *r)
{
	uint32_t i;

	for (i = 0; i < g->opts.max_blocks; i++) {
		const struct graph_node *n = &g->nodes[i];
		float c, company;

		if (!n->used) {
			r->score[i] = -1;
			continue;
		}
		c = n->heat * graph_decay(g, n->last_tick, tick);
		company = r->degree[i] > 0 ? r->company[i] / r->degree[i] : 0;
		r->score[i] = WEIGHT_RECENCY * r->recency[i] + WEIGHT_FREQUENCY * c / (1 + c) +
			      WEIGHT_SHARING * r->share[i] / (1 + r->share[i]) +
			      WEIGHT_COMPANY * company + WEIGHT_IMPORTANCE * n->importance;
		if (n->label == KVP_LABEL_SYSTEM || (busy && busy[i]) ||
			r->share[i] >= (float)g->opts.protect_share)
			r->score[i] = SCORE_HELD;
	}
}

/*
 * A parent must not go before its child. Depths count from the root, and the deepest first is an
 * order in which every child comes before its parent; a stable sort by score then keeps that among
 * equals.
 */
static uint32_t lift_parents(const struct kvp_graph *g, struct kvp_ranking *r)
{
	float *depth = r->company; /* free by now */
	uint32_t n = 0, i, *sorted;

	for (i = 0; i < g->opts.max_blocks; i++)
		if (g->nodes[i].used) {
			depth[i] = (float)g->nodes[i].depth;
			r->order[n++] = i;
		}
	sorted = sort_by_float(depth, r->order, r->scratch, n, 1);
	r->scratch = sorted == r->scratch ? r->order : r->scratch;
	r->order = sorted;
	for (i = 0; i < n; i++) {
		uint32_t parent = g->nodes[sorted[i]].parent;

		if (parent != KVP_BLOCK_NONE && g->nodes[parent].used &&
			r->score[parent] < r->score[sorted[i]])
			r->score[parent] = r->score[sorted[i]];
	}
	return n;
}

int kvp_graph_rank(struct kvp_graph *g, const uint8_t *busy, uint64_t now, struct kvp_ranking *r)
{
	uint32_t tick = graph_tick(g, now), n, i, *sorted;

	if (r->max_blocks < g->opts.max_blocks)
		return -EINVAL;
	scan_nodes(g, tick, r);
	scan_edges(g, tick, r);
	score_nodes(g, busy, tick, r);
	n = lift_parents(g, r);
	sorted = sort_by_float(r->score, r->order, r->scratch, n, 0);
	r->scratch = sorted == r->scratch ? r->order : r->scratch;
	r->order = sorted;
	r->n_evict = 0;
	for (i = 0; i < n && r->n_evict < r->batch && r->score[sorted[i]] < SCORE_HELD; i++)
		if (!g->nodes[sorted[i]].cold)
			r->evict[r->n_evict++] = sorted[i];
	for (i = g->opts.max_blocks; i < r->max_blocks; i++)
		r->score[i] = -1;
	r->made_at = now;
	r->made = 1;
	return 0;
}

static int stale(const struct kvp_ranking *r, uint64_t now, uint64_t max_age)
{
	return !r->made || (now > r->made_at && now - r->made_at > max_age);
}

int kvp_ranking_evict(const struct kvp_ranking *r, uint64_t now, uint64_t max_age, uint32_t n,
	kvp_block_id *ret_blocks)
{
	if (stale(r, now, max_age))
		return -ESTALE;
	if (n > r->n_evict)
		n = r->n_evict;
	memcpy(ret_blocks, r->evict, n * sizeof(*ret_blocks));
	return (int)n;
}

static int is_active(const kvp_block_id *active, uint32_t n, kvp_block_id block)
{
	uint32_t i;

	for (i = 0; i < n; i++)
		if (active[i] == block)
			return 1;
	return 0;
}

int kvp_ranking_prefetch(const struct kvp_ranking *r, uint64_t now, uint64_t max_age,
	const kvp_block_id *active, uint32_t n_active, uint32_t n, kvp_block_id *ret_blocks)
{
	struct neighbour found[KVP_GRAPH_ACTIVE_MAX * KVP_GRAPH_NEIGHBOURS];
	uint32_t n_found = 0, i, k, f;

	if (stale(r, now, max_age))
		return -ESTALE;
	if (n_active > KVP_GRAPH_ACTIVE_MAX) {
		active += n_active - KVP_GRAPH_ACTIVE_MAX;
		n_active = KVP_GRAPH_ACTIVE_MAX;
	}
	for (i = 0; i < n_active; i++) {
		if (active[i] >= r->max_blocks)
			continue;
		for (k = 0; k < KVP_GRAPH_NEIGHBOURS; k++) {
			const struct neighbour *c = &r->cold[active[i]][k];

			if (!(c->weight > 0))
				break;
			for (f = 0; f < n_found && found[f].block != c->block; f++)
				;
			if (f == n_found) {
				if (is_active(active, n_active, c->block))
					continue;
				found[n_found++] =
					(struct neighbour){ c->block, r->importance[c->block] / 4 };
			}
			found[f].weight += c->weight;
		}
	}
	for (i = 0; i < n && i < n_found; i++) { /* n is small: take the best, n times */
		uint32_t best = i;
		struct neighbour t;

		for (f = i + 1; f < n_found; f++)
			if (found[f].weight > found[best].weight)
				best = f;
		t = found[i];
		found[i] = found[best];
		found[best] = t;
		ret_blocks[i] = found[i].block;
	}
	return (int)i;
}

float kvp_ranking_score(const struct kvp_ranking *r, kvp_block_id block)
{
	return block < r->max_blocks ? r->score[block] : -1;
}
