/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders and decoders; docs/formats.md in CUDA. One warp per row unless said otherwise. */
#include "kernels/cuda/plane.h"

#define WARPS   8 /* per block */
#define THREADS (32 * WARPS)

KVP_DEV uint64_t raw_base(const struct kvp_cuda_rows *p, uint32_t page)
{
	if (p->raws)
		return kvp_ldg_u64(at_const(p->raws, (int64_t)page * 8));
	return p->raw + (uint64_t)((int64_t)page * p->raw_page_stride);
}

KVP_DEV uint8_t *plane_of(const struct kvp_cuda_rows *p, uint32_t page)
{
	return at(kvp_ldg_u64(at_const(p->pages, (int64_t)page * 8)), (int64_t)p->page_offset);
}

/* The row of this warp; 0: there is none. The same answer in all lanes. */
KVP_DEV int find_row(const struct kvp_cuda_rows *p, uint32_t warps, struct row_at *ret)
{
	uint32_t i = kvp_block_x() * warps + kvp_tid() / 32, page = kvp_block_y();
	uint64_t raw;

	if (p->slots) {
		int32_t slot;

		if (i >= p->count * p->codec.heads)
			return 0;
		slot = (int32_t)kvp_ldg_u32(at_const(p->slots, (int64_t)(i / p->codec.heads) * 4));
		if (slot < 0)
			return 0;
		page = (uint32_t)slot / p->codec.tokens;
		ret->head = i % p->codec.heads;
		ret->token = (uint32_t)slot % p->codec.tokens;
		raw = p->raw + (uint64_t)((int64_t)(i / p->codec.heads) * p->raw_token_stride);
	} else {
		if (i >= p->codec.heads * p->codec.tokens)
			return 0;
		ret->head = i / p->codec.tokens;
		ret->token = i % p->codec.tokens;
		raw = raw_base(p, page) + (uint64_t)((int64_t)ret->token * p->raw_token_stride);
	}
	ret->raw = at(raw, (int64_t)ret->head * p->raw_head_stride);
	ret->plane = plane_of(p, page);
	ret->exponent = plane_exponent(&p->codec, ret->plane);
	return 1;
}

/* ---- header and exponent: one block per plane ---- */

KVP_DEV uint32_t row_max(const uint8_t *row, uint32_t dtype, uint32_t dim, uint32_t lane)
{
	uint32_t max = 0;

	for (uint32_t i = lane; i < dim; i += 32) {
		uint32_t a = kvp_f32_bits(load_raw(row, dtype, i)) & 0x7fffffffu;

		if (a < 0x7f800000u && a > max)
			max = a;
	}
	return max;
}

KVP_DEV uint32_t warp_max(uint32_t max)
{
	KVP_UNROLL
	for (uint32_t m = 16; m > 0; m /= 2) {
		uint32_t other = kvp_shfl_xor_u32(max, m);

		max = other > max ? other : max;
	}
	return max;
}

/* Largest finite magnitude of row i of a plane's coded ones, as fp32 bits, in all lanes. */
KVP_DEV uint32_t coded_row_max(const struct kvp_cuda_rows *p, uint64_t base, uint32_t i)
{
	const struct kvp_cuda_codec *c = &p->codec;
	int64_t off = (int64_t)(i / c->coded) * p->raw_head_stride +
		      (int64_t)(i % c->coded) * p->raw_token_stride;

	return warp_max(row_max(at_const(base, off), c->dtype, c->dim, kvp_tid() % 32));
}

/* Of the whole plane, in all threads. */
KVP_DEV uint32_t plane_max(const struct kvp_cuda_rows *p, uint64_t base)
{
	uint32_t max = 0;

	for (uint32_t i = kvp_tid() / 32; i < p->codec.heads * p->codec.coded;
		i += kvp_threads() / 32) {
		uint32_t m = coded_row_max(p, base, i);

		max = m > max ? m : max;
	}
	if (kvp_tid() % 32 == 0)
		kvp_sts_u32(kvp_tid() / 8, max);
	kvp_sync();
	for (uint32_t w = 0; w < kvp_threads() / 32; w++) {
		uint32_t m = kvp_lds_u32(4 * w);

		max = m > max ? m : max;
	}
	return max;
}

