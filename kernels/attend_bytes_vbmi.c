/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of 4-bit codes as bytes by vectors: vpdpbusd multiplies 64 bytes and adds four products to each of
 * sixteen sums, twice what vpdpwssd does. It is what processors without matrix tiles have, and equals
 * these to the bit (attend_bytes.h).
 *
 * One of its factors is unsigned. That is the centroid, 128 too large; 128 times the sum of the other
 * factors is taken off afterwards. These are read by the same instruction, four bytes for all lanes.
 *
 * With 4 queries and 128 channels 64 rows take 2,048 of them, one a cycle where 512 bits are two halves
 * (Zen 4); everything else is to hide beside them. So nothing that was looked up is ever stored: of keys
 * sixteen rows are turned while they are codes, of values four rows' bytes are laid next to one another.
 */
#include "kernels/attend_bytes.h"

struct area {
	int32_t sum[ROWS * KVP_TILE_QUERIES] __attribute__((aligned(64))); /* [row][query] */
};

#include "kernels/attend_step.h"

/* sum + in each lane the products of its four bytes, unsigned, with four signed ones, the same for all. */
INLINE __m512i dot_four(__m512i sum, __m512i x, const int8_t *four)
{
	__asm__("vpdpbusd %2%{1to16%}, %1, %0"
		: "+v"(sum)
		: "v"(x), "m"(*(const int8_t(*)[4])four));
	return sum;
}

INLINE __m512i unsigned_book(__m512i book)
{
	return _mm512_xor_si512(book, _mm512_set1_epi8(-128));
}

/*
 * What is called for hundreds of products at a time. Not inlined, because next to everything else the
 * compiler runs out of registers for addresses.
 */
#define APART static __attribute__((noinline))

INLINE __m512i join(__m512i high, __m512i low)
{
	return _mm512_add_epi32(_mm512_slli_epi32(high, 7), low);
}

/* ---- queries ---- */

/* Channels [c, c + 16) of a query, w, to the rows of a tile of queries: four channels a row. */
static void put_words(__m512i w, uint32_t m, uint32_t at, int8_t *to)
{
	const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(w, _mm512_set1_epi32(64)), 7);
	int8_t b[2][16] __attribute__((aligned(16)));

	_mm_store_si128((void *)b[0], _mm512_cvtepi32_epi8(high));
	_mm_store_si128((void *)b[1],
		_mm512_cvtepi32_epi8(_mm512_sub_epi32(w, _mm512_slli_epi32(high, 7))));
	for (uint32_t i = 0; i < 4; i++, to += 8 * m) {
		memcpy(to + 4 * at, b[0] + 4 * i, 4);
		memcpy(to + 4 * (m + at), b[1] + 4 * i, 4);
	}
}

static void put_query(const float *f, uint32_t dim, uint32_t m, uint32_t at, struct kvp_tiles *to)
{
	__m512 max = _mm512_setzero_ps();
	__m512i sum = _mm512_setzero_si512();
	__mmask16 nan = 0;
	float largest, inv;

	for (uint32_t c = 0; c < dim; c += 16) {
		const __m512 x = _mm512_loadu_ps(f + c);

		nan |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
		max = _mm512_max_ps(_mm512_abs_ps(x), max);
	}
	largest = nan ? NAN : _mm512_reduce_max_ps(max);
	/* What no float can divide, or is none, stays what it is in the unit. */
	inv = largest > 1e-30f && largest < INFINITY ? TOP / largest : 0.0f;
	to->unit[at] = largest / TOP;
	for (uint32_t c = 0; inv > 0.0f && c < dim; c += 16) {
		const uint32_t half = c >= dim / 2, i = c - half * (dim / 2);
		const __m512i w = _mm512_cvtps_epi32(
			_mm512_mul_ps(_mm512_loadu_ps(f + c), _mm512_set1_ps(inv)));

		sum = _mm512_add_epi32(w, sum);
		put_words(w, m, at,
			to->b + (2 * (i / CODES) + half) * TILE_BYTES + i % CODES / 4 * 8 * m);
	}
	to->less[at] = -_mm512_reduce_add_epi32(_mm512_slli_epi32(sum, 7));
}

