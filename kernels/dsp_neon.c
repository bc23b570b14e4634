/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of n registers of 4 floats; every dim is a multiple of 8, so n is even. Dense rotations are
 * reference C. What other instruction sets do likewise is in dsp_rows.h.
 */
#include "kernels/aarch64_neon.h"

#define LANES 4u
#define V(op) neon_##op

typedef float32x4_t floats;
typedef uint32x4_t words, octets; /* these a dword each */
typedef uint16x4_t halves;

/* dsp_rows.h asks for intrinsics by x86's names. */
INLINE floats neon_setzero_ps(void)
{
	return vdupq_n_f32(0.0f);
}

#define neon_set1_ps              vdupq_n_f32
#define neon_loadu_ps             vld1q_f32
#define neon_storeu_ps            vst1q_f32
#define neon_add_ps               vaddq_f32
#define neon_sub_ps               vsubq_f32
#define neon_mul_ps               vmulq_f32
#define neon_div_ps               vdivq_f32
#define neon_sqrt_ps              vsqrtq_f32
#define neon_min_ps               vminq_f32
#define neon_max_ps               vmaxq_f32
#define neon_set1_epi32(x)        vdupq_n_u32((uint32_t)(x))
#define neon_set1_epi16(x)        vreinterpretq_u32_u16(vdupq_n_u16((uint16_t)(x)))
#define neon_add_epi32            vaddq_u32
#define neon_max_epu32            vmaxq_u32
#define neon_slli_epi32           vshlq_n_u32
#define neon_srli_epi32           vshrq_n_u32
#define neon_cvtph_ps             from_f16
#define neon_cvtps_ph(x, nearest) to_f16(x)

INLINE floats neon_xor_ps(floats a, floats b)
{
	return vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)));
}

INLINE words neon_add_epi16(words a, words b)
{
	return vreinterpretq_u32_u16(vaddq_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}

INLINE words neon_max_epu16(words a, words b)
{
	return vreinterpretq_u32_u16(vmaxq_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
}

INLINE words neon_max_epi32(words a, words b)
{
	return vreinterpretq_u32_s32(vmaxq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b)));
}

INLINE words neon_min_epi32(words a, words b)
{
	return vreinterpretq_u32_s32(vminq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b)));
}

INLINE words neon_cvtps_epi32(floats x)
{
	return vreinterpretq_u32_s32(vcvtnq_s32_f32(x));
}

#define load_lanes  load4
#define store_lanes store4

#include "kernels/dsp_rows.h"

/* ---- what dsp_rows.h asks for ---- */

INLINE words load_words(const uint8_t *p)
{
	return vreinterpretq_u32_u8(vld1q_u8(p));
}

INLINE floats load_some(const float *p, uint32_t n)
{
	float x[LANES] = { 0 };

	memcpy(x, p, n * sizeof *x);
	return vld1q_f32(x);
}

/* Rows end with a register. */
INLINE words load_part(const uint8_t *p, uint32_t n)
{
	(void)n;
	return load_words(p);
}

INLINE void store_some(uint8_t *p, halves h, uint32_t n)
{
	memcpy(p, &h, 2 * (size_t)n);
}

INLINE uint32_t largest_word(words x)
{
	return vmaxvq_u32(x);
}

INLINE floats magnitude(floats x)
{
	return vabsq_f32(x);
}

INLINE floats div_positive(floats a, floats b)
{
	return bits_and(vdivq_f32(a, b), vcgtzq_f32(b));
}

INLINE void store_bytes(uint8_t *p, octets q)
{
	const uint16x4_t w = vmovn_u32(q);
	const uint8x8_t b = vmovn_u16(vcombine_u16(w, w));

	memcpy(p, &b, 4);
}

INLINE int is_ordinary(words max, uint32_t dtype)
{
	const uint16_t limit = dtype == KVP_DTYPE_F16 ? 0x6400 : 0x4480;

	return vmaxvq_u16(vreinterpretq_u16_u32(max)) <= 2 * limit;
}

