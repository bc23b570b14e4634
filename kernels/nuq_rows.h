/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of kvquant, written once and compiled with each instruction set, for which compilers turn these
 * loops into vectors. Only exactly rounded operations, in this order: so all of them give the same bits.
 */
#ifndef KVP_KERNELS_NUQ_ROWS_H
#define KVP_KERNELS_NUQ_ROWS_H

#include "kernels/dsp.h"
#include "kernels/nuq.h"
#include "kernels/rowcode.h"

/* rowcode.h, in loops that have no division. */
static void unpack2(uint32_t dim, const uint8_t *restrict row, uint8_t *restrict code)
{
	for (uint32_t i = 0; i < dim / 4; i++) {
		code[i] = row[i] & 3u;
		code[i + dim / 4] = row[i] >> 2 & 3u;
		code[i + dim / 2] = row[i] >> 4 & 3u;
		code[i + 3 * (dim / 4)] = row[i] >> 6;
	}
}

static void unpack(uint32_t bits, uint32_t dim, const uint8_t *restrict row, uint8_t *restrict code)
{
	if (bits == 4) {
		for (uint32_t i = 0; i < dim / 2; i++) {
			code[i] = row[i] & 15u;
			code[i + dim / 2] = row[i] >> 4;
		}
		return;
	}
	unpack2(dim, row, code);
	for (uint32_t i = 0; bits == 3 && i < dim / 8; i++)
		for (uint32_t j = 0; j < 8; j++)
			code[8 * i + j] |= (uint8_t)((row[dim / 4 + i] >> j & 1u) << 2);
}

static void encode(uint32_t bits, const struct nuq_book *book, const struct nuq_row *at,
	const float *restrict x, uint32_t dim, uint8_t *restrict row)
{
	float u[KVP_PLANE_DIM_MAX];
	int32_t n[KVP_PLANE_DIM_MAX];
	uint8_t code[KVP_PLANE_DIM_MAX];

	for (uint32_t i = 0; i < dim; i++) {
		u[i] = (x[i] - at->middle[i]) * at->factor[i];
		n[i] = 0;
	}
	for (uint32_t b = 0; b < (1u << bits) - 1; b++) {
		const float bound = book->bound[b];

		for (uint32_t i = 0; i < dim; i++)
			n[i] += u[i] > bound;
	}
	for (uint32_t i = 0; i < dim; i++)
		code[i] = (uint8_t)n[i];
	kvp_row_pack(bits, dim, code, row);
}

static void decode(uint32_t bits, const struct nuq_book *book, const struct nuq_row *at,
	const uint8_t *restrict row, uint32_t dim, float *restrict x)
{
	uint8_t code[KVP_PLANE_DIM_MAX];

	unpack(bits, dim, row, code);
	for (uint32_t i = 0; i < dim; i++)
		x[i] = at->middle[i] + at->factor[i] * book->post[code[i]];
}

#endif