void kvp_byte_queries(const float *f, uint32_t rows, uint32_t dim, void *ret)
{
	uint8_t *to = ret;
	const size_t pass = kvp_tiles_bytes(dim);

	memset(to, 0, pass * ((rows + KVP_TILE_QUERIES - 1) / KVP_TILE_QUERIES));
	for (uint32_t i = 0; i < rows; i++)
		put_query(f + (size_t)i * dim, dim, columns_of(rows), i % KVP_TILE_QUERIES,
			(void *)(to + i / KVP_TILE_QUERIES * pass));
}

#define LINE 64u /* bytes that are fetched together */

/*
 * What is read next is fetched evenly, as many lines as there are here: one for every four channels of keys
 * and four rows of values. Where that of row t begins; in more pieces than one it is fetched at once. Not
 * wanted: the rows themselves.
 */
INLINE const uint8_t *next_of(const struct kvp_rows *r, uint32_t t, int wanted)
{
	const size_t at = (size_t)t * (r->dim / 2);

	wanted = wanted && r->next_n;
	if (wanted && r->next_stride == (ptrdiff_t)r->next_bytes)
		return r->next + at;
	for (uint32_t i = 0; wanted && !t && i < r->n; i += TILE)
		fetch_next(r, i);
	return r->codes + at;
}

/* ---- keys ---- */

/* 16 bytes of each of GROUP rows: x[i] has rows 4 i .. 4 i + 3, or i, i + 4, .. where they are turned. */
INLINE __m512i four_pieces(const uint8_t *at, ptrdiff_t stride)
{
	__m512i x = _mm512_broadcast_i32x4(load128(at));

	x = _mm512_mask_broadcast_i32x4(x, 0x00f0, load128(at + stride));
	x = _mm512_mask_broadcast_i32x4(x, 0x0f00, load128(at + 2 * stride));
	return _mm512_mask_broadcast_i32x4(x, 0xf000, load128(at + 3 * stride));
}

/* GROUP rows. With turned 0 row i is to be in lane i, else row 4 k + i in lane 4 i + k. */
struct group {
	const uint8_t *row;
	ptrdiff_t next, apart; /* from a row to that in the lane behind it, and four behind it */
};

/* Four bytes at `at` of each row, and those behind them: x[k] has bytes 4 k .. 4 k + 3. */
INLINE void turn_group(const struct group *g, uint32_t at, __m512i *x)
{
	UNROLL for (uint32_t k = 0; k < 4; k++) x[k] =
		four_pieces(g->row + at + k * g->next, g->apart);
	turn_lanes(x);
}

/*
 * Products of GROUP rows with m queries, a query a register. x: the rows' first bytes, turned, and
 * afterwards those of the group behind it, which are laid ready in time.
 */
INLINE void multiply_group(const struct group *g, const struct group *behind, uint32_t dim,
	const struct kvp_tiles *q, uint32_t m, __m512i book, const uint8_t *next, __m512i *x,
	__m512i *ret)
{
	__m512i sum[2 * KVP_TILE_QUERIES];

	UNROLL for (uint32_t i = 0; i < m; i++)
	{
		sum[i] = _mm512_setzero_si512();
		sum[m + i] = _mm512_set1_epi32(q->less[i]);
	}
	for (uint32_t p = 0; p < dim / 2; p += CODES) {
		const int8_t *four = q->b + p / CODES * 2 * TILE_BYTES;
		const uint32_t end = least(dim / 2, p + CODES);

		for (uint32_t at = p; at < end; at += 16, four += 32 * m) {
			const int last = at + 16 == dim / 2;
			const struct group *of = last ? behind : g;
			const uint8_t *after = of->row + (last ? 0 : at + 16);
			__m512i y[4];

			UNROLL for (uint32_t k = 0; k < 4; k++)
			{
				const __m512i low = _mm512_permutexvar_epi8(x[k], book);
				const __m512i high =
					_mm512_permutexvar_epi8(_mm512_srli_epi16(x[k], 4), book);

				y[k] = four_pieces(after + k * of->next, of->apart);
				_mm_prefetch(next, _MM_HINT_T1);
				next += LINE;
				UNROLL for (uint32_t i = 0; i < 2 * m; i++) sum[i] =
					dot_four(sum[i], low, four + 8 * m * k + 4 * i);
				UNROLL for (uint32_t i = 0; i < 2 * m; i++) sum[i] = dot_four(
					sum[i], high, four + TILE_BYTES + 8 * m * k + 4 * i);
			}
			turn_lanes(y);
			UNROLL for (uint32_t k = 0; k < 4; k++) x[k] = y[k];
		}
	}
	UNROLL for (uint32_t i = 0; i < m; i++) ret[i] = join(sum[i], sum[m + i]);
}

