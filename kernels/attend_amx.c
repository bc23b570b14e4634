/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of 4-bit codes from a book of centroids (tq) by matrix tiles (AMX), which multiply 16 rows of 64
 * signed bytes with 16 columns in one instruction and sum in 32 bits: sixteen times what vpdpwssd does.
 *
 * A centroid is one byte, at a scale at which the book's are nearly integers. A query and a weight
 * are two bytes, 128 high + low, that take a column or a row each, so that a tile is full with eight
 * queries. What that costs: a centroid is off by some 3e-3 of the mean square of the values, which
 * is a thirtieth of what four bits cost; queries and weights by 3e-5 of the largest.
 *
 * What is left for the vectors is to look codes up (vpermb, 64 at a time) and, of values, to lay four
 * rows' bytes next to one another before, while they are still codes of two channels each.
 */
#include "kernels/attend_avx512.h"
#include "kernels/attend_unroll.h"

#include <math.h>

#define GROUP      16u /* rows of a tile of keys */
#define ROWS       64u /* of values, that one instruction sums */
#define CODES      64u /* bytes of a row that are looked up together: two tiles' width of channels */
#define TILE_BYTES 1024u
#define TOP        16256.0f /* 127 * 128: of the two bytes of a number */

/* Tiles, by numbers as the assembler wants them: sums of scores, keys, queries; sums of values, weights, values. */
#define T_SCORE   0
#define T_KEYS    1
#define T_QUERY   2
#define T_QUERY2  3
#define T_SUM     4
#define T_WEIGHT  5
#define T_VALUES  6
#define T_VALUES2 7

/*
 * Not the compilers' intrinsics: gcc 12 does not know of those what memory they read, and leaves out
 * what is written there.
 */
#define AS_TEXT(x) #x
#define TILE_LOAD(tile, from, stride)                                                           \
	__asm__ volatile(                                                                       \
		"tileloadd (%0,%1,1), %%tmm" AS_TEXT(tile)::"r"(from), "r"((ptrdiff_t)(stride)) \
		: "memory")
#define TILE_STORE(tile, to, stride)                                                               \
	__asm__ volatile(                                                                          \
		"tilestored %%tmm" AS_TEXT(tile) ", (%0,%1,1)" ::"r"(to), "r"((ptrdiff_t)(stride)) \
		: "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %tmm" AS_TEXT(tile))
/* sum += rows * columns */
#define TILE_DOT(sum, rows, columns) \
	__asm__ volatile(            \
		"tdpbssd %tmm" AS_TEXT(columns) ", %tmm" AS_TEXT(rows) ", %tmm" AS_TEXT(sum))

/* As many queries as the tiles are configured for. */
static uint32_t columns_of(uint32_t rows)
{
	return rows <= 4 ? 4 : KVP_TILE_QUERIES;
}

