/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots that instruction sets override, and the objects they work on. Private to kernels/ and
 * its tests. A slot handles n rows (vectors) of one head; every array is already validated. Rows
 * may be unaligned; codes and scalars of consecutive rows lie one after another.
 */
#ifndef KVP_KERNELS_DSP_H
#define KVP_KERNELS_DSP_H

#include "kernels/codec.h"
#include "kernels/rans.h"

struct rows_in {
	const uint8_t *data;
	ptrdiff_t stride; /* bytes */
	uint32_t n;
	uint32_t dim;
	uint32_t dtype;
	float scale; /* 2^-exponent */
};

struct rows_out {
	uint8_t *data;
	ptrdiff_t stride;
	uint32_t n;
	uint32_t dim;
	uint32_t dtype;
	float scale; /* 2^exponent */
};

/* A rotation R with R R^T = d I. fwd is R x, inv is R^T x. */
struct rotation {
	uint32_t kind; /* KVP_ROT_* */
	uint32_t dim;
	uint32_t order;  /* dim = order * 2^k; 1, 12, 20, 28 or 36 */
	uint32_t rounds; /* 1 or 3; 0 for HAAR */
	const float *haar;
	float rescale;                       /* H3: 1/d; HAAR: sqrt(d) */
	uint32_t sign[3][KVP_PLANE_DIM_MAX]; /* 0 or 0x80000000 */
	uint64_t paley[36];                  /* bit j of row i: H[i][j] is -1 */
	/* H[i][j] at j * order + i, then of H^T: what input j is to all outputs, side by side. */
	float paley_sign[2][36 * 36];
};

struct tq {
	uint32_t bits;
	uint32_t scalar; /* KVP_TQ_* */
	uint32_t wide;
	float cent[16];  /* ascending; 2^bits of them, repeated to fill 16 */
	float bound[16]; /* bound[i] separates i from i + 1; 2^bits - 1 of them, then +infinity */
	/*
	 * A code found by one comparison. Bucket rne(4 z) of the line, at [that mod 32], has the
	 * lowest boundary that is not in a bucket further down, and in the low four bits, which
	 * are 0 in a multiple of 2^-15, its index. No bucket has two boundaries.
	 */
	uint32_t step[32];
	/*
	 * The same for magnitudes: bucket 3.5 |z|, truncated, 7 at most, has the bits of its
	 * positive boundary less 16, and its index among those.
	 */
	uint32_t step_abs[8];
	struct rotation rot;
};

/* One row of scores of up to ATTEND_CHUNK tokens. */
struct softmax {
	float scale;
	const float *mask; /* additive, n of them, or NULL */
	uint32_t n;
	uint32_t lo; /* tokens outside [lo, hi) are not seen */
	uint32_t hi;
};

/* Largest |x| over the finite elements, as fp32 bits. */
typedef uint32_t kvp_amax_fn(const struct rows_in *in);
typedef void kvp_tq_encode_fn(
	const struct tq *tq, const struct rows_in *in, uint8_t *codes, uint8_t *scal);
typedef void kvp_tq_decode_fn(
	const struct tq *tq, const uint8_t *codes, const uint8_t *scal, const struct rows_out *out);
/* Per token, groups of `group` channels. */
typedef void kvp_asym_encode_fn(uint32_t bits, uint32_t group, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min);
typedef void kvp_asym_decode_fn(uint32_t bits, uint32_t group, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out);
/* One group of in->n tokens, per channel. */
typedef void kvp_chan_encode_fn(
	uint32_t bits, const struct rows_in *in, uint8_t *codes, uint8_t *scale, uint8_t *min);
typedef void kvp_chan_decode_fn(uint32_t bits, const uint8_t *codes, const uint8_t *scale,
	const uint8_t *min, const struct rows_out *out);
/* 8-bit codes with one scale per row; format is KVP_CODEC_INT8 or KVP_CODEC_FP8_*. */
typedef void kvp_byte_encode_fn(
	uint32_t format, const struct rows_in *in, uint8_t *codes, uint8_t *scale);
typedef void kvp_byte_decode_fn(
	uint32_t format, const uint8_t *codes, const uint8_t *scale, const struct rows_out *out);
/* Rotation, then one min/max group per row. */
typedef void kvp_had_encode_fn(uint32_t bits, const struct rotation *rot, const struct rows_in *in,
	uint8_t *codes, uint8_t *scale, uint8_t *min);
