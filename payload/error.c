/* SPDX-License-Identifier: Apache-2.0 */
/* How far a coded payload is from what it was coded from. */
#include "payload/kvp_payload.h"

#include <errno.h>
#include <string.h>

#include "kernels/kvp_lost.h"

/* ---- elements -------------------------------------------------------------------------------- */

/* Of a number whose magnitude is below 16: bits that do not fit are dropped, halves below 2^-14 are 0. */
static void store(uint32_t dtype, float value, uint8_t *at)
{
	uint32_t word, e;
	uint16_t half;

	memcpy(&word, &value, sizeof(word));
	if (dtype == KVP_DTYPE_F32) {
		memcpy(at, &word, sizeof(word));
		return;
	}
	e = word >> 23 & 255u;
	if (dtype == KVP_DTYPE_BF16)
		half = (uint16_t)(word >> 16);
	else
		half = (uint16_t)((word >> 16 & 0x8000u) |
				  (e > 112u ? (e - 112u) << 10 | (word >> 13 & 1023u) : 0u));
	memcpy(at, &half, sizeof(half));
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Sum of (x - y)^2 / sum of x^2 over one head; 0 where there is nothing to lose. decoded: [head][token][channel]. */
static double head_error(const struct kvp_kernels *k, const struct kvp_block_layout *l,
	const struct kvp_block_plane *p, struct kvp_raw_const src, const uint8_t *decoded,
	uint32_t head)
{
	const struct kvp_plane plane = { l->tokens, p->heads, p->dim, l->dtype, KVP_PLANE_K };
	ptrdiff_t row = (ptrdiff_t)(p->dim * kvp_dtype_bytes(l->dtype));
	const struct kvp_raw_const now = { decoded, row * (ptrdiff_t)l->tokens, row };
	double lost, all;

	kvp_head_lost(k, &plane, head, src, now, &lost, &all);
	return all > 0 ? lost / all : 0;
}

/* What a token may lose as a share of what it may in 2 bits, by what tq and int8 lose of normal numbers. */
static double share_of(uint8_t bits)
{
	switch (bits) {
	case 3:
		return .266;
	case 4:
		return .0708;
	case 8:
		return 1e-3; /* three times that: int8 knows no rotation, and real numbers are not normal */
	default:
		return 1;
	}
}

/* The same where tokens have bits of their own: of what they may lose together, in units of the limit. */
static double head_error_tokens(const struct kvp_kernels *k, const struct kvp_block_layout *l,
	const struct kvp_block_plane *p, struct kvp_raw_const src, const uint8_t *decoded,
	uint32_t head, const uint8_t *bits)
{
	const struct kvp_plane plane = { 1, p->heads, p->dim, l->dtype, KVP_PLANE_K };
	ptrdiff_t row = (ptrdiff_t)(p->dim * kvp_dtype_bytes(l->dtype));
	double sum = 0, may = 0;

	for (uint32_t t = 0; t < l->tokens; t++) {
		const struct kvp_raw_const was = { (const uint8_t *)src.data +
							   (ptrdiff_t)t * src.token_stride,
			src.head_stride, src.token_stride };
		const struct kvp_raw_const now = { decoded + (ptrdiff_t)t * row,
			row * (ptrdiff_t)l->tokens, row };
		double lost, all;

		kvp_head_lost(k, &plane, head, was, now, &lost, &all);
		sum += lost;
		may += all * share_of(bits[t]);
	}
	return may > 0 ? sum / may : 0;
}

static void compare_plane(const struct kvp_kernels *k, const struct kvp_block_layout *l,
	const struct kvp_block_plane *p, struct kvp_raw_const src, const uint8_t *decoded,
	double limit, const uint8_t *bits, struct kvp_payload_error *e)
{
	for (uint32_t h = 0; h < p->heads; h++) {
		double error = bits ? head_error_tokens(k, l, p, src, decoded, h, bits)
				    : head_error(k, l, p, src, decoded, h);

		e->heads++;
		e->within += error <= limit;
		if (error / limit > e->worst)
			e->worst = error / limit;
	}
}

int kvp_payload_compare(const struct kvp_kernels *k, const struct kvp_block_layout *from,
	const void *src, const struct kvp_block_layout *to, const void *coded, uint32_t layer,
	void *scratch, const double limit[2], struct kvp_payload_error *ret_error)
{
	struct kvp_payload_error e = { 0 };
	struct kvp_payload_layer decoded;
	uint8_t bits[KVP_PLANE_TOKENS_MAX];
	int r;

	if (!from->native || from->n_layers != to->n_layers || from->tokens != to->tokens ||
		from->dtype != to->dtype)
		return -EINVAL;
	r = kvp_payload_decode(k, to, layer, coded, to->bytes, scratch, &decoded);
	if (r < 0)
		return r;
	for (uint32_t kind = 0; kind < 2; kind++) {
		const struct kvp_block_plane *f = &from->plane[layer][kind];
		const struct kvp_block_plane *t = &to->plane[layer][kind];
		struct kvp_raw_const raw = { (const uint8_t *)src + f->offset,
			(ptrdiff_t)f->head_stride, (ptrdiff_t)f->token_stride };

		r = kvp_payload_token_bits(to, coded, kind, bits);
		if (r < 0 && r != -ENOENT)
			return r;
		if (t->heads && t->codec != KVP_CODEC_NATIVE)
			compare_plane(k, to, t, raw, kind == KVP_PLANE_K ? decoded.k : decoded.v,
				limit[kind], r == 0 ? bits : NULL, &e);
	}
	*ret_error = e;
	return 0;
}

/* ---- golden values --------------------------------------------------------------------------- */

/* Nearly normal: the sum of twelve numbers between 0 and 1, less 6. The same ones every time. */
static float nearly_normal(uint64_t *state)
{
	float sum = -6;

	for (uint32_t i = 0; i < 12; i++) {
		*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		sum += (float)(*state >> 40) / 16777216.f;
	}
	return sum;
}

/* That normal numbers are put through: a calibrated codec is for others. */
static uint32_t golden_codec(uint32_t codec, const struct kvp_plane *plane)
{
	uint32_t bits = KVP_CODEC_VARIANT(codec) & KVP_KVQUANT_BITS;
	uint32_t tq = KVP_CODEC_TQ(bits, KVP_TQ_NC, 0u, 0u, 0u);
	size_t bytes;

	if (KVP_CODEC_FAMILY(codec) != KVP_FAMILY_KVQUANT)
		return codec;
	return kvp_plane_bytes(tq, plane, &bytes) == 0 ? tq : KVP_CODEC_ASYM(bits, 0u);
}

size_t kvp_payload_golden_scratch(const struct kvp_block_layout *l)
{
	return 3 * kvp_payload_scratch(l);
}

int kvp_payload_golden(const struct kvp_kernels *k, const struct kvp_block_layout *l, uint32_t kind,
	void *scratch, double *ret_error)
{
	size_t size = kvp_payload_scratch(l), e = kvp_dtype_bytes(l->dtype), n;
	uint8_t *raw = scratch, *coded = raw + size, *decoded = coded + size;
	const struct kvp_block_plane *p = NULL;
	uint8_t bits[KVP_PLANE_TOKENS_MAX];
	const struct kvp_encode_opts o = { .size = sizeof(o), .widths = bits };
	struct kvp_plane plane;
	struct kvp_raw_const src;
	uint64_t state = 1;
	size_t bytes;
	double sum = 0;
	uint32_t codec;
	int r;

	for (uint32_t i = 0; i < l->n_layers && !p; i++)
		if (l->plane[i][kind].heads && l->plane[i][kind].codec != KVP_CODEC_NATIVE)
			p = &l->plane[i][kind];
	if (!p)
		return -ENOENT;
	plane = (struct kvp_plane){ l->tokens, p->heads, p->dim, l->dtype, kind };
	n = (size_t)p->heads * l->tokens * p->dim;
	for (size_t i = 0; i < n; i++)
		store(l->dtype, nearly_normal(&state), raw + i * e);
	src = (struct kvp_raw_const){ raw, (ptrdiff_t)(l->tokens * p->dim * e),
		(ptrdiff_t)(p->dim * e) };
	memset(bits, 2, sizeof(bits));
	codec = golden_codec(p->codec, &plane);
	r = kvp_plane_bytes(codec, &plane, &bytes);
	if (r == 0)
		r = kvp_plane_encode(k, codec, &plane, &o, src, coded, size);
	if (r == 0)
		r = kvp_plane_decode(k, codec, &plane, NULL, coded,
			codec == p->codec ? p->bytes : bytes,
			(struct kvp_raw){ decoded, src.head_stride, src.token_stride });
	if (r < 0)
		return r;
	for (uint32_t h = 0; h < p->heads; h++)
		sum += head_error(k, l, p, src, decoded, h);
	*ret_error = sum / p->heads;
	return 0;
}
