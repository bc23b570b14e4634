/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over codes as integers. A row becomes 16-bit words, the code itself or what a table
 * makes of it, times one float; vpdpwssd multiplies 32 of them at a time and sums in 32 bits.
 *
 * Words rather than bytes: a byte of centroid and a byte of query would cost 6e-3 of accuracy each,
 * and whoever splits both into two bytes needs three products where one of words does.
 * Levels are such that no sum can leave 32 bits: of 64 products of a lane of a row (dim 1024), or
 * of PAIR_ROWS rows.
 */
#include "kernels/attend_avx512.h"

#define BOOK_LEVELS 4095.0f
#define FINE_LEVELS 8191.0f  /* of what is multiplied with centroids */
#define CODE_LEVELS 32767.0f /* of what is multiplied with codes, at most 128 */
#define PAIR_ROWS   64u
#define PAIR_WORDS  8192u /* of rows that are paired at a time */
#define WORDS_MAX   (DIM_MAX / 32)

/*
 * A code of 2 to 4 bits is looked up in a book: of centroids (tq), or of the odd numbers around 0
 * (scale and minimum), which makes the rounding of what they are multiplied by matter less than
 * codes as they are would. A code of 8 bits is a signed byte.
 */
struct codes {
	uint32_t bits;
	__m512i book[2];           /* of 3 bits by the high bit */
	float value;               /* of a word that is 1 */
	float scale[ATTEND_CHUNK]; /* of a row of one group */
	float add[ATTEND_CHUNK];   /* where there are minima: to each element of the row */
};

/* ---- rows to words ---- */

/* Integer centroids: scales at which those of the Gaussian are nearly integers themselves. */
static const float book_scale[] = { 0.0f, 0.0f, 1879.59f, 1750.07f, 1417.68f };

/*
 * Tables of 32 words, looked up by the low five bits of a word of which only `bits` belong to the
 * code; so the centroids are repeated. Three bits lie in two places, hence two tables.
 */
static void book_init(const struct kvp_rows *r, struct codes *c)
{
	const float odd = (float)((1u << r->bits) - 1);
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i low = _mm512_and_si512(lane, _mm512_set1_epi32(r->bits == 4 ? 15 : 3));
	const __m512 max = _mm512_set1_ps(BOOK_LEVELS);
	__m512 x = _mm512_sub_ps(
		_mm512_cvtepi32_ps(_mm512_add_epi32(lane, lane)), _mm512_set1_ps(odd));

	c->value = 0.5f;
	if (r->family == KVP_FAMILY_TQ) {
		c->value = 1.0f / book_scale[r->bits];
		x = _mm512_mul_ps(_mm512_loadu_ps(r->cent), _mm512_set1_ps(book_scale[r->bits]));
	}
	x = _mm512_max_ps(_mm512_min_ps(x, max), _mm512_sub_ps(_mm512_setzero_ps(), max));
	for (int i = 0; i < 2; i++) {
		__m512i at = _mm512_add_epi32(low, _mm512_set1_epi32(4 * i));
		__m512i book = _mm512_cvtps_epi32(_mm512_permutexvar_ps(at, x));

		c->book[i] = _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(book));
	}
}

/*
 * Bytes that hold the codes of channels 64 b .. 64 b + 63, shifted so that each word begins with
 * the code of an even channel (even), or of an odd one. Above the code lies what may. dim is one of
 * words_fit().
 */
