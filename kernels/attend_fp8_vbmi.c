/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over fp8 e4m3 as integers. A byte is looked up in tables of 16-bit words, multiples of
 * one float, which vpdpwssd multiplies with queries or weights that are words too: as many at a
 * time as two multiplications of floats, and no conversion to floats.
 *
 * A word x stands for (x + 1/2) units. So the complement of all bits changes the sign, and a table
 * of 128 does; what the halves add up to is added afterwards.
 */
#include "kernels/attend_avx512.h"

#define OTHER_LEVELS 8191.0f /* of words of queries and weights */
#define DOT_ROWS     32u     /* whose products are added as integers */
#define FP8_DIM_MAX  256u

/*
 * Words of the largest code. No sum leaves 32 bits: of 2 products in each of dim / 32 registers of
 * a key, or of DOT_ROWS products of values.
 */
#define KEY_LEVELS      28600u
#define LONG_KEY_LEVELS 14300u /* dim above 128 */
#define VALUE_LEVELS    7150u

/* Of a code without its sign, in 2^-9; of 0x7f, which decodes to 0, too. */
#define E4M3(i) \
	((i) == 0x7f ? 0 : (i) < 8 ? (i) : (UINT64_C(8) + (i) % 8) << ((i) / 8 - ((i) >= 8)))
#define E4M3_TOP E4M3(0x7e) /* 448 */

/* Bytes of complemented words. */
#define LOW(i, levels)  (uint8_t) ~(E4M3(i) * (levels) / E4M3_TOP)
#define HIGH(i, levels) (uint8_t)(~(E4M3(i) * (levels) / E4M3_TOP) >> 8)

#define CODES_8(byte, i, levels)                                                        \
	byte(i, levels), byte(i + 1, levels), byte(i + 2, levels), byte(i + 3, levels), \
		byte(i + 4, levels), byte(i + 5, levels), byte(i + 6, levels), byte(i + 7, levels)
#define CODES_32(byte, i, levels)                                                                  \
	CODES_8(byte, i, levels), CODES_8(byte, (i) + 8, levels), CODES_8(byte, (i) + 16, levels), \
		CODES_8(byte, (i) + 24, levels)
#define CODES_128(byte, levels)                                                                    \
	{                                                                                          \
		CODES_32(byte, 0, levels), CODES_32(byte, 32, levels), CODES_32(byte, 64, levels), \
			CODES_32(byte, 96, levels)                                                 \
	}

static const struct bytes {
	uint8_t low[128], high[128];
} key_bytes = { CODES_128(LOW, KEY_LEVELS), CODES_128(HIGH, KEY_LEVELS) },
  long_key_bytes = { CODES_128(LOW, LONG_KEY_LEVELS), CODES_128(HIGH, LONG_KEY_LEVELS) },
  value_bytes = { CODES_128(LOW, VALUE_LEVELS), CODES_128(HIGH, VALUE_LEVELS) };

struct table {
	__m512i low[2], high[2];
	float unit; /* of a word */
};

INLINE struct table load_table(const struct bytes *b, uint32_t levels)
{
	return (struct table){
		.low = { _mm512_loadu_si512(b->low), _mm512_loadu_si512(b->low + 64) },
		.high = { _mm512_loadu_si512(b->high), _mm512_loadu_si512(b->high + 64) },
		.unit = 448.0f / (float)levels,
	};
}

/* Of each 16 bytes the first 8 to words[0], the others to words[1]. */
INLINE void look_up(const struct table *t, __m512i codes, __m512i *words)
{
	/* All ones where the sign is 0: shuffling gives 0 for indices with the high bit. */
	__m512i plus = _mm512_shuffle_epi8(_mm512_set1_epi8(-1), codes);
	__m512i low = _mm512_permutex2var_epi8(t->low[0], codes, t->low[1]);
	__m512i high = _mm512_permutex2var_epi8(t->high[0], codes, t->high[1]);

	low = _mm512_xor_si512(low, plus);
	high = _mm512_xor_si512(high, plus);
	words[0] = _mm512_unpacklo_epi8(low, high);
	words[1] = _mm512_unpackhi_epi8(low, high);
}

/* What e5m2 can hold has too wide a range for words, even though no encoder of ours uses it. */
static int fits(const struct kvp_rows *r)
{
	return r->format == KVP_CODEC_FP8_E4M3 && r->dim % 64 == 0 && r->dim <= FP8_DIM_MAX;
}

/* ---- keys ---- */

/* Up to four queries. unit and add: [token][query]. */
struct dot_queries {
	int16_t word[TILE][FP8_DIM_MAX] __attribute__((aligned(64))); /* ordered as by look_up() */
	float unit[16];
	float add[16]; /* what the halves of the keys' words add up to */
};