/* Rows by the exponent field of their largest magnitude: shared memory from here on, by warp. */
#define BINS     256
#define ROWS_BIN (4 * WARPS)

KVP_DEV void count_rows(const struct kvp_cuda_rows *p, uint64_t base)
{
	uint32_t mine = ROWS_BIN + kvp_tid() / 32 * 4 * BINS;

	for (uint32_t i = kvp_tid(); i < WARPS * BINS; i += kvp_threads())
		kvp_sts_u32(ROWS_BIN + 4 * i, 0);
	kvp_sync();
	for (uint32_t i = kvp_tid() / 32; i < p->codec.heads * p->codec.coded;
		i += kvp_threads() / 32) {
		uint32_t bin = mine + 4 * (coded_row_max(p, base, i) >> 23);

		if (kvp_tid() % 32 == 0)
			kvp_sts_u32(bin, kvp_lds_u32(bin) + 1);
	}
	kvp_sync();
	for (uint32_t i = kvp_tid(); i < BINS; i += kvp_threads()) {
		uint32_t n = 0;

		for (uint32_t w = 0; w < WARPS; w++)
			n += kvp_lds_u32(ROWS_BIN + 4 * (w * BINS + i));
		kvp_sts_u32(ROWS_BIN + 4 * i, n);
	}
	kvp_sync();
}

KVP_DEV uint32_t rows_of(uint32_t exponent)
{
	return kvp_lds_u32(ROWS_BIN + 4 * exponent);
}

/* max_of_most() of kernels/plane.c: what is 2^16 times louder than all but a few rows is left out. */
KVP_DEV uint32_t max_of_most(const struct kvp_cuda_rows *p, uint64_t base, uint32_t max)
{
	uint32_t n, few, e = max >> 23, louder = 0;

	count_rows(p, base);
	n = p->codec.heads * p->codec.coded - rows_of(0);
	few = n < 32 ? n > 1 : n / 16;
	while (e && louder + rows_of(e) <= few)
		louder += rows_of(e--);
	if (e + 16 >= max >> 23)
		return max;
	for (e += 16; e && !rows_of(e); e--)
		;
	return e << 23;
}

KVP_DEV int32_t exponent_of(uint32_t max)
{
	int32_t e = (int32_t)(max >> 23) - 127;

	if (max == 0 || (e >= -4 && e <= 9))
		return 0;
	return e - 2 < -120 ? -120 : e - 2;
}

KVP_DEV void write_header(const struct kvp_cuda_codec *c, uint8_t *plane, int32_t exponent)
{
	struct kvp_v4 v = { { KVP_PLANE_MAGIC, KVP_PLANE_VERSION, c->id, c->bytes } };

	kvp_stg_v4(plane, v);
	v.w[0] = c->tokens | c->heads << 16;
	v.w[1] = c->dim | c->dtype << 16 | c->kind << 24;
	v.w[2] = (uint32_t)exponent;
	v.w[3] = 0;
	kvp_stg_v4(plane + 16, v);
	v.w[0] = (uint32_t)c->seed;
	v.w[1] = (uint32_t)(c->seed >> 32);
	v.w[2] = (uint32_t)c->calib;
	v.w[3] = (uint32_t)(c->calib >> 32);
	kvp_stg_v4(plane + 32, v);
	v.w[0] = 0;
	v.w[1] = 0;
	v.w[2] = 0;
	v.w[3] = 0;
	kvp_stg_v4(plane + 48, v);
}

/* Zeros from `end` to the next section, if there is one. */
KVP_DEV void clear_gap(uint8_t *plane, uint32_t end, uint32_t next)
{
	uint32_t i = end + kvp_tid();

	if (i < next)
		kvp_stg_u8(plane + i, 0);
}

