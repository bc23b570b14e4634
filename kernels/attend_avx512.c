/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over rows. Two ways:
 *  - integers (VNNI), for codes that are few bits and share one scale per row (tq) or have their
 *    scales folded into the query (kivi K);
 *  - floats, four queries against four tokens at a time, for everything else.
 */
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx512.h"

#include <math.h>

#define TILE       4u /* queries, and tokens, handled together */
#define DIM_MAX    KVP_PLANE_DIM_MAX
#define AHEAD      16u    /* rows that are prefetched ahead */
#define PAIR_BYTES 16384u /* of words that are paired at a time */

/* ---- softmax ---- */

/* e^x for x <= 0, 0 below -87; as exp_nonpositive() of reference C. */
INLINE __m512 exp16(__m512 x)
{
	__mmask16 tiny = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_LE_OQ);
	__m512 n, f, p;

	n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p0f)),
		_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
	f = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e43p-1f), x);
	f = _mm512_fnmadd_ps(n, _mm512_set1_ps(-0x1.05c61p-29f), f);
	p = _mm512_set1_ps(0x1.6c16c2p-10f);
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.111112p-7f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.555556p-5f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.555556p-3f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.5f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
	p = _mm512_scalef_ps(p, n);
	return _mm512_mask_mov_ps(p, tiny, _mm512_setzero_ps());
}

INLINE __mmask16 first16(uint32_t n)
{
	return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
}

/* Lanes of [lo, hi) among those beginning at t. */
INLINE __mmask16 lanes(uint32_t t, uint32_t lo, uint32_t hi)
{
	__mmask16 below = hi > t ? first16(hi - t) : 0;
	__mmask16 before = lo > t ? first16(lo - t) : 0;

	return below & (__mmask16)~before;
}

static float softmax_avx512(const struct softmax *job, float *s, float m_old, float *ret_sum)
{
	const __m512 minus_inf = _mm512_set1_ps(-INFINITY);
	__m512 top = _mm512_set1_ps(m_old), sum = _mm512_setzero_ps(), shift;
	__mmask16 nan = 0;
	float max;

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
	for (uint32_t t = 0; t < job->n; t += 16) {
		__mmask16 in = first16(job->n - t);
		__m512 x = exp16(_mm512_sub_ps(_mm512_loadu_ps(s + t), shift));

		sum = _mm512_add_ps(sum, _mm512_maskz_mov_ps(in, x));
		_mm512_mask_storeu_ps(s + t, in, x);
	}
	*ret_sum = _mm512_reduce_add_ps(sum);
	return max;
}

/* ---- sums of registers ---- */

/* Per 128-bit lane: the four sums of v[0], v[1], v[2], v[3] in that lane. */
INLINE __m512 sum_lanes(const __m512 *v)
{
	__m512 a = _mm512_add_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
	__m512 b = _mm512_add_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));

	return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}

/* Lane k: the sum of the four lanes of c[k]. With sum_lanes(): [token][query]. */
INLINE __m512 sum_tokens(const __m512 *c)
{
	__m512 e = _mm512_add_ps(
		_mm512_shuffle_f32x4(c[0], c[1], 0x88), _mm512_shuffle_f32x4(c[0], c[1], 0xdd));
	__m512 f = _mm512_add_ps(
		_mm512_shuffle_f32x4(c[2], c[3], 0x88), _mm512_shuffle_f32x4(c[2], c[3], 0xdd));

	return _mm512_add_ps(_mm512_shuffle_f32x4(e, f, 0x88), _mm512_shuffle_f32x4(e, f, 0xdd));
}

/* [token][query] to rows of s; nt and nq of them are wanted. */
INLINE void store_tile(__m512 x, float *s, size_t s_stride, uint32_t nt, uint32_t nq)
{
	const __m512i turn =
		_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	__m128 row[TILE];
	__mmask8 m = (__mmask8)((1u << nt) - 1);

	x = _mm512_permutexvar_ps(turn, x);
	row[0] = _mm512_castps512_ps128(x);
	row[1] = _mm512_extractf32x4_ps(x, 1);
	row[2] = _mm512_extractf32x4_ps(x, 2);
	row[3] = _mm512_extractf32x4_ps(x, 3);
	for (uint32_t i = 0; i < nq; i++)
		_mm_mask_storeu_ps(s + i * s_stride, m, row[i]);
}

/* ---- integers: keys ---- */

