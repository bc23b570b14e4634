/* SPDX-License-Identifier: Apache-2.0 */
/*
 * smart: tokens of different bits in one plane. It uses the slots of the table, so every instruction
 * set gives the same bytes.
 */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <errno.h>

#define WIDTHS 4
static const uint32_t width_bits[WIDTHS] = { 2, 3, 4, 8 };

static int width_index(uint8_t width)
{
	for (int i = 0; i < WIDTHS; i++)
		if (width_bits[i] == width)
			return i;
	return -1;
}

/* Widths of the first and of the second half of the tokens, where a mean is spread evenly. */
static const uint8_t means[4][2] = { { 0, 0 }, { 4, 4 }, { 3, 3 }, { 3, 2 } };

static const uint8_t *mean_of(uint32_t id)
{
	return means[KVP_CODEC_VARIANT(id) >> 6];
}

static void spread(uint32_t id, uint32_t tokens, uint8_t *ret_widths)
{
	const uint8_t *mean = mean_of(id);

	for (uint32_t t = 0; t < tokens; t++)
		ret_widths[t] = mean[t >= tokens / 2];
}

/* UINT32_MAX: there is no bound. */
static uint32_t budget_of(uint32_t id, uint32_t tokens)
{
	const uint8_t *mean = mean_of(id);

	return mean[0] ? tokens / 2 * mean[0] + (tokens - tokens / 2) * mean[1] : UINT32_MAX;
}

/* How one bucket is coded, and where it lies. */
struct bucket {
	uint32_t bits;
	uint32_t n;       /* tokens */
	uint32_t row;     /* bytes of codes */
	uint32_t scalars; /* bytes of scales, and of minima behind them */
	uint32_t codes, scale;
};

struct smart {
	uint32_t method; /* KVP_SMART_* without flags */
	uint32_t group;  /* channels per scale */
	uint32_t groups; /* scales of a vector */
	uint32_t wide;   /* scales are fp32 */
	uint32_t dim;
	struct bucket bucket[WIDTHS];
	struct tq tq[3];
	uint16_t slot[KVP_PLANE_TOKENS_MAX]; /* of a token inside its bucket */
	uint8_t index[KVP_PLANE_TOKENS_MAX]; /* of a token's bucket */
	uint32_t bytes;
};

/* What follows from the id alone. tq has one scalar per vector and nothing to choose. */
static int smart_method(uint32_t id, uint32_t dim, struct smart *s)
{
	static const uint32_t groups[] = { 0, 8, 16 };
	uint32_t v = KVP_CODEC_VARIANT(id), g = v >> 3 & 3u;

	s->method = v & 3u;
	s->wide = v & KVP_SMART_WIDE;
	s->dim = dim;
	if (s->method > KVP_SMART_TQ || g > 2 || (s->method == KVP_SMART_TQ && (g || s->wide)) ||
		((v & KVP_SMART_MEANS) && (s->method != KVP_SMART_TQ || (v & KVP_SMART_KEYS3))))
		return -EINVAL;
	s->group = g ? groups[g] : dim;
	s->groups = (dim + s->group - 1) / s->group;
	return 0;
}

/* Bytes of a token's scales, of one head, in a bucket; min/max codes have minima behind them. */
static uint32_t smart_scalars(const struct smart *s, uint32_t bits)
{
	uint32_t bytes = s->groups * (uint32_t)scalar_bytes(s->wide);

	return s->method == KVP_SMART_ASYM && bits < 8 ? 2 * bytes : bytes;
}

/* Where buckets of so many tokens lie. The widths themselves are the section `extra`. */
static void smart_place(const struct kvp_plane *p, struct smart *s)
{
	struct kvp_layout lay = kvp_layout_new(p, 8);

	kvp_layout_section(&lay, p->tokens);
	for (int i = 0; i < WIDTHS; i++) {
		struct bucket *b = &s->bucket[i];

		b->row = kvp_row_bytes(b->bits, p->dim);
		b->scalars = smart_scalars(s, b->bits);
		b->codes = kvp_layout_section(&lay, p->heads * b->n * b->row);
		b->scale = kvp_layout_section(&lay, p->heads * b->n * b->scalars);
	}
	s->bytes = lay.bytes;
}

