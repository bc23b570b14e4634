/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hybrid: two groups of channels in tq, or tq with signs, of different bits. It uses the slots of
 * the table, so every instruction set gives the same bytes.
 */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"

#include <errno.h>
#include <math.h>

/* Which channels of a head are in the first group, and how both are coded. */
struct hybrid {
	uint32_t dim[2];
	uint32_t bits[2]; /* tq's, or prod's with its sign bit */
	int prod;
	struct tq tq[2];
	struct kvp_prod pr[2];
	uint32_t row_bytes[2]; /* codes, signs and scalars of one vector's group */
};

static int hybrid_shape(uint32_t id, uint32_t dim, struct hybrid *h)
{
	uint32_t v = KVP_CODEC_VARIANT(id);
	int small = v & KVP_HYBRID_25;

	if (v & ~(KVP_HYBRID_25 | KVP_HYBRID_PROD | KVP_HYBRID_CALIBRATED) || dim % 32)
		return -EINVAL;
	h->prod = !!(v & KVP_HYBRID_PROD);
	h->dim[0] = small ? dim / 4 : dim / 2;
	h->dim[1] = dim - h->dim[0];
	/* As published 3 + 1 and 2 + 1 bits, or 2 + 1 and 1 + 1; the same totals without signs. */
	h->bits[0] = small ? 3 : 4;
	h->bits[1] = small ? 2 : 3;
	for (int g = 0; g < 2; g++) {
		if (h->dim[g] % 8 || kvp_hadamard_order(h->dim[g]) < 0)
			return -EINVAL;
		h->row_bytes[g] = h->dim[g] * h->bits[g] / 8 + (h->prod ? 4 : 2);
	}
	return 0;
}

static int hybrid_init(struct hybrid *h, uint32_t id, uint32_t dim, uint64_t seed)
{
	int r = hybrid_shape(id, dim, h);

	for (int g = 0; g < 2 && !r; g++) {
		if (h->prod)
			r = kvp_prod_init(&h->pr[g], h->bits[g], h->dim[g], seed);
		else
			r = kvp_tq_init(&h->tq[g], h->bits[g] - 1, h->dim[g], seed, NULL);
	}
	return r;
}

static int layout_hybrid(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	struct kvp_layout lay = kvp_layout_new(p, 0);
	uint32_t rows = p->heads * p->tokens;
	struct hybrid h;

	if (hybrid_shape(id, p->dim, &h) < 0)
		return -EINVAL;
	/* Codes of both groups, then signs if any, then the scalars of both: separate sections. */
	lay.row_bytes = (h.dim[0] * (h.bits[0] - (h.prod ? 1u : 0u)) +
				h.dim[1] * (h.bits[1] - (h.prod ? 1u : 0u))) /
			8;
	lay.groups = 2;
	lay.codes = kvp_layout_section(&lay, rows * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, rows * 4);
	lay.minimum = kvp_layout_section(&lay, h.prod ? rows * 4 : 0);
	lay.native = 0;
	/* Signs per row, then the heads' channel maps: both are found from here. */
	lay.extra = kvp_layout_section(&lay,
		(h.prod ? rows * (p->dim / 8) : 0) + (KVP_CODEC_VARIANT(id) & KVP_HYBRID_CALIBRATED
								     ? p->heads * (p->dim / 8)
								     : 0));
	*ret = lay;
	return 0;
}

static uint8_t *channel_map(const struct hybrid *h, const struct kvp_plane *p,
	const struct kvp_layout *lay, uint32_t head, uint8_t *payload)
{
	size_t signs = h->prod ? (size_t)p->heads * p->tokens * (p->dim / 8) : 0;

	return payload + lay->extra + signs + (size_t)head * (p->dim / 8);
}

/*
 * The channels with the largest sum of squares, earlier ones first among equals. NaN, infinities and
 * what saturates do not count.
 */
static void calibrate(const struct hybrid *h, const struct rows_in *in, uint8_t *map)
{
	float energy[KVP_PLANE_DIM_MAX] = { 0 };

	for (uint32_t t = 0; t < in->n; t++) {
		const uint8_t *row = in->data + (ptrdiff_t)t * in->stride;

		for (uint32_t i = 0; i < in->dim; i++) {
			float x = load_element(row, in->dtype, i) * in->scale;

			energy[i] += fabsf(x) <= KVP_INPUT_MAX ? x * x : 0.0f;
		}
	}
	memset(map, 0, in->dim / 8);
	for (uint32_t n = 0; n < h->dim[0]; n++) {
		uint32_t best = 0;
		float top = -1.0f;

		for (uint32_t i = 0; i < in->dim; i++) {
			if (!(map[i / 8] >> i % 8 & 1u) && energy[i] > top) {
				top = energy[i];
				best = i;
			}
		}
		map[best / 8] |= (uint8_t)(1u << best % 8);
	}
}

/* order[j]: the channel that is j-th in [group 0, group 1]. -EBADMSG: the map is not one. */
static int channel_order(const struct hybrid *h, const uint8_t *map, uint16_t *order)
{
	uint32_t d = h->dim[0] + h->dim[1], n[2] = { 0, h->dim[0] };

	for (uint32_t i = 0; i < d; i++) {
		int g = map ? !(map[i / 8] >> i % 8 & 1u) : i >= h->dim[0];

		if (n[g] >= (g ? d : h->dim[0]))
			return -EBADMSG;
		order[n[g]++] = (uint16_t)i;
	}
	return 0;
}

