/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over rows in fp32: softmax, native and fp8 rows converted on the way into the
 * multiplications, and everything that attend_keys_avx512.c and attend_vnni.c cannot take as codes,
 * which is decoded into the cache first. At most four queries against four tokens at a time: sixteen sums.
 */
#include "kernels/attend_avx512.h"
#include "kernels/attend_unroll.h"

#include <math.h>

#define ROWS_FLOATS 4096u /* of rows that are decoded at a time: four of DIM_MAX */

/* ---- softmax ---- */

/* Lanes of [lo, hi) among those beginning at t. */
INLINE __mmask16 lanes(uint32_t t, uint32_t lo, uint32_t hi)
{
	__mmask16 below = hi > t ? first16(hi - t) : 0;
	__mmask16 before = lo > t ? first16(lo - t) : 0;

	return below & (__mmask16)~before;
}

static float softmax_avx512(const struct softmax *job, float *s, struct running *run)
{
	const __m512 minus_inf = _mm512_set1_ps(-INFINITY);
	__m512 top = _mm512_set1_ps(run->max), sum = _mm512_setzero_ps(), shift;
	__mmask16 nan = 0;
	float max, fade;

	for (uint32_t t = 0; t < job->n; t += 16) {
		__mmask16 in = first16(job->n - t), seen = lanes(t, job->lo, job->hi) & in;
		__m512 x =
			_mm512_mul_ps(_mm512_maskz_loadu_ps(in, s + t), _mm512_set1_ps(job->scale));

		if (job->mask) {
			__m512 m = _mm512_maskz_loadu_ps(in, job->mask + t);

			seen &= _mm512_cmp_ps_mask(m, minus_inf, _CMP_NEQ_UQ);
			x = _mm512_add_ps(x, m);
		}
		x = _mm512_mask_mov_ps(minus_inf, seen, x);
		nan |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
		top = _mm512_max_ps(top, x);
		_mm512_mask_storeu_ps(s + t, in, x);
	}
	max = nan ? NAN : _mm512_reduce_max_ps(top);
	shift = _mm512_set1_ps(max == -INFINITY ? 0.0f : max);
	fade = _mm512_cvtss_f32(exp16(_mm512_sub_ps(_mm512_set1_ps(run->max), shift)));
	for (uint32_t t = 0; t < job->n; t += 16) {
		__mmask16 in = first16(job->n - t);
		__m512 x = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(in, s + t), shift));

		sum = _mm512_add_ps(sum, _mm512_maskz_mov_ps(in, x));
		_mm512_mask_storeu_ps(s + t, in, x);
	}
	run->sum = run->sum * fade + _mm512_reduce_add_ps(sum);
	run->max = max;
	return fade;
}

/* ---- floats ---- */

/*
 * Values 32 i .. 32 i + 31 of a row without its scale; of fp8 e4m3 also without a factor 256.
 * fp8 becomes fp16 by moving sign and exponent to where fp16 has them; what is no number is 0.
 */
