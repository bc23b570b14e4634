/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of RoPE in registers of any width, included by the file of one instruction set after it has said
 * LANES, lanes, number(), and how a register is loaded and stored: get(), put(), load_lanes(), store_lanes().
 */
#ifndef KVP_ROPE_ROWS_H
#define KVP_ROPE_ROWS_H

/* Whole registers; the rest by elements. */
static void load(const uint8_t *row, uint32_t dtype, uint32_t n, float *x)
{
	uint32_t whole = n / LANES;

	for (uint32_t i = 0; i < whole; i++)
		put(x + LANES * i, number(load_lanes(row, dtype, i)));
	rope_load_from(row, dtype, whole * LANES, n, x);
}

static void store(uint8_t *row, uint32_t dtype, uint32_t n, const float *x)
{
	uint32_t whole = n / LANES;

	for (uint32_t i = 0; i < whole; i++)
		store_lanes(row, dtype, i, get(x + LANES * i));
	rope_store_from(row, dtype, whole * LANES, n, x);
}

static void turn(
	const struct kvp_rope *rope, uint32_t position, uint32_t undo, struct rope_turn *ret_turn)
{
	rope_turn_make(rope, position, undo, ret_turn);
}

/* Whole rows of half-split pairs, in registers of halves. */
static void turn_halves(const struct rope_turn *t, const uint8_t *in, uint32_t in_dtype,
	uint8_t *out, uint32_t out_dtype)
{
	const uint32_t half = t->dim / 2, n = half / LANES;

	for (uint32_t i = 0; i < n; i++) {
		const uint32_t j = LANES * i, k = half + j;
		const lanes x = number(load_lanes(in, in_dtype, i));
		const lanes y = number(load_lanes(in, in_dtype, n + i));

		store_lanes(out, out_dtype, i, x * get(t->self + j) + y * get(t->other + j));
		store_lanes(out, out_dtype, n + i, y * get(t->self + k) + x * get(t->other + k));
	}
}

static void turn_row(const struct rope_turn *t, uint32_t dim, const uint8_t *in, uint32_t in_dtype,
	uint8_t *out, uint32_t out_dtype)
{
	float x[KVP_PLANE_DIM_MAX], y[KVP_PLANE_DIM_MAX];

	if (t->pairing == KVP_ROPE_HALF_SPLIT && t->dim == dim && dim % (2 * LANES) == 0) {
		turn_halves(t, in, in_dtype, out, out_dtype);
		return;
	}
	load(in, in_dtype, dim, x);
	if (!t->dim) {
		store(out, out_dtype, dim, x);
		return;
	}
	rope_turn_row(t, x, y);
	memcpy(y + t->dim, x + t->dim, (dim - t->dim) * sizeof *y);
	store(out, out_dtype, dim, y);
}

#endif
