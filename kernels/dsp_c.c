/* SPDX-License-Identifier: Apache-2.0 */
/* Reference C: docs/formats.md in code. Every other implementation is compared with this one. */
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"

#include <math.h>

/* Lanes of the reduction tree: two AVX-512 registers, four AVX2 registers, one CUDA warp. */
#define LANES 32u

static const uint8_t *row_in(const struct rows_in *in, uint32_t t)
{
	return in->data + (ptrdiff_t)t * in->stride;
}

static uint8_t *row_out(const struct rows_out *out, uint32_t t)
{
	return out->data + (ptrdiff_t)t * out->stride;
}

static void load_row(const struct rows_in *in, uint32_t t, float *x)
{
	for (uint32_t i = 0; i < in->dim; i++)
		x[i] = sanitize(load_element(row_in(in, t), in->dtype, i), in->scale);
}

static void store_row(const struct rows_out *out, uint32_t t, const float *x)
{
	for (uint32_t i = 0; i < out->dim; i++)
		store_element(row_out(out, t), out->dtype, i, x[i]);
}

static float fold(float *lane)
{
	for (uint32_t half = LANES / 2; half; half /= 2)
		for (uint32_t i = 0; i < half; i++)
			lane[i] += lane[i + half];
	return lane[0];
}

float kvp_dot_c(const float *a, const float *b, uint32_t n)
{
	float lane[LANES] = { 0 };

	for (uint32_t i = 0; i < n; i++)
		lane[i % LANES] += a[i] * b[i];
	return fold(lane);
}

uint32_t kvp_amax_c(const struct rows_in *in)
{
	uint32_t max = 0;

	for (uint32_t t = 0; t < in->n; t++) {
		for (uint32_t i = 0; i < in->dim; i++) {
			float f = load_element(row_in(in, t), in->dtype, i);
			uint32_t a = f32_bits(f) & 0x7fffffffu;

			if (a < 0x7f800000u && a > max)
				max = a;
		}
	}
	return max;
}

static float tq_scalar(const struct tq *tq, const float *z, const float *c, float norm)
{
	float d = (float)tq->rot.dim;
	float m;

	switch (tq->scalar) {
	case KVP_TQ_PLAIN:
		return norm / d;
	case KVP_TQ_NC:
		return norm / sqrtf(d * kvp_dot_c(c, c, tq->rot.dim));
	default:
		m = kvp_dot_c(z, c, tq->rot.dim);
		return m > 0.0f ? norm / m : 0.0f;
	}
}

static void tq_encode_row(const struct tq *tq, float *x, uint8_t *codes, uint8_t *scal)
{
	uint32_t d = tq->rot.dim;
	float norm = sqrtf(kvp_dot_c(x, x, d));
	float inv = norm > 0.0f ? 1.0f / norm : 0.0f;
	uint8_t code[KVP_PLANE_DIM_MAX];
	float c[KVP_PLANE_DIM_MAX];
	float t;

	kvp_rotate_fwd(&tq->rot, x);
	for (uint32_t i = 0; i < d; i++) {
		x[i] *= inv;
		code[i] = 0;
		for (uint32_t j = 0; j + 1 < 1u << tq->bits; j++)
			code[i] += tq->bound[j] <= x[i];
		c[i] = tq->cent[code[i]];
	}
	kvp_row_pack(tq->bits, d, code, codes);
	t = tq_scalar(tq, x, c, norm);
	if (tq->wide)
		memcpy(scal, &t, sizeof t);
	else
		store_scalar(scal, t);
}

void kvp_tq_encode_c(const struct tq *tq, const struct rows_in *in, uint8_t *codes, uint8_t *scal)
{
	uint32_t row = kvp_row_bytes(tq->bits, in->dim);
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, x);
		tq_encode_row(
			tq, x, codes + (size_t)t * row, scal + (size_t)t * (tq->wide ? 4 : 2));
	}
}

void kvp_tq_decode_c(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out)
{
	uint32_t row = kvp_row_bytes(tq->bits, out->dim);
	uint8_t code[KVP_PLANE_DIM_MAX];
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		float f = tq->wide ? load_scalar_wide(scal + 4 * (size_t)t, out->scale)
				   : load_scalar(scal + 2 * (size_t)t, out->scale);

		kvp_row_unpack(tq->bits, out->dim, codes + (size_t)t * row, code);
		for (uint32_t i = 0; i < out->dim; i++)
			x[i] = tq->cent[code[i]];
		kvp_rotate_inv(&tq->rot, x);
		for (uint32_t i = 0; i < out->dim; i++)
			x[i] *= f;
		store_row(out, t, x);
	}
}

/* Row t with NaN for what is not finite: such elements have no part in the range of a group. */
static void load_finite(const struct rows_in *in, uint32_t t, float *x)
{
	for (uint32_t i = 0; i < in->dim; i++) {
		float f = load_element(row_in(in, t), in->dtype, i);

		x[i] = is_finite(f) ? sanitize(f, in->scale) : NAN;
	}
}

struct range {
	float lo;
	float hi; /* below lo: of nothing */
};