static __attribute__((noinline)) int load_any(
	const uint8_t *row, uint32_t dtype, float factor, floats *v, uint32_t n)
{
	words finite = vdupq_n_u32(~0u);

	for (uint32_t i = 0; i < n; i++) {
		const floats x = load4(row, dtype, i);

		finite = vandq_u32(finite, finite4(x));
		v[i] = clamp4(vmulq_n_f32(number4(x), factor), KVP_INPUT_MAX);
	}
	return vminvq_u32(finite) != 0;
}

/* The sum tree over 32 lanes, which are eight registers, but for its last two steps. */
INLINE floats dot(const floats *a, const floats *b, uint32_t n)
{
	floats lane[8];

	for (int i = 0; i < 8; i++)
		lane[i] = vdupq_n_f32(0.0f);
	for (uint32_t i = 0; i < n; i++)
		lane[i & 7] = vaddq_f32(lane[i & 7], vmulq_f32(a[i], b[i]));
	for (int i = 0; i < 4; i++)
		lane[i] = vaddq_f32(lane[i], lane[i + 4]);
	return vaddq_f32(vaddq_f32(lane[0], lane[2]), vaddq_f32(lane[1], lane[3]));
}

/* Lanes 0 and 2, then 1 and 3, of a and of b. */
INLINE floats sum_twos(floats a, floats b)
{
	return vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)),
		vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
}

/* Lane r of the result is the sum over the four lanes of x[r]. */
INLINE floats sum_trees(const floats *x)
{
	return vpaddq_f32(sum_twos(x[0], x[1]), sum_twos(x[2], x[3]));
}

INLINE float reduce_min(floats x)
{
	return vminvq_f32(x);
}

INLINE float reduce_max(floats x)
{
	return vmaxvq_f32(x);
}

/* ---- rotations ---- */

/* Pairs at distance 1 and 2 inside a register: partner + (+-1) * self. */
INLINE void hadamard_inside(floats *v, uint32_t n, uint32_t p)
{
	static const float one[4] = { 1, -1, 1, -1 }, two[4] = { 1, 1, -1, -1 };

	for (uint32_t i = 0; p > 1 && i < n; i++)
		v[i] = vfmaq_f32(vrev64q_f32(v[i]), v[i], vld1q_f32(one));
	for (uint32_t i = 0; p > 2 && i < n; i++)
		v[i] = vfmaq_f32(vextq_f32(v[i], v[i], 2), v[i], vld1q_f32(two));
}

/*
 * The stage of Hadamard matrices whose order is no power of two: n outputs, 4 of each at a time.
 * sign[j * order] belongs to input j and the first output.
 */
#define OUTPUTS 12u
INLINE void tile(
	uint32_t n, uint32_t order, const float *sign, const float *x, uint32_t p, floats *out)
{
	floats sum[OUTPUTS];

	for (uint32_t i = 0; i < n; i++)
		sum[i] = vmulq_n_f32(vld1q_f32(x), sign[i]);
	for (uint32_t j = 1; j < order; j++) {
		const floats in = vld1q_f32(x + (size_t)j * p);

		for (uint32_t i = 0; i < n; i++)
			sum[i] = vfmaq_n_f32(sum[i], in, sign[j * order + i]);
	}
	for (uint32_t i = 0; i < n; i++)
		out[i] = sum[i];
}

static void paley(const struct rotation *rot, int transpose, float *x)
{
	const float *sign = rot->paley_sign[!!transpose];
	const uint32_t order = rot->order, p = rot->dim / order;
	floats out[36];

	if (p % LANES) {
		kvp_rotate_paley(rot, transpose, x);
		return;
	}
	for (uint32_t c = 0; c < p; c += LANES) {
		uint32_t i = 0;

		for (; i + OUTPUTS <= order; i += OUTPUTS)
			tile(OUTPUTS, order, sign + i, x + c, p, out + i);
		for (; i < order; i += 4) /* every order is a multiple of 4 */
			tile(4, order, sign + i, x + c, p, out + i);
		for (i = 0; i < order; i++)
			vst1q_f32(x + (size_t)i * p + c, out[i]);
	}
}