static void begin(uint32_t rows)
{
	struct {
		uint8_t palette, start, reserved[14];
		uint16_t row_bytes[16];
		uint8_t rows[16];
	} __attribute__((aligned(64))) c = { .palette = 1 };
	const uint32_t m = columns_of(rows);

	for (int i = T_SCORE; i <= T_VALUES2; i++) {
		c.rows[i] = 16;
		c.row_bytes[i] = 64;
	}
	c.row_bytes[T_SCORE] = c.row_bytes[T_QUERY] = c.row_bytes[T_QUERY2] = (uint16_t)(8 * m);
	c.rows[T_SUM] = c.rows[T_WEIGHT] = (uint8_t)(2 * m);
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

static void end(void)
{
	__asm__ volatile("tilerelease");
}

/* ---- queries ---- */

/* Channel of byte i of what the tile `half` of piece p holds; dim: none. */
static uint32_t channel_of(uint32_t dim, uint32_t p, uint32_t half, uint32_t i)
{
	const uint32_t c = p * CODES + i;

	return c < dim / 2 ? c + half * (dim / 2) : dim;
}

static void put_query(const float *f, uint32_t dim, uint32_t m, uint32_t at, struct kvp_tiles *to)
{
	float largest = 0.0f, inv;

	for (uint32_t c = 0; c < dim; c++)
		largest = fabsf(f[c]) > largest ? fabsf(f[c]) : largest;
	/* What no float can divide, or is none, stays what it is in the unit. */
	inv = largest > 1e-30f && largest < INFINITY ? TOP / largest : 0.0f;
	to->unit[at] = largest / TOP;
	for (uint32_t c = 0; c < dim; c++)
		if (f[c] != f[c])
			to->unit[at] = f[c];
	for (uint32_t p = 0; 2 * p * CODES < dim; p++)
		for (uint32_t i = 0; i < 2 * CODES; i++) {
			const uint32_t half = i / CODES, j = i % CODES;
			const uint32_t c = channel_of(dim, p, half, j);
			const int32_t w = c < dim && f[c] == f[c]
						  ? _mm_cvtss_si32(_mm_set_ss(f[c] * inv))
						  : 0;
			const int32_t high = (w + 64) >> 7;
			int8_t *b = to->b + (2 * p + half) * TILE_BYTES + j / 4 * 8 * m + j % 4;

			b[4 * at] = (int8_t)high;
			b[4 * (m + at)] = (int8_t)(w - high * 128);
		}
}

static void queries(const float *f, uint32_t rows, uint32_t dim, void *ret)
{
	uint8_t *to = ret;
	const size_t pass = kvp_tiles_bytes(dim);

	memset(to, 0, pass * ((rows + KVP_TILE_QUERIES - 1) / KVP_TILE_QUERIES));
	for (uint32_t i = 0; i < rows; i++)
		put_query(f + (size_t)i * dim, dim, columns_of(rows), i % KVP_TILE_QUERIES,
			(void *)(to + i / KVP_TILE_QUERIES * pass));
}

/* ---- the book ---- */

struct bytes {
	__m512i book; /* 16 signed bytes, four times */
	float value;  /* of a 1 */
};

/* How much each centroid counts: how often the code occurs, of the smallest to the largest. */
static const float often[8] = { 0.2002f, 0.1870f, 0.1627f, 0.1311f, 0.0959f, 0.0613f, 0.0324f,
	0.0094f };

/* The scale, of sixteen up to the largest that there can be, at which bytes are least off. */
static float scale_of(const float *cent)
{
	const __m512 lane = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512 s = _mm512_mul_ps(_mm512_set1_ps(127.0f / cent[15]),
		_mm512_fnmadd_ps(lane, _mm512_set1_ps(0.0165f), _mm512_set1_ps(1.0f)));
	__m512 sum = _mm512_setzero_ps();
	float scale[16];

	for (uint32_t i = 0; i < 8; i++) {
		const __m512 c = _mm512_set1_ps(cent[8 + i]), x = _mm512_mul_ps(c, s);
		const __m512 e = _mm512_div_ps(_mm512_sub_ps(_mm512_roundscale_ps(x, RNE), x), s);

		sum = _mm512_fmadd_ps(_mm512_mul_ps(e, e), _mm512_set1_ps(often[i]), sum);
	}
	_mm512_storeu_ps(scale, s);
	return scale[__builtin_ctz(
		_mm512_cmple_ps_mask(sum, _mm512_set1_ps(_mm512_reduce_min_ps(sum))) | 0x8000u)];
}

static struct bytes bytes_init(const struct kvp_rows *r)
{
	/* Of the Gaussian's book the best of all scales is known. */
	const float gauss = 44771.0f / 16384.0f;
	const float scale = r->cent[15] == gauss ? 38.214f : scale_of(r->cent);
	const __m512i x =
		_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(r->cent), _mm512_set1_ps(scale)));

	return (struct bytes){ _mm512_broadcast_i32x4(_mm512_cvtsepi32_epi8(x)), 1.0f / scale };
}

/* Whole pieces, or a last one of which half is there. */
INLINE __mmask64 piece_of(uint32_t dim, uint32_t p)
{
	const uint32_t left = dim / 2 - p * CODES;

	return left < CODES ? (UINT64_C(1) << left) - 1 : ~UINT64_C(0);
}

/*
 * What is read next, as lines to be fetched for every TILE rows of work. Mostly rows lie one after the
 * other, and nothing else is to be found out. 0: they do not, and fetch_next() is asked.
 */
