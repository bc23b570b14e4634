/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Split-K attention on tensor cores over pages that stay compressed, for the dims and pairs of
 * codecs that it is tuned for; attend_any.cu takes the rest.
 *
 * A block serves up to 8 rows (queries x query heads) of one KV head over one split of the tokens.
 * Its warps take steps of one or two tiles of 16 tokens in turn and share nothing until the end:
 * each copies its tiles into a ring of its own with cp.async, turns codes into pairs of fp16
 * through a table with one column per lane (no bank conflicts), and keeps running maximum, weights
 * and sums.
 *
 * Both products have what is cached on the left, in mma's rows, and the queries on the right, in
 * its 8 columns: scores are K Q^T (tokens x queries), sums V^T W^T (channels x queries). So
 * everything that a lane keeps of queries is of the columns 2 q and 2 q + 1 (q = lane % 4), all of
 * tokens and channels of the rows g and g + 8 (g = lane / 4). Weights become a right operand by
 * kvp_transpose().
 *
 * The fragments of mma.m16n8k16 fix which lane needs which token; they do not care in what order
 * channels come, as long as Q and K (V and the result) agree. So each lane takes the channels whose
 * codes lie together: k_channel() and v_channel() are that order, in one place.
 *
 * Scales: a K scale multiplies scores; a V scale multiplies weights, which are kept in fp16's range
 * by a power of two per warp (`shift`) that only grows. tq planes are attended in the rotated
 * domain: kvp_cu_rotate rotated the queries before, kvp_cu_merge rotates the sums back.
 *
 * A step that all rows see wholly, without a mask, is not looked at token by token; only others are.
 */
#include "kernels/cuda/attend.h"
#include "kernels/cuda/job.h"

#define PAIRS(D) ((D) / 8) /* of channels of K in one lane; as many rows of V^T */

/* Weights are up to 2^SLACK, so that sums need not shrink for each new maximum. */
#define SLACK 4.0f

/* What a warp carries from step to step. Of the lane's queries 2 q and 2 q + 1, in that order. */
struct running {
	float sum[8][4]; /* [i][2 h + r]: channel v_channel(g, 2 i + h), query 2 q + r */
	float max[2];    /* at least the largest score but for SLACK; a query's lanes agree */
	float weight[2]; /* of the lane's tokens */
	float factor[2]; /* from products to scores in units of log2; not negative */
	int32_t shift;   /* sums are in units of 2^shift */
};

