/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split-K attention on tensor cores over pages that stay compressed, for the dims and pairs of
 * codecs that it is tuned for; attend_any.cu takes the rest.
 *
 * A block serves up to 16 rows (queries x query heads) of one KV head over one split of the tokens.
 * Its warps take tiles of 16 tokens in turn and share nothing until the end: each copies its tiles
 * into a ring of its own with cp.async, turns codes into pairs of fp16 through a table with one
 * column per lane (no bank conflicts), and keeps running maximum, weights and sums.
 *
 * The fragments of mma.m16n8k16 fix which lane needs which token; they do not care in what order
 * channels come, as long as Q and K (V and the result) agree. So each lane takes the channels whose
 * codes lie together: k_channel() and v_channel() are that order, in one place.
 *
 * Scales: a K scale multiplies scores; a V scale multiplies weights, which are kept in fp16's range
 * by a power of two per pair of rows (`shift`) that only grows. tq planes are attended in the
 * rotated domain: kvp_cu_rotate rotated the queries before, kvp_cu_merge rotates the sums back.
 */
#include "kernels/cuda/attend.h"
#include "kernels/cuda/job.h"

#define PAIRS(D) ((D) / 8) /* of channels of K in one lane; as many column tiles of V */

/* What a warp carries from tile to tile. Rows g and g + 8 of the lane, in that order. */
struct running {
	float sum[16][4];
	float max[2];
	float weight[2];
	int32_t shift;     /* sums are in units of 2^shift; of the lane's rows */
	uint32_t first[2]; /* tokens that the row may see: [first, end) */
	uint32_t end[2];
	const uint8_t *mask[2];
};

/* Where a tile of this warp comes from and lies. */
struct tile {
	uint32_t stage;
	uint32_t token; /* first */
	uint32_t end;   /* tokens of this sequence's pages */
};

/* ---- order of channels ---- */

KVP_DEV uint32_t k_channel(const int KK, const int D, uint32_t q, uint32_t pair, uint32_t half)
{
	if (ak_native(KK))
		return 8 * (4 * (pair / 4) + q) + 2 * (pair % 4) + half;
	if (ak_byte(KK))
		return 16 * (4 * (pair / 8) + q) + 2 * (pair % 8) + half;
	if (ak_bits(KK) == 4)
		return D / 8 * q + pair + half * D / 2;
	return D / 16 * q + pair / 2 + pair % 2 * D / 2 + half * D / 4;
}

KVP_DEV uint32_t v_channel(const int VK, const int D, uint32_t g, uint32_t tile)
{
	uint32_t pair = tile / 2, half = tile % 2;

	if (ak_native(VK))
		return 8 * (8 * (pair / 4) + g) + 2 * (pair % 4) + half;
	if (ak_byte(VK))
		return D / 8 * g + 2 * pair + half;
	if (ak_bits(VK) == 4)
		return D / 16 * g + pair + half * D / 2;
	return D / 32 * g + pair / 2 + pair % 2 * D / 2 + half * D / 4;
}

/* ---- codes to pairs of fp16 ---- */

/* A byte of fp8 in each half of the word, in its upper byte. */
KVP_DEV uint32_t fp8_pair(const int kind, uint32_t spread)
{
	if (kind == AK_E5M2)
		return spread;
	/* e4m3 is fp16 with two exponent bits less: shift, then correct the bias by 2^8 */
	return kvp_h2_mul((spread & 0x80008000u) | (spread & 0x7f007f00u) >> 1, 0x5c005c00u);
}

KVP_DEV void byte_word(const int kind, uint32_t w, uint32_t *out)
{
	if (kind == AK_I8) {
		/* 1024 + (code + 128), exact in fp16, less 1152 */
		w ^= 0x80808080u;
		out[0] = kvp_h2_fma(kvp_prmt(w, 0x64u, 0x4140), 0x3c003c00u, 0xe480e480u);
		out[1] = kvp_h2_fma(kvp_prmt(w, 0x64u, 0x4342), 0x3c003c00u, 0xe480e480u);
		return;
	}
	out[0] = fp8_pair(kind, kvp_prmt(w, 0, 0x1404));
	out[1] = fp8_pair(kind, kvp_prmt(w, 0, 0x3424));
}

/* Entry of a table whose column for this lane begins at lut. */
KVP_DEV uint32_t look_up(uint32_t lut, uint32_t entry)
{
	return kvp_lds_u32(lut + entry * 128);
}

/* `n` bytes of 4-bit codes give n pairs. */
KVP_DEV void nibbles(uint32_t lut, const uint32_t *w, const int n, uint32_t *out)
{
	KVP_UNROLL
	for (int i = 0; i < n; i++)
		out[i] = look_up(lut, w[i / 4] >> (8 * (i % 4)) & 0xffu);
}

/* `n` bytes of 2-bit codes give 2 n pairs; of 3-bit codes too, high[] holding the third bits of the
 * four channels of byte i in bit `bit` + i. */