KVP_KERNEL(kvp_cu_plane_begin, kvp_cuda_rows, THREADS, 1)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t page = kvp_block_x();
	uint32_t scalars = per_channel(c) ? c->heads * c->groups * c->dim * 2
					  : c->heads * c->tokens * c->groups * (c->wide ? 4 : 2);
	uint8_t *plane = plane_of(&p, page);
	int32_t exponent = p.exponent;

	if (!p.force_exponent) {
		uint64_t base = raw_base(&p, page);
		uint32_t max = plane_max(&p, base);

		exponent = exponent_of(max);
		if (exponent > 0)
			exponent = exponent_of(max_of_most(&p, base, max));
	}
	if (kvp_tid() == 0)
		write_header(c, plane, exponent);
	clear_gap(plane, c->codes + c->heads * c->coded * c->row_bytes, c->scale);
	clear_gap(plane, c->scale + scalars, c->minimum);
	clear_gap(plane, c->minimum + scalars, c->native);
}

/* ---- native: the elements themselves, and the incomplete group of kivi keys ---- */

KVP_DEV void copy_row(uint8_t *to, const uint8_t *from, uint32_t dtype, uint32_t dim, uint32_t lane)
{
	for (uint32_t i = lane; i < dim; i += 32) {
		if (dtype == KVP_DTYPE_F32)
			kvp_stg_u32(to + 4 * i, kvp_ldg_u32(from + 4 * i));
		else if (dtype == KVP_DTYPE_F8)
			kvp_stg_u8(to + i, kvp_ldg_u8(from + i));
		else
			kvp_stg_u16(to + 2 * i, kvp_ldg_u16(from + 2 * i));
	}
}

KVP_KERNEL(kvp_cu_native_encode, kvp_cuda_rows, THREADS, 1)
{
	struct row_at row;

	if (find_row(&p, WARPS, &row))
		copy_row(native_row(&p.codec, &row), row.raw, p.codec.dtype, p.codec.dim,
			kvp_tid() % 32);
}

KVP_KERNEL(kvp_cu_native_decode, kvp_cuda_rows, THREADS, 1)
{
	struct row_at row;

	if (find_row(&p, WARPS, &row))
		copy_row(row.raw, native_row(&p.codec, &row), p.codec.dtype, p.codec.dim,
			kvp_tid() % 32);
}

/* ---- tq, rows in registers ---- */

KVP_DEV uint32_t tq_code(const struct kvp_cuda_codec *c, float z)
{
	uint32_t code = 0;

	for (uint32_t j = 0; j + 1 < 1u << c->bits; j++)
		code += c->bound[j] <= z;
	return code;
}

KVP_DEV float tq_scalar(const struct kvp_cuda_codec *c, float norm, float zc, float cc)
{
	float d = (float)c->dim;

	if (c->scalar == KVP_TQ_PLAIN)
		return kvp_div_rn(norm, d);
	if (c->scalar == KVP_TQ_NC)
		return kvp_div_rn(norm, kvp_sqrt_rn(d * cc));
	return zc > 0.0f ? kvp_div_rn(norm, zc) : 0.0f;
}

KVP_DEV void tq_store_scalar(const struct kvp_cuda_codec *c, const struct row_at *row, float t)
{
	uint8_t *scale = row->plane + c->scale;

	if (c->wide)
		kvp_stg_f32(scale + 4 * row_index(c, row), t);
	else
		kvp_stg_u16(scale + 2 * row_index(c, row), kvp_f32_to_f16_rn(t));
}

/* The lower two bits of each code as a 2-bit row. Element i and i + dim/4 share a lane but for dim
 * 64, where they are 16 lanes apart. */
KVP_DEV void pack2(const uint32_t *code, uint8_t *codes, uint32_t lane, const int E)
{
	if (E == 2) {
		uint32_t v = (code[0] & 3u) | (code[1] & 3u) << 4;
		uint32_t other = kvp_shfl_xor_u32(v, 16);

		if (lane < 16)
			kvp_stg_u8(codes + lane, v | other << 2);
		return;
	}
	KVP_UNROLL
	for (int e = 0; e < E / 4; e++)
		kvp_stg_u8(codes + 32 * e + lane, (code[e] & 3u) | (code[e + E / 4] & 3u) << 2 |
							  (code[e + E / 2] & 3u) << 4 |
							  (code[e + 3 * E / 4] & 3u) << 6);
}

