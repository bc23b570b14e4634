/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host tells the CUDA kernels: codecs and shapes checked and put into their terms, and
 * the table of kernels by name.
 */
#include "kernels/cuda/attend.h"
#include "kernels/cuda/kvp_cuda_kernels.h"
#include "kernels/dsp.h"
#include "kernels/numeric.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define GRID_X_MAX   0x7fffffffu
#define GRID_YZ_MAX  65535u
#define ROW_WARPS    8u /* WARPS of codec.cu */
#define ANY_WARPS    4u
#define BEGIN_SMEM   (ROW_WARPS * 4 * (1 + 256)) /* maxima, and rows by exponent */
#define COPY_THREADS 256u                        /* of layout.cu */

/* ---- codecs ---- */

static void rotation_bits(const struct rotation *rot, struct kvp_cuda_rotation *out)
{
	out->rounds = rot->rounds;
	out->order = rot->order;
	out->rescale = rot->rescale;
	for (uint32_t r = 0; r < rot->rounds; r++)
		for (uint32_t i = 0; i < rot->dim; i++)
			out->sign[r][i / 32] |= rot->sign[r][i] >> 31 << i % 32;
	if (rot->order > 1)
		memcpy(out->paley, rot->paley, sizeof(out->paley));
}

static int init_tq(uint32_t variant, const struct kvp_plane *p, uint64_t seed,
	const struct kvp_cuda_calib *calib, struct kvp_cuda_codec *c)
{
	uint32_t rotation = variant >> 4 & 3u;
	struct rotation rot;
	int r;

	c->bits = (variant & 3u) + 1;
	c->scalar = variant >> 2 & 3u;
	c->wide = variant >> 7 & 1u;
	r = kvp_codebook(
		c->bits, (variant >> 6 & 1u) == KVP_BOOK_SPHERE ? p->dim : 0, c->cent, c->bound);
	if (r < 0)
		return r;
	if (rotation == KVP_ROT_HAAR) {
		if (!calib || calib->dim != p->dim || !calib->haar || !calib->digest)
			return -ENOENT;
		c->calib = calib->digest;
		c->rot.dense = calib->haar;
		c->rot.rescale = sqrtf((float)p->dim);
		return 0;
	}
	c->seed = seed ? seed : KVP_SEED_DEFAULT;
	r = kvp_rotation_init(&rot, rotation, p->dim, c->seed, NULL);
	if (r < 0)
		return r;
	rotation_bits(&rot, &c->rot);
	return 0;
}

static int is_chan(const struct kvp_cuda_codec *c)
{
	return KVP_CODEC_FAMILY(c->id) == KVP_FAMILY_KIVI && c->kind == KVP_PLANE_K;
}

int kvp_cuda_codec_init(uint32_t codec, const struct kvp_plane *p, uint64_t seed,
	const struct kvp_cuda_calib *calib, struct kvp_cuda_codec *ret_codec)
{
	uint32_t variant = KVP_CODEC_VARIANT(codec);
	struct kvp_cuda_codec c = {
		.id = codec,
		.bits = 8,
		.heads = p->heads,
		.dim = p->dim,
		.tokens = p->tokens,
		.dtype = p->dtype,
		.kind = p->kind,
	};
	struct kvp_layout lay;
	int r;

	r = kvp_plane_layout(codec, p, &lay);
	if (r < 0)
		return r;
	c.row_bytes = lay.row_bytes;
	c.group = lay.group;
	c.groups = lay.groups;
	c.coded = lay.coded;
	c.codes = lay.codes;
	c.scale = lay.scale;
	c.minimum = lay.minimum;
	c.native = lay.native;
	c.bytes = lay.bytes;
	switch (KVP_CODEC_FAMILY(codec)) {
	case KVP_FAMILY_NATIVE:
	case KVP_FAMILY_FP8:
	case KVP_FAMILY_INT8:
		break;
	case KVP_FAMILY_KIVI:
	case KVP_FAMILY_ASYM:
		if (variant & KVP_CODEC_WIDE || variant >> 4 == 3)
			return -ENOTSUP;
		c.bits = variant & 15u;
		break;
	case KVP_FAMILY_TQ:
		r = init_tq(variant, p, seed, calib, &c);
		if (r < 0)
			return r;
		break;
	default:
		return -ENOTSUP;
	}
	*ret_codec = c;
	return 0;
}