INLINE void values32(const uint8_t *row, uint32_t format, uint32_t i, __m512 *x)
{
	__m512i h, exponent = _mm512_set1_epi16(0x7c00);
	__m256i c;

	if (format <= KVP_DTYPE_BF16) {
		x[0] = load16(row, format, 2 * i);
		x[1] = load16(row, format, 2 * i + 1);
		return;
	}
	c = _mm256_loadu_si256((const __m256i *)(const void *)(row + 32 * (size_t)i));
	if (format == KVP_CODEC_INT8) {
		x[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(c)));
		x[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(c, 1)));
		return;
	}
	h = _mm512_cvtepi8_epi16(c);
	if (format == KVP_CODEC_FP8_E4M3) {
		h = _mm512_and_si512(_mm512_slli_epi16(h, 7), _mm512_set1_epi16((short)0xbfff));
		exponent = _mm512_set1_epi16(0x3f80); /* and mantissa: only all ones are NaN */
	} else {
		h = _mm512_slli_epi16(h, 8);
	}
	h = _mm512_maskz_mov_epi16(
		_mm512_test_epi16_mask(_mm512_xor_si512(h, exponent), exponent), h);
	x[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
	x[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
}

/* What the values of a row still have to be multiplied by. */
static void row_scales(const struct kvp_rows *r, float *scale)
{
	float more = r->format == KVP_CODEC_FP8_E4M3 ? 256.0f : 1.0f;

	if (r->scale)
		load_halves(r->scale, r->n, r->factor, scale);
	for (uint32_t t = 0; t < r->n; t++)
		scale[t] = r->scale ? scale[t] * more : 1.0f;
}

/* m queries from `first` on; of those beyond, the last one again. */
INLINE void tile_queries(
	const struct kvp_queries *q, uint32_t dim, uint32_t first, const float **tile)
{
	for (uint32_t i = 0; i < TILE; i++)
		tile[i] = q->f + (size_t)least(first + i, q->n - 1) * dim;
}

INLINE void score_rows(const struct kvp_rows *r, uint32_t format, uint32_t m,
	const struct kvp_queries *q, const float *scale, float *s, size_t s_stride)
{
	const uint8_t *row[TILE];
	const float *tile[TILE];

	for (uint32_t t = 0; t < r->n; t += TILE) {
		uint32_t nt = least(r->n - t, TILE);

		fetch_next(r, t);
		tile_rows(r, t, row);
		for (uint32_t i = 0; i < q->n; i += m) {
			__m512 v[TILE][TILE], c[TILE], x;

			tile_queries(q, r->dim, i, tile);
			for (uint32_t j = 0; j < TILE; j++)
				for (uint32_t k = 0; k < TILE; k++)
					v[j][k] = _mm512_setzero_ps();
			for (uint32_t d = 0; d < r->dim; d += 32) {
				uint32_t halves =
					format == KVP_DTYPE_F32 && r->dim - d < 32 ? 1 : 2;
				__m512 y[TILE][2];

				for (uint32_t j = 0; j < TILE; j++)
					values32(row[j], format, d / 32, y[j]);
				for (uint32_t h = 0; h < halves; h++) {
					for (uint32_t k = 0; k < m; k++) {
						__m512 z = _mm512_loadu_ps(tile[k] + d + 16 * h);

						for (uint32_t j = 0; j < TILE; j++)
							v[j][k] = _mm512_fmadd_ps(
								y[j][h], z, v[j][k]);
					}
				}
			}
			for (uint32_t j = 0; j < TILE; j++)
				c[j] = sum_lanes(v[j]);
			x = _mm512_maskz_loadu_ps((__mmask16)((1u << nt) - 1), scale + t);
			x = _mm512_mul_ps(sum_tokens(c), spread_tokens(x));
			store_tile(x, s + i * s_stride + t, s_stride, nt, least(q->n - i, m));
		}
	}
}

/* 16 n channels from c on, of m queries at a time: their sums stay in registers. fade NULL: 1. */
INLINE void accumulate_rows(const struct kvp_rows *r, uint32_t format, uint32_t m, uint32_t n,
	uint32_t c, const float (*f)[ATTEND_CHUNK], const float *fade, uint32_t nq, int fetch,
	float *acc)
{
	__m512 v[TILE][4];

	for (uint32_t i = 0; i < m; i++)
		for (uint32_t k = 0; k < n; k++)
			v[i][k] = _mm512_mul_ps(
				_mm512_loadu_ps(acc + (size_t)least(i, nq - 1) * r->dim + c +
						16 * (size_t)k),
				_mm512_set1_ps(fade ? fade[least(i, nq - 1)] : 1.0f));
	for (uint32_t t = 0; t < r->n; t++) {
		const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
		__m512 x[4];

		if (fetch && t % TILE == 0)
			fetch_next(r, t);
		for (uint32_t k = 0; k < n; k += 2)
			values32(row, format, (c + 16 * k) / 32, x + k);
		for (uint32_t i = 0; i < m; i++) {
			__m512 w = _mm512_set1_ps(f[i][t]);

			for (uint32_t k = 0; k < n; k++)
				v[i][k] = _mm512_fmadd_ps(w, x[k], v[i][k]);
		}
	}
	for (uint32_t i = 0; i < nq; i++)
		for (uint32_t k = 0; k < n; k++)
			_mm512_storeu_ps(acc + (size_t)i * r->dim + c + 16 * (size_t)k, v[i][k]);
}

INLINE void accumulate_format(const struct kvp_rows *r, uint32_t format, uint32_t m,
	const struct kvp_weights *w, const float *scale, float *acc)
{
	float f[TILE][ATTEND_CHUNK] __attribute__((aligned(64)));

	for (uint32_t i = 0; i < w->nq; i += m) {
		const float *fade = w->fade ? w->fade + i : NULL;
		uint32_t nq = least(w->nq - i, m), c = 0;
		float *a = acc + (size_t)i * r->dim;

		for (uint32_t j = 0; j < m; j++)
			for (uint32_t t = 0; t < r->n; t++)
				f[j][t] = w->w[least(i + j, w->nq - 1) * w->stride + t] * scale[t];
		for (; c + 64 <= r->dim; c += 64)
			accumulate_rows(r, format, m, 4, c, f, fade, nq, i + c == 0, a);
		if (c + 32 <= r->dim) {
			accumulate_rows(r, format, m, 2, c, f, fade, nq, i + c == 0, a);
			c += 32;
		}
		if (format == KVP_DTYPE_F32 && c < r->dim)
			accumulate_rows(r, format, m, 1, c, f, fade, nq, i + c == 0, a);
	}
}

/* One query has a kernel of its own, anything else is done four at a time. */
#define PER_FORMAT(format, m, call)          \
	switch (format) {                    \
	case KVP_DTYPE_F32:                  \
		call(KVP_DTYPE_F32, m);      \
		break;                       \
	case KVP_DTYPE_F16:                  \
		call(KVP_DTYPE_F16, m);      \
		break;                       \
	case KVP_DTYPE_BF16:                 \
		call(KVP_DTYPE_BF16, m);     \
		break;                       \
	case KVP_CODEC_INT8:                 \
		call(KVP_CODEC_INT8, m);     \
		break;                       \
	case KVP_CODEC_FP8_E4M3:             \
		call(KVP_CODEC_FP8_E4M3, m); \
		break;                       \
	default:                             \
		call(KVP_CODEC_FP8_E5M2, m); \
		break;                       \
	}

/* Rows whose values can be multiplied as they come. */
static void score_direct(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	float scale[ATTEND_CHUNK];

	row_scales(r, scale);
#define CALL(format, m) score_rows(r, format, m, q, scale, s, s_stride)
	if (q->n == 1) {
		PER_FORMAT(r->format, 1, CALL)
	} else {
		PER_FORMAT(r->format, TILE, CALL)
	}
#undef CALL
}

static void accumulate_direct(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	float scale[ATTEND_CHUNK];

	row_scales(r, scale);
#define CALL(format, m) accumulate_format(r, format, m, w, scale, acc)
	if (w->nq == 1) {
		PER_FORMAT(r->format, 1, CALL)
	} else {
		PER_FORMAT(r->format, TILE, CALL)
	}
#undef CALL
}

/* ---- the usual rows: 128 channels of fp16 or bf16 ---- */

#define USUAL_DIM  128u
#define BLOCK_ROWS 32u /* whose values are in the first cache for all channels */

INLINE __m512 score_usual_tile(
	const uint8_t *const *row, uint32_t format, const float *const *tile, const struct fetch *f)
{
	__m512 v[TILE][TILE], c[TILE];

	for (uint32_t j = 0; j < TILE; j++)
		for (uint32_t k = 0; k < TILE; k++)
			v[j][k] = _mm512_setzero_ps();
#pragma GCC unroll 8
	for (uint32_t d = 0; d < USUAL_DIM / 16; d++) {
		__m512 y[TILE];

		fetch_part(f, d);
		for (uint32_t j = 0; j < TILE; j++)
			y[j] = load16(row[j], format, d);
		for (uint32_t k = 0; k < TILE; k++) {
			__m512 z = _mm512_loadu_ps(tile[k] + 16 * d);

			for (uint32_t j = 0; j < TILE; j++)
				v[j][k] = _mm512_fmadd_ps(y[j], z, v[j][k]);
		}
	}
	for (uint32_t j = 0; j < TILE; j++)
		c[j] = sum_lanes(v[j]);
	return sum_tokens(c);
}

/* Rows are fetched and converted for four queries, and for the next four they are in the first cache. */
INLINE void score_usual(const struct kvp_rows *r, uint32_t format, const struct kvp_queries *q,
	float *s, size_t s_stride)
{
	const uint8_t *row[TILE];
	const float *tile[TILE];

	for (uint32_t t = 0; t < r->n; t += TILE) {
		struct fetch f = fetch_both(r, t, 2 * USUAL_DIM);

		tile_rows(r, t, row);
		for (uint32_t i = 0; i < q->n; i += TILE) {
			tile_queries(q, USUAL_DIM, i, tile);
			store_tile(score_usual_tile(row, format, tile, &f), s + i * s_stride + t,
				s_stride, least(r->n - t, TILE), least(q->n - i, TILE));
			f = (struct fetch){ 0 };
		}
	}
}

/* The weights of a block of rows: together, so that few addresses are needed. */
struct block_weights {
	float w[2 * TILE][BLOCK_ROWS] __attribute__((aligned(64)));
};

/* Sums that stay in registers: of m queries each so many vectors, 16 in all. */
INLINE uint32_t vectors_of(uint32_t m)
{
	return 16 / m;
}

/* Channels of row t of the block times a weight of each of m queries. */
INLINE void add_row(const uint8_t *row, uint32_t format, uint32_t m, const struct block_weights *b,
	size_t t, __m512 (*v)[4])
{
	const uint32_t n = vectors_of(m);
	__m512 x[4];

	UNROLL for (uint32_t k = 0; k < n; k++) x[k] = load16(row, format, k);
	UNROLL for (uint32_t i = 0; i < m; i++)
	{
		UNROLL for (uint32_t k = 0; k < n; k++) v[i][k] =
			multiply_add(v[i][k], x[k], &b->w[i][t]);
	}
}

/*
 * n rows of r from `first` on, as many channels from c on as there are sums for; acc and fade: of each
 * query. What is fetched is shared out over all channels, four rows at a time.
 */
INLINE void add_block(const struct kvp_rows *r, uint32_t format, uint32_t m, uint32_t first,
	uint32_t n, uint32_t c, const struct block_weights *b, const float *fade, int fetch,
	float *const *acc)
{
	const uint32_t vectors = vectors_of(m), passes = USUAL_DIM / (16 * vectors);
	const uint8_t *row = r->codes + (ptrdiff_t)first * r->stride + 2 * (size_t)c;
	uint32_t ahead = first + c / (16 * vectors) * (BLOCK_ROWS / passes);
	__m512 v[2 * TILE][4];
	size_t t = 0;

	UNROLL for (uint32_t i = 0; i < m; i++)
	{
		UNROLL for (uint32_t k = 0; k < vectors; k++) v[i][k] = _mm512_mul_ps(
			_mm512_loadu_ps(acc[i] + c + 16 * (size_t)k), _mm512_set1_ps(fade[i]));
	}
	for (; t + TILE * passes <= n; ahead += TILE) {
		struct fetch f = { 0 };

		if (fetch)
			f = fetch_both(r, ahead, 2 * USUAL_DIM);
		for (uint32_t j = 0; j < FETCH_PARTS; j++) {
			fetch_part(&f, j);
			for (uint32_t i = 0; i < passes / 2; i++, t++, row += r->stride)
				add_row(row, format, m, b, t, v);
		}
	}
	for (; t < n; t++, row += r->stride)
		add_row(row, format, m, b, t, v);
	UNROLL for (uint32_t i = 0; i < m; i++)
	{
		UNROLL for (uint32_t k = 0; k < vectors; k++)
			_mm512_storeu_ps(acc[i] + c + 16 * (size_t)k, v[i][k]);
	}
}

/*
 * A block of rows with the weights of m queries from i on; beyond the last query the last one
 * again: it is computed twice, with one result.
 */
INLINE void accumulate_block(const struct kvp_rows *r, uint32_t format, uint32_t m,
	const struct kvp_weights *w, uint32_t t, uint32_t i, float *acc)
{
	uint32_t n = least(BLOCK_ROWS, r->n - t);
	float fade[2 * TILE], *a[2 * TILE];
	struct block_weights b;

	for (uint32_t j = 0; j < m; j++) {
		uint32_t at = least(i + j, w->nq - 1);
		const float *from = w->w + at * w->stride + t;

		fade[j] = t ? 1.0f : w->fade[at];
		a[j] = acc + at * (size_t)USUAL_DIM;
		for (uint32_t k = 0; k < BLOCK_ROWS; k += 16)
			_mm512_store_ps(b.w[j] + k,
				_mm512_maskz_loadu_ps(n > k ? first16(n - k) : 0, from + k));
	}
	for (uint32_t c = 0; c < USUAL_DIM; c += 16 * vectors_of(m))
		add_block(r, format, m, t, n, c, &b, fade, i == 0, a);
}

/* Eight queries at a time where there are more than four: rows are converted once for all of them. */
INLINE void accumulate_usual(
	const struct kvp_rows *r, uint32_t format, const struct kvp_weights *w, float *acc)
{
	for (uint32_t t = 0; t < r->n; t += BLOCK_ROWS) {
		uint32_t i = 0;

		for (; i + TILE < w->nq; i += 2 * TILE)
			accumulate_block(r, format, 2 * TILE, w, t, i, acc);
		if (i < w->nq)
			accumulate_block(r, format, TILE, w, t, i, acc);
	}
}

static int usual(const struct kvp_rows *r, uint32_t nq)
{
	return r->dim == USUAL_DIM && nq > 1 && r->form == KVP_FORM_NATIVE &&
	       r->format != KVP_DTYPE_F32;
}

INLINE void affine_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	uint8_t code[DIM_MAX];
	size_t at = r->per_channel ? (size_t)(t / r->group) * r->dim : (size_t)t * r->groups;
	const uint8_t *scale = r->scale + 2 * at, *min = r->minimum + 2 * at;
	float s[DIM_MAX / 16], m[DIM_MAX / 16];

	unpack_row(r->bits, r->dim, r->codes + (ptrdiff_t)t * r->stride, code);
	if (!r->per_channel) {
		load_halves(scale, r->groups, r->factor, s);
		load_halves(min, r->groups, r->factor, m);
	}
	for (uint32_t c = 0; c < r->dim; c += 16) {
		__m512 k = _mm512_cvtepi32_ps(load_codes(code, c / 16)), a, b;

		if (r->per_channel) {
			a = load_half16(
				_mm256_loadu_si256(
					(const __m256i *)(const void *)(scale + 2 * (size_t)c)),
				r->factor);
			b = load_half16(
				_mm256_loadu_si256(
					(const __m256i *)(const void *)(min + 2 * (size_t)c)),
				r->factor);
		} else {
			a = _mm512_set1_ps(s[c / r->group]);
			b = _mm512_set1_ps(m[c / r->group]);
		}
		_mm512_storeu_ps(x + c, _mm512_fmadd_ps(k, a, b));
	}
}