/*
 * Words (16 bits) rather than bytes: bytes of centroids would cost 3e-3 of accuracy, and the
 * number of multiplications is the same. A block of 64 codes becomes two registers of 32 words, the
 * even channels and the odd ones. Levels are such that no sum of a row, or of WEIGHT_ROWS rows, can
 * leave 32 bits.
 */
#define BOOK_LEVELS   4095
#define QUERY_LEVELS  8191.0f  /* times 4095 times 64 products a lane at dim 1024 */
#define CODE_LEVELS   32767.0f /* times 15 */
#define WEIGHT_LEVELS 8191.0f
#define WEIGHT_ROWS   64u

/* Four queries as words in the order of row_words(), and what makes scores of integer dots. */
struct int_query {
	int16_t word[TILE][DIM_MAX] __attribute__((aligned(64)));
	float unit[16]; /* [token][query] pattern: per query */
	float bias[16]; /* to add after the token's scale applied */
};

INLINE __m512i query_words(const float *q, __m512 inv)
{
	return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(q), inv));
}

/* Even channels of 64 to the first 32 words, odd ones to the next. */
INLINE void split_words(const __m512i *x, int16_t *out)
{
	const __m512i even =
		_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
	const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));

	for (uint32_t j = 0; j < 4; j += 2) {
		_mm256_store_si256((__m256i *)(void *)(out + 8 * (size_t)j),
			_mm512_cvtepi32_epi16(_mm512_permutex2var_epi32(x[j], even, x[j + 1])));
		_mm256_store_si256((__m256i *)(void *)(out + 32 + 8 * (size_t)j),
			_mm512_cvtepi32_epi16(_mm512_permutex2var_epi32(x[j], odd, x[j + 1])));
	}
}

static void int_query_init(struct int_query *iq, const float *const *q, uint32_t dim, float levels,
	float value, const float *bias)
{
	for (uint32_t i = 0; i < TILE; i++) {
		__m512 max = _mm512_setzero_ps(), inv;
		float top;

		for (uint32_t c = 0; c < dim; c += 16)
			max = _mm512_max_ps(max, _mm512_abs_ps(_mm512_loadu_ps(q[i] + c)));
		top = _mm512_reduce_max_ps(max);
		inv = _mm512_set1_ps(top > 0.0f ? levels / top : 0.0f);
		for (uint32_t c = 0; c < dim; c += 64) {
			__m512i x[4];

			for (uint32_t j = 0; j < 4; j++)
				x[j] = query_words(q[i] + c + 16 * (size_t)j, inv);
			split_words(x, iq->word[i] + c);
		}
		for (uint32_t t = 0; t < TILE; t++) {
			iq->unit[TILE * t + i] = top / levels * value;
			iq->bias[TILE * t + i] = bias ? bias[i] : 0.0f;
		}
	}
}

/* Integer centroids: scales at which those of the Gaussian are nearly integers themselves. */
static const float book_scale[] = { 0.0f, 0.0f, 1879.59f, 1750.07f, 1417.68f };

/* Thirty-two words: the book twice, so that a lookup may ignore the fifth bit of an index. */
static __m512i book_words(const struct kvp_rows *r)
{
	int16_t book[32];

	for (uint32_t i = 0; i < 32; i++)
		book[i] = (int16_t)rne(clampf(r->cent[i % 16] * book_scale[r->bits], BOOK_LEVELS));
	return _mm512_loadu_si512(book);
}

/* A row's codes, or what a table makes of them, as words. */
INLINE void row_words(const struct kvp_rows *r, uint32_t t, uint32_t bits, uint32_t dim,
	int use_book, __m512i book, __m512i *words)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
	uint8_t code[DIM_MAX] __attribute__((aligned(64)));

	_mm_prefetch((const char *)(row + (ptrdiff_t)AHEAD * r->stride), _MM_HINT_T0);
	unpack_row(bits, dim, row, code);
	for (uint32_t b = 0; b < dim / 64; b++) {
		__m512i x = _mm512_load_si512(code + 64 * (size_t)b), y = _mm512_srli_epi16(x, 8);

		if (use_book) {
			x = _mm512_permutexvar_epi16(x, book);
			y = _mm512_permutexvar_epi16(y, book);
		} else {
			x = _mm512_and_si512(x, _mm512_set1_epi16(255));
		}
		words[2 * b] = x;
		words[2 * b + 1] = y;
	}
}

