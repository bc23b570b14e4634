/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of n registers of 16 floats: dims that are multiples of 16; the others fall back on C. The
 * work is written once with n and dtype as parameters and inlined for the usual ones, so that a
 * whole row stays in registers. Scalars are computed for a batch of rows at once, one per lane.
 * Fused multiply-add appears only where the product is exact.
 */
#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/x86_avx512.h"

#include <math.h>

#define N_MAX (KVP_PLANE_DIM_MAX / 16)

/* Rows of a batch, and registers that hold them all. */
#define BATCH      16u
#define BATCH_REGS 256u

/* Rows from one that is worked on to the one that should be on its way. */
#define AHEAD 16u

/*
 * Calls f(..., n, dtype) with constant n for the usual dims. Where there is much to do with a row,
 * its type and the width of its codes are branches that do not show.
 */
#define BY_DIM(dim, dtype, f, ...)                           \
	do {                                                 \
		if ((dim) == 128)                            \
			f(__VA_ARGS__, 8, (dtype));          \
		else if ((dim) == 64)                        \
			f(__VA_ARGS__, 4, (dtype));          \
		else                                         \
			f(__VA_ARGS__, (dim) / 16, (dtype)); \
	} while (0)

/* The same with the usual dtype constant, too: for what has little to do with a row. */
#define BY_TYPE(dim, dtype, f, ...)                               \
	do {                                                      \
		if ((dtype) == KVP_DTYPE_F16 && (dim) == 128)     \
			f(__VA_ARGS__, 8, KVP_DTYPE_F16);         \
		else if ((dtype) == KVP_DTYPE_F16 && (dim) == 64) \
			f(__VA_ARGS__, 4, KVP_DTYPE_F16);         \
		else                                              \
			BY_DIM(dim, dtype, f, __VA_ARGS__);       \
	} while (0)

/* Calls f(bits, ...) with constant bits. */
#define BY_BITS(bits, f, ...)              \
	do {                               \
		if ((bits) == 4)           \
			f(4, __VA_ARGS__); \
		else if ((bits) == 3)      \
			f(3, __VA_ARGS__); \
		else                       \
			f(2, __VA_ARGS__); \
	} while (0)

static const uint8_t *row_in(const struct rows_in *in, uint32_t t)
{
	return in->data + (ptrdiff_t)t * in->stride;
}

static uint8_t *row_out(const struct rows_out *out, uint32_t t)
{
	return out->data + (ptrdiff_t)t * out->stride;
}

/* Widens max, per 16-bit lane, by the magnitudes of a row; n is even. */
INLINE __m512i row_magnitude(const uint8_t *row, uint32_t n, __m512i max)
{
	for (uint32_t i = 0; i < n / 2; i++) {
		__m512i x = _mm512_loadu_si512(row + 64 * (size_t)i);

		max = _mm512_max_epu16(max, _mm512_add_epi16(x, x)); /* no sign in twice the bits */
	}
	return max;
}

/* Nothing to sanitise: elements of that magnitude are numbers of at most KVP_INPUT_MAX. */
INLINE int is_ordinary(__m512i max, uint32_t dtype)
{
	const uint16_t limit = dtype == KVP_DTYPE_F16 ? 0x6400 : 0x4480;

	return !_mm512_cmpgt_epu16_mask(max, _mm512_set1_epi16((short)(2 * limit)));
}

/* Rows of which is_ordinary() tells. */
INLINE int may_be_ordinary(const struct rows_in *in, uint32_t n, uint32_t dtype)
{
	return in->scale == 1.0f && dtype != KVP_DTYPE_F32 && n % 2 == 0;
}

INLINE void load_ordinary(const uint8_t *row, __m512 *v, uint32_t n, uint32_t dtype)
{
	if (dtype == KVP_DTYPE_F16)
		for (uint32_t i = 0; i < n; i++)
			v[i] = load16(row, KVP_DTYPE_F16, i);
	else
		for (uint32_t i = 0; i < n; i++)
			v[i] = load16(row, KVP_DTYPE_BF16, i);
}

/* Any row; see load_row(). */
static __attribute__((noinline)) int load_any(
	const uint8_t *row, uint32_t dtype, float factor, __m512 *v, uint32_t n)
{
	const __m512 scale = _mm512_set1_ps(factor), max = _mm512_set1_ps(KVP_INPUT_MAX);
	__m512 zero = _mm512_setzero_ps();

	for (uint32_t i = 0; i < n; i++) {
		__m512 x = load16(row, dtype, i);
		__mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);

		zero = _mm512_add_ps(zero, _mm512_sub_ps(x, x)); /* or NaN */
		v[i] = clamp16(_mm512_maskz_mul_ps(number, x, scale), max);
	}
	return !_mm512_cmp_ps_mask(zero, zero, _CMP_UNORD_Q);
}