INLINE void hadamard(const struct rotation *rot, int transpose, floats *v, uint32_t n)
{
	if (__builtin_constant_p(n)) { /* BY_DIM()'s have no factor but 2 */
		hadamard_inside(v, n, 4);
		for (uint32_t h = 1; h < n; h *= 2)
			stage(v, n, h);
		return;
	}
	hadamard_inside(v, n, rot->dim / rot->order);
	for (uint32_t h = 1; h < rot->dim / rot->order / LANES; h *= 2)
		stage(v, n, h);
	if (rot->order > 1)
		paley(rot, transpose, (float *)(void *)v);
}

INLINE void rotate_inv(const struct rotation *rot, floats *v, uint32_t n)
{
	if (rot->kind == KVP_ROT_HAAR) {
		rotate_dense(rot, kvp_rotate_inv, v, n);
		return;
	}
	for (uint32_t r = rot->rounds; r-- > 1;) {
		hadamard(rot, 1, v, n);
		flip(rot, r, v, n);
		if (r == 1)
			scale_row(v, rot->rescale, n);
	}
	hadamard(rot, 1, v, n);
	flip(rot, 0, v, n);
}

/* ---- tq ---- */

/*
 * The positive boundaries <= |z| in the low three bits, one less if |z| is one and z negative: its
 * code is the mirror image. See struct tq.
 */
INLINE words quantize4(floats abs, words negative, uint8x16x2_t step)
{
	const words at = vcvtq_u32_f32(vminq_f32(vmulq_n_f32(abs, 3.5f), vdupq_n_f32(7.0f)));
	const words found = lookup8(step, at);
	const words below = vorrq_u32(found, vdupq_n_u32(15));
	const words bits = vaddq_u32(vreinterpretq_u32_f32(abs), negative);

	return vsubq_u32(
		found, vcgtq_s32(vreinterpretq_s32_u32(bits), vreinterpretq_s32_u32(below)));
}

/* Codes of one rotated row, and the product that its scalar asks for. */
INLINE floats tq_encode_row(
	uint32_t bits, const struct tq *tq, const floats *x, float inv, uint8_t *codes, uint32_t n)
{
	const uint32_t half = 1u << (bits - 1);
	const uint8x16x2_t step = table8(tq->step_abs), cent = table8(tq->cent + half);
	floats v[N_MAX], c[N_MAX];
	words k[N_MAX];

	/* z c is |z| |c|: both have the same sign. */
	for (uint32_t i = 0; i < n; i++) {
		const floats z = vmulq_n_f32(x[i], inv);
		const words negative = vcltzq_f32(z);
		words at;

		v[i] = vabsq_f32(z);
		at = quantize4(v[i], negative, step);
		c[i] = vreinterpretq_f32_u32(lookup8(cent, vandq_u32(at, vdupq_n_u32(7))));
		at = vorrq_u32(at, vdupq_n_u32(half));
		k[i] = vandq_u32(veorq_u32(at, negative), vdupq_n_u32(2 * half - 1));
	}
	BY_BITS(bits, store_row_codes, n, k, codes);
	return tq->scalar == KVP_TQ_NC ? dot(c, c, n) : dot(v, c, n);
}

