/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over codes as integers. A row becomes 16-bit words, the code itself or what a table
 * makes of it, times one float; vpdpwssd multiplies 32 of them at a time and sums in 32 bits.
 *
 * Words rather than bytes: a byte of centroid and a byte of query would cost 6e-3 of accuracy each,
 * and whoever splits both into two bytes needs three products where one of words does.
 *
 * At four queries and 128 channels a row takes 16 multiplications as a key and as many as a value,
 * one a cycle where 512 bits are two halves (Zen 4); everything else is to hide beside them. Hence
 * what is laid out for what they want is the codes, while they are still small: rows are
 * interleaved as bytes, and shifted and looked up afterwards.
 *   Keys:   16 bytes of each of four rows are a register, a row a 128-bit lane. A register of words
 *           meets the query's words in all four lanes, and its sums are in four lanes, not sixteen.
 *   Values: words of two rows in turn, as vpdpwssd adds them. Sums of 64 channels of four queries
 *           stay in registers over all rows; the next 64 channels take the rows once more.
 */
#include "kernels/attend_avx512.h"
#include "kernels/attend_unroll.h"
#include "kernels/attend_words.h"

#define STEP       16u /* rows that are scored at a time */
#define GROUPS_MAX 16u

/*
 * A code of 2 to 4 bits is looked up in a book: of centroids (tq), or of the odd numbers around 0
 * (scale and minimum), which makes the rounding of what they are multiplied by matter less than
 * codes as they are would. A code of 8 bits is a signed byte.
 */
struct codes {
	uint32_t bits;
	__m512i book;
	float value; /* of a word that is 1 */
	/* [row][group], with zeros behind; add where there are minima: to each element */
	float scale[GROUPS_MAX * ATTEND_CHUNK + 32];
	float add[GROUPS_MAX * ATTEND_CHUNK + 32];
};

/* ---- codes to words ---- */

/* 32 words, found by the low five bits of a word of which only `bits` belong to the code. */
static void book_init(const struct kvp_rows *r, struct codes *c)
{
	const float odd = (float)((1u << r->bits) - 1);
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i low = _mm512_and_si512(lane, _mm512_set1_epi32((1 << r->bits) - 1));
	const __m512 max = _mm512_set1_ps(BOOK_LEVELS);
	__m512 x = _mm512_sub_ps(
		_mm512_cvtepi32_ps(_mm512_add_epi32(lane, lane)), _mm512_set1_ps(odd));

	c->value = 0.5f;
	if (r->family == KVP_FAMILY_TQ) {
		c->value = 1.0f / book_scale[r->bits];
		x = _mm512_mul_ps(_mm512_loadu_ps(r->cent), _mm512_set1_ps(book_scale[r->bits]));
	}
	x = _mm512_max_ps(_mm512_min_ps(x, max), _mm512_sub_ps(_mm512_setzero_ps(), max));
	c->book = _mm512_broadcast_i64x4(
		_mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_permutexvar_ps(low, x))));
}

/* Bits that one byte has of a code, and bytes between a code and the next one in the same byte. */
INLINE uint32_t width_of(uint32_t bits)
{
	return bits == 3 ? 2 : bits;
}

INLINE uint32_t part_of(uint32_t bits, uint32_t dim)
{
	return dim * width_of(bits) / 8;
}

/* top: of 3 bits, words whose bit 2 is the code's. x: words that begin with the code. */
INLINE __m512i look_up(uint32_t bits, __m512i book, __m512i x, __m512i top)
{
	if (bits == 3)
		x = _mm512_ternarylogic_epi32(_mm512_set1_epi16(4), top, x, 0xca);
	return _mm512_permutexvar_epi16(x, book);
}

/* Words of codes that begin at bit `at` of each word of x. */
INLINE __m512i code_words(uint32_t bits, __m512i book, __m512i x, uint32_t at, __m512i top)
{
	if (bits == 8)
		return _mm512_srai_epi16(at ? x : _mm512_slli_epi16(x, 8), 8);
	return look_up(bits, book, _mm512_srli_epi16(x, at), top);
}

/* 64 and 128 channels and what is made of them, so that rows divide into pieces of 16 or 32 bytes.
 */
static int words_fit(const struct kvp_rows *r)
{
	if (r->dim % 64)
		return 0;
	return r->family == KVP_FAMILY_INT8 || r->bits == 4 || r->dim == 64 || r->dim % 128 == 0;
}

/* ---- scales ---- */