static const struct range empty = { KVP_INPUT_MAX, -KVP_INPUT_MAX };

/* NaN changes nothing. */
static struct range range_add(struct range r, float x)
{
	return (struct range){ x < r.lo ? x : r.lo, x > r.hi ? x : r.hi };
}

/*
 * Scale and minimum of a group, rounded (to fp16 unless wide) before any code is derived from them.
 * Zero extremes become +0: the order in which -0 and +0 are compared must not show.
 */
struct affine {
	float min;
	float inv; /* 0: all codes are 0 */
};

static struct affine affine_store(
	uint32_t bits, uint32_t wide, struct range r, uint8_t *scale, uint8_t *min)
{
	float levels = (float)((1u << bits) - 1);
	float lo = r.lo <= r.hi ? r.lo + 0.0f : 0.0f, hi = r.lo <= r.hi ? r.hi + 0.0f : 0.0f;
	struct affine a;
	float s = store_scale(wide, scale, (hi - lo) / levels);

	a.min = store_scalar_as(wide, min, lo);
	a.inv = s > 0.0f ? 1.0f / s : 0.0f;
	return a;
}

/* Clamped before it is rounded: what is not finite may lie far outside the range. */
static uint8_t affine_code(uint32_t bits, struct affine a, float x)
{
	float max = (float)((1u << bits) - 1), f = (x - a.min) * a.inv;

	return (uint8_t)rne(f < 0.0f ? 0.0f : f > max ? max : f);
}

/* finite: x with NaN for what does not count. */
static void asym_encode_row(uint32_t bits, uint32_t group, uint32_t wide, uint32_t dim,
	const float *x, const float *finite, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	const size_t size = scalar_bytes(wide);
	uint8_t code[KVP_PLANE_DIM_MAX];

	for (uint32_t g = 0; g * group < dim; g++) {
		uint32_t end = (g + 1) * group < dim ? (g + 1) * group : dim;
		struct range r = empty;
		struct affine a;

		for (uint32_t i = g * group; i < end; i++)
			r = range_add(r, finite[i]);
		a = affine_store(bits, wide, r, scale + size * g, min + size * g);
		for (uint32_t i = g * group; i < end; i++)
			code[i] = affine_code(bits, a, x[i]);
	}
	kvp_row_pack(bits, dim, code, codes);
}

static void asym_encode(uint32_t bits, uint32_t group, uint32_t wide, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	uint32_t row = kvp_row_bytes(bits, in->dim);
	size_t scalars = (in->dim + group - 1) / group * scalar_bytes(wide);
	float x[KVP_PLANE_DIM_MAX], finite[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, x);
		load_finite(in, t, finite);
		asym_encode_row(bits, group, wide, in->dim, x, finite, codes + (size_t)t * row,
			scale + scalars * t, min + scalars * t);
	}
}

void kvp_asym_encode_c(uint32_t bits, uint32_t group, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint8_t *min)
{
	asym_encode(bits, group, 0, in, codes, scale, min);
}

void kvp_asym_encode_wide(uint32_t bits, uint32_t group, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint8_t *min)
{
	asym_encode(bits, group, 1, in, codes, scale, min);
}

static void asym_decode_row(uint32_t bits, uint32_t group, uint32_t wide, uint32_t dim,
	const uint8_t *codes, const uint8_t *scale, const uint8_t *min, float factor, float *x)
{
	const size_t size = scalar_bytes(wide);
	uint8_t code[KVP_PLANE_DIM_MAX];

	kvp_row_unpack(bits, dim, codes, code);
	for (uint32_t i = 0; i < dim; i++) {
		float s = load_scalar_as(wide, scale + size * (i / group), 1.0f);
		float m = load_scalar_as(wide, min + size * (i / group), 1.0f);

		/* Scaled last: the product alone may lie beyond what the sum needs. */
		x[i] = ((float)code[i] * s + m) * factor;
	}
}

static void asym_decode(uint32_t bits, uint32_t group, uint32_t wide, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	uint32_t row = kvp_row_bytes(bits, out->dim);
	size_t scalars = (out->dim + group - 1) / group * scalar_bytes(wide);
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		asym_decode_row(bits, group, wide, out->dim, codes + (size_t)t * row,
			scale + scalars * t, min + scalars * t, out->scale, x);
		store_row(out, t, x);
	}
}

void kvp_asym_decode_c(uint32_t bits, uint32_t group, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	asym_decode(bits, group, 0, codes, scale, min, out);
}

void kvp_asym_decode_wide(uint32_t bits, uint32_t group, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	asym_decode(bits, group, 1, codes, scale, min, out);
}

void kvp_chan_encode_c(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	uint32_t row = kvp_row_bytes(bits, in->dim);
	struct affine a[KVP_PLANE_DIM_MAX];
	struct range r[KVP_PLANE_DIM_MAX];
	uint8_t code[KVP_PLANE_DIM_MAX];
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		load_finite(in, t, x);
		for (uint32_t i = 0; i < in->dim; i++)
			r[i] = range_add(t ? r[i] : empty, x[i]);
	}
	for (uint32_t i = 0; i < in->dim; i++)
		a[i] = affine_store(bits, 0, r[i], scale + 2 * (size_t)i, min + 2 * (size_t)i);
	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, x);
		for (uint32_t i = 0; i < in->dim; i++)
			code[i] = affine_code(bits, a[i], x[i]);
		kvp_row_pack(bits, in->dim, code, codes + (size_t)t * row);
	}
}