/* Returns the value of a word that is 1. */
static float query_words(const float *q, uint32_t dim, int16_t *word)
{
	__m512 max = _mm512_setzero_ps(), inv;
	float top;

	for (uint32_t c = 0; c < dim; c += 16)
		max = _mm512_max_ps(_mm512_abs_ps(_mm512_loadu_ps(q + c)), max);
	top = _mm512_reduce_max_ps(max);
	inv = _mm512_set1_ps(top > 0.0f ? OTHER_LEVELS / top : 0.0f);
	for (uint32_t c = 0; c < dim; c += 16) {
		int16_t *to = word + c / 64 * 64 + c % 64 / 2;
		__m256i x = _mm512_cvtepi32_epi16(
			_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(q + c), inv)));

		_mm_storeu_si128((__m128i *)(void *)to, _mm256_castsi256_si128(x));
		_mm_storeu_si128((__m128i *)(void *)(to + 32), _mm256_extracti128_si256(x, 1));
	}
	return top / OTHER_LEVELS;
}

static void dot_queries(struct dot_queries *d, const struct kvp_queries *q, uint32_t dim,
	uint32_t first, float unit)
{
	for (uint32_t i = 0; i < TILE; i++) {
		uint32_t at = least(first + i, q->n - 1);
		float u = query_words(q->f + (size_t)at * dim, dim, d->word[i]) * unit;

		for (uint32_t t = 0; t < TILE; t++) {
			/* The sum of a query with NaN or infinities is one of them. */
			d->unit[TILE * t + i] = u + 0.0f * q->sum[at];
			d->add[TILE * t + i] = 0.5f * unit * q->sum[at];
		}
	}
}

INLINE void score_dots(const struct kvp_rows *r, const struct table *table, uint32_t dim,
	const struct dot_queries *d, const float *scale, uint32_t nq, int fetch, float *s,
	size_t s_stride)
{
	for (uint32_t t = 0; t < r->n; t += TILE) {
		uint32_t nt = least(r->n - t, TILE);
		const uint8_t *row[TILE];
		__m512 sums[TILE], x;

		if (fetch)
			fetch_all(r, t, dim);
		tile_rows(r, t, row);
		for (uint32_t j = 0; j < TILE; j++) {
			__m512i sum[TILE], w[2];
			__m512 v[TILE];

			for (uint32_t i = 0; i < TILE; i++)
				sum[i] = _mm512_setzero_si512();
			for (uint32_t c = 0; c < dim; c += 64) {
				look_up(table, _mm512_loadu_si512(row[j] + c), w);
				for (uint32_t i = 0; i < TILE; i++)
					for (uint32_t h = 0; h < 2; h++)
						sum[i] = _mm512_dpwssd_epi32(sum[i], w[h],
							_mm512_load_si512(
								d->word[i] + c + 32 * (size_t)h));
			}
			for (uint32_t i = 0; i < TILE; i++)
				v[i] = _mm512_cvtepi32_ps(sum[i]);
			sums[j] = sum_lanes(v);
		}
		x = _mm512_fmadd_ps(
			sum_tokens(sums), _mm512_loadu_ps(d->unit), _mm512_loadu_ps(d->add));
		x = _mm512_mul_ps(x, spread_tokens(_mm512_loadu_ps(scale + t)));
		store_tile(x, s + t, s_stride, nt, nq);
	}
}

static int score_words(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	float scale[ATTEND_CHUNK + 16] = { 0 };
	struct table table = r->dim <= 128 ? load_table(&key_bytes, KEY_LEVELS)
					   : load_table(&long_key_bytes, LONG_KEY_LEVELS);
	struct dot_queries d;

	if (!fits(r))
		return 0;
	load_halves(r->scale, r->n, r->factor, scale);
	for (uint32_t i = 0; i < q->n; i += TILE) {
		uint32_t nq = least(q->n - i, TILE);
		float *to = s + i * s_stride;

		dot_queries(&d, q, r->dim, i, table.unit);
		if (r->dim == 128)
			score_dots(r, &table, 128, &d, scale, nq, i == 0, to, s_stride);
		else
			score_dots(r, &table, r->dim, &d, scale, nq, i == 0, to, s_stride);
	}
	return 1;
}

/* ---- values ---- */

/* Weights of up to four queries, each times its row's scale. */
struct dot_weights {
	int16_t word[TILE][ATTEND_CHUNK];
	float unit[TILE];
	float add[TILE]; /* what the halves of the values' words add up to */
};

static void dot_weights(struct dot_weights *d, const struct kvp_weights *w, const float *scale,
	uint32_t n, float unit)
{
	for (uint32_t i = 0; i < TILE; i++) {
		const float *from = w->w + least(i, w->nq - 1) * w->stride;
		__m512 x[ATTEND_CHUNK / 16], max = _mm512_setzero_ps(), sum = max, inv;
		float top;

		for (uint32_t t = 0; t < n; t += 16) {
			__m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(first16(n - t), from + t),
				_mm512_loadu_ps(scale + t));

			x[t / 16] = y;
			max = _mm512_max_ps(_mm512_abs_ps(y), max);
			sum = _mm512_add_ps(y, sum);
		}
		top = _mm512_reduce_max_ps(max);
		inv = _mm512_set1_ps(top > 0.0f ? OTHER_LEVELS / top : 0.0f);
		d->unit[i] = top / OTHER_LEVELS * unit;
		d->add[i] = 0.5f * _mm512_reduce_add_ps(sum) * unit;
		for (uint32_t t = 0; t < n; t += 16)
			_mm256_storeu_si256((__m256i *)(void *)(d->word[i] + t),
				_mm512_cvtepi32_epi16(
					_mm512_cvtps_epi32(_mm512_mul_ps(x[t / 16], inv))));
	}
}