static void codes_init(const struct kvp_rows *r, struct codes *c)
{
	const float half = 0.5f * (float)((1u << r->bits) - 1);
	uint32_t n = r->n * (r->groups > 1 ? r->groups : 1);

	c->bits = r->family == KVP_FAMILY_INT8 ? 8 : r->bits;
	c->value = 1.0f;
	if (c->bits < 8)
		book_init(r, c);
	if (r->family == KVP_FAMILY_TQ && r->format)
		load_wides(r->scale, n, r->factor, c->scale);
	else
		load_halves(r->scale, n, r->factor, c->scale);
	memset(c->scale + n, 0, 32 * sizeof *c->scale);
	if (!r->minimum)
		return;
	/* From the minimum to the middle of the codes, from which the odd numbers are counted. */
	load_halves(r->minimum, n, r->factor, c->add);
	for (uint32_t i = 0; i < n; i++)
		c->add[i] += half * c->scale[i];
	memset(c->add + n, 0, 32 * sizeof *c->add);
}

/* ---- keys ---- */

/* x in units of 1 / inv to words: of each four channels the first and the third, then the others.
 */
INLINE __m512i words32(__m512 a, __m512 b, __m512 inv)
{
	const __m512i order =
		_mm512_cvtepu8_epi16(_mm256_setr_epi8(0, 2, 1, 3, 8, 10, 9, 11, 16, 18, 17, 19, 24,
			26, 25, 27, 4, 6, 5, 7, 12, 14, 13, 15, 20, 22, 21, 23, 28, 30, 29, 31));

	return _mm512_permutexvar_epi16(
		order, _mm512_packs_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(a, inv)),
			       _mm512_cvtps_epi32(_mm512_mul_ps(b, inv))));
}

INLINE __m512 levels_over(float levels, float largest)
{
	return _mm512_set1_ps(largest > 0.0f ? levels / largest : 0.0f);
}

void kvp_query_words_avx512(
	const float *q, uint32_t dim, int16_t *ret_word, float *ret_unit, float *ret_sum)
{
	__m512 max = _mm512_setzero_ps(), size = max, sum = max, inv;
	float top, levels;

	for (uint32_t c = 0; c < dim; c += 16) {
		__m512 x = _mm512_loadu_ps(q + c), y = _mm512_abs_ps(x);

		max = _mm512_max_ps(y, max);
		size = _mm512_add_ps(y, size);
		sum = _mm512_add_ps(x, sum);
	}
	top = _mm512_reduce_max_ps(max);
	levels = book_levels(top, _mm512_reduce_add_ps(size));
	inv = levels_over(levels, top);
	for (uint32_t c = 0; c < dim; c += 32)
		_mm512_storeu_si512(ret_word + c,
			words32(_mm512_loadu_ps(q + c), _mm512_loadu_ps(q + c + 16), inv));
	*ret_sum = _mm512_reduce_add_ps(sum);
	/* A query with NaN or infinities in it has no words: its scores are NaN. */
	*ret_unit = top / levels + 0.0f * *ret_sum;
}

/* Up to four queries. */
struct word_queries {
	const int16_t *word[TILE];
	float unit[TILE];
	float add[TILE]; /* times the token's */
};

static void word_queries(struct word_queries *w, const struct kvp_queries *q, uint32_t dim,
	uint32_t first, float value)
{
	for (uint32_t i = 0; i < TILE; i++) {
		uint32_t at = least(first + i, q->n - 1);

		w->word[i] = q->word + (size_t)at * dim;
		w->unit[i] = q->unit[at] * value;
		w->add[i] = q->sum[at];
	}
}

INLINE int32_t load_pair(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, sizeof x);
	return x;
}

INLINE __m128i load128(const void *p)
{
	return _mm_loadu_si128(p);
}

INLINE __m256i load256(const void *p)
{
	return _mm256_loadu_si256(p);
}

/* Four by four lanes of 32 bits, in each 128 bits. */
INLINE void turn_lanes(__m512i *x)
{
	__m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
	__m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);

	x[0] = _mm512_unpacklo_epi64(a, c);
	x[1] = _mm512_unpackhi_epi64(a, c);
	x[2] = _mm512_unpacklo_epi64(b, d);
	x[3] = _mm512_unpackhi_epi64(b, d);
}