/* Rows from t on where they lie, or, at the end, what there is of them in `copy`. */
INLINE struct group group_at(const struct kvp_rows *r, uint32_t t, int turned, uint8_t *copy)
{
	const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride;
	ptrdiff_t stride = r->stride;

	if (t + GROUP > r->n) {
		stride = (ptrdiff_t)(r->dim / 2);
		memset(copy, 0, GROUP * (size_t)stride);
		for (uint32_t i = 0; t + i < r->n; i++)
			memcpy(copy + i * stride, row + (ptrdiff_t)i * r->stride, (size_t)stride);
		row = copy;
	}
	return turned ? (struct group){ row, 4 * stride, stride }
		      : (struct group){ row, stride, 4 * stride };
}

static void score(const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
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
		const struct kvp_tiles *tiles = (const void *)pass;
		const uint32_t nq = least(q->n - i, KVP_TILE_QUERIES);
		const uint8_t *next = next_of(r, 0, !i);

		for (uint32_t t = 0; t < r->n; t += GROUP, next += GROUP * r->dim / 2) {
			const __m512 scale = _mm512_mul_ps(
				_mm512_loadu_ps(c.scale + t), _mm512_set1_ps(b.value));
			uint8_t copy[GROUP * DIM_MAX / 2];
			struct group g = group_at(r, t, 0, copy);
			__m512i x[KVP_TILE_QUERIES], first[4];

			turn_group(&g, 0, first);
			if (columns_of(q->n) == 4)
				multiply_group(&g, &g, r->dim, tiles, 4, unsigned_book(b.book),
					next, first, x);
			else
				multiply_group(&g, &g, r->dim, tiles, KVP_TILE_QUERIES,
					unsigned_book(b.book), next, first, x);
			for (uint32_t j = 0; j < nq; j++)
				_mm512_store_ps(s + (i + j) * s_stride + t,
					_mm512_mul_ps(_mm512_cvtepi32_ps(x[j]),
						_mm512_mul_ps(
							scale, _mm512_set1_ps(tiles->unit[j]))));
		}
	}
}

/* ---- values ---- */

#define ROW_BYTES(c)     (c), 16 + (c), 32 + (c), 48 + (c)
#define FOUR_CHANNELS(c) ROW_BYTES(c), ROW_BYTES(c + 1), ROW_BYTES(c + 2), ROW_BYTES(c + 3)
static const uint8_t by_channel[64] __attribute__((aligned(64))) = { FOUR_CHANNELS(0),
	FOUR_CHANNELS(4), FOUR_CHANNELS(8), FOUR_CHANNELS(12) };

/* As four_pieces(), of up to three rows: the last one repeated. */
INLINE __m512i rest_of_rows(const uint8_t *at, ptrdiff_t stride, uint32_t n)
{
	__m512i x = _mm512_broadcast_i32x4(load128(at));

	if (n > 1)
		x = _mm512_mask_broadcast_i32x4(x, 0xfff0, load128(at + stride));
	if (n > 2)
		x = _mm512_mask_broadcast_i32x4(x, 0xff00, load128(at + 2 * stride));
	return x;
}

/* Products of four rows, their bytes as four_pieces() has them, with weights; see add_values(). */
INLINE void multiply_four(__m512i x, const int8_t *four, __m512i book, __m512i order, uint32_t m,
	uint32_t half, uint32_t halves, __m512i *sum)
{
	x = _mm512_permutexvar_epi8(order, x);
	UNROLL for (uint32_t h = 0; h < halves; h++)
	{
		const __m512i y =
			_mm512_permutexvar_epi8(half + h ? _mm512_srli_epi16(x, 4) : x, book);

		UNROLL for (uint32_t i = 0; i < 2 * m; i++) sum[h * 2 * m + i] =
			dot_four(sum[h * 2 * m + i], y, four + i * ROWS);
	}
}

