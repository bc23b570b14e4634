/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of 4-bit codes as bytes by vectors: vpdpbusd multiplies 64 bytes and adds four products to each of
 * sixteen sums, twice what vpdpwssd does. It is what processors without matrix tiles have, and equals
 * these to the bit (attend_bytes.h).
 *
 * One of its factors is unsigned. That is the centroid, 128 too large; 128 times the sum of the other
 * factors is taken off afterwards. These are read by the same instruction, four bytes for all lanes.
 *
 * With 4 queries and 128 channels 64 rows take 1,024 of them, one a cycle where 512 bits are two halves
 * (Zen 4); everything else is to hide beside them. So nothing that was looked up is ever stored: of keys
 * sixteen rows are turned while they are codes, of values four rows' bytes are laid next to one another.
 */
#include "kernels/attend_bytes.h"

struct area {
	int32_t sum[ROWS * KVP_TILE_QUERIES] __attribute__((aligned(64))); /* [row][query] */
};

#include "kernels/attend_bytes_vbmi.h"

/* ---- queries ---- */

/* Channels [c, c + 16) of a query, w, to the rows of a tile of queries: four channels a row. */
static void put_words(__m512i w, uint32_t m, uint32_t at, int8_t *to)
{
	int8_t b[16] __attribute__((aligned(16)));

	_mm_store_si128((void *)b, _mm512_cvtepi32_epi8(w));
	for (uint32_t i = 0; i < 4; i++)
		memcpy(to + 4 * (m * i + at), b + 4 * i, 4);
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
	inv = largest > 1e-30f && largest < INFINITY ? QUERY_TOP / largest : 0.0f;
	to->unit[at] = largest / QUERY_TOP;
	for (uint32_t c = 0; inv > 0.0f && c < dim; c += 16) {
		const uint32_t half = c >= dim / 2, i = c - half * (dim / 2);
		const __m512i w = _mm512_cvtps_epi32(
			_mm512_mul_ps(_mm512_loadu_ps(f + c), _mm512_set1_ps(inv)));

		sum = _mm512_add_epi32(w, sum);
		put_words(w, m, at, to->b + (2 * (i / CODES) + half) * QUERY_BYTES + i % CODES * m);
	}
	to->less[at] = -_mm512_reduce_add_epi32(_mm512_slli_epi32(sum, 7));
}