int kvp_cuda_rotates(const struct kvp_cuda_codec *c)
{
	return c->rot.rounds || c->rot.dense;
}

/* ---- shapes ---- */

static int is_float(uint32_t dtype)
{
	return dtype == KVP_DTYPE_F32 || dtype == KVP_DTYPE_F16 || dtype == KVP_DTYPE_BF16;
}

/* Addresses and strides that the loads and stores of a kernel can live with. */
static int aligned(uint64_t all, uint32_t size)
{
	return size && all % size == 0;
}

static int rows_valid(const struct kvp_cuda_rows *p)
{
	uint64_t raw = p->raw | (uint64_t)p->raw_page_stride | (uint64_t)p->raw_head_stride |
		       (uint64_t)p->raw_token_stride;

	if (!aligned(raw, dtype_bytes(p->codec.dtype)) || !aligned(p->raws | p->pages, 8) ||
		!aligned(p->slots, 4) || !aligned(p->page_offset, KVP_SECTION_ALIGN))
		return 0;
	if (!p->count || !p->pages || !p->codec.heads || !p->codec.tokens || !p->codec.dim ||
		p->codec.heads > KVP_PLANE_HEADS_MAX || p->codec.dim > KVP_PLANE_DIM_MAX ||
		p->codec.tokens > KVP_PLANE_TOKENS_MAX)
		return 0;
	return p->slots ? p->count <= GRID_X_MAX / KVP_PLANE_HEADS_MAX : p->count <= GRID_YZ_MAX;
}

static int shape_warps(
	const struct kvp_cuda_rows *p, uint32_t warps, uint32_t smem, struct kvp_cuda_shape *ret)
{
	uint32_t rows;

	if (!rows_valid(p))
		return -EINVAL;
	rows = p->codec.heads * (p->slots ? p->count : p->codec.tokens);
	*ret = (struct kvp_cuda_shape){
		.grid = { (rows + warps - 1) / warps, p->slots ? 1 : p->count, 1 },
		.threads = 32 * warps,
		.smem_bytes = smem,
	};
	return 0;
}

static int shape_begin(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_rows *p = params;

	if (!rows_valid(p) || p->slots || p->codec.id == KVP_CODEC_NATIVE)
		return -EINVAL;
	if (p->force_exponent && (p->exponent < -120 || p->exponent > 125))
		return -EINVAL;
	*ret = (struct kvp_cuda_shape){
		.grid = { p->count, 1, 1 },
		.threads = 32 * ROW_WARPS,
		.smem_bytes = BEGIN_SMEM,
	};
	return 0;
}

static int shape_native(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_rows *p = params;

	return p->codec.id == KVP_CODEC_NATIVE ? shape_warps(p, ROW_WARPS, 0, ret) : -ENOTSUP;
}

static int shape_tq(const void *params, uint32_t dim, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_rows *p = params;

	/* rows in registers know Hadamard rotations only */
	if (KVP_CODEC_FAMILY(p->codec.id) != KVP_FAMILY_TQ ||
		(dim && (p->codec.dim != dim || p->codec.rot.dense)))
		return -ENOTSUP;
	if (dim)
		return shape_warps(p, ROW_WARPS, 0, ret);
	return shape_warps(p, ANY_WARPS, ANY_WARPS * 2 * 4 * p->codec.dim, ret);
}

static int shape_tq_64(const void *params, struct kvp_cuda_shape *ret)
{
	return shape_tq(params, 64, ret);
}

static int shape_tq_128(const void *params, struct kvp_cuda_shape *ret)
{
	return shape_tq(params, 128, ret);
}