typedef void kvp_had_decode_fn(uint32_t bits, const struct rotation *rot, const uint8_t *codes,
	const uint8_t *scale, const uint8_t *min, const struct rows_out *out);
/* One row where it lies, there or back. */
typedef void kvp_rotate_fn(const struct rotation *rot, int inverse, float *x);
/* The streaming softmax of one query: what it has seen so far. */
struct running {
	float max;
	float sum; /* of exp(score - max) */
};
/*
 * s[t] = exp(s[t] * scale + mask[t] - m), 0 where not seen, with m = max(run->max, all of them);
 * m = -infinity counts as 0. Writes n elements. What was summed up so far must be multiplied by
 * the returned factor: run->sum was, and has the new weights added.
 */
typedef float kvp_softmax_fn(const struct softmax *job, float *s, struct running *run);

/* RoPE at one position, and one row of it, from any dtype to any; rope.h. */
struct kvp_rope;
struct rope_turn;
typedef void kvp_rope_turn_fn(
	const struct kvp_rope *rope, uint32_t position, uint32_t undo, struct rope_turn *ret_turn);
typedef void kvp_rope_row_fn(const struct rope_turn *turn, uint32_t dim, const uint8_t *in,
	uint32_t in_dtype, uint8_t *out, uint32_t out_dtype);

/* n words of 16 bits, rotated left by so many bits, as their high and low bytes, and back: split.h. */
typedef void kvp_split_fn(
	uint32_t rotate, const uint8_t *words, uint32_t n, uint8_t *high, uint8_t *low);
typedef void kvp_join_fn(
	uint32_t rotate, const uint8_t *high, const uint8_t *low, uint32_t n, uint8_t *words);

/*
 * pca.h, pca_rows.h. PCA_BATCH rows of channels, [width_stride], which are clamped and rid of their means
 * where they lie, to as many rows of quotients, [rank_stride]. And back, from lists of pairs of tokens to n
 * rows of channels, or one more if n is odd; of pairs that are wide see struct pca_pair.
 */
struct kvp_pca;
struct pca_unit;
struct pca_pair;
typedef void kvp_pca_project_fn(
	const struct kvp_pca *pca, const struct pca_unit *u, float *x, int32_t *q);
typedef void kvp_pca_build_fn(const struct kvp_pca *pca, const struct pca_unit *u,
	const struct pca_pair *pair, uint32_t n, float *y);
/*
 * Quotients of n of PCA_ROWS tokens to symbols of the tile's tokens from `at` on; tokens beyond n have
 * components of 0. Blocks of PCA_BLOCK components in which there may be an escape are marked as odd, and
 * theirs are still to be made. And back: lists of PCA_ROWS tokens, with the escapes from `escape` on, which
 * are as many as the symbols say.
 */
struct pca_tile;
typedef void kvp_pca_symbols_fn(const struct pca_unit *u, const int32_t *q, uint32_t n, uint32_t at,
	struct pca_tile *tile, uint8_t *ret_odd);
typedef void kvp_pca_lists_fn(const struct pca_unit *u, const struct pca_tile *tile, uint32_t at,
	const uint8_t *escape, struct pca_pair *pair);

/*
 * kvquant, nuq.h: one row of floats to a row of codes and back. A code is the number of the book's
 * boundaries that (x - middle) * factor exceeds; what is decoded is middle + factor * signpost.
 */
struct nuq_book;
struct nuq_row;
typedef void kvp_nuq_encode_fn(uint32_t bits, const struct nuq_book *book, const struct nuq_row *at,
	const float *x, uint32_t dim, uint8_t *row);
typedef void kvp_nuq_decode_fn(uint32_t bits, const struct nuq_book *book, const struct nuq_row *at,
	const uint8_t *row, uint32_t dim, float *x);

/*
 * squat.h, of one token. Its channels as they are read, but for what is not finite, which has no part in its
 * group's range; a block of them less what they owe to the axes' sums, in the order of axes; what the block's
 * errors add to the sums, in the order of channels; and a row of its codes alone as part of a row of all.
 */
struct squat_part;
typedef void kvp_squat_bend_fn(const struct squat_part *p, const float *sum, float *x);
typedef void kvp_squat_see_fn(
	const struct squat_part *p, const float *x, const float *coded, float *sum);
