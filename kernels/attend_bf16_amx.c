/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Native rows in bf16 and fp16 by matrix tiles (AMX), which multiply 16 rows of 32 numbers in bf16 with 16 columns
 * in one instruction and sum in fp32: 32 times what a multiplication of vectors does.
 *
 * A query and a weight are two numbers in bf16, high + low, each with a column or a row of its own, so that a
 * tile is full with eight queries. What that costs: 2^-17 of each. Keys in bf16 are rows as they lie. fp16 is
 * bf16 high + low to the bit (11 bits are 8 and 3, and its exponents are among bf16's), with twice the
 * products. The instruction takes numbers below 2^-126 for 0, and what comes of an infinity is no number.
 *
 * What is left for the vectors: of bf16 to lay two values of a channel next to one another; of fp16, to split all.
 */
#include "kernels/attend_amx.h"

#define PIECE      32u /* channels of keys, or rows of values, that are multiplied at once */
#define STEPS      (ROWS / PIECE)
#define LEAST_BF16 2u /* queries; one is bound by memory in floats, too */
#define LEAST_F16  5u /* of fewer, splitting takes as many instructions as it saves */

static const float ones[KVP_TILE_QUERIES] = { 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f };

INLINE int worth(uint32_t dtype, uint32_t rows)
{
	return rows >= (dtype == KVP_DTYPE_BF16 ? LEAST_BF16 : LEAST_F16);
}

INLINE int native_fits(const struct kvp_rows *r, uint32_t rows)
{
	return r->form == KVP_FORM_NATIVE && r->format != KVP_DTYPE_F32 && r->dim % PIECE == 0 &&
	       worth(r->format, rows);
}

INLINE __m512i upper(void)
{
	return _mm512_set1_epi32((int)0xffff0000);
}

/* Floats as high + low, each the upper half of a lane and rounded; high is no number where x is none. */
INLINE void split(__m512 x, __m512i *high, __m512i *low)
{
	const __m512i half = _mm512_set1_epi32(0x8000), bits = _mm512_castps_si512(x);
	const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);

	*high = _mm512_and_si512(_mm512_mask_add_epi32(bits, number, bits, half), upper());
	*low = _mm512_castps_si512(_mm512_sub_ps(x, _mm512_castsi512_ps(*high)));
	*low = _mm512_and_si512(_mm512_add_epi32(*low, half), upper());
}

/* Sixteen numbers in fp16, exactly; of an infinity low is no number. */
INLINE void split_half(const uint8_t *from, __m512i *high, __m512i *low)
{
	const __m512 x = _mm512_cvtph_ps(load256(from));

	*high = _mm512_and_si512(_mm512_castps_si512(x), upper());
	*low = _mm512_castps_si512(_mm512_sub_ps(x, _mm512_castsi512_ps(*high)));
}

/* Upper halves of lanes, as pairs: those of a come first. */
INLINE __m512i pair(__m512i a, __m512i b)
{
	return _mm512_or_si512(_mm512_srli_epi32(a, 16), b);
}

/* ---- queries ---- */

/* 32 channels: of fp16 pairs of c and 16 + c, of bf16 of neighbours. */
INLINE void pair_channels(const float *f, uint32_t dtype, __m512i *high, __m512i *low)
{
	const __m512i even =
		_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
	__m512 a = _mm512_loadu_ps(f), b = _mm512_loadu_ps(f + 16), x = a;
	__m512i h[2], l[2];

	if (dtype == KVP_DTYPE_BF16) {
		a = _mm512_permutex2var_ps(x, even, b);
		b = _mm512_permutex2var_ps(x, _mm512_or_si512(even, _mm512_set1_epi32(1)), b);
	}
	split(a, &h[0], &l[0]);
	split(b, &h[1], &l[1]);
	*high = pair(h[0], h[1]);
	*low = pair(l[0], l[1]);
}

/* [pass][piece][pair of channels][high of m queries, low of m queries]; beyond the last query zeros. */
static int pair_queries(
	const float *f, uint32_t rows, uint32_t dim, uint32_t dtype, void *ret_pairs)
{
	const uint32_t m = columns_of(rows);
	const __m512i lane = _mm512_mullo_epi32(
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
		_mm512_set1_epi32((int)(2 * m)));
	uint32_t *to = ret_pairs;

	if (!worth(dtype, rows))
		return 0;
	for (uint32_t at = 0; at < rows; at += KVP_TILE_QUERIES) {
		for (uint32_t c = 0; c < dim; c += PIECE, to += PIECE / 2 * 2 * m) {
			for (uint32_t i = 0; i < m; i++) {
				__m512i high = _mm512_setzero_si512(), low = high;

				if (at + i < rows)
					pair_channels(
						f + (size_t)(at + i) * dim + c, dtype, &high, &low);
				_mm512_i32scatter_epi32(to + i, lane, high, 4);
				_mm512_i32scatter_epi32(to + m + i, lane, low, 4);
			}
		}
	}
	return 1;
}