/* 0: there is something that is not finite, which is reference C's where a range is to be found. */
INLINE int load_row(const struct rows_in *in, uint32_t t, __m512 *v, uint32_t n, uint32_t dtype)
{
	const uint8_t *row = row_in(in, t);
	__m512 any[N_MAX];
	int finite;

	if (may_be_ordinary(in, n, dtype) &&
		is_ordinary(row_magnitude(row, n, _mm512_setzero_si512()), dtype)) {
		load_ordinary(row, v, n, dtype);
		return 1;
	}
	if (!__builtin_constant_p(n))
		return load_any(row, dtype, in->scale, v, n);
	/* Not into v, which may then live in registers. */
	finite = load_any(row, dtype, in->scale, any, n);
	for (uint32_t i = 0; i < n; i++)
		v[i] = any[i];
	return finite;
}

/* Row t will be read soon; it does no harm if there is none. */
INLINE void prefetch_row(const struct rows_in *in, uint32_t t, uint32_t n, uint32_t dtype)
{
	const uintptr_t row = (uintptr_t)in->data + (uintptr_t)((intptr_t)t * in->stride);

	for (uint32_t at = 0; at < 32 * n; at += 64)
		_mm_prefetch((const char *)(row + at), _MM_HINT_T0);
	for (uint32_t at = 32 * n; dtype == KVP_DTYPE_F32 && at < 64 * n; at += 64)
		_mm_prefetch((const char *)(row + at), _MM_HINT_T0);
}

INLINE void store_row(
	const struct rows_out *out, uint32_t t, const __m512 *v, uint32_t n, uint32_t dtype)
{
	uint8_t *row = row_out(out, t);

	if (dtype == KVP_DTYPE_F16)
		for (uint32_t i = 0; i < n; i++)
			store16(row, KVP_DTYPE_F16, i, v[i]);
	else if (dtype == KVP_DTYPE_BF16)
		for (uint32_t i = 0; i < n; i++)
			store16(row, KVP_DTYPE_BF16, i, v[i]);
	else
		for (uint32_t i = 0; i < n; i++)
			store16(row, KVP_DTYPE_F32, i, v[i]);
}

/* The sum tree over 32 lanes, which are two registers, but for its last four steps. */
INLINE __m512 dot(const __m512 *a, const __m512 *b, uint32_t n)
{
	__m512 lane[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };

	for (uint32_t i = 0; i < n; i++)
		lane[i & 1] = _mm512_add_ps(lane[i & 1], _mm512_mul_ps(a[i], b[i]));
	return _mm512_add_ps(lane[0], lane[1]);
}

/* Adds lanes of a to lanes of a, and of b to b: those that op picks with lo and with hi. */
#define FOLD(op, a, b, lo, hi) _mm512_add_ps(op(a, b, lo), op(a, b, hi))

/* Lane r of the result is the sum over the 16 lanes of x[r]. */
INLINE __m512 sum_trees(const __m512 *x)
{
	__m512 q[4];

	for (int i = 0; i < 4; i++) {
		__m512 a = FOLD(_mm512_shuffle_f32x4, x[i], x[i + 4], 0x44, 0xee);
		__m512 b = FOLD(_mm512_shuffle_f32x4, x[i + 8], x[i + 12], 0x44, 0xee);

		q[i] = FOLD(_mm512_shuffle_f32x4, a, b, 0x88, 0xdd);
	}
	q[0] = FOLD(_mm512_shuffle_ps, q[0], q[1], 0x44, 0xee);
	q[2] = FOLD(_mm512_shuffle_ps, q[2], q[3], 0x44, 0xee);
	return FOLD(_mm512_shuffle_ps, q[0], q[2], 0x88, 0xdd);
}

/*
 * Twice the bits of a number are its magnitude's; one more unit of the exponent field makes
 * infinities and NaN wrap around to less than a zero has.
 */