INLINE void int_score_rows(const struct kvp_rows *r, uint32_t first, uint32_t n,
	const struct int_query *iq, uint32_t nq, float *s, size_t s_stride, const float *scale,
	int use_book, __m512i book, uint32_t bits, uint32_t dim)
{
	const __m512 unit = _mm512_loadu_ps(iq->unit), bias = _mm512_loadu_ps(iq->bias);
	const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);

	for (uint32_t t = first; t < first + n; t += TILE) {
		uint32_t nt = first + n - t < TILE ? first + n - t : TILE;
		__m512 c[TILE], x, f;

		for (uint32_t j = 0; j < TILE; j++) {
			__m512i words[DIM_MAX / 32], sum[TILE];
			__m512 v[TILE];

			row_words(r, j < nt ? t + j : t, bits, dim, use_book, book, words);
			for (uint32_t i = 0; i < TILE; i++)
				sum[i] = _mm512_setzero_si512();
			for (uint32_t b = 0; b < dim / 32; b++)
				for (uint32_t i = 0; i < TILE; i++)
					sum[i] = _mm512_dpwssd_epi32(sum[i], words[b],
						_mm512_load_si512(iq->word[i] + 32 * (size_t)b));
			for (uint32_t i = 0; i < TILE; i++)
				v[i] = _mm512_cvtepi32_ps(sum[i]);
			c[j] = sum_lanes(v);
		}
		f = _mm512_maskz_loadu_ps((__mmask16)((1u << nt) - 1), scale + t);
		x = _mm512_mul_ps(sum_tokens(c), unit);
		x = _mm512_fmadd_ps(x, _mm512_permutexvar_ps(spread, f), bias);
		store_tile(x, s + t, s_stride, nt, nq);
	}
}

#define INT_SCORE(bits, r, first, n, iq, nq, s, stride, scale, use_book, book)                     \
	do {                                                                                       \
		if ((r)->dim == 128)                                                               \
			int_score_rows(                                                            \
				r, first, n, iq, nq, s, stride, scale, use_book, book, bits, 128); \
		else                                                                               \
			int_score_rows(r, first, n, iq, nq, s, stride, scale, use_book, book,      \
				bits, (r)->dim);                                                   \
	} while (0)

static void int_score(const struct kvp_rows *r, uint32_t first, uint32_t n,
	const struct int_query *iq, uint32_t nq, float *s, size_t s_stride, const float *scale,
	int use_book, __m512i book)
{
	if (r->bits == 4)
		INT_SCORE(4, r, first, n, iq, nq, s, s_stride, scale, use_book, book);
	else if (r->bits == 3)
		INT_SCORE(3, r, first, n, iq, nq, s, s_stride, scale, use_book, book);
	else
		INT_SCORE(2, r, first, n, iq, nq, s, s_stride, scale, use_book, book);
}

/* The row scalars of tq. */
static void tq_scales(const struct kvp_rows *r, float *scale)
{
	if (!r->format) {
		load_halves(r->scale, r->n, r->factor, scale);
		return;
	}
	for (uint32_t t = 0; t < r->n; t++)
		scale[t] = load_scalar_wide(r->scale + 4 * (size_t)t, r->factor);
}

/* Queries i .. i + 3; beyond the last one the last is repeated, and not stored. */
static void tile_queries(const float *q, uint32_t dim, uint32_t i, uint32_t nq, const float **tile)
{
	for (uint32_t j = 0; j < TILE; j++)
		tile[j] = q + (size_t)(i + j < nq ? i + j : nq - 1) * dim;
}

static void score_tq(
	const struct kvp_rows *r, const float *q, uint32_t nq, float *s, size_t s_stride)
{
	float scale[ATTEND_CHUNK];
	const float *tile[TILE];
	struct int_query iq;
	__m512i book;

	if (r->dim % 64) {
		kvp_score_c(r, q, nq, s, s_stride);
		return;
	}
	tq_scales(r, scale);
	book = book_words(r);
	for (uint32_t i = 0; i < nq; i += TILE) {
		tile_queries(q, r->dim, i, nq, tile);
		int_query_init(&iq, tile, r->dim, QUERY_LEVELS, 1.0f / book_scale[r->bits], NULL);
		int_score(r, 0, r->n, &iq, nq - i < TILE ? nq - i : TILE, s + i * s_stride,
			s_stride, scale, 1, book);
	}
}

INLINE __m512 halves16(const uint8_t *p, uint32_t c, float scale)
{
	return load_half16(
		_mm256_loadu_si256((const __m256i *)(const void *)(p + 2 * (size_t)c)), scale);
}