INLINE void code_words(
	const uint8_t *row, uint32_t bits, uint32_t dim, uint32_t b, __m512i *even, __m512i *odd)
{
	uint32_t width = bits == 4 ? 4 : 2, part = dim * width / 8;
	uint32_t lo = 64 * b / part * width, hi = (64 * b + 32) / part * width;
	__m512i x, shift;

	if (part % 64 == 0) {
		x = _mm512_loadu_si512(row + 64 * b % part);
		*even = _mm512_srli_epi16(x, lo);
		*odd = _mm512_srli_epi16(x, lo + 8);
		return;
	}
	if (part == 16) {
		shift = _mm512_setr_epi64(0, 0, 0x2000200020002, 0x2000200020002, 0x4000400040004,
			0x4000400040004, 0x6000600060006, 0x6000600060006);
		x = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)row));
	} else {
		shift = _mm512_inserti64x4(
			_mm512_set1_epi16((short)lo), _mm256_set1_epi16((short)hi), 1);
		x = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(
					       (const void *)(row + 64 * b % part))),
			_mm256_loadu_si256((const void *)(row + (64 * b + 32) % part)), 1);
	}
	*even = _mm512_srlv_epi16(x, shift);
	*odd = _mm512_srlv_epi16(x, _mm512_add_epi16(shift, _mm512_set1_epi16(8)));
}

/* Every second bit of x from the first on, in 32 bits. */
INLINE __mmask32 even_bits(uint64_t x)
{
	return (__mmask32)_pext_u64(x, UINT64_C(0x5555555555555555));
}

/* Of each block of 64 channels the even ones, then the odd ones: 32 words each. */
INLINE void row_words(
	const struct codes *c, const uint8_t *row, uint32_t bits, uint32_t dim, __m512i *words)
{
	for (uint32_t b = 0; b < dim / 64; b++, words += 2) {
		uint64_t top;
		__m512i x, y;

		if (bits == 8) {
			x = _mm512_loadu_si512(row + 64 * (size_t)b);
			words[0] = _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8);
			words[1] = _mm512_srai_epi16(x, 8);
			continue;
		}
		code_words(row, bits, dim, b, &x, &y);
		words[0] = _mm512_permutexvar_epi16(x, c->book[0]);
		words[1] = _mm512_permutexvar_epi16(y, c->book[0]);
		if (bits != 3)
			continue;
		memcpy(&top, row + dim / 4 + 8 * (size_t)b, sizeof top);
		words[0] = _mm512_mask_permutexvar_epi16(words[0], even_bits(top), x, c->book[1]);
		words[1] =
			_mm512_mask_permutexvar_epi16(words[1], even_bits(top >> 1), y, c->book[1]);
	}
}

static int words_fit(const struct kvp_rows *r)
{
	if (r->dim % 64)
		return 0;
	return r->family == KVP_FAMILY_INT8 || r->bits == 4 || r->dim == 64 || r->dim % 128 == 0;
}

/* ---- scales ---- */

/* Minima to the middle of the codes, from which the odd numbers are counted. */
static void add_middle(uint32_t bits, const float *scale, uint32_t n, float *min)
{
	const float half = 0.5f * (float)((1u << bits) - 1);

	for (uint32_t i = 0; i < n; i++)
		min[i] += half * scale[i];
}

static void codes_init(const struct kvp_rows *r, struct codes *c)
{
	c->bits = r->family == KVP_FAMILY_INT8 ? 8 : r->bits;
	c->value = 1.0f;
	if (c->bits < 8)
		book_init(r, c);
	if (r->family == KVP_FAMILY_TQ && r->format) {
		for (uint32_t t = 0; t < r->n; t++)
			c->scale[t] = load_scalar_wide(r->scale + 4 * (size_t)t, r->factor);
	} else if (r->groups <= 1) {
		load_halves(r->scale, r->n, r->factor, c->scale);
	}
	if (r->minimum && r->groups == 1) {
		load_halves(r->minimum, r->n, r->factor, c->add);
		add_middle(r->bits, c->scale, r->n, c->add);
	}
}

/* ---- keys ---- */

/* Even channels of 64 to the first 32 words, odd ones to the next. */
INLINE void split_words(const float *x, __m512 inv, int16_t *out)
{
	const __m512i even =
		_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
	const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));

	for (uint32_t j = 0; j < 64; j += 32) {
		__m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + j), inv));
		__m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + j + 16), inv));

		_mm256_storeu_si256((__m256i *)(void *)(out + j / 2),
			_mm512_cvtepi32_epi16(_mm512_permutex2var_epi32(a, even, b)));
		_mm256_storeu_si256((__m256i *)(void *)(out + 32 + j / 2),
			_mm512_cvtepi32_epi16(_mm512_permutex2var_epi32(a, odd, b)));
	}
}

