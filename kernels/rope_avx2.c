/* SPDX-License-Identifier: Apache-2.0 */
/* RoPE with 8 floats to a register: the bytes of rope.c. */
#include "kernels/rope.h"
#include "kernels/x86_avx2.h"

#define LANES 8u

INLINE __m256 number(__m256 x)
{
	return clamp8(_mm256_and_ps(x, _mm256_cmp_ps(x, x, _CMP_ORD_Q)), ROPE_INPUT_MAX);
}

/* Whole registers; the rest by elements. */
static void load(const uint8_t *row, uint32_t dtype, uint32_t n, float *x)
{
	uint32_t whole = n / LANES;

	for (uint32_t i = 0; i < whole; i++)
		_mm256_storeu_ps(x + LANES * i, number(load8(row, dtype, i)));
	rope_load_from(row, dtype, whole * LANES, n, x);
}

static void store(uint8_t *row, uint32_t dtype, uint32_t n, const float *x)
{
	uint32_t whole = n / LANES;

	for (uint32_t i = 0; i < whole; i++)
		store8(row, dtype, i, _mm256_loadu_ps(x + LANES * i));
	rope_store_from(row, dtype, whole * LANES, n, x);
}

static void turn(
	const struct kvp_rope *rope, uint32_t position, uint32_t undo, struct rope_turn *ret_turn)
{
	rope_turn_make(rope, position, undo, ret_turn);
}

static void turn_row(const struct rope_turn *t, uint32_t dim, const uint8_t *in, uint32_t in_dtype,
	uint8_t *out, uint32_t out_dtype)
{
	float x[KVP_PLANE_DIM_MAX], y[KVP_PLANE_DIM_MAX];

	load(in, in_dtype, dim, x);
	rope_turn_row(t, x, y);
	memcpy(y + t->dim, x + t->dim, (dim - t->dim) * sizeof *y);
	store(out, out_dtype, dim, y);
}

void kvp_rope_slots_avx2(struct dsp *dsp)
{
	dsp->rope_turn = turn;
	dsp->rope_row = turn_row;
}