/* q with the scales of group g folded in, and what the minima add. */
static void fold_query(const struct kvp_rows *r, uint32_t g, const float *const *q,
	float (*fold)[DIM_MAX], float *bias)
{
	const uint8_t *scale = r->scale + 2 * (size_t)g * r->dim;
	const uint8_t *min = r->minimum + 2 * (size_t)g * r->dim;

	for (uint32_t i = 0; i < TILE; i++) {
		__m512 sum = _mm512_setzero_ps();

		for (uint32_t c = 0; c < r->dim; c += 16) {
			__m512 x = _mm512_loadu_ps(q[i] + c);

			_mm512_storeu_ps(
				fold[i] + c, _mm512_mul_ps(x, halves16(scale, c, r->factor)));
			sum = _mm512_fmadd_ps(x, halves16(min, c, r->factor), sum);
		}
		bias[i] = _mm512_reduce_add_ps(sum);
	}
}

static void score_channels(
	const struct kvp_rows *r, const float *q, uint32_t nq, float *s, size_t s_stride)
{
	float fold[TILE][DIM_MAX], bias[TILE], one[ATTEND_CHUNK];
	const float *tile[TILE];
	const float *const folded[TILE] = { fold[0], fold[1], fold[2], fold[3] };
	struct int_query iq;

	for (uint32_t t = 0; t < r->n; t++)
		one[t] = 1.0f;
	for (uint32_t i = 0; i < nq; i += TILE) {
		tile_queries(q, r->dim, i, nq, tile);
		for (uint32_t t = 0; t < r->n; t += r->group) {
			uint32_t n = r->n - t < r->group ? r->n - t : r->group;

			fold_query(r, t / r->group, tile, fold, bias);
			int_query_init(&iq, folded, r->dim, CODE_LEVELS, 1.0f, bias);
			int_score(r, t, n, &iq, nq - i < TILE ? nq - i : TILE, s + i * s_stride,
				s_stride, one, 0, _mm512_setzero_si512());
		}
	}
}

/* ---- integers: values ---- */

/* Weights of one query times the rows' scales, as words; hostile negative scales count as 0. */
struct int_weights {
	int16_t word[WEIGHT_ROWS];
	float unit;
};

static void int_weights_init(struct int_weights *iw, const float *w, const float *scale, uint32_t n)
{
	float f[WEIGHT_ROWS];
	__m512 max = _mm512_setzero_ps(), inv;
	float top;

	for (uint32_t t = 0; t < WEIGHT_ROWS; t += 16) {
		__mmask16 in = t < n ? first16(n - t) : 0;
		__m512 x = _mm512_mul_ps(
			_mm512_maskz_loadu_ps(in, w + t), _mm512_maskz_loadu_ps(in, scale + t));

		max = _mm512_max_ps(max, x);
		_mm512_storeu_ps(f + t, x);
	}
	top = _mm512_reduce_max_ps(max);
	inv = _mm512_set1_ps(top > 0.0f ? WEIGHT_LEVELS / top : 0.0f);
	for (uint32_t t = 0; t < WEIGHT_ROWS; t += 16) {
		__m512i x = _mm512_cvtps_epi32(_mm512_max_ps(
			_mm512_mul_ps(_mm512_loadu_ps(f + t), inv), _mm512_setzero_ps()));

		_mm256_storeu_si256((__m256i *)(void *)(iw->word + t), _mm512_cvtepi32_epi16(x));
	}
	iw->unit = top / WEIGHT_LEVELS;
}

INLINE __m512i pair_of(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, sizeof x);
	return _mm512_set1_epi32(x);
}

/*
 * acc of 64 channels += unit * x. 128-bit lane L of x[0] holds channels 16 L + 0, 2, 4, 6, of x[1]
 * 16 L + 8, 10, 12, 14; x[2] and x[3] the same plus 1: so do row_words() and unpacking pairs.
 */