void kvp_byte_queries(const float *f, uint32_t rows, uint32_t dim, int wide, void *ret)
{
	uint8_t *to = ret;
	const size_t pass = kvp_tiles_bytes(dim);

	(void)wide;
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

/* Four channels of two groups. */
INLINE void add_products(const __m512i *x, const int8_t *four, uint32_t m, __m512i *sum)
{
	UNROLL for (uint32_t i = 0; i < m; i++)
	{
		const __m512i y = four_bytes(four + 4 * i);

		sum[i] = dot_four(sum[i], x[0], y);
		sum[m + i] = dot_four(sum[m + i], x[1], y);
	}
}

/*
 * Products of two groups' rows with m queries, a query a register: ret[group][query]. x: their first bytes, turned,
 * and afterwards those of the groups behind them, which are laid ready in time.
 */
INLINE void multiply_groups(const struct group *g, const struct group *behind, uint32_t dim,
	const struct kvp_tiles *q, uint32_t m, __m512i book, const uint8_t *next, __m512i (*x)[4],
	__m512i *ret)
{
	__m512i sum[2 * KVP_TILE_QUERIES];

	UNROLL for (uint32_t i = 0; i < 2 * m; i++) sum[i] = _mm512_set1_epi32(q->less[i % m]);
	for (uint32_t p = 0; p < dim / 2; p += CODES) {
		const int8_t *four = q->b + p / CODES * 2 * QUERY_BYTES;
		const uint32_t end = least(dim / 2, p + CODES);

		for (uint32_t at = p; at < end; at += 16) {
			const int last = at + 16 == dim / 2;
			const struct group *of = last ? behind : g;
			const uint32_t after = last ? 0 : at + 16;

			UNROLL for (uint32_t k = 0; k < 4; k++, four += 4 * m)
			{
				__m512i low[2], high[2];

				UNROLL for (uint32_t j = 0; j < 2; j++, next += LINE)
				{
					low[j] = _mm512_permutexvar_epi8(x[j][k], book);
					high[j] = _mm512_permutexvar_epi8(
						_mm512_srli_epi16(x[j][k], 4), book);
					x[j][k] = four_pieces(
						of[j].row + after + k * of[j].next, of[j].apart);
					_mm_prefetch(next, _MM_HINT_T1);
				}
				add_products(low, four, m, sum);
				add_products(high, four + QUERY_BYTES, m, sum);
			}
			turn_lanes(x[0]);
			turn_lanes(x[1]);
		}
	}
	UNROLL for (uint32_t i = 0; i < 2 * m; i++) ret[i] = sum[i];
}

/* Two groups from row t on; the first one twice where there is no second. */
INLINE void groups_at(const struct kvp_rows *r, uint32_t t, int turned,
	uint8_t (*copy)[GROUP * DIM_MAX / 2], struct group *g)
{
	g[0] = group_at(r, t, turned, r->dim / 2, copy[0]);
	g[1] = t + GROUP < r->n ? group_at(r, t + GROUP, turned, r->dim / 2, copy[1]) : g[0];
}

/* A group's sums to scores. */
INLINE void put_scores(
	const __m512i *x, const float *unit, uint32_t nq, __m512 scale, float *s, size_t s_stride)
{
	for (uint32_t j = 0; j < nq; j++)
		_mm512_store_ps(
			s + j * s_stride, _mm512_mul_ps(_mm512_cvtepi32_ps(x[j]),
						  _mm512_mul_ps(scale, _mm512_set1_ps(unit[j]))));
}

static void score(const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	const uint32_t m = columns_of(q->n);
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

		for (uint32_t t = 0; t < r->n; t += 2 * GROUP, next += GROUP * r->dim) {
			uint8_t copy[2][GROUP * DIM_MAX / 2];
			struct group g[2];
			__m512i x[2 * KVP_TILE_QUERIES], first[2][4];

			groups_at(r, t, 0, copy, g);
			turn_group(&g[0], 0, first[0]);
			turn_group(&g[1], 0, first[1]);
			if (m == 4)
				multiply_groups(g, g, r->dim, tiles, 4, unsigned_book(b.book), next,
					first, x);
			else
				multiply_groups(g, g, r->dim, tiles, KVP_TILE_QUERIES,
					unsigned_book(b.book), next, first, x);
			for (uint32_t j = 0; j < 2 && t + j * GROUP < r->n; j++)
				put_scores(x + j * m, tiles->unit, nq,
					_mm512_mul_ps(_mm512_loadu_ps(c.scale + t + j * GROUP),
						_mm512_set1_ps(b.value)),
					s + i * s_stride + t + j * GROUP, s_stride);
		}
	}
}

/* ---- values ---- */

/* 32 bytes of each of four rows: a has rows 0 and 1, b 2 and 3. */
struct four_rows {
	__m512i a, b;
};

/* Of n rows, or of four and more; the last one again where there are fewer. */
INLINE struct four_rows four_rows(const uint8_t *at, ptrdiff_t stride, uint32_t n)
{
	const uint8_t *row[4];

	UNROLL for (uint32_t i = 0; i < 4; i++) row[i] = at + (ptrdiff_t)least(i, n - 1) * stride;
	return (struct four_rows){
		_mm512_inserti64x4(_mm512_castsi256_si512(load256(row[0])), load256(row[1]), 1),
		_mm512_inserti64x4(_mm512_castsi256_si512(load256(row[2])), load256(row[3]), 1),
	};
}

/* Four rows' bytes of a channel next to one another, 16 channels of them: which bytes of a and b. */
#define ROW_BYTES(c)     (c), 32 + (c), 64 + (c), 96 + (c)
#define FOUR_CHANNELS(c) ROW_BYTES(c), ROW_BYTES(c + 1), ROW_BYTES(c + 2), ROW_BYTES(c + 3)
static const uint8_t by_channel[2][64] __attribute__((aligned(64))) = {
	{ FOUR_CHANNELS(0), FOUR_CHANNELS(4), FOUR_CHANNELS(8), FOUR_CHANNELS(12) },
	{ FOUR_CHANNELS(16), FOUR_CHANNELS(20), FOUR_CHANNELS(24), FOUR_CHANNELS(28) },
};

