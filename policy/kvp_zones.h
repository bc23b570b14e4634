/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Zones, precision by age and by sequence length: which tokens of a growing sequence stay native,
 * which go to the 4-bit warm codec, which to the archive codec, and when.
 *
 * A sequence of n tokens is cut into three zones, oldest first:
 *
 *	0 ........ archive_end ........ warm_end ........ n
 *	  archive codec     4-bit codec        native
 *
 * The newest `hot_tokens` tokens are always native; tokens of age `stale_tokens` or more belong
 * to the archive. Per-channel codecs need `group_tokens` tokens at once, so tokens graduate in
 * whole groups and a zone may hold up to group_tokens - 1 tokens more than its share. Zones are
 * not tiers: a zone says how precise, a tier says where.
 *
 * Everything here is a pure function of its arguments: no allocation, no clock, any thread.
 * Errors are negative errno; outputs come last and are untouched on failure.
 */
#ifndef KVP_ZONES_H
#define KVP_ZONES_H

#include <stddef.h>

#include "policy/kvp_width.h"
#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_ZONE_HOT     0u /* KVP_WIDTH_NATIVE: no quantisation cost */
#define KVP_ZONE_WARM    1u /* KVP_WIDTH_4, asymmetric: keys per channel, values per token */
#define KVP_ZONE_ARCHIVE 2u /* what kvp_archive_select() answers */

/* Archive codecs. The daemon maps them to codec ids of kernels/. */
#define KVP_ARCHIVE_ADAPTIVE 0u /* by sequence length */
#define KVP_ARCHIVE_KIVI2    1u
#define KVP_ARCHIVE_SQUAT    2u /* param: rank of the query subspace, 1..128 */
#define KVP_ARCHIVE_KVQUANT  3u /* param: bits, 2..4 */

struct kvp_archive {
	uint32_t codec;
	uint32_t param; /* 0 for KIVI2 and ADAPTIVE */
};

/* What the archive codecs need besides the tokens themselves. */
#define KVP_HAVE_QUERIES     1u /* queries (or the subspace) came with the put: SQuat */
#define KVP_HAVE_CALIBRATION 2u /* a calibration file for the model is loaded: KVQuant */

#define KVP_ZONE_HOT_DEFAULT   64u
#define KVP_ZONE_STALE_DEFAULT 512u
#define KVP_ZONE_GROUP_DEFAULT 64u
#define KVP_ZONE_TOKENS_MAX    (UINT32_C(1) << 28) /* longest sequence, and any boundary */

#define KVP_ARCHIVE_SEQ_SQUAT    2048u /* first length that uses SQuat */
#define KVP_ARCHIVE_SEQ_KVQUANT  8192u /* first length that uses KVQuant */
#define KVP_ARCHIVE_SQUAT_RANK   20u   /* argument default of the published code */
#define KVP_ARCHIVE_KVQUANT_BITS 3u

/* Boundaries of one layer. hot_tokens <= stale_tokens; group_tokens 1..512. */
struct kvp_zone_rule {
	uint32_t hot_tokens;
	uint32_t stale_tokens;
	uint32_t group_tokens;
	struct kvp_archive archive;
};

struct kvp_zone_override {
	uint32_t layer;
	struct kvp_zone_rule rule;
};

/*
 * One rule for all layers and, where layers differ, overrides sorted by layer, each layer at most
 * once. The caller owns `overrides` and keeps it alive while the configuration is used.
 */
struct kvp_zone_config {
	struct kvp_zone_rule rule;
	const struct kvp_zone_override *overrides;
	uint32_t n_overrides;
	uint32_t layers; /* 1..KVP_MAX_LAYERS */
};

/* Where one sequence stands in one layer. All zero for a new one. 12 bytes, owned by the caller;
 * sequences know nothing of each other, so they join and leave freely. */
struct kvp_zones {
	uint32_t archive_end;
	uint32_t warm_end;
	uint32_t tokens;
};

/* Re-encode tokens [begin, end), now in zone `from`, for zone `to`. */
struct kvp_graduation {
	uint32_t begin;
	uint32_t end;
	uint32_t from;
	uint32_t to;
};
#define KVP_GRADUATIONS_MAX 3u /* hot to archive, warm to archive, hot to warm */

/* The defaults above, archive ADAPTIVE. */
void kvp_zone_config_init(struct kvp_zone_config *config, uint32_t layers);

/* 0; -EINVAL for a rule out of bounds or overrides that are unsorted or name no layer. */
int kvp_zone_config_check(const struct kvp_zone_config *config);

/* The rule in force for a layer; the common rule for a layer without override. */
const struct kvp_zone_rule *kvp_zone_rule_of(const struct kvp_zone_config *config, uint32_t layer);

/*
 * The sequence has grown to `tokens` tokens: writes what is to be re-encoded, oldest range first,
 * into ret[KVP_GRADUATIONS_MAX] and their number into *ret_n, and moves `zones` on.
 *
 * Tokens that skip the warm zone (a long append at once) go from native to archive directly, so
 * that the archive is not made of already lossy data. A zone never grows back: lifting bits needs
 * an original that is gone. When the rule grew more generous meanwhile, the zones wait until the
 * sequence has caught up. -EINVAL when `tokens` is below zones->tokens or above
 * KVP_ZONE_TOKENS_MAX, or for a rule that kvp_zone_config_check() would refuse.
 */
int kvp_zones_advance(const struct kvp_zone_rule *rule, struct kvp_zones *zones, uint32_t tokens,
	struct kvp_graduation *ret, uint32_t *ret_n);

/* The width that payloads of an archive codec have; NATIVE for ADAPTIVE, which is none yet. */
uint32_t kvp_archive_width(struct kvp_archive archive);

/* Zone of a token by its position; position < zones->tokens. */
uint32_t kvp_zone_of(const struct kvp_zones *zones, uint32_t position);

/*
 * The archive codec for a sequence of `tokens` tokens: the configured one, or by length under
 * ADAPTIVE (KIVI-2 below 2,048, SQuat below 8,192, KVQuant 3 bits from there). A codec whose
 * needs `have` does not cover falls back, KVQuant to SQuat to KIVI-2; *ret_fallback tells that
 * it did (1) or not (0), and the daemon says so.
 */
void kvp_archive_select(struct kvp_archive configured, uint32_t tokens, uint32_t have,
	struct kvp_archive *ret_archive, int *ret_fallback);

/*
 * Reads "adaptive", "kivi2", "squat", "squat:RANK", "kvquant", "kvquant:BITS".
 * -EINVAL for anything else.
 */
int kvp_archive_parse(const char *text, struct kvp_archive *ret);

#ifdef __cplusplus
}
#endif
#endif
