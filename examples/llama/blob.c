/* SPDX-License-Identifier: Apache-2.0 */
/* The frame of a state blob: learnt, written, read. */
#include "blob.h"

#include <errno.h>
#include <string.h>

#define HEAD 16u /* magic, sequence, streams, cells */
#define CELL 12u /* position, sequences, sequence */
#define MID  8u  /* transposed, layers */
#define ROWS 12u /* type, bytes of a row */

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p)
{
	return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static void put32(uint8_t *p, uint32_t v)
{
	for (unsigned i = 0; i < 4; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)v);
	put32(p + 4, (uint32_t)(v >> 32));
}

static size_t rows_begin(uint32_t n_cells)
{
	return HEAD + (size_t)n_cells * CELL + MID;
}

/* Reads what stands before a layer's rows at *at, and steps over them. */
static int learn_rows(const uint8_t *blob, size_t bytes, uint32_t n_cells, size_t *at,
	int32_t *ret_type, uint64_t *ret_row)
{
	uint64_t row;

	if (bytes - *at < ROWS)
		return -EPROTO;
	row = get64(blob + *at + 4);
	if (row == 0 || row > (bytes - *at - ROWS) / n_cells)
		return -EPROTO;
	*ret_type = (int32_t)get32(blob + *at);
	*ret_row = row;
	*at += ROWS + (size_t)row * n_cells;
	return 0;
}

int llb_learn(struct llb_shape *ret_shape, const uint8_t *blob, size_t bytes, uint32_t n_cells)
{
	struct llb_shape s = { 0 };
	uint32_t cell_of;
	size_t at = rows_begin(n_cells);
	int r = 0;

	if (n_cells == 0 || n_cells > UINT16_MAX || bytes < at)
		return -EPROTO;
	memcpy(s.magic, blob, sizeof(s.magic));
	s.n_layers = get32(blob + at - 4);
	if (s.n_layers == 0 || s.n_layers > LLB_LAYERS_MAX)
		return -EPROTO;
	for (uint32_t i = 0; !r && i < s.n_layers; i++)
		r = learn_rows(blob, bytes, n_cells, &at, &s.layers[i].k_type, &s.layers[i].k_row);
	/* All layers have values, or none has. */
	for (uint32_t i = 0; !r && at < bytes && i < s.n_layers; i++)
		r = learn_rows(blob, bytes, n_cells, &at, &s.layers[i].v_type, &s.layers[i].v_row);
	if (r || at != bytes)
		return -EPROTO;
	for (uint32_t i = 0; i < s.n_layers; i++) {
		if (!s.layers[i].v_row != !s.layers[0].v_row)
			return -EPROTO;
		s.token_bytes += s.layers[i].k_row + s.layers[i].v_row;
	}
	if (llb_read_frame(&s, blob, bytes, &cell_of, 1) != n_cells)
		return -EPROTO;
	for (uint32_t i = 0; i < n_cells; i++)
		if (get32(blob + HEAD + (size_t)i * CELL) != i)
			return -EPROTO;
	*ret_shape = s;
	return 0;
}

size_t llb_bytes(const struct llb_shape *shape, uint32_t n_cells)
{
	size_t parts = shape->layers[0].v_row ? 2 : 1;

	return rows_begin(n_cells) + parts * shape->n_layers * ROWS +
	       (size_t)shape->token_bytes * n_cells;
}

size_t llb_keys_at(const struct llb_shape *shape, uint32_t n_cells, uint32_t layer)
{
	size_t at = rows_begin(n_cells) + ROWS;

	for (uint32_t i = 0; i < layer; i++)
		at += ROWS + (size_t)shape->layers[i].k_row * n_cells;
	return at;
}

size_t llb_values_at(const struct llb_shape *shape, uint32_t n_cells, uint32_t layer)
{
	size_t at = llb_keys_at(shape, n_cells, shape->n_layers);

	for (uint32_t i = 0; i < layer; i++)
		at += ROWS + (size_t)shape->layers[i].v_row * n_cells;
	return at;
}

void llb_write_frame(const struct llb_shape *shape, uint8_t *blob, uint32_t n_cells)
{
	uint8_t *p = blob + HEAD;

	memcpy(blob, shape->magic, sizeof(shape->magic));
	put32(blob + 4, 0);
	put32(blob + 8, 1);
	put32(blob + 12, n_cells);
	for (uint32_t i = 0; i < n_cells; i++, p += CELL) {
		put32(p, i);
		put32(p + 4, 1);
		put32(p + 8, 0);
	}
	put32(p, 0);
	put32(p + 4, shape->n_layers);
	for (uint32_t i = 0; i < shape->n_layers; i++) {
		const struct llb_layer *l = &shape->layers[i];

		p = blob + llb_keys_at(shape, n_cells, i) - ROWS;
		put32(p, (uint32_t)l->k_type);
		put64(p + 4, l->k_row);
		if (!l->v_row)
			continue;
		p = blob + llb_values_at(shape, n_cells, i) - ROWS;
		put32(p, (uint32_t)l->v_type);
		put64(p + 4, l->v_row);
	}
}

static int same_rows(const uint8_t *rows, int32_t type, uint64_t row)
{
	return get32(rows - ROWS) == (uint32_t)type && get64(rows - ROWS + 4) == row;
}

int64_t llb_read_frame(const struct llb_shape *shape, const uint8_t *blob, size_t bytes,
	uint32_t *cell_of, uint32_t n)
{
	uint32_t n_cells, seen = 0;

	if (bytes < HEAD || memcmp(blob, shape->magic, sizeof(shape->magic)) != 0 ||
		get32(blob + 8) != 1)
		return -EPROTO;
	n_cells = get32(blob + 12);
	if (n_cells > bytes / CELL || bytes != llb_bytes(shape, n_cells))
		return -EPROTO;
	for (uint32_t i = 0; i < n; i++)
		cell_of[i] = UINT32_MAX;
	for (uint32_t i = 0; i < n_cells; i++) {
		const uint8_t *cell = blob + HEAD + (size_t)i * CELL;
		uint32_t position = get32(cell);

		if (get32(cell + 4) != 1)
			return -EPROTO;
		if (position < n) {
			if (cell_of[position] != UINT32_MAX)
				return -ENOENT;
			cell_of[position] = i;
			seen++;
		}
	}
	if (get32(blob + rows_begin(n_cells) - MID) != 0 ||
		get32(blob + rows_begin(n_cells) - 4) != shape->n_layers)
		return -EPROTO;
	for (uint32_t i = 0; i < shape->n_layers; i++) {
		const struct llb_layer *l = &shape->layers[i];

		if (!same_rows(blob + llb_keys_at(shape, n_cells, i), l->k_type, l->k_row) ||
			(l->v_row && !same_rows(blob + llb_values_at(shape, n_cells, i), l->v_type,
					     l->v_row)))
			return -EPROTO;
	}
	return seen == n ? (int64_t)n_cells : -ENOENT;
}