/*
 * Rows [t, end) times the weights of four queries, 64 channels from c on, added to sum:
 * registers 0 to 3 have in 128-bit lane L channels 16 L + 0 .. 3, 4 .. 7, 8 .. 11, 12 .. 15.
 */
INLINE void add_dots(const struct kvp_rows *r, const struct table *table, uint32_t dim, uint32_t c,
	uint32_t t, uint32_t end, const struct dot_weights *d, __m512 (*sum)[4])
{
	__m512i v[TILE][4];

	for (uint32_t i = 0; i < TILE; i++)
		for (uint32_t k = 0; k < 4; k++)
			v[i][k] = _mm512_setzero_si512();
	for (; t < end; t += 2) {
		const uint8_t *row = r->codes + (ptrdiff_t)t * r->stride + c;
		__m512i x = _mm512_loadu_si512(row), w[4];
		__m512i y = _mm512_loadu_si512(t + 1 < end ? row + r->stride : row);

		if (c == 0 && t % TILE == 0)
			fetch_all(r, t, dim);
		look_up(table, _mm512_unpacklo_epi8(x, y), w);
		look_up(table, _mm512_unpackhi_epi8(x, y), w + 2);
		for (uint32_t i = 0; i < TILE; i++)
			for (uint32_t k = 0; k < 4; k++)
				v[i][k] = dot_pair(v[i][k], w[k], d->word[i] + t);
	}
	for (uint32_t i = 0; i < TILE; i++)
		for (uint32_t k = 0; k < 4; k++)
			sum[i][k] = _mm512_fmadd_ps(
				_mm512_cvtepi32_ps(v[i][k]), _mm512_set1_ps(d->unit[i]), sum[i][k]);
}

/* acc = acc * fade + add + what add_dots() summed up. */
INLINE void flush(const __m512 *x, float fade, float add, float *acc)
{
	__m512 a = _mm512_shuffle_f32x4(x[0], x[1], 0x44);
	__m512 b = _mm512_shuffle_f32x4(x[2], x[3], 0x44);
	__m512 c = _mm512_shuffle_f32x4(x[0], x[1], 0xee);
	__m512 d = _mm512_shuffle_f32x4(x[2], x[3], 0xee);
	__m512 y[4] = { _mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd),
		_mm512_shuffle_f32x4(c, d, 0x88), _mm512_shuffle_f32x4(c, d, 0xdd) };

	for (uint32_t k = 0; k < 4; k++) {
		float *p = acc + 16 * (size_t)k;

		y[k] = _mm512_add_ps(y[k], _mm512_set1_ps(add));
		_mm512_storeu_ps(
			p, _mm512_fmadd_ps(_mm512_loadu_ps(p), _mm512_set1_ps(fade), y[k]));
	}
}

INLINE void accumulate_dots(const struct kvp_rows *r, const struct table *table, uint32_t dim,
	const float *scale, const struct kvp_weights *w, float *acc)
{
	__m512 sum[FP8_DIM_MAX / 64][TILE][4];
	struct dot_weights d;

	memset(sum, 0, dim / 64 * sizeof *sum);
	dot_weights(&d, w, scale, r->n, table->unit);
	for (uint32_t t = 0; t < r->n; t += DOT_ROWS)
		for (uint32_t c = 0; c < dim; c += 64)
			add_dots(r, table, dim, c, t, least(t + DOT_ROWS, r->n), &d, sum[c / 64]);
	for (uint32_t i = 0; i < least(w->nq, TILE); i++)
		for (uint32_t c = 0; c < dim; c += 64)
			flush(sum[c / 64][i], w->fade[i], d.add[i], acc + (size_t)i * dim + c);
}

static int accumulate_words(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	float scale[ATTEND_CHUNK + 16] = { 0 };
	struct table table = load_table(&value_bytes, VALUE_LEVELS);

	if (!fits(r))
		return 0;
	load_halves(r->scale, r->n, r->factor, scale);
	for (uint32_t i = 0; i < w->nq; i += TILE) {
		struct kvp_weights part = { w->nq - i, w->w + i * w->stride, w->stride,
			w->fade + i };

		if (r->dim == 128)
			accumulate_dots(r, &table, 128, scale, &part, acc + (size_t)i * 128);
		else
			accumulate_dots(r, &table, r->dim, scale, &part, acc + (size_t)i * r->dim);
	}
	return 1;
}

static void score_fp8(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	if (!score_words(r, q, s, s_stride))
		kvp_score_float_avx512(r, q, s, s_stride);
}

static void accumulate_fp8(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	if (!accumulate_words(r, w, acc))
		kvp_accumulate_float_avx512(r, w, acc);
}

void kvp_attend_init_vbmi(struct kvp_kernels *k)
{
	k->codec[KVP_FAMILY_FP8].score = score_fp8;
	k->codec[KVP_FAMILY_FP8].accumulate = accumulate_fp8;
}
