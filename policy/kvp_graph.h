/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A graph of blocks for the advisor thread: who is used with whom, and what follows from that for
 * eviction and prefetch.
 *
 * Nodes are blocks with a label, a token range, an importance and a decaying count of accesses.
 * Edges are undirected, weighted in (0, 1], and of five kinds:
 *
 *	prefix_share	neighbours in a chain that more than one session has used
 *	co_attend	attended together, from the third time on
 *	semantic	similar key sketches (cosine of at least semantic_min)
 *	temporal	neighbours in a chain, from the moment the child is created
 *	spill_link	a block in a slower tier and its neighbour in the chain that stayed fast
 *
 * Every observation moves a weight a share of the way to 1; weights and access counts halve every
 * half_life of disuse, so nothing needs a sweep to age.
 *
 * kvp_graph_rank() turns the graph into a ranking: an immutable object that other threads may read
 * without a lock, for as long as its owner keeps it (the daemon swaps an atomic pointer). Readers
 * pass the time; a ranking older than max_age answers -ESTALE, and the caller evicts first-in
 * first-out instead.
 *
 * A node's keep score adds five terms, each in [0, 1]:
 *
 *	.30 recency   2^(-age / half_life)
 *	.25 frequency c / (1 + c), c the decayed count
 *	.15 sharing   s / (1 + s), s the sum of prefix_share weights
 *	.15 company   the weight-averaged recency of its neighbours
 *	.15 importance
 *
 * and a parent's score is at least its children's. (The founding formula, .01 age - 5 degree - 2
 * weights - 20 importance - 3 hits, is unbounded in every term: whichever is largest decides
 * alone.) docs/policies.md measures what the score is worth for eviction; prefetch is its use.
 *
 * Capacities are fixed at creation: nodes are the block ids below max_blocks, edges live in a
 * table of max_edges slots, where a new edge replaces the weakest of its bucket when that is full.
 * Memory: 48 bytes a block and 20 an edge slot; a ranking has 92 a block (kvp_graph_bytes() and
 * kvp_ranking_bytes() say it exactly). One owner per graph, no
 * locks, no clock: `now` is in any unit and must not run backwards by more than it matters; only
 * ratios to half_life count. Errors are negative errno; outputs come last and are untouched on
 * failure.
 */
#ifndef KVP_GRAPH_H
#define KVP_GRAPH_H

#include "shm/kvp_types.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_LABEL_SYSTEM     0u /* never suggested for eviction */
#define KVP_LABEL_USER       1u
#define KVP_LABEL_ASSISTANT  2u
#define KVP_LABEL_TOOL       3u
#define KVP_LABEL_GENERATION 4u
#define KVP_LABELS           5u

#define KVP_EDGE_PREFIX_SHARE 0u
#define KVP_EDGE_CO_ATTEND    1u
#define KVP_EDGE_SEMANTIC     2u
#define KVP_EDGE_TEMPORAL     3u
#define KVP_EDGE_SPILL_LINK   4u
#define KVP_EDGES             5u

#define KVP_GRAPH_NEIGHBOURS 6u  /* cold neighbours that a ranking keeps for each block */
#define KVP_GRAPH_ACTIVE_MAX 64u /* active blocks that a prefetch looks at: the last ones given */

struct kvp_graph_opts {
	uint32_t size;        /* sizeof(struct kvp_graph_opts) */
	uint32_t max_blocks;  /* 1..2^26 */
	uint32_t max_edges;   /* slots, 8..2^27, rounded up to a power of two */
	uint32_t pairs;       /* pairs that one co_attend call looks at, default 100 */
	uint32_t sketch_dims; /* floats of a key sketch, 0..256; 0: no semantic edges */
	uint32_t compare;     /* sketches that a new one is compared with: the last 1..1000 */
	double semantic_min;  /* cosine, 0..1, default .8 */
	double half_life;     /* in the unit of `now`, > 0 */
	double protect_share; /* sum of prefix_share weights from which a block is protected */
};

struct kvp_graph;

/* Defaults: no sketches, 200 comparisons, protect_share 4. */
void kvp_graph_opts_init(
	struct kvp_graph_opts *opts, uint32_t max_blocks, uint32_t max_edges, double half_life);
/* -EINVAL, -ENOMEM. */
int kvp_graph_new(const struct kvp_graph_opts *opts, struct kvp_graph **ret);
/* What a graph of these options allocates; 0: they are not valid. */
uint64_t kvp_graph_bytes(const struct kvp_graph_opts *opts);
struct kvp_graph *kvp_graph_free(struct kvp_graph *g);

struct kvp_graph_block {
	kvp_block_id block;
	kvp_block_id parent;  /* KVP_BLOCK_NONE, or a node */
	uint32_t label;       /* KVP_LABEL_* */
	uint32_t first_token; /* position in its chain */
	uint32_t tokens;
	uint32_t session; /* that made it */
	float importance; /* 0..1 */
};