/* Returns the value of a word that is 1. */
INLINE float query_words(const float *q, uint32_t dim, float levels, int16_t *word)
{
	__m512 max = _mm512_setzero_ps(), inv;
	float top;

	for (uint32_t c = 0; c < dim; c += 16)
		max = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(q + c)), max);
	top = _mm512_reduce_max_ps(max);
	inv = _mm512_set1_ps(top > 0.0f ? levels / top : 0.0f);
	for (uint32_t c = 0; c < dim; c += 64)
		split_words(q + c, inv, word + c);
	return top / levels;
}

void kvp_query_words_avx512(
	const float *q, uint32_t dim, int16_t *ret_word, float *ret_unit, float *ret_sum)
{
	__m512 sum = _mm512_setzero_ps();

	for (uint32_t c = 0; c < dim; c += 16)
		sum = _mm512_add_ps(sum, _mm512_loadu_ps(q + c));
	*ret_sum = _mm512_reduce_add_ps(sum);
	/* A query with NaN or infinities in it has no words: its scores are NaN. */
	*ret_unit = query_words(q, dim, FINE_LEVELS, ret_word) + 0.0f * *ret_sum;
}

/* Up to four queries. unit and add: [token][query], per query. */
struct word_queries {
	const int16_t *word[TILE];
	float unit[16];
	float add[16]; /* times the token's */
};

static void word_queries(struct word_queries *w, const struct kvp_queries *q, uint32_t dim,
	uint32_t first, float value)
{
	for (uint32_t i = 0; i < TILE; i++) {
		uint32_t at = least(first + i, q->n - 1);

		w->word[i] = q->word + (size_t)at * dim;
		for (uint32_t t = 0; t < TILE; t++) {
			w->unit[TILE * t + i] = q->unit[at] * value;
			w->add[TILE * t + i] = q->sum[at];
		}
	}
}

/* Rows [first, end) against m queries, of which nq are wanted. */
INLINE void score_words(const struct kvp_rows *r, const struct codes *c, uint32_t bits,
	uint32_t dim, uint32_t m, const struct word_queries *w, uint32_t nq, uint32_t first,
	uint32_t end, float *s, size_t s_stride)
{
	const __m512 unit = _mm512_loadu_ps(w->unit), add = _mm512_loadu_ps(w->add);

	for (uint32_t t = first; t < end; t += TILE) {
		uint32_t nt = least(end - t, TILE);
		__mmask16 in = (__mmask16)((1u << nt) - 1);
		const uint8_t *row[TILE];
		__m512 sums[TILE], x;

		fetch_next(r, t);
		tile_rows(r, t, row);
		for (uint32_t j = 0; j < TILE; j++) {
			__m512i words[WORDS_MAX], sum[TILE];
			__m512 v[TILE];

			row_words(c, row[j], bits, dim, words);
			for (uint32_t i = 0; i < TILE; i++)
				sum[i] = _mm512_setzero_si512();
			for (uint32_t b = 0; b < dim / 32; b++)
				for (uint32_t i = 0; i < m; i++)
					sum[i] = _mm512_dpwssd_epi32(sum[i], words[b],
						_mm512_loadu_si512(w->word[i] + 32 * (size_t)b));
			for (uint32_t i = 0; i < TILE; i++)
				v[i] = _mm512_cvtepi32_ps(sum[i]);
			sums[j] = sum_lanes(v);
		}
		x = _mm512_mul_ps(sum_tokens(sums), unit);
		x = _mm512_mul_ps(x, spread_tokens(_mm512_maskz_loadu_ps(in, c->scale + t)));
		if (r->minimum)
			x = _mm512_fmadd_ps(
				spread_tokens(_mm512_maskz_loadu_ps(in, c->add + t)), add, x);
		store_tile(x, s + t, s_stride, nt, nq);
	}
}

