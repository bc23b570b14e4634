/* SPDX-License-Identifier: Apache-2.0 */
/* The block graph as it is told of: nodes, edges that grow and fade, sketches of keys. */
#include "policy/graph.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CO_ATTEND_AFTER 3u /* co-occurrences that make an edge */

/* Share of the way to 1 that one observation moves a weight, by kind. */
static const float gain[KVP_EDGES] = { .25f, .1f, 0, .5f, .5f };

void kvp_graph_opts_init(
	struct kvp_graph_opts *opts, uint32_t max_blocks, uint32_t max_edges, double half_life)
{
	*opts = (struct kvp_graph_opts){
		.size = sizeof(*opts),
		.max_blocks = max_blocks,
		.max_edges = max_edges,
		.pairs = 100,
		.compare = 200,
		.semantic_min = .8,
		.half_life = half_life,
		.protect_share = 4,
	};
}

static int opts_valid(const struct kvp_graph_opts *o)
{
	return o->size == sizeof(*o) && o->max_blocks && o->max_blocks <= UINT32_C(1) << 26 &&
	       o->max_edges >= GRAPH_WAYS && o->max_edges <= UINT32_C(1) << 27 &&
	       o->pairs <= 1000000 && o->sketch_dims <= 256 && o->compare >= 1 &&
	       o->compare <= 1000 && o->semantic_min >= 0 && o->semantic_min <= 1 &&
	       o->half_life > 0 && isfinite(o->half_life) && o->protect_share > 0;
}

static uint32_t edge_slots(const struct kvp_graph_opts *o)
{
	uint32_t slots = GRAPH_WAYS;

	while (slots < o->max_edges)
		slots *= 2;
	return slots;
}

uint64_t kvp_graph_bytes(const struct kvp_graph_opts *o)
{
	if (!opts_valid(o))
		return 0;
	return sizeof(struct kvp_graph) + o->max_blocks * (uint64_t)sizeof(struct graph_node) +
	       edge_slots(o) * (uint64_t)sizeof(struct graph_edge) +
	       (o->sketch_dims ? o->compare * (o->sketch_dims * UINT64_C(4) + 6) : 0);
}

int kvp_graph_new(const struct kvp_graph_opts *opts, struct kvp_graph **ret)
{
	struct kvp_graph *g;
	uint32_t slots, i;

	if (!opts_valid(opts))
		return -EINVAL;
	g = calloc(1, sizeof(*g));
	if (!g)
		return -ENOMEM;
	g->opts = *opts;
	slots = edge_slots(opts);
	g->bucket_mask = slots / GRAPH_WAYS - 1;
	g->nodes = calloc(opts->max_blocks, sizeof(*g->nodes));
	g->edges = calloc(slots, sizeof(*g->edges));
	if (opts->sketch_dims) {
		g->ring = calloc((size_t)opts->compare * opts->sketch_dims, sizeof(*g->ring));
		g->ring_block = calloc(opts->compare, sizeof(*g->ring_block));
		g->ring_gen = calloc(opts->compare, sizeof(*g->ring_gen));
	}
	if (!g->nodes || !g->edges ||
		(opts->sketch_dims && (!g->ring || !g->ring_block || !g->ring_gen))) {
		kvp_graph_free(g);
		return -ENOMEM;
	}
	for (i = 0; i < GRAPH_DECAY_STEPS; i++)
		g->decay[i] = (float)exp2(-(double)i / GRAPH_TICKS);
	*ret = g;
	return 0;
}

struct kvp_graph *kvp_graph_free(struct kvp_graph *g)
{
	if (g) {
		free(g->nodes);
		free(g->edges);
		free(g->ring);
		free(g->ring_block);
		free(g->ring_gen);
		free(g);
	}
	return NULL;
}

static struct graph_node *node_of(const struct kvp_graph *g, kvp_block_id block)
{
	if (block >= g->opts.max_blocks || !g->nodes[block].used)
		return NULL;
	return &g->nodes[block];
}

/* Time since the first event, in ticks of half_life / GRAPH_TICKS; saturates after 2M half-lives.
 */
uint32_t graph_tick(const struct kvp_graph *g, uint64_t now)
{
	double t = now > g->epoch ? (double)(now - g->epoch) / g->opts.half_life * GRAPH_TICKS : 0;

	return t < GRAPH_TICK_MAX ? (uint32_t)t : GRAPH_TICK_MAX;
}

float graph_decay(const struct kvp_graph *g, uint32_t then, uint32_t now)
{
	uint32_t d = now > then ? now - then : 0;

	return d < GRAPH_DECAY_STEPS ? g->decay[d] : 0;
}

static void start_clock(struct kvp_graph *g, uint64_t now)
{
	if (!g->started) {
		g->epoch = now;
		g->started = 1;
	}
}

static struct graph_edge *bucket_of(
	const struct kvp_graph *g, uint32_t a, uint32_t b, uint32_t kind)
{
	uint64_t h = ((uint64_t)a << 32 | b) * UINT64_C(0x9e3779b97f4a7c15);

	h ^= h >> 29;
	h = (h + kind) * UINT64_C(0xbf58476d1ce4e5b9);
	return &g->edges[((h >> 32) & g->bucket_mask) * GRAPH_WAYS];
}

