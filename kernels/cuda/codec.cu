/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders and decoders; docs/formats.md in CUDA. One warp per row unless said otherwise. */
#include "kernels/cuda/row.h"

#define WARPS   8 /* per block */
#define THREADS (32 * WARPS)

/* Where one row lies. */
struct row_at {
	uint8_t *raw;
	uint8_t *plane;
	uint32_t head;
	uint32_t token; /* of the page */
	int32_t exponent;
};

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

KVP_DEV int32_t plane_exponent(const struct kvp_cuda_rows *p, const uint8_t *plane)
{
	return p->codec.id == KVP_CODEC_NATIVE ? 0 : (int32_t)kvp_ldg_u32(plane + 24);
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
	ret->exponent = plane_exponent(p, ret->plane);
	return 1;
}

/* Number of the row among those of a section [head][token]. */
KVP_DEV uint32_t row_index(const struct kvp_cuda_codec *c, const struct row_at *row)
{
	return row->head * c->coded + row->token;
}

KVP_DEV uint8_t *row_codes(const struct kvp_cuda_codec *c, const struct row_at *row)
{
	return row->plane + c->codes + row_index(c, row) * c->row_bytes;
}

/* Bits `shift` and up of element i's code, as they lie in a 1, 2, 4 or 8-bit row. */
KVP_DEV uint32_t field(const uint8_t *codes, uint32_t dim, uint32_t bits, uint32_t i)
{
	uint32_t per = dim * bits / 8; /* bytes of the row = codes that share a bit position */

	return kvp_ldg_u8(codes + i % per) >> (i / per * bits) & ((1u << bits) - 1);
}