INLINE void tq_encode_rows(uint32_t bits, const struct tq *tq, const struct rows_in *in,
	uint8_t *codes, uint8_t *scal, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, LANES * n);
	const uint32_t batch = n * BATCH <= BATCH_REGS ? BATCH : BATCH_REGS / n;
	floats rotated[BATCH_REGS], sum[BATCH];

	for (uint32_t i = 0; i < BATCH; i++)
		sum[i] = vdupq_n_f32(0.0f);
	for (uint32_t t = 0; t < in->n; t += batch) {
		const uint32_t rows = in->n - t < batch ? in->n - t : batch;
		floats norm, s;
		float inv[BATCH];
		halves s16;

		for (uint32_t r = 0; r < rows; r++) {
			floats *x = rotated + (size_t)r * n;

			load_row(in, t + r, x, n, dtype);
			sum[r] = dot(x, x, n);
			rotate_fwd(&tq->rot, x, n);
		}
		norm = vsqrtq_f32(sum_trees(sum));
		vst1q_f32(inv, div_positive(vdupq_n_f32(1.0f), norm));
		for (uint32_t r = 0; r < rows; r++) {
			prefetch_row(in, t + batch + r, n, dtype);
			sum[r] = tq_encode_row(bits, tq, rotated + (size_t)r * n, inv[r],
				codes + (size_t)(t + r) * row, n);
		}
		s = tq_scalars(tq, norm, sum_trees(sum));
		s16 = to_f16(s);
		if (tq->wide)
			memcpy(scal + 4 * (size_t)t, &s, 4 * (size_t)rows);
		else
			store_some(scal + 2 * (size_t)t, s16, rows);
	}
}

static void tq_encode_neon(
	const struct tq *tq, const struct rows_in *in, uint8_t *codes, uint8_t *scal)
{
	BY_DIM(in->dim, in->dtype, tq_encode_rows, tq->bits, tq, in, codes, scal);
}

INLINE void load_centroids(
	uint32_t bits, uint32_t n, const uint8_t *codes, const float *cent, floats *v)
{
	const uint8x16x4_t table = table16(cent);
	words k[N_MAX];

	load_row_codes(bits, n, codes, k);
	for (uint32_t i = 0; i < n; i++)
		v[i] = lookup16(table, k[i]);
}

INLINE void tq_decode_rows(uint32_t bits, const struct tq *tq, const uint8_t *codes,
	const uint8_t *scal, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, LANES * n);
	floats v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		float s = tq->wide ? load_scalar_wide(scal + 4 * (size_t)t, out->scale)
				   : load_half(scal + 2 * (size_t)t, out->scale);

		BY_BITS(bits, load_centroids, n, codes + (size_t)t * row, tq->cent, v);
		rotate_inv(&tq->rot, v, n);
		scale_row(v, s, n);
		store_row(out, t, v, n, dtype);
	}
}

static void tq_decode_neon(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out)
{
	BY_DIM(out->dim, out->dtype, tq_decode_rows, tq->bits, tq, codes, scal, out);
}

/* ---- min/max codecs ---- */

static void asym_encode_neon(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	BY_DIM(in->dim, in->dtype, asym_encode_rows, bits, group, in, codes, scale, min);
}

INLINE void affine_decode(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, uint32_t per, floats *v, uint32_t n)
{
	floats s = vdupq_n_f32(0.0f), m = s;
	words k[N_MAX];

	BY_BITS(bits, load_row_codes, n, codes, k);
	for (uint32_t i = 0; i < n; i++) {
		if (i % per == 0) {
			s = vdupq_n_f32(load_half(scale + 2 * (size_t)(i / per), 1.0f));
			m = vdupq_n_f32(load_half(min + 2 * (size_t)(i / per), 1.0f));
		}
		v[i] = vfmaq_f32(m, vcvtq_f32_u32(k[i]), s);
	}
}

