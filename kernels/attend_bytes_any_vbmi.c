/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of any codes as bytes by vectors, as attend_bytes_vbmi.c has them of 4-bit centroids: tq in 2 and 3
 * bits, int8, and codes with one scale and minimum a row (asym, hadamard), keys of one codec and values of
 * another. Not what has scales for groups, which gains little (docs/attention.md). Steps alone: where a query
 * does not see all rows, codes are words and floats as without bytes.
 *
 * What is looked up is the unsigned factor, 128 too large: a centroid, a signed byte, or the odd number around
 * 0 that is twice a code's distance from the middle of all codes. What the middle adds, the minimum and half of
 * the range, is a float beside the sums: of keys times the sum of the query, of values times the weight.
 *
 * Queries that no rotation has made nearly Gaussian are two bytes, 128 high + low (struct kvp_queries, wide).
 */
#include "kernels/attend_bytes.h"

struct area {
	int32_t sum[ROWS * KVP_TILE_QUERIES] __attribute__((aligned(64))); /* [row][query] */
};

#define STEP_ANY 1
#include "kernels/attend_bytes_vbmi.h"

#define SUMS  16u /* registers of sums */
#define MOST  (SUMS / 4)
#define THIRD 0x04040404

/* ---- codes ---- */

/* Bits that one byte has of a code. */
INLINE uint32_t width_of(uint32_t bits)
{
	return bits == 3 ? 2 : bits;
}

/* Bytes between a code and the next one in the same byte. */
INLINE uint32_t part_of(uint32_t bits, uint32_t dim)
{
	return dim * width_of(bits) / 8;
}

INLINE uint32_t bits_of(const struct kvp_rows *r)
{
	return r->form == KVP_FORM_INT8 ? 8 : r->bits;
}

INLINE struct bytes bytes_of(const struct kvp_rows *r)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const __m512i low = _mm512_and_si512(lane, _mm512_set1_epi32((1 << r->bits) - 1));
	__m512 x;
	float scale;

	if (r->form == KVP_FORM_INT8)
		return (struct bytes){ _mm512_setzero_si512(), 1.0f };
	if (r->form == KVP_FORM_BOOK && r->bits == 4)
		return bytes_init(r);
	if (r->form == KVP_FORM_AFFINE) {
		const __m512i odd = _mm512_sub_epi32(
			_mm512_add_epi32(low, low), _mm512_set1_epi32((1 << r->bits) - 1));

		return (struct bytes){ _mm512_broadcast_i32x4(_mm512_cvtepi32_epi8(odd)), 0.5f };
	}
	/* Of fewer centroids each is off by half a 127th of the largest at most, and by a tenth of what bits cost. */
	x = _mm512_permutexvar_ps(low, _mm512_loadu_ps(r->cent));
	scale = 127.0f / _mm512_reduce_max_ps(_mm512_abs_ps(x));
	return (struct bytes){
		_mm512_broadcast_i32x4(_mm512_cvtsepi32_epi8(
			_mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(scale))))),
		1.0f / scale,
	};
}

INLINE int takes(const struct kvp_rows *r)
{
	return r->dim % 64 == 0 && r->form >= KVP_FORM_INT8 && r->form < KVP_FORMS &&
	       (r->form != KVP_FORM_AFFINE || (!r->per_channel && r->groups == 1));
}

/*
 * Bytes, 128 too large, of codes in field f of each byte of x; of 3 bits, bit 2 of each byte of `third` is the
 * code's. A look-up takes six bits, and the book is the same whatever those above the code are.
 */
INLINE __m512i look_up(uint32_t bits, __m512i x, uint32_t f, __m512i third, __m512i book)
{
	if (bits == 8)
		return unsigned_book(x);
	x = _mm512_srl_epi16(x, _mm_cvtsi32_si128((int)(f * width_of(bits))));
	if (bits == 3)
		x = _mm512_ternarylogic_epi32(_mm512_set1_epi32(THIRD), third, x, 0xca);
	return _mm512_permutexvar_epi8(x, book);
}

/* ---- queries ---- */

/* Where channels [c, c + 16) of m queries begin: four a row, of each query `parts` bytes. */
INLINE uint32_t query_at(uint32_t c, uint32_t dim, uint32_t m, uint32_t parts)
{
	const uint32_t half = c >= dim / 2, i = c - half * (dim / 2);

	if (parts == 2)
		return c * 2 * m;
	return (2 * (i / CODES) + half) * QUERY_BYTES + i % CODES * m;
}