/* With everything that the compiler can unroll for the usual 128 channels. */
#define PER_BITS(bits, call)     \
	do {                     \
		switch (bits) {  \
		case 2:          \
			call(2); \
			break;   \
		case 3:          \
			call(3); \
			break;   \
		case 4:          \
			call(4); \
			break;   \
		default:         \
			call(8); \
			break;   \
		}                \
	} while (0)

static void score_tile(const struct kvp_rows *r, const struct codes *c,
	const struct word_queries *w, uint32_t nq, uint32_t first, uint32_t end, float *s,
	size_t s_stride)
{
#define SCORE(bits)                                                                            \
	do {                                                                                   \
		if (r->dim == 128 && nq == 1)                                                  \
			score_words(r, c, bits, 128, 1, w, nq, first, end, s, s_stride);       \
		else if (r->dim == 128)                                                        \
			score_words(r, c, bits, 128, TILE, w, nq, first, end, s, s_stride);    \
		else                                                                           \
			score_words(r, c, bits, r->dim, TILE, w, nq, first, end, s, s_stride); \
	} while (0)
	PER_BITS(c->bits, SCORE);
#undef SCORE
}

INLINE __m512 halves16(const uint8_t *p, uint32_t c, float scale)
{
	return load_half16(
		_mm256_loadu_si256((const __m256i *)(const void *)(p + 2 * (size_t)c)), scale);
}

/* Query i with the scales of group g of tokens folded in; what their minima add goes to add. */
static void fold_query(const struct kvp_rows *r, uint32_t g, const float *q, uint32_t i,
	int16_t *word, struct word_queries *w)
{
	const __m512 middle = _mm512_set1_ps((float)((1u << r->bits) - 1));
	const uint8_t *scale = r->scale + 2 * (size_t)g * r->dim;
	const uint8_t *min = r->minimum + 2 * (size_t)g * r->dim;
	__m512 sum = _mm512_setzero_ps();
	float fold[DIM_MAX], unit, add;

	for (uint32_t c = 0; c < r->dim; c += 16) {
		__m512 x = _mm512_loadu_ps(q + c);
		__m512 half = halves16(scale, c, 0.5f * r->factor);

		_mm512_storeu_ps(fold + c, _mm512_mul_ps(x, half));
		half = _mm512_fmadd_ps(half, middle, halves16(min, c, r->factor));
		sum = _mm512_fmadd_ps(x, half, sum);
	}
	add = _mm512_reduce_add_ps(sum);
	unit = query_words(fold, r->dim, CODE_LEVELS, word) + 0.0f * add;
	w->word[i] = word;
	for (uint32_t t = 0; t < TILE; t++) {
		w->unit[TILE * t + i] = unit;
		w->add[TILE * t + i] = add;
	}
}

/* kivi keys: one scale and minimum per channel and group of tokens. */
static void score_channels(const struct kvp_rows *r, struct codes *c, const struct kvp_queries *q,
	float *s, size_t s_stride)
{
	int16_t word[TILE][DIM_MAX];
	struct word_queries w;

	for (uint32_t t = 0; t < r->n; t++)
		c->scale[t] = c->add[t] = 1.0f;
	for (uint32_t i = 0; i < q->n; i += TILE) {
		for (uint32_t t = 0; t < r->n; t += r->group) {
			for (uint32_t j = 0; j < TILE; j++)
				fold_query(r, t / r->group,
					q->f + (size_t)least(i + j, q->n - 1) * r->dim, j, word[j],
					&w);
			score_tile(r, c, &w, least(q->n - i, TILE), t, least(t + r->group, r->n),
				s + i * s_stride, s_stride);
		}
	}
}