static int shape_tq_256(const void *params, struct kvp_cuda_shape *ret)
{
	return shape_tq(params, 256, ret);
}

static int shape_tq_any(const void *params, struct kvp_cuda_shape *ret)
{
	return shape_tq(params, 0, ret);
}

static int shape_byte(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_rows *p = params;
	uint32_t family = KVP_CODEC_FAMILY(p->codec.id);

	if (family != KVP_FAMILY_FP8 && family != KVP_FAMILY_INT8)
		return -ENOTSUP;
	return shape_warps(p, ROW_WARPS, 0, ret);
}

static int is_affine(const struct kvp_cuda_codec *c)
{
	return KVP_CODEC_FAMILY(c->id) == KVP_FAMILY_KIVI ||
	       KVP_CODEC_FAMILY(c->id) == KVP_FAMILY_ASYM;
}

static int shape_asym_encode(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_rows *p = params;

	if (!is_affine(&p->codec) || is_chan(&p->codec))
		return -ENOTSUP;
	return shape_warps(p, ROW_WARPS, ROW_WARPS * (KVP_PLANE_DIM_MAX / 16) * 4, ret);
}

static int shape_chan_encode(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_rows *p = params;

	if (!is_chan(&p->codec) || p->slots)
		return -ENOTSUP;
	if (!rows_valid(p))
		return -EINVAL;
	*ret = (struct kvp_cuda_shape){
		.grid = { p->codec.heads * (p->codec.groups + 1), p->count, 1 },
		.threads = (p->codec.row_bytes + 31) / 32 * 32,
	};
	return 0;
}

static int shape_affine_decode(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_rows *p = params;

	return is_affine(&p->codec) ? shape_warps(p, ROW_WARPS, 0, ret) : -ENOTSUP;
}

static int shape_copy(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_copy *p = params;
	uint64_t pieces, blocks;
	int64_t all = p->src_offset | p->dst_offset | (int64_t)p->run_bytes;

	if (!p->src || !p->dst || !aligned(p->src | p->dst, 8) || !p->count ||
		p->count > GRID_YZ_MAX || !p->run_bytes || !p->n[0] || !p->n[1] || !p->n[2])
		return -EINVAL;
	for (int i = 0; i < 3; i++)
		all |= p->src_stride[i] | p->dst_stride[i];
	if (all % 16 || __builtin_mul_overflow((uint64_t)p->n[0] * p->n[1], p->n[2], &pieces) ||
		__builtin_mul_overflow(pieces, p->run_bytes / 16, &pieces))
		return -EINVAL;
	/* a thread takes about four pieces where there are many */
	blocks = (pieces + 1023) / 1024;
	*ret = (struct kvp_cuda_shape){
		.grid = { blocks < 65536 ? (uint32_t)blocks : 65536, p->count, 1 },
		.threads = COPY_THREADS,
	};
	return 0;
}

static int shape_runs(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_runs *p = params;
	uint64_t all = 0;
	uint32_t most = 0, blocks;

	if (!p->count || p->count > KVP_CUDA_RUNS)
		return -EINVAL;
	for (uint32_t i = 0; i < p->count; i++) {
		if (!p->to[i] || !p->from[i] || !p->bytes[i])
			return -EINVAL;
		all |= p->to[i] | p->from[i] | p->bytes[i];
		most = p->bytes[i] > most ? p->bytes[i] : most;
	}
	if (all % 16 || most != p->most)
		return -EINVAL;
	/* as many as keep four loads of a thread under way at once */
	blocks = (most / 16 + 4 * COPY_THREADS - 1) / (4 * COPY_THREADS);
	*ret = (struct kvp_cuda_shape){
		.grid = { blocks, p->count, 1 },
		.threads = COPY_THREADS,
	};
	return 0;
}