INLINE void int_flush(const __m512i *x, float unit, float *acc)
{
	__m512i y[4], a, b, c, d;

	y[0] = _mm512_unpacklo_epi32(x[0], x[2]);
	y[1] = _mm512_unpackhi_epi32(x[0], x[2]);
	y[2] = _mm512_unpacklo_epi32(x[1], x[3]);
	y[3] = _mm512_unpackhi_epi32(x[1], x[3]);
	a = _mm512_shuffle_i32x4(y[0], y[1], 0x44);
	b = _mm512_shuffle_i32x4(y[2], y[3], 0x44);
	c = _mm512_shuffle_i32x4(y[0], y[1], 0xee);
	d = _mm512_shuffle_i32x4(y[2], y[3], 0xee);
	y[0] = _mm512_shuffle_i32x4(a, b, 0x88);
	y[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
	y[2] = _mm512_shuffle_i32x4(c, d, 0x88);
	y[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
	for (uint32_t j = 0; j < 4; j++) {
		float *p = acc + 16 * (size_t)j;

		_mm512_storeu_ps(p, _mm512_fmadd_ps(_mm512_cvtepi32_ps(y[j]), _mm512_set1_ps(unit),
					    _mm512_loadu_ps(p)));
	}
}

/* Up to four queries over all pairs of rows, for one block of 64 channels. */
INLINE void int_accumulate(const __m512i *pairs, uint32_t n_pairs, uint32_t stride,
	const struct int_weights *iw, uint32_t nq, float value, float *acc, uint32_t dim)
{
	__m512i sum[TILE][4];

	for (uint32_t i = 0; i < TILE; i++)
		for (uint32_t j = 0; j < 4; j++)
			sum[i][j] = _mm512_setzero_si512();
	for (uint32_t p = 0; p < n_pairs; p++) {
		for (uint32_t i = 0; i < TILE; i++) {
			__m512i w = pair_of(iw[i].word + 2 * (size_t)p);

			for (uint32_t j = 0; j < 4; j++)
				sum[i][j] =
					_mm512_dpwssd_epi32(sum[i][j], pairs[p * stride + j], w);
		}
	}
	for (uint32_t i = 0; i < nq; i++)
		int_flush(sum[i], iw[i].unit * value, acc + (size_t)i * dim);
}

/* Pairs of rows, word by word: [pair][block of 64 channels][4 registers]. */
INLINE void pairs_of(const struct kvp_rows *r, uint32_t first, uint32_t n, __m512i book,
	uint32_t bits, uint32_t dim, __m512i *pairs)
{
	__m512i a[DIM_MAX / 32], b[DIM_MAX / 32];

	for (uint32_t t = 0; t < n; t += 2) {
		row_words(r, first + t, bits, dim, 1, book, a);
		row_words(r, first + (t + 1 < n ? t + 1 : t), bits, dim, 1, book, b);
		for (uint32_t c = 0; c < dim / 32; c++) {
			*pairs++ = _mm512_unpacklo_epi16(a[c], b[c]);
			*pairs++ = _mm512_unpackhi_epi16(a[c], b[c]);
		}
	}
}

static void pairs_tq(
	const struct kvp_rows *r, uint32_t first, uint32_t n, __m512i book, __m512i *pairs)
{
	if (r->dim == 128 && r->bits == 4)
		pairs_of(r, first, n, book, 4, 128, pairs);
	else if (r->dim == 128 && r->bits == 3)
		pairs_of(r, first, n, book, 3, 128, pairs);
	else if (r->dim == 128 && r->bits == 2)
		pairs_of(r, first, n, book, 2, 128, pairs);
	else
		pairs_of(r, first, n, book, r->bits, r->dim, pairs);
}

static void accumulate_tq(
	const struct kvp_rows *r, const float *w, size_t w_stride, uint32_t nq, float *acc)
{
	__m512i pairs[PAIR_BYTES / 64];
	struct int_weights iw[TILE];
	uint32_t sub =
		PAIR_BYTES / 2 / r->dim < WEIGHT_ROWS ? PAIR_BYTES / 2 / r->dim : WEIGHT_ROWS;
	float scale[ATTEND_CHUNK];
	__m512i book;

	if (r->dim % 64) {
		kvp_accumulate_c(r, w, w_stride, nq, acc);
		return;
	}
	tq_scales(r, scale);
	book = book_words(r);
	for (uint32_t t = 0; t < r->n; t += sub) {
		uint32_t n = r->n - t < sub ? r->n - t : sub;

		pairs_tq(r, t, n, book, pairs);
		for (uint32_t i = 0; i < nq; i += TILE) {
			uint32_t m = nq - i < TILE ? nq - i : TILE;

			for (uint32_t j = 0; j < TILE; j++)
				int_weights_init(&iw[j], w + (j < m ? i + j : i) * w_stride + t,
					scale + t, n);
			for (uint32_t c = 0; c < r->dim; c += 64)
				int_accumulate(pairs + c / 16, (n + 1) / 2, r->dim / 16, iw, m,
					1.0f / book_scale[r->bits], acc + (size_t)i * r->dim + c,
					r->dim);
		}
	}
}

/* ---- floats ---- */

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

INLINE void float_row(const struct kvp_rows *r, uint32_t t, float *x)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
	const char *next = (const char *)row + (ptrdiff_t)AHEAD * r->stride;

	switch (r->family) {
	case KVP_FAMILY_NATIVE:
		for (uint32_t i = 0; i < r->dim / 16; i++) {
			if (i % 2 == 0)
				_mm_prefetch(next + 32 * (size_t)i, _MM_HINT_T0);
			_mm512_storeu_ps(x + 16 * (size_t)i, load16(row, r->format, i));
		}
		break;
	case KVP_FAMILY_FP8:
	case KVP_FAMILY_INT8: {
		__m512 s = _mm512_set1_ps(load_half(r->scale + 2 * (size_t)t, r->factor));

		for (uint32_t i = 0; i < r->dim / 16; i++)
			_mm512_storeu_ps(x + 16 * (size_t)i,
				_mm512_mul_ps(byte_values(r->format, row, i), s));
		break;
	}
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
	const struct kvp_rows *r, const float *q, uint32_t nq, float *s, size_t s_stride)
{
	float x[TILE * DIM_MAX] __attribute__((aligned(64)));
	const float *tile[TILE];

	if (r->dim % 16) {
		kvp_score_c(r, q, nq, s, s_stride);
		return;
	}
	for (uint32_t t = 0; t < r->n; t += TILE) {
		float_rows(r, t, x);
		for (uint32_t i = 0; i < nq; i += TILE) {
			__m512 v[TILE][TILE], c[TILE];

			tile_queries(q, r->dim, i, nq, tile);
			for (uint32_t j = 0; j < TILE; j++)
				for (uint32_t k = 0; k < TILE; k++)
					v[j][k] = _mm512_setzero_ps();
			for (uint32_t d = 0; d < r->dim; d += 16) {
				__m512 row[TILE];

				for (uint32_t j = 0; j < TILE; j++)
					row[j] = _mm512_load_ps(x + (size_t)j * r->dim + d);
				for (uint32_t k = 0; k < TILE; k++) {
					__m512 y = _mm512_loadu_ps(tile[k] + d);

					for (uint32_t j = 0; j < TILE; j++)
						v[j][k] = _mm512_fmadd_ps(row[j], y, v[j][k]);
				}
			}
			for (uint32_t j = 0; j < TILE; j++)
				c[j] = sum_lanes(v[j]);
			store_tile(sum_tokens(c), s + i * s_stride + t, s_stride,
				r->n - t < TILE ? r->n - t : TILE, nq - i < TILE ? nq - i : TILE);
		}
	}
}

static void accumulate_float(
	const struct kvp_rows *r, const float *w, size_t w_stride, uint32_t nq, float *acc)
{
	float x[TILE * DIM_MAX] __attribute__((aligned(64)));

	if (r->dim % 16) {
		kvp_accumulate_c(r, w, w_stride, nq, acc);
		return;
	}
	for (uint32_t t = 0; t < r->n; t += TILE) {
		float_rows(r, t, x);
		for (uint32_t i = 0; i < nq; i++) {
			float *a = acc + (size_t)i * r->dim;
			__m512 f[TILE];

			for (uint32_t j = 0; j < TILE; j++)
				f[j] = _mm512_set1_ps(
					t + j < r->n ? w[i * w_stride + t + j] : 0.0f);
			for (uint32_t d = 0; d < r->dim; d += 16) {
				__m512 y = _mm512_loadu_ps(a + d);

				for (uint32_t j = 0; j < TILE; j++)
					y = _mm512_fmadd_ps(f[j],
						_mm512_load_ps(x + (size_t)j * r->dim + d), y);
				_mm512_storeu_ps(a + d, y);
			}
		}
	}
}

static void score_kivi(
	const struct kvp_rows *r, const float *q, uint32_t nq, float *s, size_t s_stride)
{
	if (r->per_channel && r->dim % 64 == 0)
		score_channels(r, q, nq, s, s_stride);
	else
		score_float(r, q, nq, s, s_stride);
}

void kvp_attend_init_avx512(struct kvp_kernels *k)
{
	for (uint32_t f = 0; f < KVP_FAMILY_MAX_; f++) {
		k->codec[f].score = score_float;
		k->codec[f].accumulate = accumulate_float;
	}
	k->codec[KVP_FAMILY_KIVI].score = score_kivi;
	k->codec[KVP_FAMILY_TQ].score = score_tq;
	k->codec[KVP_FAMILY_TQ].accumulate = accumulate_tq;
	k->dsp.softmax = softmax_avx512;
}
