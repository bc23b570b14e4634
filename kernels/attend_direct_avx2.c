/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in AVX2 over native and fp8 rows, converted on the way into fp32 multiplications. With
 * four queries a channel of a row takes four multiplications and at most one conversion: whatever
 * else is to be done fits beside the multiplications, two of which begin each cycle.
 *
 * fp8 becomes fp16 rows in the first cache: vcvtph2ps takes them from there at no other cost than
 * of loading floats.
 */
#include "kernels/attend_avx2.h"

#define BLOCK_ROWS 64u /* whose values are in the first cache for all channels */
#define KEY_ROWS   16u /* of fp8, that are converted at a time */
#define HALVES_DIM 256u

/* ---- fp8 to fp16 ---- */

/*
 * 32 codes to fp16 less a factor 256 (e4m3). Sign and exponent move to where fp16 has them, in the
 * upper bytes and the lower bytes of words in turn; what is no number becomes 0.
 */
INLINE void halves32(const uint8_t *row, int e4m3, uint8_t *to)
{
	const __m256i size = _mm256_set1_epi8(0x7f), mask = _mm256_set1_epi16((short)0xbf80);
	__m256i c = _mm256_loadu_si256((const void *)row), even, odd, x, y;

	x = _mm256_cmpgt_epi8(_mm256_and_si256(c, size), _mm256_set1_epi8(e4m3 ? 0x7e : 0x7b));
	c = _mm256_andnot_si256(x, c);
	even = _mm256_slli_epi16(c, 8);
	odd = _mm256_and_si256(c, _mm256_set1_epi16((short)0xff00));
	if (e4m3) {
		even = _mm256_and_si256(_mm256_srai_epi16(even, 1), mask);
		odd = _mm256_and_si256(_mm256_srai_epi16(c, 1), mask);
	}
	x = _mm256_unpacklo_epi16(even, odd);
	y = _mm256_unpackhi_epi16(even, odd);
	_mm256_storeu_si256((void *)to, x);
	_mm256_storeu_si256((void *)(to + 32), y);
}

/*
 * Channels 8 i .. 8 i + 7 of a row, of fp8 as halves32() leaves them: of each four eights the
 * second and the third have changed places.
 */
INLINE __m256 values8(const uint8_t *row, uint32_t format, int halves, uint32_t i)
{
	if (halves)
		i = i / 4 * 4 + i % 2 * 2 + i / 2 % 2;
	return load8(row, format, i);
}

/* n rows from t on, the last again for those beyond. */
INLINE void halves_block(
	const struct kvp_rows *r, int e4m3, uint32_t dim, uint32_t t, uint32_t n, uint8_t *to)
{
	for (uint32_t j = 0; j < n; j++, to += 2 * (size_t)dim) {
		const uint8_t *row = r->codes + (ptrdiff_t)least(t + j, r->n - 1) * r->stride;

		for (uint32_t c = 0; c < dim; c += 32)
			halves32(row + c, e4m3, to + 2 * (size_t)c);
	}
}

/* Not inline: what it writes is to be memory, where vcvtph2ps finds it. */
static __attribute__((noinline)) void halves_rows(
	const struct kvp_rows *r, uint32_t t, uint32_t n, uint8_t *to)
{
	if (r->format == KVP_CODEC_FP8_E4M3)
		halves_block(r, 1, r->dim, t, n, to);
	else
		halves_block(r, 0, r->dim, t, n, to);
}

/* scale: with TILE zeros behind */
static void row_scales(const struct kvp_rows *r, float *scale)
{
	load_halves(r->scale, r->n, r->factor, scale);
	for (uint32_t t = 0; r->format == KVP_CODEC_FP8_E4M3 && t < r->n; t++)
		scale[t] *= 256.0f;
	_mm_storeu_ps(scale + r->n, _mm_setzero_ps());
}

/* ---- keys ---- */

