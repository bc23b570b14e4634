/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layouts that others published, for reading and writing what their engines keep: KIVI's words of
 * 32 bits, aither's rows, the halves of vLLM's slots. docs/formats.md has every byte. Plain C for
 * every instruction set: such planes are converted, not served from.
 */
#include "kernels/codec_impl.h"
#include "kernels/numeric.h"

#include <errno.h>
#include <math.h>

/* fp16 scalars without a shared exponent bound what can be stored. */
#define INPUT_MAX KVP_F16_MAX

static int power_of_two(uint32_t n)
{
	return !(n & (n - 1));
}

/* ---- codes as a stream of bits ---- */

/* Code i of a stream that fills bytes from their low bits up. */
static uint32_t lsb_get(const uint8_t *s, uint32_t bits, uint32_t i)
{
	uint32_t at = i * bits, shift = at % 8, v = s[at / 8];

	if (shift + bits > 8)
		v |= (uint32_t)s[at / 8 + 1] << 8;
	return v >> shift & ((1u << bits) - 1);
}

/* The same from the high bits down. */
static uint32_t msb_get(const uint8_t *s, uint32_t bits, uint32_t i)
{
	uint32_t at = i * bits, shift = at % 8, v = (uint32_t)s[at / 8] << 8;

	if (shift + bits > 8)
		v |= s[at / 8 + 1];
	return v >> (16 - shift - bits) & ((1u << bits) - 1);
}

/* Into bytes that were zero. */
static void lsb_put(uint8_t *s, uint32_t bits, uint32_t i, uint32_t code)
{
	uint32_t at = i * bits, shift = at % 8;

	s[at / 8] |= (uint8_t)(code << shift);
	if (shift + bits > 8)
		s[at / 8 + 1] |= (uint8_t)(code << shift >> 8);
}

static void msb_put(uint8_t *s, uint32_t bits, uint32_t i, uint32_t code)
{
	uint32_t at = i * bits, shift = at % 8, v = code << (16 - shift - bits);

	s[at / 8] |= (uint8_t)(v >> 8);
	if (shift + bits > 8)
		s[at / 8 + 1] |= (uint8_t)v;
}

/* ---- elements ---- */

static float load(const struct rows_in *in, uint32_t t, uint32_t c)
{
	return load_element(in->data + (ptrdiff_t)t * in->stride, in->dtype, c);
}

static float bounded(float f)
{
	return f != f ? 0.0f : clampf(f, INPUT_MAX);
}

static void load_row(const struct rows_in *in, uint32_t t, float *x)
{
	for (uint32_t c = 0; c < in->dim; c++)
		x[c] = bounded(load(in, t, c));
}

static void store(const struct rows_out *out, uint32_t t, uint32_t c, float f)
{
	store_element(out->data + (ptrdiff_t)t * out->stride, out->dtype, c, f);
}

/* ---- KIVI: int32 words, keys packed along tokens ---- */

static int layout_kivi(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t bits = KVP_CODEC_VARIANT(id) & 15u, log2_group = KVP_CODEC_VARIANT(id) >> 4;
	uint32_t along = p->kind == KVP_PLANE_K ? p->tokens : p->dim; /* packed and grouped */
	uint32_t across = p->kind == KVP_PLANE_K ? p->dim : p->tokens;
	struct kvp_layout lay = kvp_layout_new(p, bits);

	if ((bits != 2 && bits != 4) || log2_group < 5 || log2_group > 7 ||
		along % (1u << log2_group))
		return -EINVAL;
	lay.group = 1u << log2_group;
	lay.groups = along / lay.group;
	lay.row_bytes = along * bits / 8;
	lay.codes = kvp_layout_section(&lay, p->heads * across * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, p->heads * across * lay.groups * 2);
	lay.minimum = kvp_layout_section(&lay, p->heads * across * lay.groups * 2);
	*ret = lay;
	return 0;
}

/*
 * One group of a row, its codes from number `first` on; arithmetic as in `asym`. x: as they are,
 * because those that are not finite have no part in the range.
 */
static void group_encode(uint32_t bits, const float *x, uint32_t n, uint8_t *row, uint32_t first,
	uint8_t *scale, uint8_t *min)
{
	float hi = -INPUT_MAX, lo = INPUT_MAX, top = (float)((1u << bits) - 1), s, m, r;

	for (uint32_t i = 0; i < n; i++) {
		float f = bounded(x[i]);

		hi = is_finite(x[i]) && f > hi ? f : hi;
		lo = is_finite(x[i]) && f < lo ? f : lo;
	}
	lo = lo <= hi ? lo + 0.0f : 0.0f;
	hi = lo <= hi ? hi + 0.0f : 0.0f;
	store_scalar(scale, (hi - lo) / top);
	store_scalar(min, lo);
	s = load_scalar(scale, 1.0f);
	m = load_scalar(min, 1.0f);
	r = s > 0.0f ? 1.0f / s : 0.0f;
	for (uint32_t i = 0; i < n; i++) {
		float f = (bounded(x[i]) - m) * r;

		f = f < 0.0f ? 0.0f : f > top ? top : f;
		lsb_put(row, bits, first + i, (uint32_t)rne(f));
	}
}