KVP_DEV uint32_t load_code(const uint8_t *codes, uint32_t dim, uint32_t bits, uint32_t i)
{
	if (bits == 3)
		return field(codes, dim, 2, i) |
		       (kvp_ldg_u8(codes + dim / 4 + i / 8) >> (i % 8) & 1u) << 2;
	return field(codes, dim, bits, i);
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

/* Largest finite magnitude of a plane's coded rows, as fp32 bits, in thread 0. */
KVP_DEV uint32_t plane_max(const struct kvp_cuda_rows *p, uint32_t page)
{
	const struct kvp_cuda_codec *c = &p->codec;
	uint64_t base = raw_base(p, page);
	uint32_t lane = kvp_tid() % 32, max = 0;

	for (uint32_t i = kvp_tid() / 32; i < c->heads * c->coded; i += kvp_threads() / 32) {
		int64_t off = (int64_t)(i / c->coded) * p->raw_head_stride +
			      (int64_t)(i % c->coded) * p->raw_token_stride;
		uint32_t m = row_max(at_const(base, off), c->dtype, c->dim, lane);

		max = m > max ? m : max;
	}
	KVP_UNROLL
	for (uint32_t m = 16; m > 0; m /= 2) {
		uint32_t other = kvp_shfl_xor_u32(max, m);

		max = other > max ? other : max;
	}
	if (lane == 0)
		kvp_sts_u32(kvp_tid() / 8, max);
	kvp_sync();
	if (kvp_tid() == 0) {
		for (uint32_t w = 1; w < kvp_threads() / 32; w++) {
			uint32_t m = kvp_lds_u32(4 * w);

			max = m > max ? m : max;
		}
	}
	return max;
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
	v.w[2] = 0;
	kvp_stg_v4(plane + 32, v);
	v.w[0] = 0;
	v.w[1] = 0;
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
	uint32_t scalars =
		c->minimum && c->kind == KVP_PLANE_K && KVP_CODEC_FAMILY(c->id) == KVP_FAMILY_KIVI
			? c->heads * c->groups * c->dim * 2
			: c->heads * c->tokens * c->groups * (c->wide ? 4 : 2);
	uint8_t *plane = plane_of(&p, page);
	uint32_t max = p.force_exponent ? 0 : plane_max(&p, page);

	if (kvp_tid() == 0)
		write_header(c, plane, p.force_exponent ? p.exponent : exponent_of(max));
	clear_gap(plane, c->codes + c->heads * c->coded * c->row_bytes, c->scale);
	clear_gap(plane, c->scale + scalars, c->minimum);
	clear_gap(plane, c->minimum + scalars, c->native);
}

/* ---- native: the elements themselves, and the incomplete group of kivi keys ---- */

KVP_DEV uint8_t *native_row(const struct kvp_cuda_codec *c, const struct row_at *row)
{
	uint32_t size = c->dtype == KVP_DTYPE_F32 ? 4 : c->dtype == KVP_DTYPE_F8 ? 1 : 2;
	uint32_t first = c->id == KVP_CODEC_NATIVE ? 0 : c->coded;

	return row->plane + c->native +
	       ((uint64_t)row->head * (c->tokens - first) + row->token - first) * c->dim * size;
}

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

KVP_DEV float tq_load_scalar(const struct kvp_cuda_codec *c, const struct row_at *row)
{
	const uint8_t *scale = row->plane + c->scale;
	float t = c->wide ? scalar_f32(kvp_ldg_f32(scale + 4 * row_index(c, row)))
			  : scalar_f16(kvp_ldg_u16(scale + 2 * row_index(c, row)));

	return clamp_to(t * pow2i(row->exponent), F32_LARGEST);
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
	f = tq_load_scalar(c, &row);
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

/* ---- tq, rows in shared memory: any dim that has a Hadamard matrix ---- */

#define ANY_WARPS 4

/* Element i of this warp's row, and of its scratch row. */
KVP_DEV uint32_t any_x(const struct kvp_cuda_codec *c, uint32_t i)
{
	return (kvp_tid() / 32 * 2 * c->dim + i) * 4;
}
KVP_DEV uint32_t any_y(const struct kvp_cuda_codec *c, uint32_t i)
{
	return any_x(c, c->dim + i);
}

KVP_DEV void any_scale(const struct kvp_cuda_codec *c, float f, uint32_t lane)
{
	for (uint32_t i = lane; i < c->dim; i += 32)
		kvp_sts_f32(any_x(c, i), kvp_lds_f32(any_x(c, i)) * f);
}

KVP_DEV void any_flip(const struct kvp_cuda_codec *c, const uint32_t *sign, uint32_t lane)
{
	for (uint32_t i = lane; i < c->dim; i += 32)
		kvp_sts_u32(any_x(c, i), kvp_lds_u32(any_x(c, i)) ^ (sign[i / 32] >> (i % 32) & 1u)
									    << 31);
}

KVP_DEV void any_paley(const struct kvp_cuda_codec *c, int transpose, uint32_t lane)
{
	uint32_t m = c->rot.order, span = c->dim / m;

	for (uint32_t i = lane; i < c->dim; i += 32) {
		uint32_t a = i / span, b = i % span;
		float sum = 0.0f;

		for (uint32_t j = 0; j < m; j++) {
			uint64_t minus = transpose ? c->rot.paley[j] >> a : c->rot.paley[a] >> j;
			float v = kvp_lds_f32(any_x(c, j * span + b));

			v = minus & 1u ? -v : v;
			sum = j ? sum + v : v;
		}
		kvp_sts_f32(any_y(c, i), sum);
	}
	kvp_syncwarp();
	for (uint32_t i = lane; i < c->dim; i += 32)
		kvp_sts_f32(any_x(c, i), kvp_lds_f32(any_y(c, i)));
}

/* Outside of this each lane touches only its own elements lane, lane + 32, ... */
KVP_DEV void any_hadamard(const struct kvp_cuda_codec *c, int transpose, uint32_t lane)
{
	kvp_syncwarp();
	for (uint32_t h = 1; h < c->dim / c->rot.order; h *= 2) {
		for (uint32_t j = lane; j < c->dim / 2; j += 32) {
			uint32_t i = (j & ~(h - 1)) * 2 + (j & (h - 1));
			float a = kvp_lds_f32(any_x(c, i)), b = kvp_lds_f32(any_x(c, i + h));

			kvp_sts_f32(any_x(c, i), a + b);
			kvp_sts_f32(any_x(c, i + h), a - b);
		}
		kvp_syncwarp();
	}
	if (c->rot.order > 1)
		any_paley(c, transpose, lane);
}

KVP_DEV void any_rotate(const struct kvp_cuda_codec *c, uint32_t lane)
{
	for (uint32_t r = 0; r < c->rot.rounds; r++) {
		any_flip(c, c->rot.sign[r], lane);
		any_hadamard(c, 0, lane);
		if (r == 1)
			any_scale(c, c->rot.rescale, lane);
	}
}

KVP_DEV void any_unrotate(const struct kvp_cuda_codec *c, uint32_t lane)
{
	for (uint32_t r = c->rot.rounds; r-- > 0;) {
		any_hadamard(c, 1, lane);
		any_flip(c, c->rot.sign[r], lane);
		if (r == 1)
			any_scale(c, c->rot.rescale, lane);
	}
}

/* Byte i of a row of `bits` (1, 2, 4) wide fields, from codes shifted right by `shift`. */
KVP_DEV uint32_t any_byte(const struct kvp_cuda_codec *c, uint32_t bits, uint32_t shift, uint32_t i)
{
	uint32_t per = c->dim * bits / 8, byte = 0;

	for (uint32_t j = 0; j < 8 / bits; j++) {
		uint32_t element = bits == 1 ? 8 * i + j : i + j * per;
		uint32_t code = kvp_lds_u32(any_y(c, element)) >> shift;

		byte |= (code & ((1u << bits) - 1)) << (j * bits);
	}
	return byte;
}

/* The codes lie as words in the scratch row. */
KVP_DEV void any_pack(const struct kvp_cuda_codec *c, uint8_t *codes, uint32_t lane)
{
	uint32_t bits = c->bits == 4 ? 4 : 2, bytes = c->dim * bits / 8;

	kvp_syncwarp();
	for (uint32_t i = lane; i < bytes; i += 32)
		kvp_stg_u8(codes + i, any_byte(c, bits, 0, i));
	for (uint32_t i = lane; c->bits == 3 && i < c->dim / 8; i += 32)
		kvp_stg_u8(codes + bytes + i, any_byte(c, 1, 2, i));
}

KVP_KERNEL(kvp_cu_tq_encode_any, kvp_cuda_rows, 32 * ANY_WARPS, 1)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t lane = kvp_tid() % 32;
	float sum = 0.0f, zc = 0.0f, cc = 0.0f, norm, inv;
	struct row_at row;

	if (!find_row(&p, ANY_WARPS, &row))
		return;
	for (uint32_t i = lane; i < c->dim; i += 32) {
		float x = sanitize(load_raw(row.raw, c->dtype, i), pow2i(-row.exponent));

		sum += x * x;
		kvp_sts_f32(any_x(c, i), x);
	}
	norm = kvp_sqrt_rn(warp_sum(sum));
	inv = norm > 0.0f ? kvp_div_rn(1.0f, norm) : 0.0f;
	any_rotate(c, lane);
	for (uint32_t i = lane; i < c->dim; i += 32) {
		float z = kvp_lds_f32(any_x(c, i)) * inv;
		uint32_t code = tq_code(c, z);

		zc += z * c->cent[code];
		cc += c->cent[code] * c->cent[code];
		kvp_sts_u32(any_y(c, i), code);
	}
	any_pack(c, row_codes(c, &row), lane);
	zc = warp_sum(zc);
	cc = warp_sum(cc);
	if (lane == 0)
		tq_store_scalar(c, &row, tq_scalar(c, norm, zc, cc));
}

KVP_KERNEL(kvp_cu_tq_decode_any, kvp_cuda_rows, 32 * ANY_WARPS, 1)
{
	const struct kvp_cuda_codec *c = &p.codec;
	uint32_t lane = kvp_tid() % 32;
	const uint8_t *codes;
	struct row_at row;
	float f;

	if (!find_row(&p, ANY_WARPS, &row))
		return;
	codes = row_codes(c, &row);
	for (uint32_t i = lane; i < c->dim; i += 32)
		kvp_sts_f32(any_x(c, i), c->cent[load_code(codes, c->dim, c->bits, i)]);
	any_unrotate(c, lane);
	f = tq_load_scalar(c, &row);
	for (uint32_t i = lane; i < c->dim; i += 32)
		store_raw(row.raw, c->dtype, i, kvp_lds_f32(any_x(c, i)) * f);
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

KVP_DEV float from_fp8(uint32_t code, int32_t man, int32_t min_exp, uint32_t max)
{
	uint32_t a = code & 0x7fu, exp = a >> man;
	float m = (float)(a & ((1u << man) - 1)), f;

	if (a > max)
		return 0.0f;
	if (exp)
		m += (float)(1u << man);
	f = m * pow2i(min_exp - man + (exp ? (int32_t)exp - 1 : 0));
	return code & 0x80u ? -f : f;
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

KVP_DEV float byte_value(uint32_t id, uint32_t code)
{
	if (id == KVP_CODEC_FP8_E4M3)
		return from_fp8(code, 3, -6, 0x7e);
	if (id == KVP_CODEC_FP8_E5M2)
		return from_fp8(code, 2, -14, 0x7b);
	return (float)((int32_t)(code ^ 0x80u) - 128);
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
	s = tq_load_scalar(c, &row);
	codes = row_codes(c, &row);
	for (uint32_t i = lane; i < c->dim; i += 32)
		store_raw(row.raw, c->dtype, i, byte_value(c->id, kvp_ldg_u8(codes + i)) * s);
}

/* ---- min/max groups: asym and kivi ---- */

struct affine {
	uint32_t scale; /* fp16 bits */
	uint32_t min;
};

KVP_DEV struct affine affine_of(uint32_t bits, float lo, float hi)
{
	struct affine a;

	/* -0 becomes +0 */
	lo += 0.0f;
	hi += 0.0f;
	a.scale = kvp_f32_to_f16_rn(kvp_div_rn(hi - lo, (float)((1u << bits) - 1)));
	a.min = kvp_f32_to_f16_rn(lo);
	return a;
}

KVP_DEV uint32_t affine_code(uint32_t bits, struct affine a, float x)
{
	int32_t max = (1 << bits) - 1, q;
	float s = kvp_f16_to_f32(a.scale);

	q = rne((x - kvp_f16_to_f32(a.min)) * (s > 0.0f ? kvp_div_rn(1.0f, s) : 0.0f));
	return (uint32_t)(q < 0 ? 0 : q > max ? max : q);
}

/* Scalars of a row's groups: computed, stored, and kept in shared memory as scale | min << 16. */
KVP_DEV void asym_scalars(
	const struct kvp_cuda_codec *c, const struct row_at *row, uint32_t base, uint32_t lane)
{
	float unscale = pow2i(-row->exponent);

	for (uint32_t g = 0; g < c->groups; g++) {
		uint32_t first = g * c->group, end = first + c->group;
		float x = sanitize(load_raw(row->raw, c->dtype, first), unscale), lo = x, hi = x;
		uint32_t at = row_index(c, row) * c->groups + g;
		struct affine a;

		end = end < c->dim ? end : c->dim;
		for (uint32_t i = first + lane; i < end; i += 32) {
			x = sanitize(load_raw(row->raw, c->dtype, i), unscale);
			lo = x < lo ? x : lo;
			hi = x > hi ? x : hi;
		}
		KVP_UNROLL
		for (uint32_t m = 16; m > 0; m /= 2) {
			x = kvp_shfl_xor_f32(lo, m);
			lo = x < lo ? x : lo;
			x = kvp_shfl_xor_f32(hi, m);
			hi = x > hi ? x : hi;
		}
		a = affine_of(c->bits, lo, hi);
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

/* Keys: one block per group of tokens of one head; a thread owns the channels of one byte. */
KVP_DEV void chan_group(const struct kvp_cuda_codec *c, const struct kvp_cuda_rows *p,
	const uint8_t *raw, uint8_t *plane, uint32_t unit, uint32_t i)
{
	uint32_t n = 8 / c->bits, first = unit * c->group;
	float unscale = pow2i(-plane_exponent(p, plane));
	struct affine a[4];

	for (uint32_t j = 0; j < n; j++) {
		uint32_t channel = i + j * c->row_bytes;
		float lo = sanitize(load_raw(raw, c->dtype, channel), unscale), hi = lo;

		for (uint32_t t = 1; t < c->group; t++) {
			float x = sanitize(
				load_raw(raw + (int64_t)t * p->raw_token_stride, c->dtype, channel),
				unscale);

			lo = x < lo ? x : lo;
			hi = x > hi ? x : hi;
		}
		a[j] = affine_of(c->bits, lo, hi);
		kvp_stg_u16(plane + c->scale + 2 * (unit * c->dim + channel), a[j].scale);
		kvp_stg_u16(plane + c->minimum + 2 * (unit * c->dim + channel), a[j].min);
	}
	for (uint32_t t = 0; t < c->group; t++) {
		uint32_t byte = 0;

		for (uint32_t j = 0; j < n; j++) {
			float x = sanitize(load_raw(raw + (int64_t)t * p->raw_token_stride,
						   c->dtype, i + j * c->row_bytes),
				unscale);

			byte |= affine_code(c->bits, a[j], x) << (j * c->bits);
		}
		kvp_stg_u8(plane + c->codes + (first + t) * c->row_bytes + i, byte);
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
			chan_group(c, &p, row.raw, row.plane, head * c->groups + g, kvp_tid());
		return;
	}
	for (uint32_t t = c->coded + kvp_tid() / 32; t < c->tokens; t += kvp_threads() / 32) {
		row.token = t;
		copy_row(native_row(c, &row),
			row.raw + (int64_t)(t - c->coded) * p.raw_token_stride, c->dtype, c->dim,
			kvp_tid() % 32);
	}
}

/* Number of the scalars of element i: per token and group of channels, or per group and channel. */
KVP_DEV uint32_t scalar_index(const struct kvp_cuda_codec *c, const struct row_at *row, uint32_t i)
{
	if (c->kind == KVP_PLANE_K && KVP_CODEC_FAMILY(c->id) == KVP_FAMILY_KIVI)
		return (row->head * c->groups + row->token / c->group) * c->dim + i;
	return row_index(c, row) * c->groups + i / c->group;
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
		uint32_t at = scalar_index(c, &row, i);
		float s = scalar_f16(kvp_ldg_u16(row.plane + c->scale + 2 * at));
		float m = scalar_f16(kvp_ldg_u16(row.plane + c->minimum + 2 * at));
		float x = (float)load_code(codes, c->dim, c->bits, i) * s + m;

		store_raw(row.raw, c->dtype, i, x * pow2i(row.exponent));
	}
}