/* A new block; a temporal edge joins it to its parent. -EEXIST, -EINVAL (parent not a node too). */
int kvp_graph_insert(struct kvp_graph *g, const struct kvp_graph_block *block, uint64_t now);

/* The block is gone, and its edges with it. -ENOENT. Its children keep their own edges. */
int kvp_graph_remove(struct kvp_graph *g, kvp_block_id block);

/* A copy of what is known of a node; a parent that was removed is none. accesses: decayed to `now`.
 * -ENOENT. */
struct kvp_graph_node {
	struct kvp_graph_block block;
	double accesses;
	uint64_t total_accesses;
	uint64_t last_access;
	int cold; /* its payload is in a slower tier */
};
int kvp_graph_get(
	const struct kvp_graph *g, kvp_block_id block, uint64_t now, struct kvp_graph_node *ret);

/* 0..1; -ENOENT, -EINVAL. */
int kvp_graph_set_importance(struct kvp_graph *g, kvp_block_id block, float importance);

/*
 * A session has used a chain of blocks, root first. Counts an access for each; where another
 * session used or made them before, prefix_share edges join the neighbours. Unknown blocks are
 * skipped. Returns how many blocks were shared with another session.
 */
uint32_t kvp_graph_request(
	struct kvp_graph *g, const kvp_block_id *chain, uint32_t n, uint32_t session, uint64_t now);

/* These were attended together in one step. Looks at opts.pairs pairs at most, nearest first. */
void kvp_graph_co_attend(struct kvp_graph *g, const kvp_block_id *blocks, uint32_t n, uint64_t now);

/* A sketch (for instance the mean key) of sketch_dims floats. -ENOENT; -EINVAL without sketches, or
 * when it is zero or not finite. */
int kvp_graph_sketch(struct kvp_graph *g, kvp_block_id block, const float *sketch, uint64_t now);

/* The block's fastest payload went to a slower tier (cold = 1) or came back (0). -ENOENT. */
int kvp_graph_spill(struct kvp_graph *g, kvp_block_id block, int cold, uint64_t now);

/* Decayed weight of an edge; 0 where there is none (or not yet: co_attend counts to three). */
double kvp_graph_weight(
	const struct kvp_graph *g, kvp_block_id a, kvp_block_id b, uint32_t kind, uint64_t now);

/* Live nodes and edges by kind; a pass over the whole table. */
void kvp_graph_count(
	const struct kvp_graph *g, uint64_t now, uint32_t *ret_nodes, uint32_t *ret_edges);

/* ---- rankings ---- */

struct kvp_ranking;

/* Room for a graph of max_blocks and `batch` eviction candidates (the daemon's default: 256). */
struct kvp_ranking *kvp_ranking_new(uint32_t max_blocks, uint32_t batch);
struct kvp_ranking *kvp_ranking_free(struct kvp_ranking *r);
/* What it allocates. */
uint64_t kvp_ranking_bytes(uint32_t max_blocks, uint32_t batch);

/*
 * Ranks the graph into r, which no reader may be using. busy[max_blocks], may be NULL: non-zero for
 * blocks that are leased, pinned or being moved; they are not suggested. Forgets edges that have
 * decayed to nothing. -EINVAL when r is for fewer blocks.
 */
int kvp_graph_rank(struct kvp_graph *g, const uint8_t *busy, uint64_t now, struct kvp_ranking *r);

/*
 * The n blocks to give up first, distinct, children before parents; never a system block, a busy
 * one, one shared by many (protect_share), a parent of any of these, or one that is cold already.
 * How many; fewer than n when there are no more or n exceeds the batch. -ESTALE when the ranking is
 * older than max_age at `now`. Any thread.
 */
int kvp_ranking_evict(const struct kvp_ranking *r, uint64_t now, uint64_t max_age, uint32_t n,
	kvp_block_id *ret_blocks);

/*
 * The n cold blocks that are nearest to the active ones: sum of edge weights, plus a quarter of
 * their importance. Best first, distinct, none of the active ones. As above otherwise.
 */
int kvp_ranking_prefetch(const struct kvp_ranking *r, uint64_t now, uint64_t max_age,
	const kvp_block_id *active, uint32_t n_active, uint32_t n, kvp_block_id *ret_blocks);

/* Non-zero: it was never made, or is older than max_age at `now`. Any thread. */
int kvp_ranking_stale(const struct kvp_ranking *r, uint64_t now, uint64_t max_age);

/* How many nodes and edges (those that count) it was made of; 0 and 0 before. Any thread. */
void kvp_ranking_size(const struct kvp_ranking *r, uint32_t *ret_nodes, uint32_t *ret_edges);

/* The keep score of a block at the time of the ranking, 2 for a block that was held (busy,
 * protected, or with such a block behind it), negative for what is no node. Any thread. */
float kvp_ranking_score(const struct kvp_ranking *r, kvp_block_id block);

#ifdef __cplusplus
}
#endif
#endif
