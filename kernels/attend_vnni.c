/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weighted sums of rows of codes in AVX-512. Codes become 16-bit words, the code itself or what a
 * table makes of it, and weights too; vpdpwssd multiplies 32 of them at a time and sums in 32 bits,
 * which is half the work of floats. What that costs in accuracy is in attend_words.h.
 *
 * Words rather than bytes: a byte of centroid and a byte of weight would cost 6e-3 of accuracy
 * each, and whoever splits both into two bytes needs three products where one of words does.
 *
 * At four queries and 128 channels a row takes 16 multiplications, one a cycle where 512 bits are
 * two halves (Zen 4); everything else is to hide beside them. Hence what is laid out is the codes,
 * while they are still small: two rows are interleaved as bytes, and shifted and looked up
 * afterwards. Sums of 64 channels of four queries stay in registers over WORD_ROWS rows; the next
 * 64 channels take the rows once more.
 */
#include "kernels/attend_avx512.h"
#include "kernels/attend_unroll.h"
#include "kernels/attend_words.h"

/*
 * A code of 2 to 4 bits is looked up in a book: of centroids (tq), or of the odd numbers around 0
 * (scale and minimum), which makes the rounding of what they are multiplied by matter less than
 * codes as they are would. A code of 8 bits is a signed byte.
 */
struct codes {
	uint32_t bits;
	__m512i book;
	float value; /* of a word that is 1 */
	struct scales s;
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
	if (r->form == KVP_FORM_BOOK) {
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
	return r->form == KVP_FORM_INT8 || r->bits == 4 || r->dim == 64 || r->dim % 128 == 0;
}

static void codes_init(const struct kvp_rows *r, struct codes *c)
{
	c->bits = r->form == KVP_FORM_INT8 ? 8 : r->bits;
	c->value = 1.0f;
	if (c->bits < 8)
		book_init(r, c);
	scales_init(r, &c->s);
}

/* ---- weights ---- */

INLINE int32_t load_pair(const int16_t *p)
{
	int32_t x;

	memcpy(&x, p, sizeof x);
	return x;
}

INLINE __m512 levels_over(float levels, float largest)
{
	return _mm512_set1_ps(largest > 0.0f ? levels / largest : 0.0f);
}

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

/*
 * The weights of rows [first, end). Of centroids their sum limits the words, or else the largest.
 */
static void weigh_rows(struct word_weights *ww, const float *w, const struct codes *c,
	const struct kvp_rows *r, uint32_t first, uint32_t end)
{
	__m512 x[ATTEND_CHUNK / 16], max = _mm512_setzero_ps(), sum = max, add = max, inv;
	float top, levels = LEVELS;

	for (uint32_t t = first; t < end; t += 16) {
		__mmask16 in = first16(end - t);
		__m512 y = _mm512_maskz_loadu_ps(in, w + t), size;

		x[t / 16] = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(in, c->s.scale + t));
		size = _mm512_abs_ps(x[t / 16]);
		max = _mm512_max_ps(size, max);
		sum = _mm512_add_ps(size, sum);
		if (r->minimum)
			add = _mm512_fmadd_ps(y, _mm512_maskz_loadu_ps(in, c->s.add + t), add);
	}
	top = _mm512_reduce_max_ps(max);
	if (r->form == KVP_FORM_BOOK)
		levels = book_levels(top, _mm512_reduce_add_ps(sum));
	inv = levels_over(levels, top);
	for (uint32_t t = first; t < end; t += 16)
		_mm256_storeu_si256((__m256i *)(void *)(ww->word + t),
			_mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(x[t / 16], inv))));
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

/*
 * The largest product of a weight and a scale limits the words of a group. Not the largest weight
 * times the largest scale: where one token has nearly all the weight its value is often small.
 */