/* Where the pages of the step lie that is to be copied next. */
struct cursor {
	uint32_t page; /* of the step's first tile, and which of the page's tiles that is */
	uint32_t tile;
	uint32_t pages; /* from a step to the warp's next one */
	uint32_t tiles;
	uint64_t base[ATTEND_TILES_MAX];
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
	if (ak_bits(KK) == 3)
		return D / 16 * q + pair / 2 + pair % 2 * D / 4 + half * D / 2;
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
	if (ak_bits(VK) == 3)
		return D / 32 * g + pair / 2 + pair % 2 * D / 4 + half * D / 2;
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

/* Of a table at lut, in the lane's column, the entry that is the field of `bits` bits at bit `at` of a word. */
KVP_DEV uint32_t look_up_field(uint32_t lut, uint32_t w, const uint32_t at, const uint32_t bits)
{
	uint32_t offset = at < 7 ? w << (7 - at) : w >> (at - 7);

	return kvp_lds_u32(lut + ((offset & ((1u << bits) - 1) << 7) | kvp_tid() % 32 * 4));
}

/* `n` bytes of 4-bit codes give n pairs. */
KVP_DEV void nibbles(uint32_t lut, const uint32_t *w, const int n, uint32_t *out)
{
	KVP_UNROLL
	for (int i = 0; i < n; i++)
		out[i] = look_up_field(lut, w[i / 4], 8 * (i % 4), 8);
}

/* `n` bytes of 2-bit codes give 2 n pairs. */
KVP_DEV void crumbs(uint32_t lut, const uint32_t *w, const int n, uint32_t *out)
{
	KVP_UNROLL
	for (int i = 0; i < 2 * n; i++)
		out[i] = look_up_field(lut, w[i / 8], 4 * (i % 8), 4);
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

/*
 * `n` bytes of 3-bit codes at `row` become twice as many of 4-bit fields: words of the first and the
 * third quarter of the channels, then words of the second and the fourth. `first` is the lane's
 * first channel of the first quarter; third bits lie behind the others, a bit a channel.
 */
KVP_DEV void spread_thirds(const int D, uint32_t row, uint32_t first, const int n, uint32_t *out)
{
	uint32_t w[2], third[4];

	if (n == 2)
		w[0] = kvp_lds_u16(row + first);
	else
		load_words(row + first, n / 4, w);
	load_words(row + D / 4, D / 32, third);
	KVP_UNROLL
	for (int i = 0; i < (n + 3) / 4; i++) {
		KVP_UNROLL
		for (int half = 0; half < 2; half++) {
			const int lo = D / 4 * half, hi = D / 4 * (half + 2);
			/* four bits, to bit 2 and to bit 6 of each byte */
			uint32_t a = third[lo / 32] >> (lo % 32 + first) >> 4 * i & 15u;
			uint32_t b = third[hi / 32] >> (hi % 32 + first) >> 4 * i & 15u;

			out[(n + 3) / 4 * half + i] = (w[i] >> 2 * half & 0x33333333u) |
						      (a * 0x00810204u & 0x04040404u) |
						      (b * 0x08102040u & 0x40404040u);
		}
	}
}

/* 3-bit codes of n bytes, spread: pairs of one half, then of the other, alternate. */
KVP_DEV void thirds(uint32_t lut, const uint32_t *spread, const int n, uint32_t *out)
{
	KVP_UNROLL
	for (int i = 0; i < n; i++) {
		KVP_UNROLL
		for (int half = 0; half < 2; half++)
			out[2 * i + half] = look_up_field(
				lut, spread[(n + 3) / 4 * half + i / 4], 8 * (i % 4), 8);
	}
}

/* The lane's channels of one token of K, in the order of k_channel(). */
KVP_DEV void k_pairs(
	const int KK, const int D, uint32_t row, uint32_t q, uint32_t lut, uint32_t *out)
{
	uint32_t w[4];

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
	} else if (ak_bits(KK) == 3) {
		spread_thirds(D, row, D / 16 * q, D / 16, w);
		thirds(lut, w, D / 16, out);
	} else {
		load_words(row + D / 16 * q, D / 64, w);
		crumbs(lut, w, D / 16, out);
	}
}

/*
 * Where byte `at` of a token's codes of V lies in its tile. A lane reads 8 bytes at 8 g of rows
 * 2 q, .. of 64 bytes: what lies in one line of 128 bytes is permuted by the number of the line, so
 * that a half of the warp hits all banks.
 */
KVP_DEV uint32_t v_place(const int VK, const int D, uint32_t token, uint32_t at)
{
	uint32_t line = token / 2, piece = token % 2 * 4 + at / 16;

	if (ak_v_stride(VK, D) != 64)
		return token * ak_v_stride(VK, D) + at;
	return 128 * line + 16 * (piece ^ line % 4 * 2) + at % 16;
}

/* Are values looked up by pairs of tokens? Else by pairs of channels. */
KVP_DEV int v_by_tokens(const int VK)
{
	return ak_tq(VK);
}

/* Codes of two tokens: those of pair i of one half of its channels become field i. */
KVP_DEV uint32_t token_codes(const int VK, uint32_t even, uint32_t odd, const int half)
{
	const uint32_t bits = ak_bits(VK) == 2 ? 2 : 4;
	const uint32_t mask = bits == 4 ? 0x0f0f0f0fu : 0x33333333u;

	return half ? (even >> bits & mask) | (odd & ~mask) : (even & mask) | (odd << bits & ~mask);
}

/* The lane's channels of tokens 2 q and 2 q + 1 (8 more if `second`), as v_by_tokens(): pairs of
 * tokens, of the channels of row g of each product, then of row g + 8. */
KVP_DEV void v_token_pairs(const int VK, const int D, uint32_t codes, uint32_t lut,
	const int second, uint32_t lo[8], uint32_t hi[8])
{
	const uint32_t bits = ak_bits(VK) == 2 ? 4 : 8, bytes = ak_row(VK, D) / 8;
	uint32_t g = kvp_tid() % 32 / 4, q = kvp_tid() % 4, even[4], odd[4];
	uint32_t token = 2 * q + 8 * second;
	uint32_t at = codes + v_place(VK, D, token, bytes * g);
	uint32_t next = codes + v_place(VK, D, token + 1, bytes * g);

	if (ak_bits(VK) == 3) {
		spread_thirds(D, codes + token * ak_v_stride(VK, D), D / 32 * g, D / 32, even);
		spread_thirds(D, codes + (token + 1) * ak_v_stride(VK, D), D / 32 * g, D / 32, odd);
	} else if (bytes == 2) {
		even[0] = kvp_lds_u16(at);
		odd[0] = kvp_lds_u16(next);
	} else {
		load_words(at, bytes / 4, even);
		load_words(next, bytes / 4, odd);
	}
	KVP_UNROLL
	for (int i = 0; i < D / 16; i++) {
		/* of 3 bits, pairs are in turn of one half and of the other */
		const uint32_t word = ak_bits(VK) == 3 ? i % 2 : i * bits / 32;
		const uint32_t field = ak_bits(VK) == 3 ? i / 2 * 8 : i * bits % 32;

		lo[i] = look_up_field(lut, token_codes(VK, even[word], odd[word], 0), field, bits);
		hi[i] = look_up_field(lut, token_codes(VK, even[word], odd[word], 1), field, bits);
	}
}

/* The lane's channels of one token of V: pair i is the rows g and g + 8 of product i. */
KVP_DEV void v_pairs(const int VK, const int D, uint32_t codes, uint32_t token, uint32_t g,
	uint32_t lut, uint32_t *out)
{
	uint32_t w[4], row = codes + token * ak_v_stride(VK, D);

	if (ak_native(VK)) {
		KVP_UNROLL
		for (int i = 0; i < D / 64; i++)
			load_words(row + 16 * (8 * i + g), 4, out + 4 * i);
	} else if (ak_byte(VK)) {
		load_words(codes + v_place(VK, D, token, D / 8 * g), D / 32, w);
		KVP_UNROLL
		for (int k = 0; k < D / 32; k++)
			byte_word(VK, w[k], out + 2 * k);
	} else if (ak_bits(VK) == 4) {
		load_words(codes + v_place(VK, D, token, D / 16 * g), D / 64, w);
		nibbles(lut, w, D / 16, out);
	} else if (ak_bits(VK) == 3) {
		spread_thirds(D, row, D / 32 * g, D / 32, w);
		thirds(lut, w, D / 32, out);
	} else {
		w[0] = D == 128 ? kvp_lds_u32(row + 4 * g) : kvp_lds_u16(row + 2 * g);
		crumbs(lut, w, D / 32, out);
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
			const uint32_t half = ak_bits(KK) == 3 ? D / 2 : D / 4;
			uint32_t at = base + 2 * (D / 16 * q + i + m * (3 * D / 4 - half));
			struct kvp_v2 lo = kvp_lds_v2(at), hi = kvp_lds_v2(at + 2 * half);

			KVP_UNROLL
			for (int k = 0; k < 4; k++)
				out[2 * (i + k) + m] =
					kvp_prmt(lo.w[k / 2], hi.w[k / 2], k % 2 ? 0x7632 : 0x5410);
		}
	}
}