INLINE void asym_decode_rows(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, LANES * n);
	size_t groups = (LANES * n + group - 1) / group;
	floats v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		affine_decode(bits, codes + (size_t)t * row, scale + 2 * groups * t,
			min + 2 * groups * t, group / LANES, v, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void asym_decode_neon(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	BY_DIM(out->dim, out->dtype, asym_decode_rows, bits, group, codes, scale, min, out);
}

static void chan_encode_neon(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	/* A usual row's extremes are more than registers hold, so no dim has anything of its own. */
	if (may_be_ordinary(in, in->dim / LANES, in->dtype))
		chan_encode_rows(bits, in, codes, scale, min, in->dim / LANES, in->dtype);
	else
		chan_encode_any(bits, in, codes, scale, min);
}

INLINE void chan_decode_rows(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out, uint32_t n, uint32_t dtype)
{
	uint32_t row = kvp_row_bytes(bits, LANES * n);
	floats v[N_MAX], s[N_MAX], m[N_MAX];
	words k[N_MAX];

	for (uint32_t i = 0; i < n; i++) {
		s[i] = load_half4(scale + 2 * LANES * (size_t)i);
		m[i] = load_half4(min + 2 * LANES * (size_t)i);
	}
	for (uint32_t t = 0; t < out->n; t++) {
		BY_BITS(bits, load_row_codes, n, codes + (size_t)t * row, k);
		for (uint32_t i = 0; i < n; i++)
			v[i] = vfmaq_f32(m[i], vcvtq_f32_u32(k[i]), s[i]);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void chan_decode_neon(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out)
{
	BY_DIM(out->dim, out->dtype, chan_decode_rows, bits, codes, scale, min, out);
}

/* ---- bytes ---- */

INLINE words byte_codes(uint32_t format, floats x)
{
	int32x4_t q;

	if (format != KVP_CODEC_INT8)
		return fp8_codes(format, x);
	q = vcvtnq_s32_f32(x);
	q = vminq_s32(vmaxq_s32(q, vdupq_n_s32(-127)), vdupq_n_s32(127));
	return vreinterpretq_u32_s32(q);
}

static void byte_encode_neon(
	uint32_t format, const struct rows_in *in, uint8_t *codes, uint8_t *scale)
{
	BY_DIM(in->dim, in->dtype, byte_encode_rows, format, in, codes, scale);
}

static void byte_decode_neon(
	uint32_t format, const uint8_t *codes, const uint8_t *scale, const struct rows_out *out)
{
	BY_DIM(out->dim, out->dtype, byte_decode_rows, format, codes, scale, out);
}

static void had_encode_neon(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min)
{
	BY_DIM(in->dim, in->dtype, had_encode_rows, bits, rot, in, codes, scale, min);
}

INLINE void had_decode_rows(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out, uint32_t n,
	uint32_t dtype)
{
	const uint32_t row = kvp_row_bytes(bits, LANES * n);
	const float unit = 1.0f / sqrtf((float)out->dim);
	floats v[N_MAX];

	for (uint32_t t = 0; t < out->n; t++) {
		affine_decode(bits, codes + (size_t)t * row, scale + 2 * (size_t)t,
			min + 2 * (size_t)t, n, v, n);
		rotate_inv(rot, v, n);
		scale_row(v, unit, n);
		scale_row(v, out->scale, n);
		store_row(out, t, v, n, dtype);
	}
}

static void had_decode_neon(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out)
{
	BY_DIM(out->dim, out->dtype, had_decode_rows, bits, rot, codes, scale, min, out);
}

static void rotate_neon(const struct rotation *rot, int inverse, float *x)
{
	if (rot->kind == KVP_ROT_HAAR || rot->dim % LANES)
		kvp_rotate_c(rot, inverse, x);
	else
		rotate_any(rot, inverse, x);
}

void kvp_dsp_init_neon(struct dsp *dsp)
{
	dsp->amax = amax;
	dsp->tq_encode = tq_encode_neon;
	dsp->tq_decode = tq_decode_neon;
	dsp->asym_encode = asym_encode_neon;
	dsp->asym_decode = asym_decode_neon;
	dsp->chan_encode = chan_encode_neon;
	dsp->chan_decode = chan_decode_neon;
	dsp->byte_encode = byte_encode_neon;
	dsp->byte_decode = byte_decode_neon;
	dsp->had_encode = had_encode_neon;
	dsp->had_decode = had_decode_neon;
	dsp->rotate = rotate_neon;
}