typedef void kvp_squat_load_fn(const struct rows_in *in, uint32_t t, float *x);
typedef void kvp_squat_place_fn(
	uint32_t bits, const struct squat_part *p, uint32_t at, const uint8_t *own, uint8_t *row);

/* lost.h: what rows of one head lost, y being what they were decoded to, in rows of their own stride. */
typedef void kvp_lost_fn(const struct rows_in *x, const uint8_t *y, ptrdiff_t stride,
	double *ret_lost, double *ret_all);

struct dsp {
	kvp_amax_fn *amax;
	kvp_tq_encode_fn *tq_encode;
	kvp_tq_decode_fn *tq_decode;
	kvp_asym_encode_fn *asym_encode;
	kvp_asym_decode_fn *asym_decode;
	kvp_chan_encode_fn *chan_encode;
	kvp_chan_decode_fn *chan_decode;
	kvp_byte_encode_fn *byte_encode;
	kvp_byte_decode_fn *byte_decode;
	kvp_had_encode_fn *had_encode;
	kvp_had_decode_fn *had_decode;
	kvp_rotate_fn *rotate;
	kvp_softmax_fn *softmax;
	kvp_rope_turn_fn *rope_turn;
	kvp_rope_row_fn *rope_row;
	kvp_split_fn *split;
	kvp_join_fn *join;
	kvp_rans_encode_fn *rans_encode;
	kvp_rans_decode_fn *rans_decode;
	kvp_pca_project_fn *pca_project;
	kvp_pca_build_fn *pca_build;
	kvp_pca_symbols_fn *pca_symbols;
	kvp_pca_lists_fn *pca_lists;
	kvp_nuq_encode_fn *nuq_encode;
	kvp_nuq_decode_fn *nuq_decode;
	kvp_squat_bend_fn *squat_bend;
	kvp_squat_see_fn *squat_see;
	kvp_squat_load_fn *squat_load;
	kvp_squat_place_fn *squat_place;
	kvp_lost_fn *lost;
};

/* Reference C; the others fall back on it for dims that they do not handle. */
kvp_amax_fn kvp_amax_c;
kvp_tq_encode_fn kvp_tq_encode_c;
kvp_tq_decode_fn kvp_tq_decode_c;
kvp_asym_encode_fn kvp_asym_encode_c;
kvp_asym_decode_fn kvp_asym_decode_c;
/* With scalars in fp32: no instruction set has its own. */
kvp_asym_encode_fn kvp_asym_encode_wide;
kvp_asym_decode_fn kvp_asym_decode_wide;
kvp_chan_encode_fn kvp_chan_encode_c;
kvp_chan_decode_fn kvp_chan_decode_c;
kvp_byte_encode_fn kvp_byte_encode_c;
kvp_byte_decode_fn kvp_byte_decode_c;
kvp_had_encode_fn kvp_had_encode_c;
kvp_had_decode_fn kvp_had_decode_c;
kvp_rotate_fn kvp_rotate_c;
kvp_softmax_fn kvp_softmax_c;
kvp_rope_turn_fn kvp_rope_turn_c;
kvp_rope_row_fn kvp_rope_row_c;
kvp_split_fn kvp_split_c;
kvp_join_fn kvp_join_c;
kvp_pca_project_fn kvp_pca_project_c;
kvp_pca_build_fn kvp_pca_build_c;
kvp_pca_symbols_fn kvp_pca_symbols_c;
kvp_pca_lists_fn kvp_pca_lists_c;
kvp_nuq_encode_fn kvp_nuq_encode_c;
kvp_nuq_decode_fn kvp_nuq_decode_c;
kvp_squat_bend_fn kvp_squat_bend_c;
kvp_squat_see_fn kvp_squat_see_c;
kvp_squat_load_fn kvp_squat_load_c;
kvp_squat_place_fn kvp_squat_place_c;
kvp_lost_fn kvp_lost_c;