static uint32_t lines_of(const struct kvp_rows *r)
{
	const size_t bytes = (size_t)r->next_n * r->next_bytes, tiles = (r->n + TILE - 1) / TILE;

	if (r->next_stride != (ptrdiff_t)r->next_bytes)
		return 0;
	return (uint32_t)((bytes / 64 + tiles - 1) / tiles);
}

INLINE void fetch_lines(const struct kvp_rows *r, uint32_t t, uint32_t lines)
{
	const uint8_t *at = r->next + (size_t)(t / TILE * lines) * 64;

	if (!lines)
		fetch_next(r, t);
	for (uint32_t i = 0; i < lines; i++)
		_mm_prefetch(at + 64 * (size_t)i, _MM_HINT_T1);
}

/* TILE rows from t on; beyond the last one the last again. */
INLINE void rows_at(const struct kvp_rows *r, uint32_t t, const uint8_t **row)
{
	const uint8_t *at = r->codes + (ptrdiff_t)t * r->stride;

	if (t + TILE > r->n) {
		tile_rows(r, t, row);
		return;
	}
	UNROLL for (uint32_t i = 0; i < TILE; i++, at += r->stride) row[i] = at;
}

/* 128 high + low. */
INLINE __m512 joined(__m512i high, __m512i low)
{
	return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low));
}

static int fits(const struct kvp_rows *r)
{
	return r->form == KVP_FORM_BOOK && r->bits == 4 && r->dim % 64 == 0;
}

/* ---- keys ---- */

/* Of GROUP rows x[j] has rows 4 j .. 4 j + 3, each with four queries: to a register a query. */
INLINE void turn_scores(__m512 *x)
{
	const __m512i order =
		_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
	__m512i y[4];

	UNROLL for (uint32_t j = 0; j < 4; j++) y[j] = _mm512_castps_si512(x[j]);
	turn_lanes(y);
	UNROLL for (uint32_t j = 0; j < 4; j++) x[j] =
		_mm512_castsi512_ps(_mm512_permutexvar_epi32(order, y[j]));
}

/* Sums of GROUP rows, [row][high of m queries, low of m queries], to scores of nq. */
INLINE void put_scores(const int32_t *sum, uint32_t m, uint32_t nq, const float *unit, __m512 scale,
	float *s, size_t s_stride)
{
	__m512 x[KVP_TILE_QUERIES];

	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		if (m == 4) {
			const __m512i a = _mm512_load_si512(sum + 32 * j);
			const __m512i b = _mm512_load_si512(sum + 32 * j + 16);

			x[j] = joined(
				_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
		} else {
			const int32_t *at = sum + 64 * j;
			__m512 y[2];

			UNROLL for (uint32_t i = 0; i < 2; i++)
			{
				const __m512i a = _mm512_load_si512(at + 32 * i);
				const __m512i b = _mm512_load_si512(at + 32 * i + 16);

				y[i] = joined(_mm512_shuffle_i64x2(a, b, 0x44),
					_mm512_shuffle_i64x2(a, b, 0xee));
			}
			x[j] = _mm512_shuffle_f32x4(y[0], y[1], 0x88);
			x[4 + j] = _mm512_shuffle_f32x4(y[0], y[1], 0xdd);
		}
	}
	turn_scores(x);
	if (m > 4)
		turn_scores(x + 4);
	for (uint32_t i = 0; i < nq; i++)
		_mm512_store_ps(s + i * s_stride,
			_mm512_mul_ps(x[i], _mm512_mul_ps(scale, _mm512_set1_ps(unit[i]))));
}

/* Centroids of a piece of ROWS rows from `first` on: two tiles' width of bytes each. */
INLINE void look_up_keys(const struct kvp_rows *r, uint32_t first, uint32_t n, uint32_t p,
	__m512i book, int fetch, int8_t *keys)
{
	const __mmask64 in = piece_of(r->dim, p);
	const uint32_t lines = fetch ? lines_of(r) : 0;
	const size_t at = p * CODES;

	for (uint32_t t = 0; t < n; t += TILE) {
		const uint8_t *row[TILE];

		if (fetch)
			fetch_lines(r, first + t, lines);
		rows_at(r, first + t, row);
		UNROLL for (uint32_t i = 0; i < TILE; i++)
		{
			const __m512i x = _mm512_maskz_loadu_epi8(in, row[i] + at);
			int8_t *to = keys + (size_t)(t + i) * 2 * CODES;

			_mm512_store_si512(to, _mm512_permutexvar_epi8(x, book));
			_mm512_store_si512(
				to + CODES, _mm512_permutexvar_epi8(_mm512_srli_epi16(x, 4), book));
		}
	}
}

