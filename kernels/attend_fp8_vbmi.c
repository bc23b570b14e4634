/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention over fp8 e4m3, whose bytes are looked up in tables of 128 entries.
 *
 * Keys are floats, exactly: the table has the upper two bytes of these, the lower two are 0. Rows
 * lie in lanes, as in attend_keys_avx512.c.
 *
 * Values are 16-bit words, multiples of one float, which vpdpwssd multiplies with weights that are
 * words too: as many at a time as two multiplications of floats. A word x stands for (x + 1/2)
 * units. So the complement of all bits changes the sign, and a table of 128 does; what the halves
 * add up to is added afterwards. A word is off by 1.8e-5 of the largest code at most, and weights
 * as attend_words.h has it.
 */
#include "kernels/attend_avx512.h"
#include "kernels/attend_unroll.h"

#define STEP        16u /* rows that are scored at a time */
#define DOT_ROWS    32u /* whose products are added as integers */
#define FP8_DIM_MAX 256u

/*
 * Words of the largest code, and of the largest weight; all words of weights of DOT_ROWS rows times
 * one of a code: less than 2^31.
 */
#define VALUE_LEVELS  28600u
#define WEIGHT_LEVELS 32767.0f
#define WEIGHT_SUM    75000.0f

/* Of a code without its sign, in 2^-9; of 0x7f, which decodes to 0, too. */
#define E4M3(i) \
	((i) == 0x7f ? 0 : (i) < 8 ? (i) : (UINT64_C(8) + (i) % 8) << ((i) / 8 - ((i) >= 8)))
#define E4M3_TOP E4M3(0x7e) /* 448 */

/* Bytes of complemented words. */
#define LOW(i, levels)  (uint8_t) ~(E4M3(i) * (levels) / E4M3_TOP)
#define HIGH(i, levels) (uint8_t)(~(E4M3(i) * (levels) / E4M3_TOP) >> 8)

/* The upper bytes of floats: of 2^-6 and above exponent and mantissa lie as in fp8. */
#define FLOAT(i)                                          \
	((i) == 0 || (i) == 0x7f ? 0u                     \
		: (i) >= 8       ? ((i) + 960u) << 4      \
		: (i) >= 4       ? 0x3c00u + (i) % 4 * 32 \
		: (i) >= 2       ? 0x3b80u + (i) % 2 * 64 \
				 : 0x3b00u)
#define FLOAT_LOW(i, unused)  (uint8_t) FLOAT(i)
#define FLOAT_HIGH(i, unused) (uint8_t)(FLOAT(i) >> 8)

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
} key_bytes = { CODES_128(FLOAT_LOW, 0), CODES_128(FLOAT_HIGH, 0) },
  value_bytes = { CODES_128(LOW, VALUE_LEVELS), CODES_128(HIGH, VALUE_LEVELS) };

struct table {
	__m512i low[2], high[2];
};

INLINE struct table load_table(const struct bytes *b)
{
	return (struct table){
		.low = { _mm512_loadu_si512(b->low), _mm512_loadu_si512(b->low + 64) },
		.high = { _mm512_loadu_si512(b->high), _mm512_loadu_si512(b->high + 64) },
	};
}

/* What e5m2 can hold has too wide a range for words, even though no encoder of ours uses it. */
static int fits(const struct kvp_rows *r)
{
	return r->format == KVP_CODEC_FP8_E4M3 && r->dim % 64 == 0 && r->dim <= FP8_DIM_MAX;
}

/* ---- keys ---- */

/* Channels 4 k .. 4 k + 3 of sixteen rows as floats; codes: these channels, a row a lane. */
INLINE void key_floats(const struct table *t, __m512i codes, __m512 *x)
{
	const __m512i lanes = _mm512_slli_epi32(
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 2);
	/* Bytes 2 and 3 of a dword: one of low, one of high, which are numbered from 64 on. */
	const __m512i first = _mm512_add_epi32(_mm512_set1_epi32(0x40000000),
		_mm512_or_si512(_mm512_slli_epi32(lanes, 16), _mm512_slli_epi32(lanes, 24)));
	__m512i low = _mm512_permutex2var_epi8(t->low[0], codes, t->low[1]);
	__m512i high = _mm512_permutex2var_epi8(t->high[0], codes, t->high[1]);

	/* high | the sign of the code */
	high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xf8);
	for (uint32_t b = 0; b < 4; b++)
		x[b] = _mm512_castsi512_ps(_mm512_maskz_permutex2var_epi8(0xcccccccccccccccc, low,
			_mm512_add_epi32(first, _mm512_set1_epi32((int)(b * 0x01010000))), high));
}

/* Rows against m queries q, of which nq are wanted. */
INLINE void score_dots(const struct kvp_rows *r, const struct table *table, uint32_t dim,
	uint32_t m, const float *const *q, const float *scale, uint32_t nq, int fetch, float *s,
	size_t s_stride)
{
	for (uint32_t t = 0; t < r->n; t += STEP) {
		__m512i x[FP8_DIM_MAX / 4];
		const uint8_t *row[STEP];
		__m512 sum[2][TILE];

		for (uint32_t j = 0; fetch && j < STEP; j += TILE)
			fetch_all(r, t + j, dim);
		for (uint32_t j = 0; j < STEP; j++)
			row[j] = r->codes + (ptrdiff_t)least(t + j, r->n - 1) * r->stride;
		turn_all(row, dim, x);
		for (uint32_t i = 0; i < m; i++)
			sum[0][i] = sum[1][i] = _mm512_setzero_ps();
		for (uint32_t k = 0; k < dim / 4; k++) {
			__m512 y[4];

			key_floats(table, x[k], y);
			UNROLL for (uint32_t b = 0; b < 4; b++) for (uint32_t i = 0; i < m; i++)
				sum[b % 2][i] = multiply_add(sum[b % 2][i], y[b], q[i] + 4 * k + b);
		}
		for (uint32_t i = 0; i < m && i < nq; i++)
			_mm512_mask_storeu_ps(s + i * s_stride + t, first16(r->n - t),
				_mm512_mul_ps(_mm512_add_ps(sum[0][i], sum[1][i]),
					_mm512_loadu_ps(scale + t)));
	}
}

