/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over rows in fp32: rows are decoded into the codes' domain, then multiplied. */
#include "kernels/aarch64_neon.h"
#include "kernels/attend_fetch.h"
#include "kernels/dsp.h"

#include <math.h>

#define DIM_MAX     KVP_PLANE_DIM_MAX
#define ROWS_FLOATS 4096u /* of rows that are decoded at a time: four of DIM_MAX */

/* ---- rows ---- */

INLINE void affine_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	size_t at = r->per_channel ? (size_t)(t / r->group) * r->dim : (size_t)t * r->groups;
	const uint8_t *scale = r->scale + 2 * at, *min = r->minimum + 2 * at;
	float32x4_t s[2], m[2];
	uint8_t code[DIM_MAX];
	uint32x4_t k[2];

	s[0] = s[1] = m[0] = m[1] = vdupq_n_f32(0.0f);
	unpack_row(r->bits, r->dim, r->codes + (ptrdiff_t)t * r->stride, code);
	for (uint32_t c = 0; c < r->dim; c += 8) {
		if (!r->per_channel && c % r->group == 0) {
			s[0] = s[1] =
				vdupq_n_f32(load_half(scale + 2 * (size_t)(c / r->group), 1.0f));
			m[0] = m[1] =
				vdupq_n_f32(load_half(min + 2 * (size_t)(c / r->group), 1.0f));
		}
		load_codes(code, c / 8, k);
		for (uint32_t i = 0; i < 2; i++) {
			if (r->per_channel) {
				s[i] = load_half4(scale + 2 * (size_t)(c + 4 * i));
				m[i] = load_half4(min + 2 * (size_t)(c + 4 * i));
			}
			vst1q_f32(x + c + 4 * (size_t)i,
				vmulq_n_f32(vfmaq_f32(m[i], vcvtq_f32_u32(k[i]), s[i]), r->factor));
		}
	}
}

INLINE void tq_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	const uint8x16x4_t table = table16(r->cent);
	float f = r->format ? load_scalar_wide(r->scale + 4 * (size_t)t, r->factor)
			    : load_half(r->scale + 2 * (size_t)t, r->factor);
	uint8_t code[DIM_MAX];
	uint32x4_t k[2];

	unpack_row(r->bits, r->dim, r->codes + (ptrdiff_t)t * r->stride, code);
	for (uint32_t c = 0; c < r->dim; c += 8) {
		load_codes(code, c / 8, k);
		vst1q_f32(x + c, vmulq_n_f32(lookup16(table, k[0]), f));
		vst1q_f32(x + c + 4, vmulq_n_f32(lookup16(table, k[1]), f));
	}
}

INLINE void float_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
	float s;

	switch (r->form) {
	case KVP_FORM_NATIVE:
		for (uint32_t i = 0; i < r->dim / 4; i++)
			vst1q_f32(x + 4 * (size_t)i, load4(row, r->format, i));
		break;
	case KVP_FORM_FP8:
	case KVP_FORM_INT8:
		s = load_half(r->scale + 2 * (size_t)t, r->factor);
		for (uint32_t i = 0; i < r->dim / 4; i++)
			vst1q_f32(
				x + 4 * (size_t)i, vmulq_n_f32(byte_values(r->format, row, i), s));
		break;
	case KVP_FORM_BOOK:
		tq_row(r, t, x);
		break;
	default:
		affine_row(r, t, x);
		break;
	}
}

/* TILE rows from t on; zeros beyond the last one. */
INLINE void float_rows(const struct kvp_rows *r, uint32_t t, float *x)
{
	for (uint32_t j = 0; j < TILE; j++) {
		if (t + j < r->n)
			float_row(r, t + j, x + (size_t)j * r->dim);
		else
			memset(x + (size_t)j * r->dim, 0, r->dim * sizeof *x);
	}
}

/* ---- scores ---- */