/* Of rows [first, first + n), n <= ROWS, with the queries of one pass. */
INLINE void score_rows(const struct kvp_rows *r, const struct bytes *b, const struct scales *c,
	const struct kvp_tiles *q, uint32_t m, uint32_t nq, uint32_t first, uint32_t n, int fetch,
	float *s, size_t s_stride)
{
	int8_t keys[ROWS * 2 * CODES] __attribute__((aligned(64)));
	int32_t sum[ROWS * 2 * KVP_TILE_QUERIES] __attribute__((aligned(64)));

	for (uint32_t p = 0; 2 * p * CODES < r->dim; p++) {
		const int8_t *from = q->b + 2 * p * TILE_BYTES;

		look_up_keys(r, first, n, p, b->book, fetch && !p, keys);
		TILE_LOAD(T_QUERY, from, 8 * m);
		TILE_LOAD(T_QUERY2, from + TILE_BYTES, 8 * m);
		for (uint32_t g = 0; g < n; g += GROUP) {
			if (p)
				TILE_LOAD(T_SCORE, sum + g * 2 * m, 8 * m);
			else
				TILE_ZERO(T_SCORE);
			TILE_LOAD(T_KEYS, keys + (size_t)g * 2 * CODES, 2 * CODES);
			TILE_DOT(T_SCORE, T_KEYS, T_QUERY);
			TILE_LOAD(T_VALUES, keys + (size_t)g * 2 * CODES + CODES, 2 * CODES);
			TILE_DOT(T_SCORE, T_VALUES, T_QUERY2);
			TILE_STORE(T_SCORE, sum + g * 2 * m, 8 * m);
		}
	}
	for (uint32_t g = 0; g < n; g += GROUP)
		put_scores(sum + g * 2 * m, m, nq, q->unit,
			_mm512_mul_ps(
				_mm512_loadu_ps(c->scale + first + g), _mm512_set1_ps(b->value)),
			s + first + g, s_stride);
}

static void score_tiles(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	const uint8_t *pass = q->tiles;
	struct scales c;
	struct bytes b;

	if (!pass || !fits(r)) {
		if (!kvp_score_codes_avx512(r, q, s, s_stride))
			kvp_score_float_avx512(r, q, s, s_stride);
		return;
	}
	b = bytes_init(r);
	scales_init(r, &c);
	for (uint32_t i = 0; i < q->n; i += KVP_TILE_QUERIES, pass += kvp_tiles_bytes(r->dim)) {
		const uint32_t nq = least(q->n - i, KVP_TILE_QUERIES);

		for (uint32_t t = 0; t < r->n; t += ROWS) {
			const uint32_t n = least(r->n - t, ROWS);

			if (columns_of(q->n) == 4)
				score_rows(r, &b, &c, (const void *)pass, 4, nq, t, n, !i,
					s + i * s_stride, s_stride);
			else
				score_rows(r, &b, &c, (const void *)pass, KVP_TILE_QUERIES, nq, t,
					n, !i, s + i * s_stride, s_stride);
		}
	}
}

/* ---- values ---- */

struct byte_weights {
	int8_t byte[2 * KVP_TILE_QUERIES * ROWS]; /* [high of all, low of all][row] */
	float unit[KVP_TILE_QUERIES];
};