/* ---- before the first step ---- */

/* Pairs of numbers for pairs of codes; column `lane` of entry e is word 32 e + lane. */
KVP_DEV void fill_lut(
	const int kind, uint32_t base, const struct kvp_cuda_codec *c, const uint32_t warps)
{
	uint32_t bits = ak_bits(kind);

	for (uint32_t e = kvp_tid() / 32; e < ak_lut_entries(kind); e += warps) {
		uint32_t lo = e & 15u, hi = e >> 4;
		float a, b;

		if (bits == 2) {
			lo = e & 3u;
			hi = e >> 2;
		} else if (bits == 3) {
			lo = e & 7u; /* bit 3 is never set */
		}
		a = ak_tq(kind) ? c->cent[lo] : (float)lo;
		b = ak_tq(kind) ? c->cent[hi] : (float)hi;
		kvp_sts_u32(base + 128 * e + kvp_tid() % 32 * 4, kvp_pack_f16(a, b));
	}
}

/* The lane's channels of a query, in the order of k_channel(). */
KVP_DEV void query_pairs(
	const int KK, const int D, const uint8_t *from, uint32_t dtype, float x[2 * PAIRS(128)])
{
	KVP_UNROLL
	for (int i = 0; i < D / 4; i++)
		x[i] = load_raw(from, dtype, k_channel(KK, D, kvp_tid() % 4, i / 2, i % 2));
}

/*
 * B fragments of the queries: query g, word i is pair i of the lane's channels. They are numbers
 * below 2 in the direction of the scale's sign, and the lanes of query g get its factor; bf16 is in
 * two parts.
 */
KVP_DEV float load_q(const struct kvp_cuda_attend *p, const int KK, const int D,
	const struct job *j, uint32_t *hi, uint32_t *lo)
{
	uint32_t row = j->row0 + kvp_tid() % 32 / 4;
	const uint8_t *from = query_row(p, j->head, row < j->rows ? row : j->rows - 1);
	float x[2 * PAIRS(128)], max = 0.0f, unit;
	int32_t exp;

	if (p->q_dtype == KVP_DTYPE_F32)
		query_pairs(KK, D, from, KVP_DTYPE_F32, x);
	else if (p->q_dtype == KVP_DTYPE_F16)
		query_pairs(KK, D, from, KVP_DTYPE_F16, x);
	else
		query_pairs(KK, D, from, KVP_DTYPE_BF16, x);
	KVP_UNROLL
	for (int i = 0; i < D / 4; i++)
		max = kvp_max(max, x[i] < 0.0f ? -x[i] : x[i]);
	max = kvp_max(max, kvp_shfl_xor_f32(max, 1));
	max = kvp_max(max, kvp_shfl_xor_f32(max, 2));
	exp = (int32_t)(kvp_f32_bits(max) >> 23) - 127;
	exp = exp < -100 ? -100 : exp > 100 ? 100 : exp;
	unit = p->scale < 0.0f ? -pow2i(-exp) : pow2i(-exp);
	KVP_UNROLL
	for (int i = 0; i < D / 8; i++) {
		float a = x[2 * i] * unit, b = x[2 * i + 1] * unit;

		if (KK == AK_BF16) {
			hi[i] = kvp_pack_bf16(a, b);
			lo[i] = kvp_pack_bf16(a - kvp_bits_f32(hi[i] << 16),
				b - kvp_bits_f32(hi[i] & 0xffff0000u));
		} else {
			hi[i] = kvp_pack_f16(a, b);
		}
	}
	return pow2i(exp) * (p->scale < 0.0f ? -p->scale : p->scale) * LOG2E;
}

/* `factor` is that of query g. */
KVP_DEV void init_running(const int D, float factor, struct running *run)
{
	uint32_t q = kvp_tid() % 4;

	KVP_UNROLL
	for (int i = 0; i < D / 16; i++) {
		KVP_UNROLL
		for (int k = 0; k < 4; k++)
			run->sum[i][k] = 0.0f;
	}
	run->shift = -100;
	KVP_UNROLL
	for (int r = 0; r < 2; r++) {
		run->max[r] = NEG_INF;
		run->weight[r] = 0.0f;
		run->factor[r] = kvp_bits_f32(kvp_shfl_u32(kvp_f32_bits(factor), 4 * (2 * q + r)));
	}
}

/* ---- copying a step ---- */

