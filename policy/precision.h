/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the precision allocator: streams, steps, and the two solvers, apart from the
 * bookkeeping of plans. A stream is what has widths of its own: (K and V) together, or K, then V.
 * An item is a token in a stream, number stream * max_tokens + token.
 */
#ifndef KVP_POLICY_PRECISION_H
#define KVP_POLICY_PRECISION_H

#include "policy/kvp_precision.h"

#define PRECISION_STREAMS 2u
#define PRECISION_LEVELS  4u /* steps of the chain from the least width up: 2, 3, 4, 8 bits */
#define PRECISION_TOP     (PRECISION_LEVELS - 1)
/* 64 tokens x 12 units above the least, jointly or in two streams */
#define PRECISION_DP_UNITS (KVP_PRECISION_EXACT * 12 + 1)
#define PRECISION_DP_ITEMS (KVP_PRECISION_EXACT * PRECISION_STREAMS)

struct precision_stream {
	uint32_t cost[PRECISION_LEVELS]; /* units of heads * head_dim bits */
	double utility[PRECISION_LEVELS];
	uint32_t base;              /* lowest level */
	double gain[PRECISION_TOP]; /* utility per unit of the step from level k; falls with k */
};

struct kvp_precision {
	struct kvp_precision_opts opts;
	uint32_t n_streams;
	struct precision_stream stream[PRECISION_STREAMS];
	uint64_t unit_bits;  /* heads * head_dim */
	uint64_t scale_bits; /* of a token, K and V */
	uint64_t block_bits; /* overhead of a whole block, K and V */

	/* scratch of one call */
	float *weight;     /* [max_tokens]: importance, floored */
	uint32_t *order;   /* [max_tokens]: tokens by falling weight, lower token first */
	uint32_t *scratch; /* [max_tokens] */
	uint8_t *lo, *hi;  /* [streams * max_tokens]: bounds of an item's level */
	uint8_t *level;    /* [streams * max_tokens] */
	uint8_t *dp;       /* [PRECISION_DP_ITEMS * PRECISION_DP_UNITS] */

	/* over time */
	uint32_t known; /* tokens of the last plan */
	int planned;
	uint64_t last_step;
	double share;       /* units a token when all were last allocated */
	uint8_t *now;       /* [streams * max_tokens]: levels in force */
	uint8_t *streak;    /* [max_tokens] */
	uint8_t *guarded;   /* [max_tokens]: was protected at the last plan */
	float *rank_ref;    /* [max_tokens] */
	float *rank_smooth; /* [max_tokens] */
	float *reference;   /* [max_tokens]: weights at the last plan */
};

/* One accepted or skipped step of the greedy solver, for the test that follows it. */
struct precision_event {
	uint32_t item;
	uint8_t from, accepted; /* level before; 0 = skipped, it did not fit */
};

struct precision_outcome {
	uint64_t units; /* taken */
	double bound;   /* linear-programming bound on the utility */
};

static inline uint32_t precision_width(uint32_t level)
{
	return KVP_WIDTH_2 - level;
}

static inline uint32_t precision_bits(uint32_t level)
{
	return kvp_width_bits(precision_width(level));
}

static inline size_t precision_item(const struct kvp_precision *p, uint32_t stream, uint32_t token)
{
	return (size_t)stream * p->opts.max_tokens + token;
}

/* Weights and order from importance. -EINVAL for a value that is not finite. */
int precision_rank(struct kvp_precision *p, const float *importance, uint32_t n);

/* Both solvers: from lo and hi to level, within `units`; lo must fit. `trace` may be NULL. */
void precision_greedy(struct kvp_precision *p, uint32_t n, uint64_t units,
	struct precision_event *trace, uint32_t *ret_traced, struct precision_outcome *ret);
void precision_exact(struct kvp_precision *p, uint32_t n, uint64_t units, uint64_t *ret_units);

/* Down the reverse chain from level to at most `units`, not below lo. Returns units taken. */
uint64_t precision_reverse(struct kvp_precision *p, uint32_t n, uint64_t units);

uint64_t precision_units(const struct kvp_precision *p, const uint8_t *level, uint32_t n);
double precision_utility(const struct kvp_precision *p, const uint8_t *level, uint32_t n);

#endif
