/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much each token of a sequence matters, from the attention that queries paid to it.
 *
 * The engine reports, per decode step and layer, one row of attention weights per head. Rows are
 * reduced as they come; no attention matrix is ever held. Per layer and token an exponential
 * moving average is kept, and the final importance blends the mean over layers with the last
 * step's head-weighted attention:
 *
 *	a_l(i) = 1/H sum_h A_lh(i)
 *	I_l(i) <- gamma I_l(i) + (1 - gamma) a_l(i)		I_l(i) = 0 at first
 *	eta_lh <- gamma_h eta_lh + (1 - gamma_h) stat(A_lh)	eta_lh = 1 at first
 *	w_h    = mean_l eta_lh / (mean over h of that + 1e-12)
 *	I_w(i) = 1/L sum_l 1/H sum_h w_h A_lh(i)		of one step, NOT renormalised
 *	I(i)   = 0.7 mean_l I_l(i) + 0.3 I_w(i)
 *	recency: times exp(-(step - tau(i)) / T)
 *
 * (SmartKV specification, sections 3 and 4.) One correction: the specification's head statistic,
 * the mean of a softmax row, is 1/n for every head and says nothing; stat() here is the row's
 * maximum, or 1 - entropy/log(n).
 *
 * A step is complete when every layer has reported once, or when a layer reports again; I_w is that
 * of the last complete step, or of what there is before the first one.
 *
 * I_w is a heuristic that sums to no particular number; nothing may assume that I sums to 1.
 *
 * Memory is fixed at creation: (layers + 4) floats and 8 bytes per token, plus one float per layer
 * and head. One owner per object, no locks, no clock: `step` is the caller's count of decode steps.
 * Errors are negative errno; outputs come last and are untouched on failure.
 */
#ifndef KVP_IMPORTANCE_H
#define KVP_IMPORTANCE_H

#include "shm/kvp_types.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_HEAD_STAT_MAX     0u
#define KVP_HEAD_STAT_ENTROPY 1u

struct kvp_importance_opts {
	uint32_t size;       /* sizeof(struct kvp_importance_opts) */
	uint32_t layers;     /* 1..KVP_MAX_LAYERS; 1 when the engine reports the mean over layers */
	uint32_t heads;      /* query heads, 1..1024 */
	uint32_t max_tokens; /* 1..2^28 */
	float gamma;         /* .85...95, default .9 */
	float gamma_head;    /* 0..1 exclusive, default .95 */
	float recency;       /* T in steps, default 512; 0 = no recency weight */
	float blend;         /* share of I_w, default .3; 0..1 */
	uint32_t head_stat;  /* KVP_HEAD_STAT_* */
	uint32_t normalise;  /* 1 = scale the result to mean 1 */
};

struct kvp_importance;

/* The defaults above: MAX, no normalisation. */
void kvp_importance_opts_init(
	struct kvp_importance_opts *opts, uint32_t layers, uint32_t heads, uint32_t max_tokens);

/* -EINVAL for options out of bounds, -ENOMEM. */
int kvp_importance_new(const struct kvp_importance_opts *opts, struct kvp_importance **ret);
/* Accepts NULL, returns NULL. */
struct kvp_importance *kvp_importance_free(struct kvp_importance *imp);

/* Bytes that the object holds, itself included; fixed from creation on. */
size_t kvp_importance_bytes(const struct kvp_importance *imp);

uint32_t kvp_importance_tokens(const struct kvp_importance *imp);

/*
 * Appends `n` tokens with importance 0. In prefill (`prefill` = 1) tau(i) is the token's position,
 * in decode tau is `step`; the caller's steps go on from the prompt's length, so that a prompt's
 * last token has age 0 at the first decode step. -ENOSPC beyond max_tokens, then nothing is added.
 */
int kvp_importance_append(struct kvp_importance *imp, uint32_t n, int prefill, uint64_t step);

/* Token `i` was used again at `step`: tau(i) = step. -EINVAL for an unknown token. */
int kvp_importance_touch(struct kvp_importance *imp, uint32_t i, uint64_t step);