static int encode_kivi(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	uint32_t bits = KVP_CODEC_VARIANT(kvp_header(out)->codec) & 15u;
	uint32_t keys = p->kind == KVP_PLANE_K, across = keys ? p->dim : p->tokens;
	float x[128];

	(void)k;
	(void)o;
	memset(out + lay->codes, 0, (size_t)p->heads * across * lay->row_bytes);
	for (uint32_t h = 0; h < p->heads; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, 0);

		for (uint32_t a = 0; a < across; a++) {
			size_t row = (size_t)h * across + a;

			for (uint32_t g = 0; g < lay->groups; g++) {
				uint32_t first = g * lay->group;
				size_t scalar = (row * lay->groups + g) * 2;

				for (uint32_t i = 0; i < lay->group; i++)
					x[i] = keys ? load(&in, first + i, a)
						    : load(&in, a, first + i);
				group_encode(bits, x, lay->group,
					out + lay->codes + row * lay->row_bytes, first,
					out + lay->scale + scalar, out + lay->minimum + scalar);
			}
		}
	}
	return 0;
}

static int rows_kivi(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	uint32_t bits = KVP_CODEC_VARIANT(codec) & 15u;
	uint32_t keys = p->kind == KVP_PLANE_K, across = keys ? p->dim : p->tokens;

	(void)k;
	(void)calib;
	for (uint32_t t = 0; t < out->n; t++) {
		for (uint32_t c = 0; c < p->dim; c++) {
			uint32_t i = keys ? first + t : c, a = keys ? c : first + t;
			size_t row = (size_t)head * across + a;
			size_t scalar = (row * lay->groups + i / lay->group) * 2;
			uint32_t code = lsb_get(in + lay->codes + row * lay->row_bytes, bits, i);
			float s = load_scalar(in + lay->scale + scalar, 1.0f);

			store(out, t, c,
				(float)code * s + load_scalar(in + lay->minimum + scalar, 1.0f));
		}
	}
	return 0;
}

const struct kvp_codec kvp_codec_pub_kivi = {
	.family = KVP_FAMILY_PUB_KIVI,
	.name = "pub-kivi",
	.names = { .bits_min = 2,
		.bits_max = 4,
		.bits_mask = 15,
		.fallback = 5u << 4,
		.options = { kvp_names_groups } },
	.facts = KVP_FACT_PUBLISHED | KVP_FACT_UNSCALED,
	.layout = layout_kivi,
	.encode = encode_kivi,
	.decode = kvp_decode_rows,
	.rows = rows_kivi,
};

/* ---- tables of centroids ---- */

/* aither's, for 2, 3, 4 bits, and vLLM's for 3, 4: positive halves, times sqrt(dim). */
static const float aither_half[3][8] = { { .452781f, 1.510469f },
	{ .245104f, .756031f, 1.344134f, 2.152090f },
	{ .128350f, .388089f, .656804f, .942391f, 1.256233f, 1.618002f, 2.069016f, 2.733266f } };
static const float vllm_half[2][8] = { { .2449836f, .7556455f, 1.34318f, 2.1503495f },
	{ .1284277f, .3881378f, .6568799f, .9424482f, 1.2562576f, 1.6178818f, 2.0684471f,
		2.7309222f } };

struct book {
	uint32_t bits;
	float cent[16];
	float bound[15];
};

static struct book book_of(uint32_t bits, const float *half)
{
	uint32_t n = 1u << (bits - 1);
	struct book b = { .bits = bits };

	for (uint32_t i = 0; i < n; i++) {
		b.cent[n + i] = half[i];
		b.cent[n - 1 - i] = -half[i];
	}
	for (uint32_t i = 0; i + 1 < 2 * n; i++)
		b.bound[i] = (b.cent[i] + b.cent[i + 1]) * 0.5f;
	return b;
}

/* Divides by the norm, which is returned, and rotates: z then has variance 1. */
static float normalise(const struct rotation *rot, float *x)
{
	float norm = sqrtf(kvp_dot_c(x, x, rot->dim));
	float r = norm > 0.0f ? 1.0f / norm : 0.0f;

	kvp_rotate_fwd(rot, x);
	for (uint32_t i = 0; i < rot->dim; i++)
		x[i] *= r;
	return norm;
}

/* ---- aither: codes from the high bits down, fp32 norms in an array of their own ---- */

