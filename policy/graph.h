/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the graph: nodes by block id, and a set-associative table of edges (buckets of eight;
 * no tombstones, no chains: what does not fit replaces the weakest of its bucket).
 */
#ifndef KVP_POLICY_GRAPH_H
#define KVP_POLICY_GRAPH_H

#include "policy/kvp_graph.h"

#include <assert.h>

#define GRAPH_WAYS        8u
#define GRAPH_TICKS       64u                 /* per half-life */
#define GRAPH_DECAY_STEPS (24u * GRAPH_TICKS) /* after 24 half-lives a weight counts as 0 */
#define GRAPH_TICK_MAX    ((UINT32_C(1) << 27) - 1)

struct graph_node {
	uint32_t parent;
	uint32_t depth;
	uint32_t first_token;
	uint32_t tokens;
	uint32_t session; /* that used it last */
	uint32_t accesses;
	float importance;
	float heat; /* accesses, decayed to last_tick */
	uint64_t last_access;
	uint32_t last_tick;
	uint16_t gen; /* of the block id: edges to a former block are dead */
	uint8_t label : 4;
	uint8_t used : 1;
	uint8_t cold : 1;
	uint8_t parent_gen; /* low bits of the parent's gen: its id may be another block's by now */
};

static_assert(sizeof(struct graph_node) == 48, "what kvp_graph.h says");

struct graph_edge {
	uint32_t a, b; /* a < b */
	float weight;  /* at the time of the stamp; 0: the slot is empty */
	uint32_t meta; /* kind in 3 bits, count in 2, stamp (ticks) in 27 */
	uint16_t gen_a, gen_b;
};

struct kvp_graph {
	struct kvp_graph_opts opts;
	struct graph_node *nodes;
	struct graph_edge *edges;
	uint32_t bucket_mask;
	uint32_t n_nodes;
	uint64_t epoch;
	int started;
	float *ring; /* [compare][sketch_dims], unit vectors */
	uint32_t *ring_block;
	uint16_t *ring_gen;
	uint32_t ring_next;
	uint32_t ring_used;
	float decay[GRAPH_DECAY_STEPS];
};

static inline uint32_t graph_kind(const struct graph_edge *e)
{
	return e->meta & 7;
}

static inline uint32_t graph_count(const struct graph_edge *e)
{
	return e->meta >> 3 & 3;
}

static inline uint32_t graph_stamp(const struct graph_edge *e)
{
	return e->meta >> 5;
}

static inline void graph_set_meta(
	struct graph_edge *e, uint32_t kind, uint32_t count, uint32_t tick)
{
	e->meta = tick << 5 | count << 3 | kind;
}

/* Both ends are still the blocks that the edge was made for. */
static inline int graph_alive(const struct kvp_graph *g, const struct graph_edge *e)
{
	const struct graph_node *a = &g->nodes[e->a], *b = &g->nodes[e->b];

	return a->used && b->used && a->gen == e->gen_a && b->gen == e->gen_b;
}

/* The node's parent if that is still there, else KVP_BLOCK_NONE. */
static inline uint32_t graph_parent(const struct kvp_graph *g, const struct graph_node *n)
{
	const struct graph_node *p;

	if (n->parent == KVP_BLOCK_NONE)
		return KVP_BLOCK_NONE;
	p = &g->nodes[n->parent];
	return p->used && (uint8_t)p->gen == n->parent_gen ? n->parent : KVP_BLOCK_NONE;
}

uint32_t graph_tick(const struct kvp_graph *g, uint64_t now);
float graph_decay(const struct kvp_graph *g, uint32_t then, uint32_t now);
/* A co_attend edge counts from its third observation on. */
int graph_counts(const struct graph_edge *e);

#endif
