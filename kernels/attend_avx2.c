/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over rows in fp32: rows are decoded into the codes' domain four at a time. */
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx2.h"

#define TILE    4u
#define DIM_MAX KVP_PLANE_DIM_MAX

INLINE float sum8(__m256 x)
{
	__m128 q = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	q = _mm_add_ps(q, _mm_movehl_ps(q, q));
	return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

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

	switch (r->family) {
	case KVP_FAMILY_NATIVE:
		for (uint32_t i = 0; i < r->dim / 8; i++)
			_mm256_storeu_ps(x + 8 * (size_t)i, load8(row, r->format, i));
		break;
	case KVP_FAMILY_FP8:
	case KVP_FAMILY_INT8:
		s = _mm256_set1_ps(load_half(r->scale + 2 * (size_t)t, r->factor));
		for (uint32_t i = 0; i < r->dim / 8; i++)
			_mm256_storeu_ps(x + 8 * (size_t)i,
				_mm256_mul_ps(byte_values(r->format, row, i), s));
		break;
	case KVP_FAMILY_TQ:
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

static void score_avx2(
	const struct kvp_rows *r, const struct kvp_queries *qs, float *s, size_t s_stride)
{
	const float *q = qs->f;
	uint32_t nq = qs->n;
	float x[TILE * DIM_MAX];

	if (r->dim % 8) {
		kvp_score_c(r, qs, s, s_stride);
		return;
	}
	for (uint32_t t = 0; t < r->n; t += TILE) {
		float_rows(r, t, x);
		for (uint32_t i = 0; i < nq; i++) {
			__m256 v[TILE] = { _mm256_setzero_ps(), _mm256_setzero_ps(),
				_mm256_setzero_ps(), _mm256_setzero_ps() };

			for (uint32_t d = 0; d < r->dim; d += 8) {
				__m256 y = _mm256_loadu_ps(q + (size_t)i * r->dim + d);

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

static void accumulate_avx2(const struct kvp_rows *r, const struct kvp_weights *ws, float *acc)
{
	const float *w = ws->w;
	uint32_t nq = ws->nq;
	size_t w_stride = ws->stride;
	float x[TILE * DIM_MAX];

	if (r->dim % 8) {
		kvp_accumulate_c(r, ws, acc);
		return;
	}
	for (uint32_t i = 0; i < nq; i++)
		for (uint32_t c = 0; c < r->dim; c++)
			acc[(size_t)i * r->dim + c] *= ws->fade[i];
	for (uint32_t t = 0; t < r->n; t += TILE) {
		float_rows(r, t, x);
		for (uint32_t i = 0; i < nq; i++) {
			float *a = acc + (size_t)i * r->dim;
			__m256 f[TILE];

			for (uint32_t j = 0; j < TILE; j++)
				f[j] = _mm256_set1_ps(
					t + j < r->n ? w[i * w_stride + t + j] : 0.0f);
			for (uint32_t d = 0; d < r->dim; d += 8) {
				__m256 y = _mm256_loadu_ps(a + d);

				for (uint32_t j = 0; j < TILE; j++)
					y = _mm256_fmadd_ps(f[j],
						_mm256_loadu_ps(x + (size_t)j * r->dim + d), y);
				_mm256_storeu_ps(a + d, y);
			}
		}
	}
}

void kvp_attend_init_avx2(struct kvp_kernels *k)
{
	for (uint32_t f = 0; f < KVP_FAMILY_MAX_; f++) {
		k->codec[f].score = score_avx2;
		k->codec[f].accumulate = accumulate_avx2;
	}
}
