/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by bytes from scores to sums in one go, where keys and values are both rows of 4-bit codes
 * and every query sees all of them: no score and no weight is written as a float. Sums of scores come as
 * [row][query], so that one register has four rows of four queries, or two of eight, and the softmax of
 * all queries takes as many instructions as that of one would by rows of scores.
 *
 * Who includes this multiplies, by tiles or by vectors: it has a struct area, for what one block of ROWS
 * rows needs, with int32_t sum[ROWS * KVP_TILE_QUERIES], [row][query], and defines the functions
 * below. Who takes other forms than centroids sets STEP_ANY.
 */
#ifndef KVP_KERNELS_ATTEND_STEP_H
#define KVP_KERNELS_ATTEND_STEP_H

#include "kernels/attend_bytes.h"

#include <math.h>

#define LOG2_E  1.44269504f /* scores are powers of 2 here, and of e outside */
#define LOG_2   0.693147181f
#define LANES   16u
#define VECTORS (ROWS * KVP_TILE_QUERIES / LANES) /* at most, of ROWS rows */

#ifndef STEP_ANY
#define STEP_ANY 0
#endif

/*
 * What is fetched beside the softmax: so many lines for every vector, twice; those of the next values.
 * The next keys are fetched beside looking up keys: requests come evenly, because too many at once
 * hold up the loads behind them.
 */
struct ahead {
	const uint8_t *at;
	uint32_t lines;
};

/* What a pass of up to m queries takes along over its rows, a query in every m-th lane. */
struct pass {
	const struct kvp_step *job;
	const struct kvp_tiles *q;
	uint32_t at, nq; /* of the job's queries */
	__m512 unit;     /* of a sum of scores, but for the row's scale */
	__m512 sum; /* of a query's floats, at the scale of a score: what minima of keys are added times */
	float add[LANES]
		__attribute__((aligned(64))); /* what minima of values add to each channel */
	/* The head's. */
	struct running *run;
	const float *fade;
	float *grown, *acc;
	struct bytes k, v;
	struct scales ks, vs;
	const float *sums; /* of the floats of the head's queries */
	struct kvp_rows keys, values;
	uint32_t key_lines, value_lines; /* NO_LINES, 0 or so many for every TILE rows */
	struct ahead ahead;
};

INLINE void fetch_ahead(struct ahead *a)
{
	for (uint32_t i = 0; i < a->lines; i++, a->at += 64)
		_mm_prefetch(a->at, _MM_HINT_T1);
}

/* Whether keys or values are its, and as what bytes. */
INLINE int takes(const struct kvp_rows *r);
INLINE struct bytes bytes_of(const struct kvp_rows *r);
/* Sums of products of rows [first, first + n), n <= ROWS, with the queries of the pass, to a. */
INLINE void multiply_keys_of(
	struct pass *p, uint32_t m, uint32_t first, uint32_t n, struct area *a);
/* What is done beside each vector of the softmax, twice: slot of 2 * vectors. */
INLINE void beside_softmax(
	struct pass *p, uint32_t m, uint32_t slot, uint32_t first, uint32_t n, struct area *a);
/* Sums of the values of the same rows to those before, times fade. */
INLINE void add_values_of(struct pass *p, struct byte_weights *w, uint32_t m, uint32_t first,
	uint32_t n, const float *fade, float *acc, struct area *a);

static void share_fetching(struct pass *p, uint32_t m)
{
	const struct kvp_rows *v = &p->values;
	const uint32_t slots = (v->n + ROWS - 1) / ROWS * 2 * (ROWS * m / LANES);

	p->key_lines = lines_of(&p->keys);
	p->value_lines = 0;
	p->ahead = (struct ahead){ NULL, 0 };
	if (v->next_stride != (ptrdiff_t)v->next_bytes)
		return;
	p->value_lines = NO_LINES;
	p->ahead.at = v->next;
	p->ahead.lines = (v->next_n * v->next_bytes / 64 + slots - 1) / slots;
}

/* Lane i % m of x to lane i. */
INLINE __m512 repeat(__m512 x, uint32_t m)
{
	return m == 4 ? _mm512_shuffle_f32x4(x, x, 0) : _mm512_shuffle_f32x4(x, x, 0x44);
}

/* The scales of the rows that vector i has, from row 0 on. */
INLINE __m512 scales_of(const float *scale, uint32_t m, uint32_t i)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	const uint32_t rows = LANES / m, at = i * rows;

	return _mm512_permutexvar_ps(_mm512_add_epi32(_mm512_srli_epi32(lane, m == 4 ? 2 : 3),
					     _mm512_set1_epi32((int)(at % LANES))),
		_mm512_loadu_ps(scale + at / LANES * LANES));
}

/* Over the rows that a vector has, to all its lanes. */
INLINE __m512 max_of_rows(__m512 x, uint32_t m)
{
	x = _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
	return m == 4 ? _mm512_max_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1)) : x;
}

INLINE __m512 sum_of_rows(__m512 x, uint32_t m)
{
	x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4e));
	return m == 4 ? _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xb1)) : x;
}

/* Lanes of vector i whose rows are among n. */
INLINE __mmask16 rows_in(uint32_t n, uint32_t m, uint32_t i)
{
	const uint32_t rows = LANES / m, at = i * rows;

	return n <= at ? 0 : first16((n - at) * m);
}

/* Where bytes of the weights of vectors that were packed lie: [query][row], 16 or 8 rows of each. */
#define FOUR(x) (x), 16 + (x), 32 + (x), 48 + (x)
#define OF_4(q) FOUR(q), FOUR(4 + (q)), FOUR(8 + (q)), FOUR(12 + (q))
#define PAIR(x) (x), 32 + (x)
#define OF_8(q) PAIR(q), PAIR(4 + (q)), PAIR(8 + (q)), PAIR(12 + (q))
static const uint8_t order4[64]
	__attribute__((aligned(64))) = { OF_4(0), OF_4(1), OF_4(2), OF_4(3) };
static const uint8_t order8[64] __attribute__((aligned(64))) = { OF_8(0), OF_8(1), OF_8(2), OF_8(3),
	OF_8(16), OF_8(17), OF_8(18), OF_8(19) };

/* Four vectors of weights as bytes in that order: high and low. Adds them to *sum. */
INLINE void pack(
	const __m512 *x, __m512 inv, __m512i order, __m512i *high, __m512i *low, __m512i *sum)
{
	const __m512i seven = _mm512_set1_epi16(127);
	__m512i w[4], a, b;

	UNROLL for (uint32_t i = 0; i < 4; i++) w[i] = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], inv));
	*sum = _mm512_add_epi32(
		*sum, _mm512_add_epi32(_mm512_add_epi32(w[0], w[1]), _mm512_add_epi32(w[2], w[3])));
	a = _mm512_packs_epi32(w[0], w[1]);
	b = _mm512_packs_epi32(w[2], w[3]);
	*high = _mm512_permutexvar_epi8(
		order, _mm512_packs_epi16(_mm512_srai_epi16(a, 7), _mm512_srai_epi16(b, 7)));
	*low = _mm512_permutexvar_epi8(
		order, _mm512_packs_epi16(_mm512_and_si512(a, seven), _mm512_and_si512(b, seven)));
}

/* Sixteen rows of four queries, of which each is `apart` queries behind the one before. */
INLINE void put_four(__m512i x, uint32_t apart, int8_t *to)
{
	_mm_store_si128((void *)to, _mm512_castsi512_si128(x));
	_mm_store_si128((void *)(to + apart * ROWS), _mm512_extracti32x4_epi32(x, 1));
	_mm_store_si128((void *)(to + 2 * apart * ROWS), _mm512_extracti32x4_epi32(x, 2));
	_mm_store_si128((void *)(to + 3 * apart * ROWS), _mm512_extracti32x4_epi32(x, 3));
}

/*
 * Fractions of row t, evenly over [0, 1) for any rows that lie together: a weight's fraction counts as one
 * where it is larger than what row t lacks to one. All are moved on by as much, otherwise after every ROWS
 * rows, or errors would add up in what comes again after as many.
 */
#define PART(t)     (((t)*159 % 256 + 0.5f) / 256.0f)
#define PARTS_4(t)  PART(t), PART((t) + 1), PART((t) + 2), PART((t) + 3)
#define PARTS_16(t) PARTS_4(t), PARTS_4((t) + 4), PARTS_4((t) + 8), PARTS_4((t) + 12)
static const float dither_of[2 * ROWS] __attribute__((aligned(64))) = { PARTS_16(0), PARTS_16(16),
	PARTS_16(32), PARTS_16(48), PARTS_16(64), PARTS_16(80), PARTS_16(96), PARTS_16(112) };

/* What weights are rounded by: whether to one byte, and then by how many rows fractions are moved on. */
struct rounding {
	int high_only;
	uint32_t phase;
};

/* Sums so far are never twice the same while weights count, and are by tiles what they are by vectors. */
INLINE uint32_t phase_of(__m512 total)
{
	const uint32_t bits =
		(uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(_mm512_castps_si512(total)));

	return bits * 0x9e3779b1u >> 26;
}

/* As pack(), of one byte: vectors `at` .. `at` + 3. */
INLINE __m512i pack_high(const __m512 *x, __m512 inv, __m512i order, uint32_t m, uint32_t at,
	const float *fraction, __m512i *sum)
{
	__m512i w[4];

	UNROLL for (uint32_t i = 0; i < 4; i++) w[i] = _mm512_cvt_roundps_epi32(
		_mm512_fmadd_ps(x[at + i], inv, scales_of(fraction, m, at + i)),
		_MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
	*sum = _mm512_add_epi32(
		*sum, _mm512_add_epi32(_mm512_add_epi32(w[0], w[1]), _mm512_add_epi32(w[2], w[3])));
	return _mm512_permutexvar_epi8(order,
		_mm512_packs_epi16(_mm512_packs_epi32(w[0], w[1]), _mm512_packs_epi32(w[2], w[3])));
}

/* Sums of weights in all rows. */
INLINE void put_less(__m512i sum, uint32_t m, struct byte_weights *ret)
{
	sum = _mm512_add_epi32(sum, _mm512_shuffle_i32x4(sum, sum, 0x4e));
	if (m == 4)
		sum = _mm512_add_epi32(sum, _mm512_shuffle_i32x4(sum, sum, 0xb1));
	_mm256_storeu_si256((void *)ret->less,
		_mm512_castsi512_si256(
			_mm512_sub_epi32(_mm512_setzero_si512(), _mm512_slli_epi32(sum, 7))));
}

/* Queries 0, 2, 4 and 6, and 1, 3, 5 and 7, of eight rows each in a and b. */
INLINE void put_eight(__m512i a, __m512i b, int8_t *to)
{
	put_four(_mm512_unpacklo_epi64(a, b), 2, to);
	put_four(_mm512_unpackhi_epi64(a, b), 2, to + ROWS);
}

INLINE void put_high(
	const __m512 *x, __m512 inv, uint32_t m, uint32_t phase, struct byte_weights *ret)
{
	const float *fraction = dither_of + phase; /* phase < ROWS */
	const __m512i order = _mm512_load_si512(m == 4 ? order4 : order8);
	__m512i sum = _mm512_setzero_si512();

	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		if (m == 4)
			put_four(pack_high(x, inv, order, m, 4 * j, fraction, &sum), 1,
				ret->byte + 16 * j);
		else
			put_eight(pack_high(x, inv, order, m, 8 * j, fraction, &sum),
				pack_high(x, inv, order, m, 8 * j + 4, fraction, &sum),
				ret->byte + 16 * j);
	}
	put_less(sum, m, ret);
}

/* Weights times the values' scales to bytes; top: of each query the largest. */
INLINE void put_weights(const __m512 *x, __m512 top, uint32_t m, float value, struct rounding how,
	struct byte_weights *ret)
{
	const __m512 inv = _mm512_maskz_div_ps(
		_mm512_cmp_ps_mask(top, _mm512_set1_ps(WEIGHT_LEAST), _CMP_GT_OQ),
		_mm512_set1_ps(how.high_only ? TOP / 128.0f : TOP), top);
	const __m512i order = _mm512_load_si512(m == 4 ? order4 : order8);
	int8_t *low = ret->byte + m * ROWS;
	__m512i sum = _mm512_setzero_si512();
	float unit[LANES] __attribute__((aligned(64)));

	_mm512_store_ps(unit, _mm512_mul_ps(top, _mm512_set1_ps(value / TOP)));
	memcpy(ret->unit, unit, m * sizeof *unit);
	ret->high_only = (uint32_t)how.high_only;
	if (how.high_only) {
		put_high(x, inv, m, how.phase, ret);
		return;
	}
	if (m == 4) {
		UNROLL for (uint32_t j = 0; j < 4; j++)
		{
			__m512i h, l;

			pack(x + 4 * j, inv, order, &h, &l, &sum);
			put_four(h, 1, ret->byte + 16 * j);
			put_four(l, 1, low + 16 * j);
		}
		put_less(sum, m, ret);
		return;
	}
	UNROLL for (uint32_t j = 0; j < 4; j++)
	{
		__m512i h[2], l[2];

		pack(x + 8 * j, inv, order, h, l, &sum);
		pack(x + 8 * j + 4, inv, order, h + 1, l + 1, &sum);
		put_eight(h[0], h[1], ret->byte + 16 * j);
		put_eight(l[0], l[1], low + 16 * j);
	}
	put_less(sum, m, ret);
}

/* Of a pass's queries: maxima and sums, each in every m-th lane. What is beyond nq is 0. */
INLINE void running_load(const struct pass *p, uint32_t m, __m512 *max, __m512 *sum)
{
	const __m512i even =
		_mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
	const __m512 x = _mm512_maskz_loadu_ps(first16(2 * p->nq), p->run + p->at);

	*max = repeat(_mm512_permutexvar_ps(even, x), m);
	*sum = repeat(_mm512_permutexvar_ps(_mm512_or_si512(even, _mm512_set1_epi32(1)), x), m);
}

INLINE void running_store(const struct pass *p, __m512 max, __m512 sum)
{
	const __m512i turn =
		_mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);

	_mm512_mask_storeu_ps(
		p->run + p->at, first16(2 * p->nq), _mm512_permutex2var_ps(max, turn, sum));
}

/*
 * 2^x for x <= 0: 1 of 0, 0 below 2^-125, else off by up to 3.5e-6 of itself, which is little beside
 * the 14 bits that weights become.
 */
INLINE __m512 exp2_16(__m512 x)
{
	const __mmask16 in = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-125.0f), _CMP_NLE_UQ);
	const __m512 n = _mm512_roundscale_ps(x, RNE), f = _mm512_sub_ps(x, n);
	__m512 p = _mm512_set1_ps(0.00966636852f);

	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0559219758f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.24022349f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693121045f));
	p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
	return _mm512_maskz_scalef_ps(in, p, n);
}

/* One byte a weight is enough where the largest is no more than this of all so far. */
#define LITTLE (1.0f / 32.0f)

/* Whether it is, for all queries, so that rounding is off by .018 / 32 of a value's length: see docs/attention.md. */
INLINE int is_little(const float *scale, __m512 top, __m512 all, uint32_t m, uint32_t nq)
{
	const __m512 sum =
		_mm512_add_ps(_mm512_add_ps(_mm512_loadu_ps(scale), _mm512_loadu_ps(scale + 16)),
			_mm512_add_ps(_mm512_loadu_ps(scale + 32), _mm512_loadu_ps(scale + 48)));
	const float mean = _mm512_reduce_add_ps(sum) / (float)ROWS;
	const __mmask16 asked = (__mmask16)(((1u << nq) - 1) * (m == 4 ? 0x1111 : 0x0101));

	return _mm512_mask_cmp_ps_mask(asked, top,
		       _mm512_mul_ps(all, _mm512_set1_ps(mean * LITTLE)), _CMP_LE_OQ) == asked;
}

/* The scores of vector i, as powers of 2. */
INLINE __m512 scores_of(
	const struct pass *p, uint32_t m, uint32_t first, uint32_t i, const struct area *a)
{
	__m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_load_si512(a->sum + LANES * i)),
		_mm512_mul_ps(scales_of(p->ks.scale + first, m, i), p->unit));

	if (STEP_ANY && p->keys.minimum)
		x = _mm512_fmadd_ps(scales_of(p->ks.add + first, m, i), p->sum, x);
	return x;
}

/*
 * Scores, as powers of 2, to weights. Sets what sums so far are multiplied by and *how, and
 * returns the largest weight of each query, times its row's scale, in all its lanes.
 */
INLINE __m512 soften(struct pass *p, uint32_t m, uint32_t first, uint32_t n, __m512 *x,
	float *grown, struct rounding *how, struct area *a)
{
	const uint32_t vectors = ROWS * m / LANES;
	const __m512 minus_inf = _mm512_set1_ps(-INFINITY);
	const __m512 to_two = _mm512_set1_ps(LOG2_E);
	__m512 was, was_sum, max, shift, fade, total = _mm512_setzero_ps(), top = total,
					       add = total;
	__mmask16 grew;

	running_load(p, m, &was, &was_sum);
	max = _mm512_mul_ps(was, to_two);
	UNROLL for (uint32_t i = 0; i < vectors; i++)
	{
		x[i] = scores_of(p, m, first, i, a);
		if (n < ROWS)
			x[i] = _mm512_mask_mov_ps(minus_inf, rows_in(n, m, i), x[i]);
		max = _mm512_max_ps(max, x[i]);
		beside_softmax(p, m, i, first, n, a);
	}
	max = max_of_rows(max, m);
	shift = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(max, minus_inf, _CMP_NEQ_UQ), max);
	fade = exp2_16(_mm512_sub_ps(_mm512_mul_ps(was, to_two), shift));
	/* A maximum that stays is the same afterwards, too. */
	grew = _mm512_cmp_ps_mask(max, _mm512_mul_ps(was, to_two), _CMP_NEQ_UQ);
	max = _mm512_mask_mul_ps(was, grew, max, _mm512_set1_ps(LOG_2));
	UNROLL for (uint32_t i = 0; i < vectors; i++)
	{
		const __m512 e = exp2_16(_mm512_sub_ps(x[i], shift));

		total = _mm512_add_ps(total, e);
		x[i] = _mm512_mul_ps(e, scales_of(p->vs.scale + first, m, i));
		if (STEP_ANY && p->values.minimum)
			add = _mm512_fmadd_ps(e, scales_of(p->vs.add + first, m, i), add);
		top = _mm512_max_ps(_mm512_abs_ps(x[i]), top);
		beside_softmax(p, m, vectors + i, first, n, a);
	}
	_mm512_store_ps(grown, fade);
	total = _mm512_fmadd_ps(was_sum, fade, sum_of_rows(total, m));
	running_store(p, max, total);
	top = max_of_rows(top, m);
	how->high_only = n == ROWS && is_little(p->vs.scale + first, top, total, m, p->nq);
	how->phase = phase_of(total);
	if (STEP_ANY)
		_mm512_store_ps(p->add, sum_of_rows(add, m));
	return top;
}

/* Rows [first, first + n), n <= ROWS. */
INLINE void step_rows(
	struct pass *p, uint32_t m, uint32_t first, uint32_t n, float *fade, float *grown)
{
	struct byte_weights w __attribute__((aligned(64)));
	float *acc = p->acc + (size_t)p->at * p->values.dim;
	float now[LANES] __attribute__((aligned(64)));
	struct area a __attribute__((aligned(64)));
	__m512 x[VECTORS], top;
	struct rounding how;

	multiply_keys_of(p, m, first, n, &a);
	top = soften(p, m, first, n, x, now, &how, &a);
	put_weights(x, top, m, p->v.value, how, &w);
	for (uint32_t i = 0; i < p->nq; i++) {
		fade[i] *= now[i];
		grown[i] *= now[i];
	}
	add_values_of(p, &w, m, first, n, fade, acc, &a);
}

