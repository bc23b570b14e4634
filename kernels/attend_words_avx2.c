/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over codes as integers in AVX2, for rows with one scale: 16-bit words as in
 * attend_vnni.c, multiplied and added in pairs (vpmaddwd), which halves the work of fp32.
 */
#include "kernels/attend_avx2.h"
#include "kernels/attend_words.h"

#define WORDS_DIM  512u /* a lane's sum of a row has dim / 8 products */
#define PAIR_ROWS  64u
#define PAIR_WORDS 8192u /* of rows that are paired at a time */

/* A code of 2 to 4 bits is looked up in a book, its words split into bytes; int8 is itself. */
struct codes {
	uint32_t bits;
	__m256i low, high;         /* bytes of the book */
	float value;               /* of a word that is 1 */
	float scale[ATTEND_CHUNK]; /* of a row */
	float add[ATTEND_CHUNK];   /* where there are minima: to each element of the row */
};

/* Centroids, or the odd numbers around 0; see attend_vnni.c. */
static void book_init(const struct kvp_rows *r, struct codes *c)
{
	const float scale = book_scale[r->bits], odd = (float)((1 << r->bits) - 1);
	uint8_t low[32], high[32];
	int32_t word[16];

	c->value = r->family == KVP_FAMILY_TQ ? 1.0f / scale : 0.5f;
	for (uint32_t i = 0; i < 16; i += 8) {
		__m256i at = _mm256_add_epi32(
			_mm256_set1_epi32((int)i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
		__m256 x = _mm256_sub_ps(
			_mm256_cvtepi32_ps(_mm256_add_epi32(at, at)), _mm256_set1_ps(odd));

		if (r->family == KVP_FAMILY_TQ)
			x = clamp8(
				_mm256_mul_ps(_mm256_loadu_ps(r->cent + i), _mm256_set1_ps(scale)),
				BOOK_LEVELS);
		_mm256_storeu_si256((void *)(word + i), _mm256_cvtps_epi32(x));
	}
	for (uint32_t i = 0; i < 32; i++) {
		low[i] = (uint8_t)word[i % 16];
		high[i] = (uint8_t)(word[i % 16] >> 8);
	}
	c->low = _mm256_loadu_si256((const void *)low);
	c->high = _mm256_loadu_si256((const void *)high);
}

static void codes_init(const struct kvp_rows *r, struct codes *c)
{
	const float half = 0.5f * (float)((1u << r->bits) - 1);

	c->bits = r->family == KVP_FAMILY_INT8 ? 8 : r->bits;
	c->value = 1.0f;
	if (c->bits < 8)
		book_init(r, c);
	if (r->family == KVP_FAMILY_TQ && r->format)
		for (uint32_t t = 0; t < r->n; t++)
			c->scale[t] = load_scalar_wide(r->scale + 4 * (size_t)t, r->factor);
	else
		load_halves(r->scale, r->n, r->factor, c->scale);
	if (!r->minimum)
		return;
	load_halves(r->minimum, r->n, r->factor, c->add);
	for (uint32_t t = 0; t < r->n; t++)
		c->add[t] += half * c->scale[t];
}

static int words_fit(const struct kvp_rows *r)
{
	return r->dim % KVP_QUERY_BLOCK == 0 && r->dim <= WORDS_DIM && r->groups <= 1 &&
	       !r->per_channel;
}

/* The codes of channels b .. b + 31, one a byte, of 2 or 4 bits where that is one piece of a row.
 */
INLINE __m256i codes_at(const uint8_t *row, uint32_t bits, uint32_t dim, uint32_t b)
{
	uint32_t part = dim * bits / 8;
	__m256i x = _mm256_loadu_si256((const void *)(row + b % part));

	x = _mm256_srli_epi16(x, (int)(b / part * bits));
	return _mm256_and_si256(x, _mm256_set1_epi8(bits == 4 ? 15 : 3));
}

/* Of each 32 channels 0-7 and 16-23, then 8-15 and 24-31. */
INLINE void row_words(const struct codes *c, const uint8_t *row, uint32_t dim, __m256i *words)
{
	int whole = c->bits == 4 || (c->bits == 2 && dim % 128 == 0);
	uint8_t code[WORDS_DIM];

	if (c->bits < 8 && !whole) {
		unpack_row(c->bits, dim, row, code);
		row = code;
	}
	for (uint32_t b = 0; b < dim; b += 32, words += 2) {
		__m256i x, y;

		if (c->bits == 4)
			x = codes_at(row, 4, dim, b);
		else if (whole)
			x = codes_at(row, 2, dim, b);
		else
			x = _mm256_loadu_si256((const void *)(row + b));
		if (c->bits < 8) {
			y = _mm256_shuffle_epi8(c->high, x);
			x = _mm256_shuffle_epi8(c->low, x);
		} else {
			y = _mm256_cmpgt_epi8(_mm256_setzero_si256(), x);
		}
		words[0] = _mm256_unpacklo_epi8(x, y);
		words[1] = _mm256_unpackhi_epi8(x, y);
	}
}

/* ---- keys ---- */

INLINE float largest(__m256 x)
{
	__m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));

	m = _mm_max_ps(m, _mm_movehl_ps(m, m));
	return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

INLINE __m256 magnitude(__m256 x)
{
	return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

void kvp_query_words_avx2(
	const float *q, uint32_t dim, int16_t *ret_word, float *ret_unit, float *ret_sum)
{
	__m256 sum = _mm256_setzero_ps(), size = sum, max = sum, inv;
	float top, levels;

	for (uint32_t c = 0; c < dim; c += 8) {
		__m256 x = _mm256_loadu_ps(q + c);

		sum = _mm256_add_ps(sum, x);
		size = _mm256_add_ps(size, magnitude(x));
		max = _mm256_max_ps(magnitude(x), max);
	}
	top = largest(max);
	levels = book_levels(top, sum8(size));
	inv = _mm256_set1_ps(top > 0.0f ? levels / top : 0.0f);
	for (uint32_t c = 0; c < dim; c += 32) {
		__m256i x[4];

		for (uint32_t j = 0; j < 4; j++)
			x[j] = _mm256_cvtps_epi32(
				_mm256_mul_ps(_mm256_loadu_ps(q + c + 8 * j), inv));
		for (uint32_t j = 0; j < 2; j++)
			_mm256_storeu_si256((void *)(ret_word + c + 16 * j),
				_mm256_permute4x64_epi64(_mm256_packs_epi32(x[j], x[j + 2]), 0xd8));
	}
	*ret_sum = sum8(sum);
	/* A query with NaN or infinities in it has no words: its scores are NaN. */
	*ret_unit = top / levels + 0.0f * *ret_sum;
}

/* Four rows against one query or two. */
INLINE void dot_rows(
	const __m256i *words, uint32_t n, const int16_t *const *q, uint32_t nq, __m128 *ret)
{
	__m256i sum[2][TILE];
	__m256 f[2][TILE];

	for (uint32_t i = 0; i < nq; i++)
		for (uint32_t j = 0; j < TILE; j++)
			sum[i][j] = _mm256_setzero_si256();
	for (uint32_t d = 0; d < n; d++) {
		for (uint32_t i = 0; i < nq; i++) {
			__m256i y = _mm256_loadu_si256((const void *)(q[i] + 16 * (size_t)d));

			for (uint32_t j = 0; j < TILE; j++)
				sum[i][j] = _mm256_add_epi32(
					sum[i][j], _mm256_madd_epi16(words[j * n + d], y));
		}
	}
	for (uint32_t i = 0; i < nq; i++) {
		for (uint32_t j = 0; j < TILE; j++)
			f[i][j] = _mm256_cvtepi32_ps(sum[i][j]);
		f[i][0] = _mm256_hadd_ps(
			_mm256_hadd_ps(f[i][0], f[i][1]), _mm256_hadd_ps(f[i][2], f[i][3]));
		ret[i] = _mm_add_ps(
			_mm256_castps256_ps128(f[i][0]), _mm256_extractf128_ps(f[i][0], 1));
	}
}

INLINE void score_words(const struct kvp_rows *r, const struct codes *c, uint32_t dim,
	const struct kvp_queries *q, float *s, size_t s_stride)
{
	__m256i words[TILE * WORDS_DIM / 16];
	const uint32_t n = dim / 16;

	for (uint32_t t = 0; t < r->n; t += TILE) {
		uint32_t nt = r->n - t < TILE ? r->n - t : TILE;
		float scale[TILE], add[TILE];

		fetch_next(r, t);
		for (uint32_t j = 0; j < TILE; j++) {
			uint32_t at = t + (j < nt ? j : nt - 1);

			row_words(c, r->codes + (ptrdiff_t)at * r->stride, dim, words + j * n);
			scale[j] = c->scale[at] * c->value;
			add[j] = r->minimum ? c->add[at] : 0.0f;
		}
		for (uint32_t i = 0; i < q->n; i += 2) {
			uint32_t nq = q->n - i < 2 ? 1 : 2;
			const int16_t *word[2] = { q->word + (size_t)i * dim,
				q->word + (size_t)(i + nq - 1) * dim };
			__m128 x[2];

			if (nq == 2)
				dot_rows(words, n, word, 2, x);
			else
				dot_rows(words, n, word, 1, x);
			for (uint32_t j = 0; j < nq; j++) {
				float four[TILE];

				x[j] = _mm_mul_ps(x[j], _mm_mul_ps(_mm_set1_ps(q->unit[i + j]),
								_mm_loadu_ps(scale)));
				x[j] = _mm_fmadd_ps(
					_mm_loadu_ps(add), _mm_set1_ps(q->sum[i + j]), x[j]);
				_mm_storeu_ps(four, x[j]);
				memcpy(s + (i + j) * s_stride + t, four, nt * sizeof *four);
			}
		}
	}
}

int kvp_score_words_avx2(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	struct codes c;

	if (!words_fit(r))
		return 0;
	codes_init(r, &c);
	if (r->dim == 128)
		score_words(r, &c, 128, q, s, s_stride);
	else
		score_words(r, &c, r->dim, q, s, s_stride);
	return 1;
}

/* ---- values ---- */

/* Weights of PAIR_ROWS rows, each times its row's scale, as words; and what the minima add. */
struct word_weights {
	int16_t word[PAIR_ROWS];
	float unit; /* of a product */
	float add;
};

static void weigh_rows(struct word_weights *ww, const struct kvp_rows *r, const struct codes *c,
	const float *w, uint32_t first, uint32_t n)
{
	__m256 max = _mm256_setzero_ps(), size = max, inv;
	float x[PAIR_ROWS], top, levels = LEVELS;

	ww->add = 0.0f;
	memset(x, 0, sizeof x);
	for (uint32_t t = 0; t < n; t++)
		x[t] = w[t] * c->scale[first + t];
	for (uint32_t t = 0; r->minimum && t < n; t++)
		ww->add += w[t] * c->add[first + t];
	for (uint32_t t = 0; t < PAIR_ROWS; t += 8) {
		__m256 y = magnitude(_mm256_loadu_ps(x + t));

		max = _mm256_max_ps(y, max);
		size = _mm256_add_ps(y, size);
	}
	top = largest(max);
	if (r->family == KVP_FAMILY_TQ)
		levels = book_levels(top, sum8(size));
	inv = _mm256_set1_ps(top > 0.0f ? levels / top : 0.0f);
	for (uint32_t t = 0; t < PAIR_ROWS; t += 16) {
		__m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + t), inv));
		__m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + t + 8), inv));

		_mm256_storeu_si256((void *)(ww->word + t),
			_mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
	}
	ww->unit = top / levels * c->value;
}