KVP_DEV void crumbs(const int bits, uint32_t lut, const uint32_t *w, const uint32_t *high,
	uint32_t bit, const int n, uint32_t *out)
{
	KVP_UNROLL
	for (int i = 0; i < n; i++) {
		uint32_t byte = w[i / 4] >> (8 * (i % 4)), lo = byte & 15u, hi = byte >> 4 & 15u;

		if (bits == 3) {
			lo |= (high[0] >> (bit + i) & 1u) << 4 | (high[1] >> (bit + i) & 1u) << 5;
			hi |= (high[2] >> (bit + i) & 1u) << 4 | (high[3] >> (bit + i) & 1u) << 5;
		}
		out[2 * i] = look_up(lut, lo);
		out[2 * i + 1] = look_up(lut, hi);
	}
}

/* The four bytes of third bits that hold the channels first, first + D/4, ... */
KVP_DEV void high_bits(const int bits, const int D, uint32_t row, uint32_t first, uint32_t *high)
{
	KVP_UNROLL
	for (int k = 0; k < 4; k++)
		high[k] = bits == 3 ? kvp_lds_u8(row + D / 4 + first / 8 + k * (D / 32)) : 0;
}

/* n words (1, 2 or 4) from shared memory. */
KVP_DEV void load_words(uint32_t at, const int n, uint32_t *w)
{
	if (n == 4) {
		struct kvp_v4 v = kvp_lds_v4(at);

		for (int i = 0; i < 4; i++)
			w[i] = v.w[i];
	} else if (n == 2) {
		struct kvp_v2 v = kvp_lds_v2(at);

		w[0] = v.w[0];
		w[1] = v.w[1];
	} else {
		w[0] = kvp_lds_u32(at);
	}
}

/* The lane's channels of one token of K, in the order of k_channel(). */
KVP_DEV void k_pairs(
	const int KK, const int D, uint32_t row, uint32_t q, uint32_t lut, uint32_t *out)
{
	uint32_t w[4], high[4], bit = 0;

	if (ak_native(KK)) {
		KVP_UNROLL
		for (int i = 0; i < D / 32; i++)
			load_words(row + 16 * (4 * i + q), 4, out + 4 * i);
	} else if (ak_byte(KK)) {
		KVP_UNROLL
		for (int i = 0; i < D / 64; i++) {
			load_words(row + 16 * (4 * i + q), 4, w);
			KVP_UNROLL
			for (int k = 0; k < 4; k++)
				byte_word(KK, w[k], out + 8 * i + 2 * k);
		}
	} else if (ak_bits(KK) == 4) {
		load_words(row + D / 8 * q, D / 32, w);
		nibbles(lut, w, D / 8, out);
	} else {
		load_words(row + D / 16 * q, D / 64, w);
		high_bits(ak_bits(KK), D, row, D / 16 * q, high);
		bit = D / 16 * q % 8;
		crumbs(ak_bits(KK), lut, w, high, bit, D / 16, out);
	}
}

/* The lane's channels of one token of V: pair i is column tiles 2 i and 2 i + 1. */
KVP_DEV void v_pairs(
	const int VK, const int D, uint32_t row, uint32_t g, uint32_t lut, uint32_t *out)
{
	uint32_t w[4], high[4], bit = 0;

	if (ak_native(VK)) {
		KVP_UNROLL
		for (int i = 0; i < D / 64; i++)
			load_words(row + 16 * (8 * i + g), 4, out + 4 * i);
	} else if (ak_byte(VK)) {
		load_words(row + D / 8 * g, D / 32, w);
		KVP_UNROLL
		for (int k = 0; k < D / 32; k++)
			byte_word(VK, w[k], out + 2 * k);
	} else if (ak_bits(VK) == 4) {
		load_words(row + D / 16 * g, D / 64, w);
		nibbles(lut, w, D / 16, out);
	} else {
		w[0] = D == 128 ? kvp_lds_u32(row + 4 * g) : kvp_lds_u16(row + 2 * g);
		high_bits(ak_bits(VK), D, row, D / 32 * g, high);
		bit = D / 32 * g % 8;
		crumbs(ak_bits(VK), lut, w, high, bit, D / 32, out);
	}
}