static void smart_empty(struct smart *s)
{
	for (int i = 0; i < WIDTHS; i++)
		s->bucket[i] = (struct bucket){ .bits = width_bits[i] };
}

/* Everything that follows from the widths. */
static int smart_shape(
	uint32_t id, const struct kvp_plane *p, const uint8_t *widths, struct smart *s)
{
	uint32_t v = KVP_CODEC_VARIANT(id), left = budget_of(id, p->tokens);

	if (smart_method(id, p->dim, s) < 0)
		return -EINVAL;
	smart_empty(s);
	for (uint32_t t = 0; t < p->tokens; t++) {
		int i = width_index(widths[t]);

		if (i < 0 || (!i && (v & KVP_SMART_KEYS3) && p->kind == KVP_PLANE_K) ||
			widths[t] > left)
			return -EINVAL;
		if (left != UINT32_MAX)
			left -= widths[t];
		s->index[t] = (uint8_t)i;
		s->slot[t] = (uint16_t)s->bucket[i].n++;
	}
	smart_place(p, s);
	return 0;
}

static int smart_init(struct smart *s, uint32_t dim, uint64_t seed)
{
	int r = 0;

	for (uint32_t i = 0; i < 3 && !r && s->method == KVP_SMART_TQ; i++)
		r = kvp_tq_init(&s->tq[i], width_bits[i] - 1, dim, seed, NULL);
	return r;
}

/* The largest a plane can become: every token in 8 bits, or all bits of the mean used. */
static int layout_smart(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	const uint8_t *mean = mean_of(id);
	struct kvp_layout lay = kvp_layout_new(p, 8);
	struct smart s;

	if (smart_method(id, p->dim, &s) < 0)
		return -EINVAL;
	/* By numbers of tokens: who asks may have many planes to ask for. */
	smart_empty(&s);
	s.bucket[width_index(mean[0] ? mean[0] : 8)].n += p->tokens / 2;
	s.bucket[width_index(mean[0] ? mean[1] : 8)].n += p->tokens - p->tokens / 2;
	smart_place(p, &s);
	if (s.method == KVP_SMART_TQ && kvp_hadamard_order(p->dim) < 0)
		return -EINVAL;
	lay.extra = kvp_layout_section(&lay, p->tokens);
	/*
	 * Three more buckets may begin at a boundary each, for codes and for scalars. Under a mean the codes may
	 * also end elsewhere, so that the first bucket's scalars may.
	 */
	lay.bytes = s.bytes + (mean[0] ? 7 : 6) * KVP_SECTION_ALIGN +
		    (s.method == KVP_SMART_ASYM ? p->heads * p->tokens * smart_scalars(&s, 8) : 0);
	*ret = lay;
	return 0;
}

static int bytes_smart(
	uint32_t id, const struct kvp_plane *p, const uint8_t *widths, uint32_t *ret_bytes)
{
	uint8_t even[KVP_PLANE_TOKENS_MAX];
	struct smart s;

	if (!widths && mean_of(id)[0]) {
		spread(id, p->tokens, even);
		widths = even;
	}
	if (!widths || smart_shape(id, p, widths, &s) < 0)
		return -EINVAL;
	*ret_bytes = s.bytes;
	return 0;
}

/* Where a token's codes and scales lie. */
static size_t smart_codes(const struct smart *s, uint32_t head, uint32_t token)
{
	const struct bucket *b = &s->bucket[s->index[token]];

	return b->codes + ((size_t)head * b->n + s->slot[token]) * b->row;
}

static size_t smart_scale(const struct smart *s, uint32_t head, uint32_t token)
{
	const struct bucket *b = &s->bucket[s->index[token]];

	return b->scale + ((size_t)head * b->n + s->slot[token]) * b->scalars;
}