/* 32 bytes of each of 16 rows: x[k] has bytes 4 k .. 4 k + 3, a row a lane. */
INLINE void turn_rows32(const uint8_t *const *row, size_t at, __m512i *x)
{
	for (uint32_t i = 0; i < 8; i++) {
		const uint8_t *const *from = row + i % 4 + i / 4 * 8;

		x[i] = _mm512_inserti64x4(
			_mm512_castsi256_si512(load256(from[0] + at)), load256(from[4] + at), 1);
	}
	turn_lanes(x);
	turn_lanes(x + 4);
	for (uint32_t i = 0; i < 4; i++) {
		__m512i y = x[i];

		x[i] = _mm512_shuffle_i32x4(y, x[i + 4], 0x88);
		x[i + 4] = _mm512_shuffle_i32x4(y, x[i + 4], 0xdd);
	}
}

/* The same of 16 bytes. */
INLINE void turn_rows16(const uint8_t *const *row, size_t at, __m512i *x)
{
	for (uint32_t i = 0; i < 4; i++) {
		x[i] = _mm512_broadcast_i32x4(load128(row[i] + at));
		x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x00f0, load128(row[i + 4] + at));
		x[i] = _mm512_mask_broadcast_i32x4(x[i], 0x0f00, load128(row[i + 8] + at));
		x[i] = _mm512_mask_broadcast_i32x4(x[i], 0xf000, load128(row[i + 12] + at));
	}
	turn_lanes(x);
}

/*
 * High bits of the 32 channels of top, for the even or the odd ones of channels c .. c + 3: in each
 * lane two words whose bit 2 is the code's. Their byte moves to the top of both words, from where
 * a shift takes the bit down.
 */
INLINE __m512i high_bits(__m512i top, uint32_t c, uint32_t odd)
{
	const uint32_t byte = 0x00800080 + c % 32 / 8 * 0x01000100, down = c % 8 + odd + 6;
	const __m512i lanes =
		_mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04000400, 0x08000800, 0x0c000c00));

	top = _mm512_shuffle_epi8(top, _mm512_add_epi32(lanes, _mm512_set1_epi32((int)byte)));
	return _mm512_srlv_epi16(top, _mm512_set1_epi32((int)(down | (down + 2) << 16)));
}

/* 16 rows, a lane each, against m queries. */
INLINE void dot_rows(uint32_t bits, uint32_t dim, uint32_t m, __m512i book,
	const uint8_t *const *row, const int16_t *const *word, __m512i *ret)
{
	const uint32_t width = width_of(bits), part = part_of(bits, dim);
	const uint32_t piece = part % 32 ? 16 : 32;
	__m512i top[DIM_MAX / 32], x[8], sum[2][TILE];

	for (uint32_t i = 0; i < m; i++)
		sum[0][i] = sum[1][i] = _mm512_setzero_si512();
	if (bits == 3 && dim == 64) /* the last 16 bytes of a row, of which 8 are high bits */
		turn_rows16(row, 8, top);
	for (uint32_t c = 0; bits == 3 && dim > 64 && c < dim; c += 128)
		turn_rows16(row, dim / 4 + c / 8, top + c / 32);
	for (uint32_t at = 0; at < part; at += piece) {
		if (piece == 32)
			turn_rows32(row, at, x);
		else
			turn_rows16(row, at, x);
		UNROLL for (uint32_t k = 0; k < piece / 4; k++)
		{
			UNROLL for (uint32_t j = 0; j < 16 / width; j++)
			{
				uint32_t c = j / 2 * part + at + 4 * k, odd = j % 2;
				__m512i y = x[k];

				if (bits == 3)
					y = high_bits(top[c / 32 + (dim == 64 ? 2 : 0)], c, odd);
				y = code_words(bits, book, x[k], j / 2 * width + 8 * odd, y);
				for (uint32_t i = 0; i < m; i++)
					sum[odd][i] =
						dot_pair(sum[odd][i], y, word[i] + c + 2 * odd);
			}
		}
	}
	for (uint32_t i = 0; i < m; i++)
		ret[i] = _mm512_add_epi32(sum[0][i], sum[1][i]);
}

