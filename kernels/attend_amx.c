/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of 4-bit codes from a book of centroids (tq) by matrix tiles (AMX), which multiply 16 rows of 64
 * signed bytes with 16 columns in one instruction and sum in 32 bits: sixteen times what vpdpwssd does.
 *
 * A centroid and a query are one byte, a weight is two, 128 high + low, that take a row each, so that a
 * tile is full with eight queries (attend_bytes.h).
 *
 * What is left for the vectors is to look codes up (vpermb, 64 at a time) and, of values, to lay four
 * rows' bytes next to one another before, while they are still codes of two channels each.
 */
#include "kernels/attend_amx.h"

/* What this thread's tiles are laid out for: bytes of a query in a row, or 0. */
static _Thread_local uint32_t laid_out;

void kvp_tiles_begin(uint32_t rows)
{
	(void)rows;
	laid_out = 0;
}

void kvp_tiles_for(uint32_t rows, uint32_t query_bytes)
{
	struct tile_config c __attribute__((aligned(64))) = { .palette = 1 };
	const uint32_t m = columns_of(rows);

	if (laid_out == query_bytes)
		return;
	for (int i = 0; i < T_COUNT; i++) {
		c.rows[i] = 16;
		c.row_bytes[i] = 64;
	}
	c.row_bytes[T_SCORE] = c.row_bytes[T_QUERY] = c.row_bytes[T_QUERY2] =
		(uint16_t)(query_bytes * m);
	c.rows[T_SUM] = c.rows[T_WEIGHT] = (uint8_t)(2 * m);
	TILE_CONFIG(c);
	laid_out = query_bytes;
}

void kvp_tiles_end(void)
{
	if (laid_out)
		TILE_RELEASE();
	laid_out = 0;
}

/* ---- keys ---- */

/* Sums of GROUP rows, [row][query of m], to scores of nq. */
INLINE void put_sums(const int32_t *sum, uint32_t m, uint32_t nq, const float *unit, __m512 scale,
	float *s, size_t s_stride)
{
	__m512 x[KVP_TILE_QUERIES];

	UNROLL for (uint32_t i = 0; i < m; i++) x[i] =
		_mm512_cvtepi32_ps(_mm512_load_si512(sum + 16 * i));
	put_scores(x, m, nq, unit, scale, s, s_stride);
}

/* Of rows [first, first + n), n <= ROWS, with the queries of one pass. */
INLINE void score_rows(const struct kvp_rows *r, const struct bytes *b, const struct scales *c,
	const struct kvp_tiles *q, uint32_t m, uint32_t nq, uint32_t first, uint32_t n,
	uint32_t lines, float *s, size_t s_stride)
{
	int8_t keys[KEYS_BYTES] __attribute__((aligned(64)));
	int32_t sum[ROWS * KVP_TILE_QUERIES] __attribute__((aligned(64)));

	for (uint32_t p = 0; 2 * p * CODES < r->dim; p++) {
		look_up_keys(r, first, 0, n, p, b->book, p ? NO_LINES : lines, keys);
		load_queries(q, m, p);
		multiply_keys(keys, m, 0, n, p, sum);
	}
	for (uint32_t g = 0; g < n; g += GROUP)
		put_sums(sum + g * m, m, nq, q->unit,
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
	kvp_tiles_for(q->n, BYTES_OF_QUERY);
	b = bytes_init(r);
	scales_init(r, &c);
	for (uint32_t i = 0; i < q->n; i += KVP_TILE_QUERIES, pass += kvp_tiles_bytes(r->dim)) {
		const uint32_t nq = least(q->n - i, KVP_TILE_QUERIES);
		const uint32_t lines = i ? NO_LINES : lines_of(r);

		for (uint32_t t = 0; t < r->n; t += ROWS) {
			const uint32_t n = least(r->n - t, ROWS);

			if (columns_of(q->n) == 4)
				score_rows(r, &b, &c, (const void *)pass, 4, nq, t, n, lines,
					s + i * s_stride, s_stride);
			else
				score_rows(r, &b, &c, (const void *)pass, KVP_TILE_QUERIES, nq, t,
					n, lines, s + i * s_stride, s_stride);
		}
	}
}

/* ---- values ---- */

/* Rows [first, first + n), n <= ROWS, with the weights of one pass. */
INLINE void accumulate_rows(const struct kvp_rows *r, const struct bytes *b, const struct scales *c,
	const struct kvp_weights *w, uint32_t m, uint32_t first, uint32_t n, uint32_t lines,
	float *acc)
{
	int8_t values[8 * TILE_BYTES] __attribute__((aligned(64)));
	struct byte_weights bw __attribute__((aligned(64)));
	const uint32_t nq = least(w->nq, m);

	if (n < ROWS)
		memset(values, 0, sizeof values);
	for (uint32_t p = 0; 2 * p * CODES < r->dim; p++) {
		look_up_values(r, first, 0, n, p, b->book, p ? NO_LINES : lines, values);
		/* Between the stores of the tiles and their loads, which wait for these to be done. */
		if (!p)
			weigh_rows(w, c, first, n, b->value, m, nq, &bw);
		add_piece(&bw, values, r->dim, p, m, nq, w->fade, acc);
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
	kvp_tiles_for(r->tiles, BYTES_OF_QUERY);
	b = bytes_init(r);
	scales_init(r, &c);
	for (uint32_t i = 0; i < w->nq; i += m) {
		struct kvp_weights part = { least(w->nq - i, m), w->w + i * w->stride, w->stride,
			w->fade + i };
		const uint32_t ahead = i ? NO_LINES : lines_of(r);

		for (uint32_t t = 0; t < r->n; t += ROWS) {
			const uint32_t n = least(r->n - t, ROWS);
			float *to = acc + (size_t)i * r->dim;

			if (m == 4)
				accumulate_rows(r, &b, &c, &part, 4, t, n, ahead, to);
			else
				accumulate_rows(
					r, &b, &c, &part, KVP_TILE_QUERIES, t, n, ahead, to);
			part.fade = ones;
		}
	}
}

void kvp_attend_init_tiles(struct kvp_kernels *k)
{
	k->attend[KVP_FORM_BOOK].score = score_tiles;
	k->attend[KVP_FORM_BOOK].accumulate = accumulate_tiles;
	k->tiles.least = 1;
	k->tiles.begin = kvp_tiles_begin;
	k->tiles.end = kvp_tiles_end;
	k->tiles.step = kvp_step_tiles;
	k->tiles.queries = kvp_byte_queries;
	k->tiles.any = 0;
}