/* 8 bits are int8: with one fp16 scale its slot, else what symmetric codes are. */
static int smart_is_int8(const struct smart *s, uint32_t bits)
{
	return bits == 8 && s->groups == 1 && !s->wide;
}

/* in: the one row of this token. */
static void smart_encode_token(const struct kvp_kernels *k, const struct smart *s,
	const struct rows_in *in, uint32_t head, uint32_t token, uint8_t *out)
{
	const struct bucket *b = &s->bucket[s->index[token]];
	uint8_t *codes = out + smart_codes(s, head, token);
	uint8_t *scale = out + smart_scale(s, head, token), *min = scale + b->scalars / 2;
	float x[KVP_PLANE_DIM_MAX];

	if (smart_is_int8(s, b->bits)) {
		k->dsp.byte_encode(KVP_CODEC_INT8, in, codes, scale);
	} else if (s->method == KVP_SMART_TQ) {
		k->dsp.tq_encode(&s->tq[s->index[token]], in, codes, scale);
	} else if (s->method == KVP_SMART_ASYM && b->bits < 8) {
		(s->wide ? kvp_asym_encode_wide : k->dsp.asym_encode)(
			b->bits, s->group, in, codes, scale, min);
	} else {
		const struct kvp_sym sym = kvp_sym_init(b->bits, s->group, s->wide, s->dim);

		kvp_row_load(in, 0, x);
		kvp_sym_encode(&sym, x, codes, scale);
	}
}

static void smart_decode_token(const struct kvp_kernels *k, const struct smart *s, uint32_t head,
	uint32_t token, float factor, const uint8_t *in, float *x)
{
	const struct bucket *b = &s->bucket[s->index[token]];
	const uint8_t *codes = in + smart_codes(s, head, token);
	const uint8_t *scale = in + smart_scale(s, head, token), *min = scale + b->scalars / 2;
	struct rows_out out = kvp_float_out(x, s->dim, factor);

	if (smart_is_int8(s, b->bits)) {
		k->dsp.byte_decode(KVP_CODEC_INT8, codes, scale, &out);
	} else if (s->method == KVP_SMART_TQ) {
		k->dsp.tq_decode(&s->tq[s->index[token]], codes, scale, &out);
	} else if (s->method == KVP_SMART_ASYM && b->bits < 8) {
		(s->wide ? kvp_asym_decode_wide : k->dsp.asym_decode)(
			b->bits, s->group, codes, scale, min, &out);
	} else {
		const struct kvp_sym sym = kvp_sym_init(b->bits, s->group, s->wide, s->dim);

		kvp_sym_decode(&sym, codes, scale, factor, x);
	}
}

static void smart_begin(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct smart *s, const uint8_t *widths, uint8_t *out)
{
	memset(out + KVP_PLANE_HDR_BYTES, 0, s->bytes - KVP_PLANE_HDR_BYTES);
	memcpy(out + lay->extra, widths, p->tokens);
	memcpy(out + offsetof(struct kvp_plane_hdr, bytes), &s->bytes, sizeof s->bytes);
}

static int encode_smart(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	const uint8_t *widths = o->widths;
	uint8_t even[KVP_PLANE_TOKENS_MAX];
	struct kvp_plane_hdr hdr;
	struct smart s;
	int r;

	memcpy(&hdr, out, sizeof hdr);
	if (!widths) {
		spread(hdr.codec, p->tokens, even);
		widths = even;
	}
	r = smart_shape(hdr.codec, p, widths, &s);
	if (!r)
		r = smart_init(&s, p->dim, hdr.seed);
	if (r < 0)
		return r;
	smart_begin(p, lay, &s, widths, out);
	for (uint32_t h = 0; h < p->heads; h++) {
		for (uint32_t t = 0; t < p->tokens; t++) {
			struct rows_in in = kvp_rows_in(p, src, h, t, 1, hdr.exponent);

			smart_encode_token(k, &s, &in, h, t, out);
		}
	}
	return 0;
}