/* Rows [first, end) against m queries, of which nq are wanted. */
INLINE void score_words(const struct kvp_rows *r, const struct codes *c, uint32_t bits,
	uint32_t dim, uint32_t m, const struct word_queries *w, uint32_t nq, uint32_t first,
	uint32_t end, float *s, size_t s_stride)
{
	const __m512i book = c->book;

	for (uint32_t t = first; t < end; t += STEP) {
		__mmask16 in = first16(end - t);
		const uint8_t *row[STEP];
		__m512i sum[TILE];
		__m512 scale, add;

		for (uint32_t j = 0; j < STEP; j += TILE)
			fetch_next(r, t + j);
		for (uint32_t j = 0; j < STEP; j++)
			row[j] = r->codes + (ptrdiff_t)least(t + j, r->n - 1) * r->stride;
		dot_rows(bits, dim, m, book, row, w->word, sum);
		scale = _mm512_maskz_loadu_ps(in, c->scale + t);
		add = _mm512_maskz_loadu_ps(in, c->add + t);
		for (uint32_t i = 0; i < m && i < nq; i++) {
			__m512 x = _mm512_mul_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[i]), scale),
				_mm512_set1_ps(w->unit[i]));

			if (r->minimum)
				x = _mm512_fmadd_ps(add, _mm512_set1_ps(w->add[i]), x);
			_mm512_mask_storeu_ps(s + i * s_stride + t, in, x);
		}
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
		if (KVP_SPECIALIZE && r->dim == 128 && nq == 1)                                \
			score_words(r, c, bits, 128, 1, w, nq, first, end, s, s_stride);       \
		else if (KVP_SPECIALIZE && r->dim == 128)                                      \
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

/* One group of tokens of kivi keys. */
struct channels {
	float scale[DIM_MAX]; /* halves of the scales: books are of odd numbers */
	float add[DIM_MAX];   /* the middle of the codes */
};

static void channels_init(const struct kvp_rows *r, uint32_t g, struct channels *ch)
{
	const __m512 middle = _mm512_set1_ps((float)((1u << r->bits) - 1));
	const uint8_t *scale = r->scale + 2 * (size_t)g * r->dim;
	const uint8_t *min = r->minimum + 2 * (size_t)g * r->dim;

	for (uint32_t c = 0; c < r->dim; c += 16) {
		__m512 x = halves16(scale, c, 0.5f * r->factor);

		_mm512_storeu_ps(ch->scale + c, x);
		_mm512_storeu_ps(
			ch->add + c, _mm512_fmadd_ps(x, middle, halves16(min, c, r->factor)));
	}
}

/* Query i with the scales folded in; what the minima add goes to add. */
INLINE void fold_query(const struct channels *ch, uint32_t dim, const float *q, uint32_t i,
	int16_t *word, struct word_queries *w)
{
	__m512 max = _mm512_setzero_ps(), sum = max, inv, x[2];
	float top, add;

	for (uint32_t c = 0; c < dim; c += 16) {
		x[0] = _mm512_loadu_ps(q + c);
		sum = _mm512_fmadd_ps(x[0], _mm512_loadu_ps(ch->add + c), sum);
		x[0] = _mm512_mul_ps(x[0], _mm512_loadu_ps(ch->scale + c));
		max = _mm512_max_ps(_mm512_abs_ps(x[0]), max);
	}
	top = _mm512_reduce_max_ps(max);
	add = _mm512_reduce_add_ps(sum);
	inv = levels_over(LEVELS, top);
	for (uint32_t c = 0; c < dim; c += 32) {
		for (uint32_t k = 0; k < 2; k++)
			x[k] = _mm512_mul_ps(_mm512_loadu_ps(q + c + 16 * k),
				_mm512_loadu_ps(ch->scale + c + 16 * k));
		_mm512_storeu_si512(word + c, words32(x[0], x[1], inv));
	}
	w->word[i] = word;
	w->unit[i] = top / LEVELS + 0.0f * add;
	w->add[i] = add;
}

