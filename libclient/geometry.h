/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where elements lie in a payload and in a caller's view, and copies between the two. Knows no
 * client and no catalog.
 */
#ifndef KVP_GEOMETRY_H
#define KVP_GEOMETRY_H

#include "libclient/kvpool.h"
#include "shm/kvp_abi.h"

/* Bytes from the start of a block's payload; token t adds t strides. */
struct geo_layer {
	uint64_t k_off, v_off;
	uint64_t k_stride, v_stride;
	uint32_t heads;
	uint32_t k_row, v_row; /* bytes of one head's channels */
};

struct geometry {
	uint32_t element; /* bytes */
	uint32_t block_tokens;
	uint32_t layout;
	uint32_t n_layers;
	uint32_t homogeneous;
	uint64_t token_bytes;
	uint64_t k_token_bytes; /* all layers' keys of one token; the rest are values */
	uint64_t block_bytes;
	struct geo_layer layers[KVP_MAX_LAYERS];
};

/* -EINVAL or -E2BIG as kvp_space_open(). */
int geometry_init(const struct kvp_space_canon *canon, struct geometry *ret_geo);

#define VIEW_READ  0u /* some planes and heads may be left out */
#define VIEW_WRITE 1u /* must cover the whole space: what is stored has no holes */

int view_check(const struct geometry *geo, const struct kvp_view *view, uint32_t mode,
	struct kvp_view *ret_view);
/* Has a checked view a place for the call's n tokens? -EINVAL: its table does not say where. */
int view_reaches(const struct kvp_view *view, uint64_t n);
/*
 * Copies tokens [at, at + n) of a payload to or from tokens [user, user + n) of a checked view.
 * `total`: tokens of the whole call, which decides whether the cache is worth using.
 */
void view_from_payload(const struct geometry *geo, const void *payload, uint32_t at, uint32_t n,
	const struct kvp_view *view, uint64_t user, uint64_t total);
void view_to_payload(const struct geometry *geo, void *payload, uint32_t n,
	const struct kvp_view *view, uint64_t user, uint64_t total);
/* The same of n bytes that are not looked into, of a call that copies `total` bytes. */
void payload_copy(void *dst, const void *src, uint64_t n, uint64_t total);

/*
 * The runs of bytes that such a copy consists of, for somebody else to copy: addresses are worked out, and
 * nothing is read or written there. Of a checked view in which channels lie side by side. What `run` is
 * told is dst and src as for memcpy(); VIEW_READ: out of the payload, VIEW_WRITE: into it.
 */
struct view_sink {
	void (*run)(void *ctx, void *dst, const void *src, uint64_t n);
	void *ctx;
};
int view_has_rows(const struct geometry *geo, const struct kvp_view *view);
void view_runs(const struct geometry *geo, uint64_t payload, uint32_t at, uint32_t n,
	const struct kvp_view *view, uint64_t user, uint32_t mode, const struct view_sink *sink);

/* The layer of the space that the view's i-th plane stands for. */
static inline uint32_t view_layer(const struct kvp_view *view, uint32_t i)
{
	return view->layers ? view->layers[i] : i;
}
/*
 * Copies tokens [at, at + n) of one layer, whose keys and values lie as [head][token][channel] of a whole
 * block, to tokens [user, user + n) of the i-th planes of a checked view. v: NULL if the layer has none.
 */
void view_from_layer(const struct geometry *geo, const void *k, const void *v, uint32_t at,
	uint32_t n, const struct kvp_view *view, uint32_t i, uint64_t user);
/* First n tokens from one payload to another of the same geometry. */
void payload_prefix(const struct geometry *geo, void *dst, const void *src, uint32_t n);

#endif