INLINE void tq_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	const __m512 book = _mm512_loadu_ps(r->cent);
	__m512 s = _mm512_set1_ps(r->format ? load_scalar_wide(r->scale + 4 * (size_t)t, r->factor)
					    : load_half(r->scale + 2 * (size_t)t, r->factor));
	uint8_t code[DIM_MAX];

	unpack_row(r->bits, r->dim, r->codes + (ptrdiff_t)t * r->stride, code);
	for (uint32_t c = 0; c < r->dim; c += 16)
		_mm512_storeu_ps(x + c,
			_mm512_mul_ps(_mm512_permutexvar_ps(load_codes(code, c / 16), book), s));
}

INLINE void float_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;

	switch (r->form) {
	case KVP_FORM_NATIVE:
		for (uint32_t i = 0; i < r->dim / 16; i++)
			_mm512_storeu_ps(x + 16 * (size_t)i, load16(row, r->format, i));
		break;
	case KVP_FORM_FP8:
	case KVP_FORM_INT8: {
		__m512 s = _mm512_set1_ps(load_half(r->scale + 2 * (size_t)t, r->factor));

		for (uint32_t i = 0; i < r->dim / 16; i++)
			_mm512_storeu_ps(x + 16 * (size_t)i,
				_mm512_mul_ps(byte_values(r->format, row, i), s));
		break;
	}
	case KVP_FORM_BOOK:
		tq_row(r, t, x);
		break;
	default:
		affine_row(r, t, x);
		break;
	}
}

