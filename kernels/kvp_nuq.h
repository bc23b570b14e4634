/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calibrations of the codec `kvquant` (arXiv 2401.18079): for a layer's keys where each channel usually
 * lies, and for keys and values which codes there are, as a file of its own. docs/formats.md,
 * "Calibrations of kvquant", has every byte. A payload carries the digest of its entry, so whoever has
 * another one, or none, gets -ENOENT and no bytes.
 *
 * Files are hostile until they have been checked: every field is bounded, sizes follow from what is
 * in the file and end with it, the checksum is XXH3. Errors are negative errno values; nothing has
 * been written then. Nothing here locks, logs or keeps state; a set is read-only once made, and any
 * number of threads may use it.
 */
#ifndef KVP_NUQ_H
#define KVP_NUQ_H

#include "kernels/kvp_codec.h"
#include "kernels/kvp_rope.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_NUQ_MAGIC      UINT32_C(0x4e50564b) /* "KVPN" */
#define KVP_NUQ_VERSION    1u
#define KVP_NUQ_NAME_MAX   64u    /* of a model's name, with its NUL */
#define KVP_NUQ_LAYERS_MAX 256u   /* of a model */
#define KVP_NUQ_WIDTH_MAX  16384u /* channels of a token, all heads */
#define KVP_NUQ_SIGNPOSTS  28u    /* 4, 8 and 16 of 2, 3 and 4 bits */

/* What an entry is for. */
#define KVP_NUQ_K      0u /* keys before their RoPE */
#define KVP_NUQ_V      1u /* values */
#define KVP_NUQ_K_POST 2u /* keys as engines keep them */
#define KVP_NUQ_FORMS  3u

/* What all entries of a file share. */
struct kvp_nuq_info {
	char model[KVP_NUQ_NAME_MAX]; /* printable ASCII, not empty */
	uint32_t layers;              /* of the model, 1..256 */
	uint32_t heads;               /* KV heads of a plane */
	uint32_t dim; /* channels a head, a multiple of 8; heads * dim up to 16384 */
	uint32_t reserved;
	struct kvp_rope_desc rope; /* of keys; what is taken off before they are coded */
};

/*
 * Channel i, of [heads][dim], usually lies in [low[i], high[i]], which are numbers up to 65504; values
 * have no such bounds, they are found in each token. A code stands for a signpost between -1 and 1,
 * where -1 is low and 1 is high. Those of one number of bits ascend.
 */
struct kvp_nuq_entry {
	uint32_t layer;
	uint32_t form; /* KVP_NUQ_* */
	float signpost[KVP_NUQ_SIGNPOSTS];
	const float *low, *high; /* the caller's; not looked at for values */
};

struct kvp_nuq_set;

/*
 * A set of what `data` holds, of which nothing is kept: the caller's until kvp_nuq_set_free(), which
 * accepts NULL and returns NULL. It takes 1.5 times the file's bytes. -EBADMSG: not a calibration of
 * kvquant, or a damaged one; -EPROTONOSUPPORT: of another version; -ENOMEM.
 */
int kvp_nuq_set_new(const void *data, size_t size, struct kvp_nuq_set **ret_set);
struct kvp_nuq_set *kvp_nuq_set_free(struct kvp_nuq_set *set);

/* Belongs to the set. */
const struct kvp_nuq_info *kvp_nuq_set_info(const struct kvp_nuq_set *set);

/*
 * What kvp_plane_encode() and kvp_plane_decode() take for a layer; NULL if the file has no such entry.
 * Belongs to the set, which must outlive every call that has it.
 */
const struct kvp_calib *kvp_nuq_set_find(
	const struct kvp_nuq_set *set, uint32_t layer, uint32_t form);

/*
 * The bytes of a file and the file itself, of n entries in the order of (layer, form). -EINVAL: the
 * file would be refused by kvp_nuq_set_new(); -ENOSPC: out_size; -ENOMEM.
 */
int kvp_nuq_bytes(const struct kvp_nuq_info *info, const struct kvp_nuq_entry *entries, size_t n,
	size_t *ret_bytes);
int kvp_nuq_write(const struct kvp_nuq_info *info, const struct kvp_nuq_entry *entries, size_t n,
	void *out, size_t out_size);

#ifdef __cplusplus
}
#endif
#endif
