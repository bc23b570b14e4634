/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading coded payloads: what a space with a floor needs for that, made while it is opened. Read-only
 * from then on; any thread, no lock.
 */
#ifndef KVP_CODED_H
#define KVP_CODED_H

#include <stdbool.h>

#include "libclient/geometry.h"
#include "payload/kvp_payload.h"

struct space_codecs {
	struct kvp_kernels *kernels;
	uint32_t lowest;
	size_t scratch; /* bytes */
	struct kvp_block_layout width[KVP_PAYLOAD_WIDTHS];
	uint32_t codec[KVP_PAYLOAD_WIDTHS][2]; /* of keys and values */
	/* The calibration that these need, and the bytes that it was made of; NULL: none, or it has not come yet. */
	struct kvp_nuq_set *calib;
	void *calib_data;
	size_t calib_bytes;
};

/* *ret_codecs NULL: the space is exact. -ENOMEM. */
int coded_new(const struct kvp_space_canon *canon, struct space_codecs **ret_codecs);
/*
 * What came with the daemon's answer, fd, which may be -1: takes the calibration that the space needs, if it is one, once, before
 * anybody reads: lock held. 0 also where none is needed; -EPROTO: it is not one for the space; -ESTALE: it is not the one that the
 * space was opened with; -ENOMEM.
 */
int coded_calibrate(struct space_codecs *codecs, const struct kvp_space_canon *canon, int fd);
struct space_codecs *coded_free(struct space_codecs *codecs);

/* The layout of payloads of this width; NULL: the space has none such. */
static inline const struct kvp_block_layout *coded_layout(
	const struct space_codecs *codecs, uint32_t width)
{
	return codecs && width <= codecs->lowest ? &codecs->width[width] : NULL;
}

/* What is asked of each payload that is read: never by way of the shape, which has as many planes as a model has. */
static inline void coded_codecs(
	const struct space_codecs *codecs, uint32_t width, uint32_t *ret_k, uint32_t *ret_v)
{
	const bool native = !codecs || width > codecs->lowest;

	*ret_k = native ? KVP_CODEC_NATIVE : codecs->codec[width][0];
	*ret_v = native ? KVP_CODEC_NATIVE : codecs->codec[width][1];
}

/*
 * Decodes tokens [at, at + n) of a coded payload into tokens [user, user + n) of a checked view, through
 * *scratch, which is allocated when it is first needed and the caller's to free. -ENOMEM, -EBADMSG.
 */
int coded_to_view(const struct space_codecs *codecs, const struct geometry *geo, uint32_t width,
	const void *payload, uint64_t bytes, uint32_t at, uint32_t n, const struct kvp_view *view,
	uint64_t user, void **scratch);

#endif