/* kivi keys: one scale and minimum per channel and group of tokens. */
static void score_channels(const struct kvp_rows *r, struct codes *c, const struct kvp_queries *q,
	float *s, size_t s_stride)
{
	int16_t word[TILE][DIM_MAX];
	struct word_queries w;
	struct channels ch;

	for (uint32_t t = 0; t < r->n; t++)
		c->scale[t] = c->add[t] = 1.0f;
	for (uint32_t t = 0; t < r->n; t += r->group) {
		channels_init(r, t / r->group, &ch);
		for (uint32_t i = 0; i < q->n; i += TILE) {
			for (uint32_t j = 0; j < TILE; j++) {
				const float *from = q->f + (size_t)least(i + j, q->n - 1) * r->dim;

				if (KVP_SPECIALIZE && r->dim == 128)
					fold_query(&ch, 128, from, j, word[j], &w);
				else
					fold_query(&ch, r->dim, from, j, word[j], &w);
			}
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

/* Whether the weights of all channels of a register of words are the same. */
enum grouping {
	ONE,   /* scale per row */
	WHOLE, /* a group is 32 channels or a multiple */
	HALVES /* a group is 16 channels: half a register */
};

/*
 * Weights of one query, each times its row's scale, as words. The groups of two rows lie together,
 * the words of a group in these next to each other.
 */
struct word_weights {
	float unit[GROUPS_MAX]; /* of a product */
	float add[GROUPS_MAX];  /* what the minima add */
	int16_t word[GROUPS_MAX * ATTEND_CHUNK + 32];
};

/* Of centroids the sum of the weights limits the words, or else the largest weight. */
static void weigh_rows(
	struct word_weights *ww, const float *w, const struct codes *c, const struct kvp_rows *r)
{
	__m512 x[ATTEND_CHUNK / 16], max = _mm512_setzero_ps(), sum = max, add = max, inv;
	float top, levels = LEVELS;

	for (uint32_t i = 0; 16 * i < r->n; i++) {
		__mmask16 in = first16(r->n - 16 * i);
		__m512 y = _mm512_maskz_loadu_ps(in, w + 16 * (size_t)i), size;

		x[i] = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(in, c->scale + 16 * (size_t)i));
		size = _mm512_abs_ps(x[i]);
		max = _mm512_max_ps(size, max);
		sum = _mm512_add_ps(size, sum);
		if (r->minimum)
			add = _mm512_fmadd_ps(
				y, _mm512_maskz_loadu_ps(in, c->add + 16 * (size_t)i), add);
	}
	top = _mm512_reduce_max_ps(max);
	if (r->family == KVP_FAMILY_TQ)
		levels = book_levels(top, _mm512_reduce_add_ps(sum));
	inv = levels_over(levels, top);
	for (uint32_t i = 0; 16 * i < r->n; i++)
		_mm256_storeu_si256((__m256i *)(void *)(ww->word + 16 * (size_t)i),
			_mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(x[i], inv))));
	ww->unit[0] = top / levels * c->value;
	ww->add[0] = r->minimum ? _mm512_reduce_add_ps(add) : 0.0f;
}

/* Lanes i, i + groups, .. together, in all of them: their largest or their sum. */
INLINE __m512 over_rows(__m512 x, uint32_t groups, int largest)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);

	for (uint32_t s = groups; s < 16; s *= 2) {
		__m512 y =
			_mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32((int)s)), x);

		x = largest ? _mm512_max_ps(y, x) : _mm512_add_ps(y, x);
	}
	return x;
}

/* Of each group the largest size of a scale. */
static __m512 largest_scales(const struct kvp_rows *r, const struct codes *c)
{
	__m512 max = _mm512_setzero_ps();

	for (uint32_t i = 0; i < r->n * r->groups; i += 16)
		max = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(c->scale + i)), max);
	return over_rows(max, r->groups, 1);
}

/* Where in two packed registers of [row][group] the words of struct word_weights are. */
static __m512i pair_order(uint32_t groups)
{
	const __m512i one = _mm512_set1_epi16(1);
	const uint32_t log = (uint32_t)__builtin_ctz(groups);
	__m512i at = _mm512_cvtepu8_epi16(_mm256_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
		13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31));
	__m512i row, group;

	row = _mm512_or_si512(
		_mm512_slli_epi16(_mm512_srli_epi16(at, log + 1), 1), _mm512_and_si512(at, one));
	group = _mm512_and_si512(_mm512_srli_epi16(at, 1), _mm512_set1_epi16((short)(groups - 1)));
	at = _mm512_add_epi16(_mm512_slli_epi16(row, log), group);
	/* Packing takes four of one register, then four of the other. */
	return _mm512_or_si512(_mm512_slli_epi16(_mm512_and_si512(at, _mm512_set1_epi16(12)), 1),
		_mm512_or_si512(_mm512_and_si512(at, _mm512_set1_epi16(3)),
			_mm512_slli_epi16(_mm512_srli_epi16(at, 4), 2)));
}