/* ---- keys ---- */

/* Rows of a piece in two tiles, or in four. */
struct keys {
	uint8_t high[2 * GROUP][64] __attribute__((aligned(64)));
	uint8_t low[2 * GROUP][64] __attribute__((aligned(64)));
};

/* n rows from `row` on, with zeros behind; of fp16 high and low. */
INLINE void take_keys(
	const uint8_t *row, ptrdiff_t stride, uint32_t dtype, uint32_t n, struct keys *k)
{
	for (uint32_t t = 0; t < n; t++, row += stride) {
		__m512i h[2], l[2];

		if (dtype == KVP_DTYPE_BF16) {
			_mm512_store_si512(k->high[t], _mm512_loadu_si512(row));
			continue;
		}
		split_half(row, &h[0], &l[0]);
		split_half(row + 32, &h[1], &l[1]);
		_mm512_store_si512(k->high[t], pair(h[0], h[1]));
		_mm512_store_si512(k->low[t], pair(l[0], l[1]));
	}
	for (uint32_t t = n; t < 2 * GROUP; t++) {
		_mm512_store_si512(k->high[t], _mm512_setzero_si512());
		_mm512_store_si512(k->low[t], _mm512_setzero_si512());
	}
}

/* Two groups at a time with the queries that were loaded: a sum alone would wait for itself. */
INLINE void multiply_groups(const uint8_t *rows, ptrdiff_t stride)
{
	TILE_LOAD(T_KEYS, rows, stride);
	TILE_DOT_BF16(T_SCORE, T_KEYS, T_QUERY);
	TILE_LOAD(T_VALUES, rows + (ptrdiff_t)GROUP * stride, stride);
	TILE_DOT_BF16(T_QUERY2, T_VALUES, T_QUERY);
}

/* Sums of 2 * GROUP rows from t on, or of as many as there are, with the queries of one pass. */
INLINE void sum_keys(const struct kvp_rows *r, uint32_t m, uint32_t t, const uint8_t *pairs,
	int fetch, float *sum)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
	const uint32_t n = least(r->n - t, 2 * GROUP), parts = 4 * GROUP * PIECE / r->dim;
	const int as_they_lie = r->format == KVP_DTYPE_BF16 && n == 2 * GROUP;
	struct keys k;

	TILE_ZERO(T_SCORE);
	TILE_ZERO(T_QUERY2);
	for (uint32_t c = 0; c < r->dim; c += PIECE, pairs += 16 * 8 * m, row += 2 * PIECE) {
		TILE_LOAD(T_QUERY, pairs, 8 * m);
		if (as_they_lie) {
			multiply_groups(row, r->stride);
		} else {
			take_keys(row, r->stride, r->format, n, &k);
			multiply_groups(k.high[0], 64);
		}
		if (r->format == KVP_DTYPE_F16)
			multiply_groups(k.low[0], 64);
		if (fetch)
			fetch_some(r, 2 * t + c / PIECE * parts, parts);
	}
	TILE_STORE(T_SCORE, sum, 8 * m);
	TILE_STORE(T_QUERY2, sum + GROUP * 2 * m, 8 * m);
}

/* Sums of GROUP rows, [row][high of m queries, low of m queries], to scores of nq. */
INLINE void put_pairs(const float *sum, uint32_t m, uint32_t nq, float *s, size_t s_stride)
{
	__m512 x[KVP_TILE_QUERIES];

	UNROLL for (uint32_t i = 0; i < m; i++)
	{
		const __m512 a = _mm512_load_ps(sum + 32 * i);
		const __m512 b = _mm512_load_ps(sum + 32 * i + 16);

		x[i] = m == 4 ? _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88),
					_mm512_shuffle_f32x4(a, b, 0xdd))
			      : _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44),
					_mm512_shuffle_f32x4(a, b, 0xee));
	}
	put_scores(x, m, nq, ones, _mm512_set1_ps(1.0f), s, s_stride);
}

INLINE void score_pass(const struct kvp_rows *r, uint32_t m, uint32_t nq, const uint8_t *pairs,
	int fetch, float *s, size_t s_stride)
{
	float sum[2 * GROUP * 2 * KVP_TILE_QUERIES] __attribute__((aligned(64)));

	for (uint32_t t = 0; t < r->n; t += 2 * GROUP) {
		sum_keys(r, m, t, pairs, fetch, sum);
		for (uint32_t g = 0; g < least(r->n - t, 2 * GROUP); g += GROUP)
			put_pairs(sum + g * 2 * m, m, nq, s + t + g, s_stride);
	}
}