KVP_DEV void pack_row(
	uint32_t bits, const uint32_t *code, uint8_t *codes, uint32_t lane, const int E)
{
	if (bits == 4) {
		KVP_UNROLL
		for (int e = 0; e < E / 2; e++)
			kvp_stg_u8(codes + 32 * e + lane, code[e] | code[e + E / 2] << 4);
		return;
	}
	pack2(code, codes, lane, E);
	if (bits == 3) {
		KVP_UNROLL
		for (int e = 0; e < E; e++) {
			uint32_t word = kvp_ballot((code[e] & 4u) != 0);

			if (lane == (uint32_t)e)
				kvp_stg_u32(codes + 8 * E + 4 * e, word);
		}
	}
}

KVP_DEV void tq_encode(const struct kvp_cuda_rows *p, const int E)
{
	const struct kvp_cuda_codec *c = &p->codec;
	uint32_t lane = kvp_tid() % 32, code[ROW_E_MAX];
	float x[ROW_E_MAX], cent[ROW_E_MAX];
	float book = c->cent[lane % 16], norm, inv, zc, cc;
	struct row_at row;

	if (!find_row(p, WARPS, &row))
		return;
	KVP_UNROLL
	for (int e = 0; e < E; e++)
		x[e] = sanitize(load_raw(row.raw, c->dtype, 32 * e + lane), pow2i(-row.exponent));
	norm = kvp_sqrt_rn(row_dot(x, x, E));
	inv = norm > 0.0f ? kvp_div_rn(1.0f, norm) : 0.0f;
	row_rotate(&c->rot, x, lane, E);
	row_scale(x, inv, E);
	KVP_UNROLL
	for (int e = 0; e < E; e++) {
		code[e] = tq_code(c, x[e]);
		cent[e] = kvp_bits_f32(kvp_shfl_u32(kvp_f32_bits(book), code[e]));
	}
	pack_row(c->bits, code, row_codes(c, &row), lane, E);
	zc = row_dot(x, cent, E);
	cc = c->scalar == KVP_TQ_NC ? row_dot(cent, cent, E) : 0.0f;
	if (lane == 0)
		tq_store_scalar(c, &row, tq_scalar(c, norm, zc, cc));
}

KVP_DEV void tq_decode(const struct kvp_cuda_rows *p, const int E)
{
	const struct kvp_cuda_codec *c = &p->codec;
	uint32_t lane = kvp_tid() % 32;
	float x[ROW_E_MAX], book = c->cent[lane % 16], f;
	const uint8_t *codes;
	struct row_at row;

	if (!find_row(p, WARPS, &row))
		return;
	codes = row_codes(c, &row);
	KVP_UNROLL
	for (int e = 0; e < E; e++) {
		uint32_t code = load_code(codes, 32 * E, c->bits, 32 * e + lane);

		x[e] = kvp_bits_f32(kvp_shfl_u32(kvp_f32_bits(book), code));
	}
	row_unrotate(&c->rot, x, lane, E);
	f = row_scalar(c, &row);
	KVP_UNROLL
	for (int e = 0; e < E; e++)
		store_raw(row.raw, c->dtype, 32 * e + lane, x[e] * f);
}

KVP_KERNEL(kvp_cu_tq_encode_64, kvp_cuda_rows, THREADS, 2)
{
	tq_encode(&p, 2);
}
KVP_KERNEL(kvp_cu_tq_encode_128, kvp_cuda_rows, THREADS, 2)
{
	tq_encode(&p, 4);
}
KVP_KERNEL(kvp_cu_tq_encode_256, kvp_cuda_rows, THREADS, 2)
{
	tq_encode(&p, 8);
}
KVP_KERNEL(kvp_cu_tq_decode_64, kvp_cuda_rows, THREADS, 2)
{
	tq_decode(&p, 2);
}
KVP_KERNEL(kvp_cu_tq_decode_128, kvp_cuda_rows, THREADS, 2)
{
	tq_decode(&p, 4);
}
KVP_KERNEL(kvp_cu_tq_decode_256, kvp_cuda_rows, THREADS, 2)
{
	tq_decode(&p, 8);
}

/* ---- tq, rows in shared memory: any dim and any rotation ---- */

#define ANY_WARPS 4

KVP_DEV struct mem_row any_row(uint32_t dim)
{
	return mem_row(dim, kvp_tid() / 32 * 2 * dim * 4);
}