/* The largest weight times the largest scale limits the words of a group. */
static void weigh_groups(struct word_weights *ww, const float *w, const struct codes *c,
	const struct kvp_rows *r, __m512 top, __m512i order)
{
	const uint32_t rows = 16 / r->groups;
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i low = _mm512_srli_epi32(lane, (uint32_t)__builtin_ctz(r->groups));
	const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32((int)rows));
	__m512 max = _mm512_setzero_ps(), add = max, unit, inv;

	for (uint32_t t = 0; t < r->n; t += 16)
		max = _mm512_max_ps(
			_mm512_abs_ps(_mm512_maskz_loadu_ps(first16(r->n - t), w + t)), max);
	unit = _mm512_mul_ps(top, _mm512_set1_ps(_mm512_reduce_max_ps(max) * (1.0f / LEVELS)));
	inv = _mm512_maskz_div_ps(_mm512_cmp_ps_mask(unit, _mm512_setzero_ps(), _CMP_GT_OQ),
		_mm512_set1_ps(1.0f), unit);
	for (uint32_t t = 0; t < r->n; t += 2 * rows) {
		const float *scale = c->scale + t * r->groups, *min = c->add + t * r->groups;
		__m512 x = _mm512_maskz_loadu_ps(first16(r->n - t), w + t), y;

		y = _mm512_permutexvar_ps(high, x);
		x = _mm512_permutexvar_ps(low, x);
		add = _mm512_fmadd_ps(x, _mm512_loadu_ps(min), add);
		add = _mm512_fmadd_ps(y, _mm512_loadu_ps(min + 16), add);
		x = _mm512_mul_ps(_mm512_mul_ps(x, inv), _mm512_loadu_ps(scale));
		y = _mm512_mul_ps(_mm512_mul_ps(y, inv), _mm512_loadu_ps(scale + 16));
		_mm512_storeu_si512(ww->word + t * r->groups,
			_mm512_permutexvar_epi16(order,
				_mm512_packs_epi32(_mm512_cvtps_epi32(x), _mm512_cvtps_epi32(y))));
	}
	_mm512_storeu_ps(ww->unit, _mm512_mul_ps(unit, _mm512_set1_ps(c->value)));
	_mm512_storeu_ps(ww->add, over_rows(add, r->groups, 0));
}

/* Words of two rows in turn: 32 bytes of each, or twice 16 bytes of each. */
INLINE __m512i two_rows(const uint8_t *a, const uint8_t *b, uint32_t bytes)
{
	const __m512i half =
		_mm512_cvtepu8_epi16(_mm256_setr_epi8(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6,
			22, 7, 23, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31));
	const __m512i quarter = _mm512_broadcast_i64x4(
		_mm256_setr_epi16(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
	__m512i x;

	if (bytes == 16)
		return _mm512_permutexvar_epi16(
			quarter, _mm512_castsi256_si512(_mm256_inserti128_si256(
					 _mm256_castsi128_si256(load128(a)), load128(b), 1)));
	x = _mm512_castsi256_si512(_mm256_loadu_si256((const void *)a));
	return _mm512_permutexvar_epi16(
		half, _mm512_inserti64x4(x, _mm256_loadu_si256((const void *)b), 1));
}

/* 64 channels of values: where in a row they begin, in bytes and in fields of these. */
struct strip {
	uint32_t at, field;
	uint32_t c[2]; /* the first of 32 channels each */
};

/* High bits of rows of 3 bits for register j of pair_words(): bit 2 of its words. */
INLINE __m512i two_tops(
	uint32_t dim, const uint8_t *a, const uint8_t *b, const struct strip *s, uint32_t j)
{
	/* Words of a and b in turn, each its channel's byte and a zero below: see high_bits(). */
	const __m512i even = _mm512_setr_epi64(0x0480008004800080, 0x0480008004800080,
		0x0580018005800180, 0x0580018005800180, 0x0680028006800280, 0x0680028006800280,
		0x0780038007800380, 0x0780038007800380);
	const __m512i both = _mm512_setr_epi64(0x0480008004800080, 0x0480008004800080,
		0x0580018005800180, 0x0580018005800180, 0x0480008004800080, 0x0480008004800080,
		0x0580018005800180, 0x0580018005800180);
	const __m512i by = _mm512_broadcast_i32x4(_mm_setr_epi16(6, 6, 8, 8, 10, 10, 12, 12));
	const __m512i odd = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(1), 1);
	size_t at = dim / 4 + s->c[j / 2] / 8;
	int32_t x[2];
	__m512i from;

	memcpy(&x[0], a + at, sizeof x[0]);
	memcpy(&x[1], b + at, sizeof x[1]);
	from = _mm512_mask_set1_epi32(_mm512_set1_epi32(x[0]), 0xaaaa, x[1]);
	if (dim == 64)
		return _mm512_srlv_epi16(
			_mm512_shuffle_epi8(
				from, _mm512_add_epi16(
					      both, _mm512_set1_epi16((short)(0x200 * (j % 2))))),
			_mm512_add_epi16(by, odd));
	return _mm512_srlv_epi16(_mm512_shuffle_epi8(from, even),
		_mm512_add_epi16(by, _mm512_set1_epi16((short)(j % 2))));
}

/*
 * The words of a strip of two rows, these in turn. A register has the even channels of 32, or the
 * odd ones (j); where a row's part has but 16 bytes the even ones of 16, then the odd ones.
 */
INLINE void pair_words(uint32_t bits, uint32_t dim, __m512i book, const uint8_t *a,
	const uint8_t *b, const struct strip *s, __m512i *words)
{
	const uint32_t width = width_of(bits), part = part_of(bits, dim);
	__m512i x = two_rows(a + s->at, b + s->at, part % 32 ? 16 : 32), y = x;

	if (bits == 8)
		y = two_rows(a + s->at + 32, b + s->at + 32, 32);
	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		__m512i top = bits == 3 ? two_tops(dim, a, b, s, j) : book;

		if (bits == 8)
			words[j] = code_words(bits, book, j < 2 ? x : y, 8 * (j % 2), top);
		else if (part % 32)
			words[j] = look_up(bits, book,
				_mm512_srlv_epi16(
					x, _mm512_inserti64x4(_mm512_set1_epi16((short)(2 * j)),
						   _mm256_set1_epi16((short)(2 * j + 8)), 1)),
				top);
		else
			words[j] = code_words(
				bits, book, x, (s->field + j / 2) * width + 8 * (j % 2), top);
	}
}