/* The codes of a tile, of which the first `valid` bytes are there and the rest become zeros. */
KVP_DEV void copy_codes(
	const uint32_t row, const uint32_t stride, uint32_t to, const uint8_t *from, uint32_t valid)
{
	const uint32_t down = stride == row ? 512 : 512 / row * stride; /* per 32 pieces */
	uint32_t lane = kvp_tid() % 32;

	to += stride == row ? 16 * lane : 16 * lane / row * stride + 16 * lane % row;
	from += 16 * lane;
	KVP_UNROLL
	for (uint32_t i = 0; i < (row + 31) / 32; i++) {
		uint32_t at = 16 * (lane + 32 * i), left = valid > at ? valid - at : 0;

		if (lane + 32 * i < row)
			kvp_cp_async16(to + down * i, from + 512 * i, left < 16 ? left : 16);
	}
}

/* The same for V's rows of 64 bytes: see v_place(). */
KVP_DEV void copy_permuted(uint32_t to, const uint8_t *from, uint32_t valid)
{
	uint32_t lane = kvp_tid() % 32;

	to += 128 * (lane / 8) + 16 * (lane % 8 ^ lane / 8 * 2);
	from += 16 * lane;
	KVP_UNROLL
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t at = 16 * (lane + 32 * i), left = valid > at ? valid - at : 0;

		kvp_cp_async16(to + 512 * i, from + 512 * i, left < 16 ? left : 16);
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

/* Scalars of a tile and, behind them, the header's part with the exponent. */
KVP_DEV void copy_scalars(const int kind, const int D, int is_k, const struct kvp_cuda_codec *c,
	const uint8_t *plane, uint32_t head, uint32_t token, uint32_t valid, uint32_t to,
	uint32_t header)
{
	uint32_t at = head * c->tokens + token, lane = kvp_tid() % 32;

	if (!ak_affine(kind)) {
		uint32_t left = lane == 2 ? 16 : valid > 8 * lane ? 2 * (valid - 8 * lane) : 0;

		/* two pieces of scalars; the header follows them */
		if (lane < 3)
			kvp_cp_async16(to + 16 * lane,
				plane + (lane == 2 ? 16 : c->scale + 2 * at + 16 * lane),
				left < 16 ? left : 16);
		return;
	}
	if (lane == 0)
		kvp_cp_async16(header, plane + 16, 16);
	if (is_k) {
		uint32_t group = (head * c->groups + token / c->group) * D;

		copy_flat(to, plane + c->scale + 2 * group, 2 * D, 2 * D);
		copy_flat(to + 2 * D, plane + c->minimum + 2 * group, 2 * D, 2 * D);
	} else {
		uint32_t bytes = 2 * ATTEND_TILE * c->groups;

		copy_flat(to, plane + c->scale + 2 * at * c->groups, bytes, 2 * valid * c->groups);
		copy_flat(to + bytes, plane + c->minimum + 2 * at * c->groups, bytes,
			2 * valid * c->groups);
	}
}

/* One plane's part of a tile, of which the first `valid` tokens are there. */
KVP_DEV void copy_plane(const int kind, const int D, int is_k, const struct kvp_cuda_codec *c,
	const uint8_t *plane, uint32_t head, uint32_t token, uint32_t valid, uint32_t codes,
	uint32_t scalars, uint32_t header)
{
	const uint32_t row = ak_row(kind, D);
	const uint32_t stride = is_k ? ak_k_stride(kind, D) : ak_v_stride(kind, D);
	const uint8_t *from = plane + c->codes + (uint64_t)(head * c->tokens + token) * row;

	if (is_k || stride != 64)
		copy_codes(row, stride, codes, from, valid * row);
	else
		copy_permuted(codes, from, valid * row);
	if (!ak_native(kind))
		copy_scalars(kind, D, is_k, c, plane, head, token, valid, scalars, header);
}

KVP_DEV void copy_tile(const struct kvp_cuda_attend *p, const int KK, const int VK, const int D,
	const struct attend_smem *s, uint64_t base, uint32_t head, uint32_t token, uint32_t valid,
	uint32_t to)
{
	copy_plane(KK, D, 1, &p->k, at_const(base, (int64_t)p->k_offset), head, token, valid, to,
		to + s->k_scalars, to + s->k_header);
	copy_plane(VK, D, 0, &p->v, at_const(base, (int64_t)p->v_offset), head, token, valid,
		to + s->v_codes, to + s->v_scalars, to + s->v_header);
}

/* Addresses of the step's pages. A tile that the sequence does not have repeats the one before. */
KVP_DEV void cursor_look(const struct kvp_cuda_attend *p, const int T, const struct job *j,
	uint32_t step, struct cursor *c)
{
	uint64_t row = (uint64_t)kvp_block_z() * p->table_stride + c->page;
	uint32_t in_page = p->k.tokens / ATTEND_TILE;

	if (step >= j->tile_end)
		return;
	c->base[0] = kvp_ldg_u64(at_const(p->tables, (int64_t)(row * 8)));
	c->base[1] = c->base[0];
	if (T == 2 && c->tile + 1 == in_page && (2 * step + 1) * ATTEND_TILE < j->tokens)
		c->base[1] = kvp_ldg_u64(at_const(p->tables, (int64_t)(row * 8 + 8)));
}

KVP_DEV struct cursor cursor_of(
	const struct kvp_cuda_attend *p, const int T, const uint32_t warps, const struct job *j)
{
	uint32_t in_page = p->k.tokens / ATTEND_TILE;
	uint32_t step = j->tile + kvp_tid() / 32;
	struct cursor c;

	c.page = T * step / in_page;
	c.tile = T * step % in_page;
	c.pages = T * warps / in_page;
	c.tiles = T * warps % in_page;
	c.base[0] = 0;
	c.base[1] = 0;
	cursor_look(p, T, j, step, &c);
	return c;
}

/* Starts copying a step, the cursor's, and moves that on; commits a group even if there is no step, so
 * that groups can be counted. */
KVP_DEV void start_step(const struct kvp_cuda_attend *p, const int KK, const int VK, const int D,
	const struct job *j, const struct attend_smem *s, uint32_t step, struct cursor *c,
	uint32_t stage)
{
	const int T = ak_tiles(KK, VK);
	uint32_t in_page = p->k.tokens / ATTEND_TILE;

	if (step < j->tile_end) {
		KVP_UNROLL
		for (int i = 0; i < T; i++) {
			uint32_t first = (T * step + i) * ATTEND_TILE;
			uint32_t tile = c->tile + i < in_page ? c->tile + i : 0;
			uint32_t to = stage + i * s->tile;

			/* twice the same, the first time without bounds: nearly always */
			if (first + ATTEND_TILE <= j->tokens)
				copy_tile(p, KK, VK, D, s, c->base[i], j->head, tile * ATTEND_TILE,
					ATTEND_TILE, to);
			else
				copy_tile(p, KK, VK, D, s, c->base[i], j->head, tile * ATTEND_TILE,
					first < j->tokens ? j->tokens - first : 0, to);
		}
		c->page += c->pages;
		c->tile += c->tiles;
		if (c->tile >= in_page) {
			c->tile -= in_page;
			c->page++;
		}
		cursor_look(p, T, j, step + s->warps, c);
	}
	kvp_cp_async_commit();
}

/* ---- one step ---- */

KVP_DEV float exponent_factor(uint32_t header)
{
	return pow2i((int32_t)kvp_lds_u32(header + 8));
}

/* Products of 16 tokens and 8 queries. */
KVP_DEV void tile_scores(const int KK, const int D, uint32_t tile, const struct attend_smem *s,
	const uint32_t *q_hi, const uint32_t *q_lo, float score[4])
{
	uint32_t lane = kvp_tid() % 32, g = lane / 4, q = lane % 4;
	uint32_t scale[PAIRS(128)], min[PAIRS(128)], k[2][PAIRS(128)];

	if (ak_affine(KK)) {
		k_scalar_pairs(KK, D, tile + s->k_scalars, q, scale);
		k_scalar_pairs(KK, D, tile + s->k_scalars + 2 * D, q, min);
	}
	KVP_UNROLL
	for (int h = 0; h < 2; h++) {
		k_pairs(KK, D, tile + (8 * h + g) * ak_k_stride(KK, D), q, s->k_lut, k[h]);
		KVP_UNROLL
		for (int i = 0; ak_affine(KK) && i < PAIRS(D); i++)
			k[h][i] = kvp_h2_fma(k[h][i], scale[i], min[i]);
	}
	KVP_UNROLL
	for (int i = 0; i < 4; i++)
		score[i] = 0.0f;
	KVP_UNROLL
	for (int i = 0; i < D / 16; i++) {
		uint32_t a[4] = { k[0][2 * i], k[1][2 * i], k[0][2 * i + 1], k[1][2 * i + 1] };

		if (KK == AK_BF16) {
			kvp_mma_bf16(score, a, q_hi + 2 * i);
			kvp_mma_bf16(score, a, q_lo + 2 * i);
		} else {
			kvp_mma_f16(score, a, q_hi + 2 * i);
		}
	}
}

/* What multiplies tokens g and g + 8 of each tile. Each lane makes a number of one token, and they
 * are dealt out. */
KVP_DEV void step_scalars(const int kind, const int T, uint32_t scalars, uint32_t header,
	uint32_t tile, float out[ATTEND_TILES_MAX][2])
{
	uint32_t lane = kvp_tid() % 32, of = T == 2 ? lane / 16 * tile : 0, mine;
	float factor;

	if (ak_native(kind))
		return;
	factor = exponent_factor(header + of);
	if (!ak_affine(kind)) {
		uint32_t w = kvp_lds_u16(scalars + of + lane % 16 * 2);

		factor = clamp_to(scalar_f16(w) * factor, F32_LARGEST);
	}
	mine = kvp_f32_bits(factor);
	KVP_UNROLL
	for (int t = 0; t < T; t++) {
		KVP_UNROLL
		for (int h = 0; h < 2; h++)
			out[t][h] = kvp_bits_f32(kvp_shfl_u32(mine, 16 * t + 8 * h + lane / 4));
	}
}

/* Scores of tokens that some row does not see, or with a mask: in steps that are few or slow anyway. */
KVP_DEV void mask_scores(const struct kvp_cuda_attend *p, const int T, const struct job *j,
	const float factor[2], uint32_t token, float score[ATTEND_TILES_MAX][4])
{
	token += kvp_tid() % 32 / 4;
	KVP_UNROLL
	for (int r = 0; r < 2; r++) {
		uint32_t row = j->row0 + kvp_tid() % 4 * 2 + r, first = 0, end = 0;
		const uint8_t *mask = mask_row(p, row / p->group);

		if (row < j->rows)
			visible(p, j->tokens, row / p->group, &first, &end);
		KVP_UNROLL
		for (int i = 0; i < 2 * T; i++) {
			float *v = &score[i / 2][i % 2 * 2 + r];
			uint32_t t = token + 8 * i;

			*v = t >= first && t < end ? masked(mask, t, *v * factor[r]) : NEG_INF;
		}
	}
}

/* The larger one of all lanes with the same queries. */
KVP_DEV float max_of_tokens(float v)
{
	v = kvp_max(v, kvp_shfl_xor_f32(v, 4));
	v = kvp_max(v, kvp_shfl_xor_f32(v, 8));
	return kvp_max(v, kvp_shfl_xor_f32(v, 16));
}

/* A NaN is no maximum; it comes through the weights. */
KVP_DEV float base_of(float max)
{
	return max == NEG_INF ? 0.0f : max;
}

/* New maxima; what was summed before counts for less. */
KVP_DEV void raise_max(const int D, struct running *run, const float max[2])
{
	KVP_UNROLL
	for (int r = 0; r < 2; r++) {
		float to = kvp_max(run->max[r], max_of_tokens(max[r]));
		float fade = to == run->max[r] ? 1.0f : kvp_exp2(run->max[r] - to);

		run->max[r] = to;
		run->weight[r] *= fade;
		KVP_UNROLL
		for (int i = 0; i < D / 16; i++) {
			run->sum[i][r] *= fade;
			run->sum[i][2 + r] *= fade;
		}
	}
}

/* Products, times their tokens' scales, become weights; maximum and weights move on. `edge`: some
 * row does not see all tokens, or there is a mask. */
KVP_DEV void softmax_step(const struct kvp_cuda_attend *p, const int T, const int D,
	const struct job *j, struct running *run, int edge, uint32_t token,
	float score[ATTEND_TILES_MAX][4])
{
	float factor[2] = { run->factor[0], run->factor[1] }, max[2];

	if (edge) {
		mask_scores(p, T, j, factor, token, score);
		factor[0] = 1.0f;
		factor[1] = 1.0f;
	}
	KVP_UNROLL
	for (int r = 0; r < 2; r++) {
		max[r] = kvp_max(score[0][r], score[0][2 + r]);
		if (T == 2)
			max[r] = kvp_max(max[r], kvp_max(score[1][r], score[1][2 + r]));
		max[r] *= factor[r];
	}
	/* after the first few steps the maximum hardly ever moves */
	if (kvp_ballot(max[0] > run->max[0] + SLACK || max[1] > run->max[1] + SLACK))
		raise_max(D, run, max);
	KVP_UNROLL
	for (int i = 0; i < 4 * T; i++) {
		float w = kvp_exp2(
			kvp_fma(score[i / 4][i % 4], factor[i % 2], -base_of(run->max[i % 2])));

		run->weight[i % 2] += w;
		score[i / 4][i % 4] = w;
	}
}

/* The sums are rescaled only where the largest V scale that these rows have met has outgrown their
 * unit. What has no weight is not met. */
KVP_DEV void grow_shift(
	const int T, const int D, struct running *run, float vs[ATTEND_TILES_MAX][2])
{
	float max = kvp_max(kvp_max(0.0f, vs[0][0]), vs[0][1]);
	int32_t shift;

	if (T == 2)
		max = kvp_max(max, kvp_max(vs[1][0], vs[1][1]));
	/* weights times scales then stay below 2^(8 + SLACK), well inside fp16 */
	shift = (int32_t)(kvp_f32_bits(max) >> 23) - 127 + 1 - 8;
	if (kvp_ballot(shift > run->shift) == 0)
		return;
	max = max_of_tokens(max);
	shift = (int32_t)(kvp_f32_bits(max) >> 23) - 127 + 1 - 8;
	KVP_UNROLL
	for (int i = 0; i < D / 16; i++) {
		KVP_UNROLL
		for (int k = 0; k < 4; k++)
			run->sum[i][k] *=
				pow2i(run->shift - shift < -126 ? -126 : run->shift - shift);
	}
	run->shift = shift;
}

/* A bit for each token of a tile to which some row gives weight: 4 for each, tokens 0 to 7 in the
 * first word. The V of others is no number perhaps, and 0 times that is none either. */
KVP_DEV void seen_tokens(const float w[4], uint32_t seen[2])
{
	seen[0] = kvp_ballot(w[0] != 0.0f || w[1] != 0.0f);
	seen[1] = kvp_ballot(w[2] != 0.0f || w[3] != 0.0f);
}

/* Of tokens 2 q and 2 q + 1: all bits of the halves of a pair that count. */
KVP_DEV uint32_t seen_pair(uint32_t seen)
{
	uint32_t mine = seen >> (kvp_tid() % 4 * 8);

	return (mine & 15u ? 0xffffu : 0) | (mine & 0xf0u ? 0xffff0000u : 0);
}

/* The weights of a tile as B fragments. A weight of 0 stays 0 whatever lies in its token's scale. */
KVP_DEV void weight_fragments(const int VK, const struct running *run, const float vs[2],
	const float w[4], uint32_t hi[2], uint32_t lo[2])
{
	float unit = pow2i(-run->shift);

	KVP_UNROLL
	for (int h = 0; h < 2; h++) {
		float a = w[2 * h], b = w[2 * h + 1];

		if (VK == AK_BF16) {
			uint32_t x = kvp_pack_bf16(a, b);

			hi[h] = kvp_transpose(x);
			lo[h] = kvp_transpose(kvp_pack_bf16(
				a - kvp_bits_f32(x << 16), b - kvp_bits_f32(x & 0xffff0000u)));
			continue;
		}
		a *= VK == AK_F16 ? 1.0f : vs[h] * unit;
		b *= VK == AK_F16 ? 1.0f : vs[h] * unit;
		hi[h] = kvp_transpose(kvp_pack_f16(a, b));
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

/* V of tokens 2 q, 2 q + 1 (8 more if `second`) as pairs of tokens: of the channels of row g of each
 * product, then of row g + 8. */
KVP_DEV void value_pairs(const int VK, const int D, const struct kvp_cuda_codec *c, uint32_t tile,
	const struct attend_smem *s, const int second, uint32_t lo[8], uint32_t hi[8])
{
	uint32_t g = kvp_tid() % 32 / 4, token = kvp_tid() % 4 * 2 + 8 * second, v[2][8];

	if (v_by_tokens(VK)) {
		v_token_pairs(VK, D, tile + s->v_codes, s->v_lut, second, lo, hi);
		return;
	}
	KVP_UNROLL
	for (int i = 0; i < 2; i++) {
		v_pairs(VK, D, tile + s->v_codes, token + i, g, s->v_lut, v[i]);
		if (ak_affine(VK))
			affine_pairs(VK, D, c, tile + s->v_scalars, token + i, v[i]);
	}
	KVP_UNROLL
	for (int k = 0; k < D / 16; k++) {
		lo[k] = kvp_prmt(v[0][k], v[1][k], 0x5410);
		hi[k] = kvp_prmt(v[0][k], v[1][k], 0x7632);
	}
}

/* Adds a tile's values, weighted. `seen` counts if some row may not see all tokens. */
KVP_DEV void tile_values(const int VK, const int D, const struct kvp_cuda_codec *c, uint32_t tile,
	const struct attend_smem *s, const uint32_t *w_hi, const uint32_t *w_lo, int edge,
	const uint32_t seen[2], struct running *run)
{
	uint32_t v[2][2][8]; /* [tokens + 8][rows + 8][product] */

	KVP_UNROLL
	for (int h = 0; h < 2; h++) {
		value_pairs(VK, D, c, tile, s, h, v[h][0], v[h][1]);
		if (!edge)
			continue;
		KVP_UNROLL
		for (int k = 0; k < D / 16; k++) {
			v[h][0][k] &= seen_pair(seen[h]);
			v[h][1][k] &= seen_pair(seen[h]);
		}
	}
	KVP_UNROLL
	for (int k = 0; k < D / 16; k++) {
		uint32_t a[4] = { v[0][0][k], v[0][1][k], v[1][0][k], v[1][1][k] };

		if (VK == AK_BF16) {
			kvp_mma_bf16(run->sum[k], a, w_hi);
			kvp_mma_bf16(run->sum[k], a, w_lo);
		} else {
			kvp_mma_f16(run->sum[k], a, w_hi);
		}
	}
}

KVP_DEV void compute_step(const struct kvp_cuda_attend *p, const int KK, const int VK, const int D,
	const struct job *j, const struct attend_smem *s, uint32_t stage, const uint32_t *q_hi,
	const uint32_t *q_lo, int edge, uint32_t token, struct running *run)
{
	const int T = ak_tiles(KK, VK);
	uint32_t seen[2] = { ~0u, ~0u }, w_hi[2], w_lo[2], g = kvp_tid() % 32 / 4;
	float score[ATTEND_TILES_MAX][4], ks[ATTEND_TILES_MAX][2], vs[ATTEND_TILES_MAX][2];

	step_scalars(KK, T, stage + s->k_scalars, stage + s->k_header, s->tile, ks);
	step_scalars(VK, T, stage + s->v_scalars, stage + s->v_header, s->tile, vs);
	KVP_UNROLL
	for (int t = 0; t < T; t++) {
		tile_scores(KK, D, stage + t * s->tile, s, q_hi, q_lo, score[t]);
		KVP_UNROLL
		for (int i = 0; !ak_native(KK) && i < 4; i++)
			score[t][i] *= ks[t][i / 2];
	}
	softmax_step(p, T, D, j, run, edge, token, score);
	KVP_UNROLL
	for (int t = 0; edge && !ak_native(VK) && t < T; t++) {
		seen_tokens(score[t], seen);
		vs[t][0] = seen[0] >> 4 * g & 15u ? vs[t][0] : 0.0f;
		vs[t][1] = seen[1] >> 4 * g & 15u ? vs[t][1] : 0.0f;
	}
	if (!ak_native(VK))
		grow_shift(T, D, run, vs);
	KVP_UNROLL
	for (int t = 0; t < T; t++) {
		if (edge)
			seen_tokens(score[t], seen);
		weight_fragments(VK, run, vs[t], score[t], w_hi, w_lo);
		tile_values(VK, D, &p->v, stage + t * s->tile, s, w_hi, w_lo, edge, seen, run);
	}
}

KVP_DEV void run_steps(const struct kvp_cuda_attend *p, const int KK, const int VK, const int D,
	const struct job *j, const struct attend_smem *s, const uint32_t *q_hi,
	const uint32_t *q_lo, uint32_t ring, struct cursor *next, struct running *run)
{
	const uint32_t tokens = ATTEND_TILE * ak_tiles(KK, VK);
	uint32_t last = (j->row0 + ATTEND_ROWS < j->rows ? j->row0 + ATTEND_ROWS : j->rows) - 1;
	uint32_t first, end, other, slot = 0;

	/* what all rows see: the later ones begin later, the earlier ones end earlier */
	visible(p, j->tokens, last / p->group, &first, &other);
	visible(p, j->tokens, j->row0 / p->group, &other, &end);
	for (uint32_t step = j->tile + kvp_tid() / 32; step < j->tile_end; step += s->warps) {
		uint32_t stage = ring + slot * s->stage, token = step * tokens;

		if (s->stage_count == 3)
			kvp_cp_async_wait(1);
		else
			kvp_cp_async_wait(0);
		/* all lanes' copies have landed, and all lanes are done with the slot before */
		kvp_syncwarp();
		start_step(p, KK, VK, D, j, s, step + (s->stage_count - 1) * s->warps, next,
			ring + (slot ? slot - 1 : s->stage_count - 1) * s->stage);
		slot = slot + 1 == s->stage_count ? 0 : slot + 1;
		compute_step(p, KK, VK, D, j, s, stage, q_hi, q_lo,
			p->mask || token < first || token + tokens > end, token, run);
	}
	kvp_cp_async_wait(0);
}

/* ---- after the last step ---- */

/* Each warp lays down its sums as [row][channel], then maximum and weight of each row. */
KVP_DEV void write_sums(const int VK, const int D, struct running *run)
{
	uint32_t lane = kvp_tid() % 32, warp = kvp_tid() / 32, g = lane / 4, q = lane % 4;
	uint32_t base = warp * ATTEND_ROWS * (D + 2) * 4;
	float unit = VK == AK_F16 || VK == AK_BF16 ? 1.0f : pow2i(run->shift);

	KVP_UNROLL
	for (int r = 0; r < 2; r++) {
		uint32_t row = 2 * q + r;

		KVP_UNROLL
		for (uint32_t m = 4; m < 32; m *= 2)
			run->weight[r] += kvp_shfl_xor_f32(run->weight[r], m);
		KVP_UNROLL
		for (int k = 0; k < D / 8; k++)
			kvp_sts_f32(base + 4 * (row * D + v_channel(VK, D, g, k)),
				run->sum[k / 2][k % 2 * 2 + r] * unit);
		if (g == 0) {
			/* a query that sees a NaN shall have it */
			float max = run->weight[r] == run->weight[r] ? run->max[r] : run->weight[r];

			kvp_sts_f32(base + 4 * (ATTEND_ROWS * D + row), max);
			kvp_sts_f32(base + 4 * (ATTEND_ROWS * (D + 1) + row), run->weight[r]);
		}
	}
}

/* Row r of all warps becomes one partial result in global memory. */
KVP_DEV void reduce_row(const int D, const uint32_t warps, uint32_t r, uint8_t *out)
{
	uint32_t lane = kvp_tid() % 32;
	float x[ROW_E_MAX], max = NEG_INF, weight = 0.0f;

	KVP_UNROLL
	for (int e = 0; e < D / 32; e++)
		x[e] = 0.0f;
	for (uint32_t w = 0; w < warps; w++) {
		float m = kvp_lds_f32(4 * (w * ATTEND_ROWS * (D + 2) + ATTEND_ROWS * D + r));

		max = max_or_nan(max, m);
	}
	for (uint32_t w = 0; w < warps && max != NEG_INF; w++) {
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

KVP_DEV void attend(const struct kvp_cuda_attend *p, const int KK, const int VK, const int D)
{
	const struct attend_smem s = attend_smem_of(KK, VK, D);
	const int T = ak_tiles(KK, VK);
	struct job j = find_job(p, ATTEND_ROWS, ATTEND_TILE * T);
	struct cursor next = cursor_of(p, T, s.warps, &j);
	uint32_t ring = s.stages + kvp_tid() / 32 * s.stage_count * s.stage;
	uint32_t q_hi[PAIRS(128)], q_lo[PAIRS(128)];
	struct running run;

	for (uint32_t i = 0; i + 1 < s.stage_count; i++)
		start_step(p, KK, VK, D, &j, &s, j.tile + kvp_tid() / 32 + i * s.warps, &next,
			ring + i * s.stage);
	fill_lut(KK, s.k_lut, &p->k, s.warps);
	if (!ak_lut_shared(KK, VK))
		fill_lut(VK, s.v_lut, &p->v, s.warps);
	init_running(D, load_q(p, KK, D, &j, q_hi, q_lo), &run);
	kvp_sync();
	run_steps(p, KK, VK, D, &j, &s, q_hi, q_lo, ring, &next, &run);
	kvp_sync();
	write_sums(VK, D, &run);
	kvp_sync();
	for (uint32_t r = kvp_tid() / 32; r < ATTEND_ROWS && j.row0 + r < j.rows; r += s.warps)
		reduce_row(D, s.warps, r, partial_row(p, &j, j.row0 + r));
}

#define ATTEND_DIM(name, KK, VK, D)                                                                \
	KVP_KERNEL(name, kvp_cuda_attend, 32 * attend_smem_of(KK, VK, D).warps, ak_blocks(KK, VK)) \
	{                                                                                          \
		attend(&p, KK, VK, D);                                                             \
	}
#define ATTEND(k, v, KK, VK)                                 \
	ATTEND_DIM(kvp_cu_attend_##k##_##v##_64, KK, VK, 64) \
	ATTEND_DIM(kvp_cu_attend_##k##_##v##_128, KK, VK, 128)

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