/* 8 channels of two rows against four queries, or of four against two or one; sum: [query][row]. */
INLINE void multiply_8(const uint8_t *const *row, uint32_t format, int halves, uint32_t c,
	uint32_t m, const float *const *q, __m256 *sum)
{
	const uint32_t rows = m == 4 ? 2 : 4;
	__m256 y[4];

	for (uint32_t j = 0; j < rows; j++)
		y[j] = values8(row[j], format, halves, c / 8);
	for (uint32_t i = 0; i < m; i++) {
		__m256 z = _mm256_loadu_ps(q[i] + c);

		once(z);
		for (uint32_t j = 0; j < rows; j++)
			sum[i * rows + j] = _mm256_fmadd_ps(y[j], z, sum[i * rows + j]);
	}
}

/* Rows t .. of r, which lie at row[], against m queries. */
INLINE void multiply_rows(const struct kvp_rows *r, uint32_t t, const uint8_t *const *row,
	uint32_t format, int halves, uint32_t dim, uint32_t m, const float *const *q, int fetch,
	__m256 *sum)
{
	struct fetch f = { 0 };

	for (uint32_t i = 0; i < (m == 1 ? 4 : 8); i++)
		sum[i] = _mm256_setzero_ps();
	if (!fixed(dim)) {
		if (fetch && t % TILE == 0)
			fetch_next(r, t);
		for (uint32_t c = 0; c < dim; c += 8)
			multiply_8(row, format, halves, c, m, q, sum);
		return;
	}
	if (fetch)
		f = fetch_far(r, t / TILE * TILE);
	UNROLL for (uint32_t c = 0; c < 128; c += 8)
	{
		if (c % 32 == 0)
			fetch_part(&f, t % TILE * 2 + c / 32);
		if (m < 4 && c % 32 == 16)
			fetch_part(&f, 4 + c / 32);
		multiply_8(row, format, halves, c, m, q, sum);
	}
}

/* Sums of lanes, as in multiply_rows(), times scale (of the rows; NULL: 1), to s. */
INLINE void store_sums(
	const __m256 *sum, uint32_t m, uint32_t nq, const float *scale, float *s, size_t s_stride)
{
	__m256 a = sum_halves(sum), b = m == 1 ? a : sum_halves(sum + 4);
	__m256 x = _mm256_add_ps(
		_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));

	if (scale)
		x = _mm256_mul_ps(x, spread_rows(scale, m));
	store_tile(x, m, nq, s, s_stride);
}

/* m queries of which nq are wanted. halves: rows are fp8. */
INLINE void score_rows(const struct kvp_rows *r, uint32_t format, int halves, uint32_t dim,
	uint32_t m, const float *const *q, uint32_t nq, int fetch, const float *scale, float *s,
	size_t s_stride)
{
	const uint32_t rows = m == 4 ? 2 : 4;
	uint8_t half[KEY_ROWS * 2 * HALVES_DIM];

	for (uint32_t t = 0; t < r->n; t += rows) {
		const uint8_t *row[4];
		__m256 sum[8];

		if (halves && t % KEY_ROWS == 0)
			halves_rows(r, t, KEY_ROWS, half);
		for (uint32_t j = 0; j < rows; j++)
			row[j] = halves ? half + 2 * ((t + j) % KEY_ROWS) * (size_t)dim
					: r->codes + (ptrdiff_t)least(t + j, r->n - 1) * r->stride;
		multiply_rows(r, t, row, format, halves, dim, m, q, fetch, sum);
		store_sums(sum, m, nq, halves ? scale + t : NULL, s + t, s_stride);
	}
}

/* Four queries at a time where there are more than two, with the last again for a missing fourth.
 */