/* Words of rows in pairs: [pair][block of 32 channels][4 registers]. */
INLINE void pair_rows(const struct kvp_rows *r, const struct codes *c, uint32_t dim, uint32_t first,
	uint32_t n, __m256i *pairs)
{
	__m256i words[2][WORDS_DIM / 16];

	for (uint32_t t = first; t < first + n; t += 2) {
		const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;

		if ((t - first) % TILE == 0)
			fetch_next(r, t);
		row_words(c, row, dim, words[0]);
		row_words(c, t + 1 < first + n ? row + r->stride : row, dim, words[1]);
		for (uint32_t b = 0; b < dim / 16; b++) {
			*pairs++ = _mm256_unpacklo_epi16(words[0][b], words[1][b]);
			*pairs++ = _mm256_unpackhi_epi16(words[0][b], words[1][b]);
		}
	}
}

/* acc = acc * fade + unit * x + add, of 8 channels. */
INLINE void add_words(__m256i x, const struct word_weights *w, float fade, float *acc)
{
	__m256 y =
		_mm256_fmadd_ps(_mm256_loadu_ps(acc), _mm256_set1_ps(fade), _mm256_set1_ps(w->add));

	_mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(w->unit), y));
}

/* Pairs times the weights of one query or two, one block of 32 channels. */
INLINE void multiply_pairs(const __m256i *pairs, uint32_t n_pairs, size_t stride,
	const struct word_weights *w, uint32_t nq, const float *fade, float *acc, uint32_t dim)
{
	__m256i sum[2][4];

	for (uint32_t i = 0; i < nq; i++)
		for (uint32_t j = 0; j < 4; j++)
			sum[i][j] = _mm256_setzero_si256();
	for (size_t p = 0; p < n_pairs; p++, pairs += stride) {
		for (uint32_t i = 0; i < nq; i++) {
			int32_t two;
			__m256i y;

			memcpy(&two, w[i].word + 2 * p, sizeof two);
			y = _mm256_set1_epi32(two);
			for (uint32_t j = 0; j < 4; j++)
				sum[i][j] =
					_mm256_add_epi32(sum[i][j], _mm256_madd_epi16(pairs[j], y));
		}
	}
	for (uint32_t i = 0; i < nq; i++) {
		for (uint32_t j = 0; j < 4; j += 2) {
			float *a = acc + (size_t)i * dim + 4 * j;

			add_words(_mm256_permute2x128_si256(sum[i][j], sum[i][j + 1], 0x20), &w[i],
				fade[i], a);
			add_words(_mm256_permute2x128_si256(sum[i][j], sum[i][j + 1], 0x31), &w[i],
				fade[i], a + 16);
		}
	}
}