static void score_native(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	const uint8_t *pairs;

	if (!native_fits(r, q->n) || !q->pairs[r->format - KVP_DTYPE_F16]) {
		kvp_score_float_avx512(r, q, s, s_stride);
		return;
	}
	kvp_tiles_for(q->n, BYTES_OF_PAIRS);
	pairs = q->pairs[r->format - KVP_DTYPE_F16];
	for (uint32_t i = 0; i < q->n; i += KVP_TILE_QUERIES, pairs += kvp_pairs_bytes(r->dim)) {
		const uint32_t nq = least(q->n - i, KVP_TILE_QUERIES);

		if (columns_of(q->n) == 4)
			score_pass(r, 4, nq, pairs, i == 0, s + i * s_stride, s_stride);
		else
			score_pass(
				r, KVP_TILE_QUERIES, nq, pairs, i == 0, s + i * s_stride, s_stride);
	}
}

/* ---- values ---- */

/* [step][high of m queries, low of m queries][row] */
struct pair_weights {
	uint16_t w[STEPS][2 * KVP_TILE_QUERIES][PIECE] __attribute__((aligned(64)));
};

/* Weights of rows [first, first + n), n <= ROWS, of m queries or of as many as there are. */
static void split_weights_of(const struct kvp_weights *w, uint32_t m, uint32_t first, uint32_t n,
	struct pair_weights *ret)
{
	const uint32_t nq = least(w->nq, m);

	if (nq < m)
		memset(ret, 0, sizeof *ret);
	for (uint32_t i = 0; i < nq; i++) {
		for (uint32_t t = 0; t < ROWS; t += 16) {
			const __mmask16 in = n > t ? first16(n - t) : 0;
			uint16_t(*to)[PIECE] = ret->w[t / PIECE];
			__m512i high, low;

			split(_mm512_maskz_loadu_ps(in, w->w + i * w->stride + first + t), &high,
				&low);
			_mm256_store_si256((void *)(to[i] + t % PIECE),
				_mm512_cvtepi32_epi16(_mm512_srli_epi32(high, 16)));
			_mm256_store_si256((void *)(to[m + i] + t % PIECE),
				_mm512_cvtepi32_epi16(_mm512_srli_epi32(low, 16)));
		}
	}
}

/* 32 channels of ROWS rows, a pair of rows next to one another: two tiles a step, or four. */
struct values {
	uint8_t high[STEPS][2][PIECE / 2][64] __attribute__((aligned(64)));
	uint8_t low[STEPS][2][PIECE / 2][64] __attribute__((aligned(64)));
};

/* bf16: the first tile has channels 0 .. 3 of every eight, the second 4 .. 7. */
INLINE void interleave(const uint8_t *row, const uint8_t *next, uint32_t at, struct values *v)
{
	const uint32_t step = at / PIECE, pair = at % PIECE / 2;
	const __m512i a = _mm512_loadu_si512(row);
	const __m512i b = next ? _mm512_loadu_si512(next) : _mm512_setzero_si512();

	_mm512_store_si512(v->high[step][0][pair], _mm512_unpacklo_epi16(a, b));
	_mm512_store_si512(v->high[step][1][pair], _mm512_unpackhi_epi16(a, b));
}

/* fp16: sixteen channels each. */
INLINE void interleave_halves(
	const uint8_t *row, const uint8_t *next, uint32_t at, struct values *v)
{
	const uint32_t step = at / PIECE;

	UNROLL for (uint32_t j = 0; j < 2; j++)
	{
		__m512i h[2], l[2];

		split_half(row + 32 * j, &h[0], &l[0]);
		h[1] = l[1] = _mm512_setzero_si512();
		if (next)
			split_half(next + 32 * j, &h[1], &l[1]);
		_mm512_store_si512(v->high[step][j][at % PIECE / 2], pair(h[0], h[1]));
		_mm512_store_si512(v->low[step][j][at % PIECE / 2], pair(l[0], l[1]));
	}
}

/* Rows [first, first + n), n <= ROWS, from channel c on. What is behind n is zeros already. */
INLINE void take_values(
	const struct kvp_rows *r, uint32_t first, uint32_t n, uint32_t c, struct values *v)
{
	const uint8_t *row = r->codes + (ptrdiff_t)first * r->stride + 2 * (size_t)c;

	for (uint32_t t = 0; t < n; t += 2, row += 2 * r->stride) {
		const uint8_t *next = t + 1 < n ? row + r->stride : NULL;

		if (r->format == KVP_DTYPE_BF16)
			interleave(row, next, t, v);
		else
			interleave_halves(row, next, t, v);
	}
}

