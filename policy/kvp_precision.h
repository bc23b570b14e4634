/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixed precision inside a sequence: which token gets 2, 3, 4 or 8 bits under a budget of bytes,
 * when to look again, and what to change then.
 *
 * The problem: maximise sum_i I(i) U(width_i) with sum_i cost(width_i) <= budget, I(i) being the
 * importance (kvp_importance.h). Costs are what the payloads take as they are written, with scales,
 * headers and the widths themselves (kvp_width.h). Two utilities:
 *
 *   DISTORTION (default): U(b) = w_K (D(2) - D(b_K)) + w_V (D(2) - D(b_V)), D the measured relative
 *	squared error of the codec at b bits, so that I U is error avoided. Multiply the importance
 *	by the squared norm of the token's vectors where that is known.
 *   POWER: U(b) = b^alpha, as SmartKV published it. It buys 8 bits far too eagerly: per bit it
 *	values 2->3, 3->4, 4->8 at .417, .364, .296 where measured error falls .082, .025, .002.
 *
 * Solved exactly, by dynamic programming, up to KVP_PRECISION_EXACT tokens; above that by marginal
 * gain per bit along the chain 2 -> 3 -> 4 -> 8, a step that does not fit being skipped,
 * which ends within one largest step of the linear-programming bound. (Greedy alone misses by up to
 * 17 % on a handful of tokens, and is no (1-1/e) approximation, whatever was claimed.) The cost is
 * one radix sort and a merge; the budget is never exceeded. Gains per bit must fall from step to
 * step; options whose distortions and weights make them rise are refused.
 *
 * One owner per object, no locks, no clock (`step` is the caller's count of decode steps), memory
 * fixed at creation: about 40 bytes a token. Errors are negative errno; outputs come last and are
 * untouched on failure.
 */
#ifndef KVP_PRECISION_H
#define KVP_PRECISION_H

#include <stddef.h>

#include "policy/kvp_width.h"
#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most that a weight, a distortion or a factor may be, and its inverse the least weight. */
#define KVP_PRECISION_NUMBER_MAX 1e12
#define KVP_PRECISION_EXACT      64u /* tokens up to which the answer is the optimum */

#define KVP_UTILITY_DISTORTION 0u
#define KVP_UTILITY_POWER      1u

struct kvp_precision_opts {
	uint32_t size;         /* sizeof(struct kvp_precision_opts) */
	uint32_t heads;        /* KV heads, 1..65536 */
	uint32_t head_dim;     /* 1..65536 */
	uint32_t scale_bits;   /* 16 or 32 */
	uint32_t scale_group;  /* channels per scale, a divisor of head_dim; 0 = head_dim */
	uint32_t block_tokens; /* in one payload, whose header, widths and gaps count; default 64;
				  0: codes and scales alone count */
	uint32_t max_tokens;   /* 1..2^26 */
	uint32_t layer;        /* sets the pace of the clock */
	uint32_t base_steps;   /* f_base, 8..32, default 16 */
	uint32_t critical; /* first tokens always at 8 bits, default 4; the very first always is, */
	uint32_t middle;   /* but where 1: they are not the first of their sequence. Default 0 */
	uint32_t tail;     /* last tokens always at 8 bits, default 0 */
	uint32_t split;    /* 0: one width for a token's K and V; 1: a width for each */
	uint32_t key_min_bits; /* 2, or 3: keys from {3,4,8} only */
	uint32_t utility;      /* KVP_UTILITY_* */
	uint32_t hold;         /* m: checks in a row that a rank must have moved, default 2 */
	double alpha;          /* POWER's exponent, (0,1], default .6 */
	double key_weight;     /* w_K, w_V: > 0, default 1 */
	double value_weight;
	double distortion[KVP_WIDTHS]; /* D by width, rising from D(NATIVE) = 0; default:
					  kvp_width_distortion */
	double floor;       /* least importance a token counts with, FLT_MIN..1, default 1e-6 */
	double rank_step;   /* r: hysteresis and drift, share of the ranks, default .05 */
	double drift_kl;    /* tau, default .02 */
	double drift_moved; /* p, default .10 */
};

struct kvp_precision;

void kvp_precision_opts_init(
	struct kvp_precision_opts *opts, uint32_t heads, uint32_t head_dim, uint32_t max_tokens);

/* -EINVAL for options out of the ranges above or with rising gains, -ENOMEM. */
int kvp_precision_new(const struct kvp_precision_opts *opts, struct kvp_precision **ret);
/* Accepts NULL, returns NULL. */
struct kvp_precision *kvp_precision_free(struct kvp_precision *p);

/*
 * Bits that one token's codes and scales take: 2 H d b payload plus 2 H d/g scales, as a codec with
 * these scales writes them. bits_k, bits_v from {2,3,4,8}.
 */
uint64_t kvp_precision_token_bits(const struct kvp_precision *p, uint32_t bits_k, uint32_t bits_v);

/*
 * Bits that n tokens take whatever their widths: headers, the widths themselves, and the longest
 * gaps that there can be between the sections of their payloads. 0 if block_tokens is.
 */
uint64_t kvp_precision_overhead(const struct kvp_precision *p, uint32_t n);

/*
 * beta times n tokens at 16 bits, in bits, rounded down; 0 unless beta > 0, UINT64_MAX beyond it.
 */
uint64_t kvp_precision_budget(const struct kvp_precision *p, uint32_t n, double beta);

/* The fewest bits that n tokens can take: all at the lowest width, the protected at 8. */
uint64_t kvp_precision_floor(const struct kvp_precision *p, uint32_t n);

/*
 * The least beta for long sequences: 2-bit payload, scales and overhead over 16 bits (protected
 * tokens weigh nothing there). Without overhead .15625 for d = 64 and f32 scales, .1328 for d = 128
 * and f16.
 */
double kvp_precision_beta_min(const struct kvp_precision *p);

struct kvp_precision_result {
	uint64_t bits;   /* taken, scales and overhead included; <= budget */
	double utility;  /* sum I U over all tokens */
	double bound;    /* linear-programming bound on it */
	uint32_t exact;  /* 1: utility is the optimum */
	uint32_t raised; /* plan and reclaim: tokens that changed */
	uint32_t lowered;
};

/*
 * Allocates from scratch. importance[n]: finite; below `floor` counts as floor. cap_k, cap_v: the
 * most bits a token can have (what is stored, where no original is left to requantise from), or
 * both NULL. ret_k[n] and ret_v[n] get the widths. -ENOSPC when budget < kvp_precision_floor(),
 * -EINVAL for n > max_tokens, importance that is not finite, caps not in {2,3,4,8}. n == 0 is fine.
 * `ret` may be NULL.
 */
int kvp_precision_allocate(struct kvp_precision *p, const float *importance, uint32_t n,
	uint64_t budget, const uint8_t *cap_k, const uint8_t *cap_v, uint8_t *ret_k, uint8_t *ret_v,
	struct kvp_precision_result *ret);

/*
 * The budget was cut: goes down the reverse chain 8 -> 4 -> 3 -> 2, cheapest loss per bit first, no
 * further than needed, protected tokens excepted. widths_k and widths_v are the present widths and
 * are changed in place. Errors as above, -EINVAL also for widths that no allocation has; then
 * nothing is changed.
 */
int kvp_precision_reclaim(struct kvp_precision *p, const float *importance, uint32_t n,
	uint64_t budget, uint8_t *widths_k, uint8_t *widths_v, struct kvp_precision_result *ret);

/* ---- over time: one object per layer keeps ranks, clock and the present widths ---- */

/* f = max(f_base (1 + floor(layer / 4)), max(32, n / 8)) steps. */
uint32_t kvp_precision_interval(uint32_t base_steps, uint32_t layer, uint32_t n);

/* 1 when the interval has passed since the last plan (or there was none). */
int kvp_precision_due(const struct kvp_precision *p, uint32_t n, uint64_t step);

struct kvp_precision_drift {
	double kl;      /* KL(now || at the last plan), nats, over the tokens of both */
	double moved;   /* share of tokens whose rank moved by rank_step or more while their share
			   of the importance changed by a quarter or more: near-equal tokens swap
			   ranks in any noise */
	uint32_t fired; /* kl > drift_kl or moved > drift_moved */
};

/* -ENODATA before the first plan. */
int kvp_precision_drift(struct kvp_precision *p, const float *importance, uint32_t n,
	struct kvp_precision_drift *ret);

/* Requantise `token` from (from_k, from_v) to (to_k, to_v) bits. */
struct kvp_precision_change {
	uint32_t token;
	uint8_t from_k, from_v; /* 0 for a token that had no width yet */
	uint8_t to_k, to_v;
};

/*
 * One reallocation check at `step`. Tokens that are new, whose protection changed, or whose
 * smoothed rank has stood rank_step away from where it was at their last change for `hold` checks
 * in a row are allocated anew; the others keep their widths, unless the budget has no room for
 * that, when all go down the reverse chain together. When the budget for each token has changed by
 * more than a share of rank_step since all were last allocated, all are again. original[i] != 0
 * says that token i can still be requantised from its original (NULL: all can); others only go
 * down. Only what changed is listed, in token order, into ret_changes[n]; *ret_n is their number.
 * The widths listed are taken as applied. Errors as kvp_precision_allocate(), -EINVAL also when n
 * shrank; nothing is changed then. kvp_precision_reset() starts another sequence.
 */
int kvp_precision_plan(struct kvp_precision *p, const float *importance, uint32_t n,
	uint64_t budget, uint64_t step, const uint8_t *original,
	struct kvp_precision_change *ret_changes, uint32_t *ret_n,
	struct kvp_precision_result *ret);
void kvp_precision_reset(struct kvp_precision *p);

/* ---- budgets ---- */

/* beta_short below n_threshold tokens, beta_long from there. */
double kvp_precision_dynamic_beta(
	double beta_short, double beta_long, uint32_t n_threshold, uint32_t n);

/*
 * beta_l = beta w_l, scaled so that the mean over layers is beta, each within [beta_min, 1]; what
 * a bound cuts off goes to the others. -EINVAL unless 0 < beta_min <= beta <= 1 and weights lie
 * within 1e-12 and 1e12.
 */
int kvp_precision_layer_budgets(
	double beta, double beta_min, const double *weights, uint32_t layers, double *ret_beta);

/*
 * Water-filling: the least sum_i I(i) c 4^-b_i that real-valued widths 2 <= b_i <= 8 with
 * sum b_i <= n * mean_bits allow (SmartKV 10.5 with the right law, 4^-b). With c = min_b D(b) 4^b
 * it is a lower bound on sum I D for every allocation by D. Importance below 0 counts as 0.
 * -EINVAL for n == 0, mean_bits < 2, c not within 0 and 1e12, importance that is not finite.
 */
int kvp_precision_waterfill(
	const float *importance, uint32_t n, double mean_bits, double c, double *ret_distortion);

#ifdef __cplusplus
}
#endif
#endif