/* Byte i of a row of `bits` (1, 2, 4) wide fields, from codes shifted right by `shift`. */
KVP_DEV uint32_t any_byte(struct mem_row m, uint32_t bits, uint32_t shift, uint32_t i)
{
	uint32_t per = m.dim * bits / 8, byte = 0;

	for (uint32_t j = 0; j < 8 / bits; j++) {
		uint32_t element = bits == 1 ? 8 * i + j : i + j * per;
		uint32_t code = kvp_lds_u32(mem_y(m, element)) >> shift;

		byte |= (code & ((1u << bits) - 1)) << (j * bits);
	}
	return byte;
}

/* The codes lie as words in the scratch row. */
KVP_DEV void any_pack(uint32_t code_bits, struct mem_row m, uint8_t *codes, uint32_t lane)
{
	uint32_t bits = code_bits == 4 ? 4 : 2, bytes = m.dim * bits / 8;

	kvp_syncwarp();
	for (uint32_t i = lane; i < bytes; i += 32)
		kvp_stg_u8(codes + i, any_byte(m, bits, 0, i));
	for (uint32_t i = lane; code_bits == 3 && i < m.dim / 8; i += 32)
		kvp_stg_u8(codes + bytes + i, any_byte(m, 1, 2, i));
}

KVP_KERNEL(kvp_cu_tq_encode_any, kvp_cuda_rows, 32 * ANY_WARPS, 1)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t lane = kvp_tid() % 32;
	struct mem_row m = any_row(c->dim);
	float sum = 0.0f, zc = 0.0f, cc = 0.0f, norm, inv;
	struct row_at row;

	if (!find_row(&p, ANY_WARPS, &row))
		return;
	for (uint32_t i = lane; i < c->dim; i += 32) {
		float x = sanitize(load_raw(row.raw, c->dtype, i), pow2i(-row.exponent));

		sum += x * x;
		kvp_sts_f32(mem_x(m, i), x);
	}
	norm = kvp_sqrt_rn(warp_sum(sum));
	inv = norm > 0.0f ? kvp_div_rn(1.0f, norm) : 0.0f;
	mem_rotate(&c->rot, m, lane);
	for (uint32_t i = lane; i < c->dim; i += 32) {
		float z = kvp_lds_f32(mem_x(m, i)) * inv;
		uint32_t code = tq_code(c, z);

		zc += z * c->cent[code];
		cc += c->cent[code] * c->cent[code];
		kvp_sts_u32(mem_y(m, i), code);
	}
	any_pack(c->bits, m, row_codes(c, &row), lane);
	zc = warp_sum(zc);
	cc = warp_sum(cc);
	if (lane == 0)
		tq_store_scalar(c, &row, tq_scalar(c, norm, zc, cc));
}

KVP_KERNEL(kvp_cu_tq_decode_any, kvp_cuda_rows, 32 * ANY_WARPS, 1)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t lane = kvp_tid() % 32;
	struct mem_row m = any_row(c->dim);
	const uint8_t *codes;
	struct row_at row;
	float f;

	if (!find_row(&p, ANY_WARPS, &row))
		return;
	codes = row_codes(c, &row);
	for (uint32_t i = lane; i < c->dim; i += 32)
		kvp_sts_f32(mem_x(m, i), c->cent[load_code(codes, c->dim, c->bits, i)]);
	mem_unrotate(&c->rot, m, lane);
	f = row_scalar(c, &row);
	for (uint32_t i = lane; i < c->dim; i += 32)
		store_raw(row.raw, c->dtype, i, kvp_lds_f32(mem_x(m, i)) * f);
}

/* ---- 8-bit codes: fp8, int8 ---- */

/* fp8 of a finite f: man bits of mantissa, smallest exponent min_exp, saturating at max. */
KVP_DEV uint32_t to_fp8(float f, int32_t man, int32_t min_exp, int32_t max)
{
	uint32_t sign = kvp_f32_bits(f) >> 24 & 0x80u;
	float a = kvp_bits_f32(kvp_f32_bits(f) & 0x7fffffffu);
	int32_t exp = (int32_t)(kvp_f32_bits(a) >> 23) - 127, q;

	if (a >= 65536.0f)
		return sign | (uint32_t)max;
	exp = exp < min_exp ? min_exp : exp;
	q = rne(a * pow2i(man - exp)) + (exp - min_exp) * (1 << man);
	return sign | (uint32_t)(q > max ? max : q);
}

