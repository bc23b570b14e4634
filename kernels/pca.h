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
#define PCA_CHUNK  128u       /* terms of a sum that are added to all of a batch in turn */
#define PCA_ALIGN  64u        /* ranks and widths in memory are multiples of it */
#define PCA_GROUP  32u        /* components whose axes lie together; divides PCA_ALIGN */
#define PCA_BLOCK  16u        /* components whose symbols are made together; divides PCA_ALIGN */
#define PCA_BLOCKS (KVP_CALIB_WIDTH_MAX / PCA_BLOCK)
#define PCA_SHIFTS (KVP_CALIB_SHIFT_MAX + 1u)

/* A component beyond it is not coded; what fits is exact in a float. */
#define PCA_QUOTIENT_MAX (1 << 22)
/* The largest magnitude of an element, before and after. */
#define PCA_INPUT_MAX 65504.0f

struct pca_table {
	uint32_t first, count, shift;
	float offset[2];
	float value[KVP_CALIB_SYMBOLS]; /* of symbols, where shift is 0 */
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
	float *offset[2];
	int32_t *shift, *least, *most;
	float *mean; /* [pca->width_stride] */
	/* What one register's work reads lies in one piece: rows a power of two apart share few sets of a
	 * cache. */
	float *forward; /* [rank_stride / PCA_GROUP][width][PCA_GROUP] */
	float *inverse; /* [pca->width_stride / PCA_ALIGN][rank][PCA_ALIGN] */
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
 * Those of PCA_CHUNK components of one token that are not 0, in ascending order. Who writes them may
 * write up to PCA_SLACK elements more than there are.
 */
#define PCA_SLACK 16u
struct pca_list {
	uint32_t n;
	uint16_t at[PCA_CHUNK + PCA_SLACK]; /* from the first of the chunk on */
	float value[PCA_CHUNK + PCA_SLACK];
};

#endif
