/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The planes of an attention's parts, as kernels take them: checked, with the rotation in whose
 * domain their codes lie, and cut into runs of rows. Private to attend.c and attend_plane.c.
 */
#ifndef KVP_KERNELS_ATTEND_PLANE_H
#define KVP_KERNELS_ATTEND_PLANE_H

#include "kernels/codec_impl.h"
#include "kernels/dsp.h"
#include "kernels/kvp_attend.h"

#define DOMAINS (1 + KVP_ATTEND_ROTATIONS_MAX) /* domain 0 is the plain one */

/* The rotations that occur among the keys, or among the values. */
struct domains {
	uint32_t n;     /* besides domain 0 */
	uint32_t books; /* of domains, as bits: in which rows are centroids of 4 bits */
	uint32_t codes; /* likewise: rows that any bytes are made of */
	uint32_t kind[KVP_ATTEND_ROTATIONS_MAX];
	uint64_t name[KVP_ATTEND_ROTATIONS_MAX]; /* seed, or digest of a dense one */
	struct rotation rot[KVP_ATTEND_ROTATIONS_MAX];
};

/* One plane of a part. */
struct plane_view {
	struct kvp_plane p;
	struct kvp_layout lay;
	struct kvp_plane_hdr hdr;
	struct kvp_in_place in;
	uint32_t domain;
	/* For the next plane, which is mostly alike: */
	uint32_t known; /* the codec's layout for p, its place and its book are here */
	uint32_t codec;
	struct kvp_layout whole; /* but for what a header says */
	float cent[16], bound[16];
};

/*
 * What the plane's header and the job say, bounded; the payload may be somebody else's to write. The
 * domain is not set. v: all zeros, or as it was left. -EINVAL, and what kvp_plane_check() returns.
 */
int kvp_attend_view(const struct kvp_attention *a, const struct kvp_attend_part *part,
	uint32_t kind, struct plane_view *v);

/* Has the plane's rotation among d, and sets its domain. -E2BIG, and what kvp_rotation_init() returns. */
int kvp_attend_domain_add(struct domains *d, struct plane_view *v, const struct kvp_calib *calib);

/* Both planes of a part. */
struct part_view {
	const struct kvp_attend_part *part;
	struct plane_view k, v;
	uint64_t at; /* of its first token */
};

/*
 * Part i, whose first token is `at`, with the domains of its planes among those of keys and of
 * values. *ret: all zeros, or as it was left. -EBADMSG: they are not there, as they were when the job was prepared.
 */
int kvp_attend_part_view(const struct kvp_attention *a, const struct domains *k,
	const struct domains *v, uint32_t i, uint64_t at, struct part_view *ret);

/*
 * Tokens [first, first + n) of a head; kivi's native tail and its groups are never in one call. The
 * form is KVP_FORMS if they cannot be attended in place: then kvp_attend_rows_ready() decodes them
 * into scratch, n * dim floats. It does nothing to others.
 */
struct kvp_rows kvp_attend_rows(const struct plane_view *v, const struct kvp_attend_plane *ap,
	uint32_t head, uint32_t first, uint32_t n);
int kvp_attend_rows_ready(const struct kvp_kernels *k, const struct plane_view *v,
	const struct kvp_attend_plane *ap, uint32_t head, uint32_t first, float *scratch,
	struct kvp_rows *rows);

/*
 * What is attended at a time: n tokens of one KV head. They end at multiples of ATTEND_CHUNK and
 * where a kivi plane's native tail begins.
 */
struct chunk {
	const struct part_view *pv; /* NULL: none */
	uint32_t head, t, n;
	struct kvp_rows k, v; /* KVP_FORMS: to be decoded first */
};

/* pv NULL: none. */
struct chunk kvp_attend_chunk_first(const struct part_view *pv);
/* The one behind c: further tokens, then the next head, then the part `after` this one. */
struct chunk kvp_attend_chunk_next(
	const struct kvp_attention *a, const struct chunk *c, const struct part_view *after);

#endif