/* fp16 scalars of K's channels (kivi), as pairs in the order of k_channel(). */
KVP_DEV void k_scalar_pairs(const int KK, const int D, uint32_t base, uint32_t q, uint32_t *out)
{
	if (ak_bits(KK) == 4) {
		KVP_UNROLL
		for (int i = 0; i < D / 8; i += 4) {
			struct kvp_v2 lo = kvp_lds_v2(base + 2 * (D / 8 * q + i));
			struct kvp_v2 hi = kvp_lds_v2(base + 2 * (D / 8 * q + i + D / 2));

			KVP_UNROLL
			for (int k = 0; k < 4; k++)
				out[i + k] =
					kvp_prmt(lo.w[k / 2], hi.w[k / 2], k % 2 ? 0x7632 : 0x5410);
		}
		return;
	}
	KVP_UNROLL
	for (int m = 0; m < 2; m++) {
		KVP_UNROLL
		for (int i = 0; i < D / 16; i += 4) {
			uint32_t at = base + 2 * (D / 16 * q + i + m * D / 2);
			struct kvp_v2 lo = kvp_lds_v2(at), hi = kvp_lds_v2(at + D / 2);

			KVP_UNROLL
			for (int k = 0; k < 4; k++)
				out[2 * (i + k) + m] =
					kvp_prmt(lo.w[k / 2], hi.w[k / 2], k % 2 ? 0x7632 : 0x5410);
		}
	}
}

/* ---- before the first tile ---- */

/* Pairs of numbers for pairs of codes; column `lane` of entry e is word 32 e + lane. */
KVP_DEV void fill_lut(const int kind, uint32_t base, const struct kvp_cuda_codec *c)
{
	uint32_t bits = ak_bits(kind);

	for (uint32_t i = kvp_tid(); i < ak_lut_entries(kind) * 32; i += ATTEND_THREADS) {
		uint32_t e = i / 32, lo = e & 15u, hi = e >> 4;
		float a, b;

		if (bits == 2) {
			lo = e & 3u;
			hi = e >> 2;
		} else if (bits == 3) {
			lo = (e & 3u) | (e >> 4 & 1u) << 2;
			hi = (e >> 2 & 3u) | (e >> 5 & 1u) << 2;
		}
		a = ak_tq(kind) ? c->cent[lo] : (float)lo;
		b = ak_tq(kind) ? c->cent[hi] : (float)hi;
		kvp_sts_u32(base + 4 * i, kvp_pack_f16(a, b));
	}
}

/* Query row r of this block as numbers below 2 and a factor. */
KVP_DEV void prepare_row(const struct kvp_cuda_attend *p, const int KK, const int D,
	const uint8_t *from, uint32_t r, const struct attend_smem *s)
{
	uint32_t lane = kvp_tid() % 32,
		 base = s->factors - ATTEND_ROWS * D * (KK == AK_BF16 ? 4 : 2);
	float x[ROW_E_MAX], max = 0.0f, unit;
	int32_t exp;

	KVP_UNROLL
	for (int e = 0; e < D / 32; e++)
		x[e] = from ? load_raw(from, p->q_dtype, 32 * e + lane) : 0.0f;
	KVP_UNROLL
	for (int e = 0; e < D / 32; e++)
		max = (x[e] < 0.0f ? -x[e] : x[e]) > max ? (x[e] < 0.0f ? -x[e] : x[e]) : max;
	KVP_UNROLL
	for (uint32_t m = 16; m > 0; m /= 2) {
		float other = kvp_shfl_xor_f32(max, m);

		max = other > max ? other : max;
	}
	exp = (int32_t)(kvp_f32_bits(max) >> 23) - 127;
	exp = exp < -100 ? -100 : exp > 100 ? 100 : exp;
	unit = pow2i(-exp);
	KVP_UNROLL
	for (int e = 0; e < D / 32; e++) {
		uint32_t at = base + 2 * (r * D + 32 * e + lane);
		float v = x[e] * unit;

		if (KK == AK_BF16) {
			uint32_t hi = kvp_pack_bf16(v, 0.0f) & 0xffffu;

			kvp_sts_u16(at, hi);
			kvp_sts_u16(at + 2 * ATTEND_ROWS * D,
				kvp_pack_bf16(v - kvp_bits_f32(hi << 16), 0.0f));
		} else {
			kvp_sts_u16(at, kvp_f32_to_f16_rn(v));
		}
	}
	if (lane == 0)
		kvp_sts_f32(s->factors + 4 * r, pow2i(exp) * p->scale * LOG2E);
}

/* A fragments of Q: fragment i of step s is pair 2 s + i / 2 of row g + 8 (i % 2). */
KVP_DEV void load_q(const int KK, const int D, uint32_t base, uint32_t *frag)
{
	uint32_t g = kvp_tid() % 32 / 4, q = kvp_tid() % 4;

	KVP_UNROLL
	for (int i = 0; i < D / 4; i++) {
		uint32_t row = g + 8 * (i % 2), pair = i / 4 * 2 + i % 4 / 2;
		uint32_t lo = kvp_lds_u16(base + 2 * (row * D + k_channel(KK, D, q, pair, 0)));
		uint32_t hi = kvp_lds_u16(base + 2 * (row * D + k_channel(KK, D, q, pair, 1)));

		frag[i] = lo | hi << 16;
	}
}

/* ---- copying a tile ---- */

