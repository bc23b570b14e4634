/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of attention by matrix tiles share: the tiles, the book as bytes, rows looked up. Private to them. */
#ifndef KVP_KERNELS_ATTEND_AMX_H
#define KVP_KERNELS_ATTEND_AMX_H

#include "kernels/attend_bytes.h"
#include "kernels/attend_tile.h"

/* attend_step_amx.c */
int kvp_step_tiles(const struct kvp_step *job);

/* ---- rows as bytes ---- */

#define KEYS_BYTES (ROWS * 2 * CODES)

/* Centroids of a piece of ROWS rows from `first` on: two tiles' width of bytes each. */
INLINE void look_up_keys(const struct kvp_rows *r, uint32_t first, uint32_t from, uint32_t n,
	uint32_t p, __m512i book, uint32_t lines, int8_t *keys)
{
	const __mmask64 in = piece_of(r->dim, p);
	const size_t at = p * CODES;

	for (uint32_t t = from; t < n; t += TILE) {
		const uint8_t *row[TILE];

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

INLINE void load_queries(const struct kvp_tiles *q, uint32_t m, uint32_t p)
{
	const int8_t *from = q->b + 2 * p * QUERY_BYTES;

	TILE_LOAD(T_QUERY, from, 4 * m);
	TILE_LOAD(T_QUERY2, from + QUERY_BYTES, 4 * m);
}

/*
 * Sums of products of rows [from, n) of a piece that were looked up with the queries that were
 * loaded, to those of the pieces before it.
 */
INLINE void multiply_keys(
	const int8_t *keys, uint32_t m, uint32_t from, uint32_t n, uint32_t p, int32_t *sum)
{
	for (uint32_t g = from; g < n; g += GROUP) {
		if (p)
			TILE_LOAD(T_SCORE, sum + g * m, 4 * m);
		else
			TILE_ZERO(T_SCORE);
		TILE_LOAD(T_KEYS, keys + (size_t)g * 2 * CODES, 2 * CODES);
		TILE_DOT(T_SCORE, T_KEYS, T_QUERY);
		TILE_LOAD(T_VALUES, keys + (size_t)g * 2 * CODES + CODES, 2 * CODES);
		TILE_DOT(T_SCORE, T_VALUES, T_QUERY2);
		TILE_STORE(T_SCORE, sum + g * m, 4 * m);
	}
}

/*
 * Centroids of a piece of ROWS rows: eight tiles, each with four rows' bytes of a channel next to one
 * another. Tile j of the low codes, and tile 4 + j of the high ones, has channels 4 j .. 4 j + 3 of
 * every sixteen. Rows first + from .. first + n - 1 of them.
 */
INLINE void look_up_values(const struct kvp_rows *r, uint32_t first, uint32_t from, uint32_t n,
	uint32_t p, __m512i book, uint32_t lines, int8_t *values)
{
	const __mmask64 in = piece_of(r->dim, p);
	const size_t at = p * CODES;

	for (uint32_t t = from; t < n; t += TILE) {
		const uint8_t *row[TILE];
		__m512i x[TILE], y[TILE];

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
	__m512 y[4];

	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		const int32_t *from = sum + j * 2 * KVP_TILE_QUERIES * 16;

		y[j] = joined(
			_mm512_load_si512(from + at * 16), _mm512_load_si512(from + (m + at) * 16));
	}
	add_channels(y, fade, unit, channels, acc);
}

#define SUM_TILE(tile, j)                                        \
	do {                                                     \
		TILE_ZERO(T_SUM);                                \
		TILE_LOAD(tile, values + (j)*TILE_BYTES, 64);    \
		TILE_DOT(T_SUM, T_WEIGHT, tile);                 \
		TILE_STORE(T_SUM, sum + (j)*TILE_BYTES / 4, 64); \
	} while (0)

/* The sums of piece p of ROWS rows that were looked up, to those before times `fade`. */
INLINE void add_piece(const struct byte_weights *w, const int8_t *values, uint32_t dim, uint32_t p,
	uint32_t m, uint32_t nq, const float *fade, float *acc)
{
	int32_t sum[8 * TILE_BYTES / 4] __attribute__((aligned(64)));
	const uint32_t half = dim / 2, left = least(half - p * CODES, CODES);

	TILE_LOAD(T_WEIGHT, w->byte, ROWS);
	SUM_TILE(T_VALUES, 0);
	SUM_TILE(T_VALUES2, 1);
	SUM_TILE(T_VALUES, 2);
	SUM_TILE(T_VALUES2, 3);
	SUM_TILE(T_VALUES, 4);
	SUM_TILE(T_VALUES2, 5);
	SUM_TILE(T_VALUES, 6);
	SUM_TILE(T_VALUES2, 7);
	for (uint32_t i = 0; i < nq; i++) {
		float *to = acc + (size_t)i * dim + p * CODES;

		add_sums(sum, m, i, fade[i], w->unit[i], left, to);
		add_sums(sum + TILE_BYTES, m, i, fade[i], w->unit[i], left, to + half);
	}
}

/* ---- scores ---- */

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

/* Sums of GROUP rows, of which y[i] has four rows of four queries or two of eight, to scores of nq. */
INLINE void put_scores(const __m512 *y, uint32_t m, uint32_t nq, const float *unit, __m512 scale,
	float *s, size_t s_stride)
{
	__m512 x[KVP_TILE_QUERIES];

	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		x[j] = y[j];
		if (m == 4)
			continue;
		x[j] = _mm512_shuffle_f32x4(y[2 * j], y[2 * j + 1], 0x88);
		x[4 + j] = _mm512_shuffle_f32x4(y[2 * j], y[2 * j + 1], 0xdd);
	}
	turn_scores(x);
	if (m > 4)
		turn_scores(x + 4);
	for (uint32_t i = 0; i < least(nq, m); i++)
		_mm512_store_ps(s + i * s_stride,
			_mm512_mul_ps(x[i], _mm512_mul_ps(scale, _mm512_set1_ps(unit[i]))));
}

#endif