/* Weights of rows [first, first + n) of one query, times their scales. */
INLINE void split_weights(const float *w, const float *scale, uint32_t n, float value, uint32_t m,
	uint32_t at, struct byte_weights *ret)
{
	__m512 x[ROWS / 16], max = _mm512_setzero_ps(), inv;
	float top;

	UNROLL for (uint32_t i = 0; i < ROWS / 16; i++)
	{
		const __mmask16 in = n > 16 * i ? first16(n - 16 * i) : 0;

		x[i] = _mm512_mul_ps(_mm512_maskz_loadu_ps(in, w + 16 * i),
			_mm512_maskz_loadu_ps(in, scale + 16 * i));
		max = _mm512_max_ps(_mm512_abs_ps(x[i]), max);
	}
	top = _mm512_reduce_max_ps(max);
	inv = _mm512_set1_ps(top > 0.0f ? TOP / top : 0.0f);
	UNROLL for (uint32_t i = 0; i < ROWS / 16; i++)
	{
		const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], inv));

		_mm_store_si128((__m128i *)(void *)(ret->byte + at * ROWS + 16 * i),
			_mm512_cvtepi32_epi8(_mm512_srai_epi32(v, 7)));
		_mm_store_si128((__m128i *)(void *)(ret->byte + (m + at) * ROWS + 16 * i),
			_mm512_cvtepi32_epi8(_mm512_and_si512(v, _mm512_set1_epi32(127))));
	}
	ret->unit[at] = top / TOP * value;
}

INLINE void weigh_rows(const struct kvp_weights *w, const struct scales *c, uint32_t first,
	uint32_t n, float value, uint32_t m, uint32_t nq, struct byte_weights *ret)
{
	if (nq < m)
		memset(ret->byte, 0, sizeof ret->byte);
	for (uint32_t i = 0; i < nq; i++)
		split_weights(w->w + i * w->stride + first, c->scale + first, n, value, m, i, ret);
}

/*
 * Centroids of a piece of ROWS rows: eight tiles, each with four rows' bytes of a channel next to one
 * another. Tile j of the low codes, and tile 4 + j of the high ones, has channels 4 j .. 4 j + 3 of
 * every sixteen.
 */
INLINE void look_up_values(const struct kvp_rows *r, uint32_t first, uint32_t n, uint32_t p,
	__m512i book, int fetch, int8_t *values)
{
	const __mmask64 in = piece_of(r->dim, p);
	const uint32_t lines = fetch ? lines_of(r) : 0;
	const size_t at = p * CODES;

	for (uint32_t t = 0; t < n; t += TILE) {
		const uint8_t *row[TILE];
		__m512i x[TILE], y[TILE];

		if (fetch)
			fetch_lines(r, first + t, lines);
		rows_at(r, first + t, row);
		UNROLL for (uint32_t i = 0; i < TILE; i++) x[i] =
			_mm512_maskz_loadu_epi8(in, row[i] + at);
		y[0] = _mm512_unpacklo_epi8(x[0], x[1]);
		y[1] = _mm512_unpackhi_epi8(x[0], x[1]);
		y[2] = _mm512_unpacklo_epi8(x[2], x[3]);
		y[3] = _mm512_unpackhi_epi8(x[2], x[3]);
		x[0] = _mm512_unpacklo_epi16(y[0], y[2]);
		x[1] = _mm512_unpackhi_epi16(y[0], y[2]);
		x[2] = _mm512_unpacklo_epi16(y[1], y[3]);
		x[3] = _mm512_unpackhi_epi16(y[1], y[3]);
		UNROLL for (uint32_t i = 0; i < TILE; i++)
		{
			int8_t *to = values + i * TILE_BYTES + t * 16;

			_mm512_store_si512(to, _mm512_permutexvar_epi8(x[i], book));
			_mm512_store_si512(to + 4 * TILE_BYTES,
				_mm512_permutexvar_epi8(_mm512_srli_epi16(x[i], 4), book));
		}
	}
}

/* acc = acc * fade + unit * sums, of 64 channels or as many as there are; four tiles [2 m][16]. */
INLINE void add_sums(const int32_t *sum, uint32_t m, uint32_t at, float fade, float unit,
	uint32_t channels, float *acc)
{
	__m512 y[4], a, b, c, d;

	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		const int32_t *from = sum + j * 2 * KVP_TILE_QUERIES * 16;

		y[j] = joined(
			_mm512_load_si512(from + at * 16), _mm512_load_si512(from + (m + at) * 16));
	}
	a = _mm512_shuffle_f32x4(y[0], y[1], 0x44);
	b = _mm512_shuffle_f32x4(y[2], y[3], 0x44);
	c = _mm512_shuffle_f32x4(y[0], y[1], 0xee);
	d = _mm512_shuffle_f32x4(y[2], y[3], 0xee);
	y[0] = _mm512_shuffle_f32x4(a, b, 0x88);
	y[1] = _mm512_shuffle_f32x4(a, b, 0xdd);
	y[2] = _mm512_shuffle_f32x4(c, d, 0x88);
	y[3] = _mm512_shuffle_f32x4(c, d, 0xdd);
	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		if (16 * j < channels)
			_mm512_storeu_ps(
				acc + 16 * j, _mm512_fmadd_ps(y[j], _mm512_set1_ps(unit),
						      _mm512_mul_ps(_mm512_loadu_ps(acc + 16 * j),
							      _mm512_set1_ps(fade))));
	}
}