/* 16 rows of codes that lie one after another; what is beyond `valid` bytes becomes zeros. */
KVP_DEV void copy_codes(
	uint32_t to, const uint8_t *from, uint32_t row, uint32_t stride, uint32_t valid)
{
	for (uint32_t c = kvp_tid() % 32; c < row; c += 32) {
		uint32_t at = stride == row ? 16 * c : 16 * c / row * stride + 16 * c % row;
		uint32_t left = valid > 16 * c ? valid - 16 * c : 0;

		kvp_cp_async16(to + at, from + 16 * c, left < 16 ? left : 16);
	}
}

/* `bytes` in pieces of 16, of which the first `valid` are there and the rest become zeros. */
KVP_DEV void copy_flat(uint32_t to, const uint8_t *from, uint32_t bytes, uint32_t valid)
{
	for (uint32_t c = kvp_tid() % 32; c < bytes / 16; c += 32) {
		uint32_t left = valid > 16 * c ? valid - 16 * c : 0;

		kvp_cp_async16(to + 16 * c, from + 16 * c, left < 16 ? left : 16);
	}
}

/* One plane's part of a tile: codes, scalars, and the header's exponent. */
KVP_DEV void copy_plane(const int kind, const int D, int is_k, const struct kvp_cuda_codec *c,
	const uint8_t *plane, uint32_t head, uint32_t token, uint32_t valid, uint32_t codes,
	uint32_t scalars, uint32_t header)
{
	uint32_t row = ak_row(kind, D), at = head * c->tokens + token;

	copy_codes(codes, plane + c->codes + (uint64_t)at * row, row,
		is_k ? ak_k_stride(kind, D) : ak_v_stride(kind, D), valid * row);
	if (ak_native(kind))
		return;
	if (kvp_tid() % 32 == 0)
		kvp_cp_async16(header, plane + 16, 16);
	if (!ak_affine(kind)) {
		copy_flat(scalars, plane + c->scale + 2 * at, 2 * ATTEND_TILE, 2 * valid);
	} else if (is_k) {
		uint32_t group = (head * c->groups + token / c->group) * D;

		copy_flat(scalars, plane + c->scale + 2 * group, 2 * D, 2 * D);
		copy_flat(scalars + 2 * D, plane + c->minimum + 2 * group, 2 * D, 2 * D);
	} else {
		uint32_t bytes = 2 * ATTEND_TILE * c->groups;

		copy_flat(scalars, plane + c->scale + 2 * at * c->groups, bytes,
			2 * valid * c->groups);
		copy_flat(scalars + bytes, plane + c->minimum + 2 * at * c->groups, bytes,
			2 * valid * c->groups);
	}
}

/* Starts copying a tile; commits a group even if there is none, so that groups can be counted. */
KVP_DEV void start_tile(const struct kvp_cuda_attend *p, const int KK, const int VK, const int D,
	const struct attend_smem *s, const struct tile *t, uint32_t head, int exists)
{
	if (exists) {
		uint32_t token = t->token % p->k.tokens, valid = t->end - t->token;
		uint64_t base = page_of(p, t->token);

		valid = valid < ATTEND_TILE ? valid : ATTEND_TILE;
		copy_plane(KK, D, 1, &p->k, at_const(base, (int64_t)p->k_offset), head, token,
			valid, t->stage, t->stage + s->k_scalars, t->stage + s->headers);
		copy_plane(VK, D, 0, &p->v, at_const(base, (int64_t)p->v_offset), head, token,
			valid, t->stage + s->v_codes, t->stage + s->v_scalars,
			t->stage + s->headers + 16);
	}
	kvp_cp_async_commit();
}

/* ---- one tile ---- */

KVP_DEV float exponent_factor(const int kind, uint32_t header)
{
	return ak_native(kind) ? 1.0f : pow2i((int32_t)kvp_lds_u32(header + 8));
}

/* Scores of 16 rows and 16 tokens; score[i] belongs to tokens 8 i + 2 q and the next. */
KVP_DEV void tile_scores(const int KK, const int D, uint32_t stage, const struct attend_smem *s,
	const uint32_t *q_hi, const uint32_t *q_lo, float score[2][4])
{
	uint32_t lane = kvp_tid() % 32, g = lane / 4, q = lane % 4;
	uint32_t scale[PAIRS(128)], min[PAIRS(128)], k[PAIRS(128)];

	if (ak_affine(KK)) {
		k_scalar_pairs(KK, D, stage + s->k_scalars, q, scale);
		k_scalar_pairs(KK, D, stage + s->k_scalars + 2 * D, q, min);
	}
	KVP_UNROLL
	for (int n = 0; n < 2; n++) {
		KVP_UNROLL
		for (int i = 0; i < 4; i++)
			score[n][i] = 0.0f;
		k_pairs(KK, D, stage + (8 * n + g) * ak_k_stride(KK, D), q, s->k_lut + 4 * lane, k);
		KVP_UNROLL
		for (int i = 0; ak_affine(KK) && i < PAIRS(D); i++)
			k[i] = kvp_h2_fma(k[i], scale[i], min[i]);
		KVP_UNROLL
		for (int i = 0; i < D / 16; i++) {
			if (KK == AK_BF16) {
				kvp_mma_bf16(score[n], q_hi + 4 * i, k + 2 * i);
				kvp_mma_bf16(score[n], q_lo + 4 * i, k + 2 * i);
			} else {
				kvp_mma_f16(score[n], q_hi + 4 * i, k + 2 * i);
			}
		}
	}
}

