/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of 4-bit codes from a book of centroids (tq) as signed bytes, which both matrix tiles (AMX) and
 * vectors (VNNI) multiply, four at a time, and sum in 32 bits: their sums are the same to the bit.
 *
 * A centroid is one byte, at a scale at which the book's are nearly integers. So is a channel of a query,
 * whose rotation has made it nearly Gaussian. A weight is two bytes, 128 high + low, or, where it counts
 * little, one (struct byte_weights). docs/attention.md has what each costs beside what four bits cost.
 *
 * Private to the files of either.
 */
#ifndef KVP_KERNELS_ATTEND_BYTES_H
#define KVP_KERNELS_ATTEND_BYTES_H

#include "kernels/attend_avx512.h"
#include "kernels/attend_unroll.h"

/* attend_bytes_vbmi.c: queries [rows][dim] as bytes, one of a channel; never wide. */
void kvp_byte_queries(const float *f, uint32_t rows, uint32_t dim, int wide, void *ret);
/* Keys and values of 4-bit centroids. */
kvp_step_fn kvp_step_bytes;

#define GROUP      16u /* rows of keys whose scores are summed together */
#define ROWS       64u /* of values, whose products are summed as integers */
#define CODES      64u /* bytes of a row that are looked up together: two tiles' width of channels */
#define TILE_BYTES 1024u
#define QUERY_TOP  127.0f
#define TOP        16256.0f /* 127 * 128: of the two bytes of a weight */

/* Of a tile of queries, [16][m][4]: four channels of each query to a row, m of columns_of(). */
#define QUERY_BYTES (16u * KVP_TILE_QUERIES * 4u)

/* As many queries as bytes are laid out for. */
INLINE uint32_t columns_of(uint32_t rows)
{
	return rows <= 4 ? 4 : KVP_TILE_QUERIES;
}

/* ---- the book ---- */

struct bytes {
	__m512i book; /* 16 signed bytes, four times */
	float value;  /* of a 1 */
};

/* How much each centroid counts: how often the code occurs, of the smallest to the largest. */
static const float often[8] = { 0.2002f, 0.1870f, 0.1627f, 0.1311f, 0.0959f, 0.0613f, 0.0324f,
	0.0094f };

/*
 * The scale, of sixteen, at which bytes are least off. Spheres of 128 channels and more have theirs between .816
 * and .8223 of the largest that there can be, the more channels the nearer to the Gaussian's; that of 64 at
 * .9595. Minima are narrow: sixteen evenly over all are off by up to half as much again.
 */
static inline float scale_of(const float *cent)
{
	const __m512 part = _mm512_setr_ps(0.816f, 0.8165f, 0.817f, 0.8175f, 0.818f, 0.8185f,
		0.819f, 0.8195f, 0.82f, 0.8205f, 0.821f, 0.8215f, 0.822f, 0.9f, 0.9595f, 1.0f);
	const __m512 s = _mm512_mul_ps(_mm512_set1_ps(127.0f / cent[15]), part);
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

static inline struct bytes bytes_init(const struct kvp_rows *r)
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
INLINE uint32_t lines_of(const struct kvp_rows *r)
{
	const uint32_t lines = r->next_n * r->next_bytes / 64, tiles = (r->n + TILE - 1) / TILE;

	if (r->next_stride != (ptrdiff_t)r->next_bytes)
		return 0;
	return (lines + tiles - 1) / tiles;
}

#define NO_LINES UINT32_MAX

INLINE void fetch_lines(const struct kvp_rows *r, uint32_t t, uint32_t lines)
{
	const size_t at = (size_t)(t / TILE) * lines * 64;

	if (lines == NO_LINES)
		return;
	if (!lines)
		fetch_next(r, t);
	for (uint32_t i = 0; i < lines; i++)
		_mm_prefetch(r->next + at + 64 * (size_t)i, _MM_HINT_T1);
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

INLINE int fits(const struct kvp_rows *r)
{
	return r->form == KVP_FORM_BOOK && r->bits == 4 && r->dim % 64 == 0;
}

/* ---- weights ---- */

/*
 * The weights of ROWS rows, at the scale of the largest. One byte of each, off by up to half a 127th of
 * it, is enough where the largest is little beside all weights so far. To the nearest, many small weights
 * would all be nothing; so they are rounded up or down by row, dither_of[], and are right on average.
 */
struct byte_weights {
	int8_t byte[2 * KVP_TILE_QUERIES * ROWS]; /* [high of all, low of all][row] */
	float unit[KVP_TILE_QUERIES];             /* of 1 in the low bytes */
	int32_t less[KVP_TILE_QUERIES];           /* products with centroids that are all -128 */
	uint32_t high_only; /* low bytes are not there, and less is in units of the high ones */
};

/* What is no larger counts as nothing: its inverse would be infinite, and products with it no numbers. */
#define WEIGHT_LEAST 1e-34f

/* Weights of rows [first, first + n) of one query, times their scales. */
INLINE void split_weights(const float *w, const float *scale, uint32_t n, float value, uint32_t m,
	uint32_t at, struct byte_weights *ret)
{
	__m512 x[ROWS / 16], max = _mm512_setzero_ps(), inv;
	__m512i sum = _mm512_setzero_si512();
	float top;

	UNROLL for (uint32_t i = 0; i < ROWS / 16; i++)
	{
		const __mmask16 in = n > 16 * i ? first16(n - 16 * i) : 0;

		x[i] = _mm512_mul_ps(_mm512_maskz_loadu_ps(in, w + 16 * i),
			_mm512_maskz_loadu_ps(in, scale + 16 * i));
		max = _mm512_max_ps(_mm512_abs_ps(x[i]), max);
	}
	top = _mm512_reduce_max_ps(max);
	inv = _mm512_set1_ps(top > WEIGHT_LEAST ? TOP / top : 0.0f);
	UNROLL for (uint32_t i = 0; i < ROWS / 16; i++)
	{
		const __m512i v = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], inv));

		sum = _mm512_add_epi32(v, sum);
		_mm_store_si128((__m128i *)(void *)(ret->byte + at * ROWS + 16 * i),
			_mm512_cvtepi32_epi8(_mm512_srai_epi32(v, 7)));
		_mm_store_si128((__m128i *)(void *)(ret->byte + (m + at) * ROWS + 16 * i),
			_mm512_cvtepi32_epi8(_mm512_and_si512(v, _mm512_set1_epi32(127))));
	}
	ret->unit[at] = top / TOP * value;
	ret->less[at] = _mm512_reduce_add_epi32(_mm512_slli_epi32(sum, 7));
	ret->less[at] = -ret->less[at];
}

INLINE void weigh_rows(const struct kvp_weights *w, const struct scales *c, uint32_t first,
	uint32_t n, float value, uint32_t m, uint32_t nq, struct byte_weights *ret)
{
	if (nq < m)
		memset(ret->byte, 0, sizeof ret->byte);
	ret->high_only = 0;
	for (uint32_t i = 0; i < nq; i++)
		split_weights(w->w + i * w->stride + first, c->scale + first, n, value, m, i, ret);
}

/*
 * acc = acc * fade + unit * y, of 64 channels or as many as there are; y[j] has channels 4 j .. 4 j + 3 of
 * every sixteen.
 */
INLINE void add_channels(__m512 *y, float fade, float unit, uint32_t channels, float *acc)
{
	__m512 a, b, c, d;

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

#endif