static int check_smart(const struct kvp_plane *p, const struct kvp_layout *lay,
	const struct kvp_plane_hdr *hdr, const uint8_t *in, size_t in_size)
{
	struct smart s;

	if (in_size < (size_t)lay->extra + p->tokens ||
		smart_shape(hdr->codec, p, in + lay->extra, &s) < 0)
		return -EBADMSG;
	return hdr->bytes == s.bytes && in_size >= s.bytes ? 0 : -EBADMSG;
}

static int rows_smart(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	uint8_t widths[KVP_PLANE_TOKENS_MAX];
	float x[KVP_PLANE_DIM_MAX];
	struct smart s;

	(void)calib;
	/* The widths may have changed since they were checked: from here on only the copy counts.
	 */
	memcpy(widths, in + lay->extra, p->tokens);
	if (smart_shape(codec, p, widths, &s) < 0 || s.bytes > lay->bytes ||
		smart_init(&s, p->dim, kvp_header(in)->seed) < 0)
		return -EBADMSG;
	for (uint32_t t = 0; t < out->n; t++) {
		smart_decode_token(k, &s, head, first + t, out->scale, in, x);
		kvp_row_store(out, t, x);
	}
	return 0;
}

/* A token's codes and scales as they are, from one payload to another. */
static void smart_copy_token(const struct smart *from, const struct smart *to, uint32_t head,
	uint32_t token, const uint8_t *in, uint8_t *out)
{
	const struct bucket *b = &to->bucket[to->index[token]];

	memcpy(out + smart_codes(to, head, token), in + smart_codes(from, head, token), b->row);
	memcpy(out + smart_scale(to, head, token), in + smart_scale(from, head, token), b->scalars);
}

/* The shapes that an accepted change of widths goes between, from copies of what may change. */
static int requantize_shapes(uint32_t codec, uint32_t to, const struct kvp_plane *p,
	const struct kvp_plane_hdr *hdr, const uint8_t *old, size_t in_size, const uint8_t *widths,
	struct smart *ret_from, struct smart *ret_to)
{
	int r;

	if (hdr->codec != codec || smart_shape(codec, p, old, ret_from) < 0 ||
		ret_from->bytes > in_size)
		return -EBADMSG;
	r = smart_shape(to, p, widths, ret_to);
	for (uint32_t t = 0; t < p->tokens && !r; t++)
		if (ret_to->index[t] > ret_from->index[t])
			r = -EINVAL;
	if (!r)
		r = smart_init(ret_from, p->dim, hdr->seed);
	return r ? r : smart_init(ret_to, p->dim, hdr->seed);
}

int kvp_smart_recode_checked(const struct kvp_kernels *k, uint32_t codec, uint32_t codec_to,
	const struct kvp_plane *p, const struct kvp_layout *lay, const void *in, size_t in_size,
	const uint8_t *widths, void *out, size_t out_size)
{
	uint8_t old[KVP_PLANE_TOKENS_MAX];
	float x[KVP_PLANE_DIM_MAX];
	struct kvp_plane_hdr hdr;
	struct smart from, to;
	int r;

	/* As in rows_smart(): what was checked may have changed, the copies do not. */
	memcpy(&hdr, in, sizeof hdr);
	memcpy(old, (const uint8_t *)in + lay->extra, p->tokens);
	r = requantize_shapes(codec, codec_to, p, &hdr, old, in_size, widths, &from, &to);
	if (!r && out_size < to.bytes)
		r = -ENOSPC;
	if (!r && ((uintptr_t)out % 16 || ((uintptr_t)out < (uintptr_t)in + in_size &&
						  (uintptr_t)in < (uintptr_t)out + to.bytes)))
		r = -EINVAL;
	if (r < 0)
		return r;
	hdr.codec = codec_to;
	memcpy(out, &hdr, sizeof hdr);
	smart_begin(p, lay, &to, widths, out);
	for (uint32_t h = 0; h < p->heads; h++) {
		const struct rows_in row = kvp_float_in(x, p->dim);

		for (uint32_t t = 0; t < p->tokens; t++) {
			if (to.index[t] == from.index[t]) {
				smart_copy_token(&from, &to, h, t, in, out);
				continue;
			}
			smart_decode_token(k, &from, h, t, 1.0f, in, x);
			smart_encode_token(k, &to, &row, h, t, out);
		}
	}
	return 0;
}

