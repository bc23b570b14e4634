/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rematerialization: what it costs to compute KV again, when that beats loading it, and which
 * chains should give up their payload, or get it back.
 *
 * Cost of recomputing tokens [s, e), the KV before s being there:
 *
 *	FLOPs = 2 P n + 4 L H d n (s + e) / 2,	n = e - s
 *
 * P parameters that are active per token, L layers, H query heads, d head dimension; seconds are
 * that over the machine's effective rate, plus launch_seconds for each run of a provider. (The
 * founding formula, FLOPs times layer, had no attention in it and no launch.) Loading costs latency
 * + bytes * seconds_per_byte, plus decoding.
 *
 * Decisions are taken for runs: a run is a stretch of a chain without branches, so that a tree of
 * chains is a tree of runs. Only the end of a run can be given up or be missing (leaf-first), and
 * only when everything behind it is.
 *
 * Memory is fixed at creation: KVP_REMAT_PIECE_BYTES a piece and at most KVP_REMAT_RUN_BYTES a run. One owner per object, no locks,
 * no clock. Errors are negative errno; outputs come last and are untouched on failure.
 */
#ifndef KVP_REMAT_H
#define KVP_REMAT_H

#include <stddef.h>

#include "policy/kvp_width.h"
#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_REMAT_PIECE_BYTES 22u
#define KVP_REMAT_RUN_BYTES   4096u

struct kvp_remat_model {
	double params; /* P; 8e9 for an 8B dense model; at most 1e18 */
	uint32_t layers;
	uint32_t q_heads;
	uint32_t head_dim;
	double flops_per_second; /* effective: peak times utilisation; 1..1e30 */
	double launch_seconds;   /* per run of a provider, whatever its length */
};

/* Seconds for tokens [begin, end), without the launch. Monotone in begin for a given length. */
double kvp_remat_compute_seconds(const struct kvp_remat_model *model, uint64_t begin, uint64_t end);

struct kvp_remat_source {
	double latency;          /* seconds to the first byte */
	double seconds_per_byte; /* 1 / bandwidth */
	double decode_seconds;   /* per token */
};

double kvp_remat_load_seconds(
	const struct kvp_remat_source *source, uint64_t bytes, uint64_t tokens);

/*
 * Keep a payload iff its expected saving beats its rent: reuse times the seconds that it saves over
 * the cheapest other way, against bytes * horizon seconds * rent (seconds of an engine per byte and
 * second; the pressure ladder's price of the tier). 1 = keep.
 */
int kvp_remat_keep(double reuse, double seconds_saved, uint64_t bytes, double horizon, double rent);

/* ---- restoring one prefix: load the tail, compute the head ---- */

#define KVP_REMAT_PRESENT 0u
#define KVP_REMAT_LOAD    1u
#define KVP_REMAT_COMPUTE 2u

/* One block of a prefix, in chain order. */
struct kvp_remat_piece {
	uint32_t tokens;
	uint32_t tier; /* where its best payload is: KVP_TIER_VRAM = present, KVP_TIER_RECIPE = none
			*/
	uint64_t bytes;
};

/* Tokens [begin, end) of the prefix are to be recomputed by a provider, in this order. */
struct kvp_remat_range {
	uint64_t begin;
	uint64_t end;
};

struct kvp_remat_opts {
	uint32_t size;       /* sizeof(struct kvp_remat_opts) */
	uint32_t max_pieces; /* blocks of one prefix, 1..1,000,000 */
	uint32_t max_runs;   /* in one plan, 1..1,000,000 */
	struct kvp_remat_model model;
	struct kvp_remat_source source[KVP_TIER_PAYLOADS]; /* by tier; VRAM's is not used */
	double pressure;           /* share of memory in use from which anything is given up: .9 */
	uint32_t min_materialized; /* tokens that a live sequence keeps, default 512 */
	double age_half_life;      /* seconds after which reuse counts half; 0 = age is ignored */
	double error_seconds;      /* as in kvp_ladder.h; seconds are at most 1e12 here too */
	double distortion[KVP_WIDTHS]; /* default: kvp_width_distortion */
	double ratio[KVP_WIDTHS];      /* bytes relative to native */
	uint32_t widths; /* bit w: quantising to KVP_WIDTH w, below NATIVE, is allowed */
};

struct kvp_remat;