/* As many rows from t on as fit into x. */
static struct kvp_rows decoded_rows(const struct kvp_rows *r, uint32_t t, float *x)
{
	struct kvp_rows f = { .form = KVP_FORM_NATIVE,
		.format = KVP_DTYPE_F32,
		.dim = r->dim,
		.n = least(ROWS_FLOATS / r->dim / TILE * TILE, r->n - t),
		.stride = (ptrdiff_t)(r->dim * sizeof *x),
		.codes = (const uint8_t *)x };

	for (uint32_t i = 0; i < f.n; i++) {
		if (i % TILE == 0)
			fetch_next(r, t + i);
		float_row(r, t + i, x + (size_t)i * r->dim);
	}
	return f;
}

/* Whether to convert rows while they are used, again for every four queries. */
static int direct(const struct kvp_rows *r, uint32_t nq)
{
	if (r->dim % 32 || r->form > KVP_FORM_INT8)
		return 0;
	return nq <= TILE || (r->form == KVP_FORM_NATIVE && r->format == KVP_DTYPE_F32);
}

void kvp_score_float_avx512(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	float x[ROWS_FLOATS + 16] __attribute__((aligned(64)));

	if (r->dim % 16) {
		kvp_score_c(r, q, s, s_stride);
		return;
	}
	if (usual(r, q->n)) {
		if (r->format == KVP_DTYPE_F16)
			score_usual(r, KVP_DTYPE_F16, q, s, s_stride);
		else
			score_usual(r, KVP_DTYPE_BF16, q, s, s_stride);
		return;
	}
	if (direct(r, q->n)) {
		score_direct(r, q, s, s_stride);
		return;
	}
	for (uint32_t t = 0; t < r->n;) {
		struct kvp_rows f = decoded_rows(r, t, x);

		score_direct(&f, q, s + t, s_stride);
		t += f.n;
	}
}

