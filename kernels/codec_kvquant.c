/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvquant: codes of 2, 3 or 4 bits for signposts that a calibration chose; keys by the usual range of
 * each channel, before RoPE or as they are, values by that of each token. A fixed share of a token's
 * channels, those that are furthest outside, is kept beside the codes in fp16.
 */
#include "kernels/codec_impl.h"
#include "kernels/kvp_rope.h"
#include "kernels/nuq.h"
#include "kernels/numeric.h"
#include "kernels/rope.h"
#include "kernels/rowcode.h"

#include <errno.h>

/* What follows the payload's header. */
struct kvquant_hdr {
	uint32_t position; /* of the first token; 0 for values */
	uint32_t flags;
};
#define NEEDS_ROPE 1u /* what is coded are keys before RoPE */

#define OUTLIERS_MAX (2u * ((KVP_NUQ_WIDTH_MAX + 100u) / 200u))

struct outlier {
	uint16_t channel; /* of all heads' */
	uint16_t value;   /* fp16 */
};

static uint32_t bits_of(uint32_t id)
{
	return KVP_CODEC_VARIANT(id) & KVP_KVQUANT_BITS;
}

/* One in a hundred channels of a token, half of them below and half above, at least one of each. */
static uint32_t outliers_of(uint32_t id, const struct kvp_plane *p)
{
	const uint32_t half = (p->heads * p->dim + 100) / 200;

	if (KVP_CODEC_VARIANT(id) & KVP_KVQUANT_DENSE)
		return 0;
	return 2 * (half ? half : 1);
}

static int needs_rope(uint32_t id, const struct kvp_plane *p)
{
	return p->kind == KVP_PLANE_K && !(KVP_CODEC_VARIANT(id) & KVP_KVQUANT_POST);
}

static int layout_kvquant(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	const uint32_t known =
		KVP_KVQUANT_BITS | KVP_KVQUANT_UNIFORM | KVP_KVQUANT_POST | KVP_KVQUANT_DENSE;
	const uint32_t bits = bits_of(id);
	struct kvp_layout lay = kvp_layout_new(p, bits);

	if (KVP_CODEC_VARIANT(id) & ~known || bits < NUQ_BITS_MIN || bits > NUQ_BITS_MAX ||
		p->heads * p->dim > KVP_NUQ_WIDTH_MAX)
		return -EINVAL;
	lay.bytes += (uint32_t)sizeof(struct kvquant_hdr);
	lay.codes = kvp_layout_section(&lay, p->heads * p->tokens * lay.row_bytes);
	if (p->kind == KVP_PLANE_V) {
		lay.scale = kvp_layout_section(&lay, 2 * p->tokens);
		lay.minimum = kvp_layout_section(&lay, 2 * p->tokens);
	}
	lay.extra = kvp_layout_section(
		&lay, p->tokens * outliers_of(id, p) * (uint32_t)sizeof(struct outlier));
	*ret = lay;
	return 0;
}

static int fits_kvquant(uint32_t id, const struct kvp_calib *calib, const struct kvp_plane *p)
{
	const struct kvp_nuq *nuq = calib->nuq;
	const uint32_t form = p->kind == KVP_PLANE_V ? KVP_NUQ_V
			      : needs_rope(id, p)    ? KVP_NUQ_K
						     : KVP_NUQ_K_POST;

	return nuq && nuq->heads == p->heads && nuq->dim == p->dim && nuq->form == form;
}

static void book_of(uint32_t id, const struct kvp_nuq *nuq, struct nuq_book *ret)
{
	if (KVP_CODEC_VARIANT(id) & KVP_KVQUANT_UNIFORM)
		kvp_nuq_book_even(bits_of(id), ret);
	else
		*ret = nuq->book[bits_of(id) - NUQ_BITS_MIN];
}

/* ---- outliers ---- */

/*
 * The n largest of all numbers that were offered, in a heap whose smallest is first. Numbers are a
 * rank of 32 bits above 16 bits that tell channels apart, so no two are equal and no order of offering
 * gives another choice.
 */