/* The kind of a plane for the tuned kernels of attention; -ENOTSUP. */
static int attend_kind(const struct kvp_cuda_codec *c)
{
	switch (KVP_CODEC_FAMILY(c->id)) {
	case KVP_FAMILY_NATIVE:
		if (c->dtype == KVP_DTYPE_F16)
			return AK_F16;
		return c->dtype == KVP_DTYPE_BF16 ? AK_BF16 : -ENOTSUP;
	case KVP_FAMILY_FP8:
		return c->id == KVP_CODEC_FP8_E4M3 ? AK_E4M3 : AK_E5M2;
	case KVP_FAMILY_INT8:
		return AK_I8;
	case KVP_FAMILY_KIVI:
	case KVP_FAMILY_ASYM:
		if (c->kind == KVP_PLANE_K && !is_chan(c))
			return -ENOTSUP;
		return c->bits == 4 ? AK_AFF4 : c->bits == 3 ? AK_AFF3 : AK_AFF2;
	case KVP_FAMILY_TQ:
		if (c->wide || c->rot.dense)
			return -ENOTSUP;
		return c->bits == 4 ? AK_TQ4 : c->bits == 3 ? AK_TQ3 : AK_TQ2;
	default:
		return -ENOTSUP;
	}
}

/* Kinds and geometry that the tuned kernels take; whether there is one is for the table to say. */
static int attend_tuned(
	const struct kvp_cuda_codec *k, const struct kvp_cuda_codec *v, int *ret_k, int *ret_v)
{
	int kk = attend_kind(k), vk = attend_kind(v);

	if (kk < 0 || vk < 0 || k->dim != v->dim || (k->dim != 64 && k->dim != 128) ||
		k->tokens % ATTEND_TILE || k->coded != k->tokens)
		return -ENOTSUP;
	/* one table of centroids serves both */
	if (kk == vk && memcmp(k->cent, v->cent, sizeof(k->cent)) != 0)
		return -ENOTSUP;
	*ret_k = kk;
	*ret_v = vk;
	return 0;
}

static int attend_valid(const struct kvp_cuda_attend *p, uint32_t block_rows)
{
	uint64_t rows = (uint64_t)p->queries * p->group;
	uint64_t q = p->q | (uint64_t)p->q_seq_stride | (uint64_t)p->q_query_stride |
		     (uint64_t)p->q_head_stride;
	uint64_t words = p->lengths | p->firsts | p->totals | p->partial | p->mask |
			 (uint64_t)p->mask_seq_stride | (uint64_t)p->mask_query_stride;

	if (!p->q || !p->tables || !p->lengths || !p->partial ||
		!aligned(q, dtype_bytes(p->q_dtype)) || !aligned(words, 4) ||
		!aligned(p->tables, 8) || !aligned(p->k_offset | p->v_offset, KVP_SECTION_ALIGN))
		return 0;
	if (!rows || rows > GRID_X_MAX || !p->splits || p->splits > GRID_X_MAX || !p->seqs ||
		p->seqs > GRID_YZ_MAX || p->split_first > p->split_total ||
		p->splits > p->split_total - p->split_first)
		return 0;
	if (!p->k.heads || p->k.heads != p->v.heads || !p->k.tokens || p->k.tokens != p->v.tokens ||
		p->k.dim > KVP_PLANE_DIM_MAX || p->v.dim > KVP_PLANE_DIM_MAX ||
		(rows + block_rows - 1) / block_rows * p->k.heads > GRID_YZ_MAX)
		return 0;
	return p->k.kind == KVP_PLANE_K && p->v.kind == KVP_PLANE_V && is_float(p->q_dtype);
}

static int shape_attend_blocks(const struct kvp_cuda_attend *p, uint32_t block_rows,
	uint32_t threads, uint32_t smem, struct kvp_cuda_shape *ret)
{
	uint32_t blocks = (p->queries * p->group + block_rows - 1) / block_rows;

	*ret = (struct kvp_cuda_shape){
		.grid = { p->splits, blocks * p->k.heads, p->seqs },
		.threads = threads,
		.smem_bytes = smem,
	};
	return 0;
}