static uint32_t amax_avx512(const struct rows_in *in)
{
	const int wide = in->dtype == KVP_DTYPE_F32;
	const uint32_t bytes = in->dim * (wide ? 4 : 2);
	const uint32_t unit = wide ? 1u << 24 : in->dtype == KVP_DTYPE_F16 ? 1u << 11 : 1u << 8;
	const __m512i zero = wide ? _mm512_set1_epi32((int)unit) : _mm512_set1_epi16((short)unit);
	__m512i max = zero;
	uint32_t m;

	for (uint32_t t = 0; t < in->n; t++) {
		for (uint32_t at = 0; at < bytes; at += 64) {
			__m512i x =
				_mm512_maskz_loadu_epi8(first64(bytes - at), row_in(in, t) + at);

			max = wide ? _mm512_max_epu32(
					     max, _mm512_add_epi32(_mm512_add_epi32(x, x), zero))
				   : _mm512_max_epu16(
					     max, _mm512_add_epi16(_mm512_add_epi16(x, x), zero));
		}
	}
	if (!wide)
		max = _mm512_max_epu32(_mm512_srli_epi32(max, 16),
			_mm512_and_si512(max, _mm512_set1_epi32(0xffff)));
	m = (_mm512_reduce_max_epu32(max) - unit) / 2;
	if (in->dtype == KVP_DTYPE_F16)
		return f32_bits(f16_to_f32((uint16_t)m));
	return wide ? m : m << 16;
}

/* ---- rotations ---- */

/* Pairs at distance 1, 2, 4, 8 inside a register: partner + (+-1) * self. */
#define BUTTERFLY(v, n, partner, minus)                                                           \
	do {                                                                                      \
		const __m512 one =                                                                \
			_mm512_mask_blend_ps(minus, _mm512_set1_ps(1.0f), _mm512_set1_ps(-1.0f)); \
		for (uint32_t i_ = 0; i_ < (n); i_++) {                                           \
			__m512 x = (v)[i_];                                                       \
			(v)[i_] = _mm512_fmadd_ps(x, one, partner);                               \
		}                                                                                 \
	} while (0)

INLINE void hadamard_inside(__m512 *v, uint32_t n, uint32_t p)
{
	if (p > 1)
		BUTTERFLY(v, n, _mm512_permute_ps(x, 0xb1), 0xaaaa);
	if (p > 2)
		BUTTERFLY(v, n, _mm512_permute_ps(x, 0x4e), 0xcccc);
	if (p > 4)
		BUTTERFLY(v, n, _mm512_shuffle_f32x4(x, x, 0xb1), 0xf0f0);
	if (p > 8)
		BUTTERFLY(v, n, _mm512_shuffle_f32x4(x, x, 0x4e), 0xff00);
}

INLINE void hadamard_across(__m512 *v, uint32_t n, uint32_t p)
{
	for (uint32_t h = 1; h < p; h *= 2) {
		for (uint32_t i = 0; i < n; i++) {
			__m512 a, b;

			if (i & h)
				continue;
			a = v[i];
			b = v[i + h];
			v[i] = _mm512_add_ps(a, b);
			v[i + h] = _mm512_sub_ps(a, b);
		}
	}
}

static void paley(const struct rotation *rot, int transpose, __m512 *v)
{
	uint32_t p = rot->dim / rot->order / 16;
	__m512 in[36], out[36];

	if (!p) {
		kvp_rotate_paley_avx2(rot, transpose, (float *)(void *)v);
		return;
	}
	for (uint32_t b = 0; b < p; b++) {
		for (uint32_t i = 0; i < rot->order; i++)
			in[i] = v[i * p + b];
		for (uint32_t i = 0; i < rot->order; i++) {
			for (uint32_t j = 0; j < rot->order; j++) {
				uint64_t minus =
					transpose ? rot->paley[j] >> i : rot->paley[i] >> j;
				__m512 sign = _mm512_castsi512_ps(
					_mm512_set1_epi32((int)((uint32_t)minus << 31)));
				__m512 x = _mm512_xor_ps(in[j], sign);

				out[i] = j ? _mm512_add_ps(out[i], x) : x;
			}
		}
		for (uint32_t i = 0; i < rot->order; i++)
			v[i * p + b] = out[i];
	}
}

INLINE void hadamard(const struct rotation *rot, int transpose, __m512 *v, uint32_t n)
{
	if (__builtin_constant_p(n)) { /* BY_DIM()'s have no factor but 2 */
		hadamard_inside(v, n, 16);
		hadamard_across(v, n, n);
		return;
	}
	hadamard_inside(v, n, rot->dim / rot->order);
	hadamard_across(v, n, rot->dim / rot->order / 16);
	if (rot->order > 1)
		paley(rot, transpose, v);
}

INLINE void flip(const struct rotation *rot, uint32_t round, __m512 *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = _mm512_xor_ps(v[i], _mm512_loadu_ps(&rot->sign[round][16 * i]));
}