/* The edge's slot, or NULL; *ret_free: where a new one would go, an empty slot or the weakest. */
static struct graph_edge *find_edge(const struct kvp_graph *g, uint32_t a, uint32_t b,
	uint32_t kind, uint32_t tick, struct graph_edge **ret_free)
{
	struct graph_edge *e = bucket_of(g, a, b, kind), *weakest = NULL;
	float least = INFINITY;
	uint32_t i;

	for (i = 0; i < GRAPH_WAYS; i++, e++) {
		float w;

		if (e->a == a && e->b == b && e->weight > 0 && graph_kind(e) == kind &&
			graph_alive(g, e))
			return e;
		w = e->weight > 0 && graph_alive(g, e)
			    ? e->weight * graph_decay(g, graph_stamp(e), tick)
			    : -1;
		if (w < least) {
			least = w;
			weakest = e;
		}
	}
	if (ret_free)
		*ret_free = weakest;
	return NULL;
}

/* Observes a and b together; `target` is used by kinds whose weight is given rather than learnt. */
static void observe(
	struct kvp_graph *g, uint32_t a, uint32_t b, uint32_t kind, uint32_t tick, float target)
{
	struct graph_edge *slot, *e;
	uint32_t count, t;

	if (a == b)
		return;
	if (a > b) {
		t = a;
		a = b;
		b = t;
	}
	e = find_edge(g, a, b, kind, tick, &slot);
	if (!e) {
		e = slot;
		*e = (struct graph_edge){
			.a = a, .b = b, .gen_a = g->nodes[a].gen, .gen_b = g->nodes[b].gen
		};
	}
	e->weight *= graph_decay(g, graph_stamp(e), tick);
	if (kind == KVP_EDGE_SEMANTIC)
		e->weight = target;
	else
		e->weight += gain[kind] * (1 - e->weight);
	count = graph_count(e) < CO_ATTEND_AFTER ? graph_count(e) + 1 : CO_ATTEND_AFTER;
	graph_set_meta(e, kind, count, tick);
}

int graph_counts(const struct graph_edge *e)
{
	return graph_kind(e) != KVP_EDGE_CO_ATTEND || graph_count(e) >= CO_ATTEND_AFTER;
}

int kvp_graph_insert(struct kvp_graph *g, const struct kvp_graph_block *block, uint64_t now)
{
	struct graph_node *n, *parent = NULL;
	uint32_t tick;

	if (block->block >= g->opts.max_blocks || block->label >= KVP_LABELS ||
		!(block->importance >= 0) || block->importance > 1)
		return -EINVAL;
	if (block->parent != KVP_BLOCK_NONE) {
		parent = node_of(g, block->parent);
		if (!parent || block->parent == block->block)
			return -EINVAL;
	}
	n = &g->nodes[block->block];
	if (n->used)
		return -EEXIST;
	start_clock(g, now);
	tick = graph_tick(g, now);
	*n = (struct graph_node){
		.parent = block->parent,
		.parent_gen = parent ? (uint8_t)parent->gen : 0,
		.depth = parent ? parent->depth + 1 : 0,
		.first_token = block->first_token,
		.tokens = block->tokens,
		.session = block->session,
		.importance = block->importance,
		.last_tick = tick,
		.last_access = now,
		.label = (uint8_t)block->label,
		.used = 1,
		.gen = n->gen,
	};
	g->n_nodes++;
	if (parent)
		observe(g, block->parent, block->block, KVP_EDGE_TEMPORAL, tick, 0);
	return 0;
}

int kvp_graph_remove(struct kvp_graph *g, kvp_block_id block)
{
	struct graph_node *n = node_of(g, block);

	if (!n)
		return -ENOENT;
	/* Edges name the generation of both ends, so those of a former block are dead at once. */
	*n = (struct graph_node){ .gen = (uint16_t)(n->gen + 1) };
	g->n_nodes--;
	return 0;
}

int kvp_graph_get(
	const struct kvp_graph *g, kvp_block_id block, uint64_t now, struct kvp_graph_node *ret)
{
	const struct graph_node *n = node_of(g, block);

	if (!n)
		return -ENOENT;
	*ret = (struct kvp_graph_node){
		.block = { block, graph_parent(g, n), n->label, n->first_token, n->tokens,
			n->session, n->importance },
		.accesses = n->heat * graph_decay(g, n->last_tick, graph_tick(g, now)),
		.total_accesses = n->accesses,
		.last_access = n->last_access,
		.cold = n->cold,
	};
	return 0;
}

int kvp_graph_set_importance(struct kvp_graph *g, kvp_block_id block, float importance)
{
	struct graph_node *n = node_of(g, block);

	if (!n)
		return -ENOENT;
	if (!(importance >= 0) || importance > 1)
		return -EINVAL;
	n->importance = importance;
	return 0;
}