/* A query of two bytes a channel: [four channels][high of m queries, low of m queries][4]. */
static void put_wide(const float *f, uint32_t dim, uint32_t m, uint32_t at, struct kvp_tiles *to)
{
	__m512 max = _mm512_setzero_ps(), inv;
	__m512i sum = _mm512_setzero_si512();
	int8_t *row = to->b + 4 * at;
	__mmask16 nan = 0;
	float largest;

	for (uint32_t c = 0; c < dim; c += 16) {
		const __m512 x = _mm512_loadu_ps(f + c);

		nan |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
		max = _mm512_max_ps(_mm512_abs_ps(x), max);
	}
	largest = nan ? NAN : _mm512_reduce_max_ps(max);
	to->unit[at] = largest / TOP;
	inv = _mm512_set1_ps(largest > 1e-30f && largest < INFINITY ? TOP / largest : 0.0f);
	for (uint32_t c = 0; c < dim; c += 16) {
		/* What is no number times 0 is none; the unit says so, and bytes are to be any. */
		const __m512i w = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(f + c), inv));
		const __m512i high =
			_mm512_srai_epi32(_mm512_add_epi32(w, _mm512_set1_epi32(64)), 7);
		const __m128i h = _mm512_cvtepi32_epi8(high);
		const __m128i l =
			_mm512_cvtepi32_epi8(_mm512_sub_epi32(w, _mm512_slli_epi32(high, 7)));
		int32_t b[8] __attribute__((aligned(32)));

		_mm256_store_si256((void *)b, _mm256_set_m128i(l, h));
		sum = _mm512_add_epi32(w, sum);
		for (uint32_t i = 0; i < 4; i++, row += 8 * m) {
			memcpy(row, b + i, 4);
			memcpy(row + 4 * m, b + 4 + i, 4);
		}
	}
	to->less[at] = -_mm512_reduce_add_epi32(_mm512_slli_epi32(sum, 7));
}

static void any_queries(const float *f, uint32_t rows, uint32_t dim, int wide, void *ret)
{
	const size_t pass = kvp_tiles_bytes(dim);
	uint8_t *to = ret;

	if (!wide) {
		kvp_byte_queries(f, rows, dim, 0, ret);
		return;
	}
	memset(to, 0, pass * ((rows + KVP_TILE_QUERIES - 1) / KVP_TILE_QUERIES));
	for (uint32_t i = 0; i < rows; i++)
		put_wide(f + (size_t)i * dim, dim, columns_of(rows), i % KVP_TILE_QUERIES,
			(void *)(to + i / KVP_TILE_QUERIES * pass));
}

/* ---- keys ---- */

/* Third bits of GROUP rows: third[c / 32] has those of channels c .. c + 31, a row a lane. */
INLINE void turn_thirds(const struct group *g, uint32_t dim, __m512i *third)
{
	for (uint32_t c = 0; c < dim; c += 128) {
		const uint32_t half = dim - c < 128;
		__m512i x[4];

		/* Of 64 channels the bytes before them are read, too: none beyond the row. */
		turn_group(g, dim / 4 + c / 8 - 8 * half, x);
		UNROLL for (uint32_t k = 0; k < 4; k++)
		{
			if (k >= 2 * half)
				third[c / 32 + k - 2 * half] = x[k];
		}
	}
}

/* Bit n + j of each dword of x to bit 2 of its byte j. */
INLINE __m512i third_of(__m512i x, uint32_t n)
{
	const __m512i by =
		_mm512_set1_epi64(0x21201f1e0100fffe); /* 2 less, and 32 more in the second */

	return _mm512_multishift_epi64_epi8(_mm512_add_epi8(by, _mm512_set1_epi8((char)n)), x);
}

