/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a codec is: one row of facts and functions for each family. Whoever needs to know something
 * of a codec asks its row, so that a new codec is a file with its functions and its row, and a line
 * in codec.c. Private to kernels/ and its tests.
 */
#ifndef KVP_KERNELS_CODEC_H
#define KVP_KERNELS_CODEC_H

#include "kernels/attend_rows.h"
#include "kernels/kvp_codec.h"

struct kvp_kernels;
struct rows_out;
struct tq;

/* One optional part of a name and what it adds to the variant; a list ends with text NULL. */
struct kvp_name_option {
	const char *text;
	uint32_t value;
};

/* Names: the row's, a digit if there are bits, then at most one of each list, in their order. */
struct kvp_names {
	uint32_t bits_min; /* 0: the name has no digit */
	uint32_t bits_max;
	int32_t bits_bias;  /* subtracted from the digit before it goes into the variant */
	uint32_t bits_mask; /* where it is in the variant */
	uint32_t fallback;  /* or-ed in if no option of the first list is given */
	const struct kvp_name_option *options[4];
};
/* names.c: lists that several families have. */
extern const struct kvp_name_option kvp_names_groups[], kvp_names_any_groups[], kvp_names_wide[];

/* Facts about a codec, or about some of its variants. */
#define KVP_FACT_BARE      1u  /* the elements themselves: no header, any dim, any dtype */
#define KVP_FACT_SEED      2u  /* rotates with signs whose seed is in the header */
#define KVP_FACT_MATRIX    4u  /* rotates with the calibration's matrix, whose digest is there */
#define KVP_FACT_PUBLISHED 8u  /* another's layout: a caller may fill the sections */
#define KVP_FACT_UNSCALED  16u /* magnitudes know no exponent */
#define KVP_FACT_VARIES    32u /* the header says how long the payload is; layout() is a bound */

#define KVP_FACT_CALIBRATED \
	64u                   /* works with a calibration's entry, whose digest is in the header */
#define KVP_FACT_QUERIES 128u /* keys are encoded with struct kvp_encode_opts.queries */

/* What attention must know to take codes as they lie. */
#define KVP_ROT_NONE UINT32_MAX
struct kvp_in_place {
	uint32_t form;        /* KVP_FORM_*; KVP_FORMS: it decodes rows first, by rows() */
	uint32_t bits;        /* of a code; 0: form says it */
	uint32_t format;      /* as in struct kvp_rows */
	uint32_t per_channel; /* scale and minimum are a channel's, of a group of tokens */
	uint32_t rotation;    /* KVP_ROT_* of the domain that codes lie in, or NONE */
	uint32_t unit; /* 1: values there are sqrt(dim) times as large as what they stand for */
	uint32_t book; /* KVP_BOOK_* of KVP_FORM_BOOK */
};

/* Arguments are those that kvp_plane_encode() and kvp_plane_decode() have validated. */
struct kvp_codec {
	uint32_t family;
	const char *name;
	struct kvp_names names;
	uint32_t facts;                         /* of all variants */
	uint32_t (*facts_of)(uint32_t variant); /* of this one besides; NULL: none */
	/* The only authority on sizes. -EINVAL: the codec cannot hold such a plane. */
	int (*layout)(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret_layout);
	/* Where tokens have widths: what the payload takes. NULL: those it has where none are said. -EINVAL. */
	int (*bytes)(
		uint32_t id, const struct kvp_plane *p, const uint8_t *widths, uint32_t *ret_bytes);
	/* Where facts say CALIBRATED: whether that calibration is one for such planes. */
	int (*fits)(uint32_t id, const struct kvp_calib *calib, const struct kvp_plane *p);
	/* What a payload says beyond its header, of which hdr is a copy: -EBADMSG. May be NULL. */
	int (*check)(const struct kvp_plane *p, const struct kvp_layout *lay,
		const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size);
	int (*encode)(const struct kvp_kernels *k, const struct kvp_plane *p,
		const struct kvp_layout *lay, const struct kvp_encode_opts *o,
		struct kvp_raw_const src, uint8_t *out);
	/* hdr: a copy that was checked; `in`, header and all, may change at any moment. */
	int (*decode)(const struct kvp_kernels *k, const struct kvp_plane *p,
		const struct kvp_layout *lay, const struct kvp_calib *calib,
		const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst);
	/*
	 * decode() in two steps, the first of which is the same for all planes of one codec, dim,
	 * seed and calibration. Both NULL where there is nothing to share.
	 */
	int (*prepare)(uint32_t id, uint32_t dim, uint64_t seed, const struct kvp_calib *calib,
		struct tq *ret_tq);
	void (*decode_prepared)(const struct kvp_kernels *k, const struct tq *tq,
		const struct kvp_plane *p, const struct kvp_layout *lay, int32_t exponent,
		const uint8_t *in, struct kvp_raw dst);
	/*
	 * Rows of one head from token first on. lay->bytes: what may be read. Of the payload's header
	 * only the seed is looked at, of which every value is as good. NULL if all are taken in place.
	 */
	int (*rows)(const struct kvp_kernels *k, uint32_t id, const struct kvp_plane *p,
		const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
		uint32_t head, uint32_t first, const struct rows_out *out);
	/* Of a plane of that kind. NULL: nothing is attended in place. */
	struct kvp_in_place (*in_place)(uint32_t id, uint32_t kind);
};

/* codec.c: the row of a family, NULL if there is none; facts of an id, 0 if there is no such row. */
const struct kvp_codec *kvp_codec_row(uint32_t family);
uint32_t kvp_codec_facts(uint32_t id);
struct kvp_in_place kvp_codec_in_place(uint32_t id, uint32_t kind);

/* The rows, each beside its functions: codec_*.c */
extern const struct kvp_codec kvp_codec_native, kvp_codec_fp8, kvp_codec_int8, kvp_codec_kivi,
	kvp_codec_asym, kvp_codec_tq, kvp_codec_hadamard, kvp_codec_tqprod, kvp_codec_hybrid,
	kvp_codec_smart, kvp_codec_pub_kivi, kvp_codec_pub_aither, kvp_codec_pub_vllm,
	kvp_codec_sym, kvp_codec_lossless, kvp_codec_pca, kvp_codec_kvquant, kvp_codec_spectral,
	kvp_codec_squat;

#endif
