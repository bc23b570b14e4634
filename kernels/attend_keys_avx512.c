/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores of rows of codes in AVX-512: codes are looked up in a book of floats and multiplied with
 * queries as they are, so that a score is as exact as fp32. Sixteen rows lie in the sixteen lanes:
 * codes are turned while they are still small, four bytes of each row to a register, and no sum has
 * to be gathered from lanes in the end. A channel of sixteen rows takes a shift, a look-up, and a
 * multiplication with each of up to four queries, whose floats are broadcast from memory.
 */
#include "kernels/attend_avx512.h"
#include "kernels/attend_unroll.h"

#define STEP 16u /* rows that are scored at a time */

/* What the rows are, beside their codes. */
struct keys {
	uint32_t bits;
	__m512 book; /* of 2 to 4 bits */
	struct scales s;
};

/* ---- codes to floats ---- */

/* Centroids (tq), or how far a code is from the middle of the codes. */
static void keys_init(const struct kvp_rows *r, struct keys *k)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i low = _mm512_and_si512(lane, _mm512_set1_epi32((1 << r->bits) - 1));
	const __m512 middle = _mm512_set1_ps(0.5f * (float)((1u << r->bits) - 1));

	k->bits = r->form == KVP_FORM_INT8 ? 8 : r->bits;
	k->book = r->form == KVP_FORM_BOOK ? _mm512_loadu_ps(r->cent)
					   : _mm512_sub_ps(_mm512_cvtepi32_ps(low), middle);
	if (!r->per_channel)
		scales_init(r, &k->s);
}

/* Bytes between a code and the next one in the same byte. */
INLINE uint32_t part_of(uint32_t bits, uint32_t dim)
{
	return bits == 3 ? dim / 4 : dim * bits / 8;
}

/* x with bit n of y as its bit 2; n: 0 to 3. */
INLINE __m512i with_third(__m512i x, __m512i y, uint32_t n)
{
	if (n < 2)
		y = _mm512_slli_epi32(y, 2 - n);
	else if (n > 2)
		y = _mm512_srli_epi32(y, n - 2);
	return _mm512_ternarylogic_epi32(_mm512_set1_epi32(4), y, x, 0xca);
}

/*
 * Codes that begin at bit `at` of sixteen dwords as floats; of 3 bits, bit n of y is the third. A
 * look-up takes four bits, and the book has the same value whatever those above the code are. A
 * byte becomes the top one of a dword: SIGNED_UNIT is what is 1.
 */
#define SIGNED_UNIT 0x1p24f
INLINE __m512 values(uint32_t bits, __m512 book, __m512i x, uint32_t at, __m512i y, uint32_t n)
{
	const __m512i lanes =
		_mm512_broadcast_i32x4(_mm_setr_epi32(0, 0x04000000, 0x08000000, 0x0c000000));

	if (bits == 8)
		return _mm512_cvtepi32_ps(_mm512_shuffle_epi8(
			x, _mm512_add_epi32(
				   lanes, _mm512_set1_epi32((int)(0x00808080 + (at << 21))))));
	if (at)
		x = _mm512_srli_epi32(x, at);
	if (bits == 3)
		x = with_third(x, y, n);
	return _mm512_permutexvar_ps(x, book);
}

/* The sixteen channels of field f that begin at byte `at`, against m queries; x: the rows' dwords. */
INLINE void dot_field(uint32_t bits, uint32_t part, uint32_t m, __m512 book, const __m512i *x,
	uint32_t f, uint32_t at, const float *const *q, __m512 (*sum)[TILE])
{
	const uint32_t width = bits == 3 ? 2 : bits, c = f * part + at;
	/* Of 3 bits the third ones, of which a dword has 32. */
	__m512i third = x[0];

	if (bits == 3)
		third = _mm512_srl_epi32(x[part / 4 + c / 32], _mm_cvtsi32_si128((int)(c % 32)));
	x += at / 4;
	UNROLL for (uint32_t j = 0; j < 16; j++)
	{
		__m512 y = values(bits, book, x[j / 4], j % 4 * 8 + f * width, third, j % 4);

		for (uint32_t i = 0; i < m; i++)
			sum[j % 2][i] = multiply_add(sum[j % 2][i], y, q[i] + c + j);
		if (bits == 3 && j % 4 == 3)
			third = _mm512_srli_epi32(third, 4);
	}
}

