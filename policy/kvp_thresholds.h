/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Learning where the precision zones should lie: a rolling window of quality scores, a controller
 * that widens or narrows the native zone and the archive's width, and a table of what was learnt
 * per (model, layer, context length) with a file format. Keeping the file is the daemon's job.
 *
 * A quality score is any number that is higher for better output and comes once per request or
 * step, for instance top-1 agreement with the uncompressed model; the target is in its unit.
 *
 * One owner per object, no locks; no clock: time is counted in samples. Memory is fixed at
 * creation. Errors are negative errno; outputs come last and are untouched on failure.
 */
#ifndef KVP_THRESHOLDS_H
#define KVP_THRESHOLDS_H

#include <stddef.h>

#include "policy/kvp_width.h"
#include "shm/kvp_types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_QUALITY_WINDOW 1000u /* scores kept: the 1,001st drops the oldest */
#define KVP_QUALITY_RECENT 100u  /* scores that a decision averages, at most */

#define KVP_THRESHOLD_HOT_MIN 32u

/*
 * Rolling window of scores. 4 KiB, owned by the caller; all zero is an empty window. Scores that
 * are not finite are refused by kvp_quality_add (-EINVAL).
 */
struct kvp_quality {
	float score[KVP_QUALITY_WINDOW];
	uint32_t next;
	uint32_t count;
};

int kvp_quality_add(struct kvp_quality *q, float score);

/*
 * Mean of the newest min(n, count) scores, divided by that number (a founding document divided by
 * 100 whatever the number). -ENODATA for an empty window or n == 0.
 */
int kvp_quality_mean(const struct kvp_quality *q, uint32_t n, double *ret_mean);

/* What the controller turns. */
struct kvp_threshold {
	uint32_t hot_tokens;    /* native zone, KVP_THRESHOLD_HOT_MIN .. stale_tokens */
	uint32_t stale_tokens;  /* age at which the archive begins; not turned */
	uint32_t archive_width; /* within kvp_adapt_opts.most_bits .. least_bits */
};

struct kvp_adapt_opts {
	uint32_t size;   /* sizeof(struct kvp_adapt_opts) */
	double target;   /* wanted mean score, > 0 */
	uint32_t period; /* samples between decisions, 1..KVP_QUALITY_RECENT; default 4 */
	/* Bounds of the archive's bits: a width's, 16, 8, 4, 3 or 2. Default 4 and 2. */
	uint32_t most_bits;
	uint32_t least_bits;
};

/*
 * The controller. Every `period` samples it looks at the mean of the scores since the last change
 * (at most KVP_QUALITY_RECENT), so that a change is judged by what came after it:
 *
 *	mean < target		degraded: hot = floor(hot * 1.2), bits up a width (at most most_bits)
 *	mean > target * 1.1	good:	  hot = floor(hot * 0.9), bits down one (at least least_bits)
 *
 * hot stays within [32, stale_tokens]: where these are equal only the bits are turned. When a relaxation turns out to have been too much, it is
 * taken back and none is tried again for KVP_QUALITY_WINDOW samples, or until the target changes:
 * without that, two settings on the two sides of the band would alternate for ever.
 */
struct kvp_adapt {
	struct kvp_adapt_opts opts;
	struct kvp_threshold now;
	struct kvp_quality quality;
	uint32_t since_change; /* samples since `now` changed */
	uint32_t hold;         /* samples until a relaxation may be tried */
	uint32_t changes;      /* how often `now` changed */
	int32_t last;          /* -1 relaxed last, +1 tightened last, 0 neither yet */
};

/* -EINVAL for options or a start out of the bounds above. */
int kvp_adapt_init(
	struct kvp_adapt *a, const struct kvp_adapt_opts *opts, const struct kvp_threshold *start);

/* Adds one score; 1 when `a->now` changed, 0 when not, -EINVAL for a score that is not finite. */
int kvp_adapt_sample(struct kvp_adapt *a, float score);

/*
 * For a setting of which there can be no scores, because nothing is archived at it: relaxes at once, as
 * good scores would, and what comes then decides. 1 when `a->now` changed, 0 when it is at its bounds.
 */