/* Products of so many groups' rows with m queries, a query a register: ret[group][query]. */
INLINE void multiply_groups(const struct group *g, uint32_t groups, uint32_t bits, uint32_t dim,
	const struct kvp_tiles *q, uint32_t m, uint32_t parts, __m512i book, struct ahead *next,
	__m512i *ret)
{
	const uint32_t part = part_of(bits, dim), n = m * parts;
	__m512i sum[SUMS], third[2][DIM_MAX / 32];

	UNROLL for (uint32_t i = 0; i < groups * n; i++) sum[i] =
		i % n < n - m ? _mm512_setzero_si512() : _mm512_set1_epi32(q->less[i % m]);
	for (uint32_t j = 0; bits == 3 && j < groups; j++)
		turn_thirds(g + j, dim, third[j]);
	for (uint32_t at = 0; at < part; at += 16) {
		__m512i x[2][4];

		fetch_ahead(next);
		UNROLL for (uint32_t j = 0; j < groups; j++) turn_group(g + j, at, x[j]);
		for (uint32_t f = 0; f < 8 / width_of(bits); f++) {
			const uint32_t c = f * part + at;
			const int8_t *four = q->b + query_at(c, dim, m, parts);

			UNROLL for (uint32_t k = 0; k < 4; k++, four += 4 * n)
			{
				__m512i y[2];

				UNROLL for (uint32_t j = 0; j < groups; j++) y[j] = look_up(bits,
					x[j][k], f,
					bits == 3 ? third_of(third[j][c / 32], c % 32 + 4 * k)
						  : book,
					book);
				UNROLL for (uint32_t i = 0; i < n; i++)
				{
					const __m512i z = four_bytes(four + 4 * i);

					UNROLL for (uint32_t j = 0; j < groups; j++)
						sum[j * n + i] = dot_four(sum[j * n + i], y[j], z);
				}
			}
		}
	}
	UNROLL for (uint32_t i = 0; i < groups * m; i++) ret[i] =
		parts == 1 ? sum[i]
			   : _mm512_add_epi32(_mm512_slli_epi32(sum[i / m * n + i % m], 7),
				     sum[i / m * n + m + i % m]);
}

/* What is fetched beside the keys of groups from row t on, evenly over so many pieces; or it is at once. */
INLINE struct ahead next_keys(const struct pass *p, uint32_t t, uint32_t groups, uint32_t pieces)
{
	const uint32_t lines = p->key_lines, tiles = groups * GROUP / TILE;

	if (lines && lines != NO_LINES)
		return (struct ahead){ p->keys.next + (size_t)(t / TILE) * lines * 64,
			(tiles * lines + pieces - 1) / pieces };
	for (uint32_t j = 0; j < tiles; j++)
		fetch_lines(&p->keys, t + TILE * j, lines);
	return (struct ahead){ NULL, 0 };
}

INLINE void multiply_rows(const struct pass *p, uint32_t bits, uint32_t m, uint32_t parts,
	uint32_t first, uint32_t n, struct area *a)
{
	const struct kvp_rows *k = &p->keys;
	const __m512i book = unsigned_book(p->k.book);
	const uint32_t groups = m * parts > SUMS / 2 ? 1 : 2;

	if (n < ROWS)
		memset(a->sum, 0, sizeof a->sum);
	for (uint32_t t = 0; t < n; t += groups * GROUP) {
		uint8_t copy[2][GROUP * DIM_MAX];
		__m512i sum[2 * KVP_TILE_QUERIES];
		struct group g[2];
		struct ahead next = next_keys(p, first + t, groups, part_of(bits, k->dim) / 16);

		UNROLL for (uint32_t j = 0; j < groups; j++) g[j] =
			t + j * GROUP < n ? group_at(k, first + t + j * GROUP, 1,
						    bits == 8 ? k->dim : k->dim * bits / 8, copy[j])
					  : g[0];
		multiply_groups(g, groups, bits, k->dim, p->q, m, parts, book, &next, sum);
		UNROLL for (uint32_t j = 0; j < groups; j++)
		{
			if (t + j * GROUP < n)
				put_group(sum + j * m, m, a->sum + (t + j * GROUP) * m);
		}
	}
}

/* Each as a function of its own, for registers. */
#define KEYS(bits, m, parts)                                                      \
	APART void keys_##bits##_##m##_##parts(                                   \
		const struct pass *p, uint32_t first, uint32_t n, struct area *a) \
	{                                                                         \
		multiply_rows(p, bits, m, parts, first, n, a);                    \
	}
#define KEYS_OF(bits) KEYS(bits, 4, 1) KEYS(bits, 8, 1) KEYS(bits, 4, 2) KEYS(bits, 8, 2)
KEYS_OF(2)
KEYS_OF(3)
KEYS_OF(4)
KEYS(8, 4, 2)
KEYS(8, 8, 2)

typedef void keys_fn(const struct pass *p, uint32_t first, uint32_t n, struct area *a);

