/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weighted sums of rows of codes in AVX2: 16-bit words as in attend_vnni.c, multiplied and added in
 * pairs (vpmaddwd), which halves the work of fp32. Four queries share a row's words, which stay in
 * registers: codes are interleaved as bytes, two rows in turn, and looked up after.
 */
#include "kernels/attend_avx2.h"
#include "kernels/attend_words.h"

#define GROUPS_MAX 16u
#define BYTES_MAX  16384u /* of rows that are unpacked at a time */

/* How codes lie, and what they are. */
enum form {
	BYTES = 1, /* unpacked, to be looked up */
	TWO = 2,   /* fields of as many bits, to be looked up */
	THREE = 3, /* fields of two bits, and behind them the third bits */
	FOUR = 4,
	SIGNED = 8, /* bytes that are words themselves */
};

/* A code of 2 to 4 bits is looked up in a book, its words split into bytes; int8 is itself. */
struct codes {
	enum form form;
	uint32_t group;    /* channels with one scale */
	__m256i low, high; /* bytes of the book */
	float value;       /* of a word that is 1 */
	/* [group][row], with zeros behind; add where there are minima: to each element */
	float scale[GROUPS_MAX * ATTEND_CHUNK + 8];
	float add[GROUPS_MAX * ATTEND_CHUNK + 8];
};

/* ---- codes to words ---- */

