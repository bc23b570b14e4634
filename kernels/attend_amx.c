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
	c.row_bytes[T_SCORE] = c.row_bytes[T_QUERY] = c.row_bytes[T_QUERY2] = (uint16_t)(4 * m);
	c.rows[T_SUM] = c.rows[T_WEIGHT] = (uint8_t)(2 * m);
	__asm__ volatile("ldtilecfg %0" ::"m"(c));
}

static void end(void)
{
	__asm__ volatile("tilerelease");
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

/* Sums of GROUP rows, [row][query of m], to scores of nq. */
INLINE void put_scores(const int32_t *sum, uint32_t m, uint32_t nq, const float *unit, __m512 scale,
	float *s, size_t s_stride)
{
	__m512 x[KVP_TILE_QUERIES];

	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		if (m == 4)
			x[j] = _mm512_cvtepi32_ps(_mm512_load_si512(sum + 16 * j));
		else {
			const __m512 a = _mm512_cvtepi32_ps(_mm512_load_si512(sum + 32 * j));
			const __m512 b = _mm512_cvtepi32_ps(_mm512_load_si512(sum + 32 * j + 16));

			x[j] = _mm512_shuffle_f32x4(a, b, 0x88);
			x[4 + j] = _mm512_shuffle_f32x4(a, b, 0xdd);
		}
	}
	turn_scores(x);
	if (m > 4)
		turn_scores(x + 4);
	for (uint32_t i = 0; i < nq; i++)
		_mm512_store_ps(s + i * s_stride,
			_mm512_mul_ps(x[i], _mm512_mul_ps(scale, _mm512_set1_ps(unit[i]))));
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
		put_scores(sum + g * m, m, nq, q->unit,
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
	k->tiles.begin = begin;
	k->tiles.end = end;
	k->tiles.step = kvp_step_tiles;
	k->tiles.queries = kvp_byte_queries;
	k->tiles.any = 0;
}