void kvp_chan_decode_c(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	uint32_t row = kvp_row_bytes(bits, out->dim);
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		/* A group of one channel: its scalars lie exactly as this group's do. */
		asym_decode_row(
			bits, 1, 0, out->dim, codes + (size_t)t * row, scale, min, out->scale, x);
		store_row(out, t, x);
	}
}

static uint8_t byte_code(uint32_t format, float x)
{
	int32_t q;

	switch (format) {
	case KVP_CODEC_FP8_E4M3:
		return f32_to_e4m3(x);
	case KVP_CODEC_FP8_E5M2:
		return f32_to_e5m2(x);
	default:
		q = rne(x);
		return (uint8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
	}
}

static float byte_value(uint32_t format, uint8_t code)
{
	switch (format) {
	case KVP_CODEC_FP8_E4M3:
		return e4m3_to_f32(code);
	case KVP_CODEC_FP8_E5M2:
		return e5m2_to_f32(code);
	default:
		return (float)(int8_t)code;
	}
}

void kvp_byte_encode_c(uint32_t format, const struct rows_in *in, uint8_t *codes, uint8_t *scale)
{
	float top = format == KVP_CODEC_INT8 ? 127.0f : 448.0f;
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		float max = 0.0f, s, inv;

		load_row(in, t, x);
		for (uint32_t i = 0; i < in->dim; i++)
			max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
		store_scalar(scale + 2 * (size_t)t, max / top);
		s = f16_to_f32(load_u16(scale + 2 * (size_t)t));
		inv = s > 0.0f ? 1.0f / s : 0.0f;
		for (uint32_t i = 0; i < in->dim; i++)
			codes[(size_t)t * in->dim + i] = byte_code(format, x[i] * inv);
	}
}

void kvp_byte_decode_c(
	uint32_t format, const uint8_t *codes, const uint8_t *scale, const struct rows_out *out)
{
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		float s = load_scalar(scale + 2 * (size_t)t, out->scale);

		for (uint32_t i = 0; i < out->dim; i++)
			x[i] = byte_value(format, codes[(size_t)t * out->dim + i]) * s;
		store_row(out, t, x);
	}
}

void kvp_had_encode_c(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	uint32_t row = kvp_row_bytes(bits, in->dim);
	float unit = 1.0f / sqrtf((float)in->dim);
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		load_row(in, t, x);
		kvp_rotate_fwd(rot, x);
		for (uint32_t i = 0; i < in->dim; i++)
			x[i] *= unit;
		asym_encode_row(bits, in->dim, 0, in->dim, x, x, codes + (size_t)t * row,
			scale + 2 * (size_t)t, min + 2 * (size_t)t);
	}
}

void kvp_had_decode_c(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	uint32_t row = kvp_row_bytes(bits, out->dim);
	float unit = 1.0f / sqrtf((float)out->dim);
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		asym_decode_row(bits, out->dim, 0, out->dim, codes + (size_t)t * row,
			scale + 2 * (size_t)t, min + 2 * (size_t)t, 1.0f, x);
		kvp_rotate_inv(rot, x);
		for (uint32_t i = 0; i < out->dim; i++)
			x[i] = x[i] * unit * out->scale;
		store_row(out, t, x);
	}
}

void kvp_dsp_init_c(struct dsp *dsp)
{
	*dsp = (struct dsp){
		.amax = kvp_amax_c,
		.tq_encode = kvp_tq_encode_c,
		.tq_decode = kvp_tq_decode_c,
		.asym_encode = kvp_asym_encode_c,
		.asym_decode = kvp_asym_decode_c,
		.chan_encode = kvp_chan_encode_c,
		.chan_decode = kvp_chan_decode_c,
		.byte_encode = kvp_byte_encode_c,
		.byte_decode = kvp_byte_decode_c,
		.had_encode = kvp_had_encode_c,
		.had_decode = kvp_had_decode_c,
		.rotate = kvp_rotate_c,
		.rope_turn = kvp_rope_turn_c,
		.rope_row = kvp_rope_row_c,
		.split = kvp_split_c,
		.join = kvp_join_c,
		.rans_encode = kvp_rans_encode_c,
		.rans_decode = kvp_rans_decode_c,
		.pca_project = kvp_pca_project_c,
		.pca_build = kvp_pca_build_c,
		.pca_symbols = kvp_pca_symbols_c,
		.pca_lists = kvp_pca_lists_c,
		.nuq_encode = kvp_nuq_encode_c,
		.nuq_decode = kvp_nuq_decode_c,
		.squat_bend = kvp_squat_bend_c,
		.squat_see = kvp_squat_see_c,
		.squat_load = kvp_squat_load_c,
		.squat_place = kvp_squat_place_c,
		.lost = kvp_lost_c,
	};
}
