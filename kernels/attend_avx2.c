/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over rows in fp32: rows are decoded into the codes' domain, then multiplied. */
#include "kernels/attend_avx2.h"

#include <math.h>

#define DIM_MAX     KVP_PLANE_DIM_MAX
#define ROWS_FLOATS 4096u /* of rows that are decoded at a time: four of DIM_MAX */

INLINE void affine_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	size_t at = r->per_channel ? (size_t)(t / r->group) * r->dim : (size_t)t * r->groups;
	const uint8_t *scale = r->scale + 2 * at, *min = r->minimum + 2 * at;
	const __m256 factor = _mm256_set1_ps(r->factor);
	__m256 s = factor, m = factor;
	uint8_t code[DIM_MAX];

	unpack_row(r->bits, r->dim, r->codes + (ptrdiff_t)t * r->stride, code);
	for (uint32_t c = 0; c < r->dim; c += 8) {
		if (r->per_channel) {
			s = load_half8(load128(scale + 2 * (size_t)c));
			m = load_half8(load128(min + 2 * (size_t)c));
		} else if (c % r->group == 0) {
			s = _mm256_set1_ps(load_half(scale + 2 * (size_t)(c / r->group), 1.0f));
			m = _mm256_set1_ps(load_half(min + 2 * (size_t)(c / r->group), 1.0f));
		}
		_mm256_storeu_ps(x + c,
			_mm256_mul_ps(
				_mm256_fmadd_ps(_mm256_cvtepi32_ps(load_codes(code, c / 8)), s, m),
				factor));
	}
}

INLINE void tq_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	const __m256 c0 = _mm256_loadu_ps(r->cent), c1 = _mm256_loadu_ps(r->cent + 8);
	float f = r->format ? load_scalar_wide(r->scale + 4 * (size_t)t, r->factor)
			    : load_half(r->scale + 2 * (size_t)t, r->factor);
	uint8_t code[DIM_MAX];

	unpack_row(r->bits, r->dim, r->codes + (ptrdiff_t)t * r->stride, code);
	for (uint32_t c = 0; c < r->dim; c += 8) {
		__m256i k = load_codes(code, c / 8);
		__m256 v = _mm256_blendv_ps(_mm256_permutevar8x32_ps(c0, k),
			_mm256_permutevar8x32_ps(c1, k),
			_mm256_castsi256_ps(_mm256_slli_epi32(k, 28)));

		_mm256_storeu_ps(x + c, _mm256_mul_ps(v, _mm256_set1_ps(f)));
	}
}

INLINE void float_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
	__m256 s;

	switch (r->form) {
	case KVP_FORM_NATIVE:
		for (uint32_t i = 0; i < r->dim / 8; i++)
			_mm256_storeu_ps(x + 8 * (size_t)i, load8(row, r->format, i));
		break;
	case KVP_FORM_FP8:
	case KVP_FORM_INT8:
		s = _mm256_set1_ps(load_half(r->scale + 2 * (size_t)t, r->factor));
		for (uint32_t i = 0; i < r->dim / 8; i++)
			_mm256_storeu_ps(x + 8 * (size_t)i,
				_mm256_mul_ps(byte_values(r->format, row, i), s));
		break;
	case KVP_FORM_BOOK:
		tq_row(r, t, x);
		break;
	default:
		affine_row(r, t, x);
		break;
	}
}

/* Four rows from t on; zeros beyond the last one. */
INLINE void float_rows(const struct kvp_rows *r, uint32_t t, float *x)
{
	for (uint32_t j = 0; j < TILE; j++) {
		if (t + j < r->n)
			float_row(r, t + j, x + (size_t)j * r->dim);
		else
			memset(x + (size_t)j * r->dim, 0, r->dim * sizeof *x);
	}
}

static void score_float(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	float x[TILE * DIM_MAX];

	if (r->dim % 8) {
		kvp_score_c(r, q, s, s_stride);
		return;
	}
	for (uint32_t t = 0; t < r->n; t += TILE) {
		fetch_next(r, t);
		float_rows(r, t, x);
		for (uint32_t i = 0; i < q->n; i++) {
			__m256 v[TILE] = { _mm256_setzero_ps(), _mm256_setzero_ps(),
				_mm256_setzero_ps(), _mm256_setzero_ps() };

			for (uint32_t d = 0; d < r->dim; d += 8) {
				__m256 y = _mm256_loadu_ps(q->f + (size_t)i * r->dim + d);

				for (uint32_t j = 0; j < TILE; j++)
					v[j] = _mm256_fmadd_ps(
						_mm256_loadu_ps(x + (size_t)j * r->dim + d), y,
						v[j]);
			}
			for (uint32_t j = 0; j < TILE && t + j < r->n; j++)
				s[i * s_stride + t + j] = sum8(v[j]);
		}
	}
}

