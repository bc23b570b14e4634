/* SPDX-License-Identifier: Apache-2.0 */
/* The codec table's rows that groups.c, symmetric.c and published.c fill; private to kernels/. */
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
/* symmetric.c */
KVP_DECLARE_CODEC(sym);
void kvp_rows_sym(uint32_t codec, const struct kvp_plane *p, const struct kvp_layout *lay,
	const uint8_t *in, uint32_t head, uint32_t first, const struct rows_out *out);
/* published.c */
KVP_DECLARE_CODEC(pub_kivi);
KVP_DECLARE_CODEC(pub_aither);
KVP_DECLARE_CODEC(pub_vllm);
int kvp_rows_published(uint32_t codec, const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_calib *calib, const uint8_t *in, uint32_t head, uint32_t first,
	const struct rows_out *out);

/* Symmetric codes of one vector, which smart has, too. */
struct kvp_sym {
	uint32_t bits;  /* 2, 3, 4 or 8 */
	uint32_t group; /* channels per scale; the last group may be shorter */
	uint32_t wide;  /* scales are fp32, not fp16 */
	uint32_t dim;
	int32_t low, high; /* least and largest multiple of the scale */
	int32_t bias;      /* added to it for the code */
};
struct kvp_sym kvp_sym_init(uint32_t bits, uint32_t group, uint32_t wide, uint32_t dim);
void kvp_sym_encode(const struct kvp_sym *s, const float *x, uint8_t *codes, uint8_t *scale);
void kvp_sym_decode(const struct kvp_sym *s, const uint8_t *codes, const uint8_t *scale,
	float factor, float *x);

/* Row t as encoders see it, and as decoders leave it. */
void kvp_row_load(const struct rows_in *in, uint32_t t, float *x);
void kvp_row_store(const struct rows_out *out, uint32_t t, const float *x);

/* codec.c: groups of the variant of asym and sym. -EINVAL. */
int kvp_layout_groups(struct kvp_layout *lay, uint32_t dim, uint32_t variant);

/* Whether attention decodes rows of a codec first, by kvp_rows_decode(). */
static inline int kvp_rows_apart(uint32_t codec)
{
	uint32_t v = KVP_CODEC_VARIANT(codec);

	if (KVP_CODEC_FAMILY(codec) == KVP_FAMILY_ASYM)
		return (v & KVP_CODEC_WIDE) || v >> 4 == 3;
	return KVP_CODEC_FAMILY(codec) >= KVP_FAMILY_TQPROD;
}

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

/*
 * kvp_smart_requantize() once everything has been checked. The payload may have changed since: it
 * is read within in_size all the same. -EBADMSG, with nothing written: its codec or widths did.
 */
int kvp_smart_requantize_checked(const struct kvp_kernels *k, uint32_t codec,
	const struct kvp_plane *p, const struct kvp_layout *lay, const void *in, size_t in_size,
	const uint8_t *widths, void *out, size_t out_size);

/* What a payload says beyond its header, of which hdr is a copy: -EBADMSG. */
int kvp_check_hybrid(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in);
int kvp_check_smart(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size);

#endif