/* Of TILE rows that lie decoded in x, and n queries. */
INLINE void score_tile(
	const float *x, uint32_t dim, const float *q, uint32_t n, float *s, size_t s_stride)
{
	float32x4_t v[2][TILE];

	for (uint32_t j = 0; j < TILE; j++)
		v[0][j] = v[1][j] = vdupq_n_f32(0.0f);
	for (uint32_t d = 0; d < dim; d += 4) {
		for (uint32_t j = 0; j < TILE; j++) {
			const float32x4_t y = vld1q_f32(x + (size_t)j * dim + d);

			for (uint32_t i = 0; i < n; i++)
				v[i][j] = vfmaq_f32(v[i][j], y, vld1q_f32(q + (size_t)i * dim + d));
		}
	}
	for (uint32_t i = 0; i < n; i++)
		vst1q_f32(s + i * s_stride,
			vpaddq_f32(vpaddq_f32(v[i][0], v[i][1]), vpaddq_f32(v[i][2], v[i][3])));
}

static void score(const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	float x[TILE * DIM_MAX];

	if (r->dim % 8) {
		kvp_score_c(r, q, s, s_stride);
		return;
	}
	for (uint32_t t = 0; t < r->n; t += TILE) {
		uint32_t i = 0;

		fetch_next(r, t);
		float_rows(r, t, x);
		for (; i + 2 <= q->n; i += 2)
			score_tile(x, r->dim, q->f + (size_t)i * r->dim, 2, s + i * s_stride + t,
				s_stride);
		if (i < q->n)
			score_tile(x, r->dim, q->f + (size_t)i * r->dim, 1, s + i * s_stride + t,
				s_stride);
	}
}

/* ---- sums ---- */

#define STRIP 8u /* registers */

/* Registers of channels of n rows, times the weights of one query, added to its sums. */
INLINE void add_strip(uint32_t registers, const float *x, uint32_t dim, uint32_t n, const float *w,
	float fade, float *acc)
{
	float32x4_t y[STRIP];

	for (uint32_t k = 0; k < registers; k++)
		y[k] = vmulq_n_f32(vld1q_f32(acc + 4 * (size_t)k), fade);
	for (uint32_t t = 0; t < n; t++)
		for (uint32_t k = 0; k < registers; k++)
			y[k] = vfmaq_n_f32(
				y[k], vld1q_f32(x + (size_t)t * dim + 4 * (size_t)k), w[t]);
	for (uint32_t k = 0; k < registers; k++)
		vst1q_f32(acc + 4 * (size_t)k, y[k]);
}

INLINE void add_rows(
	const float *x, uint32_t dim, uint32_t n, const float *w, float fade, float *acc)
{
	uint32_t d = 0;

	for (; d + 4 * STRIP <= dim; d += 4 * STRIP)
		add_strip(STRIP, x + d, dim, n, w, fade, acc + d);
	for (; d < dim; d += 8)
		add_strip(2, x + d, dim, n, w, fade, acc + d);
}

static void accumulate(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	const uint32_t most = ROWS_FLOATS / r->dim;
	float x[ROWS_FLOATS];

	if (r->dim % 8) {
		kvp_accumulate_c(r, w, acc);
		return;
	}
	for (uint32_t t = 0; t < r->n; t += most) {
		const uint32_t n = r->n - t < most ? r->n - t : most;

		for (uint32_t j = 0; j < n; j++) {
			if (j % TILE == 0)
				fetch_next(r, t + j);
			float_row(r, t + j, x + (size_t)j * r->dim);
		}
		for (uint32_t i = 0; i < w->nq; i++)
			add_rows(x, r->dim, n, w->w + i * w->stride + t, t ? 1.0f : w->fade[i],
				acc + (size_t)i * r->dim);
	}
}

/* ---- softmax ---- */

