/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of one sequence as llama_state_seq_get_data() writes it and llama_state_seq_set_data()
 * takes it: what stands before, between and after the rows of the cache, so that rows can be put
 * into a blob, or taken out of one, without the context's help. Numbers are little-endian.
 *
 *	u32 magic, i32 sequence, u32 streams = 1, u32 cells
 *	for each cell: i32 position, u32 1, i32 sequence
 *	u32 values are transposed = 0, u32 layers
 *	for each layer: i32 type, u64 bytes of a row, a row of keys for each cell
 *	the same for values, unless the model has none (MLA)
 *
 * The format is llama.cpp's own affair and has changed before. So nothing of it is taken for granted:
 * shapes are learnt from a blob that the running library has just written, and a library that writes
 * anything else is refused.
 */
#ifndef KVL_BLOB_H
#define KVL_BLOB_H

#include <stddef.h>
#include <stdint.h>

#define LLB_LAYERS_MAX 256u

struct llb_layer {
	int32_t k_type, v_type; /* enum ggml_type */
	uint64_t k_row, v_row;  /* bytes that a token has; v_row 0: no values */
};

struct llb_shape {
	uint8_t magic[4];
	uint32_t n_layers;
	struct llb_layer layers[LLB_LAYERS_MAX];
	uint64_t token_bytes; /* the sum of all rows */
};

/*
 * Learns the shape from the blob of a sequence that has exactly the positions 0 to n_cells - 1.
 * -EPROTO: it is anything but the format above.
 */
int llb_learn(struct llb_shape *ret_shape, const uint8_t *blob, size_t bytes, uint32_t n_cells);

/* Bytes of a blob of so many cells. */
size_t llb_bytes(const struct llb_shape *shape, uint32_t n_cells);
/* Where the rows of a layer's keys and values begin in it. */
size_t llb_keys_at(const struct llb_shape *shape, uint32_t n_cells, uint32_t layer);
size_t llb_values_at(const struct llb_shape *shape, uint32_t n_cells, uint32_t layer);

/* Writes all that is not a row, of positions 0 to n_cells - 1, into llb_bytes() of memory. */
void llb_write_frame(const struct llb_shape *shape, uint8_t *blob, uint32_t n_cells);

/*
 * Checks what is not a row in a blob, and fills cell_of[0..n): in which cell position i lies. Cells may
 * be in any order and more than n. Returns how many cells there are. -EPROTO: not of this shape;
 * -ENOENT: one of the first n positions is not there, or is there twice.
 */
int64_t llb_read_frame(const struct llb_shape *shape, const uint8_t *blob, size_t bytes,
	uint32_t *cell_of, uint32_t n);

#endif