/*
 * What one call sums: weights of m queries in so many parts, high and low bytes or high ones alone; 16 channels
 * in so many halves of the dim, from `half` on; so many of such pieces of 32 bytes, from `piece` on. parts * m *
 * halves * pieces are 16, for which there are registers.
 */
struct shape {
	uint32_t m, parts, half, halves, piece, pieces;
};

/* Products of four rows with weights. */
INLINE void multiply_four(
	struct four_rows x, const int8_t *four, __m512i book, struct shape o, __m512i *sum)
{
	const uint32_t vectors = o.pieces * o.halves, weights = o.parts * o.m;
	__m512i y[4];

	UNROLL for (uint32_t i = 0; i < vectors; i++)
	{
		const uint8_t *order = by_channel[o.piece + i / o.halves];
		const __m512i z = _mm512_permutex2var_epi8(x.a, _mm512_load_si512(order), x.b);

		y[i] = _mm512_permutexvar_epi8(
			o.half + i % o.halves ? _mm512_srli_epi16(z, 4) : z, book);
	}
	UNROLL for (uint32_t i = 0; i < weights; i++)
	{
		const __m512i w = four_bytes(four + i * ROWS);

		UNROLL for (uint32_t j = 0; j < vectors; j++) sum[j * weights + i] =
			dot_four(sum[j * weights + i], y[j], w);
	}
}

/* The values of n rows, n <= ROWS, at 32 bytes of each, and where their sums are to go. */
struct values {
	const uint8_t *at, *next; /* next: a line for every four rows */
	ptrdiff_t stride;
	uint32_t n, nq;
	const struct byte_weights *w;
	float *to; /* a channel of the first half of a query's dim; the other half's are `half` behind it */
	size_t half;
};

/* Sums of all rows to those before. */
INLINE void put_values(const struct values *v, struct shape o, const __m512i *sum)
{
	UNROLL for (uint32_t i = 0; i < o.pieces * o.halves * o.m; i++)
	{
		const uint32_t query = i % o.m, half = o.half + i / o.m % o.halves;
		const __m512i *from = sum + i / o.m * o.parts * o.m + query;
		float *to =
			v->to + (query * 2 + half) * v->half + (o.piece + i / o.m / o.halves) * 16;

		if (query < v->nq)
			_mm512_storeu_ps(to,
				_mm512_fmadd_ps(
					joined(from[0],
						o.parts == 2 ? from[o.m] : _mm512_setzero_si512()),
					_mm512_set1_ps(v->w->unit[query]), _mm512_loadu_ps(to)));
	}
}

INLINE void add_values(const struct values *v, __m512i book, struct shape o)
{
	const uint32_t weights = o.parts * o.m;
	const size_t lines = v->n / TILE * LINE; /* of a piece */
	const int8_t *four = v->w->byte, *end = four + v->n / TILE * TILE;
	const uint8_t *at = v->at, *next = v->next + o.piece * lines;
	__m512i sum[2 * KVP_TILE_QUERIES]; /* [piece][half][part][query] */

	/* What is to be taken off is in units of the last part. */
	UNROLL for (uint32_t i = 0; i < o.pieces * o.halves * weights; i++) sum[i] =
		i % weights / o.m + 1 == o.parts ? _mm512_set1_epi32(v->w->less[i % o.m])
						 : _mm512_setzero_si512();
	for (; four < end; four += TILE, at += TILE * v->stride, next += LINE) {
		if (!o.half) {
			UNROLL for (uint32_t i = 0; i < o.pieces; i++)
				_mm_prefetch(next + i * lines, _MM_HINT_T1);
		}
		multiply_four(four_rows(at, v->stride, TILE), four, book, o, sum);
	}
	if (v->n % TILE)
		multiply_four(four_rows(at, v->stride, v->n % TILE), four, book, o, sum);
	put_values(v, o, sum);
}

/* By m and whether there are high bytes alone. */
APART void add_both_4(const struct values *v, __m512i book)
{
	add_values(v, book, (struct shape){ 4, 2, 0, 2, 0, 1 });
	add_values(v, book, (struct shape){ 4, 2, 0, 2, 1, 1 });
}