KVP_DEV uint32_t byte_code(uint32_t id, float x)
{
	int32_t q;

	if (id == KVP_CODEC_FP8_E4M3)
		return to_fp8(x, 3, -6, 0x7e);
	if (id == KVP_CODEC_FP8_E5M2)
		return to_fp8(x, 2, -14, 0x7b);
	q = rne(x);
	return (uint32_t)(q > 127 ? 127 : q < -127 ? -127 : q) & 0xffu;
}

KVP_KERNEL(kvp_cu_byte_encode, kvp_cuda_rows, THREADS, 2)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t lane = kvp_tid() % 32, h;
	float max = 0.0f, inv, unscale;
	struct row_at row;
	uint8_t *codes;

	if (!find_row(&p, WARPS, &row))
		return;
	unscale = pow2i(-row.exponent);
	for (uint32_t i = lane; i < c->dim; i += 32) {
		float x = sanitize(load_raw(row.raw, c->dtype, i), unscale);

		x = x < 0.0f ? -x : x;
		max = x > max ? x : max;
	}
	KVP_UNROLL
	for (uint32_t m = 16; m > 0; m /= 2) {
		float other = kvp_shfl_xor_f32(max, m);

		max = other > max ? other : max;
	}
	h = kvp_f32_to_f16_rn(kvp_div_rn(max, c->id == KVP_CODEC_INT8 ? 127.0f : 448.0f));
	inv = kvp_f16_to_f32(h) > 0.0f ? kvp_div_rn(1.0f, kvp_f16_to_f32(h)) : 0.0f;
	codes = row_codes(c, &row);
	for (uint32_t i = lane; i < c->dim; i += 32) {
		float x = sanitize(load_raw(row.raw, c->dtype, i), unscale);

		kvp_stg_u8(codes + i, byte_code(c->id, x * inv));
	}
	if (lane == 0)
		kvp_stg_u16(row.plane + c->scale + 2 * row_index(c, &row), h);
}

KVP_KERNEL(kvp_cu_byte_decode, kvp_cuda_rows, THREADS, 2)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t lane = kvp_tid() % 32;
	const uint8_t *codes;
	struct row_at row;
	float s;

	if (!find_row(&p, WARPS, &row))
		return;
	s = row_scalar(c, &row);
	codes = row_codes(c, &row);
	for (uint32_t i = lane; i < c->dim; i += 32)
		store_raw(row.raw, c->dtype, i, byte_value(c->id, kvp_ldg_u8(codes + i)) * s);
}

/* ---- min/max groups: asym and kivi ---- */

struct affine {
	uint32_t scale; /* fp16 bits */
	uint32_t min;
};

/* Extremes of what is finite, scaled and bounded; hi is below lo if there is nothing. */
struct range {
	float lo;
	float hi;
};

KVP_DEV struct range range_empty(void)
{
	struct range r = { INPUT_MAX, -INPUT_MAX };

	return r;
}

KVP_DEV void range_add(struct range *r, float element, float unscale)
{
	float x = sanitize(element, unscale);

	if (!is_finite(element))
		return;
	r->lo = x < r->lo ? x : r->lo;
	r->hi = x > r->hi ? x : r->hi;
}

KVP_DEV struct affine affine_of(uint32_t bits, struct range r)
{
	/* -0 becomes +0 */
	float lo = r.lo <= r.hi ? r.lo + 0.0f : 0.0f, hi = r.lo <= r.hi ? r.hi + 0.0f : 0.0f;
	struct affine a;

	a.scale = kvp_f32_to_f16_rn(kvp_div_rn(hi - lo, (float)((1u << bits) - 1)));
	a.min = kvp_f32_to_f16_rn(lo);
	return a;
}