INLINE void scale_row(__m512 *v, float f, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		v[i] = _mm512_mul_ps(v[i], _mm512_set1_ps(f));
}

/* By reference C, in a copy, so that otherwise v may live in registers. */
INLINE void rotate_dense(const struct rotation *rot,
	void (*rotate)(const struct rotation *, float *), __m512 *v, uint32_t n)
{
	float x[KVP_PLANE_DIM_MAX];

	for (uint32_t i = 0; i < n; i++)
		_mm512_storeu_ps(x + 16 * (size_t)i, v[i]);
	rotate(rot, x);
	for (uint32_t i = 0; i < n; i++)
		v[i] = _mm512_loadu_ps(x + 16 * (size_t)i);
}

INLINE void rotate_fwd(const struct rotation *rot, __m512 *v, uint32_t n)
{
	if (rot->kind == KVP_ROT_HAAR)
		rotate_dense(rot, kvp_rotate_fwd, v, n);
	for (uint32_t r = 0; r < rot->rounds; r++) {
		flip(rot, r, v, n);
		hadamard(rot, 0, v, n);
		if (r == 1)
			scale_row(v, rot->rescale, n);
	}
}

INLINE void rotate_inv(const struct rotation *rot, __m512 *v, uint32_t n)
{
	if (rot->kind == KVP_ROT_HAAR)
		rotate_dense(rot, kvp_rotate_inv, v, n);
	for (uint32_t r = rot->rounds; r-- > 0;) {
		hadamard(rot, 1, v, n);
		flip(rot, r, v, n);
		if (r == 1)
			scale_row(v, rot->rescale, n);
	}
}

/* ---- tq ---- */

/* Number of boundaries <= z in the low four bits; see struct tq. */
INLINE __m512i quantize16(__m512 z, __m512i low, __m512i high)
{
	__m512 at = _mm512_fmadd_ps(
		clamp16(z, _mm512_set1_ps(3.75f)), _mm512_set1_ps(4.0f), _mm512_set1_ps(0x1.8p23f));
	__m512i step = _mm512_permutex2var_epi32(low, _mm512_castps_si512(at), high);
	__m512 bound = _mm512_castsi512_ps(_mm512_and_si512(step, _mm512_set1_epi32(~15)));

	return _mm512_mask_add_epi32(
		step, _mm512_cmp_ps_mask(bound, z, _CMP_LE_OQ), step, _mm512_set1_epi32(1));
}

/* Scalars of rows from their norms and the products that the scalar asks for. */
INLINE __m512 tq_scalars(const struct tq *tq, __m512 norm, __m512 product)
{
	const __m512 dim = _mm512_set1_ps((float)tq->rot.dim);

	if (tq->scalar == KVP_TQ_PLAIN)
		return _mm512_div_ps(norm, dim);
	if (tq->scalar == KVP_TQ_NC)
		return _mm512_div_ps(norm, _mm512_sqrt_ps(_mm512_mul_ps(dim, product)));
	return _mm512_maskz_div_ps(
		_mm512_cmp_ps_mask(product, _mm512_setzero_ps(), _CMP_GT_OQ), norm, product);
}

INLINE void tq_encode_rows(uint32_t bits, const struct tq *tq, const struct rows_in *in,
	uint8_t *codes, uint8_t *scal, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const uint32_t batch = n * BATCH <= BATCH_REGS ? BATCH : BATCH_REGS / n;
	const __m512i low = _mm512_loadu_si512(tq->step), high = _mm512_loadu_si512(tq->step + 16);
	const __m512 cent = _mm512_loadu_ps(tq->cent);
	__m512 rotated[BATCH_REGS], sum[BATCH] = { 0 }, v[N_MAX], c[N_MAX];
	__m512i k[N_MAX];

	for (uint32_t t = 0; t < in->n; t += batch) {
		const uint32_t rows = in->n - t < batch ? in->n - t : batch;
		const __mmask16 m = (__mmask16)((1u << rows) - 1);
		__m512 norm, s;
		float inv[BATCH];

		for (uint32_t r = 0; r < rows; r++) {
			load_row(in, t + r, v, n, dtype);
			sum[r] = dot(v, v, n);
			rotate_fwd(&tq->rot, v, n);
			for (uint32_t i = 0; i < n; i++)
				rotated[r * n + i] = v[i];
		}
		norm = _mm512_sqrt_ps(sum_trees(sum));
		_mm512_storeu_ps(inv, _mm512_maskz_div_ps(_mm512_cmp_ps_mask(norm,
								  _mm512_setzero_ps(), _CMP_GT_OQ),
					      _mm512_set1_ps(1.0f), norm));
		for (uint32_t r = 0; r < rows; r++) {
			prefetch_row(in, t + batch + r, n, dtype);
			for (uint32_t i = 0; i < n; i++) {
				v[i] = _mm512_mul_ps(rotated[r * n + i], _mm512_set1_ps(inv[r]));
				k[i] = quantize16(v[i], low, high);
				c[i] = lookup16(k[i], cent);
			}
			sum[r] = tq->scalar == KVP_TQ_NC ? dot(c, c, n) : dot(v, c, n);
			BY_BITS(bits, store_row_codes, n, k, codes + (size_t)(t + r) * row);
		}
		s = tq_scalars(tq, norm, sum_trees(sum));
		if (tq->wide)
			_mm512_mask_storeu_ps(scal + 4 * (size_t)t, m, s);
		else
			_mm256_mask_storeu_epi16(scal + 2 * (size_t)t, m, _mm512_cvtps_ph(s, RNE));
	}
}

