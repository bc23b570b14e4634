/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibrations: what the codec `pca` has to know of a model before it codes its keys and values, as a
 * file of its own. docs/formats.md, "Calibrations", has every byte. A file is for one model and one
 * rate; it holds an entry for each layer's K and V. A payload carries the digest of its entry, so
 * whoever has another one, or none, gets -ENOENT and no bytes.
 *
 * Files are hostile until they have been checked: every field is bounded, sizes follow from what is
 * in the file and end with it, the checksum is XXH3. Errors are negative errno values; nothing has
 * been written then. Nothing here locks, logs or keeps state; a set is read-only once made, and any
 * number of threads may use it.
 */
#ifndef KVP_CALIB_H
#define KVP_CALIB_H

#include "kernels/kvp_codec.h"
#include "kernels/kvp_rope.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_CALIB_MAGIC      UINT32_C(0x4350564b) /* "KVPC" */
#define KVP_CALIB_VERSION    1u
#define KVP_CALIB_NAME_MAX   64u  /* of a model's name, with its NUL */
#define KVP_CALIB_LAYERS_MAX 256u /* of a model */
#define KVP_CALIB_WIDTH_MAX  512u /* channels of one transform: joint * dim */
#define KVP_CALIB_TABLES_MAX 64u  /* of one transform */
#define KVP_CALIB_SHIFT_MAX  7u
#define KVP_CALIB_BYTES_MAX  (UINT64_C(1) << 30)

/* Symbols of a table: escape, then quotients from -127 to 127, of which 0 is in the middle. */
#define KVP_CALIB_SYMBOLS 256u
#define KVP_CALIB_ESCAPE  0u
#define KVP_CALIB_ZERO    128u
#define KVP_CALIB_TOTAL   4096u /* the sum of a table's frequencies */

/* What all entries of a file share. */
struct kvp_calib_info {
	char model[KVP_CALIB_NAME_MAX]; /* printable ASCII, not empty */
	uint32_t layers;                /* of the model, 1..256 */
	uint32_t heads;                 /* KV heads of a plane */
	uint32_t dim;                   /* channels a head, a multiple of 8 */
	uint32_t joint;                 /* heads that one transform takes together; divides heads */
	float round;                    /* a magnitude m is coded as floor(m + round); (0, .5] */
	struct kvp_rope_desc rope;      /* of keys; what is taken off before their transform */
};

/* Components that share a table of frequencies. */
struct kvp_calib_table {
	uint32_t count;  /* components, at least 1 */
	uint32_t shift;  /* low bits of a quotient that are coded by themselves, 0..7 */
	float offset[2]; /* by which magnitudes 1, and 2 and more, decode to less; -.5...5 */
	/* Of quotients >> shift; those of KVP_CALIB_ESCAPE and KVP_CALIB_ZERO are at least 1. */
	uint16_t freq[KVP_CALIB_SYMBOLS];
};

/*
 * One transform: component j of a token's channels x is sum_i (x[i] - mean[i]) * forward[i][j], and
 * what is decoded is mean[i] + sum_j component[j] * inverse[j][i], in the integers of docs/formats.md: offsets
 * are rounded to 64ths, inverse to 8192ths of its channel's largest. The step is in the matrices.
 */
struct kvp_calib_unit {
	uint32_t rank;        /* components, 1..joint * dim */
	uint32_t tables;      /* 1..64; their counts add up to rank */
	const float *mean;    /* [joint * dim], up to 2^16 */
	const float *forward; /* [joint * dim][rank], up to 2^20 */
	const float *inverse; /* [rank][joint * dim], up to 2^20 */
	const struct kvp_calib_table *table;
};

struct kvp_calib_entry {
	uint32_t layer;
	uint32_t kind;                     /* KVP_PLANE_* */
	const struct kvp_calib_unit *unit; /* heads / joint of them, of consecutive heads each */
};

struct kvp_calib_set;

/*
 * A set of what `data` holds, of which nothing is kept: the caller's until kvp_calib_set_free(), which
 * accepts NULL and returns NULL. It takes up to 50 times the file's bytes, for tables that are looked
 * up; of real models 1.5 times. -EBADMSG: not a calibration, or a damaged one; -EPROTONOSUPPORT: of
 * another version; -ENOMEM.
 */
int kvp_calib_set_new(const void *data, size_t size, struct kvp_calib_set **ret_set);
struct kvp_calib_set *kvp_calib_set_free(struct kvp_calib_set *set);

/* Belongs to the set. */
const struct kvp_calib_info *kvp_calib_set_info(const struct kvp_calib_set *set);

/*
 * What kvp_plane_encode() and kvp_plane_decode() take for K or V of a layer; NULL if the file has no
 * such entry. Belongs to the set, which must outlive every call that has it.
 */
const struct kvp_calib *kvp_calib_set_find(
	const struct kvp_calib_set *set, uint32_t layer, uint32_t kind);

/*
 * The bytes of a file and the file itself, of n entries in the order of (layer, kind), K before V.
 * -EINVAL: the file would be refused by kvp_calib_set_new(); -ENOSPC: out_size; -ENOMEM.
 */
int kvp_calib_bytes(const struct kvp_calib_info *info, const struct kvp_calib_entry *entries,
	size_t n, size_t *ret_bytes);
int kvp_calib_write(const struct kvp_calib_info *info, const struct kvp_calib_entry *entries,
	size_t n, void *out, size_t out_size);

/*
 * Frequencies for counts of symbols, as a table wants them: what never occurred and may (the escape,
 * the zero) gets the least there is. -EINVAL: the counts add up to more than 2^31.
 */
int kvp_calib_frequencies(const uint32_t *count, uint16_t *ret_freq);

#ifdef __cplusplus
}
#endif
#endif