INLINE void multiply_keys_of(struct pass *p, uint32_t m, uint32_t first, uint32_t n, struct area *a)
{
#define FOR(m)                                                                         \
	{                                                                              \
		{ keys_2_##m##_1, keys_3_##m##_1, keys_4_##m##_1, NULL },              \
		{                                                                      \
			keys_2_##m##_2, keys_3_##m##_2, keys_4_##m##_2, keys_8_##m##_2 \
		}                                                                      \
	}
	static keys_fn *const fn[2][2][4] = { FOR(4), FOR(8) };
#undef FOR

	fn[m == 8][p->job->q->wide][least(bits_of(&p->keys) - 2, 3)](p, first, n, a);
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

/* The values of n rows, n <= ROWS, and where their sums are to go. */
struct values {
	const uint8_t *row;
	ptrdiff_t stride;
	uint32_t n, nq, dim;
	__m512i book;
	const struct byte_weights *w;
	const float *add;
	const uint64_t *third; /* [four rows][16 channels]: 16 bits of each row */
	float *acc;
};

/* Bit 16 row + channel of `at` to bit 2 of byte [channel][row]. */
INLINE __m512i thirds_at(const uint64_t *at)
{
	const __m512i by = _mm512_setr_epi64(0x2f1f0fff2e1e0efe, 0x3121110130201000,
		0x3323130332221202, 0x3525150534241404, 0x3727170736261606, 0x3929190938281808,
		0x3b2b1b0b3a2a1a0a, 0x3d2d1d0d3c2c1c0c);

	return _mm512_multishift_epi64_epi8(by, _mm512_set1_epi64((long long)*at));
}

static void thirds_of(const struct values *v, uint64_t *third)
{
	for (uint32_t t = 0; t < v->n; t += TILE) {
		for (uint32_t c = 0; c < v->dim; c += 64, third += 4) {
			__m128i x[4], a, b;

			for (uint32_t i = 0; i < TILE; i++)
				x[i] = _mm_loadl_epi64(
					(const void *)(v->row +
						       (ptrdiff_t)least(t + i, v->n - 1) *
							       v->stride +
						       v->dim / 4 + c / 8));
			a = _mm_unpacklo_epi16(x[0], x[1]);
			b = _mm_unpacklo_epi16(x[2], x[3]);
			_mm_storeu_si128((void *)third, _mm_unpacklo_epi32(a, b));
			_mm_storeu_si128((void *)(third + 2), _mm_unpackhi_epi32(a, b));
		}
	}
}

/*
 * What one call sums: weights of m queries in so many parts, high and low bytes or high ones alone; 16 channels in
 * so many fields of a row's bytes, or, of 8 bits, behind one another. m * parts * fields are up to 16.
 */
struct shape {
	uint32_t bits, m, parts, fields;
};

/* The channel at which field f of the bytes at `at` begins. */
INLINE uint32_t channel_of(const struct values *v, uint32_t bits, uint32_t at, uint32_t f)
{
	return bits == 8 ? at + 16 * f : f * part_of(bits, v->dim) + at;
}

/* Four rows from row t on: a register for each field, [channel][row]. */
INLINE void four_rows(
	const struct values *v, struct shape o, uint32_t t, uint32_t at, uint32_t field, __m512i *y)
{
	const __m512i order = _mm512_load_si512(by_channel);
	const uint8_t *row = v->row + (ptrdiff_t)t * v->stride + at;
	const int all = t + TILE <= v->n;
	__m512i x;

	UNROLL for (uint32_t f = 0; f < o.fields; f++)
	{
		const uint32_t c = channel_of(v, o.bits, at, field + f);
		const uint8_t *from = o.bits == 8 ? row + 16 * (field + f) : row;

		if (f == 0 || o.bits == 8)
			x = _mm512_permutexvar_epi8(
				order, all ? four_pieces(from, v->stride)
					   : rest_of_rows(from, v->stride, v->n % TILE));
		y[f] = look_up(o.bits, x, field + f,
			o.bits == 3 ? thirds_at(v->third + (t / TILE * v->dim + c) / 16) : x,
			v->book);
	}
}

INLINE void add_fields(const struct values *v, struct shape o, uint32_t at, uint32_t field)
{
	const uint32_t n = o.m * o.parts;
	__m512i sum[SUMS];

	/* What is to be taken off is in units of the last part. */
	UNROLL for (uint32_t i = 0; i < o.fields * n; i++) sum[i] =
		i % n < n - o.m ? _mm512_setzero_si512() : _mm512_set1_epi32(v->w->less[i % o.m]);
	for (uint32_t t = 0; t < v->n; t += TILE) {
		__m512i y[MOST];

		four_rows(v, o, t, at, field, y);
		UNROLL for (uint32_t i = 0; i < n; i++)
		{
			const __m512i z = four_bytes(v->w->byte + i * ROWS + t);

			UNROLL for (uint32_t f = 0; f < o.fields; f++) sum[f * n + i] =
				dot_four(sum[f * n + i], y[f], z);
		}
	}
	UNROLL for (uint32_t i = 0; i < o.fields * o.m; i++)
	{
		const uint32_t c = channel_of(v, o.bits, at, field + i / o.m), query = i % o.m;
		const __m512i *from = sum + i / o.m * n + query;
		float *to = v->acc + (size_t)query * v->dim + c;

		if (query < v->nq)
			_mm512_storeu_ps(to,
				_mm512_fmadd_ps(
					joined(from[0],
						o.parts == 2 ? from[o.m] : _mm512_setzero_si512()),
					_mm512_set1_ps(v->w->unit[query]),
					_mm512_add_ps(_mm512_loadu_ps(to),
						_mm512_set1_ps(v->add[query]))));
	}
}

INLINE void add_all(const struct values *v, uint32_t bits, uint32_t m, uint32_t parts)
{
	const uint32_t all = bits == 8 ? 4 : 8 / width_of(bits), most = SUMS / (m * parts);
	const struct shape o = { bits, m, parts, all < most ? all : most };

	for (uint32_t at = 0; at < part_of(bits, v->dim); at += bits == 8 ? 64 : 16)
		for (uint32_t f = 0; f < all; f += o.fields)
			add_fields(v, o, at, f);
}

#define VALUES(bits, m, parts)                                           \
	APART void values_##bits##_##m##_##parts(const struct values *v) \
	{                                                                \
		add_all(v, bits, m, parts);                              \
	}
#define VALUES_OF(bits) VALUES(bits, 4, 1) VALUES(bits, 8, 1) VALUES(bits, 4, 2) VALUES(bits, 8, 2)
VALUES_OF(2)
VALUES_OF(3)
VALUES_OF(4)
VALUES_OF(8)

typedef void values_fn(const struct values *v);

INLINE void add_values_of(struct pass *p, struct byte_weights *w, uint32_t m, uint32_t first,
	uint32_t n, const float *fade, float *acc, struct area *a)
{
#define PARTS_OF(bits, m)                                        \
	{                                                        \
		values_##bits##_##m##_1, values_##bits##_##m##_2 \
	}
#define SHAPES(bits)                                 \
	{                                            \
		PARTS_OF(bits, 4), PARTS_OF(bits, 8) \
	}
	static values_fn *const fn[4][2][2] = { SHAPES(2), SHAPES(3), SHAPES(4), SHAPES(8) };
#undef SHAPES
#undef PARTS_OF
	const struct kvp_rows *r = &p->values;
	uint64_t third[ROWS / TILE * DIM_MAX / 16];
	const struct values v = { r->codes + (ptrdiff_t)first * r->stride, r->stride, n, p->nq,
		r->dim, unsigned_book(p->v.book), w, p->add, third, acc };

	(void)a;
	for (uint32_t t = 0; t < n; t += TILE)
		fetch_lines(r, first + t, p->value_lines);
	fade_rows(fade, p->nq, r->dim, acc);
	if (r->bits == 3)
		thirds_of(&v, third);
	fn[least(bits_of(r) - 2, 3)][m == 8][!w->high_only](&v);
}

/* ---- steps ---- */

INLINE void beside_softmax(
	struct pass *p, uint32_t m, uint32_t slot, uint32_t first, uint32_t n, struct area *a)
{
	(void)m;
	(void)slot;
	(void)first;
	(void)n;
	(void)a;
	fetch_ahead(&p->ahead);
}

static int any_step(const struct kvp_step *job)
{
	return kvp_step_bytes(job) ||
	       ((job->q->wide || job->k->form != KVP_FORM_INT8) && step(job));
}

void kvp_attend_init_any(struct kvp_kernels *k)
{
	k->tiles.step = any_step;
	k->tiles.queries = any_queries;
	k->tiles.any = 1;
}