APART void add_high_4(const struct values *v, __m512i book)
{
	add_values(v, book, (struct shape){ 4, 1, 0, 2, 0, 2 });
}

APART void add_both_8(const struct values *v, __m512i book)
{
	add_values(v, book, (struct shape){ 8, 2, 0, 1, 0, 1 });
	add_values(v, book, (struct shape){ 8, 2, 1, 1, 0, 1 });
	add_values(v, book, (struct shape){ 8, 2, 0, 1, 1, 1 });
	add_values(v, book, (struct shape){ 8, 2, 1, 1, 1, 1 });
}

APART void add_high_8(const struct values *v, __m512i book)
{
	add_values(v, book, (struct shape){ 8, 1, 0, 2, 0, 1 });
	add_values(v, book, (struct shape){ 8, 1, 0, 2, 1, 1 });
}

/* The sums of rows [first, first + n) to those before times `fade`. */
INLINE void add_rows(const struct kvp_rows *r, const struct byte_weights *w, __m512i book,
	uint32_t first, uint32_t n, uint32_t m, uint32_t nq, int fetch, const float *fade,
	float *acc)
{
	struct values v = { r->codes + (ptrdiff_t)first * r->stride, next_of(r, first, fetch),
		r->stride, n, nq, w, acc, r->dim / 2 };

	fade_rows(fade, nq, r->dim, acc);
	for (uint32_t at = 0; at < r->dim / 2; at += 32) {
		if (m == 4)
			(w->high_only ? add_high_4 : add_both_4)(&v, book);
		else
			(w->high_only ? add_high_8 : add_both_8)(&v, book);
		v.at += 32;
		v.to += 32;
		v.next += n / TILE * LINE * 2;
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

INLINE void multiply_rows(
	const struct pass *p, uint32_t m, uint32_t first, uint32_t n, struct area *a)
{
	const struct kvp_rows *k = &p->keys;
	const __m512i book = unsigned_book(p->k.book);
	const uint8_t *next = next_of(k, first, p->at == 0);
	uint8_t copy[2][GROUP * DIM_MAX / 2];
	struct group g[2];
	__m512i x[2][4];

	if (n < ROWS)
		memset(a->sum, 0, sizeof a->sum);
	groups_at(k, first, 1, copy, g);
	turn_group(&g[0], 0, x[0]);
	turn_group(&g[1], 0, x[1]);
	for (uint32_t t = 0; t < n; t += 2 * GROUP) {
		struct group behind[2] = { g[0], g[1] };
		__m512i sum[2 * KVP_TILE_QUERIES];

		if (t + 2 * GROUP < n)
			groups_at(k, first + t + 2 * GROUP, 1, copy, behind);
		multiply_groups(g, behind, k->dim, p->q, m, book, next, x, sum);
		put_group(sum, m, a->sum + t * m);
		put_group(sum + m, m, a->sum + (t + GROUP) * m);
		next += GROUP * k->dim;
		g[0] = behind[0];
		g[1] = behind[1];
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

INLINE int takes(const struct kvp_rows *r)
{
	return fits(r);
}

INLINE struct bytes bytes_of(const struct kvp_rows *r)
{
	return bytes_init(r);
}

INLINE void multiply_keys_of(struct pass *p, uint32_t m, uint32_t first, uint32_t n, struct area *a)
{
	if (m == 4)
		multiply_rows_4(p, first, n, a);
	else
		multiply_rows_8(p, first, n, a);
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

INLINE void add_values_of(struct pass *p, struct byte_weights *w, uint32_t m, uint32_t first,
	uint32_t n, const float *fade, float *acc, struct area *a)
{
	(void)a;
	add_rows(
		&p->values, w, unsigned_book(p->v.book), first, n, m, p->nq, p->at == 0, fade, acc);
}

int kvp_step_bytes(const struct kvp_step *job)
{
	return step(job);
}

void kvp_attend_init_bytes(struct kvp_kernels *k)
{
	k->attend[KVP_FORM_BOOK].score = score;
	k->attend[KVP_FORM_BOOK].accumulate = accumulate;
	k->tiles.least = 2; /* one query alone is as quick in floats */
	k->tiles.step = kvp_step_bytes;
	k->tiles.queries = kvp_byte_queries;
}