int kvp_accumulate_words_avx2(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	__m256i pairs[PAIR_WORDS / 16];
	uint32_t most = PAIR_WORDS / r->dim < PAIR_ROWS ? PAIR_WORDS / r->dim & ~3u : PAIR_ROWS;
	struct codes c;

	if (!words_fit(r))
		return 0;
	codes_init(r, &c);
	for (uint32_t t = 0; t < r->n; t += most) {
		uint32_t n = r->n - t < most ? r->n - t : most;

		if (r->dim == 128)
			pair_rows(r, &c, 128, t, n, pairs);
		else
			pair_rows(r, &c, r->dim, t, n, pairs);
		for (uint32_t i = 0; i < w->nq; i += 2) {
			uint32_t nq = w->nq - i < 2 ? 1 : 2;
			struct word_weights ww[2];
			float fade[2];

			for (uint32_t j = 0; j < nq; j++) {
				weigh_rows(&ww[j], r, &c, w->w + (i + j) * w->stride + t, t, n);
				fade[j] = t ? 1.0f : w->fade[i + j];
			}
			for (uint32_t b = 0; b < r->dim; b += 32) {
				float *a = acc + (size_t)i * r->dim + b;

				if (nq == 2)
					multiply_pairs(pairs + b / 8, (n + 1) / 2, r->dim / 8, ww,
						2, fade, a, r->dim);
				else
					multiply_pairs(pairs + b / 8, (n + 1) / 2, r->dim / 8, ww,
						1, fade, a, r->dim);
			}
		}
	}
	return 1;
}