/* The values of n rows, n <= ROWS, at 16 bytes of each, and where their sums are to go. */
struct values {
	const uint8_t *at, *next; /* next: a line for every four rows */
	ptrdiff_t stride;
	uint32_t n, nq;
	const struct byte_weights *w;
	float *to; /* a channel of the first half of a query's dim; the other half's are `half` behind it */
	size_t half;
};

/* Sixteen channels in both halves of the dim, or in one: from `half` on, so many halves. */
INLINE void add_values(
	const struct values *v, __m512i book, uint32_t m, uint32_t half, uint32_t halves)
{
	const __m512i order = _mm512_load_si512(by_channel);
	const int8_t *four = v->w->byte, *end = four + v->n / TILE * TILE;
	const uint8_t *at = v->at;
	__m512i sum[2 * KVP_TILE_QUERIES]; /* [half][high of m queries, low of m queries] */

	UNROLL for (uint32_t i = 0; i < halves * m; i++)
	{
		sum[i / m * 2 * m + i % m] = _mm512_setzero_si512();
		sum[i / m * 2 * m + i % m + m] = _mm512_set1_epi32(v->w->less[i % m]);
	}
	for (const uint8_t *next = v->next; four < end; four += TILE, at += TILE * v->stride) {
		multiply_four(four_pieces(at, v->stride), four, book, order, m, half, halves, sum);
		if (half)
			continue;
		_mm_prefetch(next, _MM_HINT_T1);
		next += LINE;
	}
	if (v->n % TILE)
		multiply_four(rest_of_rows(at, v->stride, v->n % TILE), four, book, order, m, half,
			halves, sum);
	UNROLL for (uint32_t i = 0; i < halves * m; i++)
	{
		const __m512i *from = sum + i / m * 2 * m + i % m;
		float *to = v->to + (i % m * 2 + half + i / m) * v->half;

		if (i % m < v->nq)
			_mm512_storeu_ps(to,
				_mm512_fmadd_ps(joined(from[0], from[m]),
					_mm512_set1_ps(v->w->unit[i % m]), _mm512_loadu_ps(to)));
	}
}

APART void add_values_4(const struct values *v, __m512i book)
{
	add_values(v, book, 4, 0, 2);
}

APART void add_first_8(const struct values *v, __m512i book)
{
	add_values(v, book, 8, 0, 1);
}

APART void add_second_8(const struct values *v, __m512i book)
{
	add_values(v, book, 8, 1, 1);
}

/* Mostly there is nothing to do: no score is larger than those before. */
INLINE void fade_rows(const float *fade, uint32_t nq, uint32_t dim, float *acc)
{
	for (uint32_t i = 0; i < nq; i++)
		for (uint32_t c = 0; fade[i] != 1.0f && c < dim; c += LANES)
			_mm512_storeu_ps(acc + (size_t)i * dim + c,
				_mm512_mul_ps(_mm512_loadu_ps(acc + (size_t)i * dim + c),
					_mm512_set1_ps(fade[i])));
}

/* The sums of rows [first, first + n) to those before times `fade`. */
INLINE void add_rows(const struct kvp_rows *r, const struct byte_weights *w, __m512i book,
	uint32_t first, uint32_t n, uint32_t m, uint32_t nq, int fetch, const float *fade,
	float *acc)
{
	struct values v = { r->codes + (ptrdiff_t)first * r->stride, next_of(r, first, fetch),
		r->stride, n, nq, w, acc, r->dim / 2 };

	fade_rows(fade, nq, r->dim, acc);
	for (uint32_t at = 0; at < r->dim / 2; at += 16) {
		if (m == 4)
			add_values_4(&v, book);
		else {
			add_first_8(&v, book);
			add_second_8(&v, book);
		}
		v.at += 16;
		v.to += 16;
		v.next += n / TILE * LINE;
	}
}

