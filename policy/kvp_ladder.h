/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pressure ladder: a tier is nearly full, so the cheapest losses go first: drop duplicates,
 * requantise, spill to DRAM, store, keep the recipe only, forget.
 *
 * Every block of the view has a set of states it can be in: the payloads it holds now, fewer of
 * them, one payload in a slower tier, fewer bits, its recipe, nothing. A state uses bytes of each
 * tier, and going there loses, in seconds,
 *
 *	reuse * max(0, value(new) - value(now))  +  move_price * seconds of mover work
 *	value = access + tokens * error_seconds * D(bits)
 *
 * (not below 0: the ladder relieves tiers, it does not tidy them.) access: 0 in VRAM; latency +
 * bytes * seconds_per_byte, plus decoding below native bits, from another tier; the recompute time
 * from a recipe; that plus forget_seconds from nothing. The plan is the cheapest set of changes
 * that brings every tier that is over its high mark down to its low mark while no other rises above
 * its high mark; a tier over its mark receives nothing. Where the budgets bind, this compares
 * alternatives by seconds lost times probability of reuse per byte freed.
 *
 * Hysteresis: nothing is moved down until a tier is above `high`, then down to `low`; nothing rises
 * until a tier is below `rise`, and then up to it; rise < low < high, so that neither direction can
 * trigger the other, and a step in load gives at most one reversal.
 *
 * Leases and chains: a block flagged FIXED (leased, pinned, being moved, with children outside the
 * view) is not touched. A block goes to recipe-only, or is forgotten, only when all its children in
 * the view do as much.
 *
 * Memory is fixed at creation, about 1.3 KiB for each block of the view: pass the cold candidates,
 * not the catalog. One owner per object, no locks, no clock. Errors are negative errno; outputs
 * come last and are untouched on failure.
 */
#ifndef KVP_LADDER_H
#define KVP_LADDER_H

#include <stddef.h>

#include "policy/kvp_width.h"
#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_LADDER_TIERS 4u /* KVP_TIER_DRAM, _VRAM, _STORE, _RECIPE */

/* Seconds, prices and distortions are at least 0 and at most this. */
#define KVP_LADDER_NUMBER_MAX 1e12

struct kvp_ladder_opts {
	uint32_t size;                 /* sizeof(struct kvp_ladder_opts) */
	uint32_t max_blocks;           /* in one view, 1..1,000,000 */
	uint32_t widths;               /* bit w set: requantising to KVP_WIDTH w is allowed */
	double ratio[KVP_WIDTHS];      /* bytes relative to native, falling, ratio[0] = 1 */
	double distortion[KVP_WIDTHS]; /* default: kvp_width_distortion; rising from 0 */
	double error_seconds;          /* seconds that one token's relative error of 1 is worth */
	double decode_seconds;         /* per token, below native */
	double encode_seconds;         /* per token, to requantise */
	double move_price;     /* seconds of an engine that one second of a mover is worth */
	double forget_seconds; /* what a missing recipe costs beyond recomputing */
};

struct kvp_ladder_tier {
	uint64_t capacity; /* bytes, 0..2^52; 0: nothing can go there (RECIPE: no limit) */
	uint64_t used;     /* by all blocks, those outside the view included; 0..2^52 */
	double high;       /* shares of capacity, 0 < rise < low < high <= 1 */
	double low;
	double rise;
	double latency; /* seconds to the first byte; ignored for RECIPE */
	double seconds_per_byte;
};

#define KVP_LADDER_FIXED 1u

struct kvp_ladder_block {
	kvp_block_id block;
	uint32_t parent; /* index in the view, below this one's; or KVP_BLOCK_NONE */
	uint32_t flags;
	uint32_t tokens;
	uint64_t native_bytes;
	uint64_t bytes[KVP_TIER_PAYLOADS]; /* of the payload in each tier, 0 = none there */
	uint8_t width[KVP_TIER_PAYLOADS];  /* KVP_WIDTH_* */
	uint32_t recipe_bytes;
	double reuse;             /* probability of reuse within the horizon, 0..1 */
	double recompute_seconds; /* kvp_remat_compute_seconds() of its tokens */
};

/* Rungs, in the order in which the steps of a plan are listed; RECIPE and FORGET are one group. */
#define KVP_LADDER_DROP       0u /* payloads in the tiers of `tiers` go; another copy stays */
#define KVP_LADDER_REQUANTISE 1u /* in place: tier, width */
#define KVP_LADDER_RECIPE     2u /* all payloads go */
#define KVP_LADDER_FORGET     3u /* the recipe too */
#define KVP_LADDER_STORE      4u /* to STORE at `width`, everything faster goes */
#define KVP_LADDER_SPILL      5u /* to DRAM at `width`, the VRAM payload goes */
#define KVP_LADDER_RISE       6u /* a copy into the faster `tier`; the slower one stays */
#define KVP_LADDER_RUNGS      7u

struct kvp_ladder_step {
	uint32_t index; /* in the view */
	kvp_block_id block;
	uint8_t rung;
	uint8_t tier;  /* of the payload that is there afterwards (fastest), or KVP_TIER_RECIPE */
	uint8_t width; /* of that payload */
	uint8_t tiers; /* bit t set: the payload in tier t goes */
	double cost;   /* seconds lost; negative for RISE */
};

struct kvp_ladder_result {
	double cost;                        /* expected seconds lost, all steps */
	double bound;                       /* nothing that meets the marks loses less */
	uint32_t exact;                     /* cost is the least there is */
	uint32_t under_pressure;            /* bit t: tier t was over its high mark */
	uint64_t missing[KVP_LADDER_TIERS]; /* bytes above the marks that no plan could free */
};

struct kvp_ladder;

/* Ratios and errors of the codecs at 128 dimensions with f16 scales; see ladder.c. */
void kvp_ladder_opts_init(struct kvp_ladder_opts *opts, uint32_t max_blocks);
/* -EINVAL, -ENOMEM. */
int kvp_ladder_new(const struct kvp_ladder_opts *opts, struct kvp_ladder **ret);
struct kvp_ladder *kvp_ladder_free(struct kvp_ladder *ladder);

/*
 * Plans for tiers[KVP_LADDER_TIERS] and a view of n blocks. Steps go into ret_steps[n], at most one
 * per block, *ret_n is their number; carried out in that order no tier ever holds more than before
 * or than its mark: what frees comes first, then what fills the slower tier, leaves before parents.
 * With no tier over its high mark the steps are RISEs, or none.
 *
 * -EINVAL for marks, a parent, a width or a number out of its range, for a payload of 4 GiB or
 * more; n > max_blocks.
 */
int kvp_ladder_plan(struct kvp_ladder *ladder, const struct kvp_ladder_tier *tiers,
	const struct kvp_ladder_block *blocks, uint32_t n, struct kvp_ladder_step *ret_steps,
	uint32_t *ret_n, struct kvp_ladder_result *ret);

#ifdef __cplusplus
}
#endif
#endif