struct heap {
	uint32_t n, max;
	uint64_t at[OUTLIERS_MAX];
};

static void sift_down(struct heap *h, uint32_t i)
{
	for (;;) {
		uint32_t least = i;
		uint64_t swap;

		for (uint32_t c = 2 * i + 1; c <= 2 * i + 2 && c < h->n; c++)
			least = h->at[c] < h->at[least] ? c : least;
		if (least == i)
			return;
		swap = h->at[i];
		h->at[i] = h->at[least];
		h->at[least] = swap;
		i = least;
	}
}

static void offer(struct heap *h, uint64_t v)
{
	if (h->n < h->max) {
		h->at[h->n++] = v;
		for (uint32_t i = h->n / 2; h->n == h->max && i-- > 0;)
			sift_down(h, i);
	} else if (v > h->at[0]) {
		h->at[0] = v;
		sift_down(h, 0);
	}
}

/* Ascending as floats do. */
static uint32_t rank_of(float f)
{
	const uint32_t u = f32_bits(f + 0.0f);

	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Of keys: the channels furthest outside their range, the first of equals. */
static void mark_keys(
	const struct kvp_nuq *nuq, const float *x, uint32_t width, uint32_t n, uint8_t *out)
{
	struct heap h = { .max = n };

	for (uint32_t i = 0; i < width; i++) {
		const float u = (x[i] - nuq->middle[i]) * nuq->inverse[i];

		offer(&h, (uint64_t)(f32_bits(u) & 0x7fffffffu) << 16 | (0xffffu - i));
	}
	for (uint32_t i = 0; i < h.n; i++)
		out[0xffffu - (h.at[i] & 0xffffu)] = 1;
}

/* Of values: as many of the smallest, first ones of equals, as of the largest, last ones of equals. */
static void mark_values(const float *x, uint32_t width, uint32_t n, uint8_t *out)
{
	struct heap low = { .max = n / 2 }, high = { .max = n / 2 };

	for (uint32_t i = 0; i < width; i++) {
		const uint64_t v = (uint64_t)rank_of(x[i]) << 16 | i;

		offer(&high, v);
		offer(&low, ~v & 0xffffffffffffu);
	}
	for (uint32_t i = 0; i < high.n; i++)
		out[high.at[i] & 0xffffu] = 1;
	for (uint32_t i = 0; i < low.n; i++)
		out[~low.at[i] & 0xffffu] = 1;
}

/* In the order of channels. */
static void put_outliers(const float *x, uint32_t width, const uint8_t *out, uint8_t *to)
{
	for (uint32_t i = 0; i < width; i++) {
		struct outlier o = { .channel = (uint16_t)i };

		if (!out[i])
			continue;
		o.value = f32_to_f16(x[i]);
		memcpy(to, &o, sizeof o);
		to += sizeof o;
	}
}

/* ---- encoding ---- */

/* One token of all heads, in fp32, keys before RoPE if those are coded. */
static void load_token(const struct kvp_kernels *k, const struct kvp_plane *p,
	struct kvp_raw_const src, const struct rope_turn *turn, uint32_t t, float *x)
{
	for (uint32_t h = 0; h < p->heads; h++)
		k->dsp.rope_row(turn, p->dim, kvp_rows_in(p, src, h, t, 1, 0).data, p->dtype,
			(uint8_t *)(x + h * p->dim), KVP_DTYPE_F32);
	for (uint32_t i = 0; i < p->heads * p->dim; i++)
		x[i] = clampf(x[i], NUQ_INPUT_MAX);
}

/* What one token's channels are measured by, where they have one range: values. */
struct token_range {
	float middle[KVP_PLANE_DIM_MAX], factor[KVP_PLANE_DIM_MAX];
};

static void fill_range(struct token_range *r, uint32_t dim, float middle, float factor)
{
	for (uint32_t i = 0; i < dim; i++) {
		r->middle[i] = middle;
		r->factor[i] = factor;
	}
}

/* The range of what is no outlier, as scalars that are stored. Two outliers of two leave nothing. */
static void range_of_values(const float *x, const uint8_t *out, const struct kvp_plane *p,
	uint8_t *scale, uint8_t *middle, struct token_range *ret)
{
	float low = NUQ_INPUT_MAX, high = -NUQ_INPUT_MAX, half;

	for (uint32_t i = 0; i < p->heads * p->dim; i++) {
		if (out[i])
			continue;
		low = x[i] < low ? x[i] : low;
		high = x[i] > high ? x[i] : high;
	}
	store_scalar(scale, (high - low) * 0.5f);
	store_scalar(middle, (high + low) * 0.5f + 0.0f);
	half = f16_to_f32(load_u16(scale));
	fill_range(ret, p->dim, f16_to_f32(load_u16(middle)), half > 0.0f ? 1.0f / half : 0.0f);
}

static int encode_kvquant(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const uint32_t id = kvp_header(out)->codec, n = outliers_of(id, p);
	const uint32_t width = p->heads * p->dim, pre = (uint32_t)needs_rope(id, p);
	const struct kvp_nuq *nuq = o->calib->nuq;
	const struct kvquant_hdr hdr = { p->kind == KVP_PLANE_K ? o->position : 0,
		pre ? NEEDS_ROPE : 0 };
	float x[KVP_NUQ_WIDTH_MAX];
	uint8_t outside[KVP_NUQ_WIDTH_MAX];
	struct token_range range;
	struct rope_turn turn;
	struct nuq_book book;

	memcpy(out + KVP_PLANE_HDR_BYTES, &hdr, sizeof hdr);
	book_of(id, nuq, &book);
	for (uint32_t t = 0; t < p->tokens; t++) {
		k->dsp.rope_turn(nuq->rope, hdr.position + t, 1, &turn);
		load_token(k, p, src, &turn, t, x);
		memset(outside, 0, width);
		if (n && p->kind == KVP_PLANE_K)
			mark_keys(nuq, x, width, n, outside);
		else if (n)
			mark_values(x, width, n, outside);
		put_outliers(x, width, outside,
			out + lay->extra + (size_t)t * n * sizeof(struct outlier));
		if (p->kind == KVP_PLANE_V)
			range_of_values(x, outside, p, out + lay->scale + 2 * (size_t)t,
				out + lay->minimum + 2 * (size_t)t, &range);
		for (uint32_t h = 0; h < p->heads; h++) {
			const uint32_t at = h * p->dim;
			const struct nuq_row row =
				p->kind == KVP_PLANE_K
					? (struct nuq_row){ nuq->middle + at, nuq->inverse + at }
					: (struct nuq_row){ range.middle, range.factor };

			k->dsp.nuq_encode(bits_of(id), &book, &row, x + at, p->dim,
				out + lay->codes + ((size_t)h * p->tokens + t) * lay->row_bytes);
		}
	}
	return 0;
}

/* ---- decoding ---- */

static int take_header(
	uint32_t id, const struct kvp_plane *p, const uint8_t *in, struct kvquant_hdr *ret)
{
	memcpy(ret, in + KVP_PLANE_HDR_BYTES, sizeof *ret);
	if (ret->flags != (needs_rope(id, p) ? NEEDS_ROPE : 0u))
		return -EBADMSG;
	if (p->kind == KVP_PLANE_K ? ret->position > KVP_ROPE_POSITIONS_MAX - p->tokens
				   : ret->position != 0)
		return -EBADMSG;
	return 0;
}

static int check_kvquant(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size)
{
	struct kvquant_hdr own;

	(void)lay;
	(void)in_size;
	return take_header(hdr->codec, p, in, &own);
}

/* Those of one head over what its codes say. A channel that no plane has is not of this head. */
static void take_outliers(
	const uint8_t *in, uint32_t n, const struct kvp_plane *p, uint32_t head, float *x)
{
	for (uint32_t i = 0; i < n; i++, in += sizeof(struct outlier)) {
		const uint32_t at = load_u16(in) - head * p->dim; /* wraps where it is before */

		if (at < p->dim)
			x[at] = load_scalar(in + offsetof(struct outlier, value), 1.0f);
	}
}

/* Heads [head, head + heads) of token t; `data` is the first one's row. */
static void decode_token(const struct kvp_kernels *k, uint32_t id, const struct nuq_book *book,
	const struct kvp_nuq *nuq, const struct kvp_plane *p, const struct kvp_layout *lay,
	const uint8_t *in, uint32_t t, uint32_t head, uint32_t heads, uint32_t position,
	uint32_t dtype, uint8_t *data, ptrdiff_t head_stride)
{
	const uint32_t n = outliers_of(id, p);
	struct token_range range;
	struct rope_turn turn;
	float x[KVP_PLANE_DIM_MAX];

	if (p->kind == KVP_PLANE_V)
		fill_range(&range, p->dim, load_scalar(in + lay->minimum + 2 * (size_t)t, 1.0f),
			load_scalar(in + lay->scale + 2 * (size_t)t, 1.0f));
	k->dsp.rope_turn(nuq->rope, position + t, 0, &turn);
	for (uint32_t h = head; h < head + heads; h++, data += head_stride) {
		const uint32_t at = h * p->dim;
		const struct nuq_row row =
			p->kind == KVP_PLANE_K
				? (struct nuq_row){ nuq->middle + at, nuq->range + at }
				: (struct nuq_row){ range.middle, range.factor };

		k->dsp.nuq_decode(bits_of(id), book, &row,
			in + lay->codes + ((size_t)h * p->tokens + t) * lay->row_bytes, p->dim, x);
		take_outliers(in + lay->extra + (size_t)t * n * sizeof(struct outlier), n, p, h, x);
		k->dsp.rope_row(&turn, p->dim, (const uint8_t *)x, KVP_DTYPE_F32, data, dtype);
	}
}

static int decode_kvquant(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, struct kvp_raw dst)
{
	struct kvquant_hdr own;
	struct nuq_book book;
	int r = take_header(hdr->codec, p, in, &own);

	if (r < 0)
		return r;
	book_of(hdr->codec, calib->nuq, &book);
	for (uint32_t t = 0; t < p->tokens; t++)
		decode_token(k, hdr->codec, &book, calib->nuq, p, lay, in, t, 0, p->heads,
			own.position, p->dtype, kvp_rows_out(p, dst, 0, t, 1, 0).data,
			dst.head_stride);
	return 0;
}

static int rows_kvquant(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	struct kvquant_hdr own;
	struct nuq_book book;
	int r = take_header(codec, p, in, &own);

	if (r < 0)
		return r;
	book_of(codec, calib->nuq, &book);
	for (uint32_t t = 0; t < out->n; t++)
		decode_token(k, codec, &book, calib->nuq, p, lay, in, first + t, head, 1,
			own.position, out->dtype, out->data + (ptrdiff_t)t * out->stride, 0);
	return 0;
}

static const struct kvp_name_option uniform[] = { { "-uniform", KVP_KVQUANT_UNIFORM },
	{ NULL, 0 } };
static const struct kvp_name_option post[] = { { "-post", KVP_KVQUANT_POST }, { NULL, 0 } };
static const struct kvp_name_option dense[] = { { "-dense", KVP_KVQUANT_DENSE }, { NULL, 0 } };

const struct kvp_codec kvp_codec_kvquant = {
	.family = KVP_FAMILY_KVQUANT,
	.name = "kvquant",
	.names = { .bits_min = NUQ_BITS_MIN,
		.bits_max = NUQ_BITS_MAX,
		.bits_mask = KVP_KVQUANT_BITS,
		.options = { uniform, post, dense } },
	.facts = KVP_FACT_UNSCALED | KVP_FACT_CALIBRATED,
	.layout = layout_kvquant,
	.fits = fits_kvquant,
	.check = check_kvquant,
	.encode = encode_kvquant,
	.decode = decode_kvquant,
	.rows = rows_kvquant,
};