int kvp_score_words(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	struct word_queries w;
	struct codes c;

	if (!words_fit(r) || (!r->per_channel && r->groups > 1))
		return 0;
	if (r->per_channel) {
		c.bits = r->bits;
		book_init(r, &c);
		score_channels(r, &c, q, s, s_stride);
		return 1;
	}
	codes_init(r, &c);
	for (uint32_t i = 0; i < q->n; i += TILE) {
		word_queries(&w, q, r->dim, i, c.value);
		score_tile(r, &c, &w, least(q->n - i, TILE), 0, r->n, s + i * s_stride, s_stride);
	}
	return 1;
}

/* ---- values ---- */

/* Scales of the groups of rows and what their minima add: [row][group]. Registers are read whole.
 */
struct affine {
	float scale[16 * ATTEND_CHUNK + 16];
	float add[16 * ATTEND_CHUNK + 16];
};

static void affine_init(const struct kvp_rows *r, struct affine *f)
{
	uint32_t n = r->n * r->groups;

	memset(f->scale + n, 0, 64);
	memset(f->add + n, 0, 64);
	load_halves(r->scale, n, r->factor, f->scale);
	load_halves(r->minimum, n, r->factor, f->add);
	add_middle(r->bits, f->scale, n, f->add);
}

/*
 * Weights of PAIR_ROWS rows, each times its row's scale, as words; where a row has several scales,
 * [row][group].
 */
struct word_weights {
	float unit; /* of a product */
	int16_t word[PAIR_ROWS];
	int32_t group[16 * PAIR_ROWS + 32];
};

/* A level for the largest: its value. */
INLINE float weight_unit(__m512 max, float levels, __m512 *inv)
{
	float top = _mm512_reduce_max_ps(max);

	*inv = _mm512_set1_ps(top > 0.0f ? levels / top : 0.0f);
	return top / levels;
}

static void weigh_rows(
	struct word_weights *ww, const float *w, const float *scale, uint32_t n, float levels)
{
	__m512 x[PAIR_ROWS / 16], max = _mm512_setzero_ps(), inv;

	for (uint32_t i = 0; i < PAIR_ROWS / 16; i++) {
		__mmask16 in = 16 * i < n ? first16(n - 16 * i) : 0;

		x[i] = _mm512_mul_ps(_mm512_maskz_loadu_ps(in, w + 16 * (size_t)i),
			_mm512_maskz_loadu_ps(in, scale + 16 * (size_t)i));
		max = _mm512_max_ps(_mm512_abs_ps(x[i]), max);
	}
	ww->unit = weight_unit(max, levels, &inv);
	for (uint32_t i = 0; i < PAIR_ROWS / 16; i++)
		_mm256_storeu_si256((__m256i *)(void *)(ww->word + 16 * (size_t)i),
			_mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(x[i], inv))));
}

/* groups divides 16, so that a register holds whole rows: lane i is of row i / groups. */
static void weigh_groups(struct word_weights *ww, const float *w, const float *scale, uint32_t n,
	uint32_t groups, float levels)
{
	const __m512i row = _mm512_srli_epi32(
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
		(uint32_t)__builtin_ctz(groups));
	__m512 max = _mm512_setzero_ps(), inv;
	uint32_t per = 16 / groups, i = 0;
	float x[16 * PAIR_ROWS];

	for (uint32_t t = 0; t < n; t += per, i += 16) {
		__m512 f = _mm512_maskz_loadu_ps(first16(least(n - t, per)), w + t);

		f = _mm512_mul_ps(_mm512_permutexvar_ps(row, f), _mm512_loadu_ps(scale + i));
		max = _mm512_max_ps(_mm512_abs_ps(f), max);
		_mm512_storeu_ps(x + i, f);
	}
	ww->unit = weight_unit(max, levels, &inv);
	for (uint32_t j = 0; j < i; j += 16)
		_mm512_storeu_si512(ww->group + j,
			_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + j), inv)));
	_mm512_storeu_si512(ww->group + i, _mm512_setzero_si512());
}

INLINE __m512i pair_of(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, sizeof x);
	return _mm512_set1_epi32(x);
}

