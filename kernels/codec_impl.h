/* SPDX-License-Identifier: Apache-2.0 */
/* What the files with the codecs' functions share: layouts, rows, codecs made of others. */
#ifndef KVP_KERNELS_CODEC_IMPL_H
#define KVP_KERNELS_CODEC_IMPL_H

#include "kernels/codec.h"
#include "kernels/dsp.h"

/* ---- codec.c ---- */

/* A layout with a header and no section yet; appends a section, returns its offset, 0 if empty. */
struct kvp_layout kvp_layout_new(const struct kvp_plane *p, uint32_t bits);
uint32_t kvp_layout_section(struct kvp_layout *lay, uint32_t bytes);
/* Groups of the variant of asym and sym. -EINVAL. */
int kvp_layout_groups(struct kvp_layout *lay, uint32_t dim, uint32_t variant);

/* n rows of one head from token first on. */
struct rows_in kvp_rows_in(const struct kvp_plane *p, struct kvp_raw_const src, uint32_t head,
	uint32_t first, uint32_t n, int32_t exponent);
struct rows_out kvp_rows_out(const struct kvp_plane *p, struct kvp_raw dst, uint32_t head,
	uint32_t first, uint32_t n, int32_t exponent);

/* Row t as encoders see it, and as decoders leave it. */
void kvp_row_load(const struct rows_in *in, uint32_t t, float *x);
void kvp_row_store(const struct rows_out *out, uint32_t t, const float *x);

/* The row's rows(), for attention; and for all heads, as decode() of what is attended apart. */
int kvp_rows_decode(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out);
int kvp_decode_rows(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst);

static inline const struct kvp_plane_hdr *kvp_header(const uint8_t *in)
{
	return (const struct kvp_plane_hdr *)(const void *)in;
}

/* One row of floats as input or output of a slot. */
static inline struct rows_in kvp_float_in(const float *x, uint32_t dim)
{
	return (struct rows_in){ (const uint8_t *)x, 0, 1, dim, KVP_DTYPE_F32, 1.0f };
}

static inline struct rows_out kvp_float_out(float *x, uint32_t dim, float scale)
{
	return (struct rows_out){ (uint8_t *)x, 0, 1, dim, KVP_DTYPE_F32, scale };
}

/* ---- plane.c ---- */

/*
 * plane.c: whether in is a plane of that layout, whose bytes become those that the header says. The header
 * is read once: whoever writes the payload may go on writing. Returns what kvp_plane_check() does.
 */
int kvp_plane_header(uint32_t codec, const struct kvp_plane *p, const struct kvp_calib *calib,
	const void *in, size_t in_size, struct kvp_layout *lay, struct kvp_plane_hdr *ret_hdr);

/* The memory that a raw plane spans, as integers; -EINVAL if that is not even an address range. */
int kvp_raw_span(
	const struct kvp_plane *p, struct kvp_raw_const raw, uintptr_t *ret_lo, uintptr_t *ret_hi);
/* Whether no two rows have a byte in common, as those that are written must. */
int kvp_rows_disjoint(const struct kvp_plane *p, struct kvp_raw_const raw);

/* ---- exponent.c ---- */

#define KVP_EXPONENT_MIN (-120)
#define KVP_EXPONENT_MAX 125
int32_t kvp_plane_exponent(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, struct kvp_raw_const src);
/* Whether the first row alone would have the exponent 0, as then the plane mostly has. */
int kvp_exponent_looks_usual(
	const struct kvp_kernels *k, const struct kvp_plane *p, struct kvp_raw_const src);

/* ---- codec_tq.c: rotation and codebook of a tq variant ---- */

int kvp_tq_init(struct tq *ret_tq, uint32_t variant, uint32_t dim, uint64_t seed,
	const struct kvp_calib *calib);

/* ---- codec_sym.c: symmetric codes of one vector, which smart has, too ---- */

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

/* ---- codec_affine.c: kivi's keys that fill no group, which squat has, too ---- */

void kvp_kivi_tail(const struct kvp_plane *p, const struct kvp_layout *lay,
	struct kvp_raw_const src, uint8_t *out);

/* ---- codec_prod.c: tq and one bit for the residual, which hybrid has, too ---- */

/* Codes of bits - 1, one sign per channel, two scalars. */
struct kvp_prod {
	struct tq tq; /* plain */
	struct rotation sketch;
	float unit; /* what makes the decoded residual right on average */
};

/* Where those of one vector lie. */
struct kvp_prod_row {
	uint8_t *codes, *signs, *scale, *residual;
};

int kvp_prod_init(struct kvp_prod *p, uint32_t bits, uint32_t dim, uint64_t seed);
/* Destroys x. */
void kvp_prod_encode(const struct kvp_prod *p, float *x, const struct kvp_prod_row *to);
void kvp_prod_decode(
	const struct kvp_prod *p, const struct kvp_prod_row *from, float scale, float *x);

/* ---- codec_smart.c ---- */

/*
 * kvp_smart_recode() once everything has been checked. The payload may have changed since: it
 * is read within in_size all the same. -EBADMSG, with nothing written: its codec or widths did.
 */
int kvp_smart_recode_checked(const struct kvp_kernels *k, uint32_t codec, uint32_t codec_to,
	const struct kvp_plane *p, const struct kvp_layout *lay, const void *in, size_t in_size,
	const uint8_t *widths, void *out, size_t out_size);

#endif
