/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checked calibration is in memory, and the slots that work on it. Private to kernels/ and
 * its tests.
 */
#ifndef KVP_KERNELS_PCA_H
#define KVP_KERNELS_PCA_H

#include "kernels/kvp_calib.h"
#include "kernels/rans.h"

#define PCA_TILE   RANS_LANES /* tokens whose symbols are one group of the entropy coder */
#define PCA_ROWS   8u         /* tokens whose escapes lie together; divides PCA_BATCH */
#define PCA_BATCH  16u        /* tokens that are transformed together; divides PCA_TILE */
#define PCA_CHUNK  128u       /* terms of a forward sum that are added to all of a batch in turn */
#define PCA_ALIGN  64u        /* ranks and widths in memory are multiples of it */
#define PCA_GROUP  32u        /* components whose axes lie together; divides PCA_ALIGN */
#define PCA_BLOCK  16u        /* components whose symbols are made together; divides PCA_ALIGN */
#define PCA_BLOCKS (KVP_CALIB_WIDTH_MAX / PCA_BLOCK)
#define PCA_SHIFTS (KVP_CALIB_SHIFT_MAX + 1u)

/*
 * Back it goes in integers, of which no order of adding makes others: values of components in 64ths, axes in
 * parts of the largest of their channel. Sums of a token whose values are of 16 bits and add up to
 * PCA_SUM_MAX at most are of 32 bits, whatever a calibration says; others are taken in pieces, as exactly.
 */
#define PCA_VALUE_BITS 6u
#define PCA_AXIS_BITS  13u
#define PCA_SUM_MAX    (INT32_MAX >> PCA_AXIS_BITS)

/* A component beyond it is not coded; what fits is exact in a float. */
#define PCA_QUOTIENT_MAX (1 << 22)
/* The largest magnitude of an element, before and after. */
#define PCA_INPUT_MAX 65504.0f

struct pca_table {
	uint32_t first, count, shift;
	int32_t offset[2];
	int16_t value[KVP_CALIB_SYMBOLS]; /* of symbols, where shift is 0 */
	struct rans_coder coder;
	struct rans_table slots;
};

struct pca_unit {
	uint32_t rank;
	uint32_t rank_stride; /* rank, rounded up; components beyond rank are 0 */
	uint32_t tables;
	uint32_t shifts; /* whether some table's is not 0 */
	/* Of each component, [rank_stride]: what its table says, and the quotients, shifted, that lie
	 * between this and that and all have symbols. */
	int32_t *offset[2];
	int32_t *shift, *least, *most;
	float *mean, *scale; /* [pca->width_stride]; a channel is mean + scale * its sum */
	/* What one register's work reads lies in one piece: rows a power of two apart share few sets of a
	 * cache. */
	float *forward;   /* [rank_stride / PCA_GROUP][width][PCA_GROUP] */
	int16_t *inverse; /* [pca->width_stride / PCA_ALIGN][rank][PCA_ALIGN] */
	struct pca_table *table;
};

/* Low bits of a quotient, all alike: one table for each number of them. */
struct pca_low {
	struct rans_coder coder;
	struct rans_table slots;
};

/* One entry of a file. */
struct kvp_pca {
	uint32_t layer, kind, heads, dim, joint;
	uint32_t width; /* joint * dim */
	uint32_t width_stride;
	uint32_t units;
	float round;
	const struct kvp_rope *rope; /* turns nothing for values */
	const struct pca_low *low;   /* [PCA_SHIFTS] */
	struct pca_unit *unit;
};

/* The symbols of a tile: [component][token]. */
struct pca_tile {
	uint8_t sym[KVP_CALIB_WIDTH_MAX * PCA_TILE];
	uint8_t low[KVP_CALIB_WIDTH_MAX *
		    PCA_TILE]; /* only where the component's table has a shift */
};

/*
 * The components of two tokens but for those that are 0 in both; n is even, what may be the last one is a component
 * whose values are 0. A value of more than 16 bits is in parts, for which its component comes again; of all
 * components PCA_MORE at most do. Who writes them may write up to PCA_SLACK elements more than there are.
 *
 * wide: 0, or what is too large for sums of 32 bits: PCA_WIDE_SUM, what a token's add up to, or
 * PCA_WIDE_VALUE, values, of which the list then has a part only. Rows of such pairs are left as they
 * are. PCA_SUMS: rows are to be the sums themselves, int32_t.
 */
#define PCA_SLACK      16u
#define PCA_MORE       64u
#define PCA_PAIR_MAX   (KVP_CALIB_WIDTH_MAX + PCA_MORE)
#define PCA_WIDE_SUM   1u
#define PCA_WIDE_VALUE 2u
#define PCA_SUMS       4u
struct pca_pair {
	uint32_t n;
	uint32_t wide;
	uint16_t at[PCA_PAIR_MAX + PCA_SLACK];
	int16_t value[2][PCA_PAIR_MAX + PCA_SLACK];
};

/* One of PCA_ROWS tokens, from `at` of a tile on, whose escapes begin at `escape`, to a row of channels. */
void kvp_pca_build_wide(const struct kvp_pca *pca, const struct pca_unit *u,
	const struct pca_tile *tile, uint32_t at, uint32_t token, const uint8_t *escape, float *y);

#endif