/* The group of channel c. */
INLINE uint32_t group_of(const struct kvp_rows *r, enum grouping grouping, uint32_t c)
{
	return grouping == ONE ? 0 : c >> __builtin_ctz(r->group);
}

INLINE void multiply_rows(const struct kvp_rows *r, uint32_t bits, uint32_t dim, uint32_t m,
	enum grouping grouping, __m512i book, const struct word_weights *ww, const struct strip *s,
	int fetch, __m512i *sum)
{
	const uint8_t *row = r->codes;
	uint32_t groups = grouping == ONE ? 1 : r->groups;
	uint32_t at[2] = { 2 * group_of(r, grouping, s->c[0]), 2 * group_of(r, grouping, s->c[1]) };

	UNROLL for (uint32_t i = 0; i < 4 * m; i++)
	{
		sum[i] = _mm512_setzero_si512();
	}
	for (uint32_t t = 0; t < r->n; t += 2, row += 2 * r->stride) {
		__m512i x[4];

		if (fetch && t % TILE == 0)
			fetch_next(r, t);
		pair_words(bits, dim, book, row, row + (t + 1 < r->n ? r->stride : 0), s, x);
		UNROLL for (uint32_t i = 0; i < 4 * m; i++)
		{
			const int16_t *w = ww[i / 4].word + t * groups + at[i % 4 / 2];

			if (grouping == HALVES)
				sum[i] = _mm512_dpwssd_epi32(sum[i], x[i % 4],
					_mm512_mask_set1_epi32(_mm512_set1_epi32(load_pair(w)),
						0xff00, load_pair(w + 2)));
			else
				sum[i] = dot_pair(sum[i], x[i % 4], w);
		}
	}
}

/* acc = acc * fade + unit * x + add, of the 16 channels from c on. */
INLINE void add_sums(const struct word_weights *w, uint32_t g, float fade, __m512i x, float *acc)
{
	__m512 y = _mm512_fmadd_ps(
		_mm512_loadu_ps(acc), _mm512_set1_ps(fade), _mm512_set1_ps(w->add[g]));

	_mm512_storeu_ps(
		acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), _mm512_set1_ps(w->unit[g]), y));
}

/* The sums of a strip to the channels that they are of. */
INLINE void flush(const struct kvp_rows *r, uint32_t part, enum grouping grouping,
	const struct strip *s, const __m512i *x, const struct word_weights *w, float fade,
	float *acc)
{
	const __m512i low =
		_mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
	const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
	const __m512i halves =
		_mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);

	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		uint32_t c = s->c[j / 2] + 16 * (j % 2);
		__m512i y = part % 32 ? _mm512_permutexvar_epi32(halves, x[j])
				      : _mm512_permutex2var_epi32(
						x[j & 2], j % 2 ? high : low, x[j | 1]);

		add_sums(w, group_of(r, grouping, c), fade, y, acc + c);
	}
}