uint32_t kvp_graph_request(
	struct kvp_graph *g, const kvp_block_id *chain, uint32_t n, uint32_t session, uint64_t now)
{
	uint32_t tick = graph_tick(g, now), shared = 0, i;
	kvp_block_id before = KVP_BLOCK_NONE;

	for (i = 0; i < n; i++) {
		struct graph_node *x = node_of(g, chain[i]);

		if (!x)
			continue;
		x->heat = x->heat * graph_decay(g, x->last_tick, tick) + 1;
		x->accesses += x->accesses < UINT32_MAX;
		x->last_tick = tick;
		x->last_access = now;
		if (x->session != session) {
			shared++;
			x->session = session;
			if (before != KVP_BLOCK_NONE)
				observe(g, before, chain[i], KVP_EDGE_PREFIX_SHARE, tick, 0);
		}
		before = chain[i];
	}
	return shared;
}

void kvp_graph_co_attend(struct kvp_graph *g, const kvp_block_id *blocks, uint32_t n, uint64_t now)
{
	uint32_t tick = graph_tick(g, now), left = g->opts.pairs, distance, i;

	for (distance = 1; distance < n && left; distance++)
		for (i = 0; i + distance < n && left; i++, left--)
			if (node_of(g, blocks[i]) && node_of(g, blocks[i + distance]))
				observe(g, blocks[i], blocks[i + distance], KVP_EDGE_CO_ATTEND,
					tick, 0);
}

int kvp_graph_sketch(struct kvp_graph *g, kvp_block_id block, const float *sketch, uint64_t now)
{
	uint32_t dims = g->opts.sketch_dims, tick = graph_tick(g, now), i, k;
	double norm = 0;
	float *row;

	if (!node_of(g, block))
		return -ENOENT;
	for (k = 0; k < dims; k++)
		norm += (double)sketch[k] * sketch[k];
	if (!dims || !(norm > 0) || !isfinite(norm))
		return -EINVAL;
	norm = 1 / sqrt(norm);
	for (i = 0; i < g->ring_used; i++) {
		const struct graph_node *other = node_of(g, g->ring_block[i]);
		double cosine = 0;

		if (!other || other->gen != g->ring_gen[i] || g->ring_block[i] == block)
			continue;
		row = g->ring + (size_t)i * dims;
		for (k = 0; k < dims; k++)
			cosine += row[k] * sketch[k] * norm;
		if (cosine >= g->opts.semantic_min)
			observe(g, block, g->ring_block[i], KVP_EDGE_SEMANTIC, tick,
				(float)fmin(1, cosine));
	}
	row = g->ring + (size_t)g->ring_next * dims;
	for (k = 0; k < dims; k++)
		row[k] = (float)(sketch[k] * norm);
	g->ring_block[g->ring_next] = block;
	g->ring_gen[g->ring_next] = g->nodes[block].gen;
	g->ring_next = (g->ring_next + 1) % g->opts.compare;
	if (g->ring_used < g->opts.compare)
		g->ring_used++;
	return 0;
}

int kvp_graph_spill(struct kvp_graph *g, kvp_block_id block, int cold, uint64_t now)
{
	struct graph_node *n = node_of(g, block);
	struct graph_edge *e;
	uint32_t tick = graph_tick(g, now), parent, a, b;

	if (!n)
		return -ENOENT;
	if (n->cold == !!cold)
		return 0;
	n->cold = !!cold;
	parent = graph_parent(g, n);
	if (parent == KVP_BLOCK_NONE)
		return 0;
	if (cold && !g->nodes[parent].cold) {
		observe(g, parent, block, KVP_EDGE_SPILL_LINK, tick, 0);
	} else if (!cold) {
		a = block < parent ? block : parent;
		b = block < parent ? parent : block;
		e = find_edge(g, a, b, KVP_EDGE_SPILL_LINK, tick, NULL);
		if (e)
			e->weight = 0;
	}
	return 0;
}

double kvp_graph_weight(
	const struct kvp_graph *g, kvp_block_id a, kvp_block_id b, uint32_t kind, uint64_t now)
{
	uint32_t tick = graph_tick(g, now);
	const struct graph_edge *e;

	if (!node_of(g, a) || !node_of(g, b) || kind >= KVP_EDGES)
		return 0;
	e = find_edge(g, a < b ? a : b, a < b ? b : a, kind, tick, NULL);
	return e && graph_counts(e) ? e->weight * graph_decay(g, graph_stamp(e), tick) : 0;
}

void kvp_graph_count(
	const struct kvp_graph *g, uint64_t now, uint32_t *ret_nodes, uint32_t *ret_edges)
{
	uint32_t slots = (g->bucket_mask + 1) * GRAPH_WAYS, tick = graph_tick(g, now), i;

	*ret_nodes = g->n_nodes;
	memset(ret_edges, 0, KVP_EDGES * sizeof(*ret_edges));
	for (i = 0; i < slots; i++) {
		const struct graph_edge *e = &g->edges[i];

		if (e->weight > 0 && graph_alive(g, e) && graph_counts(e) &&
			e->weight * graph_decay(g, graph_stamp(e), tick) > 0)
			ret_edges[graph_kind(e)]++;
	}
}