struct kvp_kernels {
	unsigned int cpu;
	struct dsp dsp;
	struct kvp_codec codec[KVP_FAMILY_MAX_]; /* by family */
	/* Attention over rows of one head, without decoding them; see attend_rows.h. */
	struct {
		kvp_score_fn *score;
		kvp_accumulate_fn *accumulate;
	} attend[KVP_FORMS];
	/*
	 * Matrix tiles or bytes, where there are either: for KV heads with as many queries as are worth
	 * it; these, [rows][dim], become bytes. A thread configures its own tiles for so many queries
	 * of a KV head, and lets go of them; bytes need neither.
	 */
	struct {
		uint32_t least;
		void (*begin)(uint32_t rows);
		void (*end)(void);
		void (*queries)(
			const float *f, uint32_t rows, uint32_t dim, int wide, void *ret_tiles);
		uint32_t any;      /* not of tq in 4 bits alone: of whatever form */
		kvp_step_fn *step; /* scores, softmax and sums of rows in one go */
		/*
		 * For native rows in fp16 or bf16, by tiles of bf16: the same queries for them. Returns
		 * whether it is worth it for so many.
		 */
		int (*pairs)(const float *f, uint32_t rows, uint32_t dim, uint32_t dtype,
			void *ret_pairs);
	} tiles;
};

/* Each instruction set overrides what it does better; C fills everything. */
void kvp_dsp_init_c(struct dsp *dsp);
void kvp_attend_init_c(struct kvp_kernels *k);
#ifdef KVP_HAVE_X86
void kvp_dsp_init_avx2(struct dsp *dsp);
void kvp_dsp_init_avx512(struct dsp *dsp);
void kvp_rope_slots_avx2(struct dsp *dsp);
void kvp_rope_slots_avx512(struct dsp *dsp);
void kvp_rans_slots_avx2(struct dsp *dsp);
void kvp_rans_slots_avx512(struct dsp *dsp);
void kvp_pca_slots_avx2(struct dsp *dsp);
void kvp_pca_slots_avx512(struct dsp *dsp);
void kvp_pca_slots_avx512vl(struct dsp *dsp); /* what halves of registers do sooner */
void kvp_nuq_slots_avx2(struct dsp *dsp);
void kvp_nuq_slots_avx512(struct dsp *dsp);
void kvp_squat_slots_avx2(struct dsp *dsp);
void kvp_squat_slots_avx512(struct dsp *dsp);
void kvp_lost_slots_avx2(struct dsp *dsp);
void kvp_lost_slots_avx512(struct dsp *dsp);
void kvp_attend_init_avx2(struct kvp_kernels *k);
void kvp_attend_init_avx512(struct kvp_kernels *k);
void kvp_attend_init_vbmi(struct kvp_kernels *k);
void kvp_attend_init_bytes(struct kvp_kernels *k);
void kvp_attend_init_any(struct kvp_kernels *k);
void kvp_attend_init_tiles(struct kvp_kernels *k);
void kvp_attend_init_pairs(struct kvp_kernels *k);
#endif
#ifdef KVP_HAVE_NEON
void kvp_dsp_init_neon(struct dsp *dsp);
void kvp_split_slots_neon(struct dsp *dsp);
void kvp_rope_slots_neon(struct dsp *dsp);
void kvp_pca_slots_neon(struct dsp *dsp);
void kvp_nuq_slots_neon(struct dsp *dsp);
void kvp_squat_slots_neon(struct dsp *dsp);
void kvp_lost_slots_neon(struct dsp *dsp);
void kvp_attend_init_neon(struct kvp_kernels *k);
#endif

/* dsp_c.c: the sum tree of products. */
float kvp_dot_c(const float *a, const float *b, uint32_t n);

/* rotate.c */
int kvp_rotation_init(struct rotation *ret_rot, uint32_t kind, uint32_t dim, uint64_t seed,
	const struct kvp_calib *calib);
int kvp_hadamard_order(uint32_t dim); /* 1, 12, 20, 28, 36; -EINVAL */
double kvp_log_portable(double x);    /* the same on every machine; 0 < x <= 1 */
void kvp_rotate_fwd(const struct rotation *rot, float *x);
void kvp_rotate_inv(const struct rotation *rot, float *x);
/* The order-m stage alone: H_m, or its transpose, across blocks of dim / order elements. */
void kvp_rotate_paley(const struct rotation *rot, int transpose, float *x);
#ifdef KVP_HAVE_X86
void kvp_rotate_paley_avx2(const struct rotation *rot, int transpose, float *x);
#endif

/* codebook.c: wire centroids, multiples of 2^-14. dim 0 is the Gaussian. -EINVAL. */
int kvp_codebook(uint32_t bits, uint32_t dim, float *ret_cent, float *ret_bound);
/* The tables of struct tq for boundaries that kvp_codebook() returned. */
void kvp_codebook_steps(
	const float *bound, uint32_t bits, uint32_t *ret_step, uint32_t *ret_step_abs);

#endif