static uint32_t facts_smart(uint32_t variant)
{
	return (variant & 3u) == KVP_SMART_TQ ? KVP_FACT_SEED : 0;
}

static const struct kvp_name_option named_method[] = { { "-asym", KVP_SMART_ASYM },
	{ "-sym", KVP_SMART_SYM }, { "-4", KVP_SMART_TQ | KVP_SMART_MEAN4 },
	{ "-3", KVP_SMART_TQ | KVP_SMART_MEAN3 }, { "-25", KVP_SMART_TQ | KVP_SMART_MEAN25 },
	{ NULL, 0 } };
static const struct kvp_name_option named_groups[] = { { "-g8", KVP_SMART_G8 },
	{ "-g16", KVP_SMART_G16 }, { NULL, 0 } };
static const struct kvp_name_option named_wide[] = { { "-wide", KVP_SMART_WIDE }, { NULL, 0 } };
static const struct kvp_name_option named_keys[] = { { "-keys3", KVP_SMART_KEYS3 }, { NULL, 0 } };

const struct kvp_codec kvp_codec_smart = {
	.family = KVP_FAMILY_SMART,
	.name = "smart",
	.names = { .fallback = KVP_SMART_TQ,
		.options = { named_method, named_groups, named_wide, named_keys } },
	.facts = KVP_FACT_VARIES,
	.facts_of = facts_smart,
	.layout = layout_smart,
	.bytes = bytes_smart,
	.check = check_smart,
	.encode = encode_smart,
	.decode = kvp_decode_rows,
	.rows = rows_smart,
};

int kvp_smart_bytes(
	uint32_t codec, const struct kvp_plane *p, const uint8_t *widths, size_t *ret_bytes)
{
	struct kvp_layout lay;
	uint32_t bytes;
	int r = kvp_plane_layout(codec, p, &lay);

	if (!r && !widths)
		r = -EINVAL;
	if (!r)
		r = kvp_codec_row(KVP_CODEC_FAMILY(codec)) == &kvp_codec_smart
			    ? bytes_smart(codec, p, widths, &bytes)
			    : -EINVAL;
	if (!r)
		*ret_bytes = bytes;
	return r;
}

uint32_t kvp_smart_budget(uint32_t codec, uint32_t tokens)
{
	if (kvp_codec_row(KVP_CODEC_FAMILY(codec)) != &kvp_codec_smart || !mean_of(codec)[0])
		return 0;
	return budget_of(codec, tokens);
}

int kvp_smart_recode(const struct kvp_kernels *k, uint32_t from, uint32_t to,
	const struct kvp_plane *p, const void *in, size_t in_size, const uint8_t *widths, void *out,
	size_t out_size)
{
	struct kvp_layout lay, other;
	int r = kvp_plane_check(from, p, NULL, in, in_size);

	if (!r)
		r = kvp_plane_layout(from, p, &lay);
	if (!r)
		r = kvp_plane_layout(to, p, &other);
	if (!r && (kvp_codec_row(KVP_CODEC_FAMILY(from)) != &kvp_codec_smart ||
			  ((from ^ to) & ~KVP_SMART_MEANS) || !widths || !out))
		r = -EINVAL;
	return r < 0 ? r
		     : kvp_smart_recode_checked(
			       k, from, to, p, &lay, in, in_size, widths, out, out_size);
}

int kvp_smart_requantize(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const void *in, size_t in_size, const uint8_t *widths, void *out, size_t out_size)
{
	return kvp_smart_recode(k, codec, codec, p, in, in_size, widths, out, out_size);
}