/* Sixteen rows, a lane each, against m queries. */
INLINE void dot_rows(uint32_t bits, uint32_t dim, uint32_t m, __m512 book,
	const uint8_t *const *row, const float *const *q, __m512 *ret)
{
	const uint32_t part = part_of(bits, dim);
	__m512i x[DIM_MAX / 4];
	__m512 sum[2][TILE];

	turn_all(row, kvp_row_bytes(bits, dim), x);
	for (uint32_t i = 0; i < m; i++)
		sum[0][i] = sum[1][i] = _mm512_setzero_ps();
	for (uint32_t at = 0; at < part; at += 16) {
		/* One by one, so that what is shifted by is known. */
		dot_field(bits, part, m, book, x, 0, at, q, sum);
		if (bits < 8)
			dot_field(bits, part, m, book, x, 1, at, q, sum);
		if (bits < 4) {
			dot_field(bits, part, m, book, x, 2, at, q, sum);
			dot_field(bits, part, m, book, x, 3, at, q, sum);
		}
	}
	for (uint32_t i = 0; i < m; i++)
		ret[i] = _mm512_add_ps(sum[0][i], sum[1][i]);
}

/* ---- rows ---- */

/* Up to four queries, and what of each is multiplied by a row's addend. */
struct queries {
	const float *f[TILE];
	float sum[TILE];
};

/* Rows [first, end) against m queries, of which nq are wanted. */
INLINE void score_rows(const struct kvp_rows *r, const struct keys *k, uint32_t bits, uint32_t dim,
	uint32_t m, const struct queries *q, uint32_t nq, uint32_t first, uint32_t end, float *s,
	size_t s_stride)
{
	const __m512 book = k->book;

	for (uint32_t t = first; t < end; t += STEP) {
		__mmask16 in = first16(end - t);
		const uint8_t *row[STEP];
		__m512 sum[TILE], scale, add;

		for (uint32_t j = 0; j < STEP; j += TILE)
			fetch_next(r, t + j);
		for (uint32_t j = 0; j < STEP; j++)
			row[j] = r->codes + (ptrdiff_t)least(t + j, r->n - 1) * r->stride;
		dot_rows(bits, dim, m, book, row, q->f, sum);
		scale = _mm512_maskz_loadu_ps(in, k->s.scale + t);
		add = _mm512_maskz_loadu_ps(in, k->s.add + t);
		for (uint32_t i = 0; i < m && i < nq; i++) {
			__m512 x = sum[i], y = _mm512_set1_ps(q->sum[i]);

			if (bits == 8)
				x = _mm512_mul_ps(x, _mm512_set1_ps(1.0f / SIGNED_UNIT));
			x = _mm512_mul_ps(x, scale);
			if (r->minimum)
				x = _mm512_fmadd_ps(add, y, x);
			_mm512_mask_storeu_ps(s + i * s_stride + t, in, x);
		}
	}
}

/* With everything that the compiler can unroll for the usual 128 channels. */
static void score_tile(const struct kvp_rows *r, const struct keys *k, const struct queries *q,
	uint32_t nq, uint32_t first, uint32_t end, float *s, size_t s_stride)
{
#define SCORE(bits)                                                                           \
	do {                                                                                  \
		if (KVP_SPECIALIZE && r->dim == 128 && nq == 1)                               \
			score_rows(r, k, bits, 128, 1, q, nq, first, end, s, s_stride);       \
		else if (KVP_SPECIALIZE && r->dim == 128)                                     \
			score_rows(r, k, bits, 128, TILE, q, nq, first, end, s, s_stride);    \
		else                                                                          \
			score_rows(r, k, bits, r->dim, TILE, q, nq, first, end, s, s_stride); \
	} while (0)
	PER_BITS(k->bits, SCORE);
#undef SCORE
}