static int layout_aither(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t bits = KVP_CODEC_VARIANT(id);
	struct kvp_layout lay = kvp_layout_new(p, bits);

	if (bits < 2 || bits > 4 || !power_of_two(p->dim))
		return -EINVAL;
	lay.codes = kvp_layout_section(&lay, p->tokens * p->heads * lay.row_bytes);
	lay.scale = kvp_layout_section(&lay, p->tokens * p->heads * 4);
	*ret = lay;
	return 0;
}

static int encode_aither(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	uint32_t bits = KVP_CODEC_VARIANT(kvp_header(out)->codec);
	struct book book = book_of(bits, aither_half[bits - 2]);
	float x[KVP_PLANE_DIM_MAX];
	struct rotation rot;
	int r = kvp_rotation_init(&rot, KVP_ROT_HAAR, p->dim, 0, o->calib);

	(void)k;
	if (r < 0)
		return r;
	memset(out + lay->codes, 0, (size_t)p->tokens * p->heads * lay->row_bytes);
	for (uint32_t h = 0; h < p->heads; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, 0);

		for (uint32_t t = 0; t < p->tokens; t++) {
			size_t row = (size_t)t * p->heads + h;
			float norm;

			load_row(&in, t, x);
			norm = normalise(&rot, x);
			memcpy(out + lay->scale + row * 4, &norm, sizeof norm);
			for (uint32_t i = 0; i < p->dim; i++) {
				uint32_t code = 0;

				for (uint32_t j = 0; j + 1 < 1u << bits; j++)
					code += book.bound[j] < x[i];
				msb_put(out + lay->codes + row * lay->row_bytes, bits, i, code);
			}
		}
	}
	return 0;
}

static int rows_aither(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	uint32_t bits = KVP_CODEC_VARIANT(codec);
	struct book book = book_of(bits, aither_half[bits - 2]);
	float x[KVP_PLANE_DIM_MAX];
	struct rotation rot;
	int r = kvp_rotation_init(&rot, KVP_ROT_HAAR, p->dim, 0, calib);

	(void)k;
	for (uint32_t t = 0; t < out->n && !r; t++) {
		size_t row = (size_t)(first + t) * p->heads + head;
		float norm = load_scalar_wide(in + lay->scale + row * 4, 1.0f) / (float)p->dim;

		for (uint32_t i = 0; i < p->dim; i++)
			x[i] = book.cent[msb_get(in + lay->codes + row * lay->row_bytes, bits, i)];
		kvp_rotate_inv(&rot, x);
		for (uint32_t i = 0; i < p->dim; i++)
			store(out, t, i, x[i] * norm);
	}
	return r;
}

const struct kvp_codec kvp_codec_pub_aither = {
	.family = KVP_FAMILY_PUB_AITHER,
	.name = "pub-aither",
	.names = { .bits_min = 2, .bits_max = 4, .bits_mask = 15 },
	.facts = KVP_FACT_PUBLISHED | KVP_FACT_UNSCALED | KVP_FACT_MATRIX,
	.layout = layout_aither,
	.encode = encode_aither,
	.decode = kvp_decode_rows,
	.rows = rows_aither,
};

/* ---- vLLM: the key's and the value's half of a slot ---- */

static int layout_vllm(uint32_t id, const struct kvp_plane *p, struct kvp_layout *ret)
{
	uint32_t bits = KVP_CODEC_VARIANT(id), keys = p->kind == KVP_PLANE_K;
	struct kvp_layout lay = kvp_layout_new(p, bits);

	if (bits != 3 && bits != 4 && !(bits == 8 && keys))
		return -EINVAL;
	if (keys && bits < 8 && !power_of_two(p->dim))
		return -EINVAL;
	/* A row is codes and scalars: fp16 norm, or fp16 scale and minimum, or nothing. */
	lay.row_bytes += !keys ? 4 : bits < 8 ? 2 : 0;
	lay.codes = kvp_layout_section(&lay, p->tokens * p->heads * lay.row_bytes);
	*ret = lay;
	return 0;
}

/* Their Hadamard matrix has no random signs. */
static int vllm_rotation(struct rotation *ret_rot, uint32_t dim)
{
	int r = kvp_rotation_init(ret_rot, KVP_ROT_H1, dim, 0, NULL);

	memset(ret_rot->sign, 0, sizeof ret_rot->sign);
	return r;
}

static void vllm_key(const struct book *book, const struct rotation *rot, float *x, uint8_t *row)
{
	float norm = normalise(rot, x);

	for (uint32_t i = 0; i < rot->dim; i++) {
		uint32_t code = 0;

		for (uint32_t j = 0; j + 1 < 1u << book->bits; j++)
			code += book->bound[j] <= x[i];
		lsb_put(row, book->bits, i, code);
	}
	store_scalar(row + rot->dim * book->bits / 8, clampf(norm, KVP_F16_MAX));
}