/*
 * acc = acc * fade + unit * x + add, of 64 channels. 128-bit lane L of x[0] holds channels
 * 16 L + 0, 2, 4, 6, of x[1] 16 L + 8, 10, 12, 14; x[2] and x[3] the same plus 1: so do row_words()
 * and unpacking pairs. add: one per 16 channels.
 */
INLINE void flush(const __m512i *x, float unit, float fade, const float *add, float *acc)
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
		__m512 z = _mm512_fmadd_ps(
			_mm512_loadu_ps(p), _mm512_set1_ps(fade), _mm512_set1_ps(add[j]));

		_mm512_storeu_ps(
			p, _mm512_fmadd_ps(_mm512_cvtepi32_ps(y[j]), _mm512_set1_ps(unit), z));
	}
}

/* The rows from `first` on in pairs, word by word: [pair][block of 64 channels][4 registers]. */
INLINE void pair_rows(const struct kvp_rows *r, const struct codes *c, uint32_t bits, uint32_t dim,
	uint32_t first, uint32_t n, __m512i *pairs)
{
	__m512i words[2][WORDS_MAX];

	for (uint32_t t = first; t < first + n; t += 2) {
		const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;

		if ((t - first) % TILE == 0)
			fetch_next(r, t);
		row_words(c, row, bits, dim, words[0]);
		row_words(c, t + 1 < first + n ? row + r->stride : row, bits, dim, words[1]);
		for (uint32_t b = 0; b < dim / 32; b++) {
			*pairs++ = _mm512_unpacklo_epi16(words[0][b], words[1][b]);
			*pairs++ = _mm512_unpackhi_epi16(words[0][b], words[1][b]);
		}
	}
}

static void pair_codes(
	const struct kvp_rows *r, const struct codes *c, uint32_t first, uint32_t n, __m512i *pairs)
{
#define PAIRS(bits)                                                     \
	do {                                                            \
		if (r->dim == 128)                                      \
			pair_rows(r, c, bits, 128, first, n, pairs);    \
		else                                                    \
			pair_rows(r, c, bits, r->dim, first, n, pairs); \
	} while (0)
	PER_BITS(c->bits, PAIRS);
#undef PAIRS
}

/* Pairs of rows times the weights of m queries, one block of 64 channels. */
INLINE void multiply_pairs(const __m512i *pairs, uint32_t n_pairs, size_t stride,
	const struct word_weights *ww, uint32_t m, uint32_t groups, __m512i lanes,
	__m512i (*sum)[4])
{
	for (uint32_t i = 0; i < m; i++)
		for (uint32_t j = 0; j < 4; j++)
			sum[i][j] = _mm512_setzero_si512();
	for (size_t p = 0; p < n_pairs; p++, pairs += stride) {
		for (uint32_t i = 0; i < m; i++) {
			const int32_t *even = ww[i].group + 2 * p * groups, *odd = even + groups;
			__m512i w;

			if (groups)
				w = _mm512_permutexvar_epi32(lanes,
					_mm512_mask_blend_epi16(0xaaaaaaaa,
						_mm512_loadu_si512(even),
						_mm512_slli_epi32(_mm512_loadu_si512(odd), 16)));
			else
				w = pair_of(ww[i].word + 2 * p);
			for (uint32_t j = 0; j < 4; j++)
				sum[i][j] = _mm512_dpwssd_epi32(sum[i][j], pairs[j], w);
		}
	}
}

/* The group of each lane's channels, in the order of flush(). */
static __m512i group_lanes(const struct kvp_rows *r, uint32_t c)
{
	int32_t at[16];

	for (uint32_t i = 0; i < 16; i++)
		at[i] = (int32_t)((c + i / 4 * 16) / r->group);
	return _mm512_loadu_si512(at);
}