INLINE void accumulate_strip(const struct kvp_rows *r, const struct codes *c, uint32_t bits,
	uint32_t dim, uint32_t m, enum grouping grouping, const struct word_weights *ww,
	const struct kvp_weights *w, uint32_t at, uint32_t field, int fetch, float *acc)
{
	const uint32_t part = part_of(bits, dim);
	struct strip s = { at, field, { at + field * part, at + (field + 1) * part } };
	__m512i sum[4 * TILE];

	if (bits == 8 || part % 32)
		s.c[1] = s.c[0] + 32;
	multiply_rows(r, bits, dim, m, grouping, c->book, ww, &s, fetch, sum);
	UNROLL for (uint32_t i = 0; i < m; i++)
	{
		if (i < w->nq)
			flush(r, part, grouping, &s, sum + 4 * i, &ww[i], w->fade[i],
				acc + (size_t)i * dim);
	}
}

/* The weights of up to m queries. */
INLINE void accumulate_words(const struct kvp_rows *r, const struct codes *c, uint32_t bits,
	uint32_t dim, uint32_t m, enum grouping grouping, const struct kvp_weights *w, int fetch,
	float *acc)
{
	const uint32_t part = part_of(bits, dim), piece = bits == 8 ? 64 : least(part, 32);
	__m512i order = grouping == ONE ? c->book : pair_order(r->groups);
	__m512 top = grouping == ONE ? _mm512_setzero_ps() : largest_scales(r, c);
	struct word_weights ww[TILE];

	for (uint32_t i = 0; i < m; i++) {
		const float *from = w->w + least(i, w->nq - 1) * w->stride;

		if (grouping == ONE)
			weigh_rows(&ww[i], from, c, r);
		else
			weigh_groups(&ww[i], from, c, r, top, order);
	}
	for (uint32_t at = 0; at < part; at += piece) {
		accumulate_strip(r, c, bits, dim, m, grouping, ww, w, at, 0, fetch && !at, acc);
		if (width_of(bits) == 2 && part % 32 == 0)
			accumulate_strip(r, c, bits, dim, m, grouping, ww, w, at, 2, 0, acc);
	}
}

static void accumulate_tile(const struct kvp_rows *r, const struct codes *c,
	const struct kvp_weights *w, int fetch, float *acc)
{
#define ACCUMULATE(bits)                                                                   \
	do {                                                                               \
		if (r->groups > 1 && bits == 8)                                            \
			break;                                                             \
		if (r->groups > 1 && r->group == 16)                                       \
			accumulate_words(r, c, bits, r->dim, TILE, HALVES, w, fetch, acc); \
		else if (KVP_SPECIALIZE && r->groups > 1 && r->dim == 128 && w->nq > 1)    \
			accumulate_words(r, c, bits, 128, TILE, WHOLE, w, fetch, acc);     \
		else if (r->groups > 1)                                                    \
			accumulate_words(r, c, bits, r->dim, TILE, WHOLE, w, fetch, acc);  \
		else if (KVP_SPECIALIZE && r->dim == 128 && w->nq == 1)                    \
			accumulate_words(r, c, bits, 128, 1, ONE, w, fetch, acc);          \
		else if (KVP_SPECIALIZE && r->dim == 128)                                  \
			accumulate_words(r, c, bits, 128, TILE, ONE, w, fetch, acc);       \
		else                                                                       \
			accumulate_words(r, c, bits, r->dim, TILE, ONE, w, fetch, acc);    \
	} while (0)
	PER_BITS(c->bits, ACCUMULATE);
#undef ACCUMULATE
}

int kvp_accumulate_words(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	struct codes c;

	if (!words_fit(r) || r->per_channel)
		return 0;
	if (r->groups > 1 && (GROUPS_MAX % r->groups || r->group % 16))
		return 0;
	if (r->groups > 1 && r->group == 16 && part_of(r->bits, r->dim) % 32)
		return 0;
	codes_init(r, &c);
	for (uint32_t i = 0; i < w->nq; i += TILE) {
		struct kvp_weights part = { least(w->nq - i, TILE), w->w + i * w->stride, w->stride,
			w->fade + i };

		accumulate_tile(r, &c, &part, !i, acc + (size_t)i * r->dim);
	}
	return 1;
}