/* Centroids, or the odd numbers around 0; see attend_vnni.c. */
static void book_init(const struct kvp_rows *r, struct codes *c)
{
	const float scale = book_scale[r->bits], odd = (float)((1 << r->bits) - 1);
	uint8_t low[32], high[32];
	int32_t word[16];

	c->value = r->form == KVP_FORM_BOOK ? 1.0f / scale : 0.5f;
	for (uint32_t i = 0; i < 16; i += 8) {
		__m256i at = _mm256_add_epi32(
			_mm256_set1_epi32((int)i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
		__m256 x = _mm256_sub_ps(
			_mm256_cvtepi32_ps(_mm256_add_epi32(at, at)), _mm256_set1_ps(odd));

		if (r->form == KVP_FORM_BOOK)
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

/* fp16 of eight rows of four groups, [row][group], as [group][row]. */
INLINE void turn_rows(const uint8_t *from, __m128i *to)
{
	__m128i x[4], y[4];

	for (uint32_t i = 0; i < 4; i += 2) {
		__m128i a = load128(from + 32 * (size_t)i / 2),
			b = load128(from + 32 * (size_t)i / 2 + 16);

		x[i] = _mm_unpacklo_epi16(a, b);
		x[i + 1] = _mm_unpackhi_epi16(a, b);
		y[i] = _mm_unpacklo_epi16(x[i], x[i + 1]);
		y[i + 1] = _mm_unpackhi_epi16(x[i], x[i + 1]);
	}
	for (uint32_t i = 0; i < 2; i++) {
		to[2 * i] = _mm_unpacklo_epi64(y[i], y[i + 2]);
		to[2 * i + 1] = _mm_unpackhi_epi64(y[i], y[i + 2]);
	}
}

/* Scalars of [row][group] as [group][row]. Four groups are usual: of 32 channels of 128. */
static void load_scalars(const struct kvp_rows *r, const uint8_t *from, uint32_t groups, float *to)
{
	const __m256 factor = _mm256_set1_ps(r->factor);
	uint32_t t = 0;

	if (groups == 1) {
		load_halves(from, r->n, r->factor, to);
		return;
	}
	for (; groups == 4 && t + 8 <= r->n; t += 8) {
		__m128i x[4];

		turn_rows(from + 8 * (size_t)t, x);
		for (uint32_t g = 0; g < 4; g++)
			_mm256_storeu_ps(to + g * ATTEND_CHUNK + t,
				clamp8(_mm256_mul_ps(load_half8(x[g]), factor), KVP_F32_MAX));
	}
	for (; t < r->n; t++)
		for (uint32_t g = 0; g < groups; g++)
			to[g * ATTEND_CHUNK + t] =
				load_half(from + 2 * ((size_t)t * groups + g), r->factor);
}

/* Behind the last row of each group, as far as the next one or, of the last one, 8. */
static void zeros_behind(const struct kvp_rows *r, uint32_t groups, float *x)
{
	const uint32_t n = least(ATTEND_CHUNK - r->n, 8);

	for (uint32_t g = 0; g < groups; g++)
		memset(x + g * ATTEND_CHUNK + r->n, 0, n * sizeof *x);
	memset(x + groups * ATTEND_CHUNK, 0, 8 * sizeof *x);
}

static void codes_init(const struct kvp_rows *r, struct codes *c)
{
	const float half = 0.5f * (float)((1u << r->bits) - 1);
	const uint32_t groups = r->groups > 1 ? r->groups : 1;

	c->form = r->form == KVP_FORM_INT8                             ? SIGNED
		  : r->bits == 4 || (r->bits < 4 && r->dim % 128 == 0) ? (enum form)r->bits
								       : BYTES;
	c->group = groups > 1 ? r->group : r->dim;
	c->value = 1.0f;
	if (c->form != SIGNED)
		book_init(r, c);
	if (r->form == KVP_FORM_BOOK && r->format)
		for (uint32_t t = 0; t < r->n; t++)
			c->scale[t] = load_scalar_wide(r->scale + 4 * (size_t)t, r->factor);
	else
		load_scalars(r, r->scale, groups, c->scale);
	zeros_behind(r, groups, c->scale);
	if (!r->minimum)
		return;
	/* From the minimum to the middle of the codes, from which the odd numbers are counted. */
	load_scalars(r, r->minimum, groups, c->add);
	for (uint32_t g = 0; g < groups; g++)
		for (uint32_t t = g * ATTEND_CHUNK; t < g * ATTEND_CHUNK + r->n; t++)
			c->add[t] += half * c->scale[t];
	zeros_behind(r, groups, c->add);
}

/* Not inline: most geometries need none of it. The last row again for those beyond. */
static __attribute__((noinline)) void unpack_rows(
	const struct kvp_rows *r, uint32_t t, uint32_t n, uint8_t *to)
{
	for (uint32_t j = 0; j < n; j++)
		unpack_row(r->bits, r->dim,
			r->codes + (ptrdiff_t)least(t + j, r->n - 1) * r->stride,
			to + (size_t)j * r->dim);
}

INLINE __m256i load256(const void *p)
{
	return _mm256_loadu_si256(p);
}

/* Fields of channels c .. in bytes x that have them; `width` bits of `dim` fields. */
INLINE __m256i fields(__m256i x, uint32_t width, uint32_t dim, uint32_t c)
{
	x = _mm256_srli_epi16(x, (int)(c / (dim * width / 8) * width));
	return _mm256_and_si256(x, _mm256_set1_epi8((char)((1 << width) - 1)));
}

/* Where in a row the bytes of channels c .. c + 31 begin. */
INLINE uint32_t place(enum form form, uint32_t dim, uint32_t c)
{
	if (form == FOUR)
		return c % (dim / 2);
	return form == TWO || form == THREE ? c % (dim / 4) : c;
}

/* x, with 4 added where of the bits in top those that are set in `bit` are. */
INLINE __m256i add_third(__m256i x, __m256i top, __m256i bit)
{
	top = _mm256_cmpeq_epi8(_mm256_and_si256(top, bit), bit);
	return _mm256_or_si256(x, _mm256_and_si256(top, _mm256_set1_epi8(4)));
}

/* Words of 32 codes: of each 16 the first 8, then the others. */
INLINE void look_up(enum form form, const struct codes *c, __m256i x, __m256i *words)
{
	__m256i y;

	if (form == SIGNED) {
		y = _mm256_cmpgt_epi8(_mm256_setzero_si256(), x);
	} else {
		y = _mm256_shuffle_epi8(c->high, x);
		x = _mm256_shuffle_epi8(c->low, x);
	}
	words[0] = _mm256_unpacklo_epi8(x, y);
	words[1] = _mm256_unpackhi_epi8(x, y);
}

static int words_fit(const struct kvp_rows *r)
{
	return r->dim % 64 == 0;
}

INLINE __m256 magnitude(__m256 x)
{
	return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

#define PER_FORM(form, call)          \
	do {                          \
		switch (form) {       \
		case TWO:             \
			call(TWO);    \
			break;        \
		case THREE:           \
			call(THREE);  \
			break;        \
		case FOUR:            \
			call(FOUR);   \
			break;        \
		case SIGNED:          \
			call(SIGNED); \
			break;        \
		default:              \
			call(BYTES);  \
			break;        \
		}                     \
	} while (0)

/* Weights of one query for a block of rows, each times its row's scale, as words. */
struct word_weights {
	int16_t word[GROUPS_MAX][WORD_ROWS];
	float unit[GROUPS_MAX]; /* of a product */
	float add[GROUPS_MAX];  /* what the minima add */
	float fade;
	float *acc;
};

/* Of centroids the sum of the weights limits the words, or else the largest weight. */
static void weigh_rows(struct word_weights *ww, uint32_t g, const struct kvp_rows *r,
	const struct codes *c, const float *w, uint32_t first, uint32_t n)
{
	const float *scale = c->scale + g * ATTEND_CHUNK + first;
	const float *middle = c->add + g * ATTEND_CHUNK + first;
	__m256 x[WORD_ROWS / 8], max = _mm256_setzero_ps(), size = max, add = max, inv;
	float top, levels = LEVELS;

	for (uint32_t t = 0; t < n; t += 8) {
		__m256 y = _mm256_maskload_ps(w + t, first8(n - t));

		if (r->minimum)
			add = _mm256_fmadd_ps(y, _mm256_loadu_ps(middle + t), add);
		y = _mm256_mul_ps(y, _mm256_loadu_ps(scale + t));
		max = _mm256_max_ps(magnitude(y), max);
		size = _mm256_add_ps(magnitude(y), size);
		x[t / 8] = y;
	}
	top = largest(max);
	if (r->form == KVP_FORM_BOOK)
		levels = book_levels(top, sum8(size));
	inv = _mm256_set1_ps(top > 0.0f ? levels / top : 0.0f);
	for (uint32_t t = 0; t < n; t += 8) {
		__m256i y = _mm256_cvtps_epi32(_mm256_mul_ps(x[t / 8], inv));

		store128(ww->word[g] + t,
			_mm_packs_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)));
	}
	ww->unit[g] = top / levels * c->value;
	ww->add[g] = r->minimum ? sum8(add) : 0.0f;
}

/* Weights of queries i .. i + 3, or as many as there are; rows [t, t + n). */
static void weigh_block(struct word_weights *ww, const struct kvp_rows *r, const struct codes *c,
	const struct kvp_weights *w, uint32_t i, uint32_t t, uint32_t n, float *acc)
{
	for (uint32_t j = 0; j < TILE && i + j < w->nq; j++) {
		for (uint32_t g = 0; g < (r->dim + c->group - 1) / c->group; g++)
			weigh_rows(&ww[j], g, r, c, w->w + (i + j) * w->stride + t, t, n);
		ww[j].fade = t ? 1.0f : w->fade[i + j];
		ww[j].acc = acc + (size_t)(i + j) * r->dim;
	}
}

/* A block of rows. */
struct block {
	const uint8_t *row;
	ptrdiff_t stride;
	uint32_t n;
};

/* The third bits of two rows in turn, for channels at + 8 h .. and, in the upper half, 16 on. */
INLINE __m256i third_bits(const uint8_t *a, const uint8_t *b, uint32_t dim, uint32_t at, uint32_t h)
{
	const uint32_t from = dim / 4 + at / 64 * 8, eight = at % 64 / 8 + h;
	__m128i low = _mm_set1_epi16((int16_t)(0x0202 * eight + 0x0100));
	__m256i order = _mm256_inserti128_si256(
		_mm256_castsi128_si256(low), _mm_add_epi8(low, _mm_set1_epi8(4)), 1);
	int64_t x, y;

	memcpy(&x, a + from, sizeof x);
	memcpy(&y, b + from, sizeof y);
	return _mm256_shuffle_epi8(
		_mm256_unpacklo_epi8(_mm256_set1_epi64x(x), _mm256_set1_epi64x(y)), order);
}

/*
 * Words of two rows in turn, channels at + 8 h .. at + 8 h + 7 and, in the upper half, 16 on: four
 * of each, then the other four.
 */
INLINE void value_words(enum form form, const struct codes *c, const uint8_t *a, const uint8_t *b,
	uint32_t dim, uint32_t at, uint32_t h, __m256i *words)
{
	const __m256i bit = _mm256_setr_epi64x(0x0808040402020101, (long long)0x8080404020201010,
		0x0808040402020101, (long long)0x8080404020201010);
	__m256i x = load256(a + place(form, dim, at)), y = load256(b + place(form, dim, at));

	x = h ? _mm256_unpackhi_epi8(x, y) : _mm256_unpacklo_epi8(x, y);
	if (form == FOUR)
		x = fields(x, 4, dim, at);
	if (form == TWO || form == THREE)
		x = fields(x, 2, dim, at);
	if (form == THREE)
		x = add_third(x, third_bits(a, b, dim, at, h), bit);
	look_up(form, c, x, words);
}

/* acc = acc * fade + unit * x + add, of 8 channels. */
INLINE void add_words(__m256i x, float unit, float add, float fade, float *acc)
{
	__m256 y = _mm256_fmadd_ps(_mm256_loadu_ps(acc), _mm256_set1_ps(fade), _mm256_set1_ps(add));

	_mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(unit), y));
}

/* Channels of value_words(), k times, from h on, of two rows times two weights of m queries. */
INLINE void add_pair(enum form form, const struct codes *c, const uint8_t *a, const uint8_t *b,
	uint32_t dim, uint32_t at, uint32_t h, uint32_t k, uint32_t m, const int16_t *word,
	__m256i *sum)
{
	__m256i x[4];

	for (uint32_t j = 0; j < k; j++)
		value_words(form, c, a, b, dim, at, h + j, x + 2 * (size_t)j);
	for (uint32_t i = 0; i < m; i++) {
		__m256i y;
		int32_t two;

		memcpy(&two, word + i * (sizeof(struct word_weights) / sizeof *word), sizeof two);
		y = _mm256_set1_epi32(two);
		for (uint32_t j = 0; j < 2 * k; j++)
			sum[2 * k * i + j] =
				_mm256_add_epi32(sum[2 * k * i + j], _mm256_madd_epi16(x[j], y));
	}
}

/* The same of a block, whose sums go where the weights say. */
INLINE void add_strip(const struct block *b, enum form form, const struct codes *c, uint32_t dim,
	uint32_t at, uint32_t h, uint32_t k, uint32_t m, const struct word_weights *ww, uint32_t nq,
	const struct kvp_rows *r, uint32_t from, uint32_t parts)
{
	const uint32_t g = at / c->group;
	const int16_t *word = ww->word[g];
	const ptrdiff_t two = 2 * b->stride;
	const uint8_t *row = b->row;
	__m256i sum[8];

	for (uint32_t i = 0; i < 2 * k * m; i++)
		sum[i] = _mm256_setzero_si256();
	for (uint32_t t = 0; t < b->n; t += FETCH_ROWS, from += parts) {
		const uint8_t *end =
			row + (ptrdiff_t)(least(b->n - t, FETCH_ROWS) & ~1u) * b->stride;

		if (parts)
			fetch_some(r, from, parts);
#pragma GCC unroll 2
		for (; row != end; row += two, word += 2)
			add_pair(form, c, row, row + b->stride, dim, at, h, k, m, word, sum);
	}
	if (b->n % 2)
		add_pair(form, c, row, row, dim, at, h, k, m, word, sum);
	for (uint32_t i = 0; i < m && i < nq; i++) {
		for (uint32_t j = 0; j < k; j++) {
			const __m256i *x = sum + 2 * k * (size_t)i + 2 * (size_t)j;
			float *acc = ww[i].acc + at + 8 * (h + (size_t)j);

			add_words(_mm256_permute2x128_si256(x[0], x[1], 0x20), ww[i].unit[g],
				ww[i].add[g], ww[i].fade, acc);
			add_words(_mm256_permute2x128_si256(x[0], x[1], 0x31), ww[i].unit[g],
				ww[i].add[g], ww[i].fade, acc + 16);
		}
	}
}

/* from: what has its turn to be fetched, unless nothing has. */
INLINE void add_block(const struct block *b, enum form form, const struct codes *c, uint32_t dim,
	uint32_t m, const struct word_weights *ww, uint32_t nq, const struct kvp_rows *r,
	uint32_t from, int fetch)
{
	const uint32_t k = m == 4 ? 1 : 2, parts = fetch ? fetch_share(dim / (16 * k)) : 0;
	const uint32_t turn = fetch_turns(b->n) * parts;

	for (uint32_t at = 0; at < dim; at += 32) {
		add_strip(b, form, c, dim, at, 0, k, m, ww, nq, r, from, parts);
		from += turn;
		if (k == 2)
			continue;
		add_strip(b, form, c, dim, at, 1, 1, m, ww, nq, r, from, parts);
		from += turn;
	}
}

INLINE void accumulate_words(const struct kvp_rows *r, const struct codes *c, enum form form,
	const struct kvp_weights *w, float *acc)
{
	const uint32_t dim = r->dim;
	const uint32_t most = form == BYTES ? least(WORD_ROWS, BYTES_MAX / dim) : WORD_ROWS;
	struct word_weights ww[TILE];
	uint8_t bytes[BYTES_MAX];

	for (uint32_t t = 0; t < r->n; t += most) {
		struct block b = { r->codes + (ptrdiff_t)t * r->stride, r->stride,
			least(r->n - t, most) };

		if (form == BYTES) {
			unpack_rows(r, t, b.n, bytes);
			b.row = bytes;
			b.stride = (ptrdiff_t)dim;
		}
		for (uint32_t i = 0; i < w->nq; i += TILE) {
			uint32_t nq = least(w->nq - i, TILE), from = t / TILE * FETCH_PARTS;

			weigh_block(ww, r, c, w, i, t, b.n, acc);
			if (nq > 2)
				add_block(&b, form, c, dim, 4, ww, nq, r, from, !i);
			else if (nq == 2)
				add_block(&b, form, c, dim, 2, ww, 2, r, from, !i);
			else
				add_block(&b, form, c, dim, 1, ww, 1, r, from, !i);
		}
	}
}

int kvp_accumulate_words_avx2(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	struct codes c;

	if (!words_fit(r) || r->per_channel)
		return 0;
	if (r->groups > 1 && (r->group % 32 || r->groups > GROUPS_MAX))
		return 0;
	codes_init(r, &c);
#define ACCUMULATE(form) accumulate_words(r, &c, form, w, acc)
	PER_FORM(c.form, ACCUMULATE);
#undef ACCUMULATE
	return 1;
}