static void accumulate(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
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
			struct byte_weights bw __attribute__((aligned(64)));
			const uint32_t n = least(r->n - t, ROWS);
			float *to = acc + (size_t)i * r->dim;

			weigh_rows(&part, &c, t, n, b.value, m, part.nq, &bw);
			if (m == 4)
				add_rows(r, &bw, unsigned_book(b.book), t, n, 4, part.nq, !i,
					part.fade, to);
			else
				add_rows(r, &bw, unsigned_book(b.book), t, n, KVP_TILE_QUERIES,
					part.nq, !i, part.fade, to);
			part.fade = ones;
		}
	}
}

/* ---- steps ---- */

/* Sums of GROUP rows, a query a register and rows turned (struct group), to [row][query]. */
INLINE void put_group(__m512i *x, uint32_t m, int32_t *to)
{
	const __m512i order = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
	const __m512i after = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);

	turn_lanes(x);
	if (m == 4) {
		UNROLL for (uint32_t k = 0; k < 4; k++) _mm512_store_si512(to + k * LANES, x[k]);
		return;
	}
	turn_lanes(x + 4);
	UNROLL for (uint32_t k = 0; k < 4; k++)
	{
		_mm512_store_si512(
			to + 2 * k * LANES, _mm512_permutex2var_epi64(x[k], order, x[4 + k]));
		_mm512_store_si512(
			to + (2 * k + 1) * LANES, _mm512_permutex2var_epi64(x[k], after, x[4 + k]));
	}
}

INLINE void multiply_rows(
	const struct pass *p, uint32_t m, uint32_t first, uint32_t n, struct area *a)
{
	const struct kvp_rows *k = &p->keys;
	const __m512i book = unsigned_book(p->k.book);
	const uint8_t *next = next_of(k, first, p->at == 0);
	uint8_t copy[GROUP * DIM_MAX / 2];
	struct group g;
	__m512i x[4];

	if (n < ROWS)
		memset(a->sum, 0, sizeof a->sum);
	g = group_at(k, first, 1, copy);
	turn_group(&g, 0, x);
	for (uint32_t t = 0; t < n; t += GROUP) {
		const struct group behind =
			t + GROUP < n ? group_at(k, first + t + GROUP, 1, copy) : g;
		__m512i sum[KVP_TILE_QUERIES];

		multiply_group(&g, &behind, k->dim, p->q, m, book, next, x, sum);
		put_group(sum, m, a->sum + t * m);
		next += GROUP * k->dim / 2;
		g = behind;
	}
}

APART void multiply_rows_4(const struct pass *p, uint32_t first, uint32_t n, struct area *a)
{
	multiply_rows(p, 4, first, n, a);
}

APART void multiply_rows_8(const struct pass *p, uint32_t first, uint32_t n, struct area *a)
{
	multiply_rows(p, KVP_TILE_QUERIES, first, n, a);
}

INLINE void multiply_keys_of(struct pass *p, uint32_t m, uint32_t first, uint32_t n, struct area *a)
{
	if (m == 4)
		multiply_rows_4(p, first, n, a);
	else
		multiply_rows_8(p, first, n, a);
}

INLINE __m512 sums_of(const struct area *a, uint32_t m, uint32_t i)
{
	(void)m;
	return _mm512_cvtepi32_ps(_mm512_load_si512(a->sum + LANES * i));
}

INLINE void beside_softmax(
	struct pass *p, uint32_t m, uint32_t slot, uint32_t first, uint32_t n, struct area *a)
{
	(void)m;
	(void)slot;
	(void)first;
	(void)n;
	(void)a;
	(void)p;
}

INLINE void add_values_of(struct pass *p, const struct byte_weights *w, uint32_t m, uint32_t first,
	uint32_t n, const float *fade, float *acc, struct area *a)
{
	(void)a;
	add_rows(
		&p->values, w, unsigned_book(p->v.book), first, n, m, p->nq, p->at == 0, fade, acc);
}

void kvp_attend_init_bytes(struct kvp_kernels *k)
{
	k->attend[KVP_FORM_BOOK].score = score;
	k->attend[KVP_FORM_BOOK].accumulate = accumulate;
	k->tiles.least = 2; /* one query alone is as quick in floats */
	k->tiles.step = step;
	k->tiles.queries = kvp_byte_queries;
}