static void tq_encode_avx512(
	const struct tq *tq, const struct rows_in *in, uint8_t *codes, uint8_t *scal)
{
	if (in->dim % 16)
		kvp_tq_encode_c(tq, in, codes, scal);
	else
		BY_DIM(in->dim, in->dtype, tq_encode_rows, tq->bits, tq, in, codes, scal);
}

INLINE void tq_decode_rows(uint32_t bits, const struct tq *tq, const uint8_t *codes,
	const uint8_t *scal, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const __m512 cent = _mm512_loadu_ps(tq->cent);
	__m512i k[N_MAX];
	__m512 v[N_MAX];
	float s[BATCH];

	for (uint32_t t = 0; t < out->n; t++) {
		uint32_t left = out->n - t < BATCH ? out->n - t : BATCH;

		if (t % BATCH == 0 && tq->wide)
			load_wides(scal + 4 * (size_t)t, left, out->scale, s);
		else if (t % BATCH == 0)
			load_halves(scal + 2 * (size_t)t, left, out->scale, s);
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t i = 0; i < n; i++)
			v[i] = lookup16(k[i], cent);
		rotate_inv(&tq->rot, v, n);
		scale_row(v, s[t % BATCH], n);
		store_row(out, t, v, n, dtype);
	}
}

static void tq_decode_avx512(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_tq_decode_c(tq, codes, scal, out);
	else
		BY_DIM(out->dim, out->dtype, tq_decode_rows, tq->bits, tq, codes, scal, out);
}

/* ---- min/max codecs ---- */

struct affine {
	__m512 min;
	__m512 inv;
};

/* Sixteen groups at once: extremes in, fp16 scale and minimum and what codes derive from out. */
INLINE struct affine affine16(
	uint32_t bits, __m512 lo, __m512 hi, __m256i *ret_scale, __m256i *ret_min)
{
	const __m512 zero = _mm512_setzero_ps();
	struct affine a;
	__m512 s;

	lo = _mm512_add_ps(lo, zero);
	hi = _mm512_add_ps(hi, zero);
	s = _mm512_div_ps(_mm512_sub_ps(hi, lo), _mm512_set1_ps((float)((1u << bits) - 1)));
	*ret_scale = _mm512_cvtps_ph(s, RNE);
	*ret_min = _mm512_cvtps_ph(lo, RNE);
	s = _mm512_cvtph_ps(*ret_scale);
	a.min = _mm512_cvtph_ps(*ret_min);
	a.inv = _mm512_maskz_div_ps(
		_mm512_cmp_ps_mask(s, zero, _CMP_GT_OQ), _mm512_set1_ps(1.0f), s);
	return a;
}

INLINE __m512i affine_codes(uint32_t bits, __m512 x, __m512 min, __m512 inv)
{
	__m512i q = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_sub_ps(x, min), inv));

	q = _mm512_max_epi32(q, _mm512_setzero_si512());
	return _mm512_min_epi32(q, _mm512_set1_epi32((1 << bits) - 1));
}