/* Two fp16 scalars of neighbouring tokens, times factor; [16 tokens] at base. */
KVP_DEV void token_scalars(uint32_t base, float factor, float out[2][2])
{
	uint32_t q = kvp_tid() % 4;

	KVP_UNROLL
	for (int n = 0; n < 2; n++) {
		uint32_t w = kvp_lds_u32(base + 2 * (8 * n + 2 * q));

		out[n][0] = clamp_to(scalar_f16(w & 0xffffu) * factor, F32_LARGEST);
		out[n][1] = clamp_to(scalar_f16(w >> 16) * factor, F32_LARGEST);
	}
}

KVP_DEV void tile_scalars(const int kind, uint32_t scalars, uint32_t header, float out[2][2])
{
	float factor = exponent_factor(kind, header);

	if (ak_byte(kind) || ak_tq(kind)) {
		token_scalars(scalars, factor, out);
		return;
	}
	out[0][0] = factor;
	out[0][1] = factor;
	out[1][0] = factor;
	out[1][1] = factor;
}

/* The sums are rescaled only where the largest V scale that these rows have met has outgrown their
 * unit. What has no weight is not met. */
KVP_DEV void grow_shift(const int D, struct running *run, const float vs[2][2], const float w[2][4])
{
	float max = 0.0f, other;
	int32_t shift;

	KVP_UNROLL
	for (int i = 0; i < 4; i++) {
		float v = vs[i / 2][i % 2];

		if (w[i / 2][i % 2] == 0.0f && w[i / 2][2 + i % 2] == 0.0f)
			v = 0.0f;
		max = v > max ? v : max;
	}
	other = kvp_shfl_xor_f32(max, 1);
	max = other > max ? other : max;
	other = kvp_shfl_xor_f32(max, 2);
	max = other > max ? other : max;
	/* weights times scales then stay below 2^8, well inside fp16 */
	shift = (int32_t)(kvp_f32_bits(max) >> 23) - 127 + 1 - 8;
	if (shift <= run->shift)
		return;
	KVP_UNROLL
	for (int i = 0; i < D / 8; i++) {
		KVP_UNROLL
		for (int k = 0; k < 4; k++)
			run->sum[i][k] *=
				pow2i(run->shift - shift < -126 ? -126 : run->shift - shift);
	}
	run->shift = shift;
}

/* Scores become weights; maximum, weights and sums move on. */
KVP_DEV void softmax_step(const int D, struct running *run, const float ks[2][2],
	const float factor[2], uint32_t token, float score[2][4])
{
	uint32_t q = kvp_tid() % 4;

	KVP_UNROLL
	for (int r = 0; r < 2; r++) {
		float max = run->max[r], base, fade, sum = 0.0f;

		KVP_UNROLL
		for (int i = 0; i < 4; i++) {
			uint32_t t = token + 8 * (i / 2) + 2 * q + i % 2;
			float v = score[i / 2][2 * r + i % 2] * factor[r] * ks[i / 2][i % 2];

			v = t >= run->first[r] && t < run->end[r] ? masked(run->mask[r], t, v)
								  : NEG_INF;
			max = max_or_nan(max, v);
			score[i / 2][2 * r + i % 2] = v;
		}
		max = max_or_nan(max, kvp_shfl_xor_f32(max, 1));
		max = max_or_nan(max, kvp_shfl_xor_f32(max, 2));
		base = max == NEG_INF ? 0.0f : max;
		fade = max == run->max[r] ? 1.0f : kvp_exp2(run->max[r] - base);
		run->max[r] = max;
		KVP_UNROLL
		for (int i = 0; i < 4; i++) {
			float w = kvp_exp2(score[i / 2][2 * r + i % 2] - base);

			sum += w;
			score[i / 2][2 * r + i % 2] = w;
		}
		run->weight[r] = run->weight[r] * fade + sum;
		/* after the first few tiles the maximum hardly ever moves */
		if (kvp_ballot(fade != 1.0f) == 0)
			continue;
		KVP_UNROLL
		for (int i = 0; i < D / 8; i++) {
			run->sum[i][2 * r] *= fade;
			run->sum[i][2 * r + 1] *= fade;
		}
	}
}

/* Bit i: some row gives a weight to the lane's token i, whose V may then count. What lies elsewhere
 * is no number perhaps, and 0 times that is none either. */