#define SUM_TILE(tile, j)                                        \
	do {                                                     \
		TILE_ZERO(T_SUM);                                \
		TILE_LOAD(tile, values + (j)*TILE_BYTES, 64);    \
		TILE_DOT(T_SUM, T_WEIGHT, tile);                 \
		TILE_STORE(T_SUM, sum + (j)*TILE_BYTES / 4, 64); \
	} while (0)

/* Rows [first, first + n), n <= ROWS, with the weights of one pass. */
INLINE void accumulate_rows(const struct kvp_rows *r, const struct bytes *b, const struct scales *c,
	const struct kvp_weights *w, uint32_t m, uint32_t first, uint32_t n, int fetch, float *acc)
{
	int8_t values[8 * TILE_BYTES] __attribute__((aligned(64)));
	int32_t sum[8 * TILE_BYTES / 4] __attribute__((aligned(64)));
	struct byte_weights bw __attribute__((aligned(64)));
	const uint32_t nq = least(w->nq, m), half = r->dim / 2;

	if (n < ROWS)
		memset(values, 0, sizeof values);
	for (uint32_t p = 0; p * CODES < half; p++) {
		look_up_values(r, first, n, p, b->book, fetch && !p, values);
		/* Between the stores of the tiles and their loads, which wait for these to be done. */
		if (!p)
			weigh_rows(w, c, first, n, b->value, m, nq, &bw);
		TILE_LOAD(T_WEIGHT, bw.byte, ROWS);
		SUM_TILE(T_VALUES, 0);
		SUM_TILE(T_VALUES2, 1);
		SUM_TILE(T_VALUES, 2);
		SUM_TILE(T_VALUES2, 3);
		SUM_TILE(T_VALUES, 4);
		SUM_TILE(T_VALUES2, 5);
		SUM_TILE(T_VALUES, 6);
		SUM_TILE(T_VALUES2, 7);
		for (uint32_t i = 0; i < nq; i++) {
			float *to = acc + (size_t)i * r->dim + p * CODES;
			const uint32_t left = least(half - p * CODES, CODES);

			add_sums(sum, m, i, w->fade[i], bw.unit[i], left, to);
			add_sums(sum + TILE_BYTES, m, i, w->fade[i], bw.unit[i], left, to + half);
		}
	}
}

static void accumulate_tiles(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	static const float ones[KVP_TILE_QUERIES] = { 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f,
		1.0f };
	const uint32_t m = columns_of(r->tiles);
	struct scales c;
	struct bytes b;

	if (!r->tiles || !fits(r)) {
		if (!kvp_accumulate_words(r, w, acc))
			kvp_accumulate_float_avx512(r, w, acc);
		return;
	}
	b = bytes_init(r);
	scales_init(r, &c);
	for (uint32_t i = 0; i < w->nq; i += m) {
		struct kvp_weights part = { least(w->nq - i, m), w->w + i * w->stride, w->stride,
			w->fade + i };

		for (uint32_t t = 0; t < r->n; t += ROWS) {
			const uint32_t n = least(r->n - t, ROWS);
			float *to = acc + (size_t)i * r->dim;

			if (m == 4)
				accumulate_rows(r, &b, &c, &part, 4, t, n, !i, to);
			else
				accumulate_rows(r, &b, &c, &part, KVP_TILE_QUERIES, t, n, !i, to);
			part.fade = ones;
		}
	}
}

void kvp_attend_init_tiles(struct kvp_kernels *k)
{
	k->attend[KVP_FORM_BOOK].score = score_tiles;
	k->attend[KVP_FORM_BOOK].accumulate = accumulate_tiles;
	k->tiles.begin = begin;
	k->tiles.end = end;
	k->tiles.queries = queries;
}