/* ---- kivi ---- */

INLINE __m512 halves16(const uint8_t *p, uint32_t c, float scale)
{
	return load_half16(
		_mm256_loadu_si256((const __m256i *)(const void *)(p + 2 * (size_t)c)), scale);
}

/* One group of tokens: one scale and minimum per channel. */
struct channels {
	float scale[DIM_MAX];
	float add[DIM_MAX]; /* the middle of the codes */
};

static void channels_init(const struct kvp_rows *r, uint32_t g, struct channels *ch)
{
	const __m512 middle = _mm512_set1_ps(0.5f * (float)((1u << r->bits) - 1));
	const uint8_t *scale = r->scale + 2 * (size_t)g * r->dim;
	const uint8_t *min = r->minimum + 2 * (size_t)g * r->dim;

	for (uint32_t c = 0; c < r->dim; c += 16) {
		__m512 x = halves16(scale, c, r->factor);

		_mm512_storeu_ps(ch->scale + c, x);
		_mm512_storeu_ps(
			ch->add + c, _mm512_fmadd_ps(x, middle, halves16(min, c, r->factor)));
	}
}

/* A query with the scales folded in. Returns what the middles of the codes add. */
static float fold_query(const struct channels *ch, uint32_t dim, const float *q, float *ret_q)
{
	__m512 sum = _mm512_setzero_ps();

	for (uint32_t c = 0; c < dim; c += 16) {
		__m512 x = _mm512_loadu_ps(q + c);

		sum = _mm512_fmadd_ps(x, _mm512_loadu_ps(ch->add + c), sum);
		_mm512_storeu_ps(ret_q + c, _mm512_mul_ps(x, _mm512_loadu_ps(ch->scale + c)));
	}
	return _mm512_reduce_add_ps(sum);
}

static void score_channels(const struct kvp_rows *r, struct keys *k, const struct kvp_queries *q,
	float *s, size_t s_stride)
{
	float folded[TILE][DIM_MAX];
	struct channels ch;
	struct queries w;

	for (uint32_t t = 0; t < r->n; t++)
		k->s.scale[t] = k->s.add[t] = 1.0f;
	for (uint32_t t = 0; t < r->n; t += r->group) {
		channels_init(r, t / r->group, &ch);
		for (uint32_t i = 0; i < q->n; i += TILE) {
			uint32_t nq = least(q->n - i, TILE);

			for (uint32_t j = 0; j < TILE; j++) {
				w.f[j] = folded[least(j, nq - 1)];
				w.sum[j] = 0.0f;
				if (j < nq)
					w.sum[j] = fold_query(&ch, r->dim,
						q->f + (size_t)(i + j) * r->dim, folded[j]);
			}
			score_tile(r, k, &w, nq, t, least(t + r->group, r->n), s + i * s_stride,
				s_stride);
		}
	}
}

int kvp_score_codes_avx512(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	struct queries w;
	struct keys k;

	if (r->dim % 64 || (!r->per_channel && r->groups > 1))
		return 0;
	keys_init(r, &k);
	if (r->per_channel) {
		score_channels(r, &k, q, s, s_stride);
		return 1;
	}
	for (uint32_t i = 0; i < q->n; i += TILE) {
		for (uint32_t j = 0; j < TILE; j++) {
			uint32_t at = least(i + j, q->n - 1);

			w.f[j] = q->f + (size_t)at * r->dim;
			w.sum[j] = q->sum[at];
		}
		score_tile(r, &k, &w, least(q->n - i, TILE), 0, r->n, s + i * s_stride, s_stride);
	}
	return 1;
}
