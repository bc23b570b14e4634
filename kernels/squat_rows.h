/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of squat, written once and compiled with each instruction set, for which compilers turn these loops
 * into vectors. Only exactly rounded operations, in this order: so all of them give the same bits.
 */
#ifndef KVP_KERNELS_SQUAT_ROWS_H
#define KVP_KERNELS_SQUAT_ROWS_H

#include "kernels/dsp.h"
#include "kernels/numeric.h"
#include "kernels/rowcode.h"
#include "kernels/squat.h"

/* f16_to_f32() without a branch, and a NaN may be another one. */
static inline float half(uint16_t h)
{
	const uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u)
									 << 16;
	const uint32_t bits = f32_bits(f32_from_bits(magnitude) * 0x1p112f);

	return f32_from_bits(sign | (magnitude < 31u << 23 ? bits : magnitude | 0x7f800000u));
}

static void load(const struct rows_in *in, uint32_t t, float *restrict x)
{
	const uint8_t *row = in->data + (ptrdiff_t)t * in->stride;
	const float scale = in->scale;
	uint16_t word[KVP_SQUAT_BLOCK];

	memcpy(in->dtype == KVP_DTYPE_F32 ? (void *)x : word, row,
		in->dim * dtype_bytes(in->dtype));
	if (in->dtype == KVP_DTYPE_F16)
		for (uint32_t i = 0; i < in->dim; i++)
			x[i] = half(word[i]);
	else if (in->dtype == KVP_DTYPE_BF16)
		for (uint32_t i = 0; i < in->dim; i++)
			x[i] = bf16_to_f32(word[i]);
	for (uint32_t i = 0; i < in->dim; i++) {
		const float y = clampf(x[i] * scale, KVP_INPUT_MAX);

		x[i] = is_finite(x[i]) ? y : x[i];
	}
}

#define SIDE 8u /* channels at a time, of which a block has a multiple */

static void bend(const struct squat_part *p, const float *restrict sum, float *restrict x)
{
	for (uint32_t at = 0; at < p->n; at += SIDE) {
		float y[SIDE];

		memcpy(y, x + at, sizeof y);
		for (uint32_t j = 0; j < p->rank; j++)
			for (uint32_t i = 0; i < SIDE; i++)
				y[i] -= p->bend[(size_t)j * p->dim + at + i] * sum[j];
		memcpy(x + at, y, sizeof y);
	}
}

static void see(const struct squat_part *p, const float *restrict x, const float *restrict coded,
	float *restrict sum)
{
	float e[KVP_SQUAT_BLOCK];

	for (uint32_t i = 0; i < p->n; i++)
		e[i] = is_finite(x[i]) ? coded[i] - x[i] : 0.0f;
	for (uint32_t at = 0; at < p->lanes; at += SQUAT_LANES) {
		float s[SQUAT_LANES];

		memcpy(s, sum + at, sizeof s);
		for (uint32_t i = 0; i < p->n; i++)
			for (uint32_t j = 0; j < SQUAT_LANES; j++)
				s[j] += p->seen[(size_t)i * p->lanes + at + j] * e[i];
		memcpy(sum + at, s, sizeof s);
	}
}

/* Codes of one width of a row's fields into it, `shift` bits up. */
static void place_field(const uint8_t *restrict code, uint32_t n, uint32_t mask, uint32_t shift,
	uint8_t *restrict row)
{
	for (uint32_t i = 0; i < n; i++)
		row[i] |= (uint8_t)((code[i] & mask) << shift);
}

static void place(
	uint32_t bits, const struct squat_part *p, uint32_t at, const uint8_t *own, uint8_t *row)
{
	const uint32_t fields = bits == 4 ? 2 : 4, width = p->dim / fields,
		       own_width = p->n / fields;
	const uint32_t mask = bits == 4 ? 15u : 3u, step = 8 / fields;
	uint8_t code[KVP_SQUAT_BLOCK];

	for (uint32_t f = 0; f < fields; f++)
		for (uint32_t i = 0; i < own_width; i++)
			code[f * own_width + i] = (uint8_t)(own[i] >> f * step & mask);
	for (uint32_t i = 0, n; i < p->n; i += n) {
		const uint32_t field = (at + i) / width, left = (field + 1) * width - at - i;

		n = p->n - i < left ? p->n - i : left;
		place_field(code + i, n, mask, field * step, row + at + i - field * width);
	}
	if (bits == 3)
		memcpy(row + width + at / 8, own + own_width, p->n / 8);
}

#endif