struct hybrid_row {
	uint8_t *codes[2];
	uint8_t *scale[2];
	struct kvp_prod_row pr[2];
};

static struct hybrid_row hybrid_row(const struct hybrid *h, const struct kvp_plane *p,
	const struct kvp_layout *lay, size_t row, uint8_t *payload)
{
	uint32_t bits0 = h->bits[0] - (h->prod ? 1u : 0u);
	struct hybrid_row r;

	r.codes[0] = payload + lay->codes + row * lay->row_bytes;
	r.codes[1] = r.codes[0] + h->dim[0] * bits0 / 8;
	for (int g = 0; g < 2; g++) {
		r.scale[g] = payload + lay->scale + row * 4 + 2 * (size_t)g;
		r.pr[g] = (struct kvp_prod_row){ r.codes[g],
			payload + lay->extra + row * (p->dim / 8) + (g ? h->dim[0] / 8 : 0),
			r.scale[g], payload + lay->minimum + row * 4 + 2 * (size_t)g };
	}
	return r;
}

static int encode_hybrid(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const struct kvp_plane_hdr *hdr = kvp_header(out);
	int calibrated = KVP_CODEC_VARIANT(hdr->codec) & KVP_HYBRID_CALIBRATED;
	float x[KVP_PLANE_DIM_MAX], y[KVP_PLANE_DIM_MAX];
	uint16_t order[KVP_PLANE_DIM_MAX];
	struct hybrid hy;
	int r = hybrid_init(&hy, hdr->codec, p->dim, hdr->seed);

	(void)o;
	for (uint32_t h = 0; h < p->heads && !r; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, hdr->exponent);
		uint8_t *map = calibrated ? channel_map(&hy, p, lay, h, out) : NULL;

		if (map)
			calibrate(&hy, &in, map);
		r = channel_order(&hy, map, order);
		for (uint32_t t = 0; t < p->tokens && !r; t++) {
			struct hybrid_row to =
				hybrid_row(&hy, p, lay, (size_t)h * p->tokens + t, out);

			kvp_row_load(&in, t, x);
			for (uint32_t i = 0; i < p->dim; i++)
				y[i] = x[order[i]];
			for (int g = 0; g < 2; g++) {
				float *part = y + (g ? hy.dim[0] : 0);
				struct rows_in one = kvp_float_in(part, hy.dim[g]);

				if (hy.prod)
					kvp_prod_encode(&hy.pr[g], part, &to.pr[g]);
				else
					k->dsp.tq_encode(&hy.tq[g], &one, to.codes[g], to.scale[g]);
			}
		}
	}
	return r;
}

static int check_hybrid(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size)
{
	uint16_t order[KVP_PLANE_DIM_MAX];
	struct hybrid hy;
	int r = hybrid_shape(hdr->codec, p->dim, &hy);

	(void)in_size; /* that of the layout */
	if (r < 0 || !(KVP_CODEC_VARIANT(hdr->codec) & KVP_HYBRID_CALIBRATED))
		return r;
	for (uint32_t h = 0; h < p->heads && !r; h++)
		r = channel_order(
			&hy, channel_map(&hy, p, lay, h, (uint8_t *)(uintptr_t)in), order);
	return r;
}

static int rows_hybrid(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	int calibrated = KVP_CODEC_VARIANT(codec) & KVP_HYBRID_CALIBRATED;
	uint8_t *payload = (uint8_t *)(uintptr_t)in;
	float x[KVP_PLANE_DIM_MAX], y[KVP_PLANE_DIM_MAX];
	uint16_t order[KVP_PLANE_DIM_MAX];
	struct hybrid hy;
	int r = hybrid_init(&hy, codec, p->dim, kvp_header(in)->seed);

	(void)calib;
	if (!r)
		r = channel_order(
			&hy, calibrated ? channel_map(&hy, p, lay, head, payload) : NULL, order);
	for (uint32_t t = 0; t < out->n && !r; t++) {
		struct hybrid_row from =
			hybrid_row(&hy, p, lay, (size_t)head * p->tokens + first + t, payload);

		for (int g = 0; g < 2; g++) {
			float *part = y + (g ? hy.dim[0] : 0);
			struct rows_out one = kvp_float_out(part, hy.dim[g], out->scale);

			if (hy.prod)
				kvp_prod_decode(&hy.pr[g], &from.pr[g], out->scale, part);
			else
				k->dsp.tq_decode(&hy.tq[g], from.codes[g], from.scale[g], &one);
		}
		for (uint32_t i = 0; i < p->dim; i++)
			x[order[i]] = y[i];
		kvp_row_store(out, t, x);
	}
	return r;
}

static const struct kvp_name_option size[] = { { "-25", KVP_HYBRID_25 }, { NULL, 0 } };
static const struct kvp_name_option prod[] = { { "-prod", KVP_HYBRID_PROD }, { NULL, 0 } };
static const struct kvp_name_option calib[] = { { "-calibrated", KVP_HYBRID_CALIBRATED },
	{ NULL, 0 } };

const struct kvp_codec kvp_codec_hybrid = {
	.family = KVP_FAMILY_HYBRID,
	.name = "hybrid",
	.names = { .options = { size, prod, calib } },
	.facts = KVP_FACT_SEED,
	.layout = layout_hybrid,
	.check = check_hybrid,
	.encode = encode_hybrid,
	.decode = kvp_decode_rows,
	.rows = rows_hybrid,
};