/* What the minima add to the channels: of each group, the sum of w[t] * add[t][group]. */
static void weigh_minima(
	const struct kvp_rows *r, const float *w, const float *add, uint32_t n, float *ret)
{
	uint32_t groups = r->groups, per = 16 / groups;
	__m512 sum = _mm512_setzero_ps();
	int32_t row[16], turn[16];
	float x[16];

	for (uint32_t i = 0; i < 16; i++)
		row[i] = (int32_t)(i / groups);
	for (uint32_t t = 0; t < n; t += per, add += 16) {
		__m512 f = _mm512_maskz_loadu_ps(first16(least(n - t, per)), w + t);

		sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(_mm512_loadu_si512(row), f),
			_mm512_loadu_ps(add), sum);
	}
	for (uint32_t s = groups; s < 16; s *= 2) {
		for (uint32_t i = 0; i < 16; i++)
			turn[i] = (int32_t)((i + s) % 16);
		sum = _mm512_add_ps(sum, _mm512_permutexvar_ps(_mm512_loadu_si512(turn), sum));
	}
	_mm512_storeu_ps(x, sum);
	for (uint32_t c = 0; c < r->dim; c += 16)
		ret[c / 16] = x[c / r->group];
}

/* n paired rows from t on times the weights of up to m queries, m being 1 or TILE. */
INLINE void accumulate_pairs(const struct kvp_rows *r, const struct codes *c,
	const struct affine *affine, const __m512i *pairs, uint32_t t, uint32_t n,
	const struct kvp_weights *w, uint32_t m, float *acc)
{
	float levels = r->family == KVP_FAMILY_TQ ? FINE_LEVELS : CODE_LEVELS;
	uint32_t groups = r->groups > 1 ? r->groups : 0;
	float add[TILE][DIM_MAX / 16];
	struct word_weights ww[TILE];
	__m512i sum[TILE][4];

	for (uint32_t j = 0; j < m; j++) {
		const float *from = w->w + least(j, w->nq - 1) * w->stride + t;
		size_t at = (size_t)t * r->groups;

		if (groups)
			weigh_groups(&ww[j], from, affine->scale + at, n, groups, levels);
		else
			weigh_rows(&ww[j], from, c->scale + t, n, levels);
		if (r->minimum)
			weigh_minima(r, from, affine->add + at, n, add[j]);
		else
			memset(add[j], 0, r->dim / 16 * sizeof *add[j]);
	}
	for (uint32_t b = 0; b < r->dim; b += 64) {
		const __m512i *block = pairs + b / 16;

		if (groups)
			multiply_pairs(block, (n + 1) / 2, r->dim / 16, ww, m, groups,
				group_lanes(r, b), sum);
		else
			multiply_pairs(block, (n + 1) / 2, r->dim / 16, ww, m, 0, sum[0][0], sum);
		for (uint32_t j = 0; j < m && j < w->nq; j++)
			flush(sum[j], ww[j].unit * c->value, t ? 1.0f : w->fade[j], add[j] + b / 16,
				acc + (size_t)j * r->dim + b);
	}
}

int kvp_accumulate_words(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	__m512i pairs[PAIR_WORDS / 32];
	uint32_t most = least(PAIR_WORDS / r->dim, PAIR_ROWS) & ~15u;
	struct affine affine;
	struct codes c;

	if (!words_fit(r) || r->per_channel)
		return 0;
	if (r->groups > 1 && (16 % r->groups || r->group % 16))
		return 0;
	codes_init(r, &c);
	if (r->minimum)
		affine_init(r, &affine);
	if (!most)
		most = 8;
	for (uint32_t t = 0; t < r->n; t += most) {
		uint32_t n = least(r->n - t, most);

		pair_codes(r, &c, t, n, pairs);
		for (uint32_t i = 0; i < w->nq; i += TILE) {
			struct kvp_weights part = { w->nq - i, w->w + i * w->stride, w->stride,
				w->fade + i };

			if (w->nq == 1)
				accumulate_pairs(r, &c, &affine, pairs, t, n, &part, 1, acc);
			else
				accumulate_pairs(r, &c, &affine, pairs, t, n, &part, TILE,
					acc + (size_t)i * r->dim);
		}
	}
	return 1;
}