static void vllm_value(uint32_t bits, uint32_t dim, const float *x, uint8_t *row)
{
	float hi = x[0], lo = x[0], top = (float)((1u << bits) - 1), s;

	for (uint32_t i = 1; i < dim; i++) {
		hi = x[i] > hi ? x[i] : hi;
		lo = x[i] < lo ? x[i] : lo;
	}
	s = (hi - lo) / top;
	s = s > 1e-8f ? s : 1e-8f;
	for (uint32_t i = 0; i < dim; i++) {
		uint32_t code = (uint32_t)((x[i] - lo) / s + 0.5f);

		lsb_put(row, bits, i, code > (uint32_t)top ? (uint32_t)top : code);
	}
	store_scalar(row + dim * bits / 8, s);
	store_scalar(row + dim * bits / 8 + 2, lo);
}

static int encode_vllm(const struct kvp_kernels *k, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_encode_opts *o, struct kvp_raw_const src,
	uint8_t *out)
{
	uint32_t bits = KVP_CODEC_VARIANT(kvp_header(out)->codec), keys = p->kind == KVP_PLANE_K;
	struct book book = { 0 };
	float x[KVP_PLANE_DIM_MAX];
	struct rotation rot;
	int r = 0;

	(void)k;
	(void)o;
	if (keys && bits < 8) {
		book = book_of(bits, vllm_half[bits - 3]);
		r = vllm_rotation(&rot, p->dim);
		if (r < 0)
			return r;
	}
	memset(out + lay->codes, 0, (size_t)p->tokens * p->heads * lay->row_bytes);
	for (uint32_t h = 0; h < p->heads; h++) {
		struct rows_in in = kvp_rows_in(p, src, h, 0, p->tokens, 0);

		for (uint32_t t = 0; t < p->tokens; t++) {
			uint8_t *row =
				out + lay->codes + ((size_t)t * p->heads + h) * lay->row_bytes;

			load_row(&in, t, x);
			if (!keys)
				vllm_value(bits, p->dim, x, row);
			else if (bits < 8)
				vllm_key(&book, &rot, x, row);
			else
				for (uint32_t i = 0; i < p->dim; i++)
					row[i] = f32_to_e4m3(x[i]);
		}
	}
	return 0;
}

/* Norm correction is part of reading: the centroids' own norm is divided out. */
static void vllm_read_key(
	const struct book *book, const struct rotation *rot, const uint8_t *row, float *x)
{
	float norm = load_scalar(row + rot->dim * book->bits / 8, 1.0f);

	for (uint32_t i = 0; i < rot->dim; i++)
		x[i] = book->cent[lsb_get(row, book->bits, i)];
	norm = norm / sqrtf((float)rot->dim * kvp_dot_c(x, x, rot->dim));
	kvp_rotate_inv(rot, x);
	for (uint32_t i = 0; i < rot->dim; i++)
		x[i] *= norm;
}

static int rows_vllm(const struct kvp_kernels *k, uint32_t codec, const struct kvp_plane *p,
	const struct kvp_layout *lay, const struct kvp_calib *calib, const uint8_t *in,
	uint32_t head, uint32_t first, const struct rows_out *out)
{
	uint32_t bits = KVP_CODEC_VARIANT(codec), keys = p->kind == KVP_PLANE_K;
	struct book book = { 0 };
	float x[KVP_PLANE_DIM_MAX];
	struct rotation rot;
	int r = 0;

	(void)k;
	(void)calib;
	if (keys && bits < 8) {
		book = book_of(bits, vllm_half[bits - 3]);
		r = vllm_rotation(&rot, p->dim);
	}
	for (uint32_t t = 0; t < out->n && !r; t++) {
		const uint8_t *row =
			in + lay->codes + ((size_t)(first + t) * p->heads + head) * lay->row_bytes;
		const uint8_t *scalars = row + p->dim * bits / 8;

		if (keys && bits < 8)
			vllm_read_key(&book, &rot, row, x);
		for (uint32_t i = 0; i < p->dim; i++) {
			if (!keys)
				x[i] = (float)lsb_get(row, bits, i) * load_scalar(scalars, 1.0f) +
				       load_scalar(scalars + 2, 1.0f);
			else if (bits == 8)
				x[i] = e4m3_to_f32(row[i]);
			store(out, t, i, x[i]);
		}
	}
	return r;
}

const struct kvp_codec kvp_codec_pub_vllm = {
	.family = KVP_FAMILY_PUB_VLLM,
	.name = "pub-vllm",
	.names = { .bits_min = 3, .bits_max = 8, .bits_mask = 15 },
	.facts = KVP_FACT_PUBLISHED | KVP_FACT_UNSCALED,
	.layout = layout_vllm,
	.encode = encode_vllm,
	.decode = kvp_decode_rows,
	.rows = rows_vllm,
};