static int shape_attend(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_attend *p = params;
	struct attend_smem s;
	int k, v;

	if (attend_tuned(&p->k, &p->v, &k, &v) < 0)
		return -ENOTSUP;
	if (!attend_valid(p, ATTEND_ROWS))
		return -EINVAL;
	s = attend_smem_of(k, v, p->k.dim);
	return shape_attend_blocks(p, ATTEND_ROWS, 32 * s.warps, s.bytes, ret);
}

/* Bytes of any type cannot be attended over. */
static int is_opaque(const struct kvp_cuda_codec *c)
{
	return c->id == KVP_CODEC_NATIVE && c->dtype == KVP_DTYPE_F8;
}

static int shape_attend_any(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_attend *p = params;

	if (is_opaque(&p->k) || is_opaque(&p->v))
		return -ENOTSUP;
	if (!attend_valid(p, ANY_ROWS))
		return -EINVAL;
	return shape_attend_blocks(
		p, ANY_ROWS, ANY_THREADS, attend_any_smem_of(p->k.dim, p->v.dim).bytes, ret);
}

static int shape_mass(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_mass *p = params;
	int r = shape_attend_any(&p->attend, ret);

	if (r < 0)
		return r;
	if (!p->lse || !p->mass ||
		!aligned(p->lse | p->mass | (uint64_t)p->mass_seq_stride |
				 (uint64_t)p->mass_head_stride,
			4))
		return -EINVAL;
	ret->grid[1] = p->attend.k.heads;
	return 0;
}

static int shape_rotate(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_rotate *p = params;
	uint64_t q = p->q | (uint64_t)p->q_seq_stride | (uint64_t)p->q_query_stride |
		     (uint64_t)p->q_head_stride;
	uint64_t vectors;

	if (!p->q || !p->out || !aligned(q, dtype_bytes(p->q_dtype)) || !aligned(p->out, 4))
		return -EINVAL;
	if (!p->seqs || !p->queries || !p->heads || !p->dim || p->dim > KVP_PLANE_DIM_MAX ||
		!is_float(p->q_dtype) ||
		__builtin_mul_overflow((uint64_t)p->seqs * p->queries, p->heads, &vectors) ||
		vectors > GRID_X_MAX)
		return -EINVAL;
	*ret = (struct kvp_cuda_shape){
		.grid = { (uint32_t)((vectors + ROTATE_WARPS - 1) / ROTATE_WARPS), 1, 1 },
		.threads = 32 * ROTATE_WARPS,
		.smem_bytes = ROTATE_WARPS * 2 * 4 * p->dim,
	};
	return 0;
}

static int shape_merge(const void *params, struct kvp_cuda_shape *ret)
{
	const struct kvp_cuda_merge *p = params;
	uint64_t rows = (uint64_t)p->queries * p->group;
	uint64_t out = p->out | (uint64_t)p->out_seq_stride | (uint64_t)p->out_query_stride |
		       (uint64_t)p->out_head_stride;
	uint32_t end = 0;

	if (!p->partial || !p->out || !aligned(out, dtype_bytes(p->out_dtype)) ||
		!aligned(p->partial | p->lse, 4))
		return -EINVAL;
	if (!rows || rows > GRID_X_MAX || !p->heads || p->heads > GRID_YZ_MAX || !p->seqs ||
		p->seqs > GRID_YZ_MAX || !p->dim || p->dim > KVP_PLANE_DIM_MAX || !p->split_total ||
		!p->domains || p->domains > KVP_CUDA_DOMAINS_MAX || !is_float(p->out_dtype))
		return -EINVAL;
	for (uint32_t d = 0; d < p->domains; d++) {
		if (p->domain[d].split_end < end)
			return -EINVAL;
		end = p->domain[d].split_end;
	}
	if (end != p->split_total)
		return -EINVAL;
	*ret = (struct kvp_cuda_shape){
		.grid = { (uint32_t)((rows + MERGE_WARPS - 1) / MERGE_WARPS), p->heads, p->seqs },
		.threads = 32 * MERGE_WARPS,
		.smem_bytes = MERGE_WARPS * 3 * 4 * p->dim,
	};
	return 0;
}