#define ADD_STEP(weights, values, tile)               \
	do {                                          \
		TILE_LOAD(tile, values, 64);          \
		TILE_LOAD(T_WEIGHT, weights, 64);     \
		TILE_DOT_BF16(T_SUM, T_WEIGHT, tile); \
	} while (0)

/* Sums of sixteen channels: [high of m queries, low of m queries][channel]. */
INLINE void sum_values(const struct pair_weights *w, const struct values *v, uint32_t tile,
	uint32_t steps, int halves, float *sum)
{
	TILE_ZERO(T_SUM);
	for (uint32_t k = 0; k < steps; k++) {
		ADD_STEP(w->w[k], v->high[k][tile], T_VALUES);
		if (halves)
			ADD_STEP(w->w[k], v->low[k][tile], T_VALUES2);
	}
	TILE_STORE(T_SUM, sum, 64);
}

/* acc = acc * fade + sums, of 32 channels of a query. */
INLINE void add_pairs(const float *sum, uint32_t m, uint32_t dtype, float fade, float *acc)
{
	const __m512i order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
	const __m512i after = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
	const __m512 f = _mm512_set1_ps(fade);
	__m512 x[2];

	UNROLL for (uint32_t j = 0; j < 2; j++)
	{
		const float *at = sum + j * TILE_BYTES / 4;

		x[j] = _mm512_add_ps(_mm512_load_ps(at), _mm512_load_ps(at + m * 16));
	}
	if (dtype == KVP_DTYPE_BF16) {
		const __m512d a = _mm512_castps_pd(x[0]), b = _mm512_castps_pd(x[1]);

		x[0] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, order, b));
		x[1] = _mm512_castpd_ps(_mm512_permutex2var_pd(a, after, b));
	}
	UNROLL for (uint32_t j = 0; j < 2; j++) _mm512_storeu_ps(
		acc + 16 * j, _mm512_fmadd_ps(_mm512_loadu_ps(acc + 16 * j), f, x[j]));
}

/* Rows [first, first + n), n <= ROWS, with the weights of one pass. */
INLINE void accumulate_pass(const struct kvp_rows *r, const struct kvp_weights *w, uint32_t m,
	uint32_t first, uint32_t n, int fetch, const float *fade, float *acc)
{
	const uint32_t parts = 2 * ROWS * PIECE / r->dim, steps = (n + PIECE - 1) / PIECE;
	float sum[2 * TILE_BYTES / 4] __attribute__((aligned(64)));
	struct pair_weights pw;
	struct values v;

	split_weights_of(w, m, first, n, &pw);
	if (n < ROWS)
		memset(&v, 0, sizeof v);
	for (uint32_t c = 0; c < r->dim; c += PIECE) {
		take_values(r, first, n, c, &v);
		if (fetch)
			fetch_some(r, 2 * first + c / PIECE * parts, parts);
		for (uint32_t j = 0; j < 2; j++)
			sum_values(&pw, &v, j, steps, r->format == KVP_DTYPE_F16,
				sum + j * TILE_BYTES / 4);
		for (uint32_t i = 0; i < least(w->nq, m); i++)
			add_pairs(
				sum + i * 16, m, r->format, fade[i], acc + (size_t)i * r->dim + c);
	}
}

static void accumulate_native(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	const uint32_t m = columns_of(r->tiles);

	if (!native_fits(r, r->tiles)) {
		kvp_accumulate_float_avx512(r, w, acc);
		return;
	}
	kvp_tiles_for(r->tiles, BYTES_OF_PAIRS);
	for (uint32_t i = 0; i < w->nq; i += m) {
		struct kvp_weights part = { least(w->nq - i, m), w->w + i * w->stride, w->stride,
			w->fade + i };

		for (uint32_t t = 0; t < r->n; t += ROWS)
			accumulate_pass(r, &part, m, t, least(r->n - t, ROWS), i == 0,
				t ? ones : part.fade, acc + (size_t)i * r->dim);
	}
}

void kvp_attend_init_pairs(struct kvp_kernels *k)
{
	k->attend[KVP_FORM_NATIVE].score = score_native;
	k->attend[KVP_FORM_NATIVE].accumulate = accumulate_native;
	k->tiles.begin = kvp_tiles_begin;
	k->tiles.end = kvp_tiles_end;
	k->tiles.pairs = pair_queries;
}
