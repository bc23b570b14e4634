/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the attention kernels lay out shared memory: read by attend.cu and by the shape functions in
 * table.c, so that both sides count the same bytes. Private to kernels/cuda.
 *
 *	LUT	K codes -> pairs of fp16; V codes likewise, unless it is the same table
 *	stages	per warp, a ring of steps of one tile of 16 tokens or two
 * After the last step everything from 0 on is reused: sums of each warp, then maxima and weights.
 */
#ifndef KVP_CUDA_ATTEND_H
#define KVP_CUDA_ATTEND_H

#include <stdint.h>

#if defined(__CUDACC__)
#define ATTEND_FN static constexpr __host__ __device__ __forceinline__
#define ATTEND_ZERO \
	{           \
	}
#elif defined(__cplusplus)
#define ATTEND_FN static constexpr inline
#define ATTEND_ZERO \
	{           \
	}
#else
#define ATTEND_FN static inline
#define ATTEND_ZERO \
	{           \
		0   \
	}
#endif

#define ATTEND_WARPS_MAX 8
#define ATTEND_TILE      16 /* tokens of one product of matrices */
#define ATTEND_TILES_MAX 2  /* of one step of a warp */
#define ATTEND_ROWS      8  /* queries x heads of one block */

/* Blocks that a multiprocessor runs at once, and shares its registers among: as shared memory allows,
 * of which sm_90 and sm_100 have 228 KiB, the others for one block alone. */
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
#define ATTEND_BLOCKS 1
#else
#define ATTEND_BLOCKS 2
#endif

/* What every device that we compile for grants a block; sm_120 has the least. */
#define ATTEND_SMEM_MAX (99u << 10)

/* The general kernel and that of attention mass: a warp per query row, a tile of decoded rows. */
#define ANY_ROWS    8
#define ANY_THREADS (32 * ANY_ROWS)
#define ANY_TILE    16
/* Vectors of one block; a vector being rotated takes twice its size, one being merged thrice. */
#define ROTATE_WARPS 4
#define MERGE_WARPS  4

/* Kinds of planes. */
#define AK_F16   0
#define AK_BF16  1
#define AK_E4M3  2
#define AK_E5M2  3
#define AK_I8    4
#define AK_AFF4  5 /* kivi; as V also asym */
#define AK_AFF3  6
#define AK_AFF2  7
#define AK_TQ4   8
#define AK_TQ3   9
#define AK_TQ2   10
#define AK_KINDS 11

ATTEND_FN int ak_native(int kind)
{
	return kind == AK_F16 || kind == AK_BF16;
}
ATTEND_FN int ak_byte(int kind)
{
	return kind >= AK_E4M3 && kind <= AK_I8;
}
ATTEND_FN int ak_affine(int kind)
{
	return kind >= AK_AFF4 && kind <= AK_AFF2;
}
ATTEND_FN int ak_tq(int kind)
{
	return kind >= AK_TQ4;
}

ATTEND_FN uint32_t ak_bits(int kind)
{
	if (ak_native(kind))
		return 16;
	if (ak_byte(kind))
		return 8;
	if (kind == AK_AFF3 || kind == AK_TQ3)
		return 3;
	return kind == AK_AFF2 || kind == AK_TQ2 ? 2 : 4;
}

ATTEND_FN uint32_t ak_row(int kind, uint32_t dim)
{
	return dim * ak_bits(kind) / 8;
}

/* Distance of rows in a tile: padded so that the lanes of one load hit different banks. */
ATTEND_FN uint32_t ak_k_stride(int kind, uint32_t dim)
{
	uint32_t row = ak_row(kind, dim);

	return row >= 128 ? row + 64 : row;
}
/* Rows of 64 bytes of V are not padded but permuted: see v_place(). */
ATTEND_FN uint32_t ak_v_stride(int kind, uint32_t dim)
{
	uint32_t row = ak_row(kind, dim);

	return row % 32 == 0 && row != 64 ? row + 16 : row;
}

/* Bytes of the scalars of a tile; affine V may have a group per 16 channels. */
ATTEND_FN uint32_t ak_k_scalars(int kind, uint32_t dim)
{
	return ak_native(kind) ? 0 : ak_affine(kind) ? 4 * dim : 2 * ATTEND_TILE;
}
ATTEND_FN uint32_t ak_v_scalars(int kind, uint32_t dim)
{
	return ak_native(kind)   ? 0
	       : ak_affine(kind) ? 4 * ATTEND_TILE * (dim / 16)
				 : 2 * ATTEND_TILE;
}