/* ---- the table ---- */

#define KERNEL(name, params, threads, smem, shape)                \
	{                                                         \
		name, sizeof(struct params), threads, smem, shape \
	}
#define ROWS(name, smem, shape) KERNEL(name, kvp_cuda_rows, 32 * ROW_WARPS, smem, shape)
#define ANY(name, shape) \
	KERNEL(name, kvp_cuda_rows, 32 * ANY_WARPS, ANY_WARPS * 8 * KVP_PLANE_DIM_MAX, shape)
#define TUNED(name) \
	KERNEL(name, kvp_cuda_attend, 32 * ATTEND_WARPS_MAX, ATTEND_SMEM_MAX, shape_attend)
#define ATTEND(k, v) TUNED("kvp_cu_attend_" k "_" v "_64"), TUNED("kvp_cu_attend_" k "_" v "_128")

uint32_t kvp_cuda_splits(uint32_t sms, uint32_t rows, uint32_t tokens)
{
	const uint64_t room = (uint64_t)sms * 2; /* blocks that run at once */
	uint32_t best = 1, most = tokens / 1024;
	double best_full = 0;

	if (!rows || !sms)
		return 1;
	if (rows < sms) {
		best = sms / rows < most ? sms / rows : most;
		return best ? best : 1;
	}
	/* the last blocks shall not be alone */
	for (uint32_t s = 1; s <= 8 && (s == 1 || s <= most) && best_full < .9; s++) {
		uint64_t blocks = (uint64_t)rows * s, turns = (blocks + room - 1) / room;
		double full = (double)blocks / (double)(turns * room);

		if (full > best_full) {
			best_full = full;
			best = s;
		}
	}
	return best;
}

const struct kvp_cuda_kernel kvp_cuda_kernels[] = {
	ROWS("kvp_cu_plane_begin", BEGIN_SMEM, shape_begin),
	ROWS("kvp_cu_native_encode", 0, shape_native),
	ROWS("kvp_cu_native_decode", 0, shape_native),
	ROWS("kvp_cu_tq_encode_64", 0, shape_tq_64),
	ROWS("kvp_cu_tq_encode_128", 0, shape_tq_128),
	ROWS("kvp_cu_tq_encode_256", 0, shape_tq_256),
	ANY("kvp_cu_tq_encode_any", shape_tq_any),
	ROWS("kvp_cu_tq_decode_64", 0, shape_tq_64),
	ROWS("kvp_cu_tq_decode_128", 0, shape_tq_128),
	ROWS("kvp_cu_tq_decode_256", 0, shape_tq_256),
	ANY("kvp_cu_tq_decode_any", shape_tq_any),
	ROWS("kvp_cu_byte_encode", 0, shape_byte),
	ROWS("kvp_cu_byte_decode", 0, shape_byte),
	ROWS("kvp_cu_asym_encode", 2u << 10, shape_asym_encode),
	KERNEL("kvp_cu_chan_encode", kvp_cuda_rows, KVP_PLANE_DIM_MAX / 2, 0, shape_chan_encode),
	ROWS("kvp_cu_affine_decode", 0, shape_affine_decode),
	KERNEL("kvp_cu_copy", kvp_cuda_copy, COPY_THREADS, 0, shape_copy),
	KERNEL("kvp_cu_runs", kvp_cuda_runs, COPY_THREADS, 0, shape_runs),
	ATTEND("f16", "f16"),
	ATTEND("bf16", "bf16"),
	ATTEND("e4m3", "e4m3"),
	ATTEND("e5m2", "e5m2"),
	ATTEND("aff4", "aff4"),
	ATTEND("aff2", "aff2"),
	ATTEND("tq4", "tq4"),
	ATTEND("tq3", "tq3"),
	ATTEND("tq2", "tq2"),
	ATTEND("e4m3", "aff4"),
	ATTEND("tq4", "aff4"),
	ATTEND("tq3", "aff4"),
	ATTEND("i8", "i8"),
	ATTEND("aff3", "aff3"),
	ATTEND("tq3", "aff3"),
	KERNEL("kvp_cu_attend_any", kvp_cuda_attend, ANY_THREADS, ATTEND_SMEM_MAX,
		shape_attend_any),
	KERNEL("kvp_cu_rotate", kvp_cuda_rotate, 32 * ROTATE_WARPS,
		ROTATE_WARPS * 8 * KVP_PLANE_DIM_MAX, shape_rotate),
	KERNEL("kvp_cu_mass", kvp_cuda_mass, ANY_THREADS, ATTEND_SMEM_MAX, shape_mass),
	KERNEL("kvp_cu_merge", kvp_cuda_merge, 32 * MERGE_WARPS,
		MERGE_WARPS * 12 * KVP_PLANE_DIM_MAX, shape_merge),
};
const uint32_t kvp_cuda_kernel_count = sizeof(kvp_cuda_kernels) / sizeof(kvp_cuda_kernels[0]);