INLINE void asym_encode_row(uint32_t bits, uint32_t group, const __m512 *v, uint32_t n,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	uint32_t per = group / 16, groups = (n + per - 1) / per;
	float lo[64], hi[64], base[64], inv[64];
	__m512i k[N_MAX];

	for (uint32_t g = 0; g < groups; g++) {
		uint32_t end = (g + 1) * per < n ? (g + 1) * per : n;
		__m512 l = v[g * per], h = l;

		for (uint32_t i = g * per + 1; i < end; i++) {
			l = _mm512_min_ps(l, v[i]);
			h = _mm512_max_ps(h, v[i]);
		}
		lo[g] = _mm512_reduce_min_ps(l);
		hi[g] = _mm512_reduce_max_ps(h);
	}
	for (uint32_t g = 0; g < groups; g += 16) {
		__mmask16 m = groups - g >= 16 ? 0xffff : (__mmask16)((1u << (groups - g)) - 1);
		__m256i s16, m16;
		struct affine a = affine16(bits, _mm512_maskz_loadu_ps(m, lo + g),
			_mm512_maskz_loadu_ps(m, hi + g), &s16, &m16);

		_mm256_mask_storeu_epi16(scale + 2 * (size_t)g, m, s16);
		_mm256_mask_storeu_epi16(min + 2 * (size_t)g, m, m16);
		_mm512_mask_storeu_ps(base + g, m, a.min);
		_mm512_mask_storeu_ps(inv + g, m, a.inv);
	}
	for (uint32_t i = 0; i < n; i++)
		k[i] = affine_codes(
			bits, v[i], _mm512_set1_ps(base[i / per]), _mm512_set1_ps(inv[i / per]));
	BY_BITS(bits, store_row_codes, n, k, codes);
}

/* Row t alone by reference C. */
static void asym_encode_one(uint32_t bits, uint32_t group, const struct rows_in *in, uint32_t t,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	const size_t groups = (in->dim + group - 1) / group;
	struct rows_in one = *in;

	one.data = row_in(in, t);
	one.n = 1;
	kvp_asym_encode_c(bits, group, &one, codes + (size_t)t * kvp_row_bytes(bits, in->dim),
		scale + 2 * groups * t, min + 2 * groups * t);
}

INLINE void asym_encode_rows(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, 16 * n);
	size_t groups = (16 * n + group - 1) / group;
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		prefetch_row(in, t + AHEAD, n, dtype);
		if (load_row(in, t, v, n, dtype))
			asym_encode_row(bits, group, v, n, codes + (size_t)t * row,
				scale + 2 * groups * t, min + 2 * groups * t);
		else
			asym_encode_one(bits, group, in, t, codes, scale, min);
	}
}

static void asym_encode_avx512(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (in->dim % 16 || group % 16)
		kvp_asym_encode_c(bits, group, in, codes, scale, min);
	else
		BY_DIM(in->dim, in->dtype, asym_encode_rows, bits, group, in, codes, scale, min);
}

/* The values of all codes of a group, repeated to fill a register. */
INLINE __m512 affine_values(uint32_t bits, float scale, float min)
{
	const __m512i lane =
		_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
	__m512i code = _mm512_and_si512(lane, _mm512_set1_epi32((1 << bits) - 1));

	return _mm512_fmadd_ps(
		_mm512_cvtepi32_ps(code), _mm512_set1_ps(scale), _mm512_set1_ps(min));
}

INLINE void asym_decode_rows(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n), per = group / 16;
	const uint32_t groups = (n + per - 1) / per;
	float s[64], m[64];
	__m512i k[N_MAX];
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		load_halves(scale + 2 * (size_t)groups * t, groups, 1.0f, s);
		load_halves(min + 2 * (size_t)groups * t, groups, 1.0f, m);
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t g = 0; g < groups; g++) {
			__m512 value = _mm512_mul_ps(
				affine_values(bits, s[g], m[g]), _mm512_set1_ps(out->scale));

			for (uint32_t i = g * per; i < (g + 1) * per && i < n; i++)
				v[i] = lookup16(k[i], value);
		}
		store_row(out, t, v, n, dtype);
	}
}

static void asym_decode_avx512(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	if (out->dim % 16 || group % 16)
		kvp_asym_decode_c(bits, group, codes, scale, min, out);
	else
		BY_TYPE(out->dim, out->dtype, asym_decode_rows, bits, group, codes, scale, min,
			out);
}

/* Scalars of a group's channels; their minima and reciprocals instead of their extremes. */
INLINE void chan_scalars(
	uint32_t bits, __m512 *lo, __m512 *hi, uint8_t *scale, uint8_t *min, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		__m256i s16, m16;
		struct affine a = affine16(bits, lo[i], hi[i], &s16, &m16);

		_mm256_storeu_si256((__m256i *)(void *)(scale + 32 * (size_t)i), s16);
		_mm256_storeu_si256((__m256i *)(void *)(min + 32 * (size_t)i), m16);
		lo[i] = a.min;
		hi[i] = a.inv;
	}
}