/*
 * One step of one layer: rows[h * stride + i] is the weight that head h gave token i, for all heads
 * and the first `n` tokens (n <= tokens; later tokens count as unattended). Rows may also be fed
 * one by one: begin, every head once and in order, end. -EINVAL for what is out of turn. Weights
 * must be within 0 and 1e30: -EINVAL, and the layer's step is abandoned.
 */
int kvp_importance_update(
	struct kvp_importance *imp, uint32_t layer, const float *rows, size_t stride, uint32_t n);
int kvp_importance_begin(struct kvp_importance *imp, uint32_t layer, uint32_t n);
int kvp_importance_head(struct kvp_importance *imp, uint32_t head, const float *row);
int kvp_importance_end(struct kvp_importance *imp);

/*
 * Takes scores from outside (a learned model, kvp_tri_importance()) in place of layer
 * `layer`'s average. Within 0 and 1e30, else -EINVAL and nothing is taken.
 */
int kvp_importance_set(struct kvp_importance *imp, uint32_t layer, const float *scores, uint32_t n);

/* I_l of one layer: pointer to tokens() floats, valid until the next call that changes imp. */
const float *kvp_importance_layer(const struct kvp_importance *imp, uint32_t layer);

/* w_h, heads floats with mean 1. */
void kvp_importance_head_weights(const struct kvp_importance *imp, float *ret_weights);

/* The weight of what was last used `age` steps ago: exp(-age / T); 1 where T is 0. */
float kvp_importance_recency(float age, float recency);

/* The final importance at `step`, tokens() floats. */
void kvp_importance_read(const struct kvp_importance *imp, uint64_t step, float *ret);

/*
 * The published TriAttention score (2604.04921): what attention future queries can be expected to
 * pay to a key, from calibrated query statistics before RoPE and no attention at all. For one
 * query head with frequencies f = 0..F-1 (half-split pairs: k_f = k[f] + i k[f + F], pre-RoPE):
 *
 *	S = mean over delta in {1, 2, 4, ... 65536} of
 *		sum_f s_f^2 |m_f| |k_f| cos(omega_f (t - p + delta) + arg(m_f conj k_f))
 *	  + sum_f s_f^2 (a_f - |m_f|) |k_f|
 *
 * m_f = E[q_f], a_f = E|q_f|, omega_f = theta^(-f/F), s_f a model's RoPE attention scale (1 for
 * most). The mean over delta depends on f alone, so it is computed once and a score costs O(F).
 */
struct kvp_tri_head {
	const float *mean_re; /* Re m_f, F floats; the caller owns all three */
	const float *mean_im;
	const float *mean_abs; /* a_f >= |m_f| */
};

struct kvp_tri;

/* F = head_dim / 2 pairs, 1..512; theta > 1; scale NULL (all 1) or F finite floats. -EINVAL,
 * -ENOMEM. */
int kvp_tri_new(uint32_t pairs, double theta, const float *scale, struct kvp_tri **ret);
struct kvp_tri *kvp_tri_free(struct kvp_tri *tri);

/* S for one pre-RoPE key of 2F floats at position p, seen from position t >= p. */
double kvp_tri_score(const struct kvp_tri *tri, const struct kvp_tri_head *head, const float *key,
	uint64_t p, uint64_t t);

/*
 * S as an importance: S / sqrt(2F) estimates a logit, so exp of it, normalised over the n tokens,
 * estimates attention. ret[i] is the mean over the `heads` query heads that share the keys; keys
 * are n rows of 2F floats, key_stride floats apart, token i at position first + i. -EINVAL when
 * n or heads is 0, t lies before the last token, or a key or a statistic is not finite.
 */
int kvp_tri_importance(const struct kvp_tri *tri, const struct kvp_tri_head *head, uint32_t heads,
	const float *keys, size_t key_stride, uint32_t n, uint64_t first, uint64_t t, float *ret);

#ifdef __cplusplus
}
#endif
#endif