KVP_DEV uint32_t seen_tokens(const struct kvp_cuda_attend *p, const float w[2][4])
{
	uint32_t seen = 0;

	if (!p->mask && !p->causal && !p->window)
		return 15u;
	KVP_UNROLL
	for (int i = 0; i < 4; i++)
		seen |= (uint32_t)(w[i / 2][i % 2] != 0.0f || w[i / 2][2 + i % 2] != 0.0f) << i;
	KVP_UNROLL
	for (uint32_t m = 4; m < 32; m *= 2)
		seen |= kvp_shfl_xor_u32(seen, m);
	return seen;
}

/* The weights as A fragments. A weight of 0 stays 0 whatever lies in its token's scale. */
KVP_DEV void weight_fragments(const int VK, const struct running *run, const float vs[2][2],
	const float w[2][4], uint32_t *hi, uint32_t *lo)
{
	float unit = pow2i(-run->shift);

	KVP_UNROLL
	for (int i = 0; i < 4; i++) {
		float a = w[i / 2][2 * (i % 2)], b = w[i / 2][2 * (i % 2) + 1];

		if (VK == AK_BF16) {
			hi[i] = kvp_pack_bf16(a, b);
			lo[i] = kvp_pack_bf16(a - kvp_bits_f32(hi[i] << 16),
				b - kvp_bits_f32(hi[i] & 0xffff0000u));
			continue;
		}
		a *= VK == AK_F16 ? 1.0f : vs[i / 2][0] * unit;
		b *= VK == AK_F16 ? 1.0f : vs[i / 2][1] * unit;
		hi[i] = kvp_pack_f16(a, b);
	}
}

/* Scale and minimum of affine V for pairs 2 i + m of the lane: fp16 pairs, by token. */
KVP_DEV void v_affine(const int VK, const int D, const struct kvp_cuda_codec *c, uint32_t scalars,
	uint32_t token, uint32_t m, uint32_t *scale, uint32_t *min)
{
	uint32_t g = kvp_tid() % 32 / 4, tile = 2 * m;
	uint32_t lo = token * c->groups + v_channel(VK, D, g, tile) / c->group;
	uint32_t hi = token * c->groups + v_channel(VK, D, g, tile + 1) / c->group;
	uint32_t mins = scalars + 2 * ATTEND_TILE * c->groups;

	*scale = kvp_lds_u16(scalars + 2 * lo) | kvp_lds_u16(scalars + 2 * hi) << 16;
	*min = kvp_lds_u16(mins + 2 * lo) | kvp_lds_u16(mins + 2 * hi) << 16;
}

/* Codes of affine V to values. */
KVP_DEV void affine_pairs(const int VK, const int D, const struct kvp_cuda_codec *c,
	uint32_t scalars, uint32_t token, uint32_t *v)
{
	uint32_t scale[2], min[2];

	v_affine(VK, D, c, scalars, token, 0, &scale[0], &min[0]);
	scale[1] = scale[0];
	min[1] = min[0];
	if (ak_bits(VK) < 4)
		v_affine(VK, D, c, scalars, token, 1, &scale[1], &min[1]);
	KVP_UNROLL
	for (int k = 0; k < D / 16; k++)
		v[k] = kvp_h2_fma(v[k], scale[k % 2], min[k % 2]);
}

KVP_DEV void tile_values(const int VK, const int D, const struct kvp_cuda_codec *c, uint32_t stage,
	const struct attend_smem *s, const uint32_t *w_hi, const uint32_t *w_lo, uint32_t seen,
	struct running *run)
{
	uint32_t lane = kvp_tid() % 32, g = lane / 4, q = lane % 4, v[4][8], b[2];

	KVP_UNROLL
	for (int i = 0; i < 4; i++) {
		uint32_t token = 2 * q + i % 2 + 8 * (i / 2);

		v_pairs(VK, D, stage + s->v_codes + token * ak_v_stride(VK, D), g,
			s->v_lut + 4 * lane, v[i]);
		if (ak_affine(VK))
			affine_pairs(VK, D, c, stage + s->v_scalars, token, v[i]);
		KVP_UNROLL
		for (int k = 0; k < D / 16; k++)
			v[i][k] = seen >> i & 1u ? v[i][k] : 0;
	}
	KVP_UNROLL
	for (int k = 0; k < D / 8; k++) {
		uint32_t sel = k % 2 ? 0x7632 : 0x5410;

		b[0] = kvp_prmt(v[0][k / 2], v[1][k / 2], sel);
		b[1] = kvp_prmt(v[2][k / 2], v[3][k / 2], sel);
		if (VK == AK_BF16) {
			kvp_mma_bf16(run->sum[k], w_hi, b);
			kvp_mma_bf16(run->sum[k], w_lo, b);
		} else {
			kvp_mma_f16(run->sum[k], w_hi, b);
		}
	}
}

/* ---- after the last tile ---- */