INLINE void widen(__m512 *lo, __m512 *hi, const __m512 *v, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		lo[i] = _mm512_min_ps(lo[i], v[i]);
		hi[i] = _mm512_max_ps(hi[i], v[i]);
	}
}

INLINE void chan_codes(uint32_t bits, const __m512 *v, const __m512 *lo, const __m512 *hi,
	uint8_t *codes, uint32_t n)
{
	__m512i k[N_MAX];

	for (uint32_t i = 0; i < n; i++)
		k[i] = affine_codes(bits, v[i], lo[i], hi[i]);
	BY_BITS(bits, store_row_codes, n, k, codes);
}

static void chan_encode_any(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	const uint32_t n = in->dim / 16, row = kvp_row_bytes(bits, in->dim);
	__m512 v[N_MAX], lo[N_MAX], hi[N_MAX];
	int finite = load_row(in, 0, lo, n, in->dtype);

	memcpy(hi, lo, n * sizeof *lo);
	for (uint32_t t = 1; t < in->n; t++) {
		finite &= load_row(in, t, v, n, in->dtype);
		widen(lo, hi, v, n);
	}
	if (!finite) {
		kvp_chan_encode_c(bits, in, codes, scale, min);
		return;
	}
	chan_scalars(bits, lo, hi, scale, min, n);
	for (uint32_t t = 0; t < in->n; t++) {
		prefetch_row(in, t + in->n, n, in->dtype); /* the next group */
		load_row(in, t, v, n, in->dtype);
		chan_codes(bits, v, lo, hi, codes + (size_t)t * row, n);
	}
}

/* Rows are taken as ordinary until all have been seen: extremes stay in registers. */
INLINE void chan_encode_rows(uint32_t bits, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	__m512i max = _mm512_setzero_si512();
	__m512 v[N_MAX], lo[N_MAX], hi[N_MAX];

	max = row_magnitude(row_in(in, 0), n, max);
	load_ordinary(row_in(in, 0), lo, n, dtype);
	for (uint32_t i = 0; i < n; i++)
		hi[i] = lo[i];
	for (uint32_t t = 1; t < in->n; t++) {
		max = row_magnitude(row_in(in, t), n, max);
		load_ordinary(row_in(in, t), v, n, dtype);
		widen(lo, hi, v, n);
	}
	if (!is_ordinary(max, dtype)) {
		chan_encode_any(bits, in, codes, scale, min);
		return;
	}
	chan_scalars(bits, lo, hi, scale, min, n);
	for (uint32_t t = 0; t < in->n; t++) {
		prefetch_row(in, t + in->n, n, dtype); /* the next group */
		load_ordinary(row_in(in, t), v, n, dtype);
		chan_codes(bits, v, lo, hi, codes + (size_t)t * row, n);
	}
}

static void chan_encode_avx512(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (in->dim % 16)
		kvp_chan_encode_c(bits, in, codes, scale, min);
	else if (may_be_ordinary(in, 2, in->dtype) && in->dim == 128)
		chan_encode_rows(bits, in, codes, scale, min, 8, in->dtype);
	else if (may_be_ordinary(in, 2, in->dtype) && in->dim == 64)
		chan_encode_rows(bits, in, codes, scale, min, 4, in->dtype);
	else
		chan_encode_any(bits, in, codes, scale, min);
}