INLINE void score_direct(const struct kvp_rows *r, uint32_t format, int halves,
	const struct kvp_queries *q, const float *scale, float *s, size_t s_stride)
{
	const uint32_t dim = r->dim;

	for (uint32_t i = 0; i < q->n; i += TILE) {
		uint32_t nq = least(q->n - i, TILE);
		float *to = s + i * s_stride;
		const float *tile[TILE];

		for (uint32_t j = 0; j < TILE; j++)
			tile[j] = q->f + (size_t)least(i + j, q->n - 1) * dim;
		if (KVP_SPECIALIZE && nq > 2 && dim == 128)
			score_rows(r, format, halves, 128, 4, tile, nq, !i, scale, to, s_stride);
		else if (nq > 2)
			score_rows(r, format, halves, dim, 4, tile, nq, !i, scale, to, s_stride);
		else if (nq == 2)
			score_rows(r, format, halves, dim, 2, tile, 2, !i, scale, to, s_stride);
		else
			score_rows(r, format, halves, dim, 1, tile, 1, !i, scale, to, s_stride);
	}
}

/* ---- values ---- */

/* A block of rows of one format. */
struct block {
	const uint8_t *row;
	ptrdiff_t stride;
	uint32_t n;
};

/* Weights of m queries, of which nq are wanted, and where their sums go. */
struct block_weights {
	const float *w[TILE];
	float fade[TILE];
	float *acc[TILE];
	uint32_t nq;
	float scaled[TILE][BLOCK_ROWS];
};

/* 8 k channels of row t of the block times the weights of m queries. */
INLINE void add_row(const uint8_t *row, uint32_t format, int halves, uint32_t k, uint32_t m,
	const struct block_weights *w, size_t t, __m256 *sum)
{
	__m256 x[4];

	for (uint32_t j = 0; j < k; j++)
		x[j] = values8(row, format, halves, j);
	for (uint32_t i = 0; i < m; i++) {
		__m256 y = _mm256_broadcast_ss(w->w[i] + t);

		for (uint32_t j = 0; j < k; j++)
			sum[i * k + j] = _mm256_fmadd_ps(x[j], y, sum[i * k + j]);
	}
}

/* 8 k channels from c on times the weights of m queries; `parts` parts are fetched, from `at` on.
 */
INLINE void add_strip(const struct block *b, uint32_t format, int halves, uint32_t c, uint32_t k,
	uint32_t m, const struct block_weights *w, const struct kvp_rows *r, uint32_t at,
	uint32_t parts)
{
	const uint8_t *row = b->row + (format == KVP_DTYPE_F32 ? 4 : 2) * (size_t)c;
	__m256 sum[8];
	size_t t = 0;

	if (halves)
		row = b->row + c / 32 * 64 + c % 32; /* see values8(): c % 32 is 0 or 16 */
	for (uint32_t i = 0; i < m * k; i++)
		sum[i] = _mm256_setzero_ps();
	for (; t + TILE <= b->n; t += TILE) {
		if (parts && t % FETCH_ROWS == 0)
			fetch_some(r, at + (uint32_t)t / FETCH_ROWS * parts, parts);
		UNROLL for (uint32_t j = 0; j < TILE; j++, row += b->stride)
			add_row(row, format, halves, k, m, w, t + j, sum);
	}
	for (; t < b->n; t++, row += b->stride)
		add_row(row, format, halves, k, m, w, t, sum);
	for (uint32_t i = 0; i < m && i < w->nq; i++) {
		for (uint32_t j = 0; j < k; j++) {
			float *a = w->acc[i] + c + 8 * (size_t)j;

			_mm256_storeu_ps(a, _mm256_fmadd_ps(_mm256_loadu_ps(a),
						    _mm256_set1_ps(w->fade[i]), sum[i * k + j]));
		}
	}
}

/* Block by block and strip by strip all that is to be fetched meanwhile has its turn. */
INLINE void add_block(const struct block *b, uint32_t format, int halves, uint32_t dim, uint32_t m,
	const struct block_weights *w, const struct kvp_rows *r, uint32_t at, int fetch)
{
	const uint32_t k = m == 4 ? 2 : 4, strips = dim / (8 * k);
	const uint32_t parts = fetch && strips ? fetch_share(strips) : 0;
	uint32_t c = 0;

	for (; c + 8 * k <= dim; c += 8 * k, at += fetch_turns(b->n) * parts)
		add_strip(b, format, halves, c, k, m, w, r, at, parts);
	for (; c < dim; c += 8)
		add_strip(b, format, halves, c, 1, m, w, r, 0, 0);
}