/* Clamped before it is rounded: what is not finite may lie far outside the range. */
KVP_DEV uint32_t affine_code(uint32_t bits, struct affine a, float x)
{
	float s = kvp_f16_to_f32(a.scale), max = (float)((1u << bits) - 1);
	float f = (x - kvp_f16_to_f32(a.min)) * (s > 0.0f ? kvp_div_rn(1.0f, s) : 0.0f);

	return (uint32_t)rne(f < 0.0f ? 0.0f : f > max ? max : f);
}

/* Scalars of a row's groups: computed, stored, and kept in shared memory as scale | min << 16. */
KVP_DEV void asym_scalars(
	const struct kvp_cuda_codec *c, const struct row_at *row, uint32_t base, uint32_t lane)
{
	float unscale = pow2i(-row->exponent);

	for (uint32_t g = 0; g < c->groups; g++) {
		uint32_t first = g * c->group, end = first + c->group;
		uint32_t at = row_index(c, row) * c->groups + g;
		struct range r = range_empty();
		struct affine a;

		end = end < c->dim ? end : c->dim;
		for (uint32_t i = first + lane; i < end; i += 32)
			range_add(&r, load_raw(row->raw, c->dtype, i), unscale);
		KVP_UNROLL
		for (uint32_t m = 16; m > 0; m /= 2) {
			float lo = kvp_shfl_xor_f32(r.lo, m), hi = kvp_shfl_xor_f32(r.hi, m);

			r.lo = lo < r.lo ? lo : r.lo;
			r.hi = hi > r.hi ? hi : r.hi;
		}
		a = affine_of(c->bits, r);
		if (lane == 0) {
			kvp_stg_u16(row->plane + c->scale + 2 * at, a.scale);
			kvp_stg_u16(row->plane + c->minimum + 2 * at, a.min);
			kvp_sts_u32(base + 4 * g, a.scale | a.min << 16);
		}
	}
	kvp_syncwarp();
}

KVP_DEV uint32_t asym_code(
	const struct kvp_cuda_codec *c, const struct row_at *row, uint32_t base, uint32_t i)
{
	uint32_t both = kvp_lds_u32(base + 4 * (i / c->group));
	struct affine a = { both & 0xffffu, both >> 16 };

	return affine_code(
		c->bits, a, sanitize(load_raw(row->raw, c->dtype, i), pow2i(-row->exponent)));
}

#define ASYM_GROUPS_MAX (KVP_PLANE_DIM_MAX / 16)

KVP_KERNEL(kvp_cu_asym_encode, kvp_cuda_rows, THREADS, 2)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t lane = kvp_tid() % 32, base = kvp_tid() / 32 * ASYM_GROUPS_MAX * 4;
	uint32_t bits = c->bits == 4 ? 4 : 2, bytes = c->dim * bits / 8;
	struct row_at row;
	uint8_t *codes;

	if (!find_row(&p, WARPS, &row))
		return;
	asym_scalars(c, &row, base, lane);
	codes = row_codes(c, &row);
	for (uint32_t i = lane; i < bytes; i += 32) {
		uint32_t byte = 0;

		for (uint32_t j = 0; j < 8 / bits; j++)
			byte |= (asym_code(c, &row, base, i + j * bytes) & ((1u << bits) - 1))
				<< (j * bits);
		kvp_stg_u8(codes + i, byte);
	}
	for (uint32_t i = lane; c->bits == 3 && i < c->dim / 8; i += 32) {
		uint32_t byte = 0;

		for (uint32_t j = 0; j < 8; j++)
			byte |= asym_code(c, &row, base, 8 * i + j) >> 2 << j;
		kvp_stg_u8(codes + bytes + i, byte);
	}
}

/*
 * Keys: one block per group of tokens of one head; a thread makes one byte of every token's row,
 * from the `n` channels first, first + step, ..., of whose codes it keeps the bits from `shift` on.
 * The low halves (shift 0) know every channel once, so they store the scalars.
 */
struct chan_byte {
	uint32_t first;
	uint32_t step;
	uint32_t shift;
	uint32_t at; /* in the row */
};

KVP_DEV float chan_load(
	const struct kvp_cuda_rows *p, const uint8_t *raw, uint32_t token, uint32_t channel)
{
	return load_raw(raw + (int64_t)token * p->raw_token_stride, p->codec.dtype, channel);
}