static int score_floats(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	float scale[ATTEND_CHUNK + 16] = { 0 };
	struct table table = load_table(&key_bytes);
	const float *tile[TILE];

	if (!fits(r))
		return 0;
	load_halves(r->scale, r->n, r->factor, scale);
	for (uint32_t i = 0; i < q->n; i += TILE) {
		uint32_t nq = least(q->n - i, TILE);
		float *to = s + i * s_stride;

		for (uint32_t j = 0; j < TILE; j++)
			tile[j] = q->f + (size_t)least(i + j, q->n - 1) * r->dim;
		if (KVP_SPECIALIZE && r->dim == 128 && nq == 1)
			score_dots(r, &table, 128, 1, tile, scale, 1, i == 0, to, s_stride);
		else if (KVP_SPECIALIZE && r->dim == 128)
			score_dots(r, &table, 128, TILE, tile, scale, nq, i == 0, to, s_stride);
		else
			score_dots(r, &table, r->dim, TILE, tile, scale, nq, i == 0, to, s_stride);
	}
	return 1;
}

/* ---- values ---- */

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

/* Weights of up to four queries, each times its row's scale. */
struct dot_weights {
	int16_t word[TILE][ATTEND_CHUNK];
	float unit[TILE][ATTEND_CHUNK / DOT_ROWS];
	float add[TILE]; /* what the halves of the values' words add up to */
};

/* DOT_ROWS weights times scales: their words, and the unit of these. Returns their sum. */
static float block_weights(
	const float *w, const float *scale, uint32_t n, int16_t *word, float *unit)
{
	__m512 x[DOT_ROWS / 16], max = _mm512_setzero_ps(), sum = max, size = max;
	float top, levels;

	for (uint32_t i = 0; i < DOT_ROWS / 16; i++) {
		__mmask16 in = n > 16 * i ? first16(n - 16 * i) : 0;
		__m512 y = _mm512_maskz_loadu_ps(in, w + 16 * (size_t)i);

		x[i] = _mm512_mul_ps(y, _mm512_maskz_loadu_ps(in, scale + 16 * (size_t)i));
		y = _mm512_abs_ps(x[i]);
		max = _mm512_max_ps(y, max);
		size = _mm512_add_ps(y, size);
		sum = _mm512_add_ps(x[i], sum);
	}
	top = _mm512_reduce_max_ps(max);
	levels = WEIGHT_SUM / (_mm512_reduce_add_ps(size) / top);
	levels = levels < WEIGHT_LEVELS ? levels : WEIGHT_LEVELS;
	levels = levels > WEIGHT_SUM / DOT_ROWS ? levels : WEIGHT_SUM / DOT_ROWS;
	for (uint32_t i = 0; i < DOT_ROWS / 16; i++)
		_mm256_storeu_si256((__m256i *)(void *)(word + 16 * (size_t)i),
			_mm512_cvtepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(
				x[i], _mm512_set1_ps(top > 0.0f ? levels / top : 0.0f)))));
	*unit = top / levels * (448.0f / (float)VALUE_LEVELS);
	return _mm512_reduce_add_ps(sum);
}

static void dot_weights(
	struct dot_weights *d, const struct kvp_weights *w, const float *scale, uint32_t n)
{
	for (uint32_t i = 0; i < TILE; i++) {
		const float *from = w->w + least(i, w->nq - 1) * w->stride;
		float sum = 0.0f;

		for (uint32_t t = 0; t < n; t += DOT_ROWS)
			sum += block_weights(from + t, scale + t, n - t, d->word[i] + t,
				&d->unit[i][t / DOT_ROWS]);
		d->add[i] = 0.5f * sum * (448.0f / (float)VALUE_LEVELS);
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
	__m512 unit[TILE];

	for (uint32_t i = 0; i < TILE; i++)
		unit[i] = _mm512_set1_ps(d->unit[i][t / DOT_ROWS]);
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
			sum[i][k] =
				_mm512_fmadd_ps(_mm512_cvtepi32_ps(v[i][k]), unit[i], sum[i][k]);
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
	dot_weights(&d, w, scale, r->n);
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
	struct table table = load_table(&value_bytes);

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
	if (!score_floats(r, q, s, s_stride))
		kvp_score_float_avx512(r, q, s, s_stride);
}

static void accumulate_fp8(const struct kvp_rows *r, const struct kvp_weights *w, float *acc)
{
	if (!accumulate_words(r, w, acc))
		kvp_accumulate_float_avx512(r, w, acc);
}

void kvp_attend_init_vbmi(struct kvp_kernels *k)
{
	k->attend[KVP_FORM_FP8].score = score_fp8;
	k->attend[KVP_FORM_FP8].accumulate = accumulate_fp8;
}