static void weigh_groups(struct word_weights *ww, const float *w, const struct codes *c,
	const struct kvp_rows *r, __m512i order)
{
	const uint32_t rows = 16 / r->groups;
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i low = _mm512_srli_epi32(lane, (uint32_t)__builtin_ctz(r->groups));
	const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32((int)rows));
	__m512 max = _mm512_setzero_ps(), add = max, unit, inv;
	float product[GROUPS_MAX * ATTEND_CHUNK + 32];

	for (uint32_t t = 0; t < r->n; t += 2 * rows) {
		const float *scale = c->s.scale + t * r->groups, *min = c->s.add + t * r->groups;
		__m512 x = _mm512_maskz_loadu_ps(first16(r->n - t), w + t), y;

		y = _mm512_permutexvar_ps(high, x);
		x = _mm512_permutexvar_ps(low, x);
		add = _mm512_fmadd_ps(x, _mm512_loadu_ps(min), add);
		add = _mm512_fmadd_ps(y, _mm512_loadu_ps(min + 16), add);
		x = _mm512_mul_ps(x, _mm512_loadu_ps(scale));
		y = _mm512_mul_ps(y, _mm512_loadu_ps(scale + 16));
		max = _mm512_max_ps(_mm512_max_ps(_mm512_abs_ps(x), _mm512_abs_ps(y)), max);
		_mm512_storeu_ps(product + t * r->groups, x);
		_mm512_storeu_ps(product + t * r->groups + 16, y);
	}
	unit = _mm512_mul_ps(over_rows(max, r->groups, 1), _mm512_set1_ps(1.0f / LEVELS));
	inv = _mm512_maskz_div_ps(_mm512_cmp_ps_mask(unit, _mm512_setzero_ps(), _CMP_GT_OQ),
		_mm512_set1_ps(1.0f), unit);
	for (uint32_t i = 0; i < r->n * r->groups; i += 32) {
		__m512 x = _mm512_mul_ps(_mm512_loadu_ps(product + i), inv);
		__m512 y = _mm512_mul_ps(_mm512_loadu_ps(product + i + 16), inv);

		_mm512_storeu_si512(ww->word + i,
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
	/*
	 * Words of a and b in turn, each its channel's byte and a zero below: a shift takes the bit
	 * down to where it belongs.
	 */
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
	uint32_t first, uint32_t end, int fetch, __m512i *sum)
{
	const uint8_t *row = r->codes + (ptrdiff_t)first * r->stride;
	uint32_t groups = grouping == ONE ? 1 : r->groups;
	uint32_t at[2] = { 2 * group_of(r, grouping, s->c[0]), 2 * group_of(r, grouping, s->c[1]) };

	UNROLL for (uint32_t i = 0; i < 4 * m; i++)
	{
		sum[i] = _mm512_setzero_si512();
	}
	for (uint32_t t = first; t < end; t += 2, row += 2 * r->stride) {
		__m512i x[4];

		if (fetch && t % TILE == 0)
			fetch_next(r, t);
		pair_words(bits, dim, book, row, row + (t + 1 < end ? r->stride : 0), s, x);
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
	const struct kvp_weights *w, uint32_t first, uint32_t end, uint32_t at, uint32_t field,
	int fetch, float *acc)
{
	const uint32_t part = part_of(bits, dim);
	struct strip s = { at, field, { at + field * part, at + (field + 1) * part } };
	__m512i sum[4 * TILE];

	if (bits == 8 || part % 32)
		s.c[1] = s.c[0] + 32;
	multiply_rows(r, bits, dim, m, grouping, c->book, ww, &s, first, end, fetch, sum);
	UNROLL for (uint32_t i = 0; i < m; i++)
	{
		if (i < w->nq)
			flush(r, part, grouping, &s, sum + 4 * i, &ww[i], w->fade[i],
				acc + (size_t)i * dim);
	}
}

/* Rows [first, end) with the weights of up to m queries. */
INLINE void accumulate_words(const struct kvp_rows *r, const struct codes *c, uint32_t bits,
	uint32_t dim, uint32_t m, enum grouping grouping, const struct kvp_weights *w,
	uint32_t first, uint32_t end, int fetch, float *acc)
{
	const uint32_t part = part_of(bits, dim), piece = bits == 8 ? 64 : least(part, 32);
	__m512i order = grouping == ONE ? c->book : pair_order(r->groups);
	struct word_weights ww[TILE];

	for (uint32_t i = 0; i < m; i++) {
		const float *from = w->w + least(i, w->nq - 1) * w->stride;

		if (grouping == ONE)
			weigh_rows(&ww[i], from, c, r, first, end);
		else
			weigh_groups(&ww[i], from, c, r, order);
	}
	for (uint32_t at = 0; at < part; at += piece) {
		accumulate_strip(
			r, c, bits, dim, m, grouping, ww, w, first, end, at, 0, fetch && !at, acc);
		if (width_of(bits) == 2 && part % 32 == 0)
			accumulate_strip(
				r, c, bits, dim, m, grouping, ww, w, first, end, at, 2, 0, acc);
	}
}

static void accumulate_tile(const struct kvp_rows *r, const struct codes *c,
	const struct kvp_weights *w, uint32_t first, uint32_t end, int fetch, float *acc)
{
#define WORDS(bits, dim, m, grouping) \
	accumulate_words(r, c, bits, dim, m, grouping, w, first, end, fetch, acc)
#define ACCUMULATE(bits)                                                                \
	do {                                                                            \
		if (r->groups > 1 && bits == 8)                                         \
			break;                                                          \
		if (r->groups > 1 && r->group == 16)                                    \
			WORDS(bits, r->dim, TILE, HALVES);                              \
		else if (KVP_SPECIALIZE && r->groups > 1 && r->dim == 128 && w->nq > 1) \
			WORDS(bits, 128, TILE, WHOLE);                                  \
		else if (r->groups > 1)                                                 \
			WORDS(bits, r->dim, TILE, WHOLE);                               \
		else if (KVP_SPECIALIZE && r->dim == 128 && w->nq == 1)                 \
			WORDS(bits, 128, 1, ONE);                                       \
		else if (KVP_SPECIALIZE && r->dim == 128)                               \
			WORDS(bits, 128, TILE, ONE);                                    \
		else                                                                    \
			WORDS(bits, r->dim, TILE, ONE);                                 \
	} while (0)
	PER_BITS(c->bits, ACCUMULATE);
#undef ACCUMULATE
#undef WORDS
}

int kvp_accumulate_words(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	static const float ones[TILE] = { 1.0f, 1.0f, 1.0f, 1.0f };
	const uint32_t most = r->form == KVP_FORM_BOOK ? WORD_ROWS : ATTEND_CHUNK;
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

		for (uint32_t t = 0; t < r->n; t += most) {
			accumulate_tile(r, &c, &part, t, least(t + most, r->n), !i,
				acc + (size_t)i * r->dim);
			part.fade = ones;
		}
	}
	return 1;
}