int kvp_adapt_retry(struct kvp_adapt *a);

/* A new target may relax again at once; the setting stays. -EINVAL unless target > 0. */
int kvp_adapt_retarget(struct kvp_adapt *a, double target);

/* How a record came about. */
#define KVP_ORIGIN_MEASURED  0u /* learnt on this model and layer */
#define KVP_ORIGIN_INHERITED 1u /* taken over from the most similar model, not yet measured */
#define KVP_ORIGIN_DEFAULT   2u /* nothing known: built-in defaults */

#define KVP_THRESHOLD_MODEL_MAX 64u /* bytes of a model name, with its NUL */

/* Enough of a model's shape to say which known model a new one resembles. */
struct kvp_model_shape {
	uint32_t layers;
	uint32_t kv_heads;
	uint32_t head_dim;
};

struct kvp_threshold_record {
	char model[KVP_THRESHOLD_MODEL_MAX]; /* NUL-terminated */
	uint32_t layer;
	uint32_t context_tokens;
	struct kvp_model_shape shape;
	struct kvp_threshold threshold;
	uint32_t origin; /* KVP_ORIGIN_* */
	float quality;   /* mean score observed with it */
};

struct kvp_threshold_store;

/* Room for `capacity` records (1..1,000,000); NULL when out of memory or out of bounds. */
struct kvp_threshold_store *kvp_threshold_store_new(uint32_t capacity);
/* Accepts NULL, returns NULL. */
struct kvp_threshold_store *kvp_threshold_store_free(struct kvp_threshold_store *store);
uint32_t kvp_threshold_store_count(const struct kvp_threshold_store *store);

/*
 * Stores a copy, replacing the record of the same (model, layer, context). When full, the record
 * stored longest ago goes. -EINVAL for a record that kvp_threshold_store_unpack would refuse.
 */
int kvp_threshold_store_put(
	struct kvp_threshold_store *store, const struct kvp_threshold_record *record);

/* The i-th record, i < count, in no particular order. */
void kvp_threshold_store_at(
	const struct kvp_threshold_store *store, uint32_t i, struct kvp_threshold_record *ret);

/*
 * The record of (model, layer) whose context length is nearest; of two as near the more recently
 * stored. -ENOENT when there is none.
 */
int kvp_threshold_nearest(const struct kvp_threshold_store *store, const char *model,
	uint32_t layer, uint32_t context_tokens, struct kvp_threshold_record *ret);

/*
 * A start for a model that was never seen: of the MEASURED records the one whose model shape,
 * relative depth of layer and context length are nearest (distance in logarithms), marked
 * INHERITED, or, when there is none, the defaults of kvp_zones.h marked DEFAULT. Model, layer,
 * shape and context in the answer are those asked for, so that it can be stored as it is. -EINVAL
 * for a bad name or shape.
 */
int kvp_threshold_bootstrap(const struct kvp_threshold_store *store, const char *model,
	const struct kvp_model_shape *shape, uint32_t layer, uint32_t context_tokens,
	struct kvp_threshold_record *ret);

/*
 * "kv_threshold:<model>:<layer>", the name under which a key-value store keeps a record.
 * -ENOSPC when it does not fit into `size` bytes.
 */
int kvp_threshold_key(const char *model, uint32_t layer, char *buf, size_t size);

/*
 * The file format, little endian: "KVPTHR" 0 1, u32 records, u32 reserved (0), then per record
 * char model[64] and twelve words (layer, context, shape x 3, hot, stale, bits, origin, the
 * quality's bits, age order low and high), 112 bytes in all; last a u64 FNV-1a of everything before
 * it.
 */
size_t kvp_threshold_store_packed_size(const struct kvp_threshold_store *store);

/* -ENOSPC when size is below kvp_threshold_store_packed_size(). */
int kvp_threshold_store_pack(const struct kvp_threshold_store *store, void *buf, size_t size);

/*
 * Replaces the store's content. -EBADMSG for a bad magic, length, checksum or any field out of
 * bounds; -ENOSPC when there are more records than the store's capacity. On failure the store is
 * as before.
 */
int kvp_threshold_store_unpack(struct kvp_threshold_store *store, const void *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif
