/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scores of rows of codes in AVX2, in floats, as in attend_keys_avx512.c: eight rows lie in the
 * eight lanes, sixteen are scored at a time, so that a query's float, broadcast from memory, is
 * used twice.
 */
#include "kernels/attend_avx2.h"

#define STEP    16u /* rows that are scored at a time */
#define DIM_MAX KVP_PLANE_DIM_MAX

/* What the rows are, beside their codes. */
struct keys {
	uint32_t bits;
	__m256 book[2]; /* of 2 to 4 bits: the codes below 8, and the others */
	float scale[ATTEND_CHUNK + STEP];
	float add[ATTEND_CHUNK + STEP]; /* where there are minima: the middle of the codes */
};

/* ---- codes to floats ---- */

static void scales_init(const struct kvp_rows *r, struct keys *k)
{
	const float half = 0.5f * (float)((1u << r->bits) - 1);

	memset(k->scale, 0, sizeof k->scale);
	memset(k->add, 0, sizeof k->add);
	if (r->form == KVP_FORM_BOOK && r->format)
		for (uint32_t t = 0; t < r->n; t++)
			k->scale[t] = load_scalar_wide(r->scale + 4 * (size_t)t, r->factor);
	else
		load_halves(r->scale, r->n, r->factor, k->scale);
	if (!r->minimum)
		return;
	load_halves(r->minimum, r->n, r->factor, k->add);
	for (uint32_t t = 0; t < r->n; t++)
		k->add[t] += half * k->scale[t];
}

/* Centroids (tq), or how far a code is from the middle of the codes. */
static void keys_init(const struct kvp_rows *r, struct keys *k)
{
	const uint32_t codes = 1u << r->bits;
	const float middle = 0.5f * (float)(codes - 1);
	float book[16];

	k->bits = r->form == KVP_FORM_INT8 ? 8 : r->bits;
	for (uint32_t i = 0; i < 16; i++)
		book[i] = r->form == KVP_FORM_BOOK ? r->cent[i] : (float)(i % codes) - middle;
	k->book[0] = _mm256_loadu_ps(book);
	k->book[1] = _mm256_loadu_ps(book + 8);
	if (!r->per_channel)
		scales_init(r, k);
}

/* 16 bytes of each of eight rows from `at` on: x[i] has dword i of them, a row a lane. */
INLINE void turn_rows(const uint8_t *const *row, uint32_t at, __m256i *x)
{
	__m256i y[4], a, b, c, d;

	for (uint32_t i = 0; i < 4; i++)
		y[i] = _mm256_inserti128_si256(
			_mm256_castsi128_si256(load128(row[i] + at)), load128(row[i + 4] + at), 1);
	a = _mm256_unpacklo_epi32(y[0], y[1]);
	b = _mm256_unpackhi_epi32(y[0], y[1]);
	c = _mm256_unpacklo_epi32(y[2], y[3]);
	d = _mm256_unpackhi_epi32(y[2], y[3]);
	x[0] = _mm256_unpacklo_epi64(a, c);
	x[2] = _mm256_unpackhi_epi64(a, c);
	x[4] = _mm256_unpacklo_epi64(b, d);
	x[6] = _mm256_unpackhi_epi64(b, d);
}

/*
 * The dwords of sixteen rows, eight and eight. The last 16 bytes of a row may be read twice:
 * nothing beyond it is.
 */
INLINE void turn_all(const uint8_t *const *row, uint32_t bytes, __m256i *x)
{
	for (uint32_t at = 0; at < bytes; at += 16) {
		uint32_t from = least(at, bytes - 16);

		turn_rows(row, from, x + from / 2);
		turn_rows(row + 8, from, x + from / 2 + 1);
	}
}

/* Bytes between a code and the next one in the same byte. */
INLINE uint32_t part_of(uint32_t bits, uint32_t dim)
{
	return bits == 3 ? dim / 4 : dim * bits / 8;
}

/*
 * Codes that begin at bit `at` of eight dwords as floats. A look-up takes two bits, or three, and
 * the last of four chooses between two books; of three, bit 2 of `third` is the last, which has no
 * others. A byte becomes the top one of a dword: SIGNED_UNIT is what is 1.
 */
#define SIGNED_UNIT 0x1p24f
INLINE __m256 values(uint32_t bits, const __m256 *book, __m256i x, uint32_t at, __m256i third)
{
	const __m256i lanes =
		_mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04000000, 0x08000000, 0x0c000000));
	__m256i last = _mm256_slli_epi32(x, bits == 4 ? (int)(28 - at) : 0);

	if (bits == 8)
		return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(
			x, _mm256_add_epi32(
				   lanes, _mm256_set1_epi32((int)(0x00808080 + (at << 21))))));
	if (at)
		x = _mm256_srli_epi32(x, (int)at);
	if (bits == 2)
		return _mm256_permutevar_ps(book[0], x);
	if (bits == 3) {
		x = _mm256_and_si256(x, _mm256_set1_epi32(3));
		return _mm256_permutevar8x32_ps(book[0], _mm256_or_si256(x, third));
	}
	return _mm256_blendv_ps(_mm256_permutevar8x32_ps(book[0], x),
		_mm256_permutevar8x32_ps(book[1], x), _mm256_castsi256_ps(last));
}