/* Rows that lie decoded in x times the weights of one query. */
INLINE void add_rows(
	const float *x, uint32_t dim, uint32_t n, const float *w, float fade, float *acc)
{
	const __m256 f = _mm256_set1_ps(fade);
	uint32_t d = 0;

	for (; d + 32 <= dim; d += 32) {
		__m256 y[4];

		for (uint32_t k = 0; k < 4; k++)
			y[k] = _mm256_mul_ps(_mm256_loadu_ps(acc + d + 8 * k), f);
		for (uint32_t t = 0; t < n; t++)
			for (uint32_t k = 0; k < 4; k++)
				y[k] = _mm256_fmadd_ps(_mm256_set1_ps(w[t]),
					_mm256_loadu_ps(x + (size_t)t * dim + d + 8 * k), y[k]);
		for (uint32_t k = 0; k < 4; k++)
			_mm256_storeu_ps(acc + d + 8 * k, y[k]);
	}
	for (; d < dim; d += 8) {
		__m256 y = _mm256_mul_ps(_mm256_loadu_ps(acc + d), f);

		for (uint32_t t = 0; t < n; t++)
			y = _mm256_fmadd_ps(
				_mm256_set1_ps(w[t]), _mm256_loadu_ps(x + (size_t)t * dim + d), y);
		_mm256_storeu_ps(acc + d, y);
	}
}

static void accumulate_float(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	float x[ROWS_FLOATS];
	uint32_t most = ROWS_FLOATS / r->dim;

	if (r->dim % 8) {
		kvp_accumulate_c(r, w, acc);
		return;
	}
	for (uint32_t t = 0; t < r->n; t += most) {
		uint32_t n = r->n - t < most ? r->n - t : most;

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

/* e^x for x <= 0, 0 below -87; as exp_nonpositive() of reference C. NaN stays. */
INLINE __m256 exp8(__m256 x)
{
	__m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_LE_OQ), n, f, p;
	__m256i e;

	x = _mm256_blendv_ps(x, _mm256_setzero_ps(), tiny);
	n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p0f)), RNE);
	f = _mm256_fnmadd_ps(n, _mm256_set1_ps(0x1.62e43p-1f), x);
	f = _mm256_fnmadd_ps(n, _mm256_set1_ps(-0x1.05c61p-29f), f);
	p = _mm256_set1_ps(0x1.6c16c2p-10f);
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.111112p-7f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.555556p-5f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0x1.555556p-3f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(0.5f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
	p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
	e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
	return _mm256_andnot_ps(tiny, _mm256_mul_ps(p, _mm256_castsi256_ps(e)));
}

/* Lanes [lo, hi) of those beginning at t: all ones. */
INLINE __m256 lanes8(uint32_t t, uint32_t lo, uint32_t hi)
{
	__m256i at = _mm256_add_epi32(
		_mm256_set1_epi32((int)t), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));

	return _mm256_castsi256_ps(
		_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)lo), at),
			_mm256_cmpgt_epi32(_mm256_set1_epi32((int)hi), at)));
}

/* Rows of scores are padded: elements beyond n, up to a multiple of 16, are ours to write. */
static float softmax_avx2(const struct softmax *job, float *s, struct running *run)
{
	const __m256 minus_inf = _mm256_set1_ps(-INFINITY);
	__m256 top = _mm256_set1_ps(run->max), sum = _mm256_setzero_ps(), shift;
	__m256 nan = _mm256_setzero_ps();
	float max, fade;

	for (uint32_t t = 0; t < job->n; t += 8) {
		__m256 seen = lanes8(t, job->lo, job->hi < job->n ? job->hi : job->n);
		__m256 x = _mm256_mul_ps(_mm256_loadu_ps(s + t), _mm256_set1_ps(job->scale));

		if (job->mask) {
			__m256 m = _mm256_maskload_ps(
				job->mask + t, _mm256_castps_si256(lanes8(t, 0, job->n)));

			seen = _mm256_and_ps(seen, _mm256_cmp_ps(m, minus_inf, _CMP_NEQ_UQ));
			x = _mm256_add_ps(x, m);
		}
		x = _mm256_blendv_ps(minus_inf, x, seen);
		nan = _mm256_or_ps(nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
		top = _mm256_max_ps(top, x);
		_mm256_storeu_ps(s + t, x);
	}
	max = _mm256_movemask_ps(nan) ? NAN : largest(top);
	shift = _mm256_set1_ps(max == -INFINITY ? 0.0f : max);
	fade = _mm256_cvtss_f32(exp8(_mm256_sub_ps(_mm256_set1_ps(run->max), shift)));
	for (uint32_t t = 0; t < job->n; t += 8) {
		__m256 x = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + t), shift));

		sum = _mm256_add_ps(sum, x);
		_mm256_storeu_ps(s + t, x);
	}
	run->sum = run->sum * fade + sum8(sum);
	run->max = max;
	return fade;
}

static void score_values(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	if (!kvp_score_direct_avx2(r, q, s, s_stride))
		score_float(r, q, s, s_stride);
}

static void accumulate_values(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	if (!kvp_accumulate_direct_avx2(r, w, acc))
		accumulate_float(r, w, acc);
}

static void score_codes(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	if (!kvp_score_codes_avx2(r, q, s, s_stride))
		score_float(r, q, s, s_stride);
}

static void accumulate_codes(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	if (!kvp_accumulate_words_avx2(r, w, acc))
		accumulate_float(r, w, acc);
}

void kvp_attend_init_avx2(struct kvp_kernels *k)
{
	for (uint32_t f = 0; f < KVP_FORMS; f++) {
		k->attend[f].score = f < KVP_FORM_INT8 ? score_values : score_codes;
		k->attend[f].accumulate = f < KVP_FORM_INT8 ? accumulate_values : accumulate_codes;
	}
	k->dsp.softmax = softmax_avx2;
}