/* Each warp lays down its sums as [row][channel], then maximum and weight of each row. */
KVP_DEV void write_sums(const int VK, const int D, struct running *run)
{
	uint32_t lane = kvp_tid() % 32, warp = kvp_tid() / 32, g = lane / 4, q = lane % 4;
	uint32_t base = warp * ATTEND_ROWS * (D + 2) * 4;
	float unit = VK == AK_F16 || VK == AK_BF16 ? 1.0f : pow2i(run->shift);

	KVP_UNROLL
	for (int r = 0; r < 2; r++) {
		uint32_t row = g + 8 * r;

		run->weight[r] += kvp_shfl_xor_f32(run->weight[r], 1);
		run->weight[r] += kvp_shfl_xor_f32(run->weight[r], 2);
		KVP_UNROLL
		for (int k = 0; k < D / 8; k++) {
			uint32_t even = v_channel(VK, D, 2 * q, k);
			uint32_t odd = v_channel(VK, D, 2 * q + 1, k);

			kvp_sts_f32(base + 4 * (row * D + even), run->sum[k][2 * r] * unit);
			kvp_sts_f32(base + 4 * (row * D + odd), run->sum[k][2 * r + 1] * unit);
		}
		if (q == 0) {
			kvp_sts_f32(base + 4 * (ATTEND_ROWS * D + row), run->max[r]);
			kvp_sts_f32(base + 4 * (ATTEND_ROWS * (D + 1) + row), run->weight[r]);
		}
	}
}

/* Row r of all warps becomes one partial result in global memory. */
KVP_DEV void reduce_row(const int D, uint32_t r, uint8_t *out)
{
	uint32_t lane = kvp_tid() % 32;
	float x[ROW_E_MAX], max = NEG_INF, weight = 0.0f;

	KVP_UNROLL
	for (int e = 0; e < D / 32; e++)
		x[e] = 0.0f;
	for (uint32_t w = 0; w < ATTEND_WARPS; w++) {
		float m = kvp_lds_f32(4 * (w * ATTEND_ROWS * (D + 2) + ATTEND_ROWS * D + r));

		max = max_or_nan(max, m);
	}
	for (uint32_t w = 0; w < ATTEND_WARPS && max != NEG_INF; w++) {
		uint32_t base = 4 * w * ATTEND_ROWS * (D + 2);
		float m = kvp_lds_f32(base + 4 * (ATTEND_ROWS * D + r));
		float fade = kvp_exp2(m - max);

		weight += kvp_lds_f32(base + 4 * (ATTEND_ROWS * (D + 1) + r)) * fade;
		KVP_UNROLL
		for (int e = 0; e < D / 32; e++)
			x[e] += kvp_lds_f32(base + 4 * (r * D + 32 * e + lane)) * fade;
	}
	KVP_UNROLL
	for (int e = 0; e < D / 32; e++)
		kvp_stg_f32(out + 4 * (32 * e + lane), x[e]);
	if (lane == 0) {
		kvp_stg_f32(out + 4 * D, max);
		kvp_stg_f32(out + 4 * (D + 1), weight);
	}
}

/* ---- the kernel ---- */

KVP_DEV void init_running(
	const struct kvp_cuda_attend *p, const struct job *j, const int D, struct running *run)
{
	uint32_t g = kvp_tid() % 32 / 4;

	KVP_UNROLL
	for (int i = 0; i < D / 8; i++) {
		KVP_UNROLL
		for (int k = 0; k < 4; k++)
			run->sum[i][k] = 0.0f;
	}
	run->shift = -100;
	KVP_UNROLL
	for (int r = 0; r < 2; r++) {
		uint32_t row = j->row0 + g + 8 * r;

		run->max[r] = NEG_INF;
		run->weight[r] = 0.0f;
		run->first[r] = 0;
		run->end[r] = 0;
		run->mask[r] = mask_row(p, row / p->group);
		if (row < j->rows)
			visible(p, j->tokens, row / p->group, &run->first[r], &run->end[r]);
	}
}

KVP_DEV void prepare_rows(const struct kvp_cuda_attend *p, const int KK, const int D,
	const struct job *j, const struct attend_smem *s)
{
	for (uint32_t r = kvp_tid() / 32; r < ATTEND_ROWS; r += ATTEND_WARPS) {
		uint32_t row = j->row0 + r;

		prepare_row(p, KK, D, row < j->rows ? query_row(p, j->head, row) : NULL, r, s);
	}
}