KVP_DEV void chan_group(const struct kvp_cuda_rows *p, const uint8_t *raw, uint8_t *plane,
	uint32_t unit, struct chan_byte b, const int n)
{
	const struct kvp_cuda_codec *c = &p->codec;
	float unscale = pow2i(-plane_exponent(c, plane));
	uint8_t *codes = plane + c->codes + unit * c->group * c->row_bytes + b.at;
	struct affine a[8];

	KVP_UNROLL
	for (int j = 0; j < n; j++) {
		uint32_t channel = b.first + j * b.step, at = 2 * (unit * c->dim + channel);
		struct range r = range_empty();

		for (uint32_t t = 0; t < c->group; t++)
			range_add(&r, chan_load(p, raw, t, channel), unscale);
		a[j] = affine_of(c->bits, r);
		if (b.shift == 0) {
			kvp_stg_u16(plane + c->scale + at, a[j].scale);
			kvp_stg_u16(plane + c->minimum + at, a[j].min);
		}
	}
	for (uint32_t t = 0; t < c->group; t++) {
		uint32_t byte = 0;

		KVP_UNROLL
		for (int j = 0; j < n; j++) {
			float x = sanitize(chan_load(p, raw, t, b.first + j * b.step), unscale);
			uint32_t code = affine_code(c->bits, a[j], x) >> b.shift;

			byte |= (code & ((1u << 8 / n) - 1)) << (j * (8 / n));
		}
		kvp_stg_u8(codes + t * c->row_bytes, byte);
	}
}

/* Byte i of the rows of a group: two 4-bit codes, four 2-bit codes or low halves of 3-bit codes, or
 * eight high bits of these. */
KVP_DEV void chan_bytes(const struct kvp_cuda_rows *p, const uint8_t *raw, uint8_t *plane,
	uint32_t unit, uint32_t i)
{
	uint32_t quarter = p->codec.dim / 4;
	struct chan_byte b = { i, quarter, 0, i };

	if (p->codec.bits == 4) {
		b.step = 2 * quarter;
		chan_group(p, raw, plane, unit, b, 2);
	} else if (i < quarter) {
		chan_group(p, raw, plane, unit, b, 4);
	} else {
		b.first = 8 * (i - quarter);
		b.step = 1;
		b.shift = 2;
		chan_group(p, raw, plane, unit, b, 8);
	}
}

/* Grid: x = head * (groups + 1) + group, the last being the incomplete one; y = page. */
KVP_KERNEL(kvp_cu_chan_encode, kvp_cuda_rows, KVP_PLANE_DIM_MAX / 2, 1)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t head = kvp_block_x() / (c->groups + 1), g = kvp_block_x() % (c->groups + 1);
	uint64_t base = raw_base(&p, kvp_block_y());
	struct row_at row;

	row.head = head;
	row.plane = plane_of(&p, kvp_block_y());
	row.raw = at(base,
		(int64_t)head * p.raw_head_stride + (int64_t)(g * c->group) * p.raw_token_stride);
	if (g < c->groups) {
		if (kvp_tid() < c->row_bytes)
			chan_bytes(&p, row.raw, row.plane, head * c->groups + g, kvp_tid());
		return;
	}
	for (uint32_t t = c->coded + kvp_tid() / 32; t < c->tokens; t += kvp_threads() / 32) {
		row.token = t;
		copy_row(native_row(c, &row),
			row.raw + (int64_t)(t - c->coded) * p.raw_token_stride, c->dtype, c->dim,
			kvp_tid() % 32);
	}
}

KVP_KERNEL(kvp_cu_affine_decode, kvp_cuda_rows, THREADS, 2)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t lane = kvp_tid() % 32;
	const uint8_t *codes;
	struct row_at row;

	if (!find_row(&p, WARPS, &row))
		return;
	if (row.token >= c->coded) {
		copy_row(row.raw, native_row(c, &row), c->dtype, c->dim, lane);
		return;
	}
	codes = row_codes(c, &row);
	for (uint32_t i = lane; i < c->dim; i += 32) {
		float x = affine_value(c, &row, codes, i);

		store_raw(row.raw, c->dtype, i, x * pow2i(row.exponent));
	}
}