/* Rows [t, t + n) and weights for up to four queries from i on. */
INLINE void weights_init(struct block_weights *b, const struct kvp_weights *w, const float *scale,
	uint32_t dim, uint32_t i, uint32_t t, uint32_t n, float *acc)
{
	b->nq = least(w->nq - i, TILE);
	for (uint32_t j = 0; j < TILE; j++) {
		uint32_t at = least(i + j, w->nq - 1);

		b->w[j] = w->w + at * w->stride + t;
		b->fade[j] = t ? 1.0f : w->fade[at];
		b->acc[j] = acc + (size_t)at * dim;
		if (!scale)
			continue;
		for (uint32_t k = 0; k < n; k++)
			b->scaled[j][k] = b->w[j][k] * scale[t + k];
		b->w[j] = b->scaled[j];
	}
}

INLINE void accumulate_direct(const struct kvp_rows *r, uint32_t format, int halves,
	const struct kvp_weights *w, const float *scale, float *acc)
{
	const uint32_t dim = r->dim;
	uint8_t half[BLOCK_ROWS * 2 * HALVES_DIM];
	struct block_weights weights;

	for (uint32_t t = 0; t < r->n; t += BLOCK_ROWS) {
		struct block b = { r->codes + (ptrdiff_t)t * r->stride, r->stride,
			least(r->n - t, BLOCK_ROWS) };

		if (halves) {
			halves_rows(r, t, b.n, half);
			b.row = half;
			b.stride = 2 * (ptrdiff_t)dim;
		}
		for (uint32_t i = 0; i < w->nq; i += TILE) {
			uint32_t at = t / TILE * FETCH_PARTS;

			weights_init(&weights, w, halves ? scale : NULL, dim, i, t, b.n, acc);
			if (weights.nq > 2)
				add_block(&b, format, halves, dim, 4, &weights, r, at, !i);
			else if (weights.nq == 2)
				add_block(&b, format, halves, dim, 2, &weights, r, at, !i);
			else
				add_block(&b, format, halves, dim, 1, &weights, r, at, !i);
		}
	}
}

/* ---- formats ---- */

#define PER_FORMAT(r, call)                            \
	do {                                           \
		if ((r)->form == KVP_FORM_FP8)         \
			call(KVP_DTYPE_F16, 1);        \
		else if ((r)->format == KVP_DTYPE_F32) \
			call(KVP_DTYPE_F32, 0);        \
		else if ((r)->format == KVP_DTYPE_F16) \
			call(KVP_DTYPE_F16, 0);        \
		else                                   \
			call(KVP_DTYPE_BF16, 0);       \
	} while (0)

static int fits(const struct kvp_rows *r)
{
	if (r->form == KVP_FORM_FP8)
		return r->dim % 32 == 0 && r->dim <= HALVES_DIM;
	return r->form == KVP_FORM_NATIVE && r->dim % 8 == 0;
}

int kvp_score_direct_avx2(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	float scale[ATTEND_CHUNK + TILE];

	if (!fits(r))
		return 0;
	if (r->form == KVP_FORM_FP8)
		row_scales(r, scale);
#define SCORE(format, halves) score_direct(r, format, halves, q, scale, s, s_stride)
	PER_FORMAT(r, SCORE);
#undef SCORE
	return 1;
}

int kvp_accumulate_direct_avx2(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	float scale[ATTEND_CHUNK + TILE];

	if (!fits(r))
		return 0;
	if (r->form == KVP_FORM_FP8)
		row_scales(r, scale);
#define ACCUMULATE(format, halves) accumulate_direct(r, format, halves, w, scale, acc)
	PER_FORMAT(r, ACCUMULATE);
#undef ACCUMULATE
	return 1;
}