KVP_DEV void run_tiles(const struct kvp_cuda_attend *p, const int KK, const int VK, const int D,
	const struct job *j, const struct attend_smem *s, struct running *run)
{
	uint32_t g = kvp_tid() % 32 / 4,
		 ring = s->stages + kvp_tid() / 32 * s->stage_count * s->stage;
	uint32_t q_hi[128 / 4], q_lo[128 / 4], slot = 0;
	uint32_t first = j->tile + kvp_tid() / 32, next = first;
	uint32_t q_at = s->factors - ATTEND_ROWS * D * (KK == AK_BF16 ? 4 : 2);
	float factor[2];
	struct tile t;

	load_q(KK, D, q_at, q_hi);
	if (KK == AK_BF16)
		load_q(KK, D, q_at + 2 * ATTEND_ROWS * D, q_lo);
	factor[0] = kvp_lds_f32(s->factors + 4 * g);
	factor[1] = kvp_lds_f32(s->factors + 4 * (g + 8));
	t.end = j->tokens;
	for (uint32_t i = 0; i + 1 < s->stage_count; i++, next += ATTEND_WARPS) {
		t.stage = ring + i * s->stage;
		t.token = next * ATTEND_TILE;
		start_tile(p, KK, VK, D, s, &t, j->head, next < j->tile_end);
	}
	for (uint32_t tile = first; tile < j->tile_end; tile += ATTEND_WARPS) {
		uint32_t stage = ring + slot * s->stage, w_hi[4], w_lo[4];
		float score[2][4], ks[2][2], vs[2][2];

		if (s->stage_count == 3)
			kvp_cp_async_wait(1);
		else
			kvp_cp_async_wait(0);
		/* all lanes' copies have landed, and all lanes are done with the slot before */
		kvp_syncwarp();
		t.stage = ring + (slot ? slot - 1 : s->stage_count - 1) * s->stage;
		t.token = next * ATTEND_TILE;
		start_tile(p, KK, VK, D, s, &t, j->head, next < j->tile_end);
		next += ATTEND_WARPS;
		slot = slot + 1 == s->stage_count ? 0 : slot + 1;

		tile_scores(KK, D, stage, s, q_hi, q_lo, score);
		tile_scalars(KK, stage + s->k_scalars, stage + s->headers, ks);
		tile_scalars(VK, stage + s->v_scalars, stage + s->headers + 16, vs);
		softmax_step(D, run, ks, factor, tile * ATTEND_TILE, score);
		if (!ak_native(VK))
			grow_shift(D, run, vs, score);
		weight_fragments(VK, run, vs, score, w_hi, w_lo);
		tile_values(VK, D, &p->v, stage, s, w_hi, w_lo, seen_tokens(p, score), run);
	}
	kvp_cp_async_wait(0);
}

KVP_DEV void attend(const struct kvp_cuda_attend *p, const int KK, const int VK, const int D)
{
	const struct attend_smem s = attend_smem_of(KK, VK, D);
	struct job j = find_job(p, ATTEND_ROWS, ATTEND_TILE);
	struct running run;

	fill_lut(KK, s.k_lut, &p->k);
	if (!ak_lut_shared(KK, VK))
		fill_lut(VK, s.v_lut, &p->v);
	prepare_rows(p, KK, D, &j, &s);
	kvp_sync();
	init_running(p, &j, D, &run);
	run_tiles(p, KK, VK, D, &j, &s, &run);
	kvp_sync();
	write_sums(VK, D, &run);
	kvp_sync();
	for (uint32_t r = kvp_tid() / 32; r < ATTEND_ROWS && j.row0 + r < j.rows; r += ATTEND_WARPS)
		reduce_row(D, r, partial_row(p, &j, j.row0 + r));
}

#define ATTEND(k, v, KK, VK)                                                          \
	KVP_KERNEL(kvp_cu_attend_##k##_##v##_64, kvp_cuda_attend, ATTEND_THREADS, 1)  \
	{                                                                             \
		attend(&p, KK, VK, 64);                                               \
	}                                                                             \
	KVP_KERNEL(kvp_cu_attend_##k##_##v##_128, kvp_cuda_attend, ATTEND_THREADS, 1) \
	{                                                                             \
		attend(&p, KK, VK, 128);                                              \
	}

ATTEND(f16, f16, AK_F16, AK_F16)
ATTEND(bf16, bf16, AK_BF16, AK_BF16)
ATTEND(e4m3, e4m3, AK_E4M3, AK_E4M3)
ATTEND(e5m2, e5m2, AK_E5M2, AK_E5M2)
ATTEND(aff4, aff4, AK_AFF4, AK_AFF4)
ATTEND(aff2, aff2, AK_AFF2, AK_AFF2)
ATTEND(tq4, tq4, AK_TQ4, AK_TQ4)
ATTEND(tq3, tq3, AK_TQ3, AK_TQ3)
ATTEND(tq2, tq2, AK_TQ2, AK_TQ2)
ATTEND(e4m3, aff4, AK_E4M3, AK_AFF4)
ATTEND(tq4, aff4, AK_TQ4, AK_AFF4)
ATTEND(tq3, aff4, AK_TQ3, AK_AFF4)
ATTEND(i8, i8, AK_I8, AK_I8)
ATTEND(aff3, aff3, AK_AFF3, AK_AFF3)
ATTEND(tq3, aff3, AK_TQ3, AK_AFF3)