/* Of each four bits of x bit n, which is 0 to 3, where bit 2 is. */
INLINE __m256i every_fourth(__m256i x, uint32_t n)
{
	x = n < 2 ? _mm256_slli_epi32(x, (int)(2 - n)) : _mm256_srli_epi32(x, (int)(n - 2));
	return _mm256_and_si256(x, _mm256_set1_epi32(0x44444444));
}

/* What the compiler would keep in registers, at the cost of sums. */
INLINE __m256i load_again(const __m256i *p)
{
	__m256i x;

	__asm__ volatile("vmovdqa %1, %0" : "=x"(x) : "m"(*p));
	return x;
}

/* sum + x * y. Of the intrinsic gcc 12 makes copies of sums, and keeps half of them in memory. */
INLINE __m256 multiply_add(__m256 sum, __m256 x, __m256 y)
{
	__asm__("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(x), "x"(y));
	return sum;
}

/*
 * The sixteen channels of field f that begin at byte `at`, against m queries; x: dwords of sixteen
 * rows, eight and eight.
 */
INLINE void dot_field(uint32_t bits, uint32_t part, uint32_t m, const __m256 *book,
	const __m256i *x, uint32_t f, uint32_t at, const float *const *q, __m256 (*sum)[2])
{
	const uint32_t width = bits == 3 ? 2 : bits, c = f * part + at;
	__m256i third[2] = { x[0], x[0] }, y = x[0], z = y;

	for (uint32_t h = 0; bits == 3 && h < 2; h++) /* a dword has the third bits of 32 */
		third[h] = _mm256_srl_epi32(
			x[part / 2 + c / 32 * 2 + h], _mm_cvtsi32_si128((int)(c % 32)));
	x += at / 2;
	UNROLL for (uint32_t j = 0; j < 16; j++)
	{
		const uint32_t n = j / 4, k = j % 4; /* byte n of dword k */
		__m256 a, b;

		if (bits == 3 && k == 0) {
			y = every_fourth(third[0], n);
			z = every_fourth(third[1], n);
		}
		a = values(bits, book, load_again(x + 2 * k), 8 * n + f * width,
			_mm256_srli_epi32(y, (int)(4 * k)));
		b = values(bits, book, load_again(x + 2 * k + 1), 8 * n + f * width,
			_mm256_srli_epi32(z, (int)(4 * k)));
		for (uint32_t i = 0; i < m; i++) {
			__m256 one = _mm256_broadcast_ss(q[i] + c + 4 * k + n);

			sum[i][0] = multiply_add(sum[i][0], a, one);
			sum[i][1] = multiply_add(sum[i][1], b, one);
		}
	}
}

/* Sixteen rows, eight and eight in the lanes, against m queries. */
INLINE void dot_rows(uint32_t bits, uint32_t dim, uint32_t m, const __m256 *book,
	const uint8_t *const *row, const float *const *q, __m256 (*sum)[2])
{
	const uint32_t part = part_of(bits, dim);
	__m256i x[DIM_MAX / 2];

	turn_all(row, kvp_row_bytes(bits, dim), x);
	for (uint32_t i = 0; i < m; i++)
		sum[i][0] = sum[i][1] = _mm256_setzero_ps();
	for (uint32_t at = 0; at < part; at += 16) {
		/* One by one, so that what is shifted by is known. */
		dot_field(bits, part, m, book, x, 0, at, q, sum);
		if (bits < 8)
			dot_field(bits, part, m, book, x, 1, at, q, sum);
		if (bits < 4) {
			dot_field(bits, part, m, book, x, 2, at, q, sum);
			dot_field(bits, part, m, book, x, 3, at, q, sum);
		}
	}
}

/* ---- rows ---- */

/* Up to four queries, and what of each is multiplied by a row's addend. */
struct queries {
	const float *f[TILE];
	float sum[TILE];
};

/* Eight scores from row t on; x: products with the query's floats. Beyond the last row: ours too. */
INLINE void store_scores(const struct kvp_rows *r, const struct keys *k, uint32_t bits, __m256 x,
	float sum, uint32_t t, float *s)
{
	if (bits == 8)
		x = _mm256_mul_ps(x, _mm256_set1_ps(1.0f / SIGNED_UNIT));
	x = _mm256_mul_ps(x, _mm256_loadu_ps(k->scale + t));
	if (r->minimum)
		x = _mm256_fmadd_ps(_mm256_loadu_ps(k->add + t), _mm256_set1_ps(sum), x);
	_mm256_storeu_ps(s + t, x);
}

/* Rows [first, end) against m queries, of which nq are wanted. */
INLINE void score_rows(const struct kvp_rows *r, const struct keys *k, uint32_t bits, uint32_t dim,
	uint32_t m, const struct queries *q, uint32_t nq, uint32_t first, uint32_t end, int fetch,
	float *s, size_t s_stride)
{
	for (uint32_t t = first; t < end; t += STEP) {
		const uint8_t *row[STEP];
		__m256 sum[TILE][2];

		for (uint32_t j = 0; fetch && j < STEP; j += TILE)
			fetch_next(r, t + j);
		for (uint32_t j = 0; j < STEP; j++)
			row[j] = r->codes + (ptrdiff_t)least(t + j, r->n - 1) * r->stride;
		dot_rows(bits, dim, m, k->book, row, q->f, sum);
		for (uint32_t i = 0; i < m && i < nq; i++)
			for (uint32_t j = 0; j < 2; j++)
				store_scores(r, k, bits, sum[i][j], q->sum[i], t + 8 * j,
					s + i * s_stride);
	}
}

static void score_tile(const struct kvp_rows *r, const struct keys *k, const struct queries *q,
	uint32_t nq, uint32_t first, uint32_t end, int fetch, float *s, size_t s_stride)
{
#define ROWS(bits, dim, m) score_rows(r, k, bits, dim, m, q, nq, first, end, fetch, s, s_stride)
#define SCORE(bits)                                             \
	do {                                                    \
		if (KVP_SPECIALIZE && nq == 1 && r->dim == 128) \
			ROWS(bits, 128, 1);                     \
		else if (KVP_SPECIALIZE && r->dim == 128)       \
			ROWS(bits, 128, TILE);                  \
		else                                            \
			ROWS(bits, r->dim, TILE);               \
	} while (0)
	switch (k->bits) {
	case 2:
		SCORE(2);
		break;
	case 3:
		SCORE(3);
		break;
	case 4:
		SCORE(4);
		break;
	default:
		SCORE(8);
		break;
	}
#undef ROWS
#undef SCORE
}

/* ---- kivi ---- */

/* One group of tokens: one scale and minimum per channel. */
struct channels {
	float scale[DIM_MAX];
	float add[DIM_MAX]; /* the middle of the codes */
};

static void channels_init(const struct kvp_rows *r, uint32_t g, struct channels *ch)
{
	const __m256 half = _mm256_set1_ps(0.5f * (float)((1u << r->bits) - 1));
	const size_t at = (size_t)g * r->dim;

	load_halves(r->scale + 2 * at, r->dim, r->factor, ch->scale);
	load_halves(r->minimum + 2 * at, r->dim, r->factor, ch->add);
	for (uint32_t c = 0; c < r->dim; c += 8)
		_mm256_storeu_ps(ch->add + c, _mm256_fmadd_ps(_mm256_loadu_ps(ch->scale + c), half,
						      _mm256_loadu_ps(ch->add + c)));
}

/* A query with the scales folded in. Returns what the middles of the codes add. */
static float fold_query(const struct channels *ch, uint32_t dim, const float *q, float *ret_q)
{
	__m256 sum = _mm256_setzero_ps();

	for (uint32_t c = 0; c < dim; c += 8) {
		__m256 x = _mm256_loadu_ps(q + c);

		sum = _mm256_fmadd_ps(x, _mm256_loadu_ps(ch->add + c), sum);
		_mm256_storeu_ps(ret_q + c, _mm256_mul_ps(x, _mm256_loadu_ps(ch->scale + c)));
	}
	return sum8(sum);
}

static void score_channels(const struct kvp_rows *r, struct keys *k, const struct kvp_queries *q,
	float *s, size_t s_stride)
{
	float folded[TILE][DIM_MAX];
	struct channels ch;
	struct queries w;

	for (uint32_t t = 0; t < ATTEND_CHUNK + STEP; t++)
		k->scale[t] = k->add[t] = 1.0f;
	for (uint32_t t = 0; t < r->n; t += r->group) {
		channels_init(r, t / r->group, &ch);
		for (uint32_t i = 0; i < q->n; i += TILE) {
			uint32_t nq = least(q->n - i, TILE);

			for (uint32_t j = 0; j < TILE; j++) {
				w.f[j] = folded[least(j, nq - 1)];
				w.sum[j] = 0.0f;
				if (j < nq)
					w.sum[j] = fold_query(&ch, r->dim,
						q->f + (size_t)(i + j) * r->dim, folded[j]);
			}
			score_tile(r, k, &w, nq, t, least(t + r->group, r->n), !i, s + i * s_stride,
				s_stride);
		}
	}
}

int kvp_score_codes_avx2(
	const struct kvp_rows *r, const struct kvp_queries *q, float *s, size_t s_stride)
{
	struct queries w;
	struct keys k;

	if (r->dim % 64 || (!r->per_channel && r->groups > 1))
		return 0;
	keys_init(r, &k);
	if (r->per_channel) {
		score_channels(r, &k, q, s, s_stride);
		return 1;
	}
	for (uint32_t i = 0; i < q->n; i += TILE) {
		for (uint32_t j = 0; j < TILE; j++) {
			uint32_t at = least(i + j, q->n - 1);

			w.f[j] = q->f + (size_t)at * r->dim;
			w.sum[j] = q->sum[at];
		}
		score_tile(
			r, &k, &w, least(q->n - i, TILE), 0, r->n, !i, s + i * s_stride, s_stride);
	}
	return 1;
}
