/* SPDX-License-Identifier: Apache-2.0 */
/* The codec table's rows that groups.c and published.c fill; private to kernels/. */
#ifndef KVP_KERNELS_GROUPS_H
#define KVP_KERNELS_GROUPS_H

#include "kernels/dsp.h"

#define KVP_DECLARE_CODEC(name)                                                                \
	int kvp_layout_##name(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret); \
	int kvp_encode_##name(const struct kvp_kernels *k, const struct kvp_plane *p,          \
		const struct kvp_layout *lay, const struct kvp_encode_opts *o,                 \
		struct kvp_raw_const src, uint8_t *out)

KVP_DECLARE_CODEC(prod);
KVP_DECLARE_CODEC(hybrid);
KVP_DECLARE_CODEC(smart);
/* published.c */
KVP_DECLARE_CODEC(pub_kivi);
KVP_DECLARE_CODEC(pub_aither);
KVP_DECLARE_CODEC(pub_vllm);
int kvp_rows_published(uint32_t codec, const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_calib *calib, const uint8_t *in, uint32_t head, uint32_t first,
	const struct rows_out *out);

/* Decodes any of them, through kvp_rows_decode(). */
int kvp_decode_rows(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst);

/*
 * Rows of one head from token first on. lay->bytes: what may be read. Of the payload's header only
 * the seed is looked at, of which every value is as good. -EINVAL: another family.
 */
int kvp_rows_decode(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out);

/* What a payload says beyond its header, of which hdr is a copy: -EBADMSG. */
int kvp_check_hybrid(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in);
int kvp_check_smart(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size);

#endif