int kvp_cuda_kernel_find(const char *name, const struct kvp_cuda_kernel **ret_kernel)
{
	for (uint32_t i = 0; i < kvp_cuda_kernel_count; i++) {
		if (strcmp(kvp_cuda_kernels[i].name, name) == 0) {
			*ret_kernel = &kvp_cuda_kernels[i];
			return 0;
		}
	}
	return -ENOENT;
}

static int find_codec_kernel(
	const struct kvp_cuda_codec *c, const char *op, const struct kvp_cuda_kernel **ret)
{
	const char *family;
	char name[64], size[8] = "";

	switch (KVP_CODEC_FAMILY(c->id)) {
	case KVP_FAMILY_NATIVE:
		family = "native";
		break;
	case KVP_FAMILY_FP8:
	case KVP_FAMILY_INT8:
		family = "byte";
		break;
	case KVP_FAMILY_KIVI:
	case KVP_FAMILY_ASYM:
		family = strcmp(op, "decode") == 0 ? "affine" : is_chan(c) ? "chan" : "asym";
		break;
	case KVP_FAMILY_TQ:
		family = "tq";
		snprintf(size, sizeof(size), "_%s",
			c->rot.dense    ? "any"
			: c->dim == 64  ? "64"
			: c->dim == 128 ? "128"
			: c->dim == 256 ? "256"
					: "any");
		break;
	default:
		return -ENOTSUP;
	}
	snprintf(name, sizeof(name), "kvp_cu_%s_%s%s", family, op, size);
	return kvp_cuda_kernel_find(name, ret) < 0 ? -ENOTSUP : 0;
}

int kvp_cuda_encode_kernel(
	const struct kvp_cuda_codec *c, const struct kvp_cuda_kernel **ret_kernel)
{
	return find_codec_kernel(c, "encode", ret_kernel);
}

int kvp_cuda_decode_kernel(
	const struct kvp_cuda_codec *c, const struct kvp_cuda_kernel **ret_kernel)
{
	return find_codec_kernel(c, "decode", ret_kernel);
}

int kvp_cuda_attend_kernel(const struct kvp_cuda_codec *k, const struct kvp_cuda_codec *v,
	const struct kvp_cuda_kernel **ret_kernel)
{
	static const char *const kinds[AK_KINDS] = { "f16", "bf16", "e4m3", "e5m2", "i8", "aff4",
		"aff3", "aff2", "tq4", "tq3", "tq2" };
	char name[64];
	int kk, vk;

	if (is_opaque(k) || is_opaque(v))
		return -ENOTSUP;
	if (attend_tuned(k, v, &kk, &vk) == 0) {
		snprintf(
			name, sizeof(name), "kvp_cu_attend_%s_%s_%u", kinds[kk], kinds[vk], k->dim);
		if (kvp_cuda_kernel_find(name, ret_kernel) == 0)
			return 0;
	}
	return kvp_cuda_kernel_find("kvp_cu_attend_any", ret_kernel);
}