INLINE void chan_decode_rows(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const __m512 value = affine_values(bits, 1.0f, 0.0f);
	__m512 v[N_MAX], s[N_MAX], m[N_MAX];
	__m512i k[N_MAX];

	load_halves(scale, 16 * n, 1.0f, (float *)(void *)s);
	load_halves(min, 16 * n, 1.0f, (float *)(void *)m);
	for (uint32_t t = 0; t < out->n; t++) {
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm512_fmadd_ps(lookup16(k[i], value), s[i], m[i]);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void chan_decode_avx512(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_chan_decode_c(bits, codes, scale, min, out);
	else
		BY_TYPE(out->dim, out->dtype, chan_decode_rows, bits, codes, scale, min, out);
}

/* ---- bytes ---- */

INLINE __m128i byte_codes(uint32_t format, __m512 x)
{
	__m512i q;

	if (format != KVP_CODEC_INT8)
		return fp8_codes(format, x);
	q = _mm512_cvtps_epi32(x);
	q = _mm512_max_epi32(q, _mm512_set1_epi32(-127));
	return _mm512_cvtepi32_epi8(_mm512_min_epi32(q, _mm512_set1_epi32(127)));
}

INLINE void byte_encode_rows(uint32_t format, const struct rows_in *in, uint8_t *codes,
	uint8_t *scale, uint32_t n, uint32_t dtype)
{
	float top = format == KVP_CODEC_INT8 ? 127.0f : 448.0f;
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		__m512 max = _mm512_setzero_ps();
		float s, inv;

		prefetch_row(in, t + AHEAD, n, dtype);
		load_row(in, t, v, n, dtype);
		for (uint32_t i = 0; i < n; i++)
			max = _mm512_max_ps(max, _mm512_abs_ps(v[i]));
		store_half(scale + 2 * (size_t)t, _mm512_reduce_max_ps(max) / top);
		s = load_half(scale + 2 * (size_t)t, 1.0f);
		inv = s > 0.0f ? 1.0f / s : 0.0f;
		for (uint32_t i = 0; i < n; i++)
			_mm_storeu_si128(
				(__m128i *)(void *)(codes + (size_t)t * 16 * n + 16 * (size_t)i),
				byte_codes(format, _mm512_mul_ps(v[i], _mm512_set1_ps(inv))));
	}
}

static void byte_encode_avx512(
	uint32_t format, const struct rows_in *in, uint8_t *codes, uint8_t *scale)
{
	if (in->dim % 16)
		kvp_byte_encode_c(format, in, codes, scale);
	else
		BY_TYPE(in->dim, in->dtype, byte_encode_rows, format, in, codes, scale);
}

INLINE void byte_decode_rows(uint32_t format, const uint8_t *codes, const uint8_t *scale,
	const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		__m512 s = _mm512_set1_ps(load_half(scale + 2 * (size_t)t, out->scale));

		for (uint32_t i = 0; i < n; i++)
			v[i] = _mm512_mul_ps(byte_values(format, codes + (size_t)t * 16 * n, i), s);
		store_row(out, t, v, n, dtype);
	}
}

static void byte_decode_avx512(
	uint32_t format, const uint8_t *codes, const uint8_t *scale, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_byte_decode_c(format, codes, scale, out);
	else
		BY_TYPE(out->dim, out->dtype, byte_decode_rows, format, codes, scale, out);
}

/* ---- hadamard ---- */

INLINE void had_encode_rows(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const float unit = 1.0f / sqrtf((float)in->dim);
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < in->n; t++) {
		prefetch_row(in, t + AHEAD, n, dtype);
		load_row(in, t, v, n, dtype);
		rotate_fwd(rot, v, n);
		scale_row(v, unit, n);
		asym_encode_row(bits, 16 * n, v, n, codes + (size_t)t * row, scale + 2 * (size_t)t,
			min + 2 * (size_t)t);
	}
}

static void had_encode_avx512(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	if (in->dim % 16)
		kvp_had_encode_c(bits, rot, in, codes, scale, min);
	else
		BY_DIM(in->dim, in->dtype, had_encode_rows, bits, rot, in, codes, scale, min);
}

INLINE void had_decode_rows(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, 16 * n);
	const float unit = 1.0f / sqrtf((float)out->dim);
	float s[BATCH], m[BATCH];
	__m512i k[N_MAX];
	__m512 v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		const uint32_t left = out->n - t < BATCH ? out->n - t : BATCH;
		__m512 value;

		if (t % BATCH == 0) {
			load_halves(scale + 2 * (size_t)t, left, 1.0f, s);
			load_halves(min + 2 * (size_t)t, left, 1.0f, m);
		}
		value = affine_values(bits, s[t % BATCH], m[t % BATCH]);
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t i = 0; i < n; i++)
			v[i] = lookup16(k[i], value);
		rotate_inv(rot, v, n);
		scale_row(v, unit, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void had_decode_avx512(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	if (out->dim % 16)
		kvp_had_decode_c(bits, rot, codes, scale, min, out);
	else
		BY_DIM(out->dim, out->dtype, had_decode_rows, bits, rot, codes, scale, min, out);
}

void kvp_dsp_init_avx512(struct dsp *dsp)
{
	dsp->amax = amax_avx512;
	dsp->tq_encode = tq_encode_avx512;
	dsp->tq_decode = tq_decode_avx512;
	dsp->asym_encode = asym_encode_avx512;
	dsp->asym_decode = asym_decode_avx512;
	dsp->chan_encode = chan_encode_avx512;
	dsp->chan_decode = chan_decode_avx512;
	dsp->byte_encode = byte_encode_avx512;
	dsp->byte_decode = byte_decode_avx512;
	dsp->had_encode = had_encode_avx512;
	dsp->had_decode = had_decode_avx512;
}