void kvp_accumulate_float_avx512(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	float x[ROWS_FLOATS + 16] __attribute__((aligned(64)));
	struct kvp_weights part = *w;

	if (r->dim % 16) {
		kvp_accumulate_c(r, w, acc);
		return;
	}
	if (usual(r, w->nq)) {
		if (r->format == KVP_DTYPE_F16)
			accumulate_usual(r, KVP_DTYPE_F16, w, acc);
		else
			accumulate_usual(r, KVP_DTYPE_BF16, w, acc);
		return;
	}
	if (direct(r, w->nq)) {
		accumulate_direct(r, w, acc);
		return;
	}
	for (uint32_t t = 0; t < r->n;) {
		struct kvp_rows f = decoded_rows(r, t, x);

		accumulate_direct(&f, &part, acc);
		t += f.n;
		part.w = w->w + t;
		part.fade = NULL;
	}
}

static void score_codes(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	if (!kvp_score_codes_avx512(r, q, s, s_stride))
		kvp_score_float_avx512(r, q, s, s_stride);
}

static void accumulate_codes(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	if (!kvp_accumulate_words(r, w, acc))
		kvp_accumulate_float_avx512(r, w, acc);
}

void kvp_attend_init_avx512(struct kvp_kernels *k)
{
	for (uint32_t f = 0; f < KVP_FORMS; f++) {
		k->attend[f].score = f < KVP_FORM_INT8 ? kvp_score_float_avx512 : score_codes;
		k->attend[f].accumulate =
			f < KVP_FORM_INT8 ? kvp_accumulate_float_avx512 : accumulate_codes;
	}
	k->dsp.softmax = softmax_avx512;
}