/* Defaults as above and of kvp_ladder.h; the model's cost must still be filled in. */
void kvp_remat_opts_init(struct kvp_remat_opts *opts, uint32_t max_pieces, uint32_t max_runs);
/* -EINVAL, -ENOMEM. */
int kvp_remat_new(const struct kvp_remat_opts *opts, struct kvp_remat **ret);
struct kvp_remat *kvp_remat_free(struct kvp_remat *r);

/*
 * The quickest way to have all n pieces of a prefix in VRAM. A piece without payload must be
 * computed, any other can be loaded or computed; loads of a tier follow each other, tiers and the
 * provider work at the same time; a piece can be computed once all before it are there. By
 * ret_action[n], and the recompute ranges in token positions (the first piece begins at `first`)
 * in ret_ranges[n], *ret_n of them; *ret_seconds is how long all that takes.
 *
 * Pieces are taken into the compute set in the order of load time over compute time, which for
 * equal blocks is "compute the head, load the tail". Up to 128 pieces the best threshold is then
 * improved piece by piece, and up to 64 searched for a bounded time, exactly up to about 16.
 * -EINVAL for n > max_pieces, a piece without tokens or in no tier, first > 2^40.
 */
int kvp_remat_restore(struct kvp_remat *r, const struct kvp_remat_piece *pieces, uint32_t n,
	uint64_t first, uint8_t *ret_action, struct kvp_remat_range *ret_ranges, uint32_t *ret_n,
	double *ret_seconds);

/* ---- giving up and getting back, many runs at once ---- */

struct kvp_remat_run {
	uint32_t id;     /* the caller's */
	uint32_t parent; /* index in the view, below this one's, or KVP_BLOCK_NONE */
	uint64_t first;  /* position of its first token in the chain */
	uint32_t blocks; /* 1.. */
	uint32_t block_tokens;
	uint32_t materialized; /* blocks at its beginning that have a payload */
	uint32_t width;        /* of these: KVP_WIDTH_* */
	uint64_t native_bytes; /* of one block */
	double reuse;          /* probability of reuse within the horizon */
	double age;            /* seconds since its last use: real age, not position */
	uint32_t live;         /* 1: belongs to a running sequence */
};

/*
 * What happens to a run. EVICT: blocks [keep, materialized) go, to be recomputed at need; what stays
 * is at `width`.
 */
#define KVP_REMAT_KEEP     0u
#define KVP_REMAT_QUANTIZE 1u /* its payload goes to `width` */
#define KVP_REMAT_EVICT    2u
struct kvp_remat_decision {
	uint32_t action;
	uint32_t keep;  /* blocks that stay */
	uint32_t width; /* of what stays */
	double seconds; /* expected loss */
};

struct kvp_remat_result {
	uint64_t freed;   /* or taken: bytes */
	uint64_t missing; /* of `need`, bytes that nothing could free */
	double seconds;   /* expected loss, or gain */
	double bound;     /* what an optimum could reach at best */
	uint32_t exact;
};

/*
 * Memory is used to the share `used`; `need` bytes are to be freed. Below opts.pressure everything
 * is kept. Otherwise the cheapest set of decisions that frees `need`, expected loss being
 *
 *	reuse * 2^(-age / half life) * (launch + recompute of what is evicted
 *		+ (error + decoding) of what is quantised)
 *
 * without the launch where the run's end is missing already: it is paid for anyway. -EINVAL for
 * n > max_runs, a parent or a number out of its range (seconds and prices: at most 1e12).
 *
 * A run is cut at its beginning, its end, or at up to seven places between (all of them for runs of
 * up to eight blocks). No run is cut while one of its children keeps a payload. A live sequence
 * keeps its first min_materialized tokens.
 */
int kvp_remat_plan(struct kvp_remat *r, double used, uint64_t need,
	const struct kvp_remat_run *runs, uint32_t n, struct kvp_remat_decision *ret_decisions,
	struct kvp_remat_result *ret);

/*
 * Idle time: what is worth computing ahead. `room` bytes may be filled and `seconds` of compute
 * spent; a run gets blocks [materialized, keep) back (action KEEP, keep > materialized) when
 * reuse times the seconds saved then exceeds price_compute * seconds now + rent * bytes; the launch
 * is saved only when the whole run is back. A child comes back only after its parents. -EINVAL as
 * above.
 */
int kvp_remat_ahead(struct kvp_remat *r, uint64_t room, double seconds, double price_compute,
	double rent, const struct kvp_remat_run *runs, uint32_t n,
	struct kvp_remat_decision *ret_decisions, struct kvp_remat_result *ret);

#ifdef __cplusplus
}
#endif
#endif
