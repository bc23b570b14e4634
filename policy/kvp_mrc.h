/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Miss-ratio curve: what an LRU cache of any other size would have hit, estimated online.
 *
 * Reuse within the last KVP_MRC_FRONT keys is counted exactly. Reuse from farther is estimated
 * from a sample: keys whose hash falls below a threshold are followed, all others cost one
 * comparison; when the sample is full the threshold falls and drops the key of the largest hash,
 * so that memory is fixed (SHARDS with a fixed size, Waldspurger et al., FAST'15). The front takes
 * away what makes plain SHARDS miss on prompts: one system prompt in every request weighs much,
 * and is in the sample or not.
 *
 * One instance per tenant, one thread at a time. No clock, no allocation after kvp_mrc_new().
 * Distances count distinct keys, so all blocks weigh the same.
 */
#ifndef KVP_MRC_H
#define KVP_MRC_H

#include <stddef.h>
#include <stdint.h>

#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvp_mrc;

#define KVP_MRC_MAX_SAMPLES (UINT32_C(1) << 24)
#define KVP_MRC_FRONT       1024u

struct kvp_mrc_params {
	size_t size;          /* sizeof(struct kvp_mrc_params) */
	uint32_t samples;     /* keys followed at most; 8,192 gives .01 on real traces; >= 64 */
	uint32_t buckets;     /* steps of the curve; 1 .. 2^20 */
	uint64_t bucket_size; /* blocks each; the curve reaches buckets * bucket_size */
	uint64_t seed;        /* which keys are followed */
};

/* -EINVAL: a parameter is out of range. -ENOMEM. kvp_mrc_free() takes NULL and returns NULL. */
int kvp_mrc_new(const struct kvp_mrc_params *params, struct kvp_mrc **ret_mrc);
struct kvp_mrc *kvp_mrc_free(struct kvp_mrc *m);

/*
 * One request, root first. Its blocks are looked up all before any is used, then used tip first, as
 * a prefix cache does it: of a prompt longer than the cache, the beginning is found again. A
 * request for one object has n = 1.
 */
void kvp_mrc_request(struct kvp_mrc *m, const struct kvp_key *keys, size_t n);

/* Estimated hit ratio of an LRU cache of that many blocks; 0 before the first request. */
double kvp_mrc_hit_ratio(const struct kvp_mrc *m, uint64_t blocks);

/* Forgets half of what was counted, so that the curve follows a changing workload. */
void kvp_mrc_decay(struct kvp_mrc *m);

/* Share of the keys now followed: 1 at first, falling. */
double kvp_mrc_rate(const struct kvp_mrc *m);
/* Bytes that an instance of such parameters allocates, which are in range. */
uint64_t kvp_mrc_bytes(const struct kvp_mrc_params *params);

#ifdef __cplusplus
}
#endif
#endif