/* Bytes of a plane's header in a tile: the part with the exponent. */
ATTEND_FN uint32_t ak_header(int kind)
{
	return ak_native(kind) ? 0 : 16;
}

/* Tiles of one step: what a step costs beside its tokens is shared by two where both are small. */
ATTEND_FN uint32_t ak_tiles(int k, int v)
{
	return ak_tq(k) && ak_tq(v) ? 2 : 1;
}

/* As many blocks as there is room for; the kernels that take the most registers run alone. */
ATTEND_FN uint32_t ak_blocks(int k, int v)
{
	return k == AK_AFF3 || v == AK_AFF3 ? 1 : ATTEND_BLOCKS;
}

/* Entries of the table from a pair of codes (of 3 bits in fields of 4) to a pair of numbers; each has a word per lane. */
ATTEND_FN uint32_t ak_lut_entries(int kind)
{
	return ak_bits(kind) > 4 ? 0 : ak_bits(kind) == 3 ? 128 : 1u << 2 * ak_bits(kind);
}

/* Do both planes read one table? tq planes of one kind must then have the same centroids. */
ATTEND_FN int ak_lut_shared(int k, int v)
{
	return k == v;
}

struct attend_smem {
	uint32_t k_lut;
	uint32_t v_lut;
	uint32_t stages;      /* of warp 0 */
	uint32_t stage_count; /* per warp */
	uint32_t stage;       /* bytes of one */
	uint32_t tile;        /* bytes of a tile in a stage, which begins with the codes of K */
	uint32_t k_scalars;
	uint32_t k_header;
	uint32_t v_codes;
	uint32_t v_scalars;
	uint32_t v_header;
	uint32_t warps; /* of a block */
	uint32_t bytes;
};

/* As many warps as get two stages; and a third stage where there is room. */
ATTEND_FN struct attend_smem attend_smem_of(int k, int v, uint32_t dim)
{
	struct attend_smem s = ATTEND_ZERO;
	uint32_t sums = 0;

	s.k_lut = 0;
	s.stages = ak_lut_entries(k) * 128;
	s.v_lut = ak_lut_shared(k, v) ? 0 : s.stages;
	s.stages += ak_lut_shared(k, v) ? 0 : ak_lut_entries(v) * 128;
	s.k_scalars = ATTEND_TILE * ak_k_stride(k, dim);
	s.k_header = s.k_scalars + ak_k_scalars(k, dim);
	s.v_codes = s.k_header + ak_header(k);
	s.v_scalars = s.v_codes + ATTEND_TILE * ak_v_stride(v, dim);
	s.v_header = s.v_scalars + ak_v_scalars(v, dim);
	s.tile = s.v_header + ak_header(v);
	s.stage = ak_tiles(k, v) * s.tile;
	s.warps = ATTEND_WARPS_MAX;
	if (s.stages + s.warps * 2 * s.stage > ATTEND_SMEM_MAX)
		s.warps /= 2;
	s.stage_count = s.stages + s.warps * 3 * s.stage > ATTEND_SMEM_MAX ? 2 : 3;
	s.bytes = s.stages + s.warps * s.stage_count * s.stage;
	sums = s.warps * ATTEND_ROWS * (dim + 2) * 4;
	s.bytes = s.bytes > sums ? s.bytes : sums;
	return s;
}

/* Of the general kernel: queries, weights and fades of the rows, a tile of K or V, all fp32. */
struct attend_any_smem {
	uint32_t queries;
	uint32_t weights;
	uint32_t fades;
	uint32_t tile;
	uint32_t bytes;
};

ATTEND_FN struct attend_any_smem attend_any_smem_of(uint32_t k_dim, uint32_t v_dim)
{
	struct attend_any_smem s = ATTEND_ZERO;

	s.queries = 0;
	s.weights = 4 * ANY_ROWS * k_dim;
	s.fades = s.weights + 4 * ANY_ROWS * ANY_TILE;
	s.tile = s.fades + 4 * ANY_ROWS;
	s.bytes = s.tile + 4 * ANY_TILE * (k_dim > v_dim ? k_dim : v_dim);
	return s;
}

#endif