/* All rows with the queries of one pass. */
INLINE void step_pass(struct pass *p, uint32_t m)
{
	const struct kvp_step *job = p->job;
	float fade[KVP_TILE_QUERIES], grown[KVP_TILE_QUERIES];

	p->unit = _mm512_mul_ps(repeat(_mm512_castps256_ps512(_mm256_loadu_ps(p->q->unit)), m),
		_mm512_set1_ps(p->k.value * job->scale * LOG2_E));
	if (STEP_ANY)
		p->sum =
			repeat(_mm512_mul_ps(_mm512_maskz_loadu_ps(first16(p->nq), p->sums + p->at),
				       _mm512_set1_ps(job->scale * LOG2_E)),
				m);
	for (uint32_t i = 0; i < p->nq; i++) {
		fade[i] = p->fade[p->at + i];
		grown[i] = 1.0f;
	}
	for (uint32_t t = 0; t < job->k->n; t += ROWS) {
		if (job->k->n - t >= ROWS)
			step_rows(p, m, t, ROWS, fade, grown);
		else
			step_rows(p, m, t, job->k->n - t, fade, grown);
		for (uint32_t i = 0; i < p->nq; i++)
			fade[i] = 1.0f;
	}
	memcpy(p->grown + p->at, grown, p->nq * sizeof *grown);
}

/* Rows of head h of a job: what is read next is the next head's, but for the last one. */
static void rows_of_head(const struct kvp_rows *first, uint32_t h, uint32_t heads, size_t codes,
	size_t scale, struct kvp_rows *r)
{
	r->codes = first->codes + h * codes;
	r->scale = first->scale + h * scale;
	if (STEP_ANY && first->minimum)
		r->minimum = first->minimum + h * scale;
	r->next = first->next;
	r->next_stride = first->next_stride;
	r->next_n = first->next_n;
	r->next_bytes = first->next_bytes;
	if (h + 1 == heads)
		return;
	r->next = r->codes + codes;
	r->next_stride = first->stride;
	r->next_n = first->n;
	r->next_bytes = STEP_ANY && first->form == KVP_FORM_INT8
				? first->dim
				: kvp_row_bytes(first->bits, first->dim);
	for (uint32_t i = 0; i < first->n * 4; i += 64)
		_mm_prefetch(r->scale + scale + i, _MM_HINT_T1);
	for (uint32_t i = 0; STEP_ANY && first->minimum && i < first->n * 4; i += 64)
		_mm_prefetch(r->minimum + scale + i, _MM_HINT_T1);
}

static void step_head(struct pass *p, uint32_t h)
{
	const struct kvp_step *job = p->job;
	const uint8_t *tiles = (const uint8_t *)job->q->tiles + h * job->apart.tiles;
	const uint32_t n = job->q->n, m = columns_of(n);

	rows_of_head(job->k, h, job->heads, job->apart.k_codes, job->apart.k_scale, &p->keys);
	rows_of_head(job->v, h, job->heads, job->apart.v_codes, job->apart.v_scale, &p->values);
	p->run = job->run + h * n;
	p->grown = job->grown + h * n;
	p->fade = job->fade + h * job->apart.fade;
	p->acc = job->acc + h * job->apart.acc;
	share_fetching(p, m);
	p->sums = job->q->sum + (size_t)h * n;
	scales_init(&p->keys, &p->ks);
	scales_init(&p->values, &p->vs);
	for (p->at = 0; p->at < n; p->at += KVP_TILE_QUERIES) {
		p->nq = least(n - p->at, KVP_TILE_QUERIES);
		p->q = (const void *)(tiles +
				      p->at / KVP_TILE_QUERIES * kvp_tiles_bytes(job->k->dim));
		if (m == 4)
			step_pass(p, 4);
		else
			step_pass(p, KVP_TILE_QUERIES);
		p->ahead.lines = 0;
		p->key_lines = p->value_lines = NO_LINES;
	}
}

static int step(const struct kvp_step *job)
{
	struct pass p;

	if (!job->q->tiles || !takes(job->k) || !takes(job->v))
		return 0;
	p.job = job;
	p.k = bytes_of(job->k);
	p.v = bytes_of(job->v);
	p.keys = *job->k;
	p.values = *job->v;
	for (uint32_t h = 0; h < job->heads; h++)
		step_head(&p, h);
	return 1;
}

#endif