/* e^x for x <= 0, 0 up to -87; as exp_nonpositive() of reference C. NaN stays. */
INLINE float32x4_t exp4(float32x4_t x)
{
	const uint32x4_t tiny = vcleq_f32(x, vdupq_n_f32(-87.0f));
	float32x4_t n, f, p;
	int32x4_t e;

	x = vbslq_f32(tiny, vdupq_n_f32(0.0f), x);
	n = vrndnq_f32(vmulq_n_f32(x, 0x1.715476p0f));
	f = vfmsq_n_f32(x, n, 0x1.62e43p-1f);
	f = vfmsq_n_f32(f, n, -0x1.05c61p-29f);
	p = vdupq_n_f32(0x1.6c16c2p-10f);
	p = vfmaq_f32(vdupq_n_f32(0x1.111112p-7f), p, f);
	p = vfmaq_f32(vdupq_n_f32(0x1.555556p-5f), p, f);
	p = vfmaq_f32(vdupq_n_f32(0x1.555556p-3f), p, f);
	p = vfmaq_f32(vdupq_n_f32(0.5f), p, f);
	p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
	p = vfmaq_f32(vdupq_n_f32(1.0f), p, f);
	e = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
	return bits_and(vmulq_f32(p, vreinterpretq_f32_s32(e)), vmvnq_u32(tiny));
}

/* Of the tokens from t on: those that are seen. */
INLINE uint32x4_t seen4(uint32_t t, uint32_t lo, uint32_t hi)
{
	static const uint32_t lane[4] = { 0, 1, 2, 3 };
	const uint32x4_t at = vaddq_u32(vdupq_n_u32(t), vld1q_u32(lane));

	return vandq_u32(vcgeq_u32(at, vdupq_n_u32(lo)), vcltq_u32(at, vdupq_n_u32(hi)));
}

/* Up to four numbers; zeros beyond the n-th. */
INLINE float32x4_t some4(const float *p, uint32_t n)
{
	float x[4] = { 0 };

	if (n >= 4)
		return vld1q_f32(p);
	memcpy(x, p, n * sizeof *x);
	return vld1q_f32(x);
}

/* Rows of scores are padded: elements beyond n, up to a multiple of 16, are ours to write. */
static float softmax(const struct softmax *job, float *s, struct running *run)
{
	const uint32_t hi = job->hi < job->n ? job->hi : job->n;
	const float32x4_t minus_inf = vdupq_n_f32(-INFINITY);
	float32x4_t top = vdupq_n_f32(run->max), sum = vdupq_n_f32(0.0f), shift;
	float max, fade;

	for (uint32_t t = 0; t < job->n; t += 4) {
		uint32x4_t seen = seen4(t, job->lo, hi);
		float32x4_t x = vmulq_n_f32(vld1q_f32(s + t), job->scale);

		if (job->mask) {
			const float32x4_t m = some4(job->mask + t, job->n - t);

			seen = vbicq_u32(seen, vceqq_f32(m, minus_inf));
			x = vaddq_f32(x, m);
		}
		x = vbslq_f32(seen, x, minus_inf);
		top = vmaxq_f32(top, x); /* NaN, once there is one */
		vst1q_f32(s + t, x);
	}
	max = vmaxvq_f32(top);
	shift = vdupq_n_f32(max == -INFINITY ? 0.0f : max);
	fade = vgetq_lane_f32(exp4(vsubq_f32(vdupq_n_f32(run->max), shift)), 0);
	for (uint32_t t = 0; t < job->n; t += 4) {
		const float32x4_t x = exp4(vsubq_f32(vld1q_f32(s + t), shift));

		sum = vaddq_f32(sum, x);
		vst1q_f32(s + t, x);
	}
	run->sum = run->sum * fade + vaddvq_f32(sum);
	run->max = max;
	return fade;
}

void kvp_attend_init_neon(struct kvp_kernels *k)
{
	for (uint32_t f = 0; f < KVP_FORMS; f++) {
		k->attend[f].score = score;
		k->attend[f].accumulate = accumulate;
	}
	k->dsp.softmax = softmax;
}
