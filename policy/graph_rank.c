/* SPDX-License-Identifier: Apache-2.0 */
/* Rankings of the block graph: scores, the order of eviction, and the neighbours to prefetch. */
#include "policy/graph.h"
#include "policy/sort.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FORGET_BELOW 1e-3f /* an edge of less weight is dropped */

#define LOOK_AHEAD 24u /* edges between the prefetch of their nodes and their use */

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

/* What the pass over the edges reads and sums for a node, close together: it is all random access.
 */
struct node_sum {
	float recency;
	float degree;  /* sum of weights */
	float company; /* sum of weight * recency of neighbours */
	float share;
	float least; /* weakest of the cold neighbours, once the list is full */
	uint16_t gen;
	uint8_t n_cold;
	uint8_t used : 1;
	uint8_t cold : 1;
};

struct kvp_ranking {
	uint32_t max_blocks;
	uint32_t batch;
	uint64_t made_at;
	int made;
	uint32_t n_nodes;
	uint32_t n_edges;
	uint32_t n_evict;
	kvp_block_id *evict;                            /* [batch] */
	struct neighbour (*cold)[KVP_GRAPH_NEIGHBOURS]; /* in no order; weight 0: none */
	float *score;                                   /* [max_blocks]; -1: no node */
	float *importance;
	/* scratch of the making */
	struct node_sum *sum;
	float *depth;
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
	r->sum = calloc(n, sizeof(*r->sum));
	r->depth = calloc(n, sizeof(*r->depth));
	r->order = calloc(n, sizeof(*r->order));
	r->scratch = calloc(n, sizeof(*r->scratch));
	if (!r->evict || !r->cold || !r->score || !r->importance || !r->sum || !r->depth ||
		!r->order || !r->scratch)
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
		free(r->sum);
		free(r->depth);
		free(r->order);
		free(r->scratch);
		free(r);
	}
	return NULL;
}

uint64_t kvp_ranking_bytes(uint32_t max_blocks, uint32_t batch)
{
	const struct kvp_ranking *r = NULL;

	return sizeof(*r) + batch * (uint64_t)sizeof(*r->evict) +
	       max_blocks * (uint64_t)(sizeof(*r->cold) + sizeof(*r->score) +
				       sizeof(*r->importance) + sizeof(*r->sum) +
				       sizeof(*r->depth) + sizeof(*r->order) + sizeof(*r->scratch));
}

/*
 * Remembers `block` among the strongest cold neighbours of another; several kinds of edge to it are
 * several entries, which the reader adds up. `least` is the weakest entry of a full list.
 */
static void add_cold(struct neighbour *list, struct node_sum *sum, uint32_t block, float weight)
{
	uint32_t i, weakest = 0;

	if (sum->n_cold < KVP_GRAPH_NEIGHBOURS) {
		list[sum->n_cold++] = (struct neighbour){ block, weight };
		if (sum->n_cold < KVP_GRAPH_NEIGHBOURS)
			return;
	} else if (weight <= sum->least) {
		return;
	} else {
		while (list[weakest].weight > sum->least)
			weakest++;
		list[weakest] = (struct neighbour){ block, weight };
	}
	sum->least = list[0].weight;
	for (i = 1; i < KVP_GRAPH_NEIGHBOURS; i++)
		if (list[i].weight < sum->least)
			sum->least = list[i].weight;
}

static void scan_nodes(const struct kvp_graph *g, uint32_t tick, struct kvp_ranking *r)
{
	uint32_t i;

	memset(r->cold, 0, g->opts.max_blocks * sizeof(*r->cold));
	for (i = 0; i < g->opts.max_blocks; i++) {
		const struct graph_node *n = &g->nodes[i];

		r->sum[i] = (struct node_sum){
			.recency = n->used ? graph_decay(g, n->last_tick, tick) : 0,
			.gen = n->gen,
			.used = n->used,
			.cold = n->cold,
		};
		r->importance[i] = n->importance;
	}
}

static void scan_edges(struct kvp_graph *g, uint32_t tick, struct kvp_ranking *r)
{
	uint32_t slots = (g->bucket_mask + 1) * GRAPH_WAYS, i;

	r->n_edges = 0;
	for (i = 0; i < slots; i++) {
		struct graph_edge *e = &g->edges[i];
		struct node_sum *a, *b;
		float w;

		if (i + LOOK_AHEAD < slots && e[LOOK_AHEAD].weight > 0) {
			__builtin_prefetch(&r->sum[e[LOOK_AHEAD].a], 1);
			__builtin_prefetch(&r->sum[e[LOOK_AHEAD].b], 1);
		}
		if (e->weight == 0)
			continue;
		a = &r->sum[e->a];
		b = &r->sum[e->b];
		w = e->weight * graph_decay(g, graph_stamp(e), tick);
		if (w < FORGET_BELOW || !a->used || !b->used || a->gen != e->gen_a ||
			b->gen != e->gen_b) {
			e->weight = 0;
			continue;
		}
		if (!graph_counts(e))
			continue;
		r->n_edges++;
		a->degree += w;
		b->degree += w;
		a->company += w * b->recency;
		b->company += w * a->recency;
		if (graph_kind(e) == KVP_EDGE_PREFIX_SHARE) {
			a->share += w;
			b->share += w;
		}
		if (b->cold)
			add_cold(r->cold[e->a], a, e->b, w);
		if (a->cold)
			add_cold(r->cold[e->b], b, e->a, w);
	}
}

static void score_nodes(
	const struct kvp_graph *g, const uint8_t *busy, uint32_t tick, struct kvp_ranking *r)
{
	uint32_t i;

	for (i = 0; i < g->opts.max_blocks; i++) {
		const struct graph_node *n = &g->nodes[i];
		const struct node_sum *sum = &r->sum[i];
		float c, company;

		if (!n->used) {
			r->score[i] = -1;
			continue;
		}
		c = n->heat * graph_decay(g, n->last_tick, tick);
		company = sum->degree > 0 ? sum->company / sum->degree : 0;
		r->score[i] = WEIGHT_RECENCY * sum->recency + WEIGHT_FREQUENCY * c / (1 + c) +
			      WEIGHT_SHARING * sum->share / (1 + sum->share) +
			      WEIGHT_COMPANY * company + WEIGHT_IMPORTANCE * n->importance;
		if (n->label == KVP_LABEL_SYSTEM || (busy && busy[i]) ||
			sum->share >= (float)g->opts.protect_share)
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
	float *depth = r->depth;
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
		uint32_t parent = graph_parent(g, &g->nodes[sorted[i]]);

		if (parent != KVP_BLOCK_NONE && r->score[parent] < r->score[sorted[i]])
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
	r->n_nodes = n;
	r->made_at = now;
	r->made = 1;
	return 0;
}

int kvp_ranking_stale(const struct kvp_ranking *r, uint64_t now, uint64_t max_age)
{
	return !r->made || (now > r->made_at && now - r->made_at > max_age);
}

int kvp_ranking_evict(const struct kvp_ranking *r, uint64_t now, uint64_t max_age, uint32_t n,
	kvp_block_id *ret_blocks)
{
	if (kvp_ranking_stale(r, now, max_age))
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

	if (kvp_ranking_stale(r, now, max_age))
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

void kvp_ranking_size(const struct kvp_ranking *r, uint32_t *ret_nodes, uint32_t *ret_edges)
{
	*ret_nodes = r->n_nodes;
	*ret_edges = r->n_edges;
}
